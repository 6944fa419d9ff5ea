/* Gathers entries, scores and comparisons of selectors. */
#include "cli/selectors_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/probe.h"

static const uint64_t draw_seed = 20260917;

double sel_number(struct plan *p, const struct node *n, const char *name)
{
    const char *s = n ? node_result(p, n, name) : NULL;
    double v;
    return s && parse_f64(s, &v) ? v : NAN;
}

static const struct node *selector_of(const struct node *n)
{
    const struct node *hybrid = node_of_kind(n, "distill"); /* not any search behind it: a selection may be `like` one */
    return hybrid ? node_ref(hybrid, "layers") : NULL;
}

/* Equal in everything but the layers and the seed. */
static bool same_training(const struct node *a, const struct node *b)
{
    if (!a || !b || a->kind != b->kind)
        return a == b;
    for (size_t i = 0; i < a->kind->n_params; i++) {
        const char *name = a->kind->params[i].name, *x = a->value[i], *y = b->value[i];
        if (a->kind->params[i].free || !strcmp(name, "layers") || !strcmp(name, "seed"))
            continue;
        if (strcmp(x ? x : "", y ? y : "") != 0)
            return false;
    }
    return true;
}

/* The budget that a selecting run was asked for: its own, or that of the run it takes its numbers of layers from; 0 = none. */
static double asked_of(const struct node *sel)
{
    const char *text = node_setting(sel, "budget");
    double v;
    return text && parse_f64(text, &v) ? v : 0;
}

static struct sel_entry *entry_for(struct sel_data *d, const struct node *n, bool beside)
{
    const struct node *sel = selector_of(n), *dis = node_of_kind(n, "distill");
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].sel == sel && same_training(d->e[i].run[0].distill, dis))
            return &d->e[i];
    if (d->n == SEL_MAX_ENTRIES)
        return NULL;
    struct sel_entry *x = &d->e[d->n++];
    *x = (struct sel_entry){.label = n->label,
                            .name = n->label,
                            .id = sel->stage->id,
                            .sel = sel,
                            .mask = "",
                            .beside = beside,
                            .trained_search = !strcmp(sel->kind->name, "search"),
                            .asked = asked_of(sel),
                            .realised = NAN,
                            .base = NAN,
                            .mean = NAN};
    return x;
}

static bool names(const struct ynode *from, const struct node *n)
{
    for (size_t k = 0; from && from->kind == Y_SEQ && k < from->n; k++)
        if (from->item[k]->kind == Y_SCALAR && node_named(n, from->item[k]->s))
            return true;
    return false;
}

static void collect(struct sel_data *d, const struct ynode *from, bool beside)
{
    for (size_t i = 0; i < d->p->n; i++) {
        const struct node *n = d->p->nodes[i];
        if (!names(from, n) || strcmp(n->kind->name, "ruler"))
            continue;
        if (!selector_of(n)) {
            if (d->n_whole < SEL_MAX_WHOLE)
                d->whole[d->n_whole++] = n;
            d->teacher = d->whole[0];
            continue;
        }
        struct sel_entry *x = entry_for(d, n, beside);
        if (!x || x->n == PAIRED_SEEDS)
            continue;
        x->run[x->n++] = (struct sel_run){.node = n, .distill = node_of_kind(n, "distill")};
        if (n->error || n->state != RUN_COMPLETE)
            x->failed = n->error ? n->error : "not run";
        x->declined = x->declined || n->declined;
    }
}

static int load_scores(struct sel_data *d, struct sel_run *r, struct err *e)
{
    char dir[1024];
    TRY(ruler_score(node_out(dir, r->node, ""), &r->scores, e));
    size_t total = 0;
    for (size_t t = 0; t < r->scores.n; t++) {
        size_t n = (size_t)r->scores.task[t].n;
        if (d->paired.times && (r->scores.n != d->paired.n_tasks || d->task_n[t] != n))
            return ERR(e, E_INPUT, "%s: task '%s' has %zu samples, other evaluations of this table %zu: they cannot be paired",
                       r->node->dir, r->scores.task[t].name, n, d->task_n[t]);
        d->task_n[t] = n;
        total += n;
    }
    if (!d->paired.times)
        TRY(paired_open(&d->paired, d->task_n, r->scores.n, draw_seed, e));
    r->flat = arena_array(d->a, total + 1, sizeof *r->flat);
    if (!r->flat)
        return err_nomem(e, total * sizeof *r->flat, "scores");
    for (size_t t = 0, at = 0; t < r->scores.n; at += (size_t)r->scores.task[t].n, t++)
        memcpy(r->flat + at, r->scores.task[t].score, (size_t)r->scores.task[t].n * sizeof *r->flat);
    return 0;
}

