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


def save(name, nodes, initializers=(), inputs=None, outputs=None, opset=17, infos=(), functions=()):
    graph = helper.make_graph(nodes, name, inputs or [value("x", ["n", 8])], outputs or [value("y", None)],
                              list(initializers), value_info=list(infos))
    imports = [helper.make_opsetid(d, v) for d, v in ([("", opset), ("own", 1)] if functions else [("", opset)])]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="", functions=functions)
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

# Paths through bodies: what is made in one and used behind it, or goes in and comes round.
BOOL = TensorProto.BOOL
flag, trips = const("flag", True, bool), const("trips", 2, np.int64)
e = const("e", EPS)
guarded("eps_if", [N("If", ["flag"], ["a"], "if",
                     then_branch=body("t", [N("Add", ["h", "e"], ["t0"], "it")], [], [value("t0", ["n", 8])]),
                     else_branch=body("f", [N("Abs", ["h"], ["f0"], "other")], [], [value("f0", ["n", 8])])),
                   N("Sqrt", ["a"], ["k"], "root")], [e, flag])
guarded("eps_loop", [N("Add", ["h", "e"], ["a"], "it"),
                     N("Loop", ["trips", "", "a"], ["k"], "loop",
                       body=body("b", [N("Sqrt", ["s"], ["r"], "root"), N("Identity", ["c"], ["d"])],
                                 [value("i", [], INT64), value("c", [], BOOL), value("s", ["n", 8])],
                                 [value("d", [], BOOL), value("r", ["n", 8])]))], [e, trips])
guarded("eps_state", [N("Loop", ["trips", "", "h"], ["k"], "loop",
                        body=body("b", [N("Div", ["s", "s"], ["u"], "root"), N("Add", ["u", "e"], ["r"], "it"), N("Identity", ["c"], ["d"])],
                                  [value("i", [], INT64), value("c", [], BOOL), value("s", ["n", 8])],
                                  [value("d", [], BOOL), value("r", ["n", 8])]))], [e, trips])
guarded("eps_expanded", [N("Unsqueeze", ["e", "zero"], ["e1"]), N("Add", ["h", "e1"], ["a"], "it"), N("Sqrt", ["a"], ["k"], "root")],
        [e, const("zero", [0], np.int64)])

fill = helper.make_tensor("v", FLOAT, [1], [-1e9])
eight = const("eight", [8], np.int64)
guarded("mask_fill", [N("ConstantOfShape", ["eight"], ["m"], "fill", value=fill),
         N("Unsqueeze", ["m", "zero"], ["m2"], "lift"), N("Trilu", ["m2"], ["m3"], "trilu"), N("Add", ["h", "m3"], ["a"], "it")] + soft,
        [eight, const("zero", [0], np.int64)])
guarded("mask_fill_elsewhere", [N("ConstantOfShape", ["eight"], ["m"], "fill", value=fill), N("Where", ["q", "h", "m"], ["a"], "it"),
                                N("Tanh", ["a"], ["k"], "soft")], [eight, const("q", [True] * 4 + [False] * 4, bool)])
guarded("mask_floats", [N("Constant", [], ["m"], value_floats=[0.0] * 4 + [-1e9] * 4), N("Add", ["h", "m"], ["a"], "it")] + soft)
guarded("constant_float", [N("Constant", [], ["m"], value_float=1e6), N("Add", ["h", "m"], ["a"], "it"), N("Tanh", ["a"], ["k"], "soft")])
guarded("mask_if", [N("If", ["flag"], ["a"], "if",
                      then_branch=body("t", [N("Add", ["h", "m"], ["t0"], "it")], [], [value("t0", ["n", 8])]),
                      else_branch=body("f", [N("Abs", ["h"], ["f0"], "other")], [], [value("f0", ["n", 8])]))] + soft, [mask, flag])

guarded("variance_half", [N("ReduceMean", ["h"], ["u"], "mean", axes=[-1]), N("Sub", ["h", "u"], ["d"], "it"), N("Mul", ["d", "d"], ["q"], "square"),
                          N("ReduceMean", ["q"], ["v"], "var", axes=[-1]), N("Pow", ["v", "half"], ["r"], "root"), N("Div", ["d", "r"], ["k"], "norm")],
        [const("half", -0.5)])
