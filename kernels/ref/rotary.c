/* RotaryEmbedding and the gradient of its caches; see kernels/attention.h for the layout. */
#include "kernels/attention.h"
#include "kernels/ref/util.h"

static mpr_status bad_position(const KernelCall *c, const RotaryForm *f, int input, int64_t at)
{
    int64_t found = mpri_load_i64(f->positions->dtype, f->positions->data, at);
    if (c->fault) *c->fault = (KernelFault){input, at, found, 0, f->rows};
    return MPR_E_INDEX;
}

/* Inputs x, cos, sin, positions. */
static mpr_status k_rotary(const KernelCall *c)
{
    const Tensor *x = &c->in[0], *cos_at = &c->in[1], *sin_at = &c->in[2];
    RotaryForm f = mpri_rotary_form(c->params, x, cos_at, mpri_attention_given(c->in, c->n_in, 3));
    int64_t half = f.turned / 2, at = 0;
    for (int64_t b = 0; b < f.batch; b++)
        for (int64_t t = 0; t < f.tokens; t++) {
            int64_t row = mpri_rotary_row(&f, half, b, t, &at);
            if (row < 0) return bad_position(c, &f, 3, at);
            for (int64_t h = 0; h < f.heads; h++) {
                int64_t head = b * f.x.batch + h * f.x.head + t * f.x.row;
                for (int64_t i = 0; i < half; i++) {
                    int64_t p1 = head + i * f.step, p2 = p1 + f.pair;
                    double a = mpri_ref_load(x, p1), d = mpri_ref_load(x, p2);
                    double u = mpri_ref_load(cos_at, row + i), v = mpri_ref_load(sin_at, row + i);
                    mpri_ref_store(&c->out[0], p1, u * a - v * d);
                    mpri_ref_store(&c->out[0], p2, v * a + u * d);
                }
                for (int64_t i = f.turned; i < f.size; i++)
                    mpri_ref_store(&c->out[0], head + i, mpri_ref_load(x, head + i));
            }
        }
    return MPR_OK;
}

/* Inputs dy, x, cos, sin, positions; outputs dcos, dsin. */
static mpr_status k_rotary_grad(const KernelCall *c)
{
    const Tensor *dy = &c->in[0], *x = &c->in[1], *cache = &c->in[2];
    RotaryForm f = mpri_rotary_form(c->params, x, cache, mpri_attention_given(c->in, c->n_in, 4));
    int64_t half = f.turned / 2, at = 0;
    double *sum = c->workspace, *dcos = sum, *dsin = sum + cache->n;
    memset(sum, 0, (size_t)cache->n * 2 * sizeof *sum);
    for (int64_t b = 0; b < f.batch; b++)
        for (int64_t t = 0; t < f.tokens; t++) {
            int64_t row = mpri_rotary_row(&f, half, b, t, &at);
            if (row < 0) return bad_position(c, &f, 4, at);
            for (int64_t h = 0; h < f.heads; h++) {
                int64_t head = b * f.x.batch + h * f.x.head + t * f.x.row;
                for (int64_t i = 0; i < half; i++) {
                    int64_t p1 = head + i * f.step, p2 = p1 + f.pair;
                    double a = mpri_ref_load(x, p1), d = mpri_ref_load(x, p2);
                    double g1 = mpri_ref_load(dy, p1), g2 = mpri_ref_load(dy, p2);
                    dcos[row + i] += g1 * a + g2 * d;
                    dsin[row + i] += g2 * a - g1 * d;
                }
            }
        }
    for (int k = 0; k < c->n_out; k++)
        for (int64_t i = 0; mpri_tensor_here(&c->out[k]) && i < cache->n; i++)
            mpri_ref_store(&c->out[k], i, k ? dsin[i] : dcos[i]);
    return MPR_OK;
}

static size_t grad_workspace(const KernelSig *s, int threads)
{
    (void)threads;
    return (size_t)s->in[2].n * 2 * sizeof(double);
}

static const KernelRow rows[] = {
    REF_ROW(RotaryEmbedding, "rotaryembedding", k_rotary),
    {.op = OP_RotaryGrad, .name = "ref.rotarygrad", .fn = k_rotary_grad,
     .workspace = grad_workspace},
};
const KernelTable mpri_ref_rotary = REF_TABLE(rows);
