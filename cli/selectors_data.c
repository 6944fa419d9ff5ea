/* Gathers entries, scores and comparisons of selectors. */
#include "cli/selectors_data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t draw_seed = 20260917;

double sel_number(struct plan *p, const struct node *n, const char *name)
{
    const char *s = n ? node_result(p, n, name) : NULL;
    double v;
    return s && parse_f64(s, &v) ? v : NAN;
}

static const struct node *selector_of(const struct node *n)
{
    const struct node *s = node_of_kind(n, "search");
    return s ? s : node_of_kind(n, "select");
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

static struct sel_entry *entry_for(struct sel_data *d, const struct node *n, bool beside)
{
    const struct node *sel = selector_of(n), *dis = node_of_kind(n, "distill");
    for (size_t i = 0; i < d->n; i++)
        if (d->e[i].sel == sel && same_training(d->e[i].run[0].distill, dis))
            return &d->e[i];
    if (d->n == SEL_MAX_ENTRIES)
        return NULL;
    struct sel_entry *x = &d->e[d->n++];
    const char *asked = node_setting(sel, "budget");
    *x = (struct sel_entry){.label = n->label, .name = n->label, .id = sel->stage->id, .sel = sel, .mask = "", .beside = beside,
                            .trained_search = !strcmp(sel->kind->name, "search")};
    if (!asked || !parse_f64(asked, &x->asked))
        x->asked = 0;
    return x;
}

static bool names(const struct ynode *from, const char *id)
{
    for (size_t k = 0; from && from->kind == Y_SEQ && k < from->n; k++)
        if (from->item[k]->kind == Y_SCALAR && !strcmp(from->item[k]->s, id))
            return true;
    return false;
}

static void collect(struct sel_data *d, const struct ynode *from, bool beside)
{
    for (size_t i = 0; i < d->p->n; i++) {
        const struct node *n = d->p->nodes[i];
        if (!names(from, n->stage->id) || strcmp(n->kind->name, "ruler"))
            continue;
        if (!selector_of(n)) {
            d->teacher = n;
            continue;
        }
        struct sel_entry *x = entry_for(d, n, beside);
        if (!x || x->n == PAIRED_SEEDS)
            continue;
        x->run[x->n++] = (struct sel_run){.node = n, .distill = node_of_kind(n, "distill")};
        if (n->error || n->state != RUN_COMPLETE)
            x->failed = n->error ? n->error : "not run";
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
    x->realised = sel_number(d->p, x->sel, "budget");
    x->tokens = sel_number(d->p, x->sel, "tokens");
    x->seconds = run_seconds(x->sel->dir);
    x->flops_token = sel_number(d->p, x->run[0].node, "prefill_flops_token");
    x->cache_bytes = sel_number(d->p, x->run[0].node, "cache_bytes");
    const char *mask = node_result(d->p, x->sel, "mask"), *variant = node_result(d->p, x->sel, "variant");
    x->mask = mask ? mask : "";
    if (variant && *variant) {
        x->name = arena_printf(d->a, "%s (%s)", x->label, variant);
        x->beside = true;
    }
    const char *filled = node_result(d->p, x->sel, "filled");
    if (x->trained_search && filled && !strcmp(filled, "false") && x->asked > 0) {
        x->name = arena_printf(d->a, "%s (budget not filled)", x->name);
        x->unfilled = x->beside = true;
    }
    return 0;
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

static void compare_all(struct sel_data *d)
{
    struct paired_diff *family[SEL_MAX_ENTRIES];
    size_t n = 0;
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
        if (x->diff.seeds)
            family[n++] = &x->diff;
    }
    paired_holm(family, n);
}

size_t sel_baselines(const struct sel_data *d, const struct sel_entry *x, const struct sel_entry **out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n && n < cap; i++) {
        const struct sel_entry *r = &d->e[i];
        if (r->trained_search || r->failed || r->beside || r->asked != x->asked || r->n < 2 || !same_training(r->run[0].distill,
                x->run[0].distill))
            continue;
        out[n++] = r;
    }
    return n;
}

int sel_gather(struct sel_data *d, struct plan *p, struct arena *a, const struct ynode *report, struct err *e)
{
    const struct ynode *ref = y_get(report, "reference"), *beside = y_get(report, "beside");
    *d = (struct sel_data){.p = p, .a = a, .reference = ref && ref->kind == Y_SCALAR ? ref->s : "uniform", .ceiling = NAN, .bottom = NAN};
    collect(d, y_get(report, "from"), false);
    collect(d, beside, true);
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
