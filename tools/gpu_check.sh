#!/usr/bin/env bash
# Proves mpr on the GPU at hand and measures it, in under 5 minutes: one table last, the same as JSON.
#   tools/gpu_check.sh [--short] [--json FILE] [--seconds N] [--pack FILE ARCH] [--packed FILE]
#     --short       without a GPU: the kernels' sources on the CPU, small sizes, no figures of speed
#     --pack FILE ARCH   builds what is run for compute capability ARCH (90), with the libraries that it needs, into
#                   FILE (.tar.gz) and ends: for a GPU machine where nothing can be installed or built
#     --packed FILE runs what is in FILE instead of building
#     --json FILE   default build/gpu-check.json
#     --seconds N   what is not begun by then is reported as skipped [280, with --short 1200]
# Rows: every operator case against the reference, bundled models beside the CPU, compute-sanitizer,
# ceilings of the GPU, mpr with and without CUDA graphs, and PyTorch AMP where PYTHON (default python3)
# has torch. Exit status 0: nothing failed. A row that was not run says why.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
root=$PWD

short=no json=$root/build/gpu-check.json limit='' pack='' arch='' packed=''
while [ $# -gt 0 ]; do
    case $1 in
        --short) short=yes ;;
        --json) json=${2:?--json takes a file}; shift ;;
        --seconds) limit=${2:?--seconds takes a number}; shift ;;
        --pack) pack=$(realpath -m "${2:?--pack takes a file}") arch=${3:?--pack takes a file and a compute capability such as 90}; shift 2 ;;
        --packed) packed=$(realpath -e "${2:?--packed takes a file}") || exit 2; shift ;;
        *) sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done
if [ -z "$limit" ]; then
    limit=280
    [ $short = no ] || limit=1200
    [ -z "$pack" ] || limit=7200
fi
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=$work/rows
gpu=none
: >"$rows"
mkdir -p build "$(dirname "$json")"

left() { echo $((limit - SECONDS)); }
# row CHECK CASE passed|failed|skipped [FIGURES]
row() {
    local text
    text=$(printf '%s' "${4:-}" | tr '\t\n' '  ')
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$text" >>"$rows"
    printf '%4ds  %-8s %s: %s  %s\n' "$SECONDS" "$3" "$1" "$2" "$text" >&2
}
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -1 | cut -c1-200; }

# run LOG COMMAND…: within the time that is left. 124: it was not enough, 125: there was none.
run() {
    local log=$1; shift
    [ "$(left)" -gt 0 ] || { echo "no time left of $limit s" >"$log"; return 125; }
    timeout --kill-after=5 "$(left)" "$@" >"$log" 2>&1
}

# fate CHECK CASE STATUS LOG [FIGURES]: one row of what ended with STATUS; 77 is a program's own "skipped", which
# is a failure where nvidia-smi has named a GPU, but for an older one's lack of tensor cores
fate() {
    case $3 in
        0) row "$1" "$2" passed "${5:-}" ;;
        77)
            local reason state=skipped
            reason=$(sed -n 's/^skipped: //p' "$4" | head -1)
            [ "$gpu" = none ] || { [ "$arch" -lt 80 ] && [[ $reason == *capability* ]]; } || state=failed
            row "$1" "$2" $state "$reason"
            ;;
        124 | 125) row "$1" "$2" skipped "the $limit s were over" ;;
        *) row "$1" "$2" failed "$(last_line "$4")" ;;
    esac
}

# rows_of CHECK CASE LOG COMMAND…: a program that prints rows itself
rows_of() {
    local check=$1 case=$2 log=$3 status=0 n=0 a b c d
    shift 3
    run "$log" "$@" || status=$?
    while IFS=$'\t' read -r a b c d; do
        case $c in passed | failed | skipped) row "$a" "$b" "$c" "$d"; n=$((n + 1)) ;; esac
    done <"$log"
    # a status of 1 behind rows is that of a failed one
    if [ "$status" -eq 1 ] && grep -q $'\tfailed\t' "$log"; then return; fi
    if [ "$status" -ne 0 ] || [ "$n" -eq 0 ]; then fate "$check" "$case" "${status/#0/1}" "$log"; fi
}

