/* Inside of the export: shared by export.c and export_data.c. */
#ifndef MPRI_IMPORTER_EXPORT_H
#define MPRI_IMPORTER_EXPORT_H

#include "importer/importer.h"

typedef struct ExportEdit {
    SourceEdit edit;
    int order; /* in which it was made: keeps insertions at one place in order */
} ExportEdit;

typedef struct DataPatch { /* new contents of an external tensor */
    const SourceTensor *tensor;
    const void *bytes;
    size_t size;
} DataPatch;

typedef struct DataFile { /* written where there was none */
    const char *path;
    struct DataFile *next;
} DataFile;

typedef struct Export {
    const ImportedModel *m;
    const Alloc *alloc;
    Arena arena; /* of the call */
    const WeightPatch **patches;
    int n_patches;    /* by name */
    int used;         /* patches that found a tensor */
    const void **now; /* by initializer: contents after the export */
    ExportEdit *edits;
    int n_edits, cap_edits;
    DataPatch *data;
    int n_data, cap_data;
    DataFile *files; /* what to remove should the model not be written in the end */
} Export;

mpr_status mpri_export_edit(Export *x, size_t at, size_t len, const void *bytes, size_t n,
                            Err *err);
mpr_status mpri_export_edit_text(Export *x, size_t at, size_t len, Text *t, Err *err); /* frees t */
mpr_status mpri_export_external(Export *x, const SourceTensor *t, const void *bytes, size_t size,
                                Err *err);
/* Writes the external data files that the model at `path` needs beside it; edits of locations are
 * added. */
mpr_status mpri_export_data_files(Export *x, const char *path, Err *err);

#endif
