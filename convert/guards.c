/* Patterns that 16 bits would break: each keeps its whole path in float32.
 *
 * Paths are walked through the readers of values; the walks are marked per search, so a long chain
 * costs one visit a node. */
#include <math.h>
#include <string.h>

#include "convert/paint.h"
#include "convert/verify.h"

typedef struct Walk {
    Paint *p;
    MixReason why;
    const char *through, *until;
    uint8_t *seen; /* by number of the node: 1 under way or in vain, 2 leads there */
    bool (*reaches)(const MixNode *n, const MixValue *by);
} Walk;

static bool guarded(const MixUnit *u)
{
    return !u->forced && !u->excluded && u->legal && !(u->pinned && u->pin != WHY_RANGE_INIT);
}

static void pin_node(MixNode *n, MixReason why)
{
    for (int i = 0; i < n->n_units; i++) {
        MixUnit *u = n->units[i];
        if (!guarded(u)) continue;
        u->pinned = false;
        mpri_unit_pin(u, why);
    }
}

/* Does a path lead from here to one of the ends? Everything on such a path is pinned. */
static bool walk(Walk *w, MixNode *n, const MixValue *by, int depth)
{
    if (depth > 2000) return false;
    uint8_t *seen = &w->seen[n->number];
    if (mpri_node_is(n, w->until) && (!w->reaches || w->reaches(n, by))) {
        pin_node(n, w->why);
        return true;
    }
    if (*seen) return *seen == 2;
    *seen = 1;
    if (!mpri_node_is(n, w->through)) return false;
    for (int k = 0; k < n->n_out; k++)
        for (MixUse *u = n->out[k] ? n->out[k]->uses : NULL; u; u = u->next)
            if (u->node && walk(w, u->node, n->out[k], depth + 1)) *seen = 2;
    if (*seen == 2) pin_node(n, w->why);
    return *seen == 2;
}

static Walk new_walk(Paint *p, MixReason why, const char *through, const char *until)
{
    return (Walk){.p = p, .why = why, .through = through, .until = until,
                  .seen = mpri_pool_take(p->m->pool, (size_t)p->m->n_nodes)};
}

/* Readers of the outputs of n. */
static bool walk_on(Walk *w, MixNode *n)
{
    bool any = false;
    for (int k = 0; k < n->n_out; k++)
        for (MixUse *u = n->out[k] ? n->out[k]->uses : NULL; u; u = u->next)
            if (u->node && walk(w, u->node, n->out[k], 0)) any = true;
    return any;
}

/* ---- eps ---- */

static double scalar(const MixValue *v)
{
    return v && v->range.known && v->range.nonzero ? v->range.most : 0;
}

static bool needs_positive(const MixNode *n, const MixValue *by)
{
    if (mpri_node_is(n, "Div")) return n->n_in > 1 && n->in[1] == by;
    if (!mpri_node_is(n, "Pow")) return true;
    return n->n_in > 1 && n->in[0] == by && n->in[1] && n->in[1]->negative;
}

static bool holds_epsilon(const MixNode *n)
{
    for (int k = 0; k < n->n_in; k++) {
        const MixValue *v = n->in[k];
        if (v && v->range.known && v->range.nonzero && v->range.nonzero == v->range.elements &&
            !v->negative && !v->range.infinite && scalar(v) < 6.1e-5)
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
    Walk w = new_walk(p, WHY_EPS, mpri_list_words(LIST_CLEAR), "Sqrt Div Reciprocal Log Pow");
    w.reaches = needs_positive;
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (mpri_node_is(n, "Add Max Clip Sum") && holds_epsilon(n) && walk_on(&w, n))
            pin_node(n, WHY_EPS);
    }
}

/* ---- mask ---- */

