/* What the processor runs, by CPUID. The operating system must save the wide registers as well,
 * which the compiler's support test takes into account; F16C has no such test in every compiler, so
 * its bit is read directly. */
#include "kernels/cpu/isa.h"

#include <string.h>

static const char *const isa_names[MPRI_ISA_COUNT] = {"none", "generic", "avx2", "avx512"};

const char *mpri_isa_name(int isa)
{
    return isa >= 0 && isa < MPRI_ISA_COUNT ? isa_names[isa] : "?";
}

int mpri_isa_parse(const char *name)
{
    for (int i = 0; i < MPRI_ISA_COUNT; i++)
        if (strcmp(name, isa_names[i]) == 0) return i;
    return -1;
}

#if defined(__x86_64__)
#include <cpuid.h>

int mpri_cpu_isa(void)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return MPRI_ISA_GENERIC;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return MPRI_ISA_GENERIC;
    if (!__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) return MPRI_ISA_GENERIC;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return MPRI_ISA_AVX512;
    return MPRI_ISA_AVX2;
}
#else
int mpri_cpu_isa(void) { return MPRI_ISA_GENERIC; }
#endif
