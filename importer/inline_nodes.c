/* Nodes that the expansion adds, and the numbers it knows. */
#include "importer/inline_private.h"

#include <stdio.h>
#include <string.h>

/* ---- nodes */

NodeProto *mpri_inline_node(Inliner *x, const char *op, int n, const char *const *in,
                            const char *out)
{
    NodeProto *p = mpri_arena_alloc(&x->im->d->proto, sizeof *p);
    char **names = mpri_arena_array(&x->im->d->proto, (size_t)n + 1, sizeof *names);
    if (!p || !names) return NULL;
    onnx__node_proto__init(p);
    for (int i = 0; i < n; i++) names[i] = (char *)(uintptr_t)in[i];
    names[n] = (char *)(uintptr_t)out;
    p->n_input = (size_t)n;
    p->input = names;
    p->n_output = 1;
    p->output = names + n;
    p->op_type = (char *)(uintptr_t)op;
    return p;
}

static AttributeProto *add_attribute(Inliner *x, NodeProto *p, const char *name, int type)
{
    Arena *a = &x->im->d->proto;
    AttributeProto *attr = mpri_arena_alloc(a, sizeof *attr),
                   **list = mpri_arena_array(a, p->n_attribute + 1, sizeof *list);
    if (!attr || !list) return NULL;
    onnx__attribute_proto__init(attr);
    attr->name = (char *)(uintptr_t)name;
    attr->has_type = true;
    attr->type = (Onnx__AttributeProto__AttributeType)type;
    if (p->n_attribute) memcpy(list, p->attribute, p->n_attribute * sizeof *list);
    list[p->n_attribute++] = attr;
    p->attribute = list;
    return attr;
}

bool mpri_inline_attr(Inliner *x, NodeProto *p, const char *name, int type, int64_t n,
                      const int64_t *v)
{
    AttributeProto *a = add_attribute(x, p, name, type);
    if (!a) return false;
    if (type == ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT) {
        a->has_i = true;
        a->i = v[0];
        return true;
    }
    a->n_ints = (size_t)n;
    a->ints = mpri_arena_dup(&x->im->d->proto, v, (size_t)n * sizeof *v);
    return a->ints != NULL;
}

mpr_status mpri_inline_tensor(Inliner *x, TensorProto *t, const char *out, const Expansion *e)
{
    NodeProto *p = mpri_inline_node(x, "Constant", 0, NULL, out);
    AttributeProto *a =
        p ? add_attribute(x, p, "value", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR) : NULL;
    if (!a) return mpri_err_nomem(x->err, sizeof *a);
    a->t = t;
    TRY(mpri_inline_note_node(x, p));
    return mpri_inline_emit(x, p, e);
}

mpr_status mpri_inline_number(Inliner *x, const Expansion *e, DType t, int rank, int64_t value,
                              const char **out)
{
    Arena *a = &x->im->d->proto;
    TensorProto *p = mpri_arena_alloc(a, sizeof *p);
    if (!*out) *out = mpri_inline_fresh(x, e->path, "number");
    if (!p || !*out) return mpri_err_nomem(x->err, sizeof *p);
    onnx__tensor_proto__init(p);
    p->has_data_type = true;
    p->data_type = (int32_t)t;
    const int64_t one = 1;
    const int32_t truth = value != 0;
    p->n_dims = (size_t)rank;
    p->dims = mpri_arena_dup(a, &one, sizeof one);
    if (t == MPR_BOOL) {
        p->n_int32_data = 1;
        p->int32_data = mpri_arena_dup(a, &truth, sizeof truth);
    } else {
        p->n_int64_data = 1;
        p->int64_data = mpri_arena_dup(a, &value, sizeof value);
    }
    if (!p->dims || !(t == MPR_BOOL ? (void *)p->int32_data : (void *)p->int64_data))
        return mpri_err_nomem(x->err, sizeof *p);
    return mpri_inline_tensor(x, p, *out, e);
}

mpr_status mpri_inline_alias(Inliner *x, const char *from, const char *to, const Expansion *e)
{
    const Sequence *s = mpri_sequence_find(x, from);
    int64_t value;
    if (s) return mpri_sequence_put(x, to, s->n, s->items, s->optional);
    NodeProto *p = mpri_inline_node(x, "Identity", 1, &from, to);
    if (!p) return mpri_err_nomem(x->err, sizeof *p);
    if (mpri_inline_known(x, from, &value)) TRY(mpri_inline_note(x, to, value));
    return mpri_inline_emit(x, p, e);
}

