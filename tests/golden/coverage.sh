#!/usr/bin/env bash
# README's coverage table: every table and figure of the papers has a row with a manifest, `not yet` or `not regenerated`; every manifest named exists and is valid at each scale it names; every manifest has a row. Every file of published numbers has its source.
set -u
bin=${DASHLAB_BIN:-}
[ -n "$bin" ] && [ -x "$bin" ] || { echo "SKIPPED: no dashlab executable (DASHLAB_BIN)"; exit 77; }
cd "${DASHLAB_SRC:-.}" || exit 1
checks=0 failed=0
bad() {
    failed=$((failed + 1))
    echo "$1"
}
rows=$(sed -n '/^## Tables, figures and methods/,/^Read first/p' README.md | grep '^| ' | grep -v '^| item')
for item in "DASH Table "{1,2,3,4,5,6,7,8,9,10,11,12,13} "DASH Figure "{1,2,3,4,5,6,7} "DASH Appendix G" "DASH, budget against RULER" "FlashMorph, selection cost" "FlashMorph, linear-to-full" "FlashMorph, retrieval" "FlashMorph, needles" \
    "FlashMorph, GLA and Lightning" "FlashMorph, mixture of experts" "FlashMorph, long-context" "SWA-DSA, sparse" "SWA-DSA, the 5:1" "SWA-DSA, mixture"; do
    checks=$((checks + 1))
    [ "$(grep -c "^| $item[, ]" <<<"$rows")" = 1 ] || bad "README has not one row '$item'"
done
while IFS='|' read -r _ item entry _; do
    checks=$((checks + 1))
    case $entry in
        " not yet " | " not regenerated ") continue ;;
        *\`*\`*) ;;
        *) bad "row '$item' has no entry: '$entry'" ;;
    esac
    name=${entry//[\` ]/}
    [ -f "experiments/$name.yaml" ] || bad "row '$item': experiments/$name.yaml does not exist"
done <<<"$rows"
for file in experiments/*.yaml; do
    name=$(basename "$file" .yaml)
    checks=$((checks + 2))
    grep -q "| \`$name\` |" <<<"$rows" || bad "$file has no row in README"
    grep -q "^name: $name$" "$file" || bad "$file: its name is not that of the file"
    for scale in ci tiny small paper; do
        checks=$((checks + 1))
        out=$("$bin" check "$file" --scale $scale 2>&1)
        case $?/$out in
            0/*" valid"*) ;;
            3/*" valid"*MISSING* | 3/*MISSING*" valid"*) ;; # a checkpoint that users bring
            2/*"has no scale"*) [ $scale != tiny ] || bad "$file: scale tiny is missing" ;;
            *) bad "$file at $scale: $out" ;;
        esac
    done
done
# numbers of publications: the first line says which paper, and which table and section (or the section alone, where there is no table's number)
for file in reports/published/*.tsv; do
    checks=$((checks + 1))
    source='Table [0-9]+, (section [0-9]\.[0-9]|Appendix [A-G](\.[0-9])?)|section "[^"]+" of a summary'
    head -n 1 "$file" | grep -qE "^# [A-Za-z]+ \(arXiv [0-9]{4}\.[0-9]{5}\),? ($source)" || bad "$file does not begin with its source"
    n=$(basename "$file" .tsv)
    case $n in dash_table*) head -n 1 "$file" | grep -q "Table ${n#dash_table}, " || bad "$file: its source is another table" ;; esac
done
echo "$checks checks, $failed failed"
[ "$failed" = 0 ]
