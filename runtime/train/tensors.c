/* Named tensors. Members of an npz that are of no numeric type are kept as names with a reason:
 * asking for one is the error, not their presence. */
#include "runtime/train/tensors.h"

#include <math.h>
#include <string.h>

#include "runtime/base/size.h"
#include "runtime/train/npz.h"

int64_t mpri_tensor_elements(const mpr_tensor *t)
{
    int64_t n;
    return t->rank >= 0 && t->rank <= 8 && mpri_size_elements(t->rank, t->dims, &n) ? n : -1;
}

mpr_status mpri_tensors_create(mpr_context *ctx, mpr_tensors **out, Err *err)
{
    *out = CONTEXT_NEW(ctx, mpr_tensors);
    if (!*out) return mpri_err_nomem(err, sizeof(**out));
    mpri_handle_init(&(*out)->h, HANDLE_TENSORS, NULL);
    (*out)->ctx = ctx;
    return MPR_OK;
}

static char *copy_text(const mpr_context *ctx, const char *s)
{
    char *p = mpri_context_alloc(ctx, strlen(s) + 1);
    return p ? strcpy(p, s) : NULL;
}

static void clear_entry(mpr_tensors *t, TensorEntry *e)
{
    mpri_free(&t->ctx->alloc, e->name);
    mpri_free(&t->ctx->alloc, e->why);
    mpri_free(&t->ctx->alloc, (void *)(uintptr_t)e->t.data);
}

void mpri_tensors_destroy(mpr_tensors *t)
{
    if (!t) return;
    const Alloc *alloc = &t->ctx->alloc;
    for (int i = 0; i < t->n; i++) clear_entry(t, &t->v[i]);
    mpri_free(alloc, t->v);
    mpri_handle_end(&t->h);
    mpri_free(alloc, t);
}

const TensorEntry *mpri_tensors_find(const mpr_tensors *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->v[i].name, name)) return &t->v[i];
    return NULL;
}

static mpr_status room(mpr_tensors *t, Err *err)
{
    if (t->n < t->cap) return MPR_OK;
    int cap = t->cap ? 2 * t->cap : 16;
    TensorEntry *grown = mpri_context_alloc(t->ctx, (size_t)cap * sizeof(*grown));
    if (!grown) return mpri_err_nomem(err, (size_t)cap * sizeof(*grown));
    if (t->n) memcpy(grown, t->v, (size_t)t->n * sizeof(*grown));
    mpri_free(&t->ctx->alloc, t->v);
    t->v = grown;
    t->cap = cap;
    return MPR_OK;
}

static mpr_status add(mpr_tensors *t, const char *name, const mpr_tensor *tensor, const char *why,
                      Err *err)
{
    TRY(room(t, err));
    TensorEntry e = {.name = copy_text(t->ctx, name), .why = why ? copy_text(t->ctx, why) : NULL};
    if (!e.name || (why && !e.why)) {
        clear_entry(t, &e);
        return mpri_err_nomem(err, strlen(name) + 1);
    }
    e.t = *tensor;
    TensorEntry *old = (TensorEntry *)(uintptr_t)mpri_tensors_find(t, name);
    if (old) clear_entry(t, old);
    else old = &t->v[t->n++];
    *old = e;
    return MPR_OK;
}

mpr_status mpri_tensors_give(mpr_tensors *t, const char *name, const mpr_tensor *tensor, Err *err)
{
    mpr_status status = add(t, name, tensor, NULL, err);
    if (status != MPR_OK) mpri_free(&t->ctx->alloc, (void *)(uintptr_t)tensor->data);
    return status;
}

mpr_status mpri_tensors_put(mpr_tensors *t, const char *name, const mpr_tensor *tensor, Err *err)
{
    int64_t n = mpri_tensor_elements(tensor);
    size_t size = mpri_dtype_size(tensor->dtype), bytes;
    if (n < 0 || !size || (n && !tensor->data) || !mpri_size_mul((size_t)n, size, &bytes)) {
        mpri_err_set(err, MPR_E_USAGE, "tensor '%s' has no data, bad dims or type %s",
                     mpri_err_name(name), mpri_dtype_name(tensor->dtype));
        return mpri_err_advice(err, "pass a contiguous tensor of a numeric type and rank 0 to 8");
    }
    mpr_tensor copy = *tensor;
    void *data = mpri_context_alloc(t->ctx, bytes);
    if (!data) return mpri_err_nomem(err, bytes);
    if (bytes) memcpy(data, tensor->data, bytes);
    copy.data = data;
    return mpri_tensors_give(t, name, &copy, err);
}

mpr_status mpri_tensors_need(const mpr_tensors *t, const char *name, const TensorEntry **out,
                             Err *err)
{
    *out = mpri_tensors_find(t, name);
    if (*out && (*out)->t.dtype != MPR_DTYPE_NONE) return MPR_OK;
    if (*out) {
        mpri_err_set(err, MPR_E_DATA, "'%s': %s", mpri_err_name(name),
                     (*out)->why ? (*out)->why : "not read");
        return mpri_err_advice(err, "store it as a plain numeric array");
    }
    Text list;
    mpri_text_init(&list, &t->ctx->alloc);
    for (int i = 0; i < t->n && list.len < 600; i++)
        mpri_text_add(&list, "%s'%s'", i ? ", " : "", mpri_err_name(t->v[i].name));
    mpri_err_set(err, MPR_E_DATA, "no tensor '%s'; there are %s", mpri_err_name(name),
                 t->n ? list.text : "none");
    mpri_text_free(&list);
    return mpri_err_advice(err, "name the arrays as the model names its tensors");
}

