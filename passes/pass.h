/* A pass takes a PassCtx and a Graph, reports whether it changed anything, and leaves a valid graph. One
 * pass = one file with one public function; passes/pipeline.c is the ordered list.
 *
 * Two stages. `prepare` runs once per session on the symbolic graph (recover patterns, attach the loss,
 * autocast); its result depends on types only. `bind` runs per bound shapes on a clone: dims become
 * numbers, shape arithmetic folds away, then autodiff, lowering, fusion, schedule: every shape is known,
 * so gradient rules and fusions never reason about symbols. */
#ifndef MPRI_PASSES_PASS_H
#define MPRI_PASSES_PASS_H

#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/exec/plan.h"
#include "runtime/ir/graph.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"

typedef enum PassStage { STAGE_PREPARE, STAGE_BIND } PassStage;

/* An autocast policy: base profile and rules, last match wins. See passes/profile.h to make one. */
typedef struct Profile Profile;

/* Where gradients start and where they go. */
typedef enum GradTarget {
    GRADS_OFF,
    GRADS_TO_SLOTS,   /* training: seed slot "loss_seed" (f32 scalar); AccumulateGrad into slots "grad:<param>";
                         slot "grad_accumulate" (i32 scalar): 0 = overwrite, 1 = add */
    GRADS_TO_OUTPUTS, /* vjp: a graph input "cotangent:<output>" per seed; graph outputs "grad:<name>" */
} GradTarget;

/* What becomes of BatchNormalization, see passes/batch_norm.c. */
typedef enum BatchNormMode {
    BN_OF_FILE,  /* each node as the file has it */
    BN_TRAIN,    /* training mode; running statistics are slots "buffer:<initializer>" that are updated */
    BN_EVALUATE, /* the same nodes read these slots */
} BatchNormMode;

typedef struct PassOptions {
    /* loss */
    const char *loss;     /* NULL: none; "cross-entropy", "mse", "l1", "bce-with-logits", "output:NAME" */
    const char *logits;   /* output name; NULL: the only one, or the one named logits */
    const char *labels;   /* name of the graph input that the loss pass makes: "labels" */
    int64_t ignore_index;
    float label_smoothing;
    bool count_labels;    /* of a loss of the model: graph output "mpr.loss_count", see loss_count.c */
    /* precision */
    DType autocast;       /* MPR_DTYPE_NONE: off */
    const Profile *profile; /* needed when autocast is on */
    DType force;          /* MPR_FLOAT64: every float value becomes f64 (mpr-run --dtype f64); else NONE */
    /* gradients */
    GradTarget grads;
    const char *const *seeds; int n_seeds;  /* GRADS_TO_OUTPUTS: output names that get a cotangent */
    bool grads_of_inputs, grads_of_params;  /* GRADS_TO_OUTPUTS */
    bool training;        /* Dropout active etc. */
    bool has_dropout;     /* with training: every Dropout gets this ratio, or is put in */
    float dropout;
    BatchNormMode batch_norm;
    bool bn_train;        /* BN_TRAIN, BN_EVALUATE: all nodes, not only those that the file has in training mode */
    bool keep_copies;     /* 16-bit copies of parameters are slots: see passes/copies.c */
    bool no_fuse;         /* keep all named values (mpr-run --keep) */
    const char *dump_after; /* NULL, a pass name or "all" */
    /* Contents of a constant have been looked at and are not needed again soon; NULL: no one cares. */
    void (*seen)(const void *user, const void *bytes, size_t n);
    const void *seen_user;
} PassOptions;

/* What a graph input holds, for sizes that follow from it (mpr-run): the data outlive the pass.
 * Without data only its shape is known. */
typedef struct FedInput {
    const char *name;
    Tensor t;
} FedInput;

typedef struct PassCtx {
    Arena *scratch;             /* reset by the runner after every pass */
    const Alloc *alloc;
    const Log *log;
    const PassOptions *o;
    const KernelSet *ref;       /* for constant folding */
    const DimBinding *binding;  /* bind stage only */
    const FedInput *fed;        /* bind stage: contents that sizes may depend on; NULL: shapes alone decide */
    int n_fed;
} PassCtx;

typedef mpr_status (*PassFn)(PassCtx *ctx, Graph *g, bool *changed, Err *err);

