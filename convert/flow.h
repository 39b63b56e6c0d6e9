/* Searches along paths of a model, also through the bodies of its nodes, that keep what lies on the
 * path in float32. */
#ifndef MPRI_CONVERT_FLOW_H
#define MPRI_CONVERT_FLOW_H

#include "convert/paint.h"

enum { FLOW_MOST = 4 };
/* Values that take over what a use reads, in a body or behind it; their number. */
int mpri_flow_next(const MixUse *u, MixValue *next[FLOW_MOST]);
/* Values that v takes over from a body or from outside of it; their number. */
int mpri_flow_before(const MixValue *v, MixValue *before[FLOW_MOST]);

/* Kept in float32 unless the user forced it, or another rule keeps it already. */
void mpri_guard_unit(MixUnit *u, MixReason why);
void mpri_guard_node(MixNode *n, MixReason why);
void mpri_guard_noted(MixNode *n, MixReason why, const char *detail);

typedef struct Walk {
    Paint *p;
    MixReason why;
    const char *through, *until; /* words */
    uint8_t *seen; /* by order of the value: 1 under way or in vain, 2 leads there */
    bool (*reaches)(const MixNode *n, const MixValue *by); /* an end counts; NULL: all do */
} Walk;
Walk mpri_walk_new(Paint *p, MixReason why, const char *through, const char *until);
/* Does a path lead from the value, or from what the node makes, to one of the ends? Everything on
 * such a path is kept. */
bool mpri_walk(Walk *w, MixValue *v);
bool mpri_walk_behind(Walk *w, MixNode *n);

typedef struct Before {
    Paint *p;
    MixReason why;
    bool whole;    /* keep the first allowed node, too */
    uint8_t *seen; /* by order of the value */
} Before;
Before mpri_before_new(Paint *p, MixReason why, bool whole);
/* Keeps everything that leads to the value, back to the first node on the allow list. */
void mpri_before(Before *w, MixValue *v);

#endif
