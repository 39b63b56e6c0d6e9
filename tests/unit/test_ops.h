/* A small operator table for the tests of the graph: no dependence on runtime/op. */
#ifndef MPRI_TESTS_UNIT_TEST_OPS_H
#define MPRI_TESTS_UNIT_TEST_OPS_H

#include <string.h>

#include "runtime/ir/graph.h"

enum {
    T_Add,
    T_Relu,
    T_Gemm,
    T_Cast,
    T_Split,
    T_Constant,
    T_Step,
    T_Shape,
    T_Concat,
    T_Opaque,
    T_COUNT
};

typedef struct TestGemm {
    float alpha;
    int64_t trans;
    const char *mode;
    Ints pads;
    Floats scales;
} TestGemm;
typedef struct TestCast {
    int64_t to;
} TestCast;
typedef struct TestConstant {
    TensorAttr value;
} TestConstant;

static inline mpr_status test_infer_first(InferCtx *c)
{
    Value *x = c->n->in[0];
    for (int i = 0; i < c->n->n_out; i++) TRY(mpri_infer_set(c, i, x->dtype, &x->shape));
    return MPR_OK;
}
static inline mpr_status test_infer_add(InferCtx *c)
{
    Shape out;
    TRY(mpri_infer_broadcast(c, &c->n->in[0]->shape, &c->n->in[1]->shape, &out));
    return mpri_infer_set(c, 0, c->n->in[0]->dtype, &out);
}
static inline mpr_status test_infer_gemm(InferCtx *c)
{
    const Shape *a = &c->n->in[0]->shape, *b = &c->n->in[1]->shape;
    if (a->rank != 2 || b->rank != 2)
        return mpri_err_set(c->err, MPR_E_SHAPE, "rank %d and %d", a->rank, b->rank);
    const TestGemm *p = c->n->params;
    Shape out = {.rank = 2, .d = {a->d[0], b->d[p->trans ? 0 : 1]}};
    return mpri_infer_set(c, 0, c->n->in[0]->dtype, &out);
}
static inline mpr_status test_infer_cast(InferCtx *c)
{
    const TestCast *p = c->n->params;
    return mpri_infer_set(c, 0, (DType)p->to, &c->n->in[0]->shape);
}
static inline mpr_status test_infer_constant(InferCtx *c)
{
    const TestConstant *p = c->n->params;
    return mpri_infer_set(c, 0, p->value.dtype, &p->value.shape);
}
static inline mpr_status test_infer_shape(InferCtx *c)
{
    const Shape *x = &c->n->in[0]->shape;
    Shape out = {.rank = 1, .d = {x->rank}};
    if (x->rank < 0) out.d[0] = mpri_dim_fresh(c->sym);
    TRY(mpri_infer_set(c, 0, MPR_INT64, &out));
    if (x->rank >= 0) mpri_infer_set_content(c, 0, x->rank, x->d);
    return MPR_OK;
}
static inline mpr_status test_infer_concat(InferCtx *c)
{
    Dim all[64];
    int64_t total = 0;
    for (int i = 0; i < c->n->n_in; i++) {
        int64_t n;
        const Dim *d = mpri_infer_content(c, i, &n);
        if (!d) return mpri_infer_set(c, 0, MPR_INT64, NULL);
        memcpy(all + total, d, (size_t)n * sizeof *d);
        total += n;
    }
    Shape out = {.rank = 1, .d = {total}};
    TRY(mpri_infer_set(c, 0, MPR_INT64, &out));
    mpri_infer_set_content(c, 0, total, all);
    return MPR_OK;
}
static inline mpr_status test_infer_opaque(InferCtx *c)
{
    for (int i = 0; i < c->n->n_out; i++)
        if (c->n->out[i]) TRY(mpri_infer_set(c, i, c->n->out[i]->dtype, NULL));
    return MPR_OK;
}