# ---- the GPU, and the build for it alone

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | head -1; }
# where_is PROGRAM: on the path, or where the toolkit puts it
where_is() {
    local folder
    command -v "$1" && return
    for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-*; do
        [ -x "$folder/bin/$1" ] && echo "$folder/bin/$1" && return
    done
}
nvcc=$(where_is nvcc)
find_gpu() {
    arch=$(query compute_cap | tr -dc '0-9')
    if [ -z "$arch" ] && [ -n "$nvcc" ]; then
        # the toolkit's own little program
        arch=$("$(dirname "$(readlink -f "$nvcc")")/__nvcc_device_query" 2>/dev/null | tr ',' '\n' | head -1 | tr -dc '0-9')
    fi
    if [ -z "$arch" ]; then
        echo "gpu_check: no GPU: nvidia-smi and nvcc name none; --short checks the kernels' sources on the CPU" >&2
        row device "a GPU" failed "nvidia-smi and nvcc name none; --short runs without"
        return
    fi
    gpu="$(query name), driver $(query driver_version), sm_$arch"
    if [ "$arch" -lt 75 ]; then
        row device "$gpu" failed "compute capability 7.5 or newer is needed"
        arch=
    elif [ -z "$nvcc" ] && [ -z "$packed" ]; then
        row device "nvcc" failed "not found: the CUDA toolkit 12 or newer is needed to build; --pack builds elsewhere"
        arch=
    else
        row device "$gpu" passed "$(query memory.total) of memory"
    fi
}
if [ $short = no ] && [ -z "$pack" ]; then find_gpu; fi

