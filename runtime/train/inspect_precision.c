/* The precision of every node: its types, the reason, what it moves and computes, and whether 16
 * bits are worth it; and the chain of reasons of one node under each profile. */
#include "runtime/train/inspect.h"

#include <stdio.h>
#include <string.h>

#include "convert/mixed.h"
#include "passes/profile.h"
#include "runtime/train/binding.h"
#include "runtime/train/json.h"

/* ---- sizes ---- */

typedef struct Sizes {
    const DimBinding *b;
    bool unknown; /* some size is not known */
    double moved, moved_f32, in_casts, flops, flops_low;
    int n_low, n_f32, n_casts;
} Sizes;

/* Elements under the binding, -1: not known. */
static double elements(const Sizes *s, const Value *v)
{
    double n = 1;
    if (!v || v->shape.rank < 0) return -1;
    for (int d = 0; d < v->shape.rank; d++) {
        Dim dim = mpri_dim_eval(s->b, v->shape.d[d]);
        if (!mpri_dim_const(dim)) return -1;
        n *= (double)dim;
    }
    return n;
}

static double last_dim(const Sizes *s, const Value *v, int from_end)
{
    if (!v || v->shape.rank < from_end) return -1;
    Dim dim = mpri_dim_eval(s->b, v->shape.d[v->shape.rank - from_end]);
    return mpri_dim_const(dim) ? (double)dim : -1;
}

/* Read and written; *f32: if every 16-bit value were float32. -1: not known. */
static double bytes_of(const Sizes *s, const Node *n, double *f32)
{
    double sum = 0;
    *f32 = 0;
    for (int k = 0; k < n->n_in + n->n_out; k++) {
        const Value *v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
        if (!v) continue;
        double count = elements(s, v);
        if (count < 0) return -1;
        double size = (double)mpri_dtype_size(v->dtype);
        sum += count * size;
        *f32 += count * (mpri_dtype_is_low(v->dtype) ? 4 : size);
    }
    return sum;
}

/* Of products; 0 for all other operators, -1: not known. */
static double flops_of(const Sizes *s, const Node *n)
{
    bool conv = mpri_is(n, OP_Conv);
    double out = n->n_out ? elements(s, n->out[0]) : -1, depth = -1;
    if (!conv && !mpri_is(n, OP_MatMul) && !mpri_is(n, OP_Linear) && !mpri_is(n, OP_Gemm)) return 0;
    if (conv) {
        double w = elements(s, n->in[1]), channels = last_dim(s, n->in[1], n->in[1]->shape.rank);
        if (w >= 0 && channels > 0) depth = w / channels;
    } else {
        bool turned = mpri_is(n, OP_Gemm) && ((const GemmParams *)n->params)->trans_a;
        depth = last_dim(s, n->in[0], turned ? 2 : 1);
    }
    return out < 0 || depth < 0 ? -1 : 2 * out * depth;
}

/* ---- a line per node ---- */

static void put_number(Text *t, double x, double unit)
{
    if (x < 0) mpri_text_add(t, "%10s ", "?");
    else mpri_text_add(t, "%10.3f ", x * unit);
}

static void put_json_number(Text *t, const char *key, double x)
{
    mpri_text_add(t, ", \"%s\": ", key);
    if (x < 0) mpri_text_put(t, "null");
    else mpri_json_f64(t, x);
}

static void put_node(Inspect *i, Sizes *s, const Node *n, bool first)
{
    Text *t = &i->out;
    const char *type = n->n_out && n->out[0] ? mpri_dtype_long(n->out[0]->dtype) : "";
    const char *in = n->n_in && n->in[0] ? mpri_dtype_long(n->in[0]->dtype) : "";
    double f32, bytes = bytes_of(s, n, &f32), flops = flops_of(s, n);
    bool low = n->n_out && n->out[0] && mpri_dtype_is_low(n->out[0]->dtype);
    bool made = mpri_is(n, OP_Cast) && n->why;
    s->unknown = s->unknown || bytes < 0 || flops < 0;
    if (bytes > 0) {
        s->moved += bytes;
        s->moved_f32 += made ? 0 : f32;
        s->in_casts += made ? bytes : 0;
    }
    if (flops > 0) s->flops += flops, s->flops_low += low ? flops : 0;
    if (mpri_is(n, OP_Cast)) s->n_casts++;
    else if (low) s->n_low++;
    else s->n_f32 += n->n_out && n->out[0] && n->out[0]->dtype == MPR_FLOAT32;
    if (!i->o.json) {
        mpri_text_add(t, "%-10s %-10s ", in, type);
        put_number(t, bytes, 1e-3);
        put_number(t, flops, 1e-6);
        mpri_text_add(t, "%-22s %s: %s\n", n->op->name, mpri_err_name(n->name),
                      n->why ? n->why : "as in the file");
        return;
    }
    mpri_text_put(t, first ? "{\"node\": " : ",\n {\"node\": ");
    mpri_json_string(t, n->name);
    mpri_text_add(t, ", \"op\": \"%s\", \"in\": \"%s\", \"out\": \"%s\"", n->op->name, in, type);
    put_json_number(t, "bytes", bytes);
    put_json_number(t, "bytes_float32", bytes < 0 ? -1 : made ? 0 : f32);
    put_json_number(t, "flops", flops);
    mpri_text_put(t, ", \"reason\": ");
    mpri_json_string(t, n->why ? n->why : "as in the file");
    mpri_text_put(t, "}");
}

