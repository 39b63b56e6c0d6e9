/* Checks shared by the tests. */
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void test_assert_ok(mpr_status status, const Err *err, const char *file, int line)
{
    if (status == MPR_OK) return;
    print_error("%s: %s | %s | %s\n", mpr_status_text(status), err->message, err->where, err->advice);
    _fail(file, line);
}

void test_assert_error(mpr_status code, const Err *err, const char *const *words, const char *file, int line)
{
    if (err->code != code) {
        print_error("expected %s, got %s: %s\n", mpr_status_text(code), mpr_status_text(err->code), err->message);
        _fail(file, line);
    }
    for (; *words; words++)
        if (!strstr(err->message, *words) && !strstr(err->where, *words) && !strstr(err->advice, *words)) {
            print_error("no '%s' in: %s | %s | %s\n", *words, err->message, err->where, err->advice);
            _fail(file, line);
        }
}

void test_remove_folder(const char *path)
{
    char command[512];
    assert_true(!strncmp(path, "/tmp/mpr-", 9) && !strchr(path, '\''));
    assert_true(snprintf(command, sizeof command, "rm -rf '%s'", path) < (int)sizeof command);
    assert_int_equal(system(command), 0);
}

const char *test_data(const char *name)
{
    static char path[8][512];
    static int next;
    char *p = path[next++ % 8];
    const char *root = getenv("MPR_TEST_DATA");
    snprintf(p, 512, "%s/%s", root ? root : "data", name);
    return p;
}
