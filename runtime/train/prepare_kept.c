/* Late steps over batches that the caller binds: nobody could bring them back, so those of the windows that
 * are under way are kept, and bound from there when a step has to be run again. */
#include <string.h>

#include "runtime/train/prepare.h"

static LateWindow *window_at(PreparedLate *l, int place)
{
    return &l->window[place % LATE_PLACES];
}

static mpr_status grow(mpr_prepared *p, LateWindow *w, Err *err)
{
    int cap = w->cap ? 2 * w->cap : 1;
    size_t bytes = (size_t)cap * sizeof(*w->batch);
    LateBatch *grown = mpri_context_alloc(p->s->ctx, bytes);
    if (!grown) return mpri_err_nomem(err, bytes);
    if (w->cap) memcpy(grown, w->batch, (size_t)w->cap * sizeof(*grown));
    mpri_free(&p->s->ctx->alloc, w->batch);
    w->batch = grown;
    w->cap = cap;
    return MPR_OK;
}

static mpr_status keep(mpr_prepared *p, LateBatch *to, Err *err)
{
    to->epoch = p->epoch;
    to->batch = p->batch;
    to->rows = p->bound_rows;
    return mpri_window_keep(p->s, &to->b, err);
}

static mpr_status bind(mpr_prepared *p, const LateBatch *from, Err *err)
{
    p->epoch = from->epoch;
    p->batch = from->batch;
    p->bound_rows = from->rows;
    return mpri_window_bind(p->s, &from->b, err);
}

mpr_status mpri_late_keep(mpr_prepared *p, Err *err)
{
    LateWindow *w = window_at(&p->late, p->late.first + p->late.n);
    if (p->data) return MPR_OK;
    w->n = p->micro;
    if (w->n == w->cap) TRY(grow(p, w, err));
    TRY(keep(p, &w->batch[w->n], err));
    w->n++;
    return MPR_OK;
}

/* A window that was closed early has fewer batches than planned. */
static mpr_status replay(mpr_prepared *p, int64_t steps, int micro, Err *err)
{
    int place = p->late.first;
    while (p->steps < steps || p->micro < micro) {
        const LateWindow *w = window_at(&p->late, place);
        if (p->micro >= w->n)
            return mpri_err_set(err, MPR_E_INTERNAL, "a step cannot be run again");
        TRY(bind(p, &w->batch[p->micro], err));
        TRY(mpri_prepared_backward(p, NULL, err));
        if (p->micro < w->n || p->steps == steps) continue;
        mpri_prepared_close_window(p);
        TRY(mpri_prepared_step(p, NULL, err));
        place++;
    }
    return MPR_OK;
}

mpr_status mpri_late_replay_kept(mpr_prepared *p, const LateMark *m, Err *err)
{
    const int64_t steps = p->steps, epoch = p->epoch, batch = p->batch, rows = p->bound_rows;
    const int micro = p->micro, length = p->length;
    const bool another = !p->s->in_window; /* than the one that was run last */
    if (another) TRY(keep(p, &p->late.current, err));
    TRY(mpri_late_go_back(p, m, err));
    p->late.again = true;
    mpr_status status = replay(p, steps, micro, err);
    p->late.again = false;
    if (status == MPR_OK && another) status = bind(p, &p->late.current, err);
    if (status != MPR_OK) return status;
    p->epoch = epoch;
    p->batch = batch;
    p->bound_rows = rows;
    p->length = length;
    return MPR_OK;
}

void mpri_late_kept_free(mpr_prepared *p)
{
    for (int k = 0; k < LATE_PLACES; k++) {
        LateWindow *w = &p->late.window[k];
        for (int i = 0; i < w->cap; i++) mpri_window_batch_free(p->s, &w->batch[i].b);
        mpri_free(&p->s->ctx->alloc, w->batch);
    }
    mpri_window_batch_free(p->s, &p->late.current.b);
}
