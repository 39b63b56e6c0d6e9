/* Checked size arithmetic: the only place where sizes from input are multiplied or added.
 * Each function returns false on overflow and then leaves *out untouched. */
#ifndef MPRI_BASE_SIZE_H
#define MPRI_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool mpri_size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

static inline bool mpri_size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r)) return false;
    *out = r;
    return true;
}

/* Round up to a power of two `align`. */
static inline bool mpri_size_align(size_t a, size_t align, size_t *out)
{
    size_t r;
    if (!mpri_size_add(a, align - 1, &r)) return false;
    *out = r & ~(align - 1);
    return true;
}

/* Product of `rank` non-negative dims; 1 for rank 0. False on overflow of int64 or a negative
 * dim. */
static inline bool mpri_size_elements(int rank, const int64_t *dims, int64_t *out)
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++) {
        if (dims[i] < 0) return false;
        if (dims[i] == 0) { *out = 0; return true; }
    }
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, dims[i], &n)) return false;
    *out = n;
    return true;
}

#endif
