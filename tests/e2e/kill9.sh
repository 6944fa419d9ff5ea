#!/usr/bin/env bash
# `reproduce` of tests/data/kill.yaml, interrupted and killed at many moments and resumed, leaves the bytes of an unbroken run (cli.md says of which files), also with another number of threads; repeated,
# it computes nothing. Then a full disk and a read-only folder: a clear message, exit 4, and what was finished stays usable.
set -u
bin=${DASHLAB_BIN:-build/dashlab}
[ -x "$bin" ] || { echo "SKIPPED: no dashlab executable at '$bin'"; exit 77; }
bin=$(realpath "$bin")
cd "${DASHLAB_SRC:-.}" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
manifest=tests/data/kill.yaml
fail=0 kills=0 pid=
bad() { echo "FAIL: $*"; fail=1; }
start() { # DIR THREADS: in the background; pid
    "$bin" reproduce $manifest --runs "$tmp/$1/runs" --out "$tmp/$1/results" --threads "$2" --quiet >"$tmp/$1.out" 2>"$tmp/$1.err" &
    pid=$!
}
# Everything that is to be the same: all but times, hosts, logs, the tables with a time column (their .det.tsv has none) and the page that shows those.
tree() {
    (cd "$1" && find . -name '*.det.tsv' | sed 's/\.det\.tsv$//' | while read -r t; do printf '%s\n' "$t".{txt,md,html,tex,tsv}; done >"$tmp/timed"
        find . -type f ! -name timing.json ! -name provenance.json ! -name log.txt ! -path './results/index.*' | LC_ALL=C sort | grep -v -x -F -f "$tmp/timed" | xargs sha256sum)
}
wait_for() { # PATTERN: until a file of the killed tree matches, or the process ends
    while kill -0 "$pid" 2>/dev/null; do
        compgen -G "$tmp/killed/runs/$1" >/dev/null && return 0
        sleep 0.02
    done
    return 1
}

mkdir "$tmp/whole" "$tmp/killed"
start whole 2
wait "$pid" || { cat "$tmp/whole.err"; bad "the unbroken run failed"; exit 1; }
total=$(find "$tmp/whole/runs" -name OUTPUTS | wc -l)

# SIGINT in a training, a search and a distillation: exit 130, and what to do.
for at in 'align-*/work/last.safetensors' 'search-*/work/try-0/state.tsv' 'distill-*/work/last.safetensors'; do
    start killed 1
    wait_for "$at" || { bad "no moment '$at' to interrupt"; continue; }
    kill -INT "$pid"
    wait "$pid"
    code=$?
    [ $code = 130 ] || bad "SIGINT at '$at': exit $code, wanted 130: $(tail -n 3 "$tmp/killed.err")"
    grep -q "run the same command again" "$tmp/killed.err" || bad "SIGINT at '$at': no word on how to go on: $(tail -n 3 "$tmp/killed.err")"
done
# SIGKILL by the clock.
for after in 0.1 0.25 0.4 0.6; do
    start killed 1
    sleep $after
    kill -9 "$pid" 2>/dev/null && kills=$((kills + 1))
    wait "$pid" 2>/dev/null
done
# SIGKILL between two steps of what is durable. The numbers grow, so that every stage gets done in the end.
if ${CC:-cc} -shared -fPIC -O1 -o "$tmp/shim.so" tests/data/kill_shim.c -ldl 2>"$tmp/cc.err"; then
    for at in 3 8 15 22 31 33 37 41 47 53 59 67 71 79 90 100 110 120 130 140 150 160 170 180 190 200; do
        LD_PRELOAD=$tmp/shim.so KILL_AT=$at "$bin" reproduce $manifest --runs "$tmp/killed/runs" --out "$tmp/killed/results" --threads 1 --quiet >"$tmp/killed.out" 2>"$tmp/killed.err"
        code=$?
        [ $code = 0 ] && break
        [ $code = 137 ] || bad "killed before durable step $at: exit $code: $(tail -n 3 "$tmp/killed.err")"
        kills=$((kills + 1))
    done
else
    echo "no C compiler for the shim: killed by the clock only"
fi
start killed 1
wait "$pid" || bad "the last resumption failed: $(tail -n 3 "$tmp/killed.err")"
[ "$kills" -ge 8 ] || bad "only $kills kills hit a running process"
tree "$tmp/whole" >"$tmp/whole.sums"
tree "$tmp/killed" >"$tmp/killed.sums"
diff "$tmp/whole.sums" "$tmp/killed.sums" >"$tmp/diff" || bad "an interrupted run (1 thread) and an unbroken one (2 threads) differ:
$(head -n 40 "$tmp/diff")"
[ -z "$(find "$tmp/killed" -name '*.tmp-*' -o -name work -o -name LOCK)" ] || bad "left behind: $(find "$tmp/killed" -name '*.tmp-*' -o -name work -o -name LOCK | head -n 5)"

