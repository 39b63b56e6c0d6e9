/* Files that exist are told apart by inode, others by folder and name. */
#include "convert/targets.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static bool same_stat(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool folder_of(const char *path, struct stat *st)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + 1 : 0;
    if (n >= (int)sizeof folder) return false;
    snprintf(folder, sizeof folder, "%.*s", n, path);
    return stat(n ? folder : ".", st) == 0;
}

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    bool first = stat(a, &x) == 0, second = stat(b, &y) == 0;
    if (first && second) return same_stat(&x, &y) && S_ISREG(x.st_mode);
    const char *p = strrchr(a, '/'), *q = strrchr(b, '/');
    if (first || second || strcmp(p ? p + 1 : a, q ? q + 1 : b)) return false;
    return folder_of(a, &x) && folder_of(b, &y) && same_stat(&x, &y);
}

mpr_status mpri_targets_check(const Source *s, const TargetFile *written, const TargetFile *read,
                              Err *err)
{
    for (const TargetFile *w = written; w->option; w++) {
        if (!w->path) continue;
        if (mpri_source_reads(s, w->path)) {
            mpri_err_set(err, MPR_E_USAGE, "the %s %s is the same file as the input model or its "
                         "data, which is not overwritten", w->option, mpri_err_name(w->path));
            return mpri_err_advice(err, "write to another file");
        }
        for (const TargetFile *r = read; r->option; r++) {
            if (!r->path || !same_file(w->path, r->path)) continue;
            mpri_err_set(err, MPR_E_USAGE, "the %s %s is the file that %s reads", w->option,
                         mpri_err_name(w->path), r->option);
            return mpri_err_advice(err, "write to another file");
        }
        for (const TargetFile *o = written; o != w; o++) {
            if (!o->path || !same_file(w->path, o->path)) continue;
            mpri_err_set(err, MPR_E_USAGE, "%s and %s are the same file, %s", o->option, w->option,
                         mpri_err_name(w->path));
            return mpri_err_advice(err, "give each a name of its own");
        }
    }
    return MPR_OK;
}
