/* Contents of constants: read from any storage form, measured, and stored in another type. */
#include "convert/mix.h"

#include <math.h>
#include <string.h>

#include "importer/file.h"
#include "importer/wire.h"

enum { T_DIMS = 1, T_TYPE = 2, T_FLOATS = 4, T_INTS = 5, T_RAW = 9, T_EXTERNAL = 13, T_WHERE = 14 };
enum { A_FLOAT = 2, A_TENSOR = 5, A_FLOATS = 7 }; /* of an AttributeProto */

/* ---- shapes ---- */

static int64_t times(int64_t a, int64_t b)
{
    int64_t r;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r) ? -1 : r;
}

int64_t mpri_mix_product(const Tree *t, uint32_t number)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++) {
        if (t->f[i].number != number) continue;
        if (t->f[i].type == WIRE_VARINT) n = times(n, (int64_t)t->f[i].value);
        uint64_t d;
        size_t pos = 0;
        while (t->f[i].type == WIRE_BYTES && pos < t->f[i].len) {
            if (!mpri_wire_varint(t->f[i].bytes, t->f[i].len, &pos, &d)) return -1;
            n = times(n, (int64_t)d);
        }
    }
    return n;
}

static const TreeField *declared_shape(const Tree *info)
{
    TreeField *type = info ? mpri_tree_find(info, 2) : NULL;
    TreeField *tensor = type && type->tree ? mpri_tree_find(type->tree, 1) : NULL;
    return tensor && tensor->tree ? mpri_tree_find(tensor->tree, 2) : NULL;
}

static int64_t declared_elements(const Tree *info)
{
    const TreeField *shape = declared_shape(info);
    WireField dim, value;
    int64_t n = 1;
    size_t pos = 0;
    if (!shape) return -1;
    while (mpri_wire_next(shape->bytes, shape->len, &pos, &dim) == WIRE_OK) {
        if (dim.number != 1 || dim.type != WIRE_BYTES) continue;
        if (!mpri_wire_find(shape->bytes, dim.body, 1, &value)) return -1;
        n = times(n, (int64_t)value.value);
    }
    return n;
}

int64_t mpri_mix_elements(const Mix *m, const MixValue *v)
{
    int64_t n = 1;
    (void)m;
    for (int k = 0; v->seen && k < v->seen_rank; k++) n = times(n, v->seen_dims[k]);
    return v->tensor ? mpri_mix_product(v->tensor, T_DIMS) : v->seen ? n : declared_elements(v->info);
}

static int tensor_dims(const Tree *t, int64_t *d, int cap)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        if (t->f[i].number != T_DIMS) continue;
        if (t->f[i].type == WIRE_VARINT && n < cap) d[n++] = (int64_t)t->f[i].value;
        uint64_t v;
        size_t pos = 0;
        while (t->f[i].type == WIRE_BYTES && pos < t->f[i].len && n < cap) {
            if (!mpri_wire_varint(t->f[i].bytes, t->f[i].len, &pos, &v)) return 0;
            d[n++] = (int64_t)v;
        }
    }
    return n;
}

/* -1: no shape is declared. */
static int declared_dims(const Tree *info, int64_t *d, int cap)
{
    const TreeField *shape = declared_shape(info);
    WireField dim, value;
    int n = 0;
    size_t pos = 0;
    while (shape && mpri_wire_next(shape->bytes, shape->len, &pos, &dim) == WIRE_OK)
        if (dim.number == 1 && dim.type == WIRE_BYTES && n < cap)
            d[n++] = mpri_wire_find(shape->bytes, dim.body, 1, &value) ? (int64_t)value.value : -1;
    return shape ? n : -1;
}

int mpri_mix_rank(const MixValue *v)
{
    int64_t d[64];
    if (v->tensor) return tensor_dims(v->tensor, d, 64);
    return v->seen ? v->seen_rank : declared_shape(v->info) ? declared_dims(v->info, d, 64) : -1;
}

int64_t mpri_mix_dim(const MixValue *v, int axis)
{
    int64_t d[64];
    int n = v->tensor ? tensor_dims(v->tensor, d, 64)
            : v->seen ? v->seen_rank : declared_dims(v->info, d, 64);
    if (!v->tensor && v->seen) memcpy(d, v->seen_dims, sizeof v->seen_dims);
    if (axis < 0) axis += n;
    return axis >= 0 && axis < n ? d[axis] : -1;
}

