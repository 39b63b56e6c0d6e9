/* Rows to ONNX; see little_model.h. */
#include "tests/support/little_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/support/wire_model.h"

void test_little_fill(float *v, int64_t n, float spread)
{
    for (int64_t i = 0; i < n; i++)
        v[i] = spread * (float)((i * 7919 + 104729) % 2003 - 1001) / 1001.0f;
}

static void add_tensor(Wire *g, const LittleTensor *t)
{
    int64_t n = 1;
    for (const int64_t *d = t->dims; *d >= 0; d++) n *= *d;
    float *v = malloc((size_t)(n ? n : 1) * sizeof *v);
    assert_non_null(v);
    if (t->spread != 0) test_little_fill(v, n, t->spread);
    for (int64_t i = 0; i < n && t->spread == 0; i++) v[i] = t->fill;
    wm_add_f32(g, t->name, t->dims, v);
    free(v);
}

/* "name=1,2" */
static void add_attribute(Wire *node, const char *text)
{
    char name[64];
    int64_t v[8];
    int n = 0;
    size_t length = strcspn(text, "=");
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    for (const char *at = text + length; at && *at && n < 8; at = strchr(at + 1, ','))
        v[n++] = strtoll(at + 1, NULL, 10);
    if (n == 1 && strcmp(name, "axes") && strcmp(name, "perm")) wm_attr_int(node, name, v[0]);
    else wm_attr_ints(node, name, n, v);
}

const char *test_little_file(const char *name, const LittleModel *m)
{
    Wire g = wm_begin();
    wm_str(&g, 2, "little");
    for (const LittleNode *n = m->nodes; n->op; n++) {
        Wire node = wm_node(n->op, n->name, n->in, n->out);
        if (n->attr) add_attribute(&node, n->attr);
        GRAPH_ADD_NODE(&g, &node);
    }
    for (const LittleInput *i = m->inputs; i->name; i++)
        wm_value(&g, 11, i->name, (int)i->dtype, i->dims);
    for (const LittleTensor *t = m->tensors; t->name; t++) add_tensor(&g, t);
    wm_value(&g, 12, m->output, MPR_FLOAT32, NULL);
    Wire model = wm_model(&g, 9, 18);
    return wm_write_model(name, &model);
}
