/* mpr-convert: decide, write beside, check by importing what was written, rename. */
#include "convert/convert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/write.h"
#include "importer/file.h"
#include "importer/wire.h"

enum { OPSET_DOMAIN = 1, OPSET_VERSION = 2 };

/* Version of the default domain in the file; 0 when it is not imported. */
static int64_t default_opset(const Source *s)
{
    WireField domain, version;
    for (int i = 0; i < s->n_opset_imports; i++) {
        Span span = s->opset_imports[i].body;
        bool named = mpri_wire_find(s->bytes, span, OPSET_DOMAIN, &domain) && domain.body.len &&
                     !(domain.body.len == 7 && !memcmp(s->bytes + domain.body.at, "ai.onnx", 7));
        if (!named && mpri_wire_find(s->bytes, span, OPSET_VERSION, &version)) return (int64_t)version.value;
    }
    return 0;
}

/* bfloat16 is a type of ONNX since opset 13. */
static mpr_status check_opset(const ImportedModel *m, DType to, Err *err)
{
    int64_t opset = default_opset(m->source);
    if (to != MPR_BFLOAT16 || opset >= 13) return MPR_OK;
    mpri_err_set(err, MPR_E_OPSET, "bfloat16 needs opset 13 or newer, the model has opset %lld", (long long)opset);
    return mpri_err_advice(err, "export the model at opset 13 or newer, or use --to fp16");
}

static mpr_status check_target(const ImportedModel *m, const char *path, Err *err)
{
    struct stat from, to;
    if (stat(m->path, &from) == 0 && stat(path, &to) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino) {
        mpri_err_set(err, MPR_E_USAGE, "the output %s is the model itself", mpri_err_name(path));
        return mpri_err_advice(err, "write to another file");
    }
    return MPR_OK;
}

/* The result must be a model that this program reads, with types that agree at every node. */
static mpr_status check_result(const char *path, const ConvertOptions *o, Err *err)
{
    ImportOptions io = {.alloc = o->alloc};
    ImportedModel *m = NULL;
    mpr_status st = mpri_import_file(path, &io, &m, err);
    if (st == MPR_OK) st = mpri_infer_graph(m->graph, err);
    mpri_import_destroy(m, o->alloc);
    return st == MPR_OK ? MPR_OK : mpri_err_where(err, "the converted model");
}

/* External data lie beside the model: beside the converted one as well. */
static mpr_status copy_external(const ImportedModel *m, const char *path, Arena *arena, Err *err)
{
    struct stat from, to;
    const char *slash = strrchr(path, '/');
    const char *folder = slash ? mpri_arena_printf(arena, "%.*s", (int)(slash - path + 1), path) : "./";
    if (!folder) return mpri_err_nomem(err, strlen(path));
    bool same = stat(m->source->folder, &from) == 0 && stat(folder, &to) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino;
    for (int i = 0; i < m->source->n_tensors && !same; i++) {
        const SourceTensor *t = &m->source->tensors[i];
        const SourceMap *map;
        bool seen = !t->external || !t->location;
        for (int k = 0; k < i && !seen; k++) seen = m->source->tensors[k].external && !strcmp(m->source->tensors[k].location, t->location);
        if (seen) continue;
        char *target = mpri_arena_printf(arena, "%s%s", folder, t->location);
        if (!target) return mpri_err_nomem(err, strlen(folder));
        TRY(mpri_source_external(m->source, arena, t->name, t->location, &map, err));
        TRY(mpri_write_file_atomic(target, map->bytes, map->size, err));
    }
    return MPR_OK;
}

static mpr_status write_checked(const ImportedModel *m, const char *path, const Text *bytes, const ConvertOptions *o, Arena *arena, Err *err)
{
    char *aside = mpri_arena_printf(arena, "%s.unchecked-%ld", path, (long)getpid());
    if (!aside) return mpri_err_nomem(err, strlen(path) + 32);
    TRY(copy_external(m, path, arena, err));
    TRY(mpri_write_file_atomic(aside, bytes->text ? bytes->text : "", bytes->len, err));
    mpr_status st = check_result(aside, o, err);
    if (st == MPR_OK && rename(aside, path) != 0)
        st = mpri_err_set(err, MPR_E_IO, "cannot rename the result to %s: %s", mpri_err_name(path), strerrordesc_np(errno));
    if (st != MPR_OK) unlink(aside);
    return st;
}

mpr_status mpri_convert_file(const ImportedModel *m, const char *path, const ConvertOptions *o, ConvertResult *r, Err *err)
{
    Arena arena;
    Decisions d = {0};
    Text out;
    *r = (ConvertResult){0};
    TRY(check_opset(m, o->to, err));
    if (path) TRY(check_target(m, path, err));
    mpri_arena_init(&arena, o->alloc, 0);
    mpri_text_init(&out, o->alloc);
    mpr_status st = mpri_convert_decide(m, o, &arena, &d, err);
    r->nodes_low = d.nodes_low;
    r->nodes_fp32 = d.nodes_fp32;
    if (st == MPR_OK) st = mpri_convert_write(m, &d, o, &arena, &out, r, err);
    if (st == MPR_OK && !o->dry_run) st = write_checked(m, path, &out, o, &arena, err);
    mpri_text_free(&out);
    mpri_arena_destroy(&arena);
    return st;
}
