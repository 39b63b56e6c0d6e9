#!/usr/bin/env python3
"""Small models for the numeric check and the guards of mpr-convert: bodies, fixed batches, long sums, and one pattern
a file. Run in this folder; the same bytes on every run."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
rng = np.random.default_rng(5)


def N(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def weight(name, *dims, scale=0.3):
    return numpy_helper.from_array((scale * rng.standard_normal(dims)).astype(np.float32), name)


def const(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.array(value, dtype), name)


def value(name, dims, elem=FLOAT):
    return helper.make_tensor_value_info(name, elem, dims)


def save(name, nodes, initializers=(), inputs=None, outputs=None, opset=17, infos=()):
    graph = helper.make_graph(nodes, name, inputs or [value("x", ["n", 8])], outputs or [value("y", None)],
                              list(initializers), value_info=list(infos))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8,
                              producer_name="")
    with open(name + ".onnx", "wb") as f:
        f.write(model.SerializeToString(deterministic=True))


def body(name, nodes, inputs, outputs):
    return helper.make_graph(nodes, name, inputs, outputs)


# ---- bodies, batches, sums

save("loop",
     [N("MatMul", ["x", "W"], ["h"], "mm"),
      N("Loop", ["trips", "go", "h"], ["y"], "loop", body=body(
          "turn", [N("MatMul", ["s", "W"], ["m"], "inner"), N("Tanh", ["m"], ["t"], "tanh"),
                   N("Identity", ["c"], ["c2"], "keep")],
          [value("i", [], INT64), value("c", [], TensorProto.BOOL), value("s", [2, 8])],
          [value("c2", [], TensorProto.BOOL), value("t", [2, 8])]))],
     [weight("W", 8, 8), const("trips", 3, np.int64), const("go", True, bool)], [value("x", [2, 8])], [value("y", [2, 8])])

save("scan",
     [N("MatMul", ["x", "W"], ["h"], "mm"),
      N("Scan", ["zero", "h"], ["last", "y"], "scan", num_scan_inputs=1, body=body(
          "turn", [N("Add", ["s", "row"], ["a"], "add"), N("Relu", ["a"], ["r"], "relu"),
                   N("Identity", ["r"], ["o"], "out")],
          [value("s", [8]), value("row", [8])], [value("r", [8]), value("o", [8])]))],
     [weight("W", 8, 8), const("zero", [0.0] * 8)], [value("x", [2, 8])], [value("y", [2, 8])])

save("batch2", [N("Gemm", ["x", "W", "b"], ["h"], "l1"), N("Relu", ["h"], ["y"], "relu")],
     [weight("W", 8, 4), weight("b", 4)], [value("x", [2, 8])], [value("y", [2, 4])])

save("long_sum", [N("MatMul", ["x", "W"], ["y"], "mm")], [const("W", np.full((4096, 2), 0.5))],
     [value("x", [2, 4096])], [value("y", [2, 2])])

# ---- guards: in each file `mm` in front and `end` behind want low precision, `it` is what is looked at

W, V = weight("W", 8, 8), weight("V", 8, 8)


def guarded(name, nodes, initializers=(), **more):
    save("guard_" + name, [N("MatMul", ["x", "W"], ["h"], "mm")] + nodes +
         [N("MatMul", ["k", "V"], ["y"], "end")], [W, V] + list(initializers), **more)


EPS, BIG = 1e-6, 1e-3
for label, eps in (("", EPS), ("_large", BIG)):
    e = const("e", eps)
    guarded("eps_sqrt" + label, [N("Relu", ["h"], ["p"], "relu"), N("Add", ["p", "e"], ["a"], "it"), N("Sqrt", ["a"], ["k"], "root")], [e])
    guarded("eps_div" + label, [N("Relu", ["h"], ["p"], "relu"), N("Add", ["e", "p"], ["a"], "it"), N("Reshape", ["a", "s"], ["b"], "reshape"),
                                N("Div", ["h", "b"], ["k"], "root")], [e, const("s", [-1, 8], np.int64)])
    guarded("eps_max" + label, [N("Max", ["h", "e"], ["a"], "it"), N("Log", ["a"], ["k"], "root")], [e])
    guarded("eps_clip" + label, [N("Clip", ["h", "e"], ["a"], "it"), N("Reciprocal", ["a"], ["k"], "root")], [e])
    guarded("eps_pow" + label, [N("Clip", ["h", "e"], ["a"], "it"), N("Pow", ["a", "q"], ["k"], "root")], [e, const("q", -0.5)])
guarded("eps_positive_pow", [N("Clip", ["h", "e"], ["a"], "it"), N("Pow", ["a", "q"], ["k"], "root")], [const("e", EPS), const("q", 2.0)])
guarded("eps_numerator", [N("Add", ["h", "e"], ["a"], "it"), N("Div", ["a", "three"], ["k"], "root")], [const("e", EPS), const("three", 3.0)])
guarded("eps_blocked", [N("Add", ["h", "e"], ["a"], "it"), N("Tanh", ["a"], ["t"], "tanh"), N("Sqrt", ["t"], ["k"], "root")], [const("e", EPS)])
guarded("eps_constant_node", [N("Constant", [], ["e"], value_float=EPS), N("Add", ["h", "e"], ["a"], "it"), N("Sqrt", ["a"], ["k"], "root")])
guarded("eps_vector", [N("Add", ["h", "e"], ["a"], "it"), N("Sqrt", ["a"], ["k"], "root")], [const("e", [EPS] * 8)])
guarded("eps_negative", [N("Add", ["h", "e"], ["a"], "it"), N("Sqrt", ["a"], ["k"], "root")], [const("e", -EPS)])

mask = const("m", [0.0] * 4 + [-1e9] * 4)
soft = [N("Softmax", ["a"], ["k"], "soft")]
guarded("mask_add", [N("Add", ["h", "m"], ["a"], "it")] + soft, [mask])
guarded("mask_inf", [N("Add", ["h", "m"], ["a"], "it")] + soft, [const("m", [0.0] * 4 + [-np.inf] * 4)])
guarded("mask_where", [N("Where", ["q", "h", "m"], ["a"], "it")] + soft, [const("m", -1e9), const("q", [True] * 4 + [False] * 4, bool)])
guarded("mask_mul", [N("Mul", ["q", "m"], ["z"], "scale"), N("Add", ["h", "z"], ["a"], "it")] + soft,
        [const("m", -1e5), const("q", [0.0] * 4 + [1.0] * 4)])
guarded("mask_exp", [N("Add", ["h", "m"], ["a"], "it"), N("Exp", ["a"], ["k"], "soft")], [mask])
guarded("mask_small", [N("Add", ["h", "m"], ["a"], "it")] + soft, [const("m", [0.0] * 4 + [-5e4] * 4)])
guarded("mask_elsewhere", [N("Where", ["q", "h", "m"], ["a"], "it"), N("Tanh", ["a"], ["k"], "soft")],
        [const("m", -1e9), const("q", [True] * 4 + [False] * 4, bool)])
guarded("mask_twice", [N("Add", ["h", "m"], ["b"], "first"), N("Add", ["b", "m"], ["a"], "it")] + soft, [mask])
guarded("mask_scaled", [N("Add", ["h", "m"], ["b"], "first"), N("Mul", ["b", "two"], ["a"], "it")] + soft, [mask, const("two", 2.0)])

axes = [const("last", [-1], np.int64)]
guarded("variance", [N("ReduceMean", ["h"], ["u"], "mean", axes=[-1]), N("Sub", ["h", "u"], ["d"], "it"), N("Mul", ["d", "d"], ["q"], "square"),
                     N("ReduceMean", ["q"], ["v"], "var", axes=[-1]), N("Sqrt", ["v"], ["r"], "root"), N("Div", ["d", "r"], ["k"], "norm")])
guarded("variance_pow", [N("ReduceMean", ["h"], ["u"], "mean", axes=[-1]), N("Sub", ["h", "u"], ["d"], "it"), N("Pow", ["d", "two"], ["q"], "square"),
                         N("ReduceMean", ["q"], ["v"], "var", axes=[-1]), N("Add", ["v", "e"], ["w"], "eps"), N("Sqrt", ["w"], ["r"], "root"),
                         N("Div", ["d", "r"], ["k"], "norm")], [const("two", 2.0), const("e", 1e-3)])
guarded("no_variance", [N("Sub", ["h", "c"], ["d"], "it"), N("Mul", ["d", "d"], ["q"], "square"), N("Sqrt", ["q"], ["k"], "root")], [const("c", 0.5)])
guarded("exp_reduce", [N("Exp", ["h"], ["q"], "it"), N("Transpose", ["q"], ["t"], "turn", perm=[0, 1]),
                       N("ReduceSum", ["t", "last"], ["s"], "sum"), N("Div", ["q", "s"], ["k"], "norm")], axes)
guarded("exp_alone", [N("Exp", ["h"], ["k"], "it")])

guarded("reduction", [N("ReduceSum", ["h", "last"], ["s"], "it"), N("Mul", ["h", "s"], ["k"], "scale")], axes)
guarded("reduction_known", [N("ReduceSum", ["h", "last"], ["s"], "it"), N("Mul", ["h", "s"], ["k"], "scale")], axes,
        infos=[value("h", [2, 8]), value("s", [2, 1])], inputs=[value("x", [2, 8])])
guarded("deep", [N("MatMul", ["h", "U"], ["g"], "it"), N("MatMul", ["g", "T"], ["k"], "back")], [weight("U", 8, 64), weight("T", 64, 8)])

targets = [value("x", [2, 8]), value("t", [2], INT64)]
save("guard_loss", [N("MatMul", ["x", "W"], ["h"], "mm"), N("Mul", ["h", "half"], ["s"], "it"), N("Relu", ["s"], ["r"], "relu"),
                    N("SoftmaxCrossEntropyLoss", ["r", "t"], ["y"], "loss")], [W, const("half", 0.5)], targets, [value("y", [])])
save("guard_loss_name", [N("MatMul", ["x", "W"], ["h"], "mm"), N("Mul", ["h", "h"], ["s"], "it"), N("ReduceMean", ["s"], ["loss"], "mean", keepdims=0)],
     [W], None, [value("loss", [])])
save("guard_no_loss", [N("MatMul", ["x", "W"], ["h"], "mm"), N("Mul", ["h", "half"], ["s"], "it"), N("MatMul", ["s", "V"], ["y"], "end")],
     [W, V, const("half", 0.5)])

guarded("range", [N("Mul", ["h", "c"], ["a"], "it"), N("Relu", ["a"], ["k"], "relu")], [const("c", 1000.0)])
guarded("tiny", [N("Mul", ["h", "c"], ["a"], "it"), N("Relu", ["a"], ["k"], "relu")], [const("c", 1e-4)])
guarded("norm", [N("Mul", ["h", "c"], ["a"], "scale"), N("LayerNormalization", ["a", "g"], ["k"], "it")], [const("c", 100.0), const("g", [1.0] * 8)])
guarded("offset", [N("Add", ["h", "c"], ["a"], "shift"), N("LayerNormalization", ["a", "g"], ["k"], "it")], [const("c", 300.0), const("g", [1.0] * 8)])

# Two products each: with casts that move more than the region saves, and less.
save("island_poor", [N("MatMul", ["x", "P"], ["h"], "mm"), N("MatMul", ["h", "Q"], ["y"], "end")],
     [weight("P", 256, 1), weight("Q", 1, 1)], [value("x", [64, 256])], [value("y", [64, 1])], infos=[value("h", [64, 1])])
save("island_rich", [N("MatMul", ["x", "P"], ["h"], "mm"), N("MatMul", ["h", "Q"], ["y"], "end")],
     [weight("P", 8, 128), weight("Q", 128, 8)], [value("x", [2, 8])], [value("y", [2, 8])], infos=[value("h", [2, 128])])
