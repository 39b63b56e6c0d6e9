/* Re-encoding single messages of the source with one thing changed and everything else byte for
 * byte. */
#ifndef MPRI_IMPORTER_ENCODE_H
#define MPRI_IMPORTER_ENCODE_H

#include "importer/source.h"

typedef struct TensorChange {
    uint32_t number; /* field number of the tensor in its parent: 5 everywhere */
    const void *raw;
    size_t n;          /* not NULL: becomes raw_data, external references go */
    int typed_field;   /* not 0: values of this typed storage, as one packed field … */
    int64_t data_type; /* … of this element type, taken from `values` (its own type, contiguous) */
    const void *values;
    int64_t elements;
    const char *location; /* not NULL: new location of the external data; a checksum key goes */
} TensorChange;

/* The tensor with the change, tag and length included. */
void mpri_encode_tensor(const Source *s, const SourceField *t, const TensorChange *c, Text *out);
/* A new initializer field for the main graph: dims, data_type, name, raw_data. */
void mpri_encode_new_tensor(const char *name, int64_t data_type, int rank, const int64_t *dims,
                            const void *raw, size_t n, Text *out);
/* A graph input field that declares a tensor: needed for new initializers before IR 4. */
void mpri_encode_new_input(const char *name, int64_t data_type, int rank, const int64_t *dims,
                           Text *out);
/* The node with other names of inputs: names[k] replaces input k, NULL keeps it. */
void mpri_encode_node_inputs(const Source *s, const SourceField *node, const char *const *names,
                             int n, Text *out);
/* The field `outer` with the field `inner` (somewhere in it, spans of the source) replaced by other
 * bytes. */
void mpri_encode_outer(const Source *s, uint32_t number, Span outer_body, Span inner_tagged,
                       const Text *inner, Text *out);

#endif
