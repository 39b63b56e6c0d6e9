/* Tile and Pad: each output element has one source, found axis by axis. Any type, by element
 * size. */
#include "kernels/ref/util.h"
#include "runtime/op/pad_index.h"

static void copy(const KernelCall *c, int64_t to, int64_t from)
{
    size_t size = mpri_dtype_size(c->out[0].dtype);
    memcpy((char *)c->out[0].data + (size_t)to * size,
           (const char *)c->in[0].data + (size_t)from * size, size);
}

static mpr_status k_tile(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *y = &c->out[0];
    for (int64_t i = 0; i < y->n; i++) {
        int64_t rest = i, from = 0, stride = 1;
        for (int k = y->rank - 1; k >= 0; k--) {
            from += rest % y->dims[k] % x->dims[k] * stride;
            stride *= x->dims[k];
            rest /= y->dims[k];
        }
        copy(c, i, from);
    }
    return MPR_OK;
}

/* Inputs data, pads, constant_value (optional), axes (optional). */
static mpr_status k_pad(const KernelCall *c)
{
    const PadParams *p = c->params;
    const Tensor *x = &c->in[0], *pads = &c->in[1];
    Tensor *y = &c->out[0];
    int64_t before[MPRI_TENSOR_RANK] = {0}, after[MPRI_TENSOR_RANK] = {0}, n = pads->n / 2;
    bool fill = c->n_in > 2 && mpri_tensor_here(&c->in[2]);
    const Tensor *axes = c->n_in > 3 && mpri_tensor_here(&c->in[3]) ? &c->in[3] : NULL;
    size_t size = mpri_dtype_size(y->dtype);
    for (int64_t i = 0; i < n; i++) {
        int axis = mpri_ref_axis(axes ? mpri_load_i64(axes->dtype, axes->data, i) : i, x->rank);
        before[axis] = mpri_load_i64(pads->dtype, pads->data, i);
        after[axis] = mpri_load_i64(pads->dtype, pads->data, n + i);
    }
    for (int64_t i = 0; i < y->n; i++) {
        int64_t rest = i, from = 0, stride = 1;
        bool inside = true;
        for (int k = y->rank - 1; k >= 0; k--) {
            int64_t at =
                mpri_pad_source(p->mode, x->dims[k], before[k], after[k], rest % y->dims[k]);
            inside = inside && at >= 0;
            from += at * stride;
            stride *= x->dims[k];
            rest /= y->dims[k];
        }
        char *to = (char *)y->data + (size_t)i * size;
        if (inside) copy(c, i, from);
        else if (fill) memcpy(to, c->in[2].data, size);
        else memset(to, 0, size);
    }
    return MPR_OK;
}

static const KernelRow rows[] = {
    REF_ROW(Tile, "tile", k_tile),
    REF_ROW(Pad, "pad", k_pad),
};
const KernelTable mpri_ref_tile_pad = REF_TABLE(rows);
