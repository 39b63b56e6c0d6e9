/* Autocast: which operator computes in which type, stated by casts.
 *
 * One walk in execution order. The types of a node's inputs are final when it is reached; its
 * class says the type to compute in, inputs of another type get a cast, and inference gives the
 * outputs. So there is exactly one Cast per value and type, right behind the value, shared by all
 * readers; small constants are converted instead. Reference: torch.autocast's rules, restated for
 * ONNX in the profiles.
 *
 * Traps. A rank-0 tensor never lifts a dimensioned one (torch's promotion of scalars), or every "*
 * 0.125" with an f32 scalar would lift the branch. A cast of a value that was itself widened must
 * start from the original, and one that was narrowed must not: narrowing rounds. Constants out of
 * range pin their node to f32. Integers, booleans and f64 are never touched. */
#include "passes/autocast.h"

#include "passes/rewrite.h"

typedef struct Autocast {
    PassCtx *ctx;
    Graph *g;
    Err *err;
    DType low;
    int n_values;    /* that were there before: what the arrays below cover */
    DType *declared; /* by value id: type before the pass */
    Value **made[2]; /* by value id: its cast to f32, to low */
    bool *region;    /* by node id */
    int n_low, n_f32, n_casts;
    bool changed;
} Autocast;

/* A fixed input (scale of a normalisation, ratio of a Dropout) is never narrowed and decides
 * nothing. */
static bool may_cast(const Node *n, int k)
{
    return mpri_prepare_eligible(n->in[k]) && !(k < 32 && n->op->fixed_in >> k & 1);
}

/* ---- casts ---- */

static bool is_cast_to(const Node *n, DType t)
{
    return mpri_is(n, OP_Cast) && ((const CastParams *)n->params)->to == (int64_t)t;
}

/* A Cast of v to t that the file has already: moved right behind v, where all readers can share
 * it. */
static mpr_status file_cast(Autocast *a, const Value *v, DType t, Node *before, Value **out)
{
    *out = NULL;
    for (const Use *u = v->uses; u; u = u->next) {
        if (!is_cast_to(u->user, t)) continue;
        if (u->user != before) mpri_node_move_before(a->g, u->user, before);
        *out = u->user->out[0];
        return mpri_infer_node(a->g, u->user, a->err);
    }
    return MPR_OK;
}

static mpr_status new_cast(Autocast *a, Value *v, DType t, Node *before, const char *why,
                           Value **out)
{
    char *name = mpri_arena_printf(a->g->arena, "%s__mpr_%s", v->name, mpri_dtype_name(t));
    CastParams p;
    mpri_params_default(&mpri_op_Cast, &p);
    p.to = t;
    Node *n = name ? mpri_node_create(a->g, before, &mpri_op_Cast, name, &p, 1, &v, 1) : NULL;
    if (!n) return mpri_err_nomem(a->err, sizeof *n);
    n->why = why;
    a->n_casts++;
    *out = n->out[0];
    return mpri_infer_node(a->g, n, a->err);
}

/* v in type t. */
static mpr_status cast_to(Autocast *a, Value *v, DType t, bool saturate, const char *why,
                          Value **out)
{
    *out = v;
    if (v->dtype == t) return MPR_OK;
    const Node *d = mpri_def(v);
    if (mpri_is(d, OP_Cast) && d->in[0]->dtype == t && mpri_prepare_exact(t, v->dtype)) {
        *out = d->in[0];
        return MPR_OK;
    }
    Value **made = t == MPR_FLOAT32 ? a->made[0] : t == a->low ? a->made[1] : NULL;
    if (v->id >= a->n_values || saturate) made = NULL;
    if (made && made[v->id]) {
        *out = made[v->id];
        return MPR_OK;
    }
    a->changed = true;
    if (mpri_prepare_small_const(v)) {
        *out = mpri_prepare_convert(a->g, v, t, saturate);
        if (!*out) return mpri_err_nomem(a->err, sizeof **out);
    } else {
        Node *before = d ? d->next : a->g->first;
        TRY(file_cast(a, v, t, before, out));
        if (!*out) TRY(new_cast(a, v, t, before, why, out));
    }
    if (made) made[v->id] = *out;
    return MPR_OK;
}

