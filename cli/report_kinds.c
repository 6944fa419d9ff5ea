/* The table of report kinds, and what the kinds share. */
#include "cli/report_kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/stages.h"
#include "core/fs.h"
#include "core/jread.h"
#include "experiments/checks.h"

static const struct report_kind known[] = {
    {"selectors", "selectors at matched budgets", "from beside reference budgets published",
     "", report_selectors, "detail searches overlap budget-ruler cost-* stability", false, true},
    {"controlled", "one row a budget, one column a selector, all trained alike", "from values published",
     "", report_controlled, "", true, true},
    {"budget-ruler", "budget against RULER for every selector, with published points", "from beside reference values",
     "", report_budget, "points", false, true},
    {"cost", "what a selection costs against what it is worth", "from supervision budgets cost_at against values",
     "", report_cost, "quality", true, false},
    {"models", "own hybrids beside external ones", "from ruler values", "", report_models, "", false, true},
    {"operators", "operator counts and layer grids of chosen sets", "from published show values",
     "counts grid", report_operators, "", true, true},
    {"routing", "routing of searches before discretisation", "from ruler published show values",
     "diagnostics top1 stacked", report_routing, "runs", true, true},
    {"variants", "searches that relax the choice differently", "from ruler", "", report_variants, "", true, true},
    {"sweep", "lambda against realised budget and RULER", "from", "", report_sweep, "points", true, true},
    {"tasks", "every RULER task of every model", "from reference published values", "", report_tasks, "", false, false},
    {"config", "what runs really used, beside published values", "from values published show",
     "settings points", report_config, "", true, true},
    {"selectors-list", "the registry of selectors beside published tags", "values", "", report_selectors_list, "", true, true},
    {"infer", "prefill, decoding and peak memory over context lengths", "from values show",
     "prefill decode figure", report_infer, "published", false, false},
    {"benchmarks", "models against MMLU, ARC, PIQA, WinoGrande", "from", "", report_benchmarks, "", true, true},
    {"landscape", "the best, the median and the worst of all sets of a budget", "from", "", report_landscape, "", true, true},
};
const char *const report_kinds[] = {"selectors", "controlled", "budget-ruler", "cost", "models", "operators", "routing", "variants",
                                    "sweep", "tasks", "config", "selectors-list", "infer", "benchmarks", "landscape"};
const size_t n_report_kinds = ARRAY_LEN(report_kinds);
_Static_assert(ARRAY_LEN(known) == ARRAY_LEN(report_kinds), "one name for each report kind");

const struct report_kind *report_kind_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(known[i].name, name))
            return &known[i];
    return NULL;
}

/* ---- checks ---- */

static bool has_word(const char *words, const char *w)
{
    for (size_t n = strlen(w), len; *words; words += len + (words[len] == ' ')) {
        len = strcspn(words, " ");
        if (len == n && !strncmp(words, w, n))
            return true;
    }
    return false;
}

static bool stage_named(const struct manifest *m, const char *text)
{
    size_t n = strcspn(text, "@");
    for (size_t i = 0; i < m->n_stages; i++)
        if (strlen(m->stages[i].id) == n && !strncmp(m->stages[i].id, text, n))
            return true;
    return false;
}

static const char *const lists[] = {"from", "beside", "ruler", "supervision"}; /* of stages */

/* The values that a report shows: `values`, else what its kind reads; "" when it reads none. */
static const char *values_of(const struct report *rep)
{
    static const char *const own[][2] = {{"selectors", "dash_table1"}, {"controlled", "dash_table8"}, {"operators", "dash_table10"}};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (!strcmp(own[i][0], rep->kind))
            return rep_word(rep, "values", own[i][1]);
    return rep_word(rep, "values", "");
}

/* Published values: the file is there, and `published` names columns of it (or words of its field "column"). */
static void check_published(const struct report *rep, struct yproblems *pr)
{
    struct arena a;
    struct tsv t;
    struct err why = ERR_INIT;
    const struct ynode *map = y_get(rep->node, "published"), *values = y_get(rep->node, "values");
    const char *name = values_of(rep);
    if (!*name)
        return;
    arena_init(&a, 0);
    if (tsv_published(&t, &a, name, &why) != 0)
        y_problem(pr, values ? values : rep->node, "'values' of report '%s': %s", rep->name, why.msg);
    else if (map && map->kind != Y_MAP)
        y_problem(pr, map, "'published' must be a map of budget: column");
    else
        for (size_t i = 0; map && i < map->n; i++) {
            const char *column = map->item[i]->kind == Y_SCALAR ? map->item[i]->s : "";
            bool have = false;
            for (size_t c = 0; c < t.cols; c++)
                have = have || !strcmp(t.row[0][c], column);
            for (size_t r = 1; r < t.n; r++)
                have = have || !strcmp(tsv_cell(&t, r, "column"), column);
            if (!have)
                y_problem(pr, map->item[i], "'published' of report '%s' names column '%s', which '%s' does not have", rep->name, column,
                          name);
        }
    arena_free(&a);
}

