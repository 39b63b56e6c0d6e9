#!/usr/bin/env python3
"""The check by numbers beside a second emulation, in numpy: errors of single nodes, births of Inf and NaN, and how often --auto tries.

    emulation.py --tool BUILD/mpr-convert [--only TEXT]

Every function of this file whose name begins with `check_` is one promise. Exit code 77: skipped.
"""
import math
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from promise import *  # noqa: E402,F403

MOST = np.finfo(np.float64).max
OPS = {"MatMul": lambda a, b: a @ b, "Add": lambda a, b: a + b, "Mul": lambda a, b: a * b, "Div": lambda a, b: a / b,
       "Relu": lambda a: np.maximum(a, 0), "Tanh": np.tanh, "Exp": np.exp, "Sqrt": np.sqrt, "Neg": lambda a: -a,
       "Sigmoid": lambda a: 1 / (1 + np.exp(-a)),
       "Softmax": lambda a: (lambda e: e / e.sum(-1, keepdims=True))(np.exp(a - a.max(-1, keepdims=True)))}


def random_chain(seed, count, scale):
    g = np.random.default_rng(seed)
    values, ns, weights = ["x"], [], []
    for i in range(count):
        op = str(g.choice([*OPS, "MatMul"]))
        ins = [values[-1] if g.random() < 0.7 else str(g.choice(values))]
        if op == "MatMul":
            weights.append(numpy_helper.from_array((g.standard_normal((8, 8)) * 0.5 * scale**0.5).astype(np.float32), f"W{i}"))
            ins.append(f"W{i}")
        elif op in ("Add", "Mul", "Div"):
            ins.append(str(g.choice(values)))
        ns.append(N(op, ins, [f"v{i}"], f"n{i}"))
        values.append(f"v{i}")
    x = (g.standard_normal((4, 8)) * scale).astype(np.float32)
    return model(ns, [v("x", (4, 8))], [v(values[-1], (4, 8))], weights), x


def gaps(was, now):
    """Largest absolute and relative difference."""
    d = np.abs(was - now)
    d = np.where((was == now) | (np.isnan(was) & np.isnan(now)), 0, np.where(np.isfinite(d), d, MOST))
    share = np.where((d > 0) & (was != 0), np.where(d == MOST, d, d / np.abs(was)), 0)
    return d.max(), share.max()


def steps(a, b, low):
    """Places between two numbers among all of their type."""
    def rank(x):
        bits = x.astype(low).view(np.uint16).astype(np.int64)
        return np.where(bits & 0x8000, -(bits & 0x7FFF), bits & 0x7FFF)
    return np.abs(rank(a) - rank(b)).max()


def emulate(m, x, low, is_low):
    """(node, plain output, local output, accumulated output, birth) of every node; sums in double, one rounding a node."""
    weights = {t.name: numpy_helper.to_array(t) for t in m.graph.initializer}
    plain, total, bad = {"x": x, **weights}, {"x": x, **weights}, {}

    def at(node, values):
        def held(a):
            return np.asarray(a).astype(np.float32).astype(low if is_low[node.name] else np.float32)
        return held(OPS[node.op_type](*(held(values[i]).astype(np.float64) for i in node.input))).astype(np.float64)

    for n in m.graph.node:
        out = n.output[0]
        plain[out] = OPS[n.op_type](*(plain[i].astype(np.float64) for i in n.input)).astype(np.float32)
        was, local = plain[out].astype(np.float64), at(n, plain)
        total[out] = at(n, total)
        bad[out] = "nan" if (np.isnan(total[out]) & ~np.isnan(was)).any() else "inf" if (np.isfinite(was) & np.isinf(total[out])).any() else None
        yield n, was, local, total[out], bad[out] if bad[out] and not any(bad.get(i) for i in n.input) else "none"


def checked(tool, m, *flags):
    """What the tool says: within the tolerance or not, the report is there."""
    source, tool.report = tool.folder / "m.onnx", tool.folder / "m.json"
    onnx.save(m, str(source))
    done = subprocess.run([tool.path, source, "-o", tool.folder / "o.onnx", *INFER, "--report", tool.report, *flags], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return " ".join(done.stderr.split())


def check_errors_and_births(tool):
    born = set()
    for seed in range(24):
        to, low = (("fp16", np.float16), ("bf16", helper.tensor_dtype_to_np_dtype(BF16)))[seed % 2]
        m, x = random_chain(seed, 8, (1, 1, 8, 60)[seed // 2 % 4])
        np.savez(tool.folder / "x.npz", x=x)
        checked(tool, m, "--to", to, "--verify", tool.folder / "x.npz", "--weights-oor", "saturate", "--force-include",
                "op:MatMul|Add|Mul|Exp|Sqrt")
        report = json.loads(tool.report.read_text())
        told = {n["path"]: n for n in report["verify"]["nodes"]}
        is_low = {n["path"]: next(iter(n["units"].values()))["is"] != "float" for n in report["nodes"]}
        with np.errstate(all="ignore"):
            for n, was, local, total, birth in emulate(m, x, low, is_low):
                room = 1e-6 * max(1, np.abs(was[np.isfinite(was)]).max(initial=0))  # sums in another order
                said = told[n.name]
                for mine, theirs in ((gaps(was, local), said["local"]), (gaps(was, total), said["accumulated"])):
                    for a, b in zip(mine, (theirs["max_abs"], theirs["max_rel"])):
                        assert abs(a - b) <= 0.02 * max(a, b) + room, (seed, n.name, n.op_type, mine, theirs)
                if is_low[n.name] and not np.isnan(local).any() and not np.isnan(was).any():
                    assert abs(steps(was.astype(np.float32), local.astype(np.float32), low) - said["local"]["ulp"]) <= 1, (seed, n.name)
                assert said["born"] == birth, (seed, n.name, n.op_type, birth, said)
                born.add(birth)
    assert born >= {"none", "inf"}, born


def check_search_is_short(tool):
    found = 0
    for seed in range(6):
        m, x = random_chain(100 + seed, 20, 1)
        np.savez(tool.folder / "x.npz", x=x)
        for rtol in ("1e-2", "1e-3", "1e-9"):
            said = checked(tool, m, "--verify", tool.folder / "x.npz", "--auto", rtol, "--include", "op:MatMul|Mul|Add|Exp|Softmax|Tanh")
            raised, of, runs = map(int, re.search(r"(\d+) of (\d+) nodes stay.*found in (\d+) runs", said).groups())
            assert not of or runs <= 2 * math.log2(of) + 3, (seed, rtol, of, runs)
            reasons = [u["chain"][-1]["reason"] for n in json.loads(tool.report.read_text())["nodes"] for u in n["units"].values() if u["chain"]]
            assert bool(raised) == ("auto" in reasons), (seed, rtol, raised)
            found += raised > 0
    assert found


if __name__ == "__main__":
    main(globals())
