/* The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jwrite.h"
#include "model/pretok.h"
#include "model/tok.h"
#include "model/tok_open.h"

static void kempty(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}

static void byte_level(struct jw *w, bool regex)
{
    jw_obj(w);
    jw_kstr(w, "type", "ByteLevel");
    jw_kbool(w, "add_prefix_space", false);
    jw_kbool(w, "trim_offsets", true);
    jw_kbool(w, "use_regex", regex);
    jw_end_obj(w);
}

/* One line of pretok_text. */
static int write_step(struct jw *w, const char *line, size_t n, struct err *e)
{
    jw_obj(w);
    if (n > 6 && !strncmp(line, "digits", 6)) {
        jw_kstr(w, "type", "Digits");
        jw_kbool(w, "individual_digits", n == 11 && !strncmp(line, "digits each", 11));
    } else {
        bool isolated = n > 6 && !strncmp(line, "split ", 6);
        size_t skip = isolated ? 6 : 8;
        if (!isolated && (n < 9 || strncmp(line, "matches ", 8)))
            return ERR(e, E_CHECK, "split rule '%.*s' has no form in tokenizer.json", (int)n, line);
        jw_kstr(w, "type", "Split");
        jw_key(w, "pattern");
        jw_obj(w);
        jw_key(w, "Regex");
        jw_strn(w, line + skip, n - skip);
        jw_end_obj(w);
        jw_kstr(w, "behavior", isolated ? "Isolated" : "Removed");
        jw_kbool(w, "invert", !isolated);
    }
    jw_end_obj(w);
    return 0;
}

static int write_pretok(struct jw *w, const struct tok *t, struct err *e)
{
    struct pretok *p;
    TRY(pretok_named(&p, tok_family(t), e));
    jw_key(w, "pre_tokenizer");
    jw_obj(w);
    jw_kstr(w, "type", "Sequence");
    jw_key(w, "pretokenizers");
    jw_arr(w);
    int rc = 0;
    for (const char *line = pretok_text(p); *line && rc == 0;) {
        const char *end = strchr(line, '\n');
        size_t n = end ? (size_t)(end - line) : strlen(line);
        rc = write_step(w, line, n, e);
        line += n + (end != NULL);
    }
    byte_level(w, false);
    jw_end_arr(w);
    jw_end_obj(w);
    pretok_free(p);
    return rc;
}

/* The tokenizer puts BOS first. */
static void write_post(struct jw *w, const struct tok *t)
{
    const int32_t *fix;
    const char *text;
    size_t len;
    jw_key(w, "post_processor");
    if (!tok_prefix(t, &fix) || !tok_text(t, fix[0], &text, &len)) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    jw_kstr(w, "type", "TemplateProcessing");
    for (int pair = 0; pair < 2; pair++) {
        jw_key(w, pair ? "pair" : "single");
        jw_arr(w);
        for (int part = 0; part <= pair; part++)
            for (int seq = 0; seq < 2; seq++) {
                jw_obj(w);
                jw_key(w, seq ? "Sequence" : "SpecialToken");
                jw_obj(w);
                jw_key(w, "id");
                if (seq)
                    jw_str(w, part ? "B" : "A");
                else
                    jw_strn(w, text, len);
                jw_ki64(w, "type_id", part);
                jw_end_obj(w);
                jw_end_obj(w);
            }
        jw_end_arr(w);
    }
    char *name = strndup(text, len);
    jw_key(w, "special_tokens");
    jw_obj(w);
    jw_key(w, name ? name : "");
    jw_obj(w);
    jw_kstr(w, "id", name ? name : "");
    jw_key(w, "ids");
    jw_arr(w);
    jw_i64(w, fix[0]);
    jw_end_arr(w);
    jw_key(w, "tokens");
    jw_arr(w);
    jw_str(w, name ? name : "");
    jw_end_arr(w);
    jw_end_obj(w);
    jw_end_obj(w);
    jw_end_obj(w);
    free(name);
}

static int64_t type_at(struct gguf_iter *types)
{
    int64_t v = TOK_NORMAL;
    if (types->kv)
        gguf_next_i64(types, &v);
    return v;
}

