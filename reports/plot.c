/* Figures: checked data, a script, and gnuplot runs into temporary files that are renamed. */
#include "reports/plot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/jwrite.h"
#include "core/log.h"

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

static void script(const struct figure *f, struct str *s)
{
    str_printf(s, "set termoption noenhanced\nset xlabel ");
    gp_string(s, f->xlabel);
    str_puts(s, "\nset ylabel ");
    gp_string(s, f->ylabel);
    str_printf(s, "\nset xrange [%.6g:%.6g]\n", f->xlo, f->xhi);
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
        str_printf(s, "set arrow from graph 0, first %.6g to graph 1, first %.6g nohead lc rgb \"#888888\" lw 0.8 dt 2\n", f->hlines[i].y, f->hlines[i].y);
        str_puts(s, "set label ");
        gp_string(s, f->hlines[i].label);
        str_printf(s, " at graph 0.02, first %.6g offset 0, 0.45 tc rgb \"#555555\" font \",6\" noenhanced\n", f->hlines[i].y);
    }
    if (f->note && *f->note) {
        str_puts(s, "set label ");
        gp_string(s, f->note);
        str_puts(s, " at screen 0.01, screen 0.025 left tc rgb \"#555555\" font \",5\" noenhanced\nset bmargin 4.2\n");
    }
    str_puts(s, "plot ");
    for (size_t i = 0; i < f->n; i++) {
        const struct series *q = &f->s[i];
        int ls = q->hollow ? q->style + 10 : q->style;
        str_printf(s, "%sDATA index %zu using 1:2 with %s ls %d title ", i ? ", \\\n     " : "", i, q->line ? "linespoints" : "points", ls);
        gp_string(s, q->label);
        if (q->se)
            str_printf(s, ", \\\n     DATA index %zu using 1:2:3 with yerrorbars ls %d ps 0 notitle", i, ls);
    }
    str_puts(s, "\n");
}

/* gnuplot's own words, in `said`; -1 with errno ENOENT when there is no gnuplot. */
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
        execlp("gnuplot", "gnuplot", "-d", file, (char *)NULL);
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

static int draw(const struct figure *f, const char *dir, const char *style, const struct str *body, const char *ext, bool *have, struct err *e)
{
    char tmp_gp[1024], tmp_out[1024], name[256], path[1024];
    double w = f->wide ? 6.75 : 4.2, h = f->wide ? 3.2 : 2.6;
    snprintf(name, sizeof name, "%s.%s", f->name, ext);
    path_join(path, dir, name);
    snprintf(tmp_out, sizeof tmp_out, "%.900s.tmp-%ld", path, (long)getpid());
    snprintf(tmp_gp, sizeof tmp_gp, "%.900s.gp.tmp-%ld", path, (long)getpid());
    struct str s = STR_INIT, said = STR_INIT, out = STR_INIT;
    if (!strcmp(ext, "png"))
        str_printf(&s, "set terminal pngcairo size %.0f,%.0f font \"DejaVu Sans,8\" fontscale 2.4 linewidth 2.4 pointscale 2.4\n", w * 220, h * 220);
    else if (!strcmp(ext, "pdf"))
        str_printf(&s, "set terminal pdfcairo size %.2fin,%.2fin font \"DejaVu Sans,8\" fontscale 1 linewidth 1\n", w, h);
    else
        str_printf(&s, "set terminal svg size %.0f,%.0f font \"DejaVu Sans,8\" linewidth 1 background \"white\"\n", w * 96, h * 96);
    str_printf(&s, "set output \"%s\"\nload \"%s\"\nDATA = \"%s/%s.tsv\"\n%sunset output\n", tmp_out, style, dir, f->name, str_c(body));
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

int figure_save(const struct figure *f, const char *dir, const char *style_path, bool *drawn, struct err *e)
{
    static const char *const exts[] = {"svg", "pdf", "png"};
    char path[1024], name[256];
    *drawn = false;
    TRY(check_data(f, e));
    TRY(mkdir_p(dir, e));
    snprintf(name, sizeof name, "%s.tsv", f->name);
    TRY(write_tsv(f, path_join(path, dir, name), e));
    struct str body = STR_INIT, gp = STR_INIT;
    script(f, &body);
    str_printf(&gp, "# gnuplot -d %s.gp, after 'set terminal' and 'set output'\nload \"style.gp\"\nDATA = \"%s.tsv\"\n%s", f->name, f->name, str_c(&body));
    snprintf(name, sizeof name, "%s.gp", f->name);
    int rc = file_write(path_join(path, dir, name), str_c(&gp), gp.len, e);
    bool have = true;
    for (size_t i = 0; rc == 0 && have && i < ARRAY_LEN(exts); i++)
        rc = draw(f, dir, style_path, &body, exts[i], &have, e);
    if (rc == 0 && !have)
        log_warn("gnuplot is not installed: the data and script of figure '%s' are written, the picture is not", f->name);
    *drawn = rc == 0 && have;
    str_free(&body);
    str_free(&gp);
    return rc;
}
