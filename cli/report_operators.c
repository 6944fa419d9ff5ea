/* Report kind "operators": how many operators of each kind a set has (DASH Table 10), and where they are (Figure 4). Layer 0 is shown as it
 * is distilled. */
#include <math.h>
#include <string.h>

#include "cli/report_kinds.h"

struct set_row {
    const struct node *n;
    double asked;
    const char *mask, *label;
    bool unfilled;
};

static size_t gather(struct plan *p, const struct report *rep, struct arena *a, struct set_row *out, size_t cap)
{
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, MIN(cap, ARRAY_LEN(n)));
    for (size_t i = 0; i < k; i++) {
        const char *asked = node_setting(n[i], "budget"), *variant = rep_text(p, n[i], "variant");
        out[i] = (struct set_row){
            .n = n[i], .mask = rep_text(p, n[i], "mask"), .label = n[i]->label, .unfilled = !strcmp(rep_text(p, n[i], "filled"), "false")};
        if (!asked || !parse_f64(asked, &out[i].asked))
            out[i].asked = 0;
        if (*variant)
            out[i].label = arena_printf(a, "%s (%s)", n[i]->label, variant);
    }
    return k;
}

/* The smallest budget asked for that is larger than `last`; INFINITY when there is none. */
static double next_budget(const struct set_row *s, size_t n, double last)
{
    double next = INFINITY;
    for (size_t i = 0; i < n; i++)
        if (s[i].asked > last)
            next = fmin(next, s[i].asked);
    return next;
}

static int64_t count(const char *mask, char letter)
{
    int64_t n = 0;
    for (; *mask; mask++)
        n += *mask == letter;
    return n;
}

/* ---- Table 10 ---- */

enum { C_NAME, C_FULL, C_WINDOW, C_LINEAR, C_BUDGET, C_PFULL, C_PWINDOW, C_PLINEAR, C_PBUDGET };

static void counts_row(struct plan *p, const struct report *rep, struct table *t, size_t row, const struct set_row *s,
                       const struct tsv *pub, int *missing)
{
    const char *why = rep_missing(s->n), *column = rep_published_budget(rep, s->asked);
    cell_text(table_cell(t, row, C_NAME), s->label);
    if (why) {
        cell_text(table_cell(t, row, C_BUDGET), rep_state(s->n));
        table_cell(t, row, C_BUDGET)->note = table_note(t, "%.300s", why);
        ++*missing;
    } else {
        cell_int(table_cell(t, row, C_FULL), count(s->mask, 'F'));
        cell_int(table_cell(t, row, C_WINDOW), count(s->mask, 'W'));
        cell_int(table_cell(t, row, C_LINEAR), count(s->mask, 'l'));
        cell_num(table_cell(t, row, C_BUDGET), rep_number(p, s->n, "budget"), -1, 3);
        if (s->unfilled)
            table_cell(t, row, C_NAME)->note = table_note(t, "no run of this search filled the column; its closest set at or under it");
    }
    for (size_t i = 1; column && i < pub->n; i++) {
        static const char *const names[] = {"full", "window", "linear", "budget"};
        if (strcmp(tsv_cell(pub, i, "selector"), rep_selector(s->n)) || strcmp(tsv_cell(pub, i, "column"), column))
            continue;
        for (size_t k = 0; k < 4; k++)
            cell_num(table_cell(t, row, C_PFULL + k), tsv_number(pub, i, names[k]), -1, k == 3 ? 3 : 0);
    }
}

