/* Parameters of a session: which are trained, their FP32 masters, their gradient buffers, and
 * export.
 *
 * A gradient buffer without contents is not zeroed but marked absent: the next backward overwrites
 * it. */
#include "runtime/train/session.h"
#include "runtime/train/optimizer.h"
#include "runtime/train/scaler.h"

#include <stdio.h>
#include <string.h>

/* By any of its names: in the file, among people, of the tensors tied to it. */
static bool matches(const char *glob, const Param *p)
{
    if (mpri_glob(glob, p->name) || (p->public_name && mpri_glob(glob, p->public_name)))
        return true;
    for (int i = 0; i < p->n_copies; i++)
        if (mpri_glob(glob, p->copies[i].name)) return true;
    return false;
}

static mpr_status no_match(const char *option, const char *glob, const Graph *g, Arena *a, Err *err)
{
    const char **names = ARENA_ARRAY(a, const char *, 2 * g->n_params + 1);
    size_t n = 0;
    for (int i = 0; names && i < g->n_params; i++) {
        names[n++] = g->params[i].name;
        if (g->params[i].public_name) names[n++] = g->params[i].public_name;
    }
    const char *near = names ? mpri_nearest(glob, names, n) : NULL;
    mpri_err_set(err, MPR_E_USAGE, "%s '%s' matches none of the %d parameters", option,
                 mpri_err_name(glob), g->n_params);
    if (near) return mpri_err_advice(err, "did you mean '%s'?", mpri_err_name(near));
    return mpri_err_advice(err, "list the parameters with mpr-inspect --params");
}

/* A glob that matches no parameter is an error, so that a typing mistake never trains the wrong
 * part. */
static mpr_status check_globs(const char *option, const char *const *globs, const Graph *g,
                              Arena *a, Err *err)
{
    for (; globs && *globs; globs++) {
        bool hit = false;
        for (int i = 0; i < g->n_params && !hit; i++) hit = matches(*globs, &g->params[i]);
        if (!hit) return no_match(option, *globs, g, a, err);
    }
    return MPR_OK;
}

static bool any_match(const char *const *globs, const Param *p)
{
    for (; globs && *globs; globs++)
        if (matches(*globs, p)) return true;
    return false;
}

/* Named in full, which also trains what the parameter rule takes for a buffer. */
static bool any_name(const char *const *globs, const Param *p)
{
    for (; globs && *globs; globs++)
        if (!strcmp(*globs, p->name) || !strcmp(*globs, p->public_name)) return true;
    return false;
}

/* With the reasons of the first few, which name the nodes that stop the way. */
static mpr_status nothing_to_train(const Graph *g, Err *err)
{
    char reasons[1024] = "";
    for (int i = 0; i < g->n_params && i < 3; i++) {
        size_t used = strlen(reasons);
        snprintf(reasons + used, sizeof(reasons) - used, "%s'%s': %s", i ? "; " : ": ",
                 mpri_err_name(g->params[i].name),
                 g->params[i].reason ? g->params[i].reason : "not trained");
    }
    mpri_err_set(err, MPR_E_NOT_DIFFERENTIABLE,
                 "the model has no trainable parameter (%d float initializers)%s", g->n_params,
                 reasons);
    return mpri_err_advice(err, "mpr-inspect --params tells why each tensor is not trained; export "
                                "with weights as initializers");
}

mpr_status mpri_session_select_params(mpr_session *s, Graph *g, Err *err)
{
    TRY(check_globs("freeze", s->o.freeze, g, &s->arena, err));
    TRY(check_globs("train-only", s->o.train_only, g, &s->arena, err));
    int trainable = 0, trained = 0;
    for (int i = 0; i < g->n_params; i++) {
        Param *p = &g->params[i];
        if (p->buffer && any_name(s->o.train_only, p)) {
            p->trained = true;
            p->reason = "named by train-only";
        }
        if (!p->trained) continue;
        trainable++;
        if (s->o.train_only && !any_match(s->o.train_only, p)) {
            p->trained = false;
            p->reason = "not named by train-only";
        } else if (any_match(s->o.freeze, p)) {
            p->trained = false;
            p->reason = "frozen";
        }
        trained += p->trained;
    }
    if (!s->loss || trained) return MPR_OK;
    if (trainable) {
        mpri_err_set(err, MPR_E_NOT_DIFFERENTIABLE,
                     "all %d trainable parameters are frozen by freeze or train-only", trainable);
        return mpri_err_advice(err, "leave at least one parameter to train");
    }
    return nothing_to_train(g, err);
}

