/* Shared or merged? Exporters write one initializer for a shared parameter, and also for several
 * parameters that happened to hold equal values when the model was exported; others split a shared
 * matrix into copies. The structure is the same, so the contents decide: equal matrices with varied
 * contents were one parameter; a tensor of ones or zeros that fills several parameter slots was
 * many. Every decision is logged and can be overruled with --tie and --untie. */
#include "importer/ties.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "importer/roles.h"

enum { DISTINCT_NEEDED = 16, SAMPLES = 8, LEADERS = 4 };

typedef struct Read { /* one place where an initializer is read */
    int node, input;
    int cast; /* node: the Cast it is read through, -1 none */
    int next; /* index of the next read of the same initializer, -1 none */
} Read;

typedef struct Finder {
    Import *im;
    const Scope *scope;
    Ties *t;
    Read *reads;
    int n_reads;
    int *first, *last; /* by initializer */
    int cap_copies;
    Err *err;
} Finder;

/* ---- roles */

static const char *role_of(const Finder *f, const Read *r)
{
    const FileNode *n = &f->im->nodes[r->node];
    return n->domain[0] ? NULL : mpri_param_role(n->p->op_type, r->input);
}

/* ---- contents */

static size_t element_size(const SourceTensor *t)
{
    return mpri_dtype_size((DType)t->data_type);
}

static int64_t elements(const SourceTensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

static uint64_t bits_at(const SourceTensor *t, int64_t i)
{
    uint64_t v = 0;
    size_t size = element_size(t);
    memcpy(&v, (const char *)t->data + (size_t)i * size, size);
    return v;
}

static bool all_equal(const Source *from, const SourceTensor *t)
{
    int64_t n = elements(t);
    size_t size = element_size(t);
    const uint8_t *x = t->data;
    return n > 0 && mpri_source_same(from, x, from, x + size, (size_t)(n - 1) * size);
}

static bool varied(const Source *from, const SourceTensor *t)
{
    uint64_t seen[DISTINCT_NEEDED];
    int distinct = 0;
    int64_t n = elements(t);
    for (int64_t i = 0; i < n; i++) {
        uint64_t v = bits_at(t, i);
        int k = 0;
        while (k < distinct && seen[k] != v) k++;
        if (k < distinct) continue;
        if (distinct == DISTINCT_NEEDED) return true;
        seen[distinct++] = v;
    }
    mpri_source_release(from, t->data, (size_t)n * element_size(t));
    return false;
}

static bool same_bytes(const Source *from, const SourceTensor *a, const SourceTensor *b)
{
    if (a->rank != b->rank || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims) != 0)
        return false;
    return mpri_source_same(from, a->data, from, b->data, (size_t)elements(a) * element_size(a));
}

static bool same_transposed(const SourceTensor *a, const SourceTensor *b)
{
    if (a->rank != 2 || b->rank != 2 || a->dims[0] != b->dims[1] || a->dims[1] != b->dims[0])
        return false;
    int64_t rows = a->dims[0], cols = a->dims[1];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            if (bits_at(a, r * cols + c) != bits_at(b, c * rows + r)) return false;
    return true;
}

/* ---- who reads what */

/* The node is a Cast of a float initializer to another float type, as mixed-precision files have
 * them: the initializer's definition, else NULL. */
static const NameDef *cast_source(const Finder *f, int node)
{
    const FileNode *n = &f->im->nodes[node];
    if (n->domain[0] || n->path[0] || strcmp(n->p->op_type, "Cast") != 0 || n->p->n_input != 1)
        return NULL;
    const NameDef *d = mpri_scope_find(f->scope, n->p->input[0]);
    const AttributeProto *to = mpri_import_attr(n->p, "to");
    if (!d || d->kind != DEF_INITIALIZER || !to || !mpri_dtype_is_float((DType)to->i)) return NULL;
    return mpri_dtype_is_float((DType)f->im->src->tensors[d->index].data_type) ? d : NULL;
}

