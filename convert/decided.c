/* Reports, kept decisions and the check by numbers of a conversion operator by operator, in the form
 * of those of the painter: the units of the file, coloured as the autocast pass decided.
 *
 * The trap: a node of the file may be a part of what the passes recovered, or be folded away. Then
 * nothing is decided for it, and it stays as it was. */
#include <string.h>

#include "convert/decide.h"
#include "convert/decisions.h"
#include "convert/report.h"
#include "convert/wire_graph.h"
#include "passes/profile.h"

struct Decided {
    const FileGraph *f;
    const ConvertOptions *o;
    const ImportedModel *given;
    Mix m;
    Pool pool;
    Paint paint;
    Rewrite rewrite;
    Plain *plain; /* runs of the model as it was */
    Verification verified;
};

/* A rule of the user, else the place of the operator on the base list. */
static MixReason reason_of(const Decided *d, const FileNodeIO *n, bool low)
{
    const Profile *p = d->o->profile;
    bool by_rule;
    CastClass cls = mpri_profile_decide(p, n->by, &by_rule).cls;
    for (int i = p->n - 1; by_rule && i >= 0; i--)
        if (mpri_profile_step(p, n->by, i))
            return p->rules[i].kind == PROFILE_OP ? WHY_OP : WHY_NAME;
    if (low) return cls == CAST_LOW ? WHY_ALLOW : cls == CAST_WIDEST ? WHY_BETWEEN : WHY_SPREAD;
    return cls == CAST_FP32 ? WHY_DENY : cls == CAST_LOW ? WHY_TABLE : WHY_FAR;
}

static bool stays(const MixUnit *u)
{
    return u->pinned && (u->pin == WHY_FIXED || u->pin == WHY_TABLE || u->pin == WHY_FUNCTION);
}

static void colour(Decided *d, const MixNode *node, const FileNodeIO *n)
{
    bool low = mpri_dtype_is_low(n->compute);
    for (int i = 0; i < node->n_units; i++) {
        MixUnit *u = node->units[i];
        u->detail = n->by ? n->by->why : NULL;
        if (low && n->runs == n->compute && !stays(u)) u->is = n->runs;
        if (stays(u)) u->why = u->pin;
        else if (!n->by || n->compute == MPR_DTYPE_NONE) u->why = u->pinned ? u->pin : WHY_FAR;
        else u->why = low && n->runs != n->compute ? WHY_TABLE : reason_of(d, n, low);
    }
    for (int k = 0; k < node->n_in; k++) /* inputs that keep their type beside low data */
        if (k < 32 && (n->own >> k & 1) && node->in_unit[k]) node->in_unit[k]->is = MPR_FLOAT32;
}

static void colour_all(Decided *d)
{
    for (int i = 0; i < d->m.n_units; i++) {
        MixUnit *u = d->m.units[i];
        u->why = u->pinned ? u->pin : u->node->scope->outer ? WHY_FLOW : WHY_FAR;
    }
    for (int i = 0; i < d->m.top->n_nodes && i < d->f->n_nodes; i++)
        colour(d, d->m.top->nodes[i], &d->f->nodes[i]);
    for (int i = 0; i < d->m.n_values; i++) {
        MixValue *v = d->m.values[i];
        const FileValue *made = v->scope->outer ? NULL : mpri_file_value(d->f, v->name);
        v->now = v->held = made && made->held ? made->held : v->type.elem;
    }
}

/* ---- the Casts ---- */

static bool reads(const FileNodeIO *n, const char *name, int k)
{
    return n->reads && n->reads[k] && !strcmp(n->reads[k], name);
}

