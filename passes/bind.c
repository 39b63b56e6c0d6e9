/* Symbolic dims become numbers, and trained parameters become slots.
 *
 * The graph is a clone made for one set of input shapes. After this pass every value has a constant
 * shape: later passes never meet a symbol. Sizes that depend on the contents of inputs cannot be
 * planned: they are computed from the inputs where the caller has given them (contents.c), else
 * refused with the node named.
 *
 * Traps: a shape rule may be unable to compute contents that plain evaluation can (a size that goes
 * through float arithmetic), so what inference leaves open is tried once more after evaluating
 * constants. And a kernel writes what its inputs say, not what somebody promised: shapes that the
 * file declares take no part here and are only compared with the result, and neither does what the
 * rules believe of the contents of a tensor that is computed at run time. */
#include <inttypes.h>
#include "passes/rewrite.h"
#include "runtime/base/size.h"

static mpr_status bind_value(PassCtx *ctx, Graph *g, Value *v, Err *err)
{
    for (int k = 0; k < v->shape.rank; k++)
        v->shape.d[k] = mpri_dim_eval(ctx->binding, v->shape.d[k]);
    int64_t n = mpri_shape_elements(&v->shape);
    if (!v->content || n < 1) return MPR_OK;
    Dim *content = mpri_arena_dup(g->arena, v->content, (size_t)n * sizeof *content);
    if (!content) return mpri_err_nomem(err, (size_t)n * sizeof *content);
    for (int64_t i = 0; i < n; i++) content[i] = mpri_dim_eval(ctx->binding, content[i]);
    v->content = content;
    return MPR_OK;
}

static mpr_status check_input(const Graph *g, const Value *v, Err *err)
{
    if (mpri_shape_const(&v->shape)) return MPR_OK;
    char text[256];
    mpri_shape_print(g->sym, &v->shape, text, sizeof text);
    mpri_err_set(err, MPR_E_SHAPE, "graph input '%s' has shape %s: a size is not known",
                 mpri_err_name(v->name), text);
    return mpri_err_advice(err, "give data for every input, or the size of each name in %s", text);
}

mpr_status mpri_bind_params(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    DType master = ctx->o->force == MPR_FLOAT64 ? MPR_FLOAT64 : MPR_FLOAT32;
    for (int i = 0; i < g->n_params; i++) {
        Value *v = g->params[i].value;
        if (!g->params[i].trained || !v || v->kind != VAL_CONST) continue;
        const char *name = mpri_arena_printf(g->arena, "param:%s", g->params[i].name);
        if (!name) return mpri_err_nomem(err, 64);
        Value *slot = mpri_value_slot(g, name, SLOT_PARAM, master, &v->shape, i, v->data, v->dtype);
        if (!slot) return mpri_err_nomem(err, sizeof *slot);
        Builder b = {.g = g, .before = g->first, .segment = SEG_FORWARD, .scope = name, .err = err};
        /* The file's own type is what its operators read: a low or double weight is a cast of the
         * master. */
        Value *used = v->n_uses + v->n_outputs ? mpri_build_cast(&b, slot, v->dtype) : slot;
        TRY(b.failed);
        mpri_value_replace(g, v, used);
        g->params[i].value = slot;
        *changed = true;
    }
    return MPR_OK;
}

static const Value *open_output(const Node *n)
{
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] && !mpri_shape_const(&n->out[i]->shape)) return n->out[i];
    return NULL;
}

/* v's contents are known in part, or not to be integers: v is computed at run time. */
static bool half_known(const Graph *g, const Value *v)
{
    int64_t n = v && v->kind != VAL_CONST && v->content ? mpri_shape_elements(&v->shape) : 0, x;
    for (int64_t i = 0; i < n; i++)
        if (!mpri_dim_is_int(g->sym, v->content[i], &x)) return true;
    return false;
}

mpr_status mpri_bind_infer(Graph *g, Node *n, Arena *scratch, bool *open, Err *err)
{
    const Dim **hidden = ARENA_ARRAY(scratch, const Dim *, n->n_in + 1);
    bool any = false;
    if (!hidden) return mpri_err_nomem(err, sizeof *hidden);
    for (int k = 0; k < n->n_in; k++) {
        if (!half_known(g, n->in[k])) continue;
        hidden[k] = n->in[k]->content;
        n->in[k]->content = NULL;
        any = true;
    }
    mpr_status status = mpri_infer_node(g, n, err);
    for (int k = 0; k < n->n_in; k++)
        if (hidden[k]) n->in[k]->content = hidden[k];
    TRY(status);
    *open = open_output(n) != NULL;
    return any && !*open ? mpri_infer_node(g, n, err) : MPR_OK;
}

/* The first node whose output shape stays open; all its inputs have constant shapes. */
static mpr_status find_open(PassCtx *ctx, Graph *g, Node **found, Err *err)
{
    bool open = false;
    *found = NULL;
    for (Node *n = g->first; n && !open; n = n->next) {
        TRY(mpri_bind_infer(g, n, ctx->scratch, &open, err));
        if (open) *found = n;
    }
    return MPR_OK;
}

/* ---- what the file declares ---- */

