/* RULER's callbacks onto a model. */
#include "cli/ruler_glue.h"

#include <stdlib.h>
#include <string.h>

int64_t ruler_tok_count(void *tok, const char *text, size_t n)
{
    struct err ignored = ERR_INIT;
    int64_t count = -1;
    return tok_count(tok, text, n, false, &count, &ignored) == 0 ? count : -1;
}

int64_t ruler_bytes4_count(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)CEIL_DIV(n, 4);
}

static int encode(void *ctx, const char *text, size_t n, int32_t **ids, int32_t *len, struct err *e)
{
    struct ruler_glue *g = ctx;
    struct tok_ids v = {0};
    const int32_t *bos;
    size_t nb = tok_add_bos(g->tok) ? tok_prefix(g->tok, &bos) : 0;
    for (size_t i = 0; i < nb; i++)
        TRY(tok_ids_add(&v, bos[i], e));
    if (tok_encode(g->tok, text, n, false, &v, e) != 0) {
        tok_ids_free(&v);
        return -1;
    }
    *ids = v.v;
    *len = (int32_t)v.n;
    return 0;
}

static int decode(void *ctx, const int32_t *ids, int32_t n, struct str *out, struct err *e)
{
    struct ruler_glue *g = ctx;
    return tok_decode(g->tok, ids, (size_t)n, true, out, e);
}

static int generate(void *ctx, int32_t n, const int32_t *const *prompt, const int32_t *len, const int32_t *max_new, int32_t **out,
                    int32_t *out_len, struct err *e)
{
    struct ruler_glue *g = ctx;
    int32_t most = 0;
    for (int32_t i = 0; i < n; i++) {
        most = MAX(most, max_new[i]);
        out[i] = malloc((size_t)MAX(max_new[i], 1) * sizeof **out);
        if (!out[i])
            return err_nomem(e, (size_t)max_new[i] * sizeof **out, "generated ids");
    }
    struct gen_opts o = {.batch = g->batch, .max_new = most, .max_new_each = max_new, .stop = g->m->cfg.eos, .n_stop = g->m->cfg.n_eos};
    TRY(gen_greedy(g->m, n, prompt, len, &o, out, out_len, e));
    for (int32_t i = 0; i < n; i++)
        for (int k = 0; k < g->m->cfg.n_eos && out_len[i] > 0; k++)
            if (out[i][out_len[i] - 1] == g->m->cfg.eos[k]) {
                out_len[i]--;
                break;
            }
    return 0;
}

static int answer_logprob(void *ctx, int32_t n, const int32_t *const *ids, const int32_t *len, const int32_t *from, double *sum,
                          struct err *e)
{
    struct ruler_glue *g = ctx;
    double **lp = calloc((size_t)n, sizeof *lp);
    int rc = lp ? 0 : err_nomem(e, (size_t)n * sizeof *lp, "log-probabilities");
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        lp[i] = malloc((size_t)len[i] * sizeof **lp);
        rc = lp[i] ? 0 : err_nomem(e, (size_t)len[i] * sizeof **lp, "log-probabilities");
    }
    if (rc == 0)
        rc = score_logprobs(g->m, n, ids, len, 8192, lp, NULL, e);
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        sum[i] = 0;
        for (int32_t t = MAX(from[i], 1); t < len[i]; t++)
            sum[i] += lp[i][t];
    }
    for (int32_t i = 0; lp && i < n; i++)
        free(lp[i]);
    free(lp);
    return rc;
}

void ruler_glue_fill(struct ruler_run_opts *o, struct ruler_glue *g)
{
    o->ctx = g;
    o->batch = g->batch;
    o->encode = encode;
    o->decode = decode;
    o->generate = generate;
    o->answer_logprob = answer_logprob;
}