static void add_cast(Decided *d, const FileValue *v, const Made *made)
{
    RewriteCast *c = mpri_pool_take(&d->pool, sizeof *c);
    const char *from = made->from ? made->from : v->name;
    *c = (RewriteCast){.name = made->name, .value = v->name, .scope = "", .to = made->type};
    c->from = v->held;
    c->consumers = v->output && !strcmp(made->to, v->name);
    for (const Made *other = v->first; other; other = other->next) {
        if (!strcmp(other->to, from)) c->from = other->type;
        c->consumers += other->from && !strcmp(other->from, made->to);
    }
    for (int i = 0; i < d->f->n_nodes; i++)
        for (int k = 0; k < d->f->nodes[i].n_in; k++) {
            if (!reads(&d->f->nodes[i], made->to, k)) continue;
            c->consumers++;
            if (!c->reader) c->reader = d->m.top->nodes[i];
        }
    if (!c->consumers) c->consumers = 1; /* in a body */
    if (d->rewrite.last) d->rewrite.last->next = c;
    else d->rewrite.list = c;
    d->rewrite.last = c;
    d->rewrite.casts++;
}

static void find_casts(Decided *d)
{
    for (int i = 0; i < d->f->n_values; i++)
        for (const Made *made = d->f->values[i].first; made; made = made->next)
            if (made->from) add_cast(d, &d->f->values[i], made);
}

/* ---- */

static void tell_unmatched(Decided *d)
{
    const char *const *left = mpri_profile_unmatched(d->o->profile, d->pool.arena);
    d->paint.m = &d->m;
    for (; *left; left++)
        mpri_paint_warn(&d->paint, "unmatched", *left, 0, "the rule matches no node");
}

/* ---- the steps; running out of memory in the pool jumps to the guard of each ---- */

static mpr_status make(Decided *d, Err *err)
{
    const Profile *p = d->o->profile;
    const Source *s = d->f->m->source;
    d->m = (Mix){.pool = &d->pool, .source = d->f->m->source, .to = d->o->to};
    d->m.model = mpri_tree_parse(&d->pool, TREE_MODEL, s->bytes, s->size);
    mpri_mix_read(&d->m);
    mpri_mix_units(&d->m);
    colour_all(d);
    if (!p->decided) return MPR_OK;
    return mpri_decisions_hold(&d->m, p->decided, p->n > p->n_decided, err);
}

mpr_status mpri_decided_make(const FileGraph *f, const ConvertOptions *o,
                             const ImportedModel *given, Arena *arena, Decided **out, Err *err)
{
    *out = NULL;
    if (!o->report && !o->dot && !o->svg && !o->annotations && !o->annotate && !o->check.verify &&
        !o->profile->decided && !o->units)
        return MPR_OK;
    Decided *d = mpri_arena_alloc(arena, sizeof *d);
    if (!d) return mpri_err_nomem(err, sizeof *d);
    *d = (Decided){.f = f, .o = o, .given = given, .pool = {.arena = arena}};
    *out = d;
    return setjmp(d->pool.full) ? mpri_err_nomem(err, 0) : make(d, err);
}

mpr_status mpri_decided_entry(Decided *d, Text *out, Err *err)
{
    if (setjmp(d->pool.full)) return mpri_err_nomem(err, 0);
    const char *text = mpri_decisions_text(&d->m, d->o->profile);
    mpri_wire_put_entry(out, MODEL_METADATA, MPRI_DECISIONS_KEY, text, strlen(text));
    return out->failed ? mpri_err_nomem(err, strlen(text)) : MPR_OK;
}

/* Names of the constants that autocast clamped. */
static const char *const *saturated(Decided *d, Arena *arena)
{
    int n = 0;
    for (int i = 0; i < d->f->n_nodes; i++) n += __builtin_popcount(d->f->nodes[i].saturate);
    const char **names = ARENA_ARRAY(arena, const char *, n + 1);
    if (!names) longjmp(d->pool.full, 1);
    n = 0;
    for (int i = 0; i < d->f->n_nodes; i++)
        for (int k = 0; k < d->f->nodes[i].n_in && k < 32; k++)
            if (d->f->nodes[i].saturate >> k & 1) {
                names[n] = mpri_arena_strdup(arena, d->f->nodes[i].in[k]);
                if (!names[n++]) longjmp(d->pool.full, 1);
            }
    names[n] = NULL;
    return names;
}

