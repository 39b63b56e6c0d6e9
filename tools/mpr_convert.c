/* mpr-convert: write a mixed-precision copy of an ONNX file. */
#include "tools/common/cli.h"

#include <stdlib.h>
#include <string.h>

static const CliRow rows[] = {
    {"output", 'o', NULL, CLI_STRING, NULL, NULL, "OUT.onnx", "where the converted file goes",
     "conversion"},
    {"to", 0, NULL, CLI_STRING, "fp16", "fp16|bf16|fp32|f16|float16|bfloat16|f32|float32", NULL,
     "the 16-bit type; fp32 is the way back", "conversion"},
    {"mode", 0, NULL, CLI_STRING, NULL, "train|infer", NULL,
     "train: FP32 weights stay, casts are inserted; infer: weights become 16-bit (train when the "
     "model has float weights)", "conversion"},
    {"autocast-profile", 0, NULL, CLI_STRING, NULL, NULL, "NAME|FILE",
     "paint; operator by operator: torch-cuda, torch-cpu; a file of rules on one of them, or of "
     "--annotations. Means the same in mpr-train (the decisions of an annotated model, else paint)",
     "conversion"},
    {"keep-fp32", 0, NULL, CLI_LIST, NULL, NULL, "OP|/GLOB",
     "operators or nodes that stay in float32", "conversion"},
    {"lists", 0, NULL, CLI_STRING, NULL, NULL, "FILE",
     "YAML or JSON that amends the lists allow, infer, deny, clear: \"allow: [+Softmax]\" moves",
     "conversion"},
    {"exclude", 0, NULL, CLI_LIST, NULL, NULL, "RULE",
     "stays in float32; RULE is op:RE, node:RE, out:RE, domain:RE or scope:RE", "conversion"},
    {"include", 0, NULL, CLI_LIST, NULL, NULL, "RULE",
     "goes into 16 bits unless a guard objects; of several rules the last match wins",
     "conversion"},
    {"force-include", 0, NULL, CLI_LIST, NULL, NULL, "RULE",
     "goes into 16 bits even against a guard", "conversion"},
    {"no-guard", 0, NULL, CLI_LIST, NULL, NULL, "NAME",
     "switch a guard off: eps, mask, variance, reduction, loss, range-act", "conversion"},
    {"io", 0, NULL, CLI_LIST, NULL, NULL, "NAME=TYPE",
     "type of a graph input or output: keep, fp16, bf16, fp32; NAME all sets the rest",
     "conversion"},
    {"weights-oor", 0, NULL, CLI_STRING, "keep-fp32", "keep-fp32|saturate|error", NULL,
     "weights that do not fit", "conversion"},
    {"min-island", 0, NULL, CLI_INT, "1", NULL, "N",
     "least number of allow-list nodes in a low region", "conversion"},
    {"max-reduction", 0, NULL, CLI_INT, "0", NULL, "K",
     "longest MatMul or Conv reduction in low precision (0: any)", "conversion"},
    {"calib", 0, NULL, CLI_STRING, NULL, NULL, "DATA.npz",
     "graph inputs, from which the guards take the ranges of activations", "conversion"},
    {"margin", 0, NULL, CLI_FLOAT, "4", NULL, "X", "room above the largest value seen",
     "conversion"},
    {"verify", 0, NULL, CLI_STRING, NULL, NULL, "DATA.npz",
     "graph inputs: run the result next to the model in float32 before it is written; exit 3 above "
     "the tolerance", "check"},
    {"rtol", 0, NULL, CLI_FLOAT, NULL, NULL, "X",
     "relative tolerance of the outputs (0.01, bf16 0.08)", "check"},
    {"atol", 0, NULL, CLI_FLOAT, NULL, NULL, "X", "absolute tolerance (a tenth of rtol times the largest value of the output)", "check"},
    {"per-node", 0, NULL, CLI_FLAG, NULL, NULL, NULL,
     "a line for each node: its error by itself, its error in the run, where Inf and NaN are born",
     "check"},
    {"accumulate", 0, NULL, CLI_STRING, "fp32", "fp32|fp16", NULL,
     "fp16: products, convolutions and reductions sum in the 16-bit type", "check"},
    {"auto", 0, NULL, CLI_FLOAT, NULL, NULL, "RTOL",
     "keep nodes in float32, worst first, until the outputs agree within RTOL on the data of "
     "--verify, else of --calib", "check"},
    {"external", 0, NULL, CLI_STRING, "auto", "auto|never|always", NULL,
     "where tensor data go", "file"},
    {"passes", 0, NULL, CLI_STRING, "all", "all|none", NULL, "none: parse and write again",
     "file"},
    {"annotate", 0, NULL, CLI_FLAG, NULL, NULL, NULL,
     "the decisions go into the metadata, the graph stays as it is", "file"},
    {"opset", 0, NULL, CLI_INT, NULL, NULL, "N",
     "raise the model to this opset of ai.onnx first; nodes without a counterpart are refused",
     "file"},
    {"inline", 0, NULL, CLI_FLAG, NULL, NULL, NULL,
     "take calls of the model's own functions apart first, so that their nodes are decided one by "
     "one", "file"},
    {"drop-rounding", 0, NULL, CLI_FLAG, NULL, NULL, NULL,
     "with --to fp32: the model's own Casts to 16 bits go, too", "file"},
    {"strict", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "a rule that matches nothing is an error",
     "file"},
    {"dry-run", 0, NULL, CLI_FLAG, NULL, NULL, NULL,
     "write nothing but reports; exit 4 when the file would change", "file"},
    {"explain", 0, NULL, CLI_STRING, NULL, NULL, "NODE",
     "print the reasons of one node: its name, =VALUE, or its path", "insight"},
    {"report", 0, NULL, CLI_STRING, NULL, NULL, "F.json", "every decision with its reasons",
     "insight"},
    {"annotations", 0, NULL, CLI_STRING, NULL, NULL, "F.json",
     "the decisions alone; --autocast-profile F.json reads them", "insight"},
    {"dot", 0, NULL, CLI_STRING, NULL, NULL, "F.dot", "picture coloured by precision", "insight"},
    {"svg", 0, NULL, CLI_STRING, NULL, NULL, "F.svg", "the same as an image", "insight"},
    {NULL, 0, NULL, CLI_FLAG, NULL, NULL, NULL, NULL, NULL},
};

