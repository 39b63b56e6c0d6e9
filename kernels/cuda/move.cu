/* The copies of move.cuh. Traffic: every element read once and written once.
 *
 *   k_move  a thread per element, neighbours write neighbours. Where both sides are contiguous
 * along the innermost dim, elements are widened to up to 16 bytes first. 256 threads a block.
 *   k_tile  the source is contiguous along another dim than the target (a transposed matrix, in any
 *           number of batch dims): squares of 32 x 32 go through shared memory, so that both sides
 * are read and written along their rows. 32 x 8 threads a block; the pitch keeps columns of the
 *           square in different banks.
 * One contiguous block is left to the copy engine. */
#include "kernels/cuda/move.cuh"

enum { MOVE_THREADS = 256, TILE = 32, TILE_ROWS = 8 };

/* I: uint32_t where all positions are below 2^31; strides and positions wrap around like signed
 * ones. */
template <typename I> struct Dims {
    int rank;
    I dims[MOVE_RANK], in[MOVE_RANK], out[MOVE_RANK];
};
static __device__ __forceinline__ int64_t as_signed(uint32_t v) { return (int32_t)v; }
static __device__ __forceinline__ int64_t as_signed(uint64_t v) { return (int64_t)v; }

template <typename I>
static __device__ __forceinline__ void place(const Dims<I> &d, I i, int64_t *in, int64_t *out)
{
    I a = 0, b = 0;
    for (int k = d.rank - 1; k > 0; k--) {
        I q = i / d.dims[k], at = i - q * d.dims[k];
        a += at * d.in[k];
        b += at * d.out[k];
        i = q;
    }
    *in = as_signed((I)(a + i * d.in[0]));
    *out = as_signed((I)(b + i * d.out[0]));
}

template <typename T, typename I> __global__ void k_move(const T *from, T *to, Dims<I> d, int64_t n)
{
    for (int64_t i = grid_begin(); i < n; i += grid_step()) {
        int64_t in, out;
        place<I>(d, (I)i, &in, &out);
        to[out] = from[in];
    }
}

/* The source is contiguous along `tall`, the target along `wide`. */
typedef struct Square {
    int64_t tall, wide, tall_out, wide_in;
    int64_t tiles_tall, tiles_wide;
} Square;

template <typename T, typename I>
__global__ void k_tile(const T *from, T *to, Dims<I> d, Square s, int64_t tiles)
{
    const int PITCH = TILE + (sizeof(T) < 4 ? 4 / (int)sizeof(T) : 1);
    MPRI_SHARED(T, square, TILE * PITCH);
    int lane = threadIdx.x % TILE, first = threadIdx.x / TILE;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        int64_t in, out, wide = tile % s.tiles_wide * TILE, rest = tile / s.tiles_wide;
        int64_t tall = rest % s.tiles_tall * TILE;
        place<I>(d, (I)(rest / s.tiles_tall), &in, &out);
        for (int r = first; r < TILE; r += TILE_ROWS)
            if (tall + lane < s.tall && wide + r < s.wide)
                square[r * PITCH + lane] = from[in + (wide + r) * s.wide_in + tall + lane];
        __syncthreads();
        for (int r = first; r < TILE; r += TILE_ROWS)
            if (wide + lane < s.wide && tall + r < s.tall)
                to[out + (tall + r) * s.tall_out + wide + lane] = square[lane * PITCH + r];
        __syncthreads();
    }
}

/* ---- host ---- */

static bool even_strides(const Move *m)
{
    for (int k = 0; k < m->rank - 1; k++)
        if ((m->in[k] | m->out[k]) & 1) return false;
    return true;
}

/* Elements of twice the size as long as everything allows. */
static void widen(Move *m)
{
    int last = m->rank - 1;
    while (m->size < 16 && m->in[last] == 1 && m->out[last] == 1 && m->dims[last] % 2 == 0 &&
           even_strides(m) &&
           (((uintptr_t)m->from | (uintptr_t)m->to) & (uintptr_t)(2 * m->size - 1)) == 0) {
        m->size *= 2;
        m->dims[last] /= 2;
        for (int k = 0; k < last; k++) m->in[k] /= 2, m->out[k] /= 2;
    }
}

