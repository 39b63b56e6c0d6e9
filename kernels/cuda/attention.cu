/* Attention in tiles: the matrix of scores never exists as a whole (Dao, "FlashAttention-2", 2023).
 *
 * A block has 64 queries of a head and runs over the keys that they see, 32 at a time: products with a
 * tile of keys, then the running maximum and sum of exponentials, by which what is there is scaled when
 * the maximum grows, then probabilities times a tile of values. Late queries see most under a causal
 * mask and come first. Traffic: q and y once, k and v once per 64 queries, mostly from the L2 cache.
 * Shared memory: queries, keys, values in float, (64 + 2 * 32) * D * 4 bytes; probabilities take the
 * place of the keys. See kernels/attention.h for what a query sees; a query that sees no key gives 0.
 *
 * Trap: a masked key has probability 0 by choice, and where its value is infinite or NaN that product is
 * left out, not computed. Scores as an output, and present keys and values, are written by plain
 * kernels behind it. */
#include "kernels/cuda/attention.cuh"

constexpr int FORWARD_R = 4, FORWARD_ROWS = 16 * FORWARD_R, PLAIN_THREADS = 256;

template <int D> struct ForwardShared { /* in packs of four floats */
    static constexpr int QUERIES = FORWARD_ROWS * D / 4, WEIGHTS = FORWARD_ROWS * TILE_LANES,
                         COLUMNS = TILE_COLUMNS * D / 4,
                         KEYS = COLUMNS > WEIGHTS ? COLUMNS : WEIGHTS,
                         BYTES = (QUERIES + KEYS + COLUMNS) * 16;
};

/* Scores s of one row become shares relative to the largest score so far; *back is what older shares
 * are to be scaled by. The eight lanes of a row agree on the largest. */
static __device__ __forceinline__ void online_row(float (&s)[4], float *top, float *sum, float *back)
{
    float now = max_nan(max_nan(s[0], s[1]), max_nan(s[2], s[3]));
    for (int k = TILE_LANES / 2; k; k /= 2) now = max_nan(now, __shfl_xor_sync(FULL_MASK, now, k));
    now = max_nan(*top, now);
    *back = *top == now ? 1.0f : *top == -INFINITY ? 0.0f : expf(*top - now);
    *sum *= *back;
    MPRI_UNROLL
    for (int c = 0; c < 4; c++) {
        s[c] = share_of(s[c], now);
        *sum += s[c];
    }
    *top = now;
}

