/* Tables and figure of selectors at matched budgets. */
#include "cli/report_selectors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/report_kinds.h"
#include "cli/selectors_data.h"
#include "core/fs.h"

void selectors_line(struct plan *p, const struct node *n, struct str *out)
{
    if (strcmp(n->kind->name, "ruler"))
        return;
    if (n->error) {
        str_printf(out, "%-28s %-28s %s\n", n->label, n->point, rep_state(n));
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
    table_col(t, "budget (paper's proxy)", NULL, false, false);
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
        c->note = table_note(t, "the layers of '%s': trained once, nothing to compare", d->reference);
    } else if (x->diff.seeds) {
        cell_text(c, arena_printf(t->a, "%+.1f [%+.1f, %+.1f]", x->diff.d, x->diff.d - x->diff.half, x->diff.d + x->diff.half));
        if (x->other_space)
            c->note = table_note(t, "other operator space: the two sets are made of other operators, so this says nothing about selectors");
        else if (x->diff.seeds == 1)
            c->note = table_note(t, "prompt-only: one training seed, so the interval holds the prompts' error alone and says nothing about "
                                    "selectors");
        if (!x->other_space && x->twin)
            table_cell(t, row, C_HOLM)->note = table_note(t, "the same set as '%s': counted once in the correction", x->twin->name);
        if (!x->other_space)
            cell_num(table_cell(t, row, C_HOLM), x->diff.p_holm, -1, 3);
    } else if (!x->is_reference && x->asked > 0) {
        c->note = table_note(t, "no run of '%s' at this budget with the same training to pair with", d->reference);
    }
}

static void missing_row(struct table *t, size_t row, const struct sel_entry *x)
{
    const char *word = x->uninformative                     ? "uninformative"
                       : x->declined                        ? "declined"
                       : strstr(x->failed, "no search run") ? "not reached"
                       : !strcmp(x->failed, "not run")      ? "-"
                                                            : "failed";
    cell_text(table_cell(t, row, C_RULER), word);
    table_cell(t, row, C_RULER)->note = table_note(t, "%.300s", x->failed);
    if (x->sel->state != RUN_COMPLETE)
        return;
    cell_num(table_cell(t, row, C_BUDGET), x->realised, -1, 3);
    cell_num(table_cell(t, row, C_TOKENS), x->tokens, -1, 0);
    cell_num(table_cell(t, row, C_SECONDS), x->seconds, -1, 0);
}

/* What must be known of a row's budget. */
static void budget_notes(struct table *t, size_t row, const struct sel_entry *x)
{
    struct cell *c = table_cell(t, row, C_BUDGET);
    if (x->ties > 0)
        c->note = table_note(t, "cut inside a tie: %.0f layer%s left out score%s as the last one kept; lower layers were taken", x->ties,
                             x->ties == 1 ? "" : "s", x->ties == 1 ? "s" : "");
    else if (x->n_window > 0 && node_bool(x->run[0].node, "allow_cost_mismatch"))
        c->note = table_note(t, "a window layer's w/T was allowed to differ between selection and evaluation (allow_cost_mismatch)");
    else if (x->unasked && x->trained_search)
        c->note = table_note(t, "one lambda, no budget asked for: the row stands where its set belongs");
    else if (x->control && !x->matched)
        c->note = table_note(t, "no search here has as many full and window layers");
}

static void fill_row(const struct sel_data *d, struct table *t, size_t row, const struct sel_entry *x, const struct ynode *published)
{
    cell_text(table_cell(t, row, C_NAME), x->name);
    if (!x->beside)
        cell_num(table_cell(t, row, C_PUB), published_value(x->id, x->asked, published), -1, 2);
    if (x->failed) {
        missing_row(t, row, x);
        return;
    }
    cell_num(table_cell(t, row, C_BUDGET), x->realised, -1, 3);
    budget_notes(t, row, x);
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
}

static void fill_block(const struct sel_data *d, struct table *t, double budget, bool beside, const struct ynode *published)
{
    const char *block = arena_printf(t->a, "budget %g%s", budget, beside ? ", beside the table" : "");
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].asked == budget && d->e[i].beside == beside) {
            fill_row(d, t, table_row(t, block), &d->e[i], published);
            block = NULL;
        }
}

/* The report's columns in its order, then other budgets that rows have. */
static size_t budgets_of(const struct sel_data *d, const struct ynode *list, double *out, size_t cap)
{
    double all[64];
    size_t n = 0, na = sel_budgets(d, all, ARRAY_LEN(all));
    for (size_t b = 0; list && list->kind == Y_SEQ && b < list->n && n < cap; b++)
        n += list->item[b]->kind == Y_SCALAR && parse_f64(list->item[b]->s, &out[n]);
    for (size_t b = 0; b < na && n < cap; b++) {
        bool have = false;
        for (size_t k = 0; k < n; k++)
            have = have || out[k] == all[b];
        if (!have)
            out[n++] = all[b];
    }
    return n;
}

