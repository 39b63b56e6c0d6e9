/* Step by step: parse, take out what an earlier run did, decide, rewrite, check the types of what
 * came out, write beside, rename. */
#include "convert/mixed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/auto.h"
#include "convert/calls.h"
#include "convert/decisions.h"
#include "convert/raise.h"
#include "convert/report.h"
#include "convert/rewrite.h"
#include "importer/file.h"
#include "importer/wire.h"

enum { T_FLOATS = 4, T_INTS = 5, T_RAW = 9, T_EXTERNAL = 13, T_WHERE = 14 };
enum { PAGE = 4096, LEAST_OUTSIDE = 1024, LARGE = 1 << 20 };

typedef struct DataCopy { /* a data file that goes along as it is */
    const char *location, *path;
    const SourceMap *map; /* NULL: it does not */
    bool fresh, written;  /* to be written; done */
} DataCopy;

typedef struct Mixed {
    const ImportedModel *given;
    const MixedOptions *o;
    Pool pool;
    Mix mix;
    Paint paint;
    PaintOptions po;
    Rewrite rewrite;
    int undone;
    const char *decisions; /* that are inside the model */
    MixedImage *image;     /* instead of a file, in the arena */
    Arena *image_arena;
    const char *data_name; /* of the file with tensor data, beside the output */
    Piece *data;
    int n_data, cap_data;
    size_t data_size;
    const char *folder;    /* of the output, with its slash */
    bool verbatim;         /* data files go along as they are */
    DataCopy *copies;
    int n_copies, cap_copies;
    Plain *plain, *calib;  /* runs of the model without casts of ours */
    Verification verified;
    const char **raised;   /* by number of the node, see PaintOptions */
    int n_raised;
    bool hopeless;         /* raising all of them is not enough */
    size_t bytes_before;   /* with the data files */
    bool reported;
    bool trial;            /* one of several tries: nothing is told */
    ConvertResult *r;
    Err *err;
} Mixed;

/* ---- what is refused at once ---- */

static mpr_status check_target(const Mixed *c, const char *path)
{
    struct stat from, to;
    if (stat(c->given->path, &from) != 0 || stat(path, &to) != 0 || from.st_dev != to.st_dev ||
        from.st_ino != to.st_ino)
        return MPR_OK;
    mpri_err_set(c->err, MPR_E_USAGE, "the output %s is the same file as the input model",
                 mpri_err_name(path));
    return mpri_err_advice(c->err, "write to another file");
}

static mpr_status check_opset(const Mixed *c)
{
    if (c->o->to != MPR_BFLOAT16 || c->mix.opset >= 13) return MPR_OK;
    mpri_err_set(c->err, MPR_E_OPSET, "bfloat16 needs opset 13 or newer, the model has opset %lld",
                 (long long)c->mix.opset);
    return mpri_err_advice(c->err, "export the model at opset 13 or newer, or use --to fp16");
}

/* ---- external data ---- */

static bool is_external(const Tree *t)
{
    return mpri_tree_int(t, T_WHERE, 0) == 1;
}

static void put_entry(Mixed *c, Tree *t, int at, const char *key, const char *value)
{
    TreeField *f = mpri_tree_insert(&c->pool, t, at, T_EXTERNAL, WIRE_BYTES);
    f->tree = mpri_tree_new(&c->pool);
    mpri_tree_put_text(&c->pool, f->tree, 1, key);
    mpri_tree_put_text(&c->pool, f->tree, 2, value);
}

static void add_data(Mixed *c, Piece piece)
{
    mpri_pool_grow(&c->pool, &c->data, c->n_data, &c->cap_data, sizeof *c->data);
    c->data[c->n_data++] = piece;
    c->data_size += piece.n;
}

