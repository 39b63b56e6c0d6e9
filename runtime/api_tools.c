/* Body of mpr.h: tensors, run, convert, inspect, bench. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "convert/convert.h"
#include "convert/decisions.h"
#include "convert/mixed.h"
#include "convert/targets.h"
#include "passes/profile.h"
#include "runtime/train/bench.h"
#include "runtime/train/check_data.h"
#include "runtime/train/control.h"
#include "runtime/train/inspect.h"
#include "runtime/train/run.h"

/* ---- tensors ---- */

mpr_status mpr_tensors_create(mpr_context *ctx, mpr_tensors **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_tensors_create(ctx, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_tensors_load(mpr_context *ctx, const char *npz, mpr_tensors **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_api_pointer(npz, "npz", c.err);
    if (status == MPR_OK) status = mpri_tensors_load(ctx, npz, out, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_tensors_save(mpr_tensors *t, const char *npz)
{
    ApiCall c;
    if (!mpri_api_enter(&c, t, HANDLE_TENSORS)) return c.status;
    mpr_status status = mpri_api_pointer(npz, "npz", c.err);
    if (status == MPR_OK) status = mpri_tensors_save(t, npz, c.err);
    return mpri_api_leave(&c, status);
}

int mpr_tensors_count(const mpr_tensors *t)
{
    return mpri_handle_is(t, HANDLE_TENSORS) ? t->n : 0;
}

const char *mpr_tensors_name(const mpr_tensors *t, int index)
{
    return mpri_handle_is(t, HANDLE_TENSORS) && index >= 0 && index < t->n ? t->v[index].name
                                                                           : NULL;
}

mpr_status mpr_tensors_get(const mpr_tensors *t, const char *name, mpr_tensor *out)
{
    ApiCall c;
    const TensorEntry *e;
    if (!mpri_api_enter(&c, t, HANDLE_TENSORS)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK) status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = mpri_tensors_need(t, name, &e, c.err);
    if (status == MPR_OK) *out = e->t;
    return mpri_api_leave(&c, status);
}

mpr_status mpr_tensors_put(mpr_tensors *t, const char *name, const mpr_tensor *tensor)
{
    ApiCall c;
    if (!mpri_api_enter(&c, t, HANDLE_TENSORS)) return c.status;
    mpr_status status = mpri_api_pointer(name, "name", c.err);
    if (status == MPR_OK) status = mpri_api_pointer(tensor, "tensor", c.err);
    if (status == MPR_OK) status = mpri_tensors_put(t, name, tensor, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_tensors_destroy(mpr_tensors *t)
{
    if (mpri_handle_is(t, HANDLE_TENSORS)) mpri_tensors_destroy(t);
}

/* ---- run ---- */

mpr_status mpr_session_vjp(mpr_model *model, const mpr_tensors *inputs,
                           const mpr_tensors *cotangents, const mpr_run_options *options,
                           mpr_tensors **outputs, mpr_tensors **grads)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    mpr_status status = mpri_api_pointer(outputs, "outputs", c.err);
    if (status == MPR_OK) status = mpri_api_argument(inputs, HANDLE_TENSORS, c.err);
    if (status == MPR_OK && cotangents)
        status = mpri_api_argument(cotangents, HANDLE_TENSORS, c.err);
    if (status == MPR_OK)
        status = mpri_run_vjp(model, inputs, cotangents, options, outputs, grads, c.err);
    return mpri_api_leave(&c, status);
}

/* ---- convert ---- */

static bool is_infer(const mpr_convert_options *o)
{
    return o->mode && !strcmp(o->mode, "infer") && o->to != MPR_FLOAT32;
}

static mpr_status check_convert_mode(const mpr_convert_options *o, Err *err)
{
    if (!o->mode || !strcmp(o->mode, "infer") || !strcmp(o->mode, "train")) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "convert mode '%s'; allowed are train and infer",
                 mpri_err_name(o->mode));
    return mpri_err_advice(err, "leave it out for train");
}

static mpr_status check_convert_flags(const mpr_convert_options *o, Err *err)
{
    if (o->no_passes && (o->opset || o->inline_functions)) {
        mpri_err_set(err, MPR_E_USAGE, "passes none beside %s", o->opset ? "an opset" : "inline");
        return mpri_err_advice(err, "without passes the model is written as it was read");
    }
    if (o->drop_rounding && o->to != MPR_FLOAT32) {
        mpri_err_set(err, MPR_E_USAGE, "drop-rounding with the type %s", mpri_dtype_long(o->to));
        return mpri_err_advice(err, "it belongs to the way back: --to fp32");
    }
    return MPR_OK;
}

static mpr_status read_lists(const char *path, Arena *arena, char **text, Err *err)
{
    *text = NULL;
    if (!path) return MPR_OK;
    FILE *f = fopen(path, "rbe");
    if (!f) {
        mpri_err_set(err, MPR_E_IO, "%s: cannot be opened: %s", mpri_err_name(path),
                     strerror(errno));
        return mpri_err_advice(err, "pass the path of a list file");
    }
    enum { MOST = 1 << 20 };
    char *bytes = mpri_arena_alloc(arena, MOST + 1);
    size_t n = bytes ? fread(bytes, 1, MOST + 1, f) : 0;
    int cause = ferror(f) ? errno : 0;
    fclose(f);
    if (!bytes) return mpri_err_nomem(err, MOST);
    if (cause)
        return mpri_err_set(err, MPR_E_IO, "%s: cannot be read: %s", mpri_err_name(path),
                            strerror(cause));
    if (n > MOST)
        return mpri_err_set(err, MPR_E_USAGE, "%s: a list file has at most %d bytes",
                            mpri_err_name(path), MOST);
    bytes[n] = '\0';
    *text = bytes;
    return MPR_OK;
}

/* Does an option ask for another painting than the usual one? */
static const char *paints(const mpr_convert_options *o)
{
    if (o->rules && o->rules[0]) return "exclude, include and force-include";
    return o->lists                      ? "lists"
           : o->no_guard && o->no_guard[0] ? "no-guard"
           : o->calib                    ? "calib"
           : o->min_island > 1           ? "min-island"
           : o->max_reduction            ? "max-reduction"
           : o->auto_rtol > 0            ? "auto"
                                         : NULL;
}

/* Do decisions that are final stand against the options? */
static mpr_status check_final(const mpr_convert_options *o, const Profile *p, Err *err)
{
    const char *option = paints(o);
    if (!p->decisions && !p->decided) return MPR_OK;
    if (option) {
        mpri_err_set(err, MPR_E_USAGE, "%s: the decisions of '%s' are final", option,
                     mpri_err_name(p->name));
        return mpri_err_advice(err, "keep-fp32 may keep more nodes in float32; or paint anew");
    }
    if (o->to != MPR_FLOAT32) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "the way back to float32 takes no decisions");
    return mpri_err_advice(err, "leave the profile '%s' out", mpri_err_name(p->name));
}

/* Options that the way of deciding has no use for. */
static mpr_status check_policy(const mpr_convert_options *o, const Profile *p, Err *err)
{
    const char *option = paints(o);
    TRY(check_final(o, p, err));
    if (o->annotate && o->verify) {
        mpri_err_set(err, MPR_E_USAGE, "verify: an annotated model computes as it did");
        return mpri_err_advice(err, "verify without annotate, then annotate with the same options");
    }
    if (o->to == MPR_FLOAT32 && (o->annotate || o->annotations)) {
        mpri_err_set(err, MPR_E_USAGE, "%s: the way back to float32 makes no decisions that could "
                     "be kept", o->annotate ? "annotate" : "annotations");
        return mpri_err_advice(err, "leave it out; what a model carries is taken out of it");
    }
    if (mpri_profile_converts(p)) return MPR_OK;
    bool placed = is_infer(o) || o->to == MPR_FLOAT32 || o->no_passes;
    bool weights = o->weights_oor && strcmp(o->weights_oor, "keep-fp32") != 0;
    if (!option && weights) option = "weights-oor";
    if (!option && !placed && o->io && o->io[0]) option = "io";
    if (!option && !placed && o->external && strcmp(o->external, "auto")) option = "external";
    if (option) {
        mpri_err_set(err, MPR_E_USAGE, "%s: only with the profile paint, not with '%s'", option,
                     mpri_err_name(p->name));
        return mpri_err_advice(err, "leave the option out, or use the profile paint");
    }
    if (!o->opset || (!o->annotate && !p->decided)) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "opset: %s", o->annotate
                 ? "an annotated model stays as it is" : "the decisions are for the model as it is");
    return mpri_err_advice(err, "raise the model first: --opset with --exclude 'op:.*'");
}

/* 0 stands for the usual one (negative inside), negative for 0. */
static double tolerance(double x)
{
    return x == 0 ? -1 : x < 0 ? 0 : x;
}

static mpr_status check_numbers(const mpr_convert_options *o, MixedCheck *k, Err *err)
{
    bool low = o->accumulate && !strcmp(o->accumulate, "fp16");
    if (o->accumulate && !low && strcmp(o->accumulate, "fp32")) {
        mpri_err_set(err, MPR_E_USAGE, "accumulate '%s'; allowed are fp32 and fp16",
                     mpri_err_name(o->accumulate));
        return mpri_err_advice(err, "leave it out for fp32");
    }
    if (!(o->auto_rtol >= 0) || o->rtol != o->rtol || o->atol != o->atol)
        return mpri_err_set(err, MPR_E_USAGE, "a tolerance is not a number from 0 on");
    if (o->auto_rtol > 0 && !o->verify && !o->calib) {
        mpri_err_set(err, MPR_E_USAGE, "auto needs data to measure the outputs on");
        return mpri_err_advice(err, "add --verify DATA.npz or --calib DATA.npz");
    }
    if (o->auto_rtol > 0 && o->to == MPR_FLOAT32) {
        mpri_err_set(err, MPR_E_USAGE, "auto has nothing to raise on the way back to float32");
        return mpri_err_advice(err, "leave it out");
    }
    *k = (MixedCheck){.rtol = tolerance(o->rtol), .atol = tolerance(o->atol),
                      .search = o->auto_rtol, .low_sums = low, .per_node = o->per_node,
                      .table = o->verified};
    return MPR_OK;
}

static mpr_status convert_painted(mpr_model *model, const char *path, const mpr_convert_options *o,
                                  const Profile *policy, const ConvertUnits *units,
                                  const Device *device, Arena *arena, ConvertResult *r, Err *err)
{
    char *lists;
    TRY(read_lists(o->lists, arena, &lists, err));
    MixedOptions mo = {
        .to = o->to,
        .mode = o->mode,
        .paint = {.rules = o->rules, .policy = policy, .no_guard = o->no_guard,
                  .lists = lists, .lists_path = o->lists, .min_island = o->min_island,
                  .max_reduction = o->max_reduction, .weights_oor = o->weights_oor,
                  .margin = o->margin > 0 ? o->margin : 4},
        .decisions = policy->decisions,
        .units = units,
        .profile = units ? policy : NULL,
        .own_decisions = !o->autocast_profile && !paints(o),
        .annotate = o->annotate,
        .io = o->io,
        .external = o->external,
        .report = o->report,
        .annotations = o->annotations,
        .dot = o->dot,
        .svg = o->svg,
        .explain = o->explained && !units ? o->explain : NULL,
        .explained = o->explained,
        .echo = o->echo,
        .dry_run = o->dry_run,
        .no_passes = o->no_passes,
        .opset = o->opset,
        .inline_calls = o->inline_functions || units,
        .drop_rounding = o->drop_rounding,
        .strict = o->strict,
        .kernels = &device->kernels,
        .alloc = &model->ctx->alloc,
        .log = &model->ctx->log,
    };
    CheckData verify = {0}, calib = {0};
    TRY(check_numbers(o, &mo.check, err));
    mpr_status st = MPR_OK;
    if (o->calib) st = mpri_check_data_open(model, o->calib, device, "calibration", &calib, err);
    if (st == MPR_OK && o->verify)
        st = mpri_check_data_open(model, o->verify, device, "verification", &verify, err);
    if (calib.user) mo.check.calib = &calib;
    if (verify.user) mo.check.verify = &verify;
    if (st == MPR_OK) st = mpri_mixed_file(model->m, path, &mo, r, err);
    mpri_check_data_close(&verify);
    mpri_check_data_close(&calib);
    return st;
}

/* Decisions of a profile of torch that the model carries for this type. */
static mpr_status find_carried(const mpr_model *model, const mpr_convert_options *o, Arena *arena,
                               const char **text, Err *err)
{
    *text = NULL;
    if (o->autocast_profile || paints(o) || o->no_passes || !mpri_dtype_is_low(o->to))
        return MPR_OK;
    TRY(mpri_decisions_find(model->m->source, arena, text, err));
    DType theirs = *text ? mpri_decisions_type(*text) : MPR_DTYPE_NONE;
    if (*text && (!mpri_decisions_by_profile(*text) ||
                  (theirs != o->to && theirs != MPR_DTYPE_NONE)))
        *text = NULL;
    return MPR_OK;
}

static mpr_status load_policy(const mpr_model *model, const mpr_convert_options *o, Arena *arena,
                              Profile **out, Err *err)
{
    const char *carried;
    TRY(find_carried(model, o, arena, &carried, err));
    if (carried)
        return mpri_profile_carried("the decisions of the model", carried, o->keep_fp32, arena,
                                    out, err);
    return mpri_profile_load(o->autocast_profile ? o->autocast_profile : "paint", o->keep_fp32,
                             arena, out, err);
}

/* For inference weights are stored in 16 bits. That is the painter's work: it follows the profile. */
static mpr_status convert_decided(mpr_model *model, const char *path, const mpr_convert_options *o,
                                  const Profile *profile, const Device *device, Arena *arena,
                                  ConvertResult *r, Err *err)
{
    ControlSettler settler = {model, &device->kernels};
    ConvertUnits units = {.arena = arena};
    bool infer = is_infer(o) && !o->annotate;
    ConvertOptions co = {
        .settle = {mpri_control_settle, &settler},
        .to = o->to,
        .profile = profile,
        .ref = &device->kernels,
        .alloc = &model->ctx->alloc,
        .log = &model->ctx->log,
        .dry_run = o->dry_run,
        .strict = o->strict,
        .opset = o->opset,
        .units = infer ? &units : NULL,
        .explain = o->explained ? o->explain : NULL,
        .explained = o->explained,
        .report = o->report,
        .annotations = o->annotations,
        .annotate = o->annotate,
        .dot = o->dot,
        .svg = o->svg,
        .echo = o->echo,
    };
    CheckData verify = {0};
    TRY(check_numbers(o, &co.check, err));
    if (o->verify && !infer)
        TRY(mpri_check_data_open(model, o->verify, device, "verification", &verify, err));
    if (verify.user) co.check.verify = &verify;
    mpr_status st = mpri_convert_file(model->m, path, &co, r, err);
    mpri_check_data_close(&verify);
    if (st != MPR_OK && profile->decided)
        return mpri_err_where(err, "%s", mpri_err_name(profile->name));
    if (st != MPR_OK || !infer) return st;
    return convert_painted(model, path, o, profile, &units, device, arena, r, err);
}

static mpr_status check_files(const mpr_model *model, const char *path,
                              const mpr_convert_options *o, Err *err)
{
    const TargetFile written[] = {
        {"output", o->dry_run ? NULL : path}, {"report", o->report}, {"dot", o->dot},
        {"annotations", o->annotations}, {"svg", o->svg}, {NULL, NULL}};
    const TargetFile read[] = {{"lists", o->lists}, {"calib", o->calib}, {"verify", o->verify},
                               {"autocast-profile", o->autocast_profile}, {NULL, NULL}};
    return mpri_targets_check(model->m->source, written, read, err);
}

/* The profile that decides; where nothing is decided, it is the painter who parses and writes. */
static mpr_status convert_by(mpr_model *model, const char *path, const mpr_convert_options *o,
                             const Device *device, Arena *arena, ConvertResult *r, Err *err)
{
    Profile *profile;
    TRY(load_policy(model, o, arena, &profile, err));
    TRY(check_convert_mode(o, err));
    TRY(check_policy(o, profile, err));
    TRY(check_files(model, path, o, err));
    bool decides = o->to != MPR_FLOAT32 && !o->no_passes;
    if (decides && !mpri_profile_converts(profile))
        return convert_decided(model, path, o, profile, device, arena, r, err);
    if (!mpri_profile_converts(profile))
        TRY(mpri_profile_load("paint", NULL, arena, &profile, err));
    return convert_painted(model, path, o, profile, NULL, device, arena, r, err);
}

static mpr_status convert(mpr_model *model, const char *path, const mpr_convert_options *given,
                          mpr_convert_result *result, Err *err)
{
    mpr_convert_options o;
    TRY(mpri_take_options(&o, sizeof(o), given, "mpr_convert_options", err));
    if (!mpri_dtype_is_low(o.to) && o.to != MPR_FLOAT32) {
        mpri_err_set(err, MPR_E_USAGE, "convert to %s; allowed are float16, bfloat16 and float32",
                     mpri_dtype_long(o.to));
        return mpri_err_advice(err, "use --to fp16, --to bf16, or --to fp32 for the way back");
    }
    TRY(check_convert_flags(&o, err));
    if (!o.dry_run) TRY(mpri_api_pointer(path, "path", err));
    Device *device;
    Arena arena;
    ConvertResult r = {0};
    mpri_arena_init(&arena, &model->ctx->alloc, 0);
    mpr_status status = mpri_context_device(model->ctx, &device, err);
    if (status == MPR_OK) {
        status = convert_by(model, path, &o, device, &arena, &r, err);
        mpri_device_destroy(device);
    }
    mpri_arena_destroy(&arena);
    if (status != MPR_OK || !result) return status;
    size_t size = result->size && result->size < sizeof(*result) ? result->size : sizeof(*result);
    mpr_convert_result out = {.size = size,
                              .casts = r.casts,
                              .nodes_low = r.nodes_low,
                              .nodes_fp32 = r.nodes_fp32,
                              .changed = r.changed};
    memcpy(result, &out, size);
    return MPR_OK;
}

mpr_status mpr_convert(mpr_model *model, const char *path, const mpr_convert_options *options,
                       mpr_convert_result *result)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    return mpri_api_leave(&c, convert(model, path, options, result, c.err));
}

/* ---- inspect ---- */

mpr_status mpr_inspect(mpr_context *ctx, mpr_model *model, mpr_inspect_what what,
                       const mpr_inspect_options *options, char **text)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(text, "text", c.err);
    if (status == MPR_OK && model) status = mpri_api_argument(model, HANDLE_MODEL, c.err);
    if (status == MPR_OK) status = mpri_inspect(ctx, model, what, options, text, c.err);
    if (status != MPR_OK && mpri_handle_is(model, HANDLE_MODEL))
        model->h.err = *c.err; /* on both handles */
    return mpri_api_leave(&c, status);
}

