#!/usr/bin/env python3
"""What the converter promises about the structure of its files, promise by promise, on small models made here.

    clauses.py --tool BUILD/mpr-convert [--only TEXT]

Every function of this file whose name begins with `check_` is one promise. Exit code 77: skipped.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto as T
    from onnx import helper, numpy_helper
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parent))
import solve  # noqa: E402

ort.set_default_logger_severity(4)
N, F16, BF16 = helper.make_node, T.FLOAT16, T.BFLOAT16
rng = np.random.default_rng(7)


# ---- models
def w(name, *shape, dtype=np.float32, scale=0.3):
    return numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(dtype), name)


def c(name, value, dtype=np.float32):
    return numpy_helper.from_array(np.array(value, dtype), name)


def v(name, shape=("n", 8), elem=T.FLOAT):
    return helper.make_tensor_value_info(name, elem, shape)


def model(nodes, inputs, outputs, weights=(), opset=17, ir=8, infos=(), **more):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights), value_info=list(infos))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)] + more.pop("imports", []), ir_version=ir, **more)


def chain(**more):
    """MatMul, Relu, MatMul"""
    return model([N("MatMul", ["x", "W"], ["a"], "m1"), N("Relu", ["a"], ["r"], "act"), N("MatMul", ["r", "V"], ["y"], "m2")],
                 [v("x")], [v("y")], [w("W", 8, 8), w("V", 8, 8)], **more)


# ---- running
class Tool:
    def __init__(self, path, folder):
        self.path, self.folder, self.n = path, folder, 0

    def __call__(self, m, *flags, code=0, check=True):
        """The converted model; with another code than 0 the message."""
        self.n += 1
        self.source, self.target = self.folder / f"{self.n}.onnx", self.folder / f"{self.n}-out.onnx"
        self.report = self.folder / f"{self.n}.json"
        if isinstance(m, onnx.ModelProto):
            onnx.save(m, str(self.source))
        else:
            self.source = Path(m)
        command = [self.path, self.source, "-o", self.target, "--report", self.report, *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, f"exit {done.returncode}: {done.stderr}"
        if code:
            assert not self.target.exists() and done.stderr.strip(), "written although refused"
            return done.stderr
        if not self.target.exists():
            return None
        out = onnx.load(str(self.target), load_external_data=False)
        if check:
            onnx.checker.check_model(str(self.target), full_check=True)
            assert not solve.faults(out), solve.faults(out)
        return out

    def why(self, node):
        """Root reasons of a node's units that stayed float32."""
        for n in json.loads(self.report.read_text())["nodes"]:
            if n["path"] == node:
                return {u["chain"][-1]["reason"] for u in n["units"].values() if u["is"] == u["was"]}
        raise LookupError(node)


def nodes(m, op=None):
    found = []

    def walk(g):
        for n in g.node:
            if op is None or n.op_type == op:
                found.append(n)
            for a in n.attribute:
                for sub in [a.g] * (a.type == a.GRAPH) + list(a.graphs):
                    walk(sub)
    walk(m.graph)
    return found


def node(m, name):
    return next(n for n in nodes(m) if n.name == name)


def added(m):
    return [n for n in nodes(m, "Cast") if "__mpr_" in n.name]


def weight(m, name):
    return next((t for t in m.graph.initializer if t.name == name), None)


def info(m, name):
    return next((i for i in m.graph.value_info if i.name == name), None)


def run(m, **feeds):
    return ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def same(a, b):
    return a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)


INFER, TRAIN = ("--mode", "infer"), ("--mode", "train")


# ---- rewriting
def check_one_cast_for_all_readers(tool):
    m = model([N("MatMul", ["x", "W"], ["a"], "m1"), N("MatMul", ["x", "V"], ["b"], "m2"), N("Add", ["a", "b"], ["y"], "s")],
              [v("x")], [v("y")], [w("W", 8, 8), w("V", 8, 8)])
    out = tool(m, *TRAIN)
    assert sum(n.input[0] == "x" for n in added(out)) == 1
    assert out.graph.node[0].op_type == "Cast" and {n.input[0] for n in added(out)} >= {"x", "W", "V"}


def check_cast_stands_behind_its_producer(tool):
    m = model([N("Softmax", ["x"], ["s"], "sm"), N("Neg", ["x"], ["n"], "neg"), N("MatMul", ["s", "W"], ["y"], "mm"),
               N("Exp", ["n"], ["z"], "e")], [v("x")], [v("y"), v("z")], [w("W", 8, 8)])
    out = tool(m, *INFER)
    order = [n.name for n in out.graph.node]
    assert order.index("s__mpr_f16") == order.index("sm") + 1, order
    assert [n for n in order if "__mpr" not in n] == ["sm", "neg", "mm", "e"], "the order has changed"


def check_cast_stands_in_the_scope_of_its_reader(tool):
    body = helper.make_graph([N("MatMul", ["x", "W"], ["t"], "inner")], "then", [], [v("t")])
    other = helper.make_graph([N("Identity", ["x"], ["u"], "same")], "else", [], [v("u")])
    m = model([N("If", ["k"], ["y"], "branch", then_branch=body, else_branch=other)], [v("x"), v("k", (), T.BOOL)], [v("y")],
              [w("W", 8, 8)])
    out = tool(m, *TRAIN)
    then = next(a.g for a in node(out, "branch").attribute if a.name == "then_branch")
    assert {n.input[0] for n in then.node if n.op_type == "Cast" and "__mpr" in n.name} >= {"W"}
    assert not any(n.input[0] == "W" for n in out.graph.node if n.op_type == "Cast")


