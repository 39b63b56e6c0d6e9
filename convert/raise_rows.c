/* What changed between opsets, operator by operator. Reference: the changelog of ai.onnx up to opset
 * 28. A change that only added types, attributes with a neutral default, or optional inputs has no
 * row. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "convert/raise.h"

enum { MOST = 64 };

static bool is(const Raise *r, const char *op)
{
    const TreeField *f = mpri_tree_find(r->node, 4);
    return f && mpri_field_is(f, op);
}

/* A list of integers becomes an input. */
static void ints_to_input(Raise *r, const char *name, int input)
{
    int64_t v[MOST];
    int n = mpri_raise_ints(r, name, v, MOST);
    if (n < 0 || r->why) return;
    mpri_raise_drop(r, name);
    mpri_raise_set_input(r, input, mpri_raise_constant_ints(r, name, n, v));
}

/* Input `k` with more dims of size 1. */
static void unsqueeze(Raise *r, int k, const char *role, int n, const int64_t *axes)
{
    const char *in[2] = {mpri_raise_input(r, k), NULL}, *out = NULL;
    bool by_input = r->to >= 13;
    if (by_input) in[1] = mpri_raise_constant_ints(r, "axes", n, axes);
    Tree *node = mpri_raise_add(r, false, "Unsqueeze", role, by_input ? 2 : 1, in, &out);
    if (!by_input) mpri_raise_put_ints(r, node, "axes", axes, n);
    mpri_raise_set_input(r, k, out);
}

/* ---- before opset 7 ---- */

static void drop_consumed(Raise *r)
{
    mpri_raise_drop(r, "consumed_inputs");
}

/* The runtime reserved memory; the meaning is that of numpy now. */
static void broadcast(Raise *r)
{
    int64_t on = mpri_raise_int(r, "broadcast", 0), axis = mpri_raise_int(r, "axis", -1);
    bool placed = mpri_raise_attribute(r, "axis") != NULL;
    const MixValue *a = mpri_raise_value(r, 0), *b = mpri_raise_value(r, 1);
    mpri_raise_drop(r, "broadcast");
    mpri_raise_drop(r, "axis");
    if (!on || !placed || is(r, "Gemm") || r->why) return;
    int ra = a ? mpri_mix_rank(a) : -1, rb = b ? mpri_mix_rank(b) : -1;
    if (axis < 0) axis += ra;
    if (ra < 0 || rb < 0 || axis < 0 || axis + rb > ra) {
        r->why = "the ranks of its inputs are not known, and it broadcasts along an axis";
        return;
    }
    int64_t axes[MOST];
    int n = 0;
    for (int64_t k = axis + rb; k < ra && n < MOST; k++, n++) axes[n] = rb + n;
    if (n) unsqueeze(r, 1, "broadcast", n, axes);
}

/* One slope a channel. */
static void prelu(Raise *r)
{
    const MixValue *x = mpri_raise_value(r, 0), *slope = mpri_raise_value(r, 1);
    int rx = x ? mpri_mix_rank(x) : -1, rs = slope ? mpri_mix_rank(slope) : -1;
    if (rs >= 0 && mpri_mix_elements(r->m, slope) == 1) return;
    if (rx < 0 || rs < 0) r->why = "the ranks of its inputs are not known";
    if (rs != 1 || rx < 3 || r->why) return;
    int64_t axes[MOST];
    for (int k = 1; k < rx - 1; k++) axes[k - 1] = k;
    unsqueeze(r, 1, "slope", rx - 2, axes);
}

static void inference_only(Raise *r)
{
    if (!mpri_raise_int(r, "is_test", 0)) r->why = "is_test is 0: it trains";
    mpri_raise_drop(r, "is_test");
}

static void cast_target(Raise *r)
{
    static const struct { const char *name; DType type; } names[] = {
        {"FLOAT", MPR_FLOAT32}, {"FLOAT16", MPR_FLOAT16}, {"DOUBLE", MPR_FLOAT64},
        {"INT64", MPR_INT64}, {"INT32", MPR_INT32}, {"INT16", MPR_INT16}, {"INT8", MPR_INT8},
        {"UINT64", MPR_UINT64}, {"UINT32", MPR_UINT32}, {"UINT16", MPR_UINT16},
        {"UINT8", MPR_UINT8}, {"BOOL", MPR_BOOL},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mpri_raise_text_is(r, "to", names[i].name)) {
            mpri_raise_put_int(r, "to", names[i].type);
            return;
        }
    if (!mpri_raise_int(r, "to", 0)) r->why = "its target type is not known";
}

