#!/usr/bin/env bash
# Report kinds on real runs of the tiny teacher, a few steps each: what tables and figures say is what the runs hold.
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
checks=0 failed=0
check() { # TEXT, then a command
    checks=$((checks + 1))
    local what=$1
    shift
    "$@" >"$work/said" 2>&1 && return
    failed=$((failed + 1))
    echo "$what: $(head -c 600 "$work/said")"
}
cat >"$work/m.yaml" <<'END'
dash: 1
name: m
title: A title
inputs:
  teacher: {path: experiments/tiny/teacher}
stages:
  - {id: data, kind: pack, model: teacher, text: [experiments/tiny/prose], seq: 64, text_rows: 12, seed: 1}
  - {id: hidden, kind: hidden, model: teacher, data: data}
  - {id: lin, kind: align, model: teacher, data: data, tokens: 512, batch: 4, micro: 4, heldout: 2}
  - {id: own, kind: select, label: Own, method: custom, model: teacher, points: [{layers: "full:0,5"}, {layers: "full:3 window:1,2,4"}]}
  - {id: soft, kind: search, label: soft, ops: "full,window,linear", window: 8, model: teacher, linear: lin, data: data, hidden: hidden, tokens: 1024, micro: 2, accumulate: 2, heldout: 2, seeds: [0], matrix: {lambda: [0.4, 0.1]}}
  - {id: fixed, kind: search, label: fixed, ops: "full,window,linear", anneal: none, window: 8, model: teacher, linear: lin, data: data, hidden: hidden, tokens: 1024, micro: 2, accumulate: 2, heldout: 2, seeds: [0], lambda: 0.4}
  - {id: two, kind: search, label: two, ops: "full,linear", model: teacher, linear: lin, data: data, hidden: hidden, tokens: 1024, micro: 2, accumulate: 2, heldout: 2, seeds: [0], matrix: {lambda: [0.3, 0.01]}}
  - {id: hyb, kind: distill, model: teacher, linear: lin, data: data, hidden: hidden, layers: [soft, two], window: 8, tokens: 0, heldout: 2}
  - {id: evd, kind: ruler-gen, model: teacher, lengths: [256], samples: 1, seed: 7, tasks: [niah_single_1, niah_single_3]}
  - {id: ev, kind: ruler, model: hyb, data: evd, allow_cost_mismatch: true}
  - {id: time, kind: infer, label: Teacher, model: teacher, contexts: [16, 32], sequences: 2, decode: 2, warmup: 0, reps: 1}
  - {id: time-hyb, kind: infer, model: ["hyb@label=soft@lambda=0.4"], contexts: [16, 32], sequences: 2, decode: 2, warmup: 0, reps: 1}
  - {id: uni, kind: select, label: Uniform, method: uniform, model: teacher, matrix: {budget: [2, 3]}}
  - {id: ppl, kind: select, label: LM-PPL, method: lm-ppl, model: teacher, data: data, hidden: hidden, rows: 2, matrix: {budget: [2, 3]}}
  - {id: mse, kind: select, label: Act-MSE, method: act-mse, model: teacher, data: data, hidden: hidden, rows: 2, budget: 3}
  - {id: same, extends: hyb, layers: [uni, ppl, mse]}
  - {id: ev-same, kind: ruler, model: same, data: evd}
  - {id: sets, kind: landscape, model: teacher, linear: lin, data: data, hidden: hidden, heldout: 2, budget: 1}
  - {id: bench, kind: lmeval, model: same, tasks: [piqa], limit: 1}
  - {id: tight, kind: infer, label: tight, model: teacher, contexts: [16], sequences: 2, decode: 2, warmup: 0, reps: 1, memory_gib: 0.001}
