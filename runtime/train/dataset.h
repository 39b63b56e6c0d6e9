/* Data: arrays of the training files, one per model input plus labels, checked as a whole before
 * the first step, then handed out in batches. The order of the rows is a function of seed and epoch
 * only. */
#ifndef MPRI_TRAIN_DATASET_H
#define MPRI_TRAIN_DATASET_H

#include "runtime/train/session.h"
#include "runtime/train/tensors.h"

/* ---- one data file (data_file.c): .npz, .safetensors or .csv ---- */
typedef struct DataFile DataFile;
mpr_status mpri_data_open(mpr_context *ctx, const char *path, DataFile **out, Err *err);
bool mpri_data_has(const DataFile *f, const char *key);
/* Does reading `key` use the array (CSV: column) `name`? */
bool mpri_data_reads(const DataFile *f, const char *key, const char *name);
/* CSV: `input` gets all columns but `labels` when none has its name. */
void mpri_data_rest(DataFile *f, const char *input, const char *labels);
/* "'x', 'labels'" for messages. */
void mpri_data_keys(const DataFile *f, Text *out);
int mpri_data_count(const DataFile *f);
const char *mpri_data_key(const DataFile *f, int index);
/* The array; its data are allocated from the context. MPR_E_DATA lists the keys when it is not
 * there. */
mpr_status mpri_data_read(DataFile *f, const char *key, mpr_tensor *out, Err *err);
void mpri_data_close(DataFile *f);
/* The key of the labels: `wanted`, or the first of labels, label, y; NULL when there is none. */
const char *mpri_data_labels_key(const DataFile *f, const char *wanted);

/* ---- what a model asks of its inputs (dataset_check.c) ---- */
typedef struct InputRange {
    bool limited;
    int64_t low, high; /* low <= value < high */
    bool labels;       /* read by a loss: ignore_index is allowed besides */
} InputRange;
/* From the tables that the input indexes and the classes that it names. */
InputRange mpri_input_range(const Graph *g, const char *input);

typedef struct DataArray {
    SessionInput *input;
    const char *key;
    mpr_tensor t; /* all rows, in the input's type; owned */
    size_t row_bytes;
} DataArray;
/* Values inside their range, and finite. `file` for messages. */
mpr_status mpri_data_check(const mpr_session *s, const DataArray *a, bool allow_nonfinite,
                           const char *file, Err *err);

struct mpr_dataset {
    Handle h;
    mpr_session *s;
    mpr_dataset_options o;
    Arena arena;
    DataArray *arrays;
    int n_arrays;
    int64_t rows;
    int64_t *order;
    int64_t order_epoch; /* of which `order` is; -1 none */
    void *batch;         /* gathered rows of one array */
    size_t batch_bytes;
};

mpr_status mpri_dataset_open(mpr_session *s, const char *const *files, int n_files,
                             const mpr_dataset_options *options, mpr_dataset **out, Err *err);
mpr_status mpri_dataset_synthetic(mpr_dataset *d, Err *err); /* dataset_synthetic.c */
int64_t mpri_dataset_batches(const mpr_dataset *d);
mpr_status mpri_dataset_bind(mpr_dataset *d, int64_t epoch, int64_t batch, int64_t *rows, Err *err);
void mpri_dataset_close(mpr_dataset *d);

#endif
