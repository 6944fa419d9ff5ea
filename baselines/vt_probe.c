/*
 * VT: two chains of three assignments (X and Y) among as many noise items, shuffled; all variables that hold the first chain's value are
 * asked for. Right: the set of X variables in the answer is {X1, X2, X3} [selectors.md B.2].
 */
#include <string.h>

#include "baselines/probe.h"

enum { CHAINS = 2, HOPS = 2, LINKS = HOPS + 1, STATEMENTS = CHAINS * LINKS, ITEMS = 2 * STATEMENTS };
static const char dots[] = " ... ", dot_row[] = "..........";

static int make(struct probe_gen *g, struct str *text, struct probe_prompt *p, struct err *e)
{
    static const char other[] = "QRSTUVW";
    char item[ITEMS][32];
    size_t order[ITEMS];
    int value[CHAINS], n = 0;
    value[0] = 10000 + (int)probe_below(g, 90000);
    do
        value[1] = 10000 + (int)probe_below(g, 90000);
    while (value[1] == value[0]);
    for (int c = 0; c < CHAINS; c++)
        for (int i = 1; i <= LINKS; i++)
            if (i == 1)
                snprintf(item[n++], sizeof item[0], "VAR %c1 = %d", 'X' + c, value[c]);
            else
                snprintf(item[n++], sizeof item[0], "VAR %c%d = %c%d", 'X' + c, i, 'X' + c, i - 1);
    while (n < ITEMS) {
        int v = 10000 + (int)probe_below(g, 90000), letter = (int)probe_below(g, sizeof other - 1);
        if (probe_below(g, 2))
            snprintf(item[n++], sizeof item[0], "%s", dot_row);
        else if (v != value[0] && v != value[1])
            snprintf(item[n++], sizeof item[0], "VAR %c = %d", other[letter], v);
    }
    TRY(probe_sample(g, ITEMS, ITEMS, order, e));
    for (int i = 0; i < ITEMS; i++)
        str_printf(text, "%s%s", i ? dots : "", item[order[i]]);
    str_printf(text,
               "\nQuestion: which variables have the value %d, directly or through other variables?\nAnswer: the variables with the value "
               "%d are", value[0], value[0]);
    for (int i = 1; i <= LINKS; i++) {
        char z[8];
        snprintf(z, sizeof z, "X%d", i);
        TRY(list_add(&p->refs, z, strlen(z), e));
    }
    return 0;
}

static double right(const struct probe_prompt *p, const char *text, size_t n)
{
    unsigned seen = 0;
    UNUSED(p);
    for (size_t i = 0; i < n; i++) {
        if (text[i] != 'X')
            continue;
        size_t end = probe_digits_end(text, n, i + 1);
        if (end == i + 1)
            continue;
        if (end > i + 2 || text[i + 1] < '1' || text[i + 1] > '0' + LINKS)
            return 0; /* an X variable that does not exist */
        seen |= 1u << (text[i + 1] - '1');
        i = end - 1;
    }
    return seen == (1u << LINKS) - 1;
}

const struct probe probe_vt = {.name = "vt", .stream = 0x7674, .make = make, .right = right, .ruler = {.name = "vt", .kind = K_VT,
                                         .gen_tokens = 30, .stack = S_NOISE, .chains = 1, .hops = 4}};

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return probe_pick(&probe_vt, in, out, e);
}

const struct selector sel_vt = {.name = "vt", .title = "VT", .about = "loss of variable tracking when the layer's mixer is zeroed",
                                .needs = "teacher with tokenizer", .cost = "L+1 generation runs", .source = "GA-S2 code; greedy decoding",
                                .certain = true, .needs_teacher = true, .needs_tokenizer = true, .version = 1, .pick = pick};
