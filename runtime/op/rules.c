/* Checks that most shape rules share. Messages show both sides: what was found and what was
 * expected. */
#include "runtime/op/rules.h"

#include <inttypes.h>
#include <stdio.h>

const Shape mpri_op_unknown = {.rank = MPRI_RANK_UNKNOWN};

/* "input 1 'w'" for messages; buf is returned. */
static const char *input_text(const InferCtx *c, int k, char *buf, size_t size)
{
    const Value *v = op_in(c, k);
    snprintf(buf, size, "input %d '%s'", k, v ? mpri_err_name(v->name ? v->name : "") : "");
    return buf;
}

static const char *set_text(TypeSet set, char *buf, size_t size)
{
    size_t at = 0;
    buf[0] = '\0';
    for (int t = 1; t <= MPR_BFLOAT16; t++)
        if (set & TS(t)) {
            int n = snprintf(buf + at, size - at, "%s%s", at ? " " : "", mpri_dtype_name((DType)t));
            if (n < 0 || (size_t)n >= size - at) break;
            at += (size_t)n;
        }
    return buf;
}

mpr_status mpri_op_check_type(InferCtx *c, int k, TypeSet set)
{
    DType t = op_type(c, k);
    if (t == MPR_DTYPE_NONE || (set & TS(t))) return MPR_OK;
    char name[256], allowed[160];
    return mpri_err_set(c->err, MPR_E_TYPE, "%s has type %s; allowed: %s",
                        input_text(c, k, name, sizeof name), mpri_dtype_name(t),
                        set_text(set, allowed, sizeof allowed));
}

mpr_status mpri_op_common_type(InferCtx *c, int from, int to, TypeSet set, DType *t)
{
    int first = -1;
    *t = MPR_DTYPE_NONE;
    for (int k = from; k < to && k < c->n->n_in; k++) {
        TRY(mpri_op_check_type(c, k, set));
        DType tk = op_type(c, k);
        if (tk == MPR_DTYPE_NONE) continue;
        if (first < 0) {
            first = k;
            *t = tk;
        } else if (tk != *t) {
            char a[256], b[256];
            return mpri_err_set(c->err, MPR_E_TYPE,
                                "%s has type %s but %s has type %s; they must be the same",
                                input_text(c, first, a, sizeof a), mpri_dtype_name(*t),
                                input_text(c, k, b, sizeof b), mpri_dtype_name(tk));
        }
    }
    return MPR_OK;
}

mpr_status mpri_op_mixed_type(InferCtx *c, int from, int to, TypeSet set, int64_t out_dtype,
                              DType *t)
{
    if (out_dtype == MPR_DTYPE_NONE) return mpri_op_common_type(c, from, to, set, t);
    if (out_dtype < 0 || out_dtype > MPR_BFLOAT16 || !mpri_dtype_is_float((DType)out_dtype))
        return mpri_err_set(c->err, MPR_E_TYPE, "out_dtype is %s; allowed: float types",
                            mpri_dtype_name((DType)out_dtype));
    for (int k = from; k < to && k < c->n->n_in; k++) TRY(mpri_op_check_type(c, k, set & TS_FLOAT));
    *t = (DType)out_dtype;
    return MPR_OK;
}

DType mpri_op_wide(DType x)
{
    if (x == MPR_DTYPE_NONE) return x;
    return x == MPR_FLOAT64 ? MPR_FLOAT64 : MPR_FLOAT32;
}

mpr_status mpri_op_shape_error(InferCtx *c, int k, const char *what, int64_t found)
{
    char name[256], shape[256];
    return mpri_err_set(c->err, MPR_E_SHAPE, "%s: found %" PRId64 " with %s of shape %s", what,
                        found, input_text(c, k, name, sizeof name),
                        mpri_shape_print(c->sym, op_shape(c, k), shape, sizeof shape));
}

mpr_status mpri_op_check_lists(InferCtx *c, const ListRule *lists, int n)
{
    char what[128];
    for (int i = 0; i < n; i++) {
        const ListRule *l = &lists[i];
        if ((l->v.n || l->required) && l->v.n != l->n) {
            snprintf(what, sizeof what, "entries of %s, expected %lld", l->name, (long long)l->n);
            return mpri_op_shape_error(c, 0, what, l->v.n);
        }
        for (int64_t k = 0; k < l->v.n; k++)
            if (l->v.v[k] < l->low || l->v.v[k] > INT32_MAX) {
                snprintf(what, sizeof what, "entry of %s, allowed %lld to %d", l->name,
                         (long long)l->low, INT32_MAX);
                return mpri_op_shape_error(c, 0, what, l->v.v[k]);
            }
    }
    return MPR_OK;
}

mpr_status mpri_op_check_rank(InferCtx *c, int k, int low, int high)
{
    const Shape *s = op_shape(c, k);
    if (s->rank == MPRI_RANK_UNKNOWN || (s->rank >= low && s->rank <= high)) return MPR_OK;
    char name[256], shape[256];
    input_text(c, k, name, sizeof name);
    mpri_shape_print(c->sym, s, shape, sizeof shape);
    if (low == high)
        return mpri_err_set(c->err, MPR_E_SHAPE, "%s has shape %s; allowed rank: %d", name, shape,
                            low);
    return mpri_err_set(c->err, MPR_E_SHAPE, "%s has shape %s; allowed ranks: %d to %d", name,
                        shape, low, high);
}

