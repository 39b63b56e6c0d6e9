/* attention_grad.cu's dq and dk dv by tensor cores, for float16 and bfloat16: mma.cuh says what a product is.
 *
 *   dq     a block per 64 queries runs over the keys, N at a time: s = q k^T, dp = dy v^T, ds, dq += ds k.
 *   dk dv  a block per 64 keys of a key head runs over the queries of all its query heads, N at a time, with sides
 *          changed: s^T = k q^T, dp^T = v dy^T, dv += p^T dy, dk += ds^T q. With heads above 64 elements one
 *          kernel makes dv and one dk: both sums do not fit the registers, and s twice is a seventh product.
 * N is 32, in dq with heads up to 64 elements 64. What is multiplied stays in the layout in which it was computed.
 * Shared memory: two tiles of 64 rows and two of N, 24 to 48 KiB, and in dk dv 16 bytes for each of N queries. No
 * sum is shared between blocks.
 *
 * Numbers: q k^T and dy v^T have exact products and sums in float; p and ds are float and go in as high + low part.
 * ds has any size (dy carries the loss scale), so float16 scales each of its rows by a power of two, per tile; the
 * sum of a tile begins at 0, is scaled back and added in float. A ds that is infinite or NaN makes its row of dq and
 * dk so. Traps as in attention_grad.cu; tiles with infinite or NaN elements as in attention_mma.cu. */
#include "kernels/cuda/attention_mma.cuh"

template <int D, int N> struct MmaGrad { /* sizes in chunks */
    static constexpr int ROWS = MMA_ROWS * D / 8, COLUMNS = N * D / 8, BYTES = (2 * ROWS + 2 * COLUMNS) * 16,
                         BYTES_DKV = BYTES + N * 16;
};

/* pair_grad where the two see each other and nothing else is asked. */
static __device__ __forceinline__ void open_pair(const Attention &a, float lse, float delta, float *s, float *d)
{
    float p = share_of(*s * a.scale, lse);
    *d = p != 0 ? p * (*d - delta) * a.scale : 0.0f;
    *s = p;
}

/* o += p times tile, o += ds times tile. */
template <typename T, int D, int N>
static __device__ __forceinline__ void weigh_shares(float (&o)[D / 8][4], const float (&p)[N / 8][4],
                                                    SharedPtr<Chunk> tile)
{
    const float up[2] = {SHARE_UP<T>, SHARE_UP<T>}, down[2] = {1 / SHARE_UP<T>, 1 / SHARE_UP<T>};
    Weights<N> w;
    split<T, N>(w, p, up);
    mma_weigh<T, D, N, false>(o, w, tile, down);
}
template <typename T, int D, int N>
static __device__ __forceinline__ void weigh_scaled(float (&o)[D / 8][4], const float (&ds)[N / 8][4],
                                                    SharedPtr<Chunk> tile)
{
    float up[2], down[2];
    Weights<N> w;
    scale_rows<T, N>(up, down, ds);
    split<T, N>(w, ds, up);
    mma_weigh<T, D, N, false>(o, w, tile, down);
}

template <typename T, int D, int N>
__global__ void __launch_bounds__(TILE_THREADS, 2) k_attention_mma_dq(Attention a, int blocks)
{
    typedef MmaGrad<D, N> Shared;
    MPRI_SHARED_DYNAMIC(Chunk, tiles);
    SharedPtr<Chunk> q = tiles, dy = tiles + Shared::ROWS, k = tiles + 2 * Shared::ROWS;
    SharedPtr<Chunk> v = tiles + (2 * Shared::ROWS + Shared::COLUMNS);
    int64_t head = blockIdx.x / blocks, b = head / a.f.heads, h = head % a.f.heads;
    int64_t kv = h / (a.f.heads / a.f.kv_heads), length = keys_that_count(a, b);
    int i0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * MMA_ROWS, low, high;
    Rows keys = keys_of(a, false, b, kv), values = keys_of(a, true, b, kv);
    Head place = head_of(a, b, h);
    Query query[2];
    float o[D / 8][4];
    seen_by_all(a, i0, i0 + MMA_ROWS, length, &low, &high);
    if (a.dscores) low = 0, high = (int)a.f.keys;
    for (int r = 0; r < 2; r++) query[r] = query_of(a, place, i0 + row_of(r), length);
    clear_blocks(o);
    load_rows<T, D, MMA_ROWS>(q, rows_of(a.q, b, h, a.f.size), i0, (int)a.f.queries);
    load_rows<T, D, MMA_ROWS>(dy, rows_of(a.dy, b, h, a.f.v_size), i0, a.dy.p ? (int)a.f.queries : 0);
    for (int j0 = low; j0 < high; j0 += N) {
        float s[N / 8][4], d[N / 8][4];
        int odd = load_rows<T, D, N>(k, keys, j0, high);
        load_rows<T, D, N>(v, values, j0, high);
        odd = __syncthreads_or(odd);
        mma_rows<T, D, N>(s, q, warp_row(), k);
        mma_rows<T, D, N>(d, dy, warp_row(), v);
        MPRI_UNROLL
        for (int r = 0; r < 2; r++) {
            bool open = plain(a) && j0 >= query[r].seen.low && j0 + N <= query[r].seen.high;
            MPRI_UNROLL
            for (int n = 0; n < N / 8; n++) {
                MPRI_UNROLL
                for (int e = r * 2; e < r * 2 + 2; e++) {
                    if (open) open_pair(a, query[r].lse, query[r].delta, &s[n][e], &d[n][e]);
                    else (void)pair_grad(a, place, query[r], j0 + column_of(n, e), &s[n][e], &d[n][e]);
                }
            }
        }
        if (odd) {
            add_odd<T, D, N>(o, d, keys, j0, high);
            __syncthreads();
            clean_rows<T, D, N>(k);
            __syncthreads();
        }
        weigh_scaled<T, D, N>(o, d, k);
        __syncthreads();
    }
    MPRI_UNROLL
    for (int r = 0; r < 2; r++) {
        int i = i0 + row_of(r);
        if (i < a.f.queries)
            store_result<D>(a.dq, head_at(a.dq, b, h) + i * a.dq.s.row, (int)a.f.size, o, r, 1);
    }
}

