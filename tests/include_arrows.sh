#!/usr/bin/env bash
# Fails on an #include that goes against the arrows of design: core <- kernels <- model <- {dash, ruler, lmeval} <- baselines <- cli;
# experiments and reports see core alone.
set -u
allowed() {
    case $1 in
    core) echo "core" ;;
    kernels) echo "core kernels" ;;
    model) echo "core kernels model" ;;
    dash) echo "core kernels model dash" ;;
    ruler) echo "core kernels model ruler" ;;
    lmeval) echo "core kernels model lmeval" ;;
    baselines) echo "core kernels model dash ruler lmeval baselines" ;;
    experiments) echo "core experiments" ;;
    reports) echo "core reports" ;;
    cli) echo "core kernels model dash ruler lmeval baselines experiments reports cli" ;;
    esac
}
bad=0 seen=0
for d in core kernels model dash ruler lmeval baselines experiments reports cli; do
    ok=" $(allowed $d) "
    while IFS= read -r line; do
        file=${line%%:*}
        inc=$(sed -n 's/.*#[ \t]*include[ \t]*"\([^"]*\)".*/\1/p' <<<"$line")
        seen=$((seen + 1))
        top=${inc%%/*}
        [ "$inc" = build_info.h ] && [ "$d" = core ] && continue
        if [ "$top" = "$inc" ] || [[ "$ok" != *" $top "* ]]; then
            echo "$line: '$d' may not include '$inc' (allowed:$ok)"
            bad=1
        fi
    done < <(find "$d" -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort | xargs -r grep -Hn '#[ \t]*include[ \t]*"')
done
echo "$seen includes checked"
[ "$seen" -gt 0 ] && exit $bad
exit 1
