/* The tables beside the main one: what was chosen and where it stands, and every search run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/selectors_data.h"
#include "core/fs.h"

/* ---- the landscape: untrained KL of every binary set of a budget ---- */

struct place {
    double all, answers; /* share of sets that are better, percent */
    double best_all, best_answers, best_all_answers, best_answers_all;
    char best_all_mask[257], best_answers_mask[257];
    size_t sets;
};

static const struct node *landscape_of(const struct sel_data *d, double asked)
{
    for (size_t i = 0; i < d->p->n; i++) {
        const struct node *n = d->p->nodes[i];
        if (!strcmp(n->kind->name, "landscape") && n->state == RUN_COMPLETE && (double)node_i64(n, "budget") == asked)
            return n;
    }
    return NULL;
}

/* Lines "mask \t kl \t kl_answers" after a header. */
static bool find_place(const struct sel_data *d, double asked, double kl, double kl_answers, struct place *out)
{
    const struct node *n = landscape_of(d, asked);
    char path[1024];
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    size_t better = 0, better_answers = 0;
    *out = (struct place){.best_all = INFINITY, .best_answers = INFINITY};
    if (!n || file_read(node_out(path, n, "landscape.tsv"), 1 << 26, &s, &ignored) != 0) {
        str_free(&s);
        return false;
    }
    const char *p = strchr(str_c(&s), '\n');
    for (p = p ? p + 1 : ""; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t len = strcspn(p, "\t");
        char *end;
        if (p[len] != '\t' || len > 256)
            break;
        double a = strtod(p + len + 1, &end), b = strtod(end, NULL);
        out->sets++;
        better += a < kl;
        better_answers += b < kl_answers;
        if (a < out->best_all) {
            out->best_all = a;
            out->best_all_answers = b;
            snprintf(out->best_all_mask, sizeof out->best_all_mask, "%.*s", (int)len, p);
        }
        if (b < out->best_answers) {
            out->best_answers = b;
            out->best_answers_all = a;
            snprintf(out->best_answers_mask, sizeof out->best_answers_mask, "%.*s", (int)len, p);
        }
    }
    str_free(&s);
    out->all = 100 * (double)better / (double)MAX(1, out->sets);
    out->answers = 100 * (double)better_answers / (double)MAX(1, out->sets);
    return out->sets > 0;
}

/* How many tasks lie within two standard errors of the floor and of the ceiling. */
static void near_ends(const struct sel_data *d, const struct node *n, int *at_floor, int *at_ceiling)
{
    *at_floor = *at_ceiling = 0;
    for (const char *const *t = ruler_task_names(); *t; t++) {
        char se[64];
        snprintf(se, sizeof se, "%s_se", *t);
        double x = sel_number(d->p, n, *t), f = sel_number(d->p, d->floor, *t), c = sel_number(d->p, d->teacher, *t),
               sx = sel_number(d->p, n, se);
        if (isnan(x) || isnan(f) || isnan(c))
            continue;
        double sf = sel_number(d->p, d->floor, se), sc = sel_number(d->p, d->teacher, se);
        *at_floor += fabs(x - f) <= 2 * sqrt(sx * sx + sf * sf);
        *at_ceiling += fabs(x - c) <= 2 * sqrt(sx * sx + sc * sc);
    }
}

enum { D_NAME, D_SET, D_KL0, D_KL0A, D_PLACE, D_PLACEA, D_KL, D_KLA, D_REC, D_FLOOR, D_CEIL, D_TIES, D_BASE };

static void detail_columns(struct table *t)
{
    table_col(t, "selector", NULL, true, false);
    table_col(t, "set", NULL, true, false);
    table_col(t, "all", "untrained KL", false, false);
    table_col(t, "answers", "untrained KL", false, false);
    table_col(t, "% better, all", "of all sets", false, false);
    table_col(t, "% better, answers", "of all sets", false, false);
    table_col(t, "all", "KL after Stage 3", false, false);
    table_col(t, "answers", "KL after Stage 3", false, false);
    table_col(t, "recovered", NULL, false, false);
    table_col(t, "at floor", "tasks", false, false);
    table_col(t, "at ceiling", "tasks", false, false);
    table_col(t, "ties at the cut", NULL, false, false);
    table_col(t, "probe on the teacher, %", NULL, false, false);
}

