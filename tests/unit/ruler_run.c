/* Samples, runner, scorer and comparison with a made-up model: answers are known, so are the scores. Also what cannot fit, and resuming. */
#include <math.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/prov.h"
#include "core/stats.h"
#include "ruler/ruler.h"
#include "tests/test.h"

enum { LEN = 700, SAMPLES = 6 };

/* Bytes are tokens / 3. */
static int64_t count3(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 2) / 3);
}

struct fake {
    int calls, fail_at; /* fail_at: the call of generate that fails, 0 = none */
    int spoil;          /* every spoil-th prompt gets an empty answer */
    int keep;           /* ... all but every keep-th */
    int seen;
    bool zero; /* a zero byte before every answer */
    struct answers {
        char sha[65], text[512];
    } a[16 * SAMPLES];
    size_t n;
};

enum { BOS = 300 };
/* ids are bytes behind a BOS */
static int encode(void *ctx, const char *text, size_t n, int32_t **ids, int32_t *len, struct err *e)
{
    UNUSED(ctx);
    *ids = malloc((n + 1) * sizeof **ids);
    if (!*ids)
        return err_nomem(e, n, "ids");
    (*ids)[0] = BOS;
    for (size_t i = 0; i < n; i++)
        (*ids)[i + 1] = (unsigned char)text[i];
    *len = (int32_t)n + 1;
    return 0;
}

static int decode(void *ctx, const int32_t *ids, int32_t n, struct str *out, struct err *e)
{
    UNUSED(ctx);
    UNUSED(e);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] != BOS)
            str_putc(out, (char)ids[i]);
    return 0;
}

static int remember(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct fake *f = ctx;
    CHECK(f->n < ARRAY_LEN(f->a));
    TRY(sha256_buf(s->prompt, strlen(s->prompt), f->a[f->n].sha, e));
    snprintf(f->a[f->n++].text, 512, "%s", s->answer);
    CHECK(s->length <= LEN);
    CHECK_EQ_I(s->length, count3(NULL, s->prompt, strlen(s->prompt)) + s->gen_tokens);
    bool null;
    CHECK(ruler_match(s->answer, strlen(s->answer), s->refs, s->n_refs, false, &null) == 100);
    return 0;
}

static int generate(void *ctx, int32_t n, const int32_t *const *prompt, const int32_t *len, const int32_t *max_new, int32_t **out,
                    int32_t *out_len, struct err *e)
{
    struct fake *f = ctx;
    UNUSED(max_new);
    if (++f->calls == f->fail_at)
        return ERR(e, E_ENV, "the made-up model fails here");
    for (int32_t i = 0; i < n; i++) {
        struct str s = STR_INIT;
        char sha[65];
        decode(NULL, prompt[i], len[i], &s, e);
        TRY(sha256_buf(str_c(&s), s.len, sha, e));
        str_free(&s);
        for (size_t k = 0; k < f->n; k++) {
            if (strcmp(sha, f->a[k].sha) != 0)
                continue;
            bool wrong = (f->spoil && f->seen % f->spoil == 0) || (f->keep && f->seen % f->keep != 0);
            const char *text = wrong ? " \n" : f->a[k].text;
            f->seen++;
            TRY(encode(NULL, text, strlen(text), &out[i], &out_len[i], e));
            if (f->zero)
                out[i][0] = 0; /* in place of the answer's leading blank */
            break;
        }
    }
    return 0;
}

static int logprob(void *ctx, int32_t n, const int32_t *const *ids, const int32_t *len, const int32_t *from, double *lp, struct err *e)
{
    UNUSED(ctx);
    UNUSED(e);
    for (int32_t i = 0; i < n; i++) {
        lp[i] = -0.5 * (len[i] - from[i]);
        CHECK_EQ_I(ids[i][0], BOS);
        CHECK_EQ_I(ids[i][from[i]], ' '); /* every answer starts with a blank; no BOS between */
    }
    return 0;
}

