/*
 * Task files: built-in tasks said again in a file give the same bytes in every flavour; tasks of our own give those of the references with
 * the same arguments; every mistake in a file is reported at its place; folders keep the file.
 */
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/pool.h"
#include "ruler/ruler.h"
#include "tests/test.h"

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

static char root[] = "/tmp/ruler_taskfile_XXXXXX", file[1024], squad[1024];

static char *in(char dst[1024], const char *name)
{
    return path_join(dst, root, name);
}

static void write_file(const char *path, const char *text)
{
    CHECK_OK(file_write(path, text, strlen(text), e));
}

static void hash_of(const char *dir, const char *task, char hex[65])
{
    char path[1024], sub[64];
    hex[0] = 0;
    snprintf(sub, sizeof sub, "%s/validation.jsonl", task);
    CHECK_OK(sha256_file(path_join(path, dir, sub), hex, e));
}

static struct ruler_gen_opts opts(const char *flavour, const int64_t *len, int64_t samples)
{
    return (struct ruler_gen_opts){.counter = {bytes4, NULL},
                                   .lengths = len,
                                   .n_lengths = 1,
                                   .samples = samples,
                                   .seed = 9,
                                   .flavour = flavour,
                                   .data_dir = "ruler/data",
                                   .tokenizer_name = "test",
                                   .squad = squad};
}

/* In the harness' build order, so that the shared stream is the same, too. */
static const char again[] = "a1: {task: niah, args: {type_haystack: noise}}\n"
                            "a2: {task: niah}\n"
                            "a3: {task: niah, args: {type_needle_v: uuids}}\n"
                            "b1: {task: niah, args: {num_needle_k: 4}}\n"
                            "b2: {task: niah, args: {type_haystack: needle}}\n"
                            "b3: {task: niah, args: {type_haystack: needle, type_needle_k: uuids, type_needle_v: uuids}}\n"
                            "mq: {task: niah, args: {num_needle_q: 4}}\n"
                            "mv: {task: niah, args: {num_needle_v: 4}}\n"
                            "chain: {task: vt}\n"
                            "common: {task: common_words_extraction, args: {freq_cw: 30, freq_ucw: 3, num_cw: 10, num_fewshot: 1}}\n"
                            "coded: {task: freq_words_extraction, args: {alpha: 2.0}, tokens_to_generate: 50}\n"
                            "asked: {task: qa, args: {dataset: squad}}\n";
static const char *const pairs[][2] = {{"a1", "niah_single_1"},   {"a2", "niah_single_2"},   {"a3", "niah_single_3"},
                                       {"b1", "niah_multikey_1"}, {"b2", "niah_multikey_2"}, {"b3", "niah_multikey_3"},
                                       {"mq", "niah_multiquery"}, {"mv", "niah_multivalue"}, {"chain", "vt"},
                                       {"common", "cwe"},         {"coded", "fwe"},          {"asked", "qa_1"}};

static void same_bytes(const char *flavour, int64_t len)
{
    char a[1024], b[1024], name[64], ha[65], hb[65];
    struct ruler_gen_opts o = opts(flavour, &len, 3);
    snprintf(name, sizeof name, "own-%s", flavour);
    in(a, name);
    snprintf(name, sizeof name, "built-in-%s", flavour);
    in(b, name);
    CHECK_OK(ruler_gen(&o, b, e));
    o.task_file = file;
    CHECK_OK(pool_open(&o.pool, 2, e));
    CHECK_OK(ruler_gen(&o, a, e)); /* on two threads */
    pool_close(o.pool);
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        hash_of(a, pairs[i][0], ha);
        hash_of(b, pairs[i][1], hb);
        printf("%s %s\n", flavour, pairs[i][1]);
        CHECK_STR(ha, hb);
    }
    CHECK(!file_exists(path_join(b, a, "niah_single_1/validation.jsonl"))); /* a file stands for itself */
}

static int count_sample(void *ctx, const struct ruler_sample *s, struct err *e)
{
    int64_t *n = ctx;
    bool null;
    UNUSED(e);
    ++*n;
    CHECK(ruler_match(s->answer, strlen(s->answer), s->refs, s->n_refs, false, &null) == 100);
    return 0;
}

