/* Operators of onnxruntime's optimiser (domain com.microsoft, and two that it writes into the
 * default domain), decomposed into the standard's while the graph is built. */
#ifndef MPRI_IMPORTER_MICROSOFT_H
#define MPRI_IMPORTER_MICROSOFT_H

#include "importer/adapt.h"

/* NULL: not one of them. The function fills out[] for every output that has a name, or sets
 * opaque_why; what it built until then is dead and goes. */
EmitFn mpri_microsoft_find(const char *domain, const char *op_type);
/* One after the other; NULL after the last. */
const char *mpri_microsoft_op(int i, const char **domain);

/* ---- between the files of this decomposition ---- */

typedef struct Fused { /* a node being decomposed; errors are the builder's, sticky */
    Draft *d;
    Builder b;
    Node origin;  /* stands for the source node: new nodes take its origin */
} Fused;

void mpri_fused_begin(Fused *f, Draft *d, Err *err);
/* An attribute or input that was not taken is one the decomposition does not know. */
mpr_status mpri_fused_end(Fused *f, int max_in);
static inline Value *fused_in(const Fused *f, int k) { return k < f->d->n_in ? f->d->in[k] : NULL; }
static inline bool fused_wants(const Fused *f, int k)
{
    return k < f->d->n_out && f->d->node->p->output[k][0];
}
int64_t mpri_fused_int(Fused *f, const char *name, int64_t otherwise);
float mpri_fused_float(Fused *f, const char *name, float otherwise);
Value *mpri_fused_op(Fused *f, int op, const void *params, Value *a, Value *b); /* b may be NULL */
Value *mpri_fused_add(Fused *f, Value *a, Value *b); /* a alone without b */
/* x seen with other dims; 0 copies a dim, -1 is what is left. */
Value *mpri_fused_reshape(Fused *f, Value *x, int rank, const int64_t *dims);
Value *mpri_fused_unsqueeze(Fused *f, Value *x, int n, const int64_t *axes);
/* Dim `axis` of x as an int64 tensor of one element. */
Value *mpri_fused_dim(Fused *f, Value *x, int axis);
/* 0, 1 … n - 1 in int64; n has one element. */
Value *mpri_fused_range(Fused *f, Value *n);
/* n parts along an axis, of the sizes or (sizes NULL) equal. */
void mpri_fused_split(Fused *f, Value *x, int64_t axis, int n, const int64_t *sizes, Value **out);

mpr_status mpri_fused_attention(Draft *d, Value **out, Err *err);
mpr_status mpri_fused_multi_head(Draft *d, Value **out, Err *err);
mpr_status mpri_fused_group_query(Draft *d, Value **out, Err *err);
mpr_status mpri_fused_rotary(Draft *d, Value **out, Err *err);

#endif
