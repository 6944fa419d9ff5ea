/*
 * Report kind "config": what runs really used beside published values (DASH Tables 4, 5, 6). show: settings reads rows `item, column,
 * published, canonical, ours` from reports/published/VALUES.tsv, where `ours` says where our value is found: KIND:NAME is a setting,
 * KIND:=NAME a result, KIND:@NAME something measured here. show: points gives one row for each search.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/report_kinds.h"
#include "core/fs.h"
#include "core/jread.h"

/* Micro-steps of the chosen run of a search: the lines of its first log. */
static const char *micro_steps(const struct node *n, struct arena *a)
{
    char path[1024];
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    int64_t lines = -1; /* the header */
    if (n->state == RUN_COMPLETE && file_read(node_out(path, n, "log-0.tsv"), (size_t)1 << 30, &s, &ignored) == 0)
        for (size_t i = 0; i < s.len; i++)
            lines += s.p[i] == '\n';
    str_free(&s);
    return lines > 0 ? arena_printf(a, "%" PRId64, lines) : "";
}

/* The tokens of one run of a search, and its wall time, from its tries. */
static const char *per_run(const struct node *n, const char *what, struct arena *a)
{
    struct tsv t;
    char path[1024];
    struct err ignored = ERR_INIT;
    if (n->state != RUN_COMPLETE || tsv_load(&t, a, node_out(path, n, "tries.tsv"), &ignored) != 0 || t.n < 2)
        return "";
    if (!strcmp(what, "tokens"))
        return tsv_cell(&t, 1, "tokens");
    return arena_printf(a, "%.0f s", run_seconds(n->dir) / (double)(t.n - 1));
}

static const char *device(const struct node *n, struct arena *a)
{
    char path[1024];
    struct jdoc d;
    struct err ignored = ERR_INIT;
    const char *out = "";
    if (n->state != RUN_COMPLETE || jdoc_load(&d, path_join(path, n->dir, "provenance.json"), 1 << 20, &ignored) != 0)
        return "";
    const json_t *v = json_object_get(d.root, "device");
    if (json_is_string(v))
        out = arena_strdup(a, json_string_value(v));
    jdoc_free(&d);
    return out;
}

/* Value of "KIND:NAME" for a run; "" when the run has none. */
static const char *value_of(struct plan *p, const struct node *n, const char *name, struct arena *a)
{
    if (*name == '=' && (!n->stage->borrow || *rep_text(p, n, name + 1)))
        return rep_text(p, n, name + 1);
    if (*name == '=') /* made elsewhere: what was asked for */
        name++;
    if (!strcmp(name, "@micro_steps"))
        return micro_steps(n, a);
    if (!strcmp(name, "@tokens_run"))
        return per_run(n, "tokens", a);
    if (!strcmp(name, "@seconds_run"))
        return per_run(n, "seconds", a);
    if (!strcmp(name, "@seconds"))
        return n->state == RUN_COMPLETE ? arena_printf(a, "%.0f s", run_seconds(n->dir)) : "";
    if (!strcmp(name, "@device"))
        return device(n, a);
    const char *v = node_setting(n, name);
    return v ? v : "";
}

/* Of this machine and moment: in a column that is left out of the deterministic table. */
static bool measured(const char *ours)
{
    return strstr(ours, ":@seconds") || strstr(ours, ":=device");
}

/* The values of all runs of this kind, each once, joined by "; "; *same = all equal the canonical value. */
static const char *ours_of(struct plan *p, const struct node *const *n, size_t k, const char *spec, const char *canonical, struct arena *a,
                           bool *same)
{
    struct str s = STR_INIT;
    const char *seen[16];
    size_t n_seen = 0, kind = strcspn(spec, ":");
    *same = true;
    for (size_t i = 0; i < k && spec[kind]; i++) {
        double x, y;
        const char *v =
            strlen(n[i]->kind->name) == kind && !strncmp(n[i]->kind->name, spec, kind) ? value_of(p, n[i], spec + kind + 1, a) : "";
        bool had = !*v;
        for (size_t j = 0; j < n_seen; j++)
            had = had || !strcmp(seen[j], v);
        if (had || n_seen == ARRAY_LEN(seen))
            continue;
        seen[n_seen++] = v;
        str_printf(&s, "%s%s", s.len ? "; " : "", v);
        *same = *same && (parse_f64(v, &x) && parse_f64(canonical, &y) ? fabs(x - y) <= 0.005 * fabs(y) : !strcasecmp(v, canonical));
    }
    const char *out = arena_strdup(a, str_c(&s));
    *same = *same && n_seen > 0;
    str_free(&s);
    return out ? out : "";
}

