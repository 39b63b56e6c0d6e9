/* Every row of ops.def has a complete definition: nothing forgotten, attribute rows inside their struct,
 * masks inside the arity, names found under both spellings of the default domain. */
#include <string.h>

#include "runtime/op/ops.h"
#include "runtime/op/params.h"
#include "tests/support/support.h"

typedef struct Row {
    const char *name, *domain, *family;
    int since;
} Row;

static const Row rows[] = {
#define OP(name, domain, since, family) {#name, domain, #family, since},
#include "runtime/op/ops.def"
#undef OP
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static const OpDef *at(int id)
{
    const OpTable *t = mpri_op_table();
    assert_true(id < t->count);
    return t->defs[id];
}

static void identity(void **state)
{
    (void)state;
    assert_int_equal(mpri_op_table()->count, OP_COUNT);
    assert_int_equal(N_ROWS, OP_Opaque);
    for (int i = 0; i < N_ROWS; i++) {
        const OpDef *d = at(i);
        assert_int_equal(d->id, i);
        assert_string_equal(d->name, rows[i].name);
        assert_string_equal(d->domain, rows[i].domain);
        assert_string_equal(d->family, rows[i].family);
        assert_int_equal(d->since, rows[i].since);
        if (!d->help || !d->help[0]) fail_msg("%s has no help line", d->name);
        bool internal = strcmp(d->domain, "mpr") == 0;
        if (internal != ((d->flags & OPF_INTERNAL) != 0)) fail_msg("%s: OPF_INTERNAL against its domain", d->name);
    }
    const OpDef *opaque = mpri_op_table()->opaque;
    assert_ptr_equal(opaque, at(OP_Opaque));
    assert_int_equal(opaque->id, OP_Opaque);
    assert_true(opaque->flags & OPF_OPAQUE);
}

static void lookup(void **state)
{
    (void)state;
    const OpTable *t = mpri_op_table();
    for (int i = 0; i < N_ROWS; i++) {
        assert_ptr_equal(t->find(rows[i].domain, rows[i].name), at(i));
        if (!rows[i].domain[0]) assert_ptr_equal(t->find("ai.onnx", rows[i].name), at(i));
    }
    assert_null(t->find("", "Opaque"));
    assert_null(t->find("mpr", "Opaque"));
    assert_null(t->find("", "add"));
    assert_null(t->find("", ""));
    assert_null(t->find("com.microsoft", "Add"));
    assert_null(t->find("", "Linear"));
}

/* Bits of a mask lie below the number of inputs. */
static void in_arity(const OpDef *d, uint32_t mask, const char *what)
{
    if (d->max_in >= 0 && d->max_in < 32 && (mask >> d->max_in)) fail_msg("%s: %s beyond its inputs", d->name, what);
}

static void states(void **state)
{
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const OpDef *d = at(i);
        if (d->cast_cuda == CAST_FORGOTTEN || d->cast_cpu == CAST_FORGOTTEN) fail_msg("%s has no cast class", d->name);
        if (d->grad_state == GRAD_FORGOTTEN) fail_msg("%s has no gradient state", d->name);
        if ((d->grad_state == GRAD_FUNCTION) != (d->grad != NULL)) fail_msg("%s: gradient state and function differ", d->name);
        if (d->grad_state == GRAD_NONE && (!d->grad_reason || !d->grad_reason[0])) fail_msg("%s gives no reason", d->name);
        if (!d->infer) fail_msg("%s has no shape rule", d->name);
        assert_true(d->min_in >= 0 && (d->max_in == -1 || d->max_in >= d->min_in));
        assert_true(d->min_out >= 0 && (d->max_out == -1 || d->max_out >= d->min_out));
        in_arity(d, d->optional_in, "optional_in");
        in_arity(d, d->inplace, "inplace");
        in_arity(d, d->writes, "writes");
        in_arity(d, d->fixed_in, "fixed_in");
        in_arity(d, d->nondiff_in, "nondiff_in");
        if (((d->flags & OPF_EFFECT) != 0) != (d->writes != 0)) fail_msg("%s: OPF_EFFECT against writes", d->name);
        if (d->flags & OPF_LOSS) assert_int_equal(d->cast_cpu, CAST_FP32);
        for (int k = d->min_in; k < d->max_in && k < 32; k++)
            if (!(d->optional_in >> k & 1)) fail_msg("%s: input %d beyond min_in is not optional", d->name, k);
        if (d->min_in < d->max_in) assert_false(d->optional_in & 1);
    }
}

static size_t kind_size(AttrKind k)
{
    switch (k) {
    case ATTR_INT:
    case ATTR_DTYPE: return sizeof(int64_t);
    case ATTR_FLOAT: return sizeof(float);
    case ATTR_STRING: return sizeof(const char *);
    case ATTR_INTS: return sizeof(Ints);
    case ATTR_FLOATS: return sizeof(Floats);
    case ATTR_TENSOR: return sizeof(TensorAttr);
    }
    return 0;
}

/* word is one of "a|b|c". */
static bool is_choice(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = choices;; p++) {
        size_t len = strcspn(p, "|");
        if (len == n && memcmp(p, word, n) == 0) return true;
        p += len;
        if (!*p) return false;
    }
}

static void attributes(void **state)
{
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const OpDef *d = at(i);
        size_t covered = 0;
        if (!d->attrs) assert_int_equal(d->params_size, 0);
        for (const AttrRow *r = d->attrs; r && r->name; r++) {
            if (r->offset + kind_size(r->kind) > d->params_size) fail_msg("%s.%s lies outside its struct", d->name, r->name);
            covered += kind_size(r->kind);
            for (const AttrRow *o = d->attrs; o < r; o++) {
                if (strcmp(o->name, r->name) == 0) fail_msg("%s.%s is listed twice", d->name, r->name);
                if (o->offset == r->offset) fail_msg("%s: %s and %s share a field", d->name, o->name, r->name);
            }
            if (r->kind == ATTR_STRING && r->choices && !is_choice(r->choices, r->def_string ? r->def_string : ""))
                fail_msg("%s.%s: the default is no choice", d->name, r->name);
            bool range = r->min_int < r->max_int;
            if (range && !r->required && (r->def_int < r->min_int || r->def_int > r->max_int))
                fail_msg("%s.%s: the default is out of range", d->name, r->name);
            if (r->internal && strcmp(r->name, "out_dtype") == 0) assert_int_equal(r->kind, ATTR_DTYPE);
        }
        /* every field has a row: what is left is padding */
        if (d->params_size - covered >= sizeof(int64_t)) fail_msg("%s: a field of its struct has no row", d->name);
    }
}

/* A kernel that may read out_dtype finds it: first in elementwise structs, somewhere in the others. */
static void mixed_types(void **state)
{
    (void)state;
    for (int i = 0; i < OP_COUNT; i++) {
        const OpDef *d = at(i);
        if (!(d->flags & OPF_MIXED_OUT)) continue;
        const AttrRow *r = mpri_params_row(d, "out_dtype");
        if (!r || !r->internal) fail_msg("%s has no out_dtype", d->name);
        if (d->flags & OPF_ELEMENTWISE) assert_int_equal(r->offset, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity), cmocka_unit_test(lookup), cmocka_unit_test(states),
        cmocka_unit_test(attributes), cmocka_unit_test(mixed_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