static void concat_axis(Raise *r)
{
    if (!mpri_raise_attribute(r, "axis")) mpri_raise_put_int(r, "axis", 1);
}

static void selu_constants(Raise *r)
{
    if (!mpri_raise_attribute(r, "alpha")) mpri_raise_put_float(r, "alpha", 1.6732f);
    if (!mpri_raise_attribute(r, "gamma")) mpri_raise_put_float(r, "gamma", 1.0507f);
}

static void drop_sequence_flag(Raise *r)
{
    mpri_raise_drop(r, "output_sequence");
}

static void whole_p(Raise *r)
{
    float p = mpri_raise_float(r, "p", 2);
    if (p != truncf(p) || p < 0 || p > 1e6f) r->why = "its p is no whole number";
    else mpri_raise_put_int(r, "p", (int64_t)p);
}

static void rename_paddings(Raise *r)
{
    int64_t v[MOST];
    int n = mpri_raise_ints(r, "paddings", v, MOST);
    if (n < 0) return;
    mpri_raise_drop(r, "paddings");
    mpri_raise_put_ints(r, r->node, "pads", v, n);
}

static void reshape_shape(Raise *r)
{
    ints_to_input(r, "shape", 1);
    mpri_raise_drop(r, "consumed_inputs");
}

static void has_no_counterpart(Raise *r)
{
    r->why = is(r, "Scan") ? "its batch axis has no counterpart" : "this form of it has no counterpart";
}

static void split_1(Raise *r)
{
    if (*mpri_raise_input(r, 1)) r->why = "its parts are an input";
    if (!mpri_raise_attribute(r, "axis")) mpri_raise_put_int(r, "axis", 0);
}

/* ---- opsets 7 to 12 ---- */

static void upsample_scales(Raise *r)
{
    float v[4] = {1, 1, mpri_raise_float(r, "height_scale", 0), mpri_raise_float(r, "width_scale", 0)};
    if (!mpri_raise_attribute(r, "height_scale")) return;
    mpri_raise_drop(r, "height_scale");
    mpri_raise_drop(r, "width_scale");
    mpri_raise_set_input(r, 1, mpri_raise_constant_floats(r, "scales", 1, 4, v));
}

static void upsample_input(Raise *r)
{
    float v[MOST];
    int n = mpri_raise_floats(r, "scales", v, MOST);
    if (n < 0 || r->why) return;
    mpri_raise_drop(r, "scales");
    mpri_raise_set_input(r, 1, mpri_raise_constant_floats(r, "scales", 1, n, v));
}

static void upsample_to_resize(Raise *r)
{
    mpri_raise_set_op(r, "Resize");
}

static void batch_norm_spatial(Raise *r)
{
    if (!mpri_raise_int(r, "spatial", 1)) r->why = "spatial is 0";
    mpri_raise_drop(r, "spatial");
}

static void batch_norm_outputs(Raise *r)
{
    for (int k = 1; k < mpri_raise_outputs(r); k++)
        if (*mpri_raise_output(r, k)) r->why = "it trains: it has more outputs than one";
}

/* The mask is true or false now; readers of the old one get its numbers. */
static void dropout_mask(Raise *r)
{
    const char *mask = mpri_raise_output(r, 1), *made = NULL;
    if (!*mask) return;
    const MixValue *x = mpri_raise_value(r, 0);
    if (!x || !x->type.elem) {
        r->why = "the type of its mask is not known";
        return;
    }
    made = mpri_mix_fresh(r->m, mpri_pool_print(r->m->pool, "%s_bool", mask));
    mpri_raise_set_output(r, 1, made);
    mpri_raise_put_cast(r, mpri_raise_add(r, true, "Cast", "mask", 1, &made, &mask), x->type.elem);
}

static void dropout_ratio(Raise *r)
{
    float ratio = mpri_raise_float(r, "ratio", 0.5f);
    if (r->why) return;
    mpri_raise_drop(r, "ratio");
    mpri_raise_set_input(r, 1, mpri_raise_constant_floats(r, "ratio", 0, 1, &ratio));
}

