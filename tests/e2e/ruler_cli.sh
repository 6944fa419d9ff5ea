#!/usr/bin/env bash
# RULER from the command line: what a user gives wrongly is refused before anything is written, own tasks go through generator, runner, scorer and a manifest,
# threads and shared prompts change no byte.
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
teacher=experiments/tiny/teacher
checks=0 failed=0
fail() {
    failed=$((failed + 1))
    printf 'failed: %s\n' "$*"
}
run() { # CODE ARGS...
    local want=$1 got
    shift
    args=$*
    "$bin" "$@" >"$work/out.txt" 2>"$work/err.txt" </dev/null
    got=$?
    checks=$((checks + 1))
    [ "$got" = "$want" ] || fail "dashlab $args: exit $got, expected $want: $(tail -3 "$work/err.txt")"
}
says() {
    checks=$((checks + 1))
    grep -qF -- "$1" "$work/err.txt" || fail "dashlab $args: stderr lacks '$1': $(tail -3 "$work/err.txt")"
}
prints() {
    checks=$((checks + 1))
    grep -qF -- "$1" "$work/out.txt" || fail "dashlab $args: stdout lacks '$1': $(tail -3 "$work/out.txt")"
}
same() { # FOLDER FOLDER: every validation.jsonl and predictions.jsonl
    checks=$((checks + 1))
    (cd "$1" && find . -name '*.jsonl' | sort | xargs sha256sum) >"$work/sums"
    [ -s "$work/sums" ] && (cd "$2" && sha256sum --quiet -c "$work/sums") || fail "'$1' and '$2' differ"
}
gen() { # CODE NAME ARGS...: into $work/NAME
    local code=$1 name=$2
    shift 2
    run "$code" ruler gen --length 512 --samples 2 --out "$work/$name" "$@"
}

# lengths
run 2 ruler gen --tokenizer bytes4 --length 40 --samples 2 --out "$work/short"; says "dashlab: error: no task could be made:"; says "task 'vt' cannot fit in length 40"
checks=$((checks + 1))
[ ! -e "$work/short" ] || fail "a call that made nothing left a folder"
run 2 ruler gen --tokenizer bytes4 --length 40 --samples 2 --tasks vt --out "$work/short"; says "dashlab: error: task 'vt' cannot fit"
run 1 ruler gen --tokenizer bytes4 --length 300 --samples 2 --tasks niah_single_1,cwe --out "$work/some"; says "dashlab: error: 1 of 2 tasks could not be made"

# tokenizers
gen 3 x --tokenizer "$work/nowhere"; says "nowhere"
printf '{"model": 3}' >"$work/no.json"
gen 3 x --tokenizer "$work/no.json"; says "no.json"
mkdir "$work/folder"
gen 3 x --tokenizer "$work/folder"; says "tokenizer.json"
printf '{"a": 0}' >"$work/folder/vocab.json"; : >"$work/folder/merges.txt"
gen 2 x --tokenizer "$work/folder"; says "--pretok"
# haystacks, questions, words, data
gen 3 x --tokenizer bytes4 --essays "$work/nowhere.txt"; says "nowhere.txt"
printf 'no end of a sentence at all' >"$work/e.txt"
gen 3 x --tokenizer bytes4 --essays "$work/e.txt"; says "without the end of a sentence"
printf '<!DOCTYPE html>' >"$work/q.json"
gen 3 x --tokenizer bytes4 --tasks qa_2 --hotpotqa "$work/q.json"; says "an HTML page, not JSON"
gen 3 x --tokenizer bytes4 --tasks qa_1; says "not bundled"
gen 3 x --tokenizer bytes4 --data "$work/folder"; says "wonderwords"
gen 3 x --tokenizer bytes4 --wonderwords 9.9; says "2.2.0 and 3.0.0"
# task files
printf 'mine: {task: niah, args: {num_needle_kk: 3}}\nmine2: {task: vd}\n' >"$work/bad.yaml"
gen 2 x --tokenizer bytes4 --task-file "$work/bad.yaml"
says "bad.yaml:1:27: error: unknown argument 'num_needle_kk' of niah; did you mean 'num_needle_k'"
says "bad.yaml:2:15: error: 'task': 'vd' is none of niah"
gen 3 x --tokenizer bytes4 --task-file "$work/nowhere.yaml"; says "nowhere.yaml"
checks=$((checks + 1))
[ ! -e "$work/x" ] || fail "a refused call left a folder"

# own tasks, generated on one and on two threads, run with batches that share and that cannot
cat >"$work/own.yaml" <<'END'
pairs:
  task: niah
  args: {type_haystack: noise, num_needle_k: 3, num_needle_q: 2}