/* ---- dk, dv ---- */

/* Row r of a gradient of keys or values, which is key j, in the new tensor or the past one. */
template <int D>
static __device__ __forceinline__ void store_key(const Attention &a, const Operand &now, const Operand &old, int64_t b,
                                                 int64_t kv, int j, int64_t n, const float (&o)[D / 8][4], int r)
{
    bool past = j < a.f.past;
    const Operand &out = past ? old : now;
    int64_t at = head_at(out, b, kv) + (past ? j : j - a.f.past) * out.s.row;
    if (out.p && j < a.f.keys) store_result<D>(out, at, (int)n, o, r, 1);
}

/* A query as a chunk: what all keys of a block ask of it. */
static __device__ __forceinline__ Chunk query_chunk(const Query &q)
{
    return Chunk{{__float_as_uint(q.lse), __float_as_uint(q.delta), (uint32_t)q.seen.low, (uint32_t)q.seen.high}};
}
static __device__ __forceinline__ Query chunk_query(const Chunk &c, int i)
{
    return Query{Seen{i, (int)c.v[2], (int)c.v[3]}, __uint_as_float(c.v[0]), __uint_as_float(c.v[1])};
}

/* p^T and ds^T of a tile from its products. */
template <int N>
static __device__ __forceinline__ void pair_tile(const Attention &a, const Head &place, SharedPtr<Chunk> queries,
                                                 int i0, int j0, float (&s)[N / 8][4], float (&d)[N / 8][4])
{
    Chunk first = queries[0], last = queries[N - 1];
    bool open = plain(a) && j0 >= (int)last.v[2] && j0 + MMA_ROWS <= (int)first.v[3] && i0 + N <= a.f.queries;
    MPRI_UNROLL
    for (int n = 0; n < N / 8; n++) {
        MPRI_UNROLL
        for (int c = 0; c < 2; c++) {
            int i = column_of(n, c);
            Query query = chunk_query(queries[i], i0 + i);
            MPRI_UNROLL
            for (int r = 0; r < 2; r++) {
                float *at_s = &s[n][r * 2 + c], *at_d = &d[n][r * 2 + c];
                if (open) open_pair(a, query.lse, query.delta, at_s, at_d);
                else (void)pair_grad(a, place, query, j0 + row_of(r), at_s, at_d);
            }
        }
    }
}

enum { DK = 1, DV = 2 }; /* what a kernel computes */

