/* Operators that move elements between channels, patches and positions: DepthToSpace, SpaceToDepth,
 * CenterCropPad, Col2Im. Each is its own transpose's inverse, or nearly: gradients are the opposite move. */
#include "runtime/op/rules.h"

#include <string.h>

#define BLOCK_ROW(T) \
    ATTR(T, blocksize, "blocksize", INT, .required = true, .min_int = 1, .max_int = INT32_MAX)
static const AttrRow depth_attrs[] = {
    BLOCK_ROW(DepthToSpaceParams),
    ATTR(DepthToSpaceParams, mode, "mode", STRING, .def_string = "DCR", .choices = "DCR|CRD"),
    ATTR_END,
};
static const AttrRow space_attrs[] = {BLOCK_ROW(SpaceToDepthParams), ATTR_END};
static const AttrRow crop_attrs[] = {ATTR(CenterCropPadParams, axes, "axes", INTS), ATTR_END};
static const AttrRow col2im_attrs[] = {
    ATTR(Col2ImParams, dilations, "dilations", INTS),
    ATTR(Col2ImParams, pads, "pads", INTS),
    ATTR(Col2ImParams, strides, "strides", INTS),
    ATTR(Col2ImParams, dims, "dims", INTS, .internal = true),
    ATTR_END,
};

/* ---- DepthToSpace, SpaceToDepth ---- */

