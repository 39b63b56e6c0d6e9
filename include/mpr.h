/* mpr: trains an exported ONNX model, in FP16 with FP32 master weights and dynamic loss scaling.
 *
 * The header reads in the order of use: context, model, session, the manual loop (level 1), prepare
 * (level 2), the trainer (level 3), then tools (run, convert, inspect, bench).
 *
 * Rules. Every fallible function returns mpr_status; MPR_OK is 0. Handles are opaque; a destroy function
 * takes NULL. Option structs begin with `size` (set it to sizeof the struct; zero fields are defaults).
 * The library never prints, exits, installs handlers or changes global state. Text of the last failure is
 * on the handle that the failing function took first (mpr_last_error). Two sessions in two threads are
 * independent; one session is used by one thread at a time. Strings are UTF-8 and owned by the callee
 * unless said otherwise. Shapes are arrays of int64_t, row-major; scales and rates are plain floats. */
#ifndef MPR_H
#define MPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MPR_API __attribute__((visibility("default")))
#define MPR_MUST_USE __attribute__((warn_unused_result))
#else
#define MPR_API
#define MPR_MUST_USE
#endif

#define MPR_VERSION_MAJOR 0
#define MPR_VERSION_MINOR 1
#define MPR_VERSION_PATCH 0

/* ---------------------------------------------------------------- status, types, errors */

/* X(constant, text, exit code of the tools). The text is stable and appears in --json errors. */
#define MPR_STATUS_MAP(X)                                 \
    X(MPR_OK, "MPR_OK", 0)                                \
    X(MPR_E_USAGE, "MPR_E_USAGE", 1)                      \
    X(MPR_E_IO, "MPR_E_IO", 5)                            \
    X(MPR_E_PROTO, "MPR_E_PROTO", 2)                      \
    X(MPR_E_LIMIT, "MPR_E_LIMIT", 2)                      \
    X(MPR_E_IR_VERSION, "MPR_E_IR_VERSION", 2)            \
    X(MPR_E_OPSET, "MPR_E_OPSET", 2)                      \
    X(MPR_E_INVALID_MODEL, "MPR_E_INVALID_MODEL", 2)      \
    X(MPR_E_TYPE, "MPR_E_TYPE", 2)                        \
    X(MPR_E_SHAPE, "MPR_E_SHAPE", 2)                      \
    X(MPR_E_UNSUPPORTED_OP, "MPR_E_UNSUPPORTED_OP", 2)    \
    X(MPR_E_NOT_DIFFERENTIABLE, "MPR_E_NOT_DIFFERENTIABLE", 2) \
    X(MPR_E_EXTDATA_PATH, "MPR_E_EXTDATA_PATH", 2)        \
    X(MPR_E_EXTDATA_OPEN, "MPR_E_EXTDATA_OPEN", 2)        \
    X(MPR_E_EXTDATA_RANGE, "MPR_E_EXTDATA_RANGE", 2)      \
    X(MPR_E_DATA, "MPR_E_DATA", 2)                        \
    X(MPR_E_INDEX, "MPR_E_INDEX", 2)                      \
    X(MPR_E_NONFINITE, "MPR_E_NONFINITE", 3)              \
    X(MPR_E_CHECKPOINT, "MPR_E_CHECKPOINT", 2)            \
    X(MPR_E_NOMEM, "MPR_E_NOMEM", 6)                      \
    X(MPR_E_DEVICE, "MPR_E_DEVICE", 6)                    \
    X(MPR_E_ORDER, "MPR_E_ORDER", 1)                      \
    X(MPR_E_STOPPED, "MPR_E_STOPPED", 4)                  \
    X(MPR_E_INTERNAL, "MPR_E_INTERNAL", 2)                \
    X(MPR_E_TOLERANCE, "MPR_E_TOLERANCE", 3)

typedef enum mpr_status {
#define X(name, text, exit_code) name,
    MPR_STATUS_MAP(X)
#undef X
} mpr_status;

/* "MPR_E_SHAPE". Never NULL. */
MPR_API const char *mpr_status_text(mpr_status status);
/* Exit code that the tools use for this status. */
MPR_API int mpr_status_exit_code(mpr_status status);
/* "0.1.0" */
MPR_API const char *mpr_version(void);

/* Element types; numbers are those of onnx.TensorProto.DataType. */
typedef enum mpr_dtype {
    MPR_DTYPE_NONE = 0,
    MPR_FLOAT32 = 1,
    MPR_UINT8 = 2,
    MPR_INT8 = 3,
    MPR_UINT16 = 4,
    MPR_INT16 = 5,
    MPR_INT32 = 6,
    MPR_INT64 = 7,
    MPR_STRING = 8,
    MPR_BOOL = 9,
    MPR_FLOAT16 = 10,
    MPR_FLOAT64 = 11,
    MPR_UINT32 = 12,
    MPR_UINT64 = 13,
    MPR_COMPLEX64 = 14,
    MPR_COMPLEX128 = 15,
    MPR_BFLOAT16 = 16
} mpr_dtype;

/* What failed. Strings are never NULL ("" when there is none) and live until the next call on the handle. */
typedef struct mpr_error {
    mpr_status code;
    const char *message; /* what failed, found and allowed value */
    const char *where;   /* file, offset or row, node, tensor, shapes */
    const char *advice;  /* one thing to do */
} mpr_error;

