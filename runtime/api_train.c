/* Body of mpr.h: data, schedules, prepare, trainer. */
#include <string.h>

#include "runtime/train/prepare.h"
#include "runtime/train/trainer.h"

/* ---- data and schedules ---- */

mpr_status mpr_dataset_open(mpr_session *s, const char *const *files, int n_files,
                            const mpr_dataset_options *options, mpr_dataset **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK && n_files > 0) status = mpri_api_pointer(files, "files", c.err);
    for (int i = 0; status == MPR_OK && i < n_files; i++)
        status = mpri_api_pointer(files[i], "files[i]", c.err);
    if (status == MPR_OK) status = mpri_dataset_open(s, files, n_files, options, out, c.err);
    return mpri_api_leave(&c, status);
}

int64_t mpr_dataset_rows(const mpr_dataset *d)
{
    return mpri_handle_is(d, HANDLE_DATASET) ? d->rows : 0;
}

int64_t mpr_dataset_batches(const mpr_dataset *d)
{
    return mpri_handle_is(d, HANDLE_DATASET) ? mpri_dataset_batches(d) : 0;
}

mpr_status mpr_dataset_bind(mpr_dataset *d, int64_t epoch, int64_t batch, int64_t *rows)
{
    ApiCall c;
    if (!mpri_api_enter_late(&c, d, HANDLE_DATASET)) return c.status;
    return mpri_api_leave(&c, mpri_dataset_bind(d, epoch, batch, rows, c.err));
}

void mpr_dataset_close(mpr_dataset *d)
{
    if (mpri_handle_is(d, HANDLE_DATASET)) mpri_dataset_close(d);
}

mpr_status mpr_schedule_create(mpr_session *s, const mpr_schedule_options *options,
                               mpr_schedule **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_schedule_create(s, options, out, c.err);
    return mpri_api_leave(&c, status);
}

double mpr_schedule_factor(const mpr_schedule *schedule, int64_t updates)
{
    return mpri_handle_is(schedule, HANDLE_SCHEDULE) ? mpri_schedule_factor(schedule, updates) : 0;
}

void mpr_schedule_destroy(mpr_schedule *schedule)
{
    if (mpri_handle_is(schedule, HANDLE_SCHEDULE)) mpri_schedule_destroy(schedule);
}

/* ---- prepare ---- */

static mpr_status check_parts(mpr_session *s, mpr_optimizer *opt, mpr_dataset *data,
                              mpr_schedule *schedule, Err *err)
{
    TRY(mpri_api_argument(opt, HANDLE_OPTIMIZER, err));
    TRY(mpri_api_same(opt->s, s, "optimizer", err));
    if (data) {
        TRY(mpri_api_argument(data, HANDLE_DATASET, err));
        TRY(mpri_api_same(data->s, s, "data set", err));
    }
    if (!schedule) return MPR_OK;
    TRY(mpri_api_argument(schedule, HANDLE_SCHEDULE, err));
    return mpri_api_same(schedule->s, s, "schedule", err);
}