template <typename T, int D, int N, int Parts>
__global__ void __launch_bounds__(TILE_THREADS, 2) k_attention_mma_dkv(Attention a, int blocks)
{
    typedef MmaGrad<D, N> Shared;
    MPRI_SHARED_DYNAMIC(Chunk, tiles);
    SharedPtr<Chunk> k = tiles, v = tiles + Shared::ROWS, q = tiles + 2 * Shared::ROWS;
    SharedPtr<Chunk> dy = tiles + (2 * Shared::ROWS + Shared::COLUMNS);
    SharedPtr<Chunk> of_query = tiles + (2 * Shared::ROWS + 2 * Shared::COLUMNS);
    int64_t head = blockIdx.x / blocks, b = head / a.f.kv_heads, kv = head % a.f.kv_heads;
    int64_t group = a.f.heads / a.f.kv_heads, length = keys_that_count(a, b);
    int j0 = (int)(blockIdx.x % blocks) * MMA_ROWS, queries = (int)a.f.queries, turns = (queries + N - 1) / N;
    int dy_end = a.dy.p ? queries : 0;
    float dk[D / 8][4], dv[D / 8][4];
    clear_blocks(dk);
    clear_blocks(dv);
    load_rows<T, D, MMA_ROWS>(k, keys_of(a, false, b, kv), j0, (int)a.f.keys);
    if (Parts & DK) load_rows<T, D, MMA_ROWS>(v, keys_of(a, true, b, kv), j0, (int)a.f.keys);
    for (int64_t t = 0; t < group * turns; t++) {
        int64_t h = kv * group + t / turns;
        int i0 = (int)(t % turns) * N, low, high;
        float s[N / 8][4], d[N / 8][4];
        Head place = head_of(a, b, h);
        Rows q_rows = rows_of(a.q, b, h, a.f.size), dy_rows = rows_of(a.dy, b, h, a.f.v_size);
        seen_by_all(a, i0, i0 + N, length, &low, &high);
        if (!a.dscores && (low >= j0 + MMA_ROWS || high <= j0)) continue;
        int odd = load_rows<T, D, N>(q, q_rows, i0, queries);
        odd |= load_rows<T, D, N>(dy, dy_rows, i0, dy_end);
        if (threadIdx.x < N) of_query[threadIdx.x] = query_chunk(query_of(a, place, i0 + (int)threadIdx.x, length));
        odd = __syncthreads_or(odd);
        mma_rows<T, D, N>(s, k, warp_row(), q);
        if (Parts & DK) mma_rows<T, D, N>(d, v, warp_row(), dy);
        else clear_blocks(d);
        pair_tile<N>(a, place, of_query, i0, j0, s, d);
        if (odd) {
            if (Parts & DV) add_odd<T, D, N>(dv, s, dy_rows, i0, dy_end);
            if (Parts & DK) add_odd<T, D, N>(dk, d, q_rows, i0, queries);
            __syncthreads();
            clean_rows<T, D, N>(q);
            clean_rows<T, D, N>(dy);
            __syncthreads();
        }
        if (Parts & DV) weigh_shares<T, D, N>(dv, s, dy);
        if (Parts & DK) weigh_scaled<T, D, N>(dk, d, q);
        __syncthreads();
    }
    MPRI_UNROLL
    for (int r = 0; r < 2; r++) {
        int j = j0 + row_of(r);
        if (Parts & DK) store_key<D>(a, a.dk, a.dpast_k, b, kv, j, a.f.size, dk, r);
        if (Parts & DV) store_key<D>(a, a.dv, a.dpast_v, b, kv, j, a.f.v_size, dv, r);
    }
}

/* ---- launches ---- */

template <typename T, int D, int Parts> static void launch_dkv(const KernelCall *c, const Attention &a)
{
    constexpr int N = 32, bytes = MmaGrad<D, N>::BYTES_DKV;
    unsigned blocks = cut(a.f.keys, MMA_ROWS);
    (void)shared_fits(k_attention_mma_dkv<T, D, N, Parts>, bytes);
    MPRI_LAUNCH((k_attention_mma_dkv<T, D, N, Parts>), (unsigned)(a.f.batch * a.f.kv_heads) * blocks, TILE_THREADS,
                bytes, c->queue, a, (int)blocks);
}

template <typename T, int D> static void launch(const KernelCall *c, const Attention &a)
{
    constexpr int N = D > 64 ? 32 : 64, bytes = MmaGrad<D, N>::BYTES;
    unsigned blocks = cut(a.f.queries, MMA_ROWS);
    if (gives_dq(a))
        MPRI_LAUNCH((k_attention_mma_dq<T, D, N>), (unsigned)(a.f.batch * a.f.heads) * blocks, TILE_THREADS, bytes,
                    c->queue, a, (int)blocks);
    if (!gives_dkv(a)) return;
    if constexpr (D > 64) {
        launch_dkv<T, D, DV>(c, a);
        launch_dkv<T, D, DK>(c, a);
    } else {
        launch_dkv<T, D, DK | DV>(c, a);
    }
}

void mpri_cuda_attention_mma_grad(const KernelCall *c, const Attention &a)
{
    bool wide = a.f.size > 64 || a.f.v_size > 64;
    if (a.q.type == MPR_FLOAT16) wide ? launch<f16, 128>(c, a) : launch<f16, 64>(c, a);
    else wide ? launch<bf16, 128>(c, a) : launch<bf16, 64>(c, a);
}
