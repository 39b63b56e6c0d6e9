/* Recorded values: every *.json file of the folder $MPR_VECTORS (tests/data/amp without it). A file
 * is told by its lists, not by its name:
 *
 *   scenarios                  events of a loss scaler          (tests/train/scaler.c)
 *   ops, graphs                types under autocast             (tests/pass/autocast_vectors.c)
 *   narrow, widen, arithmetic  16-bit conversions and kernels   (tests/op/f16_vectors.c)
 *
 * A list or a header that none of them knows fails the test: nothing is passed over in silence. */
#ifndef MPRI_TESTS_VECTORS_H
#define MPRI_TESTS_VECTORS_H

#include <jansson.h>
#include "tests/support/support.h"

typedef void (*TestVectorFn)(void *user, const json_t *row);

/* Calls fn for each row of the list in all files, by file name; returns how many there were. A
 * folder without any file, or a file that cannot be read, fails the test. */
int test_vectors_each(const char *list, TestVectorFn fn, void *user);
/* The rows are those of the tree: its own counts may be expected. */
bool test_vectors_own(void);

#endif