mpr_status mpri_op_same_dim(InferCtx *c, const char *what, int a, Dim da, int b, Dim db)
{
    if (da == db || !mpri_dim_const(da) || !mpri_dim_const(db)) return MPR_OK;
    char sa[256], sb[256], na[256], nb[256];
    return mpri_err_set(c->err, MPR_E_SHAPE,
                        "%s differ: %" PRId64 " in %s of shape %s, %" PRId64 " in %s of shape %s",
                        what, da, input_text(c, a, na, sizeof na),
                        mpri_shape_print(c->sym, op_shape(c, a), sa, sizeof sa), db,
                        input_text(c, b, nb, sizeof nb),
                        mpri_shape_print(c->sym, op_shape(c, b), sb, sizeof sb));
}

mpr_status mpri_op_expect_shape(InferCtx *c, int k, const Shape *want, const char *what)
{
    const Shape *s = op_shape(c, k);
    if (!op_in(c, k) || s->rank == MPRI_RANK_UNKNOWN || want->rank == MPRI_RANK_UNKNOWN)
        return MPR_OK;
    bool same = s->rank == want->rank;
    for (int i = 0; same && i < s->rank; i++)
        same = s->d[i] == want->d[i] || !mpri_dim_const(s->d[i]) || !mpri_dim_const(want->d[i]);
    if (same) return MPR_OK;
    char name[256], found[256], expected[256];
    return mpri_err_set(c->err, MPR_E_SHAPE, "%s (%s) has shape %s; expected %s",
                        input_text(c, k, name, sizeof name), what,
                        mpri_shape_print(c->sym, s, found, sizeof found),
                        mpri_shape_print(c->sym, want, expected, sizeof expected));
}

mpr_status mpri_op_expect_broadcast_to(InferCtx *c, int k, const Shape *want, const char *what)
{
    const Shape *s = op_shape(c, k);
    if (!op_in(c, k) || s->rank < 0 || want->rank < 0) return MPR_OK;
    bool fits = s->rank <= want->rank;
    for (int i = 0; fits && i < s->rank; i++) {
        Dim d = s->d[i], w = want->d[want->rank - s->rank + i];
        fits = d == 1 || d == w || !mpri_dim_const(d) || !mpri_dim_const(w);
    }
    if (fits) return MPR_OK;
    char name[256], found[256], expected[256];
    return mpri_err_set(c->err, MPR_E_SHAPE, "%s (%s) has shape %s; it must broadcast to %s",
                        input_text(c, k, name, sizeof name), what,
                        mpri_shape_print(c->sym, s, found, sizeof found),
                        mpri_shape_print(c->sym, want, expected, sizeof expected));
}

mpr_status mpri_op_broadcast(InferCtx *c, int from, int to, Shape *out)
{
    bool first = true;
    *out = mpri_op_unknown;
    for (int k = from; k < to && k < c->n->n_in; k++) {
        if (!op_in(c, k)) continue;
        Shape both;
        if (first) both = *op_shape(c, k);
        else TRY(mpri_infer_broadcast(c, out, op_shape(c, k), &both));
        *out = both;
        first = false;
    }
    return MPR_OK;
}

mpr_status mpri_op_dims_shape(InferCtx *c, Ints dims, Shape *out)
{
    if (dims.n < 0 || dims.n > MPRI_MAX_RANK)
        return mpri_err_set(c->err, MPR_E_SHAPE,
                            "attribute dims has %" PRId64 " entries; allowed: at most %d", dims.n,
                            MPRI_MAX_RANK);
    *out = (Shape){.rank = (int)dims.n};
    for (int i = 0; i < out->rank; i++) {
        if (dims.v[i] < 0)
            return mpri_err_set(c->err, MPR_E_SHAPE,
                                "attribute dims has entry %" PRId64 " at %d; allowed: >= 0",
                                dims.v[i], i);
        out->d[i] = dims.v[i];
    }
    return MPR_OK;
}

Shape mpri_op_fresh_shape(InferCtx *c, int64_t n)
{
    if (n < 0 || n > MPRI_MAX_RANK) return mpri_op_unknown;
    Shape s = {.rank = (int)n};
    for (int i = 0; i < s.rank; i++) s.d[i] = mpri_dim_fresh(c->sym);
    return s;
}

mpr_status mpri_op_infer_same(InferCtx *c)
{
    return mpri_infer_set(c, 0, op_type(c, 0), op_shape(c, 0));
}

bool mpri_op_elements(InferCtx *c, int k, Dim *n)
{
    const Shape *s = op_shape(c, k);
    if (s->rank == MPRI_RANK_UNKNOWN) return false;
    *n = 1;
    for (int i = 0; i < s->rank; i++) *n = mpri_dim_mul(c->sym, *n, s->d[i]);
    return true;
}

mpr_status mpri_op_axes(InferCtx *c, int64_t n, const int64_t *v, int rank, int *axes)
{
    bool seen[MPRI_MAX_RANK] = {false};
    if (n > rank)
        return mpri_err_set(c->err, MPR_E_SHAPE, "%" PRId64 " axes for a tensor of rank %d", n,
                            rank);
    for (int64_t i = 0; i < n; i++) {
        TRY(mpri_infer_axis(c, v[i], rank, &axes[i]));
        if (seen[axes[i]])
            return mpri_err_set(c->err, MPR_E_SHAPE, "axis %" PRId64 " is listed twice (rank %d)",
                                v[i], rank);
        seen[axes[i]] = true;
    }
    return MPR_OK;
}

const int64_t *mpri_op_ints(InferCtx *c, int k, int64_t *n)
{
    const Dim *d = op_in(c, k) ? mpri_infer_content(c, k, n) : NULL;
    if (!d) return NULL;
    int64_t *v = ARENA_ARRAY(c->g->arena, int64_t, *n);
    if (!v) return NULL;
    for (int64_t i = 0; i < *n; i++)
        if (!mpri_dim_is_int(c->sym, d[i], &v[i])) return NULL;
    return v;
}
