/* Options from and to YAML (JSON is a subset): one mapping of option names to scalars or lists of
 * scalars. Events are read one by one and nothing is built, so aliases, tags and deep nesting cost
 * nothing. */
#include "runtime/train/options.h"

#include <string.h>

static bool needs_quotes(const char *s)
{
    static const char *const words[] = {"true", "false", "yes",  "no", "on", "off",
                                        "null", "~",     "none", "y",  "n"};
    if (!*s || strchr("-?:,[]{}#&*!|>'\"%@` ", *s)) return true;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (!strcasecmp(s, words[i])) return true;
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < ' ' || strchr("\"\\#", *p) || (*p == ':' && (!p[1] || p[1] == ' ')))
            return true;
    return s[strlen(s) - 1] == ' ';
}

static void put_scalar(Text *t, const char *s, bool text)
{
    double number;
    if (!text || (!needs_quotes(s) && !mpri_parse_f64(s, &number))) {
        mpri_text_put(t, s);
        return;
    }
    mpri_text_put(t, "\"");
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') mpri_text_add(t, "\\%c", *s);
        else if ((unsigned char)*s < ' ') mpri_text_add(t, "\\x%02x", *s);
        else mpri_text_bytes(t, s, 1);
    }
    mpri_text_put(t, "\"");
}

mpr_status mpri_options_print(mpr_trainer_options *o, char **yaml, Err *err)
{
    Text t;
    mpri_text_init(&t, &o->ctx->alloc);
    const char *group = "";
    for (int i = 0; i < OPT_COUNT; i++) {
        const mpr_option_row *row = mpri_option_row(i);
        if (strcmp(group, row->group))
            mpri_text_add(&t, "%s# %s\n", i ? "\n" : "", group = row->group);
        mpri_text_add(&t, "%s: ", row->name);
        if (row->kind == MPR_OPTION_LIST) {
            mpri_text_put(&t, "[");
            for (int k = 0; k < o->v[i].n_items; k++) {
                if (k) mpri_text_put(&t, ", ");
                put_scalar(&t, o->v[i].items[k], true);
            }
            mpri_text_put(&t, "]");
        } else if (o->v[i].text) {
            put_scalar(&t, o->v[i].text, row->kind == MPR_OPTION_STRING && !row->choices);
        } else {
            mpri_text_put(&t, "null");
        }
        mpri_text_put(&t, "\n");
    }
    if (t.failed) {
        mpri_text_free(&t);
        return mpri_err_nomem(err, t.cap);
    }
    *yaml = t.text;
    return MPR_OK;
}

#if MPR_MINIMAL

mpr_status mpri_options_load(mpr_trainer_options *o, const char *file, Err *err)
{
    (void)o, (void)file;
    mpri_err_set(err, MPR_E_USAGE, "this build cannot read configuration files");
    return mpri_err_advice(err, "build the library without MPR_MINIMAL");
}

#else

#include <errno.h>
#include <stdio.h>
#include <yaml.h>

typedef struct Reader {
    mpr_trainer_options *o;
    yaml_parser_t parser;
    yaml_event_t event;
    bool seen[OPT_COUNT];
    Err *err;
} Reader;

static mpr_status bad_yaml(Reader *r, const char *what, const char *key)
{
    mpri_err_set(r->err, MPR_E_USAGE, "line %zu: %s%s%s%s", r->parser.mark.line + 1, key ? "'" : "",
                 key ? mpri_err_name(key) : "", key ? "': " : "", what);
    return mpri_err_advice(r->err, "write one 'name: value' a line, names as in mpr-train --help");
}

static mpr_status next(Reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return MPR_OK;
    mpri_err_set(r->err, MPR_E_USAGE, "line %zu: not YAML: %s", r->parser.problem_mark.line + 1,
                 r->parser.problem ? r->parser.problem : "unreadable");
    return mpri_err_advice(r->err, "write one 'name: value' a line");
}

