/* Taking out what an earlier run has added: its nodes go, names lead back to where they came from.
 * A Cast that only looks like one of ours has no mark and stays.
 *
 * An added node is called by the new name it brought: `to` when readers were given the new name
 * (they get `from` back), `from` when a producer was (it writes `to` again). */
#include "convert/marks.h"

#include <string.h>

#include "convert/file.h"
#include "convert/wire_graph.h"
#include "runtime/base/hash.h"

typedef struct Listed { /* a line of the model's list */
    const char *name;   /* key */
    bool lost;
    UT_hash_handle hh;
} Listed;

typedef struct Way { /* from a name that goes to one that stays */
    const char *from, *to;
    bool lost;
    UT_hash_handle hh;
} Way;

typedef struct Strip {
    const Source *s;
    Arena *arena;
    Listed *listed;
    Way *ways;
    SourceField entry; /* the model's list; len 0: none */
    bool *ours;        /* by node */
    int n_ours;
    SourceEdit *edits;
    int n_edits;
    bool changed, failed;
    Err *err;
} Strip;

/* ---- writing the list ---- */

void mpri_marks_list(Text *list, const char *name)
{
    for (; *name; name++) {
        if (*name == '\n') mpri_text_put(list, "\\n");
        else if (*name == '\\') mpri_text_put(list, "\\\\");
        else mpri_text_bytes(list, name, 1);
    }
    mpri_text_put(list, "\n");
}

/* ---- reading it ---- */

static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (*s == '\\' && s[1]) *to++ = *++s == 'n' ? '\n' : *s;
        else *to++ = *s;
    }
    *to = '\0';
}

static mpr_status read_line(Strip *x, char *line)
{
    Arena *hash_arena = x->arena;
    Listed *old, *e = ARENA_NEW(hash_arena, Listed);
    if (!e) return mpri_err_nomem(x->err, sizeof *e);
    unescape(line);
    e->name = line;
    HASH_FIND(hh, x->listed, line, strlen(line), old);
    if (!old) HASH_ADD_KEYPTR(hh, x->listed, e->name, strlen(e->name), e);
    return e->lost ? mpri_err_nomem(x->err, sizeof *e) : MPR_OK;
}

static mpr_status read_list(Strip *x)
{
    Span whole = {0, x->s->size};
    const char *list = mpri_wire_entry(x->s->bytes, whole, MODEL_METADATA, MPRI_MARK_MODEL,
                                       x->arena, &x->entry);
    if (!list) return x->entry.tagged.len ? mpri_err_nomem(x->err, x->entry.body.len) : MPR_OK;
    char *copy = mpri_arena_strdup(x->arena, list);
    if (!copy) return mpri_err_nomem(x->err, strlen(list));
    for (char *line = copy, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) *end++ = '\0';
        TRY(read_line(x, line));
    }
    return MPR_OK;
}

/* The exporter copies a listed Cast when readers of a tensor part, and cannot list the copy. */
static bool is_copy(const char *name)
{
    static const char ending[] = "__mpr_cast";
    size_t n = strlen(name), k = sizeof ending - 1;
    return n > k && !strcmp(name + n - k, ending);
}

static bool is_marked(const Strip *x, Span node, const char *name)
{
    Listed *e;
    HASH_FIND(hh, x->listed, name, strlen(name), e);
    return e || (x->listed && is_copy(name)) || mpri_wire_entry(x->s->bytes, node, NODE_METADATA, MPRI_MARK_NODE, x->arena, NULL);
}

/* ---- ways back ---- */

static const char *way_back(const Strip *x, const char *name, size_t len)
{
    const char *to = NULL;
    Way *w;
    HASH_FIND(hh, x->ways, name, len, w);
    while (w) {
        to = w->to;
        HASH_FIND(hh, x->ways, to, strlen(to), w);
    }
    return to;
}

static mpr_status add_way(Strip *x, const char *from, const char *to)
{
    Arena *hash_arena = x->arena;
    Way *old, *w = ARENA_NEW(hash_arena, Way);
    if (!w) return mpri_err_nomem(x->err, sizeof *w);
    HASH_FIND(hh, x->ways, from, strlen(from), old);
    const char *end = way_back(x, to, strlen(to));
    if (old || !strcmp(from, end ? end : to)) return MPR_OK; /* not written by us */
    *w = (Way){.from = from, .to = to};
    HASH_ADD_KEYPTR(hh, x->ways, w->from, strlen(w->from), w);
    return w->lost ? mpri_err_nomem(x->err, sizeof *w) : MPR_OK;
}

/* Value of a Constant that we made: the part of its name before our suffix. */
static const char *source_of(Strip *x, const char *made)
{
    const char *last = NULL;
    for (const char *p = strstr(made, "__mpr_"); p; p = strstr(p + 1, "__mpr_")) last = p;
    return last ? mpri_arena_printf(x->arena, "%.*s", (int)(last - made), made) : NULL;
}

static const char *field_text(Strip *x, Span node, uint32_t number)
{
    WireField f;
    if (!mpri_wire_find(x->s->bytes, node, number, &f)) return "";
    const char *text = mpri_wire_text(x->s->bytes, f.body, x->arena);
    x->failed = x->failed || !text;
    return text ? text : "";
}

static bool is_graph_output(const Strip *x, const char *name)
{
    Span graph = x->s->graph.body;
    WireField f, g;
    size_t pos = graph.at;
    while (mpri_wire_next(x->s->bytes, graph.at + graph.len, &pos, &f) == WIRE_OK)
        if (f.number == GRAPH_OUTPUT && mpri_wire_find(x->s->bytes, f.body, INFO_NAME, &g) &&
            mpri_wire_is(x->s->bytes, g.body, name))
            return true;
    return false;
}

