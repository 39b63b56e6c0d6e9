/* .npz through libzip. The traps: sizes in a zip directory are claims, so a member is inflated into
 * exactly the bytes that its npy header needs, plus one to see that it ends; and libzip would
 * replace a device file by renaming over it, so archives are made in memory and written by us. */
#include "runtime/train/npz.h"

#if MPR_MINIMAL

static mpr_status absent(Err *err)
{
    mpri_err_set(err, MPR_E_USAGE, "this build cannot read or write .npz files");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

mpr_status mpri_npz_open(const Alloc *alloc, const char *path, Npz **out, Err *err)
{
    (void)alloc, (void)path;
    *out = NULL;
    return absent(err);
}

int mpri_npz_count(const Npz *z)
{
    (void)z;
    return 0;
}

const char *mpri_npz_name(const Npz *z, int index)
{
    (void)z, (void)index;
    return "";
}

int mpri_npz_find(const Npz *z, const char *key)
{
    (void)z, (void)key;
    return -1;
}

mpr_status mpri_npz_read(Npz *z, int index, mpr_tensor *out, bool *foreign, Err *err)
{
    (void)z, (void)index, (void)out, (void)foreign;
    return absent(err);
}

void mpri_npz_close(Npz *z)
{
    (void)z;
}

mpr_status mpri_npz_write(const Alloc *alloc, const char *path, int n, const char *const *names,
                          const mpr_tensor *tensors, Err *err)
{
    (void)alloc, (void)path, (void)n, (void)names, (void)tensors;
    return absent(err);
}

#else

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "importer/source.h"
#include "runtime/base/dtype.h"
#include "runtime/base/size.h"
#include "runtime/train/safetensors.h"

typedef struct NpzMember {
    char *key;
    zip_uint64_t index, size, packed;
    bool encrypted, sized;
} NpzMember;

struct Npz {
    const Alloc *alloc;
    char *path;
    zip_t *zip;
    NpzMember *members;
    int n;
};

static mpr_status data_error(Err *err, const char *what)
{
    mpri_err_set(err, MPR_E_DATA, "%s", what);
    return mpri_err_advice(err, "write the file again with numpy.savez");
}

static char *copy_text(const Alloc *alloc, const char *s, size_t n)
{
    char *p = mpri_alloc(alloc, n + 1, 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}

/* A regular file that can be read; opening never blocks. */
static mpr_status check_file(const char *path, Err *err)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        mpri_err_set(err, MPR_E_IO, "cannot open '%s': %s", mpri_err_name(path), strerror(errno));
        return mpri_err_advice(err, "check the path");
    }
    if (!S_ISREG(st.st_mode)) {
        mpri_err_set(err, MPR_E_IO, "'%s' is not a regular file", mpri_err_name(path));
        return mpri_err_advice(err, "pass the path of an .npz file");
    }
    if (st.st_size == 0)
        return data_error(err, "the file is empty (0 bytes), an .npz archive was expected");
    return MPR_OK;
}

static mpr_status list_members(Npz *z, Err *err)
{
    zip_int64_t entries = zip_get_num_entries(z->zip, 0);
    z->members = mpri_alloc(z->alloc, (size_t)(entries + 1) * sizeof(*z->members), 64);
    if (!z->members) return mpri_err_nomem(err, 0);
    for (zip_int64_t i = 0; i < entries; i++) {
        zip_stat_t st;
        zip_stat_init(&st);
        if (zip_stat_index(z->zip, (zip_uint64_t)i, 0, &st) != 0 || !(st.valid & ZIP_STAT_NAME))
            continue;
        size_t n = strlen(st.name);
        if (n < 5 || strcmp(st.name + n - 4, ".npy")) continue;
        NpzMember *m = &z->members[z->n];
        *m = (NpzMember){.index = (zip_uint64_t)i,
                         .size = st.size,
                         .packed = st.comp_size,
                         .key = copy_text(z->alloc, st.name, n - 4)};
        if (!m->key) return mpri_err_nomem(err, n);
        m->encrypted = (st.valid & ZIP_STAT_ENCRYPTION_METHOD) &&
                       st.encryption_method != ZIP_EM_NONE;
        m->sized = (st.valid & ZIP_STAT_SIZE) && (st.valid & ZIP_STAT_COMP_SIZE);
        int same = mpri_npz_find(z, m->key);
        z->n++;
        if (same < 0) continue;
        mpri_err_set(err, MPR_E_DATA, "member '%s.npy' is there twice", mpri_err_name(m->key));
        return mpri_err_advice(err, "write the file again with numpy.savez");
    }
    return MPR_OK;
}

