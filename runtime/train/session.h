/* Session: a model made trainable.
 *
 * Life: open (clone the model's graph, choose trained parameters, make slots, run the prepare
 * passes once for training and once for evaluation) -> bind inputs -> forward, backward, evaluate
 * (a plan per bound shapes, cached) -> close. Persistent memory lies in the store, keyed by slot
 * name; all plans of a session share one arena memory, which only grows when a plan is made, never
 * inside a step.
 *
 * Gradient buffers carry a small record each (present, scaled, generation): the order rules of the
 * loss scaler are decided by it, see scaler.c. */
#ifndef MPRI_TRAIN_SESSION_H
#define MPRI_TRAIN_SESSION_H

#include "passes/pass.h"
#include "runtime/base/size.h"
#include "runtime/train/context.h"

typedef enum SessionMode { MODE_TRAIN, MODE_EVAL, SESSION_MODES } SessionMode;

typedef struct SessionParam {
    int index;        /* into graph->params */
    const char *name; /* initializer */
    const char *public_name;
    const char *slot;      /* "param:<name>" */
    const char *grad_slot; /* "grad:<name>" */
    Shape shape;
    int64_t n;
    mpr_optimizer *owner;
    /* gradient buffer */
    bool present;       /* something was written since it was zeroed */
    bool scaled;        /* and not unscaled yet */
    const mpr_scaler *by; /* that scaled it; NULL: none, or set by hand */
    bool unscaled;      /* mpr_scaler_unscale went over it */
    int64_t generation; /* of its first write since it was zeroed */
} SessionParam;

typedef struct SessionBuffer { /* state that forward passes write: running statistics */
    const char *name; /* initializer */
    const char *slot; /* "buffer:<name>", f32 */
    int64_t n;
} SessionBuffer;

typedef struct SessionInput {
    const char *name;
    DType dtype;
    Shape declared;
    int rank;
    int64_t dims[MPRI_MAX_RANK];
    void *data; /* what was bound, in `dtype` */
    size_t bytes, capacity;
    bool bound;
} SessionInput;

/* A micro-batch of an accumulation window that has given way to another one. */
typedef struct SessionBatch {
    SessionInput *inputs; /* parallel to the session's; their buffers stay for the next window */
    uint64_t forward;     /* number of its forward pass */
    float divisor;        /* of its loss gradient */
    bool kept;            /* the inputs are those of this batch */
} SessionBatch;

/* The model with the control flow that shapes decide (trip counts), for one set of shapes. */
typedef struct SessionSource {
    const mpr_model *model; /* of the mode */
    ImportedModel *m;
    int64_t *key; /* as of a plan */
    struct SessionSource *next;
} SessionSource;

typedef struct SessionPlan {
    SessionMode mode;
    Plan *plan;
    int64_t *key;      /* rank and dims of every input */
    Value **inputs;    /* plan's value per session input, NULL when the plan does not read it */
    bool *writes_grad; /* per session parameter */
    struct SessionPlan *next;
} SessionPlan;

/* Who may look at the kernels of a training step. */
enum { WATCH_STATS, WATCH_FRAMES, SESSION_WATCHES };

struct mpr_session {
    Handle h;
    mpr_context *ctx;
    mpr_model *model;
    Arena arena; /* options, graphs, tables */
    Device *device;
    Store store;
    bool store_ready;
    mpr_session_options o; /* strings copied */
    const char *loss;      /* resolved: NULL, "cross-entropy", "mse", "output:NAME" … */
    int64_t ignore_index;
    Profile *profile[SESSION_MODES];        /* NULL: types as in the file */
    DType autocast[SESSION_MODES];
    PassOptions pass[SESSION_MODES];
    Graph *graph[SESSION_MODES]; /* prepared; equal pointers when the two do not differ */
    SessionParam *params;
    int n_params;
    SessionBuffer *buffers;
    int n_buffers;
    SessionInput *inputs;
    int n_inputs;
    mpr_model *painted[SESSION_MODES];      /* that the converter rewrote for the profile, or NULL */
    ImportedModel *stand_in[SESSION_MODES]; /* the model with trip counts for made-up shapes, where
                                only shapes tell them: what is trained follows from it; else NULL */
    SessionSource *sources;
    SessionPlan *plans;
    void *memory; /* shared arena of the plans */
    size_t memory_bytes;
    SessionPlan *current; /* plan of the last forward or evaluate, NULL when inputs changed shape */
    bool forward_done;    /* a backward may follow */
    bool backward_done;   /* since the last forward */
    bool outputs_valid;
    float loss_divisor;
    uint64_t forward_count; /* number of training forwards: counter of the random operators */
    int64_t generation;     /* window generation, advanced by the scaler */
    mpr_scaler *scalers;    /* list: their order rules hold for all gradients */
    SessionBatch *window; /* micro-batches whose gradients are in the buffers, but the bound one */
    int n_window, cap_window;
    size_t window_bytes;   /* kept in this window */
    bool in_window;        /* the bound batch has been run backward */
    uint64_t window_forward;
    float window_divisor;  /* of the bound batch */
    bool window_elsewhere; /* a data set can bind all of them again: nothing is copied */
    bool copies_stale;     /* 16-bit copies of parameters are to be written before the next pass */
    int n_copies;          /* that there are */
    bool refusal_told;     /* that the device refused to record a plan */
    PlanWatch watch[SESSION_WATCHES]; /* looks at every kernel of a training step; NULL: none */
    void *watch_user[SESSION_WATCHES];
    struct NonFinite *nonfinite; /* what mpr_session_find_nonfinite found last */
    void *fetch;            /* conversion buffer of mpr_session_output */
    size_t fetch_bytes;
    int optimizers, scalers_made; /* so far: numbers of their slots */
    mpr_prepared *late;     /* whose steps may be under way, or NULL */
    int children;   /* optimizers, scalers, datasets … alive */
};

