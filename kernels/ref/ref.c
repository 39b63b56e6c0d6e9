/* The list of reference families, in the order of ops.def. */
#include "kernels/ref/ref.h"

#include "kernels/ref/util.h"

#define FAMILY(name) {mpri_ref_##name, (int)(sizeof mpri_ref_##name / sizeof mpri_ref_##name[0])}

static const KernelTable families[] = {
    FAMILY(elementwise), FAMILY(cast), FAMILY(matmul), FAMILY(reduce), FAMILY(softmax), FAMILY(norm),
    FAMILY(loss), FAMILY(layout), FAMILY(index), FAMILY(conv), FAMILY(dropout), FAMILY(update),
};

const KernelTable *mpri_ref_tables(int *n)
{
    *n = (int)(sizeof families / sizeof families[0]);
    return families;
}
