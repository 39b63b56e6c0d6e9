/* External tensor data: only a regular file that lies plainly below the model's folder is ever
 * opened.
 *
 * Every step of the path is opened by itself, relative to the descriptor of the step before and
 * without following links, so no exchange of a folder for a link between check and use can lead
 * outside. One form of link is allowed, that of download caches: when the model itself is a link,
 * its data may be a link into the folder where the model's target lies, or lie there under its own
 * name. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "importer/file.h"

enum { LOCATION_MAX = 4096 };

typedef struct Open { /* one attempt */
    const Source *s;
    const char *tensor, *location;
    Err *err;
} Open;

static mpr_status refuse(const Open *o, const char *why)
{
    mpri_err_set(o->err, MPR_E_EXTDATA_PATH, "tensor %s: external data location '%s' %s",
                 mpri_err_name(o->tensor), mpri_err_name(o->location), why);
    return mpri_err_advice(o->err, "put the data in a regular file below the model's folder, with "
                                   "a relative path in the model");
}

static mpr_status check_text(const Open *o)
{
    const char *l = o->location;
    size_t n = strlen(l);
    if (n == 0) return refuse(o, "is empty");
    if (n > LOCATION_MAX) return refuse(o, "is longer than 4096 bytes");
    if (l[0] == '/') return refuse(o, "is an absolute path");
    if (strchr(l, '\\')) return refuse(o, "has a backslash");
    if (n > 1 && l[1] == ':') return refuse(o, "begins with a drive letter");
    for (const char *part = l; *part;) {
        size_t len = strcspn(part, "/");
        if (len == 2 && memcmp(part, "..", 2) == 0) return refuse(o, "has '..' in it");
        if (len == 1 && part[0] == '.' && part[1] == '\0') return refuse(o, "is a folder");
        part += len;
        while (*part == '/') part++;
    }
    if (l[n - 1] == '/') return refuse(o, "is a folder");
    return MPR_OK;
}

