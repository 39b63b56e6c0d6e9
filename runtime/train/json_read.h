/* Reading a small JSON object, such as a scaler's state, without a JSON library: the minimal build
 * has none. The whole text is checked against RFC 8259's grammar; only scalars directly inside the
 * object become items, what lies deeper is skipped. Items point into the text. */
#ifndef MPRI_TRAIN_JSON_READ_H
#define MPRI_TRAIN_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum JsonKind {
    JSON_KIND_WHOLE,  /* number without point and exponent that an int64 holds */
    JSON_KIND_NUMBER, /* any other number that a double holds */
    JSON_KIND_STRING,
    JSON_KIND_TRUE,
    JSON_KIND_FALSE,
    JSON_KIND_OTHER, /* null, array, object */
} JsonKind;

typedef struct JsonItem {
    const char *key; /* between its quotes, escapes as written */
    size_t key_size;
    JsonKind kind;
    const char *text; /* the value as written; of a string what lies between its quotes */
    size_t size;
    double number; /* of both kinds of numbers */
    int64_t whole;
} JsonItem;

enum { JSON_ITEMS = 64 };

typedef struct JsonObject {
    JsonItem items[JSON_ITEMS];
    int n;
    const char *problem; /* why reading failed */
} JsonObject;

/* false, and problem: not JSON, not an object, a key twice, more than JSON_ITEMS keys. */
bool mpri_json_read(JsonObject *o, const char *json);
const JsonItem *mpri_json_find(const JsonObject *o, const char *key); /* NULL when absent */

#endif
