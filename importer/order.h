/* A stable topological order. */
#ifndef MPRI_IMPORTER_ORDER_H
#define MPRI_IMPORTER_ORDER_H

#include "runtime/base/arena.h"

typedef struct Edge {
    int from, to;
} Edge;

/* order[0..n): every edge's `from` before its `to`; among nodes that could come next the smallest
 * index goes first, so a list that is already in order stays as it is. *left: nodes that are on or
 * behind a cycle (0 when order is complete; order then holds the rest first). False: out of memory.
 */
bool mpri_order(int n, const Edge *edges, int n_edges, int *order, int *left, Arena *scratch);
/* One cycle among the nodes that order[0..n-left) does not hold: its nodes in order, into
 * cycle[0..max). Returns its length (at least 1; entries beyond max are not stored). 0: out of
 * memory. */
int mpri_order_cycle(int n, const Edge *edges, int n_edges, const int *order, int left, int *cycle,
                     int max, Arena *scratch);

#endif
