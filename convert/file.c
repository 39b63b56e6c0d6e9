/* Reading the main graph by names. Types come from the importer's graph; names that it resolves
 * away (a tied copy, an alias) take theirs from the tensor or through the Identity. */
#include "convert/file.h"

#include <string.h>

#include "convert/wire_graph.h"
#include "runtime/base/hash.h"

typedef struct NameEntry {
    const char *name; /* key */
    int value;        /* index of the main graph's value, -1: another kind of name */
    bool lost;
    UT_hash_handle hh;
} NameEntry;

const char *mpri_file_suffix(DType t)
{
    return t == MPR_FLOAT32 ? "f32" : t == MPR_BFLOAT16 ? "bf16" : "f16";
}

/* ---- names ---- */

static NameEntry *find_name(const FileGraph *f, const char *name, size_t len)
{
    NameEntry *e;
    HASH_FIND(hh, f->names, name, len, e);
    return e;
}

FileValue *mpri_file_value(const FileGraph *f, const char *name)
{
    const NameEntry *e = find_name(f, name, strlen(name));
    return e && e->value >= 0 ? &f->values[e->value] : NULL;
}

static NameEntry *know(FileGraph *f, const char *name)
{
    Arena *hash_arena = f->arena;
    NameEntry *e = ARENA_NEW(hash_arena, NameEntry);
    if (!e) return NULL;
    *e = (NameEntry){.name = name, .value = -1};
    HASH_ADD_KEYPTR(hh, f->names, e->name, strlen(e->name), e);
    return e->lost ? NULL : e;
}

mpr_status mpri_file_fresh(FileGraph *f, const char *base, const char **out, Err *err)
{
    for (int i = 0;; i++) {
        char *name = i ? mpri_arena_printf(f->arena, "%s_%d", base, i)
                       : mpri_arena_strdup(f->arena, base);
        if (!name) return mpri_err_nomem(err, strlen(base) + 16);
        if (find_name(f, name, strlen(name))) continue;
        *out = name;
        return know(f, name) ? MPR_OK : mpri_err_nomem(err, sizeof(NameEntry));
    }
}

static mpr_status add_value(FileGraph *f, const char *name, int producer, Err *err)
{
    if (!*name) return MPR_OK;
    NameEntry *e = find_name(f, name, strlen(name));
    if (!e && !(e = know(f, name))) return mpri_err_nomem(err, sizeof *e);
    if (e->value < 0) {
        if (f->n_values == f->cap_values) {
            int cap = f->cap_values ? f->cap_values * 2 : 256;
            FileValue *more = ARENA_ARRAY(f->arena, FileValue, cap);
            if (!more) return mpri_err_nomem(err, sizeof *more * (size_t)cap);
            if (f->n_values) memcpy(more, f->values, sizeof *more * (size_t)f->n_values);
            f->values = more;
            f->cap_values = cap;
        }
        e->value = f->n_values++;
        f->values[e->value] = (FileValue){.name = name, .base = name, .producer = -1};
    }
    if (producer >= 0) f->values[e->value].producer = producer;
    return MPR_OK;
}

typedef struct Collect {
    FileGraph *f;
    bool failed;
} Collect;

static const char *collect_name(void *ctx, NameUse use, const char *name, size_t len)
{
    Collect *c = ctx;
    (void)use;
    if (c->failed || len == 0 || find_name(c->f, name, len)) return NULL;
    char *copy = mpri_arena_alloc(c->f->arena, len + 1);
    if (copy) memcpy(copy, name, len);
    c->failed = !copy || !know(c->f, copy);
    return NULL;
}

/* ---- nodes ---- */

static mpr_status read_node(FileGraph *g, Span span, FileNodeIO *n, Err *err)
{
    const uint8_t *bytes = g->m->source->bytes;
    size_t pos = span.at, end = span.at + span.len;
    WireField f;
    n->op_type = n->domain = n->name = "";
    while (mpri_wire_next(bytes, end, &pos, &f) == WIRE_OK) {
        n->n_in += f.number == NODE_INPUT;
        n->n_out += f.number == NODE_OUTPUT;
    }
    n->in = ARENA_ARRAY(g->arena, const char *, n->n_in);
    n->out = ARENA_ARRAY(g->arena, const char *, n->n_out);
    if (!n->in || !n->out) return mpri_err_nomem(err, sizeof *n);
    int i = 0, o = 0;
    pos = span.at;
    while (mpri_wire_next(bytes, end, &pos, &f) == WIRE_OK) {
        const char **to = f.number == NODE_INPUT     ? &n->in[i++]
                          : f.number == NODE_OUTPUT  ? &n->out[o++]
                          : f.number == NODE_NAME    ? &n->name
                          : f.number == NODE_OP_TYPE ? &n->op_type
                          : f.number == NODE_DOMAIN  ? &n->domain
                                                     : NULL;
        if (to && !(*to = mpri_wire_text(bytes, f.body, g->arena)))
            return mpri_err_nomem(err, f.body.len);
    }
    if (!strcmp(n->domain, "ai.onnx")) n->domain = "";
    n->bodies = mpri_wire_has_bodies(bytes, span);
    n->alias = !*n->domain && !strcmp(n->op_type, "Identity") && n->n_in == 1 && n->n_out == 1;
    return MPR_OK;
}

