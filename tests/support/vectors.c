/* Files of recorded values; see vectors.h. */
#include "tests/support/vectors.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


static const char *folder(void)
{
    const char *given = getenv("MPR_VECTORS");
    return given && *given ? given : test_data("amp");
}

bool test_vectors_own(void)
{
    const char *given = getenv("MPR_VECTORS");
    return !given || !*given;
}

static int is_vectors(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 5 && !strcmp(e->d_name + n - 5, ".json");
}

static bool one_of(const char *const *list, const char *word)
{
    while (*list && strcmp(*list, word)) list++;
    return *list != NULL;
}

static void check_keys(const char *path, const json_t *root)
{
    static const char *const known[] = {
        "format", "torch",  "defaults", "torch_preset", "scenarios", "ops",
        "graphs", "narrow", "widen",    "arithmetic",   NULL};
    static const char *const lists[] = {"scenarios", "ops",   "graphs",
                                        "narrow",    "widen", "arithmetic", NULL};
    const char *key;
    json_t *value;
    if (!json_is_object(root)) fail_msg("%s: not an object", path);
    json_object_foreach((json_t *)root, key, value)
    {
        if (!one_of(known, key)) fail_msg("%s: unknown list '%s'", path, key);
        if (one_of(lists, key) && !json_is_array(value))
            fail_msg("%s: '%s' is not a list", path, key);
    }
    const char *format = json_string_value(json_object_get(root, "format"));
    if (format && strcmp(format, "mpr-amp-vectors/1"))
        fail_msg("%s: unknown format '%s'", path, format);
}

int test_vectors_each(const char *list, TestVectorFn fn, void *user)
{
    struct dirent **names;
    int count = 0, n = scandir(folder(), &names, is_vectors, alphasort);
    if (n <= 0) fail_msg("no vectors in '%s'", folder());
    for (int i = 0; i < n; i++) {
        char path[1024];
        json_error_t why;
        size_t k;
        json_t *row;
        snprintf(path, sizeof path, "%s/%s", folder(), names[i]->d_name);
        json_t *root = json_load_file(path, 0, &why);
        if (!root) fail_msg("%s:%d: %s", path, why.line, why.text);
        check_keys(path, root);
        json_array_foreach(json_object_get(root, list), k, row)
        {
            if (!json_is_object(row)) fail_msg("%s: row %zu of '%s'", path, k, list);
            fn(user, row);
            count++;
        }
        json_decref(root);
        free(names[i]);
    }
    free(names);
    print_message("%d rows of '%s' in '%s'\n", count, list, folder());
    return count;
}
