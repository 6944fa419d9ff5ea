/* The harness' result table, and ours with intervals and costs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lmeval/lmeval.h"

enum { COLUMNS = 9 };
struct cells {
    char (*row)[COLUMNS][64];
    size_t n, cap;
    bool failed;
};

static char (*add_row(struct cells *c))[64]
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 32;
        void *v = realloc(c->row, cap * sizeof *c->row);
        if (!v) {
            c->failed = true;
            return NULL;
        }
        c->row = v;
        c->cap = cap;
    }
    memset(c->row[c->n], 0, sizeof c->row[0]);
    return c->row[c->n++];
}

static void add_result(struct cells *c, const struct lme_result *r, int depth)
{
    bool first = true;
    for (int m = 0; m < LME_N_METRICS; m++) {
        if (!(r->metrics & 1u << m))
            continue;
        char(*cell)[64] = add_row(c);
        if (!cell)
            return;
        bool top = !r->task && r->group == LME_N_GROUPS - 1;
        if (first) {
            snprintf(cell[0], 64, "%*s%s%s", depth, "", depth ? "- " : "", r->task ? r->task->alias : lme_group_alias(r->group));
            snprintf(cell[1], 64, "%d", r->task ? 1 : 2);
        }
        snprintf(cell[2], 64, "none");
        if (!top && r->shots >= 0)
            snprintf(cell[3], 64, "%d", r->shots);
        snprintf(cell[4], 64, "%s", lme_metric_names[m]);
        snprintf(cell[5], 64, "%s", top ? "" : m == LME_BRIER ? "↓" : "↑");
        snprintf(cell[6], 64, "%.4f", r->v[m].mean);
        snprintf(cell[7], 64, "±");
        if (r->v[m].se < 0)
            snprintf(cell[8], 64, "   N/A");
        else
            snprintf(cell[8], 64, "%.4f", r->v[m].se);
        first = false;
    }
}

static void pad(struct str *out, const char *s, size_t width, char align)
{
    size_t n = utf8_count(s, strlen(s)), left = align == 'r' ? width - n : align == 'c' ? (width - n) / 2 : 0;
    str_printf(out, "|%*s%s%*s", (int)left, "", s, (int)(width - n - left), "");
}

static void print_cells(const struct cells *c, const char *title, struct str *out)
{
    static const char align[COLUMNS + 1] = "lrlrllrlr";
    const char *head[COLUMNS] = {title, "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"};
    size_t width[COLUMNS];
    for (int k = 0; k < COLUMNS; k++) {
        width[k] = MAX(3, strlen(head[k]));
        for (size_t i = 0; i < c->n; i++)
            width[k] = MAX(width[k], utf8_count(c->row[i][k], strlen(c->row[i][k])));
        pad(out, head[k], width[k], 'c');
    }
    str_puts(out, "|\n");
    for (int k = 0; k < COLUMNS; k++) {
        str_putc(out, '|');
        for (size_t i = 0; i + 1 < width[k]; i++)
            str_putc(out, '-');
        str_putc(out, align[k] == 'r' ? ':' : '-');
    }
    str_puts(out, "|\n");
    for (size_t i = 0; i < c->n; i++) {
        for (int k = 0; k < COLUMNS; k++)
            pad(out, c->row[i][k], width[k], align[k]);
        str_puts(out, "|\n");
    }
}

static int by_name(const void *a, const void *b)
{
    const struct lme_result *const *x = a, *const *y = b;
    return strcmp((*x)->task ? (*x)->task->name : lme_group_name((*x)->group), (*y)->task ? (*y)->task->name : lme_group_name((*y)->group));
}

static const struct lme_result *group_of(const struct lme_run_result *r, int g)
{
    for (int i = r->n_tasks; i < r->n; i++)
        if (r->task[i].group == g)
            return &r->task[i];
    return NULL;
}

/* Groups first with what is in them below, by name; then the tasks that are in no reported group. */
static void table(const struct lme_run_result *r, bool groups, struct str *out)
{
    static const int by_alphabet[] = {3, 1, 2, 0}; /* humanities, other, social_sciences, stem */
    const struct lme_result *sorted[LME_N_TASKS];
    struct cells c = {0};
    const struct lme_result *top = group_of(r, LME_N_GROUPS - 1);
    for (int i = 0; i < r->n_tasks; i++)
        sorted[i] = &r->task[i];
    qsort(sorted, (size_t)r->n_tasks, sizeof sorted[0], by_name);
    if (top)
        add_result(&c, top, 0);
    for (size_t k = 0; k < ARRAY_LEN(by_alphabet); k++) {
        const struct lme_result *g = group_of(r, by_alphabet[k]);
        if (!g)
            continue;
        add_result(&c, g, top ? 1 : 0);
        for (int i = 0; i < r->n_tasks && !groups; i++)
            if (sorted[i]->task->group == by_alphabet[k])
                add_result(&c, sorted[i], top ? 2 : 1);
    }
    for (int i = 0; i < r->n_tasks && !groups; i++)
        if (sorted[i]->task->group < 0 || !group_of(r, sorted[i]->task->group))
            add_result(&c, sorted[i], 0);
    if (!c.failed)
        print_cells(&c, groups ? "Groups" : "Tasks", out);
    out->failed |= c.failed;
    free(c.row);
}

void lme_table(const struct lme_run_result *r, struct str *out)
{
    table(r, false, out);
    if (r->n > r->n_tasks) {
        str_putc(out, '\n');
        table(r, true, out);
    }
}

void lme_intervals(const struct lme_run_result *r, struct str *out)
{
    str_printf(out, "%-40s %6s %5s %-16s %7s   %-16s %5s %5s\n", "task", "n", "shots", "metric", "value", "95 % interval", "ties", "cut");
    for (int i = 0; i < r->n; i++) {
        const struct lme_result *t = &r->task[i];
        for (int m = 0; m < LME_N_METRICS; m++) {
            if (!(t->metrics & 1u << m) || m == LME_BRIER)
                continue;
            char shots[16] = "-";
            if (t->shots >= 0)
                snprintf(shots, sizeof shots, "%d", t->shots);
            str_printf(out, "%-40s %6" PRId64 " %5s %-16s %7.4f   [%.4f, %.4f] %5" PRId64 " %5" PRId64 "\n",
                       t->task ? t->task->name : lme_group_name(t->group), t->n, shots, lme_metric_names[m], t->v[m].mean, t->v[m].lo,
                       t->v[m].hi, t->ties, t->truncated);
        }
    }
}
