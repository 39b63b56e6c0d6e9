/* Blocks, fibers, barriers and their checks.
 *
 * A fiber takes threads of the block that have not begun, one after the other, until one of them has to
 * wait; then the next fiber goes on with the rest. A kernel that never waits so costs one call per
 * thread. The scheduler on the main stack resumes whoever may go on; when nobody may, either all
 * threads stand at one barrier, which opens, or the kernel is wrong.
 *
 * A race is an access to an element of shared memory by two threads, one of them writing, between two
 * barriers; threads of one warp are also kept apart by warp functions. */
#include "tests/cuda_on_cpu/shim_private.h"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace shim {

bool checking = true;
int current;

/* ---- switching stacks ---- */

enum { STACK = 128 * 1024, PAGE = 4096, MOST_THREADS = 1024, MOST_SHARED = 227 * 1024 };

#if defined(__x86_64__)
struct Context { void *sp; };
extern "C" void shim_switch(void **from, void *to);
asm(".text\n.globl shim_switch\n.type shim_switch,@function\nshim_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
    ".size shim_switch,.-shim_switch\n");
static void switch_to(Context *from, Context *to) { shim_switch(&from->sp, to->sp); }
static void make_context(Context *c, char *stack, void (*entry)())
{
    void **sp = (void **)(stack + STACK);
    *--sp = nullptr; /* the entry sees a stack as after a call */
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++) *--sp = nullptr;
    c->sp = sp;
}
#else
struct Context { ucontext_t u; };
static void switch_to(Context *from, Context *to) { swapcontext(&from->u, &to->u); }
static void make_context(Context *c, char *stack, void (*entry)())
{
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = STACK;
    c->u.uc_link = nullptr;
    makecontext(&c->u, entry, 0);
}
#endif

struct Fiber {
    Context context;
    char *stack;
};

enum State { NEW, READY, AT_BARRIER, AT_WARP, DONE };

struct Thread {
    State state;
    Fiber *fiber;
    uint3 index;
    const char *file; /* where it waits */
    int line;
    int predicate;
    unsigned warp_ops;
};

struct Warp {
    unsigned epoch, waiting;
    const char *file;
    int line;
    uint64_t values[2][32];
};

static struct Block {
    const char *name;
    const std::function<void()> *body;
    int n, next, done, waiting;
    unsigned epoch;
    int votes[3];
    Thread threads[MOST_THREADS];
    Warp warps[MOST_THREADS / 32];
    std::vector<int> ready;
    size_t dynamic_bytes;
    unsigned long number;
} block;

static Context scheduler;
/* Fibers live as long as the process: the lists are not taken apart at its end, so nothing counts as lost. */
static std::vector<Fiber *> &all_fibers = *new std::vector<Fiber *>, &idle = *new std::vector<Fiber *>;
static Fiber *running;
static sigjmp_buf escape;
static bool inside; /* a kernel runs */
alignas(128) static char dynamic[MOST_SHARED];
static Access dynamic_seen[MOST_SHARED];

/* ---- reports ---- */

static char report[1024];
static bool quiet, reversed;
static cudaError_t found_error;

static void say(const char *text)
{
    snprintf(report, sizeof report, "%s", text);
    if (!quiet) fprintf(stderr, "cuda on cpu: %s\n", report);
}

/* Leaves the kernel: what is on the fibers' stacks is forgotten. */
[[noreturn]] static void leave(cudaError_t error)
{
    found_error = error;
    siglongjmp(escape, 1);
}

static void where(char *text, size_t size, const char *what)
{
    snprintf(text, size, "%s block (%u,%u,%u) thread (%u,%u,%u): %s", block.name, blockIdx.x,
             blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, what);
}

void fault(const char *fmt, ...)
{
    char what[512], text[1000];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    where(text, sizeof text, what);
    say(text);
    leave(cudaErrorLaunchFailure);
}

/* ---- fibers ---- */

static void resume(int t)
{
    current = t;
    threadIdx = block.threads[t].index;
    running = block.threads[t].fiber;
    switch_to(&scheduler, &running->context);
}

static void work()
{
    for (;;) {
        while (block.next < block.n) {
            int t = block.next++;
            Thread *me = &block.threads[t];
            me->fiber = running;
            current = t;
            threadIdx = me->index;
            (*block.body)();
            block.threads[current].state = DONE; /* it may have waited: current is this thread */
            block.done++;
        }
        idle.push_back(running);
        switch_to(&running->context, &scheduler);
    }
}

static Fiber *new_fiber()
{
    Fiber *f = new Fiber;
    char *p = (char *)mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE) != 0) abort();
    f->stack = p + PAGE;
    all_fibers.push_back(f);
    make_context(&f->context, f->stack, work);
    return f;
}

/* Puts every fiber back to its beginning. */
static void reset_fibers()
{
    idle.clear();
    for (Fiber *f : all_fibers) {
        make_context(&f->context, f->stack, work);
        idle.push_back(f);
    }
}

