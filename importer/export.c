/* The way out: the original file with the bytes of changed tensors replaced.
 *
 * A tensor whose values round to what the file already holds is not touched, so a run that changes
 * nothing writes the same bytes. The only change of structure is that of merged-by-value tensors: a
 * copy that came to differ from its source becomes an initializer of its own. */
#include "importer/importer.h"

#include <stdlib.h>
#include <string.h>

#include "importer/encode.h"
#include "importer/export.h"
#include "importer/file.h"
#include "importer/model.h"
#include "importer/wire.h"

/* ---- growing lists in the export's arena */

static bool grow(Arena *a, void **rows, int n, int *cap, size_t size)
{
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 64;
    void *p = mpri_arena_array(a, (size_t)want, size);
    if (!p) return false;
    if (n) memcpy(p, *rows, (size_t)n * size);
    *rows = p;
    *cap = want;
    return true;
}

mpr_status mpri_export_edit(Export *x, size_t at, size_t len, const void *bytes, size_t n, Err *err)
{
    if (!grow(&x->arena, (void **)&x->edits, x->n_edits, &x->cap_edits, sizeof *x->edits))
        return mpri_err_nomem(err, n);
    x->edits[x->n_edits] = (ExportEdit){{at, len, bytes, n}, x->n_edits};
    x->n_edits++;
    return MPR_OK;
}

/* Moves a finished text into the arena and makes it an edit. */
mpr_status mpri_export_edit_text(Export *x, size_t at, size_t len, Text *t, Err *err)
{
    void *copy = t->failed ? NULL : mpri_arena_dup(&x->arena, t->text ? t->text : "", t->len);
    size_t n = t->len;
    mpri_text_free(t);
    return copy ? mpri_export_edit(x, at, len, copy, n, err) : mpri_err_nomem(err, n);
}

/* ---- new contents of a tensor */

static int64_t elements(const SourceTensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

static bool same_float(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* New bytes in the tensor's own type; elements whose float is unchanged keep their bits. NULL data:
 * as in the file. *out is `old` itself when nothing changed. */
static mpr_status round_back(Export *x, DType t, const void *old, const int64_t *dims, int64_t n,
                             const float *data, bool transposed, const void **out, Err *err)
{
    size_t size = mpri_dtype_size(t);
    *out = old;
    if (!data) return MPR_OK;
    char *bytes = NULL;
    for (int64_t i = 0; i < n; i++) {
        int64_t from = transposed ? i % dims[1] * dims[0] + i / dims[1] : i;
        float was = (float)mpri_load_f64(t, old, i);
        if (same_float(was, data[from])) continue;
        if (!bytes) {
            bytes = mpri_arena_dup(&x->arena, old, (size_t)n * size);
            if (!bytes) return mpri_err_nomem(err, (size_t)n * size);
            *out = bytes;
        }
        if (t == MPR_FLOAT32) memcpy(bytes + 4 * i, &data[from], 4);
        else mpri_store_f64(t, bytes, i, (double)data[from]);
    }
    if (bytes && !memcmp(bytes, old, (size_t)n * size)) *out = old;
    return MPR_OK;
}

static mpr_status wrong_length(const char *name, int64_t found, int64_t need, Err *err)
{
    return mpri_err_set(err, MPR_E_INTERNAL,
                        "new weights of '%s' have %lld elements, the tensor has %lld",
                        mpri_err_name(name), (long long)found, (long long)need);
}

/* ---- patches by name */

static const WeightPatch *patch_of(const Export *x, const char *name)
{
    for (int lo = 0, hi = x->n_patches - 1; lo <= hi;) {
        int mid = (lo + hi) / 2, c = strcmp(name, x->patches[mid]->name);
        if (c == 0) return x->patches[mid];
        if (c < 0) hi = mid - 1;
        else lo = mid + 1;
    }
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const WeightPatch *const *)a)->name, (*(const WeightPatch *const *)b)->name);
}

