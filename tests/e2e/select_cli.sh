#!/usr/bin/env bash
# Selection from the command line on the bundled teacher: bad input is refused before anything runs, selection.json says what it should, scores serve other budgets, an uninformative probe trains nothing.
source "$(dirname "$0")/../cli.sh"
sel() { # CODE NAME ARGS...: select into $work/NAME
    local code=$1 name=$2
    shift 2
    run "$code" select --model $teacher --out "$work/$name" "$@"
}

# budgets and missing inputs, before any work: no run directory is made
sel 2 x --method lm-ppl --data nowhere --budget 0; says "needs a budget of at least 1 layer"
sel 2 x --method kv --budget 12; says "budget 12 is outside 1..11"
sel 2 x --method kv --budget 13; says "budget 13 is outside 1..11"
sel 2 x --method smart --data nowhere --budget 3; says "needs 'linear' (a Stage-1 run)"
sel 2 x --method halo --linear nowhere --budget 3; says "needs 'data'"
checks=$((checks + 1))
[ ! -e "$work/x" ] || fail "a refused selection left a run directory"
sel 2 x1 --method published --of ga-s2 --budget 3; says "there is no published set for 'teacher' with 12 layers; there are sets for Llama-3.2-3B-Instruct (28 layers),"
sel 2 x2 --method published --of ga-s2 --published-model Qwen2.5-3B-Instruct --budget 5; says "no published set"
sel 2 x3 --method custom --layers 0,0; says "stands there twice"
sel 2 x4 --method custom --layers 0,12; says "'12' is not a layer (0..11)"
sel 2 x5 --method uniform --budget 3 --exclude 12; says "excluded layer 12 is outside 0..11"
sel 2 x6 --method uniform --budget 3 --exclude 1,1; says "excluded twice"
sel 2 x7 --method avg-s1 --budget 3; says "needs --first"

# scores of one run at another budget
sel 0 r3 --method random --budget 3 --seed 5
has "$work/r3/out/selection.json" '"ranking"'
has "$work/r3/out/selection.json" '"seed": 5'
sel 0 r5 --method random --budget 5 --scores "$work/r3"
has "$work/r5/out/selection.json" '"scores_reused": true'
sel 0 r5n --method random --budget 5 --seed 5
same "$work/r5/out/identity.txt" "$work/r5n/out/identity.txt" # scores cut again give the set of the method
sel 3 x8 --method random --budget 3 --scores "$work/r5n/nothing-here"; says "selection.json"
sel 2 x9 --method kv --budget 3 --scores "$work/r3"; says "the scores are of method 'random', not 'kv'"
sel 0 u3 --method uniform --budget 3
sel 2 x10 --method uniform --budget 5 --scores "$work/u3"; says "has no scores"
sel 2 x11 --method avg-s1 --budget 3 --first "$work/r3" --second "$work/r3"; says "method 'avg-s1' averages 'ga-s1' there"

# a raw probe that this teacher fails: recorded, and nothing is trained for it
sel 0 vt --method vt --budget 3 --prompts 2 --max-new 8
has "$work/vt/out/selection.json" '"uninformative": true'
has "$work/vt/out/selection.json" '"base_accuracy": 0.0'
has "$work/vt/out/identity.txt" 'filled false'
lines "$work/vt/out/prompts.jsonl" 2