static int summarise(struct sel_data *d, struct sel_entry *x, struct err *e)
{
    double se2 = 0, dev = 0, n = (double)x->n;
    x->kl_fell = true;
    x->mean = 0;
    for (size_t i = 0; i < x->n; i++) {
        struct sel_run *r = &x->run[i];
        TRY(load_scores(d, r, e));
        double before = sel_number(d->p, r->node, "distill.kl_before"), after = sel_number(d->p, r->node, "distill.kl_after");
        double ab = sel_number(d->p, r->node, "distill.kl_answers_before"), aa = sel_number(d->p, r->node, "distill.kl_answers_after");
        bool answers = ab > 0 || aa > 0; /* prose has none */
        if (!answers)
            ab = aa = NAN;
        x->mean += r->scores.mean / n;
        se2 += r->scores.se * r->scores.se;
        x->nll += r->scores.nll / n;
        x->kl += after / n;
        x->kl_answers += aa / n;
        x->kl0 += before / n;
        x->kl0_answers += ab / n;
        x->kl_fell = x->kl_fell && after < before && (aa < ab || !answers);
    }
    for (size_t i = 0; i < x->n; i++)
        dev += (x->run[i].scores.mean - x->mean) * (x->run[i].scores.mean - x->mean);
    /* the seeds answer the same prompts, so the prompts' error does not shrink with seeds; the trainings' does */
    x->se = sqrt(se2 / n + (x->n > 1 ? dev / (n - 1) / n : 0));
    x->flops_token = sel_number(d->p, x->run[0].node, "prefill_flops_token");
    x->cache_bytes = sel_number(d->p, x->run[0].node, "cache_bytes");
    return 0;
}

static const char *text_of(struct plan *p, const struct node *n, const char *name)
{
    const char *s = node_result(p, n, name);
    return s ? s : "";
}

/* Its name with the variant. Beside the table stand variants of a search, and sets with layers that the user excluded. */
static void name_variant(struct sel_data *d, struct sel_entry *x)
{
    const char *variant = text_of(d->p, x->sel, "variant");
    variant += strspn(variant, " ");
    if (*variant && !strstr(x->label, variant)) /* a label may say it already */
        x->name = arena_printf(d->a, "%s (%s)", x->label, variant);
    if (x->trained_search ? *variant != 0 : node_has(x->sel, "exclude"))
        x->beside = true;
}

static void read_uninformative(struct sel_data *d, struct sel_entry *x)
{
    x->uninformative = true;
    x->failed =
        arena_printf(d->a, "uninformative probe: the teacher gets %.1f %% of its prompts right, below %.0f %%; nothing is trained for it",
                     100 * x->base, 100 * PROBE_INFORMATIVE);
}

/* What the choice took, with the runs whose scores it cuts. */
static double selection_seconds(const struct node *sel)
{
    static const char *const from[] = {"scores", "first", "second"};
    double s = run_seconds(sel->dir);
    for (size_t i = 0; !strcmp(sel->kind->name, "select") && i < ARRAY_LEN(from); i++) {
        const struct node *earlier = node_ref(sel, from[i]);
        s += earlier ? selection_seconds(earlier) : 0;
    }
    return s;
}

/* The set and its cost, as soon as the selection is there, whatever became of the hybrid. */
static void read_selection(struct sel_data *d, struct sel_entry *x)
{
    const struct node *own = x->run[0].distill;
    if (x->sel->state != RUN_COMPLETE)
        return;
    x->base = sel_number(d->p, x->sel, "base_accuracy");
    x->tokens = sel_number(d->p, x->sel, "tokens");
    x->flops = sel_number(d->p, x->sel, "flops");
    x->seconds = selection_seconds(x->sel);
    name_variant(d, x);
    if (!strcmp(text_of(d->p, x->sel, "uninformative"), "true")) {
        read_uninformative(d, x);
        return;
    }
    x->realised = sel_number(d->p, x->sel, "budget");
    x->ties = sel_number(d->p, x->sel, "ties_at_cut");
    x->mask = text_of(d->p, x->sel, "mask");
    for (const char *m = x->mask; *m; m++) {
        x->n_full += *m == 'F';
        x->n_window += *m == 'W';
    }
    bool filled = strcmp(text_of(d->p, x->sel, "filled"), "false") != 0, refuse = own && !strcmp(node_str(own, "unfilled"), "refuse");
    if (!x->trained_search || filled || x->asked <= 0)
        return;
    x->name = arena_printf(d->a, "%s (budget not filled)", x->name);
    x->unfilled = x->beside = true;
    if (refuse && x->failed)
        x->failed = "no search run reached the budget asked for";
}

