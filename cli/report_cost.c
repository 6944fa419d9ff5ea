/*
 * Report kind "cost": what a selection costs against what it is worth (FlashMorph). `from`: evaluated hybrids of each method at each
 * budget; `supervision`: those whose selectors saw other data or other positions. The cost is that of the selection that fills the column
 * `cost_at`, and of all budgets together: a ranking serves every budget, a search is made for each. Ratios are against the row `against`.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"

enum { MAX_METHODS = 24, MAX_BUDGETS = 8 };

struct method {
    const char *label, *id;              /* id: as published values call it */
    const struct node *run[MAX_BUDGETS]; /* ruler runs, by the report's budgets */
    double tokens, flops, seconds;       /* at the budget `cost_at` */
    double all_tokens, all_flops;
    bool supervision;
};
struct costs {
    struct method m[MAX_METHODS];
    size_t n, n_budgets;
    double budget[MAX_BUDGETS], at;
    int layers;
};

static const struct node *chosen_by(const struct node *n)
{
    const struct node *s = node_of_kind(n, "search");
    return s ? s : node_of_kind(n, "select");
}

/* The run that did the work: where a ranking is only cut anew, the one that made it. */
static const struct node *paid(const struct node *by)
{
    const struct node *from = !strcmp(by->kind->name, "select") ? node_ref(by, "scores") : NULL;
    return from ? from : by;
}

static size_t column_of(const struct costs *c, const struct node *by)
{
    const char *asked = node_setting(by, "budget");
    double b;
    size_t i = 0;
    if (!asked || !parse_f64(asked, &b))
        return c->n_budgets;
    while (i < c->n_budgets && c->budget[i] != b)
        i++;
    return i;
}

static void collect(const struct plan *p, const struct report *rep, const char *key, struct costs *c)
{
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, key, n, ARRAY_LEN(n));
    for (size_t i = 0; i < k; i++) {
        const struct node *by = chosen_by(n[i]);
        size_t col = by ? column_of(c, by) : c->n_budgets, at = 0;
        if (strcmp(n[i]->kind->name, "ruler") != 0 || col == c->n_budgets)
            continue;
        while (at < c->n && strcmp(c->m[at].label, n[i]->label) != 0)
            at++;
        if (at == MAX_METHODS)
            continue;
        if (at == c->n)
            c->m[c->n++] = (struct method){.label = n[i]->label,
                                           .id = rep_selector(by),
                                           .supervision = !strcmp(key, "supervision"),
                                           .tokens = NAN,
                                           .flops = NAN,
                                           .seconds = NAN};
        if (!c->m[at].run[col])
            c->m[at].run[col] = n[i];
    }
}

static void add_up(struct plan *p, struct costs *c)
{
    for (size_t i = 0; i < c->n; i++) {
        struct method *m = &c->m[i];
        const struct node *seen[MAX_BUDGETS];
        size_t n_seen = 0;
        for (size_t b = 0; b < c->n_budgets; b++) {
            const struct node *by = m->run[b] ? chosen_by(m->run[b]) : NULL, *work = by ? paid(by) : NULL;
            bool had = false;
            if (!work || rep_missing(by) || rep_missing(work))
                continue;
            if (!c->layers)
                c->layers = (int)strlen(rep_text(p, by, "mask"));
            if (c->budget[b] == c->at) {
                m->tokens = rep_number(p, work, "tokens");
                m->flops = rep_number(p, work, "flops");
                m->seconds = run_seconds(work->dir);
            }
            for (size_t k = 0; k < n_seen; k++)
                had = had || seen[k] == work;
            if (had)
                continue;
            seen[n_seen++] = work;
            m->all_tokens += rep_number(p, work, "tokens");
            m->all_flops += rep_number(p, work, "flops");
        }
    }
}

enum { C_NAME, C_TOKENS, C_FLOPS, C_SECONDS, C_ALLT, C_ALLF, C_RFLOPS, C_RTIME, C_PTOKENS, C_PFLOPS, C_PHOURS, C_PRATIO, C_SCORE };

static void columns(struct plan *p, const struct costs *c, const char *against, struct table *t)
{
    const char *at = arena_printf(t->a, "selection at budget %g", c->at), *all = "selection, all budgets",
               *ratio = arena_printf(t->a, "times %s", against);
    const char *pub = "published, Qwen3-1.7B";
    UNUSED(p);
    table_col(t, "method", NULL, true, false);
    table_col(t, "tokens", at, false, false);
    table_col(t, "FLOP", at, false, false);
    table_col(t, "s", at, false, true);
    table_col(t, "tokens", all, false, false);
    table_col(t, "FLOP", all, false, false);
    table_col(t, "FLOP", ratio, false, false);
    table_col(t, "s", ratio, false, true);
    table_col(t, "tokens", pub, false, false);
    table_col(t, "FLOP", pub, false, false);
    table_col(t, "GPU hours", pub, false, false);
    table_col(t, "times FlashMorph", pub, false, false);
    for (size_t b = 0; b < c->n_budgets; b++)
        table_col(t,
                  c->layers
                      ? arena_printf(t->a, "%.3g:1, %g of %d", ((double)c->layers - c->budget[b]) / c->budget[b], c->budget[b], c->layers)
                      : arena_printf(t->a, "budget %g", c->budget[b]),
                  "RULER at Linear:Full", false, false);
}

