/* Atomic folders. The traps: a failed fsync or close means that bytes may be lost, so the save is
 * given up and never retried on the same file; and the first file opened by a host with closed
 * descriptors 0 to 2 would become its standard output, so descriptors below 3 are not used. */
#include "runtime/train/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE (1 << 1)
#endif

static mpr_status io_error(Err *err, const char *what, const char *path, int why)
{
    mpri_err_set(err, MPR_E_IO, "cannot %s '%s': %s", what, mpri_err_name(path), strerror(why));
    return mpri_err_advice(err, why == ENOSPC ? "free space on that disk"
                                              : "check the path and its permissions");
}

static int above_standard(int fd)
{
    if (fd < 0 || fd > 2) return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3), why = errno;
    close(fd);
    errno = why;
    return higher;
}

mpr_status mpri_folder_begin(Folder *f, const char *path, Err *err)
{
    f->fd = -1;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (n >= sizeof(f->path)) return io_error(err, "create", path, ENAMETOOLONG);
    memcpy(f->path, path, n);
    f->path[n] = 0;
    snprintf(f->temporary, sizeof(f->temporary), "%s.tmp-%ld", f->path, (long)getpid());
    mpri_folder_remove(f->temporary);
    if (mkdir(f->temporary, 0777) != 0) return io_error(err, "create", f->temporary, errno);
    f->fd = above_standard(open(f->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (f->fd >= 0) return MPR_OK;
    int why = errno;
    rmdir(f->temporary);
    return io_error(err, "open", f->temporary, why);
}

static mpr_status no_space(const Folder *f, const char *name, size_t n, Err *err)
{
    struct statvfs st;
    unsigned long long room = fstatvfs(f->fd, &st) == 0
                                  ? (unsigned long long)st.f_bavail * st.f_frsize
                                  : 0;
    mpri_err_set(err, MPR_E_IO,
                 "cannot write '%s/%s': no space left (need %zu bytes, %llu are free)",
                 mpri_err_name(f->path), name, n, room);
    return mpri_err_advice(err, "free space on that disk; checkpoints saved before are whole");
}

mpr_status mpri_folder_write(Folder *f, const char *name, const void *bytes, size_t n, Err *err)
{
    int fd = above_standard(
        openat(f->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    int why = fd < 0 ? errno : 0;
    for (size_t done = 0; !why && done < n;) {
        ssize_t k = write(fd, (const char *)bytes + done, n - done);
        if (k > 0) done += (size_t)k;
        else if (k == 0) why = ENOSPC;
        else if (errno != EINTR && errno != EAGAIN) why = errno;
    }
    if (!why && fsync(fd) != 0) why = errno;
    if (fd >= 0 && close(fd) != 0 && !why) why = errno;
    if (!why) return MPR_OK;
    if (why == ENOSPC || why == EDQUOT) return no_space(f, name, n, err);
    mpri_err_set(err, MPR_E_IO, "cannot write '%s/%s': %s", mpri_err_name(f->path), name,
                 strerror(why));
    return mpri_err_advice(err, "checkpoints saved before are whole");
}

static int sync_parent(const char *path)
{
    char parent[4096];
    snprintf(parent, sizeof(parent), "%s", path);
    char *slash = strrchr(parent, '/');
    if (slash == parent) slash[1] = 0;
    else if (slash) *slash = 0;
    else strcpy(parent, ".");
    int fd = above_standard(open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return errno;
    int why = fsync(fd) != 0 ? errno : 0;
    close(fd);
    return why;
}

mpr_status mpri_folder_commit(Folder *f, Err *err)
{
    int why = fsync(f->fd) != 0 ? errno : 0;
    close(f->fd);
    f->fd = -1;
    if (!why && rename(f->temporary, f->path) != 0) {
        why = errno;
        if (why == ENOTEMPTY || why == EEXIST) {
            why = renameat2(AT_FDCWD, f->temporary, AT_FDCWD, f->path, RENAME_EXCHANGE) == 0
                      ? 0
                      : errno;
            if (!why) mpri_folder_remove(f->temporary);
        }
    }
    if (!why) why = sync_parent(f->path);
    if (!why) return MPR_OK;
    mpri_folder_remove(f->temporary);
    return io_error(err, "put in place", f->path, why);
}

void mpri_folder_abandon(Folder *f)
{
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
    mpri_folder_remove(f->temporary);
}

void mpri_folder_remove(const char *path)
{
    int fd = above_standard(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        if (fd >= 0) close(fd);
        return;
    }
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(path);
}

void mpri_folder_sweep(const char *parent)
{
    DIR *d = opendir(parent);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        const char *mark = strstr(e->d_name, ".tmp-");
        char *end = NULL;
        long pid = mark ? strtol(mark + 5, &end, 10) : 0;
        if (strncmp(e->d_name, "checkpoint-", 11) || pid <= 0 || *end || kill((pid_t)pid, 0) == 0 ||
            errno != ESRCH)
            continue;
        char path[4400];
        snprintf(path, sizeof(path), "%s/%s", parent, e->d_name);
        mpri_folder_remove(path);
    }
    closedir(d);
}

/* A trial file, created and renamed, tells at once whether saving can work. */
static mpr_status try_writing(const char *path, Err *err)
{
    char a[4200], b[4200];
    snprintf(a, sizeof(a), "%s/.trial-%ld", path, (long)getpid());
    snprintf(b, sizeof(b), "%s/.trial-%ld.renamed", path, (long)getpid());
    int fd = above_standard(open(a, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    int why = fd < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    if (!why && rename(a, b) != 0) why = errno;
    unlink(a);
    unlink(b);
    return why ? io_error(err, "write to", path, why) : MPR_OK;
}

mpr_status mpri_folder_make(const char *path, Err *err)
{
    char part[4096];
    size_t n = strlen(path);
    if (!n || n >= sizeof(part)) return io_error(err, "create", path, n ? ENAMETOOLONG : ENOENT);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i]) continue;
        memcpy(part, path, i);
        part[i] = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return io_error(err, "create", path, errno);
    }
    struct stat st;
    if (stat(path, &st) != 0) return io_error(err, "create", path, errno);
    if (!S_ISDIR(st.st_mode)) return io_error(err, "create", path, ENOTDIR);
    return try_writing(path, err);
}

mpr_status mpri_folder_lock(const char *path, int *fd, Err *err)
{
    char name[4200], text[32] = "";
    snprintf(name, sizeof(name), "%s/.lock", path);
    *fd = above_standard(open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (*fd < 0) return io_error(err, "open", name, errno);
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0) {
        int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());
        if (ftruncate(*fd, 0) != 0 || pwrite(*fd, text, (size_t)n, 0) != n)
            text[0] = 0; /* the number is for people only */
        return MPR_OK;
    }
    ssize_t n = pread(*fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? strcspn(text, "\n") : 0] = 0;
    close(*fd);
    *fd = -1;
    mpri_err_set(err, MPR_E_IO, "'%s' is being written by process %s", mpri_err_name(path),
                 *text ? text : "unknown");
    return mpri_err_advice(err, "wait for it, or choose another output folder");
}

void mpri_folder_unlock(const char *path, int fd)
{
    char name[4200];
    if (fd < 0) return;
    snprintf(name, sizeof(name), "%s/.lock", path);
    unlink(name);
    close(fd);
}
