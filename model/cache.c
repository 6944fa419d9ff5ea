/* States of sequences being decoded, and one step of the model on them. */
#include "model/cache.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/step.h"
#include "model/model_int.h"

/* ---- memory ---- */

static int state_of(const struct mixer *x, unsigned ops, struct mixer_state out[MIXER_MAX_STATE])
{
    return x && (ops & x->type->kinds) ? x->type->state(x, ops & x->type->kinds, out) : 0;
}

static int64_t state_elems(const struct mixer_state *s, int64_t capacity)
{
    return s->per_token * capacity + s->fixed;
}

int64_t cache_bytes(const struct model *m, int32_t slots, int64_t capacity)
{
    int64_t bytes = 0;
    for (int64_t l = 0; l < m->cfg.L; l++)
        for (int i = 0; i < 2; i++) {
            struct mixer_state s[MIXER_MAX_STATE];
            int n = state_of(i ? m->layer[l].lin : m->layer[l].attn, m->layer[l].ops, s);
            for (int j = 0; j < n; j++)
                bytes += slots * state_elems(&s[j], capacity) * (int64_t)dtype_size(s[j].stat ? m->be->stat : m->be->act);
        }
    return bytes;
}

static int alloc_states(const struct cache *c, int64_t l, int which, int64_t capacity, struct mixer_cache *out, struct err *e)
{
    const struct layer *lay = &c->m->layer[l];
    struct mixer_state s[MIXER_MAX_STATE];
    int n = state_of(which ? lay->lin : lay->attn, c->ops[l], s);
    memset(out, 0, sizeof *out);
    for (int j = 0; j < n; j++) {
        out->elems[j] = state_elems(&s[j], capacity);
        if (be_view(c->be, s[j].stat ? c->be->stat : c->be->act, c->slots * out->elems[j], &out->v[j], e) != 0)
            return err_wrap(e, "state '%s' of layer %" PRId64 " for %d sequences of %" PRId64 " tokens", s[j].name, l, (int)c->slots,
                            capacity);
    }
    return 0;
}

static void free_states(struct backend *be, struct mixer_cache *x)
{
    for (int j = 0; j < MIXER_MAX_STATE; j++)
        be_view_free(be, &x->v[j]);
}

int cache_open(struct cache **out, struct model *m, int32_t slots, int64_t capacity, struct err *e)
{
    struct cache *c = calloc(1, sizeof *c);
    size_t L = (size_t)m->cfg.L;
    if (!c)
        return err_nomem(e, sizeof *c, "a cache");
    *c = (struct cache){.m = m, .be = m->be, .slots = slots, .capacity = capacity};
    c->len = calloc((size_t)slots, sizeof *c->len);
    c->ops = calloc(L, sizeof *c->ops);
    c->attn = calloc(L, sizeof *c->attn);
    c->lin = calloc(L, sizeof *c->lin);
    int rc = c->len && c->ops && c->attn && c->lin ? 0 : err_nomem(e, L * sizeof *c->attn, "a cache");
    if (rc == 0 && (int64_t)slots * capacity > INT32_MAX)
        rc = ERR(e, E_ENV, "a cache of %d sequences of %" PRId64 " tokens has more than 2^31 rows; use a smaller batch", (int)slots,
                 capacity);
    for (int64_t l = 0; rc == 0 && l < m->cfg.L; l++) {
        c->ops[l] = m->layer[l].ops;
        rc = alloc_states(c, l, 0, capacity, &c->attn[l], e) || alloc_states(c, l, 1, capacity, &c->lin[l], e) ? -1 : 0;
    }
    if (rc != 0) {
        cache_close(c);
        return -1;
    }
    c->bytes = cache_bytes(m, slots, capacity);
    *out = c;
    return 0;
}

void cache_close(struct cache *c)
{
    if (!c)
        return;
    for (int64_t l = 0; c->attn && c->lin && l < c->m->cfg.L; l++) {
        free_states(c->be, &c->attn[l]);
        free_states(c->be, &c->lin[l]);
    }
    free(c->len);
    free(c->ops);
    free(c->attn);
    free(c->lin);
    free(c);
}

/* Elements of a sequence of len tokens that are in use: the front of its stretch. */
static int64_t used_elems(const struct mixer_state *s, int64_t len)
{
    return s->per_token * len + s->fixed;
}

static void copy_slot(struct backend *be, const struct mixer_state *s, struct view dst, int64_t delems, int32_t dslot, struct view src,
                      int64_t selems, int32_t sslot, int64_t len)
{
    int64_t n = used_elems(s, len);
    be_copy(be, view_at(dst, dslot * delems, n), view_at(src, sslot * selems, n));
}

