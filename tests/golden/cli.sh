#!/usr/bin/env bash
# The command line as scripts see it: usage, unknown commands and options, manifest errors, lists, exit codes. Needs no model computation.
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
checks=0 failed=0

# run CODE ARGS...: runs, keeps $out and $err, checks the exit code
run() {
    local want=$1 got
    shift
    args=$*
    "$bin" "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    out=$(cat "$work/out") err=$(cat "$work/err")
    checks=$((checks + 1))
    [ "$got" = "$want" ] && return
    failed=$((failed + 1))
    printf 'dashlab %s: exit %s, expected %s\n%s\n' "$args" "$got" "$want" "$err"
}
# says TEXT / prints TEXT: standard error or output contains it
says() {
    checks=$((checks + 1))
    case $err in *"$1"*) return ;; esac
    failed=$((failed + 1))
    printf 'dashlab %s: stderr lacks: %s\n%s\n' "$args" "$1" "$err"
}
prints() {
    checks=$((checks + 1))
    case $out in *"$1"*) return ;; esac
    failed=$((failed + 1))
    printf 'dashlab %s: stdout lacks: %s\n%s\n' "$args" "$1" "$out"
}
# quiet out|err: nothing there
quiet() {
    checks=$((checks + 1))
    [ -s "$work/$1" ] || return
    failed=$((failed + 1))
    printf 'dashlab %s: %s is not empty:\n%s\n' "$args" "$1" "$(head -c 500 "$work/$1")"
}

# --- usage ---
run 2
says "usage: dashlab COMMAND"; quiet out
run 0 help
prints "usage: dashlab COMMAND"; prints "reproduce"; prints "doctor"; quiet err
run 0 --help; quiet err
run 0 help reproduce
prints "usage: dashlab reproduce MANIFEST"; prints "--scale"; prints "--dry-run"
help=$out
run 0 reproduce --help
[ "$out" = "$help" ] || { failed=$((failed + 1)); echo "help reproduce and reproduce --help differ"; }
for c in reproduce model ppl data align search select distill ruler lmeval bench report regress check status verify doctor; do
    run 0 help "$c"
    prints "usage: dashlab $c"; quiet err
done
run 0 help align
checks=$((checks + 1))
case $out in *"--help "*"[on"*) failed=$((failed + 1)); echo "help shows what was parsed in place of defaults" ;; esac
prints "[l2norm]"
run 0 align --loss mse --help; prints "[l2norm]" # the default, not what stands before --help
run 0 --version; quiet err
checks=$((checks + 1))
[[ $out =~ ^dashlab\ [0-9]+\.[0-9]+\.[0-9]+\ \([0-9a-z]+(,\ modified)?,\ .+\)$ ]] || { failed=$((failed + 1)); echo "--version: '$out'"; }

# --- unknown words: exit 2, the nearest known one ---
run 2 reprduce
says "unknown command 'reprduce', did you mean 'reproduce'?"; quiet out
run 2 qqqqqqqqqq
says "unknown command 'qqqqqqqqqq'; 'dashlab help' lists them"
run 2 help reprduce; says "did you mean 'reproduce'?"
run 2 model infoo; says "unknown command 'model infoo', did you mean 'info'?"
run 2 model; says "usage: dashlab model COMMAND"
run 2 ppl --modle x; says "unknown option '--modle'; did you mean '--model'?"
run 2 align --lossy mse; says "did you mean '--loss'?"
run 2 align --loss mes --out "$work/x"; says "expected one of l2norm, mse; did you mean 'mse'?"
run 2 reproduce; says "1 more argument needed"
run 2 reproduce experiments/table1.yaml --scale huge; says "ci, tiny, small, paper"
run 2 check experiments/table1.yaml --threads many; says "--threads"
run 2 regress experiments/table1.yaml; says "--against FILE is needed"
run 2 select --method uniform --model experiments/tiny/teacher --budget 3; says "--out RUN is needed"
run 2 select --method uniform --model experiments/tiny/teacher --budget three --out "$work/x"; says "'three' is not an integer"
run 2 align --model experiments/tiny/teacher --data nowhere --tokens 20m --out "$work/x"; says "--tokens: '20m' is not a number; did you mean 20M?"
run 2 distill --model experiments/tiny/teacher --out "$work/x"; says "is needed"

