/* Sizes that stand in the contents of graph inputs, in files that declare something else.
 *
 * A session plans from shapes alone: such a node is refused by name before anything runs, whatever
 * the file declares. A single run knows the contents: the result has the shape that they give, and
 * a declaration that says otherwise is refused. Run it under ASan: a plan that believes the file
 * writes past its buffers. */
#include "tests/support/wire_model.h"
#include "tests/train/digits.h"

#define D(...) ((const int64_t[]){__VA_ARGS__, -99})
static const int64_t scalar[] = {-99};

typedef struct SizeInput {
    const char *name;
    int type;
    int n; /* elements of a 1-D tensor; -1: a scalar */
    int64_t v[8];
} SizeInput;

typedef struct SizeRow {
    const char *op, *in, *out; /* h: 2x6 (or `h`) of the product with the weight; y: what counts */
    const int64_t *h, *y;      /* shapes; y: what the contents give */
    SizeInput sizes[3];
    const char *attr;
    int64_t value;
    bool nodiff;                   /* no gradient through it: the loss has another term */
    void (*before)(Wire *g);       /* nodes that make the sizes */
} SizeRow;

static const int64_t *declared; /* of the model under construction; NULL: nothing */

static void axis_node(Wire *g, const char *op, const char *name, const char *in, const char *out)
{
    Wire n = wm_node(op, name, in, out);
    wm_attr_int(&n, "axis", 0);
    GRAPH_ADD_NODE(g, &n);
}

/* r is one run-time number: [r, 3] is known in part. */
static void half_known(Wire *g)
{
    wm_add_i64(g, "three", D(1), (const int64_t[]){3});
    axis_node(g, "Concat", "cat", "r three", "n");
}

/* Slice from 6 - r - 1 to 6 - r: one column, if r lies in the range where the rules put it. */
static void difference_known(Wire *g)
{
    half_known(g);
    wm_add_i64(g, "zero", D(1), (const int64_t[]){0});
    wm_add_i64(g, "one", D(1), (const int64_t[]){1});
    wm_add_i64(g, "six", D(1), (const int64_t[]){6});
    axis_node(g, "Gather", "take", "n zero", "r2");
    wm_add_node(g, "Sub", "s1", "six r2", "to");
    wm_add_node(g, "Sub", "s2", "to one", "from");
}

#define ROW(Op, In, Out, H, Y, ...) \
    {.op = Op, .in = In, .out = Out, .h = H, .y = Y, __VA_ARGS__}

