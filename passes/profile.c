/* Which class an operator has: torch's two autocast lists as they stand in the OpDefs, a few rules
 * that depend on more than the operator's name, and the user's rules on top, last match wins.
 *
 * Reference: torch.autocast's operator lists for CUDA and CPU (PyTorch 2.15). The structural rules
 * say how torch itself would have called what the exporter wrote differently: c / x is its
 * reciprocal. */
#include "passes/profile.h"

#include <string.h>

static const char *const class_names[] = {
    [CAST_FORGOTTEN] = "none", [CAST_LOW] = "low",   [CAST_FP32] = "fp32",
    [CAST_WIDEST] = "widest",  [CAST_KEEP] = "keep", [CAST_MOVE] = "move",
    [CAST_FIXED] = "fixed",
};
static const char *const class_reasons[] = {
    [CAST_FORGOTTEN] = "is on no list",     [CAST_LOW] = "is on the allow list",
    [CAST_FP32] = "is on the deny list",    [CAST_WIDEST] = "takes its widest input's type",
    [CAST_KEEP] = "keeps its input's type", [CAST_MOVE] = "moves data only",
    [CAST_FIXED] = "has fixed types",
};

const char *mpri_profile_class_name(CastClass c)
{
    return class_names[c];
}

CastClass mpri_profile_class_parse(const char *name)
{
    for (int c = CAST_LOW; c <= CAST_KEEP; c++)
        if (!strcmp(class_names[c], name)) return (CastClass)c;
    return CAST_FORGOTTEN;
}

static CastClass listed(const Profile *p, const OpDef *op)
{
    return p->cpu ? op->cast_cpu : op->cast_cuda;
}

/* ---- structural rules ---- */

static bool scalar_constant(const Value *v)
{
    return v && v->kind == VAL_CONST && v->param < 0 && v->shape.rank == 0;
}

/* c / x: torch computes the reciprocal of x times c. */
static bool divides_constant(const Node *n)
{
    return mpri_is(n, OP_Div) && scalar_constant(n->in[0]) && !scalar_constant(n->in[1]);
}

/* 1 / sqrt(x) is one operator in torch. */
static bool is_rsqrt(const Node *n)
{
    if (!mpri_is(n, OP_Sqrt) || n->out[0]->n_uses != 1 || n->out[0]->n_outputs) return false;
    const Node *user = n->out[0]->uses->user;
    return mpri_is(user, OP_Reciprocal) || (divides_constant(user) && user->in[1] == n->out[0]);
}

/* A group that the file wrote operator by operator: its f32 scale or its overflow guard would have
 * lifted it to f32 anyway, so it is one deny unit on every list. */
static bool recovered_group(const Node *n)
{
    return n->origin.n > 1 && (mpri_is(n, OP_LayerNormalization) ||
                               mpri_is(n, OP_RMSNormalization) || mpri_is(n, OP_Softmax));
}

/* torch-cpu computes borders that repeat elements in f32; a constant border only moves data. */
static bool repeating_pad(const Node *n)
{
    return mpri_is(n, OP_Pad) && ((const PadParams *)n->params)->mode[0] != 'c';
}

/* scatter_add is on CUDA's promote list, the other scatters are on none. */
static bool adding_scatter(const Node *n)
{
    return mpri_is(n, OP_ScatterElements) &&
           !strcmp(((const ScatterParams *)n->params)->reduction, "add");
}

/* A pool over more than two spatial dims: on torch's CPU list, which knows the 2-D ones not. */
static bool volume_pool(const Node *n)
{
    return !strcmp(n->op->family, "pool") && n->in[0]->shape.rank > 4;
}

/* A body is written once and may run many times: its nodes keep the types of the file. */
static bool in_body(const Node *n)
{
    for (int i = 0; i < n->origin.n; i++)
        if (n->origin.v[i] == MPRI_ORIGIN_BODY) return true;
    return false;
}

static CastDecision base_decision(const Profile *p, const Node *n)
{
    if (in_body(n))
        return (CastDecision){CAST_FIXED, "inside If, Loop or Scan: as in the file; the profile paint "
                                          "goes into bodies too"};
    if (n->op->flags & OPF_LOSS)
        return (CastDecision){CAST_FP32, "losses are computed in f32 on every profile"};
    CastClass c = listed(p, n->op);
    if (c == CAST_FIXED) return (CastDecision){c, p->why[n->op->id]};
    if (recovered_group(n))
        return (CastDecision){CAST_FP32,
                              "recovered from single operators: one f32 group on every profile"};
    if ((divides_constant(n) || is_rsqrt(n)) && listed(p, &mpri_op_Reciprocal) == CAST_FP32)
        return (CastDecision){CAST_FP32, p->why[OP_Reciprocal]};
    if (adding_scatter(n) && !p->cpu) c = CAST_WIDEST;
    if (repeating_pad(n)) c = p->cpu ? CAST_FP32 : CAST_KEEP;
    if (p->cpu && volume_pool(n))
        return (CastDecision){CAST_FP32, "pools of three spatial dims are f32 on torch's CPU list"};
    return (CastDecision){c, p->why[n->op->id]};
}

