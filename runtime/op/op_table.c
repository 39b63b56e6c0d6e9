/* All operators by id, and by domain and name. */
#include "runtime/op/ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static mpr_status infer_opaque(InferCtx *c)
{
    (void)c; /* types come from the file's declarations */
    return MPR_OK;
}

const OpDef mpri_op_Opaque = {
    .id = OP_Opaque, .name = "Opaque", .domain = "mpr", .since = 1, .family = "opaque",
    .help = "an operator that is not known here",
    .min_in = 0, .max_in = -1, .min_out = 0, .max_out = -1, .optional_in = UINT32_MAX,
    .flags = OPF_OPAQUE,
    .cast_cuda = CAST_FIXED, .cast_cpu = CAST_FIXED, .infer = infer_opaque,
    .grad_state = GRAD_NONE, .grad_reason = "the operator is not known",
};

static const OpDef *const defs[] = {
#define OP(name, domain, since, family) &mpri_op_##name,
#include "runtime/op/ops.def"
#undef OP
    &mpri_op_Opaque,
};

/* Sorted on first use: the one list stays in the order of ops.def. Read-only afterwards. */
static const OpDef *sorted[OP_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int by_name(const void *a, const void *b)
{
    const OpDef *x = *(const OpDef *const *)a, *y = *(const OpDef *const *)b;
    int d = strcmp(x->domain, y->domain);
    return d ? d : strcmp(x->name, y->name);
}

static void sort_all(void)
{
    memcpy(sorted, defs, sizeof sorted);
    qsort(sorted, OP_COUNT, sizeof *sorted, by_name);
}

static const OpDef *find(const char *domain, const char *name)
{
    OpDef key = {.name = name, .domain = strcmp(domain, "ai.onnx") ? domain : ""};
    const OpDef *k = &key;
    pthread_once(&once, sort_all);
    const OpDef **hit = bsearch(&k, sorted, OP_COUNT, sizeof *sorted, by_name);
    return hit && (*hit)->id != OP_Opaque ? *hit : NULL;
}

const OpTable *mpri_op_table(void)
{
    static const OpTable table = {
        .count = OP_COUNT, .defs = defs, .find = find, .opaque = &mpri_op_Opaque};
    return &table;
}
