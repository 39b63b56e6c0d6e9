/* The state of one conversion by painting, and the parts of mixed.c that lie in files of their own:
 * tensor data outside the file, the check by numbers, what is written. Everything lives in the pool
 * but the runs of the plain model. */
#ifndef MPRI_CONVERT_MIXED_STATE_H
#define MPRI_CONVERT_MIXED_STATE_H

#include "convert/mixed.h"
#include "importer/file.h"

enum { MIXED_LARGE = 1 << 20 }; /* bytes that are not kept in memory on the way */

typedef struct DataCopy { /* a data file that goes along as it is */
    const char *location, *path;
    const SourceMap *map; /* NULL: it does not */
    bool fresh;           /* to be written */
    WriteStage stage;
} DataCopy;

typedef struct Mixed {
    const ImportedModel *given;
    const MixedOptions *o;
    Pool pool;
    Mix mix;
    Paint paint;
    PaintOptions po;
    Rewrite rewrite;
    int undone;
    const char *decisions; /* that are inside the model */
    MixedImage *image;     /* instead of a file, in the arena */
    Arena *image_arena;
    const char *data_name; /* of the file with tensor data, beside the output */
    Piece *data;
    int n_data, cap_data;
    size_t data_size;
    const char *folder, *name; /* of the output, with its slash, and in there */
    bool verbatim;         /* data files go along as they are */
    DataCopy *copies;
    int n_copies, cap_copies;
    Plain *plain, *calib;  /* runs of the model without casts of ours */
    Verification verified;
    const char **raised;   /* by number of the node, see PaintOptions */
    int n_raised;
    bool hopeless;         /* raising all of them is not enough */
    size_t bytes_before;   /* with the data files */
    bool reported;
    bool trial;            /* one of several tries: nothing is told */
    ConvertResult *r;
    Err *err;
} Mixed;

/* mixed_data.c: tensor data go to the place where they are written; out: out of the file. */
mpr_status mpri_mixed_place(Mixed *c, bool out);

/* mixed_check.c: runs of the plain model, and what the rewritten one makes of the same data. */
mpr_status mpri_mixed_run_plain(Mixed *c);
mpr_status mpri_mixed_verify(Mixed *c, const Piece *pieces, int n);
/* Which nodes have to be raised so that the outputs come within the tolerance asked for. */
mpr_status mpri_mixed_search(Mixed *c);
mpr_status mpri_mixed_tell(Mixed *c);   /* the table */
mpr_status mpri_mixed_breach(Mixed *c); /* the error */

/* mixed_write.c */
mpr_status mpri_mixed_reports(Mixed *c, size_t bytes);
/* What is known of a model that is refused. The error stays what it is. */
void mpri_mixed_refusal(Mixed *c);
mpr_status mpri_mixed_write(Mixed *c, const char *path, const Piece *pieces, int n);

/* mixed.c */
mpr_status mpri_mixed_attempt(Mixed *c); /* converts in memory and checks by numbers */
size_t mpri_mixed_size(const Piece *pieces, int n);
const void *mpri_mixed_joined(Mixed *c, const Piece *pieces, int n, size_t *size);

#endif
