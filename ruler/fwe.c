/* Frequent words (spec section 5): coded words whose counts fall with the square of their rank; rank 1 is the filler `...`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ruler/gen.h"

static const char fwe_body[] =
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded "
    "words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
    "frequently appeared words in the above coded text?";
static const char fwe_prefix[] = " Answer: According to the coded text above, the three most frequently appeared words are:";
static const double zeta2 = 0x1.a51a6625307d3p+0;
enum { LEAST_VOCAB = 4, MAX_WORD = 16 };

/* Riemann's zeta for s > 1: a sum's beginning, and Euler and Maclaurin's formula for the rest. 2 is the reference's value to the bit. */
static double zeta(double s)
{
    /* B(2j) / (2j)! */
    static const double b[] = {1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160, -691.0 / 1307674368000.0};
    const double n = 16;
    double sum = 0, rising = s;
    if (s == 2)
        return zeta2;
    for (double k = 1; k < n; k++)
        sum += pow(k, -s);
    double p = pow(n, -s);
    sum += n * p / (s - 1) + p / 2;
    for (size_t j = 0; j < ARRAY_LEN(b); j++) {
        p /= j ? n * n : n;
        sum += b[j] * rising * p;
        rising *= (s + 2 * (double)j + 1) * (s + 2 * (double)j + 2);
    }
    return sum;
}

/* How often the word of a rank stands among `words`. */
static int64_t count_of(const struct gen *g, int64_t words, double rank)
{
    double a = g->task->alpha;
    if (a == 2)
        return (int64_t)((double)words / (rank * rank) / zeta2);
    return (int64_t)((double)words * pow(rank, -a) / g->zeta);
}

/* So many that rank 4, the last that is asked for, still appears (alpha 2: 27). */
static int64_t least_words(const struct gen *g)
{
    int64_t n = (int64_t)fmin(pow(4, g->task->alpha) * g->zeta, 1e9);
    while (n < 1000000000 && count_of(g, n, 4) < 1)
        n++;
    return n;
}

static int draw_vocab(struct gen *g, int64_t size, struct err *e)
{
    struct list *v = &g->vocab;
    size_t seen = 0;
    list_clear(v);
    while (seen < (size_t)size) {
        /* as many words as are missing; the set is what counts, so duplicates may go at once */
        for (size_t k = (size_t)size - seen; k > 0; k--) {
            int64_t c[MAX_WORD], n = MIN(g->task->word_len, MAX_WORD);
            char w[MAX_WORD];
            py_choices(&g->py, 26, n, c);
            for (int64_t i = 0; i < n; i++)
                w[i] = (char)('a' + c[i]);
            TRY(list_add(v, w, (size_t)n, e));
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
    free(v->v[0]); /* the most frequent word is the filler */
    v->v[0] = strdup("...");
    if (!v->v[0])
        return err_nomem(e, 4, "coded words");
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
        int64_t k = count_of(g, words, (double)r);
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
        struct size_rule r = {.inc = 1, .lower = least_words(g), .max = max};
        return gen_search(g, fwe_text, &r, words, e);
    }
    *words = max / g->task->word_len;
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
               "task '%s' cannot fit in length %" PRId64 ": its smallest prompt with the budget for the answer needs %" PRId64
               " tokens; use a length of at least %" PRId64,
               g->task->name, g->max_len, need, need);
}

int fwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    /* the harness does not subtract the budget: its prompts alone fill the length */
    int64_t budget = g->task->gen_tokens, max = g->harness ? g->max_len : g->max_len - budget, step = max / 32, words0, tokens;
    int64_t vocab = g->task->vocab > 0 ? g->task->vocab : max / 50;
    g->zeta = zeta(g->task->alpha);
    int64_t least = least_words(g);
    if (vocab < LEAST_VOCAB || step < 1) {
        TRY(draw_vocab(g, LEAST_VOCAB, e));
        TRY(count_at(g, MIN(least, 100000), &tokens, e));
        return too_short(g, MAX(tokens, LEAST_VOCAB * 50) + (g->max_len - max), e);
    }
    gen_place(g, PLACE_SEARCH);
    TRY(first_size(g, max, vocab, step, &words0, e));
    for (int64_t i = 0; i < samples; i++) {
        gen_place(g, i);
        TRY(draw_vocab(g, vocab, e));
        int64_t words = words0;
        for (;;) {
            if (words < (g->compact ? least : 1))
                return too_short(g, tokens + (g->max_len - max), e);
            TRY(count_at(g, words, &tokens, e));
            if (tokens <= max)
                break;
            words -= g->compact ? MAX(1, words / 50) : step;
        }
        list_clear(&g->answers);
        for (int k = 1; k <= 3; k++)
            TRY(list_add(&g->answers, g->vocab.v[k], strlen(g->vocab.v[k]), e));
        TRY(gen_record(g, i, tokens + budget, out, e));
    }
    return 0;
}
