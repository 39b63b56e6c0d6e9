#!/usr/bin/env bash
# Installs what is missing, builds, runs all tests and the checks of the tree. Last line: N passed, N failed, N skipped
#   tools/test.sh [PRESET]        release (default), debug, asan or clang
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}

tools/setup.sh test
python=$PWD/build/python/bin/python3 # with onnx and onnxruntime, if PyPI could be reached
[ -x "$python" ] || python=python3
cmake --preset "$preset" -DMPR_TESTS=ON -DMPR_TEST_PYTHON="$python" >/dev/null   # the demo configures this folder without them
cmake --build "build/$preset" -j "$(nproc)" | grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Generating|Creating|Running)' || true
status=0
tools/check_layers.sh || status=1
tools/check_exports.sh "build/$preset/libmpr.so" || status=1
ctest --test-dir "build/$preset" -j 2 --output-on-failure --no-tests=error || status=1
tools/fuzz.sh 60 || status=1   # says so where clang with libFuzzer is missing

# cmocka says "[ PASSED ] N test(s)" per program, a script "N passed, N failed"; ctest keeps all output
log=build/$preset/Testing/Temporary/LastTest.log
count() { awk -v word="$1" '$1 == "[" && $2 == word && $5 ~ /^test/ {n += $4} END {print n + 0}' "$log"; }
scripts() { awk -v field="$1" '/^[0-9]+ passed, [0-9]+ failed$/ {n += $field} END {print n + 0}' "$log"; }
passed=$(($(count PASSED) + $(scripts 1))) failed=$(($(count FAILED) + $(scripts 3)))
skipped=$(($(count SKIPPED) + $(grep -c '^skipped:' "$log" || true)))
if [ "$skipped" -gt 0 ]; then grep -aE '^(\[  SKIPPED \]|skipped:)' "$log" | sort -u || true; fi
if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
echo "$passed passed, $failed failed, $skipped skipped"
exit "$status"
