/* Extreme numbers: every case of every operator with one or two of its integers (attributes, contents of integer
 * constants, dims of inputs) at the borders of int64, int32 and zero, with fixed and with open dims. Shape rules,
 * gradients, passes and the reference kernels that folding runs may refuse what they get, with an error that says
 * something; they may not overflow, divide by zero, or find a dim below 0. The build with sanitizers is where most
 * of this shows.
 *
 * Arguments choose files of cases: test_op_extremes pool conv */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ref/ref.h"
#include "runtime/ir/text_form.h"
#include "tests/support/case_run.h"
#include "tests/support/support.h"

static const char *const extremes[] = {
    "-9223372036854775808", "-9223372036854775807", "-6917529027641081857", "-4611686018427387904", "-3037000500",
    "-2147483649", "-2147483648", "-1", "0", "1", "2147483647", "2147483648", "3037000500", "4611686018427387904",
    "6917529027641081855", "9223372036854775806", "9223372036854775807"};
enum { N_EXTREMES = sizeof extremes / sizeof *extremes, MAX_PLACES = 96, MAX_FILES = 256 };

typedef struct Place { /* an integer in the text of a graph */
    int at, n;
} Place;

static uint64_t tried;
static const char *trying;

/* A sanitizer that ends the program says on which graph. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));
static void say_graph(void)
{
    fprintf(stderr, "on\n%s\n", trying ? trying : "no graph");
}

/* ---- places ---- */

static int add_integers(const char *text, int from, int to, Place *places, int n)
{
    for (int i = from; i < to && n < MAX_PLACES;) {
        int begin = i;
        if (text[i] == '-') i++;
        int digits = i;
        while (i < to && isdigit((unsigned char)text[i])) i++;
        bool number = i > digits && (begin == 0 || !(isalnum((unsigned char)text[begin - 1]) || text[begin - 1] == '_'));
        if (number && text[i] != '.' && text[i] != 'e' && !isalpha((unsigned char)text[i]))
            places[n++] = (Place){begin, i - begin};
        while (i > digits && i < to && (isalnum((unsigned char)text[i]) || text[i] == '.' || text[i] == '+')) i++;
        if (i == begin) i++;
    }
    return n;
}

/* Attributes, shapes of inputs and contents of integer constants. */
static int find_places(const char *text, Place *places)
{
    int n = 0;
    for (const char *line = strchr(text, '\n'); line && line[1]; line = strchr(line + 1, '\n')) {
        int from = (int)(line + 1 - text), to = from + (int)strcspn(line + 1, "\n");
        const char *value = strstr(line + 1, " = ["), *type = strstr(line + 1, ": "), *attrs = strchr(line + 1, '{');
        if (strncmp(text + from, " input", 6) == 0) n = add_integers(text, from + 6, to, places, n);
        else if (strncmp(text + from, " const", 6) == 0) {
            bool integer = type && (strncmp(type, ": i", 3) == 0 || strncmp(type, ": u", 3) == 0);
            if (integer && value && value < text + to) n = add_integers(text, (int)(value - text) + 4, to, places, n);
        } else if (attrs && attrs < text + to) n = add_integers(text, (int)(attrs - text), to, places, n);
    }
    return n;
}

/* Dims of inputs become symbols: "f32[2,3]" is "f32[d2,d3]". */
static void open_dims(const char *text, Text *out)
{
    mpri_text_init(out, mpri_alloc_default());
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\n") + 1;
        bool input = strncmp(p, " input", 6) == 0, shape = false;
        for (size_t i = 0; i < n && p[i]; i++) {
            if (p[i] == '[') shape = true;
            if (input && shape && isdigit((unsigned char)p[i]) && !isdigit((unsigned char)p[i - 1])) mpri_text_put(out, "d");
            mpri_text_bytes(out, p + i, 1);
        }
        p += n;
    }
}

static void replace(const char *text, const Place *p, const char *by, const Place *q, const char *by2, Text *out)
{
    mpri_text_init(out, mpri_alloc_default());
    mpri_text_bytes(out, text, (size_t)p->at);
    mpri_text_put(out, by);
    int at = p->at + p->n;
    if (q) {
        mpri_text_bytes(out, text + at, (size_t)(q->at - at));
        mpri_text_put(out, by2);
        at = q->at + q->n;
    }
    mpri_text_put(out, text + at);
}

/* ---- a graph ---- */

/* In little memory, so that what is refused is what asks for much. */
static mpr_status open_graph(CaseRun *x, const char *text)
{
    memset(x, 0, sizeof *x);
    mpri_arena_init(&x->arena, mpri_alloc_default(), 0);
    mpri_arena_init(&x->scratch, mpri_alloc_default(), 0);
    x->arena.limit = x->scratch.limit = (size_t)64 << 20;
    x->ref.tables = mpri_ref_tables(&x->ref.n);
    Intern *names = mpri_intern_create(&x->arena);
    if (!names) return mpri_err_nomem(&x->err, 0);
    return mpri_graph_parse(text, &x->arena, names, mpri_op_table(), &x->g, &x->err);
}

