/* The bundled models on a CUDA device beside the CPU: 30 steps of AdamW with clipping and a linear
 * schedule in float32, float16 (from a scale that overflows at first) and bfloat16.
 *
 *   loss and evaluation   as far apart as two valid implementations may be (table below)
 *   weights               the same, by their norms
 *   scale and skips       equal in every step
 *   runs on CUDA          the same bits again, without CUDA graphs, and where nobody asks for results
 *
 * One line per run: check <tab> case <tab> passed or failed <tab> figures. Arguments choose models, and
 * fewer steps: test_gpu_models --steps 10 mlp vit. The device is cuda, in a program with the real one or the one of
 * tests/cuda_on_cpu. Exit status 77: there is none. */
#include <math.h>
#include <mpr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 30, PRECISIONS = 3 };
static int steps = STEPS;

static const struct {
    const char *name;
    mpr_dtype type;
} precisions[PRECISIONS] = {
    {"fp32", MPR_DTYPE_NONE}, {"fp16", MPR_FLOAT16}, {"bf16", MPR_BFLOAT16}};

/* How far valid implementations are apart after 30 steps, times four; by precision. */
typedef struct Limit {
    double loss, weights;
} Limit;

typedef struct Model {
    const char *name, *file, *data; /* data NULL: random rows */
    int64_t batch;
    double rate;
    const char *zero; /* ends the names of weights whose gradient is 0 but for rounding; NULL: none */
    Limit limit[PRECISIONS];
} Model;

static const Model models[] = {
    {"mlp", "digits/model_ts.onnx", "digits/train.npz", 32, 0.005, NULL,
     {{4e-6, 2e-6}, {2.7e-3, 3.2e-4}, {8.8e-3, 2.2e-3}}},
    {"bert_cls", "oracle/bert_cls/model_ts.onnx", "oracle/bert_cls/train.npz", 16, 0.002, "attention.self.key.bias",
     {{4e-6, 3.8e-6}, {1.5e-3, 3.9e-4}, {5.2e-3, 5.4e-3}}},
    {"gpt2_lm", "oracle/gpt2_lm/model_ts.onnx", "oracle/gpt2_lm/train.npz", 8, 0.003, NULL,
     {{7.8e-6, 6.1e-4}, {2.7e-4, 0.17}, {1.2e-3, 4.6e-2}}},
    {"vit", "oracle/vit/model_ts.onnx", "digits_vit/train.npz", 32, 0.003, NULL,
     {{4e-6, 1.4e-3}, {9.5e-4, 3.5e-2}, {7.4e-3, 2e-2}}},
    {"llama_lm", "oracle/llama_lm/model_dynamo.onnx", NULL, 8, 0.004, NULL,
     {{6e-6, 2e-6}, {6.2e-4, 2.7e-5}, {2.7e-3, 2.3e-4}}},
};

typedef struct Trace { /* of one run */
    float loss[STEPS], norm[STEPS], scale[STEPS];
    bool skipped[STEPS];
    float *weights; /* all parameters, one after the other */
    int64_t n_weights;
    int n_parameters;
    int64_t *sizes;
    bool *noise; /* by parameter: Model.zero */
} Trace;

typedef struct Run { /* the handles of one run */
    mpr_context *ctx;
    mpr_model *model;
    mpr_session *s;
    mpr_optimizer *opt;
    mpr_dataset *data;
    mpr_schedule *schedule;
    mpr_prepared *p;
} Run;

static char why[1024]; /* the last failure in words */

static bool failed(const void *handle)
{
    mpr_error e = mpr_last_error(handle);
    snprintf(why, sizeof why, "%s: %s", mpr_status_text(e.code), e.message ? e.message : "");
    return false;
}

static void run_close(Run *r)
{
    mpr_prepared_destroy(r->p);
    mpr_schedule_destroy(r->schedule);
    mpr_dataset_close(r->data);
    mpr_optimizer_destroy(r->opt);
    mpr_session_close(r->s);
    mpr_model_destroy(r->model);
    mpr_context_destroy(r->ctx);
}

static void path_of(const char *file, char buf[512])
{
    const char *root = getenv("MPR_TEST_DATA");
    snprintf(buf, 512, "%s/%s", root ? root : "tests/data", file);
}

static bool open_session(Run *r, const Model *m, mpr_dtype type)
{
    char path[512];
    static const char *const bind[] = {"seq=24", NULL};
    mpr_session_options so = {
        .size = sizeof so, .autocast = type, .loss = "cross-entropy", .seed = 7};
    path_of(m->file, path);
    if (mpr_model_load(r->ctx, path, NULL, &r->model) != MPR_OK) return failed(r->ctx);
    if (mpr_session_open(r->model, &so, &r->s) != MPR_OK) return failed(r->model);
    mpr_dataset_options d = {.size = sizeof d, .batch_size = m->batch, .drop_last = true, .seed = 7};
    if (!m->data) {
        d.synthetic_rows = 8 * m->batch;
        d.bind = bind;
    } else {
        path_of(m->data, path);
    }
    const char *files[] = {path};
    if (mpr_dataset_open(r->s, m->data ? files : NULL, m->data ? 1 : 0, &d, &r->data) != MPR_OK)
        return failed(r->s);
    return true;
}

