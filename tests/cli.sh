# Sourced by scripts of tests/e2e that call dashlab and look at what it says and writes: the executable, a folder $work that goes away, checks that are counted.
# shellcheck shell=bash
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
teacher=experiments/tiny/teacher
checks=0 failed=0 args=
fail() {
    failed=$((failed + 1))
    printf 'failed: %s\n' "$*"
}
# run CODE ARGS...: dashlab with these arguments; stdout in $work/out.txt, stderr in $work/err.txt
run() {
    local want=$1 got
    shift
    args=$*
    "$bin" "$@" --quiet >"$work/out.txt" 2>"$work/err.txt" </dev/null
    got=$?
    checks=$((checks + 1))
    [ "$got" = "$want" ] || fail "dashlab $args: exit $got, expected $want: $(tail -3 "$work/err.txt")"
}
# says TEXT: the last run's stderr
says() {
    checks=$((checks + 1))
    grep -qF -- "$1" "$work/err.txt" || fail "dashlab $args: stderr lacks '$1': $(tail -3 "$work/err.txt")"
}
has() { # FILE TEXT
    checks=$((checks + 1))
    grep -qF -- "$2" "$1" || fail "'$1' lacks '$2'"
}
lines() { # FILE N
    checks=$((checks + 1))
    [ "$(wc -l <"$1")" = "$2" ] || fail "'$1' has $(wc -l <"$1") lines, expected $2"
}
same() { # FILE FILE
    checks=$((checks + 1))
    cmp -s "$1" "$2" || fail "'$1' and '$2' differ"
}
# holds WHAT COMMAND...: the command succeeds
holds() {
    local what=$1
    shift
    checks=$((checks + 1))
    "$@" >"$work/said.txt" 2>&1 || fail "$what: $(head -c 600 "$work/said.txt")"
}
finish() {
    echo "$checks checks, $failed failed"
    [ "$failed" = 0 ]
}
