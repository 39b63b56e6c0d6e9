/* The null device: the kernels of another device are chosen and planned for, memory is real,
 * nothing runs. For plans, memory bills and counts on machines that could not run the model. */
#include "runtime/exec/device.h"

#include <string.h>

static mpr_status null_alloc(Device *d, size_t bytes, void **out, Err *err)
{
    *out = mpri_alloc(d->alloc, bytes ? bytes : 64, 64);
    if (!*out) return mpri_err_nomem(err, bytes);
    memset(*out, 0, bytes);
    return MPR_OK;
}

static void null_free(Device *d, void *p)
{
    mpri_free(d->alloc, p);
}

static mpr_status null_copy(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    (void)d;
    (void)err;
    if (bytes) memcpy(dst, src, bytes);
    return MPR_OK;
}

static mpr_status null_zero(Device *d, void *dst, size_t bytes, Err *err)
{
    (void)d;
    (void)err;
    if (bytes) memset(dst, 0, bytes);
    return MPR_OK;
}

static mpr_status null_launch(Device *d, const KernelRow *row, const KernelCall *call, Err *err)
{
    (void)err;
    (void)row;
    (void)call;
    d->launches++;
    return MPR_OK;
}

static void null_destroy(Device *d)
{
    mpri_free(d->alloc, d);
}

mpr_status mpri_device_null_for(const Alloc *alloc, KernelSet kernels, int isa, Device **out,
                                Err *err)
{
    Device *d = mpri_alloc(alloc, sizeof *d, 64);
    *out = d;
    if (!d) return mpri_err_nomem(err, sizeof *d);
    *d = (Device){.name = "null",
                  .kernels = kernels,
                  .isa = isa,
                  .isa_name = "none",
                  .alloc = alloc,
                  .mem_alloc = null_alloc,
                  .mem_free = null_free,
                  .copy_in = null_copy,
                  .copy_out = null_copy,
                  .zero = null_zero,
                  .shared = true,
                  .launch = null_launch,
                  .destroy = null_destroy};
    return MPR_OK;
}

void mpri_device_destroy(Device *d)
{
    if (d) d->destroy(d);
}
