#!/usr/bin/env bash
# The LaTeX form of every table compiles without a warning: those of all manifests at scale ci (from no runs: every note and published row stands in them).
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
command -v pdflatex >/dev/null || { echo "SKIPPED: pdflatex is not installed (texlive-latex-base, texlive-latex-recommended)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
"$bin" report experiments/all.yaml --scale ci --runs "$work/none" --out "$work/res" >/dev/null 2>"$work/err" || { echo "report failed: $(tail -3 "$work/err")"; exit 1; }
{
    printf '%s\n' '\documentclass{article}' '\usepackage[T1]{fontenc}' '\usepackage{booktabs,graphicx}' '\begin{document}'
    for f in "$work"/res/*/ci/*.tex; do printf '\\input{%s}\\clearpage\n' "$f"; done
    echo '\end{document}'
} >"$work/doc.tex"
n=$(ls "$work"/res/*/ci/*.tex | wc -l)
(cd "$work" && pdflatex -halt-on-error -interaction=nonstopmode doc.tex >out 2>&1) || { echo "pdflatex failed:"; grep -A4 '^!' "$work/out" | head -20; exit 1; }
if grep -E 'Warning|Overfull|Underfull' "$work/doc.log"; then
    exit 1
fi
[ "$n" -ge 24 ] && [ -s "$work/doc.pdf" ] || { echo "only $n tables"; exit 1; }
echo "$n tables, no warnings"
