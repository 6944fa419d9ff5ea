/* Ids against Hugging Face's tokenizers (tests/data/tok_vectors.json); the same tokenizer from GGUF-like arrays; cuts of long texts. */
#include "tests/test.h"

#include "core/fs.h"
#include "core/jread.h"
#include "model/tok.h"
#include "model/tok_open.h"

struct source {
    const char *name, *rel, *pre;
};
static const struct source sources[] = {
    {"gpt2", "tokenizers/gpt2/vocab.json", "gpt-2"},        {"qwen2", "tokenizers/qwen2/vocab.json", "qwen2"},
    {"smollm2", "tokenizers/smollm2/vocab.json", "smollm"}, {"dolma2", "tokenizers/dolma2/tokenizer.json", NULL},
    {"tiny", "models/tiny-teacher/tokenizer.json", NULL},
};

static bool ids_equal(const struct tok_ids *ids, const json_t *want)
{
    bool ok = ids->n == json_array_size(want);
    for (size_t k = 0; ok && k < ids->n; k++)
        ok = ids->v[k] == json_integer_value(json_array_get(want, k));
    return ok;
}

static void vectors(const struct tok *t, const char *name, const json_t *texts, const json_t *lists)
{
    CHECK(json_array_size(texts) == json_array_size(lists) && json_array_size(lists) > 60);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        struct tok_ids ids = {0};
        int64_t count = -1;
        const char *p = json_string_value(json_array_get(texts, i));
        size_t n = json_string_length(json_array_get(texts, i));
        for (int round = 0; round < 2; round++) { /* the second time out of the cache */
            ids.n = 0;
            CHECK_OK(tok_encode(t, p, n, true, &ids, e));
            bool ok = ids_equal(&ids, json_array_get(lists, i));
            CHECK(ok);
            if (!ok)
                printf("%s: text %zu, round %d\n", name, i, round);
        }
        CHECK_OK(tok_count(t, p, n, true, &count, e));
        CHECK(count == (int64_t)ids.n);
        tok_ids_free(&ids);
    }
}

/* The arrays a GGUF file would hold: same identity, same ids. */
static void parts(const struct tok *t, const struct source *src, const char *path)
{
    size_t n = (size_t)tok_vocab_size(t), n_merges = 0;
    struct tok_str *tokens = calloc(n, sizeof *tokens), *merges = calloc(200000, sizeof *merges);
    int32_t *types = calloc(n, sizeof *types);
    char file[1024];
    struct str s = STR_INIT;
    struct tok *u = NULL;
    if (!tokens || !merges || !types)
        abort();
    for (size_t i = 0; i < n; i++) {
        CHECK(tok_text(t, (int32_t)i, &tokens[i].p, &tokens[i].n));
        types[i] = tok_is_special(t, (int32_t)i) ? TOK_CONTROL : tok_id(t, "<tool_call>") >= 0 && i >= 151657 ? TOK_USER : TOK_NORMAL;
    }
    snprintf(file, sizeof file, "%.*s/merges.txt", (int)(strlen(path) - strlen("/vocab.json")), path);
    CHECK_OK(file_read(file, 0, &s, e));
    for (const char *p = str_c(&s), *nl; (nl = strchr(p, '\n')) != NULL && n_merges < 200000; p = nl + 1)
        if (strncmp(p, "#version", 8) != 0)
            merges[n_merges++] = (struct tok_str){p, (size_t)(nl - p)};
    struct tok_parts parts = {.name = "arrays",
                              .tokens = tokens,
                              .n_tokens = n,
                              .merges = merges,
                              .n_merges = n_merges,
                              .types = types,
                              .pre = src->pre,
                              .bos = -1,
                              .eos = 0,
                              .unk = -1,
                              .chat_template = "x"};
    CHECK_OK(tok_from_parts(&u, &parts, e));
    if (u) {
        CHECK_STR(tok_sha256(u), tok_sha256(t));
        CHECK_STR(tok_chat_template(u), "x");
        CHECK(!tok_add_bos(u) && tok_eos(u) == 0);
        tok_free(u);
    }
    u = NULL;
    parts.add_bos = true;
    CHECK_ERR(tok_from_parts(&u, &parts, e), E_INPUT, "names no BOS token");
    parts.bos = 5;
    CHECK_OK(tok_from_parts(&u, &parts, e));
    const int32_t *fix;
    CHECK(u && tok_add_bos(u) && tok_prefix(u, &fix) == 1 && fix[0] == 5 && strcmp(tok_sha256(u), tok_sha256(t)) != 0);
    tok_free(u);
    parts.bos = (int32_t)n;
    CHECK_ERR(tok_from_parts(&u, &parts, e), E_INPUT, "bos token is id");
    parts.bos = 5;
    parts.pre = "nope";
    CHECK_ERR(tok_from_parts(&u, &parts, e), E_INPUT, "pre-tokenizer 'nope' is not supported");
    parts.pre = src->pre;
    types[7] = 9;
    CHECK_ERR(tok_from_parts(&u, &parts, e), E_INPUT, "token 7 has type 9");
    types[7] = TOK_NORMAL;
    tokens[8] = tokens[9];
    CHECK_ERR(tok_from_parts(&u, &parts, e), E_INPUT, "stands twice");
    free(tokens);
    free(merges);
    free(types);
    str_free(&s);
}