# Again: nothing is recomputed, nothing rewritten in runs.
before=$(find "$tmp/whole/runs" -type f -printf '%P %T@\n' | sort | sha256sum)
"$bin" reproduce $manifest --runs "$tmp/whole/runs" --out "$tmp/whole/results" --json >"$tmp/again" 2>"$tmp/again.err" || bad "the second run failed"
grep -q '"ran": 0,' "$tmp/again" || bad "the second run computed something: $(cat "$tmp/again")"
[ "$before" = "$(find "$tmp/whole/runs" -type f -printf '%P %T@\n' | sort | sha256sum)" ] || bad "the second run touched the runs"
# The manifest's checks act on the finished table.
for bound in 99 101; do
    { cat $manifest; printf 'checks:\n  - {table: kill, row: references/Teacher, column: RULER, min: %s}\n' $bound; } >"$tmp/checked-$bound.yaml"
    "$bin" reproduce "$tmp/checked-$bound.yaml" --runs "$tmp/whole/runs" --out "$tmp/whole/results" >"$tmp/again" 2>"$tmp/again.err"
    code=$?
    [ $code = $((bound > 100)) ] || bad "a check with min $bound: exit $code: $(tail -n 3 "$tmp/again.err")"
    grep -q "$([ $bound = 99 ] && echo 'holds' || echo 'FAILED')" "$tmp/again" && grep -q "RESULT .*$((bound < 100)) of 1 checks hold" "$tmp/again" || bad "a check with min $bound: $(tail -n 3 "$tmp/again")"
done
for r in "$tmp"/killed/runs/*/; do
    "$bin" verify "$r" >/dev/null || bad "verify ${r##*/runs/}"
done

# A full disk. A small tmpfs where mounting is allowed, else a limit on the size of a file; hidden.f32 (2 MB) does not fit.
mkdir "$tmp/full"
full() { # in a namespace or under a limit: CODE MESSAGE
    [ "$1" = 4 ] || bad "full disk: exit $1, wanted 4: $(tail -n 3 "$tmp/full.err")"
    grep -q -i -E "No space left|File too large" "$tmp/full.err" || bad "full disk: the message does not say so: $(tail -n 3 "$tmp/full.err")"
}
if unshare -m true 2>/dev/null && unshare -m mount -t tmpfs -o size=1m tmpfs "$tmp/full" 2>/dev/null; then
    how="a tmpfs of 1.5 MiB"
    unshare -m bash -c "mount -t tmpfs -o size=1536k tmpfs '$tmp/full' && '$bin' reproduce $manifest --only hidden --runs '$tmp/full/runs' --out '$tmp/full/results' --threads 2 2>'$tmp/full.err' >/dev/null
        echo \$? >'$tmp/code'; cp -r '$tmp/full/runs' '$tmp/kept'"
else
    how="a limit of 1.5 MiB a file"
    (trap '' XFSZ; ulimit -f 1536; "$bin" reproduce $manifest --only hidden --runs "$tmp/full/runs" --out "$tmp/full/results" --threads 2 2>"$tmp/full.err" >/dev/null; echo $? >"$tmp/code")
    cp -r "$tmp/full/runs" "$tmp/kept"
fi
full "$(cat "$tmp/code")"
[ "$(find "$tmp/kept" -name OUTPUTS | wc -l)" = 2 ] || bad "full disk: $(find "$tmp/kept" -name OUTPUTS | wc -l) finished runs, wanted 2 (train-gen, train-data)"
for r in "$tmp"/kept/*/; do
    [ ! -e "$r/OUTPUTS" ] || "$bin" verify "$r" >/dev/null || bad "full disk: a finished run does not verify"
done
"$bin" reproduce $manifest --only hidden --runs "$tmp/kept" --out "$tmp/full2" --threads 2 --json >"$tmp/again" 2>"$tmp/full.err" || bad "full disk: with room again: $(tail -n 3 "$tmp/full.err")"
grep -q '"up_to_date": 2,' "$tmp/again" || bad "full disk: finished runs were not used: $(cat "$tmp/again")"
diff <(cd "$tmp/whole/runs" && sha256sum hidden-*/OUTPUTS) <(cd "$tmp/kept" && sha256sum hidden-*/OUTPUTS) >/dev/null || bad "full disk: other bytes after going on"

# Folders that cannot be written: for runs, and for results after all was computed. Root may write everywhere but into /sys.
ro=$tmp/ro
mkdir "$ro" && chmod 555 "$ro"
[ "$(id -u)" != 0 ] || ro=/sys
"$bin" reproduce $manifest --only train-gen --runs $ro/dashlab-runs --out "$tmp/x" --quiet >/dev/null 2>"$tmp/ro.err"
code=$?
[ $code = 4 ] && grep -q "cannot create folder '$ro/dashlab-runs" "$tmp/ro.err" || bad "read-only runs: exit $code, wanted 4 and a message: $(tail -n 3 "$tmp/ro.err")"
"$bin" reproduce $manifest --runs "$tmp/whole/runs" --out $ro/dashlab-results --quiet >/dev/null 2>"$tmp/ro.err"
code=$?
[ $code = 4 ] && grep -q "cannot create folder '$ro/dashlab-results" "$tmp/ro.err" || bad "read-only results: exit $code, wanted 4 and a message: $(tail -n 3 "$tmp/ro.err")"

echo "$total runs; $kills kills and 3 interrupts resumed; full disk by $how; $([ $fail = 0 ] && echo ok || echo FAILED)"
exit $fail
