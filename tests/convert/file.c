/* What a converted file is: valid, the original but for marked Casts, the same after a second run,
 * and the original again after the way back. */
#include "tests/convert/models.h"

#include "convert/check.h"
#include "convert/file.h"

static const char *const models[] = {
    "oracle/mlp/model_ts.onnx",     "oracle/mlp/model_dynamo.onnx",
    "oracle/mlp/model_loss_ts.onnx", "oracle/mlp/model_ts_op13.onnx",
    "oracle/vit/model_ts.onnx",     "oracle/vit/model_dynamo.onnx",
    "oracle/vit/model_ts_op13.onnx", "oracle/bert_mlm/model_ts.onnx",
    "oracle/bert_mlm/model_dynamo.onnx", "oracle/llama_lm/model_dynamo.onnx",
    "oracle/cnn/model_ts_train.onnx", "oracle/autoenc/model_sigmoid_ts.onnx",
    "convert/gpt2_lm_dynamo.onnx",  "convert/one_bias.onnx",
    "convert/shared_zero.onnx",     "convert/shared_weight.onnx",
    "convert/dropout.onnx",         "convert/constants.onnx",
    "convert/tail.onnx",            "convert/stream.onnx",
    "convert/if_capture.onnx",      "convert/if_constant.onnx",
    "convert/names_taken.onnx",
    "convert/external.onnx",        "convert/opset13.onnx",
    "convert/opset10.onnx",         "convert/forced.onnx",
    "convert/forced_ir10.onnx",     "convert/scan.onnx",
    "convert/user_casts.onnx",
};
enum { N_MODELS = sizeof models / sizeof *models };

/* ---- the original but for Casts ---- */

static ImportedModel *import(const char *path)
{
    ImportedModel *m = NULL;
    Err err = {0};
    assert_ok(mpri_import_file(path, NULL, &m, &err), &err);
    return m;
}

static void same_initializers(const Source *a, const Source *b)
{
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (int i = 0; i < a->n_tensors; i++) {
        Span x = a->tensors[i].field.tagged, y = b->tensors[i].field.tagged;
        assert_int_equal(x.len, y.len);
        assert_memory_equal(a->bytes + x.at, b->bytes + y.at, x.len);
    }
}

static void same_borders(const Graph *a, const Graph *b)
{
    assert_int_equal(a->n_inputs, b->n_inputs);
    assert_int_equal(a->n_outputs, b->n_outputs);
    for (int i = 0; i < a->n_inputs; i++) {
        assert_string_equal(a->inputs[i].value->name, b->inputs[i].value->name);
        assert_int_equal(a->inputs[i].value->dtype, b->inputs[i].value->dtype);
    }
    for (int i = 0; i < a->n_outputs; i++) {
        assert_string_equal(a->outputs[i].name, b->outputs[i].name);
        assert_int_equal(a->outputs[i].value->dtype, b->outputs[i].value->dtype);
    }
}

/* Every node of a in b, in order; between them only Casts, and Constants for clamped bounds. */
static void only_casts_added(const FileGraph *a, const FileGraph *b, int64_t added)
{
    int at = 0;
    for (int i = 0; i < b->n_nodes; i++) {
        const FileNodeIO *n = &b->nodes[i];
        if (at < a->n_nodes && !strcmp(a->nodes[at].name, n->name) &&
            !strcmp(a->nodes[at].op_type, n->op_type)) {
            assert_int_equal(a->nodes[at].n_in, n->n_in);
            assert_int_equal(a->nodes[at].n_out, n->n_out);
            at++;
            continue;
        }
        assert_true(!strcmp(n->op_type, "Cast") || !strcmp(n->op_type, "Constant"));
        assert_non_null(strstr(n->name, "__mpr_"));
        added--;
    }
    assert_int_equal(at, a->n_nodes);
    assert_int_equal(added, 0);
}

