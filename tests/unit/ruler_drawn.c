/*
 * Layout `drawn`: a place in the essay, in cwe and fwe an order of the words for each sample. Samples fit, hold their answers, differ in
 * their beginnings or in where their answers stand, and come out the same on any number of threads and with other tasks beside them.
 * Folders of essays.
 */
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/pool.h"
#include "ruler/ruler.h"
#include "tests/test.h"

enum { SAMPLES = 30, HEAD = 40 };
static const char all[] = "niah_single_2,niah_single_3,niah_multikey_1,niah_multivalue,niah_multiquery,own_vt";
static char root[] = "/tmp/ruler_drawn_XXXXXX";

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

static struct ruler_gen_opts opts(const int64_t *len, size_t n, const char *tasks)
{
    return (struct ruler_gen_opts){.counter = {bytes4, NULL},
                                   .lengths = len,
                                   .n_lengths = n,
                                   .samples = SAMPLES,
                                   .seed = 42,
                                   .flavour = "compact",
                                   .data_dir = "ruler/data",
                                   .tasks = tasks,
                                   .drawn = true};
}

static const char *in(char dst[1024], const char *name)
{
    return path_join(dst, root, name);
}

static void hash_of(const char *name, const char *task, char hex[65])
{
    char dir[1024], path[1024], sub[64];
    snprintf(sub, sizeof sub, "%s/validation.jsonl", task);
    CHECK_OK(sha256_file(path_join(path, in(dir, name), sub), hex, e));
}

/* Whether two folders hold the same bytes of a task. */
static bool equal(const char *a, const char *b, const char *task)
{
    char x[65], y[65];
    hash_of(a, task, x);
    hash_of(b, task, y);
    return strcmp(x, y) == 0;
}

struct seen {
    int64_t most, n, same;
    double sum;
    char head[2 * SAMPLES][HEAD + 1]; /* of every haystack */
};

/* The essay without the needles or lines that stand at its very beginning. */
static const char *essay_of(const char *hay)
{
    for (; *hay == ' ' || strncmp(hay, "One of the special magic ", 25) == 0 || strncmp(hay, "VAR ", 4) == 0; hay++)
        hay = *hay == ' ' ? hay : strchr(hay, '.');
    return hay;
}

/* The haystack follows the task's first line, in vt (where an example comes first) the last "following text". */
static int look(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct seen *v = ctx;
    bool null;
    UNUSED(e);
    const char *hay = strstr(s->prompt, "afterwards.\n");
    hay = hay ? hay + 12 : NULL;
    for (const char *p = hay ? NULL : s->prompt; p; p = strstr(hay, "following text.\n\n"))
        hay = p + 17;
    v->most = MAX(v->most, s->length);
    v->sum += (double)s->length;
    CHECK_EQ_I(s->length, bytes4(NULL, s->prompt, strlen(s->prompt)) + s->gen_tokens);
    CHECK(ruler_match(s->answer, strlen(s->answer), s->refs, s->n_refs, false, &null) == 100);
    for (size_t i = 0; i < s->n_refs; i++)
        CHECK(strstr(hay, s->refs[i]) != NULL);
    CHECK(v->n < 2 * SAMPLES);
    snprintf(v->head[v->n], HEAD + 1, "%s", essay_of(hay));
    for (int64_t i = 0; i < v->n; i++)
        v->same += strcmp(v->head[i], v->head[v->n]) == 0;
    v->n++;
    return 0;
}

static void samples(const char *tasks)
{
    static const char *const names[] = {"niah_single_2", "niah_multiquery", "own_vt"};
    int64_t len[] = {1024, 700};
    char dir[1024], file[1024], alone[1024];
    in(file, "own.yaml");
    CHECK_OK(file_write(file, tasks, strlen(tasks), e));
    struct ruler_gen_opts o = opts(len, 2, all);
    o.task_file = file;
    CHECK_OK(ruler_gen(&o, in(dir, "one"), e));
    for (int threads = 2; threads <= 3; threads++) {
        CHECK_OK(pool_open(&o.pool, threads, e));
        CHECK_OK(ruler_gen(&o, in(dir, threads == 2 ? "two" : "three"), e));
        pool_close(o.pool);
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            CHECK(equal("one", threads == 2 ? "two" : "three", names[i]));
    }
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct seen v = {0};
        CHECK_OK(ruler_each_sample(in(dir, "one"), names[i], look, &v, e));
        printf("%-16s mean %.3f of the windows, longest %lld, %lld pairs begin alike\n", names[i], v.sum / (double)v.n / 862,
               (long long)v.most, (long long)v.same);
        /* 60 of about 19,000 sentences: 0.1 pairs alike on average */
        CHECK(v.n == 2 * SAMPLES && v.most <= 1024 && v.same <= 2 && v.sum / (double)v.n / 862 > 0.9);
    }
    /* a task alone, the second length alone with its seed: the same bytes */
    o = opts(len, 2, "niah_multiquery");
    CHECK_OK(ruler_gen(&o, in(alone, "alone"), e));
    CHECK(equal("one", "alone", "niah_multiquery"));
    o.tasks = "niah_single_2";
    o.n_lengths = 1;
    CHECK_OK(ruler_gen(&o, in(alone, "first"), e));
    struct str two = STR_INIT, one = STR_INIT;
    CHECK_OK(file_read(in(file, "one/niah_single_2/validation.jsonl"), 0, &two, e));
    CHECK_OK(file_read(in(file, "first/niah_single_2/validation.jsonl"), 0, &one, e));
    CHECK(one.len < two.len && memcmp(str_c(&one), str_c(&two), one.len) == 0);
    str_free(&one);
    str_free(&two);
}