size_t mpri_mix_outside(const Tree *t)
{
    size_t n = 0;
    if (t->tensor) {
        int64_t elements = mpri_tree_int(t, T_WHERE, 0) == 1 ? mpri_mix_product(t, T_DIMS) : 0;
        DType type = (DType)mpri_tree_int(t, T_TYPE, 0);
        return elements > 0 ? (size_t)elements * mpri_dtype_size(type) : 0;
    }
    for (int i = 0; i < t->n; i++)
        if (t->f[i].tree) n += mpri_mix_outside(t->f[i].tree);
    return n;
}

/* ---- reading ---- */

/* Contents of a tensor that are converted while they are written. */
typedef struct Converted {
    PieceMaker maker;
    MixTensor of;
    const Source *source; /* whose pages hold them */
} Converted;

static bool external(Mix *m, const Tree *t, size_t need, const void **data)
{
    const char *location = NULL;
    int64_t offset = 0, length = -1;
    Err err = {0};
    const SourceMap *map;
    for (int i = 0; i < t->n; i++) {
        if (t->f[i].number != T_EXTERNAL || !t->f[i].tree) continue;
        const char *key = mpri_tree_text(m->pool, t->f[i].tree, 1);
        const char *value = mpri_tree_text(m->pool, t->f[i].tree, 2);
        if (!strcmp(key, "location")) location = value;
        if (!strcmp(key, "offset") && !mpri_parse_i64(value, &offset)) return false;
        if (!strcmp(key, "length") && !mpri_parse_i64(value, &length)) return false;
    }
    if (!location || offset < 0 ||
        mpri_source_external(m->source, m->pool->arena, "", location, &map, &err) != MPR_OK)
        return false;
    if ((size_t)offset > map->size || need > map->size - (size_t)offset) return false;
    if (length >= 0 && (size_t)length < need) return false;
    *data = map->bytes + offset;
    return true;
}

/* Packed or single entries of a field of floats, or of integers that hold 16 bits each. */
static bool entries(Mix *m, const Tree *t, uint32_t number, DType type, int64_t n,
                    const void **data)
{
    size_t size = mpri_dtype_size(type);
    bool ints = type != MPR_FLOAT32;
    TreeField *only = number == T_FLOATS ? mpri_tree_find(t, number) : NULL;
    if (only && only->type == WIRE_BYTES && only->len == size * (size_t)n) {
        *data = only->bytes; /* packed floats are their bytes */
        return true;
    }
    uint8_t *out = mpri_pool_take(m->pool, size * (size_t)n);
    int64_t at = 0;
    for (int i = 0; i < t->n; i++) {
        const TreeField *f = &t->f[i];
        if (f->number != number) continue;
        uint64_t v = f->value;
        size_t pos = 0;
        do {
            if (f->type == WIRE_BYTES) {
                if (pos >= f->len) break;
                if (ints && !mpri_wire_varint(f->bytes, f->len, &pos, &v)) return false;
                if (!ints) {
                    uint32_t bits;
                    if (f->len - pos < 4) return false;
                    memcpy(&bits, f->bytes + pos, 4);
                    v = bits;
                    pos += 4;
                }
            }
            if (at >= n) return false;
            memcpy(out + size * (size_t)at++, &v, size);
        } while (f->type == WIRE_BYTES);
    }
    *data = out;
    return at == n;
}

bool mpri_mix_tensor(Mix *m, const Tree *t, MixTensor *out)
{
    TreeField *raw = mpri_tree_find(t, T_RAW);
    *out = (MixTensor){.type = (DType)mpri_tree_int(t, T_TYPE, 0), .n = mpri_mix_product(t, T_DIMS)};
    out->stored = out->type;
    if (!mpri_mix_castable(out->type) || out->n < 0) return false;
    if (raw && raw->maker) {
        *out = ((const Converted *)raw->maker)->of;
        return true;
    }
    size_t need;
    if (__builtin_mul_overflow((size_t)out->n, mpri_dtype_size(out->type), &need)) return false;
    if (mpri_tree_int(t, T_WHERE, 0) == 1) return external(m, t, need, &out->data);
    if (raw && (raw->len || !need)) {
        out->data = raw->bytes;
        return raw->len == need;
    }
    return entries(m, t, out->type == MPR_FLOAT32 ? T_FLOATS : T_INTS, out->type, out->n, &out->data);
}

