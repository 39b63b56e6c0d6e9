/* The ledger: what a training loop writes down on the device when the host looks late, and what the device
 * decides by it. The host knows the outcome of a step some steps after it was given; until then the device
 * must neither need it nor go wrong without it.
 *
 * Most steps are plain: nothing to tell but numbers, which the record carries. An eventful one (a skip that
 * has to be explained, a loss that is not finite, wrong data) is HELD: it changes nothing, nor does any
 * step after it, until the host has seen it, put all back to where that step began, and run it again looking
 * at everything. So what is said and what is left is the same as if it had looked all the time; the steps
 * in between cost their time only. Skips of the search for the first scale are plain.
 *
 * runtime/op/update.c states the operators. */
#ifndef MPRI_LEDGER_RULE_H
#define MPRI_LEDGER_RULE_H

#include "kernels/update_rule.h"

enum {
    LEDGER_HELD,
    LEDGER_UPDATES, /* real ones so far */
    LEDGER_LOSS,    /* of the window: weighted sum */
    LEDGER_BAD,     /* of the window: a loss is not finite */
    LEDGER_RECORD = 8, /* of the last step that was not held; HELD is always that of the last one */
    LEDGER_SIZE = 40
};
enum {
    RECORD_HELD,
    RECORD_SKIPPED,
    RECORD_LOSS,
    RECORD_NORM,
    RECORD_SCALE, /* that was used */
    RECORD_RATE,
    RECORD_UPDATES,
    RECORD_SUM, /* weighted sum of the losses */
    RECORD_SCALER = 8, /* its state afterwards */
    RECORD_SIZE = RECORD_SCALER + SCALER_SIZE
};
enum { NOTE_FIRST, NOTE_WEIGHT, NOTE_SIZE }; /* of a micro-batch */
enum {
    CLOSE_UPDATES, /* that the first rate belongs to */
    CLOSE_EAGER,   /* somebody waits for this step: every skip is held */
    CLOSE_WEIGHT,  /* of the window */
    CLOSE_RATE,    /* rates for as many updates as may have been done by now */
    CLOSE_SIZE = 16
};

/* A forward pass is done. A micro-batch without weight counts for nothing. */
MPRI_RULE void mpri_ledger_loss(double *ledger, const double *note, float loss)
{
    if (note[NOTE_FIRST] != 0) ledger[LEDGER_LOSS] = ledger[LEDGER_BAD] = 0;
    if (!(note[NOTE_WEIGHT] > 0)) return;
    if (!isfinite(loss)) ledger[LEDGER_BAD] = 1;
    ledger[LEDGER_LOSS] += note[NOTE_WEIGHT] * (double)loss;
}

MPRI_RULE double mpri_ledger_rate(const double *ledger, const double *close)
{
    int k = (int)(ledger[LEDGER_UPDATES] - close[CLOSE_UPDATES]), most = CLOSE_SIZE - CLOSE_RATE - 1;
    return close[CLOSE_RATE + (k < 0 ? 0 : k > most ? most : k)];
}

/* A skip that needs no word: the first scale is being searched for, and the run does not end with it. */
MPRI_RULE bool mpri_ledger_plain(const double *ledger, const double *close, const double *scaler,
                                 const double *rule)
{
    double limit = rule[RULE_LIMIT];
    return ledger[LEDGER_UPDATES] == 0 && ledger[LEDGER_BAD] == 0 && close[CLOSE_EAGER] == 0 &&
           rule[RULE_CONSTANT] == 0 && (limit == 0 || scaler[SCALER_ROW] + 1 < limit);
}

/* Gradients are unscaled, measured and clipped. Is the step applied, and with which rate? */
MPRI_RULE void mpri_ledger_judge(double *ledger, const double *close, double *state, double *hyper,
                                 const double *scaler, const double *rule, bool wrong_data)
{
    bool skip = state[STATE_FOUND] != 0 || ledger[LEDGER_BAD] != 0;
    if (wrong_data || (skip && !mpri_ledger_plain(ledger, close, scaler, rule))) ledger[LEDGER_HELD] = 1;
    if (skip || ledger[LEDGER_HELD] != 0) state[STATE_FOUND] = 1;
    hyper[HYPER_RATE] = mpri_ledger_rate(ledger, close);
}

/* After the optimizer's step. */
MPRI_RULE void mpri_ledger_close(double *ledger, const double *close, const double *state, double *scaler,
                                 const double *rule)
{
    double *record = ledger + LEDGER_RECORD;
    record[RECORD_HELD] = ledger[LEDGER_HELD];
    if (ledger[LEDGER_HELD] != 0) return;
    record[RECORD_SKIPPED] = state[STATE_SKIPPED];
    record[RECORD_LOSS] = (double)(float)(ledger[LEDGER_LOSS] / close[CLOSE_WEIGHT]);
    record[RECORD_SUM] = ledger[LEDGER_LOSS];
    record[RECORD_NORM] = state[STATE_NORM];
    record[RECORD_SCALE] = scaler[SCALER_SCALE];
    record[RECORD_RATE] = mpri_ledger_rate(ledger, close);
    mpri_rule_scale(scaler, rule, 1, state[STATE_FOUND] != 0);
    if (state[STATE_SKIPPED] == 0) ledger[LEDGER_UPDATES] += 1;
    record[RECORD_UPDATES] = ledger[LEDGER_UPDATES];
    for (int i = 0; i < SCALER_SIZE; i++) record[RECORD_SCALER + i] = scaler[i];
}

#endif
