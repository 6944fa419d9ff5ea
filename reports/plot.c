/* Figures: checked data, a script, and gnuplot runs into temporary files that are renamed. */
#include "reports/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/jwrite.h"
#include "core/log.h"

#define KEY_LINE 0.2 /* inches of height for a line of the key */

enum { OLDEST_GNUPLOT = 5 };

static int check_data(const struct figure *f, struct err *e)
{
    if (f->n == 0)
        return ERR(e, E_INPUT, "figure '%s' has no series: it would be empty", f->name);
    for (size_t i = 0; i < f->n; i++) {
        if (f->s[i].n == 0)
            return ERR(e, E_INPUT, "figure '%s': series '%s' has no points", f->name, f->s[i].label);
        for (size_t k = 0; k < f->s[i].n; k++)
            if (!finite_f64(f->s[i].x[k]) || !finite_f64(f->s[i].y[k]) || (f->s[i].se && !finite_f64(f->s[i].se[k])))
                return ERR(e, E_INPUT, "figure '%s': series '%s', point %zu is not finite", f->name, f->s[i].label, k);
    }
    for (size_t i = 0; i < f->n_hlines; i++)
        if (!finite_f64(f->hlines[i].y))
            return ERR(e, E_INPUT, "figure '%s': line '%s' is not finite", f->name, f->hlines[i].label);
    if (!finite_f64(f->xlo) || !finite_f64(f->xhi) || !finite_f64(f->ylo) || !finite_f64(f->yhi))
        return ERR(e, E_INPUT, "figure '%s': a range is not finite", f->name);
    if (f->xlog && !(f->xlo > 0))
        return ERR(e, E_INPUT, "figure '%s': a logarithmic axis begins at %g, not above 0", f->name, f->xlo);
    return 0;
}

