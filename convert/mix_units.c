/* Units: which ports must have one type, and which cannot change at all.
 *
 * The trap: a container cannot be cast. The unit that makes a sequence or an optional is joined
 * with every unit that reads it, and pinned when one of the two is not there. */
#include <string.h>

#include "convert/casts.h"
#include "convert/mix_parts.h"

static const char *const reason_words[] = {
#define X(constant, word) word,
    MIX_REASONS(X)
#undef X
};

const char *mpri_reason_text(MixReason r)
{
    return reason_words[r];
}

MixUnit *mpri_unit_root(MixUnit *u)
{
    while (u->joined) {
        if (u->joined->joined) u->joined = u->joined->joined;
        u = u->joined;
    }
    return u;
}

void mpri_unit_pin(MixUnit *u, MixReason why)
{
    if (u->pinned) return;
    u->pinned = true;
    u->pin = why;
}

static void join(MixUnit *a, MixUnit *b)
{
    if (!a || !b) {
        if (a) mpri_unit_pin(a, WHY_FLOW);
        if (b) mpri_unit_pin(b, WHY_FLOW);
        return;
    }
    a = mpri_unit_root(a);
    b = mpri_unit_root(b);
    if (a == b) return;
    if (b->number < a->number) {
        MixUnit *c = a;
        a = b;
        b = c;
    }
    b->joined = a;
}

/* ---- units of one node ---- */

static bool eligible(const Mix *m, MixType t)
{
    if (t.wrap == WRAP_OTHER) return false;
    if (m->widen) return t.elem == MPR_FLOAT16 || t.elem == MPR_BFLOAT16;
    return t.elem == MPR_FLOAT32;
}

/* "float" for a port of fixed type, which is none of a variable. */
static const char *name_of(Mix *m, const MixNode *n, const MixUnit *u)
{
    size_t len = 0;
    const char *name = u->var;
    bool variable = u->var[0] >= 'A' && u->var[0] <= 'D' && !u->var[1];
    if (n->row && !n->n_bodies && variable) name = mpri_ports_variable(n->row, u->var[0], &len);
    if (!strcmp(u->var, "f")) return "float";
    return len ? mpri_pool_text(m->pool, name, len) : u->var;
}

static MixUnit *unit_of(Mix *m, MixNode *n, const char *var, MixType was)
{
    for (int i = 0; i < n->n_units; i++)
        if (!strcmp(n->units[i]->var, var)) return n->units[i];
    MixUnit *u = mpri_pool_take(m->pool, sizeof *u);
    *u = (MixUnit){.node = n, .number = m->n_units, .was = was, .is = was.elem, .legal = true};
    strncpy(u->var, var, sizeof u->var - 1);
    u->name = name_of(m, n, u);
    mpri_pool_grow(m->pool, &n->units, n->n_units, &n->cap_units, sizeof(void *));
    n->units[n->n_units++] = u;
    mpri_pool_grow(m->pool, &m->units, m->n_units, &m->cap_units, sizeof(void *));
    m->units[m->n_units++] = u;
    return u;
}

static bool variable_takes(uint16_t set, DType t, MixWrap wrap)
{
    uint16_t bit = t == MPR_FLOAT32 ? PORT_FLOAT : t == MPR_FLOAT16 ? PORT_F16 : PORT_BF16;
    if (wrap == WRAP_SEQUENCE) bit = (uint16_t)(bit * PORT_SEQ);
    if (wrap == WRAP_OPTIONAL) bit = (uint16_t)(bit * PORT_OPTIONAL);
    return wrap != WRAP_OTHER && (set & bit);
}

/* Variables of their own that stay as they are: parameters of statistics, positions, ratios, steps
 * of quantisation. */
static bool is_side_variable(const MixNode *n, char letter)
{
    static const char *const rows[] = {
        "BatchNormalization BC", "Dropout BC", "Pow B", "LayerNormalization B", "Resize B",
        "GridSample B",         "Attention C", "Upsample B", "QuantizeLinear B",     NULL,
    };
    size_t len = strlen(n->op);
    for (int i = 0; rows[i]; i++)
        if (!strncmp(rows[i], n->op, len) && rows[i][len] == ' ')
            return strchr(rows[i] + len + 1, letter);
    return false;
}

