/* What people read of a search: names of nodes and tensors as the file has them, the sentence, the
 * advice. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/train/forensics.h"

/* ---- names ---- */

static const Node *file_node(const mpr_session *s, const char *name, size_t n)
{
    const Graph *g = s->model->m->graph;
    for (const Node *x = g->first; x && n; x = x->next)
        if (strlen(x->name) == n && !memcmp(x->name, name, n)) return x;
    return NULL;
}

static bool moves(const Node *n) { return n->op->cast_cuda == CAST_MOVE || mpri_is(n, OP_Cast); }

/* The graph whose nodes the origins number: of a painted session that of the rewritten file. */
static const Graph *numbered(const mpr_session *s)
{
    return mpri_session_model(s, MODE_TRAIN)->m->graph;
}

/* Does n stand for x, a node that the user's file has? */
static bool stands_for(const mpr_session *s, const Node *n, const Node *x)
{
    for (int i = 0; i < x->origin.n; i++)
        for (int k = 0; k < n->origin.n; k++)
            if (x->origin.v[i] >= 0 && x->origin.v[i] == n->origin.v[k])
                return file_node(s, x->name, strlen(x->name)) != NULL;
    return false;
}

/* A node of the file that n stands for; the last one where there are several. */
static const Node *origin_node(const mpr_session *s, const Node *n)
{
    for (const Node *x = n->origin.n ? numbered(s)->last : NULL; x; x = x->prev)
        if ((moves(n) || !moves(x)) && stands_for(s, n, x)) return x;
    return NULL;
}

static void put_name(char name[256], char op[64], const char *from, size_t n, const char *type)
{
    snprintf(name, 256, "%.*s", (int)(n < 255 ? n : 255), from);
    snprintf(op, 64, "%s", type);
}

/* An autocast's cast goes by the node that reads what it made; that of a gradient by the node that
 * the gradient comes from. */
static bool name_cast(const mpr_session *s, const Node *n, char name[256], char op[64])
{
    const Use *u = mpri_is(n, OP_Cast) ? n->out[0]->uses : NULL;
    if (!mpri_is(n, OP_Cast) || file_node(s, n->name, strlen(n->name))) return false;
    const Node *by = n->segment != SEG_FORWARD ? mpri_def(n->in[0]) : u ? u->user : NULL;
    if (!by || by->segment != n->segment || mpri_is(by, OP_Cast)) return false;
    mpri_forensics_node(s, by, name, op);
    snprintf(op, 64, "cast to %s", mpri_dtype_long(n->out[0]->dtype));
    return true;
}

void mpri_forensics_node(const mpr_session *s, const Node *n, char name[256], char op[64])
{
    static const char prefix[] = "grad:";
    const char *at = n->name;
    if (name_cast(s, n, name, op)) return;
    if (n->segment == SEG_BACKWARD && !strncmp(at, prefix, 5)) at += 5;
    /* "NODE/Op" of a rule, "NODE/Op/Op" of a rule's rule: the longest name that the file has */
    for (size_t len = strlen(at); len; len--) {
        const Node *x = len == strlen(at) || at[len] == '/' ? file_node(s, at, len) : NULL;
        if (!x) continue;
        const Node *y = moves(x) && !moves(n) ? origin_node(s, n) : NULL;
        if (y) x = y; /* the layout was taken into the node before it */
        put_name(name, op, x->name, strlen(x->name), x->op->name);
        return;
    }
    const Node *x = origin_node(s, n);
    if (x && x->name[0]) put_name(name, op, x->name, strlen(x->name), x->op->name);
    else put_name(name, op, at, strlen(at), n->op->name);
}

void mpri_forensics_others(const mpr_session *s, const Node *n, const char *name, char *t, size_t size)
{
    int found = 0;
    t[0] = 0;
    for (const Node *x = n->origin.n ? numbered(s)->first : NULL; x; x = x->next) {
        if (moves(x) || !strcmp(x->name, name) || !stands_for(s, n, x)) continue;
        size_t used = strlen(t);
        if (found++ < 3)
            snprintf(t + used, size - used, "%s'%.48s' (%.20s)", found > 1 ? ", " : ", computed with ",
                     mpri_err_name(x->name), x->op->name);
    }
    size_t used = strlen(t);
    if (found > 3) snprintf(t + used, size - used, " and %d more", found - 3);
}

