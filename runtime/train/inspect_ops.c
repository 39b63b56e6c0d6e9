/* The table of operators: what the program knows, as text, JSON or a page in Markdown.
 *
 * Everything follows from the rows: types are not listed anywhere but asked of the shape rule, one
 * by one, with inputs of unknown rank. */
#include <string.h>

#include "importer/importer.h"
#include "runtime/train/inspect.h"
#include "runtime/train/json.h"

static const char *gradient_text(const OpDef *op)
{
    switch (op->grad_state) {
    case GRAD_FUNCTION: return "yes";
    case GRAD_ZERO: return "zero";
    default: return "no";
    }
}

static const char *class_text(CastClass c)
{
    switch (c) {
    case CAST_LOW: return "low";
    case CAST_FP32: return "f32";
    case CAST_WIDEST: return "widest";
    case CAST_KEEP: return "keep";
    case CAST_MOVE: return "move";
    case CAST_FIXED: return "fixed";
    case CAST_FORGOTTEN: break;
    }
    return "";
}

/* ---- types ---- */

/* The input that carries the data: the first that a gradient reaches, else the first. */
static int data_input(const OpDef *op)
{
    for (int k = 0; k < op->min_in; k++)
        if (!mpri_op_mask(op->nondiff_in, k)) return k;
    return 0;
}

static mpr_status takes(const OpDef *op, DType t, const Alloc *alloc, Err *err, bool *yes)
{
    static const Shape unknown = {.rank = MPRI_RANK_UNKNOWN};
    Arena arena;
    Value *in[32] = {NULL};
    Err refusal = {0};
    mpri_arena_init(&arena, alloc, 0);
    Intern *names = mpri_intern_create(&arena);
    Graph *g = names ? mpri_graph_create(&arena, names, mpri_op_table()) : NULL;
    int n = op->min_in < 32 ? op->min_in : 32;
    bool made = g != NULL;
    for (int k = 0; made && k < n; k++) {
        in[k] = mpri_value_input(g, NULL, k == data_input(op) ? t : MPR_DTYPE_NONE, &unknown);
        made = in[k] != NULL;
    }
    Node *node = made ? mpri_node_create(g, NULL, op, "", NULL, n, in, op->min_out) : NULL;
    *yes = node && mpri_infer_node(g, node, &refusal) != MPR_E_TYPE;
    mpri_arena_destroy(&arena);
    return node ? MPR_OK : mpri_err_nomem(err, 0);
}

/* "float", "int", or the names of what is taken. */
static mpr_status put_types(Inspect *i, const OpDef *op, Text *out)
{
    static const DType types[] = {MPR_FLOAT16, MPR_BFLOAT16, MPR_FLOAT32, MPR_FLOAT64, MPR_INT8,
                                  MPR_INT16,   MPR_INT32,    MPR_INT64,   MPR_UINT8,   MPR_UINT16,
                                  MPR_UINT32,  MPR_UINT64,   MPR_BOOL};
    static const struct {
        const char *name;
        int from, to;
    } groups[] = {{"float", 0, 4}, {"int", 4, 12}};
    bool yes[13];
    const char *space = "";
    if (op->min_in == 0) return MPR_OK;
    for (int k = 0; k < 13; k++) TRY(takes(op, types[k], &i->ctx->alloc, i->err, &yes[k]));
    for (int g = 0; g < 2; g++) {
        int n = 0;
        for (int k = groups[g].from; k < groups[g].to; k++) n += yes[k];
        bool all = n == groups[g].to - groups[g].from;
        if (all) {
            mpri_text_add(out, "%s%s", space, groups[g].name);
            space = " ";
        }
        for (int k = groups[g].from; !all && k < groups[g].to; k++)
            if (yes[k]) {
                mpri_text_add(out, "%s%s", space, mpri_dtype_name(types[k]));
                space = " ";
            }
    }
    if (yes[12]) mpri_text_add(out, "%sbool", space);
    return MPR_OK;
}

