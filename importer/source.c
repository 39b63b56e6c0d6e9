/* The mapped model file: opening, recognising what it is instead of ONNX, indexing its parts, and
 * edits on wire level. O_NONBLOCK matters: opening a pipe that nobody writes to would wait for
 * ever. */
#include "importer/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "importer/file.h"
#include "importer/prescan.h"
#include "importer/wire.h"

/* ---- open and close */

static mpr_status io_error(Err *err, const char *path, const char *what)
{
    mpri_err_set(err, MPR_E_IO, "%s: %s", mpri_err_name(path), what);
    return mpri_err_advice(err, "pass the path of a readable .onnx file");
}

/* Descriptors 0-2 may be closed in the host: a data file must not become its standard output. */
static int above_standard(int fd)
{
    if (fd < 0 || fd > 2) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int saved = errno;
    close(fd);
    errno = saved;
    return moved;
}

int64_t mpri_source_time(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static mpr_status map_file(Source *s, const char *path, Err *err)
{
    struct stat st;
    s->fd = above_standard(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (s->fd < 0) return io_error(err, path, strerrordesc_np(errno));
    if (fstat(s->fd, &st) != 0) return io_error(err, path, strerrordesc_np(errno));
    if (S_ISDIR(st.st_mode))
        return io_error(err, path, "is a directory (folder), a file is needed");
    if (!S_ISREG(st.st_mode))
        return io_error(err, path, "is a pipe, socket or device, a regular file is needed");
    s->size = (size_t)st.st_size;
    s->changed = mpri_source_time(&st);
    if (s->size == 0) return MPR_OK;
    void *p = mmap(NULL, s->size, PROT_READ, MAP_PRIVATE, s->fd, 0);
    if (p == MAP_FAILED) return io_error(err, path, strerrordesc_np(errno));
    s->bytes = p;
    return MPR_OK;
}

static mpr_status create(const char *path, Arena *arena, Source **out, Err *err)
{
    Source *s = ARENA_NEW(arena, Source);
    *out = s;
    if (!s) return mpri_err_nomem(err, sizeof *s);
    s->fd = -1;
    const char *slash = strrchr(path, '/');
    s->path = mpri_arena_strdup(arena, path);
    s->folder =
        slash ? mpri_arena_printf(arena, "%.*s", (int)(slash == path ? 1 : slash - path), path)
              : mpri_arena_strdup(arena, ".");
    return s->path && s->folder ? MPR_OK : mpri_err_nomem(err, strlen(path));
}

mpr_status mpri_source_open(const char *path, Arena *arena, Source **out, Err *err)
{
    TRY(create(path, arena, out, err));
    return map_file(*out, path, err);
}

mpr_status mpri_source_image(const char *path, const void *bytes, size_t size, Arena *arena,
                             Source **out, Err *err)
{
    TRY(create(path, arena, out, err));
    (*out)->bytes = bytes;
    (*out)->size = size;
    return MPR_OK;
}

void mpri_source_close(Source *s)
{
    if (!s) return;
    for (SourceMap *m = s->maps; m; m = m->next) {
        if (m->bytes) munmap((void *)(uintptr_t)m->bytes, m->size);
        if (m->fd >= 0) close(m->fd);
    }
    s->maps = NULL;
    if (s->bytes && s->fd >= 0) munmap((void *)(uintptr_t)s->bytes, s->size);
    s->bytes = NULL;
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
}

void mpri_source_release(const Source *s, const void *bytes, size_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)bytes;
    uintptr_t from = (at + page - 1) / page * page, to = (at + n) / page * page;
    bool mapped = s && s->fd >= 0 && at - (uintptr_t)s->bytes < s->size;
    for (const SourceMap *m = s ? s->maps : NULL; m && !mapped; m = m->next)
        mapped = at - (uintptr_t)m->bytes < m->size;
    if (mapped && from < to) (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

bool mpri_source_same(const Source *a, const void *x, const Source *b, const void *y, size_t n)
{
    enum { STEP = 1 << 24, LARGE = 1 << 20 };
    bool same = true;
    for (size_t at = 0; at < n && same; at += STEP) {
        size_t k = n - at < STEP ? n - at : STEP;
        const char *left = (const char *)x + at, *right = (const char *)y + at;
        same = !memcmp(left, right, k);
        if (k >= LARGE) mpri_source_release(a, left, k);
        if (k >= LARGE) mpri_source_release(b, right, k);
    }
    return same;
}

static mpr_status unchanged(int fd, size_t size, int64_t changed, const char *name, Err *err)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && (size_t)st.st_size == size && mpri_source_time(&st) == changed)
        return MPR_OK;
    mpri_err_set(err, MPR_E_IO, "%s changed while it was in use", mpri_err_name(name));
    return mpri_err_advice(err, "leave the model and its data alone while it is loaded; write new "
                                "versions to another file and rename");
}

mpr_status mpri_source_unchanged(const Source *s, Err *err)
{
    if (s->fd >= 0) TRY(unchanged(s->fd, s->size, s->changed, s->path, err));
    for (const SourceMap *m = s->maps; m; m = m->next)
        TRY(unchanged(m->fd, m->size, m->changed, m->location, err));
    return MPR_OK;
}

/* ---- what people pass instead of a model */

typedef struct Format {
    size_t at;
    const char *magic;
    size_t n;
    const char *what, *advice;
} Format;

#define MAGIC(At, Text) (At), (Text), sizeof(Text) - 1
static const Format formats[] = {
    {MAGIC(0, "version https://git-lfs"), "a Git LFS pointer, not the file it stands for",
     "run `git lfs pull` in the repository, then use the real file"},
    {MAGIC(0, "\x1f\x8b"), "a gzip archive", "unpack it first: gunzip FILE"},
    {MAGIC(0, "PK\x03\x04"),
     "a zip archive (PyTorch .pt, .npz or an archive with the model inside)",
     "export the PyTorch model with torch.onnx.export, or unpack the archive"},
    {MAGIC(0, "BZh"), "a bzip2 archive", "unpack it first: bunzip2 FILE"},
    {MAGIC(0, "\xfd"
              "7zXZ"),
     "an xz archive", "unpack it first: unxz FILE"},
    {MAGIC(0, "\x28\xb5\x2f\xfd"), "a zstd archive", "unpack it first: unzstd FILE"},
    {MAGIC(0, "<!DOCTYPE"), "an HTML page, such as a web server's error",
     "download the file itself, not the page about it"},
    {MAGIC(0, "<!doctype"), "an HTML page, such as a web server's error",
     "download the file itself, not the page about it"},
    {MAGIC(0, "<html"), "an HTML page, such as a web server's error",
     "download the file itself, not the page about it"},
    {MAGIC(0, "<HTML"), "an HTML page, such as a web server's error",
     "download the file itself, not the page about it"},
    {MAGIC(0, "<?xml"), "an XML file, such as a web server's error or an OpenVINO model",
     "pass the .onnx file"},
    {MAGIC(4, "ORTM"), "a model in ONNX Runtime's ORT flatbuffer format",
     "pass the .onnx file it was made from"},
    {MAGIC(4, "TFL3"), "a TensorFlow Lite model", "convert the original model with tf2onnx"},
    {MAGIC(0, "\x89HDF"), "an HDF5 file, such as a Keras model", "convert the model with tf2onnx"},
    {MAGIC(0, "\x93NUMPY"), "a NumPy array", "pass the .onnx file"},
    {MAGIC(0, "\x80\x02"), "a Python pickle, such as an old PyTorch file",
     "export the model with torch.onnx.export"},
    {MAGIC(0, "ir_version:"), "an ONNX model in protobuf's text form",
     "convert it to binary: onnx.save(google.protobuf.text_format.Parse(text, onnx.ModelProto()), "
     "FILE)"},
    {MAGIC(0, "graph {"), "an ONNX model in protobuf's text form",
     "convert it to binary: onnx.save(google.protobuf.text_format.Parse(text, onnx.ModelProto()), "
     "FILE)"},
};

static mpr_status wrong_format(const Source *s, const char *what, const char *advice, Err *err)
{
    mpri_err_set(err, MPR_E_PROTO, "%s is not an ONNX model: it is %s", mpri_err_name(s->path),
                 what);
    mpri_err_where(err, "byte offset 0");
    return mpri_err_advice(err, "%s", advice);
}

static bool is_safetensors(const Source *s)
{
    uint64_t header = 0;
    if (s->size < 10 || s->bytes[8] != '{') return false;
    memcpy(&header, s->bytes, 8);
    return header >= 2 && header <= s->size - 8;
}

mpr_status mpri_source_recognise(const Source *s, Err *err)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const Format *f = &formats[i];
        if (s->size >= f->at + f->n && memcmp(s->bytes + f->at, f->magic, f->n) == 0)
            return wrong_format(s, f->what, f->advice, err);
    }
    if (is_safetensors(s))
        return wrong_format(s, "a safetensors file: weights without a graph",
                            "pass the .onnx model; give the weights with --init-weights", err);
    if (mpri_prescan_is_tensor(s->bytes, s->size))
        return wrong_format(s, "a single tensor (TensorProto), such as test data",
                            "pass the model.onnx beside it", err);
    return MPR_OK;
}

