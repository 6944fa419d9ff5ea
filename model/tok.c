/* Encoding, counting, decoding. The tables are made by tok_build.c. */
#include "model/tok.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/tok_int.h"

/*
 * Cache of merged pieces: text repeats its words, so most pieces cost one look-up. A full cache is emptied (a working set larger than that
 * gains nothing from any policy). Its size is a trade of memory per thread (about 3 MB at most) against hits; 48 bytes hold 99.9 % of
 * English pieces.
 */
enum { CACHE_SLOTS = 1 << 16, CACHE_FILL = CACHE_SLOTS / 4 * 3, CACHE_KEY = 48, SMALL = 64 };

struct slot {
    uint64_t hash; /* 0: empty */
    uint32_t key, val;
    uint16_t n_key, n_val;
};
struct sym {
    int32_t id, prev, next; /* id -1: merged away */
};
struct cand {
    uint32_t rank;
    int32_t pos, left, right;
};
struct tok_work {
    struct tok_work *next;
    pthread_t user; /* the thread that had it last */
    const struct tok *t;
    void *parts; /* tok_counter.c's */
    struct pretok_work *split;
    struct slot *slots;
    uint32_t n_slots;
    struct str keys;
    struct tok_ids vals;
    struct sym *syms;
    size_t cap_syms;
    struct cand *heap;
    size_t cap_heap, n_heap;
    struct str norm;
    int32_t *cps;
    size_t cap_cps;
    struct tok_ids tmp; /* ids of the piece in hand */
    struct str spell;
    /* of the call in progress */
    struct tok_ids *out; /* NULL: count only */
    int64_t count;
    bool parse_special;
};

/* ---- growable memory ---- */

/* New capacity for at least `need` elements of `size` bytes; 0 when it does not fit. */
static size_t grow_cap(size_t cap, size_t need, size_t size)
{
    size_t c = MAX(cap + cap / 2, MAX(need, (size_t)64)), bytes;
    return mul_size(c, size, &bytes) ? c : 0;
}

static int grow(void **p, size_t *cap, size_t need, size_t size, struct err *e)
{
    if (need <= *cap)
        return 0;
    size_t c = grow_cap(*cap, need, size);
    void *q = c ? realloc(*p, c * size) : NULL;
    if (!q)
        return err_nomem(e, need, "tokenizer");
    *p = q;
    *cap = c;
    return 0;
}

void tok_ids_free(struct tok_ids *ids)
{
    free(ids->v);
    *ids = (struct tok_ids){0};
}

static int ids_append(struct tok_ids *ids, const int32_t *v, size_t n, struct err *e)
{
    if (n > ids->cap - ids->n) {
        void *p = ids->v;
        TRY(grow(&p, &ids->cap, ids->n + n, sizeof *ids->v, e));
        ids->v = p;
    }
    for (size_t i = 0; i < n; i++)
        ids->v[ids->n + i] = v[i];
    ids->n += n;
    return 0;
}

int tok_ids_add(struct tok_ids *ids, int32_t id, struct err *e)
{
    return ids_append(ids, &id, 1, e);
}

/* ---- scratch sets ---- */

void tok_works_free(struct tok_work *w)
{
    while (w) {
        struct tok_work *next = w->next;
        pretok_work_free(w->split);
        free(w->parts);
        free(w->slots);
        str_free(&w->keys);
        tok_ids_free(&w->vals);
        free(w->syms);
        free(w->heap);
        str_free(&w->norm);
        free(w->cps);
        tok_ids_free(&w->tmp);
        str_free(&w->spell);
        free(w);
        w = next;
    }
}

static int work_new(struct tok_work **out, const struct tok *t, struct err *e)
{
    struct tok_work *w = calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "tokenizer");
    w->t = t;
    w->slots = calloc(CACHE_SLOTS, sizeof *w->slots);
    if (!w->slots || pretok_work_new(&w->split, t->split, e) != 0) {
        tok_works_free(w);
        return err_nomem(e, CACHE_SLOTS * sizeof(struct slot), "tokenizer");
    }
    *out = w;
    return 0;
}

/*
 * The thread's own set of the last time where it is idle: another's would have to come out of another core's cache, call by call. The lock
 * guards the list of idle sets alone; everything else in *t is constant, so the cast takes no promise back.
 */
