/*
 * Flavour compact (no reference exists): windows are filled, every sample fits, the answers stand in the prompts, and the bytes do not
 * change unnoticed. The hashes are this program's own, of bundled data with the toy tokenizer of ceil(bytes / 4) tokens.
 */
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "ruler/ruler.h"
#include "tests/test.h"

enum { LEN = 1024, SAMPLES = 40 };

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

struct fill {
    const char *task;
    double sum;
    int64_t n, most;
};

static int look(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct fill *f = ctx;
    bool null;
    UNUSED(e);
    f->sum += (double)s->length;
    f->most = MAX(f->most, s->length);
    f->n++;
    CHECK_EQ_I(s->length, bytes4(NULL, s->prompt, strlen(s->prompt)) + s->gen_tokens);
    CHECK(ruler_match(s->answer, strlen(s->answer), s->refs, s->n_refs, false, &null) == 100);
    for (size_t i = 0; i < s->n_refs; i++)
        CHECK(strstr(s->prompt, s->refs[i]) != NULL);
    return 0;
}

int main(void)
{
    char root[] = "/tmp/ruler_compact_XXXXXX", path[1024], sub[64], hex[65];
    const char *const *names = ruler_task_names();
    /* cwe and fwe change by many tokens a step of their sizes: 30 to 60 */
    static const struct {
        double least;
        const char *sha16;
    } want[] = {{0.97, "579d9dce4dfe3366"}, {0.97, "828e048e61b33958"}, {0.97, "c6e3186a26f6205e"}, {0.97, "a8032f12776832e2"},
                {0.95, "bcd25e2c7bdbceda"}, {0.95, "82ff3e960e812b23"}, {0.97, "c23d833d6535e4aa"}, {0.97, "b09b9c0303571c71"},
                {0.97, "0663ec182a048c9e"}, {0.93, "5ab60564e0efa728"}, {0.93, "8faaa28e3035e35e"}};
    CHECK(mkdtemp(root) != NULL);
    int64_t len = LEN;
    struct ruler_gen_opts o = {.counter = {bytes4, NULL},
                               .lengths = &len,
                               .n_lengths = 1,
                               .samples = SAMPLES,
                               .seed = 42,
                               .flavour = "compact",
                               .data_dir = "ruler/data"};
    CHECK_OK(ruler_gen(&o, root, e));
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        struct fill f = {.task = names[i]};
        CHECK_OK(ruler_each_sample(root, names[i], look, &f, e));
        double mean = f.sum / (double)MAX(f.n, 1) / LEN;
        snprintf(sub, sizeof sub, "%s/validation.jsonl", names[i]);
        CHECK_OK(sha256_file(path_join(path, root, sub), hex, e));
        hex[16] = 0;
        printf("%-16s mean %.3f of the window, longest %lld  %s\n", names[i], mean, (long long)f.most, hex);
        CHECK(f.n == SAMPLES && f.most <= LEN && mean >= want[i].least);
        CHECK_STR(hex, want[i].sha16);
    }
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
