/* The model's own Casts beside low values. Nothing of what they do to a number may get lost:
 *
 * - one that reads float32 reads a low value as it is, since every low value is a float32 one;
 * - one from whole numbers to float32 whose readers are all low makes the low type itself, where all
 *   of these numbers exist in that type;
 * - a Cast of ours behind one that changes no value reads what that one reads;
 * - on the way to float32 a Cast to 16 bits makes float32 where it rounds nothing. */
#include "convert/casts.h"

#include <string.h>

#include "importer/wire.h"

enum { T_TYPE = 2, T_INTS = 5, T_LONGS = 7, T_RAW = 9, T_EXTERNAL = 13 };

/* Whole numbers up to this exist in the type. */
static int64_t whole_most(DType t)
{
    return t == MPR_FLOAT16 ? 1 << 11 : t == MPR_BFLOAT16 ? 1 << 8 : 1 << 24;
}

/* All numbers of the type, whatever they are, exist in the other one. */
static bool holds(DType of, DType in)
{
    switch (of) {
    case MPR_BOOL: case MPR_INT8: case MPR_UINT8: return true;
    case MPR_INT16: case MPR_UINT16: return in == MPR_FLOAT32;
    case MPR_FLOAT16: case MPR_BFLOAT16: return in == MPR_FLOAT32;
    default: return false;
    }
}

bool mpri_cast_is(const MixNode *n)
{
    return !strcmp(n->op, "Cast") && !*n->domain && !n->call && n->n_in == 1 && n->n_out == 1 &&
           n->in[0] && n->out[0];
}

static bool within(int64_t x, int64_t most)
{
    return x >= -most && x <= most;
}

/* Are the numbers of a tensor of int32 or int64 known, and none larger? */
static bool numbers_within(const Tree *t, int64_t most)
{
    DType type = (DType)mpri_tree_int(t, T_TYPE, 0);
    size_t size = type == MPR_INT64 ? 8 : 4;
    bool any = false;
    if ((type != MPR_INT64 && type != MPR_INT32) || mpri_tree_find(t, T_EXTERNAL)) return false;
    for (int i = 0; i < t->n; i++) {
        const TreeField *f = &t->f[i];
        bool raw = f->number == T_RAW && f->len;
        if (!raw && f->number != (type == MPR_INT64 ? T_LONGS : T_INTS)) continue;
        any = true;
        if (raw && f->maker) return false;
        if (f->type == WIRE_VARINT && !within((int64_t)f->value, most)) return false;
        for (size_t at = 0; f->type == WIRE_BYTES && at < f->len;) {
            uint64_t v = 0;
            if (raw && f->len - at < size) return false;
            if (raw) memcpy(&v, f->bytes + at, size);
            if (raw) at += size;
            else if (!mpri_wire_varint(f->bytes, f->len, &at, &v)) return false;
            if (!within(size == 8 ? (int64_t)v : (int32_t)v, most)) return false;
        }
    }
    return any;
}

/* Constants tell their numbers, other values only their type. */
static bool exact(const MixValue *from, DType to)
{
    if (holds(from->type.elem, to)) return true;
    return from->tensor && !from->input && numbers_within(from->tensor, whole_most(to));
}

void mpri_cast_units(const Mix *m, const MixNode *n)
{
    if (!mpri_cast_is(n)) return;
    DType from = n->in[0]->type.elem, to = n->out[0]->type.elem;
    if (m->widen) {
        if (n->out_unit[0]) n->out_unit[0]->follows = from == to || exact(n->in[0], to);
        return;
    }
    if (n->in_unit[0]) n->in_unit[0]->follows = to != MPR_DTYPE_NONE && to != MPR_STRING;
    if (n->out_unit[0])
        n->out_unit[0]->follows = !mpri_dtype_is_float(from) && exact(n->in[0], m->to);
}

/* The unit that a unit of a Cast goes with, when that is low; NULL: it stays in float32. */
static MixUnit *leader(const Mix *m, const MixUnit *u)
{
    const MixNode *n = u->node;
    if (!u->follows || u->joined || u->same) return NULL;
    if (n->in_unit[0] == u) {
        MixUnit *made = n->in[0]->unit;
        return made && made->is == m->to ? made : NULL;
    }
    MixUnit *first = NULL;
    for (const MixUse *use = n->out[0]->uses; use; use = use->next) {
        if (!use->unit || use->unit->is != m->to || use->unit->follows) return NULL;
        if (!first) first = use->unit;
    }
    return first;
}

void mpri_casts_follow(Mix *m)
{
    for (int i = 0; i < m->n_units; i++) {
        MixUnit *u = m->units[i], *by = m->widen ? u : leader(m, u);
        if (!by || !u->follows) continue;
        u->is = m->to;
        u->why = WHY_SPREAD;
        u->from = by;
    }
}

bool mpri_cast_may_be_low(const Mix *m, const MixUnit *u)
{
    return leader(m, u);
}

/* ---- merging ---- */

MixValue *mpri_cast_source(const MixValue *v, DType to)
{
    const MixNode *n = v->maker;
    if (!n || !mpri_cast_is(n) || v->type.elem != MPR_FLOAT32 || v->now != MPR_FLOAT32 ||
        !mpri_dtype_is_low(to))
        return NULL;
    MixValue *from = n->in[0];
    bool as_it_was = from->now == from->type.elem && from->held == from->now;
    return as_it_was && holds(from->type.elem, MPR_FLOAT32) ? from : NULL;
}
