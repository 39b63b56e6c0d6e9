/* Data sets: files to arrays in the model's types, and batches of them.
 *
 * Everything is in memory; a batch is a contiguous piece when rows come in order, else it is
 * gathered. */
#include "runtime/train/dataset.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/rng.h"

#define ORDER_STREAM UINT64_C(0x6f72646572) /* random stream of the row order, plus the epoch */

/* ---- which array feeds which input ---- */

static bool is_labels(const mpr_dataset *d, const SessionInput *in)
{
    return !strcmp(in->name, mpri_session_labels(d->s));
}

static const char *mapped_key(const mpr_dataset *d, const char *input)
{
    size_t n = strlen(input);
    for (const char *const *m = d->o.inputs; m && *m; m++)
        if (!strncmp(*m, input, n) && (*m)[n] == '=') return *m + n + 1;
    return NULL;
}

static mpr_status check_mapping(mpr_dataset *d, Err *err)
{
    for (const char *const *m = d->o.inputs; m && *m; m++) {
        const char *equal = strchr(*m, '=');
        size_t n = equal ? (size_t)(equal - *m) : 0;
        bool known = false;
        for (int i = 0; i < d->s->n_inputs && !known; i++)
            known = n && strlen(d->s->inputs[i].name) == n && !strncmp(d->s->inputs[i].name, *m, n);
        if (known && equal[1]) continue;
        Text names;
        mpri_text_init(&names, &d->s->ctx->alloc);
        for (int i = 0; i < d->s->n_inputs; i++)
            mpri_text_add(&names, "%s'%s'", i ? ", " : "", mpri_err_name(d->s->inputs[i].name));
        mpri_err_set(err, MPR_E_USAGE,
                     "input '%s': expected is NAME=KEY with one of the model's inputs %s",
                     mpri_err_name(*m), names.text ? names.text : "");
        mpri_text_free(&names);
        return mpri_err_advice(err, "name an input of the model before the '='");
    }
    return MPR_OK;
}

static mpr_status choose_keys(mpr_dataset *d, const DataFile *f, Err *err)
{
    for (int i = 0; i < d->n_arrays; i++) {
        DataArray *a = &d->arrays[i];
        const char *key = mapped_key(d, a->input->name);
        if (!key && is_labels(d, a->input)) key = mpri_data_labels_key(f, d->o.labels);
        if (!key) key = a->input->name;
        if (!(a->key = mpri_arena_strdup(&d->arena, key))) return mpri_err_nomem(err, strlen(key));
    }
    return MPR_OK;
}

/* A table feeds a model with one float input from all of its columns. */
static void offer_rest(const mpr_dataset *d, DataFile *f)
{
    const char *input = NULL, *labels = NULL;
    int n = 0;
    for (int i = 0; i < d->n_arrays; i++) {
        const DataArray *a = &d->arrays[i];
        if (is_labels(d, a->input)) labels = a->key;
        else if (n++ == 0 && mpri_dtype_is_float(a->input->dtype)) input = a->key;
    }
    if (n == 1 && input) mpri_data_rest(f, input, labels);
}

static void note_unread(const mpr_dataset *d, const DataFile *f, const char *path)
{
    for (int k = 0; k < mpri_data_count(f); k++) {
        bool read = false;
        for (int i = 0; i < d->n_arrays && !read; i++)
            read = mpri_data_reads(f, d->arrays[i].key, mpri_data_key(f, k));
        if (!read)
            mpri_log(&d->s->ctx->log, MPR_LOG_NOTICE, "%s: array '%s' is not read by the model",
                     path, mpri_err_name(mpri_data_key(f, k)));
    }
}

/* ---- shapes ---- */

static mpr_status wrong_shape(const mpr_dataset *d, const DataArray *a, const mpr_tensor *t,
                              Err *err)
{
    char have[256], want[256];
    Shape shape = {.rank = t->rank};
    memcpy(shape.d, t->dims, sizeof(int64_t) * (size_t)t->rank);
    SymTab *sym = d->s->graph[MODE_TRAIN]->sym;
    mpri_shape_print(sym, &shape, have, sizeof(have));
    mpri_shape_print(sym, &a->input->declared, want, sizeof(want));
    mpri_err_set(err, MPR_E_SHAPE, "array '%s' has shape %s; input '%s' needs %s, rows first",
                 mpri_err_name(a->key), have, mpri_err_name(a->input->name), want);
    return mpri_err_advice(err, "reshape the array");
}

/* Labels as a column, or a row too few: trailing dims of 1 are dropped or added to meet the
 * declared rank. */
