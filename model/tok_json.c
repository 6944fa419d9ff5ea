/* tokenizer.json: every key that can change ids is understood or refused. */
#include <stdio.h>
#include <string.h>

#include "model/tok_int.h"

static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s ? s : "";
}

static bool is_null(const json_t *o)
{
    return !o || json_is_null(o);
}

static int unsupported(const struct tok *t, const char *what, const json_t *o, struct err *e)
{
    if (!json_is_object(o))
        return ERR(e, E_INPUT, "%s: %s: expected an object or null", t->name, what);
    return ERR(e, E_INPUT, "%s: %s of type '%.60s' is not supported", t->name, what, type_of(o));
}

/* A flag that must be absent, null or false. */
static int must_be_off(const struct jdoc *d, const json_t *o, const char *where, const char *key, struct err *e)
{
    bool on = false;
    TRY(jget_bool_opt(d, o, where, key, &on, e));
    return on ? ERR(e, E_INPUT, "%s: %s.%s true is not supported", d->file, where, key) : 0;
}

/* ---- model ---- */

static int json_vocab(struct tok *t, const json_t *vocab, struct err *e)
{
    if (!json_is_object(vocab))
        return ERR(e, E_INPUT, "%s: vocabulary: expected an object of token: id", t->name);
    TRY(tokb_reserve(t, json_object_size(vocab), e));
    /* const iteration: the macro needs a non-const pointer, the tree is not changed */
    json_t *v = (json_t *)(uintptr_t)vocab;
    for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *id = json_object_iter_value(it);
        if (!json_is_integer(id))
            return ERR(e, E_INPUT, "%s: vocabulary: the id of '%.60s' is not an integer", t->name, key);
        TRY(tokb_token(t, json_integer_value(id), key, strlen(key), e));
    }
    return 0;
}

static int json_merges(struct tok *t, const json_t *model, struct err *e)
{
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_array(merges))
        return ERR(e, E_INPUT, "%s: model.merges: expected an array", t->name);
    size_t n = json_array_size(merges);
    TRY(tokb_merges(t, n, e));
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i), *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        if (json_is_string(m))
            TRY(tokb_merge_line(t, json_string_value(m), json_string_length(m), e));
        else if (json_array_size(m) == 2 && json_is_string(a) && json_is_string(b))
            TRY(tokb_merge(t, json_string_value(a), json_string_length(a), json_string_value(b), json_string_length(b), e));
        else
            return ERR(e, E_INPUT, "%s: model.merges[%zu]: expected \"a b\" or [\"a\", \"b\"]", t->name, i);
    }
    return 0;
}

static int json_model(struct tok *t, const struct jdoc *d, struct err *e)
{
    const json_t *m;
    const char *type = "BPE", *unk = NULL, *prefix = "", *suffix = "";
    double dropout = 0;
    TRY(jget_obj(d, d->root, "", "model", &m, e));
    TRY(jget_str_opt(d, m, "model", "type", &type, e));
    if (strcmp(type, "BPE") != 0)
        return ERR(e, E_INPUT, "%s: model of type '%.60s' is not supported (only BPE is)", t->name, type);
    TRY(jget_str_opt(d, m, "model", "continuing_subword_prefix", &prefix, e));
    TRY(jget_str_opt(d, m, "model", "end_of_word_suffix", &suffix, e));
    if (*prefix || *suffix)
        return ERR(e, E_INPUT, "%s: model: subword prefixes and suffixes are not supported (%s)", t->name, *prefix ? prefix : suffix);
    TRY(jget_f64_opt(d, m, "model", "dropout", &dropout, e));
    if (dropout != 0)
        return ERR(e, E_INPUT, "%s: model.dropout %g is not supported: ids would be random", t->name, dropout);
    TRY(jget_bool_opt(d, m, "model", "fuse_unk", &t->fuse_unk, e));
    TRY(jget_bool_opt(d, m, "model", "byte_fallback", &t->byte_fallback, e));
    TRY(jget_bool_opt(d, m, "model", "ignore_merges", &t->ignore_merges, e));
    TRY(json_vocab(t, json_object_get(m, "vocab"), e));
    TRY(json_merges(t, m, e));
    TRY(jget_str_opt(d, m, "model", "unk_token", &unk, e));
    if (unk && (t->unk = tok_find(t, unk, strlen(unk), TF_VOCAB)) < 0)
        return ERR(e, E_INPUT, "%s: model.unk_token '%.60s' is not in the vocabulary", t->name, unk);
    return 0;
}

/* ---- added tokens ---- */

int tok_json_added(struct tok *t, const struct jdoc *d, const json_t *o, const char *where, int64_t id, struct err *e)
{
    const char *content;
    struct tok_added a = {0};
    TRY(jget_str(d, o, where, "content", &content, e));
    TRY(jget_bool_opt(d, o, where, "special", &a.special, e));
    a.normalized = !a.special;
    TRY(jget_bool_opt(d, o, where, "lstrip", &a.lstrip, e));
    TRY(jget_bool_opt(d, o, where, "rstrip", &a.rstrip, e));
    TRY(jget_bool_opt(d, o, where, "single_word", &a.single_word, e));
    TRY(jget_bool_opt(d, o, where, "normalized", &a.normalized, e));
    return tokb_added(t, id, content, strlen(content), &a, e);
}

