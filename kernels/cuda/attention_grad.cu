/* The gradient of attention, from the output and the log-sum-exp of each row: probabilities are computed
 * again, tile by tile, and no sum is shared between blocks, so bits do not depend on their order.
 *
 *   delta  a warp per query: sum of dy * y, which the softmax takes off every dp.
 *   dq     a block per 64 queries (32 with heads above 64) runs over the keys: s = q k^T, dp = dy v^T,
 *          ds, dq += ds k.
 *   dk dv  a block per as many keys of a key head runs over the queries of all its query heads: the same
 *          products with sides changed, dv += p^T dy, dk += ds^T q.
 *   dmask  a block per tile of the mask runs over the heads and batch items (and queries) that share it.
 *
 * Traffic: q, dy, y, k, v and the gradients once, and k, v (q, dy) once per block, mostly from the L2
 * cache. Two products are made twice, in dq and in dk dv; that costs 7 products where 5 would do, and
 * buys sums without atomics. Shared memory: four tiles in float and the weights.
 *
 * Trap: a query that sees no key has lse = +inf, so its probabilities are 0. Where a tile holds infinite
 * or NaN elements, products with a weight of 0 are left out. */
#include "kernels/cuda/attention.cuh"

constexpr int WARPS = 4;
constexpr int LEAST_SHARED = 64 << 10; /* that every GPU has for a block: compute capability 7.5 */

template <int D, int R> struct GradShared { /* in packs of four floats */
    static constexpr int ROWS = 16 * R * D / 4, COLUMNS = TILE_COLUMNS * D / 4,
                         WEIGHTS = 16 * R * TILE_LANES,
                         LAST = COLUMNS > WEIGHTS ? COLUMNS : WEIGHTS, /* columns, then weights */
                         ALIAS_BYTES = (2 * ROWS + COLUMNS + LAST) * 16,
                         APART_BYTES = (2 * ROWS + 2 * COLUMNS + WEIGHTS) * 16;
};

/* ---- delta ---- */

__global__ void k_attention_delta(Attention a, int64_t n)
{
    int lane = threadIdx.x & 31;
    for (int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; row < n;
         row += (int64_t)gridDim.x * WARPS) {
        int64_t i = row % a.f.queries, head = row / a.f.queries, b = head / a.f.heads;
        int64_t h = head % a.f.heads;
        Rows y = rows_of(a.y, b, h, a.f.v_size), dy = rows_of(a.dy, b, h, a.f.v_size);
        float sum = 0, slope;
        for (int c = lane; a.dy.p && c * 4 < a.f.v_size; c += 32) {
            F4 u = load_pack(y, (int)i, c), g = load_pack(dy, (int)i, c);
            for (int e = 0; e < 4; e++) sum += u.v[e] * g.v[e];
        }
        if (a.dscores && a.mode == 3) { /* the probabilities were an output */
            Rows query = rows_of(a.q, b, h, a.f.size);
            Rows keys = keys_of(a, false, b, h / (a.f.heads / a.f.kv_heads));
            Seen seen = seen_by(a, i, keys_that_count(a, b));
            float lse = load_float(a.lse, a.lse_type, row);
            for (int j = lane; j < a.f.keys; j += 32) {
                float dot = 0;
                for (int c = 0; c * 4 < a.f.size; c++) {
                    F4 u = load_pack(query, (int)i, c), k = load_pack(keys, j, c);
                    for (int e = 0; e < 4; e++) dot += u.v[e] * k.v[e];
                }
                float p = share_of(score_of(a, head_of(a, b, h), seen, j, dot * a.scale, &slope), lse);
                if (p != 0) sum += p * direct_of(a, row, j);
            }
        }
        sum = warp_sum(sum);
        if (lane == 0) a.delta[row] = sum;
    }
}

/* ---- dq ---- */

