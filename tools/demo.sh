#!/usr/bin/env bash
# Builds mpr and trains a small vision transformer, exported from PyTorch, on the bundled 8x8 digits in FP16.
#   tools/demo.sh [OUTPUT_DIR]        default: demo-output beside this project's build folder
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=${1:-$root/build/demo-output}

tools/setup.sh
cmake --preset release -DMPR_TESTS=OFF >build-demo.log 2>&1 || { tail -20 build-demo.log >&2; exit 1; }
cmake --build build/release -j "$(nproc)" >>build-demo.log 2>&1 || { tail -20 build-demo.log >&2; exit 1; }
rm -f build-demo.log

data=$root/tests/data/digits_vit
rm -rf "$out"
echo "\$ mpr-train model_ts.onnx --train-data train.npz --eval-data eval.npz --loss cross-entropy --fp16 …"
build/release/mpr-train "$data/model_ts.onnx" --train-data "$data/train.npz" --eval-data "$data/eval.npz" \
    --loss cross-entropy --fp16 --num-train-epochs 10 --per-device-train-batch-size 32 --learning-rate 2e-3 --weight-decay 0.01 \
    --warmup-steps 0.1 --eval-strategy epoch --eval-on-start --metrics accuracy --save-strategy no --report-to none \
    --growth-interval 50 --init-scale 16777216 --logging-steps 24 --output-dir "$out" "${@:2}"

# what the log says, without further tools
accuracy() { sed -n 's/.*"eval_accuracy": *\([0-9.]*\).*/\1/p' "$out/log.jsonl"; }
echo
echo "accuracy on the 200 held-out digits: before $(accuracy | head -1), after $(accuracy | tail -1)"
echo "loss scale per logged step: $(sed -n 's/.*"loss_scale": *\([0-9.e+]*\).*/\1/p' "$out/log.jsonl" | uniq | tr '\n' ' ')"
echo "skipped steps: $(sed -n 's/.*"skipped_steps": *\([0-9]*\).*/\1/p' "$out/log.jsonl" | tail -1)"
echo "files in $out: $(ls "$out" | tr '\n' ' ')"
