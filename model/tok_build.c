/* Tables of a tokenizer: vocabulary, merges, added tokens, decoded bytes, identity. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "model/tok_int.h"

/*
 * GPT-2 writes bytes as printable characters: '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves; the 68 others, in order,
 * are U+0100..U+0143.
 */
static bool byte_is_plain(unsigned b)
{
    return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

uint32_t tok_byte_char(uint8_t b)
{
    if (byte_is_plain(b))
        return b;
    /* 0..32 are the first 33 of the others, 127..160 the next 34, 173 the last. */
    return 0x100 + (b <= 32 ? b : b <= 160 ? 33u + (b - 127u) : 67u);
}

int tok_char_byte(uint32_t cp)
{
    if (cp < 0x100)
        return byte_is_plain(cp) ? (int)cp : -1;
    uint32_t k = cp - 0x100;
    return k <= 32 ? (int)k : k <= 66 ? (int)(127 + k - 33) : k == 67 ? 173 : -1;
}

/* The last n < 8 bytes as one word; a memcpy of unknown length would be a call for every token. */
static uint64_t last_bytes(const char *p, size_t n)
{
    uint64_t w = 0;
    size_t i = 0;
    if (n & 4) {
        uint32_t x;
        memcpy(&x, p, sizeof x);
        w = x;
        i = 4;
    }
    if (n & 2) {
        uint16_t x;
        memcpy(&x, p + i, sizeof x);
        w |= (uint64_t)x << 8 * i;
        i += 2;
    }
    if (n & 1)
        w |= (uint64_t)(uint8_t)p[i] << 8 * i;
    return w;
}

uint64_t tok_hash(const char *p, size_t n)
{
    uint64_t h = 0x9E3779B97F4A7C15ull ^ (n * 0xD6E8FEB86659FD93ull), w;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93ull;
        h ^= h >> 32;
    }
    h = (h ^ last_bytes(p, n)) * 0xD6E8FEB86659FD93ull;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93ull;
    return h ^ (h >> 29);
}

static bool has_text(const struct tok *t, int32_t id, const char *p, size_t n)
{
    return t->text[id].len == n && !memcmp(str_c(&t->texts) + t->text[id].off, p, n);
}

/*
 * A slot of the spellings: id + 1, and above it what the hash has left, so that nearly every other spelling is told apart without a look at
 * its text.
 */
enum { ID_BITS = 22 };
_Static_assert(TOK_MAX_IDS < 1 << ID_BITS, "an id + 1 must fit below the hash's bits");

static uint32_t slot_tag(uint64_t hash)
{
    return (uint32_t)(hash >> 32) & ~((1u << ID_BITS) - 1);
}

static int32_t slot_id(uint32_t slot)
{
    return (int32_t)(slot & ((1u << ID_BITS) - 1)) - 1;
}

/* The slot that holds a spelling, or the empty one where it belongs. */
static uint32_t slot_of(const struct tok *t, uint64_t hash, const char *p, size_t n)
{
    uint32_t i = (uint32_t)hash & t->vmask, tag = slot_tag(hash);
    while (t->vslot[i] && (((t->vslot[i] ^ tag) >> ID_BITS) || !has_text(t, slot_id(t->vslot[i]), p, n)))
        i = (i + 1) & t->vmask;
    return i;
}

int32_t tok_find(const struct tok *t, const char *p, size_t n, int any)
{
    if (!t->vslot)
        return -1;
    int32_t id = slot_id(t->vslot[slot_of(t, tok_hash(p, n), p, n)]);
    return id >= 0 && (!any || (t->flags[id] & any)) ? id : -1;
}

