/* attention.cu's tiles by tensor cores, for float16 and bfloat16: mma.cuh says what a product is.
 *
 * A block has 64 queries of a head, 16 to a warp, and runs over the keys that they see, 32 at a time. A warp has its
 * scores [16 x 32] in registers, in the layout of a product's result, and multiplies them as they are with the tile of
 * values. Shared memory: queries, keys and values in 16 bits, (64 + 2 * 32) * D * 2 bytes (16 KiB, 32 KiB).
 * Traffic is that of attention.cu.
 *
 * Numbers: q k^T has exact products and sums in float. Probabilities are float and go in as high + low part, so y is
 * as if they had been multiplied in float; the sum of a tile begins at 0 and is added in float, for tensor cores cut
 * off what they add. Trap: values that are infinite or NaN would come through a probability of 0; a tile that has some
 * is multiplied without them, and they are added to the rows that see them. */
#include "kernels/cuda/attention_mma.cuh"

constexpr int MMA_KEYS = 32;

template <int D> struct MmaShared { /* in chunks */
    static constexpr int QUERIES = MMA_ROWS * D / 8, KEYS = MMA_KEYS * D / 8, BYTES = (QUERIES + 2 * KEYS) * 16;
};

/* Scores of one row of a lane become shares relative to the largest so far; *back is what older shares are to be
 * scaled by. The four lanes of a row agree on the largest. */
static __device__ __forceinline__ void online_rows(float (&s)[MMA_KEYS / 8][4], int r, float *top, float *sum,
                                                   float *back)
{
    float now = *top;
    MPRI_UNROLL
    for (int n = 0; n < MMA_KEYS / 8; n++) now = max_nan(now, max_nan(s[n][r * 2], s[n][r * 2 + 1]));
    for (int k = 2; k; k /= 2) now = max_nan(now, __shfl_xor_sync(FULL_MASK, now, k));
    *back = *top == now ? 1.0f : *top == -INFINITY ? 0.0f : expf(*top - now);
    *sum *= *back;
    MPRI_UNROLL
    for (int n = 0; n < MMA_KEYS / 8; n++) {
        MPRI_UNROLL
        for (int e = r * 2; e < r * 2 + 2; e++) {
            s[n][e] = share_of(s[n][e], now);
            *sum += s[n][e];
        }
    }
    *top = now;
}

/* What mma_weigh would do with `back` first. */
template <int N> static __device__ __forceinline__ void rescale(float (&o)[N][4], float (&back)[2])
{
    MPRI_UNROLL
    for (int n = 0; n < N; n++) {
        MPRI_UNROLL
        for (int e = 0; e < 4; e++) o[n][e] = back[e / 2] == 0 ? 0.0f : o[n][e] * back[e / 2];
    }
    back[0] = back[1] = 1;
}

template <typename T, int D>
__global__ void __launch_bounds__(TILE_THREADS, D > 64 ? 2 : 3) k_attention_mma(Attention a, float *lse_out, int blocks)
{
    typedef MmaShared<D> Shared;
    constexpr int N = MMA_KEYS;
    MPRI_SHARED_DYNAMIC(Chunk, tiles);
    SharedPtr<Chunk> q = tiles, k = tiles + Shared::QUERIES, v = tiles + (Shared::QUERIES + Shared::KEYS);
    int64_t head = blockIdx.x / blocks, b = head / a.f.heads, h = head % a.f.heads;
    int64_t kv = h / (a.f.heads / a.f.kv_heads), length = keys_that_count(a, b);
    int i0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * MMA_ROWS, low, high;
    Rows keys = keys_of(a, false, b, kv), values = keys_of(a, true, b, kv);
    Head place = head_of(a, b, h);
    Seen seen[2];
    float o[D / 8][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    const float up[2] = {SHARE_UP<T>, SHARE_UP<T>};
    seen_by_all(a, i0, i0 + MMA_ROWS, length, &low, &high);
    for (int r = 0; r < 2; r++) seen[r] = seen_by(a, i0 + row_of(r), length);
    clear_blocks(o);
    load_rows<T, D, MMA_ROWS>(q, rows_of(a.q, b, h, a.f.size), i0, (int)a.f.queries);
    for (int j0 = low; j0 < high; j0 += N) {
        float s[N / 8][4], back[2], slope;
        Weights<N> w;
        load_rows<T, D, N>(k, keys, j0, high);
        int odd = load_rows<T, D, N>(v, values, j0, high);
        odd = __syncthreads_or(odd);
        mma_rows<T, D, N>(s, q, warp_row(), k);
        MPRI_UNROLL
        for (int r = 0; r < 2; r++) {
            bool open = plain(a) && j0 >= seen[r].low && j0 + N <= seen[r].high;
            MPRI_UNROLL
            for (int n = 0; n < N / 8; n++) {
                MPRI_UNROLL
                for (int e = r * 2; e < r * 2 + 2; e++) {
                    s[n][e] *= a.scale;
                    if (!open) s[n][e] = score_of(a, place, seen[r], j0 + column_of(n, e), s[n][e], &slope);
                }
            }
            online_rows(s, r, &top[r], &sum[r], &back[r]);
        }
        if (odd) {
            rescale(o, back);
            add_odd<T, D, N>(o, s, values, j0, high);
            clean_rows<T, D, N>(v);
            __syncthreads();
        }
        split<T, N>(w, s, up);
        mma_weigh<T, D, N, true>(o, w, v, back);
        __syncthreads();
    }
    MPRI_UNROLL
    for (int r = 0; r < 2; r++) {
        int i = i0 + row_of(r);
        bool none = top[r] == -INFINITY;
        for (int step = 2; step; step /= 2) sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], step);
        if (i >= a.f.queries) continue;
        store_result<D>(a.y, head_at(a.y, b, h) + i * a.y.s.row, (int)a.f.v_size, o, r,
                        none ? 0.0f : 1 / SHARE_UP<T> / sum[r]);
        if (lse_out && mma_lane() % 4 == 0)
            lse_out[head * a.f.queries + i] = none ? INFINITY : top[r] + logf(sum[r]);
    }
}

template <typename T, int D> static void launch(const KernelCall *c, const Attention &a, float *lse)
{
    unsigned blocks = cut(a.f.queries, MMA_ROWS);
    MPRI_LAUNCH((k_attention_mma<T, D>), (unsigned)(a.f.batch * a.f.heads) * blocks, TILE_THREADS, MmaShared<D>::BYTES,
                c->queue, a, lse, (int)blocks);
}

void mpri_cuda_attention_mma(const KernelCall *c, const Attention &a, float *lse)
{
    bool wide = a.f.size > 64 || a.f.v_size > 64;
    if (a.q.type == MPR_FLOAT16) wide ? launch<f16, 128>(c, a, lse) : launch<f16, 64>(c, a, lse);
    else wide ? launch<bf16, 128>(c, a, lse) : launch<bf16, 64>(c, a, lse);
}
