/* The autocast pass on a transformer block and on the constructs that go wrong elsewhere: scalar
 * constants, masks, epsilons, losses written by hand, rules of the user. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "passes/profile.h"
#include "runtime/ir/text_form.h"
#include "tests/support/graphs.h"

typedef struct Heard {
    char text[4096];
} Heard;

static void hear(void *user, mpr_log_level level, const char *message)
{
    Heard *h = user;
    size_t len = strlen(h->text);
    if (level >= MPR_LOG_NOTICE) snprintf(h->text + len, sizeof h->text - len, "%s\n", message);
}

static void cast(TestGraph *t, const char *profile, const char *const *keep, DType low)
{
    Profile *p;
    assert_ok(mpri_profile_load(profile, keep, &t->arena, &p, &t->err), &t->err);
    t->o.autocast = low;
    t->o.profile = p;
    (void)test_graph_pass(t, mpri_pass_autocast);
}

static DType type_of(const TestGraph *t, const char *value)
{
    const Value *v = mpri_graph_find_value(t->g, value);
    if (!v) fail_msg("no value '%s'", value);
    return v->dtype;
}

static const Node *node_of(const TestGraph *t, const char *value)
{
    const Value *v = mpri_graph_find_value(t->g, value);
    assert_non_null(v);
    return v->def;
}

static int count(const Graph *g, int op)
{
    int k = 0;
    for (const Node *n = g->first; n; n = n->next) k += n->op->id == op;
    return k;
}

static char *print(TestGraph *t)
{
    Text text;
    mpri_text_init(&text, mpri_alloc_default());
    assert_ok(mpri_graph_print(t->g, &text, &t->err), &t->err);
    char *copy = mpri_arena_strdup(&t->arena, text.text);
    mpri_text_free(&text);
    return copy;
}

/* ---- a pre-LN transformer block ---- */

static const char block[] =
    "graph \"block\" {\n"
    "input ids: i64[batch,seq]\n"
    "input mask: f32[batch,1,1,seq]\n"
    "param table: f32[50,16] trained\n"
    "param pos: f32[seq,16] trained\n"
    "param ln.w: f32[16] trained\nparam ln.b: f32[16] trained\n"
    "param q.w: f32[16,16] trained\nparam q.b: f32[16] trained\n"
    "param k.w: f32[16,16] trained\nparam k.b: f32[16] trained\n"
    "param v.w: f32[16,16] trained\nparam v.b: f32[16] trained\n"
    "param o.w: f32[16,16] trained\nparam o.b: f32[16] trained\n"
    "param up.w: f32[16,32] trained\nparam up.b: f32[32] trained\n"
    "param down.w: f32[32,16] trained\nparam down.b: f32[16] trained\n"
    "const heads: i64[4] = [0,0,4,4]\nconst merged: i64[3] = [0,0,16]\nconst eighth: f32[] = 0.5\n"
    "e = Gather(table, ids) @ \"/emb/Gather\"\n"
    "x0 = Add(e, pos) @ \"/emb/Add\"\n"
    "n1 = LayerNormalization(x0, ln.w, ln.b) @ \"/attn/ln/LayerNormalization\"\n"
    "q = Linear(n1, q.w, q.b) @ \"/attn/q/MatMul\"\n"
    "k = Linear(n1, k.w, k.b) @ \"/attn/k/MatMul\"\n"
    "v = Linear(n1, v.w, v.b) @ \"/attn/v/MatMul\"\n"
    "qr = Reshape(q, heads)\nqt = Transpose(qr) {perm=[0,2,1,3]}\n"
    "kr = Reshape(k, heads)\nkt = Transpose(kr) {perm=[0,2,3,1]}\n"
    "vr = Reshape(v, heads)\nvt = Transpose(vr) {perm=[0,2,1,3]}\n"
    "s = MatMul(qt, kt) @ \"/attn/MatMul\"\n"
    "sc = Mul(s, eighth) @ \"/attn/Mul\"\n"
    "sm = Add(sc, mask) @ \"/attn/Add\"\n"
    "p = Softmax(sm) @ \"/attn/Softmax\"\n"
    "a = MatMul(p, vt) @ \"/attn/MatMul_1\"\n"
    "at = Transpose(a) {perm=[0,2,1,3]}\nar = Reshape(at, merged)\n"
    "o = Linear(ar, o.w, o.b) @ \"/attn/o/MatMul\"\n"
    "x1 = Add(x0, o) @ \"/Add\"\n"
    "u = Linear(x1, up.w, up.b) @ \"/mlp/up/MatMul\"\n"
    "g = Gelu(u) @ \"/mlp/Gelu\"\n"
    "d = Linear(g, down.w, down.b) @ \"/mlp/down/MatMul\"\n"
    "x2 = Add(x1, d) @ \"/Add_1\"\n"
    "logits = MatMul(x2, up.w) @ \"/head/MatMul\"\n"
    "output logits = logits\n"
    "}\n";

