/* `report --explain CELL`: the runs behind one row of a selector table, and how its numbers come from them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_selectors.h"
#include "cli/selectors_data.h"

/* Every run that n needs, itself last, each once. */
static void list_needed(const struct plan *p, const struct node *n, bool *seen, struct str *out)
{
    size_t at = 0;
    while (at < p->n && p->nodes[at] != n)
        at++;
    if (at == p->n || seen[at])
        return;
    seen[at] = true;
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            list_needed(p, n->ref[i][k], seen, out);
    str_printf(out, "  %-14s %-12s %-34s %s\n", n->stage->id, n->kind->name, n->point, n->dir);
}

static void explain_row(const struct sel_data *d, const struct sel_entry *x, struct str *out)
{
    str_printf(out, "%s: set %s, asked %g, realised %g\n", x->name, x->mask, x->asked, x->realised);
    if (x->failed) {
        str_printf(out, "not made: %s\n", x->failed);
        return;
    }
    str_printf(out, "chosen in %s: %.0f tokens, %.0f s\n", x->sel->dir, x->tokens, x->seconds);
    for (size_t i = 0; i < x->n; i++) {
        const struct sel_run *r = &x->run[i];
        str_printf(out, "seed %s: RULER %.3f (standard error of its prompts %.3f), answer NLL %.4f; held-out KL %.4f -> %.4f, answers "
                   "%.4f -> %.4f\n", r->distill ? node_str(r->distill, "seed") : "-", r->scores.mean, r->scores.se, r->scores.nll,
                   sel_number(d->p, r->node, "distill.kl_before"), sel_number(d->p, r->node, "distill.kl_after"),
                   sel_number(d->p, r->node, "distill.kl_answers_before"), sel_number(d->p, r->node, "distill.kl_answers_after"));
    }
    str_printf(out, "RULER %.3f = mean over %zu seed%s; its error %.3f = sqrt(mean of the prompts' errors squared + variance over seeds / "
               "seeds)\n", x->mean, x->n, x->n == 1 ? "" : "s", x->se);
    if (x->diff.seeds)
        str_printf(out, "d to %s %+.3f on %zu common seed%s: error %.3f (seeds %.3f, the rest prompts by %d resamplings), p %.4f, Holm "
                   "%.4f\n", d->reference, x->diff.d, x->diff.seeds, x->diff.seeds == 1 ? "" : "s", x->diff.se, x->diff.se_seeds,
                   PAIRED_DRAWS, x->diff.p, x->diff.p_holm);
    if (x->same_set)
        str_printf(out, "the same set as %s: trained once, not compared\n", d->reference);
}

int report_explain(struct plan *p, const struct report *rep, const char *cell, struct str *out, struct err *e)
{
    struct sel_data *d = calloc(1, sizeof *d);
    bool *seen = calloc(p->n + 1, sizeof *seen);
    struct arena a;
    const char *colon = strstr(cell, ":B="), *number;
    size_t id = colon ? (size_t)(colon - cell) : strcspn(cell, "@"), shown = 0;
    double budget = NAN;
    arena_init(&a, 0);
    int rc = d && seen ? 0 : err_nomem(e, sizeof *d + p->n, "a report");
    number = colon ? colon + 3 : cell + id + (cell[id] == '@');
    if (rc == 0 && (colon || cell[id]) && !parse_f64(number, &budget))
        rc = ERR(e, E_USAGE, "--explain '%s': a cell is SELECTOR@BUDGET or LABEL:B=BUDGET, for example dash-2@3 or DASH-2:B=3", cell);
    if (rc == 0)
        rc = sel_gather(d, p, &a, rep->node, e);
    for (size_t i = 0; rc == 0 && i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        const char *name = colon ? x->label : x->id; /* B is the budget asked for, or the realised one */
        if (strlen(name) != id || strncmp(name, cell, id) || (cell[id] && x->asked != budget && !(colon && x->realised == budget)))
            continue;
        str_puts(out, shown++ ? "\n" : "");
        explain_row(d, x, out);
        str_puts(out, "runs:\n");
        memset(seen, 0, p->n * sizeof *seen);
        for (size_t k = 0; k < x->n; k++)
            list_needed(p, x->run[k].node, seen, out);
    }
    if (rc == 0 && !shown) {
        str_puts(out, "cells:");
        for (size_t i = 0; i < d->n; i++)
            str_printf(out, " %s@%g", d->e[i].id, d->e[i].asked);
        str_puts(out, "\n");
        rc = ERR(e, E_USAGE, "--explain '%s': no such cell", cell);
    }
    if (d)
        sel_free(d);
    arena_free(&a);
    free(seen);
    free(d);
    return rc;
}
