/* The CUDA runtime's functions that mpr calls, answered on the CPU.
 *
 * Queues are lists of work that is done as late as possible: when the host waits, when another queue
 * waits for an event, or when the list is long. A host that reads too early, changes pinned memory too
 * early or forgets to let one queue wait for another gets wrong numbers here, as it might on a GPU.
 *
 * Device memory lies at the end of pages behind which nobody may read or write, and is closed to the
 * host while no queue runs: a pointer that the host follows ends the test. Addresses are not used
 * twice. */
#include "tests/cuda_on_cpu/shim_private.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <sys/mman.h>

using namespace shim;

namespace {

struct Work {
    std::string name;
    bool kernel;
    std::function<cudaError_t()> run;
};

struct Block {
    size_t bytes, pages;
    char *data;
    bool live;
};

constexpr size_t PAGE = 4096, SPACE = (size_t)1 << 38, FILLER = 0xA7;
constexpr size_t LONG_QUEUE = 512;

char *space;
size_t used; /* bytes of the space */
std::map<char *, Block> blocks; /* by first page */
std::map<char *, size_t> pinned;
bool opened;
size_t claimed; /* by shim_memory */
int capability; /* by shim_capability */

ShimCounts counts;
long failing[SHIM_FAILURES];
cudaError_t sticky; /* a faulted kernel or a lost device: every later call says so */
cudaError_t last = cudaSuccess;

bool due(ShimFailure what)
{
    return failing[what] < 0 || (failing[what] > 0 && --failing[what] == 0);
}

/* At the beginning of every call. */
cudaError_t enter()
{
    prepare();
    if (!sticky && due(SHIM_FAIL_LOST)) sticky = cudaErrorDevicesUnavailable;
    return sticky ? last = sticky : cudaSuccess;
}

cudaError_t answer(cudaError_t e)
{
    if (e != cudaSuccess) last = e;
    return e;
}

int claimed_capability()
{
    const char *text = getenv("MPR_SHIM_CAPABILITY");
    return capability ? capability : text ? atoi(text) : 80;
}

/* ---- memory ---- */

void open_memory(bool open)
{
    if (opened == open) return;
    opened = open;
    for (auto &b : blocks)
        if (b.second.live)
            mprotect(b.first, b.second.pages * PAGE, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

bool filler_whole(char *first, const Block &b, size_t *at)
{
    char *end = first + b.pages * PAGE;
    for (char *p = first; p < end; p++) {
        if (p == b.data) p += b.bytes;
        if (p < end && (unsigned char)*p != FILLER) {
            *at = (size_t)(p - b.data);
            return false;
        }
    }
    return true;
}

/* What a kernel wrote beside its buffers, but not on a closed page. */
void check_fillers(const char *after)
{
    for (auto &b : blocks) {
        size_t at;
        if (!b.second.live || filler_whole(b.first, b.second, &at)) continue;
        fprintf(stderr, "cuda on cpu: written beside device memory: byte %zd of a block of %zu, "
                "found after %s\n", (ssize_t)at, b.second.bytes, after);
        abort();
    }
}

char *reserve(size_t pages)
{
    if (!space)
        space = (char *)mmap(nullptr, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0);
    if (space == MAP_FAILED || used + (pages + 1) * PAGE > SPACE) return nullptr;
    char *p = space + used;
    used += (pages + 1) * PAGE; /* one stays closed */
    return p;
}

/* ---- queues ---- */

struct Queue {
    std::deque<Work> list;
    unsigned long given = 0;    /* works so far; those in the list are the last of them */
    unsigned long launched = 0; /* how many up to the last kernel or graph */
    bool capturing = false;
    std::vector<Work> *graph = nullptr;
};
std::vector<Queue *> queues;
Queue legacy; /* the stream NULL */

struct Event {
    Queue *queue = nullptr; /* that recorded it */
    unsigned long place = 0; /* works given before it */
    long launches = 0;       /* the same, of kernels and products alone */
};

Queue *queue_of(cudaStream_t s) { return s ? (Queue *)s : &legacy; }

/* Does what lies before a place of the queue. */
void drain_to(Queue *q, unsigned long place)
{
    bool was = opened;
    if (q->list.empty() || q->given - q->list.size() >= place) return;
    open_memory(true);
    while (!q->list.empty() && !sticky && q->given - q->list.size() < place) {
        Work w = std::move(q->list.front());
        q->list.pop_front();
        cudaError_t e = w.run();
        if (e == cudaSuccess && w.kernel && due(SHIM_FAIL_LAUNCH)) e = cudaErrorLaunchFailure;
        if (e != cudaSuccess) sticky = e;
    }
    if (sticky) q->list.clear();
    if (!was) {
        if (!sticky) check_fillers("the last kernels of a queue");
        open_memory(false);
    }
}

void drain(Queue *q) { drain_to(q, q->given); }

cudaError_t put(Queue *q, Work w)
{
    if (q->capturing) {
        q->graph->push_back(std::move(w));
        return cudaSuccess;
    }
    q->list.push_back(std::move(w));
    q->given++;
    if (q->list.size() > LONG_QUEUE) drain(q);
    return cudaSuccess;
}

bool any_capturing()
{
    for (Queue *q : queues)
        if (q->capturing) return true;
    return false;
}

bool is_device(const void *p)
{
    return space && (char *)p >= space && (char *)p < space + used;
}

bool is_pinned(const void *p)
{
    auto it = pinned.upper_bound((char *)p);
    if (it == pinned.begin()) return false;
    --it;
    return (char *)p < it->first + it->second;
}

} /* namespace */

namespace shim {

bool describe_address(const void *address, char *text, size_t size)
{
    char *p = (char *)address;
    if (!is_device(p)) return false;
    auto it = blocks.upper_bound(p);
    if (it == blocks.begin()) {
        snprintf(text, size, "device address %p was never given out", address);
        return true;
    }
    --it;
    const Block &b = it->second;
    snprintf(text, size, "byte %zd of a block of %zu bytes%s", (ssize_t)(p - b.data), b.bytes,
             b.live ? "" : ", which has been freed");
    return true;
}

cudaError_t give(cudaStream_t stream, const char *name, std::function<cudaError_t()> work)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    counts.launches++;
    queue_of(stream)->launched = queue_of(stream)->given + 1;
    return put(queue_of(stream), Work{name, true, std::move(work)});
}

void enqueue(const char *name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
             std::function<void()> body)
{
    if (enter() != cudaSuccess) return;
    cudaError_t e = check_launch(grid, block, shared);
    if (e != cudaSuccess) {
        fprintf(stderr, "cuda on cpu: %s: launch of (%u,%u,%u) blocks of (%u,%u,%u) threads, %zu bytes of "
                "shared memory\n", name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
        last = e;
        return;
    }
    counts.launches++;
    queue_of(stream)->launched = queue_of(stream)->given + 1;
    auto k = std::make_shared<Kernel>(Kernel{name, grid, block, shared, std::move(body)});
    put(queue_of(stream), Work{name, true, [k] { return run_kernel(*k); }});
}

} /* namespace shim */

extern "C" {

ShimCounts *shim_counts(void) { return &counts; }
void shim_reset_counts(void)
{
    ShimCounts fresh = {};
    fresh.live = counts.live;
    fresh.live_bytes = counts.live_bytes;
    counts = fresh;
}
void shim_fail(ShimFailure what, long k) { failing[what] = k; }
void shim_memory(size_t bytes) { claimed = bytes; }
void shim_capability(int wanted) { capability = wanted; }
void shim_revive(void)
{
    sticky = last = cudaSuccess;
    for (long &f : failing) f = 0;
    for (Queue *q : queues) q->list.clear();
    legacy.list.clear();
}

/* ---- device ---- */

cudaError_t cudaGetDeviceCount(int *n)
{
    cudaError_t e = enter();
    *n = 1;
    return e;
}
cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = enter();
    return e != cudaSuccess ? e : device == 0 ? cudaSuccess : answer(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CUDA on the CPU");
    p->major = claimed_capability() / 10;
    p->minor = claimed_capability() % 10;
    p->multiProcessorCount = 4;
    p->sharedMemPerBlockOptin = 99 * 1024;
    p->totalGlobalMem = (size_t)16 << 30;
    return enter();
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    (void)device;
    *value = attr == cudaDevAttrMultiProcessorCount             ? 4
             : attr == cudaDevAttrComputeCapabilityMajor        ? claimed_capability() / 10
             : attr == cudaDevAttrComputeCapabilityMinor        ? claimed_capability() % 10
             : attr == cudaDevAttrMaxSharedMemoryPerBlockOptin  ? 99 * 1024
                                                                : 0;
    return enter();
}
cudaError_t cudaDriverGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = claimed ? claimed : (size_t)16 << 30;
    *free_bytes = *total > counts.live_bytes ? *total - counts.live_bytes : 0;
    return enter();
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = sticky;
    return e;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorDevicesUnavailable: return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    default: return "an error";
    }
}
const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaSuccess ? "cudaSuccess" : "cudaError";
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute attr, int value)
{
    (void)f;
    (void)attr;
    (void)value;
    return enter();
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = nullptr;
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    if (any_capturing()) return answer(cudaErrorStreamCaptureUnsupported);
    if (due(SHIM_FAIL_ALLOC)) return answer(cudaErrorMemoryAllocation);
    if (claimed && counts.live_bytes + bytes > claimed) return answer(cudaErrorMemoryAllocation);
    size_t room = (bytes + 15) & ~(size_t)15, pages = (room + PAGE - 1) / PAGE;
    char *first = pages < SPACE / PAGE ? reserve(pages) : nullptr;
    if (!first || mprotect(first, pages * PAGE, PROT_READ | PROT_WRITE))
        return answer(cudaErrorMemoryAllocation);
    memset(first, (int)FILLER, pages * PAGE);
    Block b = {bytes, pages, first + pages * PAGE - room, true};
    if (!opened) mprotect(first, pages * PAGE, PROT_NONE);
    blocks[first] = b;
    counts.allocations++;
    counts.live++;
    counts.live_bytes += bytes;
    *out = b.data;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    if (!p) return enter();
    auto it = blocks.upper_bound((char *)p);
    if (it == blocks.begin() || std::prev(it)->second.data != p || !std::prev(it)->second.live) {
        fprintf(stderr, "cuda on cpu: cudaFree of what is not device memory\n");
        abort();
    }
    --it;
    for (Queue *q : queues) drain(q);
    drain(&legacy);
    mprotect(it->first, it->second.pages * PAGE, PROT_NONE);
    madvise(it->first, it->second.pages * PAGE, MADV_DONTNEED);
    it->second.live = false;
    counts.frees++;
    counts.live--;
    counts.live_bytes -= it->second.bytes;
    blocks.erase(it);
    return enter();
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    *out = nullptr;
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    if (due(SHIM_FAIL_ALLOC)) return answer(cudaErrorMemoryAllocation);
    *out = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    if (!*out) return answer(cudaErrorMemoryAllocation);
    pinned[(char *)*out] = bytes;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    if (p) {
        for (Queue *q : queues) drain(q);
        pinned.erase((char *)p);
        free(p);
    }
    return enter();
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    bool to_device = is_device(dst), from_device = is_device(src);
    bool told = kind == cudaMemcpyHostToDevice     ? to_device && !from_device
                : kind == cudaMemcpyDeviceToHost   ? !to_device && from_device
                : kind == cudaMemcpyDeviceToDevice ? to_device && from_device
                                                   : true;
    if (!told) return answer(cudaErrorInvalidValue);
    Queue *q = queue_of(stream);
    if (to_device && !from_device) counts.copies_in++;
    if (!to_device && !is_pinned(dst)) counts.host_reads++; /* else whoever waits for it reads */
    if (!from_device && !is_pinned(src) && !q->capturing) { /* taken now, as a driver does */
        auto copy = std::make_shared<std::vector<char>>((const char *)src, (const char *)src + bytes);
        return put(q, Work{"copy", false, [=] {
            memcpy(dst, copy->data(), bytes);
            return cudaSuccess;
        }});
    }
    put(q, Work{"copy", false, [=] {
        memcpy(dst, src, bytes);
        return cudaSuccess;
    }});
    if (!to_device && !is_pinned(dst)) { /* to pageable memory: done when the call returns */
        if (q->capturing) return answer(cudaErrorStreamCaptureUnsupported);
        drain(q);
        return sticky ? answer(sticky) : cudaSuccess;
    }
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    if (!is_device(dst)) return answer(cudaErrorInvalidValue);
    return put(queue_of(stream), Work{"memset", false, [=] {
        memset(dst, value, bytes);
        return cudaSuccess;
    }});
}