static void test_block(void **state)
{
    (void)state;
    static const char *const f32[] = {"e", "x0", "n1", "sm", "p", "x1", "x2"};
    static const char *const low[] = {"q", "k",  "v", "qt", "kt", "s", "sc",
                                      "a", "ar", "o", "u",  "g",  "d", "logits"};
    TestGraph t;
    test_graph_open(&t, block);
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    for (size_t i = 0; i < sizeof f32 / sizeof *f32; i++)
        assert_int_equal(type_of(&t, f32[i]), MPR_FLOAT32);
    for (size_t i = 0; i < sizeof low / sizeof *low; i++)
        assert_int_equal(type_of(&t, low[i]), MPR_FLOAT16);
    /* one cast per value and type: n1, p, x1, x2, six weights, six biases, and sc and o, d up to
     * f32; logits */
    assert_int_equal(count(t.g, OP_Cast), 4 + 6 + 6 + 3 + 1);
    assert_int_equal(t.g->outputs[0].value->dtype, MPR_FLOAT32);
    assert_string_equal(t.g->outputs[0].name, "logits");
    assert_non_null(strstr(node_of(&t, "p")->why, "torch-cuda: Softmax is on the deny list"));
    assert_non_null(strstr(node_of(&t, "n1__mpr_f16")->why, "allow list"));
    test_graph_close(&t);
}

/* Properties that hold for every profile and type. */
static void test_properties(void **state)
{
    (void)state;
    static const char *const profiles[] = {"torch-cuda", "torch-cpu"};
    static const DType lows[] = {MPR_FLOAT16, MPR_BFLOAT16};
    for (int i = 0; i < 4; i++) {
        TestGraph t;
        test_graph_open(&t, block);
        char *before = print(&t);
        cast(&t, profiles[i / 2], NULL, lows[i % 2]);
        for (const Node *n = t.g->first; n; n = n->next) {
            CastDecision d = mpri_profile_class(t.o.profile, n);
            for (int k = 0; k < n->n_in; k++)
                if (d.cls == CAST_LOW)
                    assert_true(!mpri_dtype_is_float(n->in[k]->dtype) ||
                                n->in[k]->dtype == lows[i % 2]);
            if (d.cls == CAST_FP32) assert_false(mpri_dtype_is_low(n->out[0]->dtype));
            if (mpri_is(n, OP_Cast)) assert_non_null(n->why);
        }
        char *once = print(&t);
        assert_false(test_graph_pass(&t, mpri_pass_autocast));
        assert_string_equal(print(&t), once);
        /* without its casts the graph is the one before */
        for (Node *n = t.g->first, *next; n; n = next) {
            next = n->next;
            if (!mpri_is(n, OP_Cast)) continue;
            mpri_value_replace(t.g, n->out[0], n->in[0]);
            mpri_node_remove(t.g, n);
        }
        Value *half = mpri_graph_find_value(t.g, "eighth");
        mpri_value_replace(t.g, node_of(&t, "sc")->in[1], half);
        assert_ok(mpri_infer_graph(t.g, &t.err), &t.err);
        assert_string_equal(print(&t), before);
        test_graph_close(&t);
    }
}

static void test_off(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, block);
    t.o.autocast = MPR_DTYPE_NONE;
    assert_false(test_graph_pass(&t, mpri_pass_autocast));
    t.o.autocast = MPR_FLOAT32;
    assert_false(test_graph_pass(&t, mpri_pass_autocast));
    t.o.autocast = MPR_FLOAT64;
    test_graph_refuses(&t, mpri_pass_autocast, MPR_E_USAGE, "f64");
    test_graph_close(&t);
}

/* ---- placement and text ---- */

