#!/usr/bin/env bash
# table1's chain of stages on SmolLM2-135M-Instruct with few tokens (tests/data/smollm2.yaml), from the GGUF file to the table. Usage: tests/smollm2_chain.sh SCALE FOLDER [OPTIONS of reproduce]
#   SCALE ci: a handful of updates, minutes on a CPU; small: for a GPU, e.g. tests/smollm2_chain.sh small /tmp/smollm2 --device cuda --dtype bf16
# FOLDER keeps the converted model, the runs and the results. Environment: DASHLAB_BIN (default build/dashlab), DASHLAB_SMOLLM2_GGUF (else fetched). Exit 77 when the model cannot be had.
set -eu
[ $# -ge 2 ] || { echo "usage: tests/smollm2_chain.sh ci|small FOLDER [OPTIONS]" >&2; exit 2; }
cd "$(dirname "$0")/.."
bin=$(realpath "${DASHLAB_BIN:-build/dashlab}")
scale=$1 to=$2
shift 2
mkdir -p "$to"
to=$(cd "$to" && pwd)
if [ ! -f "$to/model/config.json" ]; then
    gguf=${DASHLAB_SMOLLM2_GGUF:-$(bash tests/fetch_smollm2.sh)} || exit 77
    "$bin" model convert "$gguf" "$to/model" --dtype f32 >&2
fi
# A base stands beside the manifest that names it.
cp experiments/table1.yaml "$to/table1.yaml"
sed "s|models/SmolLM2-135M-Instruct|$to/model|" tests/data/smollm2.yaml >"$to/smollm2.yaml"
exec "$bin" reproduce "$to/smollm2.yaml" --scale "$scale" --runs "$to/runs" --out "$to/results" "$@"
