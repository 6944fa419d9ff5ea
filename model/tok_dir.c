/* Loading by path: a tokenizer.json, or a folder; and the small files beside it that name bos, eos and the chat template. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "model/tok_int.h"

enum { MAX_TOKENIZER_BYTES = 256 << 20, MAX_CONFIG_BYTES = 16 << 20 };

/* ---- vocabularies known by their hash ---- */

struct builtin_token {
    const char *text;
    int32_t id;
    bool special;
};
struct builtin {
    const char *sha256, *family, *eos, *bos; /* eos, bos: unless tokenizer_config.json says otherwise */
    const struct builtin_token *added;
    size_t n_added;
    int32_t first_special; /* ids 0..first_special - 1 of the vocabulary are special */
};
static const struct builtin_token gpt2_added[] = {{"<|endoftext|>", 50256, true}};
static const struct builtin_token qwen25_added[] = {
    {"<|endoftext|>", 151643, true},        {"<|im_start|>", 151644, true},       {"<|im_end|>", 151645, true},
    {"<|object_ref_start|>", 151646, true}, {"<|object_ref_end|>", 151647, true}, {"<|box_start|>", 151648, true},
    {"<|box_end|>", 151649, true},          {"<|quad_start|>", 151650, true},     {"<|quad_end|>", 151651, true},
    {"<|vision_start|>", 151652, true},     {"<|vision_end|>", 151653, true},     {"<|vision_pad|>", 151654, true},
    {"<|image_pad|>", 151655, true},        {"<|video_pad|>", 151656, true},      {"<tool_call>", 151657, false},
    {"</tool_call>", 151658, false},        {"<|fim_prefix|>", 151659, false},    {"<|fim_middle|>", 151660, false},
    {"<|fim_suffix|>", 151661, false},      {"<|fim_pad|>", 151662, false},       {"<|repo_name|>", 151663, false},
    {"<|file_sep|>", 151664, false},
};
static const struct builtin builtins[] = {
    {"196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783", "gpt2", "<|endoftext|>", "<|endoftext|>", gpt2_added,
     ARRAY_LEN(gpt2_added), 0},
    {"ca10d7e9fb3ed18575dd1e277a2579c16d108e32f27439684afa0e10b1440910", "qwen2", "<|endoftext|>", NULL, qwen25_added,
     ARRAY_LEN(qwen25_added), 0},
    {"82b84012e3add4d01d12ba14442026e49b8cbbaead1f79ecf3d919784f82dc79", "smollm", "<|endoftext|>", "<|endoftext|>", NULL, 0, 17},
};

static int builtin_tokens(struct tok *t, const struct builtin *b, struct err *e)
{
    const struct tok_added special = {.special = true}, user = {.special = false};
    for (size_t i = 0; i < b->n_added; i++)
        TRY(tokb_added(t, b->added[i].id, b->added[i].text, strlen(b->added[i].text), b->added[i].special ? &special : &user, e));
    for (int32_t id = 0; id < b->first_special; id++) {
        const char *p;
        size_t n;
        if (!tok_text(t, id, &p, &n))
            return ERR(e, E_INPUT, "%s: id %" PRId32 " is missing", t->name, id);
        TRY(tokb_added(t, id, p, n, &special, e));
    }
    return 0;
}

/* ---- files beside it ---- */

/* Opens dir/name when it is there; *there says so. */
static int open_beside(struct jdoc *d, const char *dir, const char *name, bool *there, struct err *e)
{
    char path[1024];
    d->root = NULL;
    *there = file_exists(path_join(path, dir, name));
    return *there ? jdoc_load(d, path, MAX_CONFIG_BYTES, e) : 0;
}

/* "bos_token": null, "text", or {"content": "text"}. Absent leaves *id alone. */
static int named_token(struct tok *t, const struct jdoc *d, const char *key, int32_t *id, struct err *e)
{
    const json_t *v = json_object_get(d->root, key);
    if (!v)
        return 0;
    *id = -1;
    if (json_is_null(v))
        return 0;
    const char *s = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    if (!s)
        return ERR(e, E_INPUT, "%s: %s: expected a token's text", d->file, key);
    *id = tok_id(t, s);
    return *id >= 0 ? 0 : ERR(e, E_INPUT, "%s: %s '%.60s' is not in the vocabulary", d->file, key, s);
}

static int set_template(struct tok *t, const char *s, struct err *e)
{
    free(t->chat_template);
    t->chat_template = strdup(s);
    return t->chat_template ? 0 : err_nomem(e, strlen(s), "chat template");
}

/* "chat_template": text, or a list of {"name", "template"} of which "default" counts. */
static int config_template(struct tok *t, const struct jdoc *d, struct err *e)
{
    const json_t *v = json_object_get(d->root, "chat_template");
    if (json_is_string(v))
        return set_template(t, json_string_value(v), e);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *o = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(o, "name")), *text = json_string_value(json_object_get(o, "template"));
        if (name && text && !strcmp(name, "default"))
            return set_template(t, text, e);
    }
    return 0;
}