typedef struct mpr_context mpr_context;
typedef struct mpr_model mpr_model;
typedef struct mpr_session mpr_session;
typedef struct mpr_optimizer mpr_optimizer;
typedef struct mpr_scaler mpr_scaler;
typedef struct mpr_dataset mpr_dataset;
typedef struct mpr_schedule mpr_schedule;
typedef struct mpr_prepared mpr_prepared;
typedef struct mpr_trainer_options mpr_trainer_options;
typedef struct mpr_trainer mpr_trainer;

/* Last error of any handle of this library (NULL handle: an error that says so). */
MPR_API mpr_error mpr_last_error(const void *handle);

/* ---------------------------------------------------------------- context */

typedef enum mpr_log_level { MPR_LOG_DEBUG, MPR_LOG_INFO, MPR_LOG_NOTICE, MPR_LOG_WARNING } mpr_log_level;
typedef void (*mpr_log_fn)(void *user, mpr_log_level level, const char *message);

/* Limits on what a file may ask for; 0 = the default in the comment. */
typedef struct mpr_limits {
    size_t size;
    int64_t nesting;             /* 64 */
    int64_t repeated;            /* 1,000,000 entries of any repeated message in one message */
    int64_t attributes_per_node; /* 4,096 */
    int64_t name_bytes;          /* 64 KiB */
    int64_t metadata_bytes;      /* 1 GiB once unpacked */
    int64_t functions;           /* 10,000 */
    int64_t call_depth;          /* 100 */
    int64_t nodes;               /* 1,000,000 after inlining */
    int64_t memory_bytes;        /* 80 % of what cgroup and machine allow */
    int64_t trips;               /* 10,000 turns of one loop that is unrolled */
} mpr_limits;

typedef struct mpr_context_options {
    size_t size;
    void *(*alloc)(void *user, size_t size, size_t align); /* NULL: the system's */
    void (*free)(void *user, void *p);
    void *alloc_user;
    mpr_log_fn log;        /* NULL: silent */
    void *log_user;
    const char *device;    /* NULL or "cpu"; "cpu", "cuda", "cuda:N", "auto", "null" */
    int threads;           /* 0: as many as the process may use */
    const mpr_limits *limits;
    int no_cuda_graph;     /* 1: kernels are launched one by one; the same bits, slower */
    int cuda_tune;         /* 1: plans time the algorithms and epilogues of cuBLASLt and keep the fastest, which may
                            * be others in another process: the last bits are no longer the same in every run */
} mpr_context_options;

/* A context holds allocator, log sink, limits and device choice. options may be NULL. On failure *out is
 * NULL, or a handle that only carries the error when one could be made: read it, then destroy it. */
MPR_API MPR_MUST_USE mpr_status mpr_context_create(const mpr_context_options *options, mpr_context **out);
MPR_API void mpr_context_destroy(mpr_context *ctx); /* after everything made from it */

/* ---------------------------------------------------------------- model */

typedef struct mpr_model_options {
    size_t size;
    const char *const *tie;   /* pairs A, B …, NULL-terminated: train A and B as one tensor */
    const char *const *untie; /* names, NULL-terminated */
    /* The patterns that the session will get, NULL-terminated: tensors of equal contents are trained as one
     * parameter only if these ask for all of them or for none. */
    const char *const *train_only, *const *freeze;
} mpr_model_options;

/* Load and check an ONNX file. The file is mapped, not copied; it must not change while the model lives. */
MPR_API MPR_MUST_USE mpr_status mpr_model_load(mpr_context *ctx, const char *path, const mpr_model_options *options, mpr_model **out);
MPR_API void mpr_model_destroy(mpr_model *model); /* after its sessions */

typedef struct mpr_value_info {
    const char *name;
    mpr_dtype dtype;
    int rank;                 /* -1 unknown */
    int64_t dims[8];          /* -1: symbolic or unknown */
    const char *dim_names[8]; /* name of a symbolic dim, or NULL */
} mpr_value_info;
MPR_API int mpr_model_input_count(const mpr_model *model); /* without initializers */
MPR_API MPR_MUST_USE mpr_status mpr_model_input(const mpr_model *model, int index, mpr_value_info *out);
MPR_API int mpr_model_output_count(const mpr_model *model);
MPR_API MPR_MUST_USE mpr_status mpr_model_output(const mpr_model *model, int index, mpr_value_info *out);

typedef struct mpr_parameter_info {
    const char *name;        /* initializer name in the file */
    const char *public_name; /* what people call it */
    mpr_dtype file_dtype;
    int rank;
    int64_t dims[8];
    bool trained;
    const char *reason;      /* why trained, or why not */
} mpr_parameter_info;
MPR_API int mpr_model_parameter_count(const mpr_model *model);
MPR_API MPR_MUST_USE mpr_status mpr_model_parameter(const mpr_model *model, int index, mpr_parameter_info *out);

/* ---------------------------------------------------------------- session: a model made trainable */