/* ---- the type a node computes in ---- */

static mpr_status mixed_low(Autocast *a, const Node *n)
{
    mpri_err_set(a->err, MPR_E_TYPE, "node '%s' (%s) mixes f16 and bf16 inputs",
                 mpri_err_name(n->name), n->op->name);
    return mpri_err_advice(
        a->err, "the model holds %s tensors: use that type, or train it as it is without autocast",
        a->low == MPR_FLOAT16 ? "bf16" : "f16");
}

/* Widest of the inputs with dimensions; of the scalars when there are no others. */
static mpr_status widest(Autocast *a, const Node *n, DType *t)
{
    *t = MPR_DTYPE_NONE;
    for (int scalars = 0; scalars < 2 && *t == MPR_DTYPE_NONE; scalars++) {
        bool mixed = false;
        for (int k = 0; k < n->n_in; k++) {
            if (!may_cast(n, k) || (n->in[k]->shape.rank == 0) != (scalars == 1)) continue;
            DType x = n->in[k]->dtype;
            mixed = mixed || (mpri_dtype_is_low(x) && mpri_dtype_is_low(*t) && x != *t);
            *t = *t == MPR_DTYPE_NONE || *t == x ? x : MPR_FLOAT32;
            if (x == MPR_FLOAT32) mixed = false;
        }
        if (mixed) return mixed_low(a, n);
    }
    return MPR_OK;
}

static mpr_status compute_type(Autocast *a, const Node *n, CastClass cls, DType *t)
{
    *t = MPR_DTYPE_NONE;
    if (cls == CAST_WIDEST) return widest(a, n, t);
    for (int k = 0; k < n->n_in && *t == MPR_DTYPE_NONE; k++) {
        if (!may_cast(n, k)) continue;
        *t = cls == CAST_LOW ? a->low : cls == CAST_FP32 ? MPR_FLOAT32 : n->in[k]->dtype;
    }
    return MPR_OK;
}

/* ---- constants out of range ---- */

/* Bounds of a clamp may saturate: what they limit lies inside anyway. */
static bool clamps(const Node *n)
{
    return mpri_is(n, OP_Clip) || mpri_is(n, OP_Max) || mpri_is(n, OP_Min);
}

static bool masks(const Node *n)
{
    return mpri_is(n, OP_Where) || mpri_is(n, OP_Add) || mpri_is(n, OP_Sub);
}

/* Does a constant of n not fit? Either n goes to f32 (*t and *d change) or the constant is
 * clamped. */
static mpr_status guard(Autocast *a, const Node *n, CastDecision *d, bool by_rule, DType *t,
                        bool *saturate)
{
    for (int k = 0; k < n->n_in; k++) {
        if (!may_cast(n, k) || n->in[k]->dtype == *t) continue;
        double x = 0;
        const Value *c = NULL;
        RangeFault fault = mpri_autocast_range(a->ctx, a->g, n->in[k], *t, &x, &c);
        if (fault == RANGE_OK) continue;
        char number[32];
        const char *name = c->param >= 0 ? a->g->params[c->param].name : c->name;
        mpri_print_f32(number, (float)x);
        const char *becomes = fault == RANGE_UNDERFLOW ? "0" : x < 0 ? "-inf" : "inf";
        if (fault == RANGE_OVERFLOW && (clamps(n) || (masks(n) && by_rule && d->cls == CAST_LOW))) {
            *saturate = true;
            if (!clamps(n))
                mpri_log(a->ctx->log, MPR_LOG_NOTICE,
                         "node '%s' (%s): constant '%s' = %s becomes %s in %s; clamped to %s",
                         mpri_err_name(n->name), n->op->name, mpri_err_name(name), number, becomes,
                         mpri_dtype_name(*t),
                         x < 0 ? "the least finite value" : "the largest finite value");
            continue;
        }
        const char *why = mpri_arena_printf(a->g->arena,
                                            "constant '%s' = %s becomes %s in %s: kept in f32",
                                            mpri_err_name(name), number, becomes,
                                            mpri_dtype_name(*t));
        if (!why) return mpri_err_nomem(a->err, 128);
        mpri_log(a->ctx->log, MPR_LOG_NOTICE, "node '%s' (%s): %s", mpri_err_name(n->name),
                 n->op->name, why);
        *d = (CastDecision){CAST_FP32, why};
        *t = MPR_FLOAT32;
        *saturate = false;
        return MPR_OK;
    }
    return MPR_OK;
}

