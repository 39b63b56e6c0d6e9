/* The graph: uses, replacement, sweep, names, clone, builder, inference helpers, validator. */
#include "tests/support/support.h"

#include <stdio.h>
#include <string.h>

#include "runtime/ir/text_form.h"
#include "tests/unit/test_ops.h"

static Arena arena;
static Err err;

static int setup(void **state)
{
    (void)state;
    mpri_arena_init(&arena, NULL, 0);
    mpri_err_clear(&err);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mpri_arena_destroy(&arena);
    return 0;
}

static Graph *parse(const char *text)
{
    Graph *g = NULL;
    assert_ok(mpri_graph_parse(text, &arena, mpri_intern_create(&arena), test_table(), &g, &err),
              &err);
    return g;
}

static const char chain[] = "graph {\n input x: f32[batch,4]\n const w: f32[4,3] = splat(1)\n"
                            " slot s: f32[batch,3] state\n"
                            " h = Gemm(x, w, _) {alpha=2, pads=[1,2]} @ \"/gemm\"\n r = Relu(h)\n "
                            "t = Add(r, h)\n dead = Relu(r)\n"
                            " !Step(s, t)\n output y = t\n output h = h\n}";

static Value *value(const Graph *g, const char *name)
{
    Value *v = mpri_graph_find_value(g, name);
    assert_non_null(v);
    return v;
}

static void valid(const Graph *g)
{
    assert_ok(mpri_graph_validate(g, "test", &err), &err);
}

static void test_uses(void **state)
{
    (void)state;
    Graph *g = parse(chain);
    Value *h = value(g, "h"), *r = value(g, "r"), *x = value(g, "x");
    valid(g);
    assert_int_equal(h->n_uses, 2);
    assert_int_equal(h->n_outputs, 1);
    mpri_value_replace(g, h, r); /* Relu now uses itself: not valid, but counted right */
    assert_int_equal(h->n_uses, 0);
    assert_int_equal(h->n_outputs, 0);
    assert_int_equal(r->n_uses, 4);
    assert_int_equal(r->n_outputs, 1);
    mpri_node_set_input(r->def, 0, h);
    valid(g);
    assert_ok(mpri_node_add_input(g, r->def, x, &err), &err);
    assert_int_equal(x->n_uses, 2);
    assert_int_equal(r->def->n_in, 2);
    mpri_node_set_input(r->def, 1, NULL);
    assert_int_equal(x->n_uses, 1);
}

static void test_sweep_and_names(void **state)
{
    (void)state;
    Graph *g = parse(chain);
    assert_int_equal(mpri_graph_sweep(g), 1);
    assert_null(mpri_graph_find_value(g, "dead"));
    assert_int_equal(g->n_nodes, 4);
    mpri_value_rename(g, value(g, "r"), "dead");
    assert_string_equal(value(g, "dead")->def->op->name, "Relu");
    assert_null(mpri_graph_find_value(g, "r"));
    assert_string_equal(mpri_graph_fresh_name(g, "new"), "new");
    assert_string_equal(mpri_graph_fresh_name(g, "h"), "h_1");
    Value *c = mpri_value_const(g, "h", MPR_FLOAT32, NULL, NULL);
    assert_string_equal(c->name, "h_2");
    Value *slot = mpri_value_slot(g, "h", SLOT_STATE, MPR_FLOAT32, NULL, -1, NULL, MPR_DTYPE_NONE);
    assert_string_equal(slot->name, "h_3");
    assert_string_equal(g->slots[slot->slot].name, "h");
    valid(g);
    assert_int_equal(mpri_graph_sweep(g), 0); /* Step has an effect */
}

static void test_move_and_origin(void **state)
{
    (void)state;
    Graph *g = parse(chain);
    Node *gemm = g->first, *relu = gemm->next, *add = relu->next, *dead = add->next;
    mpri_node_move_before(g, dead, add);
    assert_ptr_equal(relu->next, dead);
    assert_ptr_equal(dead->next, add);
    mpri_node_move_before(g, dead, NULL);
    assert_ptr_equal(g->last, dead);
    mpri_node_move_before(g, dead, dead);
    mpri_node_move_before(g, gemm, gemm->next);
    assert_ptr_equal(g->first, gemm);
    valid(g);
    int a[] = {1, 2}, b[] = {2, 3};
    gemm->origin = (Origin){a, 2};
    relu->origin = (Origin){b, 2};
    mpri_node_set_origin(g, gemm, relu);
    assert_int_equal(gemm->origin.n, 3);
    assert_int_equal(gemm->origin.v[2], 3);
}

