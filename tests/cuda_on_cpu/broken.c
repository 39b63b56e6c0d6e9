/* The checks of the CUDA that runs on the CPU: each wrong kernel of broken.cu is found, by name, and the
 * right one passes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_on_cpu/control.h"
#include "tests/support/support.h"

void broken_launch(int kind, const float *x, float *y, int n);

enum { COUNT = 62 };

static cudaError_t run(int kind)
{
    float *x = NULL, *y = NULL, host[COUNT + 2];
    shim_revive();
    shim_clear_report();
    shim_quiet(true);
    for (int i = 0; i < COUNT + 2; i++) host[i] = (float)i;
    assert_int_equal(cudaMalloc((void **)&x, sizeof host), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&y, sizeof host), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    broken_launch(kind, x, y, COUNT + 2);
    cudaError_t e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    if (kind == 0) {
        assert_int_equal(cudaMemcpyAsync(host, y, sizeof host, cudaMemcpyDeviceToHost, NULL), cudaSuccess);
        for (int i = 0; i < COUNT + 2; i++) assert_true(host[i] == (float)((i + 1) % (COUNT + 2)));
    }
    shim_revive();
    assert_int_equal(cudaFree(x), cudaSuccess);
    assert_int_equal(cudaFree(y), cudaSuccess);
    return e;
}

static void found(int kind, cudaError_t error, const char *words)
{
    cudaError_t e = run(kind);
    if (e != error || !strstr(shim_report(), words))
        fail_msg("kernel %d: error %d, report '%s', expected '%s'", kind, (int)e, shim_report(), words);
}

static void right_kernel(void **state)
{
    (void)state;
    assert_int_equal(run(0), cudaSuccess);
    assert_string_equal(shim_report(), "");
}
static void missing_barrier(void **state)
{
    (void)state;
    found(1, cudaErrorLaunchFailure, "race on shared memory 'part'");
}
static void races(void **state)
{
    (void)state;
    found(2, cudaErrorLaunchFailure, "race on shared memory 'part'");
    found(3, cudaErrorLaunchFailure, "race on shared memory 'part'");
}
static void out_of_range(void **state)
{
    (void)state;
    found(4, cudaErrorLaunchFailure, "element 64 of 64");
    found(5, cudaErrorIllegalAddress, "of a block of 256 bytes");
    found(6, cudaErrorIllegalAddress, "of a block of 256 bytes");
}
static void divergence(void **state)
{
    (void)state;
    found(7, cudaErrorLaunchFailure, "others have ended");
    found(8, cudaErrorLaunchFailure, "divergence");
    found(9, cudaErrorLaunchFailure, "divergence");
}
static void too_many_threads(void **state)
{
    (void)state;
    assert_int_equal(run(10), cudaErrorInvalidConfiguration);
}

/* What ends the program is looked at from another one. */
static void ends(void (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        body();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}
/* A block of 250 bytes ends six bytes before the closed page. */
static void write_just_past(void)
{
    float *y;
    if (cudaMalloc((void **)&y, 4 * COUNT + 2) != cudaSuccess) _exit(4);
    broken_launch(11, NULL, y, COUNT + 1);
    (void)cudaDeviceSynchronize();
}
static void touch_from_host(void)
{
    volatile float *y;
    if (cudaMalloc((void **)&y, 256) != cudaSuccess) _exit(4);
    y[0] = 1;
}
static void beside_and_by_the_host(void **state)
{
    (void)state;
    ends(write_just_past);
    ends(touch_from_host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_kernel),     cmocka_unit_test(missing_barrier),
        cmocka_unit_test(races),            cmocka_unit_test(out_of_range),
        cmocka_unit_test(divergence),       cmocka_unit_test(too_many_threads),
        cmocka_unit_test(beside_and_by_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
