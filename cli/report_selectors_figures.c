/* Figures of the selector table: budget against RULER, and what a selection cost against RULER. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report_kinds.h"
#include "cli/selectors_data.h"
#include "reports/plot.h"

enum { MAX_SERIES = 48, MAX_POINTS = 64, MAX_BUDGETS = 32 };

/* Colours and marks of style.gp: three rows of eight. */
static int style_of(size_t k)
{
    static const int row[] = {1, 41, 51};
    return row[k / 8 % ARRAY_LEN(row)] + (int)(k % 8);
}

struct drawing {
    const struct sel_data *d;
    struct series s[MAX_SERIES];
    double *v[MAX_SERIES][3]; /* x, y, se of each */
    size_t n, left_out;
    double xlo, xhi;
};

static struct drawing *drawing_new(const struct sel_data *d, struct err *e)
{
    struct drawing *w = arena_alloc(d->a, sizeof *w);
    if (!w) {
        err_nomem(e, sizeof *w, "a figure");
        return NULL;
    }
    *w = (struct drawing){.d = d, .xlo = INFINITY};
    return w;
}

/* A point of the series with this label, which is made when there is none. */
static int add_point(struct drawing *w, const char *label, bool line, double x, double y, double se, struct err *e)
{
    size_t k = 0;
    while (k < w->n && strcmp(w->s[k].label, label))
        k++;
    if (k == w->n && w->n < MAX_SERIES) {
        for (int i = 0; i < 3; i++)
            w->v[k][i] = arena_array(w->d->a, MAX_POINTS, sizeof(double));
        TRY(arena_ok(w->d->a, "a figure", e));
        w->s[k] = (struct series){.label = label, .x = w->v[k][0], .y = w->v[k][1], .se = w->v[k][2], .style = style_of(k), .line = line};
        w->n++;
    }
    if (k == w->n || w->s[k].n == MAX_POINTS) {
        w->left_out++;
        return 0;
    }
    size_t at = w->s[k].n++;
    w->v[k][0][at] = x;
    w->v[k][1][at] = y;
    w->v[k][2][at] = se;
    w->xlo = fmin(w->xlo, x);
    w->xhi = fmax(w->xhi, x);
    return 0;
}

static int save(struct drawing *w, struct figure *f, const char *dir, struct str *text, struct err *e)
{
    char style[1024];
    bool drawn;
    f->s = w->s;
    f->n = w->n;
    f->wide = true;
    if (w->left_out)
        str_printf(text, "figure '%s': %zu points beyond %d series of %d are left out\n", f->name, w->left_out, MAX_SERIES, MAX_POINTS);
    TRY(arena_ok(w->d->a, "a figure", e));
    TRY(cli_bundled(style, "reports/style.gp", e));
    TRY(figure_save(f, dir, style, &drawn, e));
    str_printf(text, drawn ? "figure: %s/%s.{svg,pdf,png}\n" : "figure: only its data, %s/%s.tsv (install gnuplot for the picture)\n", dir,
               f->name);
    return 0;
}

/* Rows of the table, and of those beside it the ones whose place is their realised budget: searches that fill no column, and their
 * controls. */
static bool shown(const struct sel_data *d, const struct sel_entry *x)
{
    const char *variant = node_result(d->p, x->sel, "variant");
    bool plain = x->unfilled && !(variant && *variant);
    return !x->failed && x->asked > 0 && !isnan(x->mean) && (!x->beside || plain || x->matched);
}

/*
 * Many series are no figure but a knot: then a panel each, with the reference in grey beside it. Axes are shared, so texts stand at the
 * outer ones alone.
 */
static int budget_panels(struct drawing *w, const struct report *rep, const double *tics, size_t nt, const char *dir, struct str *text,
                         struct err *e)
{
    enum { COLS = 6 };
    struct arena *a = w->d->a;
    size_t rows = CEIL_DIV(w->n, (size_t)COLS), total = rows * COLS, ref = w->n;
    struct panel *p = arena_array(a, total, sizeof *p);
    struct tic *xt = arena_array(a, 2 * nt, sizeof *xt);
    static const struct tic yt[] = {{0, "0"}, {50, "50"}, {100, "100"}}, none[] = {{0, ""}, {50, ""}, {100, ""}};
    TRY(arena_ok(a, "a figure", e));
    for (size_t i = 0; i < nt; i++) {
        xt[i] = (struct tic){tics[i], arena_printf(a, "%g", tics[i])};
        xt[nt + i] = (struct tic){tics[i], ""};
    }
    for (size_t i = 0; i < w->d->n; i++)
        for (size_t k = 0; w->d->e[i].is_reference && k < w->n; k++)
            ref = strcmp(w->s[k].label, w->d->e[i].label) ? ref : k;
    for (size_t k = 0; k < total; k++) {
        struct series *s = arena_array(a, 2, sizeof *s);
        bool own = k < w->n, low = k + COLS >= total || k + COLS >= w->n;
        TRY(arena_ok(a, "a figure", e));
        size_t n = 0;
        if (ref < w->n && k != ref) {
            s[n] = w->s[ref];
            s[n].se = NULL;
            s[n++].style = 8;
        }
        if (own) {
            s[n] = w->s[k];
            s[n++].style = 1;
        }
        p[k] = (struct panel){.title = own ? w->s[k].label : NULL,
                              .xlabel = low ? "budget" : NULL,
                              .ylabel = k % COLS ? NULL : "RULER (%)",
                              .xlo = 0,
                              .xhi = w->xhi + 0.5,
                              .ylo = 0,
                              .yhi = 105,
                              .xtic = low ? xt : xt + nt,
                              .n_xtic = nt,
                              .ytic = k % COLS ? none : yt,
                              .n_ytic = ARRAY_LEN(yt),
                              .s = s,
                              .n_s = n};
    }
    struct picture pic = {
        .name = arena_printf(a, "%s-budget-ruler", rep->name),
        .note =
            arena_printf(a, "%s scale; budget: the paper's proxy, realised; error bars: one standard error; teacher %.1f, all linear %.1f",
                         w->d->p->m->scale, w->d->ceiling, w->d->bottom),
        .p = p,
        .rows = rows,
        .cols = COLS,
        .width = 6.75,
        .height = 0.95 + 0.95 * (double)rows,
        .left = 0.5,
        .gap_x = 0.14,
        .gap_y = 0.26,
        .key = ref < w->n ? arena_printf(a, "blue: the selector; grey: %s", w->s[ref].label) : NULL};
    TRY(arena_ok(a, "a figure", e));
    return rep_picture(&pic, dir, text, e);
}

