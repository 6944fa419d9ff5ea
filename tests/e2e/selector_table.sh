#!/usr/bin/env bash
# The selector table on the bundled teacher, untrained hybrids and few samples: what a cell says that has no number, ties, equal sets, other operator spaces and their controls, claims by seeds; overlap, cost and
# stability against the records; a report with hardly a row; w/T.
source "$(dirname "$0")/../cli.sh"
common="model: teacher, linear: lin, data: data, hidden: hidden"
top() {
    cat <<END
dash: 1
name: t
title: A title
inputs:
  teacher: {path: experiments/tiny/teacher}
stages:
  - {id: evd, kind: ruler-gen, model: teacher, lengths: [256], samples: 2, seed: 7, tasks: [niah_single_1, niah_single_3]}
  - {id: data, kind: pack, model: teacher, text: [experiments/tiny/prose], seq: 256, text_rows: 12, seed: 1}
  - {id: hidden, kind: hidden, model: teacher, data: data}
  - {id: lin, kind: align, model: teacher, data: data, tokens: 2k, batch: 2, micro: 2, heldout: 2}
  - {id: uniform, kind: select, label: Uniform, method: uniform, model: teacher, matrix: {budget: [2, 3]}}
END
}
{
    top
    cat <<END
  - {id: none, kind: select, label: All-linear, method: custom, layers: none, model: teacher}
  - {id: twin, kind: select, label: Twin, method: custom, layers: "10,5,0", model: teacher}
  - {id: random, kind: select, label: Random, method: random, model: teacher, budget: 3, matrix: {seed: [0, 1]}}
  - {id: again, kind: select, label: Again, method: random, seed: 1, model: teacher, budget: 3}
  - {id: lm-ppl, kind: select, label: LM-PPL, method: lm-ppl, model: teacher, data: data, rows: 2, budget: 3}
  - {id: ga-s1, kind: select, label: GA-S1, method: ga-s1, $common, rows: 1, budget: 3}
  - {id: vt, kind: select, label: VT, method: vt, model: teacher, prompts: 2, max_new: 4, budget: 3}
  - {id: kv, kind: select, label: KV, method: kv, probe_form: ruler, length: 384, prompts: 2, model: teacher, budget: 2}
  - {id: dash-3, kind: search, label: DASH-3, ops: "full,window,linear", window: 32, $common, tokens: 6k, micro: 2, accumulate: 1, heldout: 2, seeds: [0, 1], bisect: 0, budget: 3, lambda: LAMBDA3}
  - {id: uniform-window, kind: select, label: Uniform+Window, method: uniform, model: teacher, like: dash-3}
  - {id: random-window, kind: select, label: Random+Window, method: random, seed: 3, model: teacher, like: dash-3}
  - {id: hyb, kind: distill, $common, layers: [none, uniform, twin, random, again, lm-ppl, ga-s1, vt, kv, dash-3, uniform-window, random-window], unfilled: use, window: 32, tokens: 0, heldout: 2, seed: 0}
  - {id: more, kind: distill, $common, layers: [uniform@budget=3, lm-ppl, dash-3, uniform-window], unfilled: use, window: 32, tokens: 0, heldout: 2, matrix: {seed: [1]}}
  - {id: few, kind: distill, $common, layers: [uniform@budget=2], window: 32, tokens: 0, heldout: 2, seed: 0}
  - {id: evt, kind: ruler, label: Teacher, model: teacher, data: evd}
  - {id: ev, kind: ruler, model: hyb, data: evd}
  - {id: ev2, kind: ruler, model: more, data: evd}
  - {id: ev3, kind: ruler, model: few, data: evd}
reports:
  - {kind: selectors, name: t, from: [evt, ev, ev2], reference: uniform, budgets: [3]}
  - {kind: selectors, name: few, from: [ev3], reference: uniform, budgets: [2]}
END
} | sed 's/LAMBDA3/0.2/' >"$work/m.yaml"
res=$work/res/t/tiny
run 0 reproduce "$work/m.yaml" --threads 1 --runs "$work/runs" --out "$work/res"
[ -s "$res/t.tsv" ] || { tail -5 "$work/err.txt"; exit 1; }
cp "$work/out.txt" "$work/first.txt"
# cell FILE ROW COLUMN: of a TSV, the row by its selector (exactly), the column by the header
cell() { awk -F'\t' -v r="$2" -v c="$3" 'NR == 1 { for (i = 1; i <= NF; i++) { if ($i == c) at = i; if ($i == "selector") name = i } } NR > 1 && $name == r { print $at; exit }' "$1"; }
block() { awk -F'\t' -v r="$1" '$2 == r { print $1; exit }' "$res/t.tsv"; }
run_of() { awk -F'\t' -v s="$1" -v p="$2" '$1 == s && index($3, p) { print $5; exit }' "$res/runs.tsv"; }
value() { awk -F'[:,]' -v k="\"$2\"" '$1 ~ k { gsub(/[ "]/, "", $2); print $2; exit }' "$work/runs/$1/out/selection.json"; }