static mpr_dtype target(const char *to)
{
    return *to == 'b' ? MPR_BFLOAT16 : strstr(to, "16") ? MPR_FLOAT16 : MPR_FLOAT32;
}

/* ---- rules, in the order of the command line ---- */

typedef struct Rule {
    int order;
    char *text;
} Rule;

typedef struct Texts {
    Rule rules[512];
    const char *list[513];
    const char *echo[256];
    int n, n_echo;
} Texts;

static int by_order(const void *a, const void *b)
{
    return ((const Rule *)a)->order - ((const Rule *)b)->order;
}

/* False when there are too many, or no memory. */
static bool collect_rules(const Cli *cli, Texts *t)
{
    static const char *const flags[] = {"exclude", "include", "force-include"};
    for (int i = 0; i < 3; i++) {
        const CliValue *v = cli_value(cli, flags[i]);
        for (int k = 0; k < v->n_list; k++) {
            if (t->n == 512) return false;
            size_t size = strlen(flags[i]) + strlen(v->list[k]) + 2;
            char *text = malloc(size);
            if (!text) return false;
            snprintf(text, size, "%s %s", flags[i], v->list[k]);
            t->rules[t->n++] = (Rule){v->order[k], text};
        }
    }
    qsort(t->rules, (size_t)t->n, sizeof *t->rules, by_order);
    for (int i = 0; i < t->n; i++) t->list[i] = t->rules[i].text;
    return true;
}