/* A folder keeps its file: samples are read back with it, another file is refused, so are other parameters under an old name. */
static void folders(void)
{
    char dir[1024], path[1024], other[1024];
    int64_t len = 1024, n = 0;
    struct ruler_gen_opts o = opts("compact", &len, 2);
    struct jdoc d = {0};
    write_file(file, "mine: {task: niah, args: {num_needle_k: 3, num_needle_q: 2}, tokens_to_generate: 40, lengths: [512, 700]}\n"
                     "niah_single_1: {task: niah, args: {type_haystack: noise, type_needle_k: words, type_needle_v: numbers}}\n");
    o.task_file = file;
    CHECK_OK(ruler_gen(&o, in(dir, "folder"), e));
    CHECK_OK(ruler_each_sample(dir, NULL, count_sample, &n, e));
    CHECK_EQ_I(n, 2 * 2 + 2);
    CHECK(file_exists(path_join(path, dir, "tasks.yaml")));
    CHECK_OK(jdoc_load(&d, path_join(path, dir, "mine/provenance.json"), 1 << 20, e));
    const json_t *fill = json_array_get(json_object_get(d.root, "fill"), 1);
    CHECK_EQ_I(json_integer_value(json_object_get(fill, "length")), 700);
    CHECK(json_number_value(json_object_get(fill, "share")) > 0.9 && json_number_value(json_object_get(fill, "share")) <= 1);
    CHECK_EQ_I(json_integer_value(json_object_get(json_object_get(d.root, "parameters"), "tokens_to_generate")), 40);
    jdoc_free(&d);
    o.task_file = NULL; /* a built-in task beside them; the folder's list has all */
    o.tasks = "fwe";
    CHECK_OK(ruler_gen(&o, dir, e));
    CHECK_OK(jdoc_load(&d, path_join(path, dir, "provenance.json"), 1 << 20, e));
    CHECK_EQ_I(json_object_size(json_object_get(d.root, "validation_sha256")), 3);
    CHECK_EQ_I(json_object_size(json_object_get(d.root, "fill")), 3);
    jdoc_free(&d);
    write_file(in(other, "other.yaml"), "yours: {task: niah}\n");
    o.task_file = other;
    o.tasks = NULL;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "another task file");
    o.tasks = "yuors";
    CHECK_ERR(ruler_gen(&o, in(path, "elsewhere"), e), E_USAGE, "did you mean 'yours'");
}

static const char wrong[] = "niah_single_1: {task: niah, args: {num_needle_k: 2}}\n"             /* 1 */
                            "m1: {task: nihah}\n"                                                /* 2 */
                            "m2: {task: niah, args: {num_needle_kk: 2, type_haystack: essai}}\n" /* 3 */
                            "m3: {task: niah, args: {num_hops: 3, num_needle_v: 300}}\n"         /* 4 */
                            "m4: {task: niah, args: {num_needle_k: 7, num_needle_v: 6}}\n"       /* 5 */
                            "m5: {task: vt, args: {num_hops: 4.5, num_chains: two}}\n"           /* 6 */
                            "m6: {task: vt, args: {type_haystack: essay, num_chains: 9}}\n"      /* 7 */
                            "m7: {task: cwe, args: {freq_cw: 3, freq_ucw: 3}}\n"                 /* 8 */
                            "m8: {task: fwe, args: {alpha: 1, coded_wordlen: 2}}\n"              /* 9 */
                            "m9: {task: qa}\n"                                                   /* 10 */
                            "m/10: {task: qa, args: {dataset: squadd}}\n"                        /* 11 */
                            "m11: {tsak: qa, num_hops: 3}\n"                                     /* 12 */
                            "m12: [task, niah]\n"                                                /* 13 */
                            "m13: {task: niah, lengths: 4096, tokens_to_generate: 0}\n";         /* 14 */
static void mistakes(void)
{
    /* An error holds some 2 kB: the file is read in two halves. */
    static const char *const first[] = {":1:1: error: 'niah_single_1' is a built-in task with other parameters",
                                        ":2:12: error: 'task': 'nihah' is none of niah",
                                        "did you mean 'niah'",
                                        ":3:25: error: unknown argument 'num_needle_kk' of niah; did you mean 'num_needle_k'",
                                        ":3:58: error: 'type_haystack': 'essai' is none of noise, essay, needle; did you mean 'essay'",
                                        ":4:25: error: 'num_hops' is an argument of variable_tracking, not of niah",
                                        ":4:52: error: 'num_needle_v': 300; the range is 1 to 256",
                                        ":5:56: error: 7 keys of 6 values are 42 needles; an essay has 40 places"};
    static const char *const second[] = {":1:33: error: 'num_hops': '4.5' is not a whole number",
                                         ":1:50: error: 'num_chains': 'two' is not a whole number",
                                         ":2:57: error: 9 chains of 4 hops are 45 lines; an essay has 40 places",
                                         ":3:46: error: 'freq_ucw': 3; it must be below freq_cw, 3",
                                         ":4:31: error: 'alpha': 1; the range is 1.01 to 10",
                                         ":5:1: error: a task of qa needs 'dataset'"};
    static const char *const third[] = {":1:1: error: task name 'm/10'",
                                        ":1:34: error: 'dataset': 'squadd' is none of squad, hotpotqa; did you mean 'squad'",
                                        ":2:7: error: unknown key 'tsak' of task 'm11'; did you mean 'task'",
                                        ":2:17: error: unknown key 'num_hops' of task 'm11'; it belongs into 'args'",
                                        ":2:1: error: task 'm11' needs 'task'",
                                        ":3:6: error: task 'm12' must be a map",
                                        ":4:28: error: 'lengths' must be a list",
                                        ":4:54: error: 'tokens_to_generate': 0; the range is 1 to"};
    const struct {
        int from, to; /* lines of `wrong` */
        const char *const *want;
        size_t n;
    } part[] = {{0, 5, first, ARRAY_LEN(first)}, {5, 10, second, ARRAY_LEN(second)}, {10, 14, third, ARRAY_LEN(third)}};
    int64_t len = 1024;
    char dir[1024], path[1024];
    for (size_t k = 0; k < ARRAY_LEN(part); k++) {
        struct str text = STR_INIT;
        const char *p = wrong;
        for (int line = 0; *p; line++) {
            size_t n = strcspn(p, "\n") + 1;
            if (line >= part[k].from && line < part[k].to)
                str_add(&text, p, n);
            p += n;
        }
        write_file(file, str_c(&text));
        struct ruler_gen_opts o = opts("compact", &len, 2);
        struct err got = ERR_INIT;
        o.task_file = file;
        CHECK(ruler_gen(&o, in(dir, "never"), &got) == -1 && got.code == E_USAGE);
        for (size_t i = 0; i < part[k].n; i++) {
            if (!strstr(got.msg, part[k].want[i]))
                printf("not found: %s\nin: %s\n", part[k].want[i], got.msg);
            CHECK(strstr(got.msg, part[k].want[i]) != NULL);
        }
        CHECK(!dir_exists(dir));
        str_free(&text);
    }
    write_file(file, "a: {task: vt, args: {type_haystack: essay}}\n");
    struct ruler_gen_opts o = opts("lm-eval", &len, 2);
    o.task_file = file;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "knows noise alone");
    write_file(file, "a: {task: cwe, args: {freq_cw: 9}}\n");
    o = opts("nvidia", &len, 2);
    o.task_file = file;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "below 4096 tokens the reference takes freq_cw 6");
    CHECK(!file_exists(path_join(path, dir, "tasks.yaml"))); /* nothing was made: nothing is kept */
    o.flavour = "compact";
    write_file(file, "a: {task: vt, args: {num_chains: 9, num_hops: 9}}\n");
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "its example of 9 chains of 9 hops");
    o.flavour = "nvidia";
    /* more needles than the search's first try has lines */
    write_file(file, "a: {task: niah, args: {type_haystack: noise, num_needle_k: 30}}\n");
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "use flavour 'compact'");
    o.flavour = "compact";
    len = 2048;
    CHECK_OK(ruler_gen(&o, dir, e));
}

