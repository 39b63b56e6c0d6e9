#!/usr/bin/env python3
"""Raise models to newer opsets: onnx.checker accepts the result, and it computes what the original computes.

    opsets.py --tool BUILD/mpr-convert [--to 13,18,21] [--only TEXT] [FOLDER...]

Models of the folders are fed from test_data_set_0 beside them, else at random. Without folders: old forms of every
operator that changed, made here. A node that cannot be raised is refused by its name. Exit code 77: skipped.
"""
import argparse
import collections
import re
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

ort.set_default_logger_severity(4)
rng = np.random.default_rng(3)
N = helper.make_node


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def model(opset, nodes, inputs, outputs, constants=(), functions=(), imports=()):
    value = lambda n, a: helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
    outs = [helper.make_tensor_value_info(o, t, None) for o, t in outputs.items()]  # shapes follow
    weights = [numpy_helper.from_array(a, n) for n, a in constants]
    graph = helper.make_graph(nodes, "g", [value(n, a) for n, a in inputs.items()], outs, weights)
    sets = [helper.make_opsetid("", opset), *imports]
    return helper.make_model(graph, opset_imports=sets, ir_version=8 if functions else 7, functions=functions)


def made():
    """name, model, feeds, expected outputs (None: those of the original)"""
    x, img = floats(2, 3, 4), floats(1, 3, 4, 6)
    one = lambda opset, node, feeds, expected=None, out=T.FLOAT, constants=(): (
        f"{node.op_type.lower()}_{opset}", model(opset, [node], feeds, {node.output[0]: out}, constants), feeds, expected)
    for opset in (7, 9, 11, 12):
        yield one(opset, N("Softmax", ["x"], ["y"], "n"), {"x": x})
        yield one(opset, N("LogSoftmax", ["x"], ["y"], "n", axis=2), {"x": x})
        yield one(opset, N("Hardmax", ["x"], ["y"], "n", axis=0), {"x": x})
        yield one(opset, N("ReduceSum", ["x"], ["y"], "n", axes=[1], keepdims=0), {"x": x})
        yield one(opset, N("ReduceMean", ["x"], ["y"], "n", axes=[-1] if opset > 10 else [2]), {"x": x})
        yield one(opset, N("ReduceMax", ["x"], ["y"], "n"), {"x": x})
        yield one(opset, N("ReduceL2", ["x"], ["y"], "n", axes=[0, 2]), {"x": x})
        yield one(opset, N("Squeeze", ["x"], ["y"], "n", axes=[0]), {"x": floats(1, 3, 1)})
        yield one(opset, N("Squeeze", ["x"], ["y"], "n"), {"x": floats(1, 3, 1)})
        yield one(opset, N("Unsqueeze", ["x"], ["y"], "n", axes=[0, 2]), {"x": x})
        yield one(opset, N("Split", ["x"], ["y", "z"], "n", axis=1, split=[1, 2]), {"x": x})
        yield one(opset, N("Split", ["x"], ["y", "z"], "n", axis=2), {"x": x})
        yield one(opset, N("Dropout", ["x"], ["y"], "n", **({"ratio": 0.3} if opset < 12 else {})), {"x": x})
    for opset in (7, 9, 10):
        yield one(opset, N("Pad", ["x"], ["y"], "n", pads=[0, 1, 0, 0, 0, 2], value=1.5), {"x": x})
        yield one(opset, N("Pad", ["x"], ["y"], "n", pads=[0, 1, 0, 0, 0, 2], mode="edge"), {"x": x})
        yield one(opset, N("Clip", ["x"], ["y"], "n", min=-0.5, max=0.25), {"x": x})
        yield one(opset, N("Clip", ["x"], ["y"], "n", max=0.25), {"x": x})
        yield one(opset, N("Clip", ["x"], ["y"], "n"), {"x": x})
        yield one(opset, N("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], "n"), {"x": img},
                  constants=[("s", floats(3)), ("b", floats(3)), ("m", floats(3)), ("v", np.abs(floats(3)))])
    for opset in (7, 9):
        yield one(opset, N("Slice", ["x"], ["y"], "n", starts=[1, 0], ends=[3, 2], axes=[2, 1]), {"x": x})
        yield one(opset, N("Slice", ["x"], ["y"], "n", starts=[0, 1, 1], ends=[2, 3, 9]), {"x": x})
        yield one(opset, N("TopK", ["x"], ["y", "i"], "n", k=2, axis=2), {"x": x})
        yield one(opset, N("Dropout", ["x"], ["y", "mask"], "n"), {"x": x})
    for mode in ("nearest", "linear"):
        yield one(7, N("Upsample", ["x"], ["y"], "n", scales=[1.0, 1.0, 2.0, 3.0], mode=mode), {"x": img})
        scales = [("s", np.array([1, 1, 2, 2], np.float32))]
        yield one(9, N("Upsample", ["x", "s"], ["y"], "n", mode=mode), {"x": img}, constants=scales)
        yield one(10, N("Resize", ["x", "s"], ["y"], "n", mode=mode), {"x": img}, constants=scales)
    empty, sizes = ("e", np.zeros(0, np.float32)), ("z", np.array([1, 3, 8, 12], np.int64))
    yield one(11, N("Resize", ["x", "e", "e", "z"], ["y"], "n"), {"x": img}, constants=[empty, sizes])
    yield one(9, N("Scatter", ["x", "i", "u"], ["y"], "n", axis=2), {"x": x}, constants=[
        ("i", rng.integers(0, 4, (2, 3, 2))), ("u", floats(2, 3, 2))])
    yield one(11, N("RoiAlign", ["x", "r", "k"], ["y"], "n", output_height=2, output_width=2), {"x": img}, constants=[
        ("r", np.array([[0, 0, 3, 2]], np.float32)), ("k", np.zeros(1, np.int64))])
    for mode in ("bilinear", "bicubic", "nearest"):
        yield one(16, N("GridSample", ["x", "g"], ["y"], "n", mode=mode), {"x": img},
                  constants=[("g", rng.uniform(-1, 1, (1, 2, 2, 2)).astype(np.float32))])
    yield one(17, N("DFT", ["x"], ["y"], "n", axis=1), {"x": floats(2, 8, 1)})
    yield one(17, N("DFT", ["x"], ["y"], "n"), {"x": floats(2, 8, 1)})
    yield one(13, N("Split", ["x"], ["y", "z"], "n", axis=2), {"x": x})
    a, b = floats(2, 3, 4), floats(3)
    yield one(6, N("Add", ["a", "b"], ["y"], "n", broadcast=1, axis=1), {"a": a, "b": b}, [a + b[None, :, None]])
    yield one(6, N("Mul", ["a", "b"], ["y"], "n", broadcast=1), {"a": a, "b": a[0]}, [a * a[0]])
    yield one(6, N("PRelu", ["x", "s"], ["y"], "n"), {"x": x, "s": b},
              [np.where(x > 0, x, x * b[None, :, None])])
    yield one(5, N("Cast", ["x"], ["y"], "n", to="DOUBLE"), {"x": x}, [x.astype(np.float64)], T.DOUBLE)
    yield one(4, N("Reshape", ["x"], ["y"], "n", shape=[4, 6]), {"x": x}, [x.reshape(4, 6)])
    yield one(3, N("Concat", ["x", "x"], ["y"], "n"), {"x": x}, [np.concatenate([x, x], 1)])
    yield one(5, N("Relu", ["x"], ["y"], "n", consumed_inputs=[0]), {"x": x}, [np.maximum(x, 0)])
    yield one(6, N("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], "n", is_test=1), {"x": img},
              [img / np.sqrt(np.float32(1 + 1e-5))],
              constants=[("s", np.ones(3, np.float32)), ("b", np.zeros(3, np.float32)),
                         ("m", np.zeros(3, np.float32)), ("v", np.ones(3, np.float32))])
    # bodies and functions go along
    then = helper.make_graph([N("ReduceSum", ["x"], ["t"], axes=[0, 1])], "t", [], [
        helper.make_tensor_value_info("t", 1, None)])
    other = helper.make_graph([N("Clip", ["x"], ["c"], min=0.0), N("ReduceMean", ["c"], ["u"], axes=[0, 1])], "e", [], [
        helper.make_tensor_value_info("u", 1, None)])
    nodes = [N("If", ["c0"], ["y"], "branch", then_branch=then, else_branch=other)]
    yield "bodies", model(10, nodes, {"x": x}, {"y": 1}, [("c0", np.array(False))]), {"x": x}, None
    f = helper.make_function("my", "F", ["a"], ["r"], [N("Clip", ["a"], ["b"], min=-0.1), N("ReduceSum", ["b"], ["r"], axes=[1])],
                             [helper.make_opsetid("", 10)])
    mine = [helper.make_opsetid("my", 1)]
    yield "function", model(10, [N("F", ["x"], ["y"], "call", domain="my")], {"x": x}, {"y": 1}, functions=[f],
                            imports=mine), {"x": x}, None


def refused():
    """name, model, word of the message"""
    x = {"x": floats(2, 3, 4)}
    one = lambda opset, node, constants=(): model(opset, [node], x, {"y": T.FLOAT}, constants)
    v = lambda n: (n, np.ones(3, np.float32))
    bn = ["x", "s", "b", "m", "v"]
    yield one(7, N("BatchNormalization", bn, ["y"], "n", spatial=0), [v(n) for n in bn[1:]]), "spatial"
    yield one(9, N("BatchNormalization", bn, ["y", "p", "q"], "n"), [v(n) for n in bn[1:]]), "trains"
    yield one(6, N("Dropout", ["x"], ["y"], "n"), ()), "is_test"
    yield one(18, N("GroupNormalization", ["x", "s", "b"], ["y"], "n", num_groups=3), [v("s"), v("b")]), "per group"


# ---- judging
def run(path, feeds):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def same(a, b):
    for x, y in zip(a, b):
        x, y = (np.asarray(v) for v in (x, y))
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        if x.dtype.kind in "fc" and not np.allclose(x, y, rtol=1e-5, atol=1e-6, equal_nan=True):
            return False
        if x.dtype.kind not in "fc" and not (x == y).all():
            return False
    return len(a) == len(b)


def fed(path, m):
    feeds, folder = {}, path.parent / "test_data_set_0"
    weights = {t.name for t in m.graph.initializer}
    for i, v in enumerate(v for v in m.graph.input if v.name not in weights):
        file = folder / f"input_{i}.pb"
        if not file.exists():
            return None
        feeds[v.name] = numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
    return feeds


class Judge:
    def __init__(self, args):
        self.args, self.counts, self.reasons = args, collections.Counter(), collections.Counter()

    def raise_to(self, path, to, folder):
        out = folder / f"out{to}.onnx"
        done = subprocess.run([self.args.tool, path, "-o", out, "--opset", str(to), "--exclude", "op:.*"],
                              capture_output=True)
        return out, done.returncode, done.stderr.decode()

    def one(self, name, path, m, feeds, expected, folder):
        opset = next((o.version for o in m.opset_import if o.domain in ("", "ai.onnx")), 0)
        try:
            onnx.checker.check_model(m)
            expected = run(path, feeds) if expected is None else expected
        except Exception as error:  # noqa: BLE001
            self.counts["not run"] += 1
            if not self.args.folders:
                print(f"not run: {name}: {' '.join(str(error).split())[:200]}")
            return
        for to in self.args.to:
            if to <= opset:
                continue
            out, code, said = self.raise_to(path, to, folder)
            if code == 2 and "cannot be raised" in said:
                self.counts["refused"] += 1
                self.reasons[re.sub(r"node '.*?' ", "", said.splitlines()[0])[:100]] += 1
                continue
            try:
                assert code == 0, said
                onnx.checker.check_model(str(out), full_check=True)
                raised = onnx.load(str(out))
                versions = {o.domain: o.version for o in raised.opset_import}
                assert versions.get("", versions.get("ai.onnx")) == to, "the opset is another"
                assert same(expected, run(out, feeds)), "other numbers"
                self.counts["ok"] += 1
            except Exception as error:  # noqa: BLE001
                if "NOT_IMPLEMENTED" in str(error):
                    self.counts["no kernel"] += 1
                    continue
                self.counts["failed"] += 1
                print(f"FAIL {name} {opset} -> {to}: {' '.join(str(error).split())[:300]}", flush=True)

    def all_made(self, folder):
        path = folder / "in.onnx"
        for name, m, feeds, expected in made():
            if self.args.only in name:
                onnx.save(m, str(path))
                expected = run(path, feeds) if expected is None else expected
                for v, found in zip(m.graph.output, expected):
                    v.CopyFrom(helper.make_tensor_value_info(v.name, v.type.tensor_type.elem_type, found.shape))
                onnx.save(m, str(path))
                self.one(name, path, m, feeds, expected, folder)
        for m, word in refused():
            onnx.save(m, str(path))
            out, code, said = self.raise_to(path, 25, folder)
            fine = code == 2 and word in said and "'n'" in said and not out.exists()
            self.counts["ok" if fine else "failed"] += 1
            if not fine:
                print(f"FAIL refused with {word}: exit {code}: {said}")
        for to in ("6", "99", "x"):
            onnx.save(model(7, [N("Relu", ["x"], ["y"])], {"x": floats(2)}, {"y": 1}), str(path))
            code = self.raise_to(path, to, folder)[1]
            self.counts["ok" if code == 1 else "failed"] += 1
            if code != 1:
                print(f"FAIL --opset {to}: exit {code}, expected 1")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--to", default="8,10,11,12,13,14,17,18,21,23")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    args.to = [int(n) for n in args.to.split(",")]
    judge = Judge(args)
    with tempfile.TemporaryDirectory(prefix="mpr-opsets-") as name:
        folder = Path(name)
        if not args.folders:
            judge.all_made(folder)
        for path in (p for f in args.folders for p in sorted(f.rglob("*.onnx")) if args.only in str(p)):
            try:
                m = onnx.load(str(path))
                feeds = fed(path, m)
            except Exception:  # noqa: BLE001
                feeds = None
            if feeds is None:
                judge.counts["not run"] += 1
            else:
                judge.one(str(path), path, m, feeds, None, folder)
    for reason, n in judge.reasons.most_common():
        print(f"refused {n:>4} x {reason}")
    print(", ".join(f"{n} {what}" for what, n in sorted(judge.counts.items())))
    failed = judge.counts["failed"]
    print(f"{sum(judge.counts.values()) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
