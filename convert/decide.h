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
/* decided.c: the reports that o asks for, in the form of the painter's. f has been written. */
mpr_status mpri_decided_report(const FileGraph *f, const ConvertOptions *o,
                               const DecidedFile *file, Err *err);

#endif
