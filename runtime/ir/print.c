/* The text form, written. The grammar is in text_form.h. */
#include <string.h>

#include "runtime/ir/text_form.h"
#include "runtime/ir/text_private.h"

typedef struct Printer {
    const Graph *g;
    Text *t;
} Printer;

bool mpri_text_is_word(const char *s)
{
    size_t n = strlen(s);
    bool plain = n > 0 && strspn(s, MPRI_WORD_CHARS) == n;
    return plain && strcmp(s, "_") && s[n - 1] != ':' && strncmp(s, "---", 3);
}

static void put_quoted(Text *t, const char *s)
{
    mpri_text_put(t, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            mpri_text_add(t, "\\%c", c);
        else if (c == '\n')
            mpri_text_put(t, "\\n");
        else if (c < 0x20)
            mpri_text_add(t, "\\u%04x", c);
        else
            mpri_text_bytes(t, s, 1);
    }
    mpri_text_put(t, "\"");
}

static void put_name(Text *t, const char *s)
{
    if (mpri_text_is_word(s))
        mpri_text_put(t, s);
    else
        put_quoted(t, s);
}

static void put_type(Printer *p, DType dtype, const Shape *shape)
{
    char buf[4096];
    mpri_text_put(p->t, mpri_dtype_name(dtype));
    mpri_text_put(p->t, mpri_shape_print(p->g->sym, shape, buf, sizeof buf));
}

static void put_element(Text *t, DType dtype, const void *data, int64_t i)
{
    char buf[32];
    if (dtype == MPR_FLOAT64)
        mpri_text_put(t, mpri_print_f64(buf, mpri_load_f64(dtype, data, i)));
    else if (mpri_dtype_is_float(dtype))
        mpri_text_put(t, mpri_print_f32(buf, (float)mpri_load_f64(dtype, data, i)));
    else
        mpri_text_add(t, "%lld", (long long)mpri_load_i64(dtype, data, i));
}

static bool all_equal(const char *data, int64_t n, size_t size)
{
    return n > 0 && !memcmp(data, data + size, (size_t)(n - 1) * size);
}

static uint64_t fnv1a(const unsigned char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3;
    return h;
}

static void put_contents(Text *t, DType dtype, const Shape *shape, const void *data)
{
    int64_t n = mpri_shape_elements(shape);
    size_t size = mpri_dtype_size(dtype);
    if (!data || n < 0 || size == 0 || dtype == MPR_COMPLEX64 || dtype == MPR_COMPLEX128) {
        mpri_text_put(t, "<opaque>");
        return;
    }
    if (shape->rank == 0) {
        put_element(t, dtype, data, 0);
        return;
    }
    if (n <= MPRI_TEXT_ELEMENTS) {
        mpri_text_put(t, "[");
        for (int64_t i = 0; i < n; i++) {
            if (i > 0) mpri_text_put(t, ",");
            put_element(t, dtype, data, i);
        }
        mpri_text_put(t, "]");
    } else if (all_equal(data, n, size)) {
        mpri_text_put(t, "splat(");
        put_element(t, dtype, data, 0);
        mpri_text_put(t, ")");
    } else {
        size_t bytes = (size_t)n * size;
        mpri_text_add(t, "<%zu bytes, hash %016llx>", bytes,
                      (unsigned long long)fnv1a(data, bytes));
    }
}

/* ---- declarations ---- */

const char *const mpri_slot_class_names[] = {
    [SLOT_PARAM] = "param", [SLOT_GRAD] = "grad", [SLOT_MOMENT] = "moment", [SLOT_COPY] = "copy",
    [SLOT_STATE] = "state"};
const char *const mpri_segment_names[] =
    {[SEG_FORWARD] = "forward", [SEG_BACKWARD] = "backward", [SEG_UPDATE] = "update"};

static void put_declaration(Printer *p, const char *keyword, const Value *v)
{
    mpri_text_add(p->t, "  %-6s ", keyword);
    put_name(p->t, v->name);
    mpri_text_put(p->t, ": ");
    put_type(p, v->dtype, &v->shape);
}

