/* Memory runs out at any point: each prepare-stage pass reports it and nothing else happens. */
#include <stdlib.h>
#include "passes/pass.h"
#include "runtime/ir/text_form.h"
#include "tests/support/support.h"

static const char model[] =
    "graph \"g\" {\ninput x: f32[2,3,8]\ninput m: bool[3,8]\nparam w: f32[8,8] trained\n"
    "param b: f32[8] trained\nparam s: f32[8] trained\nconst last: i64[1] = [-1]\n"
    "const two: f32[] = 2\nconst eps: f32[] = 1e-05\nconst root2: f32[] = 1.4142135\n"
    "const half: f32[] = 0.5\nconst one: f32[] = 1\nconst mask: f32[] = -1e9\n"
    "u = ReduceMean(x, last)\nd = Sub(x, u)\nq = Pow(d, two)\nv = ReduceMean(q, last)\n"
    "ve = Add(v, eps)\nr = Sqrt(ve)\nn = Div(d, r)\nns = Mul(n, s)\nln = Add(ns, b)\n"
    "mm = MatMul(ln, w)\nh = Add(mm, b)\ne0 = Div(h, root2)\ne = Erf(e0)\ne1 = Add(e, one)\n"
    "g1 = Mul(h, e1)\ng = Mul(g1, half)\nmk = Where(m, g, mask)\ni = Identity(mk)\n"
    "p = Softmax(i)\ny = MatMul(p, w)\noutput logits = y\n}\n";

/* Bytes in use decide when an arena fails, so the limit stands for a position in the sequence. */
static mpr_status prepare(size_t limit, Err *err)
{
    Arena arena, scratch;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    mpri_arena_init(&scratch, mpri_alloc_default(), 0);
    Intern *names = mpri_intern_create(&arena);
    Graph *g;
    assert_non_null(names);
    assert_int_equal(mpri_graph_parse(model, &arena, names, mpri_op_table(), &g, err), MPR_OK);
    Profile *p;
    assert_int_equal(mpri_profile_load("torch-cuda", NULL, &arena, &p, err), MPR_OK);
    PassOptions o = {.loss = "cross-entropy", .ignore_index = -100, .autocast = MPR_FLOAT16};
    o.profile = p;
    PassCtx ctx = {.scratch = &scratch, .alloc = mpri_alloc_default(), .o = &o};
    arena.limit = arena.used + limit;
    mpr_status status = mpri_passes_run(&ctx, STAGE_PREPARE, g, err);
    mpri_arena_destroy(&scratch);
    mpri_arena_destroy(&arena);
    return status;
}

static void test_graph_memory(void **state)
{
    (void)state;
    Err *err = calloc(1, sizeof *err);
    assert_non_null(err);
    mpr_status status = MPR_E_NOMEM;
    int failures = 0;
    for (size_t limit = 0; status != MPR_OK; limit += 48) {
        mpri_err_clear(err);
        status = prepare(limit, err);
        if (status == MPR_OK) break;
        failures++;
        assert_int_equal(status, MPR_E_NOMEM);
        assert_int_equal(err->code, MPR_E_NOMEM);
    }
    assert_true(failures > 50);
    free(err);
}

static void test_profile_memory(void **state)
{
    (void)state;
    static const char *const keep[] = {"Softmax", "/a/*", NULL};
    Err *err = calloc(1, sizeof *err);
    assert_non_null(err);
    mpr_status status = MPR_E_NOMEM;
    for (size_t limit = 16; status != MPR_OK; limit += 64) {
        Arena arena;
        Profile *p;
        mpri_err_clear(err);
        mpri_arena_init(&arena, mpri_alloc_default(), limit);
        status = mpri_profile_load("torch-cuda", keep, &arena, &p, err);
        assert_true(status == MPR_OK || (status == MPR_E_NOMEM && !p));
        mpri_arena_destroy(&arena);
    }
    free(err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graph_memory),
        cmocka_unit_test(test_profile_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
