#include "model/tok_counter.h"

#include <stdlib.h>
#include <string.h>

#include "model/tok_int.h"

/* Parts shorter than MIN_PART are joined to the next one. A full table is emptied: new texts have other parts. */
enum { SLOTS = 1 << 14, FILL = SLOTS / 4 * 3, MIN_PART = 48 };

struct part {
    uint64_t a, b; /* both 0: empty */
    int64_t count;
};
/* One for each of the tokenizer's sets of scratch memory, so for each thread. */
struct table {
    int used;
    bool parse_special; /* what the counts were made with */
    struct part slot[SLOTS];
};
struct tok_counter {
    const struct tok *t;
    bool parse_special, whole;
};

/* No added token may reach over a cut: in the vocabulary proper spaces and newlines are spelled otherwise. */
static bool reaches_over(const struct tok *t)
{
    for (int32_t id = 0; id < tok_vocab_size(t); id++) {
        const char *p;
        size_t n;
        if (tok_text(t, id, &p, &n) && (memchr(p, ' ', n) || memchr(p, '\n', n)))
            return true;
    }
    return false;
}

int tok_counter_open(struct tok_counter **out, const struct tok *t, bool parse_special, struct err *e)
{
    static const char *const known[] = {"gpt2", "qwen2", "llama-bpe", "smollm", "dolma2"};
    struct tok_counter *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "tokenizer");
    *c = (struct tok_counter){.t = t, .parse_special = parse_special, .whole = true};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        c->whole &= strcmp(tok_family(t), known[i]) != 0;
    c->whole |= reaches_over(t);
    *out = c;
    return 0;
}

void tok_counter_close(struct tok_counter *c)
{
    free(c);
}

/* The set's table, made or emptied where need be. */
static int table_of(const struct tok_counter *c, struct tok_work *w, struct table **out, struct err *e)
{
    void **parts = tok_work_parts(w);
    struct table *t = *parts;
    if (!t && !(t = *parts = calloc(1, sizeof *t)))
        return err_nomem(e, sizeof *t, "token counts");
    if (t->used && t->parse_special != c->parse_special)
        memset(t, 0, sizeof *t);
    t->parse_special = c->parse_special;
    *out = t;
    return 0;
}

static bool letter(char c)
{
    return (unsigned)(c | 0x20) - 'a' < 26;
}

static bool space(char c)
{
    return c == ' ' || (c >= 9 && c <= 13);
}

/* May the text be cut before p[i]? 2 <= i, i + 1 < n. Bytes of other characters before a newline might be white space, too. */
static bool is_cut(const char *p, size_t i)
{
    if (p[i] == ' ')
        return (p[i - 1] == '.' || p[i - 1] == '!' || p[i - 1] == '?') && letter(p[i + 1]);
    return p[i - 1] == '\n' && letter(p[i]) && !space(p[i - 2]) && (unsigned char)p[i - 2] < 0x80;
}

static size_t next_cut(const char *p, size_t n, size_t from)
{
    for (size_t i = from + MIN_PART; i + 1 < n; i++)
        if ((p[i] == ' ' || p[i - 1] == '\n') && is_cut(p, i))
            return i;
    return n;
}

static void hash(const char *p, size_t n, uint64_t *a, uint64_t *b)
{
    uint64_t x = 0x9E3779B97F4A7C15ull ^ n, y = 0xC2B2AE3D27D4EB4Full + n, w;
    for (; n; p += MIN(n, 8), n -= MIN(n, 8)) {
        w = 0;
        memcpy(&w, p, MIN(n, 8));
        x = (x ^ w) * 0xD6E8FEB86659FD93ull;
        x ^= x >> 32;
        y = (y ^ w) * 0xA0761D6478BD642Full;
        y ^= y >> 29;
    }
    *a = x;
    *b = (y * 0xE7037ED1A0B428DBull) | 1;
}

static int count_part(struct tok_work *w, struct table *t, const char *p, size_t n, int64_t *count, struct err *e)
{
    uint64_t a, b;
    int64_t k = 0;
    hash(p, n, &a, &b);
    size_t i = (size_t)(a ^ b >> 32) & (SLOTS - 1);
    for (; t->slot[i].b; i = (i + 1) & (SLOTS - 1)) {
        if (t->slot[i].a == a && t->slot[i].b == b) {
            *count += t->slot[i].count;
            return 0;
        }
    }
    TRY(tok_work_count(w, p, n, t->parse_special, &k, e));
    *count += k;
    if (t->used == FILL) {
        t->used = 0;
        memset(t->slot, 0, sizeof t->slot);
        i = (size_t)(a ^ b >> 32) & (SLOTS - 1);
    }
    t->slot[i] = (struct part){a, b, k};
    t->used++;
    return 0;
}

int tok_counter_count(struct tok_counter *c, const char *text, size_t n, int64_t *count, struct err *e)
{
    if (c->whole)
        return tok_count(c->t, text, n, c->parse_special, count, e);
    struct tok_work *w;
    struct table *t = NULL;
    int64_t sum = 0;
    TRY(tok_work_take(c->t, &w, e));
    int rc = table_of(c, w, &t, e);
    for (size_t at = 0; rc == 0 && at < n;) {
        size_t to = next_cut(text, n, at);
        rc = count_part(w, t, text + at, to - at, &sum, e);
        at = to;
    }
    tok_work_give(w, rc);
    if (rc == 0)
        *count = sum;
    return rc;
}