/* ---- rules of the user ---- */

bool mpri_profile_scope_matches(const char *glob, const char *name)
{
    char scope[512];
    for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        size_t len = (size_t)(slash - name);
        if (len == 0 || len >= sizeof scope) continue;
        memcpy(scope, name, len);
        scope[len] = 0;
        if (mpri_glob(glob, scope)) return true;
    }
    return false;
}

/* A recovered Linear answers to the names that its files use. */
static bool op_matches(const char *name, const Node *n)
{
    if (!strcmp(name, n->op->name)) return true;
    return mpri_is(n, OP_Linear) && (!strcmp(name, "MatMul") || !strcmp(name, "Gemm"));
}

static bool makes(const char *glob, const Node *n)
{
    for (int k = 0; k < n->n_out; k++)
        if (n->out[k] && mpri_glob(glob, n->out[k]->name)) return true;
    return false;
}

static bool rule_matches(const ProfileRule *r, const Node *n)
{
    switch (r->kind) {
    case PROFILE_OP: return op_matches(r->pattern, n);
    case PROFILE_NODE: return mpri_glob(r->pattern, n->name);
    case PROFILE_SUBGRAPH: return mpri_profile_scope_matches(r->pattern, n->name);
    case PROFILE_TENSOR: return makes(r->pattern, n);
    }
    return false;
}

CastDecision mpri_profile_decide(const Profile *p, const Node *n, bool *by_rule)
{
    CastDecision d = base_decision(p, n);
    *by_rule = false;
    for (int i = 0; i < p->n; i++) {
        ProfileRule *r = &p->rules[i];
        if (!rule_matches(r, n)) continue;
        r->matched = true;
        if (d.cls == CAST_FIXED || (n->op->flags & OPF_LOSS)) continue;
        d = (CastDecision){r->cls, r->why};
        *by_rule = true;
    }
    return d;
}

const char *mpri_profile_step(const Profile *p, const Node *n, int step)
{
    if (step < 0) return base_decision(p, n).why;
    return step < p->n && rule_matches(&p->rules[step], n) ? p->rules[step].why : NULL;
}

void mpri_profile_print(const Profile *p, Text *out)
{
    for (int i = 0; i < p->n; i++)
        mpri_text_add(out, "%s %s%s\n", i ? "            " : "rules       ",
                      mpri_err_name(p->rules[i].why), p->rules[i].matched ? "" : " (no node)");
}

CastDecision mpri_profile_class(const Profile *p, const Node *n)
{
    bool by_rule;
    return mpri_profile_decide(p, n, &by_rule);
}

const char *const *mpri_profile_unmatched(const Profile *p, Arena *arena)
{
    static const char *const none[] = {NULL};
    const char **list = ARENA_ARRAY(arena, const char *, p->n + 1);
    if (!list) return none;
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (!p->rules[i].matched) list[n++] = p->rules[i].why;
    return list;
}

/* ---- making one ---- */

bool mpri_profile_base(Profile *p, const char *name)
{
    p->cpu = !strcmp(name, "torch-cpu");
    p->paint = !strcmp(name, "paint");
    return p->cpu || p->paint || !strcmp(name, "torch-cuda");
}

const char *mpri_profile_base_name(const Profile *p)
{
    return p->paint ? "paint" : p->cpu ? "torch-cpu" : "torch-cuda";
}

/* The operator that a rule names must exist and must have a type that can change. */
static mpr_status check_op(const char *name, const char *where, Err *err)
{
    const OpTable *ops = mpri_op_table();
    const char *names[OP_COUNT];
    size_t n = 0;
    for (int i = 0; i < ops->count; i++) {
        const OpDef *op = ops->defs[i];
        if (op->flags & OPF_OPAQUE || (op->flags & OPF_INTERNAL && op->cast_cuda != CAST_LOW))
            continue;
        names[n++] = op->name;
        if (strcmp(op->name, name)) continue;
        if (op->cast_cuda != CAST_FIXED) return MPR_OK;
        return mpri_err_set(err, MPR_E_USAGE,
                            "%s: operator %s has fixed types, a rule cannot change them", where,
                            name);
    }
    mpri_err_set(err, MPR_E_USAGE, "%s: there is no operator '%s'", where, mpri_err_name(name));
    const char *near = mpri_nearest(name, names, n);
    if (near) return mpri_err_advice(err, "did you mean '%s'?", near);
    return mpri_err_advice(
        err,
        "use an operator's ONNX name such as Softmax, or a glob on node names such as /encoder/*");
}