# --- manifests ---
for scale in ci tiny; do
    run 0 check experiments/table1.yaml --scale $scale
    prints "scale $scale:"; prints "valid"; prints "input teacher"; prints "memory: at most "; quiet err
done
run 0 check --schema
prints "dash: 1"; prints "kind: distill (version"; prints "kind: search (version"; prints "report kinds: selectors"
cat >"$work/bad.yaml" <<'END'
dash: 1
name: bad
inputs:
  teacher: {path: experiments/tiny/teacher}
stages:
  - {id: a, kind: selekt, method: uniform, model: teacher}
  - {id: b, kind: select, method: unifrom, model: teacher, bugdet: 3}
  - {id: c, kind: align, model: teacher, data: nowhere, tokens: lots}
reports:
  - {kind: selector, name: t}
extra: 1
END
run 2 check "$work/bad.yaml"; quiet out
says "$work/bad.yaml:6:19: error: unknown stage kind 'selekt'; did you mean 'select'?"
says "$work/bad.yaml:7:35: error: 'method': 'unifrom' is not one of"
says "did you mean 'uniform'?"
says "$work/bad.yaml:7:60: error: unknown key 'bugdet'"
says "did you mean 'budget'?"
says "refers to 'nowhere', which is no stage or input"
says "'tokens': 'lots' is not an integer"
says "unknown report kind 'selector'; did you mean 'selectors'?"
says "unknown key 'extra' in the manifest"
says "  - {id: a, kind: selekt, method: uniform, model: teacher}"
says "^~~~~~"
run 2 reproduce "$work/bad.yaml" --runs "$work/runs" --out "$work/results"
[ ! -e "$work/runs" ] && [ ! -e "$work/results" ] || { failed=$((failed + 1)); echo "a refused manifest left folders"; }
printf 'dash: 1\nname: [\n' >"$work/broken.yaml"
run 2 check "$work/broken.yaml"; says "broken.yaml:"

# --- a base: its stages come first, only what is needed of them is planned ---
cp experiments/table1.yaml "$work/table1.yaml"
based() { printf 'dash: 1\nname: b\nbase: %s\nreports:\n  - {%s}\n' "$1" "$2" >"$work/based.yaml"; }
based table1.yaml "kind: operators, name: t, show: counts, from: [uniform]"
run 0 check "$work/based.yaml" --scale ci; prints "2 runs, 1 reports: valid"
based table1.yaml "kind: operators, name: t, show: counts, from: [uniform@budget=3]"
run 0 check "$work/based.yaml" --scale ci; prints "1 runs, 1 reports: valid"
based none.yaml "kind: operators, name: t, from: [uniform]"
run 3 check "$work/based.yaml" --scale ci; says "based.yaml:3:7: base"
based based.yaml "kind: operators, name: t, from: [uniform]"
run 2 check "$work/based.yaml" --scale ci; says "at most 4 of them in a chain"
based ../table1.yaml "kind: operators, name: t, from: [uniform]"
run 2 check "$work/based.yaml" --scale ci; says "in the same folder"
based table1.yaml "kind: operators, name: t, show: count, form: [uniform], from: [unifrom]"
run 2 check "$work/based.yaml" --scale ci
says "'show' of report kind 'operators' is one of: counts grid"; says "has no key 'form'"; says "names no stage of this manifest"

