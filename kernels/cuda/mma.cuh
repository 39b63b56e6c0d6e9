/* Products of 16-bit matrices on tensor cores: D[16 x 8] = A[16 x 16] B[16 x 8] + C, of one warp, products exact and
 * sums in float (PTX ISA, "mma.m16n8k16 with floating point type"), and the loads that bring fragments from shared
 * memory ("ldmatrix"). Compute capability 8.0 and newer; compiled for an older one the functions stop the kernel,
 * and rows that use them are refused there when a plan is made.
 *
 * Lane l = 4 g + t holds, two elements to a register, the first in the low half:
 *   A    a[0] row g, columns 2t 2t+1    a[1] row g + 8    a[2], a[3] the same rows, columns 2t+8 2t+9
 *   B    b[0] rows 2t 2t+1 of column g  b[1] rows 2t+8 2t+9
 *   C D  [0], [1] row g, columns 2t 2t+1   [2], [3] row g + 8
 * So a product, rounded to 16 bits, is the A of a next one without a move: two blocks of 8 columns are 16 of A.
 *
 * A tile in shared memory is rows of D elements in chunks of 8; chunk c of row r lies at c ^ (r % 8), so that the
 * eight rows of a matrix that ldmatrix takes are in different banks.
 *
 * A weight in float is a sum of two 16-bit numbers, high + low, and its product two products (split): 22 bits in
 * float16, 16 in bfloat16, where one rounding at the end keeps 11 and 8. float16 has few exponents: there weights
 * are scaled by a power of two so that the largest of a row is near 2^15, and what is 2^38 below it is lost. */
#ifndef MPRI_CUDA_MMA_CUH
#define MPRI_CUDA_MMA_CUH

#include "kernels/cuda/kernel.cuh"

#include <string.h>
#include <type_traits>

typedef Pack<uint32_t, 4> Chunk; /* 8 elements */

constexpr int MMA_CAPABILITY = 80;

#if !defined(MPR_CUDA_ON_CPU)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <typename T>
static __device__ __forceinline__ void mma(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t)
{
    __trap();
}
template <bool Transposed>
static __device__ __forceinline__ void load_matrices(uint32_t (&)[4], SharedPtr<Chunk>, int)
{
    __trap();
}
#else
template <typename T>
static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma<f16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma<bf16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices of 8 rows of a chunk each: lane l says where row l % 8 of matrix l / 8 lies, and gets of matrix m,
 * in r[m], elements 2t 2t+1 of row g; transposed, of column g those of rows 2t 2t+1. */
template <bool Transposed>
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], SharedPtr<Chunk> tile, int at)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(tile + at);
    if constexpr (Transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
}
#endif

#else /* the shim's: tests/cuda_on_cpu/mma.cpp */
template <typename T>
static inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    shim::mma_m16n8k16(d, a, b0, b1, std::is_same<T, bf16>::value);
}
template <bool Transposed>
static inline void load_matrices(uint32_t (&r)[4], SharedPtr<Chunk> tile, int at)
{
    shim::ldmatrix_x4(r, tile, at, Transposed);
}
#endif

static __device__ __forceinline__ int mma_lane() { return (int)threadIdx.x & 31; }

/* The same number, of which the compiler knows nothing: places in wide tiles that a loop would compute once and keep
 * take the registers of its sums. */
template <int D> static __device__ __forceinline__ int anew(int x)
{
#if !defined(MPR_CUDA_ON_CPU)
    if (D > 64) asm volatile("" : "+r"(x));
#endif
    return x;
}

/* For an even c: chunk_at<D>(row, x + c) == (chunk_at<D>(row, x) ^ c) for x = 0, 1. */
template <int D> static __device__ __forceinline__ int chunk_at(int row, int c)
{
    return row * (D / 8) + (c ^ (row & 7));
}

/* s = 16 rows of one tile, from `row` on, times the N rows of another: N / 8 blocks of 8 columns. */
template <typename T, int D, int N>
static __device__ __forceinline__ void mma_rows(float (&s)[N / 8][4], SharedPtr<Chunk> rows, int row,
                                                SharedPtr<Chunk> columns)
{
    int lane = anew<D>(mma_lane());
    int at_row = chunk_at<D>(row + lane % 16, lane / 16);
    int at_column = chunk_at<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    MPRI_UNROLL
    for (int n = 0; n < N / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    __syncwarp(); /* lanes may come from branches of their own: what follows is of the whole warp */
    MPRI_UNROLL
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, rows, at_row ^ k * 2);
        MPRI_UNROLL
        for (int n = 0; n < N / 8; n += 2) {
            load_matrices<false>(b, columns, (at_column ^ k * 2) + n * D);
            mma<T>(s[n], a, b[0], b[1]);
            mma<T>(s[n + 1], a, b[2], b[3]);
        }
    }
}

/* ---- weights in two parts ---- */