/* llama.cpp's vocabulary-only file holds the same tokenizer as the folder. */
static void gguf_file(const struct tok *gpt2)
{
    const char *path = test_data("tokenizers/llama.cpp/ggml-vocab-gpt-2.gguf");
    struct tok *t = NULL;
    if (!path)
        return;
    CHECK_OK(tok_open(&t, path, NULL, e));
    CHECK(t && tok_vocab_size(t) == 50257 && tok_eos(t) == 50256);
    if (t)
        CHECK_STR(tok_sha256(t), tok_sha256(gpt2));
    tok_free(t);
}

/* Pieces of a megabyte must not take quadratic time: a run without a place to split, marks in a row, blanks, brackets. */
static void long_pieces(const struct tok *t)
{
    enum { N = 1 << 20 };
    static const char *const units[] = {"a", "qzx", " ", "\n", "\xcc\x81\xcc\xa3", "<|", "\xe4\xb8\x80", " \n", "'"};
    char *p = malloc(N + 8);
    if (!p)
        abort();
    for (size_t u = 0; u < ARRAY_LEN(units); u++) {
        size_t len = strlen(units[u]), n = 0;
        for (; n + len <= N; n += len)
            memcpy(p + n, units[u], len);
        int64_t whole = -1;
        CHECK_OK(tok_count(t, p, n, true, &whole, e));
        CHECK(whole > 0 && whole <= (int64_t)n);
    }
    free(p);
}

int main(void)
{
    struct jdoc d = {0};
    struct str s = STR_INIT;
    int done = 0;
    CHECK_OK(file_read("tests/data/tok_vectors.json", 0, &s, e));
    d.root = json_loadb(str_c(&s), s.len, JSON_ALLOW_NUL, NULL);
    CHECK(d.root != NULL);
    for (size_t i = 0; i < ARRAY_LEN(sources) && d.root; i++) {
        const char *path = test_data(sources[i].rel);
        if (!path)
            continue;
        struct tok *t = NULL;
        char at[1024];
        bool folder = !strcmp(path_base(path), "vocab.json");
        snprintf(at, sizeof at, "%.*s", (int)(strlen(path) - (folder ? strlen("/vocab.json") : 0)), path);
        CHECK_OK(tok_load(&t, at, NULL, e));
        if (!t)
            continue;
        vectors(t, sources[i].name, json_object_get(d.root, "texts"), json_object_get(json_object_get(d.root, "ids"), sources[i].name));
        if (sources[i].pre)
            parts(t, &sources[i], path);
        if (!strcmp(sources[i].name, "gpt2"))
            gguf_file(t);
        if (!strcmp(sources[i].name, "qwen2"))
            long_pieces(t);
        tok_free(t);
        done++;
    }
    jdoc_free(&d);
    str_free(&s);
    return done ? test_end() : test_skip("no tokenizers in the test data (set DASHLAB_TEST_DATA)");
}
