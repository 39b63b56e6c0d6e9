/* Model-local functions: found by (domain, name, overload), checked before anything is expanded.
 * Sizes are added up along the call graph, so 2^40 nodes are refused without making one. A built-in
 * operator of the same name wins: exporters define functions for operators that a runtime may lack.
 */
#include "importer/inline.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "importer/order.h"

enum { SHOWN = 8 };

static const char *domain_of(const char *domain)
{
    return !domain || !strcmp(domain, "ai.onnx") ? "" : domain;
}

static const char *key_of(Import *im, const char *domain, const char *name, const char *overload)
{
    const char *text = mpri_arena_printf(&im->scratch, "%s:%s:%s", domain_of(domain),
                                         name ? name : "", overload ? overload : "");
    return text ? mpri_intern(im->names, text) : NULL;
}

const FunctionInfo *mpri_functions_of(Import *im, const Functions *f, const NodeProto *p)
{
    FunctionInfo *found = NULL;
    const char *domain = domain_of(p->domain);
    const OpDef *op = domain[0] ? NULL : im->m->graph->ops->find("", p->op_type);
    if (f->n == 0 || (op && !(op->flags & OPF_INTERNAL))) return NULL;
    const char *key = key_of(im, domain, p->op_type, p->overload);
    if (key) HASH_FIND_PTR(f->by_key, &key, found);
    return found;
}

/* ---- definitions */

static mpr_status read_opsets(Import *im, FunctionInfo *info, Err *err)
{
    const FunctionProto *p = info->p;
    Opset *v = ARENA_ARRAY(&im->scratch, Opset, p->n_opset_import + (size_t)im->opsets.n);
    int n = 0;
    if (!v) return mpri_err_nomem(err, p->n_opset_import * sizeof *v);
    for (size_t i = 0; i < p->n_opset_import; i++) {
        const char *domain = mpri_intern(im->names, domain_of(p->opset_import[i]->domain));
        int64_t version = p->opset_import[i]->has_version ? p->opset_import[i]->version : 0;
        if (!domain) return mpri_err_nomem(err, 0);
        int64_t before = mpri_opset_of(&(Opsets){.v = v, .n = n}, domain);
        if (before && before != version)
            return mpri_err_set(err, MPR_E_OPSET,
                                "function '%s': domain '%s' is imported with two versions: %" PRId64
                                " and %" PRId64,
                                mpri_err_name(p->name),
                                domain[0] ? mpri_err_name(domain) : "ai.onnx", before, version);
        if (!domain[0] && (version < 1 || version > 28))
            return mpri_err_set(err, MPR_E_OPSET,
                                "function '%s': opset %" PRId64
                                " of ai.onnx, 1 to 28 are supported",
                                mpri_err_name(p->name), version);
        if (!before) v[n++] = (Opset){domain, version};
    }
    for (int i = 0; i < im->opsets.n; i++) /* what the body does not import it has from the model */
        if (!mpri_opset_of(&(Opsets){.v = v, .n = n}, im->opsets.v[i].domain))
            v[n++] = im->opsets.v[i];
    info->opsets = (Opsets){.v = v, .n = n};
    return MPR_OK;
}

static mpr_status define(Import *im, Functions *f, Err *err)
{
    Arena *hash_arena = &im->scratch;
    f->n = im->n_functions;
    f->list = ARENA_ARRAY(hash_arena, FunctionInfo, f->n);
    if (!f->list) return mpri_err_nomem(err, (size_t)f->n * sizeof *f->list);
    for (int i = 0; i < f->n; i++) {
        FunctionInfo *info = &f->list[i], *old;
        info->p = im->functions[i];
        info->index = i;
        if (!info->p->name || !info->p->name[0])
            return mpri_err_set(err, MPR_E_INVALID_MODEL, "function %d has no name", i);
        info->key = key_of(im, info->p->domain, info->p->name, info->p->overload);
        if (!info->key) return mpri_err_nomem(err, 0);
        HASH_FIND_PTR(f->by_key, &info->key, old);
        if (old)
            return mpri_err_set(err, MPR_E_INVALID_MODEL,
                                "functions %d and %d are both called '%s' (domain:name:overload)",
                                old->index, i, mpri_err_name(info->key));
        HASH_ADD_PTR(f->by_key, key, info);
        if (info->lost) return mpri_err_nomem(err, sizeof *info);
        TRY(read_opsets(im, info, err));
    }
    return MPR_OK;
}

/* ---- calls */

typedef struct Calls { /* who calls whom, branches included */
    Edge *edges;
    int n, cap;   /* from callee to caller, so that an order has callees first */
    int64_t *own; /* nodes of each body; index n_functions: the main graph */
    const GraphProto **work;
    int n_work, cap_work;
} Calls;

static bool grow(Arena *a, void **rows, int n, int *cap, size_t size)
{
    if (n < *cap) return true;
    int want = *cap ? *cap * 2 : 64;
    void *p = mpri_arena_array(a, (size_t)want, size);
    if (!p) return false;
    if (n) memcpy(p, *rows, (size_t)n * size);
    *rows = p;
    *cap = want;
    return true;
}

