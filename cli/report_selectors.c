/* Tables and figure of selectors at matched budgets. */
#include "cli/report_selectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/selectors_data.h"
#include "core/fs.h"
#include "reports/plot.h"

void selectors_line(struct plan *p, const struct node *n, struct str *out)
{
    if (strcmp(n->kind->name, "ruler"))
        return;
    if (n->error) {
        str_printf(out, "%-28s %-28s failed\n", n->label, n->point);
        return;
    }
    if (n->state != RUN_COMPLETE)
        return;
    str_printf(out, "%-28s %-28s RULER %5.1f ±%.1f  answer NLL %.3f\n", n->label, n->point, sel_number(p, n, "mean"),
               sel_number(p, n, "se"), sel_number(p, n, "nll"));
}

/* ---- published values ---- */

/* The cell of `row` in the column that the report's `published` map names for this budget; NAN without one. */
static double published_value(const char *row, double asked, const struct ynode *map)
{
    char path[1024];
    const char *col = NULL;
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    double v = NAN, budget;
    for (size_t i = 0; map && map->kind == Y_MAP && i < map->n; i++)
        if (map->item[i]->kind == Y_SCALAR && parse_f64(map->key[i]->s, &budget) && (budget == asked || asked < 0))
            col = map->item[i]->s;
    if (!col || cli_bundled(path, "reports/published/dash_table1.tsv", &ignored) != 0 || file_read(path, 1 << 16, &s, &ignored) != 0) {
        str_free(&s);
        return NAN;
    }
    int at = -1;
    for (char *line = s.p, *next; line && *line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (*line == '#')
            continue;
        bool mine = !strncmp(line, row, strlen(row)) && line[strlen(row)] == '\t', head = at < 0;
        int c = 0;
        for (char *f = line; f; c++) {
            char *tab = strchr(f, '\t');
            if (tab)
                *tab = 0;
            if (head && !strcmp(f, col))
                at = c;
            else if (!head && mine && c == at && !parse_f64(f, &v))
                v = NAN;
            f = tab ? tab + 1 : NULL;
        }
        at = at < 0 ? 0 : at; /* no such column: nothing will match */
    }
    str_free(&s);
    return v;
}

/* ---- the main table ---- */

enum { C_NAME, C_BUDGET, C_RULER, C_SEEDS, C_NLL, C_KL, C_KLA, C_DIFF, C_HOLM, C_FLOPS, C_CACHE, C_TOKENS, C_SECONDS, C_PUB };

static void columns(const struct sel_data *d, struct table *t)
{
    table_col(t, "selector", NULL, true, false);
    table_col(t, "budget", NULL, false, false);
    table_col(t, "RULER", NULL, false, false);
    table_col(t, "seeds", NULL, false, false);
    table_col(t, "answer NLL", NULL, false, false);
    table_col(t, "all", "held-out KL", false, false);
    table_col(t, "answers", "held-out KL", false, false);
    table_col(t, arena_printf(t->a, "d to %s [95 %%]", d->reference), NULL, false, false);
    table_col(t, "p (Holm)", NULL, false, false);
    table_col(t, "MFLOP/token", "inference", false, false);
    table_col(t, "cache KiB", "inference", false, false);
    table_col(t, "tokens", "selection", false, false);
    table_col(t, "s", "selection", false, true);
    table_col(t, "published", NULL, false, false);
}

static void diff_cells(const struct sel_data *d, struct table *t, size_t row, const struct sel_entry *x)
{
    struct cell *c = table_cell(t, row, C_DIFF);
    if (x->same_set) {
        cell_text(c, "same set");
    } else if (x->diff.seeds) {
        cell_text(c, arena_printf(t->a, "%+.1f [%+.1f, %+.1f]", x->diff.d, x->diff.d - x->diff.half, x->diff.d + x->diff.half));
        if (x->diff.seeds == 1)
            c->note = table_note(t,
                                 "prompt-only: one training seed, so the interval holds the prompts' error alone and says nothing about "
                                 "selectors");
        cell_num(table_cell(t, row, C_HOLM), x->diff.p_holm, -1, 3);
    } else if (!x->is_reference && x->asked > 0) {
        c->note = table_note(t, "no run of '%s' at this budget with the same training to pair with", d->reference);
    }
}

