/*
 * Figures by gnuplot, called as a program: NAME.tsv (kept) and NAME.gp in DIR, from which NAME.svg, .pdf and .png are made. One style file, reports/style.gp. Data are checked here, since gnuplot draws on
 * with NaN; any warning, a failed run, or an empty picture is an error. Without gnuplot the data and the script are written, *drawn is false, and the caller says so.
 */
#ifndef REPORTS_PLOT_H
#define REPORTS_PLOT_H

#include "core/err.h"

struct series {
    const char *label;
    const double *x, *y, *se; /* se NULL = no error bars */
    size_t n;
    int style;                /* 1.. : colour and mark of style.gp, the same for a method in every figure */
    bool line, hollow;        /* joined by a line; hollow mark: a value from a publication */
};
struct figure {
    const char *name, *xlabel, *ylabel, *note; /* note: drawn small under the plot: the scale that made it */
    double xlo, xhi, ylo, yhi;                 /* ranges; ylo >= yhi: from the data */
    const double *xtics;
    size_t n_xtics;
    const struct series *s;
    size_t n;
    bool wide;                                 /* 6.75 in instead of 3.25 */
    const struct hline {
        double y;
        const char *label;
    } *hlines;
    size_t n_hlines;
};
/* style_path: reports/style.gp. E_INPUT when a series is empty, or a value, line or range is not finite. */
int figure_save(const struct figure *f, const char *dir, const char *style_path, bool *drawn, struct err *e);

#endif
