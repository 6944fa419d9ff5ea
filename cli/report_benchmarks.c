/* Report kind "benchmarks": one row a model, one column a task, chance level below. */
#include "cli/report_kinds.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct column_of {
    const char *title, *key;
    double chance; /* percent: mean over documents of 1 / choices in the full sets */
};
static const struct column_of columns[] = {{"MMLU", "mmlu_acc", 25},
                                           {"ARC-E", "arc_easy_acc", 25},
                                           {"ARC-E norm", "arc_easy_acc_norm", 25},
                                           {"ARC-C", "arc_challenge_acc", 25},
                                           {"ARC-C norm", "arc_challenge_acc_norm", 25},
                                           {"PIQA", "piqa_acc", 50},
                                           {"PIQA norm", "piqa_acc_norm", 50},
                                           {"WinoGrande", "winogrande_acc", 50}};

void benchmarks_line(struct plan *p, const struct node *n, struct str *out)
{
    if (strcmp(n->kind->name, "lmeval") != 0 || n->state != RUN_COMPLETE)
        return;
    str_printf(out, "%-28s %-28s", n->label, n->point);
    for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
        double v = rep_number(p, n, columns[i].key);
        if (isfinite(v))
            str_printf(out, "  %s %.1f", columns[i].title, 100 * v);
    }
    str_putc(out, '\n');
}

/* "All-linear", "DASH-3 budget=3": the selector's label where there is one. */
static const char *row_name(struct arena *a, const struct node *n)
{
    const struct node *s = node_of_kind(n, "search");
    s = s ? s : node_of_kind(n, "select");
    return s ? arena_printf(a, "%s%s%s", s->stage->label, *n->point ? " " : "", n->point) : n->stage->label;
}

static void fill_row(struct plan *p, struct table *t, struct arena *a, const struct node *n, struct report_result *res)
{
    size_t row = table_row(t, NULL);
    cell_text(table_cell(t, row, 0), row_name(a, n));
    for (size_t i = 0; i < ARRAY_LEN(columns); i++) {
        struct cell *c = table_cell(t, row, i + 1);
        char se[64];
        double v = n->state == RUN_COMPLETE ? rep_number(p, n, columns[i].key) : NAN, e;
        snprintf(se, sizeof se, "%s_se", columns[i].key);
        e = n->state == RUN_COMPLETE ? rep_number(p, n, se) : NAN;
        if (isfinite(v)) {
            cell_num(c, 100 * v, isfinite(e) ? 100 * e : -1, 1);
            res->cells++;
        } else {
            if (n->state != RUN_COMPLETE) {
                cell_text(c, rep_state(n));
                c->note = table_note(t, "%s", rep_missing(n));
            }
            res->missing += n->state != RUN_COMPLETE;
        }
    }
}

int report_benchmarks(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                      struct err *e)
{
    struct arena a;
    struct table t;
    const struct node *nodes[REP_MAX_NODES];
    size_t n = rep_nodes(p, rep, "from", nodes, ARRAY_LEN(nodes));
    arena_init(&a, 0);
    *res = (struct report_result){0};
    table_init(&t, &a, rep->name, NULL);
    table_col(&t, "model", NULL, true, false);
    for (size_t i = 0; i < ARRAY_LEN(columns); i++)
        table_col(&t, columns[i].title, NULL, false, false);
    for (size_t i = 0; i < n; i++)
        fill_row(p, &t, &a, nodes[i], res);
    size_t row = table_row(&t, NULL);
    cell_text(table_cell(&t, row, 0), "chance");
    for (size_t i = 0; i < ARRAY_LEN(columns); i++)
        cell_num(table_cell(&t, row, i + 1), columns[i].chance, -1, 1);
    if (res->missing)
        str_printf(&res->verdict, "PARTIAL: %d cells missing", res->missing);
    else
        str_puts(&res->verdict, strcmp(p->m->scale, "paper") ? "SMOKE ONLY: scores are not those of the full benchmarks" : "COMPLETE");
    t.verdict = str_c(&res->verdict);
    int rc = arena_ok(&a, "a table", e);
    rc = rc ? rc : rep_emit(p, rep, &t, out_dir, text, e);
    arena_free(&a);
    return rc;
}