static void test_clone(void **state)
{
    (void)state;
    Graph *g = parse(chain);
    Param *p = mpri_graph_add_param(g);
    p->name = p->public_name = value(g, "w")->name;
    p->value = value(g, "w");
    value(g, "w")->param = 0;
    assert_int_equal(mpri_graph_param_of(g, "w"), 0);
    mpri_graph_sweep(g);
    Text before, after;
    mpri_text_init(&before, NULL);
    mpri_text_init(&after, NULL);
    assert_ok(mpri_graph_print(g, &before, &err), &err);
    Arena other;
    mpri_arena_init(&other, NULL, 0);
    Graph *c = mpri_graph_clone(g, &other);
    assert_non_null(c);
    assert_ok(mpri_graph_validate(c, "clone", &err), &err);
    for (const Node *n = g->first, *m = c->first; n; n = n->next, m = m->next) {
        assert_int_equal(n->id, m->id);
        assert_true(n != m && (!n->params || n->params != m->params));
        for (int i = 0; i < n->n_out; i++) assert_int_equal(n->out[i]->id, m->out[i]->id);
    }
    const TestGemm *a = g->first->params, *b = c->first->params;
    assert_true(a->pads.v != b->pads.v && b->pads.v[1] == 2);
    assert_ptr_equal(c->params[0].value, value(c, "w"));
    assert_ptr_equal(value(c, "w")->data, value(g, "w")->data);
    assert_ptr_equal(c->slots[0].value, value(c, "s"));
    assert_null(mpri_graph_find_value(c, "dead"));
    int n_ids = g->n_values;
    mpri_value_rename(c, value(c, "r"), "renamed");
    mpri_graph_sweep(c);
    mpri_dim_named(c->sym, "another");
    assert_int_equal(g->n_values, n_ids);
    assert_null(mpri_intern_find(g->names, "another"));
    assert_ok(mpri_graph_print(g, &after, &err), &err);
    assert_string_equal(before.text, after.text);
    Arena moved = other; /* as a plan takes over its arena */
    mpri_graph_move(c, &moved);
    memset(&other, 0xEE, sizeof other);
    assert_non_null(mpri_value_const(c, "fresh one", MPR_FLOAT32, NULL, NULL));
    assert_true(mpri_dim_named(c->sym, "one more") < 0);
    mpri_text_free(&before);
    mpri_text_free(&after);
    mpri_arena_destroy(&moved);
}

static void test_builder(void **state)
{
    (void)state;
    Graph *g = parse(chain);
    Builder b = {.g = g,
                 .before = g->last,
                 .segment = SEG_FORWARD,
                 .scope = "grad:/gemm",
                 .err = &err,
                 .origin = g->first};
    Value *two = mpri_build_scalar(&b, MPR_FLOAT16, 2);
    assert_ptr_equal(two, mpri_build_scalar(&b, MPR_FLOAT16, 2));
    assert_true(two != mpri_build_scalar(&b, MPR_FLOAT32, 2));
    assert_true(mpri_build_scalar(&b, MPR_FLOAT32, 0.0) !=
                mpri_build_scalar(&b, MPR_FLOAT32, -0.0));
    assert_string_equal(two->name, "f16:2");
    Value *h = value(g, "h");
    Value *y = mpri_build2(&b, T_Add, NULL, h, mpri_build_cast(&b, two, MPR_FLOAT32));
    assert_non_null(y);
    assert_true(mpri_shape_equal(&y->shape, &h->shape));
    assert_string_equal(y->def->name, "grad:/gemm/Add");
    assert_int_equal(y->def->segment, SEG_FORWARD);
    assert_ptr_equal(y->def->next, g->last);
    assert_ptr_equal(mpri_build_cast(&b, y, MPR_FLOAT32), y);
    assert_ptr_equal(mpri_build_i64s(&b, 2, (int64_t[]){3, -1})->kind == VAL_CONST ? y : NULL, y);
    int n_nodes = g->n_nodes;
    assert_null(mpri_build2(&b, T_Add, NULL, NULL, h)); /* quiet */
    assert_int_equal(b.failed, MPR_OK);
    assert_null(mpri_build2(&b, T_Gemm, NULL, h, two)); /* the rule refuses */
    assert_int_equal(b.failed, MPR_E_SHAPE);
    assert_non_null(strstr(err.where, "node 'grad:/gemm/Gemm' (Gemm)"));
    assert_int_equal(g->n_nodes, n_nodes);
    assert_null(mpri_build1(&b, T_Relu, NULL, h)); /* sticky */
    assert_int_equal(g->n_nodes, n_nodes);
    mpri_err_clear(&err);
    valid(g);
    Value *out[2];
    Builder c = {.g = g, .err = &err};
    assert_non_null(mpri_build(&c, T_Split, NULL, 1, &h, 2, out));
    assert_true(out[0] && out[1] && out[0] != out[1]);
    assert_string_equal(out[1]->name, "Split_1");
    assert_null(mpri_build(&c, 99, NULL, 0, NULL, 1, out));
    assert_int_equal(c.failed, MPR_E_INTERNAL);
}

