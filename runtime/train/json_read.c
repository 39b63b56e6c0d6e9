/* A recursive descent over RFC 8259's grammar; see the header. Depth is limited, since input must
 * not exhaust the stack. Each function returns the place after what it read, or NULL. */
#include "runtime/train/json_read.h"

#include <math.h>
#include <string.h>

#include "runtime/base/text.h"

enum { MOST_DEPTH = 32, LONGEST_NUMBER = 63 };

static const char *blanks(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

static const char *digits(const char *p)
{
    size_t n = strspn(p, "0123456789");
    return n ? p + n : NULL;
}

/* After the opening quote; returns the closing one. */
static const char *string_end(const char *p)
{
    for (; *p != '"'; p++) {
        if ((unsigned char)*p < 0x20) return NULL; /* the end of the text too */
        if (*p != '\\') continue;
        p++;
        if (*p == 'u') {
            if (strspn(p + 1, "0123456789abcdefABCDEF") < 4) return NULL;
            p += 4;
        } else if (!*p || !strchr("\"\\/bfnrt", *p)) {
            return NULL;
        }
    }
    return p;
}

static const char *read_number(JsonItem *item, const char *p)
{
    const char *begin = p;
    bool whole = true;
    char text[LONGEST_NUMBER + 1];
    if (*p == '-') p++;
    p = *p == '0' ? p + 1 : digits(p);
    if (p && *p == '.') {
        whole = false;
        p = digits(p + 1);
    }
    if (p && (*p == 'e' || *p == 'E')) {
        whole = false;
        p++;
        p = digits(p + (*p == '-' || *p == '+'));
    }
    if (!p || p - begin > LONGEST_NUMBER) return NULL;
    memcpy(text, begin, (size_t)(p - begin));
    text[p - begin] = '\0';
    if (!mpri_parse_f64(text, &item->number) || isinf(item->number)) return NULL;
    item->kind = whole && mpri_parse_i64(text, &item->whole) ? JSON_KIND_WHOLE : JSON_KIND_NUMBER;
    return p;
}

static const char *read_value(JsonItem *item, const char *p, int depth);

/* An array or object inside the object: checked, not kept. */
static const char *skip_nested(const char *p, int depth)
{
    char close = *p == '{' ? '}' : ']';
    JsonItem inner;
    if (depth >= MOST_DEPTH) return NULL;
    p = blanks(p + 1);
    if (*p == close) return p + 1;
    for (;;) {
        if (close == '}') {
            if (*p != '"' || !(p = string_end(p + 1))) return NULL;
            p = blanks(p + 1);
            if (*p != ':') return NULL;
            p = blanks(p + 1);
        }
        if (!(p = read_value(&inner, p, depth + 1))) return NULL;
        p = blanks(p);
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
        p = blanks(p + 1);
    }
}

static const char *read_value(JsonItem *item, const char *p, int depth)
{
    const char *end = NULL;
    item->text = p;
    item->kind = JSON_KIND_OTHER;
    if (*p == '"') {
        item->kind = JSON_KIND_STRING;
        item->text = p + 1;
        end = string_end(p + 1);
        item->size = end ? (size_t)(end - item->text) : 0;
        return end ? end + 1 : NULL;
    }
    if (*p == '{' || *p == '[') {
        end = skip_nested(p, depth);
    } else if (!strncmp(p, "true", 4)) {
        item->kind = JSON_KIND_TRUE;
        end = p + 4;
    } else if (!strncmp(p, "false", 5)) {
        item->kind = JSON_KIND_FALSE;
        end = p + 5;
    } else if (!strncmp(p, "null", 4)) {
        end = p + 4;
    } else {
        end = read_number(item, p);
    }
    item->size = end ? (size_t)(end - p) : 0;
    return end;
}

static const JsonItem *find(const JsonObject *o, const char *key, size_t size)
{
    for (int i = 0; i < o->n; i++)
        if (o->items[i].key_size == size && !memcmp(o->items[i].key, key, size))
            return &o->items[i];
    return NULL;
}

const JsonItem *mpri_json_find(const JsonObject *o, const char *key)
{
    return find(o, key, strlen(key));
}

/* One `"key": value`. */
static const char *read_member(JsonObject *o, const char *p)
{
    if (o->n == JSON_ITEMS) {
        o->problem = "too many keys";
        return NULL;
    }
    JsonItem *item = &o->items[o->n];
    if (*p != '"') return NULL;
    item->key = p + 1;
    if (!(p = string_end(p + 1))) return NULL;
    item->key_size = (size_t)(p - item->key);
    if (find(o, item->key, item->key_size)) {
        o->problem = "a key occurs twice";
        return NULL;
    }
    p = blanks(p + 1);
    if (*p != ':' || !(p = read_value(item, blanks(p + 1), 0))) return NULL;
    o->n++;
    return blanks(p);
}

bool mpri_json_read(JsonObject *o, const char *json)
{
    o->n = 0;
    o->problem = "another type";
    const char *p = blanks(json);
    if (*p != '{') return false;
    o->problem = "not JSON";
    p = blanks(p + 1);
    if (*p == '}') return *blanks(p + 1) == '\0';
    for (;;) {
        if (!(p = read_member(o, p))) return false;
        if (*p == '}') return *blanks(p + 1) == '\0';
        if (*p != ',') return false;
        p = blanks(p + 1);
    }
}
