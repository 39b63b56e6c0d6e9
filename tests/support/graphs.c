/* Graphs as text: parse, run passes, print, compare. */
#include "tests/support/graphs.h"

#include <stdio.h>
#include <string.h>
#include "kernels/ref/ref.h"
#include "runtime/base/rng.h"
#include "runtime/ir/text_form.h"

void test_graph_open(TestGraph *t, const char *text)
{
    memset(t, 0, sizeof *t);
    mpri_arena_init(&t->arena, mpri_alloc_default(), 0);
    mpri_arena_init(&t->scratch, mpri_alloc_default(), 0);
    Intern *names = mpri_intern_create(&t->arena);
    assert_non_null(names);
    assert_ok(mpri_graph_parse(text, &t->arena, names, mpri_op_table(), &t->g, &t->err), &t->err);
    assert_ok(mpri_infer_graph(t->g, &t->err), &t->err);
    t->ref.tables = mpri_ref_tables(&t->ref.n);
    t->ctx = (PassCtx){
        .scratch = &t->scratch, .alloc = mpri_alloc_default(), .o = &t->o, .ref = &t->ref};
}

bool test_graph_pass(TestGraph *t, PassFn fn)
{
    bool changed = false;
    assert_ok(fn(&t->ctx, t->g, &changed, &t->err), &t->err);
    mpri_arena_reset(&t->scratch);
    assert_ok(mpri_infer_graph(t->g, &t->err), &t->err);
    assert_ok(mpri_graph_validate(t->g, "test", &t->err), &t->err);
    return changed;
}

/* Line by line, both trimmed in front; blank lines are skipped. */
static const char *next_line(const char **at, size_t *n)
{
    for (;;) {
        while (**at == ' ' || **at == '\n') (*at)++;
        const char *start = *at;
        *n = strcspn(start, "\n");
        *at = start + *n;
        while (*n > 0 && start[*n - 1] == ' ') (*n)--;
        if (*n > 0 || !**at) return start;
    }
}

static bool same_line(const char *a, size_t na, const char *b, size_t nb)
{
    const char *end_a = a + na, *end_b = b + nb;
    while (a < end_a && b < end_b && *a == *b) {
        bool blank = *a == ' ';
        a++;
        b++;
        while (blank && a < end_a && *a == ' ') a++;
        while (blank && b < end_b && *b == ' ') b++;
    }
    return a == end_a && b == end_b;
}

void test_graph_compare(TestGraph *t, const char *text, const char *file, int line)
{
    Text got;
    mpri_text_init(&got, mpri_alloc_default());
    assert_ok(mpri_graph_print(t->g, &got, &t->err), &t->err);
    const char *a = text, *b = got.text;
    for (;;) {
        size_t na, nb;
        const char *la = next_line(&a, &na), *lb = next_line(&b, &nb);
        if (same_line(la, na, lb, nb)) {
            if (na == 0) break;
            continue;
        }
        print_error("expected: %.*s\nfound:    %.*s\n", (int)na, la, (int)nb, lb);
        fprintf(stderr, "in:\n%s\n", got.text); /* cmocka cuts long messages */
        mpri_text_free(&got);
        _fail(file, line);
    }
    mpri_text_free(&got);
}

void test_graph_close(TestGraph *t)
{
    mpri_arena_destroy(&t->scratch);
    mpri_arena_destroy(&t->arena);
}

void test_values_open(TestValues *v, TestGraph *t)
{
    v->t = t;
    v->at = ARENA_ARRAY(&t->arena, Tensor, t->g->n_values);
    assert_non_null(v->at);
    for (int i = 0; i < t->g->n_values; i++) {
        const Value *x = t->g->values[i];
        if (x->kind == VAL_NODE || (x->kind == VAL_CONST && !x->data)) continue;
        Tensor *to = &v->at[i];
        *to = (Tensor){.dtype = x->dtype, .rank = x->shape.rank, .n = mpri_shape_elements(&x->shape)};
        for (int k = 0; k < to->rank; k++) to->dims[k] = x->shape.d[k];
        to->data = (void *)x->data;
        if (x->kind == VAL_CONST) continue;
        to->data = mpri_arena_array(&t->arena, (size_t)to->n, mpri_dtype_size(to->dtype));
        assert_non_null(to->data);
        const Slot *s = x->kind == VAL_SLOT ? &t->g->slots[x->slot] : NULL;
        for (int64_t k = 0; s && s->init && k < to->n; k++)
            mpri_store_f64(to->dtype, to->data, k, mpri_load_f64(s->init_dtype, s->init, k));
    }
}

void test_values_fill(TestValues *v, const Value *x, double low, double high)
{
    uint64_t stream = 0;
    for (const char *c = x->name; *c; c++) stream = stream * 31 + (unsigned char)*c;
    Tensor *to = &v->at[x->id];
    for (int64_t k = 0; k < to->n; k++) {
        double u = mpri_rng_uniform(7, stream, (uint64_t)k);
        mpri_store_f64(to->dtype, to->data, k, low + (high - low) * u);
    }
}

void test_values_run(TestValues *v, bool backward)
{
    for (Node *n = v->t->g->first; n; n = n->next) {
        if (n->segment == SEG_BACKWARD && !backward) break;
        Tensor in[16] = {{0}}, out[8] = {{0}};
        assert_true(n->n_in <= 16 && n->n_out <= 8);
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k]) in[k] = v->at[n->in[k]->id];
        Err *err = &v->t->err;
        assert_ok(mpri_eval_node(&v->t->ref, n, in, out, &v->t->scratch, err), err);
        for (int i = 0; i < n->n_out; i++)
            if (n->out[i]) v->at[n->out[i]->id] = out[i];
    }
}