mpr_status mpri_graph_make_param_slots(Graph *g, Err *err)
{
    for (int i = 0; i < g->n_params; i++) {
        Param *p = &g->params[i];
        Value *old = p->value;
        if (!p->trained || !old || old->kind != VAL_CONST) continue;
        Text name;
        mpri_text_init(&name, g->arena->alloc);
        mpri_text_add(&name, "param:%s", p->name);
        const char *slot_name = name.failed ? NULL : mpri_intern(g->names, name.text);
        mpri_text_free(&name);
        Value *slot = slot_name ? mpri_value_slot(g, slot_name, SLOT_PARAM, MPR_FLOAT32,
                                                  &old->shape, i, old->data, old->dtype)
                                : NULL;
        if (!slot) return mpri_err_nomem(err, 0);
        Value *use = slot;
        if (old->dtype != MPR_FLOAT32) {
            Builder b = {.g = g, .before = g->first, .scope = p->name, .err = err};
            use = mpri_build_cast(&b, slot, old->dtype);
            if (!use) return b.failed != MPR_OK ? b.failed : mpri_err_nomem(err, 0);
        }
        mpri_value_replace(g, old, use);
        slot->param = i;
        p->value = slot;
    }
    return MPR_OK;
}

static mpr_status list_buffers(mpr_session *s, const Graph *g, Err *err)
{
    static const char prefix[] = "buffer:";
    s->buffers = ARENA_ARRAY(&s->arena, SessionBuffer, g->n_slots + 1);
    if (!s->buffers) return mpri_err_nomem(err, 0);
    for (int i = 0; i < g->n_slots; i++) {
        const Slot *slot = &g->slots[i];
        if (slot->cls != SLOT_STATE || strncmp(slot->name, prefix, sizeof(prefix) - 1)) continue;
        SessionBuffer *b = &s->buffers[s->n_buffers];
        *b = (SessionBuffer){.name = slot->name + sizeof(prefix) - 1, .slot = slot->name};
        if (!mpri_size_elements(slot->shape.rank, slot->shape.d, &b->n))
            return mpri_err_set(err, MPR_E_SHAPE, "'%s' has no constant shape",
                                mpri_err_name(b->name));
        s->n_buffers++;
    }
    return MPR_OK;
}

mpr_status mpri_session_list_params(mpr_session *s, const Graph *g, Err *err)
{
    s->params = ARENA_ARRAY(&s->arena, SessionParam, g->n_params + 1);
    if (!s->params) return mpri_err_nomem(err, 0);
    TRY(list_buffers(s, g, err));
    for (int i = 0; i < g->n_params; i++) {
        const Param *p = &g->params[i];
        if (!p->trained || !p->value || p->value->kind != VAL_SLOT) continue;
        SessionParam *sp = &s->params[s->n_params++];
        sp->index = i;
        sp->name = p->name;
        sp->public_name = p->public_name ? p->public_name : p->name;
        sp->slot = mpri_arena_printf(&s->arena, "param:%s", p->name);
        sp->grad_slot = mpri_arena_printf(&s->arena, "grad:%s", p->name);
        sp->shape = p->value->shape;
        if (!sp->slot || !sp->grad_slot) return mpri_err_nomem(err, 0);
        if (!mpri_size_elements(sp->shape.rank, sp->shape.d, &sp->n))
            return mpri_err_set(err, MPR_E_SHAPE, "parameter '%s' has no constant shape",
                                mpri_err_name(p->name));
    }
    return MPR_OK;
}

mpr_status mpri_session_find_param(mpr_session *s, const char *name, SessionParam **out, Err *err)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < s->n_params; i++)
            if (!strcmp(pass ? s->params[i].public_name : s->params[i].name, name)) {
                *out = &s->params[i];
                return MPR_OK;
            }
    const char *near = NULL;
    Arena scratch;
    mpri_arena_init(&scratch, &s->ctx->alloc, 0);
    const char **names = ARENA_ARRAY(&scratch, const char *, s->n_params + 1);
    for (int i = 0; names && i < s->n_params; i++) names[i] = s->params[i].public_name;
    if (names) near = mpri_nearest(name, names, (size_t)s->n_params);
    mpri_err_set(err, MPR_E_USAGE, "no trained parameter is named '%s' (there are %d)",
                 mpri_err_name(name), s->n_params);
    if (near) mpri_err_advice(err, "did you mean '%s'?", mpri_err_name(near));
    mpri_err_advice(err, "list the parameters with mpr-inspect --params");
    mpri_arena_destroy(&scratch);
    return MPR_E_USAGE;
}

