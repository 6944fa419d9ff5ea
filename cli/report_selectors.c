/* Table and figure of selectors at matched budgets. */
#include "cli/report_selectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "core/fs.h"
#include "core/jwrite.h"
#include "core/log.h"
#include "reports/plot.h"
#include "ruler/ruler.h"

enum { MAX_CELLS = 256, MAX_SEEDS = 8 };

struct cell_run { /* one evaluated hybrid */
    const struct node *node;
    double mean, se, nll;
};
struct entry { /* a selector at a budget, all its Stage-3 seeds */
    const char *label, *variant, *id;
    double asked, realised;
    struct cell_run run[MAX_SEEDS];
    int n;
    double mean, se, nll, kl, kl_answers, kl0, kl0_answers, tokens, seconds, diff, lo, hi;
    bool has_diff, kl_fell, failed;
    const char *why;
};
struct data {
    struct plan *p;
    struct entry e[MAX_CELLS];
    int n;
    const struct node *teacher, *floor;
    double ceiling_mean, floor_mean;
};

static double number(struct plan *p, const struct node *n, const char *name)
{
    const char *s = node_result(p, n, name);
    double v;
    return s && parse_f64(s, &v) ? v : NAN;
}

static const struct node *selector_of(const struct node *n)
{
    const struct node *s = node_of_kind(n, "search");
    return s ? s : node_of_kind(n, "select");
}

static double asked_of(const struct node *sel)
{
    double v = 0;
    const char *s = sel ? node_setting(sel, "budget") : NULL;
    return s && parse_f64(s, &v) ? v : 0;
}

static double realised_of(struct plan *p, const struct node *n)
{
    const struct node *s = selector_of(n);
    return s ? number(p, s, "budget") : NAN;
}

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
    str_printf(out, "%-28s %-28s RULER %5.1f ±%.1f  answer NLL %.3f\n", n->label, n->point, number(p, n, "mean"), number(p, n, "se"), number(p, n, "nll"));
}

/* Two nodes belong to one entry when they differ in the distillation's seed alone. */
static struct entry *entry_for(struct data *d, const struct node *n)
{
    const struct node *sel = selector_of(n), *dis = node_of_kind(n, "distill");
    const char *shard = dis ? node_setting(dis, "data") : "";
    for (int i = 0; i < d->n; i++) {
        struct entry *x = &d->e[i];
        const struct node *other = node_of_kind(x->run[0].node, "distill");
        if (selector_of(x->run[0].node) == sel && x->run[0].node->stage == n->stage && other && !strcmp(node_setting(other, "data"), shard))
            return x;
    }
    if (d->n == MAX_CELLS)
        return NULL;
    struct entry *x = &d->e[d->n++];
    *x = (struct entry){.label = n->label, .variant = "", .id = sel ? sel->stage->id : n->stage->id, .asked = asked_of(sel)};
    return x;
}

static void collect(struct data *d, const struct ynode *from)
{
    for (size_t i = 0; i < d->p->n; i++) {
        const struct node *n = d->p->nodes[i];
        bool wanted = false;
        for (size_t k = 0; from && from->kind == Y_SEQ && k < from->n; k++)
            wanted = wanted || !strcmp(from->item[k]->s, n->stage->id);
        if (!wanted || strcmp(n->kind->name, "ruler"))
            continue;
        const struct node *sel = selector_of(n);
        if (!sel) {
            d->teacher = n;
            continue;
        }
        struct entry *x = entry_for(d, n);
        if (!x || x->n == MAX_SEEDS)
            continue;
        x->run[x->n++] = (struct cell_run){.node = n, .mean = number(d->p, n, "mean"), .se = number(d->p, n, "se"), .nll = number(d->p, n, "nll")};
        if (n->error || n->state != RUN_COMPLETE) {
            x->failed = true;
            x->why = n->error ? n->error : "not run";
        }
        const char *spec = node_result(d->p, n, "distill.spec");
        if (spec && !strcmp(spec, "none") && !d->floor)
            d->floor = n;
    }
}

