#!/usr/bin/env bash
# Includes point downward only. Each line: a folder, then the folders it may include from (besides itself and mpr.h).
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
check() {
    local folder=$1; shift
    local allowed="$folder $*"
    local bad
    bad=$(grep -rnoE '#include "(runtime|importer|passes|kernels|convert|tools|tests)/[^"]*"' "$folder" --include='*.c' --include='*.h' --include='*.inc' --include='*.cu' --include='*.cuh' 2>/dev/null |
        while IFS= read -r line; do
            target=${line#*\"}; target=${target%\"*}
            ok=no
            for a in $allowed; do case $target in "$a" | "$a"/*) ok=yes ;; esac; done
            [ $ok = yes ] || echo "$line"
        done) || true
    if [ -n "$bad" ]; then echo "layers: $folder may include from: $*"; echo "$bad"; status=1; fi
}
base=runtime/base ir=runtime/ir op=runtime/op exec=runtime/exec
check $base
check $ir $base
check $op $ir $base
check $exec $ir $base
shared=$(echo kernels/*.h) # what defines bits on every device
check kernels/ref $shared $exec $op $base
check kernels/cpu kernels/ref $shared $exec $op $base
check kernels/cuda $shared $exec $op $base
check passes $exec $op $ir $base
check importer $op $ir $base
check convert passes importer $exec $op $ir $base
check runtime/train convert passes importer kernels $exec $op $ir $base
check tools $base
# types of other libraries stay in their rooms: no header outside them shows one
bad=$(grep -nE '#include <(zip|jansson|yaml|popt|pthreadpool|cblas|protobuf-c)' -r runtime passes importer convert kernels include --include='*.h' | grep -v '^importer/' | grep -v '^runtime/train/' || true)
if [ -n "$bad" ]; then echo "layers: library types in headers:"; echo "$bad"; status=1; fi
[ $status -eq 0 ] && echo "layers: includes point downward only"
exit $status
