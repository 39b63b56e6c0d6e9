/* Which tensor became non-finite first. A training plan overwrites its values as it goes, so the
 * batch is run once more with a plan that keeps every value; the first bad output in execution
 * order is the culprit. */
#include "runtime/train/session.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t mpri_first_nonfinite(DType t, const void *data, int64_t n)
{
    if (t == MPR_FLOAT32) {
        const float *p = data;
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(p[i])) return i;
        return -1;
    }
    if (!mpri_dtype_is_float(t)) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(mpri_load_f64(t, data, i))) return i;
    return -1;
}

static const char *word(double v)
{
    return isnan(v) ? "NaN" : v > 0 ? "inf" : "-inf";
}

bool mpri_session_first_bad_gradient(mpr_session *s, char *buf, size_t size)
{
    for (int i = 0; i < s->n_params; i++) {
        const SessionParam *p = &s->params[i];
        const StoreSlot *slot = p->present ? mpri_store_find(&s->store, p->grad_slot) : NULL;
        int64_t at = slot ? mpri_first_nonfinite(slot->dtype, slot->data, p->n) : -1;
        if (at < 0) continue;
        snprintf(buf, size, "gradient of '%s' is %s at element %lld", mpri_err_name(p->public_name),
                 word(mpri_load_f64(slot->dtype, slot->data, at)), (long long)at);
        return true;
    }
    return false;
}

static const void *value_data(const Plan *p, const Value *v)
{
    return v->kind == VAL_CONST ? v->data : mpri_plan_value_data(p, v);
}

/* " (inputs: x in -3.1 .. 4.5, w in …)": the ranges of a node's float inputs. */
static void add_ranges(const Plan *p, const Node *n, char *buf, size_t size)
{
    size_t used = strlen(buf);
    const char *sep = "; inputs: ";
    for (int k = 0; k < n->n_in && used + 120 < size; k++) {
        const Value *v = n->in[k];
        const void *data = v && mpri_dtype_is_float(v->dtype) ? value_data(p, v) : NULL;
        int64_t count = data ? mpri_shape_elements(&v->shape) : 0;
        double low = INFINITY, high = -INFINITY;
        int64_t bad = 0;
        for (int64_t i = 0; i < count; i++) {
            double x = mpri_load_f64(v->dtype, data, i);
            bad += !isfinite(x);
            if (x < low) low = x;
            if (x > high) high = x;
        }
        if (count <= 0) continue;
        used += (size_t)snprintf(buf + used, size - used, "%s'%s' %.6g to %.6g", sep,
                                 mpri_err_name(v->name), low, high);
        if (bad && used < size)
            used += (size_t)snprintf(buf + used, size - used, " (%lld not finite)", (long long)bad);
        sep = ", ";
    }
}

static bool bad_source(const Plan *p, char *buf, size_t size)
{
    const Graph *g = p->graph;
    for (int i = 0; i < g->n_values; i++) {
        const Value *v = g->values[i];
        if (v->kind == VAL_NODE || !v->n_uses || !mpri_dtype_is_float(v->dtype)) continue;
        if (v->kind == VAL_SLOT && g->slots[v->slot].cls != SLOT_PARAM) continue;
        const void *data = value_data(p, v);
        int64_t at = data ? mpri_first_nonfinite(v->dtype, data, mpri_shape_elements(&v->shape))
                          : -1;
        if (at < 0) continue;
        const char *what = v->kind == VAL_INPUT   ? "input"
                           : v->kind == VAL_CONST ? "constant"
                                                  : "parameter";
        const char *name = v->param >= 0 && v->param < g->n_params ? g->params[v->param].name
                                                                   : v->name;
        snprintf(buf, size, "%s '%s' is %s at element %lld", what, mpri_err_name(name),
                 word(mpri_load_f64(v->dtype, data, at)), (long long)at);
        return true;
    }
    return false;
}

static bool bad_step(const Plan *p, int first, int last, char *buf, size_t size)
{
    for (int i = first; i < last; i++) {
        const Node *n = p->steps[i].node;
        for (int k = 0; k < n->n_out; k++) {
            const Value *v = n->out[k];
            const void *data = v && mpri_dtype_is_float(v->dtype) ? mpri_plan_value_data(p, v)
                                                                  : NULL;
            int64_t at = data ? mpri_first_nonfinite(v->dtype, data, mpri_shape_elements(&v->shape))
                              : -1;
            if (at < 0) continue;
            snprintf(buf, size, "%s of node '%s' (%s): tensor '%s' is %s at element %lld",
                     p->steps[i].segment == SEG_FORWARD ? "forward" : "backward",
                     mpri_err_name(n->name), n->op->name, mpri_err_name(v->name),
                     word(mpri_load_f64(v->dtype, data, at)), (long long)at);
            add_ranges(p, n, buf, size);
            return true;
        }
    }
    return false;
}

static mpr_status rerun(mpr_session *s, Plan *p, int segment, Err *err)
{
    for (int i = 0; segment == SEG_FORWARD && i < s->n_inputs; i++) {
        Value *v = mpri_plan_input(p, s->inputs[i].name);
        void *to = v ? mpri_plan_value_data(p, v) : NULL;
        if (to && s->inputs[i].bytes)
            TRY(s->device->copy_in(s->device, to, s->inputs[i].data, s->inputs[i].bytes, err));
    }
    return mpri_plan_run(p, segment, s->o.seed, s->forward_count - 1, err);
}

bool mpri_session_first_bad(mpr_session *s, bool backward, char *buf, size_t size)
{
    Err err;
    Plan *p = NULL;
    bool found = false;
    mpri_err_clear(&err);
    if (mpri_session_plan_forensic(s, &p, &err) != MPR_OK) return false;
    if (rerun(s, p, SEG_FORWARD, &err) == MPR_OK) {
        found = bad_source(p, buf, size) || bad_step(p, 0, p->segment_end[SEG_FORWARD], buf, size);
        if (!found && backward && rerun(s, p, SEG_BACKWARD, &err) == MPR_OK)
            found = bad_step(p, p->segment_end[SEG_FORWARD], p->segment_end[SEG_BACKWARD], buf,
                             size);
    }
    mpri_plan_destroy(p);
    return found;
}
