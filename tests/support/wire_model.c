/* Writing models for the tests. */
#include "tests/support/wire_model.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/ir/text_form.h"

Wire wm_begin(void)
{
    Wire w;
    mpri_text_init(&w, mpri_alloc_default());
    return w;
}

void wm_end(Wire *parent, uint32_t number, Wire *message)
{
    mpri_wire_put_bytes(parent, number, message->text ? message->text : "", message->len);
    mpri_text_free(message);
}

void wm_int(Wire *w, uint32_t number, int64_t v)
{
    mpri_wire_put_tag(w, number, WIRE_VARINT);
    mpri_wire_put_varint(w, (uint64_t)v);
}

void wm_str(Wire *w, uint32_t number, const char *s)
{
    mpri_wire_put_bytes(w, number, s, strlen(s));
}

void wm_f32(Wire *w, uint32_t number, float v)
{
    mpri_wire_put_tag(w, number, WIRE_FIXED32);
    mpri_text_bytes(w, &v, sizeof v);
}

static Wire attr(const char *name, int type)
{
    Wire a = wm_begin();
    wm_str(&a, 1, name);
    wm_int(&a, 20, type);
    return a;
}

void wm_attr_int(Wire *node, const char *name, int64_t v)
{
    Wire a = attr(name, 2);
    wm_int(&a, 3, v);
    wm_end(node, 5, &a);
}

void wm_attr_float(Wire *node, const char *name, float v)
{
    Wire a = attr(name, 1);
    wm_f32(&a, 2, v);
    wm_end(node, 5, &a);
}

void wm_attr_str(Wire *node, const char *name, const char *v)
{
    Wire a = attr(name, 3);
    wm_str(&a, 4, v);
    wm_end(node, 5, &a);
}

void wm_attr_ints(Wire *node, const char *name, int n, const int64_t *v)
{
    Wire a = attr(name, 7);
    for (int i = 0; i < n; i++) wm_int(&a, 8, v[i]);
    wm_end(node, 5, &a);
}

static void put_names(Wire *node, uint32_t number, const char *names)
{
    while (*names) {
        size_t n = strcspn(names, " ");
        bool empty = n == 1 && names[0] == '_';
        mpri_wire_put_bytes(node, number, names, empty ? 0 : n);
        names += n;
        while (*names == ' ') names++;
    }
}

Wire wm_node(const char *op, const char *name, const char *inputs, const char *outputs)
{
    Wire n = wm_begin();
    put_names(&n, 1, inputs);
    put_names(&n, 2, outputs);
    wm_str(&n, 3, name);
    const char *colon = strchr(op, ':');
    wm_str(&n, 4, colon ? colon + 1 : op);
    if (colon) mpri_wire_put_bytes(&n, 7, op, (size_t)(colon - op));
    return n;
}

void wm_add_node(Wire *graph, const char *op, const char *name, const char *inputs,
                 const char *outputs)
{
    Wire n = wm_node(op, name, inputs, outputs);
    wm_end(graph, 1, &n);
}

static int64_t product(const int64_t *dims)
{
    int64_t n = 1;
    for (; *dims >= 0; dims++) n *= *dims;
    return n;
}

Wire wm_tensor(const char *name, int type, const int64_t *dims, const void *raw, size_t n)
{
    Wire t = wm_begin();
    for (; *dims >= 0; dims++) wm_int(&t, 1, *dims);
    wm_int(&t, 2, type);
    wm_str(&t, 8, name);
    if (raw) mpri_wire_put_bytes(&t, 9, raw, n);
    return t;
}

void wm_add_f32(Wire *graph, const char *name, const int64_t *dims, const float *v)
{
    Wire t = wm_tensor(name, MPR_FLOAT32, dims, v, (size_t)product(dims) * 4);
    wm_end(graph, 5, &t);
}

void wm_add_i64(Wire *graph, const char *name, const int64_t *dims, const int64_t *v)
{
    Wire t = wm_tensor(name, MPR_INT64, dims, v, (size_t)product(dims) * 8);
    wm_end(graph, 5, &t);
}

void wm_value(Wire *graph, uint32_t number, const char *name, int type, const int64_t *dims)
{
    Wire v = wm_begin(), t = wm_begin(), tensor = wm_begin();
    wm_int(&tensor, 1, type);
    if (dims) {
        Wire shape = wm_begin();
        for (; *dims != -99; dims++) {
            Wire dim = wm_begin();
            char symbol[16];
            snprintf(symbol, sizeof symbol, "d%d", (int)-*dims);
            if (*dims >= 0) wm_int(&dim, 1, *dims);
            else wm_str(&dim, 2, symbol);
            wm_end(&shape, 1, &dim);
        }
        wm_end(&tensor, 2, &shape);
    }
    wm_end(&t, 1, &tensor);
    wm_str(&v, 1, name);
    wm_end(&v, 2, &t);
    wm_end(graph, number, &v);
}

Wire wm_model(Wire *graph, int64_t ir, int64_t opset)
{
    Wire m = wm_begin(), set = wm_begin();
    wm_int(&m, 1, ir);
    wm_end(&m, 7, graph);
    wm_int(&set, 2, opset);
    wm_end(&m, 8, &set);
    return m;
}

/* ---- files */

static char folder[64];

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)flag;
    (void)ftw;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *wm_folder(void)
{
    if (folder[0]) return folder;
    strcpy(folder, "/tmp/mpr-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    atexit(remove_folder);
    return folder;
}

const char *wm_write(const char *name, const void *bytes, size_t n)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", wm_folder(), name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    return path;
}

const char *wm_write_model(const char *name, Wire *model)
{
    assert_false(model->failed);
    const char *path = wm_write(name, model->text, model->len);
    mpri_text_free(model);
    return path;
}

void *wm_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    void *p = malloc(*n + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

/* ---- import */

ImportedModel *wm_import(const char *path, const ImportOptions *o, Err *err)
{
    ImportedModel *m = NULL;
    mpri_err_clear(err);
    mpr_status status = mpri_import_file(path, o, &m, err);
    assert_int_equal(status, err->code);
    assert_true((status == MPR_OK) == (m != NULL));
    return m;
}

ImportedModel *wm_import_ok(const char *path)
{
    Err err;
    ImportedModel *m = wm_import(path, NULL, &err);
    assert_ok(err.code, &err);
    mpri_err_clear(&err);
    assert_ok(mpri_graph_validate(m->graph, "import", &err), &err);
    return m;
}

char *wm_graph_text(const ImportedModel *m)
{
    Text t;
    Err err;
    mpri_err_clear(&err);
    mpri_text_init(&t, mpri_alloc_default());
    assert_ok(mpri_graph_print(m->graph, &t, &err), &err);
    char *copy = strdup(t.text);
    mpri_text_free(&t);
    return copy;
}

const Param *wm_param(const ImportedModel *m, const char *name)
{
    int i = mpri_graph_param_of(m->graph, name);
    if (i < 0) print_error("no parameter '%s'\n", name);
    assert_true(i >= 0);
    return &m->graph->params[i];
}