static bool open_training(Run *r, const Model *m, mpr_dtype type)
{
    mpr_adamw adam = {.size = sizeof adam, .learning_rate = m->rate, .weight_decay = 0.01};
    mpr_schedule_options so = {
        .size = sizeof so, .type = "linear", .warmup_steps = 5, .total_steps = steps};
    mpr_scaler_options scaler = {
        .size = sizeof scaler, .init_scale = 16777216, .growth_interval = 10, .max_consecutive_skips = -1};
    mpr_prepare_options po = {.size = sizeof po,
                              .gradient_accumulation_steps = 1,
                              .max_grad_norm = 1,
                              .scaler = type == MPR_FLOAT16 ? &scaler : NULL};
    if (mpr_optimizer_adamw(r->s, &adam, &r->opt) != MPR_OK) return failed(r->s);
    if (mpr_schedule_create(r->s, &so, &r->schedule) != MPR_OK) return failed(r->s);
    if (mpr_prepare(r->s, r->opt, r->data, r->schedule, &po, &r->p) != MPR_OK) return failed(r->s);
    return true;
}

/* With `late` nobody asks how a step went: the host reads it later, or never. */
static bool run_steps(Run *r, bool late, Trace *t)
{
    for (int i = 0; i < steps; i++) {
        bool more;
        mpr_step_result result = {0};
        if (mpr_prepared_next(r->p, &more) != MPR_OK) return failed(r->p);
        if (mpr_prepared_backward(r->p, NULL) != MPR_OK) return failed(r->p);
        if (mpr_prepared_step(r->p, late ? NULL : &result) != MPR_OK) return failed(r->p);
        t->loss[i] = result.loss;
        t->norm[i] = result.grad_norm;
        t->scale[i] = result.scale;
        t->skipped[i] = result.outcome == MPR_STEP_SKIPPED;
    }
    return true;
}

static int64_t elements(const mpr_parameter_info *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->rank; i++) n *= p->dims[i];
    return n;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = name ? strlen(name) : 0, m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

static bool take_weights(Run *r, const char *zero, Trace *t)
{
    mpr_parameter_info p;
    t->n_parameters = mpr_session_parameter_count(r->s);
    t->sizes = calloc((size_t)t->n_parameters + 1, sizeof *t->sizes);
    t->noise = calloc((size_t)t->n_parameters + 1, sizeof *t->noise);
    for (int i = 0; t->sizes && t->noise && i < t->n_parameters; i++) {
        if (mpr_session_parameter(r->s, i, &p) != MPR_OK) return failed(r->s);
        t->n_weights += t->sizes[i] = elements(&p);
        t->noise[i] = zero && ends_with(p.public_name, zero);
    }
    t->weights = calloc((size_t)t->n_weights + 1, sizeof *t->weights);
    if (!t->sizes || !t->noise || !t->weights) return snprintf(why, sizeof why, "out of memory") < 0;
    float *at = t->weights;
    for (int i = 0; i < t->n_parameters; at += t->sizes[i++]) {
        if (mpr_session_parameter(r->s, i, &p) != MPR_OK) return failed(r->s);
        if (mpr_session_parameter_get(r->s, p.name, at, t->sizes[i]) != MPR_OK) return failed(r->s);
    }
    return true;
}

static bool run(const Model *m, mpr_dtype type, const char *device, bool graph, bool late, Trace *t)
{
    Run r = {0};
    mpr_context_options co = {.size = sizeof co, .device = device, .no_cuda_graph = !graph};
    *t = (Trace){0};
    bool ok = mpr_context_create(&co, &r.ctx) == MPR_OK || failed(r.ctx);
    ok = ok && open_session(&r, m, type) && open_training(&r, m, type) && run_steps(&r, late, t) &&
         take_weights(&r, m->zero, t);
    run_close(&r);
    return ok;
}

static void trace_free(Trace *t)
{
    free(t->weights);
    free(t->sizes);
    free(t->noise);
    *t = (Trace){0};
}

