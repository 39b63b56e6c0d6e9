/* Private to runtime/ir: what the files of the graph share. */
#ifndef MPRI_IR_GRAPH_PRIVATE_H
#define MPRI_IR_GRAPH_PRIVATE_H

#include "runtime/ir/graph.h"

/* Room for one more row in an arena array. */
bool mpri_graph_grow(Arena *arena, void **rows, int n, int *cap, size_t size);
/* Register the name of a copied value; link a copied node at the end and register its uses. */
bool mpri_graph_adopt_value(Graph *g, Value *v);
void mpri_graph_adopt_node(Graph *g, Node *n);

#endif
