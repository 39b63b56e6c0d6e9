/* The lines of a tensor along one axis, and the order of their elements. */
#ifndef MPRI_REF_LINES_H
#define MPRI_REF_LINES_H

#include "kernels/ref/util.h"

/* Element j of line i lies at base(i) + j * inner; a scalar is one line of one element. */
typedef struct AxisLines {
    int64_t count, n, inner;
} AxisLines;

static inline AxisLines mpri_ref_lines(const Tensor *t, int64_t axis)
{
    if (t->rank == 0) return (AxisLines){1, 1, 1};
    int a = mpri_ref_axis(axis, t->rank);
    int64_t inner = mpri_ref_span(t, a + 1, t->rank);
    return (AxisLines){mpri_ref_span(t, 0, a) * inner, t->dims[a], inner};
}

static inline int64_t mpri_ref_line_base(const AxisLines *l, int64_t i)
{
    return i / l->inner * l->n * l->inner + i % l->inner;
}

/* Sign of a[i] - a[j]: NaN is above every number and equal to NaN, as in numpy's order. */
static inline int mpri_ref_compare(const Tensor *a, int64_t i, int64_t j)
{
    if (mpri_dtype_is_float(a->dtype)) {
        double x = mpri_ref_load(a, i), y = mpri_ref_load(a, j);
        if (isnan(x) || isnan(y)) return isnan(x) - isnan(y);
        return (x > y) - (x < y);
    }
    uint64_t flip = a->dtype == MPR_UINT64 ? (uint64_t)1 << 63 : 0;
    int64_t x = (int64_t)((uint64_t)mpri_load_i64(a->dtype, a->data, i) ^ flip),
            y = (int64_t)((uint64_t)mpri_load_i64(a->dtype, a->data, j) ^ flip);
    return (x > y) - (x < y);
}

#endif
