/* Making and ending a thread pool; using one is in kernel.h. */
#ifndef MPRI_EXEC_THREADS_H
#define MPRI_EXEC_THREADS_H

#include "runtime/base/alloc.h"
#include "runtime/exec/kernel.h"

int mpri_threads_available(void); /* processors this process may run on */
/* count 0: as many as available. MPR_E_NOMEM when threads cannot start. */
mpr_status mpri_threads_create(const Alloc *alloc, int count, Threads **out, Err *err);
void mpri_threads_destroy(Threads *t); /* NULL-safe */

#endif