typedef struct mpr_session_options {
    size_t size;
    mpr_dtype autocast;            /* MPR_FLOAT16, MPR_BFLOAT16, or MPR_DTYPE_NONE: types as in the file */
    /* "torch-cuda", "torch-cpu", "paint" (as mpr_convert decides), a YAML or JSON file of rules on one of them, or the
     * decisions that mpr_convert wrote (annotations). NULL: those that the model carries (annotate), else "torch-cuda".
     * A model that carries decisions is trained as the converted one would be even when autocast is NONE. */
    const char *autocast_profile;
    const char *const *keep_fp32;  /* operators or /node-globs, NULL-terminated */
    mpr_dtype eval_autocast;       /* type of evaluation under the profile; NONE: f32 */
    const char *loss;              /* NULL or "none": forward only; "auto", "cross-entropy", "mse", "l1", "bce-with-logits", "output:NAME" */
    const char *logits;            /* output that the loss reads; NULL: the only one, or the one named logits */
    const char *labels;            /* name under which labels are bound; NULL: "labels" */
    mpr_dtype labels_dtype;        /* with loss "auto": decides between cross-entropy (int) and mse (float) */
    int64_t ignore_index;          /* used when has_ignore_index; default -100 */
    bool has_ignore_index;
    float label_smoothing;
    const char *const *freeze;     /* globs on parameter names, NULL-terminated */
    const char *const *train_only;
    uint64_t seed;                 /* random operators and Dropout; 0 is a seed like any other */
    const char *kernels;           /* NULL; "ref": reference kernels only */
    const char *dump_after;        /* pass name: its graph goes to the log at debug level; "all" */
    bool has_dropout;              /* with a loss: every Dropout drops in training, with the ratio `dropout` in */
    float dropout;                 /* [0,1); a model without any gets it where the usual recipes have it, and the log says so */
    bool bn_train;                 /* every BatchNormalization normalises with the batch and keeps running statistics, updated
                                      each forward, saved and exported; false: only nodes that the file has in training mode */
    bool count_labels;             /* with loss "output:NAME": mpr_session_label_count tells what the loss of the model itself
                                      counted (class weights included). MPR_E_USAGE when it is not a mean over labels */
} mpr_session_options;

MPR_API MPR_MUST_USE mpr_status mpr_session_open(mpr_model *model, const mpr_session_options *options, mpr_session **out);
MPR_API void mpr_session_close(mpr_session *s);

/* Bind an input (or the labels) for the next call: copied at once, converted between int32 and int64.
 * MPR_E_DATA unknown name (found ones are listed), MPR_E_TYPE, MPR_E_SHAPE, MPR_E_INDEX when an id or
 * label is outside its range (position, value and limit are in the text). A new shape gives a new plan,
 * cached from then on. */
MPR_API MPR_MUST_USE mpr_status mpr_session_bind(mpr_session *s, const char *name, const void *data, mpr_dtype dtype, const int64_t *shape, int rank);
/* Forward pass under autocast. *loss (may be NULL) is unscaled, f32. */
MPR_API MPR_MUST_USE mpr_status mpr_session_forward(mpr_session *s, float *loss);
/* Forward pass as in evaluation: f32 (or eval_autocast), Dropout off; no backward may follow. */
MPR_API MPR_MUST_USE mpr_status mpr_session_evaluate(mpr_session *s, float *loss);
/* Backward pass of the last forward. scaler may be NULL (scale 1). Gradients are added to those that are
 * there: call again after another forward to accumulate, and see mpr_session_set_loss_divisor. MPR_E_ORDER
 * when those that are there were scaled otherwise: pass the same scaler to every backward of a window. */
MPR_API MPR_MUST_USE mpr_status mpr_session_backward(mpr_session *s, mpr_scaler *scaler);
/* The loss gradient is divided by this (number of micro-batches of the window); default 1. */
MPR_API MPR_MUST_USE mpr_status mpr_session_set_loss_divisor(mpr_session *s, float divisor);
MPR_API MPR_MUST_USE mpr_status mpr_session_zero_grad(mpr_session *s);

/* Which tensor of the window became non-finite first, and at which node. */
typedef struct mpr_nonfinite {
    size_t size;
    bool found;            /* false: all is finite, and the rest is empty */
    const char *text;      /* all of it in one sentence, with the ranges of what the node reads */
    const char *advice;
    const char *tensor;
    const char *node, *op; /* as the file names them; "" when it is an input, a constant or a parameter */
    bool backward;         /* in the gradient of that node */
    bool is_nan;           /* the first bad element; else an infinity */
    int64_t elements, nans, infs, first;
    double low, high;      /* of the finite elements */
    int micro_batch, micro_batches; /* 1-based number in the window of gradients that are added up */
} mpr_nonfinite;
/* After a skipped step or a loss that is not finite: runs the bound batch again, kernel by kernel, with the
 * same weights and random numbers, and looks at every value. Backward is included once one has run. Gradients
 * and running statistics stay as they are; no backward may follow. Texts are good until the next call.
 * Of a window of several backward passes every micro-batch is run, in their order: call it before the next batch
 * is bound. The session copies their inputs for that when another batch takes their place (not for windows of one
 * batch), up to 256 MiB; what is beyond is passed over. */
MPR_API MPR_MUST_USE mpr_status mpr_session_find_nonfinite(mpr_session *s, mpr_nonfinite *out);

typedef struct mpr_tensor {
    const void *data; /* contiguous, row-major */
    mpr_dtype dtype;
    int rank;
    int64_t dims[8];
} mpr_tensor;
/* Output of the last forward or evaluate, in f32 when it was a 16-bit value; good until the next call. */
MPR_API MPR_MUST_USE mpr_status mpr_session_output(mpr_session *s, const char *name, mpr_tensor *out);
/* How many labels the last loss counted (labels other than ignore_index; elements for mse; see count_labels).
 * The gradient of the mean over N labels of a window: before each backward, mpr_session_set_loss_divisor(N / count). */
MPR_API MPR_MUST_USE mpr_status mpr_session_label_count(mpr_session *s, double *count);

