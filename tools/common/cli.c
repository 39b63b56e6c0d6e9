/* The common part of all tools: option table -> popt rows, help, config file, environment, errors. */
#include "tools/common/cli.h"

#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <popt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/text.h"
#include "tools/common/config.h"

static const CliRow common_rows[] = {
    {"config", 0, NULL, CLI_STRING, NULL, NULL, "FILE", "read options from a YAML file; keys are flag names", "common"},
    {"print-config", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "print the options in force as YAML and stop", "common"},
    {"json", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "result on stdout as one JSON document; errors as JSON on stderr", "common"},
    {"quiet", 'q', NULL, CLI_FLAG, NULL, NULL, NULL, "warnings and errors only", "common"},
    {"verbose", 'v', NULL, CLI_FLAG, NULL, NULL, NULL, "more messages", "common"},
    {"no-progress", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "no progress bar", "common"},
    {"color", 0, NULL, CLI_STRING, "auto", "auto|always|never", "WHEN", "colour on the terminal (NO_COLOR is honoured)", "common"},
    {"device", 0, NULL, CLI_STRING, "cpu", NULL, "DEVICE", "cpu, cuda, cuda:N or auto", "common"},
    {"no-cuda-graph", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "launch CUDA kernels one by one: same bits, slower", "common"},
    {"cuda-tune", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "time the algorithms of matrix products on the GPU and keep the fastest: runs may differ in the last bits", "common"},
    {"threads", 0, NULL, CLI_INT, "0", NULL, "N", "threads; 0 = as many as the process may use", "common"},
    {"seed", 0, NULL, CLI_INT, "42", NULL, "N", "seed of everything random", "common"},
    {"version", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "print the version and stop", "common"},
    {"print-man", 0, NULL, CLI_FLAG, NULL, NULL, NULL, "print the manual page (roff) and stop", "common"},
    {"help", 'h', NULL, CLI_FLAG, NULL, NULL, NULL, "print this help and stop", "common"},
    {NULL, 0, NULL, CLI_FLAG, NULL, NULL, NULL, NULL, NULL},
};

static int count_rows(const CliRow *rows)
{
    int n = 0;
    while (rows[n].name) n++;
    return n;
}

static int find_row(const Cli *cli, const char *name)
{
    for (int i = 0; i < cli->n_rows; i++)
        if (!strcmp(cli->rows[i].name, name)) return i;
    for (int i = 0; i < cli->n_rows; i++) {
        const char *a = cli->rows[i].aliases;
        size_t n = strlen(name);
        while (a && *a) {
            size_t k = strcspn(a, " ");
            if (k == n && !strncmp(a, name, n)) return i;
            a += k + (a[k] == ' ');
        }
    }
    return -1;
}

const CliValue *cli_value(const Cli *cli, const char *name)
{
    int i = find_row(cli, name);
    return i < 0 ? NULL : &cli->values[i];
}

const char *cli_text(const Cli *cli, const char *name)
{
    const CliValue *v = cli_value(cli, name);
    return v ? v->text : NULL;
}

bool cli_is_set(const Cli *cli, const char *name)
{
    const CliValue *v = cli_value(cli, name);
    return v && v->set;
}

bool cli_flag(const Cli *cli, const char *name)
{
    const char *t = cli_text(cli, name);
    return t && !strcmp(t, "true");
}

int64_t cli_int(const Cli *cli, const char *name)
{
    int64_t v = 0;
    const char *t = cli_text(cli, name);
    if (t) mpri_parse_i64(t, &v);
    return v;
}

double cli_float(const Cli *cli, const char *name)
{
    double v = 0;
    const char *t = cli_text(cli, name);
    if (t) mpri_parse_f64(t, &v);
    return v;
}

const char *const *cli_list(const Cli *cli, const char *name)
{
    const CliValue *v = cli_value(cli, name);
    return v && v->n_list ? v->list : NULL;
}

/* ---- errors ---- */

