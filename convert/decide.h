/* What each node of the file computes in, and what its values hold before and after. */
#ifndef MPRI_CONVERT_DECIDE_H
#define MPRI_CONVERT_DECIDE_H

#include "convert/file.h"

/* Runs the prepare passes with autocast on a clone, as training does, and maps the types found
 * there to the nodes and values of f, which has been read. The clone stays in f's arena. */
mpr_status mpri_convert_decide(FileGraph *f, const ConvertOptions *o, ConvertResult *r, Err *err);

typedef struct DecidedFile { /* what is written */
    bool changed;
    size_t before, after; /* bytes */
} DecidedFile;

/* decided.c: the decisions in the form of the painter's, for reports, the check by numbers, and
 * decisions that are kept. *out is NULL when o asks for nothing of that. given: the model as the
 * caller has it. A profile that comes from decisions has to agree with them. */
typedef struct Decided Decided;
mpr_status mpri_decided_make(const FileGraph *f, const ConvertOptions *o,
                             const ImportedModel *given, Arena *arena, Decided **out, Err *err);
/* For the painter to write. */
mpr_status mpri_decided_units(Decided *d, ConvertUnits *units, Err *err);
/* The entry of the model's metadata. */
mpr_status mpri_decided_entry(Decided *d, Text *out, Err *err);
/* Runs the bytes that are going to be written; f has been written. The outcome is in the report and
 * in the table, *breach says it. */
mpr_status mpri_decided_verify(Decided *d, const Piece *pieces, int n, bool *breach, Err *err);
mpr_status mpri_decided_breach(const Decided *d, Err *err); /* the error */
mpr_status mpri_decided_report(Decided *d, const DecidedFile *file, Err *err);
void mpri_decided_end(Decided *d); /* NULL-safe; the rest is the arena's */

#endif
