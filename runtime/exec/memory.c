/* Offsets for buffers with known lifetimes: greedy by size with best-fit gaps (Pisarchyk and Lee,
 * "Efficient Memory Management for Deep Neural Net Inference", 2020). Large buffers are placed
 * first, each into the smallest gap between already placed ones that live at the same time.
 *
 * To stay fast with 10,000 buffers, placed items are kept sorted by offset and a cheap test of
 * lifetimes skips those that do not meet the new one. */
#include "runtime/exec/plan.h"

#include <stdlib.h>

#include "runtime/base/size.h"

#define MOST_BYTES ((size_t)INT64_MAX / 2)

typedef struct Order {
    size_t bytes;
    int first, index;
} Order;

typedef struct Placed { /* what the search reads of a placed item, side by side */
    size_t offset, end;
    int first, last;
} Placed;

/* By size descending; ties by first use, then index: a total order, so the result is reproducible.
 */
static int by_size(const void *a, const void *b)
{
    const Order *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static mpr_status live_bound(const MemItem *items, int n, Arena *scratch, size_t *bound, Err *err)
{
    int last = 0;
    for (int i = 0; i < n; i++)
        if (items[i].last > last) last = items[i].last;
    size_t total = 0; /* bounds every sum and every offset below */
    for (int i = 0; i < n; i++)
        if (items[i].bytes > MOST_BYTES || !mpri_size_add(total, align64(items[i].bytes), &total) ||
            total > MOST_BYTES)
            return mpri_err_set(err, MPR_E_LIMIT,
                                "the buffers of one step do not fit the address space");
    int64_t *delta = ARENA_ARRAY(scratch, int64_t, last + 3);
    if (!delta) return mpri_err_nomem(err, sizeof *delta * (size_t)(last + 3));
    for (int i = 0; i < n; i++) {
        delta[items[i].first + 1] += (int64_t)align64(items[i].bytes);
        delta[items[i].last + 2] -= (int64_t)align64(items[i].bytes);
    }
    int64_t now = 0, most = 0;
    for (int t = 0; t < last + 3; t++) {
        now += delta[t];
        if (now > most) most = now;
    }
    *bound = (size_t)most;
    return MPR_OK;
}

/* items: first >= -1, last >= first. Zero-size items get offset 0. */
mpr_status mpri_memory_plan(MemItem *items, int n, Arena *scratch, size_t *peak,
                            size_t *lower_bound, Err *err)
{
    *peak = *lower_bound = 0;
    if (n == 0) return MPR_OK;
    Order *order = ARENA_ARRAY(scratch, Order, n);
    Placed *placed = ARENA_ARRAY(scratch, Placed, n); /* ascending offset */
    if (!order || !placed) return mpri_err_nomem(err, sizeof *order * (size_t)n);
    TRY(live_bound(items, n, scratch, lower_bound, err));
    for (int i = 0; i < n; i++) order[i] = (Order){items[i].bytes, items[i].first, i};
    qsort(order, (size_t)n, sizeof *order, by_size);
    int n_placed = 0;
    for (int k = 0; k < n; k++) {
        MemItem *it = &items[order[k].index];
        size_t need = align64(it->bytes), end = 0, best = 0, best_gap = SIZE_MAX;
        it->offset = 0;
        if (need == 0) continue;
        bool found = false;
        for (int j = 0; j < n_placed; j++) {
            const Placed *p = &placed[j];
            if (p->last < it->first || p->first > it->last) continue;
            if (p->offset > end) {
                size_t gap = p->offset - end;
                if (gap >= need && gap < best_gap) {
                    best_gap = gap;
                    best = end;
                    found = true;
                }
            }
            if (p->end > end) end = p->end;
        }
        it->offset = found ? best : end;
        if (it->offset + need > *peak) *peak = it->offset + need;
        int at = n_placed++;
        while (at > 0 && placed[at - 1].offset > it->offset) {
            placed[at] = placed[at - 1];
            at--;
        }
        placed[at] = (Placed){it->offset, it->offset + need, it->first, it->last};
    }
    return MPR_OK;
}