def check_new_names_are_free_in_all_scopes(tool):
    m = chain()
    m.graph.node.append(N("Identity", ["y"], ["x__mpr_f16"], "W__mpr_f16"))
    m.graph.output.append(v("x__mpr_f16"))
    out = tool(m, *TRAIN)
    assert {n.output[0] for n in added(out)} >= {"x__mpr_f16_1", "W__mpr_f16_1"}
    assert all(n.name in (n.input[0], n.output[0]) for n in added(out))


def check_unnamed_nodes_stay_unnamed(tool):
    m = chain()
    for n in m.graph.node:
        n.name = ""
    assert sum(not n.name for n in tool(m, *TRAIN).graph.node) == 3


def check_low_output_has_a_public_cast(tool):
    m = chain()
    m.graph.output.append(v("r"))
    out = tool(m, *INFER)
    act, m2, m1 = node(out, "act"), node(out, "m2"), node(out, "m1")
    assert act.output[0] == "r__mpr_f16" and m2.input[0] == "r__mpr_f16", "the low reader has a detour"
    public = [n for n in added(out) if n.output[0] == "r"]
    assert len(public) == 1 and public[0].input[0] == "r__mpr_f16" and public[0].name == "r__mpr_f16"
    assert [o.name for o in out.graph.output] == ["y", "r"] and m1.output[0] == "a"


def check_output_that_is_input_or_weight_stays(tool):
    m = chain()
    m.graph.output.extend([v("x"), v("W", (8, 8))])
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == T.FLOAT and [o.name for o in out.graph.output] == ["y", "x", "W"]


def check_training_keeps_weights(tool):
    m = chain()
    out = tool(m, *TRAIN)
    assert all(same(weight(m, n), weight(out, n)) for n in "WV")
    assert [n.input[0] for n in added(out)].count("W") == 1


def check_inference_narrows_weights(tool):
    m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Softmax", ["W"], ["s"], "sm"), N("MatMul", ["a", "V"], ["y"], "m2")],
              [v("x")], [v("y"), v("s", (8, 8))], [w("W", 8, 8), w("V", 8, 8)])
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == T.FLOAT and weight(out, "W__mpr_f16").data_type == F16, "mixed readers: a copy"
    assert weight(out, "V").data_type == F16 and not weight(out, "V__mpr_f16"), "low readers only: in place"
    expected = numpy_helper.to_array(weight(m, "V")).astype(np.float16)
    assert numpy_helper.to_array(weight(out, "V")).tobytes() == expected.tobytes(), "rounding to nearest even"


def check_overridable_weights_stay(tool):
    m = chain()
    m.graph.input.append(v("W", (8, 8)))
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == T.FLOAT and [n.input[0] for n in added(out)].count("W") == 1


def check_weight_read_as_float_inside_stays(tool):
    body = helper.make_graph([N("Softmax", ["V"], ["t"], "inner")], "then", [], [v("t", (8, 8))])
    other = helper.make_graph([N("Identity", ["V"], ["u"], "same")], "else", [], [v("u", (8, 8))])
    m = chain()
    m.graph.node.append(N("If", ["k"], ["z"], "branch", then_branch=body, else_branch=other))
    m.graph.input.append(v("k", (), T.BOOL))
    m.graph.output.append(v("z", (8, 8)))
    out = tool(m, *INFER)
    assert weight(out, "V").data_type == T.FLOAT and weight(out, "V__mpr_f16").data_type == F16


def check_training_info_keeps_its_weights(tool):
    m = chain()
    step = m.training_info.add()
    step.algorithm.CopyFrom(helper.make_graph([N("Identity", ["V"], ["V_new"])], "step", [], [v("V_new", (8, 8))]))
    step.update_binding.add(key="V", value="V_new")
    out = tool(m, *INFER, check=False)
    assert weight(out, "V").data_type == T.FLOAT and same(m.training_info[0], out.training_info[0])


def check_smaller_side_of_a_slice_is_cast(tool):
    def gathered(rows):
        return model([N("Gather", ["W", "i"], ["e"], "g"), N("MatMul", ["e", "V"], ["y"], "mm")], [v("i", (4,), T.INT64)],
                     [v("y", (4, 8))], [w("W", rows, 8), w("V", 8, 8)], infos=[v("e", (4, 8))])
    assert "e" in {n.input[0] for n in added(tool(gathered(100), *TRAIN))}
    assert "W" in {n.input[0] for n in added(tool(gathered(4), *TRAIN))}, "equal: the initializer"


def check_weights_that_overflow(tool):
    m = chain()
    big = numpy_helper.to_array(weight(m, "V")).copy()
    big[0, 0] = 7e4
    weight(m, "V").CopyFrom(numpy_helper.from_array(big, "V"))
    out = tool(m, *INFER)
    assert weight(out, "V").data_type == T.FLOAT and "range-init" in tool.why("m2")
    out = tool(m, *INFER, "--weights-oor", "saturate")
    assert numpy_helper.to_array(weight(out, "V"))[0, 0] == 65504
    assert "65504" in tool.report.read_text() or "oor" in tool.report.read_text(), "a line in the report"
    assert "do not fit" in tool(m, *INFER, "--weights-oor", "error", code=2)
    tool(m, *INFER, "--weights-oor", "nonsense", code=1)


def check_weights_that_vanish(tool):
    def with_tiny(shape, count):
        m = model([N("MatMul", ["x", "W"], ["y"], "mm")], [v("x", ("n", shape[0]))], [v("y", ("n", shape[1]))], [w("W", *shape)])
        a = numpy_helper.to_array(weight(m, "W")).copy()
        a.reshape(-1)[:count] = 1e-9
        weight(m, "W").CopyFrom(numpy_helper.from_array(a, "W"))
        return weight(tool(m, *INFER), "W").data_type
    assert with_tiny((8, 8), 1) == T.FLOAT and with_tiny((8, 8), 0) == F16, "64 elements: any"
    assert with_tiny((20, 20), 4) == F16 and with_tiny((20, 20), 5) == T.FLOAT, "else 1 %"


