/* Two runs, value by value, see verify.h.
 *
 * A value of the converted model has a twin in the plain one: the value of its name, that whose
 * fresh version it is, or for an added Cast that of its input. Local: a node runs on the twins of
 * its inputs, rounded to the types it reads; what has no twin is computed from what has. Total: the
 * converted model runs by itself. An Inf or NaN is born in a node when no input of it carries one
 * that is new; an added Cast passes that on, so that the node which reads it is named.
 *
 * Bodies are expanded while importing: nodes are found by the places of their outputs
 * (places.h). */
#include "convert/verify.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "convert/places.h"

typedef struct PlainBatch {
    BoundModel *b;
    Values v;
} PlainBatch;

struct Plain {
    const CheckData *data;
    const Alloc *alloc;
    PlainBatch *batch;
    Ranges ranges;
};

typedef struct Twin { /* of a value of the converted model */
    const Tensor *t;    /* NULL: none */
    int node;           /* of the file, that makes it; -1: none does */
    bool cast;          /* an added Cast */
} Twin;

typedef struct Check {
    Plain *p;
    const Mix *m;
    Verification *v;
    Evaluator e;
    const PlainBatch *plain;
    const BoundModel *b;
    Arena arena; /* of one batch */
    Twin *twin;  /* by id of b's values */
    int *owner;  /* by id of the plain values: node, -1: none */
    uint8_t *bad; /* by id of b's values: 1 holds a new Inf, 2 a new NaN */
    Values total;  /* of the converted model's run */
    Arena scratch; /* of one node */
    Pool pool;
    bool nodes;
    Err *err;
} Check;

/* ---- the plain runs ---- */

static void end_batch(Plain *p, PlainBatch *b)
{
    if (!b->b) return;
    if (b->v.v) mpri_values_end(&b->v);
    p->data->release(p->data->user, b->b);
    b->b = NULL;
}

mpr_status mpri_verify_plain(const CheckData *data, const void *bytes, size_t size, bool keep,
                             Pool *pool, const Alloc *alloc, Plain **out, Err *err)
{
    Evaluator e = {.device = data->device, .memory = data->memory};
    Plain *p = mpri_pool_take(pool, sizeof *p);
    *p = (Plain){.data = data, .alloc = alloc, .ranges.pool = pool};
    p->batch = mpri_pool_take(pool, sizeof *p->batch * (size_t)(data->batches + 1));
    *out = p;
    for (int i = 0; i < data->batches; i++) {
        PlainBatch *b = &p->batch[i];
        TRY(data->bind(data->user, bytes, size, i, &b->b, err));
        TRY(mpri_values_begin(&e, b->b, alloc, &b->v, err));
        mpr_status st = mpri_evaluate_all(&e, b->b, &b->v, err);
        if (st != MPR_OK) return mpri_err_where(err, "float32 run");
        mpri_ranges_add(&p->ranges, b->b->g, b->v.v);
        if (!keep) end_batch(p, b);
    }
    return MPR_OK;
}

void mpri_verify_end(Plain *p)
{
    for (int i = 0; p && i < p->data->batches; i++) end_batch(p, &p->batch[i]);
}

const Ranges *mpri_verify_ranges(const Plain *p)
{
    return &p->ranges;
}

/* ---- nodes of the file by the names of their values ---- */

static const char *printed(Check *c, const char *a, const char *b)
{
    char *s = mpri_arena_printf(&c->arena, "%s%s", a, b);
    if (!s) longjmp(c->pool.full, 1);
    return s;
}

typedef struct Owner {
    const char *known_as; /* place of an output */
    const MixNode *node;
    int at;
    bool lost;
    UT_hash_handle hh;
} Owner;

