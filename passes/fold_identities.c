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

static Value *rule_where(Builder *b, Node *n)
{
    double c;
    if (!mpri_rewrite_splat(n->in[0], &c)) return NULL;
    Value *x = n->in[c != 0 ? 1 : 2];
    const Shape *s = &n->out[0]->shape;
    if (x->dtype != n->out[0]->dtype) return NULL;
    if (mpri_shape_equal(&x->shape, s)) return x;
    return mpri_build2(b, OP_Expand, NULL, x, mpri_build_i64s(b, s->rank, s->d));
}

/* Elementwise operators broadcast by themselves: an Expand before one is not needed when the other
 * inputs still span the output. Rewires n; nothing is replaced. */
static bool drop_expand(Node *n)
{
    const Shape *out = &n->out[0]->shape;
    bool any = false;
    for (int k = 0; k < n->n_in; k++) {
        Node *e = mpri_def(n->in[k]);
        if (!mpri_is(e, OP_Expand)) continue;
        int64_t span[MPRI_MAX_RANK] = {0};
        int rank = 0;
        for (int j = 0; j < n->n_in; j++) {
            const Value *v = j == k ? e->in[0] : n->in[j];
            if (!v) continue;
            if (v->shape.rank > rank) rank = v->shape.rank;
            for (int i = 0; i < v->shape.rank; i++) {
                Dim d = v->shape.d[v->shape.rank - 1 - i];
                if (span[i] == 0 || d != 1) span[i] = d == 0 ? -1 : d;
            }
        }
        bool same = rank == out->rank;
        for (int i = 0; same && i < rank; i++) same = span[i] == out->d[rank - 1 - i];
        if (!same) continue;
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
    {OP_Cast, rule_cast_chain},
    {OP_Where, rule_where},
};

mpr_status mpri_fold_identities(Graph *g, bool *changed, Err *err)
{
    for (Node *n = g->first, *next; n; n = next) {
        next = n->next;
        if (n->n_out != 1 || !n->out[0] || !mpri_shape_const(&n->out[0]->shape)) continue;
        if ((n->op->flags & OPF_ELEMENTWISE) && drop_expand(n)) *changed = true;
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
            if (rules[i].op != n->op->id) continue;
            Builder b = mpri_rewrite_builder(g, n, err);
            Value *to = rules[i].rule(&b, n);
            TRY(b.failed);
            if (!to) continue;
            mpri_rewrite_forward(g, n, to);
            *changed = true;
            break;
        }
    }
    return MPR_OK;
}
