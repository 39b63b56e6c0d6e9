/* Text without a locale: growing strings, number parsing and printing that reads back to the same
 * bits. */
#ifndef MPRI_BASE_TEXT_H
#define MPRI_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "runtime/base/alloc.h"
#include "runtime/base/err.h"

/* A growing string. `failed` is sticky when memory ran out; text is always NUL-terminated. */
typedef struct Text {
    const Alloc *alloc;
    char *text;
    size_t len, cap;
    bool failed;
} Text;

void mpri_text_init(Text *t, const Alloc *alloc);
void mpri_text_add(Text *t, const char *fmt, ...) MPRI_PRINTF(2, 3);
void mpri_text_put(Text *t, const char *s);
void mpri_text_bytes(Text *t, const void *s, size_t n);
void mpri_text_free(Text *t);

/* Whole string must be consumed; false otherwise, or when out of range (int) / not a number.
 * Accepts "inf", "nan", decimal and exponent forms; '.' is the decimal point in every locale. */
bool mpri_parse_i64(const char *s, int64_t *out);
bool mpri_parse_f64(const char *s, double *out);

/* Shortest of %.9g / %.17g that reads back to the same float / double, '.' as decimal point.
 * Non-finite: nan, inf, -inf. buf needs 32 bytes; returns buf. */
const char *mpri_print_f32(char buf[32], float v);
const char *mpri_print_f64(char buf[32], double v);

/* Nearest candidate by edit distance (at most 3 and less than half the length), or NULL. */
const char *mpri_nearest(const char *word, const char *const *candidates, size_t n);
/* Shell glob: * ? and [..]; '/' is an ordinary character. */
bool mpri_glob(const char *pattern, const char *text);
/* True when the n bytes are well-formed UTF-8 without NUL. */
bool mpri_utf8_valid(const char *s, size_t n);

#endif