/* ---- scalars that the 16-bit type cannot hold ---- */

const char mpri_autocast_inside[] = "computed in f32 with an f32 scalar, rounded once";

/* torch multiplies a 16-bit tensor by a host scalar in f32 and rounds the product, never the scalar: such
 * a node computes in f32 between two casts, which the kernels absorb. A comparison has nothing to round. */
static bool inside(const Node *n, CastDecision d, DType t)
{
    if (d.cls != CAST_WIDEST || !(n->op->flags & OPF_ELEMENTWISE) || mpri_is(n, OP_Where) || n->n_out != 1) return false;
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = n->in[k];
        double x;
        if (!may_cast(n, k) || v->dtype != MPR_FLOAT32 || v->shape.rank != 0 || !mpri_dtype_is_low(t)) continue;
        if (!mpri_prepare_scalar(v, &x)) return true; /* computed from shapes, or trained */
        float low = t == MPR_FLOAT16 ? mpri_f16_to_f32(mpri_f64_to_f16(x)) : mpri_bf16_to_f32(mpri_f64_to_bf16(x));
        if ((double)low != x) return true;
    }
    return false;
}

/* What n computed in f32, rounded for all its readers. */
static mpr_status round_output(Autocast *a, Node *n, DType t)
{
    Value *wide = n->out[0], *low;
    TRY(new_cast(a, wide, t, n->next, mpri_autocast_inside, &low));
    mpri_value_replace(a->g, wide, low);
    mpri_node_set_input(low->def, 0, wide);
    const char *name = wide->name, *inner = mpri_graph_fresh_name(a->g, low->name);
    if (!inner) return mpri_err_nomem(a->err, 64);
    mpri_value_rename(a->g, wide, inner); /* the rounded value is what the file calls by this name */
    mpri_value_rename(a->g, low, name);
    a->changed = true;
    return MPR_OK;
}

/* ---- nodes ---- */

/* The type that the file says for v; a rounded output stands for what its node wrote. */
static DType declared_type(const Autocast *a, const Value *v)
{
    const Node *d = mpri_def(v);
    if (v->id >= a->n_values && mpri_is(d, OP_Cast) && d->why == mpri_autocast_inside) v = d->in[0];
    return v->id < a->n_values ? a->declared[v->id] : v->dtype;
}

/* Fixed types: inputs go back to what was declared. A Cast takes any type. */
static mpr_status fixed(Autocast *a, Node *n, const char *why)
{
    for (int k = 0; k < n->n_in && !mpri_is(n, OP_Cast); k++) {
        Value *v = n->in[k];
        if (!mpri_prepare_eligible(v) || v->dtype == declared_type(a, v)) continue;
        TRY(cast_to(a, v, declared_type(a, v), false, why, &v));
        mpri_node_set_input(n, k, v);
    }
    return mpri_infer_node(a->g, n, a->err);
}

/* A Cast of the file that changes nothing any more goes, unless a node of fixed types reads it:
 * what the file says about its result would be lost. */
static bool idle(const Autocast *a, const Node *n)
{
    if (!mpri_is(n, OP_Cast) || n->in[0]->dtype != n->out[0]->dtype) return false;
    for (const Use *u = n->out[0]->uses; u; u = u->next) {
        bool by_rule;
        if (!mpri_is(u->user, OP_Cast) &&
            mpri_profile_decide(a->ctx->o->profile, u->user, &by_rule).cls == CAST_FIXED)
            return false;
    }
    return true;
}

static void count(Autocast *a, const Node *n)
{
    if (n->n_out == 0 || !n->out[0] || mpri_is(n, OP_Cast)) return;
    if (mpri_dtype_is_low(n->out[0]->dtype)) a->n_low++;
    else if (n->out[0]->dtype == MPR_FLOAT32) a->n_f32++;
}