static mpr_status sort_patches(Export *x, const WeightPatch *w, int n, Err *err)
{
    x->patches = ARENA_ARRAY(&x->arena, const WeightPatch *, n);
    if (!x->patches) return mpri_err_nomem(err, (size_t)n * sizeof *x->patches);
    for (int i = 0; i < n; i++) x->patches[i] = &w[i];
    x->n_patches = n;
    if (n) qsort(x->patches, (size_t)n, sizeof *x->patches, by_name);
    for (int i = 1; i < n; i++)
        if (!strcmp(x->patches[i - 1]->name, x->patches[i]->name))
            return mpri_err_set(err, MPR_E_INTERNAL, "two sets of new weights for '%s'",
                                mpri_err_name(x->patches[i]->name));
    return MPR_OK;
}

/* ---- initializers */

typedef struct CopyRow { /* a tied copy and its master */
    const char *name, *master;
    bool transposed;
} CopyRow;

static int by_copy_name(const void *a, const void *b)
{
    return strcmp(((const CopyRow *)a)->name, ((const CopyRow *)b)->name);
}

static mpr_status list_copies(const Graph *g, Arena *a, CopyRow **rows, int *n, Err *err)
{
    *n = 0;
    for (int i = 0; i < g->n_params; i++) *n += g->params[i].n_copies;
    *rows = ARENA_ARRAY(a, CopyRow, *n);
    if (!*rows) return mpri_err_nomem(err, (size_t)*n * sizeof **rows);
    int k = 0;
    for (int i = 0; i < g->n_params; i++)
        for (int c = 0; c < g->params[i].n_copies; c++)
            (*rows)[k++] = (CopyRow){g->params[i].copies[c].name, g->params[i].name,
                                     g->params[i].copies[c].transposed};
    if (k) qsort(*rows, (size_t)k, sizeof **rows, by_copy_name);
    return MPR_OK;
}

static mpr_status replace_tensor(Export *x, const SourceTensor *t, const void *bytes, Err *err)
{
    int64_t n = elements(t);
    size_t size = (size_t)n * mpri_dtype_size((DType)t->data_type);
    if (t->external) return mpri_export_external(x, t, bytes, size, err);
    if (t->has_raw) return mpri_export_edit(x, t->raw.at, t->raw.len, bytes, size, err);
    Text text;
    mpri_text_init(&text, x->alloc);
    TensorChange c = {.number = 5,
                      .typed_field = t->typed_field,
                      .data_type = t->data_type,
                      .values = bytes,
                      .elements = n};
    mpri_encode_tensor(x->m->source, &t->field, &c, &text);
    return mpri_export_edit_text(x, t->field.tagged.at, t->field.tagged.len, &text, err);
}

static mpr_status patch_initializers(Export *x, Err *err)
{
    const Source *s = x->m->source;
    CopyRow *copies;
    int n_copies;
    TRY(list_copies(x->m->graph, &x->arena, &copies, &n_copies, err));
    x->now = ARENA_ARRAY(&x->arena, const void *, s->n_tensors);
    if (!x->now) return mpri_err_nomem(err, (size_t)s->n_tensors * sizeof *x->now);
    for (int i = 0; i < s->n_tensors; i++) {
        const SourceTensor *t = &s->tensors[i];
        x->now[i] = t->data;
        if (!t->name[0] || !mpri_dtype_is_float((DType)t->data_type)) continue;
        CopyRow key = {.name = t->name};
        const CopyRow *copy =
            n_copies ? bsearch(&key, copies, (size_t)n_copies, sizeof key, by_copy_name) : NULL;
        const WeightPatch *w = patch_of(x, copy ? copy->master : t->name);
        if (!w) continue;
        if (w->n != elements(t)) return wrong_length(t->name, w->n, elements(t), err);
        x->used += copy == NULL;
        TRY(round_back(x, (DType)t->data_type, t->data, t->dims, w->n, w->data,
                       copy && copy->transposed, &x->now[i], err));
        if (x->now[i] != t->data) TRY(replace_tensor(x, t, x->now[i], err));
    }
    return MPR_OK;
}

