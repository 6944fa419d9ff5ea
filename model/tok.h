/*
 * Tokenizer: byte-level BPE as Hugging Face's `tokenizers` does it. Text -> added tokens cut out -> normaliser (none or NFC) -> split rule
 * (model/pretok.h)
 * -> bytes as symbols -> merges by rank. Sources: a tokenizer.json, a folder, or the arrays of a GGUF file (opened by the caller).
 *
 * A `struct tok` is constant after loading and may be shared by threads; scratch memory and the cache of already merged pieces are kept
 * inside (one set for each thread that is inside a call at the same time). Text must be UTF-8; invalid bytes are E_INPUT with their offset,
 * never replaced.
 *
 * Facts
 * - Bytes without a token (21 of 256 in SmolLM2) are dropped silently when the model has no unk token, as the reference does; decoding then
 * does not give the text back.
 * - Digits means Unicode N* (Nd, Nl, No). In `smollm` every such character is a piece of its own, then the GPT-2 rule runs on each rest
 * alone; transformers 5.24 leaves that step out when it reads the GGUF file, and gives other ids for `x  12`.
 * - Added tokens that are not `normalized` are cut out of the raw text, the others out of the normalised text, leftmost-longest; lstrip,
 * rstrip and single_word work.
 * - A folder with vocab.json + merges.txt alone: gpt2, qwen2 and smollm2 are known by the sha256 of vocab.json. `qwen2` gets the 22 added
 * tokens of Qwen2.5 (151643..151664) unless tokenizer_config.json lists others (Qwen2 has 3, Qwen3 26); a Qwen2.5 and a Qwen3 vocab.json
 * are the same file.
 * - Unicode data are those of PCRE2 (letters, numbers, spaces) and utf8proc (NFC); the reference's crates have other versions, so ids can
 * differ for characters added in the last years (seen: letters of Unicode 15 and 16, combining marks after Unicode 12). For all others no
 * difference was found in 400,000 random texts over five tokenizers against tokenizers 0.23.3 (tests/oracle/tok_vectors.py --fuzz).
 * - Where nothing but config.json states bos and eos, its ids are taken; smollm2 and gpt2 by hash alone have <|endoftext|> for both, qwen2
 * for eos.
 * - Refused with a clear error: dropout, subword prefix or suffix, add_prefix_space, models that are not BPE, decoders other than
 * ByteLevel, unknown normalisers, pre-tokenizers and post-processors, regular expressions whose meaning differs between Oniguruma and
 * PCRE2.
 */
#ifndef MODEL_TOK_H
#define MODEL_TOK_H

#include "core/err.h"
#include "core/str.h"

struct tok;

/* Growable ids; zero-initialise, tok_ids_free at the end. */
struct tok_ids {
    int32_t *v;
    size_t n, cap;
};
void tok_ids_free(struct tok_ids *ids);
int tok_ids_add(struct tok_ids *ids, int32_t id, struct err *e);

/*
 * path: a tokenizer.json file, or a folder with tokenizer.json, or one with vocab.json and merges.txt. The folder's tokenizer_config.json
 * (also the one beside a tokenizer.json file), special_tokens_map.json, chat_template.jinja and config.json are used when they are there:
 * bos, eos, add_bos, added tokens, chat template. rule: NULL, or a family (pretok_family()) for a vocab.json that is not known; an unknown
 * one without it is E_USAGE "... --pretok NAME". Given for a tokenizer.json, which states its own rule, it must be that rule (E_USAGE).
 * Corrupt or unsupported content is E_INPUT.
 */
int tok_load(struct tok **out, const char *path, const char *rule, struct err *e);

/* A tokenizer.json of n bytes in memory, nothing beside it; name is shown in messages. */
int tok_from_json(struct tok **out, const char *name, const char *text, size_t n, struct err *e);

