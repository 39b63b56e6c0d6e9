/* Lists of tensors and optional tensors, as shape code and loops use them: a name that stands for a
 * list of names, followed through the graph while it is expanded. Nothing of them is left in the
 * Graph; a sequence that an operator reads which is not expanded, or that is an output of the
 * graph, keeps a SequenceConstruct that is reported as what it is. */
#include <string.h>

#include "importer/inline_private.h"

Sequence *mpri_sequence_find(const Inliner *x, const char *name)
{
    Sequence *s;
    HASH_FIND_PTR(x->sequences, &name, s);
    return s;
}

mpr_status mpri_sequence_put(Inliner *x, const char *name, int n, const char *const *items,
                             bool optional)
{
    Arena *hash_arena = &x->im->scratch;
    Sequence *s = mpri_sequence_find(x, name);
    if (s || !name[0]) return MPR_OK;
    s = ARENA_NEW(hash_arena, Sequence);
    if (!s) return mpri_err_nomem(x->err, sizeof *s);
    s->name = name;
    s->n = n;
    s->optional = optional;
    s->items = mpri_arena_dup(hash_arena, items, (size_t)n * sizeof *items);
    if (n && !s->items) return mpri_err_nomem(x->err, (size_t)n * sizeof *items);
    HASH_ADD_PTR(x->sequences, name, s);
    return s->lost ? mpri_err_nomem(x->err, sizeof *s) : MPR_OK;
}

mpr_status mpri_sequence_write(Inliner *x, const char *name, const Expansion *e)
{
    Sequence *s = mpri_sequence_find(x, name);
    if (!s || s->written) return MPR_OK;
    s->written = true;
    NodeProto *p =
        mpri_inline_node(x, s->optional ? "Optional" : "SequenceConstruct", s->n, s->items, name);
    return p ? mpri_inline_emit(x, p, e) : mpri_err_nomem(x->err, sizeof *p);
}

/* ---- one operator each; *taken stays false when something is not known */

typedef struct SequenceCall {
    Inliner *x;
    const NodeProto *p;
    const Expansion *e;
    const Sequence *s; /* what input 0 is, or NULL */
    bool *taken;
} SequenceCall;

static const char *input(const SequenceCall *c, size_t k)
{
    return k < c->p->n_input ? c->p->input[k] : "";
}

static mpr_status refuse_position(const SequenceCall *c, int64_t at)
{
    mpri_err_set(c->x->err, MPR_E_INDEX, "node '%s' (%s): position %lld of a sequence of %d",
                 mpri_err_name(c->p->name), c->p->op_type, (long long)at, c->s->n);
    return mpri_err_advice(c->x->err, "positions count from 0, or from -1 at the end");
}

/* Position of input k in [0, room), or `none` when it is absent. */
static mpr_status position(SequenceCall *c, size_t k, int room, int none, int *at)
{
    int64_t v = none;
    *c->taken = true;
    if (input(c, k)[0] && !mpri_inline_known(c->x, input(c, k), &v)) {
        *c->taken = false;
        return mpri_inline_ask(c->x, input(c, k), FACT_VALUE);
    }
    if (v < -(int64_t)c->s->n || v >= room) return refuse_position(c, v);
    *at = (int)(v < 0 ? v + c->s->n : v);
    return MPR_OK;
}

static mpr_status construct(SequenceCall *c)
{
    *c->taken = true;
    return mpri_sequence_put(c->x, c->p->output[0], (int)c->p->n_input,
                             (const char *const *)c->p->input, false);
}

static mpr_status empty(SequenceCall *c)
{
    *c->taken = true;
    return mpri_sequence_put(c->x, c->p->output[0], 0, NULL, false);
}

static mpr_status insert(SequenceCall *c)
{
    int at = 0, n = c->s->n;
    TRY(position(c, 2, n + 1, n, &at));
    if (!*c->taken) return MPR_OK;
    const char **items = ARENA_ARRAY(&c->x->im->scratch, const char *, n + 1);
    if (!items) return mpri_err_nomem(c->x->err, (size_t)n * sizeof *items);
    for (int i = 0; i <= n; i++)
        items[i] = i < at ? c->s->items[i] : i == at ? input(c, 1) : c->s->items[i - 1];
    return mpri_sequence_put(c->x, c->p->output[0], n + 1, items, false);
}

