/* Running a graph once. Parameters become slots only when their gradients are wanted: as constants
 * they would be folded, and nothing could flow to them. */
#include "runtime/train/run.h"

#include <string.h>

#include "runtime/train/binding.h"
#include "runtime/train/control.h"
#include "runtime/train/painted.h"
#include "runtime/train/trainer.h"

typedef struct Run {
    mpr_context *ctx;
    mpr_model *model;
    const ImportedModel *m; /* of the model, or one whose control flow the inputs decide */
    ImportedModel *own;
    Profile *profile;
    mpr_model *painted; /* as the converter rewrites the model for the profile, or NULL */
    mpr_run_options o;
    const mpr_tensors *in, *cot;
    bool want_grads, of_inputs, of_params;
    Arena arena; /* prepared graph */
    Device *device;
    Store store;
    bool store_ready;
    Graph *g;
    Plan *plan;
    PassOptions pass;
    const char **seeds;
    FedInput *fed; /* contents of the graph inputs */
    int n_fed;
    Err *err;
} Run;

/* ---- options ---- */

static mpr_status check_options(Run *r)
{
    const mpr_run_options *o = &r->o;
    const char *of = o->grads_of ? o->grads_of : "inputs";
    r->of_inputs = !strcmp(of, "inputs") || !strcmp(of, "all");
    r->of_params = !strcmp(of, "params") || !strcmp(of, "all");
    if (!r->of_inputs && !r->of_params) {
        mpri_err_set(r->err, MPR_E_USAGE, "grads_of is '%s'; allowed are inputs, params, all",
                     mpri_err_name(of));
        return mpri_err_advice(r->err, "inputs is the default");
    }
    if (o->dtype != MPR_DTYPE_NONE && o->dtype != MPR_FLOAT64) {
        mpri_err_set(r->err, MPR_E_USAGE, "dtype is %s; allowed is float64",
                     mpri_dtype_long(o->dtype));
        return mpri_err_advice(r->err, "leave it out, or use autocast for 16 bits");
    }
    if (o->autocast != MPR_DTYPE_NONE &&
        (!mpri_dtype_is_low(o->autocast) || o->dtype != MPR_DTYPE_NONE)) {
        mpri_err_set(r->err, MPR_E_USAGE,
                     "autocast to %s%s; allowed are float16 and bfloat16, without dtype",
                     mpri_dtype_long(o->autocast), o->dtype ? " together with dtype float64" : "");
        return mpri_err_advice(r->err, "use one of them");
    }
    if (!(o->loss_scale >= 0) || !(o->loss_scale <= 1e38f) || o->repeat < 0) {
        mpri_err_set(
            r->err, MPR_E_USAGE,
            "loss_scale is %g and repeat %d; allowed are finite scales > 0 and repeat >= 1",
            (double)o->loss_scale, o->repeat);
        return mpri_err_advice(r->err, "leave them out");
    }
    return MPR_OK;
}

/* "auto" by the type of the labels that are given. */
static const char *resolve_loss(const Run *r)
{
    const char *loss = r->o.loss;
    if (!loss || !strcmp(loss, "none")) return NULL;
    if (strcmp(loss, "auto")) return loss;
    const Graph *g = r->m->graph;
    for (int i = 0; i < g->n_outputs; i++)
        if (!strcmp(g->outputs[i].name, "loss") && g->outputs[i].value->shape.rank <= 0)
            return "output:loss";
    const TensorEntry *labels = mpri_tensors_find(r->in, r->o.labels ? r->o.labels : "labels");
    return labels && mpri_dtype_is_float(labels->t.dtype) ? "mse" : "cross-entropy";
}

/* ---- the graph ---- */

/* An initializer that the caller gives takes the place of the one in the file. */
static mpr_status override_initializers(Run *r)
{
    for (int i = 0; i < r->in->n; i++) {
        const TensorEntry *e = &r->in->v[i];
        Value *v = mpri_graph_find_value(r->g, e->name);
        if (!v || v->kind != VAL_CONST || e->t.dtype == MPR_DTYPE_NONE) continue;
        bool same = v->dtype == e->t.dtype && v->shape.rank == e->t.rank;
        for (int d = 0; same && d < e->t.rank; d++) same = v->shape.d[d] == e->t.dims[d];
        if (!same) {
            char want[256];
            mpri_shape_print(r->g->sym, &v->shape, want, sizeof(want));
            mpri_err_set(r->err, MPR_E_SHAPE,
                         "'%s' is an initializer of type %s and shape %s; the tensor given has "
                         "type %s and another shape or type",
                         mpri_err_name(e->name), mpri_dtype_long(v->dtype), want,
                         mpri_dtype_long(e->t.dtype));
            return mpri_err_advice(r->err, "give it as the file declares it, or leave it out");
        }
        v->data = e->t.data;
    }
    return MPR_OK;
}

