/* The types of the ports of ONNX's operators, at every opset. */
#ifndef MPRI_CONVERT_PORTS_H
#define MPRI_CONVERT_PORTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct PortsRow {
    const char *op;
    int since;
    const char *in, *out; /* one letter a port, see ports.def */
    uint16_t vars[4];     /* sets of types of the variables A, B … */
} PortsRow;

enum {
    PORT_FLOAT = 1, PORT_F16 = 2, PORT_BF16 = 4, PORT_OTHER = 8,
    PORT_SEQ = 16,      /* times one of the three */
    PORT_OPTIONAL = 128 /* times one of the three */
};

/* NULL: no operator of ai.onnx at that opset. */
const PortsRow *mpri_ports_find(const char *op, int64_t opset);
/* Letter of port k among "AB*": '?' when there is none, lower case for a fixed type; *own: a port
 * whose type is its own although the letter is shared. */
char mpri_ports_letter(const char *ports, int k, bool *own);
/* What ONNX calls the variable of that letter: *n characters, 0 when it has no name. */
const char *mpri_ports_variable(const PortsRow *row, char letter, size_t *n);

#endif