/* The model whose graph a mode runs. */
static inline mpr_model *mpri_session_model(const mpr_session *s, SessionMode mode)
{
    return s->painted[mode] ? s->painted[mode] : s->model;
}

/* ---- life (session.c) ---- */
mpr_status mpri_session_open(mpr_model *model, const mpr_session_options *options,
                             mpr_session **out, Err *err);
void mpri_session_close(mpr_session *s);
/* The graph of a mode after the prepare passes, made in `arena` from an imported one. */
mpr_status mpri_session_prepare(mpr_session *s, SessionMode mode, const Graph *source, Arena *arena,
                                Graph **out, Err *err);
/* The same with other options, without a word in the log. */
mpr_status mpri_session_prepare_as(mpr_session *s, const PassOptions *o, const Log *log,
                                   const Graph *source, Arena *arena, Graph **out, Err *err);
/* Copies NULL-terminated strings into an arena; NULL stays NULL. */
mpr_status mpri_copy_strings(Arena *a, const char *const *list, const char *const **out, Err *err);

/* ---- parameters (session_param.c) ---- */
/* Applies freeze/train_only to the clone and makes slots of the trained parameters. */
mpr_status mpri_session_select_params(mpr_session *s, Graph *g, Err *err);
mpr_status mpri_session_list_params(mpr_session *s, const Graph *g, Err *err);
/* Slot "param:<name>" in f32 instead of each trained constant, with a cast to the file's type where
 * it differs. */
mpr_status mpri_graph_make_param_slots(Graph *g, Err *err);
/* By initializer name or public name; MPR_E_USAGE offers the nearest. */
mpr_status mpri_session_find_param(mpr_session *s, const char *name, SessionParam **out, Err *err);
mpr_status mpri_session_param_get(mpr_session *s, const char *name, float *data, int64_t count,
                                  Err *err);
mpr_status mpri_session_param_set(mpr_session *s, const char *name, const float *data,
                                  int64_t count, Err *err);
mpr_status mpri_session_grad_get(mpr_session *s, const char *name, float *data, int64_t count,
                                 Err *err);
mpr_status mpri_session_grad_set(mpr_session *s, const char *name, const float *data, int64_t count,
                                 Err *err);
/* A further backward by hand: added in f32, with the order rules of mpr_session_backward. */
mpr_status mpri_session_grad_add(mpr_session *s, const char *name, const float *data, int64_t count,
                                 Err *err);
/* Gradients as they are meant, before something reads or writes their buffers: factors that optimizers keep
 * for the step go in. */
mpr_status mpri_session_settle_grads(mpr_session *s, Err *err);
mpr_status mpri_session_zero_grad(mpr_session *s, Err *err);
/* The slot of the store; made (zeroed) when it is not there yet. */
mpr_status mpri_session_slot(mpr_session *s, const char *name, SlotClass cls, DType t,
                             const Shape *shape, int param, StoreSlot **out, Err *err);
/* Names (initializers) and slots of all that a saved model holds: trained parameters, then buffers.
 * Lists of *n entries in the arena. */
mpr_status mpri_session_saved(const mpr_session *s, Arena *arena, const char *const **names,
                              const char *const **slots, int *n, Err *err);
mpr_status mpri_session_export(mpr_session *s, const char *path, Err *err);