static void check_pair(const char *original, const char *converted, int64_t casts)
{
    ImportedModel *a = import(original), *b = import(converted);
    Arena arena;
    FileGraph fa, fb;
    Err err = {0};
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    assert_ok(mpri_infer_graph(b->graph, &err), &err);
    assert_ok(mpri_convert_check(a, b, &arena, &err), &err);
    same_initializers(a->source, b->source);
    same_borders(a->graph, b->graph);
    assert_ok(mpri_file_read(a, &arena, &fa, &err), &err);
    assert_ok(mpri_file_read(b, &arena, &fb, &err), &err);
    only_casts_added(&fa, &fb, casts);
    mpri_arena_destroy(&arena);
    mpri_import_destroy(a, mpri_alloc_default());
    mpri_import_destroy(b, mpri_alloc_default());
}

static void valid_and_stable(void **state)
{
    static const mpr_dtype types[] = {MPR_FLOAT16, MPR_BFLOAT16};
    static const char *const profiles[] = {"torch-cuda", "torch-cpu"};
    Fixture *f = *state;
    for (int i = 0; i < N_MODELS * 4; i++) {
        const char *from = test_data(models[i / 4]), *profile = profiles[i % 2];
        mpr_dtype type = types[i / 2 % 2];
        const char *once = in_folder(f->folder, "once.onnx");
        const char *twice = in_folder(f->folder, "twice.onnx");
        const char *back = in_folder(f->folder, "back.onnx");
        mpr_convert_result r;
        if (type == MPR_BFLOAT16 && strstr(from, "opset10")) continue;
        assert_int_equal(convert(f->ctx, from, once, type, profile, &r), MPR_OK);
        assert_true(r.changed && r.casts > 0 && r.nodes_low > 0);
        check_pair(from, once, r.casts);
        assert_int_equal(convert(f->ctx, once, twice, type, profile, &r), MPR_OK);
        assert_false(r.changed);
        assert_same_file(once, twice);
        assert_int_equal(convert(f->ctx, once, back, MPR_FLOAT32, profile, &r), MPR_OK);
        assert_same_file(from, back);
    }
}

/* A profile of torch decides inside functions, for each call: the calls are taken apart, and the way
 * back ends at the model without them. */
static void calls_are_taken_apart(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("convert/function.onnx");
    const char *once = in_folder(f->folder, "once.onnx"), *twice = in_folder(f->folder, "twice.onnx");
    const char *back = in_folder(f->folder, "back.onnx"), *plain = in_folder(f->folder, "plain.onnx");
    mpr_convert_result r;
    assert_int_equal(convert(f->ctx, from, once, MPR_FLOAT16, "torch-cuda", &r), MPR_OK);
    int64_t casts = r.casts;
    assert_int_equal(convert(f->ctx, once, twice, MPR_FLOAT16, "torch-cuda", &r), MPR_OK);
    assert_false(r.changed);
    assert_same_file(once, twice);
    assert_int_equal(convert(f->ctx, once, back, MPR_FLOAT32, "torch-cuda", &r), MPR_OK);
    mpr_model *model;
    mpr_convert_options o = {
        .size = sizeof o, .to = MPR_FLOAT32, .inline_functions = true};
    assert_int_equal(mpr_model_load(f->ctx, from, NULL, &model), MPR_OK);
    assert_int_equal(mpr_convert(model, plain, &o, &r), MPR_OK);
    mpr_model_destroy(model);
    assert_same_file(back, plain);
    check_pair(plain, once, casts);
}

/* Another type or profile starts from the original as well. */
static void other_options_start_anew(void **state)
{
    Fixture *f = *state;
    const char *from = test_data("oracle/vit/model_ts.onnx");
    mpr_convert_result r;
    const char *cpu = in_folder(f->folder, "cpu.onnx"), *cuda = in_folder(f->folder, "cuda.onnx");
    assert_int_equal(convert(f->ctx, from, cpu, MPR_BFLOAT16, "torch-cpu", &r), MPR_OK);
    assert_int_equal(convert(f->ctx, from, cuda, MPR_FLOAT16, "torch-cuda", &r), MPR_OK);
    const char *again = in_folder(f->folder, "again.onnx");
    assert_int_equal(convert(f->ctx, cpu, again, MPR_FLOAT16, "torch-cuda", &r), MPR_OK);
    assert_true(r.changed);
    assert_same_file(cuda, again);
}