static uint64_t pair_key(int32_t a, int32_t b)
{
    return (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
}

static uint32_t merge_slot(uint64_t key)
{
    key *= 0x9E3779B97F4A7C15ull;
    return (uint32_t)(key >> 32);
}

const struct tok_merge *tok_merge_find(const struct tok *t, int32_t a, int32_t b)
{
    uint64_t key = pair_key(a, b);
    for (uint32_t i = merge_slot(key) & t->mmask;; i = (i + 1) & t->mmask) {
        if (t->mslot[i].key == key)
            return &t->mslot[i];
        if (t->mslot[i].key == UINT64_MAX)
            return NULL;
    }
}

int tokb_new(struct tok **out, const char *name, struct err *e)
{
    struct tok *t = calloc(1, sizeof *t);
    if (!t)
        return err_nomem(e, sizeof *t, "tokenizer");
    size_t n = MIN(strlen(name), sizeof t->name - 1);
    memcpy(t->name, name, n);
    t->unk = t->bos = t->eos = -1;
    if (pthread_mutex_init(&t->lock, NULL) != 0) {
        free(t);
        return ERR(e, E_ENV, "cannot make a lock for the tokenizer");
    }
    *out = t;
    return 0;
}

void tok_free(struct tok *t)
{
    if (!t)
        return;
    tok_works_free(t->idle);
    pthread_mutex_destroy(&t->lock);
    pretok_free(t->split);
    str_free(&t->texts);
    free(t->raw);
    free(t->text);
    free(t->bytes);
    free(t->flags);
    free(t->vslot);
    free(t->mslot);
    free(t->pairs);
    free(t->merged);
    free(t->raw_set.v);
    free(t->norm_set.v);
    free(t->added);
    free(t->chat_template);
    free(t);
}

/* ---- vocabulary ---- */

/* Room for ids below cap. */
static int grow_ids(struct tok *t, int32_t cap, struct err *e)
{
    if (cap <= t->cap_ids)
        return 0;
    struct tok_span *s = realloc(t->text, (size_t)cap * sizeof *s);
    if (s)
        t->text = s;
    uint8_t *f = s ? realloc(t->flags, (size_t)cap) : NULL;
    if (f)
        t->flags = f;
    if (!f)
        return err_nomem(e, (size_t)cap * sizeof *s, "vocabulary");
    for (int32_t i = t->cap_ids; i < cap; i++) {
        t->text[i] = (struct tok_span){UINT32_MAX, 0};
        t->flags[i] = 0;
    }
    t->cap_ids = cap;
    return 0;
}

static int ensure_id(struct tok *t, int32_t id, struct err *e)
{
    if (id >= t->cap_ids)
        TRY(grow_ids(t, MAX(id + 1, t->cap_ids + t->cap_ids / 2 + 1024), e));
    t->n_ids = MAX(t->n_ids, id + 1);
    return 0;
}

int tokb_reserve(struct tok *t, size_t n_hint, struct err *e)
{
    if (n_hint > TOK_MAX_IDS)
        return ERR(e, E_INPUT, "%s: %zu tokens (limit %d)", t->name, n_hint, TOK_MAX_IDS);
    TRY(grow_ids(t, (int32_t)n_hint, e));
    size_t size = 1024;
    while (size / 8 * 5 < n_hint)
        size *= 2;
    uint32_t *v = calloc(size, sizeof *v);
    if (!v)
        return err_nomem(e, size * sizeof *v, "vocabulary");
    free(t->vslot);
    t->vslot = v;
    t->vmask = (uint32_t)size - 1;
    for (int32_t id = 0; id < t->n_ids; id++)
        if (t->text[id].off != UINT32_MAX) {
            const char *p = str_c(&t->texts) + t->text[id].off;
            uint64_t hash = tok_hash(p, t->text[id].len);
            t->vslot[slot_of(t, hash, p, t->text[id].len)] = slot_tag(hash) | ((uint32_t)id + 1);
        }
    return 0;
}

int tokb_put(struct tok *t, int64_t id, const char *p, size_t n, int flags, struct err *e)
{
    if (id < 0 || id >= TOK_MAX_IDS)
        return ERR(e, E_INPUT, "%s: token '%.*s' has id %" PRId64 " (limit 0..%d)", t->name, (int)MIN(n, 60u), p, id, TOK_MAX_IDS - 1);
    if (!t->vslot || (size_t)t->n_tokens >= ((size_t)t->vmask + 1) / 8 * 5)
        TRY(tokb_reserve(t, MIN(MAX((size_t)t->n_tokens * 2, (size_t)512), (size_t)TOK_MAX_IDS), e));
    TRY(ensure_id(t, (int32_t)id, e));
    if (t->text[id].off != UINT32_MAX)
        return ERR(e, E_INPUT, "%s: id %" PRId64 " belongs to two tokens, '%.*s' and '%.*s'", t->name, id, (int)MIN(t->text[id].len, 60u),
                   str_c(&t->texts) + t->text[id].off, (int)MIN(n, 60u), p);
    uint64_t hash = tok_hash(p, n);
    uint32_t slot = slot_of(t, hash, p, n);
    int32_t other = slot_id(t->vslot[slot]);
    if (other >= 0)
        return ERR(e, E_INPUT, "%s: token '%.*s' stands twice, with ids %" PRId32 " and %" PRId64, t->name, (int)MIN(n, 60u), p, other, id);
    if (t->texts.len + n > INT32_MAX)
        return ERR(e, E_INPUT, "%s: the tokens' text is longer than 2 GiB", t->name);
    t->text[id] = (struct tok_span){(uint32_t)t->texts.len, (uint32_t)n};
    t->flags[id] = (uint8_t)flags;
    str_add(&t->texts, p, n);
    TRY(str_ok(&t->texts, "vocabulary", e));
    t->vslot[slot] = slot_tag(hash) | ((uint32_t)id + 1);
    t->n_tokens++;
    return 0;
}

int tokb_token(struct tok *t, int64_t id, const char *p, size_t n, struct err *e)
{
    return tokb_put(t, id, p, n, TF_VOCAB, e);
}

int tokb_added(struct tok *t, int64_t id, const char *p, size_t n, const struct tok_added *flags, struct err *e)
{
    if (n == 0)
        return ERR(e, E_INPUT, "%s: added token %" PRId64 " is empty", t->name, id);
    int32_t have = tok_find(t, p, n, 0);
    if (have >= 0 && have != id)
        return ERR(e, E_INPUT, "%s: added token '%.*s' claims id %" PRId64 ", but has id %" PRId32, t->name, (int)MIN(n, 60u), p, id, have);
    if (have >= 0 && (t->flags[have] & TF_ADDED))
        return ERR(e, E_INPUT, "%s: added token '%.*s' stands twice", t->name, (int)MIN(n, 60u), p);
    if (have < 0)
        TRY(tokb_put(t, id, p, n, 0, e));
    t->flags[id] |= (uint8_t)(TF_ADDED | (flags->special ? TF_SPECIAL : 0));
    if (t->n_added == t->cap_added) {
        size_t cap = t->cap_added * 2 + 64;
        struct tok_added *v = realloc(t->added, cap * sizeof *v);
        if (!v)
            return err_nomem(e, cap * sizeof *v, "added tokens");
        t->added = v;
        t->cap_added = cap;
    }
    struct tok_added *a = &t->added[t->n_added++];
    *a = *flags;
    a->id = (int32_t)id;
    a->text = t->text[id];
    return 0;
}

/* ---- merges ---- */

int tokb_merges(struct tok *t, size_t n, struct err *e)
{
    if (n > (size_t)TOK_MAX_IDS * 4)
        return ERR(e, E_INPUT, "%s: %zu merges (limit %d)", t->name, n, TOK_MAX_IDS * 4);
    t->pairs = malloc((n + 1) * sizeof *t->pairs);
    t->merged = malloc((n + 1) * sizeof *t->merged);
    if (!t->pairs || !t->merged)
        return err_nomem(e, n * (sizeof *t->pairs + sizeof *t->merged), "merges");
    t->cap_merges = n;
    return 0;
}

static int merge_part(const struct tok *t, const char *p, size_t n, int32_t *id, struct err *e)
{
    *id = tok_find(t, p, n, TF_VOCAB);
    if (*id < 0)
        return ERR(e, E_INPUT, "%s: merge %zu uses '%.*s', which is not in the vocabulary", t->name, t->n_merges, (int)MIN(n, 60u), p);
    return 0;
}

/* Trainers number tokens as they merge them: the id behind the last merge's is nearly always the one, and its text is at hand. */
static bool is_merged(const struct tok *t, int32_t id, const char *a, size_t na, const char *b, size_t nb)
{
    if (id >= t->n_ids || t->text[id].off == UINT32_MAX || t->text[id].len != na + nb || !(t->flags[id] & TF_VOCAB))
        return false;
    const char *p = t->texts.p + t->text[id].off;
    return !memcmp(p, a, na) && !memcmp(p + na, b, nb);
}

static int merged(const struct tok *t, const char *a, size_t na, const char *b, size_t nb, int32_t *id, struct err *e)
{
    char buf[512], *both = na + nb <= sizeof buf ? buf : malloc(na + nb);
    if (!both)
        return err_nomem(e, na + nb, "merge");
    memcpy(both, a, na);
    memcpy(both + na, b, nb);
    int rc = merge_part(t, both, na + nb, id, e);
    if (both != buf)
        free(both);
    return rc;
}

int tokb_merge(struct tok *t, const char *a, size_t na, const char *b, size_t nb, struct err *e)
{
    int32_t ia, ib, ic = t->n_merges ? t->merged[t->n_merges - 1] + 1 : 0;
    if (t->n_merges == t->cap_merges)
        BUG("more than %zu merges", t->cap_merges);
    TRY(merge_part(t, a, na, &ia, e));
    TRY(merge_part(t, b, nb, &ib, e));
    if (!is_merged(t, ic, a, na, b, nb))
        TRY(merged(t, a, na, b, nb, &ic, e));
    t->pairs[t->n_merges] = (struct tok_pair){ia, ib};
    t->merged[t->n_merges++] = ic;
    return 0;
}

int tokb_merge_line(struct tok *t, const char *p, size_t n, struct err *e)
{
    const char *sp = memchr(p, ' ', n);
    if (!sp || memchr(sp + 1, ' ', n - (size_t)(sp + 1 - p)))
        return ERR(e, E_INPUT, "%s: merge %zu is '%.*s', expected two tokens with one space between", t->name, t->n_merges,
                   (int)MIN(n, 60u), p);
    return tokb_merge(t, p, (size_t)(sp - p), sp + 1, n - (size_t)(sp + 1 - p), e);
}

void tokb_merge_line_soon(const struct tok *t, const char *p, size_t n)
{
    const char *sp = memchr(p, ' ', n);
    if (!sp || !t->vslot)
        return;
    __builtin_prefetch(&t->vslot[(uint32_t)tok_hash(p, (size_t)(sp - p)) & t->vmask]);
    __builtin_prefetch(&t->vslot[(uint32_t)tok_hash(sp + 1, n - (size_t)(sp + 1 - p)) & t->vmask]);
}

/*
 * The table of pairs, and the hash over the pairs in their order. Slots lie all over 8 MB: they are asked for some merges before they are
 * needed.
 */
static int merge_table(struct tok *t, char sha[65], struct err *e)
{
    enum { AHEAD = 16 };
    size_t size = 16, n = t->n_merges;
    while (size < 2 * n)
        size *= 2;
    t->mslot = malloc(size * sizeof *t->mslot);
    if (!t->mslot)
        return err_nomem(e, size * sizeof *t->mslot, "merges");
    t->mmask = (uint32_t)size - 1;
    for (size_t i = 0; i < size; i++)
        t->mslot[i] = (struct tok_merge){.key = UINT64_MAX};
    for (size_t k = 0; k < n; k++) {
        if (k + AHEAD < n)
            __builtin_prefetch(&t->mslot[merge_slot(pair_key(t->pairs[k + AHEAD].a, t->pairs[k + AHEAD].b)) & t->mmask], 1);
        uint64_t key = pair_key(t->pairs[k].a, t->pairs[k].b);
        uint32_t i = merge_slot(key) & t->mmask;
        while (t->mslot[i].key != UINT64_MAX && t->mslot[i].key != key)
            i = (i + 1) & t->mmask;
        /* A pair listed twice keeps its later rank, as in the reference. */
        t->mslot[i] = (struct tok_merge){.key = key, .rank = (uint32_t)k, .id = t->merged[k]};
    }
    int rc = sha256_buf(t->pairs, n * sizeof *t->pairs, sha, e);
    free(t->pairs);
    free(t->merged);
    t->pairs = NULL;
    t->merged = NULL;
    return rc;
}

/* ---- finishing ---- */

static int by_text(const void *x, const void *y)
{
    const struct tok_added *a = x, *b = y;
    int c = memcmp(a->p, b->p, MIN(a->text.len, b->text.len));
    return c ? c : a->text.len < b->text.len ? -1 : a->text.len > b->text.len;
}

static int make_set(struct tok *t, struct tok_set *s, bool normalized, struct err *e)
{
    s->v = malloc((t->n_added + 1) * sizeof *s->v);
    if (!s->v)
        return err_nomem(e, t->n_added * sizeof *s->v, "added tokens");
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].normalized == normalized) {
            t->added[i].p = t->texts.p + t->added[i].text.off;
            s->v[s->n++] = t->added[i];
        }
    qsort(s->v, s->n, sizeof *s->v, by_text);
    for (size_t c = 0, i = 0; c <= 256; c++) {
        while (i < s->n && (uint8_t)s->v[i].p[0] < c)
            i++;
        s->first[c] = (uint32_t)i;
    }
    return 0;
}

