/* Adapting one node, and the generic check of arity and attributes.
 *
 * Rows of adapters run first and take the attributes that only old opsets have; what is left is
 * checked against the attribute rows of the operator, so no list of attributes exists twice. */
#include "importer/adapt.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "importer/tensors.h"

enum { T_FLOAT = 1, T_INT, T_STRING, T_TENSOR, T_GRAPH, T_FLOATS, T_INTS, T_STRINGS };

static const char *const kind_text[] = {
    [ATTR_INT] = "an integer",
    [ATTR_FLOAT] = "a float",
    [ATTR_STRING] = "a string",
    [ATTR_INTS] = "a list of integers",
    [ATTR_FLOATS] = "a list of floats",
    [ATTR_TENSOR] = "a tensor",
    [ATTR_DTYPE] = "an integer (a data type)",
};

/* ---- helpers for adapters */

const AttributeProto *mpri_adapt_take(Draft *d, const char *name)
{
    const NodeProto *p = d->node->p;
    for (size_t i = 0; i < p->n_attribute; i++) {
        if (d->taken[i] || strcmp(p->attribute[i]->name, name) != 0) continue;
        d->taken[i] = true;
        return p->attribute[i];
    }
    return NULL;
}

static const AttributeProto *take_kind(Draft *d, const char *name, int type, AttrKind kind,
                                       Err *err)
{
    const AttributeProto *a = mpri_adapt_take(d, name);
    if (!a || (int)a->type == type) return a;
    mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s must be %s", d->label, name,
                     kind_text[kind]);
    return NULL;
}

bool mpri_adapt_take_int(Draft *d, const char *name, int64_t *v, Err *err)
{
    const AttributeProto *a = take_kind(d, name, T_INT, ATTR_INT, err);
    if (a) *v = a->i;
    return a != NULL;
}

bool mpri_adapt_take_float(Draft *d, const char *name, float *v, Err *err)
{
    const AttributeProto *a = take_kind(d, name, T_FLOAT, ATTR_FLOAT, err);
    if (a) *v = a->f;
    return a != NULL;
}

bool mpri_adapt_take_ints(Draft *d, const char *name, Ints *v, Err *err)
{
    const AttributeProto *a = take_kind(d, name, T_INTS, ATTR_INTS, err);
    if (a) *v = (Ints){(int64_t)a->n_ints, a->ints};
    return a != NULL;
}

static const char *role_name(Draft *d, const char *role)
{
    return mpri_arena_printf(&d->im->scratch, "%s:%s", d->base, role);
}

Value *mpri_adapt_ints(Draft *d, const char *role, int64_t n, const int64_t *v)
{
    Shape shape = {.rank = 1, .d = {n}};
    const char *name = role_name(d, role);
    return name ? mpri_value_const_copy(d->g, name, MPR_INT64, &shape, v) : NULL;
}

Value *mpri_adapt_scalar(Draft *d, const char *role, DType t, double v)
{
    Shape shape = {.rank = 0};
    uint64_t bits = 0;
    mpri_store_f64(t, &bits, 0, v);
    const char *name = role_name(d, role);
    return name ? mpri_value_const_copy(d->g, name, t, &shape, &bits) : NULL;
}

mpr_status mpri_adapt_set_input(Draft *d, int k, Value *v, Err *err)
{
    if (!v) return mpri_err_nomem(err, sizeof *v);
    while (d->n_in <= k) d->in[d->n_in++] = NULL;
    d->in[k] = v;
    return MPR_OK;
}

mpr_status mpri_adapt_emit(Draft *d, int op, const char *role, const void *params, int n_in,
                           Value *const *in, Value **out, Err *err)
{
    const char *name = role_name(d, role);
    Node *n = name ? mpri_node_create(d->g, NULL, d->g->ops->defs[op], d->node->p->name, params,
                                      n_in, in, 1)
                   : NULL;
    if (!n) return mpri_err_nomem(err, sizeof *n);
    n->origin = d->origin;
    mpri_value_rename(d->g, n->out[0], name);
    *out = n->out[0];
    return mpri_infer_node(d->g, n, err);
}

/* ---- arity */

