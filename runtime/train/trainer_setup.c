/* From options to a trainer: every option of the table ends here or in the loop. Everything that
 * can fail for wrong options, model or data fails before the first step. */
#include "runtime/train/trainer.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#define OPTION(id) mpri_option_text(t->o, OPT_##id)

/* ---- own copies ---- */

static mpr_status copy_options(mpr_trainer *t, const mpr_trainer_options *from, Err *err)
{
    TRY(mpri_options_create(t->ctx, &t->o, err));
    for (int i = 0; i < OPT_COUNT; i++) {
        const OptionValue *v = &from->v[i];
        OptionValue *to = &t->o->v[i];
        *to = (OptionValue){.level = v->level, .n_items = v->n_items};
        if (v->text && !(to->text = mpri_arena_strdup(&t->o->arena, v->text)))
            return mpri_err_nomem(err, 0);
        if (!v->n_items) continue;
        const char *const *items;
        TRY(mpri_copy_strings(&t->o->arena, v->items, &items, err));
        to->items = (const char **)(uintptr_t)items;
    }
    return MPR_OK;
}

/* ---- session ---- */

/* Type of the labels in the training data, for loss auto. */
static mpr_status labels_type(mpr_trainer *t, mpr_dtype *out, Err *err)
{
    *out = MPR_INT64;
    const char *const *files = mpri_option_list(t->o, OPT_TRAIN_DATA);
    if (!files || !mpri_option_is(t->o, OPT_LOSS, "auto")) return MPR_OK;
    DataFile *f;
    mpr_tensor labels;
    TRY(mpri_data_open(t->ctx, files[0], &f, err));
    const char *key = mpri_data_labels_key(f, OPTION(LABELS));
    mpr_status status = key ? mpri_data_read(f, key, &labels, err) : MPR_OK;
    if (status == MPR_OK && key) {
        *out = labels.dtype;
        mpri_free(&t->ctx->alloc, (void *)(uintptr_t)labels.data);
    }
    mpri_data_close(f);
    return status;
}

static mpr_dtype precision(const mpr_trainer *t, OptionId fp16, OptionId bf16)
{
    return mpri_option_flag(t->o, fp16)   ? MPR_FLOAT16
           : mpri_option_flag(t->o, bf16) ? MPR_BFLOAT16
                                          : MPR_DTYPE_NONE;
}

/* With one micro-batch a step there is nothing to weigh. */
static bool over_labels(const mpr_trainer *t)
{
    return mpri_option_is(t->o, OPT_ACCUMULATION_MEAN, "labels") &&
           mpri_option_int(t->o, OPT_ACCUMULATION, 1) > 1;
}

static mpr_status open_session(mpr_trainer *t, Err *err)
{
    mpr_session_options so = {
        .size = sizeof(so),
        .autocast = precision(t, OPT_FP16, OPT_BF16),
        .eval_autocast = precision(t, OPT_FP16_EVAL, OPT_BF16_EVAL),
        .autocast_profile = t->o->v[OPT_PROFILE].level != OPTION_DEFAULT ? OPTION(PROFILE) : NULL,
        .keep_fp32 = mpri_option_list(t->o, OPT_KEEP_FP32),
        .loss = OPTION(LOSS),
        .logits = OPTION(LOGITS),
        .ignore_index = mpri_option_int(t->o, OPT_IGNORE_INDEX, -100),
        .has_ignore_index = true,
        .label_smoothing = (float)mpri_option_float(t->o, OPT_SMOOTHING),
        .bn_train = mpri_option_flag(t->o, OPT_BN_TRAIN),
        .freeze = mpri_option_list(t->o, OPT_FREEZE),
        .train_only = mpri_option_list(t->o, OPT_TRAIN_ONLY),
        .has_dropout = mpri_option_here(t->o, OPT_DROPOUT),
        .dropout = (float)mpri_option_float(t->o, OPT_DROPOUT),
        .seed = (uint64_t)mpri_option_int(t->o, OPT_SEED, 42),
        .count_labels = over_labels(t),
        .dump_after = OPTION(DUMP_AFTER),
    };
    TRY(labels_type(t, &so.labels_dtype, err));
    return mpri_session_open(t->model, &so, &t->s, err);
}

