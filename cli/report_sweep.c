/* Report kind "sweep": what lambda buys (DASH Figure 2). `from` names ruler stages whose hybrids were chosen by single searches; every
 * point is kept, also where the budget is not monotone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"

struct point {
    const struct node *ruler, *search;
    bool window;
    double lambda, budget, soft, mean, se;
    const char *missing;
};

static int by_lambda(const void *x, const void *y)
{
    const struct point *a = x, *b = y;
    if (a->window != b->window)
        return a->window ? 1 : -1;
    return a->lambda > b->lambda ? -1 : a->lambda < b->lambda; /* budgets rise from left to right, mostly */
}

static size_t gather(struct plan *p, const struct report *rep, struct point *out, size_t cap)
{
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n)), kept = 0;
    for (size_t i = 0; i < k && kept < cap; i++) {
        const struct node *s = node_of_kind(n[i], "search");
        if (strcmp(n[i]->kind->name, "ruler") || !s)
            continue;
        out[kept++] = (struct point){.ruler = n[i],
                                     .search = s,
                                     .window = strstr(node_str(s, "ops"), "window") != NULL,
                                     .lambda = node_f64(s, "lambda"),
                                     .budget = rep_number(p, s, "budget"),
                                     .soft = rep_number(p, s, "soft_budget"),
                                     .mean = rep_number(p, n[i], "mean"),
                                     .se = rep_number(p, n[i], "se"),
                                     .missing = rep_missing(n[i])};
    }
    qsort(out, kept, sizeof *out, by_lambda);
    return kept;
}

static const char *space_name(bool window)
{
    return window ? "Full/Window/Linear" : "Full/Linear";
}

static int table_of(struct plan *p, const struct report *rep, struct arena *a, const struct point *q, size_t n, const char *dir,
                    struct str *text, struct err *e)
{
    static const char *const names[] = {"lambda", "realised budget", "soft budget", "RULER", "set"};
    struct table t;
    table_init(&t, a, arena_printf(a, "%s-points", rep->name), arena_printf(a, "%s (%s scale)", rep->title, p->m->scale));
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        table_col(&t, names[i], NULL, i == 4, false);
    for (size_t i = 0; i < n; i++) {
        size_t r = table_row(&t, i == 0 || q[i].window != q[i - 1].window ? space_name(q[i].window) : NULL);
        cell_num(table_cell(&t, r, 0), q[i].lambda, -1, 4);
        cell_num(table_cell(&t, r, 1), q[i].budget, -1, 3);
        cell_num(table_cell(&t, r, 2), q[i].soft, -1, 2);
        cell_num(table_cell(&t, r, 3), q[i].mean, q[i].se, 1);
        cell_text(table_cell(&t, r, 4), rep_text(p, q[i].search, "mask"));
        if (q[i].missing) {
            cell_text(table_cell(&t, r, 3), rep_state(q[i].ruler));
            table_cell(&t, r, 3)->note = table_note(&t, "%.300s", q[i].missing);
        }
    }
    return rep_emit(p, rep, &t, dir, text, e);
}

/* One panel from the complete points of a space; false when there are fewer than two or no budget above 0. */
static bool panel_of(const struct point *q, size_t n, bool window, struct arena *a, struct panel *out)
{
    struct rect *r = arena_array(a, n + 1, sizeof *r);
    struct tic *xt = arena_array(a, n + 1, sizeof *xt);
    struct series *s = arena_alloc(a, sizeof *s);
    double *x = arena_array(a, 3 * n + 1, sizeof *x), top = 0, best = 0;
    size_t k = 0;
    if (!r || !xt || !s || !x)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (q[i].window != window || q[i].missing)
            continue;
        r[k] = (struct rect){(double)k - 0.38, (double)k + 0.38, 0, q[i].budget, window};
        xt[k] = (struct tic){(double)k, arena_printf(a, "%.4g", q[i].lambda)};
        x[k] = (double)k;
        x[n + k] = q[i].mean;
        x[2 * n + k] = q[i].se;
        top = fmax(top, q[i].budget);
        best = fmax(best, q[i].mean + q[i].se);
        k++;
    }
    *s = (struct series){.label = "RULER (right axis)", .x = x, .y = x + n, .se = x + 2 * n, .n = k};
    *out = (struct panel){.title = space_name(window),
                          .xlabel = "lambda",
                          .ylabel = "realised budget",
                          .y2label = "RULER (%)",
                          .xlo = -0.6,
                          .xhi = (double)k - 0.4,
                          .ylo = 0,
                          .yhi = ceil(top * 1.1 + 0.01),
                          .y2lo = 0,
                          .y2hi = best > 50 ? 105 : ceil((best * 1.3 + 1) / 5) * 5,
                          .r = r,
                          .n = k,
                          .xtic = xt,
                          .n_xtic = k,
                          .turn = true,
                          .line = s};
    return k >= 2 && top > 0;
}

static int figure_of(struct plan *p, const struct report *rep, struct arena *a, const struct point *q, size_t n, const char *dir,
                     struct str *text, struct err *e)
{
    static const char *const parts[] = {"budget, Full/Linear", "budget, Full/Window/Linear"};
    struct panel pn[2];
    size_t k = 0;
    for (int window = 0; window < 2; window++)
        if (panel_of(q, n, window, a, &pn[k]))
            k++;
    TRY(arena_ok(a, "a figure", e));
    if (!k)
        return 0;
    struct picture pic = {.name = rep->name,
                          .note = arena_printf(a, "%s scale; error bars: one standard error of the prompts", p->m->scale),
                          .parts = parts,
                          .n_parts = 2,
                          .p = pn,
                          .rows = 1,
                          .cols = k,
                          .width = k > 1 ? 6.75 : 4.2,
                          .height = 2.6,
                          .left = 0.6};
    return rep_picture(&pic, dir, text, e);
}

int report_sweep(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct arena a;
    arena_init(&a, 0);
    struct point *q = arena_array(&a, REP_MAX_NODES, sizeof *q);
    int rc = arena_ok(&a, "a report", e);
    size_t n = rc == 0 ? gather(p, rep, q, REP_MAX_NODES) : 0;
    for (int window = 0; window < 2; window++) {
        int steps = 0, down = 0, points = 0;
        const struct point *last = NULL;
        for (size_t i = 0; i < n; i++) {
            if (q[i].window != window || q[i].missing)
                continue;
            points++;
            steps += last != NULL;
            down += last && q[i].budget < last->budget;
            last = &q[i];
        }
        str_printf(&res->verdict, "%s%s: %d lambdas, the budget falls with a smaller lambda in %d of %d steps", window ? "; " : "",
                   space_name(window), points, down, steps);
    }
    for (size_t i = 0; i < n; i++)
        res->missing += q[i].missing != NULL;
    if (res->missing)
        str_printf(&res->verdict, "; %d points not made", res->missing);
    res->cells = (int)n;
    if (rc == 0)
        rc = table_of(p, rep, &a, q, n, out_dir, text, e) || figure_of(p, rep, &a, q, n, out_dir, text, e) ? -1 : 0;
    arena_free(&a);
    return rc;
}
