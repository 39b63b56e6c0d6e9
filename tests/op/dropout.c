/* Matrix products, convolution, reductions, softmax, normalisation, losses, dropout: closed forms.
 */
#include "tests/support/kernels.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define INTS(...) {sizeof((const int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__}}

static void products(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        {.op = OP_MatMul, .in = {"f32[2,3]=1 2 3 4 5 6", "f32[3,2]=1 0 0 1 1 1"},
         .out = {"f32[2,2]=4 5 10 11"}},
        {.op = OP_MatMul, .in = {"f32[3]=1 2 3", "f32[3]=4 5 6"}, .out = {"f32[]=32"}},
        {.op = OP_MatMul, .in = {"f32[2]=1 2", "f32[2,2]=1 2 3 4"}, .out = {"f32[2]=7 10"}},
        {.op = OP_MatMul, .in = {"f32[2,2]=1 2 3 4", "f32[2]=1 2"}, .out = {"f32[2]=5 11"}},
        {.op = OP_MatMul, .in = {"i32[2,1,2]=1 2 3 4", "i32[1,2,1]=5 6"},
         .out = {"i32[2,1,1]=17 39"}},
        {.op = OP_MatMul, .in = {"f64[2,0]=", "f64[0,1]="}, .out = {"f64[2,1]=0 0"}},
        {.op = OP_MatMul, .in = {"f16[1,2]=255 255", "f16[2,1]=256 256"}, .out = {"f16[1,1]=inf"}},
        {.op = OP_Gemm, .params = &(GemmParams){.alpha = 2, .beta = 0.5f, .trans_a = 1,
         .trans_b = 1},
         .in = {"f32[2,1]=1 2", "f32[2,2]=1 0 0 1", "f32[2]=10 20"}, .out = {"f32[1,2]=7 14"}},
        {.op = OP_Gemm, .params = &(GemmParams){.alpha = 1, .beta = 1},
         .in = {"i32[2,1]=1 2", "i32[1,2]=3 4", "i32[2,1]=10 20"}, .out = {"i32[2,2]=13 14 26 28"}},
        {.op = OP_Gemm, .params = &(GemmParams){.alpha = 1, .beta = 1},
         .in = {"f32[1,1]=1", "f32[1,2]=3 4", "f32[]=1"}, .out = {"f32[1,2]=4 5"}},
        {.op = OP_Linear, .params = &(LinearParams){1},
         .in = {"f16[1,2,2]=1 2 3 4", "f16[1,2]=1 1", "f32[1]=0.5"}, .out = {"f16[1,2,1]=3.5 7.5"}},
        {.op = OP_Linear, .params = &(LinearParams){0}, .in = {"f32[2]=1 2", "f32[2,2]=1 2 3 4"},
         .out = {"f32[2]=7 10"}},
        {.op = OP_FusedMatMul, .params = &(FusedMatMulParams){.alpha = 2, .trans_b = 1,
         .activation = "relu"},
         .in = {"f32[2,2]=1 2 -3 4", "f32[1,2]=1 1", "f32[1]=-3"},
             .out = {"f32[2,1]=3 0", "f32[2,1]=3 -1"}},
        /* 2049 rounds to 2048 before the activation */
        {.op = OP_FusedMatMul, .params = &(FusedMatMulParams){.alpha = 1, .activation = "relu"},
         .in = {"f16[1,2]=2048 1", "f16[2,1]=1 1"}, .out = {"f16[1,1]=2048", "f16[1,1]=2048"}},
        {.op = OP_FusedMatMul, .params = &(FusedMatMulParams){.alpha = 1, .trans_a = 1,
         .activation = ""},
         .in = {"f32[1,2,1]=1 2", "f32[2,2,1]=1 2 3 4"}, .out = {"f32[2,1,1]=5 11"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void convolutions(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        {.op = OP_Conv, .params = &(ConvParams){.group = 1},
         .in = {"f32[1,1,4]=1 2 3 4", "f32[1,1,2]=1 10", "f32[1]=100"},
         .out = {"f32[1,1,3]=121 132 143"}},
        {.op = OP_Conv, .params = &(ConvParams){.group = 2, .strides = INTS(2), .pads = INTS(1, 1)},
         .in = {"f32[1,2,3]=1 2 3 4 5 6", "f32[2,1,3]=1 1 1 1 0 0"}, .out = {"f32[1,2,2]=3 5 0 5"}},
        {.op = OP_Conv, .params = &(ConvParams){.group = 1, .dilations = INTS(2, 1)},
         .in = {"f32[1,1,3,2]=1 2 3 4 5 6", "f32[1,1,2,1]=1 1"}, .out = {"f32[1,1,1,2]=6 8"}},
        {.op = OP_Conv, .params = &(ConvParams){.group = 1, .auto_pad = "SAME_UPPER"},
         .in = {"f32[1,1,3]=1 2 3", "f32[1,1,2]=1 1"}, .out = {"f32[1,1,3]=3 5 3"}},
        {.op = OP_Conv, .params = &(ConvParams){.group = 1, .auto_pad = "SAME_LOWER"},
         .in = {"f32[1,1,3]=1 2 3", "f32[1,1,2]=1 1"}, .out = {"f32[1,1,3]=1 3 5"}},
        {.op = OP_ConvGradInput, .params = &(ConvParams){.group = 1, .dims = INTS(1, 1, 4)},
         .in = {"f32[1,1,3]=1 2 3", "f32[1,1,2]=1 10"}, .out = {"f32[1,1,4]=1 12 23 30"}},
        {.op = OP_ConvGradInput,
         .params = &(ConvParams){.group = 2, .strides = INTS(2), .pads = INTS(1, 1),
             .dims = INTS(1, 2, 3)},
         .in = {"f32[1,2,2]=1 2 3 4", "f32[2,1,3]=1 1 1 1 0 0"}, .out = {"f32[1,2,3]=1 3 2 0 4 0"}},
        {.op = OP_ConvGradWeight, .params = &(ConvParams){.group = 1, .dims = INTS(1, 1, 2)},
         .in = {"f32[1,1,3]=1 1 2", "f32[1,1,4]=1 2 3 4"}, .out = {"f32[1,1,2]=9 13"}},
        {.op = OP_ConvGradWeight,
         .params = &(ConvParams){.group = 2, .strides = INTS(2), .pads = INTS(1, 1),
             .dims = INTS(2, 1, 3)},
         .in = {"f32[1,2,2]=1 2 3 4", "f32[1,2,3]=1 2 3 4 5 6"},
             .out = {"f32[2,1,3]=4 7 2 20 36 15"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void reductions(void **state)
{
    (void)state;
    const ReduceParams keep = {.keepdims = 1}, drop = {0}, noop = {.noop_with_empty_axes = 1};
    const KernelCase cases[] = {
        {.op = OP_ReduceSum, .params = &keep, .in = {"f32[2,3]=1 2 3 4 5 6", "i64[1]=-1"},
         .out = {"f32[2,1]=6 15"}},
        {.op = OP_ReduceSum, .params = &drop, .in = {"f32[2,2,2]=1 2 3 4 5 6 7 8", "i64[2]=0 2"},
         .out = {"f32[2]=14 22"}},
        {.op = OP_ReduceSum, .params = &drop, .in = {"i64[3]=1 2 3"}, .out = {"i64[]=6"}},
        {.op = OP_ReduceSum, .params = &noop, .in = {"f32[3]=1 2 3", "i64[0]="},
         .out = {"f32[3]=1 2 3"}},
        {.op = OP_ReduceSum, .params = &drop, .in = {"f32[2,0]=", "i64[1]=1"},
         .out = {"f32[2]=0 0"}},
        {.op = OP_ReduceSum, .params = &drop, .in = {"f32[]=4"}, .out = {"f32[]=4"}},
        {.op = OP_ReduceMean, .params = &drop, .in = {"f16[2,2]=1 2 3 5", "i64[1]=0"},
         .out = {"f16[2]=2 3.5"}},
        {.op = OP_ReduceMean, .params = &drop, .in = {"f32[0]="}, .out = {"f32[]=nan"}},
        {.op = OP_ReduceMean, .params = &drop, .in = {"i32[2]=-3 -4"}, .out = {"i32[]=-3"}},
        {.op = OP_ReduceProd, .params = &drop, .in = {"f32[2,2]=1 2 3 4", "i64[1]=1"},
         .out = {"f32[2]=2 12"}},
        {.op = OP_ReduceMax, .params = &drop, .in = {"f32[3]=1 nan 3"}, .out = {"f32[]=nan"}},
        {.op = OP_ReduceMax, .params = &drop, .in = {"f32[0]="}, .out = {"f32[]=-inf"}},
        {.op = OP_ReduceMax, .params = &drop, .in = {"i8[0]="}, .out = {"i8[]=-128"}},
        {.op = OP_ReduceMin, .params = &drop, .in = {"bool[2]=1 0"}, .out = {"bool[]=0"}},
        {.op = OP_ReduceMin, .params = &drop, .in = {"u64[2]=18446744073709551615 3"},
         .out = {"u64[]=3"}},
        {.op = OP_SumTo, .params = &(SumToParams){.dims = INTS(3)}, .in = {"f32[2,3]=1 2 3 4 5 6"},
         .out = {"f32[3]=5 7 9"}},
        {.op = OP_SumTo, .params = &(SumToParams){.dims = INTS(2, 1)},
         .in = {"f16[2,3]=1 2 3 4 5 6"}, .out = {"f32[2,1]=6 15"}},
        {.op = OP_SumTo, .params = &(SumToParams){.dims = INTS(1, 2, 1)},
         .in = {"f32[2,2,2]=1 2 3 4 5 6 7 8"},
         .out = {"f32[1,2,1]=14 22"}},
        {.op = OP_SumTo, .params = &(SumToParams){.dims = {0, NULL}}, .in = {"f32[2,2]=1 2 3 4"},
         .out = {"f32[]=10"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void softmaxes(void **state)
{
    (void)state;
    const SoftmaxParams last = {.axis = -1}, first = {.axis = 0};
    const KernelCase cases[] = {
        {.op = OP_Softmax, .params = &last, .in = {"f32[2,2]=0 0 -inf 1"},
         .out = {"f32[2,2]=0.5 0.5 0 1"}},
        {.op = OP_Softmax, .params = &last, .in = {"f32[1,3]=-inf -inf -inf"},
         .out = {"f32[1,3]=0 0 0"}},
        {.op = OP_Softmax, .params = &last, .in = {"f16[1,2]=60000 60000"},
         .out = {"f16[1,2]=0.5 0.5"}},
        {.op = OP_Softmax, .params = &last, .in = {"f32[1,2]=nan 1"}, .out = {"f32[1,2]=nan nan"}},
        {.op = OP_Softmax, .params = &first, .in = {"f32[2,2]=0 5 0 5"},
         .out = {"f32[2,2]=0.5 0.5 0.5 0.5"}},
        {.op = OP_Softmax, .params = &last, .in = {"f32[0,2]="}, .out = {"f32[0,2]="}},
        {.op = OP_LogSoftmax, .params = &last, .in = {"f64[1,2]=0 0"},
         .out = {"f64[1,2]=-0.69314718055994531 -0.69314718055994531"}, .tolerance = 1e-15},
        {.op = OP_LogSoftmax, .params = &last, .in = {"f32[1,2]=1000 0"},
         .out = {"f32[1,2]=0 -1000"}},
        {.op = OP_SoftmaxGrad, .params = &last, .in = {"f32[2,2]=1 0 1 2", "f32[2,2]=0.5 0.5 0 0"},
         .out = {"f32[2,2]=0.25 -0.25 0 0"}},
        {.op = OP_LogSoftmaxGrad, .params = &last,
         .in = {"f64[1,2]=1 0", "f64[1,2]=-0.69314718055994531 -0.69314718055994531"},
         .out = {"f64[1,2]=0.5 -0.5"}, .tolerance = 1e-15},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void norms(void **state)
{
    (void)state;
    const LayerNormParams exact = {.axis = -1}, tiny = {.axis = 1, .epsilon = 1e-12f};
    const KernelCase cases[] = {
        {.op = OP_LayerNormalization, .params = &exact,
         .in = {"f32[2,2]=1 3 10 14", "f32[2]=1 2", "f32[2]=0 5"},
         .out = {"f32[2,2]=-1 7 -1 7", "f32[2,1]=2 12", "f32[2,1]=1 0.5"}},
        {.op = OP_LayerNormalization, .params = &exact, .in = {"f16[1,2]=1 3", "f32[2]=1 1"},
         .out = {"f16[1,2]=-1 1"}},
        /* zero row: zeros, the f32 epsilon keeps it finite */
        {.op = OP_LayerNormalization, .params = &tiny, .in = {"f16[1,2]=0 0", "f32[2]=1 1"},
         .out = {"f16[1,2]=0 0", NULL, "f32[1,1]=1e6"}, .tolerance = 1e-6},
        {.op = OP_LayerNormalization, .params = &exact, .in = {"f32[0,2]=", "f32[2]=1 1"},
         .out = {"f32[0,2]="}},
        {.op = OP_LayerNormGrad, .params = &exact,
         .in = {"f32[2,2]=1 0 1 2", "f32[2,2]=1 3 10 14", "f32[2]=1 1", "f32[2,1]=2 12",
             "f32[2,1]=1 0.5"},
         .out = {"f32[2,2]=0 0 0 0", "f32[2]=-2 2", "f32[2]=2 2"}},
        {.op = OP_LayerNormGrad, .params = &exact,
         .in = {"f64[1,4]=1 0 0 0", "f64[1,4]=-1 1 -1 1", "f64[4]=2 2 2 2", "f64[1,1]=0",
             "f64[1,1]=1"},
         .out = {"f64[1,4]=1 0 -1 0", "f64[4]=-1 0 0 0", "f64[4]=1 0 0 0"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void losses(void **state)
{
    (void)state;
    const CrossEntropyParams mean = {.axis = -1, .ignore_index = -100, .reduction = "mean"};
    const CrossEntropyParams none = {.axis = 1, .ignore_index = 0, .reduction = "none"};
    const CrossEntropyParams strict = {.axis = 1, .ignore_index = MPRI_NO_IGNORE,
        .reduction = "sum"};
    const CrossEntropyParams smooth = {.axis = 1, .ignore_index = MPRI_NO_IGNORE,
        .label_smoothing = 0.5f,
                                       .reduction = "mean"};
#define LN2 "0.69314718055994531"
    const KernelCase cases[] = {
        {.op = OP_CrossEntropy, .params = &mean, .in = {"f32[3,2]=0 0 0 0 9 9", "i64[3]=0 1 -100"},
         .out = {"f32[]=" LN2, "f32[3]=" LN2 " " LN2 " 9.6931471805599453", "f32[]=2"},
             .tolerance = 1e-7},
        {.op = OP_CrossEntropy, .params = &mean, .in = {"f32[1,2]=0 0", "i32[1]=-100"},
         .out = {"f32[]=nan", NULL, "f32[]=0"}},
        {.op = OP_CrossEntropy, .params = &none, .in = {"f32[1,2,2]=0 0 0 0", "i32[1,2]=0 1"},
         .out = {"f32[1,2]=0 " LN2},
         .tolerance = 1e-7},
        {.op = OP_CrossEntropy, .params = &strict, .in = {"f16[1,2]=-inf 0", "i32[1]=1"},
         .out = {"f32[]=0"}},
        {.op = OP_CrossEntropy, .params = &strict, .in = {"f32[1,2]=0 0", "i64[1]=2"},
         .out = {"f32[]="},
         .status = MPR_E_INDEX},
        {.op = OP_CrossEntropy, .params = &strict, .in = {"f32[1,2]=0 0", "i64[1]=-1"},
         .out = {"f32[]="},
         .status = MPR_E_INDEX},
        /* 0.5 * (2 ln 2) + 0.5 / 2 * (2 ln 2 + 1 ln 2), over the weight 2 */
        {.op = OP_CrossEntropy, .params = &smooth, .in = {"f32[1,2]=0 0", "i64[1]=0", "f32[2]=2 1"},
         .out = {"f32[]=0.60650378299245215", NULL, "f32[]=2"}, .tolerance = 1e-7},
        {.op = OP_CrossEntropyGrad, .params = &mean,
         .in = {"f32[]=2", "f32[3,2]=0 0 0 0 9 9", "i64[3]=0 1 -100",
             "f32[3]=" LN2 " " LN2 " 9.69314718", "f32[]=2"},
         .out = {"f32[3,2]=-0.5 0.5 0.5 -0.5 0 0"}, .tolerance = 1e-7},
        {.op = OP_CrossEntropyGrad, .params = &mean,
         .in = {"f32[]=1", "f32[1,2]=0 0", "i64[1]=-100", "f32[1]=" LN2, "f32[]=0"},
             .out = {"f32[1,2]=0 0"}},
        /* p = 1e-4 on the label: |dlogit| * 65536 = 65529 becomes inf in f16; p = 3e-4 stays */
        {.op = OP_CrossEntropyGrad, .params = &strict,
         .in = {"f32[]=65536", "f16[1,2]=0 9.2109375", "i64[1]=0", "f32[1]=9.2110376", NULL},
             .out = {"f16[1,2]=-inf inf"}},
        {.op = OP_SoftmaxCrossEntropyLoss,
         .params = &(SoftmaxCrossEntropyLossParams){.ignore_index = MPRI_NO_IGNORE,
             .reduction = "mean"},
         .in = {"f32[2,2]=0 0 0 0", "i64[2]=0 1", "f32[2]=1 3"},
             .out = {"f32[]=" LN2, "f32[2,2]=-" LN2 " -" LN2 " -" LN2 " -" LN2},
         .tolerance = 1e-7},
        {.op = OP_MseLoss, .params = &(MseLossParams){.reduction = "mean"},
         .in = {"f32[2]=1 3", "f32[2]=0 0"},
         .out = {"f32[]=5", "f32[]=2"}},
        {.op = OP_MseLoss, .params = &(MseLossParams){.reduction = "sum"},
         .in = {"f16[2]=1 3", "f32[2]=0 0"},
         .out = {"f32[]=10"}},
        {.op = OP_MseLossGrad, .params = &(MseLossParams){.reduction = "mean"},
         .in = {"f32[]=2", "f32[2]=1 3", "f32[2]=0 0", "f32[]=2"}, .out = {"f32[2]=2 6"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void dropouts(void **state)
{
    (void)state;
    const DropoutParams p = {0};
    const KernelCase cases[] = {
        {.op = OP_Dropout, .params = &p, .in = {"f32[3]=1 2 3", "f32[]=0.5", "bool[]=0"},
         .out = {"f32[3]=1 2 3", "bool[3]=1 1 1"}},
        {.op = OP_Dropout, .params = &p, .in = {"f32[2]=1 2", "f32[]=1", "bool[]=1"},
         .out = {"f32[2]=0 0", "bool[2]=0 0"}},
        {.op = OP_Dropout, .params = &p, .in = {"f16[2]=1 2", "f32[]=0", "bool[]=1"},
         .out = {"f16[2]=1 2"}},
        {.op = OP_DropoutGrad, .params = &p, .in = {"f32[3]=1 2 3", "bool[3]=1 0 1", "f32[]=0.75",
         "bool[]=1"},
         .out = {"f32[3]=4 0 12"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products), cmocka_unit_test(convolutions), cmocka_unit_test(reductions),
        cmocka_unit_test(softmaxes), cmocka_unit_test(norms), cmocka_unit_test(losses),
        cmocka_unit_test(dropouts), cmocka_unit_test(dropout_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
