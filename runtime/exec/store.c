/* The store: memory behind slots. It outlives plans; every plan of a session finds its parameters,
 * gradients and moments here by name, once, when the plan is made. */
#include <string.h>

#include "runtime/base/hash.h"
#include "runtime/base/size.h"
#include "runtime/exec/plan.h"

struct StoreIndex {
    UT_hash_handle hh;
    bool lost;
    int slot;
};

mpr_status mpri_store_init(Store *s, Device *d, Err *err)
{
    (void)err;
    *s = (Store){.device = d};
    mpri_arena_init(&s->arena, d->alloc, 0);
    return MPR_OK;
}

void mpri_store_destroy(Store *s)
{
    if (!s || !s->device) return;
    for (int i = 0; i < s->n_blocks; i++) s->device->mem_free(s->device, s->blocks[i]);
    mpri_arena_destroy(&s->arena);
    *s = (Store){0};
}

StoreSlot *mpri_store_find(const Store *s, const char *name)
{
    struct StoreIndex *e;
    HASH_FIND_STR(s->index, name, e);
    return e ? &s->slots[e->slot] : NULL;
}

size_t mpri_store_bytes(const Store *s, SlotClass cls)
{
    size_t n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->slots[i].cls == cls) n += s->slots[i].bytes;
    return n;
}

static mpr_status slot_bytes(const Slot *slot, size_t *bytes, Err *err)
{
    int64_t n;
    if (!mpri_size_elements(slot->shape.rank, slot->shape.d, &n) ||
        !mpri_size_mul((size_t)n, mpri_dtype_size(slot->dtype), bytes))
        return mpri_err_set(err, MPR_E_LIMIT, "slot %s: its size does not fit the address space",
                            mpri_err_name(slot->name));
    return MPR_OK;
}

static mpr_status grow(void **rows, int n, int *cap, size_t size, Arena *a, Err *err)
{
    if (n < *cap) return MPR_OK;
    int more = *cap ? *cap * 2 : 64;
    void *fresh = mpri_arena_array(a, (size_t)more, size);
    if (!fresh) return mpri_err_nomem(err, (size_t)more * size);
    if (n) memcpy(fresh, *rows, (size_t)n * size);
    *rows = fresh;
    *cap = more;
    return MPR_OK;
}

/* Initial contents, converted element by element when the types differ. */
static mpr_status fill(Store *s, StoreSlot *to, const Slot *slot, Err *err)
{
    if (!slot->init || to->bytes == 0) return MPR_OK; /* device memory starts as zeros */
    if (slot->init_dtype == to->dtype)
        return s->device->copy_in(s->device, to->data, slot->init, to->bytes, err);
    int64_t n = mpri_shape_elements(&slot->shape);
    void *host = mpri_alloc(s->device->alloc, to->bytes, 64);
    if (!host) return mpri_err_nomem(err, to->bytes);
    for (int64_t i = 0; i < n; i++)
        mpri_store_f64(to->dtype, host, i, mpri_load_f64(slot->init_dtype, slot->init, i));
    mpr_status st = s->device->copy_in(s->device, to->data, host, to->bytes, err);
    mpri_free(s->device->alloc, host);
    return st;
}

static mpr_status check_same(const StoreSlot *have, const Slot *want, Err *err)
{
    if (have->dtype == want->dtype && mpri_shape_equal(&have->shape, &want->shape)) return MPR_OK;
    return mpri_err_set(err, MPR_E_INTERNAL, "slot %s exists with another type or shape",
                        mpri_err_name(want->name));
}

/* A row without memory yet; it is found by name once it has some. */
static mpr_status add_row(Store *s, const Slot *slot, size_t bytes, Err *err)
{
    TRY(grow((void **)&s->slots, s->n, &s->cap, sizeof *s->slots, &s->arena, err));
    char *name = mpri_arena_strdup(&s->arena, slot->name);
    if (!name) return mpri_err_nomem(err, strlen(slot->name));
    s->slots[s->n++] = (StoreSlot){.name = name,
                                   .cls = slot->cls,
                                   .dtype = slot->dtype,
                                   .shape = slot->shape,
                                   .param = slot->param,
                                   .bytes = bytes};
    return MPR_OK;
}

static mpr_status index_row(Store *s, int slot, Err *err)
{
    Arena *hash_arena = &s->arena;
    struct StoreIndex *e = ARENA_NEW(&s->arena, struct StoreIndex);
    if (!e) return mpri_err_nomem(err, sizeof *e);
    e->slot = slot;
    HASH_ADD_KEYPTR(hh, s->index, s->slots[slot].name, strlen(s->slots[slot].name), e);
    return e->lost ? mpri_err_nomem(err, sizeof *e) : MPR_OK;
}

/* Rows for the slots of g that are new, and the bytes they need together. */
static mpr_status add_rows(Store *s, const Graph *g, size_t *total, Err *err)
{
    size_t bytes = 0, end;
    *total = 0;
    for (int i = 0; i < g->n_slots; i++) {
        const Slot *slot = &g->slots[i];
        const StoreSlot *have = mpri_store_find(s, slot->name);
        if (have) {
            TRY(check_same(have, slot, err));
            continue;
        }
        TRY(slot_bytes(slot, &bytes, err));
        if (!mpri_size_align(bytes, 64, &end) || !mpri_size_add(*total, end, total))
            return mpri_err_nomem(err, SIZE_MAX);
        TRY(add_row(s, slot, bytes, err));
    }
    return MPR_OK;
}

static mpr_status add_memory(Store *s, int first, size_t total, Err *err)
{
    TRY(grow((void **)&s->blocks, s->n_blocks, &s->cap_blocks, sizeof *s->blocks, &s->arena, err));
    void *block;
    TRY(s->device->mem_alloc(s->device, total ? total : 64, &block, err));
    s->blocks[s->n_blocks++] = block;
    char *at = block;
    for (int i = first; i < s->n; i++) {
        s->slots[i].data = at;
        at += (s->slots[i].bytes + 63) & ~(size_t)63;
    }
    return MPR_OK;
}

mpr_status mpri_store_add_graph(Store *s, const Graph *g, Err *err)
{
    size_t total;
    int first = s->n;
    mpr_status status = add_rows(s, g, &total, err);
    if (status == MPR_OK && s->n > first) status = add_memory(s, first, total, err);
    if (status != MPR_OK) {
        s->n = first;
        return status;
    }
    for (int i = first; i < s->n; i++) TRY(index_row(s, i, err));
    for (int i = 0; i < g->n_slots; i++) {
        StoreSlot *to = mpri_store_find(s, g->slots[i].name);
        if (to - s->slots >= first) TRY(fill(s, to, &g->slots[i], err));
    }
    return MPR_OK;
}
