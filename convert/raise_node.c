/* Reading and changing one node on its way to a newer opset.
 *
 * An attribute of a function may stand for one of its call; such a node is refused as soon as a row
 * asks for the attribute. */
#include <string.h>

#include "convert/raise.h"
#include "importer/wire.h"

enum { N_IN = 1, N_OUT = 2, N_NAME = 3, N_OP = 4, N_ATTRIBUTE = 5 };
enum { A_NAME = 1, A_F = 2, A_I = 3, A_S = 4, A_T = 5, A_FLOATS = 7, A_INTS = 8, A_TYPE = 20,
       A_REF = 21 };
enum { TYPE_FLOAT = 1, TYPE_INT, TYPE_STRING, TYPE_TENSOR, TYPE_INTS = 7 };

/* ---- attributes ---- */

static int place_of(const Raise *r, const char *name)
{
    for (int i = 0; i < r->node->n; i++) {
        const TreeField *f = &r->node->f[i];
        TreeField *key = f->number == N_ATTRIBUTE && f->tree ? mpri_tree_find(f->tree, A_NAME) : NULL;
        if (key && mpri_field_is(key, name)) return i;
    }
    return -1;
}

Tree *mpri_raise_attribute(const Raise *r, const char *name)
{
    int i = place_of(r, name);
    return i < 0 ? NULL : r->node->f[i].tree;
}

static const Tree *own_attribute(Raise *r, const char *name)
{
    const Tree *a = mpri_raise_attribute(r, name);
    if (a && *mpri_tree_text(r->m->pool, a, A_REF))
        r->why = "an attribute of it is given by the call of its function";
    return a;
}

void mpri_raise_drop(Raise *r, const char *name)
{
    int i = place_of(r, name);
    if (i >= 0) mpri_tree_remove(r->node, i);
}

int64_t mpri_raise_int(Raise *r, const char *name, int64_t absent)
{
    const Tree *a = own_attribute(r, name);
    return a ? mpri_tree_int(a, A_I, 0) : absent;
}

