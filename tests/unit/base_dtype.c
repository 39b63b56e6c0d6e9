/* Element types: every half, ties, one rounding from double, saturation. */
#include "tests/support/support.h"

#include <math.h>
#include <string.h>

#include "runtime/base/dtype.h"
#include "runtime/base/rng.h"

/* The definition: sign * significand * 2^exponent. */
static double value_of(uint16_t h, int mant, int bias)
{
    int e = h >> mant & ((1 << (15 - mant)) - 1), f = h & ((1 << mant) - 1);
    double s = h & 0x8000 ? -1 : 1;
    if (e == 2 * bias + 1) return f ? NAN : s * INFINITY;
    return e ? s * ldexp((1 << mant) + f, e - bias - mant) : s * ldexp(f, 1 - bias - mant);
}

static void check_format(DType t, int mant, int bias)
{
    for (unsigned i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i, back;
        double expect = value_of(h, mant, bias), got = mpri_load_f64(t, &h, 0);
        mpri_store_f64(t, &back, 0, got);
        if (isnan(expect)) {
            assert_true(isnan(got));
            assert_true(isnan(value_of(back, mant, bias)));
            assert_int_equal(back >> 15, h >> 15);
            continue;
        }
        assert_memory_equal(&expect, &got, sizeof got);
        assert_int_equal(back, h);
    }
}

static void test_all_halves(void **state)
{
    (void)state;
    check_format(MPR_FLOAT16, 10, 15);
    check_format(MPR_BFLOAT16, 7, 127);
}

/* Between every two neighbours: below the middle, the middle (to even), above the middle. */
static void check_ties(DType t, int mant, int bias, unsigned infinity)
{
    for (unsigned i = 0; i < infinity; i++) {
        double a = value_of((uint16_t)i, mant, bias);
        double b = i + 1 == infinity ? ldexp(1, bias + 1) : value_of((uint16_t)(i + 1), mant, bias);
        double middle = (a + b) / 2;
        uint16_t even = (uint16_t)(i & 1 ? i + 1 : i);
        double points[] = {nextafter(middle, a), middle, nextafter(middle, b)};
        uint16_t expect[] = {(uint16_t)i, even, (uint16_t)(i + 1)};
        for (int k = 0; k < 3; k++)
            for (int sign = 0; sign < 2; sign++) {
                uint16_t got;
                mpri_store_f64(t, &got, 0, sign ? -points[k] : points[k]);
                assert_int_equal(got, (uint16_t)(expect[k] | (sign ? 0x8000 : 0)));
            }
        float f = (float)middle; /* exact when the middle fits a float */
        if ((double)f == middle) {
            uint16_t got = t == MPR_FLOAT16 ? mpri_f32_to_f16(f) : mpri_f32_to_bf16(f);
            assert_int_equal(got, even);
        }
    }
}

static void test_ties(void **state)
{
    (void)state;
    check_ties(MPR_FLOAT16, 10, 15, 0x7C00);
    check_ties(MPR_BFLOAT16, 7, 127, 0x7F80);
}

static void test_one_rounding(void **state)
{
    (void)state;
    /* just above a tie by less than float sees: rounding by way of float would go down to even */
    double above = 1 + ldexp(1, -11) + ldexp(1, -40);
    assert_int_equal(mpri_f64_to_f16(above), 0x3C01);
    assert_int_equal(mpri_f32_to_f16((float)above), 0x3C00);
    assert_int_equal(mpri_f64_to_bf16(1 + ldexp(1, -8) + ldexp(1, -40)), 0x3F81);
    assert_int_equal(mpri_f64_to_f16(65519.999), 0x7BFF);
    assert_int_equal(mpri_f64_to_f16(65520), 0x7C00);
    assert_int_equal(mpri_f64_to_f16(1e300), 0x7C00);
    assert_int_equal(mpri_f64_to_f16(-1e-300), 0x8000);
    assert_int_equal(mpri_f64_to_f16(5e-324), 0);
    assert_int_equal(mpri_f32_to_f16(5.9604645e-08f), 1);
    assert_int_equal(mpri_f32_to_f16(2.9802322e-08f), 0);
    assert_int_equal(mpri_f32_to_f16(2.9802326e-08f), 1);
    assert_int_equal(mpri_f32_to_bf16(1e-45f), 0);
    assert_int_equal(mpri_f32_to_bf16(INFINITY), 0x7F80);
    assert_int_equal(mpri_f32_to_bf16(3.4028235e38f), 0x7F80);
}