mpr_status mpr_environment(mpr_context *ctx, char **json)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(json, "json", c.err);
    if (status == MPR_OK) status = mpri_environment(ctx, json, c.err);
    return mpri_api_leave(&c, status);
}

/* ---- bench ---- */

mpr_status mpr_bench_peak(mpr_context *ctx, double *flops_per_second)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(flops_per_second, "flops_per_second", c.err);
    if (status == MPR_OK) status = mpri_bench_peak(ctx, flops_per_second, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_bench_gemm(mpr_context *ctx, int64_t m, int64_t n, int64_t k, mpr_dtype dtype,
                          bool trans_a, bool trans_b, int repeat, double *seconds)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(seconds, "seconds", c.err);
    BenchGemm g = {.m = m,
                   .n = n,
                   .k = k,
                   .dtype = dtype,
                   .trans_a = trans_a,
                   .trans_b = trans_b,
                   .repeat = repeat};
    if (status == MPR_OK) status = mpri_bench_gemm(ctx, &g, seconds, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_bench_copy(mpr_context *ctx, int repeat, double *bytes_per_second)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(bytes_per_second, "bytes_per_second", c.err);
    if (status == MPR_OK) status = mpri_bench_copy(ctx, repeat, bytes_per_second, c.err);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_bench_op(mpr_context *ctx, int index, mpr_dtype dtype, int repeat, mpr_op_rate *rate)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_op_rate result = {0};
    mpr_status status = mpri_api_pointer(rate, "rate", c.err);
    if (status == MPR_OK) status = mpri_take_options(&result, sizeof result, rate, "mpr_op_rate", c.err);
    if (status == MPR_OK) status = mpri_bench_op(ctx, index, dtype, repeat, &result, c.err);
    if (status == MPR_OK) {
        size_t size = rate->size < sizeof result ? rate->size : sizeof result;
        result.size = rate->size;
        memcpy(rate, &result, size);
    }
    return mpri_api_leave(&c, status);
}
