/* Stage kind: FlashMorph's passkey samples as a token shard, and its command. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/passkey.h"
#include "cli/stages.h"
#include "core/log.h"
#include "core/prog.h"
#include "core/prov.h"
#include "core/rng.h"
#include "model/chat.h"
#include "model/data.h"
#include "model/tok.h"

static const struct param_spec passkey_params[] = {
    {.name = "model", .type = PT_REF, .help = "whose tokenizer and chat template"},
    {.name = "text", .type = PT_STRS, .files = true,
     .help = "text files or folders of them (.txt, .md, .jsonl, also .zst) that the passkeys are hidden in"},
    {.name = "key", .type = PT_STR, .def = "text", .help = "JSONL: the key that holds the text"},
    {.name = "lengths", .type = PT_INTS, .unit = "tokens", .def = "1024,2048,4096,8192,16384", .lo = 64, .hi = 1e7,
     .help = "of a sample with its answer, at most; samples take them in turn"},
    {.name = "samples", .type = PT_INT, .unit = "samples", .def = "5000", .lo = 1, .hi = 1e7, .help = "in all; a row each"},
    {.name = "keys", .type = PT_INT, .def = "10", .lo = 1, .hi = PASSKEY_MOST, .help = "passkeys of a sample"},
    {.name = "words", .type = PT_INT, .def = "32", .lo = 1, .hi = 1024, .help = "words of a passkey"},
    {.name = "depths", .type = PT_INT, .def = "1000", .lo = 1, .hi = 1e6, .help = "candidate places in the text"},
    {.name = "chat", .type = PT_BOOL, .def = "true", .help = "with the model's chat template, when it has one that is known"},
    {.name = "seed", .type = PT_INT, .def = "0", .lo = 0, .hi = 4294967295.0, .help = "passkeys, places, stretches of text"}};

struct maker {
    const struct tok *tok;
    enum chat_kind chat;
    struct passkey_opts o;
    struct str text;
    int64_t shorter; /* samples whose text ran out before the length was reached */
};
struct sample {
    struct tok_ids prompt, full;
    struct str said, answer, rendered;
};

static void sample_free(struct sample *s)
{
    tok_ids_free(&s->prompt);
    tok_ids_free(&s->full);
    str_free(&s->said);
    str_free(&s->answer);
    str_free(&s->rendered);
    *s = (struct sample){0};
}

static int take_text(void *ctx, const char *text, size_t n, struct err *e)
{
    struct maker *m = ctx;
    str_add(&m->text, text, n);
    str_putc(&m->text, '\n');
    return str_ok(&m->text, "text", e);
}