mpr_status mpri_decided_units(Decided *d, ConvertUnits *units, Err *err)
{
    if (setjmp(d->pool.full)) return mpri_err_nomem(err, 0);
    units->decisions = mpri_arena_strdup(units->arena, mpri_decisions_text(&d->m, NULL));
    units->saturated = saturated(d, units->arena);
    return units->decisions ? MPR_OK : mpri_err_nomem(err, 0);
}

/* ---- numbers ---- */

/* Producers that write a new name, so that a Cast can write the old one. */
static void find_fresh(Decided *d)
{
    for (int i = 0; i < d->f->n_values; i++) {
        const FileValue *v = &d->f->values[i];
        MixValue *as = strcmp(v->base, v->name) ? mpri_mix_find(d->m.top, v->name) : NULL;
        if (as) as->fresh = v->base;
    }
}

static mpr_status tell(Decided *d, Err *err)
{
    Text t;
    if (!d->o->check.table) return MPR_OK;
    mpri_text_init(&t, d->o->alloc);
    mpri_verify_print(&d->verified, &d->m, d->o->check.per_node, &t);
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(err, t.len);
    }
    *d->o->check.table = t.text;
    return MPR_OK;
}

static mpr_status verify(Decided *d, const Piece *pieces, int n, Err *err)
{
    const MixedCheck *k = &d->o->check;
    const Source *s = d->f->m->source;
    Verification *v = &d->verified;
    size_t size = 0;
    for (int i = 0; i < n; i++) size += pieces[i].n;
    uint8_t *bytes = mpri_pool_take(&d->pool, size);
    mpri_pieces_copy(pieces, n, bytes);
    find_fresh(d);
    v->rtol = k->rtol >= 0 ? k->rtol : d->o->to == MPR_BFLOAT16 ? 0.08 : 0.01;
    v->atol = k->atol;
    TRY(mpri_verify_plain(k->verify, s->bytes, s->size, true, &d->pool, d->o->alloc, &d->plain,
                          err));
    TRY(mpri_verify(d->plain, &d->m, bytes, size, k->low_sums ? d->o->to : MPR_DTYPE_NONE, true,
                    &d->pool, v, err));
    return tell(d, err);
}

mpr_status mpri_decided_verify(Decided *d, const Piece *pieces, int n, bool *breach, Err *err)
{
    mpr_status st = setjmp(d->pool.full) ? mpri_err_nomem(err, 0) : verify(d, pieces, n, err);
    *breach = st == MPR_OK && d->verified.breach;
    return st;
}

mpr_status mpri_decided_breach(const Decided *d, Err *err)
{
    return mpri_verify_error(&d->verified, &d->m, "", err);
}

void mpri_decided_end(Decided *d)
{
    if (d) mpri_verify_end(d->plain);
}

/* ---- */

static mpr_status report(Decided *d, const DecidedFile *file, Err *err)
{
    const ConvertOptions *o = d->o;
    MixedOptions mo = {.to = o->to, .report = o->report, .dot = o->dot, .svg = o->svg,
                       .annotations = o->annotations, .check = o->check, .echo = o->echo,
                       .alloc = o->alloc, .paint = {.policy = o->profile}};
    Report r = {.m = &d->m, .paint = &d->paint, .rewrite = &d->rewrite, .o = &mo,
                .model = d->given, .changed = file->changed, .decided = o->profile,
                .verify = d->plain ? &d->verified : NULL,
                .bytes_before = file->before, .bytes_after = file->after};
    size_t outside = mpri_mix_outside(d->m.model);
    r.bytes_before += outside;
    r.bytes_after += outside;
    find_casts(d);
    tell_unmatched(d);
    return mpri_report_files(&r, err);
}

mpr_status mpri_decided_report(Decided *d, const DecidedFile *file, Err *err)
{
    return setjmp(d->pool.full) ? mpri_err_nomem(err, 0) : report(d, file, err);
}
