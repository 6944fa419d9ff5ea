/*
 * AR-MH: as AR, but a key may be an alias of another: with probability 0.4 each key in turn stands for an earlier key of depth at most 1
 * (depth d drawn with weight d+1), so values are up to two hops away. When no key of depth 2 came about, two keys are rewired to make
 * one. At least one of the three keys asked for is an alias [selectors.md B.2].
 */
#include <string.h>

#include "baselines/ar.h"

enum { MAX_HOPS = 2 };

/* An earlier key of depth < MAX_HOPS, depth d with weight d+1; -1 when there is none. */
static int draw_parent(struct probe_gen *g, const struct ar_mh_pairs *p, int upto)
{
    uint64_t total = 0;
    for (int i = 0; i < upto; i++)
        total += p->depth[i] < MAX_HOPS ? (uint64_t)p->depth[i] + 1 : 0;
    if (!total)
        return -1;
    uint64_t at = probe_below(g, total);
    for (int i = 0; i < upto; i++) {
        uint64_t w = p->depth[i] < MAX_HOPS ? (uint64_t)p->depth[i] + 1 : 0;
        if (at < w)
            return i;
        at -= w;
    }
    return -1;
}

/* No key has depth 2, so no alias has children: key a, an alias of a digit, becomes the parent of key b, which nobody stands for. */
static void rewire(struct probe_gen *g, struct ar_mh_pairs *p)
{
    int a = -1;
    bool child_of[AR_PAIRS] = {0};
    for (int i = 0; i < AR_PAIRS; i++)
        if (p->alias[i] >= 0)
            child_of[p->alias[i]] = true;
    for (int i = 0; i < AR_PAIRS && a < 0; i++)
        if (p->depth[i] == 1)
            a = i;
    if (a < 0) { /* not one alias at all: key 1 takes key 0 */
        a = 1;
        p->alias[a] = 0;
        p->depth[a] = 1;
        child_of[0] = true;
    }
    int at = (int)probe_below(g, AR_PAIRS);
    for (int k = 0; k < AR_PAIRS; k++) {
        int b = (at + k) % AR_PAIRS;
        if (b == a || child_of[b])
            continue;
        p->alias[b] = a;
        p->depth[b] = 2;
        return;
    }
    BUG("every key of %d has a child", AR_PAIRS);
}

void ar_mh_draw(struct probe_gen *g, struct ar_mh_pairs *p)
{
    bool deep = false;
    for (int i = 0; i < AR_PAIRS; i++) {
        p->value[i] = (int)probe_below(g, 10);
        p->alias[i] = probe_below(g, 10) < 4 ? draw_parent(g, p, i) : -1;
        p->depth[i] = p->alias[i] < 0 ? 0 : p->depth[p->alias[i]] + 1;
        deep = deep || p->depth[i] == MAX_HOPS;
    }
    if (!deep)
        rewire(g, p);
}

int ar_mh_value(const struct ar_mh_pairs *p, int key)
{
    for (int hops = 0; p->alias[key] >= 0; hops++) {
        if (hops > MAX_HOPS)
            BUG("a cycle of aliases at key %d", key);
        key = p->alias[key];
    }
    return p->value[key];
}

static int make(struct probe_gen *g, struct str *text, struct probe_prompt *p, struct err *e)
{
    const char *key[AR_PAIRS];
    struct ar_mh_pairs pairs;
    size_t asked[AR_ASKED];
    int sum = 0;
    bool any = false;
    TRY(ar_keys(g, "ar-mh", key, e));
    ar_mh_draw(g, &pairs);
    str_puts(text, "Memorize the following dictionary. A key may stand for another key.\n");
    for (int i = 0; i < AR_PAIRS; i++)
        if (pairs.alias[i] >= 0)
            str_printf(text, "%s: %s\n", key[i], key[pairs.alias[i]]);
        else
            str_printf(text, "%s: %d\n", key[i], pairs.value[i]);
    while (!any) {
        TRY(probe_sample(g, AR_PAIRS, AR_ASKED, asked, e));
        for (int i = 0; i < AR_ASKED; i++)
            any = any || pairs.alias[asked[i]] >= 0;
    }
    for (int i = 0; i < AR_ASKED; i++)
        sum += ar_mh_value(&pairs, (int)asked[i]);
    str_printf(text, "Only return the final value. The value of %s + %s + %s is", key[asked[0]], key[asked[1]], key[asked[2]]);
    return ar_answer(p, sum, e);
}

/* RULER's form: four needles, two of them asked for. */
const struct probe probe_ar_mh = {.name = "ar-mh", .stream = 0x61726d68, .keys = true, .make = make, .right = ar_right,
                                  .ruler = {.name = "niah_multiquery", .kind = K_NIAH, .gen_tokens = 128, .stack = S_ESSAY,
                                            .key = T_WORDS, .value = T_NUMBERS, .k = 4, .v = 1, .q = 2}};

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return probe_pick(&probe_ar_mh, in, out, e);
}

const struct selector sel_ar_mh = {.name = "ar-mh", .title = "AR-MH",
                                   .about = "loss of multi-hop associative recall when the layer's mixer is zeroed",
                                   .needs = "teacher with tokenizer", .cost = "L+1 generation runs",
                                   .source = "GA-S2 code; greedy decoding", .certain = true, .needs_teacher = true, .needs_tokenizer = true,
                                   .version = 1, .pick = pick};
