/* .safetensors, strictly: what the format does not allow is refused, so that a damaged header never
 * yields a plausible tensor. Source: the format description of huggingface/safetensors. */
#include "runtime/train/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/dtype.h"
#include "runtime/base/size.h"

static const struct {
    const char *name;
    mpr_dtype dtype;
} types[] = {
    {"F32", MPR_FLOAT32}, {"F16", MPR_FLOAT16}, {"BF16", MPR_BFLOAT16}, {"F64", MPR_FLOAT64},
    {"I64", MPR_INT64},   {"I32", MPR_INT32},   {"I16", MPR_INT16},     {"I8", MPR_INT8},
    {"U8", MPR_UINT8},    {"U16", MPR_UINT16},  {"U32", MPR_UINT32},    {"U64", MPR_UINT64},
    {"BOOL", MPR_BOOL},
};
enum { N_TYPES = sizeof(types) / sizeof(*types) };

mpr_status mpri_read_file(const Alloc *alloc, const char *path, uint8_t **bytes, size_t *n,
                          Err *err)
{
    *bytes = NULL;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        mpri_err_set(err, MPR_E_IO, "cannot read '%s': %s", mpri_err_name(path),
                     fd < 0 ? strerror(errno) : "not a regular file");
        if (fd >= 0) close(fd);
        return mpri_err_advice(err, "check the path");
    }
    *n = (size_t)st.st_size;
    *bytes = mpri_alloc(alloc, *n + 1, 64);
    mpr_status status = *bytes ? MPR_OK : mpri_err_nomem(err, *n + 1);
    size_t done = 0;
    while (status == MPR_OK && done < *n) {
        ssize_t k = read(fd, *bytes + done, *n - done);
        if (k < 0 && errno == EINTR) continue;
        if (k > 0) done += (size_t)k;
        else
            status = mpri_err_set(err, MPR_E_IO, "cannot read '%s': %s", mpri_err_name(path),
                                  k < 0 ? strerror(errno) : "it became shorter");
    }
    close(fd);
    if (status == MPR_OK) {
        (*bytes)[*n] = 0;
        return MPR_OK;
    }
    mpri_free(alloc, *bytes);
    *bytes = NULL;
    return status;
}

#if MPR_MINIMAL

