/* An npz as inputs of a model in any precision, see check_data.h. The model that is bound is the
 * one in the bytes given: a converted model gets the same numbers, rounded where its inputs are
 * 16-bit. */
#include "runtime/train/check_data.h"

#include <string.h>

#include "passes/rewrite.h"
#include "runtime/train/binding.h"
#include "runtime/train/control.h"

typedef struct Column { /* one graph input */
    const TensorEntry *e;
    mpr_tensor t; /* of one batch */
    int64_t step; /* bytes from batch to batch; 0: the same for all */
} Column;

typedef struct CheckSource {
    mpr_model *model;
    mpr_tensors *all;
    Column *columns;
    int n;
    const Device *device;
    const char *what;
    Arena arena;
} CheckSource;

/* ---- batches ---- */

static bool fits(const Graph *g, const Value *v, int rank, const int64_t *dims)
{
    (void)g;
    if (v->shape.rank < 0) return true;
    if (v->shape.rank != rank) return false;
    for (int k = 0; k < rank; k++)
        if (mpri_dim_const(v->shape.d[k]) && v->shape.d[k] != dims[k]) return false;
    return true;
}

/* How many batches the array holds for v: 1 when it has the declared shape; 0 when it does not fit.
 * *stacked: along a dim of its own. */
static int64_t batches_of(const Graph *g, const Value *v, const mpr_tensor *t, bool *stacked)
{
    int64_t dims[8], fixed = v->shape.rank > 0 ? v->shape.d[0] : -1;
    *stacked = false;
    if (fits(g, v, t->rank, t->dims)) return 1;
    *stacked = v->shape.rank >= 0 && t->rank == v->shape.rank + 1 &&
               fits(g, v, t->rank - 1, t->dims + 1);
    if (*stacked) return t->dims[0];
    if (t->rank != v->shape.rank || t->rank < 1 || fixed < 1 || t->dims[0] % fixed) return 0;
    memcpy(dims, t->dims, sizeof dims);
    dims[0] = fixed;
    return fits(g, v, t->rank, dims) ? t->dims[0] / fixed : 0;
}

static mpr_status bad_shape(const Graph *g, const Value *v, const mpr_tensor *t, Err *err)
{
    char have[256], want[256];
    Shape shape = {.rank = t->rank};
    for (int k = 0; k < t->rank; k++) shape.d[k] = t->dims[k];
    mpri_shape_print(g->sym, &shape, have, sizeof have);
    mpri_shape_print(g->sym, &v->shape, want, sizeof want);
    mpri_err_set(err, MPR_E_SHAPE, "'%s' has shape %s, the model reads %s", mpri_err_name(v->name),
                 have, want);
    return mpri_err_advice(err,
                           "give the declared shape, or several batches stacked in front of it");
}

static mpr_status check_type(const Value *v, const mpr_tensor *t, Err *err)
{
    bool ints = mpri_dtype_is_int(t->dtype) && mpri_dtype_is_int(v->dtype);
    bool bf16 = v->dtype == MPR_BFLOAT16 && t->dtype == MPR_FLOAT32; /* npz has no bfloat16 */
    if (t->dtype == v->dtype || ints || bf16) return MPR_OK;
    mpri_err_set(err, MPR_E_TYPE, "'%s' is %s, the model reads %s", mpri_err_name(v->name),
                 mpri_dtype_long(t->dtype), mpri_dtype_long(v->dtype));
    return mpri_err_advice(err, "store it in that type");
}