static bool made_here(const Value *v)
{
    const Node *n = mpri_def(v);
    return n && n->linked;
}

/* Shapes by value id, rank unknown where nothing is declared; from here on only the rules count. */
static mpr_status take_declared(PassCtx *ctx, Graph *g, Shape **declared, int *count, Err *err)
{
    *count = g->n_values;
    *declared = ARENA_ARRAY(ctx->scratch, Shape, g->n_values + 1);
    if (!*declared) return mpri_err_nomem(err, (size_t)g->n_values * sizeof(Shape));
    for (int i = 0; i < g->n_values; i++) {
        Value *v = g->values[i];
        bool fixed = v->declared && made_here(v) && !(v->def->op->flags & OPF_OPAQUE);
        (*declared)[i] = fixed ? v->shape : (Shape){.rank = MPRI_RANK_UNKNOWN};
        if (fixed) v->declared = false;
    }
    return MPR_OK;
}

static mpr_status compare_declared(const Graph *g, const Shape *declared, int count, Err *err)
{
    for (int i = 0; i < count; i++) {
        const Value *v = g->values[i];
        const Shape *d = &declared[i];
        if (v->kind == VAL_NODE && !made_here(v)) continue;
        bool clash = d->rank >= 0 && d->rank != v->shape.rank;
        for (int k = 0; k < d->rank && !clash; k++)
            clash = mpri_dim_const(d->d[k]) && d->d[k] != v->shape.d[k];
        if (!clash) continue;
        char a[256], b[256];
        mpri_err_set(err, MPR_E_SHAPE, "value '%s' is declared as %s but the operator gives %s",
                     mpri_err_name(v->name), mpri_shape_print(g->sym, d, a, sizeof a),
                     mpri_shape_print(g->sym, &v->shape, b, sizeof b));
        const Node *n = mpri_def(v);
        if (n) mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name), n->op->name);
        return mpri_err_advice(err, "correct or remove the declared shape of '%s'",
                               mpri_err_name(v->name));
    }
    return MPR_OK;
}

static mpr_status report_open(const Graph *g, const Node *n, Err *err)
{
    char text[256];
    const Value *open = open_output(n);
    mpri_shape_print(g->sym, &open->shape, text, sizeof text);
    const char *kind = n->opaque_type ? n->opaque_type : n->op->name;
    bool counts = mpri_is(n, OP_NonZero) || mpri_is(n, OP_Unique);
    for (int k = 0; k < n->n_in; k++) {
        const Value *v = n->in[k];
        if (!v || v->kind == VAL_CONST || (mpri_dtype_is_float(v->dtype) && !counts)) continue;
        mpri_err_set(
            err, MPR_E_UNSUPPORTED_OP,
            "node '%s' (%s): the size of its output '%s' %s depends on the contents of '%s'",
            mpri_err_name(n->name), kind, mpri_err_name(open->name), text, mpri_err_name(v->name));
        return mpri_err_advice(
            err, "sizes must follow from the shapes of the graph inputs: export the model with "
                 "a fixed size here");
    }
    mpri_err_set(err, MPR_E_SHAPE,
                 "value '%s' has shape %s: a size is not known after binding the inputs",
                 mpri_err_name(open->name), text);
    mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name), kind);
    return mpri_err_advice(err, "export the model with a fixed size here");
}

/* A size that no memory holds is found here, with its node, and not where the memory is wanted. */
static mpr_status check_sizes(const Graph *g, Err *err)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int i = 0; i < n->n_out; i++) {
            const Value *v = n->out[i];
            int64_t count;
            size_t bytes;
            if (!v || (mpri_size_elements(v->shape.rank, v->shape.d, &count) &&
                       mpri_size_mul((size_t)count, 8, &bytes)))
                continue;
            char text[256];
            mpri_shape_print(g->sym, &v->shape, text, sizeof text);
            mpri_err_set(err, MPR_E_LIMIT,
                         "value '%s' of shape %s has more bytes than the address space",
                         mpri_err_name(v->name), text);
            mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name),
                           n->opaque_type ? mpri_err_name(n->opaque_type) : n->op->name);
            return mpri_err_advice(err, "use smaller sizes");
        }
    return MPR_OK;
}

mpr_status mpri_pass_bind(PassCtx *ctx, Graph *g, bool *changed, Err *err)
{
    if (ctx->binding)
        for (int i = 0; i < g->n_values; i++) TRY(bind_value(ctx, g, g->values[i], err));
    for (int i = 0; i < g->n_inputs; i++) TRY(check_input(g, g->inputs[i].value, err));
    TRY(mpri_bind_params(ctx, g, changed, err));
    Shape *declared;
    Node *open;
    int n_declared;
    TRY(take_declared(ctx, g, &declared, &n_declared, err));
    *changed = true;
    if (ctx->fed) TRY(mpri_bind_contents(ctx, g, changed, err));
    TRY(find_open(ctx, g, &open, err));
    if (open && !ctx->fed) {
        TRY(mpri_fold_evaluate(ctx, g, false, changed, err));
        TRY(find_open(ctx, g, &open, err));
    }
    if (open) return report_open(g, open, err);
    TRY(compare_declared(g, declared, n_declared, err));
    return check_sizes(g, err);
}