static mpr_status bind(CaseRun *x)
{
    DimBinding *b = mpri_binding_create(&x->arena, x->g->sym);
    if (!b) return mpri_err_nomem(&x->err, 0);
    for (int i = 0; i < x->g->n_inputs; i++) {
        const Shape *s = &x->g->inputs[i].value->shape;
        for (int k = 0; k < s->rank; k++)
            if (!mpri_dim_const(s->d[k])) (void)mpri_dim_bind(b, s->d[k], 2);
    }
    x->o = (PassOptions){.grads = GRADS_TO_OUTPUTS, .grads_of_inputs = true, .training = true, .seeds = x->seeds};
    for (int i = 0; i < x->g->n_outputs; i++)
        if (mpri_dtype_is_float(x->g->outputs[i].value->dtype) && x->o.n_seeds < CASE_RESULTS)
            x->seeds[x->o.n_seeds++] = x->g->outputs[i].name;
    PassCtx ctx = {.scratch = &x->scratch, .alloc = mpri_alloc_default(), .o = &x->o, .ref = &x->ref, .binding = b};
    TRY(mpri_passes_run(&ctx, STAGE_PREPARE, x->g, &x->err));
    return mpri_passes_run(&ctx, STAGE_BIND, x->g, &x->err);
}

static void try_graph(const char *text)
{
    CaseRun x;
    tried++;
    trying = text;
    mpr_status s = open_graph(&x, text);
    if (s == MPR_OK) s = mpri_infer_graph(x.g, &x.err);
    for (int i = 0; s == MPR_OK && i < x.g->n_values; i++) {
        const Shape *shape = &x.g->values[i]->shape;
        for (int k = 0; k < shape->rank; k++)
            if (mpri_dim_const(shape->d[k]) && shape->d[k] < 0) 
                fail_msg("a dim below 0 of %s in\n%s", x.g->values[i]->name, text);
    }
    if (s == MPR_OK) s = bind(&x);
    if (s != MPR_OK && !x.err.message[0]) fail_msg("an error without words in\n%s", text);
    test_case_close(&x);
}

/* One place at a time, then one of n pairs of places. */
static void try_text(const char *text, uint64_t seed)
{
    Place places[MAX_PLACES];
    int n = find_places(text, places);
    Text t;
    for (int p = 0; p < n; p++)
        for (int e = 0; e < N_EXTREMES; e++) {
            replace(text, &places[p], extremes[e], NULL, NULL, &t);
            try_graph(t.text);
            mpri_text_free(&t);
        }
    for (int p = 0; p < n; p++)
        for (int q = p + 1; q < n; q++)
            for (int e = 0; e < N_EXTREMES * N_EXTREMES; e++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                if ((seed >> 33) % (uint64_t)n) continue;
                replace(text, &places[p], extremes[e / N_EXTREMES], &places[q], extremes[e % N_EXTREMES], &t);
                try_graph(t.text);
                mpri_text_free(&t);
            }
}

/* ---- files ---- */

static void check_file(void **state)
{
    const CaseFile *f = *state;
    for (int i = 0; i < f->n; i++) {
        const CaseRow *r = &f->rows[i];
        if (r->broken) continue;
        for (int fed = 0; fed < 2; fed++) { /* the first tensor a constant, as the row may have it, or an input */
            Text fixed, open;
            test_case_text(r, MPR_FLOAT32, fed, NULL, &fixed);
            open_dims(fixed.text, &open);
            try_text(fixed.text, (uint64_t)(4 * i + 2 * fed));
            try_text(open.text, (uint64_t)(4 * i + 2 * fed + 1));
            mpri_text_free(&open);
            mpri_text_free(&fixed);
        }
    }
    trying = NULL;
}

/* After a crash, which cmocka catches. */
static int say_crash(void **state)
{
    (void)state;
    if (trying) say_graph();
    trying = NULL;
    return 0;
}

int main(int argc, char **argv)
{
    static CaseFile files[MAX_FILES];
    static struct CMUnitTest tests[MAX_FILES];
    Arena arena;
    int n = 0;
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(say_graph);
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    DIR *d = opendir(test_data("../op/cases"));
    for (struct dirent *e; d && (e = readdir(d)) && n < MAX_FILES;) {
        size_t length = strlen(e->d_name);
        bool chosen = argc == 1;
        for (int i = 1; i < argc; i++) chosen = chosen || strncmp(argv[i], e->d_name, strlen(argv[i])) == 0;
        if (!chosen || length < 5 || strcmp(e->d_name + length - 4, ".txt") != 0) continue;
        const char *name = mpri_arena_printf(&arena, "%s", e->d_name);
        const char *path = mpri_arena_printf(&arena, "%s/%s", test_data("../op/cases"), name);
        if (!test_case_file_read(&files[n], path, name, &arena)) return 1;
        tests[n] = (struct CMUnitTest){.name = name, .test_func = check_file, .teardown_func = say_crash, .initial_state = &files[n]};
        n++;
    }
    if (d) closedir(d);
    if (!n) return 1;
    int failed = _cmocka_run_group_tests("extremes", tests, (size_t)n, NULL, NULL);
    printf("%llu graphs\n", (unsigned long long)tried);
    mpri_arena_destroy(&arena);
    return failed;
}
