/* Reports in JSON: keys sorted, nodes in file order, nothing that depends on time or place. */
#include "convert/report.h"

#include <stdio.h>
#include <string.h>

#include "convert/decisions.h"
#include "importer/file.h"
#include "mpr.h"
#include "passes/profile.h"

static void text(Text *t, const char *s)
{
    mpri_report_string(t, s);
}

static void member(Text *t, const char *key, const char *value)
{
    text(t, key);
    mpri_text_put(t, ": ");
    text(t, value);
}

/* Names of ONNX. */
static const char *type_name(DType t)
{
    return t == MPR_FLOAT32 ? "float" : t == MPR_FLOAT16 ? "float16"
           : t == MPR_BFLOAT16 ? "bfloat16" : mpri_dtype_long(t);
}

static void unit_name(Text *t, const MixUnit *u)
{
    mpri_text_add(t, "%s:%s", u->node->path, u->name);
}

/* ---- chains ---- */

/* What comes after u on its way to the root, which is always the last one: a chain that is longer
 * than people read leaves out what is before the root. */
static const MixUnit *next_reason(const MixUnit *u, int at)
{
    enum { MOST = 64, ENDLESS = 1 << 20 };
    const MixUnit *next = u->from == u ? NULL : u->from;
    if (at < MOST || !next) return next;
    for (int i = 0; next->from && next->from != next && i < ENDLESS; i++) next = next->from;
    return next;
}

static void chain(Text *t, const MixUnit *u)
{
    mpri_text_put(t, "[");
    for (int i = 0; u; u = next_reason(u, ++i)) {
        Text name;
        if (i) mpri_text_put(t, ", ");
        mpri_text_put(t, "{");
        if (u->detail) {
            member(t, "detail", u->detail);
            mpri_text_put(t, ", ");
        }
        member(t, "reason", mpri_reason_text(u->why));
        mpri_text_init(&name, t->alloc);
        unit_name(&name, u);
        t->failed = t->failed || name.failed;
        mpri_text_put(t, ", ");
        member(t, "unit", name.text ? name.text : "");
        mpri_text_put(t, "}");
        mpri_text_free(&name);
    }
    mpri_text_put(t, "]");
}

/* ---- units ---- */

static const MixUnit *next_unit(const MixNode *n, const MixUnit *last)
{
    const MixUnit *best = NULL;
    for (int i = 0; i < n->n_units; i++) {
        const MixUnit *u = n->units[i];
        if (last && strcmp(u->name, last->name) <= 0) continue;
        if (!best || strcmp(u->name, best->name) < 0) best = u;
    }
    return best;
}

static void units(Text *t, const MixNode *n)
{
    mpri_text_put(t, "{");
    for (const MixUnit *u = next_unit(n, NULL), *first = u; u; u = next_unit(n, u)) {
        if (u != first) mpri_text_put(t, ", ");
        text(t, u->name);
        mpri_text_put(t, ": {\"chain\": ");
        chain(t, u);
        mpri_text_put(t, ", ");
        member(t, "is", type_name(u->is));
        mpri_text_put(t, ", ");
        member(t, "reason", mpri_reason_text(u->why));
        mpri_text_put(t, ", ");
        member(t, "was", type_name(u->was.elem));
        mpri_text_put(t, "}");
    }
    mpri_text_put(t, "}");
}

static void casts_of(Text *t, const Report *r, const MixNode *n)
{
    bool first = true;
    mpri_text_put(t, "[");
    for (const RewriteCast *c = r->rewrite ? r->rewrite->list : NULL; c; c = c->next) {
        if (c->reader != n) continue;
        if (!first) mpri_text_put(t, ", ");
        text(t, c->name);
        first = false;
    }
    mpri_text_put(t, "]");
}

static void nodes(Text *t, const Report *r)
{
    mpri_text_put(t, "\"nodes\": [");
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        mpri_text_put(t, i ? ",\n  {\"casts\": " : "\n  {\"casts\": ");
        casts_of(t, r, n);
        mpri_text_put(t, ", ");
        member(t, "domain", n->domain);
        mpri_text_put(t, ", ");
        member(t, "op", n->op);
        mpri_text_put(t, ", ");
        member(t, "output", n->n_out ? n->out_name[0] : "");
        mpri_text_put(t, ", ");
        member(t, "path", n->path);
        mpri_text_put(t, ", \"units\": ");
        units(t, n);
        mpri_text_put(t, "}");
    }
    mpri_text_put(t, "]");
}

/* ---- the rest ---- */

