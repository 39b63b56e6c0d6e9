/* Pictures of the decisions: green low, white float32, red kept by a guard, dashed when pinned,
 * grey without floats; thick edges where a Cast stands. The SVG lists the nodes scope by scope in
 * file order, one row each, so its layout needs no solver and never moves. */
#include <stdio.h>
#include <string.h>

#include "convert/report.h"

typedef struct Look { const char *fill; bool pinned; } Look;

static bool is_guard(MixReason r)
{
    return r == WHY_EPS || r == WHY_MASK || r == WHY_VARIANCE || r == WHY_REDUCTION ||
           r == WHY_LOSS || r == WHY_RANGE_ACT || r == WHY_RANGE_INIT;
}

static Look look(const MixNode *n)
{
    Look l = {n->n_units ? "#ffffff" : "#e0e0e0", false};
    for (int i = 0; i < n->n_units; i++) {
        const MixUnit *u = n->units[i];
        bool low = mpri_dtype_is_low(u->is);
        if (low) l.fill = u->is == MPR_FLOAT16 ? "#b7e1a1" : "#a1cbe1";
        if (!low && u->pinned) l.pinned = true;
        if (!low && is_guard(u->why)) {
            l.fill = "#f2a0a0";
            break;
        }
    }
    return l;
}

/* ---- DOT ---- */

static void dot_text(Text *t, const char *s)
{
    mpri_text_put(t, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') mpri_text_put(t, "\\");
        if ((unsigned char)*s >= 0x20) mpri_text_bytes(t, s, 1);
    }
    mpri_text_put(t, "\"");
}

static void dot_scope(const Report *r, const MixScope *s, Text *out)
{
    if (s->outer) {
        mpri_text_add(out, "subgraph cluster_%d { label=", s->id);
        dot_text(out, s->path);
        mpri_text_put(out, ";\n");
    }
    for (int i = 0; i < s->n_nodes; i++) {
        const MixNode *n = s->nodes[i];
        Look l = look(n);
        char label[256];
        snprintf(label, sizeof label, "%.100s %.100s", n->op, n->name);
        mpri_text_add(out, "n%d [style=\"filled%s\", fillcolor=\"%s\", label=", n->number,
                      l.pinned ? ",dashed" : "", l.fill);
        dot_text(out, label);
        mpri_text_put(out, "];\n");
        for (int b = 0; b < n->n_bodies; b++) dot_scope(r, n->bodies[b], out);
    }
    if (s->outer) mpri_text_put(out, "}\n");
}

static bool has_cast(const MixValue *v, const MixUnit *to)
{
    return mpri_mix_castable(v->type.elem) && v->now != (to ? to->is : v->type.elem);
}

void mpri_report_dot(const Report *r, Text *out)
{
    mpri_text_put(out, "digraph model {\nnode [shape=box];\n");
    if (r->m->top) dot_scope(r, r->m->top, out);
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        for (int k = 0; k < n->n_in; k++) {
            const MixValue *v = n->in[k];
            if (!v || !v->maker) continue;
            mpri_text_add(out, "n%d -> n%d%s;\n", v->maker->number, n->number,
                          has_cast(v, n->in_unit[k]) ? " [penwidth=3]" : "");
        }
    }
    mpri_text_put(out, "}\n");
}

/* ---- SVG ---- */

static void xml_text(Text *t, const char *s)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '<') mpri_text_put(t, "&lt;");
        else if (c == '>') mpri_text_put(t, "&gt;");
        else if (c == '&') mpri_text_put(t, "&amp;");
        else if (c == '"') mpri_text_put(t, "&quot;");
        else if (c >= 0x20) mpri_text_bytes(t, s, 1);
    }
}

enum { ROW = 30, BOX = 360, INDENT = 40, EDGES = 120 };

static int depth_of(const MixScope *s)
{
    int d = 0;
    for (; s->outer; s = s->outer) d++;
    return d;
}

static void svg_node(const MixNode *n, Text *out)
{
    Look l = look(n);
    int x = 10 + INDENT * depth_of(n->scope), y = 10 + ROW * n->number;
    mpri_text_add(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"22\" fill=\"%s\" "
                  "stroke=\"#404040\"%s/>\n", x, y, BOX, l.fill,
                  l.pinned ? " stroke-dasharray=\"5 3\"" : "");
    mpri_text_add(out, "<text x=\"%d\" y=\"%d\" font-size=\"13\" font-family=\"sans-serif\">",
                  x + 6, y + 16);
    xml_text(out, n->op);
    mpri_text_put(out, " ");
    xml_text(out, mpri_err_name(n->path));
    if (n->n_units) {
        mpri_text_put(out, " (");
        xml_text(out, mpri_reason_text(n->units[0]->why));
        mpri_text_put(out, ")");
    }
    mpri_text_put(out, "</text>\n");
}

static void svg_edge(const MixNode *from, const MixNode *to, bool cast, Text *out)
{
    int x1 = 10 + INDENT * depth_of(from->scope) + BOX, y1 = 21 + ROW * from->number;
    int x2 = 10 + INDENT * depth_of(to->scope) + BOX, y2 = 21 + ROW * to->number;
    int far = to->number > from->number ? to->number - from->number : from->number - to->number;
    int bend = (x1 > x2 ? x1 : x2) + (far * 8 < EDGES ? far * 8 : EDGES);
    mpri_text_add(out, "<path d=\"M%d %d C%d %d %d %d %d %d\" fill=\"none\" stroke=\"#404040\" "
                  "stroke-width=\"%d\"/>\n", x1, y1, bend, y1, bend, y2, x2, y2, cast ? 3 : 1);
}

void mpri_report_svg(const Report *r, Text *out)
{
    int deepest = 0;
    for (int i = 0; i < r->m->n_scopes; i++)
        if (depth_of(r->m->scopes[i]) > deepest) deepest = depth_of(r->m->scopes[i]);
    mpri_text_put(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    mpri_text_add(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">\n",
                  30 + INDENT * deepest + BOX + EDGES, 20 + ROW * (r->m->n_nodes + 1));
    for (int i = 0; i < r->m->n_nodes; i++) {
        const MixNode *n = r->m->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            if (n->in[k] && n->in[k]->maker)
                svg_edge(n->in[k]->maker, n, has_cast(n->in[k], n->in_unit[k]), out);
    }
    for (int i = 0; i < r->m->n_nodes; i++) svg_node(r->m->nodes[i], out);
    mpri_text_put(out, "</svg>\n");
}
