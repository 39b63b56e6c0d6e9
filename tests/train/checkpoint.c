/* Checkpoints: whatever is damaged, missing or foreign is refused and changes nothing; what is
 * whole restores the position bit for bit, also inside an accumulation window. */
#include "tests/train/digits.h"

#include <math.h>
#include <unistd.h>

typedef DigitsLoop Loop;

static void loop_open(Loop *l, Digits *d, int64_t batch, bool sgd)
{
    digits_loop_open(l, d, &(DigitsLoopOptions){.autocast = MPR_FLOAT16, .batch = batch, .sgd = sgd});
}

static void run_batches(Loop *l, int n)
{
    bool more;
    for (int i = 0; i < n; i++) {
        assert_call(mpr_prepared_next(l->p, &more), l->p);
        assert_true(more);
        assert_call(mpr_prepared_backward(l->p, NULL), l->p);
        assert_call(mpr_prepared_step(l->p, NULL), l->p);
    }
}

static void folder_name(char buf[64], const char *name)
{
    snprintf(buf, 64, "/tmp/mpr-ckpt-%s-%ld", name, (long)getpid());
}

/* Saved after any number of micro-batches, the next 20 give the weights of the uninterrupted
 * run. */
static void exact_resume(void **state)
{
    (void)state;
    static float whole[128 * 64], parts[128 * 64];
    static const int cuts[] = {
        3,  4,  5, 21,
        22, 23, 44}; /* at a step, inside windows, around the epoch's end (22 batches) */
    Digits d;
    char folder[64];
    digits_open(&d, 1);
    folder_name(folder, "exact");
    for (size_t i = 0; i < sizeof(cuts) / sizeof(*cuts); i++) {
        Loop a, b;
        loop_open(&a, &d, 64, false);
        run_batches(&a, cuts[i]);
        assert_call(mpr_prepared_save(a.p, folder), a.p);
        run_batches(&a, 20);
        digits_weight(a.s, whole);
        digits_loop_close(&a);
        loop_open(&b, &d, 64, false);
        assert_call(mpr_prepared_load(b.p, folder), b.p);
        run_batches(&b, 20);
        digits_weight(b.s, parts);
        assert_memory_equal(whole, parts, sizeof(whole));
        digits_loop_close(&b);
    }
    test_remove_folder(folder);
    digits_close(&d);
}

static void saved_twice(void **state)
{
    (void)state;
    Digits d;
    char first[64], second[64];
    digits_open(&d, 1);
    folder_name(first, "first");
    folder_name(second, "second");
    Loop a;
    loop_open(&a, &d, 64, false);
    run_batches(&a, 7);
    assert_call(mpr_prepared_save(a.p, first), a.p);
    assert_call(mpr_prepared_load(a.p, first), a.p);
    assert_call(mpr_prepared_save(a.p, second), a.p);
    assert_call(mpr_prepared_save(a.p, second), a.p); /* over an existing one */
    static const char *const names[] = {"state.json", "model.safetensors", "optimizer.safetensors"};
    for (int i = 0; i < 3; i++) {
        char command[300];
        snprintf(command, sizeof(command), "cmp '%s/%s' '%s/%s'", first, names[i], second,
                 names[i]);
        assert_int_equal(system(command), 0);
    }
    digits_loop_close(&a);
    test_remove_folder(first);
    test_remove_folder(second);
    digits_close(&d);
}

static size_t read_all(const char *path, unsigned char **bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *bytes = malloc(1 << 20);
    size_t n = fread(*bytes, 1, 1 << 20, f);
    fclose(f);
    return n;
}

static void write_all(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void refused(Loop *l, const char *folder, const char *name, const float *before)
{
    static float now[128 * 64];
    int64_t steps;
    assert_int_equal(mpr_prepared_load(l->p, folder), MPR_E_CHECKPOINT);
    mpr_error e = mpr_last_error(l->p);
    if (!strstr(e.message, name)) fail_msg("no '%s' in: %s", name, e.message);
    assert_non_null(strstr(e.where, folder));
    assert_call(mpr_prepared_position(l->p, NULL, NULL, &steps, NULL), l->p);
    assert_int_equal(steps, 1);
    digits_weight(l->s, now);
    assert_memory_equal(now, before, sizeof(now));
}

static void damage(void **state)
{
    (void)state;
    static const char *const names[] = {"state.json", "model.safetensors", "optimizer.safetensors"};
    static float before[128 * 64];
    Digits d;
    char folder[64], path[128];
    digits_open(&d, 1);
    folder_name(folder, "damage");
    Loop l;
    loop_open(&l, &d, 64, false);
    run_batches(&l, 6);
    assert_call(mpr_prepared_save(l.p, folder), l.p);
    digits_loop_close(&l);
    loop_open(&l, &d, 64, false);
    run_batches(&l, 3);
    digits_weight(l.s, before);
    for (int i = 0; i < 3; i++) {
        unsigned char *bytes;
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        size_t n = read_all(path, &bytes);
        for (int k = 0; k < 40; k++) { /* flipped bits, then cuts */
            size_t at = (n - 1) * (size_t)k / 39;
            bytes[at] ^= 1 << k % 8;
            write_all(path, bytes, n);
            refused(&l, folder, names[i], before);
            bytes[at] ^= 1 << k % 8;
            write_all(path, bytes, at);
            refused(&l, folder, names[i], before);
        }
        bytes[n] = 0;
        write_all(path, bytes, n + 1);
        refused(&l, folder, names[i], before);
        unlink(path);
        refused(&l, folder, names[i], before);
        write_all(path, bytes, n);
        free(bytes);
    }
    assert_call(mpr_prepared_load(l.p, folder), l.p); /* whole again */
    digits_loop_close(&l);
    test_remove_folder(folder);
    digits_close(&d);
}

static void other_runs(void **state)
{
    (void)state;
    Digits d;
    char folder[64];
    digits_open(&d, 1);
    folder_name(folder, "other");
    Loop a, b;
    loop_open(&a, &d, 64, false);
    run_batches(&a, 3);
    assert_call(mpr_prepared_save(a.p, folder), a.p);
    digits_loop_close(&a);
    loop_open(&b, &d, 64, true); /* another optimizer */
    assert_int_equal(mpr_prepared_load(b.p, folder), MPR_E_CHECKPOINT);
    assert_non_null(strstr(mpr_last_error(b.p).message, "sgd_buf"));
    digits_loop_close(&b);
    loop_open(&b, &d, 32, false); /* another batch size */
    assert_int_equal(mpr_prepared_load(b.p, folder), MPR_E_CHECKPOINT);
    assert_non_null(strstr(mpr_last_error(b.p).message, "batches of 64"));
    assert_int_equal(mpr_prepared_load(b.p, "/tmp/mpr-no-such-folder"), MPR_E_CHECKPOINT);
    assert_int_equal(mpr_prepared_save(b.p, "/nonexistent/folder"), MPR_E_IO);
    digits_loop_close(&b);
    test_remove_folder(folder);
    digits_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact_resume),
                                       cmocka_unit_test(saved_twice), cmocka_unit_test(damage),
                                       cmocka_unit_test(other_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
