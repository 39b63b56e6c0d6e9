/* The factor of every resized axis, shared by the shape rule and the kernels.
 *
 * Factors come as `scales` or follow from `sizes`; a policy other than stretch takes one factor for all
 * axes of `sizes`. The result of a factor is floor(n * scale) in f32, as onnxruntime computes it. */
#ifndef MPRI_OP_RESIZE_H
#define MPRI_OP_RESIZE_H

#include <math.h>
#include <string.h>
#include "runtime/op/params.h"

static inline bool mpri_resize_crops(const ResizeParams *p)
{
    return strcmp(p->coordinate_transformation_mode, "tf_crop_and_resize") == 0;
}

static inline bool mpri_resize_keeps_aspect(const ResizeParams *p)
{
    return strcmp(p->keep_aspect_ratio_policy, "stretch") != 0;
}

/* Axis of entry k of roi, scales and sizes. */
static inline int mpri_resize_axis(const ResizeParams *p, int k, int rank)
{
    int64_t axis = p->axes.n ? p->axes.v[k] : k;
    return (int)(axis < 0 ? axis + rank : axis);
}

/* Factor of entry k out of n sizes, for dims of x by axis. */
static inline double mpri_resize_factor(const ResizeParams *p, int n, const int64_t *sizes, int k,
                                        const int64_t *dims, int rank)
{
    double factor = (double)sizes[k] / (double)dims[mpri_resize_axis(p, k, rank)];
    if (!mpri_resize_keeps_aspect(p)) return factor;
    bool larger = strcmp(p->keep_aspect_ratio_policy, "not_smaller") == 0;
    for (int i = 0; i < n; i++) {
        double f = (double)sizes[i] / (double)dims[mpri_resize_axis(p, i, rank)];
        if (i == 0 || (larger ? f > factor : f < factor)) factor = f;
    }
    return factor;
}

static inline int64_t mpri_resize_scaled(int64_t n, double scale)
{
    return (int64_t)floorf((float)n * (float)scale);
}

static inline int64_t mpri_resize_rounded(int64_t n, double scale)
{
    return (int64_t)floor(scale * (double)n + 0.5);
}

#endif
