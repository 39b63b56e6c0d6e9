/* What tests ask of the CUDA that runs on the CPU: counts, failures to come, what went wrong. C. */
#ifndef MPR_TEST_CUDA_CONTROL_H
#define MPR_TEST_CUDA_CONTROL_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ShimCounts {
    long launches;      /* kernels and products that were given to a queue */
    long allocations, frees, live; /* device memory; live = not freed */
    size_t live_bytes;
    long host_reads;    /* copies to the host and waits of the host, but */
    long late_reads;    /* waits for what was done before launches that were given since */
    long copies_in;
    long graphs;        /* graph launches */
} ShimCounts;
ShimCounts *shim_counts(void);
void shim_reset_counts(void); /* live figures stay */

/* The k-th from now (1 = the next) of these fails; 0 = none, -1 = each. A lost device stays lost until
 * shim_revive. */
typedef enum ShimFailure {
    SHIM_FAIL_ALLOC,    /* out of memory */
    SHIM_FAIL_LAUNCH,   /* the kernel faults when it runs */
    SHIM_FAIL_LOST,     /* any call: the device is lost */
    SHIM_FAIL_CAPTURE,  /* capture is refused */
    SHIM_FAILURES
} ShimFailure;
void shim_fail(ShimFailure what, long k);
void shim_revive(void);
/* Free memory that the device claims to have; 0 = as much as is asked for. */
void shim_memory(size_t bytes);
/* Compute capability of devices that are opened from now on: 75, 80 (or what MPR_SHIM_CAPABILITY says), … */
void shim_capability(int capability);

/* What the checks found last, "" when nothing: "k_add block (0,0,0) thread (3,0,0): race …". Quiet:
 * not written to stderr as well. */
const char *shim_report(void);
void shim_clear_report(void);
void shim_quiet(bool on);
/* Blocks run in the opposite order. */
void shim_reverse(bool on);

#ifdef __cplusplus
}
#endif

#endif