/* The search, trained alike, that has as many Full and Window layers; a row of the table before one beside it. */
static const struct sel_entry *search_like(const struct sel_data *d, const struct sel_entry *x)
{
    const struct sel_entry *hit = NULL;
    for (size_t i = 0; i < d->n; i++) {
        const struct sel_entry *s = &d->e[i];
        if (s->trained_search && *s->mask && s->n_full == x->n_full && s->n_window == x->n_window &&
            same_training(s->run[0].distill, x->run[0].distill) && (!hit || (hit->beside && !s->beside)))
            hit = s;
    }
    return hit;
}

/* A row that no budget was asked of stands in the column that its set fills, or beside it. */
static void own_column(struct sel_entry *x)
{
    if (x->asked != 0 || !(x->realised > 0))
        return;
    x->unasked = true;
    x->asked = ceil(x->realised - 1e-9);
    x->beside = x->beside || x->realised <= x->asked - 0.5;
}

/* Rows that are in no column by themselves: sets with Window layers stand where the search does that they control; a user's own set, and
   that of a search at one lambda, in the column it fills. */
static void place(struct sel_data *d)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].trained_search)
            own_column(&d->e[i]);
    for (size_t i = 0; i < d->n; i++) {
        struct sel_entry *x = &d->e[i];
        const struct sel_entry *s = x->n_window > 0 && !x->trained_search ? search_like(d, x) : NULL;
        x->control = x->n_window > 0 && !x->trained_search;
        if (s) {
            x->matched = true;
            x->asked = s->asked;
            x->beside = s->beside;
        } else {
            own_column(x);
        }
    }
}

/* Equal names in one place get their seed, or a number; rows trained otherwise than the table's first one name their stage. */
static void tell_apart(struct sel_data *d)
{
    const struct node *usual = NULL;
    for (size_t i = 0; i < d->n && !usual; i++)
        usual = d->e[i].beside ? NULL : d->e[i].run[0].distill;
    for (size_t i = 0; i < d->n; i++) {
        const struct node *own = d->e[i].run[0].distill;
        if (usual && own && !same_training(usual, own))
            d->e[i].name = arena_printf(d->a, "%s [%s]", d->e[i].name, own->stage->id);
    }
    for (size_t i = 0; i < d->n; i++) {
        struct sel_entry *x = &d->e[i];
        size_t same = 0, at = 0;
        for (size_t k = 0; k < d->n; k++)
            if (!strcmp(d->e[k].label, x->label) && d->e[k].asked == x->asked && d->e[k].beside == x->beside && d->e[k].id == x->id &&
                same_training(d->e[k].run[0].distill, x->run[0].distill)) {
                same++;
                at += k <= i;
            }
        const char *seed = node_setting(x->sel, "seed");
        if (same > 1 && !x->trained_search && seed)
            x->name = arena_printf(d->a, "%s, seed %s", x->name, seed);
        else if (same > 1)
            x->name = arena_printf(d->a, "%s, %zu", x->name, at);
    }
}

static struct sel_entry *reference_of(struct sel_data *d, const struct sel_entry *x)
{
    for (size_t i = 0; i < d->n; i++) {
        struct sel_entry *r = &d->e[i];
        if (!strcmp(r->id, d->reference) && r->asked == x->asked && !r->failed && same_training(r->run[0].distill, x->run[0].distill))
            return r;
    }
    return NULL;
}

static struct paired_row row_of(const struct sel_entry *x)
{
    struct paired_row r = {.n_seeds = x->n};
    for (size_t i = 0; i < x->n; i++) {
        r.score[i] = x->run[i].flat;
        r.seed[i] = x->run[i].distill ? node_i64(x->run[i].distill, "seed") : 0;
    }
    return r;
}

/* Without Window layers, or with as many layers of each kind. */
static bool same_space(const struct sel_entry *a, const struct sel_entry *b)
{
    return a->n_window == b->n_window && (a->n_window == 0 || a->n_full == b->n_full);
}

/* The first earlier row of this budget with the set, the training and the seeds of row `at`. */
static const struct sel_entry *twin_of(const struct sel_data *d, size_t at)
{
    const struct sel_entry *x = &d->e[at];
    for (size_t i = 0; i < at; i++) {
        const struct sel_entry *t = &d->e[i];
        if (!t->failed && t->diff.seeds && t->asked == x->asked && t->diff.seeds == x->diff.seeds && !strcmp(t->mask, x->mask) &&
            same_training(t->run[0].distill, x->run[0].distill))
            return t;
    }
    return NULL;
}