/* NVIDIA's variable_tracking.py at c3f5e3b with several chains, in noise and in an essay; bytes4, the fixtures' essay. */
static void chains_of_reference(void)
{
    static const struct {
        const char *args;
        int64_t len, samples, seed;
        const char *sha;
    } runs[] = {{"num_chains: 1", 4096, 20, 42, "a62e8874b518bcaa958a70dca1f21953d9893ed895b19b1b8c420c6f044c4eff"},
                {"num_chains: 2, num_hops: 3", 4096, 12, 5, "cef8cb83ed38ac7c19158c5c6e4d98062ab8568d3572c9b5aaf27219e73b905a"},
                {"num_chains: 3, num_hops: 2", 2048, 12, 6, "8f3efac1cb84a9e323e066ba83623bdbb710e79436c135a3463b148ad1d3d57a"},
                {"type_haystack: essay, num_chains: 2, num_hops: 3", 4096, 12, 7,
                 "2687a5a2123a059f2209b8cb9e688f9e9e6553d8e2af391e0e0b64f7f2474e69"},
                {"type_haystack: essay, num_hops: 9", 8192, 10, 8, "0767a52fa0ee0795909011c35c542b591c550422b90af46fc62c43eef415a1dc"}};
    const char *essay = test_data("ruler/oracle/fixtures/essay.json");
    for (size_t i = 0; essay && i < ARRAY_LEN(runs); i++) {
        struct ruler_gen_opts o = opts("nvidia", &runs[i].len, runs[i].samples);
        char text[256], dir[1024], name[64], hex[65];
        snprintf(text, sizeof text, "t: {task: vt, args: {%s}}\n", runs[i].args);
        write_file(file, text);
        snprintf(name, sizeof name, "vt%zu", i);
        o.seed = runs[i].seed;
        o.essays = essay;
        o.task_file = file;
        CHECK_OK(ruler_gen(&o, in(dir, name), e));
        hash_of(dir, "t", hex);
        printf("%s at %d\n", runs[i].args, (int)runs[i].len);
        CHECK_STR(hex, runs[i].sha);
    }
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    in(file, "tasks-in.yaml");
    write_file(
        in(squad, "squad.json"),
        "{\"data\": [{\"paragraphs\": [{\"context\": \"Aa is red.\", \"qas\": [{\"question\": \"q0?\", \"answers\": [{\"text\": \"red\"}]},"
        "{\"question\": \"q1?\", \"answers\": [{\"text\": \"red\"}]}, {\"question\": \"q2?\", \"answers\": [{\"text\": \"red\"}]}]},"
        "{\"context\": \"Bb is blue.\", \"qas\": []}, {\"context\": \"Cc is old.\", \"qas\": []}]}]}");
    write_file(file, again);
    same_bytes("compact", 1024);
    same_bytes("nvidia", 4096);
    same_bytes("lm-eval", 4096);
    folders();
    mistakes();
    chains_of_reference();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
