/* The text form, read: one statement a line. The grammar is in text_form.h.
 * The trap: inference makes fresh unknowns, which must not meet those named in the text; so numbers
 * of the text are reserved before the first statement. */
#include <stdlib.h>
#include <string.h>

#include "runtime/ir/dim_poly.h"
#include "runtime/ir/text_form.h"
#include "runtime/ir/text_private.h"

enum { MAX_OPERANDS = 1024 };

typedef struct Operand { /* one output of a node, as written */
    char *name;          /* NULL: absent */
    bool typed;
    DType dtype;
    Shape shape;
} Operand;

static mpr_status new_name(Reader *r, char **name)
{
    TRY(mpri_read_name(r, name));
    if (mpri_graph_find_value(r->g, *name))
        return mpri_read_fail(r, "'%s' is defined twice", mpri_err_name(*name));
    return MPR_OK;
}

static mpr_status read_value(Reader *r, Value **out)
{
    char *name;
    TRY(mpri_read_name(r, &name));
    *out = mpri_graph_find_value(r->g, name);
    return *out ? MPR_OK : mpri_read_fail(r, "'%s' is not defined", mpri_err_name(name));
}

static mpr_status made(Reader *r, const Value *v)
{
    return v ? MPR_OK : mpri_err_nomem(r->err, sizeof(Value));
}

static mpr_status read_input(Reader *r)
{
    char *name;
    DType dtype;
    Shape shape;
    TRY(new_name(r, &name));
    TRY(mpri_read_expect(r, ":"));
    TRY(mpri_read_type(r, &dtype, &shape));
    return made(r, mpri_value_input(r->g, name, dtype, &shape));
}

/* "key", "init" of a slot that is declared so far as name and type. */
static mpr_status read_slot_rest(Reader *r, char *name, SlotClass cls, DType dtype,
                                 const Shape *shape, int param, Value **out)
{
    char *key = name;
    const void *init = NULL;
    DType init_dtype = MPR_DTYPE_NONE;
    if (mpri_read_keyword(r, "key")) TRY(mpri_read_name(r, &key));
    if (mpri_read_keyword(r, "init")) {
        char *word;
        const char *start = r->p;
        init_dtype = dtype;
        mpri_read_blank(r);
        if (strspn(r->p, "abcdefghijklmnopqrstuvwxyz") && mpri_read_name(r, &word) == MPR_OK) {
            DType other = mpri_dtype_parse(word);
            if (other == MPR_DTYPE_NONE)
                r->p = start;
            else
                init_dtype = other;
        }
        TRY(mpri_read_contents(r, init_dtype, shape, &init));
    }
    *out = mpri_value_slot(r->g, name, cls, dtype, shape, param, init, init_dtype);
    TRY(made(r, *out));
    const char *interned = mpri_intern(r->g->names, key);
    if (!interned) return mpri_err_nomem(r->err, strlen(key));
    r->g->slots[(*out)->slot].name = interned;
    return MPR_OK;
}

static mpr_status read_param(Reader *r)
{
    char *name, *param_name;
    DType dtype;
    Shape shape;
    TRY(new_name(r, &name));
    TRY(mpri_read_expect(r, ":"));
    TRY(mpri_read_type(r, &dtype, &shape));
    bool trained = mpri_read_keyword(r, "trained");
    param_name = name;
    if (mpri_read_keyword(r, "name")) TRY(mpri_read_name(r, &param_name));
    Value *v;
    int index = r->g->n_params;
    if (mpri_read_accept(r, "=")) {
        const void *data;
        TRY(mpri_read_contents(r, dtype, &shape, &data));
        v = mpri_value_const(r->g, name, dtype, &shape, data);
        TRY(made(r, v));
        v->param = index;
    } else {
        TRY(read_slot_rest(r, name, SLOT_PARAM, dtype, &shape, index, &v));
    }
    Param *p = mpri_graph_add_param(r->g);
    const char *interned = mpri_intern(r->g->names, param_name);
    if (!p || !interned) return mpri_err_nomem(r->err, sizeof(Param));
    *p = (Param){.name = interned,
                 .public_name = interned,
                 .value = v,
                 .file_dtype = dtype,
                 .trained = trained,
                 .reason = "text form"};
    return MPR_OK;
}

static mpr_status read_of(Reader *r, int *param)
{
    char *name;
    *param = -1;
    if (!mpri_read_keyword(r, "of")) return MPR_OK;
    TRY(mpri_read_name(r, &name));
    *param = mpri_graph_param_of(r->g, name);
    return *param >= 0 ? MPR_OK : mpri_read_fail(r, "no parameter '%s'", mpri_err_name(name));
}

