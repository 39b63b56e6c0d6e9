/* mpr-inspect: what is in a model, what can be trained and why, how it would run. */
#include "tools/common/cli.h"

#include <string.h>

static const CliRow rows[] = {
    {"params", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "parameters: name, shape, type, trained or why not", "what"},
    {"ops", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "operators of the file and their gradients; without a file: the program's table", "what"},
    {"markdown", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "--ops without a file: as a page, with types, autocast classes and kernels", "what"},
    {"precision", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "type of every node with its reason, bytes and FLOPs (with --fp16 or --bf16, and --bind)", "what"},
    {"explain", 0, NULL, CLI_STRING, NULL, NULL, "NODE", "why a node (name, =VALUE or path) has its type; under every profile when none is given", "what"},
    {"plan", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "kernel of every step and why no faster one, buffers and bytes", "what"},
    {"memory", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "bytes per class", "what"},
    {"env", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "facts of this machine", "what"},
    {"bind", 0, NULL, CLI_LIST, NULL, NULL, "NAME=N", "sizes of symbolic dims; --memory takes lists: batch=1,8,64", "how"},
    {"forward-only", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "plan the forward pass only", "how"},
    {"fp16", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "autocast to float16", "how"},
    {"bf16", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "autocast to bfloat16", "how"},
    {"autocast-profile", 0, NULL, CLI_STRING, "torch-cuda", NULL, "NAME|FILE", "torch-cuda, torch-cpu, paint (as mpr-convert decides), a file of rules on one of them, or of mpr-convert --annotations", "how"},
    {"keep-fp32", 0, NULL, CLI_LIST, NULL, NULL, "OP|/GLOB", "operators or nodes that stay in float32", "how"},
    {"tie", 0, NULL, CLI_LIST, NULL, NULL, "A=B", "treat two parameters as one", "how"},
    {"untie", 0, NULL, CLI_LIST, NULL, NULL, "NAME", "treat a tied parameter as its own", "how"},
    {"loss", 0, NULL, CLI_STRING, "auto", NULL, "KIND", "objective that is planned", "how"},
    {"logits", 0, NULL, CLI_STRING, NULL, NULL, "NAME", "output that the loss reads", "how"},
    {NULL, 0, NULL, CLI_FLAG, NULL, NULL, NULL, NULL, NULL},
};

static int show(Cli *cli, mpr_model *model, mpr_inspect_what what, const mpr_inspect_options *o)
{
    char *text = NULL;
    if (mpr_inspect(cli->ctx, model, what, o, &text) != MPR_OK) return cli_fail(cli, model ? (void *)model : (void *)cli->ctx);
    fputs(text, stdout);
    mpr_free_text(cli->ctx, text);
    return 0;
}

static int run(Cli *cli)
{
    static const struct { const char *flag; mpr_inspect_what what; } views[] = {
        {"params", MPR_INSPECT_PARAMS}, {"ops", MPR_INSPECT_OPS}, {"precision", MPR_INSPECT_PRECISION}, {"plan", MPR_INSPECT_PLAN}, {"memory", MPR_INSPECT_MEMORY},
    };
    mpr_model *model = NULL;
    int code = 0, bad = 0, shown = 0;
    mpr_inspect_options o = {
        .size = sizeof o, .autocast = cli_precision(cli, &bad), .autocast_profile = cli_is_set(cli, "autocast-profile") ? cli_text(cli, "autocast-profile") : NULL, .loss = cli_text(cli, "loss"),
        .logits = cli_text(cli, "logits"), .bind = cli_list(cli, "bind"), .json = cli->json, .forward_only = cli_flag(cli, "forward-only"),
        .markdown = cli_flag(cli, "markdown"),
        .keep_fp32 = cli_list(cli, "keep-fp32"), .explain = cli_text(cli, "explain"),
    };
    mpr_model_options mo = {.size = sizeof mo, .untie = cli_list(cli, "untie")};
    if (!bad) bad = cli_pairs(cli, "tie", cli_list(cli, "tie"), &mo.tie);
    if (bad) return bad;
    if (cli_flag(cli, "env")) {
        char *text = NULL;
        if (mpr_environment(cli->ctx, &text) != MPR_OK) return cli_fail(cli, cli->ctx);
        printf("%s\n", text);
        mpr_free_text(cli->ctx, text);
        return 0;
    }
    if (cli->n_args > 1) return cli_usage(cli, "one file at a time", "expected one MODEL, found %d", cli->n_args);
    if (!cli->n_args && !cli_flag(cli, "ops")) return cli_usage(cli, "mpr-inspect MODEL.onnx", "expected one MODEL, found none");
    if (cli->n_args && mpr_model_load(cli->ctx, cli->args[0], &mo, &model) != MPR_OK) return cli_fail(cli, cli->ctx);
    for (size_t i = 0; i < sizeof views / sizeof *views && !code; i++)
        if (cli_flag(cli, views[i].flag)) {
            if (shown++ && !cli->json) putchar('\n');
            code = show(cli, model, views[i].what, &o);
        }
    if (o.explain && !code) {
        shown++;
        code = show(cli, model, MPR_INSPECT_EXPLAIN, &o);
    }
    if (!shown && !code) code = show(cli, model, MPR_INSPECT_SUMMARY, &o);
    mpr_model_destroy(model);
    return code;
}

int main(int argc, char **argv)
{
    Cli cli = {.tool = "mpr-inspect", .usage = "[MODEL.onnx] [options]",
               .about = "what is in a model, what can be trained and why, how it would run",
               .examples = "  mpr-inspect model.onnx --params\n"
                           "  mpr-inspect model.onnx --plan --fp16 --bind batch=8\n"};
    bool done;
    int code = cli_parse(&cli, rows, argc, argv, &done);
    if (!code && !done) code = cli_context(&cli);
    if (!code && !done) code = cli_finish(&cli, run(&cli));
    cli_free(&cli);
    return code;
}