/* ---- what single models show ---- */

/* The node of a name, from a converted copy of a model. */
static const FileNodeIO *node(const FileGraph *g, const char *name)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (!strcmp(g->nodes[i].name, name)) return &g->nodes[i];
    fail_msg("no node %s", name);
    return NULL;
}

typedef struct Opened {
    ImportedModel *m;
    Arena arena;
    FileGraph g;
    char *bytes;
    size_t n;
} Opened;

static void open_converted(Opened *o, const Fixture *f, const char *model, mpr_dtype type)
{
    const char *path = in_folder(f->folder, "opened.onnx");
    mpr_convert_result r;
    Err err = {0};
    assert_int_equal(convert(f->ctx, test_data(model), path, type, "torch-cuda", &r), MPR_OK);
    o->m = import(path);
    o->bytes = read_file(path, &o->n);
    mpri_arena_init(&o->arena, mpri_alloc_default(), 0);
    assert_ok(mpri_file_read(o->m, &o->arena, &o->g, &err), &err);
}

static void close_converted(Opened *o)
{
    mpri_import_destroy(o->m, mpri_alloc_default());
    mpri_arena_destroy(&o->arena);
    free(o->bytes);
}

static void assert_type(const Opened *o, const char *value, DType t)
{
    const FileValue *v = mpri_file_value(&o->g, value);
    assert_non_null(v);
    assert_int_equal(v->before, t);
}

static bool holds(const Opened *o, const char *text)
{
    return memmem(o->bytes, o->n, text, strlen(text)) != NULL;
}

/* The branches read the captured value in its old type, under a name of the main graph. */
static void captured_value(void **state)
{
    Opened o;
    open_converted(&o, *state, "convert/if_capture.onnx", MPR_FLOAT16);
    assert_type(&o, "a", MPR_FLOAT16);
    assert_type(&o, "a__mpr_f32", MPR_FLOAT32);
    assert_string_equal(node(&o.g, "a__mpr_f32")->in[0], "a");
    assert_string_equal(node(&o.g, "l2")->in[0], "b__mpr_f16");
    size_t reads = 0;
    for (const char *p = o.bytes; (p = memmem(p, o.n - (size_t)(p - o.bytes), "\x0a\x0a"
                                                                              "a__mpr_f32", 12));
         p++)
        reads++;
    assert_int_equal(reads, 2);
    close_converted(&o);
}

/* A bound of a Clip becomes the least finite value, by a Constant; a scalar that 16 bits do not hold
 * keeps its node in float32, and so does a mask of -1e9. */
static void constants_out_of_range(void **state)
{
    Opened o;
    open_converted(&o, *state, "convert/constants.onnx", MPR_FLOAT16);
    const FileNodeIO *clip = node(&o.g, "clip");
    assert_string_equal(clip->in[1], "lo__mpr_f16");
    assert_string_equal(node(&o.g, "max")->in[1], "lo");
    const Value *lo = mpri_graph_find_value(o.m->graph, "lo__mpr_f16");
    assert_non_null(lo);
    assert_int_equal(lo->kind, VAL_CONST);
    assert_true(mpri_load_f64(lo->dtype, lo->data, 0) == -65504);
    assert_type(&o, node(&o.g, "scale")->in[0], MPR_FLOAT32);
    assert_string_equal(node(&o.g, "scale")->in[1], "s");
    assert_type(&o, "e", MPR_FLOAT32);
    assert_string_equal(node(&o.g, "l3")->in[0], "e__mpr_f16");
    assert_type(&o, node(&o.g, "add")->in[0], MPR_FLOAT32);
    close_converted(&o);
}

