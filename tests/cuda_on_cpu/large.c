/* Tensors of more than one block: what the rows of tests/op/cases are too small for. Each graph runs on the
 * CUDA device and by the reference kernels. A name of an integer input gives its range: i9 0 … 8,
 * n9 -9 … 8, and s9 mostly one number, as padding is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/rng.h"
#include "runtime/exec/device.h"
#include "tests/support/case_run.h"
#include "tests/support/support.h"

typedef struct Row {
    const char *name, *text;
    double tolerance; /* relative to the largest element; 0: equal */
} Row;

static const Row rows[] = {
    {"squares of 4 bytes", "input x: f32[2,70,3,45]\ny = Transpose(x) {perm=[0,3,2,1]}\noutput y = y\n", 0},
    {"squares of 2 bytes", "input x: f16[65,130]\ny = Transpose(x)\noutput y = y\n", 0},
    {"squares of 1 byte", "input i2: bool[3,33,64]\ny = Transpose(i2) {perm=[2,0,1]}\noutput y = y\n", 0},
    {"squares of 8 bytes", "input n99: i64[40,5,35]\ny = Transpose(n99) {perm=[2,1,0]}\noutput y = y\n", 0},
    {"heads", "input x: bf16[2,9,4,16]\ny = Transpose(x) {perm=[0,2,1,3]}\noutput y = y\n", 0},
    {"parts", "input a: f16[7,3,40]\ninput b: f16[7,5,40]\ninput c: f16[7,3,1]\n"
              "y = Concat(a, b, a) {axis=1}\nz = Concat(c, a) {axis=-1}\noutput y = y\noutput z = z\n", 0},
    {"slices", "input x: f32[11,60,9]\nconst s: i64[2] = [-1,2]\nconst e: i64[2] = [-99,58]\n"
               "const a: i64[2] = [0,1]\nconst d: i64[2] = [-3,4]\ny = Slice(x, s, e, a, d)\n"
               "g = SliceGrad(y) {dims=[11,60,9], starts=[10,2], axes=[0,1], steps=[-3,4]}\n"
               "output y = y\noutput g = g\n", 0},
    {"broadcast", "input x: f16[5,1,64]\nconst s: i64[4] = [3,5,20,64]\ny = Expand(x, s)\noutput y = y\n", 0},
    {"triangle", "input x: f16[3,50,70]\nconst k: i64[] = [5]\ny = Trilu(x, k)\noutput y = y\n", 0},
    {"table", "input x: f16[50,96]\ninput n50: i64[7,60]\ny = Gather(x, n50)\noutput y = y\n", 0},
    {"table, odd rows", "input x: f16[4,50,7]\ninput n50: i32[300]\ny = Gather(x, n50) {axis=1}\noutput y = y\n", 0},
    {"table's gradient", "input x: f16[3000,40]\ninput n700: i64[3000]\n"
                         "g = GatherGrad(x, n700) {dims=[700,40]}\noutput g = g\n", 1e-6},
    {"table's gradient, few rows", "input x: f32[2500,70]\ninput i3: i32[2500]\n"
                                   "g = GatherGrad(x, i3) {dims=[3,70]}\noutput g = g\n", 1e-5},
    {"table's gradient, padding", "input x: bf16[2,1100,5]\ninput s90: i64[1100]\n"
                                  "g = GatherGrad(x, s90) {axis=1, dims=[2,90,5]}\noutput g = g\n", 1e-5},
    {"elements", "input x: f32[40,70]\ninput n70: i64[40,90]\ny = GatherElements(x, n70) {axis=1}\noutput y = y\n", 0},
    {"the last one", "input x: f32[60,30]\ninput n60: i64[80,30]\ninput u: f32[80,30]\n"
                     "y = ScatterElements(x, n60, u)\noutput y = y\n", 0},
    {"sums", "input x: f16[60,30]\ninput n60: i64[80,30]\ninput u: f16[80,30]\n"
             "y = ScatterElements(x, n60, u) {reduction=\"add\"}\noutput y = y\n", 0},
    {"slices of sums", "input x: f32[50,33]\ninput n50: i64[1500,1]\ninput u: f32[1500,33]\n"
                       "y = ScatterND(x, n50, u) {reduction=\"add\"}\n"
                       "z = ScatterND(x, n50, u) {reduction=\"max\"}\noutput y = y\noutput z = z\n", 0},
    {"tiles", "input x: f16[9,1,40]\nconst r: i64[3] = [2,30,3]\ny = Tile(x, r)\noutput y = y\n", 0},
    {"pads", "input x: f32[40,50]\nconst p: i64[4] = [3,-2,0,70]\ny = Pad(x, p) {mode=\"reflect\"}\noutput y = y\n", 0},
    {"blocks", "input x: f16[2,12,20,14]\ny = DepthToSpace(x) {blocksize=2, mode=\"CRD\"}\n"
               "z = SpaceToDepth(y) {blocksize=4}\noutput y = y\noutput z = z\n", 0},
    {"the greatest", "input x: bf16[3,2500,2]\nconst k: i64[1] = [1200]\nv, i = TopK(x, k) {axis=1}\n"
                     "a = ArgMin(x) {axis=1, select_last_index=1}\noutput v = v\noutput i = i\noutput a = a\n", 0},
    {"the least", "input i900: i32[5000]\nconst k: i64[1] = [4999]\nv, i = TopK(i900, k) {largest=0}\n"
                  "output v = v\noutput i = i\n", 0},
    {"running sums", "input x: f32[3,1000,2]\nconst a: i64[] = [1]\ny = CumSum(x, a) {exclusive=1, reverse=1}\n"
                     "output y = y\n", 1e-6},
    {"what is picked", "input x: f16[70,9]\nconst c: bool[630] = splat(1)\ny = Compress(x, c)\noutput y = y\n", 0},
    {"norms", "input x: f16[9,300,5]\nconst a: i64[2] = [0,1]\nconst b: i64[1] = [-1]\n"
              "l = ReduceL2(x, a)\ne = ReduceLogSumExp(x, a)\no = ReduceL1(x, b)\noutput l = l\noutput e = e\n"
              "output o = o\n", 0x1p-9},
    {"whole numbers", "input n90: i32[4,700]\nconst a: i64[1] = [1]\ns = ReduceSum(n90, a)\nm = ReduceMax(n90)\n"
                      "q = Mod(n90, m)\nb = Less(q, s)\nf = Cast(b) {to=f16}\noutput s = s\noutput m = m\n"
                      "output f = f\n", 0},
    {"rows' losses", "input x: f32[700,11]\ninput i11: i64[700]\nl, p = SoftmaxCrossEntropyLoss(x, i11)\n"
                     "n = NegativeLogLikelihoodLoss(p, i11) {reduction=\"sum\"}\noutput l = l\noutput p = p\n"
                     "output n = n\n", 1e-6},
    {"layer norm, a warp per row", "input x: f16[70,200]\ninput g: f16[70,200]\ninput s: f32[200]\ninput b: f32[200]\n"
        "y, m, i = LayerNormalization(x, s, b)\ndx, ds, db = LayerNormGrad(g, x, s, m, i)\n"
        "output y = y\noutput dx = dx\noutput ds = ds\noutput db = db\n", 1e-3},
    {"layer norm, a block per row", "input x: f32[5,1501]\ninput g: f32[5,1501]\ninput s: f32[1501]\n"
        "y, m, i = LayerNormalization(x, s)\ndx, ds, db = LayerNormGrad(g, x, s, m, i)\n"
        "output m = m\noutput y = y\noutput dx = dx\noutput ds = ds\noutput db = db\n", 2e-6},
    {"layer norm, weights that broadcast", "input x: f32[30,9,8]\ninput s: f32[9,1]\ninput b: f32[8]\n"
        "y = LayerNormalization(x, s, b) {axis=1}\noutput y = y\n", 2e-6},
    {"RMS norm", "input x: bf16[40,1100]\ninput g: bf16[40,1100]\ninput s: bf16[1100]\n"
        "y = RMSNormalization(x, s)\ndx, ds = RmsNormGrad(g, x, s)\noutput y = y\noutput dx = dx\noutput ds = ds\n", 8e-3},
    {"group norm", "input x: f32[3,12,30,10]\ninput g: f32[3,12,30,10]\ninput s: f32[12]\ninput b: f32[12]\n"
        "y = GroupNormalization(x, s, b) {num_groups=3}\ndx, ds, db = GroupNormGrad(g, x, s) {num_groups=3}\n"
        "output y = y\noutput dx = dx\noutput ds = ds\noutput db = db\n", 2e-6},
    {"instance norm", "input x: f16[2,3,33,31]\ninput s: f16[3]\ninput b: f16[3]\n"
        "y = InstanceNormalization(x, s, b)\noutput y = y\n", 1e-3},
    {"batch norm in parts", "input x: f32[3,4,80,90]\ninput g: f32[3,4,80,90]\ninput s: f32[4]\ninput b: f32[4]\n"
        "input m: f32[4]\ninput v: f32[4]\ny, rm, rv, um, uv = BatchNormalization(x, s, b, m, v) {training_mode=1}\n"
        "dx, ds, db = BatchNormGrad(g, x, s, um, uv) {training_mode=1}\n"
        "output y = y\noutput rm = rm\noutput rv = rv\noutput dx = dx\noutput ds = ds\noutput db = db\n", 1e-5},
    {"batch norm of features", "input x: f16[600,5]\ninput s: f32[5]\ninput b: f32[5]\ninput m: f32[5]\n"
        "input v: f32[5]\ny = BatchNormalization(x, s, b, m, v) {training_mode=1}\noutput y = y\n", 1e-3},
    {"LRN", "input x: f16[2,20,8,8]\ninput g: f16[2,20,8,8]\ny = LRN(x) {size=5}\ndx = LrnGrad(g, x) {size=5}\n"
        "output y = y\noutput dx = dx\n", 1e-3},
    {"lengths", "input x: f32[7,300,5]\nconst c: i64[2] = [15,700]\ny = LpNormalization(x) {axis=1, p=1}\nz = LpNormalization(y) {axis=0}\n"
        "w = Reshape(x, c)\nu = LpNormalization(w)\noutput z = z\noutput u = u\n", 2e-6},
    {"mean and variance", "input x: f32[4,3,20,30]\ny = MeanVarianceNormalization(x)\n"
        "z = MeanVarianceNormalization(x) {axes=[1,3]}\noutput y = y\noutput z = z\n", 2e-6},
    {"relu behind a product", "input x: f16[70,40]\ninput w: f16[40,48]\ninput b: f16[48]\n"
        "y = FusedMatMul(x, w, b) {activation=\"relu\"}\nz = FusedMatMul(x, w) {activation=\"relu\"}\n"
        "output y = y\noutput z = z\n", 1e-3},
    {"gelu behind a product", "input x: f32[3,30,40]\ninput w: f32[40,48]\ninput b: f32[48]\n"
        "y, p = FusedMatMul(x, w, b) {activation=\"gelu_tanh\"}\nz, q = FusedMatMul(x, w) {activation=\"gelu\"}\n"
        "u = FusedMatMul(x, w) {activation=\"gelu_tanh\"}\n"
        "output y = y\noutput p = p\noutput z = z\noutput q = q\noutput u = u\n", 2e-6},
    {"gelu behind a batch of products", "input x: f32[2,3,10,16]\ninput w: f32[3,16,24]\n"
        "y, p = FusedMatMul(x, w) {activation=\"gelu_tanh\"}\noutput y = y\noutput p = p\n", 2e-6},
    {"gelu in 16 bits", "input x: f16[30,40]\ninput w: f16[40,48]\ninput b: f16[48]\n"
        "y, p = FusedMatMul(x, w, b) {activation=\"gelu_tanh\"}\noutput y = y\noutput p = p\n", 1e-3},
    {"random numbers", "u = RandomUniform() {low=-1.5, high=2.25, shape=[9,500]}\n"
        "h = RandomUniform() {low=1.0, high=1.001, shape=[3000], dtype=f16}\n"
        "s = RandomUniformLike(h) {seed=7.0, dtype=bf16}\nd = RandomUniform() {shape=[700], dtype=f64}\n"
        "b = Bernoulli(d) {dtype=bool}\nc = Bernoulli(d) {seed=7.0}\n"
        "output u = u\noutput h = h\noutput s = s\noutput d = d\noutput b = b\noutput c = c\n", 0},
    {"normal random numbers", "n = RandomNormal() {mean=1.0, scale=3.0, shape=[4000]}\n"
        "l = RandomNormalLike(n) {seed=3.0, dtype=f16}\noutput n = n\noutput l = l\n", 1e-6},
    {"draws of classes", "input x: f32[30,40]\nm = Multinomial(x) {sample_size=50, dtype=i64}\n"
        "l = Multinomial(x) {sample_size=3, seed=1.0}\noutput m = m\noutput l = l\n", 0},
    {"convolution of groups", "input x: f16[5,6,17,19]\ninput w: f16[10,3,3,5]\ninput b: f16[10]\n"
        "y = Conv(x, w, b) {group=2, strides=[2,1], pads=[1,0,2,3]}\n"
        "dx = ConvGradInput(y, w) {group=2, strides=[2,1], pads=[1,0,2,3], dims=[5,6,17,19]}\n"
        "dw = ConvGradWeight(y, x) {group=2, strides=[2,1], pads=[1,0,2,3], dims=[10,3,3,5]}\n"
        "output y = y\noutput dx = dx\noutput dw = dw\n", 2e-3},
    {"depthwise convolution", "input x: f32[3,8,40,40]\ninput w: f32[16,1,3,3]\ny = Conv(x, w) {group=8, dilations=[2,1]}\n"
        "dx = ConvGradInput(y, w) {group=8, dilations=[2,1], dims=[3,8,40,40]}\n"
        "dw = ConvGradWeight(y, x) {group=8, dilations=[2,1], dims=[16,1,3,3]}\n"
        "output y = y\noutput dx = dx\noutput dw = dw\n", 2e-6},
    {"convolution of volumes", "input x: f32[2,3,6,7,8]\ninput w: f32[4,3,2,3,1]\ny = Conv(x, w) {strides=[1,2,2]}\n"
        "dx = ConvGradInput(y, w) {strides=[1,2,2], dims=[2,3,6,7,8]}\nz = ConvTranspose(y, w) {strides=[1,2,3]}\n"
        "output y = y\noutput dx = dx\noutput z = z\n", 2e-6},
    {"convolution of one tap", "input x: f32[3,20,9,7]\ninput w: f32[12,20,1,1]\ny = Conv(x, w)\n"
        "dx = ConvGradInput(y, w) {dims=[3,20,9,7]}\ndw = ConvGradWeight(y, x) {dims=[12,20,1,1]}\n"
        "output y = y\noutput dx = dx\noutput dw = dw\n", 2e-6},
    {"pools", "input x: f16[3,4,21,22]\ny = MaxPool(x) {kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1]}\n"
        "dx = MaxPoolGrad(y, x) {kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1]}\n"
        "a = AveragePool(x) {kernel_shape=[3,3], strides=[2,2], ceil_mode=1}\n"
        "da = AveragePoolGrad(a) {kernel_shape=[3,3], strides=[2,2], ceil_mode=1, dims=[3,4,21,22]}\n"
        "t = GlobalMaxPool(x)\nm = GlobalAveragePool(x)\nl = GlobalLpPool(x)\n"
        "output y = y\noutput dx = dx\noutput a = a\noutput da = da\noutput t = t\noutput m = m\noutput l = l\n", 1e-3},
    {"resize", "input x: f32[2,3,12,13]\nconst s: f32[4] = [1,1,2.5,1.7]\ny = Resize(x, _, s) {mode=\"cubic\"}\n"
        "dx = ResizeGrad(y, _, s) {mode=\"cubic\", dims=[2,3,12,13]}\noutput y = y\noutput dx = dx\n", 2e-6},
    {"resize of volumes", "input x: f16[2,6,7,8]\nconst s: i64[4] = [2,9,3,11]\n"
        "y = Resize(x, _, _, s) {mode=\"linear\", antialias=1}\n"
        "dx = ResizeGrad(y, _, _, s) {mode=\"linear\", antialias=1, dims=[2,6,7,8]}\noutput y = y\noutput dx = dx\n", 1e-3},
};