/* ---- elements ---- */

static double stored_element(const MixTensor *t, int64_t i)
{
    const uint8_t *p = t->data;
    uint16_t h;
    float f;
    if (t->stored == MPR_FLOAT32) {
        memcpy(&f, p + 4 * i, 4);
        return (double)f;
    }
    memcpy(&h, p + 2 * i, 2);
    return (double)(t->stored == MPR_FLOAT16 ? mpri_f16_to_f32(h) : mpri_bf16_to_f32(h));
}

static uint16_t narrow(DType to, double v)
{
    return to == MPR_FLOAT16 ? mpri_f64_to_f16(v) : mpri_f64_to_bf16(v);
}

static double widened(DType type, uint16_t h)
{
    return (double)(type == MPR_FLOAT16 ? mpri_f16_to_f32(h) : mpri_bf16_to_f32(h));
}

static uint16_t narrow_element(const MixTensor *t, int64_t i)
{
    double x = stored_element(t, i), most = t->type == MPR_FLOAT16 ? 65504.0 : 0x1.fep127;
    if (t->saturate && isfinite(x) && fabs(x) > most) x = copysign(most, x);
    return narrow(t->type, x);
}

double mpri_mix_element(const MixTensor *t, int64_t i)
{
    if (t->type == t->stored || t->type == MPR_FLOAT32) return stored_element(t, i);
    return widened(t->type, narrow_element(t, i));
}

/* ---- measuring ---- */

static void measure_element(MixRange *r, DType to, double element)
{
    double x = fabs(element);
    if (isinf(x)) r->infinite = true;
    if (!isfinite(x) || x == 0) return;
    r->nonzero++;
    if (x < r->least) r->least = x;
    if (x > r->most) r->most = x;
    if (to == MPR_FLOAT32) return;
    double y = x > 0.5 && x < 1024 ? x : widened(to, narrow(to, x));
    r->tiny += y == 0;
    r->over += isinf(y);
}

/* Floats whose magnitudes are 0 or in the common range of all types: nothing but the largest and
 * the smallest is of interest. Magnitudes compare as integers. */
static bool measure_block(MixRange *r, const void *data, int n)
{
    uint32_t u[256], most = 0, least = UINT32_MAX, most_ok = 0x477fe000, least_ok = 0x33800000;
    int zeros = 0;
    memcpy(u, data, (size_t)n * 4);
    for (int i = 0; i < n; i++) {
        uint32_t a = u[i] & 0x7fffffff, b = a ? a : UINT32_MAX;
        most = a > most ? a : most;
        least = b < least ? b : least;
        zeros += a == 0;
    }
    if (most > most_ok || least < least_ok) return false;
    float x, y;
    memcpy(&x, &most, 4);
    memcpy(&y, &least, 4);
    r->nonzero += n - zeros;
    if (zeros == n) return true;
    if ((double)x > r->most) r->most = (double)x;
    if ((double)y < r->least) r->least = (double)y;
    return true;
}

static void measure(Mix *m, MixValue *v)
{
    MixTensor t;
    MixRange *r = &v->range;
    if (!v->tensor || v->type.elem != MPR_FLOAT32 || !mpri_mix_tensor(m, v->tensor, &t)) return;
    *r = (MixRange){.known = true, .elements = t.n, .least = INFINITY};
    v->negative = t.n > 0 && mpri_mix_element(&t, 0) < 0;
    for (int64_t i = 0; i < t.n;) {
        int64_t end = t.n - i < 256 ? t.n : i + 256;
        if (t.stored == MPR_FLOAT32 && t.type == MPR_FLOAT32 &&
            measure_block(r, (const uint8_t *)t.data + 4 * i, (int)(end - i)))
            i = end;
        for (; i < end; i++) measure_element(r, m->to, mpri_mix_element(&t, i));
    }
    mpri_source_release(m->source, t.data, (size_t)t.n * mpri_dtype_size(t.stored));
}

/* value_float and value_floats of a Constant are no tensors; that of a ConstantOfShape holds one
 * element for all. */