static int print_error(const Cli *cli, mpr_error e)
{
    const char *tool = cli->tool;
    if (cli->json) {
        json_t *o = json_pack("{s:{s:s,s:s,s:s,s:s}}", "error", "code", mpr_status_text(e.code), "message", e.message,
                              "where", e.where, "advice", e.advice);
        char *s = o ? json_dumps(o, JSON_COMPACT) : NULL;
        fprintf(stderr, "%s\n", s ? s : "{\"error\":{\"code\":\"MPR_E_NOMEM\",\"message\":\"no memory\",\"where\":\"\",\"advice\":\"\"}}");
        free(s);
        json_decref(o);
    } else {
        const char *red = cli->color ? "\033[31m" : "", *off = cli->color ? "\033[0m" : "";
        fprintf(stderr, "%s: %s%s%s: %s\n", tool, red, mpr_status_text(e.code), off, e.message);
        if (*e.where) fprintf(stderr, "  where:  %s\n", e.where);
        if (*e.advice) fprintf(stderr, "  advice: %s\n", e.advice);
    }
    return mpr_status_exit_code(e.code);
}

int cli_fail(const Cli *cli, const void *handle)
{
    return print_error(cli, mpr_last_error(handle));
}

int cli_usage(const Cli *cli, const char *advice, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return print_error(cli, (mpr_error){MPR_E_USAGE, text, "command line", advice ? advice : ""});
}

int cli_keep_input(const Cli *cli, const char *flag, const char *output, const char *input)
{
    struct stat out, in;
    if (!output || !input || stat(output, &out) || stat(input, &in)) return 0;
    if (out.st_dev != in.st_dev || out.st_ino != in.st_ino) return 0;
    return cli_usage(cli, "write to another file",
                     "--%s: %s is the same file as the input %s, which is not overwritten", flag,
                     output, input);
}

