/* One line to the host's sink; long messages are cut. */
#include "runtime/base/log.h"

#include <stdarg.h>
#include <stdio.h>

void mpri_log(const Log *log, mpr_log_level level, const char *fmt, ...)
{
    if (!log || !log->sink) return;
    char text[4096];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    log->sink(log->user, level, text);
}