/* Where the contents of a tensor lie outside; false when they cannot be had. */
static mpr_status locate(Mixed *c, const Tree *t, const uint8_t **bytes, size_t *n)
{
    const char *location = "", *name = mpri_tree_text(&c->pool, t, 8);
    int64_t offset = 0, length = -1;
    const SourceMap *map;
    for (int i = 0; i < t->n; i++) {
        if (t->f[i].number != T_EXTERNAL || !t->f[i].tree) continue;
        const char *key = mpri_tree_text(&c->pool, t->f[i].tree, 1);
        const char *value = mpri_tree_text(&c->pool, t->f[i].tree, 2);
        if (!strcmp(key, "location")) location = value;
        if (!strcmp(key, "offset")) (void)mpri_parse_i64(value, &offset);
        if (!strcmp(key, "length")) (void)mpri_parse_i64(value, &length);
    }
    TRY(mpri_source_external(c->given->source, c->pool.arena, name, location, &map, c->err));
    if (offset < 0 || (size_t)offset > map->size) offset = (int64_t)map->size;
    if (length < 0 || (size_t)length > map->size - (size_t)offset)
        length = (int64_t)(map->size - (size_t)offset);
    *bytes = map->bytes + offset;
    *n = (size_t)length;
    return MPR_OK;
}

static void move_out(Mixed *c, Tree *t, Piece contents)
{
    static const uint8_t zeros[PAGE];
    size_t gap = (PAGE - c->data_size % PAGE) % PAGE;
    int at = t->n;
    contents.source = c->given->source;
    if (gap) add_data(c, (Piece){.bytes = zeros, .n = gap});
    for (int i = t->n - 1; i >= 0; i--) {
        uint32_t k = t->f[i].number;
        if (k != T_EXTERNAL && k != T_RAW && k != T_WHERE && k != T_FLOATS && k != T_INTS) continue;
        mpri_tree_remove(t, i);
        at = i;
    }
    put_entry(c, t, at, "location", c->data_name);
    put_entry(c, t, at + 1, "offset", mpri_pool_print(&c->pool, "%zu", c->data_size));
    put_entry(c, t, at + 2, "length", mpri_pool_print(&c->pool, "%zu", contents.n));
    mpri_tree_insert(&c->pool, t, at + 3, T_WHERE, WIRE_VARINT)->value = 1;
    add_data(c, contents);
}

static void move_in(Mixed *c, Tree *t, const uint8_t *bytes, size_t n)
{
    for (int i = t->n - 1; i >= 0; i--)
        if (t->f[i].number == T_EXTERNAL || t->f[i].number == T_WHERE) mpri_tree_remove(t, i);
    TreeField *raw = mpri_tree_add(&c->pool, t, T_RAW, WIRE_BYTES);
    raw->bytes = bytes;
    raw->len = n;
}

/* Equal bytes; what is mapped leaves memory on the way. */
static bool same_run(const Source *a, const uint8_t *x, const Source *b, const uint8_t *y, size_t n)
{
    enum { STEP = 1 << 24 };
    bool same = true;
    for (size_t at = 0; at < n && same; at += STEP) {
        size_t k = n - at < STEP ? n - at : STEP;
        same = !memcmp(x + at, y + at, k);
        if (k >= LARGE) mpri_source_release(a, x + at, k);
        if (k >= LARGE) mpri_source_release(b, y + at, k);
    }
    return same;
}