static const AttrRow test_gemm_rows[] = {
    {.name = "alpha", .kind = ATTR_FLOAT, .offset = offsetof(TestGemm, alpha), .def_float = 1},
    {.name = "trans",
     .kind = ATTR_INT,
     .offset = offsetof(TestGemm, trans),
     .min_int = 0,
     .max_int = 1},
    {.name = "mode",
     .kind = ATTR_STRING,
     .offset = offsetof(TestGemm, mode),
     .def_string = "none",
     .choices = "none|tanh"},
    {.name = "pads", .kind = ATTR_INTS, .offset = offsetof(TestGemm, pads)},
    {.name = "scales", .kind = ATTR_FLOATS, .offset = offsetof(TestGemm, scales)},
    {.name = NULL},
};
static const AttrRow test_cast_rows[] =
    {{.name = "to", .kind = ATTR_DTYPE, .offset = offsetof(TestCast, to), .required = true},
     {.name = NULL}};
static const AttrRow test_constant_rows[] = {{.name = "value",
                                              .kind = ATTR_TENSOR,
                                              .offset = offsetof(TestConstant, value)},
                                             {.name = NULL}};

static const OpDef test_defs[T_COUNT] = {
    {.id = T_Add,
     .name = "Add",
     .domain = "",
     .min_in = 2,
     .max_in = 2,
     .min_out = 1,
     .max_out = 1,
     .infer = test_infer_add},
    {.id = T_Relu,
     .name = "Relu",
     .domain = "",
     .min_in = 1,
     .max_in = 1,
     .min_out = 1,
     .max_out = 1,
     .infer = test_infer_first},
    {.id = T_Gemm,
     .name = "Gemm",
     .domain = "",
     .min_in = 2,
     .max_in = 3,
     .min_out = 1,
     .max_out = 1,
     .attrs = test_gemm_rows,
     .params_size = sizeof(TestGemm),
     .infer = test_infer_gemm},
    {.id = T_Cast,
     .name = "Cast",
     .domain = "",
     .min_in = 1,
     .max_in = 1,
     .min_out = 1,
     .max_out = 1,
     .attrs = test_cast_rows,
     .params_size = sizeof(TestCast),
     .infer = test_infer_cast},
    {.id = T_Split,
     .name = "Split",
     .domain = "",
     .min_in = 1,
     .max_in = 2,
     .min_out = 1,
     .max_out = -1,
     .infer = test_infer_first},
    {.id = T_Constant,
     .name = "Constant",
     .domain = "",
     .min_in = 0,
     .max_in = 0,
     .min_out = 1,
     .max_out = 1,
     .attrs = test_constant_rows,
     .params_size = sizeof(TestConstant),
     .infer = test_infer_constant},
    {.id = T_Step,
     .name = "Step",
     .domain = "mpr",
     .min_in = 2,
     .max_in = 2,
     .min_out = 0,
     .max_out = 0,
     .flags = OPF_EFFECT,
     .writes = 1},
    {.id = T_Shape,
     .name = "Shape",
     .domain = "",
     .min_in = 1,
     .max_in = 1,
     .min_out = 1,
     .max_out = 1,
     .infer = test_infer_shape},
    {.id = T_Concat,
     .name = "Concat",
     .domain = "",
     .min_in = 1,
     .max_in = -1,
     .min_out = 1,
     .max_out = 1,
     .infer = test_infer_concat},
    {.id = T_Opaque,
     .name = "Opaque",
     .domain = "",
     .min_in = 0,
     .max_in = -1,
     .min_out = 0,
     .max_out = -1,
     .flags = OPF_OPAQUE,
     .infer = test_infer_opaque},
};

static inline const OpDef *test_find(const char *domain, const char *name)
{
    for (int i = 0; i < T_Opaque; i++)
        if (!strcmp(test_defs[i].domain, domain) && !strcmp(test_defs[i].name, name))
            return &test_defs[i];
    return NULL;
}

static inline const OpTable *test_table(void)
{
    static const OpDef *const defs[T_COUNT] = {&test_defs[0], &test_defs[1], &test_defs[2],
                                               &test_defs[3], &test_defs[4], &test_defs[5],
                                               &test_defs[6], &test_defs[7], &test_defs[8],
                                               &test_defs[9]};
    static const OpTable table = {T_COUNT, defs, test_find, &test_defs[T_Opaque]};
    return &table;
}

#endif
