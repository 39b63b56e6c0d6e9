/* Reading decisions. The reader trusts nothing: every unit of the model must be named,
 * joined ones must agree, and what ONNX forbids stays forbidden. */
#include "convert/decisions.h"

#include <stdlib.h>
#include <string.h>

#include "convert/casts.h"
#include "passes/profile.h"

static const char advice[] = "write them anew: mpr-convert --annotations or --annotate";

#if MPR_MINIMAL
static mpr_status no_json(Err *err)
{
    mpri_err_set(err, MPR_E_USAGE, "this build reads no decisions");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

mpr_status mpri_decisions_read(Paint *p, const char *text, Err *err)
{
    (void)p;
    (void)text;
    return no_json(err);
}

mpr_status mpri_decisions_follow(Paint *p, const char *text, Err *err)
{
    (void)p;
    (void)text;
    return no_json(err);
}

mpr_status mpri_decisions_check(const char *text, const char *hex, const char *plain_hex,
                                Err *err)
{
    (void)text;
    (void)hex;
    (void)plain_hex;
    return no_json(err);
}

mpr_status mpri_decisions_hold(Mix *m, const char *text, bool kept, Err *err)
{
    (void)m;
    (void)text;
    (void)kept;
    return no_json(err);
}

bool mpri_decisions_by_profile(const char *text)
{
    (void)text;
    return false;
}

DType mpri_decisions_type(const char *text)
{
    (void)text;
    return MPR_DTYPE_NONE;
}
#else
#include <jansson.h>

static mpr_status load(const char *text, json_t **root, Err *err)
{
    json_error_t e;
    *root = json_loads(text, JSON_REJECT_DUPLICATES, &e);
    if (!*root && json_error_code(&e) == json_error_out_of_memory) return mpri_err_nomem(err, 0);
    if (!*root) {
        mpri_err_set(err, MPR_E_USAGE, "decisions, line %d, column %d: %s", e.line, e.column,
                     mpri_err_name(e.text));
        return mpri_err_advice(err, advice);
    }
    const json_t *schema = json_object_get(*root, "schema");
    if (json_is_array(json_object_get(*root, "nodes")) && json_is_integer(schema) &&
        json_integer_value(schema) == 1)
        return MPR_OK;
    json_decref(*root);
    *root = NULL;
    mpri_err_set(err, MPR_E_USAGE,
                 "decisions: expected an object with schema 1 and the array nodes");
    return mpri_err_advice(err, advice);
}

static const char *word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

mpr_status mpri_decisions_check(const char *text, const char *hex, const char *plain_hex,
                                Err *err)
{
    json_t *root;
    TRY(load(text, &root, err));
    const char *sha = word(json_object_get(root, "model"), "sha256");
    bool same = !strcmp(sha, hex) || !strcmp(sha, plain_hex);
    if (!*sha)
        mpri_err_set(err, MPR_E_USAGE, "the decisions do not say which model they are for: "
                     "model.sha256 is missing");
    else if (!same)
        mpri_err_set(err, MPR_E_USAGE, "the decisions are for another model: its sha256 is %.64s, "
                     "that of this one %s", mpri_err_name(sha), hex);
    json_decref(root);
    return same ? MPR_OK : mpri_err_advice(err, advice);
}

static DType type_of(const char *name)
{
    static const DType types[] = {MPR_FLOAT32, MPR_FLOAT16, MPR_BFLOAT16};
    for (int i = 0; i < 3; i++)
        if (!strcmp(mpri_decisions_word(types[i]), name)) return types[i];
    return MPR_DTYPE_NONE;
}

DType mpri_decisions_type(const char *text)
{
    json_t *root, *node, *unit;
    size_t i;
    const char *var;
    DType found = MPR_DTYPE_NONE;
    Err err = {0};
    if (load(text, &root, &err) != MPR_OK) return found;
    if (mpri_dtype_is_low(type_of(word(root, "for")))) found = type_of(word(root, "for"));
    json_array_foreach(json_object_get(root, "nodes"), i, node)
        json_object_foreach(json_object_get(node, "units"), var, unit) {
            DType t = type_of(word(unit, "is"));
            if (found == MPR_DTYPE_NONE && mpri_dtype_is_low(t)) found = t;
        }
    json_decref(root);
    return found;
}

bool mpri_decisions_by_profile(const char *text)
{
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    bool is = json_object_get(root, "profile") != NULL;
    json_decref(root);
    return is;
}

/* ---- reading ---- */

typedef struct PathEntry { /* the first node of a path */
    const MixNode *node;
    const char *path;
    bool lost;
    UT_hash_handle hh;
} PathEntry;

typedef struct Reader {
    Paint *p; /* NULL: the units have their colours and are compared */
    Mix *m;
    PathEntry *paths;
    json_t *root;
    bool *seen; /* by number of the unit */
    int next;   /* node of the model that is expected */
    bool kept;  /* compared: float32 is fine for each */
    bool loose; /* what cannot be low is float32 */
    Err *err;
} Reader;

static mpr_status fault(Reader *r, const MixUnit *u, const char *what, const char *more)
{
    mpri_err_set(r->err, MPR_E_USAGE, "decisions: '%s' (%s) %s%s",
                 mpri_err_name(mpri_decisions_unit(r->m->pool, u)), mpri_err_name(u->node->op), what, more);
    return mpri_err_advice(r->err, advice);
}

/* Nodes stand in the order of the file; one of two with the same path is the next one. */
static MixNode *find_node(Reader *r, const char *path, const char *op)
{
    int n = r->m->n_nodes;
    for (int k = 0; k < n; k++) {
        int i = r->next + k < n ? r->next + k : r->next + k - n;
        MixNode *node = r->m->nodes[i];
        if (strcmp(node->path, path) || strcmp(node->op, op)) continue;
        r->next = i + 1;
        return node;
    }
    return NULL;
}

static MixUnit *find_unit(const MixNode *n, const char *var)
{
    for (int i = 0; i < n->n_units; i++)
        if (!strcmp(n->units[i]->name, var)) return n->units[i];
    return NULL;
}

/* "path:var" */
static MixUnit *parent(const Reader *r, const char *name)
{
    const char *colon = strrchr(name, ':');
    PathEntry *e = NULL;
    if (colon) HASH_FIND(hh, r->paths, name, (size_t)(colon - name), e);
    return e ? find_unit(e->node, colon + 1) : NULL;
}

static void list_paths(Reader *r)
{
    Arena *hash_arena = r->m->pool->arena;
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        PathEntry *e;
        HASH_FIND(hh, r->paths, n->path, strlen(n->path), e);
        if (e) continue;
        e = mpri_pool_take(r->m->pool, sizeof *e);
        *e = (PathEntry){.node = n, .path = n->path};
        HASH_ADD_KEYPTR(hh, r->paths, e->path, strlen(e->path), e);
        if (e->lost) longjmp(r->m->pool->full, 1);
    }
}

