/* Edits: a node whose names change is written again field by field, everything else of it copied.
 * Casts stand right behind the producer of their value; those of graph inputs and initializers at
 * the start. */
#include "convert/write.h"

#include <stdio.h>
#include <string.h>

#include "convert/marks.h"
#include "convert/name.h"
#include "convert/wire_graph.h"

enum { ATTRIBUTE_TYPE_INT = 2, ATTRIBUTE_TYPE_TENSOR = 4 };

typedef struct Writing {
    Naming n;
    const ConvertOptions *o;
    Export *x;
    Text list; /* marks of the model */
    Err *err;
    const FileNodeIO *node; /* that is written, and how far */
    int at_in, at_out;
    bool changed;
    mpr_status status;
} Writing;

/* ---- added nodes ---- */

static void put_tensor(Text *out, const Made *m)
{
    const Shape *s = &m->constant->shape;
    size_t n = (size_t)mpri_shape_elements(s) * mpri_dtype_size(m->type);
    for (int i = 0; i < s->rank; i++) {
        mpri_wire_put_tag(out, TENSOR_DIMS, WIRE_VARINT);
        mpri_wire_put_varint(out, (uint64_t)s->d[i]);
    }
    mpri_wire_put_tag(out, TENSOR_DATA_TYPE, WIRE_VARINT);
    mpri_wire_put_varint(out, (uint64_t)m->type);
    mpri_wire_put_bytes(out, TENSOR_RAW, m->constant->data, n);
}

static void put_attribute(Text *node, const Made *m)
{
    Text attribute, tensor;
    mpri_text_init(&attribute, node->alloc);
    mpri_text_init(&tensor, node->alloc);
    const char *name = m->from ? "to" : "value";
    mpri_wire_put_bytes(&attribute, ATTRIBUTE_NAME, name, strlen(name));
    if (m->from) {
        mpri_wire_put_tag(&attribute, ATTRIBUTE_I, WIRE_VARINT);
        mpri_wire_put_varint(&attribute, (uint64_t)m->type);
    } else {
        put_tensor(&tensor, m);
        mpri_wire_put_bytes(&attribute, ATTRIBUTE_T, tensor.text, tensor.len);
    }
    mpri_wire_put_tag(&attribute, ATTRIBUTE_TYPE, WIRE_VARINT);
    mpri_wire_put_varint(&attribute, m->from ? ATTRIBUTE_TYPE_INT : ATTRIBUTE_TYPE_TENSOR);
    mpri_wire_put_bytes(node, NODE_ATTRIBUTE, attribute.text, attribute.len);
    node->failed = node->failed || attribute.failed || tensor.failed;
    mpri_text_free(&attribute);
    mpri_text_free(&tensor);
}

static void put_made(Writing *w, const Made *m, Text *out)
{
    Text node;
    const char *op = m->from ? "Cast" : "Constant";
    char mark[32];
    snprintf(mark, sizeof mark, "%s%s", mpri_file_suffix(m->type),
             m->rounds ? MPRI_MARK_ROUNDS : "");
    mpri_text_init(&node, out->alloc);
    if (m->from) mpri_wire_put_bytes(&node, NODE_INPUT, m->from, strlen(m->from));
    mpri_wire_put_bytes(&node, NODE_OUTPUT, m->to, strlen(m->to));
    mpri_wire_put_bytes(&node, NODE_NAME, m->name, strlen(m->name));
    mpri_wire_put_bytes(&node, NODE_OP_TYPE, op, strlen(op));
    put_attribute(&node, m);
    if (w->n.f->ir_version >= MPRI_MARK_IR)
        mpri_wire_put_entry(&node, NODE_METADATA, MPRI_MARK_NODE, mark, strlen(mark));
    else mpri_marks_list(&w->list, m->name, m->rounds);
    mpri_wire_put_bytes(out, GRAPH_NODE, node.text, node.len);
    out->failed = out->failed || node.failed;
    mpri_text_free(&node);
}

/* ---- nodes of the file ---- */

/* A graph inside a node reads a value of the main graph: in the type it always had. */
static const char *rename_inside(Writing *w, const char *name, size_t len)
{
    char *text = mpri_arena_alloc(&w->x->arena, len + 1);
    const char *to;
    if (!text) {
        w->status = mpri_err_nomem(w->err, len);
        return NULL;
    }
    memcpy(text, name, len);
    FileValue *v = mpri_file_value(w->n.f, text);
    if (!v || !mpri_file_castable(v->before)) return NULL;
    w->status = mpri_name_as_before(&w->n, v, &to, w->err);
    return w->status == MPR_OK && strcmp(to, text) != 0 ? to : NULL;
}

static const char *rename_in_node(void *ctx, NameUse use, const char *name, size_t len)
{
    Writing *w = ctx;
    const FileNodeIO *n = w->node;
    const char *to = NULL, *from;
    if (w->status != MPR_OK) return NULL;
    if (use == NAME_INPUT) {
        from = n->in[w->at_in];
        w->status = mpri_name_input(&w->n, n, w->at_in, &to, w->err);
        n->reads[w->at_in++] = to;
    } else if (use == NAME_OUTPUT) {
        from = n->out[w->at_out++];
        const FileValue *v = mpri_file_value(w->n.f, from);
        to = v ? v->base : from;
    } else if ((use == NAME_READ || use == NAME_TYPED) && len) {
        from = "";
        to = rename_inside(w, name, len);
    } else {
        return NULL;
    }
    if (!to || !strcmp(to, from)) return NULL;
    w->changed = true;
    return to;
}

