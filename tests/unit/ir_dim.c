/* Symbolic dims: algebra, canonical forms, binding, text. */
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/rng.h"
#include "runtime/ir/dim.h"

typedef struct Fixture {
    Arena arena;
    SymTab *s;
    Dim b, n;
} Fixture;

static int setup(void **state)
{
    static Fixture f;
    mpri_arena_init(&f.arena, NULL, 0);
    f.s = mpri_symtab_create(&f.arena, mpri_intern_create(&f.arena));
    f.b = mpri_dim_named(f.s, "batch");
    f.n = mpri_dim_named(f.s, "seq");
    *state = &f;
    return f.s ? 0 : -1;
}

static int teardown(void **state)
{
    mpri_arena_destroy(&((Fixture *)*state)->arena);
    return 0;
}

static const char *text(const Fixture *f, Dim d)
{
    static char buf[4][512];
    static int next;
    return mpri_dim_print(f->s, d, buf[next++ % 4], 512);
}

static Dim parse(const Fixture *f, const char *s)
{
    Dim d;
    if (!mpri_dim_parse(f->s, s, strlen(s), &d)) fail_msg("'%s' does not parse", s);
    return d;
}

static void test_algebra(void **state)
{
    const Fixture *f = *state;
    SymTab *s = f->s;
    Dim bn = mpri_dim_mul(s, f->b, f->n);
    assert_true(bn == mpri_dim_mul(s, f->n, f->b));
    assert_true(mpri_dim_sub(s, bn, bn) == 0);
    assert_true(mpri_dim_add(s, f->b, 0) == f->b);
    assert_true(mpri_dim_mul(s, f->b, 0) == 0);
    assert_true(mpri_dim_mul(s, f->b, 1) == f->b);
    assert_true(mpri_dim_div(s, bn, f->n) == f->b);
    assert_true(mpri_dim_div(s, mpri_dim_mul(s, bn, 12), mpri_dim_mul(s, f->b, 4)) ==
                mpri_dim_mul(s, f->n, 3));
    Dim b1 = mpri_dim_add(s, f->b, 1), n2 = mpri_dim_add(s, f->n, 2);
    assert_true(mpri_dim_div(s, mpri_dim_mul(s, b1, n2), n2) == b1);
    assert_true(mpri_dim_mod(s, mpri_dim_mul(s, b1, n2), n2) == 0);
    assert_true(mpri_dim_sub(s, mpri_dim_mul(s, b1, b1), 1) ==
                mpri_dim_mul(s, f->b, mpri_dim_add(s, f->b, 2)));
    assert_true(mpri_dim_div(s, mpri_dim_add(s, mpri_dim_mul(s, f->b, 4), 7), 4) == b1);
    assert_true(mpri_dim_mod(s, mpri_dim_add(s, mpri_dim_mul(s, f->b, 4), 7), 4) == 3);
    assert_true(mpri_dim_div(s, f->b, 2) == mpri_dim_div(s, f->b, 2));
    assert_true(mpri_dim_div(s, f->b, 2) != f->b);
    assert_true(mpri_dim_min(s, f->b, b1) == f->b && mpri_dim_max(s, b1, f->b) == b1);
    assert_true(mpri_dim_min(s, f->b, f->n) == mpri_dim_min(s, f->n, f->b));
    assert_true(mpri_dim_max(s, f->b, 0) == f->b);
    assert_true(mpri_dim_fresh(s) != mpri_dim_fresh(s));
}

static void test_integers(void **state)
{
    const Fixture *f = *state;
    SymTab *s = f->s;
    int64_t v;
    Dim m = mpri_dim_int(s, -7);
    assert_true(m < 0 && mpri_dim_is_int(s, m, &v) && v == -7);
    assert_true(mpri_dim_add(s, m, 10) == 3);
    assert_true(mpri_dim_is_int(s, mpri_dim_div(s, m, 2), &v) && v == -4);
    assert_true(mpri_dim_mod(s, m, 2) == 1);
    assert_true(mpri_dim_is_int(s, mpri_dim_min(s, m, 2), &v) && v == -7);
    assert_true(mpri_dim_is_int(s, mpri_dim_sub(s, 3, 5), &v) && v == -2);
    assert_true(mpri_dim_mul(s, m, m) == 49);
    assert_false(mpri_dim_is_int(s, f->b, &v));
    Dim big = INT64_MAX;
    assert_false(mpri_dim_is_int(s, mpri_dim_add(s, big, 1), &v));
    assert_false(mpri_dim_is_int(s, mpri_dim_mul(s, big, 2), &v));
    assert_false(mpri_dim_is_int(s, mpri_dim_div(s, 4, 0), &v));
    assert_false(mpri_symtab_failed(s));
}