/* Parameters by initializer name or public name: FP32 masters. get copies out, set copies in. */
MPR_API int mpr_session_parameter_count(const mpr_session *s); /* trained ones */
MPR_API MPR_MUST_USE mpr_status mpr_session_parameter(const mpr_session *s, int index, mpr_parameter_info *out);
MPR_API MPR_MUST_USE mpr_status mpr_session_parameter_get(mpr_session *s, const char *name, float *data, int64_t count);
MPR_API MPR_MUST_USE mpr_status mpr_session_parameter_set(mpr_session *s, const char *name, const float *data, int64_t count);
/* Gradient of a parameter as it lies in the buffer: scaled until mpr_scaler_unscale. */
MPR_API MPR_MUST_USE mpr_status mpr_session_gradient_get(mpr_session *s, const char *name, float *data, int64_t count);
MPR_API MPR_MUST_USE mpr_status mpr_session_gradient_set(mpr_session *s, const char *name, const float *data, int64_t count);

/* The original file with the session's weights: same names, opset, metadata and order. Written beside
 * and renamed. The model's own file is refused. */
MPR_API MPR_MUST_USE mpr_status mpr_session_export(mpr_session *s, const char *path);

typedef struct mpr_memory_bill { /* bytes per class, exact for the current plan */
    size_t size;
    size_t parameters, gradients, optimizer, activations, activations_lower_bound, constants, inputs;
    size_t copies; /* of parameters, in 16 bits: kept on a GPU, on the CPU part of the activations */
} mpr_memory_bill;
MPR_API MPR_MUST_USE mpr_status mpr_session_memory(mpr_session *s, mpr_memory_bill *out);
/* Build the plan for the shapes bound so far without running it, and print it: a line per step with its
 * kernel and why no faster one, then buffers and totals. *text is freed with mpr_free_text. */
MPR_API MPR_MUST_USE mpr_status mpr_session_plan_print(mpr_session *s, char **text);
MPR_API void mpr_free_text(mpr_context *ctx, char *text);

/* ---------------------------------------------------------------- level 1: optimizers and scaler */

typedef struct mpr_param_group { /* parameters whose name matches the glob; the first matching group wins */
    const char *glob;
    double learning_rate, weight_decay;
} mpr_param_group;

typedef struct mpr_adamw {
    size_t size;
    double learning_rate;  /* 1e-3 when 0 and !zero_is_zero */
    double beta1, beta2;   /* 0.9, 0.999 */
    double epsilon;        /* 1e-8 */
    double weight_decay;   /* 0.01 in PyTorch; here what you write */
    bool no_decay_rank01;  /* leave parameters of rank 0 and 1 undecayed */
    bool zero_is_zero;     /* take zero fields literally instead of as defaults */
    bool l2;               /* Adam with L2 instead of decoupled decay */
    const mpr_param_group *groups;
    int group_count;
    const char *const *parameters; /* globs, NULL-terminated: only these; NULL: all trained ones */
} mpr_adamw;

typedef struct mpr_sgd {
    size_t size;
    double learning_rate, momentum, weight_decay;
    bool nesterov, no_decay_rank01;
    const mpr_param_group *groups;
    int group_count;
    const char *const *parameters;
} mpr_sgd;

/* A parameter may belong to one optimizer only (MPR_E_USAGE names the other). */
MPR_API MPR_MUST_USE mpr_status mpr_optimizer_adamw(mpr_session *s, const mpr_adamw *options, mpr_optimizer **out);
MPR_API MPR_MUST_USE mpr_status mpr_optimizer_sgd(mpr_session *s, const mpr_sgd *options, mpr_optimizer **out);
MPR_API void mpr_optimizer_destroy(mpr_optimizer *opt); /* before its session */
/* Base rate; groups keep their ratio to it. */
MPR_API MPR_MUST_USE mpr_status mpr_optimizer_set_learning_rate(mpr_optimizer *opt, double learning_rate);
MPR_API double mpr_optimizer_learning_rate(const mpr_optimizer *opt);
/* Clip by global norm; *norm (may be NULL) is the norm before clipping. max_norm 0: measure only. With a
 * scaler, mpr_scaler_unscale must come before (MPR_E_ORDER). torch.nn.utils.clip_grad_norm_. */
MPR_API MPR_MUST_USE mpr_status mpr_optimizer_clip_grad_norm(mpr_optimizer *opt, float max_norm, float *norm);
/* Step without a scaler. Gradients are checked as well: a non-finite one gives MPR_STEP_SKIPPED. */
typedef enum mpr_step_outcome { MPR_STEP_UPDATED, MPR_STEP_SKIPPED, MPR_STEP_NOTHING } mpr_step_outcome;
MPR_API MPR_MUST_USE mpr_status mpr_optimizer_step(mpr_optimizer *opt, mpr_step_outcome *outcome);

/* torch.amp.GradScaler. Zero fields are defaults. */
typedef struct mpr_scaler_options {
    size_t size;
    float init_scale;          /* 65536 */
    double growth_factor;      /* 2; the product with the scale is rounded once */
    double backoff_factor;     /* 0.5 */
    int32_t growth_interval;   /* 2000 */
    float min_scale;           /* 1 */
    float max_scale;           /* 2^24; INFINITY: none */
    int32_t hysteresis;        /* 1 */
    int32_t max_consecutive_skips; /* 50; -1: never stop */
    bool disabled;
    bool torch_preset;         /* min 2^-126, max none, hysteresis 1, never stop */
    bool constant;             /* scale never changes (--loss-scale N) */
} mpr_scaler_options;

typedef struct mpr_scaler_state {
    size_t size;
    float scale;
    int32_t growth_tracker, hysteresis_left, skips_in_row;
    int64_t skips, updates, empty;
    int64_t generation;
} mpr_scaler_state;

