/* External data of an exported model.
 *
 * The file of the source is never written to. Beside the new model lies a copy with the new
 * weights, under the location the model already has where that name is free (or already holds the
 * same bytes), else under <model>.data, and then the tensors get the new location. A tensor that
 * shares its bytes with another one moves into the model instead: patching the shared bytes would
 * change both. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "importer/encode.h"
#include "importer/export.h"
#include "importer/file.h"
#include "importer/model.h"
#include "importer/wire.h"

typedef struct Place { /* where the model goes */
    const char *name;  /* last component of its path */
    char folder[PATH_MAX];
    bool same;   /* the folder of the source */
    int renamed; /* how many .data names are in use */
} Place;

mpr_status mpri_export_external(Export *x, const SourceTensor *t, const void *bytes, size_t size,
                                Err *err)
{
    if (x->n_data == x->cap_data) {
        int want = x->cap_data ? 2 * x->cap_data : 64;
        DataPatch *more = ARENA_ARRAY(&x->arena, DataPatch, want);
        if (!more) return mpri_err_nomem(err, (size_t)want * sizeof *more);
        if (x->n_data) memcpy(more, x->data, (size_t)x->n_data * sizeof *more);
        x->data = more;
        x->cap_data = want;
    }
    x->data[x->n_data++] = (DataPatch){t, bytes, size};
    return MPR_OK;
}

/* ---- ranges */

static int by_range(const void *a, const void *b)
{
    const SourceTensor *x = *(const SourceTensor *const *)a, *y = *(const SourceTensor *const *)b;
    int c = strcmp(x->location, y->location);
    if (c) return c;
    if (x->ext_offset != y->ext_offset) return x->ext_offset < y->ext_offset ? -1 : 1;
    return (x > y) - (x < y);
}

/* shared[i]: initializer i shares bytes of its file with another one. */
static mpr_status find_shared(Export *x, bool *shared, Err *err)
{
    const Source *s = x->m->source;
    const SourceTensor **list = ARENA_ARRAY(&x->arena, const SourceTensor *, s->n_tensors);
    int n = 0;
    if (!list) return mpri_err_nomem(err, (size_t)s->n_tensors * sizeof *list);
    for (int i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].external && s->tensors[i].ext_length > 0) list[n++] = &s->tensors[i];
    if (n) qsort(list, (size_t)n, sizeof *list, by_range);
    const SourceTensor *widest = NULL; /* reaches farthest so far */
    for (int i = 0; i < n; i++) {
        if (widest && !strcmp(widest->location, list[i]->location) &&
            list[i]->ext_offset < widest->ext_offset + widest->ext_length)
            shared[widest - s->tensors] = shared[list[i] - s->tensors] = true;
        bool farther =
            !widest || strcmp(widest->location, list[i]->location) != 0 ||
            list[i]->ext_offset + list[i]->ext_length > widest->ext_offset + widest->ext_length;
        if (farther) widest = list[i];
    }
    return MPR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const DataPatch *x = a, *y = b;
    int c = strcmp(x->tensor->location, y->tensor->location);
    return c ? c
             : (x->tensor->ext_offset > y->tensor->ext_offset) -
                   (x->tensor->ext_offset < y->tensor->ext_offset);
}

/* Patches of shared bytes become raw_data in the model; the others are sorted by place. */
static mpr_status settle_patches(Export *x, bool *inlined, Err *err)
{
    const Source *s = x->m->source;
    bool *shared = ARENA_ARRAY(&x->arena, bool, s->n_tensors);
    int kept = 0;
    if (!shared) return mpri_err_nomem(err, (size_t)s->n_tensors);
    TRY(find_shared(x, shared, err));
    for (int i = 0; i < x->n_data; i++) {
        const DataPatch *d = &x->data[i];
        size_t index = (size_t)(d->tensor - s->tensors);
        if (!shared[index]) {
            x->data[kept++] = *d;
            continue;
        }
        Text text;
        mpri_text_init(&text, x->alloc);
        mpri_encode_tensor(s, &d->tensor->field,
                           &(TensorChange){.number = 5, .raw = d->bytes, .n = d->size}, &text);
        TRY(mpri_export_edit_text(x, d->tensor->field.tagged.at, d->tensor->field.tagged.len, &text,
                                  err));
        inlined[index] = true;
    }
    x->n_data = kept;
    if (kept) qsort(x->data, (size_t)kept, sizeof *x->data, by_offset);
    return MPR_OK;
}

