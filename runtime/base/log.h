/* Messages for the host: the library never prints. A sink may be NULL (messages are dropped). */
#ifndef MPRI_BASE_LOG_H
#define MPRI_BASE_LOG_H

#include <mpr.h>
#include "runtime/base/err.h"

typedef struct Log {
    mpr_log_fn sink; /* may be NULL */
    void *user;
} Log;

void mpri_log(const Log *log, mpr_log_level level, const char *fmt, ...) MPRI_PRINTF(3, 4);

#endif
