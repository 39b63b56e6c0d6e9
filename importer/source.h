/* The mapped model file and where its parts lie: made by the pre-scan, used by loader, exporter and
 * converter. Offsets are from the start of the file; spans include the field's payload only unless
 * said. */
#ifndef MPRI_IMPORTER_SOURCE_H
#define MPRI_IMPORTER_SOURCE_H

#include "runtime/base/alloc.h"
#include "runtime/base/arena.h"
#include "runtime/base/text.h"

typedef struct Span {
    size_t at, len;
} Span; /* payload */

typedef struct SourceField { /* one occurrence of a length-delimited field */
    Span tagged;             /* tag + length + payload: what an edit replaces */
    Span body;               /* payload */
} SourceField;

typedef struct SourceTensor { /* an initializer */
    SourceField field;
    const char *name;
    int64_t data_type;
    int rank;
    const int64_t *dims;
    Span raw; /* raw_data payload; len 0 when absent or external */
    bool has_raw, external;
    int typed_field;      /* field number of the typed storage in use (4 float_data …), 0 none */
    const char *location; /* external data */
    int64_t ext_offset, ext_length;
    const void *data; /* decoded or mapped contents, contiguous; NULL until loaded */
} SourceTensor;

typedef struct Source {
    int fd; /* -1: the bytes are borrowed from memory */
    const uint8_t *bytes; /* whole file, mapped read-only */
    size_t size;
    int64_t changed; /* time of the last change, ns: to notice a file that moves under us */
    char *path, *folder;
    SourceField graph; /* field 7 of ModelProto */
    SourceField *nodes;
    int n_nodes; /* fields 1 of the main GraphProto, file order */
    SourceTensor *tensors;
    int n_tensors; /* fields 5 of the main GraphProto */
    SourceField *value_infos;
    int n_value_infos; /* fields 13 of the main GraphProto */
    SourceField *opset_imports;
    int n_opset_imports;
    /* mapped external files */
    struct SourceMap *maps;
    int n_maps;
} Source;

/* MPR_E_IO when the model or a data file of it has another size or time of change than when it was
 * mapped: its pages may be gone, so this is asked before large reads of them. */
mpr_status mpri_source_unchanged(const Source *s, Err *err);

/* Wire-level edits: replace [at, at+len) by new bytes; insertions have len 0. Lengths of the
 * enclosing graph message are recomputed. Edits are applied in file order and must not overlap. */
typedef struct SourceEdit {
    size_t at, len;
    const void *bytes;
    size_t n;
} SourceEdit;
/* Assemble the edited model (edits inside the main graph only) into a growing text. */
mpr_status mpri_source_edit(const Source *s, const SourceEdit *edits, int n, Text *out, Err *err);
/* Bytes that are made while they are written, so that they are nowhere as a whole. */
typedef struct PieceMaker {
    void (*make)(const struct PieceMaker *m, size_t at, void *out, size_t n);
} PieceMaker;
/* A run of bytes of a file to be written; the memory is the caller's. */
typedef struct Piece {
    const void *bytes;
    size_t n;
    const PieceMaker *maker; /* not NULL: bytes is NULL; asked for multiples of 64 but at the end */
    const Source *source;    /* not NULL: mapped by it, and not needed any more once written */
} Piece;
/* Bytes of the mapped files leave memory until they are read again; bytes from elsewhere stay. */
/* s may be NULL. */
void mpri_source_release(const Source *s, const void *bytes, size_t n);
/* Do two runs hold the same bytes? Large ones leave memory while they are compared. */
bool mpri_source_same(const Source *a, const void *x, const Source *b, const void *y, size_t n);
/* The edited model as pieces of the mapped file and of the edits: 2 * n + 3 of them at most, no
 * copy made. */
mpr_status mpri_source_pieces(const Source *s, const SourceEdit *edits, int n, Piece *out,
                              int *n_out, uint8_t head[16], Err *err);
/* Is path the model file or one of its data files, by whatever name? */
bool mpri_source_reads(const Source *s, const char *path);
/* Write bytes to path: temp beside, fsync, rename, fsync folder. MPR_E_IO with the reason. */
mpr_status mpri_write_file_atomic(const char *path, const void *bytes, size_t n, Err *err);
mpr_status mpri_write_pieces_atomic(const char *path, const Piece *pieces, int n, Err *err);
/* The same; the file as it lies on disk, still under another name in the folder of path, has to
 * pass `check` before it is renamed. */
typedef mpr_status (*WriteCheck)(void *ctx, const char *written, Err *err);
mpr_status mpri_write_pieces_checked(const char *path, const Piece *pieces, int n,
                                     WriteCheck check, void *ctx, Err *err);
/* In two steps, for files that belong together: each whole on disk under a name of its own, then
 * all into their places. */
typedef struct WriteStage {
    const char *path;
    int dir; /* -1: nothing is staged */
    char temp[256];
} WriteStage;
mpr_status mpri_write_stage(const char *path, const Piece *pieces, int n, WriteStage *s, Err *err);
mpr_status mpri_write_commit(WriteStage *s, Err *err); /* nothing is left behind on failure */
void mpri_write_drop(WriteStage *s);

#endif
