/* RULER's callbacks onto a model: tokens, greedy generation, log-probabilities. */
#ifndef CLI_RULER_GLUE_H
#define CLI_RULER_GLUE_H

#include "model/cache.h"
#include "model/tok_counter.h"
#include "ruler/ruler.h"

struct ruler_glue {
    struct model *m;
    const struct tok *tok;
    int32_t batch;
    int64_t given, computed; /* tokens of prompts that predictions and NLLs needed, and that the model computed */
    int64_t beyond, longest; /* prompts with their answers that do not fit the model's positions; tokens of the longest */
};
/* Counter over a tokenizer, which must live as long: without the ids it puts around a text, but for lm-eval, which counts them. */
struct ruler_tokens {
    struct tok_counter *c;
    int64_t around;
};
int ruler_tokens_open(struct ruler_tokens *t, const struct tok *tok, const char *flavour, struct ruler_counter *out, struct err *e);
void ruler_tokens_close(struct ruler_tokens *t); /* zero-initialised allowed */
/* ceil(UTF-8 bytes / 4), for tests against the reference's fixtures. */
int64_t ruler_bytes4_count(void *ctx, const char *text, size_t n);
void ruler_glue_fill(struct ruler_run_opts *o, struct ruler_glue *g);

#endif