static mpr_status read_const(Reader *r)
{
    char *name;
    DType dtype;
    Shape shape;
    const void *data;
    int param;
    TRY(new_name(r, &name));
    TRY(mpri_read_expect(r, ":"));
    TRY(mpri_read_type(r, &dtype, &shape));
    TRY(read_of(r, &param));
    TRY(mpri_read_expect(r, "="));
    TRY(mpri_read_contents(r, dtype, &shape, &data));
    Value *v = mpri_value_const(r->g, name, dtype, &shape, data);
    TRY(made(r, v));
    v->param = param;
    return MPR_OK;
}

static mpr_status read_slot(Reader *r)
{
    char *name;
    DType dtype;
    Shape shape;
    int cls = SLOT_PARAM, param;
    TRY(new_name(r, &name));
    TRY(mpri_read_expect(r, ":"));
    TRY(mpri_read_type(r, &dtype, &shape));
    while (cls <= SLOT_STATE && !mpri_read_keyword(r, mpri_slot_class_names[cls])) cls++;
    if (cls > SLOT_STATE) return mpri_read_fail(r, "expected param, grad, moment, copy or state");
    TRY(read_of(r, &param));
    Value *v;
    return read_slot_rest(r, name, (SlotClass)cls, dtype, &shape, param, &v);
}

static mpr_status read_output(Reader *r)
{
    char *name;
    Value *v;
    TRY(mpri_read_name(r, &name));
    TRY(mpri_read_expect(r, "="));
    TRY(read_value(r, &v));
    return mpri_graph_add_output(r->g, name, v, r->err);
}

static mpr_status read_segment(Reader *r, Segment *segment)
{
    for (int i = SEG_FORWARD; i <= SEG_UPDATE; i++)
        if (mpri_read_keyword(r, mpri_segment_names[i])) {
            *segment = (Segment)i;
            return MPR_OK;
        }
    return mpri_read_fail(r, "expected forward, backward or update");
}

/* ---- nodes ---- */

static mpr_status read_results(Reader *r, int *n)
{
    *n = 0;
    do {
        Operand *o = &r->out[*n];
        if (*n == MAX_OPERANDS) return mpri_read_fail(r, "more than %d outputs", MAX_OPERANDS);
        *o = (Operand){.name = NULL};
        ++*n;
        if (mpri_read_keyword(r, "_")) continue;
        TRY(new_name(r, &o->name));
        o->typed = mpri_read_accept(r, ":");
        if (o->typed) TRY(mpri_read_type(r, &o->dtype, &o->shape));
    } while (mpri_read_accept(r, ","));
    return mpri_read_expect(r, "=");
}

static mpr_status read_arguments(Reader *r, int *n)
{
    *n = 0;
    TRY(mpri_read_expect(r, "("));
    while (!mpri_read_accept(r, ")")) {
        if (*n == MAX_OPERANDS) return mpri_read_fail(r, "more than %d inputs", MAX_OPERANDS);
        if (*n > 0) TRY(mpri_read_expect(r, ","));
        r->in[*n] = NULL;
        if (!mpri_read_keyword(r, "_")) TRY(read_value(r, &r->in[*n]));
        ++*n;
    }
    return MPR_OK;
}

static mpr_status read_op(Reader *r, const OpDef **op, char **type)
{
    TRY(mpri_read_name(r, type));
    *op = r->g->ops->find("", *type);
    if (!*op) *op = r->g->ops->find("mpr", *type);
    if (!*op && strchr(*type, ':')) *op = r->g->ops->opaque;
    return *op ? MPR_OK : mpri_read_fail(r, "unknown operator '%s'", mpri_err_name(*type));
}

/* What is written meets what the rule found. */
static mpr_status settle_type(Reader *r, Value *v, const Operand *o)
{
    if (!o->typed) return MPR_OK;
    char a[256], b[256];
    bool clash = v->dtype != MPR_DTYPE_NONE && v->dtype != o->dtype;
    if (v->shape.rank >= 0 && o->shape.rank >= 0) {
        clash |= v->shape.rank != o->shape.rank;
        for (int i = 0; i < v->shape.rank && !clash; i++)
            clash = v->shape.d[i] >= 0 && o->shape.d[i] >= 0 && v->shape.d[i] != o->shape.d[i];
    }
    if (clash)
        return mpri_err_set(r->err, MPR_E_TYPE,
                            "line %d: '%s' is written as %s%s, but its operator gives %s%s",
                            r->line, mpri_err_name(v->name), mpri_dtype_name(o->dtype),
                            mpri_shape_print(r->g->sym, &o->shape, a, sizeof a),
                            mpri_dtype_name(v->dtype),
                            mpri_shape_print(r->g->sym, &v->shape, b, sizeof b));
    if (v->content && !mpri_shape_equal(&v->shape, &o->shape)) v->content = NULL;
    v->dtype = o->dtype;
    v->shape = o->shape;
    return MPR_OK;
}

