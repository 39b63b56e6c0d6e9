/* mpr-run: forward pass of an ONNX file, and its gradients. */
#include "tools/common/cli.h"

#include <stdlib.h>
#include <string.h>

static const CliRow rows[] = {
    {"inputs", 0, NULL, CLI_STRING, NULL, NULL, "IN.npz", "inputs by tensor name", "data"},
    {"outputs", 0, NULL, CLI_STRING, NULL, NULL, "OUT.npz", "where the outputs go", "data"},
    {"bind", 0, NULL, CLI_LIST, NULL, NULL, "NAME=N", "sizes of symbolic dims that no input gives", "data"},
    {"keep", 0, NULL, CLI_LIST, NULL, NULL, "VALUE", "inner values to write as well", "data"},
    {"vjp", 0, NULL, CLI_STRING, NULL, NULL, "COT.npz", "cotangents by output name", "gradients"},
    {"grads", 0, NULL, CLI_STRING, NULL, NULL, "GRADS.npz", "where the gradients go", "gradients"},
    {"grads-of", 0, NULL, CLI_STRING, "inputs", "inputs|params|all", NULL, "which gradients", "gradients"},
    {"loss", 0, NULL, CLI_STRING, NULL, NULL, "KIND", "auto, cross-entropy, mse, l1, bce-with-logits or output:NAME", "objective"},
    {"logits", 0, NULL, CLI_STRING, NULL, NULL, "NAME", "output that the loss reads", "objective"},
    {"labels", 0, NULL, CLI_STRING, "labels", NULL, "KEY", "labels in the input file", "objective"},
    {"ignore-index", 0, NULL, CLI_INT, "-100", NULL, "N", "labels of this value do not count", "objective"},
    {"label-smoothing-factor", 0, NULL, CLI_FLOAT, "0", NULL, "F", "label smoothing", "objective"},
    {"loss-scale", 0, NULL, CLI_FLOAT, "1", NULL, "S", "seed of the backward pass; gradients are written unscaled", "objective"},
    {"tie", 0, NULL, CLI_LIST, NULL, NULL, "A=B", "treat two parameters as one", "objective"},
    {"untie", 0, NULL, CLI_LIST, NULL, NULL, "NAME", "treat a tied parameter as its own", "objective"},
    {"fp16", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "autocast to float16", "precision"},
    {"bf16", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "autocast to bfloat16", "precision"},
    {"autocast-profile", 0, NULL, CLI_STRING, "torch-cuda", NULL, "NAME|FILE", "torch-cuda, torch-cpu, paint (as mpr-convert decides), a file of rules on one of them, or of mpr-convert --annotations", "precision"},
    {"dtype", 0, NULL, CLI_STRING, NULL, "f64", NULL, "compute everything in double by the reference kernels", "precision"},
    {"kernels", 0, NULL, CLI_STRING, "auto", "auto|ref", NULL, "reference kernels only", "precision"},
    {"repeat", 0, NULL, CLI_INT, "1", NULL, "N", "run N times and print the fastest", "timing"},
    {NULL, 0, NULL, CLI_FLAG, NULL, NULL, NULL, NULL, NULL},
};

