/* The CUDA device: one queue that everything goes through in order, so a step never waits for the host.
 *
 * copy_in goes through a ring of pinned memory: the caller may change its bytes at once, and the copy
 * waits for nothing but the half of the ring that it uses anew. Only copy_out, synchronize and freeing
 * wait. Recordings, small copies and zeroings are put off until something else comes or submit is called,
 * so that a sequence of them is one CUDA graph (tape.h). The first error of the runtime other than a
 * refused allocation or recording is kept: the device is lost, and every later call says the same at once. */
#include <stdio.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/product.h"
#include "kernels/cuda/tape.h"
#include "runtime/base/text.h"

enum { RING = 2, RING_BYTES = 4 << 20, INPUTS_MOST = 1 << 30 };

typedef struct Cuda {
    CudaDevice c;           /* first: kernels and Device pointers see it */
    cudaStream_t stream;
    Device *host;           /* for operators without a CUDA kernel: threads and instruction set */
    char *ring[RING];       /* pinned */
    cudaEvent_t ring_free[RING];
    bool ring_used[RING];
    int ring_at;
    size_t ring_fill;       /* bytes taken of the half in use */
    bool capturing;
    Tape tape;
    char *late;             /* pinned: what late_copy brings, DEVICE_LATE_BYTES each */
    cudaEvent_t late_done[DEVICE_LATE];
    struct LtTuned *tuned;
    Err lost;               /* set: what every call says */
    char name[128];
} Cuda;

/* ---- errors ---- */

static mpr_status say_lost(const Cuda *u, Err *err)
{
    if (err->code != MPR_OK) return err->code;
    mpri_err_set(err, u->lost.code, "%s", u->lost.message);
    return mpri_err_advice(err, "%s", u->lost.advice);
}

