/* Loading a checkpoint: all files are read, their lengths and hashes checked, names and shapes
 * compared with the session, and only then anything is changed. */
#include "runtime/train/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "runtime/train/safetensors.h"

#if MPR_MINIMAL

static mpr_status absent(Err *err)
{
    mpri_err_set(err, MPR_E_USAGE, "this build cannot read checkpoints");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

mpr_status mpri_checkpoint_load(mpr_prepared *p, const char *directory, const CheckpointOptions *o,
                                char **extra, Err *err)
{
    (void)p, (void)directory, (void)o, (void)extra;
    return absent(err);
}

mpr_status mpri_checkpoint_load_weights(mpr_session *s, const char *directory, Err *err)
{
    (void)s, (void)directory;
    return absent(err);
}

#else

#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

typedef struct CheckpointFile {
    uint8_t *bytes;
    size_t n;
    SafeTensor *tensors;
    int n_tensors;
} CheckpointFile;

typedef struct Loader {
    mpr_session *s;
    const char *directory;
    Arena arena;
    json_t *root;
    uint8_t *state;
    CheckpointFile weights, optimizer;
    const CheckpointOptions *o;
    Err *err;
} Loader;

static mpr_status refuse(Loader *l, const char *file, const char *what)
{
    mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: %s", file, what);
    return mpri_err_advice(l->err,
                           "resume from an older checkpoint (last finds the newest whole one)");
}

/* MPR_E_IO of a file that is not there means a checkpoint that is not whole. */
static mpr_status read_file(Loader *l, const char *file, uint8_t **bytes, size_t *n)
{
    const char *path = mpri_arena_printf(&l->arena, "%s/%s", l->directory, file);
    if (!path) return mpri_err_nomem(l->err, 0);
    Err why;
    mpri_err_clear(&why);
    mpr_status status = mpri_read_file(&l->s->ctx->alloc, path, bytes, n, &why);
    if (status == MPR_E_IO) return refuse(l, file, why.message);
    if (status != MPR_OK) *l->err = why;
    return status;
}

/* All files that are not there, at once. */
static mpr_status check_files(Loader *l)
{
    static const char *const names[] = {MPRI_STATE_FILE, MPRI_WEIGHTS_FILE, MPRI_OPTIMIZER_FILE};
    char missing[128] = "";
    for (int i = 0; i < 3; i++) {
        struct stat st;
        const char *path = mpri_arena_printf(&l->arena, "%s/%s", l->directory, names[i]);
        if (!path) return mpri_err_nomem(l->err, 0);
        if (stat(path, &st) == 0) continue;
        strcat(missing, *missing ? ", " : "");
        strcat(missing, names[i]);
    }
    return *missing ? refuse(l, missing, "missing") : MPR_OK;
}

/* ---- state.json ---- */

static const char last_line[] = "\"xxh128\": \"%s\"}\n";

static mpr_status check_seal(Loader *l, const uint8_t *bytes, size_t n)
{
    char want[64];
    size_t seal = strlen(last_line) - 2 + 32;
    if (n < seal + 2) return refuse(l, MPRI_STATE_FILE, "it is empty or cut");
    snprintf(want, sizeof(want), last_line, mpri_hash_bytes(bytes, n - seal).hex);
    if (memcmp(bytes + n - seal, want, seal))
        return refuse(l, MPRI_STATE_FILE,
                      "its contents do not match the hash in its last line: it is damaged");
    return MPR_OK;
}

static mpr_status read_state(Loader *l)
{
    size_t n;
    TRY(read_file(l, MPRI_STATE_FILE, &l->state, &n));
    TRY(check_seal(l, l->state, n));
    json_error_t why;
    l->root = json_loadb((const char *)l->state, n, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(l->root)) return refuse(l, MPRI_STATE_FILE, "it is not a JSON object");
    const json_t *format = json_object_get(l->root, "format");
    if (!json_is_integer(format)) return refuse(l, MPRI_STATE_FILE, "'format' is missing");
    if (json_integer_value(format) == MPRI_CHECKPOINT_FORMAT) return MPR_OK;
    mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: format %lld; this program reads format %d",
                 MPRI_STATE_FILE, (long long)json_integer_value(format), MPRI_CHECKPOINT_FORMAT);
    return mpri_err_advice(l->err, "resume with the version of mpr that wrote it");
}

