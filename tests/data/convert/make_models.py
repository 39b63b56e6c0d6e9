#!/usr/bin/env python3
"""Makes the small models of tests/convert in this folder, with the same bytes on every run.

    python make_models.py            needs onnx and numpy; the tests need neither
"""
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, N = TensorProto.FLOAT, helper.make_node
rng = np.random.default_rng(1)


def weight(name, *shape, zero=False):
    data = np.zeros(shape) if zero else rng.standard_normal(shape) * 0.3
    return numpy_helper.from_array(data.astype("float32"), name)


def scalar(name, value):
    return numpy_helper.from_array(np.float32(value), name)


def save(name, nodes, weights, outputs=(("y", 4),), opset=17, ir=8, functions=(), **where):
    value = lambda n, size: helper.make_tensor_value_info(n, FLOAT, ["batch", size])
    graph = helper.make_graph(nodes, name, [value("x", 8)], [value(*o) for o in outputs], weights)
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid("my", 1)] * bool(functions)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=functions)
    onnx.checker.check_model(model, full_check=not functions)
    onnx.save(model, f"{name}.onnx", **where)


def layers(*sizes):
    """W1 b1 W2 b2 … of Gemm layers."""
    found = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:]), 1):
        found += [weight(f"W{i}", a, b), weight(f"b{i}", b)]
    return found


def branch(name, op, source, target):
    out = helper.make_tensor_value_info(target, FLOAT, ["batch", 16])
    return helper.make_graph([N(op, [source], [target], f"in_{name}")], name, [], [out])


# A bias of one element is a parameter, whoever reads it.
save("one_bias",
     [N("MatMul", ["x", "W1"], ["a"]), N("Add", ["a", "b1"], ["b"]), N("Relu", ["b"], ["c"]),
      N("MatMul", ["c", "W2"], ["d"]), N("Add", ["d", "b2"], ["y"])],
     layers(8, 16, 1), outputs=(("y", 1),))

# One tensor of zeros fills two biases, which are trained apart.
save("shared_zero",
     [N("MatMul", ["x", "W1"], ["a"], "l1"), N("Add", ["a", "z"], ["b"], "a1"),
      N("Relu", ["b"], ["c"]), N("MatMul", ["c", "W2"], ["d"], "l2"),
      N("Add", ["d", "z"], ["e"], "a2"), N("Relu", ["e"], ["f"]),
      N("Gemm", ["f", "W3", "b3"], ["y"], "l3")],
     [weight("W1", 8, 16), weight("z", 16, zero=True), weight("W2", 16, 16), weight("W3", 16, 4),
      weight("b3", 4)])

# A weight read twice, and a matrix stored twice, once transposed.
shared = weight("W2", 8, 6)
save("shared_weight",
     [N("Gemm", ["x", "W1"], ["a"], "l1"), N("Relu", ["a"], ["b"]),
      N("Gemm", ["b", "W1"], ["c"], "l2"), N("Tanh", ["c"], ["d"]),
      N("MatMul", ["d", "W2"], ["e"], "l3"), N("Gemm", ["e", "W2t"], ["f"], "l4"),
      N("Gemm", ["f", "W3", "b3"], ["y"], "l5", transB=1)],
     [weight("W1", 8, 8), shared,
      numpy_helper.from_array(numpy_helper.to_array(shared).T.copy(), "W2t"), weight("W3", 4, 8),
      weight("b3", 4)])

# Dropout in training mode: the same random numbers with and without Casts.
save("dropout",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Dropout", ["a", "r", "tm"], ["b"], "d1"),
      N("Relu", ["b"], ["c"]), N("Gemm", ["c", "W2", "b2"], ["d"], "l2"),
      N("Dropout", ["d", "r", "tm"], ["e"], "d2"), N("Gemm", ["e", "W3", "b3"], ["y"], "l3")],
     layers(8, 16, 16, 4) + [scalar("r", 0.3), numpy_helper.from_array(np.array(True), "tm")])

# Constants that 16 bits do not hold: bounds, a scalar, a mask.
save("constants",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Clip", ["a", "lo", "hi"], ["b"], "clip"),
      N("Gemm", ["b", "W2", "b2"], ["c"], "l2"), N("Max", ["c", "lo"], ["d"], "max"),
      N("Mul", ["d", "s"], ["e"], "scale"), N("Gemm", ["e", "W3", "b3"], ["f"], "l3"),
      N("Add", ["f", "mask"], ["g"], "add"), N("Softmax", ["g"], ["p"], axis=-1),
      N("Gemm", ["p", "W4"], ["y"], "l4")],
     layers(8, 16, 16, 4) + [weight("W4", 4, 4), scalar("lo", -3.4e38), scalar("hi", 3.4e38),
                             scalar("s", 0.1),
                             numpy_helper.from_array(np.array([0, 0, 0, -1e9], "float32"), "mask")])

