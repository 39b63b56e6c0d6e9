/* YAML through libyaml's events: no anchors, no tags that construct, no nesting beyond one list. */
#include "tools/common/config.h"

#include <errno.h>
#include <string.h>
#include <stdlib.h>
#include <yaml.h>

typedef struct Reader {
    int depth;      /* 0 before the mapping, 1 in it, 2 in a list */
    char key[128];
    bool have_key;
    char seen[128][128];
    int n_seen;
} Reader;

static bool say(char *problem, size_t size, int line, const char *text, const char *detail)
{
    snprintf(problem, size, "line %d: %s%s%s", line, text, detail ? ": " : "", detail ? detail : "");
    return false;
}

static bool seen_before(Reader *r, const char *key)
{
    char name[128];
    snprintf(name, sizeof name, "%.127s", key);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    for (int i = 0; i < r->n_seen; i++)
        if (!strcmp(r->seen[i], name)) return true;
    if (r->n_seen < 128) memcpy(r->seen[r->n_seen++], name, sizeof name);
    return false;
}

static bool on_scalar(Reader *r, const yaml_event_t *e, int line, int (*entry)(void *, const char *, const char *, int),
                      void *user, int *code, char *problem, size_t size)
{
    const char *text = (const char *)e->data.scalar.value;
    if (strlen(text) != e->data.scalar.length) return say(problem, size, line, "a NUL byte in a value", NULL);
    if (e->data.scalar.tag && strncmp((const char *)e->data.scalar.tag, "tag:yaml.org,2002:", 18))
        return say(problem, size, line, "tags are not used here", (const char *)e->data.scalar.tag);
    if (r->depth == 0) return say(problem, size, line, "expected a mapping of flag names to values, found a single value", NULL);
    if (!r->have_key) {
        if (strlen(text) >= sizeof r->key) return say(problem, size, line, "a key longer than 127 bytes", NULL);
        if (seen_before(r, text)) return say(problem, size, line, "the key stands there twice", text);
        strcpy(r->key, text);
        r->have_key = true;
        return true;
    }
    bool null = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!*text || !strcmp(text, "null") || !strcmp(text, "~"));
    if (!null) *code = entry(user, r->key, text, line);
    if (r->depth == 1) r->have_key = false;
    return true;
}

static bool on_event(Reader *r, const yaml_event_t *e, int (*entry)(void *, const char *, const char *, int), void *user,
                     int *code, char *problem, size_t size)
{
    int line = (int)e->start_mark.line + 1;
    switch (e->type) {
    case YAML_ALIAS_EVENT: return say(problem, size, line, "aliases are not used here", NULL);
    case YAML_SCALAR_EVENT: return on_scalar(r, e, line, entry, user, code, problem, size);
    case YAML_MAPPING_START_EVENT:
        if (r->depth > 0) return say(problem, size, line, "expected a value, found a mapping for", r->key);
        r->depth = 1;
        return true;
    case YAML_SEQUENCE_START_EVENT:
        if (r->depth == 0) return say(problem, size, line, "expected a mapping of flag names to values, found a list", NULL);
        if (r->depth == 2 || !r->have_key) return say(problem, size, line, "lists do not nest", NULL);
        r->depth = 2;
        return true;
    case YAML_SEQUENCE_END_EVENT:
        r->depth = 1;
        r->have_key = false;
        return true;
    default: return true;
    }
}

bool config_read(const char *file, int (*entry)(void *user, const char *key, const char *value, int line), void *user,
                 int *code, char *problem, size_t size)
{
    FILE *f = fopen(file, "rbe");
    yaml_parser_t parser;
    yaml_event_t event;
    bool ok = true, end = false;
    Reader *r = calloc(1, sizeof *r);
    if (!f || !r) {
        snprintf(problem, size, "!cannot read the configuration file: %s", strerror(errno));
        if (f) fclose(f);
        free(r);
        return false;
    }
    if (!yaml_parser_initialize(&parser)) {
        snprintf(problem, size, "!no memory");
        fclose(f);
        free(r);
        return false;
    }
    yaml_parser_set_input_file(&parser, f);
    while (ok && !end && !*code) {
        if (!yaml_parser_parse(&parser, &event)) {
            ok = say(problem, size, (int)parser.problem_mark.line + 1, "not valid YAML", parser.problem ? parser.problem : "unreadable");
            break;
        }
        end = event.type == YAML_STREAM_END_EVENT;
        ok = on_event(r, &event, entry, user, code, problem, size);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    fclose(f);
    free(r);
    return ok;
}

void config_print_scalar(FILE *f, const char *text, bool is_string)
{
    if (!text) { fputs("null", f); return; }
    bool plain = *text && !is_string;
    if (is_string && *text) {
        plain = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-") == strlen(text) &&
                ((*text >= 'a' && *text <= 'z') || (*text >= 'A' && *text <= 'Z') || *text == '/');
        static const char *const words[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (!strcasecmp(text, words[i])) plain = false;
    }
    if (plain) { fputs(text, f); return; }
    fputc('"', f);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') fprintf(f, "\\%c", *p);
        else if (*p < 0x20) fprintf(f, "\\x%02x", *p);
        else fputc(*p, f);
    }
    fputc('"', f);
}