static mpr_status collect_reads(Finder *f)
{
    Import *im = f->im;
    size_t total = 0;
    for (int i = 0; i < im->n_nodes; i++) total += im->nodes[i].p->n_input;
    int n = im->src->n_tensors;
    f->reads = ARENA_ARRAY(&im->scratch, Read, total);
    f->first = ARENA_ARRAY(&im->scratch, int, n);
    f->last = ARENA_ARRAY(&im->scratch, int, n);
    if (!f->reads || !f->first || !f->last) return mpri_err_nomem(f->err, total * sizeof(Read));
    for (int i = 0; i < n; i++) f->first[i] = f->last[i] = -1;
    for (int i = 0; i < im->n_nodes; i++) {
        const NodeProto *p = im->nodes[i].p;
        for (size_t k = 0; k < p->n_input; k++) {
            const NameDef *d = p->input[k][0] ? mpri_scope_find(f->scope, p->input[k]) : NULL;
            int cast = d && d->kind == DEF_NODE ? d->index : -1;
            if (cast >= 0) d = cast_source(f, cast);
            if (!d || d->kind != DEF_INITIALIZER) continue;
            int r = f->n_reads++;
            f->reads[r] = (Read){i, (int)k, cast, -1};
            if (f->last[d->index] < 0) f->first[d->index] = r;
            else f->reads[f->last[d->index]].next = r;
            f->last[d->index] = r;
        }
    }
    return MPR_OK;
}

/* ---- merged by value */

static bool is_identity(const FileNode *n)
{
    return !n->domain[0] && !strcmp(n->p->op_type, "Identity") && n->p->n_input == 1 &&
           n->p->n_output == 1 && !n->path[0];
}

static bool is_output(const Finder *f, const char *name)
{
    for (int i = 0; i < f->im->n_outputs; i++)
        if (f->im->outputs[i]->name == name) return true;
    return false;
}

static bool taken(const Finder *f, const char *name)
{
    /* every name of the file and of earlier copies is interned */
    return mpri_intern_find(f->im->names, name) != NULL;
}

/* Which of the nodes of its operator: Casts that a converted file has more count for nothing. */
static int ordinal(const Finder *f, int node)
{
    int n = 0;
    for (int i = 0; i < node; i++)
        n += f->im->nodes[i].p->op_type == f->im->nodes[node].p->op_type;
    return n;
}

static const char *copy_name(const Finder *f, const Read *r)
{
    const FileNode *n = &f->im->nodes[r->node];
    int at = ordinal(f, r->node);
    const char *role = role_of(f, r);
    char text[512];
    for (int k = 0;; k++) {
        int len = n->p->name[0]
                      ? snprintf(text, sizeof text, "%s.%s", n->p->name, role)
                      : snprintf(text, sizeof text, "%s_%d.%s", n->p->op_type, at, role);
        if (k > 0 && len > 0 && (size_t)len < sizeof text)
            snprintf(text + len, sizeof text - (size_t)len, "_%d_%d", at, k);
        if (!taken(f, text)) return mpri_intern(f->im->names, text);
    }
}

static mpr_status add_copy(Finder *f, MergedCopy copy)
{
    if (!copy.name) return mpri_err_nomem(f->err, sizeof copy);
    if (f->t->n_copies == f->cap_copies) {
        int want = f->cap_copies ? 2 * f->cap_copies : 16;
        MergedCopy *more = ARENA_ARRAY(&f->im->m->arena, MergedCopy, want);
        if (!more) return mpri_err_nomem(f->err, (size_t)want * sizeof *more);
        if (f->t->n_copies) memcpy(more, f->t->copies, (size_t)f->t->n_copies * sizeof *more);
        f->t->copies = more;
        f->cap_copies = want;
    }
    f->t->copies[f->t->n_copies++] = copy;
    return MPR_OK;
}

static bool splits(const Finder *f, const Read *r)
{
    const FileNode *n = &f->im->nodes[r->node];
    if (n->path[0]) return false; /* inlined: the file has no place for a tensor of its own */
    if (is_identity(n)) return r->cast < 0 && !is_output(f, n->p->output[0]);
    return role_of(f, r) != NULL;
}

/* Every slot but the first gets a tensor of its own. */
static mpr_status split(Finder *f, int tensor, const char *why)
{
    const SourceTensor *t = &f->im->src->tensors[tensor];
    int slots = 0, made = 0;
    bool kept = false; /* a direct reader keeps the initializer itself */
    for (int r = f->first[tensor]; r >= 0; r = f->reads[r].next) slots += splits(f, &f->reads[r]);
    if (slots < 2) return MPR_OK;
    for (int r = f->first[tensor]; r >= 0; r = f->reads[r].next) {
        const Read *read = &f->reads[r];
        const FileNode *n = &f->im->nodes[read->node];
        if (!splits(f, read)) continue;
        bool identity = is_identity(n);
        if (!identity && !kept) {
            kept = true;
            continue;
        }
        TRY(add_copy(f, (MergedCopy){.name = identity ? n->p->output[0] : copy_name(f, read),
                                     .source = t->name,
                                     .identity = identity ? read->node : -1,
                                     .reader = read->node,
                                     .input = identity ? -1 : read->input,
                                     .cast = read->cast}));
        made++;
    }
    if (made)
        mpri_log(f->im->log, MPR_LOG_INFO,
                 "initializer '%s' %s and fills %d parameter slots: each slot is trained by itself "
                 "(--tie A=B joins two)",
                 mpri_err_name(t->name), why, slots);
    return MPR_OK;
}

