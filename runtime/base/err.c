/* The error object. Texts are cut to fit, never in the middle of a UTF-8 character. */
#include "runtime/base/err.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/text.h"

enum { FINDINGS_KEPT = 50, MORE_ROOM = 48, NAME_LIMIT = 200 };

/* Drop an incomplete UTF-8 character at the end, which cutting may have left. */
static void trim_utf8(char *s)
{
    size_t n = strlen(s), i = n;
    while (i > 0 && n - i < 3 && ((unsigned char)s[i - 1] & 0xC0) == 0x80) i--;
    if (i == 0) return;
    unsigned char lead = (unsigned char)s[i - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (i - 1) < want) s[i - 1] = '\0';
}

static void format(char *dst, size_t size, const char *fmt, va_list args)
{
    int n = vsnprintf(dst, size, fmt, args);
    if (n < 0)
        dst[0] = '\0';
    else if ((size_t)n >= size)
        trim_utf8(dst);
}

void mpri_err_clear(Err *err)
{
    err->code = MPR_OK;
    err->findings = 0;
    err->message[0] = err->where[0] = err->advice[0] = '\0';
}

mpr_status mpri_err_set(Err *err, mpr_status code, const char *fmt, ...)
{
    if (err->code != MPR_OK) return err->code;
    va_list args;
    va_start(args, fmt);
    err->code = code;
    err->findings = 1;
    err->where[0] = err->advice[0] = '\0';
    format(err->message, sizeof err->message, fmt, args);
    va_end(args);
    return code;
}

/* The line "… and N more" closes a list that is longer than what is kept. */
static void note_more(Err *err, int kept)
{
    static const char mark[] = "\n\xE2\x80\xA6 and ";
    char *at = strstr(err->message, mark);
    size_t used = at ? (size_t)(at - err->message) : strlen(err->message);
    int before = 0;
    if (at && sscanf(at + sizeof mark - 1, "%d", &before) == 1) kept = err->findings - 1 - before;
    snprintf(err->message + used, sizeof err->message - used, "%s%d more", mark,
             err->findings - kept);
}

mpr_status mpri_err_finding(Err *err, mpr_status code, const char *fmt, ...)
{
    if (err->code == MPR_OK) {
        mpri_err_clear(err);
        err->code = code;
    } else if (err->findings == 0) {
        return err->code;
    }
    err->findings++;
    size_t used = strlen(err->message);
    size_t room = sizeof err->message - used;
    if (err->findings > FINDINGS_KEPT || room < 2 * MORE_ROOM) {
        note_more(err, err->findings - 1);
        return err->code;
    }
    if (used > 0) {
        err->message[used++] = '\n';
        room--;
    }
    va_list args;
    va_start(args, fmt);
    format(err->message + used, room - MORE_ROOM, fmt, args);
    va_end(args);
    return err->code;
}

mpr_status mpri_err_where(Err *err, const char *fmt, ...)
{
    char text[sizeof err->where];
    va_list args;
    va_start(args, fmt);
    format(text, sizeof text, fmt, args);
    va_end(args);
    size_t head = strlen(text), tail = strlen(err->where);
    if (head > 0 && tail > 0 && head + 2 < sizeof text) {
        memcpy(text + head, ", ", 3);
        head += 2;
    }
    size_t room = sizeof text - 1 - head;
    if (tail > room) tail = room;
    memcpy(text + head, err->where, tail);
    text[head + tail] = '\0';
    trim_utf8(text);
    memcpy(err->where, text, head + tail + 1);
    return err->code;
}

mpr_status mpri_err_advice(Err *err, const char *fmt, ...)
{
    if (err->advice[0] != '\0') return err->code;
    va_list args;
    va_start(args, fmt);
    format(err->advice, sizeof err->advice, fmt, args);
    va_end(args);
    return err->code;
}

mpr_status mpri_err_nomem(Err *err, size_t bytes)
{
    if (err->code != MPR_OK) return err->code;
    mpri_err_set(err, MPR_E_NOMEM, "out of memory: %zu bytes were asked for", bytes);
    return mpri_err_advice(err, "use a smaller batch, or raise the memory limit");
}

/* Length of the well-formed UTF-8 character at s (1-4), or 0 when it must be escaped. */
static size_t printable_char(const char *s)
{
    unsigned char c = (unsigned char)s[0];
    if (c < 0x20 || c == 0x7F) return 0;
    if (c < 0x80) return 1;
    size_t n = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
    if (strnlen(s, n) < n || !mpri_utf8_valid(s, n)) return 0;
    if (c == 0xC2 && (unsigned char)s[1] < 0xA0) return 0; /* C1 control characters */
    return n;
}

const char *mpri_err_name(const char *name)
{
    static _Thread_local char buffers[8][NAME_LIMIT + 16];
    static _Thread_local unsigned next;
    char *out = buffers[next++ % 8];
    size_t used = 0;
    if (!name) name = "";
    for (const char *s = name; *s;) {
        size_t n = printable_char(s);
        size_t need = n ? n : 4;
        if (used + need > NAME_LIMIT) {
            memcpy(out + used, "\xE2\x80\xA6", 3);
            used += 3;
            break;
        }
        if (n)
            memcpy(out + used, s, n);
        else
            snprintf(out + used, 5, "\\x%02x", (unsigned char)*s);
        used += need;
        s += n ? n : 1;
    }
    out[used] = '\0';
    return out;
}
