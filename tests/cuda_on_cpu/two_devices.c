/* What the CPU does and what the CUDA device does, where they meet or could part: checkpoints of one go on on the
 * other, tied weights, a weight that only its 16-bit copy cannot hold, scales and optimizers of the caller's choice. */
#include "tests/train/net.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime/train/prepare.h"
#include "tests/cuda_on_cpu/control.h"
#include "tests/train/digits.h"

enum { CPU, CUDA, DEVICES, STEPS = 24 };

static void use(int device)
{
    assert_int_equal(setenv("MPR_TEST_DEVICE", device == CUDA ? "cuda" : "cpu", 1), 0);
}

/* A step as far as it is the same on every device, and the loss, which is near. */
typedef struct Step {
    mpr_step_outcome outcome;
    bool window_open;
    float scale, loss;
    double rate;
    char bad[200];
} Step;

static void note(Step *t, const mpr_step_result *r)
{
    *t = (Step){r->outcome, r->window_open, r->scale, r->loss, r->learning_rate, ""};
    if (r->first_bad) snprintf(t->bad, sizeof t->bad, "%s", r->first_bad);
}

static bool near(float a, float b, float share)
{
    return fabsf(a - b) <= share * (1 + fabsf(a)) || (!isfinite(a) && !isfinite(b));
}

static void same_steps(const Step *a, const Step *b, int n, float share)
{
    for (int i = 0; i < n; i++) {
        bool same = a[i].outcome == b[i].outcome && a[i].window_open == b[i].window_open && a[i].scale == b[i].scale &&
                    a[i].rate == b[i].rate && near(a[i].loss, b[i].loss, share);
        if (!same)
            fail_msg("step %d: outcome %d %d, scale %g %g, loss %g %g", i, (int)a[i].outcome, (int)b[i].outcome,
                     (double)a[i].scale, (double)b[i].scale, (double)a[i].loss, (double)b[i].loss);
        assert_string_equal(a[i].bad, b[i].bad);
    }
}

static void near_floats(const float *a, const float *b, int n, float share)
{
    for (int i = 0; i < n; i++)
        if (!near(a[i], b[i], share)) fail_msg("element %d: %g %g", i, (double)a[i], (double)b[i]);
}

static int count(const Step *a, int n, mpr_step_outcome what)
{
    int found = 0;
    for (int i = 0; i < n; i++) found += a[i].outcome == what && !a[i].window_open;
    return found;
}

/* ---- checkpoints ---- */

typedef DigitsLoop Loop;

static void loop_open(Loop *l, Digits *d, int device, mpr_dtype low)
{
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p22f, .growth_interval = 3};
    use(device);
    digits_open(d, 1);
    digits_loop_open(l, d, &(DigitsLoopOptions){.autocast = low, .batch = 64, .scaler = low ? &so : NULL});
}

static void loop_close(Loop *l)
{
    digits_loop_close(l);
    digits_close(l->d);
}

/* t NULL: nobody asks. */
static void batches(Loop *l, int n, Step *t)
{
    for (int i = 0; i < n; i++) {
        bool more;
        mpr_step_result r = {0};
        assert_call(mpr_prepared_next(l->p, &more), l->p);
        assert_call(mpr_prepared_backward(l->p, NULL), l->p);
        assert_call(mpr_prepared_step(l->p, t ? &r : NULL), l->p);
        if (t) note(&t[i], &r);
    }
}

/* Where a loop stands. */
typedef struct End {
    int64_t at[4];
    char *scaler;
    float w[128 * 64];
} End;

static void end_of(Loop *l, End *e)
{
    assert_call(mpr_prepared_position(l->p, &e->at[0], &e->at[1], &e->at[2], &e->at[3]), l->p);
    e->scaler = NULL;
    if (l->p->scaler) assert_call(mpr_scaler_save(l->p->scaler, &e->scaler), l->p->scaler);
    digits_weight(l->s, e->w);
}

static void same_end(Loop *a, Loop *b, float share)
{
    static End x, y;
    end_of(a, &x);
    end_of(b, &y);
    assert_memory_equal(x.at, y.at, sizeof x.at);
    if (x.scaler) assert_string_equal(x.scaler, y.scaler);
    near_floats(x.w, y.w, 128 * 64, share);
    mpr_free_text(a->d->ctx, x.scaler);
    mpr_free_text(b->d->ctx, y.scaler);
}