static int64_t draw(const char *name, uint64_t stream, int64_t i)
{
    int64_t n = atoll(name + 1);
    if (name[0] == 's' && mpri_rng_below(3, stream, (uint64_t)i, 10)) return 1;
    if (name[0] == 'n') return (int64_t)mpri_rng_below(5, stream, (uint64_t)i, 2 * (uint64_t)n) - n;
    return (int64_t)mpri_rng_below(5, stream, (uint64_t)i, (uint64_t)n);
}

static void fill(CaseRun *x)
{
    for (int k = 0; k < x->g->n_inputs; k++) {
        const Value *v = x->g->inputs[k].value;
        const Tensor *t = &x->at[v->id];
        for (int64_t i = 0; i < t->n; i++)
            if (mpri_dtype_is_float(t->dtype))
                mpri_store_f64(t->dtype, t->data, i,
                               (double)mpri_rng_uniform(7, (uint64_t)k, (uint64_t)i) * 4 - 2);
            else
                mpri_store_i64(t->dtype, t->data, i, draw(v->name, (uint64_t)k, i));
    }
}

static void open_row(CaseRun *x, const Row *r)
{
    char text[4096];
    snprintf(text, sizeof text, "graph \"%s\" {\n%s}\n", r->name, r->text);
    mpr_status status = test_case_open(x, text);
    if (status == MPR_OK) status = mpri_infer_graph(x->g, &x->err);
    if (status != MPR_OK) fail_msg("%s: %s | %s", r->name, x->err.message, x->err.where);
}