static void check_report(const struct manifest *m, const struct report *rep, const struct report_kind *k, struct yproblems *pr)
{
    const struct ynode *ref = y_get(rep->node, "reference");
    for (size_t i = 0; i < rep->node->n; i++) {
        const char *key = rep->node->key[i]->s;
        if (!has_word("kind name title", key) && !has_word(k->keys, key))
            y_problem(pr, rep->node->key[i], "report kind '%s' has no key '%s'; it reads: %s", k->name, key, k->keys);
    }
    if (ref && (ref->kind != Y_SCALAR || !stage_named(m, ref->s)))
        y_problem(pr, ref, "'reference' of report '%s' names no stage of this manifest", rep->name);
    check_published(rep, pr);
    const struct ynode *show = y_get(rep->node, "show");
    if (show && (show->kind != Y_SCALAR || !has_word(k->show, show->s)))
        y_problem(pr, show, "'show' of report kind '%s' is one of: %s", k->name, k->show);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        const struct ynode *v = y_get(rep->node, lists[i]);
        if (v && v->kind != Y_SEQ)
            y_problem(pr, v, "'%s' must be a list of stages", lists[i]);
        for (size_t j = 0; v && v->kind == Y_SEQ && j < v->n; j++)
            if (v->item[j]->kind != Y_SCALAR || !stage_named(m, v->item[j]->s))
                y_problem(pr, v->item[j], "'%s' of report '%s' names no stage of this manifest", lists[i], rep->name);
    }
}

/* Whether a report makes a table of this name, before it is known whether there is enough for it. */
static bool makes_table(const struct report *rep, const char *name)
{
    const char *tail = name + strlen(rep->name);
    if (strncmp(name, rep->name, strlen(rep->name)) != 0 || (*tail && *tail != '-'))
        return false;
    if (!*tail || has_word(report_kind_find(rep->kind)->tables, tail + 1))
        return true;
    return !strncmp(tail, "-cost-", 6) && has_word(report_kind_find(rep->kind)->tables, "cost-*");
}

static void check_table(const struct manifest *m, const struct check *c, struct yproblems *pr)
{
    struct str has = STR_INIT;
    for (size_t i = 0; i < m->n_reports; i++) {
        const struct report *rep = &m->reports[i];
        const char *tails = report_kind_find(rep->kind)->tables;
        if (makes_table(rep, c->table)) {
            str_free(&has);
            return;
        }
        str_printf(&has, " %s", rep->name);
        for (size_t n; *tails; tails += n + (tails[n] == ' ')) {
            n = strcspn(tails, " ");
            str_printf(&has, " %s-%.*s", rep->name, (int)n, tails);
        }
    }
    y_problem(pr, c->at, "no report of this manifest makes a table '%s'; there are:%s", c->table, str_c(&has));
    str_free(&has);
}

int reports_check(const struct manifest *m, struct err *e)
{
    struct str text = STR_INIT;
    struct yproblems pr = {.doc = &m->doc, .out = &text};
    for (size_t i = 0; i < m->n_reports; i++)
        check_report(m, &m->reports[i], report_kind_find(m->reports[i].kind), &pr);
    for (size_t i = 0; i < m->n_checks; i++)
        check_table(m, &m->checks[i], &pr);
    int rc = y_finish(&pr, e);
    str_free(&text);
    return rc;
}

/* Labels of all runs: what rows are called by when their names are not known yet. */
static const char **labels_of(struct plan *p)
{
    const char **out = arena_array(&p->arena, p->n + 1, sizeof *out);
    for (size_t i = 0; out && i < p->n; i++)
        out[i] = p->nodes[i]->label;
    return out;
}

int reports_check_cells(struct plan *p, const char *dir, struct err *e)
{
    struct str text = STR_INIT;
    struct yproblems pr = {.doc = &p->m->doc, .out = &text};
    const char **labels = labels_of(p);
    int rc = labels ? 0 : arena_ok(&p->arena, "checks", e);
    for (size_t i = 0; rc == 0 && i < p->m->n_checks; i++)
        for (size_t k = 0; rc == 0 && k < p->m->n_reports; k++) {
            const struct check *c = &p->m->checks[i];
            const struct report_kind *kind = report_kind_find(p->m->reports[k].kind);
            struct check_shape shape = {.rows = kind->fixed_rows, .columns = kind->fixed_columns, .labels = labels, .n_labels = p->n};
            struct str why = STR_INIT;
            if (makes_table(&p->m->reports[k], c->table))
                rc = check_known(c, dir, &shape, &why, e);
            if (rc == 0 && why.len)
                y_problem(&pr, c->at, "%s", str_c(&why));
            str_free(&why);
        }
    rc = rc ? rc : y_finish(&pr, e);
    str_free(&text);
    return rc ? -1 : 0;
}

