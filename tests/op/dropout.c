/* What Dropout draws; its closed forms are in cases/dropout.txt. */
#include "tests/support/kernels.h"

/* The share of dropped elements, and a mask that is a function of seed, step and stream alone. */
static void dropout_draw(void **state)
{
    (void)state;
    Arena a;
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    enum { N = 40000 };
    Tensor in[3] = {test_tensor_new(&a, MPR_FLOAT32, 1, (int64_t[]){N}),
        test_tensor(&a, "f32[]=0.25"),
                    test_tensor(&a, "bool[]=1")};
    for (int i = 0; i < N; i++) ((float *)in[0].data)[i] = 3;
    const KernelRow *rows[16];
    int count = test_kernel_rows(OP_Dropout, rows, 16);
    Tensor first[2] = {{0}};
    for (int r = count - 1; r >= 0; r--) {
        Tensor out[2] = {test_tensor_new(&a, MPR_FLOAT32, 1, (int64_t[]){N}),
            test_tensor_new(&a, MPR_BOOL, 1, (int64_t[]){N})};
        assert_int_equal(test_kernel_run(&a, rows[r], &(DropoutParams){0, 5}, 3, in, 2, out, NULL,
            NULL), MPR_OK);
        int kept = 0;
        for (int i = 0; i < N; i++) {
            bool keep = ((uint8_t *)out[1].data)[i];
            kept += keep;
            assert_true(((float *)out[0].data)[i] == (keep ? 4.0f : 0.0f));
        }
        assert_in_range(kept, N * 74 / 100, N * 76 / 100);
        if (first[1].data) assert_memory_equal(first[1].data, out[1].data, N);
        first[1] = out[1];
    }
    mpri_arena_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(dropout_draw)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
