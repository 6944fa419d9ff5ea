/*
 * Report kinds: what a manifest's `reports` can ask for. Each kind is one function in cli/report_NAME.c; the table in report_kinds.c names
 * them with the keys they read, so that `dashlab check` refuses a key, a word or a stage that does not exist. A report writes its tables
 * and figures into out_dir and says in res->verdict what came out; it computes no run.
 */
#ifndef CLI_REPORT_KINDS_H
#define CLI_REPORT_KINDS_H

#include "cli/report_selectors.h"
#include "experiments/plan.h"
#include "reports/plot.h"
#include "reports/table.h"

struct report_kind {
    const char *name, *about;
    const char *keys; /* the keys it reads beside kind, name and title, separated by blanks */
    const char *show; /* words that `show` takes, separated by blanks; "" = the kind has no `show` */
    int (*make)(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e);
    const char *tables;             /* beside NAME: endings of NAME-..., separated by blanks */
    bool fixed_rows, fixed_columns; /* they are the same before any run is there and after all */
};
const struct report_kind *report_kind_find(const char *name);
/* Keys, words, stages and published columns of every report. E_USAGE with all problems at once. */
int reports_check(const struct manifest *m, struct err *e);
/* Rows and columns that the manifest's checks name, as far as they can be known: dir holds what the reports made of no run at all. E_USAGE
 * with all problems at once. */
int reports_check_cells(struct plan *p, const char *dir, struct err *e);
/* No list of a report gives two rows of one name (two stages with one label and no setting that tells them apart): E_USAGE. */
int reports_check_rows(const struct plan *p, struct err *e);

int report_operators(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                     struct err *e);
int report_routing(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                   struct err *e);
int report_sweep(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e);
int report_tasks(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e);
int report_config(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                  struct err *e);
int report_infer(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e);
int report_selectors_list(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                          struct err *e);
int report_benchmarks(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                      struct err *e);
int report_models(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                  struct err *e);
int report_variants(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                    struct err *e);
int report_controlled(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                      struct err *e);
int report_budget(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                  struct err *e);
int report_cost(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e);
int report_landscape(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                     struct err *e);
/* One line for a finished evaluation of an lmeval stage, "" for other nodes. */
void benchmarks_line(struct plan *p, const struct node *n, struct str *out);

/* ---- shared by the kinds ---- */

enum { REP_MAX_NODES = 512, REP_MAX_LAYERS = 256 };

const char *rep_word(const struct report *rep, const char *key, const char *otherwise);
/* Runs that the list under `key` names, in the order of the list. */
size_t rep_nodes(const struct plan *p, const struct report *rep, const char *key, const struct node **out, size_t cap);
/* Why a run has nothing to show, NULL when it is complete. */
const char *rep_missing(const struct node *n);
const char *rep_state(const struct node *n); /* "-", "failed" or "declined": what its cell says */
/* How published values call what a run chose: dash-2, dash-3, the method of a select run, whose set a published one is. */
const char *rep_selector(const struct node *n);
double rep_number(struct plan *p, const struct node *n, const char *name);    /* of a result; NAN without */
const char *rep_text(struct plan *p, const struct node *n, const char *name); /* "" without */
/* The published column of a budget, from the report's `published` map; NULL without one. */
const char *rep_published_budget(const struct report *rep, double asked);
/* "paper" at paper scale; elsewhere with the model's name, since the numbers are of another scale. */
const char *rep_paper(const struct plan *p);
/* Title with the scale, caption; prints into text and saves all forms. */
int rep_emit(struct plan *p, const struct report *rep, struct table *t, const char *dir, struct str *text, struct err *e);
/* style.gp, then the picture; says in text where it is. */
int rep_picture(const struct picture *pic, const char *dir, struct str *text, struct err *e);

/* A TSV: lines with # are left out, the first other line is the header. */
struct tsv {
    struct arena *a;
    char ***row; /* [n][cols], row 0 = header */
    size_t n, cols;
    const char *source; /* the first # line, without # */
};
int tsv_load(struct tsv *t, struct arena *a, const char *path, struct err *e);
/* reports/published/NAME.tsv */
int tsv_published(struct tsv *t, struct arena *a, const char *name, struct err *e);
const char *tsv_cell(const struct tsv *t, size_t row, const char *col); /* "" without such a column */
double tsv_number(const struct tsv *t, size_t row, const char *col);    /* NAN when it is no number */

/* One line of a search's tries.tsv. */
struct search_try {
    const struct node *node;
    int64_t seed;
    double lambda, budget, soft;
    bool fills;
    const char *mask;
};
/* All runs of a complete search; returns how many, at most cap. */
size_t search_tries(const struct node *n, struct arena *a, struct search_try *out, size_t cap);
/* Final routing of a complete search from its selection.json: p [layers][3] over Full, Window, Linear; layers, 0 when it cannot be read. */
size_t search_routing(const struct node *n, double p[REP_MAX_LAYERS][3]);

#endif