/* The reader of a pipe is gone. errno may be that of an earlier or a later write. */
static bool pipe_closed(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int cli_finish(const Cli *cli, int code)
{
    if (fflush(stdout) || ferror(stdout)) {
        int cause = errno;
        if (cause == EPIPE || pipe_closed()) return code;
        errno = cause;
        char text[256];
        snprintf(text, sizeof text, "cannot write the result: %s", strerror(errno));
        int worse = print_error(cli, (mpr_error){MPR_E_IO, text, "standard output", "free some space, or write elsewhere"});
        return code ? code : worse;
    }
    return code;
}

/* ---- setting values ---- */

/* Memory that lives as long as cli. */
static void *keep_bytes(Cli *cli, size_t n)
{
    void *p = calloc(1, n);
    char **kept = realloc(cli->kept, sizeof *kept * ((size_t)cli->n_kept + 1));
    if (!p || !kept) { fputs("no memory\n", stderr); exit(6); }
    cli->kept = kept;
    return cli->kept[cli->n_kept++] = p;
}

/* A text: values, words of the command line. */
static char *keep(Cli *cli, const char *prefix, const char *s)
{
    return strcat(strcpy(keep_bytes(cli, strlen(prefix) + strlen(s) + 1), prefix), s);
}

int cli_pairs(Cli *cli, const char *flag, const char *const *list, const char *const **pairs)
{
    size_t n = 0;
    *pairs = NULL;
    while (list && list[n]) n++;
    if (!n) return 0;
    const char **names = keep_bytes(cli, (2 * n + 1) * sizeof *names);
    for (size_t i = 0; i < n; i++) {
        char *first = keep(cli, "", list[i]), *second = strchr(first, '=');
        if (!second || second == first || !second[1])
            return cli_usage(cli, "give --tie A=B with two names of the model", "--%s takes A=B, found '%s'", flag, mpri_err_name(list[i]));
        *second++ = 0;
        names[2 * i] = first;
        names[2 * i + 1] = second;
    }
    *pairs = names;
    return 0;
}

static int bad_value(const Cli *cli, const CliRow *row, const char *text, const char *origin, const char *allowed)
{
    char advice[256];
    snprintf(advice, sizeof advice, "give --%s %s", row->name, allowed);
    return cli_usage(cli, advice, "%s: --%s takes %s, found '%s'", origin, row->name, allowed, mpri_err_name(text));
}

static bool in_choices(const char *choices, const char *text)
{
    size_t n = strlen(text);
    for (const char *c = choices; *c;) {
        size_t k = strcspn(c, "|");
        if (k == n && !strncmp(c, text, n)) return true;
        c += k + (c[k] == '|');
    }
    return false;
}

static int set_value(Cli *cli, int i, const char *text, const char *origin)
{
    CliRow *row = &cli->rows[i];
    CliValue *v = &cli->values[i];
    int64_t n;
    double d;
    bool checked = !cli->library_options || !strcmp(row->group, "common"); /* else by the library */
    if (!*text && !strcmp(origin, "command line")) return bad_value(cli, row, text, origin, row->choices ? row->choices : "a value");
    if (row->kind == CLI_FLAG) {
        bool yes = !strcasecmp(text, "true") || !strcmp(text, "1") || !strcasecmp(text, "yes");
        bool no = !strcasecmp(text, "false") || !strcmp(text, "0") || !strcasecmp(text, "no");
        if (!yes && !no) return bad_value(cli, row, text, origin, "true or false");
        text = yes ? "true" : "false";
    }
    if (row->kind == CLI_INT && checked && !mpri_parse_i64(text, &n)) return bad_value(cli, row, text, origin, "a whole number");
    if (row->kind == CLI_FLOAT && checked && !mpri_parse_f64(text, &d)) return bad_value(cli, row, text, origin, "a number");
    if (row->choices && !in_choices(row->choices, text)) return bad_value(cli, row, text, origin, row->choices);
    v->text = keep(cli, "", text);
    v->set = true;
    if (row->kind == CLI_LIST) {
        v->list = realloc(v->list, sizeof *v->list * ((size_t)v->n_list + 2));
        if (!v->list) { fputs("no memory\n", stderr); exit(6); }
        v->order = realloc(v->order, sizeof *v->order * ((size_t)v->n_list + 1));
        if (!v->order) { fputs("no memory\n", stderr); exit(6); }
        v->order[v->n_list] = cli->n_listed++;
        v->list[v->n_list++] = v->text;
        v->list[v->n_list] = NULL;
    }
    return 0;
}

static int unknown(const Cli *cli, const char *origin, const char *kind, const char *name)
{
    const char **names = calloc((size_t)cli->n_rows, sizeof *names);
    char advice[256];
    const char *near = NULL;
    for (int i = 0; names && i < cli->n_rows; i++) names[i] = cli->rows[i].name;
    if (names) near = mpri_nearest(name, names, (size_t)cli->n_rows);
    if (near) snprintf(advice, sizeof advice, "did you mean %s%s?", *kind == 'f' ? "--" : "", near);
    else snprintf(advice, sizeof advice, "%s --help lists all", cli->tool);
    free(names);
    return cli_usage(cli, advice, "%s: unknown %s '%s'", origin, kind, mpri_err_name(name));
}

typedef struct ConfigCall { Cli *cli; const char *file; bool *from_config; } ConfigCall;

/* A common row that a configuration file may set, for a tool whose other options the library reads. */
static bool of_program(const CliRow *row)
{
    static const char *const not_there[] = {"config", "help", "version", "print-config", "print-man"};
    for (size_t i = 0; i < sizeof not_there / sizeof *not_there; i++)
        if (!strcmp(row->name, not_there[i])) return false;
    return !strcmp(row->group, "common");
}

static int config_entry(void *user, const char *key, const char *value, int line)
{
    ConfigCall *c = user;
    char name[128], origin[512];
    snprintf(origin, sizeof origin, "%s, line %d", mpri_err_name(c->file), line);
    snprintf(name, sizeof name, "%s", key);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    int i = find_row(c->cli, name);
    if (c->cli->library_options && (i < 0 || !of_program(&c->cli->rows[i]))) return 0;
    if (i < 0) return unknown(c->cli, origin, "key", key);
    return set_value(c->cli, i, value, origin);
}

static int read_config(Cli *cli, const char *file)
{
    ConfigCall c = {.cli = cli, .file = file};
    char problem[512];
    int code = 0;
    if (!config_read(file, config_entry, &c, &code, problem, sizeof problem)) {
        if (cli->library_options) return 0; /* the library reads the file too, and tells what is wrong */
        bool io = problem[0] == '!';
        return print_error(cli, (mpr_error){io ? MPR_E_IO : MPR_E_USAGE, problem + io, file, "see --print-config for the form"});
    }
    return code;
}

static int read_environment(Cli *cli)
{
    for (int i = 0; i < cli->n_rows; i++) {
        char name[128] = "MPR_";
        if (cli->library_options && strcmp(cli->rows[i].group, "common")) continue;
        size_t k = 4;
        for (const char *p = cli->rows[i].name; *p && k + 1 < sizeof name; p++)
            name[k++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[k] = 0;
        const char *text = getenv(name);
        if (!text || !*text) continue;
        for (int j = 0; j < cli->values[i].n_list; j++) cli->values[i].list[j] = NULL;
        cli->values[i].n_list = 0;
        int code = set_value(cli, i, text, name);
        if (code) return code;
    }
    return 0;
}

/* ---- the command line ---- */

static bool is_flag(const char *word)
{
    return !strncmp(word, "--", 2) || (word[0] == '-' && isalpha((unsigned char)word[1]));
}

/* A flag is never another flag's value: `-o --json` has lost its folder. */
static int need_value(const Cli *cli, const CliRow *row, const char *next)
{
    char advice[256];
    if (next && !is_flag(next)) return 0;
    snprintf(advice, sizeof advice, "write --%s=%s", row->name, row->arg ? row->arg : "VALUE");
    return cli_usage(cli, advice, "command line: --%s takes a value, found %s", row->name,
                     next ? mpri_err_name(next) : "none");
}

/* The row of a lone short flag such as -o, or NULL. */
static const CliRow *short_row(const Cli *cli, const char *word)
{
    for (int i = 0; word[0] == '-' && word[1] && !word[2] && i < cli->n_rows; i++)
        if (cli->rows[i].short_name == word[1]) return &cli->rows[i];
    return NULL;
}

/* '_' -> '-' in long flag names; values of lists become repeated flags; --flag=value of a boolean. */
static int normalise(Cli *cli, int argc, char **argv, const char ***out, int *n_out)
{
    if (argc < 1) argc = 1;
    const char **v = calloc((size_t)argc * 2 + 2, sizeof *v); /* a word becomes two at most */
    int n = 0;
    bool plain = false;
    if (!v) { fputs("no memory\n", stderr); exit(6); }
    v[n++] = argv[0];
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        const CliRow *brief = plain ? NULL : short_row(cli, word);
        if (brief && brief->kind != CLI_FLAG) {
            int code = need_value(cli, brief, argv[i + 1]);
            if (code) { free(v); return code; }
        }
        if (plain || word[0] != '-' || word[1] != '-') { v[n++] = word; continue; }
        if (!word[2]) { plain = true; v[n++] = word; continue; }
        char *flag = keep(cli, "", word);
        char *eq = strchr(flag, '=');
        for (char *p = flag + 2; *p && p != eq; p++)
            if (*p == '_') *p = '-';
        if (eq) *eq = 0;
        int row = find_row(cli, flag + 2);
        if (row < 0) { int code = unknown(cli, "command line", "flag", flag + 2); free(v); return code; }
        const char *name = keep(cli, "--", cli->rows[row].name);
        if (cli->rows[row].kind == CLI_FLAG) {
            if (eq) { int code = set_value(cli, row, eq + 1, "command line"); if (code) { free(v); return code; } }
            else v[n++] = name;
        } else if (eq) {
            v[n++] = name;
            v[n++] = eq + 1;
        } else if (cli->rows[row].kind == CLI_LIST) {
            int taken = 0;
            while (i + 1 < argc && !is_flag(argv[i + 1])) {
                v[n++] = name;
                v[n++] = argv[++i];
                taken++;
            }
            if (!taken) { int code = need_value(cli, &cli->rows[row], argv[i + 1]); free(v); return code; }
        } else {
            int code = need_value(cli, &cli->rows[row], argv[i + 1]);
            if (code) { free(v); return code; }
            v[n++] = name;
            v[n++] = argv[++i];
        }
    }
    v[n] = NULL;
    *out = v;
    *n_out = n;
    return 0;
}

static int parse_flags(Cli *cli, int argc, const char **argv)
{
    struct poptOption *table = calloc((size_t)(unsigned)cli->n_rows + 1, sizeof *table);
    bool *fresh = calloc((size_t)(unsigned)cli->n_rows, sizeof *fresh);
    if (!table || !fresh) { fputs("no memory\n", stderr); exit(6); }
    for (int i = 0; i < cli->n_rows; i++)
        table[i] = (struct poptOption){.longName = cli->rows[i].name, .shortName = cli->rows[i].short_name,
                                       .argInfo = cli->rows[i].kind == CLI_FLAG ? POPT_ARG_NONE : POPT_ARG_STRING, .val = i + 1};
    poptContext pc = poptGetContext(cli->tool, argc, argv, table, 0);
    int rc, code = 0;
    while (!code && (rc = poptGetNextOpt(pc)) > 0) {
        char *arg = poptGetOptArg(pc);
        if (cli->rows[rc - 1].kind == CLI_LIST && !fresh[rc - 1]) cli->values[rc - 1].n_list = 0;
        fresh[rc - 1] = true;
        code = set_value(cli, rc - 1, arg ? arg : "true", "command line");
        free(arg);
    }
    if (!code && rc < -1) {
        const char *bad = poptBadOption(pc, POPT_BADOPTION_NOALIAS);
        if (rc == POPT_ERROR_BADOPT) code = unknown(cli, "command line", "flag", bad + strspn(bad, "-"));
        else code = cli_usage(cli, "see --help", "%s: %s", bad, poptStrerror(rc));
    }
    const char **rest = poptGetArgs(pc);
    cli->args = calloc((size_t)argc + 1, sizeof *cli->args);
    if (!cli->args) { fputs("no memory\n", stderr); exit(6); }
    for (int n = 0; !code && rest && rest[n] && n < argc; n++) cli->args[cli->n_args++] = keep(cli, "", rest[n]);
    poptFreeContext(pc);
    free(table);
    free(fresh);
    return code;
}

/* Columns of UTF-8 text: bytes that begin a character. */
static int columns(const char *s)
{
    int n = 0;
    for (; *s; s++) n += (*s & 0xC0) != 0x80;
    return n;
}

static void print_aliases(const char *aliases)
{
    for (const char *a = aliases; a && *a;) {
        size_t k = strcspn(a, " ");
        printf("%s--%.*s", a == aliases ? " (also " : ", ", (int)k, a);
        a += k + (a[k] == ' ');
    }
    if (aliases && *aliases) putchar(')');
}

static void print_help(const Cli *cli)
{
    printf("%s: %s\n\nExamples:\n%s\nUsage: %s %s\n", cli->tool, cli->about, cli->examples, cli->tool, cli->usage);
    const char *group = "";
    for (int i = 0; i < cli->n_rows; i++) {
        const CliRow *r = &cli->rows[i];
        char left[256];
        if (strcmp(group, r->group)) printf("\n%s\n", group = r->group);
        int k = r->short_name ? snprintf(left, sizeof left, "  -%c, --%s", r->short_name, r->name) : snprintf(left, sizeof left, "      --%s", r->name);
        if (r->kind != CLI_FLAG) snprintf(left + k, sizeof left - (size_t)k, " %s%s", r->choices && strlen(r->choices) < 30 ? r->choices : r->arg ? r->arg : "X", r->kind == CLI_LIST && !(r->arg && strstr(r->arg, "…")) ? "…" : "");
        int wide = columns(left);
        if (wide > 44) printf("%s\n%45s%s", left, "", r->help);
        else printf("%s%*s%s", left, 45 - wide, "", r->help);
        if (r->choices && strlen(r->choices) >= 30) printf(" (%s)", r->choices);
        if (r->def && *r->def && r->kind != CLI_FLAG) printf(" [%s]", r->def);
        print_aliases(r->aliases);
        putchar('\n');
    }
    printf("\nAny flag may be given in --config FILE or as MPR_<FLAG>. Exit codes: 0 done, 1 usage, 2 input refused,\n"
           "3 numeric failure, 4 would change or stopped, 5 file or disk, 6 device or memory.\n");
}

/* roff of a text: dashes that are meant as dashes, no line taken for a request. */
static void print_roff(const char *text)
{
    for (const char *p = text; *p; p++) {
        if (*p == '-') fputs("\\-", stdout);
        else if (*p == '\\') fputs("\\e", stdout);
        else if ((*p == '.' || *p == '\'') && (p == text || p[-1] == '\n')) printf("\\&%c", *p);
        else putchar(*p);
    }
}

static void print_man(const Cli *cli)
{
    const char *group = "";
    printf(".TH %s 1 \"\" \"mpr %s\" \"User Commands\"\n.SH NAME\n", cli->tool, mpr_version());
    print_roff(cli->tool); printf(" \\- "); print_roff(cli->about);
    printf("\n.SH SYNOPSIS\n.B "); print_roff(cli->tool); putchar('\n'); print_roff(cli->usage);
    printf("\n.SH EXAMPLES\n.nf\n"); print_roff(cli->examples); printf(".fi\n.SH OPTIONS\n");
    for (int i = 0; i < cli->n_rows; i++) {
        const CliRow *r = &cli->rows[i];
        if (strcmp(group, r->group)) printf(".SS %s\n", group = r->group);
        printf(".TP\n\\fB");
        if (r->short_name) printf("\\-%c\\fR, \\fB", r->short_name);
        printf("\\-\\-"); print_roff(r->name); printf("\\fR");
        if (r->kind != CLI_FLAG) { printf(" \\fI"); print_roff(r->choices ? r->choices : r->arg ? r->arg : "X"); printf("\\fR%s", r->kind == CLI_LIST ? " ..." : ""); }
        putchar('\n');
        print_roff(r->help);
        if (r->def && *r->def && r->kind != CLI_FLAG) { printf(" (default "); print_roff(r->def); putchar(')'); }
        putchar('\n');
    }
    printf(".SH ENVIRONMENT\nEvery flag may be given as MPR_<FLAG>; MPR_CPU_ISA (generic, avx2, avx512) forces an instruction set.\n"
           ".SH EXIT STATUS\n0 done; 1 usage; 2 input refused; 3 numeric failure; 4 would change or stopped; 5 file or disk; 6 device or memory.\n");
}

static void print_config(const Cli *cli)
{
    for (int i = 0; i < cli->n_rows; i++) {
        const CliRow *r = &cli->rows[i];
        const CliValue *v = &cli->values[i];
        if (!strcmp(r->name, "config") || !strncmp(r->name, "print-", 6) || !strcmp(r->name, "help") || !strcmp(r->name, "version")) continue;
        printf("%s: ", r->name);
        if (r->kind == CLI_LIST) {
            putchar('[');
            for (int j = 0; j < v->n_list; j++) { printf("%s", j ? ", " : ""); config_print_scalar(stdout, v->list[j], true); }
            printf("]\n");
        } else {
            config_print_scalar(stdout, v->text, r->kind == CLI_STRING);
            putchar('\n');
        }
    }
}

int cli_parse(Cli *cli, const CliRow *rows, int argc, char **argv, bool *done)
{
    signal(SIGXFSZ, SIG_IGN); /* a file that is too large is an error of the write */
    signal(SIGPIPE, SIG_IGN); /* `| head` ends what is printed, not the work; see cli_finish */
    int own = count_rows(rows), common = count_rows(common_rows), code, n = 0;
    const char **words = NULL;
    *done = false;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--json")) cli->json = true;
    cli->n_rows = own + common;
    cli->rows = calloc((size_t)cli->n_rows, sizeof *cli->rows);
    cli->values = calloc((size_t)cli->n_rows, sizeof *cli->values);
    if (!cli->rows || !cli->values) { fputs("no memory\n", stderr); exit(6); }
    memcpy(cli->rows, rows, sizeof *rows * (size_t)own);
    memcpy(cli->rows + own, common_rows, sizeof *rows * (size_t)common);
    for (int i = own; i < cli->n_rows; i++) /* a tool's own row of the same name replaces the common one */
        for (int k = 0; k < own; k++)
            if (!strcmp(cli->rows[i].name, rows[k].name)) memmove(&cli->rows[i], &cli->rows[i + 1], sizeof *rows * (size_t)(cli->n_rows-- - 1 - i));
    for (int i = 0; i < cli->n_rows; i++) cli->values[i].text = cli->rows[i].def;
    cli->terminal = isatty(2);
    code = normalise(cli, argc, argv, &words, &n);
    if (code) return code;
    /* the config file is weaker than environment and flags, so find it first; of a library's options only the common ones are read here */
    for (int i = 1; i + 1 < n && !code; i++)
        if (!strcmp(words[i], "--config")) code = read_config(cli, words[i + 1]);
    if (!code) code = read_environment(cli);
    if (!code) code = parse_flags(cli, n, words);
    free(words);
    if (code) return code;
    const char *color = cli_text(cli, "color");
    const char *no_color = getenv("NO_COLOR");
    cli->color = !strcmp(color, "always") || (!strcmp(color, "auto") && cli->terminal && !(no_color && *no_color));
    cli->json = cli_flag(cli, "json");
    cli->quiet = cli_flag(cli, "quiet");
    cli->verbose = cli_flag(cli, "verbose");
    cli->progress = cli->terminal && !cli->quiet && !cli_flag(cli, "no-progress");
    *done = true;
    if (cli_flag(cli, "help")) print_help(cli);
    else if (cli_flag(cli, "version")) printf("%s %s\n", cli->tool, mpr_version());
    else if (cli_flag(cli, "print-man")) print_man(cli);
    else if (cli_flag(cli, "print-config") && !cli->library_options) print_config(cli);
    else *done = false;
    return *done ? cli_finish(cli, 0) : 0;
}

static void log_sink(void *user, mpr_log_level level, const char *message)
{
    const Cli *cli = user;
    mpr_log_level least = cli->quiet ? MPR_LOG_WARNING : cli->verbose ? MPR_LOG_DEBUG : MPR_LOG_NOTICE;
    if (level < least) return;
    if (cli->progress) fputs("\r\033[K", stderr);
    if (level == MPR_LOG_WARNING) fprintf(stderr, "%swarning:%s ", cli->color ? "\033[33m" : "", cli->color ? "\033[0m" : "");
    fprintf(stderr, "%s\n", message);
}

int cli_context(Cli *cli)
{
    mpr_context_options o = {.size = sizeof o, .log = log_sink, .log_user = cli, .device = cli_text(cli, "device"),
                             .threads = (int)cli_int(cli, "threads"), .no_cuda_graph = cli_flag(cli, "no-cuda-graph"),
                             .cuda_tune = cli_flag(cli, "cuda-tune")};
    if (cli_int(cli, "threads") < 0 || cli_int(cli, "threads") > 1024)
        return cli_usage(cli, "0 takes as many as the process may use", "--threads takes 0 to 1024, found %s", cli_text(cli, "threads"));
    if (mpr_context_create(&o, &cli->ctx) != MPR_OK) return cli_fail(cli, cli->ctx);
    return 0;
}

mpr_dtype cli_precision(Cli *cli, int *bad)
{
    bool fp16 = cli_flag(cli, "fp16"), bf16 = cli_flag(cli, "bf16");
    if (fp16 && bf16) *bad = cli_usage(cli, "choose one", "--fp16 and --bf16 contradict each other");
    return fp16 ? MPR_FLOAT16 : bf16 ? MPR_BFLOAT16 : MPR_DTYPE_NONE;
}

void cli_free(Cli *cli)
{
    mpr_context_destroy(cli->ctx);
    for (int i = 0; cli->values && i < cli->n_rows; i++) { free(cli->values[i].list); free(cli->values[i].order); }
    free(cli->rows);
    free(cli->values);
    free(cli->args);
    for (int i = 0; i < cli->n_kept; i++) free(cli->kept[i]);
    free(cli->kept);
}