static void cannot_fit(const char *dir, const char *task, int64_t len, const char *flavour)
{
    struct err first = ERR_INIT;
    char path[1024], sub[64];
    struct ruler_gen_opts o = {.counter = {count3, NULL},
                               .lengths = &len,
                               .n_lengths = 1,
                               .samples = 2,
                               .seed = 1,
                               .flavour = flavour,
                               .data_dir = "ruler/data",
                               .tasks = task,
                               .force = true};
    CHECK(ruler_gen(&o, dir, &first) == -1);
    CHECK_EQ_I(first.code, E_USAGE);
    CHECK(strstr(first.msg, task) != NULL);
    snprintf(sub, sizeof sub, "%s/validation.jsonl", task);
    CHECK(!file_exists(path_join(path, dir, sub)));
    const char *at = strstr(first.msg, "at least ");
    CHECK(at != NULL);
    printf("%s\n", first.msg);
    if (!at)
        return;
    len = strtoll(at + 9, NULL, 10);
    CHECK_OK(ruler_gen(&o, dir, e)); /* the length it names does */
    len -= len / 4;                  /* and a good deal less does not: draws differ by some tokens */
    struct err e2 = ERR_INIT;
    CHECK(ruler_gen(&o, dir, &e2) == -1);
}

static char root[] = "/tmp/ruler_run_XXXXXX", data[1024], a[1024], b[1024];
static struct fake good, bad, other;

static struct ruler_gen_opts gen_opts(const int64_t *len)
{
    return (struct ruler_gen_opts){.counter = {count3, NULL},
                                   .lengths = len,
                                   .n_lengths = 1,
                                   .samples = SAMPLES,
                                   .seed = 3,
                                   .flavour = "compact",
                                   .data_dir = "ruler/data",
                                   .tokenizer_name = "bytes/3",
                                   .tasks = "niah_single_1,niah_multiquery,fwe"};
}

static struct ruler_run_opts run_opts(const char *out, struct fake *f)
{
    return (struct ruler_run_opts){.data_dir = data,
                                   .out_dir = out,
                                   .batch = 4,
                                   .ctx = f,
                                   .encode = encode,
                                   .decode = decode,
                                   .generate = generate,
                                   .answer_logprob = logprob};
}

/* Fails in the second task, goes on behind a torn record, has nothing left to do; a worse model in another folder. */
static void runs(void)
{
    char path[1024];
    int64_t len = LEN;
    struct ruler_gen_opts o = gen_opts(&len);
    CHECK_OK(ruler_gen(&o, data, e));
    CHECK_OK(ruler_each_sample(data, NULL, remember, &good, e));
    CHECK_EQ_I(good.n, 3 * SAMPLES);
    bad = good;
    bad.spoil = 2;
    struct ruler_run_opts r = run_opts(a, &good);
    good.fail_at = 4; /* task 2, second batch */
    CHECK_ERR(ruler_run(&r, e), E_ENV, "niah_multiquery");
    good.fail_at = 0;
    path_join(path, a, "niah_multiquery/predictions.jsonl");
    CHECK_OK(file_append(path, "{\"line\": 4, \"prompt_sh", 22, false, e)); /* torn */
    good.calls = 0;
    CHECK_OK(ruler_run(&r, e));
    CHECK_EQ_I(good.calls, 1 + 2); /* the missing batch of task 2, both of task 3 */
    good.calls = 0;
    CHECK_OK(ruler_run(&r, e));
    CHECK_EQ_I(good.calls, 0);
    r = run_opts(b, &bad);
    CHECK_OK(ruler_run(&r, e));
}

/* Predictions and log-probabilities from one call are the same records. */
static int both(void *ctx, int32_t n, const int32_t *const *full, const int32_t *full_len, const int32_t *len, const int32_t *max_new,
                int32_t **out, int32_t *out_len, double *lp, struct err *e)
{
    TRY(logprob(ctx, n, full, full_len, len, lp, e));
    return generate(ctx, n, full, len, max_new, out, out_len, e);
}