static mpr_status read_nodes(FileGraph *f, Err *err)
{
    const Source *s = f->m->source;
    Collect c = {.f = f};
    f->n_nodes = s->n_nodes;
    f->nodes = ARENA_ARRAY(f->arena, FileNodeIO, s->n_nodes);
    if (!f->nodes) return mpri_err_nomem(err, sizeof *f->nodes * (size_t)s->n_nodes);
    for (int i = 0; i < s->n_nodes; i++) {
        FileNodeIO *n = &f->nodes[i];
        TRY(read_node(f, s->nodes[i].body, n, err));
        for (int k = 0; k < n->n_in; k++) TRY(add_value(f, n->in[k], -1, err));
        for (int k = 0; k < n->n_out; k++) TRY(add_value(f, n->out[k], i, err));
    }
    mpri_wire_graph(s->bytes, s->graph.body, collect_name, &c, NULL);
    if (c.failed) return mpri_err_nomem(err, sizeof(NameEntry));
    for (int i = 0; i < f->m->graph->n_outputs; i++) {
        FileValue *v = mpri_file_value(f, f->m->graph->outputs[i].name);
        if (v && v->producer >= 0) v->output = true;
    }
    return MPR_OK;
}

/* Producers before readers: the file's own order where it is one. */
static mpr_status sort_nodes(FileGraph *f, Err *err)
{
    int n = 0, *waiting = ARENA_ARRAY(f->arena, int, f->n_nodes + 1);
    bool *done = ARENA_ARRAY(f->arena, bool, f->n_nodes + 1);
    f->order = ARENA_ARRAY(f->arena, int, f->n_nodes + 1);
    if (!f->order || !done || !waiting)
        return mpri_err_nomem(err, sizeof(int) * (size_t)f->n_nodes);
    for (int start = 0; start < f->n_nodes; start++) {
        int top = 0;
        if (!done[start]) waiting[top++] = start;
        while (top) {
            int i = waiting[top - 1], next = -1;
            for (int k = 0; k < f->nodes[i].n_in && next < 0; k++) {
                const FileValue *v = mpri_file_value(f, f->nodes[i].in[k]);
                if (v && v->producer >= 0 && !done[v->producer]) next = v->producer;
            }
            if (next >= 0 && top < f->n_nodes) {
                waiting[top++] = next;
                continue;
            }
            top--;
            if (!done[i]) f->order[n++] = i;
            done[i] = true;
        }
    }
    return MPR_OK;
}

/* ---- types ---- */

static DType tensor_type(const Source *s, const char *name)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (!strcmp(s->tensors[i].name, name)) return (DType)s->tensors[i].data_type;
    return MPR_DTYPE_NONE;
}

static void read_types(FileGraph *f)
{
    for (int i = 0; i < f->n_values; i++) {
        FileValue *v = &f->values[i];
        const Value *known = mpri_graph_find_value(f->m->graph, v->name);
        v->before = known            ? known->dtype
                    : v->producer < 0 ? tensor_type(f->m->source, v->name)
                                      : MPR_DTYPE_NONE;
    }
    for (int i = 0; i < f->n_nodes; i++) {
        const FileNodeIO *n = &f->nodes[f->order[i]];
        const FileValue *in = n->alias ? mpri_file_value(f, n->in[0]) : NULL;
        FileValue *out = in ? mpri_file_value(f, n->out[0]) : NULL;
        if (out && out->before == MPR_DTYPE_NONE) out->before = in->before;
    }
    for (int i = 0; i < f->n_values; i++) {
        FileValue *v = &f->values[i];
        v->meant = v->held = v->before;
    }
}

static void read_versions(FileGraph *f)
{
    const Source *s = f->m->source;
    WireField domain, version;
    if (mpri_wire_find(s->bytes, (Span){0, s->size}, MODEL_IR_VERSION, &version))
        f->ir_version = (int64_t)version.value;
    for (int i = 0; i < s->n_opset_imports; i++) {
        Span span = s->opset_imports[i].body;
        bool named = mpri_wire_find(s->bytes, span, OPSET_DOMAIN, &domain) && domain.body.len &&
                     !mpri_wire_is(s->bytes, domain.body, "ai.onnx");
        if (!named && mpri_wire_find(s->bytes, span, OPSET_VERSION, &version))
            f->opset = (int64_t)version.value;
    }
}

mpr_status mpri_file_read(const ImportedModel *m, Arena *arena, FileGraph *f, Err *err)
{
    *f = (FileGraph){.m = m, .arena = arena};
    read_versions(f);
    TRY(read_nodes(f, err));
    TRY(sort_nodes(f, err));
    read_types(f);
    return MPR_OK;
}