# cells without a number, and what stands behind them
holds "the axis has its name" grep -q "budget (paper's proxy)" "$res/t.tsv"
holds "an uninformative probe" [ "$(cell "$res/t.tsv" VT RULER)" = uninformative ]
holds "says why" grep -q "uninformative probe: the teacher gets 0.0 % of its prompts right, below 20 %; nothing is trained for it" "$res/t.txt"
holds "and what it cost" [ "$(cell "$res/t.tsv" VT "selection: tokens")" = "$(value "$(run_of vt "")" tokens).0" ]
holds "its accuracy" [ "$(cell "$res/t-detail.tsv" VT "probe on the teacher, %")" = 0.0 ]
holds "no hybrid of it" [ "$(awk -F'\t' '$1 == "hyb" && $4 == "declined"' "$res/runs.tsv" | wc -l)" = 1 ]
holds "it is no hole" grep -q "1 of uninformative probes left out" "$work/first.txt"
holds "a variant of a probe stands in the table" [ "$(block "KV (RULER form)")" = "budget 2" ]
ties=$(value "$(run_of kv "")" ties_at_cut)
holds "the probe ties, with two prompts" [ "$ties" -gt 0 ]
holds "a tie at the cut" grep -q "cut inside a tie: $ties layer" "$res/t.txt"
holds "ties in the detail" [ "$(cell "$res/t-detail.tsv" "KV (RULER form)" "ties at the cut")" = "$ties.0" ]
holds "a user's own set is in the column it fills" [ "$(block Twin)" = "budget 3" ]
holds "equal sets" [ "$(cell "$res/t.tsv" Twin "d to uniform [95 %]")" = "same set" ]
holds "are not in the family" [ "$(cell "$res/t.tsv" Twin "p (Holm)")" = - ]
holds "two rows of one set: one comparison" grep -q "the same set as 'Random, seed 1': counted once in the correction" "$res/t.txt"
holds "the same p for both" [ "$(cell "$res/t.tsv" Again "p (Holm)")" = "$(cell "$res/t.tsv" "Random, seed 1" "p (Holm)")" ]
holds "a budget that is no column is shown, too" [ "$(awk -F'\t' '$1 == "budget 2"' "$res/t.tsv" | wc -l)" = 2 ]
holds "one seed: prompt-only" grep -q "prompt-only: one training seed" "$res/t.txt"
holds "no claim by one seed" grep -q "with one seed, prompt-only, no claim" "$work/first.txt"
holds "claims by more seeds have a half-width or a name" grep -Eq "against 'uniform', [0-9]+ rows of [0-9]+ different sets, Holm's correction over these:.*(not separated \(\+-|better|worse)" "$work/first.txt"
for w in "inference: MFLOP/token" "inference: cache KiB"; do holds "$w" [ "$(cell "$res/t.tsv" LM-PPL "$w")" != - ]; done

