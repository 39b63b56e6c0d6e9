#!/usr/bin/env bash
# Only mpr_* is exported, and the library does not import what a guest must not call.
#   tools/check_exports.sh build/release/libmpr.so
set -euo pipefail
lib=$1
bad=$(nm -D --defined-only "$lib" | awk '{print $3}' | grep -vE '^mpr_' || true)
if [ -n "$bad" ]; then echo "exports: without the mpr_ prefix:"; echo "$bad"; exit 1; fi
bad=$(nm -D --undefined-only "$lib" | awk '{print $2}' | sed 's/@.*//' | grep -xE 'exit|abort|_exit|signal|sigaction|setlocale|chdir|system|printf|puts|putchar|__printf_chk' || true)
if [ -n "$bad" ] && ! nm -D --undefined-only "$lib" | grep -q __asan; then echo "exports: the library imports:" $bad; exit 1; fi
echo "exports: only mpr_* ($(nm -D --defined-only "$lib" | wc -l) functions)"
