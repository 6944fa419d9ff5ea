/*
 * Report kind "budget-ruler": the figure of the main job. Budget against RULER for every selector, one panel a family, ours with intervals
 * and filled marks, published values hollow; the axis is the share of the layers, so that models of different depth have a common one.
 * NAME-points holds the numbers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"
#include "cli/selectors_data.h"

enum { N_FAMILIES = 6, MAX_MEMBERS = 5, MAX_POINTS = 24 };

static const struct family {
    const char *title;
    const char *member[MAX_MEMBERS], *name[MAX_MEMBERS];
} families[N_FAMILIES] = {
    {"fixed rule, random sets", {"uniform", "random"}, {"Uniform", "Random"}},
    {"task probes", {"kv", "ar", "ar-mh", "vt", "cwe"}, {"KV", "AR", "AR-MH", "VT", "CWE"}},
    {"signals of the model", {"lm-ppl", "act-mse", "smart"}, {"LM-PPL", "Act-MSE", "SMART"}},
    {"S1: hidden states", {"ga-s1", "gr-s1", "avg-s1"}, {"GA-S1", "GR-S1", "Avg-S1"}},
    {"S2: KL after distillation", {"ga-s2", "gr-s2", "avg-s2"}, {"GA-S2", "GR-S2", "Avg-S2"}},
    {"searched jointly", {"dash-3", "dash-2", "flashmorph", "halo", "postnas"}, {"DASH-3", "DASH-2", "FlashMorph", "HALO", "PostNAS"}}};

struct line { /* one member, ours or published */
    double x[MAX_POINTS], y[MAX_POINTS], half[MAX_POINTS];
    size_t n;
};
struct drawing {
    struct line own[N_FAMILIES][MAX_MEMBERS], published[N_FAMILIES][MAX_MEMBERS];
};

static void add(struct line *l, double x, double y, double half)
{
    size_t at = l->n;
    if (l->n == MAX_POINTS || !finite_f64(x) || !finite_f64(y))
        return;
    for (; at > 0 && l->x[at - 1] > x; at--) {
        l->x[at] = l->x[at - 1];
        l->y[at] = l->y[at - 1];
        l->half[at] = l->half[at - 1];
    }
    l->x[at] = x;
    l->y[at] = y;
    l->half[at] = finite_f64(half) ? half : 0;
    l->n++;
}

static bool place(const char *method, size_t *family, size_t *member)
{
    for (size_t f = 0; f < N_FAMILIES; f++)
        for (size_t m = 0; m < MAX_MEMBERS && families[f].member[m]; m++)
            if (!strcmp(families[f].member[m], method)) {
                *family = f;
                *member = m;
                return true;
            }
    return false;
}

/* A row of the table; a variant of a selector (layers excluded, windows added, another layer 0) is no point of the figure. */
static bool shown(const struct sel_data *d, const struct sel_entry *x)
{
    const char *variant = x->failed ? NULL : node_result(d->p, x->sel, "variant");
    return x->asked > 0 && !(variant && *variant);
}

static void own_points(const struct sel_data *d, struct drawing *w, struct table *t, int *missing)
{
    const char *last = "";
    for (size_t f = 0; f < N_FAMILIES; f++)
        for (size_t m = 0; m < MAX_MEMBERS && families[f].member[m]; m++)
            for (size_t i = 0; i < d->n; i++) {
                const struct sel_entry *x = &d->e[i];
                if (strcmp(rep_selector(x->sel), families[f].member[m]) != 0 || !shown(d, x))
                    continue;
                size_t r = table_row(t, strcmp(last, families[f].title) ? families[f].title : NULL);
                double layers = (double)strlen(x->mask);
                last = families[f].title;
                cell_text(table_cell(t, r, 0), x->name);
                if (x->failed) {
                    cell_text(table_cell(t, r, 3), strcmp(x->failed, "not run") ? "failed" : "-");
                    table_cell(t, r, 3)->note = table_note(t, "%.300s", x->failed);
                    ++*missing;
                    continue;
                }
                cell_num(table_cell(t, r, 1), x->realised, -1, 3);
                cell_num(table_cell(t, r, 2), 100 * x->realised / layers, -1, 1);
                cell_num(table_cell(t, r, 3), x->mean, x->se, 1);
                cell_int(table_cell(t, r, 4), (int64_t)x->n);
                add(&w->own[f][m], 100 * x->realised / layers, x->mean, 1.96 * x->se);
            }
}

