/* The built-in lists, and files and rules that change them. */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/lists.h"
#include "convert/paint.h"
#include "runtime/base/text.h"

static const char *const built_in[4] = {
    [LIST_ALLOW] = "MatMul Gemm Conv ConvTranspose Einsum Attention LSTM GRU RNN",
    [LIST_INFER] =
        "Add Sub Mul Div Sum Sqrt Reciprocal Log Erf Gelu Elu Selu Celu LeakyRelu PRelu Sigmoid "
        "HardSigmoid HardSwish Swish Mish Tanh Softplus Softsign AveragePool GlobalAveragePool "
        "BatchNormalization Dropout LRN RotaryEmbedding Cos Sin",
    [LIST_DENY] =
        "Exp Pow ReduceMean ReduceSum ReduceL1 ReduceL2 ReduceProd ReduceLogSum ReduceLogSumExp "
        "ReduceSumSquare Mean Softmax LogSoftmax LayerNormalization InstanceNormalization "
        "GroupNormalization RMSNormalization MeanVarianceNormalization LpNormalization "
        "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss CumSum CumProd Range RandomNormal "
        "RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Det DFT STFT "
        "HannWindow HammingWindow BlackmanWindow",
    [LIST_CLEAR] =
        "Abs ArgMax ArgMin Expand Ceil Floor Round Sign Neg Clip Concat Split DepthToSpace "
        "SpaceToDepth Gather GatherND GatherElements ScatterND ScatterElements Identity IsInf IsNaN "
        "Equal Greater GreaterOrEqual Less LessOrEqual Not Max Min ReduceMax ReduceMin MaxPool "
        "GlobalMaxPool Pad OneHot ConstantOfShape Constant Relu Reshape Flatten Resize Upsample "
        "ReverseSequence Where Shape Size Slice Squeeze Unsqueeze Tile TopK Transpose If Loop Scan "
        "SequenceMap SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert "
        "SequenceLength SplitToSequence ConcatFromSequence Optional OptionalGetElement "
        "OptionalHasElement",
};
static const char bf16_infer[] =
    "ReduceMean ReduceSum ReduceSumSquare Softmax LogSoftmax LayerNormalization "
    "InstanceNormalization GroupNormalization RMSNormalization MeanVarianceNormalization "
    "LpNormalization";

static bool has_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = words; n && (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n])) return true;
    return false;
}

const char *mpri_list_words(MixList list)
{
    return built_in[list];
}

bool mpri_node_is(const MixNode *n, const char *ops)
{
    return !*n->domain && has_word(ops, n->op);
}

/* ---- the list of a node ---- */

static bool is_smooth_resize(const Paint *p, const MixNode *n)
{
    if (!mpri_node_is(n, "Resize Upsample") || p->m->to == MPR_BFLOAT16) return false;
    const Tree *a = mpri_mix_attribute(n, "mode");
    TreeField *mode = a ? mpri_tree_find(a, 4) : NULL;
    return mode && !mpri_field_is(mode, "nearest");
}

static const char *full_name(const Paint *p, const MixNode *n)
{
    return *n->domain ? mpri_pool_print(p->m->pool, "%s::%s", n->domain, n->op) : n->op;
}

/* What the list file says of the functions around a node goes for all that is in them. */
static int list_of_calls(const Paint *p, const ListFile *f, const MixNode *n)
{
    int list = -1;
    for (const MixScope *s = n->scope->home; s && list < 0; s = s->owner->scope->home)
        list = mpri_lists_amend(f, full_name(p, s->owner), -1);
    return list;
}

static MixList list_of(const Paint *p, const ListFile *f, const MixNode *n, MixReason *why)
{
    const char *op = full_name(p, n);
    int list = n->function ? (int)LIST_CLEAR : -1, outer = list_of_calls(p, f, n);
    for (int k = 0; k < 4; k++)
        if (has_word(built_in[k], op)) list = k;
    if (p->m->to == MPR_BFLOAT16 && has_word(bf16_infer, op)) list = LIST_INFER;
    if (is_smooth_resize(p, n)) list = LIST_DENY;
    list = outer >= 0 ? outer : mpri_lists_amend(f, op, list);
    *why = list == LIST_DENY ? WHY_DENY : list < 0 ? WHY_UNLISTED : WHY_ALLOW;
    return list < 0 ? LIST_DENY : (MixList)list;
}

/* A name that neither ONNX nor the model knows is a slip of the pen. */
static bool is_known(const Paint *p, const char *op)
{
    if (mpri_ports_find(op, INT64_MAX)) return true;
    bool known = false;
    for (int i = 0; i < p->m->n_nodes && !known; i++)
        known = !strcmp(full_name(p, p->m->nodes[i]), op);
    return known;
}

static mpr_status read_file(Paint *p, ListFile *f)
{
    const char *path = p->o->lists_path ? p->o->lists_path : "the list file";
    *f = (ListFile){0};
    if (!p->o->lists) return MPR_OK;
    TRY(mpri_lists_read(path, p->o->lists, p->m->pool, f, p->err));
    for (const ListEntry *e = f->first; e; e = e->next)
        if (!is_known(p, e->op))
            mpri_paint_warn(p, "unmatched",
                            mpri_pool_print(p->m->pool, "%s:%zu: %s", path, e->line, e->op), 0,
                            "neither ONNX nor the model knows the operator");
    return MPR_OK;
}

