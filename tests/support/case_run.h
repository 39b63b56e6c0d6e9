/* A row of a case file as a graph: written in the text form, differentiated, computed node by node
 * with the reference kernels, or planned and run on the CPU device as a session would. */
#ifndef MPRI_TESTS_CASE_RUN_H
#define MPRI_TESTS_CASE_RUN_H

#include "passes/pass.h"
#include "tests/support/case_file.h"

typedef struct CaseShape { /* stands for the shape of a random input */
    int rank;
    int64_t dims[MPRI_TENSOR_RANK];
} CaseShape;

typedef struct CaseRun {
    Arena arena, scratch; /* scratch: values of one evaluation */
    Graph *g;
    KernelSet ref;
    PassOptions o;
    const char *seeds[CASE_RESULTS];
    Tensor *at;           /* by value id, of the last evaluation; inputs and constants stay */
    Err err;
} CaseRun;

/* The graph of a row. Its f64 tensors become `real`; the first `fed` valued arguments become inputs
 * of the graph instead of constants; shapes (NULL: as the row has them) are those of the random
 * inputs, in turn. */
void test_case_text(const CaseRow *r, DType real, int fed, const CaseShape *shapes, Text *out);
/* Parses and infers. Close it also after a failure. */
mpr_status test_case_open(CaseRun *x, const char *text);
void test_case_close(CaseRun *x);
/* f64 constants are rounded to `to`, so that a graph in that type has the same data. */
void test_case_round(CaseRun *x, DType to);
/* Adds the backward pass from all float outputs to all float inputs. With `plan`, by all passes of
 * the bind stage. */
mpr_status test_case_differentiate(CaseRun *x, bool plan);
bool test_case_is_cotangent(const Value *v);
/* Memory for inputs and constants. */
mpr_status test_case_memory(CaseRun *x);
/* Element i of n of a random input: a function of the name, distinct for each i. */
double test_case_random(const char *name, int64_t i, int64_t n, double low, double high);
mpr_status test_case_evaluate(CaseRun *x, bool backward);
/* Plans, runs, and leaves the outputs in `outputs` (by index; memory of the arena). `from` has the
 * values of the inputs, by name. */
mpr_status test_case_plan(CaseRun *x, Device *device, const CaseRun *from, Tensor *outputs);

#endif
