/* npz and npy: every member is read. libzip wants a file, which lies in memory. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/train/npz.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    char path[64];
    Npz *z = NULL;
    Err err;
    mpri_err_clear(&err);
    if (fd < 0) fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (mpri_npz_open(mpri_alloc_default(), path, &z, &err) != MPR_OK) return 0;
    for (int i = 0; i < mpri_npz_count(z) && i < 8; i++) {
        mpr_tensor t = {0};
        bool foreign;
        mpri_err_clear(&err);
        if (mpri_npz_read(z, i, &t, &foreign, &err) == MPR_OK)
            mpri_free(mpri_alloc_default(), (void *)(uintptr_t)t.data);
    }
    mpri_npz_close(z);
    return 0;
}
