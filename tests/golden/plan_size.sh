#!/usr/bin/env bash
# How much each manifest asks for at paper scale: runs of a kind and their tokens, as the paper has them (a search 12.288 M, Stage 1 100 M, Stage 3 600 M, or 300 M where a table says so). A manifest
# that takes runs of its base which its rows do not show fails here.
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
checks=0 failed=0
M=1000000 search=12288000
# size MANIFEST KIND=RUNS:TOKENS...: these runs are planned, and no others of a kind that trains or evaluates; tokens in all
size() {
    local name=$1 kind want got
    shift
    "$bin" reproduce "$name" --scale paper --dry-run --on h200 --runs "$work/none" >"$work/out" 2>"$work/err" || { failed=$((failed + 1)); cat "$work/err"; }
    for kind in align search distill ruler lmeval infer select landscape; do
        want=0:0
        for arg in "$@"; do [ "${arg%%=*}" = $kind ] && want=${arg#*=}; done
        got=$(awk -v k=$kind '$1 == "kind" && $2 == k { print $3 ":" $6; n = 1 } END { if (!n) print "0:0" }' "$work/out")
        case $want in *:*) ;; *) got=${got%%:*} ;; esac
        checks=$((checks + 1))
        [ "$got" = "$want" ] && continue
        failed=$((failed + 1))
        echo "$name at paper scale: $kind is $got, its rows need $want (runs:tokens)"
    done
}
stage1=align=1:$((100 * M))
size table1 $stage1 search=6:$((6 * search)) distill=71:$((71 * 600 * M)) ruler=72 select=76
size table1-core $stage1 search=6:$((6 * search)) distill=17:$((17 * 600 * M)) ruler=18 select=11
size table2 $stage1 search=3:$((3 * search)) distill=3:$((3 * 600 * M)) ruler=4 lmeval=4
size table3 $stage1 search=18:$((18 * search)) distill=18:$((18 * 300 * M)) ruler=18
size table4 $stage1 search=3:$((3 * search)) distill=3:$((3 * 600 * M))
size table5 $stage1 search=6:$((6 * search))
size table6 $stage1 search=6:$((6 * search))
size table7
size table8 $stage1 search=6:$((6 * search)) distill=12:$((12 * 300 * M)) ruler=13 select=6:0
size table9 $stage1 search=6:$((6 * search)) distill=9:$((9 * 600 * M)) ruler=10 select=3:0
size table10 $stage1 search=6:$((6 * search)) select=6:0
for name in table11 table12 table13 figure3; do
    size $name $stage1 search=3:$((3 * search)) distill=3:$((3 * 600 * M)) infer=4
done
# Tables 12 and 13: on 95.6 GiB the teacher's longest length is 32K (64.13 GiB published), the hybrids run at 64K (78.63 to 91.36 published).
"$bin" reproduce table12 --scale paper --dry-run --on h200 --runs "$work/none" >"$work/out" 2>&1
checks=$((checks + 1))
awk '$1 ~ /^infer-/ { for (i = 3; i <= NF; i++) if ($i == "GiB") m = $(i - 1); n++; bad += $1 == "infer-teacher" ? m < 50 || m > 65 : m < 75 || m > 95.6 } END { exit bad || n != 4 }' "$work/out" ||
    { failed=$((failed + 1)); grep '^infer' "$work/out"; }
size figure2 $stage1 search=12:$((12 * search)) distill=12:$((12 * 300 * M)) ruler=12
size figure4 $stage1 search=6:$((6 * search)) select=6:0
size figure5 $stage1 search=15:$((15 * search)) # figure2's sweep and appendix-g's variants, too
size figure6 $stage1 search=24:$((24 * search)) # figure2's sweep and table3's seeds and controls, too
size figure7 $stage1 search=2:$((2 * search))
size appendix-g $stage1 search=9:$((9 * search)) distill=9:$((9 * 300 * M)) ruler=9
size budget-ruler $stage1 search=6:$((6 * search)) distill=71:$((71 * 600 * M)) ruler=72 select=76
size flashmorph $stage1 search=9:$((9 * search)) distill=24:$((24 * 600 * M)) ruler=24 select=20
size lmeval $stage1 search=1:$search distill=2:$((2 * 600 * M)) lmeval=3 select=1:0
for file in experiments/*.yaml; do # each has its size here, or no scale `paper`
    name=$(basename "$file" .yaml)
    checks=$((checks + 1))
    case $name in
        all | table1[123] | figure3) continue ;;
    esac
    grep -q "^size $name\b" "$0" && continue
    "$bin" check "$file" --scale paper 2>&1 | grep -q "has no scale 'paper'" && continue
    failed=$((failed + 1))
    echo "tests/golden/plan_size.sh has no size for $file"
done
echo "$checks checks, $failed failed"
[ "$failed" = 0 ]
