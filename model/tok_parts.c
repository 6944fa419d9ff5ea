/* A tokenizer from arrays of tokens, types and merges, the form in which GGUF files hold it. */
#include <stdlib.h>
#include <string.h>

#include "model/tok_int.h"

static int check_id(const struct tok *t, const char *what, int32_t id, struct err *e)
{
    if (id < -1 || id >= t->n_ids)
        return ERR(e, E_INPUT, "%s: %s token is id %" PRId32 " (the vocabulary has %" PRId32 ")", t->name, what, id, t->n_ids);
    return 0;
}

static int part_token(struct tok *t, const struct tok_parts *p, int32_t i, struct err *e)
{
    int32_t type = p->types ? p->types[i] : TOK_NORMAL;
    const struct tok_str *s = &p->tokens[i];
    bool ascii;
    if (type < TOK_NORMAL || type > TOK_BYTE)
        return ERR(e, E_INPUT, "%s: token %" PRId32 " has type %" PRId32 " (known: 1 to 6)", t->name, i, type);
    if (utf8_check(s->p, s->n, &ascii) < s->n)
        return ERR(e, E_INPUT, "%s: token %" PRId32 " is not UTF-8", t->name, i);
    TRY(tokb_put(t, i, s->p, s->n, type == TOK_CONTROL || type == TOK_USER ? 0 : TF_VOCAB, e));
    if ((type == TOK_CONTROL || type == TOK_USER) && s->n > 0) {
        struct tok_added a = {.special = type == TOK_CONTROL};
        TRY(tokb_added(t, i, s->p, s->n, &a, e));
    }
    return 0;
}

static int from_parts(struct tok *t, const struct tok_parts *p, struct err *e)
{
    const struct pretok_family *f = p->pre ? pretok_family(p->pre) : NULL;
    if (!f)
        return ERR(e, E_INPUT, "%s: pre-tokenizer '%s' is not supported: the known ones are %s", t->name, p->pre ? p->pre : "(none)",
                   pretok_family_list());
    t->nfc = f->nfc;
    t->ignore_merges = f->ignore_merges;
    TRY(pretok_named(&t->split, p->pre, e));
    TRY(tokb_reserve(t, p->n_tokens, e));
    for (size_t i = 0; i < p->n_tokens; i++)
        TRY(part_token(t, p, (int32_t)i, e));
    TRY(tokb_merges(t, p->n_merges, e));
    for (size_t i = 0; i < p->n_merges; i++)
        TRY(tokb_merge_line(t, p->merges[i].p, p->merges[i].n, e));
    TRY(check_id(t, "bos", p->bos, e));
    TRY(check_id(t, "eos", p->eos, e));
    TRY(check_id(t, "unk", p->unk, e));
    t->bos = p->bos;
    t->eos = p->eos;
    t->unk = p->unk;
    if (p->add_bos && p->bos < 0)
        return ERR(e, E_INPUT, "%s: asks for a BOS before every text but names no BOS token", t->name);
    if (p->add_eos && p->eos < 0)
        return ERR(e, E_INPUT, "%s: asks for an EOS after every text but names no EOS token", t->name);
    if (p->add_bos)
        t->prefix[t->n_prefix++] = p->bos;
    if (p->add_eos)
        t->suffix[t->n_suffix++] = p->eos;
    if (p->chat_template && !(t->chat_template = strdup(p->chat_template)))
        return err_nomem(e, strlen(p->chat_template), "chat template");
    return tokb_finish(t, e);
}

int tok_from_parts(struct tok **out, const struct tok_parts *p, struct err *e)
{
    struct tok *t;
    TRY(tokb_new(&t, p->name ? p->name : "tokenizer", e));
    if (from_parts(t, p, e) != 0) {
        tok_free(t);
        return -1;
    }
    *out = t;
    return 0;
}
