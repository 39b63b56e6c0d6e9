/* Shared by the tests: cmocka in the right order, and checks that print what they saw. */
#ifndef MPRI_TESTS_SUPPORT_H
#define MPRI_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "runtime/base/err.h"

/* Fails with the error's text when status is not MPR_OK. */
#define assert_ok(status, err) test_assert_ok((status), (err), __FILE__, __LINE__)
void test_assert_ok(mpr_status status, const Err *err, const char *file, int line);
/* The status is `code` and the error's text (message, where, advice) has every word of a NULL-terminated list. */
void test_assert_error(mpr_status code, const Err *err, const char *const *words, const char *file, int line);
#define assert_error(code, err, ...) test_assert_error((code), (err), (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)

/* The same for a call of mpr.h, whose handle knows the error. */
#define assert_call(call, handle)                                                                  \
    do {                                                                                           \
        if ((call) != MPR_OK) {                                                                    \
            mpr_error error_ = mpr_last_error(handle);                                             \
            fail_msg("%s: %s | %s | %s", mpr_status_text(error_.code), error_.message,             \
                     error_.where, error_.advice);                                                 \
        }                                                                                          \
    } while (0)

/* The device of mpr_context_options: the CPU, or in a program with a CUDA device what MPR_TEST_DEVICE says. */
#define TEST_DEVICE getenv("MPR_TEST_DEVICE")

/* Takes away a folder below /tmp that a test has made. */
void test_remove_folder(const char *path);

/* Folder with the test data (MPR_TEST_DATA). */
const char *test_data(const char *name);

#endif