static void fill_row(const struct sel_data *d, struct table *t, size_t row, const struct sel_entry *x, const struct ynode *published)
{
    cell_text(table_cell(t, row, C_NAME), x->name);
    if (x->failed) {
        const char *word = strstr(x->failed, "no search run") ? "not reached" : !strcmp(x->failed, "not run") ? "-" : "failed";
        cell_text(table_cell(t, row, C_RULER), word);
        table_cell(t, row, C_RULER)->note = table_note(t, "%.300s", x->failed);
        return;
    }
    cell_num(table_cell(t, row, C_BUDGET), x->realised, -1, 3);
    cell_num(table_cell(t, row, C_RULER), x->mean, x->se, 1);
    cell_text(table_cell(t, row, C_SEEDS), arena_printf(t->a, "%zu seed%s", x->n, x->n == 1 ? "" : "s"));
    cell_num(table_cell(t, row, C_NLL), x->nll, -1, 3);
    cell_num(table_cell(t, row, C_KL), x->kl, -1, 4);
    cell_num(table_cell(t, row, C_KLA), x->kl_answers, -1, 3);
    diff_cells(d, t, row, x);
    cell_num(table_cell(t, row, C_FLOPS), x->flops_token / 1e6, -1, 3);
    cell_num(table_cell(t, row, C_CACHE), x->cache_bytes / 1024, -1, 0);
    cell_num(table_cell(t, row, C_TOKENS), x->tokens, -1, 0);
    cell_num(table_cell(t, row, C_SECONDS), x->seconds, -1, 0);
    if (!x->beside)
        cell_num(table_cell(t, row, C_PUB), published_value(x->id, x->asked, published), -1, 2);
}

static void fill_main(const struct sel_data *d, struct table *t, const struct ynode *budgets, const struct ynode *published)
{
    columns(d, t);
    size_t r = table_row(t, "references");
    cell_text(table_cell(t, r, C_NAME), "Teacher");
    if (finite_f64(d->ceiling)) {
        cell_num(table_cell(t, r, C_RULER), d->ceiling, sel_number(d->p, d->teacher, "se"), 1);
        cell_num(table_cell(t, r, C_NLL), sel_number(d->p, d->teacher, "nll"), -1, 3);
        cell_num(table_cell(t, r, C_FLOPS), sel_number(d->p, d->teacher, "prefill_flops_token") / 1e6, -1, 3);
        cell_num(table_cell(t, r, C_CACHE), sel_number(d->p, d->teacher, "cache_bytes") / 1024, -1, 0);
    }
    cell_num(table_cell(t, r, C_PUB), published_value("teacher", -1, published), -1, 2);
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].asked == 0)
            fill_row(d, t, table_row(t, NULL), &d->e[i], published);
    for (int beside = 0; beside < 2; beside++)
        for (size_t b = 0; budgets && budgets->kind == Y_SEQ && b < budgets->n; b++) {
            double k = 0;
            if (budgets->item[b]->kind != Y_SCALAR || !parse_f64(budgets->item[b]->s, &k))
                continue;
            const char *block = arena_printf(t->a, "budget %g%s", k, beside ? ", beside the table" : "");
            for (size_t i = 0; i < d->n; i++)
                if (d->e[i].asked == k && d->e[i].beside == (beside == 1)) {
                    fill_row(d, t, table_row(t, block), &d->e[i], published);
                    block = NULL;
                }
        }
    if (published)
        t->cols[C_PUB].name = "published";
    t->cells[C_PUB].note = published
        ? table_note(t, "published: DASH Table 1, Qwen2.5-3B-Instruct at 4096 tokens, 5, 9, 18 of 36 layers (its nearest); another model "
                     "and scale, for the order of rows only") : 0;
    table_cell(t, 0, C_FLOPS)->note =
        table_note(t, "counted, at %.0f tokens of context, the head not included; cache: keys, values and states of one sequence of that "
                   "length", sel_number(d->p, d->teacher, "context"));
}

/* What the runs really used, for the caption. */
static const char *settings(const struct sel_data *d)
{
    struct str s = STR_INIT;
    const struct node *align = NULL, *search = NULL, *distill = NULL;
    for (size_t i = 0; i < d->n; i++) {
        const struct node *n = d->e[i].run[0].node;
        align = align ? align : node_of_kind(n, "align");
        search = search ? search : node_of_kind(n, "search");
        distill = distill ? distill : node_of_kind(n, "distill");
    }
    if (align)
        str_printf(&s, " Stage 1: %s tokens, %s, learning rate %s.", node_str(align, "tokens"), node_str(align, "loss"),
                   node_str(align, "lr_mixer"));
    if (search)
        str_printf(&s, " Search: %s tokens a run, learning rate %s; lambdas in the table of searches.", node_str(search, "tokens"),
                   node_str(search, "lr"));
    if (distill)
        str_printf(&s, " Stage 3: %s tokens, learning rates %s and %s (mixers), window %s.", node_str(distill, "tokens"),
                   node_str(distill, "lr"), node_str(distill, "lr_mixer"), node_str(distill, "window"));
    double share = align ? sel_number(d->p, align, "pack.answer_share") : NAN;
    if (finite_f64(share))
        str_printf(&s, " Answer tokens are %.1f %% of the training tokens.", 100 * share);
    const char *out = arena_strdup(d->a, str_c(&s));
    str_free(&s);
    return out ? out : "";
}

