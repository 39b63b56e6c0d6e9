/* A net of two products in a manual loop, for tests of the loss scaler. */
#ifndef MPRI_TESTS_NET_H
#define MPRI_TESTS_NET_H

#include "tests/support/little_model.h"

#include <stdlib.h>
#include <string.h>

enum { N = 8, D = 4 };

typedef struct Net {
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_scaler *sc;
} Net;

/* y = x w1 w2 */
static inline LittleModel linear(float spread)
{
    return (LittleModel){
        .nodes = {{"MatMul", "/a/MatMul", "x w1", "h", NULL},
                  {"MatMul", "/b/MatMul", "h w2", "y", NULL}},
        .tensors = {{"w1", {D, D, -1}, 0, spread},
                    {"w2", {D, D, -1}, 0, spread * 0.9f}},
        .inputs = {{"x", MPR_FLOAT32, {-1, D, -99}}},
        .output = "y"};
}

static inline void open_net(Net *n, float spread, mpr_dtype low, const mpr_scaler_options *so)
{
    mpr_context_options co = {
        .size = sizeof co, .threads = 1, .device = TEST_DEVICE};
    LittleModel m = linear(spread);
    mpr_session_options o = {
        .size = sizeof o, .autocast = low, .loss = "mse", .logits = "y"};
    mpr_adamw ad = {.size = sizeof ad, .learning_rate = 1e-2};
    mpr_scaler_options plain = {.size = sizeof plain, .init_scale = 256};
    assert_int_equal(mpr_context_create(&co, &n->ctx), MPR_OK);
    assert_call(mpr_model_load(n->ctx, test_little_file("b.onnx", &m), NULL, &n->model), n->ctx);
    assert_call(mpr_session_open(n->model, &o, &n->s), n->model);
    assert_call(mpr_optimizer_adamw(n->s, &ad, &n->opt), n->s);
    assert_call(mpr_scaler_create(n->s, so ? so : &plain, &n->sc), n->s);
}

static inline void close_net(Net *n)
{
    mpr_scaler_destroy(n->sc);
    mpr_optimizer_destroy(n->opt);
    mpr_session_close(n->s);
    mpr_model_destroy(n->model);
    mpr_context_destroy(n->ctx);
}

/* Rows [from, from + n) of fixed data; labels times `far`. */
static inline void bind_rows(Net *n, int from, int rows, float far)
{
    float x[N * D], y[N * D];
    int64_t shape[2] = {rows, D};
    test_little_fill(x, N * D, 1);
    test_little_fill(y, N * D, 0.7f);
    for (int i = 0; i < N * D; i++) y[i] *= far;
    assert_call(mpr_session_bind(n->s, "x", x + from * D, MPR_FLOAT32, shape, 2), n->s);
    assert_call(mpr_session_bind(n->s, "labels", y + from * D, MPR_FLOAT32, shape, 2), n->s);
}

static inline void pass(Net *n, float *loss)
{
    assert_call(mpr_session_forward(n->s, loss), n->s);
    assert_call(mpr_session_backward(n->s, n->sc), n->s);
}

static inline void finish(Net *n, mpr_step_outcome want)
{
    mpr_step_outcome outcome;
    assert_call(mpr_scaler_step(n->sc, n->opt, &outcome), n->sc);
    assert_int_equal(outcome, want);
    assert_call(mpr_scaler_update(n->sc), n->sc);
    assert_call(mpr_session_zero_grad(n->s), n->s);
}

static inline void weights(Net *n, float w[2 * D * D])
{
    assert_call(mpr_session_parameter_get(n->s, "w1", w, D * D), n->s);
    assert_call(mpr_session_parameter_get(n->s, "w2", w + D * D, D * D), n->s);
}

static inline mpr_scaler_state state_of(const Net *n)
{
    mpr_scaler_state st = {.size = sizeof st};
    assert_int_equal(mpr_scaler_state_get(n->sc, &st), MPR_OK);
    return st;
}

#endif