static mpr_status erase(SequenceCall *c)
{
    int at = 0, n = c->s->n;
    TRY(position(c, 1, n, n - 1, &at));
    if (!*c->taken) return MPR_OK;
    const char **items = ARENA_ARRAY(&c->x->im->scratch, const char *, n);
    if (!items) return mpri_err_nomem(c->x->err, (size_t)n * sizeof *items);
    for (int i = 0; i + 1 < n; i++) items[i] = c->s->items[i + (i >= at)];
    return mpri_sequence_put(c->x, c->p->output[0], n - 1, items, false);
}

static mpr_status pick(SequenceCall *c)
{
    int at = 0;
    TRY(position(c, 1, c->s->n, 0, &at));
    if (!*c->taken) return MPR_OK;
    return mpri_inline_alias(c->x, c->s->items[at], c->p->output[0], c->e);
}

static mpr_status length(SequenceCall *c)
{
    const char *out = c->p->output[0];
    *c->taken = true;
    return mpri_inline_number(c->x, c->e, MPR_INT64, 0, c->s->n, &out);
}

static mpr_status concat(SequenceCall *c)
{
    bool stack = mpri_inline_int(c->p, "new_axis", 0) != 0;
    if (c->s->n == 0) return MPR_OK;
    *c->taken = true;
    return mpri_inline_join(c->x, c->e, c->s->n, c->s->items, mpri_inline_int(c->p, "axis", 0),
                            stack, c->p->output[0]);
}

static mpr_status identity(SequenceCall *c)
{
    *c->taken = true;
    return mpri_sequence_put(c->x, c->p->output[0], c->s->n, c->s->items, c->s->optional);
}

/* ---- SplitToSequence */

static mpr_status name_pieces(SequenceCall *c, int64_t n, const char ***out)
{
    Inliner *x = c->x;
    *out = NULL;
    if (n > x->im->limits.trips)
        return mpri_err_set(x->err, MPR_E_LIMIT,
                            "node '%s' (SplitToSequence): more than %lld pieces",
                            mpri_err_name(c->p->name), (long long)x->im->limits.trips);
    const char **names = ARENA_ARRAY(&x->im->scratch, const char *, n);
    if (!names) return mpri_err_nomem(x->err, (size_t)n * sizeof *names);
    for (int64_t i = 0; i < n; i++)
        if (!(names[i] = mpri_inline_fresh(x, c->e->path, "piece")))
            return mpri_err_nomem(x->err, 0);
    *out = names;
    return mpri_sequence_put(x, c->p->output[0], (int)n, names, false);
}

/* Pieces of one size, the last one perhaps smaller, or single elements. */
static mpr_status split_even(SequenceCall *c, int64_t size, int64_t whole, bool keep, int64_t axis)
{
    Inliner *x = c->x;
    const char **names;
    int64_t n = whole / size + (whole % size != 0);
    TRY(name_pieces(c, n, &names));
    for (int64_t i = 0; i < n; i++) {
        if (!keep) {
            TRY(mpri_inline_pick(x, c->e, input(c, 0), i, axis, &names[i]));
            continue;
        }
        const char *in[4] = {input(c, 0), NULL, NULL, NULL};
        int64_t end = (i + 1) * size < whole ? (i + 1) * size : whole;
        TRY(mpri_inline_number(x, c->e, MPR_INT64, 1, i * size, &in[1]));
        TRY(mpri_inline_number(x, c->e, MPR_INT64, 1, end, &in[2]));
        TRY(mpri_inline_number(x, c->e, MPR_INT64, 1, axis, &in[3]));
        NodeProto *p = mpri_inline_node(x, "Slice", 4, in, names[i]);
        if (!p) return mpri_err_nomem(x->err, sizeof *p);
        TRY(mpri_inline_emit(x, p, c->e));
    }
    return MPR_OK;
}

/* Sizes in a tensor: as many outputs of a Split as it has elements. Split reads them from an input
 * since opset 13, SplitToSequence since 11. */