mpr_status mpri_paint_lists(Paint *p)
{
    ListFile f;
    TRY(read_file(p, &f));
    for (int i = 0; i < p->m->n_units; i++) {
        MixUnit *u = p->m->units[i];
        MixReason why;
        u->list = list_of(p, &f, u->node, &why);
        if (!strcmp(u->node->op, "Cast") && !*u->node->domain) u->list = LIST_CLEAR;
        if (u->pinned && u->list == LIST_ALLOW) u->list = LIST_CLEAR;
        if (!u->pinned) u->pin = why;
    }
    return MPR_OK;
}

/* ---- rules ---- */

static const char *field_of(const MixNode *n, const char *field, int k)
{
    if (!strcmp(field, "op")) return k ? NULL : n->op;
    if (!strcmp(field, "node")) return k ? NULL : n->name;
    if (!strcmp(field, "domain")) return k ? NULL : n->domain;
    if (!strcmp(field, "scope")) return k ? NULL : n->scope->path;
    return k < n->n_out ? n->out_name[k] : NULL;
}

static bool rule_matches(const regex_t *re, const MixNode *n, const char *field)
{
    const char *text;
    for (int k = 0; (text = field_of(n, field, k)); k++)
        if (regexec(re, text, 0, NULL, 0) == 0) return true;
    if (strcmp(field, "op") || !*n->domain) return false;
    char both[256];
    snprintf(both, sizeof both, "%s::%s", n->domain, n->op);
    return regexec(re, both, 0, NULL, 0) == 0;
}

static void apply_within(MixScope *s, PaintRule kind, MixReason why)
{
    for (int i = 0; i < s->n_nodes; i++) {
        MixNode *n = s->nodes[i];
        for (int b = 0; b < n->n_bodies && !n->function; b++)
            apply_within(n->bodies[b], kind, why);
        mpri_paint_apply(n, kind, why);
    }
}

/* A rule for a call goes for what is in the function, too. */
void mpri_paint_apply(MixNode *n, PaintRule kind, MixReason why)
{
    if (n->function) apply_within(n->function, kind, why);
    for (int i = 0; i < n->n_units; i++) {
        MixUnit *u = n->units[i];
        u->forced = kind == RULE_FORCE;
        u->asked = kind != RULE_EXCLUDE;
        u->follows = u->follows && kind != RULE_EXCLUDE;
        if (u->pinned && !u->excluded) {
            if (kind == RULE_EXCLUDE && u->legal && u->pin != WHY_FIXED) u->pin = why;
            continue;
        }
        u->excluded = kind == RULE_EXCLUDE;
        u->pinned = kind == RULE_EXCLUDE;
        u->list = kind == RULE_EXCLUDE ? LIST_DENY : LIST_ALLOW;
        u->pin = why;
    }
}

static mpr_status apply_rule(Paint *p, const char *rule)
{
    static const char *const fields[] = {"op", "node", "out", "domain", "scope", NULL};
    const char *space = strchr(rule, ' '), *colon = strchr(rule, ':'), *field = NULL;
    PaintRule kind = *rule == 'e' ? RULE_EXCLUDE : *rule == 'i' ? RULE_INCLUDE : RULE_FORCE;
    for (int i = 0; fields[i] && colon; i++)
        if ((size_t)(colon - space - 1) == strlen(fields[i]) &&
            !strncmp(space + 1, fields[i], strlen(fields[i])))
            field = fields[i];
    if (!field) {
        mpri_err_set(p->err, MPR_E_USAGE, "the rule '%s' does not begin with op:, node:, out:, "
                     "domain: or scope:", mpri_err_name(space + 1));
        return mpri_err_advice(p->err, "write --%.*s op:RE, for example op:MatMul|Gemm",
                               (int)(space - rule), rule);
    }
    regex_t re;
    int rc = regcomp(&re, colon + 1, REG_EXTENDED | REG_NOSUB); /* "a)(b" is whole in brackets only */
    if (!rc) {
        regfree(&re);
        rc = regcomp(&re, mpri_pool_print(p->m->pool, "^(%s)$", colon + 1),
                     REG_EXTENDED | REG_NOSUB);
    }
    if (rc) {
        char text[128];
        regerror(rc, &re, text, sizeof text);
        return mpri_err_set(p->err, MPR_E_USAGE, "the rule '%s' is no regular expression: %s",
                            mpri_err_name(space + 1), text);
    }
    int64_t hits = 0;
    for (int i = 0; i < p->m->n_nodes; i++) {
        MixNode *n = p->m->nodes[i];
        if (!rule_matches(&re, n, field)) continue;
        hits++;
        mpri_paint_apply(n, kind, strcmp(field, "op") ? WHY_NAME : WHY_OP);
    }
    regfree(&re);
    if (!hits) mpri_paint_warn(p, "unmatched", space + 1, 0, "the rule matches no node");
    return MPR_OK;
}

mpr_status mpri_paint_rules(Paint *p)
{
    mpri_paint_policy(p);
    for (int i = 0; p->o->rules && p->o->rules[i]; i++) TRY(apply_rule(p, p->o->rules[i]));
    return MPR_OK;
}
