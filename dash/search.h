/*
 * Stage 2: differentiable search of the operator of every layer [DASH section 4; selectors.md B.13, E]. All weights frozen; only the
 * logits alpha learn, from KL(teacher || mixture) + lambda sum_l p.c.
 *
 * Every micro-step has its own temperature. `accumulate` micro-steps give one AdamW update with their mean gradient; a last, shorter
 * group is applied as a partial step averaged over its own length (drop_partial leaves it out). log.tsv: one line a micro-step.
 * state.tsv: logits and moments every `ckpt_every` micro-steps, so that a killed search goes on with the same bytes.
 */
#ifndef DASH_SEARCH_H
#define DASH_SEARCH_H

#include "dash/gates.h"
#include "dash/selection.h"
#include "dash/stream.h"

enum layer0 {
    LAYER0_PAPER,  /* Full in the search, Linear at the end */
    LAYER0_SEARCH, /* searched as the others */
    LAYER0_LINEAR, /* Linear throughout */
    LAYER0_FULL    /* Full throughout */
};
struct search_opts {
    bool window_op;          /* tri-state: Full, Window, Linear */
    int64_t window;
    double lambda;
    int64_t steps, micro, accumulate; /* micro-steps, rows a micro-step */
    bool drop_partial;
    enum anneal anneal;
    enum relax relax;
    double lr_weights;       /* bilevel: of the mixers' weights */
    double t_hi, t_lo;
    double lr, b1, b2, eps;
    double alpha_init_std;
    double tau;
    enum layer0 layer0;
    enum positions positions;
    uint64_t seed;
    int64_t row_lo, row_hi, heldout; /* training rows; the shard's last rows */
    int64_t ckpt_every;
    bool recompute;          /* activations computed again in the backward (acts_opts) */
};
struct search_result {
    struct selection sel;
    struct gate_diag diag;      /* at the final T_arch */
    struct gate_diag diag_t1;   /* at T_arch = 1 */
    struct kl_sums soft, argmax_full0, argmax; /* held-out KL: mixture; argmax with layer 0 as searched; as it will be distilled */
    int64_t tokens;
    double flops, flops_forward; /* counted, across interruptions; of them forward */
};
/* dir: log.tsv and state.tsv go there. */
int search_run(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
               const struct search_opts *o, const char *dir, struct search_result *out, struct err *e);

/*
 * Several lambdas on one pass of the teacher: n searches in lockstep over the same micro-batches, each with its own logits, dir[i] and
 * out[i]; each gives the same bytes as a search of its own (its FLOPs leave out the teacher's, which the first one bears). o->lambda is
 * not read. Not for bilevel.
 */
int search_sweep(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
                 const struct search_opts *o, const double *lambda, int n, const char *const *dir, struct search_result *out,
                 struct err *e);

/* Gradient of the search loss on alpha by one micro-batch, for tests: gates as set up, loss = KL mean + lambda p.c. */
int search_gradient(struct model *super, struct acts *acts, struct stream *st, struct gates *g, const int64_t *rows, int n, double lambda,
                    double T, enum relax relax, enum positions pos, double *kl_mean, struct err *e);
void search_gates_init(struct gates *g, const struct search_opts *o, int layers, int64_t T);
int search_supernet(struct model **out, struct model *teacher, const struct linset *lin, const struct gates *g, int64_t window,
                    struct err *e);

#endif
