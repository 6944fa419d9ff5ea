/*
 * lmeval.md 3: the request hashes that lm-evaluation-harness ships (shuffled, 3.1), those of today (3.2, 3.6 by oracle test), ids of the
 * Qwen2.5 tokenizer plain and chat (3.3), the metrics of a random model (3.1, 3.4), synthetic few-shot pools.
 */
#include "tests/test.h"

#include "core/fs.h"
#include "core/hash.h"
#include "core/jwrite.h"
#include "core/rng.h"
#include "lmeval/results.h"

static const char *data_root(void)
{
    const char *d = getenv("DASHLAB_TEST_DATA");
    return d ? d : "../shared/data";
}

static const struct lme_task *task(const char *name)
{
    struct lme_pick p;
    struct err e = ERR_INIT;
    return lme_pick_tasks(name, &p, &e) == 0 ? p.task[0] : NULL;
}

struct text {
    struct sha256 h;
    int64_t n;
    struct str *doc; /* NULL: into h; else a document's requests each */
};
static int add_case(void *ctx, const struct lme_case *c, struct err *e)
{
    struct text *t = ctx;
    struct str line = STR_INIT;
    for (int r = 0; r < c->n_req; r++) {
        struct jw w;
        if (t->doc ? r : t->n++ > 0)
            str_puts(&line, ", ");
        jw_init(&w, &line, false);
        w.ascii = true;
        jw_arr(&w);
        jw_strn(&w, str_c(lme_ctx(c, r)), lme_ctx(c, r)->len);
        jw_strn(&w, str_c(&c->cont[r]), c->cont[r].len);
        jw_end_arr(&w);
    }
    int rc = str_ok(&line, "a request", e);
    if (t->doc)
        t->doc[c->id] = line;
    else {
        sha256_add(&t->h, str_c(&line), line.len);
        str_free(&line);
    }
    return rc;
}

static void check_text(const char *name, const struct lme_docs *docs, const struct lme_docs *pool, const struct lme_prompts *p,
                       const char *want)
{
    struct text t = {0};
    char hex[65];
    CHECK_OK(sha256_init(&t.h, e));
    sha256_add(&t.h, "[", 1);
    CHECK_OK(lme_each(task(name), docs, pool, p, add_case, &t, e));
    sha256_add(&t.h, "]", 1);
    sha256_end(&t.h, hex);
    CHECK_STR(hex, want);
}

/* ---- 3.1, 3.4: a random model ---- */

static void random_metrics(const char *name, const struct lme_docs *docs, const int64_t *order, double scale, const double want[4])
{
    const struct lme_task *t = task(name);
    struct mt19937 rng;
    struct lme_value acc, norm;
    double *s[2] = {calloc((size_t)docs->n, sizeof(double)), calloc((size_t)docs->n, sizeof(double))};
    py_seed(&rng, 42);
    for (int64_t i = 0; i < docs->n; i++) {
        const struct lme_doc *d = &docs->doc[order ? order[i] : i];
        double ll[LME_MAX_CHOICES], v[LME_N_METRICS];
        bool greedy[LME_MAX_CHOICES] = {0};
        for (int k = 0; k < d->n_choice; k++)
            ll[k] = -scale * py_random(&rng);
        CHECK_OK(lme_doc_scores(t, d, ll, greedy, 0, v, e));
        s[0][i] = v[LME_ACC];
        s[1][i] = v[LME_ACC_NORM];
    }
    lme_mean(s[0], docs->n, &acc);
    lme_mean(s[1], docs->n, &norm);
    CHECK(acc.mean == want[0] && acc.se == want[1]);
    if (want[2] >= 0)
        CHECK(norm.mean == want[2] && norm.se == want[3]);
    if (acc.mean != want[0] || acc.se != want[1])
        printf("%s: %.17g %.17g\n", name, acc.mean, acc.se);
    free(s[0]);
    free(s[1]);
}