/* What one step is, without opening it. */
static int step_mode(int dir, const char *name, struct stat *st)
{
    return fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

/* Opens the folder that holds the last component; *last points to it. EXTDATA_* or errno in *gone.
 */
static mpr_status open_parent(const Open *o, const char *root, int *dir, const char **last,
                              int *gone)
{
    char part[LOCATION_MAX + 1];
    const char *p = o->location;
    *gone = 0;
    *dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    while (*dir >= 0) {
        size_t len = strcspn(p, "/");
        const char *next = p + len;
        while (*next == '/') next++;
        if (!*next) {
            *last = p;
            return MPR_OK;
        }
        memcpy(part, p, len);
        part[len] = '\0';
        struct stat st;
        int missing = step_mode(*dir, part, &st);
        if (!missing && S_ISLNK(st.st_mode)) {
            close(*dir);
            return refuse(o, "goes through a symbolic link");
        }
        int inner =
            missing ? -1 : openat(*dir, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inner < 0) *gone = missing ? missing : errno;
        close(*dir);
        *dir = inner;
        if (inner < 0) return MPR_OK;
        p = next;
    }
    *gone = errno;
    return MPR_OK;
}

/* Opens `name` in dir if it is a regular file with one name; *fd is -1 and *gone an errno when it
 * is absent. */
static mpr_status open_regular(const Open *o, int dir, const char *name, int *fd, bool *link,
                               int *gone)
{
    struct stat st;
    *fd = -1;
    *link = false;
    *gone = step_mode(dir, name, &st);
    if (*gone) return MPR_OK;
    if (S_ISLNK(st.st_mode)) {
        *link = true;
        return MPR_OK;
    }
    if (S_ISDIR(st.st_mode)) return refuse(o, "is a folder");
    if (!S_ISREG(st.st_mode)) return refuse(o, "is a pipe, socket or device");
    if (st.st_nlink > 1)
        return refuse(o, "is a hard link: the file has another name, which may lie outside");
    *fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (*fd < 0) {
        *gone = errno;
        return MPR_OK;
    }
    if (*fd <= 2) {
        int moved = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
        close(*fd);
        *fd = moved;
    }
    if (*fd >= 0 && fstat(*fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1) return MPR_OK;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return refuse(o, "changed while it was being opened");
}

/* Folder of the file that the model's path stands for, when that path is itself a link. */
static bool target_folder(const Source *s, char folder[PATH_MAX])
{
    struct stat st;
    char *real;
    if (lstat(s->path, &st) != 0 || !S_ISLNK(st.st_mode) || !(real = realpath(s->path, NULL)))
        return false;
    char *slash = strrchr(real, '/');
    size_t n = slash > real ? (size_t)(slash - real) : 1;
    bool ok = n < PATH_MAX;
    if (ok) {
        memcpy(folder, real, n);
        folder[n] = '\0';
    }
    free(real);
    return ok;
}

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The location is a link: allowed only into the folder of the model's own target. */
static mpr_status open_through_link(const Open *o, int dir, const char *name, int *fd, int *gone)
{
    char folder[PATH_MAX], text[PATH_MAX], parent[2 * PATH_MAX + 2];
    bool link;
    ssize_t n = readlinkat(dir, name, text, sizeof text - 1);
    if (n <= 0 || !target_folder(o->s, folder)) return refuse(o, "is a symbolic link");
    text[n] = '\0';
    const char *slash = strrchr(o->location, '/');
    int inner = slash ? (int)(slash - o->location) : 0;
    char *last = strrchr(text, '/');
    const char *base = last ? last + 1 : text;
    if (text[0] == '/')
        snprintf(parent, sizeof parent, "%.*s", (int)(last > text ? last - text : 1), text);
    else
        snprintf(parent, sizeof parent, "%s/%.*s/%.*s", o->s->folder, inner, o->location,
                 last ? (int)(last - text) : 0, text);
    if (!same_folder(parent, folder))
        return refuse(o, "is a symbolic link that leaves the model's folder");
    int target = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target < 0) return refuse(o, "is a symbolic link that leaves the model's folder");
    mpr_status status = open_regular(o, target, base, fd, &link, gone);
    close(target);
    if (status == MPR_OK && link) return refuse(o, "is a link to a link");
    return status;
}

static mpr_status open_below(const Open *o, const char *root, bool links, int *fd, int *gone)
{
    int dir;
    const char *last;
    bool link = false;
    *fd = -1;
    TRY(open_parent(o, root, &dir, &last, gone));
    if (dir < 0) return MPR_OK;
    mpr_status status = open_regular(o, dir, last, fd, &link, gone);
    if (status == MPR_OK && link)
        status =
            links ? open_through_link(o, dir, last, fd, gone) : refuse(o, "is a symbolic link");
    close(dir);
    return status;
}

static mpr_status open_location(const Open *o, int *fd)
{
    int gone;
    char folder[PATH_MAX];
    TRY(open_below(o, o->s->folder, true, fd, &gone));
    if (*fd < 0 && gone == ENOENT && target_folder(o->s, folder))
        TRY(open_below(o, folder, false, fd, &gone));
    if (*fd >= 0) return MPR_OK;
    mpri_err_set(o->err, MPR_E_EXTDATA_OPEN, "tensor %s: external data file %s/%s: %s",
                 mpri_err_name(o->tensor), mpri_err_name(o->s->folder), mpri_err_name(o->location),
                 strerrordesc_np(gone));
    return mpri_err_advice(
        o->err, "put the data file beside the model, under the name that the model has for it");
}

mpr_status mpri_source_external(Source *s, Arena *arena, const char *tensor, const char *location,
                                const SourceMap **out, Err *err)
{
    Open o = {s, tensor, location, err};
    for (SourceMap *m = s->maps; m; m = m->next)
        if (strcmp(m->location, location) == 0) {
            *out = m;
            return MPR_OK;
        }
    TRY(check_text(&o));
    SourceMap *m = ARENA_NEW(arena, SourceMap);
    if (!m || !(m->location = mpri_arena_strdup(arena, location)))
        return mpri_err_nomem(err, sizeof *m);
    TRY(open_location(&o, &m->fd));
    m->next = s->maps;
    s->maps = m;
    s->n_maps++;
    struct stat st;
    if (fstat(m->fd, &st) != 0)
        return mpri_err_set(err, MPR_E_EXTDATA_OPEN, "tensor %s: %s", mpri_err_name(tensor),
                            strerrordesc_np(errno));
    m->size = (size_t)st.st_size;
    m->changed = mpri_source_time(&st);
    if (m->size > 0) {
        void *p = mmap(NULL, m->size, PROT_READ, MAP_PRIVATE, m->fd, 0);
        if (p == MAP_FAILED)
            return mpri_err_set(
                err, MPR_E_EXTDATA_OPEN, "tensor %s: external data '%s' cannot be mapped: %s",
                mpri_err_name(tensor), mpri_err_name(location), strerrordesc_np(errno));
        m->bytes = p;
    }
    *out = m;
    return MPR_OK;
}