/* ---- figure ---- */

enum { FIG_SERIES = 16, FIG_POINTS = 32 };
struct points {
    double x[FIG_SERIES][FIG_POINTS], y[FIG_SERIES][FIG_POINTS], se[FIG_SERIES][FIG_POINTS];
};

static int figure(const struct sel_data *d, const struct report *rep, const char *out_dir, const char *note, const struct ynode *budgets,
                  bool *drawn, struct err *e)
{
    struct series s[FIG_SERIES] = {{0}};
    struct points *pt = calloc(1, sizeof *pt);
    double top = 0, tics[FIG_SERIES];
    size_t n = 0, nt = 0;
    if (!pt)
        return err_nomem(e, sizeof *pt, "a figure");
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        const char *variant = node_result(d->p, x->sel, "variant");
        // the axis is the realised budget: a set that fills no column has its place
        bool shown = !x->beside || (x->unfilled && !(variant && *variant));
        if (x->failed || x->asked == 0 || !shown || isnan(x->mean))
            continue;
        size_t k = 0;
        while (k < n && strcmp(s[k].label, x->label))
            k++;
        if (k == n && n < FIG_SERIES) {
            s[n] = (struct series){.label = x->label, .x = pt->x[n], .y = pt->y[n], .se = pt->se[n], .style = (int)n % 8 + 1,
                                   .line = strcmp(x->id, "random") != 0};
            n++;
        }
        if (k == n || s[k].n == FIG_POINTS)
            continue;
        pt->x[k][s[k].n] = x->realised;
        pt->y[k][s[k].n] = x->mean;
        pt->se[k][s[k].n++] = x->se;
        top = fmax(top, x->realised);
    }
    for (size_t i = 0; budgets && budgets->kind == Y_SEQ && i < budgets->n && nt < ARRAY_LEN(tics); i++)
        nt += budgets->item[i]->kind == Y_SCALAR && parse_f64(budgets->item[i]->s, &tics[nt]);
    struct hline lines[2] = {{d->ceiling, "teacher"}, {d->bottom, "all linear"}};
    char name[128], style[1024];
    snprintf(name, sizeof name, "%.100s-budget-ruler", rep->name);
    struct figure f = {.name = name, .xlabel = "realised budget (full-attention layers, the paper's proxy)", .ylabel = "RULER (%)",
                       .note = note, .xlo = 0, .xhi = top + 1, .ylo = 0, .yhi = 105, .xtics = tics, .n_xtics = nt, .s = s, .n = n,
                       .wide = true, .hlines = lines, .n_hlines = finite_f64(d->bottom) && finite_f64(d->ceiling) ? 2 : 0};
    int rc = cli_bundled(style, "reports/style.gp", e) || figure_save(&f, out_dir, style, drawn, e) ? -1 : 0;
    free(pt);
    return rc;
}

/* ---- verdict ---- */

/* DASH against the best of the other selectors at its budget, all of them together by max-t. */
static void against_best(const struct sel_data *d, const struct sel_entry *x, struct str *v)
{
    const struct sel_entry *base[64];
    size_t n = sel_baselines(d, x, base, ARRAY_LEN(base)), best = 0;
    double *draws = n ? calloc(n * PAIRED_DRAWS, sizeof *draws) : NULL;
    const double *each[64];
    struct paired_diff diff[64];
    for (size_t i = 0; draws && i < n; i++) {
        struct paired_row a = {0}, b = {0};
        for (size_t k = 0; k < x->n; k++)
            a.score[a.n_seeds] = x->run[k].flat, a.seed[a.n_seeds++] = node_i64(x->run[k].distill, "seed");
        for (size_t k = 0; k < base[i]->n; k++)
            b.score[b.n_seeds] = base[i]->run[k].flat, b.seed[b.n_seeds++] = node_i64(base[i]->run[k].distill, "seed");
        each[i] = draws + i * PAIRED_DRAWS;
        paired_compare(&d->paired, &a, &b, &diff[i], draws + i * PAIRED_DRAWS);
        best = base[i]->mean > base[best]->mean ? i : best;
    }
    if (draws && n > 1) {
        double c = paired_max_t(each, diff, n), half = c * diff[best].se;
        bool apart = fabs(diff[best].d) > half;
        str_printf(v, "; %s at %g against the best of %zu others (%s): %+.1f, %s (+-%.1f, max-t)", x->label, x->asked, n, base[best]->name,
                   diff[best].d, !apart ? "not separated" : diff[best].d > 0 ? "better" : "worse", half);
    }
    free(draws);
}