static void measure_attribute(Mix *m, MixValue *v)
{
    MixTensor t;
    MixRange r = {.known = true, .least = INFINITY};
    const MixNode *n = v->maker;
    if (!n || *n->domain || n->call || v->type.elem != MPR_FLOAT32) return;
    bool constant = !strcmp(n->op, "Constant"), fill = !strcmp(n->op, "ConstantOfShape");
    const Tree *one = constant ? mpri_mix_attribute(n, "value_float") : NULL;
    const Tree *many = constant ? mpri_mix_attribute(n, "value_floats") : NULL;
    const Tree *filled = fill ? mpri_mix_attribute(n, "value") : NULL;
    TreeField *tensor = filled ? mpri_tree_find(filled, A_TENSOR) : NULL;
    const void *floats = NULL;
    double first = 0;
    int64_t count = 0;
    for (int i = 0; many && i < many->n; i++)
        if (many->f[i].number == A_FLOATS)
            count += many->f[i].type == WIRE_BYTES ? (int64_t)many->f[i].len / 4 : 1;
    if (tensor && tensor->tree && mpri_mix_tensor(m, tensor->tree, &t) && t.n == 1) {
        first = mpri_mix_element(&t, 0);
        count = 1;
    } else if (one) {
        TreeField *f = mpri_tree_find(one, A_FLOAT);
        uint32_t bits = f ? (uint32_t)f->value : 0;
        float x;
        memcpy(&x, &bits, 4);
        first = (double)x;
        count = 1;
    } else if (!many || !entries(m, many, A_FLOATS, MPR_FLOAT32, count, &floats)) {
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        double x = floats ? (double)((const float *)floats)[i] : first;
        if (i == 0) v->negative = x < 0;
        measure_element(&r, m->to, x);
    }
    r.elements = count;
    v->range = r;
}

void mpri_mix_ranges(Mix *m)
{
    for (int i = 0; i < m->n_values; i++) {
        measure(m, m->values[i]);
        if (!m->values[i]->tensor) measure_attribute(m, m->values[i]);
    }
}

/* ---- storing ---- */

static void convert(const PieceMaker *maker, size_t at, void *out, size_t n)
{
    const Converted *c = (const Converted *)maker;
    const MixTensor *t = &c->of;
    size_t size = mpri_dtype_size(t->type), count = n / size, first = at / size;
    for (size_t i = 0; i < count; i++) {
        int64_t k = (int64_t)(first + i);
        float f = t->type == MPR_FLOAT32 ? (float)stored_element(t, k) : 0;
        uint16_t h = t->type == MPR_FLOAT32 ? 0 : narrow_element(t, k);
        memcpy((char *)out + i * size, t->type == MPR_FLOAT32 ? (void *)&f : (void *)&h, size);
    }
    size_t stored = mpri_dtype_size(t->stored);
    if (c->source)
        mpri_source_release(c->source, (const char *)t->data + first * stored, count * stored);
}

static void put_contents(Mix *m, TreeField *raw, const MixTensor *t)
{
    enum { SMALL = 1 << 16 };
    Converted *c = mpri_pool_take(m->pool, sizeof *c);
    *c = (Converted){.maker.make = convert, .of = *t};
    raw->len = mpri_dtype_size(t->type) * (size_t)t->n;
    if (raw->len > SMALL) {
        c->source = m->source;
        raw->maker = &c->maker;
        return;
    }
    uint8_t *data = mpri_pool_take(m->pool, raw->len);
    convert(&c->maker, 0, data, raw->len);
    raw->bytes = data;
}

void mpri_mix_store(Mix *m, Tree *t, DType type, bool saturate)
{
    MixTensor from;
    if (!mpri_mix_tensor(m, t, &from)) return;
    from.type = type;
    from.saturate = saturate;
    t->outside = t->outside || mpri_tree_int(t, T_WHERE, 0) == 1;
    for (int i = t->n - 1; i >= 0; i--) {
        uint32_t k = t->f[i].number;
        if (k == T_FLOATS || k == T_INTS || k == T_RAW || k == T_EXTERNAL || k == T_WHERE)
            mpri_tree_remove(t, i);
        else if (k == T_TYPE) t->f[i].value = (uint64_t)type;
    }
    put_contents(m, mpri_tree_add(m->pool, t, T_RAW, WIRE_BYTES), &from);
}
