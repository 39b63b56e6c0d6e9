/* One data file: .safetensors and .csv by name (the first also by its first bytes), else .npz. A
 * CSV file has no arrays: a key stands for a column or a numbered group of columns. */
#include "runtime/train/dataset.h"

#include <stdio.h>
#include <string.h>

#include "runtime/train/csv.h"
#include "runtime/train/npz.h"
#include "runtime/train/safetensors.h"

struct DataFile {
    mpr_context *ctx;
    char *path;
    Npz *npz;
    uint8_t *bytes; /* safetensors: whole file */
    Arena arena;
    SafeTensor *tensors;
    int n_tensors;
    bool is_csv;
    Csv csv;
    int *group;         /* scratch of one key's columns */
    const char *rest;   /* key that all columns without another reader belong to, or NULL */
    const char *labels; /* key that the rest leaves out */
};

static bool has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), m = strlen(suffix);
    return n > m && !strcmp(path + n - m, suffix);
}

static bool is_safetensors(const char *path)
{
    unsigned char head[9] = {0};
    FILE *f = fopen(path, "rbe");
    size_t n = f ? fread(head, 1, sizeof(head), f) : 0;
    if (f) fclose(f);
    return has_suffix(path, ".safetensors") || (n == sizeof(head) && head[8] == '{');
}

static mpr_status open_safetensors(DataFile *f, Err *err)
{
    size_t n;
    TRY(mpri_read_file(&f->ctx->alloc, f->path, &f->bytes, &n, err));
    mpr_status status = mpri_safetensors_parse(f->bytes, n, &f->arena, &f->tensors, &f->n_tensors,
                                               err);
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(f->path));
    return status;
}

static mpr_status open_csv(DataFile *f, Err *err)
{
    size_t n;
    TRY(mpri_read_file(&f->ctx->alloc, f->path, &f->bytes, &n, err));
    mpr_status status = mpri_csv_parse((const char *)f->bytes, n, &f->arena, &f->csv, err);
    f->is_csv = true;
    f->group = ARENA_ARRAY(&f->arena, int, f->csv.columns + 1);
    if (status == MPR_OK && !f->group) status = mpri_err_nomem(err, 0);
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(f->path));
    return status;
}

static mpr_status open_by_format(DataFile *f, Err *err)
{
    if (has_suffix(f->path, ".csv")) return open_csv(f, err);
    if (is_safetensors(f->path)) return open_safetensors(f, err);
    return mpri_npz_open(&f->ctx->alloc, f->path, &f->npz, err);
}

mpr_status mpri_data_open(mpr_context *ctx, const char *path, DataFile **out, Err *err)
{
    *out = NULL;
    DataFile *f = CONTEXT_NEW(ctx, DataFile);
    if (!f) return mpri_err_nomem(err, sizeof(*f));
    f->ctx = ctx;
    mpri_arena_init(&f->arena, &ctx->alloc, 0);
    f->path = mpri_arena_strdup(&f->arena, path);
    mpr_status status = f->path ? MPR_OK : mpri_err_nomem(err, strlen(path));
    if (status == MPR_OK) status = open_by_format(f, err);
    if (status != MPR_OK) {
        mpri_data_close(f);
        return status;
    }
    *out = f;
    return MPR_OK;
}

void mpri_data_close(DataFile *f)
{
    if (!f) return;
    const Alloc *alloc = &f->ctx->alloc;
    mpri_npz_close(f->npz);
    mpri_free(alloc, f->bytes);
    mpri_arena_destroy(&f->arena);
    mpri_free(alloc, f);
}

int mpri_data_count(const DataFile *f)
{
    return f->npz ? mpri_npz_count(f->npz) : f->is_csv ? f->csv.columns : f->n_tensors;
}

const char *mpri_data_key(const DataFile *f, int index)
{
    return f->npz      ? mpri_npz_name(f->npz, index)
           : f->is_csv ? f->csv.names[index]
                       : f->tensors[index].name;
}

static int find(const DataFile *f, const char *key)
{
    for (int i = 0; i < mpri_data_count(f); i++)
        if (!strcmp(mpri_data_key(f, i), key)) return i;
    return -1;
}

void mpri_data_rest(DataFile *f, const char *input, const char *labels)
{
    f->rest = input;
    f->labels = labels;
}

