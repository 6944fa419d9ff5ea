/*
 * Report kind "controlled": one row a budget, one column a selector, all of them trained alike (DASH Table 8). The published rows stand in
 * columns of their own, headed by their model's name.
 */
#include <math.h>
#include <string.h>

#include "cli/report_kinds.h"

enum { MAX_BUDGETS = 16, MAX_COLUMNS = 16 };

struct grid {
    const struct node *run[MAX_BUDGETS][MAX_COLUMNS]; /* ruler runs */
    double budget[MAX_BUDGETS];
    const char *label[MAX_COLUMNS], *id[MAX_COLUMNS]; /* id: how published values call it */
    size_t rows, cols;
};

static const struct node *chosen_by(const struct node *n)
{
    const struct node *s = node_of_kind(n, "search");
    return s ? s : node_of_kind(n, "select");
}

static void gather(struct plan *p, const struct report *rep, struct grid *g)
{
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n));
    *g = (struct grid){0};
    for (size_t i = 0; i < k; i++) {
        const struct node *by = chosen_by(n[i]);
        const char *asked = by ? node_setting(by, "budget") : NULL;
        double b;
        size_t r = 0, c = 0;
        if (strcmp(n[i]->kind->name, "ruler") != 0 || !asked || !parse_f64(asked, &b))
            continue;
        while (r < g->rows && g->budget[r] != b)
            r++;
        while (c < g->cols && strcmp(g->label[c], n[i]->label) != 0)
            c++;
        if (r == MAX_BUDGETS || c == MAX_COLUMNS)
            continue;
        if (c == g->cols) {
            g->label[c] = n[i]->label;
            g->id[c] = rep_selector(by);
            g->cols++;
        }
        if (r == g->rows)
            g->budget[g->rows++] = b;
        if (!g->run[r][c])
            g->run[r][c] = n[i];
    }
    for (size_t i = 1; i < g->rows; i++) /* by budget; rows are few */
        for (size_t j = i; j > 0 && g->budget[j] < g->budget[j - 1]; j--) {
            const struct node *tmp[MAX_COLUMNS];
            double b = g->budget[j];
            memcpy(tmp, g->run[j], sizeof tmp);
            memcpy(g->run[j], g->run[j - 1], sizeof tmp);
            memcpy(g->run[j - 1], tmp, sizeof tmp);
            g->budget[j] = g->budget[j - 1];
            g->budget[j - 1] = b;
        }
}

static void own_cell(struct plan *p, struct table *t, struct cell *c, const struct node *n, struct report_result *res)
{
    const char *why = n ? rep_missing(n) : NULL;
    if (!n)
        return;
    res->cells++;
    if (why) {
        cell_text(c, rep_state(n));
        c->note = table_note(t, "%.300s", why);
        res->missing++;
        return;
    }
    const struct node *by = chosen_by(n);
    cell_num(c, rep_number(p, n, "mean"), rep_number(p, n, "se"), 1);
    if (!strcmp(rep_text(p, by, "filled"), "false"))
        c->note = table_note(t, "no run of this search filled the column; its closest set at or under it");
}

static double realised(struct plan *p, const struct grid *g, size_t r, const char *id)
{
    for (size_t c = 0; c < g->cols; c++)
        if (!strcmp(g->id[c], id) && g->run[r][c])
            return rep_number(p, chosen_by(g->run[r][c]), "budget");
    return NAN;
}

/* In how many budgets each column is the best of its row. */
static void verdict(struct plan *p, const struct grid *g, struct str *v, int missing)
{
    int best[MAX_COLUMNS] = {0}, rows = 0;
    for (size_t r = 0; r < g->rows; r++) {
        size_t top = MAX_COLUMNS;
        double most = -1;
        for (size_t c = 0; c < g->cols; c++) {
            double m = g->run[r][c] && !rep_missing(g->run[r][c]) ? rep_number(p, g->run[r][c], "mean") : NAN;
            if (finite_f64(m) && m > most) {
                most = m;
                top = c;
            }
        }
        rows += top < MAX_COLUMNS;
        if (top < MAX_COLUMNS)
            best[top]++;
    }
    for (size_t c = 0; c < g->cols; c++)
        str_printf(v, "%s%s has the highest score at %d of %d budgets", c ? "; " : "", g->label[c], best[c], rows);
    if (missing)
        str_printf(v, "; %d cells not made", missing);
}

int report_controlled(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                      struct err *e)
{
    struct arena a;
    struct table t;
    struct tsv pub;
    struct grid g;
    arena_init(&a, 0);
    gather(p, rep, &g);
    int rc = tsv_published(&pub, &a, rep_word(rep, "values", "dash_table8"), e);
    if (rc == 0) {
        table_init(&t, &a, rep->name, NULL);
        table_col(&t, "asked", "budget", false, false);
        table_col(&t, "DASH-3", "budget", false, false);
        for (size_t c = 0; c < g.cols; c++)
            table_col(&t, g.label[c], "ours", false, false);
        for (size_t i = 1; i < pub.n; i++)
            table_col(&t, tsv_cell(&pub, i, "selector"), rep_paper(p), false, false);
        for (size_t r = 0; r < g.rows; r++) {
            size_t at = table_row(&t, NULL);
            const char *column = rep_published_budget(rep, g.budget[r]);
            cell_num(table_cell(&t, at, 0), g.budget[r], -1, 0);
            cell_num(table_cell(&t, at, 1), realised(p, &g, r, "dash-3"), -1, 3);
            for (size_t c = 0; c < g.cols; c++)
                own_cell(p, &t, table_cell(&t, at, 2 + c), g.run[r][c], res);
            for (size_t i = 1; column && i < pub.n; i++)
                cell_num(table_cell(&t, at, 1 + g.cols + i), tsv_number(&pub, i, column), -1, 2);
        }
        if (t.n_rows && pub.n > 1)
            table_cell(&t, 0, 2 + g.cols)->note = table_note(&t, "%s; in the row of the budget that stands for the paper's", pub.source);
        verdict(p, &g, &res->verdict, res->missing);
        rc = arena_ok(&a, "a table", e) || rep_emit(p, rep, &t, out_dir, text, e) ? -1 : 0;
    }
    arena_free(&a);
    return rc;
}
