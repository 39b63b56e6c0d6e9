/* The update as graphs over slots, planned and run by the executor like everything else. One graph
 * per part and set of present gradients: a parameter without a gradient is not touched. */
#include "runtime/train/optimizer.h"

#include <string.h>

/* ---- slots ---- */

static mpr_status make_slot(mpr_optimizer *opt, const char *name, SlotClass cls, DType t,
                            const Shape *shape, int param, StoreSlot *out, Err *err)
{
    StoreSlot *slot;
    TRY(mpri_session_slot(opt->s, name, cls, t, shape, param, &slot, err));
    if (slot->bytes) /* an optimizer destroyed before may have used it */
        TRY(opt->s->device->zero(opt->s->device, slot->data, slot->bytes, err));
    if (out) *out = *slot;
    return MPR_OK;
}

static mpr_status own_slot(mpr_optimizer *opt, const char *what, DType t, int64_t n, StoreSlot *out,
                           Err *err)
{
    Shape shape = {.rank = n ? 1 : 0, .d = {n}};
    const char *name = mpri_arena_printf(&opt->arena, "optimizer%d:%s", opt->s->optimizers, what);
    if (!name) return mpri_err_nomem(err, 0);
    TRY(make_slot(opt, name, SLOT_STATE, t, &shape, -1, out, err));
    out->name = name;
    return MPR_OK;
}

mpr_status mpri_optimizer_make_slots(mpr_optimizer *opt, Err *err)
{
    static const char *const adam[2] = {"adam_m", "adam_v"}, *const sgd[2] = {"sgd_buf", NULL};
    const char *const *kinds = opt->kind == OPTIMIZER_ADAM ? adam : sgd;
    TRY(own_slot(opt, "state", MPR_FLOAT64, 8, &opt->state, err));
    TRY(own_slot(opt, "hyper", MPR_FLOAT64, 8, &opt->hyper, err));
    TRY(own_slot(opt, "scale", MPR_FLOAT32, 0, &opt->scale, err));
    TRY(own_slot(opt, "max_norm", MPR_FLOAT32, 0, &opt->max_norm, err));
    opt->s->optimizers++;
    if (opt->kind == OPTIMIZER_SGD && opt->factors[0] == 0) return MPR_OK;
    for (int i = 0; i < opt->n_params; i++)
        for (int k = 0; k < 2 && kinds[k]; k++) {
            OptimizerParam *op = &opt->params[i];
            op->moment[k] = mpri_arena_printf(&opt->arena, "%s:%s", kinds[k], op->p->name);
            if (!op->moment[k]) return mpri_err_nomem(err, 0);
            TRY(make_slot(opt, op->moment[k], SLOT_MOMENT, MPR_FLOAT32, &op->p->shape, op->p->index,
                          NULL, err));
        }
    return MPR_OK;
}

/* ---- graphs ---- */

typedef struct UpdateGraph {
    mpr_optimizer *opt;
    Graph *g;
    Value **in;
    int n_in;
    Err *err;
} UpdateGraph;

static mpr_status add_slot(UpdateGraph *u, const char *name)
{
    const StoreSlot *slot = name ? mpri_store_find(&u->opt->s->store, name) : NULL;
    if (name && !slot)
        return mpri_err_set(u->err, MPR_E_INTERNAL, "slot '%s' does not exist", name);
    Value *v = NULL;
    if (slot) {
        const char *own = mpri_intern(u->g->names, name);
        v = own ? mpri_value_slot(u->g, own, slot->cls, slot->dtype, &slot->shape, slot->param,
                                  NULL, slot->dtype)
                : NULL;
        if (!v) return mpri_err_nomem(u->err, 0);
    }
    u->in[u->n_in++] = v;
    return MPR_OK;
}

/* Behind the parameters: the 16-bit copies that the session keeps of them. */
static mpr_status add_copies(UpdateGraph *u, Ints *copy_of)
{
    mpr_optimizer *opt = u->opt;
    int64_t *of = ARENA_ARRAY(u->g->arena, int64_t, MPRI_COPIES * opt->n_params + 1), n = 0, param = 0;
    if (!of) return mpri_err_nomem(u->err, 0);
    for (int i = 0; i < opt->n_params && opt->s->n_copies; i++) {
        const SessionParam *p = opt->params[i].p;
        if (!p->present) continue;
        for (int k = 0; k < MPRI_COPIES; k++) {
            const StoreSlot *copy = mpri_session_copy(opt->s, p, k, u->g->arena, u->err);
            TRY(u->err->code);
            if (!copy) continue;
            of[n++] = param;
            TRY(add_slot(u, copy->name));
        }
        param++;
    }
    *copy_of = (Ints){n, of};
    return MPR_OK;
}

