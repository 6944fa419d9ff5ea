/* Stage 3: logit distillation of an assembled hybrid; every parameter trains, in two learning-rate groups [DASH section 4.4;
 * selectors.md A.5]. */
#ifndef DASH_DISTILL_H
#define DASH_DISTILL_H

#include "dash/stream.h"
#include "model/trainer.h"

struct distill_opts {
    double tau;
    enum positions positions;
    int64_t heldout;
    bool recompute;          /* activations computed again in the backward (acts_opts) */
    struct train_opts train; /* steps 0: assembled, evaluated, not trained */
};
struct distill_result {
    struct train_result train;
    struct kl_sums before, after; /* held-out KL against the teacher */
    double flops_forward, flops_backward; /* counted, across interruptions; backward: all that is not forward, the optimiser too */
};
/* student: assembled with copy = true. */
int distill_run(struct model *student, struct model *teacher, const struct shard *data, const struct hcache *cache,
                const struct distill_opts *o, struct distill_result *out, struct err *e);

#endif
