/* RNN, GRU and LSTM, one sequence at a time in double; see runtime/op/recurrent.c for the operands.
 *
 * Every step of a sequence leaves a trace: inputs and outputs of the activations and the states.
 * The gradient runs a sequence forward, then back along its trace (Werbos, "Backpropagation Through
 * Time", 1990), and adds up the weights' gradients over all sequences in double. */
#include "kernels/ref/util.h"
#include "runtime/op/recurrent.h"

enum { X, W, R, B, LENGTHS, H0, C0, P, DY, DY_H, DY_C };

typedef struct Cell {
    const RecurrentParams *p;
    const Tensor *in[11]; /* NULL: absent */
    int gates;
    RecurrentAct act[6];
    int64_t steps, batch, input, hidden, directions;
} Cell;

typedef struct Trace { /* of one step; [gates * hidden] or [hidden] each */
    double *pre, *out;    /* of the gates' activations */
    double *h_old, *c_old, *c;
    double *extra;        /* LSTM: h(c); GRU: what the reset gate multiplies */
} Trace;

typedef struct Sequence { /* one direction of one batch item */
    int64_t d, b, length;
    double *trace; /* [steps] of trace_size */
    double *h, *c; /* state */
} Sequence;

static Cell cell_of(const RecurrentParams *p, int gates, const Tensor *in, int n_in)
{
    const Tensor *x = &in[X];
    Cell c = {.p = p, .gates = gates, .directions = mpri_recurrent_directions(p)};
    for (int k = 0; k < 11; k++) c.in[k] = k < n_in && mpri_tensor_here(&in[k]) ? &in[k] : NULL;
    c.steps = x->dims[p->layout ? 1 : 0];
    c.batch = x->dims[p->layout ? 0 : 1];
    c.input = x->dims[2];
    c.hidden = in[R].dims[2];
    mpri_recurrent_acts(p, gates, c.act);
    return c;
}

/* ---- places ---- */

static int64_t x_at(const Cell *c, int64_t t, int64_t b)
{
    return (c->p->layout ? b * c->steps + t : t * c->batch + b) * c->input;
}

static int64_t y_at(const Cell *c, int64_t t, int64_t d, int64_t b)
{
    int64_t i = c->p->layout ? (b * c->steps + t) * c->directions + d
                             : (t * c->directions + d) * c->batch + b;
    return i * c->hidden;
}

static int64_t state_at(const Cell *c, int64_t d, int64_t b)
{
    return (c->p->layout ? b * c->directions + d : d * c->batch + b) * c->hidden;
}

static int64_t time_of(const Cell *c, const Sequence *s, int64_t step)
{
    return mpri_recurrent_backward(c->p, (int)s->d) ? s->length - 1 - step : step;
}

static int64_t trace_size(const Cell *c) { return (2 * c->gates + 4) * c->hidden; }

static Trace trace_of(const Cell *c, const Sequence *s, int64_t step)
{
    double *at = s->trace + step * trace_size(c);
    int64_t n = c->hidden, g = c->gates * n;
    return (Trace){at, at + g, at + 2 * g, at + 2 * g + n, at + 2 * g + 2 * n, at + 2 * g + 3 * n};
}

static int64_t weight_row(const Cell *c, int64_t d, int64_t row)
{
    return d * c->gates * c->hidden + row;
}

static double bias(const Cell *c, int64_t d, int64_t i)
{
    return c->in[B] ? mpri_ref_load(c->in[B], d * 2 * c->gates * c->hidden + i) : 0;
}

static double peephole(const Cell *c, int64_t d, int64_t i)
{
    return c->in[P] ? mpri_ref_load(c->in[P], d * 3 * c->hidden + i) : 0;
}

/* ---- activations ---- */

static const RecurrentAct *act_of(const Cell *c, int64_t d, int k) { return &c->act[3 * d + k]; }

