/* Log-probabilities of given tokens, logits of single rows. */
#include <stdlib.h>
#include <string.h>

#include "core/prov.h"
#include "kernels/ops.h"
#include "model/model_int.h"

#define SCORE_ROWS 2048
#define LOGIT_ROWS 32

/* One forward's head: targets in, log-probabilities and argmax out. */
struct scorer {
    struct model *m;
    struct acts acts;
    struct batch batch;
    struct view lp, best, target;
    double *h_lp;
    int32_t *h_best, *h_target;
};

static void scorer_close(struct scorer *s)
{
    struct backend *be = s->m->be;
    acts_close(&s->acts);
    batch_close(&s->batch);
    be_view_free(be, &s->lp);
    be_view_free(be, &s->best);
    be_view_free(be, &s->target);
    free(s->h_lp);
    free(s->h_best);
    free(s->h_target);
}

static int scorer_open(struct scorer *s, struct model *m, int64_t rows, int32_t seqs, struct err *e)
{
    *s = (struct scorer){.m = m};
    s->h_lp = calloc((size_t)rows, sizeof *s->h_lp);
    s->h_best = calloc((size_t)rows, sizeof *s->h_best);
    s->h_target = calloc((size_t)rows, sizeof *s->h_target);
    int rc = s->h_lp && s->h_best && s->h_target ? 0 : err_nomem(e, (size_t)rows * 16, "scoring");
    if (rc == 0 && (acts_open(&s->acts, m, &(struct acts_opts){.rows = rows, .seqs = seqs}, e) ||
                    batch_open(&s->batch, m->be, rows, seqs, e) || be_view(m->be, m->be->stat, rows, &s->lp, e) ||
                    be_view(m->be, DT_I32, rows, &s->best, e) || be_view(m->be, DT_I32, rows, &s->target, e)))
        rc = -1;
    if (rc != 0)
        scorer_close(s);
    return rc;
}

/* h_target -> h_lp, h_best for the first n rows of hidden. */
static int score_rows(struct scorer *s, struct view hidden, int64_t n, struct err *e)
{
    const struct param *head = model_head(s->m);
    struct backend *be = s->m->be;
    be_put(be, view_at(s->target, 0, n), s->h_target);
    be_head_ce(be, &(struct op_head_ce){.lp = s->lp,
                                        .best = s->best,
                                        .h = hidden,
                                        .w = head->w,
                                        .target = s->target,
                                        .rows = n,
                                        .dim = s->m->cfg.d,
                                        .vocab = s->m->cfg.N});
    be_get(be, s->h_best, view_at(s->best, 0, n));
    TRY(get_f64(be, s->h_lp, view_at(s->lp, 0, n), e));
    for (int64_t r = 0; r < n; r++)
        if (!finite_f64(s->h_lp[r]))
            return ERR(e, E_NUMERIC, "the log-probability of row %" PRId64 " is not finite", r);
    return 0;
}

/* Sequences i0 .. i0+n-1 in one forward. */
static int score_pack(struct scorer *s, int32_t i0, int32_t n, const int32_t *const *tok, const int32_t *len, double **lp, int32_t **best,
                      struct err *e)
{
    struct view hidden;
    int64_t r = 0, rows = 0;
    TRY(batch_set(&s->batch, n, tok + i0, len + i0, NULL, s->m->cfg.N, e));
    for (int32_t i = i0; i < i0 + n; i++)
        for (int32_t t = 0; t < len[i]; t++) /* the last row's target does not matter, only its argmax */
            s->h_target[rows++] = t + 1 < len[i] ? tok[i][t + 1] : 0;
    TRY(model_fwd(s->m, &s->acts, &s->batch, NULL, &hidden, e));
    TRY(score_rows(s, hidden, rows, e));
    for (int32_t i = i0; i < i0 + n; i++) {
        lp[i][0] = 0;
        for (int32_t t = 0; t < len[i]; t++, r++) {
            if (t + 1 < len[i])
                lp[i][t + 1] = s->h_lp[r];
            if (best)
                best[i][t + 1] = s->h_best[r];
        }
    }
    return 0;
}

