/* --debug underflow_overflow, after transformers' DebugUnderflowOverflow: every tensor of every
 * training step is looked at, and the first NaN or overflow brings the last frames with it, the
 * smallest and largest absolute value of what each node read and gave. */
#ifndef MPRI_TRAIN_DEBUG_FRAMES_H
#define MPRI_TRAIN_DEBUG_FRAMES_H

#include "runtime/base/text.h"
#include "runtime/train/forensics.h"

enum { FRAMES = 21, FRAME_TENSORS = 6 };

typedef struct Frame {
    char node[256], op[64];
    bool backward; /* the gradient of that node */
    int n;
    struct {
        char tensor[128];
        bool output;
        double least, most; /* absolute; NaN and inf as they are */
    } v[FRAME_TENSORS];
} Frame;

typedef struct DebugFrames {
    Search search;
    bool open;
    Frame frame[FRAMES]; /* a ring */
    int64_t count;       /* frames since the pass began */
    bool bad;            /* the newest frame is the culprit */
} DebugFrames;

/* From now on the session's training passes are looked at, until free. */
void mpri_debug_frames_begin(DebugFrames *d, mpr_session *s);
/* The frames as text, oldest first. */
void mpri_debug_frames_text(const DebugFrames *d, Text *out);
void mpri_debug_frames_free(DebugFrames *d);

#endif
