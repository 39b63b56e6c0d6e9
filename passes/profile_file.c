/* A profile as a YAML file (JSON is a subset):
 *
 *   base: torch-cuda
 *   rules:
 *     - {op: Softmax, class: keep}
 *     - {node: "/classifier*", class: fp32}
 *     - {subgraph: "/encoder/layer.11", class: fp32}
 *     - {tensor: "logits", class: low}
 *
 * or the decisions that mpr-convert has written as JSON (--annotations), which are recognised by
 * their members and kept as text. Every complaint carries file and line. Aliases are shared nodes
 * of the loaded document, never copies, so a small file cannot grow. */
#include "passes/profile.h"

#if !MPR_MINIMAL
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <yaml.h>

typedef struct Reader {
    Profile *p;
    const char *path;
    yaml_document_t doc;
    Err *err;
} Reader;

static size_t line_of(const yaml_node_t *n)
{
    return n->start_mark.line + 1;
}

static mpr_status complain(const Reader *r, const yaml_node_t *n, const char *what,
                           const char *found)
{
    return mpri_err_set(r->err, MPR_E_USAGE, "%s, line %zu: %s%s%s%s", mpri_err_name(r->path),
                        line_of(n), what, found ? " '" : "", found ? mpri_err_name(found) : "",
                        found ? "'" : "");
}

static const char *scalar(const yaml_node_t *n)
{
    return n && n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

/* Index of the word in the list, or -1 with an error that names the nearest one. */
static int key_index(const Reader *r, const yaml_node_t *n, const char *what,
                     const char *const *words, int count)
{
    const char *found = scalar(n);
    for (int i = 0; found && i < count; i++)
        if (!strcmp(found, words[i])) return i;
    (void)complain(r, n, what, found ? found : "(not a word)");
    const char *near = found ? mpri_nearest(found, words, (size_t)count) : NULL;
    (void)mpri_err_advice(r->err, near ? "did you mean '%s'?" : "such as '%s'",
                          near ? near : words[0]);
    return -1;
}

static mpr_status read_rule(Reader *r, yaml_node_t *n)
{
    static const char *const keys[] = {"op", "node", "subgraph", "tensor", "class"};
    static const char *const classes[] = {"low", "fp32", "widest", "keep"};
    if (n->type != YAML_MAPPING_NODE)
        return complain(r, n, "a rule must be a mapping such as {op: Softmax, class: fp32}", NULL);
    const char *pattern = NULL;
    int kind = -1, cls = -1;
    for (yaml_node_pair_t *i = n->data.mapping.pairs.start; i < n->data.mapping.pairs.top; i++) {
        yaml_node_t *k = yaml_document_get_node(&r->doc, i->key),
                    *v = yaml_document_get_node(&r->doc, i->value);
        int key = key_index(r, k, "unknown key of a rule", keys, 5);
        if (key < 0) return r->err->code;
        if (!scalar(v)) return complain(r, v, "a word is needed for", keys[key]);
        if (key == 4) {
            if (cls >= 0) return complain(r, k, "a rule has one class; this is the second", NULL);
            cls = key_index(r, v, "unknown class", classes, 4);
            if (cls < 0) return r->err->code;
        } else {
            if (pattern)
                return complain(
                    r, k, "a rule has one of op, node, subgraph, tensor; this is the second:",
                    keys[key]);
            kind = key;
            pattern = scalar(v);
        }
    }
    if (kind < 0 || cls < 0)
        return complain(r, n, "a rule needs a class and one of op, node, subgraph, tensor", NULL);
    const char *slash = strrchr(r->path, '/');
    const char *where = mpri_arena_printf(r->p->arena, "%s:%zu", slash ? slash + 1 : r->path,
                                          line_of(n));
    if (!where) return mpri_err_nomem(r->err, 64);
    return mpri_profile_add(r->p, (ProfileKind)kind, pattern,
                            mpri_profile_class_parse(classes[cls]), where, r->err);
}

static mpr_status read_rules(Reader *r, yaml_node_t *n)
{
    if (n->type != YAML_SEQUENCE_NODE) return complain(r, n, "rules must be a list", NULL);
    for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++)
        TRY(read_rule(r, yaml_document_get_node(&r->doc, *i)));
    return MPR_OK;
}