static int write_tsv(const struct figure *f, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    str_printf(&s, "# %s: %s against %s; blocks are separated by two blank lines\n", f->name, f->ylabel, f->xlabel);
    for (size_t i = 0; i < f->n; i++) {
        str_printf(&s, "%s\"%s\"\n# x\ty\tse\n", i ? "\n\n" : "", f->s[i].label);
        for (size_t k = 0; k < f->s[i].n; k++) {
            char x[32], y[32], se[32];
            fmt_f64(x, f->s[i].x[k]);
            fmt_f64(y, f->s[i].y[k]);
            fmt_f64(se, f->s[i].se ? f->s[i].se[k] : 0);
            str_printf(&s, "%s\t%s\t%s\n", x, y, se);
        }
    }
    int rc = str_ok(&s, path, e) || file_write(path, str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

static void gp_string(struct str *s, const char *z)
{
    str_putc(s, '"');
    for (; *z; z++) {
        if (*z == '"' || *z == '\\')
            str_putc(s, '\\');
        str_putc(s, *z == '\n' ? ' ' : *z);
    }
    str_putc(s, '"');
}

/* The note under a plot, broken at spaces into lines that the width holds, the last one lowest: the number of lines. 5 pt take about 0.045
 * inches a character. */
static size_t put_note(const char *note, double width, double height, struct str *s)
{
    enum { MAX_LINES = 4 };
    const char *line[MAX_LINES];
    size_t len[MAX_LINES], n = 0, most = (size_t)(width / 0.045);
    for (const char *z = note; *z && n < MAX_LINES;) {
        size_t k = strlen(z);
        if (k > most)
            for (k = most; k > 1 && z[k] != ' '; k--)
                ;
        line[n] = z;
        len[n++] = k;
        z += k;
        z += strspn(z, " ");
    }
    for (size_t i = 0; i < n; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%.*s", (int)len[i], line[i]);
        str_puts(s, "set label ");
        gp_string(s, text);
        str_printf(s, " at screen 0.01, screen %.4f left tc rgb \"#555555\" font \",5\" noenhanced\n",
                   (0.07 + 0.1 * (double)(n - 1 - i)) / height);
    }
    return n;
}

/* Inches. */
static double figure_width(const struct figure *f)
{
    return f->wide || f->n > 8 ? 6.75 : 4.2;
}
static double figure_height(const struct figure *f)
{
    return f->height > 0 ? f->height : MAX(f->wide || f->n > 8 ? 3.2 : 2.6, 1 + KEY_LINE * (double)f->n);
}

static void script(const struct figure *f, struct str *s)
{
    str_printf(s, "set termoption noenhanced\nset xlabel ");
    gp_string(s, f->xlabel);
    str_puts(s, "\nset ylabel ");
    gp_string(s, f->ylabel);
    str_printf(s, "\nset xrange [%.6g:%.6g]\n", f->xlo, f->xhi);
    if (f->xlog)
        str_puts(s, "set logscale x\nset format x \"%.0e\"\n");
    if (f->ylo < f->yhi)
        str_printf(s, "set yrange [%.6g:%.6g]\n", f->ylo, f->yhi);
    if (f->n_xtics) {
        str_puts(s, "set xtics (");
        for (size_t i = 0; i < f->n_xtics; i++)
            str_printf(s, "%s%g", i ? ", " : "", f->xtics[i]);
        str_puts(s, ")\n");
    }
    str_puts(s, "set key outside right center vertical samplen 1.5 spacing 1.05 width -1 noenhanced\n");
    for (size_t i = 0; i < f->n_hlines; i++) {
        str_printf(s, "set arrow from graph 0, first %.6g to graph 1, first %.6g nohead lc rgb \"#888888\" lw 0.8 dt 2\n", f->hlines[i].y,
                   f->hlines[i].y);
        str_puts(s, "set label ");
        gp_string(s, f->hlines[i].label);
        str_printf(s, " at graph 0.02, first %.6g offset 0, 0.45 tc rgb \"#555555\" font \",6\" noenhanced\n", f->hlines[i].y);
    }
    if (f->note && *f->note) {
        size_t lines = put_note(f->note, figure_width(f), figure_height(f), s);
        str_printf(s, "set bmargin %.1f\n", 4.2 + 0.9 * (double)(lines - 1));
    }
    const char *sep = "plot ";
    for (size_t i = 0; i < f->n; i++) /* error bars under all marks: gnuplot blanks their middles */
        if (f->s[i].se) {
            str_printf(s, "%sDATA index %zu using 1:2:3 with yerrorbars ls %d dt 1 ps 0 notitle", sep, i,
                       f->s[i].hollow ? f->s[i].style + 10 : f->s[i].style);
            sep = ", \\\n     ";
        }
    for (size_t i = 0; i < f->n; i++, sep = ", \\\n     ") {
        const struct series *q = &f->s[i];
        str_printf(s, "%sDATA index %zu using 1:2 with %s ls %d title ", sep, i, q->line ? "linespoints" : "points",
                   q->hollow ? q->style + 10 : q->style);
        gp_string(s, q->label);
    }
    str_puts(s, "\n");
}

/* gnuplot's own words, in `said`; -1 with errno ENOENT when there is no gnuplot. file NULL: asks for its version. */
static int run_gnuplot(const char *file, struct str *said)
{
    int fd[2];
    if (pipe(fd) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        close(fd[0]);
        close(fd[1]);
        setenv("LC_ALL", "C.UTF-8", 1);
        if (file)
            execlp("gnuplot", "gnuplot", "-d", file, (char *)NULL);
        else
            execlp("gnuplot", "gnuplot", "--version", (char *)NULL);
        _exit(127);
    }
    close(fd[1]);
    char buf[1024];
    for (ssize_t n; pid > 0 && ((n = read(fd[0], buf, sizeof buf)) > 0 || (n < 0 && errno == EINTR));)
        if (n > 0)
            str_add(said, buf, (size_t)n);
    close(fd[0]);
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    errno = ENOENT;
    if (pid < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127))
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Whether there is a gnuplot that can draw; why not, in a warning. */
static bool gnuplot_serves(const char *figure)
{
    static const char kept[] = "the data and script of the figure are written, the picture is not";
    struct str said = STR_INIT;
    int rc = run_gnuplot(NULL, &said), major = 0;
    bool old = rc >= 0 && (sscanf(str_c(&said), "gnuplot %d", &major) != 1 || major < OLDEST_GNUPLOT);
    if (rc < 0)
        log_warn("figure '%s': gnuplot is not installed: %s", figure, kept);
    else if (old)
        log_warn("figure '%s': gnuplot says it is '%.*s', version %d.0 or later is needed: %s", figure,
                 (int)MIN(strcspn(str_c(&said), "\n"), (size_t)60), str_c(&said), OLDEST_GNUPLOT, kept);
    str_free(&said);
    return rc >= 0 && !old;
}

/* PDF files carry their date; it is put to a fixed one so that equal figures are equal files. */
static void fix_pdf_date(struct str *s)
{
    static const char mark[] = "/CreationDate (D:";
    for (size_t i = 0; i + sizeof mark + 14 < s->len; i++)
        if (!memcmp(s->p + i, mark, sizeof mark - 1)) {
            memcpy(s->p + i + sizeof mark - 1, "20000101000000", 14);
            return;
        }
}

struct sheet { /* what draw needs of a figure */
    const char *name;
    double w, h; /* inches */
    const struct str *body;
};

static int draw(const struct sheet *f, const char *dir, const char *style, const char *ext, bool *have, struct err *e)
{
    char tmp_gp[1024], tmp_out[1024], name[256], path[1024];
    double w = f->w, h = f->h;
    snprintf(name, sizeof name, "%s.%s", f->name, ext);
    path_join(path, dir, name);
    snprintf(tmp_out, sizeof tmp_out, "%.900s.tmp-%ld", path, (long)getpid());
    snprintf(tmp_gp, sizeof tmp_gp, "%.900s.gp.tmp-%ld", path, (long)getpid());
    struct str s = STR_INIT, said = STR_INIT, out = STR_INIT;
    if (!strcmp(ext, "png"))
        str_printf(&s, "set terminal pngcairo size %.0f,%.0f font \"DejaVu Sans,8\" fontscale 2.4 linewidth 2.4 pointscale 2.4\n", w * 220,
                   h * 220);
    else if (!strcmp(ext, "pdf"))
        str_printf(&s, "set terminal pdfcairo size %.2fin,%.2fin font \"DejaVu Sans,8\" fontscale 1 linewidth 1\n", w, h);
    else
        str_printf(&s, "set terminal svg size %.0f,%.0f font \"DejaVu Sans,8\" linewidth 1 background \"white\"\n", w * 96, h * 96);
    str_printf(&s, "set output \"%s\"\nload \"%s\"\nDATA = \"%s/%s.tsv\"\n%sunset output\n", tmp_out, style, dir, f->name, str_c(f->body));
    int rc = file_write(tmp_gp, str_c(&s), s.len, e), g = 0;
    if (rc == 0) {
        g = run_gnuplot(tmp_gp, &said);
        *have = !(g < 0 && errno == ENOENT);
        remove(tmp_gp);
    }
    if (rc == 0 && *have && (g != 0 || said.len))
        rc = ERR(e, E_ENV, "gnuplot could not draw '%s' (exit code %d): %.600s", path, g, str_c(&said));
    if (rc == 0 && *have) {
        rc = file_read(tmp_out, (size_t)64 << 20, &out, e);
        if (rc == 0 && out.len < 500)
            rc = ERR(e, E_ENV, "gnuplot left only %zu bytes for '%s'", out.len, path);
        if (rc == 0 && !strcmp(ext, "pdf"))
            fix_pdf_date(&out);
        if (rc == 0)
            rc = file_write(path, str_c(&out), out.len, e);
    }
    remove(tmp_out);
    str_free(&s);
    str_free(&said);
    str_free(&out);
    return rc;
}

/* The script is kept, and the picture made from it in every form. */
static int draw_all(const struct sheet *f, const char *dir, const char *style_path, bool *drawn, struct err *e)
{
    static const char *const exts[] = {"svg", "pdf", "png"};
    char path[1024], name[256];
    struct str gp = STR_INIT;
    str_printf(&gp, "# gnuplot -d %s.gp, after 'set terminal' and 'set output'\nload \"style.gp\"\nDATA = \"%s.tsv\"\n%s", f->name, f->name,
               str_c(f->body));
    snprintf(name, sizeof name, "%s.gp", f->name);
    int rc = str_ok(f->body, f->name, e) || file_write(path_join(path, dir, name), str_c(&gp), gp.len, e) ? -1 : 0;
    bool have = rc == 0 && gnuplot_serves(f->name);
    for (size_t i = 0; rc == 0 && have && i < ARRAY_LEN(exts); i++)
        rc = draw(f, dir, style_path, exts[i], &have, e);
    *drawn = rc == 0 && have;
    str_free(&gp);
    return rc;
}

int figure_save(const struct figure *f, const char *dir, const char *style_path, bool *drawn, struct err *e)
{
    char path[1024], name[256];
    *drawn = false;
    TRY(check_data(f, e));
    TRY(mkdir_p(dir, e));
    snprintf(name, sizeof name, "%s.tsv", f->name);
    TRY(write_tsv(f, path_join(path, dir, name), e));
    struct str body = STR_INIT;
    script(f, &body);
    int rc = draw_all(&(struct sheet){f->name, figure_width(f), figure_height(f), &body}, dir, style_path, drawn, e);
    str_free(&body);
    return rc;
}

/* ---- panels of rectangles ---- */

static bool in_range(double v, double lo, double hi)
{
    return finite_f64(v) && v >= lo - 1e-9 && v <= hi + 1e-9;
}

static int check_panel(const struct picture *f, const struct panel *p, size_t at, struct err *e)
{
    if (p->n == 0 && p->n_s == 0)
        return ERR(e, E_INPUT, "figure '%s': panel %zu has no rectangles and no lines: it would be empty", f->name, at);
    if (!finite_f64(p->xlo) || !finite_f64(p->xhi) || !finite_f64(p->ylo) || !finite_f64(p->yhi) || !(p->xlo < p->xhi) ||
        !(p->ylo < p->yhi))
        return ERR(e, E_INPUT, "figure '%s': a range of panel %zu is empty or not finite", f->name, at);
    bool area = false;
    for (size_t i = 0; i < p->n; i++) {
        const struct rect *r = &p->r[i];
        if (!in_range(r->x0, p->xlo, p->xhi) || !in_range(r->x1, p->xlo, p->xhi) || !in_range(r->y0, p->ylo, p->yhi) ||
            !in_range(r->y1, p->ylo, p->yhi) || r->part < 0 || (size_t)r->part >= f->n_parts)
            return ERR(e, E_INPUT, "figure '%s': rectangle %zu of panel %zu is not finite or outside its ranges", f->name, i, at);
        area = area || (r->x1 > r->x0 && r->y1 > r->y0);
    }
    if (p->n && !area)
        return ERR(e, E_INPUT, "figure '%s': every rectangle of panel %zu has no area: it would be empty", f->name, at);
    if (p->line && (p->line->n == 0 || !(p->y2lo < p->y2hi)))
        return ERR(e, E_INPUT, "figure '%s': the line of panel %zu has no points or no range", f->name, at);
    for (size_t k = 0; k < p->n_s; k++)
        for (size_t i = 0; i < MAX((size_t)1, p->s[k].n); i++)
            if (p->s[k].n == 0 || !in_range(p->s[k].x[i], p->xlo, p->xhi) || !in_range(p->s[k].y[i], p->ylo, p->yhi))
                return ERR(e, E_INPUT, "figure '%s': line '%s' of panel %zu has no points, or one that is not finite or outside the ranges",
                           f->name, p->s[k].label, at);
    for (size_t i = 0; p->line && i < p->line->n; i++)
        if (!finite_f64(p->line->x[i]) || !finite_f64(p->line->y[i]) || (p->line->se && !finite_f64(p->line->se[i])))
            return ERR(e, E_INPUT, "figure '%s': point %zu of the line of panel %zu is not finite", f->name, i, at);
    return 0;
}

static bool has_part(const struct panel *p, size_t part)
{
    for (size_t i = 0; i < p->n; i++)
        if ((size_t)p->r[i].part == part && p->r[i].x1 > p->r[i].x0 && p->r[i].y1 > p->r[i].y0)
            return true;
    return false;
}

static void put_numbers(struct str *s, const double *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char buf[32];
        fmt_f64(buf, v[i]);
        str_printf(s, "%s%s", i ? "\t" : "", buf);
    }
    str_putc(s, '\n');
}

/* Blocks in the order in which the script draws them: for each panel its parts, then its line. */
static int picture_tsv(const struct picture *f, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    str_printf(&s, "# %s: blocks of rectangles x0 x1 y0 y1 and of lines x y se, separated by two blank lines\n", f->name);
    for (size_t k = 0; k < f->rows * f->cols; k++) {
        const struct panel *p = &f->p[k];
        for (size_t part = 0; part < f->n_parts; part++) {
            if (!has_part(p, part))
                continue;
            str_printf(&s, "# panel %zu \"%s\": %s\n", k, p->title ? p->title : "", f->parts[part]);
            for (size_t i = 0; i < p->n; i++)
                if ((size_t)p->r[i].part == part && p->r[i].x1 > p->r[i].x0 && p->r[i].y1 > p->r[i].y0)
                    put_numbers(&s, (double[]){p->r[i].x0, p->r[i].x1, p->r[i].y0, p->r[i].y1}, 4);
            str_puts(&s, "\n\n");
        }
        for (size_t j = 0; j < p->n_s; j++) {
            str_printf(&s, "# panel %zu \"%s\": %s\n", k, p->title ? p->title : "", p->s[j].label);
            for (size_t i = 0; i < p->s[j].n; i++)
                put_numbers(&s, (double[]){p->s[j].x[i], p->s[j].y[i], p->s[j].se ? p->s[j].se[i] : 0}, p->s[j].se ? 3 : 2);
            str_puts(&s, "\n\n");
        }
        if (p->line)
            str_printf(&s, "# panel %zu: %s\n", k, p->line->label);
        for (size_t i = 0; p->line && i < p->line->n; i++)
            put_numbers(&s, (double[]){p->line->x[i], p->line->y[i], p->line->se ? p->line->se[i] : 0}, 3);
        if (p->line)
            str_puts(&s, "\n\n");
    }
    int rc = str_ok(&s, path, e) || file_write(path, str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

static void put_label(struct str *s, const char *what, const char *text, const char *how)
{
    str_printf(s, "unset %s\n", what);
    if (text && *text) {
        str_printf(s, "set %s ", what);
        gp_string(s, text);
        str_printf(s, " %s\n", how);
    }
}

static void put_tics(struct str *s, const char *axis, const struct tic *t, size_t n, bool turn)
{
    str_printf(s, "set %s nomirror norangelimited %s", axis, turn ? "rotate by 90 right " : "");
    for (size_t i = 0; i < n; i++) {
        str_puts(s, i ? ", " : "(");
        gp_string(s, t[i].text);
        str_printf(s, " %.9g", t[i].at);
    }
    str_puts(s, n ? ")\n" : "\n");
}

/* small: one of many panels in a row */
static void panel_axes(const struct panel *p, bool small, struct str *s)
{
    put_label(s, "title", p->title, small ? "font \",5.5\" offset 0, -1.1" : "font \",7\" offset 0, -0.6");
    put_label(s, "xlabel", p->xlabel, small ? "font \",6\"" : "");
    put_label(s, "ylabel", p->ylabel, small ? "font \",6\"" : "");
    put_label(s, "y2label", p->line ? p->y2label : NULL, "");
    str_printf(s, "set xrange [%.9g:%.9g]\nset yrange [%.9g:%.9g]\n", p->xlo, p->xhi, p->ylo, p->yhi);
    put_tics(s, "xtics", p->xtic, p->n_xtic, p->turn);
    put_tics(s, "ytics", p->ytic, p->n_ytic, false);
    if (p->line)
        str_printf(s, "set y2range [%.9g:%.9g]\nset y2tics nomirror\nset border 11 lw 0.8\n", p->y2lo, p->y2hi);
    else
        str_puts(s, "unset y2tics\nset border 3 lw 0.8\n");
}

/* dark, middle, light: the order is readable in grey */
static const char *const fill[] = {"#0072B2", "#E69F00", "#E4E4E4", "#009E73", "#CC79A7", "#56B4E9"};

static int style_of(const struct series *q)
{
    return q->hollow ? q->style + 10 : q->style;
}

static void panel_texts(const struct panel *p, struct str *s)
{
    for (size_t i = 0; i < p->n_label; i++) {
        str_puts(s, "set label ");
        gp_string(s, p->label[i].text);
        str_printf(s, " at first %.9g, first %.9g left %stc ls %d font \",6\" noenhanced\n", p->label[i].x, p->label[i].y,
                   p->label[i].beside ? "offset 0.8, 0 " : "", p->label[i].style);
    }
}

/* Inches of a text at 6 pt, estimated. */
enum { LABEL_POINTS = 6 };
static double text_width(const char *s)
{
    return 0.058 * (double)utf8_count(s, strlen(s));
}

void panel_labels_apart(struct panel *p, double width, double height)
{
    double inch_x = (p->xhi - p->xlo) / (0.8 * width), inch_y = (p->yhi - p->ylo) / (0.7 * height),
           line = 1.25 * LABEL_POINTS / 72.0 * inch_y;
    for (int pass = 0; pass < 100; pass++) {
        bool moved = false;
        for (size_t i = 0; i < p->n_label; i++)
            for (size_t k = i + 1; k < p->n_label; k++) {
                struct panel_label *a = &p->label[i], *b = &p->label[k];
                if (a->x + text_width(a->text) * inch_x < b->x || b->x + text_width(b->text) * inch_x < a->x)
                    continue;
                double lack = line - fabs(a->y - b->y);
                if (lack <= 1e-9)
                    continue;
                double up = (a->y > b->y || (a->y == b->y && i < k) ? 1 : -1) * (lack / 2 + 1e-6);
                a->y += up;
                b->y -= up;
                moved = true;
            }
        for (size_t i = 0; i < p->n_label; i++) /* nor a mark that is not its own */
            for (size_t k = 0; k < p->n_s; k++)
                for (size_t j = 0; j < p->s[k].n; j++) {
                    struct panel_label *a = &p->label[i];
                    double dx = p->s[k].x[j] - a->x, dy = a->y - p->s[k].y[j];
                    if (dx <= 1e-9 || dx > (text_width(a->text) + 0.15) * inch_x || fabs(dy) >= 0.95 * line)
                        continue;
                    a->y = p->s[k].y[j] + (dy < 0 ? -0.96 : 0.96) * line;
                    moved = true;
                }
        for (size_t i = 0; i < p->n_label; i++)
            p->label[i].y = fmin(fmax(p->label[i].y, p->ylo + line / 2), p->yhi - line / 2);
        if (!moved)
            return;
    }
}

static void panel_plot(const struct picture *f, const struct panel *p, size_t *index, struct str *s)
{
    const char *sep = "plot ";
    for (size_t part = 0; part < f->n_parts; part++) {
        if (!has_part(p, part))
            continue;
        str_printf(s,
                   "%sDATA index %zu using 1:3:1:2:3:4 with boxxyerror fs solid 1 border lc rgb \"#777777\" fc rgb \"%s\" lw 0.3 notitle",
                   sep, *index, fill[part % ARRAY_LEN(fill)]);
        sep = ", \\\n     ";
        ++*index;
    }
    for (size_t j = 0; j < p->n_s; j++) /* error bars under all marks: gnuplot blanks their middles */
        if (p->s[j].se) {
            str_printf(s, "%sDATA index %zu using 1:2:3 with yerrorbars ls %d dt 1 ps 0 notitle", sep, *index + j, style_of(&p->s[j]));
            sep = ", \\\n     ";
        }
    for (size_t j = 0; j < p->n_s; j++, sep = ", \\\n     ", ++*index)
        str_printf(s, "%sDATA index %zu using 1:2 with %s ls %d notitle", sep, *index, p->s[j].line ? "linespoints" : "points",
                   style_of(&p->s[j]));
    if (p->line) {
        if (p->line->se) { /* under the marks: gnuplot blanks the middle of an error bar */
            str_printf(s, "%sDATA index %zu using 1:2:3 axes x1y2 with yerrorbars ls 7 ps 0 notitle", sep, *index);
            sep = ", \\\n     ";
        }
        str_printf(s, "%sDATA index %zu using 1:2 axes x1y2 with linespoints ls 7 pt 7 ps 0.5 notitle", sep, *index);
        ++*index;
    }
    str_putc(s, '\n');
}

/* A key of our own over all panels, centred: gnuplot's must fit into one of them. Widths of texts are estimated at 7 pt. */
static void picture_key(const struct picture *f, struct str *s)
{
    enum { MAX_KEY = 8 };
    const char *text[MAX_KEY], *line = NULL;
    size_t part[MAX_KEY], n = 0;
    double total = 0, y = 1 - 0.11 / f->height;
    if (f->key) {
        str_puts(s, "set label 99 ");
        gp_string(s, f->key);
        str_printf(s, " at screen 0.5, screen %.4f center font \",7\" noenhanced\n", y);
        return;
    }
    for (size_t k = 0; k < f->n_parts; k++) {
        bool used = false;
        for (size_t i = 0; i < f->rows * f->cols; i++) {
            used = used || has_part(&f->p[i], k);
            line = f->p[i].line ? f->p[i].line->label : line;
        }
        if (used) {
            part[n] = k;
            text[n++] = f->parts[k];
        }
    }
    if (line) {
        part[n] = f->n_parts;
        text[n++] = line;
    }
    for (size_t k = 0; k < f->p[0].n_s && n < MAX_KEY; k++) { /* the same lines in every panel */
        part[n] = f->n_parts + 1 + k;
        text[n++] = f->p[0].s[k].label;
    }
    for (size_t k = 0; k < n; k++)
        total += 0.48 + 0.066 * (double)utf8_count(text[k], strlen(text[k]));
    double x = (f->width - total) / 2;
    for (size_t k = 0; k < n; k++) {
        double x0 = x / f->width, x1 = (x + 0.22) / f->width;
        if (part[k] < f->n_parts)
            str_printf(s,
                       "set object %zu rect from screen %.4f, screen %.4f to screen %.4f, screen %.4f fs solid 1 border lc rgb \"#777777\" "
                       "fc rgb \"%s\" lw 0.3\n",
                       100 + k, x0, y - 0.045 / f->height, x1, y + 0.045 / f->height, fill[part[k] % ARRAY_LEN(fill)]);
        else
            str_printf(s, "set arrow %zu from screen %.4f, screen %.4f to screen %.4f, screen %.4f nohead ls %d\n", 100 + k, x0, y, x1, y,
                       part[k] == f->n_parts ? 7 : f->p[0].s[part[k] - f->n_parts - 1].style);
        str_printf(s, "set label %zu ", 100 + k);
        gp_string(s, text[k]);
        str_printf(s, " at screen %.4f, screen %.4f left font \",7\" noenhanced\n", (x + 0.28) / f->width, y);
        x += 0.48 + 0.066 * (double)utf8_count(text[k], strlen(text[k]));
    }
}

static void picture_script(const struct picture *f, struct str *s)
{
    size_t index = 0;
    size_t lines = f->note && *f->note ? put_note(f->note, f->width, f->height, s) : 0;
    double note = lines ? 0.06 + 0.1 * (double)lines : 0, bottom = (0.42 + note) / f->height, top = 1 - 0.42 / f->height,
           gap_y = (f->gap_y > 0 ? f->gap_y : 0.62) / f->height, gap_x = (f->gap_x > 0 ? f->gap_x : 0.75) / f->width;
    bool second = false, turned = false, titled = false, between = false;
    for (size_t k = 0; k < f->rows * f->cols; k++) {
        second = second || f->p[k].line;
        turned = turned || f->p[k].turn;
        titled = titled || f->p[k].title;
        between = between || (k + f->cols < f->rows * f->cols && f->p[k].xlabel);
    }
    gap_y += titled && between && f->gap_y <= 0 ? 0.16 / f->height : 0;
    top -= titled ? 0.14 / f->height : 0;
    bottom += turned ? 0.38 / f->height : 0;
    gap_y += turned ? 0.25 / f->height : 0;
    double left = f->left / f->width, right = 1 - (second ? 0.74 : 0.12) / f->width,
           w = (right - left - gap_x * (double)(f->cols - 1)) / (double)f->cols;
    double h = (top - bottom - gap_y * (double)(f->rows - 1)) / (double)f->rows;
    if (second)
        w = (right - left - 2 * gap_x * (double)(f->cols - 1)) / (double)f->cols;
    str_puts(s, "set termoption noenhanced\nunset grid\nset tics font \",7\"\nunset key\n");
    picture_key(f, s);
    str_puts(s, "set multiplot\n");
    for (size_t k = 0; k < f->rows * f->cols; k++) {
        double x = left + (double)(k % f->cols) * (w + gap_x * (second ? 2 : 1)), y = top - (double)(k / f->cols) * (h + gap_y);
        str_printf(s, "set lmargin at screen %.4f\nset rmargin at screen %.4f\nset tmargin at screen %.4f\nset bmargin at screen %.4f\n", x,
                   x + w, y, y - h);
        panel_axes(&f->p[k], f->cols > 4, s);
        panel_texts(&f->p[k], s);
        panel_plot(f, &f->p[k], &index, s);
        str_puts(s, "unset label\nunset object\nunset arrow\n"); /* note and key stand once */
    }
    str_puts(s, "unset multiplot\n");
}

int picture_save(const struct picture *f, const char *dir, const char *style_path, bool *drawn, struct err *e)
{
    char path[1024], name[256];
    *drawn = false;
    if (f->rows * f->cols == 0 || f->n_parts > 6)
        return ERR(e, E_INPUT, "figure '%s' has no panels, or more than 6 parts", f->name);
    for (size_t k = 0; k < f->rows * f->cols; k++)
        TRY(check_panel(f, &f->p[k], k, e));
    TRY(mkdir_p(dir, e));
    snprintf(name, sizeof name, "%s.tsv", f->name);
    TRY(picture_tsv(f, path_join(path, dir, name), e));
    struct str body = STR_INIT;
    picture_script(f, &body);
    int rc = draw_all(&(struct sheet){f->name, f->width, f->height, &body}, dir, style_path, drawn, e);
    str_free(&body);
    return rc;
}
