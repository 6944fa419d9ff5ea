# One style for all figures: column width 3.25 in, 8 pt sans at final size, Okabe-Ito colours with distinct marks (readable in grey and when colour-blind).
set encoding utf8
set border 3 lw 0.8
set tics nomirror out scale 0.6
set grid ytics lc rgb "#dddddd" lw 0.5
set style line 1 lc rgb "#0072B2" pt 7  ps 0.7 lw 1.4
set style line 2 lc rgb "#D55E00" pt 5  ps 0.7 lw 1.4
set style line 3 lc rgb "#009E73" pt 9  ps 0.8 lw 1.4
set style line 4 lc rgb "#CC79A7" pt 13 ps 0.9 lw 1.4
set style line 5 lc rgb "#E69F00" pt 11 ps 0.8 lw 1.4
set style line 6 lc rgb "#56B4E9" pt 15 ps 0.8 lw 1.4
set style line 7 lc rgb "#000000" pt 2  ps 0.7 lw 1.2
set style line 8 lc rgb "#888888" pt 3  ps 0.7 lw 1.2
set style line 11 lc rgb "#0072B2" pt 6  ps 0.8 lw 1.0
set style line 12 lc rgb "#D55E00" pt 4  ps 0.8 lw 1.0
set style line 13 lc rgb "#009E73" pt 8  ps 0.9 lw 1.0
set style line 14 lc rgb "#CC79A7" pt 12 ps 1.0 lw 1.0
set style line 15 lc rgb "#E69F00" pt 10 ps 0.9 lw 1.0
set style line 16 lc rgb "#56B4E9" pt 14 ps 0.9 lw 1.0
# More than eight series: the colours again with other marks, dashed.
set style line 41 lc rgb "#0072B2" pt 5  ps 0.7 lw 1.2 dt 2
set style line 42 lc rgb "#D55E00" pt 9  ps 0.7 lw 1.2 dt 2
set style line 43 lc rgb "#009E73" pt 13 ps 0.7 lw 1.2 dt 2
set style line 44 lc rgb "#CC79A7" pt 11 ps 0.7 lw 1.2 dt 2
set style line 45 lc rgb "#E69F00" pt 15 ps 0.7 lw 1.2 dt 2
set style line 46 lc rgb "#56B4E9" pt 7  ps 0.7 lw 1.2 dt 2
set style line 47 lc rgb "#000000" pt 7  ps 0.7 lw 1.2 dt 2
set style line 48 lc rgb "#888888" pt 5  ps 0.7 lw 1.2 dt 2
set style line 51 lc rgb "#0072B2" pt 9  ps 0.7 lw 1.2 dt 3
set style line 52 lc rgb "#D55E00" pt 13 ps 0.7 lw 1.2 dt 3
set style line 53 lc rgb "#009E73" pt 11 ps 0.7 lw 1.2 dt 3
set style line 54 lc rgb "#CC79A7" pt 15 ps 0.7 lw 1.2 dt 3
set style line 55 lc rgb "#E69F00" pt 7  ps 0.7 lw 1.2 dt 3
set style line 56 lc rgb "#56B4E9" pt 5  ps 0.7 lw 1.2 dt 3
set style line 57 lc rgb "#000000" pt 9  ps 0.7 lw 1.2 dt 3
set style line 58 lc rgb "#888888" pt 9  ps 0.7 lw 1.2 dt 3
