/* Writing the list of marks, and a model without what they mark. */
#include "convert/marks.h"

#include <string.h>

#include "convert/decisions.h"
#include "convert/rewrite.h"

void mpri_marks_list(Text *list, const char *name, bool rounds)
{
    if (rounds) mpri_text_put(list, "\\f");
    for (; *name; name++) {
        if (*name == '\n') mpri_text_put(list, "\\n");
        else if (*name == '\\') mpri_text_put(list, "\\\\");
        else mpri_text_bytes(list, name, 1);
    }
    mpri_text_put(list, "\n");
}

mpr_status mpri_marks_strip(Source *s, Arena *arena, void **out, size_t *size, int *n, Err *err)
{
    Pool pool = {.arena = arena};
    Mix m = {.pool = &pool, .source = s};
    *out = NULL;
    if (setjmp(pool.full)) return mpri_err_nomem(err, s->size);
    m.model = mpri_tree_parse(&pool, TREE_MODEL, s->bytes, s->size);
    bool annotated = mpri_decisions_take(&m);
    mpri_rewrite_undo(&m, n);
    if (*n == 0 && !annotated) return MPR_OK;
    *out = mpri_tree_image(&pool, m.model, size);
    return MPR_OK;
}
