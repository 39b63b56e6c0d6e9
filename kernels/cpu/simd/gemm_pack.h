/* Packing: a panel of A or B is copied into the order in which the micro-kernel reads it, and
 * converted to f32 on the way, so 16-bit storage is never expanded in memory as a whole.
 *
 * A panel of A is mr rows: dst[k * mr + i]. A panel of B is n <= 2 W columns, padded with zeros to
 * nv vectors: dst[k * nv * W + j]. Where k is the fast index of the source, W x W blocks are
 * transposed in registers. Trap: full vectors are stored at a stride of mr < W floats, each store
 * correcting the overhang of the one before; the last one of a panel must not overhang, another
 * thread may be filling the next. */
#ifndef MPRI_CPU_GEMM_PACK_H
#define MPRI_CPU_GEMM_PACK_H

#include "kernels/cpu/simd/gemm_kernel.h"

/* Source rows are i (k fast): element (i, k) at i * ld + k. */
VF_FN void pack_a_rows_(DType t, float *dst, const void *src, int64_t ld, int64_t at, int mr,
                        int64_t kc)
{
    vf r[VF_LANES];
    for (int64_t k = 0; k < kc; k += VF_LANES) {
        int kn = kc - k < VF_LANES ? (int)(kc - k) : VF_LANES;
        if (kn == VF_LANES)
            for (int i = 0; i < VF_LANES; i++)
                r[i] = i < mr ? vf_ld(t, src, at + i * ld + k) : vf_zero();
        else
            for (int i = 0; i < VF_LANES; i++)
                r[i] = i < mr ? vf_ld_n(t, src, at + i * ld + k, kn) : vf_zero();
        vf_transpose(r);
        if (kn == VF_LANES) {
            for (int j = 0; j < VF_LANES - 1; j++) vf_store(dst + (k + j) * mr, r[j]);
            float *last = dst + (k + VF_LANES - 1) * mr;
            if (k + VF_LANES < kc) vf_store(last, r[VF_LANES - 1]);
            else vf_store_n(last, r[VF_LANES - 1], mr);
        } else {
            float block[VF_LANES * VF_LANES];
            for (int j = 0; j < VF_LANES; j++) vf_store(block + j * VF_LANES, r[j]);
            for (int j = 0; j < kn; j++)
                vf_store_n(dst + (k + j) * mr, vf_load(block + j * VF_LANES), mr);
        }
    }
}

/* Source rows are k (i fast): element (i, k) at k * ld + i. All panels of one width go together, so
 * that memory is read in long runs. left: elements from here to the end of a source row. */
VF_FN void pack_a_cols_(DType t, float *dst, const void *src, int64_t ld, int64_t at, int64_t left,
                        int mr, int64_t count, int64_t kc)
{
    int64_t whole = count; /* panels where a full vector may be read */
    while (whole > 0 && left < (whole - 1) * mr + VF_LANES) whole--;
    for (int64_t k = 0; k < kc; k++) {
        const bool last = k == kc - 1;
        for (int64_t p = 0; p < count; p++) {
            float *to = dst + (p * kc + k) * mr;
            int64_t from = at + k * ld + p * mr;
            vf v = p < whole ? vf_ld(t, src, from) : vf_ld_n(t, src, from, mr);
            if (last) vf_store_n(to, v, mr);
            else vf_store(to, v);
        }
    }
}

/* Source rows are k (j fast): element (k, j) at k * ld + j. Full panels together; a ragged one. */
VF_FN void pack_b_rows_(DType t, float *dst, const void *src, int64_t ld, int64_t at, int64_t count,
                        int64_t kc)
{
    for (int64_t k = 0; k < kc; k++)
        for (int64_t p = 0; p < count; p++) {
            float *to = dst + (p * kc + k) * GEMM_NR;
            int64_t from = at + k * ld + p * GEMM_NR;
            vf_store(to, vf_ld(t, src, from));
            vf_store(to + VF_LANES, vf_ld(t, src, from + VF_LANES));
        }
}
VF_FN void pack_b_rows_n_(DType t, float *dst, const void *src, int64_t ld, int64_t at, int n,
                          int64_t kc)
{
    int nv = n > VF_LANES ? 2 : 1, n0 = n < VF_LANES ? n : VF_LANES, n1 = n - n0;
    for (int64_t k = 0; k < kc; k++, dst += nv * VF_LANES) {
        vf_store(dst, vf_ld_n(t, src, at + k * ld, n0));
        if (nv > 1) vf_store(dst + VF_LANES, vf_ld_n(t, src, at + k * ld + VF_LANES, n1));
    }
}

