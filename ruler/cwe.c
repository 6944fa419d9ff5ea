/* Common words (spec section 5): the words (ten) that stand in the list more often than the others. */
#include <stdlib.h>
#include <string.h>

#include "ruler/gen.h"

static const char cwe_body[] =
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most "
    "often.\n{context}\nQuestion: What are the 10 most common words in the above list?";
static const char cwe_prefix[] = " Answer: The top 10 words that appear most often in the list are:";

/* n words, the first n_cw `a` times, the others `b` times; the numbered list goes to out, the first ones to g->answers. */
static int example(struct gen *g, int64_t n, int64_t a, int64_t b, struct str *out, struct err *e)
{
    const struct list *words = &g->res->cwe;
    bool english = n > (int64_t)words->n && g->res->english.n && !g->harness;
    if (english)
        words = &g->res->english; /* in its own order */
    int64_t c = MIN(n, g->task->n_cw), total = c * a + (n - c) * b;
    if (n > (int64_t)words->n)
        return ERR(e, E_INPUT,
                   "cwe: %" PRId64 " words asked for, the word lists hold %zu; longer lengths need RULER's english_words.json (%s)", n,
                   words->n, g->res->english.n ? "the one given is too short" : "none was given");
    const int64_t *order = gen_perm(g, words->n, e), *mix = NULL;
    int64_t *pick = malloc((size_t)(n + 1) * sizeof *pick);
    if (!order || !pick || py_sample(&g->py, (int64_t)words->n, n, pick)) {
        free(pick);
        return order ? err_nomem(e, (size_t)n * 8, "drawing words") : -1;
    }
    for (int64_t i = 0; i < n; i++)
        pick[i] = english ? pick[i] : order[pick[i]]; /* before gen_perm may drop `order` */
    int rc = 0;
    int64_t *own = g->harness ? malloc((size_t)(total + 1) * sizeof *own) : NULL;
    if (own) { /* the harness goes on with the generator that has shuffled the words */
        for (int64_t i = 0; i < total; i++)
            own[i] = i;
        py_shuffle(&g->cwe_py, own, (size_t)total);
        mix = own;
    } else if (g->harness)
        err_nomem(e, (size_t)total * sizeof *own, "shuffling words");
    else
        mix = gen_perm(g, (size_t)total, e);
    for (int64_t i = 0; mix && i < total; i++) {
        int64_t j = mix[i];
        j = j < c * a ? j % c : c + (j - c * a) % (n - c);
        if (i)
            str_putc(out, ' ');
        str_i64(out, i + 1);
        str_add(out, ". ", 2);
        str_puts(out, words->v[pick[j]]);
    }
    list_clear(&g->answers);
    for (int64_t i = 0; mix && !rc && i < c; i++)
        rc = list_add(&g->answers, words->v[pick[i]], strlen(words->v[pick[i]]), e);
    rc = mix ? rc : -1;
    free(pick);
    free(own);
    return rc;
}

/* Below 4096 tokens the reference takes 6 and 1, whatever it is told; `compact` listens to a task file. */
static bool told(const struct gen *g)
{
    return g->task->freq_cw != 30 || g->task->freq_ucw != 3;
}

static void repeats(const struct gen *g, int64_t *common, int64_t *other)
{
    bool fixed = g->max_len < 4096 && !(g->compact && told(g));
    *common = fixed ? 6 : g->task->freq_cw;
    *other = fixed ? 1 : g->task->freq_ucw;
}

static int cwe_text(struct gen *g, int64_t n, struct err *e)
{
    bool small = g->max_len < 4096;
    int64_t a, b;
    repeats(g, &a, &b);
    struct str few = STR_INIT, ctx = STR_INIT, templ = STR_INIT;
    str_printf(&templ, "%s%s%s%s", g->before, cwe_body, g->after, cwe_prefix);
    str_clear(&g->text);
    struct fill f[] = {{"context", &few}}, m[] = {{"context", &ctx}};
    int rc = small ? example(g, 20, 3, 1, &few, e) : example(g, 40, 10, 3, &few, e);
    if (!rc) {
        gen_fill(&g->text, str_c(&templ), f, 1);
        for (size_t i = 0; i < g->answers.n; i++)
            str_printf(&g->text, i || !g->harness ? " %zu. %s" : "%zu. %s", i + 1, g->answers.v[i]);
        if (g->harness) { /* the example is counted in the size search, and left out of the prompt */
            str_clear(&g->example);
            str_add(&g->example, str_c(&g->text), g->text.len);
            str_clear(&g->text);
        } else
            str_putc(&g->text, '\n');
        rc = example(g, n, a, b, &ctx, e);
    }
    if (!rc) {
        gen_fill(&g->text, str_c(&templ), m, 1);
        rc = str_ok(&g->text, "a prompt", e);
    }
    if (!rc && g->harness) {
        str_clear(&g->counted);
        str_printf(&g->counted, "%s\n%s", str_c(&g->example), str_c(&g->text));
        for (size_t i = 0; i < g->answers.n; i++)
            str_printf(&g->counted, " %zu. %s", i + 1, g->answers.v[i]);
    }
    str_free(&few);
    str_free(&ctx);
    str_free(&templ);
    return rc;
}

int cwe_make(struct gen *g, int64_t samples, struct str *out, struct err *e)
{
    struct size_rule r = {.inc = 10,
                          .lower = g->task->n_cw + 1,
                          .probe = 4096,
                          .limit = (int64_t)(g->harness ? g->res->cwe.n : MAX(g->res->cwe.n, g->res->english.n)),
                          .max = g->max_len,
                          .extra = g->task->gen_tokens,
                          .cwe_upper = true};
    int64_t size, tokens;
    if (g->max_len < 4096 && !g->compact && told(g))
        return ERR(e, E_USAGE,
                   "task '%s': below 4096 tokens the reference takes freq_cw 6 and freq_ucw 1 whatever is asked for; length %" PRId64
                   " needs flavour 'compact' or the defaults (30, 3)",
                   g->task->name, g->max_len);
    TRY(gen_search(g, cwe_text, &r, &size, e));
    for (int64_t i = 0; i < samples; i++) {
        gen_place(g, i);
        TRY(gen_fit(g, cwe_text, &r, size, r.extra, &tokens, e));
        TRY(gen_record(g, i, tokens, out, e));
    }
    return 0;
}