/* In the others with several float variables all of them go together. */
static bool keeps_variables_apart(const MixNode *n)
{
    static const char *const ops[] = {"Cast", "CastLike", "BatchNormalization", "Dropout", "Pow",
                                      "LayerNormalization", "Resize", "GridSample", "Attention",
                                      "Upsample", "QuantizeLinear", "DequantizeLinear", NULL};
    for (int i = 0; ops[i]; i++)
        if (!strcmp(ops[i], n->op)) return true;
    return !strcmp(n->op, "OneHot");
}

static MixUnit *port_unit(Mix *m, MixNode *n, const MixValue *v, bool input, int k)
{
    bool own;
    char var[8] = {0};
    if (!v || !eligible(m, v->type)) return NULL;
    char letter = mpri_ports_letter(input ? n->row->in : n->row->out, k, &own);
    var[0] = letter;
    MixUnit *u = unit_of(m, n, var, v->type);
    if (letter < 'A' || letter > 'D') {
        u->legal = false;
        return u;
    }
    if (!variable_takes(n->row->vars[letter - 'A'], m->to, v->type.wrap)) u->legal = false;
    if (!m->widen && is_side_variable(n, letter)) mpri_unit_pin(u, WHY_FIXED);
    return u;
}

static bool has_attribute(const MixNode *n, const char *name)
{
    return mpri_mix_attribute(n, name);
}

/* Types that an attribute says, and user Casts. */
static void pin_fixed(const MixNode *n, MixUnit **out)
{
    static const char *const always[] = {"ConstantOfShape", "RandomNormal", "RandomUniform",
                                         "HannWindow", "HammingWindow", "BlackmanWindow",
                                         "MelWeightMatrix", "Multinomial", "SequenceEmpty",
                                         "Constant", "BitCast", NULL};
    bool fixed = has_attribute(n, "dtype") || has_attribute(n, "output_dtype");
    for (int i = 0; always[i]; i++) fixed = fixed || !strcmp(always[i], n->op);
    if (!strcmp(n->op, "Cast") || !strcmp(n->op, "BitCast"))
        for (int i = 0; i < n->n_units; i++) mpri_unit_pin(n->units[i], WHY_FIXED);
    if (!strcmp(n->op, "Optional") && has_attribute(n, "type")) fixed = true;
    if (has_attribute(n, "precision") || has_attribute(n, "softmax_precision"))
        for (int i = 0; i < n->n_units; i++) mpri_unit_pin(n->units[i], WHY_FIXED);
    for (int k = 0; fixed && k < n->n_out; k++)
        if (out[k]) mpri_unit_pin(out[k], WHY_FIXED);
}

/* A variable that also stands at a port of unknown type stays. */
static void pin_unknown(MixNode *n)
{
    bool own;
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < (side ? n->n_out : n->n_in); k++) {
            const MixValue *v = side ? n->out[k] : n->in[k];
            if (!v || v->type.elem) continue;
            char letter = mpri_ports_letter(side ? n->row->out : n->row->in, k, &own);
            for (int i = 0; i < n->n_units; i++)
                if (!own && n->units[i]->var[0] == letter) mpri_unit_pin(n->units[i], WHY_UNKNOWN);
        }
}

/* Containers of containers: what makes one, or takes it apart, stays. */
static bool is_nested(const MixType *t)
{
    return t->wrap == WRAP_OTHER && mpri_mix_castable(t->elem);
}

static void pin_nested(MixNode *n)
{
    bool nested = false;
    for (int k = 0; k < n->n_in; k++) nested = nested || (n->in[k] && is_nested(&n->in[k]->type));
    for (int k = 0; k < n->n_out; k++)
        nested = nested || (n->out[k] && is_nested(&n->out[k]->type));
    for (int i = 0; i < n->n_units && nested; i++) mpri_unit_pin(n->units[i], WHY_FLOW);
}

static bool is_like(const char *op)
{
    return !strcmp(op, "EyeLike") || !strcmp(op, "RandomNormalLike") ||
           !strcmp(op, "RandomUniformLike") || !strcmp(op, "Bernoulli");
}