int score_logprobs(struct model *m, int32_t n, const int32_t *const *tok, const int32_t *len, int64_t rows, double **lp, int32_t **best,
                   struct err *e)
{
    struct scorer s;
    int64_t longest = 1, total = 0;
    for (int32_t i = 0; i < n; i++) {
        if (len[i] < 1)
            return ERR(e, E_USAGE, "sequence %d has no tokens", (int)i);
        longest = MAX(longest, (int64_t)len[i]);
        total += len[i];
    }
    if (n < 1)
        return 0;
    int64_t limit = MAX(MIN(rows ? rows : SCORE_ROWS, total), longest);
    TRY(scorer_open(&s, m, limit, (int32_t)MIN((int64_t)n, limit), e));
    int rc = 0;
    for (int32_t i = 0; i < n && rc == 0;) {
        int32_t k = 0;
        int64_t used = 0;
        while (i + k < n && (k == 0 || used + len[i + k] <= limit))
            used += len[i + k++];
        rc = interrupted() ? ERR(e, E_INTERRUPTED, "interrupted after %d of %d sequences", (int)i, (int)n)
                           : score_pack(&s, i, k, tok, len, lp, best, e);
        i += k;
    }
    scorer_close(&s);
    return rc;
}

/* ---- continuations of one prefix ---- */

struct branches {
    struct scorer s;
    struct cache *root, *fork;
    int32_t n;
    const int32_t *const *cont;
    const int32_t *len;
    double **lp;
    bool *greedy;
};

/* The prefix, in pieces; its last row scores every first token. */
static int score_first(struct branches *b, const int32_t *prefix, int32_t n, struct err *e)
{
    struct view hidden;
    struct scorer *s = &b->s;
    int64_t d = s->m->cfg.d;
    for (int32_t at = 0; at < n;) {
        int32_t k = (int32_t)MIN((int64_t)(n - at), s->acts.max_rows);
        TRY(batch_set(&s->batch, 1, (const int32_t *[]){prefix + at}, &k, NULL, s->m->cfg.N, e));
        TRY(model_step(s->m, &s->acts, b->root, 0, &s->batch, &hidden, e));
        at += k;
    }
    struct view last = view_at(hidden, (s->batch.seqs.rows - 1) * d, d);
    for (int32_t i = 0; i < b->n; i++) {
        if (b->len[i] < 1)
            return ERR(e, E_USAGE, "continuation %d has no tokens", (int)i);
        if (b->cont[i][0] < 0 || b->cont[i][0] >= s->m->cfg.N)
            return ERR(e, E_INPUT, "token id %d of continuation %d is outside the vocabulary of %" PRId64, (int)b->cont[i][0], (int)i,
                       s->m->cfg.N);
        s->h_target[0] = b->cont[i][0];
        TRY(score_rows(s, last, 1, e));
        b->lp[i][0] = s->h_lp[0];
        if (b->greedy)
            b->greedy[i] = s->h_best[0] == b->cont[i][0];
    }
    return 0;
}

/* Continuations i0 .. i0+n-1, the part after their first token. */
static int score_rest(struct branches *b, int32_t i0, int32_t n, struct err *e)
{
    struct scorer *s = &b->s;
    struct view hidden;
    const int32_t **tok = calloc((size_t)n, sizeof *tok);
    int32_t *len = calloc((size_t)n, sizeof *len), used = 0;
    int64_t rows = 0, r = 0;
    int rc = tok && len ? 0 : err_nomem(e, (size_t)n * 16, "scoring");
    for (int32_t i = i0; i < i0 + n && rc == 0; i++) {
        if (b->len[i] < 2)
            continue;
        tok[used] = b->cont[i];
        len[used] = b->len[i] - 1;
        for (int32_t t = 1; t < b->len[i]; t++)
            s->h_target[rows++] = b->cont[i][t];
        rc = cache_copy(b->fork, used++, b->root, 0, e);
    }
    if (rc == 0 && used)
        rc = batch_set(&s->batch, used, tok, len, NULL, s->m->cfg.N, e) || model_step(s->m, &s->acts, b->fork, 0, &s->batch, &hidden, e) ||
                     score_rows(s, hidden, rows, e)
                 ? -1
                 : 0;
    for (int32_t i = i0; i < i0 + n && rc == 0; i++)
        for (int32_t t = 1; t < b->len[i]; t++, r++) {
            b->lp[i][t] = s->h_lp[r];
            if (b->greedy)
                b->greedy[i] = b->greedy[i] && s->h_best[r] == b->cont[i][t];
        }
    free((void *)(uintptr_t)tok);
    free(len);
    return rc;
}