static void compare(const Row *r, int k, const Tensor *found, const Tensor *want)
{
    double top = 0;
    for (int64_t i = 0; i < want->n; i++)
        top = fmax(top, fabs(mpri_load_f64(want->dtype, want->data, i)));
    for (int64_t i = 0; i < want->n; i++) {
        double a = mpri_load_f64(found->dtype, found->data, i),
               b = mpri_load_f64(want->dtype, want->data, i);
        if (!(fabs(a - b) <= r->tolerance * top) && !(isnan(a) && isnan(b)) && a != b)
            fail_msg("%s: output %d, element %lld is %.9g, expected %.9g", r->name, k, (long long)i, a, b);
    }
}

/* What the CPU draws: the reference kernels alone know no seed and no step. */
static void check_random(const Row *r, CaseRun *from, const Tensor *found)
{
    CaseRun x;
    Device *device;
    Tensor out[CASE_RESULTS];
    bool random = false;
    for (const Node *n = from->g->first; n; n = n->next) random |= (n->op->flags & OPF_RANDOM) != 0;
    if (!random) return;
    open_row(&x, r);
    assert_ok(mpri_device_cpu(mpri_alloc_default(), 1, &device, &x.err), &x.err);
    assert_ok(test_case_plan(&x, device, from, out), &x.err);
    for (int k = 0; k < from->g->n_outputs; k++) {
        compare(r, k, &found[k], &out[k]);
        memcpy(from->at[from->g->outputs[k].value->id].data, out[k].data,
               (size_t)out[k].n * mpri_dtype_size(out[k].dtype));
    }
    mpri_device_destroy(device);
    test_case_close(&x);
}

