/* CSV tables (RFC 4180): a header line, then rows of numbers. Read as a whole into columns of
 * doubles. */
#ifndef MPRI_TRAIN_CSV_H
#define MPRI_TRAIN_CSV_H

#include <stdbool.h>
#include "runtime/base/arena.h"

#define MPRI_CSV_FIELD_LIMIT (1 << 20)

typedef struct Csv {
    const char **names; /* of the columns */
    int columns;
    int64_t rows;
    double *values; /* row-major */
    bool *whole;    /* per column: whole numbers only */
} Csv;

/* Everything that is not a table of numbers is MPR_E_DATA with line and column. Memory is the
 * arena's. */
mpr_status mpri_csv_parse(const char *text, size_t n, Arena *arena, Csv *out, Err *err);
/* Columns that make up the array `key`: that column alone, or key0 key1 … (also key_0, key.0) by
 * number. Returns how many; list has room for all columns. 0: none; -1: a number is there twice. */
int mpri_csv_group(const Csv *c, const char *key, int *list);

#endif