static mpr_status check(Cuda *u, cudaError_t e, const char *what, Err *err)
{
    if (u->lost.code != MPR_OK) return say_lost(u, err);
    if (e == cudaSuccess) return MPR_OK;
    if (u->capturing) { /* nothing was done: the same goes on step by step */
        (void)cudaGetLastError();
        return mpri_err_set(err, MPR_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
    }
    mpri_err_set(&u->lost, MPR_E_DEVICE, "CUDA device %d is lost: %s: %s", u->c.index, what,
                 cudaGetErrorString(e));
    mpri_err_advice(&u->lost, "end the program and start again from the last checkpoint; if it comes "
                              "again run compute-sanitizer, or look for an Xid in the system log");
    return say_lost(u, err);
}

static Cuda *cuda_of(Device *d)
{
    Cuda *u = (Cuda *)d;
    (void)cudaSetDevice(u->c.index); /* the calling thread may be another one than before */
    return u;
}

/* ---- what is put off ---- */

static mpr_status copy_now(Cuda *u, void *dst, const void *src, size_t bytes, Err *err);

static mpr_status do_item(Cuda *u, const TapeItem *it, Err *err)
{
    if (it->kind == TAPE_GRAPH)
        return check(u, cudaGraphLaunch(it->graph->exec, u->stream), "launch of a CUDA graph", err);
    if (it->kind == TAPE_COPY) return copy_now(u, it->dst, u->tape.host + it->at, it->bytes, err);
    if (it->kind == TAPE_MOVE)
        return check(u, cudaMemcpyAsync(it->dst, it->src, it->bytes, cudaMemcpyDeviceToDevice, u->stream),
                     "copy on the device", err);
    return check(u, cudaMemsetAsync(it->dst, 0, it->bytes, u->stream), "memset", err);
}

/* Before anything else is given to the queue. */
static mpr_status flush(Cuda *u, Err *err)
{
    Tape *t = &u->tape;
    mpr_status status = u->lost.code != MPR_OK ? say_lost(u, err) : MPR_OK;
    TapeKept *k = status == MPR_OK && t->n ? mpri_tape_find(t) : NULL;
    if (k) {
        if (t->fill) status = copy_now(u, t->staging, t->host, t->fill, err);
        if (status == MPR_OK)
            status = check(u, cudaGraphLaunch(k->exec, u->stream), "launch of a CUDA graph", err);
    }
    for (int i = 0; !k && i < t->n && status == MPR_OK; i++) status = do_item(u, &t->item[i], err);
    mpri_tape_clear(t);
    return status;
}

static bool puts_off(const Cuda *u)
{
    return u->c.d.graphs && u->tape.staging && !u->capturing;
}

static mpr_status put_off(Cuda *u, TapeKind kind, DeviceGraph *g, void *dst, const void *src,
                          size_t bytes, Err *err)
{
    Tape *t = &u->tape;
    bool copy = kind == TAPE_COPY;
    size_t room = copy ? (bytes + 15) & ~(size_t)15 : 0;
    if (!mpri_tape_room(t, room)) TRY(flush(u, err));
    t->item[t->n++] = (TapeItem){kind, g, dst, copy ? NULL : src, bytes, copy ? t->fill : 0};
    if (copy) memcpy(t->host + t->fill, src, bytes);
    t->fill += room;
    return MPR_OK;
}

/* Between two steps: room for all inputs of a window, where there was too little. Without it the window is
 * several graphs. */
static void grow_inputs(Cuda *u)
{
    Tape *t = &u->tape;
    size_t bytes = t->inputs_seen;
    bool grow = t->inputs_short && bytes > t->inputs_bytes && bytes <= INPUTS_MOST;
    t->inputs_seen = 0;
    t->inputs_short = false;
    if (!grow || cudaStreamSynchronize(u->stream) != cudaSuccess) return;
    mpri_tape_forget(t, NULL);
    (void)cudaFree(t->inputs);
    t->inputs = NULL;
    t->inputs_bytes = 0;
    if (cudaMalloc((void **)&t->inputs, bytes) == cudaSuccess) t->inputs_bytes = bytes;
    else (void)cudaGetLastError();
}

static mpr_status cuda_submit(Device *d, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(flush(u, err));
    grow_inputs(u);
    return MPR_OK;
}

/* ---- memory ---- */

static mpr_status cuda_alloc(Device *d, size_t bytes, void **out, Err *err)
{
    Cuda *u = cuda_of(d);
    size_t have = 0, total = 0;
    *out = NULL;
    if (u->lost.code != MPR_OK) return say_lost(u, err);
    cudaError_t e = cudaMalloc(out, bytes ? bytes : 64);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        TRY(check(u, cudaMemGetInfo(&have, &total), "memory info", err));
        mpri_err_set(err, MPR_E_NOMEM,
                     "CUDA device %d: %zu bytes are needed, %zu of %zu are free", u->c.index, bytes,
                     have, total);
        return mpri_err_advice(err, "use a smaller batch, or --fp16 or --bf16");
    }
    TRY(check(u, e, "allocation", err));
    return check(u, cudaMemsetAsync(*out, 0, bytes ? bytes : 64, u->stream), "memset", err);
}

static void cuda_free(Device *d, void *p)
{
    Cuda *u = cuda_of(d);
    if (!p) return;
    Err quiet;
    mpri_err_clear(&quiet);
    if (flush(u, &quiet) == MPR_OK) (void)cudaStreamSynchronize(u->stream);
    (void)cudaFree(p);
}

static mpr_status next_half(Cuda *u, Err *err)
{
    TRY(check(u, cudaEventRecord(u->ring_free[u->ring_at], u->stream), "event", err));
    u->ring_used[u->ring_at] = true;
    u->ring_at = (u->ring_at + 1) % RING;
    u->ring_fill = 0;
    if (!u->ring_used[u->ring_at]) return MPR_OK;
    return check(u, cudaEventSynchronize(u->ring_free[u->ring_at]), "copy to the device", err);
}

static mpr_status copy_now(Cuda *u, void *dst, const void *src, size_t bytes, Err *err)
{
    for (size_t done = 0; done < bytes;) {
        if (u->ring_fill == RING_BYTES) TRY(next_half(u, err));
        size_t n = bytes - done, room = RING_BYTES - u->ring_fill;
        if (n > room) n = room;
        char *at = u->ring[u->ring_at] + u->ring_fill;
        memcpy(at, (const char *)src + done, n);
        TRY(check(u, cudaMemcpyAsync((char *)dst + done, at, n, cudaMemcpyHostToDevice, u->stream),
                  "copy to the device", err));
        done += n;
        u->ring_fill += (n + 63) & ~(size_t)63;
    }
    return MPR_OK;
}

