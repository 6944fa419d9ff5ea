/* Needles in a haystack (spec section 4). The order of the random draws is part of the data. */
#include <stdlib.h>
#include <string.h>

#include "ruler/gen.h"

static const char niah_body[] =
    "Some special magic {type_needle_v} are hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{type_needle_v} "
    "afterwards.\n{context}\nWhat are all the special magic {type_needle_v} for {query} mentioned in the provided text?";
static const char niah_prefix[] = " The special magic {type_needle_v} for {query} mentioned in the provided text are";
static const char *const type_name[] = {"numbers", "words", "uuids"};
static const int depths[40] = {0,  3,  5,  8,  10, 13, 15, 18, 21, 23, 26, 28, 31, 33, 36, 38, 41, 44, 46, 49,
                               51, 54, 56, 59, 62, 64, 67, 69, 72, 74, 77, 79, 82, 85, 87, 90, 92, 95, 97, 100};
enum { MAX_NEEDLES = MAX_REFS };

static void draw(struct gen *g, enum niah_type t, struct str *out)
{
    uint64_t lo, hi;
    switch (t) {
    case T_NUMBERS:
        str_i64(out, py_randint(&g->py, 1000000, 9999999));
        break;
    case T_WORDS:
        ruler_word(g->res, (int64_t)py_below(&g->py, (uint64_t)ruler_words_count(g->res)), out);
        break;
    case T_UUIDS:
        py_getrandbits(&g->py, 128, &lo, &hi);
        hi = (hi & ~UINT64_C(0xf000)) | 0x4000;                 /* version 4 */
        lo = (lo & ~(UINT64_C(3) << 62)) | (UINT64_C(1) << 63); /* variant of RFC 4122 */
        str_printf(out, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, hi >> 32, (hi >> 16) & 0xffff, hi & 0xffff,
                   lo >> 48, lo & UINT64_C(0xffffffffffff));
        break;
    }
}

static void needle(struct gen *g, const char *key, const char *value, struct str *out)
{
    str_puts(out, "One of the special magic ");
    str_puts(out, type_name[g->task->value]);
    str_puts(out, " for ");
    str_puts(out, key);
    str_puts(out, " is: ");
    str_puts(out, value);
    str_putc(out, '.');
}

static int draw_needles(struct gen *g, struct err *e)
{
    const struct ruler_task *t = g->task;
    list_clear(&g->keys);
    list_clear(&g->values);
    list_clear(&g->needles);
    for (int i = 0; i < t->k; i++) {
        str_clear(&g->tmp);
        draw(g, t->key, &g->tmp);
        TRY(gen_add(&g->keys, &g->tmp, e));
        for (int j = 0; j < t->v; j++) {
            str_clear(&g->tmp);
            draw(g, t->value, &g->tmp);
            TRY(gen_add(&g->values, &g->tmp, e));
            str_clear(&g->tmp);
            needle(g, g->keys.v[i], g->values.v[g->values.n - 1], &g->tmp);
            TRY(gen_add(&g->needles, &g->tmp, e));
        }
    }
    const int64_t *p = gen_perm(g, g->needles.n, e);
    if (!p)
        return -1;
    char *old[MAX_NEEDLES];
    memcpy(old, g->needles.v, g->needles.n * sizeof *old);
    for (size_t i = 0; i < g->needles.n; i++)
        g->needles.v[i] = old[p[i]];
    return 0;
}

static int cmp_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int gen_essay(struct gen *g, int64_t n, const struct list *insert, struct str *ctx, struct err *e)
{
    const struct split_cache *c;
    size_t m = insert->n, from = 0;
    int64_t pos[ARRAY_LEN(depths)];
    if (m > ARRAY_LEN(depths))
        return GEN_RETRY;
    TRY(ruler_essay(g->res, g->splits, g->essay_first, n, &c, e));
    if (py_sample(&g->py, ARRAY_LEN(depths), (int64_t)m, pos))
        return err_nomem(e, 1024, "drawing depths");
    for (size_t i = 0; i < m; i++)
        pos[i] = (int64_t)((double)c->n_s * ((double)depths[pos[i]] / 100.0));
    qsort(pos, m, sizeof *pos, cmp_i64);
    /* pieces joined by one space; an empty piece still has its separators */
    for (size_t i = 0; i <= m; i++) {
        size_t to = i < m ? (size_t)pos[i] : c->n_s;
        if (i)
            str_putc(ctx, ' ');
        for (size_t s = from; s < to; s++) {
            if (s > from)
                str_putc(ctx, ' ');
            str_add(ctx, c->text.p + c->s[s].from, c->s[s].to - c->s[s].from);
        }
        if (i < m) {
            str_putc(ctx, ' ');
            str_puts(ctx, insert->v[i]);
        }
        from = to;
    }
    return 0;
}