static bool is_small(const Move *m, int64_t n)
{
    int64_t in = 0, out = 0;
    for (int k = 0; k < m->rank; k++) {
        in += (m->dims[k] - 1) * (m->in[k] < 0 ? -m->in[k] : m->in[k]);
        out += (m->dims[k] - 1) * (m->out[k] < 0 ? -m->out[k] : m->out[k]);
    }
    return n < INT32_MAX && in < INT32_MAX && out < INT32_MAX;
}

/* All dims but `left_out` and the last (with left_out >= 0), else all. */
template <typename I> static Dims<I> dims_of(const Move *m, int left_out)
{
    Dims<I> d = {};
    for (int k = 0; k < m->rank; k++) {
        if (left_out >= 0 && (k == left_out || k == m->rank - 1)) continue;
        d.dims[d.rank] = (I)m->dims[k];
        d.in[d.rank] = (I)m->in[k];
        d.out[d.rank++] = (I)m->out[k];
    }
    if (!d.rank) {
        d.rank = 1;
        d.dims[0] = 1;
    }
    return d;
}

/* The dim along which the source is contiguous when squares pay; else -1. */
static int tall_dim(const Move *m)
{
    int last = m->rank - 1;
    if (m->out[last] != 1 || m->in[last] == 1 || m->in[last] == 0 || m->dims[last] < 4) return -1;
    for (int k = 0; k < last; k++)
        if (m->in[k] == 1 && m->dims[k] >= 4) return k;
    return -1;
}

template <typename T, typename I> static void launch(const Move *m, int64_t n, void *queue)
{
    int tall = tall_dim(m), last = m->rank - 1;
    if constexpr (sizeof(T) <= 8) {
        if (tall >= 0) {
            Square s = {m->dims[tall], m->dims[last], m->out[tall], m->in[last], 0, 0};
            s.tiles_tall = (s.tall + TILE - 1) / TILE;
            s.tiles_wide = (s.wide + TILE - 1) / TILE;
            int64_t tiles = n / (s.tall * s.wide) * s.tiles_tall * s.tiles_wide;
            MPRI_LAUNCH((k_tile<T, I>), blocks_for(tiles, 1), TILE * TILE_ROWS, 0, queue,
                        (const T *)m->from, (T *)m->to, dims_of<I>(m, tall), s, tiles);
            return;
        }
    }
    MPRI_LAUNCH((k_move<T, I>), blocks_for(n, MOVE_THREADS), MOVE_THREADS, 0, queue,
                (const T *)m->from, (T *)m->to, dims_of<I>(m, -1), n);
}

template <typename T> static void run(const Move *m, int64_t n, void *queue)
{
    if (is_small(m, n)) launch<T, uint32_t>(m, n, queue);
    else launch<T, uint64_t>(m, n, queue);
}

void mpri_cuda_move(const Move *given, void *queue)
{
    Move m = *given;
    int64_t n = 1;
    if (m.rank == 0) {
        m.rank = 1;
        m.dims[0] = m.in[0] = m.out[0] = 1;
    }
    for (int k = 0; k < m.rank; k++) n *= m.dims[k];
    if (n == 0) return;
    if (m.rank == 1 && m.in[0] == 1 && m.out[0] == 1) {
        cudaMemcpyAsync(m.to, m.from, (size_t)n * (size_t)m.size, cudaMemcpyDeviceToDevice,
                        (cudaStream_t)queue);
        return;
    }
    int size = m.size;
    widen(&m);
    n /= m.size / size;
    if (m.size == 16) run<Pack<uint64_t, 2>>(&m, n, queue);
    else if (m.size == 8) run<uint64_t>(&m, n, queue);
    else if (m.size == 4) run<uint32_t>(&m, n, queue);
    else if (m.size == 2) run<uint16_t>(&m, n, queue);
    else run<uint8_t>(&m, n, queue);
}
