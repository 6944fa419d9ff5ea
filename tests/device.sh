#!/usr/bin/env bash
# Everything that can only be tested on a GPU, in one command and under 8 minutes: parity of every op with the double reference, repeatability, memory and race checks, the chain of
# stages on CPU and GPU, error messages, the benchmark table. Usage: tests/device.sh [FOLDER] from the source tree; FOLDER holds the programs (tests/device_pack.sh; default .dev, else
# build). DEVICE_LOGS: folder for the full logs. DEVICE_ONLY: a choice of "parity repeat decode sanitizer chain errors bench". Exit 0 ok, 1 a check failed, 77 no device.
set -u
cd "$(dirname "$0")/.." || exit 2
dir=${1:-$([ -x .dev/dashlab ] && echo .dev || echo build)}
[ -x "$dir/dashlab" ] || { echo "SKIPPED: no dashlab executable in '$dir'"; exit 77; }
dir=$(cd "$dir" && pwd)
logs=${DEVICE_LOGS:-$(mktemp -d)}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export LD_LIBRARY_PATH=$dir/lib:${LD_LIBRARY_PATH:-} DASHLAB_HOME=$PWD XDG_CACHE_HOME=$tmp/cache
fail=0 t0=$SECONDS only=" ${DEVICE_ONLY:-parity repeat decode sanitizer chain errors bench} "
want() { [[ "$only" == *" $1 "* ]]; }
mark() { printf '%-34s %-6s %4d s  %s\n' "$1" "$2" $((SECONDS - t0)) "$3" >>"$tmp/table"; [ "$2" = ok ] || fail=1; t0=$SECONDS; }
verdict() { if [ "$1" = 0 ]; then echo ok; else echo FAIL; fi; }

"$dir/dashlab" doctor >"$logs/doctor.txt" 2>&1
grep -q '^cuda  *cuda ' "$logs/doctor.txt" || { grep '^cuda' "$logs/doctor.txt"; echo "SKIPPED: no usable device"; exit 77; }
grep '^cuda' "$logs/doctor.txt"

# Parity: the double reference is slow, so the two types run side by side.
run_parity() {
    for b in f32 bf16; do timeout 200 "$dir/parity_ops" -b cuda:$b >"$logs/parity-$b.txt" 2>&1 & done
    wait
    for b in f32 bf16; do
        grep '^FAIL' "$logs/parity-$b.txt" | head -5
        tail -1 "$logs/parity-$b.txt" | grep -q ' 0 failed'
        mark "parity with ref64, $b" "$(verdict $?)" "$(grep -c '^ok' "$logs/parity-$b.txt") shapes ok, $(grep -c '^FAIL' "$logs/parity-$b.txt") not"
    done
}
want parity && run_parity

# Three processes, three runs in each.
run_repeat() {
    for b in f32 bf16; do
        for i in 1 2 3; do timeout 100 "$dir/parity_repeat" -b cuda:$b >"$logs/repeat-$b-$i.txt" 2>&1 || echo "run $i: exit $?" >>"$tmp/bad-$b"; done
        [ "$(grep -h '^hash' "$logs"/repeat-$b-?.txt | sort -u | wc -l)" = 1 ] && [ ! -e "$tmp/bad-$b" ]
        mark "same bits in 3 x 3 runs, $b" "$(verdict $?)" "$(grep -h '^hash' "$logs/repeat-$b-1.txt" | cut -c1-40)"
    done
}
want repeat && run_repeat

# Decoding: fused kernels against double, recorded steps against single ops.
run_decode() {
    timeout 200 "$dir/parity_decode_step" >"$logs/decode.txt" 2>&1
    mark "decoding steps" "$(verdict $?)" "$(tail -1 "$logs/decode.txt"); recorded: $(grep -c 'have the same bits' "$logs/decode.txt") of $(grep -c 'recorded steps' "$logs/decode.txt") the same bits"
    grep -E '^FAIL|DIFFER|failed:' "$logs/decode.txt" | head -5
}
want decode && run_decode

# Memory and races; a tool that is missing here is said, not counted.
run_sanitizer() {
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck; do
            bad=0
            for op in $(sed -n 's/^ *{"\([a-z_]*\)", ".*/\1/p' tests/parity/shapes.h | sort -u); do
                [ "$op" = gemm ] && continue # the library's own kernels
                echo "timeout 100 compute-sanitizer --tool $tool --error-exitcode 9 $dir/parity_repeat -b cuda:bf16 -o $op -r 1 >$logs/$tool-$op.txt 2>&1 || echo $op >>$tmp/$tool.bad"
            done >"$tmp/$tool.jobs"
            xargs -P 6 -d '\n' -I{} bash -c '{}' <"$tmp/$tool.jobs"
            [ -e "$tmp/$tool.bad" ] && bad=1
            mark "compute-sanitizer $tool" "$(verdict $bad)" "$(wc -l <"$tmp/$tool.jobs") ops$([ $bad = 1 ] && echo "; not clean: $(tr '\n' ' ' <"$tmp/$tool.bad")")"
        done
    else
        mark "compute-sanitizer" none "not on this machine"
    fi
}
want sanitizer && run_sanitizer