static void guard_mask(Paint *p)
{
    const char *through = mpri_pool_print(p->m->pool, "Add Sub Mul Div Sum Cast %s",
                                          mpri_list_words(LIST_CLEAR));
    Walk w = new_walk(p, WHY_MASK, through, "Softmax LogSoftmax Exp");
    for (int i = 0; i < p->m->n_values; i++) {
        MixValue *v = p->m->values[i];
        if (!v->range.known || (!v->range.infinite && v->range.most <= 6e4)) continue;
        for (MixUse *u = v->uses; u; u = u->next)
            if (u->node) walk(&w, u->node, v, 0);
    }
}

/* ---- variance ---- */

static bool is_square(const MixNode *n)
{
    if (mpri_node_is(n, "Mul")) return n->n_in > 1 && n->in[0] && n->in[0] == n->in[1];
    return mpri_node_is(n, "Pow") && n->n_in > 1 && n->in[0] && scalar(n->in[1]) == 2 &&
           !n->in[1]->negative;
}

static void guard_variance(Paint *p)
{
    static const char reduce[] = "ReduceMean ReduceSum ReduceSumSquare ReduceL1 ReduceL2 "
                                 "ReduceLogSum ReduceLogSumExp ReduceProd";
    const char *through = mpri_pool_print(p->m->pool, "ReduceMean ReduceSum Add Div Mul %s",
                                          mpri_list_words(LIST_CLEAR));
    Walk sums = new_walk(p, WHY_VARIANCE, mpri_list_words(LIST_CLEAR), reduce);
    Walk roots = new_walk(p, WHY_VARIANCE, through, "Sqrt");
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (mpri_node_is(n, "Exp") && walk_on(&sums, n)) pin_node(n, WHY_VARIANCE);
        if (!is_square(n)) continue;
        bool mean = false;
        for (MixUse *u = n->out[0] ? n->out[0]->uses : NULL; u; u = u->next)
            mean = mean || (u->node && mpri_node_is(u->node, "ReduceMean ReduceSum"));
        if (!mean || !walk_on(&roots, n)) continue;
        pin_node(n, WHY_VARIANCE);
        if (n->in[0]->maker && mpri_node_is(n->in[0]->maker, "Sub"))
            pin_node(n->in[0]->maker, WHY_VARIANCE);
    }
}

/* ---- loss ---- */

static bool allows(const MixNode *n)
{
    for (int i = 0; i < n->n_units; i++)
        if (n->units[i]->list == LIST_ALLOW && !n->units[i]->asked) return true;
    return false;
}

static void pin_before(Paint *p, MixNode *n, MixReason why, uint8_t *seen, int depth)
{
    if (!n || seen[n->number] || depth > 2000 || allows(n)) return;
    seen[n->number] = 1;
    pin_node(n, why);
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && mpri_mix_castable(n->in[k]->type.elem))
            pin_before(p, n->in[k]->maker, why, seen, depth + 1);
}