static void slice_inputs(Raise *r)
{
    ints_to_input(r, "starts", 1);
    ints_to_input(r, "ends", 2);
    ints_to_input(r, "axes", 3);
}

static void topk_input(Raise *r)
{
    int64_t k = mpri_raise_int(r, "k", 1);
    if (r->why) return;
    mpri_raise_drop(r, "k");
    mpri_raise_set_input(r, 1, mpri_raise_constant_ints(r, "k", 1, &k));
}

static void clip_bound(Raise *r, const char *name, int input, float open)
{
    const MixValue *x = mpri_raise_value(r, 0);
    bool given = mpri_raise_attribute(r, name) != NULL;
    float v = mpri_raise_float(r, name, open);
    mpri_raise_drop(r, name);
    bool beyond = x && x->type.elem == MPR_FLOAT16 && fabsf(v) > 65504;
    if (given && v != open && !beyond && !r->why)
        mpri_raise_set_input(r, input, mpri_raise_constant_like(r, name, v));
}

static void clip_inputs(Raise *r)
{
    clip_bound(r, "min", 1, -FLT_MAX);
    clip_bound(r, "max", 2, FLT_MAX);
}

static void pad_inputs(Raise *r)
{
    float v = mpri_raise_float(r, "value", 0);
    ints_to_input(r, "pads", 1);
    mpri_raise_drop(r, "value");
    if (v != 0 && !r->why) mpri_raise_set_input(r, 2, mpri_raise_constant_like(r, "value", v));
}

/* What was the only way: positions are divided by the scale, and rounded down. */
static void resize_11(Raise *r)
{
    const char *scales = mpri_raise_input(r, 1);
    float none = 0;
    mpri_raise_set_input(r, 1, mpri_raise_constant_floats(r, "roi", 1, 0, &none));
    mpri_raise_set_input(r, 2, scales);
    mpri_raise_put_text(r, "coordinate_transformation_mode", "asymmetric");
    mpri_raise_put_text(r, "nearest_mode", "floor");
}

static bool is_empty(const Raise *r, int k)
{
    const MixValue *v = mpri_raise_value(r, k);
    return v && v->tensor && mpri_mix_elements(r->m, v) == 0;
}

static void resize_13(Raise *r)
{
    if (mpri_raise_text_is(r, "coordinate_transformation_mode", "tf_half_pixel_for_nn"))
        r->why = "its coordinate_transformation_mode has no counterpart";
    if (*mpri_raise_input(r, 3) && is_empty(r, 2)) mpri_raise_set_input(r, 2, "");
}

static void scatter_elements(Raise *r)
{
    mpri_raise_set_op(r, "ScatterElements");
}

/* ---- opset 13 and later ---- */

/* The axis split the shape into two parts, and the second was normalised as a whole. */
static void softmax_axis(Raise *r)
{
    const MixValue *x = mpri_raise_value(r, 0);
    int64_t axis = mpri_raise_int(r, "axis", 1);
    int rank = x ? mpri_mix_rank(x) : -1;
    if (r->why) return;
    mpri_raise_put_int(r, "axis", axis);
    if (axis == -1 || (rank >= 0 && axis == rank - 1)) return;
    const char *data = mpri_raise_input(r, 0), *out = mpri_raise_output(r, 0);
    const char *shape = NULL, *flat = NULL;
    (void)mpri_raise_add(r, false, "Shape", "shape", 1, &data, &shape);
    Tree *node = mpri_raise_add(r, false, "Flatten", "flat", 1, &data, &flat);
    Tree *a = mpri_tree_put_tree(r->m->pool, node, 5);
    mpri_tree_put_text(r->m->pool, a, 1, "axis");
    mpri_tree_put_int(r->m->pool, a, 3, axis);
    mpri_tree_put_int(r->m->pool, a, 20, 2);
    const char *made = mpri_mix_fresh(r->m, mpri_pool_print(r->m->pool, "%s_2d", out));
    mpri_raise_put_int(r, "axis", -1);
    mpri_raise_set_input(r, 0, flat);
    mpri_raise_set_output(r, 0, made);
    const char *back[2] = {made, shape};
    (void)mpri_raise_add(r, true, "Reshape", "shape", 2, back, &out);
}

static void axes_to_input(Raise *r)
{
    ints_to_input(r, "axes", 1);
}

static void split_to_input(Raise *r)
{
    ints_to_input(r, "split", 1);
}