static void casts(Text *t, const Report *r)
{
    bool first = true;
    mpri_text_put(t, "\"casts\": [");
    for (const RewriteCast *c = r->rewrite ? r->rewrite->list : NULL; c; c = c->next) {
        mpri_text_add(t, "%s\n  {\"consumers\": %d, ", first ? "" : ",", c->consumers);
        member(t, "from", type_name(c->from));
        mpri_text_put(t, ", ");
        member(t, "name", c->name);
        mpri_text_put(t, ", ");
        member(t, "scope", c->scope);
        mpri_text_put(t, ", ");
        member(t, "to", type_name(c->to));
        mpri_text_put(t, ", ");
        member(t, "value", c->value);
        mpri_text_put(t, "}");
        first = false;
    }
    mpri_text_put(t, "]");
}

/* By the name of the domain. */
static const TreeField *next_opset(const Report *r, const TreeField *last)
{
    const char *after = last ? mpri_tree_text(r->m->pool, last->tree, 1) : NULL, *best = NULL;
    const TreeField *found = NULL;
    for (int i = 0; i < r->m->model->n; i++) {
        const TreeField *f = &r->m->model->f[i];
        if (f->number != 8 || !f->tree) continue;
        const char *domain = mpri_tree_text(r->m->pool, f->tree, 1);
        if ((after && strcmp(domain, after) <= 0) || (best && strcmp(domain, best) >= 0)) continue;
        best = domain;
        found = f;
    }
    return found;
}

static void model(Text *t, const Report *r)
{
    char hex[65];
    const Source *s = r->model->source;
    const char *slash = strrchr(r->model->path, '/');
    mpri_sha256(s->bytes, s->size, hex);
    mpri_text_put(t, "\"model\": {");
    member(t, "file", slash ? slash + 1 : r->model->path);
    mpri_text_add(t, ", \"ir_version\": %lld, \"opsets\": {", (long long)r->m->ir_version);
    for (const TreeField *f = NULL, *first = NULL; (f = next_opset(r, f)); first = f) {
        if (first) mpri_text_put(t, ", ");
        text(t, mpri_tree_text(r->m->pool, f->tree, 1));
        mpri_text_add(t, ": %lld", (long long)mpri_tree_int(f->tree, 2, 1));
    }
    mpri_text_put(t, "}, ");
    member(t, "sha256", hex);
    mpri_text_put(t, "}");
}

static const char *next_option(const char *const *echo, const char *last)
{
    const char *best = NULL;
    for (int i = 0; echo && echo[i]; i += 2)
        if ((!last || strcmp(echo[i], last) > 0) && (!best || strcmp(echo[i], best) < 0))
            best = echo[i];
    return best;
}

static void options(Text *t, const Report *r)
{
    static const char lists[] = " exclude include force-include keep-fp32 no-guard io ";
    const char *const *e = r->o->echo;
    mpri_text_put(t, "\"options\": {");
    for (const char *key = NULL, *last = NULL; (key = next_option(e, key)); last = key) {
        char word[32];
        int n = 0;
        snprintf(word, sizeof word, " %.24s ", key);
        bool list = strstr(lists, word);
        if (last) mpri_text_put(t, ", ");
        text(t, key);
        mpri_text_put(t, list ? ": [" : ": ");
        for (int i = 0; e[i]; i += 2) {
            if (strcmp(e[i], key)) continue;
            if (n++) mpri_text_put(t, ", ");
            text(t, e[i + 1]);
        }
        if (list) mpri_text_put(t, "]");
    }
    mpri_text_put(t, "}");
}

/* Rules on top of the lists, where there are some. */
static void policy(Text *t, const Profile *p)
{
    if (!p || !p->n) return;
    mpri_text_put(t, "\"policy\": {");
    member(t, "base", p->decisions ? p->name : mpri_profile_base_name(p));
    mpri_text_put(t, ", \"rules\": [");
    for (int i = 0; i < p->n; i++) {
        mpri_text_put(t, i ? ", " : "");
        text(t, p->rules[i].why);
    }
    mpri_text_put(t, "]},\n");
}

/* Elements of a value as far as they are known: dims that are not count once. 0: nothing is. */
static double known_elements(const MixValue *v)
{
    double n = 1;
    int rank = v ? mpri_mix_rank(v) : -1;
    for (int k = 0; k < rank; k++) n *= mpri_mix_dim(v, k) > 0 ? (double)mpri_mix_dim(v, k) : 1;
    return rank < 0 ? 0 : n;
}

static double known_dim(const MixValue *v, int axis)
{
    int64_t d = mpri_mix_dim(v, axis);
    return d > 0 ? (double)d : 1;
}

/* Multiply-adds of a product by stored, measured and declared shapes. Without any for what it
 * makes, those of one row or one place. */
