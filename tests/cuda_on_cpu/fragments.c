/* The tensor cores of the CUDA that runs on the CPU: fragments lie where the CuTe library's tables say, tiles come to
 * the right places, a wrong layout is found; and a device says which it has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "runtime/base/dtype.h"
#include "runtime/exec/device.h"
#include "tests/cuda_on_cpu/control.h"
#include "tests/support/support.h"

void fragments_launch(int kind, int bfloat, const void *a, const void *b, float *d);

enum { MOST = 64 * 64 };
typedef struct Matrices {
    int m, n, k;
    double a[MOST], b[MOST]; /* a [m x k] and b [k x n], row-major */
    float d[MOST];           /* what the kernel made, as it lies there */
} Matrices;

/* Small whole numbers, no two rows or columns alike: products are exact in every order. */
static void fill(Matrices *x, int m, int n, int k)
{
    x->m = m, x->n = n, x->k = k;
    for (int i = 0; i < m * k; i++) x->a[i] = (i * 7 + i / k * 5 + i % k * i % 11) % 17 - 8;
    for (int i = 0; i < k * n; i++) x->b[i] = (i * 5 + i / n * 3 + i % n * i % 13) % 19 - 9;
}

/* columns_a, columns_b: column-major to the kernel; b_turned: b's columns as rows. */
static void run(Matrices *x, int kind, bool bfloat, bool columns_a, bool b_turned)
{
    DType t = bfloat ? MPR_BFLOAT16 : MPR_FLOAT16;
    static uint16_t a[MOST], b[MOST];
    void *at[3];
    size_t bytes[3] = {sizeof a, sizeof b, sizeof x->d};
    const void *from[3] = {a, b, x->d};
    for (int r = 0; r < x->m; r++)
        for (int c = 0; c < x->k; c++) mpri_store_f64(t, a, columns_a ? c * x->m + r : r * x->k + c, x->a[r * x->k + c]);
    for (int r = 0; r < x->k; r++)
        for (int c = 0; c < x->n; c++)
            mpri_store_f64(t, b, b_turned ? c * x->k + r : r * x->n + c, x->b[r * x->n + c]);
    memset(x->d, 0, sizeof x->d);
    shim_revive();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cudaMalloc(&at[i], bytes[i]), cudaSuccess);
        assert_int_equal(cudaMemcpyAsync(at[i], from[i], bytes[i], cudaMemcpyHostToDevice, NULL), cudaSuccess);
    }
    fragments_launch(kind, bfloat, at[0], at[1], at[2]);
    assert_int_equal(cudaMemcpyAsync(x->d, at[2], sizeof x->d, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 3; i++) assert_int_equal(cudaFree(at[i]), cudaSuccess);
}

static int wrong_elements(const Matrices *x, bool columns_d)
{
    int wrong = 0;
    for (int r = 0; r < x->m; r++)
        for (int c = 0; c < x->n; c++) {
            double sum = 0;
            for (int k = 0; k < x->k; k++) sum += x->a[r * x->k + k] * x->b[k * x->n + c];
            wrong += (double)x->d[columns_d ? c * x->m + r : r * x->n + c] != sum;
        }
    return wrong;
}

static Matrices x;

static void product(void **state)
{
    (void)state;
    for (int bfloat = 0; bfloat < 2; bfloat++) {
        fill(&x, 16, 8, 16);
        run(&x, 0, bfloat, true, false); /* b [8 x 16] column-major is b [16 x 8] row-major */
        assert_int_equal(wrong_elements(&x, true), 0);
    }
}
static void wrong_layout(void **state)
{
    (void)state;
    fill(&x, 16, 8, 16);
    run(&x, 1, false, true, false);
    assert_true(wrong_elements(&x, true) > 100);
}
static void tiles(void **state)
{
    (void)state;
    for (int bfloat = 0; bfloat < 2; bfloat++) {
        fill(&x, 16, 16, 64);
        run(&x, 2, bfloat, false, true);
        assert_int_equal(wrong_elements(&x, false), 0);
    }
}
static void tiles_of_columns(void **state)
{
    (void)state;
    for (int bfloat = 0; bfloat < 2; bfloat++) {
        fill(&x, 16, 64, 64);
        run(&x, 3, bfloat, false, false);
        assert_int_equal(wrong_elements(&x, false), 0);
    }
}

/* The device's capability comes to the rows. */
static void device_of(void **state)
{
    static const int capability[] = {75, 90};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Device *d;
        Err err = {0};
        shim_capability(capability[i]);
        assert_int_equal(mpri_device_cuda(mpri_alloc_default(), 0, 1, &d, &err), MPR_OK);
        assert_int_equal(d->capability, capability[i]);
        mpri_device_destroy(d);
    }
    shim_capability(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product),
        cmocka_unit_test(wrong_layout),
        cmocka_unit_test(tiles),
        cmocka_unit_test(tiles_of_columns),
        cmocka_unit_test(device_of),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