/* float -> half agrees with double -> half on any bits: widening is exact. */
static void test_random_bits(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t r[4];
        float f;
        mpri_philox(7, 7, i, r);
        memcpy(&f, r, 4);
        if (isnan(f)) continue;
        assert_int_equal(mpri_f32_to_f16(f), mpri_f64_to_f16((double)f));
        assert_int_equal(mpri_f32_to_bf16(f), mpri_f64_to_bf16((double)f));
    }
}

static void test_nan(void **state)
{
    (void)state;
    uint32_t signalling = 0x7F800001, other = 0xFFC12345;
    float f, g;
    memcpy(&f, &signalling, 4);
    memcpy(&g, &other, 4);
    assert_true(isnan(mpri_f16_to_f32(mpri_f32_to_f16(f))));
    assert_true(isnan(mpri_bf16_to_f32(mpri_f32_to_bf16(f))));
    assert_true(isnan(mpri_f16_to_f32(mpri_f64_to_f16(NAN))));
    assert_int_equal(mpri_f32_to_f16(g) >> 15, 1);
}

static void test_store(void **state)
{
    (void)state;
    static const struct {
        DType t;
        double v;
        int64_t expect;
    } cases[] = {
        {MPR_INT8, 300, 127},
        {MPR_INT8, -300, -128},
        {MPR_INT8, 2.9, 2},
        {MPR_INT8, -2.9, -2},
        {MPR_UINT8, -1, 0},
        {MPR_UINT8, 256, 255},
        {MPR_INT32, 1e10, INT32_MAX},
        {MPR_INT32, NAN, 0},
        {MPR_INT64, 1e30, INT64_MAX},
        {MPR_INT64, -1e30, INT64_MIN},
        {MPR_UINT32, 4294967295.0, 4294967295},
        {MPR_UINT64, 1e30, -1},
        {MPR_UINT64, -5, 0},
        {MPR_BOOL, 0.5, 1},
        {MPR_BOOL, 0, 0},
        {MPR_BOOL, NAN, 1},
        {MPR_FLOAT16, 3.0, 3},
        {MPR_INT16, -40000, INT16_MIN},
        {MPR_UINT16, 70000, 65535},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t buf[2] = {0};
        mpri_store_f64(cases[i].t, buf, 1, cases[i].v);
        assert_int_equal(mpri_load_i64(cases[i].t, buf, 1), cases[i].expect);
    }
    uint64_t big;
    mpri_store_i64(MPR_UINT64, &big, 0, -1);
    assert_true(mpri_load_f64(MPR_UINT64, &big, 0) == 0x1p64);
    float f;
    mpri_store_i64(MPR_FLOAT32, &f, 0, 16777217);
    assert_true(f == 16777216.0f);
    float odd = 3.99f;
    assert_int_equal(mpri_load_i64(MPR_FLOAT32, &odd, 0), 3);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 1; i <= 16; i++) {
        assert_int_equal(mpri_dtype_parse(mpri_dtype_name((DType)i)), i);
        assert_int_equal(mpri_dtype_parse(mpri_dtype_long((DType)i)), i);
    }
    assert_int_equal(mpri_dtype_parse("float"), MPR_DTYPE_NONE);
    assert_string_equal(mpri_dtype_name(MPR_DTYPE_NONE), "undefined");
    assert_string_equal(mpri_dtype_name((DType)17), "type17");
    assert_string_equal(mpri_dtype_name((DType)-4), "unknown type");
    assert_int_equal(mpri_dtype_size(MPR_STRING), 0);
    assert_int_equal(mpri_dtype_size((DType)40), 0);
    assert_int_equal(mpri_dtype_size(MPR_COMPLEX128), 16);
    assert_true(mpri_dtype_is_int(MPR_UINT8) && !mpri_dtype_is_int(MPR_BOOL) &&
                !mpri_dtype_is_float(MPR_COMPLEX64));
    assert_int_equal(mpri_dtype_wider(MPR_FLOAT16, MPR_BFLOAT16), MPR_FLOAT32);
    assert_int_equal(mpri_dtype_wider(MPR_FLOAT16, MPR_FLOAT16), MPR_FLOAT16);
    assert_int_equal(mpri_dtype_wider(MPR_FLOAT32, MPR_FLOAT64), MPR_FLOAT64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_halves),   cmocka_unit_test(test_ties),
        cmocka_unit_test(test_one_rounding), cmocka_unit_test(test_random_bits),
        cmocka_unit_test(test_nan),          cmocka_unit_test(test_store),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