static void shuffled(const char *name, const struct lme_docs *docs, const char *want, const double metrics[4])
{
    int64_t *order = malloc((size_t)docs->n * sizeof *order);
    struct lme_prompts p = LME_PROMPTS_INIT;
    struct text t = {.doc = calloc((size_t)docs->n, sizeof *t.doc)};
    struct mt19937 rng;
    struct sha256 h;
    char hex[65];
    for (int64_t i = 0; i < docs->n; i++)
        order[i] = i;
    py_seed(&rng, 42);
    py_shuffle(&rng, order, (size_t)docs->n);
    CHECK_OK(lme_each(task(name), docs, NULL, &p, add_case, &t, e));
    CHECK_OK(sha256_init(&h, e));
    sha256_add(&h, "[", 1);
    for (int64_t i = 0; i < docs->n; i++) {
        if (i)
            sha256_add(&h, ", ", 2);
        sha256_add(&h, str_c(&t.doc[order[i]]), t.doc[order[i]].len);
    }
    sha256_add(&h, "]", 1);
    sha256_end(&h, hex);
    CHECK_STR(hex, want);
    random_metrics(name, docs, order, 1, metrics);
    for (int64_t i = 0; i < docs->n; i++)
        str_free(&t.doc[i]);
    free(t.doc);
    free(order);
}

static void mmlu_random(void)
{
    static const double want[5][2] = {{0.23342848081192516, 0.0075389906737677636},
                                      {0.24686192468619247, 0.0077261954760010606},
                                      {0.24991875203119923, 0.0077923951126021435},
                                      {0.25696068012752393, 0.006365696640556191},
                                      {0.24789915966386555, 0.0036405414404281503}};
    static struct lme_result leaf[LME_N_SUBJECTS], group;
    struct mt19937 rng;
    int64_t first = 0, total = 0;
    py_seed(&rng, 42);
    for (int i = 0; i < LME_N_SUBJECTS; i++) {
        struct lme_docs docs;
        struct lme_result *r = &leaf[i];
        CHECK_OK(lme_load(lme_task_at(i), LME_EVAL, data_root(), &docs, e));
        double *s = calloc((size_t)docs.n, sizeof *s);
        for (int64_t k = 0; k < docs.n; k++) {
            double ll[4];
            for (int c = 0; c < 4; c++)
                ll[c] = -20 * py_random(&rng);
            s[k] = lme_argmax(ll, 4) == docs.doc[k].gold;
            first += docs.doc[k].gold == 0;
        }
        *r = (struct lme_result){.task = lme_task_at(i), .n = docs.n, .metrics = 1};
        lme_mean(s, docs.n, &r->v[LME_ACC]);
        total += docs.n;
        free(s);
        lme_docs_free(&docs);
    }
    CHECK(leaf[0].v[0].mean == 0.19 && leaf[0].v[0].se == 0.03942772444036623);
    CHECK(leaf[56].v[0].mean == 0.18128654970760233 && leaf[56].v[0].se == 0.029547741687640027);
    for (int g = 0; g < LME_N_GROUPS; g++) {
        CHECK(lme_group_result(g, leaf, LME_N_SUBJECTS, &group));
        CHECK(group.v[0].mean == want[g][0]);
        CHECK(group.v[0].se == want[g][1]);
    }
    CHECK(!lme_group_result(4, leaf, LME_N_SUBJECTS - 1, &group)); /* a subject is missing */
    CHECK(lme_group_result(0, leaf, LME_N_SUBJECTS - 1, &group));
    CHECK((double)first / (double)total == 0.22945449366187154);
}

/* ---- 3.2: synthetic pools ---- */

static void synthetic(bool piqa, struct lme_docs *pool)
{
    *pool = (struct lme_docs){.n = piqa ? 16113 : 40398};
    arena_init(&pool->arena, 0);
    pool->doc = calloc((size_t)pool->n, sizeof *pool->doc);
    for (int i = 0; i < (int)pool->n; i++) {
        struct arena *a = &pool->arena;
        struct lme_doc *d = &pool->doc[i];
        d->question = piqa ? arena_printf(a, "g%d", i) : arena_printf(a, "s%d _ t%d.", i, i);
        d->choice[0] = arena_printf(a, piqa ? "a%d" : "x%d", i);
        d->choice[1] = arena_printf(a, piqa ? "b%d" : "y%d", i);
        d->n_choice = 2;
        d->gold = i % 2;
    }
}