static mpr_status cuda_copy_in(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    if (u->lost.code != MPR_OK) return say_lost(u, err);
    if (!bytes) return MPR_OK;
    if (bytes <= TAPE_COPY_MOST && puts_off(u))
        return put_off(u, TAPE_COPY, NULL, dst, src, bytes, err);
    TRY(flush(u, err));
    return copy_now(u, dst, src, bytes, err);
}

/* What is put off has been given to the queue only if it comes later: then the bytes wait aside. */
static mpr_status cuda_stage(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    Tape *t = &u->tape;
    size_t room = (bytes + 255) & ~(size_t)255;
    t->inputs_seen += room;
    bool aside = t->n && bytes > TAPE_COPY_MOST && puts_off(u) && u->lost.code == MPR_OK;
    if (aside && t->inputs_fill + room > t->inputs_bytes) {
        t->inputs_short = true;
        aside = false;
    }
    if (!aside) return cuda_copy_in(d, dst, src, bytes, err);
    char *at = t->inputs + t->inputs_fill;
    t->inputs_fill += room;
    TRY(copy_now(u, at, src, bytes, err));
    return put_off(u, TAPE_MOVE, NULL, dst, at, bytes, err);
}

static mpr_status cuda_move(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    if (!bytes || u->lost.code != MPR_OK) return u->lost.code ? say_lost(u, err) : MPR_OK;
    if (puts_off(u)) return put_off(u, TAPE_MOVE, NULL, dst, src, bytes, err);
    TRY(flush(u, err));
    return do_item(u, &(TapeItem){TAPE_MOVE, NULL, dst, src, bytes, 0}, err);
}

static mpr_status cuda_late_copy(Device *d, int place, const void *src, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(cuda_submit(d, err));
    TRY(check(u, cudaMemcpyAsync(u->late + place * DEVICE_LATE_BYTES, src, bytes, cudaMemcpyDeviceToHost,
                                 u->stream),
              "copy from the device", err));
    return check(u, cudaEventRecord(u->late_done[place], u->stream), "event", err);
}

static mpr_status cuda_late_take(Device *d, int place, void *dst, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(check(u, cudaEventSynchronize(u->late_done[place]), "work on the device", err));
    memcpy(dst, u->late + place * DEVICE_LATE_BYTES, bytes);
    return MPR_OK;
}

static mpr_status cuda_copy_out(Device *d, void *dst, const void *src, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(flush(u, err));
    u->tape.inputs_seen = 0;
    if (bytes)
        TRY(check(u, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, u->stream),
                  "copy from the device", err));
    return check(u, cudaStreamSynchronize(u->stream), "work on the device", err);
}

static mpr_status cuda_zero(Device *d, void *dst, size_t bytes, Err *err)
{
    Cuda *u = cuda_of(d);
    if (!bytes || u->lost.code != MPR_OK) return u->lost.code ? say_lost(u, err) : MPR_OK;
    if (puts_off(u)) return put_off(u, TAPE_ZERO, NULL, dst, NULL, bytes, err);
    TRY(flush(u, err));
    return check(u, cudaMemsetAsync(dst, 0, bytes, u->stream), "memset", err);
}

static mpr_status cuda_memory_info(Device *d, size_t *free_bytes, size_t *total, Err *err)
{
    Cuda *u = cuda_of(d);
    return check(u, cudaMemGetInfo(free_bytes, total), "memory info", err);
}

/* ---- work ---- */

static mpr_status cuda_launch(Device *d, const KernelRow *row, const KernelCall *call, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(flush(u, err));
    mpr_status status = row->fn(call);
    TRY(check(u, cudaGetLastError(), row->name, err));
    return status;
}

static mpr_status cuda_synchronize(Device *d, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(flush(u, err));
    return check(u, cudaStreamSynchronize(u->stream), "work on the device", err);
}

/* ---- recordings ---- */

