#!/usr/bin/env bash
# `dashlab model` and `dashlab ppl` on the small checkpoints and, when it is there, on SmolLM2: output shapes, exit codes, values known from transformers.
set -u
bin=${DASHLAB_BIN:-build/dashlab}
data=${DASHLAB_TEST_DATA:-../shared/data}
[ -x "$bin" ] || { echo "SKIPPED: no dashlab executable at '$bin'"; exit 77; }
[ -d "$data/oracle/model/tiny" ] || { echo "SKIPPED: $data/oracle/model/tiny is not there"; exit 77; }
command -v python3 >/dev/null || { echo "SKIPPED: python3 is missing (it reads the JSON output)"; exit 77; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail=0
bad() { echo "FAIL: $*"; fail=1; }
# code WANT COMMAND...: the exit code
code() {
    local want=$1
    shift
    "$@" >"$tmp/out" 2>"$tmp/err"
    local got=$?
    [ $got -eq "$want" ] || bad "exit $got, wanted $want: $* ($(head -c 300 "$tmp/err"))"
    [ "$want" -eq 0 ] || [ ! -s "$tmp/out" ] || bad "output before an error: $*"
}
# json EXPR: python expression over d = the JSON on stdout of the last command must be true
json() {
    python3 - "$tmp/out" "$1" <<'PY' || bad "not true: $1"
import json, math, sys
d = json.load(open(sys.argv[1]))
sys.exit(0 if eval(sys.argv[2]) else 1)
PY
}
a=$data/oracle/model/tiny/a_qwen2_tied_bf16
f=$data/oracle/model/tiny/f_qwen2_swa_f32

code 0 "$bin" model info "$a" --json
json 'd["architecture"] == "qwen2" and d["layers"] == 3 and d["mixers"] == ["full"] * 3 and d["tied_embeddings"] and d["dtypes"].startswith("BF16")'
json 'any(x["name"] == "model.safetensors" and len(x["sha256"]) == 64 for x in d["files"])'
code 0 "$bin" model info "$f" --json
json 'd["mixers"] == ["full", "window", "window"] and d["windows"] == [0, 16, 16]'
code 0 "$bin" model info "$a"
code 0 "$bin" model info "$a/config.json" --json
code 0 "$bin" model tensors "$a" --json
json 'len(d["tensors"]) == 38 and all(len(t["sha256"]) == 64 for t in d["tensors"])' # 3 layers of 12, embedding, norm
code 3 "$bin" model info "$tmp"
code 3 "$bin" model info "$data/oracle/model/tiny/h_qwen3moe_bf16"
code 3 "$bin" model tensors "$data/oracle/model/bad/gguf/i_cut_40.gguf"
code 2 "$bin" model info
code 2 "$bin" model nothing
code 2 "$bin" model info "$a" --jsn

code 0 "$bin" model forward "$a" --ids "$a/expected.safetensors" --rope-from "$a/expected.safetensors" --backend ref64 --grads --out "$tmp/x.safetensors" --json
json 'd["tokens"] == 96 and abs(d["loss"] - 12.525984094) < 1e-8'
code 0 "$bin" model tensors "$tmp/x.safetensors" --json
json '{t["name"]: t["shape"] for t in d["tensors"]}["hidden"] == [4, 96, 64] and len(d["tensors"]) == 5 + 38'
code 3 "$bin" model forward "$a" --ids "$tmp/none" --out "$tmp/y.safetensors"
[ ! -e "$tmp/y.safetensors" ] || bad "an output file after an error"
echo '[1, 2, 288]' >"$tmp/ids.json"
code 3 "$bin" model forward "$a" --ids "$tmp/ids.json" --out "$tmp/y.safetensors"
grep -q "288" "$tmp/err" || bad "the message does not name the id"

# converted to float32 and back: the same weights
code 0 "$bin" model convert "$a" "$tmp/f32"
code 2 "$bin" model convert "$a" "$tmp/f32"
code 0 "$bin" model convert "$a" "$tmp/f32" --force
"$bin" model tensors "$a" | cut -c1-64 | sort >"$tmp/h1"
"$bin" model tensors "$tmp/f32" | cut -c1-64 | sort >"$tmp/h2"
cmp -s "$tmp/h1" "$tmp/h2" || bad "convert changed weights"

t=$data/models/tiny-teacher
if [ -d "$t" ]; then
    code 0 "$bin" model tokenize "$t" --text 'The special magic number is 42. ' --json
    cp "$tmp/out" "$tmp/ids"
    code 0 "$bin" model tokenize "$t" --decode --file "$tmp/ids"
    [ "$(cat "$tmp/out"; echo x)" = "The special magic number is 42. x" ] || bad "decode: $(cat "$tmp/out")"
    code 0 "$bin" model generate "$t" --prompt 'The quick brown fox' --max-new 10 --json
    json 'd["ids"] == [14, 1722, 544, 16, 385, 3295, 633, 342, 624, 737] and d["text"].startswith(", sightless")'
    code 0 "$bin" model logprobs "$t" --text 'One of the special magic numbers' --json
    json 'd["logprob"][0] is None and len(d["logprob"]) == len(d["ids"]) and abs(sum(d["logprob"][1:]) + 11.812812) < 1e-4 and d["top5"][0][0] == 281'
    code 2 "$bin" model logprobs "$t"
fi

gguf=$(bash tests/fetch_smollm2.sh 2>"$tmp/why") || gguf=
if [ -z "$gguf" ]; then
    echo "without SmolLM2: $(cat "$tmp/why")"
else
    code 0 "$bin" model tensors "$gguf" --json
    cp "$tmp/out" "$tmp/tensors"
    python3 - "$tmp/tensors" "$data/oracle/model/smol/smol_tensors.tsv" <<'PY' || bad "tensor hashes differ from smol_tensors.tsv"
import csv, json, sys
got = {t["name"]: t["sha256"] for t in json.load(open(sys.argv[1]))["tensors"]}
rows = list(csv.reader(open(sys.argv[2]), delimiter="\t"))
want = {r[0]: r[4] for r in rows if len(r) > 4 and len(r[4]) == 64}
sys.exit(0 if got == want and len(got) == 272 else 1)
PY
    # the first 2,048 tokens of wikitext-2: four windows
    code 0 "$bin" ppl --model "$gguf" --ids "$data/oracle/model/smol/wikitext2_test_first20000.u16" --max-tokens 2048 --json
    python3 - "$tmp/out" "$data/oracle/model/smol/smol_ppl.json" <<'PY' || bad "perplexity of four windows: $(cat "$tmp/out")"
import json, sys
d, o = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
want = sum(w["nll"] for w in o["nonoverlap"]["windows"][:4])
sys.exit(0 if d["tokens"] == 4 * 511 and abs(d["nll"] / want - 1) < 1e-6 else 1)
PY
    code 0 "$bin" ppl --model "$gguf" --file "$data/wikitext2/wiki.test.raw" --max-tokens 1024 --rule stride --json
    python3 - "$tmp/out" "$data/oracle/model/smol/smol_ppl.json" <<'PY' || bad "perplexity with stride: $(cat "$tmp/out")"
import json, sys
d, o = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
want = sum(w["nll"] for w in o["sliding"]["windows"][:3])
sys.exit(0 if d["tokens"] == 1023 and abs(d["nll"] / want - 1) < 1e-6 else 1)
PY
    code 0 "$bin" ppl --model "$gguf" --ids "$data/oracle/model/smol/wikitext2_test_first20000.u16" --max-tokens 1024 --rule hf --json
    python3 - "$tmp/out" "$data/oracle/model/smol/smol_ppl.json" <<'PY' || bad "perplexity with the guide's weights: $(cat "$tmp/out")"
import json, sys
d, o = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
w = o["sliding"]["windows"]
want = w[0]["nll"] + (w[1]["nll"] + w[2]["nll"]) * 255 / 256
sys.exit(0 if d["tokens"] == 511 + 255 + 255 and abs(d["nll"] / want - 1) < 1e-6 else 1)
PY
fi
exit $fail
