/* Graphs computed with the reference kernels. */
#include "tests/support/evaluate.h"

#include <math.h>
#include <string.h>
#include "runtime/base/rng.h"

static Tensor describe(const Value *v)
{
    Tensor t = {.dtype = v->dtype, .rank = v->shape.rank, .n = mpri_shape_elements(&v->shape)};
    assert_true(t.n >= 0);
    for (int i = 0; i < t.rank; i++) t.dims[i] = v->shape.d[i];
    return t;
}

static uint64_t stream_of(const char *name)
{
    uint64_t h = 0xcbf29ce484222325;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3;
    return h;
}

static Tensor source(TestGraph *t, const Value *v)
{
    Tensor x = describe(v);
    if (v->kind == VAL_CONST && v->data) {
        x.data = (void *)v->data;
        return x;
    }
    x.data = mpri_arena_array(&t->arena, (size_t)x.n + 1, mpri_dtype_size(x.dtype));
    assert_non_null(x.data);
    for (int64_t i = 0; i < x.n; i++) {
        double u = (double)mpri_rng_uniform(7, stream_of(v->name), (uint64_t)i);
        mpri_store_f64(x.dtype, x.data, i, mpri_dtype_is_float(x.dtype) ? 2 * u - 1 : floor(2 * u));
    }
    return x;
}

Tensor test_evaluate(TestGraph *t, int index)
{
    Tensor *all = ARENA_ARRAY(&t->arena, Tensor, t->g->n_values);
    assert_non_null(all);
    for (int i = 0; i < t->g->n_values; i++)
        if (t->g->values[i]->kind != VAL_NODE) all[i] = source(t, t->g->values[i]);
    for (Node *n = t->g->first; n; n = n->next) {
        Tensor in[16] = {{0}}, out[8] = {{0}};
        assert_true(n->n_in <= 16 && n->n_out <= 8);
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) in[k] = all[n->in[k]->id];
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k]) out[k] = describe(n->out[k]);
        assert_ok(mpri_eval_node(&t->ref, n, in, out, &t->arena, &t->err), &t->err);
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k]) all[n->out[k]->id] = out[k];
    }
    return all[t->g->outputs[index].value->id];
}

double test_difference(const Tensor *a, const Tensor *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->dtype, b->dtype);
    double worst = 0;
    for (int64_t i = 0; i < a->n; i++) {
        double x = mpri_load_f64(a->dtype, a->data, i), y = mpri_load_f64(b->dtype, b->data, i);
        double d = fabs(x - y) / (1 + fabs(y));
        if (!(d <= worst)) worst = isnan(d) ? INFINITY : d;
    }
    return worst;
}