/* ---- merged-by-value copies */

static int tensor_of(const Source *s, const char *name)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].name == name) return i;
    return -1;
}

static mpr_status insert_initializer(Export *x, const MergedCopy *c, const SourceTensor *t,
                                     const void *bytes, Err *err)
{
    Text text;
    size_t size = (size_t)elements(t) * mpri_dtype_size((DType)t->data_type);
    mpri_text_init(&text, x->alloc);
    mpri_encode_new_tensor(c->name, t->data_type, t->rank, t->dims, bytes, size, &text);
    TRY(mpri_export_edit_text(x, t->field.tagged.at + t->field.tagged.len, 0, &text, err));
    if (x->m->detail->ir_version >= 4) return MPR_OK;
    Span body = x->m->source->graph.body; /* IR 3: every initializer is a graph input */
    mpri_text_init(&text, x->alloc);
    mpri_encode_new_input(c->name, t->data_type, t->rank, t->dims, &text);
    return mpri_export_edit_text(x, body.at + body.len, 0, &text, err);
}

/* The Cast between a tensor and its reader once more, for the reader's own copy. *out: what the
 * reader reads. */
static mpr_status insert_cast(Export *x, const MergedCopy *c, const char **out, Err *err)
{
    const Source *s = x->m->source;
    Span cast = s->nodes[c->cast].body;
    Text node, text;
    WireField f, own;
    size_t pos = cast.at;
    /* the ending tells the converter that the Cast was one of its own */
    bool ours = mpri_wire_find(s->bytes, cast, 3, &own) &&
                memmem(s->bytes + own.body.at, own.body.len, "__mpr_", 6);
    char *name = mpri_arena_printf(&x->arena, ours ? "%s__mpr_cast" : "%s_cast", c->name);
    if (!name) return mpri_err_nomem(err, strlen(c->name));
    mpri_text_init(&node, x->alloc);
    mpri_text_init(&text, x->alloc);
    while (mpri_wire_next(s->bytes, cast.at + cast.len, &pos, &f) == WIRE_OK) {
        const char *to = f.number == 1 ? c->name : f.number == 2 || f.number == 3 ? name : NULL;
        if (to) mpri_wire_put_bytes(&node, f.number, to, strlen(to));
        else mpri_text_bytes(&node, s->bytes + f.tagged.at, f.tagged.len);
    }
    mpri_wire_put_bytes(&text, 1, node.text, node.len);
    text.failed = text.failed || node.failed;
    mpri_text_free(&node);
    *out = name;
    return mpri_export_edit_text(x, s->nodes[c->reader].tagged.at, 0, &text, err);
}

/* Renames the inputs of one reader: all its copies at once, as the node is encoded once. */
static mpr_status rename_inputs(Export *x, const MergedCopy *c, int n, const bool *differs,
                                Err *err)
{
    const SourceField *node = &x->m->source->nodes[c->reader];
    int inputs = 0;
    for (int i = 0; i < n; i++) inputs = c[i].input + 1 > inputs ? c[i].input + 1 : inputs;
    const char **names = ARENA_ARRAY(&x->arena, const char *, inputs);
    if (!names) return mpri_err_nomem(err, (size_t)inputs * sizeof *names);
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (!differs[i]) continue;
        any = true;
        names[c[i].input] = c[i].name;
        if (c[i].cast >= 0) TRY(insert_cast(x, &c[i], &names[c[i].input], err));
    }
    if (!any) return MPR_OK;
    Text text;
    mpri_text_init(&text, x->alloc);
    mpri_encode_node_inputs(x->m->source, node, names, inputs, &text);
    return mpri_export_edit_text(x, node->tagged.at, node->tagged.len, &text, err);
}