static Owner *owners_of(Check *c)
{
    Arena *hash_arena = &c->arena;
    Owner *all = NULL;
    for (int i = 0; i < c->m->n_nodes; i++) {
        const MixNode *n = c->m->nodes[i];
        for (int k = 0; k < n->n_out; k++) {
            if (!*n->out_name[k]) continue;
            Owner *o = mpri_pool_take(&c->pool, sizeof *o), *old = NULL;
            *o = (Owner){.node = n, .at = k};
            o->known_as = mpri_place(&c->pool, n->scope, n->out_name[k]);
            HASH_FIND(hh, all, o->known_as, strlen(o->known_as), old);
            if (old) continue;
            HASH_ADD_KEYPTR(hh, all, o->known_as, strlen(o->known_as), o);
            if (o->lost) longjmp(c->pool.full, 1);
        }
    }
    return all;
}

/* The node of a function, or of the branch that was taken, that makes output k of its owner: it is
 * called by its path. */
static const MixNode *maker(Check *c, const MixNode *n, int k, const Node *made_by)
{
    bool call = n->function, branch = !call && !strcmp(n->op, "If");
    for (int b = 0; (call || branch) && made_by && b < n->n_bodies; b++) {
        const MixScope *s = n->bodies[b];
        const MixNode *inner = k < s->n_outputs && s->outputs[k] ? s->outputs[k]->maker : NULL;
        const char *path = mpri_place(&c->pool, s, "");
        const char *named = mpri_place_imported(&c->pool, made_by->name);
        if (!inner || inner->scope != s || strncmp(named, path, strlen(path))) continue;
        for (k = 0; k < inner->n_out && inner->out[k] != s->outputs[k];) k++;
        return maker(c, inner, k, made_by);
    }
    return n;
}

static void own_nodes(Check *c)
{
    const Graph *g = c->plain->b->g;
    Owner *all = owners_of(c), *o;
    for (int i = 0; i < g->n_values; i++) {
        const char *place = mpri_place_imported(&c->pool, g->values[i]->name);
        HASH_FIND(hh, all, place, strlen(place), o);
        if (o) c->owner[i] = maker(c, o->node, o->at, g->values[i]->def)->number;
    }
}

/* ---- twins ---- */

/* Values of a copied function lie under its new name: the same under the old one. */
static const char *under_old_names(Check *c, const char *name)
{
    for (const char *p; (p = strstr(name, "__mpr_"));) {
        size_t n = strcspn(p, "/");
        if (!p[n]) break;
        char *head = mpri_arena_strdup(&c->arena, name);
        if (!head) longjmp(c->pool.full, 1);
        head[p - name] = '\0';
        name = printed(c, head, p + n);
    }
    return name;
}

static const Value *plain_value(Check *c, const char *name, bool *public)
{
    const Graph *g = c->plain->b->g;
    const Value *v = mpri_graph_find_value(g, name);
    if (!v) v = mpri_graph_find_value(g, under_old_names(c, name));
    const MixValue *own = v ? mpri_mix_find(c->m->top, name) : NULL;
    *public = own && own->fresh;
    for (int i = 0; !v && i < c->m->n_values; i++) {
        const MixValue *x = c->m->values[i];
        size_t n = x->fresh ? strlen(x->fresh) : 0;
        if (!n || strncmp(name, x->fresh, n)) continue;
        if (!name[n]) v = mpri_graph_find_value(g, x->name);
        else if (name[n] == '/') v = mpri_graph_find_value(g, printed(c, x->name, name + n));
    }
    return v;
}

/* A public name behind its fresh version counts for the output, not for the node. */
static void find_twins(Check *c)
{
    const Graph *g = c->b->g;
    bool public;
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i], *p = plain_value(c, v->name, &public);
        const Tensor *t = p ? &c->plain->v.v[p->id] : NULL;
        c->twin[i] = (Twin){.node = -1};
        bool same = t && t->data && t->rank == v->shape.rank;
        for (int k = 0; same && k < t->rank; k++) same = t->dims[k] == v->shape.d[k];
        if (same) c->twin[i] = (Twin){.t = t, .node = public ? -1 : c->owner[p->id]};
    }
}

static void find_cast_twin(Check *c, const Node *n)
{
    if (!mpri_is(n, OP_Cast) || !n->in[0] || !n->out[0] || c->twin[n->out[0]->id].t) return;
    const Tensor *t = c->twin[n->in[0]->id].t;
    if (t && mpri_dtype_is_float(t->dtype) && mpri_dtype_is_float(n->out[0]->dtype))
        c->twin[n->out[0]->id] = (Twin){.t = t, .node = -1, .cast = true};
}