/* NULL in a build without CUDA. */
extern const KernelTable *mpri_cuda_tables(int *n) __attribute__((weak));

static void put_tables(const KernelTable *tables, int n_tables, const OpDef *op, size_t start, Text *out)
{
    for (int t = 0; t < n_tables; t++)
        for (int k = 0; k < tables[t].n; k++) {
            const KernelRow *row = &tables[t].rows[k];
            size_t n = strcspn(row->name, ".");
            char device[32];
            if (row->op != op->id || n + 2 > sizeof device) continue;
            memcpy(device, row->name, n);
            memcpy(device + n, " ", 2);
            if (!out->text || !strstr(out->text + start, device)) mpri_text_put(out, device);
        }
}

/* "cuda cpu ref": which devices have kernels, whatever the device at hand. */
static void put_kernels(const KernelSet *set, const OpDef *op, Text *out)
{
    size_t start = out->len;
    int n = 0;
    const KernelTable *cuda = mpri_cuda_tables ? mpri_cuda_tables(&n) : NULL;
    if (op->flags & OPF_VIEW) mpri_text_put(out, "view ");
    put_tables(cuda, n, op, start, out);
    put_tables(set->tables, set->n, op, start, out);
    if (out->len > start) out->text[--out->len] = '\0';
}

/* ---- rows ---- */

static void put_json(Inspect *i, const char *name, const OpDef *op, int n, const char *types,
                     const char *kernels, const char *note)
{
    Text *t = &i->out;
    bool runs = !(op->flags & OPF_OPAQUE);
    mpri_text_put(t, "{\"op\": ");
    mpri_json_string(t, name);
    if (n) mpri_text_add(t, ", \"count\": %d", n);
    else
        mpri_text_add(t,
                      ", \"domain\": \"%s\", \"since\": %d, \"family\": \"%s\", \"types\": \"%s\", "
                      "\"torch-cuda\": \"%s\", \"torch-cpu\": \"%s\", \"kernels\": \"%s\"",
                      op->domain[0] ? op->domain : "ai.onnx", op->since, op->family, types,
                      class_text(op->cast_cuda), class_text(op->cast_cpu), kernels);
    mpri_text_add(t, ", \"runs\": %s, \"gradient\": \"%s\", \"note\": ", runs ? "true" : "false",
                  runs ? gradient_text(op) : "no");
    mpri_json_string(t, note);
    mpri_text_put(t, "}");
}

/* n: how often the model uses it; 0: a row of the program's own table. */
static mpr_status put_op(Inspect *i, const KernelSet *set, const char *name, const OpDef *op, int n)
{
    Text types, kernels, *t = &i->out;
    bool runs = !(op->flags & OPF_OPAQUE);
    const char *note = !runs ? "unknown operator: it can be kept by mpr-convert, not run"
                       : op->grad_reason ? op->grad_reason
                       : op->help        ? op->help
                                         : "";
    const char *grad = runs ? gradient_text(op) : "no";
    mpr_status status = MPR_OK;
    mpri_text_init(&types, &i->ctx->alloc);
    mpri_text_init(&kernels, &i->ctx->alloc);
    if (!n && (i->o.json || i->o.markdown)) {
        put_kernels(set, op, &kernels);
        status = put_types(i, op, &types);
    }
    const char *of = types.text ? types.text : "", *by = kernels.text ? kernels.text : "";
    if (i->o.json)
        put_json(i, name, op, n, of, by, note);
    else if (i->o.markdown && !n)
        mpri_text_add(t, "| %s | %s | %d | %s | %s | %s | %s | %s | %s |\n", op->name,
                      op->domain[0] ? op->domain : "ai.onnx", op->since, of, grad,
                      class_text(op->cast_cuda), class_text(op->cast_cpu), by,
                      op->grad_reason ? op->grad_reason : "");
    else if (n)
        mpri_text_add(t, "%6d  %-28s %-5s %-9s %s\n", n, mpri_err_name(name), runs ? "yes" : "no",
                      grad, note);
    else
        mpri_text_add(t, "%-28s %-5s %-9s %s\n", mpri_err_name(name), "yes", grad, note);
    mpri_text_free(&types);
    mpri_text_free(&kernels);
    return status;
}

