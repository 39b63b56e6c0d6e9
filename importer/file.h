/* Opening model files and data files beside them. */
#ifndef MPRI_IMPORTER_FILE_H
#define MPRI_IMPORTER_FILE_H

#include "importer/source.h"

typedef struct SourceMap { /* one mapped external data file */
    const char *location;  /* as in the model */
    int fd;
    const uint8_t *bytes;
    size_t size;
    int64_t changed;
    struct SourceMap *next;
} SourceMap;

/* Time of the last change in nanoseconds. */
struct stat;
int64_t mpri_source_time(const struct stat *st);
/* Opens and maps a model; nothing of it is interpreted. MPR_E_IO for what cannot be opened, a
 * folder, a pipe or a device (opening never blocks). The Source lives in the arena;
 * mpri_source_close unmaps. */
mpr_status mpri_source_open(const char *path, Arena *arena, Source **out, Err *err);
/* The same for bytes in memory that stand for the file at path. They are borrowed. */
mpr_status mpri_source_image(const char *path, const void *bytes, size_t size, Arena *arena,
                             Source **out, Err *err);
void mpri_source_close(Source *s); /* NULL-safe */
/* MPR_E_PROTO with advice when the bytes are a well-known other format. */
mpr_status mpri_source_recognise(const Source *s, Err *err);
/* Fills the spans of nodes, tensors, value_infos and opset_imports. Only after the pre-scan. */
mpr_status mpri_source_index(Source *s, Arena *arena, Err *err);

/* Maps the file at `location` below the model's folder, or gives the map made before. EXTDATA_PATH
 * for a location that is not plainly inside, EXTDATA_OPEN when it cannot be opened; tensor is for
 * the message. */
mpr_status mpri_source_external(Source *s, Arena *arena, const char *tensor, const char *location,
                                const SourceMap **out, Err *err);

#endif