static mpr_status keep_values(Run *r)
{
    for (const char *const *k = r->o.keep; k && *k; k++) {
        Value *v = mpri_graph_find_value(r->g, *k);
        if (v) {
            TRY(mpri_graph_add_output(r->g, *k, v, r->err));
            continue;
        }
        const char **names = ARENA_ARRAY(&r->arena, const char *, r->g->n_values + 1);
        for (int i = 0; names && i < r->g->n_values; i++) names[i] = r->g->values[i]->name;
        const char *near = names ? mpri_nearest(*k, names, (size_t)r->g->n_values) : NULL;
        mpri_err_set(r->err, MPR_E_USAGE, "no value is named '%s'", mpri_err_name(*k));
        return near ? mpri_err_advice(r->err, "did you mean '%s'?", mpri_err_name(near))
                    : mpri_err_advice(r->err, "use a tensor name of the file");
    }
    return MPR_OK;
}

static mpr_status list_seeds(Run *r)
{
    int n = r->cot ? r->cot->n : 1;
    r->seeds = ARENA_ARRAY(&r->arena, const char *, n + 1);
    if (!r->seeds) return mpri_err_nomem(r->err, 0);
    for (int i = 0; i < n; i++) r->seeds[i] = r->cot ? r->cot->v[i].name : "loss";
    r->pass.seeds = r->seeds;
    r->pass.n_seeds = n;
    return MPR_OK;
}

static mpr_status run_passes(Run *r, PassStage stage, Graph *g, const DimBinding *binding)
{
    Arena scratch;
    mpri_arena_init(&scratch, &r->ctx->alloc, 0);
    PassCtx ctx = {
        .scratch = &scratch,
        .alloc = &r->ctx->alloc,
        .log = &r->ctx->log,
        .o = &r->pass,
        .ref = &r->device->kernels,
        .binding = binding,
        .fed = r->fed,
        .n_fed = r->n_fed,
    };
    mpr_status status = mpri_passes_run(&ctx, stage, g, r->err);
    mpri_arena_destroy(&scratch);
    return status;
}

static mpr_status prepare(Run *r)
{
    r->pass = (PassOptions){
        .loss = resolve_loss(r),
        .logits = r->o.logits,
        .labels = "labels",
        .ignore_index = r->o.has_ignore_index ? r->o.ignore_index : -100,
        .label_smoothing = r->o.label_smoothing,
        .autocast = r->painted ? MPR_DTYPE_NONE : r->o.autocast,
        .profile = r->profile,
        .force = r->o.dtype,
        .no_fuse = r->o.keep && r->o.keep[0],
    };
    if (r->want_grads && !r->cot && !r->pass.loss) {
        mpri_err_set(r->err, MPR_E_USAGE,
                     "gradients are wanted, but there are neither cotangents nor a loss");
        return mpri_err_advice(r->err, "give cotangents of outputs, or a loss");
    }
    r->g = mpri_graph_clone(r->m->graph, &r->arena);
    if (!r->g) return mpri_err_nomem(r->err, 0);
    TRY(override_initializers(r));
    if (r->want_grads && r->of_params) TRY(mpri_graph_make_param_slots(r->g, r->err));
    else /* nothing is trained: no master in f32 stands before a weight of the file */
        for (int i = 0; i < r->g->n_params; i++) r->g->params[i].trained = false;
    TRY(keep_values(r));
    TRY(mpri_import_check_supported(r->g, r->err));
    TRY(run_passes(r, STAGE_PREPARE, r->g, NULL));
    if (!r->want_grads) return MPR_OK;
    r->pass.grads = GRADS_TO_OUTPUTS;
    r->pass.grads_of_inputs = r->of_inputs;
    r->pass.grads_of_params = r->of_params;
    return list_seeds(r);
}

/* ---- inputs ---- */

static const TensorEntry *given(const Run *r, const Value *v, const char **key)
{
    *key = v->name;
    const TensorEntry *e = mpri_tensors_find(r->in, v->name);
    if (r->pass.loss && !strcmp(v->name, "labels") && r->o.labels) {
        *key = r->o.labels;
        e = mpri_tensors_find(r->in, r->o.labels);
    }
    return e;
}

