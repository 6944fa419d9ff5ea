/* Frequent words (spec section 5): coded words whose counts fall with the square of their rank; rank 1 is the filler `...`. */
#include <stdlib.h>
#include <string.h>

#include "ruler/gen.h"

static const char fwe_body[] =
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded "
    "words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
    "frequently appeared words in the above coded text?";
static const char fwe_prefix[] = " Answer: According to the coded text above, the three most frequently appeared words are:";
static const double zeta2 = 0x1.a51a6625307d3p+0;
enum { GEN_TOKENS = 50, LEAST_WORDS = 27 /* rank 4 still appears: 27 / 16 / zeta(2) > 1 */, LEAST_VOCAB = 4 };

static int draw_vocab(struct gen *g, int64_t size, struct err *e)
{
    struct list *v = &g->vocab;
    size_t seen = 0;
    list_clear(v);
    while (seen < (size_t)size) {
        /* as many words as are missing; the set is what counts, so duplicates may go at once */
        for (size_t k = (size_t)size - seen; k > 0; k--) {
            int64_t c[6];
            char w[6];
            py_choices(&g->py, 26, 6, c);
            for (int i = 0; i < 6; i++)
                w[i] = (char)('a' + c[i]);
            TRY(list_add(v, w, 6, e));
        }
        list_sort_unique(v);
        seen = v->n;
    }
    const int64_t *p = gen_perm(g, v->n, e);
    char **old = malloc(v->n * sizeof *old);
    if (!p || !old) {
        free(old);
        return p ? err_nomem(e, v->n * sizeof *old, "coded words") : -1;
    }
    memcpy(old, v->v, v->n * sizeof *old);
    for (size_t i = 0; i < v->n; i++)
        v->v[i] = old[p[i]];
    free(old);
    strcpy(v->v[0], "...");
    return 0;
}

/* The text of `words` words over g->vocab. */
static int fwe_text(struct gen *g, int64_t words, struct err *e)
{
    const struct list *v = &g->vocab;
    struct str ctx = STR_INIT, templ = STR_INIT;
    int64_t *which = malloc((size_t)(words + 1) * sizeof *which), total = 0;
    if (!which)
        return err_nomem(e, (size_t)words * 8, "coded text");
    for (size_t r = 1; r <= v->n; r++) {
        int64_t k = (int64_t)((double)words / ((double)r * (double)r) / zeta2);
        while (k-- > 0 && total < words)
            which[total++] = (int64_t)r - 1;
    }
    const int64_t *p = gen_perm(g, (size_t)total, e);
    for (int64_t i = 0; p && i < total; i++) {
        if (i)
            str_putc(&ctx, ' ');
        str_puts(&ctx, v->v[which[p[i]]]);
    }
    free(which);
    str_printf(&templ, "%s%s%s%s", g->before, fwe_body, g->after, fwe_prefix);
    str_clear(&g->text);
    struct fill f[] = {{"context", &ctx}};
    gen_fill(&g->text, str_c(&templ), f, 1);
    str_free(&ctx);
    str_free(&templ);
    return p ? str_ok(&g->text, "a prompt", e) : -1;
}

static int count_at(struct gen *g, int64_t words, int64_t *tokens, struct err *e)
{
    TRY(fwe_text(g, words, e));
    return gen_count(g, g->text.p, g->text.len, tokens, e);
}

static int first_size(struct gen *g, int64_t max, int64_t vocab, int64_t step, int64_t *words, struct err *e)
{
    int64_t tokens;
    TRY(draw_vocab(g, vocab, e));
    if (g->compact) {
        struct size_rule r = {.inc = 1, .lower = LEAST_WORDS, .max = max};
        return gen_search(g, fwe_text, &r, words, e);
    }
    *words = max / 6;
    for (;;) {
        TRY(count_at(g, *words, &tokens, e));
        if (tokens >= max)
            break;
        *words += step;
    }
    *words -= step;
    return 0;
}

static int too_short(struct gen *g, int64_t need, struct err *e)
{
    return ERR(e, E_CHECK,
               "task 'fwe' cannot fit in length %" PRId64 ": its smallest prompt with the budget for the answer needs %" PRId64
               " tokens; use a length of at least %" PRId64,
               g->max_len, need, need);
}

int fwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    /* the harness does not subtract the budget: its prompts alone fill the length */
    int64_t max = g->harness ? g->max_len : g->max_len - GEN_TOKENS, vocab = max / 50, step = max / 32, words0, tokens;
    if (vocab < LEAST_VOCAB || step < 1) {
        TRY(draw_vocab(g, LEAST_VOCAB, e));
        TRY(count_at(g, LEAST_WORDS, &tokens, e));
        return too_short(g, MAX(tokens, LEAST_VOCAB * 50) + (g->max_len - max), e);
    }
    TRY(first_size(g, max, vocab, step, &words0, e));
    for (int64_t i = 0; i < samples; i++) {
        TRY(draw_vocab(g, vocab, e));
        int64_t words = words0;
        for (;;) {
            if (words < (g->compact ? LEAST_WORDS : 1))
                return too_short(g, tokens + (g->max_len - max), e);
            TRY(count_at(g, words, &tokens, e));
            if (tokens <= max)
                break;
            words -= g->compact ? MAX(1, words / 50) : step;
        }
        list_clear(&g->answers);
        for (int k = 1; k <= 3; k++)
            TRY(list_add(&g->answers, g->vocab.v[k], strlen(g->vocab.v[k]), e));
        TRY(gen_record(g, i, tokens + GEN_TOKENS, out, e));
    }
    return 0;
}