static int json_added_list(struct tok *t, const struct jdoc *d, struct err *e)
{
    const json_t *list = json_object_get(d->root, "added_tokens");
    if (is_null(list))
        return 0;
    if (!json_is_array(list))
        return ERR(e, E_INPUT, "%s: added_tokens: expected an array", t->name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[40];
        int64_t id;
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        const json_t *o = json_array_get(list, i);
        TRY(jget_i64(d, o, where, "id", 0, UINT32_MAX, &id, e));
        TRY(tok_json_added(t, d, o, where, id, e));
    }
    return 0;
}

/* ---- normaliser, pre-tokenizer, post-processor, decoder ---- */

/* Calls fn for the object, or for each member of a Sequence (key: the array's name). */
static int each_member(struct tok *t, const struct jdoc *d, const json_t *o, const char *what, const char *key,
                       int (*fn)(struct tok *t, const struct jdoc *d, const json_t *o, bool last, struct err *e), struct err *e)
{
    if (!json_is_object(o) || strcmp(type_of(o), "Sequence") != 0)
        return fn(t, d, o, true, e);
    const json_t *list = json_object_get(o, key);
    if (!json_is_array(list))
        return ERR(e, E_INPUT, "%s: %s.%s: expected an array", t->name, what, key);
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++)
        TRY(fn(t, d, json_array_get(list, i), i + 1 == n, e));
    return 0;
}

static int on_normalizer(struct tok *t, const struct jdoc *d, const json_t *o, bool last, struct err *e)
{
    UNUSED(d);
    UNUSED(last);
    if (strcmp(type_of(o), "NFC") != 0)
        return unsupported(t, "normalizer", o, e);
    t->nfc = true;
    return 0;
}

/* {"String": s} as an expression that matches it. */
static int literal_pattern(struct str *out, const char *s, struct err *e)
{
    for (; *s; s++) {
        if (strchr("\\^$.|?*+()[]{}-&#/", *s))
            str_putc(out, '\\');
        str_putc(out, *s);
    }
    return str_ok(out, "pattern", e);
}

static int on_split(struct tok *t, const struct jdoc *d, const json_t *o, struct err *e)
{
    const json_t *pat;
    const char *behavior, *re = NULL, *lit = NULL;
    bool invert = false;
    TRY(jget_obj(d, o, "pre_tokenizer", "pattern", &pat, e));
    TRY(jget_str(d, o, "pre_tokenizer", "behavior", &behavior, e));
    TRY(jget_bool_opt(d, o, "pre_tokenizer", "invert", &invert, e));
    TRY(jget_str_opt(d, pat, "pre_tokenizer.pattern", "Regex", &re, e));
    TRY(jget_str_opt(d, pat, "pre_tokenizer.pattern", "String", &lit, e));
    bool isolated = !strcmp(behavior, "Isolated"), matches = !strcmp(behavior, "Removed") && invert;
    if (!isolated && !matches)
        return ERR(e, E_INPUT, "%s: pre_tokenizer Split with behavior '%.40s'%s is not supported", t->name, behavior,
                   invert ? ", inverted" : "");
    if ((re != NULL) == (lit != NULL))
        return ERR(e, E_INPUT, "%s: pre_tokenizer.pattern: expected either \"Regex\" or \"String\"", t->name);
    struct str s = STR_INIT;
    int rc = lit ? literal_pattern(&s, lit, e) : 0;
    if (rc == 0)
        rc = pretok_add_regex(t->split, lit ? str_c(&s) : re, isolated ? PRETOK_ISOLATED : PRETOK_MATCHES_ONLY, t->name, e);
    str_free(&s);
    return rc;
}

static int on_pretok(struct tok *t, const struct jdoc *d, const json_t *o, bool last, struct err *e)
{
    const char *type = type_of(o);
    if (last != !strcmp(type, "ByteLevel"))
        return last && (!strcmp(type, "Split") || !strcmp(type, "Digits"))
                   ? ERR(e, E_INPUT, "%s: pre_tokenizer without ByteLevel at its end is not supported (only byte-level BPE is)", t->name)
               : last ? unsupported(t, "pre_tokenizer", o, e)
                      : ERR(e, E_INPUT, "%s: pre_tokenizer: ByteLevel must stand last", t->name);
    if (last) {
        bool re = true;
        TRY(must_be_off(d, o, "pre_tokenizer", "add_prefix_space", e));
        TRY(jget_bool_opt(d, o, "pre_tokenizer", "use_regex", &re, e));
        return re ? pretok_add_gpt2(t->split, t->name, e) : 0;
    }
    if (!strcmp(type, "Digits")) {
        bool each = false;
        TRY(jget_bool_opt(d, o, "pre_tokenizer", "individual_digits", &each, e));
        return pretok_add_digits(t->split, each, t->name, e);
    }
    return strcmp(type, "Split") ? unsupported(t, "pre_tokenizer", o, e) : on_split(t, d, o, e);
}

