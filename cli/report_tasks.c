/* Report kind "tasks": every RULER task of every model (DASH Table 9). Columns in the paper's order; a task that no evaluation has is left
 * out and named. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"
#include "cli/selectors_data.h"

static const struct {
    const char *task, *name;
} tasks[] = {{"niah_multikey_1", "MK1"},
             {"niah_multikey_2", "MK2"},
             {"niah_multikey_3", "MK3"},
             {"niah_multiquery", "MQ"},
             {"niah_multivalue", "MV"},
             {"niah_single_1", "S1"},
             {"niah_single_2", "S2"},
             {"niah_single_3", "S3"},
             {"cwe", "CWE"},
             {"fwe", "FWE"},
             {"qa_2", "HP"},
             {"qa_1", "SQ"},
             {"vt", "VT"}};

static double task_mean(const struct sel_data *d, const struct sel_entry *x, const char *task)
{
    double sum = 0;
    for (size_t i = 0; i < x->n; i++)
        sum += sel_number(d->p, x->run[i].node, task) / (double)x->n;
    return sum;
}

static bool evaluated(const struct sel_data *d, const char *task)
{
    for (size_t i = 0; i < d->n_whole; i++)
        if (d->whole[i]->state == RUN_COMPLETE && finite_f64(sel_number(d->p, d->whole[i], task)))
            return true;
    for (size_t i = 0; i < d->n; i++)
        if (!d->e[i].failed && finite_f64(task_mean(d, &d->e[i], task)))
            return true;
    return false;
}

static void columns(const struct sel_data *d, struct table *t, bool *have)
{
    struct str left = STR_INIT;
    table_col(t, "model", NULL, true, false);
    table_col(t, "budget", NULL, false, false);
    table_col(t, "seeds", NULL, false, false);
    table_col(t, "Avg.", NULL, false, false);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++) {
        have[i] = evaluated(d, tasks[i].task);
        if (have[i])
            table_col(t, tasks[i].name, NULL, false, false);
        else
            str_printf(&left, " %s (%s)", tasks[i].name, tasks[i].task);
    }
    if (left.len)
        table_note(t, "not evaluated here:%s; the average is over the tasks shown", str_c(&left));
    str_free(&left);
}

static void task_cells(struct table *t, size_t row, const bool *have, const double *v, int digits)
{
    for (size_t i = 0, c = 4; i < ARRAY_LEN(tasks); i++)
        if (have[i])
            cell_num(table_cell(t, row, c++), v[i], -1, digits);
}

static void whole_row(const struct sel_data *d, struct table *t, size_t r, const struct node *n, const bool *have)
{
    double v[ARRAY_LEN(tasks)];
    cell_text(table_cell(t, r, 0), n->label);
    if (n->error || n->state != RUN_COMPLETE) {
        cell_text(table_cell(t, r, 3), n->error ? "failed" : "-");
        table_cell(t, r, 3)->note = table_note(t, "%.300s", n->error ? n->error : "not run");
        return;
    }
    cell_num(table_cell(t, r, 3), sel_number(d->p, n, "mean"), sel_number(d->p, n, "se"), 1);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        v[i] = sel_number(d->p, n, tasks[i].task);
    task_cells(t, r, have, v, 1);
}

static void entry_row(const struct sel_data *d, struct table *t, size_t r, const struct sel_entry *x, const bool *have)
{
    double v[ARRAY_LEN(tasks)];
    cell_text(table_cell(t, r, 0), x->name);
    if (x->failed) {
        cell_text(table_cell(t, r, 3), strcmp(x->failed, "not run") ? "failed" : "-");
        table_cell(t, r, 3)->note = table_note(t, "%.300s", x->failed);
        return;
    }
    cell_num(table_cell(t, r, 1), x->realised, -1, 3);
    cell_int(table_cell(t, r, 2), (int64_t)x->n);
    cell_num(table_cell(t, r, 3), x->mean, x->se, 1);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        v[i] = task_mean(d, x, tasks[i].task);
    task_cells(t, r, have, v, 1);
}

static void published_rows(const struct sel_data *d, struct table *t, const struct tsv *pub, const bool *have)
{
    for (size_t k = 1; k < pub->n; k++) {
        double v[ARRAY_LEN(tasks)];
        size_t r = table_row(t, k == 1 ? arena_printf(t->a, "%s, 4096 tokens", rep_paper(d->p)) : NULL);
        cell_text(table_cell(t, r, 0), tsv_cell(pub, k, "model"));
        cell_num(table_cell(t, r, 1), tsv_number(pub, k, "budget"), -1, 3);
        cell_num(table_cell(t, r, 3), tsv_number(pub, k, "Avg"), -1, 2);
        for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
            v[i] = tsv_number(pub, k, tasks[i].name);
        task_cells(t, r, have, v, 2);
        if (k == 1)
            table_cell(t, r, 0)->note = table_note(t, "%s; Avg. over all 13 tasks", pub->source);
    }
}

int report_tasks(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct sel_data *d = calloc(1, sizeof *d);
    struct arena a;
    struct table t;
    struct tsv pub;
    bool have[ARRAY_LEN(tasks)];
    if (!d)
        return err_nomem(e, sizeof *d, "a report");
    arena_init(&a, 0);
    int rc = sel_gather(d, p, &a, rep->node, e) || tsv_published(&pub, &a, rep_word(rep, "values", "dash_table9"), e) ? -1 : 0;
    if (rc == 0) {
        table_init(&t, &a, rep->name, arena_printf(&a, "%s (%s scale)", rep->title, p->m->scale));
        columns(d, &t, have);
        for (size_t i = 0; i < d->n_whole; i++) {
            whole_row(d, &t, table_row(&t, i == 0 ? "ours" : NULL), d->whole[i], have);
            res->missing += d->whole[i]->error || d->whole[i]->state != RUN_COMPLETE;
        }
        for (size_t i = 0; i < d->n; i++) {
            entry_row(d, &t, table_row(&t, i == 0 && !d->n_whole ? "ours" : NULL), &d->e[i], have);
            res->missing += d->e[i].failed != NULL;
        }
        published_rows(d, &t, &pub, have);
        res->cells = (int)(d->n + d->n_whole);
        str_printf(&res->verdict, "%zu models, %d not made, %zu tasks", d->n + d->n_whole, res->missing, t.n_cols - 4);
        rc = rep_emit(p, rep, &t, out_dir, text, e);
    }
    sel_free(d);
    arena_free(&a);
    free(d);
    return rc;
}
