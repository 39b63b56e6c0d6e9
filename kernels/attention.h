/* Attention and RotaryEmbedding as numbers: where each head lies, which keys a query sees, which
 * row of a cache belongs to a token. The one definition that every device follows. */
#ifndef MPRI_ATTENTION_H
#define MPRI_ATTENTION_H

#include <math.h>
#include "runtime/exec/kernel.h"
#include "runtime/op/params.h"

/* Compiled for hosts and, by kernels/cuda, for GPUs. */
#if defined(__CUDACC__)
#define MPRI_RULE static inline __host__ __device__
#else
#define MPRI_RULE static inline
#endif

typedef struct HeadSteps { /* elements from one batch item, head, token to the next */
    int64_t batch, head, row;
} HeadSteps;

typedef struct AttentionForm {
    int64_t batch, heads, kv_heads, queries, keys, past; /* keys: past and new ones */
    int64_t size, v_size;                                /* of a head of q and k, of v */
    HeadSteps q, k, v, y, past_k, past_v;
    HeadSteps mask;     /* 0 where the mask is broadcast; row: from one query to the next */
    int64_t mask_keys;  /* keys that the mask speaks of; those behind are masked */
    const Tensor *mask_of; /* NULL: no mask */
    const Tensor *lengths; /* NULL: every key counts */
    int64_t left, right;   /* window: INT64_MAX when unbounded */
    double scale, softcap;
} AttentionForm;

static inline const Tensor *mpri_attention_given(const Tensor *in, int n, int k)
{
    return n > k && mpri_tensor_here(&in[k]) ? &in[k] : NULL;
}

/* Heads of a tensor of rank 4 or, packed, of rank 3. */
static inline HeadSteps mpri_head_steps(const Tensor *t, int64_t heads)
{
    if (t->rank == 4)
        return (HeadSteps){t->dims[1] * t->dims[2] * t->dims[3], t->dims[2] * t->dims[3],
                           t->dims[3]};
    return (HeadSteps){t->dims[1] * t->dims[2], heads ? t->dims[2] / heads : 0, t->dims[2]};
}

static inline void mpri_attention_mask(AttentionForm *f, const Tensor *mask)
{
    f->mask_keys = f->keys;
    if (!mask) return;
    int64_t dims[4] = {1, 1, 1, 1};
    for (int i = 0; i < mask->rank; i++) dims[4 - mask->rank + i] = mask->dims[i];
    f->mask_of = mask;
    f->mask_keys = dims[3];
    f->mask = (HeadSteps){dims[0] > 1 ? dims[1] * dims[2] * dims[3] : 0,
                          dims[1] > 1 ? dims[2] * dims[3] : 0, dims[2] > 1 ? dims[3] : 0};
}

/* The first seven inputs of Attention and AttentionGrad. */
static inline AttentionForm mpri_attention_form(const AttentionParams *p, const Tensor *in, int n)
{
    const Tensor *q = &in[0], *k = &in[1], *v = &in[2];
    const Tensor *past = mpri_attention_given(in, n, 4), *past_v = mpri_attention_given(in, n, 5);
    bool packed = q->rank == 3;
    AttentionForm f = {.batch = q->dims[0],
                       .heads = packed ? p->q_num_heads : q->dims[1],
                       .kv_heads = packed ? p->kv_num_heads : k->dims[1],
                       .queries = q->dims[q->rank - 2],
                       .keys = k->dims[k->rank - 2],
                       .lengths = mpri_attention_given(in, n, 6)};
    f.size = packed ? q->dims[2] / f.heads : q->dims[3];
    f.v_size = packed ? v->dims[2] / f.kv_heads : v->dims[3];
    f.q = mpri_head_steps(q, f.heads);
    f.k = mpri_head_steps(k, f.kv_heads);
    f.v = mpri_head_steps(v, f.kv_heads);
    f.y = packed ? (HeadSteps){f.queries * f.heads * f.v_size, f.v_size, f.heads * f.v_size}
                 : (HeadSteps){f.heads * f.queries * f.v_size, f.queries * f.v_size, f.v_size};
    if (past) {
        f.past = past->dims[2];
        f.keys += f.past;
        f.past_k = mpri_head_steps(past, f.kv_heads);
    }
    if (past_v) f.past_v = mpri_head_steps(past_v, f.kv_heads);
    f.left = p->left_window < 0 ? INT64_MAX : p->left_window;
    f.right = p->right_window < 0 ? INT64_MAX : p->right_window;
    if (p->is_causal) f.right = 0;
    f.scale = p->scale != 0 ? (double)p->scale : f.size > 0 ? 1 / sqrt((double)f.size) : 1;
    f.softcap = (double)p->softcap;
    mpri_attention_mask(&f, mpri_attention_given(in, n, 3));
    return f;
}

