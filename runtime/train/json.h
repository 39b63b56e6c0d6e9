/* Writing JSON: strings escaped, numbers so that they read back to the same float, non-finite ones
 * as the strings "nan", "inf" and "-inf". */
#ifndef MPRI_TRAIN_JSON_H
#define MPRI_TRAIN_JSON_H

#include "runtime/base/text.h"

void mpri_json_string(Text *t, const char *s); /* with quotes; broken UTF-8 is written as \ufffd */
void mpri_json_f32(Text *t, float v);
void mpri_json_f64(Text *t, double v);

#endif