/* libzip refuses a whole archive for one odd member: find it among the local headers, to name
 * it. */
static void name_odd_member(const Alloc *alloc, const char *path, Err *err)
{
    uint8_t *b;
    size_t n;
    Err quiet;
    mpri_err_clear(&quiet);
    if (mpri_read_file(alloc, path, &b, &n, &quiet) != MPR_OK) return;
    for (size_t i = 0; i + 30 < n; i++) {
        if (memcmp(b + i, "PK\3\4", 4)) continue;
        unsigned method = b[i + 8] | (unsigned)b[i + 9] << 8,
                 length = b[i + 26] | (unsigned)b[i + 27] << 8;
        if (method == 0 || method == 8 || i + 30 + length > n) continue;
        char *name = copy_text(alloc, (const char *)b + i + 30, length);
        if (name)
            mpri_err_where(err, "member '%s', compression method %u", mpri_err_name(name), method);
        mpri_free(alloc, name);
        break;
    }
    mpri_free(alloc, b);
}

mpr_status mpri_npz_open(const Alloc *alloc, const char *path, Npz **out, Err *err)
{
    *out = NULL;
    mpr_status status = check_file(path, err);
    if (status != MPR_OK) {
        mpri_err_where(err, "%s", mpri_err_name(path));
        return status;
    }
    int code = 0;
    zip_t *zip = zip_open(path, ZIP_RDONLY, &code);
    if (!zip) {
        zip_error_t why;
        zip_error_init_with_code(&why, code);
        mpri_err_set(err, MPR_E_DATA, "not a readable .npz archive: %s", zip_error_strerror(&why));
        zip_error_fini(&why);
        if (code == ZIP_ER_INCONS) name_odd_member(alloc, path, err);
        mpri_err_where(err, "%s", mpri_err_name(path));
        return mpri_err_advice(err, "write the file again with numpy.savez");
    }
    Npz *z = mpri_alloc(alloc, sizeof(*z), 64);
    if (!z) {
        zip_discard(zip);
        return mpri_err_nomem(err, sizeof(*z));
    }
    *z = (Npz){.alloc = alloc, .zip = zip, .path = copy_text(alloc, path, strlen(path))};
    status = z->path ? list_members(z, err) : mpri_err_nomem(err, strlen(path));
    if (status != MPR_OK) {
        mpri_err_where(err, "%s", mpri_err_name(path));
        mpri_npz_close(z);
        return status;
    }
    *out = z;
    return MPR_OK;
}

int mpri_npz_count(const Npz *z)
{
    return z->n;
}

const char *mpri_npz_name(const Npz *z, int index)
{
    return z->members[index].key;
}

int mpri_npz_find(const Npz *z, const char *key)
{
    for (int i = 0; i < z->n; i++)
        if (!strcmp(z->members[i].key, key)) return i;
    return -1;
}

void mpri_npz_close(Npz *z)
{
    if (!z) return;
    const Alloc *alloc = z->alloc;
    zip_discard(z->zip);
    for (int i = 0; i < z->n; i++) mpri_free(alloc, z->members[i].key);
    mpri_free(alloc, z->members);
    mpri_free(alloc, z->path);
    mpri_free(alloc, z);
}

/* ---- reading ---- */

static mpr_status read_exactly(zip_file_t *f, void *to, uint64_t n, Err *err)
{
    uint64_t got = 0;
    while (got < n) {
        zip_int64_t k = zip_fread(f, (char *)to + got, n - got);
        if (k < 0) {
            mpri_err_set(err, MPR_E_DATA, "damaged member: %s", zip_file_strerror(f));
            return mpri_err_advice(err, "write the file again with numpy.savez");
        }
        if (k == 0) {
            mpri_err_set(err, MPR_E_DATA, "the member ends after %llu of %llu bytes",
                         (unsigned long long)got, (unsigned long long)n);
            return mpri_err_advice(err, "write the file again with numpy.savez");
        }
        got += (uint64_t)k;
    }
    return MPR_OK;
}

static mpr_status read_end(zip_file_t *f, Err *err)
{
    char byte;
    zip_int64_t k = zip_fread(f, &byte, 1);
    if (k == 0) return MPR_OK;
    if (k > 0) return data_error(err, "the member holds more bytes than the directory says");
    mpri_err_set(err, MPR_E_DATA, "damaged member: %s", zip_file_strerror(f));
    return mpri_err_advice(err, "write the file again with numpy.savez");
}

