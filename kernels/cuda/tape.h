/* Recordings, small copies and zeroings one after the other, put off and given to the device together: a
 * step of training is the same sequence again and again, so it becomes one CUDA graph, launched after one
 * copy of all its small values. The host does what it always does and knows nothing of it.
 *
 * A sequence that is seen for the second time is built into a graph; a refusal leaves it step by step. */
#ifndef MPRI_CUDA_TAPE_H
#define MPRI_CUDA_TAPE_H

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"

enum { TAPE_ITEMS = 1024, TAPE_KEPT = 16, TAPE_BYTES = 65536, TAPE_COPY_MOST = 256 };

struct DeviceGraph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

typedef enum TapeKind { TAPE_GRAPH, TAPE_COPY, TAPE_MOVE, TAPE_ZERO } TapeKind;

typedef struct TapeItem {
    TapeKind kind;
    DeviceGraph *graph;
    void *dst;
    const void *src;  /* of a move, on the device */
    size_t bytes, at; /* at: of a copy's value in the staging */
} TapeItem;

typedef struct TapeKept { /* a sequence that was seen */
    TapeItem *item; /* owned */
    int n;          /* 0: free */
    bool refused;
    cudaGraphExec_t exec; /* NULL: seen once */
    uint64_t used;
} TapeKept;

typedef struct Tape {
    TapeItem item[TAPE_ITEMS]; /* what is put off */
    int n;
    char host[TAPE_BYTES];
    size_t fill;
    char *staging; /* the same on the device, owned by the device */
    TapeKept kept[TAPE_KEPT];
    uint64_t clock;
    const Alloc *alloc;
    /* Inputs of the micro-batches after the first: they go ahead into memory of their own, and the sequence
     * moves them to where they belong when it is their turn. */
    char *inputs; /* owned by the device; NULL: none yet */
    size_t inputs_bytes, inputs_fill;
    size_t inputs_seen; /* of all since the last submit */
    bool inputs_short;  /* some found no room: more is taken at the next submit */
} Tape;

/* Room for one more item with so many bytes to copy? */
bool mpri_tape_room(const Tape *t, size_t copy_bytes);
/* What is put off is a sequence: its own when it has been seen (built now if it can be), else it is noted.
 * NULL: do it item by item. */
TapeKept *mpri_tape_find(Tape *t);
void mpri_tape_clear(Tape *t);
/* Sequences with this recording, NULL: all, are forgotten. */
void mpri_tape_forget(Tape *t, const DeviceGraph *g);

#endif
