/* Step by step: parse, take out what an earlier run did, decide, rewrite, check the types of what
 * came out, write beside, rename. */
#include "convert/mixed.h"

#include <string.h>

#include "convert/calls.h"
#include "convert/decisions.h"
#include "convert/mixed_state.h"
#include "convert/raise.h"
#include "convert/report.h"
#include "passes/profile.h"

/* ---- what is refused at once ---- */

static mpr_status check_opset(const Mixed *c)
{
    if (c->o->to != MPR_BFLOAT16 || c->mix.opset >= 13) return MPR_OK;
    mpri_err_set(c->err, MPR_E_OPSET, "bfloat16 needs opset 13 or newer, the model has opset %lld",
                 (long long)c->mix.opset);
    return mpri_err_advice(c->err, "raise the model with --opset 13, or use --to fp16");
}

/* ---- bytes ---- */

size_t mpri_mixed_size(const Piece *pieces, int n)
{
    size_t size = 0;
    for (int i = 0; i < n; i++) size += pieces[i].n;
    return size;
}

const void *mpri_mixed_joined(Mixed *c, const Piece *pieces, int n, size_t *size)
{
    *size = mpri_mixed_size(pieces, n);
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
                           !mpri_source_same(s, s->bytes + at, s, p->bytes, p->n))
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
    const void *bytes = mpri_mixed_joined(c, pieces, n, &size);
    mpri_sha256(s->bytes, s->size, hex);
    mpri_sha256(bytes, size, plain);
    return mpri_decisions_check(c->o->decisions, hex, plain, c->err);
}

/* Colours that a profile of torch has chosen. */
static mpr_status follow(Mixed *c)
{
    const ConvertUnits *u = c->o->units;
    const char *const *left = mpri_profile_unmatched(c->o->profile, c->pool.arena);
    for (int i = 0; u->saturated[i]; i++) {
        MixValue *v = mpri_mix_find(c->mix.top, u->saturated[i]);
        if (v) v->saturate = true;
    }
    for (; *left; left++)
        mpri_paint_warn(&c->paint, "unmatched", *left, 0, "the rule matches no node");
    return mpri_decisions_follow(&c->paint, u->decisions, c->err);
}

/* Colours of the units. */
static mpr_status colour(Mixed *c)
{
    if (c->o->units) return follow(c);
    if (c->o->decisions) {
        TRY(check_sidecar(c));
        return mpri_decisions_read(&c->paint, c->o->decisions, c->err);
    }
    if (c->o->own_decisions && c->decisions && !mpri_decisions_by_profile(c->decisions)) {
        DType for_type = mpri_decisions_type(c->decisions);
        if (for_type == c->o->to || for_type == MPR_DTYPE_NONE)
            return mpri_decisions_read(&c->paint, c->decisions, c->err);
        mpri_log(c->o->log, MPR_LOG_NOTICE, "the model carries decisions for %s, not for %s: it is "
                 "painted anew", mpri_dtype_long(for_type), mpri_dtype_long(c->o->to));
    }
    return mpri_paint(&c->paint);
}

static bool plain_range(const void *user, const char *place, PaintRange *out)
{
    return mpri_ranges_find(user, place, out);
}

static bool plain_dims(const void *user, const char *place, int *rank, int64_t dims[8])
{
    return mpri_ranges_dims(user, place, rank, dims);
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
    bool train = c->o->mode ? !strcmp(c->o->mode, "train") : has_weights(m);
    m->widen = back;
    c->po = c->o->paint;
    c->po.master = train && !back;
    c->po.raised = c->raised;
    if (c->calib && c->o->to == MPR_FLOAT16) {
        c->po.range = plain_range;
        c->po.dims = plain_dims;
        c->po.range_user = mpri_verify_ranges(c->calib);
    }
    c->paint = (Paint){.m = m, .o = &c->po, .err = c->err};
    TRY(colour(c));
    if (c->o->kernels && !back) mpri_paint_kernels(&c->paint, c->given->graph->ops, c->o->kernels);
    TRY(strict_warnings(c));
    if (c->o->annotate) {
        mpri_decisions_put(m);
        return MPR_OK;
    }
    c->rewrite = (Rewrite){.m = m, .io = c->o->io, .infer = !train || back, .err = c->err};
    c->rewrite.drop = back && c->o->drop_rounding;
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

mpr_status mpri_mixed_attempt(Mixed *c)
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
    return mpri_mixed_verify(c, pieces, n);
}

/* ---- the same in memory ---- */

static mpr_status take_image(Mixed *c, const Piece *pieces, int n)
{
    size_t size = mpri_mixed_size(pieces, n);
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

/* NAME.data, or a name with a number: files of the input are never written to. */
static const char *free_name(Mixed *c)
{
    const char *name = mpri_pool_print(&c->pool, "%s.data", c->name);
    for (int k = 1; mpri_source_reads(c->given->source,
                                      mpri_pool_print(&c->pool, "%s%s", c->folder, name)); k++)
        name = mpri_pool_print(&c->pool, "%s.data%d", c->name, k);
    return name;
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
    if (!c->o->no_passes) {
        c->decisions = mpri_decisions_take(&c->mix);
        mpri_rewrite_undo(&c->mix, &c->undone);
        TRY(prepare(c));
        TRY(mpri_mixed_run_plain(c));
        TRY(mpri_mixed_search(c));
        TRY(decide(c));
        count(c);
    }
    c->folder = slash ? mpri_pool_text(&c->pool, path, (size_t)(slash - path) + 1) : "";
    c->name = slash ? slash + 1 : path ? path : "";
    c->data_name = free_name(c);
    c->verbatim = !strcmp(external, "auto") && !c->rewrite.infer;
    Piece *pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
    c->r->changed = !same_bytes(c, pieces, n);
    if (c->image) return take_image(c, pieces, n);
    TRY(mpri_mixed_verify(c, pieces, n));
    TRY(mpri_mixed_tell(c));
    size_t most = c->o->most_inline ? c->o->most_inline : ((size_t)1 << 31) - 65536;
    bool never = !strcmp(external, "never");
    bool out = !strcmp(external, "always") || (mpri_mixed_size(pieces, n) > most && !never);
    TRY(mpri_mixed_place(c, out));
    pieces = mpri_tree_pieces(&c->pool, c->mix.model, &n);
    size_t size = mpri_mixed_size(pieces, n);
    if (size > most) return too_large(c, size, most, never);
    for (int i = 0; i < n; i++)
        if (pieces[i].n >= MIXED_LARGE) pieces[i].source = c->given->source;
    TRY(mpri_mixed_reports(c, size + mpri_mix_outside(c->mix.model)));
    if (c->verified.breach) return mpri_mixed_breach(c);
    return c->o->dry_run ? MPR_OK : mpri_mixed_write(c, path, pieces, n);
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
    if (st != MPR_OK && st != MPR_E_NOMEM) mpri_mixed_refusal(c);
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