int selectors_budget_figure(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e)
{
    double tics[MAX_BUDGETS];
    size_t nt = 0;
    struct drawing *w = drawing_new(d, e);
    const struct ynode *budgets = y_get(rep->node, "budgets");
    TRY(w ? 0 : -1);
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        if (shown(d, x))
            TRY(add_point(w, x->label, strcmp(x->id, "random") != 0, x->realised, x->mean, x->se, e));
    }
    if (!w->n) {
        str_printf(text, "no figure of budgets: no row has a score yet\n");
        return 0;
    }
    for (size_t i = 0; budgets && budgets->kind == Y_SEQ && i < budgets->n && nt < ARRAY_LEN(tics); i++)
        nt += budgets->item[i]->kind == Y_SCALAR && parse_f64(budgets->item[i]->s, &tics[nt]);
    if (w->n > 8)
        return budget_panels(w, rep, tics, nt, dir, text, e);
    struct hline lines[2] = {{d->ceiling, "teacher"}, {d->bottom, "all linear"}};
    struct figure f = {.name = arena_printf(d->a, "%s-budget-ruler", rep->name),
                       .xlabel = "budget (paper's proxy), realised",
                       .ylabel = "RULER (%)",
                       .note = arena_printf(d->a, "%s scale; error bars: one standard error", d->p->m->scale),
                       .xhi = w->xhi + 1,
                       .yhi = 105,
                       .xtics = tics,
                       .n_xtics = nt,
                       .hlines = lines,
                       .n_hlines = finite_f64(d->bottom) && finite_f64(d->ceiling) ? 2 : 0};
    return save(w, &f, dir, text, e);
}

/* Names of the entries at this budget that cost nothing. */
static void free_of_cost(const struct sel_data *d, double budget, struct str *out)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].asked == budget && shown(d, &d->e[i]) && !(d->e[i].flops > 0))
            str_printf(out, "%s%s", out->len ? "; " : "", d->e[i].name);
}

static int cost_figure(const struct sel_data *d, const struct report *rep, double budget, const char *dir, struct str *text, struct err *e)
{
    struct drawing *w = drawing_new(d, e);
    struct str none = STR_INIT;
    const struct sel_entry *ref = NULL;
    TRY(w ? 0 : -1);
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        if (x->asked != budget || !shown(d, x))
            continue;
        ref = x->is_reference && !x->beside ? x : ref;
        if (x->flops > 0)
            TRY(add_point(w, x->name, false, x->flops, x->mean, x->se, e));
    }
    free_of_cost(d, budget, &none);
    if (!w->n) {
        str_printf(text, "no cost figure at budget %g: no row with a score has a counted cost%s%s\n", budget,
                   none.len ? "; without cost: " : "", str_c(&none));
        str_free(&none);
        return 0;
    }
    bool line = ref && !(ref->flops > 0);
    struct hline h = {line ? ref->mean : 0, line ? arena_printf(d->a, "%s (no cost)", ref->name) : ""};
    struct figure f = {.name = arena_printf(d->a, "%s-cost-%g", rep->name, budget),
                       .xlabel = "selection, counted FLOPs",
                       .ylabel = "RULER (%)",
                       .note = arena_printf(d->a, "%s scale, budget %g; all runs of a selection, forward and backward, without Stage 1%s%s",
                                            d->p->m->scale, budget, none.len ? "; no cost, not on the axis: " : "", str_c(&none)),
                       .xlo = w->xlo / 3,
                       .xhi = w->xhi * 3,
                       .yhi = 105,
                       .xlog = true,
                       .hlines = &h,
                       .n_hlines = line};
    if (none.len)
        str_printf(text, "cost figure at budget %g: without cost, not on its axis: %s\n", budget, str_c(&none));
    str_free(&none);
    return save(w, &f, dir, text, e);
}

int selectors_cost_figures(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e)
{
    double budget[MAX_BUDGETS];
    size_t n = sel_budgets(d, budget, MAX_BUDGETS);
    for (size_t b = 0; b < n; b++)
        TRY(cost_figure(d, rep, budget[b], dir, text, e));
    return 0;
}