static int in_lines(struct gen *g, int64_t n, struct str *ctx, struct err *e)
{
    size_t m = g->needles.n;
    int64_t idx[MAX_NEEDLES];
    struct list lines = {0};
    int rc = 0;
    if (g->task->stack == S_NEEDLE) {
        struct str k = STR_INIT, v = STR_INIT;
        for (int64_t i = 0; !rc && i < n; i++) {
            str_clear(&k);
            str_clear(&v);
            str_clear(&g->tmp);
            draw(g, g->task->key, &k);
            draw(g, g->task->value, &v);
            needle(g, str_c(&k), str_c(&v), &g->tmp);
            rc = gen_add(&lines, &g->tmp, e);
        }
        str_free(&k);
        str_free(&v);
    }
    if (!rc && (int64_t)m > n)
        rc = GEN_RETRY;
    if (!rc && py_sample(&g->py, n, (int64_t)m, idx))
        rc = err_nomem(e, 1024, "drawing places");
    if (!rc) {
        qsort(idx, m, sizeof *idx, cmp_i64); /* the reference inserts from the back: needle 0 at the largest index */
        size_t next = 0;
        for (int64_t i = 0; i < n; i++) {
            if (i)
                str_putc(ctx, '\n');
            if (next < m && idx[next] == i) {
                str_puts(ctx, g->needles.v[m - 1 - next++]);
                str_putc(ctx, '\n');
            }
            str_puts(ctx, lines.n ? lines.v[i] : ruler_noise);
        }
    }
    list_free(&lines);
    return rc;
}

/* Counted in the search: the prompt and the answers, with nothing between the two. Kept apart: the start of the answer. */
static void harness_parts(struct gen *g, const struct fill *f, size_t n, bool one)
{
    str_clear(&g->counted);
    str_add(&g->counted, str_c(&g->text), g->text.len);
    for (size_t i = 0; i < g->answers.n; i++)
        str_printf(&g->counted, "%s%s", i ? " " : "", g->answers.v[i]);
    str_clear(&g->tmp);
    str_puts(&g->tmp, niah_prefix + 1);
    if (one)
        str_replace(&g->tmp, "are", "is");
    str_clear(&g->gen_prefix);
    gen_fill(&g->gen_prefix, str_c(&g->tmp), f, n);
}

static int niah_text(struct gen *g, int64_t n, struct err *e)
{
    const struct ruler_task *t = g->task;
    struct str ctx = STR_INIT, query = STR_INIT, type = STR_INIT, templ = STR_INIT;
    int64_t pick[MAX_NEEDLES];
    int rc = draw_needles(g, e);
    if (!rc)
        /* the harness takes a slice of the text, which ends with it; the reference starts the text again */
        rc = t->stack != S_ESSAY ? in_lines(g, n, &ctx, e)
                                 : gen_essay(g, g->harness ? MIN(n, (int64_t)g->res->n_words) : n, &g->needles, &ctx, e);
    if (!rc && py_sample(&g->py, t->k, t->q, pick))
        rc = err_nomem(e, 1024, "drawing queries");
    list_clear(&g->answers);
    for (int i = 0; !rc && i < t->q; i++) {
        if (i)
            str_puts(&query, i + 1 < t->q ? ", " : ", and ");
        str_puts(&query, g->keys.v[pick[i]]);
        for (int j = 0; !rc && j < t->v; j++) {
            const char *z = g->values.v[pick[i] * t->v + j];
            rc = list_add(&g->answers, z, strlen(z), e);
        }
    }
    if (!rc) {
        bool one = t->q * t->v == 1;
        str_printf(&templ, "%s%s%s%s", g->before, niah_body, g->after, g->harness ? "" : niah_prefix);
        str_puts(&type, type_name[t->value]);
        if (one) {
            static const char *const swap[][2] = {{"Some", "A"}, {"are all", "is"}, {"are", "is"}, {"answers", "answer"}};
            for (size_t i = 0; i < ARRAY_LEN(swap); i++)
                str_replace(&templ, swap[i][0], swap[i][1]);
            type.p[--type.len] = 0;
        }
        str_clear(&g->text);
        struct fill f[] = {{"type_needle_v", &type}, {"context", &ctx}, {"query", &query}};
        gen_fill(&g->text, str_c(&templ), f, ARRAY_LEN(f));
        if (g->harness)
            harness_parts(g, f, ARRAY_LEN(f), one);
        rc = str_ok(&g->text, "a prompt", e);
    }
    str_free(&ctx);
    str_free(&query);
    str_free(&type);
    str_free(&templ);
    return rc;
}

int niah_make(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    int64_t inc = g->task->stack == S_ESSAY ? 500 : g->max_len < 4096 ? 5 : 25, size, tokens;
    int64_t least = g->task->stack == S_ESSAY ? 1 : g->task->k * g->task->v;
    struct size_rule r = {.inc = inc, .lower = least, .probe = inc, .max = g->max_len, .extra = g->task->gen_tokens};
    if (g->harness && g->task->stack == S_ESSAY) {
        r.words = true;
        r.limit = (int64_t)g->res->n_words;
    }
    TRY(gen_search(g, niah_text, &r, &size, e));
    for (int64_t i = 0; i < samples; i++) {
        gen_place(g, i);
        TRY(gen_fit(g, niah_text, &r, size, r.extra, &tokens, e));
        TRY(gen_record(g, i, tokens, out, e));
    }
    return 0;
}
