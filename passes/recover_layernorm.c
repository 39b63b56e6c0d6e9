/* LayerNormalization and RMSNormalization. The first is written as mean, difference, square, mean,
 * epsilon, root, quotient, scale, bias (torch's exporter below opset 17, tf2onnx, Megatron). Scale
 * and bias may be absent, float casts may stand anywhere in between, and the difference may be
 * computed twice.
 *
 *   u = ReduceMean(x); d = Sub(x, u); v = ReduceMean(d^2); y = Div(d, Sqrt(v + eps)) * scale + bias
 *
 * RMSNormalization is the same without the mean and the bias, x in the place of d; JAX writes
 * ReduceSum / N for the mean.
 *
 * The anchor is Sqrt: no other operator of the pattern is as rare. */
#include "passes/recover.h"

typedef struct Norm {
    Match m;
    Value *x;    /* as the first difference reads it */
    Value *root; /* x behind its casts */
    int n_axes;  /* trailing dims that are normalised */
    double epsilon;
    Node *final;
    Value *scale, *bias;
} Norm;

/* The sum that is divided by its number of elements; NULL when v is none. */
static Node *sum_of(Norm *f, Node *n)
{
    double c;
    if (!mpri_is(n, OP_Mul) && !mpri_is(n, OP_Div)) return NULL;
    Value *v = mpri_match_scalar_operand(n, &c);
    Node *sum = v ? mpri_def(mpri_match_through(&f->m, v)) : NULL;
    if (!mpri_is(sum, OP_ReduceSum) || (mpri_is(n, OP_Div) && v != n->in[0]) || c == 0) return NULL;
    int64_t axes = sum->n_in > 1 && sum->in[1] ? mpri_shape_elements(&sum->in[1]->shape) : 0;
    const Shape *x = &sum->in[0]->shape;
    double count = 1;
    if (axes < 1 || axes > x->rank) return NULL;
    for (int i = x->rank - (int)axes; i < x->rank; i++) {
        if (x->d[i] < 0 || !mpri_dim_const(x->d[i])) return NULL;
        count *= (double)x->d[i];
    }
    if (!mpri_match_near(mpri_is(n, OP_Div) ? c : 1 / c, count)) return NULL;
    mpri_match_add(&f->m, n);
    return sum;
}

/* Input of a mean over the last n axes with dims kept; NULL when it is none. */
static Value *mean_of(Norm *f, Value *v, int *n_axes)
{
    Node *n = mpri_def(mpri_match_through(&f->m, v)), *sum = sum_of(f, n);
    if (sum) n = sum;
    else if (!mpri_is(n, OP_ReduceMean)) return NULL;
    if (n->n_in < 2 || !n->in[1]) return NULL;
    const ReduceParams *p = n->params;
    const Value *axes = n->in[1];
    int rank = n->in[0]->shape.rank;
    if (!p->keepdims || axes->kind != VAL_CONST || !axes->data) return NULL;
    int64_t count = mpri_shape_elements(&axes->shape);
    if (count < 1 || count > MPRI_MAX_RANK) return NULL;
    for (int64_t i = 0; i < count; i++) { /* in order, ending with the last one */
        int64_t a = mpri_load_i64(axes->dtype, axes->data, i);
        if (a >= 0 && rank < 0) return NULL;
        if ((a < 0 ? a : a - rank) != i - count) return NULL;
    }
    mpri_match_add(&f->m, n);
    *n_axes = (int)count;
    return n->in[0];
}

/* v is x - mean(x) for the x already known, or the first such difference. */
static bool difference(Norm *f, Value *v)
{
    Node *sub = mpri_def(mpri_match_through(&f->m, v));
    if (!mpri_is(sub, OP_Sub)) return false;
    int n_axes;
    Value *of = mean_of(f, sub->in[1], &n_axes);
    if (!of) return false;
    mpri_match_add(&f->m, sub);
    if (!f->x) {
        f->x = sub->in[0];
        f->root = mpri_match_through(NULL, f->x);
        f->n_axes = n_axes;
    }
    if (n_axes != f->n_axes) return false;
    /* Casts between x and its readers belong to the pattern, unless both read the same cast. */
    Value *reads[2] = {sub->in[0], of};
    for (int i = 0; i < 2; i++) {
        if (reads[i] == f->x) continue;
        if (mpri_match_through(&f->m, reads[i]) != f->root) return false;
        mpri_match_through(&f->m, f->x);
        f->x = f->root;
    }
    return true;
}