static void test_broadcast(void **state)
{
    (void)state;
    Graph *g = parse("graph {\n input x: f32[b,1,4]\n input y: f32[3,4]\n input z: f32[n]\n input "
                     "u: f32[?]\n input w: f32[5]\n"
                     " a = Add(x, y)\n c = Add(x, z)\n d = Add(x, u)\n e = Add(z, w)\n}");
    const Shape *a = &value(g, "a")->shape;
    assert_int_equal(a->rank, 3);
    assert_true(a->d[0] == mpri_dim_named(g->sym, "b") && a->d[1] == 3 && a->d[2] == 4);
    assert_int_equal(value(g, "c")->shape.d[2], 4);
    assert_int_equal(value(g, "d")->shape.rank, MPRI_RANK_UNKNOWN);
    assert_int_equal(value(g, "e")->shape.d[0], 5);
    Builder b = {.g = g, .err = &err};
    assert_null(mpri_build2(&b, T_Add, NULL, value(g, "y"), value(g, "w")));
    assert_error(MPR_E_SHAPE, &err, "[3,4]", "[5]", "4 against 5");
}

static void test_axis(void **state)
{
    (void)state;
    InferCtx c = {.err = &err};
    int axis;
    assert_ok(mpri_infer_axis(&c, -1, 3, &axis), &err);
    assert_int_equal(axis, 2);
    assert_int_equal(mpri_infer_axis(&c, 3, 3, &axis), MPR_E_SHAPE);
    mpri_err_clear(&err);
    assert_int_equal(mpri_infer_axis(&c, INT64_MIN, 3, &axis), MPR_E_SHAPE);
    mpri_err_clear(&err);
    assert_int_equal(mpri_infer_axis(&c, 0, 0, &axis), MPR_E_SHAPE);
    mpri_err_clear(&err);
}

static void test_declared_shapes(void **state)
{
    (void)state;
    Graph *g = parse("graph {\n input x: f32[b,4]\n y = Relu(x)\n}");
    Value *y = value(g, "y");
    y->declared = true;
    y->shape = (Shape){.rank = 2, .d = {7, 4}};
    assert_ok(mpri_infer_graph(g, &err), &err);
    assert_int_equal(y->shape.d[0], 7);
    y->shape.d[1] = 5;
    assert_int_equal(mpri_infer_graph(g, &err), MPR_E_SHAPE);
    assert_error(MPR_E_SHAPE, &err, "'y' is declared as [7,5]", "[7,4]", "node of 'y' (Relu)");
}

static void test_params(void **state)
{
    (void)state;
    Graph *g = parse(
        "graph {\n k = Constant() {value=i64[2] [3,4]}\n x = Constant() {value=i64[2] [3,5]}\n}");
    const OpDef *op = g->first->op;
    const TestConstant *a = g->first->params, *b = g->last->params;
    TestConstant copy;
    assert_true(mpri_params_copy(op, &copy, a, &arena, g->names));
    assert_true(copy.value.data != a->value.data && mpri_params_equal(op, &copy, a));
    assert_false(mpri_params_equal(op, a, b));
    assert_null(mpri_params_row(op, "nothing"));
    TestGemm gemm;
    mpri_params_default(&test_defs[T_Gemm], &gemm);
    assert_true(gemm.alpha == 1 && gemm.trans == 0 && !strcmp(gemm.mode, "none") &&
                gemm.pads.n == 0);
    const int64_t pads[] = {1};
    TestGemm other = gemm;
    other.pads = (Ints){1, pads};
    assert_false(mpri_params_equal(&test_defs[T_Gemm], &gemm, &other));
}

