/* `report --explain CELL`: the runs behind a row of a table, with keys, seeds, commands and files, and how its numbers come from them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"
#include "cli/selectors_data.h"

struct explainer {
    const struct plan *p;
    const char *manifest;
    bool *seen; /* [p->n] */
    struct str *out;
};

/* What a run wrote, by name. */
static void list_files(const struct node *n, struct str *out)
{
    enum { MOST = 10 };
    char dir[1024];
    struct names names;
    struct err ignored = ERR_INIT;
    if (n->state != RUN_COMPLETE || dir_list(path_join(dir, n->dir, "out"), &names, &ignored) != 0)
        return;
    str_puts(out, "    files out/:");
    for (size_t i = 0; i < names.n && i < MOST; i++)
        str_printf(out, " %s", names.v[i]);
    if (names.n > MOST)
        str_printf(out, " and %zu more", names.n - MOST);
    str_puts(out, "\n");
    names_free(&names);
}

/* Every run that n needs, itself last, each once. */
static void list_needed(struct explainer *x, const struct node *n)
{
    size_t at = 0;
    const struct plan *p = x->p;
    while (at < p->n && p->nodes[at] != n)
        at++;
    if (at == p->n || x->seen[at])
        return;
    x->seen[at] = true;
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            list_needed(x, n->ref[i][k]);
    const char *why = rep_missing(n), *dir = n->key[0] ? n->dir : "(its key waits for another run)";
    str_printf(x->out, "  %-14s %-12s %-34s %s%s%s\n", n->stage->id, n->kind->name, n->point, dir, why ? ": " : "", why ? why : "");
    if (n->key[0])
        str_printf(x->out, "    key %s\n", n->key);
    for (size_t i = 0; i < n->kind->n_params; i++)
        if ((!strcmp(n->kind->params[i].name, "seed") || !strcmp(n->kind->params[i].name, "seeds")) && n->value[i])
            str_printf(x->out, "    %s %s\n", n->kind->params[i].name, n->value[i]);
    str_printf(x->out, "    command dashlab reproduce %s --scale %s --only %s:%.12s\n", x->manifest, p->m->scale, n->stage->id, n->planned);
    list_files(n, x->out);
}

static void explain_row(const struct sel_data *d, const struct sel_entry *x, struct str *out)
{
    str_printf(out, "%s: ", x->name);
    if (*x->mask)
        str_printf(out, "set %s, ", x->mask);
    if (x->unasked || x->asked == 0)
        str_puts(out, "no budget asked for");
    else
        str_printf(out, "budget %g asked for", x->asked);
    if (*x->mask)
        str_printf(out, ", realised %g\n", x->realised);
    else
        str_puts(out, ", nothing is chosen yet\n");
    if (x->failed) {
        str_printf(out, "not made: %s\n", x->failed);
        return;
    }
    str_printf(out, "chosen in %s: %.0f tokens, %.0f s\n", x->sel->dir, x->tokens, x->seconds);
    for (size_t i = 0; i < x->n; i++) {
        const struct sel_run *r = &x->run[i];
        str_printf(out,
                   "seed %s: RULER %.3f (standard error of its prompts %.3f), answer NLL %.4f; held-out KL %.4f -> %.4f, answers %.4f -> "
                   "%.4f\n",
                   r->distill ? node_str(r->distill, "seed") : "-", r->scores.mean, r->scores.se, r->scores.nll,
                   sel_number(d->p, r->node, "distill.kl_before"), sel_number(d->p, r->node, "distill.kl_after"),
                   sel_number(d->p, r->node, "distill.kl_answers_before"), sel_number(d->p, r->node, "distill.kl_answers_after"));
    }
    str_printf(out,
               "RULER %.3f = mean over %zu seed%s; its error %.3f = sqrt(mean of the prompts' errors squared + variance over seeds / "
               "seeds)\n",
               x->mean, x->n, x->n == 1 ? "" : "s", x->se);
    if (x->diff.seeds)
        str_printf(out,
                   "d to %s %+.3f on %zu common seed%s: error %.3f (seeds %.3f, the rest prompts by %d resamplings), p %.4f, Holm %.4f\n",
                   d->reference, x->diff.d, x->diff.seeds, x->diff.seeds == 1 ? "" : "s", x->diff.se, x->diff.se_seeds, PAIRED_DRAWS,
                   x->diff.p, x->diff.p_holm);
    if (x->same_set)
        str_printf(out, "the same set as %s: trained once, not compared\n", d->reference);
}

/* A row as commands and tables call it: "NAME", "NAME@NUMBER", "NAME:B=NUMBER", "NAME, B NUMBER", "NAME, budget NUMBER", "NAME (B=NUMBER)",
 * "NAME budget=NUMBER ...", each also after "BLOCK/"; a block "budget NUMBER" says the budget. */
struct cell_name {
    const char *name;
    size_t len;
    bool by_label, has_budget;
    double budget;
};

static bool number_of(const char *s, double *v)
{
    char buf[32];
    snprintf(buf, sizeof buf, "%.*s", (int)strcspn(s, " ,)/"), s);
    return parse_f64(buf, v);
}