/* What the caller may give for a type of the graph. */
static bool may_convert(const Run *r, const Value *v, mpr_dtype from)
{
    bool labels = r->pass.loss && !strcmp(v->name, "labels");
    if (from == v->dtype) return true;
    if (mpri_dtype_is_int(from) && mpri_dtype_is_int(v->dtype))
        return labels || ((from == MPR_INT32 || from == MPR_INT64) &&
                          (v->dtype == MPR_INT32 || v->dtype == MPR_INT64));
    if (!mpri_dtype_is_float(from) || !mpri_dtype_is_float(v->dtype)) return false;
    return labels || r->pass.force || (v->dtype == MPR_BFLOAT16 && from == MPR_FLOAT32);
}

/* Labels as a column: trailing dims of 1 are dropped to meet the declared rank. */
static mpr_tensor fit_rank(const Value *v, const mpr_tensor *t)
{
    mpr_tensor fit = *t;
    while (fit.rank > v->shape.rank && v->shape.rank >= 0 && fit.rank &&
           fit.dims[fit.rank - 1] == 1)
        fit.rank--;
    return fit;
}

static FedInput fed_input(const char *name, const mpr_tensor *t)
{
    FedInput fed = {.name = name, .t = {.data = (void *)(uintptr_t)t->data, .dtype = t->dtype}};
    fed.t.rank = t->rank;
    fed.t.n = mpri_tensor_elements(t);
    for (int d = 0; d < t->rank; d++) fed.t.dims[d] = t->dims[d];
    return fed;
}

static mpr_status bind_inputs(Run *r, Graph *g, DimBinding *b)
{
    r->fed = ARENA_ARRAY(&r->arena, FedInput, g->n_inputs + 1);
    r->n_fed = 0;
    if (!r->fed) return mpri_err_nomem(r->err, 0);
    for (int i = 0; i < g->n_inputs; i++) {
        Value *v = g->inputs[i].value;
        const char *key;
        const TensorEntry *e = given(r, v, &key);
        if (!e && !v->n_uses && !v->n_outputs) continue;
        TRY(mpri_tensors_need(r->in, key, &e, r->err));
        if (!may_convert(r, v, e->t.dtype)) {
            mpri_err_set(r->err, MPR_E_TYPE, "input '%s' is %s, the model reads %s",
                         mpri_err_name(key), mpri_dtype_long(e->t.dtype),
                         mpri_dtype_long(v->dtype));
            return mpri_err_advice(r->err, "store it in that type");
        }
        mpr_tensor t = strcmp(v->name, "labels") ? e->t : fit_rank(v, &e->t);
        TRY(mpri_bind_input(g, b, v, t.rank, t.dims, r->err));
        r->fed[r->n_fed++] = fed_input(v->name, &t);
    }
    return mpri_bind_options(g, b, r->o.bind, r->err);
}

static mpr_status feed_tensor(Run *r, const Value *v, const mpr_tensor *t, const char *what)
{
    void *to = mpri_plan_value_data(r->plan, v);
    int64_t n = mpri_tensor_elements(t);
    if (!to || !n) return MPR_OK;
    if (t->dtype == v->dtype)
        return r->device->copy_in(r->device, to, t->data, (size_t)n * mpri_dtype_size(t->dtype),
                                  r->err);
    mpr_tensor converted;
    TRY(mpri_tensor_convert(r->ctx, t, v->dtype, what, &converted, r->err));
    mpr_status status = r->device->copy_in(r->device, to, converted.data,
                                           (size_t)n * mpri_dtype_size(v->dtype), r->err);
    mpri_free(&r->ctx->alloc, (void *)(uintptr_t)converted.data);
    return status;
}

static mpr_status feed_cotangent(Run *r, const char *output)
{
    const char *name = mpri_arena_printf(&r->arena, "cotangent:%s", output);
    Value *v = name ? mpri_plan_input(r->plan, name) : NULL;
    if (!v) return MPR_OK; /* nothing depends on it */
    if (!r->cot) {
        float seed = r->o.loss_scale > 0 ? r->o.loss_scale : 1;
        mpr_tensor t = {.data = &seed, .dtype = MPR_FLOAT32};
        return feed_tensor(r, v, &t, "loss_scale");
    }
    const TensorEntry *e;
    TRY(mpri_tensors_need(r->cot, output, &e, r->err));
    bool same = e->t.rank == v->shape.rank && mpri_dtype_is_float(e->t.dtype);
    for (int d = 0; same && d < e->t.rank; d++) same = e->t.dims[d] == v->shape.d[d];
    if (!same) {
        char want[256];
        mpri_shape_print(r->plan->graph->sym, &v->shape, want, sizeof(want));
        mpri_err_set(r->err, MPR_E_SHAPE,
                     "the cotangent of '%s' must be a float tensor of shape %s",
                     mpri_err_name(output), want);
        return mpri_err_advice(r->err, "give it the shape of the output");
    }
    return feed_tensor(r, v, &e->t, "a cotangent");
}

