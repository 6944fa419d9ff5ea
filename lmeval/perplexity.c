/* Word, byte and bits-per-byte perplexity of raw WikiText, as the harness defines them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/prov.h"
#include "lmeval/lmeval.h"
#include "model/cache.h"

struct pages {
    struct model *m;
    int64_t max_length, max_pages;
    int32_t prefix;
    void *ctx;
    void (*progress)(void *ctx, int64_t pages, const struct wikitext_result *r);
    struct wikitext_result *out;
    double page_ll;
};

/* One window: context, then the ids that are predicted. */
static int score_window(void *ctx, const int32_t *input, int64_t n_in, const int32_t *pred, int64_t n_pred, struct err *e)
{
    struct pages *p = ctx;
    int32_t n = (int32_t)(n_in + 1), from = (int32_t)(n_in - n_pred + 1);
    int32_t *seq = malloc((size_t)n * sizeof *seq);
    double *lp = calloc((size_t)n, sizeof *lp);
    int rc = seq && lp ? 0 : err_nomem(e, (size_t)n * 12, "a window");
    if (rc == 0 && interrupted())
        rc = ERR(e, E_INTERRUPTED, "interrupted after %" PRId64 " pages", p->out->pages);
    if (rc == 0) {
        memcpy(seq, input, (size_t)n_in * sizeof *seq);
        seq[n_in] = pred[n_pred - 1];
        rc = score_logprobs(p->m, 1, (const int32_t *const[]){seq}, &n, 0, &lp, NULL, e);
    }
    for (int32_t t = from; rc == 0 && t < n; t++)
        p->page_ll += lp[t];
    p->out->tokens += n_pred;
    free(seq);
    free(lp);
    return rc;
}

static int one_page(void *ctx, const char *page, size_t n, struct err *e)
{
    struct pages *p = ctx;
    const int32_t *v;
    struct str text = STR_INIT;
    struct tok_ids ids = {0};
    if (p->max_pages && p->out->pages == p->max_pages)
        return 0;
    int rc = wikitext_detokenize(page, n, &text, e);
    size_t k = tok_prefix(p->m->tok, &v);
    for (size_t i = 0; i < k && rc == 0; i++)
        rc = tok_ids_add(&ids, v[i], e);
    rc = rc ? rc : tok_encode(p->m->tok, str_c(&text), text.len, true, &ids, e);
    k = tok_suffix(p->m->tok, &v);
    for (size_t i = 0; i < k && rc == 0; i++)
        rc = tok_ids_add(&ids, v[i], e);
    p->page_ll = 0;
    rc = rc ? rc : lme_rolling(ids.v, (int64_t)ids.n, p->prefix, p->max_length, score_window, p, e);
    if (rc == 0) {
        p->out->ll += p->page_ll;
        p->out->words += wikitext_words(page, n);
        p->out->bytes += (int64_t)n;
        p->out->pages++;
        if (p->progress)
            p->progress(p->ctx, p->out->pages, p->out);
    }
    str_free(&text);
    tok_ids_free(&ids);
    return rc ? -1 : 0;
}

int wikitext_perplexity(struct model *m, const char *text, size_t n, int64_t max_length, int64_t max_pages, void *ctx,
                        void (*progress)(void *ctx, int64_t pages, const struct wikitext_result *r), struct wikitext_result *out,
                        struct err *e)
{
    struct pages p = {.m = m, .max_length = max_length, .max_pages = max_pages, .ctx = ctx, .progress = progress, .out = out};
    *out = (struct wikitext_result){0};
    p.prefix = tok_bos(m->tok) >= 0 ? tok_bos(m->tok) : tok_eos(m->tok);
    if (p.prefix < 0)
        return ERR(e, E_INPUT, "the tokenizer has neither BOS nor EOS to stand before a page");
    TRY(wikitext_pages(text, n, one_page, &p, e));
    if (!out->pages)
        return ERR(e, E_INPUT, "the text has no page; raw WikiText has titles like ' = Title = '");
    out->word_ppl = exp(-out->ll / (double)out->words);
    out->byte_ppl = exp(-out->ll / (double)out->bytes);
    out->bits_per_byte = -(out->ll / (double)out->bytes) / log(2);
    return 0;
}