static void power(struct table *t, struct cell *c, double v)
{
    if (finite_f64(v))
        cell_text(c, arena_printf(t->a, "%.3g", v));
}

static void published_cells(struct table *t, size_t r, const char *id, const struct tsv *pub)
{
    for (size_t i = 1; i < pub->n; i++)
        if (!strcmp(tsv_cell(pub, i, "method"), id)) {
            power(t, table_cell(t, r, C_PTOKENS), tsv_number(pub, i, "tokens"));
            power(t, table_cell(t, r, C_PFLOPS), tsv_number(pub, i, "flops"));
            cell_num(table_cell(t, r, C_PHOURS), tsv_number(pub, i, "gpu_hours"), -1, 1);
            cell_num(table_cell(t, r, C_PRATIO), tsv_number(pub, i, "ratio"), -1, 1);
        }
}

static void method_row(struct plan *p, const struct costs *c, const struct method *m, const struct method *base, struct table *t,
                       const char *block, const struct tsv *pub, struct report_result *res)
{
    size_t r = table_row(t, block);
    cell_text(table_cell(t, r, C_NAME), m->label);
    cell_num(table_cell(t, r, C_TOKENS), m->tokens, -1, 0);
    power(t, table_cell(t, r, C_FLOPS), m->flops);
    cell_num(table_cell(t, r, C_SECONDS), m->seconds, -1, 0);
    if (finite_f64(m->tokens)) {
        cell_num(table_cell(t, r, C_ALLT), m->all_tokens, -1, 0);
        power(t, table_cell(t, r, C_ALLF), m->all_flops);
    }
    if (base && base->flops > 0)
        cell_num(table_cell(t, r, C_RFLOPS), m->flops / base->flops, -1, 1);
    if (base && base->seconds > 0)
        cell_num(table_cell(t, r, C_RTIME), m->seconds / base->seconds, -1, 1);
    if (!m->supervision)
        published_cells(t, r, m->id, pub);
    for (size_t b = 0; b < c->n_budgets; b++) {
        const struct node *n = m->run[b];
        struct cell *cell = table_cell(t, r, C_SCORE + b);
        const char *why = n ? rep_missing(n) : NULL;
        if (!n)
            continue;
        res->cells++;
        if (why) {
            cell_text(cell, rep_state(n));
            cell->note = table_note(t, "%.300s", why);
            res->missing++;
            continue;
        }
        cell_num(cell, rep_number(p, n, "mean"), rep_number(p, n, "se"), 1);
        if (!strcmp(rep_text(p, chosen_by(n), "filled"), "false"))
            cell->note = table_note(t, "no run of this search filled the column; its closest set at or under it");
    }
}

/* Selection cost against RULER at the budget `cost_at`. */
static int figure_of(struct plan *p, const struct report *rep, const struct costs *c, struct arena *a, const char *dir, struct str *text,
                     struct err *e)
{
    struct series s[MAX_METHODS];
    struct panel_label *name = arena_array(a, MAX_METHODS, sizeof *name);
    double *v = arena_array(a, 3 * MAX_METHODS, sizeof *v), lo = INFINITY, hi = -INFINITY;
    size_t n = 0;
    TRY(arena_ok(a, "a figure", e));
    for (size_t i = 0; i < c->n; i++) {
        const struct node *run = NULL;
        for (size_t b = 0; b < c->n_budgets; b++)
            run = c->budget[b] == c->at ? c->m[i].run[b] : run;
        if (!run || rep_missing(run) || !(c->m[i].flops > 0))
            continue;
        double *q = v + 3 * n;
        q[0] = log10(c->m[i].flops);
        q[1] = rep_number(p, run, "mean");
        q[2] = rep_number(p, run, "se");
        lo = fmin(lo, q[0]);
        hi = fmax(hi, q[0]);
        name[n] = (struct panel_label){.x = q[0], .y = q[1], .text = c->m[i].label, .style = (int)(n % 6) + 1, .beside = true};
        s[n] = (struct series){.label = c->m[i].label, .x = q, .y = q + 1, .se = q + 2, .n = 1, .style = (int)(n % 6) + 1};
        n++;
    }
    if (n < 2)
        return 0;
    lo = floor(lo);
    hi += 0.3 * fmax(hi - lo, 1); /* names stand to the right of their marks */
    struct tic *xt = arena_array(a, (size_t)(hi - lo) + 2, sizeof *xt);
    TRY(arena_ok(a, "a figure", e));
    size_t k = 0;
    for (double d = lo; d <= hi - 0.1; d++)
        xt[k++] = (struct tic){d, arena_printf(a, "1e%.0f", d)};
    struct panel pn = {.xlabel = "FLOP of the selection",
                       .ylabel = "RULER (%)",
                       .xlo = lo,
                       .xhi = hi,
                       .ylo = 0,
                       .yhi = 105,
                       .xtic = xt,
                       .n_xtic = k,
                       .s = s,
                       .n_s = n,
                       .label = name,
                       .n_label = n};
    panel_labels_apart(&pn, 5.2, 2.9);
    struct picture pic = {.name = arena_printf(a, "%s-quality", rep->name),
                          .note = arena_printf(a, "%s scale, budget %g; bars: one standard error of the prompts", p->m->scale, c->at),
                          .p = &pn,
                          .rows = 1,
                          .cols = 1,
                          .width = 5.2,
                          .height = 2.9,
                          .left = 0.6,
                          .key = ""};
    return rep_picture(&pic, dir, text, e);
}

