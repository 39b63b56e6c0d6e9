/* Operators that change nothing, and chains that one operator can do.
 *
 * Every rule looks at one node and its inputs, and either replaces the node's output by an older
 * value or rewires the node; values keep type and shape. Shapes are numbers. Rules are the table at
 * the end. */
#include <string.h>
#include "passes/rewrite.h"

/* A rule returns the value that may stand for output 0 of n; NULL: it does not apply. */
typedef Value *(*Rule)(Builder *b, Node *n);

static bool same_type(const Value *a, const Value *b)
{
    return a->dtype == b->dtype && mpri_shape_equal(&a->shape, &b->shape);
}

/* Order of the dims larger than 1 is kept: the bytes do not move. */
static bool keeps_order(const Node *transpose)
{
    int perm[MPRI_MAX_RANK], last = -1;
    const Shape *s = &transpose->in[0]->shape;
    mpri_rewrite_perm(transpose, perm);
    for (int i = 0; i < s->rank; i++) {
        if (s->d[perm[i]] == 1) continue;
        if (perm[i] < last) return false;
        last = perm[i];
    }
    return true;
}

static Value *rule_same_shape(Builder *b, Node *n)
{
    (void)b;
    Value *x = n->in[0], *y = n->out[0];
    if (!same_type(x, y)) return NULL;
    if (mpri_is(n, OP_Transpose) && !keeps_order(n)) return NULL;
    if (mpri_is(n, OP_Concat) && n->n_in != 1) return NULL;
    if (mpri_is(n, OP_Slice) && n->n_in > 4 && n->in[4]) {
        const Value *steps = n->in[4];
        if (steps->kind != VAL_CONST) return NULL;
        int64_t count = mpri_shape_elements(&steps->shape);
        for (int64_t i = 0; i < count; i++)
            if (mpri_load_i64(steps->dtype, steps->data, i) < 0) return NULL;
    }
    return x;
}

static Value *rule_one_input(Builder *b, Node *n)
{
    (void)b;
    return n->n_in == 1 && same_type(n->in[0], n->out[0]) ? n->in[0] : NULL;
}

static bool is_reshaping(const Node *n)
{
    return mpri_is(n, OP_Reshape) || mpri_is(n, OP_Squeeze) || mpri_is(n, OP_Unsqueeze) ||
           mpri_is(n, OP_Flatten);
}

/* Reshape of Reshape: from the oldest. */
static Value *rule_reshape_chain(Builder *b, Node *n)
{
    Value *x = n->in[0];
    if (!is_reshaping(mpri_def(x))) return NULL;
    while (is_reshaping(mpri_def(x))) x = x->def->in[0];
    return mpri_rewrite_reshape(b, x, &n->out[0]->shape);
}

/* A transpose that moves only dims of size 1 is a view. */
static Value *rule_transpose_view(Builder *b, Node *n)
{
    return keeps_order(n) ? mpri_rewrite_reshape(b, n->in[0], &n->out[0]->shape) : NULL;
}

static Value *rule_transpose_chain(Builder *b, Node *n)
{
    Node *inner = mpri_def(n->in[0]);
    if (!mpri_is(inner, OP_Transpose)) return NULL;
    int p[MPRI_MAX_RANK], q[MPRI_MAX_RANK], both[MPRI_MAX_RANK];
    mpri_rewrite_perm(n, p);
    mpri_rewrite_perm(inner, q);
    for (int i = 0; i < n->in[0]->shape.rank; i++) both[i] = q[p[i]];
    return mpri_rewrite_transpose(b, inner->in[0], both);
}

/* x+0, 0+x, x-0, x*1, 1*x, x/1 */
static Value *rule_neutral(Builder *b, Node *n)
{
    (void)b;
    bool product = mpri_is(n, OP_Mul) || mpri_is(n, OP_Div);
    bool swaps = mpri_is(n, OP_Mul) || mpri_is(n, OP_Add);
    for (int k = 1; k >= (swaps ? 0 : 1); k--) {
        double c;
        if (mpri_rewrite_splat(n->in[k], &c) && c == (product ? 1.0 : 0.0) &&
            same_type(n->in[1 - k], n->out[0]))
            return n->in[1 - k];
    }
    return NULL;
}