# Elementwise operators behind the last product are no part of an attached loss.
save("tail",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Relu", ["a"], ["b"]),
      N("Gemm", ["b", "W2", "b2"], ["c"], "l2"), N("Mul", ["c", "s"], ["d"]),
      N("Tanh", ["d"], ["y"])],
     layers(8, 16, 4) + [scalar("s", 0.5)])

# Node metadata (IR 10); outputs that are read inside; an alias as an output; a residual stream.
save("stream",
     [N("Gemm", ["x", "W1", "b1"], ["h"], "l1"), N("Relu", ["h"], ["h2"]),
      N("Gemm", ["h2", "W2", "b2"], ["k"], "l2"), N("Identity", ["k"], ["y2"], "alias"),
      N("Add", ["h", "k"], ["r"], "res"),
      N("LayerNormalization", ["r", "g", "be"], ["n"], "ln", axis=-1),
      N("Gemm", ["n", "W3", "b3"], ["y"], "l3")],
     layers(8, 16, 16, 4) + [weight("g", 16), weight("be", 16)],
     outputs=(("y", 4), ("y2", 16), ("h", 16)), opset=21, ir=10)

# The branches read a value that becomes low; which one is taken shows at run time only.
save("if_capture",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("ReduceSum", ["x"], ["s"], "sum", keepdims=0),
      N("Greater", ["s", "zero"], ["c"], "gt"),
      N("If", ["c"], ["b"], "choose", then_branch=branch("t", "Relu", "a", "ta"),
        else_branch=branch("e", "Tanh", "a", "ea")),
      N("Gemm", ["b", "W2", "b2"], ["y"], "l2")],
     layers(8, 16, 4) + [scalar("zero", 0)])

# The same with a constant condition: the importer takes a branch, the file keeps both.
save("if_constant",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"),
      N("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
      N("If", ["c"], ["b"], "choose", then_branch=branch("t", "Relu", "a", "ta"),
        else_branch=branch("e", "Tanh", "a", "ea")),
      N("Gemm", ["b", "W2", "b2"], ["y"], "l2")],
     layers(8, 16, 4))

# A call of a model-local function stays as it is.
block = helper.make_function("my", "Block", ["u", "w"], ["v"],
                             [N("MatMul", ["u", "w"], ["q"]), N("Relu", ["q"], ["v"])],
                             [helper.make_opsetid("", 17)])
save("function",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Block", ["a", "W2"], ["b"], "block", domain="my"),
      N("Gemm", ["b", "W3", "b3"], ["y"], "l3")],
     [w for w in layers(8, 16, 16, 4) if w.name != "b2"], functions=[block])

# Casts of the user's own, under names that the converter would choose.
save("names_taken",
     [N("Cast", ["x"], ["x__mpr_f16"], "x__mpr_f16", to=TensorProto.FLOAT16),
      N("Cast", ["x__mpr_f16"], ["x__mpr_f32"], "x__mpr_f32", to=FLOAT),
      N("Gemm", ["x__mpr_f32", "W1", "b1"], ["W1__mpr_f16"], "l1"),
      N("Gemm", ["W1__mpr_f16", "W2", "b2"], ["y"], "W2__mpr_f16")],
     layers(8, 16, 4))

# Weights in a file of their own.
Path("external.data").unlink(missing_ok=True)
save("external",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Relu", ["a"], ["b"]),
      N("Gemm", ["b", "W2", "b2"], ["y"], "l2")],
     layers(8, 16, 4), save_as_external_data=True, location="external.data", size_threshold=0)

# What bfloat16 does not reach: opset 13 has no PRelu and no Where for it, Pow only a float exponent.
save("opset13",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("PRelu", ["a", "slope"], ["b"], "prelu"),
      N("Gemm", ["b", "W2", "b2"], ["c"], "l2"), N("Pow", ["c", "e"], ["d"], "pow"),
      N("Greater", ["d", "one"], ["q"], "gt"), N("Where", ["q", "c", "d"], ["f"], "where"),
      N("Gemm", ["f", "W3", "b3"], ["y"], "l3")],
     layers(8, 16, 16, 4) + [weight("slope", 16), scalar("e", 3), scalar("one", 1)],
     opset=13, ir=7)

# Too old for bfloat16; the exponent of Pow has the type of its base, axes and bounds lie in
# attributes.
save("opset10",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Clip", ["a"], ["b"], "clip", min=-1e30, max=6.0),
      N("Pow", ["b", "e"], ["c"], "pow"), N("Gemm", ["c", "W2", "b2"], ["d"], "l2"),
      N("Unsqueeze", ["d"], ["f"], axes=[1]), N("Softmax", ["f"], ["g"], axis=1),
      N("Squeeze", ["g"], ["y"], axes=[1])],
     layers(8, 16, 4) + [scalar("e", 2)], opset=10, ir=5)

