/*
 * The weight half of a bilevel search [DASH App. G]: while the logits learn from one half of the rows, all mixers (candidate operators
 * and the norms before them) learn from the other half, by AdamW on KL(teacher || mixture) at the same probabilities. First order: no
 * derivative through the weight step. The adapted weights serve the search alone; Stage 3 starts from Stage 1 as ever.
 */
#ifndef DASH_BILEVEL_H
#define DASH_BILEVEL_H

#include "dash/stream.h"

struct bilevel {
    struct backend *be;
    struct param **param; /* trainable ones of the supernet */
    size_t n;
    struct row_order order;
    struct view norm;     /* f64 [1] */
    double lr, b1, b2, eps, clip;
    int64_t updates, pending; /* micro-steps since the last update */
};
/* super: assembled with copy = true. Mixers become trainable, all else is frozen. Rows lo..hi-1 are the weights'. */
int bilevel_open(struct bilevel *b, struct model *super, double lr, uint64_t seed, int64_t lo, int64_t hi, struct err *e);
void bilevel_close(struct bilevel *b);
/* Gradient of one micro-batch (micro-step number `step`) at the operators and probabilities set in the model; update: the mean gradient
 * is applied. *tokens += the rows' tokens. */
int bilevel_step(struct bilevel *b, struct model *super, struct acts *acts, struct stream *st, int64_t step, int n, enum positions pos,
                 bool update, int64_t *tokens, struct err *e);
/* DIR/weights-STEP.safetensors: weights, moments, gradients. */
int bilevel_save(struct bilevel *b, const char *dir, int64_t step, struct err *e);
int bilevel_load(struct bilevel *b, const char *dir, int64_t step, struct err *e);
void bilevel_drop(const char *dir, int64_t step); /* removes a file of an earlier step */

#endif