/* config.json: "eos_token_id": 2 or [2, 3]. Ids of a model with another vocabulary are left alone. */
static void config_id(const struct tok *t, const struct jdoc *d, const char *key, int32_t *id)
{
    const json_t *v = json_object_get(d->root, key);
    if (json_is_array(v))
        v = json_array_get(v, 0);
    if (json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < t->n_ids)
        *id = (int32_t)json_integer_value(v);
}

static int named_tokens(struct tok *t, const struct jdoc *d, struct err *e)
{
    TRY(named_token(t, d, "bos_token", &t->bos, e));
    return named_token(t, d, "eos_token", &t->eos, e);
}

/* pair: made of vocab.json and merges.txt, so nothing has said yet whether BOS is added. */
static int read_config(struct tok *t, const struct jdoc *d, bool pair, struct err *e)
{
    bool add_bos = false;
    if (!json_is_object(d->root))
        return ERR(e, E_INPUT, "%s: expected an object", d->file);
    TRY(named_tokens(t, d, e));
    TRY(config_template(t, d, e));
    TRY(jget_bool_opt(d, d->root, "", "add_bos_token", &add_bos, e));
    if (pair && add_bos && t->bos >= 0)
        t->prefix[t->n_prefix++] = t->bos;
    return 0;
}

static int beside(struct tok *t, const char *dir, bool pair, struct err *e)
{
    struct jdoc d;
    bool there, map = false;
    char path[1024];
    TRY(open_beside(&d, dir, "tokenizer_config.json", &there, e));
    int rc = there ? read_config(t, &d, pair, e) : 0;
    jdoc_free(&d);
    if (rc == 0 && !there) {
        TRY(open_beside(&d, dir, "special_tokens_map.json", &map, e));
        rc = map ? named_tokens(t, &d, e) : 0;
        jdoc_free(&d);
    }
    if (rc == 0 && !there && !map) {
        TRY(open_beside(&d, dir, "config.json", &map, e));
        config_id(t, &d, "bos_token_id", &t->bos);
        config_id(t, &d, "eos_token_id", &t->eos);
        jdoc_free(&d);
    }
    if (rc == 0 && file_exists(path_join(path, dir, "chat_template.jinja"))) {
        struct str s = STR_INIT;
        rc = file_read(path, MAX_CONFIG_BYTES, &s, e) != 0 || set_template(t, str_c(&s), e) != 0 ? -1 : 0;
        str_free(&s);
    }
    return rc;
}

/* ---- vocab.json and merges.txt ---- */

/* tokenizer_config.json: "added_tokens_decoder": {"151643": {..}, ..} */
static int config_added(struct tok *t, const char *dir, bool *found, struct err *e)
{
    struct jdoc d;
    bool there;
    int rc = 0;
    TRY(open_beside(&d, dir, "tokenizer_config.json", &there, e));
    json_t *list = there ? json_object_get(d.root, "added_tokens_decoder") : NULL;
    *found = json_is_object(list);
    for (void *it = json_object_iter(list); it && rc == 0; it = json_object_iter_next(list, it)) {
        const char *key = json_object_iter_key(it);
        char where[80];
        int64_t id = -1;
        snprintf(where, sizeof where, "added_tokens_decoder.%.40s", key);
        if (strspn(key, "0123456789") != strlen(key) || !parse_i64(key, &id))
            rc = ERR(e, E_INPUT, "%s: %s: expected a token id as the key", d.file, where);
        else
            rc = tok_json_added(t, &d, json_object_iter_value(it), where, id, e);
    }
    jdoc_free(&d);
    return rc;
}

/* The line at p; *next is behind its end. */
static size_t line_at(const char *p, const char *end, const char **next)
{
    const char *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end;
    *next = nl ? nl + 1 : end;
    return (size_t)(stop - p) - (stop > p && stop[-1] == '\r');
}

static int read_merges(struct tok *t, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    if (file_read(path, MAX_TOKENIZER_BYTES, &s, e) != 0) {
        str_free(&s);
        return -1;
    }
    enum { AHEAD = 8 };
    bool ascii;
    const char *p = str_c(&s), *end = p + s.len, *soon = p, *next;
    size_t lines = 0;
    int rc = utf8_check(p, s.len, &ascii) == s.len ? 0 : ERR(e, E_INPUT, "%s: is not UTF-8", path);
    for (const char *q = p; q < end; q++)
        lines += *q == '\n';
    if (rc == 0)
        rc = tokb_merges(t, lines + 1, e);
    for (size_t line = 1, said = 1; p < end && rc == 0; line++, p = next) {
        for (; said < line + AHEAD && soon < end; said++, soon = next)
            tokb_merge_line_soon(t, soon, line_at(soon, end, &next));
        size_t n = line_at(p, end, &next);
        bool version = line == 1 && n >= 8 && !memcmp(p, "#version", 8);
        if (!version && !(n == 0 && next == end) && tokb_merge_line(t, p, n, e) != 0)
            rc = err_wrap(e, "%s:%zu", path, line);
    }
    str_free(&s);
    return rc;
}