static mpr_status refused(const char *what, cudaError_t e, Err *err)
{
    (void)cudaGetLastError();
    mpri_err_set(err, MPR_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
    return mpri_err_advice(err, "run step by step: --no-cuda-graph");
}

static mpr_status cuda_capture_begin(Device *d, Err *err)
{
    Cuda *u = cuda_of(d);
    TRY(flush(u, err));
    cudaError_t e = cudaStreamBeginCapture(u->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) return refused("the step cannot be recorded as a CUDA graph", e, err);
    u->capturing = true;
    return MPR_OK;
}

static mpr_status cuda_capture_end(Device *d, bool abandon, DeviceGraph **out, Err *err)
{
    Cuda *u = cuda_of(d);
    cudaGraph_t graph = NULL;
    *out = NULL;
    u->capturing = false;
    cudaError_t e = cudaStreamEndCapture(u->stream, &graph);
    DeviceGraph *g = NULL;
    if (e == cudaSuccess && !abandon) {
        g = mpri_alloc(d->alloc, sizeof *g, 16);
        if (g) e = cudaGraphInstantiate(&g->exec, graph, 0);
    }
    if (e == cudaSuccess && g) {
        g->graph = graph;
        *out = g;
        return MPR_OK;
    }
    if (graph) (void)cudaGraphDestroy(graph);
    mpri_free(d->alloc, g);
    if (abandon) {
        (void)cudaGetLastError();
        return MPR_OK;
    }
    if (e != cudaSuccess) return refused("the recorded step cannot be made a CUDA graph", e, err);
    return mpri_err_nomem(err, sizeof(DeviceGraph));
}

static mpr_status cuda_graph_launch(Device *d, DeviceGraph *g, Err *err)
{
    Cuda *u = cuda_of(d);
    if (u->lost.code != MPR_OK) return say_lost(u, err);
    return put_off(u, TAPE_GRAPH, g, NULL, NULL, 0, err);
}

static void cuda_graph_destroy(Device *d, DeviceGraph *g)
{
    if (!g) return;
    Cuda *u = cuda_of(d);
    Err quiet;
    mpri_err_clear(&quiet);
    if (flush(u, &quiet) == MPR_OK) (void)cudaStreamSynchronize(u->stream);
    mpri_tape_forget(&u->tape, g);
    (void)cudaGraphExecDestroy(g->exec);
    (void)cudaGraphDestroy(g->graph);
    mpri_free(d->alloc, g);
}

/* ---- life ---- */

static void cuda_destroy(Device *d)
{
    Cuda *u = cuda_of(d);
    mpri_cuda_tune_forget(&u->c);
    if (u->c.lt_handle) (void)u->c.lt->Destroy(u->c.lt_handle);
    if (u->stream) (void)cudaStreamSynchronize(u->stream);
    mpri_tape_forget(&u->tape, NULL);
    (void)cudaFree(u->tape.staging);
    (void)cudaFree(u->tape.inputs);
    (void)cudaFreeHost(u->late);
    for (int i = 0; i < DEVICE_LATE; i++)
        if (u->late_done[i]) (void)cudaEventDestroy(u->late_done[i]);
    (void)cudaFree(d->fault);
    for (int i = 0; i < RING; i++) {
        (void)cudaFreeHost(u->ring[i]);
        if (u->ring_free[i]) (void)cudaEventDestroy(u->ring_free[i]);
    }
    if (u->stream) (void)cudaStreamDestroy(u->stream);
    mpri_device_destroy(u->host);
    mpri_free(d->alloc, u);
}

static mpr_status fill_device(Cuda *u, Err *err)
{
    int major = 0, minor = 0;
    const char *why;
    TRY(check(u, cudaSetDevice(u->c.index), "choosing the device", err));
    TRY(check(u, cudaDeviceGetAttribute(&u->c.sms, cudaDevAttrMultiProcessorCount, u->c.index),
              "attributes", err));
    TRY(check(u, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, u->c.index),
              "attributes", err));
    TRY(check(u, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, u->c.index),
              "attributes", err));
    snprintf(u->name, sizeof u->name, "sm_%d%d", major, minor);
    u->c.d.capability = major * 10 + minor;
    if (u->c.d.capability < 75) {
        mpri_err_set(err, MPR_E_DEVICE, "CUDA device %d has compute capability %d.%d; 7.5 is needed",
                     u->c.index, major, minor);
        return mpri_err_advice(err, "use --device cpu");
    }
    u->c.lt = mpri_cublaslt(&why);
    if (!u->c.lt) {
        mpri_err_set(err, MPR_E_DEVICE, "cuBLASLt: %s", why);
        return mpri_err_advice(err, "install the CUDA %d runtime libraries and let LD_LIBRARY_PATH lead "
                                    "to them, or use --device cpu", CUDART_VERSION / 1000);
    }
    if (u->c.lt->Create((cublasLtHandle_t *)&u->c.lt_handle) != CUBLAS_STATUS_SUCCESS)
        return mpri_err_set(err, MPR_E_DEVICE, "cuBLASLt cannot be started on device %d", u->c.index);
    return MPR_OK;
}

