"""Small models, running the tool on them, and looking at what it wrote: for lists of promises such as clauses.py.
Exit code 77 when a module is absent: skipped."""
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


def main(namespace):
    """The checks of a module, globals() of it."""
    parser = argparse.ArgumentParser(description=namespace["__doc__"], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    failed = 0
    checks = [(name, f) for name, f in namespace.items() if name.startswith("check_") and args.only in name]
    for name, f in checks:
        with tempfile.TemporaryDirectory(prefix="mpr-clauses-") as folder:
            try:
                f(Tool(Path(args.tool).resolve(), Path(folder)))
            except Exception as error:  # noqa: BLE001
                failed += 1
                line = error.__traceback__
                while line.tb_next and line.tb_next.tb_frame.f_code.co_filename == namespace["__file__"]:
                    line = line.tb_next
                print(f"FAIL {name} (line {line.tb_lineno}): {type(error).__name__}: {' '.join(str(error).split())[:400]}")
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
