/* The least number of nodes, worst first, that have to stay in float32. */
#ifndef MPRI_CONVERT_AUTO_H
#define MPRI_CONVERT_AUTO_H

#include "runtime/base/err.h"

#include <stdbool.h>

typedef struct AutoSearch {
    int n; /* candidates, in the order in which they are raised */
    /* Are the outputs within the tolerance when the first k are raised? */
    mpr_status (*probe)(void *user, int k, bool *within, Err *err);
    void *user;
    int raised; /* found */
    int runs;   /* probes made: at most 2 log2(n) + 3 */
    bool possible;
} AutoSearch;

mpr_status mpri_auto_search(AutoSearch *s, Err *err);

#endif
