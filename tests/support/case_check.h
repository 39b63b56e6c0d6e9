/* A row of a case file, checked: values by every kernel, gradients by differences and in all float
 * types, ties, refusals. Needs cmocka: a failure names file and line and ends the test. */
#ifndef MPRI_TESTS_CASE_CHECK_H
#define MPRI_TESTS_CASE_CHECK_H

#include "runtime/exec/device.h"
#include "tests/support/case_file.h"

/* device: where plans run. */
void test_case_check(const CaseRow *r, Device *device);
/* Sets seen[id] for each operator that the row is about. */
void test_case_mark(const CaseRow *r, bool seen[OP_COUNT]);
/* A gradient that agreed with differences went through this operator. */
bool test_case_reached(int op);

#endif
