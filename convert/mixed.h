/* mpr-convert by painting: all scopes of a file, training and inference, into 16 bits and back. */
#ifndef MPRI_CONVERT_MIXED_H
#define MPRI_CONVERT_MIXED_H

#include "convert/convert.h"
#include "convert/paint.h"

typedef struct MixedOptions {
    DType to;
    const char *mode;          /* "train", "infer"; NULL: train when there are float weights */
    PaintOptions paint;
    const char *const *io;
    const char *external;      /* "auto", "never", "always" */
    const char *report, *dot, *svg, *annotations; /* files to write, or NULL */
    const char *explain;       /* node; the text goes to *explained */
    char **explained;          /* from the allocator */
    const char *const *echo;   /* options for the report: key, value, key, value … NULL */
    bool dry_run, no_passes, strict;
    const Alloc *alloc;
    const Log *log;
} MixedOptions;

mpr_status mpri_mixed_file(const ImportedModel *m, const char *path, const MixedOptions *o,
                           ConvertResult *r, Err *err);

#endif
