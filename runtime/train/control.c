/* Answering the importer's questions, see control.h. A value is computed on a clone of the graph
 * that has it as its only output, so that operators which wait themselves are not in the way. */
#include "runtime/train/control.h"

#include <string.h>

#include "passes/rewrite.h"
#include "runtime/train/binding.h"

typedef struct Decider {
    mpr_model *model;
    const KernelSet *ref;
    const FedInput *fed;
    int n_fed;
    int64_t stand_in;
    Arena arena; /* facts */
    Fact *facts;
    int n, cap;
    Err *err;
} Decider;

static const FedInput *given(const Decider *d, const char *name)
{
    for (int i = 0; i < d->n_fed; i++)
        if (!strcmp(d->fed[i].name, name)) return &d->fed[i];
    return NULL;
}

static bool same_form(const Value *v, const Tensor *t)
{
    bool same = v->dtype == t->dtype && v->shape.rank == t->rank;
    for (int k = 0; same && k < t->rank; k++) same = v->shape.d[k] == t->dims[k];
    return same;
}

/* The graph of v alone; an initializer that is given has the contents given. */
static mpr_status only(const Decider *d, Graph *g, Value *v, Err *err)
{
    for (int i = 0; i < g->n_outputs; i++) g->outputs[i].value->n_outputs--;
    g->n_outputs = 0;
    TRY(mpri_graph_add_output(g, "answer", v, err));
    mpri_graph_sweep(g);
    for (int i = 0; i < d->n_fed; i++) {
        Value *c = mpri_graph_find_value(g, d->fed[i].name);
        bool fits = c && c->kind == VAL_CONST && same_form(c, &d->fed[i].t);
        if (fits && d->fed[i].t.data) c->data = d->fed[i].t.data;
    }
    return MPR_OK;
}

/* Numbers for the sizes of an input that is not given. */
static bool stand_in(const Decider *d, DimBinding *b, const Value *v)
{
    if (v->shape.rank < 0) return false;
    for (int k = 0; k < v->shape.rank; k++)
        if (!mpri_dim_const(mpri_dim_eval(b, v->shape.d[k])) &&
            (!d->stand_in || !mpri_dim_bind(b, v->shape.d[k], d->stand_in)))
            return false;
    return true;
}

/* Dims of the inputs that v needs; false when one of them is not given. */
static bool bind(const Decider *d, Graph *g, DimBinding *b, Err *err)
{
    for (int i = 0; i < g->n_inputs; i++) {
        Value *v = g->inputs[i].value;
        if (!v->n_uses && !v->n_outputs) {
            v->shape = (Shape){.rank = 0};
            continue;
        }
        const FedInput *fed = given(d, v->name);
        if (!fed) {
            if (!stand_in(d, b, v)) return false;
            continue;
        }
        if (mpri_bind_input(g, b, v, fed->t.rank, fed->t.dims, err) != MPR_OK) return false;
    }
    return true;
}

static bool read_answer(PassCtx *ctx, Graph *g, Fact *q, Err *err)
{
    Value *v = g->outputs[0].value;
    Tensor t;
    if (q->axis != FACT_VALUE) {
        int axis = q->axis < 0 ? q->axis + v->shape.rank : q->axis;
        if (axis < 0 || axis >= v->shape.rank || !mpri_dim_const(v->shape.d[axis])) return false;
        q->value = v->shape.d[axis];
        return true;
    }
    if (mpri_shape_elements(&v->shape) != 1 || mpri_dtype_is_float(v->dtype)) return false;
    if (v->content && mpri_dim_is_int(g->sym, v->content[0], &q->value)) return true;
    if (mpri_contents_of(ctx, g, v, &t, err) != MPR_OK) return false;
    q->value = mpri_load_i64(t.dtype, t.data, 0);
    return true;
}