# --- --dry-run writes nothing ---
run 0 reproduce experiments/table1.yaml --scale ci --dry-run --runs "$work/runs" --out "$work/results"
prints "to run"; prints "waits"; prints " FLOP, at most "; prints "half of this machine's matrix product and copy, measured now"
run 0 reproduce experiments/table1.yaml --scale tiny --dry-run --gflops 100 --runs "$work/runs" --out "$work/results"
prints "times at 100 GFLOP/s"
# a stage that trains, searches or evaluates has FLOPs, memory and a time
checks=$((checks + 1))
bare=$(grep -E '^(hidden|align|dash-2|hybrid|eval|lm-ppl|act-mse) ' "$work/out" | grep -v -E '  [0-9]+ +[0-9.]+e\+[0-9]+ +[0-9]+\.[0-9]+ GiB +[0-9]+s(  .*)?$' | grep -v shared)
[ -z "$bare" ] || { failed=$((failed + 1)); printf 'no estimate:\n%s\n' "$bare"; }
run 0 reproduce experiments/tiny/teacher.yaml --only eval-data,bundled --dry-run --gflops 100 --runs "$work/runs"; prints "2 stages: 0 done, 0 shared, 2 to run"
run 2 reproduce experiments/table1.yaml --only teachr --dry-run --gflops 100 --runs "$work/runs"; says "--only 'teachr' names no stage"
run 0 reproduce experiments/table1.yaml --scale ci --dry-run --format dot --runs "$work/runs"
prints 'digraph "table1"'
run 0 reproduce experiments/all.yaml --scale ci --dry-run --gflops 100 --runs "$work/runs" --out "$work/results"
prints "== table1"; prints "shared"; prints "waits for dash-3"; prints "no run of this kind yet"; prints "to run"
run 2 reproduce experiments/table1.yaml --dry-run --on abacus; says "no rates are known of 'abacus' in f32"; says "h200"
[ ! -e "$work/runs" ] && [ ! -e "$work/results" ] || { failed=$((failed + 1)); echo "--dry-run wrote something"; }

# --- a stage that fails gives its exit code; what does not need it is made ---
cat >"$work/fails.yaml" <<'END'
dash: 1
name: fails
inputs:
  teacher: {path: experiments/tiny/teacher}
  nowhere: {path: no/such/teacher}
stages:
  - {id: good, kind: select, method: uniform, model: teacher, budget: 3}
  - {id: bad, kind: select, method: uniform, model: teacher, budget: 2, scores: good}
  - {id: absent, kind: select, method: uniform, model: nowhere, budget: 3}
END
run 2 reproduce "$work/fails.yaml" --runs "$work/fruns" --out "$work/fresults"
says "has no scores"; says "2 of 3 stages failed"; prints "1 ran"
run 0 reproduce "$work/fails.yaml" --only good --runs "$work/fruns" --out "$work/fresults"; prints "1 up to date"
run 3 reproduce "$work/fails.yaml" --only absent --runs "$work/fruns" --out "$work/fresults"; says "does not exist"
rm -rf "$work/fruns" "$work/fresults"

# --- lists ---
run 0 select --list; quiet err
for m in uniform random lm-ppl act-mse published custom dash-2; do prints "$m"; done
run 0 select --list --json; prints '"name": "uniform"'
run 0 data list; prints "tiny teacher"
run 0 select --method uniform --budget 3 --model experiments/tiny/teacher --print-manifest
prints "kind: select"; prints "budget: 3"
cp "$work/out" "$work/printed.yaml" # a whole manifest: it makes the run that the flags make
run 0 reproduce "$work/printed.yaml" --runs "$work/printed" --out "$work/printed-results" --quiet
run 0 select --method uniform --budget 3 --model experiments/tiny/teacher --out "$work/printed/by-flags" --quiet
checks=$((checks + 1))
cmp -s "$work"/printed/select-*/key.txt "$work/printed/by-flags/key.txt" || { failed=$((failed + 1)); echo "--print-manifest: another run than by flags"; }
mkdir "$work/a" "$work/b"
run 2 data pack --model experiments/tiny/teacher --ruler "$work/a,$work/b" --print-manifest; says "an input of a manifest is one folder"

# --- missing and damaged files: exit 3 ---
run 3 model info "$work/none"; says "$work/none"
run 3 check "$work/none.yaml"; says "does not exist"
run 3 verify "$work"; says "is not a complete run"
run 3 data verify "$work"; says "shard.json"
run 3 ppl --model "$work/none" --file README.md; says "$work/none"
run 3 ruler score "$work/none"
run 3 select --method uniform --budget 3 --model "$work/none" --out "$work/run"; says "none"
echo "{" >"$work/config.json"
run 3 model info "$work/config.json"; says "config.json"

