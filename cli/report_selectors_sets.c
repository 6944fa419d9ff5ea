/* What selectors agree on: the overlap of their sets (NAME-overlap), and how often each layer is kept (NAME-stability). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/selector.h"
#include "cli/report_kinds.h"
#include "cli/selectors_data.h"

/* ---- overlap ---- */

enum { MAX_BUDGETS = 32, MAX_SETS = 58 }; /* MAX_SETS: columns of a table, less three */

double sel_jaccard(const char *a, const char *b)
{
    int both = 0, any = 0;
    for (; *a && *b; a++, b++) {
        both += *a != 'l' && *b != 'l';
        any += *a != 'l' || *b != 'l';
    }
    return any ? (double)both / (double)any : 1;
}

static double choose(int n, int k)
{
    double c = 1;
    for (int i = 1; i <= k; i++)
        c = c * (double)(n - k + i) / (double)i;
    return k < 0 || k > n ? 0 : c;
}

/* Expected index of two independent random sets of k of n layers. */
static double by_chance(int n, int k)
{
    double sum = 0;
    for (int i = MAX(0, 2 * k - n); i <= k; i++)
        sum += choose(k, i) * choose(n - k, k - i) / choose(n, k) * (double)i / (double)(2 * k - i);
    return sum;
}

static const char *overlap_block(const struct sel_data *d, double budget, const struct sel_entry *first)
{
    int layers = (int)strlen(first->mask), k = (int)budget;
    if (budget != (double)k || k > layers)
        return arena_printf(d->a, "budget %g", budget);
    return arena_printf(d->a, "budget %g (two random sets of %d of %d layers: %.2f)", budget, k, layers, by_chance(layers, k));
}

static void overlap_rows(const struct sel_data *d, struct table *t, double budget, const struct sel_entry *const *s, size_t n)
{
    const char *block = n ? overlap_block(d, budget, s[0]) : NULL;
    for (size_t i = 0; i < n; i++, block = NULL) {
        size_t r = table_row(t, block);
        cell_int(table_cell(t, r, 0), (int64_t)i + 1);
        cell_text(table_cell(t, r, 1), s[i]->name);
        cell_text(table_cell(t, r, 2), s[i]->mask);
        for (size_t k = 0; k < n && k < MAX_SETS; k++)
            cell_num(table_cell(t, r, 3 + k), sel_jaccard(s[i]->mask, s[k]->mask), -1, 2);
        if (i >= MAX_SETS)
            table_cell(t, r, 1)->note = table_note(t, "rows from %d on have no column; the index is symmetric", MAX_SETS + 1);
    }
}

int selectors_overlap(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e)
{
    double budget[MAX_BUDGETS];
    const struct sel_entry *s[SEL_MAX_ENTRIES];
    size_t nb = sel_budgets(d, budget, MAX_BUDGETS), most = 0;
    struct table t;
    for (size_t b = 0; b < nb; b++)
        most = MAX(most, sel_sets(d, budget[b], s, SEL_MAX_ENTRIES));
    if (most < 2) {
        str_printf(text, "no overlap table: no budget has two sets\n");
        return 0;
    }
    table_init(&t, d->a, arena_printf(d->a, "%s-overlap", rep->name),
               arena_printf(d->a, "Overlap of the sets of a budget (%s scale)", d->p->m->scale));
    table_col(&t, "row", NULL, false, false);
    table_col(&t, "selector", NULL, true, false);
    table_col(&t, "set", NULL, true, false);
    for (size_t k = 0; k < MIN(most, (size_t)MAX_SETS); k++)
        table_col(&t, arena_printf(d->a, "%zu", k + 1), "Jaccard index with row", false, false);
    for (size_t b = 0; b < nb; b++) {
        size_t n = sel_sets(d, budget[b], s, SEL_MAX_ENTRIES);
        if (n > 1)
            overlap_rows(d, &t, budget[b], s, n);
        else
            str_printf(text, "overlap: budget %g has only one set\n", budget[b]);
    }
    t.caption = arena_printf(d->a, "%s scale. Layers that keep attention (full or window) in both sets, over those that do in either.",
                             d->p->m->scale);
    str_puts(text, "\n");
    table_text(&t, text);
    return table_save(&t, dir, e);
}

/* ---- stability ---- */

enum { MAX_PANELS = 24, MAX_TRIES = 512 };

struct kept { /* share of sets in which a layer is Full, Window */
    double full[REP_MAX_LAYERS], window[REP_MAX_LAYERS], weight;
    size_t layers, sets;
};

static void add_set(struct kept *k, const char *mask, double weight)
{
    size_t n = strlen(mask);
    if (n > REP_MAX_LAYERS || (k->layers && n != k->layers))
        return;
    k->layers = n;
    k->sets++;
    k->weight += weight;
    for (size_t l = 0; l < n; l++) {
        k->full[l] += mask[l] == 'F' ? weight : 0;
        k->window[l] += mask[l] == 'W' ? weight : 0;
    }
}

/* Whether a set comes from looking at the model: not from a rule, a random number or a list. */
static bool looks(const struct sel_entry *x)
{
    const struct selector *s = x->trained_search ? NULL : selector_find(node_str(x->sel, "method"));
    return x->trained_search || (s && s != &sel_uniform && s != &sel_random && s != &sel_custom && s != &sel_published);
}

struct panels {
    const struct sel_data *d;
    struct panel p[MAX_PANELS];
    size_t n, left_out;
};