/* An operator that importing takes apart: what it becomes has rows of its own. */
static void put_expanded(Inspect *i, const ExpandedOp *op)
{
    const char *grad = op->gradient ? "yes" : "zero";
    const char *domain = op->domain[0] ? op->domain : "ai.onnx";
    Text *t = &i->out;
    if (i->o.json)
        mpri_text_add(t,
                      ",\n {\"op\": \"%s\", \"domain\": \"%s\", \"expanded\": true, "
                      "\"runs\": true, \"gradient\": \"%s\", \"note\": \"%s\"}",
                      op->name, domain, grad, op->note);
    else if (i->o.markdown)
        mpri_text_add(t, "| %s | %s | | | %s | | | | %s |\n", op->name, domain, grad, op->note);
    else
        mpri_text_add(t, "%s%s%-*s %-5s %-9s %s\n", op->domain, op->domain[0] ? "." : "",
                      28 - (int)(op->domain[0] ? strlen(op->domain) + 1 : 0), op->name, "yes", grad,
                      op->note);
}

static mpr_status program_table(Inspect *i, const KernelSet *set)
{
    const OpTable *table = mpri_op_table();
    Text *t = &i->out;
    int total = 0, with = 0, zero = 0;
    if (i->o.markdown && !i->o.json)
        mpri_text_put(t,
                      "| operator | domain | since | types | gradient | torch-cuda | torch-cpu "
                      "| kernels | why |\n|---|---|---|---|---|---|---|---|---|\n");
    else
        mpri_text_put(t, i->o.json ? "[" : "operator                     runs  gradient  note\n");
    for (int k = 0; k < table->count; k++) {
        const OpDef *op = table->defs[k];
        if (!op || (op->flags & (OPF_INTERNAL | OPF_OPAQUE))) continue;
        if (i->o.json && total) mpri_text_put(t, ",\n ");
        TRY(put_op(i, set, op->name, op, 0));
        total++;
        with += op->grad_state == GRAD_FUNCTION;
        zero += op->grad_state == GRAD_ZERO;
    }
    int foreign = 0;
    ExpandedOp expanded;
    for (int k = 0; mpri_import_expanded(k, &expanded); k++) {
        put_expanded(i, &expanded);
        if (expanded.foreign) {
            foreign++;
            continue;
        }
        total++;
        with += expanded.gradient;
        zero += !expanded.gradient;
    }
    if (i->o.json) mpri_text_put(t, "]\n");
    else
        mpri_text_add(t,
                      "%s%d operators of onnxruntime are taken apart.\n"
                      "%d operators of ONNX: %d with a gradient, %d whose gradient is zero, "
                      "%d without\n",
                      i->o.markdown ? "\n" : "", foreign, total, with, zero, total - with - zero);
    return MPR_OK;
}

static mpr_status model_table(Inspect *i)
{
    Arena arena;
    OpCount *ops;
    int n;
    Text *t = &i->out;
    mpri_text_put(t, i->o.json ? "["
                               : " count  operator                     runs  gradient  note\n");
    mpri_arena_init(&arena, &i->ctx->alloc, 0);
    mpr_status status = mpri_inspect_count_ops(i, &arena, &ops, &n);
    for (int k = 0; status == MPR_OK && k < n; k++) {
        if (i->o.json && k) mpri_text_put(t, ",\n ");
        status = put_op(i, NULL, ops[k].name, ops[k].op, ops[k].n);
    }
    mpri_arena_destroy(&arena);
    if (i->o.json) mpri_text_put(t, "]\n");
    return status;
}

mpr_status mpri_inspect_ops(Inspect *i)
{
    Device *device;
    if (i->model) return model_table(i);
    TRY(mpri_context_device(i->ctx, &device, i->err));
    mpr_status status = program_table(i, &device->kernels);
    mpri_device_destroy(device);
    return status;
}
