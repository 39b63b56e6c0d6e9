/* Constants that a gradient reaches and that are no parameters all the same. */
#ifndef MPRI_IMPORTER_BUFFERS_H
#define MPRI_IMPORTER_BUFFERS_H

#include "runtime/ir/graph.h"

/* What v, a float constant with a differentiable path, is instead of a parameter; NULL: nothing
 * known, so it is one. made_up: its name was made by an exporter, or it stood in a Constant node. */
const char *mpri_buffer_reason(const Graph *g, const Value *v, bool made_up);

#endif