static void wait(State state, const char *file, int line)
{
    Thread *me = &block.threads[current];
    me->state = state;
    me->file = file;
    me->line = line;
    switch_to(&me->fiber->context, &scheduler);
}

static void divergence()
{
    const Thread *barrier = nullptr, *other = nullptr;
    char text[400];
    for (int i = 0; i < block.n; i++) {
        const Thread *t = &block.threads[i];
        if (t->state == AT_BARRIER && !barrier) barrier = t;
        else if (barrier && (t->state != AT_BARRIER || t->line != barrier->line ||
                             strcmp(t->file, barrier->file)))
            other = t;
        if (t->state != AT_BARRIER && !other) other = t;
    }
    const Thread *t = barrier ? barrier : other;
    threadIdx = t->index;
    snprintf(text, sizeof text, "divergence: it waits at %s:%d", t->file ? t->file : "?", t->line);
    if (barrier && other && other->state == DONE)
        strcat(text, ", others have ended");
    else if (barrier && other)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", others at %s:%d",
                 other->file ? other->file : "?", other->line);
    fault("%s", text);
}

/* Everybody waits or has ended. */
static void open_barrier()
{
    const Thread *first = nullptr;
    int at_barrier = 0;
    for (int i = 0; i < block.n; i++) {
        const Thread *t = &block.threads[i];
        if (t->state != AT_BARRIER) continue;
        at_barrier++;
        if (!first) first = t;
        if (t->line != first->line || strcmp(t->file, first->file)) divergence();
    }
    if (at_barrier != block.n) divergence();
    block.votes[0] = 0;
    block.votes[1] = 1;
    block.votes[2] = 0;
    for (int i = 0; i < block.n; i++) {
        Thread *t = &block.threads[i];
        block.votes[0] |= t->predicate != 0;
        block.votes[1] &= t->predicate != 0;
        block.votes[2] += t->predicate != 0;
        t->state = READY;
        block.ready.push_back(i);
    }
    block.epoch++;
}

static void run_block()
{
    block.next = block.done = 0;
    block.epoch = 1;
    block.number++;
    block.ready.clear();
    for (int i = 0; i < block.n; i++) {
        Thread *t = &block.threads[i];
        t->state = NEW;
        t->predicate = 0;
        t->warp_ops = 0;
    }
    for (int i = 0; i < (block.n + 31) / 32; i++) block.warps[i].epoch = 1, block.warps[i].waiting = 0;
    if (block.dynamic_bytes) {
        memset(dynamic, 0xA5, block.dynamic_bytes);
        memset((void *)dynamic_seen, 0, block.dynamic_bytes * sizeof *dynamic_seen);
    }
    size_t at = 0; /* of the ready list, which grows behind it */
    while (block.done < block.n) {
        if (block.next < block.n) {
            if (idle.empty()) idle.push_back(new_fiber());
            running = idle.back();
            idle.pop_back();
            switch_to(&scheduler, &running->context);
        } else if (at < block.ready.size()) {
            resume(block.ready[at++]);
        } else {
            block.ready.clear();
            at = 0;
            open_barrier();
        }
    }
}

/* ---- what kernels call ---- */

void barrier(const char *file, int line) { wait(AT_BARRIER, file, line); }

int vote_block(const char *file, int line, int what, int predicate)
{
    block.threads[current].predicate = predicate;
    wait(AT_BARRIER, file, line);
    block.threads[current].predicate = 0;
    return block.votes[what];
}

const uint64_t *exchange(const char *file, int line, unsigned mask, uint64_t mine)
{
    int t = current, w = t / 32, lanes = block.n - w * 32;
    Warp *warp = &block.warps[w];
    if (mask != 0xffffffffu) fault("warp function at %s:%d: mask %08x, all lanes are meant", file, line, mask);
    if (lanes < 32) fault("warp function at %s:%d: the warp has %d lanes", file, line, lanes);
    if (warp->waiting && (warp->line != line || strcmp(warp->file, file)))
        fault("divergence: lane %d is at %s:%d, others of its warp at %s:%d", t % 32, file, line,
              warp->file, warp->line);
    warp->file = file;
    warp->line = line;
    const uint64_t *all = warp->values[block.threads[t].warp_ops & 1];
    warp->values[block.threads[t].warp_ops++ & 1][t % 32] = mine;
    if (++warp->waiting < 32) {
        wait(AT_WARP, file, line);
        return all;
    }
    warp->waiting = 0;
    warp->epoch++;
    for (int i = w * 32; i < w * 32 + 32; i++)
        if (i != t) {
            block.threads[i].state = READY;
            block.ready.push_back(i);
        }
    return all;
}

void sync_warp(const char *file, int line) { (void)exchange(file, line, 0xffffffffu, 0); }

unsigned long block_number(void) { return block.number; }

void *dynamic_shared(size_t *bytes)
{
    *bytes = block.dynamic_bytes;
    return dynamic;
}

Access *dynamic_access(size_t index) { return dynamic_seen + index; }