static bool same_file(const Mixed *c, const char *path, const SourceMap *map)
{
    struct stat a, b;
    Source *there;
    Err err = {0};
    if (fstat(map->fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return true;
    if (mpri_source_open(path, c->pool.arena, &there, &err) != MPR_OK) return false;
    bool same = there->size == map->size &&
                same_run(there, there->bytes, c->given->source, map->bytes, map->size);
    mpri_source_close(there);
    return same;
}

/* The file of a tensor goes along whole, under its own name, where that is free or holds the same:
 * false when it cannot. */
static bool copy_file(Mixed *c, const Tree *t)
{
    const char *location = "";
    const SourceMap *map;
    struct stat st;
    Err err = {0};
    for (int i = 0; i < t->n; i++)
        if (t->f[i].number == T_EXTERNAL && t->f[i].tree &&
            !strcmp(mpri_tree_text(&c->pool, t->f[i].tree, 1), "location"))
            location = mpri_tree_text(&c->pool, t->f[i].tree, 2);
    for (int i = 0; i < c->n_copies; i++)
        if (!strcmp(c->copies[i].location, location)) return c->copies[i].map;
    mpri_pool_grow(&c->pool, &c->copies, c->n_copies, &c->cap_copies, sizeof *c->copies);
    DataCopy *copy = &c->copies[c->n_copies++];
    *copy = (DataCopy){.location = location};
    if (strchr(location, '/') ||
        mpri_source_external(c->given->source, c->pool.arena, "", location, &map, &err) != MPR_OK)
        return false;
    copy->path = mpri_pool_print(&c->pool, "%s%s", c->folder, location);
    if (c->o->dry_run || stat(copy->path, &st) != 0) copy->fresh = true;
    else if (!same_file(c, copy->path, map)) return false;
    copy->map = map;
    return true;
}

/* Contents that are stored as numbers of the message. */
static bool numbers(Mixed *c, const Tree *t, Piece *out)
{
    MixTensor m;
    if (!mpri_tree_find(t, T_FLOATS) && !mpri_tree_find(t, T_INTS)) return false;
    if (!mpri_mix_tensor(&c->mix, t, &m)) return false;
    *out = (Piece){.bytes = m.data, .n = (size_t)m.n * mpri_dtype_size(m.type)};
    return true;
}

static mpr_status place_tensor(Mixed *c, Tree *t, bool out)
{
    Piece inside = {.n = 0};
    TreeField *raw = mpri_tree_find(t, T_RAW);
    bool never = c->o->external && !strcmp(c->o->external, "never");
    if (is_external(t)) {
        const uint8_t *bytes;
        size_t n;
        if (c->verbatim && copy_file(c, t)) return MPR_OK;
        TRY(locate(c, t, &bytes, &n));
        if (never) move_in(c, t, bytes, n);
        else move_out(c, t, (Piece){.bytes = bytes, .n = n});
        return MPR_OK;
    }
    if (raw) inside = (Piece){.bytes = raw->bytes, .n = raw->len, .maker = raw->maker};
    if ((out || (t->outside && !never)) && (raw || numbers(c, t, &inside)) &&
        inside.n >= LEAST_OUTSIDE)
        move_out(c, t, inside);
    return MPR_OK;
}

static mpr_status place_all(Mixed *c, Tree *t, bool tensor, bool out)
{
    if (tensor) return place_tensor(c, t, out);
    for (int i = 0; i < t->n; i++)
        if (t->f[i].tree) TRY(place_all(c, t->f[i].tree, t->f[i].tree->tensor, out));
    return MPR_OK;
}

static size_t size_of(const Piece *pieces, int n)
{
    size_t size = 0;
    for (int i = 0; i < n; i++) size += pieces[i].n;
    return size;
}

static const void *joined(Mixed *c, const Piece *pieces, int n, size_t *size)
{
    *size = size_of(pieces, n);
    uint8_t *bytes = mpri_pool_take(&c->pool, *size);
    mpri_pieces_copy(pieces, n, bytes);
    return bytes;
}

static bool same_made(const Piece *p, const uint8_t *bytes)
{
    uint8_t part[1 << 16];
    for (size_t at = 0; at < p->n; at += sizeof part) {
        size_t n = p->n - at < sizeof part ? p->n - at : sizeof part;
        p->maker->make(p->maker, at, part, n);
        if (memcmp(bytes + at, part, n)) return false;
    }
    return true;
}

static bool same_bytes(const Mixed *c, const Piece *pieces, int n)
{
    const Source *s = c->given->source;
    size_t at = 0;
    for (int i = 0; i < n; at += pieces[i++].n) {
        const Piece *p = &pieces[i];
        if (p->n > s->size - at) return false;
        if (p->maker ? !same_made(p, s->bytes + at)
                     : p->n && p->bytes != s->bytes + at &&
                           !same_run(s, s->bytes + at, s, p->bytes, p->n))
            return false;
    }
    return at == s->size;
}

/* ---- deciding and rewriting ---- */

static bool has_weights(const Mix *m)
{
    for (int i = 0; i < m->n_values; i++)
        if (m->values[i]->initializer && m->values[i]->type.elem == MPR_FLOAT32 &&
            m->values[i]->uses)
            return true;
    return false;
}

static mpr_status strict_warnings(Mixed *c)
{
    for (PaintWarning *w = c->paint.warnings; w; w = w->next) {
        bool unmatched = !strcmp(w->kind, "unmatched");
        if (unmatched && c->o->strict) {
            mpri_err_set(c->err, MPR_E_USAGE, "precision rule '%s' matches no node of the model",
                         mpri_err_name(w->where));
            return mpri_err_advice(c->err, "correct the rule, or leave out --strict");
        }
        if (unmatched && !c->image && !c->trial)
            mpri_log(c->o->log, MPR_LOG_WARNING, "precision rule '%s' matches no node of the model",
                     mpri_err_name(w->where));
    }
    return MPR_OK;
}

static mpr_status check_types(Mixed *c, const char *fault_before)
{
    const MixNode *at = NULL;
    Mix after = {
        .pool = &c->pool, .model = c->mix.model, .source = c->given->source, .to = c->o->to};
    mpri_mix_read(&after);
    const char *what = fault_before ? NULL : mpri_mix_fault(&after, &at);
    if (!what) return MPR_OK;
    mpri_err_set(c->err, MPR_E_INTERNAL, "converted, node '%s' (%s) %s at opset %lld",
                 mpri_err_name(at->path), mpri_err_name(at->op), what, (long long)after.opset);
    return mpri_err_advice(c->err, "keep the node in float32: --exclude 'out:%s'",
                           at->n_out ? mpri_err_name(at->out_name[0]) : "");
}

/* The sidecar may have been written for the file, or for what it was before a conversion. */
static mpr_status check_sidecar(Mixed *c)
{
    char hex[65], plain[65];
    int n;
    const Source *s = c->given->source;
    Piece *pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
    size_t size;
    const void *bytes = joined(c, pieces, n, &size);
    mpri_sha256(s->bytes, s->size, hex);
    mpri_sha256(bytes, size, plain);
    return mpri_decisions_check(c->o->decisions, hex, plain, c->err);
}

/* Colours of the units. */
static mpr_status colour(Mixed *c)
{
    if (c->o->decisions) {
        TRY(check_sidecar(c));
        return mpri_decisions_read(&c->paint, c->o->decisions, c->err);
    }
    if (c->o->own_decisions && c->decisions) {
        DType for_type = mpri_decisions_type(c->decisions);
        if (for_type == c->o->to || for_type == MPR_DTYPE_NONE)
            return mpri_decisions_read(&c->paint, c->decisions, c->err);
        mpri_log(c->o->log, MPR_LOG_NOTICE, "the model carries decisions for %s, not for %s: it is "
                 "painted anew", mpri_dtype_long(for_type), mpri_dtype_long(c->o->to));
    }
    return mpri_paint(&c->paint);
}

static bool plain_range(void *user, const char *value, double *most, double *tiny_share,
                        bool *finite)
{
    return mpri_verify_range(user, value, most, tiny_share, finite);
}

static bool plain_dims(void *user, const char *value, int *rank, int64_t dims[8])
{
    return mpri_verify_dims(user, value, rank, dims);
}

/* What is done to the model before anything is decided. */
static mpr_status prepare(Mixed *c)
{
    int n;
    if (c->o->opset) {
        Mix m = {.pool = &c->pool, .model = c->mix.model, .source = c->given->source};
        mpri_mix_read(&m);
        TRY(mpri_raise(&m, c->o->opset, c->err));
    }
    if (!c->o->inline_calls) return MPR_OK;
    Mix m = {.pool = &c->pool, .model = c->mix.model, .source = c->given->source};
    mpri_mix_read(&m);
    return mpri_calls_inline(&m, &n, c->err);
}

static mpr_status decide(Mixed *c)
{
    Mix *m = &c->mix;
    const MixNode *at;
    bool back = c->o->to == MPR_FLOAT32;
    mpri_mix_read(m);
    TRY(check_opset(c));
    if (back && (c->undone || c->decisions) && !c->o->drop_rounding) return MPR_OK;
    const char *fault = mpri_mix_fault(m, &at);
    if (back && c->o->drop_rounding) {
        mpri_drop_rounding(m);
        mpri_rewrite_retype(m);
        *m = (Mix){.pool = m->pool, .model = m->model, .source = m->source, .to = m->to};
        mpri_mix_read(m);
    }
    bool train = c->o->mode ? !strcmp(c->o->mode, "train") : has_weights(m);
    m->widen = back;
    c->po = c->o->paint;
    c->po.master = train && !back;
    c->po.raised = c->raised;
    if (c->calib && c->o->to == MPR_FLOAT16) {
        c->po.range = plain_range;
        c->po.dims = plain_dims;
        c->po.range_user = c->calib;
    }
    c->paint = (Paint){.m = m, .o = &c->po, .err = c->err};
    TRY(colour(c));
    TRY(strict_warnings(c));
    if (c->o->annotate) {
        mpri_decisions_put(m);
        return MPR_OK;
    }
    c->rewrite = (Rewrite){.m = m, .io = c->o->io, .infer = !train || back, .err = c->err};
    c->rewrite.saturate = c->po.weights_oor && !strcmp(c->po.weights_oor, "saturate");
    TRY(mpri_rewrite(&c->rewrite));
    return check_types(c, fault);
}

static void count(Mixed *c)
{
    c->r->casts = c->o->to == MPR_FLOAT32 ? c->undone : c->rewrite.casts;
    for (int i = 0; i < c->mix.n_nodes; i++) {
        const MixNode *n = c->mix.nodes[i];
        bool low = false;
        for (int k = 0; k < n->n_units; k++) low = low || mpri_dtype_is_low(n->units[k]->is);
        c->r->nodes_low += low;
        c->r->nodes_fp32 += n->n_units && !low;
    }
}

/* ---- checks by numbers ---- */

static const CheckData *data_of(const Mixed *c)
{
    const MixedCheck *k = &c->o->check;
    return k->verify || k->search <= 0 ? k->verify : k->calib;
}

/* The model as it is without an earlier run's doing; on the way back as it is given. */
static mpr_status run_plain(Mixed *c)
{
    const CheckData *data = data_of(c), *calib = c->o->check.calib;
    const void *bytes = c->given->source->bytes;
    size_t size = c->given->source->size;
    int n;
    bool other = c->undone || c->o->opset || c->o->inline_calls;
    if (other && c->o->to != MPR_FLOAT32) {
        const Piece *pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
        bytes = joined(c, pieces, n, &size);
    }
    if (data)
        TRY(mpri_verify_plain(data, bytes, size, true, &c->pool, c->o->alloc, &c->plain, c->err));
    if (calib && calib != data)
        TRY(mpri_verify_plain(calib, bytes, size, false, &c->pool, c->o->alloc, &c->calib, c->err));
    if (calib == data) c->calib = c->plain;
    return MPR_OK;
}

/* The bytes as they are going to be written, but for the place of external data. */
static mpr_status verify(Mixed *c, const Piece *pieces, int n)
{
    const MixedCheck *k = &c->o->check;
    double rtol = k->search > 0 ? k->search : k->rtol;
    size_t size;
    if (!c->plain) return MPR_OK;
    const void *bytes = joined(c, pieces, n, &size);
    if (rtol < 0) rtol = c->o->to == MPR_BFLOAT16 ? 0.08 : 0.01;
    c->verified.rtol = rtol;
    c->verified.atol = k->atol;
    return mpri_verify(c->plain, &c->mix, bytes, size, k->low_sums ? c->o->to : MPR_DTYPE_NONE,
                       true, &c->pool, &c->verified, c->err);
}

static mpr_status attempt(Mixed *c)
{
    Source *s = c->given->source;
    int n;
    c->mix = (Mix){.pool = &c->pool, .source = s, .to = c->o->to};
    c->mix.model = mpri_tree_parse(&c->pool, TREE_MODEL, s->bytes, s->size);
    c->decisions = mpri_decisions_take(&c->mix);
    mpri_rewrite_undo(&c->mix, &c->undone);
    TRY(prepare(c));
    TRY(decide(c));
    const Piece *pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
    return verify(c, pieces, n);
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
        st = setjmp(t->pool.full) ? mpri_err_nomem(err, 0) : attempt(t);
        if (st == MPR_OK && !k) st = collect(s, t);
        *within = st == MPR_OK && !t->verified.breach;
    }
    mpri_arena_destroy(&arena);
    return t ? st : mpri_err_nomem(err, sizeof *t);
}

/* Which nodes have to be raised so that the outputs come within the tolerance asked for. */
static mpr_status search(Mixed *c)
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

static mpr_status tell(Mixed *c)
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

static mpr_status breach(Mixed *c)
{
    char lead[96] = "";
    if (c->hopeless)
        snprintf(lead, sizeof lead, "even with all %d nodes in float32 that may be raised, ",
                 c->n_raised);
    return mpri_verify_error(&c->verified, &c->mix, lead, c->err);
}

/* ---- writing ---- */

static mpr_status explain(Mixed *c, const Report *report)
{
    Text t;
    if (!c->o->explain) return MPR_OK;
    mpri_text_init(&t, c->o->alloc);
    if (!mpri_report_explain(report, c->o->explain, &t)) {
        mpri_text_free(&t);
        mpri_err_set(c->err, MPR_E_USAGE, "the model has no node '%s'",
                     mpri_err_name(c->o->explain));
        return mpri_err_advice(c->err, "name a node, =VALUE for what makes a value, or a path");
    }
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(c->err, t.len);
    }
    *c->o->explained = t.text;
    return MPR_OK;
}

