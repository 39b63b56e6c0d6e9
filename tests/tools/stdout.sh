#!/usr/bin/env bash
# What happens when a result cannot be written: a reader that has seen enough is no error, a full disk is exit 5.
#   stdout.sh BUILD_FOLDER
set -uo pipefail
failed=0
expect() { # what, found, wanted
    if [ "$2" -ne "$3" ]; then echo "$1: exit $2, expected $3"; failed=1; fi
}
for tool in train run convert inspect bench; do
    "$1/mpr-$tool" --help | true
    expect "mpr-$tool --help into a closed pipe" "${PIPESTATUS[0]}" 0
    "$1/mpr-$tool" --help >/dev/full 2>/dev/null
    expect "mpr-$tool --help onto a full disk" $? 5
done
"$1/mpr-inspect" --ops | head -n 1 >/dev/null
expect "mpr-inspect --ops | head" "${PIPESTATUS[0]}" 0
exit $failed
