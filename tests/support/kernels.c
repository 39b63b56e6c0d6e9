/* Kernels called by hand; see kernels.h. */
#include "tests/support/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/ref/ref.h"
#include "runtime/base/size.h"
#include "runtime/exec/threads.h"

enum { GUARD = 64, FILL = 0xAB };

static size_t bytes_of(const Tensor *t)
{
    return (size_t)t->n * mpri_dtype_size(t->dtype);
}

Tensor test_tensor_new(Arena *a, DType type, int rank, const int64_t *dims)
{
    Tensor t = {.dtype = type, .rank = rank};
    for (int i = 0; i < rank; i++) t.dims[i] = dims[i];
    if (!mpri_size_elements(rank, dims, &t.n)) fail_msg("bad shape");
    size_t bytes = bytes_of(&t) + 64 + GUARD;
    char *p = mpri_arena_alloc(a, bytes);
    if (!p) fail_msg("no memory for a test tensor");
    memset(p, FILL, bytes);
    t.data = p + (64 - (uintptr_t)p % 64) % 64;
    return t;
}

bool test_tensor_guard(const Tensor *t)
{
    const unsigned char *p = (const unsigned char *)t->data + bytes_of(t);
    for (int i = 0; i < GUARD; i++)
        if (p[i] != FILL) return false;
    return true;
}

Tensor test_tensor(Arena *a, const char *text)
{
    char name[16];
    int at = 0, rank = 0;
    int64_t dims[MPRI_TENSOR_RANK];
    if (sscanf(text, "%15[^[][%n", name, &at) != 1 || !at) fail_msg("tensor text: %s", text);
    const char *s = text + at;
    while (*s != ']') {
        char *end;
        dims[rank++] = strtoll(s, &end, 10);
        s = *end == ',' ? end + 1 : end;
    }
    s += 2; /* "]=" */
    Tensor t = test_tensor_new(a, mpri_dtype_parse(name), rank, dims);
    memset(t.data, 0, bytes_of(&t));
    for (int64_t i = 0; i < t.n; i++) {
        char *end;
        if (mpri_dtype_is_float(t.dtype)) {
            double v = strtod(s, &end);
            if (end != s) mpri_store_f64(t.dtype, t.data, i, v);
        } else {
            int64_t v =
                t.dtype == MPR_UINT64 ? (int64_t)strtoull(s, &end, 10) : strtoll(s, &end, 10);
            if (end != s) mpri_store_i64(t.dtype, t.data, i, v);
        }
        if (end == s && i > 0) fail_msg("too few numbers: %s", text);
        if (end == s) return t;
        s = end;
    }
    if (s[strspn(s, " ")]) fail_msg("too many numbers: %s", text);
    return t;
}

static int add_rows(const KernelTable *tables, int n, int op, const KernelRow **rows, int have,
                    int max)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < tables[i].n; k++)
            if (tables[i].rows[k].op == op && tables[i].rows[k].isa <= mpri_cpu_isa() && have < max)
                rows[have++] = &tables[i].rows[k];
    return have;
}

int test_kernel_rows(int op, const KernelRow **rows, int max)
{
    int n;
    const KernelTable *tables = mpri_cpu_tables(&n);
    int have = add_rows(tables, n, op, rows, 0, max);
    tables = mpri_ref_tables(&n);
    return add_rows(tables, n, op, rows, have, max);
}

mpr_status test_kernel_run(Arena *a, const KernelRow *row, const void *params, int n_in,
                           const Tensor *in, int n_out, Tensor *out, Threads *threads,
                           KernelFault *fault)
{
    KernelCall call = {.params = params, .n_in = n_in, .n_out = n_out, .in = in, .out = out,
                       .threads = threads, .seed = 7, .step = 3, .fault = fault};
    if (row->workspace) {
        KernelSig sig = {row->op, params, n_in, n_out, in, out, ~(uint64_t)0, 0};
        int64_t bytes = (int64_t)row->workspace(&sig, threads ? mpri_threads_count(threads) : 1);
        Tensor w = test_tensor_new(a, MPR_UINT8, 1, &bytes);
        call.workspace = w.data;
        mpr_status status = row->fn(&call);
        if (!test_tensor_guard(&w)) fail_msg("%s writes behind its workspace", row->name);
        return status;
    }
    return row->fn(&call);
}

static bool close_enough(double found, double expected, double tolerance)
{
    if (isnan(expected)) return isnan(found);
    if (found == expected) return true;
    return fabs(found - expected) <= tolerance * (1 + fabs(expected));
}

static void compare(const KernelRow *row, int index, int output, const Tensor *found,
                    const Tensor *expected, double tolerance)
{
    for (int64_t i = 0; i < found->n; i++) {
        double f = mpri_load_f64(found->dtype, found->data, i);
        double e = mpri_load_f64(expected->dtype, expected->data, i);
        bool same = mpri_dtype_is_float(found->dtype)
                        ? close_enough(f, e, tolerance)
                        : mpri_load_i64(found->dtype, found->data, i) ==
                              mpri_load_i64(expected->dtype, expected->data, i);
        if (!same)
            fail_msg("case %d, %s, output %d, element %lld: %.9g, expected %.9g", index, row->name,
                     output, (long long)i, f, e);
    }
    if (!test_tensor_guard(found))
        fail_msg("case %d, %s writes behind output %d", index, row->name, output);
}

static void run_case(Arena *a, const KernelCase *c, int index, const KernelRow *row)
{
    Tensor in[8] = {{0}}, out[4] = {{0}}, expected[4] = {{0}};
    int n_in = 0, n_out = 0;
    for (int k = 0; k < 8; k++)
        if (c->in[k]) {
            in[k] = test_tensor(a, c->in[k]);
            n_in = k + 1;
        }
    for (int k = 0; k < 4; k++)
        if (c->out[k]) {
            expected[k] = test_tensor(a, c->out[k]);
            out[k] = test_tensor_new(a, expected[k].dtype, expected[k].rank, expected[k].dims);
            n_out = k + 1;
        }
    KernelSig sig = {c->op, c->params, n_in, n_out, in, out, ~(uint64_t)0, 0};
    if (row->refuse && row->refuse(&sig)) return;
    KernelFault fault = {.input = -1};
    mpr_status status = test_kernel_run(a, row, c->params, n_in, in, n_out, out, NULL, &fault);
    if (status != c->status)
        fail_msg("case %d, %s: %s, expected %s", index, row->name, mpr_status_text(status),
                 mpr_status_text(c->status));
    if (status == MPR_E_INDEX && fault.input < 0)
        fail_msg("case %d, %s: fault not filled", index, row->name);
    double unit = mpri_dtype_is_low(n_out ? out[0].dtype : MPR_FLOAT32) ? 0x1p-8 : 1e-6;
    double tolerance = row->isa && c->tolerance < unit ? unit : c->tolerance;
    for (int k = 0; k < n_out && status == MPR_OK; k++)
        if (c->out[k]) compare(row, index, k, &out[k], &expected[k], tolerance);
}

void test_kernel_cases(const KernelCase *cases, int n)
{
    Arena a;
    mpri_arena_init(&a, mpri_alloc_default(), 0);
    for (int i = 0; i < n; i++) {
        const KernelRow *rows[16];
        int count = test_kernel_rows(cases[i].op, rows, 16);
        if (!count) fail_msg("case %d: no kernel", i);
        for (int r = 0; r < count; r++) run_case(&a, &cases[i], i, rows[r]);
        mpri_arena_reset(&a);
    }
    mpri_arena_destroy(&a);
}
