/* Kahn's algorithm with a heap of the nodes that are ready (A. B. Kahn, CACM 5 (1962) 558). */
#include "importer/order.h"

#include <stdbool.h>
#include <string.h>

typedef struct Adjacency {
    int *first; /* n+1 */
    int *to;
} Adjacency;

static bool build(int n, const Edge *edges, int n_edges, bool reverse, Adjacency *a, Arena *scratch)
{
    a->first = ARENA_ARRAY(scratch, int, (size_t)n + 2);
    a->to = ARENA_ARRAY(scratch, int, n_edges);
    if (!a->first || !a->to) return false;
    for (int i = 0; i < n_edges; i++) a->first[(reverse ? edges[i].to : edges[i].from) + 2]++;
    for (int i = 2; i <= n + 1; i++) a->first[i] += a->first[i - 1];
    for (int i = 0; i < n_edges; i++) {
        int from = reverse ? edges[i].to : edges[i].from;
        a->to[a->first[from + 1]++] = reverse ? edges[i].from : edges[i].to;
    }
    return true;
}

static void heap_push(int *heap, int *n, int v)
{
    int i = (*n)++;
    while (i > 0 && heap[(i - 1) / 2] > v) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = v;
}

static int heap_pop(int *heap, int *n)
{
    int top = heap[0], last = heap[--(*n)], i = 0;
    for (;;) {
        int child = 2 * i + 1;
        if (child >= *n) break;
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

bool mpri_order(int n, const Edge *edges, int n_edges, int *order, int *left, Arena *scratch)
{
    Adjacency next;
    int *waits = ARENA_ARRAY(scratch, int, n), *heap = ARENA_ARRAY(scratch, int, (size_t)n + 1),
        ready = 0, done = 0;
    if (!waits || !heap || !build(n, edges, n_edges, false, &next, scratch)) return false;
    for (int i = 0; i < n_edges; i++) waits[edges[i].to]++;
    for (int i = 0; i < n; i++)
        if (waits[i] == 0) heap_push(heap, &ready, i);
    while (ready > 0) {
        int v = heap_pop(heap, &ready);
        order[done++] = v;
        for (int k = next.first[v]; k < next.first[v + 1]; k++)
            if (--waits[next.to[k]] == 0) heap_push(heap, &ready, next.to[k]);
    }
    *left = n - done;
    return true;
}

int mpri_order_cycle(int n, const Edge *edges, int n_edges, const int *order, int left, int *cycle,
                     int max, Arena *scratch)
{
    Adjacency back;
    bool *done = ARENA_ARRAY(scratch, bool, n);
    int *seen = ARENA_ARRAY(scratch, int, n), *path = ARENA_ARRAY(scratch, int, n), length = 0,
        v = 0;
    if (!done || !seen || !path || !build(n, edges, n_edges, true, &back, scratch)) return 0;
    for (int i = 0; i < n - left; i++) done[order[i]] = true;
    while (v < n && done[v]) v++;
    if (v == n) return 0;
    while (!seen[v]) { /* every node that is left waits for another one that is left */
        seen[v] = ++length;
        path[length - 1] = v;
        int k = back.first[v];
        while (k < back.first[v + 1] && done[back.to[k]]) k++;
        if (k == back.first[v + 1]) return 0;
        v = back.to[k];
    }
    int start = seen[v] - 1, n_cycle = length - start;
    for (int i = 0; i < n_cycle && i < max; i++)
        cycle[i] = path[length - 1 - i]; /* walked backwards */
    return n_cycle;
}