int score_continuations(struct model *m, const int32_t *prefix, int32_t prefix_len, int32_t n, const int32_t *const *cont,
                        const int32_t *len, double **lp, bool *greedy, struct err *e)
{
    struct branches b = {.n = n, .cont = cont, .len = len, .lp = lp, .greedy = greedy};
    int64_t longest = 1, total = 0;
    for (int32_t i = 0; i < n; i++) {
        longest = MAX(longest, (int64_t)len[i]);
        total += len[i];
    }
    if (n < 1)
        return 0;
    if (prefix_len < 1)
        return ERR(e, E_USAGE, "continuations need a prefix of at least one token");
    int64_t rows = MAX(MIN((int64_t)SCORE_ROWS, MAX(total, (int64_t)prefix_len)), longest);
    int32_t slots = (int32_t)MIN((int64_t)n, rows);
    TRY(scorer_open(&b.s, m, rows, slots, e));
    int rc = cache_open(&b.root, m, 1, prefix_len, e) || cache_open(&b.fork, m, slots, prefix_len + longest, e) ||
                     score_first(&b, prefix, prefix_len, e)
                 ? -1
                 : 0;
    for (int32_t i = 0; i < n && rc == 0;) {
        int32_t k = 0;
        int64_t used = 0;
        while (i + k < n && k < slots && (k == 0 || used + len[i + k] <= rows))
            used += len[i + k++];
        rc = score_rest(&b, i, k, e);
        i += k;
    }
    cache_close(b.root);
    cache_close(b.fork);
    scorer_close(&b.s);
    return rc;
}

/* ---- logits ---- */

static void head_rows(const struct model *m, struct view z, struct view hidden, int64_t rows)
{
    be_gemm(m->be, &(struct op_gemm){.c = z, .a = hidden, .b = model_head(m)->w, .m = rows, .n = m->cfg.N, .k = m->cfg.d, .tb = true});
}

int model_logits(struct model *m, struct view hidden, int64_t rows, double *out, struct err *e)
{
    struct view z;
    TRY(be_view(m->be, m->be->stat, MIN(rows, (int64_t)LOGIT_ROWS) * m->cfg.N, &z, e));
    int rc = 0;
    for (int64_t r = 0; r < rows && rc == 0; r += LOGIT_ROWS) {
        int64_t n = MIN(rows - r, (int64_t)LOGIT_ROWS);
        head_rows(m, z, view_at(hidden, r * m->cfg.d, n * m->cfg.d), n);
        rc = get_f64(m->be, out + r * m->cfg.N, view_at(z, 0, n * m->cfg.N), e);
    }
    be_view_free(m->be, &z);
    return rc;
}

int model_topk(struct model *m, struct view hidden_row, int k, struct top_id *out, struct err *e)
{
    struct view z, ids = NO_VIEW, vals = NO_VIEW;
    int32_t id[64];
    double val[64];
    if (k < 1 || k > 64 || k > m->cfg.N)
        return ERR(e, E_USAGE, "top %d of %" PRId64 " ids (1 to 64 are possible)", k, m->cfg.N);
    TRY(be_view(m->be, m->be->stat, m->cfg.N, &z, e));
    int rc = be_view(m->be, DT_I32, k, &ids, e) || be_view(m->be, m->be->stat, k, &vals, e) ? -1 : 0;
    if (rc == 0) {
        head_rows(m, z, hidden_row, 1);
        be_topk(m->be, &(struct op_topk){.ids = ids, .vals = vals, .z = z, .rows = 1, .n = m->cfg.N, .k = k});
        be_get(m->be, id, ids);
        rc = get_f64(m->be, val, vals, e);
    }
    for (int i = 0; i < k && rc == 0; i++)
        out[i] = (struct top_id){id[i], val[i]};
    be_view_free(m->be, &z);
    be_view_free(m->be, &ids);
    be_view_free(m->be, &vals);
    return rc;
}
