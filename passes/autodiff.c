/* Reverse-mode differentiation (Griewank & Walther, Evaluating Derivatives, ch. 3): one sweep over
 * the nodes in reverse order, on the paths between wanted values (trained parameters, float graph
 * inputs) and seeds (the loss, or every output that gets a cotangent).
 *
 * Gradient rules only build; what is common stands here: the cotangent of a value has the value's
 * shape and type, so contributions are summed over broadcast dims and cast (the gradient of a cast
 * is the cast back), and several uses are added as they arrive, which keeps one buffer alive
 * instead of all.
 *
 * Trap: a weight used several times must not be summed in a 16-bit type (4000 gradients of 1 would
 * stop at 2048). A contribution to a view or cast of a trained parameter is therefore carried on to
 * the parameter by itself, and added there in f32; so is one to any cast from f32 to a 16-bit type.
 */
#include <string.h>
#include "passes/autodiff.h"
#include "passes/rewrite.h"

typedef struct Sweep {
    PassCtx *ctx;
    Graph *g;
    Err *err;
    GradPath path;
    Value **cot;    /* by value id: cotangent so far */
    Value **acc;    /* by parameter index: slot "grad:<name>", NULL before its first contribution */
    Value *flag;    /* slot "grad_accumulate" */
} Sweep;

static Builder builder(Sweep *s, Node *n, const char *name)
{
    const char *scope = mpri_arena_printf(s->g->arena, "grad:%s", name);
    return (Builder){.g = s->g,
                     .segment = SEG_BACKWARD,
                     .scope = scope ? scope : "grad:",
                     .origin = n,
                     .err = s->err};
}

static DType master_type(const Sweep *s)
{
    return s->ctx->o->force == MPR_FLOAT64 ? MPR_FLOAT64 : MPR_FLOAT32;
}

/* dx summed over the dims that v was broadcast along, in type t. */
static Value *fit(Builder *b, Value *dx, const Value *v, DType t)
{
    if (!dx || mpri_shape_equal(&dx->shape, &v->shape))
        return dx ? mpri_build_cast(b, dx, t) : NULL;
    SumToParams p = {.dims = {v->shape.rank, v->shape.d},
                     .out_dtype = t == dx->dtype ? 0 : (int64_t)t};
    return mpri_build1(b, OP_SumTo, &p, dx);
}

static Value *state_slot(Graph *g, const char *name, DType t, const void *init)
{
    for (int i = 0; i < g->n_slots; i++)
        if (strcmp(g->slots[i].name, name) == 0) return g->slots[i].value;
    return mpri_value_slot(g, name, SLOT_STATE, t, &(Shape){.rank = 0}, -1, init, t);
}

/* Add one contribution to the gradient slot of a parameter; the kernel converts to f32. */
static mpr_status accumulate(Sweep *s, Builder *b, const Value *param, Value *dw)
{
    Value **acc = &s->acc[param->param];
    /* The first contribution overwrites or adds as the window says, the others always add. */
    Value *flag = *acc ? mpri_build_scalar(b, MPR_INT32, 1) : s->flag;
    if (!*acc) {
        const char *name =
            mpri_arena_printf(s->g->arena, "grad:%s", s->g->params[param->param].name);
        if (!name) return mpri_err_nomem(s->err, 64);
        *acc = mpri_value_slot(s->g, name, SLOT_GRAD, MPR_FLOAT32, &param->shape, param->param,
                               NULL, MPR_FLOAT32);
        if (!*acc) return mpri_err_nomem(s->err, sizeof **acc);
    }
    mpri_build(b, OP_AccumulateGrad, NULL, 3, (Value *[]){*acc, dw, flag}, 0, NULL);
    return b->failed;
}

static mpr_status contribute(Sweep *s, Value *v, Value *dx, const char *from);

/* One call of the gradient rule of n with the cotangents dy. */
static mpr_status differentiate(Sweep *s, Node *n, Value **dy)
{
    Builder b = builder(s, n, n->name);
    bool *need = ARENA_ARRAY(s->ctx->scratch, bool, n->n_in);
    Value **dx = ARENA_ARRAY(s->ctx->scratch, Value *, n->n_in);
    if (!need || !dx) return mpri_err_nomem(s->err, (size_t)n->n_in * sizeof *dx);
    for (int k = 0; k < n->n_in; k++) need[k] = mpri_path_needs(&s->path, n, k);
    GradCtx c = {.b = &b, .n = n, .dy = dy, .need = need, .dx = dx, .err = s->err};
    mpr_status status = n->op->grad(&c);
    if (status == MPR_OK) status = b.failed;
    if (status != MPR_OK) {
        mpri_err_where(s->err, "gradient of node '%s' (%s)", mpri_err_name(n->name), n->op->name);
        return status;
    }
    for (int k = 0; k < n->n_in; k++)
        if (need[k] && dx[k]) TRY(contribute(s, n->in[k], dx[k], n->name));
    return MPR_OK;
}

