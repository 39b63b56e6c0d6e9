/* Values of the option table: text with its strength, checked when set, read with a type. */
#ifndef MPRI_TRAIN_OPTIONS_H
#define MPRI_TRAIN_OPTIONS_H

#include "runtime/train/context.h"

typedef enum OptionId {
#define OPT(id, ...) OPT_##id,
#include "runtime/train/options.def"
#undef OPT
    OPT_COUNT
} OptionId;

typedef enum OptionLevel {
    OPTION_DEFAULT,
    OPTION_FILE,
    OPTION_ENVIRONMENT,
    OPTION_CALL
} OptionLevel;

typedef struct OptionValue {
    const char *text;   /* NULL: none; the joined items of a list */
    const char **items; /* lists; NULL-terminated */
    int n_items;
    OptionLevel level;
} OptionValue;

struct mpr_trainer_options {
    Handle h;
    mpr_context *ctx;
    Arena arena;
    OptionValue v[OPT_COUNT];
};

mpr_status mpri_options_create(mpr_context *ctx, mpr_trainer_options **out, Err *err);
void mpri_options_destroy(mpr_trainer_options *o);
const mpr_option_row *mpri_option_row(int index);
/* -1 unknown. '_' and '-' are the same; leading dashes are skipped. */
int mpri_option_find(const char *name);
/* NULL value: true for flags. */
mpr_status mpri_options_set(mpr_trainer_options *o, const char *name, const char *value,
                            OptionLevel level, Err *err);
mpr_status mpri_options_environment(mpr_trainer_options *o, Err *err);
mpr_status mpri_options_load(mpr_trainer_options *o, const char *file,
                             Err *err);                                       /* options_yaml.c */
mpr_status mpri_options_print(mpr_trainer_options *o, char **yaml, Err *err); /* options_yaml.c */
/* Contradictions between options. */
mpr_status mpri_options_check(const mpr_trainer_options *o, Err *err);

/* Typed reading: values were checked when they were set. */
bool mpri_option_flag(const mpr_trainer_options *o, OptionId id);
bool mpri_option_here(const mpr_trainer_options *o, OptionId id);        /* has a value */
const char *mpri_option_text(const mpr_trainer_options *o, OptionId id); /* NULL when none */
int64_t mpri_option_int(const mpr_trainer_options *o, OptionId id, int64_t when_none);
double mpri_option_float(const mpr_trainer_options *o, OptionId id);
const char *const *mpri_option_list(const mpr_trainer_options *o,
                                    OptionId id); /* NULL when empty */
bool mpri_option_is(const mpr_trainer_options *o, OptionId id, const char *text);

#endif
