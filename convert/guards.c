/* Patterns that 16 bits would break: each keeps its whole path in float32. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "convert/flow.h"

/* ---- eps ---- */

/* The constant that a value is, in another shape perhaps. */
static const MixValue *constant(const MixValue *v)
{
    for (int i = 0; v && !v->range.known && v->maker && i < 32; i++) {
        if (!mpri_node_is(v->maker, "Identity Unsqueeze Squeeze Reshape Flatten Expand Tile")) break;
        v = v->maker->n_in ? v->maker->in[0] : NULL;
    }
    return v && v->range.known ? v : NULL;
}

static double scalar(const MixValue *v)
{
    v = constant(v);
    return v && v->range.nonzero ? v->range.most : 0;
}

static bool is_negative(const MixValue *v)
{
    v = constant(v);
    return v && v->negative;
}

static bool needs_positive(const MixNode *n, const MixValue *by)
{
    if (mpri_node_is(n, "Div")) return n->n_in > 1 && n->in[1] == by;
    if (!mpri_node_is(n, "Pow")) return true;
    return n->n_in > 1 && n->in[0] == by && is_negative(n->in[1]);
}

static bool holds_epsilon(const MixNode *n)
{
    for (int k = 0; k < n->n_in; k++) {
        const MixValue *v = constant(n->in[k]);
        if (v && v->range.nonzero && v->range.nonzero == v->range.elements && !v->negative && !v->range.infinite && scalar(v) < 6.1e-5)
            return true;
    }
    const Tree *a = mpri_node_is(n, "Clip") ? mpri_mix_attribute(n, "min") : NULL;
    TreeField *f = a ? mpri_tree_find(a, 2) : NULL;
    if (!f) return false;
    uint32_t bits = (uint32_t)f->value;
    float x;
    memcpy(&x, &bits, 4);
    return x > 0 && x < 6.1e-5f;
}

static void guard_eps(Paint *p)
{
    Walk w = mpri_walk_new(p, WHY_EPS, mpri_list_words(LIST_CLEAR), "Sqrt Div Reciprocal Log Pow");
    w.reaches = needs_positive;
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (mpri_node_is(n, "Add Max Clip Sum") && holds_epsilon(n) && mpri_walk_behind(&w, n))
            mpri_guard_node(n, WHY_EPS);
    }
}

/* ---- mask ---- */

static void guard_mask(Paint *p)
{
    const char *through = mpri_pool_print(p->m->pool, "Add Sub Mul Div Sum Cast Trilu %s",
                                          mpri_list_words(LIST_CLEAR));
    Walk w = mpri_walk_new(p, WHY_MASK, through, "Softmax LogSoftmax Exp");
    for (int i = 0; i < p->m->n_values; i++) {
        MixValue *v = p->m->values[i];
        if (!v->range.known || (!v->range.infinite && v->range.most <= 6e4)) continue;
        mpri_walk(&w, v);
    }
}

/* ---- variance ---- */

static bool is_square(const MixNode *n)
{
    if (mpri_node_is(n, "Mul")) return n->n_in > 1 && n->in[0] && n->in[0] == n->in[1];
    return mpri_node_is(n, "Pow") && n->n_in > 1 && n->in[0] && scalar(n->in[1]) == 2 &&
           !is_negative(n->in[1]);
}

static bool is_root(const MixNode *n, const MixValue *by)
{
    return !mpri_node_is(n, "Pow") ||
           (n->n_in > 1 && n->in[0] == by && scalar(n->in[1]) == 0.5);
}

static void guard_variance(Paint *p)
{
    static const char reduce[] = "ReduceMean ReduceSum ReduceSumSquare ReduceL1 ReduceL2 "
                                 "ReduceLogSum ReduceLogSumExp ReduceProd";
    const char *through = mpri_pool_print(p->m->pool, "ReduceMean ReduceSum Add Div Mul %s",
                                          mpri_list_words(LIST_CLEAR));
    Walk sums = mpri_walk_new(p, WHY_VARIANCE, mpri_list_words(LIST_CLEAR), reduce);
    Walk roots = mpri_walk_new(p, WHY_VARIANCE, through, "Sqrt Pow");
    roots.reaches = is_root;
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (mpri_node_is(n, "Exp") && mpri_walk_behind(&sums, n)) mpri_guard_node(n, WHY_VARIANCE);
        if (!is_square(n)) continue;
        bool mean = false;
        for (MixUse *u = n->out[0] ? n->out[0]->uses : NULL; u; u = u->next)
            mean = mean || (u->node && mpri_node_is(u->node, "ReduceMean ReduceSum"));
        if (!mean || !mpri_walk_behind(&roots, n)) continue;
        mpri_guard_node(n, WHY_VARIANCE);
        if (n->in[0]->maker && mpri_node_is(n->in[0]->maker, "Sub"))
            mpri_guard_node(n->in[0]->maker, WHY_VARIANCE);
    }
}

