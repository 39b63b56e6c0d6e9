/* Which tensors are parameters, and why. */
#ifndef MPRI_IMPORTER_PARAMS_H
#define MPRI_IMPORTER_PARAMS_H

#include "importer/ties.h"

/* Fills graph->params in file order (then merged copies, then lifted Constants) and warns of
 * non-finite values. */
mpr_status mpri_params_find(Import *im, const Scope *scope, const Ties *ties, Err *err);

#endif
