/* The prepared loop where the host looks late: one graph a step, nothing read before the next
 * step is given, nothing allocated; and every number, word and bit as if the host had looked all the time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/train/dataset.h"
#include "runtime/train/prepare.h"
#include "tests/cuda_on_cpu/trail.h"

/* On the CPU; on the device with a look at every result; late, as graphs; late, kernel by kernel. */
typedef enum Way { ON_CPU, ASKED, LATE, ONE_BY_ONE, WAYS } Way;

typedef struct Setup {
    int window, batch, steps;
    float scale;        /* 0: 1024 */
    int growth, most_skips;
    bool constant;
    bool norm;          /* the model with running statistics */
    bool interrupts;    /* somebody asks for this and that on the way */
    bool wrong;         /* a label that the model has no class for */
    bool own;           /* batches are bound by hand */
    int64_t epochs;
} Setup;

typedef struct Loop {
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_dataset *data;
    mpr_schedule *schedule;
    mpr_prepared *p;
    Trail *trail;
} Loop;

static mpr_status stepped(void *user, int64_t step, const mpr_step_result *r, mpr_status status, Err *err)
{
    Loop *l = user;
    (void)err;
    if (!l->trail || l->trail->n == MOST) return status;
    Told *t = &l->trail->told[l->trail->n++];
    *t = (Told){step,         l->p->updates, r->outcome,       r->loss,
                r->grad_norm, r->scale,      r->learning_rate, ""};
    if (r->first_bad && l->p->updates) snprintf(t->bad, sizeof t->bad, "%s", r->first_bad);
    return status;
}

static void spoil_label(mpr_dataset *d)
{
    for (int i = 0; i < d->n_arrays; i++)
        if (d->arrays[i].t.dtype == MPR_INT64) ((int64_t *)(uintptr_t)d->arrays[i].t.data)[83] = 77;
}

/* The first status that is not MPR_OK. */
static mpr_status try_open(Loop *l, const Setup *u, Way way)
{
    mpr_context_options co = {.size = sizeof co, .threads = 1, .device = way == ON_CPU ? "cpu" : "cuda"};
    mpr_session_options so = {
        .size = sizeof so, .autocast = MPR_FLOAT16, .loss = "cross-entropy", .bn_train = u->norm};
    mpr_adamw ad = {.size = sizeof ad, .learning_rate = 1e-2};
    mpr_dataset_options dd = {.size = sizeof dd, .batch_size = u->batch, .shuffle = true, .seed = 5};
    mpr_schedule_options sd = {.size = sizeof sd, .warmup_steps = 8, .total_steps = 60};
    mpr_scaler_options sc = {.size = sizeof sc,
                             .init_scale = u->scale > 0 ? u->scale : 1024,
                             .max_scale = INFINITY,
                             .growth_interval = u->growth,
                             .constant = u->constant,
                             .max_consecutive_skips = u->most_skips};
    mpr_prepare_options po = {.size = sizeof po,
                              .gradient_accumulation_steps = u->window,
                              .max_grad_norm = 0.5f,
                              .scaler = &sc,
                              .epochs = u->epochs};
    char model[600], rows[600];
    snprintf(model, sizeof model, "%s", test_data(u->norm ? "batch_norm/model.onnx" : "digits/model_ts.onnx"));
    snprintf(rows, sizeof rows, "%s", test_data(u->norm ? "batch_norm/train.npz" : "digits/train.npz"));
    const char *files[] = {rows};
    *l = (Loop){.ctx = NULL};
    mpr_status st = mpr_context_create(&co, &l->ctx);
    if (st == MPR_OK) st = mpr_model_load(l->ctx, model, NULL, &l->model);
    if (st == MPR_OK) st = mpr_session_open(l->model, &so, &l->s);
    if (st == MPR_OK) st = mpr_optimizer_adamw(l->s, &ad, &l->opt);
    if (st == MPR_OK) st = mpr_dataset_open(l->s, files, 1, &dd, &l->data);
    if (st == MPR_OK) st = mpr_schedule_create(l->s, &sd, &l->schedule);
    if (st == MPR_OK) st = mpr_prepare(l->s, l->opt, u->own ? NULL : l->data, l->schedule, &po, &l->p);
    if (st != MPR_OK) return st;
    if (u->wrong) spoil_label(l->data);
    if (way == ONE_BY_ONE) l->s->device->graphs = false;
    return MPR_OK;
}

