/* Rows for shape rules: a graph as text without its frame, and what the rule must find for value y. */
#ifndef MPRI_TESTS_INFER_ROWS_H
#define MPRI_TESTS_INFER_ROWS_H

#include <stdio.h>
#include <string.h>

#include "runtime/ir/text_form.h"
#include "runtime/op/ops.h"
#include "tests/support/support.h"

typedef struct InferRow {
    const char *lines;   /* inputs, constants, nodes */
    const char *y;       /* "f32[2,batch]", with contents when they are known: "i64[2] = 3,batch" */
} InferRow;

typedef struct InferFault {
    const char *lines;
    mpr_status code;
    const char *words[3]; /* each must occur in the error's text */
} InferFault;

typedef struct InferRun {
    Arena arena;
    Graph *g;
    Err err;
    char text[2048];
} InferRun;

static inline mpr_status infer_run(InferRun *r, const char *lines)
{
    memset(r, 0, sizeof *r);
    mpri_arena_init(&r->arena, mpri_alloc_default(), 0);
    Intern *names = mpri_intern_create(&r->arena);
    assert_non_null(names);
    snprintf(r->text, sizeof r->text, "graph \"t\" {\n%s\n output y = y\n}\n", lines);
    mpr_status s = mpri_graph_parse(r->text, &r->arena, names, mpri_op_table(), &r->g, &r->err);
    return s == MPR_OK ? mpri_infer_graph(r->g, &r->err) : s;
}

static inline void infer_found(const Graph *g, const Value *v, char *out, size_t size)
{
    char shape[512], dim[256];
    size_t at = (size_t)snprintf(out, size, "%s%s", mpri_dtype_name(v->dtype),
                                 mpri_shape_print(g->sym, &v->shape, shape, sizeof shape));
    for (int64_t i = 0; v->content && i < mpri_shape_elements(&v->shape) && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? "," : " = ",
                               mpri_dim_print(g->sym, v->content[i], dim, sizeof dim));
}

static inline void infer_rows(const InferRow *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        InferRun r;
        char found[1024];
        mpr_status s = infer_run(&r, rows[i].lines);
        if (s != MPR_OK) {
            print_error("%s\n", r.text);
            assert_ok(s, &r.err);
        }
        infer_found(r.g, mpri_graph_find_value(r.g, "y"), found, sizeof found);
        if (strcmp(found, rows[i].y) != 0) fail_msg("found %s, expected %s in\n%s", found, rows[i].y, r.text);
        mpri_arena_destroy(&r.arena);
    }
}
#define INFER_ROWS(rows) infer_rows(rows, sizeof(rows) / sizeof *(rows))

static inline void infer_faults(const InferFault *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        InferRun r;
        const char *words[4] = {rows[i].words[0], rows[i].words[1], rows[i].words[2], NULL};
        if (infer_run(&r, rows[i].lines) == MPR_OK) fail_msg("no error in\n%s", r.text);
        if (r.err.code != rows[i].code) print_error("%s\n", r.text);
        test_assert_error(rows[i].code, &r.err, words, __FILE__, __LINE__);
        mpri_arena_destroy(&r.arena);
    }
}
#define INFER_FAULTS(rows) infer_faults(rows, sizeof(rows) / sizeof *(rows))

#endif