/* ---- comparing ---- */

/* Place of a float among all of its type, by size. */
static int64_t rank_of(DType t, double x)
{
    int64_t bits;
    if (t == MPR_FLOAT64) {
        memcpy(&bits, &x, 8);
        bits &= INT64_MAX;
    } else if (t == MPR_FLOAT32) {
        float f = (float)x;
        uint32_t b;
        memcpy(&b, &f, 4);
        bits = b & INT32_MAX;
    } else {
        uint16_t h = t == MPR_FLOAT16 ? mpri_f64_to_f16(x) : mpri_f64_to_bf16(x);
        bits = h & INT16_MAX;
    }
    return signbit(x) ? -bits : bits;
}

static double difference(double a, double b)
{
    if (a == b || (isnan(a) && isnan(b))) return 0;
    double d = fabs(a - b);
    return isfinite(d) ? d : DBL_MAX;
}

static void widen(Gap *g, double a, double b)
{
    double d = difference(a, b);
    if (d > g->most) g->most = d;
    if (d == 0 || a == 0) return;
    double r = d == DBL_MAX ? DBL_MAX : d / fabs(a);
    if (r > g->relative) g->relative = r;
}

static Gap compare(const Tensor *was, const Tensor *is, double *ulps, double *share, uint8_t *bad)
{
    Gap g = {0};
    double most = 0;
    for (int64_t i = 0; i < was->n; i++) {
        double a = mpri_load_f64(was->dtype, was->data, i),
               b = mpri_load_f64(is->dtype, is->data, i);
        if (isfinite(a) && fabs(a) > most) most = fabs(a);
        if (bad && isfinite(a) && !isfinite(b) && *bad < 2) *bad = isnan(b) ? 2 : 1;
        if (bad && isinf(a) && isnan(b)) *bad = 2;
        widen(&g, a, b);
        if (!ulps || !mpri_dtype_is_float(is->dtype) || difference(a, b) == 0) continue;
        double steps = fabs((double)(rank_of(is->dtype, a) - rank_of(is->dtype, b)));
        if (steps > *ulps) *ulps = steps;
    }
    double d = g.most == 0 ? 0 : most > 0 ? g.most / most : DBL_MAX;
    if (share && d > *share) *share = d;
    return g;
}

static void join_gaps(Gap *a, Gap b)
{
    if (b.most > a->most) a->most = b.most;
    if (b.relative > a->relative) a->relative = b.relative;
}

/* What one output of a node holds. */
static void compare_output(Check *c, const Value *v, const Tensor *total, const Tensor *local,
                           bool clean)
{
    const Twin *t = &c->twin[v->id];
    uint8_t bad = 0;
    Gap gap = compare(t->t, total, NULL, NULL, &bad);
    c->bad[v->id] = bad;
    NodeGaps *n = t->node >= 0 && c->nodes ? &c->v->nodes[t->node] : NULL;
    if (!n) return;
    n->seen = true;
    join_gaps(&n->total, gap);
    if (bad && clean) n->born = bad == 2 || !strcmp(n->born, "nan") ? "nan" : "inf";
    if (local) join_gaps(&n->local, compare(t->t, local, &n->ulps, &n->share, NULL));
}

/* Input k of n in the local run: the twin, in the type that is read. */
static mpr_status local_input(Check *c, const Value *v, const Tensor *computed, Arena *arena,
                              Tensor *out)
{
    const Twin *t = &c->twin[v->id];
    if (t->t && t->t->dtype == v->dtype) *out = *t->t;
    else if (!t->t || !mpri_dtype_is_float(v->dtype)) *out = computed[v->id];
    else if (!mpri_evaluate_cast(t->t, v->dtype, arena, out)) return mpri_err_nomem(c->err, 0);
    return MPR_OK;
}

