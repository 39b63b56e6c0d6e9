/* RotaryEmbedding: a tile is a fixed number of tokens with all their heads. Halves are vectors;
 * interleaved pairs go one by one. Positions are looked at before any tile runs, so that a wrong
 * one is reported whatever the threads do. */
#include "kernels/attention.h"
#include "kernels/cpu/simd/tiles.h"

typedef struct Job {
    RotaryForm f;
    const Tensor *x, *cosine, *sine;
    Tensor *y;
    int64_t per_tile;
} Job;

VF_FN void halves(const Job *job, DType t, int64_t head, int64_t row)
{
    int64_t half = job->f.turned / 2;
    DType tc = job->cosine->dtype, ts = job->sine->dtype;
    for (int64_t i = 0; i < half; i += VF_LANES) {
        int k = (int)least(VF_LANES, half - i);
        vf a = vf_ld_n(t, job->x->data, head + i, k);
        vf b = vf_ld_n(t, job->x->data, head + half + i, k);
        vf c = vf_ld_n(tc, job->cosine->data, row + i, k);
        vf s = vf_ld_n(ts, job->sine->data, row + i, k);
        vf_st_n(job->y->dtype, job->y->data, head + i, vf_fnma(s, b, c * a), k);
        vf_st_n(job->y->dtype, job->y->data, head + half + i, vf_fma(s, a, c * b), k);
    }
}

VF_FN void pairs(const Job *job, DType t, int64_t head, int64_t row)
{
    for (int64_t i = 0; i < job->f.turned / 2; i++) {
        float a = vf_ld1(t, job->x->data, head + 2 * i);
        float b = vf_ld1(t, job->x->data, head + 2 * i + 1);
        float c = vf_ld1(job->cosine->dtype, job->cosine->data, row + i);
        float s = vf_ld1(job->sine->dtype, job->sine->data, row + i);
        vf_st1(job->y->dtype, job->y->data, head + 2 * i, c * a - s * b);
        vf_st1(job->y->dtype, job->y->data, head + 2 * i + 1, s * a + c * b);
    }
}

static void turn_tile(void *ctx, int64_t tile)
{
    const Job *job = ctx;
    const RotaryForm *f = &job->f;
    DType t = job->x->dtype;
    int64_t end = least(f->batch * f->tokens, (tile + 1) * job->per_tile), at;
    for (int64_t token = tile * job->per_tile; token < end; token++) {
        int64_t b = token / f->tokens, i = token % f->tokens;
        int64_t row = mpri_rotary_row(f, f->turned / 2, b, i, &at);
        for (int64_t h = 0; h < f->heads; h++) {
            int64_t head = b * f->x.batch + h * f->x.head + i * f->x.row;
            if (f->step == 2) pairs(job, t, head, row);
            else halves(job, t, head, row);
            for (int64_t e = f->turned; e < f->size; e += VF_LANES) {
                int k = (int)least(VF_LANES, f->size - e);
                vf_st_n(job->y->dtype, job->y->data, head + e,
                        vf_ld_n(t, job->x->data, head + e, k), k);
            }
        }
    }
}

static mpr_status k_rotary(const KernelCall *c)
{
    Job job = {.x = &c->in[0], .cosine = &c->in[1], .sine = &c->in[2], .y = &c->out[0]};
    const Tensor *positions = input_or_null(c, 3);
    job.f = mpri_rotary_form(c->params, job.x, job.cosine, positions);
    for (int64_t i = 0; positions && i < positions->n; i++) {
        int64_t row = mpri_load_i64(positions->dtype, positions->data, i);
        if (row >= 0 && row < job.f.rows) continue;
        if (c->fault) *c->fault = (KernelFault){3, i, row, 0, job.f.rows};
        return MPR_E_INDEX;
    }
    job.per_tile = rows_per_tile(job.f.heads * job.f.size);
    if (job.x->n)
        mpri_parallel(c->threads, tiles_of(job.f.batch * job.f.tokens, job.per_tile), turn_tile,
                      &job);
    return MPR_OK;
}

static const char *refuse(const KernelSig *s)
{
    for (int k = 0; k < 3; k++)
        if (!vf_can(s->in[k].dtype)) return NOT_FLOAT;
    return NULL;
}

static const KernelRow rows[] = {
    {.op = OP_RotaryEmbedding, .name = MPRI_ROW("rotaryembedding"), .isa = MPRI_ISA_ID,
     .fn = k_rotary, .refuse = refuse},
};

const KernelTable MPRI_NAME(cpu_rotary) = {rows, sizeof rows / sizeof rows[0]};
