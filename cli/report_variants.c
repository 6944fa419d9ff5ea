/*
 * Report kind "variants": searches that relax the choice differently (DASH Appendix G), a row for each run: what it chose, how far its
 * argmax is from its mixture, what it cost, and RULER of its hybrid.
 */
#include <math.h>
#include <string.h>

#include "cli/report_kinds.h"

enum {
    C_NAME,
    C_LAMBDA,
    C_BUDGET,
    C_SOFTB,
    C_ENTROPY,
    C_TOP1,
    C_SOFT,
    C_ARGMAX,
    C_GAP,
    C_GAPA,
    C_RULER,
    C_TOKENS,
    C_FLOPS,
    C_SECONDS,
    C_SET
};

static void columns(struct table *t)
{
    table_col(t, "search", NULL, true, false);
    table_col(t, "lambda", NULL, false, false);
    table_col(t, "realised", "budget", false, false);
    table_col(t, "soft", "budget", false, false);
    table_col(t, "entropy", "routing", false, false);
    table_col(t, "top-1", "routing", false, false);
    table_col(t, "soft", "held-out KL", false, false);
    table_col(t, "argmax", "held-out KL", false, false);
    table_col(t, "difference", "held-out KL", false, false);
    table_col(t, "difference, answers", "held-out KL", false, false);
    table_col(t, "RULER", NULL, false, false);
    table_col(t, "tokens", "search", false, false);
    table_col(t, "FLOP", "search", false, false);
    table_col(t, "s", "search", false, true);
    table_col(t, "set", NULL, true, false);
}

static void row(struct plan *p, struct table *t, const struct node *n, const struct node *ruler, const char *block,
                struct report_result *res)
{
    size_t r = table_row(t, block);
    const char *why = rep_missing(n);
    double soft = rep_number(p, n, "kl_soft"), argmax = rep_number(p, n, "kl_argmax_layer0"), flops = rep_number(p, n, "flops");
    cell_text(table_cell(t, r, C_NAME), n->label);
    cell_num(table_cell(t, r, C_LAMBDA), node_has(n, "lambda") ? node_f64(n, "lambda") : NAN, -1, 4);
    if (why) {
        cell_text(table_cell(t, r, C_BUDGET), rep_state(n));
        table_cell(t, r, C_BUDGET)->note = table_note(t, "%.300s", why);
        res->missing++;
        return;
    }
    cell_num(table_cell(t, r, C_BUDGET), rep_number(p, n, "budget"), -1, 3);
    cell_num(table_cell(t, r, C_SOFTB), rep_number(p, n, "soft_budget"), -1, 2);
    cell_num(table_cell(t, r, C_ENTROPY), rep_number(p, n, "entropy"), -1, 3);
    cell_num(table_cell(t, r, C_TOP1), rep_number(p, n, "top1"), -1, 3);
    cell_num(table_cell(t, r, C_SOFT), soft, -1, 4);
    cell_num(table_cell(t, r, C_ARGMAX), argmax, -1, 4);
    cell_num(table_cell(t, r, C_GAP), argmax - soft, -1, 4);
    cell_num(table_cell(t, r, C_GAPA), rep_number(p, n, "kl_answers_argmax_layer0") - rep_number(p, n, "kl_answers_soft"), -1, 3);
    cell_num(table_cell(t, r, C_TOKENS), rep_number(p, n, "tokens"), -1, 0);
    if (finite_f64(flops))
        cell_text(table_cell(t, r, C_FLOPS), arena_printf(t->a, "%.3g", flops));
    cell_num(table_cell(t, r, C_SECONDS), run_seconds(n->dir), -1, 0);
    cell_text(table_cell(t, r, C_SET), rep_text(p, n, "mask"));
    if (ruler && !rep_missing(ruler))
        cell_num(table_cell(t, r, C_RULER), rep_number(p, ruler, "mean"), rep_number(p, ruler, "se"), 1);
    else if (ruler) {
        cell_text(table_cell(t, r, C_RULER), rep_state(ruler));
        table_cell(t, r, C_RULER)->note = table_note(t, "%.300s", rep_missing(ruler));
        res->missing++;
    }
}

/* For each variant: in how many of its lambdas its argmax is nearer to its mixture than that of the first one. */
static void verdict(struct plan *p, const struct node *const *n, size_t k, struct str *v)
{
    for (size_t i = 0; i < k; i++) {
        size_t pairs = 0, nearer = 0;
        if ((i && !strcmp(n[i]->label, n[i - 1]->label)) || !strcmp(n[i]->label, n[0]->label))
            continue;
        for (size_t a = 0; a < k; a++)
            for (size_t b = 0; b < k; b++) {
                if (strcmp(n[a]->label, n[i]->label) != 0 || strcmp(n[b]->label, n[0]->label) != 0 ||
                    strcmp(node_str(n[a], "lambda"), node_str(n[b], "lambda")) != 0 || rep_missing(n[a]) || rep_missing(n[b]))
                    continue;
                pairs++;
                nearer += fabs(rep_number(p, n[a], "kl_argmax_layer0") - rep_number(p, n[a], "kl_soft")) <
                          fabs(rep_number(p, n[b], "kl_argmax_layer0") - rep_number(p, n[b], "kl_soft"));
            }
        str_printf(v, "%s%s: its argmax is nearer to its mixture than that of %s at %zu of %zu lambdas", v->len ? "; " : "", n[i]->label,
                   n[0]->label, nearer, pairs);
    }
}

int report_variants(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                    struct err *e)
{
    struct arena a;
    struct table t;
    const struct node *all[REP_MAX_NODES], *n[REP_MAX_NODES], *ruler[REP_MAX_NODES];
    size_t given = rep_nodes(p, rep, "from", all, ARRAY_LEN(all)), n_ruler = rep_nodes(p, rep, "ruler", ruler, ARRAY_LEN(ruler)), k = 0;
    arena_init(&a, 0);
    for (size_t i = 0; i < given; i++)
        if (!strcmp(all[i]->kind->name, "search"))
            n[k++] = all[i];
    table_init(&t, &a, rep->name, NULL);
    columns(&t);
    for (size_t i = 0; i < k; i++) {
        const struct node *own = NULL;
        for (size_t j = 0; j < n_ruler && !own; j++)
            own = node_of_kind(ruler[j], "search") == n[i] ? ruler[j] : NULL;
        row(p, &t, n[i], own, i == 0 || strcmp(n[i]->label, n[i - 1]->label) ? n[i]->label : NULL, res);
    }
    if (t.n_rows)
        table_cell(&t, 0, C_SOFT)->note =
            table_note(&t, "nats a token; soft: the mixture at the final T_arch; argmax: after discretisation, layer 0 as in the search; "
                           "straight-through: hard choices in the forward pass, the "
                           "gradient of the soft ones; bilevel: mixer weights learn on the other half of the rows. The paper tried both in "
                           "the binary space and publishes no numbers");
    res->cells = (int)k;
    if (k)
        verdict(p, n, k, &res->verdict);
    if (res->missing)
        str_printf(&res->verdict, "; %d results not made", res->missing);
    int rc = arena_ok(&a, "a table", e) || rep_emit(p, rep, &t, out_dir, text, e) ? -1 : 0;
    arena_free(&a);
    return rc;
}
