/* CUDA's device language for a C++ compiler: the same .cu files run on the CPU, block after block, the
 * threads of a block as fibers. Tests only.
 *
 * Types are the toolkit's own (vector types, cuda_fp16.h, cuda_bf16.h). The runtime's functions are
 * declared by the toolkit and answered by runtime.cpp; shim.cpp holds fibers, barriers and checks.
 * What the shim is strict about: a barrier must be reached by all threads of the block at one place, a
 * warp function by all 32 lanes, shared memory is checked for range and races, device memory for range
 * by pages that nobody may touch. */
#ifndef MPR_TEST_CUDA_SHIM_H
#define MPR_TEST_CUDA_SHIM_H

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#undef __restrict__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

#define MPRI_CUDA_SHIM 1

/* Where the running thread is. */
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

namespace shim {

extern bool checking; /* shared memory is checked for races */
extern int current;   /* flat number of the running thread in its block */

void barrier(const char *file, int line);
int vote_block(const char *file, int line, int what, int predicate);
void sync_warp(const char *file, int line);
/* All lanes give 8 bytes and see those of all; good until the second next call. */
const uint64_t *exchange(const char *file, int line, unsigned mask, uint64_t mine);
[[noreturn]] void fault(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* One access of the running thread to an element of shared memory. */
struct Access {
    int writer, reader;
    unsigned write_epoch, read_epoch;       /* of the block, + 1; 0: never */
    unsigned write_warp_epoch, read_warp_epoch;
    bool many_readers, other_warp;          /* more than `reader` since then */
};
void note_access(Access *a, bool write, const char *name, size_t index);
void *dynamic_shared(size_t *bytes);
Access *dynamic_access(size_t index);
/* Static shared memory starts as garbage in every block. */
unsigned long block_number(void);

void enqueue(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
             std::function<void()> body);

template <typename... P, typename... A>
std::function<void()> bind(void (*kernel)(P...), A... a)
{
    static_assert((sizeof(P) + ... + 0) <= 4096, "a kernel takes at most 4 KiB of parameters");
    std::tuple<P...> t(static_cast<P>(a)...);
    return [kernel, t] { std::apply(kernel, t); };
}

/* An element of shared memory: reading and writing are told to the checks. */
template <typename T> struct SharedRef {
    T *p;
    Access *a;
    const char *name;
    size_t index;
    operator T() const
    {
        if (checking) note_access(a, false, name, index);
        return *p;
    }
    T operator=(T v) const
    {
        if (checking) note_access(a, true, name, index);
        return *p = v;
    }
    T operator=(const SharedRef &o) const { return *this = (T)o; }
    T operator+=(T v) const { return *this = (T)((T)*this + v); }
    T operator*=(T v) const { return *this = (T)((T)*this * v); }
};

/* What a pointer to shared memory is. */
template <typename T> struct SharedPtr {
    T *p;
    Access *a;
    size_t n; /* elements from p on */
    const char *name;
    SharedRef<T> operator[](size_t i) const
    {
        if (i >= n)
            fault("shared memory '%s': element %zu of %zu", name, i, n);
        return SharedRef<T>{p + i, a + i, name, i};
    }
    SharedRef<T> operator*() const { return (*this)[0]; }
    SharedPtr operator+(size_t k) const
    {
        if (k > n) fault("shared memory '%s': pointer to element %zu of %zu", name, k, n);
        return SharedPtr{p + k, a + k, n - k, name};
    }
};

template <typename T, size_t N> struct SharedArray {
    T data[N];
    Access access[N];
    unsigned long block;
    const char *name;
    /* Once per block: nothing of the block before is there. */
    SharedPtr<T> open(const char *its_name)
    {
        name = its_name;
        if (block != block_number()) {
            block = block_number();
            memset((void *)data, 0xA5, sizeof data);
            memset((void *)access, 0, sizeof access);
        }
        return SharedPtr<T>{data, access, N, name};
    }
};

template <typename T> SharedPtr<T> open_dynamic(const char *name)
{
    size_t bytes;
    void *p = dynamic_shared(&bytes);
    return SharedPtr<T>{(T *)p, dynamic_access(0), bytes / sizeof(T), name};
}

} /* namespace shim */

template <typename T> using SharedPtr = shim::SharedPtr<T>;
#define MPRI_SHARED(T, name, n)                     \
    static shim::SharedArray<T, (n)> name##_memory; \
    SharedPtr<T> name = name##_memory.open(#name)
#define MPRI_SHARED_DYNAMIC(T, name) SharedPtr<T> name = shim::open_dynamic<T>(#name)

#define MPRI_LAUNCH(kernel, grid, block, shared, stream, ...)                              \
    shim::enqueue(#kernel, dim3(grid), dim3(block), (shared), (cudaStream_t)(stream),      \
                  shim::bind((kernel), __VA_ARGS__))

/* ---- barriers and warps ---- */
#define __syncthreads() shim::barrier(__FILE__, __LINE__)
#define __syncthreads_or(p) shim::vote_block(__FILE__, __LINE__, 0, (p))
#define __syncthreads_and(p) shim::vote_block(__FILE__, __LINE__, 1, (p))
#define __syncthreads_count(p) shim::vote_block(__FILE__, __LINE__, 2, (p))
#define __syncwarp(...) shim::sync_warp(__FILE__, __LINE__)
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)

