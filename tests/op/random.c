/* Random operators: moments and ranges of what they draw, streams of nodes, and the seed. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "tests/support/graphs.h"

enum { N = 20000 };
static double drawn[2][N];

/* Output y of the graph `body`, at most N numbers. */
static int64_t draw(const char *body, const char *name, double *out)
{
    TestGraph t;
    TestValues v;
    char text[1024];
    snprintf(text, sizeof text, "graph \"g\" {\n%s\noutput y = %s\n}\n", body, name);
    test_graph_open(&t, text);
    test_values_open(&v, &t);
    test_values_run(&v, false);
    const Tensor *r = &v.at[t.g->outputs[0].value->id];
    int64_t n = r->n;
    assert_true(n <= N);
    for (int64_t i = 0; i < n; i++) out[i] = mpri_load_f64(r->dtype, r->data, i);
    test_graph_close(&t);
    return n;
}

static void moments(const double *x, int64_t n, double *mean, double *deviation)
{
    double s = 0, q = 0;
    for (int64_t i = 0; i < n; i++) s += x[i];
    *mean = s / (double)n;
    for (int64_t i = 0; i < n; i++) q += (x[i] - *mean) * (x[i] - *mean);
    *deviation = sqrt(q / (double)n);
}

static void expect(const char *body, double mean, double deviation, double tolerance)
{
    double m, s;
    int64_t n = draw(body, "y", drawn[0]);
    moments(drawn[0], n, &m, &s);
    if (fabs(m - mean) > tolerance || fabs(s - deviation) > tolerance)
        fail_msg("%s: mean %g, deviation %g; expected %g, %g", body, m, s, mean, deviation);
}

static void distributions(void **state)
{
    (void)state;
    expect("y = RandomNormal() {shape=[100,200]}", 0, 1, 0.03);
    expect("y = RandomNormal() {shape=[20000], mean=3, scale=0.5, dtype=f64}", 3, 0.5, 0.02);
    expect("y = RandomNormal() {shape=[20000], dtype=f16, seed=7}", 0, 1, 0.03);
    expect("y = RandomUniform() {shape=[20000]}", 0.5, sqrt(1.0 / 12), 0.01);
    expect("y = RandomUniform() {shape=[20000], low=-2, high=4, dtype=bf16}", 1, sqrt(3), 0.04);
    expect("const p: f32[20000] = splat(0.3)\ny = Bernoulli(p)", 0.3, sqrt(0.21), 0.02);
    expect("const p: f32[1,3] = [0,-inf,1.0986123]\ny = Multinomial(p) {sample_size=20000}", 1.5,
           sqrt(0.75), 0.03);
}

static void ranges(void **state)
{
    (void)state;
    static const char *const types[] = {"f16", "bf16", "f32", "f64"};
    for (int k = 0; k < 4; k++) {
        char body[128];
        snprintf(body, sizeof body, "y = RandomUniform() {shape=[20000], low=1, high=2, dtype=%s}",
                 types[k]);
        int64_t n = draw(body, "y", drawn[0]);
        for (int64_t i = 0; i < n; i++) assert_true(drawn[0][i] >= 1 && drawn[0][i] < 2);
    }
}

static void streams(void **state)
{
    (void)state;
    const char *plain = "a = RandomNormal() {shape=[9]}\nb = RandomNormal() {shape=[9]}";
    const char *seeded =
        "a = RandomNormal() {shape=[9], seed=4}\nb = RandomNormal() {shape=[9], seed=4}";
    size_t bytes = 9 * sizeof(double);
    draw(plain, "a", drawn[0]);
    draw(plain, "b", drawn[1]);
    assert_true(memcmp(drawn[0], drawn[1], bytes) != 0);
    draw(seeded, "a", drawn[0]);
    draw(seeded, "b", drawn[1]);
    assert_memory_equal(drawn[0], drawn[1], bytes);
    draw("a = RandomNormal() {shape=[9], seed=5}", "a", drawn[1]);
    assert_true(memcmp(drawn[0], drawn[1], bytes) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(distributions), cmocka_unit_test(ranges),
                                       cmocka_unit_test(streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
