/* Operators without a row of their own, which the importer turns into others: control flow and
 * sequences while functions are inlined, fused operators while the graph is built. The names come
 * from the tables that do it. */
#include "importer/inline_private.h"
#include "importer/microsoft.h"

static const char control[] =
    "its body becomes nodes, once what decides is constant, fixed by a shape, or fed";
static const char sequence[] = "tensors without a sequence around them; its length must be known";
static const char fused[] = "decomposed into operators of the standard";

bool mpri_import_expanded(int i, ExpandedOp *op)
{
    *op = (ExpandedOp){.domain = "", .name = "If", .gradient = true, .note = control};
    if (i-- == 0) return true;
    for (int k = 0; (op->name = mpri_unroll_op(k)); k++)
        if (i-- == 0) return true;
    op->note = sequence;
    for (int k = 0; (op->name = mpri_sequence_op(k, &op->gradient)); k++)
        if (i-- == 0) return true;
    op->note = fused;
    op->gradient = op->foreign = true;
    for (int k = 0; (op->name = mpri_microsoft_op(k, &op->domain)); k++)
        if (i-- == 0) return true;
    return false;
}
