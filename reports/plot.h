/*
 * Figures by gnuplot, called as a program: NAME.tsv (kept) and NAME.gp in DIR, from which NAME.svg, .pdf and .png are made. One style file,
 * reports/style.gp. Data are checked here, since gnuplot draws on with NaN; any warning, a failed run, or an empty picture is an error.
 * Without gnuplot, or with one before 5.0, the data and the script are written, *drawn is false, and the caller says so.
 */
#ifndef REPORTS_PLOT_H
#define REPORTS_PLOT_H

#include "core/err.h"

struct series {
    const char *label;
    const double *x, *y, *se; /* se NULL = no error bars */
    size_t n;
    int style;         /* 1.. : colour and mark of style.gp, the same for a method in every figure */
    bool line, hollow; /* joined by a line; hollow mark: a value from a publication */
};
struct figure {
    const char *name, *xlabel, *ylabel, *note; /* note: drawn small under the plot: the scale that made it */
    double xlo, xhi, ylo, yhi;                 /* ranges; ylo >= yhi: from the data */
    const double *xtics;
    size_t n_xtics;
    const struct series *s;
    size_t n;
    bool wide;     /* 6.75 in instead of 4.2; so are more than eight series */
    bool xlog;     /* logarithmic x: xlo > 0 */
    double height; /* inches; 0 = by the width, more for a long key */
    const struct hline {
        double y;
        const char *label;
    } * hlines;
    size_t n_hlines;
};

/*
 * Rectangles in panels: layer grids, stacked areas, bars; a panel may carry a line against a second axis. Coordinates of rectangles are the
 * panel's own. Parts (at most 6) are told apart by darkness as well as hue; a part that no rectangle has is left out of the key.
 */
struct rect {
    double x0, x1, y0, y1;
    int part; /* into picture.parts */
};
struct tic {
    double at;
    const char *text;
};
struct panel_label {
    double x, y; /* where the text begins, at its middle */
    const char *text;
    int style;   /* its colour is that of this style */
    bool beside; /* of a mark: a little to the right of it */
};
struct panel {
    const char *title, *xlabel, *ylabel, *y2label;
    double xlo, xhi, ylo, yhi, y2lo, y2hi;
    const struct rect *r;
    size_t n;
    const struct tic *xtic, *ytic; /* text at places; NULL = numbers */
    size_t n_xtic, n_ytic;
    bool turn;                 /* x texts upright */
    const struct series *line; /* against y2, or NULL */
    const struct series *s;    /* lines or points against y; a panel needs rectangles or these */
    size_t n_s;
    struct panel_label *label; /* direct labels */
    size_t n_label;
};
struct picture {
    const char *name, *note;
    const char *const *parts;
    size_t n_parts;
    const struct panel *p;
    size_t rows, cols;    /* of panels: rows * cols of them, row by row */
    double width, height; /* inches */
    double left;          /* inches of margin for the texts at the y axis */
    double gap_x, gap_y;  /* inches between panels; 0 = room for the texts of each */
    const char *key;      /* a line of text above the panels in place of the key; NULL = a key of parts and lines */
};
/* Moves labels of a panel up or down until none covers another; width, height: of the picture, inches. */
void panel_labels_apart(struct panel *p, double width, double height);
/* NAME.tsv (panel, part, x0, x1, y0, y1 and the lines), NAME.gp, and the pictures. Errors as figure_save; E_INPUT also when a panel is
 * empty. */
int picture_save(const struct picture *f, const char *dir, const char *style_path, bool *drawn, struct err *e);

/* style_path: reports/style.gp. E_INPUT when a series is empty, or a value, line or range is not finite. */
int figure_save(const struct figure *f, const char *dir, const char *style_path, bool *drawn, struct err *e);

#endif