/* ---- queues and events ---- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void)flags;
    *out = nullptr;
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    Queue *q = new Queue;
    queues.push_back(q);
    *out = (cudaStream_t)q;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Queue *q = (Queue *)stream;
    drain(q);
    for (size_t i = 0; i < queues.size(); i++)
        if (queues[i] == q) queues.erase(queues.begin() + (long)i);
    delete q;
    return enter();
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    Queue *q = queue_of(stream);
    if (q->capturing) return answer(cudaErrorStreamCaptureUnsupported);
    counts.host_reads++;
    drain(q);
    return sticky ? answer(sticky) : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    counts.host_reads++;
    for (Queue *q : queues) drain(q);
    drain(&legacy);
    return sticky ? answer(sticky) : cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = nullptr;
    cudaError_t e = enter();
    if (e == cudaSuccess) *out = (cudaEvent_t) new Event;
    return e;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete (Event *)event;
    return enter();
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    ((Event *)event)->queue = queue_of(stream);
    ((Event *)event)->place = queue_of(stream)->given;
    ((Event *)event)->launches = counts.launches;
    return cudaSuccess;
}
/* Without a clock: each launch takes a microsecond. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t e = enter();
    *ms = (float)(((Event *)to)->launches - ((Event *)from)->launches) * 1e-3f;
    return e;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    Queue *q = ((Event *)event)->queue;
    if (q && q != queue_of(stream)) drain_to(q, ((Event *)event)->place);
    return sticky ? answer(sticky) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    Queue *q = ((Event *)event)->queue;
    unsigned long place = ((Event *)event)->place;
    if (q && q->launched > place) counts.late_reads++; /* the device has more to do meanwhile */
    else counts.host_reads++;
    if (q) drain_to(q, place);
    return sticky ? answer(sticky) : cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    Queue *q = ((Event *)event)->queue;
    bool done = !q || q->given - q->list.size() >= ((Event *)event)->place;
    return done ? cudaSuccess : cudaErrorNotReady;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    if (due(SHIM_FAIL_CAPTURE)) return answer(cudaErrorStreamCaptureUnsupported);
    Queue *q = queue_of(stream);
    q->capturing = true;
    q->graph = new std::vector<Work>;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    Queue *q = queue_of(stream);
    *out = (cudaGraph_t)q->graph;
    q->capturing = false;
    q->graph = nullptr;
    return enter();
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *out = nullptr;
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    if (due(SHIM_FAIL_CAPTURE)) return answer(cudaErrorStreamCaptureUnsupported);
    *out = (cudaGraphExec_t) new std::vector<Work>(*(std::vector<Work> *)graph);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t e = enter();
    if (e != cudaSuccess) return e;
    counts.launches++;
    counts.graphs++;
    queue_of(stream)->launched = queue_of(stream)->given + 1;
    for (const Work &w : *(std::vector<Work> *)exec) put(queue_of(stream), w);
    return cudaSuccess;
}
/* Nodes are done in the order in which they were added; each depends on the one before. */
static cudaError_t add_node(cudaGraphNode_t *node, cudaGraph_t graph, size_t n, Work w)
{
    cudaError_t e = enter();
    auto *list = (std::vector<Work> *)graph;
    if (e != cudaSuccess) return e;
    if (n != (list->empty() ? 0 : 1)) return answer(cudaErrorInvalidValue);
    list->push_back(std::move(w));
    *node = (cudaGraphNode_t)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t *graph, unsigned flags)
{
    (void)flags;
    *graph = nullptr;
    cudaError_t e = enter();
    if (e == cudaSuccess) *graph = (cudaGraph_t) new std::vector<Work>;
    return e;
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *,
                                       size_t n, cudaGraph_t child)
{
    auto inner = std::make_shared<std::vector<Work>>(*(std::vector<Work> *)child);
    return add_node(node, graph, n, Work{"child graph", false, [inner] {
        for (const Work &w : *inner) {
            cudaError_t e = w.run();
            if (e == cudaSuccess && w.kernel && due(SHIM_FAIL_LAUNCH)) e = cudaErrorLaunchFailure;
            if (e != cudaSuccess) return e;
        }
        return cudaSuccess;
    }});
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *,
                                     size_t n, void *dst, const void *src, size_t bytes,
                                     enum cudaMemcpyKind kind)
{
    if (kind != cudaMemcpyDeviceToDevice || !is_device(dst) || !is_device(src))
        return answer(cudaErrorInvalidValue);
    return add_node(node, graph, n, Work{"copy", false, [=] {
        memcpy(dst, src, bytes);
        return cudaSuccess;
    }});
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *,
                                   size_t n, const struct cudaMemsetParams *p)
{
    if (!is_device(p->dst) || p->elementSize != 1 || p->height != 1) return answer(cudaErrorInvalidValue);
    void *dst = p->dst;
    size_t bytes = p->width;
    int value = (int)p->value;
    return add_node(node, graph, n, Work{"memset", false, [=] {
        memset(dst, value, bytes);
        return cudaSuccess;
    }});
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete (std::vector<Work> *)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    drain(&legacy);
    delete (std::vector<Work> *)exec;
    return cudaSuccess;
}

} /* extern "C" */
