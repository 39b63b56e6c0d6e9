/* The edited model as bytes. */
#ifndef MPRI_CONVERT_WRITE_H
#define MPRI_CONVERT_WRITE_H

#include "convert/decide.h"

mpr_status mpri_convert_write(const ImportedModel *m, Decisions *d, const ConvertOptions *o, Arena *arena, Text *out, ConvertResult *r, Err *err);

#endif
