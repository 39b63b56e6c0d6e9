/* What people call a parameter. */
#ifndef MPRI_IMPORTER_NAMES_H
#define MPRI_IMPORTER_NAMES_H

#include "importer/scope.h"

/* Reads the folded_from metadata; once, before the function below. */
mpr_status mpri_param_names_prepare(Import *im, Err *err);
/* Shortest name that a person gave: of n candidates, the output names of Identity nodes that read
 * v, and the folded_from metadata of the candidates; when all were made up by an exporter, the path
 * of v's reader. */
const char *mpri_param_public_name(Import *im, const Value *v, const char *const *candidates,
                                   int n);

#endif
