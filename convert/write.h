/* The decisions as edits of the original bytes. */
#ifndef MPRI_CONVERT_WRITE_H
#define MPRI_CONVERT_WRITE_H

#include "convert/file.h"
#include "importer/export.h"

/* Edits of the main graph go to x; the model's metadata entry that lists them, as a field, to
 * marks (empty from IR 10 on, where nodes and values carry marks). */
mpr_status mpri_convert_write(FileGraph *f, const ConvertOptions *o, Export *x, Text *marks,
                              ConvertResult *r, Err *err);

#endif