mpr_status mpri_profile_add(Profile *p, ProfileKind kind, const char *pattern, CastClass cls,
                            const char *where, Err *err)
{
    static const char *const kinds[] = {
        [PROFILE_OP] = "op", [PROFILE_NODE] = "node", [PROFILE_SUBGRAPH] = "subgraph",
        [PROFILE_TENSOR] = "tensor"};
    if (kind == PROFILE_OP) TRY(check_op(pattern, where, err));
    if (p->n == p->cap) {
        int cap = p->cap ? 2 * p->cap : 8;
        ProfileRule *rules = ARENA_ARRAY(p->arena, ProfileRule, cap);
        if (!rules) return mpri_err_nomem(err, (size_t)cap * sizeof *rules);
        if (p->n) memcpy(rules, p->rules, (size_t)p->n * sizeof *rules);
        p->rules = rules;
        p->cap = cap;
    }
    ProfileRule r = {.kind = kind, .cls = cls, .pattern = mpri_arena_strdup(p->arena, pattern),
                     .where = mpri_arena_strdup(p->arena, where)};
    const char *base = mpri_profile_base_name(p);
    bool listed_op = kind == PROFILE_OP && !mpri_profile_converts(p);
    const OpDef *op = listed_op ? mpri_op_table()->find("", pattern) : NULL;
    if (op)
        r.why = mpri_arena_printf(p->arena, "%s: %s: %s (%s: %s)", where, pattern, class_names[cls],
                                  base, class_names[listed(p, op)]);
    else
        r.why = mpri_arena_printf(p->arena, "%s: %s %s: %s", where, kinds[kind], pattern,
                                  class_names[cls]);
    if (!r.pattern || !r.where || !r.why) return mpri_err_nomem(err, strlen(pattern));
    p->rules[p->n++] = r;
    return MPR_OK;
}

/* An entry of --keep-fp32: a path or a glob names nodes, a word names an operator. */
static mpr_status keep_fp32(Profile *p, const char *entry, Err *err)
{
    bool node = strpbrk(entry, "/*?[") != NULL;
    ProfileKind kind = node ? PROFILE_NODE : PROFILE_OP;
    return mpri_profile_add(p, kind, entry, CAST_FP32, "keep-fp32", err);
}

/* Reasons of the base list, one text per operator. */
static mpr_status base_reasons(Profile *p, Err *err)
{
    const OpTable *ops = mpri_op_table();
    p->why = mpri_arena_array(p->arena, (size_t)ops->count, sizeof *p->why);
    if (!p->why) return mpri_err_nomem(err, (size_t)ops->count * sizeof *p->why);
    for (int i = 0; i < ops->count; i++) {
        p->why[i] = mpri_arena_printf(p->arena, "%s: %s %s", mpri_profile_base_name(p),
                                      ops->defs[i]->name, class_reasons[listed(p, ops->defs[i])]);
        if (!p->why[i]) return mpri_err_nomem(err, 64);
    }
    return MPR_OK;
}

static mpr_status unknown_profile(const char *name, Err *err)
{
    static const char *const known[] = {"torch-cuda", "torch-cpu", "paint"};
    const char *near = mpri_nearest(name, known, 3);
    mpri_err_set(err, MPR_E_USAGE, "there is no autocast profile '%s'", mpri_err_name(name));
    if (near) return mpri_err_advice(err, "did you mean '%s'?", near);
    return mpri_err_advice(err, "profiles: torch-cuda, torch-cpu, paint, or the path of a file");
}

mpr_status mpri_profile_load(const char *name_or_file, const char *const *keep, Arena *arena,
                             Profile **out, Err *err)
{
    *out = NULL;
    Profile *p = ARENA_NEW(arena, Profile);
    char *name = mpri_arena_strdup(arena, name_or_file);
    if (!p || !name) return mpri_err_nomem(err, sizeof *p);
    p->arena = arena;
    p->name = name;
    if (!mpri_profile_base(p, name)) {
        if (!strpbrk(name, "./")) return unknown_profile(name, err);
#if MPR_MINIMAL
        mpri_err_set(err, MPR_E_USAGE, "autocast profile '%s': this build reads no rule files",
                     mpri_err_name(name));
        return mpri_err_advice(err, "use torch-cuda or torch-cpu, or build with MPR_MINIMAL=OFF");
#else
        TRY(mpri_profile_read(p, name, err));
#endif
    }
    TRY(base_reasons(p, err));
    for (; keep && *keep; keep++) TRY(keep_fp32(p, *keep, err));
    *out = p;
    return MPR_OK;
}

mpr_status mpri_profile_carried(const char *name, const char *text, const char *const *keep,
                                Arena *arena, Profile **out, Err *err)
{
    Profile *p = ARENA_NEW(arena, Profile);
    if (!p) return mpri_err_nomem(err, sizeof *p);
    *p = (Profile){.arena = arena, .name = name, .carried = true};
    TRY(mpri_profile_decided(p, text, err));
    if (p->decisions) (void)mpri_profile_base(p, "paint");
    TRY(base_reasons(p, err));
    for (; keep && *keep; keep++) TRY(keep_fp32(p, *keep, err));
    *out = p;
    return MPR_OK;
}
