/* The option table: every row is sound, values are checked, the order of strength holds, YAML goes
 * both ways. */
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mpr_context *ctx;
static mpr_trainer_options *o;

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(mpr_context_create(NULL, &ctx), MPR_OK);
    assert_int_equal(mpr_trainer_options_create(ctx, &o), MPR_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mpr_trainer_options_destroy(o);
    mpr_context_destroy(ctx);
    return 0;
}

static void refuses(const char *name, const char *value, const char *word)
{
    assert_int_equal(mpr_trainer_options_set(o, name, value), MPR_E_USAGE);
    mpr_error e = mpr_last_error(o);
    if (!strstr(e.message, word) && !strstr(e.advice, word))
        fail_msg("no '%s' in: %s | %s", word, e.message, e.advice);
}

static void rows_are_sound(void **state)
{
    (void)state;
    int n = mpr_trainer_options_count();
    assert_true(n > 50);
    assert_null(mpr_trainer_options_row(n));
    assert_null(mpr_trainer_options_row(-1));
    for (int i = 0; i < n; i++) {
        const mpr_option_row *row = mpr_trainer_options_row(i);
        assert_non_null(row->help);
        assert_non_null(row->group);
        if (row->kind == MPR_OPTION_FLAG) assert_string_equal(row->def, "false");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(row->name, mpr_trainer_options_row(k)->name);
        if (!row->def) continue;
        assert_string_equal(mpr_trainer_options_get(o, row->name), row->def);
        if (mpr_trainer_options_set(o, row->name, row->def) != MPR_OK)
            fail_msg("%s: its own default is refused", row->name);
    }
}