static mpr_status look_at_node(Strip *x, int i)
{
    Span node = x->s->nodes[i].body;
    const char *op = field_text(x, node, NODE_OP_TYPE), *name = field_text(x, node, NODE_NAME);
    bool cast = !strcmp(op, "Cast");
    if ((!cast && strcmp(op, "Constant") != 0) || !*name) return MPR_OK;
    if (!is_marked(x, node, name)) return MPR_OK;
    const char *from = cast ? field_text(x, node, NODE_INPUT) : source_of(x, name);
    const char *to = field_text(x, node, NODE_OUTPUT);
    if (x->failed) return mpri_err_nomem(x->err, node.len);
    if (!from || (strcmp(name, to) != 0 && strcmp(name, from) != 0)) return MPR_OK;
    if (!strcmp(name, to) && is_graph_output(x, to)) return MPR_OK;
    x->ours[i] = true;
    x->n_ours++;
    return !strcmp(name, to) ? add_way(x, to, from) : add_way(x, from, to);
}

/* ---- edits ---- */

static const char *rename_back(void *ctx, NameUse use, const char *name, size_t len)
{
    Strip *x = ctx;
    const char *to = use == NAME_OF_NODE || len == 0 ? NULL : way_back(x, name, len);
    x->changed = x->changed || to;
    return to;
}

static mpr_status add_edit(Strip *x, Span at, Text *text)
{
    void *bytes = text->failed ? NULL : mpri_arena_dup(x->arena, text->text, text->len);
    x->edits[x->n_edits++] = (SourceEdit){at.at, at.len, bytes, text->len};
    mpri_text_free(text);
    return bytes ? MPR_OK : mpri_err_nomem(x->err, at.len);
}

static mpr_status edit_node(Strip *x, int i)
{
    SourceField field = x->s->nodes[i];
    Text text, node;
    mpri_text_init(&text, x->arena->alloc);
    if (x->ours[i]) return add_edit(x, field.tagged, &text);
    mpri_text_init(&node, x->arena->alloc);
    x->changed = false;
    mpri_wire_node(x->s->bytes, field.body, rename_back, x, &node);
    mpri_wire_put_bytes(&text, GRAPH_NODE, node.text, node.len);
    text.failed = text.failed || node.failed;
    mpri_text_free(&node);
    if (x->changed) return add_edit(x, field.tagged, &text);
    mpri_text_free(&text);
    return MPR_OK;
}

static int by_place(const void *a, const void *b)
{
    const SourceEdit *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The file without the model's list, which may lie before or behind the graph. */
static mpr_status assemble(Strip *x, void **out, size_t *size)
{
    uint8_t head[16];
    int n = 0;
    Piece *pieces = ARENA_ARRAY(x->arena, Piece, 2 * x->n_edits + 3);
    if (!pieces) return mpri_err_nomem(x->err, sizeof *pieces);
    qsort(x->edits, (size_t)x->n_edits, sizeof *x->edits, by_place);
    TRY(mpri_source_pieces(x->s, x->edits, x->n_edits, pieces, &n, head, x->err));
    size_t total = 0, at = 0;
    for (int i = 0; i < n; i++) total += pieces[i].n;
    uint8_t *image = mpri_arena_alloc(x->arena, total);
    if (!image) return mpri_err_nomem(x->err, total);
    const uint8_t *cut = x->s->bytes + x->entry.tagged.at, *cut_end = cut + x->entry.tagged.len;
    for (int i = 0; i < n; i++) {
        const uint8_t *p = pieces[i].bytes, *end = p + pieces[i].n;
        if (x->entry.tagged.len && cut >= p && cut_end <= end) {
            memcpy(image + at, p, (size_t)(cut - p));
            at += (size_t)(cut - p);
            p = cut_end;
        }
        if (p < end) memcpy(image + at, p, (size_t)(end - p));
        at += (size_t)(end - p);
    }
    *out = image;
    *size = at;
    return MPR_OK;
}

mpr_status mpri_marks_strip(const Source *s, Arena *arena, void **out, size_t *size, int *n,
                            Err *err)
{
    Strip x = {.s = s, .arena = arena, .err = err};
    *out = NULL;
    x.ours = ARENA_ARRAY(arena, bool, s->n_nodes + 1);
    x.edits = ARENA_ARRAY(arena, SourceEdit, s->n_nodes + 1);
    if (!x.ours || !x.edits) return mpri_err_nomem(err, sizeof *x.edits * (size_t)s->n_nodes);
    TRY(read_list(&x));
    for (int i = 0; i < s->n_nodes; i++) TRY(look_at_node(&x, i));
    *n = x.n_ours;
    if (x.n_ours == 0 && x.entry.tagged.len == 0) return MPR_OK;
    for (int i = 0; i < s->n_nodes; i++) TRY(edit_node(&x, i));
    return assemble(&x, out, size);
}

void mpri_marks_retype(const ImportedModel *m, Arena *arena, void *bytes)
{
    const Source *s = m->source;
    for (int i = 0; i < s->n_value_infos; i++) {
        WireField f;
        Span at, info = s->value_infos[i].body;
        int64_t elem = mpri_wire_info_elem(s->bytes, info, &at);
        if (!mpri_file_castable((DType)elem) || at.len != 1 ||
            !mpri_wire_find(s->bytes, info, INFO_NAME, &f))
            continue;
        const char *name = mpri_wire_text(s->bytes, f.body, arena);
        const Value *v = name ? mpri_graph_find_value(m->graph, name) : NULL;
        if (v && mpri_file_castable(v->dtype)) ((uint8_t *)bytes)[at.at] = (uint8_t)v->dtype;
    }
}
