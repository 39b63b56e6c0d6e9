/* The cells of RNN, GRU and LSTM as numbers: activations, sizes, where each sequence lies. Shared
 * by the shape rules and the kernels. */
#ifndef MPRI_OP_RECURRENT_H
#define MPRI_OP_RECURRENT_H

#include "runtime/op/params.h"

enum { RNN_GATES = 1, GRU_GATES = 3, LSTM_GATES = 4 };

typedef enum RecurrentFn {
    FN_SIGMOID, FN_TANH, FN_RELU, FN_AFFINE, FN_LEAKY_RELU, FN_THRESHOLDED_RELU, FN_SCALED_TANH,
    FN_HARD_SIGMOID, FN_ELU, FN_SOFTSIGN, FN_SOFTPLUS, FN_COUNT
} RecurrentFn;

typedef struct RecurrentAct {
    RecurrentFn fn;
    double alpha, beta;
} RecurrentAct;

/* Activations of all directions: act[3 * direction + k], k counting f, g, h. NULL, or the name that
 * is not known (or "…" when their number is wrong), good until p changes. */
const char *mpri_recurrent_acts(const RecurrentParams *p, int gates, RecurrentAct act[6]);
static inline int mpri_recurrent_directions(const RecurrentParams *p)
{
    return p->direction && p->direction[0] == 'b' ? 2 : 1;
}
static inline bool mpri_recurrent_backward(const RecurrentParams *p, int direction)
{
    return direction == 1 || (p->direction && p->direction[0] == 'r');
}

#endif
