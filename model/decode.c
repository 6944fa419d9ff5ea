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
    int32_t *h_best, *h_idx, *h_target;
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
    free(k->h_target);
    free(k->h_lp);
}

static int picker_open(struct picker *k, const struct model *m, int64_t n, struct err *e)
{
    *k = (struct picker){.be = m->be, .m = m};
    k->h_best = calloc((size_t)n, sizeof *k->h_best);
    k->h_idx = calloc((size_t)n, sizeof *k->h_idx);
    k->h_target = calloc((size_t)n, sizeof *k->h_target);
    k->h_lp = calloc((size_t)n, sizeof *k->h_lp);
    int rc = k->h_best && k->h_idx && k->h_target && k->h_lp ? 0 : err_nomem(e, (size_t)n * 16, "decoding");
    if (rc == 0 &&
        (be_view(m->be, m->be->act, n * m->cfg.d, &k->rows, e) || be_view(m->be, m->be->stat, n, &k->lp, e) ||
         be_view(m->be, DT_I32, n, &k->best, e) || be_view(m->be, DT_I32, n, &k->target, e) || be_view(m->be, DT_I32, n, &k->idx, e)))
        rc = -1;
    if (rc != 0)
        picker_close(k);
    return rc;
}

/* best[i] = argmax of the logits of hidden row h_idx[i], lp[i] = log-probability there of h_target[i], i < n. */
static int pick(struct picker *k, struct view hidden, int32_t n, struct err *e)
{
    const struct param *head = model_head(k->m);
    int64_t d = k->m->cfg.d;
    be_put(k->be, view_at(k->idx, 0, n), k->h_idx);
    be_put(k->be, view_at(k->target, 0, n), k->h_target);
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
    struct share {
        int32_t *order; /* [n] prompts as they are taken; the k-th has its beginning in slot k of the cache */
        int64_t *start; /* [n] tokens of that beginning */
        int64_t *lcp;   /* [n] tokens that the k-th has in common with the one before it, whole cuts */
        struct cache *fork;
    } share;             /* NULL arrays: nothing is shared */
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

/* ---- prompts with a common beginning ---- */

enum { FORK_SLOTS = 8 };

int64_t gen_share_cut(const struct model *m)
{
    bool ok = strcmp(m->be->ops->name, "cpu") == 0;
    for (int64_t l = 0; l < m->cfg.L; l++)
        ok = ok && !(m->layer[l].ops & MIX_BIT(MIX_WINDOW));
    return ok ? GDN_CHUNK : 0;
}

/* Whole cuts before the last two tokens: a piece of one token takes another path through a recurrent layer. */
static int64_t last_cut(const struct gen *g, int32_t i)
{
    return (g->len[i] - 2) / g->o->share * g->o->share;
}

/* Tokens of prompt i that may be shared; where it is scored, a piece of it must be left before the last cut. */
static int64_t may_share(const struct gen *g, int32_t i)
{
    int64_t cut = last_cut(g, i) - (g->o->full ? g->o->share : 0);
    return MAX(cut, 0);
}

static int64_t common(const struct gen *g, int32_t a, int32_t b)
{
    int64_t n = MIN(g->len[a], g->len[b]), i = 0;
    while (i < n && g->prompt[a][i] == g->prompt[b][i])
        i++;
    return i;
}

static bool before(const struct gen *g, int32_t a, int32_t b)
{
    int64_t i = common(g, a, b);
    if (i == g->len[a] || i == g->len[b])
        return g->len[a] != g->len[b] ? g->len[a] < g->len[b] : a < b;
    return g->prompt[a][i] < g->prompt[b][i];
}

static int sort_prompts(struct gen *g, struct err *e)
{
    int32_t *v = g->share.order, *tmp = malloc((size_t)g->n * sizeof *tmp);
    if (!tmp)
        return err_nomem(e, (size_t)g->n * sizeof *tmp, "decoding");
    for (int32_t i = 0; i < g->n; i++)
        v[i] = i;
    for (int32_t width = 1; width < g->n; width *= 2) {
        for (int32_t lo = 0; lo < g->n; lo += 2 * width) {
            int32_t mid = MIN(lo + width, g->n), hi = MIN(lo + 2 * width, g->n), a = lo, b = mid;
            for (int32_t k = lo; k < hi; k++)
                tmp[k] = b == hi || (a < mid && before(g, v[a], v[b])) ? v[a++] : v[b++];
        }
        memcpy(v, tmp, (size_t)g->n * sizeof *v);
    }
    free(tmp);
    return 0;
}

/* Feeds tokens to one sequence. */
static int advance(struct gen *g, struct cache *c, int32_t slot, const int32_t *tok, int64_t n, struct view *hidden, struct err *e)
{
    for (int64_t at = 0; at < n;) {
        int32_t k = (int32_t)MIN(n - at, g->rows);
        TRY(batch_set(&g->batch, 1, (const int32_t *[]){tok + at}, &k, NULL, g->m->cfg.N, e));
        TRY(model_step(g->m, &g->acts, c, slot, &g->batch, hidden, e));
        at += k;
    }
    return 0;
}

static void count_computed(const struct gen *g, int64_t n)
{
    if (g->o->computed)
        *g->o->computed += n;
}

/*
 * Prompts lo..hi-1 of the order have pos tokens in common, and slot lo holds them. Goes on to what all of them share, parts where they part
 * and does the same for each of the parts.
 */
static int grow_stems(struct gen *g, int32_t lo, int32_t hi, int64_t pos, struct err *e)
{
    struct share *s = &g->share;
    while (hi - lo > 1) {
        int32_t at = lo + 1;
        for (int32_t k = lo + 1; k < hi; k++)
            at = s->lcp[k] <= s->lcp[at] ? k : at; /* the last of the shortest */
        if (s->lcp[at] > pos) {
            struct view hidden;
            TRY(advance(g, g->cache, lo, g->prompt[s->order[lo]] + pos, s->lcp[at] - pos, &hidden, e));
            count_computed(g, s->lcp[at] - pos);
            pos = s->lcp[at];
        }
        if (pos)
            TRY(cache_copy(g->cache, at, g->cache, lo, e));
        TRY(grow_stems(g, at, hi, pos, e));
        hi = at;
    }
    s->start[lo] = pos;
    return 0;
}

static int share_prompts(struct gen *g, struct err *e)
{
    struct share *s = &g->share;
    size_t n = (size_t)g->n;
    if (g->n > g->o->batch)
        return ERR(e, E_USAGE, "%d prompts cannot share their beginnings in a batch of %d", (int)g->n, (int)g->o->batch);
    s->order = calloc(n, sizeof *s->order);
    s->start = calloc(n, sizeof *s->start);
    s->lcp = calloc(n, sizeof *s->lcp);
    if (!s->order || !s->start || !s->lcp)
        return err_nomem(e, n * 20, "decoding");
    TRY(sort_prompts(g, e));
    for (int32_t k = 0; k < g->n; k++) {
        int32_t i = s->order[k], j = k ? s->order[k - 1] : i;
        cache_reset(g->cache, k);
        s->lcp[k] = MIN(MIN(common(g, i, j), may_share(g, i)), may_share(g, j)) / g->o->share * g->o->share;
    }
    return grow_stems(g, 0, g->n, 0, e);
}

/* Log-probabilities of what follows the prompts in slots first..first+n-1, which stand at their last cut: on copies of their states. */
static int score_full(struct gen *g, int32_t first, int32_t n, struct err *e)
{
    const struct gen_opts *o = g->o;
    for (int32_t k = 0; k < n;) {
        int32_t used = 0, row = 0, at[FORK_SLOTS], wanted = 0;
        for (; k + used < n && used < FORK_SLOTS; used++) {
            int32_t i = g->slot_of[first + k + used], cut = (int32_t)last_cut(g, i), len = o->full_len[i] - cut;
            if (used && row + len > g->rows)
                break;
            TRY(cache_copy(g->share.fork, used, g->cache, first + k + used, e));
            g->tok[used] = o->full[i] + cut;
            g->tok_len[used] = len;
            at[used] = row + g->len[i] - cut;
            row += len;
            count_computed(g, g->len[i] - cut);
        }
        struct view hidden;
        TRY(batch_set(&g->batch, used, g->tok, g->tok_len, NULL, g->m->cfg.N, e));
        TRY(model_step(g->m, &g->acts, g->share.fork, 0, &g->batch, &hidden, e));
        for (int32_t u = 0; u < used; u++) {
            int32_t i = g->slot_of[first + k + u];
            for (int32_t t = g->len[i]; t < o->full_len[i]; t++, wanted++) {
                g->pick.h_idx[wanted] = at[u] + t - g->len[i] - 1;
                g->pick.h_target[wanted] = o->full[i][t];
            }
        }
        TRY(pick(&g->pick, hidden, wanted, e));
        for (int32_t u = 0, w = 0; u < used; u++) {
            int32_t i = g->slot_of[first + k + u];
            for (int32_t t = g->len[i]; t < o->full_len[i]; t++, w++)
                o->full_lp[i][t - g->len[i]] = g->pick.h_lp[w];
        }
        k += used;
    }
    return 0;
}

/* ---- prefill ---- */

/* The next prompts, as many as fit, into the slots behind the active ones: slot_of, tok and tok_len (what is not in the cache yet). */
static int take_prompts(struct gen *g, int32_t *n, int64_t *rows, struct err *e)
{
    const struct share *s = &g->share;
    *n = 0;
    *rows = 0;
    while (g->next < g->n && g->active + *n < g->o->batch) {
        int32_t i = s->order ? s->order[g->next] : g->next, slot = g->active + *n;
        int64_t start = s->order ? s->start[g->next] : 0;
        if (limit_of(g, i) < 1 && !g->o->full) { /* nothing wanted */
            g->next++;
            g->done++;
            continue;
        }
        if (*n && *rows + g->len[i] - start > g->rows)
            break;
        if (!start)
            cache_reset(g->cache, slot);
        else if (slot != g->next) /* slots that were freed before it */
            TRY(cache_copy(g->cache, slot, g->cache, g->next, e));
        g->slot_of[slot] = i;
        g->tok[*n] = g->prompt[i] + start;
        g->tok_len[*n] = (int32_t)(g->len[i] - start);
        *rows += g->len[i] - start;
        ++*n;
        g->next++;
        if (*rows > g->rows)
            break;
    }
    count_computed(g, *rows);
    return 0;
}

/* Feeds tok, tok_len to slots first.. ; a long prompt is alone and goes in pieces. */
static int feed(struct gen *g, int32_t first, int32_t n, struct view *hidden, struct err *e)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++)
        rows += g->tok_len[i];
    if (rows > g->rows)
        return advance(g, g->cache, first, g->tok[0], g->tok_len[0], hidden, e);
    TRY(batch_set(&g->batch, n, g->tok, g->tok_len, NULL, g->m->cfg.N, e));
    return model_step(g->m, &g->acts, g->cache, first, &g->batch, hidden, e);
}