static int add_panel(struct panels *v, const struct kept *k, const char *title, struct err *e)
{
    struct arena *a = v->d->a;
    bool any = false;
    for (size_t l = 0; l < k->layers; l++)
        any = any || k->full[l] + k->window[l] > 0;
    if (!any)
        return 0; /* every set is all linear: nothing to draw */
    if (v->n == MAX_PANELS) {
        v->left_out++;
        return 0;
    }
    struct rect *r = arena_array(a, 2 * k->layers, sizeof *r);
    struct tic *xt = arena_array(a, k->layers, sizeof *xt), *yt = arena_array(a, 3, sizeof *yt);
    size_t every = k->layers > 24 ? 4 : k->layers > 9 ? 2 : 1, nt = 0;
    TRY(arena_ok(a, "a figure", e));
    for (size_t l = 0; l < k->layers; l++) {
        double f = k->full[l] / k->weight, w = MIN(1, f + k->window[l] / k->weight), x = (double)l;
        r[2 * l] = (struct rect){x - 0.4, x + 0.4, 0, f, 0};
        r[2 * l + 1] = (struct rect){x - 0.4, x + 0.4, f, w, 1};
        if (l % every == 0)
            xt[nt++] = (struct tic){x, arena_printf(a, "%zu", l)};
    }
    yt[0] = (struct tic){0, "0"};
    yt[1] = (struct tic){0.5, "0.5"};
    yt[2] = (struct tic){1, "1"};
    v->p[v->n++] = (struct panel){.title = title,
                                  .xlabel = "layer",
                                  .ylabel = "kept in",
                                  .xlo = -0.6,
                                  .xhi = (double)k->layers - 0.4,
                                  .ylo = 0,
                                  .yhi = 1,
                                  .r = r,
                                  .n = 2 * k->layers,
                                  .xtic = xt,
                                  .n_xtic = nt,
                                  .ytic = yt,
                                  .n_ytic = 3};
    return arena_ok(a, "a figure", e);
}

/* Over selectors: one vote each, shared by its sets. */
static int over_selectors(struct panels *v, double budget, const struct sel_entry *const *s, size_t n, struct err *e)
{
    struct kept k = {0};
    size_t voters = 0;
    for (size_t i = 0; i < n; i++) {
        size_t own = 0, before = 0;
        for (size_t j = 0; j < n; j++)
            if (!strcmp(s[i]->label, s[j]->label)) {
                own++;
                before += j < i;
            }
        if (!looks(s[i]) || s[i]->n_full + s[i]->n_window == 0)
            continue;
        voters += before == 0;
        add_set(&k, s[i]->mask, 1 / (double)own);
    }
    return voters < 2 ? 0 : add_panel(v, &k, arena_printf(v->d->a, "budget %g: %zu selectors", budget, voters), e);
}

/* Over seeds (and a search's lambdas): all runs of one label. */
static int over_runs(struct panels *v, double budget, const struct sel_entry *const *s, size_t n, size_t first, struct err *e)
{
    struct kept k = {0};
    struct search_try *t = s[first]->trained_search ? arena_array(v->d->a, MAX_TRIES, sizeof *t) : NULL;
    TRY(arena_ok(v->d->a, "search runs", e));
    for (size_t j = 0; j < first; j++)
        if (!strcmp(s[j]->label, s[first]->label))
            return 0; /* shown already */
    for (size_t j = first; j < n; j++) {
        if (strcmp(s[j]->label, s[first]->label))
            continue;
        size_t tries = t ? search_tries(s[j]->sel, v->d->a, t, MAX_TRIES) : 0;
        for (size_t i = 0; i < tries; i++)
            add_set(&k, t[i].mask, 1);
        if (!tries)
            add_set(&k, s[j]->mask, 1);
    }
    return k.sets < 2 ? 0 : add_panel(v, &k, arena_printf(v->d->a, "budget %g, %s: %zu runs", budget, s[first]->label, k.sets), e);
}

int selectors_stability(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e)
{
    double budget[MAX_BUDGETS];
    const struct sel_entry *s[SEL_MAX_ENTRIES];
    struct panels v = {.d = d};
    size_t nb = sel_budgets(d, budget, MAX_BUDGETS);
    static const char *const parts[] = {"Full", "Window"};
    for (size_t b = 0; b < nb; b++) {
        size_t n = sel_sets(d, budget[b], s, SEL_MAX_ENTRIES);
        TRY(over_selectors(&v, budget[b], s, n, e));
        for (size_t i = 0; i < n; i++)
            TRY(looks(s[i]) ? over_runs(&v, budget[b], s, n, i, e) : 0);
    }
    if (!v.n) {
        str_printf(text, "no stability figure: no budget has sets of two selectors that look at the model, or two runs of one\n");
        return 0;
    }
    if (v.left_out)
        str_printf(text, "stability figure: %zu panels beyond the first %d are left out\n", v.left_out, MAX_PANELS);
    size_t cols = v.n > 3 && v.n % 3 == 0 ? 3 : v.n > 1 && v.n % 2 == 0 ? 2 : 1, rows = v.n / cols;
    struct picture pic = {
        .name = arena_printf(d->a, "%s-stability", rep->name),
        .note = arena_printf(d->a, "%s scale; share of sets in which a layer keeps attention; runs: seeds, of a search also lambdas",
                             d->p->m->scale),
        .parts = parts,
        .n_parts = 2,
        .p = v.p,
        .rows = rows,
        .cols = cols,
        .width = cols > 1 ? 6.75 : 4.2,
        .height = 0.9 + 1.4 * (double)rows,
        .left = 0.55};
    TRY(arena_ok(d->a, "a figure", e));
    return rep_picture(&pic, dir, text, e);
}