# --- one selection, made, repeated, refused with other parameters, replaced, verified ---
sel() { run "$1" select --method uniform --budget "$2" --model experiments/tiny/teacher --out "$work/sel" --quiet "${@:3}"; }
sel 0 3
prints "done"; prints '"spec": "full:'
sel 0 3; prints "up to date"
sel 2 4; says "holds a run made with other parameters"
run 0 verify "$work/sel"; prints "files as recorded"
echo tampered >>"$work/sel/out/selection.json"
run 1 verify "$work/sel"; says "selection.json' differs"
sel 0 4 --force; prints '"asked": 4'
run 0 verify "$work/sel"
run 2 select --method uniform --budget 99 --model experiments/tiny/teacher --out "$work/sel99" --quiet; says "budget 99 is outside 1..11" # a failed stage keeps its exit code

# --- inference bench: memory is predicted before it is used; a limit below it is a row, not a failure ---
num() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" <<<"$out" | head -1; }
flops=
for piece in 8192 all; do
    run 0 bench infer --context 48 --batch 2 --decode 2 --reps 1 --warmup 0 --layers "full:2 window:3" --window 16 --piece $piece --json
    checks=$((checks + 2))
    [ "$(num predicted_bytes)" -ge "$(num prefill_peak_bytes)" ] && [ "$(num predicted_bytes)" -ge "$(num decode_peak_bytes)" ] && [ "$(num predicted_bytes)" -le $((2 * $(num prefill_peak_bytes))) ] ||
        { failed=$((failed + 1)); echo "bench infer --piece $piece: predicted $(num predicted_bytes), peaks $(num prefill_peak_bytes) $(num decode_peak_bytes)"; }
    [ -z "$flops" ] || [ "$(num prefill_flops)" = "$flops" ] || { failed=$((failed + 1)); echo "bench infer --piece all: $(num prefill_flops) FLOP, one after another $flops"; }
    flops=$(num prefill_flops)
done
run 0 bench infer --context 24,48 --batch 1,3 --decode 2 --reps 1 --warmup 0 --json
checks=$((checks + 1)) # a row for each length and batch
[ "$(grep -E '"(context|batch)"' <<<"$out" | tr -dc '0-9\n' | tr '\n' ' ')" = "24 1 24 3 48 1 48 3 " ] || { failed=$((failed + 1)); echo "bench infer: rows: $out"; }
run 2 bench infer --batch 4,0; says "--batch '4,0': a list"
run 2 bench infer --batch 4,; says "--batch '4,': a list"
run 2 bench infer --piece some; says "--piece 'some': a number of tokens from 1 to 16777216, or all"
run 0 bench infer --context 48 --memory-limit 1MiB; prints "out of memory: predicted"
run 0 bench infer --context 16000000 --batch 64 --memory-limit 9999GiB; prints "out of memory: predicted" # more than this machine has: not tried either
run 2 bench infer --context 0; says "--context '0': a list"
run 2 bench infer --memory-limit much; says "is no size"
run 3 bench infer --model "$work/none"; says "qwen2.5-3b"

