/* Merge sort from the bottom up: stable, without recursion, n log n whatever the data. */
#include "runtime/op/unique.h"

#include <math.h>
#include <string.h>

static int compare_f64(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(a) - isnan(b);
    return (a > b) - (a < b);
}

static int compare_element(DType t, const void *p, int64_t a, int64_t b)
{
    if (mpri_dtype_is_float(t)) return compare_f64(mpri_load_f64(t, p, a), mpri_load_f64(t, p, b));
    int64_t x = mpri_load_i64(t, p, a), y = mpri_load_i64(t, p, b);
    if (t == MPR_UINT64) return ((uint64_t)x > (uint64_t)y) - ((uint64_t)x < (uint64_t)y);
    return (x > y) - (x < y);
}

int mpri_unique_compare(const UniqueItems *u, int64_t a, int64_t b)
{
    for (int64_t o = 0; o < u->outer; o++)
        for (int64_t r = 0; r < u->inner; r++) {
            int64_t base = o * u->n;
            int d = compare_element(u->dtype, u->data, (base + a) * u->inner + r,
                                    (base + b) * u->inner + r);
            if (d) return d;
        }
    return 0;
}

static void merge(const UniqueItems *u, const int64_t *from, int64_t *to, int64_t a, int64_t b,
                  int64_t end)
{
    int64_t i = a, j = b;
    for (int64_t k = a; k < end; k++) {
        bool left = i < b && (j >= end || mpri_unique_compare(u, from[i], from[j]) <= 0);
        to[k] = left ? from[i++] : from[j++];
    }
}

void mpri_unique_sort(const UniqueItems *u, int64_t *order, int64_t *work)
{
    for (int64_t i = 0; i < u->n; i++) order[i] = i;
    for (int64_t width = 1; width < u->n; width *= 2) {
        for (int64_t a = 0; a < u->n; a += 2 * width) {
            int64_t b = a + width < u->n ? a + width : u->n;
            merge(u, order, work, a, b, b + width < u->n ? b + width : u->n);
        }
        memcpy(order, work, (size_t)u->n * sizeof *order);
    }
}

int64_t mpri_unique_count(const UniqueItems *u, const int64_t *order)
{
    int64_t n = 0;
    for (int64_t i = 0; i < u->n; i++)
        n += i == 0 || mpri_unique_compare(u, order[i - 1], order[i]) != 0;
    return n;
}
