/* A model in PyTorch has parameters and buffers, an ONNX file has only tensors. A buffer is told by
 * what it holds and how it is read, never by one of the two alone: attention masks, masks of pruned
 * weights, tables of sines and cosines, slopes of positions, the mean and spread that normalise an
 * input, and tensors of equal values that an exporter writes where a layer has no weight.
 *
 * Every rule is one that a trained or freshly initialised parameter does not meet. Contents are
 * read up to the first element that decides, so that weights cost a few loads. */
#include "importer/buffers.h"

#include <math.h>
#include <string.h>

#include "importer/roles.h"
#include "runtime/op/ops.h"

enum { HIDDEN = -50, INPUT_STEPS = 8 }; /* exp(-50) is nothing beside one */

static double at(const Value *v, int64_t i)
{
    return mpri_load_f64(v->dtype, v->data, i);
}

static int64_t last_dim(const Value *v)
{
    return v->shape.d[v->shape.rank - 1];
}

/* ---- how it is read, seen through the Casts of a mixed-precision file */

typedef bool Reads(const Node *n, int input);

static bool all_reads(const Value *v, Reads *reads, int casts)
{
    if (v->n_uses == 0 || v->n_outputs) return false;
    for (const Use *u = v->uses; u; u = u->next) {
        bool cast = mpri_float_cast(u->user) && casts > 0;
        if (cast ? !all_reads(u->user->out[0], reads, casts - 1) : !reads(u->user, u->index))
            return false;
    }
    return true;
}

static bool adds(const Node *n, int input)
{
    (void)input;
    return mpri_is(n, OP_Add);
}

static bool multiplies(const Node *n, int input)
{
    (void)input;
    return mpri_is(n, OP_Mul);
}

static bool adds_or_looks_up(const Node *n, int input)
{
    return mpri_is(n, OP_Add) || (!strcmp(mpri_node_type(n), "Gather") && input == 0) ||
           (!strcmp(mpri_node_type(n), "Slice") && input == 0);
}

static bool masks(const Node *n, int input)
{
    return mpri_is(n, OP_Add) || (!strcmp(mpri_node_type(n), "Attention") && input == 3) ||
           (!strcmp(mpri_node_type(n), "Slice") && input == 0);
}

static bool from_input(const Value *v, int steps);

/* Subtracted from, or divided into, what comes straight from an input of the model. */
static bool normalises(const Node *n, int input)
{
    if (input != 1 || !(mpri_is(n, OP_Sub) || mpri_is(n, OP_Div))) return false;
    return from_input(n->in[0], INPUT_STEPS);
}

static bool from_input(const Value *v, int steps)
{
    const Node *n = mpri_def(v);
    if (v->kind == VAL_INPUT) return true;
    if (!n || steps == 0) return false;
    bool moves = mpri_is(n, OP_Cast) || mpri_is(n, OP_Transpose) || mpri_is(n, OP_Reshape) ||
                 mpri_is(n, OP_Unsqueeze);
    bool scales = (mpri_is(n, OP_Sub) || mpri_is(n, OP_Div) || mpri_is(n, OP_Mul)) && n->in[1] &&
                  n->in[1]->kind == VAL_CONST;
    return (moves || scales) && n->in[0] && from_input(n->in[0], steps - 1);
}

/* ---- what it holds */

static bool all_equal(const Value *v)
{
    int64_t n = mpri_shape_elements(&v->shape);
    size_t size = mpri_dtype_size(v->dtype);
    return n == 1 || !memcmp(v->data, (const char *)v->data + size, (size_t)(n - 1) * size);
}

static bool is_triangular(const Value *v)
{
    int64_t n = mpri_shape_elements(&v->shape);
    int rank = v->shape.rank;
    if (n < 4) return false;
    int64_t side = last_dim(v);
    if (v->shape.d[rank - 2] != side || n % (side * side) != 0) return false;
    double on = at(v, 0), off = at(v, 1);
    if (on == off || isnan(on) || isnan(off)) return false;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / side % side, column = i % side;
        if (at(v, i) != (column <= row ? on : off)) return false;
    }
    return true;
}

/* 0 where it shows and far below where it hides. */
static bool holds_mask(const Value *v)
{
    bool hides = false;
    for (int64_t i = 0, n = mpri_shape_elements(&v->shape); i < n; i++) {
        double x = at(v, i);
        if (x != 0 && !(x <= HIDDEN)) return false;
        hides |= x != 0;
    }
    return hides;
}

