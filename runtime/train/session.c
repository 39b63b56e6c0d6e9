/* Opening and closing a session: options copied, loss resolved, graphs prepared.
 *
 * Training and evaluation are two prepared graphs of one model: evaluation runs without autocast
 * (unless eval_autocast) and without Dropout. Both read the same parameter slots. */
#include "runtime/train/session.h"

#include <string.h>

#include "runtime/train/control.h"
#include "runtime/train/painted.h"

mpr_status mpri_copy_strings(Arena *a, const char *const *list, const char *const **out, Err *err)
{
    *out = NULL;
    if (!list) return MPR_OK;
    size_t n = 0;
    while (list[n]) n++;
    const char **copy = ARENA_ARRAY(a, const char *, n + 1);
    if (!copy) return mpri_err_nomem(err, (n + 1) * sizeof(*copy));
    for (size_t i = 0; i < n; i++)
        if (!(copy[i] = mpri_arena_strdup(a, list[i])))
            return mpri_err_nomem(err, strlen(list[i]) + 1);
    *out = copy;
    return MPR_OK;
}

static mpr_status copy_string(Arena *a, const char **s, Err *err)
{
    if (!*s) return MPR_OK;
    const char *copy = mpri_arena_strdup(a, *s);
    if (!copy) return mpri_err_nomem(err, strlen(*s) + 1);
    *s = copy;
    return MPR_OK;
}

static mpr_status copy_options(mpr_session *s, Err *err)
{
    mpr_session_options *o = &s->o;
    TRY(copy_string(&s->arena, &o->autocast_profile, err));
    TRY(copy_string(&s->arena, &o->loss, err));
    TRY(copy_string(&s->arena, &o->logits, err));
    TRY(copy_string(&s->arena, &o->labels, err));
    TRY(copy_string(&s->arena, &o->kernels, err));
    TRY(copy_string(&s->arena, &o->dump_after, err));
    TRY(mpri_copy_strings(&s->arena, o->keep_fp32, &o->keep_fp32, err));
    TRY(mpri_copy_strings(&s->arena, o->freeze, &o->freeze, err));
    return mpri_copy_strings(&s->arena, o->train_only, &o->train_only, err);
}

static mpr_status check_options(const mpr_session_options *o, Err *err)
{
    DType types[2] = {o->autocast, o->eval_autocast};
    for (int i = 0; i < 2; i++)
        if (types[i] != MPR_DTYPE_NONE && !mpri_dtype_is_low(types[i])) {
            mpri_err_set(err, MPR_E_USAGE,
                         "autocast type %s; allowed are float16, bfloat16 or none",
                         mpri_dtype_long(types[i]));
            return mpri_err_advice(err, "use MPR_FLOAT16, MPR_BFLOAT16 or MPR_DTYPE_NONE");
        }
    if (!(o->label_smoothing >= 0 && o->label_smoothing < 1)) {
        mpri_err_set(err, MPR_E_USAGE, "label-smoothing-factor is %g; allowed are 0 <= factor < 1",
                     (double)o->label_smoothing);
        return mpri_err_advice(err, "0.1 is a usual value");
    }
    if (o->has_dropout && !(o->dropout >= 0 && o->dropout < 1)) {
        mpri_err_set(err, MPR_E_USAGE, "dropout is %g; allowed is [0, 1)", (double)o->dropout);
        return mpri_err_advice(err, "0.1 is a usual value");
    }
    if (o->kernels && strcmp(o->kernels, "ref") && strcmp(o->kernels, "auto")) {
        mpri_err_set(err, MPR_E_USAGE, "kernels '%s' is unknown; allowed are auto and ref",
                     mpri_err_name(o->kernels));
        return mpri_err_advice(err, "leave it out to use the fastest kernels");
    }
    return MPR_OK;
}

static const GraphOutput *find_output(const Graph *g, const char *name)
{
    for (int i = 0; i < g->n_outputs; i++)
        if (!strcmp(g->outputs[i].name, name)) return &g->outputs[i];
    return NULL;
}

/* "auto": a scalar output named loss, else cross-entropy for integer labels and mse for float
 * labels. */
static void resolve_loss(mpr_session *s)
{
    const char *loss = s->o.loss;
    s->loss = !loss || !strcmp(loss, "none") ? NULL : loss;
    if (!s->loss || strcmp(loss, "auto")) return;
    const GraphOutput *out = find_output(s->model->m->graph, "loss");
    const char *why = "the labels are integers";
    if (out && out->value->shape.rank <= 0 && mpri_dtype_is_float(out->value->dtype)) {
        s->loss = "output:loss";
        why = "the model has a scalar output of that name";
    } else if (mpri_dtype_is_float(s->o.labels_dtype)) {
        s->loss = "mse";
        why = "the labels are floats";
    } else {
        s->loss = "cross-entropy";
    }
    mpri_log(&s->ctx->log, MPR_LOG_NOTICE, "loss auto: %s, because %s", s->loss, why);
}

