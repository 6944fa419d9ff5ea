/* The generator against files of the unmodified reference: sha256 of whole data sets, flavour nvidia, toy tokenizer of ceil(bytes / 4)
 * tokens. */
#include "core/hash.h"
#include "core/jread.h"
#include "ruler/gen.h"
#include "tests/test.h"

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

static void one(struct ruler_res *res, const struct jdoc *d, const char *run, const char *task, int64_t samples, int64_t seed, bool chat)
{
    const json_t *t = json_object_get(json_object_get(json_object_get(json_object_get(d->root, "runs"), run), "tasks"), task);
    const char *want = json_string_value(json_object_get(t, "sha256"));
    struct gen g = {
        .task = ruler_task_find(task, strlen(task)), .res = res, .counter = {bytes4, NULL}, .flat = chat, .max_len = 4096, .seed = seed};
    struct str out = STR_INIT;
    char hex[65] = "";
    if (chat) {
        g.before = "You are a helpful assistant. USER: ";
        g.after = " ASSISTANT: ";
    }
    CHECK_OK(gen_task(&g, samples, &out, e));
    CHECK_OK(sha256_buf(str_c(&out), out.len, hex, e));
    printf("%s %s\n", run, task);
    CHECK_STR(hex, want ? want : "(no such task in the oracle)");
    if (getenv("RULER_DUMP")) {
        char p[256];
        snprintf(p, sizeof p, "%s/%s.%s", getenv("RULER_DUMP"), run, task);
        FILE *f = fopen(p, "w");
        if (f) {
            fwrite(out.p, 1, out.len, f);
            fclose(f);
        }
    }
    str_free(&out);
}

/* Hash of the whole list of adjective-noun words: 6.2 million, never built by the generator itself. */
static void word_list(const struct ruler_res *res, int64_t n, const char *sha16)
{
    struct sha256 h;
    struct str s = STR_INIT;
    char hex[65];
    CHECK_EQ_I(ruler_words_count(res), n);
    CHECK_OK(sha256_init(&h, e));
    for (int64_t i = 0; i < n; i++) {
        str_clear(&s);
        if (i)
            str_putc(&s, '\n');
        ruler_word(res, i, &s);
        sha256_add(&h, str_c(&s), s.len);
    }
    sha256_end(&h, hex);
    hex[16] = 0;
    CHECK_STR(hex, sha16);
    str_free(&s);
}

int main(void)
{
    const char *oracle = test_data("ruler/oracle/ruler_oracle.json"), *essay = test_data("ruler/oracle/fixtures/essay.json");
    struct ruler_res res = {0}, res3 = {0};
    CHECK_OK(ruler_res_load(&res, &(struct ruler_sources){.data_dir = "ruler/data", .essays = essay}, e));
    if (test_failed)
        return test_end();
    word_list(&res, 6175260, "020e4aab7091c71c");
    CHECK_EQ_I(res.cwe.n, 8169);
    CHECK_OK(ruler_res_load(&res3, &(struct ruler_sources){.data_dir = "ruler/data", .wonderwords = "3.0.0"}, e));
    word_list(&res3, 6171620, "e5e6a09ed20903cb");
    CHECK_EQ_I(res3.cwe.n, 8166);
    ruler_res_free(&res3);
    if (!oracle || !essay)
        return test_failed ? test_end() : test_skip("the word lists are right; the reference's hashes (ruler/oracle) are not here");
    struct jdoc d = {0};
    CHECK_OK(ruler_qa_load(&res, 0, test_data("ruler/oracle/fixtures/squad.json"), e));
    CHECK_OK(ruler_qa_load(&res, 1, test_data("ruler/oracle/fixtures/hotpotqa.json"), e));
    CHECK_OK(jdoc_load(&d, oracle, 1 << 20, e));
    for (size_t i = 0; i < ruler_n_tasks; i++) {
        one(&res, &d, "fix_bytes4_4096", ruler_tasks[i].name, 20, 42, false);
        one(&res, &d, "fix_bytes4_4096_seed7_lwm_flat", ruler_tasks[i].name, 10, 7, true);
    }
    jdoc_free(&d);
    ruler_res_free(&res);
    return test_end();
}
