#!/usr/bin/env bash
# Copies a finished Stage-1 run's mixers into a folder that manifests can name as an input, and prints the line that pins it. Usage: tools/bundle_stage1.sh RUN FOLDER
set -eu
[ $# = 2 ] || { echo "usage: tools/bundle_stage1.sh RUN FOLDER" >&2; exit 2; }
[ -f "$1/OUTPUTS" ] || { echo "bundle_stage1: '$1' is not a finished run" >&2; exit 3; }
[ ! -e "$2" ] || { echo "bundle_stage1: '$2' exists; a bundled set is never replaced in place: take another name" >&2; exit 2; }
mkdir -p "$2"
for f in mixers.safetensors config.json; do
    grep -q "  out/$f\$" "$1/OUTPUTS" || { echo "bundle_stage1: '$1' has no out/$f" >&2; exit 3; }
    [ "$(sha256sum <"$1/out/$f" | cut -c1-64)" = "$(sed -n "s|  out/$f\$||p" "$1/OUTPUTS")" ] || { echo "bundle_stage1: out/$f differs from the run's OUTPUTS" >&2; exit 3; }
    cp "$1/out/$f" "$2/$f"
done
cp "$1/stage.yaml" "$2/README.stage.yaml" # READMEs are no part of an input's hash
# The hash of a folder is that of its sorted "HASH  NAME" lines.
hash=$(cd "$2" && for f in $(LC_ALL=C ls | grep -v '^README'); do printf '%s  %s\n' "$(sha256sum <"$f" | cut -c1-64)" "$f"; done | sha256sum | cut -c1-64)
du -sh "$2" | cut -f1
echo "stage1: {path: $2, sha256: $hash}"
