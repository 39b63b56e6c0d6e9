/* A graph given as text, passes run on it, and its text afterwards. Needs cmocka: failures end the
 * test. */
#ifndef MPRI_TESTS_GRAPHS_H
#define MPRI_TESTS_GRAPHS_H

#include "passes/pass.h"
#include "tests/support/support.h"

typedef struct TestGraph {
    Arena arena, scratch;
    Graph *g;
    Err err;
    KernelSet ref;
    PassOptions o; /* set before a pass runs */
    PassCtx ctx;
} TestGraph;

void test_graph_open(TestGraph *t, const char *text);
/* Runs one pass, inference and validation; fails the test on an error. True when the pass changed
 * something. */
bool test_graph_pass(TestGraph *t, PassFn fn);
/* Runs a pass that must fail with this code; the text of t->err has every word of the list. */
#define test_graph_refuses(t, fn, code, ...)                   \
    do {                                                       \
        bool changed_ = false;                                 \
        (void)(fn)(&(t)->ctx, (t)->g, &changed_, &(t)->err);   \
        assert_error((code), &(t)->err, __VA_ARGS__);          \
    } while (0)
/* The printed graph equals the text; empty lines and the width of blanks do not matter. */
#define test_graph_expect(t, text) test_graph_compare((t), (text), __FILE__, __LINE__)
void test_graph_compare(TestGraph *t, const char *text, const char *file, int line);
void test_graph_close(TestGraph *t);

/* Values of a graph, computed node by node with the reference kernels. */
typedef struct TestValues {
    TestGraph *t;
    Tensor *at; /* by value id */
} TestValues;
/* Memory for inputs, constants and slots (slots hold their first contents), from the graph's arena. */
void test_values_open(TestValues *v, TestGraph *t);
/* Numbers in [low, high) for an input: a function of its name, so two graphs get the same. */
void test_values_fill(TestValues *v, const Value *x, double low, double high);
/* All nodes, or the forward segment only. Results live until the scratch arena is reset. */
void test_values_run(TestValues *v, bool backward);

#endif
