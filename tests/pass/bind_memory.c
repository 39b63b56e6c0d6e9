/* Memory runs out at any point of the bind stage: it is reported, and nothing else happens. */
#include "tests/support/graphs.h"

#include <stdlib.h>
#include "kernels/ref/ref.h"
#include "runtime/ir/text_form.h"

static const char model[] =
    "graph \"g\" {\ninput x: f32[n,4,6]\ninput t: f32[n,4,6]\n"
    "param s: f32[6] trained = splat(1)\nparam b: f32[6] trained = splat(0)\n"
    "param wq: f32[6,6] trained = splat(0.5)\nparam wk: f16[6,6] trained = splat(0.5)\n"
    "const minus: i64[1] = [-1]\nconst heads: i64[2] = [2,3]\nconst c: f16[] = 0.5\n"
    "const row: f32[4] = [0,-1,-2,-3]\nconst two: f32[] = 2\n"
    "sh = Shape(x) {start=0, end=2}\nhs = Concat(sh, heads) {axis=0}\nfs = Concat(sh, minus) "
    "{axis=0}\n"
    "mask = Mul(row, two)\nn = LayerNormalization(x, s, b)\nnl = Cast(n) {to=f16}\n"
    "ql = Cast(wq) {to=f16}\nq = MatMul(nl, ql)\nk = MatMul(nl, wk)\nqh = Reshape(q, hs)\n"
    "kh = Reshape(k, hs)\nqt = Transpose(qh) {perm=[0,2,1,3]}\nkt = Transpose(kh) "
    "{perm=[0,2,3,1]}\n"
    "sc = MatMul(qt, kt)\nss = Mul(sc, c)\nsf = Cast(ss) {to=f32}\nsm = Add(sf, mask)\n"
    "p = Softmax(sm)\npl = Cast(p) {to=f16}\nct = MatMul(pl, qt)\nco = Transpose(ct) "
    "{perm=[0,2,1,3]}\n"
    "cf = Reshape(co, fs)\no = MatMul(cf, ql)\ng = Gelu(o)\nof = Cast(g) {to=f32}\ny = Add(x, of)\n"
    "l, m = MseLoss(y, t)\noutput loss = l\n}\n";

/* Bytes in use decide when an arena fails, so the limit stands for a position in the sequence. */
static mpr_status bind(size_t limit, size_t scratch_limit, Err *err)
{
    Arena arena, scratch;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    mpri_arena_init(&scratch, mpri_alloc_default(), scratch_limit);
    Intern *names = mpri_intern_create(&arena);
    Graph *g;
    assert_non_null(names);
    assert_int_equal(mpri_graph_parse(model, &arena, names, mpri_op_table(), &g, err), MPR_OK);
    DimBinding *binding = mpri_binding_create(&arena, g->sym);
    assert_non_null(binding);
    assert_true(mpri_dim_bind(binding, mpri_dim_named(g->sym, "n"), 2));
    KernelSet ref;
    ref.tables = mpri_ref_tables(&ref.n);
    PassOptions o = {.grads = GRADS_TO_SLOTS, .training = true};
    PassCtx ctx = {.scratch = &scratch, .alloc = mpri_alloc_default(), .o = &o, .ref = &ref,
                   .binding = binding};
    if (limit) arena.limit = arena.used + limit;
    mpr_status status = mpri_passes_run(&ctx, STAGE_BIND, g, err);
    mpri_arena_destroy(&scratch);
    mpri_arena_destroy(&arena);
    return status;
}

static void run_out(bool graph)
{
    Err *err = calloc(1, sizeof *err);
    assert_non_null(err);
    mpr_status status = MPR_E_NOMEM;
    int failures = 0;
    for (size_t limit = 16; status != MPR_OK; limit += graph ? 208 : 48) {
        mpri_err_clear(err);
        status = bind(graph ? limit : 0, graph ? 0 : limit, err);
        if (status == MPR_OK) break;
        failures++;
        if (status != MPR_E_NOMEM) print_error("%s | %s\n", err->message, err->where);
        assert_int_equal(status, MPR_E_NOMEM);
        assert_int_equal(err->code, MPR_E_NOMEM);
    }
    assert_true(failures > 20);
    free(err);
}

static void graph_memory(void **state)
{
    (void)state;
    run_out(true);
}

static void scratch_memory(void **state)
{
    (void)state;
    run_out(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graph_memory),
        cmocka_unit_test(scratch_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
