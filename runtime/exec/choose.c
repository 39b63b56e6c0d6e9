/* The first row that fits: right operator, instruction set present, not refused. */
#include "runtime/exec/kernel.h"

#include <stdio.h>
#include <string.h>

static void note(KernelChoice *c, const char *name, const char *reason)
{
    size_t used = strlen(c->skipped);
    if (used + 2 < sizeof c->skipped)
        snprintf(c->skipped + used, sizeof c->skipped - used, "%s%s: %s", used ? "; " : "", name,
                 reason);
}

bool mpri_kernel_choose(const KernelSet *set, const KernelSig *sig, int isa_limit, const char *only,
                        KernelChoice *out)
{
    out->row = NULL;
    out->on_host = false;
    out->skipped[0] = 0;
    for (int t = 0; t < set->n; t++)
        for (int i = 0; i < set->tables[t].n; i++) {
            const KernelRow *row = &set->tables[t].rows[i];
            if (row->op != sig->op || row->isa > isa_limit) continue;
            if (only && strncmp(row->name, only, strlen(only))) continue;
            const char *reason = row->refuse ? row->refuse(sig) : NULL;
            if (!reason) {
                out->row = row;
                out->on_host = t >= set->n_own;
                return true;
            }
            note(out, row->name, reason);
        }
    return false;
}
