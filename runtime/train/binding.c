/* Binding symbolic dims, see binding.h. */
#include "runtime/train/binding.h"

#include <stdio.h>
#include <string.h>

#include "runtime/base/text.h"

static mpr_status wrong_rank(const Graph *g, const Value *v, int rank, const int64_t *dims,
                             Err *err)
{
    char have[256], want[256];
    Shape shape = {.rank = rank};
    if (rank) memcpy(shape.d, dims, (size_t)rank * sizeof(*dims));
    mpri_shape_print(g->sym, &shape, have, sizeof(have));
    mpri_shape_print(g->sym, &v->shape, want, sizeof(want));
    mpri_err_set(err, MPR_E_SHAPE, "input '%s' has shape %s, the model says %s",
                 mpri_err_name(v->name), have, want);
    return mpri_err_advice(err, "only the symbolic dims may change from batch to batch");
}

/* The data's sizes: also where one symbol more than the data can solve stands in the model's. */
static mpr_status take_shape(Value *v, int rank, const int64_t *dims)
{
    v->shape.rank = rank;
    for (int d = 0; d < rank; d++) v->shape.d[d] = dims[d];
    return MPR_OK;
}

mpr_status mpri_bind_input(const Graph *g, DimBinding *b, Value *v, int rank, const int64_t *dims,
                           Err *err)
{
    if (v->shape.rank < 0) return take_shape(v, rank, dims);
    if (v->shape.rank != rank) return wrong_rank(g, v, rank, dims, err);
    for (int d = 0; d < rank; d++) {
        if (mpri_dim_bind(b, v->shape.d[d], dims[d])) continue;
        if (mpri_dim_const(v->shape.d[d])) return wrong_rank(g, v, rank, dims, err);
        char text[128], have[64] = "";
        mpri_dim_print(g->sym, v->shape.d[d], text, sizeof(text));
        Dim bound = mpri_dim_eval(b, v->shape.d[d]);
        if (mpri_dim_const(bound))
            snprintf(have, sizeof(have), ", which is %lld already", (long long)bound);
        mpri_err_set(err, MPR_E_SHAPE, "input '%s': dim %d is %lld, the model says %s%s",
                     mpri_err_name(v->name), d, (long long)dims[d], mpri_err_name(text), have);
        return mpri_err_advice(err, "give all inputs of one batch the same symbolic dims");
    }
    return take_shape(v, rank, dims);
}

/* The names of all single symbols among the dims of the inputs. */
static bool has_symbol(const Graph *g, const char *name, Text *list)
{
    bool found = false;
    for (int i = 0; i < g->n_inputs; i++) {
        const Shape *s = &g->inputs[i].value->shape;
        for (int d = 0; d < s->rank; d++) {
            char text[256];
            if (mpri_dim_const(s->d[d])) continue;
            mpri_dim_print(g->sym, s->d[d], text, sizeof(text));
            found |= !strcmp(text, name);
            if (list && (!list->len || !strstr(list->text, text)))
                mpri_text_add(list, "%s%s", list->len ? ", " : "", mpri_err_name(text));
        }
    }
    return found;
}

static mpr_status bind_one(const Graph *g, DimBinding *b, const char *option, Err *err)
{
    const char *equal = strchr(option, '=');
    int64_t value = -1;
    char name[256] = "";
    if (equal && (size_t)(equal - option) < sizeof(name))
        memcpy(name, option, (size_t)(equal - option));
    if (!*name || !mpri_parse_i64(equal + 1, &value) || value < 0) {
        mpri_err_set(err, MPR_E_USAGE, "bind '%s': expected is NAME=N with N a whole number from 0",
                     mpri_err_name(option));
        return mpri_err_advice(err, "for example batch=4");
    }
    if (!has_symbol(g, name, NULL)) {
        Text list;
        mpri_text_init(&list, g->arena->alloc);
        has_symbol(g, name, &list);
        mpri_err_set(err, MPR_E_USAGE,
                     "bind '%s': the model's inputs have no symbolic dim '%s'; they have %s",
                     mpri_err_name(option), mpri_err_name(name), list.len ? list.text : "none");
        mpri_text_free(&list);
        return mpri_err_advice(err, "use one of the names listed");
    }
    if (mpri_dim_bind(b, mpri_dim_named(g->sym, name), value)) return MPR_OK;
    mpri_err_set(err, MPR_E_USAGE, "bind '%s': %s has another value already", mpri_err_name(option),
                 mpri_err_name(name));
    return mpri_err_advice(err, "bind each symbol once, in agreement with the inputs");
}

mpr_status mpri_bind_options(const Graph *g, DimBinding *b, const char *const *options, Err *err)
{
    for (; options && *options; options++) TRY(bind_one(g, b, *options, err));
    return MPR_OK;
}