/* Outputs keep their names and types; who reads them inside reads what was computed. */
static void outputs_read_inside(void **state)
{
    Opened o;
    open_converted(&o, *state, "convert/stream.onnx", MPR_FLOAT16);
    assert_string_equal(node(&o.g, "l1")->out[0], "h__mpr_f16");
    assert_type(&o, "h", MPR_FLOAT32);
    assert_type(&o, "y2", MPR_FLOAT32);
    assert_string_equal(node(&o.g, "alias")->out[0], "y2__mpr_f16");
    assert_true(holds(&o, "mpr.cast"));       /* IR 10: marks on the nodes */
    assert_false(holds(&o, "mpr.precision")); /* … and not in the model */
    close_converted(&o);
}

/* The Cast behind what is float32 only for want of a 16-bit form is marked as such, and no other. */
static void forced_nodes_are_marked(void **state)
{
    static const char *const pair[] = {"convert/forced.onnx", "convert/forced_ir10.onnx"};
    for (int i = 0; i < 2; i++) {
        Opened o;
        int n = 0;
        open_converted(&o, *state, pair[i], MPR_BFLOAT16);
        for (const Node *c = o.m->graph->first; c; c = c->next) {
            if (!c->rounds) continue;
            const Value *from = c->in[0];
            assert_string_equal(c->op->name, "Cast");
            assert_int_equal(c->out[0]->dtype, MPR_BFLOAT16);
            const Node *d = mpri_def(from);
            assert_true(mpri_is(d, OP_HardSwish) || mpri_is(d, OP_Softplus) ||
                        mpri_is(d, OP_Identity));
            n++;
        }
        assert_int_equal(n, 3);
        assert_true(holds(&o, i ? "bf16 rounds" : "\\fm1__mpr_bf16\n"));
        close_converted(&o);
    }
}

static void user_casts_stay(void **state)
{
    Opened o;
    open_converted(&o, *state, "convert/names_taken.onnx", MPR_FLOAT16);
    assert_string_equal(node(&o.g, "x__mpr_f16")->in[0], "x");
    assert_string_equal(node(&o.g, "x__mpr_f32")->in[0], "x__mpr_f16");
    assert_string_equal(node(&o.g, "l1")->in[1], "W1__mpr_f16_1");
    assert_true(holds(&o, "mpr.precision")); /* before IR 10: a list in the model */
    close_converted(&o);
}

/* bfloat16 where the opset has none for the operator: float32 between Casts that round. */
static void types_of_the_opset(void **state)
{
    Opened o;
    open_converted(&o, *state, "convert/opset13.onnx", MPR_BFLOAT16);
    assert_type(&o, node(&o.g, "where")->in[1], MPR_FLOAT32);
    assert_type(&o, node(&o.g, "pow")->in[1], MPR_FLOAT32);
    assert_type(&o, node(&o.g, "l2")->in[1], MPR_BFLOAT16);
    assert_type(&o, node(&o.g, "l3")->in[0], MPR_BFLOAT16);
    close_converted(&o);
    open_converted(&o, *state, "oracle/vit/model_ts.onnx", MPR_BFLOAT16);
    const FileNodeIO *conv = node(&o.g, "/patch_embed/Conv");
    for (int k = 0; k < 3; k++) {
        assert_type(&o, conv->in[k], MPR_FLOAT32);
        assert_non_null(strstr(conv->in[k], "__mpr_bf16__mpr_f32"));
    }
    close_converted(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_are_taken_apart, setup, teardown),
        cmocka_unit_test_setup_teardown(valid_and_stable, setup, teardown),
        cmocka_unit_test_setup_teardown(other_options_start_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(captured_value, setup, teardown),
        cmocka_unit_test_setup_teardown(constants_out_of_range, setup, teardown),
        cmocka_unit_test_setup_teardown(outputs_read_inside, setup, teardown),
        cmocka_unit_test_setup_teardown(forced_nodes_are_marked, setup, teardown),
        cmocka_unit_test_setup_teardown(user_casts_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(types_of_the_opset, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