/* Unsqueeze has its axes as an input from opset 13 on. */
static mpr_status unsqueeze(Inliner *x, const Expansion *e, const char *from, int64_t axis,
                            const char **out)
{
    const char *in[2] = {from, NULL};
    bool input = mpri_opset_of(e->opsets, "") >= 13;
    if (input) TRY(mpri_inline_number(x, e, MPR_INT64, 1, axis, &in[1]));
    *out = mpri_inline_fresh(x, e->path, "piece");
    NodeProto *p = *out ? mpri_inline_node(x, "Unsqueeze", 1 + input, in, *out) : NULL;
    if (!p || (!input && !mpri_inline_attr(x, p, "axes",
                                           ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS, 1, &axis)))
        return mpri_err_nomem(x->err, sizeof *p);
    return mpri_inline_emit(x, p, e);
}

mpr_status mpri_inline_join(Inliner *x, const Expansion *e, int n, const char *const *in,
                            int64_t axis, bool stack, const char *out)
{
    const char **pieces = ARENA_ARRAY(&x->im->scratch, const char *, n);
    if (!pieces) return mpri_err_nomem(x->err, (size_t)n * sizeof *pieces);
    for (int i = 0; i < n; i++)
        if (stack) TRY(unsqueeze(x, e, in[i], axis, &pieces[i]));
        else pieces[i] = in[i];
    NodeProto *p = mpri_inline_node(x, "Concat", n, pieces, out);
    if (!p || !mpri_inline_attr(x, p, "axis", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT, 1, &axis))
        return mpri_err_nomem(x->err, sizeof *p);
    return mpri_inline_emit(x, p, e);
}

mpr_status mpri_inline_pick(Inliner *x, const Expansion *e, const char *from, int64_t index,
                            int64_t axis, const char **out)
{
    const char *in[2] = {from, NULL};
    TRY(mpri_inline_number(x, e, MPR_INT64, 0, index, &in[1]));
    if (!*out) *out = mpri_inline_fresh(x, e->path, "element");
    NodeProto *p = *out ? mpri_inline_node(x, "Gather", 2, in, *out) : NULL;
    if (!p || !mpri_inline_attr(x, p, "axis", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT, 1, &axis))
        return mpri_err_nomem(x->err, sizeof *p);
    return mpri_inline_emit(x, p, e);
}

/* ---- what is known */

mpr_status mpri_inline_note(Inliner *x, const char *name, int64_t value)
{
    Arena *hash_arena = &x->im->scratch;
    Known *k, *old;
    HASH_FIND_PTR(x->known, &name, old);
    if (old) return MPR_OK;
    k = ARENA_NEW(hash_arena, Known);
    if (!k) return mpri_err_nomem(x->err, sizeof *k);
    k->name = name;
    k->value = value;
    HASH_ADD_PTR(x->known, name, k);
    return k->lost ? mpri_err_nomem(x->err, sizeof *k) : MPR_OK;
}

bool mpri_inline_known(const Inliner *x, const char *name, int64_t *value)
{
    Known *k;
    HASH_FIND_PTR(x->known, &name, k);
    if (k) *value = k->value;
    return k || mpri_inline_dim(x, name, FACT_VALUE, value);
}

/* Facts are compared as texts: interning them would take their names from what is still to be made.
 */
bool mpri_inline_dim(const Inliner *x, const char *name, int axis, int64_t *value)
{
    const ImportOptions *o = x->im->o;
    for (int i = 0; i < o->n_facts; i++)
        if (o->facts[i].axis == axis && !strcmp(o->facts[i].name, name)) {
            *value = o->facts[i].value;
            return true;
        }
    return false;
}

mpr_status mpri_inline_ask(Inliner *x, const char *name, int axis)
{
    for (int i = 0; i < x->n_open; i++)
        if (x->open[i].name == name && x->open[i].axis == axis) return MPR_OK;
    if (!mpri_inline_grow(&x->im->scratch, (void **)&x->open, x->n_open, &x->cap_open,
                          sizeof *x->open))
        return mpri_err_nomem(x->err, sizeof *x->open);
    x->open[x->n_open++] = (Fact){.name = name, .axis = axis};
    return MPR_OK;
}

static bool one_element(const TensorProto *t)
{
    for (size_t i = 0; i < t->n_dims; i++)
        if (t->dims[i] != 1) return false;
    return true;
}

