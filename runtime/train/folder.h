/* Folders written as a whole: files go into a sibling temporary folder, are synced, and the folder
 * is renamed into place. Whoever looks sees the old state or the new one. */
#ifndef MPRI_TRAIN_FOLDER_H
#define MPRI_TRAIN_FOLDER_H

#include <stdbool.h>
#include "runtime/base/alloc.h"
#include "runtime/base/err.h"

typedef struct Folder {
    char path[4096];      /* final */
    char temporary[4112]; /* path.tmp-<pid> */
    int fd;               /* of the temporary folder */
} Folder;

mpr_status mpri_folder_begin(Folder *f, const char *path, Err *err);
/* Created exclusively, written, synced and closed with every result checked. */
mpr_status mpri_folder_write(Folder *f, const char *name, const void *bytes, size_t n, Err *err);
/* Sync and rename; replaces an older folder of that name. Ends f. */
mpr_status mpri_folder_commit(Folder *f, Err *err);
void mpri_folder_abandon(Folder *f); /* removes the temporary; after a failure */
/* Removes a folder of plain files. */
void mpri_folder_remove(const char *path);
/* Removes "*.tmp-<pid>" folders in `parent` whose process is gone. */
void mpri_folder_sweep(const char *parent);
/* Creates a folder and its parents; MPR_E_IO when it cannot be written to. */
mpr_status mpri_folder_make(const char *path, Err *err);
/* One writer per folder: holds `path`/.lock. MPR_E_IO names the process that has it. -1 in *fd on
 * failure. */
mpr_status mpri_folder_lock(const char *path, int *fd, Err *err);
void mpri_folder_unlock(const char *path, int fd);

#endif
