/* One node after the other by the kernels of the device, see evaluate.h. Products go through the
 * kernel that all of them are lowered to; it sums in float32 and rounds once, as in training.
 *
 * The trap: kernels may expect buffers at 64 bytes, and see constants where they lie. */
#include "convert/evaluate.h"

#include <string.h>

#include "runtime/exec/plan_private.h"

enum { ALIGN = 64 };

static void *aligned(Arena *arena, size_t bytes)
{
    uint8_t *p = bytes > SIZE_MAX - ALIGN ? NULL : mpri_arena_alloc(arena, bytes + ALIGN);
    return p ? p + (ALIGN - (uintptr_t)p % ALIGN) % ALIGN : NULL;
}

static mpr_status no_room(size_t bytes, const Arena *arena, Err *err)
{
    if (!arena->limit || bytes + ALIGN <= arena->limit - arena->used)
        return mpri_err_nomem(err, bytes);
    mpri_err_set(err, MPR_E_NOMEM, "the values of one run need more than %zu bytes", arena->limit);
    return mpri_err_advice(err, "verify on smaller inputs, or raise mpr_limits.memory_bytes");
}

bool mpri_evaluate_cast(const Tensor *t, DType to, Arena *arena, Tensor *out)
{
    *out = *t;
    if (t->dtype == to || !mpri_dtype_is_float(t->dtype) || !mpri_dtype_is_float(to)) return true;
    out->dtype = to;
    out->data = aligned(arena, (size_t)t->n * mpri_dtype_size(to));
    if (!out->data) return false;
    for (int64_t i = 0; i < t->n; i++)
        mpri_store_f64(to, out->data, i, mpri_load_f64(t->dtype, t->data, i));
    return true;
}

mpr_status mpri_values_begin(const Evaluator *e, const BoundModel *b, const Alloc *alloc,
                             Values *out, Err *err)
{
    const Graph *g = b->g;
    mpri_arena_init(&out->arena, alloc, e->memory);
    out->v = ARENA_ARRAY(&out->arena, Tensor, g->n_values + 1);
    if (!out->v) return no_room(sizeof(Tensor) * (size_t)g->n_values, &out->arena, err);
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i];
        size_t bytes;
        if (v->kind != VAL_CONST || (!v->n_uses && !v->n_outputs)) continue;
        TRY(mpri_tensor_of_value(v, &out->v[i], &bytes, err));
        out->v[i].data = (void *)(uintptr_t)v->data;
    }
    for (int i = 0; i < b->n_fed; i++) {
        const Value *v = mpri_graph_find_value(g, b->fed[i].name);
        if (v && v->kind == VAL_INPUT) out->v[v->id] = b->fed[i].t;
    }
    return MPR_OK;
}

void mpri_values_end(Values *v)
{
    mpri_arena_destroy(&v->arena);
    *v = (Values){0};
}

/* ---- one node ---- */

/* MatMul and Gemm as the product that they are lowered to; false: they run as they are. */
static bool as_product(const Node *n, const Tensor *in, FusedMatMulParams *p, KernelSig *sig)
{
    bool bias = n->n_in > 2 && mpri_tensor_here(&in[2]);
    *p = (FusedMatMulParams){.alpha = 1, .activation = ""};
    if (mpri_is(n, OP_Gemm)) {
        const GemmParams *g = n->params;
        if (bias && (g->beta != 1 || in[2].rank != 1 || in[2].n != sig->out[0].dims[1]))
            return false;
        p->alpha = g->alpha;
        p->trans_a = g->trans_a;
        p->trans_b = g->trans_b;
    } else if (!mpri_is(n, OP_MatMul) || in[0].rank < 2 || in[1].rank < 2) {
        return false;
    }
    if (!mpri_dtype_is_float(in[0].dtype)) return false;
    sig->op = OP_FusedMatMul;
    sig->params = p;
    sig->n_in = bias ? 3 : 2;
    return true;
}

