/* Symbolic dims become numbers; trained parameters become slots; open sizes are refused. */
#include "tests/support/graphs.h"

#include <string.h>

static DimBinding *bind_dim(TestGraph *t, const char *name, int64_t value)
{
    DimBinding *b = mpri_binding_create(&t->arena, t->g->sym);
    assert_non_null(b);
    assert_true(mpri_dim_bind(b, mpri_dim_named(t->g->sym, name), value));
    t->ctx.binding = b;
    return b;
}

static void shape_code_binds(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[batch,seq,4]\n"
                        "const minus: i64[1] = [-1]\n"
                        "s = Shape(x) {start=0, end=1}\n"
                        "r = Concat(s, minus) {axis=0}\n"
                        "y = Reshape(x, r)\n"
                        "output y = y\n"
                        "}\n");
    DimBinding *b = bind_dim(&t, "batch", 2);
    assert_true(mpri_dim_bind(b, mpri_dim_named(t.g->sym, "seq"), 3));
    assert_true(test_graph_pass(&t, mpri_pass_bind));
    const Shape *y = &t.g->outputs[0].value->shape;
    assert_int_equal(y->rank, 2);
    assert_int_equal(y->d[0], 2);
    assert_int_equal(y->d[1], 12);
    test_graph_close(&t);
}

static void trained_parameters_become_slots(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[2,2]\n"
                        "param w: f32[2,2] trained = [1,2,3,4]\n"
                        "param h: f16[2] trained = [1,2]\n"
                        "param frozen: f32[2] = [5,6]\n"
                        "y = MatMul(x, w)\n"
                        "hf = Cast(h) {to=f32}\n"
                        "z = Add(y, hf)\n"
                        "u = Add(z, frozen)\n"
                        "output u = u\n"
                        "}\n");
    assert_true(test_graph_pass(&t, mpri_pass_bind));
    test_graph_expect(&t, "graph \"g\" {\n"
                          "input  x: f32[2,2]\n"
                          "param  param:w: f32[2,2] trained name \"w\" init [1,2,3,4]\n"
                          "param  param:h: f32[2] trained name \"h\" init f16 [1,2]\n"
                          "param  frozen: f32[2] = [5,6]\n"
                          "param:h/Cast: f16[2] = Cast(param:h) {to=f16} @ \"param:h/Cast\"\n"
                          "y: f32[2,2] = MatMul(x, param:w)\n"
                          "hf: f32[2] = Cast(param:h/Cast) {to=f32}\n"
                          "z: f32[2,2] = Add(y, hf)\n"
                          "u: f32[2,2] = Add(z, frozen)\n"
                          "output u = u\n"
                          "}\n");
    test_graph_close(&t);
}

static void unknown_input_size(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[batch,4]\n"
                        "y = Relu(x)\n"
                        "output y = y\n"
                        "}\n");
    test_graph_refuses(&t, mpri_pass_bind, MPR_E_SHAPE, "'x'", "[batch,4]");
    test_graph_close(&t);
}

static void size_from_data(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[4]\n"
                        "input n: i64[2]\n"
                        "y = Reshape(x, n) @ \"/r\"\n"
                        "z = Relu(y)\n"
                        "output z = z\n"
                        "}\n");
    test_graph_refuses(&t, mpri_pass_bind, MPR_E_UNSUPPORTED_OP, "'/r'", "'n'");
    test_graph_close(&t);
}

/* A size that goes through float arithmetic is no symbolic content, but it is a constant. */
static void size_through_floats(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[batch,4]\n"
                        "const half: f32[] = 0.5\n"
                        "const minus: i64[1] = [-1]\n"
                        "s = Shape(x) {start=0, end=1}\n"
                        "f = Cast(s) {to=f32}\n"
                        "m = Mul(f, half)\n"
                        "i = Cast(m) {to=i64}\n"
                        "r = Concat(i, minus) {axis=0}\n"
                        "y = Reshape(x, r)\n"
                        "output y = y\n"
                        "}\n");
    bind_dim(&t, "batch", 6);
    test_graph_pass(&t, mpri_pass_bind);
    assert_int_equal(t.g->outputs[0].value->shape.d[0], 3);
    assert_int_equal(t.g->outputs[0].value->shape.d[1], 8);
    test_graph_close(&t);
}

static FedInput fed(const char *name, DType t, int rank, int64_t n, const void *data)
{
    FedInput f = {.name = name, .t = {.data = (void *)(uintptr_t)data, .dtype = t, .rank = rank}};
    f.t.n = n;
    if (rank) f.t.dims[0] = n;
    return f;
}

/* Contents of inputs that a size needs become constants; the others stay inputs. */
static void size_from_given_data(void **state)
{
    (void)state;
    TestGraph t;
    static const int64_t shape[] = {2, -1}, from = 1;
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[4]\n"
                        "input n: i64[2]\n"
                        "input k: i64[]\n"
                        "const one: i64[1] = [1]\n"
                        "y = Reshape(x, n)\n"
                        "start = Reshape(k, one)\n"
                        "const end: i64[1] = [2]\n"
                        "s = Slice(y, start, end, one)\n"
                        "z = Relu(s)\n"
                        "output z = z\n"
                        "}\n");
    FedInput inputs[] = {fed("n", MPR_INT64, 1, 2, shape), fed("k", MPR_INT64, 0, 1, &from)};
    t.ctx.fed = inputs;
    t.ctx.n_fed = 2;
    assert_true(test_graph_pass(&t, mpri_pass_bind));
    const Shape *z = &t.g->outputs[0].value->shape;
    assert_int_equal(z->rank, 2);
    assert_int_equal(z->d[0], 2);
    assert_int_equal(z->d[1], 1);
    assert_int_equal(mpri_graph_find_value(t.g, "x")->kind, VAL_INPUT);
    test_graph_close(&t);
}

/* A declared shape is no promise: what the input holds is held against it. */
static void given_data_against_declaration(void **state)
{
    (void)state;
    TestGraph t;
    static const int64_t shape[] = {4, 1};
    test_graph_open(&t, "graph \"g\" {\n"
                        "input x: f32[4]\n"
                        "input n: i64[2]\n"
                        "y: f32[2,2] = Reshape(x, n) @ \"/r\"\n"
                        "output y = y\n"
                        "}\n");
    t.g->first->out[0]->shape = (Shape){.rank = 2, .d = {2, 2}};
    t.g->first->out[0]->declared = true;
    FedInput inputs[] = {fed("n", MPR_INT64, 1, 2, shape)};
    t.ctx.fed = inputs;
    t.ctx.n_fed = 1;
    test_graph_refuses(&t, mpri_pass_bind, MPR_E_SHAPE, "[2,2]", "[4,1]");
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shape_code_binds),
        cmocka_unit_test(trained_parameters_become_slots),
        cmocka_unit_test(unknown_input_size),
        cmocka_unit_test(size_from_data),
        cmocka_unit_test(size_through_floats),
        cmocka_unit_test(size_from_given_data),
        cmocka_unit_test(given_data_against_declaration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