static int load_pair(struct tok *t, const char *dir, const char *rule, struct err *e)
{
    char vocab[1024], merges[1024];
    struct str s = STR_INIT;
    path_join(vocab, dir, "vocab.json");
    path_join(merges, dir, "merges.txt");
    int rc = file_read(vocab, MAX_TOKENIZER_BYTES, &s, e) != 0 || sha256_buf(str_c(&s), s.len, t->file_sha, e) != 0 ? -1 : 0;
    const struct builtin *b = NULL;
    for (size_t i = 0; i < ARRAY_LEN(builtins); i++)
        if (rc == 0 && !strcmp(builtins[i].sha256, t->file_sha))
            b = &builtins[i];
    if (rc == 0 && !b && !rule)
        rc = ERR(e, E_USAGE, "'%s' is not a vocabulary known here (sha256 %s): give its split rule with --pretok NAME, one of %s", vocab,
                 t->file_sha, pretok_family_list());
    if (rc == 0)
        rc = tok_vocab_text(t, vocab, str_c(&s), s.len, e);
    str_free(&s);
    if (rc != 0)
        return -1;
    TRY(read_merges(t, merges, e));
    const struct pretok_family *f = pretok_family(rule ? rule : b->family);
    TRY(pretok_named(&t->split, rule ? rule : b->family, e)); /* also where f is NULL: says which names there are */
    t->nfc = f && f->nfc;
    t->ignore_merges = f && f->ignore_merges;
    bool found = false;
    TRY(config_added(t, dir, &found, e));
    if (b && !found)
        TRY(builtin_tokens(t, b, e));
    if (b) {
        t->bos = b->bos ? tok_id(t, b->bos) : -1;
        t->eos = tok_id(t, b->eos);
    }
    return beside(t, dir, true, e);
}

/* ---- by path ---- */

static int parse_json(struct tok *t, const char *text, size_t n, struct err *e)
{
    struct jdoc d = {0};
    int rc = n >= 4 && !memcmp(text, "GGUF", 4) ? ERR(e, E_INPUT, "%s: is a GGUF file, expected a tokenizer.json", t->name) : 0;
    if (rc == 0)
        rc = sha256_buf(text, n, t->file_sha, e) != 0 || jdoc_parse(&d, t->name, text, n, e) != 0 || tok_json_load(t, &d, e) != 0 ? -1 : 0;
    jdoc_free(&d);
    return rc;
}

int tok_from_json(struct tok **out, const char *name, const char *text, size_t n, struct err *e)
{
    struct tok *t;
    TRY(tokb_new(&t, name, e));
    if (parse_json(t, text, n, e) != 0 || tokb_finish(t, e) != 0) {
        tok_free(t);
        return -1;
    }
    *out = t;
    return 0;
}

static int load_json(struct tok *t, const char *path, const char *dir, const char *rule, struct err *e)
{
    struct str s = STR_INIT;
    int rc = file_read(path, MAX_TOKENIZER_BYTES, &s, e) != 0 || parse_json(t, str_c(&s), s.len, e) != 0 ? -1 : 0;
    str_free(&s);
    if (rc != 0)
        return -1;
    const struct pretok_family *f = rule ? pretok_family(rule) : NULL;
    if (rule && !f)
        return ERR(e, E_USAGE, "unknown pre-tokenizer '%s': the known ones are %s", rule, pretok_family_list());
    if (rule && strcmp(f->name, pretok_name(t->split)) != 0)
        return ERR(e, E_USAGE, "'%s' states its own split rule (%s), so --pretok %s cannot be used with it", path, pretok_name(t->split),
                   rule);
    return beside(t, dir, false, e);
}

static int load(struct tok *t, const char *path, const char *rule, struct err *e)
{
    char file[1024], dir[1024];
    if (strlen(path) > sizeof dir - 32)
        return ERR(e, E_INPUT, "path of %zu bytes (limit %zu): '%.60s...'", strlen(path), sizeof dir - 32, path);
    if (dir_exists(path)) {
        bool json = file_exists(path_join(file, path, "tokenizer.json"));
        if (json)
            TRY(load_json(t, file, path, rule, e));
        else if (file_exists(path_join(file, path, "vocab.json")))
            TRY(load_pair(t, path, rule, e));
        else
            return ERR(e, E_INPUT, "no tokenizer in '%s': expected tokenizer.json, or vocab.json and merges.txt", path);
    } else {
        size_t n = (size_t)(path_base(path) - path);
        snprintf(dir, sizeof dir, "%.*s", (int)n, path);
        TRY(load_json(t, path, n ? dir : ".", rule, e));
    }
    return tokb_finish(t, e);
}

int tok_load(struct tok **out, const char *path, const char *rule, struct err *e)
{
    struct tok *t;
    char file[1024];
    bool inside = strlen(path) < sizeof file - 32 && dir_exists(path) && file_exists(path_join(file, path, "tokenizer.json"));
    TRY(tokb_new(&t, inside ? file : path, e)); /* what messages name */
    if (load(t, path, rule, e) != 0) {
        tok_free(t);
        return -1;
    }
    *out = t;
    return 0;
}