static void fill_main(const struct sel_data *d, struct table *t, const struct ynode *budgets, const struct ynode *published)
{
    double budget[64];
    size_t nb = budgets_of(d, budgets, budget, ARRAY_LEN(budget));
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
        for (size_t b = 0; b < nb; b++)
            fill_block(d, t, budget[b], beside == 1, published);
    if (published)
        t->cells[C_PUB].note = table_note(t, "published: DASH Table 1, Qwen2.5-3B-Instruct at 4096 tokens, 5, 9, 18 of 36 layers (its "
                                             "nearest); another model and scale, for the order of rows only");
    if (finite_f64(d->ceiling))
        table_cell(t, 0, C_FLOPS)->note = table_note(t,
                                                     "counted, at %.0f tokens of context, the head not included; cache: keys, values and "
                                                     "states of one sequence of that length. By these a linear layer need not be the "
                                                     "cheapest, as it is in the budget",
                                                     sel_number(d->p, d->teacher, "context"));
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
    const struct node *fed = align ? align : distill; /* Stage 1 may be an input */
    double share = fed ? sel_number(d->p, fed, "pack.answer_share") : NAN;
    if (finite_f64(share))
        str_printf(&s, " Answer tokens are %.1f %% of the training tokens.", 100 * share);
    const char *out = arena_strdup(d->a, str_c(&s));
    str_free(&s);
    return out ? out : "";
}

/* ---- verdict ---- */

static const char *lower(double a, double b)
{
    return a < b ? "lower" : a > b ? "higher" : "the same";
}

/* Whether a difference is one, in words. extra: what the half-width is made of. */
static void put_claim(struct str *v, const struct paired_diff *diff, double half, bool apart, const char *extra)
{
    if (diff->seeds > 1)
        str_printf(v, "%s (+-%.1f%s)", !apart ? "not separated" : diff->d > 0 ? "better" : "worse", half, extra);
    else
        str_printf(v, "one seed, no claim (+-%.1f, prompt-only)", half);
}

/* DASH against the best of the other selectors of its operator space at its budget, all of them together by max-t. */
static void against_best(const struct sel_data *d, const struct sel_entry *x, struct str *v)
{
    const struct sel_entry *base[SEL_MAX_ENTRIES];
    struct paired_diff *diff = calloc(SEL_MAX_ENTRIES, sizeof *diff);
    size_t n = diff ? sel_baselines(d, x, 2, base, ARRAY_LEN(base)) : 0, best = 0;
    double point = n > 1 ? sel_duels(d, x, base, n, diff) : NAN;
    for (size_t i = 0; i < n; i++)
        best = base[i]->mean > base[best]->mean ? i : best;
    if (n > 1 && !isnan(point)) {
        double half = point * diff[best].se;
        str_printf(v, "; %s at %g against the best of %zu others (%s): %+.1f, ", x->label, x->asked, n, base[best]->name, diff[best].d);
        put_claim(v, &diff[best], half, fabs(diff[best].d) > half, ", max-t");
    }
    free(diff);
}

/* A set with Window layers against the selectors that were given as many Full and Window layers. */
static void against_controls(const struct sel_data *d, const struct sel_entry *x, struct str *v)
{
    const struct sel_entry *base[SEL_MAX_ENTRIES];
    struct paired_diff *diff = calloc(SEL_MAX_ENTRIES, sizeof *diff);
    size_t n = diff ? sel_baselines(d, x, 1, base, ARRAY_LEN(base)) : 0;
    double point = n ? sel_duels(d, x, base, n, diff) : NAN;
    str_printf(v, "; %s at %g, with its %d full and %d window layers", x->label, x->unfilled ? x->realised : x->asked, x->n_full,
               x->n_window);
    if (!n)
        str_puts(v, ": no other selector was given as many here");
    for (size_t i = 0; i < n; i++) {
        double half = point * diff[i].se;
        if (!diff[i].seeds) {
            str_printf(v, "%s %s: no common seed", i ? ";" : " against", base[i]->name);
            continue;
        }
        str_printf(v, "%s %s %+.1f, ", i ? ";" : " against", base[i]->name, diff[i].d);
        put_claim(v, &diff[i], half, fabs(diff[i].d) > half, n > 1 ? ", max-t" : "");
    }
    free(diff);
}

