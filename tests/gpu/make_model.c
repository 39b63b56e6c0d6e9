/* Models to measure with, written as ONNX files with random weights.
 *
 *   gpu_make_model gpt2 OUT.onnx LAYERS WIDTH HEADS VOCABULARY TOKENS     logits of every token
 *   gpu_make_model bert OUT.onnx LAYERS WIDTH HEADS VOCABULARY TOKENS     logits of two classes
 *   gpu_make_model mlp  OUT.onnx LAYERS WIDTH 1 CLASSES FEATURES          Linear and ReLU
 *
 * gpt2 is GPT-2's network (layer norm first, causal attention, the embedding is also the head), bert is
 * BERT's (layer norm last, pooler). GPT-2 124M: 12 768 12 50257 256. BERT-base: 12 768 12 30522 128.
 * Attention is the operator of opset 23; the batch is symbolic, the number of tokens is not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/wire_model.h"

typedef struct Net {
    Wire graph;
    int64_t layers, width, heads, words, tokens;
    uint64_t random;
    int nodes;
    char x[64]; /* the value that the next block reads */
} Net;

static float draw(Net *net) /* uniform, with the variance of initializer_range 0.02 */
{
    net->random ^= net->random << 13;
    net->random ^= net->random >> 7;
    net->random ^= net->random << 17;
    return 0.0346f * ((float)(net->random >> 40) * 0x1p-23f - 1);
}

/* A weight of rows x cols, or with rows 0 a vector of `value`. */
static void weight(Net *net, const char *name, int64_t rows, int64_t cols, float value)
{
    int64_t n = (rows ? rows : 1) * cols, dims[3] = {rows ? rows : cols, rows ? cols : -1, -1};
    float *v = malloc((size_t)n * sizeof *v);
    if (!v) exit(1);
    for (int64_t i = 0; i < n; i++) v[i] = rows ? draw(net) : value;
    wm_add_f32(&net->graph, name, dims, v);
    free(v);
}

typedef struct Attr {
    const char *name;
    int64_t value;
} Attr;

/* A node with a name of its own; attr ends with name NULL. */
static void node(Net *net, const char *op, const char *inputs, const char *output, const Attr *attr)
{
    char name[32];
    snprintf(name, sizeof name, "n%d", net->nodes++);
    Wire n = wm_node(op, name, inputs, output);
    for (; attr && attr->name; attr++) wm_attr_int(&n, attr->name, attr->value);
    GRAPH_ADD_NODE(&net->graph, &n);
}

static void format(char buf[192], const char *form, const char *a, const char *b)
{
    snprintf(buf, 192, form, a, b);
}

/* to = x W + b; its weights are named after `to`. */
static void linear(Net *net, const char *x, const char *to, int64_t in, int64_t out)
{
    char w[192], inputs[192];
    format(w, "%s.weight%s", to, "");
    weight(net, w, in, out, 0);
    format(inputs, "%s %s.weight", x, to);
    format(w, "%s.product%s", to, "");
    node(net, "MatMul", inputs, w, NULL);
    format(w, "%s.bias%s", to, "");
    weight(net, w, 0, out, 0);
    format(inputs, "%s.product %s.bias", to, to);
    node(net, "Add", inputs, to, NULL);
}

static void layer_norm(Net *net, const char *x, const char *to)
{
    char name[192], inputs[256];
    format(name, "%s.weight%s", to, "");
    weight(net, name, 0, net->width, 1);
    format(name, "%s.bias%s", to, "");
    weight(net, name, 0, net->width, 0);
    snprintf(inputs, sizeof inputs, "%s %s.weight %s.bias", x, to, to);
    node(net, "LayerNormalization", inputs, to, (Attr[]){{"axis", -1}, {NULL, 0}});
}

static void add(Net *net, const char *a, const char *b, const char *to)
{
    char inputs[192];
    format(inputs, "%s %s", a, b);
    node(net, "Add", inputs, to, NULL);
}

static const char *at(int layer, const char *what)
{
    static char names[8][64];
    static int next;
    char *name = names[next++ % 8];
    snprintf(name, sizeof names[0], "h.%d.%s", layer, what);
    return name;
}

static void attention(Net *net, int layer, const char *x, bool causal)
{
    char inputs[256];
    linear(net, x, at(layer, "q"), net->width, net->width);
    linear(net, x, at(layer, "k"), net->width, net->width);
    linear(net, x, at(layer, "v"), net->width, net->width);
    snprintf(inputs, sizeof inputs, "%s %s %s", at(layer, "q"), at(layer, "k"), at(layer, "v"));
    node(net, "Attention", inputs, at(layer, "context"),
         (Attr[]){{"q_num_heads", net->heads}, {"kv_num_heads", net->heads}, {"is_causal", causal}, {NULL, 0}});
    linear(net, at(layer, "context"), at(layer, "attention"), net->width, net->width);
}

