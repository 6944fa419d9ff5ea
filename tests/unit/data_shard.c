/* Token shards: round trip, damaged files, the data order, text readers. */
#include <unistd.h>
#include <zstd.h>

#include "model/data.h"
#include "tests/test.h"

enum { SEQ = 6, VOCAB = 50 };
static const int32_t row0[] = {1, 2, 3, 4, 5, 6}, row1[] = {7, 8}, row2[] = {49, 0, 10};
static const uint8_t mask0[] = {1, 1, 1, 1, 3, 3}, mask1[] = {1, 1}, mask2[] = {1, 3, 1};
static const char tok_hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static void make(const char *dir)
{
    struct shard_out o;
    CHECK_OK(shard_create(&o, dir, SEQ, VOCAB, e));
    CHECK_OK(shard_add(&o, row0, mask0, 6, true, e));
    CHECK_OK(shard_add(&o, row1, mask1, 2, false, e));
    CHECK_OK(shard_add(&o, row2, mask2, 3, true, e));
    CHECK_OK(shard_commit(&o, tok_hash, e));
}

static void test_round_trip(const char *dir)
{
    struct shard s;
    make(dir);
    CHECK_OK(shard_open(&s, dir, true, e));
    CHECK(s.rows == 3 && s.seq == SEQ && s.vocab == VOCAB && s.tokens == 11 && s.answer_tokens == 3 && s.ruler_rows == 2 &&
          s.text_rows == 1);
    CHECK_STR(s.tokenizer_sha256, tok_hash);
    CHECK_EQ_I(strlen(s.sha256), 64);
    CHECK(s.len[0] == 6 && s.len[1] == 2 && s.len[2] == 3);
    CHECK(!memcmp(s.ids, row0, sizeof row0) && !memcmp(s.ids + SEQ, row1, sizeof row1) && !memcmp(s.ids + 2 * SEQ, row2, sizeof row2));
    CHECK(!memcmp(s.mask, mask0, sizeof mask0) && !memcmp(s.mask + 2 * SEQ, mask2, sizeof mask2));
    for (int t = 2; t < SEQ; t++)
        CHECK(s.ids[SEQ + t] == 0 && s.mask[SEQ + t] == 0);
    shard_close(&s);
}

/* Overwrites one byte range of a file, or cuts it. */
static void damage(const char *dir, const char *name, size_t at, const void *bytes, size_t n, size_t keep)
{
    char path[1024];
    struct str s = STR_INIT;
    CHECK_OK(file_read(path_join(path, dir, name), 0, &s, e));
    CHECK(at + n <= s.len);
    if (at + n <= s.len && n)
        memcpy(s.p + at, bytes, n);
    CHECK_OK(file_write(path, s.p, keep ? keep : s.len, e));
    str_free(&s);
}

/* Replaces one piece of shard.json. */
static void edit(const char *dir, const char *from, const char *to)
{
    char path[1024];
    struct str s = STR_INIT, out = STR_INIT;
    CHECK_OK(file_read(path_join(path, dir, "shard.json"), 0, &s, e));
    char *at = strstr(s.p, from);
    CHECK(at != NULL);
    if (at) {
        str_add(&out, s.p, (size_t)(at - s.p));
        str_puts(&out, to);
        str_puts(&out, at + strlen(from));
        CHECK_OK(file_write(path, str_c(&out), out.len, e));
    }
    str_free(&s);
    str_free(&out);
}

static void refused(const char *dir, bool verify, const char *text)
{
    struct shard s;
    CHECK_ERR(shard_open(&s, dir, verify, e), E_INPUT, text);
    make(dir);
}

