/* What holds for every graph after the autocast pass, shown on exported models: classes are obeyed,
 * a second run changes nothing, the casts are all that was added and each has a reason. */
#include <stdlib.h>
#include <string.h>

#include "importer/importer.h"
#include "passes/prepare.h"
#include "passes/profile.h"
#include "tests/support/graphs.h"

static const char *const models[] = {
    "oracle/mlp/model_ts.onnx",         "oracle/mlp/model_loss_ts.onnx",
    "oracle/mlp_regress/model_ts.onnx", "oracle/autoenc/model_sigmoid_ts.onnx",
    "oracle/cnn/model_ts.onnx",         "oracle/cnn/model_dynamo.onnx",
    "oracle/cnn/model_ts_train.onnx",   "oracle/vit/model_ts.onnx",
    "oracle/vit/model_dynamo.onnx",     "oracle/bert_mlm/model_ts.onnx",
    "oracle/bert_mlm/model_dynamo.onnx", "oracle/llama_lm/model_dynamo.onnx",
    "convert/gpt2_lm_dynamo.onnx",      "convert/constants.onnx",
    "convert/stream.onnx",              "convert/tail.onnx",
};

/* The graph of a file, after the passes in front of autocast. */
static void open_model(TestGraph *t, ImportedModel **m, const char *name)
{
    test_graph_open(t, "graph \"g\" {\ninput x: f32[1]\noutput y = x\n}\n");
    assert_ok(mpri_import_file(test_data(name), NULL, m, &t->err), &t->err);
    t->g = mpri_graph_clone((*m)->graph, &t->arena);
    assert_non_null(t->g);
    assert_ok(mpri_passes_run(&t->ctx, STAGE_PREPARE, t->g, &t->err), &t->err);
}

static void close_model(TestGraph *t, ImportedModel *m)
{
    mpri_import_destroy(m, mpri_alloc_default());
    test_graph_close(t);
}

static void autocast(TestGraph *t, const char *profile, DType low)
{
    Profile *p;
    assert_ok(mpri_profile_load(profile, NULL, &t->arena, &p, &t->err), &t->err);
    t->o.autocast = low;
    t->o.profile = p;
    (void)test_graph_pass(t, mpri_pass_autocast);
}

static bool is_fixed_input(const Node *n, int k)
{
    return k < 32 && n->op->fixed_in >> k & 1;
}

static bool pinned(const Node *n)
{
    return n->why && (strstr(n->why, "kept in f32") || strstr(n->why, "loss region"));
}

static void classes_are_obeyed(const TestGraph *t, const char *model, DType low)
{
    for (const Node *n = t->g->first; n; n = n->next) {
        CastDecision d = mpri_profile_class(t->o.profile, n);
        if (mpri_is(n, OP_Cast)) continue;
        for (int k = 0; k < n->n_in; k++)
            if (d.cls == CAST_LOW && !pinned(n) && mpri_prepare_eligible(n->in[k]) &&
                !is_fixed_input(n, k) && n->in[k]->dtype != low)
                fail_msg("%s: %s reads %s", model, n->name, mpri_dtype_name(n->in[k]->dtype));
        for (int k = 0; k < n->n_out; k++)
            if (d.cls == CAST_FP32 && n->out[k] && mpri_dtype_is_low(n->out[k]->dtype))
                fail_msg("%s: %s writes %s", model, n->name, mpri_dtype_name(n->out[k]->dtype));
    }
}

static int count_nodes(const Graph *g)
{
    int n = 0;
    for (const Node *k = g->first; k; k = k->next) n++;
    return n;
}

/* Every node of `before` again, in order, between casts that have a reason. */
static void only_casts_added(const Graph *before, const Graph *after, const char *model)
{
    const Node *a = before->first;
    for (const Node *b = after->first; b; b = b->next) {
        if (a && a->op == b->op && !strcmp(a->name, b->name)) {
            assert_int_equal(a->n_in, b->n_in);
            assert_int_equal(a->n_out, b->n_out);
            a = a->next;
            continue;
        }
        if (!mpri_is(b, OP_Cast)) fail_msg("%s: '%s' (%s) was added", model, b->name, b->op->name);
        if (!b->why || !*b->why) fail_msg("%s: '%s' has no reason", model, b->name);
    }
    if (a) fail_msg("%s: '%s' is gone", model, a->name);
}