static double clipped(const Cell *c, double v)
{
    double bound = (double)c->p->clip;
    return bound > 0 ? (v > bound ? bound : v < -bound ? -bound : v) : v;
}

static double apply(const RecurrentAct *a, double v)
{
    switch (a->fn) {
    case FN_SIGMOID: return mpri_ref_sigmoid(v);
    case FN_TANH: return tanh(v);
    case FN_RELU: return mpri_ref_relu(v);
    case FN_AFFINE: return a->alpha * v + a->beta;
    case FN_LEAKY_RELU: return v >= 0 ? v : a->alpha * v;
    case FN_THRESHOLDED_RELU: return v >= a->alpha ? v : 0;
    case FN_SCALED_TANH: return a->alpha * tanh(a->beta * v);
    case FN_HARD_SIGMOID: return fmin(fmax(a->alpha * v + a->beta, 0), 1);
    case FN_ELU: return v >= 0 ? v : a->alpha * expm1(v);
    case FN_SOFTSIGN: return v / (1 + fabs(v));
    case FN_SOFTPLUS: return v > 0 ? v + log1p(exp(-v)) : log1p(exp(v));
    default: return v;
    }
}

/* Derivative at v, y being the value there; at a kink that of the lower side, 0 for Relu. */
static double slope(const RecurrentAct *a, double v, double y)
{
    switch (a->fn) {
    case FN_SIGMOID: return y * (1 - y);
    case FN_TANH: return 1 - y * y;
    case FN_RELU: return v > 0;
    case FN_AFFINE: return a->alpha;
    case FN_LEAKY_RELU: return v > 0 ? 1 : a->alpha;
    case FN_THRESHOLDED_RELU: return v > a->alpha;
    case FN_SCALED_TANH: {
        double t = tanh(a->beta * v);
        return a->alpha * a->beta * (1 - t * t);
    }
    case FN_HARD_SIGMOID: {
        double line = a->alpha * v + a->beta;
        return line > 0 && line < 1 ? a->alpha : 0;
    }
    case FN_ELU: return v > 0 ? 1 : a->alpha * exp(v);
    case FN_SOFTSIGN: return 1 / ((1 + fabs(v)) * (1 + fabs(v)));
    case FN_SOFTPLUS: return mpri_ref_sigmoid(v);
    default: return 1;
    }
}

/* From the gradient of a gate to that of the sum in front of its clip. */
static double gate_slope(const Cell *c, const RecurrentAct *a, const Trace *t, int64_t i)
{
    double bound = (double)c->p->clip;
    if (bound > 0 && fabs(t->pre[i]) > bound) return 0;
    return slope(a, clipped(c, t->pre[i]), t->out[i]);
}

static void activate(const Cell *c, const RecurrentAct *a, const Trace *t, int64_t i)
{
    t->out[i] = apply(a, clipped(c, t->pre[i]));
}

/* ---- one step forward ---- */

/* The state times a row of r. */
static double recur(const Cell *c, const Sequence *s, int64_t row, const double *h,
                    const double *factor)
{
    int64_t at = weight_row(c, s->d, row) * c->hidden;
    double sum = 0;
    for (int64_t j = 0; j < c->hidden; j++)
        sum += mpri_ref_load(c->in[R], at + j) * h[j] * (factor ? factor[j] : 1);
    return sum;
}

static double project(const Cell *c, const Sequence *s, int64_t row, int64_t x)
{
    int64_t at = weight_row(c, s->d, row) * c->input;
    double sum = 0;
    for (int64_t j = 0; j < c->input; j++)
        sum += mpri_ref_load(c->in[W], at + j) * mpri_ref_load(c->in[X], x + j);
    return sum;
}