static mpr_status make_optimizer(mpr_trainer *t, Err *err)
{
    double rate = mpri_option_float(t->o, OPT_LEARNING_RATE),
           decay = mpri_option_float(t->o, OPT_WEIGHT_DECAY);
    bool all = mpri_option_flag(t->o, OPT_DECAY_ALL);
    if (mpri_option_is(t->o, OPT_OPTIM, "sgd")) {
        mpr_sgd o = {
            .size = sizeof(o),
            .learning_rate = rate,
            .weight_decay = decay,
            .no_decay_rank01 = !all,
            .momentum = mpri_option_float(t->o, OPT_MOMENTUM),
            .nesterov = mpri_option_flag(t->o, OPT_NESTEROV),
        };
        return mpri_optimizer_sgd(t->s, &o, &t->opt, err);
    }
    mpr_adamw o = {
        .size = sizeof(o),
        .learning_rate = rate,
        .weight_decay = decay,
        .no_decay_rank01 = !all,
        .zero_is_zero = true,
        .beta1 = mpri_option_float(t->o, OPT_BETA1),
        .beta2 = mpri_option_float(t->o, OPT_BETA2),
        .epsilon = mpri_option_float(t->o, OPT_EPSILON),
        .l2 = mpri_option_is(t->o, OPT_OPTIM, "adam"),
    };
    return mpri_optimizer_adamw(t->s, &o, &t->opt, err);
}

/* ---- data ---- */

static int count_items(const char *const *list)
{
    int n = 0;
    while (list && list[n]) n++;
    return n;
}

static mpr_status open_data(mpr_trainer *t, Err *err)
{
    const char *const *files = mpri_option_list(t->o, OPT_TRAIN_DATA);
    const char *const *eval = mpri_option_list(t->o, OPT_EVAL_DATA);
    mpr_dataset_options o = {
        .size = sizeof(o),
        .labels = OPTION(LABELS),
        .inputs = mpri_option_list(t->o, OPT_INPUT),
        .allow_nonfinite = mpri_option_flag(t->o, OPT_ALLOW_NONFINITE),
        .batch_size = mpri_option_int(t->o, OPT_BATCH_SIZE, 8),
        .shuffle = mpri_option_is(t->o, OPT_SAMPLING, "random"),
        .drop_last = mpri_option_flag(t->o, OPT_DROP_LAST),
        .seed = (uint64_t)mpri_option_int(t->o, OPT_SEED, 42),
        .shift_labels = mpri_option_flag(t->o, OPT_SHIFT_LABELS),
        .bind = mpri_option_list(t->o, OPT_BIND),
        .synthetic_rows = mpri_option_int(t->o, OPT_SYNTHETIC, 0),
    };
    if (files || o.synthetic_rows)
        TRY(mpri_dataset_open(t->s, files, count_items(files), &o, &t->train, err));
    if (eval) {
        o.batch_size = mpri_option_int(t->o, OPT_EVAL_BATCH_SIZE, 8);
        o.shuffle = o.drop_last = false;
        o.synthetic_rows = 0;
        TRY(mpri_dataset_open(t->s, eval, count_items(eval), &o, &t->eval, err));
    }
    bool evaluates = !mpri_option_is(t->o, OPT_EVAL_STRATEGY, "no") ||
                     mpri_option_flag(t->o, OPT_EVAL_ON_START);
    if (evaluates && !eval) {
        mpri_err_set(err, MPR_E_USAGE,
                     "evaluation is asked for (eval-strategy, eval-on-start) without eval-data");
        return mpri_err_advice(err, "give --eval-data FILE, or --eval-strategy no");
    }
    return MPR_OK;
}

/* ---- length of the run, as Trainer.set_initial_training_values ---- */

