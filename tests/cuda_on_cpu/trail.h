/* What a run of training leaves, to be compared with that of another way, and what a lean step costs. */
#ifndef MPRI_TESTS_TRAIL_H
#define MPRI_TESTS_TRAIL_H

#include <stdio.h>
#include <string.h>

#include "tests/cuda_on_cpu/control.h"
#include "tests/support/support.h"

enum { MOST = 64, WEIGHTS = 128 * 64, STATISTICS = 64 };

typedef struct Told {
    int64_t step, updates;
    mpr_step_outcome outcome;
    float loss, norm, scale;
    double rate;
    char bad[200]; /* what a skip was for, but those of the search for the scale */
} Told;

typedef struct Trail { /* what is left of a run */
    Told told[MOST];
    int n;
    mpr_status status;
    char error[2048];
    int64_t epoch, batch, steps, updates;
    float w[WEIGHTS], statistics[STATISTICS];
    char scaler[2048];
} Trail;

static inline void same_bits(const Trail *a, const Trail *b)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        if (memcmp(&a->told[i], &b->told[i], sizeof a->told[i]))
            fail_msg("step %lld: loss %a %a norm %a %a scale %g %g rate %g %g outcome %d %d updates %lld %lld",
                     (long long)a->told[i].step, (double)a->told[i].loss, (double)b->told[i].loss,
                     (double)a->told[i].norm, (double)b->told[i].norm, (double)a->told[i].scale,
                     (double)b->told[i].scale, a->told[i].rate, b->told[i].rate, (int)a->told[i].outcome,
                     (int)b->told[i].outcome, (long long)a->told[i].updates, (long long)b->told[i].updates);
    assert_int_equal(a->status, b->status);
    assert_string_equal(a->error, b->error);
    assert_memory_equal(&a->epoch, &b->epoch, 4 * sizeof a->epoch);
    assert_memory_equal(a->w, b->w, sizeof a->w);
    assert_memory_equal(a->statistics, b->statistics, sizeof a->statistics);
    assert_string_equal(a->scaler, b->scaler);
}

static inline int skips(const Trail *t, bool late_ones)
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        n += t->told[i].outcome == MPR_STEP_SKIPPED && (!late_ones || t->told[i].updates > 0);
    return n;
}

/* The device's memory was not touched by the host, and each step was one launch. */
static inline void is_lean(int steps)
{
    const ShimCounts *c = shim_counts();
    assert_int_equal(c->graphs, steps);
    assert_int_equal(c->launches, steps);
    assert_int_equal(c->host_reads, 0);
    assert_int_equal(c->allocations, 0);
    assert_int_equal(c->late_reads, steps);
}

#endif
