/* The decisions as edits of the original bytes. A node whose names change is written again field by field,
 * everything else of it is copied; Cast nodes stand before the first reader of their result, or behind the
 * producer of a value whose name must keep its type. */
#include "convert/write.h"

#include <stdlib.h>
#include <string.h>

#include "importer/wire.h"

enum { NODE_INPUT = 1, NODE_OUTPUT = 2, NODE_NAME = 3, NODE_OP_TYPE = 4, NODE_ATTRIBUTE = 5, GRAPH_NODE = 1, GRAPH_VALUE_INFO = 13,
       ATTR_NAME = 1, ATTR_I = 3, ATTR_TYPE = 20, ATTR_TYPE_INT = 2, INFO_NAME = 1, INFO_TYPE = 2, TYPE_TENSOR = 1, TENSOR_ELEM = 1 };

typedef struct Writing {
    const ImportedModel *m;
    Decisions *d;
    const ConvertOptions *o;
    Arena *arena;
    SourceEdit *edits; int n_edits;
    ConvertResult *r;
} Writing;

static const char *suffix(DType t) { return t == MPR_FLOAT32 ? "fp32" : t == MPR_BFLOAT16 ? "bf16" : "fp16"; }

/* A name nobody has: "x_fp16", "x_fp16_1" … */
static mpr_status fresh_name(Writing *w, const char *base, DType t, const char **out, Err *err)
{
    for (int i = 0; i < 1000000; i++) {
        char *name = i ? mpri_arena_printf(w->arena, "%s_%s_%d", base, suffix(t), i) : mpri_arena_printf(w->arena, "%s_%s", base, suffix(t));
        if (!name) return mpri_err_nomem(err, strlen(base) + 16);
        bool taken = mpri_convert_value(w->d, name) || mpri_graph_find_value(w->m->graph, name);
        for (int k = 0; !taken && k < w->d->n_values; k++) {
            const FileValue *v = &w->d->values[k];
            taken = (v->low && !strcmp(v->low, name)) || (v->cast[0] && !strcmp(v->cast[0], name)) || (v->cast[1] && !strcmp(v->cast[1], name));
        }
        if (!taken) {
            *out = name;
            return MPR_OK;
        }
    }
    return mpri_err_set(err, MPR_E_INTERNAL, "no free name for a cast of '%s'", mpri_err_name(base));
}

static bool castable(DType t) { return t == MPR_FLOAT32 || mpri_dtype_is_low(t); }

/* Type that node n wants its input k in; NONE: as it is. */
static DType wanted(const FileNodeIO *n, int k, const FileValue *v)
{
    if (!castable(v->before) || n->passes || !strcmp(n->op_type, "Cast")) return MPR_DTYPE_NONE;
    if (k < 32 && (n->fixed_in & (1u << k))) return v->before;
    return n->compute == MPR_DTYPE_NONE ? v->before : n->compute;
}

/* Name under which node `reader` gets v in type t. */
static mpr_status name_in_type(Writing *w, FileValue *v, DType t, int reader, const char **name, Err *err)
{
    if (t == MPR_DTYPE_NONE) t = v->after;
    if (v->restore && t == v->before) { *name = v->name; return MPR_OK; }
    if (t == v->after) { *name = v->low ? v->low : v->name; return MPR_OK; }
    int k = t == MPR_FLOAT32;
    if (!v->cast[k]) {
        TRY(fresh_name(w, v->name, t, &v->cast[k], err));
        w->r->casts++;
    }
    if (v->first_use[k] < 0 || reader < v->first_use[k]) v->first_use[k] = reader;
    *name = v->cast[k];
    return MPR_OK;
}

static void put_cast(Text *out, const char *from, const char *to, DType t)
{
    Text node, attr;
    mpri_text_init(&node, out->alloc);
    mpri_text_init(&attr, out->alloc);
    mpri_wire_put_bytes(&attr, ATTR_NAME, "to", 2);
    mpri_wire_put_tag(&attr, ATTR_I, WIRE_VARINT);
    mpri_wire_put_varint(&attr, (uint64_t)t);
    mpri_wire_put_tag(&attr, ATTR_TYPE, WIRE_VARINT);
    mpri_wire_put_varint(&attr, ATTR_TYPE_INT);
    mpri_wire_put_bytes(&node, NODE_INPUT, from, strlen(from));
    mpri_wire_put_bytes(&node, NODE_OUTPUT, to, strlen(to));
    mpri_wire_put_bytes(&node, NODE_NAME, to, strlen(to));
    mpri_wire_put_bytes(&node, NODE_OP_TYPE, "Cast", 4);
    mpri_wire_put_bytes(&node, NODE_ATTRIBUTE, attr.text, attr.len);
    mpri_wire_put_bytes(out, GRAPH_NODE, node.text, node.len);
    if (attr.failed || node.failed) out->failed = true;
    mpri_text_free(&attr);
    mpri_text_free(&node);
}