static const SizeRow rows[] = {
    ROW("Reshape", "h n", "y", D(2, 6), D(4, 3), .sizes = {{"n", MPR_INT64, 2, {4, 3}}}),
    ROW("Reshape", "h n", "y", D(2, 6), D(4, 3),
        .sizes = {{"r", MPR_INT64, 1, {4}}}, .before = half_known),
    ROW("Expand", "h n", "y", D(1, 3), D(50, 3), .sizes = {{"n", MPR_INT64, 2, {50, 3}}}),
    ROW("Expand", "h n", "y", D(1, 3), D(50, 3),
        .sizes = {{"r", MPR_INT64, 1, {50}}}, .before = half_known),
    ROW("Tile", "h n", "y", D(2, 3), D(40, 9), .sizes = {{"n", MPR_INT64, 2, {20, 3}}}),
    ROW("Slice", "h n m", "y", D(40, 6), D(33, 3),
        .sizes = {{"n", MPR_INT64, 2, {3, 1}}, {"m", MPR_INT64, 2, {36, 4}}}),
    ROW("Slice", "h from to one", "y", D(2, 6), D(2, 1),
        .sizes = {{"r", MPR_INT64, 1, {2}}}, .before = difference_known),
    ROW("Slice", "h from to one", "y", D(2, 6), D(2, 0),
        .sizes = {{"r", MPR_INT64, 1, {-1000}}}, .before = difference_known),
    ROW("Pad", "h n", "y", D(2, 6), D(32, 27), .sizes = {{"n", MPR_INT64, 4, {10, 1, 20, 20}}}),
    ROW("Resize", "h _ _ n", "y", D(2, 6), D(20, 60), .sizes = {{"n", MPR_INT64, 2, {20, 60}}}),
    ROW("TopK", "h n", "y i", D(2, 60), D(2, 50), .sizes = {{"n", MPR_INT64, 1, {50}}}),
    ROW("Split", "h n", "y z", D(2, 60), D(2, 50),
        .sizes = {{"n", MPR_INT64, 2, {50, 10}}}, .attr = "axis", .value = 1),
    ROW("Squeeze", "h n", "y", D(2, 1, 6, 1), D(2, 6), .sizes = {{"n", MPR_INT64, 2, {1, 3}}}),
    ROW("Unsqueeze", "h n", "y", D(2, 6), D(1, 2, 6), .sizes = {{"n", MPR_INT64, 1, {0}}}),
    ROW("ReduceSum", "h n", "y", D(20, 6), D(20, 1), .sizes = {{"n", MPR_INT64, 1, {1}}}),
    ROW("ReduceMax", "h n", "y", D(20, 6), D(20),
        .sizes = {{"n", MPR_INT64, 1, {1}}}, .attr = "keepdims"),
    ROW("CenterCropPad", "h n", "y", D(2, 6), D(30, 40), .sizes = {{"n", MPR_INT64, 2, {30, 40}}}),
    ROW("Compress", "h n", "y", D(2, 6), D(2, 4),
        .sizes = {{"n", MPR_BOOL, 6, {1, 1, 1, 0, 0, 1}}}, .attr = "axis", .value = 1),
    ROW("Col2Im", "h n m", "y", D(1, 20, 2), D(1, 5, 4, 2),
        .sizes = {{"n", MPR_INT64, 2, {4, 2}}, {"m", MPR_INT64, 2, {4, 1}}}),
    ROW("ConstantOfShape", "n", "y", D(2, 6), D(30, 20),
        .sizes = {{"n", MPR_INT64, 2, {30, 20}}}, .nodiff = true),
    ROW("NonZero", "n", "y", D(2, 6), D(1, 3),
        .sizes = {{"n", MPR_INT64, 4, {0, 5, 5, 5}}}, .nodiff = true),
    ROW("Range", "a b c", "y", D(2, 6), D(90),
        .sizes = {{"a", MPR_INT64, -1, {0}}, {"b", MPR_INT64, -1, {90}}, {"c", MPR_INT64, -1, {1}}},
        .nodiff = true),
    ROW("OneHot", "n d v", "y", D(2, 6), D(3, 70),
        .sizes = {{"n", MPR_INT64, 3, {1, 2, 60}},
                  {"d", MPR_INT64, -1, {70}},
                  {"v", MPR_INT64, 2, {0, 1}}},
        .nodiff = true),
    ROW("Unique", "n", "y", D(2, 6), D(3),
        .sizes = {{"n", MPR_INT64, 5, {1, 2, 60, 2, 1}}}, .nodiff = true),
};

static int64_t elements(const int64_t *dims)
{
    int64_t n = 1;
    for (; *dims != -99; dims++) n *= *dims;
    return n;
}

static int rank_of(const int64_t *dims)
{
    int n = 0;
    while (dims[n] != -99) n++;
    return n;
}

static const int64_t *size_dims(const SizeInput *in)
{
    static int64_t dims[2];
    dims[0] = in->n < 0 ? -99 : in->n;
    dims[1] = -99;
    return dims;
}

static void reduce_all(Wire *g, const char *in, const char *out)
{
    Wire n = wm_node("ReduceMean", out, in, out);
    wm_attr_int(&n, "keepdims", 0);
    GRAPH_ADD_NODE(g, &n);
}

static bool is_int(const SizeRow *r)
{
    return r->nodiff && strcmp(r->op, "ConstantOfShape") != 0;
}