# Products inside a branch and inside a loop of three turns: a profile of torch leaves bodies as they
# are, for the converter and for training alike.
inside = lambda name, dtype, *shape: helper.make_tensor_value_info(name, dtype, shape)
turn = helper.make_graph(
    [N("MatMul", ["s", "W3"], ["p"], "turn"), N("Tanh", ["p"], ["t"]), N("Identity", ["go"], ["on"])],
    "turn", [inside("i", TensorProto.INT64), inside("go", TensorProto.BOOL), inside("s", FLOAT, "batch", 16)],
    [inside("on", TensorProto.BOOL), inside("t", FLOAT, "batch", 16)])
taken = helper.make_graph([N("MatMul", ["a", "W3"], ["ta"], "in_branch")], "taken", [],
                          [inside("ta", FLOAT, "batch", 16)])
save("bodies",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
      N("If", ["c"], ["b"], "choose", then_branch=taken, else_branch=branch("e", "Tanh", "a", "ea")),
      N("Loop", ["three", "c", "b"], ["d"], "turns", body=turn), N("Gemm", ["d", "W2", "b2"], ["y"], "l2")],
     layers(8, 16, 4) + [weight("W3", 16, 16), numpy_helper.from_array(np.int64(3), "three")])

# What 16 bits do not reach at this opset, with several readers each: HardSwish and Softplus (in a Mish that training
# recovers) have no bfloat16, LayerNormalization has float32 scales under torch-cpu. Both forms of marks.
for name, opset, ir in (("forced", 17, 8), ("forced_ir10", 21, 10)):
    save(name,
         [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("HardSwish", ["a"], ["h"], "swish"),
          N("Identity", ["h"], ["i"], "alias"), N("Gemm", ["h", "W2", "b2"], ["b"], "l2"),
          N("LayerNormalization", ["h", "s", "t"], ["n"], "norm"),
          N("Softplus", ["b"], ["m1"], "mish1"), N("Tanh", ["m1"], ["m2"], "mish2"), N("Mul", ["m2", "b"], ["m"], "mish3"),
          N("Add", ["n", "m"], ["c"], "add1"), N("Add", ["c", "i"], ["d"], "add2"), N("Mul", ["n", "d"], ["e"], "mul"),
          N("Gemm", ["e", "W3", "b3"], ["y"], "l3")],
         layers(8, 16, 16, 4) + [weight("s", 16), weight("t", 16)], outputs=(("y", 4), ("h", 16)), opset=opset, ir=ir)

# A Scan whose turns follow from the shape of the data; what stands behind it is decided as if they were known.
free = lambda name: helper.make_tensor_value_info(name, FLOAT, None)
turn = helper.make_graph([N("Add", ["s", "r"], ["p"]), N("Tanh", ["p"], ["u"])], "scanned", [free("s"), free("r")],
                         [free("u")])
save("scan",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Reshape", ["a", "halves"], ["b"]),
      N("Transpose", ["b"], ["c"], perm=[1, 0, 2]), N("Gather", ["c", "zero"], ["d"]), N("Mul", ["d", "none"], ["e"]),
      N("Scan", ["e", "c"], ["f"], "turns", body=turn, num_scan_inputs=1), N("MatMul", ["f", "W2"], ["g"], "l2"),
      N("Add", ["g", "b2"], ["h"], "a2"), N("Add", ["h", "f"], ["i"], "a3"), N("Gemm", ["i", "W3", "b3"], ["y"], "l3")],
     layers(8, 16) + [weight("W2", 8, 8), weight("b2", 8), weight("W3", 8, 4), weight("b3", 4)] +
     [numpy_helper.from_array(np.array([0, 2, 8]), "halves"), numpy_helper.from_array(np.int64(0), "zero"),
      scalar("none", 0)])

# A low value that the model itself takes to float16 and back, beside a reader in float32.
save("user_casts",
     [N("Gemm", ["x", "W1", "b1"], ["a"], "l1"), N("Add", ["a", "s"], ["b"], "add"),
      N("Cast", ["a"], ["c"], "down", to=TensorProto.FLOAT16), N("Cast", ["c"], ["d"], "up", to=FLOAT),
      N("Softmax", ["d"], ["e"], "softmax"), N("Mul", ["b", "e"], ["f"], "mul"),
      N("Gemm", ["f", "W2", "b2"], ["y"], "l2")],
     layers(8, 16, 4) + [weight("s", 16)])