static bool holds_bits(const Value *v)
{
    bool seen[2] = {false, false};
    for (int64_t i = 0, n = mpri_shape_elements(&v->shape); i < n; i++) {
        double x = at(v, i);
        if (x != 0 && x != 1) return false;
        seen[x == 1] = true;
    }
    return seen[0] && seen[1];
}

static double tolerance(const Value *v)
{
    return mpri_dtype_is_low(v->dtype) ? 1e-2 : 1e-4;
}

/* Element i of a table of angles is the sine of one angle, its partner the cosine: side by side, or
 * half a row apart. Rows of zeros stand for padding. */
static bool holds_sines(const Value *v, int64_t step)
{
    int64_t n = mpri_shape_elements(&v->shape), width = last_dim(v), full = 0, between = 0;
    for (int64_t row = 0; row < n; row += width) {
        int64_t zeros = 0;
        for (int64_t i = 0; i < width / 2; i++) {
            int64_t k = row + (step == 1 ? 2 * i : i);
            double a = at(v, k), b = at(v, k + step);
            zeros += a == 0 && b == 0;
            if (zeros != i + 1 && !(fabs(a * a + b * b - 1) <= tolerance(v))) return false;
            if (zeros && a != 0) return false;
            between += a != 0 && b != 0;
        }
        full += zeros == 0;
    }
    return full > 1 && between > 1;
}

static bool is_sines(const Value *v)
{
    int64_t width = last_dim(v);
    if (width == 2 && v->shape.rank > 2) return holds_sines(v, 1);
    return width >= 4 && width % 2 == 0 && (holds_sines(v, 1) || holds_sines(v, width / 2));
}

/* Tables of sines and of cosines, perhaps scaled, that belong together. */
static bool are_sine_and_cosine(const Value *v, const Value *w)
{
    if (w == v || w->kind != VAL_CONST || w->dtype != v->dtype || w->shape.rank != v->shape.rank ||
        memcmp(w->shape.d, v->shape.d, (size_t)v->shape.rank * sizeof v->shape.d[0]) != 0)
        return false;
    double sum = at(v, 0) * at(v, 0) + at(w, 0) * at(w, 0);
    if (!(sum > 0)) return false;
    for (int64_t i = 0, n = mpri_shape_elements(&v->shape); i < n; i++)
        if (!(fabs(at(v, i) * at(v, i) + at(w, i) * at(w, i) - sum) <= tolerance(v) * sum))
            return false;
    return !all_equal(v) && all_reads(w, multiplies, MPRI_SLOT_CASTS);
}

static bool has_sine_partner(const Graph *g, const Value *v)
{
    for (int i = 0; i < g->n_values; i++)
        if (are_sine_and_cosine(v, g->values[i])) return true;
    return false;
}

/* Each row rises or falls by one slope from position to position. */
static bool is_slopes(const Value *v)
{
    int64_t n = mpri_shape_elements(&v->shape), width = last_dim(v);
    if (width < 4) return false;
    for (int64_t row = 0; row < n; row += width) {
        double slope = at(v, row + 1) - at(v, row), most = fabs(slope) * (double)width;
        if (!(fabs(slope) > 0)) return false;
        for (int64_t i = 1; i < width; i++)
            if (!(fabs(at(v, row + i) - at(v, row) - slope * (double)i) <= tolerance(v) * most))
                return false;
    }
    return true;
}

/* ---- */

/* The place of a norm's weights, or an operand of no layer. */
static bool fills(const Node *n, int input)
{
    const char *type = mpri_node_type(n);
    return strstr(type, "Normalization") || !mpri_slot_holds_param(n, input);
}

const char *mpri_buffer_reason(const Graph *g, const Value *v, bool made_up)
{
    if (all_reads(v, normalises, MPRI_SLOT_CASTS)) return "it normalises an input of the model";
    if (made_up && all_equal(v) && all_reads(v, fills, MPRI_SLOT_CASTS))
        return "equal values that an exporter wrote where a layer has no weight";
    if (v->shape.rank < 2) return NULL;
    if (is_triangular(v)) return "a triangular mask of two values";
    if (all_reads(v, masks, MPRI_SLOT_CASTS) && holds_mask(v))
        return "an attention mask: zeros and large negative values";
    if (all_reads(v, multiplies, MPRI_SLOT_CASTS)) {
        if (holds_bits(v)) return "a mask of zeros and ones";
        if (has_sine_partner(g, v)) return "sines or cosines of positions";
    }
    if (all_reads(v, adds_or_looks_up, MPRI_SLOT_CASTS) && is_sines(v))
        return "sines and cosines of positions";
    if (all_reads(v, adds, MPRI_SLOT_CASTS) && is_slopes(v)) return "slopes over positions (ALiBi)";
    return NULL;
}
