/* Reader of token shards. */
#include "model/data.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/jread.h"

static const int64_t MAX_ROWS = 1 << 30, MAX_VOCAB = 1 << 24;

static int read_manifest(struct shard *s, char ids_hash[65], char mask_hash[65], struct err *e)
{
    char path[1024];
    struct jdoc d;
    if (!file_exists(path_join(path, s->dir, "shard.json")))
        return ERR(e, E_INPUT, "'%s' is no token shard: there is no '%s' ('dashlab data pack' makes one)", s->dir, path);
    TRY(jdoc_load(&d, path, 1 << 20, e));
    const char *format = NULL, *tok = NULL, *ih = NULL, *mh = NULL;
    int64_t version = 0;
    int rc = jget_str(&d, d.root, "", "format", &format, e) || jget_i64(&d, d.root, "", "version", 1, 1 << 20, &version, e) ||
        jget_i64(&d, d.root, "", "rows", 1, MAX_ROWS, &s->rows, e) || jget_i64(&d, d.root, "", "seq", 1, SHARD_MAX_SEQ, &s->seq, e) ||
        jget_i64(&d, d.root, "", "vocab", 1, MAX_VOCAB, &s->vocab, e) || jget_i64(&d, d.root, "", "tokens", 0, INT64_MAX, &s->tokens, e) ||
        jget_i64(&d, d.root, "", "answer_tokens", 0, INT64_MAX, &s->answer_tokens, e) || jget_i64(&d, d.root, "", "ruler_rows", 0, MAX_ROWS,
        &s->ruler_rows, e) || jget_i64(&d, d.root, "", "text_rows", 0, MAX_ROWS, &s->text_rows, e) ||
        jget_str(&d, d.root, "", "tokenizer_sha256", &tok, e) || jget_str(&d, d.root, "", "ids_sha256", &ih, e) ||
        jget_str(&d, d.root, "", "mask_sha256", &mh, e);
    if (rc == 0 && strcmp(format, "dashlab-tokens"))
        rc = ERR(e, E_INPUT, "'%s': format is '%s', not 'dashlab-tokens'", path, format);
    if (rc == 0 && version != SHARD_VERSION)
        rc = ERR(e, E_INPUT, "'%s': version %" PRId64 " of token shards; this program reads version %d", path, version, SHARD_VERSION);
    if (rc == 0 && (strlen(tok) > 64 || strlen(ih) != 64 || strlen(mh) != 64))
        rc = ERR(e, E_INPUT, "'%s': a hash has the wrong length", path);
    if (rc == 0) {
        strcpy(s->tokenizer_sha256, tok);
        memcpy(ids_hash, ih, 65);
        memcpy(mask_hash, mh, 65);
    }
    jdoc_free(&d);
    if (rc != 0)
        return -1;
    return sha256_file(path, s->sha256, e);
}

static int check_size(const char *path, size_t have, int64_t rows, int64_t seq, size_t unit, struct err *e)
{
    size_t want = 0;
    if (!mul_size((size_t)rows, (size_t)seq, &want) || !mul_size(want, unit, &want) || want != have)
        return ERR(e, E_INPUT, "'%s': %zu bytes, but shard.json says %" PRId64 " rows of %" PRId64 " tokens (%zu bytes)", path, have, rows,
                   seq, want);
    return 0;
}

static int check_hash(const char *path, const struct file_map *m, const char *want, struct err *e)
{
    char hex[65];
    TRY(sha256_buf(m->p, m->len, hex, e));
    if (strcmp(hex, want))
        return ERR(e, E_INPUT, "'%s': sha256 is %.16s..., shard.json says %.16s...; the file was changed or damaged", path, hex, want);
    return 0;
}

static int scan_rows(struct shard *s, struct err *e)
{
    int64_t tokens = 0, answers = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        const int32_t *id = s->ids + r * s->seq;
        const uint8_t *m = s->mask + r * s->seq;
        int64_t n = 0;
        while (n < s->seq && (m[n] & TOK_PRESENT))
            n++;
        for (int64_t t = 0; t < s->seq; t++) {
            if (m[t] & ~(TOK_PRESENT | TOK_ANSWER) || (t >= n && m[t]))
                return ERR(e, E_INPUT,
                           "'%s/mask.u8': row %" PRId64 ", token %" PRId64 ": mask %u (allowed: 1 or 3, then 0 to the end of the row)",
                           s->dir, r, t, m[t]);
            if (id[t] < 0 || id[t] >= s->vocab)
                return ERR(e, E_INPUT, "'%s/ids.i32': row %" PRId64 ", token %" PRId64 ": id %d is outside the vocabulary of %" PRId64,
                           s->dir, r, t, id[t], s->vocab);
            answers += (m[t] & TOK_ANSWER) != 0;
        }
        if (n < 2)
            return ERR(e, E_INPUT, "'%s': row %" PRId64 " has %" PRId64 " tokens; a row needs at least 2", s->dir, r, n);
        s->len[r] = (int32_t)n;
        tokens += n;
    }
    if (tokens != s->tokens || answers != s->answer_tokens)
        return ERR(e, E_INPUT, "'%s': %" PRId64 " tokens and %" PRId64 " answer tokens found, shard.json says %" PRId64 " and %" PRId64,
                   s->dir, tokens, answers, s->tokens, s->answer_tokens);
    return 0;
}

int shard_open(struct shard *s, const char *dir, bool verify, struct err *e)
{
    *s = (struct shard){0};
    if (strlen(dir) >= sizeof s->dir - 16)
        return ERR(e, E_USAGE, "shard path is longer than %zu bytes", sizeof s->dir - 16);
    strcpy(s->dir, dir);
    char ih[65], mh[65], path[1024];
    TRY(read_manifest(s, ih, mh, e));
    if (map_open(&s->ids_map, path_join(path, dir, "ids.i32"), e) || check_size(path, s->ids_map.len, s->rows, s->seq, 4, e) ||
        (verify && check_hash(path, &s->ids_map, ih, e)) || map_open(&s->mask_map, path_join(path, dir, "mask.u8"), e) ||
        check_size(path, s->mask_map.len, s->rows, s->seq, 1, e) || (verify && check_hash(path, &s->mask_map, mh, e))) {
        shard_close(s);
        return -1;
    }
    s->ids = (const int32_t *)(const void *)s->ids_map.p;
    s->mask = s->mask_map.p;
    s->len = malloc((size_t)s->rows * sizeof *s->len);
    if (!s->len || scan_rows(s, e) != 0) {
        int rc = s->len ? -1 : err_nomem(e, (size_t)s->rows * sizeof *s->len, "row lengths");
        shard_close(s);
        return rc;
    }
    return 0;
}

void shard_close(struct shard *s)
{
    if (s->ids_map.p)
        map_close(&s->ids_map);
    if (s->mask_map.p)
        map_close(&s->mask_map);
    free(s->len);
    *s = (struct shard){0};
}
