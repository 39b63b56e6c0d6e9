/* Types of values, forward only: from declarations, attributes, and the table of ports. */
#include <string.h>

#include "convert/mix_parts.h"

static MixType type_of(const Tree *type)
{
    MixType t = {MPR_DTYPE_NONE, WRAP_OTHER};
    for (int i = type ? type->n - 1 : -1; i >= 0; i--) {
        const TreeField *f = &type->f[i];
        if (!f->tree) continue;
        const TreeField *e = mpri_tree_find(f->tree, 1);
        if (f->number == 1)
            return (MixType){(DType)mpri_tree_int(f->tree, 1, 0), WRAP_TENSOR};
        if (f->number != 4 && f->number != 9) return t;
        t = e && e->tree ? type_of(e->tree) : t;
        if (t.wrap == WRAP_TENSOR) t.wrap = f->number == 4 ? WRAP_SEQUENCE : WRAP_OPTIONAL;
        else t.wrap = WRAP_OTHER;
        return t;
    }
    return t;
}

MixType mpri_mix_info_type(const Tree *info)
{
    const TreeField *f = info ? mpri_tree_find(info, 2) : NULL;
    return f && f->tree ? type_of(f->tree) : (MixType){MPR_DTYPE_NONE, WRAP_TENSOR};
}

static bool same_text(const TreeField *f, const void *text, size_t n)
{
    return f && f->len == n && (n == 0 || !memcmp(f->bytes, text, n));
}

static const Tree *attribute(const Tree *t, uint32_t number, const void *name, size_t n)
{
    for (int i = t->n - 1; i >= 0; i--) {
        const TreeField *f = &t->f[i];
        if (f->number == number && f->tree && same_text(mpri_tree_find(f->tree, 1), name, n))
            return f->tree;
    }
    return NULL;
}

const Tree *mpri_mix_attribute(const MixNode *n, const char *name)
{
    enum { N_ATTRIBUTE = 5, F_DEFAULT = 11, A_REF = 21 };
    const Tree *a = attribute(n->tree, N_ATTRIBUTE, name, strlen(name)), *given;
    const MixScope *home = n->scope->home;
    for (const TreeField *ref; a && (ref = mpri_tree_find(a, A_REF)) && ref->len; a = given) {
        if (!home) return NULL;
        given = attribute(home->owner->tree, N_ATTRIBUTE, ref->bytes, ref->len);
        if (!given) return attribute(home->original, F_DEFAULT, ref->bytes, ref->len);
        home = home->owner->scope->home;
    }
    return a;
}

int64_t mpri_mix_attribute_int(const MixNode *n, const char *name, int64_t absent)
{
    const Tree *a = mpri_mix_attribute(n, name);
    return a ? mpri_tree_int(a, 3, 0) : absent;
}

MixType mpri_mix_in_type(const MixNode *n, int k)
{
    if (k >= n->n_in || !n->in[k]) return (MixType){MPR_DTYPE_NONE, WRAP_TENSOR};
    return n->in[k]->type;
}

Tree *mpri_mix_attribute_tensor(const MixNode *n, const char *name)
{
    const Tree *a = mpri_mix_attribute(n, name);
    TreeField *t = a ? mpri_tree_find(a, 5) : NULL;
    return t ? t->tree : NULL;
}

static DType constant_type(const MixNode *n)
{
    static const struct { const char *name; DType type; } forms[] = {
        {"value_float", MPR_FLOAT32}, {"value_floats", MPR_FLOAT32}, {"value_int", MPR_INT64},
        {"value_ints", MPR_INT64}, {"value_string", MPR_STRING}, {"value_strings", MPR_STRING},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (mpri_mix_attribute(n, forms[i].name)) return forms[i].type;
    const Tree *t = mpri_mix_attribute_tensor(n, "value"), *a = mpri_mix_attribute(n, "sparse_value");
    TreeField *sparse = a ? mpri_tree_find(a, 22) : NULL;
    if (!t && sparse && sparse->tree && (sparse = mpri_tree_find(sparse->tree, 1)))
        t = sparse->tree;
    return t ? (DType)mpri_tree_int(t, 2, 0) : MPR_DTYPE_NONE;
}

static DType cast_type(Pool *p, const MixNode *n)
{
    const Tree *a = mpri_mix_attribute(n, "to");
    if (!a) return MPR_DTYPE_NONE;
    const TreeField *s = mpri_tree_find(a, 4);
    if (!s || !s->len) return (DType)mpri_tree_int(a, 3, 0);
    const char *text = mpri_tree_text(p, a, 4);
    static const struct { const char *name; DType type; } names[] = {
        {"FLOAT", MPR_FLOAT32}, {"FLOAT16", MPR_FLOAT16}, {"DOUBLE", MPR_FLOAT64},
        {"INT64", MPR_INT64}, {"INT32", MPR_INT32}, {"INT16", MPR_INT16}, {"INT8", MPR_INT8},
        {"UINT64", MPR_UINT64}, {"UINT32", MPR_UINT32}, {"UINT16", MPR_UINT16},
        {"UINT8", MPR_UINT8}, {"BOOL", MPR_BOOL},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i].name)) return names[i].type;
    return MPR_DTYPE_NONE;
}

