/* Which Casts of the file round what a node computes in float32 for want of a 16-bit form. A name
 * of the list that is no node's counts for nothing. */
#include "importer/marks.h"

#include <stdlib.h>
#include <string.h>

#include "importer/model.h"
#include "importer/wire.h"

enum { MODEL_METADATA = 14, ENTRY_KEY = 1, ENTRY_VALUE = 2 };

static bool entry_says(const NodeProto *p)
{
    for (size_t i = 0; i < p->n_metadata_props; i++) {
        const Onnx__StringStringEntryProto *e = p->metadata_props[i];
        const char *end = e->key && e->value && !strcmp(e->key, MPRI_MARK_NODE)
                              ? strchr(e->value, MPRI_MARK_ROUNDS[0]) : NULL;
        if (end && !strcmp(end, MPRI_MARK_ROUNDS)) return true;
    }
    return false;
}

/* The interned name of a line "\fNAME"; NULL when it is another one. */
static mpr_status listed_name(Import *im, const char *line, size_t n, const char **out, Err *err)
{
    *out = NULL;
    if (n < 3 || line[0] != '\\' || line[1] != 'f') return MPR_OK;
    char *name = mpri_arena_alloc(&im->scratch, n), *to = name;
    if (!name) return mpri_err_nomem(err, n);
    for (size_t i = 2; i < n; i++) {
        bool escaped = line[i] == '\\' && i + 1 < n;
        i += escaped;
        *to++ = escaped && line[i] == 'n' ? '\n' : line[i];
    }
    *to = '\0';
    *out = mpri_intern(im->names, name);
    return *out ? MPR_OK : mpri_err_nomem(err, n);
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const char *const *)a, y = (uintptr_t) * (const char *const *)b;
    return x < y ? -1 : x > y;
}

static bool list_of(const Import *im, Span *list)
{
    size_t pos = 0;
    WireField f, key, value;
    const uint8_t *bytes = im->src->bytes;
    while (mpri_wire_next(bytes, im->src->size, &pos, &f) == WIRE_OK) {
        if (f.number != MODEL_METADATA || !mpri_wire_find(bytes, f.body, ENTRY_KEY, &key) ||
            !mpri_wire_find(bytes, f.body, ENTRY_VALUE, &value) ||
            key.body.len != sizeof MPRI_MARK_MODEL - 1 ||
            memcmp(bytes + key.body.at, MPRI_MARK_MODEL, key.body.len) != 0)
            continue;
        *list = value.body;
        return true;
    }
    return false;
}

static mpr_status read_list(Import *im, Err *err)
{
    Span list;
    if (!list_of(im, &list)) return MPR_OK;
    const char *text = (const char *)im->src->bytes + list.at, *end = text + list.len;
    int n = 0, lines = 1;
    for (const char *p = text; p < end; p++) lines += *p == '\n';
    const char **names = ARENA_ARRAY(&im->scratch, const char *, lines);
    if (!names) return mpri_err_nomem(err, sizeof *names * (size_t)lines);
    for (const char *p = text, *next; p < end; p = next + 1) {
        next = memchr(p, '\n', (size_t)(end - p));
        if (!next) next = end;
        TRY(listed_name(im, p, (size_t)(next - p), &names[n], err));
        n += names[n] != NULL;
    }
    if (n) qsort(names, (size_t)n, sizeof *names, by_address);
    for (int i = 0; i < im->n_nodes && n; i++) {
        const char *name = im->nodes[i].p->name;
        if (*name && bsearch(&name, names, (size_t)n, sizeof *names, by_address))
            im->nodes[i].rounds = true;
    }
    return MPR_OK;
}

mpr_status mpri_import_marks(Import *im, Err *err)
{
    for (int i = 0; i < im->n_nodes; i++) im->nodes[i].rounds = entry_says(im->nodes[i].p);
    return read_list(im, err);
}