static void test_damage(const char *dir)
{
    int32_t big = VOCAB, negative = -1, other = 9;
    uint8_t odd = 4, hole = 0, answer_only = 2, late = 1;
    struct shard s;
    char path[1024];
    damage(dir, "ids.i32", 8, &big, 4, 0);
    refused(dir, false, "row 0, token 2: id 50 is outside the vocabulary of 50");
    damage(dir, "ids.i32", 4 * SEQ, &negative, 4, 0);
    refused(dir, false, "row 1, token 0: id -1");
    damage(dir, "ids.i32", 8, &other, 4, 0); /* a legal id: only the hash sees it */
    CHECK_OK(shard_open(&s, dir, false, e));
    shard_close(&s);
    refused(dir, true, "ids.i32': sha256 is");
    damage(dir, "mask.u8", 4, &late, 1, 0);
    refused(dir, true, "mask.u8': sha256 is");
    damage(dir, "ids.i32", 0, NULL, 0, 4 * 3 * SEQ - 1);
    refused(dir, false, "71 bytes, but shard.json says 3 rows of 6 tokens (72 bytes)");
    damage(dir, "mask.u8", 0, NULL, 0, 1);
    refused(dir, false, "mask.u8': 1 bytes");
    damage(dir, "mask.u8", 1, &odd, 1, 0);
    refused(dir, false, "row 0, token 1: mask 4");
    damage(dir, "mask.u8", 1, &hole, 1, 0); /* padding in the middle */
    refused(dir, false, "row 0, token 2: mask 1");
    damage(dir, "mask.u8", 5, &answer_only, 1, 0);
    refused(dir, false, "row 0, token 5: mask 2");
    damage(dir, "mask.u8", SEQ + 1, &hole, 1, 0);
    refused(dir, false, "row 1 has 1 tokens; a row needs at least 2");
    damage(dir, "mask.u8", 4, &late, 1, 0);
    refused(dir, false, "11 tokens and 2 answer tokens found, shard.json says 11 and 3");
    edit(dir, "\"rows\": 3", "\"rows\": 4");
    refused(dir, false, "shard.json says 4 rows");
    edit(dir, "\"rows\": 3", "\"rows\": 1073741824");
    refused(dir, false, "ids.i32");
    edit(dir, "\"rows\": 3", "\"rows\": -3");
    refused(dir, false, "rows");
    edit(dir, "dashlab-tokens", "tokens");
    refused(dir, false, "format is 'tokens'");
    edit(dir, "\"version\": 1", "\"version\": 2");
    refused(dir, false, "version 2 of token shards");
    edit(dir, tok_hash, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef00");
    refused(dir, false, "a hash has the wrong length");
    CHECK(remove(path_join(path, dir, "mask.u8")) == 0);
    refused(dir, false, "mask.u8");
    CHECK(remove(path_join(path, dir, "shard.json")) == 0);
    refused(dir, false, "shard.json");
}

static void test_writer(const char *dir)
{
    struct shard_out o;
    char path[1024], name[1100], sub[1024];
    path_join(sub, dir, "w");
    CHECK_ERR(shard_create(&o, sub, 1, VOCAB, e), E_USAGE, "row length 1 is outside");
    CHECK_OK(shard_create(&o, sub, SEQ, VOCAB, e));
    CHECK_ERR(shard_add(&o, row0, mask0, 1, false, e), E_USAGE, "a row of 1 tokens");
    CHECK_ERR(shard_add(&o, row0, mask0, SEQ + 1, false, e), E_USAGE, "a row of 7 tokens");
    CHECK_ERR(shard_commit(&o, "", e), E_INPUT, "no row of 6 tokens");
    CHECK(!file_exists(path_join(path, sub, "shard.json")) && !file_exists(path_join(path, sub, "ids.i32")));
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = 0;
    CHECK_ERR(shard_create(&o, name, SEQ, VOCAB, e), E_USAGE, "longer than");
    struct shard s;
    CHECK_ERR(shard_open(&s, name, false, e), E_USAGE, "longer than");
}

static void test_order(void)
{
    enum { LO = 3, HI = 40, N = HI - LO };
    struct row_order a, b, other;
    int64_t first[2 * N], seen[HI] = {0};
    bool epochs_differ = false, seeds_differ = false;
    CHECK_OK(order_init(&a, 7, LO, HI, e));
    CHECK_OK(order_init(&b, 7, LO, HI, e));
    CHECK_OK(order_init(&other, 8, LO, HI, e));
    for (int i = 0; i < 2 * N; i++) {
        first[i] = order_row(&a, i);
        CHECK(first[i] >= LO && first[i] < HI);
        seen[first[i]]++;
        if (i >= N)
            epochs_differ = epochs_differ || first[i] != first[i - N];
        seeds_differ = seeds_differ || order_row(&other, i) != first[i];
    }
    for (int r = LO; r < HI; r++)
        CHECK_EQ_I(seen[r], 2); /* each row once an epoch: both epochs are permutations of the range */
    for (int i = 0; i < N; i++)
        seen[first[i]]--;
    for (int r = LO; r < HI; r++)
        CHECK_EQ_I(seen[r], 1);
    CHECK(epochs_differ && seeds_differ);
    for (int i = 2 * N - 1; i >= 0; i -= 5) /* a function of (seed, sample), not of what was asked before */
        CHECK_EQ_I(order_row(&b, i), first[i]);
    order_free(&a);
    order_free(&b);
    order_free(&other);
    CHECK_ERR(order_init(&a, 7, 5, 5, e), E_USAGE, "row range 5..5 is empty");
    CHECK_ERR(order_init(&a, 7, -1, 5, e), E_USAGE, "row range");
}

static int take(void *ctx, const char *text, size_t n, struct err *e)
{
    UNUSED(e);
    str_printf(ctx, "[%.*s]", (int)n, text);
    return 0;
}

static void text_is(const char *dir, const char *name, const char *key, const void *bytes, size_t n, const char *want)
{
    char path[1024];
    struct str got = STR_INIT;
    CHECK_OK(file_write(path_join(path, dir, name), bytes, n, e));
    CHECK_OK(text_documents(path, key, take, &got, e));
    CHECK_STR(str_c(&got), want);
    str_free(&got);
}

static void text_fails(const char *dir, const char *name, const void *bytes, size_t n, enum err_code code, const char *text)
{
    char path[1024];
    struct str got = STR_INIT;
    CHECK_OK(file_write(path_join(path, dir, name), bytes, n, e));
    CHECK_ERR(text_documents(path, NULL, take, &got, e), code, text);
    str_free(&got);
}

static void test_text(const char *dir)
{
    static const char lines[] = "{\"text\": \"a\\nb\"}\n\n{\"text\": \"c\", \"x\": 1}", plain[] = "one\ntwo\n";
    char z[256];
    size_t n = ZSTD_compress(z, sizeof z, lines, sizeof lines - 1, 3);
    CHECK(!ZSTD_isError(n));
    text_is(dir, "a.txt", NULL, plain, sizeof plain - 1, "[one\ntwo\n]");
    text_is(dir, "a.md", NULL, plain, sizeof plain - 1, "[one\ntwo\n]");
    text_is(dir, "a.jsonl", NULL, lines, sizeof lines - 1, "[a\nb][c]");
    text_is(dir, "b.jsonl", "body", "{\"body\": \"q\"}\n", 14, "[q]");
    text_is(dir, "a.jsonl.zst", NULL, z, n, "[a\nb][c]");
    text_fails(dir, "c.jsonl", lines, 20, E_INPUT, "line 3");
    text_fails(dir, "d.jsonl", "{\"body\": \"q\"}\n", 14, E_INPUT, "text");
    text_fails(dir, "cut.jsonl.zst", z, n - 3, E_INPUT, "ends early");
    text_fails(dir, "no.txt.zst", plain, sizeof plain - 1, E_INPUT, "not a zstd stream");
    text_fails(dir, "none.txt.zst", "", 0, E_INPUT, "ends early");
    text_fails(dir, "a.pdf", plain, 4, E_USAGE, "unknown text format");
}

int main(void)
{
    char dir[] = "/tmp/dashlab-shard-XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    test_round_trip(dir);
    test_damage(dir);
    test_writer(dir);
    test_order();
    test_text(dir);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