static void summarise(struct data *d, struct entry *x)
{
    double sum = 0, se2 = 0, dev = 0, nll = 0, kl = 0, kla = 0, kl0 = 0, kl0a = 0;
    x->kl_fell = true;
    for (int i = 0; i < x->n; i++) {
        const struct node *n = x->run[i].node;
        double before = number(d->p, n, "distill.kl_before"), after = number(d->p, n, "distill.kl_after");
        double ab = number(d->p, n, "distill.kl_answers_before"), aa = number(d->p, n, "distill.kl_answers_after");
        sum += x->run[i].mean;
        se2 += x->run[i].se * x->run[i].se;
        nll += x->run[i].nll;
        kl += after;
        kla += aa;
        kl0 += before;
        kl0a += ab;
        x->kl_fell = x->kl_fell && after < before && aa < ab;
    }
    x->mean = sum / x->n;
    x->nll = nll / x->n;
    x->kl = kl / x->n;
    x->kl_answers = kla / x->n;
    x->kl0 = kl0 / x->n;
    x->kl0_answers = kl0a / x->n;
    for (int i = 0; i < x->n; i++)
        dev += (x->run[i].mean - x->mean) * (x->run[i].mean - x->mean);
    /* prompts are shared by the seeds, so their error does not shrink with seeds; the seeds' spread does */
    x->se = sqrt(se2 / x->n + (x->n > 1 ? dev / (x->n - 1) / x->n : 0));
    x->realised = realised_of(d->p, x->run[0].node);
    const struct node *sel = selector_of(x->run[0].node);
    x->tokens = number(d->p, sel, "tokens");
    x->seconds = run_seconds(sel->dir);
    const char *variant = node_result(d->p, sel, "variant");
    x->variant = variant ? variant : "";
}

/* Mean over the seeds that both have of the paired difference to the reference at the same budget. */
static void compare(struct data *d, struct entry *x, const char *reference)
{
    struct entry *ref = NULL;
    for (int i = 0; i < d->n; i++)
        if (!strcmp(d->e[i].id, reference) && d->e[i].asked == x->asked && d->e[i].run[0].node->stage == x->run[0].node->stage && !d->e[i].failed)
            ref = &d->e[i];
    if (!ref || ref == x || x->failed)
        return;
    double sum = 0, var = 0, each[MAX_SEEDS], dev = 0;
    int n = 0;
    for (int i = 0; i < x->n; i++)
        for (int k = 0; k < ref->n; k++) {
            const char *sx = node_setting(node_of_kind(x->run[i].node, "distill"), "seed"), *sr = node_setting(node_of_kind(ref->run[k].node, "distill"), "seed");
            struct ruler_diff per[RULER_MAX_TASKS], all;
            size_t nt;
            char a[1024], b[1024];
            struct err ignored = ERR_INIT;
            if (strcmp(sx, sr) || ruler_compare(path_join(a, ref->run[k].node->dir, "out"), path_join(b, x->run[i].node->dir, "out"), per, &nt, &all, &ignored) != 0)
                continue;
            double half = (all.hi - all.lo) / 2 / 1.96;
            each[n++] = all.diff;
            sum += all.diff;
            var += half * half;
        }
    if (!n)
        return;
    x->diff = sum / n;
    for (int i = 0; i < n; i++)
        dev += (each[i] - x->diff) * (each[i] - x->diff);
    double half = 1.96 * sqrt(var / n + (n > 1 ? dev / (n - 1) / n : 0));
    x->lo = x->diff - half;
    x->hi = x->diff + half;
    x->has_diff = true;
}