def check_special_values_survive(tool):
    m = chain()
    a = numpy_helper.to_array(weight(m, "V")).copy()
    a[0, :5] = [np.inf, -np.inf, np.nan, -0.0, 0.0]
    weight(m, "V").CopyFrom(numpy_helper.from_array(a, "V"))
    out = tool(m, *INFER, "--no-guard", "mask")
    b = numpy_helper.to_array(weight(out, "V"))
    assert b.dtype == np.float16, "still narrowed"
    assert b[0, 0] == np.inf and b[0, 1] == -np.inf and np.isnan(b[0, 2])
    assert np.signbit(b[0, 3]) and not np.signbit(b[0, 4])


def check_constants_get_a_twin_or_a_cast(tool):
    for form in ({"value": c("t", [1.5] * 8)}, {"value_floats": [1.5] * 8}, {"value_float": 1.5}):
        m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Constant", [], ["k"], "konst", **form),
                   N("Add", ["a", "k"], ["b"], "add"), N("MatMul", ["b", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)])
        out = tool(m, *INFER)
        assert solve.faults(out) == [] and node(out, "add").input[1].startswith("k__mpr_f16")
        assert same(node(m, "konst"), node(out, "konst")), "the constant itself stays"
        x = rng.standard_normal((2, 8)).astype(np.float32)
        assert np.allclose(run(m, x=x)[0], run(out, x=x)[0], rtol=2e-2, atol=2e-2)


def check_constant_of_shape(tool):
    for form in ({}, {"value": c("t", [0.5])}):
        m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Shape", ["x"], ["s"], "shape"),
                   N("ConstantOfShape", ["s"], ["k"], "fill", **form), N("Add", ["a", "k"], ["b"], "add"),
                   N("MatMul", ["b", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)])
        out = tool(m, *INFER)
        assert node(out, "add").input[1] != "k", "the low reader reads a low value"


def check_dtype_attributes(tool):
    m = model([N("RandomNormalLike", ["x"], ["k"], "noise", dtype=1), N("MatMul", ["x", "W"], ["a"], "mm"),
               N("Add", ["a", "k"], ["b"], "add"), N("MatMul", ["b", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(m, *INFER)
    assert same(node(out, "noise"), node(m, "noise"))


def check_user_cast_from_integers(tool):
    """A Cast of integers that float16 holds exactly may become one to float16."""
    def cast(elem, shape=("n", 8)):
        m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["f", "W"], ["y"], "mm")], [v("i", shape, elem)], [v("y")],
                  [w("W", 8, 8)])
        out = tool(m, *INFER)
        user, reader = node(out, "user"), node(out, "mm")
        return user.attribute[0].i, user.output[0], reader.input[0]
    for elem in (T.BOOL, T.UINT8, T.INT8):
        to, made, read = cast(elem)
        assert (to == F16 and made == read == "f") or (to == T.FLOAT and read == "f__mpr_f16"), (elem, to, made, read)
    for elem in (T.INT32, T.INT64, T.UINT16, T.DOUBLE):
        assert cast(elem) == (T.FLOAT, "f", "f__mpr_f16"), "not exact: a Cast behind it"


def check_retargeted_cast_comes_back(tool):
    m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["f", "W"], ["y"], "mm")], [v("i", ("n", 8), T.BOOL)], [v("y")],
              [w("W", 8, 8)], infos=[v("f")])
    base = tool(m, "--passes", "none")
    tool(m, *TRAIN)
    back = tool(tool.target, "--to", "fp32")
    assert same(base, back)


def settled(tool, m, *flags):
    """Converted; a second run changes nothing, decisions kept beside the file do the same, and the way back is exact."""
    base = tool(m, "--passes", "none", check=False)
    sidecar = tool.folder / "decisions.json"
    out = tool(m, *TRAIN, *flags, "--annotations", sidecar)
    source, first, report = tool.source, tool.target, json.loads(tool.report.read_text())
    tool(first, *TRAIN, *flags)
    assert tool.target.read_bytes() == first.read_bytes(), "a second run"
    assert same(tool(first, "--to", "fp32"), base), "the way back"
    to = [f for f in flags if f in ("fp16", "bf16")] or ["fp16"]
    tool(source, *TRAIN, "--to", to[0], "--autocast-profile", sidecar)
    assert tool.target.read_bytes() == first.read_bytes(), "decisions beside the model"
    return out, report["totals"]


def check_cast_of_ours_passes_a_widening_one(tool):
    """What the model widens goes into 16 bits from where it was."""
    for ir in (8, 10):
        for elem, to, merged in ((F16, "fp16", 1), (F16, "bf16", 1), (T.UINT16, "bf16", 1), (T.INT64, "fp16", 0), (T.DOUBLE, "fp16", 0)):
            m = model([N("Cast", ["h"], ["f"], "up", to=1), N("MatMul", ["f", "W"], ["a"], "mm"), N("Exp", ["f"], ["e"], "exp"),
                       N("Add", ["a", "e"], ["y"], "add")], [v("h", elem=elem)], [v("y")], [w("W", 8, 8)], ir=ir, infos=[v("f")])
            out, totals = settled(tool, m, "--to", to)
            assert totals["casts_merged"] == merged and node(out, "exp").input[0] == "f"
            made = next(n for n in added(out) if n.output[0] == node(out, "mm").input[0])
            assert made.input[0] == ("h" if merged else "f") and made.name.startswith("f__mpr_")


