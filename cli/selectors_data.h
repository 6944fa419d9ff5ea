/* What the selector tables and figures show, gathered from a plan: entries (a selector's set under one training recipe, with all its
 * seeds), their scores, KLs and paired comparisons. */
#ifndef CLI_SELECTORS_DATA_H
#define CLI_SELECTORS_DATA_H

#include "experiments/plan.h"
#include "reports/paired.h"
#include "reports/table.h"
#include "ruler/ruler.h"

enum { SEL_MAX_ENTRIES = 256 };

struct sel_run { /* one evaluated hybrid */
    const struct node *node, *distill;
    struct ruler_scores scores;
    double *flat; /* [samples] percent, tasks one after another */
};
struct sel_entry {
    const char *label, *name, *id; /* name: label, variant and what tells it from its neighbours; id: the selecting stage */
    const char *mask;              /* one letter a layer: F, W, l (linear) */
    const struct node *sel;        /* the selecting node */
    double asked, realised;
    struct sel_run run[PAIRED_SEEDS];
    size_t n;
    bool beside;                   /* shown beside the table: a variant, or another training recipe */
    bool trained_search, unfilled; /* chosen by a search; no run of it reached the budget: its closest set at or under it */
    const char *failed;            /* why there is nothing to show; NULL = all there */
    double mean, se, nll, kl, kl_answers, kl0, kl0_answers; /* means over seeds; kl0: assembled, not trained (nats a token) */
    double tokens, seconds, flops_token, cache_bytes;       /* selection; evaluation at its length */
    bool kl_fell;
    struct paired_diff diff;       /* against the reference; seeds 0 = none */
    bool same_set, is_reference;
};
struct sel_data {
    struct plan *p;
    struct arena *a;
    const char *reference;
    const struct node *teacher, *floor;
    struct sel_entry e[SEL_MAX_ENTRIES];
    size_t n;
    size_t task_n[RULER_MAX_TASKS];
    struct paired paired;
    double ceiling, bottom;        /* RULER of the teacher and of the all-linear hybrid; NAN without */
};
/* from: ids of ruler stages; beside: list of {title, from}, or NULL. Strings live in a. */
int sel_gather(struct sel_data *d, struct plan *p, struct arena *a, const struct ynode *report, struct err *e);
void sel_free(struct sel_data *d);

double sel_number(struct plan *p, const struct node *n, const char *name); /* of a result; NAN without */
/* Entries at this budget outside `beside` that a DASH entry is measured against: other selectors with as many common seeds. */
size_t sel_baselines(const struct sel_data *d, const struct sel_entry *x, const struct sel_entry **out, size_t cap);

/* NAME-detail: sets, untrained KL and its place among all sets, recovered. NAME-searches: every search run with its four KLs. Both are
 * saved in dir and added to text. */
int selectors_detail(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);
int selectors_searches(const struct sel_data *d, const struct report *rep, const char *dir, struct str *text, struct err *e);

#endif
