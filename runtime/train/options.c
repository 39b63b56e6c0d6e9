/* The option table and its values. Everything about an option is in its row; no option has code
 * here. Checks between several options are in mpri_options_check. */
#include "runtime/train/options.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const mpr_option_row rows[OPT_COUNT] = {
#define OPT(id, name_, short_, aliases_, kind_, def_, choices_, range_, argument_, group_, help_)  \
    [OPT_##id] = {.name = name_,                                                                   \
                  .short_name = short_,                                                            \
                  .aliases = aliases_,                                                             \
                  .kind = MPR_OPTION_##kind_,                                                      \
                  .def = def_,                                                                     \
                  .choices = choices_,                                                             \
                  .range = range_,                                                                 \
                  .argument = argument_,                                                           \
                  .help = help_,                                                                   \
                  .group = group_},
#include "runtime/train/options.def"
#undef OPT
};

const mpr_option_row *mpri_option_row(int index)
{
    return index >= 0 && index < OPT_COUNT ? &rows[index] : NULL;
}

/* ---- names ---- */

static bool same_name(const char *name, const char *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = name[i] == '_' ? '-' : name[i];
        if (!c || c != row[i]) return false;
    }
    return !name[n];
}

int mpri_option_find(const char *name)
{
    while (*name == '-') name++;
    for (int i = 0; i < OPT_COUNT; i++) {
        if (same_name(name, rows[i].name, strlen(rows[i].name))) return i;
        for (const char *a = rows[i].aliases; a && *a;) {
            size_t n = strcspn(a, " ");
            if (same_name(name, a, n)) return i;
            a += n + (a[n] == ' ');
        }
    }
    return -1;
}

static mpr_status unknown(const char *name, Err *err)
{
    const char *names[OPT_COUNT];
    char word[128];
    size_t n = 0;
    for (const char *p = name; *p && n + 1 < sizeof(word); p++)
        if (n || *p != '-') word[n++] = *p == '_' ? '-' : *p;
    word[n] = 0;
    for (int i = 0; i < OPT_COUNT; i++) names[i] = rows[i].name;
    const char *near = mpri_nearest(word, names, OPT_COUNT);
    mpri_err_set(err, MPR_E_USAGE, "unknown option '%s'", mpri_err_name(name));
    if (near) return mpri_err_advice(err, "did you mean '%s'?", near);
    return mpri_err_advice(err, "mpr-train --help lists all options");
}

/* ---- checks of one value ---- */

/* Interval such as "[0,1)"; "inf" is open. */
static bool in_range(const char *range, double v)
{
    double low = 0, high = INFINITY;
    char text[64];
    const char *comma = strchr(range, ',');
    size_t n = (size_t)(comma - range - 1), m = strlen(comma + 1) - 1;
    memcpy(text, range + 1, n);
    text[n] = 0;
    mpri_parse_f64(text, &low);
    memcpy(text, comma + 1, m);
    text[m] = 0;
    mpri_parse_f64(text, &high);
    bool above = range[0] == '[' ? v >= low : v > low;
    bool below = comma[1 + m] == ']' ? v <= high : v < high;
    return above && below;
}

static mpr_status bad_value(const mpr_option_row *row, const char *value, Err *err)
{
    const char *kind = row->kind == MPR_OPTION_INT     ? "whole numbers"
                       : row->kind == MPR_OPTION_FLOAT ? "finite numbers"
                                                       : "values";
    if (row->choices)
        mpri_err_set(err, MPR_E_USAGE, "%s is '%s'; allowed are %s%s%s", row->name,
                     mpri_err_name(value), row->choices, row->range ? " with # in " : "",
                     row->range ? row->range : "");
    else if (row->kind == MPR_OPTION_FLAG)
        mpri_err_set(err, MPR_E_USAGE, "%s is '%s'; allowed are true and false", row->name,
                     mpri_err_name(value));
    else
        mpri_err_set(err, MPR_E_USAGE, "%s is '%s'; allowed are %s%s%s", row->name,
                     mpri_err_name(value), kind, row->range ? " in " : "",
                     row->range ? row->range : "");
    if (row->def) return mpri_err_advice(err, "the default is %s", row->def);
    return mpri_err_advice(err, "leave it out when in doubt");
}

static bool number_fits(const mpr_option_row *row, const char *value)
{
    double f;
    int64_t i;
    if (row->kind == MPR_OPTION_INT) {
        if (!mpri_parse_i64(value, &i)) return false;
        f = (double)i;
    } else if (!mpri_parse_f64(value, &f) || !isfinite(f)) {
        return false;
    }
    return !row->range || in_range(row->range, f);
}