static void test_text(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\n  input  x: f32[2,4]\n  param  w: f32[4,4] trained\n"
                        "h = MatMul(x, w)\na = Exp(h)\nb = MatMul(h, w)\nc = Log(h)\nd = Add(a, "
                        "b)\noutput y = d\noutput z = c\n}\n");
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    test_graph_expect(&t, "graph \"g\" {\n  input  x: f32[2,4]\n  param  w: f32[4,4] trained\n"
                          "w__mpr_f16: f16[4,4] = Cast(w) {to=f16} @ \"w__mpr_f16\"\n"
                          "x__mpr_f16: f16[2,4] = Cast(x) {to=f16} @ \"x__mpr_f16\"\n"
                          "h: f16[2,4] = MatMul(x__mpr_f16, w__mpr_f16)\n"
                          "h__mpr_f32: f32[2,4] = Cast(h) {to=f32} @ \"h__mpr_f32\"\n"
                          "a: f32[2,4] = Exp(h__mpr_f32)\n"
                          "b: f16[2,4] = MatMul(h, w__mpr_f16)\n"
                          "b__mpr_f32: f32[2,4] = Cast(b) {to=f32} @ \"b__mpr_f32\"\n"
                          "c: f32[2,4] = Log(h__mpr_f32)\n"
                          "d: f32[2,4] = Add(a, b__mpr_f32)\noutput y = d\noutput z = c\n}\n");
    test_graph_close(&t);
}

/* Casts of the file are shared, idle ones go, narrowing ones stay. */
static void test_casts_of_the_file(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\ninput x: f32[2,4]\nparam w: f32[4,4] trained\n"
                        "e = Exp(x)\nh = MatMul(e, w)\nxl = Cast(e) {to=f16}\nxw = Cast(xl) "
                        "{to=f32}\nr = Relu(xw)\n"
                        "hl = Cast(h) {to=f16}\nb = Relu(hl)\nk = MatMul(xw, w)\noutput r = "
                        "r\noutput b = b\noutput k = k\n}\n");
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    const Node *h = node_of(&t, "h"), *k = node_of(&t, "k");
    assert_string_equal(h->in[0]->name, "xl");               /* moved in front of h */
    assert_int_equal(type_of(&t, "r"), MPR_FLOAT32);         /* narrow and back */
    assert_string_equal(k->in[0]->name, "xl");               /* wide and back */
    assert_string_equal(node_of(&t, "b")->in[0]->name, "h"); /* idle cast */
    test_graph_close(&t);
}

/* ---- constants ---- */

#define MM \
    "graph \"g\" {\ninput x: f32[2,4]\ninput m: bool[2,4]\nparam w: f32[4,4] trained\nh = " \
    "MatMul(x, w)\n"

