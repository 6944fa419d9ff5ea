/* Token shards and text readers. */
#include "model/data.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "core/hash.h"
#include "core/jread.h"
#include "core/jwrite.h"
#include "core/rng.h"

enum { SHARD_VERSION = 1 };
static const int64_t MAX_SEQ = 1 << 22, MAX_ROWS = 1 << 30, MAX_VOCAB = 1 << 24;
static const size_t MAX_TEXT = (size_t)1 << 32;

/* ---- reading ---- */

static int read_manifest(struct shard *s, char ids_hash[65], char mask_hash[65], struct err *e)
{
    char path[1024];
    struct jdoc d;
    TRY(jdoc_load(&d, path_join(path, s->dir, "shard.json"), 1 << 20, e));
    const char *format = NULL, *tok = NULL, *ih = NULL, *mh = NULL;
    int64_t version = 0;
    int rc = jget_str(&d, d.root, "", "format", &format, e) || jget_i64(&d, d.root, "", "version", 1, 1 << 20, &version, e) ||
        jget_i64(&d, d.root, "", "rows", 1, MAX_ROWS, &s->rows, e) || jget_i64(&d, d.root, "", "seq", 1, MAX_SEQ, &s->seq, e) ||
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

/* ---- writing ---- */

int shard_create(struct shard_out *o, const char *dir, int64_t seq, int64_t vocab, struct err *e)
{
    *o = (struct shard_out){.seq = seq, .vocab = vocab};
    if (seq < 2 || seq > MAX_SEQ)
        return ERR(e, E_USAGE, "row length %" PRId64 " is outside 2..%" PRId64, seq, MAX_SEQ);
    if (strlen(dir) >= sizeof o->dir - 16)
        return ERR(e, E_USAGE, "shard path is longer than %zu bytes", sizeof o->dir - 16);
    strcpy(o->dir, dir);
    char path[1024];
    TRY(mkdir_p(dir, e));
    TRY(out_open(&o->ids, path_join(path, dir, "ids.i32"), e));
    if (out_open(&o->mask, path_join(path, dir, "mask.u8"), e) != 0) {
        out_abort(&o->ids);
        return -1;
    }
    return 0;
}

int shard_add(struct shard_out *o, const int32_t *ids, const uint8_t *mask, int64_t n, bool is_ruler, struct err *e)
{
    if (n < 2 || n > o->seq)
        return ERR(e, E_USAGE, "a row of %" PRId64 " tokens does not fit rows of %" PRId64 " (at least 2)", n, o->seq);
    static const int32_t zero_ids[256];
    static const uint8_t zero_mask[256];
    out_write(&o->ids, ids, (size_t)n * 4);
    out_write(&o->mask, mask, (size_t)n);
    for (int64_t left = o->seq - n; left > 0; left -= 256) {
        size_t k = (size_t)MIN(left, 256);
        out_write(&o->ids, zero_ids, k * 4);
        out_write(&o->mask, zero_mask, k);
    }
    for (int64_t t = 0; t < n; t++)
        o->answer_tokens += (mask[t] & TOK_ANSWER) != 0;
    o->tokens += n;
    o->rows++;
    *(is_ruler ? &o->ruler_rows : &o->text_rows) += 1;
    return 0;
}

int shard_commit(struct shard_out *o, const char *tokenizer_sha256, struct err *e)
{
    char path[1024], ih[65], mh[65];
    if (o->rows == 0) {
        shard_abort(o);
        return ERR(e, E_INPUT, "'%s': no row of %" PRId64 " tokens came out of the inputs", o->dir, o->seq);
    }
    if (out_commit(&o->ids, e) != 0) {
        out_abort(&o->mask);
        str_free(&o->sources);
        return -1;
    }
    int rc = out_commit(&o->mask, e) || sha256_file(path_join(path, o->dir, "ids.i32"), ih, e) ||
        sha256_file(path_join(path, o->dir, "mask.u8"), mh, e);
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "format", "dashlab-tokens");
    jw_ki64(&w, "version", SHARD_VERSION);
    jw_ki64(&w, "rows", o->rows);
    jw_ki64(&w, "seq", o->seq);
    jw_ki64(&w, "vocab", o->vocab);
    jw_ki64(&w, "tokens", o->tokens);
    jw_ki64(&w, "answer_tokens", o->answer_tokens);
    jw_kf64(&w, "answer_share", (double)o->answer_tokens / (double)MAX(o->tokens, 1));
    jw_ki64(&w, "ruler_rows", o->ruler_rows);
    jw_ki64(&w, "text_rows", o->text_rows);
    jw_kstr(&w, "tokenizer_sha256", tokenizer_sha256 ? tokenizer_sha256 : "");
    if (rc == 0) {
        jw_kstr(&w, "ids_sha256", ih);
        jw_kstr(&w, "mask_sha256", mh);
    }
    jw_end_obj(&w);
    str_putc(&s, '\n');
    if (rc == 0)
        rc = jw_ok(&w, "shard.json", e) || file_write(path_join(path, o->dir, "shard.json"), str_c(&s), s.len, e);
    str_free(&s);
    str_free(&o->sources);
    return rc ? -1 : 0;
}