/* Key, parameter and first contents of a slot. */
static void put_slot(Printer *p, const Value *v)
{
    const Slot *s = &p->g->slots[v->slot];
    if (strcmp(s->name, v->name)) {
        mpri_text_put(p->t, " key ");
        put_quoted(p->t, s->name);
    }
    if (!s->init) return;
    mpri_text_put(p->t, " init ");
    if (s->init_dtype != s->dtype) mpri_text_add(p->t, "%s ", mpri_dtype_name(s->init_dtype));
    put_contents(p->t, s->init_dtype, &s->shape, s->init);
}

static void put_of(Printer *p, const Value *v)
{
    if (v->param < 0 || v->param >= p->g->n_params) return;
    mpri_text_put(p->t, " of ");
    put_name(p->t, p->g->params[v->param].name);
}

static void put_param(Printer *p, const Param *param)
{
    const Value *v = param->value;
    put_declaration(p, "param", v);
    if (param->trained) mpri_text_put(p->t, " trained");
    if (strcmp(param->name, v->name)) {
        mpri_text_put(p->t, " name ");
        put_quoted(p->t, param->name);
    }
    if (v->kind == VAL_SLOT) {
        put_slot(p, v);
    } else {
        mpri_text_put(p->t, " = ");
        put_contents(p->t, v->dtype, &v->shape, v->data);
    }
    mpri_text_put(p->t, "\n");
}

static bool is_main_value(const Graph *g, const Value *v)
{
    return v->param >= 0 && v->param < g->n_params && g->params[v->param].value == v;
}

static void put_storage(Printer *p)
{
    const Graph *g = p->g;
    for (int i = 0; i < g->n_params; i++) {
        const Value *v = g->params[i].value;
        if (v && (v->kind == VAL_CONST || v->kind == VAL_SLOT)) put_param(p, &g->params[i]);
    }
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i];
        if (is_main_value(g, v)) continue;
        if (v->kind == VAL_SLOT) {
            put_declaration(p, "slot", v);
            mpri_text_add(p->t, " %s", mpri_slot_class_names[g->slots[v->slot].cls]);
            put_of(p, v);
            put_slot(p, v);
            mpri_text_put(p->t, "\n");
        } else if (v->kind == VAL_CONST && (v->n_uses > 0 || v->n_outputs > 0)) {
            put_declaration(p, "const", v);
            put_of(p, v);
            mpri_text_put(p->t, " = ");
            put_contents(p->t, v->dtype, &v->shape, v->data);
            mpri_text_put(p->t, "\n");
        }
    }
}

/* ---- nodes ---- */

static void put_attribute(Printer *p, const AttrRow *r, const void *params)
{
    const char *field = (const char *)params + r->offset;
    char buf[32];
    switch (r->kind) {
    case ATTR_INT: mpri_text_add(p->t, "%lld", (long long)*(const int64_t *)field); break;
    case ATTR_DTYPE: mpri_text_put(p->t, mpri_dtype_name((DType) * (const int64_t *)field)); break;
    case ATTR_FLOAT: mpri_text_put(p->t, mpri_print_f32(buf, *(const float *)field)); break;
    case ATTR_STRING: {
        const char *s = *(const char *const *)field;
        put_quoted(p->t, s ? s : "");
        break;
    }
    case ATTR_INTS: {
        const Ints *v = (const Ints *)field;
        for (int64_t i = 0; i < v->n; i++)
            mpri_text_add(p->t, "%s%lld", i ? "," : "[", (long long)v->v[i]);
        mpri_text_put(p->t, v->n ? "]" : "[]");
        break;
    }
    case ATTR_FLOATS: {
        const Floats *v = (const Floats *)field;
        for (int64_t i = 0; i < v->n; i++)
            mpri_text_add(p->t, "%s%s", i ? "," : "[", mpri_print_f32(buf, v->v[i]));
        mpri_text_put(p->t, v->n ? "]" : "[]");
        break;
    }
    case ATTR_TENSOR: {
        const TensorAttr *v = (const TensorAttr *)field;
        put_type(p, v->dtype, &v->shape);
        mpri_text_put(p->t, " ");
        put_contents(p->t, v->dtype, &v->shape, v->data);
        break;
    }
    }
}

