/* Writing a file whole or not at all: a temporary beside it, synced, renamed over it, the folder
 * synced. A failed fsync is not retried: the kernel may have dropped the pages and would report
 * success. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "importer/source.h"

typedef struct Target {
    const char *path, *name; /* name: last component */
    char temp[NAME_MAX + 1];
    int dir;
    size_t total;
    WriteCheck check; /* NULL: none */
    void *ctx;
} Target;

static mpr_status io_error(const Target *t, const char *what, int code, Err *err)
{
    mpri_err_set(err, MPR_E_IO, "%s: %s: %s", mpri_err_name(t->path), what, strerrordesc_np(code));
    struct statvfs v;
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        if (t->dir >= 0 && fstatvfs(t->dir, &v) == 0)
            return mpri_err_advice(err,
                                   "need %zu bytes, free %llu: make room or choose another folder",
                                   t->total, (unsigned long long)v.f_bavail * v.f_frsize);
        return mpri_err_advice(err, "make room or choose another folder");
    }
    return mpri_err_advice(err, "check that the folder exists and can be written");
}

static mpr_status open_folder(Target *t, Err *err)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(t->path, '/');
    size_t n = slash ? (size_t)(slash - t->path) : 0;
    t->name = slash ? slash + 1 : t->path;
    if (n >= sizeof folder) return io_error(t, "the path is too long", ENAMETOOLONG, err);
    memcpy(folder, t->path, n);
    folder[n] = '\0';
    t->dir = open(!slash ? "." : n == 0 ? "/" : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->dir < 0) return io_error(t, "its folder cannot be opened", errno, err);
    struct stat st;
    if (!t->name[0] || (fstatat(t->dir, t->name, &st, 0) == 0 && S_ISDIR(st.st_mode)))
        return io_error(t, "is a folder", EISDIR, err);
    return MPR_OK;
}

static int open_temp(Target *t)
{
    static atomic_uint counter;
    int fd = -1;
    for (int i = 0; i < 100 && fd < 0; i++) {
        snprintf(t->temp, sizeof t->temp, ".%.180s.%ld-%u.tmp", t->name, (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        fd = openat(t->dir, t->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) return -1;
    }
    if (fd < 0 || fd > 2) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC,
                      3); /* a closed standard stream must not come back as this file */
    int saved = errno;
    close(fd);
    errno = saved;
    return moved;
}

static int write_bytes(int fd, const char *at, size_t left)
{
    while (left > 0) {
        ssize_t n = write(fd, at, left < (1u << 30) ? left : 1u << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

static int write_made(int fd, const Piece *p)
{
    char part[1 << 16];
    int code = 0;
    for (size_t at = 0; at < p->n && !code; at += sizeof part) {
        size_t n = p->n - at < sizeof part ? p->n - at : sizeof part;
        p->maker->make(p->maker, at, part, n);
        code = write_bytes(fd, part, n);
    }
    return code;
}

static int write_all(int fd, const Piece *p)
{
    enum { STEP = 1 << 24 };
    int code = 0;
    if (p->maker) return write_made(fd, p);
    if (!p->source) return write_bytes(fd, p->bytes, p->n);
    for (size_t at = 0; at < p->n && !code; at += STEP) {
        size_t n = p->n - at < STEP ? p->n - at : STEP;
        code = write_bytes(fd, (const char *)p->bytes + at, n);
        mpri_source_release(p->source, (const char *)p->bytes + at, n);
    }
    return code;
}

static mpr_status fill(const Target *t, int fd, const Piece *pieces, int n, Err *err)
{
    for (int i = 0; i < n; i++) {
        int code = write_all(fd, &pieces[i]);
        if (code) return io_error(t, "writing failed", code, err);
    }
    return fsync(fd) == 0 ? MPR_OK
                          : io_error(t, "the data did not reach the disk (fsync)", errno, err);
}

static mpr_status run_check(const Target *t, Err *err)
{
    char written[PATH_MAX];
    int folder = (int)(t->name - t->path);
    int n = snprintf(written, sizeof written, "%.*s%s", folder, t->path, t->temp);
    if (n < 0 || (size_t)n >= sizeof written)
        return io_error(t, "the path is too long", ENAMETOOLONG, err);
    return t->check(t->ctx, written, err);
}

static mpr_status commit(Target *t, const Piece *pieces, int n, Err *err)
{
    int fd = open_temp(t);
    if (fd < 0) return io_error(t, "a temporary file beside it cannot be made", errno, err);
    mpr_status status = fill(t, fd, pieces, n, err);
    if (close(fd) != 0 && status == MPR_OK) status = io_error(t, "closing failed", errno, err);
    if (status == MPR_OK && t->check) status = run_check(t, err);
    if (status == MPR_OK && renameat(t->dir, t->temp, t->dir, t->name) != 0)
        status = io_error(t, "renaming into place failed", errno, err);
    if (status != MPR_OK) {
        unlinkat(t->dir, t->temp, 0);
        return status;
    }
    return fsync(t->dir) == 0 || errno == EINVAL
               ? MPR_OK
               : io_error(t, "the folder did not reach the disk (fsync)", errno, err);
}

mpr_status mpri_write_pieces_checked(const char *path, const Piece *pieces, int n,
                                     WriteCheck check, void *ctx, Err *err)
{
    Target t = {.path = path, .dir = -1, .check = check, .ctx = ctx};
    for (int i = 0; i < n; i++) t.total += pieces[i].n;
    mpr_status status = open_folder(&t, err);
    if (status == MPR_OK) status = commit(&t, pieces, n, err);
    if (t.dir >= 0) close(t.dir);
    return status;
}

mpr_status mpri_write_pieces_atomic(const char *path, const Piece *pieces, int n, Err *err)
{
    return mpri_write_pieces_checked(path, pieces, n, NULL, NULL, err);
}

mpr_status mpri_write_file_atomic(const char *path, const void *bytes, size_t n, Err *err)
{
    return mpri_write_pieces_atomic(path, &(Piece){.bytes = bytes, .n = n}, 1, err);
}