/* Rounds two numbers to a register of A, and leaves in them what the rounding took off. */
template <typename P> static __device__ __forceinline__ uint32_t take_pair(P rounded, float *x, float *y)
{
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    *x -= __low2float(rounded);
    *y -= __high2float(rounded);
    return bits;
}
template <typename T> static __device__ __forceinline__ uint32_t round_pair(float *x, float *y)
{
    if constexpr (std::is_same<T, f16>::value) return take_pair(__floats2half2_rn(*x, *y), x, y);
    else return take_pair(__floats2bfloat162_rn(*x, *y), x, y);
}

template <int N> struct Weights { /* of 16 rows and N columns, as A */
    uint32_t high[N / 16][4], low[N / 16][4];
};

/* w = s * up[row], up a power of two. */
template <typename T, int N>
static __device__ __forceinline__ void split(Weights<N> &w, const float (&s)[N / 8][4], const float (&up)[2])
{
    MPRI_UNROLL
    for (int n = 0; n < N / 8; n++) {
        MPRI_UNROLL
        for (int r = 0; r < 2; r++) {
            float x = s[n][r * 2] * up[r], y = s[n][r * 2 + 1] * up[r];
            w.high[n / 2][n % 2 * 2 + r] = round_pair<T>(&x, &y);
            w.low[n / 2][n % 2 * 2 + r] = round_pair<T>(&x, &y);
        }
    }
}

/* Probabilities are at most 1, but for rounding. */
template <typename T> constexpr float SHARE_UP = 1.0f;
template <> constexpr float SHARE_UP<f16> = 0x1p14f;

/* up: what brings the largest of each row near 2^15 in float16; down undoes it. All lanes of a row agree. */
template <typename T, int N>
static __device__ __forceinline__ void scale_rows(float (&up)[2], float (&down)[2], const float (&s)[N / 8][4])
{
    up[0] = up[1] = down[0] = down[1] = 1;
    if constexpr (std::is_same<T, f16>::value) {
        MPRI_UNROLL
        for (int r = 0; r < 2; r++) {
            float top = 0;
            MPRI_UNROLL
            for (int n = 0; n < N / 8; n++) top = fmaxf(top, fmaxf(fabsf(s[n][r * 2]), fabsf(s[n][r * 2 + 1])));
            for (int k = 2; k; k /= 2) top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, k));
            int e = (int)(__float_as_uint(top) >> 23);
            e = e < 15 ? 15 : e > 254 ? 254 : e; /* both factors are normal; infinities stay */
            up[r] = __uint_as_float((uint32_t)(268 - e) << 23);
            down[r] = __uint_as_float((uint32_t)(e - 14) << 23);
        }
    }
}

/* o = o * by + weights times tile (Online), or o += by * weights times tile, by row. What was 0 by choice stays 0:
 * with by = 0 the old o, whatever it is, is dropped. */
template <typename T, int D, int N, bool Online>
static __device__ __forceinline__ void mma_weigh(float (&o)[D / 8][4], const Weights<N> &w, SharedPtr<Chunk> tile,
                                                 const float (&by)[2])
{
    int lane = anew<D>(mma_lane()), at = chunk_at<D>(lane % 16, lane / 16);
    __syncwarp();
    MPRI_UNROLL
    for (int n = 0; n < D / 8; n += 2) {
        float sum[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
        MPRI_UNROLL
        for (int k = 0; k < N / 16; k++) {
            uint32_t b[4];
            load_matrices<true>(b, tile, (at ^ n) + k * 2 * D);
            mma<T>(sum[0], w.high[k], b[0], b[1]);
            mma<T>(sum[1], w.high[k], b[2], b[3]);
            mma<T>(sum[0], w.low[k], b[0], b[1]);
            mma<T>(sum[1], w.low[k], b[2], b[3]);
        }
        MPRI_UNROLL
        for (int h = 0; h < 2; h++) {
            MPRI_UNROLL
            for (int e = 0; e < 4; e++) {
                float &to = o[n + h][e], more = sum[h][e], factor = by[e / 2];
                if (Online) to = factor == 0 ? more : to * factor + more;
                else to += more * factor;
            }
        }
    }
}

/* ---- elements that are not finite ---- */

template <typename T> constexpr uint32_t EXPONENTS = 0x7c007c00u; /* all bits of both */
template <> constexpr uint32_t EXPONENTS<bf16> = 0x7f807f80u;
template <typename T> constexpr uint32_t EXPONENT_ONES = 0x04000400u; /* the lowest of them */
template <> constexpr uint32_t EXPONENT_ONES<bf16> = 0x00800080u;

/* The sign bit of each half that is infinite or NaN: only a full exponent carries that far. */
template <typename T> static __device__ __forceinline__ uint32_t not_finite(uint32_t pair)
{
    return ((pair & EXPONENTS<T>) + EXPONENT_ONES<T>) & 0x80008000u;
}
template <typename T> static __device__ __forceinline__ uint32_t not_finite(const Chunk &c)
{
    return not_finite<T>(c.v[0]) | not_finite<T>(c.v[1]) | not_finite<T>(c.v[2]) | not_finite<T>(c.v[3]);
}
template <typename T> static __device__ __forceinline__ uint32_t finite_part(uint32_t pair)
{
    return pair & ~((not_finite<T>(pair) >> 15) * 0xffffu);
}

#endif