static void published_points(const struct tsv *pub, struct drawing *w, struct table *t, const char *block)
{
    enum { LAYERS = 36 };
    for (size_t i = 1; i < pub->n; i++) {
        size_t f, m;
        const char *method = tsv_cell(pub, i, "selector");
        if (!place(method, &f, &m))
            continue;
        for (size_t c = 1; c < pub->cols; c++) {
            static const double tri[] = {4.875, 9.0, 17.75}; /* DASH-3's realised budgets, Table 6 */
            double b, v = tsv_number(pub, i, pub->row[0][c]);
            if (!parse_f64(pub->row[0][c], &b))
                continue;
            b = strcmp(method, "dash-3") || c > ARRAY_LEN(tri) ? b : tri[c - 1];
            add(&w->published[f][m], 100 * b / LAYERS, v, 0);
            size_t r = table_row(t, block);
            block = NULL;
            cell_text(table_cell(t, r, 0), families[f].name[m]);
            cell_num(table_cell(t, r, 1), b, -1, 3);
            cell_num(table_cell(t, r, 2), 100 * b / LAYERS, -1, 1);
            cell_num(table_cell(t, r, 3), v, -1, 2);
        }
    }
}

/* Names at the ends of lines, moved apart where they would overlap. */
static size_t labels(const struct drawing *w, size_t f, double step, struct panel_label *out)
{
    size_t n = 0;
    for (size_t m = 0; m < MAX_MEMBERS && families[f].member[m]; m++) {
        const struct line *l = w->own[f][m].n ? &w->own[f][m] : &w->published[f][m];
        if (!l->n)
            continue;
        size_t at = n++;
        for (; at > 0 && out[at - 1].y > l->y[l->n - 1]; at--)
            out[at] = out[at - 1];
        out[at] = (struct panel_label){.x = 56, .y = l->y[l->n - 1], .text = families[f].name[m], .style = (int)m + 1};
    }
    for (size_t pass = 0; pass < 64; pass++) {
        bool moved = false;
        for (size_t i = 1; i < n; i++)
            if (out[i].y - out[i - 1].y < step - 1e-9) {
                double lack = (step - (out[i].y - out[i - 1].y)) / 2;
                out[i].y += lack;
                out[i - 1].y -= lack;
                moved = true;
            }
        for (size_t i = 0; i < n; i++) { /* none below or above the panel */
            double lo = 6 + step * (double)i, hi = 102 - step * (double)(n - 1 - i);
            out[i].y = fmin(fmax(out[i].y, lo), hi);
        }
        if (!moved)
            break;
    }
    return n;
}

