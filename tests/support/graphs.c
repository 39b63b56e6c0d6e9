/* Graphs as text: parse, run passes, print, compare. */
#include "tests/support/graphs.h"

#include <stdio.h>
#include <string.h>
#include "kernels/ref/ref.h"
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
