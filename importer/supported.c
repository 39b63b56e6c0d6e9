/* All operators that cannot be run, at once: grouped by type, with counts, first names and the
 * advice that fits the most telling of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "importer/importer.h"
#include "runtime/op/ops.h"

enum { NAMES_SHOWN = 3 };

/* A node counts when an output of the graph needs it: dead branches are never run. */
static void mark_live(const Graph *g, bool *live)
{
    for (int i = 0; i < g->n_outputs; i++) live[g->outputs[i].value->id] = true;
    for (const Node *n = g->last; n; n = n->prev) {
        bool any = n->op->flags & OPF_EFFECT;
        for (int k = 0; k < n->n_out; k++) any |= n->out[k] && live[n->out[k]->id];
        for (int k = 0; any && k < n->n_in; k++)
            if (n->in[k]) live[n->in[k]->id] = true;
    }
}

static bool is_live(const Node *n, const bool *live)
{
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k] && live[n->out[k]->id]) return true;
    return false;
}

static const char *type_of(const Node *n)
{
    return n->opaque_type ? n->opaque_type : n->op->name;
}

static int by_type(const void *a, const void *b)
{
    const Node *x = *(const Node *const *)a, *y = *(const Node *const *)b;
    int c = strcmp(type_of(x), type_of(y));
    return c ? c : x->id - y->id;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

static bool is_training_op(const char *type)
{
    return ends_with(type, "Grad") || strstr(type, "Grad_") || ends_with(type, "YieldOp") ||
           strstr(type, "Internal") || ends_with(type, "GradientArgs");
}

static bool is_quantised(const char *type)
{
    const char *op = strrchr(type, ':'); /* QGemm, but not QuickGelu */
    if (op && op[1] == 'Q' && op[2] >= 'A' && op[2] <= 'Z') return true;
    return strstr(type, "NBits") || strstr(type, "QLinear") || strstr(type, "Quantize") ||
           strstr(type, "Integer") || strstr(type, "QAttention");
}

static const char *advice(Node *const *nodes, int n)
{
    bool training = false, aten = false, quantised = false, microsoft = false, control = false;
    for (int i = 0; i < n; i++) {
        const char *type = type_of(nodes[i]);
        training |= is_training_op(type);
        aten |= strstr(type, "aten") || ends_with(type, "ATen");
        quantised |= is_quantised(type);
        control |= !strcmp(type, "If") || !strcmp(type, "Loop") || !strcmp(type, "Scan");
        microsoft |= !strncmp(type, "com.microsoft", 13);
    }
    if (training)
        return "this is a training graph with gradient operators in it: pass the forward model, "
               "the gradients are made here";
    if (aten) return "export the model without ATen fallback operators";
    if (quantised) return "a quantised model cannot be trained: pass the original float model";
    if (microsoft)
        return "pass the unoptimised model: onnxruntime's fused operators are not the standard's";
    if (control)
        return "export the model with fixed sizes and without branches that depend on data; mpr-run "
               "takes such values from its inputs";
    return "replace these operators in the model before the export, or export with decompositions "
           "(a lower opset helps at times)";
}

static void report(Node *const *nodes, int n, Err *err)
{
    char names[700];
    size_t used = 0;
    for (int i = 0; i < n && i < NAMES_SHOWN && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", i ? ", " : "",
                                 mpri_err_name(nodes[i]->name));
    const char *why = nodes[0]->why;
    mpri_err_finding(err, MPR_E_UNSUPPORTED_OP,
                     "operator %s is not supported%s: %d node%s (%s%s)%s%s",
                     mpri_err_name(type_of(nodes[0])),
                     nodes[0]->opaque_type ? "" : " in training", n, n == 1 ? "" : "s", names,
                     n > NAMES_SHOWN ? ", …" : "", why ? ": " : "", why ? why : "");
}

/* Declarations of the file that contradict what an operator gives: found while the graph was built.
 */
static mpr_status report_contradictions(const Graph *g, Err *err)
{
    for (const Node *n = g->first; n; n = n->next)
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k] && n->out[k]->declared && !(n->op->flags & OPF_OPAQUE))
                mpri_err_finding(
                    err, MPR_E_SHAPE, "node '%s' (%s): %s", mpri_err_name(n->name), n->op->name,
                    n->why && !strncmp(n->why, "value '", 7)
                        ? n->why
                        : "the file declares another shape for its output than the operator gives");
    return err->code;
}

static bool refused(const Node *n, bool training)
{
    if (n->op->flags & OPF_OPAQUE) return true;
    return training && (n->op->id == OP_QuantizeLinear || n->op->id == OP_DequantizeLinear);
}

static mpr_status check(const Graph *g, bool training, Err *err)
{
    TRY(report_contradictions(g, err));
    Arena scratch;
    mpri_arena_init(&scratch, g->arena->alloc, 0);
    bool *live = ARENA_ARRAY(&scratch, bool, g->n_values);
    Node **nodes = ARENA_ARRAY(&scratch, Node *, g->n_nodes);
    int n = 0;
    if (!live || !nodes) {
        mpri_arena_destroy(&scratch);
        return mpri_err_nomem(err, (size_t)g->n_nodes * sizeof *nodes);
    }
    mark_live(g, live);
    for (Node *node = g->first; node; node = node->next)
        if (refused(node, training) && is_live(node, live)) nodes[n++] = node;
    if (n) qsort(nodes, (size_t)n, sizeof *nodes, by_type);
    for (int i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && type_of(nodes[k]) == type_of(nodes[i]);) k++;
        report(nodes + i, k - i, err);
    }
    if (n) mpri_err_advice(err, "%s", advice(nodes, n));
    mpri_arena_destroy(&scratch);
    return err->code;
}

mpr_status mpri_import_check_supported(const Graph *g, Err *err)
{
    return check(g, false, err);
}

mpr_status mpri_import_check_trainable(const Graph *g, Err *err)
{
    return check(g, true, err);
}