/* ---- one data file */

static mpr_status pieces_of(Export *x, const SourceMap *map, int first, int n, Piece **out,
                            int *n_out, Err *err)
{
    Piece *p = ARENA_ARRAY(&x->arena, Piece, 2 * (size_t)n + 1);
    size_t at = 0;
    int k = 0;
    if (!p) return mpri_err_nomem(err, (size_t)n * sizeof *p);
    for (int i = first; i < first + n; i++) {
        const DataPatch *d = &x->data[i];
        size_t offset = (size_t)d->tensor->ext_offset;
        p[k++] = (Piece){.bytes = map->bytes + at, .n = offset - at, .source = x->m->source};
        p[k++] = (Piece){.bytes = d->bytes, .n = d->size};
        at = offset + d->size;
    }
    p[k++] = (Piece){.bytes = map->bytes + at, .n = map->size - at, .source = x->m->source};
    *out = p;
    *n_out = k;
    return MPR_OK;
}

typedef enum Found { FOUND_NOTHING, FOUND_SAME, FOUND_OTHER } Found;

static Found compare_file(const char *path, const Piece *pieces, int n)
{
    enum { STEP = 1 << 24 };
    char buf[16384];
    struct stat st;
    size_t total = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return errno == ENOENT ? FOUND_NOTHING : FOUND_OTHER;
    for (int i = 0; i < n; i++) total += pieces[i].n;
    bool same = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (size_t)st.st_size == total;
    for (int i = 0; same && i < n; i++)
        for (size_t at = 0, seen = 0; same && at < pieces[i].n;) {
            size_t want = pieces[i].n - at < sizeof buf ? pieces[i].n - at : sizeof buf;
            ssize_t got = read(fd, buf, want);
            if (got < 0 && errno == EINTR) continue;
            same = got > 0 && !memcmp(buf, (const char *)pieces[i].bytes + at, (size_t)got);
            at += got > 0 ? (size_t)got : 0;
            if (at - seen < STEP && at < pieces[i].n) continue;
            mpri_source_release(pieces[i].source, (const char *)pieces[i].bytes + seen, at - seen);
            seen = at;
        }
    close(fd);
    return same ? FOUND_SAME : FOUND_OTHER;
}

static mpr_status make_folders(Export *x, const Place *p, const char *location, Err *err)
{
    for (const char *slash = strchr(location, '/'); slash; slash = strchr(slash + 1, '/')) {
        char *path =
            mpri_arena_printf(&x->arena, "%s/%.*s", p->folder, (int)(slash - location), location);
        if (!path) return mpri_err_nomem(err, strlen(location));
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return mpri_err_set(err, MPR_E_IO, "%s: %s", mpri_err_name(path),
                                strerrordesc_np(errno));
    }
    return MPR_OK;
}

/* A name that no source uses; an earlier export under the same model name is replaced. */
static const char *new_location(Export *x, Place *p)
{
    for (;;) {
        int k = p->renamed++;
        char *name = k ? mpri_arena_printf(&x->arena, "%s.data%d", p->name, k)
                       : mpri_arena_printf(&x->arena, "%s.data", p->name);
        char *path = name ? mpri_arena_printf(&x->arena, "%s/%s", p->folder, name) : NULL;
        if (!path || !mpri_source_reads(x->m->source, path)) return path ? name : NULL;
    }
}