/* Every value of `from` is a value of `to`. */
static bool exact_cast(DType from, DType to)
{
    size_t a = mpri_dtype_size(from), b = mpri_dtype_size(to);
    if (!a || !b) return false;
    if (from == to || from == MPR_BOOL) return true;
    if (mpri_dtype_is_float(from)) return mpri_dtype_is_float(to) && b > a;
    bool is_signed =
        from == MPR_INT8 || from == MPR_INT16 || from == MPR_INT32 || from == MPR_INT64;
    bool to_signed = to == MPR_INT8 || to == MPR_INT16 || to == MPR_INT32 || to == MPR_INT64;
    if (mpri_dtype_is_int(to)) return b > a && (to_signed || !is_signed);
    if (to == MPR_FLOAT64) return a <= 4;
    return to == MPR_FLOAT32 && a <= 2;
}

/* Cast of Cast, when the first one loses nothing. */
static Value *rule_cast_chain(Builder *b, Node *n)
{
    Node *inner = mpri_def(n->in[0]);
    if (!mpri_is(inner, OP_Cast) || !exact_cast(inner->in[0]->dtype, inner->out[0]->dtype))
        return NULL;
    return mpri_build_cast(b, inner->in[0], n->out[0]->dtype);
}

static Value *expanded(Builder *b, Value *x, const Shape *s)
{
    if (!x || mpri_shape_equal(&x->shape, s)) return x;
    return mpri_build2(b, OP_Expand, NULL, x, mpri_build_i64s(b, s->rank, s->d));
}

/* Broadcast s into what was spanned so far; the two are known to fit. */
static void span(Shape *all, const Shape *s)
{
    Shape r = {.rank = all->rank > s->rank ? all->rank : s->rank};
    for (int i = 1; i <= r.rank; i++) {
        Dim a = i <= all->rank ? all->d[all->rank - i] : 1,
            b = i <= s->rank ? s->d[s->rank - i] : 1;
        r.d[r.rank - i] = a == 1 ? b : a;
    }
    *all = r;
}

static Value *rule_where(Builder *b, Node *n)
{
    double c;
    if (!mpri_rewrite_splat(n->in[0], &c)) return NULL;
    Value *x = n->in[c != 0 ? 1 : 2];
    return x->dtype == n->out[0]->dtype ? expanded(b, x, &n->out[0]->shape) : NULL;
}

/* A scalar that is expanded, so that the rules of Expand hold for it. */
static Value *rule_constant_of_shape(Builder *b, Node *n)
{
    const ConstantOfShapeParams *p = n->params;
    Value *y = n->out[0];
    double v = p->value.data ? mpri_load_f64(p->value.dtype, p->value.data, 0) : 0;
    if (!mpri_dtype_is_float(y->dtype) && y->dtype != MPR_BOOL) return NULL;
    return expanded(b, mpri_build_scalar(b, y->dtype, v), &y->shape);
}

/* x and true, x or false. */
static Value *rule_logic(Builder *b, Node *n)
{
    for (int k = 0; k < 2; k++) {
        double c;
        if (!mpri_rewrite_splat(n->in[k], &c) || (c != 0) != mpri_is(n, OP_And)) continue;
        return expanded(b, n->in[1 - k], &n->out[0]->shape);
    }
    return NULL;
}

/* One constant position of a float tensor: a Slice, whose gradient fills zeros around it. */
static Value *rule_gather_one(Builder *b, Node *n)
{
    const AxisParams *p = n->params;
    Value *x = n->in[0];
    double c;
    if (!mpri_dtype_is_float(x->dtype) || !mpri_rewrite_scalar(n->in[1], &c)) return NULL;
    int64_t axis = p->axis < 0 ? p->axis + x->shape.rank : p->axis;
    int64_t dim = x->shape.d[axis];
    if (c < -(double)dim || c >= (double)dim) return NULL; /* refused when it runs */
    int64_t from = (int64_t)c < 0 ? (int64_t)c + dim : (int64_t)c;
    if (from >= dim) return NULL;
    if (dim > 1)
        x = mpri_build(b, OP_Slice, NULL, 4,
                       (Value *[]){x, mpri_build_i64s(b, 1, &from),
                                   mpri_build_i64s(b, 1, (int64_t[]){from + 1}),
                                   mpri_build_i64s(b, 1, &axis)},
                       1, NULL);
    return mpri_rewrite_reshape(b, x, &n->out[0]->shape);
}

