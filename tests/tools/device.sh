#!/usr/bin/env bash
# A machine without a GPU that can be used, with and without CUDA in the build: --device cuda says at once what is
# missing, --device auto takes the CPU and says so in one line, everything else works.
#   device.sh BUILD_FOLDER
set -uo pipefail
failed=0
fail() { echo "$1"; failed=1; }
export CUDA_VISIBLE_DEVICES=-1 # a GPU that is there is not seen
err=$(mktemp) work=$(mktemp -d) && trap 'rm -rf "$err" "$work"' EXIT
data=$(dirname "$0")/../data/digits
for libraries in "${LD_LIBRARY_PATH:-}" /nonexistent; do
    export LD_LIBRARY_PATH=$libraries
    for device in cuda cuda:3; do
        timeout 5 "$1/mpr-inspect" --env --device $device >/dev/null 2>"$err" # far below 1 s on an idle machine
        [ $? -eq 6 ] || fail "--device $device does not exit with 6"
        grep -q "MPR_E_DEVICE: .*CUDA" "$err" || fail "--device $device does not say what is missing: $(cat "$err")"
        grep -q "advice: .*--device cpu" "$err" || fail "--device $device gives no advice"
    done
    out=$(timeout 5 "$1/mpr-inspect" --env --device auto 2>"$err") || fail "--device auto does not go on"
    case $out in *'"device": "cpu"'*) ;; *) fail "--device auto does not take the CPU: $out" ;; esac
    [ "$(grep -c . "$err")" -eq 1 ] || fail "--device auto does not say it in one line: $(cat "$err")"
    grep -q "^device auto: the CPU is used: " "$err" || fail "--device auto does not say why"
    rm -rf "$work/out"
    timeout 60 "$1/mpr-train" "$data/model_ts.onnx" --loss cross-entropy --train-data "$data/train.npz" --device auto \
        --max-steps 3 --output-dir "$work/out" >"$work/log" 2>&1 || fail "--device auto does not train: $(tail -3 "$work/log")"
    [ "$(grep -c "device auto: the CPU is used: " "$work/log")" -eq 1 ] || fail "training does not say it in one line: $(cat "$work/log")"
    [ -s "$work/out/model.onnx" ] || fail "--device auto leaves no model"
    timeout 5 "$1/mpr-train" "$data/model_ts.onnx" --loss cross-entropy --train-data "$data/train.npz" --device cuda \
        --max-steps 3 --output-dir "$work/none" >"$work/log" 2>&1
    [ $? -eq 6 ] || fail "training with --device cuda does not exit with 6"
    [ ! -e "$work/none/model.onnx" ] || fail "training with --device cuda leaves a model"
done
exit $failed
