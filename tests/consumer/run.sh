#!/usr/bin/env bash
# Installs the build into an empty folder and builds the consumer by find_package and by pkg-config.
#   run.sh BUILD_DIR SOURCE_DIR
set -euo pipefail
build=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/installed" >/dev/null
model=$source/tests/data/digits_vit/model_ts.onnx

cmake -G Ninja -S "$source/tests/consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/installed" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Wpedantic -Werror" >/dev/null
cmake --build "$work/cmake" >/dev/null
"$work/cmake/consumer_c" "$model" | grep -qx 'x rank 4'
"$work/cmake/consumer_cxx"

export PKG_CONFIG_PATH=$(dirname "$(find "$work/installed" -name mpr.pc)")
flags=$(pkg-config --define-variable=prefix="$work/installed" --cflags --libs mpr)
cc -std=c11 -Wall -Wextra -Wpedantic -Werror "$source/tests/consumer/main.c" -o "$work/by_pkg_config" $flags
LD_LIBRARY_PATH=$(pkg-config --define-variable=prefix="$work/installed" --variable=libdir mpr) "$work/by_pkg_config" "$model" | grep -qx 'x rank 4'
for tool in train run convert inspect bench; do
    "$work/installed/bin/mpr-$tool" --version >/dev/null
    test -s "$work/installed/share/man/man1/mpr-$tool.1"
done
echo "consumer: find_package, pkg-config, C and C++ pass"