static void fit_rank(const SessionInput *in, mpr_tensor *t)
{
    int want = in->declared.rank;
    if (want < 1) return;
    while (t->rank > want && t->dims[t->rank - 1] == 1) t->rank--;
    while (t->rank >= 1 && t->rank < want && in->declared.d[t->rank] == 1) t->dims[t->rank++] = 1;
}

static mpr_status check_rows_shape(mpr_dataset *d, const DataArray *a, mpr_tensor *t, Err *err)
{
    const Shape *want = &a->input->declared;
    if (is_labels(d, a->input)) fit_rank(a->input, t);
    if (t->rank < 1 || (want->rank >= 0 && want->rank != t->rank)) return wrong_shape(d, a, t, err);
    for (int i = 1; i < want->rank; i++)
        if (mpri_dim_const(want->d[i]) && want->d[i] != t->dims[i])
            return wrong_shape(d, a, t, err);
    if (want->rank > 0 && mpri_dim_const(want->d[0]) && want->d[0] != d->o.batch_size) {
        mpri_err_set(
            err, MPR_E_SHAPE, "input '%s' has a fixed first dim of %lld, the batch size is %lld",
            mpri_err_name(a->input->name), (long long)want->d[0], (long long)d->o.batch_size);
        return mpri_err_advice(
            err, "set the batch size to %lld, or export the model with a dynamic batch dim",
            (long long)want->d[0]);
    }
    return MPR_OK;
}

/* ---- loading ---- */

/* Appends the rows of t to what earlier shards gave. Takes t's data. */
static mpr_status append_rows(mpr_dataset *d, DataArray *a, mpr_tensor *t, Err *err)
{
    if (!a->t.data) {
        a->t = *t;
        return MPR_OK;
    }
    const Alloc *alloc = &d->s->ctx->alloc;
    bool same = a->t.rank == t->rank;
    for (int i = 1; same && i < t->rank; i++) same = a->t.dims[i] == t->dims[i];
    size_t old = (size_t)mpri_tensor_elements(&a->t) * mpri_dtype_size(a->t.dtype),
           more = (size_t)mpri_tensor_elements(t) * mpri_dtype_size(t->dtype);
    uint8_t *joined = same ? mpri_context_alloc(d->s->ctx, old + more + 1) : NULL;
    mpr_status status = MPR_OK;
    if (!same) status = wrong_shape(d, a, t, err);
    else if (!joined) status = mpri_err_nomem(err, old + more);
    if (status == MPR_OK) {
        memcpy(joined, a->t.data, old);
        memcpy(joined + old, t->data, more);
        mpri_free(alloc, (void *)(uintptr_t)a->t.data);
        a->t.data = joined;
        a->t.dims[0] += t->dims[0];
    }
    mpri_free(alloc, (void *)(uintptr_t)t->data);
    return status;
}

/* Another width is converted, and pixels are numbers; but 32 and 64-bit integers for a float input are ids
 * or labels under the wrong name. */
static bool convertible(mpr_dtype from, mpr_dtype to)
{
    if (from == to) return true;
    if (mpri_dtype_is_int(from) && mpri_dtype_size(from) >= 4 && mpri_dtype_is_float(to)) return false;
    return mpri_dtype_size(from) && mpri_dtype_size(to) &&
           !(from == MPR_FLOAT64 && !mpri_dtype_is_float(to));
}

static mpr_status load_array(mpr_dataset *d, DataArray *a, DataFile *f, const char *path, Err *err)
{
    mpr_tensor raw, t;
    TRY(mpri_data_read(f, a->key, &raw, err));
    const Alloc *alloc = &d->s->ctx->alloc;
    char what[512];
    snprintf(what, sizeof(what), "'%s'", mpri_err_name(a->key));
    mpr_status status = check_rows_shape(d, a, &raw, err);
    bool labels_float = is_labels(d, a->input) && mpri_dtype_is_float(raw.dtype) &&
                        !mpri_dtype_is_float(a->input->dtype);
    if (status == MPR_OK && (labels_float || !convertible(raw.dtype, a->input->dtype))) {
        mpri_err_set(err, MPR_E_TYPE, "array '%s' is %s, input '%s' reads %s",
                     mpri_err_name(a->key), mpri_dtype_long(raw.dtype),
                     mpri_err_name(a->input->name), mpri_dtype_long(a->input->dtype));
        status = mpri_err_advice(err, labels_float
                                          ? "store class labels as integers, or use --loss mse"
                                          : "store the array in that type");
    }
    if (status != MPR_OK || raw.dtype == a->input->dtype) {
        t = raw;
    } else {
        status = mpri_tensor_convert(d->s->ctx, &raw, a->input->dtype, what, &t, err);
        mpri_free(alloc, (void *)(uintptr_t)raw.data);
        if (status != MPR_OK) t.data = NULL;
    }
    if (status != MPR_OK) {
        mpri_free(alloc, (void *)(uintptr_t)t.data);
        mpri_err_where(err, "%s", mpri_err_name(path));
        return status;
    }
    return append_rows(d, a, &t, err);
}