int tok_work_take(const struct tok *t, struct tok_work **out, struct err *e)
{
    struct tok *m = (struct tok *)(uintptr_t)t;
    pthread_t self = pthread_self();
    pthread_mutex_lock(&m->lock);
    struct tok_work **at = &m->idle;
    while (*at && !pthread_equal((*at)->user, self))
        at = &(*at)->next;
    if (!*at)
        at = &m->idle;
    struct tok_work *w = *at;
    if (w)
        *at = w->next;
    pthread_mutex_unlock(&m->lock);
    if (!w)
        TRY(work_new(&w, t, e));
    w->next = NULL;
    w->user = self;
    *out = w;
    return 0;
}

void tok_work_give(struct tok_work *w, int rc)
{
    struct tok *m = (struct tok *)(uintptr_t)w->t;
    w->out = NULL;
    if (rc != 0) { /* a set whose strings ran out of memory would stay failed */
        tok_works_free(w);
        return;
    }
    pthread_mutex_lock(&m->lock);
    w->next = m->idle;
    m->idle = w;
    pthread_mutex_unlock(&m->lock);
}

void **tok_work_parts(struct tok_work *w)
{
    return &w->parts;
}

static int emit(struct tok_work *w, const int32_t *ids, size_t n, struct err *e)
{
    w->count += (int64_t)n;
    return w->out ? ids_append(w->out, ids, n, e) : 0;
}

/* ---- merging one piece ---- */

/* Symbols of a piece before merging, into w->syms; bytes without token fall back, become unk or vanish, as in the reference. */
static int start_symbols(struct tok_work *w, const char *piece, size_t n, size_t *n_syms, struct err *e)
{
    const struct tok *t = w->t;
    if (n > INT32_MAX / 4)
        return ERR(e, E_INPUT, "a piece of %zu bytes without any place to split (limit %d)", n, INT32_MAX / 4);
    void *p = w->syms;
    TRY(grow(&p, &w->cap_syms, 2 * n + 1, sizeof *w->syms, e));
    w->syms = p;
    size_t k = 0;
    bool unk_open = false;
    for (size_t i = 0; i < n; i++) {
        uint8_t b = (uint8_t)piece[i];
        int32_t id = t->byte_id[b];
        if (id >= 0) {
            w->syms[k++].id = id;
            unk_open = false;
        } else if (t->fallback[b][0] >= 0) {
            w->syms[k++].id = t->fallback[b][0];
            if (t->fallback[b][1] >= 0)
                w->syms[k++].id = t->fallback[b][1];
            unk_open = false;
        } else if (t->unk >= 0 && !(unk_open && t->fuse_unk)) {
            w->syms[k++].id = t->unk;
            unk_open = true;
        }
    }
    *n_syms = k;
    return 0;
}

/* Few symbols: look for the lowest rank (the leftmost of equals) again after each merge. */
static int merge_small(struct tok_work *w, size_t n, struct err *e)
{
    const struct tok *t = w->t;
    int32_t id[SMALL], into[SMALL];
    uint32_t rank[SMALL];
    for (size_t i = 0; i < n; i++)
        id[i] = w->syms[i].id;
    for (size_t i = 0; i + 1 < n; i++) {
        const struct tok_merge *m = tok_merge_find(t, id[i], id[i + 1]);
        rank[i] = m ? m->rank : UINT32_MAX;
        into[i] = m ? m->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        id[best] = into[best];
        for (size_t i = best + 1; i + 1 < n; i++) {
            id[i] = id[i + 1];
            rank[i] = rank[i + 1 < n - 1 ? i + 1 : i];
            into[i] = into[i + 1 < n - 1 ? i + 1 : i];
        }
        n--;
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct tok_merge *m = tok_merge_find(t, id[i], id[i + 1]);
            rank[i] = m ? m->rank : UINT32_MAX;
            into[i] = m ? m->id : -1;
        }
    }
    return ids_append(&w->tmp, id, n, e);
}