static void test_constants(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        DType f16, bf16;
        const char *said;
    } rows[] = {
        {MM "const c: f32[] = 0.125\ny = Mul(h, c)\noutput y = y\n}\n", MPR_FLOAT16, MPR_BFLOAT16,
         NULL},
        {MM "const c: f32[] = 1e-12\ny = Add(h, c)\noutput y = y\n}\n", MPR_FLOAT32, MPR_BFLOAT16,
         "becomes 0 in f16"},
        {MM "const c: f32[] = -1e9\ny = Where(m, h, c)\noutput y = y\n}\n", MPR_FLOAT32,
         MPR_BFLOAT16, "becomes -inf in f16"},
        {MM "const c: f32[] = -3.4028235e+38\ny = Add(h, c)\noutput y = y\n}\n", MPR_FLOAT32,
         MPR_FLOAT32, "becomes -inf in"},
        {MM "const c: f32[] = -inf\ny = Where(m, h, c)\noutput y = y\n}\n", MPR_FLOAT16,
         MPR_BFLOAT16, NULL},
        {MM "const c: f32[] = 65519\ny = Add(h, c)\noutput y = y\n}\n", MPR_FLOAT16, MPR_BFLOAT16,
         NULL},
        {MM "const c: f32[] = 65520\ny = Add(h, c)\noutput y = y\n}\n", MPR_FLOAT32, MPR_BFLOAT16,
         "becomes inf in f16"},
        {MM "const c: f32[] = -3.4028235e+38\ny = Max(h, c)\noutput y = y\n}\n", MPR_FLOAT16,
         MPR_BFLOAT16, NULL},
        {MM "const c: f32[4,4] = splat(1e-9)\ny = MatMul(h, c)\noutput y = y\n}\n", MPR_FLOAT32,
         MPR_BFLOAT16, "becomes 0 in f16"},
        {"graph \"g\" {\ninput h: f32[2,4]\nparam w: f32[4,2] trained = [1,2,3,4,5,6,7,1e-9]\ny = "
         "MatMul(h, w)\noutput y = y\n}\n",
         MPR_FLOAT16, MPR_BFLOAT16, NULL},
        {"graph \"g\" {\ninput h: f32[2,4]\nparam w: f32[2,4] trained = [1,2,3,4,5,6,7,7e4]\nt = "
         "Transpose(w)\ny = MatMul(h, t)\n"
         "output y = y\n}\n",
         MPR_FLOAT32, MPR_BFLOAT16, "'w' = 70000"},
        {"graph \"g\" {\ninput h: f32[2,4]\nparam v: f32[4,1] trained name \"w\" init [1,2,3,7e4]\n"
         "y = MatMul(h, v)\noutput y = y\n}\n",
         MPR_FLOAT32, MPR_BFLOAT16, "'w' = 70000"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int b = 0; b < 2; b++) {
            TestGraph t;
            Heard heard = {""};
            Log log = {hear, &heard};
            test_graph_open(&t, rows[i].text);
            t.ctx.log = &log;
            cast(&t, "torch-cuda", NULL, b ? MPR_BFLOAT16 : MPR_FLOAT16);
            DType want = b ? rows[i].bf16 : rows[i].f16;
            if (type_of(&t, "y") != want)
                fail_msg("row %zu: %s", i, mpri_dtype_name(type_of(&t, "y")));
            bool pinned = want == MPR_FLOAT32;
            assert_true(pinned == (heard.text[0] != 0));
            if (pinned && !strstr(heard.text, rows[i].said))
                fail_msg("row %zu: '%s'", i, heard.text);
            if (pinned) assert_non_null(strstr(node_of(&t, "y")->why, rows[i].said));
            assert_false(test_graph_pass(&t, mpri_pass_autocast));
            test_graph_close(&t);
        }
}

/* Told to stay low, a mask saturates. */
static void test_mask_by_rule(void **state)
{
    (void)state;
    static char name[] = "/tmp/mpr-profile-XXXXXX.yaml";
    int fd = mkstemps(name, 5);
    assert_true(fd >= 0);
    static const char text[] = "rules: [{node: '/mask*', class: low}]\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    TestGraph t;
    Heard heard = {""};
    Log log = {hear, &heard};
    test_graph_open(&t,
                    MM "const c: f32[] = -1e9\ny = Add(h, c) @ \"/mask/Add\"\noutput y = y\n}\n");
    t.ctx.log = &log;
    cast(&t, name, NULL, MPR_FLOAT16);
    unlink(name);
    assert_int_equal(type_of(&t, "y"), MPR_FLOAT16);
    const Value *c = node_of(&t, "y")->in[1];
    assert_true(mpri_load_f64(c->dtype, c->data, 0) == -65504);
    assert_non_null(strstr(heard.text, "clamped"));
    test_graph_close(&t);
}

/* A scalar that f16 cannot hold: arithmetic is done in f32 and rounded, a comparison stays bool. */
static void test_inexact_scalar(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, MM "const c: f32[] = 0.1\nscaled = Mul(h, c)\nb = Greater(h, c)\n"
                           "y = Where(b, scaled, h)\nz = Mul(y, c)\noutput y = y\noutput z = z\n}\n");
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    assert_int_equal(type_of(&t, "scaled"), MPR_FLOAT16);
    assert_int_equal(type_of(&t, "b"), MPR_BOOL);
    assert_int_equal(node_of(&t, "b")->in[0]->dtype, MPR_FLOAT32);
    assert_int_equal(node_of(&t, "b")->in[1]->dtype, MPR_FLOAT32);
    for (int i = 0; i < t.g->n_outputs; i++) /* rounded, and f32 as the file says */
        assert_int_equal(t.g->outputs[i].value->dtype, MPR_FLOAT32);
    test_graph_close(&t);
}

/* ---- types ---- */

