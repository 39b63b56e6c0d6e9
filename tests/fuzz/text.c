/* The text form: what parses prints, and what was printed parses again. */
#include <stdlib.h>
#include <string.h>

#include "runtime/ir/text_form.h"
#include "runtime/op/ops.h"
#include "tests/fuzz/fuzz.h"

static Graph *parse(const char *text, Arena *arena)
{
    Err err;
    Graph *g = NULL;
    mpri_err_clear(&err);
    Intern *names = mpri_intern_create(arena);
    return names && mpri_graph_parse(text, arena, names, mpri_op_table(), &g, &err) == MPR_OK
               ? g
               : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    Arena arena, again;
    Text out;
    Err err;
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    mpri_err_clear(&err);
    mpri_text_init(&out, mpri_alloc_default());
    mpri_arena_init(&arena, mpri_alloc_default(), 0);
    mpri_arena_init(&again, mpri_alloc_default(), 0);
    arena.limit = again.limit = (size_t)64 << 20;
    Graph *g = parse(text, &arena);
    if (g && mpri_graph_print(g, &out, &err) == MPR_OK && !out.failed)
        (void)parse(out.text, &again);
    mpri_text_free(&out);
    mpri_arena_destroy(&again);
    mpri_arena_destroy(&arena);
    free(text);
    return 0;
}