static int run(Cli *cli)
{
    mpr_model *model = NULL;
    mpr_tensors *in = NULL, *cot = NULL, *out = NULL, *grads = NULL;
    int bad = 0, code = 0;
    double ms = 0;
    const char *dtype = cli_text(cli, "dtype");
    const char *grads_file = cli_text(cli, "grads"), *out_file = cli_text(cli, "outputs");
    mpr_run_options o = {
        .size = sizeof o, .autocast = cli_precision(cli, &bad), .autocast_profile = cli_is_set(cli, "autocast-profile") ? cli_text(cli, "autocast-profile") : NULL,
        .dtype = dtype ? MPR_FLOAT64 : MPR_DTYPE_NONE, .kernels = !strcmp(cli_text(cli, "kernels"), "ref") ? "ref" : NULL,
        .bind = cli_list(cli, "bind"), .keep = cli_list(cli, "keep"), .loss = cli_text(cli, "loss"),
        .logits = cli_text(cli, "logits"), .labels = cli_text(cli, "labels"), .ignore_index = cli_int(cli, "ignore-index"),
        .has_ignore_index = true, .label_smoothing = (float)cli_float(cli, "label-smoothing-factor"),
        .loss_scale = (float)cli_float(cli, "loss-scale"), .grads_of = cli_text(cli, "grads-of"),
        .repeat = (int)cli_int(cli, "repeat"), .milliseconds = &ms, .untie = cli_list(cli, "untie"),
    };
    if (!bad) bad = cli_pairs(cli, "tie", cli_list(cli, "tie"), &o.tie);
    if (bad) return bad;
    if (o.autocast && o.dtype) return cli_usage(cli, "drop one of them", "--dtype f64 and --%s contradict each other", o.autocast == MPR_FLOAT16 ? "fp16" : "bf16");
    if (cli_text(cli, "vjp") && o.loss) return cli_usage(cli, "drop one of them", "--vjp and --loss contradict each other");
    if (cli_text(cli, "vjp") && !grads_file) return cli_usage(cli, "add --grads GRADS.npz", "--vjp needs a place for its result");
    if (grads_file && !cli_text(cli, "vjp") && !o.loss) return cli_usage(cli, "add --vjp COT.npz or --loss KIND", "--grads needs something to differentiate");
    if (cli->n_args != 1) return cli_usage(cli, "mpr-run MODEL.onnx --inputs IN.npz", "expected one MODEL, found %d", cli->n_args);
    if (!cli_text(cli, "inputs")) return cli_usage(cli, "give an npz with one member per input", "--inputs is missing");
    for (int i = 0; i < 6 && !bad; i++) {
        const char *flag = i % 2 ? "grads" : "outputs";
        const char *input = i < 2 ? cli->args[0] : cli_text(cli, i < 4 ? "inputs" : "vjp");
        bad = cli_keep_input(cli, flag, cli_text(cli, flag), input);
    }
    if (bad) return bad;
    if (out_file && grads_file && !strcmp(out_file, grads_file)) return cli_usage(cli, "give each its own file", "--outputs and --grads are both %s", out_file);

    mpr_model_options mo = {.size = sizeof mo, .tie = o.tie, .untie = o.untie};
    if (mpr_model_load(cli->ctx, cli->args[0], &mo, &model) != MPR_OK) { code = cli_fail(cli, cli->ctx); goto done; }
    if (mpr_tensors_load(cli->ctx, cli_text(cli, "inputs"), &in) != MPR_OK) { code = cli_fail(cli, cli->ctx); goto done; }
    if (cli_text(cli, "vjp") && mpr_tensors_load(cli->ctx, cli_text(cli, "vjp"), &cot) != MPR_OK) { code = cli_fail(cli, cli->ctx); goto done; }
    if (mpr_session_vjp(model, in, cot, &o, &out, grads_file ? &grads : NULL) != MPR_OK) { code = cli_fail(cli, model); goto done; }
    if (out_file && mpr_tensors_save(out, out_file) != MPR_OK) { code = cli_fail(cli, out); goto done; }
    if (grads && mpr_tensors_save(grads, grads_file) != MPR_OK) { code = cli_fail(cli, grads); goto done; }
    if (cli->json) printf("{\"outputs\":%d,\"gradients\":%d,\"milliseconds\":%.4f}\n", mpr_tensors_count(out), mpr_tensors_count(grads), ms);
    else if (!cli->quiet) {
        for (int i = 0; i < mpr_tensors_count(out); i++) {
            mpr_tensor t;
            const char *name = mpr_tensors_name(out, i);
            if (mpr_tensors_get(out, name, &t) != MPR_OK) { code = cli_fail(cli, out); goto done; }
            printf("%s [", name);
            for (int k = 0; k < t.rank; k++) printf("%s%lld", k ? "," : "", (long long)t.dims[k]);
            if (t.rank == 0 && t.dtype == MPR_FLOAT32) printf("] = %.9g\n", (double)*(const float *)t.data);
            else printf("]\n");
        }
        if (o.repeat > 1) printf("fastest of %d: %.3f ms\n", o.repeat, ms);
    }
done:
    mpr_tensors_destroy(grads);
    mpr_tensors_destroy(out);
    mpr_tensors_destroy(cot);
    mpr_tensors_destroy(in);
    mpr_model_destroy(model);
    return code;
}

int main(int argc, char **argv)
{
    Cli cli = {.tool = "mpr-run", .usage = "MODEL.onnx --inputs IN.npz [--outputs OUT.npz] [options]",
               .about = "forward pass of an ONNX file, and its gradients",
               .examples = "  mpr-run model.onnx --inputs in.npz --outputs out.npz\n"
                           "  mpr-run model.onnx --inputs batch.npz --loss cross-entropy --grads grads.npz --grads-of params --fp16\n"};
    bool done;
    int code = cli_parse(&cli, rows, argc, argv, &done);
    if (!code && !done) code = cli_context(&cli);
    if (!code && !done) code = cli_finish(&cli, run(&cli));
    cli_free(&cli);
    return code;
}