static void test_untouched_types(void **state)
{
    (void)state;
    TestGraph t;
    const char *text =
        "graph \"g\" {\n  input  a: f64[2,2]\n  input  b: f64[2,2]\n  input  i: i64[2]\n"
        "c: f64[2,2] = MatMul(a, b)\nd: f64[2,2] = Exp(c)\nj: i64[2] = Add(i, i)\noutput d = "
        "d\noutput j = j\n}\n";
    test_graph_open(&t, text);
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    test_graph_expect(&t, text);
    test_graph_close(&t);
}

static void test_opaque(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, MM "y: f32[2,4] = com.acme:Thing(h)\nz = Relu(y)\noutput z = z\n}\n");
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    assert_int_equal(type_of(&t, "h"), MPR_FLOAT16);
    assert_int_equal(node_of(&t, "y")->in[0]->dtype, MPR_FLOAT32);
    assert_int_equal(type_of(&t, "y"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "z"), MPR_FLOAT32);
    test_graph_close(&t);
}

static void test_other_low_type(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(&t, "graph \"g\" {\ninput x: bf16[2,4]\ninput w: bf16[4,4]\nh = MatMul(x, "
                        "w)\noutput h = h\n}\n");
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    assert_int_equal(type_of(&t, "h"), MPR_FLOAT16);
    assert_int_equal(t.g->outputs[0].value->dtype, MPR_BFLOAT16);
    test_graph_close(&t);
    test_graph_open(&t, "graph \"g\" {\ninput x: bf16[4,4]\ninput w: bf16[4,4]\nh = MatMul(x, "
                        "w)\ny = Add(x, h) @ \"/res\"\noutput y = y\n}\n");
    Profile *p;
    assert_ok(mpri_profile_load("torch-cuda", NULL, &t.arena, &p, &t.err), &t.err);
    t.o.autocast = MPR_FLOAT16;
    t.o.profile = p;
    test_graph_refuses(&t, mpri_pass_autocast, MPR_E_TYPE, "/res", "f16 and bf16");
    test_graph_close(&t);
}

/* ---- loss regions ---- */

static void test_loss_region(void **state)
{
    (void)state;
    TestGraph t;
    test_graph_open(
        &t, "graph \"g\" {\ninput x: f32[2,4]\ninput t: f32[2,4]\nparam w: f32[4,4] trained\n"
            "h = MatMul(x, w)\nr = Relu(h)\nz = MatMul(r, w)\nd = Sub(z, t)\nq = Mul(d, d)\n"
            "l = ReduceMean(q) {keepdims=0}\noutput loss = l\n}\n");
    cast(&t, "torch-cpu", NULL, MPR_FLOAT16);
    assert_int_equal(type_of(&t, "r"), MPR_FLOAT16); /* behind the last product */
    assert_int_equal(type_of(&t, "z"), MPR_FLOAT16);
    assert_int_equal(type_of(&t, "d"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "l"), MPR_FLOAT32);
    assert_non_null(strstr(node_of(&t, "q")->why, "loss region"));
    test_graph_close(&t);
}

/* The probabilities of a cross-entropy by hand stay f32, with a warning. */
static void test_bce(void **state)
{
    (void)state;
    TestGraph t;
    Heard heard = {""};
    Log log = {hear, &heard};
    test_graph_open(
        &t, "graph \"g\" {\ninput x: f32[2,4]\ninput t: f32[2,4]\nparam w: f32[4,4] trained\n"
            "const one: f32[] = 1\nconst eps: f32[] = 1e-12\nz = MatMul(x, w)\np = Sigmoid(z)\n"
            "pe = Add(p, eps)\nlp = Log(pe)\na = Mul(t, lp)\nn = Sub(one, p)\nln = Log(n)\nu = "
            "Sub(one, t)\nb = Mul(u, ln)\n"
            "s = Add(a, b)\nm = ReduceMean(s) {keepdims=0}\nl = Neg(m)\noutput loss = l\n}\n");
    t.ctx.log = &log;
    cast(&t, "torch-cuda", NULL, MPR_FLOAT16);
    assert_int_equal(type_of(&t, "z"), MPR_FLOAT16);
    assert_int_equal(type_of(&t, "p"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "l"), MPR_FLOAT32);
    assert_non_null(strstr(heard.text, "Sigmoid"));
    assert_null(strstr(heard.text, "becomes 0"));
    test_graph_close(&t);
}

/* ---- rules ---- */

