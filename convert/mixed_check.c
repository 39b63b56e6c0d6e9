/* The check by numbers, and the search for nodes that have to stay in float32: the plain model runs
 * once, every try is a conversion in memory of its own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "convert/auto.h"
#include "convert/mixed_state.h"

static const CheckData *data_of(const Mixed *c)
{
    const MixedCheck *k = &c->o->check;
    return k->verify || k->search <= 0 ? k->verify : k->calib;
}

/* The model as it is without an earlier run's doing; on the way back as it is given. */
mpr_status mpri_mixed_run_plain(Mixed *c)
{
    const CheckData *data = data_of(c), *calib = c->o->check.calib;
    const void *bytes = c->given->source->bytes;
    size_t size = c->given->source->size;
    int n;
    bool other = c->undone || c->o->opset || c->o->inline_calls;
    if (other && c->o->to != MPR_FLOAT32 && (data || calib)) {
        const Piece *pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
        bytes = mpri_mixed_joined(c, pieces, n, &size);
    }
    if (data)
        TRY(mpri_verify_plain(data, bytes, size, true, &c->pool, c->o->alloc, &c->plain, c->err));
    if (calib && calib != data)
        TRY(mpri_verify_plain(calib, bytes, size, false, &c->pool, c->o->alloc, &c->calib, c->err));
    if (calib == data) c->calib = c->plain;
    return MPR_OK;
}

/* The bytes as they are going to be written, but for the place of external data. */
mpr_status mpri_mixed_verify(Mixed *c, const Piece *pieces, int n)
{
    const MixedCheck *k = &c->o->check;
    double rtol = k->search > 0 ? k->search : k->rtol;
    size_t size;
    if (!c->plain) return MPR_OK;
    const void *bytes = mpri_mixed_joined(c, pieces, n, &size);
    if (rtol < 0) rtol = c->o->to == MPR_BFLOAT16 ? 0.08 : 0.01;
    c->verified.rtol = rtol;
    c->verified.atol = k->atol;
    return mpri_verify(c->plain, &c->mix, bytes, size, k->low_sums ? c->o->to : MPR_DTYPE_NONE,
                       true, &c->pool, &c->verified, c->err);
}
typedef struct Candidate {
    int node;
    double share;
    const char *why;
} Candidate;

typedef struct Search {
    Mixed *c;
    AutoSearch s;
    Candidate *list;
} Search;

static int worst_first(const void *a, const void *b)
{
    const Candidate *x = a, *y = b;
    if (x->share != y->share) return x->share > y->share ? -1 : 1;
    return x->node - y->node;
}

/* Nodes in 16 bits that the user did not force there, by what each loses by itself. */
static mpr_status collect(Search *s, const Mixed *t)
{
    Arena *arena = s->c->pool.arena;
    const Mix *m = &t->mix;
    s->list = ARENA_ARRAY(arena, Candidate, m->n_nodes + 1);
    s->c->raised = ARENA_ARRAY(arena, const char *, m->n_nodes + 1);
    if (!s->list || !s->c->raised) return mpri_err_nomem(t->err, sizeof(Candidate));
    for (int i = 0; i < m->n_nodes; i++) {
        const MixNode *n = m->nodes[i];
        bool low = false;
        for (int k = 0; k < n->n_units; k++)
            low = low || (mpri_dtype_is_low(n->units[k]->is) && !n->units[k]->forced);
        if (!low) continue;
        double share = t->verified.nodes[i].share;
        s->list[s->s.n] = (Candidate){.node = i, .share = share};
        s->list[s->s.n++].why = mpri_arena_printf(
            arena, "its own error is %.3g of its largest value", share < 1e300 ? share : HUGE_VAL);
    }
    for (int i = 0; i < s->s.n; i++)
        if (!s->list[i].why) return mpri_err_nomem(t->err, 0);
    qsort(s->list, (size_t)s->s.n, sizeof *s->list, worst_first);
    return MPR_OK;
}

static void raise_first(const Search *s, int k)
{
    for (int i = 0; i < s->s.n; i++)
        s->c->raised[s->list[i].node] = i < k ? s->list[i].why : NULL;
}

/* One conversion in memory of its own. */
static mpr_status probe(void *user, int k, bool *within, Err *err)
{
    Search *s = user;
    Arena arena;
    ConvertResult r = {0};
    mpri_arena_init(&arena, s->c->o->alloc, 0);
    Mixed *t = mpri_arena_alloc(&arena, sizeof *t);
    if (k) raise_first(s, k);
    mpr_status st = MPR_E_NOMEM;
    if (t) {
        *t = (Mixed){.given = s->c->given, .o = s->c->o, .r = &r, .err = err, .trial = true};
        t->pool.arena = &arena;
        t->plain = s->c->plain;
        t->calib = s->c->calib;
        t->raised = s->c->raised;
        st = setjmp(t->pool.full) ? mpri_err_nomem(err, 0) : mpri_mixed_attempt(t);
        if (st == MPR_OK && !k) st = collect(s, t);
        *within = st == MPR_OK && !t->verified.breach;
    }
    mpri_arena_destroy(&arena);
    return t ? st : mpri_err_nomem(err, sizeof *t);
}

mpr_status mpri_mixed_search(Mixed *c)
{
    Search s = {.c = c, .s = {.probe = probe, .user = &s}};
    if (c->o->check.search <= 0) return MPR_OK;
    TRY(mpri_auto_search(&s.s, c->err));
    c->hopeless = !s.s.possible;
    c->n_raised = c->hopeless ? s.s.n : s.s.raised;
    raise_first(&s, c->n_raised);
    mpri_log(c->o->log, MPR_LOG_NOTICE,
             "%d of %d nodes stay in float32 for the tolerance, found in "
             "%d runs",
             c->n_raised, s.s.n, s.s.runs);
    return MPR_OK;
}

mpr_status mpri_mixed_tell(Mixed *c)
{
    Text t;
    if (!c->plain || !c->o->check.table) return MPR_OK;
    mpri_text_init(&t, c->o->alloc);
    mpri_verify_print(&c->verified, &c->mix, c->o->check.per_node, &t);
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(c->err, t.len);
    }
    *c->o->check.table = t.text;
    return MPR_OK;
}

mpr_status mpri_mixed_breach(Mixed *c)
{
    char lead[96] = "";
    if (c->hopeless)
        snprintf(lead, sizeof lead, "even with all %d nodes in float32 that may be raised, ",
                 c->n_raised);
    return mpri_verify_error(&c->verified, &c->mix, lead, c->err);
}
