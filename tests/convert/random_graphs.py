#!/usr/bin/env python3
"""Random typed graphs for the converter and the trainer.

    random_graphs.py write FOLDER [--count N] [--seed S] [--kind any|trainable]
    random_graphs.py train FOLDER --bin BUILD [--profiles paint,torch-cuda,torch-cpu] [--to fp16,bf16] [--spread] [--jobs N] [--seeds LIST]

write   makes N models, FOLDER/g<seed>.onnx: opset 7 ... 21, bodies of If, Loop and Scan with captures, functions,
        unnamed nodes, values and initializers used many times, values of several types, Casts of the user. The same
        seed gives the same bytes. corpus.py judges what the converter makes of them.
train   trains every model twice, as it is with a policy and converted with that policy, three steps on data made from
        the seed: losses and weights have to be the same to the last bit. Models of kind `trainable` only.

`train` ends with `N passed, N failed`; exit code 77 (skipped) when a module is absent.
"""
import argparse
import concurrent.futures
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

BATCH = 4
IR_OF_OPSET = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}
FLOAT, HALF, DOUBLE, INT64, BOOL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT64,
                                    TensorProto.BOOL)


class Value:
    def __init__(self, name, dtype, shape, moved=False):
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.moved = moved  # the batch may be another dim than the first


class Scope:
    """A graph or body under construction; it sees the values of the scopes around it."""

    def __init__(self, maker, outer=None):
        self.maker, self.outer, self.nodes, self.values = maker, outer, [], []

    def visible(self):
        return self.values + (self.outer.visible() if self.outer else [])

    def node(self, op, inputs, dtype, shape, outputs=1, domain=None, **attributes):
        m = self.maker
        names = [m.fresh("v") for _ in range(outputs)]
        label = m.fresh(op.lower()) if m.r.random() < 0.7 else ""
        self.nodes.append(helper.make_node(op, [i.name if isinstance(i, Value) else i for i in inputs], names,
                                           name=label, domain=domain, **attributes))
        moved = any(i.moved for i in inputs if isinstance(i, Value))
        made = Value(names[0], dtype, shape, moved)
        self.values.append(made)
        return made if outputs == 1 else [made] + [Value(n, dtype, shape, moved) for n in names[1:]]


