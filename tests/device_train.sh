#!/usr/bin/env bash
# The long works for a GPU, one command each, each in pieces that go on where the last one ended. Usage: tests/device_train.sh WHAT [SECONDS] [FOLDER], from the source tree; FOLDER holds the program
# (tests/device_pack.sh; default .dev). Runs are kept in runs/, results in results/; what is worth keeping is copied to $OUT when that is set. Exit 0 done, 3 more time is needed: give it again.
#   teacher   experiments/tiny/teacher.yaml at tiny: data (in parallel), training, evaluation; done when the table says whether the mean is at least 93
#   stage1    experiments/tiny/stage1.yaml at tiny: data, 50 M tokens of alignment; then tools/bundle_stage1.sh of the run
#   smollm2   tests/smollm2_chain.sh small: the whole chain on SmolLM2-135M (needs the .gguf: DASHLAB_SMOLLM2_GGUF)
#   decode    bench infer of the 3B shape, batch 16, 4K and 32K, teacher and a hybrid with 9 of 36 layers full: single ops, fused, recorded
set -u
cd "$(dirname "$0")/.." || exit 2
what=${1:-} seconds=${2:-540} dir=${3:-.dev}
[ -x "$dir/dashlab" ] || { echo "no dashlab executable in '$dir'"; exit 77; }
dir=$(cd "$dir" && pwd) end=$((SECONDS + seconds))
export LD_LIBRARY_PATH=$dir/lib:${LD_LIBRARY_PATH:-} DASHLAB_HOME=$PWD DASHLAB_BIN=$dir/dashlab
gpu="--device cuda --dtype bf16"
left() { echo $((end - SECONDS > 5 ? end - SECONDS : 5)); }
keep() { [ -z "${OUT:-}" ] || { mkdir -p "$OUT" && cp -r "$@" "$OUT/"; }; }
# A command that stops cleanly when the time is over.
piece() { timeout -s INT -k 30 "$(left)" "$@"; code=$?; [ $code = 124 ] || [ $code = 130 ] || return $code; return 3; }
# Stages that need no GPU, side by side.
data() { # MANIFEST ID...
    local m=$1
    shift
    for id in "$@"; do "$dir/dashlab" reproduce "$m" --only "$id" --device cpu --threads 1 --quiet >/dev/null 2>&1 & done
    wait
    piece "$dir/dashlab" reproduce "$m" --only data --device cpu --quiet
}

case $what in
teacher)
    m=experiments/tiny/teacher.yaml
    data $m eval-data needle-essay-a needle-essay-b needle-noise needle-keys vt common frequent easy hops || exit $?
    piece "$dir/dashlab" train $m $gpu
    code=$?
    keep runs/train-*/out/metrics.tsv 2>/dev/null
    [ $code = 0 ] || { keep runs/train-*/work 2>/dev/null; exit $code; }
    piece "$dir/dashlab" reproduce $m $gpu
    code=$?
    keep runs/train-*/out results/teacher
    exit $code
    ;;
stage1)
    m=experiments/tiny/stage1.yaml
    data $m needle multi vt cwe short values queries || exit $?
    piece "$dir/dashlab" reproduce $m $gpu || exit $?
    rm -rf runs/bundle
    bash tools/bundle_stage1.sh runs/align-* runs/bundle
    keep runs/bundle runs/align-*/out
    ;;
smollm2)
    piece bash tests/smollm2_chain.sh small runs/smollm2 $gpu
    code=$?
    keep runs/smollm2/results 2>/dev/null
    exit $code
    ;;
decode)
    nine=full:3,7,11,15,19,23,27,31,35
    for layers in "" "--layers $nine"; do
        for context in 4096 32768; do
            for step in ops fused recorded; do
                echo "$step, context $context ${layers:-teacher}"
                DASHLAB_CUDA_STEP=$step piece "$dir/dashlab" bench infer $gpu --model qwen2.5-3b $layers --context $context --batch 16 --decode 64 --warmup 1 --reps 3 || exit $?
            done
        done
    done
    ;;
*)
    sed -n '2,8p' "$0"
    exit 2
    ;;
esac
