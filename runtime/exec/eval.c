/* One node on constant inputs, by the reference kernels: constant folding and tests. */
#include "runtime/base/size.h"
#include "runtime/exec/plan.h"
#include "runtime/exec/plan_private.h"

mpr_status mpri_eval_node(const KernelSet *ref, const Node *n, const Tensor *in, Tensor *out,
                          Arena *arena, Err *err)
{
    KernelSig sig = {.op = n->op->id,
                     .params = n->params,
                     .n_in = n->n_in,
                     .n_out = n->n_out,
                     .in = in,
                     .out = out,
                     .const_in = ~(uint64_t)0};
    KernelChoice choice;
    for (int i = 0; i < n->n_out; i++) {
        if (!n->out[i]) {
            out[i] = (Tensor){0};
            continue;
        }
        size_t bytes;
        TRY(mpri_tensor_of_value(n->out[i], &out[i], &bytes, err));
        out[i].data = mpri_arena_alloc(arena, bytes);
        if (!out[i].data) {
            mpri_err_nomem(err, bytes);
            return mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name), n->op->name);
        }
    }
    if (!mpri_kernel_choose(ref, &sig, 0, "ref", &choice))
        return mpri_err_set(err, MPR_E_UNSUPPORTED_OP,
                            "node '%s' (%s): no reference kernel for these types%s%s",
                            mpri_err_name(n->name), n->op->name, choice.skipped[0] ? ": " : "",
                            choice.skipped);
    KernelFault fault = {.input = -1};
    KernelCall call = {.params = n->params,
                       .n_in = n->n_in,
                       .n_out = n->n_out,
                       .in = in,
                       .out = out,
                       .fault = &fault};
    size_t bytes = choice.row->workspace ? choice.row->workspace(&sig, 1) : 0;
    if (bytes) {
        call.workspace = mpri_arena_alloc(arena, bytes);
        if (!call.workspace) return mpri_err_nomem(err, bytes);
    }
    mpr_status st = choice.row->fn(&call);
    return st == MPR_OK ? MPR_OK : mpri_fault_error(st, n, &call, err);
}