namespace shim {
template <typename T> uint64_t pack(T v)
{
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return bits;
}
template <typename T> T unpack(uint64_t bits)
{
    T v;
    memcpy((void *)&v, &bits, sizeof v);
    return v;
}
inline int lane() { return current & 31; }

/* mma.sync.m16n8k16 with float sums: d = a b + d of a warp (mma.cpp). */
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bool bfloat,
                  const char *file = __builtin_FILE(), int line = __builtin_LINE());
/* ldmatrix.x4: `at` is where row lane % 8 of matrix lane / 8 lies, an element of 16 bytes. */
template <typename T>
void ldmatrix_x4(uint32_t (&r)[4], SharedPtr<T> tile, int at, bool transposed,
                 const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    static_assert(sizeof(T) == 16, "a row of a matrix is 16 bytes");
    const uint64_t *all = exchange(file, line, 0xffffffffu, (uint64_t)at);
    int group = lane() / 4, in_group = lane() % 4;
    for (int m = 0; m < 4; m++) {
        uint16_t pair[2], row[8];
        for (int i = 0; i < 2; i++) {
            T v = tile[all[m * 8 + (transposed ? in_group * 2 + i : group)]];
            memcpy(row, &v, sizeof row);
            pair[i] = row[transposed ? group : in_group * 2 + i];
        }
        r[m] = pair[0] | (uint32_t)pair[1] << 16;
    }
}
template <typename T>
T shuffle(const char *file, int line, unsigned mask, T v, int from, int width)
{
    const uint64_t *all = exchange(file, line, mask, pack(v));
    int base = lane() & ~(width - 1);
    return unpack<T>(all[from >= base && from < base + width ? from : lane()]);
}
} /* namespace shim */

#define SHIM_SHUFFLE(mask, v, from, width) \
    shim::shuffle(__builtin_FILE(), __builtin_LINE(), (mask), (v), (from), (width))
template <typename T> T __shfl_sync(unsigned mask, T v, int from, int width = 32)
{
    return SHIM_SHUFFLE(mask, v, (shim::lane() & ~(width - 1)) + (from & (width - 1)), width);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    return SHIM_SHUFFLE(mask, v, shim::lane() ^ bits, width);
}
template <typename T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    return SHIM_SHUFFLE(mask, v, shim::lane() + (int)by, width);
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32)
{
    return SHIM_SHUFFLE(mask, v, shim::lane() - (int)by, width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    const uint64_t *all = shim::exchange(__FILE__, __LINE__, mask, predicate != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (unsigned)all[i] << i;
    return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

/* ---- atomics: one thread runs at a time ---- */
template <typename T> T atomicAdd(T *p, T v) { T old = *p; *p = old + v; return old; }
template <typename T> T atomicSub(T *p, T v) { T old = *p; *p = old - v; return old; }
template <typename T> T atomicMax(T *p, T v) { T old = *p; if (v > old) *p = v; return old; }
template <typename T> T atomicMin(T *p, T v) { T old = *p; if (v < old) *p = v; return old; }
template <typename T> T atomicOr(T *p, T v) { T old = *p; *p = old | v; return old; }
template <typename T> T atomicAnd(T *p, T v) { T old = *p; *p = old & v; return old; }
template <typename T> T atomicExch(T *p, T v) { T old = *p; *p = v; return old; }
template <typename T> T atomicCAS(T *p, T seen, T v) { T old = *p; if (old == seen) *p = v; return old; }
template <typename T> T atomicAdd(const shim::SharedRef<T> *, T) = delete;

/* ---- arithmetic ---- */
template <typename T> T __ldg(const T *p) { return *p; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float rsqrtf(float a) { return 1.0f / sqrtf(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
inline long long __double_as_longlong(double v) { return shim::unpack<long long>(shim::pack(v)); }
inline int __float_as_int(float v) { return shim::unpack<int>(shim::pack(v)); }
inline unsigned __float_as_uint(float v) { return shim::unpack<unsigned>(shim::pack(v)); }
inline float __int_as_float(int v) { return shim::unpack<float>(shim::pack(v)); }
inline float __uint_as_float(unsigned v) { return shim::unpack<float>(shim::pack(v)); }
template <typename A, typename B> std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <typename A, typename B> std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
using std::isfinite;
using std::isinf;
using std::isnan;

#endif
