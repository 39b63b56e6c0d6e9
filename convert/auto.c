/* Doubling until it is enough, then halving the last step: the number found has been tried, whether
 * or not more raised nodes always mean smaller errors. */
#include "convert/auto.h"

static mpr_status probe(AutoSearch *s, int k, bool *within, Err *err)
{
    s->runs++;
    return s->probe(s->user, k, within, err);
}

mpr_status mpri_auto_search(AutoSearch *s, Err *err)
{
    int low = 0, high = 0; /* low is not enough */
    bool within;
    s->runs = s->raised = 0;
    TRY(probe(s, 0, &within, err));
    s->possible = within;
    if (within) return MPR_OK;
    do {
        if (low == s->n) return MPR_OK;
        high = low > s->n / 2 ? s->n : low ? 2 * low : 1;
        TRY(probe(s, high, &within, err));
        if (!within) low = high;
    } while (!within);
    while (high - low > 1) {
        int mid = low + (high - low) / 2;
        TRY(probe(s, mid, &within, err));
        if (within) high = mid;
        else low = mid;
    }
    s->raised = high;
    s->possible = true;
    return MPR_OK;
}