MPR_API MPR_MUST_USE mpr_status mpr_scaler_create(mpr_session *s, const mpr_scaler_options *options, mpr_scaler **out);
MPR_API void mpr_scaler_destroy(mpr_scaler *scaler); /* before its session */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_unscale(mpr_scaler *scaler, mpr_optimizer *opt);
/* outcome may be NULL: then nothing is read back from the device. */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_step(mpr_scaler *scaler, mpr_optimizer *opt, mpr_step_outcome *outcome);
/* MPR_E_NONFINITE (diverged) when max_consecutive_skips is reached, after its effect: the text names step, last
 * scales, and the first bad tensor and node, as mpr_session_find_nonfinite does. On a GPU a loop that asks for no
 * outcome is told by the update after its next mpr_scaler_scale or mpr_scaler_state_get. */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_update(mpr_scaler *scaler);
/* Outcome of the last step of opt by this scaler, also after update: for a step that was called with NULL.
 * MPR_E_ORDER when there was none. */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_outcome(mpr_scaler *scaler, mpr_optimizer *opt, mpr_step_outcome *outcome);
MPR_API MPR_MUST_USE mpr_status mpr_scaler_update_to(mpr_scaler *scaler, float scale); /* update(new_scale) */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_abandon(mpr_scaler *scaler);
MPR_API float mpr_scaler_scale(const mpr_scaler *scaler);
MPR_API MPR_MUST_USE mpr_status mpr_scaler_set(mpr_scaler *scaler, const char *option, double value); /* "growth_interval" … */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_state_get(const mpr_scaler *scaler, mpr_scaler_state *out);
/* State as JSON, torch's five keys plus ours; numbers read back exactly. */
MPR_API MPR_MUST_USE mpr_status mpr_scaler_save(mpr_scaler *scaler, char **json);
MPR_API MPR_MUST_USE mpr_status mpr_scaler_load(mpr_scaler *scaler, const char *json);

/* ---------------------------------------------------------------- data and schedules */

/* Data files (.npz, .safetensors, .csv; several = shards), one array per input plus labels, all with the same
 * number of rows. CSV: a header line; a column with an input's name, or columns NAME0 NAME1 …, feed it; a model
 * with one float input takes all columns but the labels. */
typedef struct mpr_dataset_options {
    size_t size;
    const char *labels;             /* NULL: labels, label or y */
    const char *const *inputs;      /* "NAME=KEY" …, NULL-terminated */
    bool allow_nonfinite;
    int64_t synthetic_rows;         /* > 0: random rows instead of files */
    int64_t batch_size;             /* 8 */
    bool shuffle;                   /* order from seed and epoch */
    bool drop_last;
    uint64_t seed;
    const char *const *bind;        /* "NAME=N" …: sizes of symbolic dims for synthetic rows, NULL-terminated */
    bool shift_labels;              /* causal LM: label t is label t+1 of the file, the last one is ignored */
} mpr_dataset_options;
MPR_API MPR_MUST_USE mpr_status mpr_dataset_open(mpr_session *s, const char *const *files, int n_files, const mpr_dataset_options *options, mpr_dataset **out);
MPR_API int64_t mpr_dataset_rows(const mpr_dataset *d);
MPR_API int64_t mpr_dataset_batches(const mpr_dataset *d); /* per epoch */
/* Bind batch number `batch` of an epoch to the dataset's session: every input and the labels. *rows (may be
 * NULL) is how many rows it has. MPR_E_DATA, MPR_E_INDEX as in open; MPR_E_USAGE past the last batch. */
MPR_API MPR_MUST_USE mpr_status mpr_dataset_bind(mpr_dataset *d, int64_t epoch, int64_t batch, int64_t *rows);
MPR_API void mpr_dataset_close(mpr_dataset *d);

typedef struct mpr_schedule_options {
    size_t size;
    const char *type;          /* linear (default), cosine, constant, constant_with_warmup … */
    double warmup_steps;       /* < 1: share of total_steps */
    int64_t total_steps;
    double learning_rate;      /* base rate, read by polynomial only (it ends at 1e-7); 0: 5e-5 */
} mpr_schedule_options;
/* Factor on the base learning rate by number of real updates. */
MPR_API MPR_MUST_USE mpr_status mpr_schedule_create(mpr_session *s, const mpr_schedule_options *options, mpr_schedule **out);
MPR_API double mpr_schedule_factor(const mpr_schedule *schedule, int64_t updates);
MPR_API void mpr_schedule_destroy(mpr_schedule *schedule);

/* ---------------------------------------------------------------- level 2: prepare (Accelerate) */

typedef struct mpr_prepare_options {
    size_t size;
    int gradient_accumulation_steps; /* 1 */
    float max_grad_norm;             /* 0: no clipping, the norm is measured all the same */
    const mpr_scaler_options *scaler; /* NULL: dynamic for f16, none otherwise */
    int64_t epochs;                  /* mpr_prepared_next ends after these; 0: never */
    /* A window gives the gradient of the mean over all its labels, as one large batch would, instead of the mean of
     * its micro-batches' means. The two are the same where every micro-batch counts as many labels. */
    bool mean_over_labels;
} mpr_prepare_options;

typedef struct mpr_step_result {
    mpr_step_outcome outcome;
    bool window_open;        /* more micro-batches to come before an update: nothing was stepped */
    float loss;              /* mean over the micro-batches of the window (or its labels), unscaled */
    float grad_norm;         /* before clipping, unscaled */
    float scale;             /* used in this step */
    double learning_rate;    /* used in this step */
    const char *first_bad;   /* first non-finite node and tensor, or NULL; good until the next step */
} mpr_step_result;