/* The casts go, and where they stood their input is read: the types are those of before. */
static void without_casts(TestGraph *t, const Graph *before, const char *model)
{
    for (Node *n = t->g->first, *next; n; n = next) {
        next = n->next;
        if (!mpri_is(n, OP_Cast) || !n->why) continue;
        mpri_value_replace(t->g, n->out[0], n->in[0]);
        mpri_node_remove(t->g, n);
    }
    const Node *a = before->first;
    for (const Node *b = t->g->first; b; b = b->next, a = a ? a->next : NULL)
        if (!a || a->op != b->op || strcmp(a->name, b->name))
            fail_msg("%s: '%s' instead of '%s'", model, b->name, a ? a->name : "nothing");
    assert_null(a);
}

static void properties(void **state)
{
    (void)state;
    static const char *const profiles[] = {"torch-cuda", "torch-cpu"};
    static const DType lows[] = {MPR_FLOAT16, MPR_BFLOAT16};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int k = 0; k < 4; k++) {
            TestGraph t;
            ImportedModel *m = NULL;
            open_model(&t, &m, models[i]);
            Graph *before = mpri_graph_clone(t.g, &t.arena);
            assert_non_null(before);
            DType low = lows[k % 2];
            autocast(&t, profiles[k / 2], low);
            classes_are_obeyed(&t, models[i], low);
            only_casts_added(before, t.g, models[i]);
            int nodes = count_nodes(t.g);
            if (test_graph_pass(&t, mpri_pass_autocast))
                fail_msg("%s: a second run changes it", models[i]);
            assert_int_equal(count_nodes(t.g), nodes);
            without_casts(&t, before, models[i]);
            close_model(&t, m);
        }
}

/* With float32 as the low type nothing is cast. */
static void float32_is_no_cast(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        TestGraph t;
        ImportedModel *m = NULL;
        open_model(&t, &m, models[i]);
        int nodes = count_nodes(t.g);
        autocast(&t, "torch-cuda", MPR_FLOAT32);
        assert_int_equal(count_nodes(t.g), nodes);
        close_model(&t, m);
    }
}

/* The product that a branch ends in, seen through the cast and what only moves data. */
static bool ends_in_product(const Value *v)
{
    const Node *d = mpri_def(v);
    if (!mpri_is(d, OP_Cast)) return false;
    for (d = mpri_def(d->in[0]); d && d->op->cast_cuda == CAST_MOVE && d->n_in;) d = mpri_def(d->in[0]);
    return mpri_is(d, OP_Linear) || mpri_is(d, OP_MatMul) || mpri_is(d, OP_Gemm);
}

/* The residual stream of a transformer is float32: every Add that joins a branch to it, although
 * the branch ends in a product of 16 bits. */
static void residual_stream(void **state)
{
    (void)state;
    static const char *const streams[] = {"oracle/vit/model_ts.onnx",
                                          "oracle/llama_lm/model_dynamo.onnx",
                                          "convert/gpt2_lm_dynamo.onnx"};
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        TestGraph t;
        ImportedModel *m = NULL;
        int found = 0;
        open_model(&t, &m, streams[i]);
        autocast(&t, "torch-cuda", MPR_FLOAT16);
        for (const Node *n = t.g->first; n; n = n->next) {
            if (!mpri_is(n, OP_Add) || n->n_in != 2) continue;
            for (int k = 0; k < 2; k++) { /* the branch, cast up from the product */
                if (!ends_in_product(n->in[k])) continue;
                found++;
                assert_int_equal(n->in[1 - k]->dtype, MPR_FLOAT32);
                assert_int_equal(n->out[0]->dtype, MPR_FLOAT32);
            }
        }
        if (found < 2) fail_msg("%s: %d residual additions", streams[i], found);
        close_model(&t, m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(properties),
        cmocka_unit_test(float32_is_no_cast),
        cmocka_unit_test(residual_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