static void test_keep_fp32(void **state)
{
    (void)state;
    static const char *const keep[] = {"/attn/*/MatMul", "Gelu", "/nothing/*", NULL};
    TestGraph t;
    test_graph_open(&t, block);
    cast(&t, "torch-cuda", keep, MPR_FLOAT16);
    assert_int_equal(type_of(&t, "q"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "o"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "u"), MPR_FLOAT16);
    assert_int_equal(type_of(&t, "g"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "s"), MPR_FLOAT16);
    assert_non_null(strstr(node_of(&t, "g")->why, "keep-fp32: Gelu: fp32 (torch-cuda: keep)"));
    const char *const *left = mpri_profile_unmatched(t.o.profile, &t.arena);
    assert_non_null(left[0]);
    assert_non_null(strstr(left[0], "/nothing/*"));
    assert_null(left[1]);
    test_graph_close(&t);
}

static void refused(const char *profile, const char *keep, mpr_status code, const char *word1,
                    const char *word2)
{
    const char *const list[] = {keep, NULL};
    Arena arena;
    Profile *p;
    Err *err = calloc(1, sizeof *err);
    assert_non_null(err);
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    assert_int_equal(mpri_profile_load(profile, list, &arena, &p, err), code);
    assert_error(code, err, word1, word2);
    mpri_arena_destroy(&arena);
    free(err);
}

static void test_bad_profiles(void **state)
{
    (void)state;
    refused("torch-gpu", NULL, MPR_E_USAGE, "torch-gpu", "torch-c");
    refused("/no/such/file.yaml", NULL, MPR_E_IO, "/no/such/file.yaml", "torch-cuda");
    refused("torch-cuda", "Sofmax", MPR_E_USAGE, "'Sofmax'", "'Softmax'");
    refused("torch-cuda", "Cast", MPR_E_USAGE, "Cast", "fixed");
}