# Stage 1 of another teacher, or with another expansion
mkdir -p "$work/text"
head -c 60000 ruler/data/wonderwords-2.2.0/nounlist.txt >"$work/text/words.txt"
run 0 data pack --model $teacher --text "$work/text" --seq 128 --out "$work/pack"
run 0 align --model $teacher --data "$work/pack" --tokens 1k --batch 1 --micro 1 --heldout 1 --out "$work/align"
run 0 align --model $teacher --data "$work/pack" --tokens 20 --batch 1 --micro 1 --heldout 1 --out "$work/little"; says "20 tokens are less than half of one update (batch 1,"
sel 2 many --method lm-ppl --data "$work/pack" --rows 1000 --budget 3; says "scores 1000 rows from row 0 on (--rows, --row-lo), the shard has"
sel 0 smart --method smart --linear "$work/align" --data "$work/pack" --rows 1 --budget 3
has "$work/smart/out/selection.json" '"flops_backward": 0.0'
sel 0 smart6 --method smart --linear "$work/align" --data "$work/pack" --rows 1 --budget 6 --scores "$work/smart"
for m in ga-s1 gr-s1; do sel 0 $m --method $m --linear "$work/align" --data "$work/pack" --rows 1 --budget 3; done
sel 0 avg --method avg-s1 --first "$work/ga-s1" --second "$work/gr-s1" --budget 3
has "$work/avg/out/selection.json" '"method": "avg-s1"'
sel 2 x14 --method avg-s1 --first "$work/gr-s1" --second "$work/ga-s1" --budget 3; says "is a run of method 'gr-s1'"
sel 0 win --method smart --linear "$work/align" --scores "$work/smart" --budget 2 --windows 3
has "$work/win/out/selection.json" '"variant": "+3 Window"'
sel 3 x12 --method smart --linear "$work/align" --data "$work/pack" --rows 1 --budget 3 --kv-expand row; says "KV expansion 'head', 'row' is asked for"
cp -r "$work/align/out" "$work/other"
sed -i 's/"sha256": "[0-9a-f]*"/"sha256": "0000000000000000000000000000000000000000000000000000000000000000"/' "$work/other/config.json"
has "$work/other/config.json" '"sha256": "0000'
sel 3 x13 --method smart --linear "$work/other" --data "$work/pack" --rows 1 --budget 3; says "this Stage 1 was made from another teacher"
run 1 distill --model $teacher --linear "$work/align" --data "$work/pack" --layers "$work/vt" --tokens 0 --heldout 1 --out "$work/d"; says "uninformative probe"

# in a manifest that is no failure: the rest is made
cat >"$work/m.yaml" <<EOF
dash: 1
name: probes
inputs:
  teacher: {path: $teacher}
stages:
  - {id: pack, kind: pack, model: teacher, text: [$work/text], seq: 128}
  - {id: align, kind: align, model: teacher, data: pack, tokens: 1k, batch: 1, micro: 1, heldout: 1}
  - {id: vt-scores, kind: select, method: vt, model: teacher, budget: 3, prompts: 2, max_new: 8}
  - {id: vt, kind: select, method: vt, model: teacher, scores: vt-scores, matrix: {budget: [2, 6]}}
  - {id: uniform, kind: select, method: uniform, model: teacher, budget: 3}
  - {id: hybrid, kind: distill, model: teacher, linear: align, data: pack, layers: [vt, uniform], tokens: 0, heldout: 1}
EOF
run 0 reproduce "$work/m.yaml" --runs "$work/runs" --out "$work/results"
has "$work/out.txt" "0 failed, 2 declined"
checks=$((checks + 1))
[ "$(ls -d "$work"/runs/distill-*/OUTPUTS | wc -l)" = 1 ] || fail "not exactly one hybrid was made"