static bool listed(const char *const *names, const char *name)
{
    for (; names && *names; names++)
        if (!strcmp(*names, name)) return true;
    return false;
}

/* --untie names the output of an Identity: that alias gets a tensor of its own. */
static mpr_status untie_aliases(Finder *f, int tensor)
{
    for (int r = f->im->o->untie ? f->first[tensor] : -1; r >= 0; r = f->reads[r].next) {
        const FileNode *n = &f->im->nodes[f->reads[r].node];
        if (is_identity(n) && splits(f, &f->reads[r]) && listed(f->im->o->untie, n->p->output[0]))
            TRY(add_copy(f, (MergedCopy){.name = n->p->output[0],
                                         .source = f->im->src->tensors[tensor].name,
                                         .identity = f->reads[r].node,
                                         .input = -1,
                                         .cast = -1}));
    }
    return MPR_OK;
}

static mpr_status find_merged(Finder *f)
{
    const Source *s = f->im->src;
    for (int i = 0; i < s->n_tensors; i++) {
        const SourceTensor *t = &s->tensors[i];
        if (!mpri_dtype_is_float((DType)t->data_type) || t->rank == 0 || elements(t) == 0 ||
            f->first[i] < 0)
            continue;
        if (listed(f->im->o->untie, t->name)) TRY(split(f, i, "is untied"));
        else if (all_equal(s, t)) TRY(split(f, i, "holds one value only"));
        else TRY(untie_aliases(f, i));
    }
    return MPR_OK;
}

/* ---- split matrices */

typedef struct Key { /* equal for a matrix and its transpose */
    int64_t type, low, high, rank;
    uint64_t sample[SAMPLES];
    int tensor; /* from here on no part of the comparison */
    int leader; /* the first tensor of the same contents, -1 none */
    bool transposed;
} Key;

static Key key_of(const SourceTensor *t, int tensor)
{
    Key k;
    memset(&k, 0, sizeof k);
    int64_t a = t->dims[t->rank - 2], b = t->dims[t->rank - 1], n = elements(t);
    k.type = t->data_type;
    k.low = a < b ? a : b;
    k.high = a < b ? b : a;
    k.rank = t->rank;
    k.tensor = tensor;
    k.sample[0] = bits_at(t, 0);
    k.sample[1] = bits_at(t, n - 1);
    for (int64_t i = 1; i < SAMPLES - 1 && i < k.low && t->rank == 2; i++)
        k.sample[i + 1] = bits_at(t, i * b + i);
    return k;
}

static int compare_keys(const void *x, const void *y)
{
    const Key *a = x, *b = y;
    int c = memcmp(a, b, offsetof(Key, tensor));
    return c ? c : a->tensor - b->tensor;
}

static void tie_pair(Finder *f, int with, int tensor, bool transposed, bool by_user)
{
    const SourceTensor *s = f->im->src->tensors;
    f->t->tie[tensor] = (Tie){with, transposed, by_user};
    mpri_log(f->im->log, MPR_LOG_INFO,
             "initializers '%s' and '%s' %s%s: trained as one tensor (--untie '%s' parts them)",
             mpri_err_name(s[with].name), mpri_err_name(s[tensor].name),
             by_user ? "are tied by --tie" : "hold the same matrix",
             transposed ? ", one transposed" : "", mpri_err_name(s[tensor].name));
}

static bool any_glob(const char *const *globs, const char *name)
{
    while (globs && *globs && !mpri_glob(*globs, name)) globs++;
    return globs && *globs;
}

/* Asked for, by the patterns of --train-only and --freeze. */
static bool asked_for(const Finder *f, const char *name)
{
    const ImportOptions *o = f->im->o;
    return (!o->train_only || any_glob(o->train_only, name)) && !any_glob(o->freeze, name);
}

/* The members of one leader are one parameter unless the user wants some of them and not others.
 * Names that an exporter made up follow the tensor that people know. */
