/* What the model allows as input values, found by following an integer input forward to the tables
 * it indexes and the losses it labels; and the sweep over all rows that enforces it before the
 * first step. */
#include "runtime/train/dataset.h"

#include <math.h>

enum { FOLLOW_LIMIT = 32 };

static bool passes_values(const Node *n)
{
    return mpri_is(n, OP_Cast) || mpri_is(n, OP_Identity) || mpri_is(n, OP_Reshape) ||
           mpri_is(n, OP_Unsqueeze) || mpri_is(n, OP_Squeeze) || mpri_is(n, OP_Flatten) ||
           mpri_is(n, OP_Transpose);
}

static Dim class_dim(const Node *n)
{
    const Value *logits = n->in[0];
    int64_t axis = 1;
    if (mpri_is(n, OP_CrossEntropy)) axis = ((const CrossEntropyParams *)n->params)->axis;
    if (logits->shape.rank < 0) return -1;
    if (axis < 0) axis += logits->shape.rank;
    return axis >= 0 && axis < logits->shape.rank ? logits->shape.d[axis] : -1;
}

static Dim table_dim(const Node *n)
{
    const Value *table = n->in[0];
    int64_t axis = ((const AxisParams *)n->params)->axis;
    if (table->shape.rank < 0) return -1;
    if (axis < 0) axis += table->shape.rank;
    return axis >= 0 && axis < table->shape.rank ? table->shape.d[axis] : -1;
}

static void narrow(InputRange *r, int64_t low, int64_t high, bool labels)
{
    if (!r->limited || high < r->high) {
        r->low = low;
        r->high = high;
    }
    r->limited = true;
    r->labels |= labels;
}

static void look_at_use(InputRange *r, const Use *u)
{
    const Node *n = u->user;
    if (u->index != 1) return;
    if (mpri_is(n, OP_CrossEntropy) || mpri_is(n, OP_SoftmaxCrossEntropyLoss)) {
        Dim c = class_dim(n);
        r->labels = true;
        if (mpri_dim_const(c)) narrow(r, 0, c, true);
    } else if (mpri_is(n, OP_Gather)) {
        Dim rows = table_dim(n);
        if (mpri_dim_const(rows)) narrow(r, -rows, rows, false);
    }
}

InputRange mpri_input_range(const Graph *g, const char *input)
{
    InputRange r = {0};
    const Value *queue[FOLLOW_LIMIT] = {mpri_graph_find_value(g, input)};
    int n = queue[0] && mpri_dtype_is_int(queue[0]->dtype) ? 1 : 0;
    for (int i = 0; i < n; i++)
        for (const Use *u = queue[i]->uses; u; u = u->next) {
            look_at_use(&r, u);
            const Node *user = u->user;
            bool onward = passes_values(user) && u->index == 0 && user->n_out && user->out[0] &&
                          mpri_dtype_is_int(user->out[0]->dtype);
            if (onward && n < FOLLOW_LIMIT) queue[n++] = user->out[0];
        }
    return r;
}

/* Row of a flat position, and the position inside the row. */
static int64_t row_of(const mpr_tensor *t, int64_t position)
{
    int64_t size = 1;
    for (int d = 1; d < t->rank; d++) size *= t->dims[d];
    return size ? position / size : position;
}

static mpr_status check_range(const DataArray *a, InputRange r, int64_t ignore, Err *err)
{
    int64_t n = mpri_tensor_elements(&a->t);
    for (int64_t i = 0; i < n; i++) {
        int64_t v = mpri_load_i64(a->t.dtype, a->t.data, i);
        if ((v >= r.low && v < r.high) || (r.labels && v == ignore)) continue;
        mpri_err_set(err, MPR_E_INDEX, "'%s': row %lld holds %lld; the model allows %lld to %lld%s",
                     mpri_err_name(a->key), (long long)row_of(&a->t, i), (long long)v,
                     (long long)r.low, (long long)(r.high - 1),
                     r.labels ? " and the ignore index" : "");
        return mpri_err_advice(err, r.labels ? "mend the labels, or set --ignore-index"
                                             : "use the tokenizer that the model was made with");
    }
    return MPR_OK;
}

static mpr_status check_finite(const DataArray *a, Err *err)
{
    int64_t at = mpri_first_nonfinite(a->t.dtype, a->t.data, mpri_tensor_elements(&a->t));
    if (at < 0) return MPR_OK;
    char text[32];
    mpri_err_set(err, MPR_E_DATA, "'%s': row %lld holds %s", mpri_err_name(a->key),
                 (long long)row_of(&a->t, at),
                 mpri_print_f64(text, mpri_load_f64(a->t.dtype, a->t.data, at)));
    return mpri_err_advice(err, "mend the data, or let such features through with "
                                "--allow-nonfinite");
}

mpr_status mpri_data_check(const mpr_session *s, const DataArray *a, bool allow_nonfinite,
                           const char *file, Err *err)
{
    mpr_status status = MPR_OK;
    if (mpri_dtype_is_float(a->t.dtype)) {
        if (!allow_nonfinite) status = check_finite(a, err);
    } else {
        InputRange r = mpri_input_range(s->graph[MODE_TRAIN], a->input->name);
        if (r.limited) status = check_range(a, r, s->ignore_index, err);
    }
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(file));
    return status;
}