static void lstm_step(const Cell *c, Sequence *s, const Trace *t)
{
    int64_t n = c->hidden;
    const RecurrentAct *f = act_of(c, s->d, 0), *g = act_of(c, s->d, 1), *h = act_of(c, s->d, 2);
    for (int64_t i = 0; i < n; i++) {
        t->pre[i] += peephole(c, s->d, i) * t->c_old[i];
        t->pre[2 * n + i] += peephole(c, s->d, 2 * n + i) * t->c_old[i];
        activate(c, f, t, i);
        activate(c, f, t, 2 * n + i);
        activate(c, g, t, 3 * n + i);
        if (c->p->input_forget) t->out[2 * n + i] = 1 - t->out[i];
        t->c[i] = t->out[2 * n + i] * t->c_old[i] + t->out[i] * t->out[3 * n + i];
        t->pre[n + i] += peephole(c, s->d, n + i) * t->c[i];
        activate(c, f, t, n + i);
        t->extra[i] = apply(h, t->c[i]);
        s->c[i] = t->c[i];
        s->h[i] = t->out[n + i] * t->extra[i];
    }
}

static void gru_step(const Cell *c, Sequence *s, const Trace *t, int64_t x)
{
    int64_t n = c->hidden, g = 3 * n;
    for (int64_t i = 0; i < 2 * n; i++) activate(c, act_of(c, s->d, 0), t, i);
    for (int64_t i = 0; i < n; i++) {
        double now = project(c, s, 2 * n + i, x) + bias(c, s->d, 2 * n + i);
        double old = bias(c, s->d, g + 2 * n + i);
        if (c->p->linear_before_reset) {
            t->extra[i] = recur(c, s, 2 * n + i, t->h_old, NULL) + old;
            t->pre[2 * n + i] = now + t->out[n + i] * t->extra[i];
        } else {
            t->pre[2 * n + i] = now + old + recur(c, s, 2 * n + i, t->h_old, t->out + n);
        }
        activate(c, act_of(c, s->d, 1), t, 2 * n + i);
        s->h[i] = (1 - t->out[i]) * t->out[2 * n + i] + t->out[i] * t->h_old[i];
    }
}

static void step(const Cell *c, Sequence *s, int64_t k)
{
    Trace t = trace_of(c, s, k);
    int64_t n = c->hidden, x = x_at(c, time_of(c, s, k), s->b), g = c->gates * n;
    int64_t plain = c->gates == GRU_GATES ? 2 * n : g; /* rows that read h as it is */
    memcpy(t.h_old, s->h, (size_t)n * sizeof(double));
    memcpy(t.c_old, s->c, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < plain; i++)
        t.pre[i] = project(c, s, i, x) + recur(c, s, i, t.h_old, NULL) + bias(c, s->d, i) +
                   bias(c, s->d, g + i);
    if (c->gates == LSTM_GATES) lstm_step(c, s, &t);
    else if (c->gates == GRU_GATES) gru_step(c, s, &t, x);
    else
        for (int64_t i = 0; i < n; i++) {
            activate(c, act_of(c, s->d, 0), &t, i);
            s->h[i] = t.out[i];
        }
}

static void begin(const Cell *c, Sequence *s)
{
    int64_t at = state_at(c, s->d, s->b);
    for (int64_t i = 0; i < c->hidden; i++) {
        s->h[i] = c->in[H0] ? mpri_ref_load(c->in[H0], at + i) : 0;
        s->c[i] = c->in[C0] ? mpri_ref_load(c->in[C0], at + i) : 0;
    }
    s->length = c->in[LENGTHS] ? mpri_load_i64(c->in[LENGTHS]->dtype, c->in[LENGTHS]->data, s->b)
                               : c->steps;
}

static mpr_status check_lengths(const KernelCall *call, const Cell *c)
{
    for (int64_t b = 0; c->in[LENGTHS] && b < c->batch; b++) {
        int64_t n = mpri_load_i64(c->in[LENGTHS]->dtype, c->in[LENGTHS]->data, b);
        if (n >= 0 && n <= c->steps) continue;
        if (call->fault) *call->fault = (KernelFault){LENGTHS, b, n, 0, c->steps + 1};
        return MPR_E_INDEX;
    }
    return MPR_OK;
}

