#!/usr/bin/env bash
# How many lines of each reader of foreign files the fuzz seeds, and SECONDS (first argument, default 5) of fuzzing from them, reach. Exit 1 below 80 %; 77 without clang and llvm-cov.
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
# reader TARGET FILE...: share of lines of these files
reader() {
    local name=$1 t=build-coverage/fuzz_$1 lines
    shift
    mkdir -p "$tmp/$name.work"
    LLVM_PROFILE_FILE=$tmp/$name.raw "$t" -max_total_time="$secs" -timeout=20 -rss_limit_mb=2048 "$tmp/$name.work" "tests/fuzz/seeds/$name" >"$tmp/$name.log" 2>&1 || { echo "fuzz_$name failed"; tail -n 20 "$tmp/$name.log"; fail=1; return; }
    "$prof" merge -sparse "$tmp/$name.raw" -o "$tmp/$name.prof" || { fail=1; return; }
    "$cov" export -summary-only "$t" -instr-profile="$tmp/$name.prof" "$@" >"$tmp/$name.json" 2>/dev/null || { fail=1; return; }
    # the totals stand last: "lines":{"count":N,"covered":M,...
    lines=$(grep -o '"lines":{"count":[0-9]*,"covered":[0-9]*' "$tmp/$name.json" | tail -n 1 | sed 's/.*"count":\([0-9]*\),"covered":\([0-9]*\)/\1 \2/')
    set -- $lines "$*"
    printf '%-16s %5d of %5d lines  %5.1f %%  %s\n' "$name" "$2" "$1" "$(awk "BEGIN {print 100 * $2 / $1}")" "$3"
    [ $((100 * $2)) -ge $((80 * $1)) ] || { echo "$name: below 80 %"; fail=1; }
}
reader safetensors model/st.c
reader gguf model/gguf.c model/gguf_quant.c model/cfg_gguf.c
reader config_json model/cfg_read.c model/cfg_fla.c
reader tokenizer_json model/tok_json.c model/tok_build.c
reader manifest experiments/manifest.c
reader shard model/data.c
reader json core/jread.c
reader yaml core/yamlx.c
reader ruler ruler/punkt.c ruler/qa.c ruler/qa_docs.c
exit $fail