/* Source rows are j (k fast): element (k, j) at j * ld + k. */
VF_FN void pack_b_cols_(DType t, float *dst, const void *src, int64_t ld, int64_t at, int n,
                        int64_t kc)
{
    int nv = n > VF_LANES ? 2 : 1;
    vf r[VF_LANES];
    for (int v = 0; v < nv; v++) {
        int jn = n - v * VF_LANES < VF_LANES ? n - v * VF_LANES : VF_LANES;
        int64_t row = at + v * VF_LANES * ld;
        float *to = dst + v * VF_LANES;
        for (int64_t k = 0; k < kc; k += VF_LANES) {
            int kn = kc - k < VF_LANES ? (int)(kc - k) : VF_LANES;
            if (kn == VF_LANES && jn == VF_LANES)
                for (int j = 0; j < VF_LANES; j++) r[j] = vf_ld(t, src, row + j * ld + k);
            else
                for (int j = 0; j < VF_LANES; j++)
                    r[j] = j < jn ? vf_ld_n(t, src, row + j * ld + k, kn) : vf_zero();
            vf_transpose(r);
            if (kn == VF_LANES) {
                for (int j = 0; j < VF_LANES; j++) vf_store(to + (k + j) * nv * VF_LANES, r[j]);
            } else {
                float block[VF_LANES * VF_LANES];
                for (int j = 0; j < VF_LANES; j++) vf_store(block + j * VF_LANES, r[j]);
                for (int j = 0; j < kn; j++)
                    vf_store(to + (k + j) * nv * VF_LANES, vf_load(block + j * VF_LANES));
            }
        }
    }
}

#define PACK_BY_TYPE(call)                      \
    switch (t) {                                \
    case MPR_FLOAT32: call(MPR_FLOAT32); break; \
    case MPR_FLOAT16: call(MPR_FLOAT16); break; \
    default: call(MPR_BFLOAT16); break;         \
    }

/* count panels of mr rows from row i0 on, k0 .. k0 + kc - 1, of op(A), which has m rows. */
static void pack_a(DType t, bool trans, float *dst, const void *a, int64_t lda, int64_t m,
                   int64_t i0, int mr, int64_t count, int64_t k0, int64_t kc)
{
    if (trans) {
#define CALL(T) pack_a_cols_(T, dst, a, lda, k0 * lda + i0, m - i0, mr, count, kc)
        PACK_BY_TYPE(CALL)
#undef CALL
        return;
    }
    for (int64_t p = 0; p < count; p++) {
#define CALL(T) pack_a_rows_(T, dst + p * mr * kc, a, lda, (i0 + p * mr) * lda + k0, mr, kc)
        PACK_BY_TYPE(CALL)
#undef CALL
    }
}

/* Columns j0 .. j0 + n - 1, k0 .. k0 + kc - 1 of op(B): full panels, then a ragged one. */
static void pack_b(DType t, bool trans, float *dst, const void *b, int64_t ldb, int64_t j0,
                   int64_t n, int64_t k0, int64_t kc)
{
    int64_t count = n / GEMM_NR;
    int rest = (int)(n % GEMM_NR);
    if (trans) {
        for (int64_t p = 0; p * GEMM_NR < n; p++) {
            int size = p < count ? GEMM_NR : rest;
#define CALL(T) \
    pack_b_cols_(T, dst + p * GEMM_NR * kc, b, ldb, (j0 + p * GEMM_NR) * ldb + k0, size, kc)
            PACK_BY_TYPE(CALL)
#undef CALL
        }
        return;
    }
#define CALL(T) pack_b_rows_(T, dst, b, ldb, k0 * ldb + j0, count, kc)
    PACK_BY_TYPE(CALL)
#undef CALL
    if (!rest) return;
#define CALL(T) \
    pack_b_rows_n_(T, dst + count * GEMM_NR * kc, b, ldb, k0 * ldb + j0 + count * GEMM_NR, rest, kc)
    PACK_BY_TYPE(CALL)
#undef CALL
}
#undef PACK_BY_TYPE

#endif