# --- run folders: what no manifest needs is listed and removed; what one needs, also begun, what a user named and what another version made stay ---
mkdir -p "$work/runs/half" "$work/runs/newer"
echo "schema 1" >"$work/runs/half/key.txt"
echo "schema 9" >"$work/runs/newer/key.txt"
touch "$work/runs/newer/OUTPUTS"
printf 'dash: 1\nname: own\ninputs:\n  t: {path: experiments/tiny/teacher}\nstages:\n  - {id: u, kind: select, method: uniform, model: t, budget: 7}\nreports:\n  - {kind: selectors-list, name: tags, values: dash_table7}\n' >"$work/own.yaml"
run 0 reproduce "$work/own.yaml" --scale ci --runs "$work/runs" --out "$work/results" --quiet # no manifest of experiments/ has this budget
keyed=$(ls "$work/runs" | grep '^select-')
run 0 select --method uniform --budget 7 --model experiments/tiny/teacher --out "$work/runs/whole" --quiet
run 0 select --method uniform --budget 3 --model experiments/tiny/teacher --out "$work/runs/table1s" --quiet
cp -r "$work/runs/table1s" "$work/runs/begun" && rm "$work/runs/begun/OUTPUTS"
run 0 status "$work/runs" --json; prints '"partial"'; prints '"complete"'; prints '"other"'
run 0 status "$work/runs" --prune --dry-run; prints "1 would be removed"; prints "no manifest needs it: would be removed"; prints "budget-ruler at"
prints "kept: its name was given with --out (--named"
run 0 status "$work/runs" --prune --dry-run --json; prints '"named_by_out": true'; prints '"named_by_out": false'
run 0 status "$work/runs" --prune --named --dry-run; prints "3 would be removed"
run 0 status "$work/runs" --prune --dry-run --keep "$work/own.yaml"; prints "own at ci"; prints "0 would be removed"
run 3 status "$work/runs" --prune --keep "$work/none.yaml"; says "nothing is removed"
run 2 status "$work/runs" --keep "$work/own.yaml"; says "belong to --prune"
run 0 status --help
case $(tr -s ' \n' ' ' <<<"$out") in *"(may be repeated) (may be"*) failed=$((failed + 1)); echo "status --help says twice that --keep may be repeated" ;; esac
run 2 status "$work/runs" --named; says "belong to --prune"
there() { # FILE...: of $work/runs
    local f
    for f; do checks=$((checks + 1)); [ -e "$work/runs/$f" ] || { failed=$((failed + 1)); echo "dashlab $args: '$f' is gone"; }; done
}
gone() {
    local f
    for f; do checks=$((checks + 1)); [ ! -e "$work/runs/$f" ] || { failed=$((failed + 1)); echo "dashlab $args: '$f' is still there"; }; done
}
there half whole "$keyed"
run 0 status "$work/runs" --prune; prints "1 removed"
gone "$keyed"; there half whole table1s/OUTPUTS begun/key.txt newer/key.txt
run 0 status "$work/runs" --prune --named; prints "2 removed"
gone half whole; there table1s/OUTPUTS begun/key.txt newer/key.txt
run 2 verify "$work/runs/newer"; says "made by another version of this program"

# --- training from scratch; memory ---
run 0 train --help; prints "of at most 16 MiB"
run 2 train experiments/table1.yaml --scale ci; says "no stage of kind 'train'"
run 2 reproduce experiments/table1.yaml --memory-limit many --dry-run; says "is no size"
run 4 reproduce experiments/table1.yaml --scale ci --runs "$work/none" --dry-run --memory-limit 20M; says "does not fit"; says "for activations"; prints "memory: at most"
run 4 align --model experiments/tiny/teacher --data "$work/none" --tokens 100k --out "$work/none" --dry-run --memory-limit 20MiB; says "does not fit"

# --- jobs for Slurm: one a run, queued after what they need ---
run 2 reproduce experiments/table1.yaml --export slurm; says "needs a folder"
run 2 reproduce experiments/table1.yaml --export make; says "--export make needs a folder"
run 2 reproduce experiments/table1.yaml --export make "$work/jobs" --only none; says "takes no --only"
run 2 reproduce experiments/table1.yaml "$work/jobs"; says "one manifest at a time"
run 0 reproduce experiments/table1.yaml --scale ci --runs "$work/none" --export slurm "$work/jobs"; prints "jobs and their report"
(
    sbatch() { # counts up; every dependency must have been queued before
        local a id
        for a in "$@"; do
            case $a in --dependency=*) for id in $(tr ':' ' ' <<<"${a#*:}"); do [ "$id" -ge 1 ] && [ "$id" -le "$(cat "$work/queued")" ] || echo "$a" >>"$work/bad"; done ;; esac
        done
        id=$(($(cat "$work/queued") + 1))
        echo "$id" >"$work/queued"
        echo "$id"
    }
    echo 0 >"$work/queued"
    export -f sbatch
    export work
    bash "$work/jobs/submit.sh" >/dev/null
)
checks=$((checks + 1))
[ "$(cat "$work/queued")" = "$(ls "$work/jobs" | grep -c sbatch)" ] && [ ! -e "$work/bad" ] || { failed=$((failed + 1)); echo "slurm jobs: $(cat "$work/queued") queued; bad: $(cat "$work/bad" 2>/dev/null)"; }