static void close_loop(Loop *l)
{
    mpr_prepared_destroy(l->p);
    mpr_schedule_destroy(l->schedule);
    mpr_dataset_close(l->data);
    mpr_optimizer_destroy(l->opt);
    mpr_session_close(l->s);
    mpr_model_destroy(l->model);
    mpr_context_destroy(l->ctx);
}

/* Calls that ask for something, at odd places. */
static void interrupt(Loop *l, int i)
{
    float w[10];
    int64_t steps, updates;
    mpr_tensor logits;
    if (i % 7 == 2)
        assert_call(mpr_prepared_position(l->p, NULL, NULL, &steps, &updates), l->p);
    if (i % 7 == 3) assert_call(mpr_session_parameter_get(l->s, "net.4.bias", w, 10), l->s);
    if (i % 7 == 5) assert_call(mpr_session_gradient_get(l->s, "net.4.bias", w, 10), l->s);
    if (i % 7 == 6) assert_call(mpr_session_output(l->s, "logits", &logits), l->s);
}

/* Micro-batch number k by hand: rows in their order. */
static mpr_status bind_own(Loop *l, int64_t k, int64_t rows)
{
    mpr_status st = MPR_OK;
    for (int i = 0; i < l->data->n_arrays && st == MPR_OK; i++) {
        const DataArray *a = &l->data->arrays[i];
        int64_t dims[8], from = k * rows % (l->data->rows - rows);
        memcpy(dims, a->t.dims, sizeof dims);
        dims[0] = rows;
        st = mpr_session_bind(l->s, a->input->name, (const char *)a->t.data + (size_t)from * a->row_bytes,
                              a->t.dtype, dims, a->t.rank);
    }
    l->p->bound_rows = rows;
    return st;
}

/* One window; *more is false when the data are at their end. */
static mpr_status try_step(Loop *l, const Setup *u, Way way, bool *more)
{
    mpr_step_result r;
    bool asks = way == ASKED || way == ON_CPU;
    mpr_status st = MPR_OK;
    int64_t before = l->p->steps;
    int micro = 0;
    do {
        float loss;
        *more = true;
        st = u->own ? bind_own(l, l->p->batch, u->batch) : mpr_prepared_next(l->p, more);
        if (st != MPR_OK || !*more) return st;
        if (u->interrupts) interrupt(l, (int)before * 5 + micro++);
        st = mpr_prepared_backward(l->p, asks ? &loss : NULL);
        if (u->interrupts && st == MPR_OK) interrupt(l, (int)before * 3 + 4 * micro);
        if (st == MPR_OK) st = mpr_prepared_step(l->p, asks ? &r : NULL);
    } while (st == MPR_OK && l->p->micro);
    return st;
}

static void read_statistics(Loop *l, Trail *t)
{
    int at = 0;
    for (int i = 0; i < l->s->n_buffers; i++) {
        const StoreSlot *slot = mpri_store_find(&l->s->store, l->s->buffers[i].slot);
        Err err;
        mpri_err_clear(&err);
        if (at + l->s->buffers[i].n > STATISTICS) continue;
        assert_int_equal(l->s->device->copy_out(l->s->device, t->statistics + at, slot->data, slot->bytes, &err),
                         MPR_OK);
        at += (int)l->s->buffers[i].n;
    }
}

static void run(const Setup *u, Way way, Trail *t)
{
    Loop l;
    char *text;
    bool more = true;
    memset(t, 0, sizeof *t);
    assert_int_equal(try_open(&l, u, way), MPR_OK);
    l.trail = t;
    l.p->sink = (PreparedSink){&l, NULL, stepped};
    for (int i = 0; i < u->steps && t->status == MPR_OK && more; i++) t->status = try_step(&l, u, way, &more);
    if (t->status == MPR_OK) t->status = mpr_prepared_position(l.p, NULL, NULL, NULL, NULL);
    if (t->status != MPR_OK) snprintf(t->error, sizeof t->error, "%s", mpr_last_error(l.p).message);
    assert_call(mpr_prepared_position(l.p, &t->epoch, &t->batch, &t->steps, &t->updates), l.p);
    if (!u->norm) assert_call(mpr_session_parameter_get(l.s, "net.0.weight", t->w, WEIGHTS), l.s);
    else read_statistics(&l, t);
    assert_call(mpri_scaler_save(l.p->scaler, &text, &l.p->h.err), l.p);
    snprintf(t->scaler, sizeof t->scaler, "%s", text);
    mpri_free(&l.ctx->alloc, text);
    close_loop(&l);
    assert_int_equal(shim_counts()->live, 0);
    assert_string_equal(shim_report(), "");
}

