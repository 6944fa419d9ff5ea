/*
 * Perplexity of a token sequence under four rules. With window W (context of one forward) and N tokens:
 *   nonoverlap  windows [kW, min((k+1)W, N)); every token but the first of each window is scored
 *   stride      window k = [kS, min(kS+W, N)), scores what no earlier window covered; stops at the first window that reaches N; the very
 * first token is not scored hf          as stride, but weighted as in the guide of transformers: the mean over a window's n_k new tokens
 * times (n_k - 1), although all n_k are scored in every window but the first; tokens = sum of (n_k - 1) llamacpp    full windows only; in
 * each the targets at W/2+1 .. W-1 are scored ppl = exp(nll / tokens).
 */
#ifndef MODEL_PPL_H
#define MODEL_PPL_H

#include "model/model.h"

enum ppl_rule { PPL_NONOVERLAP, PPL_STRIDE, PPL_HF, PPL_LLAMACPP };
struct ppl_opts {
    enum ppl_rule rule;
    int64_t window, stride; /* window >= 2, 1 <= stride <= window */
    int64_t rows;           /* tokens in one forward; 0 = 2048 */
    void *ctx;
    void (*progress)(void *ctx, int64_t done, int64_t total, double nll, int64_t tokens); /* windows; may be NULL */
};
struct ppl_result {
    double nll; /* nats, total as the rule weighs it */
    int64_t tokens, windows;
    double ppl;
};
int ppl_compute(struct model *m, const int32_t *ids, int64_t n, const struct ppl_opts *o, struct ppl_result *out, struct err *e);

#endif
