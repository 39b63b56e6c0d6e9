/* Handles: what every object of the public API begins with, and how a call enters and leaves the
 * library.
 *
 * A call enters with the handle that its error belongs to. Entering checks that the pointer is a
 * live handle of the expected kind, that no other thread is inside the same session, and that the
 * process was not forked; it clears the last error and sets the floating-point mode. Leaving
 * restores the mode. */
#ifndef MPRI_TRAIN_HANDLE_H
#define MPRI_TRAIN_HANDLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>
#include "runtime/base/err.h"
#include "runtime/exec/device.h"

/* X(constant, what people call it) */
#define MPRI_HANDLES(X)                                                                            \
    X(HANDLE_CONTEXT, "context")                                                                   \
    X(HANDLE_MODEL, "model")                                                                       \
    X(HANDLE_SESSION, "session")                                                                   \
    X(HANDLE_OPTIMIZER, "optimizer")                                                               \
    X(HANDLE_SCALER, "scaler")                                                                     \
    X(HANDLE_DATASET, "dataset")                                                                   \
    X(HANDLE_SCHEDULE, "schedule")                                                                 \
    X(HANDLE_PREPARED, "prepared")                                                                 \
    X(HANDLE_OPTIONS, "trainer options")                                                           \
    X(HANDLE_TRAINER, "trainer")                                                                   \
    X(HANDLE_TENSORS, "tensors")

typedef enum HandleKind {
#define X(name, text) name,
    MPRI_HANDLES(X)
#undef X
        HANDLE_KINDS
} HandleKind;

typedef struct Handle {
    uint64_t magic; /* a constant mixed with the kind; 0 once destroyed */
    HandleKind kind;
    struct Handle *guard; /* whose `busy` protects this object: the session's, or its own */
    atomic_int busy;
    bool shared;   /* may be used by several threads: no busy check (context, model) */
    pid_t process; /* that made it */
    Err err;
    /* Of a guard: what has to be done before a call on it or its children does something, apart from those
     * on what is prepared, which know by themselves, and on inputs. NULL: nothing. */
    mpr_status (*settle)(struct Handle *guard, Err *err);
} Handle;

/* guard NULL: the handle guards itself. */
void mpri_handle_init(Handle *h, HandleKind kind, Handle *guard);
/* Live handle of this kind? NULL gives false. */
bool mpri_handle_is(const void *handle, HandleKind kind);
/* Marks it dead, so that a later use is an error as long as the memory is not reused. */
void mpri_handle_end(Handle *h);
const char *mpri_handle_kind_name(HandleKind kind);

typedef struct ApiCall {
    Handle *handle;
    bool holds; /* the guard's busy flag is ours */
    FpMode fp;
    Err *err;          /* the handle's; never NULL inside a call */
    mpr_status status; /* why the call was refused */
} ApiCall;

/* False when the call is refused: return call->status then, and do not leave. */
bool mpri_api_enter(ApiCall *call, const void *handle, HandleKind kind);
/* Like enter, for reading a handle whose pending error must survive (destroy functions,
 * getters). */
bool mpri_api_enter_quiet(ApiCall *call, const void *handle, HandleKind kind);
/* Like enter, for calls that leave alone whatever is under way: what they touch is not needed for it. */
bool mpri_api_enter_late(ApiCall *call, const void *handle, HandleKind kind);
mpr_status mpri_api_leave(ApiCall *call, mpr_status status);
/* A further handle argument: MPR_E_USAGE names what was expected. */
mpr_status mpri_api_argument(const void *handle, HandleKind kind, Err *err);
/* The session that two handles belong to must be one: MPR_E_USAGE otherwise. */
mpr_status mpri_api_same(const void *a, const void *b, const char *what, Err *err);
/* A pointer argument that must not be NULL. */
mpr_status mpri_api_pointer(const void *p, const char *name, Err *err);

/* Option structs grow at the end: copies min(size, known) bytes and zeroes the rest. NULL src: all
 * zero. MPR_E_USAGE when size is not set, or bytes beyond the known ones are not zero. */
mpr_status mpri_take_options(void *dst, size_t known, const void *src, const char *what, Err *err);

#endif
