/* What a conversion leaves behind: reports, and the model with its data files, all or none. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/mixed_state.h"
#include "convert/report.h"

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

mpr_status mpri_mixed_reports(Mixed *c, size_t bytes)
{
    Report report = {.m = &c->mix, .paint = &c->paint, .rewrite = &c->rewrite, .o = c->o,
                     .verify = c->plain ? &c->verified : NULL,
                     .model = c->given, .changed = c->r->changed, .decided = c->o->profile,
                     .bytes_before = c->bytes_before, .bytes_after = bytes};
    TRY(explain(c, &report));
    c->reported = true;
    return mpri_report_files(&report, c->err);
}

void mpri_mixed_refusal(Mixed *c)
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

static mpr_status stage_copy(Mixed *c, DataCopy *copy)
{
    Piece whole = {.bytes = copy->map->bytes, .n = copy->map->size, .source = c->given->source};
    return mpri_write_stage(copy->path, &whole, 1, &copy->stage, c->err);
}

/* All files are whole on disk before the first of them gets its name: what was there stays when
 * something fails. */
mpr_status mpri_mixed_write(Mixed *c, const char *path, const Piece *pieces, int n)
{
    const char *data = mpri_pool_print(&c->pool, "%s%s", c->folder, c->data_name);
    WriteStage model = {.dir = -1}, tensors = {.dir = -1};
    struct stat st;
    bool fresh = stat(data, &st) != 0;
    TRY(mpri_source_unchanged(c->given->source, c->err));
    mpr_status status = MPR_OK;
    if (c->n_data) status = mpri_write_stage(data, c->data, c->n_data, &tensors, c->err);
    for (int i = 0; i < c->n_copies && status == MPR_OK; i++)
        if (c->copies[i].map && c->copies[i].fresh) status = stage_copy(c, &c->copies[i]);
    if (status == MPR_OK) status = mpri_write_stage(path, pieces, n, &model, c->err);
    bool staged = status == MPR_OK;
    if (staged && c->n_data) status = mpri_write_commit(&tensors, c->err);
    for (int i = 0; i < c->n_copies && status == MPR_OK; i++)
        if (c->copies[i].stage.dir >= 0) status = mpri_write_commit(&c->copies[i].stage, c->err);
    if (status == MPR_OK) status = mpri_write_commit(&model, c->err);
    if (status == MPR_OK) return status;
    if (staged && c->n_data && fresh) unlink(data);
    mpri_write_drop(&tensors);
    mpri_write_drop(&model);
    for (int i = 0; i < c->n_copies; i++) mpri_write_drop(&c->copies[i].stage);
    return status;
}