static mpr_status note_tensor(Inliner *x, const char *name, int type, const uint8_t *raw, size_t n)
{
    int64_t wide;
    int32_t narrow;
    if (type == MPR_BOOL && n == 1) return mpri_inline_note(x, name, raw[0] != 0);
    if (type == MPR_INT64 && n == sizeof wide) {
        memcpy(&wide, raw, sizeof wide);
        return mpri_inline_note(x, name, wide);
    }
    if (type != MPR_INT32 || n != sizeof narrow) return MPR_OK;
    memcpy(&narrow, raw, sizeof narrow);
    return mpri_inline_note(x, name, narrow);
}

/* Conditions are handed on from turn to turn by these. */
static mpr_status note_result(Inliner *x, const NodeProto *p)
{
    int64_t v, to = mpri_inline_int(p, "to", 0);
    if (p->n_input != 1 || p->n_output != 1 || !mpri_inline_known(x, p->input[0], &v))
        return MPR_OK;
    bool truth = !strcmp(p->op_type, "Not"), cast = !strcmp(p->op_type, "Cast");
    if (truth || (cast && to == MPR_BOOL)) v = truth ? !v : v != 0;
    else if (strcmp(p->op_type, "Identity") && !(cast && to == MPR_INT64)) return MPR_OK;
    return mpri_inline_note(x, p->output[0], v);
}

mpr_status mpri_inline_note_node(Inliner *x, const NodeProto *p)
{
    if (p->n_input) return note_result(x, p);
    const AttributeProto *a =
        p->n_attribute == 1 && p->n_output == 1 && !strcmp(p->op_type, "Constant") ? p->attribute[0]
                                                                                   : NULL;
    const TensorProto *t = a ? a->t : NULL;
    if (a && !t && !strcmp(a->name, "value_int") && a->has_i)
        return mpri_inline_note(x, p->output[0], a->i);
    if (!t || !t->has_data_type || !one_element(t)) return MPR_OK;
    if (t->has_raw_data)
        return note_tensor(x, p->output[0], t->data_type, t->raw_data.data, t->raw_data.len);
    if (t->data_type == MPR_INT64 && t->n_int64_data == 1)
        return mpri_inline_note(x, p->output[0], t->int64_data[0]);
    if (t->n_int32_data != 1 || (t->data_type != MPR_BOOL && t->data_type != MPR_INT32))
        return MPR_OK;
    return mpri_inline_note(x, p->output[0],
                            t->data_type == MPR_BOOL ? t->int32_data[0] != 0 : t->int32_data[0]);
}

mpr_status mpri_inline_note_all(Inliner *x)
{
    const Source *s = x->im->src;
    for (int i = 0; i < s->n_tensors; i++) {
        const SourceTensor *t = &s->tensors[i];
        bool one = t->name[0] && t->data;
        for (int k = 0; k < t->rank; k++) one = one && t->dims[k] == 1;
        const NameDef *d = one ? mpri_scope_find(x->scope, t->name) : NULL;
        size_t size = mpri_dtype_size((DType)t->data_type);
        if (d && !d->overridable && size) TRY(note_tensor(x, t->name, t->data_type, t->data, size));
    }
    for (int i = 0; i < x->im->n_nodes; i++)
        if (!x->im->nodes[i].domain[0]) TRY(mpri_inline_note_node(x, x->im->nodes[i].p));
    return MPR_OK;
}

int64_t mpri_inline_int(const NodeProto *p, const char *attr, int64_t none)
{
    const AttributeProto *a = mpri_import_attr(p, attr);
    return a ? a->i : none;
}

const char *mpri_inline_why(const char *key)
{
    static const struct {
        const char *key, *why;
    } rows[] = {
        {"If", "its condition is known only when the model runs"},
        {"Loop", "how often it turns is known only when the model runs"},
        {"Scan", "the length of what it scans is known only when the model runs"},
        {"SplitToSequence", "how many pieces there are is known only when the model runs"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!strcmp(key, rows[i].key)) return rows[i].why;
    if (!strncmp(key, "Sequence", 8) || !strncmp(key, "Optional", 8) ||
        !strcmp(key, "ConcatFromSequence"))
        return "sequences and optional values cannot enter or leave the model";
    return NULL;
}

/* ---- paths */

const char *mpri_inline_branch(const GraphProto *g, const NodeProto *from)
{
    const AttributeProto *branch[2] = {mpri_import_attr(from, "then_branch"),
                                       mpri_import_attr(from, "else_branch")};
    const char *name[2] = {"", ""};
    for (int i = 0; i < 2; i++)
        if (branch[i] && branch[i]->g && branch[i]->g->name) name[i] = branch[i]->g->name;
    int taken = branch[0] && branch[0]->g == g ? 0 : 1;
    return strcmp(name[0], name[1]) && *name[taken] ? name[taken]
           : taken                                  ? "else_branch"
                                                    : "then_branch";
}