/* `shared` begins every sample alike. What has neither an essay nor shuffled words stays. */
static void beside_shared(void)
{
    int64_t len = 1024;
    char dir[1024], path[1024];
    struct seen a = {0}, s = {0};
    struct str p = STR_INIT;
    struct ruler_gen_opts o = opts(&len, 1, "niah_single_2,niah_multikey_2,niah_single_1,vt");
    CHECK_OK(ruler_gen(&o, in(dir, "drawn"), e));
    CHECK_OK(ruler_each_sample(dir, "niah_single_2", look, &a, e));
    CHECK_OK(file_read(path_join(path, dir, "niah_single_2/provenance.json"), 0, &p, e));
    CHECK(strstr(str_c(&p), "\"layout\": \"drawn\"") != NULL);
    str_clear(&p);
    CHECK_OK(file_read(path_join(path, dir, "vt/provenance.json"), 0, &p, e));
    CHECK(strstr(str_c(&p), "layout") == NULL);
    o.drawn = false;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "other parameters");
    CHECK_OK(ruler_gen(&o, in(dir, "shared"), e));
    CHECK_OK(ruler_each_sample(dir, "niah_single_2", look, &s, e));
    CHECK(s.same == SAMPLES * (SAMPLES - 1) / 2 && a.same <= 1);
    CHECK(equal("drawn", "shared", "niah_single_1") && equal("drawn", "shared", "vt") && equal("drawn", "shared", "niah_multikey_2"));
    CHECK(!equal("drawn", "shared", "niah_single_2"));
    str_clear(&p);
    CHECK_OK(file_read(path_join(path, dir, "provenance.json"), 0, &p, e));
    CHECK(strstr(str_c(&p), "layout") == NULL);
    str_free(&p);
    o.drawn = true;
    static const char *const others[] = {"nvidia", "lm-eval"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        o.flavour = others[i];
        CHECK_ERR(ruler_gen(&o, in(dir, "refused"), e), E_USAGE, "'drawn' belongs to 'compact'");
        CHECK(!dir_exists(dir));
    }
}

struct order {
    int64_t n, most, size[2 * SAMPLES], same, pairs; /* pairs of samples of one size; of them, with their answers at the same places */
    uint64_t at[2 * SAMPLES];
    double sum;
};

/* Where the answers stand in the list, the last one of the prompt (cwe has an example before it). */
static int places(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct order *v = ctx;
    bool null;
    const char *list = NULL;
    UNUSED(e);
    for (const char *p = s->prompt; (p = strstr(p, "Question: ")) != NULL; p++)
        if (strstr(p + 1, "Question: ") == NULL)
            for (list = p; strncmp(list, "appear most often.\n", 19) != 0 && strncmp(list, "coded words. ", 13) != 0;)
                list--;
    uint64_t at = 0;
    int64_t n = 0, hits = 0;
    for (const char *p = list; *p && strncmp(p, "\nQuestion", 9) != 0; n++) {
        size_t len = strcspn(p, " \n");
        for (size_t i = 0; i < s->n_refs; i++)
            if (strlen(s->refs[i]) == len && memcmp(s->refs[i], p, len) == 0) {
                at = (at ^ ((uint64_t)n << 8 | i)) * UINT64_C(0x100000001b3);
                hits++;
            }
        p += len + (p[len] == ' ' || strncmp(p + len, "\nQuestion", 9) != 0);
    }
    CHECK(v->n < 2 * SAMPLES && hits > (int64_t)s->n_refs);
    CHECK_EQ_I(s->length, bytes4(NULL, s->prompt, strlen(s->prompt)) + s->gen_tokens);
    CHECK(ruler_match(s->answer, strlen(s->answer), s->refs, s->n_refs, false, &null) == 100);
    for (int64_t i = 0; i < v->n; i++) {
        v->pairs += v->size[i] == n;
        v->same += v->size[i] == n && v->at[i] == at;
    }
    v->most = MAX(v->most, s->length);
    v->sum += (double)s->length;
    v->size[v->n] = n;
    v->at[v->n++] = at;
    return 0;
}