# the operator space
d3=$(awk -F'\t' '$2 ~ /^DASH-3/ { print $2; exit }' "$res/t.tsv")
mask=$(cell "$res/t-detail.tsv" "$d3" set)
full=${mask//[^F]/} window=${mask//[^W]/}
full=${#full} window=${#window}
holds "the search took both kinds of attention ($mask)" [ "$full" -gt 0 -a "$window" -gt 0 ]
for c in "Uniform+Window (+$window Window)" "Random+Window (+$window Window)"; do
    m=$(cell "$res/t-detail.tsv" "$c" set)
    f=${m//[^F]/} w=${m//[^W]/}
    holds "$c has the search's numbers of layers" [ "${#f} ${#w}" = "$full $window" ]
    holds "$c stands with it" [ "$(block "$c")" = "$(block "$d3")" ]
    holds "$c in the verdict" grep -qF "with its $full full and $window window layers against Uniform+Window (+$window Window) " "$work/first.txt"
done
holds "binary rows: other operator space" grep -q "other operator space: the two sets are made of other operators" "$res/t.txt"
holds "in the verdict" grep -q "of another operator space" "$work/first.txt"
holds "no p for it" [ "$(cell "$res/t.tsv" "$d3" "p (Holm)")" = - ]

# overlap: every cell again from the sets
holds "overlap" awk -F'\t' '
    function jac(a, b,  i, both, any, x, y) { for (i = 1; i <= length(a); i++) { x = substr(a, i, 1) != "l"; y = substr(b, i, 1) != "l"; both += x && y; any += x || y } return both / any }
    NR > 1 && $1 ~ /^budget 3/ { n++; set[n] = $4; for (i = 5; i <= NF; i++) v[n, i - 4] = $i }
    END { if (n < 9) exit 1; for (i = 1; i <= n; i++) for (k = 1; k <= n; k++) { x = v[i, k] - jac(set[i], set[k]); if (x > 1e-12 || x < -1e-12 || v[i, k] != v[k, i]) { print i, k, v[i, k], jac(set[i], set[k]); exit 1 } } }' "$res/t-overlap.tsv"
holds "chance" grep -q "two random sets of 3 of 12 layers: 0.16" "$res/t-overlap.txt"
for x in txt md html tex; do holds "overlap.$x" grep -q "Overlap of the sets" "$res/t-overlap.$x"; done

# cost: counted FLOPs of the records
flops=$(awk -F'[:,]' '/"flops_(forward|backward)"/ { s += $2 } END { printf "%.0f", s }' "$work/runs/$(run_of ga-s1 "")/out/selection.json")
holds "x of GA-S1 is its counted cost" awk -F'\t' -v want="$flops" '/^"GA-S1"/ { at = NR } at && NR == at + 2 { d = $1 - want; exit !(d < 1 && d > -1) } END { if (!at) exit 1 }' "$res/t-cost-3.tsv"
holds "what costs nothing is named" grep -q "cost figure at budget 3: without cost, not on its axis: Uniform; .*Random, seed 0" "$work/first.txt"
holds "no cost at all is said" grep -q "no cost figure at budget 2: no row with a score has a counted cost; without cost: Uniform" "$work/first.txt"

# stability: over selectors that look at the model (one vote each), over the runs of the search
holds "kept layers add up to the mean size of the sets" awk -F'\t' -v d3="$d3" '
    NR == FNR { if ($1 ~ /^budget 3/ && ($3 == d3 || $3 ~ /^(LM-PPL|GA-S1)$/)) { m = $4; gsub(/l/, "", m); want += length(m); n++ } next }
    /^# panel/ { on = /"budget 3: / } on && /^[-0-9]/ { sum += $4 - $3 }
    END { d = sum - want / n; exit !(n == 3 && d < 1e-9 && d > -1e-9) }' "$res/t-overlap.tsv" "$res/t-stability.tsv"
holds "a panel of the search's runs" grep -q '"budget 3, DASH-3: 2 runs"' "$res/t-stability.tsv"
if command -v gnuplot >/dev/null; then
    for f in t-budget-ruler t-cost-3 t-stability few-budget-ruler; do for x in svg pdf png; do holds "$f.$x" [ "$(stat -c %s "$res/$f.$x")" -gt 1000 ]; done; done
else
    echo "gnuplot is not installed: pictures are not checked"
fi

# hardly a row: what cannot be shown is said
for what in "no overlap table: no budget has two sets" "no stability figure:" "no cost figure at budget 2:"; do holds "few rows: $what" [ "$(grep -c "$what" "$work/first.txt")" -ge 1 ]; done
holds "few: one row" [ "$(awk -F'\t' '$1 == "budget 2"' "$res/few.tsv" | wc -l)" = 1 ]

# again: nothing computed, the same bytes
cp -r "$work/res" "$work/before"
run 0 report "$work/m.yaml" --runs "$work/runs" --out "$work/res"
holds "the report alone says the same" diff -r -x runs.tsv "$work/before/t/tiny" "$res"

# w/T
wt() { # TEXT of the evaluation, TEXT of the search
    top
    cat <<END
  - {id: dash-3, kind: search, ops: "full,window,linear", $2, $common, tokens: 2k, heldout: 2, lambda: 0.1}
  - {id: hyb, kind: distill, $common, layers: [dash-3, uniform], window: 32, tokens: 0, heldout: 2}
  - {id: ev, kind: ruler, model: hyb, data: evd$1}
END
}
wt "" "window: 32" >"$work/ok.yaml"
run 0 check "$work/ok.yaml"
wt "" "window: 16" >"$work/bad.yaml"
run 2 check "$work/bad.yaml"; says "stage 'ev': a Window layer cost w/T = 0.0625 where stage 'dash-3' chose the layers, and costs 32/256 = 0.125 here"
run 2 reproduce "$work/bad.yaml" --runs "$work/runs3" --out "$work/res3"; says "allow_cost_mismatch: true"
holds "before anything runs" [ ! -e "$work/runs3" ]
wt ", allow_cost_mismatch: true" "window: 16" >"$work/allowed.yaml"
run 0 check "$work/allowed.yaml"
wt "" "window: 32" | sed 's/lengths: \[256\]/lengths: [256, 512]/' >"$work/longer.yaml"
run 2 check "$work/longer.yaml"; says "costs 32/512"
wt "" "ops: \"full,linear\", window: 16" | sed 's/ops: "full,window,linear", //' >"$work/binary.yaml"
run 0 check "$work/binary.yaml"
{ top; echo "  - {id: c, kind: select, method: random, budget: 2, windows: 2, window_cost: 0.25, model: teacher}"; wt "" "window: 32" | tail -2 | sed 's/dash-3, uniform/c/'; } >"$work/select.yaml"
run 2 check "$work/select.yaml"; says "w/T = 0.25 where stage 'c' chose the layers"
finish
