/*
 * Pre-tokenizers: how a text is cut into pieces before merging. A rule is up to PRETOK_MAX_STEPS steps; each step cuts every piece of the
 * step before, and sees that piece alone (lookahead does not reach over its end). Regular expressions run in PCRE2 with its JIT compiler.
 * Oniguruma's \s is White_Space, PCRE2's has U+180E too: \s is rewritten. Constructs that mean different things in the two dialects are
 * refused.
 */
#ifndef MODEL_PRETOK_H
#define MODEL_PRETOK_H

#include "core/err.h"

enum { PRETOK_MAX_STEPS = 8 };
enum pretok_kind { PRETOK_DIGITS_EACH, PRETOK_DIGITS_RUN, PRETOK_REGEX };
/* ISOLATED: matches and the text between them are pieces. MATCHES_ONLY ("Removed", inverted): text between matches is lost. */
enum pretok_behavior { PRETOK_ISOLATED, PRETOK_MATCHES_ONLY };

struct pretok;
struct pretok_work; /* per-thread match buffers */

struct pretok_family {
    const char *name;
    bool nfc;           /* its models normalise to NFC */
    bool ignore_merges; /* a piece that is a token is that token, whatever the merges say (stated in tokenizer.json, not in GGUF) */
};
/* Family i, or NULL past the last. */
const struct pretok_family *pretok_family_at(size_t i);
/* name: a family, or a name that GGUF files use for it (tokenizer.ggml.pre); NULL when unknown. */
const struct pretok_family *pretok_family(const char *name);
/* "gpt2, qwen2, ..." for messages. */
const char *pretok_family_list(void);
/* The split rule of a family (or GGUF name). E_USAGE with the list when unknown. */
int pretok_named(struct pretok **out, const char *name, struct err *e);
/* Built by hand: pretok_new, steps in order, pretok_finish; `where` is the place for messages. */
int pretok_new(struct pretok **out, struct err *e);
int pretok_add_digits(struct pretok *p, bool each, const char *where, struct err *e);
int pretok_add_regex(struct pretok *p, const char *pattern, enum pretok_behavior b, const char *where, struct err *e);
int pretok_add_gpt2(struct pretok *p, const char *where, struct err *e);
/* After the last step: recognises a family by its steps. */
int pretok_finish(struct pretok *p, struct err *e);
void pretok_free(struct pretok *p);
/* "gpt2", "qwen2", "llama-bpe", "smollm", ..., "none" (no step) or "custom". */
const char *pretok_name(const struct pretok *p);
/* Canonical text of the steps, one a line (for identities). */
const char *pretok_text(const struct pretok *p);

int pretok_work_new(struct pretok_work **out, const struct pretok *p, struct err *e);
void pretok_work_free(struct pretok_work *w);
/* Calls fn for each piece of text (valid UTF-8) in order; fn returns 0 or -1 (stops). */
int pretok_split(const struct pretok *p, struct pretok_work *w, const char *text, size_t n,
                 int (*fn)(void *ctx, const char *piece, size_t n, struct err *e), void *ctx, struct err *e);

/* Offset of the first byte that is not part of valid UTF-8 (no surrogates, no overlong forms), or n. *ascii: all bytes < 128. */
size_t utf8_check(const char *p, size_t n, bool *ascii);

#endif