static void put_totals(Inspect *i, const mpr_session *session, const Sizes *s)
{
    Text *t = &i->out;
    const Profile *p = session->profile[MODE_TRAIN];
    const char *low = mpri_dtype_long(session->autocast[MODE_TRAIN]);
    if (!p) return;
    mpri_text_add(t, "\nprofile      %s\n", mpri_err_name(p->name));
    mpri_profile_print(p, t);
    mpri_text_add(t, "operators    %d in %s, %d in float32, %d casts\n", s->n_low, low, s->n_f32,
                  s->n_casts);
    if (s->unknown) {
        mpri_text_put(t, "moved        some sizes are not known; give them with --bind\n");
        return;
    }
    mpri_text_add(t, "moved        %.3f MB forward, %.3f MB of it by casts; float32 throughout: %.3f "
                  "MB\n", 1e-6 * s->moved, 1e-6 * s->in_casts, 1e-6 * s->moved_f32);
    mpri_text_add(t, "products     %.1f%% of %.3f MFLOP in %s\n",
                  s->flops > 0 ? 100 * s->flops_low / s->flops : 0, 1e-6 * s->flops, low);
    double gain = s->moved_f32 > 0 ? 100 * (1 - s->moved / s->moved_f32) : 0;
    if (gain >= 0) mpri_text_add(t, "expected     gain: %.1f%% fewer bytes are moved\n", gain);
    else
        mpri_text_add(t, "expected     loss: %.1f%% more bytes are moved, unless casts are fused "
                      "(--plan tells)\n", -gain);
}

static mpr_status open_any(Inspect *i, mpr_session **s)
{
    Err why;
    mpri_err_clear(&why);
    mpr_status status = mpri_inspect_open(i, i->o.loss, s, &why);
    if (status == MPR_OK) return status;
    if (i->o.loss && !strcmp(i->o.loss, "auto")) /* the loss is not the question here */
        return mpri_inspect_open(i, NULL, s, i->err);
    *i->err = why;
    return status;
}

mpr_status mpri_inspect_precision(Inspect *i)
{
    mpr_session *s;
    TRY(open_any(i, &s));
    const Graph *g = s->graph[MODE_TRAIN];
    Arena arena;
    mpri_arena_init(&arena, &i->ctx->alloc, 0);
    DimBinding *b = mpri_binding_create(&arena, g->sym);
    mpr_status status = b ? mpri_bind_options(g, b, i->o.bind, i->err) : mpri_err_nomem(i->err, 0);
    Sizes sizes = {.b = b};
    if (status == MPR_OK) {
        mpri_text_put(&i->out, i->o.json ? "["
                                         : "input      output         kB moved      MFLOP "
                                           "operator               node: reason\n");
        for (const Node *n = g->first; n; n = n->next) put_node(i, &sizes, n, n == g->first);
        if (i->o.json) mpri_text_put(&i->out, "]\n");
        else put_totals(i, s, &sizes);
    }
    mpri_arena_destroy(&arena);
    mpri_session_close(s);
    return status;
}

/* ---- one node ---- */

static mpr_status explain_torch(Inspect *i, const char *profile, bool *found)
{
    mpr_session *s;
    Inspect as = *i;
    as.o.autocast_profile = profile;
    TRY(open_any(&as, &s));
    if (s->painted[MODE_TRAIN]) {
        mpri_session_close(s);
        return MPR_OK;
    }
    *found |= mpri_autocast_explain(s->model->m->graph, s->graph[MODE_TRAIN],
                                    s->profile[MODE_TRAIN], i->o.explain, &i->out);
    mpri_session_close(s);
    return MPR_OK;
}

static mpr_status explain_painted(Inspect *i, const char *name, bool *found)
{
    Arena arena;
    Profile *p;
    char *text = NULL;
    ConvertResult r;
    Err err = {0};
    mpri_arena_init(&arena, &i->ctx->alloc, 0);
    mpr_status status = mpri_profile_load(name ? name : "paint", i->o.keep_fp32, &arena, &p, i->err);
    if (status == MPR_OK && mpri_profile_converts(p)) {
        MixedOptions o = {.to = i->o.autocast, .mode = "train", .decisions = p->decisions,
                          .own_decisions = !name, .dry_run = true,
                          .paint = {.policy = p, .margin = 4},
                          .explain = i->o.explain, .explained = &text,
                          .alloc = &i->ctx->alloc, .log = &i->ctx->log};
        status = mpri_mixed_file(i->model->m, NULL, &o, &r, &err);
        if (status == MPR_OK) {
            mpri_text_add(&i->out, "under %s: %s", mpri_err_name(p->name), text);
            *found = true;
        } else if (!strstr(err.message, "the model has no node")) {
            *i->err = err;
        } else {
            status = MPR_OK;
        }
        mpri_free(&i->ctx->alloc, text);
    }
    mpri_arena_destroy(&arena);
    return status;
}

mpr_status mpri_inspect_explain(Inspect *i)
{
    static const char *const torch[] = {"torch-cuda", "torch-cpu"};
    bool found = false;
    if (!i->o.explain) return mpri_err_set(i->err, MPR_E_USAGE, "no node to explain is given");
    if (i->o.autocast == MPR_DTYPE_NONE) i->o.autocast = MPR_FLOAT16;
    const char *given = i->o.autocast_profile;
    for (int k = 0; k < (given ? 1 : 2); k++) {
        if (given && !strcmp(given, "paint")) break;
        TRY(explain_torch(i, given ? given : torch[k], &found));
    }
    TRY(explain_painted(i, given, &found));
    if (found) return MPR_OK;
    mpri_err_set(i->err, MPR_E_USAGE, "the model has no node '%s'", mpri_err_name(i->o.explain));
    return mpri_err_advice(i->err, "name a node, =VALUE for what makes a value, or a path");
}