static bool optional(const OpDef *op, int k)
{
    return k < 32 && (op->optional_in >> k & 1);
}

static void check_arity(const Draft *d, Err *err)
{
    const OpDef *op = d->op;
    if (d->n_in < op->min_in || (op->max_in >= 0 && d->n_in > op->max_in)) {
        if (op->max_in < 0)
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s has %d inputs, it needs at least %d",
                             d->label, d->n_in, op->min_in);
        else
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s has %d inputs, it needs %d to %d",
                             d->label, d->n_in, op->min_in, op->max_in);
        return;
    }
    for (int k = 0; k < d->n_in; k++)
        if (!d->in[k] && !optional(op, k) && (k < op->min_in || op->max_in < 0))
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: its required input %d is empty",
                             d->label, k);
    if (d->n_out < op->min_out || (op->max_out >= 0 && d->n_out > op->max_out))
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s has %d outputs, it has %d%s%d", d->label,
                         d->n_out, op->min_out, op->max_out < 0 ? " or more: " : " to ",
                         op->max_out < 0 ? op->min_out : op->max_out);
}

/* ---- attributes */

/* Attributes that the standard has and that change nothing here. */
static const struct {
    const char *op, *name;
} ignored[] = {
    {NULL, "consumed_inputs"},
    {"Cast", "round_mode"},
    {"Range", "stash_type"},
    {"Dropout", "is_test"},
    {"BatchNormalization", "is_test"},
    {"Gemm", "broadcast"},
};

static bool is_ignored(const OpDef *op, const char *name)
{
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        if (!strcmp(ignored[i].name, name) && (!ignored[i].op || !strcmp(ignored[i].op, op->name)))
            return true;
    return false;
}

static bool kind_matches(const AttrRow *row, int type)
{
    static const int wanted[] = {
        [ATTR_INT] = T_INT,   [ATTR_FLOAT] = T_FLOAT,   [ATTR_STRING] = T_STRING,
        [ATTR_INTS] = T_INTS, [ATTR_FLOATS] = T_FLOATS, [ATTR_TENSOR] = T_TENSOR,
        [ATTR_DTYPE] = T_INT,
    };
    return wanted[row->kind] == type;
}

static void set_int(Draft *d, const AttrRow *row, int64_t v, Err *err)
{
    if (row->kind == ATTR_DTYPE && (v < 1 || v > 28))
        mpri_err_finding(err, MPR_E_INVALID_MODEL,
                         "%s: attribute %s is data type %" PRId64 ", types 1 to 28 exist", d->label,
                         row->name, v);
    else if (row->kind == ATTR_DTYPE && mpri_dtype_size((DType)v) == 0)
        d->opaque_why = "a data type that is not computed";
    else if (!mpri_params_row_allows(row, &v))
        mpri_err_finding(err, MPR_E_INVALID_MODEL,
                         "%s: attribute %s is %" PRId64 ", %" PRId64 " to %" PRId64 " are allowed",
                         d->label, row->name, v, row->min_int, row->max_int);
    memcpy((char *)d->params + row->offset, &v, sizeof v);
}

static mpr_status set_string(Draft *d, const AttrRow *row, const AttributeProto *a, Err *err)
{
    const char *s = mpri_intern_n(d->im->names, a->s.len ? (const char *)a->s.data : "", a->s.len);
    if (!s) return mpri_err_nomem(err, a->s.len);
    if (!mpri_utf8_valid(s, a->s.len))
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s is no valid UTF-8 text",
                         d->label, row->name);
    else if (!mpri_params_row_allows(row, &s))
        mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s is '%s', %s are allowed",
                         d->label, row->name, mpri_err_name(s), row->choices);
    memcpy((char *)d->params + row->offset, &s, sizeof s);
    return MPR_OK;
}