static mpr_status read_columns(CheckSource *s, int *batches, Err *err)
{
    const Graph *g = s->model->m->graph;
    int64_t all = 1;
    const char *first = NULL;
    s->columns = ARENA_ARRAY(&s->arena, Column, g->n_inputs + 1);
    if (!s->columns) return mpri_err_nomem(err, sizeof(Column));
    for (int i = 0; i < g->n_inputs; i++) {
        const Value *v = g->inputs[i].value;
        Column *c = &s->columns[s->n];
        bool stacked;
        if (!mpri_tensors_find(s->all, v->name) && !v->n_uses && !v->n_outputs) continue;
        TRY(mpri_tensors_need(s->all, v->name, &c->e, err));
        TRY(check_type(v, &c->e->t, err));
        int64_t n = batches_of(g, v, &c->e->t, &stacked);
        if (n < 1) return bad_shape(g, v, &c->e->t, err);
        c->t = c->e->t;
        s->n++;
        if (n == 1 && !stacked) continue;
        if (first && n != all) {
            mpri_err_set(err, MPR_E_SHAPE, "'%s' holds %lld batches, '%s' holds %lld",
                         mpri_err_name(first), (long long)all, mpri_err_name(v->name),
                         (long long)n);
            return mpri_err_advice(err, "give as many batches of every input");
        }
        first = v->name;
        all = n;
        if (stacked) {
            c->t.rank--;
            memmove(c->t.dims, c->t.dims + 1, (size_t)c->t.rank * sizeof *c->t.dims);
        } else {
            c->t.dims[0] /= n;
        }
        c->step = mpri_tensor_elements(&c->t) * (int64_t)mpri_dtype_size(c->t.dtype);
    }
    if (all > INT32_MAX) return mpri_err_set(err, MPR_E_LIMIT, "%lld batches", (long long)all);
    *batches = (int)all;
    return MPR_OK;
}

/* ---- models ---- */

static void release(void *user, BoundModel *b)
{
    CheckSource *s = user;
    if (!b) return;
    mpri_import_destroy(b->m, &s->model->ctx->alloc);
    mpri_arena_destroy(&b->arena);
    mpri_free(&s->model->ctx->alloc, b);
}

static FedInput fed(const char *name, const mpr_tensor *t)
{
    FedInput f = {.name = name, .t = {.data = (void *)(uintptr_t)t->data, .dtype = t->dtype}};
    f.t.rank = t->rank;
    f.t.n = mpri_tensor_elements(t);
    memcpy(f.t.dims, t->dims, sizeof(int64_t) * (size_t)t->rank);
    return f;
}

/* The numbers of one batch, in the types that the model has. */
static mpr_status feed(const CheckSource *s, const Graph *g, int batch, BoundModel *b, Err *err)
{
    b->fed = ARENA_ARRAY(&b->arena, FedInput, s->n + 1);
    b->n_fed = 0;
    if (!b->fed) return mpri_err_nomem(err, sizeof(FedInput));
    for (int i = 0; i < s->n; i++) {
        const Column *c = &s->columns[i];
        const Value *v = mpri_graph_find_value(g, c->e->name);
        mpr_tensor t = c->t, converted;
        t.data = (const char *)t.data + batch * c->step;
        if (!v) continue;
        FedInput *f = &b->fed[b->n_fed++];
        *f = fed(c->e->name, &t);
        if (v->dtype == t.dtype) continue;
        TRY(mpri_tensor_convert(s->model->ctx, &t, v->dtype, mpri_err_name(v->name), &converted,
                                err));
        f->t.dtype = v->dtype;
        f->t.data = mpri_arena_dup(&b->arena, converted.data,
                                   (size_t)f->t.n * mpri_dtype_size(v->dtype));
        mpri_free(&s->model->ctx->alloc, (void *)(uintptr_t)converted.data);
        if (!f->t.data) return mpri_err_nomem(err, (size_t)f->t.n * mpri_dtype_size(v->dtype));
    }
    return MPR_OK;
}