static double norm_of(const float *v, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

/* Largest difference of the losses; NAN where only one is finite. */
static double loss_apart(const Trace *a, const Trace *b)
{
    double worst = 0;
    for (int i = 0; i < steps; i++) {
        if (a->skipped[i] && b->skipped[i]) continue;
        double d = fabs((double)a->loss[i] - (double)b->loss[i]);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static double weights_apart(const Trace *a, const Trace *b)
{
    double worst = 0;
    int64_t at = 0;
    for (int i = 0; i < a->n_parameters; at += a->sizes[i++]) {
        double x = norm_of(a->weights + at, a->sizes[i]), y = norm_of(b->weights + at, a->sizes[i]);
        if (a->noise[i] || x == y) continue;
        double d = fabs(x / y - 1);
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static bool same_weights(const Trace *a, const Trace *b)
{
    return a->n_weights == b->n_weights &&
           !memcmp(a->weights, b->weights, (size_t)a->n_weights * sizeof *a->weights);
}

static bool same_bits(const Trace *a, const Trace *b)
{
    return !memcmp(a->loss, b->loss, sizeof a->loss) && !memcmp(a->norm, b->norm, sizeof a->norm) &&
           !memcmp(a->scale, b->scale, sizeof a->scale) && same_weights(a, b);
}

static int row(const Model *m, int p, const char *what, bool ok, const char *figures)
{
    printf("%s\t%s %s\t%s\t%s\n", what, m->name, precisions[p].name, ok ? "passed" : "failed", figures);
    fflush(stdout);
    return !ok;
}

static int against_cpu(const Model *m, int p, const Trace *cpu, const Trace *gpu)
{
    char text[256];
    int bad = 0, skips = 0;
    double loss = loss_apart(cpu, gpu), weights = weights_apart(cpu, gpu);
    snprintf(text, sizeof text, "loss %.1e (limit %.1e), weights %.1e (limit %.1e)", loss, m->limit[p].loss,
             weights, m->limit[p].weights);
    bad += row(m, p, "CPU = CUDA", loss <= m->limit[p].loss && weights <= m->limit[p].weights, text);
    if (precisions[p].type != MPR_FLOAT16) return bad;
    int apart = -1;
    for (int i = steps - 1; i >= 0; i--) {
        skips += gpu->skipped[i];
        if (cpu->skipped[i] != gpu->skipped[i] || cpu->scale[i] != gpu->scale[i]) apart = i;
    }
    if (apart < 0)
        snprintf(text, sizeof text, "%d of %d steps skipped, last scale %g", skips, steps,
                 (double)gpu->scale[steps - 1]);
    else
        snprintf(text, sizeof text, "step %d: scale %g skipped %d on the CPU, %g %d on CUDA", apart + 1,
                 (double)cpu->scale[apart], cpu->skipped[apart], (double)gpu->scale[apart],
                 gpu->skipped[apart]);
    return bad + row(m, p, "scale and skips", apart < 0 && skips > 0, text);
}

static int check(const Model *m, int p)
{
    Trace cpu = {0}, gpu = {0}, again = {0}, plain = {0}, late = {0};
    mpr_dtype type = precisions[p].type;
    int bad;
    if (!run(m, type, "cpu", true, false, &cpu) || !run(m, type, "cuda", true, false, &gpu)) {
        bad = row(m, p, "CPU = CUDA", false, why);
    } else {
        bad = against_cpu(m, p, &cpu, &gpu);
        bool ok = run(m, type, "cuda", true, false, &again);
        bad += row(m, p, "same bits again", ok && same_bits(&gpu, &again), ok ? "" : why);
        ok = run(m, type, "cuda", false, false, &plain);
        bad += row(m, p, "same bits without graphs", ok && same_bits(&gpu, &plain), ok ? "" : why);
        ok = run(m, type, "cuda", true, true, &late);
        bad += row(m, p, "same weights, read late", ok && same_weights(&gpu, &late), ok ? "" : why);
    }
    trace_free(&cpu);
    trace_free(&gpu);
    trace_free(&again);
    trace_free(&plain);
    trace_free(&late);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0, done = 0;
    mpr_context *ctx = NULL;
    mpr_context_options co = {.size = sizeof co, .device = "cuda"};
    if (mpr_context_create(&co, &ctx) != MPR_OK) {
        failed(ctx);
        mpr_context_destroy(ctx);
        printf("skipped: %s\n", why);
        return 77;
    }
    mpr_context_destroy(ctx);
    int first = 1;
    if (argc > 2 && !strcmp(argv[1], "--steps")) {
        steps = atoi(argv[2]);
        first = 3;
    }
    if (steps < 6 || steps > STEPS) { /* five warm up */
        fprintf(stderr, "--steps takes 6 to %d\n", STEPS);
        return 2;
    }
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        bool chosen = argc == first;
        for (int k = first; k < argc; k++) chosen |= !strcmp(argv[k], models[i].name);
        for (int p = 0; chosen && p < PRECISIONS; p++, done++) bad += check(&models[i], p);
    }
    if (!done) fprintf(stderr, "no such model\n");
    return bad > 0 || !done;
}
