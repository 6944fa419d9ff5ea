#!/usr/bin/env bash
# experiments/lmeval.yaml at ci scale from an empty folder: teacher, all-linear and DASH-3 students on the five tasks. About a minute of computing.
set -u
bin=${DASHLAB_BIN:-build/dashlab}
[ -x "$bin" ] || { echo "SKIPPED: no dashlab executable at '$bin'"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail=0
bad() { echo "FAIL: $*"; fail=1; }
"$bin" reproduce experiments/lmeval.yaml --scale ci --runs "$tmp/runs" --out "$tmp/results" --quiet >"$tmp/out" 2>"$tmp/err" || bad "exit $?: $(tail -n 3 "$tmp/err")"
grep -q "SMOKE ONLY" "$tmp/out" || bad "no verdict: $(tail -n 2 "$tmp/out")"
t=$tmp/results/lmeval/ci/lmeval.tsv
[ -s "$t" ] || { bad "no table"; exit 1; }
for row in Teacher All-linear DASH-3 chance; do
    line=$(grep "^[[:space:]]*$row" "$t") || bad "no row $row"
    [ "$(tr '\t' '\n' <<<"$line" | grep -cE '^[0-9.]+$')" -ge 8 ] || bad "row $row lacks numbers: $line"
done
grep -hq '"bundled_subset": true' "$tmp"/runs/lmeval-*/out/results.json || bad "the subset is not marked"
! grep -hqE '"(date|total_evaluation_time_seconds)"' "$tmp"/runs/lmeval-*/out/results.json || bad "a time in a run's artifacts"
"$bin" reproduce experiments/lmeval.yaml --scale ci --runs "$tmp/runs" --out "$tmp/results" --quiet >"$tmp/out" 2>"$tmp/err"
grep -q " 0 ran" "$tmp/out" || bad "the second time something ran"
for r in "$tmp"/runs/lmeval-*; do
    "$bin" verify "$r" >/dev/null || bad "verify $r"
done
# names and shots are looked at before anything runs
for bad in "tasks: [arc_easi]|unknown task 'arc_easi', did you mean 'arc_easy'" "tasks: [piqa], metrics: [akk]|akk" "tasks: [piqa], shots: x|shots"; do
    printf 'dash: 1\nname: lm\ntitle: t\ninputs:\n  teacher: {path: experiments/tiny/teacher}\nstages:\n  - {id: e, kind: lmeval, model: teacher, %s}\n' "${bad%%|*}" >"$tmp/m.yaml"
    "$bin" check "$tmp/m.yaml" >"$tmp/out" 2>"$tmp/err"
    [ $? = 2 ] && grep -q "stage 'e': .*${bad##*|}" "$tmp/err" || bad "check with ${bad%%|*}: $(cat "$tmp/err")"
done
exit $fail