static mpr_status read_tensors(Loader *l, const char *file, CheckpointFile *f)
{
    const json_t *entry = json_object_get(json_object_get(l->root, "files"), file);
    const json_t *bytes = json_object_get(entry, "bytes");
    const char *hash = json_string_value(json_object_get(entry, "xxh128"));
    if (!json_is_integer(bytes) || !hash)
        return refuse(l, MPRI_STATE_FILE, "its list of files is not complete");
    TRY(read_file(l, file, &f->bytes, &f->n));
    if ((json_int_t)f->n != json_integer_value(bytes)) {
        mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: %zu bytes, %lld were saved", file, f->n,
                     (long long)json_integer_value(bytes));
        return mpri_err_advice(l->err,
                               "resume from an older checkpoint (last finds the newest whole one)");
    }
    if (strcmp(mpri_hash_bytes(f->bytes, f->n).hex, hash))
        return refuse(l, file, "its contents do not match the saved hash: it is damaged");
    Err why;
    mpri_err_clear(&why);
    mpr_status status = mpri_safetensors_parse(f->bytes, f->n, &l->arena, &f->tensors,
                                               &f->n_tensors, &why);
    if (status == MPR_E_NOMEM) *l->err = why;
    else if (status != MPR_OK) return refuse(l, file, why.message);
    return status;
}

static void loader_end(Loader *l)
{
    const Alloc *alloc = &l->s->ctx->alloc;
    json_decref(l->root);
    mpri_free(alloc, l->state);
    mpri_free(alloc, l->weights.bytes);
    mpri_free(alloc, l->optimizer.bytes);
    mpri_arena_destroy(&l->arena);
}

static mpr_status loader_begin(Loader *l, mpr_session *s, const char *directory, Err *err)
{
    *l = (Loader){.s = s, .directory = directory, .err = err};
    mpri_arena_init(&l->arena, &s->ctx->alloc, 0);
    struct stat st;
    if (stat(directory, &st) != 0 || !S_ISDIR(st.st_mode)) {
        mpri_err_set(err, MPR_E_CHECKPOINT, "there is no checkpoint folder '%s'",
                     mpri_err_name(directory));
        return mpri_err_advice(err, "name a checkpoint-N folder, or last");
    }
    TRY(check_files(l));
    TRY(read_state(l));
    TRY(read_tensors(l, MPRI_WEIGHTS_FILE, &l->weights));
    return read_tensors(l, MPRI_OPTIMIZER_FILE, &l->optimizer);
}

/* ---- comparing ---- */

static const SafeTensor *find_tensor(const CheckpointFile *f, const char *name)
{
    for (int i = 0; i < f->n_tensors; i++)
        if (!strcmp(f->tensors[i].name, name)) return &f->tensors[i];
    return NULL;
}

static void print_dims(char *buf, size_t size, int rank, const int64_t *dims)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < rank && n + 24 < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%lld", i ? "," : "", (long long)dims[i]);
    snprintf(buf + n, size - n, "]");
}

