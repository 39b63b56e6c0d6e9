/* The sequences of a tape as CUDA graphs; see tape.h. */
#include "kernels/cuda/tape.h"

#include <string.h>

bool mpri_tape_room(const Tape *t, size_t copy_bytes)
{
    return t->n < TAPE_ITEMS && t->fill + copy_bytes <= TAPE_BYTES;
}

void mpri_tape_clear(Tape *t)
{
    t->n = 0;
    t->fill = t->inputs_fill = 0;
}

static void drop(const Tape *t, TapeKept *k)
{
    if (k->exec) (void)cudaGraphExecDestroy(k->exec);
    mpri_free(t->alloc, k->item);
    *k = (TapeKept){.n = 0};
}

void mpri_tape_forget(Tape *t, const DeviceGraph *g)
{
    for (int i = 0; i < TAPE_KEPT; i++) {
        TapeKept *k = &t->kept[i];
        bool in = !g;
        for (int j = 0; j < k->n && !in; j++) in = k->item[j].graph == g;
        if (in && k->n) drop(t, k);
    }
}

static bool same(const Tape *t, const TapeKept *k)
{
    if (t->n != k->n) return false;
    for (int i = 0; i < t->n; i++) {
        const TapeItem *a = &t->item[i], *b = &k->item[i];
        if (a->kind != b->kind || a->graph != b->graph || a->dst != b->dst || a->src != b->src ||
            a->bytes != b->bytes || a->at != b->at)
            return false;
    }
    return true;
}

/* One node after the other. */
static cudaError_t add(const Tape *t, const TapeItem *it, cudaGraph_t g, cudaGraphNode_t *last)
{
    cudaGraphNode_t node;
    size_t n = *last ? 1 : 0;
    cudaError_t e;
    if (it->kind == TAPE_GRAPH) {
        e = cudaGraphAddChildGraphNode(&node, g, last, n, it->graph->graph);
    } else if (it->kind == TAPE_COPY || it->kind == TAPE_MOVE) {
        e = cudaGraphAddMemcpyNode1D(&node, g, last, n, it->dst,
                                     it->kind == TAPE_MOVE ? it->src : t->staging + it->at, it->bytes,
                                     cudaMemcpyDeviceToDevice);
    } else {
        const struct cudaMemsetParams zero = {
            .dst = it->dst, .elementSize = 1, .width = it->bytes, .height = 1, .pitch = it->bytes};
        e = cudaGraphAddMemsetNode(&node, g, last, n, &zero);
    }
    if (e == cudaSuccess) *last = node;
    return e;
}

static void build(const Tape *t, TapeKept *k)
{
    cudaGraph_t g = NULL;
    cudaGraphNode_t last = NULL;
    cudaError_t e = cudaGraphCreate(&g, 0);
    for (int i = 0; i < t->n && e == cudaSuccess; i++) e = add(t, &t->item[i], g, &last);
    if (e == cudaSuccess) e = cudaGraphInstantiate(&k->exec, g, 0);
    if (g) (void)cudaGraphDestroy(g);
    if (e == cudaSuccess) return;
    (void)cudaGetLastError();
    k->exec = NULL;
    k->refused = true;
}

/* Takes the place of the one that was not used for longest. Without memory it is seen for the first time
 * again. */
static void note(Tape *t)
{
    TapeKept *k = &t->kept[0];
    for (int i = 1; i < TAPE_KEPT; i++)
        if (t->kept[i].used < k->used) k = &t->kept[i];
    drop(t, k);
    k->item = mpri_alloc(t->alloc, (size_t)t->n * sizeof *t->item, 16);
    if (!k->item) return;
    memcpy(k->item, t->item, (size_t)t->n * sizeof *t->item);
    k->n = t->n;
    k->used = ++t->clock;
}

TapeKept *mpri_tape_find(Tape *t)
{
    bool graph = false;
    for (int i = 0; i < t->n; i++) graph |= t->item[i].kind == TAPE_GRAPH;
    if (!graph || t->n < 2) return NULL;
    for (int i = 0; i < TAPE_KEPT; i++) {
        TapeKept *k = &t->kept[i];
        if (!same(t, k)) continue;
        k->used = ++t->clock;
        if (!k->exec && !k->refused) build(t, k);
        return k->exec ? k : NULL;
    }
    note(t);
    return NULL;
}