static int read_text(struct maker *m, const char *given, const char *key, struct err *e)
{
    char path[1024], file[1024];
    struct names names;
    if (file_exists(given) || dir_exists(given))
        snprintf(path, sizeof path, "%s", given);
    else
        TRY(cli_bundled(path, given, e));
    if (!dir_exists(path))
        return text_documents(path, key, take_text, m, e);
    TRY(dir_list(path, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (strncmp(names.v[i], "README", 6) && names.v[i][0] != '.')
            rc = text_documents(path_join(file, path, names.v[i]), key, take_text, m, e);
    names_free(&names);
    return rc;
}

/* The sample around n bytes of the text from `from` on (moved to whole characters), tokenised. */
static int make(const struct maker *m, int64_t index, size_t from, size_t n, struct sample *s, struct err *e)
{
    sample_free(s);
    size_t end = MIN(from + n, m->text.len);
    while (from < end && ((unsigned char)m->text.p[from] & 0xc0) == 0x80)
        from++;
    while (end > from && end < m->text.len && ((unsigned char)m->text.p[end] & 0xc0) == 0x80)
        end--;
    TRY(passkey_make(&m->o, index, m->text.p + from, end - from, &s->said, &s->answer, e));
    bool chat = m->chat > CHAT_UNKNOWN;
    if (chat) {
        struct chat_msg msg = {"user", str_c(&s->said)};
        TRY(chat_render(m->chat, &msg, 1, true, &s->rendered, e));
    } else
        str_puts(&s->rendered, str_c(&s->said));
    TRY(tok_encode(m->tok, s->rendered.p, s->rendered.len, chat, &s->prompt, e));
    str_puts(&s->rendered, str_c(&s->answer) + (chat ? 1 : 0)); /* a reply begins without a space */
    TRY(str_ok(&s->rendered, "a sample", e));
    TRY(tok_encode(m->tok, s->rendered.p, s->rendered.len, chat, &s->full, e));
    return tok_eos(m->tok) >= 0 ? tok_ids_add(&s->full, tok_eos(m->tok), e) : 0;
}

/* The longest text (to about 1 %) with which a sample fits `length` tokens. */
static int fit(struct maker *m, int64_t index, int64_t length, struct sample *s, struct err *e)
{
    size_t from = (size_t)ctr_below(m->o.seed, 0x66726f6d, (uint64_t)index, MAX(m->text.len, (size_t)1)), room, lo = 0, hi;
    TRY(make(m, index, from, 0, s, e));
    if ((int64_t)s->full.n > length)
        return ERR(e, E_USAGE,
                   "passkeys: %d passkeys of %d words with question and answer need %zu tokens, a sample has %" PRId64 "; fewer keys or "
                   "words, or longer samples", m->o.keys, m->o.words, s->full.n, length);
    room = (size_t)(length - (int64_t)s->full.n);
    if (m->text.len - from < room * 8) /* not enough behind it: nearer to the beginning */
        from = m->text.len > room * 8 ? from % (m->text.len - room * 8) : 0;
    for (hi = room * 2; hi < m->text.len - from; hi *= 2) {
        TRY(make(m, index, from, hi, s, e));
        if ((int64_t)s->full.n > length)
            break;
        lo = hi;
    }
    hi = MIN(hi, m->text.len - from);
    while (hi - lo > room / 32 + 1) {
        size_t mid = lo + (hi - lo) / 2;
        TRY(make(m, index, from, mid, s, e));
        if ((int64_t)s->full.n > length)
            hi = mid;
        else
            lo = mid;
    }
    TRY(make(m, index, from, lo, s, e));
    m->shorter += (int64_t)s->full.n < length * 9 / 10;
    return 0;
}

static int add_row(struct shard_out *o, const struct sample *s, bool eos, struct err *e)
{
    size_t same = 0, n = s->full.n;
    while (same < s->prompt.n && same < n && s->prompt.v[same] == s->full.v[same])
        same++;
    uint8_t *mask = malloc(n + 1);
    if (!mask)
        return err_nomem(e, n, "a mask");
    for (size_t i = 0; i < n; i++)
        mask[i] = (uint8_t)(TOK_PRESENT | (i >= same && !(eos && i + 1 == n) ? TOK_ANSWER : 0));
    int rc = shard_add(o, s->full.v, mask, (int64_t)n, true, e);
    free(mask);
    return rc;
}

static int write_shard(struct maker *m, const struct node *n, struct run *r, struct shard_out *o, struct err *e)
{
    int64_t lengths[64], seq = 0, samples = node_i64(n, "samples");
    size_t k = node_list_i64(n, "lengths", lengths, ARRAY_LEN(lengths));
    struct sample s = {0};
    struct prog bar;
    if (k == 0 || k > ARRAY_LEN(lengths))
        return ERR(e, E_USAGE, "passkeys: 1..%zu lengths, not %zu", ARRAY_LEN(lengths), k);
    for (size_t i = 0; i < k; i++)
        seq = MAX(seq, lengths[i]);
    TRY(shard_create(o, r->out, seq, tok_vocab_size(m->tok), e));
    prog_start(&bar, "passkeys", "row", samples);
    int rc = 0;
    for (int64_t i = 0; rc == 0 && i < samples; i++) {
        rc = fit(m, i, lengths[i % (int64_t)k], &s, e) || add_row(o, &s, tok_eos(m->tok) >= 0, e);
        prog_update(&bar, i + 1, NULL);
        if (rc == 0 && interrupted())
            rc = ERR(e, E_INTERRUPTED, "interrupted while making passkey samples");
    }
    prog_end(&bar);
    sample_free(&s);
    if (rc != 0) {
        shard_abort(o);
        return -1;
    }
    return shard_commit(o, tok_sha256(m->tok), e);
}

static int passkey_go(struct maker *m, const struct node *n, struct run *r, struct err *e)
{
    struct shard_out o = {0};
    struct result res;
    TRY(passkey_check(&m->o, e));
    for (const char *s = node_str(n, "text"); *s; s += strcspn(s, ","), s += *s == ',') {
        char path[1024];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(s, ","), s);
        TRY(read_text(m, path, node_str(n, "key"), e));
    }
    if (m->text.len == 0)
        return ERR(e, E_INPUT, "passkeys: the text files are empty");
    TRY(write_shard(m, n, r, &o, e));
    if (m->shorter)
        log_warn("passkeys: %" PRId64 " samples are shorter than nine tenths of their length: there is too little text", m->shorter);
    result_begin(&res);
    jw_ki64(&res.w, "rows", o.rows);
    jw_ki64(&res.w, "tokens", o.tokens);
    jw_kf64(&res.w, "answer_share", (double)o.answer_tokens / (double)MAX(o.tokens, 1));
    jw_kstr(&res.w, "chat", m->chat > CHAT_UNKNOWN ? chat_name(m->chat) : "none");
    return result_save(&res, r, e);
}

static int passkey_run(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct env *env = ctx;
    struct model *model;
    char path[1024], mp[1024];
    TRY(env_teacher(env, model_path(node_path(n, "model", path), mp), &model, e));
    if (!model->tok)
        return ERR(e, E_INPUT, "'%s' has no tokenizer", mp);
    struct maker m = {.tok = model->tok, .chat = node_bool(n, "chat") ? chat_detect(model->cfg.chat_template) : CHAT_NONE,
                      .o = {.keys = (int)node_i64(n, "keys"), .words = (int)node_i64(n, "words"), .depths = (int)node_i64(n, "depths"),
                            .seed = (uint64_t)node_i64(n, "seed")}};
    int rc = passkey_go(&m, n, r, e);
    str_free(&m.text);
    return rc;
}
const struct stage_kind kind_passkey = {.name = "passkey", .about = "FlashMorph's passkey samples as a token shard", .version = 1,
                                        .params = passkey_params, .n_params = ARRAY_LEN(passkey_params), .run = passkey_run,
                                        .host = stage_on_host};

int data_passkey(int argc, char **argv, struct err *e)
{
    return cli_stage(&kind_passkey, "data passkey",
                     "FlashMorph's retrieval data: passkeys hidden in text, all of them asked for at the end; a token shard (RUN/out), "
                     "one sample a row.", "  dashlab data passkey --model M --text corpus.jsonl.zst --samples 5000 --out shards/passkey\n"
                     "  dashlab data passkey --model experiments/tiny/teacher --text experiments/tiny/prose --lengths 512,1020 --keys 4 "
                     "--words 4 --samples 200 --out shards/passkey", argc, argv, e);
}
