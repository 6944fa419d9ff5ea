/*
 * FlashMorph's retrieval samples [selectors.md B.10]: a stretch of text with passkeys hidden at random depths, then a question for all
 * of them; the answer is the passkeys in order. Published: 10 passkeys of 32 words from an alphabet like the NATO spelling words, at 10
 * of 1000 candidate depths. The wording is this project's own.
 */
#ifndef BASELINES_PASSKEY_H
#define BASELINES_PASSKEY_H

#include "core/str.h"

enum { PASSKEY_MOST = 64 };
struct passkey_opts {
    int keys, words, depths; /* keys 1..PASSKEY_MOST, words 1..1024, depths keys..1000000 */
    uint64_t seed;
};
extern const char *const passkey_words[26];

int passkey_check(const struct passkey_opts *o, struct err *e);
/*
 * Sample `index` around text[n] (valid UTF-8): what a user says (prompt) and what is answered (answer, with a leading space), appended.
 * A passkey goes in at the first space at or after its depth's share of the text (at its end where there is none), so words are never
 * cut. A function of (options, index, text).
 */
int passkey_make(const struct passkey_opts *o, int64_t index, const char *text, size_t n, struct str *prompt, struct str *answer,
                 struct err *e);

#endif
