/* The search over all micro-batches of a window. Each runs again with the inputs and the number of
 * random draws that it had, and with the seed of its own weight. */
#include <stdio.h>
#include <string.h>

#include "runtime/train/forensics.h"

void mpri_forensics_number(NonFinite *out, int micro, int micros)
{
    char text[sizeof out->text];
    out->micro = micro;
    out->micros = micros;
    if (micros < 2) return;
    snprintf(text, sizeof text, "micro-batch %d of %d: %.1350s", micro, micros, out->text);
    memcpy(out->text, text, sizeof text);
}

/* The seed of a micro-batch with that divisor; 0: that of the last one. */
static mpr_status put_seed(mpr_session *s, float seed, float divisor, Err *err)
{
    StoreSlot *slot = mpri_store_find(&s->store, "loss_seed");
    if (!slot || !(divisor > 0) || divisor == s->window_divisor) return MPR_OK;
    seed = (float)((double)seed * (double)s->window_divisor / (double)divisor);
    return s->device->copy_in(s->device, slot->data, &seed, sizeof seed, err);
}

bool mpri_forensics_micro(mpr_session *s, uint64_t forward_count, int micro, int micros,
                          NonFinite *out)
{
    Err quiet;
    float seed = 0, divisor = 0;
    StoreSlot *slot = mpri_store_find(&s->store, "loss_seed");
    mpri_err_clear(&quiet);
    for (int i = 0; i < s->n_window; i++)
        if (s->window[i].forward == forward_count) divisor = s->window[i].divisor;
    if (slot && s->device->copy_out(s->device, &seed, slot->data, sizeof seed, &quiet) != MPR_OK)
        return false;
    if (put_seed(s, seed, divisor, &quiet) != MPR_OK) return false;
    bool found = mpri_forensics_find(s, forward_count, true, out);
    if (slot && s->device->copy_in(s->device, slot->data, &seed, sizeof seed, &quiet) != MPR_OK)
        return false;
    if (found) mpri_forensics_number(out, micro, micros);
    return found;
}

bool mpri_forensics_window(mpr_session *s, NonFinite *out)
{
    int n = s->n_window, micros = n + 1;
    for (int i = 0; i < n; i++) {
        SessionBatch *b = &s->window[i];
        if (!b->kept) continue;
        mpri_window_swap(s, b);
        bool found = mpri_forensics_micro(s, b->forward, i + 1, micros, out);
        mpri_window_swap(s, b);
        if (found) return true;
    }
    if (!mpri_forensics_find(s, s->forward_count - 1, s->backward_done, out)) return false;
    mpri_forensics_number(out, micros, micros);
    return true;
}

