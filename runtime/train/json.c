/* JSON text, see json.h. */
#include "runtime/train/json.h"

#include <math.h>
#include <string.h>

/* Length of the well-formed UTF-8 sequence at s, 0 when broken. */
static size_t sequence(const char *s)
{
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2, left = strnlen(s, n);
    return left == n && mpri_utf8_valid(s, n) ? n : 0;
}

void mpri_json_string(Text *t, const char *s)
{
    mpri_text_put(t, "\"");
    while (*s) {
        size_t n = sequence(s);
        if (!n) {
            mpri_text_put(t, "\\ufffd");
            s++;
            continue;
        }
        if (*s == '"' || *s == '\\') mpri_text_add(t, "\\%c", *s);
        else if (*s == '\n') mpri_text_put(t, "\\n");
        else if ((unsigned char)*s < ' ' || *s == 0x7f) mpri_text_add(t, "\\u%04x", (unsigned)*s);
        else mpri_text_bytes(t, s, n);
        s += n;
    }
    mpri_text_put(t, "\"");
}

static void put_number(Text *t, const char *text, bool finite)
{
    if (finite) mpri_text_put(t, text);
    else mpri_text_add(t, "\"%s\"", text);
}

void mpri_json_f32(Text *t, float v)
{
    char buf[32];
    put_number(t, mpri_print_f32(buf, v), isfinite(v));
}

void mpri_json_f64(Text *t, double v)
{
    char buf[32];
    put_number(t, mpri_print_f64(buf, v), isfinite(v));
}
