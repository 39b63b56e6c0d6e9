/* The readable form of a graph: printed by --dump-after=PASS, parsed by the pass tests.
 *
 *   graph "mlp" {
 *     input  x: f32[batch,64]
 *     param  fc.weight: f32[10,64] trained          # slot or constant that belongs to a parameter
 *     const  eps: f32[] = 1e-05                      # contents up to 64 elements; longer: = <640 bytes, hash 1f2e…>
 *     slot   scale: f32[] state
 *     h: f32[batch,10] = Gemm(x, fc.weight, _) {alpha=1, transB=1} @ "/fc/Gemm"   # _ = absent input
 *     a: f16[4], b: f16[4] = Split(h, sizes) {axis=-1}
 *     !AccumulateGrad(acc, dw)                       # node without outputs
 *     --- backward                                   # segment changes
 *     output logits = h
 *   }
 *
 * Names with other characters than [A-Za-z0-9_./:-] are written as "quoted" with JSON escapes. Attributes equal to
 * their default are left out. print -> parse -> print is the identity (for graphs whose constants fit). */
#ifndef MPRI_IR_TEXT_FORM_H
#define MPRI_IR_TEXT_FORM_H

#include "runtime/base/text.h"
#include "runtime/ir/graph.h"

mpr_status mpri_graph_print(const Graph *g, Text *out, Err *err);
mpr_status mpri_graph_parse(const char *text, Arena *arena, Intern *names, const OpTable *ops, Graph **out, Err *err);

#endif