void shard_abort(struct shard_out *o)
{
    out_abort(&o->ids);
    out_abort(&o->mask);
    str_free(&o->sources);
}

/* ---- order ---- */

int order_init(struct row_order *o, uint64_t seed, int64_t lo, int64_t hi, struct err *e)
{
    *o = (struct row_order){.seed = seed, .lo = lo, .hi = hi, .epoch = -1};
    if (lo < 0 || hi <= lo)
        return ERR(e, E_USAGE, "row range %" PRId64 "..%" PRId64 " is empty", lo, hi);
    o->perm = malloc((size_t)(hi - lo) * sizeof *o->perm);
    return o->perm ? 0 : err_nomem(e, (size_t)(hi - lo) * sizeof *o->perm, "data order");
}

int64_t order_row(struct row_order *o, int64_t sample)
{
    int64_t n = o->hi - o->lo, epoch = sample / n;
    if (epoch != o->epoch) {
        ctr_permutation(o->seed, 0x6461746100000000ull + (uint64_t)epoch, o->perm, (size_t)n);
        o->epoch = epoch;
    }
    return o->lo + o->perm[sample % n];
}

void order_free(struct row_order *o)
{
    free(o->perm);
    *o = (struct row_order){0};
}

/* ---- text ---- */

static int unzstd(const char *path, const struct file_map *m, struct str *out, struct err *e)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    if (!z)
        return err_nomem(e, 0, "zstd stream");
    ZSTD_inBuffer in = {m->p, m->len, 0};
    char buf[1 << 16];
    size_t left = 1;
    int rc = 0;
    while (rc == 0 && (in.pos < in.size || left != 0)) {
        ZSTD_outBuffer ob = {buf, sizeof buf, 0};
        size_t in_before = in.pos;
        left = ZSTD_decompressStream(z, &ob, &in);
        if (ZSTD_isError(left))
            rc = ERR(e, E_INPUT, "'%s': byte %zu: not a zstd stream: %s", path, in.pos, ZSTD_getErrorName(left));
        else if (ob.pos == 0 && in.pos == in_before)
            rc = ERR(e, E_INPUT, "'%s': the zstd stream ends early at byte %zu", path, in.pos);
        else if (out->len + ob.pos > MAX_TEXT)
            rc = ERR(e, E_INPUT, "'%s': unpacks to more than %zu bytes", path, MAX_TEXT);
        else
            str_add(out, buf, ob.pos);
        if (in.pos == in.size && left == 0)
            break;
    }
    ZSTD_freeDStream(z);
    return rc != 0 ? -1 : str_ok(out, "unpacked text", e);
}

static int jsonl_documents(const char *path, const char *key, const char *p, size_t n, int (*doc)(void *, const char *, size_t,
                               struct err *), void *ctx, struct err *e)
{
    int64_t line = 0;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(p + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - (p + at)) : n - at;
        line++;
        if (len > 0) {
            char name[512];
            snprintf(name, sizeof name, "%.400s (line %" PRId64 ")", path, line);
            struct jdoc d;
            TRY(jdoc_parse(&d, name, p + at, len, e));
            const char *text = NULL;
            int rc = jget_str(&d, d.root, "", key, &text, e);
            if (rc == 0)
                rc = doc(ctx, text, strlen(text), e);
            jdoc_free(&d);
            TRY(rc);
        }
        at += len + 1;
    }
    return 0;
}

int text_documents(const char *path, const char *key, int (*doc)(void *, const char *, size_t, struct err *), void *ctx, struct err *e)
{
    struct file_map m = {0};
    struct str s = STR_INIT;
    TRY(map_open(&m, path, e));
    size_t pl = strlen(path);
    bool zst = pl > 4 && !strcmp(path + pl - 4, ".zst");
    char stem[1024];
    snprintf(stem, sizeof stem, "%.*s", (int)(zst ? pl - 4 : pl), path);
    const char *p = (const char *)m.p;
    size_t n = m.len;
    int rc = 0;
    if (zst) {
        rc = unzstd(path, &m, &s, e);
        p = str_c(&s);
        n = s.len;
    }
    size_t sl = strlen(stem);
    if (rc == 0 && sl > 6 && !strcmp(stem + sl - 6, ".jsonl"))
        rc = jsonl_documents(path, key ? key : "text", p, n, doc, ctx, e);
    else if (rc == 0 && ((sl > 4 && !strcmp(stem + sl - 4, ".txt")) || (sl > 3 && !strcmp(stem + sl - 3, ".md"))))
        rc = doc(ctx, p, n, e);
    else if (rc == 0)
        rc = ERR(e, E_USAGE, "'%s': unknown text format; allowed are .txt, .md, .jsonl, each also with .zst", path);
    str_free(&s);
    map_close(&m);
    return rc;
}
