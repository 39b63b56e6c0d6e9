/* safetensors: header and ranges. */
#include "runtime/train/safetensors.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena arena;
    SafeTensor *t;
    int n;
    Err err;
    mpri_err_clear(&err);
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    (void)mpri_safetensors_parse(data, size, &arena, &t, &n, &err);
    mpri_arena_destroy(&arena);
    return 0;
}