/* All but the name of the kernels, and the checksum with it. */
static void same_files(const char *a, const char *b)
{
    static const char *const names[] = {"state.json", "model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 3; i++) {
        char command[600];
        snprintf(command, sizeof command,
                 "for d in %s %s; do sed 's/\"cpu_kernel\": \"[^\"]*\"//; /\"xxh128\":/d' $d/%s | cksum; done | uniq | "
                 "wc -l | grep -qx 1", a, b, names[i]);
        assert_int_equal(system(command), 0);
    }
}

/* Saved on one device after `cut` micro-batches and loaded on the other: nothing is lost on the way, and it goes on
 * as the first one does. */
static void goes_on(int from, mpr_dtype low, int cut)
{
    static Step here[STEPS], there[STEPS];
    char saved[64], again[64];
    Digits da, db;
    Loop a, b;
    snprintf(saved, sizeof saved, "/tmp/mpr-from-%ld", (long)getpid());
    snprintf(again, sizeof again, "/tmp/mpr-to-%ld", (long)getpid());
    loop_open(&a, &da, from, low);
    batches(&a, cut, NULL);
    assert_call(mpr_prepared_save(a.p, saved), a.p);
    loop_open(&b, &db, from == CPU ? CUDA : CPU, low);
    batches(&b, 5, NULL); /* somewhere else */
    assert_call(mpr_prepared_load(b.p, saved), b.p);
    assert_call(mpr_prepared_save(b.p, again), b.p);
    same_files(saved, again);
    same_end(&a, &b, 0);
    batches(&a, STEPS, here);
    batches(&b, STEPS, there);
    same_steps(here, there, STEPS, low ? 2e-2f : 1e-4f);
    same_end(&a, &b, low ? 2e-2f : 1e-3f);
    if (low && cut < 6) assert_true(count(here, STEPS, MPR_STEP_SKIPPED) > 1);
    loop_close(&a);
    loop_close(&b);
    test_remove_folder(saved);
    test_remove_folder(again);
    assert_int_equal(shim_counts()->live, 0);
}

static void checkpoints(void **state)
{
    (void)state;
    static const int cuts[] = {4, 21, 22, 44}; /* inside windows, at a step, around the epoch's end (22 batches) */
    for (int from = 0; from < DEVICES; from++)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
            goes_on(from, MPR_FLOAT16, cuts[i]);
            goes_on(from, MPR_DTYPE_NONE, cuts[i]);
        }
}

/* ---- tied weights ---- */

enum { WORDS = 12, WIDE = 8 };

/* An embedding and a head that share w: one initializer read twice, or two with the same bits. */
static LittleModel tied(bool copy)
{
    LittleModel m = {.nodes = {{"Gather", "/embed", "w ids", "h", NULL},
                               {"MatMul", "/mix", "h m", "g", NULL},
                               {"Transpose", "/turn", copy ? "w2" : "w", "t", NULL},
                               {"MatMul", "/head", "g t", "y", NULL}},
                     .tensors = {{"w", {WORDS, WIDE, -1}, 0, 0.5f}, {"m", {WIDE, WIDE, -1}, 0, 0.4f}},
                     .inputs = {{"ids", MPR_INT64, {-1, -99}}},
                     .output = "y"};
    if (copy) m.tensors[2] = (LittleTensor){"w2", {WORDS, WIDE, -1}, 0, 0.5f};
    return m;
}

static void open_model(Net *n, int device, const LittleModel *m, mpr_dtype low, const char *loss)
{
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = device == CUDA ? "cuda" : "cpu"};
    mpr_session_options o = {.size = sizeof o, .autocast = low, .loss = loss};
    *n = (Net){0};
    assert_int_equal(mpr_context_create(&co, &n->ctx), MPR_OK);
    assert_call(mpr_model_load(n->ctx, test_little_file("t.onnx", m), NULL, &n->model), n->ctx);
    assert_call(mpr_session_open(n->model, &o, &n->s), n->model);
}