/* Every row of the family against the reference: which are apart after Holm's correction. */
static void family(const struct sel_data *d, struct str *v)
{
    struct str better = STR_INIT, worse = STR_INIT;
    size_t single = 0, open = 0, same = 0, other = 0;
    double lo = INFINITY, hi = 0;
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        same += x->same_set;
        other += x->diff.seeds && x->other_space;
        if (!x->diff.seeds || x->other_space)
            continue;
        if (x->diff.seeds == 1) {
            single++;
        } else if (x->diff.p_holm < 0.05) {
            struct str *s = x->diff.d > 0 ? &better : &worse;
            str_printf(s, "%s%s at %g", s->len ? ", " : "", x->name, x->asked);
        } else {
            open++;
            lo = fmin(lo, x->diff.half);
            hi = fmax(hi, x->diff.half);
        }
    }
    if (d->family + same + other)
        str_printf(v, "; against '%s', %zu row%s of %zu different sets, Holm's correction over these:", d->reference, d->compared,
                   d->compared == 1 ? "" : "s", d->family);
    if (better.len)
        str_printf(v, " better %s;", str_c(&better));
    if (worse.len)
        str_printf(v, " worse %s;", str_c(&worse));
    if (open)
        str_printf(v, " %zu not separated (+-%.1f to +-%.1f);", open, lo, hi);
    if (single)
        str_printf(v, " %zu with one seed, prompt-only, no claim;", single);
    if (same)
        str_printf(v, " %zu the same set;", same);
    if (other)
        str_printf(v, " %zu of another operator space;", other);
    if (v->len && v->p[v->len - 1] == ';')
        v->p[--v->len] = 0;
    str_free(&better);
    str_free(&worse);
}

/* One row of a search: against the reference, then against the other selectors of its operator space. */
static void search_verdict(const struct sel_data *d, const struct sel_entry *x, struct str *v)
{
    const struct sel_entry *r = NULL;
    for (size_t k = 0; k < d->n; k++)
        if (d->e[k].is_reference && d->e[k].asked == x->asked && !d->e[k].beside)
            r = &d->e[k];
    if (x->unfilled)
        str_printf(v, "; %s: no run filled %g, its closest set has %g", x->label, x->asked, x->realised);
    if (r && x->same_set) {
        str_printf(v, "; %s at %g: the same set as %s", x->label, x->asked, r->label);
    } else if (r && x->diff.seeds) {
        str_printf(v, "; %s at %g: KL %s on all tokens and %s on answers than %s, RULER %+.1f, ", x->label,
                   x->unfilled ? x->realised : x->asked, lower(x->kl, r->kl), lower(x->kl_answers, r->kl_answers), r->label, x->diff.d);
        if (x->other_space)
            str_printf(v, "other operator space (+-%.1f)", x->diff.half);
        else
            put_claim(v, &x->diff, x->diff.half, x->diff.p_holm < 0.05, "");
    }
    if (x->n_window > 0)
        against_controls(d, x, v);
    else if (x->n > 1)
        against_best(d, x, v);
}

static void verdict(const struct sel_data *d, struct str *v, int *missing)
{
    int done = 0, fell = 0, silent = 0;
    for (size_t i = 0; i < d->n; i++) {
        silent += d->e[i].uninformative || d->e[i].declined;
        done += !d->e[i].failed;
        fell += !d->e[i].failed && d->e[i].kl_fell;
    }
    *missing = (int)d->n - done - silent;
    str_printf(v, "%d of %zu cells made", done, d->n);
    if (silent)
        str_printf(v, ", %d of uninformative probes left out", silent);
    str_printf(v, "%s; Stage 3 lowered held-out KL, on all and on answer tokens, in %d of %d",
               *missing ? " (see notes for the others)" : "", fell, done);
    family(d, v);
    for (size_t i = 0; i < d->n; i++) {
        const char *variant = node_result(d->p, d->e[i].sel, "variant");
        if (d->e[i].trained_search && !d->e[i].failed && (!d->e[i].beside || (d->e[i].unfilled && !(variant && *variant))))
            search_verdict(d, &d->e[i], v);
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
    if (rc == 0) {
        struct table t;
        table_init(&t, &a, rep->name, arena_printf(&a, "%s (%s scale)", rep->title, p->m->scale));
        t.caption = arena_printf(&a, "%s scale. %s%s", p->m->scale, p->m->caption, settings(d));
        fill_main(d, &t, budgets, published);
        table_text(&t, text);
        rc = table_save(&t, out_dir, e);
    }
    if (rc == 0)
        rc = selectors_detail(d, rep, out_dir, text, e) || selectors_searches(d, rep, out_dir, text, e) ||
                     selectors_overlap(d, rep, out_dir, text, e) || selectors_budget_figure(d, rep, out_dir, text, e) ||
                     selectors_cost_figures(d, rep, out_dir, text, e) || selectors_stability(d, rep, out_dir, text, e)
                 ? -1
                 : 0;
    res->cells = (int)d->n;
    if (rc == 0)
        verdict(d, &res->verdict, &res->missing);
    sel_free(d);
    arena_free(&a);
    free(d);
    return rc;
}