static void schema_units(Mix *m, MixNode *n)
{
    n->any = m->widen && !strcmp(n->op, "Cast");
    for (int k = 0; k < n->n_in && !n->any; k++) n->in_unit[k] = port_unit(m, n, n->in[k], true, k);
    for (int k = 0; k < n->n_out; k++) n->out_unit[k] = port_unit(m, n, n->out[k], false, k);
    bool variable = false;
    for (int i = 0; i < n->n_units; i++) variable = variable || n->units[i]->var[0] < 'a';
    for (int i = 0; i < n->n_units; i++)
        if (n->units[i]->var[0] >= 'a' && variable) mpri_unit_pin(n->units[i], WHY_FIXED);
    pin_unknown(n);
    pin_nested(n);
    pin_fixed(n, n->out_unit);
    mpri_cast_units(m, n);
    MixUnit *first = NULL;
    for (int i = 0; i < n->n_units && (!keeps_variables_apart(n) || is_like(n->op)); i++) {
        MixUnit *u = n->units[i];
        if (u->var[0] < 'A' || u->var[0] > 'D') continue;
        if (first && !(is_like(n->op) && has_attribute(n, "dtype"))) join(first, u);
        first = first ? first : u;
    }
    if (!strcmp(n->op, "Attention"))
        for (int i = 1; i < n->n_units; i++)
            if (n->units[i]->var[0] == 'B' || n->units[i]->var[0] == 'A')
                for (int k = 0; k < i; k++)
                    if (n->units[k]->var[0] == 'A' || n->units[k]->var[0] == 'B')
                        join(n->units[k], n->units[i]);
    bool statistics = !strcmp(n->op, "BatchNormalization") && n->scope->opset < 14 && n->n_out > 1;
    if (!strcmp(n->op, "CastLike") || statistics) /* statistics that are updated stay float32 */
        for (int i = 0; i < n->n_units; i++) mpri_unit_pin(n->units[i], WHY_FIXED);
}

/* Calls, and operators of other domains: all ports as one. */
static void foreign_units(Mix *m, MixNode *n, MixReason why)
{
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < (side ? n->n_out : n->n_in); k++) {
            MixValue *v = side ? n->out[k] : n->in[k];
            if (!v || !eligible(m, v->type)) continue;
            MixUnit *u = unit_of(m, n, "F", v->type);
            mpri_unit_pin(u, why);
            *(side ? &n->out_unit[k] : &n->in_unit[k]) = u;
        }
}

/* ---- control flow ---- */

static const char *numbered(Mix *m, const char *what, int k)
{
    return mpri_pool_print(m->pool, "%s%d", what, k);
}

void mpri_mix_flow_unit(Mix *m, MixNode *n, const char *var, int in, int formal, int result,
                        int out)
{
    MixValue *values[4] = {in >= 0 && in < n->n_in ? n->in[in] : NULL, NULL, NULL,
                           out >= 0 && out < n->n_out ? n->out[out] : NULL};
    MixUnit *u = NULL;
    bool unknown = false, nested = false;
    for (int b = 0; b < n->n_bodies; b++) {
        MixScope *s = n->bodies[b];
        values[1] = formal >= 0 && formal < s->n_inputs ? s->inputs[formal] : NULL;
        values[2] = result >= 0 && result < s->n_outputs ? s->outputs[result] : NULL;
        for (int i = 0; i < 4; i++) {
            if (!values[i]) continue;
            unknown = unknown || !values[i]->type.elem;
            nested = nested || is_nested(&values[i]->type);
            if (!eligible(m, values[i]->type)) continue;
            u = unit_of(m, n, var, values[i]->type);
            if (!n->call && !variable_takes(n->row ? n->row->vars[0] : 0, m->to, u->was.wrap))
                u->legal = false;
            if (values[i]->type.wrap != u->was.wrap) mpri_unit_pin(u, WHY_FLOW);
        }
        if (!u) continue;
        if (values[1]) values[1]->unit = u;
        if (values[2] && s->output_uses[result]) s->output_uses[result]->unit = u;
    }
    if (!u) return;
    if (values[0]) n->in_unit[in] = u;
    if (values[3]) n->out_unit[out] = u;
    if (unknown) mpri_unit_pin(u, WHY_UNKNOWN);
    if (nested) mpri_unit_pin(u, WHY_FLOW);
}

