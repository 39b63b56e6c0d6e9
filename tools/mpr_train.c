/* mpr-train: trains an ONNX file and writes the same file back, trained. */
#include "tools/common/cli.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static mpr_trainer *running; /* for the signal handler */

/* First signal: finish the step, save, exit 4. Second one: stop at once. */
static void on_signal(int number)
{
    static volatile sig_atomic_t seen;
    if (seen++ || !running) {
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    mpr_trainer_stop(running);
}

typedef struct Screen {
    Cli *cli;
    double start;
    int64_t first_step; /* of this run: resumed runs begin later */
    bool bar;           /* a bar is on the screen */
} Screen;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void clear_bar(Screen *s)
{
    if (s->bar) fputs("\r\033[K", stderr);
    s->bar = false;
}

static void clock_text(double s, char buf[16])
{
    long n = (long)s;
    if (n >= 3600) snprintf(buf, 16, "%ld:%02ld:%02ld", n / 3600 % 1000, n / 60 % 60, n % 60);
    else snprintf(buf, 16, "%02ld:%02ld", n / 60 % 60, n % 60);
}

static int on_step(void *user, int64_t step, int64_t max_steps, const mpr_step_result *r)
{
    static double last;
    Screen *s = user;
    double now = seconds();
    if (s->first_step < 0) { s->first_step = step - 1; s->start = now; }
    if (!s->cli->progress || max_steps <= 0 || (now - last < 0.1 && step != max_steps)) return MPR_CONTINUE;
    last = now;
    struct winsize size = {0};
    int columns = ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
    int width = columns - 62 > 10 ? columns - 62 : 10;
    if (width > 40) width = 40;
    int full = (int)((double)width * (double)step / (double)max_steps);
    double rate = (double)(step - s->first_step) / (now - s->start + 1e-9);
    char gone[16], left[16];
    clock_text(now - s->start, gone);
    clock_text((double)(max_steps - step) / (rate > 0 ? rate : 1), left);
    fprintf(stderr, "\r\033[K%3d%% [", (int)(100 * step / max_steps));
    for (int i = 0; i < width; i++) fputs(i < full ? "#" : "-", stderr);
    fprintf(stderr, "] %lld/%lld  %s<%s  %.1f step/s  loss %.4f", (long long)step, (long long)max_steps, gone, left, rate, (double)r->loss);
    s->bar = true;
    return MPR_CONTINUE;
}

static void print_number(const json_t *v)
{
    if (json_is_string(v)) fprintf(stderr, "%s", json_string_value(v));
    else if (json_is_integer(v)) fprintf(stderr, "%lld", (long long)json_integer_value(v));
    else fprintf(stderr, "%.6g", json_real_value(v));
}

/* One calm line per event: step and epoch first, then the figures in the log's order. */
static int on_log(void *user, const char *text)
{
    Screen *s = user;
    if (s->cli->quiet) return MPR_CONTINUE;
    json_t *o = json_loads(text, 0, NULL), *v;
    const char *key;
    if (!o) return MPR_CONTINUE;
    if (json_object_get(o, "tensor_stats")) { /* its summary comes as a message */
        json_decref(o);
        return MPR_CONTINUE;
    }
    clear_bar(s);
    fprintf(stderr, "step ");
    print_number(json_object_get(o, "step"));
    fprintf(stderr, "  epoch ");
    print_number(json_object_get(o, "epoch"));
    json_object_foreach(o, key, v) {
        if (!strcmp(key, "step") || !strcmp(key, "epoch")) continue;
        fprintf(stderr, "  %s ", key);
        print_number(v);
    }
    fputc('\n', stderr);
    json_decref(o);
    return MPR_CONTINUE;
}

static int on_save(void *user, const char *directory)
{
    Screen *s = user;
    clear_bar(s);
    if (!s->cli->quiet) fprintf(stderr, "saved %s\n", directory);
    return MPR_CONTINUE;
}

static void print_result(const Cli *cli, const mpr_trainer_options *o, const mpr_trainer_result *r, mpr_status status)
{
    const char *out = mpr_trainer_options_get(o, "output-dir");
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", out ? out : "");
    if (cli->json) {
        json_t *j = json_pack("{s:I,s:I,s:I,s:s}", "steps", (json_int_t)r->steps, "updates", (json_int_t)r->updates, "skipped_steps", (json_int_t)r->skipped, "output_dir", folder);
        json_object_set_new(j, "train_loss", isfinite(r->train_loss) ? json_real(r->train_loss) : json_string("nan"));
        json_object_set_new(j, "train_runtime", json_real(r->train_runtime));
        json_object_set_new(j, "eval_loss", isfinite(r->eval_loss) ? json_real(r->eval_loss) : json_null());
        json_object_set_new(j, "stopped", json_boolean(status == MPR_E_STOPPED || r->stopped));
        char *s = json_dumps(j, JSON_COMPACT);
        printf("%s\n", s ? s : "{}");
        free(s);
        json_decref(j);
        return;
    }
    if (cli->quiet) return;
    printf("%s after %lld steps (%lld updates, %lld skipped) in %.1f s; mean training loss %.6g", status == MPR_E_STOPPED ? "stopped" : "done",
           (long long)r->steps, (long long)r->updates, (long long)r->skipped, r->train_runtime, r->train_loss);
    if (isfinite(r->eval_loss)) printf(", last evaluation loss %.6g", r->eval_loss);
    const char *file = mpr_trainer_options_get(o, "export");
    if (file && *file) printf("\nfiles: %s, and logs in %s\n", file, folder);
    else printf("\nfiles: %s/model.onnx (the model, trained), log.jsonl, trainer_state.json, config.yaml\n", folder);
}

static int train(Cli *cli, mpr_trainer_options *o, mpr_model *model)
{
    Screen screen = {.cli = cli, .first_step = -1};
    mpr_trainer_callbacks cb = {.size = sizeof cb, .user = &screen, .on_log = on_log, .on_step = on_step, .on_save = on_save, .on_step_late = true};
    mpr_trainer_result r = {.size = sizeof r};
    mpr_trainer *t = NULL;
    char *summary = NULL;
    int code = 0;
    if (mpr_trainer_create(model, o, &cb, &t) != MPR_OK) return cli_fail(cli, model);
    if (!cli->quiet) {
        if (mpr_trainer_summary(t, &summary) != MPR_OK) code = cli_fail(cli, t);
        else fputs(summary, cli->json ? stderr : stdout);
        mpr_free_text(cli->ctx, summary);
        fflush(stdout);
    }
    const char *dry = mpr_trainer_options_get(o, "dry-run");
    if (!code && !(dry && !strcmp(dry, "true"))) {
        running = t;
        signal(SIGINT, on_signal);
        signal(SIGTERM, on_signal);
        mpr_status status = mpr_trainer_run(t, &r);
        running = NULL;
        clear_bar(&screen);
        if (status == MPR_OK || status == MPR_E_STOPPED) {
            print_result(cli, o, &r, status);
            code = mpr_status_exit_code(status);
        } else {
            code = cli_fail(cli, t);
        }
    }
    mpr_trainer_destroy(t);
    return code;
}

/* What was set on the command line goes into the options; file and variables are read by the library. */
static int set_options(Cli *cli, mpr_trainer_options *o)
{
    const char *config = cli_text(cli, "config");
    if (config && mpr_trainer_options_load(o, config) != MPR_OK) return cli_fail(cli, o);
    if (mpr_trainer_options_environment(o) != MPR_OK) return cli_fail(cli, o);
    for (int i = 0; i < mpr_trainer_options_count(); i++) {
        const char *name = mpr_trainer_options_row(i)->name;
        const CliValue *v = cli_value(cli, name);
        if (!v || !v->set) continue;
        for (int k = 0; k < v->n_list; k++)
            if (mpr_trainer_options_set(o, name, v->list[k]) != MPR_OK) return cli_fail(cli, o);
        if (!v->n_list && mpr_trainer_options_set(o, name, v->text) != MPR_OK) return cli_fail(cli, o);
    }
    return 0;
}

/* Items of a list option, from wherever they were set; NULL when there are none. */
static const char **option_list(const mpr_trainer_options *o, const char *name, char **text)
{
    const char *value = mpr_trainer_options_get(o, name);
    size_t n = 0;
    *text = strdup(value ? value : "");
    const char **list = *text ? calloc(strlen(*text) + 2, sizeof *list) : NULL;
    if (!list) { fputs("no memory\n", stderr); exit(6); }
    for (char *rest = *text, *item; (item = strsep(&rest, "\n"));)
        if (*item) list[n++] = item;
    return list;
}

static int load_model(Cli *cli, const mpr_trainer_options *o, mpr_model **model)
{
    static const char *const names[] = {"tie", "untie", "train-only", "freeze"};
    char *text[4];
    const char **list[4];
    for (int i = 0; i < 4; i++) list[i] = option_list(o, names[i], &text[i]);
    mpr_model_options mo = {.size = sizeof mo, .untie = list[1][0] ? list[1] : NULL,
                            .train_only = list[2][0] ? list[2] : NULL, .freeze = list[3][0] ? list[3] : NULL};
    int code = cli_pairs(cli, "tie", list[0], &mo.tie);
    if (!code && mpr_model_load(cli->ctx, cli->args[0], &mo, model) != MPR_OK) code = cli_fail(cli, cli->ctx);
    for (int i = 0; i < 4; i++) {
        free(list[i]);
        free(text[i]);
    }
    return code;
}

static int run(Cli *cli)
{
    mpr_trainer_options *o = NULL;
    mpr_model *model = NULL;
    int code = 0;
    if (mpr_trainer_options_create(cli->ctx, &o) != MPR_OK) return cli_fail(cli, cli->ctx);
    code = set_options(cli, o);
    if (!code && cli_flag(cli, "print-config")) {
        char *yaml = NULL;
        if (mpr_trainer_options_print(o, &yaml) != MPR_OK) code = cli_fail(cli, o);
        else fputs(yaml, stdout);
        mpr_free_text(cli->ctx, yaml);
    } else if (!code) {
        if (cli->n_args != 1) code = cli_usage(cli, "mpr-train MODEL.onnx --train-data DATA.npz", "expected one MODEL, found %d", cli->n_args);
        else code = load_model(cli, o, &model);
        if (!code) code = train(cli, o, model);
    }
    mpr_model_destroy(model);
    mpr_trainer_options_destroy(o);
    return code;
}

int main(int argc, char **argv)
{
    Cli cli = {.tool = "mpr-train", .usage = "MODEL.onnx --train-data FILE… [--eval-data FILE…] [options]",
               .about = "train an ONNX file and write the same file back, trained", .library_options = true,
               .examples = "  mpr-train model.onnx --train-data train.npz --eval-data eval.npz --loss cross-entropy --fp16 --output-dir out\n"
                           "  mpr-train model.onnx --train-data train.npz --max-steps 1000 --learning-rate 1e-3 --resume-from-checkpoint last\n"};
    int n = mpr_trainer_options_count(), code;
    bool done;
    CliRow *rows = calloc((size_t)n + 1, sizeof *rows);
    if (!rows) return 6;
    for (int i = 0; i < n; i++) {
        const mpr_option_row *r = mpr_trainer_options_row(i);
        static const CliKind kinds[] = {CLI_FLAG, CLI_STRING, CLI_INT, CLI_FLOAT, CLI_LIST};
        rows[i] = (CliRow){r->name, r->short_name, r->aliases, kinds[r->kind], r->def, NULL, r->argument ? r->argument : r->choices, r->help, r->group};
    }
    code = cli_parse(&cli, rows, argc, argv, &done);
    if (!code && !done) code = cli_context(&cli);
    if (!code && !done) code = cli_finish(&cli, run(&cli));
    cli_free(&cli);
    free(rows);
    return code;
}