static mpr_status run_local(Check *c, const Node *n, const Tensor *computed, Tensor *out)
{
    Arena *arena = &c->scratch;
    Tensor *in = ARENA_ARRAY(arena, Tensor, n->n_in + 1);
    if (!in) return mpri_err_nomem(c->err, sizeof *in);
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k]) TRY(local_input(c, n->in[k], computed, arena, &in[k]));
    return mpri_evaluate_node(&c->e, n, in, out, arena, c->err);
}

/* Keeps what the nodes behind will ask for. */
static mpr_status keep_local(Check *c, const Node *n, const Tensor *out, Tensor *computed)
{
    for (int k = 0; k < n->n_out; k++) {
        if (!n->out[k] || c->twin[n->out[k]->id].t) continue;
        Tensor *t = &computed[n->out[k]->id];
        *t = out[k];
        t->data = mpri_arena_dup(&c->arena, out[k].data, (size_t)t->n * mpri_dtype_size(t->dtype));
        if (!t->data) return mpri_err_nomem(c->err, (size_t)t->n);
    }
    return MPR_OK;
}

static mpr_status check_node(Check *c, const Node *n, Tensor *computed)
{
    Values *total = &c->total;
    Tensor *local = ARENA_ARRAY(&c->scratch, Tensor, n->n_out + 1);
    if (!local) return mpri_err_nomem(c->err, sizeof *local);
    find_cast_twin(c, n);
    TRY(mpri_evaluate_step(&c->e, n, total, c->err));
    if (c->nodes) {
        TRY(run_local(c, n, computed, local));
        TRY(keep_local(c, n, local, computed));
    }
    uint8_t bad = 0;
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k] && c->bad[n->in[k]->id] > bad) bad = c->bad[n->in[k]->id];
    for (int k = 0; k < n->n_out; k++) {
        const Value *v = n->out[k];
        if (!v) continue;
        if (c->twin[v->id].t && !c->twin[v->id].cast)
            compare_output(c, v, &total->v[v->id], c->nodes ? &local[k] : NULL, !bad);
        else c->bad[v->id] = bad;
    }
    return MPR_OK;
}

/* ---- outputs ---- */

static void compare_final(Check *c, OutputGaps *o, const Tensor *was, const Tensor *is)
{
    double worst = 0, rtol = mpri_dtype_is_float(was->dtype) ? c->v->rtol : 0;
    join_gaps(&o->gap, compare(was, is, NULL, NULL, NULL));
    o->elements += was->n;
    for (int64_t i = 0; i < was->n; i++) {
        double a = mpri_load_f64(was->dtype, was->data, i),
               b = mpri_load_f64(is->dtype, is->data, i);
        double d = difference(a, b), room = o->atol + rtol * fabs(a);
        if (d <= room || d == 0) continue;
        if (!o->beyond || d - room > worst) {
            worst = d - room;
            o->at = i;
            o->was = a;
            o->is = b;
        }
        o->beyond++;
        c->v->breach = true;
    }
}

static mpr_status check_outputs(Check *c)
{
    const Values *total = &c->total;
    const Graph *plain = c->plain->b->g, *g = c->b->g;
    for (int i = 0; i < plain->n_outputs; i++) {
        const Tensor *was = &c->plain->v.v[plain->outputs[i].value->id];
        const char *name = plain->outputs[i].name;
        OutputGaps *o = &c->v->outputs[i];
        o->name = mpri_pool_text(&c->pool, name, strlen(name));
        for (int k = 0; k < g->n_outputs; k++) {
            if (strcmp(g->outputs[k].name, name)) continue;
            const Tensor *is = &total->v[g->outputs[k].value->id];
            if (!was->data || !is->data) continue;
            if (was->n != is->n)
                return mpri_err_set(c->err, MPR_E_INTERNAL, "output '%s' has another shape",
                                    mpri_err_name(name));
            compare_final(c, o, was, is);
        }
    }
    return MPR_OK;
}

/* ---- one batch ---- */