/* tune: algorithms and epilogues of products are timed, which is another way through the library. */
static void check_on_cuda(const Row *r, CaseRun *from, bool tune)
{
    CaseRun x;
    Device *device;
    Tensor out[CASE_RESULTS];
    open_row(&x, r);
    assert_ok(mpri_device_cuda(mpri_alloc_default(), 0, 1, &device, &x.err), &x.err);
    device->tune = tune;
    assert_ok(test_case_plan(&x, device, from, out), &x.err);
    check_random(r, from, out);
    for (int k = 0; k < from->g->n_outputs; k++)
        compare(r, k, &out[k], &from->at[from->g->outputs[k].value->id]);
    mpri_device_destroy(device);
    test_case_close(&x);
}

static void check(void **state)
{
    const Row *r = *state;
    CaseRun from;
    open_row(&from, r);
    assert_ok(test_case_memory(&from), &from.err);
    fill(&from);
    assert_ok(test_case_evaluate(&from, false), &from.err);
    check_on_cuda(r, &from, false);
    if (strstr(r->text, "MatMul") || strstr(r->text, "Conv")) check_on_cuda(r, &from, true);
    test_case_close(&from);
}

int main(void)
{
    enum { N = sizeof rows / sizeof rows[0] };
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){rows[i].name, check, NULL, NULL, (void *)(uintptr_t)&rows[i]};
    return cmocka_run_group_tests_name("large", tests, NULL, NULL);
}
