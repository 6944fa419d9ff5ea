#!/usr/bin/env bash
# `dashlab train` of experiments/tiny/teacher.yaml at scale ci: the loss falls; interrupted and killed at several moments and resumed, with another number of threads and with activations computed
# again, the model and all else have the same bytes; the model is one that every command takes; checkpoints are in parts of at most 16 MiB; what does not fit is refused with the numbers before
# anything is written. Then experiments/tiny/stage1.yaml at ci, and its result bundled and used by hash.
set -u
bin=${DASHLAB_BIN:-build/dashlab}
[ -x "$bin" ] || { echo "SKIPPED: no dashlab executable at '$bin'"; exit 77; }
bin=$(realpath "$bin")
cd "${DASHLAB_SRC:-.}" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
manifest=experiments/tiny/teacher.yaml
fail=0
bad() { echo "FAIL: $*"; fail=1; }
value() { sed -n "s/^ *\"$2\": \([-0-9.e+]*\),*$/\1/p" "$1"; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }'; }
tree() { (cd "$1" && find . -type f ! -name timing.json ! -name provenance.json ! -name log.txt | LC_ALL=C sort | xargs sha256sum); }

# What it costs, and what does not fit.
"$bin" train $manifest --scale ci --runs "$tmp/none" --dry-run --gflops 10 >"$tmp/plan" 2>&1 || bad "dry run: $(tail -n 2 "$tmp/plan")"
grep -q '^teacher .* to run\|^teacher .* waits' "$tmp/plan" && grep -q 'memory: at most' "$tmp/plan" || bad "dry run: no line of the training or of memory: $(cat "$tmp/plan")"
"$bin" train $manifest --scale ci --runs "$tmp/none" --dry-run --memory-limit 8M >"$tmp/plan" 2>"$tmp/err"
[ $? = 4 ] && grep -q "stage 'teacher'.* does not fit: .* GiB (.* for weights.*--memory-limit has 0.01 GiB; .*recompute: true" "$tmp/err" || bad "dry run with 8 MB: $(cat "$tmp/err")"
[ ! -e "$tmp/none" ] || bad "a dry run made a folder"

# The unbroken run: two threads.
"$bin" train $manifest --scale ci --runs "$tmp/whole" --threads 2 --device cpu --quiet >"$tmp/out" 2>"$tmp/err" || { cat "$tmp/err"; bad "the unbroken training failed"; exit 1; }
grep -q '^teacher: .*/out/: held-out loss' "$tmp/out" || bad "no line about the model: $(cat "$tmp/out")"
run=$(echo "$tmp"/whole/train-*)
before=$(value "$run/out/result.json" heldout_before) after=$(value "$run/out/result.json" heldout_after)
# It starts at ln 4096 = 8.318 (weights of 0.02: logits near 0). What it learns first is which of 4096 tokens occur at all: digits and the words of the templates; half a nat is the least of that.
less "$before" 8.42 && less 8.2 "$before" || bad "held-out loss before training: $before, not ln 4096"
less "$after" "$(awk -v b="$before" 'BEGIN { print b - 0.5 }')" || bad "held-out loss $before -> $after"

# Interrupted in the middle, then killed, each time by the first checkpoint that appears; the last piece with one thread and recomputation. (That is a parameter, but not of the key.)
sed 's/ckpt_every: 500/ckpt_every: 1, recompute: true/' $manifest >"$tmp/teacher.yaml"
go() { "$bin" train "$tmp/teacher.yaml" --scale ci --runs "$tmp/killed" --threads 1 --device cpu --quiet >"$tmp/k.out" 2>"$tmp/k.err" & pid=$!; }
seen=""
for signal in INT KILL KILL TERM; do
    go
    while kill -0 $pid 2>/dev/null; do
        now=$(ls -d "$tmp"/killed/train-*/work/last-* 2>/dev/null | sort -V | tail -n 1)
        [ -n "$now" ] && [ "$now" != "$seen" ] && break
        sleep 0.02
    done
    kill -$signal $pid 2>/dev/null || bad "no moment left for SIG$signal"
    wait $pid
    code=$?
    [ $signal = KILL ] || [ $code = 130 ] || bad "SIG$signal: exit $code, wanted 130: $(tail -n 2 "$tmp/k.err")"
    seen=$(ls -d "$tmp"/killed/train-*/work/last-* 2>/dev/null | sort -V | tail -n 1)
    big=$(find "$tmp"/killed/train-*/work -type f -size +16777216c)
    [ -z "$big" ] || bad "larger than 16 MiB: $big"
done
[ -n "$seen" ] || bad "no checkpoint was seen"
go
wait $pid || bad "the resumed training failed: $(tail -n 3 "$tmp/k.err")"
again=$(echo "$tmp"/killed/train-*)
[ "${again##*/}" = "${run##*/}" ] || bad "recompute or ckpt_every moved the key: ${again##*/} and ${run##*/}"
for r in "$run" "$again"; do sed -i '/^ckpt_every:/d;/^recompute:/d' "$r/stage.yaml"; grep -v ' stage.yaml$' "$r/OUTPUTS" >"$tmp/o" && cp "$tmp/o" "$r/OUTPUTS"; done
diff <(tree "$run") <(tree "$again") >"$tmp/diff" || bad "an interrupted training (1 thread, recomputed activations) and an unbroken one (2 threads) differ:
$(cat "$tmp/diff")"