# cuBLASLt where the loader would not look: the toolkit's folder, or the one that PyTorch brings
cublas() {
    local found
    ldconfig -p 2>/dev/null | grep 'libcublasLt\.so\.' >/dev/null && return
    found=$(ls -d "${CUDA_HOME:-/usr/local/cuda}"/lib64/libcublasLt.so.* /usr/local/cuda-*/lib64/libcublasLt.so.* 2>/dev/null | head -1)
    [ -n "$found" ] || found=$("$python" -c 'import glob, sys
for folder in sys.path: print(*glob.glob(folder + "/nvidia/*/lib/libcublasLt.so.*"), sep="\n")' 2>/dev/null | grep . | head -1)
    [ -z "$found" ] || export LD_LIBRARY_PATH="${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}
if [ $short = no ] && [ -z "$pack" ]; then cublas; fi

if [ $short = yes ]; then
    preset_folder=build/release
    targets=(test_cuda_op_cases test_cuda_models test_cuda_faults test_cuda_broken gpu_make_model shim-bench)
else
    preset_folder=build/gpu-check
    targets=(test_gpu_op_cases test_gpu_models test_gpu_attention gpu_ceilings gpu_make_model mpr-bench)
fi
[ -z "$pack" ] || preset_folder=build/gpu-pack
bin=$root/$preset_folder
built=no
build() {
    local launcher=() status=0
    if command -v ccache >/dev/null; then
        launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DMPR_NVCC_LAUNCHER=ccache)
    fi
    local options=(-DMPR_TESTS=ON)
    [ $short = yes ] || options+=(-DMPR_CUDA=ON "-DMPR_CUDA_ARCHITECTURES=$arch")
    [ -z "$nvcc" ] || options+=("-DMPR_NVCC=$nvcc")
    # programs find the libraries beside them, and these find theirs, without a word to other programs
    [ -z "$pack" ] || options+=('-DCMAKE_BUILD_RPATH=$ORIGIN/lib'
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags" "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,--disable-new-dtags")
    # what the build needs and the machine lacks; without a net that ends soon
    if ! pkg-config --exists cmocka jansson libzip yaml-0.1 popt libxxhash libprotobuf-c 2>/dev/null; then
        run "$work/setup" timeout 100 tools/setup.sh gpu ||
            row build packages failed "not installed: $(last_line "$work/setup"); --pack builds on another machine"
    fi
    run "$work/cmake" cmake --preset release -B "$preset_folder" "${launcher[@]}" "${options[@]}" || status=$?
    if [ $status -ne 0 ]; then fate build configure "$status" "$work/cmake"; return; fi
    run "$work/build" cmake --build "$preset_folder" -j "$(nproc)" --target "${targets[@]}" || status=$?
    [ $status -eq 0 ] && built=yes
    fate build "${preset_folder#build/}" "$status" "$work/build" "${#targets[@]} targets"
}

# unpack: the programs of a --pack
unpack() {
    local status=0 made
    bin=$work/packed
    mkdir "$bin" && run "$work/build" tar -C "$bin" -xzf "$packed" || status=$?
    made=$(cat "$bin/arch" 2>/dev/null)
    if [ $status -eq 0 ] && [ "${made:-0}" -gt "$arch" ]; then
        echo "they are for compute capability $made and newer" >>"$work/build"
        status=1
    fi
    [ $status -eq 0 ] && built=yes
    fate build "packed for sm_$made" "$status" "$work/build" "commit $(cat "$bin/commit" 2>/dev/null)"
}

# make_pack: programs without symbols, the libraries that a bare machine may lack, for whom and of what
make_pack() {
    local folder=$work/pack
    mkdir -p "$folder/lib"
    for program in "${targets[@]}"; do cp "$bin/$program" "$folder/" && strip "$folder/$program" || return 1; done
    cp -L "$bin"/libmpr.so.0 "$folder/lib/" && strip "$folder/lib/libmpr.so.0" || return 1
    ldd "${targets[@]/#/$bin/}" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|libcuda|libmpr)\.so' | xargs -I{} cp -L {} "$folder/lib/" || return 1
    echo "$arch" >"$folder/arch"
    git rev-parse --short HEAD >"$folder/commit" 2>/dev/null
    tar -C "$folder" -czf "$pack" .
}

if [ -n "$pack" ]; then
    build
    [ $built = yes ] && make_pack && { du -h "$pack" >&2; exit 0; }
    exit 1
fi
if [ -n "$packed" ] && [ -n "$arch" ]; then unpack
elif [ $short = yes ] || [ -n "$arch" ]; then build
fi

export MPR_TEST_DATA=$root/tests/data MPR_TEST_BUILD=$bin MPR_TEST_DEVICE=cuda

# ---- (a) operator cases

# cases CHECK CASE COMMAND…: figures from cmocka's totals
cases() {
    local check=$1 case=$2 status=0
    shift 2
    (cd tests && run "$work/cases" "$@") || status=$?
    local rows_n passed failed
    rows_n=$(sed -n 's/^\([0-9]* rows\) in .*/\1/p' "$work/cases" | head -1)
    passed=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$work/cases" | tail -1)
    failed=$(grep -c '^\[  FAILED  \] .*: ' "$work/cases")
    [ "$status" -eq 0 ] || [ "$failed" -eq 0 ] ||
        echo "failed: $(sed -n 's/^\[  FAILED  \] \(.*: .*\)/\1/p' "$work/cases" | sort -u | tr '\n' ' ')" >>"$work/cases"
    fate "$check" "$case" "$status" "$work/cases" "${rows_n:+$rows_n, }${passed:-0} tests"
}

models=(mlp bert_cls gpt2_lm vit llama_lm)
op_cases() {
    if [ $short = yes ]; then
        local some=(softmax norm loss matmul cast)
        cases "operator cases" "${some[*]}" "$bin/test_cuda_op_cases" "${some[@]}"
        row "operator cases" "the rest" skipped "short form: ctest -R cuda_op_cases runs all of them"
        cases "device faults" "all" "$bin/test_cuda_faults"
        cases "broken kernels" "all are found" "$bin/test_cuda_broken"
    else
        cases "operator cases" "all" "$bin/test_gpu_op_cases"
        cases "attention" "tensor cores and float" "$bin/test_gpu_attention"
    fi
}

# ---- (b) bundled models: CPU and CUDA

model_runs() {
    if [ $short = yes ]; then
        MPR_SHIM_RACES=0 rows_of models "mlp bert_cls" "$work/models" "$bin/test_cuda_models" --steps 10 mlp bert_cls
        row models "${models[*]:2}" skipped "short form: test_cuda_models ${models[*]:2}"
    else
        rows_of models "${models[*]}" "$work/models" "$bin/test_gpu_models" "${models[@]}"
    fi
}

# ---- (e) compute-sanitizer, last: it is slow

sanitizer() {
    local tool status share some=(softmax norm loss reduce cast) program
    if [ $short = yes ]; then
        row compute-sanitizer "memcheck, racecheck" skipped "no GPU: out-of-range accesses and races were looked for in the operator cases"
        return
    fi
    program=$(where_is compute-sanitizer)
    if [ -z "$program" ]; then
        row compute-sanitizer "memcheck, racecheck" skipped "compute-sanitizer is not installed"
        return
    fi
    for tool in memcheck racecheck; do
        status=0
        share=$(($(left) - 5))
        [ $tool = racecheck ] || share=$((share / 2))
        [ "$share" -gt 0 ] || share=1
        (cd tests && run "$work/$tool" timeout $share "$program" --tool $tool --error-exitcode 9 "$bin/test_gpu_op_cases" "${some[@]}") || status=$?
        if grep -q 'Device not supported' "$work/$tool"; then
            row compute-sanitizer "$tool" skipped "it does not support this device: $(grep -m1 'Device not supported' "$work/$tool")"
            continue
        fi
        fate compute-sanitizer "$tool: ${some[*]}" "$status" "$work/$tool" "$(sed -n 's/^=* *\(ERROR SUMMARY\|RACECHECK SUMMARY\): *//p' "$work/$tool" | tail -1)"
    done
}

# ---- (c) ceilings

ceilings() {
    if [ $short = yes ]; then
        row ceiling "copy, cuBLASLt FP16, cuBLASLt BF16" skipped "no GPU"
    else
        rows_of ceiling all "$work/ceilings" "$bin/gpu_ceilings"
    fi
}

# ---- (d) speed

field() { sed -n "s/^ *\"$2\": \([^,]*\),*$/\1/p" "$1" | tail -1; }

# speed NAME MODEL BATCH PRECISION TOKENS_PER_ROW FLAGS…
speed() {
    local name=$1 model=$2 batch=$3 precision=$4 tokens=$5 status=0 bench=$bin/mpr-bench
    shift 5
    [ $short = no ] || bench=$bin/shim/mpr-bench
    local repeat=5 form="with graph"
    [ $short = no ] || repeat=1
    [[ " $* " == *" --no-cuda-graph "* ]] && form="without graph"
    [[ " $* " == *" --cuda-tune "* ]] && form="with graph, tuned"
    MPR_SHIM_RACES=0 run "$work/speed" "$bench" "$model" --device cuda --precision "$precision" --batch-size "$batch" --repeat $repeat --warmup 3 --json "$@" || status=$?
    if [ $status -ne 0 ] && grep -q NOMEM "$work/speed"; then
        row "mpr $form" "$name $precision" skipped "$(grep -o 'MPR_E_NOMEM.*' "$work/speed" | head -1 | cut -c1-160)"
        return
    fi
    local ms figures="runs; no speed without a GPU"
    ms=$(field "$work/speed" median_ms)
    if [ $short = no ] && [ -n "$ms" ]; then
        figures=$(awk -v ms="$ms" -v n=$((batch * tokens)) -v g="$(field "$work/speed" gflops)" \
            'BEGIN {printf "%.3f ms a step, %.0f a second, %.1f TFLOP/s", ms, n * 1e3 / ms, g * 1e-3}')
    fi
    fate "mpr $form" "$name $precision" "$status" "$work/speed" "$figures"
}

torch_row() {
    local status=0
    if ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
        row "PyTorch AMP" "$1" skipped "$python has no torch that sees a GPU"
        return
    fi
    run "$work/torch" "$python" tools/gpu_torch.py "$2" "$3" || status=$?
    fate "PyTorch AMP" "$1" "$status" "$work/torch" "$(last_line "$work/torch")"
}

make() { # FILE ARGUMENTS…: a model; its failure is a row
    local file=$1 status=0
    shift
    run "$work/make" "$bin/gpu_make_model" "$1" "$file" "${@:2}" || status=$?
    [ $status -eq 0 ] || fate "model file" "$(basename "$file")" "$status" "$work/make"
    return $status
}

speeds() {
    local mlp=$work/mlp.onnx gpt=$work/gpt2.onnx bert=$work/bert.onnx graphs=("" --no-cuda-graph) g p
    "$bin/$([ $short = no ] || echo shim/)mpr-bench" --help 2>/dev/null | grep -q -- --no-cuda-graph || graphs=("")
    [ ${#graphs[@]} -eq 2 ] || row "mpr without graph" all skipped "this mpr-bench has no --no-cuda-graph"
    local precisions=(fp16 bf16)
    local width=1024
    [ $short = no ] || width=64
    if make "$mlp" mlp 2 $width 1 10 784; then
        for g in "${graphs[@]}"; do
            for p in "${precisions[@]}"; do speed "MLP 784-$width-$width-10, batch 64" "$mlp" 64 "$p" 1 ${g:+"$g"}; done
        done
    fi
    if [ $short = yes ]; then
        make "$gpt" gpt2 2 64 4 500 32 && for g in "${graphs[@]}"; do speed "GPT-2, 2 layers of 64, 64 tokens" "$gpt" 2 fp16 32 ${g:+"$g"}; done
        make "$bert" bert 2 64 4 500 32 && for g in "${graphs[@]}"; do speed "BERT, 2 layers of 64, 64 tokens" "$bert" 2 fp16 32 ${g:+"$g"}; done
        speed "BERT, 2 layers of 64, 64 tokens" "$bert" 2 fp16 32 --cuda-tune
        row "mpr and PyTorch AMP" "GPT-2 124M at 256 and 16k tokens, BERT-base" skipped "no GPU"
        return
    fi
    if make "$gpt" gpt2 12 768 12 50257 256; then
        for g in "${graphs[@]}"; do
            for p in "${precisions[@]}"; do
                speed "GPT-2 124M, 256 tokens" "$gpt" 1 "$p" 256 ${g:+"$g"}
                speed "GPT-2 124M, 16k tokens" "$gpt" 64 "$p" 256 ${g:+"$g"}
            done
        done
    fi
    if make "$bert" bert 12 768 12 30522 128; then
        for g in "${graphs[@]}"; do
            for p in "${precisions[@]}"; do speed "BERT-base, 32 x 128 tokens" "$bert" 32 "$p" 128 ${g:+"$g"}; done
        done
    fi
    [ -s "$gpt" ] && speed "GPT-2 124M, 16k tokens" "$gpt" 64 fp16 256 --cuda-tune
    [ -s "$bert" ] && speed "BERT-base, 32 x 128 tokens" "$bert" 32 fp16 128 --cuda-tune
    torch_row "MLP 784-1024-1024-10, batch 64" mlp 64
    torch_row "GPT-2 124M, 256 tokens" gpt2 1
    torch_row "GPT-2 124M, 16k tokens" gpt2 64
    torch_row "BERT-base, 32 x 128 tokens" bert 32
}

if [ $built = yes ]; then
    op_cases
    model_runs
    ceilings
    speeds
    sanitizer
else
    for what in "operator cases" models compute-sanitizer ceiling speed; do row "$what" all skipped "nothing was built"; done
fi

# ---- the table, and the same as JSON

count() { awk -F'\t' -v s="$1" '$3 == s {n++} END {print n + 0}' "$rows"; }
passed=$(count passed) failed=$(count failed) skipped=$(count skipped) took=$SECONDS
form=$([ $short = yes ] && echo short || echo full)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
awk -F'\t' -v gpu="$gpu" -v form="$form" -v s="$took" -v commit="$commit" -v p="$passed" -v f="$failed" -v k="$skipped" '
    function text(t) {
        gsub(/\\/, "\\\\", t); gsub(/"/, "\\\"", t); gsub(/[[:cntrl:]]/, " ", t)
        return "\"" t "\""
    }
    BEGIN {
        printf "{\"form\": %s, \"gpu\": %s, \"commit\": %s, \"seconds\": %d, \"passed\": %d, \"failed\": %d, \"skipped\": %d,\n \"rows\": [\n",
            text(form), text(gpu), text(commit), s, p, f, k
    }
    {
        printf "%s  {\"check\": %s, \"case\": %s, \"state\": %s, \"figures\": %s}", (NR > 1 ? ",\n" : ""), text($1), text($2), text($3), text($4)
    }
    END {print "\n ]}"}' "$rows" >"$json"
echo
awk -F'\t' '
    {for (i = 1; i <= 4; i++) {cell[NR, i] = $i; if (length($i) > wide[i]) wide[i] = length($i)}}
    END {for (r = 1; r <= NR; r++) printf "%-*s  %-*s  %-7s  %s\n", wide[1], cell[r, 1], wide[2], cell[r, 2], cell[r, 3], cell[r, 4]}' "$rows"
echo "$passed passed, $failed failed, $skipped skipped in $took s ($form form, GPU: $gpu); JSON: $json"
[ "$failed" -eq 0 ]
