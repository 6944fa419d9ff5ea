/*
 * Training from scratch: next-token cross-entropy on packed rows, so that the repository can make its own small teachers.
 *
 * Position t of a row predicts token t+1; the last position of a row predicts nothing. Weight of a position by its target: 1 for a token of
 * an answer and for the token right behind an answer (its end-of-text mark), 1 for every token of a row without answers (prose), w_prompt
 * for all others; padding is not there at all. The loss of an update is the weighted mean over its rows. Every parameter trains; weight
 * decay is on matrices alone (embedding included).
 */
#ifndef DASH_PRETRAIN_H
#define DASH_PRETRAIN_H

#include "model/trainer.h"

struct pretrain_opts {
    double w_prompt;
    int64_t heldout;         /* the shard's last rows, for evaluation */
    bool recompute;          /* activations are computed again in the backward instead of kept: less memory, the same bits */
    struct train_opts train; /* row_hi must leave the held-out rows */
};
/* Held-out values stand in train.eval_*: weighted mean cross-entropy, that of answer tokens (0 without answers), share of answer tokens
 * that are the arg max. */
struct pretrain_result {
    struct train_result train;
};
/* Weight of position t of a row, as above. */
double pretrain_weight(const struct shard *s, int64_t row, int64_t t, bool text, double w_prompt);
int pretrain_run(struct model *m, const struct shard *data, const struct pretrain_opts *o, struct pretrain_result *out, struct err *e);

#endif
