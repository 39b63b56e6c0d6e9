/* Elementwise operators and Cast: closed forms, edge values, broadcasting, zero elements, rank 0.
 */
#include "tests/support/kernels.h"

#define CASE(Op, ...) {.op = OP_##Op, .params = &(ElementwiseParams){0}, __VA_ARGS__}
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static void arithmetic(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        CASE(Add, .in = {"f32[2,3]=1 2 3 4 5 6", "f32[3]=10 20 30"},
            .out = {"f32[2,3]=11 22 33 14 25 36"}),
        CASE(Add, .in = {"f32[2,1]=1 2", "f32[1,3]=10 20 30"},
            .out = {"f32[2,3]=11 21 31 12 22 32"}),
        CASE(Add, .in = {"f32[]=1", "f32[]=2"}, .out = {"f32[]=3"}),
        CASE(Add, .in = {"f32[0,3]=", "f32[3]=1 2 3"}, .out = {"f32[0,3]="}),
        CASE(Add, .in = {"f16[2]=1 2", "f32[2]=0.5 0.25"}, .out = {"f32[2]=1.5 2.25"}),
        CASE(Add, .in = {"f64[1]=1", "f64[1]=1e-15"}, .out = {"f64[1]=1.000000000000001"}),
        CASE(Add, .in = {"f16[1]=65504", "f16[1]=65504"}, .out = {"f16[1]=inf"}),
        CASE(Add, .in = {"f16[1]=1", "f16[1]=0.00048828125"}, .out = {"f16[1]=1"}),
        CASE(Add, .in = {"i8[1]=127", "i8[1]=1"}, .out = {"i8[1]=-128"}),
        CASE(Sub, .in = {"u64[1]=0", "u64[1]=1"}, .out = {"u64[1]=18446744073709551615"}),
        CASE(Mul, .in = {"bf16[3]=1 2 3", "bf16[]=2"}, .out = {"bf16[3]=2 4 6"}),
        CASE(Div, .in = {"f32[3]=1 -1 0", "f32[1]=0"}, .out = {"f32[3]=inf -inf nan"}),
        CASE(Div, .in = {"i32[4]=7 -7 5 -2147483648", "i32[4]=2 2 0 -1"},
            .out = {"i32[4]=3 -3 0 -2147483648"}),
        CASE(Div, .in = {"i64[2]=-9223372036854775808 6", "i64[2]=-1 0"},
             .out = {"i64[2]=-9223372036854775808 0"}),
        CASE(Div, .in = {"u64[1]=18446744073709551614", "u64[1]=2"},
            .out = {"u64[1]=9223372036854775807"}),
        CASE(Pow, .in = {"f32[3]=2 3 4", "f32[]=2"}, .out = {"f32[3]=4 9 16"}),
        CASE(Pow, .in = {"f32[2]=2 4", "i64[2]=3 2"}, .out = {"f32[2]=8 16"}),
        CASE(Pow, .in = {"i32[4]=2 -1 -1 3", "i32[4]=-1 -3 -2 4"}, .out = {"i32[4]=0 -1 1 81"}),
        CASE(Sum, .in = {"f32[2]=1 2", "f32[1]=10", "f32[]=100"}, .out = {"f32[2]=111 112"}),
        {.op = OP_Mod, .params = &(ModParams){0}, .in = {"i32[4]=7 -7 7 -7", "i32[4]=3 3 -3 0"},
         .out = {"i32[4]=1 2 -2 0"}},
        {.op = OP_Mod, .params = &(ModParams){1},
         .in = {"i64[3]=7 -7 -9223372036854775808", "i64[3]=3 3 -1"},
         .out = {"i64[3]=1 -1 0"}},
        {.op = OP_Mod, .params = &(ModParams){1}, .in = {"f32[2]=-4.3 7.2", "f32[2]=2.1 -3.4"},
         .out = {"f32[2]=-0.1 0.4"}, .tolerance = 1e-6},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void order(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        CASE(Max, .in = {"f32[4]=1 nan 3 nan", "f32[4]=2 2 nan nan"},
            .out = {"f32[4]=2 nan nan nan"}),
        CASE(Min, .in = {"f32[3]=1 nan 3", "f32[3]=2 2 nan"}, .out = {"f32[3]=1 nan nan"}),
        CASE(Max, .in = {"u64[1]=18446744073709551615", "u64[1]=1"},
            .out = {"u64[1]=18446744073709551615"}),
        CASE(Min, .in = {"i64[1]=-1", "i64[1]=1", "i64[1]=-5"}, .out = {"i64[1]=-5"}),
        CASE(Clip, .in = {"f32[4]=-2 0.5 3 nan", "f32[]=-1", "f32[]=1"},
            .out = {"f32[4]=-1 0.5 1 nan"}),
        CASE(Clip, .in = {"f32[2]=-2 3", NULL, "f32[]=1"}, .out = {"f32[2]=-2 1"}),
        CASE(Clip, .in = {"f32[2]=-2 3", "f32[]=2", "f32[]=1"}, .out = {"f32[2]=1 1"}),
        CASE(Clip, .in = {"i8[3]=-9 0 9", "i8[]=-1", "i8[]=1"}, .out = {"i8[3]=-1 0 1"}),
        CASE(Equal, .in = {"f32[3]=1 nan 0", "f32[3]=1 nan -0"}, .out = {"bool[3]=1 0 1"}),
        CASE(Equal, .in = {"bool[2]=1 0", "bool[2]=1 1"}, .out = {"bool[2]=1 0"}),
        CASE(Less, .in = {"i64[2]=9007199254740993 -1", "i64[2]=9007199254740992 0"},
            .out = {"bool[2]=0 1"}),
        CASE(Less, .in = {"u64[1]=18446744073709551615", "u64[1]=1"}, .out = {"bool[1]=0"}),
        CASE(Greater, .in = {"f16[2]=1 nan", "f16[]=0"}, .out = {"bool[2]=1 0"}),
        CASE(LessOrEqual, .in = {"f32[3]=1 2 nan", "f32[3]=1 1 1"}, .out = {"bool[3]=1 0 0"}),
        CASE(GreaterOrEqual, .in = {"i32[3]=1 0 2", "i32[]=1"}, .out = {"bool[3]=1 0 1"}),
        CASE(And, .in = {"bool[2,1]=1 0", "bool[2]=1 0"}, .out = {"bool[2,2]=1 0 0 0"}),
        CASE(Or, .in = {"bool[2,1]=1 0", "bool[2]=1 0"}, .out = {"bool[2,2]=1 1 1 0"}),
        CASE(Not, .in = {"bool[2]=1 0"}, .out = {"bool[2]=0 1"}),
        CASE(Where, .in = {"bool[2,1]=1 0", "f32[2]=1 2", "f32[]=9"}, .out = {"f32[2,2]=1 2 9 9"}),
        CASE(Where, .in = {"bool[2]=1 0", "i64[]=-3", "i64[2]=4 5"}, .out = {"i64[2]=-3 5"}),
        CASE(Where, .in = {"bool[2]=1 0", "f16[2]=1 2", "f32[2]=3 4"}, .out = {"f32[2]=1 4"}),
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void functions(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        CASE(Neg, .in = {"i32[2]=-2147483648 5"}, .out = {"i32[2]=-2147483648 -5"}),
        CASE(Neg, .in = {"f32[2]=0 -1"}, .out = {"f32[2]=-0 1"}),
        CASE(Abs, .in = {"f32[3]=-1 2 nan"}, .out = {"f32[3]=1 2 nan"}),
        CASE(Abs, .in = {"u64[1]=18446744073709551615"}, .out = {"u64[1]=18446744073709551615"}),
        CASE(Reciprocal, .in = {"f32[3]=2 0 -inf"}, .out = {"f32[3]=0.5 inf -0"}),
        CASE(Sqrt, .in = {"f32[3]=4 -1 inf"}, .out = {"f32[3]=2 nan inf"}),
        CASE(Exp, .in = {"f32[4]=0 1 -inf 100"}, .out = {"f32[4]=1 2.7182818284590452 0 inf"},
            .tolerance = 1e-7),
        CASE(Log, .in = {"f32[4]=1 0 -1 2.718281828459045"}, .out = {"f32[4]=0 -inf nan 1"},
            .tolerance = 1e-7),
        CASE(Sin, .in = {"f64[2]=0 1.5707963267948966"}, .out = {"f64[2]=0 1"}),
        CASE(Cos, .in = {"f32[2]=0 3.14159265"}, .out = {"f32[2]=1 -1"}, .tolerance = 1e-6),
        CASE(Erf, .in = {"f32[3]=0 1 -inf"}, .out = {"f32[3]=0 0.84270079294971487 -1"},
            .tolerance = 1e-7),
        CASE(Tanh, .in = {"f32[3]=0 1 -100"}, .out = {"f32[3]=0 0.76159415595576489 -1"},
            .tolerance = 1e-7),
        CASE(Sigmoid, .in = {"f32[4]=0 2 -200 nan"},
            .out = {"f32[4]=0.5 0.88079707797788244 0 nan"},
             .tolerance = 1e-7),
        CASE(Softsign, .in = {"f32[6]=0 1 -3 -0 nan inf"},
             .out = {"f32[6]=0 0.5 -0.75 -0 nan nan"}),
        CASE(Softsign, .in = {"f16[2]=-7 65504"}, .out = {"f16[2]=-0.875 1"}),
        CASE(Softsign, .in = {"f64[]=3"}, .out = {"f64[]=0.75"}),
        CASE(Relu, .in = {"f32[4]=-1 0 2 nan"}, .out = {"f32[4]=0 0 2 nan"}),
        CASE(Relu, .in = {"i32[2]=-1 2"}, .out = {"i32[2]=0 2"}),
        {.op = OP_Gelu, .params = &(GeluParams){.approximate = "none"}, .in = {"f32[4]=0 1 -1 -10"},
         .out = {"f32[4]=0 0.84134474606854293 -0.15865525393145707 -7.6198530241605e-23"},
             .tolerance = 1e-7},
        {.op = OP_Gelu, .params = &(GeluParams){.approximate = "tanh"}, .in = {"f64[2]=1 -1"},
         .out = {"f64[2]=0.84119199060827676 -0.15880800939172324"}, .tolerance = 1e-14},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void gradients(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        CASE(ReluGrad, .in = {"f32[3]=5 5 5", "f32[3]=0 2 nan"}, .out = {"f32[3]=0 5 5"}),
        CASE(TanhGrad, .in = {"f32[2]=2 2", "f32[2]=0 0.5"}, .out = {"f32[2]=2 1.5"}),
        CASE(SigmoidGrad, .in = {"f16[2]=4 4", "f16[2]=0.5 0.25"}, .out = {"f16[2]=1 0.75"}),
        {.op = OP_GeluGrad, .params = &(GeluParams){.approximate = "none"},
         .in = {"f32[5]=1 1 1 1 2", "f32[5]=0 1 -1 nan 30"},
         .out = {"f32[5]=0.5 1.0833154705876864 -0.083315470587686370 nan 2"}, .tolerance = 1e-6},
        {.op = OP_GeluGrad, .params = &(GeluParams){.approximate = "tanh"},
         .in = {"f64[2]=1 1", "f64[2]=1 -1"},
         .out = {"f64[2]=1.0829640838457826 -0.08296408384578255"}, .tolerance = 1e-12},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void casts(void **state)
{
    (void)state;
#define CAST(type, source, target)                                                \
    {.op = OP_Cast, .params = &(CastParams){.to = type}, .in = {source}, .out = {target}}
    const KernelCase cases[] = {
        CAST(MPR_FLOAT16, "f32[5]=65519.99 65520 2.98e-8 1.0004883 nan",
            "f16[5]=65504 inf 2.98e-8 1 nan"),
        CAST(MPR_FLOAT16, "f32[2]=2.980232238769531e-08 6e-8", "f16[2]=0 5.960464477539063e-08"),
        CAST(MPR_FLOAT16, "f64[1]=1.00048828125000001", "f16[1]=1"),
        CAST(MPR_BFLOAT16, "f32[3]=1.00390625 3.4e38 -inf", "bf16[3]=1 inf -inf"),
        CAST(MPR_FLOAT32, "f16[3]=5.960464477539063e-08 65504 -0",
            "f32[3]=5.960464477539063e-08 65504 -0"),
        CAST(MPR_INT32, "f32[5]=-1.9 1.9 3e9 nan -3e9", "i32[5]=-1 1 2147483647 0 -2147483648"),
        CAST(MPR_BOOL, "f32[4]=0 0.1 nan -0", "bool[4]=0 1 1 0"),
        CAST(MPR_BOOL, "i64[2]=0 256", "bool[2]=0 1"),
        CAST(MPR_FLOAT32, "bool[2]=0 1", "f32[2]=0 1"),
        CAST(MPR_INT8, "i64[2]=300 -1", "i8[2]=44 -1"),
        CAST(MPR_FLOAT32, "i64[2]=9007199791611905 -9007199791611905",
            "f32[2]=9007200328482816 -9007200328482816"),
        CAST(MPR_FLOAT32, "u64[1]=18446744073709551615", "f32[1]=18446744073709551616"),
        CAST(MPR_INT64, "i64[2]=1 2", "i64[2]=1 2"),
        CAST(MPR_FLOAT16, "f32[]=3", "f16[]=3"),
        CAST(MPR_FLOAT16, "f32[0]=", "f16[0]="),
        {.op = OP_Identity, .in = {"bool[2]=1 0"}, .out = {"bool[2]=1 0"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic), cmocka_unit_test(order), cmocka_unit_test(functions),
        cmocka_unit_test(gradients),  cmocka_unit_test(casts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
