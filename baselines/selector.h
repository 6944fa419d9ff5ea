/*
 * Layer selectors: given the teacher (and, for some, the Stage-1 linear mixers and data), which K layers keep attention. One file a
 * selector, one entry in the registry. Scores are oriented higher = keep; ties go to the lower index. Definitions: selectors.md section
 * B.
 */
#ifndef BASELINES_SELECTOR_H
#define BASELINES_SELECTOR_H

#include "dash/selection.h"
#include "dash/stream.h"

struct select_train;
struct select_input {
    struct backend *be;
    struct model *teacher;        /* NULL when the selector needs none (layers then counts) */
    const struct linset *lin;     /* NULL when there is none */
    const struct shard *data;     /* NULL when there is none */
    const struct hcache *cache;   /* or NULL */
    int layers, budget;
    int64_t row_lo, row_hi, micro; /* rows that score, how many at once */
    uint64_t seed;
    enum positions positions;
    bool plain_text;              /* flashmorph: every position counts, in data without answers, too */
    const bool *exclude;          /* [layers]: stay Linear; NULL = none */
    // controls of the operator space: as many more layers become Window, next in rank (Uniform: evenly spaced among the rest); 0 = none
    int windows;
    bool counts_taken; /* budget and windows are those of another set, which may have no Full layer */
    double window_cost;           /* w/T of one of them in the budget */
    const char *of, *model, *sets_path; /* published: selector, model name (NULL = by the teacher's shape), index_sets.tsv */
    const char *spec;             /* custom: layer list */
    const struct selection *scores;         /* of an earlier run of the same method, or NULL: cut again instead of computing */
    const struct selection *first, *second; /* rank averaging: the GA and the GR run */
    const char *out_dir, *work_dir;         /* of the run: prompts are saved, finished layers are kept; NULL = neither */
    struct probe_input {                    /* probes, halo */
        bool ruler;               /* RULER's templates instead of the raw ones (a variant) */
        int64_t prompts, max_new, length; /* how many, new tokens at most (raw), tokens of a prompt with its answer (ruler) */
        int32_t batch;            /* sequences decoded together; changes no result */
        const char *data_dir;     /* the bundled ruler/data: words, essays */
    } probe;
    const char *scores_dir;                 /* where `scores` was read from, for what a selection does not hold; or NULL */
    const struct select_train *train;       /* trained.h: selectors that train; NULL for the others */
};
struct selector {
    const char *name, *title, *about, *needs, *cost, *source;
    bool certain;                 /* defined by published code or text; else proposed here */
    bool needs_teacher, needs_linear, needs_data;
    bool needs_tokenizer;         /* of the teacher */
    bool trains;                  /* on all rows but the held-out ones, which score: row_lo and row_hi are not read */
    int version;
    /*
     * Fills kind, and score (then also has_score); the caller fills the rest. FLOPs: a pick that trains, or goes on from an earlier
     * attempt, sets flops_forward and flops_backward from the backend's counter; when it leaves both 0, all that the backend counted is
     * forward.
     */
    int (*pick)(const struct select_input *in, struct selection *out, struct err *e);
    /* Layers from scores, where that is not selection_top; NULL = it is. Called for scores of an earlier run. */
    int (*place)(const struct select_input *in, struct selection *out, struct err *e);
};
extern const struct selector sel_uniform, sel_random, sel_lm_ppl, sel_act_mse, sel_published, sel_custom;
extern const struct selector sel_kv, sel_ar, sel_ar_mh, sel_vt, sel_cwe; /* task probes */
extern const struct selector sel_smart, sel_halo, sel_avg_s1, sel_avg_s2;
extern const struct selector sel_ga_s1, sel_gr_s1, sel_ga_s2, sel_gr_s2, sel_flashmorph, sel_postnas; /* trained.h */
extern const struct selector *const selectors[];
extern const size_t n_selectors;
const struct selector *selector_find(const char *name);
/* Scores that are not finite are E_NUMERIC. What a selector needs and does not get, and budgets outside 1..L-1 (less with excluded
 * layers), are E_USAGE before any work. */
int selector_check(const struct selector *s, const struct select_input *in, struct err *e);
/* The part of it that needs layers, budget, windows and exclude alone. */
int selector_check_budget(const struct selector *s, const struct select_input *in, struct err *e);
/* selector_check, then picks (or places scores of an earlier run), then completes the record (method, budget, tokens, FLOPs, seed,
 * version). */
int selector_run(const struct selector *s, const struct select_input *in, struct selection *out, struct err *e);

/* Shared by the selectors that change one layer at a time: one forward sweep of the base model and one for each layer over the rows; fn
 * gets the hidden rows of each. */
enum sweep_kind {
    SWEEP_ABLATE,  /* base: the teacher; layer l's mixer output zero */
    SWEEP_RESTORE, /* base: all layers linear (Stage 1); layer l the teacher's attention */
    SWEEP_CONVERT  /* base: the teacher; layer l linear */
};
struct ablation {
    const struct select_input *in;
    enum sweep_kind kind;
    struct model *m;              /* what runs: the teacher, or both mixers of every layer on shared weights */
    struct stream st;
    struct acts acts;
    double tokens;
};
int ablation_open(struct ablation *a, const struct select_input *in, enum sweep_kind kind, struct err *e);
void ablation_close(struct ablation *a);
/* Both mixers of every layer, weights shared with the teacher and the set, frozen. Each layer runs `kind`. */
int switch_model(struct model **out, const struct model *teacher, const struct linset *lin, enum mixer_kind kind, struct err *e);
/* Adds score(l) for every layer over all rows: measure(ctx, a, base hidden, ablated hidden, *value) is called per micro-batch and layer;
 * base == ablated for layer -1. */
int ablation_sweep(struct ablation *a, int (*measure)(void *ctx, struct ablation *a, int layer, struct view hidden, double *value,
                                                      struct err *e), void *ctx, double *per_layer, double *base, struct err *e);

#endif