/* Tries one question; what cannot be computed stays open, and only lack of memory is an error. */
static mpr_status answer(Decider *d, const Graph *whole, Fact *q, bool *found)
{
    static const PassOptions options;
    static const FedInput nothing;
    const Alloc *alloc = &d->model->ctx->alloc;
    Arena arena, scratch;
    Err why;
    mpri_err_clear(&why);
    mpri_arena_init(&arena, alloc, 0);
    mpri_arena_init(&scratch, alloc, 0);
    Graph *g = mpri_graph_clone(whole, &arena);
    DimBinding *b = g ? mpri_binding_create(&arena, g->sym) : NULL;
    Value *v = b ? mpri_graph_find_value(g, q->name) : NULL;
    bool changed = false;
    PassCtx ctx = {.scratch = &scratch,
                   .alloc = alloc,
                   .log = &d->model->ctx->log,
                   .o = &options,
                   .ref = d->ref,
                   .binding = b,
                   .fed = d->fed ? d->fed : &nothing,
                   .n_fed = d->n_fed};
    if (!b) mpri_err_nomem(&why, 0);
    *found = v && only(d, g, v, &why) == MPR_OK && bind(d, g, b, &why) &&
             mpri_pass_bind(&ctx, g, &changed, &why) == MPR_OK && read_answer(&ctx, g, q, &why);
    mpri_arena_destroy(&scratch);
    mpri_arena_destroy(&arena);
    if (why.code != MPR_E_NOMEM) return MPR_OK;
    *d->err = why;
    return why.code;
}

static mpr_status add_fact(Decider *d, const Fact *f)
{
    if (d->n == d->cap) {
        int cap = d->cap ? 2 * d->cap : 16;
        Fact *grown = ARENA_ARRAY(&d->arena, Fact, cap);
        if (!grown) return mpri_err_nomem(d->err, sizeof *grown);
        if (d->n) memcpy(grown, d->facts, (size_t)d->n * sizeof *grown);
        d->facts = grown;
        d->cap = cap;
    }
    d->facts[d->n] = *f;
    d->facts[d->n].name = mpri_arena_strdup(&d->arena, f->name);
    return d->facts[d->n++].name ? MPR_OK : mpri_err_nomem(d->err, 0);
}

/* One round: the open questions of m, and the import that knows their answers. */
static mpr_status round_of(Decider *d, const ImportedModel *m, ImportedModel **next)
{
    int before = d->n;
    *next = NULL;
    for (int i = 0; i < m->n_open; i++) {
        Fact q = m->open[i];
        bool found;
        TRY(answer(d, m->graph, &q, &found));
        for (int k = 0; found && k < before; k++) /* it was no answer then, and is none now */
            found = d->facts[k].axis != q.axis || strcmp(d->facts[k].name, q.name);
        if (found) TRY(add_fact(d, &q));
    }
    if (d->n == before) return MPR_OK;
    ImportOptions o = {.alloc = &d->model->ctx->alloc,
                       .limits = &d->model->ctx->limits,
                       .tie = d->model->tie,
                       .untie = d->model->untie,
                       .train_only = d->model->train_only,
                       .freeze = d->model->freeze,
                       .image = d->model->image,
                       .image_size = d->model->image_size,
                       .stale_types = d->model->image != NULL,
                       .facts = d->facts,
                       .n_facts = d->n};
    return mpri_import_file(d->model->m->path, &o, next, d->err);
}

mpr_status mpri_control_decide(mpr_model *model, const KernelSet *ref, const FedInput *fed,
                               int n_fed, int64_t stand_in_size, ImportedModel **out, Err *err)
{
    Decider d = {.model = model,
                 .ref = ref,
                 .fed = fed,
                 .n_fed = n_fed,
                 .stand_in = stand_in_size,
                 .err = err};
    const Alloc *alloc = &model->ctx->alloc;
    mpr_status status = MPR_OK;
    *out = NULL;
    mpri_arena_init(&d.arena, alloc, 0);
    while (status == MPR_OK && (*out ? *out : model->m)->n_open) {
        ImportedModel *next;
        status = round_of(&d, *out ? *out : model->m, &next);
        if (status != MPR_OK || !next) break;
        mpri_import_destroy(*out, alloc);
        *out = next;
    }
    mpri_arena_destroy(&d.arena);
    if (status == MPR_OK) return MPR_OK;
    mpri_import_destroy(*out, alloc);
    *out = NULL;
    return status;
}

mpr_status mpri_control_settle(void *user, const ImportedModel *m, const void *image, size_t size,
                               ImportedModel **out, Err *err)
{
    const ControlSettler *s = user;
    mpr_model as = *s->model;
    as.m = (ImportedModel *)m;
    as.image = image;
    as.image_size = size;
    return mpri_control_decide(&as, s->ref, NULL, 0, MPRI_STAND_IN, out, err);
}