static mpr_status compare(Loader *l, const char *file, const CheckpointFile *f, const char *name,
                          const StoreSlot *slot)
{
    const SafeTensor *t = find_tensor(f, name);
    if (!t) {
        mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: there is no tensor '%s', which this run has",
                     file, mpri_err_name(name));
        return mpri_err_advice(
            l->err, "resume with the model, optimizer and trained parameters of the saved run");
    }
    bool same = t->dtype == slot->dtype && t->rank == slot->shape.rank && t->bytes == slot->bytes;
    for (int i = 0; same && i < t->rank; i++) same = t->dims[i] == slot->shape.d[i];
    if (same) return MPR_OK;
    char a[200], b[200];
    print_dims(a, sizeof(a), t->rank, t->dims);
    print_dims(b, sizeof(b), slot->shape.rank, slot->shape.d);
    mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: tensor '%s' is %s%s, this run has %s%s", file,
                 mpri_err_name(name), mpri_dtype_name(t->dtype), a, mpri_dtype_name(slot->dtype),
                 b);
    return mpri_err_advice(
        l->err, "resume with the model, optimizer and trained parameters of the saved run");
}

static mpr_status compare_count(Loader *l, const char *file, const CheckpointFile *f,
                                const char *const *names, int n)
{
    for (int i = 0; i < f->n_tensors && f->n_tensors > n; i++) {
        bool known = false;
        for (int k = 0; k < n && !known; k++) known = !strcmp(names[k], f->tensors[i].name);
        if (known) continue;
        mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: tensor '%s' belongs to nothing in this run",
                     file, mpri_err_name(f->tensors[i].name));
        return mpri_err_advice(
            l->err, "resume with the model, optimizer and trained parameters of the saved run");
    }
    return MPR_OK;
}

static mpr_status compare_weights(Loader *l)
{
    const char *const *names, *const *slots;
    int n;
    TRY(mpri_session_saved(l->s, &l->arena, &names, &slots, &n, l->err));
    for (int i = 0; i < n; i++) {
        const StoreSlot *slot = mpri_store_find(&l->s->store, slots[i]);
        if (!slot)
            return mpri_err_set(l->err, MPR_E_INTERNAL, "parameter '%s' has no slot",
                                mpri_err_name(names[i]));
        TRY(compare(l, MPRI_WEIGHTS_FILE, &l->weights, names[i], slot));
    }
    TRY(compare_count(l, MPRI_WEIGHTS_FILE, &l->weights, names, n));
    const char *graph = json_string_value(json_object_get(l->root, "graph"));
    HashText own;
    TRY(mpri_hash_graph(l->s->model->m->graph, &own, l->err));
    if (graph && !strcmp(graph, own.hex)) return MPR_OK;
    return refuse(l, MPRI_STATE_FILE, "it was saved for a model with other operators");
}

static mpr_status copy_in(Loader *l, const CheckpointFile *f, const char *name,
                          const StoreSlot *slot)
{
    const SafeTensor *t = find_tensor(f, name);
    return slot->bytes
               ? l->s->device->copy_in(l->s->device, slot->data, t->data, slot->bytes, l->err)
               : MPR_OK;
}

static mpr_status apply_weights(Loader *l)
{
    const char *const *names, *const *slots;
    int n;
    TRY(mpri_session_saved(l->s, &l->arena, &names, &slots, &n, l->err));
    l->s->copies_stale = true;
    for (int i = 0; i < n; i++)
        TRY(copy_in(l, &l->weights, names[i], mpri_store_find(&l->s->store, slots[i])));
    return MPR_OK;
}

/* ---- numbers ---- */

static mpr_status get_count(Loader *l, const json_t *object, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(object, key);
    int64_t n = -1;
    if (json_is_integer(v)) n = json_integer_value(v);
    else if (!json_is_string(v) || !mpri_parse_i64(json_string_value(v), &n)) n = -1;
    if (n < 0) {
        mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: '%s' is missing or no whole number",
                     MPRI_STATE_FILE, key);
        return mpri_err_advice(l->err, "resume from an older checkpoint");
    }
    *out = n;
    return MPR_OK;
}

static double get_real(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    double x = json_number_value(v);
    if (json_is_string(v) && !mpri_parse_f64(json_string_value(v), &x)) x = 0;
    return x;
}