/* New text of every node, or none where nothing changes. In this pass all Casts are made. */
static mpr_status rename_nodes(Writing *w, Text *texts)
{
    const Source *s = w->n.f->m->source;
    for (int i = 0; i < w->n.f->n_nodes; i++) {
        Text node;
        mpri_text_init(&texts[i], w->o->alloc);
        mpri_text_init(&node, w->o->alloc);
        w->node = &w->n.f->nodes[i];
        w->at_in = w->at_out = 0;
        w->changed = false;
        mpri_wire_node(s->bytes, s->nodes[i].body, rename_in_node, w, &node);
        if (w->changed)
            mpri_wire_put_bytes(&texts[i], GRAPH_NODE, node.text, node.len);
        texts[i].failed = texts[i].failed || node.failed;
        mpri_text_free(&node);
        TRY(w->status);
    }
    return MPR_OK;
}

static mpr_status insert(Writing *w, size_t at, Text *text)
{
    if (text->len || text->failed) return mpri_export_edit_text(w->x, at, 0, text, w->err);
    return MPR_OK;
}

/* Casts of graph inputs and initializers, before the first node. */
static mpr_status edit_start(Writing *w)
{
    const FileGraph *f = w->n.f;
    Text start;
    if (f->n_nodes == 0) return MPR_OK;
    mpri_text_init(&start, w->o->alloc);
    for (int i = 0; i < f->n_values; i++)
        for (const Made *m = f->values[i].producer < 0 ? f->values[i].first : NULL; m; m = m->next)
            put_made(w, m, &start);
    return insert(w, f->m->source->nodes[0].tagged.at, &start);
}

static mpr_status edit_nodes(Writing *w, Text *texts)
{
    const FileGraph *f = w->n.f;
    for (int i = 0; i < f->n_nodes; i++) {
        Span at = f->m->source->nodes[i].tagged;
        Text behind;
        mpri_text_init(&behind, w->o->alloc);
        for (int k = 0; k < f->nodes[i].n_out; k++) {
            const FileValue *v = mpri_file_value(f, f->nodes[i].out[k]);
            for (const Made *m = v ? v->first : NULL; m; m = m->next) put_made(w, m, &behind);
        }
        mpr_status st = MPR_OK;
        if (texts[i].len || texts[i].failed)
            st = mpri_export_edit_text(w->x, at.at, at.len, &texts[i], w->err);
        if (st == MPR_OK) st = insert(w, at.at + at.len, &behind);
        else mpri_text_free(&behind);
        TRY(st);
    }
    return MPR_OK;
}

/* Declared types of inner values that hold another one now. */
static mpr_status edit_value_infos(Writing *w)
{
    const FileGraph *f = w->n.f;
    const Source *s = f->m->source;
    for (int i = 0; i < s->n_value_infos; i++) {
        SourceField info = s->value_infos[i];
        WireField name;
        if (!mpri_wire_find(s->bytes, info.body, INFO_NAME, &name)) continue;
        const char *text = mpri_wire_text(s->bytes, name.body, &w->x->arena);
        if (!text) return mpri_err_nomem(w->err, name.body.len);
        const FileValue *v = mpri_file_value(f, text);
        if (!v || v->base != v->name || v->held == v->before ||
            mpri_wire_info_elem(s->bytes, info.body, NULL) != (int64_t)v->before)
            continue;
        Text edit;
        mpri_text_init(&edit, w->o->alloc);
        mpri_wire_info(s->bytes, info.body, (int64_t)v->held, &edit);
        TRY(mpri_export_edit_text(w->x, info.tagged.at, info.tagged.len, &edit, w->err));
    }
    return MPR_OK;
}

static mpr_status write_all(Writing *w, Text *texts, Text *marks)
{
    TRY(mpri_name_outputs(&w->n, w->err));
    TRY(rename_nodes(w, texts));
    TRY(edit_start(w));
    TRY(edit_nodes(w, texts));
    if (w->n.made) TRY(edit_value_infos(w));
    if (w->list.len)
        mpri_wire_put_entry(marks, MODEL_METADATA, MPRI_MARK_MODEL, w->list.text, w->list.len);
    return w->list.failed || marks->failed ? mpri_err_nomem(w->err, w->list.len) : MPR_OK;
}

mpr_status mpri_convert_write(FileGraph *f, const ConvertOptions *o, Export *x, Text *marks,
                              ConvertResult *r, Err *err)
{
    Writing w = {.n = {.f = f, .low = o->to}, .o = o, .x = x, .err = err};
    Text *texts = ARENA_ARRAY(&x->arena, Text, f->n_nodes);
    if (!texts) return mpri_err_nomem(err, sizeof *texts * (size_t)f->n_nodes);
    mpri_text_init(&w.list, o->alloc);
    mpr_status st = write_all(&w, texts, marks);
    for (int i = 0; i < f->n_nodes; i++) mpri_text_free(&texts[i]);
    mpri_text_free(&w.list);
    r->casts = w.n.made;
    return st;
}