static bool cand_less(const struct cand *a, const struct cand *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static int heap_push(struct tok_work *w, int32_t pos, struct err *e)
{
    int32_t next = w->syms[pos].next;
    if (next < 0)
        return 0;
    const struct tok_merge *m = tok_merge_find(w->t, w->syms[pos].id, w->syms[next].id);
    if (!m)
        return 0;
    void *p = w->heap;
    TRY(grow(&p, &w->cap_heap, w->n_heap + 1, sizeof *w->heap, e));
    w->heap = p;
    struct cand c = {.rank = m->rank, .pos = pos, .left = w->syms[pos].id, .right = w->syms[next].id};
    size_t i = w->n_heap++;
    for (; i > 0 && cand_less(&c, &w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
    return 0;
}

static struct cand heap_pop(struct tok_work *w)
{
    struct cand top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap)
            break;
        if (c + 1 < w->n_heap && cand_less(&w->heap[c + 1], &w->heap[c]))
            c++;
        if (!cand_less(&w->heap[c], &last))
            break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

/* Many symbols (a page without a space): linked list and heap, n log n. A candidate is stale when its two ids are not there any more. */
static int merge_large(struct tok_work *w, size_t n, struct err *e)
{
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        w->syms[i].prev = (int32_t)i - 1;
        w->syms[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < n; i++)
        TRY(heap_push(w, (int32_t)i, e));
    while (w->n_heap) {
        struct cand c = heap_pop(w);
        struct sym *a = &w->syms[c.pos];
        if (a->id != c.left || a->next < 0 || w->syms[a->next].id != c.right)
            continue;
        struct sym *b = &w->syms[a->next];
        a->id = tok_merge_find(w->t, c.left, c.right)->id;
        b->id = -1;
        a->next = b->next;
        if (a->next >= 0)
            w->syms[a->next].prev = c.pos;
        if (a->prev >= 0)
            TRY(heap_push(w, a->prev, e));
        TRY(heap_push(w, c.pos, e));
    }
    for (int32_t i = 0; i >= 0; i = w->syms[i].next)
        TRY(tok_ids_add(&w->tmp, w->syms[i].id, e));
    return 0;
}

static int merge_piece(struct tok_work *w, const char *piece, size_t n, struct err *e)
{
    const struct tok *t = w->t;
    w->tmp.n = 0;
    if (t->ignore_merges) {
        str_clear(&w->spell);
        for (size_t i = 0; i < n; i++)
            str_utf8(&w->spell, tok_byte_char((uint8_t)piece[i]));
        TRY(str_ok(&w->spell, "tokenizer", e));
        int32_t id = tok_find(t, w->spell.p, w->spell.len, TF_VOCAB);
        if (id >= 0)
            return tok_ids_add(&w->tmp, id, e);
    }
    size_t k = 0;
    TRY(start_symbols(w, piece, n, &k, e));
    if (k == 0)
        return 0;
    return k <= SMALL ? merge_small(w, k, e) : merge_large(w, k, e);
}

static int cache_put(struct tok_work *w, uint64_t hash, const char *piece, size_t n, struct err *e)
{
    if (w->n_slots >= CACHE_FILL) {
        memset(w->slots, 0, CACHE_SLOTS * sizeof *w->slots);
        w->n_slots = 0;
        str_clear(&w->keys);
        w->vals.n = 0;
    }
    uint32_t i = (uint32_t)hash & (CACHE_SLOTS - 1);
    while (w->slots[i].hash)
        i = (i + 1) & (CACHE_SLOTS - 1);
    struct slot s = {
        .hash = hash, .key = (uint32_t)w->keys.len, .val = (uint32_t)w->vals.n, .n_key = (uint16_t)n, .n_val = (uint16_t)w->tmp.n};
    str_add(&w->keys, piece, n);
    TRY(str_ok(&w->keys, "tokenizer", e));
    TRY(ids_append(&w->vals, w->tmp.v, w->tmp.n, e));
    w->slots[i] = s;
    w->n_slots++;
    return 0;
}

static int on_piece(void *ctx, const char *piece, size_t n, struct err *e)
{
    struct tok_work *w = ctx;
    if (n == 1 && w->t->byte_id[(uint8_t)*piece] >= 0) /* nothing to merge: digits, marks */
        return emit(w, &w->t->byte_id[(uint8_t)*piece], 1, e);
    if (n > CACHE_KEY) {
        TRY(merge_piece(w, piece, n, e));
        return emit(w, w->tmp.v, w->tmp.n, e);
    }
    uint64_t hash = tok_hash(piece, n) | 1;
    for (uint32_t i = (uint32_t)hash & (CACHE_SLOTS - 1);; i = (i + 1) & (CACHE_SLOTS - 1)) {
        const struct slot *s = &w->slots[i];
        if (!s->hash)
            break;
        if (s->hash == hash && s->n_key == n && !memcmp(w->keys.p + s->key, piece, n))
            return s->n_val ? emit(w, w->vals.v + s->val, s->n_val, e) : 0; /* bytes without a token: vals may hold nothing at all yet */
    }
    TRY(merge_piece(w, piece, n, e));
    TRY(cache_put(w, hash, piece, n, e));
    return emit(w, w->tmp.v, w->tmp.n, e);
}

/* ---- normalising ---- */

static bool has_from_u0300(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xCC) /* lead byte of U+0300 */
            return true;
    return false;
}

static int ccc(int32_t cp)
{
    return utf8proc_get_property(cp)->combining_class;
}

/* Canonical order of a run of combining marks: stable, by class. (utf8proc's own ordering takes quadratic time on long runs.) */
static int order_marks(struct tok_work *w, size_t from, size_t n, struct err *e)
{
    size_t at[257] = {0};
    w->tmp.n = 0;
    for (size_t i = from; i < from + n; i++)
        at[ccc(w->cps[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    TRY(ids_append(&w->tmp, w->cps + from, n, e));
    for (size_t i = 0; i < n; i++)
        w->cps[from + at[ccc(w->tmp.v[i])]++] = w->tmp.v[i];
    return 0;
}

static int decompose(struct tok_work *w, const char *p, size_t n, size_t *len, struct err *e)
{
    enum { MOST = 32 }; /* code points of one decomposition; the longest canonical one has 4 */
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t cp;
        int bound = 0;
        utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)p + i, (utf8proc_ssize_t)(n - i), &cp);
        void *q = w->cps;
        TRY(grow(&q, &w->cap_cps, k + MOST, sizeof *w->cps, e));
        w->cps = q;
        utf8proc_ssize_t d = used < 1 ? used : utf8proc_decompose_char(cp, w->cps + k, MOST, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &bound);
        if (d < 0 || used < 1 || d > MOST)
            return ERR(e, E_INPUT, "cannot normalise text: %s", utf8proc_errmsg(d));
        k += (size_t)d;
        i += (size_t)used;
    }
    for (size_t i = 0, from; i < k;) {
        for (from = i; i < k && ccc(w->cps[i]); i++)
            ;
        if (i - from > 1)
            TRY(order_marks(w, from, i - from, e));
        i += i == from;
    }
    *len = k;
    return 0;
}

/* NFC of one line into w->norm. U+11A7 composes with nothing, but utf8proc swallows it after a Hangul syllable: it is kept out. */
static int nfc_line(struct tok_work *w, const char *p, size_t n, struct err *e)
{
    size_t len = 0;
    TRY(decompose(w, p, n, &len, e));
    for (size_t a = 0, b; a < len; a = b + 1) {
        for (b = a; b < len && w->cps[b] != 0x11A7; b++)
            ;
        utf8proc_ssize_t k = utf8proc_normalize_utf32(w->cps + a, (utf8proc_ssize_t)(b - a), UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (k < 0)
            return ERR(e, E_INPUT, "cannot normalise text: %s", utf8proc_errmsg(k));
        for (size_t i = 0; i < (size_t)k; i++)
            str_utf8(&w->norm, (uint32_t)w->cps[a + i]);
        if (b < len)
            str_utf8(&w->norm, 0x11A7);
    }
    return 0;
}

/*
 * *p, *n: the normalised text, borrowed from the work set or the input. Nothing composes over a newline, so lines are done one by one;
 * characters below U+0300 are in NFC already and have combining class 0.
 */
static int normalise(struct tok_work *w, const char **p, size_t *n, struct err *e)
{
    if (!w->t->nfc || !has_from_u0300(*p, *n))
        return 0;
    str_clear(&w->norm);
    for (size_t i = 0; i < *n;) {
        const char *nl = memchr(*p + i, '\n', *n - i);
        size_t len = nl ? (size_t)(nl - (*p + i)) + 1 : *n - i;
        if (has_from_u0300(*p + i, len))
            TRY(nfc_line(w, *p + i, len, e));
        else
            str_add(&w->norm, *p + i, len);
        i += len;
    }
    TRY(str_ok(&w->norm, "text to normalise", e));
    *p = w->norm.p;
    *n = w->norm.len;
    return 0;
}

/* ---- added tokens ---- */

/* The longest added token at p, or NULL: narrows a sorted range byte by byte. */
static const struct tok_added *added_at(const struct tok_set *set, const char *p, size_t n)
{
    size_t lo = set->first[(uint8_t)*p], hi = set->first[(uint8_t)*p + 1];
    const struct tok_added *best = NULL;
    for (size_t d = 1; lo < hi; d++) {
        if (set->v[lo].text.len == d) /* the shortest of a range with a common prefix stands first */
            best = &set->v[lo++];
        if (d == n)
            break;
        uint8_t c = (uint8_t)p[d];
        size_t l = lo, h = hi;
        while (l < h) {
            size_t m = (l + h) / 2;
            if ((uint8_t)set->v[m].p[d] < c)
                l = m + 1;
            else
                h = m;
        }
        lo = l;
        h = hi;
        while (l < h) {
            size_t m = (l + h) / 2;
            if ((uint8_t)set->v[m].p[d] <= c)
                l = m + 1;
            else
                h = m;
        }
        hi = l;
    }
    return best;
}

static uint32_t code_before(const char *p, size_t at)
{
    size_t i = at - 1;
    while (i > 0 && ((uint8_t)p[i] & 0xC0) == 0x80)
        i--;
    int len;
    bool bad = false;
    return utf8_next(p + i, at - i, &len, &bad);
}

static bool is_white(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

/* Letters, marks, decimal digits, connectors: \w. */
static bool is_word(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_ND) || c == UTF8PROC_CATEGORY_PC;
}

/* Widens [*a, *b) as the token's flags ask, not to the left of `from`; false when it must stand alone and does not. */
static bool added_bounds(const struct tok_added *k, const char *p, size_t n, size_t from, size_t *a, size_t *b)
{
    int len;
    bool bad = false;
    if (k->single_word && ((*a > 0 && is_word(code_before(p, *a))) || (*b < n && is_word(utf8_next(p + *b, n - *b, &len, &bad)))))
        return false;
    while (k->lstrip && *a > from && is_white(code_before(p, *a)))
        do
            (*a)--;
        while (*a > from && ((uint8_t)p[*a] & 0xC0) == 0x80);
    while (k->rstrip && *b < n && is_white(utf8_next(p + *b, n - *b, &len, &bad)))
        *b += (size_t)len;
    return true;
}

static int plain(struct tok_work *w, const char *p, size_t n, struct err *e)
{
    return pretok_split(w->t->split, w->split, p, n, on_piece, w, e);
}

static int cut_added(struct tok_work *w, const struct tok_set *set, const char *p, size_t n,
                     int (*rest)(struct tok_work *w, const char *p, size_t n, struct err *e), struct err *e)
{
    size_t from = 0;
    for (size_t i = 0; set->n && i < n;) {
        uint8_t c = (uint8_t)p[i];
        const struct tok_added *k = set->first[c] == set->first[c + 1] ? NULL : added_at(set, p + i, n - i);
        if (!k) {
            i++;
            continue;
        }
        size_t a = i, b = i + k->text.len;
        i = b;
        /* A special token that is not looked for is text, all of it: no shorter token is sought inside (as encode_special_tokens does). */
        if ((k->special && !w->parse_special) || !added_bounds(k, p, n, from, &a, &b))
            continue;
        if (a > from)
            TRY(rest(w, p + from, a - from, e));
        TRY(emit(w, &k->id, 1, e));
        from = i = b;
    }
    return from < n ? rest(w, p + from, n - from, e) : 0;
}

static int cut_normalised(struct tok_work *w, const char *p, size_t n, struct err *e)
{
    TRY(normalise(w, &p, &n, e));
    return cut_added(w, &w->t->norm_set, p, n, plain, e);
}

static int check_utf8(const char *text, size_t n, struct err *e)
{
    bool ascii;
    size_t good = utf8_check(text, n, &ascii);
    if (good < n)
        return ERR(e, E_INPUT, "text is not UTF-8: byte 0x%02x at offset %zu of %zu", (uint8_t)text[good], good, n);
    return 0;
}

static int run(struct tok_work *w, const char *text, size_t n, bool parse_special, struct tok_ids *ids, struct err *e)
{
    w->out = ids;
    w->count = 0;
    w->parse_special = parse_special;
    return cut_added(w, &w->t->raw_set, text, n, cut_normalised, e);
}

int tok_encode(const struct tok *t, const char *text, size_t n, bool parse_special, struct tok_ids *ids, struct err *e)
{
    struct tok_work *w;
    TRY(check_utf8(text, n, e));
    TRY(tok_work_take(t, &w, e));
    size_t had = ids->n;
    int rc = run(w, text, n, parse_special, ids, e);
    if (rc != 0)
        ids->n = had;
    tok_work_give(w, rc);
    return rc;
}

int tok_work_count(struct tok_work *w, const char *text, size_t n, bool parse_special, int64_t *count, struct err *e)
{
    TRY(check_utf8(text, n, e));
    TRY(run(w, text, n, parse_special, NULL, e));
    *count = w->count;
    return 0;
}

int tok_count(const struct tok *t, const char *text, size_t n, bool parse_special, int64_t *count, struct err *e)
{
    struct tok_work *w;
    TRY(tok_work_take(t, &w, e));
    int rc = tok_work_count(w, text, n, parse_special, count, e);
    tok_work_give(w, rc);
    return rc;
}

/* ---- decoding and facts ---- */

bool tok_bytes(const struct tok *t, int32_t id, const char **p, size_t *n)
{
    if (id < 0 || id >= t->n_ids || t->text[id].off == UINT32_MAX)
        return false;
    *p = t->raw + t->bytes[id].off;
    *n = t->bytes[id].len;
    return true;
}

bool tok_text(const struct tok *t, int32_t id, const char **p, size_t *n)
{
    if (id < 0 || id >= t->n_ids || t->text[id].off == UINT32_MAX)
        return false;
    *p = str_c(&t->texts) + t->text[id].off;
    *n = t->text[id].len;
    return true;
}

int tok_decode(const struct tok *t, const int32_t *ids, size_t n, bool skip_special, struct str *out, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        const char *p;
        size_t len;
        if (!tok_bytes(t, ids[i], &p, &len))
            return ERR(e, E_INPUT, "id %" PRId32 " at position %zu is not in the vocabulary of '%s' (%" PRId32 " ids)", ids[i], i, t->name,
                       t->n_ids);
        if (!skip_special || !tok_is_special(t, ids[i]))
            str_add(out, p, len);
    }
    return str_ok(out, "decoded text", e);
}

int32_t tok_vocab_size(const struct tok *t)
{
    return t->n_ids;
}

int32_t tok_bos(const struct tok *t)
{
    return t->bos;
}

int32_t tok_eos(const struct tok *t)
{
    return t->eos;
}

bool tok_add_bos(const struct tok *t)
{
    return t->n_prefix > 0 && t->bos >= 0 && t->prefix[0] == t->bos;
}

size_t tok_prefix(const struct tok *t, const int32_t **ids)
{
    *ids = t->prefix;
    return t->n_prefix;
}

size_t tok_suffix(const struct tok *t, const int32_t **ids)
{
    *ids = t->suffix;
    return t->n_suffix;
}

int32_t tok_id(const struct tok *t, const char *text)
{
    size_t n = strlen(text);
    int32_t id = tok_find(t, text, n, TF_ADDED);
    return id >= 0 ? id : tok_find(t, text, n, 0);
}

bool tok_is_special(const struct tok *t, int32_t id)
{
    return id >= 0 && id < t->n_ids && (t->flags[id] & TF_SPECIAL);
}

const char *tok_family(const struct tok *t)
{
    return pretok_name(t->split);
}

const char *tok_normalizer(const struct tok *t)
{
    return t->nfc ? "nfc" : "none";
}

const char *tok_sha256(const struct tok *t)
{
    return t->sha;
}

const char *tok_file_sha256(const struct tok *t)
{
    return t->file_sha;
}

const char *tok_chat_template(const struct tok *t)
{
    return t->chat_template;
}