static mpr_status feed_all(Run *r)
{
    const Graph *g = r->g;
    for (int i = 0; i < g->n_inputs; i++) {
        const char *key;
        Value *v = mpri_plan_input(r->plan, g->inputs[i].value->name);
        const TensorEntry *e = v ? given(r, v, &key) : NULL;
        if (e) TRY(feed_tensor(r, v, &e->t, mpri_err_name(key)));
    }
    for (int i = 0; i < r->pass.n_seeds; i++) TRY(feed_cotangent(r, r->seeds[i]));
    return MPR_OK;
}

/* ---- plan and outputs ---- */

static mpr_status make_plan(Run *r)
{
    Arena arena;
    mpri_arena_init(&arena, &r->ctx->alloc, 0);
    Graph *g = mpri_graph_clone(r->g, &arena);
    DimBinding *b = g ? mpri_binding_create(&arena, g->sym) : NULL;
    mpr_status status = b ? bind_inputs(r, g, b) : mpri_err_nomem(r->err, 0);
    if (status == MPR_OK) status = run_passes(r, STAGE_BIND, g, b);
    if (status != MPR_OK) {
        mpri_arena_destroy(&arena);
        return status;
    }
    bool ref = (r->o.kernels && !strcmp(r->o.kernels, "ref")) || r->o.dtype == MPR_FLOAT64;
    PlanOptions o = {.kernels = ref ? "ref" : NULL};
    TRY(mpri_plan_create(r->device, &r->store, g, arena, &o, &r->plan, r->err));
    int64_t limit = mpri_context_memory(r->ctx);
    char node[512];
    if (r->plan->arena_bytes > (uint64_t)limit) {
        mpri_err_set(r->err, MPR_E_NOMEM, "these shapes need %zu bytes, allowed are %lld",
                     r->plan->arena_bytes, (long long)limit);
        mpri_err_advice(r->err, "use a smaller batch, or raise mpr_limits.memory_bytes");
        return mpri_err_where(r->err, "%s", mpri_plan_largest(r->plan, node, sizeof(node)));
    }
    if (mpri_plan_bind_memory(r->plan, NULL, r->err) == MPR_OK) return MPR_OK;
    return mpri_err_where(r->err, "%s", mpri_plan_largest(r->plan, node, sizeof(node)));
}

static mpr_dtype declared_type(const Run *r, const char *output, mpr_dtype have)
{
    const Graph *g = r->m->graph;
    if (r->o.dtype || !mpri_dtype_is_low(have)) return have;
    for (int i = 0; i < g->n_outputs; i++)
        if (!strcmp(g->outputs[i].name, output)) return g->outputs[i].value->dtype;
    return have;
}

static mpr_status take_output(Run *r, const GraphOutput *out, mpr_tensors *outputs,
                              mpr_tensors *grads)
{
    const Value *v = out->value;
    bool grad = !strncmp(out->name, "grad:", 5) && r->want_grads;
    const char *name = grad ? out->name + 5 : out->name;
    const void *data = mpri_plan_view(r->plan, v);
    if (!data && mpri_shape_elements(&v->shape) > 0)
        return mpri_err_set(r->err, MPR_E_DEVICE, "output '%s' cannot be read",
                            mpri_err_name(name));
    mpr_tensor t = {.data = data, .dtype = v->dtype, .rank = v->shape.rank};
    for (int d = 0; d < t.rank; d++) t.dims[d] = v->shape.d[d];
    mpr_dtype want = grad ? v->dtype : declared_type(r, out->name, v->dtype);
    if (want == t.dtype) {
        TRY(mpri_tensors_put(grad ? grads : outputs, name, &t, r->err));
    } else {
        mpr_tensor converted;
        TRY(mpri_tensor_convert(r->ctx, &t, want, mpri_err_name(name), &converted, r->err));
        TRY(mpri_tensors_give(outputs, name, &converted, r->err));
    }
    if (!grad || r->cot || r->o.loss_scale <= 0 || r->o.loss_scale == 1) return MPR_OK;
    TensorEntry *e = &grads->v[grads->n - 1]; /* the loss gradient is returned unscaled */
    float inv = (float)(1.0 / (double)r->o.loss_scale);
    int64_t n = mpri_tensor_elements(&e->t);
    void *p = (void *)(uintptr_t)e->t.data;
    for (int64_t i = 0; i < n; i++) {
        if (e->t.dtype == MPR_FLOAT32) ((float *)p)[i] *= inv;
        else
            mpri_store_f64(e->t.dtype, p, i,
                           mpri_load_f64(e->t.dtype, p, i) * (1.0 / (double)r->o.loss_scale));
    }
    return MPR_OK;
}