/* Whether nothing tells two runs' choices of layers apart as a variant in their rows' names. */
static bool same_choice(const struct node *a, const struct node *b)
{
    static const char *const variants[] = {"exclude", "windows", "like", "layer0", "probe_form", "positions", "relax"};
    for (size_t i = 0; i < ARRAY_LEN(variants); i++) {
        const char *x = node_setting(a, variants[i]), *y = node_setting(b, variants[i]);
        if (strcmp(x ? x : "", y ? y : "") != 0)
            return false;
    }
    return true;
}

int reports_check_rows(const struct plan *p, struct err *e)
{
    for (size_t i = 0; i < p->m->n_reports; i++)
        for (size_t l = 0; l < ARRAY_LEN(lists); l++) {
            const struct report *rep = &p->m->reports[i];
            const struct node *n[REP_MAX_NODES];
            size_t k = rep_nodes(p, rep, lists[l], n, ARRAY_LEN(n));
            for (size_t a = 0; a < k; a++)
                for (size_t b = a + 1; b < k; b++)
                    if (n[a] != n[b] && !strcmp(n[a]->label, n[b]->label) && !strcmp(n[a]->point, n[b]->point) &&
                        n[a]->kind == n[b]->kind && same_choice(n[a], n[b]))
                        return ERR(e, E_USAGE,
                                   "%s:%d:%d: report '%s' would have two rows '%s%s%s', of stages '%s' and '%s'; give one a label",
                                   p->m->path, rep->node->line, rep->node->col, rep->name, n[a]->label, *n[a]->point ? " " : "",
                                   n[a]->point, n[a]->stage->id, n[b]->stage->id);
        }
    return 0;
}

/* ---- access ---- */

const char *rep_word(const struct report *rep, const char *key, const char *otherwise)
{
    const struct ynode *v = y_get(rep->node, key);
    return v && v->kind == Y_SCALAR ? v->s : otherwise;
}

size_t rep_nodes(const struct plan *p, const struct report *rep, const char *key, const struct node **out, size_t cap)
{
    const struct ynode *v = y_get(rep->node, key);
    size_t k = 0;
    for (size_t i = 0; v && v->kind == Y_SEQ && i < v->n; i++)
        if (v->item[i]->kind == Y_SCALAR)
            k += plan_named(p, v->item[i]->s, out + k, cap - k);
    return k;
}

const char *rep_missing(const struct node *n)
{
    return n->error ? n->error : n->state == RUN_COMPLETE ? NULL : "not run";
}

const char *rep_state(const struct node *n)
{
    return n->declined ? "declined" : n->error ? "failed" : "-";
}

const char *rep_selector(const struct node *n)
{
    if (!strcmp(n->kind->name, "search"))
        return strstr(node_str(n, "ops"), "window") ? "dash-3" : "dash-2";
    if (strcmp(n->kind->name, "select"))
        return n->stage->id;
    return strcmp(node_str(n, "method"), "published") ? node_str(n, "method") : node_str(n, "of");
}

double rep_number(struct plan *p, const struct node *n, const char *name)
{
    const char *s = n ? node_result(p, n, name) : NULL;
    double v;
    return s && parse_f64(s, &v) ? v : NAN;
}

const char *rep_text(struct plan *p, const struct node *n, const char *name)
{
    const char *s = n ? node_result(p, n, name) : NULL;
    return s ? s : "";
}

const char *rep_published_budget(const struct report *rep, double asked)
{
    const struct ynode *map = y_get(rep->node, "published");
    double v;
    for (size_t i = 0; map && map->kind == Y_MAP && i < map->n; i++)
        if (map->item[i]->kind == Y_SCALAR && parse_f64(map->key[i]->s, &v) && v == asked)
            return map->item[i]->s;
    return NULL;
}

const char *rep_paper(const struct plan *p)
{
    return strcmp(p->m->scale, "paper") ? "paper, Qwen2.5-3B" : "paper";
}

int rep_emit(struct plan *p, const struct report *rep, struct table *t, const char *dir, struct str *text, struct err *e)
{
    if (!t->title)
        t->title = arena_printf(t->a, "%s (%s scale)", rep->title, p->m->scale);
    t->caption = arena_printf(t->a, "%s scale. %s", p->m->scale, p->m->caption);
    str_puts(text, text->len ? "\n" : "");
    table_text(t, text);
    return table_save(t, dir, e);
}

