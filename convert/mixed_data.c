/* Where tensor data lie in the written model: they stay where they were, move to the file beside
 * the output, or into the model. A data file of the input goes along as it is when none of its
 * contents change. */
#include <string.h>
#include <sys/stat.h>

#include "convert/mixed_state.h"
#include "importer/wire.h"

enum { T_FLOATS = 4, T_INTS = 5, T_RAW = 9, T_EXTERNAL = 13, T_WHERE = 14 };
enum { PAGE = 4096, LEAST_OUTSIDE = 1024 };

static bool is_external(const Tree *t)
{
    return mpri_tree_int(t, T_WHERE, 0) == 1;
}

static void put_entry(Mixed *c, Tree *t, int at, const char *key, const char *value)
{
    TreeField *f = mpri_tree_insert(&c->pool, t, at, T_EXTERNAL, WIRE_BYTES);
    f->tree = mpri_tree_new(&c->pool);
    mpri_tree_put_text(&c->pool, f->tree, 1, key);
    mpri_tree_put_text(&c->pool, f->tree, 2, value);
}

static void add_data(Mixed *c, Piece piece)
{
    mpri_pool_grow(&c->pool, &c->data, c->n_data, &c->cap_data, sizeof *c->data);
    c->data[c->n_data++] = piece;
    c->data_size += piece.n;
}

/* Where the contents of a tensor lie outside; false when they cannot be had. */
static mpr_status locate(Mixed *c, const Tree *t, const uint8_t **bytes, size_t *n)
{
    const char *location = "", *name = mpri_tree_text(&c->pool, t, 8);
    int64_t offset = 0, length = -1;
    const SourceMap *map;
    for (int i = 0; i < t->n; i++) {
        if (t->f[i].number != T_EXTERNAL || !t->f[i].tree) continue;
        const char *key = mpri_tree_text(&c->pool, t->f[i].tree, 1);
        const char *value = mpri_tree_text(&c->pool, t->f[i].tree, 2);
        if (!strcmp(key, "location")) location = value;
        if (!strcmp(key, "offset")) (void)mpri_parse_i64(value, &offset);
        if (!strcmp(key, "length")) (void)mpri_parse_i64(value, &length);
    }
    TRY(mpri_source_external(c->given->source, c->pool.arena, name, location, &map, c->err));
    if (offset < 0 || (size_t)offset > map->size) offset = (int64_t)map->size;
    if (length < 0 || (size_t)length > map->size - (size_t)offset)
        length = (int64_t)(map->size - (size_t)offset);
    *bytes = map->bytes + offset;
    *n = (size_t)length;
    return MPR_OK;
}

static void move_out(Mixed *c, Tree *t, Piece contents)
{
    static const uint8_t zeros[PAGE];
    size_t gap = (PAGE - c->data_size % PAGE) % PAGE;
    int at = t->n;
    contents.source = c->given->source;
    if (gap) add_data(c, (Piece){.bytes = zeros, .n = gap});
    for (int i = t->n - 1; i >= 0; i--) {
        uint32_t k = t->f[i].number;
        if (k != T_EXTERNAL && k != T_RAW && k != T_WHERE && k != T_FLOATS && k != T_INTS) continue;
        mpri_tree_remove(t, i);
        at = i;
    }
    put_entry(c, t, at, "location", c->data_name);
    put_entry(c, t, at + 1, "offset", mpri_pool_print(&c->pool, "%zu", c->data_size));
    put_entry(c, t, at + 2, "length", mpri_pool_print(&c->pool, "%zu", contents.n));
    mpri_tree_insert(&c->pool, t, at + 3, T_WHERE, WIRE_VARINT)->value = 1;
    add_data(c, contents);
}

static void move_in(Mixed *c, Tree *t, const uint8_t *bytes, size_t n)
{
    for (int i = t->n - 1; i >= 0; i--)
        if (t->f[i].number == T_EXTERNAL || t->f[i].number == T_WHERE) mpri_tree_remove(t, i);
    TreeField *raw = mpri_tree_add(&c->pool, t, T_RAW, WIRE_BYTES);
    raw->bytes = bytes;
    raw->len = n;
}