/* One string of n bytes, not NUL-terminated (as gguf.h gives them). */
struct tok_str {
    const char *p;
    size_t n;
};
/* Token types as GGUF numbers them (tokenizer.ggml.token_type). */
enum tok_type { TOK_NORMAL = 1, TOK_UNKNOWN = 2, TOK_CONTROL = 3, TOK_USER = 4, TOK_UNUSED = 5, TOK_BYTE = 6 };
struct tok_parts {
    const char *name;             /* shown in messages: the file */
    const struct tok_str *tokens; /* [n_tokens], id = index, in GPT-2's byte-to-character form */
    size_t n_tokens;
    const struct tok_str *merges; /* [n_merges] "a b", rank = index */
    size_t n_merges;
    const int32_t
        *types;      /* [n_tokens] enum tok_type, or NULL: all normal. CONTROL is special, USER an added token that is always cut out */
    const char *pre; /* tokenizer.ggml.pre or a family name: gpt-2, qwen2, llama-bpe, smollm, ...; unknown is E_INPUT */
    int32_t bos, eos,
        unk; /* -1 = none. unk stands for bytes without a token: -1 drops them, as byte-level models do whatever their GGUF names */
    bool add_bos, add_eos;
    const char *chat_template; /* Jinja text, or NULL */
};
/* Everything is copied. */
int tok_from_parts(struct tok **out, const struct tok_parts *p, struct err *e);
void tok_free(struct tok *t); /* NULL allowed */

/*
 * Appends the ids of text. No BOS is added (tok_prefix). parse_special: text that spells a special token becomes that token; otherwise it
 * is plain text. Added tokens that are not special are always found. On failure (E_INPUT: not UTF-8; E_ENV: memory) *ids keeps what it had.
 */
int tok_encode(const struct tok *t, const char *text, size_t n, bool parse_special, struct tok_ids *ids, struct err *e);
/* The number of ids tok_encode would append. No allocation once warm. */
int tok_count(const struct tok *t, const char *text, size_t n, bool parse_special, int64_t *count, struct err *e);
/* Appends the bytes of ids (which may end inside a character). skip_special leaves special tokens out. An id outside the vocabulary is
 * E_INPUT. */
int tok_decode(const struct tok *t, const int32_t *ids, size_t n, bool skip_special, struct str *out, struct err *e);
/* The bytes one id decodes to, borrowed; false when there is no such id. */
bool tok_bytes(const struct tok *t, int32_t id, const char **p, size_t *n);
/* The id's text as the vocabulary spells it (a leading space shows as U+0120), borrowed. */
bool tok_text(const struct tok *t, int32_t id, const char **p, size_t *n);

int32_t tok_vocab_size(const struct tok *t); /* largest id + 1, gaps and added tokens included */
int32_t tok_bos(const struct tok *t);        /* -1 = none */
int32_t tok_eos(const struct tok *t);        /* -1 = none stated */
bool tok_add_bos(const struct tok *t);       /* the tokenizer itself puts BOS before a text (Llama 3) */
/* What the tokenizer puts before and after a text when asked for special tokens (post_processor): number of ids, *ids borrowed. */
size_t tok_prefix(const struct tok *t, const int32_t **ids);
size_t tok_suffix(const struct tok *t, const int32_t **ids);
/* Id of a token by its text (added tokens first, then the vocabulary's spelling), -1 = none. */
int32_t tok_id(const struct tok *t, const char *text);
bool tok_is_special(const struct tok *t, int32_t id);
const char *tok_family(const struct tok *t);     /* split rule: gpt2, qwen2, llama-bpe, smollm, ... or "custom" */
const char *tok_normalizer(const struct tok *t); /* "none" or "nfc" */
/* Identity, 64 hex digits: tokens, merges, added tokens, split rule, normaliser, BOS rule; the same for any file form of one tokenizer. */
const char *tok_sha256(const struct tok *t);
/* sha256 of the file read: tokenizer.json, or vocab.json; "" from parts. */
const char *tok_file_sha256(const struct tok *t);
const char *tok_chat_template(const struct tok *t); /* Jinja text for chat_detect, NULL = none */

#endif
