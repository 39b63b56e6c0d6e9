/* Attention by tensor cores, what its kernels share: tiles of 16-bit rows, weights with signs, results.
 *
 * A block has 4 warps of 16 rows each; a tile of `columns` has N rows of its own. A lane so has, of a product of
 * tiles, rows g and g + 8 of its warp (r = 0, 1) and of every block n of 8 columns two neighbours: element e of
 * [n][4] is in row e / 2 and column n * 8 + 2 t + e % 2. Sums over columns are sums of a lane and of its four. */
#ifndef MPRI_CUDA_ATTENTION_MMA_CUH
#define MPRI_CUDA_ATTENTION_MMA_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

constexpr int MMA_ROWS = 64; /* of a block: 16 of a warp */

static __device__ __forceinline__ int warp_row() { return (int)threadIdx.x / 32 * 16; }
static __device__ __forceinline__ int row_of(int r) { return warp_row() + mma_lane() / 4 + r * 8; }
static __device__ __forceinline__ int column_of(int n, int e) { return n * 8 + mma_lane() % 4 * 2 + e % 2; }

/* ---- tiles ---- */

typedef struct Row { /* of one head, in memory */
    const void *p;
    int vec;
} Row;

template <typename T> static __device__ __forceinline__ Row row_at(const Rows &x, int i)
{
    bool old = i < x.past;
    const Operand &o = old ? *x.old : *x.now;
    return Row{(const T *)o.p + (old ? x.at_old + i * o.s.row : x.at_now + (i - x.past) * o.s.row), o.vec};
}

/* Chunk c of a row of n elements; zeros behind its end. */
template <typename T> static __device__ __forceinline__ Chunk load_chunk(const Row &row, int c, int n)
{
    const T *p = (const T *)row.p + c * 8;
    if (row.vec == 8) return *(const Chunk *)p;
    Chunk v;
    MPRI_UNROLL
    for (int k = 0; k < 4; k++) {
        const uint16_t *pair = (const uint16_t *)p + k * 2;
        int left = n - c * 8 - k * 2;
        v.v[k] = (left > 0 ? pair[0] : 0u) | (left > 1 ? (uint32_t)pair[1] << 16 : 0u);
    }
    return v;
}

/* Rows [first, first + N), zeros from `end` on. Returns whether an element is not finite. */
template <typename T, int D, int N>
static __device__ __forceinline__ int load_rows(SharedPtr<Chunk> tile, const Rows &x, int first, int end)
{
    constexpr int EACH = N * D / 8 / TILE_THREADS;
    Chunk v[EACH];
    uint32_t odd = 0;
    int first_t = anew<D>((int)threadIdx.x);
    MPRI_UNROLL
    for (int k = 0; k < EACH; k++) {
        int t = first_t + k * TILE_THREADS, r = t / (D / 8), c = t % (D / 8);
        v[k] = Chunk{{0, 0, 0, 0}};
        if (first + r < end && c * 8 < x.n) v[k] = load_chunk<T>(row_at<T>(x, first + r), c, x.n);
        odd |= not_finite<T>(v[k]);
    }
    MPRI_UNROLL
    for (int k = 0; k < EACH; k++) {
        int t = first_t + k * TILE_THREADS;
        tile[chunk_at<D>(t / (D / 8), t % (D / 8))] = v[k];
    }
    return odd != 0;
}

/* ---- elements that are not finite: a weight of 0 takes nothing of them ---- */

/* Zeros in their place; all threads between two barriers. */
template <typename T, int D, int N> static __device__ __forceinline__ void clean_rows(SharedPtr<Chunk> tile)
{
    for (int t = threadIdx.x; t < N * D / 8; t += TILE_THREADS) {
        Chunk v = tile[t];
        MPRI_UNROLL
        for (int k = 0; k < 4; k++) v.v[k] = finite_part<T>(v.v[k]);
        tile[t] = v;
    }
}

/* Bit j: the weight of column j is above, below 0. */
typedef struct Signs {
    unsigned long long plus[2], minus[2];
} Signs;

template <int N> static __device__ __forceinline__ Signs signs_of(const float (&s)[N / 8][4])
{
    Signs g = {{0, 0}, {0, 0}};
    MPRI_UNROLL
    for (int n = 0; n < N / 8; n++) {
        MPRI_UNROLL
        for (int e = 0; e < 4; e++) {
            float weight = s[n][e];
            g.plus[e / 2] |= (unsigned long long)(weight > 0) << column_of(n, e);
            g.minus[e / 2] |= (unsigned long long)(weight < 0) << column_of(n, e);
        }
    }
    for (int r = 0; r < 2; r++)
        for (int k = 2; k; k /= 2) {
            g.plus[r] |= __shfl_xor_sync(FULL_MASK, g.plus[r], k);
            g.minus[r] |= __shfl_xor_sync(FULL_MASK, g.minus[r], k);
        }
    return g;
}

/* What a product of the weights s with the cleaned tile leaves out of o. */
template <typename T, int D, int N>
static __device__ __forceinline__ void add_odd(float (&o)[D / 8][4], const float (&s)[N / 8][4], const Rows &x,
                                               int first, int end)
{
    Signs g = signs_of<N>(s);
    MPRI_ROLLED
    for (int j = 0; j < N && first + j < end; j++) {
        Row row = row_at<T>(x, first + j);
        MPRI_UNROLL
        for (int n = 0; n < D / 8; n++) {
            MPRI_UNROLL
            for (int e = 0; e < 4; e++) {
                float v = column_of(n, e) < x.n ? to_float(((const T *)row.p)[column_of(n, e)]) : 0.0f;
                if (isfinite(v)) continue;
                if (g.plus[e / 2] >> j & 1) o[n][e] += v;
                if (g.minus[e / 2] >> j & 1) o[n][e] -= v;
            }
        }
    }
}

/* ---- results ---- */

template <typename T>
static __device__ __forceinline__ void store_two(T *p, bool vec, int n, float u, float v)
{
    if (vec && n > 1) {
        *(Pack<T, 2> *)p = Pack<T, 2>{{from_float<T>(u), from_float<T>(v)}};
        return;
    }
    if (n > 0) p[0] = from_float<T>(u);
    if (n > 1) p[1] = from_float<T>(v);
}

/* Row r of o, times `by`, to the n elements from `at` on. */
template <int D>
static __device__ __forceinline__ void store_result(const Operand &out, int64_t at, int n, const float (&o)[D / 8][4],
                                                    int r, float by)
{
    MPRI_UNROLL
    for (int c = 0; c < D / 8; c++) {
        int e = column_of(c, 0), left = n - e;
        float u = by == 0 ? 0.0f : o[c][r * 2] * by, v = by == 0 ? 0.0f : o[c][r * 2 + 1] * by;
        if (out.type == MPR_FLOAT32) store_two((float *)out.p + at + e, out.vec, left, u, v);
        else if (out.type == MPR_FLOAT16) store_two((f16 *)out.p + at + e, out.vec, left, u, v);
        else store_two((bf16 *)out.p + at + e, out.vec, left, u, v);
    }
}

template <int N> static __device__ __forceinline__ void clear_blocks(float (&o)[N][4])
{
    MPRI_UNROLL
    for (int n = 0; n < N; n++) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
}

/* Nothing but the ends of its span keeps a pair of query and key apart. */
static __device__ __forceinline__ bool plain(const Attention &a)
{
    return !a.mask && !(a.softcap > 0) && !a.dscores;
}

#endif
