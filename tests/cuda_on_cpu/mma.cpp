/* mma.sync.m16n8k16 of a warp: every lane brings its fragments, the last to come computes for all.
 *
 * Layout by the PTX ISA ("Matrix Fragments for mma.m16n8k16 with floating point type"): with groupID = lane / 4 and
 * threadID_in_group = lane % 4, element i of A is in row groupID for i = 0, 1, 4, 5, else groupID + 8, and in column
 * threadID_in_group * 2 + i % 2, plus 8 from i = 4 on; element i of B in row threadID_in_group * 2 + i % 2, plus 8
 * from i = 2 on, and column groupID; element i of C in row groupID, plus 8 from i = 2 on, and column
 * threadID_in_group * 2 + i % 2.
 *
 * Sums are as coarse as the hardware's, not as float's (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA
 * tensor cores", 2021): eight products and the sum so far are cut off at 2^-24 of the largest of them, added, and
 * the result is cut off to float. */
#include "tests/cuda_on_cpu/shim_private.h"

#include <cuda_fp16.h>

namespace shim {

namespace {

enum { LANES = 32, M = 16, N = 8, K = 16, AT_ONCE = 8 };

struct Warp {
    unsigned long block; /* of which the rest speaks */
    unsigned done, given[LANES];
    uint32_t a[LANES][4], b[LANES][2];
    float c[LANES][4], d[LANES][4];
} warps[32];

float value(uint32_t pair, int half, bool bfloat)
{
    uint16_t bits = (uint16_t)(pair >> half * 16);
    if (bfloat) return unpack<float>((uint64_t)bits << 16);
    return __half2float(__ushort_as_half(bits));
}

int exponent_of(double v) { return (int)(pack(v) >> 52 & 2047); }
double power(int exponent) { return unpack<double>((uint64_t)exponent << 52); }

float add(float c, const double *p)
{
    double plain = c, cut = 0;
    int top = exponent_of(c);
    for (int i = 0; i < AT_ONCE; i++) {
        plain += p[i];
        if (exponent_of(p[i]) > top) top = exponent_of(p[i]);
    }
    if (!std::isfinite(plain) || plain == 0) return (float)plain;
    if (top < 128) top = 128; /* far below what float holds */
    double unit = power(top - 24), inverse = power(2046 - top + 24);
    cut = trunc(c * inverse);
    for (int i = 0; i < AT_ONCE; i++) cut += trunc(p[i] * inverse);
    double sum = cut * unit;
    float f = (float)sum;
    if (std::isfinite(f) && fabs((double)f) > fabs(sum)) f = nextafterf(f, 0);
    return f;
}

void multiply(Warp *w, bool bfloat)
{
    double a[M][K], b[K][N], c[M][N], p[AT_ONCE];
    for (int lane = 0; lane < LANES; lane++) {
        int group = lane / 4, in_group = lane % 4;
        for (int i = 0; i < 8; i++)
            a[group + (i % 4 < 2 ? 0 : 8)][in_group * 2 + i % 2 + (i < 4 ? 0 : 8)] =
                value(w->a[lane][i / 2], i % 2, bfloat);
        for (int i = 0; i < 4; i++)
            b[in_group * 2 + i % 2 + (i < 2 ? 0 : 8)][group] = value(w->b[lane][i / 2], i % 2, bfloat);
        for (int i = 0; i < 4; i++) c[group + (i < 2 ? 0 : 8)][in_group * 2 + i % 2] = w->c[lane][i];
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k += AT_ONCE) {
                for (int i = 0; i < AT_ONCE; i++) p[i] = a[m][k + i] * b[k + i][n];
                c[m][n] = add((float)c[m][n], p);
            }
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++)
            w->d[lane][i] = (float)c[lane / 4 + (i < 2 ? 0 : 8)][lane % 4 * 2 + i % 2];
}

} /* namespace */

void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bfloat, const char *file,
                  int line)
{
    Warp *w = &warps[current / LANES];
    int me = lane();
    if (w->block != block_number()) {
        memset((void *)w, 0, sizeof *w);
        w->block = block_number();
    }
    memcpy(w->a[me], a, sizeof a);
    w->b[me][0] = b0, w->b[me][1] = b1;
    memcpy(w->c[me], d, sizeof d);
    unsigned turn = ++w->given[me];
    (void)exchange(file, line, 0xffffffffu, 0);
    if (w->done != turn) { /* the last to come is the first to go on: nobody has taken yet */
        multiply(w, bfloat);
        w->done = turn;
    }
    memcpy(d, w->d[me], sizeof d);
}

} /* namespace shim */
