/* One data file. The format is told by the first bytes, not by the name. */
#include "runtime/train/dataset.h"

#include <stdio.h>
#include <string.h>

#include "runtime/train/npz.h"
#include "runtime/train/safetensors.h"

struct DataFile {
    mpr_context *ctx;
    char *path;
    Npz *npz;
    uint8_t *bytes;        /* safetensors: whole file */
    Arena arena;
    SafeTensor *tensors;
    int n_tensors;
};

static bool is_safetensors(const char *path)
{
    unsigned char head[9] = { 0 };
    FILE *f = fopen(path, "rbe");
    size_t n = f ? fread(head, 1, sizeof(head), f) : 0;
    if (f) fclose(f);
    size_t length = strlen(path);
    bool named = length > 12 && !strcmp(path + length - 12, ".safetensors");
    return named || (n == sizeof(head) && head[8] == '{');
}

static mpr_status open_safetensors(DataFile *f, Err *err)
{
    size_t n;
    TRY(mpri_read_file(&f->ctx->alloc, f->path, &f->bytes, &n, err));
    mpr_status status = mpri_safetensors_parse(f->bytes, n, &f->arena, &f->tensors, &f->n_tensors, err);
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(f->path));
    return status;
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
    if (status == MPR_OK) status = is_safetensors(path) ? open_safetensors(f, err) : mpri_npz_open(&ctx->alloc, path, &f->npz, err);
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
    return f->npz ? mpri_npz_count(f->npz) : f->n_tensors;
}

const char *mpri_data_key(const DataFile *f, int index)
{
    return f->npz ? mpri_npz_name(f->npz, index) : f->tensors[index].name;
}

static int find(const DataFile *f, const char *key)
{
    for (int i = 0; i < mpri_data_count(f); i++)
        if (!strcmp(mpri_data_key(f, i), key)) return i;
    return -1;
}

bool mpri_data_has(const DataFile *f, const char *key)
{
    return find(f, key) >= 0;
}

void mpri_data_keys(const DataFile *f, Text *out)
{
    int n = mpri_data_count(f);
    for (int i = 0; i < n && out->len < 800; i++) mpri_text_add(out, "%s'%s'", i ? ", " : "", mpri_err_name(mpri_data_key(f, i)));
    if (!n) mpri_text_put(out, "no arrays");
}

const char *mpri_data_labels_key(const DataFile *f, const char *wanted)
{
    static const char *const usual[] = { "labels", "label", "y" };
    if (wanted) return wanted;
    for (int i = 0; i < 3; i++)
        if (mpri_data_has(f, usual[i])) return usual[i];
    return NULL;
}

mpr_status mpri_data_read(DataFile *f, const char *key, mpr_tensor *out, Err *err)
{
    int i = find(f, key);
    if (i < 0) {
        Text keys;
        mpri_text_init(&keys, &f->ctx->alloc);
        mpri_data_keys(f, &keys);
        mpri_err_set(err, MPR_E_DATA, "no array '%s'; found are %s", mpri_err_name(key), keys.text ? keys.text : "");
        mpri_text_free(&keys);
        mpri_err_where(err, "%s", mpri_err_name(f->path));
        return mpri_err_advice(err, "rename the array, or map it with --input NAME=KEY or --labels KEY");
    }
    if (f->npz) {
        bool foreign;
        return mpri_npz_read(f->npz, i, out, &foreign, err);
    }
    const SafeTensor *t = &f->tensors[i];
    void *data = mpri_context_alloc(f->ctx, t->bytes + 1);
    if (!data) return mpri_err_nomem(err, t->bytes);
    if (t->bytes) memcpy(data, t->data, t->bytes);
    *out = (mpr_tensor){ .data = data, .dtype = t->dtype, .rank = t->rank };
    memcpy(out->dims, t->dims, sizeof(out->dims));
    return MPR_OK;
}
