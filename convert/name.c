/* Versions of a value: one Cast per value and type, shared by all readers.
 *
 * All versions start from what is meant. Where a name holds f32 and a low type is meant, the
 * narrowing Cast comes first and the f32 version is made from it: whoever reads f32 reads the
 * rounded value, as training does. */
#include "convert/name.h"

#include <string.h>

static int place_of(DType t)
{
    return t == MPR_FLOAT32 ? 0 : t == MPR_FLOAT16 ? 1 : 2;
}

static mpr_status fresh(const Naming *w, const char *base, DType t, const char **out, Err *err)
{
    char *name = mpri_arena_printf(w->f->arena, "%s__mpr_%s", base, mpri_file_suffix(t));
    return name ? mpri_file_fresh(w->f, name, out, err) : mpri_err_nomem(err, strlen(base) + 16);
}

static mpr_status make(Naming *w, FileValue *v, Made what, Err *err)
{
    Made *m = ARENA_NEW(w->f->arena, Made);
    if (!m) return mpri_err_nomem(err, sizeof *m);
    *m = what;
    if (v->last) v->last->next = m;
    else v->first = m;
    v->last = m;
    w->made++;
    return MPR_OK;
}

static mpr_status new_cast(Naming *w, FileValue *v, const char *from, DType t, const char **out,
                           Err *err)
{
    TRY(fresh(w, out == &v->rounded ? from : v->name, t, out, err));
    bool rounds = v->forced && from == v->base;
    return make(w, v, (Made){.from = from, .to = *out, .name = *out, .type = t, .rounds = rounds},
                err);
}

/* v in type t. */
static mpr_status version(Naming *w, FileValue *v, DType t, const char **out, Err *err)
{
    const char **as = &v->as[place_of(t)];
    if (!*as && t == v->meant && v->held == t) *as = v->base;
    if (!*as) {
        const char *from = v->base;
        if (t != v->meant) TRY(version(w, v, v->meant, &from, err));
        TRY(new_cast(w, v, from, t, as, err));
    }
    *out = *as;
    return MPR_OK;
}

/* v in f32, after a rounding to the low type. */
static mpr_status rounded(Naming *w, FileValue *v, DType low, const char **out, Err *err)
{
    const char *from;
    if (v->meant == low) return version(w, v, MPR_FLOAT32, out, err);
    if (!v->rounded) {
        TRY(version(w, v, low, &from, err));
        TRY(new_cast(w, v, from, MPR_FLOAT32, &v->rounded, err));
    }
    *out = v->rounded;
    return MPR_OK;
}

static mpr_status saturated(Naming *w, FileValue *v, const Value *constant, const char **out,
                            Err *err)
{
    if (!v->saturated) {
        TRY(fresh(w, v->name, constant->dtype, &v->saturated, err));
        TRY(make(w, v,
                 (Made){.to = v->saturated,
                        .name = v->saturated,
                        .type = constant->dtype,
                        .constant = constant},
                 err));
    }
    *out = v->saturated;
    return MPR_OK;
}

mpr_status mpri_name_as_before(Naming *w, FileValue *v, const char **out, Err *err)
{
    return version(w, v, v->before, out, err);
}

mpr_status mpri_name_input(Naming *w, const FileNodeIO *n, int k, const char **out, Err *err)
{
    FileValue *v = mpri_file_value(w->f, n->in[k]);
    *out = n->in[k];
    if (!v || !mpri_file_castable(v->before)) return MPR_OK;
    *out = v->base;
    if (n->alias) return MPR_OK;
    if (k < 32 && n->saturate >> k & 1) return saturated(w, v, n->constants[k], out, err);
    if (!*n->domain && !strcmp(n->op_type, "Cast")) return version(w, v, v->meant, out, err);
    if (n->compute == MPR_DTYPE_NONE || (k < 32 && n->own >> k & 1))
        return version(w, v, v->before, out, err);
    if (n->rounds_in || (k < 32 && n->wide >> k & 1))
        return rounded(w, v, n->compute, out, err);
    return version(w, v, n->runs, out, err);
}

/* base -> (rounded to what is meant ->) the public name. These Casts are called by what they read,
 * which is the new name there. */
static mpr_status keep_public(Naming *w, FileValue *v, Err *err)
{
    const char *from;
    TRY(fresh(w, v->name, v->held, &v->base, err));
    from = v->base;
    if (v->held == v->meant) v->as[place_of(v->held)] = v->base;
    else if (v->meant != v->before) {
        const char **low = &v->as[place_of(v->meant)];
        TRY(fresh(w, v->name, v->meant, low, err));
        TRY(make(w, v,
                 (Made){.from = from,
                        .to = *low,
                        .name = from,
                        .type = v->meant,
                        .rounds = v->forced},
                 err));
        from = *low;
    }
    v->as[place_of(v->before)] = v->name;
    bool rounds = v->forced && from == v->base;
    return make(w, v,
                (Made){.from = from,
                       .to = v->name,
                       .name = from,
                       .type = v->before,
                       .rounds = rounds},
                err);
}

mpr_status mpri_name_outputs(Naming *w, Err *err)
{
    for (int i = 0; i < w->f->n_values; i++) {
        FileValue *v = &w->f->values[i];
        if (v->output && (v->held != v->before || v->meant != v->held))
            TRY(keep_public(w, v, err));
    }
    return MPR_OK;
}
