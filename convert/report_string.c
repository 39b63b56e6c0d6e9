/* Texts in JSON. */
#include "convert/report.h"
#include "runtime/base/text.h"

/* Bytes of the character at s, 0: it is no UTF-8, as names of files need not be. */
static size_t character(const char *s)
{
    for (size_t n = 1; n <= 4 && s[n - 1]; n++)
        if (mpri_utf8_valid(s, n)) return n;
    return 0;
}

void mpri_report_string(Text *t, const char *s)
{
    mpri_text_put(t, "\"");
    for (size_t n; *s; s += n ? n : 1) {
        unsigned char c = (unsigned char)*s;
        n = character(s);
        if (!n) mpri_text_put(t, "\\ufffd");
        else if (c == '"' || c == '\\') mpri_text_add(t, "\\%c", c);
        else if (c < 0x20) mpri_text_add(t, "\\u%04x", c);
        else mpri_text_bytes(t, s, n);
    }
    mpri_text_put(t, "\"");
}
