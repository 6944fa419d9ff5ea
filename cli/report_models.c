/*
 * Report kind "models": own hybrids beside external ones (DASH Table 2). One row for each lmeval run under `from`; its RULER score comes
 * from the run under `ruler` that evaluated the same model. Search and training tokens stand per run and with every run that was needed to
 * reach the budget. Rows of publications stand in blocks of their own.
 */
#include <math.h>
#include <string.h>

#include "cli/report_kinds.h"

static const struct {
    const char *title, *key;
} tasks[] = {{"MMLU", "mmlu_acc"},
             {"ARC-E", "arc_easy_acc_norm"},
             {"ARC-C", "arc_challenge_acc_norm"},
             {"PIQA", "piqa_acc_norm"},
             {"WinoGrande", "winogrande_acc"}};

enum { C_MODEL, C_RUN, C_ALL, C_TRAIN, C_SUM, C_RULER, C_TASK };

static void columns(struct table *t)
{
    table_col(t, "model", NULL, true, false);
    table_col(t, "one run", "search tokens", false, false);
    table_col(t, "all runs", "search tokens", false, false);
    table_col(t, "Stages 1, 3", "training tokens", false, false);
    table_col(t, "with search", "training tokens", false, false);
    table_col(t, "RULER", NULL, false, false);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        table_col(t, tasks[i].title, NULL, false, false);
}

static void count_cell(struct cell *c, double v)
{
    if (finite_f64(v))
        cell_int(c, (int64_t)v);
}

/* The evaluation of the same model, the teacher or a hybrid; NULL without one. */
static const struct node *ruler_of(const struct node *n, const struct node *const *ruler, size_t k)
{
    const struct node *made = node_of_kind(n, "distill");
    for (size_t i = 0; i < k; i++)
        if (!strcmp(ruler[i]->kind->name, "ruler") && node_of_kind(ruler[i], "distill") == made)
            return ruler[i];
    return NULL;
}

static void score_cell(struct plan *p, struct table *t, struct cell *c, const struct node *n, const char *key, double scale,
                       struct report_result *res)
{
    char se[64];
    const char *why = n ? rep_missing(n) : "no run of this kind is asked for";
    if (why) {
        cell_text(c, n ? rep_state(n) : "-");
        c->note = table_note(t, "%.300s", why);
        res->missing += n != NULL;
        return;
    }
    snprintf(se, sizeof se, strcmp(key, "mean") ? "%.50s_se" : "se", key);
    double v = scale * rep_number(p, n, key), e = scale * rep_number(p, n, se);
    cell_num(c, v, finite_f64(e) ? e : -1, 1);
    res->cells++;
}

/* Tokens of one search run: of the first line of its tries. */
static double one_run(const struct node *search, struct arena *a)
{
    struct tsv t;
    char path[1024];
    struct err ignored = ERR_INIT;
    if (!search || search->state != RUN_COMPLETE || tsv_load(&t, a, node_out(path, search, "tries.tsv"), &ignored) != 0 || t.n < 2)
        return NAN;
    return tsv_number(&t, 1, "tokens");
}

static void own_row(struct plan *p, struct table *t, struct arena *a, const struct node *n, const struct node *const *ruler, size_t k,
                    const char *block, struct report_result *res)
{
    const struct node *search = node_of_kind(n, "search"), *select = node_of_kind(n, "select"), *align = node_of_kind(n, "align"),
                      *made = node_of_kind(n, "distill");
    size_t r = table_row(t, block);
    const struct node *by = search ? search : select;
    double budget = rep_number(p, by, "budget"), searched = rep_number(p, by, "tokens"),
           trained = (align ? rep_number(p, align, "tokens") : 0) + rep_number(p, made, "tokens");
    cell_text(table_cell(t, r, C_MODEL), finite_f64(budget) ? arena_printf(a, "%s (B=%g)", n->label, budget) : n->label);
    count_cell(table_cell(t, r, C_RUN), one_run(search, a));
    count_cell(table_cell(t, r, C_ALL), searched);
    count_cell(table_cell(t, r, C_TRAIN), trained);
    count_cell(table_cell(t, r, C_SUM), trained + searched);
    if (made && !align)
        table_cell(t, r, C_TRAIN)->note = table_note(t, "Stage 3; Stage 1 is an input, its tokens are not counted");
    if (by && !strcmp(rep_text(p, by, "filled"), "false"))
        table_cell(t, r, C_MODEL)->note = table_note(t, "no run of this search filled its column; the closest set at or under it");
    score_cell(p, t, table_cell(t, r, C_RULER), ruler_of(n, ruler, k), "mean", 1, res);
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        score_cell(p, t, table_cell(t, r, C_TASK + i), n, tasks[i].key, 100, res);
}

static void published_rows(struct plan *p, struct table *t, const struct tsv *pub)
{
    static const char *const kinds[] = {"own", "external"};
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        const char *block = k ? "external hybrids: published values, not run here" : arena_printf(t->a, "%s, published", rep_paper(p));
        for (size_t i = 1; i < pub->n; i++) {
            if (strcmp(tsv_cell(pub, i, "kind"), kinds[k]) != 0)
                continue;
            size_t r = table_row(t, block);
            cell_text(table_cell(t, r, C_MODEL), tsv_cell(pub, i, "model"));
            cell_text(table_cell(t, r, C_RUN), tsv_cell(pub, i, "search"));
            cell_text(table_cell(t, r, C_TRAIN), tsv_cell(pub, i, "train"));
            cell_num(table_cell(t, r, C_RULER), tsv_number(pub, i, "RULER"), -1, 2);
            for (size_t c = 0; c < ARRAY_LEN(tasks); c++)
                cell_num(table_cell(t, r, C_TASK + c), tsv_number(pub, i, tasks[c].title), -1, 2);
            if (block)
                table_cell(t, r, C_MODEL)->note = table_note(t, "%s", pub->source);
            block = NULL;
        }
    }
}

int report_models(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct arena a;
    struct table t;
    struct tsv pub;
    const struct node *n[REP_MAX_NODES], *ruler[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n)), n_ruler = rep_nodes(p, rep, "ruler", ruler, ARRAY_LEN(ruler)), shown = 0;
    arena_init(&a, 0);
    int rc = tsv_published(&pub, &a, rep_word(rep, "values", "dash_table2"), e);
    if (rc == 0) {
        table_init(&t, &a, rep->name, NULL);
        columns(&t);
        for (size_t i = 0; i < k; i++)
            if (!strcmp(n[i]->kind->name, "lmeval"))
                own_row(p, &t, &a, n[i], ruler, n_ruler, shown++ ? NULL : "ours", res);
        published_rows(p, &t, &pub);
        if (t.n_rows)
            table_cell(&t, 0, C_TASK)->note = table_note(
                &t,
                "accuracy in percent; ARC and PIQA by answer length (acc_norm), a choice of ours: the paper does not say which it shows");
        str_printf(&res->verdict, "%zu models of our own, %d of %d scores missing; external hybrids as published", shown, res->missing,
                   res->missing + res->cells);
        rc = arena_ok(&a, "a table", e) || rep_emit(p, rep, &t, out_dir, text, e) ? -1 : 0;
    }
    arena_free(&a);
    return rc;
}