/* A profile file, what it says and what is wrong with it. */
static void with_file(const char *text, mpr_status code, const char *word1, const char *word2)
{
    char name[] = "/tmp/mpr-profile-XXXXXX.yaml";
    int fd = mkstemps(name, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    refused(name, NULL, code, word1, word2);
    unlink(name);
}

static void test_bad_files(void **state)
{
    (void)state;
    with_file("rules: [{op: Softmax, class: fp16}]", MPR_E_USAGE, "line 1", "'fp16'");
    with_file("rules:\n- {op: Softmax}\n", MPR_E_USAGE, "line 2", "needs a class");
    with_file("rules:\n- {op: Softmax, node: x, class: low}\n", MPR_E_USAGE, "line 2", "second");
    with_file("rules:\n- {opp: Softmax, class: low}\n", MPR_E_USAGE, "'opp'", "'op'");
    with_file("rules:\n- {op: [a], class: low}\n", MPR_E_USAGE, "line 2", "op");
    with_file("rules:\n- {op: MatMull, class: low}\n", MPR_E_USAGE, "yaml:2", "'MatMul'");
    with_file("base: torch-cda\n", MPR_E_USAGE, "'torch-cda'", "'torch-cuda'");
    with_file("bas: torch-cuda\n", MPR_E_USAGE, "'bas'", "'base'");
    with_file("rules: 3\n", MPR_E_USAGE, "line 1", "list");
    with_file("base: torch-cuda\nbase: paint\n", MPR_E_USAGE, "line 2", "twice: 'base'");
    with_file("rules: []\nbase: paint\nrules: []\n", MPR_E_USAGE, "line 3", "twice: 'rules'");
    with_file("rules:\n- op: Softmax\n  class: low\n  class: low\n", MPR_E_USAGE, "line 4", "second");
    with_file("rules:\n- op: Softmax\n  op: Softmax\n  class: low\n", MPR_E_USAGE, "line 3", "second");
    with_file("base: paint\nrules:\n- {tensor: [a], class: low}\n", MPR_E_USAGE, "line 3", "tensor");
    with_file("base: paint\nrules:\n- {node: a}\n", MPR_E_USAGE, "line 3", "needs a class");
    with_file("- a\n", MPR_E_USAGE, "line 1", "mapping");
    with_file("", MPR_E_USAGE, "empty", "yaml");
    with_file("a: [1, 2\nb: {", MPR_E_USAGE, "line", "yaml");
}

/* The last match wins; JSON is read as well; a subgraph is a prefix of the path. */
static void test_file(void **state)
{
    (void)state;
    char name[] = "/tmp/mpr-profile-XXXXXX.json";
    int fd = mkstemps(name, 5);
    static const char text[] =
        "{\"base\": \"torch-cpu\", \"rules\": [\n{\"subgraph\": \"/attn\", \"class\": \"fp32\"},\n"
        "{\"op\": \"MatMul\", \"class\": \"fp32\"},\n{\"node\": \"/attn/q/*\", \"class\": "
        "\"low\"}]}\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    TestGraph t;
    test_graph_open(&t, block);
    cast(&t, name, NULL, MPR_FLOAT16);
    unlink(name);
    assert_int_equal(type_of(&t, "q"), MPR_FLOAT16);
    assert_int_equal(type_of(&t, "k"),
                     MPR_FLOAT32); /* by its subgraph, and because Linear answers to MatMul */
    assert_int_equal(type_of(&t, "sc"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "u"), MPR_FLOAT32); /* Linear outside */
    assert_non_null(strstr(node_of(&t, "q")->why, ".json:4: node /attn/q/*: low"));
    assert_non_null(strstr(node_of(&t, "u")->why, ".json:3: MatMul: fp32 (torch-cpu: low)"));
    test_graph_close(&t);
}

/* Every kind of rule beats every kind before it, itself too, and a keep-fp32 all of them. */
static void test_last_match(void **state)
{
    (void)state;
    static const char *const kinds[] = {"op: MatMul", "node: '/attn/q/*'", "subgraph: /attn/q",
                                        "tensor: q"};
    static const char *const keep[] = {"/attn/q/MatMul", NULL};
    for (int first = 0; first < 4; first++)
        for (int last = 0; last < 4; last++)
            for (int kept = 0; kept < 2; kept++) {
                char name[] = "/tmp/mpr-profile-XXXXXX.yaml", text[256];
                int n = snprintf(text, sizeof text, "rules:\n- {%s, class: fp32}\n- {%s, class: low}\n"
                                 "- {%s, class: fp32}\n- {%s, class: low}\n", kinds[last],
                                 kinds[last], kinds[first], kinds[last]);
                int fd = mkstemps(name, 5);
                assert_true(fd >= 0);
                assert_int_equal(write(fd, text, (size_t)n), n);
                close(fd);
                TestGraph t;
                test_graph_open(&t, block);
                cast(&t, name, kept ? keep : NULL, MPR_FLOAT16);
                unlink(name);
                assert_int_equal(type_of(&t, "q"), kept ? MPR_FLOAT32 : MPR_FLOAT16);
                assert_non_null(strstr(node_of(&t, "q")->why, kept ? "keep-fp32" : ".yaml:5: "));
                test_graph_close(&t);
            }
}

/* A tensor rule names the node that makes a value, by a glob; a graph input has none. */
static void test_tensor_rules(void **state)
{
    (void)state;
    static const char text[] = "rules:\n- {tensor: '[kv]', class: fp32}\n- {tensor: mask, class: low}\n";
    char name[] = "/tmp/mpr-profile-XXXXXX.yaml";
    int fd = mkstemps(name, 5);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    TestGraph t;
    test_graph_open(&t, block);
    cast(&t, name, NULL, MPR_FLOAT16);
    unlink(name);
    assert_int_equal(type_of(&t, "q"), MPR_FLOAT16);
    assert_int_equal(type_of(&t, "k"), MPR_FLOAT32);
    assert_int_equal(type_of(&t, "v"), MPR_FLOAT32);
    const char *const *left = mpri_profile_unmatched(t.o.profile, &t.arena);
    assert_non_null(left[0]);
    assert_non_null(strstr(left[0], "mask"));
    assert_null(left[1]);
    test_graph_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_match),
        cmocka_unit_test(test_tensor_rules),
        cmocka_unit_test(test_block),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_casts_of_the_file),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_mask_by_rule),
        cmocka_unit_test(test_inexact_scalar),
        cmocka_unit_test(test_untouched_types),
        cmocka_unit_test(test_opaque),
        cmocka_unit_test(test_other_low_type),
        cmocka_unit_test(test_loss_region),
        cmocka_unit_test(test_bce),
        cmocka_unit_test(test_keep_fp32),
        cmocka_unit_test(test_bad_profiles),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