template <int D, int R>
__global__ void __launch_bounds__(TILE_THREADS, 2) k_attention_dq(Attention a, int blocks)
{
    typedef GradShared<D, R> Shared;
    constexpr int D4 = D / 4, N = 16 * R;
    MPRI_SHARED_DYNAMIC(F4, tiles);
    SharedPtr<F4> q = tiles, dy = tiles + Shared::ROWS, k = tiles + 2 * Shared::ROWS;
    SharedPtr<F4> v = tiles + (2 * Shared::ROWS + Shared::COLUMNS);
    int64_t head = blockIdx.x / blocks, b = head / a.f.heads, h = head % a.f.heads;
    int64_t kv = h / (a.f.heads / a.f.kv_heads), length = keys_that_count(a, b);
    int i0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * N, low, high;
    int k4 = ((int)a.f.size + 3) / 4, v4 = ((int)a.f.v_size + 3) / 4;
    Rows keys = keys_of(a, false, b, kv), values = keys_of(a, true, b, kv);
    Head place = head_of(a, b, h);
    Query query[R];
    F4 o[R][D4 / 8];
    seen_by_all(a, i0, i0 + N, length, &low, &high);
    if (a.dscores) low = 0, high = (int)a.f.keys;
    MPRI_UNROLL
    for (int r = 0; r < R; r++) query[r] = query_of(a, place, i0 + tile_y() * R + r, length);
    clear<D4, R>(o);
    load_tile<D4>(q, N, rows_of(a.q, b, h, a.f.size), i0, (int)a.f.queries);
    load_tile<D4>(dy, N, rows_of(a.dy, b, h, a.f.v_size), i0, a.dy.p ? (int)a.f.queries : 0);
    for (int j0 = low; j0 < high; j0 += TILE_COLUMNS) {
        float s[R][4], d[R][4];
        int odd = load_tile<D4>(k, TILE_COLUMNS, keys, j0, high);
        load_tile<D4>(v, TILE_COLUMNS, values, j0, high);
        odd = __syncthreads_or(odd);
        tile_product<D4, R>(s, q, k, k4);
        tile_product<D4, R>(d, dy, v, v4);
        MPRI_UNROLL
        for (int r = 0; r < R; r++) {
            MPRI_UNROLL
            for (int c = 0; c < 4; c++)
                (void)pair_grad(a, place, query[r], j0 + tile_x() * 4 + c, &s[r][c], &d[r][c]);
        }
        __syncthreads();
        store_weights<R>(v, d);
        __syncwarp();
        weigh<D4, R>(o, v, k, k4, odd);
        __syncthreads();
    }
    MPRI_UNROLL
    for (int r = 0; r < R; r++) {
        int i = i0 + tile_y() * R + r;
        if (i < a.f.queries)
            store_row<D4>(a.dq, head_at(a.dq, b, h) + i * a.dq.s.row, (int)a.f.size, o[r], 1);
    }
}

/* ---- dk, dv ---- */

/* Row j of a gradient of keys or values, in the new tensor or the past one. */
template <int D4>
static __device__ __forceinline__ void store_key(const Attention &a, const Operand &now,
                                                 const Operand &old, int64_t b, int64_t kv, int j,
                                                 int64_t n, const F4 (&o)[D4 / 8])
{
    bool past = j < a.f.past;
    const Operand &out = past ? old : now;
    int64_t at = head_at(out, b, kv) + (past ? j : j - a.f.past) * out.s.row;
    if (out.p && j < a.f.keys) store_row<D4>(out, at, (int)n, o, 1);
}

