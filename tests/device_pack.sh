#!/usr/bin/env bash
# Puts what tests/device.sh needs into a folder that can be taken to a machine which has a GPU but not our libraries: the executable, the test programs, the shared libraries they
# name (not the C library's own). Usage: tests/device_pack.sh [BUILD] [FOLDER]; defaults build and .dev (git-ignored). Then, there: bash tests/device.sh FOLDER, from the source tree.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build} to=${2:-.dev}
programs="dashlab parity_ops parity_repeat parity_decode_step parity_curves unit_cuda_errors"
mkdir -p "$to/lib"
for p in $programs; do
    [ -x "$build/$p" ] || { echo "device_pack: '$build/$p' is not there; build with -DDASH_CUDA=ON" >&2; exit 1; }
    cp "$build/$p" "$to/$p"
    strip --strip-debug "$to/$p"
done
ldd "$build/dashlab" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | while read -r lib; do
    case $(basename "$lib") in
    libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libgcc_s.so* | libstdc++.so*) ;;
    *) cp -L "$lib" "$to/lib/" ;;
    esac
done
du -sh "$to"
