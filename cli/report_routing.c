/*
 * Report kind "routing": how decided a search is before its soft mixture is made discrete (DASH Table 3), the sets of all search runs
 * (Figures 5 and 6), and the routing of chosen runs (Figure 7). Layers that a search holds fixed are left out.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"

static const char *const parts[] = {"Full", "Window", "Linear"};

static bool searched(const struct node *n, size_t layer)
{
    return layer > 0 || !strcmp(node_str(n, "layer0"), "search");
}

/* ---- Table 3 ---- */

enum {
    V_BUDGET,
    V_ENTROPY,
    V_TOP1,
    V_MARGIN,
    V_AMBIGUOUS,
    V_ENTROPY1,
    V_TOP11,
    V_MARGIN1,
    V_AMBIGUOUS1,
    V_SOFT,
    V_ARGMAX,
    V_GAP,
    V_SOFTA,
    V_ARGMAXA,
    V_GAPA,
    V_RULER,
    N_VALUES
};
static const struct {
    const char *name, *group;
    int digits;
} values[N_VALUES] = {{"budget", NULL, 3},
                      {"entropy", "final T_arch", 3},
                      {"top-1", "final T_arch", 3},
                      {"margin", "final T_arch", 3},
                      {"ambiguous", "final T_arch", 1},
                      {"entropy", "ours: at T_arch = 1", 3},
                      {"top-1", "ours: at T_arch = 1", 3},
                      {"margin", "ours: at T_arch = 1", 3},
                      {"ambiguous", "ours: at T_arch = 1", 1},
                      {"soft", "ours: KL, all tokens", 4},
                      {"argmax", "ours: KL, all tokens", 4},
                      {"difference", "ours: KL, all tokens", 4},
                      {"soft", "ours: KL, answers", 3},
                      {"argmax", "ours: KL, answers", 3},
                      {"difference", "ours: KL, answers", 3},
                      {"RULER", NULL, 1}};

struct diag_run {
    const struct node *n;
    double lambda, v[N_VALUES];
    const char *seed;
    bool annealed;
    const char *missing;
};

/* Entropy, top-1, margin and layers with a margin below 0.2 of softmax(alpha), from p = softmax(alpha / T): alpha = T log p + const. */
static void at_one(const struct node *n, double *out)
{
    double p[REP_MAX_LAYERS][3], t = !strcmp(node_str(n, "anneal"), "none") ? node_f64(n, "t_hi") : node_f64(n, "t_lo");
    size_t layers = search_routing(n, p), used = 0;
    double sum[4] = {0};
    bool window = strstr(node_str(n, "ops"), "window") != NULL;
    for (size_t l = 0; l < layers; l++) {
        double q[3], z = 0, top = 0, second = 0;
        if (!searched(n, l))
            continue;
        for (int o = 0; o < 3; o++) {
            q[o] = o == 1 && !window ? 0 : pow(p[l][o], t);
            z += q[o];
        }
        for (int o = 0; o < 3; o++) {
            q[o] /= z;
            sum[0] -= q[o] > 0 ? q[o] * log(q[o]) : 0;
            second = q[o] > top ? top : fmax(second, q[o]);
            top = fmax(top, q[o]);
        }
        sum[1] += top;
        sum[2] += top - second;
        sum[3] += top - second < 0.2;
        used++;
    }
    for (int i = 0; i < 4; i++)
        out[i] = used ? i < 3 ? sum[i] / (double)used : sum[i] : NAN;
}

static void read_run(struct plan *p, const struct node *n, const struct node *const *ruler, size_t n_ruler, struct diag_run *d)
{
    static const char *const names[] = {"budget", "entropy", "top1", "margin", "ambiguous"};
    *d = (struct diag_run){.n = n,
                           .lambda = node_f64(n, "lambda"),
                           .seed = node_str(n, "seeds"),
                           .annealed = strcmp(node_str(n, "anneal"), "none") != 0,
                           .missing = rep_missing(n)};
    for (int i = 0; i < N_VALUES; i++)
        d->v[i] = NAN;
    if (d->missing)
        return;
    for (int i = 0; i < 5; i++)
        d->v[i] = rep_number(p, n, names[i]);
    at_one(n, d->v + V_ENTROPY1);
    d->v[V_SOFT] = rep_number(p, n, "kl_soft");
    d->v[V_ARGMAX] = rep_number(p, n, "kl_argmax_layer0");
    d->v[V_GAP] = d->v[V_ARGMAX] - d->v[V_SOFT];
    d->v[V_SOFTA] = rep_number(p, n, "kl_answers_soft");
    d->v[V_ARGMAXA] = rep_number(p, n, "kl_answers_argmax_layer0");
    d->v[V_GAPA] = d->v[V_ARGMAXA] - d->v[V_SOFTA];
    d->lambda = rep_number(p, n, "lambda");
    for (size_t i = 0; i < n_ruler; i++)
        if (node_of_kind(ruler[i], "search") == n)
            d->v[V_RULER] = rep_number(p, ruler[i], "mean");
}

