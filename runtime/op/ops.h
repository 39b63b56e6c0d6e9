/* Names of all operators, from the one list in ops.def. */
#ifndef MPRI_OP_OPS_H
#define MPRI_OP_OPS_H

#include "runtime/ir/opdef.h"

typedef enum OpId {
#define OP(name, domain, since, family) OP_##name,
#include "runtime/op/ops.def"
#undef OP
    OP_Opaque, /* any operator that is not in the list: types from declarations */
    OP_COUNT
} OpId;

#define OP(name, domain, since, family) extern const OpDef mpri_op_##name;
#include "runtime/op/ops.def"
#undef OP
extern const OpDef mpri_op_Opaque;

/* The table that every graph is created with. */
const OpTable *mpri_op_table(void);

/* Start of every OpDef: id and opset come from the row in ops.def; a test compares the rest.
 *   const OpDef mpri_op_Relu = { MPRI_OP(Relu, "", "elementwise"), .help = "…", … }; */
enum {
#define OP(name, domain, since, family) OP_SINCE_##name = since,
#include "runtime/op/ops.def"
#undef OP
};
#define MPRI_OP(Name, Domain, Family) \
    .id = OP_##Name, .name = #Name, .domain = Domain, .since = OP_SINCE_##Name, .family = Family

#endif
