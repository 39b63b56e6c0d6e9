/* Unpacking with protobuf-c, span by span, and the checks of the model's head: IR version, opset
 * imports.
 *
 * Only spans that the pre-scan has accepted are unpacked, each by itself: nodes, value_infos,
 * functions. Initializers never come here (tensors.c), and of a node with one large tensor
 * attribute (weights in a Constant) the raw_data is left out and remembered as a span. All memory
 * of protobuf-c comes from an arena with the metadata budget, which is the only bound on how much a
 * message grows when it is unpacked. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "importer/file.h"
#include "importer/marks.h"
#include "importer/model.h"
#include "importer/wire.h"

enum { IR_OLDEST = 3, IR_NEWEST = 14, OPSET_NEWEST = 28, LARGE_NODE = 8192 };

/* ---- small readers */

int64_t mpri_opset_of(const Opsets *o, const char *domain)
{
    for (int i = 0; i < o->n; i++)
        if (strcmp(o->v[i].domain, domain) == 0) return o->v[i].version;
    return 0;
}

const AttributeProto *mpri_import_attr(const NodeProto *p, const char *name)
{
    for (size_t i = 0; i < p->n_attribute; i++)
        if (p->attribute[i]->name && strcmp(p->attribute[i]->name, name) == 0)
            return p->attribute[i];
    return NULL;
}

const char *mpri_import_node_name(const FileNode *n)
{
    static _Thread_local char buffers[4][560];
    static _Thread_local unsigned next;
    char *out = buffers[next++ % 4];
    const char *type = n->p->op_type ? n->p->op_type : "";
    if (n->p->name && n->p->name[0])
        snprintf(out, sizeof buffers[0], "node '%s' (%s)", mpri_err_name(n->p->name),
                 mpri_err_name(n->key ? n->key : type));
    else if (n->origin >= 0)
        snprintf(out, sizeof buffers[0], "node %d (%s)", n->origin,
                 mpri_err_name(n->key ? n->key : type));
    else
        snprintf(out, sizeof buffers[0], "a node in %s (%s)", mpri_err_name(n->path),
                 mpri_err_name(n->key ? n->key : type));
    return out;
}

static const char *canonical_domain(const char *domain)
{
    return !domain || strcmp(domain, "ai.onnx") == 0 ? "" : domain;
}

/* ---- protobuf-c */

static mpr_status unpack_failed(Import *im, Err *err)
{
    Arena *a = &im->d->proto;
    if (!im->budget_hit) return mpri_err_set(err, MPR_E_PROTO, "the message cannot be unpacked");
    if (a->limit && a->used > a->limit - a->limit / 64) {
        mpri_err_set(err, MPR_E_LIMIT,
                     "metadata once unpacked: more than %zu bytes, at most %zu are allowed",
                     a->used, a->limit);
        return mpri_err_advice(err, "if the file can be trusted, raise mpr_limits.metadata_bytes");
    }
    return mpri_err_nomem(err, 0);
}

/* The field's message; where it stands goes into the error. */
#define UNPACK(Im, Type, Field, Out, Err_)                                 \
    (*(Out) = onnx__##Type##__unpack(&(Im)->pb, (Field)->body.len,         \
                                     (Im)->src->bytes + (Field)->body.at), \
     *(Out) ? MPR_OK                                                       \
            : (unpack_failed((Im), (Err_)),                                \
               mpri_err_where((Err_), "byte offset %zu", (Field)->tagged.at)))

/* ---- head */

static mpr_status read_ir_version(Import *im, Err *err)
{
    WireField f;
    bool found = mpri_wire_find(im->src->bytes, (Span){0, im->src->size}, 1, &f);
    int64_t v = found ? (int64_t)f.value : 0;
    im->d->ir_version = v;
    if (v < IR_OLDEST) {
        mpri_err_set(err, MPR_E_IR_VERSION, "ir_version %s%" PRId64 ", %d to %d are supported",
                     found ? "" : "is absent, read as ", v, IR_OLDEST, IR_NEWEST);
        return mpri_err_advice(err, "export the model again with a current exporter");
    }
    if (v > IR_NEWEST)
        mpri_log(im->log, MPR_LOG_WARNING,
                 "ir_version %" PRId64 " is newer than %d, the newest that this program knows; "
                 "what it understands is used",
                 v, IR_NEWEST);
    return MPR_OK;
}