static void test_what_does_not_fit(void **state)
{
    const Fixture *f = *state;
    Dim sum = 0, product = 1;
    char name[16];
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "d%d", i);
        sum = mpri_dim_add(f->s, sum, mpri_dim_named(f->s, name));
        product = mpri_dim_mul(f->s, product, mpri_dim_named(f->s, name));
    }
    DimBinding *b = mpri_binding_create((Arena *)&f->arena, f->s);
    assert_true(mpri_dim_eval(b, sum) == sum);
    for (int i = 0; i < 20; i++) {
        snprintf(name, sizeof name, "d%d", i);
        assert_true(mpri_dim_bind(b, mpri_dim_named(f->s, name), i % 3 + 1));
    }
    assert_int_equal(mpri_dim_eval(b, sum), 39);
    assert_int_equal(mpri_dim_eval(b, product),
                     1 * 2 * 3 * 1 * 2 * 3 * 1 * 2 * 3 * 1 * 2 * 3 * 1 * 2 * 3 * 1 * 2 * 3 * 2);
    assert_true(parse(f, text(f, sum)) == sum);
    assert_true(parse(f, text(f, product)) == product);
}

static void test_binding(void **state)
{
    const Fixture *f = *state;
    SymTab *s = f->s;
    DimBinding *b = mpri_binding_create((Arena *)&f->arena, s);
    Dim bn = mpri_dim_mul(s, f->b, f->n);
    int64_t v;
    assert_true(mpri_dim_bind(b, 5, 5));
    assert_false(mpri_dim_bind(b, 5, 6));
    assert_true(mpri_dim_bind(b, bn, 30)); /* two unknowns: nothing to say yet */
    assert_true(mpri_dim_eval(b, bn) == bn);
    assert_true(mpri_dim_bind(b, mpri_dim_add(s, mpri_dim_mul(s, f->b, 2), 1), 11));
    assert_true(mpri_dim_name_value(b, "batch", &v) && v == 5);
    assert_false(mpri_dim_name_value(b, "seq", &v));
    assert_false(mpri_dim_bind(b, f->b, 6));
    assert_false(mpri_dim_bind(b, bn, 31)); /* 5 * seq == 31 */
    assert_true(mpri_dim_bind(b, bn, 30));
    assert_int_equal(mpri_dim_eval(b, f->n), 6);
    assert_int_equal(mpri_dim_eval(b, mpri_dim_div(s, f->n, 4)), 1);
    assert_int_equal(mpri_dim_eval(b, mpri_dim_mod(s, f->n, 4)), 2);
    assert_int_equal(mpri_dim_eval(b, mpri_dim_max(s, f->n, f->b)), 6);
    assert_true(mpri_dim_is_int(s, mpri_dim_eval(b, mpri_dim_sub(s, f->b, f->n)), &v) && v == -1);
    assert_false(
        mpri_dim_bind(b, mpri_dim_add(s, mpri_dim_named(s, "k"), 9), 3)); /* k would be negative */
    assert_true(mpri_dim_bind(b, mpri_dim_fresh(s), 3));
    SymTab *c = mpri_symtab_clone(s, (Arena *)&f->arena, mpri_intern_create((Arena *)&f->arena));
    Dim later = mpri_dim_named(c, "later");
    for (int i = 0; i < 50; i++) later = mpri_dim_add(c, mpri_dim_fresh(c), later);
    assert_true(mpri_dim_eval(b, later) == later); /* a handle this table does not have */
}