static mpr_status check_rows_equal(const mpr_dataset *d, const char *path, Err *err)
{
    for (int i = 1; i < d->n_arrays; i++) {
        const DataArray *a = &d->arrays[0], *b = &d->arrays[i];
        if (a->t.dims[0] == b->t.dims[0]) continue;
        mpri_err_set(err, MPR_E_DATA, "'%s' has %lld rows, '%s' has %lld", mpri_err_name(a->key),
                     (long long)a->t.dims[0], mpri_err_name(b->key), (long long)b->t.dims[0]);
        mpri_err_where(err, "%s", mpri_err_name(path));
        return mpri_err_advice(err, "every array needs one entry per row");
    }
    return MPR_OK;
}

static mpr_status load_file(mpr_dataset *d, const char *path, bool first, Err *err)
{
    DataFile *f;
    TRY(mpri_data_open(d->s->ctx, path, &f, err));
    mpr_status status = first ? choose_keys(d, f, err) : MPR_OK;
    if (status == MPR_OK) offer_rest(d, f);
    for (int i = 0; status == MPR_OK && i < d->n_arrays; i++)
        status = load_array(d, &d->arrays[i], f, path, err);
    if (status == MPR_OK) status = check_rows_equal(d, path, err);
    if (status == MPR_OK) note_unread(d, f, path);
    mpri_data_close(f);
    return status;
}

/* Causal LM: position t learns token t+1; what follows the last one is unknown. */
static void shift_labels(const mpr_dataset *d, DataArray *a)
{
    if (a->t.rank < 2 || mpri_dtype_is_float(a->t.dtype)) return;
    int64_t width = a->t.dims[a->t.rank - 1],
            rows = width ? mpri_tensor_elements(&a->t) / width : 0;
    void *data = (void *)(uintptr_t)a->t.data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t t = 0; t < width; t++)
            mpri_store_i64(a->t.dtype, data, r * width + t,
                           t + 1 < width ? mpri_load_i64(a->t.dtype, data, r * width + t + 1)
                                         : d->s->ignore_index);
}

static mpr_status list_arrays(mpr_dataset *d, Err *err)
{
    d->arrays = ARENA_ARRAY(&d->arena, DataArray, d->s->n_inputs + 1);
    if (!d->arrays) return mpri_err_nomem(err, 0);
    const Graph *g = d->s->graph[MODE_TRAIN];
    for (int i = 0; i < d->s->n_inputs; i++) {
        const Value *v = mpri_graph_find_value(g, d->s->inputs[i].name);
        if (v && !v->n_uses && !v->n_outputs) continue;
        d->arrays[d->n_arrays++].input = &d->s->inputs[i];
    }
    return MPR_OK;
}

static mpr_status load_all(mpr_dataset *d, const char *const *files, int n_files, Err *err)
{
    TRY(list_arrays(d, err));
    TRY(check_mapping(d, err));
    if (d->o.synthetic_rows > 0) {
        TRY(mpri_dataset_synthetic(d, err));
    } else {
        for (int i = 0; i < n_files; i++) TRY(load_file(d, files[i], i == 0, err));
    }
    const char *path = n_files ? files[0] : "synthetic data";
    d->rows = d->n_arrays ? d->arrays[0].t.dims[0] : 0;
    if (d->rows == 0) {
        mpri_err_set(err, MPR_E_DATA, "the data have 0 rows");
        mpri_err_where(err, "%s", mpri_err_name(path));
        return mpri_err_advice(err, "give at least one row");
    }
    size_t widest = 0;
    for (int i = 0; i < d->n_arrays; i++) {
        DataArray *a = &d->arrays[i];
        if (d->o.shift_labels && is_labels(d, a->input)) shift_labels(d, a);
        TRY(mpri_data_check(d->s, a, d->o.allow_nonfinite, path, err));
        a->row_bytes = (size_t)(mpri_tensor_elements(&a->t) / d->rows) *
                       mpri_dtype_size(a->t.dtype);
        if (a->row_bytes > widest) widest = a->row_bytes;
    }
    int64_t most = d->o.batch_size < d->rows ? d->o.batch_size : d->rows;
    d->batch_bytes = widest * (size_t)most;
    d->batch = mpri_context_alloc(d->s->ctx, d->batch_bytes + 1);
    d->order = mpri_context_alloc(d->s->ctx, (size_t)d->rows * sizeof(int64_t));
    return d->batch && d->order ? MPR_OK : mpri_err_nomem(err, d->batch_bytes);
}

