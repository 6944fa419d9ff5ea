/* RULER's callbacks onto a model: tokens, greedy generation, log-probabilities. */
#ifndef CLI_RULER_GLUE_H
#define CLI_RULER_GLUE_H

#include "model/cache.h"
#include "model/tok.h"
#include "ruler/ruler.h"

struct ruler_glue {
    struct model *m;
    const struct tok *tok;
    int32_t batch;
};
/* Counter over a tokenizer, without special tokens. */
int64_t ruler_tok_count(void *tok, const char *text, size_t n);
/* ceil(UTF-8 bytes / 4), for tests against the reference's fixtures. */
int64_t ruler_bytes4_count(void *ctx, const char *text, size_t n);
void ruler_glue_fill(struct ruler_run_opts *o, struct ruler_glue *g);

#endif