int cache_reserve(struct cache *c, int64_t capacity, struct err *e)
{
    if (capacity <= c->capacity)
        return 0;
    if ((int64_t)c->slots * capacity > INT32_MAX)
        return ERR(e, E_ENV, "a cache of %d sequences of %" PRId64 " tokens has more than 2^31 rows; use a smaller batch", (int)c->slots,
                   capacity);
    for (int64_t l = 0; l < c->m->cfg.L; l++)
        for (int i = 0; i < 2; i++) {
            struct mixer_state s[MIXER_MAX_STATE];
            struct mixer_cache *old = i ? &c->lin[l] : &c->attn[l], fresh;
            int n = state_of(i ? c->m->layer[l].lin : c->m->layer[l].attn, c->ops[l], s);
            bool grows = false;
            for (int j = 0; j < n; j++)
                grows |= s[j].per_token > 0;
            if (!grows)
                continue;
            if (alloc_states(c, l, i, capacity, &fresh, e) != 0) {
                free_states(c->be, &fresh);
                return -1;
            }
            for (int j = 0; j < n; j++)
                for (int32_t slot = 0; slot < c->slots; slot++)
                    copy_slot(c->be, &s[j], fresh.v[j], fresh.elems[j], slot, old->v[j], old->elems[j], slot, c->len[slot]);
            if (be_sync(c->be, e) != 0) {
                free_states(c->be, &fresh);
                return -1;
            }
            free_states(c->be, old);
            *old = fresh;
        }
    c->capacity = capacity;
    c->bytes = cache_bytes(c->m, c->slots, capacity);
    return 0;
}

void cache_reset(struct cache *c, int32_t slot)
{
    c->len[slot] = 0;
    for (int64_t l = 0; l < c->m->cfg.L; l++)
        for (int i = 0; i < 2; i++) {
            struct mixer_state s[MIXER_MAX_STATE];
            struct mixer_cache *x = i ? &c->lin[l] : &c->attn[l];
            int n = state_of(i ? c->m->layer[l].lin : c->m->layer[l].attn, c->ops[l], s);
            for (int j = 0; j < n; j++)
                if (i) /* recurrent states start at zero; rows of keys and values are never read before they are written */
                    be_zero(c->be, view_at(x->v[j], slot * x->elems[j], x->elems[j]));
        }
}

int cache_copy(struct cache *dst, int32_t dslot, const struct cache *src, int32_t sslot, struct err *e)
{
    if (dst->m->cfg.L != src->m->cfg.L || memcmp(dst->ops, src->ops, (size_t)src->m->cfg.L * sizeof *src->ops) != 0)
        BUG("a cache cannot take a sequence from a cache of other operators");
    TRY(cache_reserve(dst, src->len[sslot], e));
    for (int64_t l = 0; l < src->m->cfg.L; l++)
        for (int i = 0; i < 2; i++) {
            struct mixer_state s[MIXER_MAX_STATE];
            const struct mixer_cache *from = i ? &src->lin[l] : &src->attn[l];
            struct mixer_cache *to = i ? &dst->lin[l] : &dst->attn[l];
            int n = state_of(i ? src->m->layer[l].lin : src->m->layer[l].attn, src->ops[l], s);
            for (int j = 0; j < n; j++)
                copy_slot(dst->be, &s[j], to->v[j], to->elems[j], dslot, from->v[j], from->elems[j], sslot, src->len[sslot]);
        }
    dst->len[dslot] = src->len[sslot];
    return 0;
}

/* ---- where rows go ---- */

const struct ring_rows *cache_ring(const struct cache_rows *r, int32_t window)
{
    for (int i = 0; i < r->n_ring; i++)
        if (r->ring[i].window == window)
            return &r->ring[i];
    BUG("no ring of %d rows was planned", (int)window);
}

static int32_t *idx_take(struct host_idx *h, size_t n)
{
    int32_t *p = h->p + h->n;
    if (n > h->cap - h->n)
        BUG("index memory of %zu is too small", h->cap);
    h->n += n;
    return p;
}

/* n host indices, uploaded. */
static struct view upload(struct backend *be, struct dmem *a, const int32_t *p, int64_t n)
{
    if (!n)
        return NO_VIEW;
    struct view v = dmem_take(a, DT_I32, n);
    be_put(be, v, p);
    return v;
}

