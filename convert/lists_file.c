/* The list file: YAML, of which JSON is a subset. */
#include "convert/lists.h"

#include <string.h>

static const ListEntry *entry_of(const ListFile *f, const char *op)
{
    const ListEntry *found = NULL;
    for (const ListEntry *e = f->first; e; e = e->next)
        if (!e->leaves && !strcmp(e->op, op)) found = e;
    return found;
}

static bool leaves(const ListFile *f, const char *op, int list)
{
    for (const ListEntry *e = f->first; e; e = e->next)
        if (e->leaves && (int)e->list == list && !strcmp(e->op, op)) return true;
    return false;
}

int mpri_lists_amend(const ListFile *f, const char *op, int list)
{
    const ListEntry *e = entry_of(f, op);
    if (e) return (int)e->list;
    return list >= 0 && (f->replaced[list] || leaves(f, op, list)) ? -1 : list;
}

#if MPR_MINIMAL
mpr_status mpri_lists_read(const char *path, const char *text, Pool *pool, ListFile *f, Err *err)
{
    (void)path;
    (void)text;
    (void)pool;
    *f = (ListFile){0};
    mpri_err_set(err, MPR_E_USAGE, "this build reads no list files");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}
#else
#include <yaml.h>

#include "runtime/base/text.h"

static const char *const list_names[4] = {
    [LIST_CLEAR] = "clear", [LIST_INFER] = "infer", [LIST_ALLOW] = "allow", [LIST_DENY] = "deny"};

typedef struct Reader {
    ListFile *f;
    Pool *pool;
    yaml_document_t doc;
    size_t seen[4]; /* line of each list, 0: none */
    Err *err;
} Reader;

static size_t line_of(const yaml_node_t *n)
{
    return n->start_mark.line + 1;
}

static const char *scalar(const yaml_node_t *n)
{
    return n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static mpr_status complain(const Reader *r, const yaml_node_t *n, const char *what,
                           const char *found)
{
    mpri_err_set(r->err, MPR_E_USAGE, "%s, line %zu: %s%s%s%s", mpri_err_name(r->f->path),
                 line_of(n), what, found ? " '" : "", found ? mpri_err_name(found) : "",
                 found ? "'" : "");
    return mpri_err_advice(r->err, "write lists such as allow: [+Softmax, -Gemm]");
}

/* Two entries that cannot both hold: of an operator on two lists, or that comes and goes. */
static mpr_status check_entry(const Reader *r, const ListEntry *e)
{
    for (const ListEntry *o = r->f->first; o; o = o->next) {
        bool two = !o->leaves && !e->leaves && o->list != e->list;
        bool both = o->leaves != e->leaves && o->list == e->list;
        if ((!two && !both) || strcmp(o->op, e->op)) continue;
        if (two)
            mpri_err_set(r->err, MPR_E_USAGE, "%s: %s stands on two lists, %s (line %zu) and %s "
                         "(line %zu)", mpri_err_name(r->f->path), mpri_err_name(e->op),
                         list_names[o->list], o->line, list_names[e->list], e->line);
        else
            mpri_err_set(r->err, MPR_E_USAGE, "%s: %s is added to the list %s and taken from it "
                         "(lines %zu and %zu)", mpri_err_name(r->f->path), mpri_err_name(e->op),
                         list_names[e->list], o->line, e->line);
        return mpri_err_advice(r->err, "keep one of the two lines");
    }
    return MPR_OK;
}

static mpr_status read_entry(Reader *r, const yaml_node_t *n, MixList list)
{
    const char *word = scalar(n);
    char sign = word ? word[0] : 0;
    bool amends = sign == '+' || sign == '-';
    if (!word)
        return complain(r, n, "the name of an operator is needed in the list", list_names[list]);
    if (!word[amends]) return complain(r, n, "no operator stands behind", word);
    ListEntry *e = mpri_pool_take(r->pool, sizeof *e);
    *e = (ListEntry){.list = list, .leaves = sign == '-', .line = line_of(n)};
    word += amends;
    if (!strncmp(word, "ai.onnx::", 9)) word += 9;
    e->op = mpri_pool_text(r->pool, word, strlen(word));
    TRY(check_entry(r, e));
    if (r->f->last) r->f->last->next = e;
    else r->f->first = e;
    r->f->last = e;
    r->f->replaced[list] = r->f->replaced[list] || !amends;
    return MPR_OK;
}

static mpr_status read_list(Reader *r, const yaml_node_t *k, const yaml_node_t *v)
{
    const char *name = scalar(k);
    int list = -1;
    for (int i = 0; i < 4 && name; i++)
        if (!strcmp(list_names[i], name)) list = i;
    if (list < 0)
        return complain(r, k, "allowed are the lists allow, infer, deny and clear, not",
                        name ? name : "(no word)");
    if (r->seen[list]) return complain(r, k, "this list stands twice:", name);
    r->seen[list] = line_of(k);
    bool empty = scalar(v) && !*scalar(v);
    if (v->type != YAML_SEQUENCE_NODE)
        return empty ? MPR_OK : complain(r, v, "a list of operators is needed for", name);
    for (yaml_node_item_t *i = v->data.sequence.items.start; i < v->data.sequence.items.top; i++)
        TRY(read_entry(r, yaml_document_get_node(&r->doc, *i), (MixList)list));
    return MPR_OK;
}

static mpr_status read_root(Reader *r)
{
    const yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    if (!root) return MPR_OK; /* an empty file changes nothing */
    if (root->type != YAML_MAPPING_NODE)
        return complain(r, root, "the file must be a mapping of lists", NULL);
    for (yaml_node_pair_t *i = root->data.mapping.pairs.start; i < root->data.mapping.pairs.top;
         i++)
        TRY(read_list(r, yaml_document_get_node(&r->doc, i->key),
                      yaml_document_get_node(&r->doc, i->value)));
    return MPR_OK;
}

/* Running out of memory leaves through a jump: the document must not be lost then. */
static mpr_status read_document(Reader *r)
{
    jmp_buf outer;
    memcpy(outer, r->pool->full, sizeof outer);
    mpr_status st = setjmp(r->pool->full) ? mpri_err_nomem(r->err, 0) : read_root(r);
    memcpy(r->pool->full, outer, sizeof outer);
    yaml_document_delete(&r->doc);
    return st;
}

mpr_status mpri_lists_read(const char *path, const char *text, Pool *pool, ListFile *f, Err *err)
{
    Reader r = {.f = f, .pool = pool, .err = err};
    yaml_parser_t parser;
    *f = (ListFile){.path = path};
    if (!yaml_parser_initialize(&parser)) return mpri_err_nomem(err, sizeof parser);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    mpr_status st = MPR_OK;
    if (yaml_parser_load(&parser, &r.doc)) st = read_document(&r);
    else if (parser.error == YAML_MEMORY_ERROR) st = mpri_err_nomem(err, 0);
    else
        st = mpri_err_set(err, MPR_E_USAGE, "%s, line %zu: %s", mpri_err_name(path),
                          parser.problem_mark.line + 1,
                          parser.problem ? parser.problem : "not a YAML file");
    yaml_parser_delete(&parser);
    return st;
}
#endif