static bool same_file(const Mixed *c, const char *path, const SourceMap *map)
{
    struct stat a, b;
    Source *there;
    Err err = {0};
    if (fstat(map->fd, &a) == 0 && stat(path, &b) == 0 && a.st_dev == b.st_dev &&
        a.st_ino == b.st_ino)
        return true;
    if (mpri_source_open(path, c->pool.arena, &there, &err) != MPR_OK) return false;
    bool same = there->size == map->size &&
                mpri_source_same(there, there->bytes, c->given->source, map->bytes, map->size);
    mpri_source_close(there);
    return same;
}

/* The file of a tensor goes along whole, under its own name, where that is free or holds the same:
 * false when it cannot. */
static bool copy_file(Mixed *c, const Tree *t)
{
    const char *location = "";
    const SourceMap *map;
    struct stat st;
    Err err = {0};
    for (int i = 0; i < t->n; i++)
        if (t->f[i].number == T_EXTERNAL && t->f[i].tree &&
            !strcmp(mpri_tree_text(&c->pool, t->f[i].tree, 1), "location"))
            location = mpri_tree_text(&c->pool, t->f[i].tree, 2);
    for (int i = 0; i < c->n_copies; i++)
        if (!strcmp(c->copies[i].location, location)) return c->copies[i].map;
    mpri_pool_grow(&c->pool, &c->copies, c->n_copies, &c->cap_copies, sizeof *c->copies);
    DataCopy *copy = &c->copies[c->n_copies++];
    *copy = (DataCopy){.location = location, .stage.dir = -1};
    if (strchr(location, '/') || !strcmp(location, c->name) || !strcmp(location, c->data_name) ||
        mpri_source_external(c->given->source, c->pool.arena, "", location, &map, &err) != MPR_OK)
        return false;
    copy->path = mpri_pool_print(&c->pool, "%s%s", c->folder, location);
    if (c->o->dry_run || stat(copy->path, &st) != 0) copy->fresh = true;
    else if (!same_file(c, copy->path, map)) return false;
    copy->map = map;
    return true;
}

/* Contents that are stored as numbers of the message. */
static bool numbers(Mixed *c, const Tree *t, Piece *out)
{
    MixTensor m;
    if (!mpri_tree_find(t, T_FLOATS) && !mpri_tree_find(t, T_INTS)) return false;
    if (!mpri_mix_tensor(&c->mix, t, &m)) return false;
    *out = (Piece){.bytes = m.data, .n = (size_t)m.n * mpri_dtype_size(m.type)};
    return true;
}

static mpr_status place_tensor(Mixed *c, Tree *t, bool out)
{
    Piece inside = {.n = 0};
    TreeField *raw = mpri_tree_find(t, T_RAW);
    bool never = c->o->external && !strcmp(c->o->external, "never");
    if (is_external(t)) {
        const uint8_t *bytes;
        size_t n;
        if (c->verbatim && copy_file(c, t)) return MPR_OK;
        TRY(locate(c, t, &bytes, &n));
        if (never) move_in(c, t, bytes, n);
        else move_out(c, t, (Piece){.bytes = bytes, .n = n});
        return MPR_OK;
    }
    if (raw) inside = (Piece){.bytes = raw->bytes, .n = raw->len, .maker = raw->maker};
    if ((out || (t->outside && !never)) && (raw || numbers(c, t, &inside)) &&
        inside.n >= LEAST_OUTSIDE)
        move_out(c, t, inside);
    return MPR_OK;
}

static mpr_status place(Mixed *c, Tree *t, bool tensor, bool out)
{
    if (tensor) return place_tensor(c, t, out);
    for (int i = 0; i < t->n; i++)
        if (t->f[i].tree) TRY(place(c, t->f[i].tree, t->f[i].tree->tensor, out));
    return MPR_OK;
}

mpr_status mpri_mixed_place(Mixed *c, bool out)
{
    return place(c, c->mix.model, false, out);
}