static int settings(struct plan *p, const struct report *rep, struct arena *a, const struct node *const *n, size_t k, const char *dir,
                    struct str *text, struct report_result *res, struct err *e)
{
    struct tsv pub;
    struct table t;
    int differ = 0, compared = 0;
    bool times = false;
    TRY(tsv_published(&pub, a, rep_word(rep, "values", rep->name), e));
    table_init(&t, a, rep->name, arena_printf(a, "%s (%s scale)", rep->title, p->m->scale));
    table_col(&t, "item", NULL, true, false);
    table_col(&t, "ours", NULL, false, false);
    table_col(&t, rep_paper(p), NULL, false, false);
    table_col(&t, "differs", NULL, false, false);
    for (size_t i = 1; i < pub.n; i++)
        times = times || measured(tsv_cell(&pub, i, "ours"));
    if (times)
        table_col(&t, "ours, measured", NULL, false, true);
    for (size_t i = 1; i < pub.n; i++) {
        const char *spec = tsv_cell(&pub, i, "ours"), *column = tsv_cell(&pub, i, "column"), *canonical = tsv_cell(&pub, i, "canonical");
        bool same, fresh = i == 1 || strcmp(column, tsv_cell(&pub, i - 1, "column"));
        size_t r = table_row(&t, fresh && *column ? column : NULL);
        const char *ours = ours_of(p, n, k, spec, canonical, a, &same);
        cell_text(table_cell(&t, r, 0), tsv_cell(&pub, i, "item"));
        cell_text(table_cell(&t, r, measured(spec) ? 4 : 1), *ours ? ours : "-");
        cell_text(table_cell(&t, r, 2), tsv_cell(&pub, i, "published"));
        if (!*ours) {
            table_cell(&t, r, 1)->note = table_note(&t, *spec ? "no complete run says" : "nothing of ours corresponds");
            res->missing += *spec != 0;
        } else if (measured(spec) || !*canonical) {
            table_cell(&t, r, 3)->note = table_note(&t, measured(spec) ? "another device: not compared" : "not published: not compared");
        } else {
            compared++;
            differ += !same;
            cell_text(table_cell(&t, r, 3), same ? "same" : "differs");
        }
    }
    if (t.n_rows)
        table_cell(&t, 0, 2)->note = table_note(&t, "%s", pub.source);
    res->cells = (int)(pub.n - 1);
    str_printf(&res->verdict, "%d of %d settings differ from the paper's", differ, compared);
    return rep_emit(p, rep, &t, dir, text, e);
}

/* ---- Table 6 ---- */

enum { P_NAME, P_SPACE, P_LAMBDA, P_BUDGET, P_SEED, P_RUNS, P_PLAMBDA, P_PBUDGET };

static int points(struct plan *p, const struct report *rep, struct arena *a, const struct node *const *n, size_t k, const char *dir,
                  struct str *text, struct report_result *res, struct err *e)
{
    static const char *const names[] = {"model", "candidates", "lambda", "realised budget", "seed", "runs", "lambda", "realised budget"};
    struct tsv pub;
    struct table t;
    double runs = 0;
    TRY(tsv_published(&pub, a, rep_word(rep, "values", rep->name), e));
    table_init(&t, a, rep->name, arena_printf(a, "%s (%s scale)", rep->title, p->m->scale));
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        table_col(&t, names[i], i < P_LAMBDA ? NULL : i < P_PLAMBDA ? "ours" : rep_paper(p), i < P_LAMBDA, false);
    for (size_t i = 0; i < k; i++) {
        size_t r = table_row(&t, NULL);
        double asked = node_has(n[i], "budget") ? node_f64(n[i], "budget") : 0, tried = rep_number(p, n[i], "runs");
        const char *why = rep_missing(n[i]), *column = rep_published_budget(rep, asked);
        cell_text(table_cell(&t, r, P_NAME), arena_printf(a, "%s, budget %g", n[i]->label, asked));
        cell_text(table_cell(&t, r, P_SPACE), node_str(n[i], "ops"));
        cell_num(table_cell(&t, r, P_LAMBDA), rep_number(p, n[i], "lambda"), -1, 5);
        cell_num(table_cell(&t, r, P_BUDGET), rep_number(p, n[i], "budget"), -1, 3);
        cell_text(table_cell(&t, r, P_SEED), why ? "-" : rep_text(p, n[i], "search_seed"));
        cell_num(table_cell(&t, r, P_RUNS), tried, -1, 0);
        runs += finite_f64(tried) ? tried : 0;
        if (why)
            table_cell(&t, r, P_LAMBDA)->note = table_note(&t, "%.300s", why);
        else if (!strcmp(rep_text(p, n[i], "filled"), "false"))
            table_cell(&t, r, P_BUDGET)->note = table_note(&t, "no run filled the column; the closest set at or under it");
        res->missing += why != NULL;
        for (size_t j = 1; column && j < pub.n; j++)
            if (!strcmp(tsv_cell(&pub, j, "selector"), rep_selector(n[i])) && !strcmp(tsv_cell(&pub, j, "column"), column)) {
                cell_num(table_cell(&t, r, P_PLAMBDA), tsv_number(&pub, j, "lambda"), -1, 5);
                cell_num(table_cell(&t, r, P_PBUDGET), tsv_number(&pub, j, "budget"), -1, 3);
            }
    }
    if (t.n_rows)
        table_cell(&t, 0, P_PLAMBDA)->note = table_note(&t, "%s", pub.source);
    res->cells = (int)k;
    str_printf(&res->verdict, "%zu operating points from %.0f search runs, %d not made", k, runs, res->missing);
    return rep_emit(p, rep, &t, dir, text, e);
}

int report_config(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct arena a;
    arena_init(&a, 0);
    const struct node **n = arena_array(&a, REP_MAX_NODES, sizeof *n);
    int rc = arena_ok(&a, "a report", e);
    size_t k = rc == 0 ? rep_nodes(p, rep, "from", n, REP_MAX_NODES) : 0;
    if (rc == 0)
        rc = !strcmp(rep_word(rep, "show", "settings"), "points") ? points(p, rep, &a, n, k, out_dir, text, res, e)
                                                                  : settings(p, rep, &a, n, k, out_dir, text, res, e);
    arena_free(&a);
    return rc;
}