static int read_budgets(const struct report *rep, struct costs *c, struct err *e)
{
    const struct ynode *v = y_get(rep->node, "budgets");
    for (size_t i = 0; v && v->kind == Y_SEQ && i < v->n && c->n_budgets < MAX_BUDGETS; i++)
        if (v->item[i]->kind == Y_SCALAR && parse_f64(v->item[i]->s, &c->budget[c->n_budgets]))
            c->n_budgets++;
    if (c->n_budgets == 0 || !parse_f64(rep_word(rep, "cost_at", ""), &c->at))
        return ERR(e, E_USAGE, "report '%s' needs 'budgets: [numbers]' and 'cost_at: one of them'", rep->name);
    return 0;
}

/* Budgets of another scale have no runs: they are no columns. */
static void drop_empty(struct costs *c)
{
    size_t kept = 0;
    for (size_t b = 0; b < c->n_budgets; b++) {
        bool any = false;
        for (size_t i = 0; i < c->n; i++)
            any = any || c->m[i].run[b];
        if (!any)
            continue;
        for (size_t i = 0; i < c->n; i++)
            c->m[i].run[kept] = c->m[i].run[b];
        c->budget[kept++] = c->budget[b];
    }
    bool have = false;
    c->n_budgets = kept;
    for (size_t b = 0; b < kept; b++)
        have = have || c->budget[b] == c->at;
    if (!have && kept)
        c->at = c->budget[kept / 2];
}

int report_cost(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct costs *c = calloc(1, sizeof *c);
    struct arena a;
    struct table t;
    struct tsv pub;
    const struct method *base = NULL;
    arena_init(&a, 0);
    int rc = c ? 0 : err_nomem(e, sizeof *c, "a report");
    if (rc == 0)
        rc = read_budgets(rep, c, e) || tsv_published(&pub, &a, rep_word(rep, "values", "flashmorph_cost"), e) ? -1 : 0;
    if (rc == 0) {
        const char *block = "methods";
        collect(p, rep, "from", c);
        collect(p, rep, "supervision", c);
        drop_empty(c);
        add_up(p, c);
        for (size_t i = 0; i < c->n && !base; i++)
            base = !strcmp(c->m[i].label, rep_word(rep, "against", "FlashMorph")) ? &c->m[i] : NULL;
        table_init(&t, &a, rep->name, NULL);
        columns(p, c, rep_word(rep, "against", "FlashMorph"), &t);
        for (size_t i = 0; i < c->n; i++) {
            if (c->m[i].supervision && (i == 0 || !c->m[i - 1].supervision))
                block = "what the selector saw";
            method_row(p, c, &c->m[i], base, &t, block, &pub, res);
            block = NULL;
        }
        if (t.n_rows)
            table_cell(&t, 0, C_PTOKENS)->note = table_note(&t, "%s; another model and scale", pub.source);
        for (size_t i = 0; i < c->n; i++)
            if (base && base->flops > 0 && finite_f64(c->m[i].flops) && !c->m[i].supervision && &c->m[i] != base)
                str_printf(&res->verdict, "%s%s took %.1f times the FLOP of %s", res->verdict.len ? "; " : "", c->m[i].label,
                           c->m[i].flops / base->flops, base->label);
        str_printf(&res->verdict, "%s%d of %d scores missing", res->verdict.len ? "; " : "", res->missing, res->cells);
        rc = arena_ok(&a, "a table", e) || rep_emit(p, rep, &t, out_dir, text, e) || figure_of(p, rep, c, &a, out_dir, text, e) ? -1 : 0;
    }
    arena_free(&a);
    free(c);
    return rc;
}