/* Columns of a key, -1 when a number is there twice. */
static int columns_of(const DataFile *f, const char *key)
{
    int n = mpri_csv_group(&f->csv, key, f->group);
    if (n || !f->rest || strcmp(f->rest, key)) return n;
    for (int i = 0; i < f->csv.columns; i++)
        if (!f->labels || strcmp(f->csv.names[i], f->labels)) f->group[n++] = i;
    return n;
}

bool mpri_data_has(const DataFile *f, const char *key)
{
    return f->is_csv ? columns_of(f, key) != 0 : find(f, key) >= 0;
}

bool mpri_data_reads(const DataFile *f, const char *key, const char *column)
{
    if (!f->is_csv) return !strcmp(key, column);
    int n = columns_of(f, key);
    for (int i = 0; i < n; i++)
        if (!strcmp(f->csv.names[f->group[i]], column)) return true;
    return false;
}

/* Whole numbers become int64, others double: [rows] for one column of that name, else [rows,
 * columns]. */
static mpr_status read_columns(DataFile *f, const char *key, mpr_tensor *out, Err *err)
{
    const Csv *c = &f->csv;
    int n = columns_of(f, key);
    bool whole = true, one = n == 1 && !strcmp(c->names[f->group[0]], key);
    if (n < 0) {
        mpri_err_set(err, MPR_E_DATA, "columns of '%s': a number is there twice",
                     mpri_err_name(key));
        return mpri_err_advice(err, "name the columns %s0, %s1 and so on", mpri_err_name(key),
                               mpri_err_name(key));
    }
    for (int k = 0; k < n; k++) whole &= c->whole[f->group[k]];
    void *data = mpri_context_alloc(f->ctx, (size_t)c->rows * (size_t)n * 8 + 1);
    if (!data) return mpri_err_nomem(err, (size_t)c->rows * (size_t)n * 8);
    for (int64_t r = 0; r < c->rows; r++)
        for (int k = 0; k < n; k++) {
            double v = c->values[r * c->columns + f->group[k]];
            if (whole) ((int64_t *)data)[r * n + k] = (int64_t)v;
            else ((double *)data)[r * n + k] = v;
        }
    *out = (mpr_tensor){.data = data,
                        .dtype = whole ? MPR_INT64 : MPR_FLOAT64,
                        .rank = one ? 1 : 2,
                        .dims = {c->rows, n}};
    return MPR_OK;
}

void mpri_data_keys(const DataFile *f, Text *out)
{
    int n = mpri_data_count(f);
    for (int i = 0; i < n && out->len < 800; i++)
        mpri_text_add(out, "%s'%s'", i ? ", " : "", mpri_err_name(mpri_data_key(f, i)));
    if (!n) mpri_text_put(out, "no arrays");
}

const char *mpri_data_labels_key(const DataFile *f, const char *wanted)
{
    static const char *const usual[] = {"labels", "label", "y"};
    if (wanted) return wanted;
    for (int i = 0; i < 3; i++)
        if (mpri_data_has(f, usual[i])) return usual[i];
    return NULL;
}

mpr_status mpri_data_read(DataFile *f, const char *key, mpr_tensor *out, Err *err)
{
    int i = find(f, key);
    if (f->is_csv && mpri_data_has(f, key)) return read_columns(f, key, out, err);
    if (i < 0) {
        Text keys;
        mpri_text_init(&keys, &f->ctx->alloc);
        mpri_data_keys(f, &keys);
        mpri_err_set(err, MPR_E_DATA, "no array '%s'; found are %s", mpri_err_name(key),
                     keys.text ? keys.text : "");
        mpri_text_free(&keys);
        mpri_err_where(err, "%s", mpri_err_name(f->path));
        return mpri_err_advice(err,
                               "rename the array, or map it with --input NAME=KEY or --labels KEY");
    }
    if (f->npz) {
        bool foreign;
        return mpri_npz_read(f->npz, i, out, &foreign, err);
    }
    const SafeTensor *t = &f->tensors[i];
    void *data = mpri_context_alloc(f->ctx, t->bytes + 1);
    if (!data) return mpri_err_nomem(err, t->bytes);
    if (t->bytes) memcpy(data, t->data, t->bytes);
    *out = (mpr_tensor){.data = data, .dtype = t->dtype, .rank = t->rank};
    memcpy(out->dims, t->dims, sizeof(out->dims));
    return MPR_OK;
}