mpr_status mpri_safetensors_parse(const uint8_t *bytes, size_t n, Arena *arena, SafeTensor **out,
                                  int *count, Err *err)
{
    (void)bytes, (void)n, (void)arena, (void)out, (void)count;
    mpri_err_set(err, MPR_E_USAGE, "this build cannot read .safetensors files");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

mpr_status mpri_safetensors_write(Text *out, int n, const char *const *names,
                                  const mpr_tensor *tensors, Err *err)
{
    (void)out, (void)n, (void)names, (void)tensors;
    mpri_err_set(err, MPR_E_USAGE, "this build cannot write .safetensors files");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

#else

#include <jansson.h>
#include <stdlib.h>

static mpr_status refuse(Err *err, const char *name, const char *what)
{
    if (name)
        mpri_err_set(err, MPR_E_DATA, "safetensors: tensor '%s': %s", mpri_err_name(name), what);
    else mpri_err_set(err, MPR_E_DATA, "safetensors: %s", what);
    return mpri_err_advice(err, "write the file again with safetensors' save_file");
}

static mpr_status read_dims(SafeTensor *t, const json_t *shape, Err *err)
{
    if (!json_is_array(shape)) return refuse(err, t->name, "'shape' is not a list");
    if (json_array_size(shape) > 8) return refuse(err, t->name, "more than 8 dims");
    t->rank = (int)json_array_size(shape);
    for (int i = 0; i < t->rank; i++) {
        const json_t *d = json_array_get(shape, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return refuse(err, t->name, "a dim is not a whole number from 0");
        t->dims[i] = json_integer_value(d);
    }
    return MPR_OK;
}

static mpr_status read_offsets(SafeTensor *t, const json_t *offsets, uint64_t room, uint64_t *at,
                               Err *err)
{
    const json_t *a = json_array_get(offsets, 0), *b = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(a) ||
        !json_is_integer(b))
        return refuse(err, t->name, "'data_offsets' is not a pair of whole numbers");
    json_int_t begin = json_integer_value(a), end = json_integer_value(b);
    if (begin < 0 || end < begin)
        return refuse(err, t->name, "'data_offsets' do not satisfy 0 <= begin <= end");
    if ((uint64_t)end > room) {
        mpri_err_set(err, MPR_E_DATA,
                     "safetensors: tensor '%s' ends at byte %lld, the file holds %llu",
                     mpri_err_name(t->name), (long long)end, (unsigned long long)room);
        return mpri_err_advice(err, "the file is cut or damaged: get it again");
    }
    *at = (uint64_t)begin;
    t->bytes = (uint64_t)(end - begin);
    return MPR_OK;
}

static mpr_status read_tensor(SafeTensor *t, const json_t *entry, uint64_t room, uint64_t *at,
                              Err *err)
{
    if (!json_is_object(entry)) return refuse(err, t->name, "its entry is not an object");
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    if (!type) return refuse(err, t->name, "'dtype' is missing");
    for (int i = 0; i < N_TYPES; i++)
        if (!strcmp(types[i].name, type)) t->dtype = types[i].dtype;
    if (t->dtype == MPR_DTYPE_NONE) {
        mpri_err_set(err, MPR_E_DATA, "safetensors: tensor '%s' has the unknown type '%s'",
                     mpri_err_name(t->name), mpri_err_name(type));
        return mpri_err_advice(err, "store it as F32, F16, BF16 or an integer type");
    }
    TRY(read_dims(t, json_object_get(entry, "shape"), err));
    TRY(read_offsets(t, json_object_get(entry, "data_offsets"), room, at, err));
    int64_t n;
    size_t need;
    if (!mpri_size_elements(t->rank, t->dims, &n) ||
        !mpri_size_mul((size_t)n, mpri_dtype_size(t->dtype), &need))
        return refuse(err, t->name, "the product of the dims overflows");
    if (need == t->bytes) return MPR_OK;
    mpri_err_set(err, MPR_E_DATA,
                 "safetensors: tensor '%s': shape and type need %zu bytes, its offsets give %llu",
                 mpri_err_name(t->name), need, (unsigned long long)t->bytes);
    return mpri_err_advice(err, "write the file again with safetensors' save_file");
}

static mpr_status check_metadata(const json_t *meta, Err *err)
{
    const char *key;
    json_t *v;
    if (!json_is_object(meta)) return refuse(err, NULL, "'__metadata__' is not an object");
    bool texts = true;
    json_object_foreach((json_t *)(uintptr_t)meta, key, v) texts &= json_is_string(v);
    return texts ? MPR_OK : refuse(err, NULL, "'__metadata__' holds something that is not text");
}

static int by_start(const void *a, const void *b)
{
    const SafeTensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* In the order of their bytes the ranges must be gapless and end where the file does. Sorts t. */
static mpr_status check_cover(SafeTensor *t, int n, const uint8_t *data, uint64_t room, Err *err)
{
    qsort(t, (size_t)n, sizeof(*t), by_start);
    uint64_t next = 0;
    for (int i = 0; i < n; i++) {
        if ((const uint8_t *)t[i].data != data + next)
            return refuse(err, t[i].name, "its bytes leave a gap or overlap others");
        next += t[i].bytes;
    }
    if (next == room) return MPR_OK;
    mpri_err_set(err, MPR_E_DATA, "safetensors: the tensors cover %llu bytes, the file holds %llu",
                 (unsigned long long)next, (unsigned long long)room);
    return mpri_err_advice(err, "write the file again with safetensors' save_file");
}

static mpr_status parse_root(const json_t *root, const uint8_t *data, uint64_t room, Arena *arena,
                             SafeTensor **out, int *count, Err *err)
{
    int n = (int)json_object_size(root), k = 0;
    SafeTensor *t = ARENA_ARRAY(arena, SafeTensor, n + 1);
    uint64_t at = 0;
    if (!t) return mpri_err_nomem(err, 0);
    const char *key;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)root, key, entry)
    {
        if (!strcmp(key, "__metadata__")) {
            TRY(check_metadata(entry, err));
            continue;
        }
        if (!(t[k].name = mpri_arena_strdup(arena, key))) return mpri_err_nomem(err, strlen(key));
        TRY(read_tensor(&t[k], entry, room, &at, err));
        t[k].data = data + at;
        k++;
    }
    *out = t;
    *count = k;
    return check_cover(t, k, data, room, err);
}

mpr_status mpri_safetensors_parse(const uint8_t *bytes, size_t n, Arena *arena, SafeTensor **out,
                                  int *count, Err *err)
{
    if (n < 8) return refuse(err, NULL, "the file has fewer than 8 bytes");
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | bytes[i];
    if (length > MPRI_SAFETENSORS_HEADER_LIMIT || length > n - 8) {
        mpri_err_set(
            err, MPR_E_DATA,
            "safetensors: the header claims %llu bytes, the file has %zu left (allowed are %llu)",
            (unsigned long long)length, n - 8, (unsigned long long)MPRI_SAFETENSORS_HEADER_LIMIT);
        return mpri_err_advice(err, "the file is cut, or not a safetensors file");
    }
    if (!length || bytes[8] != '{') return refuse(err, NULL, "the header does not begin with '{'");
    json_error_t why;
    json_t *root = json_loadb((const char *)bytes + 8, length, JSON_REJECT_DUPLICATES, &why);
    if (!root) {
        mpri_err_set(err, MPR_E_DATA, "safetensors: the header is not valid JSON: %s (byte %d)",
                     why.text, why.position + 8);
        return mpri_err_advice(err, "write the file again with safetensors' save_file");
    }
    mpr_status status = json_is_object(root) ? parse_root(root, bytes + 8 + length, n - 8 - length,
                                                          arena, out, count, err)
                                             : refuse(err, NULL, "the header is not an object");
    json_decref(root);
    return status;
}

static const char *type_name(mpr_dtype t)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].dtype == t) return types[i].name;
    return NULL;
}