static mpr_status contribute(Sweep *s, Value *v, Value *dx, const char *from)
{
    Builder b = builder(s, mpri_def(v), from);
    bool param = v->kind == VAL_SLOT && v->param >= 0;
    bool slots = s->ctx->o->grads == GRADS_TO_SLOTS;
    if (param && slots) {
        dx = fit(&b, dx, v, mpri_dtype_is_low(dx->dtype) ? dx->dtype : MPR_FLOAT32);
        TRY(b.failed);
        return accumulate(s, &b, v, dx);
    }
    dx = fit(&b, dx, v, param ? master_type(s) : v->dtype);
    TRY(b.failed);
    if (s->path.of_param[v->id] && !param)
        /* A cast is passed as it is: its source, or the slot at the end, takes what it needs. */
        return mpri_is(v->def, OP_Cast) ? contribute(s, v->def->in[0], dx, from)
                                        : differentiate(s, v->def, &dx);
    /* Every use of a narrowed activation has a cast of its own in PyTorch, so uses meet in f32. */
    if (mpri_is(v->def, OP_Cast) && mpri_dtype_is_low(v->dtype) &&
        v->def->in[0]->dtype == MPR_FLOAT32)
        return mpri_path_needs(&s->path, v->def, 0) ? contribute(s, v->def->in[0], dx, from)
                                                    : MPR_OK;
    Value *old = s->cot[v->id];
    s->cot[v->id] = old ? mpri_build2(&b, OP_Add, NULL, old, dx) : dx;
    return b.failed;
}

/* Forward nodes from `last` to the first; whatever is built goes behind them. */
static mpr_status sweep(Sweep *s, Node *last)
{
    for (Node *n = last; n; n = n->prev) {
        if (n->n_out < 1 || !mpri_path_has(&s->path, n)) continue;
        Value **dy = ARENA_ARRAY(s->ctx->scratch, Value *, n->n_out);
        if (!dy) return mpri_err_nomem(s->err, (size_t)n->n_out * sizeof *dy);
        bool any = false;
        for (int i = 0; i < n->n_out; i++) {
            Value *v = n->out[i];
            dy[i] =
                v && v->id < s->path.n_values && !s->path.of_param[v->id] ? s->cot[v->id] : NULL;
            any = any || dy[i];
        }
        if (any) TRY(differentiate(s, n, dy));
    }
    return MPR_OK;
}

/* ---- where gradients start ---- */

static const GraphOutput *find_output(const Graph *g, const char *name)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (strcmp(g->outputs[i].name, name) == 0) return &g->outputs[i];
    return NULL;
}

static mpr_status check_seed(const Graph *g, const char *name, Value **v, Err *err)
{
    const GraphOutput *o = find_output(g, name);
    if (!o) {
        mpri_err_set(err, MPR_E_USAGE, "no graph output '%s' to differentiate",
                     mpri_err_name(name));
        if (g->n_outputs)
            mpri_err_advice(err, "the first output is '%s'", mpri_err_name(g->outputs[0].name));
        return err->code;
    }
    *v = o->value;
    if (mpri_dtype_is_float(o->value->dtype)) return MPR_OK;
    return mpri_err_set(err, MPR_E_TYPE, "output '%s' is %s: only float outputs have a gradient",
                        mpri_err_name(name), mpri_dtype_name(o->value->dtype));
}

static mpr_status seed_loss(Sweep *s, Value *loss)
{
    static const float one = 1;
    if (loss->shape.rank != 0)
        return mpri_err_set(s->err, MPR_E_SHAPE, "the loss must be a scalar, it has rank %d",
                            loss->shape.rank);
    Value *seed = state_slot(s->g, "loss_seed", MPR_FLOAT32, &one);
    s->flag = state_slot(s->g, "grad_accumulate", MPR_INT32, NULL);
    if (!seed || !s->flag) return mpri_err_nomem(s->err, sizeof *seed);
    return contribute(s, loss, seed, "loss");
}