static void flow_units(Mix *m, MixNode *n)
{
    const char *op = n->op;
    if (!strcmp(op, "If")) {
        for (int k = 0; k < n->n_out; k++)
            mpri_mix_flow_unit(m, n, numbered(m, "V", k), -1, -1, k, k);
    } else if (!strcmp(op, "Loop")) {
        int states = n->n_in > 2 ? n->n_in - 2 : 0;
        for (int k = 0; k < states; k++)
            mpri_mix_flow_unit(m, n, numbered(m, "V", k), k + 2, k + 2, k + 1, k);
        for (int k = states; k < n->n_out; k++)
            mpri_mix_flow_unit(m, n, numbered(m, "V", k), -1, -1, k + 1, k);
    } else if (!strcmp(op, "Scan")) {
        int skip = n->scope->opset < 9, scans = (int)mpri_mix_attribute_int(n, "num_scan_inputs", 0);
        int ins = n->n_in - skip, states = ins - scans > 0 ? ins - scans : 0;
        for (int k = 0; k < ins; k++) {
            bool state = k < states;
            mpri_mix_flow_unit(m, n, numbered(m, state ? "V" : "S", k), k + skip, k, state ? k : -1,
                      state ? k : -1);
        }
        for (int k = states; k < n->n_out; k++)
            mpri_mix_flow_unit(m, n, numbered(m, "V", k), -1, -1, k, k);
    } else {
        foreign_units(m, n, WHY_FLOW);
        for (int b = 0; b < n->n_bodies; b++)
            for (int k = 0; k < n->bodies[b]->n_inputs; k++) {
                MixValue *v = n->bodies[b]->inputs[k];
                if (eligible(m, v->type)) {
                    v->unit = unit_of(m, n, "F", v->type);
                    mpri_unit_pin(v->unit, WHY_FLOW);
                }
            }
    }
}

/* ---- all of them ---- */

static void edge(Mix *m, MixUnit *from, MixUnit *to)
{
    from = mpri_unit_root(from);
    to = mpri_unit_root(to);
    if (from == to) return;
    mpri_pool_grow(m->pool, &from->behind, from->n_behind, &from->cap_behind, sizeof(void *));
    from->behind[from->n_behind++] = to;
    mpri_pool_grow(m->pool, &to->before, to->n_before, &to->cap_before, sizeof(void *));
    to->before[to->n_before++] = from;
}

static void link_uses(MixValue *v)
{
    for (MixUse *u = v->uses; u; u = u->next)
        if (u->node) u->unit = u->node->in_unit[u->at];
}

static void join_containers(Mix *m)
{
    for (int i = 0; i < m->n_values; i++) {
        MixValue *v = m->values[i];
        if (v->type.wrap == WRAP_TENSOR || !eligible(m, v->type)) continue;
        for (MixUse *u = v->uses; u; u = u->next) join(v->unit, u->unit);
        if (v->output && v->unit) {
            mpri_unit_root(v->unit)->pinned = false;
            mpri_unit_pin(mpri_unit_root(v->unit), WHY_IO);
        }
    }
}

/* In training a state that starts from a weight is a weight itself. */
static void pin_master_states(Mix *m)
{
    for (int i = 0; i < m->n_nodes; i++) {
        MixNode *n = m->nodes[i];
        bool loop = !strcmp(n->op, "Loop"), scan = !strcmp(n->op, "Scan");
        for (int k = loop ? 2 : 0; (loop || scan) && k < n->n_in; k++)
            if (n->in[k] && mpri_mix_given(n->in[k])->initializer && n->in_unit[k])
                mpri_unit_pin(n->in_unit[k], WHY_FLOW);
    }
    (void)m;
}

/* Legal by its schema, but not in the body that defines it. */
static bool ill_typed_body(const Mix *m, const MixNode *n)
{
    if (!strcmp(n->op, "MeanVarianceNormalization")) return n->scope->opset >= 9;
    bool by_body = !strcmp(n->op, "Clip") || !strcmp(n->op, "SoftmaxCrossEntropyLoss");
    return by_body && m->to == MPR_BFLOAT16 && n->scope->opset >= 13;
}

