/* Kernels: functions over pointers, shapes, types and a small parameter struct. A kernel never sees
 * a Graph, allocates nothing and keeps no state.
 *
 * Rows are ordered, fastest first, `ref` last. A row may refuse a signature with a reason, which
 * `mpr-inspect --plan` prints. All tensors are contiguous and row-major. Inputs may be
 * constants, which are aligned to their element only; all other buffers start 64-byte aligned. */
#ifndef MPRI_EXEC_KERNEL_H
#define MPRI_EXEC_KERNEL_H

#include <stdbool.h>
#include <stdint.h>
#include "runtime/base/dtype.h"
#include "runtime/base/err.h"

#define MPRI_TENSOR_RANK 8

struct Arena;
struct Device;

typedef struct Tensor {
    void *data;      /* NULL for an absent optional tensor, or at choice time */
    DType dtype;     /* MPR_DTYPE_NONE: absent */
    int rank;
    int64_t dims[MPRI_TENSOR_RANK];
    int64_t n;       /* elements */
    const void *host; /* bytes of a constant input on the host, whatever the device; else NULL */
} Tensor;

static inline bool mpri_tensor_here(const Tensor *t) { return t->dtype != MPR_DTYPE_NONE; }

/* What a row is chosen by, known before step 1. in[k].data and in[k].host are set for constants only (a
 * row may look at an axes list); a kernel that needs constant inputs on the host takes in[k].host when
 * `const_in` has bit k. */
typedef struct KernelSig {
    int op;              /* OpId */
    const void *params;
    int n_in, n_out;
    const Tensor *in, *out;
    uint64_t const_in;   /* bit k (k < 64): input k is a constant and in[k].data is valid */
    int capability;      /* Device.capability */
} KernelSig;

typedef struct Threads Threads; /* one pool per session */
int mpri_threads_count(const Threads *t);
/* Run fn(ctx, tile) for tile 0 .. tiles-1, in any order, on the pool; returns when all are done.
 * With one tile, or a NULL pool, runs on the calling thread. Tiles must not depend on the number of
 * threads. */
void mpri_parallel(Threads *t, int64_t tiles, void (*fn)(void *ctx, int64_t tile), void *ctx);
/* The same, telling which worker (0 .. count-1) runs the tile, for per-worker workspace. */
void mpri_parallel_worker(Threads *t, int64_t tiles,
                          void (*fn)(void *ctx, int64_t tile, int worker), void *ctx);

/* What a kernel reports when data are wrong at run time (an index outside its table). */
typedef struct KernelFault {
    int input;           /* which input holds the value */
    int64_t position;    /* flat position */
    int64_t value, low, high; /* found; allowed low <= value < high */
} KernelFault;

/* The same in the memory of a device: kernels cannot return it, they keep the earliest here. */
typedef struct DeviceFault {
    KernelFault at;
    int step;            /* KernelCall.step_id of who found it; -1: nothing was found */
    unsigned lock;       /* whose turn it is to write */
} DeviceFault;

typedef struct KernelCall {
    const void *params;
    int n_in, n_out;
    const Tensor *in;    /* in-place: out[0].data may equal in[k].data where the OpDef allows it */
    Tensor *out;
    void *workspace;     /* as many bytes as the row asked for, 64-byte aligned, undefined */
    Threads *threads;
    uint64_t seed, step; /* random operators: the run's seed and the number of the forward pass */
    KernelFault *fault;  /* filled by kernels that return MPR_E_INDEX */
    void *held;          /* what the row's prepare made for this step */
    /* Devices with a queue of their own: */
    void *queue;         /* cudaStream_t */
    int step_id;         /* which step of the plan this is */
    DeviceFault *device_fault; /* in device memory; the kernel notes the first position there */
} KernelCall;

/* MPR_OK, MPR_E_INDEX (fault filled) or MPR_E_DEVICE. Nothing else can fail at step time. */
typedef mpr_status (*KernelFn)(const KernelCall *call);

typedef struct KernelRow {
    int op;
    const char *name;    /* "cpu.avx512.matmul", "ref.softmax": <device>.<isa>.<variant> */
    int isa;             /* least instruction set, see kernels/cpu/isa.h; 0 = none */
    KernelFn fn;
    /* NULL: takes everything. Returns NULL to accept, or the reason to refuse (static text). */
    const char *(*refuse)(const KernelSig *sig);
    size_t (*workspace)(const KernelSig *sig, int threads); /* NULL: none */
    double (*flops)(const KernelSig *sig); /* multiply-adds count 2; NULL: not counted */
    /* Once, when the plan is made: what the kernel wants to know in every step (an algorithm, a list
     * of pointers), in memory of `arena`, which lives as long as the plan. NULL: nothing. */
    mpr_status (*prepare)(const KernelSig *sig, struct Device *d, struct Arena *arena, void **held,
                          Err *err);
    /* What prepare chose, as text for the plan: "" says nothing. NULL: nothing to say. */
    void (*describe)(const void *held, char *buf, size_t size);
} KernelRow;

typedef struct KernelTable { const KernelRow *rows; int n; } KernelTable;

/* All tables of a device, fastest first: its own families, then ref. Tables from n_own on run on the
 * host: a device with memory of its own copies in and out around them. */
typedef struct KernelSet { const KernelTable *tables; int n, n_own; } KernelSet;

/* First accepting row for sig with isa <= isa_limit; names of `only` ("ref" or NULL) restrict by
 * prefix. NULL when none; reason receives the last refusal, skipped (may be NULL) a list "row:
 * reason; …". */
typedef struct KernelChoice {
    const KernelRow *row;
    bool on_host;        /* row of a table that is not the device's own */
    char skipped[256];
} KernelChoice;
bool mpri_kernel_choose(const KernelSet *set, const KernelSig *sig, int isa_limit, const char *only,
                        KernelChoice *out);

#endif