# what a plan knows, in a manifest: before its first stage
mkdir "$work/other-teacher"
cp $teacher/* "$work/other-teacher/"
echo another >"$work/other-teacher/extra.txt"
refused() { # TEXT STAGE
    cat >"$work/plan.yaml" <<EOF
dash: 1
name: plan
inputs:
  teacher: {path: $teacher}
  other: {path: $work/other-teacher}
stages:
  - {id: pack, kind: pack, model: teacher, text: [$work/text], seq: 128}
  - {id: align, kind: align, model: teacher, data: pack, tokens: 1k, batch: 1, micro: 1, heldout: 1}
  - {id: s, $2}
EOF
    run 2 check "$work/plan.yaml"; says "$1"
}
refused "stage 's': method 'uniform' needs a budget of at least 1 layer" "kind: select, method: uniform, model: teacher"
refused "stage 's': select: budget 12 is outside 1..11" "kind: select, method: uniform, model: teacher, budget: 12"
refused "budget 11 is outside 1..10 (12 layers, some of them excluded" "kind: select, method: uniform, model: teacher, budget: 11, exclude: [0, 1]"
refused "10 Window layers beside 3 Full ones do not fit 12 layers" "kind: select, method: random, model: teacher, budget: 3, windows: 10"
refused "needs 'linear' (a Stage-1 run)" "kind: select, method: ga-s2, model: teacher, data: pack, budget: 3"
refused "needs 'data' with rows to score" "kind: select, method: lm-ppl, model: teacher, budget: 3"
refused "needs --first (the GA run)" "kind: select, method: avg-s2, model: teacher, budget: 3"
refused "'like' takes the place of 'budget' and 'windows'" "kind: select, method: uniform, model: teacher, budget: 3, like: align"
for k in "select, method: smart, budget: 3" "search, lambda: 0.1, tokens: 1k" "distill, layers: align, tokens: 0"; do
    refused "its Stage 1 ('align') is made from another teacher ('$teacher') than its model ('$work/other-teacher')" "kind: $k, model: other, linear: align, data: pack"
done
refused "made with KV expansion 'head', 'row' is asked for" "kind: select, method: smart, model: teacher, linear: align, data: pack, kv_expand: row, budget: 3"
refused "there is no published set for 'teacher' with 12 layers" "kind: select, method: published, of: ga-s2, model: teacher, budget: 3"
refused "there is no published set for 'Qwen3-8B' with 12 layers" "kind: select, method: published, of: halo, published_model: Qwen3-8B, model: teacher, budget: 3"
refused "layer 0 stands there twice" "kind: select, method: custom, layers: \"0,5,0\", model: teacher"
refused "'12' is not a layer (0..11)" "kind: select, method: custom, layers: \"full:0 window:12\", model: teacher"
refused "excluded layer 12 is outside 0..11" "kind: select, method: random, model: teacher, budget: 3, exclude: [12]"
refused "layer 1 is excluded twice" "kind: select, method: random, model: teacher, budget: 3, exclude: [1, 1]"
run 2 reproduce "$work/plan.yaml" --runs "$work/plan-runs" --out "$work/plan-results"; says "layer 1 is excluded twice"
run 3 distill --model $teacher --linear "$work/align" --data "$work/pack" --layers "$work/align" --tokens 0 --heldout 1 --out "$work/no-layers"; says "chooses no layers"
run 3 align --model $teacher --data "$work" --tokens 1k --out "$work/no-shard"; says "is no token shard"
head -c 40000 experiments/tiny/README.md README.md >"$work/own.txt" # text and folders by flag count by content
run 0 data pack --model $teacher --text "$work/own.txt" --seq 64 --text-rows 4 --out "$work/own-pack"
run 0 data pack --model $teacher --text "$work/own.txt" --seq 64 --text-rows 4 --out "$work/own-pack"; has "$work/out.txt" "up to date"
echo "another end" >>"$work/own.txt"
run 2 data pack --model $teacher --text "$work/own.txt" --seq 64 --text-rows 4 --out "$work/own-pack"; says "made with other parameters"
run 0 distill --model $teacher --linear "$work/align" --data "$work/pack" --layers "full:0 window:5" --tokens 0 --heldout 1 --print-manifest
cp "$work/out.txt" "$work/printed.yaml"; has "$work/printed.yaml" 'layers: "full:0 window:5"'
run 0 reproduce "$work/printed.yaml" --runs "$work/printed" --out "$work/printed-results"
has "$(echo "$work"/printed/distill-*/out/result.json)" '"spec": "full:0 window:5"'
run 2 distill --model $teacher --linear "$work/align" --data "$work/pack" --layers 0,0 --tokens 0 --heldout 1 --out "$work/plan-runs"; says "stands there twice"
run 2 distill --model $teacher --linear "$work/align" --data "$work/pack" --layers 0,12 --tokens 0 --heldout 1 --out "$work/plan-runs"; says "not a layer"
run 2 distill --model $teacher --linear "$work/align" --data "$work/pack" --layers runs/nowhere --tokens 0 --heldout 1 --out "$work/plan-runs"; says "'runs/nowhere': neither a run that is there nor a list of layers"
holds "nothing was begun" [ ! -e "$work/plan-runs" ]

finish
