/* The wire pre-scan: no bytes of a model may confuse it. */
#include "importer/prescan.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Err err;
    mpri_err_clear(&err);
    const mpr_limits limits = mpri_limits_fill(NULL);
    if (size) (void)mpri_prescan(data, size, &limits, mpri_alloc_default(), &err);
    return 0;
}
