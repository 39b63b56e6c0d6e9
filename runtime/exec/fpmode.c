/* The floating-point mode belongs to the host: set ours on entry (round to nearest, nothing
 * flushed, no traps), give back what was there. Any library built with -ffast-math may have turned
 * flushing on. */
#include "runtime/exec/device.h"

#if defined(__x86_64__)
#include <immintrin.h>

FpMode mpri_fpmode_enter(void)
{
    FpMode m = {_mm_getcsr()};
    _mm_setcsr(0x1f80); /* all exceptions masked, nearest, no FTZ, no DAZ */
    return m;
}

void mpri_fpmode_leave(FpMode m)
{
    _mm_setcsr(m.saved);
}

#else

FpMode mpri_fpmode_enter(void)
{
    return (FpMode){0};
}
void mpri_fpmode_leave(FpMode m)
{
    (void)m;
}

#endif