static void diag_columns(struct table *t, bool runs)
{
    table_col(t, "setting", NULL, true, false);
    table_col(t, runs ? "seed" : "seeds", NULL, false, false);
    for (int i = 0; i < N_VALUES; i++)
        table_col(t, values[i].name, values[i].group, false, false);
}

static const char *setting_name(bool annealed)
{
    return annealed ? "with annealing" : "T_arch = 1 throughout";
}

static int diag_runs(struct plan *p, const struct report *rep, struct arena *a, const struct diag_run *d, size_t n, const char *dir,
                     struct str *text, struct err *e)
{
    struct table t;
    table_init(&t, a, arena_printf(a, "%s-runs", rep->name), arena_printf(a, "%s, every run (%s scale)", rep->title, p->m->scale));
    diag_columns(&t, true);
    for (size_t i = 0; i < n; i++) {
        size_t r = table_row(&t, i == 0 || d[i].lambda != d[i - 1].lambda ? arena_printf(a, "lambda %g", d[i].lambda) : NULL);
        cell_text(table_cell(&t, r, 0), setting_name(d[i].annealed));
        cell_text(table_cell(&t, r, 1), d[i].seed);
        for (int v = 0; v < N_VALUES; v++)
            cell_num(table_cell(&t, r, 2 + (size_t)v), d[i].v[v], -1, v == V_AMBIGUOUS || v == V_AMBIGUOUS1 ? 0 : values[v].digits);
        if (d[i].missing) {
            cell_text(table_cell(&t, r, 2), rep_state(d[i].n));
            table_cell(&t, r, 2)->note = table_note(&t, "%.300s", d[i].missing);
        }
    }
    return rep_emit(p, rep, &t, dir, text, e);
}

/* Mean and standard error over the seeds of one lambda and setting; holes leave the cell empty. */
static void diag_mean(struct table *t, size_t row, const struct diag_run *d, size_t n, double lambda, bool annealed)
{
    size_t seeds = 0;
    cell_text(table_cell(t, row, 0), setting_name(annealed));
    for (size_t i = 0; i < n; i++)
        seeds += d[i].lambda == lambda && d[i].annealed == annealed && !d[i].missing;
    cell_int(table_cell(t, row, 1), (int64_t)seeds);
    for (int v = 0; v < N_VALUES; v++) {
        double mean = 0, dev = 0, k = (double)seeds;
        for (size_t i = 0; i < n; i++)
            if (d[i].lambda == lambda && d[i].annealed == annealed && !d[i].missing)
                mean += d[i].v[v] / k;
        for (size_t i = 0; i < n; i++)
            if (d[i].lambda == lambda && d[i].annealed == annealed && !d[i].missing)
                dev += (d[i].v[v] - mean) * (d[i].v[v] - mean);
        cell_num(table_cell(t, row, 2 + (size_t)v), seeds ? mean : NAN,
                 seeds > 1 && (v == V_BUDGET || v == V_GAP || v == V_GAPA || v == V_RULER) ? sqrt(dev / (k - 1) / k) : -1,
                 values[v].digits);
    }
}