template <int D>
__global__ void __launch_bounds__(TILE_THREADS) k_attention_tiles(Attention a, float *lse_out, int blocks)
{
    typedef ForwardShared<D> Shared;
    constexpr int D4 = D / 4, R = FORWARD_R;
    MPRI_SHARED_DYNAMIC(F4, tiles);
    SharedPtr<F4> q = tiles, k = tiles + Shared::QUERIES, v = tiles + (Shared::QUERIES + Shared::KEYS);
    int64_t head = blockIdx.x / blocks, b = head / a.f.heads, h = head % a.f.heads;
    int64_t kv = h / (a.f.heads / a.f.kv_heads), length = keys_that_count(a, b);
    int i0 = (blocks - 1 - (int)(blockIdx.x % blocks)) * FORWARD_ROWS, low, high;
    int k4 = ((int)a.f.size + 3) / 4, v4 = ((int)a.f.v_size + 3) / 4;
    Rows keys = keys_of(a, false, b, kv), values = keys_of(a, true, b, kv);
    Head place = head_of(a, b, h);
    Seen seen[R];
    F4 o[R][D4 / 8];
    float top[R], sum[R];
    seen_by_all(a, i0, i0 + FORWARD_ROWS, length, &low, &high);
    for (int r = 0; r < R; r++) {
        seen[r] = seen_by(a, i0 + tile_y() * R + r, length);
        top[r] = -INFINITY;
        sum[r] = 0;
    }
    clear<D4, R>(o);
    load_tile<D4>(q, FORWARD_ROWS, rows_of(a.q, b, h, a.f.size), i0, (int)a.f.queries);
    for (int j0 = low; j0 < high; j0 += TILE_COLUMNS) {
        float s[R][4], back, slope;
        load_tile<D4>(k, TILE_COLUMNS, keys, j0, high);
        int odd = load_tile<D4>(v, TILE_COLUMNS, values, j0, high);
        odd = __syncthreads_or(odd);
        tile_product<D4, R>(s, q, k, k4);
        MPRI_UNROLL
        for (int r = 0; r < R; r++) {
            MPRI_UNROLL
            for (int c = 0; c < 4; c++)
                s[r][c] = score_of(a, place, seen[r], j0 + tile_x() * 4 + c, s[r][c] * a.scale, &slope);
            online_row(s[r], &top[r], &sum[r], &back);
            MPRI_UNROLL
            for (int c = 0; c < D4 / 8; c++) {
                MPRI_UNROLL
                for (int e = 0; e < 4; e++) o[r][c].v[e] = back == 0 ? 0.0f : o[r][c].v[e] * back;
            }
        }
        __syncthreads();
        store_weights<R>(k, s);
        __syncwarp();
        weigh<D4, R>(o, k, v, v4, odd);
        __syncthreads();
    }
    MPRI_UNROLL
    for (int r = 0; r < R; r++) {
        int i = i0 + tile_y() * R + r;
        bool none = top[r] == -INFINITY;
        for (int step = TILE_LANES / 2; step; step /= 2)
            sum[r] += __shfl_xor_sync(FULL_MASK, sum[r], step);
        if (i >= a.f.queries) continue;
        store_row<D4>(a.y, head_at(a.y, b, h) + i * a.y.s.row, (int)a.f.v_size, o[r],
                      none ? 0.0f : 1 / sum[r]);
        if (lse_out && tile_x() == 0)
            lse_out[head * a.f.queries + i] = none ? INFINITY : top[r] + logf(sum[r]);
    }
}

/* ---- outputs that are rarely asked for ---- */

/* The matrix of scores as an output: a thread per pair. mode: 0 products, 1 after softcap, 2 after the
 * mask, 3 probabilities. */
__global__ void k_attention_scores(Attention a, const float *lse, void *out, int type, int64_t n)
{
    for (int64_t at = grid_begin(); at < n; at += grid_step()) {
        int64_t row = at / a.f.keys, i = row % a.f.queries, head = row / a.f.queries;
        int64_t b = head / a.f.heads, h = head % a.f.heads;
        int j = (int)(at % a.f.keys);
        Rows query = rows_of(a.q, b, h, a.f.size);
        Rows keys = keys_of(a, false, b, h / (a.f.heads / a.f.kv_heads));
        Seen seen = seen_by(a, i, keys_that_count(a, b));
        float dot = 0, slope;
        for (int c = 0; c * 4 < a.f.size; c++) {
            F4 x = load_pack(query, (int)i, c), y = load_pack(keys, j, c);
            for (int e = 0; e < 4; e++) dot += x.v[e] * y.v[e];
        }
        dot *= a.scale;
        float v = a.mode == 0   ? dot
                  : a.mode == 1 ? capped(a, dot, &slope)
                                : score_of(a, head_of(a, b, h), seen, j, dot, &slope);
        store_float(out, type, at, a.mode == 3 ? share_of(v, lse[row]) : v);
    }
}

