#!/usr/bin/env bash
# Installs those of the given Debian packages that are missing. Root: announces and installs. Others: prints the one line and exits 4.
set -u
missing=()
if command -v dpkg-query >/dev/null; then
    for p in "$@"; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
    done
else
    # Not Debian: look for what the build itself uses.
    for c in cc cmake ninja pkg-config; do
        command -v $c >/dev/null || { echo "deps: '$c' is missing; install the equivalents of: $*" >&2; exit 4; }
    done
    exit 0
fi
# A compiler or gnuplot from elsewhere is as good.
keep=()
for p in ${missing[@]+"${missing[@]}"}; do
    case $p in
    gcc) command -v cc >/dev/null && continue ;;
    cmake) command -v cmake >/dev/null && continue ;;
    ninja-build) command -v ninja >/dev/null && continue ;;
    pkg-config) command -v pkg-config >/dev/null && continue ;;
    gnuplot-nox) command -v gnuplot >/dev/null && continue ;;
    esac
    keep+=("$p")
done
[ ${#keep[@]} -eq 0 ] && exit 0
# Without gnuplot and fonts everything but the pictures works; they never stop a build.
hard=()
for p in "${keep[@]}"; do
    case $p in gnuplot-nox | fonts-dejavu-core) ;; *) hard+=("$p") ;; esac
done
if [ "$(id -u)" = 0 ]; then
    echo "deps: installing ${keep[*]}"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${keep[@]}"; } >/dev/null || {
        echo "deps: apt-get could not install: ${keep[*]}" >&2
        [ ${#hard[@]} -eq 0 ] && exit 0
        exit 4
    }
    exit 0
fi
echo "deps: these packages are missing; install them with" >&2
echo "  sudo apt-get install ${keep[*]}" >&2
[ ${#hard[@]} -eq 0 ] && { echo "deps: going on: only pictures need them" >&2; exit 0; }
exit 4