typedef struct PassRow {
    const char *name;
    PassStage stage;
    PassFn fn;
    const char *help; /* what it needs and what it leaves, one line */
} PassRow;

const PassRow *mpri_passes(int *count);
/* Run all rows of a stage, with inference, validation (debug builds: always; release: at the end) and dumps. */
mpr_status mpri_passes_run(PassCtx *ctx, PassStage stage, Graph *g, Err *err);

/* ---- prepare ---- */
mpr_status mpri_pass_simplify(PassCtx *, Graph *, bool *, Err *);  /* Identity, Constant, dead code; casts of constants */
mpr_status mpri_pass_narrow(PassCtx *, Graph *, bool *, Err *);    /* f32 nodes of a converted file that are meant to be in 16 bits */
mpr_status mpri_pass_recover(PassCtx *, Graph *, bool *, Err *);   /* LayerNorm, Gelu, Linear from their exported forms */
mpr_status mpri_pass_dropout(PassCtx *, Graph *, bool *, Err *);   /* PassOptions.dropout */
mpr_status mpri_pass_batch_norm(PassCtx *, Graph *, bool *, Err *); /* mode of BatchNormalization, its statistics as slots */
mpr_status mpri_pass_loss(PassCtx *, Graph *, bool *, Err *);      /* attach the loss: graph output "loss" */
mpr_status mpri_pass_autocast(PassCtx *, Graph *, bool *, Err *);  /* classes -> casts, reasons in Node.why */
mpr_status mpri_pass_tidy(PassCtx *, Graph *, bool *, Err *);      /* casts in their normal form */
mpr_status mpri_pass_widen(PassCtx *, Graph *, bool *, Err *);     /* PassOptions.force: every float value becomes f64 */
/* ---- bind ---- */
mpr_status mpri_pass_bind(PassCtx *, Graph *, bool *, Err *);      /* dims become numbers; inference again */
mpr_status mpri_pass_fold(PassCtx *, Graph *, bool *, Err *);      /* constants computed, shape code gone */
mpr_status mpri_pass_slide(PassCtx *, Graph *, bool *, Err *);     /* narrowing casts before layout operators */
mpr_status mpri_pass_attention(PassCtx *, Graph *, bool *, Err *); /* MatMul, Softmax, MatMul as one Attention */
mpr_status mpri_pass_running(PassCtx *, Graph *, bool *, Err *);   /* updates of running statistics */
mpr_status mpri_pass_autodiff(PassCtx *, Graph *, bool *, Err *);
mpr_status mpri_pass_lower(PassCtx *, Graph *, bool *, Err *);     /* MatMul, Gemm, Linear -> FusedMatMul; transposes into it */
mpr_status mpri_pass_copies(PassCtx *, Graph *, bool *, Err *);    /* casts of parameters become slots */
mpr_status mpri_pass_recompute(PassCtx *, Graph *, bool *, Err *); /* 16-bit values that backward can make again */
mpr_status mpri_pass_fuse(PassCtx *, Graph *, bool *, Err *);      /* bias + activation epilogues, casts into kernels */
mpr_status mpri_pass_schedule(PassCtx *, Graph *, bool *, Err *);  /* order that frees memory early */

/* passes/loss_count.c: an f32 scalar. MPR_E_USAGE when the loss is not a mean over labels; name: of the loss. */
#define MPRI_LOSS_COUNT "mpr.loss_count"
mpr_status mpri_loss_count(Builder *b, Value *loss, const char *name, Value **count);

/* passes/copies.c: name of the slot that holds the parameter's slot `master` ("param:NAME") in type t. */
const char *mpri_copy_name(Arena *a, const char *master, DType t);

/* Node.why of a node that autocast lets compute in f32 for the sake of a scalar, and of the Cast behind it. */
extern const char mpri_autocast_inside[];

/* passes/profile.c */
mpr_status mpri_profile_load(const char *name_or_file, const char *const *keep_fp32, Arena *arena, Profile **out, Err *err);
typedef struct CastDecision { CastClass cls; const char *why; } CastDecision;
CastDecision mpri_profile_class(const Profile *p, const Node *n); /* why: static or in the profile's arena */
/* Rules that matched nothing so far, for the report; NULL-terminated list in arena. */
const char *const *mpri_profile_unmatched(const Profile *p, Arena *arena);

#endif
