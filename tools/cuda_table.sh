#!/usr/bin/env bash
# What the compiler gives each CUDA kernel: registers, spills, static shared memory, and the threads that an
# SM holds of it, as a Markdown table.
#   tools/cuda_table.sh [ARCHITECTURE [FAMILY…]]      80, all of kernels/cuda/*.cu
# Occupancy is the share of the SM's threads that registers and static shared memory leave room for, in blocks of
# BLOCK threads (256): registers are given to warps in steps of 256, blocks share the SM's memory. Shared memory
# that a launch asks for is not in it. Exit status 1: a kernel spills.
set -euo pipefail
cd "$(dirname "$0")/.."
arch=${1:-80}
shift $(($# > 0 ? 1 : 0))
sources=()
for family in "$@"; do sources+=("kernels/cuda/$family.cu"); done
[ ${#sources[@]} -gt 0 ] || sources=(kernels/cuda/*.cu)
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
case $arch in # threads, shared memory in KiB of one SM
    75) threads=1024 memory=64 ;;
    86 | 89 | 120) threads=1536 memory=100 ;;
    80) threads=2048 memory=164 ;;
    *) threads=2048 memory=228 ;;
esac
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "| family | kernel | registers | spilled bytes | shared bytes | occupancy on sm_$arch |"
echo "|---|---|---|---|---|---|"
status=0
for source in "${sources[@]}"; do
    name=$(basename "$source" .cu) own=()
    case $name in update* | random) own=(-fmad=false) ;; esac
    "$nvcc" -cubin -O3 -std=c++20 "${own[@]}" -arch="sm_$arch" -Xptxas -v -DMPR_MINIMAL=0 -D_GNU_SOURCE -I. -Iinclude \
        -o /dev/null "$source" 2>"$log" || { cat "$log" >&2; exit 2; }
    c++filt <"$log" | awk -v family="$name" -v threads="$threads" -v memory=$((memory * 1024)) -v block="${BLOCK:-256}" '
        function least(a, b) { return a < b ? a : b }
        /Compiling entry function/ {
            kernel = $0
            sub(/^.*entry function ./, "", kernel)
            sub(/. for .sm_.*$/, "", kernel)
            gsub(/\(anonymous namespace\)::/, "", kernel)
            sub(/^void /, "", kernel)
            sub(/\(.*/, "", kernel)
            gsub(/\|/, "\\|", kernel)
        }
        /spill stores/ {match($0, /[0-9]+ bytes spill stores/); spill = substr($0, RSTART) + 0}
        /Used [0-9]+ registers/ {
            match($0, /Used [0-9]+/)
            registers = substr($0, RSTART + 5) + 0
            shared = match($0, /[0-9]+ bytes smem/) ? substr($0, RSTART) + 0 : 0
            warps = int(65536 / (int((registers * 32 + 255) / 256) * 256))
            blocks = least(int(warps * 32 / block), int(threads / block))
            if (shared) blocks = least(blocks, int(memory / (shared + 1024)))
            printf "| %s | `%s` | %d | %d | %d | %d %% |\n", family, kernel, registers, spill, shared, 100 * blocks * block / threads
            if (spill) bad = 1
        }
        END {exit bad}' || status=1
done
exit $status