static mpr_status fill_memory(Cuda *u, Err *err)
{
    static const DeviceFault none = {.at = {.input = -1, .position = INT64_MAX}, .step = -1};
    Device *d = &u->c.d;
    TRY(check(u, cudaStreamCreateWithFlags(&u->stream, cudaStreamNonBlocking), "a stream", err));
    for (int i = 0; i < RING; i++) {
        TRY(check(u, cudaMallocHost((void **)&u->ring[i], RING_BYTES), "pinned memory", err));
        TRY(check(u, cudaEventCreateWithFlags(&u->ring_free[i], cudaEventDisableTiming), "an event",
                  err));
    }
    TRY(check(u, cudaMallocHost((void **)&u->late, DEVICE_LATE * DEVICE_LATE_BYTES), "pinned memory", err));
    for (int i = 0; i < DEVICE_LATE; i++)
        TRY(check(u, cudaEventCreateWithFlags(&u->late_done[i], cudaEventDisableTiming), "an event", err));
    d->queue = u->stream;
    TRY(cuda_alloc(d, sizeof(CudaNotes), (void **)&d->fault, err));
    d->counter = ((CudaNotes *)d->fault)->counter;
    TRY(copy_now(u, d->fault, &none, sizeof none, err));
    return cuda_alloc(d, TAPE_BYTES, (void **)&u->tape.staging, err);
}

mpr_status mpri_device_cuda(const Alloc *alloc, int index, int threads, Device **out, Err *err)
{
    *out = NULL;
    TRY(mpri_cuda_find(index, err));
    Device *host;
    TRY(mpri_device_cpu(alloc, threads, &host, err));
    Cuda *u = mpri_alloc(alloc, sizeof *u, 64);
    if (!u) {
        mpri_device_destroy(host);
        return mpri_err_nomem(err, sizeof *u);
    }
    memset(u, 0, sizeof *u);
    u->host = host;
    u->c.index = index;
    u->tape.alloc = alloc;
    u->c.tuned = &u->tuned;
    u->c.d = (Device){.name = "cuda",
                      .kernels = mpri_cuda_kernels(host),
                      .isa = host->isa,
                      .isa_name = u->name,
                      .threads = host->threads,
                      .alloc = alloc,
                      .fused_update = true,
                      .graphs = true,
                      .mem_alloc = cuda_alloc,
                      .mem_free = cuda_free,
                      .copy_in = cuda_copy_in,
                      .copy_out = cuda_copy_out,
                      .zero = cuda_zero,
                      .move = cuda_move,
                      .stage = cuda_stage,
                      .late_copy = cuda_late_copy,
                      .late_take = cuda_late_take,
                      .launch = cuda_launch,
                      .synchronize = cuda_synchronize,
                      .submit = cuda_submit,
                      .memory_info = cuda_memory_info,
                      .capture_begin = cuda_capture_begin,
                      .capture_end = cuda_capture_end,
                      .graph_launch = cuda_graph_launch,
                      .graph_destroy = cuda_graph_destroy,
                      .destroy = cuda_destroy};
    mpr_status status = fill_device(u, err);
    if (status == MPR_OK) status = fill_memory(u, err);
    if (status != MPR_OK) {
        cuda_destroy(&u->c.d);
        return status;
    }
    *out = &u->c.d;
    return MPR_OK;
}