static mpr_status read_array(Npz *z, zip_file_t *f, const NpzMember *m, mpr_tensor *out,
                             bool *foreign, Err *err)
{
    uint8_t prefix[MPRI_NPY_PREFIX] = {0};
    uint64_t have = m->size < sizeof(prefix) ? m->size : sizeof(prefix), header_end;
    TRY(read_exactly(f, prefix, have, err));
    TRY(mpri_npy_prefix(prefix, have, m->size, &header_end, err));
    if (header_end < have) return data_error(err, "npy header: it is cut");
    uint8_t *header = mpri_alloc(z->alloc, header_end, 1);
    if (!header) return mpri_err_nomem(err, header_end);
    memcpy(header, prefix, have);
    NpyHeader h;
    mpr_status status = read_exactly(f, header + have, header_end - have, err);
    if (status == MPR_OK) status = mpri_npy_parse(header, header_end, m->size, &h, err);
    mpri_free(z->alloc, header);
    TRY(status);
    if (!h.numeric) {
        *foreign = true;
        mpri_err_set(err, MPR_E_DATA, "element type '%s' is not read%s", mpri_err_name(h.type),
                     strchr(h.type, 'O') ? " (object array: a pickle)" : "");
        return mpri_err_advice(err, "store it as a plain float, integer or bool array");
    }
    void *data = mpri_alloc(z->alloc, h.bytes + 1, 64);
    if (!data) return mpri_err_nomem(err, h.bytes);
    status = read_exactly(f, data, h.bytes, err);
    if (status == MPR_OK) status = read_end(f, err);
    if (status == MPR_OK) status = mpri_npy_normalise(z->alloc, &h, &data, err);
    if (status != MPR_OK) {
        mpri_free(z->alloc, data);
        return status;
    }
    *out = (mpr_tensor){.data = data, .dtype = h.dtype, .rank = h.rank};
    memcpy(out->dims, h.dims, sizeof(out->dims));
    return MPR_OK;
}

/* Deflate cannot do better than 1032:1, so a larger promise is a lie that must not cost memory. */
static bool plausible(const NpzMember *m)
{
    return m->sized && m->size / 1032 <= m->packed + 64;
}

mpr_status mpri_npz_read(Npz *z, int index, mpr_tensor *out, bool *foreign, Err *err)
{
    const NpzMember *m = &z->members[index];
    mpr_status status;
    *foreign = false;
    if (m->encrypted) {
        status = data_error(err, "the member is encrypted (password protected)");
    } else if (!plausible(m)) {
        mpri_err_set(err, MPR_E_DATA, "the directory promises %llu bytes from %llu packed ones",
                     (unsigned long long)m->size, (unsigned long long)m->packed);
        status = mpri_err_advice(err, "write the file again with numpy.savez");
    } else {
        zip_file_t *f = zip_fopen_index(z->zip, m->index, 0);
        if (f) {
            status = read_array(z, f, m, out, foreign, err);
            zip_fclose(f);
        } else {
            mpri_err_set(err, MPR_E_DATA, "the member cannot be opened: %s", zip_strerror(z->zip));
            status = mpri_err_advice(err, "write the file again with numpy.savez");
        }
    }
    if (status != MPR_OK)
        mpri_err_where(err, "%s, member '%s'", mpri_err_name(z->path), mpri_err_name(m->key));
    return status;
}

/* ---- writing ---- */

static mpr_status write_direct(const char *path, const void *bytes, size_t n, Err *err)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
    size_t done = 0;
    bool bad = fd < 0;
    while (!bad && done < n) {
        ssize_t k = write(fd, (const char *)bytes + done, n - done);
        if (k < 0 && errno == EINTR) continue;
        bad = k <= 0;
        if (!bad) done += (size_t)k;
    }
    int why = errno;
    if (fd >= 0 && close(fd) != 0 && !bad) {
        bad = true;
        why = errno;
    }
    if (!bad) return MPR_OK;
    mpri_err_set(err, MPR_E_IO, "cannot write '%s': %s", mpri_err_name(path), strerror(why));
    return mpri_err_advice(err, "choose another output file");
}

static mpr_status array_bytes(const Alloc *alloc, const mpr_tensor *t, Text *out, Err *err)
{
    int64_t n;
    if (!mpri_size_elements(t->rank, t->dims, &n))
        return mpri_err_set(err, MPR_E_SHAPE, "a tensor has negative dims");
    mpri_text_init(out, alloc);
    if (t->dtype == MPR_BFLOAT16) {
        mpri_npy_write_header(out, MPR_FLOAT32, t->rank, t->dims);
        for (int64_t i = 0; i < n; i++) {
            float v = mpri_bf16_to_f32(((const uint16_t *)t->data)[i]);
            mpri_text_bytes(out, &v, sizeof(v));
        }
    } else {
        mpri_npy_write_header(out, t->dtype, t->rank, t->dims);
        if (n) mpri_text_bytes(out, t->data, (size_t)n * mpri_dtype_size(t->dtype));
    }
    return out->failed ? mpri_err_nomem(err, out->cap) : MPR_OK;
}

