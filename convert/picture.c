/* Pictures of the decisions: green and blue 16 bits, white float32, red kept by a guard, grey without
 * floats; dashed when pinned; thick edges where a Cast stands. The SVG lists the nodes scope by scope
 * in file order, one row each, so its layout needs no solver and never moves. */
#include <stdio.h>
#include <string.h>

#include "convert/report.h"

static const char white[] = "#ffffff", grey[] = "#e4e4e4", green[] = "#b7e1a1", blue[] = "#a1cbe1",
                  red[] = "#f2a0a0", line[] = "#404040", faint[] = "#b8b8b8", cast[] = "#c05a00";

typedef struct Look { const char *fill; bool pinned; } Look;

static bool is_guard(MixReason r)
{
    return r == WHY_EPS || r == WHY_MASK || r == WHY_VARIANCE || r == WHY_REDUCTION ||
           r == WHY_LOSS || r == WHY_RANGE_ACT || r == WHY_RANGE_INIT;
}

static Look look(const MixNode *n)
{
    Look l = {n->n_units ? white : grey, false};
    for (int i = 0; i < n->n_units; i++) {
        const MixUnit *u = n->units[i];
        bool low = mpri_dtype_is_low(u->is);
        if (low) l.fill = u->is == MPR_FLOAT16 ? green : blue;
        if (!low && u->pinned) l.pinned = true;
        if (!low && is_guard(u->why)) {
            l.fill = red;
            break;
        }
    }
    return l;
}

/* What decided about the node: a reason of a unit that stayed, else of one that changed. */
static const char *reason(const MixNode *n)
{
    const MixUnit *said = NULL;
    for (int i = 0; i < n->n_units; i++)
        if (!said || (mpri_dtype_is_low(said->is) && is_guard(n->units[i]->why))) said = n->units[i];
    return said ? mpri_reason_text(said->why) : "";
}

static DType type_now(const MixNode *n)
{
    for (int i = 0; i < n->n_units; i++)
        if (mpri_dtype_is_low(n->units[i]->is)) return n->units[i]->is;
    return n->n_units ? n->units[0]->is : MPR_DTYPE_NONE;
}

static bool has_cast(const MixNode *n, int k)
{
    const MixValue *v = n->in[k];
    const MixUnit *to = n->in_unit[k];
    return v && mpri_mix_castable(v->type.elem) && v->now != (to ? to->is : v->type.elem);
}

/* Casts of weights and graph inputs, which have no edge. */
static int casts_without_edge(const MixNode *n)
{
    int count = 0;
    for (int k = 0; k < n->n_in; k++) count += has_cast(n, k) && !n->in[k]->maker;
    return count;
}

static bool is_float(const MixValue *v)
{
    return mpri_dtype_is_float(v->type.elem);
}

/* ---- names ---- */

static int characters(const char *s)
{
    int n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

/* The end of a long name says more than its beginning. *cut: something is missing in front. */
static const char *tail(const char *s, int most, bool *cut)
{
    int n = characters(s);
    *cut = n > most;
    while (n > most) {
        s++;
        if (((unsigned char)*s & 0xC0) != 0x80) n--;
    }
    return s;
}

static const char *short_path(const MixNode *n, bool *cut)
{
    enum { MOST = 48 };
    const char *name = *n->name ? n->name : n->n_out && *n->out_name[0] ? n->out_name[0] : n->path;
    return tail(name, MOST, cut);
}

/* ---- DOT ---- */

static void dot_escape(Text *t, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') mpri_text_put(t, "\\");
        if ((unsigned char)*s >= 0x20) mpri_text_bytes(t, s, 1);
    }
}

static void dot_node(const MixNode *n, Text *out)
{
    Look l = look(n);
    bool cut;
    const char *name = short_path(n, &cut);
    int casts = casts_without_edge(n);
    mpri_text_add(out, "n%d [style=\"filled%s\", fillcolor=\"%s\", label=\"", n->number,
                  l.pinned ? ",dashed" : "", l.fill);
    dot_escape(out, n->op);
    if (strcmp(n->op, "Constant")) {
        mpri_text_put(out, cut ? "\\n…" : "\\n");
        dot_escape(out, name);
    }
    if (casts) mpri_text_add(out, "\\n%d cast%s of inputs or weights", casts, casts > 1 ? "s" : "");
    mpri_text_put(out, "\", tooltip=\"");
    dot_escape(out, n->path);
    mpri_text_put(out, " ");
    dot_escape(out, reason(n));
    mpri_text_put(out, "\"];\n");
}

static void dot_scope(const MixScope *s, Text *out)
{
    if (s->outer) {
        mpri_text_add(out, "subgraph cluster_%d { style=rounded; color=\"#808080\"; label=\"", s->number);
        dot_escape(out, s->path);
        mpri_text_put(out, "\";\n");
    }
    for (int i = 0; i < s->n_nodes; i++) {
        dot_node(s->nodes[i], out);
        for (int b = 0; b < s->nodes[i]->n_bodies; b++) dot_scope(s->nodes[i]->bodies[b], out);
    }
    if (s->outer) mpri_text_put(out, "}\n");
}

