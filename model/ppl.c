#include "model/ppl.h"

#include <math.h>
#include <stdlib.h>

#include "model/cache.h"

struct window {
    int64_t begin, end;
    int64_t first; /* first scored target, absolute */
};

static int64_t count_windows(const struct ppl_opts *o, int64_t n)
{
    switch (o->rule) {
    case PPL_NONOVERLAP:
        return CEIL_DIV(n, o->window);
    case PPL_LLAMACPP:
        return n / o->window;
    case PPL_STRIDE:
    case PPL_HF:
        return n <= o->window ? 1 : 1 + CEIL_DIV(n - o->window, o->stride);
    }
    return 0;
}

static struct window window_at(const struct ppl_opts *o, int64_t n, int64_t k)
{
    int64_t step = o->rule == PPL_STRIDE || o->rule == PPL_HF ? o->stride : o->window, begin = k * step;
    struct window w = {.begin = begin, .end = MIN(begin + o->window, n)};
    if (o->rule == PPL_NONOVERLAP)
        w.first = begin + 1;
    else if (o->rule == PPL_LLAMACPP)
        w.first = begin + o->window / 2 + 1;
    else
        w.first = k == 0 ? 1 : begin - o->stride + o->window;
    return w;
}

static void add_window(const struct ppl_opts *o, const struct window *w, int64_t k, const double *lp, struct ppl_result *out)
{
    double nll = 0;
    int64_t scored = w->end - w->first;
    for (int64_t t = w->first; t < w->end; t++)
        nll -= lp[t - w->begin];
    if (o->rule == PPL_HF) {
        int64_t fresh = k == 0 ? scored + 1 : scored; /* the guide counts the unscored first token, too */
        nll = scored > 0 ? nll / (double)scored * (double)(fresh - 1) : 0;
        scored = fresh - 1;
    }
    if (scored > 0) {
        out->nll += nll;
        out->tokens += scored;
    }
    out->windows++;
}

int ppl_compute(struct model *m, const int32_t *ids, int64_t n, const struct ppl_opts *o, struct ppl_result *out, struct err *e)
{
    int64_t total = count_windows(o, n), group = MAX((o->rows ? o->rows : 2048) / o->window, 1);
    *out = (struct ppl_result){0};
    if (o->window < 2 || o->stride < 1 || o->stride > o->window)
        return ERR(e, E_USAGE, "window %" PRId64 " and stride %" PRId64 " are not possible (window >= 2, 1 <= stride <= window)", o->window,
                   o->stride);
    if (n < 2 || !total)
        return ERR(e, E_INPUT, "%" PRId64 " tokens are too few for a perplexity (2 at least%s)", n,
                   o->rule == PPL_LLAMACPP ? ", and one full window" : "");
    group = MIN(group, total);
    double *mem = malloc((size_t)(group * o->window) * sizeof *mem), **lp = malloc((size_t)group * sizeof *lp);
    const int32_t **tok = malloc((size_t)group * sizeof *tok);
    int32_t *len = malloc((size_t)group * sizeof *len);
    int rc = mem && lp && tok && len ? 0 : err_nomem(e, (size_t)(group * o->window) * sizeof *mem, "log-probabilities");
    for (int64_t k = 0; k < total && rc == 0; k += group) {
        int64_t here = MIN(group, total - k);
        for (int64_t i = 0; i < here; i++) {
            struct window w = window_at(o, n, k + i);
            tok[i] = ids + w.begin;
            len[i] = (int32_t)(w.end - w.begin);
            lp[i] = mem + i * o->window;
        }
        rc = score_logprobs(m, (int32_t)here, tok, len, group * o->window, lp, NULL, e);
        for (int64_t i = 0; i < here && rc == 0; i++) {
            struct window w = window_at(o, n, k + i);
            add_window(o, &w, k + i, lp[i], out);
        }
        if (rc == 0 && o->progress)
            o->progress(o->ctx, out->windows, total, out->nll, out->tokens);
    }
    out->ppl = out->tokens ? exp(out->nll / (double)out->tokens) : 0;
    free(mem);
    free(lp);
    free((void *)(uintptr_t)tok);
    free(len);
    return rc;
}