# The chain of stages, 50 updates each.
run_chain() {
    chain() { timeout 150 "$dir/dashlab" reproduce tests/data/device.yaml --runs "$tmp/runs-$1" --out "$tmp/out-$1" --quiet "${@:2}" >"$logs/chain-$1.txt" 2>&1 || { echo "chain $1: exit $?"; tail -3 "$logs/chain-$1.txt"; }; }
    chain cpu --device cpu &
    chain f32 --device cuda &
    chain bf16 --device cuda --dtype bf16 &
    wait
    # Column $3 of two logs, step by step: the largest difference over its limit, the largest relative difference, steps.
    # f32: parity_curves, which says why its limit is what rounding alone does to the same curves. bf16: a step rounds about 12 activations a layer, 12 layers deep, by 2^-9 each and independently: a hidden row moves by rho = sqrt(144) 2^-9 = 0.023 of itself.
    # A distance that is a norm (align) moves by rho and the weights' drift over 50 updates is given as much again: 2 rho. Logits of this teacher spread by 4.2 (standard deviation), so
    # they move by e = 4.2 rho = 0.1, and a KL of L, which is about d^2 / 2 for logits d apart, moves by d e + e^2 / 2 = sqrt(2 L) e + e^2 / 2.
    apart() {
        awk -v col="$3" -v how="$4" 'NR == FNR { if (FNR == 1) for (i = 1; i <= NF; i++) if ($i == col) c = i; if (FNR > 1) a[$1] = $c; next }
            FNR > 1 { d = $c - a[$1]; d = d < 0 ? -d : d; l = how == "norm" ? 0.047 * a[$1] : sqrt(2 * a[$1]) * 0.1 + 0.005; if (!(d / l <= m)) m = d / l
                      if (d / a[$1] > r) r = d / a[$1]; n++ }
            END { if (n) printf "%.3f %.3g %d\n", m, r, n; else print "1e9 - 0" }' "$1" "$2" 2>/dev/null
    }
    for stage in "align metrics.tsv loss norm" "search log-0.tsv kl kl" "distill metrics.tsv loss kl"; do
        set -- $stage
        read -r m r n <<<"$(apart "$tmp"/runs-cpu/$1-*/out/$2 "$tmp"/runs-bf16/$1-*/out/$2 $3 $4)"
        [ "${n:-0}" -gt 20 ] && awk -v m="${m:-1e9}" 'BEGIN { exit !(m <= 1) }'
        mark "cpu and gpu, $1, bf16" "$(verdict $?)" "'$3' over ${n:-0} steps: ${m:-?} of the limit, relative difference up to ${r:-?}"
    done
    timeout 240 "$dir/parity_curves" -m experiments/tiny/teacher -d "$(echo "$tmp"/runs-cpu/pack-*/out)" -b cuda:f32 >"$logs/curves.txt" 2>&1
    for stage in align search distill; do
        line=$(grep -E "^(ok|FAIL) +$stage " "$logs/curves.txt")
        mark "cpu and gpu, $stage, f32" "$(case $line in ok*) echo ok ;; *) echo FAIL ;; esac)" "${line#*: }"
    done
    for r in cpu f32 bf16; do for f in "$tmp"/runs-$r/{align,distill}-*/out/metrics.tsv "$tmp"/runs-$r/search-*/out/log-0.tsv; do echo "$r $f"; cut -f1-4 "$f"; done; done >"$logs/losses.txt" 2>&1
    "$dir/dashlab" reproduce tests/data/device.yaml --runs "$tmp/runs-again" --out "$tmp/out-again" --quiet --device cuda --only search >"$logs/chain-again.txt" 2>&1
    cmp -s "$tmp"/runs-f32/search-*/out/log-0.tsv "$tmp"/runs-again/search-*/out/log-0.tsv
    mark "a search twice on the gpu" "$(verdict $?)" "log compared byte by byte"
}
want chain && run_chain

# Errors: exit codes and words.
run_errors() {
    code() { "${@:2}" >"$tmp/out" 2>"$tmp/err"; [ $? = "$1" ]; }
    bad=""
    "$dir/unit_cuda_errors" >"$logs/errors.txt" 2>&1 || bad=" unit_cuda_errors"
    code 4 env CUDA_VISIBLE_DEVICES= "$dir/dashlab" bench op --device cuda --op mix --shape n=8 && grep -qi 'no CUDA device' "$tmp/err" || bad="$bad no-device"
    code 0 env CUDA_VISIBLE_DEVICES= "$dir/dashlab" bench op --device auto --op mix --shape n=8 || bad="$bad auto"
    mark "error messages" "$(verdict $([ -z "$bad" ]; echo $?))" "${bad:-no device, out of memory, wild index}"
}
want errors && run_errors

run_bench() {
    timeout 300 "$dir/dashlab" bench op --device cuda --dtype bf16 --seconds 0.1 >"$logs/bench.txt" 2>&1
    mark "benchmark table" "$(verdict $?)" "$(grep -c . "$logs/bench.txt") lines"
    cut -c1-140 "$logs/bench.txt"
}
want bench && run_bench

echo
cat "$tmp/table"
echo "total $SECONDS s"
exit $fail
