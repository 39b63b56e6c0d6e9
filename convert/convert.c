/* mpr-convert, step by step: take out what an earlier run added, decide, edit, write beside, check
 * what was written, rename. */
#include "convert/convert.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "convert/calls.h"
#include "convert/check.h"
#include "convert/decide.h"
#include "convert/decisions.h"
#include "convert/marks.h"
#include "convert/raise.h"
#include "convert/report.h"
#include "convert/write.h"
#include "passes/profile.h"

typedef struct Conversion {
    const ImportedModel *given; /* the model of the caller */
    const ImportedModel *bare;  /* without what an earlier run added, raised: what is annotated */
    const ImportedModel *plain; /* without calls: a profile decides inside functions, for each call */
    ImportedModel *steps[4];    /* models made on the way */
    int n_steps;
    const ConvertOptions *o;
    bool unlisted; /* the model has a list of marks that stays as it is */
    Export x;
    FileGraph f;
    Decided *decided;
    Text marks; /* or the entry of the decisions */
    uint8_t head[16];
    Piece *pieces;
    int n_pieces;
    ConvertResult *r;
    Err *err;
} Conversion;

/* ---- what is refused at once ---- */

static mpr_status check_opset(const FileGraph *f, DType to, Err *err)
{
    if (to != MPR_BFLOAT16 || f->opset >= 13) return MPR_OK;
    mpri_err_set(err, MPR_E_OPSET, "bfloat16 needs opset 13 or newer, the model has opset %lld",
                 (long long)f->opset);
    return mpri_err_advice(err, "raise the model with --opset 13, or use --to fp16");
}

/* ---- the new bytes ---- */

static int by_place(const void *a, const void *b)
{
    const ExportEdit *x = a, *y = b;
    if (x->edit.at != y->edit.at) return x->edit.at < y->edit.at ? -1 : 1;
    if ((x->edit.len == 0) != (y->edit.len == 0)) return x->edit.len == 0 ? -1 : 1;
    return x->order - y->order;
}

/* Edits in file order, the list of marks at the end. */
static mpr_status assemble(Conversion *c)
{
    Export *x = &c->x;
    SourceEdit *edits = ARENA_ARRAY(&x->arena, SourceEdit, x->n_edits + 1);
    c->pieces = ARENA_ARRAY(&x->arena, Piece, 2 * x->n_edits + 4);
    if (!edits || !c->pieces) return mpri_err_nomem(c->err, sizeof *edits * (size_t)x->n_edits);
    if (x->n_edits) qsort(x->edits, (size_t)x->n_edits, sizeof *x->edits, by_place);
    for (int i = 0; i < x->n_edits; i++) edits[i] = x->edits[i].edit;
    TRY(mpri_source_pieces(c->x.m->source, edits, x->n_edits, c->pieces, &c->n_pieces, c->head,
                           c->err));
    if (c->marks.len && (!c->unlisted || c->o->annotate))
        c->pieces[c->n_pieces++] = (Piece){.bytes = c->marks.text, .n = c->marks.len};
    return MPR_OK;
}

static bool same_bytes(const Conversion *c)
{
    const Source *s = c->given->source;
    size_t at = 0;
    for (int i = 0; i < c->n_pieces; i++) {
        const Piece *p = &c->pieces[i];
        if (p->n > s->size - at || (p->n && memcmp(s->bytes + at, p->bytes, p->n) != 0))
            return false;
        at += p->n;
    }
    return at == s->size;
}

static mpr_status tell_unmatched(Conversion *c)
{
    if (c->o->units) return MPR_OK; /* the painter does */
    const char *const *left = mpri_profile_unmatched(c->o->profile, &c->x.arena);
    if (c->o->strict && *left) {
        mpri_err_set(c->err, MPR_E_USAGE, "precision rule '%s' matches no node of the model",
                     mpri_err_name(*left));
        return mpri_err_advice(c->err, "correct the rule, or leave out --strict");
    }
    for (; *left; left++)
        mpri_log(c->o->log, MPR_LOG_WARNING, "precision rule '%s' matches no node of the model",
                 mpri_err_name(*left));
    return MPR_OK;
}

