/* Running a plan: launch after launch. Nothing is allocated, looked up or computed here. */
#include "runtime/exec/plan_private.h"

#include <stdio.h>

mpr_status mpri_fault_error(mpr_status status, const Node *n, const KernelCall *call, Err *err)
{
    const KernelFault *f = call->fault;
    if (status != MPR_E_INDEX || f->input < 0 || f->input >= n->n_in || !n->in[f->input])
        return mpri_err_set(err, status, "node '%s' (%s) failed on the device",
                            mpri_err_name(n->name), n->op->name);
    const Tensor *t = &call->in[f->input];
    int64_t row = t->rank > 0 && t->n > 0 ? f->position / (t->n / t->dims[0]) : 0;
    mpri_err_set(err, MPR_E_INDEX,
                 "%s: value %lld at position %lld is outside its range: allowed are %lld to %lld",
                 mpri_err_name(n->in[f->input]->name), (long long)f->value, (long long)f->position,
                 (long long)f->low, (long long)f->high - 1);
    mpri_err_where(err, "node '%s' (%s), input '%s', position %lld (row %lld of the batch)",
                   mpri_err_name(n->name), n->op->name, mpri_err_name(n->in[f->input]->name),
                   (long long)f->position, (long long)row);
    return mpri_err_advice(err, "look for ids or labels that the model has no row or class for");
}

static mpr_status launch(Plan *p, int i, uint64_t seed, uint64_t step, Err *err)
{
    Device *d = p->device;
    PlanStep *s = &p->steps[i];
    KernelFault fault = {.input = -1};
    s->call.seed = seed;
    s->call.step = step;
    s->call.threads = d->threads;
    s->call.fault = &fault;
    s->call.step_id = i;
    s->call.device_fault = d->fault;
    mpr_status st = s->on_host   ? mpri_host_step_run(p, s, err)
                    : d->launch ? d->launch(d, s->row, &s->call, err)
                                : s->row->fn(&s->call);
    if (st == MPR_OK) return MPR_OK;
    if (err->code == MPR_OK) return mpri_fault_error(st, s->node, &s->call, err);
    return mpri_err_where(err, "node '%s' (%s)", mpri_err_name(s->node->name), s->node->op->name);
}

mpr_status mpri_fault_clear(Device *d, Err *err)
{
    static const DeviceFault none = {.at = {.input = -1, .position = INT64_MAX}, .step = -1};
    return d->fault ? d->copy_in(d, d->fault, &none, sizeof none, err) : MPR_OK;
}

mpr_status mpri_fault_there(Device *d, bool *there, Err *err)
{
    DeviceFault found = {.step = -1};
    if (d->fault) TRY(d->copy_out(d, &found, d->fault, sizeof found, err));
    *there = found.step >= 0;
    return MPR_OK;
}

mpr_status mpri_plan_check(const Plan *p, Err *err)
{
    Device *d = p->device;
    DeviceFault found;
    if (!d->fault) return d->synchronize ? d->synchronize(d, err) : MPR_OK;
    TRY(d->copy_out(d, &found, d->fault, sizeof found, err));
    if (found.step < 0) return MPR_OK;
    TRY(mpri_fault_clear(d, err));
    if (found.step >= p->n_steps)
        return mpri_err_set(err, MPR_E_INDEX, "value %lld at position %lld is outside its range",
                            (long long)found.at.value, (long long)found.at.position);
    KernelCall call = p->steps[found.step].call;
    call.fault = &found.at;
    return mpri_fault_error(MPR_E_INDEX, p->steps[found.step].node, &call, err);
}

void mpri_plan_forget_graphs(Plan *p)
{
    for (int i = 0; i < 4; i++) {
        if (p->recorded[i]) p->device->graph_destroy(p->device, p->recorded[i]);
        p->recorded[i] = NULL;
        p->ran[i] = false;
    }
}

static mpr_status put_counter(const Plan *p, uint64_t seed, uint64_t step, Err *err)
{
    const uint64_t numbers[2] = {seed, step};
    Device *d = p->device;
    if (!p->random || !d->counter) return MPR_OK;
    return d->copy_in(d, d->counter, numbers, sizeof numbers, err);
}

/* The first run goes step by step: libraries make what they need then. */
static bool may_record(Plan *p, int which, int from, int to)
{
    if (!p->device->graphs || p->no_graph[which] || from == to) return false;
    for (int i = from; i < to; i++) p->no_graph[which] |= p->steps[i].on_host;
    bool again = p->ran[which];
    p->ran[which] = true;
    return again && !p->no_graph[which];
}

/* A refusal leaves the plan as it was, to be run step by step; a real failure comes again there. */
static void refuse(Plan *p, int which, const Err *why)
{
    p->no_graph[which] = true;
    snprintf(p->refused, sizeof p->refused, "%.150s", why->message);
}

static void record(Plan *p, int which, int from, int to, uint64_t seed, uint64_t step)
{
    Device *d = p->device;
    Err refused;
    mpri_err_clear(&refused);
    if (d->capture_begin(d, &refused) != MPR_OK) {
        refuse(p, which, &refused);
        return;
    }
    mpr_status status = MPR_OK;
    for (int i = from; i < to && status == MPR_OK; i++) status = launch(p, i, seed, step, &refused);
    mpr_status end = d->capture_end(d, status != MPR_OK, &p->recorded[which], &refused);
    if (status != MPR_OK || end != MPR_OK) refuse(p, which, &refused);
}

mpr_status mpri_plan_run(Plan *p, int segment, uint64_t seed, uint64_t step, Err *err)
{
    int from = segment <= 0 ? 0 : p->segment_end[segment - 1], which = segment + 1;
    int to = segment < 0 ? p->n_steps : p->segment_end[segment];
    TRY(put_counter(p, seed, step, err));
    if (!p->recorded[which] && may_record(p, which, from, to))
        record(p, which, from, to, seed, step);
    if (p->recorded[which]) return p->device->graph_launch(p->device, p->recorded[which], err);
    for (int i = from; i < to; i++) TRY(launch(p, i, seed, step, err));
    return MPR_OK;
}

mpr_status mpri_plan_run_watched(Plan *p, int segment, uint64_t seed, uint64_t step,
                                 PlanWatch watch, void *user, Err *err)
{
    int from = segment <= 0 ? 0 : p->segment_end[segment - 1];
    int to = segment < 0 ? p->n_steps : p->segment_end[segment];
    TRY(put_counter(p, seed, step, err));
    for (int i = from; i < to; i++) {
        PlanWord before = watch(user, i, false);
        if (before == PLAN_STOP) return MPR_OK;
        if (before == PLAN_SKIP) continue;
        TRY(launch(p, i, seed, step, err));
        if (watch(user, i, true) == PLAN_STOP) return MPR_OK;
    }
    return MPR_OK;
}
