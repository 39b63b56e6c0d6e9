/* A whole import, and the binding of what it gives: every symbolic dim is 2. */
#include <string.h>

#include "importer/importer.h"
#include "kernels/ref/ref.h"
#include "passes/pass.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/onnx_numbers.h"

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

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);

/* Every second time one or two integers become extreme ones, or differ a little; else bytes change. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    static const int64_t extremes[] = {INT64_MIN, INT64_MIN + 1, INT64_MIN / 2, -((int64_t)1 << 32), INT32_MIN, -2, -1, 0, 1, 2, 8,
                                       65536, INT32_MAX, (int64_t)1 << 31, 3037000500, (int64_t)1 << 56, INT64_MAX / 2, INT64_MAX};
    enum { N = sizeof extremes / sizeof *extremes };
    Onnx__ModelProto *m = seed & 1 ? onnx__model_proto__unpack(NULL, size, data) : NULL;
    if (!m) return LLVMFuzzerMutate(data, size, most);
    OnnxNumbers x = numbers_of_model(m);
    uint64_t random = seed;
    for (int turn = seed & 2 ? 2 : 1; turn && x.n; turn--) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        void *at = x.at[(random >> 33) % (uint64_t)x.n];
        uint64_t choice = random >> 20 & 31;
        int64_t v;
        memcpy(&v, at, sizeof v);
        v = choice < N ? extremes[choice] : (int64_t)((uint64_t)v + choice - 24);
        memcpy(at, &v, sizeof v);
    }
    size_t packed = onnx__model_proto__get_packed_size(m);
    if (packed <= most && x.n) size = onnx__model_proto__pack(m, data);
    onnx__model_proto__free_unpacked(m, NULL);
    return packed <= most && x.n ? size : LLVMFuzzerMutate(data, size, most);
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
