/* The cases of all operators: tests/op/cases/<family>.txt, one line each.
 *
 *   value  the reference kernel and every CPU row against stated results; the shape rule alone
 *          gives their types and shapes
 *   grad   the gradient rule against central differences of fourth order in double, of
 *          sum(cotangent * output) for random cotangents; then the same graph in f16 and bf16 by
 *          the reference kernels, and in f32 by the kernels and passes of a plan, against double on
 *          the same data; elementwise operators also in rank 0, without elements and broadcast
 *   tie    d(sum of output 0)/d(input) where there is no difference quotient
 *   fault  what is refused, with which words
 *
 * Arguments choose operators or files: test_op_cases Softsign reduce
 * With MPR_TEST_DEVICE=cuda values, gradients in every float type and faults come from plans on that device. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/case_check.h"
#include "tests/support/support.h"

/* Operators whose cases are in C: they write slots. */
static const int elsewhere[] = {OP_AccumulateGrad, OP_UnscaleCheck, OP_ClipGradNorm, OP_SgdStep,
                                OP_AdamStep,       OP_LossScale,    OP_ScaleUpdate,
                                OP_LedgerLoss,     OP_LedgerJudge,  OP_LedgerClose,
                                OP_LedgerKeep,     OP_CopyParams,   OP_ScaleGrads,
                                OP_BatchNormUpdate};

static Device *device;

typedef struct Group { /* rows of one operator that stand together */
    const CaseRow *rows;
    int n;
    char name[128];
} Group;

static void check_group(void **state)
{
    const Group *g = *state;
    for (int i = 0; i < g->n; i++) test_case_check(&g->rows[i], device);
}

enum { MAX_FILES = 256, MAX_GROUPS = 4096 };
static Arena arena;
static CaseFile files[MAX_FILES];
static int n_files;

/* Every operator has values, or is internal and part of a gradient that was checked; every one that
 * claims a gradient has it checked. Runs last. */
static void complete(void **state)
{
    (void)state;
    static bool seen[4][OP_COUNT];
    int missing = 0;
    for (int i = 0; i < n_files; i++)
        for (int k = 0; k < files[i].n; k++)
            test_case_mark(&files[i].rows[k], seen[files[i].rows[k].kind]);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        seen[ROW_VALUE][elsewhere[i]] = true;
    for (int i = 0; i < OP_Opaque; i++) {
        const OpDef *op = mpri_op_table()->defs[i];
        bool checked = (op->flags & OPF_INTERNAL) && test_case_reached(i);
        if (!seen[ROW_VALUE][i] && !checked) {
            fprintf(stderr, "no value row for %s in tests/op/cases/%s.txt\n", op->name, op->family);
            missing++;
        }
        if (op->grad_state == GRAD_FUNCTION && !seen[ROW_GRAD][i]) {
            fprintf(stderr, "no grad row for %s in tests/op/cases/%s.txt\n", op->name, op->family);
            missing++;
        }
    }
    assert_int_equal(missing, 0);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void read_files(void)
{
    const char *folder = test_data("../op/cases");
    char *names[MAX_FILES];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) && n_files < MAX_FILES;) {
        size_t n = strlen(e->d_name);
        if (n > 4 && strcmp(e->d_name + n - 4, ".txt") == 0 && e->d_name[0] != '.')
            names[n_files++] = mpri_arena_printf(&arena, "%s", e->d_name);
    }
    if (d) closedir(d);
    qsort(names, (size_t)n_files, sizeof *names, by_name);
    for (int i = 0; i < n_files; i++) {
        const char *path = mpri_arena_printf(&arena, "%s/%s", folder, names[i]);
        if (!test_case_file_read(&files[i], path, names[i], &arena)) {
            fprintf(stderr, "cannot read %s\n", path);
            exit(1);
        }
    }
}

static bool chosen(const CaseRow *r, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        size_t stem = strcspn(r->file, ".");
        if ((r->type && strcmp(argv[i], r->type) == 0) || strcmp(argv[i], r->file) == 0 ||
            (strlen(argv[i]) == stem && memcmp(argv[i], r->file, stem) == 0))
            return true;
    }
    return argc == 1;
}

/* MPR_TEST_DEVICE=cuda: the same rows by plans on a CUDA device, in a program that has one linked in. */
static bool on_cuda(void)
{
    const char *name = getenv("MPR_TEST_DEVICE");
    return name && !strcmp(name, "cuda") && mpri_device_cuda;
}

static int open_device(void **state)
{
    (void)state;
    Err err = {0};
    if (!on_cuda())
        return mpri_device_cpu(mpri_alloc_default(), 1, &device, &err) == MPR_OK ? 0 : -1;
    if (mpri_device_cuda(mpri_alloc_default(), 0, 1, &device, &err) != MPR_OK) {
        fprintf(stderr, "%s\n", err.message);
        return -1;
    }
    device->apart = true; /* a stray access meets no other buffer */
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    mpri_device_destroy(device);
    return 0;
}

/* A machine without the device that was asked for: said in one line, and no test failed. */
static bool no_device(void)
{
    Err err = {0};
    Device *d;
    if (!on_cuda()) return false;
    if (mpri_device_cuda(mpri_alloc_default(), 0, 1, &d, &err) == MPR_OK) {
        mpri_device_destroy(d);
        return false;
    }
    printf("skipped: %s\n", err.message);
    return true;
}

/* The chosen rows by operator, one test each. Returns how many tests. */
static int make_tests(int argc, char **argv, struct CMUnitTest *tests)
{
    static Group groups[MAX_GROUPS];
    int n = 0, rows = 0;
    for (int i = 0; i < n_files; i++)
        for (int k = 0; k < files[i].n; k++) {
            const CaseRow *r = &files[i].rows[k];
            Group *g = n ? &groups[n - 1] : NULL;
            if (!chosen(r, argc, argv)) continue;
            rows++;
            if (!g || g->rows + g->n != r || g->rows->type != r->type) {
                if (n == MAX_GROUPS) exit(1);
                g = &groups[n];
                g->rows = r;
                snprintf(g->name, sizeof g->name, "%s: %s", r->file, r->type ? r->type : "?");
                tests[n++] = (struct CMUnitTest){
                    .name = g->name, .test_func = check_group, .initial_state = g};
            }
            g->n++;
        }
    printf("%d rows in %d files\n", rows, n_files);
    return n;
}

int main(int argc, char **argv)
{
    static struct CMUnitTest tests[MAX_GROUPS + 1];
    if (no_device()) return 77;
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    read_files();
    int n = make_tests(argc, argv, tests);
    if (argc == 1 && !on_cuda()) tests[n++] = (struct CMUnitTest)cmocka_unit_test(complete);
    if (!n) {
        fprintf(stderr, "no rows for these operators or files\n");
        return 1;
    }
    int failed = _cmocka_run_group_tests("cases", tests, (size_t)n, open_device, close_device);
    mpri_arena_destroy(&arena);
    return failed;
}
