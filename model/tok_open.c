#include "model/tok_open.h"

#include <stdlib.h>
#include <string.h>

#include "model/tok.h"

static bool is_gguf(const char *path)
{
    size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}

/* A string key as a C string; longer ones are refused. */
static int short_string(const struct gguf *g, const char *key, char *dst, size_t cap, struct err *e)
{
    struct gguf_str s = {0};
    TRY(gguf_string_opt(g, key, &s, e));
    if (s.n >= cap || (s.n && memchr(s.p, 0, s.n)))
        return ERR(e, E_INPUT, "%s: '%s' is %zu bytes (below %zu expected)", g->path, key, s.n, cap);
    if (s.n)
        memcpy(dst, s.p, s.n);
    dst[s.n] = 0;
    return 0;
}

static int string_array(const struct gguf *g, const char *key, struct tok_str **out, size_t *n, struct err *e)
{
    const struct gguf_kv *kv = gguf_key(g, key);
    if (!kv || kv->type != GV_ARR || kv->elem != GV_STR)
        return ERR(e, E_INPUT, "%s: '%s' is %s", g->path, key, kv ? "not an array of strings" : "missing; the file has no tokenizer");
    struct tok_str *v = calloc((size_t)kv->count + 1, sizeof *v);
    if (!v)
        return err_nomem(e, (size_t)kv->count * sizeof *v, key);
    struct gguf_iter it = gguf_iter(kv);
    struct gguf_str s;
    size_t i = 0;
    for (; i < kv->count && gguf_next_str(&it, &s); i++)
        v[i] = (struct tok_str){s.p, s.n};
    *out = v;
    *n = i;
    return 0;
}

static int types_array(const struct gguf *g, size_t n, int32_t **out, struct err *e)
{
    const struct gguf_kv *kv = gguf_key(g, "tokenizer.ggml.token_type");
    if (!kv)
        return 0;
    if (kv->type != GV_ARR || kv->count != n)
        return ERR(e, E_INPUT, "%s: 'tokenizer.ggml.token_type' does not have one entry for each of %zu tokens", g->path, n);
    int32_t *v = calloc(n + 1, sizeof *v);
    if (!v)
        return err_nomem(e, n * sizeof *v, "token types");
    struct gguf_iter it = gguf_iter(kv);
    int64_t x;
    for (size_t i = 0; i < n && gguf_next_i64(&it, &x); i++)
        v[i] = x >= TOK_NORMAL && x <= TOK_BYTE ? (int32_t)x : TOK_NORMAL;
    *out = v;
    return 0;
}

static int id_key(const struct gguf *g, const char *key, size_t n, int32_t *out, struct err *e)
{
    int64_t v = -1;
    TRY(gguf_i64_opt(g, key, 0, (int64_t)n - 1, &v, e));
    *out = (int32_t)v;
    return 0;
}

static int from_parts(struct tok **out, const struct gguf *g, struct tok_parts *p, const char *pretok, struct err *e)
{
    char pre[64];
    struct gguf_str chat = {0};
    TRY(short_string(g, "tokenizer.ggml.pre", pre, sizeof pre, e));
    TRY(id_key(g, "tokenizer.ggml.bos_token_id", p->n_tokens, &p->bos, e));
    TRY(id_key(g, "tokenizer.ggml.eos_token_id", p->n_tokens, &p->eos, e));
    TRY(gguf_bool_opt(g, "tokenizer.ggml.add_bos_token", &p->add_bos, e));
    TRY(gguf_bool_opt(g, "tokenizer.ggml.add_eos_token", &p->add_eos, e));
    TRY(gguf_string_opt(g, "tokenizer.chat_template", &chat, e));
    char *text = NULL;
    if (chat.n) {
        text = malloc(chat.n + 1);
        if (!text)
            return err_nomem(e, chat.n, "the chat template");
        memcpy(text, chat.p, chat.n);
        text[chat.n] = 0;
    }
    p->chat_template = text;
    p->pre = pretok ? pretok : pre;
    int rc = tok_from_parts(out, p, e);
    free(text);
    return rc;
}

int tok_from_gguf(struct tok **out, const struct gguf *g, const char *pretok, struct err *e)
{
    char model[32];
    struct tok_str *tokens = NULL, *merges = NULL;
    int32_t *types = NULL;
    struct tok_parts p = {.name = g->path, .bos = -1, .eos = -1, .unk = -1};
    TRY(short_string(g, "tokenizer.ggml.model", model, sizeof model, e));
    if (strcmp(model, "gpt2") != 0)
        return ERR(e, E_INPUT, "%s: tokenizer.ggml.model is '%s'; byte-level BPE ('gpt2') is implemented", g->path, model);
    int rc = string_array(g, "tokenizer.ggml.tokens", &tokens, &p.n_tokens, e);
    if (rc == 0)
        rc = string_array(g, "tokenizer.ggml.merges", &merges, &p.n_merges, e);
    if (rc == 0)
        rc = types_array(g, p.n_tokens, &types, e);
    p.tokens = tokens;
    p.merges = merges;
    p.types = types;
    if (rc == 0)
        rc = from_parts(out, g, &p, pretok, e);
    free(tokens);
    free(merges);
    free(types);
    return rc;
}

int tok_open(struct tok **out, const char *path, const char *pretok, struct err *e)
{
    struct gguf g;
    if (!is_gguf(path))
        return tok_load(out, path, pretok, e);
    TRY(gguf_open(&g, path, e));
    int rc = tok_from_gguf(out, &g, pretok, e);
    gguf_close(&g);
    return rc;
}