static void put_node(Text *out, const Source *s, SourceField field, const char *const *in, const char *const *outs)
{
    Text node;
    size_t pos = field.body.at, end = field.body.at + field.body.len;
    WireField f;
    int i = 0, o = 0;
    mpri_text_init(&node, out->alloc);
    while (mpri_wire_next(s->bytes, end, &pos, &f) == WIRE_OK) {
        const char *name = f.number == NODE_INPUT ? in[i++] : f.number == NODE_OUTPUT ? outs[o++] : NULL;
        if (name) mpri_wire_put_bytes(&node, f.number, name, strlen(name));
        else mpri_text_bytes(&node, s->bytes + f.tagged.at, f.tagged.len);
    }
    mpri_wire_put_bytes(out, GRAPH_NODE, node.text, node.len);
    if (node.failed) out->failed = true;
    mpri_text_free(&node);
}

static mpr_status add_edit(Writing *w, Span at, Text *text, Err *err)
{
    void *bytes = text->failed ? NULL : mpri_arena_dup(w->arena, text->text ? text->text : "", text->len);
    if (!bytes) return mpri_err_nomem(err, text->len);
    w->edits[w->n_edits++] = (SourceEdit){at.at, at.len, bytes, text->len};
    return MPR_OK;
}

/* New names of every node's inputs and outputs. First all names, so that first_use is known, then text. */
static mpr_status rename_all(Writing *w, const char ***in, const char ***outs, Err *err)
{
    Decisions *d = w->d;
    for (int i = 0; i < d->n_values; i++) {
        FileValue *v = &d->values[i];
        if (v->restore) {
            TRY(fresh_name(w, v->name, v->after, &v->low, err));
            w->r->casts++;
        }
    }
    for (int i = 0; i < d->n_nodes; i++) {
        const FileNodeIO *n = &d->nodes[i];
        in[i] = ARENA_ARRAY(w->arena, const char *, n->n_in);
        outs[i] = ARENA_ARRAY(w->arena, const char *, n->n_out);
        if (!in[i] || !outs[i]) return mpri_err_nomem(err, sizeof(char *) * (size_t)(n->n_in + n->n_out));
        for (int k = 0; k < n->n_in; k++) {
            FileValue *v = *n->in[k] ? mpri_convert_value(d, n->in[k]) : NULL;
            in[i][k] = n->in[k];
            if (v) TRY(name_in_type(w, v, wanted(n, k, v), i, &in[i][k], err));
        }
        for (int k = 0; k < n->n_out; k++) {
            const FileValue *v = *n->out[k] ? mpri_convert_value(d, n->out[k]) : NULL;
            outs[i][k] = v && v->low ? v->low : n->out[k];
        }
    }
    return MPR_OK;
}

/* A norm that is rounded: the node writes f32 under a name of its own, a Cast gives the rounded value. */
static mpr_status round_outputs(Writing *w, int i, const char **outs, Text *behind, Err *err)
{
    const FileNodeIO *n = &w->d->nodes[i];
    for (int k = 0; k < n->n_out && n->round; k++) {
        const FileValue *v = *n->out[k] ? mpri_convert_value(w->d, n->out[k]) : NULL;
        if (!v || k > 0 || !castable(v->before)) continue;
        const char *wide;
        TRY(fresh_name(w, outs[k], MPR_FLOAT32, &wide, err));
        put_cast(behind, wide, outs[k], n->round_to);
        w->r->casts++;
        outs[k] = wide;
    }
    return MPR_OK;
}

typedef struct Cut { int at; const FileValue *v; int kind; } Cut; /* a cast before file node `at` */

static int by_place(const void *a, const void *b)
{
    const Cut *x = a, *y = b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    if (x->v != y->v) return x->v < y->v ? -1 : 1;
    return x->kind - y->kind;
}