static void values_are_checked(void **state)
{
    (void)state;
    assert_int_equal(mpr_trainer_options_set(o, "learning_rate", "1e-3"), MPR_OK);
    assert_string_equal(mpr_trainer_options_get(o, "learning-rate"), "1e-3");
    assert_int_equal(mpr_trainer_options_set(o, "--lr", "0.5"), MPR_OK);
    assert_string_equal(mpr_trainer_options_get(o, "learning-rate"), "0.5");
    static const char *const bad_rates[] = {"nan",  "inf", "0,1", "1e999", "-1",
                                            "0.1x", "",    " 1",  "0x1",   "none"};
    for (size_t i = 0; i < sizeof(bad_rates) / sizeof(*bad_rates); i++)
        refuses("learning-rate", bad_rates[i], "learning-rate");
    assert_string_equal(mpr_trainer_options_get(o, "learning-rate"), "0.5");
    refuses("batch-size", "0", "per-device-train-batch-size");
    refuses("batch-size", "18446744073709551617", "[1,inf)");
    refuses("gradient-accumulation-steps", "1.5", "whole");
    refuses("adam-beta1", "1", "[0,1)");
    refuses("optim", "adamm", "adamw|adam|sgd");
    refuses("loss", "crossentropy", "cross-entropy");
    refuses("loss-scale", "0", "loss-scale");
    refuses("lerning-rate", "1", "learning-rate");
    refuses("learning-rate", NULL, "needs a value");
    assert_int_equal(mpr_trainer_options_set(o, "loss", "output:total"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "loss-scale", "dynamic"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "loss-scale", "1024"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "fp16", NULL), MPR_OK);
    assert_string_equal(mpr_trainer_options_get(o, "fp16"), "true");
    refuses("fp16", "maybe", "true and false");
    assert_int_equal(mpr_trainer_options_set(o, "save-total-limit", "2"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "save-total-limit", "none"), MPR_OK);
    assert_string_equal(mpr_trainer_options_get(o, "save-total-limit"), "");
    assert_null(mpr_trainer_options_get(o, "no-such-option"));
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void strength(void **state)
{
    (void)state;
    char path[] = "/tmp/mpr-options-XXXXXX";
    close(mkstemp(path));
    write_file(path, "max-steps: 7\nlogging_steps: 3\nfreeze: [a, b]\nseed: 5\n");
    setenv("MPR_LOGGING_STEPS", "4", 1);
    assert_int_equal(mpr_trainer_options_set(o, "max-steps", "9"), MPR_OK);
    assert_int_equal(mpr_trainer_options_environment(o), MPR_OK);
    assert_int_equal(mpr_trainer_options_load(o, path), MPR_OK);
    unsetenv("MPR_LOGGING_STEPS");
    assert_string_equal(mpr_trainer_options_get(o, "max-steps"), "9");
    assert_string_equal(mpr_trainer_options_get(o, "logging-steps"), "4");
    assert_string_equal(mpr_trainer_options_get(o, "seed"), "5");
    assert_true(mpr_trainer_options_is_set(o, "seed"));
    assert_false(mpr_trainer_options_is_set(o, "fp16"));
    assert_string_equal(mpr_trainer_options_get(o, "freeze"), "a\nb");
    assert_int_equal(mpr_trainer_options_set(o, "freeze", "c"),
                     MPR_OK); /* a call replaces what the file gave, then adds */
    assert_int_equal(mpr_trainer_options_set(o, "freeze", "d"), MPR_OK);
    assert_string_equal(mpr_trainer_options_get(o, "freeze"), "c\nd");
    assert_int_equal(mpr_trainer_options_set(o, "metrics", "accuracy,f1"), MPR_OK);
    assert_string_equal(mpr_trainer_options_get(o, "metrics"), "accuracy\nf1");
    setenv("MPR_MAX_GRAD_NORM", "-1", 1);
    assert_int_equal(mpr_trainer_options_environment(o), MPR_E_USAGE);
    assert_non_null(strstr(mpr_last_error(o).where, "MPR_MAX_GRAD_NORM"));
    unsetenv("MPR_MAX_GRAD_NORM");
    unlink(path);
}

static void yaml_faults(void **state)
{
    static const struct {
        const char *text, *word;
    } faults[] = {
        {"max-steps: 1\nlerning-rate: 1\n", "line 2"},
        {"learning-rate: fast\n", "fast"},
        {"learning-rate: 1\nlearning_rate: 2\n", "twice"},
        {"- a\n", "mapping"},
        {"word\n", "mapping"},
        {"learning-rate: {a: 1}\n", "learning-rate"},
        {"a: [b\n", "line"},
        {"learning-rate: !!python/object:os.system x\n", "learning-rate"},
        {"freeze: [[a]]\n", "freeze"},
        {"seed: &x 1\nmax-steps: *x\n", "max-steps"},
    };
    (void)state;
    char path[] = "/tmp/mpr-options-XXXXXX";
    close(mkstemp(path));
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++) {
        write_file(path, faults[i].text);
        if (mpr_trainer_options_load(o, path) != MPR_E_USAGE)
            fail_msg("accepted: %s", faults[i].text);
        mpr_error e = mpr_last_error(o);
        if (!strstr(e.message, faults[i].word) && !strstr(e.where, faults[i].word))
            fail_msg("no '%s' in: %s | %s", faults[i].word, e.message, e.where);
    }
    static const char *const fine[] = {"", "# nothing\n", "{\"seed\": 3, \"freeze\": []}\n",
                                       "seed: 3\r\nmax_steps: 4\r\n", "seed:\n",
                                       "threads: 2\nseed: 3\nno_progress: true\n"};
    for (size_t i = 0; i < sizeof(fine) / sizeof(*fine); i++) {
        write_file(path, fine[i]);
        if (mpr_trainer_options_load(o, path) != MPR_OK)
            fail_msg("refused: %s (%s)", fine[i], mpr_last_error(o).message);
    }
    unlink(path);
    assert_int_equal(mpr_trainer_options_load(o, "/nonexistent/x.yaml"), MPR_E_IO);
}

static void yaml_round_trip(void **state)
{
    (void)state;
    char path[] = "/tmp/mpr-options-XXXXXX", *first, *second;
    close(mkstemp(path));
    assert_int_equal(mpr_trainer_options_set(o, "output-dir", "a: \"strange\" # name\t"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "freeze", "*.bias, or"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "freeze", "12"), MPR_OK);
    assert_int_equal(mpr_trainer_options_set(o, "bf16", "yes"), MPR_OK);
    assert_int_equal(mpr_trainer_options_print(o, &first), MPR_OK);
    write_file(path, first);
    mpr_trainer_options *other;
    assert_int_equal(mpr_trainer_options_create(ctx, &other), MPR_OK);
    if (mpr_trainer_options_load(other, path) != MPR_OK)
        fail_msg("%s", mpr_last_error(other).message);
    assert_int_equal(mpr_trainer_options_print(other, &second), MPR_OK);
    assert_string_equal(first, second);
    mpr_free_text(ctx, first);
    mpr_free_text(ctx, second);
    mpr_trainer_options_destroy(other);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_are_sound, set_up, tear_down),
        cmocka_unit_test_setup_teardown(values_are_checked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(strength, set_up, tear_down),
        cmocka_unit_test_setup_teardown(yaml_faults, set_up, tear_down),
        cmocka_unit_test_setup_teardown(yaml_round_trip, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
