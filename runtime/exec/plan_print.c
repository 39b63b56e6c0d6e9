/* The frozen plan as text: a line per step, then buffers, then totals per class. */
#include <stdio.h>
#include <string.h>

#include "runtime/exec/plan.h"

static const char *const segment_names[] = {"forward", "backward", "update"};
static const char *const class_names[] = {"arena", "slot", "const", "input"};

static void put_tensor(Text *out, const Tensor *t)
{
    if (!mpri_tensor_here(t)) {
        mpri_text_put(out, "_");
        return;
    }
    mpri_text_add(out, "%s[", mpri_dtype_name(t->dtype));
    for (int i = 0; i < t->rank; i++)
        mpri_text_add(out, "%s%lld", i ? "," : "", (long long)t->dims[i]);
    mpri_text_put(out, "]");
}

static void put_step(Text *out, const Plan *p, int i)
{
    const PlanStep *s = &p->steps[i];
    const Node *n = s->node;
    mpri_text_add(out, "%5d  %-18s %-26s ", i, n->op->name, s->row->name);
    for (int k = 0; k < s->call.n_in && k < 6; k++) {
        if (k) mpri_text_put(out, ", ");
        put_tensor(out, &s->call.in[k]);
    }
    if (s->call.n_in > 6) mpri_text_add(out, ", … (%d inputs)", s->call.n_in);
    mpri_text_put(out, " -> ");
    for (int k = 0; k < s->call.n_out; k++) {
        if (k) mpri_text_put(out, ", ");
        put_tensor(out, &s->call.out[k]);
    }
    for (int k = 0; k < s->call.n_in; k++)
        if (s->call.n_out && s->out_buffer[0] >= 0 && s->in_buffer[k] == s->out_buffer[0]) {
            mpri_text_add(out, "  in place of input %d", k);
            break;
        }
    if (s->on_host) mpri_text_put(out, "  on host");
    if (s->workspace_bytes) mpri_text_add(out, "  workspace %zu", s->workspace_bytes);
    if (*n->name) mpri_text_add(out, "  @ %s", mpri_err_name(n->name));
    if (s->row->describe && s->call.held) {
        char chosen[256] = "";
        s->row->describe(s->call.held, chosen, sizeof chosen);
        if (*chosen) mpri_text_add(out, "\n       by: %s", chosen);
    }
    if (*s->skipped) mpri_text_add(out, "\n       not: %s", s->skipped);
    mpri_text_put(out, "\n");
}

static void put_buffers(Text *out, const Plan *p)
{
    mpri_text_put(out, "\nbuffers (class, offset, bytes, first and last step)\n");
    for (int i = 0; i < p->n_buffers; i++) {
        const Buffer *b = &p->buffers[i];
        if (b->cls == BUF_ARENA || b->cls == BUF_INPUT)
            mpri_text_add(out, "%5d  %-6s %10zu %10zu  %5d %5d  %s\n", i, class_names[b->cls],
                          b->offset, b->bytes, b->first, b->last, mpri_err_name(b->name));
        else
            mpri_text_add(out, "%5d  %-6s          - %10zu      -     -  %s\n", i,
                          class_names[b->cls], b->bytes, mpri_err_name(b->name));
    }
}

const char *mpri_plan_largest(const Plan *p, char *buf, size_t size)
{
    size_t most = 0;
    buf[0] = 0;
    for (int i = 0; i < p->n_steps; i++) {
        const PlanStep *s = &p->steps[i];
        for (int k = 0; k < s->call.n_out; k++) {
            if (s->out_buffer[k] < 0 || p->buffers[s->out_buffer[k]].bytes <= most) continue;
            most = p->buffers[s->out_buffer[k]].bytes;
            snprintf(buf, size, "node '%s' (%s)", mpri_err_name(s->node->name), s->node->op->name);
        }
    }
    return buf;
}

mpr_status mpri_plan_print(const Plan *p, Text *out)
{
    int segment = -1;
    mpri_text_add(out, "plan on %s (%s), %d steps, %d of them on reference kernels",
                  p->device->name, p->device->isa_name, p->n_steps, p->n_ref_steps);
    if (p->n_host_steps) mpri_text_add(out, ", %d on the host between copies", p->n_host_steps);
    mpri_text_put(out, "\n");
    for (int i = 0; i < p->n_steps; i++) {
        if ((int)p->steps[i].segment != segment) {
            segment = (int)p->steps[i].segment;
            mpri_text_add(out, "%s\n", segment_names[segment]);
        }
        put_step(out, p, i);
    }
    put_buffers(out, p);
    size_t bytes[4] = {0};
    for (int i = 0; i < p->n_buffers; i++) bytes[p->buffers[i].cls] += p->buffers[i].bytes;
    mpri_text_put(out, "\nbytes per class\n");
    mpri_text_add(out,
                  "  parameters   %12zu\n  gradients    %12zu\n  optimizer    %12zu\n  state       "
                  " %12zu\n",
                  mpri_store_bytes(p->store, SLOT_PARAM), mpri_store_bytes(p->store, SLOT_GRAD),
                  mpri_store_bytes(p->store, SLOT_MOMENT), mpri_store_bytes(p->store, SLOT_STATE));
    if (p->device->fused_update)
        mpri_text_add(out, "  16-bit copies%11zu\n", mpri_store_bytes(p->store, SLOT_COPY));
    mpri_text_add(out,
                  "  constants    %12zu\n  arena        %12zu  (inputs %zu; live-set lower bound "
                  "%zu)\n",
                  p->const_bytes, p->arena_bytes, p->input_bytes, p->live_bound_bytes);
    return out->failed ? MPR_E_NOMEM : MPR_OK;
}