/* ---- loss ---- */

static const char totals[] = "ReduceMean ReduceSum ReduceSumSquare ReduceL1 ReduceL2 "
                             "ReduceLogSum ReduceLogSumExp";

/* "loss" as a word of its own: train_loss, but not glossary. */
static bool says_loss(const char *name)
{
    for (const char *at = name; (at = strcasestr(at, "loss")); at += 4)
        if ((at == name || !isalpha((unsigned char)at[-1])) && !isalpha((unsigned char)at[4]))
            return true;
    return false;
}

/* One number that sums up all of something, as it is or after a little arithmetic. */
static bool sums_up(const Mix *m, const MixValue *v, bool one, int depth)
{
    const MixNode *n = v ? v->maker : NULL;
    MixValue *before[FLOW_MOST];
    if (!n || depth > 32) return false;
    int flow = mpri_flow_before(v, before);
    for (int i = 0; i < flow; i++)
        if (sums_up(m, before[i], one, depth + 1)) return true;
    if (mpri_node_is(n, totals)) {
        bool axes = mpri_mix_attribute(n, "axes") || (n->n_in > 1 && n->in[1]);
        return one || !axes;
    }
    if (!mpri_node_is(n, "Add Sub Mul Div Neg Sum Identity Reshape Squeeze Unsqueeze Sqrt Log "
                         "Cast"))
        return false;
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && mpri_mix_castable(n->in[k]->type.elem) &&
            sums_up(m, n->in[k], one, depth + 1))
            return true;
    return false;
}

static bool is_loss(const Mix *m, const MixValue *v)
{
    if (!mpri_mix_castable(v->type.elem)) return false;
    if (says_loss(v->name)) return true;
    int64_t elements = mpri_mix_elements(m, v);
    return (elements == 1 || elements < 0) && sums_up(m, v, elements == 1, 0);
}

static void guard_loss(Paint *p)
{
    Before w = mpri_before_new(p, WHY_LOSS, false);
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (!mpri_node_is(n, "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss")) continue;
        mpri_guard_node(n, WHY_LOSS);
        for (int k = 0; k < n->n_in; k++) mpri_before(&w, n->in[k]);
    }
    for (int i = 0; i < p->m->top->n_outputs; i++)
        if (p->m->top->outputs[i] && is_loss(p->m, p->m->top->outputs[i]))
            mpri_before(&w, p->m->top->outputs[i]);
}

/* ---- reduction ---- */

static int64_t reduction_depth(Paint *p, const MixNode *n)
{
    int64_t in = n->n_in && n->in[0] ? mpri_mix_elements(p->m, n->in[0]) : -1;
    int64_t out = n->n_out && n->out[0] ? mpri_mix_elements(p->m, n->out[0]) : -1;
    if (mpri_node_is(n, "MatMul Gemm")) {
        const MixValue *w = n->n_in > 1 ? n->in[1] : NULL;
        int64_t last = w ? mpri_mix_dim(w, mpri_mix_attribute_int(n, "transB", 0) ? -1 : -2) : -1;
        if (last > 0) return last;
        w = n->in[0];
        return w ? mpri_mix_dim(w, mpri_mix_attribute_int(n, "transA", 0) ? -2 : -1) : -1;
    }
    if (mpri_node_is(n, "ConvTranspose")) {
        const MixValue *w = n->n_in > 1 ? n->in[1] : NULL; /* [in, out / group, taps] */
        int64_t all = w ? mpri_mix_elements(p->m, w) : -1, outs = w ? mpri_mix_dim(w, 1) : -1;
        int64_t groups = mpri_mix_attribute_int(n, "group", 1);
        return all > 0 && outs > 0 && groups > 0 ? all / outs / groups : -1;
    }
    if (mpri_node_is(n, "CumSum")) {
        const MixValue *x = n->n_in ? n->in[0] : NULL; /* as if along the longest dim */
        int64_t longest = -1;
        for (int k = 0; x && k < 8; k++)
            if (mpri_mix_dim(x, k) > longest) longest = mpri_mix_dim(x, k);
        return longest;
    }
    if (mpri_node_is(n, "AveragePool")) {
        const Tree *kernel = mpri_mix_attribute(n, "kernel_shape");
        return kernel ? mpri_mix_product(kernel, 8) : -1;
    }
    if (mpri_node_is(n, "Conv")) {
        const MixValue *w = n->n_in > 1 ? n->in[1] : NULL;
        int64_t all = w ? mpri_mix_elements(p->m, w) : -1, first = w ? mpri_mix_dim(w, 0) : -1;
        return all > 0 && first > 0 ? all / first : -1;
    }
    return in > 0 && out > 0 ? in / out : -1;
}