/* Keys [*low, *high) are those that query i may see, the mask apart, when the first `length` keys count
 * (all of them without lengths). A query stands behind the past keys or, with lengths, at the end of
 * those that count. */
MPRI_RULE void mpri_attention_span(const AttentionForm *f, int64_t length, int64_t i, int64_t *low,
                                   int64_t *high)
{
    int64_t count = f->keys, place = i + f->past;
    if (f->lengths) {
        count = length < 0 ? 0 : length < count ? length : count;
        if (!f->past) place = i + count - f->queries;
    }
    if (f->mask_of && f->mask_keys < count) count = f->mask_keys;
    if (f->right != INT64_MAX && place + f->right + 1 < count) count = place + f->right + 1;
    *low = f->left != INT64_MAX && place > f->left ? place - f->left : 0;
    *high = count > *low ? count : *low;
}

static inline void mpri_attention_range(const AttentionForm *f, int64_t batch, int64_t i,
                                        int64_t *low, int64_t *high)
{
    int64_t length = f->keys;
    if (f->lengths) length = mpri_load_i64(f->lengths->dtype, f->lengths->data, batch);
    mpri_attention_span(f, length, i, low, high);
}

/* ---- rotary ---- */

typedef struct RotaryForm {
    int64_t batch, heads, tokens, size, turned; /* turned: elements of a head that turn */
    HeadSteps x;
    int64_t pair, step; /* element i of half h is at h * pair + i * step */
    int64_t rows;       /* of the caches, when positions choose them */
    const Tensor *positions;      /* NULL: token number */
    int64_t cache_batch, cache_row; /* steps of the caches without positions */
    int64_t position_batch, position_row;
} RotaryForm;

/* x, a cache and the positions (may be NULL). */
static inline RotaryForm mpri_rotary_form(const RotaryParams *p, const Tensor *x,
                                          const Tensor *cache, const Tensor *positions)
{
    RotaryForm f = {.batch = x->dims[0], .positions = positions};
    f.heads = x->rank == 4 ? x->dims[1] : p->num_heads;
    f.tokens = x->dims[x->rank - 2];
    f.size = x->rank == 4 ? x->dims[3] : f.heads ? x->dims[2] / f.heads : 0;
    f.turned = p->dim ? p->dim : f.size;
    f.x = mpri_head_steps(x, f.heads);
    f.pair = p->interleaved ? 1 : f.turned / 2;
    f.step = p->interleaved ? 2 : 1;
    int64_t half = cache->dims[cache->rank - 1];
    f.rows = cache->dims[0];
    f.cache_row = cache->dims[cache->rank - 2] > 1 ? half : 0;
    if (cache->rank == 3 && cache->dims[0] > 1) f.cache_batch = cache->dims[1] * half;
    if (positions && positions->rank == 2) {
        f.position_row = positions->dims[1] > 1;
        if (positions->dims[0] > 1) f.position_batch = positions->dims[1];
    }
    return f;
}

/* Where the row of a token starts in the caches; -1: a position outside of them. *at: which one. */
static inline int64_t mpri_rotary_row(const RotaryForm *f, int64_t half, int64_t batch,
                                      int64_t token, int64_t *at)
{
    if (!f->positions) return batch * f->cache_batch + token * f->cache_row;
    *at = batch * f->position_batch + token * f->position_row;
    int64_t row = mpri_load_i64(f->positions->dtype, f->positions->data, *at);
    return row < 0 || row >= f->rows ? -1 : row * half;
}

#endif