static void one_call(void)
{
    char path[1024], dir[1024], p1[1024];
    struct str one = STR_INIT, two = STR_INIT;
    struct ruler_run_opts r = run_opts(path_join(dir, root, "both"), &good);
    r.generate_scored = both;
    CHECK_OK(ruler_run(&r, e));
    CHECK_OK(file_read(path_join(path, dir, "fwe/predictions.jsonl"), 0, &one, e));
    CHECK_OK(file_read(path_join(p1, a, "fwe/predictions.jsonl"), 0, &two, e));
    CHECK_STR(str_c(&one), str_c(&two));
    str_free(&one);
    str_free(&two);
}

static void scores(void)
{
    struct ruler_scores s = {0};
    CHECK_OK(ruler_score(a, &s, e));
    CHECK_EQ_I(s.n, 3);
    CHECK_STR(s.flavour, "compact");
    CHECK(s.mean == 100 && s.se == 0 && fabs(s.nll - 0.5) < 1e-15);
    ruler_scores_free(&s);
    CHECK_OK(ruler_score(b, &s, e));
    CHECK(s.mean == 50);
    CHECK_EQ_I(s.task[1].nulls, SAMPLES / 2);
    /* three of six at 100: standard deviation sqrt(6 * 2500 / 5) = 54.77, / sqrt(6) = 22.36; mean of 3 tasks: * sqrt(3) / 3 */
    CHECK(fabs(s.task[0].se - sqrt(6 * 2500.0 / 5 / 6)) < 1e-12);
    CHECK(fabs(s.se - sqrt(6 * 2500.0 / 5 / 6) * sqrt(3) / 3) < 1e-12);
    ruler_scores_free(&s);
}

static void comparison(void)
{
    struct ruler_diff d[RULER_MAX_TASKS], all;
    size_t n;
    CHECK_OK(ruler_compare(a, b, d, &n, &all, e));
    CHECK_EQ_I(n, 3);
    CHECK(d[0].diff == -50 && fabs(all.diff + 50) < 1e-12 && all.lo < -50 && all.hi > -50);
    CHECK(fabs(d[0].p - 0.25) < 0.02);      /* 3 equal differences: 2 of 8 sign patterns reach; 20000 draws: 4 sd = 0.012 */
    CHECK(fabs(all.p - 2.0 / 512) < 0.002); /* 9 of them: 2 of 512; 4 sd = 0.0018 */
    CHECK_OK(ruler_compare(a, a, d, &n, &all, e));
    CHECK(all.diff == 0 && all.p == 1);
}

/* Intervals end where scores do: 18 of 18 right; 1 of 6 in every task, where mean +- 1.96 se would begin at -2, the difference at -116. */
static void intervals(void)
{
    char c[1024];
    size_t n;
    double lo, hi;
    struct ruler_scores s = {0};
    struct ruler_diff d[RULER_MAX_TASKS], all;
    struct fake poor = good;
    poor.keep = SAMPLES;
    struct ruler_run_opts r = run_opts(path_join(c, root, "poor"), &poor);
    CHECK_OK(ruler_run(&r, e));
    CHECK_OK(ruler_score(a, &s, e));
    wilson(1, 3 * SAMPLES, &lo, &hi);
    CHECK(s.hi == 100 && fabs(s.lo - 100 * lo) < 1e-9 && s.lo > 80 && s.lo < 85);
    ruler_scores_free(&s);
    CHECK_OK(ruler_score(c, &s, e));
    CHECK(fabs(s.mean - 100.0 / 6) < 1e-12 && s.mean - 1.96 * s.se < 0);
    CHECK(s.lo > 0 && s.lo < s.mean - s.se && s.hi > s.mean + 1.5 * s.se && s.hi < 50);
    ruler_scores_free(&s);
    CHECK_OK(ruler_compare(a, c, d, &n, &all, e));
    CHECK(fabs(d[0].diff + 500.0 / 6) < 1e-12 && d[0].lo == -100 && d[0].hi > d[0].diff);
}