mpr_status mpri_dataset_open(mpr_session *s, const char *const *files, int n_files,
                             const mpr_dataset_options *options, mpr_dataset **out, Err *err)
{
    *out = NULL;
    mpr_dataset_options o;
    TRY(mpri_take_options(&o, sizeof(o), options, "mpr_dataset_options", err));
    if (!o.batch_size) o.batch_size = 8;
    if (o.batch_size < 1 || o.synthetic_rows < 0 || (n_files < 1 && !o.synthetic_rows)) {
        mpri_err_set(err, MPR_E_USAGE, "data: batch size %lld, %d files, %lld synthetic rows",
                     (long long)o.batch_size, n_files, (long long)o.synthetic_rows);
        return mpri_err_advice(
            err, "give at least one file or synthetic rows, and a batch size of 1 or more");
    }
    mpr_dataset *d = CONTEXT_NEW(s->ctx, mpr_dataset);
    if (!d) return mpri_err_nomem(err, sizeof(*d));
    mpri_handle_init(&d->h, HANDLE_DATASET, &s->h);
    mpri_arena_init(&d->arena, &s->ctx->alloc, 0);
    d->s = s;
    d->o = o;
    d->order_epoch = -1;
    s->children++;
    mpr_status status = mpri_copy_strings(&d->arena, o.inputs, &d->o.inputs, err);
    if (status == MPR_OK) status = mpri_copy_strings(&d->arena, o.bind, &d->o.bind, err);
    if (status == MPR_OK && o.labels && !(d->o.labels = mpri_arena_strdup(&d->arena, o.labels)))
        status = mpri_err_nomem(err, 0);
    if (status == MPR_OK) status = load_all(d, files, n_files, err);
    if (status != MPR_OK) {
        mpri_dataset_close(d);
        return status;
    }
    *out = d;
    return MPR_OK;
}

void mpri_dataset_close(mpr_dataset *d)
{
    if (!d) return;
    const Alloc *alloc = &d->s->ctx->alloc;
    for (int i = 0; i < d->n_arrays; i++) mpri_free(alloc, (void *)(uintptr_t)d->arrays[i].t.data);
    mpri_free(alloc, d->batch);
    mpri_free(alloc, d->order);
    mpri_arena_destroy(&d->arena);
    d->s->children--;
    mpri_handle_end(&d->h);
    mpri_free(alloc, d);
}

/* ---- batches ---- */

int64_t mpri_dataset_batches(const mpr_dataset *d)
{
    int64_t whole = d->rows / d->o.batch_size;
    bool rest = d->rows % d->o.batch_size != 0;
    return whole + (rest && !d->o.drop_last);
}

static const void *batch_rows(mpr_dataset *d, const DataArray *a, int64_t first, int64_t n)
{
    const uint8_t *all = a->t.data;
    if (!d->o.shuffle) return all + (size_t)first * a->row_bytes;
    for (int64_t i = 0; i < n; i++)
        memcpy((uint8_t *)d->batch + (size_t)i * a->row_bytes,
               all + (size_t)d->order[first + i] * a->row_bytes, a->row_bytes);
    return d->batch;
}

mpr_status mpri_dataset_bind(mpr_dataset *d, int64_t epoch, int64_t batch, int64_t *rows, Err *err)
{
    int64_t batches = mpri_dataset_batches(d);
    if (batch < 0 || batch >= batches || epoch < 0) {
        mpri_err_set(err, MPR_E_USAGE, "batch %lld of epoch %lld; an epoch has batches 0 to %lld",
                     (long long)batch, (long long)epoch, (long long)batches - 1);
        return mpri_err_advice(
            err, batches ? "stop at the last batch"
                         : "the data have fewer rows than one batch: use a smaller batch size");
    }
    if (d->o.shuffle && d->order_epoch != epoch) {
        mpri_rng_permutation(d->o.seed, ORDER_STREAM + (uint64_t)epoch, d->rows, d->order);
        d->order_epoch = epoch;
    }
    int64_t first = batch * d->o.batch_size,
            n = d->rows - first < d->o.batch_size ? d->rows - first : d->o.batch_size;
    for (int i = 0; i < d->n_arrays; i++) {
        const DataArray *a = &d->arrays[i];
        int64_t dims[8];
        memcpy(dims, a->t.dims, sizeof(dims));
        dims[0] = n;
        TRY(mpri_session_bind(d->s, a->input->name, batch_rows(d, a, first, n), a->t.dtype, dims,
                              a->t.rank, err));
    }
    if (rows) *rows = n;
    return MPR_OK;
}
