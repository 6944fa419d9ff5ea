#!/usr/bin/env bash
# How many lines of each reader of foreign files the fuzz seeds reach, and how many after SECONDS (first argument, default 5) of fuzzing from them. Exit 1 when
# the seeds alone reach less than 80 %; 77 without clang and llvm-cov. UNREACHED=1 prints the lines that were not reached in the end.
set -u
secs=${1:-5}
cd "$(dirname "$0")/.." || exit 2
find_tool() { command -v "$1" || ls /usr/lib/llvm-*/bin/"$1" 2>/dev/null | tail -n 1; }
cov=$(find_tool llvm-cov) prof=$(find_tool llvm-profdata)
command -v clang >/dev/null && [ -n "$cov" ] && [ -n "$prof" ] || { echo "SKIPPED: coverage needs clang, llvm-cov and llvm-profdata (Debian: clang llvm libclang-rt-14-dev)"; exit 77; }
tmp=$(mktemp -d) || exit 4
trap 'rm -rf "$tmp"' EXIT
{ cmake --preset coverage -G Ninja && cmake --build build-coverage -j "$(nproc)" --target fuzz_programs; } >"$tmp/build" 2>&1 || { tail -n 20 "$tmp/build"; exit 4; }
fail=0
# lines NAME FILE...: "COVERED COUNT" of these files by NAME.raw
lines() {
    local name=$1 t=build-coverage/fuzz_${1%%.*} count=0 covered=0 f hit
    shift
    "$prof" merge -sparse "$tmp/$name.raw" -o "$tmp/$name.prof" && "$cov" export -summary-only "$t" -instr-profile="$tmp/$name.prof" >"$tmp/$name.json" 2>/dev/null || return 1
    # One line a file. A name ends as given whatever folder the compiler was told; a file that is not there is an error, not covered.
    sed 's/{"filename"/\n&/g' "$tmp/$name.json" >"$tmp/$name.files"
    for f; do
        hit=$(grep "^{\"filename\":\"[^\"]*/$f\"" "$tmp/$name.files" | grep -o '"lines":{"count":[0-9]*,"covered":[0-9]*' | head -n 1)
        [ -n "$hit" ] || return 1
        hit=${hit#*:*:} count=$((count + ${hit%%,*})) covered=$((covered + ${hit##*:}))
    done
    echo "$covered $count"
}
percent() { awk "BEGIN {printf \"%.1f\", 100 * $1 / $2}"; }
# reader TARGET FILE...: its row of the table
reader() {
    local name=$1 t=build-coverage/fuzz_$1 seeds=tests/fuzz/seeds/$1 by_seeds in_all f
    shift
    mkdir -p "$tmp/$name.work"
    LLVM_PROFILE_FILE=$tmp/$name.seeds.raw "$t" -runs=0 -timeout=20 "$seeds" >"$tmp/$name.log" 2>&1 &&
        LLVM_PROFILE_FILE=$tmp/$name.all.raw "$t" -max_total_time="$secs" -timeout=20 -rss_limit_mb=2048 "$tmp/$name.work" "$seeds" >"$tmp/$name.log" 2>&1 ||
        { echo "fuzz_$name failed"; tail -n 20 "$tmp/$name.log"; fail=1; return; }
    by_seeds=$(lines "$name.seeds" "$@") && in_all=$(lines "$name.all" "$@") || { echo "$name: no coverage of $*"; fail=1; return; }
    # shellcheck disable=SC2086
    set -- $by_seeds $in_all "$@"
    printf '%-16s seeds %5.1f %% (%d of %d lines), after %d s %5.1f %%   %s\n' "$name" "$(percent "$1" "$2")" "$1" "$2" "$secs" "$(percent "$3" "$4")" "${*:5}"
    [ $((100 * $1)) -ge $((80 * $2)) ] || { echo "$name: below 80 %"; fail=1; }
    shift 4
    [ -z "${UNREACHED:-}" ] || for f; do
        "$cov" show "$t" -instr-profile="$tmp/$name.all.prof" -use-color=0 2>/dev/null |
            awk -v f="$f" 'substr($0, length($0) - length(f)) == f ":" {on = 1; next} /^$/ {on = 0} on && /^ *[0-9]+\| +0\|/ {print f ":" $0}'
    done
}
reader safetensors model/st.c
reader gguf model/gguf.c model/gguf_quant.c model/cfg_gguf.c model/tok_open.c model/tok_parts.c
reader config_json model/cfg_read.c model/cfg_fla.c
reader tokenizer_json model/tok_json.c model/tok_build.c
reader vocab_json model/tok_vocab.c
reader manifest experiments/manifest.c
reader shard model/shard.c
reader json core/jread.c
reader yaml core/yamlx.c
reader ruler ruler/punkt.c ruler/qa.c ruler/qa_docs.c
exit $fail