static mpr_status plan_length(mpr_trainer *t, Err *err)
{
    int64_t window = mpri_option_int(t->o, OPT_ACCUMULATION, 1);
    t->max_steps = mpri_option_int(t->o, OPT_MAX_STEPS, -1);
    t->epochs = mpri_option_float(t->o, OPT_EPOCHS);
    t->count_updates = mpri_option_is(t->o, OPT_STEPS_COUNT, "updates");
    t->batches = t->train ? mpri_dataset_batches(t->train) : 0;
    if (!t->train) {
        if (t->max_steps > 0) return MPR_OK;
        mpri_err_set(
            err, MPR_E_USAGE,
            "max-steps is not set; with an own data source the length of an epoch is not known");
        return mpri_err_advice(err, "set max-steps");
    }
    if (!t->batches) {
        mpri_err_set(err, MPR_E_DATA,
                     "%lld rows give no whole batch of %lld, and dataloader-drop-last is set",
                     (long long)t->train->rows, (long long)t->train->o.batch_size);
        return mpri_err_advice(err, "use a smaller batch size");
    }
    int64_t per_epoch = t->batches / window + (t->batches % window != 0);
    if (t->max_steps > 0)
        t->epochs = (double)(t->max_steps / per_epoch + (t->max_steps % per_epoch != 0));
    else t->max_steps = (int64_t)ceil(t->epochs * (double)per_epoch);
    return MPR_OK;
}

/* ---- loss scale ---- */

static mpr_status scaler_options(const mpr_trainer *t, mpr_scaler_options *o, Err *err)
{
    const char *scale = OPTION(LOSS_SCALE), *max = OPTION(MAX_SCALE);
    double value = 1;
    bool dynamic = scale ? !strcmp(scale, "dynamic") : mpri_option_flag(t->o, OPT_FP16);
    if (scale && !dynamic && !mpri_parse_f64(scale, &value)) value = 1;
    int64_t row = mpri_option_int(t->o, OPT_MAX_SKIPPED, 50);
    *o = (mpr_scaler_options){
        .size = sizeof(*o),
        .init_scale = dynamic ? (float)mpri_option_float(t->o, OPT_INIT_SCALE) : (float)value,
        .growth_factor = mpri_option_float(t->o, OPT_GROWTH_FACTOR),
        .backoff_factor = mpri_option_float(t->o, OPT_BACKOFF_FACTOR),
        .growth_interval = (int32_t)mpri_option_int(t->o, OPT_GROWTH_INTERVAL, 2000),
        .min_scale = (float)mpri_option_float(t->o, OPT_MIN_SCALE),
        .max_scale = INFINITY,
        .hysteresis = (int32_t)mpri_option_int(t->o, OPT_HYSTERESIS, 1),
        .max_consecutive_skips = row ? (int32_t)row : -1,
        .constant = !dynamic,
    };
    if (max && strcmp(max, "none") && mpri_parse_f64(max, &value)) o->max_scale = (float)value;
    if (!(o->min_scale > 0 && o->init_scale > 0 && o->max_scale > 0)) { /* 0 would be a default */
        mpri_err_set(err, MPR_E_USAGE,
                     "min-scale, init-scale, max-scale, loss-scale: one of them is 0 in float32");
        return mpri_err_advice(err, "the least scale is 2^-126, about 1.2e-38");
    }
    if (dynamic && !(o->init_scale >= o->min_scale && o->init_scale <= o->max_scale)) {
        mpri_err_set(err, MPR_E_USAGE,
                     "init-scale is %s; allowed are min-scale (%s) to max-scale (%s)",
                     OPTION(INIT_SCALE), OPTION(MIN_SCALE), max ? max : "none");
        return mpri_err_advice(err, "raise max-scale or lower min-scale");
    }
    return MPR_OK;
}

