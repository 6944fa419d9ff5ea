/*
 * Selectors that train something, or compare whole hybrids: what they share, and the parts that tests look at. GA-S1, GR-S1
 * [selectors.md B.8], GA-S2, GR-S2 [B.6, B.7], FlashMorph [B.10], PostNAS placement [B.12]. All need the teacher, a Stage-1 set of
 * linear mixers, and data; the trained ones learn on the shard's rows but for its last `heldout`, and score on those.
 *
 * A selector with a work folder leaves finished pieces there (layers, checkpoints, evaluated sets), with their cost, so that a killed
 * run goes on and writes the same bytes.
 */
#ifndef BASELINES_TRAINED_H
#define BASELINES_TRAINED_H

#include "baselines/selector.h"

struct select_train { /* zeros: the method's own defaults where it says so */
    int64_t tokens;      /* of ONE distillation (ga-s2, gr-s2), of the gates (flashmorph), of the supernet (postnas); 0 = no training */
    int64_t batch;       /* rows an update */
    double lr, lr_mixer; /* 0 = default: ga-s2, gr-s2 7e-6 and 1e-4; flashmorph 2e-2 (lr); postnas 1e-3 (lr_mixer) */
    int64_t heldout;     /* the shard's last rows */
    int64_t ckpt_every;  /* updates */
    bool train_loss;     /* ga-s2, gr-s2: rank by the last tenth's training loss instead of held-out KL */
    bool sequential;     /* ga-s2, gr-s2: choose one layer, score the others again, and so on */
    int64_t rounds;      /* ga-s2, gr-s2: tokens in so many equal parts, layers scored after each (0 = 1) ... */
    double stop_overlap; /* ... until two successive top-K sets share this part of their layers; 0 = never stop early */
    int64_t beam;        /* postnas: width */
    double gate_weight;  /* flashmorph: on the sum of gates (published: 0.1) */
};

/* Updates for a number of tokens over rows lo..hi-1, by their mean length; 0 for 0, else at least 1. */
int64_t train_steps(const struct shard *s, int64_t lo, int64_t hi, int64_t tokens, int64_t batch);
/* The mean of one of the two sums. */
double kl_of(const struct kl_sums *k, enum positions pos);
/* What select_train must hold for this input; sets *row_hi = end of the training rows. E_USAGE. */
int select_train_check(const struct select_input *in, int64_t *row_hi, struct err *e);
/* "positions=answers" and the like, appended to the row's variant with a separating comma. */
void variant_add(struct selection *s, const char *text);

/* ---- GA-S1, GR-S1: error of the post-mixer stream, free running, without training ---- */

/* E of every one-layer change: removal false: all linear with l restored; true: the teacher with l linear. Mean over the counted
 * positions of ||U_student - U_teacher||^2 / D, summed over layers. */
int s1_errors(const struct select_input *in, bool removal, double *error, int64_t *tokens, struct err *e);

/* ---- GA-S2, GR-S2: a short distillation for every layer ---- */

int s2_pick(const struct select_input *in, bool removal, struct selection *out, struct err *e);
/* Share of the layers of a that are in b too; sets of equal size. 1 for empty sets. */
double sets_overlap(const bool *a, const bool *b, int layers);

/* ---- FlashMorph: one gate a layer ---- */

struct morph {
    struct backend *be;
    const struct shard *shard;
    struct model *teacher, *super;
    struct batch batch;
    struct acts t_acts, s_acts;
    struct view target, ds, w, loss, dp; /* [L, R, D]; [R, D]; stat [R] x2; stat [L, kinds] */
    double *host;                        /* [R] */
    float *weight;                       /* [R] */
    int64_t max_rows, L, D;
    double gate_weight, align, flops_forward, scale; /* align: of the last call */
    bool grad;
    bool every; /* every position counts, not answers alone: plain-text supervision */
    struct err hook_err;
};
int morph_open(struct morph *m, struct model *teacher, const struct linset *lin, const struct shard *shard, int64_t micro,
               double gate_weight, struct err *e);
void morph_close(struct morph *m);
/* Answer positions of a row (positions whose next token belongs to an answer). */
double morph_positions(const struct shard *s, int64_t row);
/*
 * Adds to *loss and (unless NULL) grad[L] the rows' share of  1/(L |A|) sum_l sum_{t in A} ||H_mix - H_full||^2,  |A| = `positions`
 *   of the whole update. H: mixer outputs after their projection, H_full of the
 * teacher alone, H_mix = a H_full' + (1-a) H_lin on the mixture's own stream. The regulariser is the caller's (gate_weight sum a).
 */
int morph_gradient(struct morph *m, const int64_t *rows, int n, double positions, const double *gate, double *loss, double *grad,
                   struct err *e);

/* ---- PostNAS: beam search over sets ---- */

struct beam_problem {
    int layers, width, k;
    const bool *exclude; /* or NULL */
    void *ctx;
    int (*cost)(void *ctx, const bool *full, double *cost, struct err *e); /* lower is better; each set is asked for once */
};
struct beam_result {
    int k;                             /* sizes 0..k were reached */
    bool best[MAX_LAYERS + 1][MAX_LAYERS]; /* by size */
    double cost[MAX_LAYERS + 1];
    double with[MAX_LAYERS];           /* lowest cost seen among sets of the final size with this layer; INFINITY: none */
    int64_t evaluated;
};
/* From the empty set, one layer more at a time, keeping the `width` cheapest sets of a size (on ties the one whose first differing layer
 * is lower); no set is evaluated twice. */
int beam_search(const struct beam_problem *p, struct beam_result *out, struct err *e);

#endif