reports:
  - {kind: infer, name: prefill, values: dash_table12, show: prefill, from: [time, time-hyb, tight]}
  - {kind: infer, name: latency, show: figure, from: [time, time-hyb]}
  - {kind: operators, name: counts, show: counts, from: [own, two]}
  - {kind: operators, name: grid, show: grid, from: [own]}
  - {kind: routing, name: diag, show: diagnostics, from: [soft@lambda=0.4, fixed], ruler: [ev]}
  - {kind: routing, name: top, show: top1, from: [soft, two, fixed]}
  - {kind: routing, name: stack, show: stacked, from: [soft@lambda=0.4, fixed]}
  - {kind: sweep, name: sweep, from: [ev]}
  - {kind: tasks, name: tasks, from: [ev]}
  - {kind: config, name: conf, values: dash_table5, show: settings, from: [two]}
  - {kind: config, name: pts, values: dash_table6, show: points, from: [soft, two]}
  - {kind: selectors-list, name: list}
  - {kind: controlled, name: control, from: [ev-same], published: {2: 5, 3: 9}}
  - {kind: budget-ruler, name: budget, reference: uni, from: [ev-same]}
  - {kind: cost, name: costs, against: LM-PPL, budgets: [2, 3], cost_at: 3, from: [ev-same]}
  - {kind: variants, name: vari, from: [two], ruler: [ev]}
  - {kind: landscape, name: every, from: [sets]}
  - {kind: models, name: models, from: [bench], ruler: [ev-same]}
