/* The loop where the host looks late: on a device with memory of its own a window is given whole, nothing
 * of it is waited for, and what came of it is read some steps later (kernels/ledger_rule.h has the idea).
 *
 * The records arrive in the order of the steps, and each is told as if its step had just ended. An eventful
 * step was held: everything goes back to where its window began, and it and what followed is run again by
 * the way of devices that the host looks at all the time (prepare.c), with batches that the data set binds
 * again or that were kept (prepare_kept.c). Whoever wants to know something settles first. */
#include "runtime/train/prepare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/ledger_rule.h"

enum { RATES = CLOSE_SIZE - CLOSE_RATE };
_Static_assert((int)LATE_STEPS < (int)DEVICE_LATE && (int)LATE_STEPS < (int)RATES, "places, rates");
_Static_assert(RECORD_SIZE * sizeof(double) <= DEVICE_LATE_BYTES &&
                   (int)LEDGER_RECORD + (int)RECORD_SIZE <= (int)LEDGER_SIZE, "room for a record");

static LateMark *oldest(PreparedLate *l)
{
    return &l->mark[l->first % LATE_PLACES];
}

/* ---- slots ---- */

static mpr_status own_slot(mpr_prepared *p, const char *what, DType t, const Shape *shape,
                           const char **name, Err *err)
{
    StoreSlot *slot;
    *name = mpri_arena_printf(&p->scaler->arena, "%s.%s", p->scaler->slot.state, what);
    if (!*name) return mpri_err_nomem(err, 0);
    return mpri_session_slot(p->s, *name, SLOT_STATE, t, shape, -1, &slot, err);
}

static mpr_status numbers_slot(mpr_prepared *p, const char *what, int n, const char **name, Err *err)
{
    return own_slot(p, what, MPR_FLOAT64, &(Shape){.rank = 1, .d = {n}}, name, err);
}

/* Running statistics change in the forward pass: what they were is kept. */
static mpr_status keep_slots(mpr_prepared *p, Err *err)
{
    const mpr_session *s = p->s;
    PreparedLate *l = &p->late;
    l->n_kept = 0;
    l->kept = ARENA_ARRAY(&p->scaler->arena, const char *, UPDATE_FIRST + 2 * s->n_buffers);
    if (!l->kept) return mpri_err_nomem(err, 0);
    l->kept[l->n_kept++] = l->ledger;
    l->kept[l->n_kept++] = l->close;
    for (int i = 0; i < s->n_buffers; i++) {
        const StoreSlot *slot = mpri_store_find(&s->store, s->buffers[i].slot);
        if (!slot) continue;
        Shape shape = slot->shape;
        l->kept[l->n_kept++] = s->buffers[i].slot;
        TRY(own_slot(p, s->buffers[i].slot, MPR_FLOAT32, &shape, &l->kept[l->n_kept++], err));
    }
    return MPR_OK;
}

static mpr_status make_slots(mpr_prepared *p, Err *err)
{
    PreparedLate *l = &p->late;
    if (l->ready) return MPR_OK;
    TRY(numbers_slot(p, "ledger", LEDGER_SIZE, &l->ledger, err));
    TRY(numbers_slot(p, "note", NOTE_SIZE, &l->note, err));
    TRY(numbers_slot(p, "close", CLOSE_SIZE, &l->close, err));
    TRY(keep_slots(p, err));
    l->ready = true;
    return MPR_OK;
}

static void *data_of(const mpr_prepared *p, const char *slot)
{
    return mpri_store_find(&p->s->store, slot)->data;
}

static mpr_status put(mpr_prepared *p, const char *slot, const double *v, int n, Err *err)
{
    Device *d = p->s->device;
    return d->copy_in(d, data_of(p, slot), v, (size_t)n * sizeof *v, err);
}

void mpri_late_free(mpr_prepared *p)
{
    for (int i = 0; i < LATE_PLANS; i++) mpri_plan_destroy(p->late.plan[i]);
    mpri_late_kept_free(p);
    if (p->s->late == p) p->s->late = NULL;
}

