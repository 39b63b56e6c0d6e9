/* Det and its gradient by Gaussian elimination with complete pivoting: P x Q = L U (Golub and Van
 * Loan, Matrix Computations, 3.4.8).
 *
 * The gradient needs the adjugate adj(x) = det(P) det(Q) * Q adj(U) inv(L) P, without dividing by a
 * pivot, which is 0 in a singular matrix. For a triangular matrix it grows by one row and column:
 *   adj([U u; 0 d]) = [d adj(U), -adj(U) u; 0, det(U)]. */
#include "kernels/ref/util.h"

typedef struct Lu {
    int64_t n;
    double *a;       /* L below the diagonal (its own is 1), U on and above */
    double *adj;     /* adj(U), then adj(U) inv(L); only the gradient has it */
    int64_t *row, *column; /* (P x Q)[i][j] = x[row[i]][column[j]] */
    double sign;     /* det(P) det(Q) */
} Lu;

static size_t lu_bytes(int64_t n, bool adjugate)
{
    size_t matrix = (size_t)(n * n) * sizeof(double);
    return matrix * (adjugate ? 2 : 1) + (size_t)(2 * n) * sizeof(int64_t);
}

static Lu lu_in(void *workspace, int64_t n, bool adjugate)
{
    Lu u = {.n = n, .a = workspace, .sign = 1};
    double *end = u.a + n * n;
    if (adjugate) {
        u.adj = end;
        end += n * n;
    }
    u.row = (int64_t *)(void *)end;
    u.column = u.row + n;
    return u;
}

static void swap_rows(Lu *u, int64_t i, int64_t k)
{
    if (i == k) return;
    for (int64_t j = 0; j < u->n; j++) {
        double t = u->a[i * u->n + j];
        u->a[i * u->n + j] = u->a[k * u->n + j];
        u->a[k * u->n + j] = t;
    }
    int64_t t = u->row[i];
    u->row[i] = u->row[k];
    u->row[k] = t;
    u->sign = -u->sign;
}

static void swap_columns(Lu *u, int64_t j, int64_t k)
{
    if (j == k) return;
    for (int64_t i = 0; i < u->n; i++) {
        double t = u->a[i * u->n + j];
        u->a[i * u->n + j] = u->a[i * u->n + k];
        u->a[i * u->n + k] = t;
    }
    int64_t t = u->column[j];
    u->column[j] = u->column[k];
    u->column[k] = t;
    u->sign = -u->sign;
}

static void factor(Lu *u, const Tensor *x, int64_t base)
{
    int64_t n = u->n;
    double *a = u->a;
    u->sign = 1;
    for (int64_t i = 0; i < n * n; i++) a[i] = mpri_ref_load(x, base + i);
    for (int64_t i = 0; i < n; i++) u->row[i] = u->column[i] = i;
    for (int64_t k = 0; k < n; k++) {
        int64_t r = k, s = k;
        for (int64_t i = k; i < n; i++)
            for (int64_t j = k; j < n; j++)
                if (fabs(a[i * n + j]) > fabs(a[r * n + s])) r = i, s = j;
        swap_rows(u, k, r);
        swap_columns(u, k, s);
        for (int64_t i = k + 1; i < n; i++) {
            double f = a[k * n + k] == 0 ? 0 : a[i * n + k] / a[k * n + k];
            a[i * n + k] = f;
            for (int64_t j = k + 1; j < n; j++) a[i * n + j] -= f * a[k * n + j];
        }
    }
}

static mpr_status k_det(const KernelCall *c)
{
    const Tensor *x = &c->in[0];
    int64_t n = x->dims[x->rank - 1];
    Lu u = lu_in(c->workspace, n, false);
    for (int64_t m = 0; m < c->out[0].n; m++) {
        factor(&u, x, m * n * n);
        double det = u.sign;
        for (int64_t i = 0; i < n; i++) det *= u.a[i * n + i];
        mpri_ref_store(&c->out[0], m, det);
    }
    return MPR_OK;
}

/* adj(U) inv(L) into adj. */
static void adjugate(Lu *u)
{
    int64_t n = u->n;
    double det = 1, *b = u->adj;
    for (int64_t k = 0; k < n; k++) {
        double d = u->a[k * n + k];
        for (int64_t i = 0; i < k; i++) {
            double sum = 0;
            for (int64_t j = i; j < k; j++) sum += b[i * n + j] * u->a[j * n + k];
            b[i * n + k] = -sum;
            b[k * n + i] = 0;
        }
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = i; j < k; j++) b[i * n + j] *= d;
        b[k * n + k] = det;
        det *= d;
    }
    for (int64_t j = n - 1; j >= 0; j--)
        for (int64_t k = j + 1; k < n; k++)
            for (int64_t i = 0; i < n; i++) b[i * n + j] -= b[i * n + k] * u->a[k * n + j];
}

/* Inputs dy, x. The cofactor matrix is the transposed adjugate. */
static mpr_status k_det_grad(const KernelCall *c)
{
    const Tensor *x = &c->in[1];
    int64_t n = x->dims[x->rank - 1];
    Lu u = lu_in(c->workspace, n, true);
    for (int64_t m = 0; m < c->in[0].n && n; m++) {
        double dy = mpri_ref_load(&c->in[0], m);
        factor(&u, x, m * n * n);
        adjugate(&u);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                mpri_ref_store(&c->out[0], m * n * n + u.row[j] * n + u.column[i],
                               dy * u.sign * u.adj[i * n + j]);
    }
    return MPR_OK;
}

static size_t det_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return lu_bytes(s->in[0].dims[s->in[0].rank - 1], false);
}

static size_t grad_bytes(const KernelSig *s, int threads)
{
    (void)threads;
    return lu_bytes(s->in[1].dims[s->in[1].rank - 1], true);
}

static const KernelRow rows[] = {
    {.op = OP_Det, .name = "ref.det", .fn = k_det, .workspace = det_bytes},
    {.op = OP_DetGrad, .name = "ref.detgrad", .fn = k_det_grad, .workspace = grad_bytes},
};
const KernelTable mpri_ref_det = REF_TABLE(rows);