/*
 * The bytes a spelling of n bytes stands for, to dst, which has room for n; a spelling with a character outside the table stands for
 * itself. Returns their number.
 */
static size_t decode_spelling(const char *p, size_t n, bool literal, char *dst)
{
    size_t k = 0;
    for (size_t i = 0; i < n && !literal;) {
        int b, len = 1;
        bool bad = false;
        if (p[i] > ' ' && p[i] <= '~')
            b = p[i];
        else
            b = tok_char_byte(utf8_next(p + i, n - i, &len, &bad));
        literal = b < 0;
        if (!literal)
            dst[k++] = (char)b;
        i += (size_t)len;
    }
    if (literal)
        memcpy(dst, p, n);
    return literal ? n : k;
}

static int decode_all(struct tok *t, struct err *e)
{
    t->bytes = calloc((size_t)t->n_ids, sizeof *t->bytes);
    t->raw = malloc(t->texts.len + 1); /* no spelling gets longer */
    if (!t->bytes || !t->raw)
        return err_nomem(e, (size_t)t->n_ids * sizeof *t->bytes + t->texts.len, "vocabulary");
    size_t at = 0;
    for (int32_t id = 0; id < t->n_ids; id++) {
        if (t->text[id].off == UINT32_MAX)
            continue;
        size_t n = decode_spelling(t->texts.p + t->text[id].off, t->text[id].len, (t->flags[id] & TF_ADDED) != 0, t->raw + at);
        t->bytes[id] = (struct tok_span){(uint32_t)at, (uint32_t)n};
        at += n;
    }
    return 0;
}

