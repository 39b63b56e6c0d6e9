/* mpr_session_vjp: one forward pass of any importable graph, its vector-Jacobian product or the
 * gradient of a loss, on a graph of its own that is thrown away afterwards. */
#ifndef MPRI_TRAIN_RUN_H
#define MPRI_TRAIN_RUN_H

#include "runtime/train/session.h"
#include "runtime/train/tensors.h"

mpr_status mpri_run_vjp(mpr_model *model, const mpr_tensors *inputs, const mpr_tensors *cotangents,
                        const mpr_run_options *options, mpr_tensors **outputs, mpr_tensors **grads,
                        Err *err);

#endif
