/*
 * Requests as ids [lmeval.md 2.1, 2.3]. Encoding whole texts would tokenise the examples of a subject again for each of its documents, so
 * texts are cut where every known split rule cuts too, whatever stands on either side: between an ASCII letter and a space or line end
 * after it. (A run of letters ends there in each rule; no rule looks back; nothing composes with a space under NFC.) The part that a
 * context shares with the one before it, and the part that the continuations of one context share, are then encoded once. Tokenizers with
 * an own split rule get whole texts, and the first document of a set is encoded both ways and compared.
 */
#include <stdlib.h>
#include <string.h>

#include "lmeval/lmeval.h"

struct lme_encoder {
    const struct tok *t;
    struct lme_encode_opts o;
    bool whole, checked;
    const char *prefix_text; /* of the BOS that the tokenizer adds; NULL none */
    size_t prefix_len;
    struct str key, last; /* the shared beginning that is encoded; the last context */
    struct tok_ids key_ids;
    struct tok_ids ctx, a, b; /* scratch */
};

int lme_encoder_open(struct lme_encoder **out, const struct tok *t, const struct lme_encode_opts *o, struct err *e)
{
    static const char *const known[] = {"gpt2", "qwen2", "llama-bpe", "smollm"};
    struct lme_encoder *x = calloc(1, sizeof *x);
    if (!x)
        return err_nomem(e, sizeof *x, "an encoder");
    *x = (struct lme_encoder){.t = t, .o = *o, .whole = true};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        x->whole &= strcmp(tok_family(t), known[i]) != 0;
    x->whole |= o->plain;
    int32_t bos = tok_bos(t) >= 0 ? tok_bos(t) : tok_eos(t);
    if (bos >= 0 && !tok_bytes(t, bos, &x->prefix_text, &x->prefix_len))
        x->prefix_text = NULL;
    *out = x;
    return 0;
}

void lme_encoder_close(struct lme_encoder *x)
{
    if (!x)
        return;
    str_free(&x->key);
    str_free(&x->last);
    tok_ids_free(&x->key_ids);
    tok_ids_free(&x->ctx);
    tok_ids_free(&x->a);
    tok_ids_free(&x->b);
    free(x);
}

/* The last place in text[0..n] where it may be cut; 0 = none. */
static size_t cut_before(const char *text, size_t n)
{
    for (size_t i = n; i > 0; i--) {
        char c = (char)(text[i - 1] | 0x20);
        if ((text[i] == ' ' || text[i] == '\n') && c >= 'a' && c <= 'z')
            return i;
    }
    return 0;
}

static int put(struct tok_ids *ids, const int32_t *v, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(tok_ids_add(ids, v[i], e));
    return 0;
}

/* What the tokenizer puts around a text, unless the text begins with the prefix token's own text. */
static bool adds_special(const struct lme_encoder *x, const char *text, size_t n)
{
    return !(x->prefix_text && x->prefix_len && n >= x->prefix_len && !memcmp(text, x->prefix_text, x->prefix_len));
}

static int encode_whole(const struct lme_encoder *x, const char *text, size_t n, struct tok_ids *ids, struct err *e)
{
    const int32_t *v;
    bool special = adds_special(x, text, n);
    size_t k = tok_prefix(x->t, &v);
    ids->n = 0;
    if (special)
        TRY(put(ids, v, k, e));
    TRY(tok_encode(x->t, text, n, true, ids, e));
    k = tok_suffix(x->t, &v);
    return special ? put(ids, v, k, e) : 0;
}

/* x->key and its ids become a beginning of this context that the next ones are likely to share. */
static int shared_part(struct lme_encoder *x, const struct str *ctx, struct err *e)
{
    const char *text = str_c(ctx);
    if (ctx->len > x->key.len && x->key.len && !memcmp(text, x->key.p, x->key.len) && (text[x->key.len] == ' ' || text[x->key.len] == '\n'))
        return 0;
    size_t n = 0;
    while (n < ctx->len && n < x->last.len && text[n] == x->last.p[n])
        n++;
    n = n && n < ctx->len ? cut_before(text, n) : 0;
    str_clear(&x->key);
    str_add(&x->key, text, n);
    x->key_ids.n = 0;
    TRY(str_ok(&x->key, "a prompt", e));
    return n ? tok_encode(x->t, text, n, true, &x->key_ids, e) : 0;
}

