/*
 * Flavour lm-eval against lm-evaluation-harness' own data sets: sha256 of all 13, 500 documents each, made in one call with one shared
 * stream. The oracle's question lists are the fixtures' repeated (SQuAD's data 4 times, HotpotQA's 7 times).
 */
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "ruler/ruler.h"
#include "tests/test.h"

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

/* The array at `key` of a JSON file (NULL = the root) repeated, written to out. */
static void repeat(const char *path, const char *key, int times, const char *out)
{
    struct jdoc d = {0};
    CHECK_OK(jdoc_load(&d, path, 1 << 24, e));
    json_t *list = key ? json_object_get(d.root, key) : d.root;
    size_t n = json_array_size(list);
    CHECK(n > 0);
    for (int k = 1; k < times; k++)
        for (size_t i = 0; i < n; i++)
            json_array_append(list, json_array_get(list, i));
    CHECK(json_dump_file(d.root, out, JSON_COMPACT) == 0);
    jdoc_free(&d);
}

static void file_hash(const char *root, const char *task, const char *want)
{
    char path[1024], sub[64], hex[65] = "";
    snprintf(sub, sizeof sub, "%s/validation.jsonl", task);
    CHECK_OK(sha256_file(path_join(path, root, sub), hex, e));
    printf("%s\n", task);
    CHECK_STR(hex, want ? want : "(not in the oracle)");
}

static const char *const names[][2] = {
    {"niah_single_1", NULL},   {"niah_single_2", NULL},    {"niah_single_3", NULL},    {"niah_multikey_1", NULL}, {"niah_multikey_2", NULL},
    {"niah_multikey_3", NULL}, {"niah_multiquery", NULL},  {"niah_multivalue", NULL},  {"vt", "ruler_vt"},        {"cwe", "ruler_cwe"},
    {"fwe", "ruler_fwe"},      {"qa_1", "ruler_qa_squad"}, {"qa_2", "ruler_qa_hotpot"}};

struct seen {
    int64_t n;
};
static int look(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct seen *x = ctx;
    bool null;
    UNUSED(e);
    x->n++;
    CHECK(strstr(s->prompt, "Memorize") || strstr(s->prompt, "memorize") || strstr(s->prompt, "Answer the question") ||
          strstr(s->prompt, "coded text"));
    size_t n = strlen(s->prompt);
    CHECK(s->prompt[n - 1] == ':' || (n > 4 && (strcmp(s->prompt + n - 3, " is") == 0 || strcmp(s->prompt + n - 4, " are") == 0)));
    double part = ruler_match(s->answer, strlen(s->answer), s->refs, s->n_refs, true, &null);
    CHECK(part == 100 && !null);
    return 0;
}

int main(void)
{
    const char *oracle = test_data("ruler/oracle/ruler_oracle.json"), *essay = test_data("ruler/oracle/fixtures/essay.json");
    const char *squad = test_data("ruler/oracle/fixtures/squad.json"), *hotpot = test_data("ruler/oracle/fixtures/hotpotqa.json");
    if (!oracle || !essay || !squad || !hotpot)
        return test_skip("the harness' hashes and fixtures (ruler/oracle) are not here");
    char root[] = "/tmp/ruler_harness_XXXXXX", s4[1024], h7[1024], out[1024], rev[1024], path[1024];
    CHECK(mkdtemp(root) != NULL);
    repeat(squad, "data", 4, path_join(s4, root, "squad.json"));
    repeat(hotpot, NULL, 7, path_join(h7, root, "hotpotqa.json"));
    int64_t len = 4096, np = 0;
    struct ruler_gen_opts o = {.counter = {bytes4, NULL},
                               .lengths = &len,
                               .n_lengths = 1,
                               .samples = 500,
                               .seed = 0,
                               .numpy_seed = &np,
                               .flavour = "lm-eval",
                               .data_dir = "ruler/data",
                               .essays = essay,
                               .squad = s4,
                               .hotpotqa = h7};
    CHECK_OK(ruler_gen(&o, path_join(out, root, "forward"), e));
    struct jdoc d = {0};
    CHECK_OK(jdoc_load(&d, oracle, 1 << 20, e));
    const json_t *tasks = json_object_get(json_object_get(json_object_get(d.root, "runs"), "lm_eval_forward_bytes4_4096"), "tasks");
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        file_hash(out, names[i][0],
                  json_string_value(json_object_get(json_object_get(tasks, names[i][1] ? names[i][1] : names[i][0]), "sha256")));
    struct seen seen = {0};
    CHECK_OK(ruler_each_sample(out, NULL, look, &seen, e));
    CHECK_EQ_I(seen.n, 13 * 500);

    /* the other order: HotpotQA's questions come first from a fresh stream, so that task alone gives the same file */
    o.reversed = true;
    o.samples = 5;
    CHECK_OK(ruler_gen(&o, path_join(rev, root, "reversed"), e));
    char a[65] = "", b[65] = "", c[65] = "";
    CHECK_OK(sha256_file(path_join(path, rev, "qa_2/validation.jsonl"), a, e));
    CHECK_OK(sha256_file(path_join(path, rev, "niah_single_1/validation.jsonl"), c, e));
    o.tasks = "ruler_qa_hotpot";
    CHECK_OK(ruler_gen(&o, path_join(rev, root, "one"), e));
    CHECK_OK(sha256_file(path_join(path, rev, "qa_2/validation.jsonl"), b, e));
    CHECK_STR(a, b);
    o.tasks = "niah_single_1";
    CHECK_OK(ruler_gen(&o, path_join(rev, root, "first"), e));
    CHECK_OK(sha256_file(path_join(path, rev, "niah_single_1/validation.jsonl"), b, e));
    CHECK(strcmp(b, c) != 0); /* ... and the needles, last in this order, differ from those of a run of their own */
    o.chat = "meta-chat";
    CHECK_ERR(ruler_gen(&o, rev, e), E_USAGE, "no chat templates");
    jdoc_free(&d);
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