static mpr_status reason_of(Reader *r, const MixUnit *u, const json_t *o, MixReason *why)
{
    const char *reason = word(o, "reason");
    *why = *reason ? WHY_NONE : WHY_NAME;
    for (int i = 1; i < N_REASONS && *why == WHY_NONE; i++)
        if (!strcmp(mpri_reason_text((MixReason)i), reason)) *why = (MixReason)i;
    if (*why == WHY_NONE) return fault(r, u, "has an unknown reason: ", mpri_err_name(reason));
    return MPR_OK;
}

static void read_reason(Reader *r, MixUnit *u, const json_t *o, MixReason why)
{
    const json_t *chain = json_object_get(o, "chain");
    const char *from = word(o, "from"), *detail = word(o, "detail");
    if (!*detail) detail = word(json_array_get(chain, 0), "detail");
    if (!*from) from = word(json_array_get(chain, 1), "unit");
    u->why = why;
    u->from = *from ? parent(r, from) : NULL;
    u->detail = *detail ? mpri_pool_text(r->m->pool, detail, strlen(detail)) : NULL;
}

static mpr_status other_type(Reader *r, const MixUnit *u, const char *is)
{
    mpri_err_set(r->err, MPR_E_USAGE, "decisions: '%s' is %s there, asked for is %s",
                 mpri_err_name(mpri_decisions_unit(r->m->pool, u)), is, mpri_dtype_long(r->m->to));
    return mpri_err_advice(r->err, "convert to the type that the decisions are for");
}

static mpr_status compare_unit(Reader *r, const MixUnit *u, DType t)
{
    if (mpri_dtype_is_low(t) && t != r->m->to && t != u->was.elem)
        return other_type(r, u, mpri_decisions_word(t));
    if (t == u->is || (r->kept && u->is == MPR_FLOAT32)) return MPR_OK;
    mpri_err_set(r->err, MPR_E_USAGE, "decisions: '%s' (%s) is %s there, their profile decides %s",
                 mpri_err_name(mpri_decisions_unit(r->m->pool, u)), mpri_err_name(u->node->op), mpri_decisions_word(t),
                 mpri_decisions_word(u->is));
    return mpri_err_advice(r->err, "change rules of the profile, then %s", advice);
}

static mpr_status read_unit(Reader *r, MixUnit *u, const json_t *o)
{
    const char *is = word(o, "is");
    DType t = type_of(is);
    if (t == MPR_DTYPE_NONE)
        return fault(r, u, "has an unknown type: ", *is ? mpri_err_name(is) : "none");
    MixReason why;
    TRY(reason_of(r, u, o, &why));
    r->seen[u->number] = true;
    if (!r->p) return compare_unit(r, u, t);
    read_reason(r, u, o, why);
    if (t == u->was.elem) return MPR_OK;
    if (t != r->m->to) return other_type(r, u, is);
    const MixUnit *root = mpri_unit_root(u);
    if (r->loose) {
        u->is = u->legal && !(u->pinned && !u->follows) ? t : u->is;
        return MPR_OK;
    }
    if (!u->legal) return fault(r, u, "cannot be ", is);
    for (const MixUnit *k = root; k; k = k->same)
        if (k->pinned && !k->follows) return fault(r, k, "has to stay what it is: ", mpri_reason_text(k->pin));
    u->is = t;
    return MPR_OK;
}

