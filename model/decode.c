/* Greedy generation with sequences that come and go. */
#include <stdlib.h>
#include <string.h>

#include "core/prov.h"
#include "kernels/ops.h"
#include "model/model_int.h"

#define PREFILL_ROWS 2048

/* Last rows -> ids: everything between hidden states and the host. */
struct picker {
    struct backend *be;
    const struct model *m;
    struct view rows, lp, best, target, idx;
    int32_t *h_best, *h_idx;
    double *h_lp;
};

static void picker_close(struct picker *k)
{
    be_view_free(k->be, &k->rows);
    be_view_free(k->be, &k->lp);
    be_view_free(k->be, &k->best);
    be_view_free(k->be, &k->target);
    be_view_free(k->be, &k->idx);
    free(k->h_best);
    free(k->h_idx);
    free(k->h_lp);
}

static int picker_open(struct picker *k, const struct model *m, int64_t n, struct err *e)
{
    *k = (struct picker){.be = m->be, .m = m};
    k->h_best = calloc((size_t)n, sizeof *k->h_best);
    k->h_idx = calloc((size_t)n, sizeof *k->h_idx);
    k->h_lp = calloc((size_t)n, sizeof *k->h_lp);
    int rc = k->h_best && k->h_idx && k->h_lp ? 0 : err_nomem(e, (size_t)n * 16, "decoding");
    if (rc == 0 &&
        (be_view(m->be, m->be->act, n * m->cfg.d, &k->rows, e) || be_view(m->be, m->be->stat, n, &k->lp, e) ||
         be_view(m->be, DT_I32, n, &k->best, e) || be_view(m->be, DT_I32, n, &k->target, e) || be_view(m->be, DT_I32, n, &k->idx, e)))
        rc = -1;
    if (rc != 0)
        picker_close(k);
    return rc;
}

/* best[i] = argmax of the logits of hidden row h_idx[i], i < n. */
static int pick(struct picker *k, struct view hidden, int32_t n, struct err *e)
{
    const struct param *head = model_head(k->m);
    int64_t d = k->m->cfg.d;
    be_put(k->be, view_at(k->idx, 0, n), k->h_idx);
    be_gather(k->be, &(struct op_gather){.dst = k->rows, .src = hidden, .si = view_at(k->idx, 0, n), .rows = n, .dim = d});
    be_head_ce(
        k->be,
        &(struct op_head_ce){
            .lp = k->lp, .best = k->best, .h = k->rows, .w = head->w, .target = k->target, .rows = n, .dim = d, .vocab = k->m->cfg.N});
    be_get(k->be, k->h_best, view_at(k->best, 0, n));
    TRY(get_f64(k->be, k->h_lp, view_at(k->lp, 0, n), e));
    for (int32_t i = 0; i < n; i++)
        if (!finite_f64(k->h_lp[i]))
            return ERR(e, E_NUMERIC, "logits are not finite while decoding (sequence %d of %d)", (int)i, (int)n);
    return 0;
}

struct gen {
    struct model *m;
    const struct gen_opts *o;
    int32_t n, next, active, done;
    const int32_t *const *prompt;
    const int32_t *len;
    int32_t **out, *out_len;
    int64_t tokens, rows;
    struct cache *cache;
    struct acts acts;
    struct batch batch;
    struct picker pick;
    int32_t *slot_of;    /* [batch] prompt that a slot holds */
    int32_t *last;       /* [batch] its newest token */
    const int32_t **tok; /* [batch] scratch */
    int32_t *tok_len;
};

static int64_t limit_of(const struct gen *g, int32_t i)
{
    return g->o->max_new_each ? g->o->max_new_each[i] : g->o->max_new;
}

/* Appends an id to the sequence in a slot; true when the sequence is finished. */
static bool emit(struct gen *g, int32_t slot, int32_t id)
{
    int32_t i = g->slot_of[slot];
    g->out[i][g->out_len[i]++] = id;
    g->last[slot] = id;
    g->tokens++;
    for (int k = 0; k < g->o->n_stop; k++)
        if (g->o->stop[k] == id)
            return true;
    return g->out_len[i] >= limit_of(g, i);
}

static int finish(struct gen *g, int32_t slot, struct err *e)
{
    int32_t lastslot = --g->active;
    g->done++;
    if (slot == lastslot)
        return 0;
    g->slot_of[slot] = g->slot_of[lastslot];
    g->last[slot] = g->last[lastslot];
    return cache_copy(g->cache, slot, g->cache, lastslot, e);
}

/* Emits h_best of slots first.., from the back so that finished ones can be filled from behind. */
static int emit_all(struct gen *g, int32_t first, int32_t n, struct err *e)
{
    for (int32_t i = n - 1; i >= 0; i--)
        if (emit(g, first + i, g->pick.h_best[i]))
            TRY(finish(g, first + i, e));
    return 0;
}

