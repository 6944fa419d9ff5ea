/* Writer of token shards. */
#include "model/data.h"

#include <string.h>

#include "core/hash.h"
#include "core/jwrite.h"

int shard_create(struct shard_out *o, const char *dir, int64_t seq, int64_t vocab, struct err *e)
{
    *o = (struct shard_out){.seq = seq, .vocab = vocab};
    if (seq < 2 || seq > SHARD_MAX_SEQ)
        return ERR(e, E_USAGE, "row length %" PRId64 " is outside 2..%d", seq, SHARD_MAX_SEQ);
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