/* Takes none of the objects over; they must outlive p. schedule may be NULL (constant rate). */
MPR_API MPR_MUST_USE mpr_status mpr_prepare(mpr_session *s, mpr_optimizer *opt, mpr_dataset *data, mpr_schedule *schedule, const mpr_prepare_options *options, mpr_prepared **out);
/* Binds the next batch. *more is false at the end of the last epoch. Epoch ends close the window. */
MPR_API MPR_MUST_USE mpr_status mpr_prepared_next(mpr_prepared *p, bool *more);
/* Forward and backward of the bound batch: divides by the real length of the window, scales. loss may be NULL. */
MPR_API MPR_MUST_USE mpr_status mpr_prepared_backward(mpr_prepared *p, float *loss);
/* Unscale, clip, step, update, schedule, zero when the window is full; else result->window_open. With NULL for
 * loss and result a GPU is not waited for: an error then comes some steps later at the latest with the next call
 * that asks for something, and everything is left as if the steps after it had not been. */
MPR_API MPR_MUST_USE mpr_status mpr_prepared_step(mpr_prepared *p, mpr_step_result *result);
MPR_API MPR_MUST_USE mpr_status mpr_prepared_position(const mpr_prepared *p, int64_t *epoch, int64_t *batch, int64_t *steps, int64_t *updates);
/* One versioned directory with weights, moments, scaler, schedule, counters, RNG and data position; written
 * aside, synced and renamed. load restores bit for bit; any mismatch is MPR_E_CHECKPOINT. */
MPR_API MPR_MUST_USE mpr_status mpr_prepared_save(mpr_prepared *p, const char *directory);
MPR_API MPR_MUST_USE mpr_status mpr_prepared_load(mpr_prepared *p, const char *directory);
MPR_API void mpr_prepared_destroy(mpr_prepared *p);

/* ---------------------------------------------------------------- level 3: trainer */

/* Options by the flag names of mpr-train ("num-train-epochs" or "num_train_epochs"), with the same checks. */
MPR_API MPR_MUST_USE mpr_status mpr_trainer_options_create(mpr_context *ctx, mpr_trainer_options **out);
/* Order of strength: default < file (load) < MPR_* variables (environment) < set, whatever the order of the
 * calls. A list option takes one more item per set. "none" or an empty value clears an option that has no
 * default; flags take true or false (NULL: true). MPR_E_USAGE names the allowed values, or the nearest name.
 * Keys that concern the program and its context (device, threads, json, quiet, verbose, color, no-progress,
 * no-cuda-graph, cuda-tune) may stand in a file too; load passes over them. */
MPR_API MPR_MUST_USE mpr_status mpr_trainer_options_set(mpr_trainer_options *o, const char *name, const char *value);
MPR_API MPR_MUST_USE mpr_status mpr_trainer_options_load(mpr_trainer_options *o, const char *yaml_file);
/* Apply MPR_<NAME> variables, such as MPR_LEARNING_RATE. Lists are separated by commas. */
MPR_API MPR_MUST_USE mpr_status mpr_trainer_options_environment(mpr_trainer_options *o);
/* Value as text ("true"/"false" for flags, items of a list on lines of their own, "" for none); NULL: unknown.
 * Good until the next call on o. */
MPR_API const char *mpr_trainer_options_get(const mpr_trainer_options *o, const char *name);
/* Was it set by file, variable or call? */
MPR_API bool mpr_trainer_options_is_set(const mpr_trainer_options *o, const char *name);
/* YAML of all options with their values; freed with mpr_free_text. */
MPR_API MPR_MUST_USE mpr_status mpr_trainer_options_print(mpr_trainer_options *o, char **yaml);
MPR_API void mpr_trainer_options_destroy(mpr_trainer_options *o);

/* The option table itself, for parsing, --help and documentation: one row per option. */
typedef enum mpr_option_kind { MPR_OPTION_FLAG, MPR_OPTION_STRING, MPR_OPTION_INT, MPR_OPTION_FLOAT, MPR_OPTION_LIST } mpr_option_kind;
typedef struct mpr_option_row {
    const char *name;      /* "learning-rate" */
    char short_name;       /* 'o', or 0 */
    const char *aliases;   /* further names, blank-separated, or NULL */
    mpr_option_kind kind;
    const char *def;       /* default as text; NULL: none */
    const char *choices;   /* "a|b|prefix:*|#" ('#' = a number), the default first; NULL: any */
    const char *range;     /* interval of numbers such as "[0,1)"; NULL: any finite number */
    const char *argument;  /* what help calls the value; NULL for flags */
    const char *help;
    const char *group;
} mpr_option_row;
MPR_API int mpr_trainer_options_count(void);
MPR_API const mpr_option_row *mpr_trainer_options_row(int index); /* NULL out of range */

typedef enum mpr_trainer_request { MPR_CONTINUE = 0, MPR_STOP = 1, MPR_SAVE = 2, MPR_EVALUATE = 4 } mpr_trainer_request;