guarded("unknown_products", [N("MatMul", ["h", "z"], ["k"], "it")], inputs=[value("x", ["n", 8]), value("z", None)])
image = [value("x", [1, 1, 64, 64])]
save("guard_pool", [N("Conv", ["x", "K"], ["h"], "mm"), N("AveragePool", ["h"], ["a"], "it", kernel_shape=[60, 60], strides=[1, 1]),
                    N("Conv", ["a", "K"], ["y"], "end")], [weight("K", 1, 1, 1, 1)], image)

squares = [N("MatMul", ["x", "W"], ["h"], "mm"), N("Sub", ["h", "t"], ["d"], "it"), N("Mul", ["d", "d"], ["s"], "square")]
pairs = [value("x", [2, 8]), value("t", [2, 8])]
save("guard_loss_sum", squares + [N("ReduceMean", ["s"], ["y"], "mean", keepdims=0)], [W], pairs, [value("y", [])])
save("guard_loss_scaled", squares + [N("ReduceSum", ["s"], ["u"], "sum", keepdims=0), N("Mul", ["u", "half"], ["y"], "scale")],
     [W, const("half", 0.5)], pairs, [value("y", [])])
save("guard_loss_rows", squares + [N("ReduceMean", ["s"], ["y"], "mean", axes=[-1], keepdims=0)], [W], pairs, [value("y", [2])])
save("guard_loss_word", squares[:2] + [N("Abs", ["d"], ["train_loss"], "abs")], [W], pairs, [value("train_loss", [2, 8])])
save("guard_glossary", squares[:2] + [N("MatMul", ["d", "V"], ["glossary"], "end")], [W, V], pairs, [value("glossary", [2, 8])])
save("guard_loss_if", [N("If", ["flag"], ["loss"], "if",
                         then_branch=body("t", squares + [N("ReduceMean", ["s"], ["t0"], "mean", keepdims=0)], [], [value("t0", [])]),
                         else_branch=body("f", [N("Identity", ["zero"], ["f0"])], [], [value("f0", [])]))],
     [W, flag, const("zero", 0.0)], pairs, [value("loss", [])])

def shaped(name, nodes):
    save("guard_" + name, [N("MatMul", ["x", "W"], ["h"], "mm"), N("Relu", ["h"], ["r"], "it"), N("ReduceMax", ["r"], ["z"], "most", keepdims=0),
                           N("Cast", ["z"], ["n0"], to=INT64)] + nodes + [N("MatMul", ["h", "V"], ["y"], "end")], [W, V, const("one", [1], np.int64), const("f1", [1.0])])

shaped("shape_path", [N("Reshape", ["n0", "one"], ["n1"]), N("Expand", ["f1", "n1"], ["unused"])])
shaped("shape_loop", [N("Loop", ["n0", "", "f1"], ["unused"], "loop",
                        body=body("b", [N("Identity", ["c"], ["d"]), N("Identity", ["s"], ["s1"])], [value("i", [], INT64), value("c", [], BOOL), value("s", [1])],
                                  [value("d", [], BOOL), value("s1", [1])]))])
shaped("shape_elsewhere", [N("Mul", ["n0", "n0"], ["unused"])])

chain = ["s"] + [f"r{k}" for k in range(100)]
save("long_chain", [N("MatMul", ["x", "W"], ["h"], "mm"), N("Softmax", ["h"], ["s"], "soft")] +
     [N("Relu", [a], [b], b) for a, b in zip(chain, chain[1:])] + [N("Exp", ["r99"], ["y"], "end")], [W])
save("sequence", [N("MatMul", ["x", "W"], ["h"], "mm"), N("SequenceConstruct", ["h", "h"], ["q"], "make"),
                  N("SequenceAt", ["q", "one"], ["k"], "at"), N("MatMul", ["k", "V"], ["y"], "end")], [W, V, const("one", 1, np.int64)])