/* ---- a window that the host does not look at ---- */

/* Why the host has to look at the steps of such a loop; NULL: it need not. */
static const char *why_not(const mpr_prepared *p)
{
    const mpr_session *s = p->s;
    if (!p->data && !mpri_window_fits(s, LATE_PLACES * p->o.gradient_accumulation_steps))
        return "the batches are too large to be kept";
    if (!mpri_scaler_enabled(p->scaler)) return "the loss scaler is disabled";
    if (p->o.mean_over_labels && s->o.count_labels) return "the model counts the labels";
    return s->watch[WATCH_FRAMES] ? "every tensor is looked at" : NULL;
}

static bool able(mpr_prepared *p)
{
    const mpr_session *s = p->s;
    if (!s->device->late_copy || p->late.again) return false;
    const char *why = why_not(p);
    if (why && !p->late.said)
        mpri_log(&s->ctx->log, MPR_LOG_NOTICE, "the host waits for every step: %s", why);
    p->late.said |= why != NULL;
    return !why && !s->watch[WATCH_STATS];
}

/* Does the host look at the window that is open? Where it does not, nothing is kept for a search in it. */
static void set_open(mpr_prepared *p, bool open)
{
    p->late.open = open;
    p->s->window_elsewhere = open || p->data;
}

static LateMark mark(const mpr_prepared *p)
{
    return (LateMark){p->epoch, p->batch, p->steps, p->samples, p->s->forward_count,
                      p->s->generation, p->scaler->generation};
}

mpr_status mpri_late_begin(mpr_prepared *p, bool looked_at, Err *err)
{
    PreparedLate *l = &p->late;
    mpr_session *s = p->s;
    if (s->late && s->late != p) TRY(mpri_prepared_settle(s->late, err));
    if (looked_at || !able(p)) return mpri_prepared_settle(p, err);
    TRY(make_slots(p, err));
    if (!l->fresh) {
        const double ledger[LEDGER_RECORD] = {[LEDGER_UPDATES] = (double)p->updates};
        TRY(put(p, l->ledger, ledger, LEDGER_RECORD, err));
    }
    if (l->n_kept > UPDATE_FIRST)
        TRY(mpri_session_run_slots(s, &mpri_op_LedgerKeep, l->kept, l->n_kept, &l->plan[LATE_KEEP],
                                   err));
    s->late = p;
    l->fresh = true;
    set_open(p, true);
    l->start = mark(p);
    return MPR_OK;
}

mpr_status mpri_late_loss(mpr_prepared *p, double weight, Err *err)
{
    static const Shape scalar = {.rank = 0};
    PreparedLate *l = &p->late;
    Device *d = p->s->device;
    const Plan *plan = p->s->current->plan;
    const Value *v = mpri_plan_output(plan, "loss");
    const void *data = v ? mpri_plan_value_data(plan, v) : NULL;
    if (!data) return mpri_err_set(err, MPR_E_INTERNAL, "the plan has no loss");
    if (!l->loss) TRY(own_slot(p, "loss", v->dtype, &scalar, &l->loss, err));
    const double note[NOTE_SIZE] = {[NOTE_FIRST] = p->micro == 0, [NOTE_WEIGHT] = weight};
    const char *const slots[] = {l->ledger, l->note, l->loss};
    TRY(put(p, l->note, note, NOTE_SIZE, err));
    TRY(d->move(d, data_of(p, l->loss), data, mpri_dtype_size(v->dtype), err));
    return mpri_session_run_slots(p->s, &mpri_op_LedgerLoss, slots, 3, &l->plan[LATE_LOSS], err);
}

/* The numbers of the window's end. False: something is unusual, the host has to look. */
static bool fill_close(const mpr_prepared *p, bool eager, double close[CLOSE_SIZE])
{
    bool usual = p->weight > 0 && mpri_optimizer_any_present(p->opt);
    close[CLOSE_UPDATES] = (double)p->updates;
    close[CLOSE_EAGER] = eager;
    close[CLOSE_WEIGHT] = p->weight;
    for (int k = 0; k < RATES; k++) {
        int64_t updates = p->updates + (k < p->late.n ? k : p->late.n);
        double rate = p->base_rate * (p->schedule ? mpri_schedule_factor(p->schedule, updates) : 1);
        usual &= rate >= 0 && isfinite(rate);
        close[CLOSE_RATE + k] = rate;
    }
    return usual;
}