mpr_status mpr_prepare(mpr_session *s, mpr_optimizer *opt, mpr_dataset *data,
                       mpr_schedule *schedule, const mpr_prepare_options *options,
                       mpr_prepared **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, s, HANDLE_SESSION)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = check_parts(s, opt, data, schedule, c.err);
    if (status == MPR_OK) status = mpri_prepare(s, opt, data, schedule, options, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_prepared_next(mpr_prepared *p, bool *more)
{
    ApiCall c;
    if (!mpri_api_enter(&c, p, HANDLE_PREPARED)) return c.status;
    mpr_status status = mpri_api_pointer(more, "more", c.err);
    if (status == MPR_OK) status = mpri_prepared_next(p, more, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_prepared_backward(mpr_prepared *p, float *loss)
{
    ApiCall c;
    if (!mpri_api_enter(&c, p, HANDLE_PREPARED)) return c.status;
    return mpri_api_leave(&c, mpri_prepared_backward(p, loss, c.err));
}

mpr_status mpr_prepared_step(mpr_prepared *p, mpr_step_result *result)
{
    ApiCall c;
    if (!mpri_api_enter(&c, p, HANDLE_PREPARED)) return c.status;
    return mpri_api_leave(&c, mpri_prepared_step(p, result, c.err));
}

mpr_status mpr_prepared_position(const mpr_prepared *p, int64_t *epoch, int64_t *batch,
                                 int64_t *steps, int64_t *updates)
{
    ApiCall c;
    if (!mpri_api_enter(&c, p, HANDLE_PREPARED)) return c.status;
    mpr_status status = mpri_prepared_settle((mpr_prepared *)(uintptr_t)p, c.err);
    if (epoch) *epoch = p->epoch;
    if (batch) *batch = p->batch;
    if (steps) *steps = p->steps;
    if (updates) *updates = p->updates;
    return mpri_api_leave(&c, status);
}

mpr_status mpr_prepared_save(mpr_prepared *p, const char *directory)
{
    ApiCall c;
    if (!mpri_api_enter(&c, p, HANDLE_PREPARED)) return c.status;
    mpr_status status = mpri_api_pointer(directory, "directory", c.err);
    if (status == MPR_OK) status = mpri_prepared_settle(p, c.err);
    if (status == MPR_OK) status = mpri_checkpoint_save(p, directory, NULL, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_prepared_load(mpr_prepared *p, const char *directory)
{
    ApiCall c;
    if (!mpri_api_enter(&c, p, HANDLE_PREPARED)) return c.status;
    mpr_status status = mpri_api_pointer(directory, "directory", c.err);
    if (status == MPR_OK) status = mpri_prepared_settle(p, c.err);
    if (status == MPR_OK) status = mpri_checkpoint_load(p, directory, NULL, NULL, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_prepared_destroy(mpr_prepared *p)
{
    if (mpri_handle_is(p, HANDLE_PREPARED)) mpri_prepared_destroy(p);
}

/* ---- options ---- */

mpr_status mpr_trainer_options_create(mpr_context *ctx, mpr_trainer_options **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_options_create(ctx, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_trainer_options_set(mpr_trainer_options *o, const char *name, const char *value)
{
    ApiCall c;
    if (!mpri_api_enter(&c, o, HANDLE_OPTIONS)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK) status = mpri_options_set(o, name, value, OPTION_CALL, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_trainer_options_load(mpr_trainer_options *o, const char *yaml_file)
{
    ApiCall c;
    if (!mpri_api_enter(&c, o, HANDLE_OPTIONS)) return c.status;
    mpr_status status = mpri_api_pointer(yaml_file, "yaml_file", c.err);
    if (status == MPR_OK) status = mpri_options_load(o, yaml_file, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_trainer_options_environment(mpr_trainer_options *o)
{
    ApiCall c;
    if (!mpri_api_enter(&c, o, HANDLE_OPTIONS)) return c.status;
    return mpri_api_leave(&c, mpri_options_environment(o, c.err));
}

const char *mpr_trainer_options_get(const mpr_trainer_options *o, const char *name)
{
    int id = mpri_handle_is(o, HANDLE_OPTIONS) && name ? mpri_option_find(name) : -1;
    if (id < 0) return NULL;
    return o->v[id].text ? o->v[id].text : "";
}

bool mpr_trainer_options_is_set(const mpr_trainer_options *o, const char *name)
{
    int id = mpri_handle_is(o, HANDLE_OPTIONS) && name ? mpri_option_find(name) : -1;
    return id >= 0 && o->v[id].level != OPTION_DEFAULT;
}

mpr_status mpr_trainer_options_print(mpr_trainer_options *o, char **yaml)
{
    ApiCall c;
    if (!mpri_api_enter(&c, o, HANDLE_OPTIONS)) return c.status;
    mpr_status status = mpri_api_pointer(yaml, "yaml", c.err);
    if (status == MPR_OK) status = mpri_options_print(o, yaml, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_trainer_options_destroy(mpr_trainer_options *o)
{
    if (mpri_handle_is(o, HANDLE_OPTIONS)) mpri_options_destroy(o);
}

int mpr_trainer_options_count(void)
{
    return OPT_COUNT;
}

const mpr_option_row *mpr_trainer_options_row(int index)
{
    return mpri_option_row(index);
}

/* ---- trainer ---- */

mpr_status mpr_trainer_create(mpr_model *model, const mpr_trainer_options *o,
                              const mpr_trainer_callbacks *callbacks, mpr_trainer **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) {
        *out = NULL;
        status = mpri_api_argument(o, HANDLE_OPTIONS, c.err);
    }
    if (status == MPR_OK) status = mpri_trainer_create(model, o, callbacks, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_trainer_run(mpr_trainer *t, mpr_trainer_result *result)
{
    ApiCall c;
    if (!mpri_api_enter(&c, t, HANDLE_TRAINER)) return c.status;
    return mpri_api_leave(&c, mpri_trainer_run(t, result, c.err));
}

void mpr_trainer_stop(mpr_trainer *t)
{
    if (mpri_handle_is(t, HANDLE_TRAINER)) atomic_store(&t->stop, 1);
}

mpr_status mpr_trainer_summary(mpr_trainer *t, char **text)
{
    ApiCall c;
    if (!mpri_api_enter(&c, t, HANDLE_TRAINER)) return c.status;
    mpr_status status = mpri_api_pointer(text, "text", c.err);
    if (status == MPR_OK) status = mpri_trainer_summary(t, text, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_trainer_destroy(mpr_trainer *t)
{
    if (mpri_handle_is(t, HANDLE_TRAINER)) mpri_trainer_destroy(t);
}