static mpr_status infer_depth(InferCtx *c)
{
    int64_t b = ((const DepthToSpaceParams *)c->n->params)->blocksize;
    TRY(mpri_op_check_rank(c, 0, 4, 4));
    Shape out = *op_shape(c, 0);
    if (out.rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    if (b < 1) return mpri_op_shape_error(c, 0, "blocksize, to be 1 or more", b);
    if (mpri_dim_const(out.d[1]) && out.d[1] % (b * b) != 0)
        return mpri_op_shape_error(c, 0, "channels, to be divided by blocksize squared", out.d[1]);
    out.d[1] = mpri_dim_div(c->sym, out.d[1], b * b);
    for (int i = 2; i < 4; i++) out.d[i] = mpri_dim_mul(c->sym, out.d[i], b);
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_space(InferCtx *c)
{
    int64_t b = ((const SpaceToDepthParams *)c->n->params)->blocksize;
    TRY(mpri_op_check_rank(c, 0, 4, 4));
    Shape out = *op_shape(c, 0);
    if (out.rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    if (b < 1) return mpri_op_shape_error(c, 0, "blocksize, to be 1 or more", b);
    for (int i = 2; i < 4; i++) {
        if (mpri_dim_const(out.d[i]) && out.d[i] % b != 0)
            return mpri_op_shape_error(c, 0, "spatial dim, to be divided by blocksize", out.d[i]);
        out.d[i] = mpri_dim_div(c->sym, out.d[i], b);
    }
    out.d[1] = mpri_dim_mul(c->sym, out.d[1], b * b);
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status grad_depth(GradCtx *c)
{
    const DepthToSpaceParams *p = c->n->params;
    const Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    if (strcmp(p->mode, "CRD") != 0) {
        SpaceToDepthParams s = {p->blocksize};
        c->dx[0] = mpri_build1(c->b, OP_SpaceToDepth, &s, c->dy[0]);
        return mpri_op_grad_done(c);
    }
    int64_t b = p->blocksize, perm[6] = {0, 1, 3, 5, 2, 4};
    int64_t dims[6] = {x->shape.d[0], x->shape.d[1] / (b * b), x->shape.d[2], b, x->shape.d[3], b};
    TransposeParams t = {.perm = {6, perm}};
    Value *v = mpri_op_grad_reshape(c, c->dy[0], 6, dims);
    c->dx[0] = mpri_op_grad_reshape_like(c, mpri_build1(c->b, OP_Transpose, &t, v), x);
    return mpri_op_grad_done(c);
}

static mpr_status grad_space(GradCtx *c)
{
    DepthToSpaceParams p = {((const SpaceToDepthParams *)c->n->params)->blocksize, "DCR"};
    c->dx[0] = mpri_build1(c->b, OP_DepthToSpace, &p, c->dy[0]);
    return mpri_op_grad_done(c);
}

/* ---- CenterCropPad ---- */

static mpr_status infer_crop(InferCtx *c)
{
    const CenterCropPadParams *p = c->n->params;
    int axes[MPRI_MAX_RANK];
    int64_t count, given = mpri_shape_elements(op_shape(c, 1));
    Shape out = *op_shape(c, 0);
    TRY(mpri_op_check_type(c, 1, TS_INDEX));
    if (out.rank < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    int64_t n = p->axes.n ? p->axes.n : out.rank;
    TRY(mpri_op_axes(c, p->axes.n, p->axes.v, out.rank, axes));
    if (given >= 0 && given != n)
        return mpri_op_shape_error(c, 1, "entries of shape, expected one per axis", given);
    const Dim *want = mpri_infer_content(c, 1, &count);
    for (int k = 0; k < n; k++) {
        int64_t v;
        if (want && mpri_dim_is_int(c->sym, want[k], &v) && v < 0)
            return mpri_op_shape_error(c, 1, "entry of shape, allowed >= 0", v);
        out.d[p->axes.n ? axes[k] : k] = want ? want[k] : mpri_dim_fresh(c->sym);
    }
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

/* Padding begins where cropping begins, so the opposite move is the transpose. */
static mpr_status grad_crop(GradCtx *c)
{
    const CenterCropPadParams *p = c->n->params;
    const Value *x = grad_in(c, 0);
    int64_t dims[MPRI_MAX_RANK], n = p->axes.n ? p->axes.n : x->shape.rank;
    TRY(mpri_op_grad_const_shape(c, x));
    for (int k = 0; k < n; k++) {
        int64_t axis = p->axes.n ? p->axes.v[k] : k;
        dims[k] = x->shape.d[axis < 0 ? axis + x->shape.rank : axis];
    }
    c->dx[0] = mpri_build2(c->b, OP_CenterCropPad, p, c->dy[0], mpri_build_i64s(c->b, n, dims));
    return mpri_op_grad_done(c);
}

/* ---- Col2Im ---- */

static mpr_status check_col2im(InferCtx *c, int spatial)
{
    const Col2ImParams *p = c->n->params;
    const ListRule lists[] = {
        {"dilations", p->dilations, spatial, 1, false},
        {"strides", p->strides, spatial, 1, false},
        {"pads", p->pads, 2 * (int64_t)spatial, 0, false},
    };
    return mpri_op_check_lists(c, lists, (int)(sizeof lists / sizeof *lists));
}

/* How many places a block has in the image; both sizes are numbers. */
static mpr_status places(InferCtx *c, int spatial, const int64_t *image, const int64_t *block,
                         int64_t *count)
{
    const Col2ImParams *p = c->n->params;
    *count = 1;
    for (int i = 0; i < spatial; i++) {
        int64_t dilation = p->dilations.n ? p->dilations.v[i] : 1;
        int64_t stride = p->strides.n ? p->strides.v[i] : 1;
        int64_t pads = p->pads.n ? p->pads.v[i] + p->pads.v[i + spatial] : 0;
        if (image[i] < 0 || image[i] > MPRI_MOST_ELEMENTS)
            return mpri_op_shape_error(c, 1, "dim of image_shape, allowed 0 to 2^56", image[i]);
        if (block[i] < 1 || block[i] > INT32_MAX)
            return mpri_op_shape_error(c, 2, "dim of block_shape, allowed 1 to 2147483647", block[i]);
        int64_t room = image[i] + pads - (block[i] - 1) * dilation - 1;
        if (room < 0) return mpri_op_shape_error(c, 0, "the block does not fit into the image, by", -room);
        if (__builtin_mul_overflow(*count, room / stride + 1, count))
            return mpri_op_shape_error(c, 1, "places of the block in the image, more than can be counted; dim", image[i]);
    }
    return MPR_OK;
}

static mpr_status infer_col2im(InferCtx *c)
{
    const Shape *x = op_shape(c, 0);
    int64_t n = mpri_shape_elements(op_shape(c, 1)), m, count, taps = 1;
    TRY(mpri_op_check_type(c, 1, TS(MPR_INT64)));
    TRY(mpri_op_check_type(c, 2, TS(MPR_INT64)));
    TRY(mpri_op_check_rank(c, 0, 3, 3));
    if (n < 0) return mpri_infer_set(c, 0, op_type(c, 0), NULL);
    if (n < 1 || n > MPRI_MAX_RANK - 2)
        return mpri_op_shape_error(c, 1, "entries of image_shape, allowed 1 to 6", n);
    m = mpri_shape_elements(op_shape(c, 2));
    if (m >= 0 && m != n)
        return mpri_op_shape_error(c, 2, "entries of block_shape, expected as image_shape", m);
    TRY(check_col2im(c, (int)n));
    Shape out = mpri_op_fresh_shape(c, n + 2);
    const Dim *size = mpri_infer_content(c, 1, &m);
    const int64_t *image = mpri_op_ints(c, 1, &m), *block = mpri_op_ints(c, 2, &m);
    if (x->rank == 3) out.d[0] = x->d[0];
    for (int i = 0; i < n && size; i++) out.d[i + 2] = size[i];
    for (int i = 0; i < n && block; i++)
        if (block[i] > 0 && __builtin_mul_overflow(taps, block[i], &taps))
            return mpri_op_shape_error(c, 2, "elements of a block, more than can be counted; dim", block[i]);
    if (image && block) {
        TRY(places(c, (int)n, image, block, &count));
        if (x->rank == 3 && mpri_dim_const(x->d[2]) && x->d[2] != count)
            return mpri_op_shape_error(c, 0, "columns, expected as the block has places in the image",
                                       x->d[2]);
    }
    if (block && x->rank == 3) {
        if (mpri_dim_const(x->d[1]) && x->d[1] % taps != 0)
            return mpri_op_shape_error(c, 0, "rows, to be divided by the elements of a block",
                                       x->d[1]);
        out.d[1] = mpri_dim_div(c->sym, x->d[1], taps);
    }
    return mpri_infer_set(c, 0, op_type(c, 0), &out);
}

static mpr_status infer_col2im_grad(InferCtx *c)
{
    Shape columns;
    TRY(mpri_op_check_type(c, 0, TS_FLOAT));
    TRY(mpri_op_dims_shape(c, ((const Col2ImParams *)c->n->params)->dims, &columns));
    return mpri_infer_set(c, 0, op_type(c, 0), &columns);
}

static mpr_status grad_col2im(GradCtx *c)
{
    Col2ImParams p = *(const Col2ImParams *)c->n->params;
    const Value *x = grad_in(c, 0);
    TRY(mpri_op_grad_const_shape(c, x));
    p.dims = (Ints){x->shape.rank, x->shape.d};
    c->dx[0] = mpri_build2(c->b, OP_Col2ImGrad, &p, c->dy[0], grad_in(c, 2));
    return mpri_op_grad_done(c);
}

/* ---- definitions ---- */

#define SPACE                                                                                      \
    .min_out = 1, .max_out = 1, .cast_cuda = CAST_MOVE, .cast_cpu = CAST_MOVE,                     \
    .grad_state = GRAD_FUNCTION

const OpDef mpri_op_DepthToSpace = {
    MPRI_OP(DepthToSpace, "", "space"), .help = "blocks of channels become blocks of positions",
    SPACE, .min_in = 1, .max_in = 1, PARAMS(DepthToSpaceParams, depth_attrs),
    .infer = infer_depth, .grad = grad_depth,
};
const OpDef mpri_op_SpaceToDepth = {
    MPRI_OP(SpaceToDepth, "", "space"), .help = "blocks of positions become blocks of channels",
    SPACE, .min_in = 1, .max_in = 1, PARAMS(SpaceToDepthParams, space_attrs),
    .infer = infer_space, .grad = grad_space,
};
const OpDef mpri_op_CenterCropPad = {
    MPRI_OP(CenterCropPad, "", "space"), .help = "cut or padded with zeros around the middle",
    SPACE, .min_in = 2, .max_in = 2, .fixed_in = 2, .nondiff_in = 2,
    PARAMS(CenterCropPadParams, crop_attrs), .infer = infer_crop, .grad = grad_crop,
};
const OpDef mpri_op_Col2Im = {
    MPRI_OP(Col2Im, "", "space"), .help = "columns of blocks summed up to an image",
    .min_in = 3, .max_in = 3, .min_out = 1, .max_out = 1, .fixed_in = 6, .nondiff_in = 6,
    PARAMS(Col2ImParams, col2im_attrs), .cast_cuda = CAST_KEEP, .cast_cpu = CAST_KEEP,
    .infer = infer_col2im, .grad_state = GRAD_FUNCTION, .grad = grad_col2im,
};
const OpDef mpri_op_Col2ImGrad = {
    MPRI_OP(Col2ImGrad, "mpr", "space"), .help = "(dy, block_shape): columns of blocks, of shape dims",
    .min_in = 2, .max_in = 2, .min_out = 1, .max_out = 1, PARAMS(Col2ImParams, col2im_attrs),
    .flags = OPF_INTERNAL, .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED,
    .infer = infer_col2im_grad,
    .grad_state = GRAD_NONE, .grad_reason = "second derivatives are not built",
};