static const char *model_of(const SizeRow *r, bool as_output)
{
    Wire g = wm_begin();
    float *w = calloc((size_t)elements(r->h) + 1, sizeof *w);
    wm_value(&g, 11, "x", MPR_FLOAT32, r->h);
    for (int k = 0; k < 3 && r->sizes[k].name; k++)
        wm_value(&g, 11, r->sizes[k].name, r->sizes[k].type, size_dims(&r->sizes[k]));
    int64_t dims[8] = {0};
    for (int i = 0; i < rank_of(r->h); i++) dims[i] = r->h[i];
    dims[rank_of(r->h)] = -1;
    wm_add_f32(&g, "w", dims, w);
    free(w);
    wm_add_node(&g, "Add", "add", "x w", "h");
    if (r->before) r->before(&g);
    Wire n = wm_node(r->op, "sized", r->in, r->out);
    if (r->attr) wm_attr_int(&n, r->attr, r->value);
    GRAPH_ADD_NODE(&g, &n);
    const char *y = "y";
    if (is_int(r)) {
        n = wm_node("Cast", "float", "y", "f");
        wm_attr_int(&n, "to", MPR_FLOAT32);
        GRAPH_ADD_NODE(&g, &n);
        y = "f";
    }
    reduce_all(&g, y, "mean");
    reduce_all(&g, "h", "other");
    wm_add_node(&g, "Add", "sum", "mean other", "loss");
    wm_value(&g, 12, "loss", MPR_FLOAT32, scalar);
    int type = is_int(r) ? MPR_INT64 : MPR_FLOAT32;
    if (as_output) wm_value(&g, 12, "y", type, declared);
    else if (declared) wm_value(&g, 13, "y", type, declared);
    Wire model = wm_model(&g, 9, 18);
    return wm_write_model("sized.onnx", &model);
}

static mpr_model *load(mpr_context *ctx, const SizeRow *r, bool as_output)
{
    mpr_model *m;
    assert_call(mpr_model_load(ctx, model_of(r, as_output), NULL, &m), ctx);
    return m;
}

/* Contents in the type of the input; good until the next call. */
static const void *contents(const SizeInput *in)
{
    static int64_t ints[8];
    static uint8_t bools[8];
    for (int i = 0; i < 8; i++) {
        ints[i] = in->v[i];
        bools[i] = in->v[i] != 0;
    }
    return in->type == MPR_BOOL ? (const void *)bools : ints;
}

static const float zeros[1024];

static void tell(char text[2048], const void *handle)
{
    mpr_error e = mpr_last_error(handle);
    snprintf(text, 2048, "%s %s", e.message, e.where);
}

static void refused_in_a_session(mpr_context *ctx, const SizeRow *r, bool as_output)
{
    mpr_model *m = load(ctx, r, as_output);
    mpr_session *s;
    mpr_session_options o = {.size = sizeof o, .loss = "output:loss"};
    mpr_status status = mpr_session_open(m, &o, &s);
    char text[2048];
    tell(text, m);
    if (status == MPR_OK) {
        assert_call(mpr_session_bind(s, "x", zeros, MPR_FLOAT32, r->h, rank_of(r->h)), s);
        for (int k = 0; k < 3 && r->sizes[k].name; k++) {
            const SizeInput *in = &r->sizes[k];
            assert_call(mpr_session_bind(s, in->name, contents(in), (mpr_dtype)in->type,
                                         size_dims(in), in->n >= 0), s);
        }
        status = mpr_session_forward(s, NULL);
        tell(text, s);
        assert_int_equal(mpr_session_backward(s, NULL), MPR_E_ORDER);
        if (status != MPR_OK) assert_int_equal(mpr_session_evaluate(s, NULL), status);
        mpr_session_close(s);
    }
    bool refused = status == MPR_E_UNSUPPORTED_OP ||
                   (status == MPR_E_SHAPE && strstr(text, "declared as"));
    if (!refused || !strstr(text, "sized"))
        fail_msg("%s: %s: %s", r->op, mpr_status_text(status), text);
    mpr_model_destroy(m);
}