/* The name that people know: of a parameter its public one; a copy in another type goes by the name
 * of what it copies. */
void mpri_forensics_tensor(const Plan *p, const Value *v, char *buf, size_t size)
{
    const Graph *g = p->graph;
    const char *name = v->name, *copy = strstr(name, "__mpr_");
    size_t n = copy ? (size_t)(copy - name) : strlen(name);
    if (n > 6 && !memcmp(name, "param:", 6)) name += 6, n -= 6;
    for (int i = 0; i < g->n_params; i++) {
        const Param *x = &g->params[i];
        if (v->param != i && (strlen(x->name) != n || memcmp(x->name, name, n))) continue;
        name = x->public_name;
        n = strlen(name);
        break;
    }
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)(n < 500 ? n : 500), name);
    snprintf(buf, size, "%s", mpri_err_name(text));
}

/* ---- text ---- */

static void put_range(char *buf, size_t size, const TensorRange *r)
{
    size_t used = strlen(buf);
    int64_t bad = r->nan + r->inf + r->minus_inf;
    char low[32], high[32];
    if (used + 1 >= size) return;
    if (r->low <= r->high)
        snprintf(buf + used, size - used, "%s to %s", mpri_print_f32(low, (float)r->low),
                 mpri_print_f32(high, (float)r->high));
    else snprintf(buf + used, size - used, "no finite element");
    used = strlen(buf);
    if (bad && used + 1 < size)
        snprintf(buf + used, size - used, " (%lld not finite)", (long long)bad);
}

static const char *bad_word(const NonFinite *o)
{
    if (o->is_nan) return "NaN";
    return o->range.inf ? "inf" : "-inf";
}

void mpri_forensics_text(NonFinite *o)
{
    static const char *const sources[] = {"input", "constant", "parameter"};
    char *t = o->text;
    size_t size = sizeof o->text;
    const TensorRange *r = &o->range;
    int64_t bad = r->nan + r->inf + r->minus_inf;
    if (o->kind <= BAD_PARAMETER)
        snprintf(t, size, "%s '%s' is %s at element %lld", sources[o->kind], o->tensor, bad_word(o),
                 (long long)r->first);
    else
        snprintf(t, size, "%s of node '%s' (%s)%s: tensor '%s' is %s at element %lld",
                 o->kind == BAD_FORWARD ? "forward" : "gradient", o->node, o->op, o->also, o->tensor,
                 bad_word(o), (long long)r->first);
    size_t used = strlen(t);
    snprintf(t + used, size - used, "; %lld of %lld elements not finite (%lld NaN), the others ",
             (long long)bad, (long long)r->n, (long long)r->nan);
    if (bad < r->n) {
        TensorRange finite = *r;
        finite.nan = finite.inf = finite.minus_inf = 0;
        put_range(t, size, &finite);
    } else {
        t[strlen(t) - strlen(", the others ")] = 0;
    }
    for (int i = 0; i < o->n_in; i++) {
        used = strlen(t);
        snprintf(t + used, size - used, "%s'%s' ", i ? ", " : "; inputs: ", o->in[i].tensor);
        put_range(t, size, &o->in[i].range);
    }
}

void mpri_forensics_advice(NonFinite *o)
{
    /* --keep-fp32 takes names that begin with a slash, and operators */
    const char *keep = o->node[0] == '/' ? o->node : o->op;
    char *t = o->advice;
    size_t size = sizeof o->advice;
    if (o->kind == BAD_INPUT) {
        snprintf(t, size, "look at the data of '%.100s'", o->tensor);
    } else if (o->kind <= BAD_PARAMETER) {
        snprintf(t, size, "'%.100s' itself is damaged: start from an earlier checkpoint, and look "
                          "at the learning rate", o->tensor);
    } else if (o->kind == BAD_BACKWARD) {
        snprintf(t, size, "lower the learning rate or --min-scale, or keep the node in float32 "
                          "with --keep-fp32 '%.200s'", keep);
    } else if (mpri_dtype_is_low(o->dtype)) {
        snprintf(t, size, "keep the node in float32 with --keep-fp32 '%.200s', or lower the "
                          "learning rate", keep);
    } else {
        snprintf(t, size, "look at what the node reads; lower the learning rate");
    }
}

