/* The ledger of a loop whose host looks late: losses of a window, which steps are held, what a record says. */
#include "tests/op/update_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/ledger_rule.h"

/* n doubles that begin with those of the text, of which there are `given`; the rest is zero. */
static void numbers(World *w, int n, int given, const char *text)
{
    char all[400];
    int at = snprintf(all, sizeof all, "f64[%d]=%s", n, text);
    for (int i = given; i < n; i++) at += snprintf(all + at, sizeof all - (size_t)at, " 0");
    add(w, all);
}

static void note_bad(World *w)
{
    numbers(w, LEDGER_SIZE, 4, "0 2 5 0");
    add(w, "f64[2]=0 0.5");
    add(w, "f32[]=inf");
}
static void note_first(World *w)
{
    numbers(w, LEDGER_SIZE, 4, "0 2 5 1");
    add(w, "f64[2]=1 0.5");
    add(w, "f16[]=3");
}
static void note_nothing(World *w)
{
    numbers(w, LEDGER_SIZE, 4, "0 2 5 0");
    add(w, "f64[2]=0 0");
    add(w, "f32[]=nan");
}

static void ledger_losses(void **state)
{
    (void)state;
    World w = run(OP_LedgerLoss, NULL, note_bad, 1);
    assert_true(value(&w, 0, LEDGER_BAD) == 1 && isinf(value(&w, 0, LEDGER_LOSS)));
    mpri_arena_destroy(&w.arena);
    w = run(OP_LedgerLoss, NULL, note_first, 1);
    assert_true(value(&w, 0, LEDGER_BAD) == 0 && value(&w, 0, LEDGER_LOSS) == 1.5);
    mpri_arena_destroy(&w.arena);
    w = run(OP_LedgerLoss, NULL, note_nothing, 1);
    assert_true(value(&w, 0, LEDGER_BAD) == 0 && value(&w, 0, LEDGER_LOSS) == 5);
    mpri_arena_destroy(&w.arena);
}

static const char *ledger_text, *close_text, *state_text, *rule_text; /* of the next judgement */

static void judged(World *w)
{
    numbers(w, LEDGER_SIZE, 4, ledger_text);
    numbers(w, CLOSE_SIZE, 6, close_text);
    numbers(w, 8, 1, state_text);
    numbers(w, 8, 0, "");
    numbers(w, SCALER_SIZE, 4, "64 0 1 1");
    numbers(w, 8, 8, rule_text);
}

/* Held, found and the rate of a step. */
static void judge(const char *ledger, const char *close, const char *state, const char *rule, double held,
                  double found, double rate)
{
    ledger_text = ledger;
    close_text = close;
    state_text = state;
    rule_text = rule;
    World w = run(OP_LedgerJudge, NULL, judged, 1);
    assert_true(value(&w, 0, LEDGER_HELD) == held && value(&w, 2, STATE_FOUND) == found);
    assert_true(value(&w, 3, HYPER_RATE) == rate);
    mpri_arena_destroy(&w.arena);
}

#define DYNAMIC "2 0.5 9 1 1024 1 0 5"
static void ledger_judges(void **state)
{
    (void)state;
    judge("0 4 1 0", "3 0 1 7 8 9", "0", DYNAMIC, 0, 0, 8);  /* plain: the rate of its update */
    judge("0 4 1 0", "3 0 1 7 8 9", "1", DYNAMIC, 1, 1, 8);  /* a skip */
    judge("0 4 1 1", "4 0 1 7 8 9", "0", DYNAMIC, 1, 1, 7);  /* a bad loss */
    judge("1 4 1 0", "4 0 1 7 8 9", "0", DYNAMIC, 1, 1, 7);  /* after one that is held */
    judge("0 0 1 0", "0 0 1 7 8 9", "1", DYNAMIC, 0, 1, 7);  /* the search for the scale */
    judge("0 0 1 0", "0 1 1 7 8 9", "1", DYNAMIC, 1, 1, 7);  /* somebody waits */
    judge("0 0 1 0", "0 0 1 7 8 9", "1", "2 0.5 9 1 1024 1 0 2", 1, 1, 7); /* the last that is allowed */
    judge("0 0 1 0", "0 0 1 7 8 9", "1", "2 0.5 9 1 1024 1 1 5", 1, 1, 7); /* a constant scale */
}

static void closed(World *w)
{
    numbers(w, LEDGER_SIZE, 4, ledger_text);
    numbers(w, CLOSE_SIZE, 6, "4 0 2 7 8 9");
    numbers(w, 8, 5, state_text);
    numbers(w, SCALER_SIZE, 6, "64 0 1 1 3 4");
    numbers(w, 8, 8, DYNAMIC);
}

static void ledger_closes(void **state)
{
    (void)state;
    ledger_text = "0 4 3 0";
    state_text = "0 4 2 5 0";
    World w = run(OP_LedgerClose, NULL, closed, 1);
    static const double clean[] = {0, 0, 1.5, 2, 64, 7, 5, 3, 64, 1, 1, 0, 3, 5};
    for (int i = 0; i < 14; i++) assert_true(value(&w, 0, LEDGER_RECORD + i) == clean[i]);
    assert_true(value(&w, 0, LEDGER_UPDATES) == 5 && value(&w, 3, SCALER_UPDATES) == 5);
    mpri_arena_destroy(&w.arena);
    state_text = "1 4 2 5 1";
    w = run(OP_LedgerClose, NULL, closed, 1);
    assert_true(value(&w, 0, LEDGER_RECORD + RECORD_SKIPPED) == 1 && value(&w, 0, LEDGER_UPDATES) == 4);
    assert_true(value(&w, 3, SCALER_SCALE) == 32 && value(&w, 3, SCALER_ROW) == 2);
    mpri_arena_destroy(&w.arena);
    ledger_text = "1 4 3 0"; /* held: nothing but that is told, nothing changes */
    w = run(OP_LedgerClose, NULL, closed, 1);
    assert_true(value(&w, 0, LEDGER_RECORD + RECORD_HELD) == 1 && value(&w, 3, SCALER_SCALE) == 64);
    assert_true(value(&w, 0, LEDGER_RECORD + RECORD_SCALE) == 0 && value(&w, 3, SCALER_SKIPS) == 3);
    mpri_arena_destroy(&w.arena);
}

static void kept(World *w)
{
    numbers(w, LEDGER_SIZE, 1, ledger_text);
    numbers(w, CLOSE_SIZE, 0, "");
    add(w, "f32[2]=1 2");
    add(w, "f32[2]=5 6");
}

static void ledger_keeps(void **state)
{
    (void)state;
    for (int held = 0; held < 2; held++) {
        ledger_text = held ? "1" : "0";
        World w = run(OP_LedgerKeep, NULL, kept, 1);
        assert_true(value(&w, 3, 0) == (held ? 5 : 1) && value(&w, 3, 1) == (held ? 6 : 2));
        mpri_arena_destroy(&w.arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ledger_losses),
        cmocka_unit_test(ledger_judges),
        cmocka_unit_test(ledger_closes),
        cmocka_unit_test(ledger_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
