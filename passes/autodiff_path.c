/* Which values lie on a differentiable path between wanted values and seeds, and why there is none.
 *
 * Forward: a float value is active when it depends on a wanted value and every operator between
 * lets cotangents through. Backward: a value leads when a seed depends on it in the same sense.
 * Operators without a gradient count as open here, so that they are found on a path and reported,
 * all at once. */
#include <stdio.h>
#include <string.h>
#include "passes/autodiff.h"

#define NAMES 3     /* examples per finding */
#define FINDINGS 50

static bool known(const GradPath *p, const Value *v)
{
    return v && v->id < p->n_values;
}

bool mpri_path_needs(const GradPath *p, const Node *n, int k)
{
    const Value *v = n->in[k];
    return known(p, v) && p->active[v->id] && !(k < 32 && (n->op->nondiff_in >> k & 1));
}

static bool gives(const GradPath *p, const Node *n)
{
    for (int i = 0; i < n->n_out; i++)
        if (known(p, n->out[i]) && p->leads[n->out[i]->id] && p->active[n->out[i]->id]) return true;
    return false;
}

static bool takes(const GradPath *p, const Node *n)
{
    if (n->op->grad_state == GRAD_ZERO) return false;
    for (int k = 0; k < n->n_in; k++)
        if (mpri_path_needs(p, n, k)) return true;
    return false;
}

bool mpri_path_has(const GradPath *p, const Node *n)
{
    return takes(p, n) && gives(p, n);
}

static bool carries(const Node *n)
{
    switch (n->op->id) {
    case OP_Cast:
    case OP_Identity:
    case OP_Transpose:
    case OP_Reshape:
    case OP_Squeeze:
    case OP_Unsqueeze:
    case OP_Flatten:
        return true;
    default:
        return false;
    }
}

static void mark_wanted(GradPath *p, const PassCtx *ctx, const Graph *g)
{
    bool training = ctx->o->grads == GRADS_TO_SLOTS;
    for (int i = 0; i < g->n_params && (training || ctx->o->grads_of_params); i++) {
        const Value *v = g->params[i].value;
        if (g->params[i].trained && v && v->kind == VAL_SLOT)
            p->active[v->id] = p->of_param[v->id] = true;
    }
    for (int i = 0; i < g->n_inputs && !training && ctx->o->grads_of_inputs; i++)
        if (mpri_dtype_is_float(g->inputs[i].value->dtype))
            p->active[g->inputs[i].value->id] = true;
}

static void mark_active(GradPath *p, const Graph *g)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (!takes(p, n)) continue;
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i] && (mpri_dtype_is_float(n->out[i]->dtype) || (n->op->flags & OPF_OPAQUE)))
                p->active[n->out[i]->id] = true;
        if (carries(n) && p->of_param[n->in[0]->id] && p->active[n->out[0]->id])
            p->of_param[n->out[0]->id] = true;
    }
}

static void mark_leading(GradPath *p, const Graph *g)
{
    for (const Node *n = g->last; n; n = n->prev) {
        bool leads = false;
        for (int i = 0; i < n->n_out; i++) leads = leads || (n->out[i] && p->leads[n->out[i]->id]);
        if (!leads || n->op->grad_state == GRAD_ZERO) continue;
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] && !(k < 32 && (n->op->nondiff_in >> k & 1)))
                p->leads[n->in[k]->id] = true;
    }
}

/* ---- operators without a gradient on the path ---- */

static bool blocks(const GradPath *p, const Node *n)
{
    bool missing = (n->op->flags & OPF_OPAQUE) || n->op->grad_state == GRAD_NONE ||
                   n->op->grad_state == GRAD_FORGOTTEN;
    return missing && mpri_path_has(p, n);
}

static const char *kind(const Node *n)
{
    return n->opaque_type ? n->opaque_type : n->op->name;
}

static void add_names(char *text, size_t size, const char *name, int count)
{
    size_t used = strlen(text);
    if (count > NAMES) return;
    snprintf(text + used, size - used, "%s%s%s%s", count > 1 ? ", " : "", count < NAMES ? "'" : "",
             count < NAMES ? mpri_err_name(name) : "…", count < NAMES ? "'" : "");
}

static mpr_status report_missing(const GradPath *p, const Graph *g, Err *err)
{
    for (const Node *n = g->first; n; n = n->next) {
        if (!blocks(p, n)) continue;
        char names[1024] = "";
        int count = 0;
        bool seen = false;
        for (const Node *m = g->first; m && !(seen && count == 0); m = m->next) {
            if (!blocks(p, m) || strcmp(kind(m), kind(n)) != 0) continue;
            if (count == 0 && m != n) seen = true;
            else add_names(names, sizeof names, m->name, ++count);
        }
        if (seen) continue;
        bool opaque = n->op->flags & OPF_OPAQUE;
        mpri_err_finding(err, opaque ? MPR_E_UNSUPPORTED_OP : MPR_E_NOT_DIFFERENTIABLE,
                         "operator %s has no gradient (%s): %d on the path to the loss: %s",
                         mpri_err_name(kind(n)),
                         opaque               ? "it is not known"
                         : n->op->grad_reason ? n->op->grad_reason
                                              : "none is defined",
                         count, names);
    }
    if (err->code == MPR_OK) return MPR_OK;
    return mpri_err_advice(err, "freeze the parameters before these nodes (--freeze), or replace "
                                "the operators in the model");
}