/* First opset of the default domain that came with an IR version. */
static int64_t opset_of_ir(int64_t ir)
{
    static const int8_t first[] = {[3] = 1,  [4] = 9,   [5] = 10,  [6] = 11,  [7] = 12,  [8] = 15,
                                   [9] = 19, [10] = 21, [11] = 23, [12] = 24, [13] = 25, [14] = 26};
    return ir > IR_NEWEST ? OPSET_NEWEST : first[ir];
}

static mpr_status add_opset(Import *im, Opset *v, int *n, const Onnx__OperatorSetIdProto *p,
                            Err *err)
{
    const char *domain = mpri_intern(im->names, canonical_domain(p->domain));
    if (!domain) return mpri_err_nomem(err, 0);
    int64_t version = p->has_version ? p->version : 0;
    for (int i = 0; i < *n; i++) {
        if (v[i].domain != domain) continue;
        if (v[i].version != version) {
            mpri_err_set(err, MPR_E_OPSET,
                         "domain '%s' is imported with two versions: %" PRId64 " and %" PRId64,
                         domain[0] ? mpri_err_name(domain) : "ai.onnx", v[i].version, version);
            return mpri_err_advice(err, "keep one of the two opset imports: which one the nodes "
                                        "were written for only the exporter knows");
        }
        mpri_log(im->log, MPR_LOG_WARNING, "domain '%s' is imported twice with version %" PRId64,
                 domain[0] ? mpri_err_name(domain) : "ai.onnx", version);
        return MPR_OK;
    }
    if (domain[0] == '\0' && (version < 1 || version > OPSET_NEWEST)) {
        mpri_err_set(err, MPR_E_OPSET, "opset %" PRId64 " of ai.onnx, 1 to %d are supported",
                     version, OPSET_NEWEST);
        return mpri_err_advice(err, "export the model for an opset from 7 to %d", OPSET_NEWEST);
    }
    v[(*n)++] = (Opset){domain, version};
    return MPR_OK;
}

static void derive_default(Import *im, Opset *v, int *n)
{
    if (mpri_opset_of(&(Opsets){.v = v, .n = *n}, "")) return;
    v[*n] = (Opset){mpri_intern(im->names, ""), opset_of_ir(im->d->ir_version)};
    mpri_log(im->log, MPR_LOG_WARNING,
             "no opset of ai.onnx is imported; ir_version %" PRId64 " suggests opset %" PRId64
             ", which is used",
             im->d->ir_version, v[*n].version);
    (*n)++;
}

static mpr_status read_opsets(Import *im, Err *err)
{
    const Source *s = im->src;
    Opset *v = ARENA_ARRAY(&im->m->arena, Opset, s->n_opset_imports + 1);
    int n = 0;
    if (!v) return mpri_err_nomem(err, (size_t)s->n_opset_imports * sizeof *v);
    for (int i = 0; i < s->n_opset_imports; i++) {
        Onnx__OperatorSetIdProto *p;
        TRY(UNPACK(im, operator_set_id_proto, &s->opset_imports[i], &p, err));
        TRY(add_opset(im, v, &n, p, err));
    }
    derive_default(im, v, &n);
    im->opsets = (Opsets){.v = v, .n = n};
    return MPR_OK;
}

/* ---- nodes */

static mpr_status intern_in_place(Import *im, char **s, Err *err)
{
    const char *name = mpri_intern(im->names, *s ? *s : "");
    if (!name) return mpri_err_nomem(err, 0);
    *s = (char *)(uintptr_t)name;
    return MPR_OK;
}