def check_user_cast_reads_a_low_value(tool):
    """Every low value is a float32 one: nothing stands between it and a Cast of the model. Text tells the types apart."""
    for ir in (8, 10):
        for elem in (T.DOUBLE, T.INT32, T.BFLOAT16, F16, T.FLOAT, T.STRING):
            m = model([N("MatMul", ["x", "W"], ["a"], "m1"), N("Cast", ["a"], ["d"], "user", to=elem),
                       N("MatMul", ["a", "W"], ["y"], "m2")], [v("x")], [v("y"), v("d", elem=elem)], [w("W", 8, 8)], ir=ir)
            out, totals = settled(tool, m)
            assert totals["casts_merged"] == (elem != T.STRING) and same(node(out, "user").attribute[0], node(m, "user").attribute[0])
            assert (node(out, "user").input[0] == "a") == (elem != T.STRING)
    both = [v("y"), v("d", elem=T.DOUBLE), v("a")]
    m = model([N("MatMul", ["x", "W"], ["a"], "m1"), N("Cast", ["a"], ["d"], "user", to=T.DOUBLE), N("MatMul", ["a", "W"], ["y"], "m2")],
              [v("x")], both, [w("W", 8, 8)])
    out, _ = settled(tool, m)
    assert node(out, "user").input[0] == "a__mpr_f16"


def check_user_cast_of_whole_numbers(tool):
    """Constants tell their numbers; one reader in float32 keeps the Cast."""
    for numbers, goes in (([1, 2, 2048], True), ([1, 2, 2049], False), ([-2048, 0, 1], True)):
        for elem in (np.int64, np.int32):
            m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["x", "W"], ["a"], "mm"), N("Add", ["a", "f"], ["b"], "add"),
                       N("MatMul", ["b", "V"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 3), w("V", 3, 8), c("i", numbers, elem)])
            out, _ = settled(tool, m)
            assert node(out, "user").attribute[0].i == (F16 if goes else T.FLOAT), (numbers, elem)
    m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["f", "W"], ["a"], "mm"), N("Exp", ["f"], ["e"], "exp"),
               N("Add", ["a", "e"], ["y"], "add")], [v("i", elem=T.BOOL)], [v("y")], [w("W", 8, 8)])
    out, _ = settled(tool, m)
    assert node(out, "user").attribute[0].i == T.FLOAT
    m.graph.node.pop(2)
    m.graph.node[-1].op_type = "Identity"
    del m.graph.node[-1].input[1:]
    out, _ = settled(tool, m)
    assert node(out, "user").attribute[0].i == F16
    out, _ = settled(tool, m, "--exclude", "node:user")
    assert node(out, "user").attribute[0].i == T.FLOAT


def check_low_constants_beside_the_originals(tool):
    for ir in (8, 10):
        for form in ({"value": c("t", [1.5] * 8)}, {"value_floats": [1.5] * 8}, {"value_float": 1.5}):
            m = model([N("Constant", [], ["k"], "konst", **form), N("MatMul", ["x", "W"], ["a"], "mm"), N("Add", ["a", "k"], ["b"], "add"),
                       N("MatMul", ["b", "W"], ["d"], "m2"), N("Pow", ["d", "k"], ["y"], "pow")], [v("x")], [v("y")], [w("W", 8, 8)], ir=ir)
            base = tool(m, "--passes", "none")
            out = tool(m, *INFER)
            twin = next(n for n in out.graph.node if n.output[0] == "k__mpr_f16")
            assert twin.op_type == "Constant" and twin.attribute[0].t.data_type == F16 and node(out, "add").input[1] == twin.output[0]
            assert list(twin.attribute[0].t.dims) == ([] if "value_float" in form else [8]) and node(out, "pow").input[1] == "k"
            assert np.array_equal(numpy_helper.to_array(twin.attribute[0].t), np.full(twin.attribute[0].t.dims, 1.5, np.float16))
            first = tool.target
            tool(first, *INFER)
            assert tool.target.read_bytes() == first.read_bytes()
            back = tool(first, "--to", "fp32")
            assert list(back.graph.node) == list(base.graph.node)