static mpr_status join(mpr_trainer *t, Err *err)
{
    mpr_schedule_options so = {
        .size = sizeof(so),
        .type = OPTION(SCHEDULER),
        .warmup_steps = mpri_option_float(t->o, OPT_WARMUP),
        .total_steps = t->max_steps,
        .learning_rate = mpri_option_float(t->o, OPT_LEARNING_RATE),
    };
    TRY(mpri_schedule_create(t->s, &so, &t->schedule, err));
    mpr_scaler_options scaler;
    TRY(scaler_options(t, &scaler, err));
    mpr_prepare_options po = {
        .size = sizeof(po),
        .gradient_accumulation_steps = (int)mpri_option_int(t->o, OPT_ACCUMULATION, 1),
        .max_grad_norm = (float)mpri_option_float(t->o, OPT_MAX_GRAD_NORM),
        .mean_over_labels = over_labels(t),
        .scaler = &scaler,
    };
    return mpri_prepare(t->s, t->opt, t->train, t->schedule, &po, &t->p, err);
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The export comes last: that it would fall on an input must not be found after the training. */
static mpr_status check_export(const mpr_trainer *t, Err *err)
{
    const char *to = OPTION(EXPORT), *input = NULL;
    const OptionId lists[] = {OPT_TRAIN_DATA, OPT_EVAL_DATA};
    if (!to || !*to) return MPR_OK;
    if (t->model->m->path && same_file(to, t->model->m->path)) input = t->model->m->path;
    for (int i = 0; i < 2; i++) {
        const char *const *files = mpri_option_list(t->o, lists[i]);
        for (; files && *files; files++)
            if (same_file(to, *files)) input = *files;
    }
    if (!input) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "export %s is the same file as the input %s",
                 mpri_err_name(to), mpri_err_name(input));
    return mpri_err_advice(err, "write to another file");
}

static mpr_status set_up(mpr_trainer *t, Err *err)
{
    TRY(mpri_options_check(t->o, err));
    TRY(check_export(t, err));
    if (!mpri_option_list(t->o, OPT_TRAIN_DATA) && !mpri_option_here(t->o, OPT_SYNTHETIC) &&
        !t->call.on_batch) {
        mpri_err_set(err, MPR_E_USAGE, "no training data: train-data is not set");
        return mpri_err_advice(err, "give --train-data FILE.npz, or --synthetic N");
    }
    if (mpri_option_int(t->o, OPT_ACCUMULATION, 1) > 1000000) {
        mpri_err_set(err, MPR_E_USAGE,
                     "gradient-accumulation-steps is %s; allowed are up to 1000000",
                     OPTION(ACCUMULATION));
        return mpri_err_advice(err, "use a larger batch");
    }
    mpri_metrics_choose(&t->metrics, mpri_option_list(t->o, OPT_METRICS));
    TRY(open_session(t, err));
    TRY(open_data(t, err));
    TRY(plan_length(t, err));
    TRY(make_optimizer(t, err));
    return join(t, err);
}

mpr_status mpri_trainer_create(mpr_model *model, const mpr_trainer_options *o,
                               const mpr_trainer_callbacks *callbacks, mpr_trainer **out, Err *err)
{
    *out = NULL;
    mpr_trainer *t = CONTEXT_NEW(model->ctx, mpr_trainer);
    if (!t) return mpri_err_nomem(err, sizeof(*t));
    mpri_handle_init(&t->h, HANDLE_TRAINER, NULL);
    t->ctx = model->ctx;
    t->model = model;
    t->log_fd = t->lock = -1;
    t->eval_loss = NAN;
    atomic_init(&t->stop, 0);
    mpri_arena_init(&t->arena, &t->ctx->alloc, 0);
    mpr_status status = mpri_take_options(&t->call, sizeof(t->call), callbacks,
                                          "mpr_trainer_callbacks", err);
    if (status == MPR_OK) status = copy_options(t, o, err);
    if (status == MPR_OK) {
        t->out = mpri_option_text(t->o, OPT_OUTPUT_DIR);
        status = set_up(t, err);
    }
    if (status != MPR_OK) {
        mpri_trainer_destroy(t);
        return status;
    }
    *out = t;
    return MPR_OK;
}

void mpri_trainer_destroy(mpr_trainer *t)
{
    if (!t) return;
    const Alloc *alloc = &t->ctx->alloc;
    mpri_trainer_log_close(t);
    mpri_prepared_destroy(t->p);
    mpri_schedule_destroy(t->schedule);
    mpri_dataset_close(t->train);
    mpri_dataset_close(t->eval);
    mpri_optimizer_destroy(t->opt);
    mpri_session_close(t->s);
    mpri_options_destroy(t->o);
    mpri_arena_destroy(&t->arena);
    mpri_handle_end(&t->h);
    mpri_free(alloc, t);
}
