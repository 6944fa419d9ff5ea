/*
 * CWE: 10 words twice and 100 words once, shuffled, from a pool of 126 synthetic words (aa .. zz, aa1 ..); the ten most common are asked
 * for. Right: the first ten distinct listed words of the answer, cut at "Explanation", are the ten, as a set [selectors.md B.2; "listed"
 * read as: a word that stands in the prompt's list].
 */
#include <string.h>

#include "baselines/probe.h"

enum { POOL = 126, COMMON = 10, COMMON_TIMES = 2, RARE = 100, LISTED = COMMON * COMMON_TIMES + RARE };

static void pool_word(size_t i, char word[8])
{
    char c = (char)('a' + i % 26);
    if (i < 26)
        snprintf(word, 8, "%c%c", c, c);
    else
        snprintf(word, 8, "%c%c%d", c, c, (int)(i / 26));
}

static int make(struct probe_gen *g, struct str *text, struct probe_prompt *p, struct err *e)
{
    size_t word[COMMON + RARE], list[LISTED], order[LISTED], n = 0;
    char z[8];
    TRY(probe_sample(g, POOL, COMMON + RARE, word, e));
    for (size_t i = 0; i < COMMON + RARE; i++) {
        pool_word(word[i], z);
        TRY(list_add(&p->listed, z, strlen(z), e));
        if (i < COMMON)
            TRY(list_add(&p->refs, z, strlen(z), e));
        for (int k = 0; k < (i < COMMON ? COMMON_TIMES : 1); k++)
            list[n++] = word[i];
    }
    list_sort_unique(&p->listed);
    TRY(probe_sample(g, LISTED, LISTED, order, e));
    str_puts(text, "Below is a numbered list of words. Some of them appear more often than others. Memorize the ones that appear most "
             "often.\n");
    for (size_t i = 0; i < LISTED; i++) {
        pool_word(list[order[i]], z);
        str_printf(text, "%zu. %s%c", i + 1, z, i + 1 < LISTED ? ' ' : '\n');
    }
    str_puts(text, "Question: what are the 10 most common words in the list above?\nAnswer: the 10 most common words are:");
    return 0;
}

static bool word_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static double right(const struct probe_prompt *p, const char *text, size_t n)
{
    int64_t cut = find_bytes(text, n, "Explanation", 11), seen[COMMON];
    size_t got = 0;
    n = cut >= 0 ? (size_t)cut : n;
    for (size_t i = 0; i < n && got < COMMON;) {
        size_t end = i;
        while (end < n && word_byte(text[end]))
            end++;
        int64_t at = end > i ? list_find(&p->listed, text + i, end - i) : -1;
        bool again = false;
        for (size_t k = 0; k < got; k++)
            again = again || seen[k] == at;
        if (at >= 0 && !again)
            seen[got++] = at;
        i = end + 1;
    }
    for (size_t k = 0; k < p->refs.n; k++) {
        bool found = false;
        for (size_t j = 0; j < got; j++)
            found = found || !strcmp(p->listed.v[seen[j]], p->refs.v[k]);
        if (!found)
            return 0;
    }
    return got == COMMON;
}

const struct probe probe_cwe = {.name = "cwe", .stream = 0x637765, .make = make, .right = right,
                                .ruler = {.name = "cwe", .kind = K_CWE, .gen_tokens = 120, .freq_cw = 30, .freq_ucw = 3,
                                         .n_cw = 10}};

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return probe_pick(&probe_cwe, in, out, e);
}

const struct selector sel_cwe = {.name = "cwe", .title = "CWE", .about = "loss of common-word extraction when the layer's mixer is zeroed",
                                 .needs = "teacher with tokenizer", .cost = "L+1 generation runs", .source = "GA-S2 code; greedy decoding",
                                 .certain = true, .needs_teacher = true, .needs_tokenizer = true, .version = 1, .pick = pick};
