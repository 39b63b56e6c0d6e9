/* The importer has solved the types of the result and compared them with the declared ones. What is
 * left are the rules that the canonical operators do not have: type variables that several inputs
 * share, and types that an opset does not know yet. Faults that the original has stay its own. */
#include "convert/check.h"

#include <string.h>

#include "convert/file.h"
#include "convert/schema.h"

/* What is wrong with the float types of a node, or NULL. */
static const char *fault(const FileGraph *f, const FileNodeIO *n)
{
    if (*n->domain || n->bodies) return NULL;
    uint32_t own = mpri_schema_own(n->op_type, f->opset);
    DType data = MPR_DTYPE_NONE;
    for (int k = 0; k < n->n_in; k++) {
        const FileValue *v = mpri_file_value(f, n->in[k]);
        if (!v || !mpri_file_castable(v->before)) continue;
        if (k < 32 && mpri_schema_refuses(n->op_type, f->opset, v->before) >> k & 1)
            return "has a 16-bit input that must be float32";
        if (k < 32 && own >> k & 1) continue;
        if (data != MPR_DTYPE_NONE && v->before != data) return "mixes float types";
        data = v->before;
        if (!mpri_schema_takes(n->op_type, f->opset, data)) return "takes no such input";
    }
    for (int k = 0; k < n->n_out; k++) {
        const FileValue *v = mpri_file_value(f, n->out[k]);
        if (v && mpri_file_castable(v->before) &&
            !mpri_schema_takes(n->op_type, f->opset, v->before))
            return "has no such output";
    }
    return NULL;
}

static bool same(const FileNodeIO *a, const FileNodeIO *b)
{
    return !strcmp(a->name, b->name) && !strcmp(a->op_type, b->op_type);
}

mpr_status mpri_convert_check(const ImportedModel *before, const ImportedModel *after,
                              Arena *arena, Err *err)
{
    FileGraph a, b;
    int i = 0;
    TRY(mpri_file_read(before, arena, &a, err));
    TRY(mpri_file_read(after, arena, &b, err));
    for (int k = 0; k < b.n_nodes; k++) {
        const FileNodeIO *n = &b.nodes[k];
        bool old = i < a.n_nodes && same(&a.nodes[i], n);
        const char *what = fault(&b, n);
        if (what && !(old && fault(&a, &a.nodes[i]))) {
            const char *name = *n->name ? n->name : n->n_out ? n->out[0] : "";
            mpri_err_set(err, MPR_E_INTERNAL, "converted, node '%s' (%s) %s at opset %lld",
                         mpri_err_name(name), mpri_err_name(n->op_type), what,
                         (long long)b.opset);
            return mpri_err_advice(err, "keep the node in float32: --keep-fp32 '/%s'",
                                   mpri_err_name(name));
        }
        i += old;
    }
    if (i == a.n_nodes) return MPR_OK;
    return mpri_err_set(err, MPR_E_INTERNAL, "converted, the model has lost node '%s' (%s)",
                        mpri_err_name(a.nodes[i].name), mpri_err_name(a.nodes[i].op_type));
}
