/*
 * The training loop: micro-batches, accumulation, learning-rate schedule, clipping, AdamW with two learning-rate groups, held-out
 * evaluation, checkpoints, metrics. The caller gives parameters and a loss.
 *
 * A step takes `batch` rows of the data order, `micro` at a time; gradients of micro-batches are summed in that order and divided by the
 * step's total weight, so the result does not depend on `micro` beyond float rounding, nor on threads. State is a function of (options,
 * data, step): a killed run resumed from its last checkpoint writes the same bytes as an unbroken one.
 *
 * metrics.tsv: one line a logged step. In `dir`: `last.safetensors` (weights and moments; step in its metadata) and, with keep_best,
 * `best.safetensors` (weights after the step with the least held-out loss so far), which train_load_best puts back. NaN or Inf in a loss
 * or gradient: E_NUMERIC naming stage, step, layer and tensor; the last good checkpoint stays. With part_bytes checkpoints are folders
 * `last-STEP`, `best-STEP` of parts that are no larger (trainer_state.h), so that a training can move from one machine to another through
 * a channel with a limit.
 */
#ifndef MODEL_TRAINER_H
#define MODEL_TRAINER_H

#include "core/prog.h"
#include "model/data.h"
#include "model/model.h"

enum schedule { SCHED_CONST, SCHED_COSINE /* to lr_end */, SCHED_LINEAR };

struct train_opts {
    const char *stage;      /* "align", "distill": in messages and progress */
    const char *dir;        /* run's work folder for checkpoints; metrics go to metrics_path. NULL = neither */
    const char *metrics_path;
    int64_t steps, batch, micro, warmup;
    double lr[2];           /* by param group: PG_REST, PG_MIXER */
    double lr_end;          /* factor of the peak at the end of cosine or linear */
    double hold;            /* share of the steps, warm-up included, before cosine or linear begins to fall */
    enum schedule schedule;
    double b1, b2, eps, wd, clip; /* clip 0 = none */
    uint64_t seed;          /* of the data order */
    int64_t row_lo, row_hi; /* rows in use */
    int64_t eval_every, ckpt_every, log_every; /* steps; 0 = only at the end */
    bool keep_best;         /* best.safetensors, too */
    int64_t part_bytes;     /* checkpoints in parts of at most so many bytes; 0 = one file each */
};

struct train_loss {
    void *ctx;
    /* Total weight of a row: its share of the mean (its loss positions). */
    double (*weight)(void *ctx, int64_t row);
    /* Forward and backward of n rows: adds gradients of (sum over rows of loss) * scale to the parameters' g; *loss gets the unscaled sum. */
    int (*micro)(void *ctx, const int64_t *rows, int n, double scale, double *loss, struct err *e);
    /* Held-out loss, up to 4 values with names; NULL = none. The first one decides "best". */
    int (*eval)(void *ctx, double *values, struct err *e);
    const char *eval_names[4];
    int n_eval;
    double *keep; /* n_keep counters of the caller's (up to 4) that checkpoints hold and a resumed run gets back; NULL = none */
    int n_keep;
};

struct train_result {
    int64_t steps, tokens;
    double loss_first, loss_last;      /* mean of the first and last 10 % of steps */
    double eval_first[4], eval_last[4];
    double best;       /* least first held-out value, of all evaluations after a step; INFINITY without one */
    int64_t best_step; /* after which it was seen */
    double flops; /* counted from step 0 on, across interruptions */
};

/* Trains the trainable ones of params; their gradients and optimiser state are allocated here when absent. */
int train_run(struct backend *be, struct params *params, const struct shard *data, const struct train_opts *o,
              const struct train_loss *loss, struct train_result *out, struct err *e);

/* Puts the weights of best.safetensors (of a training that is done) into the trainable ones of params. */
int train_load_best(struct backend *be, struct params *params, const char *dir, struct err *e);

#endif