static bool plain_scalar(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT && !e->data.scalar.tag &&
           strlen((const char *)e->data.scalar.value) == e->data.scalar.length;
}

static bool is_null(const yaml_event_t *e)
{
    const char *s = (const char *)e->data.scalar.value;
    return e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*s || !strcmp(s, "~") || !strcasecmp(s, "null"));
}

static mpr_status set(Reader *r, const char *key)
{
    size_t line = r->event.start_mark.line + 1;
    mpr_status status = mpri_options_set(r->o, key, (const char *)r->event.data.scalar.value,
                                         OPTION_FILE, r->err);
    if (status != MPR_OK) mpri_err_where(r->err, "line %zu", line);
    return status;
}

/* Keys for the program around the trainer, which reads them itself; one file serves both. */
static bool of_program(const char *key)
{
    static const char *const keys[] = {"device", "threads", "json",  "quiet",
                                       "verbose", "color",  "no-progress", "no-cuda-graph",
                                       "cuda-tune"};
    char name[32];
    size_t n = 0;
    for (; key[n] && n + 1 < sizeof(name); n++) name[n] = key[n] == '_' ? '-' : key[n];
    name[n] = 0;
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        if (!strcmp(name, keys[i])) return true;
    return false;
}

static mpr_status skip_value(Reader *r, const char *key)
{
    TRY(next(r));
    return plain_scalar(&r->event) ? MPR_OK : bad_yaml(r, "the value must be one number or text", key);
}

static mpr_status read_value(Reader *r, const char *key)
{
    TRY(next(r));
    if (plain_scalar(&r->event)) return is_null(&r->event) ? MPR_OK : set(r, key);
    if (r->event.type != YAML_SEQUENCE_START_EVENT || r->event.data.sequence_start.tag)
        return bad_yaml(r, "the value must be a number, a text or a list of them", key);
    for (;;) {
        TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) return MPR_OK;
        if (!plain_scalar(&r->event))
            return bad_yaml(r, "items of a list must be numbers or texts", key);
        TRY(set(r, key));
    }
}

static mpr_status read_entry(Reader *r)
{
    char key[256];
    if (!plain_scalar(&r->event) || r->event.data.scalar.length >= sizeof(key))
        return bad_yaml(r, "an option name is expected", NULL);
    strcpy(key, (const char *)r->event.data.scalar.value);
    int id = mpri_option_find(key);
    if (id >= 0 && r->seen[id])
        return bad_yaml(r, "the option is there twice", mpri_option_row(id)->name);
    if (id >= 0) r->seen[id] = true;
    else if (of_program(key)) return skip_value(r, key);
    else return set(r, key); /* names the nearest option */
    return read_value(r, key);
}

static mpr_status read_document(Reader *r)
{
    TRY(next(r)); /* stream start */
    TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) return MPR_OK;
    TRY(next(r));
    if (plain_scalar(&r->event) && is_null(&r->event)) return MPR_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return bad_yaml(r, "a mapping of option names to values is expected", NULL);
    for (;;) {
        TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        TRY(read_entry(r));
    }
    TRY(next(r)); /* document end */
    TRY(next(r));
    return r->event.type == YAML_STREAM_END_EVENT ? MPR_OK : bad_yaml(r, "a second document", NULL);
}

mpr_status mpri_options_load(mpr_trainer_options *o, const char *file, Err *err)
{
    FILE *f = fopen(file, "rbe");
    if (!f) {
        mpri_err_set(err, MPR_E_IO, "cannot open '%s': %s", mpri_err_name(file), strerror(errno));
        return mpri_err_advice(err, "check the path of the configuration file");
    }
    Reader r = {.o = o, .err = err};
    mpr_status status;
    if (yaml_parser_initialize(&r.parser)) {
        yaml_parser_set_input_file(&r.parser, f);
        status = read_document(&r);
        yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
    } else {
        status = mpri_err_nomem(err, 0);
    }
    fclose(f);
    if (status != MPR_OK) mpri_err_where(err, "%s", mpri_err_name(file));
    return status;
}

#endif