static void texts(void)
{
    struct lme_prompts p = LME_PROMPTS_INIT, c = LME_PROMPTS_INIT, single;
    struct lme_docs easy, hard, hard_pool, piqa, wino, algebra, algebra_dev, pool;
    const char *d = data_root();
    c.chat = true;
    c.template = CHAT_QWEN25;
    CHECK_OK(lme_load(task("arc_easy"), LME_EVAL, d, &easy, e));
    CHECK_OK(lme_load(task("arc_challenge"), LME_EVAL, d, &hard, e));
    CHECK_OK(lme_load(task("arc_challenge"), LME_POOL, d, &hard_pool, e));
    CHECK_OK(lme_load(task("piqa"), LME_EVAL, d, &piqa, e));
    CHECK_OK(lme_load(task("winogrande"), LME_EVAL, d, &wino, e));
    CHECK_OK(lme_load(task("mmlu_abstract_algebra"), LME_EVAL, d, &algebra, e));
    CHECK_OK(lme_load(task("mmlu_abstract_algebra"), LME_POOL, d, &algebra_dev, e));
    shuffled("arc_easy", &easy, "ffa6e39a35a16299dcb015f17f986aaa598ad8b4840c4cebe0339a7042232741",
             (const double[]){0.2474747474747475, 0.008855114414834707, 0.24074074074074073, 0.008772796145221907});
    shuffled("arc_challenge", &hard, "41c34c96cca8ace661911d0033d630c554b283f5a3953bcdc50720ae6b00a9c1",
             (const double[]){0.24488054607508533, 0.012566273985131354, 0.2440273037542662, 0.012551447627856257});
    shuffled("piqa", &piqa, "6048a3a2bb3ad1e6a3d98139618e06b4d7de766edd685bd38837596199c3f69f",
             (const double[]){0.514145810663765, 0.011661154475524836, 0.5114254624591947, 0.01166277802645167});
    shuffled("winogrande", &wino, "90a3eff49de9173964d46f5ed57bcf9a78a72dd1bfe0e5323b25cebb40b49ea9",
             (const double[]){0.516179952644041, 0.014045126130978606, -1, -1});
    random_metrics("arc_easy", &easy, NULL, 20,
                   (const double[]){0.257996632996633, 0.008977970005203404, 0.25925925925925924, 0.00899225153580552});
    random_metrics("arc_challenge", &hard, NULL, 20,
                   (const double[]){0.24061433447098976, 0.012491468532390566, 0.2380546075085324, 0.012445770028026206});
    random_metrics("piqa", &piqa, NULL, 20,
                   (const double[]){0.5032644178454843, 0.01166557553076037, 0.49510337323177367, 0.011665264730078152});
    random_metrics("winogrande", &wino, NULL, 20, (const double[]){0.5019731649565904, 0.014052376259225629, -1, -1});
    check_text("arc_challenge", &hard, NULL, &c, "8f5b7cd197d7dff0bac5fdf644abdb90aacc0c6d6362f47c890525cd338addb2");
    check_text("winogrande", &wino, NULL, &c, "a274e24fedb0b9042fea964883a69b453ab3a7cf82f0d2a3e5c8ce4d5dc08f53");
    check_text("mmlu_abstract_algebra", &algebra, NULL, &c, "90f2e71ea9f65364dd6b57272c6abdb47bc2629e0c1f32d80b271a089fc97362");
    p.shots = 25;
    check_text("arc_challenge", &hard, &hard_pool, &p, "56213b2cc812d181bf477462b8ca9fd8060f79168b16aca296badec6b32d14ca");
    p.shots = c.shots = 5;
    single = c;
    single.multiturn = false;
    check_text("arc_challenge", &hard, &hard_pool, &c, "9b251ff55087c5e04411c4457163bc5a37050767ba521fbbf5c192750d53e328");
    check_text("arc_challenge", &hard, &hard_pool, &single, "464f6df7ce08eaff32535a1ed22ba841b31a90ba92e97b3803e0bc2e2d66e96f");
    check_text("mmlu_abstract_algebra", &algebra, &algebra_dev, &c, "da47cfc044df1794f09522b526f077543387f3a0ec2253752d133cfbdc3a55d2");
    check_text("mmlu_abstract_algebra", &algebra, &algebra_dev, &single,
               "f53b8ce62188aab00a80baac47f7b6003035cc1018b412cc1011c66b616bd830");
    synthetic(true, &pool);
    check_text("piqa", &piqa, &pool, &p, "5e4cfa2ea7aef755a71127e99eab2ef51e8e9b65706c990607fb816233f583b4");
    lme_docs_free(&pool);
    synthetic(false, &pool);
    check_text("winogrande", &wino, &pool, &p, "56f7476bf54923e463b79dfb9b36d257ca2ae16f1d8a36a809d21be22d0ecfb6");
    check_text("winogrande", &wino, &pool, &c, "11db42a0da7d259c92715fab020d45a8ef4a45274afa84568cc0328e86c0bd2b");
    check_text("winogrande", &wino, &pool, &single, "eeb92bfc295368372f79bf95c163b6dba4ecf86615af97cd5d133fea8332430a");
    lme_docs_free(&pool);
    p.shots = 6;
    CHECK_ERR(lme_each(task("mmlu_abstract_algebra"), &algebra, &algebra_dev, &p, add_case, NULL, e), E_USAGE,
              "6 examples need 6 documents");
    lme_docs_free(&easy);
    lme_docs_free(&hard);
    lme_docs_free(&hard_pool);
    lme_docs_free(&piqa);
    lme_docs_free(&wino);
    lme_docs_free(&algebra);
    lme_docs_free(&algebra_dev);
}

