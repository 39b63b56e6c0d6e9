/* Parameter structs by their attribute rows: the graph copies, compares and prints attributes of
 * every operator without knowing any. */
#include <string.h>

#include "runtime/ir/opdef.h"

#define FIELD(T, p, row)       (*(T *)((char *)(p) + (row)->offset))
#define CONST_FIELD(T, p, row) (*(const T *)((const char *)(p) + (row)->offset))

static const AttrRow no_rows[1];

static const AttrRow *rows_of(const OpDef *op)
{
    return op->attrs ? op->attrs : no_rows;
}

const AttrRow *mpri_params_row(const OpDef *op, const char *name)
{
    for (const AttrRow *r = rows_of(op); r->name; r++)
        if (!strcmp(r->name, name)) return r;
    return NULL;
}

static bool is_choice(const char *choices, const char *s)
{
    size_t n = strlen(s);
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strcspn(p, "|") == n && !strncmp(p, s, n)) return true;
    return false;
}

bool mpri_params_row_allows(const AttrRow *row, const void *field)
{
    if (row->kind == ATTR_INT && row->min_int < row->max_int) {
        int64_t v = *(const int64_t *)field;
        return v >= row->min_int && v <= row->max_int;
    }
    if (row->kind == ATTR_STRING && row->choices) {
        const char *s = *(const char *const *)field;
        return !s || is_choice(row->choices, s);
    }
    return true;
}

void mpri_params_default(const OpDef *op, void *p)
{
    memset(p, 0, op->params_size);
    for (const AttrRow *r = rows_of(op); r->name; r++) {
        switch (r->kind) {
        case ATTR_INT:
        case ATTR_DTYPE: FIELD(int64_t, p, r) = r->def_int; break;
        case ATTR_FLOAT: FIELD(float, p, r) = r->def_float; break;
        case ATTR_STRING: FIELD(const char *, p, r) = r->def_string; break;
        case ATTR_INTS:
        case ATTR_FLOATS:
        case ATTR_TENSOR: break;
        }
    }
}

static size_t tensor_bytes(const TensorAttr *t)
{
    int64_t n = mpri_shape_elements(&t->shape);
    return t->data && n > 0 ? (size_t)n * mpri_dtype_size(t->dtype) : 0;
}

static bool copy_bytes(Arena *arena, const void **p, size_t bytes)
{
    if (bytes == 0) return true;
    void *copy = mpri_arena_dup(arena, *p, bytes);
    if (!copy) return false;
    *p = copy;
    return true;
}

bool mpri_params_copy(const OpDef *op, void *dst, const void *src, Arena *arena, Intern *names)
{
    memcpy(dst, src, op->params_size);
    for (const AttrRow *r = rows_of(op); r->name; r++) {
        bool ok = true;
        switch (r->kind) {
        case ATTR_STRING: {
            const char **s = &FIELD(const char *, dst, r);
            if (*s) ok = (*s = mpri_intern(names, *s)) != NULL;
            break;
        }
        case ATTR_INTS: {
            Ints *v = &FIELD(Ints, dst, r);
            ok = copy_bytes(arena, (const void **)&v->v, (size_t)v->n * sizeof *v->v);
            break;
        }
        case ATTR_FLOATS: {
            Floats *v = &FIELD(Floats, dst, r);
            ok = copy_bytes(arena, (const void **)&v->v, (size_t)v->n * sizeof *v->v);
            break;
        }
        case ATTR_TENSOR: {
            TensorAttr *t = &FIELD(TensorAttr, dst, r);
            ok = copy_bytes(arena, &t->data, tensor_bytes(t));
            break;
        }
        case ATTR_INT:
        case ATTR_FLOAT:
        case ATTR_DTYPE: break;
        }
        if (!ok) return false;
    }
    return true;
}

static bool bytes_equal(const void *a, const void *b, size_t n)
{
    return n == 0 || !memcmp(a, b, n);
}

bool mpri_params_row_equal(const AttrRow *r, const void *a, const void *b)
{
    switch (r->kind) {
    case ATTR_INT:
    case ATTR_DTYPE: return CONST_FIELD(int64_t, a, r) == CONST_FIELD(int64_t, b, r);
    case ATTR_FLOAT:
        return !memcmp(&CONST_FIELD(float, a, r), &CONST_FIELD(float, b, r), sizeof(float));
    case ATTR_STRING: {
        const char *x = CONST_FIELD(char *, a, r), *y = CONST_FIELD(char *, b, r);
        return x == y || (x && y && !strcmp(x, y));
    }
    case ATTR_INTS: {
        const Ints *x = &CONST_FIELD(Ints, a, r), *y = &CONST_FIELD(Ints, b, r);
        return x->n == y->n && bytes_equal(x->v, y->v, (size_t)x->n * sizeof *x->v);
    }
    case ATTR_FLOATS: {
        const Floats *x = &CONST_FIELD(Floats, a, r), *y = &CONST_FIELD(Floats, b, r);
        return x->n == y->n && bytes_equal(x->v, y->v, (size_t)x->n * sizeof *x->v);
    }
    case ATTR_TENSOR: {
        const TensorAttr *x = &CONST_FIELD(TensorAttr, a, r), *y = &CONST_FIELD(TensorAttr, b, r);
        return x->dtype == y->dtype && mpri_shape_equal(&x->shape, &y->shape) &&
               tensor_bytes(x) == tensor_bytes(y) && bytes_equal(x->data, y->data, tensor_bytes(x));
    }
    }
    return false;
}

bool mpri_params_equal(const OpDef *op, const void *a, const void *b)
{
    for (const AttrRow *r = rows_of(op); r->name; r++)
        if (!mpri_params_row_equal(r, a, b)) return false;
    return true;
}