static void given_to_a_run(mpr_context *ctx, const SizeRow *r, bool as_output)
{
    mpr_model *m = load(ctx, r, as_output);
    mpr_tensors *in, *out = NULL, *grads = NULL;
    assert_call(mpr_tensors_create(ctx, &in), ctx);
    mpr_tensor t = {.data = zeros, .dtype = MPR_FLOAT32, .rank = rank_of(r->h)};
    for (int i = 0; i < t.rank; i++) t.dims[i] = r->h[i];
    assert_call(mpr_tensors_put(in, "x", &t), in);
    for (int k = 0; k < 3 && r->sizes[k].name; k++) {
        const SizeInput *z = &r->sizes[k];
        t = (mpr_tensor){.data = contents(z), .dtype = (mpr_dtype)z->type, .rank = z->n >= 0};
        t.dims[0] = z->n;
        assert_call(mpr_tensors_put(in, z->name, &t), in);
    }
    const char *keep[] = {"y", NULL};
    mpr_run_options o = {.size = sizeof o,
                         .loss = "output:loss",
                         .grads_of = "params",
                         .keep = as_output ? NULL : keep};
    mpr_status status = mpr_session_vjp(m, in, NULL, &o, &out, &grads);
    bool lie = declared && rank_of(declared) != rank_of(r->y);
    for (int i = 0; declared && !lie && i < rank_of(r->y); i++) lie = declared[i] != r->y[i];
    if (lie && status == MPR_E_SHAPE) {
        assert_non_null(strstr(mpr_last_error(m).message, "declared as"));
    } else {
        if (status != MPR_OK) fail_msg("%s: %s", r->op, mpr_last_error(m).message);
        assert_call(mpr_tensors_get(out, "y", &t), out);
        assert_int_equal(t.rank, rank_of(r->y));
        for (int i = 0; i < t.rank; i++) assert_int_equal(t.dims[i], r->y[i]);
        mpr_tensors_destroy(out);
        mpr_tensors_destroy(grads);
    }
    mpr_tensors_destroy(in);
    mpr_model_destroy(m);
}

static void each(void (*check)(mpr_context *, const SizeRow *, bool))
{
    const int64_t *const lies[] = {D(1), D(2, 6), D(1, 1), D(100, 1000), D(7, 1, 7)};
    mpr_context *ctx;
    mpr_context_options o = {.size = sizeof o, .device = TEST_DEVICE, .threads = 1};
    assert_int_equal(mpr_context_create(&o, &ctx), MPR_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int as_output = 0; as_output < 2; as_output++) {
            for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
                declared = lies[k];
                check(ctx, &rows[i], as_output);
            }
            declared = rows[i].y;
            check(ctx, &rows[i], as_output);
            declared = NULL;
            check(ctx, &rows[i], as_output);
        }
    mpr_context_destroy(ctx);
}

static void sessions(void **state)
{
    (void)state;
    each(refused_in_a_session);
}

static void runs(void **state)
{
    (void)state;
    each(given_to_a_run);
}

/* An input without a rank takes the shape of what is bound, and another shape gives another plan.
 */
