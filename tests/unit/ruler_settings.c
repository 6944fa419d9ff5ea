/*
 * lm-evaluation-harness' own generators at further settings: tokenizers (also one that puts a token before each text), both build orders,
 * seeds, several lengths, tasks of our own. tests/data/ruler_harness.tsv holds sha256 sums made by tests/oracle/ruler_harness.py.
 */
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "model/tok.h"
#include "ruler/ruler.h"
#include "tests/test.h"

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

static int64_t tokens(void *ctx, const char *text, size_t n)
{
    struct err e = ERR_INIT;
    int64_t k = -1;
    return tok_count(ctx, text, n, true, &k, &e) == 0 ? k : -1;
}

static int64_t tokens_and_bos(void *ctx, const char *text, size_t n)
{
    return tokens(ctx, text, n) + 1;
}

static const struct setting {
    const char *name, *tokenizer; /* NULL: bytes4 */
    bool bos, reversed, fixtures; /* fixtures: their questions, not SQuAD's and HotpotQA's */
    int64_t lengths[2];
    size_t n_lengths;
    int64_t samples, seed, numpy_seed;
    const char *task_file;
} settings[] = {{"qwen2_default_seeds", "tokenizers/qwen2", false, false, false, {4096}, 1, 25, 0, 1234, NULL},
                {"qwen2_seed0_reversed", "tokenizers/qwen2", false, true, false, {4096}, 1, 25, 0, 0, NULL},
                {"gpt2_two_lengths", "tokenizers/gpt2", false, false, false, {4096, 8192}, 2, 10, 7, 7, NULL},
                {"bytes4_reversed_lengths", NULL, false, true, true, {8192, 4096}, 2, 12, 0, 1234, NULL},
                {"bos_default_seeds", "tokenizers/gpt2", true, false, false, {4096}, 1, 10, 0, 1234, NULL},
                {"custom", NULL, false, false, true, {4096}, 1, 15, 3, 4, "tests/data/ruler_tasks.yaml"}};

/* The sum of a setting's task; our names of the harness' tasks. */
static void compare(const char *list, const struct setting *s, const char *dir, int *n)
{
    for (const char *p = list; *p; p += strcspn(p, "\n") + 1) {
        char name[64], task[64], want[80], path[1024], sub[96], got[65] = "";
        if (sscanf(p, "%63s %63s %79s", name, task, want) != 3 || strcmp(name, s->name) != 0)
            continue;
        const char *own = !strcmp(task, "ruler_qa_squad")    ? "qa_1"
                          : !strcmp(task, "ruler_qa_hotpot") ? "qa_2"
                          : strncmp(task, "ruler_", 6) == 0  ? task + 6
                                                             : task;
        snprintf(sub, sizeof sub, "%s/validation.jsonl", own);
        CHECK_OK(sha256_file(path_join(path, dir, sub), got, e));
        printf("%s %s\n", name, task);
        CHECK_STR(got, want);
        ++*n;
    }
}

int main(void)
{
    const char *essay = test_data("ruler/oracle/fixtures/essay.json");
    char root[] = "/tmp/ruler_settings_XXXXXX", dir[1024], fix_squad[1024], fix_hotpot[1024], squad[1024], hotpot[1024];
    struct str list = STR_INIT;
    int n = 0;
    if (!essay)
        return test_skip("the fixtures (ruler/oracle) are not here");
    snprintf(fix_squad, sizeof fix_squad, "%s", test_data("ruler/oracle/fixtures/squad.json"));
    snprintf(fix_hotpot, sizeof fix_hotpot, "%s", test_data("ruler/oracle/fixtures/hotpotqa.json"));
    snprintf(squad, sizeof squad, "%s", test_data("ruler/squad/dev-v2.0.cs224n.json"));
    snprintf(hotpot, sizeof hotpot, "%s", test_data("ruler/hotpotqa/hotpotqa_first100.original_layout.derived.json"));
    char essays[1024];
    snprintf(essays, sizeof essays, "%s", test_data("ruler/oracle/fixtures/essay.json"));
    CHECK(mkdtemp(root) != NULL);
    CHECK_OK(file_read("tests/data/ruler_harness.tsv", 0, &list, e));
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        const struct setting *s = &settings[i];
        struct tok *tok = NULL;
        if (s->tokenizer)
            CHECK_OK(tok_load(&tok, test_data(s->tokenizer), NULL, e));
        struct ruler_gen_opts o = {.counter = {s->bos ? tokens_and_bos
                                               : tok  ? tokens
                                                      : bytes4,
                                               tok},
                                   .lengths = s->lengths,
                                   .n_lengths = s->n_lengths,
                                   .samples = s->samples,
                                   .seed = s->seed,
                                   .numpy_seed = &s->numpy_seed,
                                   .flavour = "lm-eval",
                                   .data_dir = "ruler/data",
                                   .essays = essays,
                                   .squad = s->fixtures ? fix_squad : squad,
                                   .hotpotqa = s->fixtures ? fix_hotpot : hotpot,
                                   .reversed = s->reversed,
                                   .task_file = s->task_file};
        CHECK_OK(ruler_gen(&o, path_join(dir, root, s->name), e));
        compare(str_c(&list), s, dir, &n);
        tok_free(tok);
    }
    CHECK_EQ_I(n, 5 * 13 + 6);
    str_free(&list);
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
