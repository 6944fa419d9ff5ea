#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (first argument, default 20). Exit 1 on a crash or hang; 77 without clang.
set -u
secs=${1:-20}
cd "$(dirname "$0")/.." || exit 2
command -v clang >/dev/null || { echo "SKIPPED: fuzzing needs clang and its runtime (Debian: clang libclang-rt-14-dev)"; exit 77; }
cmake --preset fuzz -G Ninja >/dev/null || exit 4
cmake --build build-fuzz -j "$(nproc)" >/dev/null || exit 4
passed=0 failed=0
for t in build-fuzz/fuzz_*; do
    [ -x "$t" ] || continue
    name=${t##*/fuzz_}
    work=$(mktemp -d)
    seeds=tests/fuzz/seeds/$name
    mkdir -p "$seeds"
    if "$t" -max_total_time="$secs" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$work/" "$work" "$seeds" >"$work.log" 2>&1; then
        echo "fuzz $name: ok, $(grep -a stat::number_of_executed_units "$work.log" | awk '{print $2}') runs in $secs s"
        passed=$((passed + 1))
    else
        echo "fuzz $name: FAILED"
        tail -n 40 "$work.log"
        ls "$work" | grep -E '^(crash|timeout|oom|leak)' | while read -r f; do echo "artifact (base64): $(base64 -w0 "$work/$f" | head -c 4000)"; done
        failed=$((failed + 1))
    fi
    rm -rf "$work" "$work.log"
done
echo "fuzz: $passed targets passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
