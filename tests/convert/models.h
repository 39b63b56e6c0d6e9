/* Models of the converter's tests, and files that come and go with a test. */
#ifndef MPRI_TESTS_CONVERT_MODELS_H
#define MPRI_TESTS_CONVERT_MODELS_H

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A fresh folder below /tmp; test_remove_folder takes it away again. */
static inline void make_folder(char folder[64])
{
    strcpy(folder, "/tmp/mpr-convert-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

/* "folder/name"; one of four buffers. */
static inline const char *in_folder(const char *folder, const char *name)
{
    static char path[64][256];
    static int next;
    char *p = path[next++ % 64];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static inline bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static inline int files_in(const char *folder)
{
    char command[160];
    int n = -1;
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", folder);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static inline char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("no %s", path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    char *bytes = malloc((size_t)st.st_size + 1);
    assert_non_null(bytes);
    *n = fread(bytes, 1, (size_t)st.st_size, f);
    bytes[*n] = '\0';
    fclose(f);
    return bytes;
}

static inline void assert_same_file(const char *a, const char *b)
{
    size_t n, m;
    char *x = read_file(a, &n), *y = read_file(b, &m);
    if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

/* One conversion by the public call; *error is its text when it fails. */
static inline mpr_status convert(mpr_context *ctx, const char *from, const char *to,
                                 mpr_dtype type, const char *profile, mpr_convert_result *r)
{
    mpr_model *model;
    mpr_convert_options o = {.size = sizeof o, .to = type, .autocast_profile = profile};
    assert_call(mpr_model_load(ctx, from, NULL, &model), ctx);
    *r = (mpr_convert_result){.size = sizeof *r};
    mpr_status status = mpr_convert(model, to, &o, r);
    if (status != MPR_OK) print_message("%s: %s\n", from, mpr_last_error(model).message);
    mpr_model_destroy(model);
    return status;
}

/* ---- what every test gets: a context that keeps its last warning, and a folder ---- */

typedef struct Fixture {
    mpr_context *ctx;
    char folder[64];
    char warning[512];
} Fixture;

static inline void fixture_log(void *user, mpr_log_level level, const char *text)
{
    Fixture *f = user;
    if (level == MPR_LOG_WARNING) snprintf(f->warning, sizeof f->warning, "%s", text);
}

static inline int setup(void **state)
{
    static Fixture f;
    f = (Fixture){0};
    mpr_context_options o = {.size = sizeof o, .threads = 1, .log = fixture_log, .log_user = &f};
    assert_int_equal(mpr_context_create(&o, &f.ctx), MPR_OK);
    make_folder(f.folder);
    *state = &f;
    return 0;
}

static inline int teardown(void **state)
{
    Fixture *f = *state;
    mpr_context_destroy(f->ctx);
    test_remove_folder(f->folder);
    return 0;
}

static inline bool file_holds(const char *path, const char *text)
{
    size_t n;
    char *bytes = read_file(path, &n);
    bool found = memmem(bytes, n, text, strlen(text)) != NULL;
    free(bytes);
    return found;
}

#endif