static bool has_checksum(const Source *s, const SourceTensor *t)
{
    size_t pos = t->field.body.at, end = pos + t->field.body.len;
    WireField f, key;
    while (mpri_wire_next(s->bytes, end, &pos, &f) == WIRE_OK)
        if (f.number == 13 && mpri_wire_find(s->bytes, f.body, 1, &key) && key.body.len == 8 &&
            !memcmp(s->bytes + key.body.at, "checksum", 8))
            return true;
    return false;
}

/* Tensors of a file that moved, or whose checksum no longer holds, are encoded again. */
static mpr_status relocate(Export *x, const char *from, const char *to, bool patched,
                           const bool *inlined, Err *err)
{
    const Source *s = x->m->source;
    bool moved = strcmp(from, to) != 0;
    for (int i = 0; i < s->n_tensors; i++) {
        const SourceTensor *t = &s->tensors[i];
        if (!t->external || inlined[i] || strcmp(t->location, from) != 0) continue;
        if (!moved && !(patched && has_checksum(s, t))) continue;
        Text text;
        mpri_text_init(&text, x->alloc);
        mpri_encode_tensor(s, &t->field, &(TensorChange){.number = 5, .location = to}, &text);
        TRY(mpri_export_edit_text(x, t->field.tagged.at, t->field.tagged.len, &text, err));
    }
    return MPR_OK;
}

static mpr_status note_new_file(Export *x, const char *path, Err *err)
{
    struct stat st;
    if (lstat(path, &st) == 0) return MPR_OK;
    DataFile *f = ARENA_NEW(&x->arena, DataFile);
    if (!f) return mpri_err_nomem(err, sizeof *f);
    *f = (DataFile){path, x->files};
    x->files = f;
    return MPR_OK;
}

static mpr_status export_map(Export *x, Place *p, const SourceMap *map, const bool *inlined,
                             Err *err)
{
    int first = 0, n = 0, n_pieces = 0;
    Piece *pieces = NULL;
    while (first < x->n_data && strcmp(x->data[first].tensor->location, map->location) != 0)
        first++;
    while (first + n < x->n_data && !strcmp(x->data[first + n].tensor->location, map->location))
        n++;
    if (p->same && n == 0) return MPR_OK;
    TRY(pieces_of(x, map, first, n, &pieces, &n_pieces, err));
    const char *location = map->location;
    char *path = mpri_arena_printf(&x->arena, "%s/%s", p->folder, location);
    if (!path) return mpri_err_nomem(err, PATH_MAX);
    Found found = p->same ? FOUND_OTHER : compare_file(path, pieces, n_pieces);
    if (found == FOUND_OTHER) {
        location = new_location(x, p);
        path = location ? mpri_arena_printf(&x->arena, "%s/%s", p->folder, location) : NULL;
        if (!path) return mpri_err_nomem(err, PATH_MAX);
    }
    if (found != FOUND_SAME) {
        TRY(make_folders(x, p, location, err));
        TRY(note_new_file(x, path, err));
        TRY(mpri_write_pieces_atomic(path, pieces, n_pieces, err));
    }
    return relocate(x, map->location, location, n > 0, inlined, err);
}

mpr_status mpri_export_data_files(Export *x, const char *path, Err *err)
{
    const Source *s = x->m->source;
    if (!s->maps) return MPR_OK;
    Place p = {.name = path};
    struct stat a, b;
    const char *slash = strrchr(path, '/');
    if (slash) p.name = slash + 1;
    snprintf(p.folder, sizeof p.folder, "%.*s", slash ? (int)(slash == path ? 1 : slash - path) : 1,
             slash ? path : ".");
    p.same = stat(p.folder, &a) == 0 && stat(s->folder, &b) == 0 && a.st_dev == b.st_dev &&
             a.st_ino == b.st_ino;
    bool *inlined = ARENA_ARRAY(&x->arena, bool, s->n_tensors);
    if (!inlined) return mpri_err_nomem(err, (size_t)s->n_tensors);
    TRY(settle_patches(x, inlined, err));
    for (const SourceMap *map = s->maps; map; map = map->next)
        TRY(export_map(x, &p, map, inlined, err));
    return MPR_OK;
}