static void split_count(Raise *r)
{
    if (!*mpri_raise_input(r, 1)) mpri_raise_put_int(r, "num_outputs", mpri_raise_outputs(r));
}

/* The body that defines it has to be told the axes. */
static void variance_axes(Raise *r)
{
    static const int64_t axes[3] = {0, 2, 3};
    if (!mpri_raise_attribute(r, "axes")) mpri_raise_put_ints(r, r->node, "axes", axes, 3);
}

static void roi_coordinates(Raise *r)
{
    mpri_raise_put_text(r, "coordinate_transformation_mode", "output_half_pixel");
}

static void grid_modes(Raise *r)
{
    if (mpri_raise_text_is(r, "mode", "bilinear")) mpri_raise_put_text(r, "mode", "linear");
    if (mpri_raise_text_is(r, "mode", "bicubic")) mpri_raise_put_text(r, "mode", "cubic");
}

static void dft_axis(Raise *r)
{
    int64_t axis = mpri_raise_int(r, "axis", 1);
    if (r->why) return;
    mpri_raise_drop(r, "axis");
    const char *vector = mpri_raise_constant_ints(r, "axis_1d", 1, &axis), *out = NULL;
    const char *axes = mpri_raise_constant_ints(r, "axis_at", 1, &(int64_t){0});
    const char *in[2] = {vector, axes};
    (void)mpri_raise_add(r, false, "Squeeze", "axis", 2, in, &out);
    mpri_raise_set_input(r, 2, out);
}

/* One scale and bias a channel instead of a group. */
static void group_norm(Raise *r)
{
    r->why = "its scale and bias are per group";
}

static void floats_only(Raise *r)
{
    const MixValue *x = mpri_raise_value(r, 0);
    if (x && x->type.elem && !mpri_dtype_is_float(x->type.elem)) r->why = "it has integer data";
}

#define OLD_MATH "Abs Add Ceil Clip Div Dropout Elu Exp Floor HardSigmoid InstanceNormalization "    \
                 "LeakyRelu Log Max Mean Min Mul Neg PRelu Reciprocal Relu Selu Sigmoid Sqrt Sub "  \
                 "Sum Tanh BatchNormalization"

const RaiseRow mpri_raise_rows[] = {
    {2, "GlobalLpPool LpPool", whole_p},
    {2, "Pad", rename_paddings},
    {2, "Split", split_1},
    {3, "GRU", drop_sequence_flag},
    {4, "Concat", concat_axis},
    {5, "Reshape", reshape_shape},
    {6, OLD_MATH, drop_consumed},
    {6, "Cast", cast_target},
    {6, "Selu", selu_constants},
    {6, "Tile", has_no_counterpart},
    {7, "Add And Div Equal Gemm Greater Less Mul Or Pow Sub Xor", broadcast},
    {7, "BatchNormalization Dropout", inference_only},
    {7, "GRU LSTM RNN", drop_sequence_flag},
    {7, "PRelu", prelu},
    {7, "Upsample", upsample_scales},
    {9, "BatchNormalization", batch_norm_spatial},
    {9, "Scan", has_no_counterpart},
    {9, "Upsample", upsample_input},
    {10, "Dropout", dropout_mask},
    {10, "Slice", slice_inputs},
    {10, "TopK", topk_input},
    {10, "Upsample", upsample_to_resize},
    {11, "Clip", clip_inputs},
    {11, "Pad", pad_inputs},
    {11, "Resize", resize_11},
    {11, "Scatter", scatter_elements},
    {12, "Dropout", dropout_ratio},
    {13, "Erf", floats_only},
    {13, "LogSoftmax Hardmax Softmax", softmax_axis},
    {13, "ReduceSum Squeeze Unsqueeze", axes_to_input},
    {13, "Resize", resize_13},
    {13, "Split", split_to_input},
    {14, "BatchNormalization", batch_norm_outputs},
    {16, "RoiAlign", roi_coordinates},
    {18, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
         "ReduceSumSquare", axes_to_input},
    {18, "MeanVarianceNormalization", variance_axes},
    {18, "Split", split_count},
    {20, "DFT", dft_axis},
    {20, "GridSample", grid_modes},
    {21, "GroupNormalization", group_norm},
    {28, "ReduceLogSum ReduceLogSumExp", floats_only},
    {0, NULL, NULL},
};
