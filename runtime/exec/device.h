/* The seam to a device: a struct of function pointers. `cpu` and `cuda` run, `null` plans and counts
 * only.
 *
 * Memory of a device is touched by the host through copy_in, copy_out and zero only, whatever the
 * device; where `shared` is set the pointers are the host's as well, and diagnostics may look
 * without a copy. Work is done in the order in which it is given: copy_in, zero and launch may return
 * before it is done, copy_out and synchronize wait. */
#ifndef MPRI_EXEC_DEVICE_H
#define MPRI_EXEC_DEVICE_H

#include "runtime/base/alloc.h"
#include "runtime/exec/kernel.h"

typedef struct DeviceGraph DeviceGraph; /* a recorded sequence of launches and copies */

/* Late reads, taken some steps after they are asked for: places, and bytes of each. */
enum { DEVICE_LATE = 8, DEVICE_LATE_BYTES = 256 };

typedef struct Device Device;
struct Device {
    const char *name;           /* "cpu", "cuda", "null" */
    KernelSet kernels;
    int isa;                    /* instruction set in use (MPR_CPU_ISA may lower it) */
    const char *isa_name;       /* or what kind of processor a GPU is */
    int capability;             /* compute capability of a GPU, 80 for 8.0; 0: no GPU */
    Threads *threads;           /* owned */
    const Alloc *alloc;
    bool shared;                /* the host reads its memory without waiting for anything */
    bool apart;                 /* every buffer of a plan gets memory of its own (tests) */
    void *queue;                /* what KernelCall.queue is, or NULL */
    DeviceFault *fault;         /* in the device's memory: where kernels note wrong data; NULL when
                                   they return it */
    uint64_t *counter;          /* in the device's memory: seed and step of the pass, for recorded
                                   launches, which are run again with other numbers; NULL: none */
    bool fused_update;          /* the optimizer's kernel unscales and clips as it reads the gradients, and
                                   writes the parameters' 16-bit copies, which are kept; else gradients
                                   are scaled in passes of their own and weights are cast in each step,
                                   which takes less memory */
    bool tune;                  /* plans time what a library offers and keep the fastest */
    bool graphs;                /* plans may record their segments and run them as graphs */
    /* Memory of the device, 64-byte aligned, zeroed (every page touched) before it is returned.
     * MPR_E_NOMEM says what was asked for and, where the device knows, what is free. */
    mpr_status (*mem_alloc)(Device *d, size_t bytes, void **out, Err *err);
    void (*mem_free)(Device *d, void *p); /* NULL-safe; waits for work that uses it */
    /* dst on the device; src may be changed as soon as it returns. */
    mpr_status (*copy_in)(Device *d, void *dst, const void *src, size_t bytes, Err *err);
    mpr_status (*copy_out)(Device *d, void *dst, const void *src, size_t bytes, Err *err);
    mpr_status (*zero)(Device *d, void *dst, size_t bytes, Err *err);
    /* Optional, all or none: of devices with memory of their own. move copies within it. stage is copy_in of
     * what every step brings anew (inputs): where work is put off it is no reason to do it now. late_copy
     * asks for bytes as they will be when all that was given is done, late_take waits for those and hands
     * them over: what was given in between goes on meanwhile. */
    mpr_status (*move)(Device *d, void *dst, const void *src, size_t bytes, Err *err);
    mpr_status (*stage)(Device *d, void *dst, const void *src, size_t bytes, Err *err);
    mpr_status (*late_copy)(Device *d, int place, const void *src, size_t bytes, Err *err);
    mpr_status (*late_take)(Device *d, int place, void *dst, size_t bytes, Err *err);
    /* Launch one kernel; NULL: call->fn on the calling thread. A device that sets err has its own
     * words for what failed; the caller adds the node. */
    mpr_status (*launch)(Device *d, const KernelRow *row, const KernelCall *call, Err *err);
    mpr_status (*synchronize)(Device *d, Err *err); /* optional */
    /* Optional: a device may put work off until it sees more of it; now nothing more comes soon. */
    mpr_status (*submit)(Device *d, Err *err);
    /* Optional: bytes that are free and that there are. */
    mpr_status (*memory_info)(Device *d, size_t *free_bytes, size_t *total, Err *err);
    /* Optional, all or none: what is given between begin and end is recorded, not done; end gives
     * the recording (NULL with abandon). graph_launch does it all again. A refused recording leaves
     * the device as it was: MPR_E_DEVICE, and step by step still works. */
    mpr_status (*capture_begin)(Device *d, Err *err);
    mpr_status (*capture_end)(Device *d, bool abandon, DeviceGraph **out, Err *err);
    mpr_status (*graph_launch)(Device *d, DeviceGraph *g, Err *err);
    void (*graph_destroy)(Device *d, DeviceGraph *g); /* NULL-safe */
    void (*destroy)(Device *d);
    int64_t launches;           /* null device: how many kernels would have run */
};

/* In kernels/cpu/device_cpu.c. threads 0 = as many as the process may use. MPR_E_USAGE for a bad
 * MPR_CPU_ISA (allowed names given). */
mpr_status mpri_device_cpu(const Alloc *alloc, int threads, Device **out, Err *err);
/* Plans for the CPU's kernels and runs none (also in device_cpu.c). */
mpr_status mpri_device_null(const Alloc *alloc, Device **out, Err *err);
/* The null device for the kernels and instruction set of any other device. */
mpr_status mpri_device_null_for(const Alloc *alloc, KernelSet kernels, int isa, Device **out,
                                Err *err);
/* In kernels/cuda/device_cuda.c: GPU number `index`; threads are for operators without a CUDA
 * kernel. MPR_E_DEVICE says what was looked for and what is missing. Weak: NULL in a build without
 * CUDA. */
mpr_status mpri_device_cuda(const Alloc *alloc, int index, int threads, Device **out, Err *err)
    __attribute__((weak));
void mpri_device_destroy(Device *d); /* NULL-safe */

/* Flush-to-zero off, round to nearest: set at API entry, restored at exit (host state is the
 * host's). */
typedef struct FpMode { unsigned saved; } FpMode;
FpMode mpri_fpmode_enter(void);
void mpri_fpmode_leave(FpMode m);

#endif