static void published_rows(struct plan *p, struct table *t, const struct tsv *pub)
{
    static const char *const names[] = {"budget", "entropy", "top1", "margin", "ambiguous"};
    for (size_t i = 1; i < pub->n; i++) {
        size_t r = table_row(t, i == 1 ? rep_paper(p) : NULL);
        cell_text(table_cell(t, r, 0), arena_printf(t->a, "%s, about %s", tsv_cell(pub, i, "setting"), tsv_cell(pub, i, "regime")));
        for (size_t k = 0; k < 5; k++)
            cell_num(table_cell(t, r, 2 + k), tsv_number(pub, i, names[k]), -1, k == 4 ? 0 : 3);
        cell_num(table_cell(t, r, 2 + V_RULER), tsv_number(pub, i, "ruler"), -1, 2);
        if (i == 1)
            table_cell(t, r, 0)->note = table_note(t, "%s", pub->source);
    }
}

/* Pairs of one lambda and seed: in how many the annealed run has the smaller value. */
static void diag_verdict(const struct diag_run *d, size_t n, struct str *v, int *missing)
{
    size_t pairs = 0, sharper = 0, gap = 0, gap_answers = 0;
    for (size_t i = 0; i < n; i++) {
        *missing += d[i].missing != NULL;
        for (size_t k = 0; k < n && d[i].annealed && !d[i].missing; k++) {
            if (d[k].annealed || d[k].missing || d[k].lambda != d[i].lambda || strcmp(d[k].seed, d[i].seed))
                continue;
            pairs++;
            sharper += d[i].v[V_ENTROPY] < d[k].v[V_ENTROPY];
            gap += fabs(d[i].v[V_GAP]) < fabs(d[k].v[V_GAP]);
            gap_answers += fabs(d[i].v[V_GAPA]) < fabs(d[k].v[V_GAPA]);
        }
    }
    str_printf(v,
               "%zu pairs of one lambda and seed; the annealed run has the lower entropy in %zu, and its argmax is closer in KL to its "
               "mixture (smaller difference, either sign) in %zu on all tokens and in %zu on answers",
               pairs, sharper, gap, gap_answers);
    if (*missing)
        str_printf(v, "; %d searches not made", *missing);
}

static int by_lambda(const void *x, const void *y)
{
    const struct diag_run *a = x, *b = y;
    if (a->lambda != b->lambda)
        return a->lambda < b->lambda ? 1 : -1; /* low budgets first */
    if (a->annealed != b->annealed)
        return a->annealed ? 1 : -1;
    return strcmp(a->seed, b->seed);
}

static int diagnostics(struct plan *p, const struct report *rep, struct arena *a, const char *dir, struct str *text,
                       struct report_result *res, struct err *e)
{
    const struct node **n = arena_array(a, REP_MAX_NODES, sizeof *n), **ruler = arena_array(a, REP_MAX_NODES, sizeof *ruler);
    struct diag_run *d = arena_array(a, REP_MAX_NODES, sizeof *d);
    struct tsv pub = {0};
    struct table t;
    TRY(arena_ok(a, "a report", e));
    size_t k = rep_nodes(p, rep, "from", n, REP_MAX_NODES), n_ruler = rep_nodes(p, rep, "ruler", ruler, REP_MAX_NODES);
    TRY(tsv_published(&pub, a, rep_word(rep, "values", "dash_table3"), e));
    for (size_t i = 0; i < k; i++)
        read_run(p, n[i], ruler, n_ruler, &d[i]);
    qsort(d, k, sizeof *d, by_lambda);
    table_init(&t, a, rep->name, arena_printf(a, "%s (%s scale)", rep->title, p->m->scale));
    diag_columns(&t, false);
    for (size_t i = 0; i < k; i++)
        if (i == 0 || d[i].lambda != d[i - 1].lambda)
            for (int annealed = 0; annealed < 2; annealed++)
                diag_mean(&t, table_row(&t, annealed ? NULL : arena_printf(a, "lambda %g", d[i].lambda)), d, k, d[i].lambda, annealed);
    if (t.n_rows)
        table_cell(&t, 0, 2 + V_SOFT)->note = table_note(&t, "soft: the mixture at the final T_arch; argmax: after discretisation, layer 0 "
                                                             "as in the search; searched layers only; ± over search seeds");
    published_rows(p, &t, &pub);
    res->cells = (int)k;
    diag_verdict(d, k, &res->verdict, &res->missing);
    TRY(rep_emit(p, rep, &t, dir, text, e));
    return diag_runs(p, rep, a, d, k, dir, text, e);
}

/* ---- Figures 5 and 6 ---- */