static int byte_tables(struct tok *t, struct err *e)
{
    for (int b = 0; b < 256; b++) {
        struct str s = STR_INIT;
        str_utf8(&s, tok_byte_char((uint8_t)b));
        TRY(str_ok(&s, "tokenizer", e));
        t->byte_id[b] = tok_find(t, s.p, s.len, TF_VOCAB);
        int32_t ids[2] = {-1, -1};
        bool all = t->byte_fallback;
        for (size_t i = 0; i < s.len && all; i++) {
            char name[8];
            snprintf(name, sizeof name, "<0x%02X>", (unsigned)(uint8_t)s.p[i]);
            ids[i] = tok_find(t, name, 6, TF_VOCAB);
            all = ids[i] >= 0;
        }
        t->fallback[b][0] = all ? ids[0] : -1;
        t->fallback[b][1] = all ? ids[1] : -1;
        str_free(&s);
    }
    return 0;
}

/* Flags of added tokens, by id, as they enter the identity. */
static int identity(struct tok *t, const char *merges, struct err *e)
{
    struct sha256 h;
    struct str s = STR_INIT;
    TRY(sha256_init(&h, e));
    str_printf(&s, "dashlab tokenizer 1\nmerges %s\nnfc %d ignore_merges %d unk %" PRId32 " fuse %d fallback %d\n%s", merges, t->nfc,
               t->ignore_merges, t->unk, t->fuse_unk, t->byte_fallback, pretok_text(t->split));
    for (size_t i = 0; i < t->n_prefix; i++)
        str_printf(&s, "prefix %" PRId32 "\n", t->prefix[i]);
    for (size_t i = 0; i < t->n_suffix; i++)
        str_printf(&s, "suffix %" PRId32 "\n", t->suffix[i]);
    for (int k = 0; k < 2; k++) {
        const struct tok_set *set = k ? &t->norm_set : &t->raw_set;
        for (size_t i = 0; i < set->n; i++)
            str_printf(&s, "added %" PRId32 " %d%d%d%d%d\n", set->v[i].id, set->v[i].special, set->v[i].lstrip, set->v[i].rstrip,
                       set->v[i].single_word, k);
    }
    sha256_add(&h, str_c(&s), s.len);
    for (int32_t id = 0; id < t->n_ids; id++)
        if (t->text[id].off != UINT32_MAX) {
            const uint32_t head[2] = {(uint32_t)id, t->text[id].len};
            sha256_add(&h, head, sizeof head);
            sha256_add(&h, t->texts.p + t->text[id].off, t->text[id].len);
        }
    sha256_end(&h, t->sha);
    int rc = str_ok(&s, "tokenizer", e);
    str_free(&s);
    return rc;
}

int tokb_finish(struct tok *t, struct err *e)
{
    if (!t->n_tokens)
        return ERR(e, E_INPUT, "%s: the vocabulary is empty", t->name);
    char merges[65];
    TRY(merge_table(t, merges, e));
    TRY(decode_all(t, e));
    TRY(byte_tables(t, e));
    TRY(make_set(t, &t->raw_set, false, e));
    TRY(make_set(t, &t->norm_set, true, e));
    return identity(t, merges, e);
}