static void train_tied(int device, bool copy, mpr_dtype low, Step *t, float *w)
{
    LittleModel m = tied(copy);
    mpr_adamw ad = {.size = sizeof ad, .learning_rate = 2e-2};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 0x1p24f, .growth_interval = 4};
    mpr_prepare_options po = {.size = sizeof po, .max_grad_norm = 1, .scaler = low == MPR_FLOAT16 ? &so : NULL};
    mpr_prepared *p;
    Net n;
    open_model(&n, device, &m, low, "cross-entropy");
    assert_int_equal(mpr_session_parameter_count(n.s), 2);
    assert_call(mpr_optimizer_adamw(n.s, &ad, &n.opt), n.s);
    assert_call(mpr_prepare(n.s, n.opt, NULL, NULL, &po, &p), n.s);
    for (int i = 0; i < STEPS; i++) {
        int64_t ids[6], labels[6], shape[1] = {6};
        mpr_step_result r = {0};
        for (int k = 0; k < 6; k++) ids[k] = (i + 5 * k) % WORDS, labels[k] = (ids[k] + 1) % WORDS;
        assert_call(mpr_session_bind(n.s, "ids", ids, MPR_INT64, shape, 1), n.s);
        assert_call(mpr_session_bind(n.s, "labels", labels, MPR_INT64, shape, 1), n.s);
        assert_call(mpr_prepared_backward(p, NULL), p);
        assert_call(mpr_prepared_step(p, &r), p);
        note(&t[i], &r);
    }
    assert_call(mpr_session_parameter_get(n.s, "w", w, WORDS * WIDE), n.s);
    mpr_prepared_destroy(p);
    close_net(&n);
}

static void tied_weights(void **state)
{
    (void)state;
    static const mpr_dtype types[] = {MPR_DTYPE_NONE, MPR_FLOAT16, MPR_BFLOAT16};
    for (int k = 0; k < 6; k++) {
        Step t[DEVICES][STEPS];
        float w[DEVICES][WORDS * WIDE];
        mpr_dtype low = types[k / 2];
        for (int device = 0; device < DEVICES; device++) train_tied(device, k % 2, low, t[device], w[device]);
        same_steps(t[CPU], t[CUDA], STEPS, low ? 2e-2f : 1e-4f);
        near_floats(w[CPU], w[CUDA], WORDS * WIDE, low ? 3e-2f : 1e-3f);
        assert_true(t[CUDA][STEPS - 1].loss < 0.7f * t[CUDA][0].loss);
        if (low == MPR_FLOAT16) assert_true(count(t[CUDA], STEPS, MPR_STEP_SKIPPED) > 0);
    }
    assert_int_equal(shim_counts()->live, 0);
}

/* ---- a weight of 65600: good in float32, infinite in float16 ---- */

static void bind_little(Net *n)
{
    bind_rows(n, 0, N, 1);
}

/* Steps 0-3 are good ones, 4 moves the weight over the edge, from 5 to 9 every step is skipped, then the weight is
 * set to a half. */
static void train_large(int device, Step *t, float *w)
{
    mpr_sgd sgd = {.size = sizeof sgd, .learning_rate = 1};
    mpr_scaler_options so = {.size = sizeof so, .init_scale = 8, .min_scale = 0x1p-4f, .growth_interval = 100};
    mpr_prepare_options po = {.size = sizeof po, .scaler = &so};
    mpr_prepared *p;
    LittleModel m = linear(1e-3f);
    Net n;
    float large[D * D] = {0};
    open_model(&n, device, &m, MPR_FLOAT16, "mse");
    assert_call(mpr_optimizer_sgd(n.s, &sgd, &n.opt), n.s);
    assert_call(mpr_prepare(n.s, n.opt, NULL, NULL, &po, &p), n.s);
    large[5] = 65400;
    assert_call(mpr_session_parameter_set(n.s, "w1", large, D * D), n.s);
    for (int i = 0; i < 14; i++) {
        mpr_step_result r = {0};
        float g[D * D] = {0};
        bind_little(&n);
        if (i == 10) large[5] = 0.5f;
        if (i == 10) assert_call(mpr_session_parameter_set(n.s, "w1", large, D * D), n.s);
        assert_call(mpr_prepared_backward(p, NULL), p);
        if (i < 5) { /* the scale is 8 */
            assert_call(mpr_session_gradient_set(n.s, "w2", g, D * D), n.s);
            g[5] = i == 4 ? -200 * 8 : 0;
            assert_call(mpr_session_gradient_set(n.s, "w1", g, D * D), n.s);
        }
        assert_call(mpr_prepared_step(p, &r), p);
        note(&t[i], &r);
        if (i == 4) assert_call(mpr_session_parameter_get(n.s, "w1", g, D * D), n.s);
        if (i == 4) assert_true(g[5] == 65600);
    }
    weights(&n, w);
    mpr_prepared_destroy(p);
    close_net(&n);
}