/* Past and new tokens one behind the other, as [batch, heads, tokens, size]: a thread per element. */
__global__ void k_attention_present(Attention a, bool value, void *out, int type, int64_t n)
{
    int64_t size = value ? a.f.v_size : a.f.size;
    for (int64_t at = grid_begin(); at < n; at += grid_step()) {
        int64_t e = at % size, row = at / size, j = row % a.f.keys, head = row / a.f.keys;
        Rows x = keys_of(a, value, head / a.f.kv_heads, head % a.f.kv_heads);
        const Operand &o = j < x.past ? *x.old : *x.now;
        int64_t from = j < x.past ? x.at_old + j * o.s.row : x.at_now + (j - x.past) * o.s.row;
        store_float(out, type, at, load_float(o.p, o.type, from + e));
    }
}

/* ---- launches ---- */

template <int D> static void launch_tiles(const KernelCall *c, const Attention &a, float *lse)
{
    unsigned blocks = cut(a.f.queries, FORWARD_ROWS);
    (void)shared_fits(k_attention_tiles<D>, ForwardShared<D>::BYTES);
    MPRI_LAUNCH((k_attention_tiles<D>), (unsigned)(a.f.batch * a.f.heads) * blocks, TILE_THREADS,
                ForwardShared<D>::BYTES, c->queue, a, lse, (int)blocks);
}

static void present(const KernelCall *c, const Attention &a, int k)
{
    const Tensor *out = output_of(c, k);
    if (!out || !out->n) return;
    MPRI_LAUNCH(k_attention_present, blocks_for(out->n, PLAIN_THREADS), PLAIN_THREADS, 0, c->queue, a,
                k == 2, out->data, (int)out->dtype, out->n);
}

static mpr_status attend(const KernelCall *c, bool mma)
{
    Attention a = attention_of(c);
    const Tensor *scores = output_of(c, 3), *lse_out = output_of(c, 4);
    int64_t wide = a.f.size > a.f.v_size ? a.f.size : a.f.v_size;
    float *lse = lse_out ? (float *)lse_out->data : scores ? (float *)c->workspace : NULL;
    a.y = operand_of(&c->out[0], a.f.y, a.f.v_size);
    if (a.f.batch * a.f.heads * a.f.queries > 0) {
        if (mma) mpri_cuda_attention_mma(c, a, lse);
        else if (wide <= 32) launch_tiles<32>(c, a, lse);
        else if (wide <= 64) launch_tiles<64>(c, a, lse);
        else launch_tiles<128>(c, a, lse);
    }
    if (scores && scores->n)
        MPRI_LAUNCH(k_attention_scores, blocks_for(scores->n, PLAIN_THREADS), PLAIN_THREADS, 0, c->queue,
                    a, lse, scores->data, (int)scores->dtype, scores->n);
    present(c, a, 1);
    present(c, a, 2);
    return MPR_OK;
}

static mpr_status k_attention(const KernelCall *c) { return attend(c, false); }
static mpr_status k_attention_by_mma(const KernelCall *c) { return attend(c, true); }

static bool gives(const KernelSig *s, int k) { return k < s->n_out && mpri_tensor_here(&s->out[k]); }

static size_t workspace(const KernelSig *s, int threads)
{
    (void)threads;
    AttentionForm f = mpri_attention_form((const AttentionParams *)s->params, s->in, s->n_in);
    return gives(s, 3) && !gives(s, 4) ? (size_t)(f.batch * f.heads * f.queries) * sizeof(float) : 0;
}

static const char *refuse(const KernelSig *s)
{
    const char *why = refuse_attention(s);
    if (why) return why;
    return gives(s, 4) && s->out[4].dtype != MPR_FLOAT32 ? "the log-sum-exp is not float32" : NULL;
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
    return 2 * pairs * (double)(f.size + f.v_size);
}

static const KernelRow rows[] = {
    CUDA_ROW(Attention, "attention.mma", k_attention_by_mma, .refuse = refuse_by_mma, .workspace = workspace,
             .flops = flops),
    CUDA_ROW(Attention, "attention", k_attention, .refuse = refuse, .workspace = workspace,
             .flops = flops),
};
extern "C" const KernelTable mpri_cuda_attention = CUDA_TABLE(rows);