static bool wanted(const KernelCall *call, int k)
{
    return call->n_out > k && mpri_tensor_here(&call->out[k]);
}

/* ---- forward ---- */

static void forward(const KernelCall *call, const Cell *c, Sequence *s)
{
    begin(c, s);
    for (int64_t k = 0; k < s->length; k++) {
        step(c, s, k);
        int64_t y = y_at(c, time_of(c, s, k), s->d, s->b);
        for (int64_t i = 0; wanted(call, 0) && i < c->hidden; i++)
            mpri_ref_store(&call->out[0], y + i, s->h[i]);
    }
    for (int64_t t = s->length; wanted(call, 0) && t < c->steps; t++)
        for (int64_t i = 0; i < c->hidden; i++)
            mpri_ref_store(&call->out[0], y_at(c, t, s->d, s->b) + i, 0);
    int64_t at = state_at(c, s->d, s->b);
    for (int64_t i = 0; i < c->hidden; i++) {
        if (wanted(call, 1)) mpri_ref_store(&call->out[1], at + i, s->h[i]);
        if (wanted(call, 2)) mpri_ref_store(&call->out[2], at + i, s->c[i]);
    }
}

static mpr_status run(const KernelCall *call, int gates)
{
    Cell c = cell_of(call->params, gates, call->in, call->n_in);
    double *work = call->workspace;
    Sequence s = {.h = work, .c = work + c.hidden, .trace = work + 2 * c.hidden};
    TRY(check_lengths(call, &c));
    for (s.d = 0; s.d < c.directions; s.d++)
        for (s.b = 0; s.b < c.batch; s.b++) forward(call, &c, &s);
    return MPR_OK;
}

static mpr_status k_rnn(const KernelCall *call) { return run(call, RNN_GATES); }
static mpr_status k_gru(const KernelCall *call) { return run(call, GRU_GATES); }
static mpr_status k_lstm(const KernelCall *call) { return run(call, LSTM_GATES); }

static int64_t sequence_doubles(const Cell *c)
{
    return 2 * c->hidden + c->steps * trace_size(c);
}

static size_t workspace(const KernelSig *sig, int threads)
{
    (void)threads;
    int gates = sig->op == OP_LSTM ? LSTM_GATES : sig->op == OP_GRU ? GRU_GATES : RNN_GATES;
    Cell c = cell_of(sig->params, gates, sig->in, sig->n_in);
    return (size_t)sequence_doubles(&c) * sizeof(double);
}

/* ---- one step back ---- */

typedef struct Sums {
    double *x, *w, *r, *b, *p; /* gradients of all sequences */
    double *dh, *dc;        /* of the state behind the step, then in front of it */
    double *dpre, *next;    /* of the gates' sums; of the old h */
} Sums;

static void lstm_back(const Cell *c, const Sequence *s, const Trace *t, const Sums *m)
{
    int64_t n = c->hidden, peep = s->d * 3 * n;
    const RecurrentAct *f = act_of(c, s->d, 0), *g = act_of(c, s->d, 1), *h = act_of(c, s->d, 2);
    for (int64_t i = 0; i < n; i++) {
        double o = m->dh[i] * t->extra[i] * gate_slope(c, f, t, n + i);
        double dc = m->dc[i] + m->dh[i] * t->out[n + i] * slope(h, t->c[i], t->extra[i]) +
                    o * peephole(c, s->d, n + i);
        double in = dc * t->out[3 * n + i], forget = dc * t->c_old[i];
        if (c->p->input_forget) in -= forget, forget = 0;
        in *= gate_slope(c, f, t, i);
        forget *= c->p->input_forget ? 0 : gate_slope(c, f, t, 2 * n + i);
        m->dpre[i] = in;
        m->dpre[n + i] = o;
        m->dpre[2 * n + i] = forget;
        m->dpre[3 * n + i] = dc * t->out[i] * gate_slope(c, g, t, 3 * n + i);
        m->dc[i] = dc * t->out[2 * n + i] + in * peephole(c, s->d, i) +
                   forget * peephole(c, s->d, 2 * n + i);
        if (!c->in[P]) continue;
        m->p[peep + i] += in * t->c_old[i];
        m->p[peep + n + i] += o * t->c[i];
        m->p[peep + 2 * n + i] += forget * t->c_old[i];
    }
}

