#!/usr/bin/env bash
# `dashlab lmeval` with the tiny teacher on the bundled documents: files, keys, exit codes; the same bytes for any batch and thread count and after a kill; bad input.
set -u
bin=${DASHLAB_BIN:-build/dashlab}
[ -x "$bin" ] || { echo "SKIPPED: no dashlab executable at '$bin'"; exit 77; }
unset DASHLAB_DATA
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
m=experiments/tiny/teacher
fail=0
bad() { echo "FAIL: $*"; fail=1; }
code() {
    local want=$1 got
    shift
    "$@" >"$tmp/out" 2>"$tmp/err"
    got=$?
    [ $got -eq "$want" ] || bad "exit $got, wanted $want: $* ($(head -c 300 "$tmp/err"))"
}
says() { grep -qF -- "$1" "$tmp/err" || bad "stderr lacks '$1': $(head -c 300 "$tmp/err")"; }
prints() { grep -qF -- "$1" "$tmp/out" || bad "stdout lacks '$1': $(head -c 300 "$tmp/out")"; }
run() { "$bin" lmeval run --model $m --tasks mmlu_stem,arc_easy,winogrande --limit 4 --quiet "$@"; }

code 0 "$bin" lmeval list
prints "mmlu_world_religions"; prints "bundled"
code 0 "$bin" lmeval requests --tasks winogrande --samples 1-1 --tokenizer $m
[ "$(wc -l <"$tmp/out")" = 2 ] || bad "two requests expected"
prints '"context": "Sarah was a much better surgeon than Maria so Sarah", "continuation": " always got the harder cases.", "context_ids": ['
code 0 "$bin" lmeval requests --tasks arc_challenge --limit 1 --chat-template smollm2

prints '<|im_start|>assistant\n", "continuation": "Planetary density will decrease."'

code 0 run --batch 1 --threads 1 --out "$tmp/a"

prints "tokens computed:"; prints "BUNDLED SUBSET"
for f in results.json loglikelihoods.jsonl samples_arc_easy.jsonl samples_mmlu_anatomy.jsonl samples_winogrande.jsonl; do
    [ -s "$tmp/a/$f" ] || bad "$f is missing"
done
[ ! -e "$tmp/a/LOCK" ] || bad "the lock was left"
for key in '"mmlu_stem"' '"group_subtasks"' '"n-shot"' '"task_hashes"' '"sample_count"' '"acc_norm_stderr,none"' '"dashlab"'; do
    grep -qF "$key" "$tmp/a/results.json" || bad "results.json lacks $key"
done
# keys and their order as the harness writes them
example=${DASHLAB_TEST_DATA:-../shared/data}/oracle/lmeval/example_output
if command -v python3 >/dev/null && [ -d "$example" ]; then
    code 0 "$bin" lmeval run --model $m --tasks arc_easy,piqa,winogrande,mmlu_anatomy --limit 3 --quiet --out "$tmp/k"
    python3 - "$tmp/k" "$example/MODEL_DIR" <<'PY' || bad "the layout differs from the harness'"
import glob, json, sys
ours, theirs = json.load(open(sys.argv[1] + "/results.json")), json.load(open(glob.glob(sys.argv[2] + "/results_*.json")[0]))
bad = 0
def keys(where, a, b, free=()):
    global bad
    ka, kb = [k for k in a if k not in free], [k for k in b if k not in free]
    if ka != kb:
        bad += 1
        print(where, "has", ka, "the harness", kb)
    for k in ka:
        if isinstance(a[k], dict) and isinstance(b.get(k), dict):
            keys(where + "." + k, a[k], b[k], free)
        elif type(a[k]) is not type(b.get(k)) and k not in ("transformers_version", "tokenizer_bos_token"):
            bad += 1
            print(where, k, a[k], b.get(k))