static const char sums[] = "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum "
                           "ReduceLogSumExp CumSum Mean GlobalAveragePool AveragePool";

static bool is_asked(const MixNode *n)
{
    for (int i = 0; i < n->n_units; i++)
        if (n->units[i]->asked) return true;
    return false;
}

static bool is_denied(const MixNode *n)
{
    for (int i = 0; i < n->n_units; i++)
        if (n->units[i]->list != LIST_DENY) return false;
    return true;
}

static void guard_sum(Paint *p, MixNode *n)
{
    PaintRange r;
    bool pool = mpri_node_is(n, "GlobalAveragePool AveragePool Mean");
    bool known = n->n_in && n->in[0] && mpri_paint_range(p, n->in[0], &r);
    int64_t depth = mpri_node_is(n, "Mean") ? n->n_in : reduction_depth(p, n);
    if (depth < 1 && !pool && !is_asked(n) && !is_denied(n)) {
        mpri_guard_noted(n, WHY_REDUCTION, "the depth of the sum is not known");
    } else if (depth > 0 && known && (double)depth * r.most > 32752) {
        mpri_guard_noted(n, WHY_REDUCTION, mpri_pool_print(p->m->pool, "sums of %lld values up to %.6g",
                                                    (long long)depth, r.most));
    }
}

/* Products longer than the user allows; an unknown length is too long unless the user asked. */
static void guard_products(Paint *p, MixNode *n)
{
    int64_t depth = reduction_depth(p, n);
    if (depth > p->o->max_reduction)
        mpri_guard_noted(n, WHY_REDUCTION,
                  mpri_pool_print(p->m->pool, "sums of %lld products, allowed are %lld",
                                  (long long)depth, (long long)p->o->max_reduction));
    else if (depth < 1 && !is_asked(n))
        mpri_guard_noted(n, WHY_REDUCTION, "the length of the products is not known");
}

static void guard_reduction(Paint *p)
{
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (p->m->to == MPR_FLOAT16 && mpri_node_is(n, sums)) guard_sum(p, n);
        if (p->o->max_reduction && mpri_node_is(n, "MatMul Gemm Conv ConvTranspose"))
            guard_products(p, n);
    }
}

static bool is_off(const Paint *p, MixReason why)
{
    for (int i = 0; p->o->no_guard && p->o->no_guard[i]; i++)
        if (!strcmp(p->o->no_guard[i], mpri_reason_text(why))) return true;
    return false;
}

static mpr_status check_names(const Paint *p)
{
    static const char *const names[] = {"eps",       "mask", "variance",
                                        "reduction", "loss", "range-act"};
    for (int i = 0; p->o->no_guard && p->o->no_guard[i]; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            known = known || !strcmp(names[k], p->o->no_guard[i]);
        if (known) continue;
        mpri_err_set(p->err, MPR_E_USAGE, "no guard is named '%s'",
                     mpri_err_name(p->o->no_guard[i]));
        return mpri_err_advice(p->err,
                               "name one of eps, mask, variance, reduction, loss, range-act");
    }
    return MPR_OK;
}

mpr_status mpri_paint_guards(Paint *p)
{
    TRY(check_names(p));
    bool narrow = p->m->to == MPR_FLOAT16;
    if (narrow && !is_off(p, WHY_EPS)) guard_eps(p);
    if (narrow && !is_off(p, WHY_MASK)) guard_mask(p);
    if (!is_off(p, WHY_VARIANCE)) guard_variance(p);
    if (!is_off(p, WHY_REDUCTION)) guard_reduction(p);
    if (!is_off(p, WHY_LOSS)) guard_loss(p);
    if (narrow && !is_off(p, WHY_RANGE_ACT)) mpri_paint_range_act(p);
    return MPR_OK;
}
