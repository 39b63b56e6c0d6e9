/* Rules of a policy file and of --keep-fp32 on the painter's lists: low is allow, fp32 is deny,
 * widest is infer and keep is clear. The last match wins. */
#include <string.h>

#include "convert/paint.h"
#include "passes/profile.h"
#include "runtime/base/text.h"

static bool glob_of_path(const char *glob, const MixNode *n)
{
    return (*n->name && mpri_glob(glob, n->name)) || mpri_glob(glob, n->path) ||
           (*glob == '/' && mpri_glob(glob + 1, n->path));
}

/* Scopes are parts of a node's name, and the bodies that the node lies in. */
static bool in_scope(const char *glob, const MixNode *n)
{
    return mpri_profile_scope_matches(glob, n->name) ||
           mpri_profile_scope_matches(glob, n->path) ||
           (*glob == '/' && mpri_profile_scope_matches(glob + 1, n->path));
}

static bool is_op(const char *op, const MixNode *n)
{
    const char *colons = strstr(op, "::");
    if (!colons) return !*n->domain && !strcmp(op, n->op);
    size_t len = (size_t)(colons - op);
    return strlen(n->domain) == len && !strncmp(op, n->domain, len) && !strcmp(colons + 2, n->op);
}

static bool makes(const char *glob, const MixNode *n)
{
    for (int k = 0; k < n->n_out; k++)
        if (*n->out_name[k] && mpri_glob(glob, n->out_name[k])) return true;
    return false;
}

static bool matches(const ProfileRule *r, const MixNode *n)
{
    switch (r->kind) {
    case PROFILE_OP: return is_op(r->pattern, n);
    case PROFILE_NODE: return glob_of_path(r->pattern, n);
    case PROFILE_SUBGRAPH: return in_scope(r->pattern, n);
    case PROFILE_TENSOR: return makes(r->pattern, n);
    }
    return false;
}

/* On the list, as if it had always been there. */
static void list(MixNode *n, MixList to)
{
    for (int i = 0; i < n->n_units; i++) {
        MixUnit *u = n->units[i];
        if (u->pinned && !u->excluded) continue;
        u->pinned = u->excluded = u->asked = u->forced = false;
        u->list = to;
        u->pin = WHY_ALLOW;
    }
}

static void apply(const ProfileRule *r, MixNode *n)
{
    MixReason why = r->kind == PROFILE_OP ? WHY_OP : WHY_NAME;
    if (r->cls == CAST_FP32) mpri_paint_apply(n, RULE_EXCLUDE, why);
    else if (r->cls == CAST_LOW) mpri_paint_apply(n, RULE_INCLUDE, why);
    else list(n, r->cls == CAST_WIDEST ? LIST_INFER : LIST_CLEAR);
    for (int i = 0; i < n->n_units; i++) n->units[i]->detail = r->why;
}

void mpri_paint_policy(Paint *p)
{
    const Profile *policy = p->o->policy;
    for (int i = 0; policy && i < policy->n; i++) {
        ProfileRule *r = &policy->rules[i];
        r->matched = false;
        for (int k = 0; k < p->m->n_nodes; k++) {
            if (!matches(r, p->m->nodes[k])) continue;
            r->matched = true;
            apply(r, p->m->nodes[k]);
        }
        if (!r->matched) mpri_paint_warn(p, "unmatched", r->why, 0, "the rule matches no node");
    }
}