static mpr_status set_tensor(Draft *d, const AttrRow *row, const AttributeProto *a, Err *err)
{
    TensorForm form = mpri_tensor_form(a->t, a->t->name && a->t->name[0] ? a->t->name : d->label);
    TensorData t;
    if (d->node->raw.len) {
        form.has_raw = true;
        form.raw = d->im->src->bytes + d->node->raw.at;
        form.raw_len = d->node->raw.len;
    }
    TRY(mpri_tensor_decode(d->im, &form, &t, err));
    if (t.data_type > MPR_BFLOAT16 || mpri_dtype_size((DType)t.data_type) == 0)
        d->opaque_why = "a data type that is not computed";
    TensorAttr v = {.dtype = (DType)t.data_type, .shape = {.rank = t.rank}, .data = t.data};
    memcpy(v.shape.d, t.dims, sizeof t.dims);
    memcpy((char *)d->params + row->offset, &v, sizeof v);
    return MPR_OK;
}

static mpr_status set_attribute(Draft *d, const AttrRow *row, const AttributeProto *a, Err *err)
{
    char *field = (char *)d->params + row->offset;
    switch (row->kind) {
    case ATTR_INT:
    case ATTR_DTYPE: set_int(d, row, a->i, err); return MPR_OK;
    case ATTR_FLOAT:
        if (!isfinite(a->f))
            mpri_err_finding(err, MPR_E_INVALID_MODEL,
                             "%s: attribute %s is %g, a finite number is needed", d->label,
                             row->name, (double)a->f);
        memcpy(field, &a->f, sizeof a->f);
        return MPR_OK;
    case ATTR_STRING: return set_string(d, row, a, err);
    case ATTR_INTS:
        memcpy(field, &(Ints){(int64_t)a->n_ints, a->ints}, sizeof(Ints));
        return MPR_OK;
    case ATTR_FLOATS:
        memcpy(field, &(Floats){(int64_t)a->n_floats, a->floats}, sizeof(Floats));
        return MPR_OK;
    case ATTR_TENSOR: return set_tensor(d, row, a, err);
    }
    return MPR_OK;
}

static const char *nearest_attribute(const OpDef *op, const char *name)
{
    const char *names[32];
    size_t n = 0;
    for (const AttrRow *r = op->attrs; r && r->name && n < 32; r++)
        if (!r->internal) names[n++] = r->name;
    return mpri_nearest(name, names, n);
}

static mpr_status fill_attributes(Draft *d, Err *err)
{
    const NodeProto *p = d->node->p;
    for (size_t i = 0; i < p->n_attribute; i++) {
        const AttributeProto *a = p->attribute[i];
        if (d->taken[i] || is_ignored(d->op, a->name)) continue;
        const AttrRow *row = mpri_params_row(d->op, a->name);
        if (!row || row->internal) {
            const char *near = nearest_attribute(d->op, a->name);
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s is unknown%s%s%s",
                             d->label, mpri_err_name(a->name), near ? "; did you mean " : "",
                             near ? near : "", near ? "?" : "");
        } else if (!kind_matches(row, (int)a->type)) {
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: attribute %s must be %s", d->label,
                             row->name, kind_text[row->kind]);
        } else {
            TRY(set_attribute(d, row, a, err));
        }
    }
    for (const AttrRow *r = d->op->attrs; r && r->name; r++)
        if (r->required && !r->internal && !d->lenient && !mpri_import_attr(p, r->name))
            mpri_err_finding(err, MPR_E_INVALID_MODEL, "%s: the required attribute %s is missing",
                             d->label, r->name);
    return MPR_OK;
}

/* ---- one node */

static mpr_status run_rows(Draft *d, const AdaptRow *row, Err *err)
{
    for (; row->op; row++)
        if (d->opset >= row->from && d->opset <= row->to && !strcmp(row->op, d->op->name))
            TRY(row->fn(d, err));
    return MPR_OK;
}

mpr_status mpri_adapt_node(Draft *d, Err *err)
{
    d->params = d->op->params_size ? mpri_arena_alloc(&d->im->scratch, d->op->params_size) : NULL;
    if (d->op->params_size) {
        if (!d->params) return mpri_err_nomem(err, d->op->params_size);
        mpri_params_default(d->op, d->params);
    }
    int before = err->findings;
    TRY(run_rows(d, mpri_adapt_layout, err));
    TRY(run_rows(d, mpri_adapt_compute, err));
    TRY(run_rows(d, mpri_adapt_norm, err));
    TRY(run_rows(d, mpri_adapt_image, err));
    if (err->findings == before) check_arity(d, err);
    return fill_attributes(d, err);
}
