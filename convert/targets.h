/* The files that a conversion is going to write must not be those that it reads, nor one another. */
#ifndef MPRI_CONVERT_TARGETS_H
#define MPRI_CONVERT_TARGETS_H

#include "importer/source.h"
#include "runtime/base/err.h"

typedef struct TargetFile {
    const char *option, *path; /* path NULL: not asked for */
} TargetFile;

/* MPR_E_USAGE names the two. `written` and `read` end with option NULL; the files of s are read. */
mpr_status mpri_targets_check(const Source *s, const TargetFile *written, const TargetFile *read,
                              Err *err);

#endif