static bool choice_fits(const mpr_option_row *row, const char *value)
{
    for (const char *c = row->choices; *c;) {
        size_t n = strcspn(c, "|");
        bool prefix = n && c[n - 1] == '*';
        if (n == 1 && *c == '#') {
            if (number_fits(row, value)) return true;
        } else if (prefix ? !strncmp(value, c, n - 1) && strlen(value) >= n
                          : strlen(value) == n && !strncmp(value, c, n)) {
            return true;
        }
        c += n + (c[n] == '|');
    }
    return false;
}

static const char *flag_value(const char *v)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no",
                                                                                "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (!strcasecmp(v, yes[i])) return "true";
        if (!strcasecmp(v, no[i])) return "false";
    }
    return NULL;
}

static mpr_status check_value(const mpr_option_row *row, const char *value, Err *err)
{
    bool fits = true;
    if (row->kind == MPR_OPTION_FLAG) fits = flag_value(value) != NULL;
    else if (row->choices) fits = choice_fits(row, value);
    else if (row->kind == MPR_OPTION_INT || row->kind == MPR_OPTION_FLOAT)
        fits = number_fits(row, value);
    return fits ? MPR_OK : bad_value(row, value, err);
}

/* ---- setting ---- */

static mpr_status add_item(mpr_trainer_options *o, OptionValue *v, const char *item, Err *err)
{
    const char **items = ARENA_ARRAY(&o->arena, const char *, v->n_items + 2);
    const char *copy = mpri_arena_strdup(&o->arena, item);
    const char *text = v->n_items ? mpri_arena_printf(&o->arena, "%s\n%s", v->text, item) : copy;
    if (!items || !copy || !text) return mpri_err_nomem(err, strlen(item));
    if (v->n_items) memcpy(items, v->items, (size_t)v->n_items * sizeof(*items));
    items[v->n_items++] = copy;
    v->items = items;
    v->text = text;
    return MPR_OK;
}

/* Items with a fixed set of choices may be separated by commas: --metrics accuracy,f1. */
static mpr_status add_items(mpr_trainer_options *o, const mpr_option_row *row, OptionValue *v,
                            const char *value, bool split, Err *err)
{
    for (const char *p = value;;) {
        size_t n = split ? strcspn(p, ",") : strlen(p);
        char *item = mpri_arena_alloc(&o->arena, n + 1);
        if (!item) return mpri_err_nomem(err, n + 1);
        memcpy(item, p, n);
        TRY(check_value(row, item, err));
        TRY(add_item(o, v, item, err));
        if (!p[n]) return MPR_OK;
        p += n + 1;
    }
}

mpr_status mpri_options_set(mpr_trainer_options *o, const char *name, const char *value,
                            OptionLevel level, Err *err)
{
    int id = mpri_option_find(name);
    if (id < 0) return unknown(name, err);
    const mpr_option_row *row = &rows[id];
    if (!value && row->kind != MPR_OPTION_FLAG) {
        mpri_err_set(err, MPR_E_USAGE, "%s needs a value", row->name);
        return mpri_err_advice(err, "give one; the default is %s", row->def ? row->def : "none");
    }
    if (!value) value = "true";
    OptionValue next = o->v[id];
    if (level > next.level || row->kind != MPR_OPTION_LIST) next = (OptionValue){.level = level};
    bool clears = !*value || (!strcmp(value, "none") && !row->choices);
    if (clears && row->def && row->kind != MPR_OPTION_LIST) return bad_value(row, value, err);
    if (!clears && row->kind == MPR_OPTION_LIST) {
        TRY(add_items(o, row, &next, value, row->choices || level == OPTION_ENVIRONMENT, err));
    } else if (!clears) {
        TRY(check_value(row, value, err));
        next.text = row->kind == MPR_OPTION_FLAG ? flag_value(value)
                                                 : mpri_arena_strdup(&o->arena, value);
        if (!next.text) return mpri_err_nomem(err, strlen(value));
    }
    if (level >= o->v[id].level) o->v[id] = next;
    return MPR_OK;
}

mpr_status mpri_options_environment(mpr_trainer_options *o, Err *err)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        char name[96] = "MPR_";
        size_t n = 4;
        for (const char *p = rows[i].name; *p && n + 1 < sizeof(name); p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = 0;
        const char *value = getenv(name);
        if (!value) continue;
        mpr_status status = mpri_options_set(o, rows[i].name, value, OPTION_ENVIRONMENT, err);
        if (status == MPR_OK) continue;
        mpri_err_where(err, "variable %s", name);
        return status;
    }
    return MPR_OK;
}

