/* Reading protobuf's wire format one field at a time, without a schema, memory or recursion.
 *
 * Everything that looks at the bytes of a model goes through mpri_wire_next: the pre-scan, which
 * reports what is wrong, and after it the indexer, the tensor decoder and the exporter, which may
 * rely on bytes that the pre-scan has accepted. Offsets count from the start of the file. */
#ifndef MPRI_IMPORTER_WIRE_H
#define MPRI_IMPORTER_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "importer/source.h"
#include "runtime/base/text.h"

enum {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
    WIRE_GROUP = 3,
    WIRE_GROUP_END = 4,
    WIRE_FIXED32 = 5
};

typedef enum WireStatus { WIRE_OK, WIRE_END, WIRE_BAD } WireStatus;

typedef struct WireField {
    uint32_t number;
    int type;
    uint64_t value;  /* varint and fixed forms */
    Span tagged;     /* tag + length + payload */
    Span body;       /* payload; the encoded bytes for varint and fixed forms */
    const char *bad; /* WIRE_BAD: what is wrong; number and type are set as far as they were read */
} WireField;

/* The field at *pos of bytes[0, end); *pos moves behind it. Unknown wire types and groups are
 * WIRE_BAD. */
WireStatus mpri_wire_next(const uint8_t *bytes, size_t end, size_t *pos, WireField *f);
/* One varint; false when it is cut or longer than ten bytes. */
bool mpri_wire_varint(const uint8_t *bytes, size_t end, size_t *pos, uint64_t *value);
/* First occurrence of a field among bytes[span]. */
bool mpri_wire_find(const uint8_t *bytes, Span in, uint32_t number, WireField *f);

/* ---- writing ---- */
void mpri_wire_put_varint(Text *out, uint64_t v);
void mpri_wire_put_tag(Text *out, uint32_t number, int type);
void mpri_wire_put_bytes(Text *out, uint32_t number, const void *bytes, size_t n);

#endif