static mpr_status split_listed(SequenceCall *c, int64_t n, int64_t axis)
{
    static const Opset thirteen = {"", 13};
    static const Opsets since_13 = {&thirteen, 1};
    Inliner *x = c->x;
    Expansion here = *c->e;
    if (mpri_opset_of(here.opsets, "") < 13) here.opsets = &since_13;
    const char **names, *in[2] = {input(c, 0), input(c, 1)};
    TRY(name_pieces(c, n, &names));
    NodeProto *p = mpri_inline_node(x, "Split", 2, in, n ? names[0] : "");
    char **out = mpri_arena_array(&x->im->d->proto, (size_t)n + 1, sizeof *out);
    if (!p || !out ||
        !mpri_inline_attr(x, p, "axis", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT, 1, &axis))
        return mpri_err_nomem(x->err, sizeof *p);
    for (int64_t i = 0; i < n; i++) out[i] = (char *)(uintptr_t)names[i];
    p->output = out;
    p->n_output = (size_t)n;
    return n ? mpri_inline_emit(x, p, &here) : MPR_OK;
}

static mpr_status split(SequenceCall *c)
{
    Inliner *x = c->x;
    int64_t axis = mpri_inline_int(c->p, "axis", 0), size = 1, whole, n;
    bool sizes = input(c, 1)[0], keep = sizes || mpri_inline_int(c->p, "keepdims", 1) != 0;
    if (sizes && !mpri_inline_known(x, input(c, 1), &size)) {
        if (mpri_inline_dim(x, input(c, 1), 0, &n)) {
            *c->taken = true;
            return split_listed(c, n, axis);
        }
        TRY(mpri_inline_ask(x, input(c, 1), FACT_VALUE));
        return mpri_inline_ask(x, input(c, 1), 0);
    }
    if (axis < INT32_MIN + 1 || axis > INT32_MAX || size < 1) return MPR_OK;
    if (!mpri_inline_dim(x, input(c, 0), (int)axis, &whole))
        return mpri_inline_ask(x, input(c, 0), (int)axis);
    *c->taken = true;
    return split_even(c, size, whole, keep, axis);
}

/* ---- optional */

static mpr_status make_optional(SequenceCall *c)
{
    *c->taken = true;
    return mpri_sequence_put(c->x, c->p->output[0], input(c, 0)[0] ? 1 : 0,
                             (const char *const *)c->p->input, true);
}

static mpr_status has_element(SequenceCall *c)
{
    const char *out = c->p->output[0];
    bool there = input(c, 0)[0] && !(c->s && c->s->optional && c->s->n == 0);
    *c->taken = true;
    return mpri_inline_number(c->x, c->e, MPR_BOOL, 0, there, &out);
}

static mpr_status get_element(SequenceCall *c)
{
    if (c->s && c->s->optional && c->s->n == 0) return MPR_OK;
    *c->taken = true;
    return mpri_inline_alias(c->x, c->s && c->s->optional ? c->s->items[0] : input(c, 0),
                             c->p->output[0], c->e);
}

static const struct {
    const char *op;
    bool of_sequence; /* input 0 must be one that is known */
    bool gradient;    /* false: gives a number */
    mpr_status (*fn)(SequenceCall *c);
} rows[] = {
    {"SequenceConstruct", false, true, construct},
    {"SequenceEmpty", false, true, empty},
    {"SequenceInsert", true, true, insert},
    {"SequenceErase", true, true, erase},
    {"SequenceAt", true, true, pick},
    {"SequenceLength", true, false, length},
    {"ConcatFromSequence", true, true, concat},
    {"SplitToSequence", false, true, split},
    {"Optional", false, true, make_optional},
    {"OptionalHasElement", false, false, has_element},
    {"OptionalGetElement", false, true, get_element},
    {"Identity", true, true, identity}, /* last: with tensors it is an operator of its own */
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

const char *mpri_sequence_op(int i, bool *gradient)
{
    if (i >= N_ROWS - 1) return NULL;
    *gradient = rows[i].gradient;
    return rows[i].op;
}

mpr_status mpri_sequence_node(Inliner *x, const NodeProto *p, const Expansion *e, bool *taken)
{
    *taken = false;
    if (p->n_output != 1 || !p->output[0][0]) return MPR_OK;
    SequenceCall c = {.x = x, .p = p, .e = e, .taken = taken};
    if (p->n_input) c.s = mpri_sequence_find(x, p->input[0]);
    for (int i = 0; i < N_ROWS; i++) {
        if (strcmp(p->op_type, rows[i].op)) continue;
        if (rows[i].of_sequence && !c.s) return MPR_OK;
        TRY(rows[i].fn(&c));
        if (*taken) x->changed = true;
        return MPR_OK;
    }
    return MPR_OK;
}
