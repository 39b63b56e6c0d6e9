/* Which tensor became non-finite first, and why.
 *
 * A step costs nothing for this: it only has the flag of the gradient check and the loss itself.
 * When one of them is bad the same step runs once more, kernel by kernel: same plan, same inputs,
 * same random numbers, weights untouched because the step was skipped, nothing written to slots.
 * The first bad output in the order of execution is the culprit, and a second run up to there
 * measures what its node reads. Where a kernel does the work of several nodes, the step runs once
 * more with a kernel for each of them: the one of these that is bad first is named. What stands
 * for several nodes of the file even then (a Linear, a recovered norm) is told with all of them.
 *
 * An infinity can be meant: a mask of -inf that the softmax takes away. It counts as long as only
 * nodes that hand values on (elementwise, layout, maxima) carry it, with the same sign. */
#ifndef MPRI_TRAIN_FORENSICS_H
#define MPRI_TRAIN_FORENSICS_H

#include "runtime/train/session.h"

typedef struct TensorRange {
    int64_t n, nan, inf, minus_inf;
    int64_t first;    /* first element that is not finite, -1 */
    double low, high; /* of the finite ones; low > high when there are none */
    double least;     /* smallest absolute value that is not 0, of the finite ones; 0: none */
} TensorRange;

void mpri_tensor_range(DType t, const void *data, int64_t n, TensorRange *r);

typedef enum BadKind { BAD_INPUT, BAD_CONSTANT, BAD_PARAMETER, BAD_FORWARD, BAD_BACKWARD } BadKind;

enum { BAD_OPERANDS = 4 };

typedef struct NonFinite {
    BadKind kind;
    char node[256];   /* as the file names it; of BAD_BACKWARD the one whose gradient it is; "" */
    char op[64];      /* operator, "" */
    char also[256];   /* further nodes of the file that are computed with it, "" */
    char tensor[256];
    DType dtype;
    TensorRange range;
    bool is_nan;      /* the first bad element is NaN, else infinite */
    int n_in;
    struct {
        char tensor[128];
        TensorRange range;
    } in[BAD_OPERANDS];
    int micro, micros; /* 1-based micro-batch of the window, and how many there are */
    char text[1400];
    char advice[400];
} NonFinite;

/* Runs the batch that is bound once more, with the counter of random numbers it had. False when all
 * is finite, or it cannot run. backward: the backward pass too, from the seed of the last one. */
bool mpri_forensics_find(mpr_session *s, uint64_t forward_count, bool backward, NonFinite *out);
/* The same for all micro-batches of the window in their order, the bound one last; its number stands
 * in front of the text. */
bool mpri_forensics_window(mpr_session *s, NonFinite *out);
/* Puts "micro-batch 2 of 4: " before the text; nothing in a window of one. */
void mpri_forensics_number(NonFinite *out, int micro, int micros);
/* What is bound is micro-batch `micro` of `micros`, of that forward pass: its seed was that of its
 * own weight. */
bool mpri_forensics_micro(mpr_session *s, uint64_t forward_count, int micro, int micros,
                          NonFinite *out);
/* A name for people of the node behind a step of a plan, and its operator: what the file has where
 * possible. For a node of the backward pass the forward node that it differentiates. */
void mpri_forensics_node(const mpr_session *s, const Node *n, char name[256], char op[64]);
/* The same for a value. */
void mpri_forensics_tensor(const Plan *p, const Value *v, char *buf, size_t size);

/* ", computed with '/fc/Add' (Add)": what else of the file n stands for than the node `name`. */
void mpri_forensics_others(const mpr_session *s, const Node *n, const char *name, char *buf,
                           size_t size);
/* Writes text and advice from the other fields. */
void mpri_forensics_text(NonFinite *out);
void mpri_forensics_advice(NonFinite *out);

/* One look at every value of a run, in the order of execution. */
enum { STATE_BAD = 1, STATE_INF = 2, STATE_MINUS_INF = 4 }; /* the last two: meant */
typedef struct Search {
    mpr_session *s;
    Plan *p;
    const Value **roots;  /* by value id: the input or constant that an infinity comes from */
    unsigned char *state; /* by value id */
    int first[2];         /* first bad step of the forward and the backward segment, -1 */
    const Value *copy;    /* read by first[0]: a weight's copy in 16 bits that overflowed, or NULL */
    int stop_at;          /* second run: the step to measure, -1 in the first */
    NonFinite *out;
    const Node *culprit;
} Search;
/* Close it also after a failure. */
mpr_status mpri_search_open(Search *f, mpr_session *s, Plan *p, Err *err);
void mpri_search_close(Search *f);
/* Before the first step, when the inputs are in place: true when one of them is damaged. */
bool mpri_search_sources(Search *f);
/* An output of the step that has run. */
void mpri_search_value(Search *f, int step, const Value *v);

#endif