static void collect_echo(const Cli *cli, Texts *t)
{
    for (int i = 0; rows[i].name && t->n_echo < 250; i++) {
        bool file = !strcmp(rows[i].group, "insight") || !strcmp(rows[i].name, "output") ||
                    !strcmp(rows[i].name, "dry-run") || !strcmp(rows[i].name, "calib") ||
                    !strcmp(rows[i].name, "verify") || !strcmp(rows[i].name, "per-node") ||
                    !strcmp(rows[i].name, "lists");
        bool told = cli_is_set(cli, rows[i].name) || !strcmp(rows[i].name, "to");
        const CliValue *v = cli_value(cli, rows[i].name);
        for (int k = 0; rows[i].kind == CLI_LIST && k < v->n_list && t->n_echo < 250; k++) {
            t->echo[t->n_echo++] = rows[i].name;
            t->echo[t->n_echo++] = v->list[k];
        }
        if (file || rows[i].kind == CLI_LIST || !told) continue;
        t->echo[t->n_echo++] = rows[i].name;
        t->echo[t->n_echo++] = cli_text(cli, rows[i].name);
    }
}

static void free_rules(Texts *t)
{
    for (int i = 0; i < t->n; i++) free(t->rules[i].text);
}

/* ---- one conversion ---- */

static void report(const Cli *cli, const char *file, const mpr_convert_result *r)
{
    long long casts = r->casts, low = r->nodes_low, fp32 = r->nodes_fp32;
    if (cli->json)
        printf("{\"casts\":%lld,\"nodes_low\":%lld,\"nodes_fp32\":%lld,\"changed\":%s}\n", casts,
               low, fp32, r->changed ? "true" : "false");
    else if (cli->quiet) return;
    else if (target(cli_text(cli, "to")) == MPR_FLOAT32)
        printf("%s: %lld casts of an earlier conversion taken out\n", file, casts);
    else
        printf("%s: %lld casts, %lld nodes in %s, %lld in float32%s\n", file, casts, low,
               cli_text(cli, "to"), fp32, r->changed ? "" : " (nothing to change)");
}

/* As the library takes it: 0 is the usual one, negative none. */
static double tolerance(const Cli *cli, const char *name)
{
    double x = cli_is_set(cli, name) ? cli_float(cli, name) : 0;
    return cli_is_set(cli, name) && x == 0 ? -1 : x;
}

static mpr_convert_options options(const Cli *cli, const Texts *t, char **explained,
                                   char **verified)
{
    return (mpr_convert_options){
        .size = sizeof(mpr_convert_options),
        .to = target(cli_text(cli, "to")),
        .mode = cli_text(cli, "mode"),
        .autocast_profile = cli_text(cli, "autocast-profile"),
        .keep_fp32 = cli_list(cli, "keep-fp32"),
        .dry_run = cli_flag(cli, "dry-run"),
        .rules = t->list,
        .lists = cli_text(cli, "lists"),
        .io = cli_list(cli, "io"),
        .no_guard = cli_list(cli, "no-guard"),
        .weights_oor = cli_text(cli, "weights-oor"),
        .min_island = (int)cli_int(cli, "min-island"),
        .max_reduction = cli_int(cli, "max-reduction"),
        .external = cli_text(cli, "external"),
        .strict = cli_flag(cli, "strict"),
        .opset = cli_is_set(cli, "opset") ? cli_int(cli, "opset") : 0,
        .inline_functions = cli_flag(cli, "inline"),
        .drop_rounding = cli_flag(cli, "drop-rounding"),
        .no_passes = !strcmp(cli_text(cli, "passes"), "none"),
        .calib = cli_text(cli, "calib"),
        .margin = cli_float(cli, "margin"),
        .report = cli_text(cli, "report"),
        .annotations = cli_text(cli, "annotations"),
        .dot = cli_text(cli, "dot"),
        .svg = cli_text(cli, "svg"),
        .explain = cli_text(cli, "explain"),
        .explained = explained,
        .echo = t->echo,
        .annotate = cli_flag(cli, "annotate"),
        .verify = cli_text(cli, "verify"),
        .rtol = tolerance(cli, "rtol"),
        .atol = tolerance(cli, "atol"),
        .accumulate = cli_text(cli, "accumulate"),
        .auto_rtol = cli_is_set(cli, "auto") ? cli_float(cli, "auto") : 0,
        .per_node = cli_flag(cli, "per-node"),
        .verified = verified,
    };
}