/* ---- no path at all ---- */

/* Any dependence of the seeds, differentiable or not. */
static bool *depended_on(PassCtx *ctx, const Graph *g, Value *const *seeds, int n_seeds)
{
    bool *dep = ARENA_ARRAY(ctx->scratch, bool, g->n_values);
    for (int i = 0; dep && i < n_seeds; i++) dep[seeds[i]->id] = true;
    for (const Node *n = dep ? g->last : NULL; n; n = n->prev)
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i] && dep[n->out[i]->id])
                for (int k = 0; k < n->n_in; k++)
                    if (n->in[k]) dep[n->in[k]->id] = true;
    return dep;
}

/* Names of the parameters whose differentiable paths end in node n. */
static void params_behind(const GradPath *p, const Graph *g, const Node *n, bool *mark, char *text,
                          size_t size)
{
    memset(mark, 0, (size_t)g->n_values * sizeof *mark);
    for (int k = 0; k < n->n_in; k++)
        if (known(p, n->in[k]) && p->active[n->in[k]->id]) mark[n->in[k]->id] = true;
    for (const Node *m = n->prev; m; m = m->prev)
        for (int i = 0; i < m->n_out; i++)
            if (m->out[i] && mark[m->out[i]->id])
                for (int k = 0; k < m->n_in; k++)
                    if (mpri_path_needs(p, m, k)) mark[m->in[k]->id] = true;
    int count = 0;
    for (int i = 0; i < g->n_params; i++)
        if (g->params[i].value && mark[g->params[i].value->id] && g->params[i].trained)
            add_names(text, size, g->params[i].name, ++count);
}

static const char *why_blocked(const Node *n)
{
    if (n->op->grad_state == GRAD_ZERO) return "its gradient is zero everywhere";
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] && !mpri_dtype_is_float(n->out[i]->dtype)) return "its output is not float";
    return "its input is an index, shape or condition";
}

static mpr_status report_no_path(const GradPath *p, PassCtx *ctx, const Graph *g,
                                 Value *const *seeds, int n_seeds, Err *err)
{
    bool *dep = depended_on(ctx, g, seeds, n_seeds),
         *mark = ARENA_ARRAY(ctx->scratch, bool, g->n_values);
    if (!dep || !mark) return mpri_err_nomem(err, (size_t)g->n_values);
    int trained = 0, found = 0;
    for (int i = 0; i < g->n_params; i++) trained += g->params[i].trained;
    if (!trained) {
        mpri_err_set(err, MPR_E_NOT_DIFFERENTIABLE, "no parameter is trained");
        return mpri_err_advice(
            err, "take back --freeze or --train-only, or give a model that has float weights");
    }
    for (const Node *n = g->first; n; n = n->next) {
        bool in = false, out = false, needed = false;
        for (int k = 0; k < n->n_in; k++)
            in = in || (known(p, n->in[k]) && p->active[n->in[k]->id]);
        for (int i = 0; i < n->n_out; i++) {
            out = out || (n->out[i] && p->active[n->out[i]->id]);
            needed = needed || (n->out[i] && dep[n->out[i]->id]);
        }
        if (!in || out || !needed || ++found > FINDINGS) continue;
        char names[1024] = "";
        params_behind(p, g, n, mark, names, sizeof names);
        mpri_err_finding(
            err, MPR_E_NOT_DIFFERENTIABLE, "no gradient passes node '%s' (%s): %s; behind it: %s",
            mpri_err_name(n->name), kind(n), why_blocked(n), *names ? names : "no parameter");
    }
    if (!found)
        mpri_err_set(err, MPR_E_NOT_DIFFERENTIABLE,
                     "the loss does not depend on any of the %d trained parameters", trained);
    return mpri_err_advice(err, "choose an output before these nodes as the loss or logits");
}

mpr_status mpri_path_find(GradPath *p, PassCtx *ctx, const Graph *g, Value *const *seeds,
                          int n_seeds, Err *err)
{
    size_t n = (size_t)g->n_values;
    p->n_values = g->n_values;
    p->active = ARENA_ARRAY(ctx->scratch, bool, n);
    p->leads = ARENA_ARRAY(ctx->scratch, bool, n);
    p->of_param = ARENA_ARRAY(ctx->scratch, bool, n);
    if (!p->active || !p->leads || !p->of_param) return mpri_err_nomem(err, n);
    mark_wanted(p, ctx, g);
    for (int i = 0; i < n_seeds; i++) p->leads[seeds[i]->id] = true;
    mark_active(p, g);
    mark_leading(p, g);
    TRY(report_missing(p, g, err));
    if (ctx->o->grads != GRADS_TO_SLOTS || p->active[seeds[0]->id]) return MPR_OK;
    return report_no_path(p, ctx, g, seeds, n_seeds, err);
}
