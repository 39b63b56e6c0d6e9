/* The loss scale where the device can change it: slots in the session's store and small plans over
 * them, so that a step needs no value on the host. The fields of mpr_scaler are a copy of the slot;
 * `stale` says that the device has gone on since. */
#include "runtime/train/scaler.h"

#include <math.h>
#include <string.h>

#include "kernels/update_rule.h"
#include "runtime/train/optimizer.h"

/* ---- slots ---- */

static mpr_status own_slot(mpr_scaler *sc, const char *what, int64_t n, const char **name, Err *err)
{
    StoreSlot *slot;
    Shape shape = {.rank = n ? 1 : 0, .d = {n}};
    *name = mpri_arena_printf(&sc->arena, "scaler%d:%s", sc->s->scalers_made, what);
    if (!*name) return mpri_err_nomem(err, 0);
    return mpri_session_slot(sc->s, *name, SLOT_STATE, MPR_FLOAT64, &shape, -1, &slot, err);
}

static mpr_status put(mpr_scaler *sc, const char *name, int at, const double *v, int n, Err *err)
{
    StoreSlot *slot = mpri_store_find(&sc->s->store, name);
    Device *d = sc->s->device;
    return d->copy_in(d, (double *)slot->data + at, v, (size_t)n * sizeof(*v), err);
}

mpr_status mpri_scaler_write(mpr_scaler *sc, Err *err)
{
    const mpr_scaler_options *o = &sc->o;
    double state[SCALER_SIZE] = {
        [SCALER_SCALE] = (double)sc->scale,  [SCALER_TRACKER] = sc->tracker,
        [SCALER_LEFT] = sc->hysteresis_left, [SCALER_ROW] = sc->skips_in_row,
        [SCALER_SKIPS] = (double)sc->skips,  [SCALER_UPDATES] = (double)sc->updates,
        [SCALER_EMPTY] = (double)sc->empty,  [SCALER_FALLS] = sc->n_history,
    };
    const double rule[8] = {
        [RULE_GROWTH] = o->growth_factor,    [RULE_BACKOFF] = o->backoff_factor,
        [RULE_INTERVAL] = o->growth_interval, [RULE_MIN] = (double)o->min_scale,
        [RULE_MAX] = (double)o->max_scale,   [RULE_HYSTERESIS] = o->hysteresis,
        [RULE_CONSTANT] = o->constant,       [RULE_LIMIT] = o->max_consecutive_skips,
    };
    for (int i = 0; i < sc->n_history; i++) state[SCALER_FALL + i] = (double)sc->history[i];
    TRY(put(sc, sc->slot.state, 0, state, SCALER_SIZE, err));
    return put(sc, sc->slot.rule, 0, rule, 8, err);
}

void mpri_scaler_take(mpr_scaler *sc, const double *state)
{
    sc->scale = (float)state[SCALER_SCALE];
    sc->tracker = (int32_t)state[SCALER_TRACKER];
    sc->hysteresis_left = (int32_t)state[SCALER_LEFT];
    sc->skips_in_row = (int32_t)state[SCALER_ROW];
    sc->skips = (int64_t)state[SCALER_SKIPS];
    sc->updates = (int64_t)state[SCALER_UPDATES];
    sc->empty = (int64_t)state[SCALER_EMPTY];
    sc->n_history = (int)state[SCALER_FALLS];
    for (int i = 0; i < sc->n_history; i++) sc->history[i] = (float)state[SCALER_FALL + i];
}

mpr_status mpri_scaler_read(mpr_scaler *sc, Err *err)
{
    double state[SCALER_SIZE];
    StoreSlot *slot = mpri_store_find(&sc->s->store, sc->slot.state);
    Device *d = sc->s->device;
    if (!sc->stale) return MPR_OK;
    TRY(d->copy_out(d, state, slot->data, sizeof(state), err));
    sc->stale = false;
    mpri_scaler_take(sc, state);
    return MPR_OK;
}

mpr_status mpri_scaler_write_scale(mpr_scaler *sc, float scale, Err *err)
{
    const double v = (double)scale;
    sc->scale = scale;
    return put(sc, sc->slot.state, SCALER_SCALE, &v, 1, err);
}

mpr_status mpri_scaler_slots(mpr_scaler *sc, Err *err)
{
    mpri_arena_init(&sc->arena, &sc->s->ctx->alloc, 0);
    TRY(own_slot(sc, "state", SCALER_SIZE, &sc->slot.state, err));
    TRY(own_slot(sc, "rule", 8, &sc->slot.rule, err));
    TRY(own_slot(sc, "divisor", 0, &sc->slot.divisor, err));
    sc->s->scalers_made++;
    return mpri_scaler_write(sc, err);
}

/* ---- plans ---- */

mpr_status mpri_scaler_over(mpr_scaler *sc, const char *slot, double divisor, Plan **plan, Err *err)
{
    const char *const slots[] = {slot, sc->slot.state, sc->slot.divisor};
    TRY(put(sc, sc->slot.divisor, 0, &divisor, 1, err));
    return mpri_session_run_slots(sc->s, &mpri_op_LossScale, slots, 3, plan, err);
}

mpr_status mpri_scaler_next(mpr_scaler *sc, Err *err)
{
    bool same = sc->update_plan != NULL;
    int n = 2;
    for (int i = 0; i < sc->n_entries; i++) {
        same &= sc->entries[i].planned == sc->entries[i].checked;
        n += sc->entries[i].checked;
    }
    if (!same) {
        mpri_plan_destroy(sc->update_plan);
        sc->update_plan = NULL;
    }
    const char **slots = NULL;
    if (!same) {
        slots = mpri_context_alloc(sc->s->ctx, (size_t)n * sizeof(*slots));
        if (!slots) return mpri_err_nomem(err, (size_t)n * sizeof(*slots));
        n = 0;
        slots[n++] = sc->slot.state;
        slots[n++] = sc->slot.rule;
        for (int i = 0; i < sc->n_entries; i++) {
            sc->entries[i].planned = sc->entries[i].checked;
            if (sc->entries[i].checked) slots[n++] = sc->entries[i].opt->state.name;
        }
    }
    sc->stale = true;
    mpr_status status =
        mpri_session_run_slots(sc->s, &mpri_op_ScaleUpdate, slots, n, &sc->update_plan, err);
    mpri_free(&sc->s->ctx->alloc, (void *)slots);
    return status;
}

void mpri_scaler_plans_free(mpr_scaler *sc)
{
    mpri_plan_destroy(sc->seed_plan);
    mpri_plan_destroy(sc->update_plan);
    for (int i = 0; i < sc->n_entries; i++) mpri_plan_destroy(sc->entries[i].scale_plan);
    sc->seed_plan = sc->update_plan = NULL;
}