# --- what a GPU computes in: the scale's dtype, unless the command says another; the jobs carry it, the bill is for it ---
run 0 reproduce table12 --scale paper --dry-run --on h200 --runs "$work/none"; prints "times on h200 in bf16; measured: search 356 TFLOP/s ("; prints "assumed: every other kind 356"; prints "dtype bf16 (the manifest's scale)"
prints "3 of these are made of layers that are still to be chosen"; prints "up to 6 more, 1.1 h, where a first seed does not fill its column"
run 2 reproduce table12 --scale paper --dry-run --on h200 --dtype f32 --runs "$work/none"; says "no rates are known of 'h200' in f32 (--dtype takes another)"; says "has: h200 in bf16"
run 0 reproduce table12 --scale paper --dry-run --gflops 1 --device cuda --dtype f32 --runs "$work/none"; prints "dtype f32 (--dtype)"
run 0 reproduce table12 --scale ci --dry-run --gflops 1 --runs "$work/none"; prints "dtype f32 (the default)"
run 0 reproduce table12 --scale paper --export slurm "$work/bf16" --runs "$work/none"
checks=$((checks + 1))
[ "$(cat "$work"/bf16/*-infer-* | grep -c -- "--device 'auto' --dtype 'bf16'")" = 4 ] && [ "$(cat "$work"/bf16/*-train-cwe-* | grep -c -- "--device 'cpu' --only")" = 1 ] && [ "$(grep -c '=.(on_host ' "$work/bf16/submit.sh")" = 8 ] ||
    { failed=$((failed + 1)); echo "jobs at paper scale: $(grep -h exec "$work"/bf16/*-infer-* "$work"/bf16/*-train-cwe-*) $(cat "$work/bf16/submit.sh")"; }

# --- the same as a Makefile: as many commands, none before what it needs (make would say so) ---
run 0 reproduce experiments/table1.yaml --scale ci --runs "$work/none" --export make "$work/made"; prints "runs and their report"
checks=$((checks + 1))
[ "$(FROM=. make -n -C "$work/made" runs 2>"$work/err" | grep -c -- --only)" = "$(($(cat "$work/queued") - 1))" ] && [ ! -s "$work/err" ] ||
    { failed=$((failed + 1)); echo "make: other runs than Slurm's; $(cat "$work/err")"; }

# --- cells of a table ---
run 2 report experiments/table1.yaml --scale ci --runs "$work/none" --explain nothing@3; says "no such cell"; prints "uniform@3"
run 0 report experiments/table1.yaml --scale ci --runs "$work/none" --explain uniform@3; prints "not made: not run"
run 0 report table1 --scale ci --runs "$work/none" --explain uniform@3; prints "command dashlab reproduce experiments/table1.yaml" # a name alone: of experiments/
run 3 report table99 --scale ci --runs "$work/none"; says "manifest 'table99' does not exist"
run 3 reproduce tabel1; says "manifest 'tabel1' does not exist; did you mean 'table1'?"
run 0 check experiments/table7.yaml; prints "memory: nothing is run"; prints "scale paper: 74 stages, 0 runs"
run 3 check experiments/figur2.yaml; says "did you mean 'experiments/figure2.yaml'?"
if command -v make >/dev/null; then
    for target in reproduce reproduce-tabel1; do
        checks=$((checks + 1))
        make -s BUILD="$(dirname "$bin")" $target >"$work/out" 2>"$work/err" </dev/null
        [ $? = 2 ] && grep -q "$([ $target = reproduce ] && echo 'names: .*table1 ' || echo "did you mean 'table1'?")" "$work/err" || { failed=$((failed + 1)); echo "make $target: $(cat "$work/err")"; }
    done
fi
run 0 report experiments/table1.yaml --scale ci --runs "$work/none" --explain Uniform:B=3; prints "not made: not run"
run 2 report experiments/table1.yaml --scale ci --runs "$work/none" --explain Uniform:B=x; says "LABEL:B=BUDGET"

# --- every manifest makes its reports from nothing, says what is missing, and the page has them all ---
run 0 report experiments/all.yaml --scale ci --runs "$work/none" --out "$work/pages"
for name in table{1,2,3,4,5,6,7,8,9,10,11,12,13} figure{2,3,4,5,6,7} appendix-g budget-ruler flashmorph landscape lmeval; do
    checks=$((checks + 1))
    grep -q "id=\"$name-ci\"" "$work/pages/index.html" && grep -q "$name/ci" "$work/pages/index.md" || { failed=$((failed + 1)); echo "the page lacks $name"; }
done
[ ! -e "$work/none" ] || { failed=$((failed + 1)); echo "report made runs"; }

echo "$checks checks, $failed failed"
[ "$failed" = 0 ]