static mpr_status seed_outputs(Sweep *s)
{
    const PassOptions *o = s->ctx->o;
    for (int i = 0; i < o->n_seeds; i++) {
        const char *name = mpri_arena_printf(s->g->arena, "cotangent:%s", o->seeds[i]);
        Value *v = find_output(s->g, o->seeds[i])->value;
        bool loss =
            strcmp(o->seeds[i], "loss") == 0 && v->shape.rank == 0 && mpri_dtype_is_low(v->dtype);
        Value *seed =
            name ? mpri_value_input(s->g, name, loss ? MPR_FLOAT32 : v->dtype, &v->shape) : NULL;
        if (!seed) return mpri_err_nomem(s->err, sizeof *seed);
        if (s->path.active[v->id]) TRY(contribute(s, v, seed, o->seeds[i]));
    }
    return MPR_OK;
}

/* ---- where gradients go (vjp) ---- */

static mpr_status add_gradient(Sweep *s, const char *of, Value *v, DType t)
{
    const char *name = mpri_arena_printf(s->g->arena, "grad:%s", of);
    if (!name) return mpri_err_nomem(s->err, 64);
    Builder b = builder(s, NULL, of);
    Value *dx = s->cot[v->id];
    if (!dx) {
        dx = mpri_build_scalar(&b, t, 0);
        if (v->shape.rank > 0)
            dx = mpri_build2(&b, OP_Expand, NULL, dx,
                             mpri_build_i64s(&b, v->shape.rank, v->shape.d));
    }
    dx = mpri_build_cast(&b, dx, t);
    TRY(b.failed);
    return mpri_graph_add_output(s->g, name, dx, s->err);
}

static mpr_status add_gradients(Sweep *s, int n_inputs)
{
    for (int i = 0; i < n_inputs && s->ctx->o->grads_of_inputs; i++) {
        Value *v = s->g->inputs[i].value;
        if (mpri_dtype_is_float(v->dtype)) TRY(add_gradient(s, v->name, v, v->dtype));
    }
    for (int i = 0; i < s->g->n_params && s->ctx->o->grads_of_params; i++) {
        const Param *p = &s->g->params[i];
        if (p->trained && p->value->kind == VAL_SLOT)
            TRY(add_gradient(s, p->name, p->value, master_type(s)));
    }
    return MPR_OK;
}

static mpr_status prepare(Sweep *s, Value ***seeds, int *n_seeds)
{
    const PassOptions *o = s->ctx->o;
    bool training = o->grads == GRADS_TO_SLOTS;
    *n_seeds = training ? 1 : o->n_seeds;
    *seeds = ARENA_ARRAY(s->ctx->scratch, Value *, *n_seeds);
    s->acc = ARENA_ARRAY(s->ctx->scratch, Value *, s->g->n_params);
    if (!*seeds || !s->acc) return mpri_err_nomem(s->err, sizeof **seeds);
    for (int i = 0; i < *n_seeds; i++)
        TRY(check_seed(s->g, training ? "loss" : o->seeds[i], &(*seeds)[i], s->err));
    /* Rules may ask for further outputs of forward nodes, and values grow while the sweep runs:
     * arrays by id cover the forward values only, and only those are ever looked up. */
    s->cot = ARENA_ARRAY(s->ctx->scratch, Value *, s->g->n_values);
    return s->cot ? MPR_OK : mpri_err_nomem(s->err, (size_t)s->g->n_values * sizeof *s->cot);
}

/* Outputs of gradient operators that nobody wants: the kernel then leaves them out. */
static void drop_unused(Graph *g, Node *after)
{
    for (Node *n = after ? after->next : g->first; n; n = n->next)
        for (int i = 0; i < n->n_out && n->n_out > 1 && (n->op->flags & OPF_INTERNAL); i++)
            if (n->out[i] && !n->out[i]->n_uses && !n->out[i]->n_outputs)
                mpri_node_drop_output(g, n, i);
}

mpr_status mpri_pass_autodiff(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->o->grads == GRADS_OFF) return MPR_OK;
    bool training = ctx->o->grads == GRADS_TO_SLOTS;
    Sweep s = {.ctx = ctx, .g = g, .err = err};
    Value **seeds;
    int n_seeds, n_inputs = g->n_inputs;
    TRY(prepare(&s, &seeds, &n_seeds));
    TRY(mpri_path_find(&s.path, ctx, g, seeds, n_seeds, err));
    Node *last = g->last;
    TRY(training ? seed_loss(&s, seeds[0]) : seed_outputs(&s));
    TRY(sweep(&s, last));
    if (!training) TRY(add_gradients(&s, n_inputs));
    mpri_graph_sweep(g);
    drop_unused(g, last);
    *changed = true;
    return MPR_OK;
}