END
"$bin" reproduce "$work/m.yaml" --threads 1 --runs "$work/runs" --out "$work/res" --quiet >"$work/out" 2>"$work/err" || { echo "reproduce failed: $(tail -5 "$work/err")"; exit 1; }
res=$work/res/m/tiny
run_of() { awk -F'\t' -v s="$1" -v p="$2" '$1 == s && index($3, p) { print $5; exit }' "$res/runs.tsv"; }
value() { awk -F'[:,]' -v k="\"$2\"" '$1 ~ k { gsub(/[ "]/, "", $2); print $2; exit }' "$work/runs/$1/out/result.json"; }
# cell FILE ROW-PATTERN COLUMN: of a TSV, by the header's name
cell() { awk -F'\t' -v r="$2" -v c="$3" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == c) at = i } NR > 1 && $0 ~ r { print $at; exit }' "$1"; }
near() { awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { exit !(a != "" && b != "" && a - b <= t && b - a <= t) }'; }

check "counts of a mask" [ "$(awk -F'\t' '$2 == "Own" { print $3, $4, $5, $6 }' "$res/counts.tsv" | head -2 | tr '\n' ';')" = "2 0 10 2.0;1 3 8 1.375;" ]
check "the grid has every layer" [ "$(grep -c '^[-0-9]' "$res/grid.tsv")" = 24 ]
check "the grid's third part" grep -q 'Window' "$res/grid.tsv"

soft=$(run_of soft lambda=0.4) fixed=$(run_of fixed "")
for pair in "with annealing:$soft" "throughout:$fixed"; do
    row=${pair%%:*} run=${pair#*:}
    for name in entropy top1 margin ambiguous; do
        col="final T_arch: ${name/top1/top-1}"
        check "$row: $col of $run" near "$(cell "$res/diag-runs.tsv" "$row" "$col")" "$(value "$run" $name)" 1e-12
    done
    # from the probabilities of the record alone: the search itself computed these from its logits
    check "$row: entropy at T = 1" near "$(cell "$res/diag-runs.tsv" "$row" "ours: at T_arch = 1: entropy")" "$(value "$run" entropy_t1)" 1e-9
    check "$row: top-1 at T = 1" near "$(cell "$res/diag-runs.tsv" "$row" "ours: at T_arch = 1: top-1")" "$(value "$run" top1_t1)" 1e-9
    diff=$(awk -v a="$(value "$run" kl_argmax_layer0)" -v b="$(value "$run" kl_soft)" 'BEGIN { printf "%.12g", a - b }')
    check "$row: KL lost to argmax" near "$(cell "$res/diag-runs.tsv" "$row" "ours: KL, all tokens: difference")" "$diff" 1e-9
done
check "RULER of the run's own hybrid" near "$(cell "$res/diag-runs.tsv" "with annealing" RULER)" "$(value "$(run_of ev lambda=0.4)" mean)" 1e-9
check "one pair" grep -q '1 pairs of one lambda and seed' "$work/out"

check "five runs of 11 searched layers" [ "$(grep -c '^[-0-9]' "$res/top.tsv")" = 55 ]
# one row a run, from the top: its budget, counted from the rectangles (8 of 64 tokens: 0.125 a window layer)
check "rows by budget" awk -F'\t' '/^# panel/ { c = /: Full$/ ? 1 : /: Window$/ ? 0.125 : 0 } /^[-0-9]/ { y = int(-($3 + $4) / 2 + 0.5); b[y] += c; if (y > top) top = y } END { for (y = 1; y <= top; y++) { if (b[y] < b[y - 1]) exit 1; if (b[y] > b[y - 1]) rises++ } exit top != 4 || !rises }' "$res/top.tsv"
check "shares add up to 1" awk -F'\t' '/^# panel/ { p = $0; sub(/ "[^"]*": .*/, "", p) } /^[0-9]/ { s[p "|" $1] += $4 - $3 } END { for (k in s) { n++; if (s[k] < 1 - 1e-9 || s[k] > 1 + 1e-9) exit 1 } exit n != 22 }' "$res/stack.tsv"
check "no layer 0 in the shares" awk -F'\t' '/^[-0-9]/ && $2 < 1 { exit 1 }' "$res/stack.tsv"

check "points of the sweep" [ "$(awk 'NR > 1' "$res/sweep-points.tsv" | wc -l)" = 4 ]
check "a point's budget" near "$(cell "$res/sweep-points.tsv" "^Full/Linear.0.3" "realised budget")" "$(value "$(run_of two lambda=0.3)" budget)" 1e-9
check "tasks of a model" near "$(cell "$res/tasks.tsv" "^ours" S3)" "$(value "$(run_of ev lambda=0.4)" niah_single_3)" 1e-9
check "tasks left out are named" grep -q 'not evaluated here: MK1 (niah_multikey_1)' "$res/tasks.txt"
check "micro-steps that were made" [ "$(cell "$res/conf.tsv" "search micro-steps" ours)" = "$(($(wc -l <"$work/runs/$(run_of two "")/out/log-0.tsv") - 1))" ]
check "an equal setting" [ "$(cell "$res/conf.tsv" "final T_arch" differs)" = same ]
check "another setting" [ "$(cell "$res/conf.tsv" "gradient accumulation" differs)" = differs ]
check "operating points" [ "$(awk 'NR > 1' "$res/pts.tsv" | wc -l)" = 4 ]
check "a selector that is here" grep -q 'lm-ppl' "$res/list.tsv"
for f in "$work/res/index.html" "$work/res/index.md" "$res/report.json"; do check "$f" [ -s "$f" ]; done
# Share of dark or coloured pixels in the middle half of a picture, read by gnuplot itself.
ink() {
    gnuplot -e "set table '$work/pixels'; plot '$1' binary filetype=png every 3:3 with rgbimage" 2>/dev/null
    awk '!/^ *[0-9]/ { next } NR == FNR { w = $1 > w ? $1 : w; h = $2 > h ? $2 : h; next } $1 > w / 4 && $1 < 3 * w / 4 && $2 > h / 4 && $2 < 3 * h / 4 { n++; dark += $3 + $4 + $5 < 700 } END { print dark / n }' "$work/pixels" "$work/pixels"
}
# Share of coloured pixels anywhere: axes and notes have none. For a plot whose marks may lie on the floor.
colour() {
    gnuplot -e "set table '$work/pixels'; plot '$1' binary filetype=png every 3:3 with rgbimage" 2>/dev/null
    awk '/^ *[0-9]/ { n++; hi = $3 > $4 ? $3 : $4; hi = $5 > hi ? $5 : hi; lo = $3 < $4 ? $3 : $4; lo = $5 < lo ? $5 : lo; c += hi - lo > 60 } END { print c / n }' "$work/pixels"
}
if command -v gnuplot >/dev/null; then
    check "costs-quality: no marks" awk -v v="$(colour "$res/costs-quality.png")" 'BEGIN { exit !(v > 0.0005 && v < 0.5) }'
    for f in grid top stack sweep latency budget; do check "$f: an empty or a black plot area: $(ink "$res/$f.png")" awk -v v="$(ink "$res/$f.png")" 'BEGIN { exit !(v > 0.0005 && v < 0.999) }'; done
    for f in grid top stack sweep latency budget costs-quality; do check "$f: fonts embedded" grep -aq /FontFile "$res/$f.pdf"; done
    for f in grid top stack sweep latency; do for x in svg pdf png; do check "$f.$x" [ "$(stat -c %s "$res/$f.$x")" -gt 1000 ]; done; check "$f on the page" grep -q "m/tiny/$f.svg" "$work/res/index.html"; done
else
    echo "gnuplot is not installed: pictures are not checked"
fi
check "controlled: ours" near "$(awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "ours: Uniform") at = i } $2 == "3.0" { print $at }' "$res/control.tsv")" "$(value "$(run_of ev-same "budget=3")" mean)" 1e-9
check "controlled: theirs, named" grep -q 'paper, Qwen2.5-3B: ga-s2' "$res/control.tsv"
check "controlled: in the row of their budget" [ "$(awk -F'\t' 'NR == 1 { for (i = 1; i <= NF; i++) if ($i ~ /: ga-s2$/) at = i } $2 == "3.0" { print $at }' "$res/control.tsv")" = 85.5 ]
check "points: ours and theirs" [ "$(grep -c '^published, Qwen2.5-3B-Instruct' "$res/budget-points.tsv")" = 51 ]
check "a point of ours" near "$(cell "$res/budget-points.tsv" "Uniform.2.0" RULER)" "$(value "$(run_of ev-same "budget=2")" mean)" 1e-9
check "cost: FLOPs of the selection" [ "$(cell "$res/costs.tsv" "LM-PPL" "times LM-PPL: FLOP")" = 1.0 ]
check "cost: tokens" [ "$(cell "$res/costs.tsv" "Act-MSE" "selection at budget 3: tokens" | cut -d. -f1)" = "$(value "$(run_of mse "")" tokens)" ]
check "variants: a row a run" [ "$(awk 'NR > 1' "$res/vari.tsv" | wc -l)" = 2 ]
check "landscape: sets of one layer" [ "$(cell "$res/every.tsv" "1" sets)" = 12 ]
check "models: external rows are published ones" grep -q 'external hybrids: published values, not run here.Jet-Nemotron-2B' "$res/models.tsv"
check "models: training tokens" [ "$(cell "$res/models.tsv" "Uniform .B=2" "training tokens: Stages 1, 3" | cut -d. -f1)" = 512 ]
check "a model and its hybrid are timed" [ "$(awk -F'\t' '$1 == "ours" && $3 ~ /^[0-9.e-]+ \/ [0-9.e-]+$/ && $4 ~ /\// { n++ } END { print n }' "$res/prefill.tsv")" = 2 ]
check "one run of the hybrid's two" [ "$(awk -F'\t' '$1 == "time-hyb"' "$res/runs.tsv" | wc -l)" = 1 ]
check "out of memory is said, not tried" [ "$(cell "$res/prefill.tsv" "tight" "ours: s / GiB: 16")" = OOM ]
check "top: variants are told apart" grep -q '(0.4, 0, T=1)' "$res/top.gp"
# again: nothing computed, the same bytes
cp -r "$work/res" "$work/first"
"$bin" reproduce "$work/m.yaml" --threads 1 --runs "$work/runs" --out "$work/res" --quiet >"$work/out" 2>"$work/err"
check "nothing computed the second time" grep -q ' 0 ran ' "$work/out"
check "the same bytes" diff -r "$work/first" "$work/res"
# regress takes a manifest of any of these kinds, tables and figures alike, by FILE: what it made, not what another report made
kinds=$(sed -n 's/^  - {kind: \([a-z-]*\), name: \([a-z]*\),.*/\1 \2/p; s/^  - {kind: \([a-z-]*\), name: \([a-z]*\)}.*/\1 \2/p' "$work/m.yaml" | sort -u -k 2)
while read -r kind name; do
    { printf 'dash: 1\nname: r\nbase: m.yaml\nreports:\n'; grep "name: $name[,}]" "$work/m.yaml"; } >"$work/r.yaml"
    for file in "$name.det.tsv" "$name-points.det.tsv" "$name-points.tsv" "$name.tsv" ""; do [ -f "$res/$file" ] && break; done
    check "regress: $kind $name" [ -n "$file" ]
    "$bin" regress "$work/r.yaml" --scale tiny --threads 1 --runs "$work/runs" --out "$work/res" --quiet --against "$res/$file" >"$work/out" 2>"$work/err"
    check "regress: $kind $name: $? $(cat "$work/err")" grep -q 'regress: [1-9][0-9]* cells of 1 table .* 0 moved' "$work/out"
    sed '$s/[0-9]$/&9/; t; $s/$/x/' "$res/$file" >"$work/other.tsv"
    "$bin" regress "$work/r.yaml" --scale tiny --threads 1 --runs "$work/runs" --out "$work/res" --quiet --against "$work/other.tsv" >"$work/out" 2>"$work/err"
    check "regress: $kind $name: another file: $?" grep -q ' 1 moved' "$work/out"
done <<<"$kinds"
check "every kind of report has been there" [ "$(cut -d ' ' -f 1 <<<"$kinds" | sort -u | wc -l)" -ge 13 ]
echo "$checks checks, $failed failed"
[ "$failed" = 0 ]