/* The next prompts, as many as fit, into the free slots; a long one alone, in pieces. */
static int prefill(struct gen *g, struct err *e)
{
    int32_t n = 0, first = g->active, pos = 0;
    int64_t rows = 0;
    while (g->next < g->n && first + n < g->o->batch) {
        int32_t i = g->next;
        if (limit_of(g, i) < 1) { /* nothing wanted */
            g->next++;
            g->done++;
            continue;
        }
        if (n && rows + g->len[i] > g->rows)
            break;
        cache_reset(g->cache, first + n);
        g->slot_of[first + n] = i;
        g->tok[n] = g->prompt[i];
        g->tok_len[n] = g->len[i];
        rows += g->len[i];
        n++;
        g->next++;
        if (rows > g->rows)
            break;
    }
    if (!n)
        return 0;
    struct view hidden;
    int32_t whole = g->tok_len[0];
    do {
        if (rows > g->rows) {
            g->tok[0] = g->prompt[g->slot_of[first]] + pos;
            g->tok_len[0] = (int32_t)MIN(g->rows, (int64_t)(whole - pos));
        }
        TRY(batch_set(&g->batch, n, g->tok, g->tok_len, NULL, g->m->cfg.N, e));
        TRY(model_step(g->m, &g->acts, g->cache, first, &g->batch, &hidden, e));
        pos += g->tok_len[0];
    } while (rows > g->rows && pos < whole);
    for (int32_t i = 0; i < n; i++)
        g->pick.h_idx[i] = g->batch.seqs.q_off[i + 1] - 1;
    TRY(pick(&g->pick, hidden, n, e));
    g->active += n;
    return emit_all(g, first, n, e);
}

static int decode(struct gen *g, struct err *e)
{
    struct view hidden;
    for (int32_t i = 0; i < g->active; i++) {
        g->tok[i] = &g->last[i];
        g->tok_len[i] = 1;
        g->pick.h_idx[i] = i;
    }
    TRY(batch_set(&g->batch, g->active, g->tok, g->tok_len, NULL, g->m->cfg.N, e));
    TRY(model_step(g->m, &g->acts, g->cache, 0, &g->batch, &hidden, e));
    TRY(pick(&g->pick, hidden, g->active, e));
    return emit_all(g, 0, g->active, e);
}

static int gen_open(struct gen *g, struct err *e)
{
    int64_t cap = 1, longest = 1, total = 0;
    for (int32_t i = 0; i < g->n; i++) {
        if (g->len[i] < 1)
            return ERR(e, E_USAGE, "prompt %d has no tokens", (int)i);
        cap = MAX(cap, g->len[i] + limit_of(g, i));
        longest = MAX(longest, (int64_t)g->len[i]);
        total += g->len[i];
    }
    g->rows = g->o->prefill_rows ? g->o->prefill_rows : PREFILL_ROWS;
    int64_t rows = MAX(MIN(g->rows, total), (int64_t)g->o->batch), b = g->o->batch;
    g->slot_of = calloc((size_t)b, sizeof *g->slot_of);
    g->last = calloc((size_t)b, sizeof *g->last);
    g->tok = calloc((size_t)b, sizeof *g->tok);
    g->tok_len = calloc((size_t)b, sizeof *g->tok_len);
    if (!g->slot_of || !g->last || !g->tok || !g->tok_len)
        return err_nomem(e, (size_t)b * 24, "decoding");
    TRY(acts_open(&g->acts, g->m, &(struct acts_opts){.rows = rows, .seqs = (int32_t)b}, e));
    TRY(batch_open(&g->batch, g->m->be, rows, (int32_t)b, e));
    TRY(picker_open(&g->pick, g->m, b, e));
    TRY(cache_open(&g->cache, g->m, (int32_t)b, cap, e));
    g->cache->ablate = g->o->ablate;
    return 0;
}

static void gen_close(struct gen *g)
{
    cache_close(g->cache);
    acts_close(&g->acts);
    batch_close(&g->batch);
    if (g->pick.be)
        picker_close(&g->pick);
    free(g->slot_of);
    free(g->last);
    free((void *)(uintptr_t)g->tok);
    free(g->tok_len);
}

int gen_greedy(struct model *m, int32_t n, const int32_t *const *prompt, const int32_t *len, const struct gen_opts *o, int32_t **out,
               int32_t *out_len, struct err *e)
{
    struct gen_opts own = *o;
    own.batch = MAX(MIN(o->batch, n), 1);
    struct gen g = {.m = m, .o = &own, .n = n, .prompt = prompt, .len = len, .out = out, .out_len = out_len};
    if (n < 1)
        return 0;
    memset(out_len, 0, (size_t)n * sizeof *out_len);
    int rc = gen_open(&g, e);
    while (rc == 0 && g.done < n) {
        if (interrupted())
            rc = ERR(e, E_INTERRUPTED, "interrupted after %d of %d sequences", (int)g.done, (int)n);
        while (rc == 0 && g.active < own.batch && g.next < n)
            rc = prefill(&g, e);
        if (rc == 0 && g.active)
            rc = decode(&g, e);
        if (rc == 0 && own.progress)
            own.progress(own.ctx, g.done, n, g.tokens);
    }
    gen_close(&g);
    return rc;
}
