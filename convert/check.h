/* The gate before a converted file appears. */
#ifndef MPRI_CONVERT_CHECK_H
#define MPRI_CONVERT_CHECK_H

#include "importer/importer.h"

/* Node by node: does `after` hold a type that ONNX does not allow there, where `before` did not?
 * MPR_E_INTERNAL names the node. */
mpr_status mpri_convert_check(const ImportedModel *before, const ImportedModel *after,
                              Arena *arena, Err *err);

#endif