static mpr_status add_inputs(UpdateGraph *u, UpdatePart part)
{
    mpr_optimizer *opt = u->opt;
    TRY(add_slot(u, opt->state.name));
    TRY(add_slot(u, part == UPDATE_UNSCALE || part == UPDATE_SETTLE ? opt->scale.name
                    : part == UPDATE_CLIP  ? opt->max_norm.name
                                           : opt->hyper.name));
    for (int i = 0; i < opt->n_params; i++) {
        const OptimizerParam *op = &opt->params[i];
        if (!op->p->present) continue;
        if (part == UPDATE_STEP) TRY(add_slot(u, op->p->slot));
        TRY(add_slot(u, op->p->grad_slot));
        if (part == UPDATE_STEP) TRY(add_slot(u, op->moment[0]));
        if (part == UPDATE_STEP && opt->kind == OPTIMIZER_ADAM) TRY(add_slot(u, op->moment[1]));
    }
    return MPR_OK;
}

/* Rate and decay per parameter, in the order of the inputs. */
static mpr_status fill_factors(UpdateGraph *u, Floats *decay, Floats *rate)
{
    float *d = ARENA_ARRAY(u->g->arena, float, u->opt->n_params + 1),
          *r = ARENA_ARRAY(u->g->arena, float, u->opt->n_params + 1);
    if (!d || !r) return mpri_err_nomem(u->err, 0);
    int64_t n = 0;
    for (int i = 0; i < u->opt->n_params; i++) {
        if (!u->opt->params[i].p->present) continue;
        d[n] = u->opt->params[i].decay_ratio;
        r[n++] = u->opt->params[i].rate_ratio;
    }
    *decay = (Floats){n, d};
    *rate = (Floats){n, r};
    return MPR_OK;
}

static mpr_status build(UpdateGraph *u, UpdatePart part)
{
    AdamParams adam = {.decoupled = u->opt->decoupled};
    SgdParams sgd = {.nesterov = u->opt->nesterov};
    const void *params = NULL;
    u->in = ARENA_ARRAY(u->g->arena, Value *, (4 + MPRI_COPIES) * u->opt->n_params + 2);
    if (!u->in) return mpri_err_nomem(u->err, 0);
    TRY(add_inputs(u, part));
    const KeepParams keep = {.keep = u->opt->s->device->fused_update};
    const OpDef *op = part == UPDATE_UNSCALE  ? &mpri_op_UnscaleCheck
                      : part == UPDATE_SETTLE ? &mpri_op_ScaleGrads
                                              : &mpri_op_ClipGradNorm;
    if (part == UPDATE_UNSCALE || part == UPDATE_CLIP) params = &keep;
    if (part == UPDATE_STEP && u->opt->kind == OPTIMIZER_ADAM) {
        TRY(fill_factors(u, &adam.decay_scale, &adam.lr_scale));
        TRY(add_copies(u, &adam.copy_of));
        op = &mpri_op_AdamStep;
        params = &adam;
    } else if (part == UPDATE_STEP) {
        TRY(fill_factors(u, &sgd.decay_scale, &sgd.lr_scale));
        TRY(add_copies(u, &sgd.copy_of));
        op = &mpri_op_SgdStep;
        params = &sgd;
    }
    Node *n = mpri_node_create(u->g, NULL, op, "update", params, u->n_in, u->in, 0);
    if (!n) return mpri_err_nomem(u->err, 0);
    n->segment = SEG_UPDATE;
    return mpri_infer_graph(u->g, u->err);
}

static mpr_status make_plan(mpr_optimizer *opt, UpdatePart part, Err *err)
{
    mpr_session *s = opt->s;
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    Intern *names = mpri_intern_create(&arena);
    UpdateGraph u = {.opt = opt, .err = err};
    u.g = names ? mpri_graph_create(&arena, names, mpri_op_table()) : NULL;
    mpr_status status = u.g ? build(&u, part) : mpri_err_nomem(err, 0);
    if (status != MPR_OK) {
        mpri_arena_destroy(&arena);
        return status;
    }
    PlanOptions o = {.kernels = s->o.kernels};
    TRY(mpri_plan_create(s->device, &s->store, u.g, arena, &o, &opt->plan[part], err));
    status = mpri_plan_bind_memory(opt->plan[part], NULL, err);
    if (status == MPR_OK) return MPR_OK;
    mpri_plan_destroy(opt->plan[part]); /* a later step makes it anew */
    opt->plan[part] = NULL;
    return status;
}

void mpri_optimizer_plans_free(mpr_optimizer *opt)
{
    for (int i = 0; i < UPDATE_PARTS; i++) {
        mpri_plan_destroy(opt->plan[i]);
        opt->plan[i] = NULL;
    }
}

mpr_status mpri_optimizer_plan(mpr_optimizer *opt, UpdatePart part, Plan **out, Err *err)
{
    bool same = opt->planned_copies == opt->s->n_copies;
    for (int i = 0; i < opt->n_params; i++) same &= opt->planned[i] == opt->params[i].p->present;
    if (!same) {
        mpri_optimizer_plans_free(opt);
        opt->planned_copies = opt->s->n_copies;
        for (int i = 0; i < opt->n_params; i++) opt->planned[i] = opt->params[i].p->present;
    }
    if (!opt->plan[part]) TRY(make_plan(opt, part, err));
    *out = opt->plan[part];
    return MPR_OK;
}
