/* Allocation k fails, once and from k on: loading, opening, two training steps and a save end in
 * MPR_E_NOMEM, nothing leaks, and the next try works. */
#include "tests/train/digits.h"

#include <unistd.h>

typedef struct Meter {
    long count, fail_at, live;
    bool persistent;
} Meter;

static void *meter_alloc(void *user, size_t size, size_t align)
{
    Meter *m = user;
    long k = m->count++;
    void *p = NULL;
    if (k == m->fail_at || (m->persistent && k > m->fail_at)) return NULL;
    if (posix_memalign(&p, align < sizeof(void *) ? sizeof(void *) : align, size ? size : 1) != 0)
        return NULL;
    m->live++;
    return p;
}

static void meter_free(void *user, void *p)
{
    if (!p) return;
    ((Meter *)user)->live--;
    free(p);
}

static mpr_status steps(mpr_session *s, mpr_optimizer *opt, mpr_scaler *sc, const float *x,
                        const int64_t *y)
{
    int64_t xs[2] = {8, 64}, ys[1] = {8};
    mpr_step_outcome outcome;
    for (int i = 0; i < 2; i++) {
        mpr_status status = mpr_session_bind(s, "x", x, MPR_FLOAT32, xs, 2);
        if (status == MPR_OK) status = mpr_session_bind(s, "labels", y, MPR_INT64, ys, 1);
        if (status == MPR_OK) status = mpr_session_forward(s, NULL);
        if (status == MPR_OK) status = mpr_session_backward(s, sc);
        if (status == MPR_OK) status = mpr_scaler_step(sc, opt, &outcome);
        if (status == MPR_OK) status = mpr_scaler_update(sc);
        if (status == MPR_OK) status = mpr_session_zero_grad(s);
        if (status != MPR_OK) return status;
    }
    return MPR_OK;
}

static mpr_status train_and_save(mpr_model *model, const char *folder, const float *x,
                                 const int64_t *y)
{
    mpr_session *s = NULL;
    mpr_optimizer *opt = NULL;
    mpr_scaler *sc = NULL;
    mpr_prepared *p = NULL;
    mpr_session_options o = {.size = sizeof(o), .autocast = MPR_FLOAT16, .loss = "cross-entropy"};
    mpr_status status = mpr_session_open(model, &o, &s);
    if (status == MPR_OK) status = mpr_optimizer_adamw(s, NULL, &opt);
    if (status == MPR_OK) status = mpr_scaler_create(s, NULL, &sc);
    if (status == MPR_OK) status = steps(s, opt, sc, x, y);
    if (status == MPR_OK) status = mpr_prepare(s, opt, NULL, NULL, NULL, &p);
    if (status == MPR_OK) status = mpr_prepared_save(p, folder);
    if (status == MPR_OK) status = mpr_prepared_load(p, folder);
    mpr_prepared_destroy(p);
    mpr_scaler_destroy(sc);
    mpr_optimizer_destroy(opt);
    mpr_session_close(s);
    return status;
}

static mpr_status attempt(Meter *m, const char *folder, const float *x, const int64_t *y)
{
    mpr_context *ctx = NULL;
    mpr_model *model = NULL;
    mpr_context_options o = {
        .size = sizeof(o), .device = TEST_DEVICE, .alloc = meter_alloc, .free = meter_free, .alloc_user = m, .threads = 1};
    m->count = 0;
    mpr_status status = mpr_context_create(&o, &ctx);
    if (status == MPR_OK)
        status = mpr_model_load(ctx, test_data("digits/model_ts.onnx"), NULL, &model);
    if (status == MPR_OK) status = train_and_save(model, folder, x, y);
    mpr_model_destroy(model);
    mpr_context_destroy(ctx);
    return status;
}

static void every_allocation(void **state)
{
    (void)state;
    static float x[8 * 64];
    static const int64_t y[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    char folder[64], command[200];
    Meter m = {.fail_at = -1};
    for (int i = 0; i < 8 * 64; i++) x[i] = (float)(i % 17) / 17;
    snprintf(folder, sizeof(folder), "/tmp/mpr-nomem-%ld", (long)getpid());
    assert_int_equal(attempt(&m, folder, x, y), MPR_OK);
    assert_int_equal(m.live, 0);
    long total = m.count;
    assert_true(total > 100);
    for (long k = 0; k < total; k++)
        for (int persistent = 0; persistent < 2; persistent++) {
            m = (Meter){.fail_at = k, .persistent = persistent};
            mpr_status status = attempt(&m, folder, x, y);
            if (status != MPR_E_NOMEM && !(status == MPR_OK && !persistent))
                fail_msg("allocation %ld of %ld: %s", k, total, mpr_status_text(status));
            if (m.live) fail_msg("allocation %ld of %ld: %ld blocks leak", k, total, m.live);
        }
    m = (Meter){.fail_at = -1};
    assert_int_equal(attempt(&m, folder, x, y), MPR_OK);
    snprintf(command, sizeof(command), "rm -rf '%s' '%s'.tmp-*", folder, folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
