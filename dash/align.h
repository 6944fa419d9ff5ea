/*
 * Stage 1: alignment of linear mixers with the teacher's attention [DASH eq. 10; selectors.md A.4].
 *
 * Teacher-forced (default): every linear mixer reads the teacher's normed hidden state and is compared with the teacher's mixer output;
 * layers are independent. With the shared input the difference of outputs is the difference of the post-mixer streams U. Free-running:
 * the all-linear student runs on its own stream, mixer outputs are compared layer by layer, and gradients flow through the stack. Loss
 * per token: mse: sum_d (s-t)^2; l2norm: ||s-t||_2 / sqrt(D). Mean over tokens, then mse: sum over layers, l2norm: mean over layers.
 */
#ifndef DASH_ALIGN_H
#define DASH_ALIGN_H

#include "model/trainer.h"

struct align_opts {
    bool squared;      /* mse; else l2norm */
    bool free_running;
    int64_t heldout;   /* the shard's last rows, for evaluation */
    bool recompute;    /* free running: activations computed again in the backward (acts_opts); else nothing */
    struct train_opts train; /* steps, batch, micro, lr, ... ; row_hi must leave the held-out rows */
};
struct align_result {
    struct train_result train;
    double heldout[MCFG_MAX_LAYERS]; /* per layer, mean per token, at the end */
};
int align_run(struct model *teacher, struct linset *lin, const struct shard *data, const struct align_opts *o, struct align_result *out,
              struct err *e);

#endif