/* As close_window in prepare.c, and nothing is read. */
static mpr_status give(mpr_prepared *p, const double close[CLOSE_SIZE], Err *err)
{
    PreparedLate *l = &p->late;
    mpr_scaler *sc = p->scaler;
    mpr_optimizer *opt = p->opt;
    const char *const judge[] = {l->ledger,       l->close,       opt->state.name,
                                 opt->hyper.name, sc->slot.state, sc->slot.rule};
    const char *const end[] = {l->ledger, l->close, opt->state.name, sc->slot.state, sc->slot.rule};
    Device *d = p->s->device;
    TRY(put(p, l->close, close, CLOSE_SIZE, err));
    sc->extra = p->divisor / p->weight;
    TRY(mpri_scaler_unscale(sc, opt, err));
    TRY(mpri_optimizer_clip(opt, p->o.max_grad_norm, NULL, err));
    TRY(mpri_session_run_slots(p->s, &mpri_op_LedgerJudge, judge, 6, &l->plan[LATE_JUDGE], err));
    opt->rate_there = true;
    mpr_status status = mpri_scaler_step(sc, opt, NULL, err);
    opt->rate_there = false;
    TRY(status);
    TRY(mpri_session_run_slots(p->s, &mpri_op_LedgerClose, end, 5, &l->plan[LATE_CLOSE], err));
    sc->stale = true;
    TRY(mpri_scaler_abandon(sc, err)); /* the stages of the next window; the scale is the ledger's */
    int place = (l->first + l->n) % LATE_PLACES;
    const char *record = (const char *)data_of(p, l->ledger) + LEDGER_RECORD * sizeof(double);
    TRY(d->late_copy(d, place, record, RECORD_SIZE * sizeof(double), err));
    l->mark[place] = l->start;
    l->n++;
    set_open(p, false);
    p->steps++;
    p->length = p->micro = 0;
    return mpri_session_zero_grad(p->s, err);
}

/* ---- what came of it ---- */

static mpr_status take(mpr_prepared *p, bool *held, Err *err)
{
    PreparedLate *l = &p->late;
    mpr_scaler *sc = p->scaler;
    Device *d = p->s->device;
    double record[RECORD_SIZE];
    TRY(d->late_take(d, l->first % LATE_PLACES, record, sizeof record, err));
    *held = record[RECORD_HELD] != 0;
    if (*held) return MPR_OK;
    int64_t step = oldest(l)->steps + 1;
    bool skipped = record[RECORD_SKIPPED] != 0;
    l->first = (l->first + 1) % LATE_PLACES;
    l->n--;
    p->updates = (int64_t)record[RECORD_UPDATES];
    p->loss_sum = record[RECORD_SUM];
    mpri_scaler_take(sc, record + RECORD_SCALER);
    sc->stale = l->n > 0;
    if (skipped) {
        snprintf(p->first_bad, sizeof p->first_bad, "a gradient overflowed");
    } else {
        sc->first_bad[0] = sc->advice[0] = 0;
        sc->searched = false;
    }
    TRY(mpri_optimizer_set_rate(p->opt, record[RECORD_RATE], err));
    mpr_step_result r = {
        .outcome = skipped ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED,
        .loss = (float)record[RECORD_LOSS],
        .grad_norm = (float)record[RECORD_NORM],
        .scale = (float)record[RECORD_SCALE],
        .learning_rate = record[RECORD_RATE],
        .first_bad = skipped ? p->first_bad : NULL,
    };
    return mpri_prepared_tell(p, step, &r, MPR_OK, err);
}