static mpr_status zip_failed(Err *err, zip_t *zip)
{
    mpri_err_set(err, MPR_E_IO, "cannot make the archive: %s", zip_strerror(zip));
    return mpri_err_advice(err, "check memory and names");
}

static mpr_status add_member(zip_t *zip, const char *name, const Text *bytes, const Alloc *alloc,
                             Err *err)
{
    Text file;
    mpri_text_init(&file, alloc);
    mpri_text_add(&file, "%s.npy", name);
    if (file.failed) return mpri_err_nomem(err, strlen(name));
    zip_source_t *src = zip_source_buffer(zip, bytes->text, bytes->len, 0);
    zip_int64_t at = src ? zip_file_add(zip, file.text, src, ZIP_FL_ENC_UTF_8) : -1;
    mpri_text_free(&file);
    if (at < 0) {
        if (src) zip_source_free(src);
        return zip_failed(err, zip);
    }
    if (zip_set_file_compression(zip, (zip_uint64_t)at, ZIP_CM_STORE, 0) != 0)
        return zip_failed(err, zip);
    zip_file_set_mtime(zip, (zip_uint64_t)at, 315532800,
                       0); /* fixed: the same tensors give the same bytes */
    return MPR_OK;
}

static mpr_status take_archive(const Alloc *alloc, zip_source_t *src, void **bytes, size_t *n,
                               Err *err)
{
    zip_stat_t st;
    zip_stat_init(&st);
    if (zip_source_stat(src, &st) != 0 || !(st.valid & ZIP_STAT_SIZE) || zip_source_open(src) != 0)
        return mpri_err_set(err, MPR_E_IO, "cannot read the archive back");
    *n = st.size;
    *bytes = mpri_alloc(alloc, *n + 1, 64);
    mpr_status status = *bytes ? MPR_OK : mpri_err_nomem(err, *n);
    if (status == MPR_OK && zip_source_read(src, *bytes, *n) != (zip_int64_t)*n)
        status = mpri_err_set(err, MPR_E_IO, "cannot read the archive back");
    zip_source_close(src);
    return status;
}

static mpr_status build_archive(const Alloc *alloc, int n, const char *const *names,
                                const mpr_tensor *tensors, Text *parts, void **bytes, size_t *size,
                                Err *err)
{
    zip_error_t why;
    zip_error_init(&why);
    zip_source_t *src = zip_source_buffer_create(NULL, 0, 1, &why);
    if (!src) return mpri_err_nomem(err, 0);
    zip_t *zip = zip_open_from_source(src, ZIP_TRUNCATE, &why);
    if (!zip) {
        zip_source_free(src);
        return mpri_err_nomem(err, 0);
    }
    zip_source_keep(src);
    mpr_status status = MPR_OK;
    for (int i = 0; status == MPR_OK && i < n; i++) {
        status = array_bytes(alloc, &tensors[i], &parts[i], err);
        if (status == MPR_OK) status = add_member(zip, names[i], &parts[i], alloc, err);
    }
    if (status == MPR_OK && zip_close(zip) != 0) status = zip_failed(err, zip);
    if (status != MPR_OK) zip_discard(zip);
    if (status == MPR_OK) status = take_archive(alloc, src, bytes, size, err);
    zip_source_free(src);
    return status;
}

mpr_status mpri_npz_write(const Alloc *alloc, const char *path, int n, const char *const *names,
                          const mpr_tensor *tensors, Err *err)
{
    static const uint8_t empty[22] = {'P', 'K', 5, 6}; /* an end-of-directory record alone */
    void *bytes = NULL;
    size_t size = 0;
    mpr_status status = MPR_OK;
    Text *parts = mpri_alloc(alloc, (size_t)(n + 1) * sizeof(*parts), 64);
    if (!parts) return mpri_err_nomem(err, 0);
    memset(parts, 0, (size_t)(n + 1) * sizeof(*parts));
    if (n) status = build_archive(alloc, n, names, tensors, parts, &bytes, &size, err);
    for (int i = 0; i < n; i++)
        if (parts[i].alloc) mpri_text_free(&parts[i]);
    mpri_free(alloc, parts);
    struct stat st;
    bool special = stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
    const void *out = n ? bytes : empty;
    if (!n) size = sizeof(empty);
    if (status == MPR_OK)
        status = special ? write_direct(path, out, size, err)
                         : mpri_write_file_atomic(path, out, size, err);
    mpri_free(alloc, bytes);
    return status;
}

#endif
