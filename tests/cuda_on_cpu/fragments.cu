/* Kernels of fragments.c: one product of a warp from matrices in memory, and fragments as ldmatrix brings them.
 *
 * Places come from tables of the CuTe library, which says them as strides over column-major matrices, not from the
 * formulas of the PTX ISA that the shim follows: a mode of extent n and stride s adds s for each step of its part of
 * the number of the lane (4, 8) or the element. */
#include "kernels/cuda/mma.cuh"

/* Lane (4, 8): (32, 1); element (2, 2, 2): (16, 8, 128). */
static int cute_a(int lane, int i) { return lane % 4 * 32 + lane / 4 + i % 2 * 16 + i / 2 % 2 * 8 + i / 4 * 128; }
/* Lane (4, 8): (16, 1); element (2, 2): (8, 64). */
static int cute_b(int lane, int i) { return lane % 4 * 16 + lane / 4 + i % 2 * 8 + i / 2 * 64; }
/* Lane (4, 8): (32, 1); element (2, 2): (16, 8). */
static int cute_c(int lane, int i) { return lane % 4 * 32 + lane / 4 + i % 2 * 16 + i / 2 * 8; }

/* a [16 x 16], b [8 x 16] (its columns), d [16 x 8], all column-major. wrong: rows g + 8 and columns + 8 changed. */
template <typename T> __global__ void k_product(const T *a, const T *b, float *d, int wrong)
{
    int lane = mma_lane();
    T fa[8], fb[4];
    uint32_t ra[4], rb[2];
    float c[4];
    for (int i = 0; i < 8; i++) fa[i] = a[cute_a(lane, wrong && i / 2 % 3 ? i ^ 6 : i)];
    for (int i = 0; i < 4; i++) fb[i] = b[cute_b(lane, i)];
    for (int i = 0; i < 4; i++) c[i] = d[cute_c(lane, i)];
    memcpy(ra, fa, sizeof ra);
    memcpy(rb, fb, sizeof rb);
    mma<T>(c, ra, rb[0], rb[1]);
    for (int i = 0; i < 4; i++) d[cute_c(lane, i)] = c[i];
}

/* The same from row-major tiles in shared memory: a [16 x 64], b [16 x 64] (its columns), d [16 x 16] row-major; or
 * with `transposed` b [64 x 64] and d [16 x 64], a times b by weights. */
template <typename T>
__global__ void k_tiles(const T *a, const T *b, float *d, int transposed)
{
    MPRI_SHARED(Chunk, rows, 16 * 8);
    MPRI_SHARED(Chunk, columns, 64 * 8);
    int lane = mma_lane();
    for (int t = lane; t < 16 * 8; t += 32) rows[chunk_at<64>(t / 8, t % 8)] = ((const Chunk *)a)[t];
    for (int t = lane; t < (transposed ? 64 : 16) * 8; t += 32)
        columns[chunk_at<64>(t / 8, t % 8)] = ((const Chunk *)b)[t];
    __syncwarp();
    if (!transposed) {
        float s[2][4];
        mma_rows<T, 64, 16>(s, rows, 0, columns);
        for (int n = 0; n < 2; n++)
            for (int i = 0; i < 4; i++) d[cute_c(lane, i) % 16 * 16 + n * 8 + cute_c(lane, i) / 16] = s[n][i];
        return;
    }
    float s[8][4], o[8][4];
    const float one[2] = {1, 1};
    Weights<64> w;
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) {
            s[n][i] = to_float(a[cute_c(lane, i) % 16 * 64 + n * 8 + cute_c(lane, i) / 16]);
            o[n][i] = 0;
        }
    split<T, 64>(w, s, one);
    mma_weigh<T, 64, 64, false>(o, w, columns, one);
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) d[cute_c(lane, i) % 16 * 64 + n * 8 + cute_c(lane, i) / 16] = o[n][i];
}

template <typename T> static void launch(int kind, const void *a, const void *b, float *d)
{
    if (kind < 2) MPRI_LAUNCH(k_product<T>, 1, 32, 0, 0, (const T *)a, (const T *)b, d, kind);
    else MPRI_LAUNCH(k_tiles<T>, 1, 32, 0, 0, (const T *)a, (const T *)b, d, kind == 3);
}

extern "C" void fragments_launch(int kind, int bfloat, const void *a, const void *b, float *d)
{
    if (bfloat) launch<bf16>(kind, a, b, d);
    else launch<f16>(kind, a, b, d);
}