keys("results", ours, theirs, ("dashlab", "pretty_env_info", "config_source"))
for t in ("arc_easy", "piqa", "winogrande", "mmlu_anatomy"):
    a = [json.loads(l) for l in open(f"{sys.argv[1]}/samples_{t}.jsonl")]
    b = [json.loads(l) for l in open(glob.glob(f"{sys.argv[2]}/samples_{t}_*.jsonl")[0])]
    for x, y in zip(a, b):
        keys("samples " + t, x, y)
        for k in ("doc_id", "doc", "target", "arguments", "filter", "metrics", "doc_hash", "prompt_hash", "target_hash"):
            if x[k] != y[k]:
                bad += 1
                print(t, k, x[k], y[k])
    bad += len(a) != len(b)
sys.exit(bad != 0)
PY
fi
# bytes: all files but the fields of time in results.json
same() {
    local f
    for f in "$tmp/a"/*; do
        f=${f##*/}
        cmp -s <(grep -vE '"(date|total_evaluation_time_seconds)"' "$tmp/a/$f") <(grep -vE '"(date|total_evaluation_time_seconds)"' "$1/$f") || bad "$f differs in $1"
    done
}
code 0 run --batch 16 --threads 2 --out "$tmp/b"
same "$tmp/b"
code 0 run --batch 16 --out "$tmp/b" # all known: nothing is computed
prints "(this run 0)"
same "$tmp/b"
# killed: as soon as something is in the log, and again after a torn line
"$bin" lmeval run --model $m --tasks mmlu_stem,arc_easy,winogrande --limit 4 --quiet --batch 1 --out "$tmp/c" >"$tmp/out" 2>"$tmp/err" &
pid=$!
for _ in $(seq 1000); do
    [ -e "$tmp/c/loglikelihoods.jsonl" ] && [ "$(wc -l <"$tmp/c/loglikelihoods.jsonl")" -gt 8 ] && break
    sleep 0.01
done
kill -KILL $pid 2>/dev/null
wait $pid 2>/dev/null
printf '{"task": "arc_ea' >>"$tmp/c/loglikelihoods.jsonl"
[ ! -e "$tmp/c/results.json" ] || echo "the run was faster than the kill"
code 0 run --batch 16 --out "$tmp/c"
same "$tmp/c"
code 0 "$bin" lmeval compare "$tmp/a" "$tmp/c"
prints "all documents"
code 3 run --shots 1 --out "$tmp/none"
code 2 "$bin" lmeval run --model $m --tasks arc_easy --limit 3 --quiet --out "$tmp/a"; says "other parameters"
code 0 "$bin" lmeval run --model $m --tasks arc_easy --limit 3 --quiet --metrics acc_bytes,acc_mutual_info,brier_score,exact_match --parity bf16 --harness-names --out "$tmp/h"
prints "acc_mutual_info"; prints "|↓  |"
ls "$tmp/h/experiments__tiny__teacher"/results_20*.json >/dev/null 2>&1 || bad "harness names"
code 0 "$bin" lmeval run --model $m --tasks arc_easy --limit 3 --quiet --json --out "$tmp/j"
prints '"lm_eval_version"'
code 3 "$bin" lmeval compare "$tmp/a" "$tmp/j"; says "cannot compare"
code 3 "$bin" lmeval compare "$tmp/nowhere" "$tmp/a"; says "folder '$tmp/nowhere' does not exist"
mkdir -p "$tmp/right" "$tmp/wrong" # one of six alike: the interval ends at -1
for i in 0 1 2 3 4 5; do
    hash=$(printf '%064d' $i)
    echo "{\"doc_id\": $i, \"prompt_hash\": \"$hash\", \"acc\": 1.0}" >>"$tmp/right/samples_piqa.jsonl"
    echo "{\"doc_id\": $i, \"prompt_hash\": \"$hash\", \"acc\": $((i == 0)).0}" >>"$tmp/wrong/samples_piqa.jsonl"
done
code 0 "$bin" lmeval compare "$tmp/right" "$tmp/wrong"; prints "[-1.0000, -0.5067]"

code 0 "$bin" lmeval run --model $m --tasks arc_easy --limit 2 --quiet --force --out "$tmp/j"
code 0 "$bin" lmeval compare "$tmp/j" "$tmp/j"
code 0 "$bin" lmeval run --model $m --tasks arc_easy,piqa --shots piqa=2 --limit 3 --print-manifest
cp "$tmp/out" "$tmp/printed.yaml"; prints 'tasks: "arc_easy,piqa"'; prints 'shots: "piqa=2"'; prints "limit: 3"
code 0 "$bin" check "$tmp/printed.yaml"; prints "1 stages, 1 runs"
code 2 "$bin" lmeval run --model $m --tasks arc_easy --samples 0-3 --print-manifest

