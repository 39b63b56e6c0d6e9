/* The files of one checkpoint: names, the seal of state.json, and hashes. Shared by
 * checkpoint_save.c and checkpoint_load.c.
 *
 *   model.safetensors      FP32 masters by initializer name
 *   optimizer.safetensors  moments and step counters by slot name; gradients when a window is open
 *   state.json             everything else, with length and XXH3-128 of the other files; its last
 * line holds the hash of all bytes before it */
#ifndef MPRI_TRAIN_CHECKPOINT_H
#define MPRI_TRAIN_CHECKPOINT_H

#include "runtime/train/prepare.h"

#define MPRI_CHECKPOINT_FORMAT 1
#define MPRI_WEIGHTS_FILE "model.safetensors"
#define MPRI_OPTIMIZER_FILE "optimizer.safetensors"
#define MPRI_STATE_FILE "state.json"

typedef struct HashText {
    char hex[33];
} HashText;
HashText mpri_hash_bytes(const void *bytes, size_t n);
/* Of operators, names and parameters of the model: another architecture gives another hash. */
mpr_status mpri_hash_graph(const Graph *g, HashText *out, Err *err);
/* Slot names of a checkpoint: optimizer state, then gradients when a window is open. */
mpr_status mpri_checkpoint_slots(const mpr_prepared *p, Arena *arena, const char *const **names,
                                 int *n, Err *err);
/* "float16 torch-cuda", "float32" */
void mpri_checkpoint_precision(const mpr_session *s, char *buf, size_t size);

#endif