static int convert(Cli *cli, const Texts *t)
{
    mpr_model *model = NULL;
    char *explained = NULL, *verified = NULL;
    int code = 0;
    const char *out = cli_text(cli, "output");
    mpr_convert_result r = {.size = sizeof r};
    mpr_convert_options o = options(cli, t, &explained, &verified);
    if (mpr_model_load(cli->ctx, cli->args[0], NULL, &model) != MPR_OK)
        return cli_fail(cli, cli->ctx);
    mpr_status status = mpr_convert(model, out, &o, &r);
    if (verified && !cli->quiet && !cli->json) fputs(verified, stdout);
    fflush(stdout);
    if (status != MPR_OK) {
        code = cli_fail(cli, model);
    } else {
        if (explained) fputs(explained, stdout);
        else report(cli, o.dry_run ? cli->args[0] : out, &r);
        code = o.dry_run && r.changed ? 4 : 0;
    }
    mpr_free_text(cli->ctx, explained);
    mpr_free_text(cli->ctx, verified);
    mpr_model_destroy(model);
    return code;
}

/* What contradicts itself among the options of the check. */
static int check_options(Cli *cli)
{
    static const char *const tolerances[] = {"rtol", "atol", "auto"};
    static const char *const need[] = {"rtol", "atol", "per-node", "accumulate"};
    bool data = cli_text(cli, "verify") || (cli_is_set(cli, "auto") && cli_text(cli, "calib"));
    for (int i = 0; i < 3; i++)
        if (cli_is_set(cli, tolerances[i]) && !(cli_float(cli, tolerances[i]) >= 0))
            return cli_usage(cli, "give a number from 0 on", "--%s is %g", tolerances[i],
                             cli_float(cli, tolerances[i]));
    if (cli_is_set(cli, "auto") && cli_float(cli, "auto") == 0)
        return cli_usage(cli, "give a relative tolerance such as 0.01", "--auto is 0");
    if (cli_is_set(cli, "auto") && cli_is_set(cli, "rtol"))
        return cli_usage(cli, "drop --rtol", "--auto says the relative tolerance itself");
    for (int i = 0; i < 4; i++)
        if (cli_is_set(cli, need[i]) && !data)
            return cli_usage(cli, "add --verify DATA.npz", "--%s has nothing to check", need[i]);
    return 0;
}

static int run(Cli *cli)
{
    static const char *const files[] = {"report", "annotations", "dot", "svg"};
    static Texts texts;
    if (cli->n_args != 1)
        return cli_usage(cli, "mpr-convert IN.onnx -o OUT.onnx", "expected one IN.onnx, found %d",
                         cli->n_args);
    if (!cli_text(cli, "output") && !cli_flag(cli, "dry-run"))
        return cli_usage(cli, "add -o OUT.onnx, or --dry-run", "--output is missing");
    for (int i = 0; i < 4; i++) {
        int code = cli_keep_input(cli, files[i], cli_text(cli, files[i]), cli->args[0]);
        if (code) return code;
    }
    int code = check_options(cli);
    if (code) return code;
    code = collect_rules(cli, &texts) ? 0 : cli_usage(cli, "join them with |",
                                                          "more than 512 rules");
    collect_echo(cli, &texts);
    if (!code) code = convert(cli, &texts);
    free_rules(&texts);
    return code;
}

int main(int argc, char **argv)
{
    Cli cli = {.tool = "mpr-convert",
               .usage = "IN.onnx -o OUT.onnx [options]",
               .about = "write a mixed-precision copy of an ONNX file",
               .examples = "  mpr-convert model.onnx -o model-fp16.onnx --to fp16 --mode infer\n"
                           "  mpr-convert model.onnx -o out.onnx --verify batch.npz --rtol 0.01 --per-node\n"
                           "  mpr-convert model.onnx --dry-run --exclude 'op:Softmax|Add' --explain "
                           "/layer0/MatMul\n"};
    bool done;
    int code = cli_parse(&cli, rows, argc, argv, &done);
    if (!code && !done) code = cli_context(&cli);
    if (!code && !done) code = cli_finish(&cli, run(&cli));
    cli_free(&cli);
    return code;
}