typedef struct mpr_trainer_callbacks {
    size_t size;
    void *user;
    /* one JSON object per log event; return a set of mpr_trainer_request */
    int (*on_log)(void *user, const char *json);
    /* after every optimizer step */
    int (*on_step)(void *user, int64_t step, int64_t max_steps, const mpr_step_result *result);
    int (*on_save)(void *user, const char *directory);
    /* own data source: bind one batch with mpr_session_bind; return its rows, 0 at the end of the epoch, -1 to stop */
    int64_t (*on_batch)(void *user, mpr_session *s, int64_t epoch, int64_t batch);
    /* logits and labels of the whole evaluation; write a JSON object {"name": number} into json */
    void (*compute_metrics)(void *user, const mpr_tensor *logits, const mpr_tensor *labels, char *json, size_t size);
    /* on_step may come some steps late, its requests then count from there: a GPU does not wait for it */
    bool on_step_late;
} mpr_trainer_callbacks;

typedef struct mpr_trainer_result {
    size_t size;
    int64_t steps, updates, skipped;
    double train_loss, train_runtime;
    double eval_loss;         /* of the last evaluation; NaN when there was none */
    double best_metric;
    bool stopped;             /* by a callback or mpr_trainer_stop */
} mpr_trainer_result;

MPR_API MPR_MUST_USE mpr_status mpr_trainer_create(mpr_model *model, const mpr_trainer_options *o, const mpr_trainer_callbacks *callbacks, mpr_trainer **out);
MPR_API MPR_MUST_USE mpr_status mpr_trainer_run(mpr_trainer *t, mpr_trainer_result *result);
/* Async-signal-safe: finish the step, save a checkpoint, return MPR_E_STOPPED. */
MPR_API void mpr_trainer_stop(mpr_trainer *t);
/* What the summary at the start of a run shows (model, parameters, casts, memory, device); mpr_free_text. */
MPR_API MPR_MUST_USE mpr_status mpr_trainer_summary(mpr_trainer *t, char **text);
MPR_API void mpr_trainer_destroy(mpr_trainer *t);

/* ---------------------------------------------------------------- run, convert, inspect, bench */

/* A set of named tensors, such as an npz. */
typedef struct mpr_tensors mpr_tensors;
MPR_API MPR_MUST_USE mpr_status mpr_tensors_create(mpr_context *ctx, mpr_tensors **out);
MPR_API MPR_MUST_USE mpr_status mpr_tensors_load(mpr_context *ctx, const char *npz, mpr_tensors **out);
MPR_API MPR_MUST_USE mpr_status mpr_tensors_save(mpr_tensors *t, const char *npz); /* bf16 is written as f32 */
MPR_API int mpr_tensors_count(const mpr_tensors *t);
MPR_API const char *mpr_tensors_name(const mpr_tensors *t, int index);
MPR_API MPR_MUST_USE mpr_status mpr_tensors_get(const mpr_tensors *t, const char *name, mpr_tensor *out);
MPR_API MPR_MUST_USE mpr_status mpr_tensors_put(mpr_tensors *t, const char *name, const mpr_tensor *tensor); /* copies */
MPR_API void mpr_tensors_destroy(mpr_tensors *t);

typedef struct mpr_run_options {
    size_t size;
    mpr_dtype autocast;
    const char *autocast_profile;
    mpr_dtype dtype;              /* MPR_FLOAT64: compute everything in double by the reference kernels */
    const char *kernels;          /* NULL or "ref" */
    const char *const *bind;      /* "batch=4" …, NULL-terminated */
    const char *const *keep;      /* inner values to return as well */
    const char *loss, *logits, *labels; /* as in mpr_session_options; NULL: no loss */
    int64_t ignore_index;
    bool has_ignore_index;
    float label_smoothing;
    float loss_scale;             /* seed; 0 = 1. Gradients are returned unscaled */
    const char *grads_of;         /* "inputs" (default), "params", "all" */
    int repeat;                   /* run that often; milliseconds of the fastest in *milliseconds */
    double *milliseconds;
    const char *const *tie, *const *untie;
} mpr_run_options;
/* Forward of any importable graph, and its vector-Jacobian product. inputs: by name (initializers that are
 * also inputs may be overridden). cotangents: any subset of float outputs, NULL when only the forward or
 * the loss gradient is wanted. grads: NULL when not wanted. outputs and *grads are created. */
MPR_API MPR_MUST_USE mpr_status mpr_session_vjp(mpr_model *model, const mpr_tensors *inputs, const mpr_tensors *cotangents, const mpr_run_options *options, mpr_tensors **outputs, mpr_tensors **grads);