static mpr_status visit(Autocast *a, Node *n)
{
    bool by_rule, saturate = false;
    CastDecision d = mpri_profile_decide(a->ctx->o->profile, n, &by_rule);
    if (d.cls == CAST_FIXED || d.cls == CAST_FORGOTTEN) return fixed(a, n, d.why);
    if (a->region[n->id])
        d = (CastDecision){CAST_FP32, "loss region: f32 from the last product to the loss"};
    DType t;
    TRY(compute_type(a, n, d.cls, &t));
    if (t == MPR_DTYPE_NONE) return mpri_infer_node(a->g, n, a->err);
    if (mpri_dtype_is_low(t)) TRY(guard(a, n, &d, by_rule, &t, &saturate));
    bool round = inside(n, d, t);
    DType low = t;
    if (round) t = MPR_FLOAT32;
    for (int k = 0; k < n->n_in; k++) {
        if (!may_cast(n, k) && !(mpri_prepare_eligible(n->in[k]) && t == MPR_FLOAT32)) continue;
        Value *v;
        TRY(cast_to(a, n->in[k], t, saturate, d.why, &v));
        if (v != n->in[k]) a->changed = true;
        mpri_node_set_input(n, k, v);
    }
    n->why = round ? mpri_autocast_inside : d.why;
    TRY(mpri_infer_node(a->g, n, a->err));
    if (round && mpri_prepare_eligible(n->out[0])) TRY(round_output(a, n, low)); /* else a comparison */
    count(a, n);
    return MPR_OK;
}

/* Graph outputs keep the type that the file declares. */
static mpr_status outputs(Autocast *a)
{
    for (int i = 0; i < a->g->n_outputs; i++) {
        Value *v = a->g->outputs[i].value, *to;
        DType t = mpri_prepare_eligible(v) ? declared_type(a, v) : v->dtype;
        if (v->dtype == t) continue;
        TRY(cast_to(a, v, t, false, "graph outputs keep their declared type", &to));
        a->g->outputs[i].value = to;
        v->n_outputs--;
        to->n_outputs++;
        a->changed = true;
    }
    return MPR_OK;
}

static mpr_status prepare(Autocast *a)
{
    Arena *s = a->ctx->scratch;
    a->n_values = a->g->n_values;
    a->declared = ARENA_ARRAY(s, DType, a->n_values);
    a->made[0] = ARENA_ARRAY(s, Value *, a->n_values);
    a->made[1] = ARENA_ARRAY(s, Value *, a->n_values);
    a->region = ARENA_ARRAY(s, bool, a->g->next_node_id);
    if (!a->declared || !a->made[0] || !a->made[1] || !a->region)
        return mpri_err_nomem(a->err, (size_t)a->n_values * sizeof(Value *));
    for (int i = 0; i < a->n_values; i++) a->declared[i] = a->g->values[i]->dtype;
    mpri_autocast_region(a->ctx, a->g, a->region);
    return MPR_OK;
}

mpr_status mpri_pass_autocast(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    const PassOptions *o = ctx->o;
    if (o->autocast == MPR_DTYPE_NONE || o->autocast == MPR_FLOAT32) return MPR_OK;
    if (!mpri_dtype_is_low(o->autocast))
        return mpri_err_set(err, MPR_E_USAGE, "autocast to %s: only f16 and bf16 are low types",
                            mpri_dtype_name(o->autocast));
    if (!o->profile) return mpri_err_set(err, MPR_E_INTERNAL, "autocast without a profile");
    Autocast a = {.ctx = ctx, .g = g, .err = err, .low = o->autocast};
    TRY(prepare(&a));
    for (Node *n = g->first, *next; n; n = next) {
        TRY(visit(&a, n));
        next = n->next; /* casts of n's inputs stand before n by now */
        if (!idle(&a, n)) continue;
        mpri_rewrite_forward(g, n, n->in[0]);
        a.changed = true;
    }
    TRY(outputs(&a));
    *changed = *changed || a.changed;
    mpri_log(ctx->log, MPR_LOG_INFO, "autocast to %s (%s): %d operators in %s, %d in f32, %d casts",
             mpri_dtype_name(a.low), o->profile->name, a.n_low, mpri_dtype_name(a.low), a.n_f32,
             a.n_casts);
    return MPR_OK;
}