# What is measured inside: `it` is large at the larger scale of the data, and nothing of that is seen outside but in "out".
up, down = const("up", 1000.0), const("down", 0.001)
swell = [N("Mul", ["h", "up"], ["t0"], "it"), N("Mul", ["t0", "down"], ["t1"], "back")]
other = body("b", [N("Abs", ["h"], ["t0"], "other")], [], [value("t0", ["n", 8])])


def guarded_if(name, then, result, label="a"):
    guarded(name, [N("If", ["flag"], ["k0"], "if", then_branch=body(label, then, [], [value(result, ["n", 8])]), else_branch=other),
                   N("Relu", ["k0"], ["k"], "behind")], [up, down, flag])


def guarded_loop(name, nodes, result, turns):
    guarded(name, [N("Loop", ["turns", "", "h"], ["k"], "loop",
                     body=body("b", nodes + [N("Identity", ["c"], ["d"])], [value("i", [], INT64), value("c", [], BOOL), value("s", ["n", 8])],
                               [value("d", [], BOOL), value(result, ["n", 8])]))],
            [up, down, flag, const("ten", 10.0), const("turns", turns, np.int64)])


guarded_if("range_if", swell, "t1")
guarded_if("range_if_same", swell, "t1", "b")  # both branches are called b and hold a t0
guarded_if("range_if_out", swell[:1], "t0")
guarded_if("range_if_unnamed", [N("If", ["flag"], ["t2"], then_branch=body("", swell, [], [value("t1", ["n", 8])]), else_branch=other)], "t2")
guarded_loop("range_loop", [N("Mul", ["s", "up"], ["t0"], "it"), N("Mul", ["t0", "down"], ["t1"], "back")], "t1", 2)
guarded_loop("range_state", [N("Mul", ["s", "ten"], ["t0"], "it")], "t0", 2)
guarded_loop("range_nested", [N("If", ["flag"], ["t2"], "if", then_branch=body("a", [N("Mul", ["s", "up"], ["t0"], "it"), N("Mul", ["t0", "down"], ["t1"], "back")],
                                                                                [], [value("t1", ["n", 8])]),
                                else_branch=body("b", [N("Abs", ["s"], ["t3"], "other")], [], [value("t3", ["n", 8])]))], "t2", 2)
guarded("range_scan", [N("Scan", ["zero8", "h"], ["last", "k"], "scan", num_scan_inputs=1, body=body(
            "turn", [N("Mul", ["row", "up"], ["t0"], "it"), N("Mul", ["t0", "down"], ["t1"], "back"), N("Add", ["s", "t1"], ["t2"], "sum")],
            [value("s", [8]), value("row", [8])], [value("t2", [8]), value("t1", [8])]))], [up, down, const("zero8", [0.0] * 8)])


def function(name, nodes, inputs, outputs):
    return helper.make_function("own", name, inputs, outputs, nodes, [helper.make_opsetid("", 17)])


swell_f = function("Swell", [N("Mul", ["v", "u"], ["t0"], "it"), N("Mul", ["t0", "w"], ["t1"], "back")], ["v", "u", "w"], ["t1"])
scale_f = function("Scale", [N("Mul", ["v", "u"], ["t0"], "it")], ["v", "u"], ["t0"])


def call(name, inputs, out, node=""):
    return helper.make_node(name, inputs, [out], name=node, domain="own")


guarded("range_call", [call("Swell", ["h", "up", "down"], "k", "call")], [up, down], functions=[swell_f])
guarded("range_call_out", [call("Scale", ["h", "up"], "a", "call"), N("Relu", ["a"], ["k"], "behind")], [up], functions=[scale_f])
# Two calls of one function: only the second one's values are large.
guarded("range_calls", [call("Swell", ["h", "one1", "one1"], "a", "first"), call("Swell", ["a", "up", "down"], "k")],
        [up, down, const("one1", 1.0)], functions=[swell_f])
norm_f = function("Norm", [N("Mul", ["v", "u"], ["t0"], "scale"), N("LayerNormalization", ["t0", "g"], ["t1"], "it")], ["v", "u", "g"], ["t1"])
guarded("range_norm", [call("Norm", ["h", "c", "g"], "k", "call")], [const("c", 100.0), const("g", [1.0] * 8)], functions=[norm_f])