/* How a search differs from the paper's, short enough for a row; "" for the paper's. */
static const char *variant_of(const struct node *n)
{
    if (strcmp(node_str(n, "relax"), "soft"))
        return strcmp(node_str(n, "relax"), "bilevel") ? ", s-t" : ", bilevel";
    if (!strcmp(node_str(n, "anneal"), "none"))
        return ", T=1";
    return strcmp(node_str(n, "layer0"), "paper") ? ", l0" : "";
}

static int by_budget(const void *x, const void *y)
{
    const struct search_try *a = x, *b = y;
    if (a->budget != b->budget)
        return a->budget < b->budget ? -1 : 1;
    if (a->lambda != b->lambda)
        return a->lambda > b->lambda ? -1 : 1;
    if (a->seed != b->seed)
        return a->seed < b->seed ? -1 : 1;
    int order = strcmp(variant_of(a->node), variant_of(b->node));
    return order ? order : strcmp(a->mask, b->mask);
}

/* Runs of one lambda, seed, variant and set are shown once: two stages may have made the same search. */
static size_t all_tries(const struct node *const *n, size_t k, struct arena *a, struct search_try *out, size_t cap)
{
    size_t total = 0, kept = 0;
    for (size_t i = 0; i < k; i++)
        total += search_tries(n[i], a, out + total, cap - total);
    qsort(out, total, sizeof *out, by_budget);
    for (size_t i = 0; i < total; i++)
        if (kept == 0 || out[i].lambda != out[kept - 1].lambda || out[i].seed != out[kept - 1].seed ||
            strcmp(variant_of(out[i].node), variant_of(out[kept - 1].node)) || strcmp(out[i].mask, out[kept - 1].mask))
            out[kept++] = out[i];
    return kept;
}

static int top1(struct plan *p, const struct report *rep, struct arena *a, const char *dir, struct str *text, struct report_result *res,
                struct err *e)
{
    enum { MAX_TRIES = 512 };
    const struct node **n = arena_array(a, REP_MAX_NODES, sizeof *n);
    struct search_try *s = arena_array(a, MAX_TRIES, sizeof *s);
    TRY(arena_ok(a, "a report", e));
    size_t k = rep_nodes(p, rep, "from", n, REP_MAX_NODES), layers = 0, at = 0;
    size_t rows = all_tries(n, k, a, s, MAX_TRIES);
    size_t first = 1;
    bool variants = false;
    for (size_t i = 0; i < k; i++)
        res->missing += rep_missing(n[i]) != NULL;
    res->cells = (int)k;
    str_printf(&res->verdict, "%zu search runs of %zu searches drawn", rows, k - (size_t)res->missing);
    if (res->missing)
        str_printf(&res->verdict, ", %d searches not made", res->missing);
    if (!rows)
        return 0;
    for (size_t i = 0; i < rows; i++)
        layers = MAX(layers, strlen(s[i].mask));
    struct rect *r = arena_array(a, rows * layers, sizeof *r);
    struct tic *yt = arena_array(a, rows, sizeof *yt), *xt = arena_array(a, layers, sizeof *xt);
    TRY(arena_ok(a, "a figure", e));
    for (size_t i = 0; i < rows; i++) {
        double y = -(double)i;
        for (size_t l = 0; s[i].mask[l]; l++)
            if (searched(s[i].node, l))
                r[at++] = (struct rect){(double)l - 0.48, (double)l + 0.48, y - 0.44, y + 0.44,
                                        s[i].mask[l] == 'F'   ? 0
                                        : s[i].mask[l] == 'W' ? 1
                                                              : 2};
        yt[i] = (struct tic){y, arena_printf(a, "%g  (%.3g, %" PRId64 "%s)", s[i].budget, s[i].lambda, s[i].seed, variant_of(s[i].node))};
        first = searched(s[i].node, 0) ? 0 : first; /* where a search took in layer 0 */
        variants = variants || *variant_of(s[i].node);
    }
    for (size_t l = first; l < layers; l++)
        xt[l - first] = (struct tic){(double)l, arena_printf(a, "%zu", l)};
    struct panel pn = {.xlabel = "searchable layer",
                       .xlo = (double)first - 0.6,
                       .xhi = (double)layers - 0.4,
                       .ylo = -(double)rows + 0.4,
                       .yhi = 0.6,
                       .r = r,
                       .n = at,
                       .xtic = xt,
                       .n_xtic = layers - first,
                       .ytic = yt,
                       .n_ytic = rows};
    struct picture pic = {.name = rep->name,
                          .note = arena_printf(a, "%s scale; one row a search run: realised budget (lambda, seed)%s", p->m->scale,
                                               variants ? "; s-t: straight-through, T=1: not annealed, l0: layer 0 searched" : ""),
                          .parts = parts,
                          .n_parts = 3,
                          .p = &pn,
                          .rows = 1,
                          .cols = 1,
                          .width = layers > 24 ? 6.75 : 4.2,
                          .height = 1.15 + 0.125 * (double)rows,
                          .left = variants ? 1.6 : 1.35};
    return rep_picture(&pic, dir, text, e);
}

