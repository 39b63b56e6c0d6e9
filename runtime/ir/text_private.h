/* Private to print.c and parse*.c: what both sides of the text form share. */
#ifndef MPRI_IR_TEXT_PRIVATE_H
#define MPRI_IR_TEXT_PRIVATE_H

#include "runtime/ir/graph.h"

#define MPRI_WORD_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:-"
enum { MPRI_TEXT_ELEMENTS = 64 };

extern const char *const mpri_slot_class_names[]; /* by SlotClass */
extern const char *const mpri_segment_names[];    /* by Segment */
bool mpri_text_is_word(const char *s); /* may stand without quotes */

/* ---- reading: a cursor over the text; words live in the arena ---- */
typedef struct Reader {
    const char *p;
    int line;
    Graph *g;
    Arena *arena;
    Err *err;
    struct Operand *out; /* of the node being read; room for many, see parse.c */
    Value **in;
} Reader;

mpr_status mpri_read_fail(Reader *r, const char *fmt, ...) MPRI_PRINTF(2, 3);
void mpri_read_blank(Reader *r);                /* blanks and comments, within the line */
bool mpri_read_accept(Reader *r, const char *s); /* skips blanks, then takes s when it is next */
bool mpri_read_keyword(Reader *r, const char *word); /* the same for a whole word */
mpr_status mpri_read_expect(Reader *r, const char *s);
mpr_status mpri_read_name(Reader *r, char **out); /* word or quoted */
mpr_status mpri_read_i64(Reader *r, int64_t *out);
mpr_status mpri_read_f64(Reader *r, double *out);
mpr_status mpri_read_type(Reader *r, DType *dtype, Shape *shape);
mpr_status mpri_read_contents(Reader *r, DType dtype, const Shape *shape, const void **data);
mpr_status mpri_read_attributes(Reader *r, const OpDef *op, void *params);

#endif
