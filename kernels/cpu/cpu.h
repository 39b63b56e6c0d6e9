/* The tuned CPU kernels: tables of rows by family, one per instruction set, fastest first. */
#ifndef MPRI_CPU_CPU_H
#define MPRI_CPU_CPU_H

#include "runtime/exec/kernel.h"

/* All tables; rows carry the instruction set they need. The array is static. */
const KernelTable *mpri_cpu_tables(int *n);

#endif
