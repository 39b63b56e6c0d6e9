/* The seam to a device: a struct of function pointers. `cpu` runs; `null` plans and counts only. */
#ifndef MPRI_EXEC_DEVICE_H
#define MPRI_EXEC_DEVICE_H

#include "runtime/base/alloc.h"
#include "runtime/exec/kernel.h"

typedef struct Device Device;
struct Device {
    const char *name;           /* "cpu", "null" */
    KernelSet kernels;
    int isa;                    /* instruction set in use (MPR_CPU_ISA may lower it) */
    const char *isa_name;
    Threads *threads;           /* owned */
    const Alloc *alloc;
    bool shared;                /* the host reads its memory without waiting for anything */
    /* Memory of the device, 64-byte aligned, touched (every page written) before it is returned. */
    mpr_status (*mem_alloc)(Device *d, size_t bytes, void **out, Err *err);
    void (*mem_free)(Device *d, void *p);
    mpr_status (*copy_in)(Device *d, void *dst, const void *src, size_t bytes, Err *err);
    mpr_status (*copy_out)(Device *d, void *dst, const void *src, size_t bytes, Err *err);
    /* Launch one kernel; NULL: call->fn on the calling thread. */
    mpr_status (*launch)(Device *d, const KernelRow *row, const KernelCall *call);
    mpr_status (*synchronize)(Device *d, Err *err); /* optional */
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
void mpri_device_destroy(Device *d); /* NULL-safe */

/* Flush-to-zero off, round to nearest: set at API entry, restored at exit (host state is the
 * host's). */
typedef struct FpMode { unsigned saved; } FpMode;
FpMode mpri_fpmode_enter(void);
void mpri_fpmode_leave(FpMode m);

#endif
