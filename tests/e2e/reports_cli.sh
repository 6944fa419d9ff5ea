#!/usr/bin/env bash
# Manifests whose runs take no time (selections alone): failed cells, reasons in --dry-run, one run by its key, --explain, regress by file and folder, gnuplot missing or too old, two rows of one name.
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
    echo "$what: $(head -c 600 "$work/said") $(tail -3 "$work/err")"
}
run() { # CODE ARGS...
    local want=$1
    shift
    "$bin" "$@" --runs "$work/runs" --out "$work/res" >"$work/out" 2>"$work/err"
    local got=$?
    check "exit code of $*: $got" [ "$got" = "$want" ]
}
manifest() { # NAME LAYERS BUDGET [EXTRA STAGE]
    cat >"$work/$1.yaml" <<END
dash: 1
name: $1
title: Sets
inputs:
  teacher: {path: experiments/tiny/teacher}
stages:
  - {id: uni, kind: select, label: Uniform, method: uniform, model: teacher, matrix: {budget: [2, $3]}}
  - {id: own, kind: select, label: Own, method: custom, layers: "$2", model: teacher}
$4
reports:
  - {kind: operators, name: $1, show: counts, from: [uni, own]}
  - {kind: operators, name: $1-grid, show: grid, from: [uni, own]}
END
}

# --- a run that fails: the rest is made, its cell and the verdict say so, exit 1 ---
manifest bad "full:0,5" 3 ""
sed -i 's/method: custom, layers: "full:0,5", model: teacher/method: uniform, budget: 2, scores: good, model: teacher/; s/^stages:/stages:\n  - {id: good, kind: select, method: uniform, model: teacher, budget: 5}/' "$work/bad.yaml"
run 1 reproduce "$work/bad.yaml"
check "the verdict" grep -q 'RESULT (tiny scale.*1 of 4 stages FAILED' "$work/out"
check "the cell" awk -F'\t' '$2 == "Own" && /failed/ { ok = 1 } END { exit !ok }' "$work/res/bad/tiny/bad.tsv"
check "the others are made" [ "$(awk -F'\t' '$2 == "Uniform" && $3 ~ /^[0-9]/ { n++ } END { print n }' "$work/res/bad/tiny/bad.tsv")" = 2 ]
check "the page says what failed" grep -q "failed" "$work/res/bad/tiny/runs.tsv"

# --- why a run is needed; one run by its key; what depends on a changed number is made again, nothing else ---
manifest good "full:0,5" 3 ""
run 0 reproduce "$work/good.yaml"
run 0 reproduce "$work/good.yaml"
check "nothing is made twice" grep -q ' 3 up to date, 0 ran' "$work/out"
manifest good "full:0,5" 4 ""
run 0 reproduce "$work/good.yaml" --dry-run --gflops 1
check "why" grep -q 'budget=4 .*to run .*budget [235] -> 4 (against select-' "$work/out"
check "no reason for what is there" [ "$(grep -c ' done ' "$work/out")" = 2 ]
run 0 report "$work/good.yaml" --explain "Uniform:B=4"
only=$(sed -n 's/.*--only \(uni:[0-9a-f]*\).*/\1/p' "$work/out" | tail -1)
check "explain gives keys and commands" grep -q "command dashlab reproduce $work/good.yaml --scale tiny --only uni:" "$work/out"
run 0 reproduce "$work/good.yaml" --only "$only" --no-reports
check "one run by its key" grep -q '^1 stages: 0 up to date, 1 ran' "$work/out"
run 0 report "$work/good.yaml" --explain "Own"
check "explain names files" grep -q 'files out/:.*selection.json' "$work/out"
run 2 report "$work/good.yaml" --explain "Nobody"
check "no such cell" grep -q "no such cell" "$work/err"

# --- a collection: each run once, one that fails does not stop the others ---
printf 'dash: 1\nname: both\nmanifests: [bad.yaml, good.yaml]\n' >"$work/both.yaml"
run 1 reproduce "$work/both.yaml"
check "which is not complete" grep -q '^2 manifests, 1 not complete: bad' "$work/out"
run 2 regress "$work/both.yaml" --against "$work/res/good/tiny/good.tsv"
check "regress takes one" grep -q "is a collection of 2 manifests" "$work/err"
run 0 reproduce "$work/both.yaml" --dry-run --format dot
check "one graph" grep -q 'digraph "both"' "$work/out"

