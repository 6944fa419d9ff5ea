/*
 * Layer selectors: given the teacher (and, for some, the Stage-1 linear mixers and data), which K layers keep attention. One file a selector, one entry in the registry. Scores are oriented higher = keep; ties go
 * to the lower index. Definitions: selectors.md section B.
 */
#ifndef BASELINES_SELECTOR_H
#define BASELINES_SELECTOR_H

#include "dash/selection.h"
#include "dash/stream.h"

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
    const bool *exclude;          /* [layers]: stay Linear; NULL = none */
    const char *of, *model, *sets_path; /* published: selector, model name (NULL = by the teacher's shape), index_sets.tsv */
    const char *spec;             /* custom: layer list */
};
struct selector {
    const char *name, *title, *about, *needs, *cost, *source;
    bool certain;                 /* defined by published code or text; else proposed here */
    bool needs_teacher, needs_linear, needs_data;
    int version;
    /* Fills kind (and score when it ranks); the caller fills the rest. */
    int (*pick)(const struct select_input *in, struct selection *out, struct err *e);
};
extern const struct selector sel_uniform, sel_random, sel_lm_ppl, sel_act_mse, sel_published, sel_custom;
extern const struct selector *const selectors[];
extern const size_t n_selectors;
const struct selector *selector_find(const char *name);
/* Checks what the selector needs, picks, completes the record (method, budget, tokens, FLOPs, seed, version). */
int selector_run(const struct selector *s, const struct select_input *in, struct selection *out, struct err *e);

/* Shared by the ablation selectors: one forward sweep with and one without each layer's mixer over the rows; fn gets the hidden rows of the whole teacher and of the ablated one. */
struct ablation {
    const struct select_input *in;
    struct stream st;
    struct acts acts;
    double tokens;
};
int ablation_open(struct ablation *a, const struct select_input *in, struct err *e);
void ablation_close(struct ablation *a);
/* Adds score(l) for every layer over all rows: measure(ctx, a, base hidden, ablated hidden, *value) is called per micro-batch and layer; base == ablated for layer -1. */
int ablation_sweep(struct ablation *a, int (*measure)(void *ctx, struct ablation *a, int layer, struct view hidden, double *value, struct err *e), void *ctx, double *per_layer, double *base, struct err *e);

#endif