/* What is the CPU's exactly: outcomes, scales, rates, counts; the rest is near. */
static void same_way(const Trail *cpu, const Trail *b)
{
    assert_int_equal(cpu->n, b->n);
    for (int i = 0; i < cpu->n; i++) {
        const Told *x = &cpu->told[i], *y = &b->told[i];
        assert_true(x->step == y->step && x->outcome == y->outcome && x->updates == y->updates);
        assert_true(x->scale == y->scale && x->rate == y->rate);
        assert_true(isfinite(x->norm) == isfinite(y->norm) && isfinite(x->loss) == isfinite(y->loss));
        if (isfinite(x->loss)) assert_true(fabsf(x->loss - y->loss) < 0.02f * (1 + fabsf(x->loss)));
    }
    assert_int_equal(cpu->status, b->status);
    assert_memory_equal(&cpu->epoch, &b->epoch, 4 * sizeof cpu->epoch);
    assert_string_equal(cpu->scaler, b->scaler);
}

static Trail trail[WAYS];

static void all_ways(const Setup *u)
{
    for (int way = 0; way < WAYS; way++) run(u, (Way)way, &trail[way]);
    same_bits(&trail[ASKED], &trail[LATE]);
    same_bits(&trail[ASKED], &trail[ONE_BY_ONE]);
    same_way(&trail[ON_CPU], &trail[LATE]);
}

/* A search for the scale, skips in the middle, clipping, a warm-up; windows of one and of several. */
static void as_if_looked(void **state)
{
    (void)state;
    for (int window = 1; window < 4; window += 2) {
        const Setup u = {.window = window, .batch = 8, .steps = 48, .scale = 0x1p26f, .growth = 6};
        all_ways(&u);
        assert_int_equal(trail[LATE].n, u.steps);
        assert_true(skips(&trail[LATE], false) > 5 && skips(&trail[LATE], true) > 1);
    }
}

/* The last batch is shorter, the last window too; the data end. */
static void ends_of_epochs(void **state)
{
    (void)state;
    const Setup u = {.window = 4, .batch = 100, .steps = 40, .scale = 0x1p24f, .growth = 4, .epochs = 3};
    all_ways(&u);
    assert_int_equal(trail[LATE].n, 12);
}

static void questions_on_the_way(void **state)
{
    (void)state;
    const Setup u = {.window = 3, .batch = 8, .steps = 40, .scale = 0x1p22f, .growth = 5, .interrupts = true};
    Setup plain = u;
    plain.interrupts = false;
    run(&plain, LATE, &trail[ASKED]);
    run(&u, LATE, &trail[LATE]);
    same_bits(&trail[ASKED], &trail[LATE]);
}

/* Nobody but the loop can bring these batches back. */
static void batches_by_hand(void **state)
{
    (void)state;
    for (int window = 1; window < 4; window += 2) {
        Setup u = {.window = window, .batch = 8, .steps = 40, .scale = 0x1p24f, .growth = 6, .own = true};
        all_ways(&u);
        assert_true(skips(&trail[LATE], true) > 1);
        u.wrong = true;
        all_ways(&u);
        assert_int_equal(trail[LATE].status, MPR_E_INDEX);
        u.wrong = false;
        run(&u, LATE, &trail[ASKED]);
        u.interrupts = true;
        run(&u, LATE, &trail[LATE]);
        same_bits(&trail[ASKED], &trail[LATE]);
    }
}

static void running_statistics(void **state)
{
    (void)state;
    const Setup u = {.window = 2, .batch = 8, .steps = 30, .scale = 0x1p26f, .growth = 3, .norm = true};
    all_ways(&u);
    assert_true(skips(&trail[LATE], true) > 1);
}

/* The run ends at the same step with the same words, and what is left is what that step left. */
static void ends_with_skips(void **state)
{
    (void)state;
    Setup u = {.window = 1, .batch = 8, .steps = 30, .scale = 0x1p40f, .most_skips = 3};
    all_ways(&u);
    assert_int_equal(trail[LATE].status, MPR_E_NONFINITE);
    assert_int_equal(trail[LATE].steps, 3);
    u.constant = true;
    all_ways(&u);
    assert_int_equal(trail[LATE].steps, 3);
    assert_non_null(strstr(trail[LATE].error, "first bad tensor"));
}