static void rank_from_data(void **state)
{
    (void)state;
    static const float w[2] = {3, 5}, x[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, NULL);
    wm_add_f32(&g, "w", (const int64_t[]){2, -1}, w);
    wm_add_node(&g, "Mul", "mul", "x w", "h");
    reduce_all(&g, "h", "loss");
    wm_value(&g, 12, "loss", MPR_FLOAT32, scalar);
    Wire wire = wm_model(&g, 9, 18);
    mpr_context *ctx;
    mpr_model *m;
    mpr_session *s;
    mpr_context_options o = {.size = sizeof o, .device = TEST_DEVICE, .threads = 1};
    mpr_session_options so = {.size = sizeof so, .loss = "output:loss"};
    assert_int_equal(mpr_context_create(&o, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, wm_write_model("rank.onnx", &wire), NULL, &m), ctx);
    assert_call(mpr_session_open(m, &so, &s), m);
    for (int rank = 1; rank < 4; rank++) {
        float loss;
        const int64_t dims[3] = {2, 2, 2};
        assert_call(mpr_session_bind(s, "x", x, MPR_FLOAT32, dims, rank), s);
        assert_call(mpr_session_forward(s, &loss), s);
        assert_float_equal(loss, 4, 1e-6);
        assert_call(mpr_session_backward(s, NULL), s);
    }
    assert_call(mpr_session_bind(s, "x", x, MPR_FLOAT32, (const int64_t[]){3}, 1), s);
    assert_int_equal(mpr_session_forward(s, NULL), MPR_E_SHAPE);
    mpr_session_close(s);
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

/* logits is 1x3 expanded to [n, 3], and n, the batch by way of a float, stays open until then: so
 * do the sizes of the labels, which have those of the data. */
static void labels_from_data(void **state)
{
    (void)state;
    static const float w[6] = {1, 0, 0, 0, 1, 0}, x[10] = {0};
    static const int64_t labels[5] = {0, 1, 2, 0, 1}, one[2] = {1}, start[1] = {0}, three[1] = {3};
    Wire g = wm_begin();
    wm_value(&g, 11, "x", MPR_FLOAT32, D(-1, 2));
    wm_add_f32(&g, "w", (const int64_t[]){2, 3, -1}, w);
    wm_add_i64(&g, "one", (const int64_t[]){1, -1}, one);
    wm_add_i64(&g, "start", (const int64_t[]){1, -1}, start);
    wm_add_i64(&g, "three", (const int64_t[]){1, -1}, three);
    wm_add_node(&g, "MatMul", "product", "x w", "h");
    wm_add_node(&g, "Shape", "shape", "x", "sizes");
    wm_add_node(&g, "Slice", "first", "sizes start one", "rows");
    for (int back = 0; back < 2; back++) {
        Wire n = wm_node("Cast", "cast", back ? "real" : "rows", back ? "n" : "real");
        wm_attr_int(&n, "to", back ? MPR_INT64 : MPR_FLOAT32);
        GRAPH_ADD_NODE(&g, &n);
    }
    axis_node(&g, "Concat", "cat", "n three", "to");
    wm_add_node(&g, "Expand", "expand", "h to", "logits");
    wm_value(&g, 12, "logits", MPR_FLOAT32, NULL);
    Wire wire = wm_model(&g, 9, 18);
    mpr_context *ctx;
    mpr_model *m;
    mpr_session *s;
    mpr_context_options o = {.size = sizeof o, .device = TEST_DEVICE, .threads = 1};
    mpr_session_options so = {.size = sizeof so, .loss = "cross-entropy"};
    assert_int_equal(mpr_context_create(&o, &ctx), MPR_OK);
    assert_call(mpr_model_load(ctx, wm_write_model("labels.onnx", &wire), NULL, &m), ctx);
    assert_call(mpr_session_open(m, &so, &s), m);
    float loss;
    for (int64_t rows_given = 5; rows_given > 1; rows_given -= 2) {
        assert_call(mpr_session_bind(s, "x", x, MPR_FLOAT32, D(rows_given, 2), 2), s);
        assert_call(mpr_session_bind(s, "labels", labels, MPR_INT64, &rows_given, 1), s);
        assert_call(mpr_session_forward(s, &loss), s);
        assert_float_equal(loss, 1.0986123, 1e-6); /* ln 3 */
        assert_call(mpr_session_backward(s, NULL), s);
    }
    assert_call(mpr_session_bind(s, "labels", labels, MPR_INT64, (const int64_t[]){4}, 1), s);
    assert_int_equal(mpr_session_forward(s, &loss), MPR_E_SHAPE);
    mpr_session_close(s);
    mpr_model_destroy(m);
    mpr_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions),
        cmocka_unit_test(runs),
        cmocka_unit_test(rank_from_data),
        cmocka_unit_test(labels_from_data),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