static bool panel_of(const struct drawing *w, size_t f, struct arena *a, struct panel *out)
{
    static const struct tic xt[] = {{0, "0"}, {25, "25"}, {50, "50"}, {75, "75"}, {100, "100"}},
                            yt[] = {{0, "0"}, {25, "25"}, {50, "50"}, {75, "75"}, {100, "100"}};
    struct series *s = arena_array(a, 2 * MAX_MEMBERS, sizeof *s);
    struct panel_label *name = arena_array(a, MAX_MEMBERS, sizeof *name);
    size_t n = 0;
    if (!s || !name)
        return false;
    for (size_t m = 0; m < MAX_MEMBERS && families[f].member[m]; m++) {
        const struct line *own = &w->own[f][m], *pub = &w->published[f][m];
        if (pub->n)
            s[n++] = (struct series){.label = arena_printf(a, "%s, published", families[f].name[m]),
                                     .x = pub->x,
                                     .y = pub->y,
                                     .n = pub->n,
                                     .style = (int)m + 1,
                                     .hollow = true};
        if (own->n)
            s[n++] = (struct series){.label = families[f].name[m],
                                     .x = own->x,
                                     .y = own->y,
                                     .se = own->half,
                                     .n = own->n,
                                     .style = (int)m + 1,
                                     .line = strcmp(families[f].member[m], "random") != 0};
    }
    *out = (struct panel){.title = families[f].title,
                          .xlabel = f >= N_FAMILIES / 2 ? "budget, % of the layers" : NULL,
                          .ylabel = f % (N_FAMILIES / 2) ? NULL : "RULER (%)",
                          .xlo = 0,
                          .xhi = 82,
                          .ylo = 0,
                          .yhi = 105,
                          .xtic = xt,
                          .n_xtic = 4,
                          .ytic = yt,
                          .n_ytic = ARRAY_LEN(yt),
                          .s = s,
                          .n_s = n,
                          .label = name,
                          .n_label = labels(w, f, 9, name)};
    return n > 0;
}

static int figure_of(struct plan *p, const struct report *rep, struct arena *a, const struct drawing *w, const char *dir, struct str *text,
                     struct err *e)
{
    struct panel pn[N_FAMILIES];
    bool any = false;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        if (!panel_of(w, f, a, &pn[f]))
            return arena_ok(a, "a figure", e);
        for (size_t m = 0; m < MAX_MEMBERS; m++)
            any = any || w->own[f][m].n;
    }
    if (!any) /* published points alone would be no result of ours */
        return 0;
    struct picture pic = {
        .name = rep->name,
        .note = arena_printf(
            a,
            "%s scale; intervals: 95 %%; several Stage-3 seeds where the table has them; a window layer counts as its share of the context",
            p->m->scale),
        .p = pn,
        .rows = 2,
        .cols = N_FAMILIES / 2,
        .width = 6.75,
        .height = 4.4,
        .left = 0.55,
        .key = arena_printf(a, "filled marks: ours, %s scale; hollow marks: published, Qwen2.5-3B-Instruct", p->m->scale)};
    return rep_picture(&pic, dir, text, e);
}

int report_budget(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct sel_data *d = calloc(1, sizeof *d);
    struct drawing *w = calloc(1, sizeof *w);
    struct arena a;
    struct table t;
    struct tsv pub;
    arena_init(&a, 0);
    int rc = d && w ? 0 : err_nomem(e, sizeof *d + sizeof *w, "a report");
    if (rc == 0)
        rc = sel_gather(d, p, &a, rep->node, e) || tsv_published(&pub, &a, rep_word(rep, "values", "dash_table1"), e) ? -1 : 0;
    if (rc == 0) {
        table_init(&t, &a, arena_printf(&a, "%s-points", rep->name),
                   arena_printf(&a, "%s, the points (%s scale)", rep->title, p->m->scale));
        table_col(&t, "selector", NULL, true, false);
        table_col(&t, "budget", NULL, false, false);
        table_col(&t, "% of layers", NULL, false, false);
        table_col(&t, "RULER", NULL, false, false);
        table_col(&t, "seeds", NULL, false, false);
        own_points(d, w, &t, &res->missing);
        size_t own = t.n_rows;
        published_points(&pub, w, &t,
                         arena_printf(&a, "published, Qwen2.5-3B-Instruct at 4096 tokens%s",
                                      strcmp(p->m->scale, "paper") ? " (another model and scale)" : ""));
        if (t.n_rows > own)
            table_cell(&t, own, 0)->note = table_note(&t, "%s", pub.source);
        res->cells = (int)own;
        str_printf(&res->verdict, "%zu points of our own, %d not made; published points in another mark", own - (size_t)res->missing,
                   res->missing);
        rc = rep_emit(p, rep, &t, out_dir, text, e) || figure_of(p, rep, &a, w, out_dir, text, e) ? -1 : 0;
    }
    if (d)
        sel_free(d);
    arena_free(&a);
    free(w);
    free(d);
    return rc;
}