void mpri_param_describe(const Param *p, mpr_parameter_info *out)
{
    memset(out, 0, sizeof(*out));
    out->name = p->name;
    out->public_name = p->public_name ? p->public_name : p->name;
    out->file_dtype = p->file_dtype;
    out->trained = p->trained;
    out->reason = p->reason ? p->reason : "";
    out->rank = p->value ? p->value->shape.rank : 0;
    for (int i = 0; i < out->rank; i++) out->dims[i] = p->value->shape.d[i];
}

static mpr_status check_count(const SessionParam *p, int64_t count, Err *err)
{
    if (count == p->n) return MPR_OK;
    mpri_err_set(err, MPR_E_SHAPE, "parameter '%s' has %lld elements, %lld were given",
                 mpri_err_name(p->public_name), (long long)p->n, (long long)count);
    return mpri_err_advice(err, "pass the whole tensor");
}

mpr_status mpri_session_slot(mpr_session *s, const char *name, SlotClass cls, DType t,
                             const Shape *shape, int param, StoreSlot **out, Err *err)
{
    *out = mpri_store_find(&s->store, name);
    if (*out) return MPR_OK;
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    Intern *names = mpri_intern_create(&arena);
    Graph *g = names ? mpri_graph_create(&arena, names, mpri_op_table()) : NULL;
    const char *slot_name = g ? mpri_intern(names, name) : NULL;
    mpr_status status = MPR_OK;
    if (!slot_name || !mpri_value_slot(g, slot_name, cls, t, shape, param, NULL, t))
        status = mpri_err_nomem(err, 0);
    if (status == MPR_OK) status = mpri_store_add_graph(&s->store, g, err);
    mpri_arena_destroy(&arena);
    TRY(status);
    *out = mpri_store_find(&s->store, name);
    return *out ? MPR_OK : mpri_err_set(err, MPR_E_INTERNAL, "slot '%s' was not made", name);
}

static mpr_status param_slot(mpr_session *s, SessionParam *p, StoreSlot **out, Err *err)
{
    return mpri_session_slot(s, p->slot, SLOT_PARAM, MPR_FLOAT32, &p->shape, p->index, out, err);
}

mpr_status mpri_session_settle_grads(mpr_session *s, Err *err)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].owner) TRY(mpri_optimizer_settle(s->params[i].owner, err));
    return MPR_OK;
}

static mpr_status grad_slot(mpr_session *s, SessionParam *p, StoreSlot **out, Err *err)
{
    return mpri_session_slot(s, p->grad_slot, SLOT_GRAD, MPR_FLOAT32, &p->shape, p->index, out,
                             err);
}

mpr_status mpri_session_param_get(mpr_session *s, const char *name, float *data, int64_t count,
                                  Err *err)
{
    SessionParam *p;
    StoreSlot *slot;
    TRY(mpri_session_find_param(s, name, &p, err));
    TRY(check_count(p, count, err));
    TRY(param_slot(s, p, &slot, err));
    return s->device->copy_out(s->device, data, slot->data, slot->bytes, err);
}

mpr_status mpri_session_param_set(mpr_session *s, const char *name, const float *data,
                                  int64_t count, Err *err)
{
    SessionParam *p;
    StoreSlot *slot;
    TRY(mpri_session_find_param(s, name, &p, err));
    TRY(check_count(p, count, err));
    TRY(param_slot(s, p, &slot, err));
    s->copies_stale = true;
    return s->device->copy_in(s->device, slot->data, data, slot->bytes, err);
}

mpr_status mpri_session_grad_get(mpr_session *s, const char *name, float *data, int64_t count,
                                 Err *err)
{
    SessionParam *p;
    StoreSlot *slot;
    TRY(mpri_session_find_param(s, name, &p, err));
    TRY(check_count(p, count, err));
    TRY(mpri_session_settle_grads(s, err));
    if (!p->present) {
        memset(data, 0, (size_t)count * sizeof(float));
        return MPR_OK;
    }
    TRY(grad_slot(s, p, &slot, err));
    return s->device->copy_out(s->device, data, slot->data, slot->bytes, err);
}

bool mpri_session_scales(const mpr_session *s)
{
    for (const mpr_scaler *sc = s->scalers; sc; sc = sc->next)
        if (mpri_scaler_enabled(sc)) return true;
    return false;
}

static void mark_written(mpr_session *s, SessionParam *p)
{
    p->present = true;
    p->unscaled = false;
    p->scaled = mpri_session_scales(s);
    p->by = NULL;
    p->generation = s->generation;
}