/* dpre, and what reaches the old h other than through the rows of r that read it as it is. */
static void gru_back(const Cell *c, const Sequence *s, const Trace *t, const Sums *m)
{
    int64_t n = c->hidden, before = c->p->linear_before_reset;
    const RecurrentAct *f = act_of(c, s->d, 0), *g = act_of(c, s->d, 1);
    for (int64_t i = 0; i < n; i++) {
        double z = t->out[i];
        m->dpre[i] = m->dh[i] * (t->h_old[i] - t->out[2 * n + i]) * gate_slope(c, f, t, i);
        m->dpre[2 * n + i] = m->dh[i] * (1 - z) * gate_slope(c, g, t, 2 * n + i);
        m->next[i] += m->dh[i] * z;
    }
    for (int64_t i = 0; i < n; i++) {
        double reset = 0;
        if (before) {
            reset = m->dpre[2 * n + i] * t->extra[i];
        } else {
            for (int64_t k = 0; k < n; k++)
                reset += m->dpre[2 * n + k] *
                         mpri_ref_load(c->in[R], weight_row(c, s->d, 2 * n + k) * n + i);
            m->next[i] += reset * t->out[n + i];
            reset *= t->h_old[i];
        }
        m->dpre[n + i] = reset * gate_slope(c, f, t, n + i);
    }
}

/* From dpre to weights, x and the old h. Row i of r reads h, or in the last third of a GRU: reset *
 * h, or its product is multiplied by reset. */
static void rows_back(const KernelCall *call, const Cell *c, const Sequence *s, const Trace *t,
                      const Sums *m, int64_t x)
{
    int64_t n = c->hidden, g = c->gates * n, b = s->d * 2 * g;
    bool gru = c->gates == GRU_GATES, before = c->p->linear_before_reset != 0;
    for (int64_t i = 0; i < g; i++) {
        bool last = gru && i >= 2 * n;
        const double *reset = last ? t->out + n : NULL;
        double now = m->dpre[i], old = last && before ? now * reset[i - 2 * n] : now;
        int64_t w = weight_row(c, s->d, i) * c->input, r = weight_row(c, s->d, i) * n;
        for (int64_t j = 0; j < c->input; j++) m->w[w + j] += now * mpri_ref_load(c->in[X], x + j);
        for (int64_t j = 0; j < n; j++) {
            m->r[r + j] += old * t->h_old[j] * (last && !before ? reset[j] : 1);
            if (!last || before) m->next[j] += old * mpri_ref_load(c->in[R], r + j);
        }
        if (!c->in[B]) continue;
        m->b[b + i] += now;
        m->b[b + g + i] += old;
    }
    for (int64_t j = 0; wanted(call, 0) && j < c->input; j++)
        for (int64_t i = 0; i < g; i++)
            m->x[x + j] +=
                m->dpre[i] * mpri_ref_load(c->in[W], weight_row(c, s->d, i) * c->input + j);
}