static mpr_status patch_merged(Export *x, Err *err)
{
    const ImportDetail *d = x->m->detail;
    const Source *s = x->m->source;
    bool *differs = ARENA_ARRAY(&x->arena, bool, d->n_merged);
    if (!differs) return mpri_err_nomem(err, (size_t)d->n_merged);
    for (int i = 0; i < d->n_merged; i++) {
        const MergedCopy *c = &d->merged[i];
        int source = tensor_of(s, c->source);
        const SourceTensor *t = &s->tensors[source];
        const WeightPatch *w = patch_of(x, c->name);
        int64_t n = elements(t);
        const void *bytes;
        if (w && w->n != n) return wrong_length(c->name, w->n, n, err);
        x->used += w != NULL;
        TRY(round_back(x, (DType)t->data_type, t->data, t->dims, n, w ? w->data : NULL, false,
                       &bytes, err));
        differs[i] =
            memcmp(bytes, x->now[source], (size_t)n * mpri_dtype_size((DType)t->data_type)) != 0;
        if (!differs[i]) continue;
        TRY(insert_initializer(x, c, t, bytes, err));
        const SourceField *identity = c->identity >= 0 ? &s->nodes[c->identity] : NULL;
        if (identity)
            TRY(mpri_export_edit(x, identity->tagged.at, identity->tagged.len, "", 0, err));
    }
    for (int i = 0, k; i < d->n_merged; i = k) {
        for (k = i + 1; k < d->n_merged && d->merged[k].identity < 0 &&
                        d->merged[k].reader == d->merged[i].reader;)
            k++;
        if (d->merged[i].identity < 0)
            TRY(rename_inputs(x, &d->merged[i], k - i, differs + i, err));
    }
    return MPR_OK;
}

/* ---- lifted Constants */

/* The node's only attribute holds a tensor (raw, typed or external), or a list of floats. */
static mpr_status replace_constant(Export *x, const LiftedConstant *k, const void *bytes, Err *err)
{
    const Source *s = x->m->source;
    const SourceField *node = &s->nodes[k->node];
    size_t size = (size_t)k->elements * mpri_dtype_size(k->dtype);
    WireField attr, tensor, raw, external;
    Text change, inner, outer;
    if (!mpri_wire_find(s->bytes, node->body, 5, &attr))
        return mpri_err_set(err, MPR_E_INTERNAL, "Constant '%s' has no value",
                            mpri_err_name(k->name));
    bool is_tensor = mpri_wire_find(s->bytes, attr.body, 5, &tensor);
    if (is_tensor && mpri_wire_find(s->bytes, tensor.body, 9, &raw))
        return mpri_export_edit(x, raw.body.at, raw.body.len, bytes, size, err);
    mpri_text_init(&change, x->alloc);
    mpri_text_init(&inner, x->alloc);
    mpri_text_init(&outer, x->alloc);
    TensorChange c = {.number = 5,
                      .typed_field = 7,
                      .data_type = k->dtype,
                      .values = bytes,
                      .elements = k->elements};
    if (is_tensor) {
        if (mpri_wire_find(s->bytes, tensor.body, 13, &external))
            c = (TensorChange){.number = 5, .raw = bytes, .n = size};
        else c.typed_field = k->dtype == MPR_FLOAT32 ? 4 : k->dtype == MPR_FLOAT64 ? 10 : 5;
        mpri_encode_tensor(s, &(SourceField){tensor.tagged, tensor.body}, &c, &change);
        mpri_encode_outer(s, 5, attr.body, tensor.tagged, &change, &inner);
    } else {
        mpri_encode_tensor(s, &(SourceField){attr.tagged, attr.body}, &c,
                           &inner); /* `floats` is a typed list as well */
    }
    mpri_encode_outer(s, 1, node->body, attr.tagged, &inner, &outer);
    mpri_text_free(&change);
    mpri_text_free(&inner);
    return mpri_export_edit_text(x, node->tagged.at, node->tagged.len, &outer, err);
}

