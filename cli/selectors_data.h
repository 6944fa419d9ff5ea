/*
 * What the selector tables and figures show, gathered from a plan: entries (a selector's set under one training recipe, with all its
 * seeds), their scores, KLs and paired comparisons.
 */
#ifndef CLI_SELECTORS_DATA_H
#define CLI_SELECTORS_DATA_H

#include "experiments/plan.h"
#include "reports/paired.h"
#include "reports/table.h"
#include "ruler/ruler.h"

enum { SEL_MAX_ENTRIES = 256, SEL_MAX_WHOLE = 16 };

struct sel_run { /* one evaluated hybrid */
    const struct node *node, *distill;
    struct ruler_scores scores;
    double *flat; /* [samples] percent, tasks one after another */
};
struct sel_entry {
    const char *label, *name, *id; /* name: label, variant and what tells it from its neighbours; id: the selecting stage */
    const char *mask;              /* one letter a layer: F, W, l (linear); "" while nothing is chosen */
    const struct node *sel;        /* the selecting node */
    double asked, realised;
    int n_full, n_window; /* of the mask */
    struct sel_run run[PAIRED_SEEDS];
    size_t n;
    bool beside;                   /* shown beside the table: a variant, or another training recipe */
    bool trained_search, unfilled; /* chosen by a search; no run of it reached the budget: its closest set at or under it */
    bool control;                  /* no search, with Window layers: stands where the search with as many Full and Window layers stands */
    bool unasked;                  /* no budget was asked for: it stands where its set belongs */
    bool matched;                  /* a control for which there is such a search */
    bool uninformative, declined;  /* a probe that the teacher fails; not made, and no failure */
    const char *failed;            /* why there is nothing to show; NULL = all there */
    double base;                   /* probes: share of prompts that the teacher gets right, 0..1; NAN for others */
    double ties;                   /* layers left out that tie with the last one kept */
    double mean, se, nll, kl, kl_answers, kl0, kl0_answers; /* means over seeds; kl0: assembled, not trained (nats a token) */
    double tokens, flops, seconds;                          /* of the selection, all its runs; flops counted, forward and backward */
    double flops_token, cache_bytes;                        /* of the evaluation at its length */
    bool kl_fell;
    struct paired_diff diff; /* against the reference; seeds 0 = none */
    bool same_set, is_reference;
    const struct sel_entry *twin; /* an earlier row of this budget with the same set: its comparison counts once */
    bool other_space;             /* its operators are not those of the reference: the difference says nothing about selectors */
};
struct sel_data {
    struct plan *p;
    struct arena *a;
    const char *reference;
    const struct node *teacher, *floor;
    const struct node *whole[SEL_MAX_WHOLE]; /* evaluations of models without a selection, in order: the teacher first */
    size_t n_whole;
    struct sel_entry e[SEL_MAX_ENTRIES];
    size_t n, compared, family; /* compared: rows against the reference; family: those of different sets, which Holm's correction is over */
    size_t task_n[RULER_MAX_TASKS];
    struct paired paired;
    double ceiling, bottom; /* RULER of the teacher and of the all-linear hybrid; NAN without */
};
/* Into *d, which is zeroed (and too large for a stack). from, beside: lists of ruler stages (beside may be absent). Strings live in a. */
int sel_gather(struct sel_data *d, struct plan *p, struct arena *a, const struct ynode *report, struct err *e);
void sel_free(struct sel_data *d);

double sel_number(struct plan *p, const struct node *n, const char *name); /* of a result; NAN without */
/* Budgets above 0 that entries were asked for, rising. */
size_t sel_budgets(const struct sel_data *d, double *out, size_t cap);
/* Entries of a budget with a set, one for each selecting run. */
size_t sel_sets(const struct sel_data *d, double asked, const struct sel_entry **out, size_t cap);
/* Layers that keep attention (Full or Window) in both sets, over those that do in either; 1 for two empty sets. */
double sel_jaccard(const char *a, const char *b);
/*
 * What an entry of a search is measured against: selectors at its place with the same operators (no Window layers, or as many Full and
 * Window layers as it has), another set, the same training and at least so many seeds.
 */
size_t sel_baselines(const struct sel_data *d, const struct sel_entry *x, size_t least_seeds, const struct sel_entry **out, size_t cap);
/* x against each of n others on their common seeds; returns the 95 % point of max-t over them (NAN: none, or no memory). */
double sel_duels(const struct sel_data *d, const struct sel_entry *x, const struct sel_entry *const *with, size_t n,
                 struct paired_diff *diff);

/*
 * All are saved in dir and added to text. NAME-detail: sets, untrained KL and its place among all sets, recovered. NAME-searches: every
 * search run with its four KLs. NAME-overlap: Jaccard index of every two sets of a budget. What cannot be shown is named in text.
 */
int selectors_detail(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);
int selectors_searches(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);
int selectors_overlap(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);
/*
 * NAME-budget-ruler: budget against RULER. NAME-cost-B: counted FLOPs of the selection against RULER, a figure for each budget.
 * NAME-stability: how often each layer is kept, over the selectors of a budget and over the runs of one.
 */
int selectors_budget_figure(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);
int selectors_cost_figures(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);
int selectors_stability(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);

#endif
