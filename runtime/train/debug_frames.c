/* Frames of the last nodes; see debug_frames.h. */
#include "runtime/train/debug_frames.h"

#include <math.h>
#include <string.h>

static void measure(const Plan *p, Frame *f, const Value *v, bool output)
{
    bool room = f->n < FRAME_TENSORS && mpri_dtype_is_float(v->dtype);
    const void *data = room ? mpri_plan_view(p, v) : NULL;
    if (!data) return;
    double least = INFINITY, most = 0;
    int64_t n = mpri_shape_elements(&v->shape);
    for (int64_t i = 0; i < n; i++) {
        double x = fabs(mpri_load_f64(v->dtype, data, i));
        if (isnan(x)) least = most = NAN;
        if (x < least) least = x;
        if (x > most) most = x;
    }
    mpri_forensics_tensor(p, v, f->v[f->n].tensor, sizeof f->v[0].tensor);
    f->v[f->n].output = output;
    f->v[f->n].least = n ? least : 0;
    f->v[f->n++].most = most;
}

/* A new pass, perhaps of another plan. */
static bool start(DebugFrames *d, mpr_session *s, Plan *p)
{
    Err err;
    mpri_err_clear(&err);
    if (d->open) mpri_search_close(&d->search);
    d->open = true;
    d->count = 0;
    d->bad = false;
    if (mpri_search_open(&d->search, s, p, &err) != MPR_OK) return false;
    (void)mpri_search_sources(&d->search);
    return true;
}

static PlanWord watch(void *user, int step, bool done)
{
    DebugFrames *d = user;
    mpr_session *s = d->search.s;
    Plan *p = s->current->plan;
    const Node *n = p->steps[step].node;
    bool first = !done && step == 0;
    if (first && !start(d, s, p)) return PLAN_GO;
    if (!d->search.state || d->bad || (n->op->flags & OPF_EFFECT)) return PLAN_GO;
    Frame *f = &d->frame[d->count % FRAMES];
    if (!done) {
        f->n = 0;
        f->backward = n->segment == SEG_BACKWARD;
        mpri_forensics_node(s, n, f->node, f->op);
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) measure(p, f, n->in[k], false);
        return PLAN_GO;
    }
    for (int k = 0; k < n->n_out; k++) {
        if (!n->out[k]) continue;
        measure(p, f, n->out[k], true);
        mpri_search_value(&d->search, step, n->out[k]);
        if (d->search.state[n->out[k]->id] == STATE_BAD) d->bad = true;
    }
    d->count++;
    return PLAN_GO;
}

void mpri_debug_frames_begin(DebugFrames *d, mpr_session *s)
{
    d->search.s = s;
    s->watch[WATCH_FRAMES] = watch;
    s->watch_user[WATCH_FRAMES] = d;
}

void mpri_debug_frames_text(const DebugFrames *d, Text *out)
{
    int64_t n = d->count < FRAMES ? d->count : FRAMES;
    mpri_text_add(out, "Last %lld frames:\nabs min  abs max  metadata", (long long)n);
    for (int64_t i = d->count - n; i < d->count; i++) {
        const Frame *f = &d->frame[i % FRAMES];
        mpri_text_add(out, "\n                  %s%s %s", f->backward ? "gradient of " : "",
                      f->node, f->op);
        for (int k = 0; k < f->n; k++)
            mpri_text_add(out, "\n%8.2e %8.2e %s %s", f->v[k].least, f->v[k].most,
                          f->v[k].output ? "output" : "input ", f->v[k].tensor);
    }
}

void mpri_debug_frames_free(DebugFrames *d)
{
    mpr_session *s = d->search.s;
    if (s) s->watch[WATCH_FRAMES] = NULL;
    if (d->open) mpri_search_close(&d->search);
    d->open = false;
}
