/* Report kind "landscape": what the best, the median and the worst of all binary sets of a budget lose when nothing is trained. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"

static int ascending(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

enum { C_BUDGET, C_SETS, C_BEST, C_BEST0, C_MEDIAN, C_WORST, C_BESTA, C_MEDIANA, C_SET, C_SETA };

/* One budget from its landscape.tsv: mask, kl, kl_answers. */
static int row(struct table *t, const struct node *n, struct arena *a, struct report_result *res, struct err *e)
{
    struct tsv v;
    char path[1024];
    const char *why = rep_missing(n);
    size_t r = table_row(t, NULL), best = 1, best_answers = 1;
    cell_int(table_cell(t, r, C_BUDGET), node_i64(n, "budget"));
    res->cells++;
    if (why) {
        cell_text(table_cell(t, r, C_SETS), rep_state(n));
        table_cell(t, r, C_SETS)->note = table_note(t, "%.300s", why);
        res->missing++;
        return 0;
    }
    TRY(tsv_load(&v, a, node_out(path, n, "landscape.tsv"), e));
    if (v.n < 2)
        return ERR(e, E_INPUT, "'%s' lists no set", path);
    double *all = arena_array(a, v.n, sizeof *all), *answers = arena_array(a, v.n, sizeof *answers), linear0 = INFINITY;
    TRY(arena_ok(a, "a table", e));
    for (size_t i = 1; i < v.n; i++) {
        all[i - 1] = tsv_number(&v, i, "kl");
        answers[i - 1] = tsv_number(&v, i, "kl_answers");
        best = all[i - 1] < all[best - 1] ? i : best;
        best_answers = answers[i - 1] < answers[best_answers - 1] ? i : best_answers;
        linear0 = *tsv_cell(&v, i, "mask") == 'F' ? linear0 : fmin(linear0, all[i - 1]);
    }
    cell_int(table_cell(t, r, C_SETS), (int64_t)v.n - 1);
    cell_text(table_cell(t, r, C_SET), tsv_cell(&v, best, "mask"));
    cell_text(table_cell(t, r, C_SETA), tsv_cell(&v, best_answers, "mask"));
    cell_num(table_cell(t, r, C_BEST0), linear0, -1, 4);
    qsort(all, v.n - 1, sizeof *all, ascending);
    qsort(answers, v.n - 1, sizeof *answers, ascending);
    cell_num(table_cell(t, r, C_BEST), all[0], -1, 4);
    cell_num(table_cell(t, r, C_MEDIAN), all[(v.n - 1) / 2], -1, 4);
    cell_num(table_cell(t, r, C_WORST), all[v.n - 2], -1, 4);
    cell_num(table_cell(t, r, C_BESTA), answers[0], -1, 3);
    cell_num(table_cell(t, r, C_MEDIANA), answers[(v.n - 1) / 2], -1, 3);
    return 0;
}

int report_landscape(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                     struct err *e)
{
    struct arena a;
    struct table t;
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n));
    int rc = 0;
    arena_init(&a, 0);
    table_init(&t, &a, rep->name, NULL);
    table_col(&t, "budget", NULL, false, false);
    table_col(&t, "sets", NULL, false, false);
    table_col(&t, "best", "KL, all tokens", false, false);
    table_col(&t, "best with layer 0 linear", "KL, all tokens", false, false);
    table_col(&t, "median", "KL, all tokens", false, false);
    table_col(&t, "worst", "KL, all tokens", false, false);
    table_col(&t, "best", "KL, answers", false, false);
    table_col(&t, "median", "KL, answers", false, false);
    table_col(&t, "best set, all tokens", NULL, true, false);
    table_col(&t, "best set, answers", NULL, true, false);
    for (size_t i = 0; rc == 0 && i < k; i++)
        if (!strcmp(n[i]->kind->name, "landscape"))
            rc = row(&t, n[i], &a, res, e);
    str_printf(&res->verdict, "all sets of %d budgets, %d not made", res->cells, res->missing);
    if (rc == 0)
        rc = arena_ok(&a, "a table", e) || rep_emit(p, rep, &t, out_dir, text, e) ? -1 : 0;
    arena_free(&a);
    return rc;
}