/* ---- 3.3: ids of Qwen2.5 ---- */

static void add_ids(struct sha256 *h, const struct lme_set *s)
{
    for (int64_t i = 0; i < s->n; i++) {
        uint32_t n[2] = {(uint32_t)s->req[i].n_ctx, (uint32_t)s->req[i].n_cont};
        sha256_add(h, &n[0], 4);
        sha256_add(h, s->req[i].ctx, 4 * (size_t)n[0]);
        sha256_add(h, &n[1], 4);
        sha256_add(h, s->req[i].cont, 4 * (size_t)n[1]);
    }
}

static void check_ids(const struct tok *tok, const char *tasks, int shots, bool chat, const char *want)
{
    struct lme_prompts p = LME_PROMPTS_INIT;
    struct lme_encode_opts o = {.prefix = -1};
    struct lme_encoder *x;
    struct lme_pick pick;
    struct sha256 h;
    char hex[65];
    p.shots = shots;
    p.chat = chat;
    p.template = CHAT_QWEN25;
    CHECK_OK(sha256_init(&h, e));
    CHECK_OK(lme_pick_tasks(tasks, &pick, e));
    CHECK_OK(lme_encoder_open(&x, tok, &o, e));
    for (int i = 0; i < pick.n; i++) {
        struct lme_docs docs, pool = {0};
        struct lme_set s;
        CHECK_OK(lme_load(pick.task[i], LME_EVAL, data_root(), &docs, e));
        if (shots)
            CHECK_OK(lme_load(pick.task[i], LME_POOL, data_root(), &pool, e));
        CHECK_OK(lme_set_make(pick.task[i], &docs, shots ? &pool : NULL, &p, x, &s, e));
        add_ids(&h, &s);
        lme_set_free(&s);
        lme_docs_free(&docs);
        lme_docs_free(&pool);
    }
    lme_encoder_close(x);
    sha256_end(&h, hex);
    CHECK_STR(hex, want);
    printf("%s, %d shots%s: ids %.8s\n", tasks, shots, chat ? ", chat" : "", hex);
}

/* task_hashes of the first three documents: SHA-256 over the hashes of document, prompt and target (oracle/lmeval/example_output). */
static void task_hashes(void)
{
    static const char *const want[][2] = {{"arc_easy", "1eeb667801d9e0723113598c842951db7e9b807a1ded52edc10369ade221f708"},
                                          {"piqa", "46ac8a35dc315daaf5500269a61d49de17154bb514a72678971514522b8566c9"},
                                          {"winogrande", "10ef4b3879278df4095ef16eb2eb5f8685878220c647efe68d717447434d0bda"},
                                          {"mmlu_anatomy", "7ef79989b3c840adfb56641f192e59cb08593409b8360023d380be412b9a3543"}};
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        struct lme_samples s = {.task = task(want[i][0])};
        struct lme_prompts p = LME_PROMPTS_INIT;
        struct lme_docs docs;
        char hex[65];
        p.limit = 3;
        CHECK_OK(lme_load(s.task, LME_EVAL, data_root(), &docs, e));
        CHECK_OK(sha256_init(&s.hash, e));
        CHECK_OK(lme_each(s.task, &docs, NULL, &p, lme_sample, &s, e));
        sha256_end(&s.hash, hex);
        CHECK_STR(hex, want[i][1]);
        lme_docs_free(&docs);
    }
}

