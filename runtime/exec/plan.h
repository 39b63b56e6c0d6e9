/* A plan: everything a step needs, frozen before step 1. Steps in order, each with its kernel,
 * buffers and parameters; buffers with class, offset, size, first and last use. Running a plan
 * allocates nothing, looks nothing up by name and does no shape arithmetic.
 *
 * Classes: slots (parameters, gradients, moments, state) live in the Store of the session and are
 * shared by all plans; constants are used where they lie (copied when unaligned, and to a device with
 * memory of its own); inputs,
 * activations and workspace share one arena, offsets found greedily by size with best-fit gaps over
 * [first, last use]. */
#ifndef MPRI_EXEC_PLAN_H
#define MPRI_EXEC_PLAN_H

#include "runtime/base/text.h"
#include "runtime/exec/device.h"
#include "runtime/ir/graph.h"

/* ---- the store: persistent memory behind slots, keyed by slot name ---- */
typedef struct StoreSlot {
    const char *name;
    SlotClass cls;
    DType dtype;
    Shape shape;
    int param;
    void *data; /* device memory */
    size_t bytes;
} StoreSlot;

typedef struct Store {
    Device *device;
    Arena arena;
    StoreSlot *slots;
    int n, cap;
    void **blocks; int n_blocks, cap_blocks; /* owned device memory */
    struct StoreIndex *index; /* slots by name */
} Store;

mpr_status mpri_store_init(Store *s, Device *d, Err *err);
/* Makes room for every slot of g that the store does not have yet and initialises it (init
 * converted to the slot's type, or zero). A slot that exists must have the same type and shape
 * (MPR_E_INTERNAL). */
mpr_status mpri_store_add_graph(Store *s, const Graph *g, Err *err);
StoreSlot *mpri_store_find(const Store *s, const char *name); /* NULL when there is none */
size_t mpri_store_bytes(const Store *s, SlotClass cls);
void mpri_store_destroy(Store *s);

/* ---- plan ---- */
typedef enum BufferClass { BUF_ARENA, BUF_SLOT, BUF_CONST, BUF_INPUT } BufferClass;

typedef struct Buffer {
    BufferClass cls;
    size_t offset, bytes;      /* BUF_ARENA, BUF_INPUT: offset in the plan's arena */
    int first, last;           /* step indices of first and last use; -1 before, n_steps after */
    const char *name;          /* of the value that defined it */
    int slot;                  /* BUF_SLOT: index into the store */
    const void *data;          /* BUF_CONST: on the host */
    size_t const_offset;       /* BUF_CONST: in the plan's constants on the device */
} Buffer;

typedef struct PlanStep {
    const Node *node;          /* for names in messages and forensics */
    const KernelRow *row;
    const char *skipped;       /* faster rows that refused, and why; "" when none */
    bool on_host;              /* the device has no kernel: inputs are copied to the host, its kernel
                                  runs there, outputs are copied back */
    KernelCall call;           /* pointers are final once the plan is bound to memory */
    int *in_buffer, *out_buffer;  /* per input/output, -1 absent */
    size_t workspace_bytes, workspace_offset; /* in the arena, or with on_host in the staging */
    Segment segment;
    double flops;
} PlanStep;

typedef struct Plan {
    Arena arena;               /* owns the graph and everything below */
    Graph *graph;              /* bound graph the plan was made from */
    PlanStep *steps;
    int n_steps;
    int segment_end[3];        /* SEG_FORWARD is [0, segment_end[0]), backward up to [1] ... */
    Buffer *buffers;
    int n_buffers;
    int *value_buffer;         /* by value id, -1 none */
    size_t arena_bytes;        /* peak of inputs + activations + workspace, exact */
    size_t live_bound_bytes;   /* lower bound: largest sum of live buffers at any step */
    size_t input_bytes, const_bytes;
    size_t staging_bytes;      /* host memory of the steps on the host, the largest of them */
    void *memory;              /* the arena's memory; owned unless shared */
    bool memory_shared;
    void *constants;           /* on a device with memory of its own, owned */
    void *staging;             /* on the host, owned */
    void **apart;              /* by buffer, owned: each with memory of its own (Device.apart) */
    void *view;                /* what mpri_plan_view copied last, owned */
    size_t view_bytes;
    DeviceGraph *recorded[4];    /* by segment + 1 (0: all): recorded at its second run */
    bool ran[4], no_graph[4];  /* no_graph: steps on the host, or the recording was refused */
    char refused[160];         /* why it was refused, "" */
    bool random;               /* some kernel reads the seed and the step */
    int n_host_steps;          /* steps that run on the host for want of a kernel of the device */
    int n_ref_steps;           /* steps that fell back to a reference kernel although a float op */
    Device *device;
    Store *store;
} Plan;

