/* mpr-convert by painting: all scopes of a file, training and inference, into 16 bits and back. */
#ifndef MPRI_CONVERT_MIXED_H
#define MPRI_CONVERT_MIXED_H

#include "convert/convert.h"
#include "convert/paint.h"
#include "convert/rewrite.h"
#include "convert/verify.h"

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
    const char *decisions;     /* text of a sidecar file that takes the place of the painting */
    const ConvertUnits *units; /* what a profile of torch decides; or NULL */
    const Profile *profile;    /* … that profile, for the report */
    bool own_decisions;        /* those that the model carries do, where they are for this type */
    bool annotate;             /* decisions go into the metadata, the graph stays */
    MixedCheck check;
    size_t most_inline;        /* bytes; above, tensor data go to a file. 0: what protobuf can hold */
    int64_t opset;             /* of ai.onnx, to which the model is raised first; 0: as it is */
    bool inline_calls;         /* of the model's functions */
    bool drop_rounding;        /* f32: narrowing Casts of the user go */
    bool dry_run, no_passes, strict;
    const KernelSet *kernels;  /* of the device that will run it, for warnings; or NULL */
    const Alloc *alloc;
    const Log *log;
} MixedOptions;

/* Why a value of the rewritten model has its type, by the name of the value. */
typedef struct MixedWhy {
    const char *value, *why;
} MixedWhy;

/* The model that mpri_mixed_file would write, in the arena; reports are not written. */
typedef struct MixedImage {
    void *bytes;
    size_t size;
    const MixedWhy *why; /* sorted by value */
    int n_why;
} MixedImage;
const MixedWhy *mpri_mixed_reasons(const Mix *m, const RewriteCast *casts, Arena *arena, int *n);
mpr_status mpri_mixed_image(const ImportedModel *m, const MixedOptions *o, Arena *arena,
                            MixedImage *image, Err *err);

mpr_status mpri_mixed_file(const ImportedModel *m, const char *path, const MixedOptions *o,
                           ConvertResult *r, Err *err);

#endif