static void fill_pass_options(mpr_session *s, SessionMode mode)
{
    PassOptions *p = &s->pass[mode];
    bool train = mode == MODE_TRAIN;
    *p = (PassOptions){
        .loss = s->loss,
        .logits = s->o.logits,
        .labels = mpri_session_labels(s),
        .ignore_index = s->ignore_index,
        .label_smoothing = s->o.label_smoothing,
        .count_labels = train && s->o.count_labels,
        .autocast = s->painted[mode] ? MPR_DTYPE_NONE : s->autocast[mode],
        .profile = s->profile[mode],
        .training = train && s->loss,
        .has_dropout = s->o.has_dropout,
        .dropout = s->o.dropout,
        .batch_norm = !s->loss ? BN_OF_FILE
                      : train  ? BN_TRAIN
                               : BN_EVALUATE,
        .bn_train = s->o.bn_train,
        .keep_copies = s->device->fused_update,
        .dump_after = s->o.dump_after,
    };
}

/* Decisions that the model carries hold for both modes, as the Casts of a converted model would,
 * unless a type is asked for: then evaluation has its own. */
static mpr_status load_profiles(mpr_session *s, Err *err)
{
    const char *name = s->o.autocast_profile;
    DType *t = s->autocast;
    t[MODE_TRAIN] = s->o.autocast;
    t[MODE_EVAL] = s->o.eval_autocast;
    TRY(mpri_painted_profile(s->model, name, s->o.keep_fp32, &s->arena, &t[MODE_TRAIN],
                             &s->profile[MODE_TRAIN], err));
    TRY(mpri_painted_open(s->model, s->profile[MODE_TRAIN], t[MODE_TRAIN],
                          &s->painted[MODE_TRAIN], err));
    if (t[MODE_EVAL] == MPR_DTYPE_NONE && s->o.autocast != MPR_DTYPE_NONE) return MPR_OK;
    if (t[MODE_EVAL] != MPR_DTYPE_NONE)
        TRY(mpri_painted_profile(s->model, name, s->o.keep_fp32, &s->arena, &t[MODE_EVAL],
                                 &s->profile[MODE_EVAL], err));
    if (t[MODE_EVAL] != MPR_DTYPE_NONE && t[MODE_EVAL] != t[MODE_TRAIN])
        return mpri_painted_open(s->model, s->profile[MODE_EVAL], t[MODE_EVAL],
                                 &s->painted[MODE_EVAL], err);
    s->painted[MODE_EVAL] = s->painted[MODE_TRAIN];
    return MPR_OK;
}

static mpr_status check_rules_matched(mpr_session *s, Err *err)
{
    if (!s->profile[MODE_TRAIN]) return MPR_OK;
    const char *const *left = mpri_profile_unmatched(s->profile[MODE_TRAIN], &s->arena);
    if (!left || !left[0]) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "precision rule '%s' matches no node of the model",
                 mpri_err_name(left[0]));
    return mpri_err_advice(err, "operators and node names are listed by mpr-inspect --precision");
}

static mpr_status check_operators(const mpr_session *s, const Graph *g, Err *err)
{
    return s->loss ? mpri_import_check_trainable(g, err) : mpri_import_check_supported(g, err);
}

/* A pass that failed for want of a shape, and a model that has nothing to train, may have an
 * operator that cannot be run or trained: then that is the finding. */
static mpr_status tell_cause(const mpr_session *s, const Graph *source, Err *err)
{
    Err cause;
    mpri_err_clear(&cause);
    if (err->code != MPR_E_NOMEM &&
        check_operators(s, source, &cause) != MPR_OK &&
        cause.code == MPR_E_UNSUPPORTED_OP)
        *err = cause;
    return err->code;
}

mpr_status mpri_session_prepare_as(mpr_session *s, const PassOptions *o, const Log *log,
                                   const Graph *source, Arena *arena, Graph **out, Err *err)
{
    Graph *g = mpri_graph_clone(source, arena);
    if (!g) return mpri_err_nomem(err, 0);
    if (mpri_session_select_params(s, g, err) != MPR_OK) return tell_cause(s, source, err);
    TRY(mpri_graph_make_param_slots(g, err));
    Arena scratch;
    mpri_arena_init(&scratch, &s->ctx->alloc, 0);
    PassCtx ctx = {
        .scratch = &scratch,
        .alloc = &s->ctx->alloc,
        .log = log,
        .o = o,
        .ref = &s->device->kernels,
    };
    mpr_status status = mpri_passes_run(&ctx, STAGE_PREPARE, g, err);
    mpri_arena_destroy(&scratch);
    if (status != MPR_OK) return tell_cause(s, source, err);
    TRY(check_operators(s, g, err));
    *out = g;
    return MPR_OK;
}

mpr_status mpri_session_prepare(mpr_session *s, SessionMode mode, const Graph *source, Arena *arena,
                                Graph **out, Err *err)
{
    TRY(mpri_session_prepare_as(s, &s->pass[mode], &s->ctx->log, source, arena, out, err));
    mpri_painted_explain(s->painted[mode], *out);
    return MPR_OK;
}

/* Trip counts that follow from sizes are known once data are bound. Until then every size is 2:
 * what is trained does not depend on how often it is used. */
