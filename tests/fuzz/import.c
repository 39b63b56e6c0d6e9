/* A whole import, and the binding of what it gives: every symbolic dim is 2. */
#include <string.h>

#include "importer/importer.h"
#include "kernels/ref/ref.h"
#include "passes/pass.h"
#include "tests/fuzz/fuzz.h"

static void bind(const Graph *from)
{
    static const PassOptions options;
    Arena arena, scratch;
    Err err;
    mpri_err_clear(&err);
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    mpri_arena_init(&scratch, mpri_alloc_default(), 0);
    arena.limit = scratch.limit = (size_t)64 << 20;
    Graph *g = mpri_graph_clone(from, &arena);
    DimBinding *b = g ? mpri_binding_create(&arena, g->sym) : NULL;
    for (int i = 0; b && i < g->n_inputs; i++) {
        const Shape *s = &g->inputs[i].value->shape;
        for (int k = 0; k < s->rank; k++)
            if (!mpri_dim_const(s->d[k])) (void)mpri_dim_bind(b, s->d[k], 2);
    }
    KernelSet ref;
    ref.tables = mpri_ref_tables(&ref.n);
    PassCtx ctx = {.scratch = &scratch,
                   .alloc = mpri_alloc_default(),
                   .o = &options,
                   .ref = &ref,
                   .binding = b};
    if (b && mpri_passes_run(&ctx, STAGE_PREPARE, g, &err) == MPR_OK &&
        mpri_import_check_supported(g, &err) == MPR_OK)
        (void)mpri_passes_run(&ctx, STAGE_BIND, g, &err);
    mpri_arena_destroy(&scratch);
    mpri_arena_destroy(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const mpr_limits limits = {
        .size = sizeof limits, .metadata_bytes = 64 << 20, .nodes = 10000, .trips = 50};
    Err err;
    mpri_err_clear(&err);
    ImportedModel *m = NULL;
    ImportOptions o = {.limits = &limits, .image = data, .image_size = size};
    if (!size || mpri_import_file("/nonexistent/model.onnx", &o, &m, &err) != MPR_OK) return 0;
    bind(m->graph);
    mpri_import_destroy(m, mpri_alloc_default());
    return 0;
}
