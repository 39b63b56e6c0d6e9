/* Protobuf's wire format: https://protobuf.dev/programming-guides/encoding. The trap is in the
 * lengths: a 64-bit length near 2^64 wraps when it is added to a position, so it is compared with
 * what is left. */
#include "importer/wire.h"

#include <string.h>

bool mpri_wire_varint(const uint8_t *bytes, size_t end, size_t *pos, uint64_t *value)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (*pos >= end) return false;
        uint8_t b = bytes[(*pos)++];
        if (shift < 64) v |= (uint64_t)(b & 0x7F) << shift;
        if (!(b & 0x80)) {
            *value = v;
            return true;
        }
    }
    return false;
}

static uint64_t load_le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static WireStatus bad(WireField *f, const char *what)
{
    f->bad = what;
    return WIRE_BAD;
}

WireStatus mpri_wire_next(const uint8_t *bytes, size_t end, size_t *pos, WireField *f)
{
    if (*pos >= end) return WIRE_END;
    f->tagged.at = *pos;
    f->number = 0;
    f->type = -1;
    uint64_t tag, n;
    if (!mpri_wire_varint(bytes, end, pos, &tag))
        return bad(f, "the tag of a field is cut or longer than ten bytes");
    f->type = (int)(tag & 7);
    if (tag >> 3 > 0x1FFFFFFF) return bad(f, "a field number above 536870911");
    f->number = (uint32_t)(tag >> 3);
    if (f->number == 0) return bad(f, "field number 0");
    f->body.at = *pos;
    switch (f->type) {
    case WIRE_VARINT:
        if (!mpri_wire_varint(bytes, end, pos, &f->value))
            return bad(f, "a varint is cut or longer than ten bytes");
        break;
    case WIRE_FIXED64:
    case WIRE_FIXED32:
        n = f->type == WIRE_FIXED64 ? 8 : 4;
        if (n > end - *pos) return bad(f, "a fixed-size value reaches past the end of its message");
        f->value = load_le(bytes + *pos, (size_t)n);
        *pos += (size_t)n;
        break;
    case WIRE_BYTES:
        if (!mpri_wire_varint(bytes, end, pos, &n))
            return bad(f, "a length is cut or longer than ten bytes");
        if (n > end - *pos) return bad(f, "a length reaches past the end of its message");
        f->body.at = *pos;
        *pos += (size_t)n;
        break;
    case WIRE_GROUP:
    case WIRE_GROUP_END: return bad(f, "a group, which ONNX does not use");
    default: return bad(f, "a wire type that does not exist");
    }
    f->body.len = *pos - f->body.at;
    f->tagged.len = *pos - f->tagged.at;
    return WIRE_OK;
}

bool mpri_wire_find(const uint8_t *bytes, Span in, uint32_t number, WireField *f)
{
    size_t pos = in.at, end = in.at + in.len;
    while (mpri_wire_next(bytes, end, &pos, f) == WIRE_OK)
        if (f->number == number) return true;
    return false;
}

void mpri_wire_put_varint(Text *out, uint64_t v)
{
    uint8_t buf[10];
    size_t n = 0;
    do {
        buf[n] = (uint8_t)(v & 0x7F);
        v >>= 7;
        if (v) buf[n] |= 0x80;
        n++;
    } while (v);
    mpri_text_bytes(out, buf, n);
}

void mpri_wire_put_tag(Text *out, uint32_t number, int type)
{
    mpri_wire_put_varint(out, (uint64_t)number << 3 | (uint64_t)type);
}

void mpri_wire_put_bytes(Text *out, uint32_t number, const void *bytes, size_t n)
{
    mpri_wire_put_tag(out, number, WIRE_BYTES);
    mpri_wire_put_varint(out, n);
    mpri_text_bytes(out, bytes, n);
}
