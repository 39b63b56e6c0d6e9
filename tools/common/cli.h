/* What all tools share: one option table gives parsing, --help, config keys and environment variables.
 *
 * Order of strength: default < --config file < MPR_* variable < flag. '-' and '_' are the same in long
 * flags. Options of kind CLI_LIST take several values: `--x a b` or `--x a --x b`. Results go to stdout,
 * everything else to stderr. */
#ifndef MPR_TOOLS_CLI_H
#define MPR_TOOLS_CLI_H

#include <mpr.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum CliKind { CLI_FLAG, CLI_STRING, CLI_INT, CLI_FLOAT, CLI_LIST } CliKind;

typedef struct CliRow {
    const char *name;      /* "output-dir" */
    char short_name;       /* 'o' or 0 */
    const char *aliases;   /* further long names, blank-separated, or NULL */
    CliKind kind;
    const char *def;       /* default as text; NULL: none */
    const char *choices;   /* "a|b|c" or NULL */
    const char *arg;       /* what --help calls the value */
    const char *help;
    const char *group;     /* heading in --help */
} CliRow;

typedef struct CliValue {
    const char *text;      /* last value; the default when not set; NULL when none */
    const char **list; int n_list;
    int *order;            /* of each item among all list items: later ones were given later */
    bool set;              /* by config, environment or flag */
} CliValue;

typedef struct Cli {
    const char *tool;      /* "mpr-run" */
    const char *usage;     /* "MODEL.onnx --inputs IN.npz [options]" */
    const char *about;     /* one line */
    const char *examples;  /* two of them */
    bool library_options;  /* the library reads configuration and variables and checks values */
    CliRow *rows; int n_rows;
    CliValue *values;
    const char **args; int n_args; /* positional */
    int n_listed;          /* list items so far */
    char **kept; int n_kept;       /* all texts of values, words and args; cli_free frees them */
    bool json, quiet, verbose, progress, color, terminal;
    mpr_context *ctx;
} Cli;

/* Rows of the tool (ends with a NULL name) are joined with the common ones. Handles --help, --version and
 * --print-config itself (*done is then true and the exit code is returned). Any usage error is printed;
 * returns its exit code, 0 when all is well. */
int cli_parse(Cli *cli, const CliRow *rows, int argc, char **argv, bool *done);
/* Context with the tool's log sink, device and threads. */
int cli_context(Cli *cli);

const CliValue *cli_value(const Cli *cli, const char *name);
const char *cli_text(const Cli *cli, const char *name);   /* NULL when none */
bool cli_flag(const Cli *cli, const char *name);
bool cli_is_set(const Cli *cli, const char *name);
int64_t cli_int(const Cli *cli, const char *name);
double cli_float(const Cli *cli, const char *name);
/* NULL-terminated list, owned by cli; NULL when the option was not given. */
const char *const *cli_list(const Cli *cli, const char *name);
/* --fp16 / --bf16 as a type; both together are a usage error (*bad). */
mpr_dtype cli_precision(Cli *cli, int *bad);

/* Print the error of a failed call in the agreed form; returns the exit code. */
int cli_fail(const Cli *cli, const void *handle);
int cli_usage(const Cli *cli, const char *advice, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Usage error when an output of --flag is a file that the tool reads; either may be NULL. */
int cli_keep_input(const Cli *cli, const char *flag, const char *output, const char *input);
/* "A=B" items of a list as names A, B …, NULL-terminated, which live as long as cli; NULL list: NULL.
 * An item of another form is a usage error. */
int cli_pairs(Cli *cli, const char *flag, const char *const *list, const char *const **pairs);
/* Flush and check stdout: a full disk is exit 5; a reader that has seen enough (a closed pipe) is no error. */
int cli_finish(const Cli *cli, int code);
void cli_free(Cli *cli);

#endif