mpr_status mpri_import_finish_node(Import *im, FileNode *n, Err *err)
{
    NodeProto *p = n->p;
    for (size_t i = 0; i < p->n_input; i++) TRY(intern_in_place(im, &p->input[i], err));
    for (size_t i = 0; i < p->n_output; i++) TRY(intern_in_place(im, &p->output[i], err));
    TRY(intern_in_place(im, &p->name, err));
    TRY(intern_in_place(im, &p->op_type, err));
    n->domain = mpri_intern(im->names, canonical_domain(p->domain));
    n->key = n->domain && n->domain[0]
                 ? mpri_arena_printf(&im->d->proto, "%s:%s", n->domain, p->op_type)
                 : p->op_type;
    if (n->domain && n->key) n->key = mpri_intern(im->names, n->key);
    return n->domain && n->key ? MPR_OK : mpri_err_nomem(err, 0);
}

/* The one attribute tensor of a large node: span of its raw_data when that is most of the node. */
static bool large_raw(const Source *s, Span node, WireField *attr, WireField *tensor,
                      WireField *raw)
{
    size_t pos = node.at, end = node.at + node.len;
    while (mpri_wire_next(s->bytes, end, &pos, attr) == WIRE_OK) {
        if (attr->number != 5) continue;
        if (!mpri_wire_find(s->bytes, attr->body, 5, tensor) ||
            !mpri_wire_find(s->bytes, tensor->body, 9, raw))
            continue;
        if (raw->body.len > node.len / 2) return true;
    }
    return false;
}

static void put_without(const Source *s, Text *out, uint32_t number, Span body, Span hole,
                        const Text *filling)
{
    size_t tail = hole.at + hole.len;
    mpri_wire_put_tag(out, number, WIRE_BYTES);
    mpri_wire_put_varint(out, body.len - hole.len + (filling ? filling->len : 0));
    mpri_text_bytes(out, s->bytes + body.at, hole.at - body.at);
    if (filling) mpri_text_bytes(out, filling->text, filling->len);
    mpri_text_bytes(out, s->bytes + tail, body.at + body.len - tail);
}

static mpr_status unpack_large(Import *im, const SourceField *f, FileNode *n, bool *done, Err *err)
{
    const Source *s = im->src;
    WireField attr, tensor, raw;
    *done = large_raw(s, f->body, &attr, &tensor, &raw);
    if (!*done) return MPR_OK;
    Text t, a, node;
    mpri_text_init(&t, im->alloc);
    mpri_text_init(&a, im->alloc);
    mpri_text_init(&node, im->alloc);
    put_without(s, &t, 5, tensor.body, raw.tagged, NULL);
    put_without(s, &a, 5, attr.body, tensor.tagged, &t);
    put_without(s, &node, 1, f->body, attr.tagged, &a);
    size_t head = 0; /* the node's own tag and length go again */
    uint64_t skip;
    mpr_status status = MPR_OK;
    if (t.failed || a.failed || node.failed ||
        !mpri_wire_varint((const uint8_t *)node.text, node.len, &head, &skip) ||
        !mpri_wire_varint((const uint8_t *)node.text, node.len, &head, &skip)) {
        status = mpri_err_nomem(err, f->body.len);
    } else {
        n->p =
            onnx__node_proto__unpack(&im->pb, node.len - head, (const uint8_t *)node.text + head);
        if (!n->p) status = unpack_failed(im, err);
        n->raw = raw.body;
    }
    mpri_text_free(&t);
    mpri_text_free(&a);
    mpri_text_free(&node);
    return status;
}

