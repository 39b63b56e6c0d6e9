/* Text without a locale. Numbers are parsed with the C locale's strtod_l; printed numbers get their
 * decimal point repaired, because printf follows the locale of the host. */
#include "runtime/base/text.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/size.h"

static char no_text[1];

void mpri_text_init(Text *t, const Alloc *alloc)
{
    *t = (Text){.alloc = alloc ? alloc : mpri_alloc_default(), .text = no_text};
}

/* Room for n more bytes and the terminator. */
static bool text_reserve(Text *t, size_t n)
{
    size_t need;
    if (t->failed) return false;
    if (!mpri_size_add(t->len, n, &need) || !mpri_size_add(need, 1, &need)) {
        t->failed = true;
        return false;
    }
    if (need <= t->cap) return true;
    size_t cap = t->cap < 128 ? 256 : t->cap * 2;
    if (cap < need) cap = need;
    char *p = mpri_alloc(t->alloc, cap, 16);
    if (!p) {
        t->failed = true;
        return false;
    }
    memcpy(p, t->text, t->len + 1);
    if (t->cap) mpri_free(t->alloc, t->text);
    t->text = p;
    t->cap = cap;
    return true;
}

void mpri_text_bytes(Text *t, const void *s, size_t n)
{
    if (!text_reserve(t, n)) return;
    memcpy(t->text + t->len, s, n);
    t->len += n;
    t->text[t->len] = '\0';
}

void mpri_text_put(Text *t, const char *s)
{
    mpri_text_bytes(t, s, strlen(s));
}

void mpri_text_add(Text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || !text_reserve(t, (size_t)n)) {
        t->failed = true;
        return;
    }
    va_start(args, fmt);
    vsnprintf(t->text + t->len, (size_t)n + 1, fmt, args);
    va_end(args);
    t->len += (size_t)n;
}

void mpri_text_free(Text *t)
{
    if (t->cap) mpri_free(t->alloc, t->text);
    t->text = no_text;
    t->len = t->cap = 0;
}

/* ---- numbers ---- */

bool mpri_parse_i64(const char *s, int64_t *out)
{
    bool negative = *s == '-';
    if (*s == '-' || *s == '+') s++;
    if (*s < '0' || *s > '9') return false;
    uint64_t limit = negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX, v = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');
        if (v > (limit - digit) / 10) return false;
        v = v * 10 + digit;
    }
    if (*s != '\0') return false;
    *out = negative ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

/* strtod in the C locale; glibc and musl hand out a static object for "C", so nothing is allocated.
 */
static bool parse_c(const char *s, bool single, double *out)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    int saved = errno;
    char *end;
    double v = single ? (double)strtof_l(s, &end, c) : strtod_l(s, &end, c);
    errno = saved;
    freelocale(c);
    if (end == s || *end != '\0') return false;
    *out = v;
    return true;
}

bool mpri_parse_f64(const char *s, double *out)
{
    /* strtod also skips blanks and takes hexadecimal and nan(...): not part of our syntax. */
    const char *p = s + (*s == '-' || *s == '+');
    if ((*p < '0' || *p > '9') && *p != '.' && *p != 'i' && *p != 'n' && *p != 'I' && *p != 'N')
        return false;
    if (strpbrk(s, "xX(")) return false;
    return parse_c(s, false, out);
}

/* The locale's decimal point may be any string; everything that is no part of a number is one. */
static void repair_point(char *buf)
{
    static const char number[] = "0123456789+-e";
    size_t head = strspn(buf, number);
    if (buf[head] == '\0') return;
    size_t tail = head;
    while (buf[tail] && !strchr(number, buf[tail])) tail++;
    buf[head] = '.';
    memmove(buf + head + 1, buf + tail, strlen(buf + tail) + 1);
}

static const char *print_number(char buf[32], double v, bool single)
{
    if (isnan(v)) return strcpy(buf, "nan");
    if (isinf(v)) return strcpy(buf, v < 0 ? "-inf" : "inf");
    int last = single ? 9 : 17;
    char text[64];
    for (int digits = single ? 6 : 15; digits <= last; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        repair_point(text);
        double back;
        if (parse_c(text, single, &back) && back == v) break;
    }
    return memcpy(buf, text, 32); /* at most 24 characters with the plain point */
}

const char *mpri_print_f32(char buf[32], float v)
{
    return print_number(buf, (double)v, true);
}

const char *mpri_print_f64(char buf[32], double v)
{
    return print_number(buf, v, false);
}

/* ---- words ---- */

enum { WORD_LIMIT = 64 };

/* Levenshtein distance; words longer than the limit count as far away. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t na = strnlen(a, WORD_LIMIT), nb = strnlen(b, WORD_LIMIT);
    if (na == WORD_LIMIT || nb == WORD_LIMIT) return SIZE_MAX;
    size_t row[WORD_LIMIT];
    for (size_t j = 0; j <= nb; j++) row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

const char *mpri_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t limit =
        strlen(word) / 2 + (strlen(word) & 1); /* distance must be less than half the length */
    size_t best_distance = limit < 4 ? limit : 4;
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, candidates[i]);
        if (d < best_distance) {
            best_distance = d;
            best = candidates[i];
        }
    }
    return best;
}

/* Match one [set] at *pattern against c and move behind it. A '[' without its ']' stands for
 * itself. */
static bool glob_set(const char **pattern, char c)
{
    const char *p = *pattern + 1;
    bool negate = *p == '!' || *p == '^', found = false;
    if (negate) p++;
    const char *first = p;
    for (; *p && (*p != ']' || p == first); p++) {
        if (p[1] == '-' && p[2] && p[2] != ']') {
            if (*p <= c && c <= p[2]) found = true;
            p += 2;
        } else if (*p == c) {
            found = true;
        }
    }
    if (!*p) {
        ++*pattern;
        return c == '[';
    }
    *pattern = p + 1;
    return found != negate;
}

bool mpri_glob(const char *pattern, const char *text)
{
    const char *star = NULL, *resume = NULL; /* last '*' and where its match may be extended */
    while (*text) {
        const char *p = pattern;
        bool match = false;
        if (*p == '*') {
            star = ++pattern;
            resume = text;
            continue;
        }
        if (*p == '?') {
            match = true;
            pattern++;
        } else if (*p == '[') {
            match = glob_set(&pattern, *text);
        } else if (*p == *text) {
            match = true;
            pattern++;
        }
        if (match) {
            text++;
        } else {
            if (!star) return false;
            pattern = star;
            text = ++resume;
        }
    }
    while (*pattern == '*') pattern++;
    return *pattern == '\0';
}

bool mpri_utf8_valid(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;
    while (p < end) {
        unsigned char c = *p++;
        if (c == 0) return false;
        if (c < 0x80) continue;
        int more = c >= 0xF0 ? 3 : c >= 0xE0 ? 2 : 1;
        if (c < 0xC2 || c > 0xF4 || end - p < more) return false;
        unsigned low = 0x80, high = 0xBF; /* of the second byte: no overlong forms, no surrogates */
        if (c == 0xE0) low = 0xA0;
        if (c == 0xED) high = 0x9F;
        if (c == 0xF0) low = 0x90;
        if (c == 0xF4) high = 0x8F;
        if (*p < low || *p > high) return false;
        for (int i = 1; i < more; i++)
            if (p[i] < 0x80 || p[i] > 0xBF) return false;
        p += more;
    }
    return true;
}