static void compare_all(struct sel_data *d)
{
    struct paired_diff *family[SEL_MAX_ENTRIES];
    for (size_t i = 0; i < d->n; i++) {
        struct sel_entry *x = &d->e[i], *r = x->failed ? NULL : reference_of(d, x);
        if (!r)
            continue;
        x->is_reference = r == x;
        x->same_set = r != x && *x->mask && !strcmp(r->mask, x->mask);
        if (r == x || x->same_set)
            continue;
        struct paired_row a = row_of(x), b = row_of(r);
        paired_compare(&d->paired, &a, &b, &x->diff, NULL);
        x->other_space = !same_space(x, r);
        x->twin = twin_of(d, i);
        d->compared += x->diff.seeds && !x->other_space;
        if (x->diff.seeds && !x->other_space && !x->twin)
            family[d->family++] = &x->diff;
    }
    paired_holm(family, d->family);
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].twin)
            d->e[i].diff.p_holm = d->e[i].twin->diff.p_holm;
}

size_t sel_baselines(const struct sel_data *d, const struct sel_entry *x, size_t least_seeds, const struct sel_entry **out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n && n < cap; i++) {
        const struct sel_entry *r = &d->e[i];
        if (r->trained_search || r->failed || r->asked != x->asked || (r->beside && !r->matched) || r->n < least_seeds ||
            !same_space(r, x) || !strcmp(r->mask, x->mask) || !same_training(r->run[0].distill, x->run[0].distill))
            continue;
        out[n++] = r;
    }
    return n;
}

double sel_duels(const struct sel_data *d, const struct sel_entry *x, const struct sel_entry *const *with, size_t n,
                 struct paired_diff *diff)
{
    double *draws = n ? calloc(n * PAIRED_DRAWS, sizeof *draws) : NULL, point = NAN;
    const double *each[SEL_MAX_ENTRIES];
    struct paired_row a = row_of(x);
    for (size_t i = 0; draws && i < n; i++) {
        struct paired_row b = row_of(with[i]);
        each[i] = draws + i * PAIRED_DRAWS;
        paired_compare(&d->paired, &a, &b, &diff[i], draws + i * PAIRED_DRAWS);
    }
    if (draws)
        point = paired_max_t(each, diff, n);
    free(draws);
    return point;
}

static int rising(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

size_t sel_budgets(const struct sel_data *d, double *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) {
        bool have = d->e[i].asked <= 0;
        for (size_t k = 0; k < n; k++)
            have = have || out[k] == d->e[i].asked;
        if (!have && n < cap)
            out[n++] = d->e[i].asked;
    }
    qsort(out, n, sizeof *out, rising);
    return n;
}

size_t sel_sets(const struct sel_data *d, double asked, const struct sel_entry **out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n && n < cap; i++) {
        bool have = d->e[i].asked != asked || !*d->e[i].mask;
        for (size_t k = 0; k < n; k++)
            have = have || out[k]->sel == d->e[i].sel;
        if (!have)
            out[n++] = &d->e[i];
    }
    return n;
}

int sel_gather(struct sel_data *d, struct plan *p, struct arena *a, const struct ynode *report, struct err *e)
{
    const struct ynode *ref = y_get(report, "reference"), *beside = y_get(report, "beside");
    d->p = p;
    d->a = a;
    d->reference = ref && ref->kind == Y_SCALAR ? ref->s : "uniform";
    d->ceiling = d->bottom = NAN;
    collect(d, y_get(report, "from"), false);
    collect(d, beside, true);
    for (size_t i = 0; i < d->n; i++)
        read_selection(d, &d->e[i]);
    place(d);
    for (size_t i = 0; i < d->n; i++)
        if (!d->e[i].failed)
            TRY(summarise(d, &d->e[i], e));
    tell_apart(d);
    for (size_t i = 0; i < d->n; i++)
        if (!d->e[i].failed && !d->floor && d->e[i].realised == 0) {
            d->floor = d->e[i].run[0].node;
            d->bottom = d->e[i].mean;
        }
    if (d->teacher && d->teacher->state == RUN_COMPLETE)
        d->ceiling = sel_number(p, d->teacher, "mean");
    if (d->paired.times)
        compare_all(d);
    return 0;
}

void sel_free(struct sel_data *d)
{
    for (size_t i = 0; i < d->n; i++)
        for (size_t k = 0; k < d->e[i].n; k++)
            ruler_scores_free(&d->e[i].run[k].scores);
    paired_close(&d->paired);
}
