/* The way in, as a list one can read aloud. */
#include "importer/importer.h"

#include <string.h>

#include "importer/build.h"
#include "importer/file.h"
#include "importer/inline.h"
#include "importer/params.h"
#include "importer/prescan.h"
#include "importer/tensors.h"
#include "runtime/op/ops.h"

/* ---- memory of protobuf-c: bump allocation under the metadata budget */

static void *pb_alloc(void *import, size_t size)
{
    Import *im = import;
    void *p = mpri_arena_alloc(&im->d->proto, size);
    im->budget_hit |= p == NULL;
    return p;
}

static void pb_free(void *import, void *p)
{
    (void)import;
    (void)p;
}

/* ---- life of a model */

static mpr_status create_model(const char *path, const Alloc *alloc, ImportedModel **out, Err *err)
{
    ImportedModel *m = mpri_alloc(alloc, sizeof *m, 16);
    *out = m;
    if (!m) return mpri_err_nomem(err, sizeof *m);
    memset(m, 0, sizeof *m);
    mpri_arena_init(&m->arena, alloc, 0);
    m->detail = ARENA_NEW(&m->arena, ImportDetail);
    m->path = mpri_arena_strdup(&m->arena, path);
    m->names = mpri_intern_create(&m->arena);
    if (m->detail) mpri_arena_init(&m->detail->proto, alloc, 0);
    if (!m->detail || !m->path || !m->names) return mpri_err_nomem(err, sizeof *m);
    m->graph = mpri_graph_create(&m->arena, m->names, mpri_op_table());
    return m->graph ? MPR_OK : mpri_err_nomem(err, sizeof(Graph));
}

void mpri_import_destroy(ImportedModel *m, const Alloc *alloc)
{
    if (!m) return;
    mpri_source_close(m->source);
    if (m->detail) mpri_arena_destroy(&m->detail->proto);
    mpri_arena_destroy(&m->arena);
    mpri_free(alloc, m);
}

/* ---- the way in */

static mpr_status read_file(Import *im, const char *path, Err *err)
{
    const ImportOptions *o = im->o;
    Arena *arena = &im->m->arena;
    TRY(o->image ? mpri_source_image(path, o->image, o->image_size, arena, &im->m->source, err)
                 : mpri_source_open(path, arena, &im->m->source, err));
    im->src = im->m->source;
    if (im->src->size > 0) TRY(mpri_source_recognise(im->src, err));
    TRY(mpri_prescan(im->src->bytes, im->src->size, &im->limits, im->alloc, err));
    return mpri_source_index(im->src, &im->m->arena, err);
}

static mpr_status expand(Import *im, Scope *scope, Err *err)
{
    Functions functions;
    bool changed = false;
    TRY(mpri_functions_check(im, &functions, err));
    TRY(mpri_inline(im, &functions, scope, &changed, err));
    im->n_functions = 0; /* checked, and no longer called */
    return changed ? mpri_scope_check(im, scope, err) : MPR_OK;
}

static mpr_status import(Import *im, const char *path, Err *err)
{
    Scope scope;
    Ties ties;
    TRY(read_file(im, path, err));
    TRY(mpri_import_unpack(im, err));
    TRY(mpri_import_tensors(im, err));
    TRY(mpri_source_unchanged(im->src, err));
    TRY(mpri_scope_check(im, &scope, err));
    TRY(expand(im, &scope, err));
    TRY(mpri_ties_find(im, &scope, &ties, err));
    im->m->graph->name = im->graph_name;
    TRY(mpri_build_graph(im, &scope, &ties, err));
    return mpri_params_find(im, &scope, &ties, err);
}

mpr_status mpri_import_file(const char *path, const ImportOptions *o, ImportedModel **out, Err *err)
{
    static const ImportOptions none;
    static const Log silent;
    Import im = {.o = o ? o : &none};
    im.alloc = im.o->alloc ? im.o->alloc : mpri_alloc_default();
    im.log = im.o->log ? im.o->log : &silent;
    im.limits = mpri_limits_fill(im.o->limits);
    im.pb = (ProtobufCAllocator){pb_alloc, pb_free, &im};
    *out = NULL;
    mpri_arena_init(&im.scratch, im.alloc, 0);
    mpr_status status = create_model(path, im.alloc, &im.m, err);
    if (status == MPR_OK) {
        im.d = im.m->detail;
        im.d->proto.limit = (size_t)im.limits.metadata_bytes;
        im.names = im.m->names;
        status = import(&im, path, err);
    }
    mpri_arena_destroy(&im.scratch);
    if (status == MPR_OK) {
        *out = im.m;
        return MPR_OK;
    }
    mpri_err_where(err, "%s", mpri_err_name(path));
    mpri_import_destroy(im.m, im.alloc);
    return status;
}