two_chains:
  task: variable_tracking
  args: {num_chains: 2, num_hops: 2}
niah_single_1:
  task: niah
  args: {type_haystack: noise, type_needle_k: words, type_needle_v: numbers, num_needle_k: 1, num_needle_v: 1, num_needle_q: 1}
END
own="--tokenizer $teacher --task-file $work/own.yaml --length 1024 --samples 3"
run 0 ruler gen $own --out "$work/one" --threads 1
run 0 ruler gen $own --out "$work/two" --threads 2
same "$work/one" "$work/two"
checks=$((checks + 1))
grep -q '"share": 0\.9' "$work/one/niah_single_1/provenance.json" || fail "provenance.json does not say how full the prompts are"
run 0 ruler run --model $teacher --data "$work/one" --out "$work/p1" --batch 1 --quiet
run 0 ruler run --model $teacher --data "$work/one" --out "$work/p3" --batch 3 --threads 1 --quiet
prints "two_chains"; prints "95 % Wilson interval"; prints "prompt tokens"
cp -r experiments/tiny/teacher "$work/few" && chmod -R u+w "$work/few"
sed -i 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 256/' "$work/few/config.json"
run 0 ruler run --model "$work/few" --data "$work/one" --tasks two_chains --out "$work/beyond"; prints "go beyond the model's 256 positions"; says "it was not trained for such lengths"
same "$work/p1" "$work/p3"
run 0 ruler score "$work/p3" --json
prints '"ci95"'
run 0 ruler compare "$work/p1" "$work/p3"
prints "pairs"

# layouts; drawn, for training: compact alone; the same on one and on two threads; not the samples of shared, the default
for f in nvidia lm-eval; do
    gen 2 x --tokenizer bytes4 --flavour $f --layout drawn; says "'drawn' belongs to 'compact'"
done
gen 2 x --tokenizer bytes4 --layout middle; says "drawn"
prose="--tokenizer $teacher --tasks niah_single_2,niah_multivalue,niah_single_1,cwe,fwe --length 1024 --samples 4 --essays experiments/tiny/prose"
run 0 ruler gen $prose --layout drawn --out "$work/drawn1" --threads 1
run 0 ruler gen $prose --layout drawn --out "$work/drawn2" --threads 2
same "$work/drawn1" "$work/drawn2"
run 0 ruler gen $prose --layout shared --out "$work/shared1"
run 0 ruler gen $prose --out "$work/shared2"
same "$work/shared1" "$work/shared2"
for t in niah_single_2 niah_multivalue cwe fwe; do
    checks=$((checks + 2))
    cmp -s "$work/shared1/$t/validation.jsonl" "$work/drawn1/$t/validation.jsonl" && fail "--layout drawn changes nothing in $t"
    grep -q '"layout": "drawn"' "$work/drawn1/$t/provenance.json" || fail "provenance.json of $t does not say the layout"
done
checks=$((checks + 2))
cmp -s "$work/shared1/niah_single_1/validation.jsonl" "$work/drawn1/niah_single_1/validation.jsonl" || fail "--layout drawn changes niah_single_1"
grep -rq '"layout"' "$work/shared1" "$work/drawn1/niah_single_1" && fail "provenance.json says a layout where there is one alone"

# from a manifest; the same samples; a default that came later makes no new run, a flavour without it is refused
cat >"$work/m.yaml" <<END
dash: 1
name: own-tasks
title: own tasks
inputs: {teacher: $PWD/$teacher, tasks: $work/own.yaml}
stages:
  - {id: data, kind: ruler-gen, model: teacher, task_file: tasks, lengths: [1024], samples: 3}
END
run 0 reproduce "$work/m.yaml" --runs "$work/runs" --out "$work/results" --quiet
checks=$((checks + 1))
for d in "$work"/runs/ruler-gen-*/out; do same "$work/one" "$d"; done
sed -i 's/samples: 3}/samples: 3, layout: shared}/' "$work/m.yaml"
run 0 reproduce "$work/m.yaml" --runs "$work/runs" --out "$work/results" --quiet
sed -i 's/layout: shared/layout: drawn/' "$work/m.yaml"
run 0 reproduce "$work/m.yaml" --runs "$work/runs" --out "$work/results" --quiet
checks=$((checks + 1))
[ "$(echo "$work"/runs/ruler-gen-* | wc -w)" = 2 ] || fail "expected two runs of ruler-gen: $(ls "$work/runs")"
sed -i 's/layout: drawn/layout: drawn, flavour: nvidia/' "$work/m.yaml"
run 2 reproduce "$work/m.yaml" --runs "$work/runs" --out "$work/results" --quiet; says "belongs to 'compact'"
echo "$checks checks, $failed failed"
[ "$failed" = 0 ]
