/* FlashMorph's retrieval samples. */
#include "baselines/passkey.h"

#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

const char *const passkey_words[26] = {"alfa",   "bravo",    "charlie", "delta", "echo",  "foxtrot", "golf",    "hotel",  "india",
                                       "juliett", "kilo",  "lima", "mike", "november", "oscar", "papa",    "quebec", "romeo", "sierra",
                                       "tango",   "uniform", "victor", "whiskey", "xray",  "yankee", "zulu"};

enum { STREAM_DEPTH = 1, STREAM_ORDER = 2, STREAM_WORDS = 3 };

/* Streams of one sample do not meet those of another. */
static uint64_t stream(int64_t index, uint64_t what)
{
    return 0x706173736b6579ull ^ ((uint64_t)index << 8) ^ what;
}

int passkey_check(const struct passkey_opts *o, struct err *e)
{
    if (o->keys < 1 || o->keys > PASSKEY_MOST || o->words < 1 || o->words > 1024)
        return ERR(e, E_USAGE, "passkeys: %d keys (1..%d) of %d words (1..1024)", o->keys, PASSKEY_MOST, o->words);
    if (o->depths < o->keys || o->depths > 1000000)
        return ERR(e, E_USAGE, "passkeys: %d candidate depths for %d keys (at least as many, at most 1000000)", o->depths, o->keys);
    return 0;
}

static void put_key(const struct passkey_opts *o, int64_t index, int key, struct str *out)
{
    for (int w = 0; w < o->words; w++)
        str_printf(out, "%s%s", w ? " " : "", passkey_words[ctr_below(o->seed, stream(index, STREAM_WORDS), (uint64_t)(key * o->words + w),
                                                                26)]);
}

static int by_depth(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* `keys` different depths, ascending: Floyd's choice without repetition. */
static void draw_depths(const struct passkey_opts *o, int64_t index, int *depth)
{
    for (int i = 0; i < o->keys; i++) {
        int most = o->depths - o->keys + i, d = (int)ctr_below(o->seed, stream(index, STREAM_DEPTH), (uint64_t)i, (uint64_t)most + 1);
        for (int k = 0; k < i; k++)
            if (depth[k] == d) {
                d = most;
                break;
            }
        depth[i] = d;
    }
    qsort(depth, (size_t)o->keys, sizeof *depth, by_depth);
}

int passkey_make(const struct passkey_opts *o, int64_t index, const char *text, size_t n, struct str *prompt, struct str *answer,
                 struct err *e)
{
    int depth[PASSKEY_MOST];
    int64_t place[PASSKEY_MOST]; /* which passkey stands at the i-th place */
    size_t at = 0;
    TRY(passkey_check(o, e));
    draw_depths(o, index, depth);
    ctr_permutation(o->seed, stream(index, STREAM_ORDER), place, (size_t)o->keys);
    str_printf(prompt, "Here is a story book. %d passkeys are hidden in it. Remember all of them.\n\n", o->keys);
    for (int i = 0; i < o->keys; i++) {
        size_t to = MAX(at, (size_t)((double)n * depth[i] / o->depths));
        while (to < n && text[to] != ' ' && text[to] != '\n')
            to++;
        str_add(prompt, text + at, to - at);
        str_printf(prompt, " Passkey number %d is: ", (int)place[i] + 1);
        put_key(o, index, (int)place[i], prompt);
        str_puts(prompt, ".");
        at = to;
    }
    str_add(prompt, text + at, n - at);
    str_printf(prompt, "\n\nWhat are the %d passkeys, in the order of their numbers?", o->keys);
    for (int k = 0; k < o->keys; k++) {
        str_printf(answer, " %d: ", k + 1);
        put_key(o, index, k, answer);
        str_puts(answer, ".");
    }
    return str_ok(prompt, "a sample", e) || str_ok(answer, "a sample", e) ? -1 : 0;
}