static void write_added(struct jw *w, const struct gguf *g)
{
    const struct gguf_kv *tk = gguf_key(g, "tokenizer.ggml.tokens"), *ty = gguf_key(g, "tokenizer.ggml.token_type");
    struct gguf_iter it = gguf_iter(tk), types = ty ? gguf_iter(ty) : (struct gguf_iter){0};
    struct gguf_str s;
    jw_key(w, "added_tokens");
    jw_arr(w);
    for (int64_t id = 0; gguf_next_str(&it, &s); id++) {
        int64_t type = type_at(&types);
        if (type != TOK_CONTROL && type != TOK_USER)
            continue;
        jw_obj(w);
        jw_ki64(w, "id", id);
        jw_key(w, "content");
        jw_strn(w, s.p, s.n);
        jw_kbool(w, "single_word", false);
        jw_kbool(w, "lstrip", false);
        jw_kbool(w, "rstrip", false);
        jw_kbool(w, "normalized", false);
        jw_kbool(w, "special", type == TOK_CONTROL);
        jw_end_obj(w);
    }
    jw_end_arr(w);
}

static int write_model(struct jw *w, const struct gguf *g, const struct tok *t, struct err *e)
{
    struct gguf_iter it = gguf_iter(gguf_key(g, "tokenizer.ggml.tokens"));
    struct gguf_str s;
    const struct pretok_family *f = pretok_family(tok_family(t));
    jw_key(w, "model");
    jw_obj(w);
    jw_kstr(w, "type", "BPE");
    kempty(w, "dropout");
    kempty(w, "unk_token");
    kempty(w, "continuing_subword_prefix");
    kempty(w, "end_of_word_suffix");
    jw_kbool(w, "fuse_unk", false);
    jw_kbool(w, "byte_fallback", false);
    jw_kbool(w, "ignore_merges", f && f->ignore_merges);
    jw_key(w, "vocab");
    jw_obj(w);
    for (int64_t id = 0; gguf_next_str(&it, &s); id++) {
        char *key = strndup(s.p, s.n);
        if (!key)
            return err_nomem(e, s.n, "the vocabulary");
        jw_ki64(w, key, id);
        free(key);
    }
    jw_end_obj(w);
    jw_key(w, "merges");
    jw_arr(w);
    it = gguf_iter(gguf_key(g, "tokenizer.ggml.merges"));
    while (gguf_next_str(&it, &s))
        jw_strn(w, s.p, s.n);
    jw_end_arr(w);
    jw_end_obj(w);
    return 0;
}

static int write_tokenizer(const struct gguf *g, const struct tok *t, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "version", "1.0");
    kempty(&w, "truncation");
    kempty(&w, "padding");
    write_added(&w, g);
    jw_key(&w, "normalizer");
    if (!strcmp(tok_normalizer(t), "nfc")) {
        jw_obj(&w);
        jw_kstr(&w, "type", "NFC");
        jw_end_obj(&w);
    } else
        jw_null(&w);
    int rc = write_pretok(&w, t, e);
    write_post(&w, t);
    jw_key(&w, "decoder");
    byte_level(&w, true);
    if (rc == 0)
        rc = write_model(&w, g, t, e);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    if (rc == 0)
        rc = jw_ok(&w, "tokenizer.json", e) || file_write(path, str_c(&s), s.len, e) ? -1 : 0;
    str_free(&s);
    return rc;
}

static void special_name(struct jw *w, const char *key, const struct tok *t, int32_t id)
{
    const char *p;
    size_t n;
    jw_key(w, key);
    if (id >= 0 && tok_text(t, id, &p, &n))
        jw_strn(w, p, n);
    else
        jw_null(w);
}

static int write_tok_config(const struct tok *t, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_kstr(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    special_name(&w, "bos_token", t, tok_bos(t));
    special_name(&w, "eos_token", t, tok_eos(t));
    if (tok_chat_template(t))
        jw_kstr(&w, "chat_template", tok_chat_template(t));
    jw_end_obj(&w);
    str_putc(&s, '\n');
    int rc = jw_ok(&w, "tokenizer_config.json", e) || file_write(path, str_c(&s), s.len, e) ? -1 : 0;
    str_free(&s);
    return rc;
}

int tok_export_gguf(const struct gguf *g, const char *pretok, const char *dir, struct err *e)
{
    struct tok *t, *back = NULL;
    char path[1024];
    TRY(tok_from_gguf(&t, g, pretok, e));
    int rc = write_tokenizer(g, t, path_join(path, dir, "tokenizer.json"), e);
    if (rc == 0)
        rc = write_tok_config(t, path_join(path, dir, "tokenizer_config.json"), e);
    if (rc == 0)
        rc = tok_load(&back, dir, NULL, e);
    if (rc == 0 && strcmp(tok_sha256(t), tok_sha256(back)) != 0)
        rc = ERR(e, E_CHECK, "%s: tokenizer.json written from '%s' is not the same tokenizer (identity %s, expected %s)", dir, g->path,
                 tok_sha256(back), tok_sha256(t));
    tok_free(back);
    tok_free(t);
    return rc;
}
