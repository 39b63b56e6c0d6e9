/* Constants that 16 bits would break: what becomes a shape, the smaller side of a weight, and
 * weights out of range. */
#include <string.h>

#include "convert/flow.h"

static bool is_shape_port(const MixNode *n, int k)
{
    if (mpri_node_is(n, "Range ConstantOfShape")) return true;
    if (k == 0) return mpri_node_is(n, "Loop");
    if (mpri_node_is(n, "Resize")) return k == 3;
    if (mpri_node_is(n, "ScatterND ScatterElements OneHot CumSum CumProd ReduceSum ReduceMean "
                        "ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
                        "ReduceLogSumExp ReduceSumSquare CenterCropPad"))
        return k == 1;
    return mpri_node_is(n, "Reshape Expand Slice Tile Pad TopK Squeeze Unsqueeze Split Gather "
                           "GatherND GatherElements");
}

/* Does an integer become a shape, an axis or an index? */
static bool reaches_shape(const Mix *m, const MixValue *v, uint8_t *seen, int depth)
{
    if (!v || depth > 2000 || seen[v->order] || mpri_dtype_is_float(v->type.elem)) return false;
    seen[v->order] = 1;
    for (const MixUse *u = v->uses; u; u = u->next) {
        MixValue *next[FLOW_MOST];
        int n = mpri_flow_next(u, next);
        if (u->node && is_shape_port(u->node, u->at)) return true;
        for (int i = 0; i < n; i++)
            if (reaches_shape(m, next[i], seen, depth + 1)) return true;
        for (int k = 0; n == 0 && u->node && k < u->node->n_out; k++)
            if (reaches_shape(m, u->node->out[k], seen, depth + 1)) return true;
    }
    return false;
}

static void shape_paths(Paint *p)
{
    Before back = mpri_before_new(p, WHY_SHAPE, true);
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (!mpri_node_is(n, "Cast") || !n->n_in || !n->in[0] || !n->n_out || !n->out[0]) continue;
        if (n->in[0]->type.elem != MPR_FLOAT32 || !mpri_dtype_is_int(n->out[0]->type.elem))
            continue;
        uint8_t *seen = mpri_pool_take(p->m->pool, (size_t)p->m->n_values + 1);
        if (reaches_shape(p->m, n->out[0], seen, 0)) mpri_before(&back, n->in[0]);
    }
}

/* Another name of an initializer stays in float32: the trainer takes it for a weight, too. */
static bool renames_weight(const MixNode *n)
{
    while (mpri_node_is(n, "Identity") && n->n_in && n->in[0]) {
        const MixValue *v = mpri_mix_given(n->in[0]);
        if (v->initializer) return true;
        if (!v->maker) return false;
        n = v->maker;
    }
    return false;
}

static void weight_sides(Paint *p)
{
    for (int i = 0; p->o->master && i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (renames_weight(n)) mpri_guard_node(n, WHY_WEIGHT);
        MixValue *weight = n->n_in && n->in[0] ? mpri_mix_given(n->in[0]) : NULL;
        if (!mpri_node_is(n, "Gather Slice") || !weight || !weight->initializer) continue;
        int64_t in = mpri_mix_elements(p->m, weight);
        int64_t out = n->n_out && n->out[0] ? mpri_mix_elements(p->m, n->out[0]) : -1;
        if (in < 0 || out < 0 || out < in) mpri_guard_node(n, WHY_WEIGHT);
    }
}

/* More than a few values that 16 bits cannot hold. */
static bool breaks(const MixRange *r)
{
    bool few = r->elements <= 64;
    bool tiny = few ? r->tiny > 0 : (double)r->tiny > 0.01 * (double)r->elements;
    return r->known && (r->over || tiny);
}

void mpri_paint_weights(Paint *p)
{
    const char *policy = p->o->weights_oor;
    bool keep = !policy || !strcmp(policy, "keep-fp32") || p->o->master;
    for (int i = 0; keep && i < p->m->n_values; i++) {
        MixValue *v = p->m->values[i];
        for (MixUse *u = breaks(&v->range) ? v->uses : NULL; u; u = u->next) {
            if (!u->unit || u->unit->pinned || u->unit->list == LIST_DENY) continue;
            if (!v->saturate || !u->unit->forced) mpri_unit_pin(u->unit, WHY_RANGE_INIT);
        }
    }
}

void mpri_paint_constants(Paint *p)
{
    shape_paths(p);
    weight_sides(p);
    mpri_paint_sentinels(p);
    mpri_paint_weights(p);
}

/* ---- what became of them ---- */

typedef struct Readers { bool low, kept; } Readers;

static Readers readers(const MixValue *v, DType to)
{
    Readers r = {false, false};
    for (const MixUse *u = v->uses; u; u = u->next) {
        r.low = r.low || (u->unit && u->unit->is == to);
        r.kept = r.kept || (u->unit && u->unit->why == WHY_RANGE_INIT);
    }
    return r;
}

static mpr_status refuse(Paint *p, const MixValue *v)
{
    mpri_err_set(p->err, MPR_E_DATA, "%lld values of '%s' do not fit %s",
                 (long long)(v->range.over + v->range.tiny), mpri_err_name(v->name),
                 mpri_dtype_long(p->m->to));
    return mpri_err_advice(p->err, "use --weights-oor keep-fp32 or saturate");
}

mpr_status mpri_paint_changes(Paint *p)
{
    bool refuses = p->o->weights_oor && !strcmp(p->o->weights_oor, "error");
    bool saturates = p->o->weights_oor && !strcmp(p->o->weights_oor, "saturate");
    for (int i = 0; i < p->m->n_values; i++) {
        const MixValue *v = p->m->values[i];
        const MixRange *r = &v->range;
        if (!r->known || (!r->over && !r->tiny)) continue;
        Readers by = readers(v, p->m->to);
        if (refuses && breaks(r) && (by.low || by.kept)) return refuse(p, v);
        if (!by.low && !by.kept) continue;
        const char *over = !by.low ? "finite values would become infinite: kept in float32"
                           : v->saturate || saturates ? "values become the largest finite ones"
                                                      : "finite values become infinite";
        if (r->over) mpri_paint_warn(p, "oor", v->name, r->over, over);
        if (r->tiny)
            mpri_paint_warn(p, "underflow", v->name, r->tiny,
                            by.low ? "values become zero" : "values would become zero: kept in "
                                                            "float32");
    }
    return MPR_OK;
}