static mpr_status edit_nodes(Writing *w, const char ***in, const char ***outs, Err *err)
{
    Decisions *d = w->d;
    const Source *s = w->m->source;
    int n_cuts = 0, c = 0;
    Cut *cuts = ARENA_ARRAY(w->arena, Cut, 2 * d->n_values + 1);
    if (!cuts) return mpri_err_nomem(err, sizeof *cuts * (size_t)d->n_values);
    for (int i = 0; i < d->n_values; i++)
        for (int k = 0; k < 2; k++)
            if (d->values[i].cast[k]) cuts[n_cuts++] = (Cut){d->values[i].first_use[k], &d->values[i], k};
    qsort(cuts, (size_t)n_cuts, sizeof *cuts, by_place);
    for (int i = 0; i < d->n_nodes; i++) {
        const FileNodeIO *n = &d->nodes[i];
        Text text, behind;
        mpri_text_init(&text, w->o->alloc);
        mpri_text_init(&behind, w->o->alloc);
        bool changed = false;
        for (; c < n_cuts && cuts[c].at == i; c++) {
            const FileValue *v = cuts[c].v;
            put_cast(&text, v->low ? v->low : v->name, v->cast[cuts[c].kind], cuts[c].kind ? MPR_FLOAT32 : w->o->to);
            changed = true;
        }
        mpr_status st = round_outputs(w, i, outs[i], &behind, err);
        for (int k = 0; k < n->n_in; k++) changed |= in[i][k] != n->in[k];
        for (int k = 0; k < n->n_out; k++) {
            const FileValue *v = *n->out[k] ? mpri_convert_value(d, n->out[k]) : NULL;
            changed |= outs[i][k] != n->out[k];
            if (v && v->low) put_cast(&behind, v->low, v->name, v->before);
        }
        if (st == MPR_OK && changed) {
            put_node(&text, s, s->nodes[i], in[i], outs[i]);
            mpri_text_bytes(&text, behind.text, behind.len);
            if (behind.failed) text.failed = true;
            st = add_edit(w, s->nodes[i].tagged, &text, err);
        }
        mpri_text_free(&text);
        mpri_text_free(&behind);
        TRY(st);
    }
    return MPR_OK;
}

/* Declared types of inner values that changed: the element type is one varint byte, replaced in place. */
static mpr_status edit_value_infos(Writing *w, Err *err)
{
    const Source *s = w->m->source;
    for (int i = 0; i < s->n_value_infos; i++) {
        WireField name, type, tensor, elem;
        if (!mpri_wire_find(s->bytes, s->value_infos[i].body, INFO_NAME, &name) || !mpri_wire_find(s->bytes, s->value_infos[i].body, INFO_TYPE, &type) ||
            !mpri_wire_find(s->bytes, type.body, TYPE_TENSOR, &tensor) || !mpri_wire_find(s->bytes, tensor.body, TENSOR_ELEM, &elem))
            continue;
        char *text = mpri_arena_alloc(w->arena, name.body.len + 1);
        if (!text) return mpri_err_nomem(err, name.body.len + 1);
        memcpy(text, s->bytes + name.body.at, name.body.len);
        const FileValue *v = mpri_convert_value(w->d, text);
        if (!v || v->restore || v->after == v->before || elem.body.len != 1) continue;
        char *byte = mpri_arena_alloc(w->arena, 1);
        if (!byte) return mpri_err_nomem(err, 1);
        *byte = (char)v->after;
        w->edits[w->n_edits++] = (SourceEdit){elem.body.at, 1, byte, 1};
    }
    return MPR_OK;
}

static int by_offset(const void *a, const void *b)
{
    const SourceEdit *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

mpr_status mpri_convert_write(const ImportedModel *m, Decisions *d, const ConvertOptions *o, Arena *arena, Text *out, ConvertResult *r, Err *err)
{
    Writing w = {.m = m, .d = d, .o = o, .arena = arena, .r = r};
    const char ***in = ARENA_ARRAY(arena, const char **, d->n_nodes + 1), ***outs = ARENA_ARRAY(arena, const char **, d->n_nodes + 1);
    w.edits = ARENA_ARRAY(arena, SourceEdit, d->n_nodes + m->source->n_value_infos + 1);
    if (!in || !outs || !w.edits) return mpri_err_nomem(err, sizeof *w.edits * (size_t)d->n_nodes);
    TRY(rename_all(&w, in, outs, err));
    TRY(edit_nodes(&w, in, outs, err));
    if (w.n_edits) TRY(edit_value_infos(&w, err));
    qsort(w.edits, (size_t)w.n_edits, sizeof *w.edits, by_offset);
    r->changed = w.n_edits > 0;
    return mpri_source_edit(m->source, w.edits, w.n_edits, out, err);
}
