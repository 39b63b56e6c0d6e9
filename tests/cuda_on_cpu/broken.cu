/* Kernels that are wrong on purpose, and one that is right. */
#include "kernels/cuda/kernel.cuh"

enum { THREADS = 64 };

/* Each thread reads what its neighbour wrote; kind 1 forgets the barrier. */
__global__ void k_neighbour(const float *x, float *y, int kind)
{
    MPRI_SHARED(float, part, THREADS);
    part[threadIdx.x] = x[threadIdx.x];
    if (kind != 1) __syncthreads();
    y[threadIdx.x] = part[(threadIdx.x + 1) % THREADS];
}

/* Two threads write one element. */
__global__ void k_race(float *y)
{
    MPRI_SHARED(float, part, THREADS);
    part[threadIdx.x / 2] = (float)threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = part[threadIdx.x / 2];
}

/* Reads race too: a later write meets an earlier read. */
__global__ void k_late_write(float *y)
{
    MPRI_SHARED(float, part, THREADS);
    part[threadIdx.x] = 1;
    __syncthreads();
    y[threadIdx.x] = part[(threadIdx.x + 33) % THREADS];
    part[threadIdx.x] = 2;
}

__global__ void k_past_shared(float *y)
{
    MPRI_SHARED(float, part, THREADS);
    part[threadIdx.x + 1] = 1;
    y[threadIdx.x] = 0;
}

__global__ void k_past_end(const float *x, float *y, int n, int read)
{
    int i = (int)threadIdx.x;
    if (read) y[0] = x[n + 4 + i];
    else y[n + 4 + i] = 1;
}

/* Just behind the end, before the closed page. */
__global__ void k_just_past(float *y, int n) { y[n] = 1; }

__global__ void k_half_barrier(float *y)
{
    if (threadIdx.x < 32) __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void k_two_barriers(float *y)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = 1;
}

__global__ void k_half_warp(float *y)
{
    float v = 0;
    if (threadIdx.x % 32 < 16) v = __shfl_xor_sync(FULL_MASK, 1.0f, 1);
    y[threadIdx.x] = v;
}

__global__ void k_host_pointer(const float *host, float *y) { y[0] = host[0]; }

extern "C" void broken_launch(int kind, const float *x, float *y, int n)
{
    switch (kind) {
    case 0:
    case 1: MPRI_LAUNCH(k_neighbour, 1, THREADS, 0, 0, x, y, kind); break;
    case 2: MPRI_LAUNCH(k_race, 1, THREADS, 0, 0, y); break;
    case 3: MPRI_LAUNCH(k_late_write, 1, THREADS, 0, 0, y); break;
    case 4: MPRI_LAUNCH(k_past_shared, 1, THREADS, 0, 0, y); break;
    case 5:
    case 6: MPRI_LAUNCH(k_past_end, 1, THREADS, 0, 0, x, y, n, kind == 6); break;
    case 7: MPRI_LAUNCH(k_half_barrier, 1, THREADS, 0, 0, y); break;
    case 8: MPRI_LAUNCH(k_two_barriers, 1, THREADS, 0, 0, y); break;
    case 9: MPRI_LAUNCH(k_half_warp, 1, THREADS, 0, 0, y); break;
    case 10: MPRI_LAUNCH(k_neighbour, 1, 2048, 0, 0, x, y, 0); break;
    case 11: MPRI_LAUNCH(k_just_past, 1, 1, 0, 0, y, n); break;
    }
}