static mpr_status execute(Run *r)
{
    int repeat = r->o.repeat > 1 ? r->o.repeat : 1;
    double best = 0;
    for (int i = 0; i < repeat; i++) {
        TRY(feed_all(r));
        double start = mpri_monotonic();
        TRY(mpri_plan_run(r->plan, -1, 0, 0, r->err));
        TRY(mpri_plan_check(r->plan, r->err));
        double ms = 1e3 * (mpri_monotonic() - start);
        if (!i || ms < best) best = ms;
    }
    if (r->o.milliseconds) *r->o.milliseconds = best;
    return MPR_OK;
}

/* Conditions and trip counts that follow from the inputs. */
static mpr_status decide_control(Run *r)
{
    FedInput *fed = ARENA_ARRAY(&r->arena, FedInput, r->in->n + 1);
    int n = 0;
    if (!fed) return mpri_err_nomem(r->err, 0);
    for (int i = 0; i < r->in->n; i++)
        if (r->in->v[i].t.dtype != MPR_DTYPE_NONE)
            fed[n++] = fed_input(r->in->v[i].name, &r->in->v[i].t);
    return mpri_control_decide(r->model, &r->device->kernels, fed, n, 0, &r->own, r->err);
}

static mpr_status run_all(Run *r, mpr_tensors *outputs, mpr_tensors *grads)
{
    TRY(check_options(r));
    TRY(mpri_context_device(r->ctx, &r->device, r->err));
    TRY(mpri_store_init(&r->store, r->device, r->err));
    r->store_ready = true;
    if (r->o.autocast != MPR_DTYPE_NONE)
        TRY(mpri_painted_profile(r->model, r->o.autocast_profile, NULL, &r->arena, &r->o.autocast,
                                 &r->profile, r->err));
    TRY(mpri_painted_open(r->model, r->profile, r->o.autocast, &r->painted, r->err));
    if (r->painted) r->model = r->painted;
    r->m = r->model->m;
    if (r->m->n_open) {
        TRY(decide_control(r));
        if (r->own) r->m = r->own;
    }
    TRY(prepare(r));
    TRY(make_plan(r));
    TRY(execute(r));
    const Graph *g = r->plan->graph;
    for (int i = 0; i < g->n_outputs; i++) TRY(take_output(r, &g->outputs[i], outputs, grads));
    return MPR_OK;
}

mpr_status mpri_run_vjp(mpr_model *model, const mpr_tensors *inputs, const mpr_tensors *cotangents,
                        const mpr_run_options *options, mpr_tensors **outputs, mpr_tensors **grads,
                        Err *err)
{
    Run r = {.ctx = model->ctx,
             .model = model,
             .in = inputs,
             .cot = cotangents,
             .want_grads = grads != NULL,
             .err = err};
    mpr_tensors *out = NULL, *grad = NULL;
    *outputs = NULL;
    if (grads) *grads = NULL;
    TRY(mpri_take_options(&r.o, sizeof(r.o), options, "mpr_run_options", err));
    mpri_arena_init(&r.arena, &r.ctx->alloc, 0);
    mpr_status status = mpri_tensors_create(r.ctx, &out, err);
    if (status == MPR_OK) status = mpri_tensors_create(r.ctx, &grad, err);
    if (status == MPR_OK) status = run_all(&r, out, grad);
    mpri_plan_destroy(r.plan);
    mpri_import_destroy(r.own, &r.ctx->alloc);
    mpri_model_destroy(r.painted);
    if (r.store_ready) mpri_store_destroy(&r.store);
    mpri_device_destroy(r.device);
    mpri_arena_destroy(&r.arena);
    if (status != MPR_OK) {
        mpri_tensors_destroy(out);
        mpri_tensors_destroy(grad);
        const char *path = mpri_err_name(model->m->path);
        return strstr(err->where, path) ? status : mpri_err_where(err, "%s", path);
    }
    *outputs = out;
    if (grads) *grads = grad;
    else mpri_tensors_destroy(grad);
    return MPR_OK;
}