/* v is the square of a difference. */
static bool square(Norm *f, Value *v)
{
    Node *n = mpri_def(mpri_match_through(&f->m, v));
    double two;
    if (mpri_is(n, OP_Pow)) {
        if (!mpri_prepare_scalar(n->in[1], &two) || two != 2) return false;
    } else if (!mpri_is(n, OP_Mul) || n->in[0] != n->in[1]) {
        return false;
    }
    mpri_match_add(&f->m, n);
    return difference(f, n->in[0]);
}

/* The node that divides by the root: by Div, by Mul with a Reciprocal or with Div(1, root). *side:
 * which of its operands is divided. */
static Node *division(Norm *f, Node *sqrt_node, int *side)
{
    Value *denominator = sqrt_node->out[0];
    Node *n = mpri_match_user_through(&f->m, denominator);
    double one;
    bool inverse = mpri_is(n, OP_Reciprocal) ||
                   (mpri_is(n, OP_Div) && mpri_prepare_scalar(n->in[0], &one) && one == 1);
    if (inverse) {
        mpri_match_add(&f->m, n);
        denominator = n->out[0];
        n = mpri_match_user_through(&f->m, denominator);
        if (!mpri_is(n, OP_Mul)) return NULL;
    } else if (!mpri_is(n, OP_Div)) {
        return NULL;
    }
    denominator = mpri_match_through(NULL, denominator);
    *side = mpri_is(n, OP_Mul) && mpri_match_through(NULL, n->in[0]) == denominator;
    return mpri_match_through(NULL, n->in[1 - *side]) == denominator ? n : NULL;
}

/* v is the x of the pattern: casts on either side belong to it. */
static bool same_x(Norm *f, Value *v)
{
    if (v == f->x) return true;
    if (mpri_match_through(&f->m, v) != f->root) return false;
    mpri_match_through(&f->m, f->x);
    f->x = f->root;
    return true;
}

/* x / Sqrt(mean(x^2) + eps). */
static bool rms_core(Norm *f, Node *sqrt_node)
{
    Node *add = mpri_def(mpri_match_through(&f->m, sqrt_node->in[0]));
    if (!mpri_is(add, OP_Add)) return false;
    Value *var = mpri_match_scalar_operand(add, &f->epsilon);
    Value *sq = var ? mean_of(f, var, &f->n_axes) : NULL;
    Node *n = sq ? mpri_def(mpri_match_through(&f->m, sq)) : NULL;
    double two;
    int side;
    bool squared = mpri_is(n, OP_Pow) ? mpri_prepare_scalar(n->in[1], &two) && two == 2
                                      : mpri_is(n, OP_Mul) && n->in[0] == n->in[1];
    if (!squared) return false;
    f->x = n->in[0];
    f->root = mpri_match_through(NULL, f->x);
    mpri_match_add(&f->m, n);
    mpri_match_add(&f->m, add);
    mpri_match_add(&f->m, sqrt_node);
    n = division(f, sqrt_node, &side);
    if (!n || !same_x(f, n->in[side])) return false;
    mpri_match_add(&f->m, n);
    f->final = n;
    return true;
}

/* Sqrt(mean(square) + eps) and what it divides. */
static bool core(Norm *f, Node *sqrt_node)
{
    Node *add = mpri_def(mpri_match_through(&f->m, sqrt_node->in[0]));
    if (!mpri_is(add, OP_Add)) return false;
    Value *var = mpri_match_scalar_operand(add, &f->epsilon);
    int n_axes;
    Value *sq = var ? mean_of(f, var, &n_axes) : NULL;
    if (!sq || !square(f, sq) || n_axes != f->n_axes) return false;
    mpri_match_add(&f->m, add);
    mpri_match_add(&f->m, sqrt_node);
    int side;
    Node *n = division(f, sqrt_node, &side);
    if (!n || !difference(f, n->in[side])) return false;
    mpri_match_add(&f->m, n);
    f->final = n;
    return true;
}

/* A stored tensor of the normalised shape. */
static bool affine(const Norm *f, const Value *v)
{
    const Value *root = v ? mpri_match_through(NULL, (Value *)v) : NULL;
    if (!root || (root->kind != VAL_CONST && root->kind != VAL_SLOT) || v->shape.rank != f->n_axes)
        return false;
    const Shape *s = &f->x->shape;
    for (int i = 0; i < f->n_axes; i++) {
        Dim of_x = s->rank >= f->n_axes ? s->d[s->rank - f->n_axes + i] : -1;
        if (v->shape.d[i] < 0 || (of_x >= 0 && of_x != v->shape.d[i])) return false;
    }
    return true;
}