static double products(const MixNode *n)
{
    bool matrix = mpri_node_is(n, "MatMul Gemm"), conv = mpri_node_is(n, "Conv");
    bool turned = mpri_node_is(n, "ConvTranspose");
    const MixValue *x = n->n_in ? n->in[0] : NULL, *w = n->n_in > 1 ? n->in[1] : NULL;
    double out = n->n_out ? known_elements(n->out[0]) : 0, all = known_elements(w), depth = 0;
    if (!matrix && !conv && !turned) return 0;
    if (turned) return known_elements(x) > 0 && w ? known_elements(x) * all / known_dim(w, 0) : all;
    if (conv) return w && out > 0 ? out * all / known_dim(w, 0) : all;
    if (w && mpri_mix_rank(w) > 0)
        depth = known_dim(w, mpri_mix_rank(w) < 2 || mpri_mix_attribute_int(n, "transB", 0) ? -1 : -2);
    else if (x && mpri_mix_rank(x) > 0)
        depth = known_dim(x, mpri_mix_attribute_int(n, "transA", 0) ? -2 : -1);
    return depth > 0 && out > 0 ? out * depth : all;
}

/* The precision of a node is that of its first unit that changes. */
static void totals(Text *t, const Report *r)
{
    int n_float = 0, n_f16 = 0, n_bf16 = 0, other = 0;
    double all = 0, low = 0;
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        DType is = n->n_units ? n->units[0]->is : MPR_DTYPE_NONE;
        for (int k = 0; k < n->n_units; k++)
            if (n->units[k]->is != n->units[k]->was.elem) is = n->units[k]->is;
        double flops = n->n_units ? products(n) : 0;
        all += flops;
        low += mpri_dtype_is_low(is) ? flops : 0;
        n_float += is == MPR_FLOAT32;
        n_f16 += is == MPR_FLOAT16;
        n_bf16 += is == MPR_BFLOAT16;
        other += is == MPR_DTYPE_NONE;
    }
    char share[32];
    mpri_print_f64(share, all > 0 ? low / all : 0);
    mpri_text_add(t, "\"totals\": {\"bytes_after\": %zu, \"bytes_before\": %zu, ", r->bytes_after,
                  r->bytes_before);
    mpri_text_add(t, "\"casts_added\": %d, \"casts_merged\": %d, \"flops_low_share\": %s, "
                  "\"nodes\": {", r->rewrite ? r->rewrite->casts : 0,
                  r->rewrite ? r->rewrite->merged : 0, share);
    mpri_text_add(t, "\"bfloat16\": %d, \"float\": %d, \"float16\": %d, \"other\": %d}}", n_bf16,
                  n_float, n_f16, other);
}

static void warnings(Text *t, const Report *r)
{
    mpri_text_put(t, "\"warnings\": [");
    for (const PaintWarning *w = r->paint ? r->paint->warnings : NULL; w; w = w->next) {
        mpri_text_add(t, "%s\n  {\"count\": %lld, ", w == r->paint->warnings ? "" : ",",
                      (long long)w->count);
        member(t, "detail", w->detail);
        mpri_text_put(t, ", ");
        member(t, "kind", w->kind);
        mpri_text_put(t, ", ");
        member(t, "where", w->where);
        mpri_text_put(t, "}");
    }
    mpri_text_put(t, "]");
}

/* ---- verification ---- */

static void numbers(Text *t, const char *first, double a, const char *second, double b)
{
    char buf[32];
    text(t, first);
    mpri_print_f64(buf, a);
    mpri_text_add(t, ": %s, ", buf);
    text(t, second);
    mpri_print_f64(buf, b);
    mpri_text_add(t, ": %s", buf);
}

static void node_gaps(Text *t, const NodeGaps *n, const char *path)
{
    char buf[32];
    mpri_text_put(t, "{\"accumulated\": {");
    numbers(t, "max_abs", n->total.most, "max_rel", n->total.relative);
    mpri_text_put(t, "}, ");
    member(t, "born", n->born);
    mpri_text_put(t, ", \"local\": {");
    numbers(t, "max_abs", n->local.most, "max_rel", n->local.relative);
    mpri_print_f64(buf, n->ulps);
    mpri_text_add(t, ", \"ulp\": %s}, ", buf);
    member(t, "path", path);
    mpri_text_put(t, "}");
}

