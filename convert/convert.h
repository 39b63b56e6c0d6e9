/* mpr-convert under the profiles of torch: the autocast pass's decisions, mapped back through the origins and written into the
 * original bytes. Nothing but marked Casts is added (and Constants, where a constant has to be
 * clamped); initializers, graph inputs and graph outputs keep name, type and contents. */
#ifndef MPRI_CONVERT_H
#define MPRI_CONVERT_H

#include "convert/verify.h"
#include "importer/importer.h"
#include "passes/pass.h"

/* Control flow that sizes decide, with the sizes that training assumes before it knows them, since a
 * profile of torch decides on the nodes behind it, too. The bytes of m are those of the
 * image where there is one. *out: the model with what could be settled, or NULL; mpri_import_destroy. */
typedef struct ConvertSettle {
    mpr_status (*fn)(void *user, const ImportedModel *m, const void *image, size_t size,
                     ImportedModel **out, Err *err);
    void *user;
} ConvertSettle;

/* What a profile decides, for the painter to write. In the arena. */
typedef struct ConvertUnits {
    Arena *arena;
    const char *decisions;         /* as mpri_decisions_text gives them */
    const char *const *saturated;  /* constants that are clamped; NULL-terminated */
} ConvertUnits;

typedef struct ConvertOptions {
    DType to; /* MPR_FLOAT16 or MPR_BFLOAT16; MPR_FLOAT32: what an earlier run added goes */
    const Profile *profile; /* not needed for f32 */
    const KernelSet *ref;
    const Alloc *alloc;
    const Log *log;
    ConvertSettle settle; /* fn NULL: what is open stays */
    bool dry_run;
    int64_t opset; /* of ai.onnx, to which the model is raised first; 0: as it is */
    ConvertUnits *units; /* instead of a file */
    const char *explain; /* a node: its reasons go to *explained, from the allocator; or NULL */
    char **explained;
    bool strict; /* a rule that matches nothing is an error */
    /* what follows is not for the way back to f32 */
    const char *report, *dot, *svg, *annotations; /* files to write, or NULL */
    bool annotate;    /* decisions go into the metadata, the graph stays */
    MixedCheck check; /* verify alone, without a search */
    const char *const *echo;        /* options for the report: key, value, key, value … NULL */
} ConvertOptions;

typedef struct ConvertResult {
    int64_t casts; /* added; f32: taken out */
    int64_t nodes_low, nodes_fp32;
    bool changed; /* the bytes written, or to be written, are not those of the model */
} ConvertResult;

/* What an earlier run added is taken out first, so running twice gives the same bytes. Writes
 * beside path and renames after the result has passed import, inference and the type check.
 * MPR_E_OPSET when the type needs a newer opset. On
 * failure nothing is left behind and what was at path is there. */
mpr_status mpri_convert_file(const ImportedModel *m, const char *path, const ConvertOptions *o,
                             ConvertResult *r, Err *err);

#endif