static float as_float(uint64_t v)
{
    uint32_t bits = (uint32_t)v;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

float mpri_raise_float(Raise *r, const char *name, float absent)
{
    const Tree *a = own_attribute(r, name);
    TreeField *f = a ? mpri_tree_find(a, A_F) : NULL;
    return a ? as_float(f ? f->value : 0) : absent;
}

int mpri_raise_ints(Raise *r, const char *name, int64_t *out, int cap)
{
    const Tree *a = own_attribute(r, name);
    int n = 0;
    for (int i = 0; a && i < a->n; i++) {
        const TreeField *f = &a->f[i];
        uint64_t v;
        size_t pos = 0;
        if (f->number != A_INTS) continue;
        if (f->type == WIRE_VARINT && n < cap) out[n++] = (int64_t)f->value;
        while (f->type == WIRE_BYTES && n < cap && pos < f->len &&
               mpri_wire_varint(f->bytes, f->len, &pos, &v))
            out[n++] = (int64_t)v;
    }
    return a ? n : -1;
}

int mpri_raise_floats(Raise *r, const char *name, float *out, int cap)
{
    const Tree *a = own_attribute(r, name);
    int n = 0;
    for (int i = 0; a && i < a->n; i++) {
        const TreeField *f = &a->f[i];
        if (f->number != A_FLOATS) continue;
        if (f->type != WIRE_BYTES && n < cap) out[n++] = as_float(f->value);
        for (size_t at = 0; f->type == WIRE_BYTES && n < cap && at + 4 <= f->len; at += 4)
            memcpy(&out[n++], f->bytes + at, 4);
    }
    return a ? n : -1;
}

bool mpri_raise_text_is(const Raise *r, const char *name, const char *text)
{
    const Tree *a = mpri_raise_attribute(r, name);
    TreeField *f = a ? mpri_tree_find(a, A_S) : NULL;
    return f && mpri_field_is(f, text);
}

static Tree *new_attribute(Raise *r, Tree *node, const char *name)
{
    Tree *a = mpri_tree_put_tree(r->m->pool, node, N_ATTRIBUTE);
    mpri_tree_put_text(r->m->pool, a, A_NAME, name);
    return a;
}

void mpri_raise_put_int(Raise *r, const char *name, int64_t v)
{
    mpri_raise_drop(r, name);
    Tree *a = new_attribute(r, r->node, name);
    mpri_tree_put_int(r->m->pool, a, A_I, v);
    mpri_tree_put_int(r->m->pool, a, A_TYPE, TYPE_INT);
}

void mpri_raise_put_float(Raise *r, const char *name, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    mpri_raise_drop(r, name);
    Tree *a = new_attribute(r, r->node, name);
    mpri_tree_add(r->m->pool, a, A_F, WIRE_FIXED32)->value = bits;
    mpri_tree_put_int(r->m->pool, a, A_TYPE, TYPE_FLOAT);
}

void mpri_raise_put_text(Raise *r, const char *name, const char *text)
{
    mpri_raise_drop(r, name);
    Tree *a = new_attribute(r, r->node, name);
    mpri_tree_put_text(r->m->pool, a, A_S, text);
    mpri_tree_put_int(r->m->pool, a, A_TYPE, TYPE_STRING);
}

void mpri_raise_put_ints(Raise *r, Tree *node, const char *name, const int64_t *v, int n)
{
    Tree *a = new_attribute(r, node, name);
    for (int i = 0; i < n; i++) mpri_tree_put_int(r->m->pool, a, A_INTS, v[i]);
    mpri_tree_put_int(r->m->pool, a, A_TYPE, TYPE_INTS);
}

/* ---- names ---- */

static TreeField *named(const Raise *r, uint32_t number, int k)
{
    for (int i = 0; i < r->node->n; i++)
        if (r->node->f[i].number == number && k-- == 0) return &r->node->f[i];
    return NULL;
}

static const char *name_at(const Raise *r, uint32_t number, int k)
{
    const TreeField *f = named(r, number, k);
    return f && f->len ? mpri_pool_text(r->m->pool, f->bytes, f->len) : "";
}

const char *mpri_raise_input(const Raise *r, int k)
{
    return name_at(r, N_IN, k);
}

const char *mpri_raise_output(const Raise *r, int k)
{
    return name_at(r, N_OUT, k);
}

int mpri_raise_outputs(const Raise *r)
{
    int n = 0;
    while (named(r, N_OUT, n)) n++;
    return n;
}

static void set_name(Raise *r, uint32_t number, int k, const char *name)
{
    TreeField *f;
    while (!(f = named(r, number, k))) {
        int at = 0; /* behind its like; inputs stand before all else */
        for (int i = 0; i < r->node->n; i++)
            if (r->node->f[i].number == number) at = i + 1;
        mpri_tree_insert(r->m->pool, r->node, at, number, WIRE_BYTES)->bytes =
            (const uint8_t *)"";
    }
    f->bytes = (const uint8_t *)name;
    f->len = strlen(name);
}

void mpri_raise_set_input(Raise *r, int k, const char *name)
{
    set_name(r, N_IN, k, name);
}

void mpri_raise_set_output(Raise *r, int k, const char *name)
{
    set_name(r, N_OUT, k, name);
}

void mpri_raise_set_op(Raise *r, const char *op)
{
    TreeField *f = mpri_tree_find(r->node, N_OP);
    f->bytes = (const uint8_t *)op;
    f->len = strlen(op);
}

const MixValue *mpri_raise_value(const Raise *r, int k)
{
    return r->known && k < r->known->n_in ? r->known->in[k] : NULL;
}

/* ---- new nodes ---- */

Tree *mpri_raise_add(Raise *r, bool behind, const char *op, const char *role, int n,
                     const char *const *in, const char **out)
{
    Pool *p = r->m->pool;
    if (!*out) *out = mpri_mix_fresh(r->m, mpri_pool_print(p, "%s_%s", mpri_raise_output(r, 0), role));
    Tree *node = mpri_tree_new(p);
    for (int i = 0; i < n; i++) mpri_tree_put_text(p, node, N_IN, in[i]);
    mpri_tree_put_text(p, node, N_OUT, *out);
    mpri_tree_put_text(p, node, N_NAME, mpri_mix_fresh(r->m, mpri_pool_print(p, "%s_node", *out)));
    mpri_tree_put_text(p, node, N_OP, op);
    mpri_tree_insert(p, r->holder, r->at + behind, r->number, WIRE_BYTES)->tree = node;
    r->at += !behind;
    return node;
}

static const char *constant(Raise *r, const char *role, DType type, int rank, int n,
                            const void *data)
{
    Pool *p = r->m->pool;
    const char *out = NULL;
    Tree *node = mpri_raise_add(r, false, "Constant", role, 0, NULL, &out);
    Tree *a = new_attribute(r, node, "value"), *t = mpri_tree_put_tree(p, a, A_T);
    size_t size = mpri_dtype_size(type) * (size_t)n;
    mpri_tree_put_int(p, a, A_TYPE, TYPE_TENSOR);
    t->tensor = true;
    if (rank) mpri_tree_put_int(p, t, 1, n);
    mpri_tree_put_int(p, t, 2, type);
    TreeField *raw = mpri_tree_add(p, t, 9, WIRE_BYTES);
    raw->bytes = (const uint8_t *)mpri_pool_text(p, data, size);
    raw->len = size;
    return out;
}

void mpri_raise_put_cast(Raise *r, Tree *node, DType to)
{
    Tree *a = new_attribute(r, node, "to");
    mpri_tree_put_int(r->m->pool, a, A_I, to);
    mpri_tree_put_int(r->m->pool, a, A_TYPE, TYPE_INT);
}

/* Constants of integers exist from opset 9 on. */
const char *mpri_raise_constant_ints(Raise *r, const char *role, int n, const int64_t *v)
{
    if (r->to >= 9) return constant(r, role, MPR_INT64, 1, n, v);
    float *f = mpri_pool_take(r->m->pool, sizeof *f * (size_t)n);
    for (int i = 0; i < n; i++) {
        f[i] = (float)v[i];
        if (v[i] > 1 << 24 || v[i] < -(1 << 24)) r->why = "a number of it is too large";
    }
    const char *in = constant(r, role, MPR_FLOAT32, 1, n, f), *out = NULL;
    mpri_raise_put_cast(r, mpri_raise_add(r, false, "Cast", role, 1, &in, &out), MPR_INT64);
    return out;
}

const char *mpri_raise_constant_floats(Raise *r, const char *role, int rank, int n, const float *v)
{
    return constant(r, role, MPR_FLOAT32, rank, n, v);
}

const char *mpri_raise_constant_like(Raise *r, const char *role, float v)
{
    const MixValue *x = mpri_raise_value(r, 0);
    DType type = x ? x->type.elem : MPR_DTYPE_NONE;
    uint64_t bits = 0;
    if (type == MPR_DTYPE_NONE) {
        const char *in[2] = {mpri_raise_constant_floats(r, role, 0, 1, &v), mpri_raise_input(r, 0)};
        const char *out = NULL;
        if (r->to < 15) r->why = "the type of its data is not known";
        (void)mpri_raise_add(r, false, "CastLike", role, 2, in, &out);
        return out;
    }
    mpri_store_f64(type, &bits, 0, (double)v);
    return constant(r, role, type, 0, 1, &bits);
}
