/* The built-in lists, and files and rules that change them. */
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const char *const list_names[4] = {
    [LIST_ALLOW] = "allow", [LIST_INFER] = "infer", [LIST_DENY] = "deny", [LIST_CLEAR] = "clear"};

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

/* ---- the list file ---- */

/* Words of one list of a YAML or JSON file: "allow: [A, +B]" or "- A" lines below it. */
typedef struct ListFile {
    const char *words[4]; /* NULL: the list is not in the file */
} ListFile;

static const char *next_word(const char *p, const char **word, size_t *n)
{
    p += strspn(p, " \t\r\n,[]{}\"'");
    *word = p;
    *n = strcspn(p, " \t\r\n,[]{}\"'#");
    if (*n == 0 && *p == '#') {
        p += strcspn(p, "\n");
        return next_word(p, word, n);
    }
    return p + *n;
}

static mpr_status parse_lists(Paint *p, ListFile *f)
{
    const char *at = p->o->lists, *word;
    size_t n;
    int list = -1;
    while (*(at = next_word(at, &word, &n)) || n) {
        if (n == 0) break;
        bool key = word[n - 1] == ':';
        if (!key) { /* "allow" : [ */
            const char *q = at + strspn(at, "\"' \t");
            key = *q == ':' && word[0] != '-' && word[0] != '+';
            if (key) at = q + 1;
        } else {
            n--;
        }
        if (key) {
            list = -1;
            for (int k = 0; k < 4; k++)
                if (strlen(list_names[k]) == n && !strncmp(list_names[k], word, n)) list = k;
            if (list < 0)
                return mpri_err_set(p->err, MPR_E_USAGE,
                                    "the list file has a list '%.*s'; allowed are allow, infer, "
                                    "deny and clear", (int)n, word);
            if (!f->words[list]) f->words[list] = "";
        } else if (n == 1 && *word == '-') {
            continue; /* an item of a list in block style */
        } else if (list < 0) {
            return mpri_err_set(p->err, MPR_E_USAGE, "the list file has '%.*s' outside a list",
                                (int)n, word);
        } else {
            f->words[list] = mpri_pool_print(p->m->pool, "%s %.*s", f->words[list], (int)n, word);
        }
    }
    return MPR_OK;
}

/* +X adds, -X takes away; a list with a plain word replaces. */
static int amended(const ListFile *f, const char *op, int list)
{
    for (int k = 0; k < 4; k++) {
        char minus[96];
        if (!f->words[k]) continue;
        snprintf(minus, sizeof minus, "-%s", op);
        bool plain = false;
        for (const char *q = f->words[k]; *q; q++)
            plain = plain || (q[0] == ' ' && q[1] && q[1] != '+' && q[1] != '-');
        if (list == k && (plain || has_word(f->words[k], minus))) list = -1;
    }
    for (int k = 0; k < 4; k++) {
        char plus[96];
        if (!f->words[k]) continue;
        snprintf(plus, sizeof plus, "+%s", op);
        if (has_word(f->words[k], plus) || has_word(f->words[k], op)) list = k;
    }
    return list;
}

static mpr_status check_overlap(Paint *p, const ListFile *f)
{
    for (int k = 0; k < 4; k++) {
        const char *at = f->words[k] ? f->words[k] : "", *word;
        size_t n;
        while (*(at = next_word(at, &word, &n)) || n) {
            const char *op = mpri_pool_text(p->m->pool, word + (*word == '+'),
                                            n - (size_t)(*word == '+'));
            for (int other = 0; other < 4; other++) {
                if (other == k || !f->words[other] || *op == '-') continue;
                if (has_word(f->words[other], op) ||
                    has_word(f->words[other], mpri_pool_print(p->m->pool, "+%s", op)))
                    return mpri_err_set(p->err, MPR_E_USAGE,
                                        "the list file has %s on two lists, %s and %s", op,
                                        list_names[k], list_names[other]);
            }
            if (!*at) break;
        }
    }
    return MPR_OK;
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
        list = amended(f, full_name(p, s->owner), -1);
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
    list = outer >= 0 ? outer : amended(f, op, list);
    *why = list == LIST_DENY ? WHY_DENY : list < 0 ? WHY_UNLISTED : WHY_ALLOW;
    return list < 0 ? LIST_DENY : (MixList)list;
}

mpr_status mpri_paint_lists(Paint *p)
{
    ListFile f = {{NULL}};
    if (p->o->lists) {
        TRY(parse_lists(p, &f));
        TRY(check_overlap(p, &f));
    }
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