def check_narrowing_user_casts_stay(tool):
    m = model([N("Cast", ["x"], ["h"], "down", to=F16), N("Cast", ["h"], ["f"], "up", to=1), N("MatMul", ["f", "W"], ["y"], "mm")],
              [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(m, *INFER)
    assert node(out, "down").attribute[0].i == F16
    x = (1 + rng.standard_normal((2, 8)) / 2048).astype(np.float32)
    assert np.allclose(run(out, x=x)[0], run(m, x=x)[0], rtol=1e-2, atol=1e-2)
    chain = model([N("Cast", ["x"], ["i"], "int", to=T.INT32), N("Cast", ["i"], ["f"], "flt", to=1),
                   N("MatMul", ["f", "W"], ["y"], "mm")], [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(chain, *INFER)
    assert node(out, "int").attribute[0].i == T.INT32, "the rounding to integers stays"


def check_dead_user_casts_stay(tool):
    m = chain()
    m.graph.node.append(N("Cast", ["r"], ["dead"], "unused", to=T.DOUBLE))
    assert node(tool(m, *INFER), "unused").attribute[0].i == T.DOUBLE


def check_sparse_weights(tool):
    m = chain()
    dense = m.graph.initializer.pop(1)
    values = numpy_helper.from_array(np.array([1.5, -2], np.float32), "V")
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([3, 17]), "idx"), [8, 8]))
    out = tool(m, *INFER, check=False)
    assert same(out.graph.sparse_initializer[0], m.graph.sparse_initializer[0]) and dense.name == "V"
    assert "V" in {n.input[0] for n in added(out)}


def check_state_of_a_loop_has_one_type(tool):
    body = helper.make_graph([N("MatMul", ["s", "W"], ["t"], "inner"), N("Identity", ["go"], ["on"], "again")], "body",
                             [v("i", (), T.INT64), v("go", (), T.BOOL), v("s")], [v("on", (), T.BOOL), v("t")])
    m = model([N("MatMul", ["x", "W"], ["a"], "before"), N("Loop", ["k", "", "a"], ["y"], "loop", body=body)], [v("x")], [v("y")],
              [w("W", 8, 8), c("k", 3, np.int64)])
    for flags in (INFER, TRAIN):
        out = tool(m, *flags)
        x = rng.standard_normal((2, 8)).astype(np.float32)
        assert np.allclose(run(out, x=x)[0], run(m, x=x)[0], rtol=3e-2, atol=3e-2)


def check_declared_types(tool):
    m = chain(infos=[v("a", ("n", 8)), v("r", ("batch", 8))])
    m.graph.value_info[0].doc_string = "inner"
    out = tool(m, *INFER)
    a = info(out, "a")
    assert a.type.tensor_type.elem_type == F16 and a.doc_string == "inner"
    assert a.type.tensor_type.shape == m.graph.value_info[0].type.tensor_type.shape
    new = info(out, "x__mpr_f16")
    assert new.type.tensor_type.elem_type == F16 and new.type.tensor_type.shape == m.graph.input[0].type.tensor_type.shape


# ---- writing
def check_same_bytes_everywhere(tool):
    m = chain()
    tool(m, *INFER)
    first, source = tool.target.read_bytes(), tool.source
    for env in ({"TZ": "Asia/Tokyo"}, {"LC_ALL": "de_DE.UTF-8"}, {"OMP_NUM_THREADS": "1", "MPR_THREADS": "1"}):
        target = tool.folder / "again.onnx"
        subprocess.run([tool.path, source, "-o", target, *INFER], env={**os.environ, **env}, check=True, capture_output=True,
                       cwd=tool.folder)
        assert target.read_bytes() == first


def check_running_again_changes_nothing(tool):
    for ir in (8, 10):
        for flags in (INFER, TRAIN, (*INFER, "--io", "all=fp16"), (*INFER, "--weights-oor", "saturate")):
            tool(chain(ir=ir), *flags)
            first = tool.target
            tool(first, *flags)
            assert tool.target.read_bytes() == first.read_bytes(), (ir, flags)


def check_marks(tool):
    old, new = tool(chain(ir=9), *TRAIN), tool(chain(ir=10), *TRAIN)
    assert [p.key for p in old.metadata_props] == ["mpr.precision"] and not new.metadata_props
    assert all([(p.key, p.value) for p in n.metadata_props] == [("mpr.cast", "f16" if n.output[0] != "y" else "f32")]
               for n in added(new))
    assert all(not n.metadata_props for n in added(old))


def check_a_look_alike_is_the_users(tool):
    """A Cast with one of our names and without a mark stays."""
    m = model([N("Cast", ["x"], ["x__mpr_f16"], "x__mpr_f16", to=F16), N("Cast", ["x__mpr_f16"], ["f"], "f", to=1),
               N("MatMul", ["f", "W"], ["y"], "mm")], [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(m, *TRAIN)
    assert node(out, "x__mpr_f16").input[0] == "x"
    assert same(tool(tool.target, "--to", "fp32"), tool(m, "--passes", "none"))


def check_training_goes_back_exactly(tool):
    for ir in (8, 10):
        m = chain(ir=ir, infos=[v("a")])
        base = tool(m, "--passes", "none")
        for to in ("fp16", "bf16"):
            tool(m, *TRAIN, "--to", to)
            assert same(tool(tool.target, "--to", "fp32"), base)


def check_opsets_stay(tool):
    for opset, ir in ((9, 4), (13, 7), (21, 10)):
        out = tool(chain(opset=opset, ir=ir), *INFER)
        assert out.opset_import[0].version == opset and out.ir_version == ir


def check_unknown_fields_survive(tool):
    m = chain()
    raw = m.SerializeToString() + bytes([0xFA, 0x3F, 3]) + b"abc"  # field 1023 of the model
    path = tool.folder / "unknown.onnx"
    path.write_bytes(raw)
    tool(path, *TRAIN, check=False)
    assert bytes([0xFA, 0x3F, 3]) + b"abc" in tool.target.read_bytes()


# ---- foreign models in 16 bits
def foreign(keep_io=False):
    """As converters for inference write them: weights, inner values, inputs and outputs in float16."""
    low = np.float16
    elem = T.FLOAT if keep_io else F16
    first = [N("Cast", ["x"], ["x16"], "in_cast", to=F16)] if keep_io else []
    last = [N("Cast", ["y16"], ["y"], "out_cast", to=1)] if keep_io else []
    x, y = ("x16", "y16") if keep_io else ("x", "y")
    return model([*first, N("MatMul", [x, "W"], ["a"], "m1"), N("Add", ["a", "b"], ["d"], "add"), N("Softmax", ["d"], ["s"], "sm"),
                  N("MatMul", ["s", "W"], [y], "m2"), *last], [v("x", elem=elem)], [v("y", elem=elem)],
                 [w("W", 8, 8, dtype=low), w("b", 8, dtype=low)], infos=[v("a", elem=F16), v("s", elem=F16)])


def check_foreign_models_become_float(tool):
    x = rng.standard_normal((2, 8)).astype(np.float16)
    for keep_io in (False, True):
        m = foreign(keep_io)
        out = tool(m, "--to", "fp32")
        assert weight(out, "W").data_type == T.FLOAT and info(out, "a").type.tensor_type.elem_type == T.FLOAT
        assert list(out.graph.input) == list(m.graph.input) and list(out.graph.output) == list(m.graph.output)
        feed = x.astype(np.float32) if keep_io else x
        assert np.allclose(run(out, x=feed)[0], run(m, x=feed)[0], rtol=2e-3, atol=2e-3)
        first = tool.target
        tool(first, "--to", "fp32")
        assert tool.target.read_bytes() == first.read_bytes()


def check_foreign_interface_on_request(tool):
    out = tool(foreign(), "--to", "fp32", "--io", "all=fp32")
    assert out.graph.input[0].type.tensor_type.elem_type == T.FLOAT == out.graph.output[0].type.tensor_type.elem_type
    assert not nodes(out, "Cast")


def check_rounding_stays_unless_dropped(tool):
    m = foreign(keep_io=True)
    out = tool(m, "--to", "fp32")
    assert node(out, "in_cast").attribute[0].i == F16
    out = tool(m, "--to", "fp32", "--drop-rounding")
    assert not [n for n in nodes(out, "Cast") if n.attribute[0].i != T.FLOAT] and node(out, "m1").input[0] == "x"


def check_foreign_bodies(tool):
    body = helper.make_graph([N("MatMul", ["x", "W"], ["t"], "inner")], "then", [], [v("t", elem=F16)])
    other = helper.make_graph([N("Cast", ["z"], ["u"], "down", to=F16)], "else", [], [v("u", elem=F16)])
    m = model([N("If", ["k"], ["y"], "branch", then_branch=body, else_branch=other)],
              [v("x", elem=F16), v("z"), v("k", (), T.BOOL)], [v("y", elem=F16)], [w("W", 8, 8, dtype=np.float16)])
    tool(m, "--to", "fp32")
    tool(m, "--to", "fp32", "--drop-rounding")


# ---- flags
def check_io(tool):
    out = tool(chain(), *INFER, "--io", "x=fp16")
    assert out.graph.input[0].type.tensor_type.elem_type == F16 and out.graph.output[0].type.tensor_type.elem_type == T.FLOAT
    assert not any(n.input[0] == "x" for n in added(out))
    out = tool(chain(), *INFER, "--io", "all=fp16", "--io", "x=keep")
    assert out.graph.input[0].type.tensor_type.elem_type == T.FLOAT and out.graph.output[0].type.tensor_type.elem_type == F16
    base = tool(chain(), "--passes", "none")
    out = tool(chain(), *TRAIN, "--io", "all=bf16", "--to", "bf16")
    assert out.graph.input[0].type.tensor_type.elem_type == BF16
    for bad in ("x", "x=fp8", "nobody=fp16", "=fp16", "a=fp16", "W=fp16"):
        tool(chain(), "--io", bad, code=1)
    assert base.graph.input[0].type.tensor_type.elem_type == T.FLOAT


def check_passes_none(tool):
    m = chain()
    out = tool(m, "--passes", "none")
    assert same(m, out)
    tool(m, "--passes", "none", "--opset", "18", code=1)
    tool(m, "--passes", "none", "--inline", code=1)
    tool(m, "--passes", "some", code=1)


def check_drop_rounding_needs_the_way_back(tool):
    tool(chain(), "--drop-rounding", code=1)
    tool(chain(), "--drop-rounding", "--to", "fp16", code=1)


def function(opset=17, literal=True):
    """Scale(a; by) = a * literal + by, with an inner branch"""
    half = [N("Constant", [], ["k"], value_float=0.5)] if literal else [N("CastLike", ["one", "a"], ["k"])]
    branch = [helper.make_graph([N("Relu", ["m"], [f"r{i}"])] if i else [N("Neg", ["m"], [f"r{i}"])], f"b{i}", [], [
        helper.make_tensor_value_info(f"r{i}", T.UNDEFINED, None)]) for i in range(2)]
    for b in branch:
        b.output[0].ClearField("type")
    inner = [*half, N("Mul", ["a", "k"], ["m"], "mul"), N("Constant", [], ["t"], value=c("t", True, bool)),
             N("If", ["t"], ["r"], "choose", then_branch=branch[0], else_branch=branch[1])]
    elu = N("Elu", ["r"], ["o"], "elu")
    elu.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    f = helper.make_function("my", "Scale", ["a"], ["o", "a2"], [*inner, elu, N("Identity", ["a"], ["a2"])],
                             [helper.make_opsetid("", opset)], attributes=["alpha"])
    return f


def with_calls(opset=17, function_opset=17):
    m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Scale", ["a"], ["b", "skip"], "first", domain="my", alpha=0.7),
               N("Scale", ["b"], ["d", "unused"], "second", domain="my"), N("Add", ["d", "skip"], ["e"], "add"),
               N("MatMul", ["e", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)], opset=opset,
              imports=[helper.make_opsetid("my", 1)])
    m.functions.append(function(function_opset))
    return m


def check_calls_of_functions(tool):
    m = with_calls()
    out = tool(m, *INFER, "--inline")
    assert not out.functions and not nodes(out, "Scale")
    assert "first/mul" in {n.name for n in nodes(out)} and "second/mul" in {n.name for n in nodes(out)}
    x = rng.standard_normal((2, 8)).astype(np.float32)
    assert np.allclose(run(m, x=x)[0], run(out, x=x)[0], rtol=2e-2, atol=2e-2)
    plain = tool(m, "--inline", "--exclude", "op:.*")
    assert np.array_equal(run(m, x=x)[0], run(plain, x=x)[0]), "taking apart changes no number"
    tool(m, *TRAIN, "--inline")
    first = tool.target
    tool(first, *TRAIN, "--inline")
    assert first.read_bytes() == tool.target.read_bytes()
    assert same(tool(first, "--to", "fp32"), plain)


def check_units_are_called_as_onnx_calls_them(tool):
    for opset, names in ((13, {"T"}), (14, {"T", "U"}), (15, {"T", "T1", "T2"})):
        m = model([N("Conv", ["x", "K"], ["a"], "cv"), N("BatchNormalization", ["a", "s", "b", "m", "q"], ["bn"], "norm"),
                   N("Conv", ["bn", "L"], ["y"], "last")], [v("x", (1, 3, 5, 5))], [v("y", (1, 4, 5, 5))],
                  [w("K", 4, 3, 1, 1), w("L", 4, 4, 1, 1), *(c(k, [1, 2, 3, 4]) for k in "sbmq")], opset=opset)
        tool(m, *INFER)
        assert set(next(n for n in json.loads(tool.report.read_text())["nodes"] if n["path"] == "norm")["units"]) == names


def check_slow_kernels_are_told(tool):
    def told():
        return {(x["where"], x["count"]) for x in json.loads(tool.report.read_text())["warnings"] if x["kind"] == "kernel"}
    tool(chain(), *INFER)
    assert not told()
    m = model([N("GRU", ["x", "V", "R"], ["", "h"], "gru", hidden_size=4), N("MatMul", ["h", "U"], ["y"], "mm")],
              [v("x", ("t", 1, 8))], [v("y", (1, 1, 8))], [w("V", 1, 12, 8), w("R", 1, 12, 4), w("U", 4, 8)])
    tool(m, *INFER)
    assert told() == {("GRU", 1)}
    tool(m, *INFER, "--exclude", "op:GRU")
    assert not told()


def check_nodes_that_only_the_file_knows(tool):
    """What a node that the library cannot run makes is not guessed: readers of whole numbers are no fault of the model."""
    table = w("E", 50, 8)
    custom = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Tokens", ["a"], ["ids"], domain="com.x"), N("Gather", ["E", "ids"], ["g"]),
                    N("MatMul", ["g", "W"], ["y"], "m2")], [v("x")], [v("y", None)], [w("W", 8, 8), table],
                   imports=[helper.make_opsetid("com.x", 1)])
    assert node(tool(custom, *INFER, check=False), "mm").input[0] == "x__mpr_f16"
    boxes = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("NonMaxSuppression", ["boxes", "scores", "most"], ["ids"]),
                   N("Gather", ["a", "ids"], ["g"]), N("ReduceMax", ["g"], ["y"], keepdims=0)],
                  [v("x"), v("boxes", (1, 5, 4)), v("scores", (1, 2, 5))], [v("y", ())], [w("W", 8, 8), c("most", [3], np.int64)])
    dynamic = model([N("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"), N("DequantizeLinear", ["q", "s", "z"], ["d"], "back"),
                     N("MatMul", ["d", "W"], ["y"], "mm")], [v("x")], [v("y")], [w("W", 8, 8)])
    for m in (boxes, dynamic):
        assert node(tool(m, *INFER), "mm").input[1] == "W"
        settled(tool, m)


