/* Writing a file whole or not at all: a temporary beside it, synced, renamed over it, the folder
 * synced. A failed fsync is not retried: the kernel may have dropped the pages and would report
 * success. While it is filled the temporary has no name where the file system can do that, so a
 * program that is killed leaves nothing. */
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
    WriteStage *stage;       /* folder and name of the temporary */
    bool unnamed;            /* it has no name yet */
    size_t total;
} Target;

static mpr_status io_error(const Target *t, const char *what, int code, Err *err)
{
    mpri_err_set(err, MPR_E_IO, "%s: %s: %s", mpri_err_name(t->path), what, strerrordesc_np(code));
    struct statvfs v;
    if (code == ENOSPC || code == EDQUOT || code == EFBIG) {
        if (t->stage->dir >= 0 && fstatvfs(t->stage->dir, &v) == 0)
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
    t->stage->dir = open(!slash ? "." : n == 0 ? "/" : folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->stage->dir < 0) return io_error(t, "its folder cannot be opened", errno, err);
    struct stat st;
    bool exists = t->name[0] && fstatat(t->stage->dir, t->name, &st, 0) == 0;
    if (!t->name[0] || (exists && S_ISDIR(st.st_mode)))
        return io_error(t, "is a folder", EISDIR, err);
    if (!exists || S_ISREG(st.st_mode)) return MPR_OK;
    mpri_err_set(err, MPR_E_IO, "%s: is a pipe, socket or device, which a file cannot replace",
                 mpri_err_name(t->path));
    return mpri_err_advice(err, "write to a regular file");
}

static void next_name(Target *t)
{
    static atomic_uint counter;
    snprintf(t->stage->temp, sizeof t->stage->temp, ".%.180s.%ld-%u.tmp", t->name, (long)getpid(),
             atomic_fetch_add(&counter, 1));
}

static int open_temp(Target *t)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = t->unnamed ? openat(t->stage->dir, ".", O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666) : -1;
    t->unnamed = fd >= 0;
    for (int i = 0; i < 100 && fd < 0; i++) {
        next_name(t);
        fd = openat(t->stage->dir, t->stage->temp, flags, 0666);
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

/* Gives the temporary its name. */
static bool name_temp(Target *t, int fd)
{
    char self[32];
    if (!t->unnamed) return true;
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    for (int i = 0; i < 100; i++) {
        next_name(t);
        if (linkat(AT_FDCWD, self, t->stage->dir, t->stage->temp, AT_SYMLINK_FOLLOW) == 0)
            return true;
        if (errno != EEXIST) return false;
    }
    return false;
}

static mpr_status write_temp(Target *t, bool unnamed, const Piece *pieces, int n, bool *named,
                             Err *err)
{
    t->unnamed = unnamed;
    int fd = open_temp(t);
    if (fd < 0) return io_error(t, "a temporary file beside it cannot be made", errno, err);
    mpr_status status = fill(t, fd, pieces, n, err);
    *named = status == MPR_OK && name_temp(t, fd);
    if (status == MPR_OK && !*named && !t->unnamed)
        status = io_error(t, "a temporary file beside it cannot be made", errno, err);
    if (close(fd) != 0 && status == MPR_OK) status = io_error(t, "closing failed", errno, err);
    if (status != MPR_OK && (!t->unnamed || *named)) unlinkat(t->stage->dir, t->stage->temp, 0);
    return status;
}

mpr_status mpri_write_stage(const char *path, const Piece *pieces, int n, WriteStage *s, Err *err)
{
    *s = (WriteStage){.path = path, .dir = -1};
    Target t = {.path = path, .stage = s};
    bool named = false;
    for (int i = 0; i < n; i++) t.total += pieces[i].n;
    mpr_status status = open_folder(&t, err);
    if (status == MPR_OK) status = write_temp(&t, true, pieces, n, &named, err);
    if (status == MPR_OK && !named) status = write_temp(&t, false, pieces, n, &named, err);
    if (status == MPR_OK) return status;
    if (s->dir >= 0) close(s->dir);
    s->dir = -1;
    return status;
}

void mpri_write_drop(WriteStage *s)
{
    if (s->dir < 0) return;
    unlinkat(s->dir, s->temp, 0);
    close(s->dir);
    s->dir = -1;
}

mpr_status mpri_write_commit(WriteStage *s, Err *err)
{
    const char *slash = strrchr(s->path, '/');
    Target t = {.path = s->path, .stage = s};
    if (renameat(s->dir, s->temp, s->dir, slash ? slash + 1 : s->path) != 0) {
        mpr_status status = io_error(&t, "renaming into place failed", errno, err);
        mpri_write_drop(s);
        return status;
    }
    mpr_status status = fsync(s->dir) == 0 || errno == EINVAL
                            ? MPR_OK
                            : io_error(&t, "the folder did not reach the disk (fsync)", errno, err);
    close(s->dir);
    s->dir = -1;
    return status;
}

mpr_status mpri_write_pieces_checked(const char *path, const Piece *pieces, int n,
                                     WriteCheck check, void *ctx, Err *err)
{
    char written[PATH_MAX];
    const char *slash = strrchr(path, '/');
    WriteStage s;
    TRY(mpri_write_stage(path, pieces, n, &s, err));
    mpr_status status = MPR_OK;
    if (check) {
        int k = snprintf(written, sizeof written, "%.*s%s", slash ? (int)(slash - path) + 1 : 0,
                         path, s.temp);
        Target t = {.path = path, .stage = &s};
        status = k < 0 || (size_t)k >= sizeof written
                     ? io_error(&t, "the path is too long", ENAMETOOLONG, err)
                     : check(ctx, written, err);
    }
    if (status == MPR_OK) return mpri_write_commit(&s, err);
    mpri_write_drop(&s);
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
