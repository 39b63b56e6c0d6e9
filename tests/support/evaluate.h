/* A graph computed node by node with the reference kernels, on made-up inputs. Two graphs with the
 * same inputs, constants and outputs can so be compared. Shapes must be numbers. */
#ifndef MPRI_TESTS_EVALUATE_H
#define MPRI_TESTS_EVALUATE_H

#include "runtime/exec/plan.h"
#include "tests/support/graphs.h"

/* Inputs and constants whose contents are not in the text get values from a counter by their name,
 * floats in [-1, 1), integers 0 and 1. Output `index` of the graph; lives in t->arena. */
Tensor test_evaluate(TestGraph *t, int index);
/* Largest |a - b| / (1 + |b|). */
double test_difference(const Tensor *a, const Tensor *b);

#endif
