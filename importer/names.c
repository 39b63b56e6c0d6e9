/* Public names. Exporters rename what they fold: a transposed weight becomes onnx::MatMul_395 or
 * val_60. The old name survives in an Identity's output, in folded_from metadata of a value_info,
 * or in the path of the node that reads the tensor ("/encoder/layer.0/query/MatMul" reads
 * encoder.layer.0.query.weight). */
#include "importer/names.h"

#include <string.h>

#include "importer/roles.h"
#include "runtime/op/ops.h"

static void consider(const char *name, const char **best)
{
    if (name && !mpri_name_made_up(name) && (!*best || strlen(name) < strlen(*best))) *best = name;
}

/* ['a.b.weight'] -> a.b.weight; NULL when the list has another number of entries. */
static const char *only_entry(Import *im, const char *list)
{
    const char *open = strpbrk(list, "'\""), *close = open ? strchr(open + 1, *open) : NULL;
    if (!close || strcspn(close + 1, "'\"") != strlen(close + 1)) return NULL;
    return mpri_intern_n(im->names, open + 1, (size_t)(close - open - 1));
}

struct FoldedName { /* a value_info with that metadata */
    UT_hash_handle hh;
    bool lost;
    const char *name, *from;
};

mpr_status mpri_param_names_prepare(Import *im, Err *err)
{
    Arena *hash_arena = &im->scratch;
    for (int i = 0; i < im->n_infos; i++) {
        const ValueInfoProto *v = im->infos[i];
        for (size_t k = 0; k < v->n_metadata_props; k++) {
            const Onnx__StringStringEntryProto *e = v->metadata_props[k];
            if (!e->key || !e->value || strcmp(e->key, "pkg.onnxscript.optimizer.folded_from") != 0)
                continue;
            struct FoldedName *old, *f = ARENA_NEW(hash_arena, struct FoldedName);
            HASH_FIND_PTR(im->folded, &v->name, old);
            if (!f) return mpri_err_nomem(err, sizeof *f);
            f->name = v->name;
            f->from = only_entry(im, e->value);
            if (!old) HASH_ADD_PTR(im->folded, name, f);
            if (f->lost) return mpri_err_nomem(err, sizeof *f);
        }
    }
    return MPR_OK;
}

static const char *folded_from(Import *im, const char *name)
{
    struct FoldedName *f;
    HASH_FIND_PTR(im->folded, &name, f);
    return f ? f->from : NULL;
}

static const char *role_of(const Use *u)
{
    return mpri_param_role(mpri_node_type(u->user), u->index);
}

/* The first reader in a role; behind the Casts of a mixed-precision file, two at most, as well. */
static const Use *role_use(const Value *v, int casts)
{
    const Use *best = NULL;
    for (const Use *u = v->uses; u; u = u->next) {
        const Use *found = role_of(u) ? u : NULL;
        if (mpri_is(u->user, OP_Cast) && casts > 0) found = role_use(u->user->out[0], casts - 1);
        if (found && (!best || found->user->id < best->user->id)) best = found;
    }
    return best;
}

/* "/a/b/MatMul", weight -> "a.b.weight"; NULL when the reader has no such path. */
static const char *from_path(Import *im, const Value *v)
{
    const Use *u = role_use(v, 2);
    if (!u) return NULL;
    const char *path = u->user->name;
    while (*path == '/') path++;
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return NULL;
    char *text = mpri_arena_printf(&im->scratch, "%.*s.%s", (int)(slash - path), path,
                                   role_of(u));
    for (char *c = text; c && *c; c++)
        if (*c == '/') *c = '.';
    return text ? mpri_intern(im->names, text) : NULL;
}

const char *mpri_param_public_name(Import *im, const Value *v, const char *const *candidates, int n)
{
    const char *best = NULL;
    for (int i = 0; i < n; i++) consider(candidates[i], &best);
    for (const Use *u = v->uses; u; u = u->next)
        if (mpri_is(u->user, OP_Identity) && u->user->out[0])
            consider(u->user->out[0]->name, &best);
    if (best) return best;
    for (int i = 0; i < n && !best; i++) consider(folded_from(im, candidates[i]), &best);
    if (!best) best = from_path(im, v);
    return best ? best : candidates[0];
}
