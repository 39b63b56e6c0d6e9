#!/usr/bin/env python3
"""Convert every model of some folders, to both 16-bit types and in both modes, and judge what comes out.

    corpus.py --tool BUILD/mpr-convert [--jobs N] [--only TEXT] [--flags "..."] [--solver FILE.py] [--spread] FOLDER...

What has to hold:
  valid       onnx.checker, strict inference, the type solve of solve.py and loading in onnxruntime: none of them that
              accepts the original refuses the result
  stable      converting the result again with the same flags gives the same bytes
  inverse     in training mode --to fp32 gives the bytes of --passes none back; else a valid model
  kept        inputs, outputs, names of nodes and initializers, opsets
  clean       nothing is left behind, and a model that was refused has one line that says why

--spread converts each model once, by type, mode and profile in turn: for thousands of small ones.
--solver is a further module with a function faults(model) that gives a list of texts. Ends with one row for each
folder and `N models, N failed`; exit code 77 (skipped) when a module or all data are absent.
"""
import argparse
import collections
import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import onnx
    import onnxruntime as ort
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(Path(__file__).resolve().parent))
import solve  # noqa: E402

RUNS = [(to, mode, []) for to in ("fp16", "bf16") for mode in ("train", "infer")]
SPREAD = RUNS + [(to, mode, ["--autocast-profile", profile]) for mode in ("train", "infer") for to in ("fp16", "bf16")
                 for profile in ("torch-cuda", "torch-cpu")]
# a kernel is missing, or the runtime's own insertions are wrong
UNSUPPORTED = ("NOT_IMPLEMENTED", "under development", "Unsupported model IR", "InsertedPrecisionFreeCast")


# ---- oracles: None, or what they say
def by_checker(path, model):
    onnx.checker.check_model(str(path))


def by_inference(path, model):
    if os.path.getsize(path) < 1 << 30:
        onnx.shape_inference.infer_shapes(onnx.load(str(path)), check_type=True, strict_mode=True, data_prop=True)


def by_runtime(path, model):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001
        if not any(word in str(error) for word in UNSUPPORTED):
            raise


def verdicts(path, solvers):
    model = onnx.load(str(path), load_external_data=False)
    said = {}
    for oracle in (by_checker, by_inference, by_runtime):
        try:
            oracle(path, model)
            said[oracle.__name__] = None
        except Exception as error:  # noqa: BLE001
            said[oracle.__name__] = " ".join(str(error).split())[:300]
    return said, [set(f(model)) for f in solvers]


def complaints(before, after):
    found = [f"{name}: {after[0][name]}" for name in after[0] if before[0][name] is None and after[0][name]]
    for old, new in zip(before[1], after[1]):
        # a graph whose nodes are in no order stays one
        found += [f"types: {f}" for f in sorted(new) if re.sub(r"__mpr_(f16|bf16|f32)(_\d+)?", "", f) not in old][:2]
    return found


# ---- one model
def names_of(graph, path=""):
    for n in graph.node:
        op = re.sub(r"__mpr_(f16|bf16)(_\d+)?$", "", n.op_type) if n.domain else n.op_type  # a call may call a copy
        yield f"{path}node {n.name} {op}"
        for a in n.attribute:
            for g in [a.g] * (a.type == a.GRAPH) + list(a.graphs):
                yield from names_of(g, f"{path}{n.name}.{a.name}/")
    for t in graph.initializer:
        yield f"{path}initializer {t.name}"


def lost(a, b):
    if [(o.domain, o.version) for o in a.opset_import] != [(o.domain, o.version) for o in b.opset_import]:
        return "the opsets are others"
    if a.ir_version != b.ir_version:
        return "the IR version is another"
    for side in ("input", "output"):
        if list(getattr(a.graph, side)) != list(getattr(b.graph, side)):
            return f"the {side}s are others"
    if list(b.functions)[:len(a.functions)] != list(a.functions):
        return "the functions are others"
    gone = collections.Counter(names_of(a.graph)) - collections.Counter(names_of(b.graph))
    return f"gone: {next(iter(gone))}" if gone else None