class Maker:
    def __init__(self, seed, trainable):
        self.r = random.Random(seed)
        self.opset = self.r.randint(7, 21)
        self.trainable = trainable
        self.count, self.initializers, self.functions = 0, [], []
        self.inputs = []
        self.weights = {}
        self.one_batch = False  # the graph is right for one size of the batch only

    def fresh(self, stem):
        self.count += 1
        return f"{stem}{self.count}"

    # ---- leaves
    def tensor(self, array, stem="c"):
        name = self.fresh(stem)
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape):
        """Often one that is there already."""
        known = self.weights.setdefault(shape, [])
        if known and self.r.random() < 0.3:
            return self.r.choice(known)
        rng = np.random.default_rng(self.r.getrandbits(32))
        scale = 1 / np.sqrt(shape[0]) if len(shape) == 2 else 1 / np.sqrt(max(1, np.prod(shape[1:])))
        known.append(self.tensor((rng.standard_normal(shape) * scale).astype(np.float32), "w"))
        return known[-1]

    def constant(self, s, array):
        """An initializer, or a Constant node in this scope."""
        floats = np.asarray(array).dtype == np.float32
        if self.r.random() < 0.5 or self.opset < 9 and not floats:
            return self.tensor(array)
        value = numpy_helper.from_array(np.asarray(array))
        return s.node("Constant", [], helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype), np.shape(array),
                      value=value).name

    def floats(self, s, rank=None):
        found = [v for v in s.visible() if v.dtype == FLOAT and len(v.shape) > 1
                 and (rank is None or len(v.shape) == rank)]
        return self.r.choice(found[:3] + found[-6:]) if found else None

    # ---- what a graph grows by
    def unary(self, s, x):
        op, attributes = self.r.choice([
            ("Relu", {}), ("Tanh", {}), ("Sigmoid", {}), ("Neg", {}), ("Abs", {}), ("Identity", {}), ("Softplus", {}),
            ("LeakyRelu", {"alpha": 0.1}), ("Elu", {}), ("Softsign", {}), ("HardSigmoid", {}), ("Selu", {}), ("Erf", {}),
            ("Sin", {}), ("Floor", {}), ("Sign", {}), ("HardSwish", {}), ("Mish", {}), ("Gelu", {}), ("Celu", {})])
        since = {"Erf": 9, "Sign": 9, "HardSwish": 14, "Mish": 18, "Gelu": 20, "Celu": 12}.get(op, 7)
        return s.node(op if self.opset >= since else "Tanh", [x], x.dtype, x.shape,
                      **(attributes if self.opset >= since else {}))

    def careful(self, s, x):
        """Functions of a bounded value."""
        t = s.node("Tanh", [x], x.dtype, x.shape)
        op = self.r.choice(["Exp", "Sqrt", "Log", "Reciprocal", "Div", "Pow"])
        if op == "Exp":
            return s.node("Exp", [t], FLOAT, x.shape)
        if op == "Pow":
            return s.node("Pow", [t, self.constant(s, np.float32(2))], FLOAT, x.shape)
        a = s.node("Abs", [t], FLOAT, x.shape)
        b = s.node("Add", [a, self.constant(s, np.float32(self.r.choice([0.5, 1, 1e-2])))], FLOAT, x.shape)
        return s.node("Div", [t, b], FLOAT, x.shape) if op == "Div" else s.node(op, [b], FLOAT, x.shape)

    def binary(self, s, x):
        op = self.r.choice(["Add", "Sub", "Mul", "Add", "Mul", "Max", "Min"])
        same = [v for v in s.visible() if v.dtype == FLOAT and v.shape == x.shape]
        if op in ("Max", "Min") and self.opset < 8 or self.r.random() < 0.5:
            other = self.r.choice(same)
        elif self.r.random() < 0.6:
            other = self.weight(x.shape[-1])
            op = op if self.opset >= 8 or op not in ("Max", "Min") else "Add"
        else:
            other = self.constant(s, np.float32(self.r.choice([0.5, 2, -1, 1e-3])))
        pair = [x, other] if self.r.random() < 0.7 else [other, x]
        return s.node(op, pair, FLOAT, x.shape)

    def matmul(self, s, x):
        n = self.r.choice([3, 4, 5, 8])
        y = s.node("MatMul", [x, self.weight(x.shape[-1], n)], FLOAT, x.shape[:-1] + (n,))
        if self.r.random() < 0.6:
            y = s.node("Add", [y, self.weight(n)], FLOAT, y.shape)
        return y

    def gemm(self, s, x):
        x = self.flat(s, x)
        n = self.r.choice([3, 4, 5, 8])
        return s.node("Gemm", [x, self.weight(n, x.shape[1]), self.weight(n)], FLOAT, (x.shape[0], n), transB=1)

    def softmax(self, s, x):
        if self.opset < 13:
            x = self.flat(s, x)
        return s.node(self.r.choice(["Softmax", "LogSoftmax"]), [x], FLOAT, x.shape, axis=-1 if self.opset >= 11 else 1)

    def reduce(self, s, x):
        op, keep = self.r.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"]), self.r.random() < 0.7
        if len(x.shape) < 3 and not keep:
            keep = True
        shape = x.shape[:-1] + ((1,) if keep else ())
        last = len(x.shape) - 1
        if op == "ReduceL2":
            x = s.node("Add", [x, self.constant(s, np.float32(0.5))], FLOAT, x.shape)
        if self.opset >= (13 if op == "ReduceSum" else 18):
            return s.node(op, [x, self.constant(s, np.array([last], np.int64))], FLOAT, shape, keepdims=int(keep))
        return s.node(op, [x], FLOAT, shape, axes=[last], keepdims=int(keep))

    def norm(self, s, x):
        n = x.shape[-1]
        if self.opset >= 17 and self.r.random() < 0.6:
            return s.node("LayerNormalization", [x, self.weight(n), self.weight(n)], FLOAT, x.shape, axis=-1)
        mean = self.mean(s, x)
        d = s.node("Sub", [x, mean], FLOAT, x.shape)
        q = s.node("Pow", [d, self.constant(s, np.float32(2))], FLOAT, x.shape)
        v = s.node("Add", [self.mean(s, q), self.constant(s, np.float32(self.r.choice([1e-5, 1e-12, 1e-3])))], FLOAT,
                   mean.shape)
        y = s.node("Div", [d, s.node("Sqrt", [v], FLOAT, v.shape)], FLOAT, x.shape)
        return s.node("Mul", [y, self.weight(n)], FLOAT, x.shape)

    def mean(self, s, x):
        shape, last = x.shape[:-1] + (1,), len(x.shape) - 1
        if self.opset >= 18:
            return s.node("ReduceMean", [x, self.constant(s, np.array([last], np.int64))], FLOAT, shape)
        return s.node("ReduceMean", [x], FLOAT, shape, axes=[last])

    def flat(self, s, x):
        if len(x.shape) == 2:
            return x
        return s.node("Flatten", [x], x.dtype, (x.shape[0], int(np.prod(x.shape[1:]))), axis=1)

    def layout(self, s, x):
        kind = self.r.choice(["transpose", "reshape", "concat", "slice", "unsqueeze", "split", "pad", "clip", "expand"])
        last = len(x.shape) - 1
        if kind == "transpose" and last >= 2:
            p = [0] + self.r.sample(range(1, last + 1), last)
            return s.node("Transpose", [x], x.dtype, [x.shape[i] for i in p], perm=p)
        if kind == "reshape":
            size = int(np.prod(x.shape[1:]))
            k = self.r.choice([d for d in (1, 2, 3, 4) if size % d == 0])
            return s.node("Reshape", [x, self.constant(s, np.array([0, k, size // k], np.int64))], x.dtype,
                          (x.shape[0], k, size // k))
        if kind == "concat":
            other = self.r.choice([v for v in s.visible() if v.dtype == x.dtype and v.shape[:-1] == x.shape[:-1]
                                   and len(v.shape) == len(x.shape)])
            return s.node("Concat", [x, other], x.dtype, x.shape[:-1] + (x.shape[-1] + other.shape[-1],), axis=last)
        if kind == "slice" and x.shape[-1] > 2:
            shape = x.shape[:-1] + (x.shape[-1] - 1,)
            if self.opset < 10:
                return s.node("Slice", [x], x.dtype, shape, axes=[last], starts=[1], ends=[x.shape[-1]])
            at = [self.constant(s, np.array([v], np.int64)) for v in (1, x.shape[-1], last)]
            return s.node("Slice", [x] + at, x.dtype, shape)
        if kind == "unsqueeze" and last < 3:
            shape = x.shape[:1] + (1,) + x.shape[1:]
            if self.opset < 13:
                return s.node("Unsqueeze", [x], x.dtype, shape, axes=[1])
            return s.node("Unsqueeze", [x, self.constant(s, np.array([1], np.int64))], x.dtype, shape)
        if kind == "split" and x.shape[-1] % 2 == 0:
            half = x.shape[:-1] + (x.shape[-1] // 2,)
            given = {"num_outputs": 2} if self.opset >= 18 else {}
            parts = s.node("Split", [x], x.dtype, half, outputs=2, axis=last, **given)
            return s.node("Add", parts, x.dtype, half)
        if kind == "pad":
            pads = [0] * last + [1] + [0] * last + [1]
            shape = x.shape[:-1] + (x.shape[-1] + 2,)
            if self.opset < 11:
                return s.node("Pad", [x], x.dtype, shape, pads=pads)
            return s.node("Pad", [x, self.constant(s, np.array(pads, np.int64))], x.dtype, shape)
        if kind == "clip":
            if self.opset < 11:
                return s.node("Clip", [x], x.dtype, x.shape, min=-2.0, max=2.0)
            return s.node("Clip", [x, self.constant(s, np.float32(-2)), self.constant(s, np.float32(2))], x.dtype,
                          x.shape)
        if kind == "expand" and self.opset >= 8 and last == 1:
            ones = np.array([3, 1, x.shape[-1]], np.int64)
            y = s.node("Expand", [x, self.constant(s, ones)], x.dtype, (3,) + x.shape)
            y.moved = True
            z = s.node("Transpose", [y], x.dtype, (x.shape[0], 3, x.shape[1]), perm=[1, 0, 2])
            z.moved = x.moved
            return z
        return s.node("Identity", [x], x.dtype, x.shape)

    def casts(self, s, x):
        """Through another type and back: a rounding of the user."""
        to = self.r.choice([HALF, DOUBLE, FLOAT] if self.trainable else [HALF, DOUBLE, FLOAT, INT64])
        y = s.node("Cast", [x], to, x.shape, to=to)
        if to != INT64 and self.r.random() < 0.5:
            y = s.node("Mul", [y, y], to, x.shape)
        return s.node("Cast", [y], FLOAT, x.shape, to=FLOAT)

    def where(self, s, x):
        if self.opset < 9:
            return self.unary(s, x)
        other = self.r.choice([v for v in s.visible() if v.dtype == FLOAT and v.shape == x.shape])
        mask = s.node("Greater", [x, self.constant(s, np.float32(0.1))], BOOL, x.shape)
        filled = self.constant(s, np.float32(self.r.choice([-1e9, 0, 1]))) if self.r.random() < 0.3 else other
        y = s.node("Where", [mask, x, filled], FLOAT, x.shape)
        return s.node("Softmax", [y], FLOAT, x.shape, axis=-1) if self.opset >= 13 else self.unary(s, y)

    def einsum(self, s, x):
        if self.opset < 12 or len(x.shape) != 3:
            return self.matmul(s, x)
        return s.node("Einsum", [x, self.weight(x.shape[-1], 4)], FLOAT, x.shape[:-1] + (4,), equation="bij,jk->bik")

    def attention(self, s, x):
        if len(x.shape) != 3:
            return self.norm(s, x)
        t = s.node("Transpose", [x], FLOAT, (x.shape[0], x.shape[2], x.shape[1]), perm=[0, 2, 1])
        a = s.node("MatMul", [x, t], FLOAT, (x.shape[0], x.shape[1], x.shape[1]))
        a = s.node("Mul", [a, self.constant(s, np.float32(0.3))], FLOAT, a.shape)
        if self.opset >= 13:
            a = s.node("Softmax", [a], FLOAT, a.shape, axis=-1)
        return s.node("MatMul", [a, x], FLOAT, x.shape)

    def conv(self, s, x):
        if len(x.shape) != 4 or min(x.shape[2:]) < 3:
            return self.gemm(s, x)
        n = self.r.choice([2, 4])
        shape = (x.shape[0], n, x.shape[2] - 2, x.shape[3] - 2)
        y = s.node("Conv", [x, self.weight(n, x.shape[1], 3, 3), self.weight(n)], FLOAT, shape, kernel_shape=[3, 3])
        how = self.r.choice(["none", "pool", "mean", "norm"])
        if how == "pool" and min(shape[2:]) > 1:
            return s.node("MaxPool", [y], FLOAT, shape[:2] + (shape[2] - 1, shape[3] - 1), kernel_shape=[2, 2])
        if how == "mean":
            return s.node("GlobalAveragePool", [y], FLOAT, shape[:2] + (1, 1))
        if how == "norm":
            stats = [self.weight(n), self.weight(n), self.weight(n), self.tensor(np.full(n, 0.5, np.float32))]
            return s.node("BatchNormalization", [y] + stats, FLOAT, shape)
        return y

    def gather(self, s, x):
        ids = next(v for v in self.inputs if v.dtype == INT64)
        table = self.weight(7, 4)
        return s.node("Gather", [table, ids], FLOAT, ids.shape + (4,))

    def call(self, s, x):
        """A function of the model, often one that is called already: MatMul, something with or without a Constant, with or
        without an attribute of the call, now and then a call of another function, and Relu."""
        if self.opset < 15 or self.trainable and self.r.random() < 0.5:
            return self.matmul(s, x)
        if not self.functions or self.r.random() < 0.6:
            self.define()
        f = self.r.choice(self.functions)
        more = {"alpha": self.r.choice([0.5, 1.0])} if "alpha" in f.attribute and self.r.random() < 0.9 else {}
        if "alpha" in f.attribute and not more:
            more = {"alpha": 0.25}
        return s.node(f.name, [x, self.weight(x.shape[-1], 4)], FLOAT, x.shape[:-1] + (4,), domain="local", **more)

    def define(self):
        name, attributes = self.fresh("Block"), []
        body = [helper.make_node("MatMul", ["a", "b"], ["m"], name=self.r.choice(["", "product"]))]
        kind = self.r.choice(["half", "neg", "exp", "elu", "inner"])
        if kind == "half":
            half = numpy_helper.from_array(np.float32(0.5))
            body += [helper.make_node("Constant", [], ["half"], value=half), helper.make_node("Mul", ["m", "half"], ["n"])]
        elif kind == "exp":
            body += [helper.make_node("Softmax", ["m"], ["e"], axis=-1), helper.make_node("Add", ["m", "e"], ["n"])]
        elif kind == "elu":
            elu = helper.make_node("Elu", ["m"], ["n"])
            elu.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
            body, attributes = body + [elu], ["alpha"]
        elif kind == "inner" and self.functions and not self.functions[0].attribute:
            body += [helper.make_node("Transpose", ["b"], ["t"]), helper.make_node("MatMul", ["m", "t"], ["u"]),
                     helper.make_node(self.functions[0].name, ["u", "b"], ["n"], domain="local")]
        else:
            body += [helper.make_node("Neg", ["m"], ["n"])]
        body += [helper.make_node("Relu", ["n"], ["y"])]
        self.functions.append(helper.make_function("local", name, ["a", "b"], ["y"], body, [
            helper.make_opsetid("", self.opset), helper.make_opsetid("local", 1)], attributes))

    # ---- bodies
    def body(self, s, outputs, inputs=()):
        return helper.make_graph(s.nodes, self.fresh("body"), list(inputs),
                                 [helper.make_tensor_value_info(v.name, v.dtype, v.shape) for v in outputs])

    def grown(self, outer, x, shape):
        """A scope with a value of the given shape at its end, from x."""
        s = Scope(self, outer)
        y = x
        for _ in range(self.r.randint(1, 3)):
            y = self.r.choice([self.unary, self.binary, self.careful, self.casts])(s, y)
        if self.r.random() < 0.6:
            y = s.node("MatMul", [y, self.weight(y.shape[-1], shape[-1])], FLOAT, shape)
        return s, s.node("Identity", [y], FLOAT, shape)

    def branch(self, s, x):
        if self.trainable:
            condition = self.tensor(np.array(self.r.random() < 0.5))
        else:
            condition = next(v for v in self.inputs if v.dtype == BOOL)
        a, left = self.grown(s, x, x.shape)
        b, right = self.grown(s, self.floats_of(s, x.shape), x.shape)
        return s.node("If", [condition], FLOAT, x.shape, then_branch=self.body(a, [left]),
                      else_branch=self.body(b, [right]))

    def floats_of(self, s, shape):
        return self.r.choice([v for v in s.visible() if v.dtype == FLOAT and v.shape == shape])

    def loop(self, s, x):
        if self.opset < 8:
            return self.binary(s, x)
        turn, going, state = self.fresh("i"), self.fresh("go"), self.fresh("state")
        inner = Scope(self, s)
        inner.values.append(Value(state, FLOAT, x.shape))
        deeper, y = self.grown(inner, inner.values[0], x.shape)
        y = deeper.node("Tanh", [y], FLOAT, x.shape)
        on = deeper.node("Identity", [going], BOOL, ())
        formal = [helper.make_tensor_value_info(turn, INT64, []), helper.make_tensor_value_info(going, BOOL, []),
                  helper.make_tensor_value_info(state, FLOAT, None)]
        trips = self.tensor(np.array(self.r.randint(0, 3), np.int64))
        return s.node("Loop", [trips, self.tensor(np.array(True)), x], FLOAT, x.shape,
                      body=self.body(deeper, [on, y], formal))

    def scan(self, s, x):
        """Over the second dim; opset 8 has a batch dim of its own and is left out."""
        if self.opset < 9 or len(x.shape) != 3:
            return self.unary(s, x)
        self.one_batch |= x.moved  # as many turns as the batch has rows, and sizes that follow from them
        row = (x.shape[0], x.shape[2])
        state, item = self.fresh("sum"), self.fresh("row")
        t = s.node("Transpose", [x], FLOAT, (x.shape[1],) + row, perm=[1, 0, 2])
        t.moved = True
        start = s.node("Mul", [s.node("Gather", [t, self.tensor(np.array(0, np.int64))], FLOAT, row, axis=0),
                               self.constant(s, np.float32(0))], FLOAT, row)
        inner = Scope(self, s)
        inner.values += [Value(state, FLOAT, row), Value(item, FLOAT, row)]
        a = inner.node("Add", [state, item], FLOAT, row)
        deeper_out = inner.node("Tanh", [a], FLOAT, row)
        out = inner.node("MatMul", [deeper_out, self.weight(row[1], row[1])], FLOAT, row)
        formal = [helper.make_tensor_value_info(n, FLOAT, None) for n in (state, item)]
        made = s.node("Scan", [start, t], FLOAT, row, outputs=2, num_scan_inputs=1,
                      body=self.body(inner, [deeper_out, out], formal))
        made[0].moved = x.moved
        rows = Value(made[1].name, FLOAT, (x.shape[1],) + row, moved=True)
        s.values.append(rows)
        y = s.node("Transpose", [rows], FLOAT, x.shape, perm=[1, 0, 2])
        y.moved = x.moved
        return y

    # ---- the whole
    def model(self):
        s = Scope(self)
        batch = "N" if self.r.random() < 0.5 else BATCH
        inner = self.r.choice([(6,), (3, 4), (2, 6, 6), (4, 8)])
        self.inputs = [Value("x", FLOAT, (BATCH,) + inner), Value("ids", INT64, (BATCH, 3))]
        if not self.trainable:
            self.inputs.append(Value("flag", BOOL, ()))
        s.values += [v for v in self.inputs if v.dtype == FLOAT]
        grow = [self.unary, self.unary, self.careful, self.binary, self.binary, self.matmul, self.matmul, self.gemm,
                self.softmax, self.reduce, self.norm, self.layout, self.layout, self.casts, self.where, self.einsum,
                self.attention, self.conv, self.gather, self.call, self.branch, self.loop, self.scan]
        x = s.values[0]
        for _ in range(self.r.randint(4, 18)):
            x = x if self.r.random() < 0.5 else self.floats(s)
            x = self.r.choice(grow)(s, x)
            if int(np.prod(x.shape)) > 4000 or len(x.shape) < 2:
                x = self.floats(s)
        ends = [self.flat(s, v) for v in self.r.sample(s.values, min(3, len(s.values)))
                if v.dtype == FLOAT and len(v.shape) > 1 and v.shape[0] == BATCH] + [self.flat(s, s.values[0])]
        joined = ends[0] if len(ends) == 1 else s.node(
            "Concat", ends, FLOAT, (BATCH, sum(e.shape[1] for e in ends)), axis=1)
        bounded = s.node("Tanh", [joined], FLOAT, joined.shape)
        y = s.node("MatMul", [bounded, self.weight(bounded.shape[1], 3)], FLOAT, (BATCH, 3))
        y = s.node("Add", [y, self.weight(3)], FLOAT, y.shape)
        outputs = [y]
        if self.r.random() < 0.4:
            more = [v for v in s.values if v is not y and v.name not in {i.name for i in self.inputs}]
            outputs += self.r.sample(more, 1)

        batch = BATCH if self.one_batch else batch

        def declared(v):
            shape = [batch if v.shape and i == 0 and v.shape[0] == BATCH and batch == "N" else d
                     for i, d in enumerate(v.shape)]
            return helper.make_tensor_value_info(v.name, v.dtype, shape)
        used = {i for n in s.nodes for i in n.input}
        infos = [helper.make_tensor_value_info(v.name, v.dtype, None) for v in s.values
                 if self.r.random() < 0.3 and v not in outputs and v not in self.inputs]
        ids = [v for v in self.inputs if v.name == "x" or v.name in used or not self.trainable]
        inputs = [declared(v) for v in ids]
        if IR_OF_OPSET[self.opset] < 4:
            inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in self.initializers]
        graph = helper.make_graph(s.nodes, "random", inputs, [declared(v) for v in outputs], self.initializers,
                                  value_info=infos)
        imports = [helper.make_opsetid("", self.opset)]
        if self.functions:
            imports.append(helper.make_opsetid("local", 1))
        model = helper.make_model(graph, opset_imports=imports, functions=self.functions, producer_name="random_graphs")
        model.ir_version = IR_OF_OPSET[self.opset]
        self.output = y.name
        return model


def make(seed, trainable):
    """The model and the name of the output that a loss may read."""
    maker = Maker(f"{seed}/{trainable}", trainable)
    return maker.model(), maker.output


def data_for(model, seed):
    rng = np.random.default_rng(seed)
    arrays = {"labels": rng.standard_normal((2 * BATCH, 3)).astype(np.float32)}
    known = {t.name for t in model.graph.initializer}
    for i in model.graph.input:
        if i.name == "x":
            dims = [d.dim_value for d in i.type.tensor_type.shape.dim[1:]]
            arrays["x"] = rng.standard_normal([2 * BATCH] + dims).astype(np.float32)
        elif i.name == "ids" and i.name not in known:
            arrays["ids"] = rng.integers(0, 7, (2 * BATCH, 3))
    return arrays


def write(args):
    args.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(args.seed, args.seed + args.count):
        model, _ = make(seed, args.kind == "trainable")
        (args.folder / f"g{seed}.onnx").write_bytes(model.SerializeToString(deterministic=True))
    print(f"{args.count} models in {args.folder}")
    return 0


# ---- training
def weights(path):
    return {t.name: (t.data_type, numpy_helper.to_array(t).tobytes()) for t in onnx.load(str(path)).graph.initializer}


def losses(folder):
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [(r.get("loss"), r.get("grad_norm"), r.get("loss_scale")) for r in rows if "loss" in r]


def trained(args, model, out, name, flags):
    command = [args.bin / "mpr-train", model, "--train-data", out / "data.npz", "--labels", "labels", "--loss", "mse",
               "--logits", name, "--output-dir", out / "run", "--max-steps", "3", "--optim", "sgd", "--learning-rate",
               "0.05", "--per-device-train-batch-size", str(BATCH), "--logging-steps", "1", "--save-strategy", "no",
               "--report-to", "none", "--threads", "1", "-q", "--max-skipped-steps", "0", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done, losses(out / "run") if done.returncode == 0 else None


def compare(args, seed, folder):
    """Complaints about one model."""
    model, name = make(seed, True)
    plain = folder / "plain.onnx"
    plain.write_bytes(model.SerializeToString(deterministic=True))
    np.savez(folder / "data.npz", **data_for(model, seed))
    bad = []
    pairs = [(to, profile) for to in args.to.split(",") for profile in args.profiles.split(",")]
    if args.spread:
        pairs = [pairs[seed % len(pairs)]]
    for to, profile in pairs:
        low = folder / "low.onnx"
        low.unlink(missing_ok=True)
        made = subprocess.run([args.bin / "mpr-convert", plain, "-o", low, "--to", to, "--mode", "train",
                               "--autocast-profile", profile], capture_output=True, text=True, timeout=120)
        if made.returncode == 2 and to == "bf16" and "opset" in made.stderr:
            continue
        if made.returncode:
            bad.append(f"{to} {profile}: converting ends with {made.returncode}: {made.stderr[:300]}")
            continue
        runs = []
        for path, flags in ((plain, ["--" + to, "--autocast-profile", profile]),
                            (low, [])):
            flags = flags + (["--loss-scale", "dynamic", "--init-scale", "1024"] if to == "fp16" else [])
            done, log = trained(args, path, folder, name, flags)
            result = folder / "run" / "model.onnx"
            runs.append((done, log, weights(result) if done.returncode == 0 else None))
            shutil.rmtree(folder / "run", ignore_errors=True)
        (a, log_a, w_a), (b, log_b, w_b) = runs
        if a.returncode not in (0, 1, 2, 3) or a.returncode != b.returncode:
            bad.append(f"{to} {profile}: plain ends with {a.returncode}, converted with {b.returncode}: "
                       f"{a.stderr.strip()[-200:]} | {b.stderr.strip()[-200:]}")
        elif a.returncode:
            if a.returncode != 3:
                bad.append(f"{to} {profile}: refused: {a.stderr.strip()[-300:]}")
        elif log_a != log_b:
            bad.append(f"{to} {profile}: losses {log_a} | {log_b}")
        elif any(w_a[n] != w_b[n] for n in w_a):
            bad.append(f"{to} {profile}: weights differ: {[n for n in w_a if w_a[n] != w_b[n]][:4]}")
    return bad


def train(args):
    def one(seed):
        folder = Path(tempfile.mkdtemp(prefix="mpr-random-"))
        try:
            return seed, compare(args, seed, folder)
        except Exception as error:  # noqa: BLE001
            return seed, [f"{type(error).__name__}: {error}"]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    failed = 0
    seeds = ([int(s) for s in args.seeds.split(",")] if args.seeds else range(args.seed, args.seed + args.count))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for seed, bad in pool.map(one, seeds):
            failed += bool(bad)
            if bad:
                print(f"FAIL seed {seed}", *bad, sep="\n     ", flush=True)
    print(f"{len(seeds) - failed} passed, {failed} failed")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["write", "train"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--kind", choices=["any", "trainable"], default="any")
    parser.add_argument("--bin", type=Path)
    parser.add_argument("--profiles", default="paint,torch-cuda,torch-cpu")
    parser.add_argument("--to", default="fp16,bf16")
    parser.add_argument("--spread", action="store_true", help="one type and profile for each model, in turn")
    parser.add_argument("--seeds", help="these models, instead of --count from --seed on: 3,17,40")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    return write(args) if args.what == "write" else train(args)


if __name__ == "__main__":
    sys.exit(main())