/* Same rows, batch size and sampling, or the position means nothing; the seed of the order is
 * restored. */
static mpr_status compare_data(Loader *l, const mpr_prepared *p, int64_t *seed)
{
    const json_t *data = json_object_get(l->root, "data");
    int64_t rows, size;
    *seed = 0;
    if (!p->data || !json_is_object(data)) return MPR_OK;
    TRY(get_count(l, data, "rows", &rows));
    TRY(get_count(l, data, "batch_size", &size));
    const char *text = json_string_value(json_object_get(data, "order_seed"));
    *seed = (int64_t)strtoull(text ? text : "0", NULL, 10);
    bool same = json_is_true(json_object_get(data, "shuffle")) == p->data->o.shuffle &&
                json_is_true(json_object_get(data, "drop_last")) == p->data->o.drop_last;
    if (rows == p->data->rows && size == p->data->o.batch_size && same) return MPR_OK;
    mpri_err_set(
        l->err, MPR_E_CHECKPOINT,
        "%s: saved with %lld rows in batches of %lld%s, this run has %lld in batches of %lld",
        MPRI_STATE_FILE, (long long)rows, (long long)size, same ? "" : " and other sampling",
        (long long)p->data->rows, (long long)p->data->o.batch_size);
    return mpri_err_advice(l->err,
                           "resume with the data, batch size and sampling of the saved run");
}

/* ---- the loss scaler ---- */

static mpr_status restore_scaler(Loader *l, mpr_prepared *p)
{
    const json_t *state = json_object_get(l->root, "scaler");
    mpr_scaler *sc = p->scaler;
    const Log *log = &l->s->ctx->log;
    if (!json_is_object(state) || !json_object_size(state)) {
        if (l->o->fresh_scaler || sc->o.constant || sc->o.disabled) return MPR_OK;
        mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: the state of the loss scaler is missing",
                     MPRI_STATE_FILE);
        return mpri_err_advice(l->err, "start the scaler afresh with --fresh-scaler");
    }
    TRY(mpri_scaler_read(sc, l->err));
    bool constant = json_is_true(json_object_get(state, "constant"));
    bool load = constant == sc->o.constant && !l->o->fresh_scaler && !sc->o.disabled;
    if (!load) {
        if (sc->o.constant)
            mpri_log(
                log, MPR_LOG_NOTICE,
                "the saved dynamic loss scale is ignored: this run does not scale dynamically");
        else
            mpri_log(log, MPR_LOG_NOTICE, "the loss scaler starts afresh: %s",
                     constant ? "the saved run did not scale dynamically" : "as asked");
        sc->skips = json_integer_value(json_object_get(state, "skips"));
        sc->updates = json_integer_value(json_object_get(state, "updates"));
        return mpri_scaler_write(sc, l->err);
    }
    char *text = json_dumps(state, JSON_REAL_PRECISION(17));
    if (!text) return mpri_err_nomem(l->err, 0);
    float scale = sc->scale;
    bool keep = sc->o.constant;
    mpr_scaler_options o = sc->o;
    mpr_status status = mpri_scaler_load(sc, text, l->err);
    free(text);
    if (status == MPR_OK && keep) { /* a constant scale is what the options say */
        sc->o = o;
        sc->scale = scale;
        status = mpri_scaler_write(sc, l->err);
    }
    return status;
}

/* ---- all of it ---- */

static mpr_status compare_slots(Loader *l, mpr_prepared *p, const char *const *names, int n)
{
    for (int i = 0; i < n; i++) {
        const StoreSlot *slot = mpri_store_find(&l->s->store, names[i]);
        if (!slot)
            return mpri_err_set(l->err, MPR_E_INTERNAL, "slot '%s' does not exist", names[i]);
        TRY(compare(l, MPRI_OPTIMIZER_FILE, &l->optimizer, names[i], slot));
    }
    (void)p;
    return MPR_OK;
}