class Case:
    def __init__(self, args, model, folder, number=0):
        self.args, self.model, self.folder = args, model, folder
        self.runs = [SPREAD[number % len(SPREAD)]] if args.spread else RUNS
        self.bad, self.counts = [], collections.Counter()

    def call(self, source, name, *flags):
        """Path of the output, or None and the message in self.said."""
        folder = self.folder / name
        folder.mkdir()
        target = folder / self.model.name
        try:
            done = subprocess.run([self.args.tool, source, "-o", target, *flags], capture_output=True, timeout=120)
        except subprocess.TimeoutExpired:
            self.bad.append(f"{name}: no answer in 120 s")
            return None
        self.said = done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}"
        if done.returncode == 0:
            return target
        lines = [line for line in self.said.splitlines() if line.startswith("mpr-convert:")] or [self.said]
        self.said = lines[0].replace(str(source), "MODEL")
        if done.returncode not in (1, 2, 3) or not done.stderr:
            self.bad.append(f"{name}: exit {done.returncode}: {self.said}")
        if any(folder.iterdir()):
            self.bad.append(f"{name}: refused, but something was written")
        return None

    def equal(self, a, b):
        if a.read_bytes() == b.read_bytes():
            return True
        try:
            a, b = (onnx.load(str(p)).SerializeToString(deterministic=True) for p in (a, b))
            return a == b
        except Exception:  # noqa: BLE001
            return False

    def run(self):
        base = self.call(self.model, "base", "--passes", "none")
        if base is None:
            self.counts["refused"] += 1
            return
        given = onnx.load(str(self.model), load_external_data=False)
        if "--opset" in self.args.flags or "--inline" in self.args.flags:  # another model to begin with
            base = self.call(self.model, "plain", "--exclude", "op:.*", *self.args.flags.split())
            if base is None:
                self.counts["refused"] += 1
                return
            given = onnx.load(str(base), load_external_data=False)
        before = None
        for to, mode, more in self.runs:
            name = f"{to}-{mode}"
            flags = ["--to", to, "--mode", mode, *more, *self.args.flags.split()]
            if more and given.functions:  # a profile of torch takes calls apart
                base = self.call(self.model, "whole", "--exclude", "op:.*", "--inline", "--mode", "train")
                given = onnx.load(str(base), load_external_data=False)
            out = self.call(self.model, name, *flags)
            if out is None:
                self.counts[f"not {to}"] += 1
                self.counts["refused"] += "bfloat16 needs opset" not in self.said
                continue
            if out.read_bytes() == base.read_bytes():
                self.counts["unchanged"] += 1
                continue
            self.counts["converted"] += 1
            before = before or verdicts(self.model, self.args.solvers)
            found = complaints(before, verdicts(out, self.args.solvers))
            self.counts["valid"] += not found
            self.bad += [f"{name}: {f}" for f in found]
            gone = lost(given, onnx.load(str(out), load_external_data=False))
            if gone:
                self.bad.append(f"{name}: {gone}")
            again = self.call(out, f"{name}-again", *flags)
            if again and again.read_bytes() == out.read_bytes():
                self.counts["stable"] += 1
            else:
                self.bad.append(f"{name}: converting again " + ("differs" if again else f"fails: {self.said}"))
            back = self.call(out, f"{name}-back", "--to", "fp32")
            if not back:
                self.bad.append(f"{name}: the way back fails: {self.said}")
            elif mode == "train" and not self.equal(back, base):
                self.bad.append(f"{name}: the way back gives another model")
            else:
                found = complaints(before, verdicts(back, self.args.solvers)) if mode == "infer" else []
                self.counts["inverse"] += not found
                self.bad += [f"{name}: the way back: {f}" for f in found]


def judge(args, model, number, pipe):
    """In a child of its own: a library that crashes is only a result."""
    signal.alarm(600)
    folder = Path(tempfile.mkdtemp(prefix="mpr-corpus-"))
    case = Case(args, model, folder, number)
    try:
        case.run()
    except Exception as error:  # noqa: BLE001
        case.bad.append(f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    refused = getattr(case, "said", None) if case.counts["refused"] else None
    os.write(pipe, json.dumps([case.counts, case.bad[:8], refused]).encode()[:60000])


def judge_all(args, models):
    """Yields (model, counts, complaints, why refused), args.jobs children at a time."""
    waiting, running = list(enumerate(models))[::-1], {}
    while waiting or running:
        while waiting and len(running) < args.jobs:
            number, model = waiting.pop()
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                judge(args, model, number, write)
                os._exit(0)
            os.close(write)
            running[read] = (child, model, b"")
        for read in select.select(list(running), [], [])[0]:
            child, model, data = running[read]
            piece = os.read(read, 65536)
            if piece:
                running[read] = (child, model, data + piece)
                continue
            del running[read]
            os.close(read)
            status = os.waitpid(child, 0)[1]
            counts, bad, refused = json.loads(data) if data else ({}, [f"the check ended with status {status}"], None)
            yield model, collections.Counter(counts), bad, refused


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--flags", default="", help="further flags of the conversion")
    parser.add_argument("--spread", action="store_true", help="one type, mode and profile for each model, in turn")
    parser.add_argument("--solver", help="a further module with faults(model)")
    parser.add_argument("--list", help="only the models that this file names, one a line")
    args = parser.parse_args()
    args.solvers = [solve.faults]
    if args.solver:
        spec = importlib.util.spec_from_file_location("solver", args.solver)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        args.solvers.append(module.faults)
    wanted = set(Path(args.list).read_text().split()) if args.list else None
    total = failed = 0
    rows, reasons = [], collections.Counter()
    for folder in args.folders:
        models = sorted(p for p in folder.rglob("*.onnx") if re.search(args.only, str(p)))
        models = [m for m in models if wanted is None or str(m) in wanted]
        sums = collections.Counter()
        for model, counts, bad, refused in judge_all(args, models):
            sums += counts
            sums["failed"] += bool(bad)
            reasons[refused] += bool(refused)
            if bad:
                print(f"FAIL {model}", *bad, sep="\n     ", flush=True)
        total += len(models)
        failed += sums["failed"]
        rows.append((str(folder), len(models), sums))
    if not total:
        print("skipped: no models")
        return 77
    columns = ("converted", "unchanged", "refused", "not bf16", "valid", "stable", "inverse", "failed")
    print(f"{'set':<44} models", *(f"{c:>9}" for c in columns))
    for name, n, sums in rows:
        print(f"{name[-44:]:<44} {n:>6}", *(f"{sums[c]:>9}" for c in columns))
    for reason, n in reasons.most_common(40):
        if n:
            print(f"refused {n:>4} x {reason}")
    print(f"{total - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