static int add_req(struct lme_encoder *x, struct lme_set *s, const int32_t *ctx, int32_t n_ctx, const int32_t *cont, int32_t n_cont,
                   const char *where, const struct lme_case *c, struct err *e)
{
    struct lme_req r = {.ctx = ctx, .n_ctx = n_ctx, .n_cont = n_cont};
    int64_t limit = x->o.max_length;
    if (!n_cont || !n_ctx)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": a request has %d ids of context and %d of continuation; at least one of each is needed",
                   where, c->doc->line, (int)n_ctx, (int)n_cont);
    if (limit && n_cont > limit)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": a continuation of %d tokens; the model takes %" PRId64, where, c->doc->line, (int)n_cont,
                   limit);
    if (limit && n_ctx + n_cont > limit + 1) {
        if (!x->o.truncate)
            return ERR(e, E_INPUT,
                       "%s:%" PRId64 ": a request of %d tokens; the model takes %" PRId64
                       "; fewer shots make it shorter, --max-length %" PRId64 " cuts it from the left as lm-evaluation-harness does",
                       where, c->doc->line, (int)(n_ctx + n_cont - 1), limit, limit);
        r.cut = n_ctx + n_cont - (int32_t)limit - 1;
        r.ctx += r.cut;
        r.n_ctx -= r.cut;
        s->truncated++;
        s->cut += r.cut;
    }
    int32_t *v = arena_array(&s->arena, (size_t)n_cont, sizeof *v);
    if (v)
        memcpy(v, cont, (size_t)n_cont * sizeof *v);
    r.cont = v;
    s->one_token += n_cont == 1;
    if (s->n == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 1024;
        struct lme_req *grown = realloc(s->req, (size_t)cap * sizeof *grown);
        if (!grown)
            return err_nomem(e, (size_t)cap * sizeof *grown, "requests");
        s->req = grown;
        s->cap = cap;
    }
    s->req[s->n++] = r;
    return arena_ok(&s->arena, "requests", e);
}

/* The continuations r0..r1-1 of one context, which ends in n bytes of text that are no white space; the rest goes to the continuations. */
static int with_context(struct lme_encoder *x, const struct lme_case *c, const struct str *ctx, int r0, int r1, const char *where,
                        struct lme_set *s, struct err *e)
{
    const char *text = str_c(ctx);
    size_t n = py_rstrip(text, ctx->len), from = 0, tail = 0, head_ids;
    const int32_t *pre = NULL, *suf = NULL;
    size_t n_pre = tok_prefix(x->t, &pre), n_suf = tok_suffix(x->t, &suf);
    struct str t = STR_INIT;
    if (!n)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": the context is white space alone", where, c->doc->line);
    if (!adds_special(x, text, n))
        n_pre = n_suf = 0;
    x->ctx.n = 0;
    TRY(put(&x->ctx, pre, n_pre, e));
    if (!x->whole) {
        TRY(shared_part(x, ctx, e));
        from = x->key.len < n ? x->key.len : 0;
        tail = from + cut_before(text + from, n - from);
        if (from)
            TRY(put(&x->ctx, x->key_ids.v, x->key_ids.n, e));
        if (tail > from)
            TRY(tok_encode(x->t, text + from, tail - from, true, &x->ctx, e));
    }
    head_ids = x->ctx.n;
    TRY(tok_encode(x->t, text + tail, n - tail, true, &x->ctx, e));
    TRY(put(&x->ctx, suf, n_suf, e));
    int32_t *ids = arena_array(&s->arena, x->ctx.n, sizeof *ids);
    if (!ids)
        return err_nomem(e, x->ctx.n * sizeof *ids, "requests");
    memcpy(ids, x->ctx.v, x->ctx.n * sizeof *ids);
    int rc = 0;
    for (int r = r0; r < r1 && rc == 0; r++) {
        str_clear(&t);
        str_add(&t, text + tail, ctx->len - tail);
        str_add(&t, str_c(&c->cont[r]), c->cont[r].len);
        x->a.n = 0;
        rc = str_ok(&t, "a prompt", e) || tok_encode(x->t, str_c(&t), t.len, true, &x->a, e) || put(&x->a, suf, n_suf, e) ? -1 : 0;
        size_t skip = x->ctx.n - head_ids; /* ids of the context's tail: what follows them in the whole is the continuation */
        if (rc == 0)
            rc = add_req(x, s, ids, (int32_t)x->ctx.n, x->a.v + MIN(skip, x->a.n), (int32_t)(x->a.n - MIN(skip, x->a.n)), where, c, e);
    }
    str_free(&t);
    str_clear(&x->last);
    str_add(&x->last, text, ctx->len);
    return rc ? rc : str_ok(&x->last, "a prompt", e);
}

