/* Instruction sets of the CPU kernels, in rising order: a kernel built for one runs on all above
 * it. */
#ifndef MPRI_CPU_ISA_H
#define MPRI_CPU_ISA_H

enum {
    MPRI_ISA_NONE = 0,    /* needs nothing: reference kernels */
    MPRI_ISA_GENERIC = 1, /* plain C */
    MPRI_ISA_AVX2 = 2,    /* with FMA, F16C, BMI2 */
    MPRI_ISA_AVX512 = 3,  /* F, BW, VL, DQ */
    MPRI_ISA_COUNT
};

/* Highest one that this processor and operating system run. */
int mpri_cpu_isa(void);
const char *mpri_isa_name(int isa);   /* "none", "generic", "avx2", "avx512"; "?" beyond */
int mpri_isa_parse(const char *name); /* -1 when unknown */

#endif