def check_quantisation_steps_stay(tool):
    """From opset 23 the step has a type of its own; a user who includes the operator means its data."""
    nodes_ = [N("MatMul", ["x", "W"], ["h"], "mm"), N("QuantizeLinear", ["h", "step", "zero"], ["q"], "quantise"),
              N("DequantizeLinear", ["q", "step", "zero"], ["d"], "back"), N("MatMul", ["d", "V"], ["y"], "m2")]
    m = model(nodes_, [v("x")], [v("y")], [w("W", 8, 8), w("V", 8, 8), c("step", 0.05), c("zero", 0, np.int8)], opset=23, ir=11)
    for op in ("QuantizeLinear", "QuantizeLinear|DequantizeLinear"):
        out = tool(m, *INFER, "--include", f"op:{op}")
        assert list(node(out, "quantise").input)[:2] == ["h", "step"], node(out, "quantise").input
        assert weight(out, "step").data_type == T.FLOAT
        settled(tool, m, "--include", f"op:{op}")


def twice(**more):
    """Twice(x): MatMul and Relu; Thrice calls it and adds 0.25; the main graph calls both."""
    inner = helper.make_function("my", "Twice", ["a", "k"], ["r"], [N("MatMul", ["a", "k"], ["m"], "mm"), N("Relu", ["m"], ["r"], "act")],
                                 [helper.make_opsetid("", 17)])
    outer = helper.make_function("my", "Thrice", ["a", "k"], ["s"], [
        N("Twice", ["a", "k"], ["t"], "in", domain="my"), N("Constant", [], ["q"], value_float=0.25), N("Add", ["t", "q"], ["u"], "add"),
        N("Exp", ["u"], ["e"], "exp"), N("Mul", ["u", "e"], ["s"], "mul")],
                                 [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])
    m = model([N("Twice", ["x", "W"], ["b"], "one", domain="my"), N("Twice", ["b", "W"], ["d"], "two", domain="my"),
               N("Thrice", ["d", "W"], ["e"], "three", domain="my"), N("Twice", ["e", "W"], ["y"], "four", domain="my")],
              [v("x")], [v("y")], [w("W", 8, 8)], imports=[helper.make_opsetid("my", 1)], **more)
    m.functions.extend([inner, outer])
    return m


