/* Merge sort. Blocks sort tiles of 1024 keys in shared memory (bitonic network, Batcher 1968), then
 * each pass merges pairs of runs: a thread per key finds by bisection how many keys of the partner
 * run stand before it, which is where it goes. Traffic: the keys twice per pass, log2(n / 1024)
 * passes, plus the bisections, which the cache answers. 512 threads a block for tiles, 256 for
 * passes. */
#include "kernels/cuda/sort.cuh"

enum { SORT_TILE = 1024, SORT_THREADS = SORT_TILE / 2, MERGE_THREADS = 256 };

static __device__ __forceinline__ bool before(uint64_t a, uint64_t b) { return a < b; }
static __device__ __forceinline__ bool before(WideKey a, WideKey b)
{
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}
static __device__ __forceinline__ void set_last(uint64_t *k) { *k = UINT64_MAX; }
static __device__ __forceinline__ void set_last(WideKey *k) { k->high = k->low = UINT64_MAX; }

/* Lists shorter than a tile are padded with keys that come last: to `size`, a power of two. */
template <typename K>
__global__ void k_sort_tiles(K *keys, int64_t n, int64_t tiles_per_line, int64_t tiles, int size)
{
    MPRI_SHARED(K, tile, SORT_TILE);
    for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
        int64_t first = t % tiles_per_line * SORT_TILE;
        K *from = keys + t / tiles_per_line * n + first;
        int here = n - first < size ? (int)(n - first) : size;
        for (int i = threadIdx.x; i < size; i += blockDim.x) {
            K k;
            set_last(&k);
            if (i < here) k = from[i];
            tile[i] = k;
        }
        __syncthreads();
        for (int run = 2; run <= size; run *= 2)
            for (int step = run / 2; step; step /= 2) {
                for (int p = threadIdx.x; p < size / 2; p += blockDim.x) {
                    int a = p / step * 2 * step + p % step, b = a + step;
                    K x = tile[a], y = tile[b];
                    if ((a & run) == 0 ? before(y, x) : before(x, y)) {
                        tile[a] = y;
                        tile[b] = x;
                    }
                }
                __syncthreads();
            }
        for (int i = threadIdx.x; i < here; i += blockDim.x) from[i] = tile[i];
        __syncthreads();
    }
}

template <typename K>
__global__ void k_merge(const K *from, K *to, int64_t n, int64_t total, int64_t run)
{
    for (int64_t i = grid_begin(); i < total; i += grid_step()) {
        int64_t line = i / n, at = i - line * n, mine = at / run;
        const K *keys = from + line * n;
        int64_t low = (mine ^ 1) * run, high = low + run, start = low;
        K key = keys[at];
        if (high > n) high = n;
        if (low > n) start = low = n;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (before(keys[middle], key)) low = middle + 1;
            else high = middle;
        }
        to[line * n + (mine & ~(int64_t)1) * run + (at - mine * run) + (low - start)] = key;
    }
}

template <typename K> static K *sort(K *keys, K *spare, int64_t n, int64_t lines, void *queue)
{
    if (n < 2 || !lines) return keys;
    int64_t tiles_per_line = (n + SORT_TILE - 1) / SORT_TILE, tiles = tiles_per_line * lines;
    int size = 2;
    while (size < n && size < SORT_TILE) size *= 2;
    int threads = size / 2 < 32 ? 32 : size / 2;
    MPRI_LAUNCH(k_sort_tiles<K>, blocks_for(tiles, 1), threads, 0, queue, keys, n, tiles_per_line,
                tiles, size);
    for (int64_t run = SORT_TILE; run < n; run *= 2) {
        MPRI_LAUNCH(k_merge<K>, blocks_for(n * lines, MERGE_THREADS), MERGE_THREADS, 0, queue, keys,
                    spare, n, n * lines, run);
        K *t = keys;
        keys = spare;
        spare = t;
    }
    return keys;
}

uint64_t *mpri_cuda_sort(uint64_t *keys, uint64_t *spare, int64_t n, int64_t lines, void *queue)
{
    return sort(keys, spare, n, lines, queue);
}

WideKey *mpri_cuda_sort_wide(WideKey *keys, WideKey *spare, int64_t n, int64_t lines, void *queue)
{
    return sort(keys, spare, n, lines, queue);
}