static void seqs_upload(struct seqs *s, const struct seqs *like, struct backend *be, struct dmem *a, const int32_t *kv_off,
                        const int32_t *kv_len)
{
    *s = *like;
    s->kv_off = kv_off;
    s->kv_len = kv_len;
    s->d_kv_off = upload(be, a, kv_off, like->n);
    s->d_kv_len = upload(be, a, kv_len, like->n);
}

static void plan_full(struct cache_rows *out, const struct cache *c, int32_t slot0, const struct seqs *q, struct backend *be,
                      struct dmem *a, struct host_idx *h)
{
    int32_t *off = idx_take(h, (size_t)q->n), *len = idx_take(h, (size_t)q->n), *di = idx_take(h, (size_t)q->rows);
    for (int32_t i = 0; i < q->n; i++) {
        off[i] = (int32_t)((slot0 + i) * c->capacity);
        len[i] = (int32_t)c->len[slot0 + i] + seqs_qlen(q, i);
        for (int32_t t = 0; t < seqs_qlen(q, i); t++)
            di[q->q_off[i] + t] = off[i] + (int32_t)c->len[slot0 + i] + t;
    }
    seqs_upload(&out->full, q, be, a, off, len);
    out->full_di = upload(be, a, di, q->rows);
}

static void plan_ring(struct ring_rows *r, int32_t w, const struct cache *c, int32_t slot0, const struct seqs *q, struct backend *be,
                      struct dmem *a, struct host_idx *h)
{
    const int32_t n = q->n;
    int32_t *off = idx_take(h, (size_t)n), *len = idx_take(h, (size_t)n);
    int32_t *put_di = idx_take(h, (size_t)q->rows), *put_si = idx_take(h, (size_t)q->rows), *new_di = idx_take(h, (size_t)q->rows);
    int32_t *tail_di = idx_take(h, (size_t)n * (size_t)w), *tail_si = idx_take(h, (size_t)n * (size_t)w);
    *r = (struct ring_rows){.window = w, .single = q->rows == n};
    int32_t line = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t past = (int32_t)c->len[slot0 + i], nq = seqs_qlen(q, i), base = (slot0 + i) * w, tail = MIN(past, w - 1);
        for (int32_t t = MAX(nq - w, 0); t < nq; t++) {
            put_di[r->n_put] = base + (past + t) % w;
            put_si[r->n_put++] = q->q_off[i] + t;
        }
        if (r->single) {
            off[i] = base;
            len[i] = past + 1;
            continue;
        }
        off[i] = line;
        len[i] = tail + nq;
        for (int32_t t = 0; t < tail; t++) {
            tail_di[r->n_tail] = line + t;
            tail_si[r->n_tail++] = base + (past - tail + t) % w;
        }
        for (int32_t t = 0; t < nq; t++)
            new_di[q->q_off[i] + t] = line + tail + t;
        line += tail + nq;
    }
    r->line_rows = line;
    seqs_upload(&r->seqs, q, be, a, off, len);
    r->put_di = upload(be, a, put_di, r->n_put);
    r->put_si = upload(be, a, put_si, r->n_put);
    if (!r->single) {
        r->tail_di = upload(be, a, tail_di, r->n_tail);
        r->tail_si = upload(be, a, tail_si, r->n_tail);
        r->new_di = upload(be, a, new_di, q->rows);
    }
}

int cache_plan_rows(struct cache_rows *out, const struct cache *c, int32_t slot0, const struct seqs *seqs, struct backend *be,
                    struct dmem *a, struct host_idx *h, struct err *e)
{
    int32_t windows[CACHE_MAX_WINDOWS];
    int n_win = 0;
    bool full = false;
    size_t need = 0, n = (size_t)seqs->n, rows = (size_t)seqs->rows;
    for (int64_t l = 0; l < c->m->cfg.L; l++) {
        const struct layer *y = &c->m->layer[l];
        full |= (y->ops & MIX_BIT(MIX_FULL)) != 0;
        if ((y->ops & (MIX_BIT(MIX_FULL) | MIX_BIT(MIX_WINDOW))) != MIX_BIT(MIX_WINDOW))
            continue;
        bool known = false;
        for (int i = 0; i < n_win; i++)
            known |= windows[i] == y->attn->s.window;
        if (!known && n_win == CACHE_MAX_WINDOWS)
            return ERR(e, E_USAGE,
                       "layer %" PRId64 " has a window of %" PRId64 " tokens, the fifth size; decoding takes up to %d sizes in one model",
                       l, y->attn->s.window, CACHE_MAX_WINDOWS);
        if (!known)
            windows[n_win++] = (int32_t)y->attn->s.window;
    }
    need = full ? 2 * n + rows : 0;
    for (int i = 0; i < n_win; i++)
        need += 2 * n + 3 * rows + 2 * n * (size_t)windows[i];
    if (need > h->cap) {
        int32_t *p = realloc(h->p, need * sizeof *p);
        if (!p)
            return err_nomem(e, need * sizeof *p, "a decoding step");
        h->p = p;
        h->cap = need;
    }
    h->n = 0;
    *out = (struct cache_rows){.n_ring = n_win};
    if (full)
        plan_full(out, c, slot0, seqs, be, a, h);
    for (int i = 0; i < n_win; i++)
        plan_ring(&out->ring[i], windows[i], c, slot0, seqs, be, a, h);
    return 0;
}