/* Gradients saved inside a window: their slots are made, their records set. */
static mpr_status restore_gradients(Loader *l, mpr_prepared *p, bool apply)
{
    for (int i = 0; i < l->s->n_params; i++) {
        SessionParam *sp = &l->s->params[i];
        StoreSlot *slot;
        if (!find_tensor(&l->optimizer, sp->grad_slot)) continue;
        TRY(mpri_session_slot(l->s, sp->grad_slot, SLOT_GRAD, MPR_FLOAT32, &sp->shape, sp->index,
                              &slot, l->err));
        TRY(compare(l, MPRI_OPTIMIZER_FILE, &l->optimizer, sp->grad_slot, slot));
        if (!apply) continue;
        TRY(copy_in(l, &l->optimizer, sp->grad_slot, slot));
        sp->present = true;
        sp->scaled = mpri_scaler_enabled(p->scaler);
        sp->by = NULL;
        sp->unscaled = false;
        sp->generation = l->s->generation;
    }
    return MPR_OK;
}

static void note_differences(Loader *l)
{
    char precision[300];
    const char *saved = json_string_value(json_object_get(l->root, "precision"));
    const char *kernel = json_string_value(json_object_get(l->root, "cpu_kernel"));
    const Log *log = &l->s->ctx->log;
    mpri_checkpoint_precision(l->s, precision, sizeof(precision));
    if (saved && strcmp(saved, precision))
        mpri_log(log, MPR_LOG_NOTICE, "the checkpoint was saved with precision %s, this run has %s",
                 mpri_err_name(saved), precision);
    if (kernel && l->s->device->isa_name && strcmp(kernel, l->s->device->isa_name))
        mpri_log(log, MPR_LOG_NOTICE,
                 "the checkpoint was saved with %s kernels, this machine has %s: results may "
                 "differ in the last bits",
                 mpri_err_name(kernel), l->s->device->isa_name);
}

typedef struct Position {
    int64_t steps, updates, samples, epoch, batch, micro, length, divisor, forward, order_seed;
    double loss_sum, weight, labels;
    bool loss_bad;
} Position;

/* What an open window weighs. Files of before have windows of equal micro-batches. */
static mpr_status read_weights(Loader *l, const mpr_prepared *p, const json_t *window, Position *at)
{
    const char *mean = json_string_value(json_object_get(window, "mean"));
    bool labels = mean && !strcmp(mean, "labels");
    at->divisor = at->length;
    at->weight = (double)at->micro;
    if (mean) {
        TRY(get_count(l, window, "divisor", &at->divisor));
        at->weight = get_real(window, "weight");
        at->labels = get_real(window, "labels");
    }
    if (!at->micro || labels == p->o.mean_over_labels) return MPR_OK;
    mpri_err_set(l->err, MPR_E_CHECKPOINT, "%s: the open window takes its mean over %s, this run "
                 "over %s", MPRI_STATE_FILE, labels ? "labels" : "batches",
                 labels ? "batches" : "labels");
    return mpri_err_advice(l->err, "resume with the accumulation-mean of the saved run");
}

static mpr_status read_position(Loader *l, const mpr_prepared *p, Position *at)
{
    const json_t *window = json_object_get(l->root, "window");
    TRY(get_count(l, l->root, "step", &at->steps));
    TRY(get_count(l, l->root, "updates", &at->updates));
    TRY(get_count(l, l->root, "samples", &at->samples));
    TRY(get_count(l, l->root, "epoch", &at->epoch));
    TRY(get_count(l, l->root, "batch", &at->batch));
    TRY(get_count(l, window, "micro", &at->micro));
    TRY(get_count(l, window, "length", &at->length));
    TRY(get_count(l, json_object_get(l->root, "random"), "forward", &at->forward));
    at->loss_sum = get_real(window, "loss_sum");
    at->loss_bad = json_is_true(json_object_get(window, "loss_bad"));
    TRY(read_weights(l, p, window, at));
    if (at->micro > INT32_MAX || at->length > INT32_MAX || at->divisor > INT32_MAX)
        return refuse(l, MPRI_STATE_FILE, "the window is out of range");
    return compare_data(l, p, &at->order_seed);
}