int rep_picture(const struct picture *pic, const char *dir, struct str *text, struct err *e)
{
    char style[1024];
    bool drawn;
    TRY(cli_bundled(style, "reports/style.gp", e));
    TRY(picture_save(pic, dir, style, &drawn, e));
    str_printf(text, drawn ? "figure: %s/%s.{svg,pdf,png}\n" : "figure: only its data, %s/%s.tsv (install gnuplot for the picture)\n", dir,
               pic->name);
    return 0;
}

/* ---- TSV ---- */

static size_t split(char *line, char **f, size_t cap)
{
    size_t n = 0;
    for (char *q = line; q && n < cap; n++) {
        f[n] = q;
        q = strchr(q, '\t');
        if (q)
            *q++ = 0;
    }
    return n;
}

int tsv_load(struct tsv *t, struct arena *a, const char *path, struct err *e)
{
    enum { MAX_COLS = 64 };
    struct str s = STR_INIT;
    *t = (struct tsv){.a = a, .source = ""};
    int rc = file_read(path, (size_t)1 << 24, &s, e);
    size_t lines = 1, line_no = 0;
    for (const char *c = str_c(&s); *c; c++)
        lines += *c == '\n';
    char *text = rc == 0 ? arena_strndup(a, str_c(&s), s.len) : NULL;
    t->row = arena_array(a, lines, sizeof *t->row);
    str_free(&s);
    TRY(rc);
    TRY(arena_ok(a, path, e));
    for (char *line = text, *next; line && *line; line = next) {
        char *f[MAX_COLS];
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        line_no++;
        if (*line == '#' && !*t->source)
            t->source = line + 1 + (line[1] == ' ');
        if (*line == '#' || !*line)
            continue;
        size_t n = split(line, f, MAX_COLS);
        if (t->n && n != t->cols)
            return ERR(e, E_INPUT, "%s:%zu: %zu fields, the header has %zu", path, line_no, n, t->cols);
        t->cols = n;
        t->row[t->n] = arena_array(a, n, sizeof *f);
        if (t->row[t->n])
            memcpy(t->row[t->n++], f, n * sizeof *f);
    }
    return arena_ok(a, path, e);
}

int tsv_published(struct tsv *t, struct arena *a, const char *name, struct err *e)
{
    char rel[256], path[1024];
    snprintf(rel, sizeof rel, "reports/published/%.200s.tsv", name);
    TRY(cli_bundled(path, rel, e));
    return tsv_load(t, a, path, e);
}

const char *tsv_cell(const struct tsv *t, size_t row, const char *col)
{
    for (size_t c = 0; t->n && row < t->n && c < t->cols; c++)
        if (!strcmp(t->row[0][c], col))
            return t->row[row][c];
    return "";
}

double tsv_number(const struct tsv *t, size_t row, const char *col)
{
    double v;
    return parse_f64(tsv_cell(t, row, col), &v) ? v : NAN;
}

/* ---- searches ---- */

size_t search_tries(const struct node *n, struct arena *a, struct search_try *out, size_t cap)
{
    struct tsv t;
    char path[1024];
    struct err ignored = ERR_INIT;
    size_t k = 0;
    if (strcmp(n->kind->name, "search") || n->state != RUN_COMPLETE || tsv_load(&t, a, node_out(path, n, "tries.tsv"), &ignored) != 0)
        return 0;
    for (size_t i = 1; i < t.n && k < cap; i++)
        out[k++] = (struct search_try){.node = n,
                                       .seed = (int64_t)tsv_number(&t, i, "seed"),
                                       .lambda = tsv_number(&t, i, "lambda"),
                                       .budget = tsv_number(&t, i, "budget"),
                                       .soft = tsv_number(&t, i, "soft_budget"),
                                       .fills = !strcmp(tsv_cell(&t, i, "fills"), "yes"),
                                       .mask = tsv_cell(&t, i, "mask")};
    return k;
}

size_t search_routing(const struct node *n, double p[REP_MAX_LAYERS][3])
{
    char path[1024];
    struct jdoc d;
    struct err ignored = ERR_INIT;
    size_t layers = 0;
    if (n->state != RUN_COMPLETE || jdoc_load(&d, node_out(path, n, "selection.json"), 1 << 22, &ignored) != 0)
        return 0;
    const json_t *list = json_object_get(d.root, "layers");
    for (size_t l = 0; l < json_array_size(list) && l < REP_MAX_LAYERS; l++) {
        const json_t *v = json_object_get(json_array_get(list, l), "p");
        double sum = 0;
        for (size_t o = 0; o < 3; o++) {
            p[l][o] = json_number_value(json_array_get(v, o));
            sum += p[l][o];
        }
        if (json_array_size(v) != 3 || !(fabs(sum - 1) < 1e-6)) {
            layers = 0;
            break;
        }
        layers = l + 1;
    }
    jdoc_free(&d);
    return layers;
}