/* Random expressions: the value of the symbolic result is the result of the values. */
static void test_random_expressions(void **state)
{
    const Fixture *f = *state;
    SymTab *s = f->s;
    enum { POOL = 40 };
    for (uint64_t seed = 0; seed < 300; seed++) {
        DimBinding *b = mpri_binding_create((Arena *)&f->arena, s);
        int64_t bv = (int64_t)mpri_rng_below(seed, 0, 0, 9),
                nv = (int64_t)mpri_rng_below(seed, 0, 1, 9) + 1;
        assert_true(mpri_dim_bind(b, f->b, bv) && mpri_dim_bind(b, f->n, nv));
        Dim d[POOL] = {f->b, f->n, 3, 1};
        int64_t v[POOL] = {bv, nv, 3, 1};
        for (int i = 4; i < POOL; i++) {
            uint64_t k = (uint64_t)i;
            int x = (int)mpri_rng_below(seed, 1, k, k), y = (int)mpri_rng_below(seed, 2, k, k);
            int op = (int)mpri_rng_below(seed, 3, k, 7);
            d[i] = d[x];
            v[i] = v[x];
            if (v[x] > 1000000 || v[x] < -1000000 || v[y] > 1000 || v[y] < -1000) continue;
            bool divides = v[y] > 0;
            int64_t q = divides ? v[x] / v[y] - (v[x] % v[y] < 0) : 0;
            switch (op) {
            case 0: d[i] = mpri_dim_add(s, d[x], d[y]), v[i] = v[x] + v[y]; break;
            case 1: d[i] = mpri_dim_sub(s, d[x], d[y]), v[i] = v[x] - v[y]; break;
            case 2: d[i] = mpri_dim_mul(s, d[x], d[y]), v[i] = v[x] * v[y]; break;
            case 3:
                if (divides) d[i] = mpri_dim_div(s, d[x], d[y]), v[i] = q;
                break;
            case 4:
                if (divides) d[i] = mpri_dim_mod(s, d[x], d[y]), v[i] = v[x] - q * v[y];
                break;
            case 5: d[i] = mpri_dim_min(s, d[x], d[y]), v[i] = v[x] < v[y] ? v[x] : v[y]; break;
            default: d[i] = mpri_dim_max(s, d[x], d[y]), v[i] = v[x] > v[y] ? v[x] : v[y]; break;
            }
            int64_t got;
            if (!mpri_dim_is_int(s, mpri_dim_eval(b, d[i]), &got) || got != v[i])
                fail_msg("seed %d: %s should be %lld", (int)seed, text(f, d[i]), (long long)v[i]);
            char buf[4096];
            mpri_dim_print(s, d[i], buf, sizeof buf);
            Dim back;
            if (strlen(buf) < 2000) {
                assert_true(mpri_dim_parse(s, buf, strlen(buf), &back));
                if (back != d[i]) fail_msg("%s reads back as %s", buf, text(f, back));
            }
        }
    }
}

static void test_text(void **state)
{
    const Fixture *f = *state;
    SymTab *s = f->s;
    assert_string_equal(text(f,
                             mpri_dim_add(s, mpri_dim_mul(s, mpri_dim_mul(s, f->n, f->b), 4), 1)),
                        "4*batch*seq+1");
    assert_string_equal(text(f, mpri_dim_sub(s, 0, f->b)), "-batch");
    assert_string_equal(text(f, mpri_dim_div(s, mpri_dim_add(s, f->n, 1), 2)), "((seq+1)/2)");
    assert_string_equal(text(f, mpri_dim_named(s, "dim 0\"")), "\"dim 0\\\"\"");
    assert_string_equal(text(f, 12), "12");
    Shape shape = {.rank = 3, .d = {2, f->b, 64}}, none = {.rank = MPRI_RANK_UNKNOWN};
    char buf[64], tiny[6];
    assert_string_equal(mpri_shape_print(s, &shape, buf, sizeof buf), "[2,batch,64]");
    assert_string_equal(mpri_shape_print(s, &shape, tiny, sizeof tiny), "[2,ba");
    assert_string_equal(mpri_shape_print(s, &none, buf, sizeof buf), "[?]");
    const char *bad[] = {"",  "2*", "(a", "a)", "a b", "\"a", "min(a)", "99999999999999999999",
                         "?", "*a"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Dim d;
        assert_false(mpri_dim_parse(s, bad[i], strlen(bad[i]), &d));
    }
    char deep[400];
    memset(deep, '(', sizeof deep);
    Dim d;
    assert_false(mpri_dim_parse(s, deep, sizeof deep, &d));
}

/* The printed form does not depend on which symbol came first. */
static void test_order_of_creation(void **state)
{
    (void)state;
    const char *names[2][2] = {{"batch", "seq"}, {"seq", "batch"}};
    char out[2][128];
    for (int k = 0; k < 2; k++) {
        Arena a;
        mpri_arena_init(&a, NULL, 0);
        SymTab *s = mpri_symtab_create(&a, mpri_intern_create(&a));
        Dim x = mpri_dim_named(s, names[k][0]), y = mpri_dim_named(s, names[k][1]);
        Dim d = mpri_dim_add(s, mpri_dim_mul(s, x, y), mpri_dim_max(s, x, y));
        mpri_dim_print(s, mpri_dim_add(s, mpri_dim_add(s, d, x), y), out[k], 128);
        mpri_arena_destroy(&a);
    }
    assert_string_equal(out[0], out[1]);
}

static void test_no_memory(void **state)
{
    (void)state;
    Arena a;
    mpri_arena_init(&a, NULL, 8192);
    SymTab *s = mpri_symtab_create(&a, mpri_intern_create(&a));
    Dim d = mpri_dim_named(s, "x");
    for (int i = 0; i < 1000; i++) d = mpri_dim_add(s, mpri_dim_mul(s, d, mpri_dim_fresh(s)), i);
    assert_true(mpri_symtab_failed(s));
    char buf[64];
    mpri_dim_print(s, d, buf, sizeof buf);
    mpri_arena_destroy(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_algebra, setup, teardown),
        cmocka_unit_test_setup_teardown(test_integers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_binding, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_expressions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_text, setup, teardown),
        cmocka_unit_test(test_order_of_creation),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