# The model is a model: read, scored, decoded; in Hugging Face's names.
"$bin" model info "$run/out" --json >"$tmp/info" 2>"$tmp/err" && grep -q '"qwen2"' "$tmp/info" || bad "model info: $(cat "$tmp/err")"
"$bin" model generate "$run/out" --prompt "The special magic number" --max-new 4 >"$tmp/text" 2>"$tmp/err" || bad "model generate: $(cat "$tmp/err")"
grep -q '"Qwen2ForCausalLM"' "$run/out/config.json" || bad "config.json names no Qwen2ForCausalLM"
[ -f "$run/out/tokenizer.json" ] || bad "no tokenizer.json beside the weights"
# ... and by its manifest: evaluated (some seconds), with its table.
"$bin" reproduce $manifest --scale ci --runs "$tmp/eval" --out "$tmp/results" --device cpu --quiet >"$tmp/out" 2>"$tmp/err" || bad "reproduce: $(tail -n 3 "$tmp/err")"
grep -q '^| Teacher\|^Teacher' "$tmp/results/teacher/ci/teacher.md" "$tmp/results/teacher/ci/teacher.txt" || bad "no row of the teacher in its table"
# A row of its own for each model without a selection (a few updates: the new one scores less), and the check finds its row in a table of blocks.
awk -F'\t' '$1 == "ours" { v[$2] = $5 } END { exit !(v["Teacher"] != "" && v["bundled teacher"] > v["Teacher"] && v["bundled teacher2"] > v["Teacher"]) }' "$tmp/results/teacher/ci/teacher.tsv" || bad "rows of the table: $(cut -f1-5 "$tmp/results/teacher/ci/teacher.tsv" | head -n 4)"
for row in "ours/bundled teacher2" ours/Teacher; do
    sed "s|row: ours/Teacher, \(.*\), scale: tiny|row: $row, \1|" $manifest >"$tmp/checked.yaml"
    "$bin" reproduce "$tmp/checked.yaml" --scale ci --runs "$tmp/eval" --out "$tmp/results" --device cpu --quiet >"$tmp/out" 2>"$tmp/err"
    [ $? = $([ "$row" = ours/Teacher ] && echo 1 || echo 0) ] && grep -q "check teacher: '$row' Avg. = [0-9.]* (at least 93)" "$tmp/out" || bad "check of '$row': $(cat "$tmp/out" "$tmp/err")"
done

# What is wrong is said before anything runs.
sed 's/kind: train, /kind: train, head_dim: 7, /;s/, head_dim: 32//' $manifest >"$tmp/bad.yaml"
"$bin" train "$tmp/bad.yaml" --scale ci --runs "$tmp/whole" --quiet >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] && grep -q "teacher.*7" "$tmp/err" || bad "an odd head_dim: $(tail -n 2 "$tmp/err")"
"$bin" train experiments/table1.yaml --scale ci >"$tmp/out" 2>"$tmp/err"
[ $? = 2 ] && grep -q "no stage of kind 'train'" "$tmp/err" || bad "a manifest without training: $(tail -n 2 "$tmp/err")"
"$bin" train $manifest --scale ci --runs "$tmp/limit" --memory-limit 8M --device cpu --quiet >"$tmp/out" 2>"$tmp/err"
[ $? = 4 ] && grep -q "does not fit" "$tmp/err" || bad "--memory-limit: $(tail -n 2 "$tmp/err")"
[ -z "$(find "$tmp/limit" -path '*train-*' -name '*.safetensors')" ] || bad "a refused training left weights"

# Stage 1 for bundling.
"$bin" reproduce experiments/tiny/stage1.yaml --scale ci --runs "$tmp/s1" --out "$tmp/results" --device cpu --quiet >"$tmp/out" 2>"$tmp/err" || bad "stage1.yaml: $(tail -n 3 "$tmp/err")"
align=$(echo "$tmp"/s1/align-*)
less "$(value "$align/out/result.json" heldout_after)" "$(value "$align/out/result.json" heldout_before)" || bad "stage 1: the held-out loss did not fall"
pin=$(bash tools/bundle_stage1.sh "$align" "$tmp/bundled" | tail -n 1) || bad "bundle_stage1.sh failed"
cat >"$tmp/use.yaml" <<YAML
dash: 1
name: use
inputs:
  teacher: {path: experiments/tiny/teacher}
  $pin
stages:
  - {id: gen, kind: ruler-gen, model: teacher, lengths: [256], samples: 4, seed: 5, tasks: [niah_single_1]}
  - {id: data, kind: pack, model: teacher, ruler: [gen], seq: 256, seed: 1}
  - {id: hybrid, kind: distill, model: teacher, linear: stage1, data: data, layers: [pick], tokens: 0, window: 32, heldout: 1}
YAML
sed -i "s/  - {id: hybrid/  - {id: pick, kind: select, method: uniform, model: teacher, budget: 3}\n&/" "$tmp/use.yaml"
"$bin" reproduce "$tmp/use.yaml" --runs "$tmp/s1" --out "$tmp/results" --device cpu --quiet >"$tmp/out" 2>"$tmp/err" || bad "a bundled Stage 1: $(tail -n 3 "$tmp/err")"
printf 'x' >>"$tmp/bundled/config.json"
"$bin" reproduce "$tmp/use.yaml" --runs "$tmp/s2" --out "$tmp/results" --device cpu --quiet >"$tmp/out" 2>"$tmp/err"
[ $? != 0 ] && grep -q "the manifest pins" "$tmp/err" || bad "a changed bundle was taken: $(tail -n 2 "$tmp/err")"

echo "held-out loss $before -> $after in $(value "$run/out/result.json" steps) updates; $([ $fail = 0 ] && echo ok || echo FAILED)"
exit $fail
