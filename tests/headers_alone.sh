#!/usr/bin/env bash
# Every header compiles alone as C11.
set -u
cc=${CC:-cc} bad=0 n=0
for h in $(find core kernels model dash ruler lmeval baselines experiments reports cli -name '*.h' ! -path '*/isa/*' ! -path '*/ref/*' ! -path '*/cuda/*' | sort); do
    n=$((n + 1))
    echo "#include \"$h\"" | $cc -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Werror -Wno-unused-function -I. -fsyntax-only -x c - || { echo "$h does not compile alone"; bad=1; }
done
echo "$n headers checked"
exit $bad