static mpr_status import(const CheckSource *s, const void *bytes, size_t size, int batch,
                         BoundModel *b, Err *err)
{
    const mpr_model *like = s->model;
    ImportOptions o = {.alloc = &like->ctx->alloc, .limits = &like->ctx->limits, .image = bytes,
                       .image_size = size, .stale_types = true};
    TRY(mpri_import_file(like->m->path, &o, &b->m, err));
    TRY(feed(s, b->m->graph, batch, b, err));
    if (!b->m->n_open) return MPR_OK;
    mpr_model model = *like;
    ImportedModel *decided = NULL;
    model.m = b->m;
    model.image = bytes;
    model.image_size = size;
    TRY(mpri_control_decide(&model, &s->device->kernels, b->fed, b->n_fed, 0, &decided, err));
    if (!decided) return MPR_OK;
    mpri_import_destroy(b->m, &like->ctx->alloc);
    b->m = decided;
    return MPR_OK;
}

static mpr_status bind_shapes(const CheckSource *s, BoundModel *b, Err *err)
{
    static const PassOptions options;
    const mpr_context *ctx = s->model->ctx;
    bool changed = false;
    b->g = mpri_graph_clone(b->m->graph, &b->arena);
    DimBinding *binding = b->g ? mpri_binding_create(&b->arena, b->g->sym) : NULL;
    if (!binding) return mpri_err_nomem(err, sizeof *b->g);
    for (int i = 0; i < b->g->n_params; i++) b->g->params[i].trained = false;
    for (int i = 0; i < b->n_fed; i++) {
        Value *v = mpri_graph_find_value(b->g, b->fed[i].name);
        const Tensor *t = &b->fed[i].t;
        TRY(mpri_bind_input(b->g, binding, v, t->rank, t->dims, err));
    }
    Arena scratch;
    mpri_arena_init(&scratch, &ctx->alloc, 0);
    PassCtx pass = {.scratch = &scratch, .alloc = &ctx->alloc, .log = &ctx->log, .o = &options,
                    .ref = &s->device->kernels, .binding = binding, .fed = b->fed,
                    .n_fed = b->n_fed};
    mpr_status st = mpri_infer_graph(b->g, err);
    if (st == MPR_OK) st = mpri_pass_bind(&pass, b->g, &changed, err);
    mpri_arena_destroy(&scratch);
    return st;
}

static mpr_status bind(void *user, const void *bytes, size_t size, int batch, BoundModel **out,
                       Err *err)
{
    CheckSource *s = user;
    BoundModel *b = mpri_context_alloc(s->model->ctx, sizeof *b);
    *out = b;
    if (!b) return mpri_err_nomem(err, sizeof *b);
    mpri_arena_init(&b->arena, &s->model->ctx->alloc, 0);
    mpr_status st = import(s, bytes, size, batch, b, err);
    if (st == MPR_OK) st = mpri_import_check_supported(b->m->graph, err);
    if (st == MPR_OK) st = bind_shapes(s, b, err);
    if (st == MPR_OK) return MPR_OK;
    release(s, b);
    *out = NULL;
    return mpri_err_where(err, "%s", s->what);
}

/* ---- */

void mpri_check_data_close(CheckData *d)
{
    CheckSource *s = d->user;
    if (!s) return;
    mpri_tensors_destroy(s->all);
    mpri_arena_destroy(&s->arena);
    mpri_free(&s->model->ctx->alloc, s);
    d->user = NULL;
}

mpr_status mpri_check_data_open(mpr_model *model, const char *npz, const Device *device,
                                const char *what, CheckData *out, Err *err)
{
    CheckSource *s = CONTEXT_NEW(model->ctx, CheckSource);
    *out = (CheckData){.user = s, .device = device, .bind = bind, .release = release};
    if (!s) return mpri_err_nomem(err, sizeof *s);
    *s = (CheckSource){.model = model, .device = device, .what = what};
    mpri_arena_init(&s->arena, &model->ctx->alloc, 0);
    out->memory = (size_t)mpri_context_memory(model->ctx);
    mpr_status st = mpri_tensors_load(model->ctx, npz, &s->all, err);
    if (st == MPR_OK) st = read_columns(s, &out->batches, err);
    if (st == MPR_OK) return MPR_OK;
    mpri_check_data_close(out);
    return mpri_err_where(err, "%s data %s", what, mpri_err_name(npz));
}
