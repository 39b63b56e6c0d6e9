#!/usr/bin/env python3
"""Measures what 16 bits cost in training, and writes the tables of docs/NUMERICS.md.

    tools/numerics.py [--bin build/release] [--data tests/data] [--steps 300] [--seeds 8] [--write]

Four small models are trained with AdamW in float32, in float16 with dynamic loss scaling, in float16 without it and in
bfloat16, once for each seed; a seed is another order of the data. Then the gradient of one batch is taken at the first
and at the last weights: which of its elements are 0 in float16 and not in float32? --write puts the tables between the
marks in docs/NUMERICS.md. Needs numpy; takes some minutes.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
MODELS = {  # folder, batch size, learning rate, further flags
    "gpt2_lm": ("oracle/gpt2_lm", 8, 3e-3, []),
    "bert_cls": ("oracle/bert_cls", 16, 1e-3, []),
    "vit": ("digits_vit", 32, 3e-3, []),
    "cnn": ("oracle/cnn", 32, 1e-2, ["--bn-train"]),
}
LEAST_NORMAL = 2.0 ** -14
MODES = {
    "float32": [],
    "float16": ["--fp16"],
    "float16, scale 1": ["--fp16", "--loss-scale", "1"],
    "bfloat16": ["--bf16"],
}
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->\n"


def call(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stderr.strip()}")


def trained(args, name, mode, seed, out):
    """Evaluation loss after the last step, and the last loss scale."""
    folder, batch, rate, more = MODELS[name]
    folder = args.data / folder
    call(args.bin / "mpr-train", folder / "model_ts.onnx", "--train-data", folder / "train.npz", "--eval-data",
         folder / "eval.npz", "--labels", "labels", "--output-dir", out, "--max-steps", args.steps,
         "--per-device-train-batch-size", batch, "--optim", "adamw", "--learning-rate", rate, "--lr-scheduler-type",
         "linear", "--warmup-steps", args.steps // 10, "--max-grad-norm", 1, "--eval-strategy", "steps", "--eval-steps",
         args.steps, "--logging-steps", args.steps, "--save-strategy", "no", "--report-to", "none", "--threads", 1,
         "--seed", seed, "-q", *more, *MODES[mode])
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    scale = [r["loss_scale"] for r in rows if "loss_scale" in r]
    return [r["eval_loss"] for r in rows if "eval_loss" in r][-1], scale[-1] if scale else 1


def gradients(args, model, batch, scale, out, low):
    flags = ["--fp16", "--loss-scale", scale] if low else []
    call(args.bin / "mpr-run", model, "--inputs", batch, "--loss", "cross-entropy", "--labels", "labels", "--grads", out,
         "--grads-of", "params", "--threads", 1, "-q", *flags)
    return np.load(out)


def lost(args, name, model, scale, work):
    """Shares of the gradient's elements that are 0 in float16 and not in float32, and that float16 holds at this scale
    with missing bits."""
    folder, rows = args.data / MODELS[name][0], MODELS[name][1]
    batch = work / "batch.npz"
    np.savez(batch, **{k: v[:rows] for k, v in np.load(folder / "train.npz").items()})
    exact = gradients(args, model, batch, 1, work / "g32.npz", False)
    low = gradients(args, model, batch, scale, work / "g16.npz", True)
    there = gone = short = 0
    for key in exact.files:
        nonzero = exact[key] != 0
        there += int(nonzero.sum())
        gone += int((nonzero & (low[key] == 0)).sum())
        short += int((nonzero & (np.abs(exact[key]) * scale < LEAST_NORMAL)).sum())
    return gone / there, short / there


def percent(x):
    return "0" if x == 0 else f"{100 * x:.2g} %" if x >= 1e-5 else "under 0.001 %"


def measure(args, name, work):
    ends, scale, last = {}, 1, None
    for mode in MODES:
        ends[mode] = []
        for seed in range(1, args.seeds + 1):
            out = work / f"{name}-{mode.replace(', ', '-').replace(' ', '')}-{seed}"
            loss, s = trained(args, name, mode, seed, out)
            ends[mode].append(loss)
            if mode == "float16":
                scale, last = s, out / "model.onnx"
            print(f"{name} {mode} seed {seed}: {loss:.5f}", file=sys.stderr, flush=True)
    base = np.array(ends["float32"])
    cells = [f"{base.mean():.4f} ({base.min():.4f} - {base.max():.4f})"]
    for mode in list(MODES)[1:]:
        e = np.array(ends[mode])
        cells.append(f"{e.mean():.4f} ({e.min():.4f} - {e.max():.4f})")
    worst = np.abs(np.array(ends["float16"]) - base).max()
    cells.append(f"{worst:.4f}")
    inside = abs(np.mean(ends["float16"]) - base.mean()) <= base.max() - base.min()
    shares = [percent(share) for model in (args.data / MODELS[name][0] / "model_ts.onnx", last) for s in (1, scale)
              for share in lost(args, name, model, s, work)]
    halves = [f"| {name} | {when} | {scale:g} | " + " | ".join(shares[k:k + 4]) + " |"
              for when, k in (("first", 0), ("last", 4))]
    return f"| {name} | " + " | ".join(cells) + " |", "\n".join(halves), inside


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release")
    parser.add_argument("--data", type=Path, default=ROOT / "tests/data")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    ends, flushed, outside = [], [], []
    with tempfile.TemporaryDirectory() as work:
        for name in args.models.split(","):
            a, b, inside = measure(args, name, Path(work))
            ends.append(a)
            flushed.append(b)
            if not inside:
                outside.append(name)
    text = "\n".join([
        f"Evaluation loss after {args.steps} steps, mean of {args.seeds} orders of the data (least - greatest):", "",
        "| model | float32 | float16 | float16, scale 1 | bfloat16 | float16 against float32, same order: at most |",
        "|---|---|---|---|---|---|", *ends, "",
        f"Elements of the parameters' gradients that are 0 in float16 and not in float32, and those below float16's least "
        f"normal number, where bits are missing; with the first weights and with those after {args.steps} steps:", "",
        "| model | weights | scale of training | 0 at scale 1 | short at scale 1 | 0 at that scale | short at that scale |",
        "|---|---|---|---|---|---|---|", *flushed, ""])
    print(text)
    if args.write:
        page = ROOT / "docs/NUMERICS.md"
        old = page.read_text()
        head, rest = old.split(BEGIN)
        page.write_text(head + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])
    if outside:
        print("float16 ends outside the spread of float32:", *outside, file=sys.stderr)
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