/* Two threads between two barriers, and not kept apart by a warp function of their common warp. */
static bool together(int other, unsigned epoch, unsigned warp_epoch)
{
    if (!epoch || other == current || epoch != block.epoch) return false;
    return other / 32 != current / 32 || warp_epoch == block.warps[current / 32].epoch;
}

static bool read_meets_write(const Access *a, unsigned warp_epoch)
{
    if (a->read_epoch != block.epoch) return false;
    if (a->other_warp || a->reader / 32 != current / 32) return true;
    return a->read_warp_epoch == warp_epoch && (a->many_readers || a->reader != current);
}

static void note_read(Access *a, unsigned warp_epoch)
{
    bool first = a->read_epoch != block.epoch;
    if (!first && a->reader / 32 != current / 32) {
        a->other_warp = true;
    } else if (!first && a->read_warp_epoch == warp_epoch) {
        a->many_readers |= a->reader != current;
    } else { /* what this warp read before its last warp function is behind it */
        a->other_warp &= !first;
        a->many_readers = false;
        a->reader = current;
        a->read_epoch = block.epoch;
        a->read_warp_epoch = warp_epoch;
    }
}

void note_access(Access *a, bool write, const char *name, size_t index)
{
    unsigned warp_epoch = block.warps[current / 32].epoch;
    if (together(a->writer, a->write_epoch, a->write_warp_epoch))
        fault("race on shared memory '%s', element %zu: thread %d wrote it since the last barrier",
              name, index, a->writer);
    if (write && read_meets_write(a, warp_epoch))
        fault("race on shared memory '%s', element %zu: thread %d read it since the last barrier",
              name, index, a->reader);
    if (!write) {
        note_read(a, warp_epoch);
        return;
    }
    a->writer = current;
    a->write_epoch = block.epoch;
    a->write_warp_epoch = warp_epoch;
}

/* ---- faults of memory ---- */

static void on_segv(int sig, siginfo_t *info, void *context)
{
    (void)context;
    char what[300], text[1000];
    if (describe_address(info->si_addr, what, sizeof what)) {
        if (inside) {
            where(text, sizeof text, what);
            say(text);
            leave(cudaErrorIllegalAddress);
        }
        fprintf(stderr, "cuda on cpu: the host touched device memory: %s\n", what);
    } else if (inside) {
        snprintf(what, sizeof what, "address %p is no device memory", info->si_addr);
        where(text, sizeof text, what);
        say(text);
        leave(cudaErrorIllegalAddress);
    }
    signal(sig, SIG_DFL); /* the host's own fault: as if nobody had looked */
}

/* Again before every run: a test program has handlers of its own. */
static void install()
{
    static bool done;
    static char stack[64 * 1024];
    struct sigaction have;
    if (done && !sigaction(SIGSEGV, nullptr, &have) && have.sa_sigaction == on_segv) return;
    done = true;
    stack_t alt = {};
    alt.ss_sp = stack;
    alt.ss_size = sizeof stack;
    sigaltstack(&alt, nullptr);
    struct sigaction sa = {};
    sa.sa_sigaction = on_segv;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &sa, nullptr);
    sigaction(SIGBUS, &sa, nullptr);
    const char *off = getenv("MPR_SHIM_RACES");
    if (off && !strcmp(off, "0")) checking = false;
}

void prepare() { install(); }

cudaError_t check_launch(dim3 grid, dim3 threads, size_t shared)
{
    size_t n = (size_t)threads.x * threads.y * threads.z;
    bool fits = n && n <= MOST_THREADS && threads.z <= 64 && grid.x && grid.y && grid.z &&
                grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535 && shared <= MOST_SHARED;
    return fits ? cudaSuccess : cudaErrorInvalidConfiguration;
}

cudaError_t run_kernel(const Kernel &k)
{
    gridDim = k.grid;
    blockDim = k.block;
    block.name = k.name;
    block.body = &k.body;
    block.n = (int)(k.block.x * k.block.y * k.block.z);
    block.dynamic_bytes = k.shared;
    unsigned i = 0;
    for (unsigned z = 0; z < k.block.z; z++)
        for (unsigned y = 0; y < k.block.y; y++)
            for (unsigned x = 0; x < k.block.x; x++) block.threads[i++].index = {x, y, z};
    found_error = cudaSuccess;
    if (sigsetjmp(escape, 1)) {
        inside = false;
        reset_fibers();
        return found_error;
    }
    inside = true;
    uint64_t blocks = (uint64_t)k.grid.x * k.grid.y * k.grid.z;
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t at = reversed ? blocks - 1 - b : b;
        blockIdx = {(unsigned)(at % k.grid.x), (unsigned)(at / k.grid.x % k.grid.y),
                    (unsigned)(at / k.grid.x / k.grid.y)};
        run_block();
    }
    inside = false;
    return cudaSuccess;
}

} /* namespace shim */

extern "C" {
const char *shim_report(void) { return shim::report; }
void shim_clear_report(void) { shim::report[0] = 0; }
void shim_quiet(bool on) { shim::quiet = on; }
void shim_reverse(bool on) { shim::reversed = on; }
}