/* A model may write zero bytes: they count as white space, and the records stay readable. */
static void zero_bytes(void)
{
    char dir[1024];
    struct ruler_scores s = {0};
    struct ruler_run_opts r = run_opts(path_join(dir, root, "zero"), &good);
    good.zero = true;
    CHECK_OK(ruler_run(&r, e));
    good.calls = 0;
    CHECK_OK(ruler_run(&r, e));
    CHECK_EQ_I(good.calls, 0);
    CHECK_OK(ruler_score(dir, &s, e));
    CHECK(s.mean == 100);
    ruler_scores_free(&s);
}

/* Other data: refused, both in running and in comparing. */
static void other_data(void)
{
    struct ruler_diff d[RULER_MAX_TASKS], all;
    size_t n;
    char dir[1024];
    int64_t len = LEN;
    struct ruler_gen_opts o = gen_opts(&len);
    struct ruler_run_opts r = run_opts(b, &bad);
    o.seed = 4;
    CHECK_ERR(ruler_gen(&o, data, e), E_USAGE, "other parameters");
    o.force = true;
    CHECK_OK(ruler_gen(&o, data, e));
    CHECK_ERR(ruler_run(&r, e), E_INPUT, "another prompt");
    r = run_opts(path_join(dir, root, "c"), &other);
    CHECK_OK(ruler_each_sample(data, NULL, remember, &other, e));
    CHECK_OK(ruler_run(&r, e));
    CHECK_ERR(ruler_compare(a, dir, d, &n, &all, e), E_INPUT, "different prompts");
}

/* Several lengths: each block is what a run of its own gives. */
static void several_lengths(void)
{
    int64_t two[2] = {LEN, LEN - 100};
    struct str s2 = STR_INIT, s1 = STR_INIT;
    char v[1024], dir[1024];
    struct ruler_gen_opts o = gen_opts(two);
    o.force = true;
    o.n_lengths = 2;
    CHECK_OK(ruler_gen(&o, path_join(dir, root, "two"), e));
    CHECK_OK(file_read(path_join(v, dir, "fwe/validation.jsonl"), 0, &s2, e));
    o.n_lengths = 1;
    CHECK_OK(ruler_gen(&o, data, e));
    CHECK_OK(file_read(path_join(v, data, "fwe/validation.jsonl"), 0, &s1, e));
    o.lengths = two + 1;
    o.seed++;
    CHECK_OK(ruler_gen(&o, data, e));
    CHECK_OK(file_read(path_join(v, data, "fwe/validation.jsonl"), 0, &s1, e));
    CHECK_STR(str_c(&s1), str_c(&s2));
    str_free(&s1);
    str_free(&s2);
}

static void what_cannot_be(void)
{
    static const char *const tasks[] = {"niah_single_1", "niah_multikey_3", "niah_multiquery", "vt", "cwe", "fwe"};
    char dir[1024];
    int64_t len = LEN;
    struct ruler_gen_opts o = gen_opts(&len);
    path_join(dir, root, "nofit");
    for (size_t i = 0; i < ARRAY_LEN(tasks); i++)
        cannot_fit(dir, tasks[i], 150, "compact");
    o.tasks = "niah_singel_1";
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "did you mean 'niah_single_1'");
    o.tasks = "qa_1";
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "not bundled");
}

static void matching(void)
{
    bool null;
    const char *refs[] = {"Abc", "x\xc3\x89y"};
    CHECK(ruler_match(" \t aBC, X\xc3\xa9Y ", 13, refs, 2, false, &null) == 100 && !null);
    CHECK(ruler_match("abc", 3, refs, 2, false, &null) == 50);
    CHECK(ruler_match("abc", 3, refs, 2, true, &null) == 100);
    CHECK(ruler_match("ab c", 4, refs, 2, true, &null) == 0);
    CHECK(ruler_match("--Abc", 5, refs, 2, true, &null) == 100);
    CHECK(ruler_match(" \n\x01", 3, refs, 2, false, &null) == 0 && null);
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    path_join(data, root, "data");
    path_join(a, root, "a");
    path_join(b, root, "b");
    runs();
    one_call();
    scores();
    comparison();
    intervals();
    zero_bytes();
    other_data();
    several_lengths();
    what_cannot_be();
    matching();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