static mpr_status patch_constants(Export *x, Err *err)
{
    const ImportDetail *d = x->m->detail;
    for (int i = 0; i < d->n_constants; i++) {
        const LiftedConstant *k = &d->constants[i];
        const WeightPatch *w = patch_of(x, k->name);
        const void *bytes;
        if (!w) continue;
        if (w->n != k->elements) return wrong_length(w->name, w->n, k->elements, err);
        x->used++;
        TRY(round_back(x, k->dtype, k->data, NULL, w->n, w->data, false, &bytes, err));
        if (bytes != k->data) TRY(replace_constant(x, k, bytes, err));
    }
    return MPR_OK;
}

/* ---- the file */

static mpr_status refuse_source(const ImportedModel *m, const char *path, Err *err)
{
    if (!mpri_source_reads(m->source, path)) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE,
                 "%s is the model that was read (or its data): it is not overwritten",
                 mpri_err_name(path));
    return mpri_err_advice(err, "write to another file");
}

static int by_place(const void *a, const void *b)
{
    const ExportEdit *x = a, *y = b;
    if (x->edit.at != y->edit.at) return x->edit.at < y->edit.at ? -1 : 1;
    if ((x->edit.len == 0) != (y->edit.len == 0))
        return x->edit.len == 0 ? -1 : 1; /* an insertion before what is replaced */
    return x->order - y->order;
}

static mpr_status write_model(Export *x, const char *path, Err *err)
{
    uint8_t head[16];
    int n = 0;
    SourceEdit *edits = ARENA_ARRAY(&x->arena, SourceEdit, x->n_edits);
    Piece *pieces = ARENA_ARRAY(&x->arena, Piece, 2 * (size_t)x->n_edits + 3);
    if (!edits || !pieces) return mpri_err_nomem(err, (size_t)x->n_edits * sizeof *pieces);
    if (x->n_edits) qsort(x->edits, (size_t)x->n_edits, sizeof *x->edits, by_place);
    for (int i = 0; i < x->n_edits; i++) edits[i] = x->edits[i].edit;
    TRY(mpri_source_pieces(x->m->source, edits, x->n_edits, pieces, &n, head, err));
    uint64_t total = 0;
    for (int i = 0; i < n; i++) total += pieces[i].n;
    if (total > INT32_MAX && x->m->source->size <= INT32_MAX)
        return mpri_err_set(err, MPR_E_LIMIT,
                            "%s would have %llu bytes, an ONNX file has at most 2147483647",
                            mpri_err_name(path), (unsigned long long)total);
    return mpri_write_pieces_atomic(path, pieces, n, err);
}

static mpr_status export_all(Export *x, const char *path, const WeightPatch *w, int n, Err *err)
{
    TRY(refuse_source(x->m, path, err));
    TRY(mpri_source_unchanged(x->m->source, err));
    TRY(sort_patches(x, w, n, err));
    TRY(patch_initializers(x, err));
    TRY(patch_merged(x, err));
    TRY(patch_constants(x, err));
    if (x->used != n) {
        for (int i = 0; i < n; i++)
            if (!mpri_intern_find(x->m->names, w[i].name))
                return mpri_err_set(err, MPR_E_INTERNAL, "the file has no tensor '%s'",
                                    mpri_err_name(w[i].name));
        return mpri_err_set(err, MPR_E_INTERNAL, "%d of %d weights have no place in the file",
                            n - x->used, n);
    }
    TRY(mpri_export_data_files(x, path, err));
    return write_model(x, path, err);
}

mpr_status mpri_export_file(const ImportedModel *m, const char *path, const WeightPatch *w, int n,
                            const Alloc *alloc, Err *err)
{
    Export x = {.m = m, .alloc = alloc ? alloc : mpri_alloc_default()};
    mpri_arena_init(&x.arena, x.alloc, 0);
    mpr_status status = export_all(&x, path, w, n, err);
    mpri_arena_destroy(&x.arena);
    return status;
}