static void apply_position(Loader *l, mpr_prepared *p, const Position *at)
{
    p->steps = at->steps;
    p->updates = at->updates;
    p->samples = at->samples;
    p->epoch = at->epoch;
    p->batch = at->batch;
    p->micro = (int)at->micro;
    p->length = (int)at->length;
    p->divisor = (int)at->divisor;
    p->weight = at->weight;
    p->labels = at->labels;
    p->loss_sum = at->loss_sum;
    p->loss_bad = at->loss_bad;
    p->late.fresh = false;
    p->bound = false;
    l->s->forward_count = (uint64_t)at->forward;
    if (p->data && p->data->o.seed != (uint64_t)at->order_seed) {
        p->data->o.seed = (uint64_t)at->order_seed;
        p->data->order_epoch = -1;
    }
    const json_t *schedule = json_object_get(l->root, "schedule");
    if (!p->schedule || !json_is_object(schedule)) return;
    p->schedule->plateau.factor = get_real(schedule, "plateau_factor");
    p->schedule->plateau.best = get_real(schedule, "plateau_best");
    p->schedule->plateau.bad = json_integer_value(json_object_get(schedule, "plateau_bad"));
    p->schedule->plateau.seen = json_is_true(json_object_get(schedule, "plateau_seen"));
}

static mpr_status load(Loader *l, mpr_prepared *p, char **extra)
{
    const char *const *names;
    int n;
    Position at = {0};
    TRY(compare_weights(l));
    int micro = p->micro;
    p->micro = 0; /* list the optimizer's slots only */
    mpr_status status = mpri_checkpoint_slots(p, &l->arena, &names, &n, l->err);
    p->micro = micro;
    TRY(status);
    TRY(compare_slots(l, p, names, n));
    TRY(restore_gradients(l, p, false));
    TRY(read_position(l, p, &at));
    TRY(restore_scaler(l, p));
    TRY(apply_weights(l));
    for (int i = 0; i < n; i++)
        TRY(copy_in(l, &l->optimizer, names[i], mpri_store_find(&l->s->store, names[i])));
    TRY(mpri_session_zero_grad(l->s, l->err));
    TRY(restore_gradients(l, p, true));
    apply_position(l, p, &at);
    note_differences(l);
    const json_t *more = json_object_get(l->root, "trainer");
    if (!extra || !json_is_object(more)) return MPR_OK;
    char *text = json_dumps(more, JSON_REAL_PRECISION(17));
    *extra = text ? mpri_context_alloc(l->s->ctx, strlen(text) + 1) : NULL;
    if (*extra) strcpy(*extra, text);
    free(text);
    return *extra ? MPR_OK : mpri_err_nomem(l->err, 0);
}

mpr_status mpri_checkpoint_load(mpr_prepared *p, const char *directory, const CheckpointOptions *o,
                                char **extra, Err *err)
{
    static const CheckpointOptions defaults = {0};
    Loader l;
    if (extra) *extra = NULL;
    mpr_status status = loader_begin(&l, p->s, directory, err);
    l.o = o ? o : &defaults;
    if (status == MPR_OK) status = load(&l, p, extra);
    loader_end(&l);
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(directory));
    return status;
}

mpr_status mpri_checkpoint_load_weights(mpr_session *s, const char *directory, Err *err)
{
    Loader l;
    mpr_status status = loader_begin(&l, s, directory, err);
    if (status == MPR_OK) status = compare_weights(&l);
    if (status == MPR_OK) status = apply_weights(&l);
    loader_end(&l);
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(directory));
    return status;
}

#endif
