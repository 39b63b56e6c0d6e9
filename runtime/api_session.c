/* Body of mpr.h: sessions, parameters, optimizers, the loss scaler. */
#include <string.h>

#include "runtime/train/optimizer.h"
#include "runtime/train/forensics.h"
#include "runtime/train/scaler.h"
#include "runtime/train/session.h"

/* ---- session ---- */

mpr_status mpr_session_open(mpr_model *model, const mpr_session_options *options, mpr_session **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_session_open(model, options, out, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_session_close(mpr_session *s)
{
    if (mpri_handle_is(s, HANDLE_SESSION)) mpri_session_close(s);
}

mpr_status mpr_session_bind(mpr_session *s, const char *name, const void *data, mpr_dtype dtype,
                            const int64_t *shape, int rank)
{
    ApiCall c;
    if (!mpri_api_enter_late(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK && rank > 0) status = mpri_api_pointer(shape, "shape", c.err);
    if (status == MPR_OK) status = mpri_session_bind(s, name, data, dtype, shape, rank, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_forward(mpr_session *s, float *loss)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    return mpri_api_leave(&c, mpri_session_forward(s, loss, c.err));
}

mpr_status mpr_session_evaluate(mpr_session *s, float *loss)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    return mpri_api_leave(&c, mpri_session_evaluate(s, loss, c.err));
}

mpr_status mpr_session_backward(mpr_session *s, mpr_scaler *scaler)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = MPR_OK;
    if (scaler) {
        status = mpri_api_argument(scaler, HANDLE_SCALER, c.err);
        if (status == MPR_OK) status = mpri_api_same(scaler->s, s, "scaler", c.err);
    }
    if (status == MPR_OK) status = mpri_session_backward(s, scaler, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_set_loss_divisor(mpr_session *s, float divisor)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    if (divisor > 0 && divisor <= 1e9f) {
        s->loss_divisor = divisor;
        return mpri_api_leave(&c, MPR_OK);
    }
    mpri_err_set(c.err, MPR_E_USAGE, "loss divisor %g; allowed are 0 < divisor <= 1e9",
                 (double)divisor);
    return mpri_api_leave(&c,
                          mpri_err_advice(c.err, "pass the number of micro-batches of a window"));
}

mpr_status mpr_session_zero_grad(mpr_session *s)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    return mpri_api_leave(&c, mpri_session_zero_grad(s, c.err));
}

static mpr_status find_nonfinite(mpr_session *s, mpr_nonfinite *out, Err *err)
{
    size_t size = out->size && out->size < sizeof(*out) ? out->size : sizeof(*out);
    if (!s->forward_count) {
        mpri_err_set(err, MPR_E_ORDER, "there is no batch to look at: no forward pass has run");
        return mpri_err_advice(err, "call mpr_session_forward first");
    }
    if (!s->nonfinite) s->nonfinite = ARENA_NEW(&s->arena, NonFinite);
    if (!s->nonfinite) return mpri_err_nomem(err, sizeof(NonFinite));
    NonFinite *f = s->nonfinite;
    mpr_nonfinite r = {.size = size, .text = "", .advice = "", .tensor = "", .node = "", .op = ""};
    if (mpri_forensics_window(s, f)) {
        r = (mpr_nonfinite){.size = size,
                            .found = true,
                            .text = f->text,
                            .advice = f->advice,
                            .tensor = f->tensor,
                            .node = f->node,
                            .op = f->op,
                            .backward = f->kind == BAD_BACKWARD,
                            .is_nan = f->is_nan,
                            .elements = f->range.n,
                            .nans = f->range.nan,
                            .infs = f->range.inf + f->range.minus_inf,
                            .first = f->range.first,
                            .low = f->range.low,
                            .high = f->range.high,
                            .micro_batch = f->micro,
                            .micro_batches = f->micros};
    }
    memcpy(out, &r, size);
    return MPR_OK;
}

mpr_status mpr_session_find_nonfinite(mpr_session *s, mpr_nonfinite *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = find_nonfinite(s, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_output(mpr_session *s, const char *name, mpr_tensor *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK) status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_session_output(s, name, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_label_count(mpr_session *s, double *count)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(count, "count", c.err);
    if (status == MPR_OK) status = mpri_session_label_count(s, count, c.err);
    return mpri_api_leave(&c, status);
}

/* ---- parameters ---- */

int mpr_session_parameter_count(const mpr_session *s)
{
    return mpri_handle_is(s, HANDLE_SESSION) ? s->n_params : 0;
}

mpr_status mpr_session_parameter(const mpr_session *s, int index, mpr_parameter_info *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK && (index < 0 || index >= s->n_params)) {
        mpri_err_set(c.err, MPR_E_USAGE, "parameter %d of %d", index, s->n_params);
        status = mpri_err_advice(c.err, "count from 0");
    }
    if (status == MPR_OK)
        mpri_param_describe(&s->graph[MODE_TRAIN]->params[s->params[index].index], out);
    return mpri_api_leave(&c, status);
}

typedef mpr_status (*ReadFn)(mpr_session *, const char *, float *, int64_t, Err *);
typedef mpr_status (*WriteFn)(mpr_session *, const char *, const float *, int64_t, Err *);

static mpr_status read_floats(mpr_session *s, const char *name, float *data, int64_t count,
                              ReadFn fn)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK) status = mpri_api_pointer(data, "data", c.err);
    if (status == MPR_OK) status = fn(s, name, data, count, c.err);
    return mpri_api_leave(&c, status);
}

static mpr_status write_floats(mpr_session *s, const char *name, const float *data, int64_t count,
                               WriteFn fn)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK) status = mpri_api_pointer(data, "data", c.err);
    if (status == MPR_OK) status = fn(s, name, data, count, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_parameter_get(mpr_session *s, const char *name, float *data, int64_t count)
{
    return read_floats(s, name, data, count, mpri_session_param_get);
}

mpr_status mpr_session_parameter_set(mpr_session *s, const char *name, const float *data,
                                     int64_t count)
{
    return write_floats(s, name, data, count, mpri_session_param_set);
}

mpr_status mpr_session_gradient_get(mpr_session *s, const char *name, float *data, int64_t count)
{
    return read_floats(s, name, data, count, mpri_session_grad_get);
}

mpr_status mpr_session_gradient_set(mpr_session *s, const char *name, const float *data,
                                    int64_t count)
{
    return write_floats(s, name, data, count, mpri_session_grad_set);
}

mpr_status mpr_session_export(mpr_session *s, const char *path)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(path, "path", c.err);
    if (status == MPR_OK) status = mpri_session_export(s, path, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_memory(mpr_session *s, mpr_memory_bill *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_session_memory(s, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_flops(mpr_session *s, bool train, double *flops)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(flops, "flops", c.err);
    if (status == MPR_OK) status = mpri_session_flops(s, train, flops, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_session_plan_print(mpr_session *s, char **text)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(text, "text", c.err);
    if (status == MPR_OK) status = mpri_session_plan_print(s, text, c.err);
    return mpri_api_leave(&c, status);
}

/* ---- optimizers ---- */

mpr_status mpr_optimizer_adamw(mpr_session *s, const mpr_adamw *options, mpr_optimizer **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_optimizer_adamw(s, options, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_optimizer_sgd(mpr_session *s, const mpr_sgd *options, mpr_optimizer **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_optimizer_sgd(s, options, out, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_optimizer_destroy(mpr_optimizer *opt)
{
    if (mpri_handle_is(opt, HANDLE_OPTIMIZER)) mpri_optimizer_destroy(opt);
}

mpr_status mpr_optimizer_set_learning_rate(mpr_optimizer *opt, double learning_rate)
{
    ApiCall c;
    if (!mpri_api_enter(&c, opt, HANDLE_OPTIMIZER)) return c.status;
    return mpri_api_leave(&c, mpri_optimizer_set_rate(opt, learning_rate, c.err));
}

double mpr_optimizer_learning_rate(const mpr_optimizer *opt)
{
    return mpri_handle_is(opt, HANDLE_OPTIMIZER) ? mpri_optimizer_rate(opt) : 0;
}

mpr_status mpr_optimizer_clip_grad_norm(mpr_optimizer *opt, float max_norm, float *norm)
{
    ApiCall c;
    if (!mpri_api_enter(&c, opt, HANDLE_OPTIMIZER)) return c.status;
    return mpri_api_leave(&c, mpri_optimizer_clip(opt, max_norm, norm, c.err));
}

mpr_status mpr_optimizer_step(mpr_optimizer *opt, mpr_step_outcome *outcome)
{
    ApiCall c;
    if (!mpri_api_enter(&c, opt, HANDLE_OPTIMIZER)) return c.status;
    return mpri_api_leave(&c, mpri_optimizer_step(opt, outcome, c.err));
}

/* ---- loss scaler ---- */

mpr_status mpr_scaler_create(mpr_session *s, const mpr_scaler_options *options, mpr_scaler **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_scaler_options o;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK)
        status = mpri_take_options(&o, sizeof(o), options, "mpr_scaler_options", c.err);
    if (status == MPR_OK) {
        o = mpri_scaler_fill(&o);
        status = mpri_scaler_create(s, &o, out, c.err);
    }
    return mpri_api_leave(&c, status);
}

void mpr_scaler_destroy(mpr_scaler *scaler)
{
    if (mpri_handle_is(scaler, HANDLE_SCALER)) mpri_scaler_destroy(scaler);
}

static mpr_status check_optimizer(const mpr_scaler *scaler, const mpr_optimizer *opt, Err *err)
{
    TRY(mpri_api_argument(opt, HANDLE_OPTIMIZER, err));
    return mpri_api_same(scaler->s, opt->s, "optimizer", err);
}

mpr_status mpr_scaler_unscale(mpr_scaler *scaler, mpr_optimizer *opt)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = check_optimizer(scaler, opt, c.err);
    if (status == MPR_OK) status = mpri_scaler_unscale(scaler, opt, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_scaler_step(mpr_scaler *scaler, mpr_optimizer *opt, mpr_step_outcome *outcome)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = check_optimizer(scaler, opt, c.err);
    if (status == MPR_OK) status = mpri_scaler_step(scaler, opt, outcome, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_scaler_outcome(mpr_scaler *scaler, mpr_optimizer *opt, mpr_step_outcome *outcome)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = check_optimizer(scaler, opt, c.err);
    if (status == MPR_OK) status = mpri_api_pointer(outcome, "outcome", c.err);
    if (status == MPR_OK) status = mpri_scaler_outcome(scaler, opt, outcome, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_scaler_update(mpr_scaler *scaler)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    return mpri_api_leave(&c, mpri_scaler_update(scaler, c.err));
}

mpr_status mpr_scaler_update_to(mpr_scaler *scaler, float scale)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    return mpri_api_leave(&c, mpri_scaler_update_to(scaler, scale, c.err));
}

mpr_status mpr_scaler_abandon(mpr_scaler *scaler)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    return mpri_api_leave(&c, mpri_scaler_abandon(scaler, c.err));
}

float mpr_scaler_scale(const mpr_scaler *scaler)
{
    if (!mpri_handle_is(scaler, HANDLE_SCALER)) return 0;
    mpr_scaler *sc = (mpr_scaler *)(uintptr_t)scaler;
    Err err;
    mpri_err_clear(&err);
    if (sc->o.disabled) return 1;
    return mpri_scaler_read(sc, &err) == MPR_OK ? sc->scale : 0;
}

mpr_status mpr_scaler_set(mpr_scaler *scaler, const char *option, double value)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = mpri_api_pointer(option, "option", c.err);
    if (status == MPR_OK) status = mpri_scaler_set(scaler, option, value, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_scaler_state_get(const mpr_scaler *scaler, mpr_scaler_state *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_scaler_state((mpr_scaler *)(uintptr_t)scaler, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_scaler_save(mpr_scaler *scaler, char **json)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = mpri_api_pointer(json, "json", c.err);
    if (status == MPR_OK) status = mpri_scaler_save(scaler, json, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_scaler_load(mpr_scaler *scaler, const char *json)
{
    ApiCall c;
    if (!mpri_api_enter(&c, scaler, HANDLE_SCALER)) return c.status;
    mpr_status status = mpri_api_pointer(json, "json", c.err);
    if (status == MPR_OK) status = mpri_scaler_load(scaler, json, c.err);
    return mpri_api_leave(&c, status);
}