/* ---- index */

enum {
    MODEL_GRAPH = 7,
    MODEL_OPSET = 8,
    GRAPH_NODE = 1,
    GRAPH_INITIALIZER = 5,
    GRAPH_VALUE_INFO = 13
};

static int count_fields(const Source *s, Span in, uint32_t number)
{
    size_t pos = in.at;
    WireField f;
    int n = 0;
    while (mpri_wire_next(s->bytes, in.at + in.len, &pos, &f) == WIRE_OK) n += f.number == number;
    return n;
}

static mpr_status collect(const Source *s, Span in, uint32_t number, Arena *arena,
                          SourceField **out, int *n, Err *err)
{
    *n = count_fields(s, in, number);
    *out = ARENA_ARRAY(arena, SourceField, *n);
    if (!*out) return mpri_err_nomem(err, (size_t)*n * sizeof **out);
    size_t pos = in.at;
    WireField f;
    for (int i = 0; mpri_wire_next(s->bytes, in.at + in.len, &pos, &f) == WIRE_OK;)
        if (f.number == number) (*out)[i++] = (SourceField){f.tagged, f.body};
    return MPR_OK;
}

mpr_status mpri_source_index(Source *s, Arena *arena, Err *err)
{
    WireField g;
    TRY(collect(s, (Span){0, s->size}, MODEL_OPSET, arena, &s->opset_imports, &s->n_opset_imports,
                err));
    if (!mpri_wire_find(s->bytes, (Span){0, s->size}, MODEL_GRAPH, &g)) {
        mpri_err_set(err, MPR_E_INVALID_MODEL, "the model has no graph");
        return mpri_err_advice(err,
                               "the file is cut or holds only metadata: export the model again");
    }
    s->graph = (SourceField){g.tagged, g.body};
    TRY(collect(s, g.body, GRAPH_NODE, arena, &s->nodes, &s->n_nodes, err));
    TRY(collect(s, g.body, GRAPH_VALUE_INFO, arena, &s->value_infos, &s->n_value_infos, err));
    SourceField *tensors;
    TRY(collect(s, g.body, GRAPH_INITIALIZER, arena, &tensors, &s->n_tensors, err));
    s->tensors = ARENA_ARRAY(arena, SourceTensor, s->n_tensors);
    if (!s->tensors) return mpri_err_nomem(err, (size_t)s->n_tensors * sizeof(SourceTensor));
    for (int i = 0; i < s->n_tensors; i++) s->tensors[i].field = tensors[i];
    return MPR_OK;
}