static const char *lower(double a, double b)
{
    return a < b ? "lower" : a > b ? "higher" : "the same";
}

static void verdict(const struct sel_data *d, struct str *v, int *missing)
{
    int done = 0, fell = 0, failed = 0;
    for (size_t i = 0; i < d->n; i++) {
        failed += d->e[i].failed != NULL;
        done += !d->e[i].failed;
        fell += !d->e[i].failed && d->e[i].kl_fell;
    }
    *missing = failed;
    str_printf(v, "%d of %zu cells made%s; Stage 3 lowered held-out KL, on all and on answer tokens, in %d of %d", done, d->n,
               failed ? " (see notes for the others)" : "", fell, done);
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        const struct sel_entry *r = NULL;
        for (size_t k = 0; k < d->n; k++)
            if (d->e[k].is_reference && d->e[k].asked == x->asked && !d->e[k].beside)
                r = &d->e[k];
        const char *variant = node_result(d->p, x->sel, "variant");
        if (!r || !x->diff.seeds || (x->beside && !(x->unfilled && !(variant && *variant))) || !x->trained_search)
            continue;
        bool many = x->diff.seeds > 1, apart = fabs(x->diff.d) > x->diff.half;
        if (x->unfilled)
            str_printf(v, "; %s: no run filled %g, its closest set has %g", x->label, x->asked, x->realised);
        str_printf(v, "; %s at %g: KL %s on all tokens and %s on answers than %s, RULER %+.1f, ", x->label,
                   x->unfilled ? x->realised : x->asked, lower(x->kl, r->kl), lower(x->kl_answers, r->kl_answers), r->label, x->diff.d);
        str_printf(v, many ? apart ? x->diff.d > 0 ? "better (+-%.1f)" : "worse (+-%.1f)" : "not separated (+-%.1f)"
                   : "one seed, no claim (+-%.1f by prompts alone)", x->diff.half);
        if (many)
            against_best(d, x, v);
    }
}

int report_selectors(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                     struct err *e)
{
    struct sel_data *d = calloc(1, sizeof *d);
    struct arena a;
    if (!d)
        return err_nomem(e, sizeof *d, "a report");
    arena_init(&a, 0);
    int rc = sel_gather(d, p, &a, rep->node, e);
    const struct ynode *budgets = y_get(rep->node, "budgets"), *published = y_get(rep->node, "published");
    bool any = false, drawn = false;
    for (size_t i = 0; i < d->n; i++)
        any = any || (!d->e[i].failed && d->e[i].asked > 0);
    if (rc == 0) {
        struct table t;
        table_init(&t, &a, rep->name, arena_printf(&a, "%s (%s scale)", rep->title, p->m->scale));
        t.caption = arena_printf(&a, "%s scale. %s%s", p->m->scale, p->m->caption, settings(d));
        fill_main(d, &t, budgets, published);
        table_text(&t, text);
        rc = table_save(&t, out_dir, e);
    }
    if (rc == 0)
        rc = selectors_detail(d, rep, out_dir, text, e) || selectors_searches(d, rep, out_dir, text, e) ? -1 : 0;
    if (rc == 0 && any)
        rc = figure(d, rep, out_dir, arena_printf(&a, "%s scale; error bars: one standard error", p->m->scale), budgets, &drawn, e);
    res->cells = (int)d->n;
    verdict(d, &res->verdict, &res->missing);
    if (rc == 0 && any)
        str_printf(text, drawn ? "figure: %s/%s-budget-ruler.{svg,pdf,png}\n"
                   : "figure: only its data, %s/%s-budget-ruler.tsv (install gnuplot for the picture)\n", out_dir, rep->name);
    sel_free(d);
    arena_free(&a);
    free(d);
    return rc;
}
