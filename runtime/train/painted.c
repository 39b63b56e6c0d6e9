/* Painting in memory, see painted.h: the converter rewrites the bytes of the model, and importing
 * them gives the graph that the written file would give. */
#include "runtime/train/painted.h"

#include <stdlib.h>
#include <string.h>

#include "convert/decisions.h"
#include "convert/mixed.h"
#include "passes/profile.h"
#include "runtime/train/control.h"
#include "runtime/train/session.h"

static const char carried[] = "the decisions of the model";

/* Those inside the model, when they are for the type that is asked for. */
static mpr_status own_decisions(mpr_model *model, Arena *arena, DType *type, const char **text,
                                Err *err)
{
    if (!model->m->source) return MPR_OK; /* a graph that no file stands behind */
    TRY(mpri_decisions_find(model->m->source, arena, text, err));
    if (!*text) return MPR_OK;
    DType theirs = mpri_decisions_type(*text);
    bool fit = mpri_dtype_is_low(theirs) && (*type == MPR_DTYPE_NONE || *type == theirs);
    if (!fit && *type != MPR_DTYPE_NONE)
        mpri_log(&model->ctx->log, MPR_LOG_NOTICE,
                 "the model carries decisions for %s, not for %s: they are not used",
                 mpri_dtype_long(theirs), mpri_dtype_long(*type));
    if (fit && *type == MPR_DTYPE_NONE)
        mpri_log(&model->ctx->log, MPR_LOG_NOTICE, "the model carries decisions for %s, which are "
                 "followed; mpr-convert --to fp32 takes them out", mpri_dtype_long(theirs));
    if (fit) *type = theirs;
    else *text = NULL;
    return MPR_OK;
}

/* A profile that comes from decisions has to decide what they say: as the converter finds. */
static mpr_status check_decided(mpr_model *model, const Profile *p, DType type, Err *err)
{
    Device *device;
    ConvertResult r;
    TRY(mpri_context_device(model->ctx, &device, err));
    ControlSettler settler = {model, &device->kernels};
    ConvertOptions o = {.to = type, .profile = p, .ref = &device->kernels, .dry_run = true,
                        .settle = {mpri_control_settle, &settler}, .alloc = &model->ctx->alloc};
    mpr_status status = mpri_convert_file(model->m, NULL, &o, &r, err);
    mpri_device_destroy(device);
    return status == MPR_OK ? MPR_OK : mpri_err_where(err, "%s", mpri_err_name(p->name));
}

mpr_status mpri_painted_profile(mpr_model *model, const char *name, const char *const *keep_fp32,
                                Arena *arena, DType *type, Profile **out, Err *err)
{
    const char *own = NULL;
    *out = NULL;
    if (!name) TRY(own_decisions(model, arena, type, &own, err));
    if (*type == MPR_DTYPE_NONE) return MPR_OK;
    if (own) TRY(mpri_profile_carried(carried, own, keep_fp32, arena, out, err));
    else TRY(mpri_profile_load(name ? name : "torch-cuda", keep_fp32, arena, out, err));
    return (*out)->decided ? check_decided(model, *out, *type, err) : MPR_OK;
}

/* Control flow that constants and fixed shapes decide. */
static mpr_status decide_control(mpr_model *painted, Err *err)
{
    Device *device;
    ImportedModel *m = NULL;
    TRY(mpri_context_device(painted->ctx, &device, err));
    mpr_status status = mpri_control_decide(painted, &device->kernels, NULL, 0, 0, &m, err);
    mpri_device_destroy(device);
    if (!m) return status;
    mpri_import_destroy(painted->m, &painted->ctx->alloc);
    painted->m = m;
    return status;
}

static mpr_status paint(mpr_model *model, const Profile *p, DType type, mpr_model *painted,
                        Err *err)
{
    bool own = p->name == carried;
    MixedImage image;
    MixedOptions o = {
        .to = type,
        .mode = "train",
        .paint = {.policy = p, .margin = 4},
        .decisions = own ? NULL : p->decisions,
        .own_decisions = own,
        .alloc = &model->ctx->alloc,
        .log = &model->ctx->log,
    };
    TRY(mpri_mixed_image(model->m, &o, &painted->arena, &image, err));
    painted->image = image.bytes;
    painted->image_size = image.size;
    painted->why = image.why;
    painted->n_why = image.n_why;
    ImportOptions io = {
        .alloc = &model->ctx->alloc,
        .limits = &model->ctx->limits,
        .tie = model->tie,
        .untie = model->untie,
        .train_only = model->train_only,
        .freeze = model->freeze,
        .image = image.bytes,
        .image_size = image.size,
    };
    TRY(mpri_import_file(model->m->path, &io, &painted->m, err));
    return painted->m->n_open ? decide_control(painted, err) : MPR_OK;
}

mpr_status mpri_painted_open(mpr_model *model, const Profile *p, DType type, mpr_model **out,
                             Err *err)
{
    *out = NULL;
    if (!p || !mpri_profile_converts(p)) return MPR_OK;
    mpr_model *painted = CONTEXT_NEW(model->ctx, mpr_model);
    if (!painted) return mpri_err_nomem(err, sizeof *painted);
    mpri_handle_init(&painted->h, HANDLE_MODEL, NULL);
    painted->ctx = model->ctx;
    painted->tie = model->tie;
    painted->untie = model->untie;
    painted->train_only = model->train_only;
    painted->freeze = model->freeze;
    mpri_arena_init(&painted->arena, &model->ctx->alloc, 0);
    mpr_status status = paint(model, p, type, painted, err);
    if (status == MPR_OK) {
        *out = painted;
        return status;
    }
    mpri_model_destroy(painted);
    if (p->decisions) return mpri_err_where(err, "%s", mpri_err_name(p->name));
    return status;
}

static int by_value(const void *key, const void *row)
{
    return strcmp(key, ((const MixedWhy *)row)->value);
}

void mpri_painted_explain(const mpr_model *painted, Graph *g)
{
    for (Node *n = painted ? g->first : NULL; n; n = n->next) {
        const MixedWhy *w = NULL;
        for (int k = 0; k < n->n_out && !w && !n->why; k++)
            if (n->out[k] && n->out[k]->name && painted->n_why)
                w = bsearch(n->out[k]->name, painted->why, (size_t)painted->n_why, sizeof *w,
                            by_value);
        if (w) n->why = w->why;
    }
}