static void tie_members(Finder *f, const Key *keys, int n, int leader)
{
    const SourceTensor *s = f->im->src->tensors;
    int asked = 0, left_out = 0;
    for (int i = 0; i < n; i++) {
        const char *name = s[keys[i].tensor].name;
        if (keys[i].leader != leader || mpri_name_made_up(name)) continue;
        if (asked_for(f, name)) asked++;
        else left_out++;
    }
    for (int i = 0; i < n; i++) {
        if (keys[i].leader != leader || keys[i].tensor == leader) continue;
        if (!asked || !left_out) tie_pair(f, leader, keys[i].tensor, keys[i].transposed, false);
        else
            mpri_log(f->im->log, MPR_LOG_INFO,
                     "initializers '%s' and '%s' hold the same matrix, but --train-only or "
                     "--freeze parts such tensors: separate",
                     mpri_err_name(s[leader].name), mpri_err_name(s[keys[i].tensor].name));
    }
}

static void tie_group(Finder *f, Key *keys, int n)
{
    const SourceTensor *s = f->im->src->tensors;
    int leaders[LEADERS], n_leaders = 0;
    for (int i = 0; i < n; i++) {
        int tensor = keys[i].tensor, k = 0;
        bool transposed = false;
        for (; k < n_leaders; k++) {
            if (same_bytes(f->im->src, &s[leaders[k]], &s[tensor])) break;
            transposed = same_transposed(&s[leaders[k]], &s[tensor]);
            if (transposed) break;
        }
        if (k == n_leaders && n_leaders < LEADERS && varied(f->im->src, &s[tensor]))
            leaders[n_leaders++] = tensor;
        keys[i].leader = k < n_leaders ? leaders[k] : -1;
        keys[i].transposed = transposed;
    }
    for (int k = 0; k < n_leaders; k++) tie_members(f, keys, n, leaders[k]);
}

static mpr_status find_equal(Finder *f)
{
    const Source *s = f->im->src;
    Key *keys = ARENA_ARRAY(&f->im->scratch, Key, s->n_tensors);
    int n = 0;
    if (!keys) return mpri_err_nomem(f->err, (size_t)s->n_tensors * sizeof *keys);
    for (int i = 0; i < s->n_tensors; i++) {
        const SourceTensor *t = &s->tensors[i];
        if (!mpri_dtype_is_float((DType)t->data_type) || t->rank < 2 ||
            elements(t) <= DISTINCT_NEEDED || !t->name[0])
            continue;
        if (f->first[i] < 0 || listed(f->im->o->untie, t->name)) continue;
        keys[n++] = key_of(t, i);
    }
    qsort(keys, (size_t)n, sizeof *keys, compare_keys);
    for (int i = 0, k; i < n; i = k) {
        for (k = i + 1; k < n && memcmp(&keys[i], &keys[k], offsetof(Key, tensor)) == 0;) k++;
        if (k - i > 1) tie_group(f, keys + i, k - i);
    }
    return MPR_OK;
}

/* ---- --tie A=B */

static mpr_status unknown_name(Finder *f, const char *option, const char *name)
{
    const Source *s = f->im->src;
    const char **names = ARENA_ARRAY(&f->im->scratch, const char *, s->n_tensors);
    const char *near = NULL;
    for (int i = 0; names && i < s->n_tensors; i++) names[i] = s->tensors[i].name;
    if (names) near = mpri_nearest(name, names, (size_t)s->n_tensors);
    mpri_err_set(f->err, MPR_E_USAGE, "%s: the model has no tensor '%s'", option,
                 mpri_err_name(name));
    return near ? mpri_err_advice(f->err, "did you mean '%s'?", mpri_err_name(near))
                : mpri_err_advice(f->err, "mpr-inspect --params lists the names");
}

static int copy_index(const Ties *t, const char *name)
{
    for (int i = 0; i < t->n_copies; i++)
        if (!strcmp(t->copies[i].name, name)) return i;
    return -1;
}

static void drop_copy(Ties *t, int i)
{
    memmove(&t->copies[i], &t->copies[i + 1], (size_t)(t->n_copies - i - 1) * sizeof *t->copies);
    t->n_copies--;
}

static int tensor_index(const Finder *f, const char *name)
{
    const char *interned = mpri_intern_find(f->im->names, name);
    const NameDef *d = interned ? mpri_scope_find(f->scope, interned) : NULL;
    return d && d->kind == DEF_INITIALIZER ? d->index : -1;
}