mpr_status mpri_options_create(mpr_context *ctx, mpr_trainer_options **out, Err *err)
{
    *out = NULL;
    mpr_trainer_options *o = CONTEXT_NEW(ctx, mpr_trainer_options);
    if (!o) return mpri_err_nomem(err, sizeof(*o));
    mpri_handle_init(&o->h, HANDLE_OPTIONS, NULL);
    o->ctx = ctx;
    mpri_arena_init(&o->arena, &ctx->alloc, 0);
    for (int i = 0; i < OPT_COUNT; i++) {
        mpr_status status = MPR_OK;
        if (rows[i].def && rows[i].kind == MPR_OPTION_LIST)
            status = add_item(o, &o->v[i], rows[i].def, err);
        else o->v[i].text = rows[i].def;
        if (status == MPR_OK) continue;
        mpri_options_destroy(o);
        return status;
    }
    *out = o;
    return MPR_OK;
}

void mpri_options_destroy(mpr_trainer_options *o)
{
    if (!o) return;
    const Alloc *alloc = &o->ctx->alloc;
    mpri_arena_destroy(&o->arena);
    mpri_handle_end(&o->h);
    mpri_free(alloc, o);
}

/* ---- contradictions ---- */

static mpr_status conflict(Err *err, const char *what, const char *advice)
{
    mpri_err_set(err, MPR_E_USAGE, "%s", what);
    return mpri_err_advice(err, "%s", advice);
}

mpr_status mpri_options_check(const mpr_trainer_options *o, Err *err)
{
    if (mpri_option_flag(o, OPT_FP16) && mpri_option_flag(o, OPT_BF16))
        return conflict(err, "fp16 and bf16 are both set; allowed is one of them", "leave one out");
    if (mpri_option_flag(o, OPT_FP16_EVAL) && mpri_option_flag(o, OPT_BF16_EVAL))
        return conflict(err,
                        "fp16-full-eval and bf16-full-eval are both set; allowed is one of them",
                        "leave one out");
    bool evaluates = !mpri_option_is(o, OPT_EVAL_STRATEGY, "no");
    bool best = mpri_option_flag(o, OPT_LOAD_BEST);
    if (best && !evaluates)
        return conflict(err, "load-best-model-at-end needs evaluations, but eval-strategy is no",
                        "set eval-strategy to epoch or steps");
    if (best && mpri_option_is(o, OPT_SAVE_STRATEGY, "no"))
        return conflict(err, "load-best-model-at-end needs checkpoints, but save-strategy is no",
                        "set save-strategy as eval-strategy");
    if (best && !mpri_option_is(o, OPT_SAVE_STRATEGY, "best") &&
        strcmp(mpri_option_text(o, OPT_SAVE_STRATEGY), mpri_option_text(o, OPT_EVAL_STRATEGY)))
        return conflict(err,
                        "load-best-model-at-end needs save-strategy and eval-strategy to be equal",
                        "set both to epoch or both to steps");
    if (mpri_option_is(o, OPT_SAVE_STRATEGY, "best") && !evaluates)
        return conflict(err, "save-strategy best needs evaluations, but eval-strategy is no",
                        "set eval-strategy to epoch or steps");
    if (mpri_option_here(o, OPT_PATIENCE) && !evaluates)
        return conflict(err, "early-stopping-patience needs evaluations, but eval-strategy is no",
                        "set eval-strategy to epoch or steps");
    if (mpri_option_flag(o, OPT_NESTEROV) && mpri_option_float(o, OPT_MOMENTUM) == 0)
        return conflict(err, "nesterov needs a momentum > 0", "set momentum, for example 0.9");
    if (mpri_option_here(o, OPT_SYNTHETIC) && mpri_option_list(o, OPT_TRAIN_DATA))
        return conflict(err, "synthetic and train-data are both set; allowed is one of them",
                        "leave one out");
    return MPR_OK;
}

/* ---- typed reading ---- */

bool mpri_option_flag(const mpr_trainer_options *o, OptionId id)
{
    return o->v[id].text && !strcmp(o->v[id].text, "true");
}

bool mpri_option_here(const mpr_trainer_options *o, OptionId id)
{
    return o->v[id].text != NULL;
}

const char *mpri_option_text(const mpr_trainer_options *o, OptionId id)
{
    return o->v[id].text;
}

int64_t mpri_option_int(const mpr_trainer_options *o, OptionId id, int64_t when_none)
{
    int64_t v = when_none;
    if (o->v[id].text && !mpri_parse_i64(o->v[id].text, &v)) return when_none;
    return v;
}

double mpri_option_float(const mpr_trainer_options *o, OptionId id)
{
    double v = 0;
    if (o->v[id].text && !mpri_parse_f64(o->v[id].text, &v)) return 0;
    return v;
}

const char *const *mpri_option_list(const mpr_trainer_options *o, OptionId id)
{
    return o->v[id].n_items ? o->v[id].items : NULL;
}

bool mpri_option_is(const mpr_trainer_options *o, OptionId id, const char *text)
{
    return o->v[id].text && !strcmp(o->v[id].text, text);
}
