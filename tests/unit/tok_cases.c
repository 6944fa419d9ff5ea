/* Ids of published cases: llama.cpp's 46 for gpt-2, qwen2 and the llama-3 split rule, SmolLM2's edge cases, texts and chats, the tiny
 * teacher's file. */
#include "tests/test.h"

#include "core/fs.h"
#include "core/jread.h"
#include "model/chat.h"
#include "model/tok.h"

static bool same_ids(const char *what, size_t k, const struct tok_ids *got, const int32_t *want, size_t n)
{
    test_checks++;
    bool ok = got->n == n && (n == 0 || !memcmp(got->v, want, n * sizeof *want));
    if (!ok) {
        test_failed++;
        printf("%s case %zu: got", what, k);
        for (size_t i = 0; i < got->n; i++)
            printf(" %d", got->v[i]);
        printf("; wanted");
        for (size_t i = 0; i < n; i++)
            printf(" %d", want[i]);
        printf("\n");
    }
    return ok;
}

/* Ids, the count, and (where every byte has a token and nothing is normalised) the text back. */
static void check_text(const char *what, size_t k, const struct tok *t, const char *p, size_t n, const int32_t *want, size_t n_want,
                       bool back)
{
    struct tok_ids ids = {0};
    struct str s = STR_INIT;
    int64_t count = -1;
    CHECK_OK(tok_encode(t, p, n, true, &ids, e));
    same_ids(what, k, &ids, want, n_want);
    CHECK_OK(tok_count(t, p, n, true, &count, e));
    CHECK(count == (int64_t)ids.n);
    if (back) {
        CHECK_OK(tok_decode(t, ids.v, ids.n, false, &s, e));
        CHECK(s.len == n && !memcmp(str_c(&s), p, n));
    }
    str_free(&s);
    tok_ids_free(&ids);
}

static size_t parse_ids(const char *p, int32_t *v, size_t cap)
{
    size_t n = 0;
    char *end;
    for (;; p = end) {
        long x = strtol(p, &end, 10);
        if (end == p || n == cap)
            return n;
        v[n++] = (int32_t)x;
    }
}

/*
 * `.inp` texts are separated by a line __ggml_vocab_test__, `.out` has a line of ids each. below: cases with an id from there on are left
 * out. (Llama 3's vocabulary is not at hand; its ids below 100,000 are those of the 100k vocabulary that dolma2 has too, and both have one
 * split rule.)
 */
static int llama_cpp(const struct tok *t, const char *name, int32_t below)
{
    char rel[128];
    struct str in = STR_INIT, out = STR_INIT;
    snprintf(rel, sizeof rel, "tokenizers/llama.cpp/ggml-vocab-%s.gguf.inp", name);
    const char *pi = test_data(rel);
    snprintf(rel, sizeof rel, "tokenizers/llama.cpp/ggml-vocab-%s.gguf.out", name);
    const char *po = test_data(rel);
    if (!pi || !po)
        return 0;
    CHECK_OK(file_read(pi, 0, &in, e));
    CHECK_OK(file_read(po, 0, &out, e));
    const char *sep = "\n__ggml_vocab_test__\n", *p = str_c(&in), *q = str_c(&out);
    int cases = 0, out_of = 0;
    while (*q) {
        const char *stop = strstr(p, sep), *nl = strchr(q, '\n');
        int32_t want[512];
        char line[4096];
        snprintf(line, sizeof line, "%.*s", nl ? (int)(nl - q) : (int)strlen(q), q);
        size_t n = parse_ids(line, want, ARRAY_LEN(want));
        bool known = true;
        for (size_t i = 0; i < n; i++)
            known = known && want[i] < below;
        if (known)
            check_text(name, (size_t)(cases + out_of), t, p, stop ? (size_t)(stop - p) : strlen(p), want, n, true);
        cases += known;
        out_of += !known;
        if (!nl || !stop)
            break;
        p = stop + strlen(sep);
        q = nl + 1;
    }
    printf("%s: %d cases, %d left out\n", name, cases, out_of);
    str_free(&in);
    str_free(&out);
    return cases;
}

static size_t smol_cases(const struct tok *t, const struct jdoc *d, const char *key, bool texts_are_chats)
{
    const json_t *list = json_object_get(d->root, key);
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(list, i), *ids = json_object_get(o, "ids");
        const char *text = json_string_value(json_object_get(o, "text"));
        size_t len = json_string_length(json_object_get(o, "text"));
        int32_t *want = malloc((json_array_size(ids) + 1) * sizeof *want);
        if (!want)
            abort();
        for (size_t k = 0; k < json_array_size(ids); k++)
            want[k] = (int32_t)json_integer_value(json_array_get(ids, k));
        const json_t *eq = json_object_get(o, "decoded_equal");
        check_text(key, i, t, text, len, want, json_array_size(ids), !eq || json_is_true(eq));
        free(want);
        if (!texts_are_chats)
            continue;
        const json_t *ms = json_object_get(o, "messages");
        struct chat_msg m[16];
        struct str s = STR_INIT;
        for (size_t k = 0; k < json_array_size(ms) && k < ARRAY_LEN(m); k++)
            m[k] = (struct chat_msg){json_string_value(json_object_get(json_array_get(ms, k), "role")),
                                     json_string_value(json_object_get(json_array_get(ms, k), "content"))};
        enum chat_kind kind = chat_detect(json_string_value(json_object_get(d->root, "chat_template")));
        CHECK(kind == CHAT_SMOLLM2);
        CHECK_OK(chat_render(kind, m, json_array_size(ms), json_is_true(json_object_get(o, "add_generation_prompt")), &s, e));
        CHECK_STR(str_c(&s), text);
        str_free(&s);
    }
    return n;
}