/* cwe and fwe: `shared` has the answers at the same places in all samples of one size, `drawn` nowhere the same. */
static void words(void)
{
    static const char *const names[] = {"cwe", "fwe"};
    int64_t len = 1024;
    char dir[1024], path[1024], sub[64];
    struct str p = STR_INIT;
    struct ruler_gen_opts o = opts(&len, 1, "cwe,fwe,niah_single_1");
    CHECK_OK(ruler_gen(&o, in(dir, "words"), e));
    CHECK_OK(pool_open(&o.pool, 2, e));
    CHECK_OK(ruler_gen(&o, in(dir, "words2"), e));
    pool_close(o.pool);
    o.pool = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        CHECK(equal("words", "words2", names[i]));
        o.tasks = names[i];
        CHECK_OK(ruler_gen(&o, in(dir, "words1"), e));
        CHECK(equal("words", "words1", names[i]));
    }
    o.tasks = "cwe,fwe";
    o.drawn = false;
    CHECK_OK(ruler_gen(&o, in(dir, "ordered"), e));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct order drawn = {0}, shared = {0};
        CHECK_OK(ruler_each_sample(in(dir, "words"), names[i], places, &drawn, e));
        CHECK_OK(ruler_each_sample(in(dir, "ordered"), names[i], places, &shared, e));
        printf("%-4s drawn: mean %.3f of the window, %lld of %lld pairs alike; shared: %lld of %lld\n", names[i],
               drawn.sum / (double)drawn.n / (double)len, (long long)drawn.same, (long long)drawn.pairs, (long long)shared.same,
               (long long)shared.pairs);
        CHECK(drawn.n == SAMPLES && drawn.most <= len && drawn.sum / (double)drawn.n / (double)len > 0.9);
        CHECK(drawn.same == 0 && drawn.pairs > SAMPLES);
        CHECK(shared.same == shared.pairs && shared.pairs > SAMPLES);
        for (int k = 0; k < 2; k++) {
            snprintf(sub, sizeof sub, "%s/%s/provenance.json", k ? "ordered" : "words", names[i]);
            str_clear(&p);
            CHECK_OK(file_read(in(path, sub), 0, &p, e));
            CHECK((strstr(str_c(&p), "\"layout\": \"drawn\"") != NULL) == !k);
        }
    }
    str_free(&p);
}

/* A text shorter than its haystacks goes round; a folder is its texts joined in the order of their names. */
static void folders(void)
{
    static const char *const part[] = {"The cat sat. A dog ran\n", "by? No one\tsaw it", " The end."};
    static const char *const name[] = {"ess/a.txt", "ess/b.txt", "ess/c.txt"};
    int64_t len = 512;
    char dir[1024], path[1024], whole[1024];
    struct seen v = {0};
    struct str text = STR_INIT;
    CHECK_OK(mkdir_p(in(dir, "ess"), e));
    struct ruler_gen_opts o = opts(&len, 1, "niah_single_2");
    o.essays = in(whole, "ess");
    CHECK_ERR(ruler_gen(&o, in(dir, "joined"), e), E_INPUT, "the folder holds no text");
    for (int i = 2; i >= 0; i--) {
        CHECK_OK(file_write(in(path, name[i]), part[i], strlen(part[i]), e));
        CHECK_OK(mkdir_p(in(path, "ess/more"), e));
    }
    CHECK_OK(file_write(in(path, "ess/README.md"), "\xff", 1, e)); /* left out */
    for (size_t i = 0; i < ARRAY_LEN(part); i++)
        str_printf(&text, "%s%s", i ? " " : "", part[i]);
    CHECK_OK(ruler_gen(&o, in(dir, "joined"), e));
    CHECK_OK(ruler_each_sample(dir, "niah_single_2", look, &v, e));
    CHECK(v.n == SAMPLES && v.most <= len && v.same > 0);
    CHECK_OK(file_write(in(path, "whole.txt"), str_c(&text), text.len, e));
    o.essays = path;
    CHECK_OK(ruler_gen(&o, in(dir, "whole"), e));
    CHECK(equal("joined", "whole", "niah_single_2"));
    str_free(&text);
    CHECK_OK(file_write(in(path, "ess/b.txt"), "x\0", 2, e));
    o.essays = whole;
    CHECK_ERR(ruler_gen(&o, in(dir, "bad"), e), E_INPUT, "ess/b.txt': byte 1 is a zero byte");
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    samples("own_vt: {task: vt, args: {type_haystack: essay, num_chains: 1, num_hops: 2}}\n");
    beside_shared();
    words();
    folders();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