/* How many tasks lie within two standard errors of the floor and of the ceiling. */
static void near_ends(struct data *d, const struct node *n, int *at_floor, int *at_ceiling)
{
    *at_floor = *at_ceiling = 0;
    for (const char *const *t = ruler_task_names(); *t; t++) {
        char se[64];
        snprintf(se, sizeof se, "%s_se", *t);
        double x = number(d->p, n, *t), f = number(d->p, d->floor, *t), c = number(d->p, d->teacher, *t), sx = number(d->p, n, se);
        if (isnan(x) || isnan(f) || isnan(c))
            continue;
        double sf = number(d->p, d->floor, se), sc = number(d->p, d->teacher, se);
        *at_floor += fabs(x - f) <= 2 * sqrt(sx * sx + sf * sf);
        *at_ceiling += fabs(x - c) <= 2 * sqrt(sx * sx + sc * sc);
    }
}

enum { C_NAME, C_BUDGET, C_RULER, C_SEEDS, C_NLL, C_KL, C_KLA, C_KL0, C_DIFF, C_REC, C_ENDS, C_TOKENS, C_SECONDS, C_PUB, COLS };

static void columns(struct table *t)
{
    table_col(t, "selector", NULL, true, false);
    table_col(t, "budget", NULL, false, false);
    table_col(t, "RULER", NULL, false, false);
    table_col(t, "seeds", NULL, false, false);
    table_col(t, "answer NLL", NULL, false, false);
    table_col(t, "all", "held-out KL", false, false);
    table_col(t, "answers", "held-out KL", false, false);
    table_col(t, "before", "held-out KL", false, false);
    table_col(t, "vs Uniform [95 %]", NULL, false, false);
    table_col(t, "recovered", NULL, false, false);
    table_col(t, "floor/ceiling", NULL, false, false);
    table_col(t, "tokens", "selection", false, false);
    table_col(t, "s", "selection", false, true);
    table_col(t, "published (3B)", NULL, false, false);
}

static double published_value(const char *id, double asked, const struct ynode *map)
{
    char path[1024], col[16] = "", name[64];
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    double v = NAN;
    for (size_t i = 0; map && map->kind == Y_MAP && i < map->n; i++)
        if (atof(map->key[i]->s) == asked)
            snprintf(col, sizeof col, "%s", map->item[i]->s);
    snprintf(name, sizeof name, "%s", id);
    if (!*col || cli_bundled(path, "reports/published/dash_table1.tsv", &ignored) != 0 || file_read(path, 1 << 16, &s, &ignored) != 0)
        return NAN;
    int at = -1;
    for (const char *p = str_c(&s); *p; p += strcspn(p, "\n"), p += *p == '\n') {
        if (*p == '#')
            continue;
        size_t line = strcspn(p, "\n");
        const char *q = p;
        for (int c = 0; q <= p + line; c++) {
            size_t n = strcspn(q, "\t\n");
            if (at < 0 && n == strlen(col) && !strncmp(q, col, n))
                at = c;
            else if (at >= 0 && c == 0 && !(n == strlen(name) && !strncmp(q, name, n)))
                break;
            else if (at >= 0 && c == at && !strncmp(p, name, strlen(name)))
                v = atof(q);
            q += n + 1;
        }
    }
    str_free(&s);
    return v;
}