static void verification(Text *t, const Report *r)
{
    const Verification *v = r->verify;
    char buf[32];
    bool first = true;
    mpri_print_f64(buf, v->atol);
    mpri_text_add(t, "\"verify\": {\"atol\": %s, \"nodes\": [", buf);
    for (int i = 0; v->nodes && i < r->m->n_nodes; i++) {
        if (!v->nodes[i].seen) continue;
        mpri_text_put(t, first ? "\n  " : ",\n  ");
        node_gaps(t, &v->nodes[i], r->m->nodes[i]->path);
        first = false;
    }
    mpri_text_put(t, "],\n  \"outputs\": [");
    for (int i = 0; i < v->n_outputs; i++) {
        mpri_text_put(t, i ? ", {" : "{");
        numbers(t, "max_abs", v->outputs[i].gap.most, "max_rel", v->outputs[i].gap.relative);
        mpri_text_put(t, ", ");
        member(t, "name", v->outputs[i].name);
        mpri_text_put(t, "}");
    }
    mpri_print_f64(buf, v->rtol);
    mpri_text_add(t, "], \"rtol\": %s}", buf);
}

void mpri_report_json(const Report *r, Text *out)
{
    mpri_text_put(out, "{");
    casts(out, r);
    mpri_text_put(out, ",\n");
    if (r->refused) {
        member(out, "error", r->refused);
        mpri_text_put(out, ",\n");
    }
    model(out, r);
    mpri_text_put(out, ",\n");
    nodes(out, r);
    mpri_text_put(out, ",\n");
    options(out, r);
    mpri_text_put(out, ",\n");
    policy(out, r->o->paint.policy);
    bool breach = r->verify && r->verify->breach;
    member(out, "result", r->refused ? "refused" : breach ? "breach"
                          : r->changed ? "converted" : "unchanged");
    mpri_text_put(out, ",\n\"schema\": 1,\n\"tool\": {");
    member(out, "name", "mpr-convert");
    mpri_text_put(out, ", ");
    member(out, "version", mpr_version());
    mpri_text_put(out, "},\n");
    totals(out, r);
    mpri_text_put(out, ",\n");
    if (r->verify) {
        verification(out, r);
        mpri_text_put(out, ",\n");
    }
    warnings(out, r);
    mpri_text_put(out, "}\n");
}

void mpri_report_annotations(const Report *r, Text *out)
{
    mpri_text_put(out, "{");
    member(out, "for", type_name(r->m->to));
    mpri_text_put(out, ",\n");
    model(out, r);
    mpri_text_put(out, ",\n");
    nodes(out, r);
    mpri_text_put(out, ",\n");
    if (r->decided) mpri_decisions_profile(out, r->decided);
    mpri_text_put(out, "\"schema\": 1}\n");
}

static mpr_status write_text(const Report *r, const char *path,
                             void (*make)(const Report *, Text *), Err *err)
{
    Text t;
    if (!path) return MPR_OK;
    mpri_text_init(&t, r->o->alloc);
    make(r, &t);
    mpr_status st = t.failed ? mpri_err_nomem(err, t.len)
                             : mpri_write_file_atomic(path, t.text, t.len, err);
    mpri_text_free(&t);
    return st;
}

mpr_status mpri_report_files(const Report *r, Err *err)
{
    TRY(write_text(r, r->o->report, mpri_report_json, err));
    if (r->refused) return MPR_OK;
    TRY(write_text(r, r->o->annotations, mpri_report_annotations, err));
    TRY(write_text(r, r->o->dot, mpri_report_dot, err));
    return write_text(r, r->o->svg, mpri_report_svg, err);
}

/* ---- one node ---- */

static const MixNode *find_node(const Report *r, const char *ref)
{
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        if (!strcmp(ref, n->path) || (*n->name && !strcmp(ref, n->name))) return n;
        for (int k = 0; *ref == '=' && k < n->n_out; k++)
            if (!strcmp(ref + 1, n->out_name[k])) return n;
    }
    return NULL;
}

bool mpri_report_explain(const Report *r, const char *ref, Text *out)
{
    const MixNode *n = find_node(r, ref);
    if (!n) return false;
    mpri_text_add(out, "%s (%s)\n", mpri_err_name(n->path), mpri_err_name(n->op));
    if (!n->n_units) mpri_text_put(out, "  nothing in it can change its precision\n");
    for (int i = 0; i < n->n_units; i++) {
        const MixUnit *u = n->units[i];
        mpri_text_add(out, "  %s: %s, %s\n", u->name, type_name(u->is), mpri_reason_text(u->why));
        if (!u->legal)
            mpri_text_add(out, "    port of variable %s at opset %lld is not allowed in %s\n",
                          u->name, (long long)u->node->scope->opset, type_name(r->m->to));
        for (int k = 0; u; u = next_reason(u, ++k)) {
            if (k) {
                mpri_text_put(out, "    because of ");
                unit_name(out, u);
                mpri_text_add(out, ": %s\n", mpri_reason_text(u->why));
            }
            if (u->detail) mpri_text_add(out, "    %s\n", mpri_err_name(u->detail));
        }
    }
    return true;
}
