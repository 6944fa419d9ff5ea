/*
 * Whole training steps and prefill on random token ids, timed, for `dashlab bench`. A step is what the trainer does for one batch:
 * forward, loss, backward, AdamW; teacher hidden rows come from memory in stages 2 and 3, as they come from the cache in a real run (or
 * the teacher runs), and the teacher runs within the step in stage 1. FLOPs are those that the ops' own cost functions count
 * (be->flops); time by op is taken by a table of ops put in front of the backend's own.
 */
#ifndef CLI_BENCH_STEP_H
#define CLI_BENCH_STEP_H

#include "kernels/op_case.h"
#include "model/model.h"

enum { BENCH_REPS = 5, BENCH_REPS_DEVICE = 20 };
struct bench_part {
    double time_s, flops; /* of one call of the whole, mean over the repetitions */
    int64_t calls;
};
struct bench_run {
    int reps;
    double time_s, best_s, flops, tokens; /* median and minimum of reps after one warm-up: BENCH_REPS, on a device BENCH_REPS_DEVICE */
    double peak_bytes;                    /* device memory, weights included */
    double value;                         /* loss of the last step, or the largest logit: shows that something was computed */
    struct bench_part part[OP_COUNT];
};
struct bench_step_opts {
    // 1: mixers aligned layer by layer; 2: gradient on the mixture weights; 3: all weights of a hybrid, KL to the teacher
    int stage;
    int64_t rows, seq;  /* sequences and their length */
    uint64_t seed;
    int64_t window;     /* stage 2: tri-state with this window; 0: Full and GDN. Layer 0 stays Full */
    bool teacher;       /* stages 2 and 3: the teacher runs within the step, as without a cache of its hidden rows */
};
int bench_step(struct model *teacher, const struct bench_step_opts *o, struct bench_run *out, struct err *e);
/* Forward over `rows` tokens of one sequence and the logits of its last token. */
int bench_prefill(struct model *m, int64_t rows, uint64_t seed, struct bench_run *out, struct err *e);

#endif
