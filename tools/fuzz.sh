#!/usr/bin/env bash
# Fuzzes the readers of foreign bytes for SECONDS in all. Findings lie in build/fuzz/findings; the last line tells how many.
#   tools/fuzz.sh [SECONDS]       60
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
targets=(prescan import npz safetensors text)
build=build/fuzz

if ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d && n < 0; }' |
    clang-14 -x c -fsanitize=fuzzer,address -o /dev/null - 2>/dev/null; then
  echo "skipped: fuzzing needs clang-14 with libFuzzer"
  exit 0
fi
cmake --preset fuzz >/dev/null
cmake --build "$build" -j "$(nproc)" --target $(printf 'fuzz_%s ' "${targets[@]}") >/dev/null

seeds=$build/seeds
rm -rf "$seeds"
mkdir -p "$build/findings"
for t in "${targets[@]}"; do mkdir -p "$seeds/$t" "$build/corpus/$t"; done
find tests/data -name '*.onnx' -size -64k -exec cp --backup=numbered -t "$seeds/import" {} +
find tests/data -name '*.onnx' -size -64k -exec cp --backup=numbered -t "$seeds/prescan" {} +
find tests/data -name '*.npz' -size -64k -exec cp --backup=numbered -t "$seeds/npz" {} +
cp -r tests/fuzz/seeds/* "$seeds"

status=0
for t in "${targets[@]}"; do
  echo "fuzz $t"
  "$build/fuzz_$t" -max_total_time=$((seconds / ${#targets[@]})) -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=512 -max_len=65536 \
    -artifact_prefix="$build/findings/$t-" -print_final_stats=0 -verbosity=0 "$build/corpus/$t" "$seeds/$t" >"$build/$t.log" 2>&1 || { tail -30 "$build/$t.log"; status=1; }
done
echo "$(find "$build/findings" -type f | wc -l) findings"
exit "$status"