static mpr_status open_graphs(mpr_session *s, Err *err)
{
    for (SessionMode mode = 0; mode < SESSION_MODES; mode++) {
        mpr_model *model = mpri_session_model(s, mode);
        if (mode == MODE_EVAL && model == mpri_session_model(s, MODE_TRAIN))
            s->stand_in[mode] = s->stand_in[MODE_TRAIN];
        else if (model->m->n_open)
            TRY(mpri_control_decide(model, &s->device->kernels, NULL, 0, MPRI_STAND_IN,
                                    &s->stand_in[mode], err));
        const Graph *source = s->stand_in[mode] ? s->stand_in[mode]->graph : model->m->graph;
        fill_pass_options(s, mode);
        TRY(mpri_session_prepare(s, mode, source, &s->arena, &s->graph[mode], err));
        if (mode == MODE_TRAIN) TRY(check_rules_matched(s, err));
    }
    return MPR_OK;
}

/* Masters are float32, whatever the file stores. */
static void tell_masters(const mpr_session *s)
{
    const Graph *g = s->graph[MODE_TRAIN];
    DType type = MPR_DTYPE_NONE;
    int n = 0;
    for (int i = 0; i < s->n_params; i++) {
        DType t = g->params[s->params[i].index].file_dtype;
        if (!mpri_dtype_is_low(t)) continue;
        type = t;
        n++;
    }
    if (s->loss && n)
        mpri_log(&s->ctx->log, MPR_LOG_NOTICE,
                 "%d of %d trained tensors are %s in the file: their masters and the optimizer are "
                 "float32", n, s->n_params, mpri_dtype_long(type));
}

static mpr_status list_inputs(mpr_session *s, Err *err)
{
    const Graph *g = s->graph[MODE_TRAIN];
    s->inputs = ARENA_ARRAY(&s->arena, SessionInput, g->n_inputs + 1);
    if (!s->inputs) return mpri_err_nomem(err, 0);
    for (int i = 0; i < g->n_inputs; i++) {
        const Value *v = g->inputs[i].value;
        s->inputs[i] = (SessionInput){.name = v->name, .dtype = v->dtype, .declared = v->shape};
    }
    s->n_inputs = g->n_inputs;
    return MPR_OK;
}

static mpr_status open_session(mpr_session *s, Err *err)
{
    TRY(copy_options(s, err));
    TRY(check_options(&s->o, err));
    if (s->o.kernels && !strcmp(s->o.kernels, "auto")) s->o.kernels = NULL;
    s->ignore_index = s->o.has_ignore_index ? s->o.ignore_index : -100;
    resolve_loss(s);
    TRY(mpri_context_device(s->ctx, &s->device, err));
    TRY(mpri_store_init(&s->store, s->device, err));
    s->store_ready = true;
    TRY(load_profiles(s, err));
    TRY(open_graphs(s, err));
    TRY(mpri_session_list_params(s, s->graph[MODE_TRAIN], err));
    tell_masters(s);
    TRY(list_inputs(s, err));
    return mpri_store_add_graph(&s->store, s->graph[MODE_TRAIN], err);
}

mpr_status mpri_session_open(mpr_model *model, const mpr_session_options *options,
                             mpr_session **out, Err *err)
{
    *out = NULL;
    mpr_session_options o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_session_options", err));
    mpr_session *s = CONTEXT_NEW(model->ctx, mpr_session);
    if (!s) return mpri_err_nomem(err, sizeof(*s));
    s->ctx = model->ctx;
    s->model = model;
    s->o = o;
    s->loss_divisor = 1;
    mpri_arena_init(&s->arena, &s->ctx->alloc, 0);
    mpri_handle_init(&s->h, HANDLE_SESSION, NULL);
    mpr_status status = open_session(s, err);
    if (status != MPR_OK) {
        mpri_session_close(s);
        return mpri_err_where(err, "%s", mpri_err_name(model->m->path));
    }
    *out = s;
    return MPR_OK;
}

void mpri_session_close(mpr_session *s)
{
    if (!s) return;
    const Alloc *alloc = &s->ctx->alloc;
    mpri_session_plans_free(s);
    while (s->sources) {
        SessionSource *source = s->sources;
        s->sources = source->next;
        mpri_import_destroy(source->m, alloc);
        mpri_free(alloc, source);
    }
    if (s->stand_in[MODE_EVAL] != s->stand_in[MODE_TRAIN])
        mpri_import_destroy(s->stand_in[MODE_EVAL], alloc);
    mpri_import_destroy(s->stand_in[MODE_TRAIN], alloc);
    if (s->painted[MODE_EVAL] != s->painted[MODE_TRAIN]) mpri_model_destroy(s->painted[MODE_EVAL]);
    mpri_model_destroy(s->painted[MODE_TRAIN]);
    for (int i = 0; i < s->n_inputs; i++) mpri_free(alloc, s->inputs[i].data);
    mpri_window_free(s);
    mpri_free(alloc, s->fetch);
    if (s->store_ready) mpri_store_destroy(&s->store);
    mpri_device_destroy(s->device);
    mpri_arena_destroy(&s->arena);
    mpri_handle_end(&s->h);
    mpri_free(alloc, s);
}