static void fill_row(struct data *d, struct table *t, size_t row, const struct entry *x, const struct ynode *published)
{
    char buf[96];
    snprintf(buf, sizeof buf, "%s%s%s%s", x->label, *x->variant ? " (" : "", x->variant, *x->variant ? ")" : "");
    cell_text(table_cell(t, row, C_NAME), arena_strdup(t->a, buf));
    if (x->failed) {
        cell_text(table_cell(t, row, C_RULER), strstr(x->why, "no search run") ? "not reached" : !strcmp(x->why, "not run") ? "-" : "failed");
        table_cell(t, row, C_RULER)->note = table_note(t, "%.300s", x->why);
        return;
    }
    cell_num(table_cell(t, row, C_BUDGET), x->realised, -1, 3);
    cell_num(table_cell(t, row, C_RULER), x->mean, x->se, 1);
    snprintf(buf, sizeof buf, "%d seed%s", x->n, x->n == 1 ? "" : "s");
    cell_text(table_cell(t, row, C_SEEDS), arena_strdup(t->a, buf));
    cell_num(table_cell(t, row, C_NLL), x->nll, -1, 3);
    cell_num(table_cell(t, row, C_KL), x->kl, -1, 4);
    cell_num(table_cell(t, row, C_KLA), x->kl_answers, -1, 3);
    cell_num(table_cell(t, row, C_KL0), x->kl0, -1, 4);
    if (x->has_diff) {
        snprintf(buf, sizeof buf, "%+.1f [%+.1f, %+.1f]", x->diff, x->lo, x->hi);
        cell_text(table_cell(t, row, C_DIFF), arena_strdup(t->a, buf));
    }
    if (d->floor && d->teacher && d->ceiling_mean > d->floor_mean) {
        int f, c;
        near_ends(d, x->run[0].node, &f, &c);
        cell_num(table_cell(t, row, C_REC), (x->mean - d->floor_mean) / (d->ceiling_mean - d->floor_mean), -1, 2);
        snprintf(buf, sizeof buf, "%d/%d", f, c);
        cell_text(table_cell(t, row, C_ENDS), arena_strdup(t->a, buf));
    }
    cell_int(table_cell(t, row, C_TOKENS), (int64_t)x->tokens);
    cell_num(table_cell(t, row, C_SECONDS), x->seconds, -1, 0);
    double pub = published_value(x->id, x->asked, published);
    if (!*x->variant && !isnan(pub))
        cell_num(table_cell(t, row, C_PUB), pub, -1, 2);
}

static void build(struct data *d, struct table *t, const struct ynode *budgets, const struct ynode *published)
{
    columns(t);
    size_t r = table_row(t, "references");
    cell_text(table_cell(t, r, C_NAME), "Teacher");
    if (d->teacher && d->teacher->state == RUN_COMPLETE) {
        cell_num(table_cell(t, r, C_RULER), number(d->p, d->teacher, "mean"), number(d->p, d->teacher, "se"), 1);
        cell_num(table_cell(t, r, C_NLL), number(d->p, d->teacher, "nll"), -1, 3);
        cell_num(table_cell(t, r, C_PUB), 91.13, -1, 2);
    }
    for (int i = 0; i < d->n; i++)
        if (d->e[i].asked == 0)
            fill_row(d, t, table_row(t, NULL), &d->e[i], published);
    for (size_t b = 0; budgets && budgets->kind == Y_SEQ && b < budgets->n; b++) {
        double k = atof(budgets->item[b]->s);
        const char *block = arena_printf(t->a, "budget %s", budgets->item[b]->s);
        for (int i = 0; i < d->n; i++)
            if (d->e[i].asked == k) {
                fill_row(d, t, table_row(t, block), &d->e[i], published);
                block = NULL;
            }
    }
    t->cells[C_PUB].note = table_note(t, "published: DASH Table 1, Qwen2.5-3B-Instruct at 4096 tokens, the nearest of 5, 9, 18 of 36 layers; another model and scale, for the order of rows only");
}