static void back(const KernelCall *call, const Cell *c, Sequence *s, const Sums *m)
{
    int64_t n = c->hidden, at = state_at(c, s->d, s->b);
    begin(c, s);
    for (int64_t k = 0; k < s->length; k++) step(c, s, k);
    for (int64_t i = 0; i < n; i++) {
        m->dh[i] = c->in[DY_H] ? mpri_ref_load(c->in[DY_H], at + i) : 0;
        m->dc[i] = c->in[DY_C] ? mpri_ref_load(c->in[DY_C], at + i) : 0;
    }
    for (int64_t k = s->length - 1; k >= 0; k--) {
        Trace t = trace_of(c, s, k);
        int64_t time = time_of(c, s, k), y = y_at(c, time, s->d, s->b);
        for (int64_t i = 0; i < n; i++) {
            m->dh[i] += c->in[DY] ? mpri_ref_load(c->in[DY], y + i) : 0;
            m->next[i] = 0;
        }
        if (c->gates == LSTM_GATES) lstm_back(c, s, &t, m);
        else if (c->gates == GRU_GATES) gru_back(c, s, &t, m);
        else
            for (int64_t i = 0; i < n; i++)
                m->dpre[i] = m->dh[i] * gate_slope(c, act_of(c, s->d, 0), &t, i);
        rows_back(call, c, s, &t, m, x_at(c, time, s->b));
        memcpy(m->dh, m->next, (size_t)n * sizeof(double));
    }
    for (int64_t i = 0; i < n; i++) {
        if (wanted(call, 4)) mpri_ref_store(&call->out[4], at + i, m->dh[i]);
        if (wanted(call, 5)) mpri_ref_store(&call->out[5], at + i, m->dc[i]);
    }
}

static int64_t elements(const Cell *c, int k) { return c->in[k] ? c->in[k]->n : 0; }

static mpr_status k_recurrent_grad(const KernelCall *call)
{
    const RecurrentParams *p = call->params;
    Cell c = cell_of(p, (int)p->cell, call->in, call->n_in);
    double *work = call->workspace;
    Sequence s = {.h = work, .c = work + c.hidden, .trace = work + 2 * c.hidden};
    Sums m = {.x = work + sequence_doubles(&c)};
    m.w = m.x + elements(&c, X);
    m.r = m.w + elements(&c, W);
    m.b = m.r + elements(&c, R);
    m.p = m.b + elements(&c, B);
    m.dh = m.p + elements(&c, P);
    m.dc = m.dh + c.hidden;
    m.next = m.dc + c.hidden;
    m.dpre = m.next + c.hidden;
    TRY(check_lengths(call, &c));
    memset(m.x, 0, (size_t)(m.dh - m.x) * sizeof(double));
    for (s.d = 0; s.d < c.directions; s.d++)
        for (s.b = 0; s.b < c.batch; s.b++) back(call, &c, &s, &m);
    const double *sum[] = {m.x, m.w, m.r, m.b, NULL, NULL, m.p};
    for (int k = 0; k < 7; k++)
        for (int64_t i = 0; sum[k] && wanted(call, k) && i < call->out[k].n; i++)
            mpri_ref_store(&call->out[k], i, sum[k][i]);
    return MPR_OK;
}

static size_t grad_workspace(const KernelSig *sig, int threads)
{
    (void)threads;
    Cell c = cell_of(sig->params, (int)((const RecurrentParams *)sig->params)->cell, sig->in,
                     sig->n_in);
    int64_t n = sequence_doubles(&c) + elements(&c, X) + elements(&c, W) + elements(&c, R) +
                elements(&c, B) + elements(&c, P) + (3 + c.gates) * c.hidden;
    return (size_t)n * sizeof(double);
}

static const KernelRow rows[] = {
    {.op = OP_RNN, .name = "ref.rnn", .fn = k_rnn, .workspace = workspace},
    {.op = OP_GRU, .name = "ref.gru", .fn = k_gru, .workspace = workspace},
    {.op = OP_LSTM, .name = "ref.lstm", .fn = k_lstm, .workspace = workspace},
    {.op = OP_RecurrentGrad, .name = "ref.recurrentgrad", .fn = k_recurrent_grad,
     .workspace = grad_workspace},
};
const KernelTable mpri_ref_recurrent = REF_TABLE(rows);
