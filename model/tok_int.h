/* Inside of struct tok, for tok*.c only. Builders (tok_json.c, tok_dir.c, tok_from_parts) call tokb_* in the order in which they stand
 * here. */
#ifndef MODEL_TOK_INT_H
#define MODEL_TOK_INT_H

#include <pthread.h>

#include "core/hash.h"
#include "core/jread.h"
#include "model/pretok.h"
#include "model/tok.h"

enum { TOK_MAX_IDS = 1 << 21, TOK_MAX_FIX = 8 };
enum { TF_SPECIAL = 1, TF_ADDED = 2, TF_VOCAB = 4 }; /* VOCAB: belongs to the BPE model, so merges may use it */

struct tok_span {
    uint32_t off, len; /* off UINT32_MAX: no such id */
};
struct tok_merge {
    uint64_t key; /* left id << 32 | right id; UINT64_MAX: empty slot */
    uint32_t rank;
    int32_t id;
};
struct tok_added {
    struct tok_span text; /* in tok.texts */
    const char *p;        /* the same, once the sets are made */
    int32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
};
/* Added tokens sorted by bytes, for leftmost-longest search. */
struct tok_set {
    struct tok_added *v;
    size_t n;
    uint32_t first[257]; /* v[first[c]..first[c + 1]) start with byte c */
};

struct tok_work;
struct tok {
    char name[256];
    struct str texts; /* spellings */
    char *raw;        /* the bytes they decode to */
    struct tok_span *text, *bytes;
    uint8_t *flags;
    int32_t n_ids, cap_ids, n_tokens;
    uint32_t *vslot; /* hash of spellings: id + 1, and bits of the hash above it */
    uint32_t vmask;
    struct tok_merge *mslot;
    uint32_t mmask;
    struct tok_pair {
        int32_t a, b;
    } * pairs;       /* the merges by rank, while building; NULL then */
    int32_t *merged; /* the ids they give */
    size_t n_merges, cap_merges;
    int32_t byte_id[256];     /* -1: no token */
    int32_t fallback[256][2]; /* tokens <0xXX> for a byte without token; [0] -1: none */
    int32_t unk, bos, eos;
    bool fuse_unk, byte_fallback, ignore_merges, nfc;
    struct tok_set raw_set, norm_set;
    struct tok_added *added;
    size_t n_added, cap_added;
    int32_t prefix[TOK_MAX_FIX], suffix[TOK_MAX_FIX];
    size_t n_prefix, n_suffix;
    struct pretok *split;
    char sha[65], file_sha[65];
    char *chat_template;
    pthread_mutex_t lock;
    struct tok_work *idle; /* scratch sets nobody uses now */
};

/* GPT-2's byte-to-character table. */
uint32_t tok_byte_char(uint8_t b);
/* Byte of a code point, or -1. */
int tok_char_byte(uint32_t cp);
uint64_t tok_hash(const char *p, size_t n);
/* Id of a spelling; only flags of which one is in `any` count (0: every id). -1 = none. */
int32_t tok_find(const struct tok *t, const char *p, size_t n, int any);
const struct tok_merge *tok_merge_find(const struct tok *t, int32_t a, int32_t b);

int tokb_new(struct tok **out, const char *name, struct err *e);
/* Room for the vocabulary; n_hint tokens expected. */
int tokb_reserve(struct tok *t, size_t n_hint, struct err *e);
/* A token of the model. Twice the same id or the same text is E_INPUT. */
int tokb_token(struct tok *t, int64_t id, const char *p, size_t n, struct err *e);
int tokb_put(struct tok *t, int64_t id, const char *p, size_t n, int flags, struct err *e); /* with its TF_ flags */
/* After all tokens: room for n merges; then these, by rank. */
int tokb_merges(struct tok *t, size_t n, struct err *e);
int tokb_merge(struct tok *t, const char *a, size_t na, const char *b, size_t nb, struct err *e);
/* "a b"; exactly one space. */
int tokb_merge_line(struct tok *t, const char *p, size_t n, struct err *e);
/* Said some merges before: fetches what that line will look for. */
void tokb_merge_line_soon(const struct tok *t, const char *p, size_t n);
/* In the vocabulary under the same id, or new. */
int tokb_added(struct tok *t, int64_t id, const char *p, size_t n, const struct tok_added *flags, struct err *e);
/* split, nfc, unk and the rest are set by then. Makes the tables for encoding, the decoded bytes and the identity. */
int tokb_finish(struct tok *t, struct err *e);

/* vocab.json, n bytes of text, straight into the tables: {"token": id, ..} and nothing else. name is shown with line and column. */
int tok_vocab_text(struct tok *t, const char *name, const char *text, size_t n, struct err *e);
/* A whole tokenizer.json, up to tokb_finish. */
int tok_json_load(struct tok *t, const struct jdoc *d, struct err *e);
/* {"content", "special", "lstrip", "rstrip", "single_word", "normalized"} */
int tok_json_added(struct tok *t, const struct jdoc *d, const json_t *o, const char *where, int64_t id, struct err *e);
/* One set of scratch memory and of cached pieces, for many counts in a row; goes back with the calls' result (0, or it is dropped). */
int tok_work_take(const struct tok *t, struct tok_work **out, struct err *e);
void tok_work_give(struct tok_work *w, int rc);
int tok_work_count(struct tok_work *w, const char *text, size_t n, bool parse_special, int64_t *count, struct err *e);
void **tok_work_parts(struct tok_work *w); /* memory of tok_counter.c that stays with the set; freed with it */
/* A list. */
void tok_works_free(struct tok_work *w);

#endif