static int read_cell(const char *cell, struct cell_name *c, struct err *e)
{
    static const char *const before[] = {":B=", ", budget ", ", B ", " (B=", " budget=", "@"};
    const char *slash = strrchr(cell, '/');
    *c = (struct cell_name){.name = slash ? slash + 1 : cell, .by_label = slash != NULL, .budget = NAN};
    c->len = strlen(c->name);
    if (slash && !strncmp(cell, "budget ", 7))
        c->has_budget = number_of(cell + 7, &c->budget);
    for (size_t i = 0; i < ARRAY_LEN(before); i++) {
        const char *at = strstr(c->name, before[i]);
        if (!at)
            continue;
        c->len = (size_t)(at - c->name);
        c->by_label = c->by_label || strcmp(before[i], "@") != 0;
        c->has_budget = number_of(at + strlen(before[i]), &c->budget);
        if (!c->has_budget)
            return ERR(e, E_USAGE,
                       "--explain '%s': a cell is SELECTOR@BUDGET, LABEL:B=BUDGET or a row's name, for example dash-2@3 or DASH-2:B=3",
                       cell);
        break;
    }
    return 0;
}

static bool is_name(const char *have, const struct cell_name *c)
{
    return strlen(have) == c->len && !strncmp(have, c->name, c->len);
}

/* Rows of selector tables. */
static int explain_entries(struct plan *p, const struct report *rep, const struct cell_name *c, struct explainer *x, size_t *shown,
                           struct err *e)
{
    struct sel_data *d = calloc(1, sizeof *d);
    struct arena a;
    if (!d)
        return err_nomem(e, sizeof *d, "a report");
    arena_init(&a, 0);
    int rc = sel_gather(d, p, &a, rep->node, e);
    for (size_t i = 0; rc == 0 && i < d->n; i++) {
        const struct sel_entry *v = &d->e[i];
        bool named = is_name(v->label, c) || is_name(v->name, c) || (!c->by_label && is_name(v->id, c));
        if (!named || (c->has_budget && v->asked != c->budget && !(c->by_label && v->realised == c->budget)))
            continue; /* B is the budget asked for, or the realised one */
        str_puts(x->out, *shown ? "\n" : "");
        ++*shown;
        explain_row(d, v, x->out);
        str_puts(x->out, "runs:\n");
        memset(x->seen, 0, p->n * sizeof *x->seen);
        for (size_t k = 0; k < v->n; k++)
            list_needed(x, v->run[k].node);
    }
    if (rc == 0 && !*shown) {
        str_puts(x->out, "cells:");
        for (size_t i = 0; i < d->n; i++)
            str_printf(x->out, " %s@%g", d->e[i].id, d->e[i].asked);
        str_puts(x->out, "\n");
    }
    sel_free(d);
    arena_free(&a);
    free(d);
    return rc;
}

static const char *const lists[] = {"from", "beside", "ruler", "supervision"};

/* Rows of other tables: what their lists name, by label or stage. */
static void explain_nodes(struct plan *p, const struct report *rep, const struct cell_name *c, struct explainer *x, size_t *shown)
{
    for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
        const struct node *n[REP_MAX_NODES];
        size_t k = rep_nodes(p, rep, lists[l], n, ARRAY_LEN(n));
        for (size_t i = 0; i < k; i++) {
            const char *asked = node_setting(n[i], "budget");
            double b = NAN;
            bool budget = !c->has_budget || (asked && parse_f64(asked, &b) && b == c->budget) || rep_number(p, n[i], "budget") == c->budget;
            const struct node *by = node_of_kind(n[i], "search");
            by = by ? by : node_of_kind(n[i], "select");
            budget = budget || (by && rep_number(p, by, "budget") == c->budget);
            if (!budget || !(is_name(n[i]->label, c) || is_name(n[i]->stage->id, c) || (by && is_name(by->stage->id, c))))
                continue;
            str_printf(x->out, "%s%s%s%s\nruns:\n", (*shown)++ ? "\n" : "", n[i]->label, *n[i]->point ? ", " : "", n[i]->point);
            memset(x->seen, 0, p->n * sizeof *x->seen);
            list_needed(x, n[i]);
        }
    }
}

/* What can be asked for of a table whose rows are runs. */
static void list_rows(struct plan *p, const struct report *rep, struct str *out)
{
    const char *last = "";
    str_puts(out, "cells:");
    for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
        const struct node *n[REP_MAX_NODES];
        size_t k = rep_nodes(p, rep, lists[l], n, ARRAY_LEN(n));
        for (size_t i = 0; i < k; i++) {
            const char *budget = node_setting(n[i], "budget");
            const char *one = arena_printf(&p->arena, budget && *budget ? " '%s:B=%s'" : " '%s'", n[i]->label, budget ? budget : "");
            if (one && strcmp(one, last) != 0)
                str_puts(out, one);
            last = one ? one : last;
        }
    }
    str_puts(out, "\n");
}

int report_explain(struct plan *p, const struct report *rep, const char *manifest, const char *cell, struct str *out, struct err *e)
{
    struct cell_name c;
    size_t shown = 0;
    TRY(read_cell(cell, &c, e));
    struct explainer x = {.p = p, .manifest = manifest, .seen = calloc(p->n + 1, sizeof *x.seen), .out = out};
    int rc = x.seen ? 0 : err_nomem(e, p->n, "a report");
    bool entries = !strcmp(rep->kind, "selectors") || !strcmp(rep->kind, "tasks") || !strcmp(rep->kind, "budget-ruler");
    if (rc == 0 && entries)
        rc = explain_entries(p, rep, &c, &x, &shown, e);
    if (rc == 0 && !shown)
        explain_nodes(p, rep, &c, &x, &shown);
    if (rc == 0 && !shown && !entries)
        list_rows(p, rep, out);
    if (rc == 0 && !shown)
        rc = ERR(e, E_USAGE, "--explain '%s': no such cell in report '%s'", cell, rep->name);
    free(x.seen);
    return rc;
}