# --- eight processes at one run: one makes it, the others wait or find it complete ---
for i in 1 2 3 4 5 6 7 8; do "$bin" reproduce "$work/good.yaml" --only own --wait --no-reports --runs "$work/one" >/dev/null 2>"$work/said.$i" || touch "$work/said.bad" & done
wait
check "all end well" [ ! -e "$work/said.bad" ]
check "one makes it" [ "$(cat "$work"/said.[1-8] | grep -c '^.1/1. own')" = 1 ]

# --- a Makefile of the collection's runs: side by side, from a path with spaces; what needs a failed run is left, the reports are made all the same, the same command goes on ---
if command -v make >/dev/null; then
    here="$work/it's a folder" && mkdir "$here"
    cp "$work"/both.yaml "$work"/good.yaml "$work"/bad.yaml "$here/"
    sed -i 's/^reports:/  - {id: after, kind: select, method: uniform, budget: 2, scores: own, model: teacher}\nreports:/' "$here/bad.yaml"
    makes() { PATH=$(dirname "$bin"):$PATH make --no-print-directory "$@" -f "$here/my jobs/Makefile" >"$work/out" 2>"$work/err"; }
    "$bin" reproduce "$here/both.yaml" --runs "$here/my runs" --out "$here/res" --export make "$here/my jobs" >"$work/out" 2>"$work/err"
    check "each run once" [ "$(grep -c -- --wait "$here/my jobs/Makefile")" = 7 ]
    makes -k -j 2
    check "a failed run is make's failure: $?" [ $? != 0 ]
    check "what needs it is left" grep -q "Target 'runs' not remade because of errors" "$work/err"
    check "and not begun" [ "$(grep -c -- "--only 'after:" "$work/out")" = 0 ]
    check "the others have their stamps" [ "$(ls "$here/my jobs" | grep -c -- '^[a-z]*-[0-9a-f]\{12\}$')" = 5 ]
    check "the report says what failed" grep -q 'RESULT (tiny scale.*2 of 5 stages FAILED' "$work/out"
    check "all tables" [ -s "$here/res/good/tiny/good.tsv" -a -s "$here/res/bad/tiny/bad.tsv" ]
    makes -j 2
    check "complete runs are not begun again" [ "$(grep -c -- --wait "$work/out")" = 1 ]
    "$bin" reproduce "$here/good.yaml" --runs "$here/my runs" --out "$here/res" --threads 2 --export make "$here/my jobs" >"$work/out" 2>"$work/err"
    check "complete runs are no targets" grep -q "^0 runs and their report" "$work/out"
    rm -r "$here/my runs" "$here/res"
    "$bin" reproduce "$here/good.yaml" --runs "$here/my runs" --out "$here/res" --threads 2 --export make "$here/my jobs" >"$work/out" 2>"$work/err"
    check "threads" [ "$(grep -c -- "--threads 2" "$here/my jobs/Makefile")" = 4 ]
    check "all is made" makes -j 2
    check "the table" [ -s "$here/res/good/tiny/good.tsv" ]
    check "runs" [ "$(ls -d "$here/my runs"/*/OUTPUTS | wc -l)" = 3 ]
    mkdir "$here/theirs" && echo 'all:' >"$here/theirs/Makefile"
    "$bin" reproduce "$here/good.yaml" --export make "$here/theirs" >"$work/out" 2>"$work/err"
    rc=$?
    check "exit 2 for another Makefile: $rc" [ $rc = 2 ]
    check "it is named" grep -q "theirs/Makefile' is another Makefile" "$work/err"
    check "and left" [ "$(cat "$here/theirs/Makefile")" = all: ]
fi

# --- regress: the first table, or every table of a folder ---
run 0 regress "$work/good.yaml" --scale tiny --against "$work/res/good/tiny/good.tsv"
check "cells compared" grep -Eq 'regress: [1-9][0-9]* cells of 1 table ' "$work/out"
mkdir "$work/stored" && cp "$work/res/good/tiny/good.tsv" "$work/res/good/tiny/good-grid.tsv" "$work/stored/"
run 0 regress "$work/good.yaml" --scale tiny --against "$work/stored"
check "two tables" grep -q 'cells of 2 tables' "$work/out"
sed -i 's/\t2\.0/\t2.5/' "$work/stored/good.tsv"
run 1 regress "$work/good.yaml" --scale tiny --against "$work/stored"
check "what moved is printed" grep -q 'now 2.0, stored 2.5' "$work/out"
block=$(grep -P '\t2\.5' "$work/stored/good.tsv" | head -n 1 | cut -f 1)
check "with its block, '$block'" grep -q "^$block: .*now 2.0, stored 2.5" "$work/out"

# --- bad reports: two rows of one name, a column that is not published, an unknown stage ---
manifest twice "full:0,5" 3 '  - {id: also, kind: select, label: Own, method: custom, layers: "full:1,5", model: teacher}'
sed -i 's/from: \[uni, own\]/from: [uni, own, also]/' "$work/twice.yaml"
run 2 reproduce "$work/twice.yaml"
check "two rows of one name" grep -q "would have two rows 'Own', of stages 'own' and 'also'" "$work/err"
manifest cols "full:0,5" 3 ""
sed -i 's/show: counts/show: counts, published: {2: 7}/' "$work/cols.yaml"
run 2 reproduce "$work/cols.yaml"
check "a column that does not exist" grep -q "names column '7', which 'dash_table10' does not have" "$work/err"

# --- checks of cells that no table will have, wrong keys at another scale than the default, a checkpoint that is not there: said before anything runs ---
manifest cells "full:0,5" 3 ""
printf 'checks:\n  - {table: cells, row: "Own", column: ful, min: 1}\n  - {table: cells, row: "Ownn", column: full, min: 1}\n' >>"$work/cells.yaml"
head=$(head -1 "$work/res/good/tiny/good.tsv")
for how in check reproduce; do
    run 2 $how "$work/cells.yaml"
    check "$how: a column: $head" grep -q "table 'cells' has no column 'ful'" "$work/err"
    check "$how: a row" grep -q "table 'cells' will have no row 'Ownn'; did you mean '.*Own'?" "$work/err"
done
check "nothing was run" [ ! -e "$work/res/cells" ]
sed -i 's/table: cells, row: "Own", column: ful/table: cell, row: "Own", column: full/' "$work/cells.yaml"
run 2 check "$work/cells.yaml"
check "a table" grep -q "no report of this manifest makes a table 'cell'; there are: cells cells-grid" "$work/err"
manifest scaled "full:0,5" 3 ""
sed -i 's/^stages:/scales:\n  tiny: {}\n  ci: {uni.budgett: 3}\nstages:/' "$work/scaled.yaml"
run 2 check "$work/scaled.yaml"
check "a key of scale ci" grep -q "unknown key 'budgett'" "$work/err"
run 0 check "$work/scaled.yaml" --scale tiny
sed -i 's/  ci: .*/  small: {inputs.teacher: '"${work//\//\\/}"'\/none, inputs.teacher.get: ask for it}/' "$work/scaled.yaml"
run 0 check "$work/scaled.yaml"
check "said, no error" grep -q "none  *MISSING; to get it: ask for it" "$work/out"
run 3 check "$work/scaled.yaml" --scale small
printf 'dash: 1\nname: all\nmanifests: [scaled.yaml, scaled2.yaml]\n' >"$work/alls.yaml" && sed 's/^name: scaled/name: scaled2/' "$work/scaled.yaml" >"$work/scaled2.yaml"
for file in scaled alls; do
    run 3 reproduce "$work/$file.yaml" --scale small
    check "one error: $(cat "$work/err")" [ "$(wc -l <"$work/err")" = 1 ]
    check "the path and how to get it" grep -q "'$work/none' (input 'teacher') does not exist .*to get it: ask for it" "$work/err"
    check "nothing written" [ ! -e "$work/res/scaled" ]
done

# --- gnuplot missing, or too old: data and script, no picture, said plainly; exit 0 ---
mkdir "$work/bin"
for p in bash sed awk grep; do ln -s "$(command -v $p)" "$work/bin/$p"; done
rm -rf "$work/res"
PATH=$work/bin run 0 report "$work/good.yaml"
check "missing" grep -q "gnuplot is not installed" "$work/err"
check "the data are there" [ -s "$work/res/good/tiny/good-grid.tsv" ]
check "the script is there" [ -s "$work/res/good/tiny/good-grid.gp" ]
check "no picture" [ ! -e "$work/res/good/tiny/good-grid.svg" ]
printf '#!/bin/sh\necho "gnuplot 4.6 patchlevel 6"\n' >"$work/bin/gnuplot" && chmod +x "$work/bin/gnuplot"
PATH=$work/bin run 0 report "$work/good.yaml"
check "too old" grep -q "gnuplot says it is 'gnuplot 4.6 patchlevel 6', version 5.0 or later is needed" "$work/err"

# --- a run made by a newer version: said, not taken, not overwritten ---
dir=$(ls -d "$work"/runs/select-* | head -1)
sed -i 's/^schema 1$/schema 2/' "$dir/key.txt"
"$bin" verify "$dir" >"$work/out" 2>"$work/err"
check "another version" grep -q "made by another version of this program ('schema 2'" "$work/err"

echo "$checks checks, $failed failed"
[ "$failed" = 0 ]