# bad input
code 2 "$bin" lmeval run --model $m --tasks arc_esay --out "$tmp/x"; says "did you mean 'arc_easy'?"
code 2 "$bin" lmeval run --model $m --tasks arc_easy --limit 2 --samples 0-1 --out "$tmp/x"; says "exclude each other"
code 2 "$bin" lmeval run --model $m --tasks arc_easy --samples 0-64 --out "$tmp/x"; says "document 64"
code 2 "$bin" lmeval run --model $m --tasks arc_easy --apply-chat-template --out "$tmp/x"; says "chat template"
code 3 "$bin" lmeval run --model $m --tasks arc_easy --data "$tmp/nowhere" --out "$tmp/x"; says "nowhere"
mkdir -p "$tmp/d/mmlu/test" && cp lmeval/data/mmlu/test/a*.csv lmeval/data/mmlu/test/c*.csv "$tmp/d/mmlu/test/"
code 3 "$bin" lmeval run --model $m --tasks mmlu_stem --data "$tmp/d" --quiet --out "$tmp/x"; says "task 'mmlu_electrical_engineering'"
code 0 "$bin" lmeval run --model $m --tasks mmlu_stem --data "$tmp/d" --limit 1 --allow-missing --out "$tmp/y"; says "group 'mmlu_stem': subjects are missing; it is not reported"
! grep -q '"mmlu_stem"' "$tmp/y/results.json" || bad "an incomplete group was reported"
sed -i '2s/.*/broken row/' "$tmp/d/mmlu/test/anatomy_test.csv"
code 3 "$bin" lmeval run --model $m --tasks mmlu_anatomy --data "$tmp/d" --quiet --out "$tmp/x"; says "anatomy_test.csv:2: "
mkdir -p "$tmp/d/arc/ARC-Easy" && awk 'NR == 1 { s = ""; for (i = 0; i < 3000; i++) s = s " word"; sub(/"stem":"/, "&" s); } { print } NR == 3 { exit }' lmeval/data/arc/ARC-Easy/ARC-Easy-Test.jsonl >"$tmp/d/arc/ARC-Easy/ARC-Easy-Test.jsonl"
code 3 "$bin" lmeval run --model $m --tasks arc_easy --data "$tmp/d" --quiet --out "$tmp/x"; says "ARC-Easy-Test.jsonl:1: a request of"
[ ! -e "$tmp/x/results.json" ] || bad "an error left a results.json"
code 0 "$bin" lmeval run --model $m --tasks arc_easy --data "$tmp/d" --max-length 64 --out "$tmp/z"; says "cut from the left"
grep -q '"truncated_requests": [1-9]' "$tmp/z/results.json" || bad "truncated requests are not counted"
code 1 "$bin" data verify "$tmp/d"; says "differ"
# a benchmark's own folder: its train.jsonl is not read as another's
mkdir -p "$tmp/own/piqa"
cp lmeval/data/piqa/valid.jsonl "$tmp/own/piqa/train.jsonl"
cp lmeval/data/piqa/valid-labels.lst "$tmp/own/piqa/train-labels.lst"
code 1 "$bin" data verify "$tmp/own/piqa"; prints "0 files as expected, 1 that differ, 121 missing"
code 0 "$bin" data list; prints "arc_easy"; prints "people.eecs.berkeley.edu"
code 0 "$bin" ppl --model $m --file README.md --rule nonoverlap --max-tokens 200 --quiet
printf ' \n = One = \n \n Some text , here . \n = = Part = = \n more \n = Two = \n the end \n' >"$tmp/wiki"
code 0 "$bin" ppl --model $m --file "$tmp/wiki" --rule lm-eval --quiet --json
prints '"pages": 2'; prints '"words": 23'; prints '"bits_per_byte"'
code 2 "$bin" ppl --model $m --file "$tmp/wiki" --rule lm-eval --max-tokens 5
exit $fail
