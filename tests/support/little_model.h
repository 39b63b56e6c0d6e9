/* Models of a few nodes for tests of training: an ONNX file made from rows, opened as a session. */
#ifndef MPRI_TESTS_LITTLE_MODEL_H
#define MPRI_TESTS_LITTLE_MODEL_H

#include <mpr.h>
#include "tests/support/support.h"

typedef struct LittleNode {
    const char *op, *name, *in, *out; /* separated by blanks */
    const char *attr;                 /* one attribute, or NULL: "axis=1" (an int), "axes=1,2" */
} LittleNode;

typedef struct LittleTensor { /* an initializer in float32 */
    const char *name;
    int64_t dims[5]; /* ends with -1 */
    float fill;      /* every element, when `spread` is 0 */
    float spread;    /* else numbers in [-spread, spread) by position */
} LittleTensor;

typedef struct LittleInput {
    const char *name;
    mpr_dtype dtype;
    int64_t dims[5]; /* ends with -99; below 0: symbols */
} LittleInput;

typedef struct LittleModel {
    LittleNode nodes[24];      /* end with op NULL */
    LittleTensor tensors[16];  /* end with name NULL */
    LittleInput inputs[6];     /* end with name NULL */
    const char *output;        /* float32 */
} LittleModel;

/* Writes the model into a folder that goes at exit; the path is good for seven further calls. */
const char *test_little_file(const char *name, const LittleModel *m);
/* Values in [-spread, spread): a function of the position. */
void test_little_fill(float *v, int64_t n, float spread);

#endif