static mpr_status put_entry(Text *head, const char *name, const mpr_tensor *t, uint64_t *at,
                            uint64_t *bytes, Err *err)
{
    int64_t n;
    const char *type = type_name(t->dtype);
    if (!type || !mpri_size_elements(t->rank, t->dims, &n))
        return refuse(err, name, "it cannot be stored");
    *bytes = (uint64_t)n * mpri_dtype_size(t->dtype);
    json_t *key = json_string(name);
    char *quoted = key ? json_dumps(key, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    json_decref(key);
    if (!quoted) return refuse(err, name, "the name is not valid UTF-8");
    mpri_text_add(head, "%s%s:{\"dtype\":\"%s\",\"shape\":[", head->len > 1 ? "," : "", quoted,
                  type);
    free(quoted);
    for (int i = 0; i < t->rank; i++)
        mpri_text_add(head, "%s%lld", i ? "," : "", (long long)t->dims[i]);
    mpri_text_add(head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at,
                  (unsigned long long)(*at + *bytes));
    *at += *bytes;
    return MPR_OK;
}

mpr_status mpri_safetensors_write(Text *out, int n, const char *const *names,
                                  const mpr_tensor *tensors, Err *err)
{
    Text head;
    mpri_text_init(&head, out->alloc);
    mpri_text_put(&head, "{");
    uint64_t at = 0, bytes;
    mpr_status status = MPR_OK;
    for (int i = 0; status == MPR_OK && i < n; i++)
        status = put_entry(&head, names[i], &tensors[i], &at, &bytes, err);
    mpri_text_put(&head, "}");
    while (head.len % 8 && !head.failed) mpri_text_put(&head, " ");
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)head.len >> (8 * i));
    mpri_text_bytes(out, length, 8);
    mpri_text_bytes(out, head.text, head.len);
    for (int i = 0; status == MPR_OK && i < n; i++) {
        int64_t k;
        if (!mpri_size_elements(tensors[i].rank, tensors[i].dims, &k)) k = 0;
        if (k) mpri_text_bytes(out, tensors[i].data, (size_t)k * mpri_dtype_size(tensors[i].dtype));
    }
    if (status == MPR_OK && (head.failed || out->failed)) status = mpri_err_nomem(err, out->len);
    mpri_text_free(&head);
    return status;
}

#endif
