/* Handles and the two ends of an API call. The trap is a stranger's pointer: only the magic is read
 * before it is known to be ours. */
#include "runtime/train/handle.h"

#include <string.h>
#include <unistd.h>

#define HANDLE_MAGIC UINT64_C(0x6d70722d68616e64)

static uint64_t magic_of(HandleKind kind)
{
    return HANDLE_MAGIC ^ ((uint64_t)kind * UINT64_C(0x9e3779b97f4a7c15));
}

void mpri_handle_init(Handle *h, HandleKind kind, Handle *guard)
{
    h->kind = kind;
    h->guard = guard ? guard : h;
    atomic_init(&h->busy, 0);
    h->shared = kind == HANDLE_CONTEXT || kind == HANDLE_MODEL;
    h->process = getpid();
    mpri_err_clear(&h->err);
    h->magic = magic_of(kind);
}

bool mpri_handle_is(const void *handle, HandleKind kind)
{
    const Handle *h = handle;
    return h && h->magic == magic_of(kind);
}

void mpri_handle_end(Handle *h)
{
    h->magic = 0;
}

static bool handle_any(const void *handle)
{
    const Handle *h = handle;
    if (!h) return false;
    for (int kind = 0; kind < HANDLE_KINDS; kind++)
        if (h->magic == magic_of((HandleKind)kind)) return true;
    return false;
}

static bool enter(ApiCall *call, const void *handle, HandleKind kind, bool clear, bool settle)
{
    Handle *h = (Handle *)(uintptr_t)handle;
    *call = (ApiCall){.status = MPR_E_USAGE};
    if (!mpri_handle_is(handle, kind)) {
        if (handle_any(handle)) {
            mpri_err_clear(&h->err);
            mpri_err_set(&h->err, MPR_E_USAGE, "a %s was given where a %s is needed",
                         mpri_handle_kind_name(h->kind), mpri_handle_kind_name(kind));
            mpri_err_advice(&h->err, "pass the handle that the function's first parameter names");
        }
        return false;
    }
    if (h->process != getpid()) {
        call->status = MPR_E_ORDER;
        mpri_err_clear(&h->err);
        mpri_err_set(&h->err, MPR_E_ORDER,
                     "this %s was made by process %ld and is used by its child %ld",
                     mpri_handle_kind_name(kind), (long)h->process, (long)getpid());
        mpri_err_advice(&h->err, "open a session of its own in the child process");
        return false;
    }
    if (!h->guard->shared) {
        int idle = 0;
        if (!atomic_compare_exchange_strong(&h->guard->busy, &idle, 1)) {
            call->status = MPR_E_ORDER;
            return false;
        }
        call->holds = true;
    }
    if (clear) mpri_err_clear(&h->err);
    call->handle = h;
    call->err = &h->err;
    call->status = MPR_OK;
    call->fp = mpri_fpmode_enter();
    if (!settle || !h->guard->settle || kind == HANDLE_PREPARED) return true;
    call->status = h->guard->settle(h->guard, &h->err);
    if (call->status != MPR_OK) mpri_api_leave(call, call->status);
    return call->status == MPR_OK;
}

bool mpri_api_enter(ApiCall *call, const void *handle, HandleKind kind)
{
    return enter(call, handle, kind, true, true);
}

bool mpri_api_enter_quiet(ApiCall *call, const void *handle, HandleKind kind)
{
    return enter(call, handle, kind, false, true);
}

bool mpri_api_enter_late(ApiCall *call, const void *handle, HandleKind kind)
{
    return enter(call, handle, kind, true, false);
}

mpr_status mpri_api_leave(ApiCall *call, mpr_status status)
{
    mpri_fpmode_leave(call->fp);
    if (call->holds) atomic_store(&call->handle->guard->busy, 0);
    return status;
}

mpr_status mpri_api_argument(const void *handle, HandleKind kind, Err *err)
{
    if (mpri_handle_is(handle, kind)) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "%s where a %s is needed",
                 handle ? "another kind of handle" : "NULL", mpri_handle_kind_name(kind));
    return mpri_err_advice(err, "create the %s first and pass it on", mpri_handle_kind_name(kind));
}

mpr_status mpri_api_same(const void *a, const void *b, const char *what, Err *err)
{
    if (a == b) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "the %s belongs to another session", what);
    return mpri_err_advice(err, "use objects that were made from the same session");
}

mpr_status mpri_api_pointer(const void *p, const char *name, Err *err)
{
    if (p) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "argument '%s' is NULL", name);
    return mpri_err_advice(err, "pass a valid pointer");
}

mpr_status mpri_take_options(void *dst, size_t known, const void *src, const char *what, Err *err)
{
    memset(dst, 0, known);
    if (!src) {
        memcpy(dst, &known, sizeof(known));
        return MPR_OK;
    }
    size_t size;
    memcpy(&size, src, sizeof(size));
    if (size < sizeof(size_t) || size > 65536) {
        mpri_err_set(err, MPR_E_USAGE, "%s.size is %zu; this library knows %zu bytes", what, size,
                     known);
        return mpri_err_advice(err, "set .size = sizeof(%s)", what);
    }
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)src)[i]) {
            mpri_err_set(err, MPR_E_USAGE,
                         "%s has %zu bytes and sets one beyond the %zu that this library knows",
                         what, size, known);
            return mpri_err_advice(err, "link with a library as new as the header");
        }
    memcpy(dst, src, size < known ? size : known);
    memcpy(dst, &known, sizeof(known));
    return MPR_OK;
}

const char *mpri_handle_kind_name(HandleKind kind)
{
    static const char *const names[] = {
#define X(name, text) [name] = text,
        MPRI_HANDLES(X)
#undef X
    };
    return (unsigned)kind < HANDLE_KINDS ? names[kind] : "handle";
}