/* These files hold U+0000, which core/jread.h refuses. */
static int load_with_nul(struct jdoc *d, const char *path)
{
    struct str s = STR_INIT;
    *d = (struct jdoc){0};
    CHECK_OK(file_read(path, 0, &s, e));
    d->root = json_loadb(str_c(&s), s.len, JSON_ALLOW_NUL, NULL);
    CHECK(d->root != NULL);
    str_free(&s);
    return d->root ? 0 : -1;
}

static void smol(const struct tok *t)
{
    struct jdoc d;
    const char *p = test_data("oracle/model/smol/smol_tokenizer_chat.json"), *q = test_data("oracle/model/smol/smol_texts.json");
    if (!p || !q)
        return;
    if (load_with_nul(&d, p) != 0)
        return;
    CHECK(smol_cases(t, &d, "tokenizer_cases", false) > 10);
    CHECK(smol_cases(t, &d, "chat", true) == 5);
    const json_t *none = json_object_get(d.root, "bytes_without_token");
    bool lacks[256] = {false};
    for (size_t i = 0; i < json_array_size(none); i++)
        lacks[json_integer_value(json_array_get(none, i)) & 255] = true;
    for (int b = 1; b < 128; b++) { /* bytes above are no text alone */
        char c = (char)b;
        int64_t n = -1;
        CHECK_OK(tok_count(t, &c, 1, true, &n, e));
        CHECK(n == (lacks[b] ? 0 : 1));
    }
    jdoc_free(&d);
    if (load_with_nul(&d, q) != 0)
        return;
    CHECK(smol_cases(t, &d, "texts", false) == 6);
    jdoc_free(&d);
}

/* The first 20,000 ids of wikitext2 test, in one piece of 1.3 MB. */
static void smol_wikitext(const struct tok *t)
{
    const char *p = test_data("wikitext2/wiki.test.raw"), *q = test_data("oracle/model/smol/wikitext2_test_first20000.u16");
    struct str text = STR_INIT, want = STR_INIT;
    struct tok_ids ids = {0};
    if (!p || !q)
        return;
    CHECK_OK(file_read(p, 0, &text, e));
    CHECK_OK(file_read(q, 0, &want, e));
    CHECK_OK(tok_encode(t, text.p, text.len, true, &ids, e));
    CHECK(ids.n == 303415 && want.len == 40000);
    size_t wrong = 0;
    for (size_t i = 0; i < 20000 && ids.n >= 20000; i++)
        wrong += ids.v[i] != (int32_t)((uint8_t)want.p[2 * i] | (uint8_t)want.p[2 * i + 1] << 8);
    CHECK(wrong == 0);
    tok_ids_free(&ids);
    str_free(&text);
    str_free(&want);
}

/* Loads REL (or the folder it is in) from the test data. */
static struct tok *load(const char *rel, bool folder)
{
    const char *path = test_data(rel);
    struct tok *t = NULL;
    char dir[1024];
    if (!path)
        exit(test_skip("no tokenizers in the test data (set DASHLAB_TEST_DATA)"));
    snprintf(dir, sizeof dir, "%.*s", (int)(strlen(path) - (folder ? strlen(path_base(path)) + 1 : 0)), path);
    CHECK_OK(tok_load(&t, dir, NULL, e));
    if (!t)
        exit(test_end());
    return t;
}

int main(void)
{
    struct tok *t = load("tokenizers/gpt2/vocab.json", true);
    CHECK_STR(tok_family(t), "gpt2");
    CHECK(tok_vocab_size(t) == 50257 && tok_eos(t) == 50256 && tok_is_special(t, 50256));
    CHECK(llama_cpp(t, "gpt-2", INT32_MAX) == 46);
    tok_free(t);

    t = load("tokenizers/qwen2/vocab.json", true);
    CHECK_STR(tok_family(t), "qwen2");
    CHECK_STR(tok_normalizer(t), "nfc");
    CHECK(tok_vocab_size(t) == 151665 && tok_id(t, "<|im_end|>") == 151645 && tok_id(t, "<tool_call>") == 151657 && tok_bos(t) == -1);
    CHECK(llama_cpp(t, "qwen2", INT32_MAX) == 46);
    tok_free(t);

    t = load("tokenizers/dolma2/tokenizer.json", false);
    CHECK_STR(tok_family(t), "dolma2");
    CHECK(tok_vocab_size(t) == 100278 && tok_id(t, "<|endoftext|>") == 100257 && !tok_is_special(t, 100261));
    CHECK(llama_cpp(t, "llama-bpe", 100000) >= 30);
    tok_free(t);

    t = load("tokenizers/smollm2/vocab.json", true);
    CHECK_STR(tok_family(t), "smollm");
    CHECK(tok_vocab_size(t) == 49152 && tok_is_special(t, 16) && !tok_is_special(t, 17));
    smol(t);
    smol_wikitext(t);
    tok_free(t);

    t = load("models/tiny-teacher/tokenizer.json", false);
    CHECK_STR(tok_family(t), "qwen2");
    CHECK(tok_vocab_size(t) == 4096 && tok_eos(t) == 0 && tok_is_special(t, 2));
    tok_free(t);
    return test_end();
}