/* sources.tsv against the files: the content hashes were made by another program (Python's csv and json). */
static void sources(void)
{
    struct str text = STR_INIT;
    char *save = NULL;
    int seen = 0;
    CHECK_OK(file_read("lmeval/data/sources.tsv", 1 << 20, &text, e));
    for (char *line = strtok_r(text.p, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[64], split[8], rows[16], sha[80], hex[65];
        struct lme_docs docs;
        if (sscanf(line, "%63s %7s %15s %79s", name, split, rows, sha) != 4 || (strcmp(split, "eval") != 0 && strcmp(split, "pool") != 0))
            continue;
        CHECK_OK(lme_load(task(name), strcmp(split, "eval") ? LME_POOL : LME_EVAL, data_root(), &docs, e));
        CHECK_OK(lme_content_sha(task(name), &docs, hex, e));
        CHECK_STR(hex, sha);
        CHECK_EQ_I(docs.n, atoi(rows));
        lme_docs_free(&docs);
        seen++;
    }
    CHECK_EQ_I(seen, 2 * LME_N_TASKS);
    str_free(&text);
}

struct pages {
    struct sha256 h;
    int64_t pages, words, bytes;
};
static int add_page(void *ctx, const char *page, size_t n, struct err *e)
{
    struct pages *p = ctx;
    struct str text = STR_INIT;
    TRY(wikitext_detokenize(page, n, &text, e));
    sha256_add(&p->h, str_c(&text), text.len + 1);
    p->pages++;
    p->words += wikitext_words(page, n);
    p->bytes += (int64_t)n;
    str_free(&text);
    return 0;
}

/* wiki.test.raw: pages, words, bytes, and SHA-256 over the detokenized pages, each with a zero byte, by the harness' own Python. */
static void wikitext(void)
{
    struct pages p = {0};
    struct str text = STR_INIT;
    char hex[65];
    const char *path = test_data("wikitext2/wiki.test.raw");
    if (!path)
        return;
    CHECK_OK(file_read(path, 0, &text, e));
    CHECK_OK(sha256_init(&p.h, e));
    CHECK_OK(wikitext_pages(str_c(&text), text.len, add_page, &p, e));
    sha256_end(&p.h, hex);
    CHECK_EQ_I(p.pages, 62);
    CHECK_EQ_I(p.words, 241335);
    CHECK_EQ_I(p.bytes, 1290527);
    CHECK_STR(hex, "da61ba76b9daa5d5964a4e797206bb65bee7dd401fdbc16a83072f8cb94e08db");
    str_free(&text);
}

int main(void)
{
    struct tok *tok;
    char dir[1024];
    const char *vocab = test_data("tokenizers/qwen2/vocab.json");
    if (!vocab || !test_data("winogrande/train_xl.jsonl"))
        return test_skip("the benchmarks or tokenizers/qwen2 are not there");
    texts();
    mmlu_random();
    task_hashes();
    sources();
    wikitext();
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(vocab, '/') - vocab), vocab);
    CHECK_OK(tok_load(&tok, dir, NULL, e));
    check_ids(tok, "arc_easy", 0, false, "f861dfd5017f8ea3628e649849c5f1338c7714321b349a42bba6084736d2ff49");
    check_ids(tok, "arc_challenge", 0, false, "230d2bf4f5c26df33c3f33f3e3e7468194e8a97c258bcb6417e13170969ec934");
    check_ids(tok, "arc_challenge", 25, false, "3be472cf731cf66580a4aa75719e1c9e7436b3af9e1e3397a209e1d6e007a0d9");
    check_ids(tok, "piqa", 0, false, "e291bc41fd0e5222d4b8635f0f70e07e5025ece00eb34124a06954a252952b02");
    check_ids(tok, "winogrande", 0, false, "8031fe62b04f4322590f78db766be4eeae0a8e9c2f6908b31f4a254a25c2f60e");
    check_ids(tok, "mmlu", 0, false, "4a4de1f66ab7cf7c8dfb515d6c05270031a91e82711c4bcb1a9b8c716735ac59");
    check_ids(tok, "mmlu", 5, false, "3006ba29ae0d913fde63959371197096b0c29ce962d94f08e83fea6bdcc9cc32");
    check_ids(tok, "arc_easy", 0, true, "bf9a6074324c9d79bb279332153f869406c8f6124d86d6f429dc7666374d376e");
    check_ids(tok, "arc_challenge", 0, true, "318667c2ef54b0c38953aab0e5ed49803f5277f284148abf1b861962428b24c7");
    check_ids(tok, "winogrande", 0, true, "85d9a7e53c7c54e3d2fe9951edca11e099473eb9855dd69b180fbed006523f8f");
    check_ids(tok, "mmlu", 0, true, "f34551a8544249eaca183c6eaf4e766ba9e54ab3ef7d7530ad25fd254b05c624");
    tok_free(tok);
    return test_end();
}