static void feed_forward(Net *net, int layer, const char *x, const char *approximate)
{
    linear(net, x, at(layer, "up"), net->width, 4 * net->width);
    Wire n = wm_node("Gelu", at(layer, "gelu_node"), at(layer, "up"), at(layer, "gelu"));
    wm_attr_str(&n, "approximate", approximate);
    GRAPH_ADD_NODE(&net->graph, &n);
    linear(net, at(layer, "gelu"), at(layer, "down"), 4 * net->width, net->width);
}

static void embed(Net *net)
{
    weight(net, "words", net->words, net->width, 0);
    weight(net, "positions", net->tokens, net->width, 0);
    node(net, "Gather", "words input_ids", "embedded", NULL);
    add(net, "embedded", "positions", "placed");
}

static void gpt2(Net *net)
{
    embed(net);
    strcpy(net->x, "placed");
    for (int i = 0; i < net->layers; i++) {
        layer_norm(net, net->x, at(i, "norm1"));
        attention(net, i, at(i, "norm1"), true);
        add(net, net->x, at(i, "attention"), at(i, "middle"));
        layer_norm(net, at(i, "middle"), at(i, "norm2"));
        feed_forward(net, i, at(i, "norm2"), "tanh");
        add(net, at(i, "middle"), at(i, "down"), at(i, "out"));
        strcpy(net->x, at(i, "out"));
    }
    layer_norm(net, net->x, "last");
    Wire n = wm_node("Transpose", "head_transpose", "words", "head");
    wm_attr_ints(&n, "perm", 2, (const int64_t[]){1, 0});
    GRAPH_ADD_NODE(&net->graph, &n);
    node(net, "MatMul", "last head", "logits", NULL);
    wm_value(&net->graph, 12, "logits", MPR_FLOAT32, (const int64_t[]){-1, net->tokens, net->words, -99});
}

static void bert(Net *net)
{
    embed(net);
    weight(net, "types", 0, net->width, 0);
    add(net, "placed", "types", "typed");
    layer_norm(net, "typed", "first");
    strcpy(net->x, "first");
    for (int i = 0; i < net->layers; i++) {
        attention(net, i, net->x, false);
        add(net, net->x, at(i, "attention"), at(i, "sum1"));
        layer_norm(net, at(i, "sum1"), at(i, "norm1"));
        feed_forward(net, i, at(i, "norm1"), "none");
        add(net, at(i, "norm1"), at(i, "down"), at(i, "sum2"));
        layer_norm(net, at(i, "sum2"), at(i, "norm2"));
        strcpy(net->x, at(i, "norm2"));
    }
    wm_add_i64(&net->graph, "zero", (const int64_t[]){-1}, (const int64_t[]){0});
    char inputs[96];
    snprintf(inputs, sizeof inputs, "%s zero", net->x);
    node(net, "Gather", inputs, "cls", (Attr[]){{"axis", 1}, {NULL, 0}});
    linear(net, "cls", "pooler", net->width, net->width);
    node(net, "Tanh", "pooler", "pooled", NULL);
    linear(net, "pooled", "logits", net->width, 2);
    wm_value(&net->graph, 12, "logits", MPR_FLOAT32, (const int64_t[]){-1, 2, -99});
}

static void mlp(Net *net)
{
    int64_t in = net->tokens;
    strcpy(net->x, "x");
    for (int i = 0; i < net->layers; i++, in = net->width) {
        linear(net, net->x, at(i, "linear"), in, net->width);
        node(net, "Relu", at(i, "linear"), at(i, "relu"), NULL);
        strcpy(net->x, at(i, "relu"));
    }
    linear(net, net->x, "logits", in, net->words);
    wm_value(&net->graph, 12, "logits", MPR_FLOAT32, (const int64_t[]){-1, net->words, -99});
}

static const struct {
    const char *name;
    void (*build)(Net *);
    const char *input;
    int type;
} kinds[] = {{"gpt2", gpt2, "input_ids", MPR_INT64},
             {"bert", bert, "input_ids", MPR_INT64},
             {"mlp", mlp, "x", MPR_FLOAT32}};

int main(int argc, char **argv)
{
    Net net = {.random = 88172645463325252u};
    int k = 0;
    while (k < 3 && (argc != 8 || strcmp(argv[1], kinds[k].name) != 0)) k++;
    if (k == 3) {
        fprintf(stderr, "gpu_make_model gpt2|bert|mlp OUT.onnx LAYERS WIDTH HEADS VOCABULARY TOKENS\n");
        return 2;
    }
    net.layers = atoll(argv[3]), net.width = atoll(argv[4]), net.heads = atoll(argv[5]);
    net.words = atoll(argv[6]), net.tokens = atoll(argv[7]);
    net.graph = wm_begin();
    wm_str(&net.graph, 2, argv[1]);
    kinds[k].build(&net);
    wm_value(&net.graph, 11, kinds[k].input, kinds[k].type, (const int64_t[]){-1, net.tokens, -99});
    Wire model = wm_model(&net.graph, 10, 23);
    FILE *f = fopen(argv[2], "wb");
    bool ok = f && !model.failed && fwrite(model.text, 1, model.len, f) == model.len;
    if (f && fclose(f)) ok = false;
    if (!ok) fprintf(stderr, "%s cannot be written\n", argv[2]);
    mpri_text_free(&model);
    return !ok;
}