/* ---- one step ---- */

/* All that the op calls of a step with one new token in every sequence depend on, but for what was uploaded: they can be replayed then.
 * Work is divided by the power of two above the longest sequence. */
static struct replay_key step_key(const struct model *m, const struct acts *a, const struct cache *c, int32_t slot0, const struct batch *b,
                                  int64_t longest)
{
    struct replay_key k = {.n = 0};
    uint64_t layers = 14695981039346656037ull, bucket = 1;
    for (int64_t l = 0; l < m->cfg.L; l++) {
        const struct layer *y = &m->layer[l];
        uint64_t w[MIX_N_KINDS + 2] = {y->ops, (uint64_t)(c->ablate && c->ablate[l])};
        memcpy(w + 2, y->p, sizeof y->p);
        for (size_t i = 0; i < sizeof w; i++)
            layers = (layers ^ ((const unsigned char *)w)[i]) * 1099511628211ull;
    }
    while (bucket < (uint64_t)longest)
        bucket *= 2;
    const uint64_t words[] = {(uintptr_t)m,
                              (uintptr_t)a->keep.base,
                              (uintptr_t)a->tmp.base,
                              a->keep.used_bytes,
                              (uintptr_t)c,
                              (uint64_t)c->capacity,
                              (uint64_t)slot0,
                              (uint64_t)b->seqs.n,
                              (uintptr_t)b->ids.p,
                              (uintptr_t)b->pos.p,
                              (uintptr_t)m->rope->cos.p,
                              (uint64_t)m->rope->rows,
                              (uintptr_t)m->layer[0].norm1->w.p,
                              layers,
                              bucket};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        k.v[k.n++] = words[i];
    return k;
}

int model_step(struct model *m, struct acts *a, struct cache *c, int32_t slot0, struct batch *b, struct view *hidden, struct err *e)
{
    const struct fwd_opts fo = {.ablate = c->ablate};
    const struct seqs *q = &b->seqs;
    if (slot0 < 0 || slot0 + q->n > c->slots || q->rows > a->max_rows || q->n > a->max_seqs)
        BUG("step of %d sequences, %" PRId64 " rows at slot %d of %d", (int)q->n, q->rows, (int)slot0, (int)c->slots);
    int64_t longest = 0;
    int32_t *pos = b->h_mem + b->max_rows;
    for (int32_t i = 0; i < q->n; i++) {
        longest = MAX(longest, c->len[slot0 + i] + seqs_qlen(q, i));
        for (int32_t t = 0; t < seqs_qlen(q, i); t++)
            pos[q->q_off[i] + t] = (int32_t)c->len[slot0 + i] + t;
    }
    for (int64_t l = 0; l < m->cfg.L; l++)
        if (c->ops[l] != m->layer[l].ops)
            BUG("layer %" PRId64 " runs operators %#x, the cache was made for %#x", l, m->layer[l].ops, c->ops[l]);
    TRY(cache_reserve(c, longest, e));
    TRY(model_need_pos(m, longest, e));
    be_put(m->be, b->pos, pos);
    struct host_idx h = {0};
    struct cache_rows rows;
    acts_reset(a);
    int rc = cache_plan_rows(&rows, c, slot0, q, m->be, &a->keep, &h, e);
    if (rc == 0) {
        struct run r = {.be = m->be, .m = m, .a = a, .b = b, .cache = c, .rows = &rows, .slot0 = slot0};
        a->saved = false;
        a->first = 0;
        bool single = q->rows == q->n;
        struct replay_key key = step_key(m, a, c, slot0, b, longest);
        if (!single || !be_replay_begin(m->be, &key, hidden)) {
            model_run_fwd(&r, &fo, hidden);
            if (single)
                be_replay_end(m->be, *hidden);
        }
        for (int32_t i = 0; i < q->n; i++)
            c->len[slot0 + i] += seqs_qlen(q, i);
        rc = be_sync(m->be, e); /* the index arrays on the host end here */
    }
    free(h.p);
    return rc;
}