/* ---- Figure 7 ---- */

static size_t stack_panel(const struct node *n, struct arena *a, struct plan *p, struct panel *out)
{
    double q[REP_MAX_LAYERS][3];
    size_t layers = search_routing(n, q), at = 0;
    struct rect *r = arena_array(a, layers * 3 + 1, sizeof *r);
    struct tic *xt = arena_array(a, layers + 1, sizeof *xt);
    for (size_t l = 0; r && xt && l < layers; l++) {
        double y = 0;
        xt[l] = (struct tic){(double)l, arena_printf(a, "%zu", l)};
        for (int o = 0; o < 3 && searched(n, l); o++) {
            double top = o == 2 ? 1 : fmin(1, y + q[l][o]);
            r[at++] = (struct rect){(double)l - 0.42, (double)l + 0.42, y, top, o};
            y = top;
        }
    }
    *out = (struct panel){.title =
                              arena_printf(a, "%s, lambda %s, seed %s: budget %g", setting_name(strcmp(node_str(n, "anneal"), "none") != 0),
                                           node_str(n, "lambda"), rep_text(p, n, "search_seed"), rep_number(p, n, "budget")),
                          .ylabel = "probability",
                          .xlo = 0.4,
                          .xhi = (double)layers - 0.4,
                          .ylo = 0,
                          .yhi = 1,
                          .r = r,
                          .n = at,
                          .xtic = xt,
                          .n_xtic = layers};
    return at;
}

static int stacked(struct plan *p, const struct report *rep, struct arena *a, const char *dir, struct str *text, struct report_result *res,
                   struct err *e)
{
    const struct node *n[8];
    struct panel pn[8];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n)), shown = 0;
    for (size_t i = 0; i < k; i++)
        if (!rep_missing(n[i]) && stack_panel(n[i], a, p, &pn[shown]))
            shown++;
    res->cells = (int)k;
    res->missing = (int)(k - shown);
    str_printf(&res->verdict, "%zu of %zu searches drawn", shown, k);
    TRY(arena_ok(a, "a figure", e));
    if (!shown)
        return 0;
    pn[shown - 1].xlabel = "searchable layer";
    struct picture pic = {.name = rep->name,
                          .note = arena_printf(a, "%s scale; probabilities at each run's final T_arch, before discretisation", p->m->scale),
                          .parts = parts,
                          .n_parts = 3,
                          .p = pn,
                          .rows = shown,
                          .cols = 1,
                          .width = 4.2,
                          .height = 0.9 + 1.35 * (double)shown,
                          .left = 0.6};
    return rep_picture(&pic, dir, text, e);
}

int report_routing(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                   struct err *e)
{
    struct arena a;
    const char *show = rep_word(rep, "show", "diagnostics");
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n));
    for (size_t i = 0; i < k; i++)
        if (strcmp(n[i]->kind->name, "search"))
            return ERR(e, E_USAGE, "%s: report '%s': 'from' names '%s', a run of kind '%s'; search is needed", p->m->path, rep->name,
                       n[i]->stage->id, n[i]->kind->name);
    arena_init(&a, 0);
    int rc = !strcmp(show, "top1")      ? top1(p, rep, &a, out_dir, text, res, e)
             : !strcmp(show, "stacked") ? stacked(p, rep, &a, out_dir, text, res, e)
                                        : diagnostics(p, rep, &a, out_dir, text, res, e);
    arena_free(&a);
    return rc;
}