/* ---- the validator finds each kind of breakage ---- */

static void broken(const Graph *g, const char *word)
{
    Err e;
    mpri_err_clear(&e);
    assert_int_equal(mpri_graph_validate(g, "a pass", &e), MPR_E_INTERNAL);
    if (!strstr(e.message, word)) fail_msg("no '%s' in: %s", word, e.message);
    assert_non_null(strstr(e.message, "after a pass"));
}

static void test_validator(void **state)
{
    (void)state;
    Graph *g = parse(chain);
    mpri_node_move_before(g, g->first, NULL);
    broken(g, "used before its definition");
    g = parse(chain);
    g->first->n_in = 1;
    broken(g, "1 inputs, allowed 2 to 3");
    g = parse(chain);
    value(g, "h")->n_uses++;
    broken(g, "counts 3 uses, has 2");
    g = parse(chain);
    g->first->use[0].index = 1;
    broken(g, "is not in the value's use list");
    g = parse(chain);
    value(g, "h")->n_outputs = 0;
    broken(g, "counts 0 graph outputs, has 1");
    g = parse(chain);
    value(g, "r")->def = g->first;
    broken(g, "does not point back");
    g = parse(chain);
    value(g, "r")->dtype = MPR_DTYPE_NONE;
    broken(g, "has no type");
    g = parse(chain);
    ((TestGemm *)g->first->params)->trans = 2;
    broken(g, "attribute trans is 2, allowed 0 to 1");
    g = parse(chain);
    ((TestGemm *)g->first->params)->mode = "tan";
    broken(g, "attribute mode is 'tan', allowed none|tanh");
    g = parse(chain);
    mpri_node_set_input(g->first, 1, NULL);
    broken(g, "required input 1 is absent");
    g = parse(chain);
    g->slots[0].dtype = MPR_FLOAT16;
    broken(g, "slot 's' and its value disagree");
    g = parse(chain);
    mpri_node_set_input(g->last, 0, value(g, "x"));
    broken(g, "is written but is no slot");
    g = parse(chain);
    g->n_nodes--;
    broken(g, "node list");
    g = parse(chain);
    g->last->prev->prev = NULL;
    broken(g, "node list is broken");
    g = parse(chain);
    g->first->params = NULL;
    broken(g, "no attributes");
    g = parse(chain);
    g->outputs[0].value = g->values[g->n_values - 1];
    broken(g, "graph outputs");
    g = parse(chain);
    value(g, "r")->name = value(g, "h")->name;
    broken(g, "belongs to another value");
    g = parse(chain);
    Graph *other = parse(chain);
    g->first->next->in[0] = value(other, "h");
    broken(g, "another graph");
}

/* Every allocation may fail: an error, never a crash. */
static void test_no_memory(void **state)
{
    (void)state;
    int ok = 0;
    for (size_t limit = 256; limit < 400000; limit += limit / 8 + 40) {
        Arena a;
        Err e;
        Graph *g = NULL;
        mpri_err_clear(&e);
        mpri_arena_init(&a, NULL, limit);
        Intern *names = mpri_intern_create(&a);
        if (names && mpri_graph_parse(chain, &a, names, test_table(), &g, &e) == MPR_OK) {
            Graph *c = mpri_graph_clone(g, &a);
            if (c) ok += mpri_graph_validate(c, "clone", &e) == MPR_OK;
        } else if (names) {
            assert_int_equal(e.code, MPR_E_NOMEM);
        }
        mpri_arena_destroy(&a);
    }
    assert_true(ok > 0);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_uses),      T(test_sweep_and_names), T(test_move_and_origin),
        T(test_clone),     T(test_builder),         T(test_broadcast),
        T(test_axis),      T(test_declared_shapes), T(test_params),
        T(test_validator), T(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
