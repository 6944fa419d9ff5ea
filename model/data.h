/*
 * Token shards: training rows of fixed length on disk, and the order in which training reads them.
 *
 * A shard is a folder: `ids.i32` [rows, seq] little-endian int32, `mask.u8` [rows, seq], `shard.json` (format, version, rows, seq,
 * vocabulary, tokenizer hash, counts, sha256 of both files, sources), which is written last. Mask bits: 1 = a token (0 = padding, at the
 * end of a row only), 2 = a token of an answer. Padding never reaches a kernel: a row is used at its own length.
 *
 * Order: row of sample i = permutation of epoch i / n by (seed, epoch) at i % n, over the row range in use. So data order is a function
 * of (seed, global sample index).
 */
#ifndef MODEL_DATA_H
#define MODEL_DATA_H

#include "core/fs.h"

enum { TOK_PRESENT = 1, TOK_ANSWER = 2 };
enum { SHARD_VERSION = 1, SHARD_MAX_SEQ = 1 << 22 };

struct shard {
    char dir[1024], tokenizer_sha256[65], sha256[65]; /* sha256 of shard.json: the identity of the shard */
    int64_t rows, seq, vocab, tokens, answer_tokens, ruler_rows, text_rows;
    const int32_t *ids; /* [rows, seq] */
    const uint8_t *mask;
    int32_t *len; /* [rows] tokens of each row */
    struct file_map ids_map, mask_map;
};
/* Checks sizes, ids against vocab, padding at the end only; hashes when verify. E_INPUT otherwise. */
int shard_open(struct shard *s, const char *dir, bool verify, struct err *e);
void shard_close(struct shard *s);

/* Writer. Rows are appended; commit writes the manifest last. */
struct shard_out {
    struct file_out ids, mask;
    char dir[1024];
    int64_t rows, seq, vocab, tokens, answer_tokens, ruler_rows, text_rows;
    struct str sources; /* JSON fragments, comma-separated */
};
int shard_create(struct shard_out *o, const char *dir, int64_t seq, int64_t vocab, struct err *e);
/* n <= seq tokens with their mask bits; the rest is padding. is_ruler counts it among ruler_rows. */
int shard_add(struct shard_out *o, const int32_t *ids, const uint8_t *mask, int64_t n, bool is_ruler, struct err *e);
int shard_commit(struct shard_out *o, const char *tokenizer_sha256, struct err *e);
void shard_abort(struct shard_out *o);

/* The order over rows lo..hi-1 of a shard. Not thread-safe (caches one epoch's permutation). */
struct row_order {
    uint64_t seed;
    int64_t lo, hi, epoch;
    int64_t *perm;
};
int order_init(struct row_order *o, uint64_t seed, int64_t lo, int64_t hi, struct err *e);
int64_t order_row(struct row_order *o, int64_t sample);
void order_free(struct row_order *o);

/* Text for packing: .txt, .md as they are; .zst of either or of .jsonl; .jsonl: the string under `key` of each line, one document each.
 * Calls doc(ctx, text, n) per document. */
int text_documents(const char *path, const char *key, int (*doc)(void *ctx, const char *text, size_t n, struct err *e), void *ctx,
                   struct err *e);

#endif