/* ---- edit */

/* head receives the tag and the new length of the graph when that changes. */
static size_t put_head(uint8_t head[16], size_t length)
{
    size_t n = 0;
    head[n++] = MODEL_GRAPH << 3 | WIRE_BYTES;
    for (; length > 0x7F; length >>= 7) head[n++] = (uint8_t)(length | 0x80);
    head[n++] = (uint8_t)length;
    return n;
}

mpr_status mpri_source_pieces(const Source *s, const SourceEdit *edits, int n, Piece *out,
                              int *n_out, uint8_t head[16], Err *err)
{
    Span body = s->graph.body;
    size_t length = body.len, at = body.at;
    for (int i = 0; i < n; i++) {
        if (edits[i].at < at || edits[i].at > body.at + body.len ||
            edits[i].len > body.at + body.len - edits[i].at)
            return mpri_err_set(err, MPR_E_INTERNAL,
                                "edit %d at byte %zu overlaps another one or leaves the graph", i,
                                edits[i].at);
        at = edits[i].at + edits[i].len;
        length = length - edits[i].len + edits[i].n;
    }
    int k = 0;
    out[k++] = (Piece){.bytes = s->bytes, .n = s->graph.tagged.at};
    if (length == body.len)
        out[k++] = (Piece){.bytes = s->bytes + s->graph.tagged.at,
                           .n = body.at - s->graph.tagged.at}; /* keeps a padded length */
    else out[k++] = (Piece){.bytes = head, .n = put_head(head, length)};
    at = body.at;
    for (int i = 0; i < n; i++) {
        out[k++] = (Piece){.bytes = s->bytes + at, .n = edits[i].at - at};
        out[k++] = (Piece){.bytes = edits[i].bytes, .n = edits[i].n};
        at = edits[i].at + edits[i].len;
    }
    out[k++] = (Piece){.bytes = s->bytes + at, .n = s->size - at};
    *n_out = k;
    return MPR_OK;
}

mpr_status mpri_source_edit(const Source *s, const SourceEdit *edits, int n, Text *out, Err *err)
{
    uint8_t head[16];
    int k = 0;
    Piece *pieces = mpri_alloc(out->alloc, (2 * (size_t)n + 3) * sizeof *pieces, 16);
    if (!pieces) return mpri_err_nomem(err, (2 * (size_t)n + 3) * sizeof *pieces);
    mpr_status status = mpri_source_pieces(s, edits, n, pieces, &k, head, err);
    for (int i = 0; i < k; i++) mpri_text_bytes(out, pieces[i].bytes, pieces[i].n);
    mpri_free(out->alloc, pieces);
    return status != MPR_OK ? status : out->failed ? mpri_err_nomem(err, s->size) : MPR_OK;
}

static bool same_inode(int fd, const struct stat *st)
{
    struct stat own;
    return fd >= 0 && fstat(fd, &own) == 0 && own.st_dev == st->st_dev && own.st_ino == st->st_ino;
}

bool mpri_source_reads(const Source *s, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return false;
    for (const SourceMap *m = s->maps; m; m = m->next)
        if (same_inode(m->fd, &st)) return true;
    return same_inode(s->fd, &st);
}
