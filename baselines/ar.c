/* AR: 50 keys from the tokenizer with a digit each; the sum of three is asked for. Right: the sum stands in the answer as a substring
 * [selectors.md B.2; one-digit sums match easily]. */
#include <string.h>

#include "baselines/ar.h"

int ar_keys(struct probe_gen *g, const char *name, const char *key[AR_PAIRS], struct err *e)
{
    size_t at[AR_PAIRS];
    if (g->keys.n < AR_PAIRS)
        return ERR(e, E_INPUT, "probe '%s': the tokenizer has %zu entries of three and more letters, %d are needed", name, g->keys.n,
                   AR_PAIRS);
    TRY(probe_sample(g, g->keys.n, AR_PAIRS, at, e));
    for (int i = 0; i < AR_PAIRS; i++)
        key[i] = g->keys.v[at[i]];
    return 0;
}

int ar_answer(struct probe_prompt *p, int sum, struct err *e)
{
    char z[16];
    snprintf(z, sizeof z, "%d", sum);
    return list_add(&p->refs, z, strlen(z), e);
}

double ar_right(const struct probe_prompt *p, const char *text, size_t n)
{
    return find_bytes(text, n, p->refs.v[0], strlen(p->refs.v[0])) >= 0;
}

static int make(struct probe_gen *g, struct str *text, struct probe_prompt *p, struct err *e)
{
    const char *key[AR_PAIRS];
    size_t asked[AR_ASKED];
    int value[AR_PAIRS], sum = 0;
    TRY(ar_keys(g, "ar", key, e));
    str_puts(text, "Memorize the following dictionary:\n");
    for (int i = 0; i < AR_PAIRS; i++) {
        value[i] = (int)probe_below(g, 10);
        str_printf(text, "%s: %d\n", key[i], value[i]);
    }
    TRY(probe_sample(g, AR_PAIRS, AR_ASKED, asked, e));
    for (int i = 0; i < AR_ASKED; i++)
        sum += value[asked[i]];
    str_printf(text, "The value of %s + %s + %s is", key[asked[0]], key[asked[1]], key[asked[2]]);
    return ar_answer(p, sum, e);
}

const struct probe probe_ar = {.name = "ar", .stream = 0x6172, .keys = true, .make = make, .right = ar_right,
                               .ruler = {.name = "niah_multikey_2", .kind = K_NIAH, .gen_tokens = 128, .stack = S_NEEDLE,
                                         .key = T_WORDS, .value = T_NUMBERS, .k = 1, .v = 1, .q = 1}};

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return probe_pick(&probe_ar, in, out, e);
}

const struct selector sel_ar = {.name = "ar", .title = "AR",
                                .about = "loss of associative recall (sum of three values) when the layer's mixer is zeroed",
                                .needs = "teacher with tokenizer", .cost = "L+1 generation runs", .source = "GA-S2 code; greedy decoding",
                                .certain = true, .needs_teacher = true, .needs_tokenizer = true, .version = 1, .pick = pick};