template <int D, int R>
__global__ void __launch_bounds__(TILE_THREADS, 2) k_attention_dkv(Attention a, int blocks)
{
    typedef GradShared<D, R> Shared;
    constexpr int D4 = D / 4, N = 16 * R;
    MPRI_SHARED_DYNAMIC(F4, tiles);
    SharedPtr<F4> k = tiles, v = tiles + Shared::ROWS, q = tiles + 2 * Shared::ROWS;
    SharedPtr<F4> dy = tiles + (2 * Shared::ROWS + Shared::COLUMNS);
    SharedPtr<F4> weights = tiles + (2 * Shared::ROWS + 2 * Shared::COLUMNS);
    int64_t head = blockIdx.x / blocks, b = head / a.f.kv_heads, kv = head % a.f.kv_heads;
    int64_t group = a.f.heads / a.f.kv_heads, length = keys_that_count(a, b);
    int j0 = (int)(blockIdx.x % blocks) * N, queries = (int)a.f.queries;
    int turns = (queries + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int k4 = ((int)a.f.size + 3) / 4, v4 = ((int)a.f.v_size + 3) / 4;
    F4 dk[R][D4 / 8], dv[R][D4 / 8];
    clear<D4, R>(dk);
    clear<D4, R>(dv);
    load_tile<D4>(k, N, keys_of(a, false, b, kv), j0, (int)a.f.keys);
    load_tile<D4>(v, N, keys_of(a, true, b, kv), j0, (int)a.f.keys);
    for (int64_t t = 0; t < group * turns; t++) {
        int64_t h = kv * group + t / turns;
        int i0 = (int)(t % turns) * TILE_COLUMNS, low, high;
        float s[R][4], d[R][4];
        Head place = head_of(a, b, h);
        seen_by_all(a, i0, i0 + TILE_COLUMNS, length, &low, &high);
        if (!a.dscores && (low >= j0 + N || high <= j0)) continue;
        int odd = load_tile<D4>(q, TILE_COLUMNS, rows_of(a.q, b, h, a.f.size), i0, queries);
        odd |= load_tile<D4>(dy, TILE_COLUMNS, rows_of(a.dy, b, h, a.f.v_size), i0,
                             a.dy.p ? queries : 0);
        odd = __syncthreads_or(odd);
        tile_product<D4, R>(s, k, q, k4);
        tile_product<D4, R>(d, v, dy, v4);
        MPRI_UNROLL
        for (int c = 0; c < 4; c++) {
            Query query = query_of(a, place, i0 + tile_x() * 4 + c, length);
            MPRI_UNROLL
            for (int r = 0; r < R; r++)
                (void)pair_grad(a, place, query, j0 + tile_y() * R + r, &s[r][c], &d[r][c]);
        }
        store_weights<R>(weights, s);
        __syncwarp();
        weigh<D4, R>(dv, weights, dy, v4, odd);
        __syncwarp();
        store_weights<R>(weights, d);
        __syncwarp();
        weigh<D4, R>(dk, weights, q, k4, odd);
        __syncthreads();
    }
    MPRI_UNROLL
    for (int r = 0; r < R; r++) {
        int j = j0 + tile_y() * R + r;
        store_key<D4>(a, a.dk, a.dpast_k, b, kv, j, a.f.size, dk[r]);
        store_key<D4>(a, a.dv, a.dpast_v, b, kv, j, a.f.v_size, dv[r]);
    }
}

/* ---- dmask ---- */

typedef struct MaskOut {
    void *p;
    int type;
    int batches, heads;            /* of the mask: 1 where it is broadcast */
    int row_blocks, column_blocks; /* tiles of the mask; one block of rows where they are broadcast */
} MaskOut;

template <int D, int R>
__global__ void __launch_bounds__(TILE_THREADS) k_attention_dmask(Attention a, MaskOut m)
{
    typedef GradShared<D, R> Shared;
    constexpr int D4 = D / 4, N = 16 * R;
    MPRI_SHARED_DYNAMIC(F4, tiles);
    SharedPtr<F4> q = tiles, dy = tiles + Shared::ROWS, k = tiles + 2 * Shared::ROWS;
    SharedPtr<F4> v = tiles + (2 * Shared::ROWS + Shared::COLUMNS);
    int64_t at = blockIdx.x;
    int j0 = (int)(at % m.column_blocks) * TILE_COLUMNS, queries = (int)a.f.queries;
    int row_block = (int)(at / m.column_blocks % m.row_blocks);
    int mh = (int)(at / m.column_blocks / m.row_blocks % m.heads);
    int mb = (int)(at / m.column_blocks / m.row_blocks / m.heads);
    int share_b = m.batches == 1 ? (int)a.f.batch : 1, share_h = m.heads == 1 ? (int)a.f.heads : 1;
    int share_i = a.f.mask.row ? 1 : (queries + N - 1) / N;
    int k4 = ((int)a.f.size + 3) / 4, v4 = ((int)a.f.v_size + 3) / 4;
    float sum[R][4];
    MPRI_UNROLL
    for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = 0;
    for (int64_t t = 0; t < (int64_t)share_b * share_h * share_i; t++) {
        int64_t h = mh + t / share_i % share_h, b = mb + t / share_i / share_h;
        int64_t kv = h / (a.f.heads / a.f.kv_heads), length = keys_that_count(a, b);
        int i0 = (row_block + (int)(t % share_i)) * N;
        float s[R][4], d[R][4];
        Head place = head_of(a, b, h);
        load_tile<D4>(q, N, rows_of(a.q, b, h, a.f.size), i0, queries);
        load_tile<D4>(dy, N, rows_of(a.dy, b, h, a.f.v_size), i0, a.dy.p ? queries : 0);
        load_tile<D4>(k, TILE_COLUMNS, keys_of(a, false, b, kv), j0, (int)a.f.keys);
        load_tile<D4>(v, TILE_COLUMNS, keys_of(a, true, b, kv), j0, (int)a.f.keys);
        __syncthreads();
        tile_product<D4, R>(s, q, k, k4);
        tile_product<D4, R>(d, dy, v, v4);
        MPRI_UNROLL
        for (int r = 0; r < R; r++) {
            Query query = query_of(a, place, i0 + tile_y() * R + r, length);
            MPRI_UNROLL
            for (int c = 0; c < 4; c++)
                sum[r][c] += pair_grad(a, place, query, j0 + tile_x() * 4 + c, &s[r][c], &d[r][c]);
        }
        __syncthreads();
    }
    int64_t base = mb * a.f.mask.batch + mh * a.f.mask.head;
    if (a.f.mask.row) {
        MPRI_UNROLL
        for (int r = 0; r < R; r++) {
            int i = row_block * N + tile_y() * R + r;
            MPRI_UNROLL
            for (int c = 0; c < 4; c++) {
                int j = j0 + tile_x() * 4 + c;
                if (i < queries && j < a.f.mask_keys)
                    store_float(m.p, m.type, base + i * a.f.mask.row + j, sum[r][c]);
            }
        }
        return;
    }
    store_weights<R>(v, sum);
    __syncthreads();
    for (int x = threadIdx.x; x < TILE_LANES; x += TILE_THREADS) { /* rows in their order */
        F4 all = {{0, 0, 0, 0}};
        for (int i = 0; i < N; i++) {
            F4 one = v[i * TILE_LANES + x];
            for (int c = 0; c < 4; c++) all.v[c] += one.v[c];
        }
        for (int c = 0; c < 4; c++)
            if (j0 + x * 4 + c < a.f.mask_keys)
                store_float(m.p, m.type, base + j0 + x * 4 + c, all.v[c]);
    }
}

/* ---- launches ---- */

template <int D, int R> static bool launch_dkv(const KernelCall *c, const Attention &a)
{
    constexpr int bytes = GradShared<D, R>::APART_BYTES;
    unsigned blocks = cut(a.f.keys, 16 * R);
    if (!shared_fits(k_attention_dkv<D, R>, bytes)) return false;
    MPRI_LAUNCH((k_attention_dkv<D, R>), (unsigned)(a.f.batch * a.f.kv_heads) * blocks, TILE_THREADS,
                bytes, c->queue, a, (int)blocks);
    return true;
}

template <int D, int R> static void launch_grad(const KernelCall *c, const Attention &a)
{
    constexpr int bytes = GradShared<D, R>::ALIAS_BYTES;
    unsigned blocks = cut(a.f.queries, 16 * R);
    if (gives_dq(a)) {
        (void)shared_fits(k_attention_dq<D, R>, bytes);
        MPRI_LAUNCH((k_attention_dq<D, R>), (unsigned)(a.f.batch * a.f.heads) * blocks, TILE_THREADS,
                    bytes, c->queue, a, (int)blocks);
    }
    if (!gives_dkv(a)) return;
    bool done = launch_dkv<D, R>(c, a);
    if constexpr (GradShared<D, R>::APART_BYTES > LEAST_SHARED)
        if (!done) (void)launch_dkv<D, R / 2>(c, a);
}

template <int D, int R> static void launch_dmask(const KernelCall *c, const Attention &a)
{
    constexpr int bytes = GradShared<D, R>::ALIAS_BYTES;
    const Tensor *dmask = output_of(c, 3), *mask = &c->in[3];
    if (!dmask || !dmask->n) return;
    int64_t mh = mask->rank > 2 ? mask->dims[mask->rank - 3] : 1;
    int64_t mb = mask->rank > 3 ? mask->dims[0] : 1;
    MaskOut m = {dmask->data, (int)dmask->dtype, (int)mb, (int)mh,
                 a.f.mask.row ? (int)cut(a.f.queries, 16 * R) : 1, (int)cut(a.f.mask_keys, TILE_COLUMNS)};
    (void)shared_fits(k_attention_dmask<D, R>, bytes);
    MPRI_LAUNCH((k_attention_dmask<D, R>), (unsigned)(mb * mh) * m.row_blocks * m.column_blocks,
                TILE_THREADS, bytes, c->queue, a, m);
}

static mpr_status differentiate(const KernelCall *c, bool mma)
{
    Attention a = attention_of(c);
    const Tensor *dscores = input_of(c, 10);
    int64_t wide = a.f.size > a.f.v_size ? a.f.size : a.f.v_size;
    a.dy = operand_of(input_of(c, 7), a.f.y, a.f.v_size);
    a.y = operand_of(input_of(c, 8), a.f.y, a.f.v_size);
    a.lse = c->in[9].data, a.lse_type = (int)c->in[9].dtype;
    if (dscores) a.dscores = dscores->data, a.dscores_type = (int)dscores->dtype;
    a.dq = operand_of(output_of(c, 0), a.f.q, a.f.size);
    a.dk = operand_of(output_of(c, 1), a.f.k, a.f.size);
    a.dv = operand_of(output_of(c, 2), a.f.v, a.f.v_size);
    a.dpast_k = operand_of(output_of(c, 4), a.f.past_k, a.f.size);
    a.dpast_v = operand_of(output_of(c, 5), a.f.past_v, a.f.v_size);
    a.delta = (float *)c->workspace;
    int64_t rows = a.f.batch * a.f.heads * a.f.queries;
    if (rows)
        MPRI_LAUNCH(k_attention_delta, blocks_for(rows, WARPS), WARPS * 32, 0, c->queue, a, rows);
    if (mma) mpri_cuda_attention_mma_grad(c, a);
    else if (wide <= 64) launch_grad<64, 4>(c, a);
    else launch_grad<128, 2>(c, a);
    if (wide <= 64) launch_dmask<64, 4>(c, a);
    else launch_dmask<128, 2>(c, a);
    return MPR_OK;
}

static mpr_status k_attention_grad(const KernelCall *c) { return differentiate(c, false); }
static mpr_status k_attention_grad_by_mma(const KernelCall *c) { return differentiate(c, true); }

static size_t workspace(const KernelSig *s, int threads)
{
    (void)threads;
    AttentionForm f = mpri_attention_form((const AttentionParams *)s->params, s->in, s->n_in);
    return (size_t)(f.batch * f.heads * f.queries) * sizeof(float);
}

static const char *refuse(const KernelSig *s)
{
    for (int k = 8; k <= 9; k++)
        if (k >= s->n_in || !mpri_tensor_here(&s->in[k]))
            return "without the output and its log-sum-exp";
    return refuse_attention(s);
}

static const char *refuse_by_mma(const KernelSig *s)
{
    const char *why = refuse_mma(s);
    return why ? why : refuse(s);
}

static double flops(const KernelSig *s)
{
    AttentionForm f;
    double pairs = pairs_of(s, &f);
    return 2 * pairs * (double)(3 * f.size + 2 * f.v_size);
}

static const KernelRow rows[] = {
    CUDA_ROW(AttentionGrad, "attentiongrad.mma", k_attention_grad_by_mma, .refuse = refuse_by_mma,
             .workspace = workspace, .flops = flops),
    CUDA_ROW(AttentionGrad, "attentiongrad", k_attention_grad, .refuse = refuse, .workspace = workspace,
             .flops = flops),
};
extern "C" const KernelTable mpri_cuda_attention_grad = CUDA_TABLE(rows);