static mpr_status finish_node(Reader *r, Node *n)
{
    const Operand *out = r->out;
    bool opaque = (n->op->flags & OPF_OPAQUE) != 0;
    for (int i = 0; i < n->n_out; i++) {
        if (!out[i].name) {
            mpri_node_drop_output(r->g, n, i);
            continue;
        }
        mpri_value_rename(r->g, n->out[i], out[i].name);
        if (!opaque || !out[i].typed) continue;
        n->out[i]->dtype = out[i].dtype;
        n->out[i]->shape = out[i].shape;
        n->out[i]->declared = true;
    }
    mpr_status status = mpri_infer_node(r->g, n, r->err);
    if (status != MPR_OK) return mpri_err_where(r->err, "line %d", r->line);
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]) TRY(settle_type(r, n->out[i], &out[i]));
    return MPR_OK;
}

static mpr_status read_node(Reader *r, Segment segment)
{
    int n_out = 0, n_in = 0;
    if (!mpri_read_accept(r, "!")) TRY(read_results(r, &n_out));
    const OpDef *op;
    char *type, *name = "";
    TRY(read_op(r, &op, &type));
    void *params = mpri_arena_alloc(r->arena, op->params_size);
    if (!params) return mpri_err_nomem(r->err, op->params_size);
    TRY(read_arguments(r, &n_in));
    mpri_params_default(op, params);
    TRY(mpri_read_attributes(r, op, params));
    if (mpri_read_accept(r, "@")) TRY(mpri_read_name(r, &name));
    Node *n = mpri_node_create(r->g, NULL, op, name, params, n_in, r->in, n_out);
    if (!n) return mpri_err_nomem(r->err, sizeof(Node));
    n->segment = segment;
    if ((op->flags & OPF_OPAQUE) && !(n->opaque_type = mpri_intern(r->g->names, type)))
        return mpri_err_nomem(r->err, strlen(type));
    return finish_node(r, n);
}

/* ---- the whole ---- */

static mpr_status read_statement(Reader *r, Segment *segment)
{
    static const struct {
        const char *keyword;
        mpr_status (*read)(Reader *r);
    } declarations[] = {
        {"input", read_input}, {"param", read_param},   {"const", read_const},
        {"slot", read_slot},   {"output", read_output},
    };
    if (mpri_read_accept(r, "---")) return read_segment(r, segment);
    for (size_t i = 0; i < sizeof declarations / sizeof *declarations; i++) {
        const char *start = r->p;
        if (!mpri_read_keyword(r, declarations[i].keyword)) continue;
        mpri_read_blank(r);
        /* a value may have a keyword as its name: then ':', ',' or '=' follows */
        if (!strchr(":,=", *r->p)) return declarations[i].read(r);
        r->p = start;
    }
    return read_node(r, *segment);
}

static void reserve_unknowns(Reader *r)
{
    for (const char *p = strchr(r->p, '?'); p; p = strchr(p + 1, '?'))
        if (p[1] >= '0' && p[1] <= '9') mpri_symtab_reserve(r->g->sym, strtoll(p + 1, NULL, 10));
}

/* End of the line; skips empty ones. */
static bool next_line(Reader *r)
{
    mpri_read_blank(r);
    if (*r->p == '\0') return false;
    if (*r->p != '\n') return true;
    while (*r->p == '\n') {
        r->p++;
        r->line++;
        mpri_read_blank(r);
    }
    return *r->p != '\0';
}

mpr_status mpri_graph_parse(const char *text, Arena *arena, Intern *names, const OpTable *ops,
                            Graph **out, Err *err)
{
    Graph *g = mpri_graph_create(arena, names, ops);
    if (!g) return mpri_err_nomem(err, sizeof(Graph));
    Reader r = {text,
                1,
                g,
                arena,
                err,
                ARENA_ARRAY(arena, Operand, MAX_OPERANDS),
                ARENA_ARRAY(arena, Value *, MAX_OPERANDS)};
    if (!r.out || !r.in) return mpri_err_nomem(err, MAX_OPERANDS * sizeof(Operand));
    char *name = "";
    Segment segment = SEG_FORWARD;
    reserve_unknowns(&r);
    next_line(&r);
    TRY(mpri_read_expect(&r, "graph"));
    mpri_read_blank(&r);
    if (*r.p == '"') TRY(mpri_read_name(&r, &name));
    TRY(mpri_read_expect(&r, "{"));
    g->name = name;
    for (;;) {
        if (!next_line(&r)) return mpri_read_fail(&r, "the graph does not end");
        if (mpri_read_accept(&r, "}")) break;
        TRY(read_statement(&r, &segment));
        mpri_read_blank(&r);
        if (*r.p != '\n' && *r.p != '}') return mpri_read_fail(&r, "expected the end of the line");
    }
    *out = g;
    return MPR_OK;
}