static mpr_status write_reports(Mixed *c, size_t bytes)
{
    Report report = {.m = &c->mix, .paint = &c->paint, .rewrite = &c->rewrite, .o = c->o,
                     .verify = c->plain ? &c->verified : NULL,
                     .model = c->given, .changed = c->r->changed,
                     .bytes_before = c->bytes_before, .bytes_after = bytes};
    TRY(explain(c, &report));
    c->reported = true;
    return mpri_report_files(&report, c->err);
}

/* What is known of a model that is refused. The error stays what it is. */
static void report_refusal(Mixed *c)
{
    Err second = {0};
    Report report = {.m = &c->mix, .paint = &c->paint, .o = c->o, .model = c->given,
                     .refused = c->err->message, .bytes_before = c->bytes_before,
                     .bytes_after = c->bytes_before};
    if (c->image || c->reported || !c->mix.model) return;
    jmp_buf outer;
    memcpy(outer, c->pool.full, sizeof outer);
    if (!setjmp(c->pool.full)) (void)mpri_report_files(&report, &second);
    memcpy(c->pool.full, outer, sizeof outer);
    mpri_err_clear(&second);
}

static mpr_status write_model(Mixed *c, const char *path, const Piece *pieces, int n)
{
    const char *data = mpri_pool_print(&c->pool, "%s.data", path);
    struct stat st;
    bool fresh = stat(data, &st) != 0;
    TRY(mpri_source_unchanged(c->given->source, c->err));
    mpr_status status = MPR_OK;
    if (c->n_data) status = mpri_write_pieces_atomic(data, c->data, c->n_data, c->err);
    for (int i = 0; i < c->n_copies && status == MPR_OK; i++) {
        Piece whole = {.bytes = NULL};
        if (!c->copies[i].map || !c->copies[i].fresh) continue;
        whole = (Piece){.bytes = c->copies[i].map->bytes, .n = c->copies[i].map->size,
                        .source = c->given->source};
        status = mpri_write_pieces_atomic(c->copies[i].path, &whole, 1, c->err);
        c->copies[i].written = status == MPR_OK;
    }
    if (status == MPR_OK) status = mpri_write_pieces_atomic(path, pieces, n, c->err);
    if (status == MPR_OK) return status;
    if (c->n_data && fresh) unlink(data);
    for (int i = 0; i < c->n_copies; i++)
        if (c->copies[i].written) unlink(c->copies[i].path);
    return status;
}