static void detail_row(const struct sel_data *d, struct table *t, size_t row, const struct sel_entry *x)
{
    struct place pl;
    cell_text(table_cell(t, row, D_NAME), x->name);
    cell_text(table_cell(t, row, D_SET), x->mask);
    cell_num(table_cell(t, row, D_TIES), *x->mask ? x->ties : NAN, -1, 0);
    cell_num(table_cell(t, row, D_BASE), 100 * x->base, -1, 1);
    if (x->failed)
        return;
    cell_num(table_cell(t, row, D_KL0), x->kl0, -1, 4);
    cell_num(table_cell(t, row, D_KL0A), x->kl0_answers, -1, 3);
    bool binary = !strchr(x->mask, 'W');
    size_t full = 0;
    for (const char *m = x->mask; *m; m++)
        full += *m == 'F';
    if (binary && find_place(d, (double)full, x->kl0, x->kl0_answers, &pl)) {
        cell_num(table_cell(t, row, D_PLACE), pl.all, -1, 1);
        cell_num(table_cell(t, row, D_PLACEA), pl.answers, -1, 1);
    }
    cell_num(table_cell(t, row, D_KL), x->kl, -1, 4);
    cell_num(table_cell(t, row, D_KLA), x->kl_answers, -1, 3);
    if (!d->floor || !d->teacher || !(d->ceiling > d->bottom))
        return;
    int f, c;
    near_ends(d, x->run[0].node, &f, &c);
    cell_num(table_cell(t, row, D_REC), (x->mean - d->bottom) / (d->ceiling - d->bottom), -1, 2);
    cell_int(table_cell(t, row, D_FLOOR), f);
    cell_int(table_cell(t, row, D_CEIL), c);
}

/* The best of all sets by untrained KL, as rows. */
static void optimum_rows(const struct sel_data *d, struct table *t, double asked)
{
    struct place pl;
    if (!find_place(d, asked, 0, 0, &pl))
        return;
    size_t r = table_row(t, NULL);
    cell_text(table_cell(t, r, D_NAME), arena_printf(t->a, "best of %zu sets, all tokens", pl.sets));
    cell_text(table_cell(t, r, D_SET), arena_strdup(t->a, pl.best_all_mask));
    cell_num(table_cell(t, r, D_KL0), pl.best_all, -1, 4);
    cell_num(table_cell(t, r, D_KL0A), pl.best_all_answers, -1, 3);
    r = table_row(t, NULL);
    cell_text(table_cell(t, r, D_NAME), arena_printf(t->a, "best of %zu sets, answers", pl.sets));
    cell_text(table_cell(t, r, D_SET), arena_strdup(t->a, pl.best_answers_mask));
    cell_num(table_cell(t, r, D_KL0), pl.best_answers_all, -1, 4);
    cell_num(table_cell(t, r, D_KL0A), pl.best_answers, -1, 3);
}

static int emit(const struct sel_data *d, struct table *t, const char *dir, struct str *text, struct err *e)
{
    t->caption = arena_printf(d->a, "%s scale", d->p->m->scale);
    str_puts(text, "\n");
    table_text(t, text);
    return table_save(t, dir, e);
}

int selectors_detail(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e)
{
    struct table t;
    double last = -1;
    table_init(
        &t, d->a, arena_printf(d->a, "%s-detail", rep->name),
        arena_printf(d->a, "The sets, their KL before and after Stage 3, and what is recovered of the teacher (%s scale)", d->p->m->scale));
    detail_columns(&t);
    for (int beside = 0; beside < 2; beside++, last = -1)
        for (double k = 0;;) {
            double next = INFINITY;
            for (size_t i = 0; i < d->n; i++)
                if (d->e[i].beside == (beside == 1) && d->e[i].asked > last)
                    next = fmin(next, d->e[i].asked);
            if (!isfinite(next))
                break;
            k = last = next;
            const char *block = k == 0 ? "references" : arena_printf(d->a, "budget %g%s", k, beside ? ", beside the table" : "");
            for (size_t i = 0; i < d->n; i++)
                if (d->e[i].asked == k && d->e[i].beside == (beside == 1)) {
                    detail_row(d, &t, table_row(&t, block), &d->e[i]);
                    block = NULL;
                }
            if (!beside)
                optimum_rows(d, &t, k);
        }
    if (t.n_rows)
        table_cell(&t, 0, D_REC)->note =
            table_note(&t, "recovered = (RULER - all linear) / (teacher - all linear); tasks: within two standard errors of the "
                           "all-linear hybrid, of the teacher; set: F full, W window, l linear");
    return emit(d, &t, dir, text, e);
}

/* ---- searches ---- */

static const char *const try_fields[] = {"seed",
                                         "lambda",
                                         "budget",
                                         "soft_budget",
                                         "entropy",
                                         "kl_soft",
                                         "kl_argmax_layer0",
                                         "kl_argmax",
                                         "kl_answers_soft",
                                         "kl_answers_argmax_layer0",
                                         "kl_answers_argmax",
                                         "fills",
                                         "mask"};
enum { F_SEED, F_LAMBDA, F_BUDGET, F_SOFT, F_ENTROPY, F_KL, F_KL0, F_KL1, F_KLA, F_KLA0, F_KLA1, F_FILLS, F_MASK, N_FIELDS };

