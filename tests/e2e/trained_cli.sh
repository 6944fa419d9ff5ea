#!/usr/bin/env bash
# Selectors that train, passkey data and the forms of search from the command line, on the bundled teacher with a few hundred tokens: what is refused, what is written, and that a killed selection goes on.
source "$(dirname "$0")/../cli.sh"

mkdir "$work/text"
for i in 1 2 3 4 5 6 7 8; do cat README.md; done >"$work/text/book.txt"
passkey() { run "$1" data passkey --model $teacher --text "$work/text" --lengths 96,128 --samples 14 --keys 2 --words 2 --seed 4 --out "$work/$2" "${@:3}"; }
passkey 0 pk
run 0 data verify "$work/pk"
has "$work/pk/out/result.json" '"rows": 14'
passkey 0 pk2
same "$work/pk/out/ids.i32" "$work/pk2/out/ids.i32"
same "$work/pk/out/mask.u8" "$work/pk2/out/mask.u8"
run 2 data passkey --model $teacher --text "$work/text" --lengths 128 --samples 1 --out "$work/pk3"; says "fewer keys or words, or longer samples"

run 0 align --model $teacher --data "$work/pk" --tokens 500 --batch 1 --micro 1 --heldout 2 --out "$work/align"
with=(--model $teacher --linear "$work/align" --data "$work/pk")

# search: one lambda, a budget, a sweep
s=(search "${with[@]}" --tokens 400 --micro 1 --accumulate 2 --heldout 2 --window 16)
run 2 "${s[@]}" --out "$work/x"; says "needs 'lambda', 'budget' or 'sweep'"
run 2 "${s[@]}" --sweep 0.1,0.2 --lambda 0.1 --out "$work/x"; says "'sweep' stands alone"
run 2 "${s[@]}" --sweep 0.1,0.2 --relax bilevel --out "$work/x"; says "takes one"
run 0 "${s[@]}" --sweep 5,0 --out "$work/sweep"
lines "$work/sweep/out/tries.tsv" 3
run 0 "${s[@]}" --lambda 5 --out "$work/one"
same "$work/sweep/out/sweep-0/selection.json" "$work/one/out/selection.json"
same "$work/sweep/out/log-0.tsv" "$work/one/out/log-0.tsv"
has "$work/sweep/out/sweep-1/selection.json" '"method": "dash-3"'
run 0 "${s[@]}" --lambda 0.1 --relax bilevel --out "$work/bi"
has "$work/bi/out/selection.json" 'bilevel'
run 0 "${s[@]}" --budget 11 --seeds 0 --bisect 1 --out "$work/budget"
checks=$((checks + 1))
[ "$(wc -l <"$work/budget/out/tries.tsv")" -ge 2 ] || fail "tries.tsv of a budget search is empty"

# selectors: artifacts, and a refused one
sel() { run "$1" select "${with[@]}" --budget 3 --heldout 2 --train-batch 1 --micro 1 --out "$work/$2" "${@:3}"; }
sel 0 ga1 --method ga-s1 --rows 2
sel 0 gr1 --method gr-s1 --rows 2
sel 0 avg1 --method avg-s1 --first "$work/ga1" --second "$work/gr1"
sel 0 ga2 --method ga-s2 --tokens 150
lines "$work/ga2/out/trials.tsv" 13
sel 0 ga2b --method ga-s2 --tokens 150 --threads 1
same "$work/ga2/out/selection.json" "$work/ga2b/out/selection.json"
sel 0 ga26 --method ga-s2 --scores "$work/ga2" --budget 6
has "$work/ga26/out/selection.json" '"scores_reused": true'
sel 0 fm --method flashmorph --tokens 400
lines "$work/fm/out/gates.tsv" 5
sel 0 nas --method postnas --tokens 150 --beam 1
lines "$work/nas/out/beam.tsv" 5
sel 0 nas1 --method postnas --scores "$work/nas" --budget 1
sel 2 x3 --method ga-s2 --tokens 150 --stop-overlap 0.9; says "at least two rounds"
run 0 data pack --model $teacher --text "$work/text" --seq 96 --text-rows 6 --out "$work/plain"
run 2 select --model $teacher --linear "$work/align" --data "$work/plain" --rows 2 --method flashmorph --tokens 200 --budget 3 --heldout 2 --out "$work/x2"; says "has no answer tokens"

# killed in the middle, then again
"$bin" select "${with[@]}" --budget 3 --heldout 2 --train-batch 1 --micro 1 --method gr-s2 --tokens 300 --quiet --out "$work/gr2" >/dev/null 2>&1 &
pid=$!
for i in $(seq 200); do
    ls "$work/gr2/work/"gr-layer-2-*.done >/dev/null 2>&1 && break
    sleep 0.05
done
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
sel 0 gr2 --method gr-s2 --tokens 300
sel 0 gr2whole --method gr-s2 --tokens 300
same "$work/gr2/out/selection.json" "$work/gr2whole/out/selection.json"
same "$work/gr2/out/trials.tsv" "$work/gr2whole/out/trials.tsv"

finish
