/* Learning rate schedules against numbers from transformers' get_scheduler. */
#include "tests/support/support.h"

#include <math.h>

#include "runtime/train/schedule.h"

static double factor(ScheduleKind kind, double warmup, double total, double base, int64_t step)
{
    mpr_schedule p = {
        .kind = kind, .warmup = warmup, .total = total, .base = base, .plateau.factor = 1};
    return mpri_schedule_factor(&p, step);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want) + 1e-15))
        fail_msg("%.17g, expected %.17g", got, want);
}

static void values(void **state)
{
    (void)state;
    near(factor(SCHEDULE_LINEAR, 3, 36, 1, 0), 0);
    near(factor(SCHEDULE_LINEAR, 3, 36, 1, 1), 1.0 / 3);
    near(factor(SCHEDULE_LINEAR, 3, 36, 1, 3), 1);
    near(factor(SCHEDULE_LINEAR, 3, 36, 1, 4), 32.0 / 33);
    near(factor(SCHEDULE_LINEAR, 3, 36, 1, 36), 0);
    near(factor(SCHEDULE_LINEAR, 0, 10, 1, 50), 0);
    assert_true(fabs(factor(SCHEDULE_COSINE, 3, 10, 1, 4) * 0.002 - 0.0019009688679) < 1e-12);
    assert_true(fabs(factor(SCHEDULE_COSINE, 3, 10, 1, 9) * 0.002 - 9.90311320976e-05) < 1e-14);
    near(factor(SCHEDULE_COSINE_RESTARTS, 0, 10, 1, 5), 0.5);
    near(factor(SCHEDULE_COSINE_RESTARTS, 0, 10, 1, 10), 0);
    near(factor(SCHEDULE_POLYNOMIAL, 0, 10, 1e-3, 5), (0.5 * (1e-3 - 1e-7) + 1e-7) / 1e-3);
    near(factor(SCHEDULE_POLYNOMIAL, 0, 10, 1e-3, 11), 1e-7 / 1e-3);
    near(factor(SCHEDULE_CONSTANT, 5, 10, 1, 0), 1);
    near(factor(SCHEDULE_CONSTANT_WARMUP, 5, 10, 1, 2), 0.4);
    near(factor(SCHEDULE_CONSTANT_WARMUP, 5, 10, 1, 9), 1);
    near(factor(SCHEDULE_INVERSE_SQRT, 4, 100, 1, 16), 0.5);
    near(factor(SCHEDULE_INVERSE_SQRT, 0, 100, 1, 30000), 0.5);
}

static void plateau(void **state)
{
    (void)state;
    mpr_schedule p = {.kind = SCHEDULE_PLATEAU, .plateau.factor = 1};
    mpri_schedule_metric(&p, 1.0, false);
    for (int i = 0; i < 10; i++) mpri_schedule_metric(&p, 1.0, false);
    near(mpri_schedule_factor(&p, 0), 1);
    mpri_schedule_metric(&p, 1.0, false);
    near(mpri_schedule_factor(&p, 0), 0.1);
    mpri_schedule_metric(&p, 0.5, false);
    near(p.plateau.best, 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(plateau)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