static mpr_status explain(Conversion *c, const FileGraph *f)
{
    Text t;
    if (!c->o->explain) return MPR_OK;
    mpri_text_init(&t, c->o->alloc);
    if (!mpri_autocast_explain(c->plain->graph, f->decided, c->o->profile, c->o->explain, &t)) {
        mpri_text_free(&t);
        mpri_err_set(c->err, MPR_E_USAGE, "the model has no node '%s' in its main graph",
                     mpri_err_name(c->o->explain));
        return mpri_err_advice(c->err, "name a node, =VALUE for what makes a value, or #INDEX");
    }
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(c->err, t.len);
    }
    *c->o->explained = t.text;
    return MPR_OK;
}

static mpr_status edit(Conversion *c)
{
    FileGraph *f = &c->f;
    TRY(mpri_file_read(c->plain, &c->x.arena, f, c->err));
    TRY(check_opset(f, c->o->to, c->err));
    if (c->o->to != MPR_FLOAT32) {
        TRY(mpri_convert_decide(f, c->o, c->r, c->err));
        TRY(tell_unmatched(c));
        TRY(explain(c, f));
        TRY(mpri_decided_make(f, c->o, c->given, &c->x.arena, &c->decided, c->err));
        if (c->o->units) return mpri_decided_units(c->decided, c->o->units, c->err);
        if (c->o->annotate) return mpri_decided_entry(c->decided, &c->marks, c->err);
        TRY(mpri_convert_write(f, c->o, &c->x, &c->marks, c->r, c->err));
    }
    return MPR_OK;
}

/* ---- writing ---- */

/* What was accepted once is not refused for being somewhat larger. */
static const mpr_limits no_limits = {
    .size = sizeof no_limits,
    .nesting = 1 << 10,
    .repeated = INT64_MAX / 2,
    .attributes_per_node = INT64_MAX / 2,
    .name_bytes = INT64_MAX / 2,
    .metadata_bytes = INT64_MAX / 2,
    .functions = INT64_MAX / 2,
    .call_depth = 1 << 20,
    .nodes = INT64_MAX / 2,
    .memory_bytes = INT64_MAX / 2,
    .trips = INT32_MAX,
};

static mpr_status check_result(void *conversion, const char *written, Err *err)
{
    const Conversion *c = conversion;
    ImportOptions io = {.alloc = c->o->alloc, .limits = &no_limits};
    ImportedModel *m = NULL;
    Arena arena;
    mpri_arena_init(&arena, c->o->alloc, 0);
    mpr_status st = mpri_import_file(written, &io, &m, err);
    if (st == MPR_OK && !c->o->annotate) st = mpri_convert_check(c->plain, m, &arena, err);
    mpri_import_destroy(m, c->o->alloc);
    mpri_arena_destroy(&arena);
    return st == MPR_OK ? MPR_OK : mpri_err_where(err, "the converted model");
}

static mpr_status run(Conversion *c, const char *path)
{
    bool breach = false;
    TRY(edit(c));
    if (c->o->units) return MPR_OK;
    if (c->o->check.verify) { /* before data files are written and tensors point there */
        TRY(assemble(c));
        TRY(mpri_decided_verify(c->decided, c->pieces, c->n_pieces, &breach, c->err));
    }
    if (!c->o->dry_run && !breach) {
        TRY(mpri_source_unchanged(c->given->source, c->err));
        TRY(mpri_export_data_files(&c->x, path, c->err));
    }
    TRY(assemble(c));
    c->r->changed = !same_bytes(c);
    DecidedFile file = {.changed = c->r->changed, .before = c->given->source->size};
    for (int i = 0; i < c->n_pieces; i++) file.after += c->pieces[i].n;
    if (c->decided) TRY(mpri_decided_report(c->decided, &file, c->err));
    if (breach) return mpri_decided_breach(c->decided, c->err);
    if (c->o->dry_run) return MPR_OK;
    return mpri_write_pieces_checked(path, c->pieces, c->n_pieces, check_result, c, c->err);
}

/* ---- */

static mpr_status convert(Conversion *c, const char *path)
{
    c->x = (Export){.m = c->o->annotate ? c->bare : c->plain, .alloc = c->o->alloc};
    mpri_arena_init(&c->x.arena, c->o->alloc, 0);
    mpri_text_init(&c->marks, c->o->alloc);
    mpr_status st = run(c, path);
    for (DataFile *f = st == MPR_OK ? NULL : c->x.files; f; f = f->next) unlink(f->path);
    mpri_decided_end(c->decided);
    mpri_text_free(&c->marks);
    mpri_arena_destroy(&c->x.arena);
    return st;
}