static mpr_status visit(Import *im, const Functions *f, Calls *c, int caller, const NodeProto *p,
                        Err *err)
{
    Arena *a = &im->scratch;
    const FunctionInfo *callee = mpri_functions_of(im, f, p);
    c->own[caller]++;
    if (callee) {
        if (p->n_input > callee->p->n_input || p->n_output > callee->p->n_output)
            mpri_err_finding(
                err, MPR_E_INVALID_MODEL,
                "node '%s' calls function '%s' with %zu inputs and %zu outputs, it has %zu and %zu",
                mpri_err_name(p->name), mpri_err_name(callee->p->name), p->n_input, p->n_output,
                callee->p->n_input, callee->p->n_output);
        if (!grow(a, (void **)&c->edges, c->n, &c->cap, sizeof(Edge)))
            return mpri_err_nomem(err, sizeof(Edge));
        c->edges[c->n++] = (Edge){callee->index, caller};
    }
    for (size_t i = 0; i < p->n_attribute; i++) {
        const AttributeProto *attr = p->attribute[i];
        for (size_t k = 0; k < attr->n_graphs + 1; k++) {
            const GraphProto *g = k == 0 ? attr->g : attr->graphs[k - 1];
            if (!g) continue;
            if (!grow(a, (void **)&c->work, c->n_work, &c->cap_work, sizeof *c->work))
                return mpri_err_nomem(err, sizeof *c->work);
            c->work[c->n_work++] = g;
        }
    }
    return MPR_OK;
}

static mpr_status visit_branches(Import *im, const Functions *f, Calls *c, int caller, Err *err)
{
    while (c->n_work > 0) {
        const GraphProto *g = c->work[--c->n_work];
        for (size_t i = 0; i < g->n_node; i++) TRY(visit(im, f, c, caller, g->node[i], err));
    }
    return MPR_OK;
}

static mpr_status collect_calls(Import *im, const Functions *f, Calls *c, Err *err)
{
    c->own = ARENA_ARRAY(&im->scratch, int64_t, f->n + 1);
    if (!c->own) return mpri_err_nomem(err, (size_t)f->n * sizeof *c->own);
    for (int i = 0; i < f->n; i++) {
        for (size_t k = 0; k < f->list[i].p->n_node; k++)
            TRY(visit(im, f, c, i, f->list[i].p->node[k], err));
        TRY(visit_branches(im, f, c, i, err));
    }
    for (int i = 0; i < im->n_nodes; i++) TRY(visit(im, f, c, f->n, im->nodes[i].p, err));
    TRY(visit_branches(im, f, c, f->n, err));
    return err->code;
}

static mpr_status report_recursion(const Functions *f, const int *cycle, int n, Err *err)
{
    char text[1024];
    size_t used = 0;
    for (int i = 0; i <= n && i <= SHOWN && used < sizeof text; i++) {
        const char *name = f->list[cycle[i == n || i == SHOWN ? 0 : i]].p->name;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s'%s'", i ? " -> " : "",
                                 i == SHOWN && n > SHOWN ? "… -> " : "", mpri_err_name(name));
    }
    return mpri_err_set(err, MPR_E_INVALID_MODEL, "functions call themselves in a cycle: %s", text);
}

static mpr_status check_sizes(Import *im, const Functions *f, const Calls *c, const int *order,
                              Err *err)
{
    int *depth = ARENA_ARRAY(&im->scratch, int, f->n + 1);
    int64_t *size = ARENA_ARRAY(&im->scratch, int64_t, f->n + 1), limit = im->limits.nodes;
    int *first = ARENA_ARRAY(&im->scratch, int, f->n + 2),
        *edge = ARENA_ARRAY(&im->scratch, int, c->n);
    if (!depth || !size || !first || !edge) return mpri_err_nomem(err, (size_t)c->n * sizeof(int));
    for (int i = 0; i < c->n; i++) first[c->edges[i].to + 1]++;
    for (int i = 0; i <= f->n; i++) first[i + 1] += first[i];
    for (int i = c->n - 1; i >= 0; i--) edge[--first[c->edges[i].to + 1]] = c->edges[i].from;
    for (int i = 0; i <= f->n; i++) {
        int caller = order[i], begin = first[caller + 1],
            end = caller == f->n ? c->n : first[caller + 2];
        size[caller] = c->own[caller];
        depth[caller] = 0;
        for (int k = begin; k < end; k++) {
            size[caller] = size[caller] > limit ? size[caller] : size[caller] + size[edge[k]];
            if (depth[edge[k]] + 1 > depth[caller]) depth[caller] = depth[edge[k]] + 1;
        }
        const char *name = caller == f->n ? "the main graph" : f->list[caller].p->name;
        if (depth[caller] > im->limits.call_depth) {
            mpri_err_set(err, MPR_E_LIMIT,
                         "nesting depth of function calls from '%s': %d, at most %" PRId64
                         " are allowed",
                         mpri_err_name(name), depth[caller], im->limits.call_depth);
            return mpri_err_advice(err, "if the file can be trusted, raise mpr_limits.call_depth");
        }
        if (size[caller] > limit) {
            mpri_err_set(err, MPR_E_LIMIT,
                         "nodes after the expansion of functions in '%s': more than %" PRId64
                         " are not allowed",
                         mpri_err_name(name), limit);
            return mpri_err_advice(err, "if the file can be trusted, raise mpr_limits.nodes");
        }
    }
    return MPR_OK;
}

mpr_status mpri_functions_check(Import *im, Functions *out, Err *err)
{
    Calls calls = {0};
    int left, cycle[SHOWN];
    *out = (Functions){0};
    if (im->n_functions == 0) return MPR_OK;
    TRY(define(im, out, err));
    TRY(collect_calls(im, out, &calls, err));
    int *order = ARENA_ARRAY(&im->scratch, int, out->n + 1);
    if (!order || !mpri_order(out->n + 1, calls.edges, calls.n, order, &left, &im->scratch))
        return mpri_err_nomem(err, (size_t)out->n * sizeof(int));
    if (left) {
        int n = mpri_order_cycle(out->n + 1, calls.edges, calls.n, order, left, cycle, SHOWN,
                                 &im->scratch);
        return n ? report_recursion(out, cycle, n, err) : mpri_err_nomem(err, 0);
    }
    return check_sizes(im, out, &calls, order, err);
}