enum { S_NAME, S_SEED, S_LAMBDA, S_BUDGET, S_SOFT, S_ENTROPY, S_KL, S_KL0, S_KL1, S_KL3, S_KLA, S_KLA0, S_KLA1, S_KLA3, S_SET };

static void search_columns(struct table *t)
{
    table_col(t, "search", NULL, true, false);
    table_col(t, "seed", NULL, false, false);
    table_col(t, "lambda", NULL, false, false);
    table_col(t, "budget", NULL, false, false);
    table_col(t, "soft", NULL, false, false);
    table_col(t, "entropy", NULL, false, false);
    for (int answers = 0; answers < 2; answers++) {
        const char *group = answers ? "held-out KL, answers" : "held-out KL, all tokens";
        table_col(t, "soft", group, false, false);
        table_col(t, "argmax", group, false, false);
        table_col(t, "layer 0 set", group, false, false);
        table_col(t, "Stage 3", group, false, false);
    }
    table_col(t, "set", NULL, true, false);
}

/* One line of tries.tsv, cut at its tabs; columns found by the header. */
static void search_row(struct table *t, const char *block, const struct sel_entry *x, char **f, const int *at, int n)
{
    const char *v[N_FIELDS];
    double num[N_FIELDS];
    for (int i = 0; i < N_FIELDS; i++) {
        v[i] = at[i] >= 0 && at[i] < n ? f[at[i]] : "";
        if (!parse_f64(v[i], &num[i]))
            num[i] = NAN;
    }
    size_t r = table_row(t, block);
    bool chosen = !strcmp(v[F_FILLS], "yes");
    cell_text(table_cell(t, r, S_NAME), chosen ? "chosen" : "tried");
    cell_num(table_cell(t, r, S_SEED), num[F_SEED], -1, 0);
    cell_num(table_cell(t, r, S_LAMBDA), num[F_LAMBDA], -1, 4);
    cell_num(table_cell(t, r, S_BUDGET), num[F_BUDGET], -1, 3);
    cell_num(table_cell(t, r, S_SOFT), num[F_SOFT], -1, 2);
    cell_num(table_cell(t, r, S_ENTROPY), num[F_ENTROPY], -1, 3);
    for (int k = 0; k < 3; k++) {
        cell_num(table_cell(t, r, (size_t)(S_KL + k)), num[F_KL + k], -1, 4);
        cell_num(table_cell(t, r, (size_t)(S_KLA + k)), num[F_KLA + k], -1, 3);
    }
    if (chosen && !x->failed) {
        cell_num(table_cell(t, r, S_KL3), x->kl, -1, 4);
        cell_num(table_cell(t, r, S_KLA3), x->kl_answers, -1, 3);
    }
    cell_text(table_cell(t, r, S_SET), arena_strdup(t->a, v[F_MASK]));
}

static void search_block(struct table *t, const struct sel_entry *x)
{
    char path[1024];
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    int at[N_FIELDS], line_no = 0;
    const char *block = arena_printf(t->a, "%s, budget %g", x->name, x->asked);
    if (x->sel->state != RUN_COMPLETE || file_read(node_out(path, x->sel, "tries.tsv"), 1 << 20, &s, &ignored) != 0) {
        str_free(&s);
        return;
    }
    for (char *line = s.p, *next; line && *line; line = next, line_no++) {
        char *f[64];
        int n = 0;
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        for (char *q = line; q && n < 64; n++) {
            f[n] = q;
            q = strchr(q, '\t');
            if (q)
                *q++ = 0;
        }
        if (line_no == 0) {
            for (int i = 0; i < N_FIELDS; i++) {
                at[i] = -1;
                for (int k = 0; k < n; k++)
                    at[i] = !strcmp(f[k], try_fields[i]) ? k : at[i];
            }
            continue;
        }
        search_row(t, block, x, f, at, n);
        block = NULL;
    }
    str_free(&s);
}

int selectors_searches(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e)
{
    struct table t;
    table_init(&t, d->a, arena_printf(d->a, "%s-searches", rep->name), arena_printf(d->a, "Every search run (%s scale)", d->p->m->scale));
    search_columns(&t);
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *x = &d->e[i];
        bool seen = false;
        for (size_t k = 0; k < i; k++)
            seen = seen || d->e[k].sel == x->sel;
        if (x->trained_search && !seen)
            search_block(&t, x);
    }
    if (!t.n_rows)
        return 0;
    table_cell(&t, 0, S_KL)->note =
        table_note(&t, "soft: the mixture; argmax: after discretisation, layer 0 as in the search (paper: Full); layer 0 set: as it is "
                       "distilled (paper: Linear); Stage 3: after distillation, mean over seeds");
    return emit(d, &t, dir, text, e);
}