def check_functions_painted_per_call(tool):
    """Calls that are painted alike share a copy of the function, the original stays for the others."""
    for ir in (8, 10):
        for to in ("fp16", "bf16"):
            m = twice(ir=ir)
            out, _ = settled(tool, m, "--to", to)
            low = F16 if to == "fp16" else BF16
            assert list(out.functions)[:2] == list(m.functions), "the functions stay, copies come behind them"
            ending = "__mpr_f16" if to == "fp16" else "__mpr_bf16"
            assert [f.name for f in out.functions][2:] == ["Thrice" + ending]
            assert [n.op_type for n in out.graph.node if n.domain == "my"] == ["Twice", "Twice", "Thrice" + ending, "Twice"]
            x = rng.standard_normal((2, 8)).astype(np.float32)
            if to == "fp16":
                assert np.allclose(run(m, x=x)[0], run(out, x=x)[0], rtol=3e-2, atol=3e-2)
            assert json.loads(tool.report.read_text())["totals"]["nodes"]["float16" if to == "fp16" else "bfloat16"] >= 8
    m = twice()
    out, _ = settled(tool, m, "--exclude", "node:two")
    assert node(out, "two").input[0] == "b__mpr_f32" and not tool.why("two:Twice/mm") - {"user-name"}
    out, _ = settled(tool, m, "--exclude", "scope:two:Twice|.*/in:Twice")
    assert sorted(f.name for f in out.functions) == ["Thrice", "Thrice__mpr_f16", "Twice", "Twice__mpr_f16"]
    out, _ = settled(tool, m, "--exclude", "node:mm")
    assert [f.name for f in out.functions] == ["Twice", "Thrice"], "nothing in 16 bits is left"
    out, _ = settled(tool, m, "--exclude", "op:Relu")
    assert [n.op_type for n in out.graph.node if n.domain == "my"] == ["Twice__mpr_f16"] * 2 + ["Thrice__mpr_f16", "Twice__mpr_f16_1"]
    (tool.folder / "l.json").write_text('{"deny": ["+my::Thrice"]}')
    out = tool(m, *TRAIN, "--lists", tool.folder / "l.json")
    assert node(out, "three").op_type == "Thrice" and node(out, "four").input[0] == "e__mpr_f16"
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == F16 or weight(out, "W__mpr_f16") is not None
    again = tool.target
    tool(again, *INFER)
    assert tool.target.read_bytes() == again.read_bytes()
    assert {f.name for f in tool(again, "--to", "fp32").functions} == {"Twice", "Thrice"}
    settled(tool, with_calls())


