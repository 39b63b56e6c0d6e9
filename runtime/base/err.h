/* The error object: first error wins, context is added on the way out.
 *
 * Every fallible function returns mpr_status (warn-unused) and takes `Err *err` last. The callee
 * that detects the fault calls mpri_err_set; callers may add where it happened. Texts live inside
 * the object, nothing is allocated, names from files are escaped and shortened when formatted with
 * mpri_err_name. An Err is owned by the API handle or the caller's stack. */
#ifndef MPRI_BASE_ERR_H
#define MPRI_BASE_ERR_H

#include <mpr.h>
#include <stdarg.h>
#include <stddef.h>

typedef struct Err {
    mpr_status code;    /* MPR_OK while nothing has failed */
    int findings;       /* independent findings collected in message (at most 50 are kept) */
    char message[8192]; /* what failed, found and allowed value */
    char where[2048];   /* file, offset or row, node name and operator, tensor, types, shapes */
    char advice[1024];  /* one thing to do; empty only when there is none */
} Err;

#define MPRI_MUST_USE __attribute__((warn_unused_result))
#define MPRI_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Return from the current function when `call` fails. The only control-flow macro of the code
 * base. */
#define TRY(call)                             \
    do {                                      \
        mpr_status try_status_ = (call);      \
        if (try_status_ != MPR_OK) return try_status_; \
    } while (0)

void mpri_err_clear(Err *err);

/* Record the first error. Later calls on a set object change nothing. Returns err->code. */
mpr_status mpri_err_set(Err *err, mpr_status code, const char *fmt, ...) MPRI_PRINTF(3, 4);
/* Add an independent finding of the same kind (one line each in message). Returns err->code. */
mpr_status mpri_err_finding(Err *err, mpr_status code, const char *fmt, ...) MPRI_PRINTF(3, 4);
/* Prepend context, outermost first: "file.onnx, node 'x' (MatMul): …". Returns err->code. */
mpr_status mpri_err_where(Err *err, const char *fmt, ...) MPRI_PRINTF(2, 3);
/* Set the advice when none is there yet. Returns err->code. */
mpr_status mpri_err_advice(Err *err, const char *fmt, ...) MPRI_PRINTF(2, 3);
/* MPR_E_NOMEM with the size that was asked for. */
mpr_status mpri_err_nomem(Err *err, size_t bytes);

/* Escape control bytes and invalid UTF-8 of a name that came from a file and shorten it to 200
 * bytes. Returns one of eight rotating thread-local buffers: good until eight further calls. */
const char *mpri_err_name(const char *name);

#endif
