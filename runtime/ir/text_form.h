/* The readable form of a graph: printed by --dump-after=PASS, parsed by the pass tests.
 *
 *   graph "mlp" {
 *     input  x: f32[batch,64]
 *     param  fc.weight: f32[10,64] trained       # has a slot; "init [..]": its first contents
 *     param  fc.bias: f32[10] = splat(0)             # parameter that is a constant
 *     const  eps: f32[] = 1e-05
 *     const  axes: i64[2] = [0,-1]                   # row-major; up to 64 elements
 *     slot   grad: f32[10,64] grad of fc.weight      # class: param, grad, moment, state
 *     slot   scale: f32[] state init 65536
 *     h: f32[batch,10] = Gemm(x, fc.weight, _) {alpha=0.5, transB=1} @ "/fc/Gemm"   # _ = absent
 *     a: f16[4], b: f16[4] = Split(h, sizes) {axis=-1}
 *     !AccumulateGrad(acc, dw)                       # node without outputs
 *     y: f32[?] = com.acme:Thing(h)                  # domain:Type of an unknown operator
 *     --- backward                                   # segment changes
 *     output logits = h
 *   }
 *
 * Names with other characters than [A-Za-z0-9_./:-], and "_", are written in quotes with JSON
 * escapes; a name is followed by a blank or ", " or ")". Attributes equal to their default are left
 * out. More than 64 elements: "splat(v)" when all are equal, else "<640 bytes, hash 1f2e...>",
 * which cannot be parsed. The parser infers types, so ": type" of an output may be left out; one
 * that is there wins over an unknown and must not contradict the rule. print -> parse -> print is
 * the identity for graphs whose constants fit. */
#ifndef MPRI_IR_TEXT_FORM_H
#define MPRI_IR_TEXT_FORM_H

#include "runtime/base/text.h"
#include "runtime/ir/graph.h"

mpr_status mpri_graph_print(const Graph *g, Text *out, Err *err);
mpr_status mpri_graph_parse(const char *text, Arena *arena, Intern *names, const OpTable *ops,
                            Graph **out, Err *err);

#endif