typedef struct PlanOptions {
    const char *kernels;       /* NULL: all; "ref": reference kernels only */
    bool keep_all;             /* every value keeps its own buffer (mpr-run --keep) */
} PlanOptions;

/* Takes over `arena` (moved into the plan; it must own g). Slots of g are added to the store first.
 * MPR_E_UNSUPPORTED_OP lists every node without a kernel. */
mpr_status mpri_plan_create(Device *d, Store *store, Graph *g, Arena arena, const PlanOptions *o,
                            Plan **out, Err *err);
/* Gives the plan its memory: own (memory NULL) or shared of at least arena_bytes; fills all
 * pointers. Needed once before running; may be called again with other memory. */
mpr_status mpri_plan_bind_memory(Plan *p, void *memory, Err *err);
/* Runs the steps of one segment (or -1: all); where the device records (Device.graphs), the second run is
 * recorded and the recording is run from then on, with the same bits. MPR_E_INDEX names node, tensor, position, value,
 * limit. */
mpr_status mpri_plan_run(Plan *p, int segment, uint64_t seed, uint64_t step, Err *err);
/* The same kernels with a look at every step: watch is called before it (done false; PLAN_SKIP passes
 * it over) and after it, while its inputs, unless written in place, and outputs are there. PLAN_STOP
 * ends the run with MPR_OK. */
typedef enum PlanWord { PLAN_GO, PLAN_SKIP, PLAN_STOP } PlanWord;
typedef PlanWord (*PlanWatch)(void *user, int step, bool done);
mpr_status mpri_plan_run_watched(Plan *p, int segment, uint64_t seed, uint64_t step,
                                 PlanWatch watch, void *user, Err *err);
/* Device memory of a value of the bound graph (inputs to fill by copy_in, outputs to read by
 * copy_out); NULL when it has no buffer. */
void *mpri_plan_value_data(const Plan *p, const Value *v);
/* The bytes of a value on the host, for diagnostics: good until the next call; NULL when it has no
 * buffer or they cannot be had. */
const void *mpri_plan_view(const Plan *p, const Value *v);
/* Waits for the device and asks whether a kernel met wrong data since the last time: MPR_E_INDEX as
 * mpri_plan_run gives it where kernels run at once. */
mpr_status mpri_plan_check(const Plan *p, Err *err);
/* Are wrong data noted (waits)? Forgets them. */
mpr_status mpri_fault_there(Device *d, bool *there, Err *err);
mpr_status mpri_fault_clear(Device *d, Err *err);
/* "node 'x' (Op)" of the step with the largest output, into buf; "" when there is none. For messages. */
const char *mpri_plan_largest(const Plan *p, char *buf, size_t size);
Value *mpri_plan_input(const Plan *p, const char *name);
Value *mpri_plan_output(const Plan *p, const char *name);
/* The frozen plan: a line per step, then buffers and totals. */
mpr_status mpri_plan_print(const Plan *p, Text *out);
void mpri_plan_destroy(Plan *p);

/* Run one node on constant inputs with the reference kernels: constant folding and tests.
 * out[i].data is allocated from the arena. MPR_E_UNSUPPORTED_OP when there is no kernel. */
mpr_status mpri_eval_node(const KernelSet *ref, const Node *n, const Tensor *in, Tensor *out,
                          Arena *arena, Err *err);

/* in exec/memory.c: offsets for buffers with sizes and lifetimes. Returns the peak; fills
 * offset. */
typedef struct MemItem { size_t bytes; int first, last; size_t offset; } MemItem;
mpr_status mpri_memory_plan(MemItem *items, int n, Arena *scratch, size_t *peak,
                            size_t *lower_bound, Err *err);

#endif