/* One element of TemplateProcessing.single; seen: "Sequence A" was there. */
static int template_item(struct tok *t, const struct jdoc *d, const json_t *post, const json_t *item, bool *seen, struct err *e)
{
    const json_t *sp = json_object_get(item, "SpecialToken"), *sq = json_object_get(item, "Sequence"), *specials, *def, *ids;
    const char *name;
    if (sq && !sp) {
        TRY(jget_str(d, sq, "post_processor.single.Sequence", "id", &name, e));
        if (strcmp(name, "A") != 0 || *seen)
            return ERR(e, E_INPUT, "%s: post_processor.single: expected sequence A once", t->name);
        *seen = true;
        return 0;
    }
    if (!sp)
        return ERR(e, E_INPUT, "%s: post_processor.single: expected SpecialToken or Sequence", t->name);
    TRY(jget_str(d, sp, "post_processor.single.SpecialToken", "id", &name, e));
    TRY(jget_obj(d, post, "post_processor", "special_tokens", &specials, e));
    TRY(jget_obj(d, specials, "post_processor.special_tokens", name, &def, e));
    TRY(jget_arr(d, def, "post_processor.special_tokens", "ids", &ids, e));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        size_t *count = *seen ? &t->n_suffix : &t->n_prefix;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= t->n_ids ||
            t->text[json_integer_value(id)].off == UINT32_MAX)
            return ERR(e, E_INPUT, "%s: post_processor: special token '%.60s' has an id outside the vocabulary", t->name, name);
        if (*count == TOK_MAX_FIX)
            return ERR(e, E_INPUT, "%s: post_processor.single: more than %d special tokens", t->name, TOK_MAX_FIX);
        (*seen ? t->suffix : t->prefix)[(*count)++] = (int32_t)json_integer_value(id);
    }
    return 0;
}

static int on_post(struct tok *t, const struct jdoc *d, const json_t *o, bool last, struct err *e)
{
    UNUSED(last);
    const char *type = type_of(o);
    if (!strcmp(type, "ByteLevel")) /* changes offsets only */
        return 0;
    if (strcmp(type, "TemplateProcessing") != 0)
        return unsupported(t, "post_processor", o, e);
    const json_t *single;
    bool seen = false;
    TRY(jget_arr(d, o, "post_processor", "single", &single, e));
    for (size_t i = 0; i < json_array_size(single); i++)
        TRY(template_item(t, d, o, json_array_get(single, i), &seen, e));
    return seen ? 0 : ERR(e, E_INPUT, "%s: post_processor.single lacks the text itself (sequence A)", t->name);
}

static int on_decoder(struct tok *t, const struct jdoc *d, const json_t *o, bool last, struct err *e)
{
    UNUSED(d);
    UNUSED(last);
    return strcmp(type_of(o), "ByteLevel") ? unsupported(t, "decoder", o, e) : 0;
}

int tok_json_load(struct tok *t, const struct jdoc *d, struct err *e)
{
    const char *version = "1.0";
    if (!json_is_object(d->root))
        return ERR(e, E_INPUT, "%s: expected an object", t->name);
    TRY(jget_str_opt(d, d->root, "", "version", &version, e));
    if (strcmp(version, "1.0") != 0)
        return ERR(e, E_INPUT, "%s: version '%.40s' is not supported (1.0 is)", t->name, version);
    const json_t *norm = json_object_get(d->root, "normalizer"), *pre = json_object_get(d->root, "pre_tokenizer"),
                 *post = json_object_get(d->root, "post_processor"), *dec = json_object_get(d->root, "decoder");
    if (!is_null(norm))
        TRY(each_member(t, d, norm, "normalizer", "normalizers", on_normalizer, e));
    if (is_null(pre))
        return ERR(e, E_INPUT, "%s: no pre_tokenizer: only byte-level BPE is supported", t->name);
    TRY(pretok_new(&t->split, e));
    TRY(each_member(t, d, pre, "pre_tokenizer", "pretokenizers", on_pretok, e));
    if (!strcmp(type_of(pre), "Sequence") && !json_array_size(json_object_get(pre, "pretokenizers")))
        return ERR(e, E_INPUT, "%s: pre_tokenizer without any step: only byte-level BPE is supported", t->name);
    TRY(pretok_finish(t->split, e));
    if (!is_null(dec))
        TRY(each_member(t, d, dec, "decoder", "decoders", on_decoder, e));
    TRY(json_model(t, d, e));
    TRY(json_added_list(t, d, e));
    if (!is_null(post))
        TRY(each_member(t, d, post, "post_processor", "processors", on_post, e));
    return 0;
}
