/* The scaler's state as JSON: torch's five keys first, then ours. Numbers are written so that they
 * read back to the same float, so save -> load -> save gives the same bytes. A file with only
 * torch's five keys loads with the limits and counters that are in force. A scale is written as the
 * exact double, as torch does: a reader of doubles sees the same value as one of floats. */
#include "runtime/train/scaler.h"

#include <math.h>
#include <string.h>

#include "runtime/train/json_read.h"

mpr_status mpri_scaler_save(mpr_scaler *sc, char **json, Err *err)
{
    *json = NULL;
    TRY(mpri_scaler_check_idle(sc, err));
    TRY(mpri_scaler_read(sc, err));
    Text t;
    mpri_text_init(&t, &sc->s->ctx->alloc);
    char a[32], b[32], c[32], d[32], e[32];
    const mpr_scaler_options *o = &sc->o;
    if (o->disabled) {
        mpri_text_put(&t, "{}");
    } else {
        mpri_text_add(&t,
                      "{\"scale\": %s, \"growth_factor\": %s, \"backoff_factor\": %s, "
                      "\"growth_interval\": %d, \"_growth_tracker\": %d, ",
                      mpri_print_f64(a, (double)sc->scale), mpri_print_f64(b, o->growth_factor),
                      mpri_print_f64(c, o->backoff_factor), o->growth_interval, sc->tracker);
        mpri_text_add(&t,
                      "\"min_scale\": %s, \"max_scale\": %s, \"hysteresis\": %d, "
                      "\"hysteresis_left\": %d, \"max_consecutive_skips\": %d, ",
                      mpri_print_f64(d, (double)o->min_scale),
                      isinf(o->max_scale) ? "\"inf\"" : mpri_print_f64(e, (double)o->max_scale),
                      o->hysteresis, sc->hysteresis_left, o->max_consecutive_skips);
        mpri_text_add(&t,
                      "\"constant\": %s, \"skips_in_row\": %d, \"skips\": %lld, \"updates\": %lld, "
                      "\"empty\": %lld}",
                      o->constant ? "true" : "false", sc->skips_in_row, (long long)sc->skips,
                      (long long)sc->updates, (long long)sc->empty);
    }
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(err, t.cap);
    }
    *json = t.text;
    return MPR_OK;
}

static mpr_status invalid(Err *err, const char *key, const char *what)
{
    mpri_err_set(err, MPR_E_CHECKPOINT, "state of the loss scaler: '%s' %s", key, what);
    return mpri_err_advice(
        err, "resume from another checkpoint, or start the scaler afresh (--fresh-scaler)");
}

/* A number, or "inf". Absent: *value stays, unless needed. */
static mpr_status read_number(const JsonObject *root, const char *key, bool needed, double *value,
                              Err *err)
{
    const JsonItem *v = mpri_json_find(root, key);
    if (!v) return needed ? invalid(err, key, "is missing") : MPR_OK;
    if (v->kind == JSON_KIND_STRING && v->size == 3 && !memcmp(v->text, "inf", 3)) {
        *value = INFINITY;
        return MPR_OK;
    }
    if (v->kind != JSON_KIND_NUMBER && v->kind != JSON_KIND_WHOLE)
        return invalid(err, key, "is not a number");
    *value = v->number;
    return MPR_OK;
}

static mpr_status read_count(const JsonObject *root, const char *key, bool needed, int64_t limit,
                             int64_t *value, Err *err)
{
    const JsonItem *v = mpri_json_find(root, key);
    if (!v) return needed ? invalid(err, key, "is missing") : MPR_OK;
    if (v->kind != JSON_KIND_WHOLE) return invalid(err, key, "is not a whole number");
    if (v->whole < 0 || v->whole > limit) return invalid(err, key, "is out of range");
    *value = v->whole;
    return MPR_OK;
}

