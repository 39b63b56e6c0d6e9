/* What the fuzz targets share. Each target takes any bytes and may end in any status; what counts is
 * that nothing crashes, hangs, leaks or asks for memory beyond the limits. */
#ifndef MPRI_TESTS_FUZZ_H
#define MPRI_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