static void guard_loss(Paint *p)
{
    uint8_t *seen = mpri_pool_take(p->m->pool, (size_t)p->m->n_nodes);
    for (int i = 0; i < p->m->n_nodes; i++)
        if (mpri_node_is(p->m->nodes[i], "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss"))
            pin_before(p, p->m->nodes[i], WHY_LOSS, seen, 0);
    for (int i = 0; i < p->m->top->n_outputs; i++) {
        MixValue *v = p->m->top->outputs[i];
        if (v && !strcmp(v->name, "loss")) pin_before(p, v->maker, WHY_LOSS, seen, 0);
    }
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

static void note(MixNode *n, const char *text)
{
    for (int i = 0; i < n->n_units; i++) n->units[i]->detail = text;
}

static void guard_sum(Paint *p, MixNode *n)
{
    double most = 0, share;
    bool finite, pool = mpri_node_is(n, "GlobalAveragePool AveragePool Mean");
    bool known = p->o->range && n->n_in && n->in[0] &&
                 p->o->range(p->o->range_user, n->in[0]->name, &most, &share, &finite);
    int64_t depth = mpri_node_is(n, "Mean") ? n->n_in : reduction_depth(p, n);
    if (depth < 1 && !pool && !is_asked(n) && !is_denied(n)) {
        pin_node(n, WHY_REDUCTION);
        note(n, "the depth of the sum is not known");
    } else if (depth > 0 && known && (double)depth * most > 32752) {
        pin_node(n, WHY_REDUCTION);
        note(n,
             mpri_pool_print(p->m->pool, "sums of %lld values up to %.6g", (long long)depth, most));
    }
}

static void guard_reduction(Paint *p)
{
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (mpri_node_is(n, sums)) guard_sum(p, n);
        if (!mpri_node_is(n, "MatMul Gemm Conv ConvTranspose") || !p->o->max_reduction) continue;
        int64_t depth = reduction_depth(p, n);
        if (depth <= p->o->max_reduction) continue;
        pin_node(n, WHY_REDUCTION);
        note(n, mpri_pool_print(p->m->pool, "sums of %lld products, allowed are %lld",
                                (long long)depth, (long long)p->o->max_reduction));
    }
}

/* ---- ranges of activations ---- */

static bool out_of_range(Paint *p, MixNode *n, const char *name, const char *what)
{
    double most, share;
    bool finite;
    if (!p->o->range(p->o->range_user, name, &most, &share, &finite)) return false;
    const char *text = NULL;
    if (!finite) text = mpri_pool_print(p->m->pool, "%s holds Inf or NaN", what);
    else if (most * p->o->margin > 65504)
        text = mpri_pool_print(p->m->pool, "%s: largest %.6g, times margin %g above 65504", what,
                               most, p->o->margin);
    else if (share > 0.01)
        text = mpri_pool_print(p->m->pool, "%s: %.3g%% of the non-zero values below 6e-8", what,
                               100 * share);
    if (text) note(n, text);
    return text;
}

/* What a node computes inside, such as the variance of a normalisation. */
static bool inside_out_of_range(Paint *p, MixNode *n, const MixValue *out)
{
    Pool *pool = p->m->pool;
    return out && out_of_range(p, n, mpri_pool_print(pool, MPRI_INSIDE "%s", out->name),
                               mpri_pool_print(pool, "variance for %s", out->name));
}

static void guard_range(Paint *p)
{
    for (int i = 0; p->o->range && i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        bool bad = n->n_out && n->n_units && inside_out_of_range(p, n, n->out[0]);
        for (int k = 0; k < n->n_in && !bad; k++)
            bad = n->in_unit[k] && !n->in[k]->initializer &&
                  out_of_range(p, n, n->in[k]->name, n->in[k]->name);
        for (int k = 0; k < n->n_out && !bad; k++)
            bad = n->out_unit[k] && out_of_range(p, n, n->out[k]->name, n->out[k]->name);
        if (bad) pin_node(n, WHY_RANGE_ACT);
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
    if (narrow && !is_off(p, WHY_REDUCTION)) guard_reduction(p);
    if (!is_off(p, WHY_LOSS)) guard_loss(p);
    if (narrow && !is_off(p, WHY_RANGE_ACT)) guard_range(p);
    return MPR_OK;
}

/* ---- shapes and weights ---- */

static bool is_shape_port(const MixNode *n, int k)
{
    if (mpri_node_is(n, "Range ConstantOfShape")) return true;
    if (k == 0) return false;
    if (mpri_node_is(n, "Resize")) return k == 3;
    if (mpri_node_is(n, "ScatterND ScatterElements OneHot CumSum CumProd ReduceSum ReduceMean "
                        "ReduceMax ReduceMin ReduceProd CenterCropPad"))
        return k == 1;
    return mpri_node_is(n, "Reshape Expand Slice Tile Pad TopK Squeeze Unsqueeze Split Gather "
                           "GatherND GatherElements");
}

static bool reaches_shape(const MixNode *n, uint8_t *seen, int depth)
{
    if (depth > 2000 || seen[n->number]) return false;
    seen[n->number] = 1;
    for (int k = 0; k < n->n_out; k++) {
        const MixValue *v = n->out[k];
        if (!v || mpri_dtype_is_float(v->type.elem)) continue;
        for (MixUse *u = v->uses; u; u = u->next)
            if (u->node && (is_shape_port(u->node, u->at) ||
                            reaches_shape(u->node, seen, depth + 1)))
                return true;
    }
    return false;
}

static void shape_paths(Paint *p)
{
    uint8_t *back = mpri_pool_take(p->m->pool, (size_t)p->m->n_nodes);
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (!mpri_node_is(n, "Cast") || !n->n_in || !n->in[0] || !n->n_out || !n->out[0]) continue;
        if (n->in[0]->type.elem != MPR_FLOAT32 || !mpri_dtype_is_int(n->out[0]->type.elem))
            continue;
        uint8_t *seen = mpri_pool_take(p->m->pool, (size_t)p->m->n_nodes);
        if (reaches_shape(n, seen, 0)) pin_before(p, n->in[0]->maker, WHY_SHAPE, back, 0);
    }
}