static void wrong_label(void **state)
{
    (void)state;
    const Setup u = {.window = 2, .batch = 8, .steps = 300, .wrong = true};
    all_ways(&u);
    assert_int_equal(trail[LATE].status, MPR_E_INDEX);
    assert_non_null(strstr(trail[LATE].error, "77"));
    assert_string_equal(trail[LATE].error, trail[ON_CPU].error);
    assert_true(trail[LATE].steps > 2);
}

/* ---- what it costs ---- */

static void a_step_is_one_graph(void **state)
{
    (void)state;
    for (int window = 1; window < 6; window += 2)
        for (int kind = 0; kind < 3; kind++) {
            const Setup u = {
                .window = window, .batch = kind == 1 ? 2 : 8, .norm = kind == 1, .own = kind == 2};
            Loop l;
            bool more;
            assert_int_equal(try_open(&l, &u, LATE), MPR_OK);
            for (int i = 0; i < 8; i++) assert_call(try_step(&l, &u, LATE, &more), l.p);
            shim_reset_counts();
            for (int i = 0; i < 6; i++) assert_call(try_step(&l, &u, LATE, &more), l.p);
            is_lean(6);
            close_loop(&l);
        }
}

/* A skip in the search for the first scale is a step like any other. */
static void the_search_is_lean(void **state)
{
    (void)state;
    const Setup u = {.window = 1, .batch = 8, .scale = 0x1p50f};
    Loop l;
    bool more;
    assert_int_equal(try_open(&l, &u, LATE), MPR_OK);
    for (int i = 0; i < 8; i++) assert_call(try_step(&l, &u, LATE, &more), l.p);
    shim_reset_counts();
    for (int i = 0; i < 10; i++) assert_call(try_step(&l, &u, LATE, &more), l.p);
    is_lean(10);
    assert_int_equal(l.p->updates, 0);
    close_loop(&l);
}

/* ---- a device that fails ---- */

static mpr_status fails(ShimFailure what, long k)
{
    const Setup u = {.window = 2, .batch = 2};
    Loop l;
    bool more, from_the_start = what == SHIM_FAIL_ALLOC;
    if (from_the_start) shim_fail(what, k);
    mpr_status st = try_open(&l, &u, LATE);
    for (int i = 0; i < 7 && st == MPR_OK; i++) {
        if (i == 5 && !from_the_start) shim_fail(what, k);
        st = try_step(&l, &u, LATE, &more);
    }
    if (st == MPR_OK) st = mpr_prepared_position(l.p, NULL, NULL, NULL, NULL);
    if (st == MPR_E_DEVICE && !from_the_start) {
        char first[512];
        snprintf(first, sizeof first, "%s", mpr_last_error(l.p).message);
        assert_non_null(strstr(first, "is lost"));
        float w[10];
        assert_int_equal(mpr_session_parameter_get(l.s, "net.4.bias", w, 10), MPR_E_DEVICE);
        assert_string_equal(first, mpr_last_error(l.s).message);
    }
    shim_fail(what, 0);
    close_loop(&l);
    shim_revive();
    assert_int_equal(shim_counts()->live, 0);
    return st;
}

static void failures(void **state)
{
    (void)state;
    long k = 1;
    shim_quiet(true);
    for (mpr_status st; (st = fails(SHIM_FAIL_ALLOC, k)) != MPR_OK; k++)
        assert_true(st == MPR_E_NOMEM || st == MPR_E_DEVICE);
    assert_true(k > 25);
    for (k = 1; fails(SHIM_FAIL_LOST, k) != MPR_OK; k++) {}
    assert_true(k > 15);
    for (k = 1; fails(SHIM_FAIL_LAUNCH, k) != MPR_OK; k += 3) {}
    assert_true(k > 30);
    shim_quiet(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_if_looked),         cmocka_unit_test(ends_of_epochs),
        cmocka_unit_test(questions_on_the_way), cmocka_unit_test(running_statistics),
        cmocka_unit_test(ends_with_skips),      cmocka_unit_test(wrong_label),
        cmocka_unit_test(a_step_is_one_graph),  cmocka_unit_test(the_search_is_lean),
        cmocka_unit_test(batches_by_hand),      cmocka_unit_test(failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
