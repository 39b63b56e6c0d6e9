/* Test cases of operators as text: tests/op/cases/<family>.txt. docs/ADD_AN_OP.md explains the
 * format; the rows of one operator stand under its `op` line. */
#ifndef MPRI_TESTS_CASE_FILE_H
#define MPRI_TESTS_CASE_FILE_H

#include "runtime/base/arena.h"
#include "runtime/exec/kernel.h"
#include "runtime/op/ops.h"

typedef enum RowKind { ROW_VALUE, ROW_GRAD, ROW_TIE, ROW_FAULT } RowKind;

enum { CASE_ARGS = 20, CASE_RESULTS = 8 };

typedef struct CaseArg { /* an argument, or a result of value and tie rows */
    bool absent;         /* "-" as argument, "_" as result */
    bool valued;
    int same;            /* k + 1: written a<k>, the tensor of argument k once more */
    DType dtype;
    int rank;
    int64_t dims[MPRI_TENSOR_RANK];
    Tensor t;            /* valued */
    bool ranged;         /* "in low..high" of its own */
    double low, high;
} CaseArg;

typedef struct CaseRow {
    const char *file;    /* "softmax.txt" */
    int line;
    const char *text;    /* the row as it is written */
    char *broken;        /* why the row could not be read; NULL: it is fine */
    RowKind kind;
    const OpDef *op;
    const char *type;    /* as the op line has it */
    const char *attrs;   /* "{…}" or "" */
    const char *body;    /* graph rows: the lines between the row and `end`; else NULL */
    CaseArg in[CASE_ARGS];
    int n_in;
    CaseArg out[CASE_RESULTS]; /* of grad rows: absent, or named; `same` without a cotangent */
    int n_out;
    double tolerance;    /* relative; 0: equal */
    double low, high;    /* range of random inputs */
    double ulp;          /* budget of a grad row in low types; 0: derived */
    mpr_status code;     /* fault */
    const char *words;   /* of its message, all needed */
} CaseRow;

typedef struct CaseFile {
    const char *name;
    CaseRow *rows;
    int n, cap;
} CaseFile;

/* Everything lives in the arena. False when the file cannot be read; rows that make no sense are
 * kept with the reason. */
bool test_case_file_read(CaseFile *f, const char *path, const char *name, Arena *arena);

#endif