/* ---- the same in memory ---- */

static mpr_status take_image(Mixed *c, const Piece *pieces, int n)
{
    size_t size = size_of(pieces, n);
    uint8_t *bytes = mpri_arena_alloc(c->image_arena, size ? size : 1);
    if (!bytes) return mpri_err_nomem(c->err, size);
    mpri_pieces_copy(pieces, n, bytes);
    c->image->bytes = bytes;
    c->image->size = size;
    c->image->why = mpri_mixed_reasons(&c->mix, c->rewrite.list, c->image_arena, &c->image->n_why);
    return MPR_OK;
}

static mpr_status too_large(const Mixed *c, size_t size, size_t most, bool never)
{
    mpri_err_set(c->err, never ? MPR_E_USAGE : MPR_E_LIMIT,
                 "the model would have %zu bytes, a file of this format can hold %zu", size, most);
    return never ? mpri_err_advice(c->err, "leave out --external never") : c->err->code;
}

static mpr_status run(Mixed *c, const char *path)
{
    const Source *s = c->given->source;
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *external = c->o->external ? c->o->external : "auto";
    int n;
    c->mix = (Mix){.pool = &c->pool, .source = c->given->source, .to = c->o->to};
    c->mix.model = mpri_tree_parse(&c->pool, TREE_MODEL, s->bytes, s->size);
    c->bytes_before = s->size + mpri_mix_outside(c->mix.model);
    if (!c->o->dry_run) TRY(check_target(c, path));
    if (!c->o->no_passes) {
        c->decisions = mpri_decisions_take(&c->mix);
        mpri_rewrite_undo(&c->mix, &c->undone);
        TRY(prepare(c));
        TRY(run_plain(c));
        TRY(search(c));
        TRY(decide(c));
        count(c);
    }
    c->data_name = mpri_pool_print(&c->pool, "%s.data", slash ? slash + 1 : path ? path : "");
    c->folder = slash ? mpri_pool_text(&c->pool, path, (size_t)(slash - path) + 1) : "";
    c->verbatim = !strcmp(external, "auto") && !c->rewrite.infer;
    Piece *pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
    c->r->changed = !same_bytes(c, pieces, n);
    if (c->image) return take_image(c, pieces, n);
    TRY(verify(c, pieces, n));
    TRY(tell(c));
    size_t most = c->o->most_inline ? c->o->most_inline : ((size_t)1 << 31) - 65536;
    bool never = !strcmp(external, "never");
    bool out = !strcmp(external, "always") || (size_of(pieces, n) > most && !never);
    TRY(place_all(c, c->mix.model, false, out));
    pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
    if (size_of(pieces, n) > most) return too_large(c, size_of(pieces, n), most, never);
    for (int i = 0; i < n; i++)
        if (pieces[i].n >= LARGE) pieces[i].source = c->given->source;
    TRY(write_reports(c, size_of(pieces, n) + mpri_mix_outside(c->mix.model)));
    if (c->verified.breach) return breach(c);
    return c->o->dry_run ? MPR_OK : write_model(c, path, pieces, n);
}

