/* mpr-convert: the autocast pass's decisions, mapped back through the origins and written into the
 * original bytes. Nothing but Cast nodes is added; initializers, graph inputs and graph outputs keep name,
 * type and contents. */
#ifndef MPRI_CONVERT_H
#define MPRI_CONVERT_H

#include "importer/importer.h"
#include "passes/pass.h"

typedef struct ConvertOptions {
    DType to;                 /* MPR_FLOAT16 or MPR_BFLOAT16 */
    const Profile *profile;
    const KernelSet *ref;
    const Alloc *alloc;
    const Log *log;
    bool dry_run;
} ConvertOptions;

typedef struct ConvertResult {
    int64_t casts, nodes_low, nodes_fp32;
    bool changed;
} ConvertResult;

/* Writes path beside and renames it after the result has passed import and type inference again.
 * MPR_E_USAGE when path is the model itself, MPR_E_OPSET when the type needs a newer opset. */
mpr_status mpri_convert_file(const ImportedModel *m, const char *path, const ConvertOptions *o, ConvertResult *r, Err *err);

#endif