static void dot_legend(Text *out)
{
    static const struct { const char *style, *fill, *label; } rows[] = {
        {"filled", green, "float16"}, {"filled", blue, "bfloat16"}, {"filled", white, "float32"},
        {"filled,dashed", white, "float32, cannot change"}, {"filled", red, "float32, guard"},
        {"filled", grey, "no floats"},
    };
    mpri_text_put(out, "subgraph cluster_legend { label=\"precision\"; style=rounded; "
                       "color=\"#808080\"; rank=same;\n");
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
        mpri_text_add(out, "legend%d [style=\"%s\", fillcolor=\"%s\", label=\"%s\"];\n", i,
                      rows[i].style, rows[i].fill, rows[i].label);
    mpri_text_add(out, "legend0 -> legend1 -> legend2 -> legend3 -> legend4 -> legend5 "
                       "[style=invis];\nlegend6 [shape=plaintext, label=\"thick edge: Cast\"];\n"
                       "legend5 -> legend6 [penwidth=3, color=\"%s\"];\n}\n", cast);
}

void mpri_report_dot(const Report *r, Text *out)
{
    mpri_text_put(out, "digraph model {\nnode [shape=box, fontname=\"Helvetica\", fontsize=11, "
                       "margin=\"0.08,0.04\", height=0.2];\nedge [color=\"#404040\", arrowsize=0.6];\n"
                       "graph [fontname=\"Helvetica\", nodesep=0.15, ranksep=0.3];\n");
    dot_legend(out);
    if (r->m->top) dot_scope(r->m->top, out);
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            const MixValue *v = n->in[k];
            if (!v || !v->maker) continue;
            mpri_text_add(out, "n%d -> n%d", v->maker->number, n->number);
            if (has_cast(n, k)) mpri_text_add(out, " [penwidth=3, color=\"%s\"]", cast);
            else if (!is_float(v)) mpri_text_add(out, " [color=\"%s\"]", faint);
            mpri_text_put(out, ";\n");
        }
    }
    mpri_text_put(out, "}\n");
}

/* ---- SVG ---- */

/* Without what XML has no form for: control characters, U+FFFE and U+FFFF. */
static void xml_text(Text *t, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (!strncmp(s, "\xEF\xBF\xBE", 3) || !strncmp(s, "\xEF\xBF\xBF", 3)) {
            s += 2;
            continue;
        }
        if (c == '<') mpri_text_put(t, "&lt;");
        else if (c == '>') mpri_text_put(t, "&gt;");
        else if (c == '&') mpri_text_put(t, "&amp;");
        else if (c == '"') mpri_text_put(t, "&quot;");
        else if (c >= 0x20) mpri_text_bytes(t, s, 1);
    }
}

enum { ROW = 26, HIGH = 20, CHAR = 7, PAD = 8, INDENT = 24, LANES = 220, HEAD = 64, WHY = 240 };

typedef struct Layout {
    const Report *r;
    Text *out;
    int *y;    /* by number of the node */
    int *last; /* by id of the scope: below its last row */
    int *first;
    int box;   /* width of the names */
    int rows;
} Layout;

static int depth_of(const MixScope *s)
{
    int d = 0;
    for (; s->outer; s = s->outer) d++;
    return d;
}

static int left_of(const MixScope *s)
{
    return PAD + INDENT * depth_of(s);
}

static int y_of_row(int row)
{
    return HEAD + ROW * row;
}

static void lay_scope(Layout *l, const MixScope *s)
{
    l->first[s->number] = l->rows;
    l->rows += s->outer != NULL; /* its title */
    for (int i = 0; i < s->n_nodes; i++) {
        const MixNode *n = s->nodes[i];
        bool cut;
        int width = CHAR * (characters(n->op) + characters(short_path(n, &cut)) + 3) + 2 * PAD;
        if (width > l->box) l->box = width;
        l->y[n->number] = y_of_row(l->rows++);
        for (int b = 0; b < n->n_bodies; b++) lay_scope(l, n->bodies[b]);
    }
    l->last[s->number] = l->rows;
}

static int right_of(const Layout *l, const MixScope *s)
{
    return left_of(s) + l->box + WHY;
}

static void put_words(Layout *l, int x, int y, const char *style, const char *words)
{
    mpri_text_add(l->out, "<text x=\"%d\" y=\"%d\"%s>", x, y, style);
    xml_text(l->out, words);
    mpri_text_put(l->out, "</text>\n");
}