static mpr_status tie_by_user(Finder *f, const char *a, const char *b)
{
    const char *names[2] = {a, b};
    const SourceTensor *s = f->im->src->tensors;
    int index[2];
    for (int i = 0; i < 2; i++) {
        int copy = copy_index(f->t, names[i]);
        index[i] =
            copy >= 0 ? tensor_index(f, f->t->copies[copy].source) : tensor_index(f, names[i]);
        if (index[i] < 0) return unknown_name(f, "--tie", names[i]);
        if (copy >= 0) drop_copy(f->t, copy); /* what is not split stays with its source */
    }
    if (index[0] == index[1]) return MPR_OK;
    int with = index[0] < index[1] ? index[0] : index[1], other = index[0] + index[1] - with;
    const SourceTensor *x = &s[with], *y = &s[other];
    bool same =
        x->rank == y->rank && memcmp(x->dims, y->dims, (size_t)x->rank * sizeof *x->dims) == 0;
    bool turned =
        x->rank == 2 && y->rank == 2 && x->dims[0] == y->dims[1] && x->dims[1] == y->dims[0];
    if (x->data_type != y->data_type || !(same || turned)) {
        mpri_err_set(f->err, MPR_E_USAGE, "--tie: '%s' and '%s' differ in type or shape",
                     mpri_err_name(a), mpri_err_name(b));
        return mpri_err_advice(f->err,
                               "tie tensors of one type whose shapes are equal or transposed");
    }
    while (f->t->tie[with].with >= 0) with = f->t->tie[with].with;
    if (with != other && f->t->tie[other].with < 0)
        tie_pair(f, with, other, !same || (turned && !same_bytes(f->im->src, x, y) && same_transposed(x, y)),
                 true);
    return MPR_OK;
}

static mpr_status apply_options(Finder *f)
{
    const char *const *tie = f->im->o->tie;
    for (; tie && tie[0] && tie[1]; tie += 2) TRY(tie_by_user(f, tie[0], tie[1]));
    for (const char *const *name = f->im->o->untie; name && *name; name++)
        if (tensor_index(f, *name) < 0 && copy_index(f->t, *name) < 0)
            TRY(unknown_name(f, "--untie", *name));
    return MPR_OK;
}

/* ---- result */

static int copy_node(const MergedCopy *c)
{
    return c->identity >= 0 ? c->identity : c->reader;
}

static int compare_copies(const void *x, const void *y)
{
    const MergedCopy *a = x, *b = y;
    return copy_node(a) != copy_node(b) ? copy_node(a) - copy_node(b) : a->input - b->input;
}

const MergedCopy *mpri_ties_copy(const Ties *t, int node, int input)
{
    for (int i = t->first_copy[node]; i >= 0 && i < t->n_copies && copy_node(&t->copies[i]) == node;
         i++)
        if (t->copies[i].input == input) return &t->copies[i];
    return NULL;
}

/* The export knows nodes by their place in the file. */
static mpr_status save_for_export(Import *im, const Ties *t, Err *err)
{
    MergedCopy *copies =
        mpri_arena_dup(&im->m->arena, t->copies, (size_t)t->n_copies * sizeof *copies);
    if (!copies) return mpri_err_nomem(err, (size_t)t->n_copies * sizeof *copies);
    for (int i = 0; i < t->n_copies; i++) {
        if (copies[i].identity >= 0) copies[i].identity = im->nodes[copies[i].identity].origin;
        copies[i].reader = im->nodes[copies[i].reader].origin;
        if (copies[i].cast >= 0) copies[i].cast = im->nodes[copies[i].cast].origin;
    }
    im->d->merged = copies;
    im->d->n_merged = t->n_copies;
    return MPR_OK;
}

mpr_status mpri_ties_find(Import *im, const Scope *scope, Ties *out, Err *err)
{
    Finder f = {.im = im, .scope = scope, .t = out, .err = err};
    *out = (Ties){.tie = ARENA_ARRAY(&im->scratch, Tie, im->src->n_tensors),
                  .first_copy = ARENA_ARRAY(&im->scratch, int, im->n_nodes)};
    if (!out->tie || !out->first_copy)
        return mpri_err_nomem(err, (size_t)im->n_nodes * sizeof(int));
    for (int i = 0; i < im->src->n_tensors; i++) out->tie[i].with = -1;
    TRY(collect_reads(&f));
    TRY(find_merged(&f));
    TRY(find_equal(&f));
    TRY(apply_options(&f));
    if (out->n_copies)
        qsort(out->copies, (size_t)out->n_copies, sizeof *out->copies, compare_copies);
    for (int i = 0; i < im->n_nodes; i++) out->first_copy[i] = -1;
    for (int i = out->n_copies - 1; i >= 0; i--) out->first_copy[copy_node(&out->copies[i])] = i;
    return save_for_export(im, out, err);
}
