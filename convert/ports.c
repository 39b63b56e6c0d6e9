/* Reference: the operator changelog of ONNX up to opset 28 (onnx.defs). The entries that are not
 * taken from there: operators defined by a body count from where the body is well-typed, so bfloat16
 * Clip from opset 16 (a Where) and SoftmaxCrossEntropyLoss from 22 (NegativeLogLikelihoodLoss), and
 * MeanVarianceNormalization, whose body adds a float, is float only. */
#include "convert/ports.h"

#include <string.h>

static const PortsRow rows[] = {
#define OP(name, since, in, out, ...) {#name, since, in, out, {__VA_ARGS__}},
#include "convert/ports.def"
#undef OP
};

enum { N_ROWS = sizeof rows / sizeof *rows };

const PortsRow *mpri_ports_find(const char *op, int64_t opset)
{
    int low = 0, high = N_ROWS; /* the rows are sorted by name, then opset */
    const PortsRow *found = NULL;
    while (low < high) {
        int mid = (low + high) / 2, c = strcmp(rows[mid].op, op);
        if (c < 0 || (c == 0 && rows[mid].since <= opset)) {
            if (c == 0) found = &rows[mid];
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return found;
}

typedef struct NamesRow {
    const char *op;
    int since;
    const char *names;
} NamesRow;

static const NamesRow names[] = {
#define NAMES(op, since, words) {#op, since, words},
#include "convert/port_names.def"
#undef NAMES
};

const char *mpri_ports_variable(const PortsRow *row, char letter, size_t *n)
{
    const char *word = letter == 'A' ? "T" : "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].since <= row->since && !strcmp(names[i].op, row->op)) word = names[i].names;
    for (char l = 'A'; l < letter && *word; l++) {
        word += strcspn(word, " ");
        word += *word == ' ';
    }
    *n = strcspn(word, " ");
    return word;
}

char mpri_ports_letter(const char *ports, int k, bool *own)
{
    const char *p = ports;
    *own = false;
    for (int i = 0; *p; i++) {
        bool rest = p[1] == '*' || p[1] == '~';
        if (i == k || rest) {
            *own = p[1] == '~';
            return *p;
        }
        p++;
    }
    return '?';
}