static mpr_status mixed(Mixed given, const char *path)
{
    Arena arena;
    mpri_arena_init(&arena, given.o->alloc, 0);
    Mixed *c = mpri_arena_alloc(&arena, sizeof *c);
    if (!c) {
        mpri_arena_destroy(&arena);
        return mpri_err_nomem(given.err, sizeof *c);
    }
    *c = given;
    c->pool.arena = &arena;
    mpr_status st = setjmp(c->pool.full) ? mpri_err_nomem(c->err, 0) : run(c, path);
    if (st != MPR_OK && st != MPR_E_NOMEM) report_refusal(c);
    if (c->calib != c->plain) mpri_verify_end(c->calib);
    mpri_verify_end(c->plain);
    mpri_arena_destroy(&arena);
    return st;
}

mpr_status mpri_mixed_file(const ImportedModel *m, const char *path, const MixedOptions *o,
                           ConvertResult *r, Err *err)
{
    *r = (ConvertResult){0};
    return mixed((Mixed){.given = m, .o = o, .r = r, .err = err}, path);
}

mpr_status mpri_mixed_image(const ImportedModel *m, const MixedOptions *o, Arena *arena,
                            MixedImage *image, Err *err)
{
    ConvertResult r = {0};
    MixedOptions in_memory = *o;
    in_memory.dry_run = true;
    *image = (MixedImage){0};
    return mixed((Mixed){.given = m, .o = &in_memory, .r = &r, .err = err, .image = image,
                         .image_arena = arena}, NULL);
}