/* Up to the last cut, then what is scored on copies of the states; the rest of the prompts is left in tok, tok_len. */
static int feed_scored(struct gen *g, int32_t first, int32_t n, struct err *e)
{
    struct view hidden;
    for (int32_t k = 0; k < n; k++) {
        int32_t i = g->slot_of[first + k];
        g->tok_len[k] -= (int32_t)(g->len[i] - last_cut(g, i));
    }
    TRY(feed(g, first, n, &hidden, e));
    TRY(score_full(g, first, n, e));
    for (int32_t k = 0; k < n; k++) {
        int32_t i = g->slot_of[first + k];
        g->tok[k] = g->prompt[i] + last_cut(g, i);
        g->tok_len[k] = (int32_t)(g->len[i] - last_cut(g, i));
    }
    return 0;
}

static int prefill(struct gen *g, struct err *e)
{
    int32_t n, first = g->active;
    int64_t rows;
    struct view hidden;
    TRY(take_prompts(g, &n, &rows, e));
    if (!n)
        return 0;
    if (g->o->full)
        TRY(feed_scored(g, first, n, e));
    TRY(feed(g, first, n, &hidden, e));
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
    const struct gen_opts *o = g->o;
    int64_t cap = 1, total = 0, scored = 0;
    for (int32_t i = 0; i < g->n; i++) {
        if (g->len[i] < 1)
            return ERR(e, E_USAGE, "prompt %d has no tokens", (int)i);
        if (o->full && (!o->share || g->len[i] < 2 * o->share + 2 || o->full_len[i] <= g->len[i]))
            return ERR(e, E_USAGE, "prompt %d of %d tokens cannot be scored beside the others", (int)i, (int)g->len[i]);
        cap = MAX(cap, g->len[i] + limit_of(g, i));
        scored = o->full ? MAX(scored, o->full_len[i] - last_cut(g, i)) : 0;
        total += g->len[i];
    }
    g->rows = MAX(o->prefill_rows ? o->prefill_rows : PREFILL_ROWS, o->full ? CEIL_DIV(scored, o->share) * o->share : 0);
    int64_t rows = MAX(MAX(MIN(g->rows, total), (int64_t)MAX(o->batch, FORK_SLOTS)), scored), b = o->batch;
    rows = o->full ? MAX(rows, g->rows) : rows;
    g->slot_of = calloc((size_t)b, sizeof *g->slot_of);
    g->last = calloc((size_t)b, sizeof *g->last);
    g->tok = calloc((size_t)MAX(b, FORK_SLOTS), sizeof *g->tok);
    g->tok_len = calloc((size_t)MAX(b, FORK_SLOTS), sizeof *g->tok_len);
    if (!g->slot_of || !g->last || !g->tok || !g->tok_len)
        return err_nomem(e, (size_t)b * 24, "decoding");
    TRY(acts_open(&g->acts, g->m, &(struct acts_opts){.rows = rows, .seqs = (int32_t)MAX(b, FORK_SLOTS)}, e));
    TRY(batch_open(&g->batch, g->m->be, rows, (int32_t)MAX(b, FORK_SLOTS), e));
    TRY(picker_open(&g->pick, g->m, o->full ? MAX(b, rows) : b, e));
    TRY(cache_open(&g->cache, g->m, (int32_t)b, cap, e));
    g->cache->ablate = o->ablate;
    if (o->full) {
        for (int32_t i = 0; i < g->n; i++)
            cap = MAX(cap, (int64_t)o->full_len[i]);
        TRY(cache_open(&g->share.fork, g->m, FORK_SLOTS, cap, e));
        g->share.fork->ablate = o->ablate;
    }
    return o->share ? share_prompts(g, e) : 0;
}

static void gen_close(struct gen *g)
{
    cache_close(g->cache);
    cache_close(g->share.fork);
    free(g->share.order);
    free(g->share.start);
    free(g->share.lcp);
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