/* The node of kind op that reads only the final output so far and a stored tensor. */
static Value *follow(Norm *f, int op)
{
    Match walked = f->m;
    Node *n = mpri_match_user_through(&walked, f->final->out[0]);
    if (!mpri_is(n, op) || n->n_in != 2) return NULL;
    for (int k = 0; k < 2; k++) {
        if (mpri_match_through(NULL, n->in[1 - k]) != mpri_match_through(NULL, f->final->out[0]))
            continue;
        if (!affine(f, n->in[k])) continue;
        f->m = walked;
        mpri_match_add(&f->m, n);
        f->final = n;
        return n->in[k];
    }
    return NULL;
}

/* Scale or bias in a type that LayerNormalization takes beside x. */
static Value *affine_input(Builder *b, const Norm *f, Value *v)
{
    if (!v || v->dtype == f->x->dtype || v->dtype == MPR_FLOAT32) return v;
    return mpri_build_cast(b, v, f->x->dtype == MPR_FLOAT32 ? MPR_FLOAT32 : f->x->dtype);
}

static mpr_status ones(Graph *g, const Norm *f, Value **out, Err *err)
{
    const Shape *s = &f->x->shape;
    Shape shape = {.rank = f->n_axes};
    for (int i = 0; i < f->n_axes; i++) shape.d[i] = s->d[s->rank - f->n_axes + i];
    int64_t n = mpri_shape_elements(&shape);
    float *data = mpri_arena_array(g->arena, (size_t)n, sizeof *data);
    *out = NULL;
    for (int64_t i = 0; data && i < n; i++) data[i] = 1;
    if (data) *out = mpri_value_const(g, "ones", MPR_FLOAT32, &shape, data);
    return *out ? MPR_OK : mpri_err_nomem(err, (size_t)n * sizeof *data);
}

/* Without a scale one has to be made, which takes a known size. */
static bool can_make_scale(const Norm *f)
{
    const Shape *s = &f->x->shape;
    if (s->rank < f->n_axes) return false;
    for (int i = s->rank - f->n_axes; i < s->rank; i++)
        if (s->d[i] < 0) return false;
    return true;
}

mpr_status mpri_recover_layernorm(PassCtx *ctx, Graph *g, Node *n, bool *hit, Err *err)
{
    Norm f = {0};
    if (!mpri_is(n, OP_Sqrt)) return MPR_OK;
    bool rms = !core(&f, n);
    if (rms) {
        f = (Norm){0};
        if (!rms_core(&f, n)) return MPR_OK;
    }
    if (!mpri_prepare_eligible(f.x)) return MPR_OK;
    f.scale = follow(&f, OP_Mul);
    if (!f.scale && !can_make_scale(&f)) return MPR_OK;
    f.bias = rms ? NULL : follow(&f, OP_Add);
    if (!mpri_match_closed(&f.m, f.final)) return MPR_OK;
    if (f.epsilon == 0)
        mpri_log(ctx->log, MPR_LOG_WARNING,
                 "normalization at node '%s' has epsilon 0 (lost to 16 bits in the file): "
                 "constant rows give NaN",
                 mpri_err_name(*f.final->name ? f.final->name : f.final->out[0]->name));
    if (!f.scale) TRY(ones(g, &f, &f.scale, err));
    Builder b = {.g = g,
                 .before = f.final,
                 .segment = f.final->segment,
                 .scope = f.final->name,
                 .origin = f.final,
                 .err = err};
    LayerNormParams p;
    mpri_params_default(&mpri_op_LayerNormalization, &p);
    p.axis = -f.n_axes;
    p.epsilon = (float)f.epsilon;
    Value *in[3] = {f.x, affine_input(&b, &f, f.scale), affine_input(&b, &f, f.bias)}, *y;
    TRY(b.failed);
    *hit = true;
    const OpDef *op = rms ? &mpri_op_RMSNormalization : &mpri_op_LayerNormalization;
    TRY(mpri_match_build(g, f.final, op, f.final->name, &p, f.bias ? 3 : 2, in, &y, err));
    return mpri_match_replace(g, &f.m, f.final, y, err);
}
