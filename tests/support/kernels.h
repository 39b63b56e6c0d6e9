/* Kernels called by hand: tensors as text, closed forms as rows, every row of every device that
 * takes them.
 *
 *   "f32[2,3]=1 2 3 4 5 6"   "i64[]=-1"   "bool[2]=1 0"   "f16[0]="   "f32[4]=" (zeros)   NULL:
 * absent
 *
 * Numbers may be nan, inf, -inf. */
#ifndef MPRI_TESTS_KERNELS_H
#define MPRI_TESTS_KERNELS_H

#include "runtime/base/arena.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/ops.h"
#include "runtime/op/params.h"
#include "tests/support/support.h"

/* Lives in the arena, 64-byte aligned, with a guard after the last element. */
Tensor test_tensor(Arena *a, const char *text);
/* Uninitialised (filled with 0xAB) tensor. */
Tensor test_tensor_new(Arena *a, DType t, int rank, const int64_t *dims);
/* False when the bytes behind the tensor were written to. */
bool test_tensor_guard(const Tensor *t);

typedef struct KernelCase {
    int op;
    const void *params;
    const char *in[8];
    const char *out[4];   /* expected; NULL: output not wanted */
    double tolerance;     /* |found - expected| <= tolerance * (1 + |expected|); 0 = equal */
    mpr_status status;    /* expected; a failing call's outputs are not compared */
} KernelCase;

/* Runs each case on the reference row and on every CPU row, of each instruction set of this
 * machine, that accepts it; fails the test with what differed. */
void test_kernel_cases(const KernelCase *cases, int n);

/* Runs one row; workspace comes from the arena. fault may be NULL. */
mpr_status test_kernel_run(Arena *a, const KernelRow *row, const void *params, int n_in,
                           const Tensor *in, int n_out, Tensor *out, Threads *threads,
                           KernelFault *fault);
/* Rows for op that run here, `ref` last: fills rows, returns how many (at most max). */
int test_kernel_rows(int op, const KernelRow **rows, int max);

#endif