static mpr_status load_root(mpr_scaler *sc, const JsonObject *root, Err *err)
{
    TRY(mpri_scaler_read(sc, err));
    mpr_scaler_options o = sc->o;
    double scale = 0, growth = 0, backoff = 0, min = o.min_scale, max = o.max_scale;
    int64_t interval = 0, tracker = 0, hysteresis = o.hysteresis,
            left = sc->hysteresis_left, limit = o.max_consecutive_skips;
    int64_t row = sc->skips_in_row, skips = sc->skips, updates = sc->updates, empty = sc->empty;
    TRY(read_number(root, "scale", true, &scale, err));
    TRY(read_number(root, "growth_factor", true, &growth, err));
    TRY(read_number(root, "backoff_factor", true, &backoff, err));
    TRY(read_count(root, "growth_interval", true, INT32_MAX, &interval, err));
    TRY(read_count(root, "_growth_tracker", true, INT32_MAX, &tracker, err));
    TRY(read_number(root, "min_scale", false, &min, err));
    TRY(read_number(root, "max_scale", false, &max, err));
    TRY(read_count(root, "hysteresis", false, INT32_MAX, &hysteresis, err));
    TRY(read_count(root, "hysteresis_left", false, INT32_MAX, &left, err));
    TRY(read_count(root, "max_consecutive_skips", false, INT32_MAX, &limit, err));
    TRY(read_count(root, "skips_in_row", false, INT32_MAX, &row, err));
    const int64_t most = (int64_t)1 << 53; /* counted in doubles */
    TRY(read_count(root, "skips", false, most, &skips, err));
    TRY(read_count(root, "updates", false, most, &updates, err));
    TRY(read_count(root, "empty", false, most, &empty, err));
    const JsonItem *constant = mpri_json_find(root, "constant");
    if (constant && constant->kind != JSON_KIND_TRUE && constant->kind != JSON_KIND_FALSE)
        return invalid(err, "constant", "is neither true nor false");
    if (constant) o.constant = constant->kind == JSON_KIND_TRUE;
    o.growth_factor = growth;
    o.backoff_factor = backoff;
    o.growth_interval = (int32_t)interval;
    o.min_scale = (float)min;
    o.max_scale = (float)max;
    o.hysteresis = (int32_t)hysteresis;
    o.max_consecutive_skips = (int32_t)limit;
    Err why;
    mpri_err_clear(&why);
    if (mpri_scaler_validate(&o, scale, &why) != MPR_OK) {
        mpri_err_set(err, MPR_E_CHECKPOINT, "state of the loss scaler is invalid: %s", why.message);
        return mpri_err_advice(
            err, "resume from another checkpoint, or start the scaler afresh (--fresh-scaler)");
    }
    if (left > hysteresis) return invalid(err, "hysteresis_left", "is above hysteresis");
    sc->o = o;
    sc->scale = (float)scale;
    sc->tracker = (int32_t)tracker;
    sc->hysteresis_left = (int32_t)left;
    sc->skips_in_row = (int32_t)row;
    sc->skips = skips;
    sc->updates = updates;
    sc->empty = empty;
    return mpri_scaler_write(sc, err);
}

mpr_status mpri_scaler_load(mpr_scaler *sc, const char *json, Err *err)
{
    if (sc->o.disabled) return MPR_OK;
    JsonObject root;
    if (!mpri_json_read(&root, json)) {
        mpri_err_set(err, MPR_E_CHECKPOINT, "state of the loss scaler is not a JSON object: %s",
                     root.problem);
        return mpri_err_advice(err,
                               "pass what mpr_scaler_save or torch's GradScaler.state_dict gave");
    }
    if (!root.n) {
        mpri_err_set(err, MPR_E_CHECKPOINT,
                     "the state is empty: it comes from a disabled loss scaler");
        return mpri_err_advice(err, "start the scaler afresh (--fresh-scaler)");
    }
    return load_root(sc, &root, err);
}