/* No context: the prefix token stands for it, or the continuation's own first id when that is the prefix. */
static int without_context(struct lme_encoder *x, const struct lme_case *c, int r, const char *where, struct lme_set *s, struct err *e)
{
    int32_t prefix = x->o.prefix >= 0 ? x->o.prefix : tok_bos(x->t) >= 0 ? tok_bos(x->t) : tok_eos(x->t);
    x->a.n = 0;
    TRY(tok_encode(x->t, str_c(&c->cont[r]), c->cont[r].len, true, &x->a, e));
    if (prefix < 0)
        return ERR(e, E_INPUT, "the tokenizer has neither BOS nor EOS to stand for an empty context");
    bool own = x->a.n > 0 && x->a.v[0] == prefix;
    int32_t *id = arena_array(&s->arena, 1, sizeof *id);
    if (!id)
        return err_nomem(e, sizeof *id, "requests");
    *id = prefix;
    return add_req(x, s, id, 1, x->a.v + own, (int32_t)x->a.n - own, where, c, e);
}

static int new_doc(struct lme_set *s, const struct lme_case *c, struct err *e)
{
    if (s->n_docs + 2 > s->cap_docs) {
        int64_t cap = s->cap_docs ? 2 * s->cap_docs : 256;
        int64_t *first = realloc(s->first, (size_t)cap * sizeof *first);
        s->first = first ? first : s->first;
        int64_t *id = realloc(s->id, (size_t)cap * sizeof *id);
        s->id = id ? id : s->id;
        const struct lme_doc **doc = realloc(s->doc, (size_t)cap * sizeof *doc);
        s->doc = doc ? doc : s->doc;
        if (!first || !id || !doc)
            return err_nomem(e, (size_t)cap * 24, "requests");
        s->cap_docs = cap;
    }
    s->first[s->n_docs] = s->n;
    s->id[s->n_docs] = c->id;
    s->doc[s->n_docs++] = c->doc;
    s->first[s->n_docs] = s->n;
    return 0;
}

/* Whether the two ways of encoding agree on a document; else whole texts from now on. */
static int check_cuts(struct lme_encoder *x, const struct lme_case *c, const struct lme_set *s, int64_t first, struct err *e)
{
    for (int r = 0; r < c->n_choice; r++) {
        const struct lme_req *q = &s->req[first + r];
        const struct str *ctx = lme_ctx(c, r);
        struct str t = STR_INIT;
        str_add(&t, str_c(ctx), ctx->len);
        str_add(&t, str_c(&c->cont[r]), c->cont[r].len);
        int rc = str_ok(&t, "a prompt", e) || encode_whole(x, str_c(ctx), py_rstrip(str_c(ctx), ctx->len), &x->a, e) ||
                 encode_whole(x, str_c(&t), t.len, &x->b, e);
        str_free(&t);
        TRY(rc);
        size_t n = (size_t)q->n_ctx + (size_t)q->cut;
        bool same = x->a.n == n && x->b.n == n + (size_t)q->n_cont && !memcmp(x->a.v, q->ctx - q->cut, n * sizeof *q->ctx) &&
                    !memcmp(x->b.v + n, q->cont, (size_t)q->n_cont * sizeof *q->cont);
        x->whole |= !same;
    }
    x->checked = true;
    return 0;
}

int lme_encode_case(struct lme_encoder *x, const struct lme_case *c, const char *where, struct lme_set *s, struct err *e)
{
    if (!s->arena.head && !s->n)
        arena_init(&s->arena, 0);
    TRY(new_doc(s, c, e));
    int64_t first = s->n, truncated = s->truncated, cut = s->cut, one = s->one_token;
    for (int again = 0; again < 2; again++) {
        s->n = first;
        s->truncated = truncated;
        s->cut = cut;
        s->one_token = one;
        for (int i = 0; i < c->n_ctx; i++)
            TRY(with_context(x, c, &c->ctx[i], c->n_ctx > 1 ? i : 0, c->n_ctx > 1 ? i + 1 : c->n_choice, where, s, e));
        for (int r = c->n_choice; r < c->n_req; r++)
            TRY(without_context(x, c, r, where, s, e));
        if (x->whole || x->checked)
            break;
        TRY(check_cuts(x, c, s, first, e));
        if (!x->whole)
            break;
    }
    s->first[s->n_docs] = s->n;
    return 0;
}

struct set_maker {
    struct lme_encoder *x;
    struct lme_set *s;
    const char *where;
};
static int take_case(void *ctx, const struct lme_case *c, struct err *e)
{
    struct set_maker *k = ctx;
    return lme_encode_case(k->x, c, k->where, k->s, e);
}

int lme_set_make(const struct lme_task *t, const struct lme_docs *docs, const struct lme_docs *pool, const struct lme_prompts *p,
                 struct lme_encoder *x, struct lme_set *out, struct err *e)
{
    struct set_maker k = {x, out, docs->path};
    *out = (struct lme_set){0};
    arena_init(&out->arena, 0);
    x->checked = false;
    return lme_each(t, docs, pool, p, take_case, &k, e);
}

void lme_set_free(struct lme_set *s)
{
    arena_free(&s->arena);
    free(s->req);
    free(s->first);
    free(s->id);
    free((void *)(uintptr_t)s->doc);
    *s = (struct lme_set){0};
}