static mpr_status read_root(Reader *r)
{
    static const char *const keys[] = {"base", "rules"};
    static const char *const bases[] = {"torch-cuda", "torch-cpu", "paint"};
    yaml_node_t *root = yaml_document_get_root_node(&r->doc), *rules = NULL;
    bool seen[2] = {false, false};
    if (!root)
        return mpri_err_set(r->err, MPR_E_USAGE, "%s: the file is empty", mpri_err_name(r->path));
    if (root->type != YAML_MAPPING_NODE)
        return complain(r, root, "a profile must be a mapping with base and rules", NULL);
    for (yaml_node_pair_t *i = root->data.mapping.pairs.start; i < root->data.mapping.pairs.top;
         i++) {
        yaml_node_t *k = yaml_document_get_node(&r->doc, i->key),
                    *v = yaml_document_get_node(&r->doc, i->value);
        int key = key_index(r, k, "unknown key of a profile", keys, 2);
        if (key < 0) return r->err->code;
        if (seen[key]) return complain(r, k, "this key stands twice:", keys[key]);
        seen[key] = true;
        if (key == 1) {
            rules = v;
            continue;
        }
        int base = key_index(r, v, "unknown base profile", bases, 3);
        if (base < 0) return r->err->code;
        (void)mpri_profile_base(r->p, bases[base]);
    }
    return rules ? read_rules(r, rules) : MPR_OK; /* last: a rule's reason names the base */
}

/* The whole file, with a NUL behind it. */
static mpr_status read_text(Profile *p, const char *path, char **text, size_t *size, Err *err)
{
    struct stat st;
    FILE *f = fopen(path, "rbe");
    int cause = errno;
    if (f && fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) {
        fclose(f);
        f = NULL;
        cause = EISDIR;
    }
    if (!f) {
        mpri_err_set(err, MPR_E_IO, "cannot open autocast profile '%s': %s", mpri_err_name(path),
                     strerror(cause));
        return mpri_err_advice(err,
                               "profiles: torch-cuda, torch-cpu, paint, or the path of a file");
    }
    size_t cap = 0;
    *text = NULL;
    *size = 0;
    for (size_t got = 1; got;) {
        if (*size + 1 >= cap) {
            size_t more = cap ? 2 * cap : 1 << 14;
            char *grown = mpri_arena_alloc(p->arena, more);
            if (!grown) {
                fclose(f);
                return mpri_err_nomem(err, more);
            }
            if (*size) memcpy(grown, *text, *size);
            *text = grown;
            cap = more;
        }
        got = fread(*text + *size, 1, cap - 1 - *size, f);
        *size += got;
    }
    bool failed = ferror(f);
    fclose(f);
    (*text)[*size] = '\0';
    if (!failed) return MPR_OK;
    return mpri_err_set(err, MPR_E_IO, "%s: cannot be read", mpri_err_name(path));
}

static bool has_member(const char *text, const char *quoted)
{
    for (const char *p = strstr(text, quoted); p; p = strstr(p + 1, quoted)) {
        const char *after = p + strlen(quoted);
        if (after[strspn(after, " \t\r\n")] == ':') return true;
    }
    return false;
}

/* Decisions rather than rules. */
static bool holds_decisions(const char *text)
{
    return text[strspn(text, " \t\r\n")] == '{' &&
           (has_member(text, "\"nodes\"") || has_member(text, "\"sha256\""));
}

mpr_status mpri_profile_read(Profile *p, const char *path, Err *err)
{
    Reader r = {.p = p, .path = path, .err = err};
    yaml_parser_t parser;
    char *text;
    size_t size;
    TRY(read_text(p, path, &text, &size, err));
    if (holds_decisions(text)) return mpri_profile_decided(p, text, err);
    if (!yaml_parser_initialize(&parser)) return mpri_err_nomem(err, sizeof parser);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    mpr_status status = MPR_OK;
    if (yaml_parser_load(&parser, &r.doc)) {
        status = read_root(&r);
        yaml_document_delete(&r.doc);
    } else if (parser.error == YAML_MEMORY_ERROR) {
        status = mpri_err_nomem(err, 0);
    } else {
        status = mpri_err_set(err, MPR_E_USAGE, "%s, line %zu: %s", mpri_err_name(path),
                              parser.problem_mark.line + 1,
                              parser.problem ? parser.problem : "not a YAML file");
    }
    yaml_parser_delete(&parser);
    return status;
}
#endif
