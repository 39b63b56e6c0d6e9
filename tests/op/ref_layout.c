/* Layout and index operators: positions by hand, any type, bad indices. */
#include "tests/support/kernels.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define INTS(...) {sizeof((const int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__}}

static void moves(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        {.op = OP_Transpose, .params = &(TransposeParams){{0, NULL}},
         .in = {"i32[2,3]=1 2 3 4 5 6"},
         .out = {"i32[3,2]=1 4 2 5 3 6"}},
        {.op = OP_Transpose, .params = &(TransposeParams){INTS(1, 0, 2)},
         .in = {"f16[2,2,2]=1 2 3 4 5 6 7 8"},
         .out = {"f16[2,2,2]=1 2 5 6 3 4 7 8"}},
        {.op = OP_Transpose, .params = &(TransposeParams){INTS(0, 2, 1)},
         .in = {"u8[2,2,2]=1 2 3 4 5 6 7 8"},
         .out = {"u8[2,2,2]=1 3 2 4 5 7 6 8"}},
        {.op = OP_Transpose, .params = &(TransposeParams){INTS(1, 0)}, .in = {"f32[0,3]="},
         .out = {"f32[3,0]="}},
        {.op = OP_Transpose, .params = &(TransposeParams){{0, NULL}}, .in = {"f64[]=5"},
         .out = {"f64[]=5"}},
        {.op = OP_Concat, .params = &(AxisParams){-1},
         .in = {"f32[2,1]=1 2", "f32[2,2]=3 4 5 6", "f32[2,0]="},
         .out = {"f32[2,3]=1 3 4 2 5 6"}},
        {.op = OP_Concat, .params = &(AxisParams){0}, .in = {"f16[1]=1", "f32[1]=0.1"},
         .out = {"f32[2]=1 0.1"}},
        {.op = OP_Concat, .params = &(AxisParams){1}, .in = {"f16[2,1]=1 2", "f32[2,1]=3 4"},
         .out = {"f32[2,2]=1 3 2 4"}},
        {.op = OP_Split, .params = &(SplitParams){1, 0},
         .in = {"i64[2,3]=1 2 3 4 5 6", "i64[2]=1 2"},
         .out = {"i64[2,1]=1 4", "i64[2,2]=2 3 5 6"}},
        {.op = OP_Split, .params = &(SplitParams){0, 2}, .in = {"bf16[3]=1 2 3"},
         .out = {"bf16[2]=1 2", "bf16[1]=3"}},
        {.op = OP_Slice, .in = {"f32[4]=0 1 2 3", "i64[1]=1", "i64[1]=100"},
         .out = {"f32[3]=1 2 3"}},
        {.op = OP_Slice, .in = {"f32[4]=0 1 2 3", "i64[1]=-1", "i64[1]=-100", "i64[1]=0",
         "i64[1]=-2"},
         .out = {"f32[2]=3 1"}},
        {.op = OP_Slice, .in = {"f32[4]=0 1 2 3", "i64[1]=100", "i64[1]=0", "i64[1]=-1",
         "i64[1]=-1"},
         .out = {"f32[3]=3 2 1"}},
        {.op = OP_Slice, .in = {"i8[2,3]=0 1 2 3 4 5", "i32[2]=1 0", "i32[2]=3 1", "i32[2]=1 0"},
         .out = {"i8[1,2]=1 2"}},
        {.op = OP_Slice, .in = {"f32[4]=0 1 2 3", "i64[1]=3", "i64[1]=1"}, .out = {"f32[0]="}},
        {.op = OP_SliceGrad, .params = &(SliceGradParams){INTS(2, 3), INTS(2, 1), INTS(1, 0),
         INTS(-2, 1)},
         .in = {"f32[1,2]=7 8"}, .out = {"f32[2,3]=0 0 0 8 0 7"}},
        {.op = OP_Expand, .in = {"f32[2,1]=1 2", "i64[3]=2 1 3"},
         .out = {"f32[2,2,3]=1 1 1 2 2 2 1 1 1 2 2 2"}},
        {.op = OP_Expand, .in = {"bool[]=1", "i64[1]=0"}, .out = {"bool[0]="}},
        {.op = OP_Trilu, .params = &(TriluParams){1}, .in = {"f32[2,3]=1 2 3 4 5 6"},
         .out = {"f32[2,3]=1 2 3 0 5 6"}},
        {.op = OP_Trilu, .params = &(TriluParams){0}, .in = {"i8[2,1,3]=1 2 3 4 5 6", "i64[]=1"},
         .out = {"i8[2,1,3]=1 2 0 4 5 0"}},
        {.op = OP_Trilu, .params = &(TriluParams){1}, .in = {"f16[2,2]=1 2 3 4", "i64[1]=-9"},
         .out = {"f16[2,2]=1 2 3 4"}},
        {.op = OP_Reshape, .params = &(ReshapeParams){0}, .in = {"f32[2,2]=1 2 3 4", "i64[1]=4"},
         .out = {"f32[4]=1 2 3 4"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void shapes(void **state)
{
    (void)state;
    const int64_t seven = 7;
    const KernelCase cases[] = {
        {.op = OP_Shape, .params = &(ShapeParams){0, INT64_MAX}, .in = {"f32[2,0,3]="},
         .out = {"i64[3]=2 0 3"}},
        {.op = OP_Shape, .params = &(ShapeParams){-2, -1}, .in = {"f32[2,0,3]="},
         .out = {"i64[1]=0"}},
        {.op = OP_Size, .in = {"f32[2,3]="}, .out = {"i64[]=6"}},
        {.op = OP_Size, .in = {"f32[]=1"}, .out = {"i64[]=1"}},
        {.op = OP_ConstantOfShape,
         .params = &(ConstantOfShapeParams){{.dtype = MPR_INT64, .shape = {.rank = 1, .d = {1}},
             .data = &seven}},
         .in = {"i64[1]=3"}, .out = {"i64[3]=7 7 7"}},
        {.op = OP_ConstantOfShape, .params = &(ConstantOfShapeParams){{.dtype = MPR_DTYPE_NONE}},
         .in = {"i64[0]="}, .out = {"f32[]=0"}},
        {.op = OP_Range, .in = {"i64[]=10", "i64[]=4", "i64[]=-3"}, .out = {"i64[2]=10 7"}},
        {.op = OP_Range, .in = {"f32[]=0.5", "f32[]=2", "f32[]=0.5"}, .out = {"f32[3]=0.5 1 1.5"}},
        {.op = OP_Constant,
         .params = &(ConstantParams){{.dtype = MPR_INT64, .shape = {.rank = 0}, .data = &seven}},
         .out = {"i64[]=7"}},
    };
    test_kernel_cases(cases, COUNT(cases));
}

static void indices(void **state)
{
    (void)state;
    const KernelCase cases[] = {
        {.op = OP_Gather, .params = &(AxisParams){0}, .in = {"f32[3,2]=1 2 3 4 5 6", "i64[2]=-1 0"},
         .out = {"f32[2,2]=5 6 1 2"}},
        {.op = OP_Gather, .params = &(AxisParams){1}, .in = {"i8[2,3]=1 2 3 4 5 6", "i32[1,2]=2 0"},
         .out = {"i8[2,1,2]=3 1 6 4"}},
        {.op = OP_Gather, .params = &(AxisParams){0}, .in = {"i64[3]=7 8 9", "i64[]=1"},
         .out = {"i64[]=8"}},
        {.op = OP_Gather, .params = &(AxisParams){0}, .in = {"f32[3,2]=", "i64[0]="},
         .out = {"f32[0,2]="}},
        {.op = OP_Gather, .params = &(AxisParams){0}, .in = {"f32[3]=1 2 3", "i64[2]=0 3"},
         .out = {"f32[2]="},
         .status = MPR_E_INDEX},
        {.op = OP_Gather, .params = &(AxisParams){0}, .in = {"f32[3]=1 2 3", "i32[1]=-4"},
         .out = {"f32[1]="},
         .status = MPR_E_INDEX},
        {.op = OP_GatherGrad, .params = &(GatherGradParams){0, INTS(3, 2)},
         .in = {"f16[4,2]=1 2 3 4 5 6 7 8", "i64[4]=2 0 -1 2"}, .out = {"f32[3,2]=3 4 0 0 13 16"}},
        {.op = OP_GatherGrad, .params = &(GatherGradParams){1, INTS(2, 2)},
         .in = {"f32[2,2]=1 2 3 4", "i32[2]=1 1"},
         .out = {"f32[2,2]=0 3 0 7"}},
        {.op = OP_GatherGrad, .params = &(GatherGradParams){0, INTS(2)},
         .in = {"f64[2]=1 2", "i64[2]=0 5"},
         .out = {"f64[2]="}, .status = MPR_E_INDEX},
        {.op = OP_GatherElements, .params = &(AxisParams){1},
         .in = {"f32[2,2]=1 2 3 4", "i64[2,2]=0 0 -1 0"},
         .out = {"f32[2,2]=1 1 4 3"}},
        {.op = OP_GatherElements, .params = &(AxisParams){0},
         .in = {"f32[3,2]=1 2 3 4 5 6", "i64[1,2]=2 1"},
         .out = {"f32[1,2]=5 4"}},
        {.op = OP_GatherND, .params = &(GatherNDParams){0},
         .in = {"f32[2,2]=1 2 3 4", "i64[2,2]=0 0 1 1"},
         .out = {"f32[2]=1 4"}},
        {.op = OP_GatherND, .params = &(GatherNDParams){0},
         .in = {"f32[2,2]=1 2 3 4", "i64[2,1]=1 0"},
         .out = {"f32[2,2]=3 4 1 2"}},
        {.op = OP_GatherND, .params = &(GatherNDParams){1},
         .in = {"i32[2,2,2]=0 1 2 3 4 5 6 7", "i64[2,1]=1 0"}, .out = {"i32[2,2]=2 3 4 5"}},
        {.op = OP_GatherND, .params = &(GatherNDParams){0}, .in = {"f32[2]=1 2", "i64[1,1]=2"},
         .out = {"f32[1]="},
         .status = MPR_E_INDEX},
    };
    test_kernel_cases(cases, COUNT(cases));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves), cmocka_unit_test(shapes), cmocka_unit_test(indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