static int figure(struct data *d, const struct report *rep, const char *out_dir, const char *note, const struct ynode *budgets, bool *drawn, struct err *e)
{
    struct series s[16] = {{0}};
    static double xs[16][16], ys[16][16], es[16][16];
    const char *names[16];
    size_t n = 0;
    double top = 0;
    for (int i = 0; i < d->n; i++) {
        struct entry *x = &d->e[i];
        if (x->failed || x->asked == 0 || *x->variant || isnan(x->mean))
            continue;
        size_t k = 0;
        while (k < n && strcmp(names[k], x->label))
            k++;
        if (k == n && n < 8) {
            names[n] = x->label;
            s[n] = (struct series){.label = x->label, .x = xs[n], .y = ys[n], .se = es[n], .style = (int)n + 1, .line = strcmp(x->id, "random") != 0};
            n++;
        }
        if (k == n || s[k].n == 16)
            continue;
        xs[k][s[k].n] = x->realised;
        ys[k][s[k].n] = x->mean;
        es[k][s[k].n++] = x->se;
        top = fmax(top, x->realised);
    }
    double tics[16];
    size_t nt = 0;
    for (size_t i = 0; budgets && i < budgets->n && nt < 16; i++)
        tics[nt++] = atof(budgets->item[i]->s);
    struct hline lines[2] = {{d->ceiling_mean, "teacher"}, {d->floor_mean, "all linear"}};
    char name[128];
    snprintf(name, sizeof name, "%.100s-budget-ruler", rep->name);
    struct figure f = {.name = name, .xlabel = "realised budget (full-attention layers)", .ylabel = "RULER (%)", .note = note, .xlo = 0, .xhi = top + 1, .ylo = 0, .yhi = 105, .xtics = tics, .n_xtics = nt,
                       .s = s, .n = n, .wide = true, .hlines = lines, .n_hlines = finite_f64(d->floor_mean) && finite_f64(d->ceiling_mean) ? 2 : 0};
    char style[1024];
    TRY(cli_bundled(style, "reports/style.gp", e));
    return figure_save(&f, out_dir, style, drawn, e);
}

static void verdict(struct data *d, struct str *v, int *missing)
{
    int done = 0, fell = 0, failed = 0;
    for (int i = 0; i < d->n; i++) {
        failed += d->e[i].failed;
        done += !d->e[i].failed;
        fell += !d->e[i].failed && d->e[i].kl_fell;
    }
    *missing = failed;
    str_printf(v, "%d of %d cells made%s; Stage 3 lowered held-out KL, on all and on answer tokens, in %d of %d", done, d->n, failed ? " (see notes for the others)" : "", fell, done);
    for (int i = 0; i < d->n; i++) {
        const struct entry *x = &d->e[i];
        if (x->has_diff && !*x->variant && x->n > 1)
            str_printf(v, "; %s at %g: %+.1f [%+.1f, %+.1f] against Uniform (%s)", x->label, x->asked, x->diff, x->lo, x->hi, x->lo > 0 ? "better" : x->hi < 0 ? "worse" : "no difference shown");
    }
}

int report_selectors(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct data *d = calloc(1, sizeof *d);
    struct table t;
    struct arena a;
    if (!d)
        return err_nomem(e, sizeof *d, "a report");
    arena_init(&a, 0);
    d->p = p;
    collect(d, y_get(rep->node, "from"));
    const struct ynode *ref = y_get(rep->node, "reference"), *budgets = y_get(rep->node, "budgets");
    for (int i = 0; i < d->n; i++)
        if (!d->e[i].failed)
            summarise(d, &d->e[i]);
    for (int i = 0; i < d->n; i++)
        compare(d, &d->e[i], ref ? ref->s : "uniform");
    d->ceiling_mean = d->teacher ? number(p, d->teacher, "mean") : NAN;
    d->floor_mean = d->floor ? number(p, d->floor, "mean") : NAN;
    table_init(&t, &a, rep->name, arena_printf(&a, "%s (%s scale)", rep->title, p->m->scale));
    t.caption = arena_printf(&a, "%s scale. %s", p->m->scale, p->m->caption);
    build(d, &t, budgets, y_get(rep->node, "published"));
    table_text(&t, text);
    int rc = table_save(&t, out_dir, e);
    bool any = false, drawn = false;
    for (int i = 0; i < d->n; i++)
        any = any || (!d->e[i].failed && d->e[i].asked > 0);
    if (rc == 0 && any)
        rc = figure(d, rep, out_dir, arena_printf(&a, "%s scale; error bars: one standard error", p->m->scale), budgets, &drawn, e);
    res->cells = d->n;
    verdict(d, &res->verdict, &res->missing);
    if (rc == 0 && any)
        str_printf(text, drawn ? "figure: %s/%s-budget-ruler.{svg,pdf,png}\n" : "figure: only its data, %s/%s-budget-ruler.tsv (install gnuplot for the picture)\n", out_dir, rep->name);
    arena_free(&a);
    free(d);
    return rc;
}
