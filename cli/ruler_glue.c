/* RULER's callbacks onto a model. */
#include "cli/ruler_glue.h"

#include <stdlib.h>
#include <string.h>

static int64_t count(void *ctx, const char *text, size_t n)
{
    const struct ruler_tokens *t = ctx;
    struct err ignored = ERR_INIT;
    int64_t out = -1;
    return tok_counter_count(t->c, text, n, &out, &ignored) == 0 ? out + t->around : -1;
}

int ruler_tokens_open(struct ruler_tokens *t, const struct tok *tok, const char *flavour, struct ruler_counter *out, struct err *e)
{
    const int32_t *ids;
    *t = (struct ruler_tokens){.around = 0};
    if (strcmp(flavour, "lm-eval") == 0) /* the harness counts input_ids, with the ids that the tokenizer puts around a text */
        t->around = (int64_t)(tok_prefix(tok, &ids) + tok_suffix(tok, &ids));
    /* A text that spells a special token counts as that token, as the references' tokenizers take it (chat templates do). */
    TRY(tok_counter_open(&t->c, tok, true, e));
    *out = (struct ruler_counter){count, t};
    return 0;
}

void ruler_tokens_close(struct ruler_tokens *t)
{
    tok_counter_close(t->c);
    t->c = NULL;
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
    if (tok_encode(g->tok, text, n, true, &v, e) != 0) {
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

static bool is_stop(const struct ruler_glue *g, int32_t id)
{
    for (int k = 0; k < g->m->cfg.n_eos; k++)
        if (g->m->cfg.eos[k] == id)
            return true;
    return false;
}

static int generate_with(struct ruler_glue *g, struct gen_opts *o, int32_t n, const int32_t *const *prompt, const int32_t *len,
                         const int32_t *max_new, int32_t **out, int32_t *out_len, struct err *e)
{
    int32_t most = 0;
    for (int32_t i = 0; i < n; i++) {
        most = MAX(most, max_new[i]);
        g->longest = MAX(g->longest, (int64_t)len[i] + max_new[i]);
        g->beyond += len[i] + max_new[i] > g->m->cfg.max_pos;
        g->given += len[i];
        out[i] = malloc((size_t)MAX(max_new[i], 1) * sizeof **out);
        if (!out[i])
            return err_nomem(e, (size_t)max_new[i] * sizeof **out, "generated ids");
    }
    o->batch = g->batch;
    o->max_new = most;
    o->max_new_each = max_new;
    o->stop = g->m->cfg.eos;
    o->n_stop = g->m->cfg.n_eos;
    o->share = n <= g->batch ? gen_share_cut(g->m) : 0;
    o->computed = &g->computed;
    TRY(gen_greedy(g->m, n, prompt, len, o, out, out_len, e));
    for (int32_t i = 0; i < n; i++)
        if (out_len[i] > 0 && is_stop(g, out[i][out_len[i] - 1]))
            out_len[i]--;
    return 0;
}

static int generate(void *ctx, int32_t n, const int32_t *const *prompt, const int32_t *len, const int32_t *max_new, int32_t **out,
                    int32_t *out_len, struct err *e)
{
    return generate_with(ctx, &(struct gen_opts){.batch = 1}, n, prompt, len, max_new, out, out_len, e);
}

/* lp[i][0..len[i]-1]; false without memory. */
static double **rows_of(int32_t n, const int32_t *len)
{
    double **lp = calloc((size_t)n, sizeof *lp);
    bool ok = lp;
    for (int32_t i = 0; ok && i < n; i++)
        ok = (lp[i] = malloc((size_t)MAX(len[i], 1) * sizeof **lp));
    if (ok)
        return lp;
    for (int32_t i = 0; lp && i < n; i++)
        free(lp[i]);
    free(lp);
    return NULL;
}

static void rows_free(double **lp, int32_t n)
{
    for (int32_t i = 0; lp && i < n; i++)
        free(lp[i]);
    free(lp);
}

static int answer_logprob(void *ctx, int32_t n, const int32_t *const *ids, const int32_t *len, const int32_t *from, double *sum,
                          struct err *e)
{
    struct ruler_glue *g = ctx;
    double **lp = rows_of(n, len);
    if (!lp)
        return err_nomem(e, (size_t)n * sizeof *lp, "log-probabilities");
    int rc = score_logprobs(g->m, n, ids, len, 8192, lp, NULL, e);
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        g->given += from[i];
        g->computed += from[i];
        sum[i] = 0;
        for (int32_t t = MAX(from[i], 1); t < len[i]; t++)
            sum[i] += lp[i][t];
    }
    rows_free(lp, n);
    return rc;
}

/* The prompts once for both, where that changes no bit and they are long enough. */
static int generate_scored(void *ctx, int32_t n, const int32_t *const *full, const int32_t *full_len, const int32_t *len,
                           const int32_t *max_new, int32_t **out, int32_t *out_len, double *sum, struct err *e)
{
    struct ruler_glue *g = ctx;
    int64_t cut = gen_share_cut(g->m);
    bool fits = cut && n <= g->batch;
    for (int32_t i = 0; i < n; i++)
        fits = fits && len[i] >= 2 * cut + 2 && full_len[i] > len[i];
    if (!fits) {
        TRY(generate(ctx, n, full, len, max_new, out, out_len, e));
        return answer_logprob(ctx, n, full, full_len, len, sum, e);
    }
    double **lp = rows_of(n, full_len);
    if (!lp)
        return err_nomem(e, (size_t)n * sizeof *lp, "log-probabilities");
    struct gen_opts o = {.full = full, .full_len = full_len, .full_lp = lp};
    int rc = generate_with(g, &o, n, full, len, max_new, out, out_len, e);
    for (int32_t i = 0; rc == 0 && i < n; i++) {
        g->given += len[i];
        sum[i] = 0;
        for (int32_t t = len[i]; t < full_len[i]; t++)
            sum[i] += lp[i][t - len[i]];
    }
    rows_free(lp, n);
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
    o->generate_scored = generate_scored;
}