static mpr_status make_outputs(const Node *n, Tensor *out, Arena *arena, Err *err)
{
    for (int k = 0; k < n->n_out; k++) {
        size_t bytes;
        out[k] = (Tensor){0};
        if (!n->out[k]) continue;
        TRY(mpri_tensor_of_value(n->out[k], &out[k], &bytes, err));
        out[k].data = aligned(arena, bytes);
        if (!out[k].data) return no_room(bytes, arena, err);
    }
    return MPR_OK;
}

static mpr_status call(const Evaluator *e, const Node *n, const Tensor *in, Tensor *out,
                       Arena *arena, Err *err)
{
    KernelSig sig = {.op = n->op->id, .params = n->params, .n_in = n->n_in, .n_out = n->n_out,
                     .in = in, .out = out, .const_in = ~(uint64_t)0};
    FusedMatMulParams product;
    KernelChoice choice = {0};
    if (!as_product(n, in, &product, &sig) ||
        !mpri_kernel_choose(&e->device->kernels, &sig, e->device->isa, NULL, &choice)) {
        sig.op = n->op->id;
        sig.params = n->params;
        sig.n_in = n->n_in;
        if (!mpri_kernel_choose(&e->device->kernels, &sig, e->device->isa, NULL, &choice))
            return mpri_err_set(err, MPR_E_UNSUPPORTED_OP, "no kernel for these types%s%s",
                                choice.skipped[0] ? ": " : "", choice.skipped);
    }
    Threads *threads = e->device->threads;
    size_t bytes = choice.row->workspace
                       ? choice.row->workspace(&sig, threads ? mpri_threads_count(threads) : 1) : 0;
    void *workspace = bytes ? aligned(arena, bytes) : NULL;
    if (bytes && !workspace) return no_room(bytes, arena, err);
    KernelFault fault = {.input = -1};
    KernelCall c = {.params = sig.params, .n_in = sig.n_in, .n_out = n->n_out, .in = in, .out = out,
                    .workspace = workspace, .threads = threads, .fault = &fault};
    mpr_status st = choice.row->fn(&c);
    return st == MPR_OK ? MPR_OK : mpri_fault_error(st, n, &c, err);
}

mpr_status mpri_evaluate_node(const Evaluator *e, const Node *n, const Tensor *in, Tensor *out,
                              Arena *arena, Err *err)
{
    mpr_status st = make_outputs(n, out, arena, err);
    bool low = n->n_out && out[0].dtype == e->sums && e->sums != MPR_DTYPE_NONE;
    if (st == MPR_OK && !(low && mpri_accumulate_low(n, in, out, e->sums)))
        st = call(e, n, in, out, arena, err);
    if (st == MPR_OK || strstr(err->where, "node '")) return st;
    return mpri_err_where(err, "node '%s' (%s)", mpri_err_name(n->name), n->op->name);
}

/* ---- all of them ---- */

mpr_status mpri_evaluate_step(const Evaluator *e, const Node *n, Values *v, Err *err)
{
    Tensor *in = ARENA_ARRAY(&v->arena, Tensor, n->n_in + 1);
    Tensor *out = ARENA_ARRAY(&v->arena, Tensor, n->n_out + 1);
    if (!in || !out) return no_room(sizeof(Tensor), &v->arena, err);
    for (int k = 0; k < n->n_in; k++)
        if (n->in[k]) in[k] = v->v[n->in[k]->id];
    TRY(mpri_evaluate_node(e, n, in, out, &v->arena, err));
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k]) v->v[n->out[k]->id] = out[k];
    return MPR_OK;
}

mpr_status mpri_evaluate_all(const Evaluator *e, const BoundModel *b, Values *v, Err *err)
{
    for (const Node *n = b->g->first; n; n = n->next) TRY(mpri_evaluate_step(e, n, v, err));
    return MPR_OK;
}
