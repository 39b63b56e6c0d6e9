/* Decisions that mpr-convert has written, as a profile. Those of a painting are final, unit by unit.
 * Those of a profile of torch say its base and rules, and these decide again: a session has to know
 * the profile for what no unit of the file stands for, such as nodes of the loss and gradients.
 * Whoever has the model at hand checks that the units come out as they are written. */
#include "passes/profile.h"

#include <string.h>

#if MPR_MINIMAL
mpr_status mpri_profile_decided(Profile *p, const char *text, Err *err)
{
    (void)err;
    p->decisions = text;
    return MPR_OK;
}
#else
#include <jansson.h>

static mpr_status complain(Err *err, const char *what, const char *found)
{
    mpri_err_set(err, MPR_E_USAGE, "decisions: %s '%s'", what, found ? mpri_err_name(found) : "");
    return mpri_err_advice(err, "write them anew: mpr-convert --annotations or --annotate");
}

static mpr_status add_rule(Profile *p, const json_t *rule, Err *err)
{
    static const char *const kinds[] = {
        [PROFILE_OP] = "op", [PROFILE_NODE] = "node", [PROFILE_SUBGRAPH] = "subgraph",
        [PROFILE_TENSOR] = "tensor"};
    const char *cls = json_string_value(json_object_get(rule, "class"));
    const char *where = json_string_value(json_object_get(rule, "where"));
    CastClass c = cls ? mpri_profile_class_parse(cls) : CAST_FORGOTTEN;
    if (c == CAST_FORGOTTEN) return complain(err, "a rule of the profile has the class", cls);
    for (int k = PROFILE_OP; k <= PROFILE_TENSOR; k++) {
        const char *pattern = json_string_value(json_object_get(rule, kinds[k]));
        if (pattern)
            return mpri_profile_add(p, (ProfileKind)k, pattern, c, where ? where : "decisions", err);
    }
    return complain(err, "a rule of the profile names nothing for the class", cls);
}

static mpr_status read_profile(Profile *p, const json_t *o, Err *err)
{
    const char *base = json_string_value(json_object_get(o, "base"));
    json_t *rule;
    size_t i;
    if (!base || !strcmp(base, "paint") || !mpri_profile_base(p, base))
        return complain(err, "unknown base profile", base);
    json_array_foreach(json_object_get(o, "rules"), i, rule) TRY(add_rule(p, rule, err));
    p->n_decided = p->n;
    return MPR_OK;
}

/* Text that is no JSON is complained about where the units are read. */
mpr_status mpri_profile_decided(Profile *p, const char *text, Err *err)
{
    json_error_t e;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    const json_t *profile = json_object_get(root, "profile");
    mpr_status status = MPR_OK;
    if (!root && json_error_code(&e) == json_error_out_of_memory) return mpri_err_nomem(err, 0);
    if (profile) {
        p->decided = text;
        status = read_profile(p, profile, err);
    } else {
        p->decisions = text;
    }
    json_decref(root);
    return status;
}
#endif