typedef struct mpr_convert_options {
    size_t size;
    mpr_dtype to;                 /* MPR_FLOAT16, MPR_BFLOAT16; MPR_FLOAT32: the way back */
    const char *mode;             /* "train": FP32 weights stay, casts are inserted; "infer": weights become 16-bit; NULL: "train" when there are float weights */
    const char *autocast_profile; /* as in mpr_session_options; NULL: the decisions that the model carries, else "paint" */
    const char *const *keep_fp32;
    bool dry_run;                 /* nothing is written; *changed tells */
    /* Lists end with NULL. What changes a painting (rules to max_reduction, calib, auto_rtol) is for "paint" and refused
     * elsewhere, and so are io and external in training mode. */
    const char *const *rules;     /* "exclude RULE", "include RULE", "force-include RULE"; RULE is op:RE, node:RE, out:RE, domain:RE or scope:RE; the last match wins */
    const char *lists;            /* file that amends the lists allow, infer, deny, clear */
    const char *const *io;        /* "NAME=keep|fp16|bf16|fp32", NAME of a graph input or output or "all" */
    const char *const *no_guard;  /* "eps", "mask", "variance", "reduction", "loss", "range-act" */
    const char *weights_oor;      /* "keep-fp32" (default), "saturate", "error": weights that do not fit */
    int min_island;               /* 0 = 1 */
    int64_t max_reduction;        /* 0: none */
    const char *external;         /* "auto" (default), "never", "always": where tensor data go */
    bool strict;                  /* a rule that matches nothing is an error */
    bool no_passes;               /* write the file as it was read */
    const char *calib;            /* npz with graph inputs: ranges for the guards */
    double margin;                /* 0 = 4 */
    const char *report, *annotations; /* JSON files to write */
    const char *dot, *svg;        /* pictures to write */
    const char *explain;          /* a node (name, =VALUE or path): its reasons go to *explained, which mpr_free_text frees */
    char **explained;
    int64_t opset;                /* raise the model's opset of ai.onnx to this one first; 0: leave it */
    bool inline_functions;        /* take calls of the model's own functions apart first */
    bool drop_rounding;           /* with MPR_FLOAT32: narrowing Casts of the user go, too */
    const char *const *echo;      /* key, value, key, value …, NULL: options as the report shows them; items of one list follow each other */
    bool annotate;             /* the decisions go into the metadata of an otherwise untouched model */
    /* Check by numbers: the bytes to be written run next to the model in float32, every 16-bit value rounded. Above
     * |difference| <= atol + rtol |float32|: MPR_E_TOLERANCE, nothing is written but the report. */
    const char *verify;           /* npz with graph inputs, several batches stacked in front; NULL: no check */
    double rtol, atol;            /* 0 = usual ones: rtol 0.01, bfloat16 0.08; atol a tenth of rtol times the largest value of the output. Negative: exactly 0 */
    const char *accumulate;       /* NULL, "fp32", or "fp16": sums of products, convolutions and reductions in the 16-bit type */
    double auto_rtol;             /* above 0: nodes stay in float32, worst first, until the outputs agree (on verify, else calib) */
    bool per_node;                /* *verified has a line for each node */
    char **verified;              /* NULL, or where a table for people goes, also on MPR_E_TOLERANCE; mpr_free_text */
} mpr_convert_options;
typedef struct mpr_convert_result {
    size_t size;
    int64_t casts; /* added; with MPR_FLOAT32: taken out */
    int64_t nodes_low, nodes_fp32;
    bool changed;
} mpr_convert_result;
/* Write a mixed-precision copy of the model's file. Checked by an own type check before it is renamed into
 * place; graph inputs, outputs and in training initializers keep their types. What is added is marked, and a later
 * conversion takes it out first: running twice gives the same bytes, MPR_FLOAT32 gives the original. */
MPR_API MPR_MUST_USE mpr_status mpr_convert(mpr_model *model, const char *path, const mpr_convert_options *options, mpr_convert_result *result);

typedef enum mpr_inspect_what {
    MPR_INSPECT_SUMMARY, MPR_INSPECT_PARAMS, MPR_INSPECT_OPS, MPR_INSPECT_PRECISION, MPR_INSPECT_PLAN, MPR_INSPECT_MEMORY,
    MPR_INSPECT_EXPLAIN
} mpr_inspect_what;
typedef struct mpr_inspect_options {
    size_t size;
    mpr_dtype autocast;
    const char *autocast_profile;
    const char *loss, *logits;
    const char *const *bind;
    bool json;
    bool forward_only;
    const char *const *keep_fp32; /* operators or "/globs" of nodes that stay in float32 */
    bool markdown; /* MPR_INSPECT_OPS without a model: a table with types, autocast classes and kernels */
    const char *explain; /* MPR_INSPECT_EXPLAIN: a node, by name, "=VALUE" or path; under the profile, or under each when it is NULL */
} mpr_inspect_options;
/* Report as text or JSON; model may be NULL for MPR_INSPECT_OPS (the program's own table). mpr_free_text. */
MPR_API MPR_MUST_USE mpr_status mpr_inspect(mpr_context *ctx, mpr_model *model, mpr_inspect_what what, const mpr_inspect_options *options, char **text);

/* Rates of this machine for mpr-bench: register-only FMA (FLOP/s), and one GEMM (seconds, best of repeat). */
MPR_API MPR_MUST_USE mpr_status mpr_bench_peak(mpr_context *ctx, double *flops_per_second);
MPR_API MPR_MUST_USE mpr_status mpr_bench_gemm(mpr_context *ctx, int64_t m, int64_t n, int64_t k, mpr_dtype dtype, bool trans_a, bool trans_b, int repeat, double *seconds);
/* Bytes read and written per second by a copy of 64 MiB (best of repeat), by as many threads as the context has. */
MPR_API MPR_MUST_USE mpr_status mpr_bench_copy(mpr_context *ctx, int repeat, double *bytes_per_second);
/* One operator by itself, number `index` of the program's list, best of repeat. Past the last one name is NULL. */
typedef struct mpr_op_rate {
    size_t size;
    const char *name;      /* static */
    char kernel[64];
    double seconds, flops; /* flops 0: the operator is not counted in them */
    double bytes;          /* of inputs and outputs, each once */
} mpr_op_rate;
MPR_API MPR_MUST_USE mpr_status mpr_bench_op(mpr_context *ctx, int index, mpr_dtype dtype, int repeat, mpr_op_rate *rate);
/* Facts of the machine as JSON: CPU, instruction set, BLAS, threads. mpr_free_text. */
MPR_API MPR_MUST_USE mpr_status mpr_environment(mpr_context *ctx, char **json);
/* Multiply-adds (times 2) of one forward (train false) or forward and backward of the current plan. */
MPR_API MPR_MUST_USE mpr_status mpr_session_flops(mpr_session *s, bool train, double *flops);

#ifdef __cplusplus
}
#endif
#endif
