/* The tools' command line: what a flag without its value, an empty value or an output on top of an
 * input must say. Runs the built programs; the last line of standard error is the error object. */
#include "tests/train/digits.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Case {
    const char *tool, *words; /* MODEL and DATA are replaced by the digits' files */
    const char *code, *says;
} Case;

static const Case cases[] = {
    {"mpr-train", "MODEL --learning-rate --json", "MPR_E_USAGE", "learning-rate"},
    {"mpr-train", "MODEL --json -o", "MPR_E_USAGE", "output-dir"},
    {"mpr-train", "MODEL -o --json", "MPR_E_USAGE", "output-dir"},
    {"mpr-train", "MODEL --json --train-data", "MPR_E_USAGE", "train-data"},
    {"mpr-train", "MODEL --train-data --json", "MPR_E_USAGE", "train-data"},
    {"mpr-train", "MODEL --json --learning-rate=", "MPR_E_USAGE", "learning-rate"},
    {"mpr-train", "MODEL --json --fp16=", "MPR_E_USAGE", "fp16"},
    {"mpr-train", "MODEL --json --threads 2x", "MPR_E_USAGE", "2x"},
    {"mpr-run", "MODEL --json --threads 2x", "MPR_E_USAGE", "2x"},
    {"mpr-train", "MODEL --json --synthetic 8 --tie a", "MPR_E_USAGE", "A=B"},
    {"mpr-train", "MODEL --json --synthetic 8 --tie a=b", "MPR_E_USAGE", "no tensor 'a'"},
    {"mpr-inspect", "MODEL --json --untie nothing", "MPR_E_USAGE", "nothing"},
    {"mpr-inspect", "MODEL --json --tie =b", "MPR_E_USAGE", "A=B"},
    {"mpr-run", "MODEL --json --inputs=", "MPR_E_USAGE", "inputs"},
    {"mpr-run", "MODEL --json --inputs ''", "MPR_E_USAGE", "inputs"},
    {"mpr-run", "MODEL --json --inputs DATA --outputs MODEL", "MPR_E_USAGE", "same file"},
    {"mpr-run", "MODEL --json --inputs DATA --outputs DATA", "MPR_E_USAGE", "same file"},
    {"mpr-run", "MODEL --json --inputs DATA --loss auto --grads DATA", "MPR_E_USAGE", "same file"},
    {"mpr-run", "MODEL --json --inputs DATA --loss auto --grads /tmp/x --outputs /tmp/x",
     "MPR_E_USAGE", "/tmp/x"},
};

static void expand(char *out, size_t size, const char *words)
{
    size_t n = 0;
    while (*words && n + 1 < size) {
        const char *file = !strncmp(words, "MODEL", 5)  ? "digits/model_ts.onnx"
                           : !strncmp(words, "DATA", 4) ? "digits/eval.npz"
                                                        : NULL;
        if (!file) {
            out[n++] = *words++;
            continue;
        }
        n += (size_t)snprintf(out + n, size - n, "%s", test_data(file));
        words += *words == 'M' ? 5 : 4;
    }
    out[n] = 0;
}

static void check(const Case *c)
{
    const char *build = getenv("MPR_TEST_BUILD");
    char tool[1024], words[2048], command[4096], line[4096], last[4096] = "";
    snprintf(tool, sizeof(tool), "%s/%s", build ? build : ".", c->tool);
    if (access(tool, X_OK) != 0) fail_msg("%s is not built", tool);
    expand(words, sizeof(words), c->words);
    snprintf(command, sizeof(command), "'%s' %s 2>&1 >/dev/null", tool, words);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) memcpy(last, line, sizeof(last));
    int status = pclose(f);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(last, c->code) ||
        !strstr(last, c->says) || strncmp(last, "{\"error\":{", 10))
        fail_msg("%s %s: status %d, %s", c->tool, c->words, status, last);
}

static void refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) check(&cases[i]);
}

/* The options of all tools come from MPR_* in mpr-train as well, whose own ones the library reads. */
static void environment(void **state)
{
    (void)state;
    setenv("MPR_THREADS", "3x", 1);
    check(&(Case){"mpr-train", "MODEL --json --synthetic 8", "MPR_E_USAGE", "MPR_THREADS"});
    check(&(Case){"mpr-run", "MODEL --json --inputs DATA", "MPR_E_USAGE", "MPR_THREADS"});
    unsetenv("MPR_THREADS");
}

/* Common keys of a configuration file are the tool's, all others the library's. */
static void configuration(void **state)
{
    (void)state;
    char path[] = "/tmp/mpr-tools-XXXXXX", words[128];
    close(mkstemp(path));
    static const struct {
        const char *text, *says;
    } files[] = {{"threads: 3x\n", "3x"},
                 {"threads: 1\nlerning-rate: 1\n", "learning-rate"},
                 {"help: true\n", "help"}};
    for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(files[i].text, f);
        assert_int_equal(fclose(f), 0);
        snprintf(words, sizeof(words), "MODEL --json --synthetic 8 --config %s", path);
        check(&(Case){"mpr-train", words, "MPR_E_USAGE", files[i].says});
    }
    unlink(path);
}

/* The files that the refusals name are the tests' own data: they are as they were. */
static void inputs_untouched(void **state)
{
    (void)state;
    struct stat s;
    assert_int_equal(stat(test_data("digits/eval.npz"), &s), 0);
    assert_true(s.st_size > 1000);
    assert_int_equal(stat(test_data("digits/model_ts.onnx"), &s), 0);
    assert_true(s.st_size > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(environment),
        cmocka_unit_test(configuration),
        cmocka_unit_test(inputs_untouched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