/* An elementwise operator on expanded inputs works on fewer elements before the Expand; worth it
 * when its readers broadcast too, which then need no Expand at all (masks). */
static Value *rule_expand_below(Builder *b, Node *n)
{
    Value *in[8], *y = n->out[0];
    Shape natural = {.rank = 0};
    if (n->n_in > 8 || y->n_outputs) return NULL;
    for (const Use *u = y->uses; u; u = u->next)
        if (!(u->user->op->flags & OPF_ELEMENTWISE)) return NULL;
    for (int k = 0; k < n->n_in; k++) {
        Node *e = mpri_def(n->in[k]);
        in[k] = mpri_is(e, OP_Expand) ? e->in[0] : n->in[k];
        if (in[k]) span(&natural, &in[k]->shape);
    }
    if (mpri_shape_elements(&natural) >= mpri_shape_elements(&y->shape)) return NULL;
    return expanded(b, mpri_build(b, n->op->id, n->params, n->n_in, in, 1, NULL), &y->shape);
}

/* Elementwise operators broadcast by themselves: an Expand before one is not needed when the other
 * inputs still span the output. Rewires n; nothing is replaced. */
static bool drop_expand(Node *n)
{
    bool any = false;
    for (int k = 0; k < n->n_in; k++) {
        Node *e = mpri_def(n->in[k]);
        if (!mpri_is(e, OP_Expand)) continue;
        Shape natural = {.rank = 0};
        for (int j = 0; j < n->n_in; j++) {
            const Value *v = j == k ? e->in[0] : n->in[j];
            if (v) span(&natural, &v->shape);
        }
        if (!mpri_shape_equal(&natural, &n->out[0]->shape)) continue;
        mpri_node_set_input(n, k, e->in[0]);
        any = true;
    }
    return any;
}

static const struct {
    int op;
    Rule rule;
} rules[] = {
    {OP_Identity, rule_same_shape},
    {OP_Reshape, rule_same_shape},
    {OP_Squeeze, rule_same_shape},
    {OP_Unsqueeze, rule_same_shape},
    {OP_Flatten, rule_same_shape},
    {OP_Expand, rule_same_shape},
    {OP_Slice, rule_same_shape},
    {OP_Transpose, rule_same_shape},
    {OP_Concat, rule_same_shape},
    {OP_Cast, rule_same_shape},
    {OP_Split, rule_same_shape},
    {OP_Sum, rule_one_input},
    {OP_Max, rule_one_input},
    {OP_Min, rule_one_input},
    {OP_Reshape, rule_reshape_chain},
    {OP_Squeeze, rule_reshape_chain},
    {OP_Unsqueeze, rule_reshape_chain},
    {OP_Flatten, rule_reshape_chain},
    {OP_Transpose, rule_transpose_view},
    {OP_Transpose, rule_transpose_chain},
    {OP_Add, rule_neutral},
    {OP_Sub, rule_neutral},
    {OP_Mul, rule_neutral},
    {OP_Div, rule_neutral},
    {OP_ConstantOfShape, rule_constant_of_shape},
    {OP_And, rule_logic},
    {OP_Or, rule_logic},
    {OP_Gather, rule_gather_one},
    {OP_Cast, rule_cast_chain},
    {OP_Where, rule_where},
};

mpr_status mpri_fold_identities(Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (n->n_out != 1 || !n->out[0] || !mpri_shape_const(&n->out[0]->shape)) continue;
        if ((n->op->flags & OPF_ELEMENTWISE) && drop_expand(n)) *changed = true;
        Builder b = mpri_rewrite_builder(g, n, err);
        Value *to = NULL;
        for (size_t i = 0; i < sizeof rules / sizeof *rules && !to; i++)
            if (rules[i].op == n->op->id) to = rules[i].rule(&b, n);
        if (!to && (n->op->flags & OPF_ELEMENTWISE)) to = rule_expand_below(&b, n);
        TRY(b.failed);
        if (!to) continue;
        mpri_rewrite_forward(g, n, to);
        *changed = true;
    }
    return MPR_OK;
}
