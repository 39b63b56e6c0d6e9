/* Body of mpr.h: errors, context, model. Every function checks its arguments, enters, makes one
 * call inward and leaves. */
#include <string.h>

#include "runtime/train/context.h"

mpr_error mpr_last_error(const void *handle)
{
    for (int kind = 0; kind < HANDLE_KINDS; kind++) {
        if (!mpri_handle_is(handle, (HandleKind)kind)) continue;
        const Err *e = &((const Handle *)handle)->err;
        return (mpr_error){
            .code = e->code, .message = e->message, .where = e->where, .advice = e->advice};
    }
    return (mpr_error){
        .code = MPR_E_USAGE,
        .message = handle ? "this is not a live handle of the library" : "the handle is NULL",
        .where = "",
        .advice = "read the error from the handle that the failing function took first"};
}

mpr_status mpr_context_create(const mpr_context_options *options, mpr_context **out)
{
    if (!out) return MPR_E_USAGE;
    FpMode fp = mpri_fpmode_enter();
    mpr_status status = mpri_context_create(options, out);
    mpri_fpmode_leave(fp);
    return status;
}

void mpr_context_destroy(mpr_context *ctx)
{
    if (mpri_handle_is(ctx, HANDLE_CONTEXT)) mpri_context_destroy(ctx);
}

void mpr_free_text(mpr_context *ctx, char *text)
{
    if (mpri_handle_is(ctx, HANDLE_CONTEXT)) mpri_free(&ctx->alloc, text);
}

/* ---- model ---- */

mpr_status mpr_model_load(mpr_context *ctx, const char *path, const mpr_model_options *options,
                          mpr_model **out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, ctx, HANDLE_CONTEXT)) return c.status;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) {
        *out = NULL;
        status = mpri_api_pointer(path, "path", c.err);
    }
    if (status == MPR_OK) status = mpri_model_load(ctx, path, options, out, c.err);
    return mpri_api_leave(&c, status);
}

void mpr_model_destroy(mpr_model *model)
{
    if (mpri_handle_is(model, HANDLE_MODEL)) mpri_model_destroy(model);
}

static const Graph *graph_of(const mpr_model *model)
{
    return mpri_handle_is(model, HANDLE_MODEL) ? model->m->graph : NULL;
}

static mpr_status check_index(int index, int count, const char *what, Err *err)
{
    if (index >= 0 && index < count) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "%s %d of %d", what, index, count);
    return mpri_err_advice(err, "count from 0");
}

int mpr_model_input_count(const mpr_model *model)
{
    const Graph *g = graph_of(model);
    return g ? g->n_inputs : 0;
}

int mpr_model_output_count(const mpr_model *model)
{
    const Graph *g = graph_of(model);
    return g ? g->n_outputs : 0;
}

int mpr_model_parameter_count(const mpr_model *model)
{
    const Graph *g = graph_of(model);
    return g ? g->n_params : 0;
}

mpr_status mpr_model_input(const mpr_model *model, int index, mpr_value_info *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    const Graph *g = model->m->graph;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = check_index(index, g->n_inputs, "input", c.err);
    if (status == MPR_OK)
        mpri_value_describe(g, g->inputs[index].value->name, g->inputs[index].value, out);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_model_output(const mpr_model *model, int index, mpr_value_info *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    const Graph *g = model->m->graph;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = check_index(index, g->n_outputs, "output", c.err);
    if (status == MPR_OK)
        mpri_value_describe(g, g->outputs[index].name, g->outputs[index].value, out);
    return mpri_api_leave(&c, status);
}

mpr_status mpr_model_parameter(const mpr_model *model, int index, mpr_parameter_info *out)
{
    ApiCall c;
    if (!mpri_api_enter(&c, model, HANDLE_MODEL)) return c.status;
    const Graph *g = model->m->graph;
    mpr_status status = mpri_api_pointer(out, "out", c.err);
    if (status == MPR_OK) status = check_index(index, g->n_params, "parameter", c.err);
    if (status == MPR_OK) mpri_param_describe(&g->params[index], out);
    return mpri_api_leave(&c, status);
}
