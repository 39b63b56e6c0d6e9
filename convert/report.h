/* What was decided, for programs and for people. */
#ifndef MPRI_CONVERT_REPORT_H
#define MPRI_CONVERT_REPORT_H

#include "convert/mixed.h"
#include "convert/rewrite.h"

typedef struct Report {
    const Mix *m;
    const Paint *paint;
    const Rewrite *rewrite; /* NULL: nothing was written */
    const MixedOptions *o;
    const ImportedModel *model;
    const Verification *verify; /* NULL: not asked for */
    const Profile *decided; /* that of torch which decided; NULL: painted */
    const char *refused; /* why, or NULL */
    bool changed;
    size_t bytes_before, bytes_after;
} Report;

/* The files that the options name. */
mpr_status mpri_report_files(const Report *r, Err *err);
void mpri_report_json(const Report *r, Text *out);
void mpri_report_annotations(const Report *r, Text *out);
void mpri_report_dot(const Report *r, Text *out);
void mpri_report_svg(const Report *r, Text *out);
/* Chain of reasons of a node, "=VALUE" or path: false when there is none. */
bool mpri_report_explain(const Report *r, const char *node, Text *out);
/* JSON string with its quotes. */
void mpri_report_string(Text *t, const char *s);
void mpri_sha256(const void *bytes, size_t n, char hex[65]);

#endif