/* Another name of an initializer stays in float32: the trainer takes it for a weight, too. */
static bool renames_weight(const MixNode *n)
{
    while (mpri_node_is(n, "Identity") && n->n_in && n->in[0]) {
        if (n->in[0]->initializer) return true;
        if (!n->in[0]->maker) return false;
        n = n->in[0]->maker;
    }
    return false;
}

static void weight_sides(Paint *p)
{
    for (int i = 0; p->o->master && i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (renames_weight(n)) pin_node(n, WHY_WEIGHT);
        if (!mpri_node_is(n, "Gather Slice") || !n->n_in || !n->in[0] || !n->in[0]->initializer)
            continue;
        int64_t in = mpri_mix_elements(p->m, n->in[0]);
        int64_t out = n->n_out && n->out[0] ? mpri_mix_elements(p->m, n->out[0]) : -1;
        if (in < 0 || out < 0 || out < in) pin_node(n, WHY_WEIGHT);
    }
}

static void weight_ranges(Paint *p)
{
    const char *policy = p->o->weights_oor;
    for (int i = 0; i < p->m->n_values; i++) {
        MixValue *v = p->m->values[i];
        const MixRange *r = &v->range;
        bool few = r->elements <= 64;
        bool tiny = few ? r->tiny > 0 : (double)r->tiny > 0.01 * (double)r->elements;
        if (!r->known || (!r->over && !tiny)) continue;
        bool kept = false;
        for (MixUse *u = v->uses; u; u = u->next) {
            MixUnit *unit = u->node ? u->unit : NULL;
            if (!unit || unit->pinned || unit->list == LIST_DENY) continue;
            if (v->saturate && unit->forced) continue;
            kept = true;
            if (policy && !strcmp(policy, "error")) {
                mpri_err_set(p->err, MPR_E_DATA, "%lld values of '%s' do not fit %s",
                             (long long)(r->over + r->tiny), mpri_err_name(v->name),
                             mpri_dtype_long(p->m->to));
                mpri_err_advice(p->err, "use --weights-oor keep-fp32 or saturate");
            } else if (!policy || !strcmp(policy, "keep-fp32") || p->o->master) {
                mpri_unit_pin(unit, WHY_RANGE_INIT);
            }
        }
        if (kept)
            mpri_paint_warn(p, r->over ? "oor" : "underflow", v->name,
                            r->over ? r->over : r->tiny,
                            r->over ? "finite values become infinite" : "values become zero");
    }
}

void mpri_paint_constants(Paint *p)
{
    shape_paths(p);
    weight_sides(p);
    mpri_paint_sentinels(p);
    weight_ranges(p);
}