static mpr_status run_batch(Check *c)
{
    const Graph *g = c->b->g, *plain = c->plain->b->g;
    c->twin = ARENA_ARRAY(&c->arena, Twin, g->n_values + 1);
    c->bad = ARENA_ARRAY(&c->arena, uint8_t, g->n_values + 1);
    c->owner = ARENA_ARRAY(&c->arena, int, plain->n_values + 1);
    Tensor *computed = ARENA_ARRAY(&c->arena, Tensor, g->n_values + 1);
    if (!c->twin || !c->bad || !c->owner || !computed)
        return mpri_err_nomem(c->err, sizeof(Tensor) * (size_t)g->n_values);
    for (int i = 0; i < plain->n_values; i++) c->owner[i] = -1;
    own_nodes(c);
    find_twins(c);
    TRY(mpri_values_begin(&c->e, c->b, c->p->alloc, &c->total, c->err));
    for (int i = 0; i < g->n_values; i++) computed[i] = c->total.v[i];
    for (const Node *n = g->first; n; n = n->next) {
        TRY(check_node(c, n, computed));
        mpri_arena_reset(&c->scratch);
    }
    return check_outputs(c);
}

/* All that a batch takes is owned by c, so that running out of memory may jump here. */
static mpr_status guarded(Check *c)
{
    if (setjmp(c->pool.full)) return mpri_err_nomem(c->err, 0);
    return run_batch(c);
}

static mpr_status check_batch(Check *c, const void *bytes, size_t size, int batch)
{
    const CheckData *data = c->p->data;
    BoundModel *b;
    TRY(data->bind(data->user, bytes, size, batch, &b, c->err));
    c->plain = &c->p->batch[batch];
    c->b = b;
    c->total = (Values){0};
    mpri_arena_init(&c->arena, c->p->alloc, 0);
    mpri_arena_init(&c->scratch, c->p->alloc, 0);
    mpr_status st = guarded(c);
    if (c->total.v) mpri_values_end(&c->total);
    mpri_arena_destroy(&c->scratch);
    mpri_arena_destroy(&c->arena);
    data->release(data->user, b);
    return st == MPR_OK ? MPR_OK : mpri_err_where(c->err, "mixed run");
}

/* The largest value of each output, and the absolute tolerance that follows from it. */
static void set_tolerances(const Plain *p, Verification *v)
{
    double given = v->atol;
    for (int i = 0; i < v->n_outputs; i++) {
        OutputGaps *o = &v->outputs[i];
        bool floats = true;
        for (int b = 0; b < p->data->batches; b++) {
            const PlainBatch *batch = &p->batch[b];
            const Tensor *t = &batch->v.v[batch->b->g->outputs[i].value->id];
            floats = mpri_dtype_is_float(t->dtype);
            for (int64_t k = 0; t->data && k < t->n; k++) {
                double x = fabs(mpri_load_f64(t->dtype, t->data, k));
                if (isfinite(x) && x > o->most) o->most = x;
            }
        }
        o->atol = given >= 0 ? given : floats ? v->rtol / 10 * o->most : 0;
        if (!i || o->atol > v->atol) v->atol = o->atol;
    }
    if (v->atol < 0) v->atol = 0;
}

mpr_status mpri_verify(Plain *p, const Mix *m, const void *bytes, size_t size, DType sums,
                       bool nodes, Pool *pool, Verification *v, Err *err)
{
    Check c = {.p = p, .m = m, .v = v, .nodes = nodes, .err = err};
    c.pool.arena = pool->arena;
    c.e = (Evaluator){.device = p->data->device, .sums = sums, .memory = p->data->memory};
    v->breach = false;
    v->nodes = NULL;
    v->n_outputs = p->data->batches ? p->batch[0].b->g->n_outputs : 0;
    v->outputs = mpri_pool_take(pool, sizeof *v->outputs * (size_t)(v->n_outputs + 1));
    if (nodes) v->nodes = mpri_pool_take(pool, sizeof *v->nodes * (size_t)(m->n_nodes + 1));
    for (int i = 0; nodes && i < m->n_nodes; i++) v->nodes[i].born = "none";
    set_tolerances(p, v);
    for (int i = 0; i < p->data->batches; i++) TRY(check_batch(&c, bytes, size, i));
    return MPR_OK;
}