static mpr_status put_attributes(Printer *p, const Node *n, Err *err)
{
    enum { PARAMS_ROOM = 512 };
    _Alignas(16) char defaults[PARAMS_ROOM];
    if (!n->params || !n->op->attrs) return MPR_OK;
    if (n->op->params_size > sizeof defaults)
        return mpri_err_set(err, MPR_E_INTERNAL, "attributes of %s need %zu bytes, room is for %d",
                            n->op->name, n->op->params_size, PARAMS_ROOM);
    mpri_params_default(n->op, defaults);
    int count = 0;
    for (const AttrRow *r = n->op->attrs; r->name; r++) {
        if (mpri_params_row_equal(r, n->params, defaults)) continue;
        mpri_text_add(p->t, "%s%s=", count++ ? ", " : " {", r->name);
        put_attribute(p, r, n->params);
    }
    if (count) mpri_text_put(p->t, "}");
    return MPR_OK;
}

static void put_op(Printer *p, const Node *n)
{
    if (!(n->op->flags & OPF_OPAQUE)) {
        mpri_text_put(p->t, n->op->name);
        return;
    }
    const char *type = n->opaque_type ? n->opaque_type : n->op->name;
    if (!strchr(type, ':')) mpri_text_put(p->t, ":");
    put_name(p->t, type);
}

static mpr_status put_node(Printer *p, const Node *n, Err *err)
{
    mpri_text_put(p->t, "  ");
    for (int i = 0; i < n->n_out; i++) {
        if (i > 0) mpri_text_put(p->t, ", ");
        if (!n->out[i]) {
            mpri_text_put(p->t, "_");
            continue;
        }
        put_name(p->t, n->out[i]->name);
        mpri_text_put(p->t, ": ");
        put_type(p, n->out[i]->dtype, &n->out[i]->shape);
    }
    mpri_text_put(p->t, n->n_out ? " = " : "!");
    put_op(p, n);
    mpri_text_put(p->t, "(");
    for (int i = 0; i < n->n_in; i++) {
        if (i > 0) mpri_text_put(p->t, ", ");
        if (n->in[i])
            put_name(p->t, n->in[i]->name);
        else
            mpri_text_put(p->t, "_");
    }
    mpri_text_put(p->t, ")");
    TRY(put_attributes(p, n, err));
    if (n->name[0]) {
        mpri_text_put(p->t, " @ ");
        put_quoted(p->t, n->name);
    }
    mpri_text_put(p->t, "\n");
    return MPR_OK;
}

mpr_status mpri_graph_print(const Graph *g, Text *out, Err *err)
{
    Printer p = {g, out};
    mpri_text_put(out, "graph ");
    put_quoted(out, g->name ? g->name : "");
    mpri_text_put(out, " {\n");
    for (int i = 0; i < g->n_inputs; i++) {
        put_declaration(&p, "input", g->inputs[i].value);
        mpri_text_put(out, "\n");
    }
    put_storage(&p);
    Segment segment = SEG_FORWARD;
    for (const Node *n = g->first; n; n = n->next) {
        if (n->segment != segment) mpri_text_add(out, "  --- %s\n", mpri_segment_names[n->segment]);
        segment = n->segment;
        TRY(put_node(&p, n, err));
    }
    for (int i = 0; i < g->n_outputs; i++) {
        mpri_text_put(out, "  output ");
        put_name(out, g->outputs[i].name);
        mpri_text_put(out, " = ");
        put_name(out, g->outputs[i].value->name);
        mpri_text_put(out, "\n");
    }
    mpri_text_put(out, "}\n");
    return out->failed ? mpri_err_nomem(err, out->len) : MPR_OK;
}
