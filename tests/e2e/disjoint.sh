#!/usr/bin/env bash
# Nothing of Table 1's evaluation samples stands in its training data, nor in those of its bundled Stage 1 (scale tiny; or of the manifest given, where every ruler-gen stage but
# eval-data is one of training when none is called train-...): makes both by `reproduce --only` and compares them with disjoint.c.
# Training of the tiny teacher, 280,000 samples, minutes: tests/e2e/disjoint.sh experiments/tiny/teacher.yaml
set -u
bin=${DASHLAB_BIN:-build/dashlab}
[ -x "$bin" ] || { echo "SKIPPED: no dashlab executable at '$bin'"; exit 77; }
bin=$(realpath "$bin")
check=$(dirname "$bin")/e2e_disjoint
[ -x "$check" ] || { echo "SKIPPED: no '$check'"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
manifest=${1:-experiments/table1.yaml}
train=$(sed -n 's/.*{id: \(train-[a-z0-9-]*\), kind: ruler-gen.*/\1/p' $manifest)
[ -n "$train" ] || train=$(sed -n 's/.*{id: \([a-z0-9-]*\), kind: ruler-gen.*/\1/p' $manifest | grep -vx eval-data)
[ -n "$train" ] || { echo "FAIL: no training samples in $manifest"; exit 1; }
only=eval-data,$(echo "$train" | paste -sd,)
"$bin" reproduce $manifest --scale tiny --only "$only" --runs "$tmp/runs" --out "$tmp/results" --quiet >/dev/null 2>"$tmp/err" || { tail -n 5 "$tmp/err"; exit 1; }
"$bin" reproduce $manifest --scale tiny --runs "$tmp/runs" --out "$tmp/results" --dry-run --gflops 1 >"$tmp/plan" 2>"$tmp/err" || { tail -n 5 "$tmp/err"; exit 1; }
dir() { echo "$tmp/runs/ruler-gen-$(sed -n "s/^$1 .* \([0-9a-f]\{12\}\) .*/\1/p" "$tmp/plan" | head -n 1)/out"; }
dirs=()
for id in $train; do
    dirs+=("$(dir "$id")")
done
if [ $# = 0 ]; then # the bundled Stage 1
    stage1=experiments/tiny/stage1.yaml
    only=$(sed -n 's/.*{id: \([a-z0-9-]*\), kind: ruler-gen.*/\1/p' $stage1 | paste -sd,)
    "$bin" reproduce $stage1 --scale tiny --only "$only" --no-reports --runs "$tmp/runs1" --quiet >/dev/null 2>"$tmp/err" || { tail -n 5 "$tmp/err"; exit 1; }
    dirs+=("$tmp"/runs1/ruler-gen-*/out)
fi
mkdir "$tmp/text" && ln -s "$PWD"/experiments/tiny/{prose,novels}/*.txt.zst "$tmp/text" || exit 1
# The essay sentences are held to it once every training stage that has essays in its samples names texts of its own.
strict=1
grep -E "id: ($(echo "$train" | paste -sd'|')), kind: ruler-gen" $manifest | grep -E 'niah_(single_[23]|multi(key_1|value|query))' | grep -v -q 'essays:' && strict=0
"$check" $strict ruler/data/essay.txt.zst "$(dir eval-data)" "$tmp/text" "${dirs[@]}"