/* Outputs whose type comes from attributes or from inside a container. */
static bool special(Mix *m, const MixNode *n, int k, MixType *out)
{
    const char *op = n->op;
    MixType first = mpri_mix_in_type(n, 0);
    *out = (MixType){MPR_DTYPE_NONE, WRAP_TENSOR};
    if (!strcmp(op, "Cast") || !strcmp(op, "BitCast")) out->elem = cast_type(m->pool, n);
    else if (!strcmp(op, "CastLike")) *out = mpri_mix_in_type(n, 1);
    else if (!strcmp(op, "Constant")) out->elem = constant_type(n);
    else if (!strcmp(op, "ConstantOfShape")) {
        const Tree *t = mpri_mix_attribute_tensor(n, "value");
        out->elem = t ? (DType)mpri_tree_int(t, 2, 0) : MPR_FLOAT32;
    } else if (!strcmp(op, "EyeLike") || !strcmp(op, "RandomNormalLike") ||
               !strcmp(op, "RandomUniformLike") || !strcmp(op, "Bernoulli")) {
        out->elem = (DType)mpri_mix_attribute_int(n, "dtype", 0);
        if (!out->elem) *out = first;
    } else if (!strcmp(op, "RandomNormal") || !strcmp(op, "RandomUniform"))
        out->elem = (DType)mpri_mix_attribute_int(n, "dtype", 1);
    else if (!strcmp(op, "Multinomial"))
        out->elem = (DType)mpri_mix_attribute_int(n, "dtype", 6);
    else if (strstr(op, "Window") || !strcmp(op, "MelWeightMatrix"))
        out->elem = (DType)mpri_mix_attribute_int(n, "output_datatype", 1);
    else if (!strcmp(op, "SequenceEmpty"))
        *out = (MixType){(DType)mpri_mix_attribute_int(n, "dtype", 1), WRAP_SEQUENCE};
    else if (!strcmp(op, "SequenceConstruct") || !strcmp(op, "SplitToSequence"))
        *out = (MixType){first.elem, WRAP_SEQUENCE};
    else if (!strcmp(op, "SequenceAt") || !strcmp(op, "ConcatFromSequence"))
        out->elem = first.elem;
    else if (!strcmp(op, "Optional")) {
        const Tree *a = mpri_mix_attribute(n, "type");
        TreeField *t = a ? mpri_tree_find(a, 14) : NULL;
        *out = t && t->tree ? type_of(t->tree) : first;
        out->wrap = out->wrap == WRAP_TENSOR ? WRAP_OPTIONAL : WRAP_OTHER;
    } else if (!strcmp(op, "OptionalGetElement")) {
        *out = first;
        if (first.wrap == WRAP_OPTIONAL) out->wrap = WRAP_TENSOR;
    } else if (!strcmp(op, "QuantizeLinear")) {
        *out = mpri_mix_in_type(n, 2);
        if (!out->elem) out->elem = (DType)mpri_mix_attribute_int(n, "output_dtype", 0);
        if (!out->elem) out->elem = MPR_UINT8;
    } else if (!strcmp(op, "DequantizeLinear")) {
        out->elem = (DType)mpri_mix_attribute_int(n, "output_dtype", 0);
        if (!out->elem) *out = mpri_mix_in_type(n, 1);
    } else if (!strcmp(op, "LayerNormalization") && k > 0)
        out->elem = (DType)mpri_mix_attribute_int(n, "stash_type", 1);
    else return false;
    return true;
}

static DType fixed_type(char letter)
{
    switch (letter) {
    case 'f': return MPR_FLOAT32;
    case 'i': return MPR_INT64;
    case 'b': return MPR_BOOL;
    case 'j': return MPR_INT32;
    case 'd': return MPR_FLOAT64;
    case 's': return MPR_STRING;
    case 'u': return MPR_UINT8;
    default: return MPR_DTYPE_NONE;
    }
}

static MixType schema_output(Mix *m, const MixNode *n, int k)
{
    MixType t;
    bool own, unused;
    if (*n->domain || !n->row || n->call) return (MixType){MPR_DTYPE_NONE, WRAP_TENSOR};
    if (special(m, n, k, &t)) return t;
    char letter = mpri_ports_letter(n->row->out, k, &own);
    t = (MixType){fixed_type(letter), WRAP_TENSOR};
    for (int i = 0; i < n->n_in && !own && !t.elem; i++)
        if (mpri_ports_letter(n->row->in, i, &unused) == letter) t = mpri_mix_in_type(n, i);
    return t;
}

static MixScope *body(const MixNode *n, const char *attribute)
{
    for (int i = 0; i < n->n_bodies; i++)
        if (!strcmp(n->bodies[i]->attribute, attribute)) return n->bodies[i];
    return NULL;
}

static MixType body_output(const MixScope *b, int k)
{
    if (!b || k < 0 || k >= b->n_outputs || !b->outputs[k])
        return (MixType){MPR_DTYPE_NONE, WRAP_TENSOR};
    return b->outputs[k]->type;
}

MixType mpri_mix_output_type(Mix *m, const MixNode *n, int k)
{
    MixType t = {MPR_DTYPE_NONE, WRAP_TENSOR};
    if (*n->domain || n->call) return t;
    if (!strcmp(n->op, "If")) {
        t = body_output(body(n, "then_branch"), k);
        return t.elem ? t : body_output(body(n, "else_branch"), k);
    }
    if (!strcmp(n->op, "Loop")) return body_output(body(n, "body"), k + 1);
    if (!strcmp(n->op, "Scan")) return body_output(body(n, "body"), k);
    if (!strcmp(n->op, "SequenceMap")) {
        t = body_output(body(n, "body"), k);
        t.wrap = t.wrap == WRAP_TENSOR ? WRAP_SEQUENCE : WRAP_OTHER;
        return t;
    }
    return schema_output(m, n, k);
}