static mpr_status read_nodes(Import *im, Err *err)
{
    const Source *s = im->src;
    if (s->n_nodes > im->limits.nodes) {
        mpri_err_set(err, MPR_E_LIMIT, "number of nodes: %d, at most %" PRId64 " are allowed",
                     s->n_nodes, im->limits.nodes);
        return mpri_err_advice(err, "if the file can be trusted, raise mpr_limits.nodes");
    }
    im->nodes = ARENA_ARRAY(&im->scratch, FileNode, s->n_nodes);
    if (!im->nodes) return mpri_err_nomem(err, (size_t)s->n_nodes * sizeof(FileNode));
    im->n_nodes = s->n_nodes;
    for (int i = 0; i < s->n_nodes; i++) {
        FileNode *n = &im->nodes[i];
        bool done = false;
        *n = (FileNode){.origin = i, .opsets = &im->opsets, .path = ""};
        if (s->nodes[i].body.len > LARGE_NODE) TRY(unpack_large(im, &s->nodes[i], n, &done, err));
        if (!done) TRY(UNPACK(im, node_proto, &s->nodes[i], &n->p, err));
        TRY(mpri_import_finish_node(im, n, err));
    }
    return MPR_OK;
}

/* ---- the other lists of the graph */

#define READ_LIST(Name, Number, CType, Unpack, Array, Count, In)                                  \
    static mpr_status Name(Import *im, Err *err)                                                  \
    {                                                                                             \
        size_t pos = (In).at;                                                                     \
        WireField f;                                                                              \
        while (mpri_wire_next(im->src->bytes, (In).at + (In).len, &pos, &f) == WIRE_OK)           \
            im->Count += f.number == (Number);                                                    \
        im->Array = ARENA_ARRAY(&im->scratch, CType *, im->Count);                                \
        if (!im->Array) return mpri_err_nomem(err, (size_t)im->Count * sizeof(void *));           \
        pos = (In).at;                                                                            \
        for (int i = 0; mpri_wire_next(im->src->bytes, (In).at + (In).len, &pos, &f) == WIRE_OK;) \
            if (f.number == (Number)) {                                                           \
                CType **out = &im->Array[i++];                                                    \
                TRY(UNPACK(im, Unpack, &f, out, err));                                            \
            }                                                                                     \
        return MPR_OK;                                                                            \
    }
READ_LIST(read_inputs, 11, ValueInfoProto, value_info_proto, inputs, n_inputs, im->src->graph.body)
READ_LIST(read_outputs, 12, ValueInfoProto, value_info_proto, outputs, n_outputs,
          im->src->graph.body)
READ_LIST(read_infos, 13, ValueInfoProto, value_info_proto, infos, n_infos, im->src->graph.body)
READ_LIST(read_sparse, 15, Onnx__SparseTensorProto, sparse_tensor_proto, sparse, n_sparse,
          im->src->graph.body)
READ_LIST(read_functions, 25, FunctionProto, function_proto, functions, n_functions,
          ((Span){0, im->src->size}))

static mpr_status read_graph_name(Import *im, Err *err)
{
    WireField f;
    const uint8_t *b = im->src->bytes;
    bool found = mpri_wire_find(b, im->src->graph.body, 2, &f);
    im->graph_name = found ? mpri_intern_n(im->names, (const char *)b + f.body.at, f.body.len)
                           : mpri_intern(im->names, "");
    return im->graph_name ? MPR_OK : mpri_err_nomem(err, 0);
}

static mpr_status intern_values(Import *im, ValueInfoProto **v, int n, Err *err)
{
    for (int i = 0; i < n; i++) TRY(intern_in_place(im, &v[i]->name, err));
    return MPR_OK;
}

mpr_status mpri_import_unpack(Import *im, Err *err)
{
    TRY(read_ir_version(im, err));
    TRY(read_opsets(im, err));
    TRY(read_graph_name(im, err));
    TRY(read_nodes(im, err));
    TRY(mpri_import_marks(im, err));
    TRY(read_inputs(im, err));
    TRY(read_outputs(im, err));
    TRY(read_infos(im, err));
    TRY(read_sparse(im, err));
    TRY(read_functions(im, err));
    TRY(intern_values(im, im->inputs, im->n_inputs, err));
    TRY(intern_values(im, im->outputs, im->n_outputs, err));
    return intern_values(im, im->infos, im->n_infos, err);
}
