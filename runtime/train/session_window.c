/* The micro-batches of an accumulation window, for the search after a skipped step.
 *
 * The one that is bound costs nothing: only when another takes its place, or when it is run once
 * more, and its gradient is still in the buffers, are its inputs copied. So a window of one batch
 * copies nothing, one of k copies k - 1 batches, and the buffers stay for the next window. */
#include "runtime/train/session.h"

#include <string.h>

enum { KEPT_BYTES = 256 << 20 }; /* further batches are counted, but not kept */

/* Gradients of the window that is open; those before the last update of a scale are past. */
static bool any_gradient(const mpr_session *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].present && s->params[i].generation == s->generation) return true;
    return false;
}

/* `to` gets the contents of `from`, in memory of its own. */
static mpr_status copy_input(mpr_session *s, SessionInput *to, const SessionInput *from, Err *err)
{
    TRY(mpri_session_reserve(s, to, from->bytes, err));
    void *data = to->data;
    size_t capacity = to->capacity;
    *to = *from;
    to->data = data;
    to->capacity = capacity;
    if (from->bytes) memcpy(data, from->data, from->bytes);
    return MPR_OK;
}

mpr_status mpri_window_keep(mpr_session *s, SessionBatch *b, Err *err)
{
    if (!b->inputs) {
        size_t bytes = (size_t)(s->n_inputs + 1) * sizeof(*b->inputs);
        b->inputs = mpri_context_alloc(s->ctx, bytes);
        if (!b->inputs) return mpri_err_nomem(err, bytes);
        memset(b->inputs, 0, bytes);
    }
    for (int i = 0; i < s->n_inputs; i++)
        TRY(copy_input(s, &b->inputs[i], &s->inputs[i], err));
    return MPR_OK;
}

mpr_status mpri_window_bind(mpr_session *s, const SessionBatch *b, Err *err)
{
    mpri_window_retire(s);
    s->forward_done = false;
    for (int i = 0; i < s->n_inputs; i++)
        TRY(copy_input(s, &s->inputs[i], &b->inputs[i], err));
    return MPR_OK;
}

bool mpri_window_fits(const mpr_session *s, int batches)
{
    size_t bytes = 0;
    for (int i = 0; i < s->n_inputs; i++) bytes += s->inputs[i].bytes;
    return bytes <= KEPT_BYTES / (size_t)batches;
}

static bool grow(mpr_session *s)
{
    if (s->n_window < s->cap_window) return true;
    int cap = s->cap_window ? 2 * s->cap_window : 8;
    SessionBatch *grown = mpri_context_alloc(s->ctx, (size_t)cap * sizeof(*grown));
    if (!grown) return false;
    memset(grown, 0, (size_t)cap * sizeof(*grown));
    if (s->cap_window) memcpy(grown, s->window, (size_t)s->cap_window * sizeof(*grown));
    mpri_free(&s->ctx->alloc, s->window);
    s->window = grown;
    s->cap_window = cap;
    return true;
}

void mpri_window_retire(mpr_session *s)
{
    if (!s->in_window) return;
    s->in_window = false;
    if (!any_gradient(s)) s->n_window = 0; /* the window is over */
    else if (grow(s)) {
        Err quiet; /* without memory the batch is only counted */
        SessionBatch *b = &s->window[s->n_window++];
        size_t bytes = 0;
        mpri_err_clear(&quiet);
        for (int i = 0; i < s->n_inputs; i++) bytes += s->inputs[i].bytes;
        b->forward = s->window_forward;
        b->divisor = s->window_divisor;
        b->kept = !s->window_elsewhere && s->window_bytes + bytes <= KEPT_BYTES &&
                  mpri_window_keep(s, b, &quiet) == MPR_OK;
        if (b->kept) s->window_bytes += bytes;
    }
}

void mpri_window_take(mpr_session *s)
{
    if (!any_gradient(s)) {
        s->n_window = 0;
        s->window_bytes = 0;
    }
    s->in_window = true;
    s->window_forward = s->forward_count - 1;
    s->window_divisor = s->loss_divisor;
}

void mpri_window_swap(mpr_session *s, SessionBatch *b)
{
    SessionInput *now = s->inputs;
    s->inputs = b->inputs;
    b->inputs = now;
    s->forward_done = false;
}

void mpri_window_batch_free(mpr_session *s, SessionBatch *b)
{
    for (int i = 0; b->inputs && i < s->n_inputs; i++)
        mpri_free(&s->ctx->alloc, b->inputs[i].data);
    mpri_free(&s->ctx->alloc, b->inputs);
    b->inputs = NULL;
}

void mpri_window_free(mpr_session *s)
{
    for (int k = 0; k < s->cap_window; k++) mpri_window_batch_free(s, &s->window[k]);
    mpri_free(&s->ctx->alloc, s->window);
}