mpr_status mpri_session_grad_set(mpr_session *s, const char *name, const float *data, int64_t count,
                                 Err *err)
{
    SessionParam *p;
    StoreSlot *slot;
    TRY(mpri_session_find_param(s, name, &p, err));
    TRY(check_count(p, count, err));
    TRY(mpri_session_settle_grads(s, err));
    TRY(grad_slot(s, p, &slot, err));
    TRY(s->device->copy_in(s->device, slot->data, data, slot->bytes, err));
    mark_written(s, p);
    return MPR_OK;
}

mpr_status mpri_session_grad_add(mpr_session *s, const char *name, const float *data, int64_t count,
                                 Err *err)
{
    SessionParam *p;
    StoreSlot *slot;
    TRY(mpri_session_find_param(s, name, &p, err));
    TRY(check_count(p, count, err));
    if (!p->present) return mpri_session_grad_set(s, name, data, count, err);
    TRY(mpri_scaler_check_write(s, p, err));
    TRY(mpri_session_settle_grads(s, err));
    TRY(grad_slot(s, p, &slot, err));
    float *sum = mpri_alloc(&s->ctx->alloc, slot->bytes + 1, 64);
    if (!sum) return mpri_err_nomem(err, slot->bytes);
    mpr_status status = s->device->copy_out(s->device, sum, slot->data, slot->bytes, err);
    for (int64_t i = 0; status == MPR_OK && i < count; i++) sum[i] += data[i];
    if (status == MPR_OK) status = s->device->copy_in(s->device, slot->data, sum, slot->bytes, err);
    mpri_free(&s->ctx->alloc, sum);
    if (status == MPR_OK) p->generation = s->generation;
    return status;
}

mpr_status mpri_session_zero_grad(mpr_session *s, Err *err)
{
    (void)err;
    for (int i = 0; i < s->n_params; i++) {
        if (s->params[i].owner) s->params[i].owner->kept = false;
        s->params[i].present = s->params[i].scaled = s->params[i].unscaled = false;
        s->params[i].generation = s->generation;
    }
    return MPR_OK;
}

/* ---- what is saved ---- */

mpr_status mpri_session_saved(const mpr_session *s, Arena *arena, const char *const **names,
                              const char *const **slots, int *n, Err *err)
{
    *n = s->n_params + s->n_buffers;
    const char **name = ARENA_ARRAY(arena, const char *, *n + 1),
               **slot = ARENA_ARRAY(arena, const char *, *n + 1);
    if (!name || !slot) return mpri_err_nomem(err, 0);
    for (int i = 0; i < s->n_params; i++) {
        name[i] = s->params[i].name;
        slot[i] = s->params[i].slot;
    }
    for (int i = 0; i < s->n_buffers; i++) {
        name[s->n_params + i] = s->buffers[i].name;
        slot[s->n_params + i] = s->buffers[i].slot;
    }
    *names = name;
    *slots = slot;
    return MPR_OK;
}

static mpr_status fill_patches(mpr_session *s, Arena *arena, WeightPatch **out, int *n, Err *err)
{
    const char *const *names, *const *slots;
    TRY(mpri_session_saved(s, arena, &names, &slots, n, err));
    WeightPatch *patches = ARENA_ARRAY(arena, WeightPatch, *n + 1);
    if (!patches) return mpri_err_nomem(err, 0);
    for (int i = 0; i < s->n_params; i++) {
        StoreSlot *slot;
        TRY(param_slot(s, &s->params[i], &slot, err));
    }
    for (int i = 0; i < *n; i++) {
        const StoreSlot *slot = mpri_store_find(&s->store, slots[i]);
        if (!slot) return mpri_err_set(err, MPR_E_INTERNAL, "slot '%s' does not exist", slots[i]);
        float *host = mpri_arena_alloc(arena, slot->bytes);
        if (!host) return mpri_err_nomem(err, slot->bytes);
        TRY(s->device->copy_out(s->device, host, slot->data, slot->bytes, err));
        patches[i] = (WeightPatch){
            .name = names[i], .data = host, .n = (int64_t)(slot->bytes / sizeof(float))};
    }
    *out = patches;
    return MPR_OK;
}

/* The exporter writes every storage place of a tied tensor; one patch per parameter is enough. */
mpr_status mpri_session_export(mpr_session *s, const char *path, Err *err)
{
    Arena arena;
    WeightPatch *patches;
    int n;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    mpr_status status = fill_patches(s, &arena, &patches, &n, err);
    if (status == MPR_OK)
        status = mpri_export_file(s->model->m, path, patches, n, &s->ctx->alloc, err);
    mpri_arena_destroy(&arena);
    return status;
}