static void svg_node(Layout *l, const MixNode *n)
{
    Look look_of = look(n);
    int x = left_of(n->scope), y = l->y[n->number], casts = casts_without_edge(n);
    bool cut;
    const char *name = short_path(n, &cut);
    char why[96];
    mpri_text_add(l->out, "<g><title>");
    xml_text(l->out, n->path);
    mpri_text_add(l->out, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" "
                  "stroke=\"%s\"%s/>\n", x, y, l->box + WHY, HIGH, look_of.fill, line,
                  look_of.pinned ? " stroke-dasharray=\"5 3\"" : "");
    mpri_text_add(l->out, "<text x=\"%d\" y=\"%d\"><tspan font-weight=\"bold\">", x + PAD, y + 14);
    xml_text(l->out, n->op);
    mpri_text_put(l->out, cut ? "</tspan> …" : "</tspan> ");
    xml_text(l->out, name);
    mpri_text_put(l->out, "</text>\n");
    if (n->n_units) {
        snprintf(why, sizeof why, "%.12s  %.40s", mpri_dtype_name(type_now(n)), reason(n));
        put_words(l, x + l->box, y + 14, " fill=\"#303030\"", why);
    }
    if (casts) {
        snprintf(why, sizeof why, "%d cast%s", casts, casts > 1 ? "s" : "");
        put_words(l, x + l->box + WHY - 58, y + 14, " fill=\"#c05a00\" font-weight=\"bold\"", why);
    }
    mpri_text_put(l->out, "</g>\n");
}

/* Edges run in lanes at the right: the farther, the wider. */
static void svg_edge(Layout *l, const MixNode *from, const MixNode *to, int k)
{
    int x1 = right_of(l, from->scope), y1 = l->y[from->number] + HIGH / 2;
    int x2 = right_of(l, to->scope), y2 = l->y[to->number] + HIGH / 2;
    int far = (y2 > y1 ? y2 - y1 : y1 - y2) / ROW, reach = 10 + 6 * far;
    int bend = (x1 > x2 ? x1 : x2) + (reach < LANES ? reach : LANES - 10 + far % 10);
    bool thick = has_cast(to, k), plain = is_float(to->in[k]);
    mpri_text_add(l->out, "<path d=\"M%d %d C%d %d %d %d %d %d\" stroke=\"%s\" "
                  "stroke-width=\"%s\"/>\n", x1, y1, bend, y1, bend, y2, x2, y2,
                  thick ? cast : plain ? line : faint, thick ? "3" : "1");
}

static void svg_scope(Layout *l, const MixScope *s)
{
    int x = left_of(s) - 6, y = y_of_row(l->first[s->number]) - 2;
    int height = ROW * (l->last[s->number] - l->first[s->number]);
    if (!s->outer) return;
    mpri_text_add(l->out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" "
                  "fill=\"none\" stroke=\"#808080\"/>\n", x, y, l->box + WHY + 12, height);
    put_words(l, x + 8, y + 16, " font-style=\"italic\"", s->path);
}

static void svg_legend(Layout *l)
{
    static const struct { const char *fill, *label; int width; bool dashed; } rows[] = {
        {green, "float16", 80, false}, {blue, "bfloat16", 85, false}, {white, "float32", 80, false},
        {white, "cannot change", 120, true}, {red, "guard", 70, false}, {grey, "no floats", 90, false},
    };
    int x = PAD;
    const char *slash = strrchr(l->r->model->path, '/');
    put_words(l, PAD, 18, " font-weight=\"bold\"", slash ? slash + 1 : l->r->model->path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpri_text_add(l->out, "<rect x=\"%d\" y=\"30\" width=\"18\" height=\"14\" fill=\"%s\" "
                      "stroke=\"%s\"%s/>\n", x, rows[i].fill, line,
                      rows[i].dashed ? " stroke-dasharray=\"5 3\"" : "");
        put_words(l, x + 24, 42, "", rows[i].label);
        x += 24 + rows[i].width;
    }
    mpri_text_add(l->out, "<path d=\"M%d 37 L%d 37\" stroke=\"%s\" stroke-width=\"3\"/>\n", x, x + 18,
                  cast);
    put_words(l, x + 24, 42, "", "Cast");
}

void mpri_report_svg(const Report *r, Text *out)
{
    Pool *p = r->m->pool;
    Layout l = {.r = r, .out = out, .box = 240};
    int deepest = 0, width;
    l.y = mpri_pool_take(p, sizeof(int) * (size_t)r->m->n_nodes);
    l.first = mpri_pool_take(p, sizeof(int) * (size_t)r->m->n_scopes);
    l.last = mpri_pool_take(p, sizeof(int) * (size_t)r->m->n_scopes);
    if (r->m->top) lay_scope(&l, r->m->top);
    for (int i = 0; i < r->m->n_scopes; i++)
        if (depth_of(r->m->scopes[i]) > deepest) deepest = depth_of(r->m->scopes[i]);
    width = 2 * PAD + INDENT * deepest + l.box + WHY + LANES;
    if (width < 720) width = 720; /* of the legend */
    mpri_text_add(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" "
                  "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
                  width, y_of_row(l.rows) + PAD, width, y_of_row(l.rows) + PAD);
    svg_legend(&l);
    mpri_text_put(out, "<g fill=\"none\">\n");
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] && n->in[k]->maker) svg_edge(&l, n->in[k]->maker, n, k);
    }
    mpri_text_put(out, "</g>\n");
    for (int i = 0; i < r->m->n_scopes; i++) svg_scope(&l, r->m->scopes[i]);
    for (int i = 0; i < r->m->n_nodes; i++) svg_node(&l, r->m->nodes[i]);
    mpri_text_put(out, "</svg>\n");
}