static int counts(struct plan *p, const struct report *rep, struct arena *a, const struct set_row *s, size_t n, const char *dir,
                  struct str *text, struct report_result *res, struct err *e)
{
    struct table t;
    struct tsv pub = {0};
    if (y_get(rep->node, "published"))
        TRY(tsv_published(&pub, a, rep_word(rep, "values", "dash_table10"), e));
    table_init(&t, a, rep->name, arena_printf(a, "%s (%s scale)", rep->title, p->m->scale));
    table_col(&t, "selector", NULL, true, false);
    for (int theirs = 0; theirs < (pub.n ? 2 : 1); theirs++) {
        const char *group = theirs ? rep_paper(p) : "ours";
        table_col(&t, "full", group, false, false);
        table_col(&t, "window", group, false, false);
        table_col(&t, "linear", group, false, false);
        table_col(&t, "budget", group, false, false);
    }
    for (double b = next_budget(s, n, -1); isfinite(b); b = next_budget(s, n, b)) {
        const char *block = b > 0 ? arena_printf(a, "budget %g", b) : "no budget asked for";
        for (size_t i = 0; i < n; i++)
            if (s[i].asked == b) {
                counts_row(p, rep, &t, table_row(&t, block), &s[i], &pub, &res->missing);
                block = NULL;
            }
    }
    if (t.n_rows && pub.n)
        table_cell(&t, 0, C_PFULL)->note = table_note(&t, "%s", pub.source);
    res->cells = (int)n;
    str_printf(&res->verdict, "%zu sets, %d not made", n, res->missing);
    return rep_emit(p, rep, &t, dir, text, e);
}

/* ---- Figure 4 ---- */

static int grid(struct plan *p, const struct report *rep, struct arena *a, const struct set_row *s, size_t n, const char *dir,
                struct str *text, struct report_result *res, struct err *e)
{
    static const char *const parts[] = {"Full", "Window", "Linear"};
    size_t layers = 0, shown = 0, groups = 0, k = 0, row = 0;
    for (size_t i = 0; i < n; i++) {
        layers = MAX(layers, strlen(s[i].mask));
        shown += *s[i].mask != 0;
    }
    res->cells = (int)n;
    res->missing = (int)(n - shown);
    str_printf(&res->verdict, "%zu of %zu allocations drawn", shown, n);
    if (!shown)
        return 0;
    struct rect *r = arena_array(a, shown * layers, sizeof *r);
    struct tic *yt = arena_array(a, shown, sizeof *yt), *xt = arena_array(a, layers, sizeof *xt);
    if (arena_ok(a, "figure", e) != 0)
        return -1;
    for (double b = next_budget(s, n, -1); isfinite(b); b = next_budget(s, n, b), groups++)
        for (size_t i = 0; i < n; i++) {
            if (s[i].asked != b || !*s[i].mask)
                continue;
            double y = -(double)row - 0.5 * (double)groups;
            for (size_t l = 0; s[i].mask[l]; l++)
                r[k++] = (struct rect){(double)l - 0.46, (double)l + 0.46, y - 0.4, y + 0.4,
                                       s[i].mask[l] == 'F'   ? 0
                                       : s[i].mask[l] == 'W' ? 1
                                                             : 2};
            yt[row++] = (struct tic){y, arena_printf(a, "%s, B %g", s[i].label, rep_number(p, s[i].n, "budget"))};
        }
    for (size_t l = 0; l < layers; l++)
        xt[l] = (struct tic){(double)l, arena_printf(a, "%zu", l)};
    struct panel pn = {.xlabel = "layer",
                       .xlo = -0.6,
                       .xhi = (double)layers - 0.4,
                       .ylo = yt[row - 1].at - 0.6,
                       .yhi = 0.6,
                       .r = r,
                       .n = k,
                       .xtic = xt,
                       .n_xtic = layers,
                       .ytic = yt,
                       .n_ytic = row};
    struct picture pic = {.name = rep->name,
                          .note = arena_printf(a, "%s scale; B: realised budget; layer 0 as it is distilled", p->m->scale),
                          .parts = parts,
                          .n_parts = 3,
                          .p = &pn,
                          .rows = 1,
                          .cols = 1,
                          .width = layers > 24 ? 6.75 : 4.2,
                          .height = 1.1 + 0.16 * (double)row,
                          .left = 1.45};
    return rep_picture(&pic, dir, text, e);
}

int report_operators(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                     struct err *e)
{
    struct arena a;
    arena_init(&a, 0);
    struct set_row *s = arena_array(&a, REP_MAX_NODES, sizeof *s);
    int rc = arena_ok(&a, "a report", e);
    size_t n = rc == 0 ? gather(p, rep, &a, s, REP_MAX_NODES) : 0;
    if (rc == 0)
        rc = !strcmp(rep_word(rep, "show", "counts"), "grid") ? grid(p, rep, &a, s, n, out_dir, text, res, e)
                                                              : counts(p, rep, &a, s, n, out_dir, text, res, e);
    arena_free(&a);
    return rc;
}