/* ---- plans (session_plan.c) ---- */
/* The plan for the shapes bound so far, made when there is none yet. */
mpr_status mpri_session_plan(mpr_session *s, SessionMode mode, SessionPlan **out, Err *err);
void mpri_session_plans_free(mpr_session *s);
mpr_status mpri_session_memory(mpr_session *s, mpr_memory_bill *out, Err *err);
/* The training plan of the bound shapes with a kernel for each node, in memory of its own. */
mpr_status mpri_session_unfused(mpr_session *s, Plan **out, Err *err);
/* The plan of training beside that of float32 throughout, for the bound shapes. */
typedef struct SessionForecast {
    bool known;               /* false without autocast */
    size_t memory, memory_f32; /* activations, workspace, 16-bit copies of weights */
    double bytes, bytes_f32;  /* read and written in a step */
} SessionForecast;
mpr_status mpri_session_forecast(mpr_session *s, SessionForecast *out, Err *err);
/* For people: what is to be expected, and a warning where 16 bits do not pay. */
void mpri_session_forecast_print(const mpr_session *s, const SessionForecast *f, Text *out);
mpr_status mpri_session_plan_print(mpr_session *s, char **text, Err *err);
mpr_status mpri_session_flops(mpr_session *s, bool train, double *flops, Err *err);

/* Runs one operator over slots by their names; its plan is made when *plan is NULL (slot_plan.c). */
mpr_status mpri_session_run_slots(mpr_session *s, const OpDef *op, const char *const *slots, int n,
                                  Plan **plan, Err *err);

/* ---- 16-bit copies of parameters (session_copies.c) ---- */
enum { MPRI_COPIES = 2 }; /* types that a parameter may be kept in */
/* The copy in the type number `which`, or NULL. */
const StoreSlot *mpri_session_copy(const mpr_session *s, const SessionParam *p, int which, Arena *a,
                                   Err *err);
/* Before a pass: writes those that are stale. */
mpr_status mpri_session_copies(mpr_session *s, Err *err);

/* ---- running (session_run.c) ---- */
mpr_status mpri_session_bind(mpr_session *s, const char *name, const void *data, DType dtype,
                             const int64_t *dims, int rank, Err *err);
mpr_status mpri_session_forward(mpr_session *s, float *loss, Err *err);
mpr_status mpri_session_evaluate(mpr_session *s, float *loss, Err *err);
mpr_status mpri_session_backward(mpr_session *s, mpr_scaler *scaler, Err *err);
mpr_status mpri_session_output(mpr_session *s, const char *name, mpr_tensor *out, Err *err);
mpr_status mpri_session_label_count(mpr_session *s, double *count, Err *err);
/* Some scaler of the session is enabled: gradients that are set by hand count as scaled. */
bool mpri_session_scales(const mpr_session *s);
SessionInput *mpri_session_find_input(mpr_session *s,
                                      const char *name); /* NULL when there is none */
/* Name under which labels are bound: of the options, else "labels". */
const char *mpri_session_labels(const mpr_session *s);

/* Room for the contents of an input. */
mpr_status mpri_session_reserve(mpr_session *s, SessionInput *in, size_t bytes, Err *err);

/* ---- micro-batches of a window (session_window.c) ---- */
/* The bound batch is about to give way, or to be run again: if the window goes on, it is kept. */
void mpri_window_retire(mpr_session *s);
/* The bound batch has been run backward. Before its parameters count as present. */
void mpri_window_take(mpr_session *s);
/* Exchanges what is bound with what was kept. */
void mpri_window_swap(mpr_session *s, SessionBatch *b);
void mpri_window_free(mpr_session *s);
/* A copy of what is bound; binds what was kept; may so many batches like the bound one be kept? */
mpr_status mpri_window_keep(mpr_session *s, SessionBatch *b, Err *err);
mpr_status mpri_window_bind(mpr_session *s, const SessionBatch *b, Err *err);
bool mpri_window_fits(const mpr_session *s, int batches);
void mpri_window_batch_free(mpr_session *s, SessionBatch *b);

/* ---- forensics (forensics.c) ---- */
/* First non-finite tensor of the last forward (and backward): text into buf. False when all are
 * finite. */
bool mpri_session_first_bad(mpr_session *s, bool backward, char *buf, size_t size);
/* First non-finite parameter gradient as it lies in its buffer: cheap, one sweep. */
bool mpri_session_first_bad_gradient(mpr_session *s, char *buf, size_t size);
/* Index of the first non-finite element, -1 when there is none. */
int64_t mpri_first_nonfinite(DType t, const void *data, int64_t n);

#endif