static mpr_status read_members(mpr_tensors *t, Npz *z, Err *err)
{
    for (int i = 0; i < mpri_npz_count(z); i++) {
        mpr_tensor tensor = {.dtype = MPR_DTYPE_NONE};
        bool foreign;
        Err why;
        mpri_err_clear(&why);
        mpr_status status = mpri_npz_read(z, i, &tensor, &foreign, &why);
        if (status != MPR_OK && !foreign) {
            *err = why;
            return status;
        }
        if (foreign) TRY(add(t, mpri_npz_name(z, i), &tensor, why.message, err));
        else TRY(mpri_tensors_give(t, mpri_npz_name(z, i), &tensor, err));
    }
    return MPR_OK;
}

mpr_status mpri_tensors_load(mpr_context *ctx, const char *path, mpr_tensors **out, Err *err)
{
    Npz *z;
    *out = NULL;
    TRY(mpri_npz_open(&ctx->alloc, path, &z, err));
    mpr_tensors *t;
    mpr_status status = mpri_tensors_create(ctx, &t, err);
    if (status == MPR_OK) {
        status = read_members(t, z, err);
        if (status == MPR_OK) *out = t;
        else mpri_tensors_destroy(t);
    }
    mpri_npz_close(z);
    return status;
}

mpr_status mpri_tensors_save(mpr_tensors *t, const char *path, Err *err)
{
    Arena arena;
    mpri_arena_init(&arena, &t->ctx->alloc, 0);
    const char **names = ARENA_ARRAY(&arena, const char *, t->n + 1);
    mpr_tensor *tensors = ARENA_ARRAY(&arena, mpr_tensor, t->n + 1);
    int n = 0;
    for (int i = 0; names && tensors && i < t->n; i++) {
        if (t->v[i].t.dtype == MPR_DTYPE_NONE) continue;
        names[n] = t->v[i].name;
        tensors[n++] = t->v[i].t;
    }
    mpr_status status = names && tensors
                            ? mpri_npz_write(&t->ctx->alloc, path, n, names, tensors, err)
                            : mpri_err_nomem(err, 0);
    mpri_arena_destroy(&arena);
    return status;
}

/* ---- conversion ---- */

static bool int_fits(mpr_dtype from, const void *data, int64_t i, mpr_dtype to, int64_t *value)
{
    *value = mpri_load_i64(from, data, i);
    if (from == MPR_UINT64 && *value < 0) return false;
    switch (to) {
    case MPR_INT32: return *value >= INT32_MIN && *value <= INT32_MAX;
    case MPR_INT16: return *value >= INT16_MIN && *value <= INT16_MAX;
    case MPR_INT8: return *value >= INT8_MIN && *value <= INT8_MAX;
    case MPR_UINT8: return *value >= 0 && *value <= UINT8_MAX;
    case MPR_UINT16: return *value >= 0 && *value <= UINT16_MAX;
    case MPR_UINT32: return *value >= 0 && *value <= UINT32_MAX;
    case MPR_UINT64: return *value >= 0;
    default: return true;
    }
}

static mpr_status does_not_fit(const mpr_tensor *from, int64_t i, mpr_dtype to, const char *what,
                               Err *err)
{
    int64_t row_size = 1;
    for (int d = 1; d < from->rank; d++) row_size *= from->dims[d];
    char value[32];
    mpri_err_set(err, MPR_E_DATA, "%s: row %lld holds %s%s, which %s cannot hold", what,
                 (long long)(row_size ? i / row_size : i),
                 mpri_print_f64(value, mpri_load_f64(from->dtype, from->data, i)),
                 mpri_dtype_is_float(from->dtype) ? " (float)" : "", mpri_dtype_long(to));
    return mpri_err_advice(err, "store the data as %s", mpri_dtype_long(to));
}

mpr_status mpri_tensor_convert(mpr_context *ctx, const mpr_tensor *from, mpr_dtype to,
                               const char *what, mpr_tensor *out, Err *err)
{
    int64_t n = mpri_tensor_elements(from);
    size_t bytes;
    if (n < 0 || !mpri_size_mul((size_t)n, mpri_dtype_size(to), &bytes))
        return mpri_err_set(err, MPR_E_SHAPE, "%s: bad dims", what);
    void *data = mpri_context_alloc(ctx, bytes + 1);
    if (!data) return mpri_err_nomem(err, bytes);
    *out = *from;
    out->dtype = to;
    out->data = data;
    bool float_in = mpri_dtype_is_float(from->dtype), float_out = mpri_dtype_is_float(to);
    for (int64_t i = 0; i < n; i++) {
        bool fits = true;
        if (float_out) {
            double v = mpri_load_f64(from->dtype, from->data, i);
            mpri_store_f64(to, data, i, v);
            fits = !isfinite(v) || isfinite(mpri_load_f64(to, data, i));
        } else if (float_in) {
            double v = mpri_load_f64(from->dtype, from->data, i);
            fits = v == floor(v) && fabs(v) <= 0x1p53;
            if (fits) mpri_store_i64(to, data, i, (int64_t)v);
        } else {
            int64_t v;
            fits = int_fits(from->dtype, from->data, i, to, &v);
            if (fits) mpri_store_i64(to, data, i, v);
        }
        if (fits) continue;
        mpri_free(&ctx->alloc, data);
        out->data = NULL;
        return does_not_fit(from, i, to, what, err);
    }
    return MPR_OK;
}