def check_calls_across_opsets(tool):
    out = tool(with_calls(18, 17), *INFER, "--inline", check=False)
    assert not out.functions
    assert "needs opset 18" in tool(with_calls(17, 18), *INFER, "--inline", code=2)
    out = tool(with_calls(17, 18), *INFER, "--inline", "--opset", "18")
    assert out.opset_import[0].version == 18 and not out.functions
    out = tool(with_calls(17, 17), *INFER, "--opset", "21")
    assert out.functions[0].opset_import[0].version == 21


def check_external_data(tool):
    m = model([N("MatMul", ["x", "W"], ["y"], "mm")], [v("x", ("n", 64))], [v("y", ("n", 64))], [w("W", 64, 64), w("small", 2)])
    out = tool(m, *TRAIN, "--external", "always")
    big, data = weight(out, "W"), Path(f"{tool.target}.data")
    where = {e.key: e.value for e in big.external_data}
    assert where["location"] == data.name and int(where["offset"]) % 4096 == 0 and data.stat().st_size == 64 * 64 * 4
    assert weight(out, "small").data_location == T.DEFAULT
    external, before = tool.target, data.read_bytes()
    out = tool(external, *TRAIN)
    assert weight(out, "W").data_location == T.EXTERNAL, "what lay outside stays outside"
    out = tool(external, *INFER)
    where = {e.key: e.value for e in weight(out, "W").external_data}
    assert where["location"] == f"{tool.target.name}.data" and Path(f"{tool.target}.data").stat().st_size == 64 * 64 * 2
    out = tool(external, *INFER, "--external", "never")
    assert weight(out, "W").data_location == T.DEFAULT and len(weight(out, "W").raw_data) == 64 * 64 * 2
    assert not Path(f"{tool.target}.data").exists() and data.read_bytes() == before
    m.graph.initializer[0].ClearField("raw_data")
    m.graph.initializer[0].float_data.extend(numpy_helper.to_array(w("W", 64, 64)).reshape(-1).tolist())
    out = tool(m, *TRAIN, "--external", "always")
    assert weight(out, "W").data_location == T.EXTERNAL and not weight(out, "W").float_data


def check_the_input_is_never_written(tool):
    path = tool.folder / "self.onnx"
    onnx.save(chain(), str(path))
    link = tool.folder / "link.onnx"
    os.link(path, link)
    before = path.read_bytes()
    for target in (path, link):
        done = subprocess.run([tool.path, path, "-o", target, *INFER], capture_output=True)
        assert done.returncode == 1 and path.read_bytes() == before


def check_nothing_is_left_behind(tool):
    folder = tool.folder / "full"
    folder.mkdir()
    target = folder / "out.onnx"
    target.write_bytes(b"as it was")
    bad = tool.folder / "bad.onnx"
    bad.write_bytes(b"no model")
    for flags, source in (((), bad), (("--include", "op:(["), None), (("--io", "q=fp16"), None)):
        if source is None:
            source = tool.folder / "good.onnx"
            onnx.save(chain(), str(source))
        done = subprocess.run([tool.path, source, "-o", target, *flags], capture_output=True)
        assert done.returncode in (1, 2) and target.read_bytes() == b"as it was"
        assert [p.name for p in folder.iterdir()] == ["out.onnx"]
    done = subprocess.run([tool.path, source, "-o", tool.folder / "no" / "such" / "out.onnx"], capture_output=True)
    assert done.returncode == 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    failed = 0
    checks = [(name, f) for name, f in globals().items() if name.startswith("check_") and args.only in name]
    for name, f in checks:
        with tempfile.TemporaryDirectory(prefix="mpr-clauses-") as folder:
            try:
                f(Tool(Path(args.tool).resolve(), Path(folder)))
            except Exception as error:  # noqa: BLE001
                failed += 1
                line = error.__traceback__
                while line.tb_next and line.tb_next.tb_frame.f_code.co_filename == __file__:
                    line = line.tb_next
                print(f"FAIL {name} (line {line.tb_lineno}): {type(error).__name__}: {' '.join(str(error).split())[:400]}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
