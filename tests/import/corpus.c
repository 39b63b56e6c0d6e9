/* The corpus of broken and odd files, and real exports: what each must give. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "tests/support/wire_model.h"

typedef struct Seen { /* warnings of one import */
    char text[16384];
} Seen;

static void listen(void *user, mpr_log_level level, const char *message)
{
    Seen *seen = user;
    size_t used = strlen(seen->text);
    if (level == MPR_LOG_WARNING)
        snprintf(seen->text + used, sizeof seen->text - used, "%s\n", message);
}

static bool contains_any(const char *text, const char *choices)
{
    for (const char *c = choices; *c;) {
        size_t n = strcspn(c, "|");
        for (const char *t = text; *t; t++)
            if (!strncasecmp(t, c, n)) return true;
        c += n;
        if (*c == '|') c++;
    }
    return false;
}

static bool listed(const char *codes, const char *code)
{
    const char *at = strstr(codes, code);
    size_t n = strlen(code);
    return at && (at[n] == '\0' || at[n] == ',');
}

static bool check_line(const char *file, const char *codes, char *words)
{
    static Seen seen;
    char path[600], text[32000];
    Err err;
    Log log = {listen, &seen};
    ImportOptions o = {.log = &log};
    seen.text[0] = '\0';
    snprintf(path, sizeof path, "%s/%s", test_data("bad/onnx"), file);
    ImportedModel *m = wm_import(path, &o, &err);
    if (m) {
        Err invalid;
        mpri_err_clear(&invalid);
        if (!strstr(file, "unknown") && mpri_graph_validate(m->graph, "import", &invalid) != MPR_OK)
            print_error("%s: %s\n", file, invalid.message);
        mpri_import_destroy(m, mpri_alloc_default());
    }
    const char *code = m ? "accept" : mpr_status_text(err.code);
    if (m && listed(codes, "later")) return true;
    if (!listed(codes, code)) {
        print_error("%s: %s, expected %s: %s | %s | %s\n", file, code, codes, err.message,
                    err.where, err.advice);
        return false;
    }
    snprintf(text, sizeof text, "%s %s %s %s", err.message, err.where, err.advice, seen.text);
    for (char *save = NULL, *w = strtok_r(words, ";", &save); w && !(m && !strstr(file, "ok-"));
         w = strtok_r(NULL, ";", &save))
        if (!contains_any(text, w)) {
            print_error("%s: no '%s' in: %s\n", file, w, text);
            return false;
        }
    return true;
}

static void test_broken_and_odd_files(void **state)
{
    (void)state;
    char line[2048];
    int n = 0, wrong = 0;
    FILE *f = fopen(test_data("bad/expect.txt"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#') continue;
        line[strcspn(line, "\n")] = '\0';
        char *codes = strchr(line, '\t'), *words = codes ? strchr(codes + 1, '\t') : NULL;
        assert_non_null(words);
        *codes++ = *words++ = '\0';
        n++;
        wrong += !check_line(line, codes, words);
    }
    fclose(f);
    assert_true(n > 200);
    assert_int_equal(wrong, 0);
}

/* ---- real exports */

static const Param *param_holding(const ImportedModel *m, const char *tensor)
{
    for (int i = 0; i < m->graph->n_params; i++) {
        const Param *p = &m->graph->params[i];
        if (!strcmp(p->name, tensor)) return p;
        for (int k = 0; k < p->n_copies; k++)
            if (!strcmp(p->copies[k].name, tensor)) return p;
    }
    return NULL;
}

static bool same_file(const char *a, const char *b)
{
    size_t n, k;
    void *x = wm_read(a, &n), *y = wm_read(b, &k);
    bool same = n == k && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

static int check_row(const ImportedModel *m, const char *file, const char *torch,
                     const char *tensor, const char *how)
{
    const Param *p = param_holding(m, tensor);
    bool own = !strcmp(how, "own");
    const char *wrapped =
        strstr(torch, "net.") ? torch : NULL; /* loss models put "model." before every name */
    bool named = p && (!own || p->n_copies || !strcmp(p->public_name, torch) ||
                       (wrapped && strstr(p->public_name, torch)));
    if (p && p->trained && named && (strcmp(how, "copy") || p->n_copies) &&
        (strcmp(how, "identity") || p->identity_of))
        return 0;
    print_error("%s: %s (%s, %s): %s, public name %s, %s\n", file, tensor, torch, how,
                p ? "found" : "not found", p ? p->public_name : "-", p ? p->reason : "-");
    return 1;
}

static void test_parameters_of_exports(void **state)
{
    (void)state;
    char line[1024], file[256] = "";
    ImportedModel *m = NULL;
    int wrong = 0, rows = 0;
    FILE *f = fopen(test_data("oracle/params.txt"), "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char name[256], torch[256], tensor[256], how[32];
        if (line[0] == '#') continue;
        assert_int_equal(
            sscanf(line, "%255[^\t]\t%255[^\t]\t%255[^\t]\t%31s", name, torch, tensor, how), 4);
        if (strcmp(name, file) != 0) {
            char path[600];
            mpri_import_destroy(m, mpri_alloc_default());
            snprintf(path, sizeof path, "%s/%s", test_data("oracle"), name);
            strcpy(file, name);
            m = wm_import_ok(path);
            char out[300];
            Err err;
            mpri_err_clear(&err);
            snprintf(out, sizeof out, "%s/same.onnx", wm_folder());
            assert_ok(mpri_export_file(m, out, NULL, 0, NULL, &err), &err);
            assert_true(same_file(path, out));
        }
        rows++;
        wrong += check_row(m, file, torch, tensor, how);
    }
    fclose(f);
    mpri_import_destroy(m, mpri_alloc_default());
    assert_true(rows > 300);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broken_and_odd_files),
        cmocka_unit_test(test_parameters_of_exports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
