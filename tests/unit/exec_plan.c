/* Plans: what runs, what aliases, what is reported. The main check is by property: on random graphs
 * a plan with shared memory, views and in-place steps gives the bits of a plan where every value
 * has its own. */
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#include "kernels/ref/ref.h"
#include "runtime/base/rng.h"
#include "runtime/exec/plan.h"
#include "runtime/ir/text_form.h"
#include "runtime/op/ops.h"

static int live, total; /* allocations */

static void *count_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    live++;
    total++;
    return mpri_alloc(mpri_alloc_default(), size, align);
}

static void count_free(void *user, void *p)
{
    (void)user;
    live--;
    mpri_free(mpri_alloc_default(), p);
}

static const Alloc counting = {count_alloc, count_free, NULL};
static Device *device;
static Store store;
static Err err;

static int setup(void **state)
{
    (void)state;
    live = total = 0;
    mpri_err_clear(&err);
    assert_ok(mpri_device_cpu(&counting, 2, &device, &err), &err);
    assert_ok(mpri_store_init(&store, device, &err), &err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mpri_store_destroy(&store);
    mpri_device_destroy(device);
    assert_int_equal(live, 0);
    return 0;
}

static Graph *parse(Arena *a, const char *text)
{
    Graph *g = NULL;
    mpri_arena_init(a, &counting, 0);
    Intern *names = mpri_intern_create(a);
    assert_ok(mpri_graph_parse(text, a, names, mpri_op_table(), &g, &err), &err);
    assert_ok(mpri_graph_validate(g, "parse", &err), &err);
    return g;
}

static Plan *plan(const char *text, const PlanOptions *o)
{
    Arena a;
    Plan *p = NULL;
    Graph *g = parse(&a, text);
    assert_ok(mpri_plan_create(device, &store, g, a, o, &p, &err), &err);
    assert_ok(mpri_plan_bind_memory(p, NULL, &err), &err);
    return p;
}

static void feed(const Plan *p, const char *name, const float *v, size_t n)
{
    memcpy(mpri_plan_value_data(p, mpri_plan_input(p, name)), v, n * sizeof *v);
}

static const float *output(const Plan *p, const char *name)
{
    return mpri_plan_value_data(p, mpri_plan_output(p, name));
}

static void test_small(void **state)
{
    (void)state;
    Plan *p = plan("graph {\n input x: f32[2,2]\n const w: f32[2,2] = [1,2,3,4]\n"
                   " h = MatMul(x, w) @ \"/mm\"\n r = Relu(h)\n const s: i64[1] = [-1]\n v = "
                   "Reshape(r, s)\n e = Neg(v)\n"
                   " output y = e\n output h = h\n}",
                   NULL);
    assert_int_equal(p->n_steps, 3); /* the view has none */
    assert_int_equal(p->segment_end[0], 3);
    assert_int_equal(p->segment_end[2], 3);
    assert_true(p->live_bound_bytes <= p->arena_bytes);
    feed(p, "x", (float[]){1, 0, 0, -1}, 4);
    int before = total;
    assert_ok(mpri_plan_run(p, -1, 1, 0, &err), &err);
    assert_int_equal(total, before); /* running allocates nothing */
    assert_memory_equal(output(p, "h"), ((float[]){1, 2, -3, -4}), 16);
    assert_memory_equal(output(p, "y"), ((float[]){-1, -2, -0.0f, -0.0f}), 16);
    assert_null(mpri_plan_output(p, "nothing"));
    /* Relu may not overwrite the output h, Neg may overwrite what Relu made, through the view */
    const PlanStep *relu = &p->steps[1], *neg = &p->steps[2];
    assert_true(relu->in_buffer[0] != relu->out_buffer[0]);
    assert_true(neg->in_buffer[0] == neg->out_buffer[0]);
    Text t;
    mpri_text_init(&t, NULL);
    assert_ok(mpri_plan_print(p, &t), &err);
    const char *words[] =
        {"3 steps", "MatMul",          "cpu.",   "f32[2,2]", "in place of input 0",
         "@ /mm",   "bytes per class", "forward"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(t.text, words[i])) fail_msg("no '%s' in\n%s", words[i], t.text);
    mpri_text_free(&t);
    mpri_plan_destroy(p);
}

static void test_segments_and_slots(void **state)
{
    (void)state;
    Plan *p = plan("graph {\n input x: f32[2]\n slot acc: f32[2] state init f16 [1,2]\n slot flag: "
                   "i32[] state init 1\n"
                   " y = Neg(x)\n --- backward\n g = Mul(y, y)\n --- update\n !AccumulateGrad(acc, "
                   "g, flag)\n output y = y\n}",
                   NULL);
    StoreSlot *acc = mpri_store_find(&store, "acc");
    assert_memory_equal(acc->data, ((float[]){1, 2}), 8);
    assert_int_equal(mpri_store_bytes(&store, SLOT_STATE), 12);
    feed(p, "x", (float[]){3, 4}, 2);
    for (int segment = SEG_FORWARD; segment <= SEG_UPDATE; segment++)
        assert_ok(mpri_plan_run(p, segment, 1, 0, &err), &err);
    assert_memory_equal(acc->data, ((float[]){10, 18}), 8);
    assert_ok(mpri_plan_run(p, SEG_UPDATE, 1, 0, &err), &err);
    assert_memory_equal(acc->data, ((float[]){19, 34}), 8);
    Plan *q = plan("graph {\n slot acc: f32[2] state\n y = Neg(acc)\n output y = y\n}", NULL);
    assert_ok(mpri_plan_run(q, -1, 1, 0, &err), &err);
    assert_memory_equal(output(q, "y"), ((float[]){-19, -34}), 8);
    mpri_plan_destroy(q);
    Arena a;
    Graph *g = parse(&a, "graph {\n slot acc: f16[2] state\n y = Neg(acc)\n output y = y\n}");
    assert_int_equal(mpri_plan_create(device, &store, g, a, NULL, &q, &err), MPR_E_INTERNAL);
    assert_non_null(strstr(err.message, "acc"));
    mpri_plan_destroy(p);
}

/* A view of a slot that is written afterwards keeps the values from before. */
static void test_view_of_a_written_slot(void **state)
{
    (void)state;
    Plan *p = plan("graph {\n input d: f32[2]\n slot w: f32[2] state init [1,2]\n slot flag: i32[] "
                   "state init 1\n"
                   " const s: i64[2] = [1,2]\n early = Reshape(w, s)\n !AccumulateGrad(w, d, "
                   "flag)\n late = Reshape(w, s)\n"
                   " n = Neg(early)\n output n = n\n output late = late\n output early = early\n}",
                   NULL);
    assert_int_equal(p->n_steps, 3); /* a copy, the write, Neg */
    feed(p, "d", (float[]){10, 20}, 2);
    assert_ok(mpri_plan_run(p, -1, 1, 0, &err), &err);
    assert_memory_equal(output(p, "n"), ((float[]){-1, -2}), 8);
    assert_memory_equal(output(p, "early"), ((float[]){1, 2}), 8);
    assert_memory_equal(output(p, "late"), ((float[]){11, 22}), 8);
    mpri_plan_destroy(p);
}

static void test_outputs_of_every_kind(void **state)
{
    (void)state;
    Plan *p =
        plan("graph {\n input x: f32[2]\n const c: f32[2] = [5,6]\n slot s: f32[1] state init [7]\n"
             " const shape: i64[2] = [2,1]\n v = Reshape(x, shape)\n output x = x\n output c = c\n "
             "output s = s\n output v = v\n}",
             NULL);
    assert_int_equal(p->n_steps, 0);
    feed(p, "x", (float[]){1, 2}, 2);
    assert_ok(mpri_plan_run(p, -1, 1, 0, &err), &err);
    assert_memory_equal(output(p, "v"), ((float[]){1, 2}), 8);
    assert_memory_equal(output(p, "c"), ((float[]){5, 6}), 8);
    assert_memory_equal(output(p, "s"), ((float[]){7}), 4);
    mpri_plan_destroy(p);
}

static void test_index_error(void **state)
{
    (void)state;
    Plan *p = plan("graph {\n input i: i64[2,3]\n const t: f32[4,1] = [0,1,2,3]\n y = Gather(t, i) "
                   "@ \"/emb\"\n output y = y\n}",
                   NULL);
    int64_t *i = mpri_plan_value_data(p, mpri_plan_input(p, "i"));
    memcpy(i, ((int64_t[]){0, 1, 2, 3, -4, 9}), 48);
    assert_int_equal(mpri_plan_run(p, -1, 1, 0, &err), MPR_E_INDEX);
    assert_error(MPR_E_INDEX, &err, "/emb", "Gather", "'i'", "value 9", "position 5", "row 1");
    mpri_err_clear(&err);
    i[5] = 0;
    assert_ok(mpri_plan_run(p, -1, 1, 0, &err), &err);
    mpri_plan_destroy(p);
}

static void test_refusals(void **state)
{
    (void)state;
    Plan *p = NULL;
    Arena a;
    Graph *g = parse(&a, "graph {\n input x: f32[2]\n a: f32[2] = com.acme:Foo(x) @ \"one\"\n b: "
                         "f32[2] = com.acme:Bar(a) @ \"two\"\n output b = b\n}");
    assert_int_equal(mpri_plan_create(device, &store, g, a, NULL, &p, &err), MPR_E_UNSUPPORTED_OP);
    assert_error(MPR_E_UNSUPPORTED_OP, &err, "one", "com.acme:Foo", "two", "com.acme:Bar");
    assert_int_equal(err.findings, 2);
    mpri_err_clear(&err);
    g = parse(&a, "graph {\n input x: f32[batch]\n y = Neg(x)\n output y = y\n}");
    assert_int_equal(mpri_plan_create(device, &store, g, a, NULL, &p, &err), MPR_E_SHAPE);
    assert_error(MPR_E_SHAPE, &err, "'x'");
    mpri_err_clear(&err);
    g = parse(&a, "graph {\n input x: f32[4000000000,4000000000]\n output y = x\n}");
    assert_int_equal(mpri_plan_create(device, &store, g, a, NULL, &p, &err), MPR_E_LIMIT);
    mpri_err_clear(&err);
    g = parse(&a, "graph {\n input x: f32[2]\n --- backward\n y = Neg(x)\n --- forward\n z = "
                  "Neg(x)\n output z = z\n output y = y\n}");
    assert_int_equal(mpri_plan_create(device, &store, g, a, NULL, &p, &err), MPR_E_INTERNAL);
    mpri_err_clear(&err);
}

static void test_shared_memory(void **state)
{
    (void)state;
    static const char text[] = "graph {\n input x: f32[8]\n a = Exp(x)\n b = Neg(a)\n c = Add(a, "
                               "b)\n output c = c\n output b = b\n}";
    Plan *p = plan(text, NULL), *q = plan(text, NULL);
    void *memory;
    assert_ok(device->mem_alloc(device, p->arena_bytes, &memory, &err), &err);
    assert_ok(mpri_plan_bind_memory(p, memory, &err), &err);
    assert_ok(mpri_plan_bind_memory(q, memory, &err), &err);
    feed(q, "x", (float[8]){0}, 8);
    assert_ok(mpri_plan_run(q, -1, 1, 0, &err), &err);
    assert_true(output(q, "b")[3] == -1.0f && output(q, "c")[0] == 0.0f);
    assert_ptr_equal(output(p, "b"), output(q, "b"));
    assert_ok(mpri_plan_bind_memory(q, NULL, &err), &err); /* back to its own */
    mpri_plan_destroy(p);
    mpri_plan_destroy(q);
    device->mem_free(device, memory);
}

static void test_null_device(void **state)
{
    (void)state;
    Device *null;
    Store s;
    Arena a;
    Plan *p;
    assert_ok(mpri_device_null(&counting, &null, &err), &err);
    assert_ok(mpri_store_init(&s, null, &err), &err);
    Graph *g = parse(&a, "graph {\n input x: f32[8]\n a = Exp(x)\n b = Neg(a)\n output b = b\n}");
    assert_ok(mpri_plan_create(null, &s, g, a, NULL, &p, &err), &err);
    assert_ok(mpri_plan_bind_memory(p, NULL, &err), &err);
    assert_ok(mpri_plan_run(p, -1, 1, 0, &err), &err);
    assert_int_equal(null->launches, 2);
    mpri_plan_destroy(p);
    mpri_store_destroy(&s);
    mpri_device_destroy(null);
}

static void test_eval_node(void **state)
{
    (void)state;
    Arena a;
    Graph *g = parse(&a, "graph {\n const t: f32[3,2] = [0,1,2,3,4,5]\n const i: i64[1] = [7]\n y "
                         "= Gather(t, i) @ \"/g\"\n output y = y\n}");
    KernelSet ref;
    ref.tables = mpri_ref_tables(&ref.n);
    float table[] = {0, 1, 2, 3, 4, 5};
    int64_t index = 2;
    Tensor in[2] = {{.data = table, .dtype = MPR_FLOAT32, .rank = 2, .dims = {3, 2}, .n = 6},
                    {.data = &index, .dtype = MPR_INT64, .rank = 1, .dims = {1}, .n = 1}},
           out;
    assert_ok(mpri_eval_node(&ref, g->first, in, &out, &a, &err), &err);
    assert_memory_equal(out.data, ((float[]){4, 5}), 8);
    index = 7;
    assert_int_equal(mpri_eval_node(&ref, g->first, in, &out, &a, &err), MPR_E_INDEX);
    assert_error(MPR_E_INDEX, &err, "/g", "7");
    mpri_err_clear(&err);
    mpri_arena_destroy(&a);
}

/* ---- random graphs ---- */

typedef struct Gen { /* statements so far; shape 0: [4,6], shape 1: [6,4], shape 2: [24] */
    Text t;
    int shape[64], n;
    uint64_t seed, draw;
} Gen;

static uint64_t draw(Gen *g, uint64_t n)
{
    return mpri_rng_below(g->seed, 5, g->draw++, n);
}

static int pick(Gen *g, int shape)
{
    for (int tries = 0; tries < 20; tries++) {
        int i = g->n - 1 -
                (int)draw(g, (uint64_t)(g->n < 6 ? g->n : 6)); /* recent ones: buffers die early */
        if (g->shape[i] == shape) return i;
    }
    for (int i = 0; i < g->n; i++)
        if (g->shape[i] == shape) return i;
    return -1;
}

static void statement(Gen *g)
{
    static const char *const unary[] = {"Neg", "Relu", "Tanh", "Softmax", "Identity"};
    static const char *const binary[] = {"Add", "Mul", "Sub", "Max"};
    int x = g->n - 1 - (int)draw(g, (uint64_t)(g->n < 5 ? g->n : 5)), shape = g->shape[x], y;
    switch (draw(g, 7)) {
    case 0:
    case 1: mpri_text_add(&g->t, " v%d = %s(v%d)\n", g->n, unary[draw(g, 5)], x); break;
    case 2:
    case 3:
        y = pick(g, shape);
        mpri_text_add(&g->t, " v%d = %s(v%d, v%d)\n", g->n, binary[draw(g, 4)], x, y);
        break;
    case 4: {
        int to = (int)draw(g, 3);
        mpri_text_add(&g->t, " v%d = Reshape(v%d, s%d)\n", g->n, x, to);
        shape = to;
        break;
    }
    case 5:
        mpri_text_add(&g->t, " v%d = Transpose(v%d)\n", g->n, x);
        if (shape < 2) shape = 1 - shape;
        break;
    default:
        y = pick(g, shape);
        mpri_text_add(&g->t, " v%d = SoftmaxGrad(v%d, v%d)\n", g->n, x, y);
        break;
    }
    g->shape[g->n++] = shape;
}

static char *random_graph(uint64_t seed)
{
    Gen g = {.seed = seed};
    mpri_text_init(&g.t, NULL);
    mpri_text_put(&g.t,
                  "graph {\n input v0: f32[4,6]\n param v1: f32[6,4]\n const v2: f32[24] = "
                  "splat(0.5)\n"
                  " const s0: i64[2] = [4,6]\n const s1: i64[2] = [6,4]\n const s2: i64[1] = [24]\n"
                  " slot flag: i32[] state init 1\n");
    g.n = 3;
    g.shape[1] = 1;
    g.shape[2] = 2;
    int n = 5 + (int)draw(&g, 40), n_outputs = 1 + (int)draw(&g, 3);
    for (int i = 0; i < n; i++) statement(&g);
    int y = pick(&g, 1);
    mpri_text_add(&g.t, " !AccumulateGrad(v1, v%d, flag)\n", y);
    for (int i = 0; i < 6; i++) statement(&g);
    for (int i = 0; i < n_outputs; i++)
        mpri_text_add(&g.t, " output o%d = v%d\n", i, g.n - 1 - (int)draw(&g, (uint64_t)g.n));
    mpri_text_put(&g.t, "}\n");
    assert_false(g.t.failed);
    return g.t.text;
}

static void run_random(const char *text, uint64_t seed, bool keep_all, Text *bytes)
{
    PlanOptions o = {.keep_all = keep_all, .kernels = "ref"};
    Store s;
    Plan *p;
    Arena a;
    assert_ok(mpri_store_init(&s, device, &err), &err);
    Graph *g = parse(&a, text);
    assert_ok(mpri_plan_create(device, &s, g, a, &o, &p, &err), &err);
    assert_ok(mpri_plan_bind_memory(p, NULL, &err), &err);
    memset(p->memory, 0xA5, p->arena_bytes);
    float v[24];
    for (int i = 0; i < 24; i++) v[i] = (float)mpri_rng_normal(seed, 1, (uint64_t)i);
    feed(p, "v0", v, 24);
    memcpy(mpri_store_find(&s, "v1")->data, v, sizeof v);
    assert_ok(mpri_plan_run(p, -1, 1, 0, &err), &err);
    for (int i = 0; i < p->graph->n_outputs; i++)
        mpri_text_bytes(bytes, output(p, p->graph->outputs[i].name), sizeof v);
    mpri_text_bytes(bytes, mpri_store_find(&s, "v1")->data, sizeof v);
    if (!keep_all) assert_true(p->arena_bytes >= p->live_bound_bytes);
    mpri_plan_destroy(p);
    mpri_store_destroy(&s);
}

static void test_random_graphs(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 400; seed++) {
        char *text = random_graph(seed);
        Text shared, own;
        mpri_text_init(&shared, NULL);
        mpri_text_init(&own, NULL);
        run_random(text, seed, false, &shared);
        run_random(text, seed, true, &own);
        assert_int_equal(shared.len, own.len);
        if (memcmp(shared.text, own.text, own.len))
            fail_msg("seed %d differs:\n%s", (int)seed, text);
        mpri_text_free(&shared);
        mpri_text_free(&own);
        mpri_free(mpri_alloc_default(), text);
    }
}

/* Every allocation of planning may fail: an error, nothing leaked. */
static void test_no_memory(void **state)
{
    (void)state;
    char *text = random_graph(3);
    int ok = 0;
    for (size_t limit = 1000; limit < 600000; limit += limit / 6) {
        Arena a;
        Graph *g = NULL;
        Plan *p = NULL;
        mpri_arena_init(&a, &counting, limit);
        Intern *names = mpri_intern_create(&a);
        if (!names || mpri_graph_parse(text, &a, names, mpri_op_table(), &g, &err) != MPR_OK) {
            mpri_arena_destroy(&a);
        } else if (mpri_plan_create(device, &store, g, a, NULL, &p, &err) == MPR_OK) {
            ok++;
        } else {
            assert_int_equal(err.code, MPR_E_NOMEM);
        }
        mpri_err_clear(&err);
        mpri_plan_destroy(p);
    }
    assert_true(ok > 0);
    mpri_free(mpri_alloc_default(), text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_small),
        T(test_segments_and_slots),
        T(test_view_of_a_written_slot),
        T(test_outputs_of_every_kind),
        T(test_index_error),
        T(test_refusals),
        T(test_shared_memory),
        T(test_null_device),
        T(test_eval_node),
        T(test_random_graphs),
        T(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
