/* A step that the device has no kernel for: inputs are copied to the host, the CPU's kernel runs
 * there, outputs and the slots it wrote are copied back. The plan counts such steps and prints them.
 *
 * All of them share one block of host memory, made when the plan gets its memory. */
#include "runtime/base/size.h"
#include "runtime/exec/plan_private.h"

static size_t tensor_bytes(const Tensor *t)
{
    size_t bytes = mpri_tensor_here(t) ? (size_t)t->n * mpri_dtype_size(t->dtype) : 0;
    return (bytes + 63) & ~(size_t)63;
}

/* A constant is read where it lies. */
static bool is_constant(const Tensor *t) { return t->host != NULL; }

mpr_status mpri_host_step_size(Plan *p, PlanStep *s, Err *err)
{
    size_t need = s->workspace_bytes + (size_t)(s->call.n_in + s->call.n_out + 1) * sizeof(Tensor);
    bool fits = mpri_size_align(need, 64, &need) && mpri_size_add(need, 128, &need);
    s->workspace_offset = 0;
    for (int k = 0; k < s->call.n_in; k++)
        if (!is_constant(&s->call.in[k]))
            fits &= mpri_size_add(need, tensor_bytes(&s->call.in[k]), &need);
    for (int k = 0; k < s->call.n_out; k++)
        fits &= mpri_size_add(need, tensor_bytes(&s->call.out[k]), &need);
    if (!fits) return mpri_err_nomem(err, SIZE_MAX);
    if (need > p->staging_bytes) p->staging_bytes = need;
    p->n_host_steps++;
    return MPR_OK;
}

mpr_status mpri_host_step_memory(Plan *p, Err *err)
{
    if (p->staging || !p->staging_bytes) return MPR_OK;
    p->staging = mpri_alloc(p->device->alloc, p->staging_bytes, 64);
    return p->staging ? MPR_OK : mpri_err_nomem(err, p->staging_bytes);
}

static mpr_status copy_in_tensor(Device *d, const Tensor *from, Tensor *to, char **at, Err *err)
{
    *to = *from;
    if (is_constant(from)) {
        to->data = (void *)from->host;
        return MPR_OK;
    }
    size_t bytes = (size_t)from->n * mpri_dtype_size(from->dtype);
    if (!mpri_tensor_here(from)) return MPR_OK;
    to->data = *at;
    *at += tensor_bytes(from);
    return bytes ? d->copy_out(d, to->data, from->data, bytes, err) : MPR_OK;
}

static mpr_status copy_back(Device *d, const Tensor *from, const Tensor *to, Err *err)
{
    size_t bytes = mpri_tensor_here(to) ? (size_t)to->n * mpri_dtype_size(to->dtype) : 0;
    return bytes ? d->copy_in(d, to->data, from->data, bytes, err) : MPR_OK;
}

mpr_status mpri_host_step_run(Plan *p, PlanStep *s, Err *err)
{
    Device *d = p->device;
    KernelCall call = s->call;
    char *at = p->staging;
    call.workspace = s->workspace_bytes ? at : NULL;
    at += (s->workspace_bytes + 63) & ~(size_t)63;
    Tensor *in = (Tensor *)at, *out = in + call.n_in;
    at += (size_t)(call.n_in + call.n_out) * sizeof(Tensor);
    at += -(uintptr_t)at & 63;
    for (int k = 0; k < call.n_in; k++) TRY(copy_in_tensor(d, &s->call.in[k], &in[k], &at, err));
    for (int k = 0; k < call.n_out; k++) {
        out[k] = s->call.out[k];
        out[k].data = mpri_tensor_here(&out[k]) ? at : NULL;
        at += tensor_bytes(&out[k]);
    }
    call.in = in;
    call.out = out;
    TRY(s->row->fn(&call)); /* what was wrong is in the fault, which is the caller's */
    for (int k = 0; k < call.n_in; k++)
        if (mpri_op_mask(s->node->op->writes, k)) TRY(copy_back(d, &in[k], &s->call.in[k], err));
    for (int k = 0; k < call.n_out; k++) TRY(copy_back(d, &out[k], &s->call.out[k], err));
    return MPR_OK;
}