void mpri_mix_units(Mix *m)
{
    for (int i = 0; i < m->n_nodes; i++) {
        MixNode *n = m->nodes[i];
        if (n->function) mpri_mix_call_units(m, n);
        else if (n->call) foreign_units(m, n, WHY_FUNCTION);
        else if (*n->domain) foreign_units(m, n, WHY_CUSTOM);
        else if (n->n_bodies) flow_units(m, n);
        else if (!n->row) foreign_units(m, n, WHY_UNKNOWN);
        else if (strcmp(n->op, "Constant")) schema_units(m, n);
        for (int k = 0; k < n->n_out; k++)
            if (n->out[k]) n->out[k]->unit = n->out_unit[k];
    }
    for (int i = 0; i < m->n_values; i++) link_uses(m->values[i]);
    join_containers(m);
    if (m->master) pin_master_states(m);
    for (int i = 0; i < m->n_units; i++) {
        MixUnit *u = m->units[i];
        if (!u->legal) {
            u->pinned = false;
            bool fixed = u->pin == WHY_FIXED;
            MixReason why = ill_typed_body(m, u->node) ? WHY_FUNCTION : WHY_TABLE;
            mpri_unit_pin(u, fixed ? WHY_FIXED : why);
        }
        MixUnit *root = mpri_unit_root(u);
        if (root != u) {
            u->same = root->same;
            root->same = u;
        }
    }
    for (int i = 0; i < m->n_values; i++)
        for (MixUse *u = m->values[i]->unit ? m->values[i]->uses : NULL; u; u = u->next)
            if (u->unit) edge(m, m->values[i]->unit, u->unit);
}

/* ---- the check of what was made ---- */

static const char *node_fault(const Mix *m, const MixNode *n)
{
    DType bound[4] = {MPR_DTYPE_NONE, MPR_DTYPE_NONE, MPR_DTYPE_NONE, MPR_DTYPE_NONE};
    if (!n->row || n->call || *n->domain || n->n_bodies) return NULL;
    for (int k = 0; k < n->n_in + n->n_out; k++) {
        bool own, input = k < n->n_in;
        const MixValue *v = input ? n->in[k] : n->out[k - n->n_in];
        if (!v || !mpri_mix_castable(v->type.elem)) continue;
        char letter = input ? mpri_ports_letter(n->row->in, k, &own)
                            : mpri_ports_letter(n->row->out, k - n->n_in, &own);
        if (letter == 'f' && v->type.elem != MPR_FLOAT32) return "has a port that must be float";
        if (letter < 'A' || letter > 'D' || own) continue;
        if (!variable_takes(n->row->vars[letter - 'A'], v->type.elem, v->type.wrap))
            return "does not take that type";
        DType *b = &bound[letter - 'A'];
        if (*b && *b != v->type.elem && v->type.wrap == WRAP_TENSOR) return "mixes float types";
        if (v->type.wrap == WRAP_TENSOR) *b = v->type.elem;
    }
    (void)m;
    return NULL;
}

static const char *flow_fault(const MixNode *n)
{
    if (*n->domain || n->call) return NULL;
    for (int k = 0; !strcmp(n->op, "If") && k < n->n_out; k++)
        for (int b = 0; b < n->n_bodies; b++) {
            const MixScope *s = n->bodies[b];
            const MixValue *v = k < s->n_outputs ? s->outputs[k] : NULL;
            if (v && n->out[k] && v->type.elem && v->type.elem != n->out[k]->type.elem)
                return "has branches of different types";
        }
    for (int k = 2; !strcmp(n->op, "Loop") && k < n->n_in && n->n_bodies; k++) {
        const MixScope *s = n->bodies[0];
        const MixValue *v = k - 1 < s->n_outputs ? s->outputs[k - 1] : NULL;
        if (v && n->in[k] && v->type.elem && n->in[k]->type.elem &&
            v->type.elem != n->in[k]->type.elem)
            return "has a state that changes its type";
    }
    return NULL;
}

const char *mpri_mix_fault(Mix *m, const MixNode **at)
{
    const char *what = NULL;
    for (int i = 0; i < m->n_nodes && !what; i++) {
        *at = m->nodes[i];
        what = node_fault(m, *at);
        if (!what) what = flow_fault(*at);
    }
    return what;
}
