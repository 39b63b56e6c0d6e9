#!/usr/bin/env bash
# Installs what a Debian 12 machine lacks to build mpr. Does nothing when all is there.
#   tools/setup.sh          what the build needs
#   tools/setup.sh test     what the tests need besides
#   tools/setup.sh gpu      what tools/gpu_check.sh builds
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(gcc libc6-dev cmake ninja-build pkg-config protobuf-c-compiler libprotobuf-c-dev libpthreadpool-dev
          libjansson-dev libyaml-dev libzip-dev libxxhash-dev libpopt-dev uthash-dev)
if [ "${1:-}" = test ]; then
    packages+=(g++ libcmocka-dev libonnx-dev libonnx-testdata python3 python3-venv ca-certificates)
elif [ "${1:-}" = gpu ]; then
    packages+=(g++ libcmocka-dev)
fi

# Tests of the converter ask the onnx package and onnxruntime, which Debian does not have.
python_packages() {
    local folder=build/python
    [ -x "$folder/bin/python3" ] && "$folder/bin/python3" -c 'import onnx, onnxruntime' 2>/dev/null && return
    echo "setup: installing onnx and onnxruntime into $folder" >&2
    python3 -m venv "$folder" && "$folder/bin/pip" install --quiet --disable-pip-version-check onnx onnxruntime ||
        echo "setup: not from PyPI: tests that need them are skipped" >&2
}

missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    [ "${1:-}" != test ] || python_packages
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "setup: need root to install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -qq && "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "setup: could not install ${missing[*]}" >&2
    exit 1
fi
[ "${1:-}" != test ] || python_packages
