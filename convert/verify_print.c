/* What a verification found, for people and for programs. */
#include <float.h>
#include <stdio.h>
#include <math.h>
#include <string.h>

#include "convert/verify.h"

static const char *number(char buf[16], double x)
{
    if (x == DBL_MAX) snprintf(buf, 16, "inf");
    else snprintf(buf, 16, "%.3g", x);
    return buf;
}

/* The last `width` bytes of a path, and "..." where more went before. */
static const char *tail(const char *path, size_t width)
{
    static _Thread_local char buf[128];
    const char *name = mpri_err_name(path);
    size_t n = strlen(name);
    if (n <= width) return name;
    snprintf(buf, sizeof buf, "...%s", name + n - width + 3);
    return buf;
}

static const char *precision(const MixNode *n)
{
    DType is = n->n_units ? n->units[0]->is : MPR_DTYPE_NONE;
    for (int k = 0; k < n->n_units; k++)
        if (mpri_dtype_is_low(n->units[k]->is)) is = n->units[k]->is;
    return is == MPR_DTYPE_NONE ? "-" : mpri_dtype_name(is);
}

/* A node without floats is of interest only where it differs. */
static bool is_listed(const NodeGaps *g, const MixNode *n)
{
    bool floats = false;
    for (int k = 0; k < n->n_out; k++)
        floats = floats || (n->out[k] && mpri_mix_castable(n->out[k]->type.elem));
    return g->seen && (floats || g->total.most > 0);
}

static void print_nodes(const Verification *v, const Mix *m, Text *out)
{
    enum { PATH = 34 };
    char a[16], b[16], c[16], d[16], e[16];
    mpri_text_add(out, "%-*s %-18s %-5s %9s %9s %9s %9s %9s  %s\n", PATH, "node", "operator",
                  "type", "local", "relative", "ulps", "total", "relative", "born");
    for (int i = 0; i < m->n_nodes; i++) {
        const NodeGaps *n = &v->nodes[i];
        const MixNode *node = m->nodes[i];
        if (!is_listed(n, node)) continue;
        mpri_text_add(out, "%-*s %-18.18s %-5s %9s %9s %9s %9s %9s  %s\n", PATH,
                      tail(node->path, PATH), mpri_err_name(node->op), precision(node),
                      number(a, n->local.most), number(b, n->local.relative), number(c, n->ulps),
                      number(d, n->total.most), number(e, n->total.relative),
                      strcmp(n->born, "none") ? n->born : "");
    }
}

void mpri_verify_print(const Verification *v, const Mix *m, bool nodes, Text *out)
{
    char a[16], b[16];
    if (nodes && v->nodes) print_nodes(v, m, out);
    for (int i = 0; i < v->n_outputs; i++) {
        const OutputGaps *o = &v->outputs[i];
        mpri_text_add(out, "output %s: largest difference %s, of values up to %s",
                      mpri_err_name(o->name), number(a, o->gap.most), number(b, o->most));
        mpri_text_add(out, "; largest relative one %s", number(a, o->gap.relative));
        if (o->beyond)
            mpri_text_add(out, "; %lld of %lld elements above the tolerance", (long long)o->beyond,
                          (long long)o->elements);
        mpri_text_put(out, "\n");
    }
    mpri_text_add(out, "%s the tolerance: rtol %.4g, atol %.4g\n",
                  v->breach ? "above" : "verified: within", v->rtol, v->atol);
}

/* ---- the breach ---- */

static const MixNode *first_birth(const Verification *v, const Mix *m, const char **born)
{
    for (int i = 0; v->nodes && i < m->n_nodes; i++) {
        *born = v->nodes[i].born;
        if (v->nodes[i].seen && strcmp(*born, "none")) return m->nodes[i];
    }
    return NULL;
}

static const MixNode *worst_local(const Verification *v, const Mix *m)
{
    int worst = -1;
    for (int i = 0; v->nodes && i < m->n_nodes; i++)
        if (v->nodes[i].seen && v->nodes[i].share > 0 &&
            (worst < 0 || v->nodes[i].share > v->nodes[worst].share))
            worst = i;
    return worst < 0 ? NULL : m->nodes[worst];
}

/* The sign of a NaN says nothing. */
static double shown(double x)
{
    return isnan(x) ? (double)NAN : x;
}

mpr_status mpri_verify_error(const Verification *v, const Mix *m, const char *lead, Err *err)
{
    const OutputGaps *o = v->outputs;
    const char *born;
    for (int i = 0; i < v->n_outputs && !o->beyond; i++) o = &v->outputs[i];
    mpri_err_set(
        err, MPR_E_TOLERANCE,
        "%soutput '%s' differs: %lld of %lld elements are above rtol %.4g, atol %.4g; element "
        "%lld is %g and was %g in float32",
        lead, mpri_err_name(o->name), (long long)o->beyond, (long long)o->elements, v->rtol,
        o->atol, (long long)o->at, shown(o->is), shown(o->was));
    const MixNode *n = first_birth(v, m, &born);
    if (n) {
        mpri_err_where(err, "node '%s' (%s), where the first %s is born", mpri_err_name(n->path),
                       mpri_err_name(n->op), strcmp(born, "nan") ? "Inf" : "NaN");
    } else if ((n = worst_local(v, m))) {
        mpri_err_where(err, "node '%s' (%s) has the largest error of its own",
                       mpri_err_name(n->path), mpri_err_name(n->op));
    }
    if (n && n->n_out)
        return mpri_err_advice(err, "keep it in float32 with --exclude 'out:%s', let --auto RTOL "
                               "find such nodes, or raise the tolerance",
                               mpri_err_name(n->out_name[0]));
    return mpri_err_advice(err, "let --auto RTOL find the nodes to keep in float32, or raise the "
                           "tolerance");
}