mpr_status mpri_late_go_back(mpr_prepared *p, const LateMark *m, Err *err)
{
    PreparedLate *l = &p->late;
    mpr_session *s = p->s;
    Device *d = s->device;
    for (int i = UPDATE_FIRST; i < l->n_kept; i += 2) {
        const StoreSlot *to = mpri_store_find(&s->store, l->kept[i]);
        TRY(d->move(d, to->data, data_of(p, l->kept[i + 1]), to->bytes, err));
    }
    TRY(mpri_fault_clear(d, err));
    TRY(mpri_scaler_abandon(p->scaler, err));
    p->epoch = m->epoch;
    p->batch = m->batch;
    p->steps = m->steps;
    p->samples = m->samples;
    s->forward_count = m->forward;
    s->generation = m->generation;
    p->scaler->generation = m->scaler_generation;
    p->scaler->stale = true;
    p->opt->measured = false;
    p->length = p->micro = 0;
    p->bound = false;
    s->forward_done = false;
    l->n = 0;
    l->fresh = false;
    set_open(p, false);
    return mpri_session_zero_grad(s, err);
}

/* Once more from m on, and the host looks at everything. */
static mpr_status replay(mpr_prepared *p, int64_t steps, int micro, Err *err)
{
    while (p->steps < steps || p->micro < micro) {
        bool more;
        TRY(mpri_prepared_next(p, &more, err));
        if (!more) return mpri_err_set(err, MPR_E_INTERNAL, "a step cannot be run again");
        TRY(mpri_prepared_backward(p, NULL, err));
        if (p->micro == p->length && p->steps < steps) TRY(mpri_prepared_step(p, NULL, err));
    }
    return MPR_OK;
}

static mpr_status again(mpr_prepared *p, const LateMark *m, Err *err)
{
    const LateMark from = *m;
    int64_t steps = p->steps;
    int micro = p->micro;
    bool bound = p->bound, more;
    if (!p->data) return mpri_late_replay_kept(p, &from, err);
    TRY(mpri_late_go_back(p, &from, err));
    p->late.again = true;
    mpr_status status = replay(p, steps, micro, err);
    if (status == MPR_OK && bound) status = mpri_prepared_next(p, &more, err);
    p->late.again = false;
    return status;
}

/* The window that is open goes on with the host looking. */
static mpr_status look_at_window(mpr_prepared *p, Err *err)
{
    PreparedLate *l = &p->late;
    Device *d = p->s->device;
    double ledger[LEDGER_RECORD];
    bool wrong;
    TRY(d->copy_out(d, ledger, data_of(p, l->ledger), sizeof ledger, err));
    TRY(mpri_fault_there(d, &wrong, err));
    set_open(p, false);
    if (!p->micro) return MPR_OK;
    if (wrong || ledger[LEDGER_BAD] != 0 || !p->data) return again(p, &l->start, err);
    p->loss_sum = ledger[LEDGER_LOSS];
    return MPR_OK;
}

mpr_status mpri_prepared_settle(mpr_prepared *p, Err *err)
{
    PreparedLate *l = &p->late;
    while (l->n) {
        bool held;
        TRY(take(p, &held, err));
        if (held) return again(p, oldest(l), err);
    }
    return l->open ? look_at_window(p, err) : MPR_OK;
}

mpr_status mpri_late_step(mpr_prepared *p, mpr_step_result *result, bool *done, Err *err)
{
    double close[CLOSE_SIZE];
    bool held = false;
    *done = fill_close(p, result != NULL, close);
    if (!*done) return mpri_prepared_settle(p, err);
    TRY(give(p, close, err));
    if (result) {
        p->last = (mpr_step_result){.outcome = MPR_STEP_NOTHING};
        mpr_status status = mpri_prepared_settle(p, err);
        *result = p->last;
        return status;
    }
    if (p->late.n <= LATE_STEPS) return MPR_OK;
    TRY(take(p, &held, err));
    return held ? again(p, oldest(&p->late), err) : MPR_OK;
}

mpr_status mpri_session_settle(Handle *session, Err *err)
{
    mpr_session *s = (mpr_session *)session;
    return s->late ? mpri_prepared_settle(s->late, err) : MPR_OK;
}
