#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: runs the fuzz targets (all of them) for SECONDS each (default 20), two at a time (JOBS=N). Exit 1 on a crash or hang; 77 without clang.
set -u
secs=${1:-20}
shift
cd "$(dirname "$0")/.." || exit 2
command -v clang >/dev/null || { echo "SKIPPED: fuzzing needs clang and its runtime (Debian: clang libclang-rt-14-dev)"; exit 77; }
log=$(mktemp -d) || exit 4
trap 'rm -rf "$log"' EXIT
echo 'int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return d == 0 && n; }' >"$log/probe.c"
clang -fsanitize=fuzzer,address "$log/probe.c" -o "$log/probe" 2>/dev/null || { echo "SKIPPED: clang cannot link a fuzzer here (Debian: libclang-rt-14-dev)"; exit 77; }
{ cmake --preset fuzz -G Ninja && cmake --build build-fuzz -j "$(nproc)" --target fuzz_programs; } >"$log/build" 2>&1 || { tail -n 20 "$log/build"; exit 4; }
one() { # TARGET: its line; leaves LOG/TARGET.failed behind when it failed
    local name=$1 t=build-fuzz/fuzz_$1 work=$log/$1.work seeds=tests/fuzz/seeds/$1
    mkdir -p "$work"
    if "$t" -max_total_time="$secs" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/" "$work" "$seeds" >"$log/$name" 2>&1; then
        echo "fuzz $name: ok, $(grep -a stat::number_of_executed_units "$log/$name" | awk '{print $2}') runs in $secs s"
    else
        echo "fuzz $name: FAILED"
        { # told at the end, where the end of a long log still shows it; without libFuzzer's lines of progress
            echo "-- fuzz $name"
            grep -av '^#[0-9]' "$log/$name" | tail -n 30
            ls "$work" | grep -E '^(crash|timeout|oom|leak)' | while read -r f; do echo "artifact (base64): $(base64 -w0 "$work/$f" | head -c 4000)"; done
        } >"$log/$name.failed"
    fi
}
export -f one
export log secs
[ $# -gt 0 ] || set -- $(cd tests/fuzz && ls ./*.c | sed 's#^\./##; s/\.c$//')
printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -I{} bash -c 'one {}'
failed=$(find "$log" -name '*.failed' | wc -l)
[ "$failed" = 0 ] || cat "$log"/*.failed
echo "fuzz: $(($# - failed)) targets passed, $failed failed"
[ "$failed" = 0 ]