/* The model of an image in the place of the one before. */
static mpr_status step(Conversion *c, ImportOptions *io, void *image, size_t size)
{
    io->image = image;
    io->image_size = size;
    TRY(mpri_import_file(c->given->path, io, &c->steps[c->n_steps], c->err));
    c->plain = c->steps[c->n_steps++];
    return MPR_OK;
}

/* Without the marked nodes. Another program may have changed the file in a way that makes them a
 * part of it; then they are treated as the model's own. */
static mpr_status strip(Conversion *c, Arena *arena, ImportOptions *io)
{
    void *image;
    size_t size;
    int n = 0;
    TRY(mpri_marks_strip(c->given->source, arena, &image, &size, &n, c->err));
    if (!image) return MPR_OK;
    mpr_status st = step(c, io, image, size);
    if (st == MPR_OK) {
        if (c->o->to == MPR_FLOAT32) c->r->casts = n;
    } else if (st != MPR_E_NOMEM) {
        mpri_log(c->o->log, MPR_LOG_NOTICE,
                 "casts of an earlier conversion count as the model's own: without them, %s",
                 c->err->message);
        mpri_err_clear(c->err);
        io->image = NULL;
        io->image_size = 0;
        c->unlisted = true;
        st = MPR_OK;
    }
    return st;
}

static mpr_status raise_model(Conversion *c, Arena *arena, ImportOptions *io)
{
    void *image;
    size_t size;
    if (!c->o->opset) return MPR_OK;
    TRY(mpri_raise_image(c->plain->source, arena, c->o->opset, &image, &size, c->err));
    return step(c, io, image, size);
}

static mpr_status take_calls_apart(Conversion *c, Arena *arena, ImportOptions *io)
{
    void *image;
    size_t size;
    int n;
    c->bare = c->plain;
    if (c->o->to == MPR_FLOAT32) return MPR_OK;
    TRY(mpri_calls_image(c->plain->source, arena, &image, &size, &n, c->err));
    if (!image) return MPR_OK;
    TRY(step(c, io, image, size));
    mpri_log(c->o->log, MPR_LOG_NOTICE,
             "%d calls of functions are taken apart: '%s' decides inside them", n,
             c->o->profile->name);
    return MPR_OK;
}

/* A sidecar may have been written for the file, or for what it was before a conversion. */
static mpr_status check_sidecar(Conversion *c, Arena *arena)
{
    const Profile *p = c->o->profile;
    const Source *s = c->given->source;
    char hex[65], plain[65];
    void *image;
    size_t size;
    int n;
    if (!p || !p->decided || p->carried) return MPR_OK;
    TRY(mpri_marks_strip(c->given->source, arena, &image, &size, &n, c->err));
    mpri_sha256(s->bytes, s->size, hex);
    if (image) mpri_sha256(image, size, plain);
    return mpri_decisions_check(p->decided, hex, image ? plain : hex, c->err);
}

/* What cannot be settled stays open here as it does in training. */
static mpr_status settle(Conversion *c, const ImportOptions *io)
{
    Err err;
    ImportedModel **settled = &c->steps[c->n_steps];
    mpri_err_clear(&err);
    if (c->o->to == MPR_FLOAT32 || !c->o->settle.fn || !c->plain->n_open) return MPR_OK;
    mpr_status st = c->o->settle.fn(c->o->settle.user, c->plain, io->image, io->image_size,
                                    settled, &err);
    if (st == MPR_OK && *settled) c->plain = *settled;
    if (st != MPR_E_NOMEM) return MPR_OK;
    *c->err = err;
    return st;
}

mpr_status mpri_convert_file(const ImportedModel *m, const char *path, const ConvertOptions *o,
                             ConvertResult *r, Err *err)
{
    Conversion c = {.given = m, .bare = m, .plain = m, .o = o, .r = r, .err = err};
    ImportOptions io = {.alloc = o->alloc, .limits = &no_limits, .stale_types = true};
    Arena arena;
    *r = (ConvertResult){0};
    mpri_arena_init(&arena, o->alloc, 0);
    mpr_status st = check_sidecar(&c, &arena);
    if (st == MPR_OK) st = strip(&c, &arena, &io);
    if (st == MPR_OK) st = raise_model(&c, &arena, &io);
    if (st == MPR_OK) st = take_calls_apart(&c, &arena, &io);
    if (st == MPR_OK) st = settle(&c, &io);
    if (st == MPR_OK) st = convert(&c, path);
    for (int i = 3; i >= 0; i--) mpri_import_destroy(c.steps[i], o->alloc);
    mpri_arena_destroy(&arena);
    return st;
}
