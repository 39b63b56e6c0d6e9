/* Saving a checkpoint: three files in a folder that appears as a whole. */
#include "runtime/train/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "passes/profile.h"
#include "runtime/train/folder.h"
#include "runtime/train/json.h"
#include "runtime/train/safetensors.h"

#if MPR_MINIMAL

mpr_status mpri_checkpoint_save(mpr_prepared *p, const char *directory, const char *extra, Err *err)
{
    (void)p, (void)directory, (void)extra;
    mpri_err_set(err, MPR_E_USAGE, "this build cannot write checkpoints");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

#else

#include <xxhash.h>

HashText mpri_hash_bytes(const void *bytes, size_t n)
{
    HashText t;
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    snprintf(t.hex, sizeof(t.hex), "%016llx%016llx", (unsigned long long)h.high64,
             (unsigned long long)h.low64);
    return t;
}

mpr_status mpri_hash_graph(const Graph *g, HashText *out, Err *err)
{
    Text t;
    mpri_text_init(&t, g->arena->alloc);
    for (const Node *n = g->first; n; n = n->next)
        mpri_text_add(&t, "%s %s\n", n->opaque_type ? n->opaque_type : n->op->name, n->name);
    for (int i = 0; i < g->n_params; i++) mpri_text_add(&t, "%s\n", g->params[i].name);
    mpr_status status = t.failed ? mpri_err_nomem(err, t.cap) : MPR_OK;
    *out = mpri_hash_bytes(t.text ? t.text : "", t.len);
    mpri_text_free(&t);
    return status;
}

mpr_status mpri_checkpoint_slots(const mpr_prepared *p, Arena *arena, const char *const **names,
                                 int *n, Err *err)
{
    const char *const *state;
    int count = mpri_optimizer_slots(p->opt, arena, &state, err);
    if (count < 0) return err->code;
    const char **all = ARENA_ARRAY(arena, const char *, count + p->s->n_params + 1);
    if (!all) return mpri_err_nomem(err, 0);
    for (int i = 0; i < count; i++) all[i] = state[i];
    for (int i = 0; i < p->s->n_params; i++)
        if (p->micro && p->s->params[i].present) all[count++] = p->s->params[i].grad_slot;
    *names = all;
    *n = count;
    return MPR_OK;
}

void mpri_checkpoint_precision(const mpr_session *s, char *buf, size_t size)
{
    const Profile *p = s->profile[MODE_TRAIN];
    if (!p) snprintf(buf, size, "float32");
    else snprintf(buf, size, "%s %s", mpri_dtype_long(s->autocast[MODE_TRAIN]), p->name);
}

/* Host copies of store slots as tensors, named by `names`. */
static mpr_status slot_tensors(mpr_session *s, const char *const *slots, int n, Arena *arena,
                               mpr_tensor **out, Err *err)
{
    mpr_tensor *t = ARENA_ARRAY(arena, mpr_tensor, n + 1);
    if (!t) return mpri_err_nomem(err, 0);
    TRY(mpri_session_settle_grads(s, err));
    for (int i = 0; i < n; i++) {
        const StoreSlot *slot = mpri_store_find(&s->store, slots[i]);
        if (!slot) return mpri_err_set(err, MPR_E_INTERNAL, "slot '%s' does not exist", slots[i]);
        void *host = mpri_arena_alloc(arena, slot->bytes);
        if (!host) return mpri_err_nomem(err, slot->bytes);
        TRY(s->device->copy_out(s->device, host, slot->data, slot->bytes, err));
        t[i] = (mpr_tensor){.data = host, .dtype = slot->dtype, .rank = slot->shape.rank};
        for (int d = 0; d < slot->shape.rank; d++) t[i].dims[d] = slot->shape.d[d];
    }
    *out = t;
    return MPR_OK;
}

static mpr_status write_tensors(mpr_session *s, Folder *f, const char *file,
                                const char *const *slots, const char *const *names, int n,
                                Text *files, Err *err)
{
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    mpr_tensor *tensors = NULL;
    Text bytes;
    mpri_text_init(&bytes, &s->ctx->alloc);
    mpr_status status = slot_tensors(s, slots, n, &arena, &tensors, err);
    if (status == MPR_OK) status = mpri_safetensors_write(&bytes, n, names, tensors, err);
    mpri_arena_destroy(&arena);
    if (status == MPR_OK) status = mpri_folder_write(f, file, bytes.text, bytes.len, err);
    if (status == MPR_OK)
        mpri_text_add(files, "%s\"%s\": {\"bytes\": %zu, \"xxh128\": \"%s\"}",
                      files->len ? ", " : "", file, bytes.len,
                      mpri_hash_bytes(bytes.text, bytes.len).hex);
    mpri_text_free(&bytes);
    return status == MPR_OK && files->failed ? mpri_err_nomem(err, files->cap) : status;
}

static void put_parameters(Text *t, const mpr_session *s)
{
    mpri_text_put(t, "\"parameters\": [");
    for (int i = 0; i < s->n_params; i++) {
        const SessionParam *p = &s->params[i];
        mpri_text_put(t, i ? ", {\"name\": " : "{\"name\": ");
        mpri_json_string(t, p->name);
        mpri_text_put(t, ", \"shape\": [");
        for (int d = 0; d < p->shape.rank; d++)
            mpri_text_add(t, "%s%lld", d ? ", " : "", (long long)p->shape.d[d]);
        mpri_text_put(t, "]}");
    }
    mpri_text_put(t, "],\n");
}

static void put_position(Text *t, const mpr_prepared *p)
{
    const mpr_session *s = p->s;
    mpri_text_add(
        t,
        "\"step\": %lld, \"updates\": %lld, \"samples\": %lld, \"epoch\": %lld, \"batch\": %lld,\n",
        (long long)p->steps, (long long)p->updates, (long long)p->samples, (long long)p->epoch,
        (long long)p->batch);
    mpri_text_add(t, "\"window\": {\"micro\": %d, \"length\": %d, \"loss_sum\": ", p->micro,
                  p->length);
    mpri_json_f64(t, p->loss_sum);
    mpri_text_add(t, ", \"loss_bad\": %s, \"divisor\": %d, \"weight\": ",
                  p->loss_bad ? "true" : "false", p->divisor);
    mpri_json_f64(t, p->weight);
    mpri_text_put(t, ", \"labels\": ");
    mpri_json_f64(t, p->labels);
    mpri_text_add(t, ", \"mean\": \"%s\"},\n", p->o.mean_over_labels ? "labels" : "batches");
    if (p->data)
        mpri_text_add(t,
                      "\"data\": {\"rows\": %lld, \"batch_size\": %lld, \"shuffle\": %s, "
                      "\"drop_last\": %s, \"order_seed\": \"%llu\"},\n",
                      (long long)p->data->rows, (long long)p->data->o.batch_size,
                      p->data->o.shuffle ? "true" : "false",
                      p->data->o.drop_last ? "true" : "false", (unsigned long long)p->data->o.seed);
    mpri_text_add(t, "\"random\": {\"seed\": \"%llu\", \"forward\": \"%llu\"},\n",
                  (unsigned long long)s->o.seed, (unsigned long long)s->forward_count);
    if (!p->schedule) return;
    const Plateau *q = &p->schedule->plateau;
    mpri_text_put(t, "\"schedule\": {\"plateau_factor\": ");
    mpri_json_f64(t, q->factor);
    mpri_text_put(t, ", \"plateau_best\": ");
    mpri_json_f64(t, q->best);
    mpri_text_add(t, ", \"plateau_bad\": %lld, \"plateau_seen\": %s},\n", (long long)q->bad,
                  q->seen ? "true" : "false");
}

static mpr_status put_state(Text *t, mpr_prepared *p, const Text *files, const char *extra,
                            Err *err)
{
    const mpr_session *s = p->s;
    char *scaler, precision[300];
    HashText graph;
    TRY(mpri_hash_graph(s->model->m->graph, &graph, err));
    TRY(mpri_scaler_save(p->scaler, &scaler, err));
    mpri_checkpoint_precision(s, precision, sizeof(precision));
    mpri_text_add(t, "{\"format\": %d, \"mpr\": \"%s\", \"graph\": \"%s\",\n",
                  MPRI_CHECKPOINT_FORMAT, mpr_version(), graph.hex);
    put_parameters(t, s);
    mpri_text_add(t, "\"optimizer\": \"%s\", \"precision\": ", mpri_optimizer_name(p->opt));
    mpri_json_string(t, precision);
    mpri_text_add(t, ", \"cpu_kernel\": \"%s\",\n", s->device->isa_name ? s->device->isa_name : "");
    put_position(t, p);
    mpri_text_add(t, "\"scaler\": %s,\n\"trainer\": %s,\n\"files\": {%s},\n", scaler,
                  extra ? extra : "null", files->text ? files->text : "");
    mpri_free(&s->ctx->alloc, scaler);
    mpri_text_add(t, "\"xxh128\": \"%s\"}\n", mpri_hash_bytes(t->text ? t->text : "", t->len).hex);
    return t->failed ? mpri_err_nomem(err, t->len) : MPR_OK;
}

static mpr_status write_files(mpr_prepared *p, Folder *f, const char *extra, Err *err)
{
    mpr_session *s = p->s;
    Arena arena;
    mpri_arena_init(&arena, &s->ctx->alloc, 0);
    Text files, state;
    mpri_text_init(&files, &s->ctx->alloc);
    mpri_text_init(&state, &s->ctx->alloc);
    const char *const *slots, *const *names, *const *moments;
    int n_moments, n_saved;
    mpr_status status = mpri_session_saved(s, &arena, &names, &slots, &n_saved, err);
    if (status == MPR_OK) status = mpri_checkpoint_slots(p, &arena, &moments, &n_moments, err);
    if (status == MPR_OK)
        status = write_tensors(s, f, MPRI_WEIGHTS_FILE, slots, names, n_saved, &files, err);
    if (status == MPR_OK)
        status = write_tensors(s, f, MPRI_OPTIMIZER_FILE, moments, moments, n_moments, &files, err);
    if (status == MPR_OK) status = put_state(&state, p, &files, extra, err);
    if (status == MPR_OK)
        status = mpri_folder_write(f, MPRI_STATE_FILE, state.text, state.len, err);
    mpri_text_free(&files);
    mpri_text_free(&state);
    mpri_arena_destroy(&arena);
    return status;
}

mpr_status mpri_checkpoint_save(mpr_prepared *p, const char *directory, const char *extra, Err *err)
{
    Folder f;
    TRY(mpri_scaler_check_idle(p->scaler, err));
    TRY(mpri_folder_begin(&f, directory, err));
    mpr_status status = write_files(p, &f, extra, err);
    if (status != MPR_OK) {
        mpri_folder_abandon(&f);
        return status;
    }
    return mpri_folder_commit(&f, err);
}

#endif