static mpr_status read_node(Reader *r, const json_t *o, size_t index)
{
    const char *path = word(o, "path"), *op = word(o, "op"), *var;
    MixNode *n = find_node(r, path, op);
    json_t *unit, *units = json_object_get(o, "units");
    if (!n) {
        mpri_err_set(r->err, MPR_E_USAGE, "decisions: the model has no node '%s' (%s), which is "
                     "number %zu there", mpri_err_name(path), mpri_err_name(op), index);
        return mpri_err_advice(r->err, advice);
    }
    json_object_foreach(units, var, unit) {
        MixUnit *u = find_unit(n, var);
        if (u) {
            TRY(read_unit(r, u, unit));
            continue;
        }
        mpri_err_set(r->err, MPR_E_USAGE, "decisions: node '%s' (%s) has no unit '%s'",
                     mpri_err_name(path), mpri_err_name(op), mpri_err_name(var));
        return mpri_err_advice(r->err, advice);
    }
    return MPR_OK;
}

/* A Cast in 16 bits whose neighbours are not. */
static bool lonely_cast(const Mix *m, const MixUnit *u)
{
    return u->follows && u->is == m->to && !mpri_cast_may_be_low(m, u);
}

static mpr_status check_all(Reader *r)
{
    for (int i = 0; i < r->m->n_units; i++) {
        const MixUnit *u = r->m->units[i], *root = mpri_unit_root(r->m->units[i]);
        if (!r->seen[i]) return fault(r, u, "is missing", "");
        if (!r->p || r->loose) continue;
        if (u->is != root->is)
            return fault(r, u, "must have the type of ",
                         mpri_err_name(mpri_decisions_unit(r->m->pool, root)));
        if (lonely_cast(r->m, u))
            return fault(r, u, "has to stay what it is: ", mpri_reason_text(u->pin));
    }
    return MPR_OK;
}

/* What --keep-fp32 names stays in float32, and what must have one type with it. */
static void keep(Reader *r)
{
    for (int i = 0; i < r->m->n_units; i++) {
        MixUnit *u = r->m->units[i];
        if (!u->excluded) continue;
        for (MixUnit *k = mpri_unit_root(u); k; k = k->same) {
            k->is = k->was.elem;
            k->why = u->pin;
            k->from = k == u ? NULL : u;
        }
    }
    for (int i = 0; i < r->m->n_units; i++) {
        MixUnit *u = r->m->units[i];
        if (!lonely_cast(r->m, u)) continue;
        u->is = u->was.elem;
        u->why = u->pin;
        u->from = NULL;
    }
}

/* Joined units are float32 when one of them is. */
static void settle(Reader *r)
{
    for (int i = 0; i < r->m->n_units; i++) {
        MixUnit *u = r->m->units[i];
        if (u->is == r->m->to && !lonely_cast(r->m, u)) continue;
        if (u->is == r->m->to || (u->pinned && !u->follows)) u->why = u->pin;
        for (MixUnit *k = mpri_unit_root(u); k; k = k->same) {
            if (k->is != k->was.elem && k != u) {
                k->why = u->why;
                k->from = u;
            }
            k->is = k->was.elem;
        }
    }
}

static mpr_status read_all(Reader *r)
{
    json_t *node;
    size_t i;
    list_paths(r);
    json_array_foreach(json_object_get(r->root, "nodes"), i, node)
        TRY(read_node(r, node, i));
    TRY(check_all(r));
    if (r->loose) settle(r);
    else if (r->p && r->p->o->policy && r->p->o->policy->n) {
        mpri_paint_policy(r->p);
        keep(r);
    }
    return MPR_OK;
}

static mpr_status read_text(Reader *r, const char *text)
{
    Pool *pool = r->m->pool;
    r->seen = mpri_pool_take(pool, (size_t)r->m->n_units + 1);
    TRY(load(text, &r->root, r->err));
    /* running out of memory leaves through a jump: the tree must not be lost then */
    jmp_buf outer;
    memcpy(outer, pool->full, sizeof outer);
    mpr_status st = setjmp(pool->full) ? mpri_err_nomem(r->err, 0) : read_all(r);
    memcpy(pool->full, outer, sizeof outer);
    json_decref(r->root);
    return st;
}

mpr_status mpri_decisions_read(Paint *p, const char *text, Err *err)
{
    Reader r = {.p = p, .m = p->m, .err = err};
    p->m->master = p->o->master;
    mpri_mix_units(p->m);
    return read_text(&r, text);
}

mpr_status mpri_decisions_follow(Paint *p, const char *text, Err *err)
{
    Reader r = {.p = p, .m = p->m, .loose = true, .err = err};
    mpri_mix_units(p->m);
    mpri_mix_ranges(p->m);
    mpri_paint_weights(p);
    TRY(read_text(&r, text));
    return mpri_paint_changes(p);
}

mpr_status mpri_decisions_hold(Mix *m, const char *text, bool kept, Err *err)
{
    Reader r = {.m = m, .kept = kept, .err = err};
    return read_text(&r, text);
}
#endif
