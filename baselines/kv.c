/* KV: 50 words with a number each; the number of one of them is asked for. Right: the first integer of the answer is the value
 * [selectors.md B.2]. */
#include <stdlib.h>
#include <string.h>

#include "baselines/probe.h"

enum { PAIRS = 50, MAX_VALUE = 100 };

static int make(struct probe_gen *g, struct str *text, struct probe_prompt *p, struct err *e)
{
    size_t word[PAIRS];
    char value[8] = "";
    if (g->words.n < PAIRS)
        return ERR(e, E_INPUT, "probe 'kv': %zu words in the bundled list, %d are needed", g->words.n, PAIRS);
    TRY(probe_sample(g, g->words.n, PAIRS, word, e));
    int asked = (int)probe_below(g, PAIRS);
    str_puts(text, "Memorize the following dictionary:\n");
    for (int i = 0; i < PAIRS; i++) {
        int v = (int)probe_below(g, MAX_VALUE + 1);
        str_printf(text, "%s:%d\n", g->words.v[word[i]], v);
        if (i == asked)
            snprintf(value, sizeof value, "%d", v);
    }
    str_printf(text, "The value of the word \"%s\" is", g->words.v[word[asked]]);
    return list_add(&p->refs, value, strlen(value), e);
}

static double right(const struct probe_prompt *p, const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && !(text[i] >= '0' && text[i] <= '9'))
        i++;
    size_t end = probe_digits_end(text, n, i);
    while (i + 1 < end && text[i] == '0') /* 07 is the integer 7 */
        i++;
    return end > i && strlen(p->refs.v[0]) == end - i && !memcmp(p->refs.v[0], text + i, end - i);
}

const struct probe probe_kv = {.name = "kv", .stream = 0x6b76, .words = true, .make = make, .right = right,
                               .ruler = {.name = "niah_multikey_1", .kind = K_NIAH, .gen_tokens = 128, .stack = S_ESSAY,
                                         .key = T_WORDS, .value = T_NUMBERS, .k = 4, .v = 1, .q = 1}};

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return probe_pick(&probe_kv, in, out, e);
}

const struct selector sel_kv = {.name = "kv", .title = "KV", .about = "loss of key-value recall when the layer's mixer is zeroed",
                                .needs = "teacher with tokenizer", .cost = "L+1 generation runs",
                                .source = "GA-S2 code; greedy decoding, words from the bundled nouns", .certain = true,
                                .needs_teacher = true, .needs_tokenizer = true, .version = 1, .pick = pick};
