/* mpr-convert: write a mixed-precision copy of an ONNX file. */
#include "tools/common/cli.h"

#include <string.h>

static const CliRow rows[] = {
    {"output", 'o', NULL, CLI_STRING, NULL, NULL, "OUT.onnx", "where the converted file goes",
     "conversion"},
    {"to", 0, NULL, CLI_STRING, "fp16", "fp16|bf16|fp32|f16|float16|bfloat16|f32|float32", NULL,
     "the 16-bit type; fp32 takes out what an earlier run added", "conversion"},
    {"mode", 0, NULL, CLI_STRING, "train", "train", NULL,
     "train: FP32 weights stay, casts are inserted", "conversion"},
    {"autocast-profile", 0, NULL, CLI_STRING, "torch-cuda", NULL, "NAME|FILE",
     "torch-cuda, torch-cpu or a rule file", "conversion"},
    {"keep-fp32", 0, NULL, CLI_LIST, NULL, NULL, "OP|/GLOB",
     "operators or nodes that stay in float32", "conversion"},
    {"dry-run", 0, NULL, CLI_FLAG, NULL, NULL, NULL,
     "write nothing; exit 4 when the file would change", "conversion"},
    {NULL, 0, NULL, CLI_FLAG, NULL, NULL, NULL, NULL, NULL},
};

static mpr_dtype target(const char *to)
{
    return *to == 'b' ? MPR_BFLOAT16 : strstr(to, "16") ? MPR_FLOAT16 : MPR_FLOAT32;
}

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

static int run(Cli *cli)
{
    mpr_model *model = NULL;
    int code = 0;
    const char *out = cli_text(cli, "output");
    mpr_convert_result r = {.size = sizeof r};
    mpr_convert_options o = {
        .size = sizeof o,
        .to = target(cli_text(cli, "to")),
        .mode = cli_text(cli, "mode"),
        .autocast_profile = cli_text(cli, "autocast-profile"),
        .keep_fp32 = cli_list(cli, "keep-fp32"),
        .dry_run = cli_flag(cli, "dry-run"),
    };
    if (cli->n_args != 1)
        return cli_usage(cli, "mpr-convert IN.onnx -o OUT.onnx", "expected one IN.onnx, found %d",
                         cli->n_args);
    if (!out && !o.dry_run)
        return cli_usage(cli, "add -o OUT.onnx, or --dry-run", "--output is missing");
    if (mpr_model_load(cli->ctx, cli->args[0], NULL, &model) != MPR_OK)
        return cli_fail(cli, cli->ctx);
    if (mpr_convert(model, out, &o, &r) != MPR_OK) {
        code = cli_fail(cli, model);
    } else {
        report(cli, o.dry_run ? cli->args[0] : out, &r);
        code = o.dry_run && r.changed ? 4 : 0;
    }
    mpr_model_destroy(model);
    return code;
}

int main(int argc, char **argv)
{
    Cli cli = {.tool = "mpr-convert",
               .usage = "IN.onnx -o OUT.onnx [options]",
               .about = "write a mixed-precision copy of an ONNX file",
               .examples = "  mpr-convert model.onnx -o model-fp16.onnx --to fp16 --mode train\n"
                           "  mpr-convert model.onnx --dry-run --autocast-profile torch-cpu\n"};
    bool done;
    int code = cli_parse(&cli, rows, argc, argv, &done);
    if (!code && !done) code = cli_context(&cli);
    if (!code && !done) code = cli_finish(&cli, run(&cli));
    cli_free(&cli);
    return code;
}