static void a_weight_too_large_for_16_bits(void **state)
{
    (void)state;
    Step t[DEVICES][14];
    float w[DEVICES][2 * D * D];
    for (int device = 0; device < DEVICES; device++) train_large(device, t[device], w[device]);
    same_steps(t[CPU], t[CUDA], 14, 1e-2f);
    near_floats(w[CPU], w[CUDA], 2 * D * D, 1e-2f);
    for (int i = 0; i < 14; i++) {
        bool skipped = i > 4 && i < 10;
        assert_int_equal(t[CUDA][i].outcome, skipped ? MPR_STEP_SKIPPED : MPR_STEP_UPDATED);
    }
    assert_non_null(strstr(t[CUDA][5].bad, "(cast to float16): tensor 'w1' is inf at element 5"));
    assert_non_null(strstr(t[CUDA][5].bad, "inputs: 'w1' 0 to 65600"));
    assert_true(t[CUDA][13].scale == 0.25f);
    assert_int_equal(shim_counts()->live, 0);
}

/* ---- what the caller chooses ---- */

/* A constant scale that is no power of two; an optimizer for each matrix, whose loops take turns. */
static void train_turns(int device, Step *t, float *w)
{
    static const char *const first[] = {"w1", NULL}, *const second[] = {"w2", NULL};
    mpr_sgd a = {.size = sizeof a, .learning_rate = 0.5, .momentum = 0.9, .parameters = first};
    mpr_adamw b = {.size = sizeof b, .learning_rate = 1e-2, .parameters = second};
    mpr_scaler_options constant = {.size = sizeof constant, .init_scale = 1000, .constant = true};
    mpr_scaler_options moving = {.size = sizeof moving, .init_scale = 0x1p24f, .growth_interval = 2};
    mpr_prepare_options po[2] = {{.size = sizeof *po, .max_grad_norm = 1, .scaler = &constant},
                                 {.size = sizeof *po, .gradient_accumulation_steps = 2, .scaler = &moving}};
    mpr_optimizer *opt[2];
    mpr_prepared *p[2];
    LittleModel m = linear(0.5f);
    Net n;
    open_model(&n, device, &m, MPR_FLOAT16, "mse");
    assert_call(mpr_optimizer_sgd(n.s, &a, &opt[0]), n.s);
    assert_call(mpr_optimizer_adamw(n.s, &b, &opt[1]), n.s);
    for (int k = 0; k < 2; k++) assert_call(mpr_prepare(n.s, opt[k], NULL, NULL, &po[k], &p[k]), n.s);
    for (int i = 0; i < STEPS; i++) {
        float before[2 * D * D], after[2 * D * D];
        int k = i / 4 % 2; /* each has four batches */
        mpr_step_result r = {0};
        weights(&n, before);
        bind_little(&n);
        assert_call(mpr_prepared_backward(p[k], NULL), p[k]);
        assert_call(mpr_prepared_step(p[k], &r), p[k]);
        note(&t[i], &r);
        weights(&n, after);
        assert_memory_equal(before + (1 - k) * D * D, after + (1 - k) * D * D, D * D * sizeof(float));
    }
    weights(&n, w);
    for (int k = 0; k < 2; k++) mpr_prepared_destroy(p[k]);
    for (int k = 0; k < 2; k++) mpr_optimizer_destroy(opt[k]);
    close_net(&n);
}

static void two_loops_take_turns(void **state)
{
    (void)state;
    Step t[DEVICES][STEPS];
    float w[DEVICES][2 * D * D];
    for (int device = 0; device < DEVICES; device++) train_turns(device, t[device], w[device]);
    same_steps(t[CPU], t[CUDA], STEPS, 1e-2f);
    near_floats(w[CPU], w[CUDA], 2 * D * D, 1e-2f);
    assert_true(t[CUDA][0].scale == 1000 && t[CUDA][STEPS - 8].scale == 1000);
    assert_true(count(t[CUDA], STEPS, MPR_STEP_SKIPPED) > 0);
    assert_int_equal(shim_counts()->live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints),
        cmocka_unit_test(tied_weights),
        cmocka_unit_test(a_weight_too_large_for_16_bits),
        cmocka_unit_test(two_loops_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
