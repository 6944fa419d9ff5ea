/*
 * Scoring over the prefix tree: equal to every request computed whole, the same bits for any batch, threads and after an interruption,
 * planted trees; metrics, sampling, windows, detokenizer, table.
 */
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/pool.h"
#include "core/stats.h"
#include "lmeval/lmeval.h"
#include "model/cache.h"

/* ---- by hand ---- */

static void metrics(void)
{
    static const struct lme_doc doc = {
        .question = "q", .n_choice = 3, .choice = {"aa", "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", "bbbbbbb"}, .gold = 1};
    struct lme_pick p;
    double v[LME_N_METRICS], lo, hi;
    bool greedy[3] = {false, true, false};
    CHECK_OK(lme_pick_tasks("arc_easy", &p, e));
    /* by characters -1, -0.75, -0.71; by bytes -1, -0.375, -0.71: the lengths differ for the second choice alone */
    CHECK_OK(lme_doc_scores(p.task[0], &doc, (const double[]){-2, -3, -5}, greedy, 0, v, e));
    CHECK(v[LME_ACC] == 0 && v[LME_ACC_NORM] == 0 && v[LME_ACC_BYTES] == 1 && v[LME_EXACT] == 1);
    double z = exp(0) + exp(-1) + exp(-3), p0 = 1 / z, p1 = exp(-1) / z, p2 = exp(-3) / z;
    check_close_f64("brier", &v[LME_BRIER], (const double[]){p0 * p0 + (p1 - 1) * (p1 - 1) + p2 * p2}, 1, 1e-15, 0,
                    "a few rounding errors");
    CHECK_OK(lme_doc_scores(p.task[0], &doc, (const double[]){-2, -3, -5, -1, -4, -5}, greedy, 1u << LME_MUTUAL_INFO, v, e));
    CHECK(v[LME_MUTUAL_INFO] == 1); /* -1, 1, 0 */
    CHECK_EQ_I(lme_argmax((const double[]){-1, -1, -2}, 3), 0);
    CHECK_EQ_I(lme_argmax((const double[]){-1, NAN, 5}, 3), 1);
    wilson(0.5, 100, &lo, &hi);
    check_close_f64("wilson", (const double[]){lo, hi}, (const double[]){0.4038315303659956, 0.5961684696340044}, 2, 1e-12, 0,
                    "closed form");
    struct lme_value one;
    lme_mean((const double[]){1}, 1, &one);
    CHECK(one.se < 0 && one.mean == 1);
}

struct seen {
    char text[64][96];
    int64_t id[64];
    int n;
};
static int see(void *ctx, const struct lme_case *c, struct err *e)
{
    struct seen *s = ctx;
    UNUSED(e);
    s->id[s->n] = c->id;
    snprintf(s->text[s->n++], sizeof s->text[0], "%s", str_c(&c->ctx[0]));
    return 0;
}

/* --samples and --limit give the examples of the full run; a drawn document that equals the evaluated one is dropped, two of them cause a
 * redraw. */
static void sampling(void)
{
    static struct lme_doc pool[40], docs[20];
    struct lme_docs d = {.doc = docs, .n = 20, .path = "docs"}, q = {.doc = pool, .n = 40, .path = "pool"},
                    same = {.doc = pool, .n = 4, .path = "same"};
    struct lme_prompts p = LME_PROMPTS_INIT;
    struct lme_pick pick;
    static struct seen all, some, few;
    static char text[60][16];
    struct lme_range range[2] = {{3, 4}, {17, 17}};
    CHECK_OK(lme_pick_tasks("piqa", &pick, e));
    for (int i = 0; i < 60; i++) {
        snprintf(text[i], sizeof text[i], "t%d", i);
        struct lme_doc *x = i < 40 ? &pool[i] : &docs[i - 40];
        *x = (struct lme_doc){.question = text[i], .choice = {"a", "b"}, .n_choice = 2, .gold = i % 2};
    }
    p.shots = 2;
    CHECK_OK(lme_each(pick.task[0], &d, &q, &p, see, &all, e));
    p.limit = 0.26; /* ceil(5.2) */
    CHECK_OK(lme_each(pick.task[0], &d, &q, &p, see, &few, e));
    CHECK_EQ_I(few.n, 6);
    p.limit = -1;
    p.samples = range;
    p.n_samples = 2;
    CHECK_OK(lme_each(pick.task[0], &d, &q, &p, see, &some, e));
    CHECK_EQ_I(some.n, 3);
    for (int i = 0; i < 3; i++)
        CHECK_STR(some.text[i], all.text[some.id[i]]);
    for (int i = 0; i < 6; i++)
        CHECK_STR(few.text[i], all.text[i]);
    /* a pool of the document twice and two others: three are drawn, so at most one document equal to it may be among them */
    p.samples = NULL;
    p.n_samples = 0;
    pool[0] = pool[1] = docs[0];
    d.n = 1;
    for (uint64_t seed = 0; seed < 24; seed++) {
        all.n = 0;
        p.seed = seed;
        CHECK_OK(lme_each(pick.task[0], &d, &same, &p, see, &all, e));
        CHECK(strstr(all.text[0], "t2") && strstr(all.text[0], "t3"));
    }
    pool[2] = docs[0];
    CHECK_ERR(lme_each(pick.task[0], &d, &same, &p, see, &all, e), E_USAGE, "has 1 other documents");
}

static int window(void *ctx, const int32_t *in, int64_t n_in, const int32_t *pred, int64_t n_pred, struct err *e)
{
    struct str *s = ctx;
    UNUSED(e);
    for (int64_t i = 0; i <= n_in - n_pred; i++)
        str_printf(s, "%s%d", i ? "," : "", (int)in[i]);
    for (int64_t i = 0; i < n_pred; i++)
        str_printf(s, "%s%d", i ? "," : ">", (int)pred[i]);
    str_putc(s, ' ');
    return 0;
}

static int page(void *ctx, const char *p, size_t n, struct err *e)
{
    UNUSED(e);
    str_printf(ctx, "[%.*s]", (int)n, p);
    return 0;
}

static void wikitext(void)
{
    static const int32_t ids[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    static const char text[] = " \n = A title = \n \n He said \" no \" ( and ( more ) , twice . \n = = Part = = \n x @-@ y 's 3 @.@ 5 "
                               "\xc2\xb0 C \n = B = \n two\n";
    struct str s = STR_INIT;
    CHECK_OK(lme_rolling(ids, 10, 100, 4, window, &s, e));
    CHECK_STR(str_c(&s), "100>0,1,2,3 3>4,5,6,7 5,6,7>8,9 ");
    str_clear(&s);
    CHECK_OK(lme_rolling(ids, 5, 100, 4, window, &s, e));
    CHECK_STR(str_c(&s), "100>0,1,2,3 0,1,2,3>4 ");
    str_clear(&s);
    CHECK_OK(wikitext_pages(text, strlen(text), page, &s, e));
    CHECK_STR(str_c(&s), "[ = A title = \n \n He said \" no \" ( and ( more ) , twice . \n = = Part = = \n x @-@ y 's 3 @.@ 5 \xc2\xb0 C "
                         "][ = B = \n two\n]");
    str_clear(&s);
    CHECK_OK(wikitext_detokenize(text, strlen(text), &s, e));
    CHECK_STR(str_c(&s), "\n= A title =\n\nHe said \"no\" (and ( more), twice.\n== Part ==\nx-y's 3.5\xc2\xb0"
                         "C\n= B =\ntwo\n");
    str_free(&s);
    CHECK_EQ_I(wikitext_words(" a  b\n", 6), 4);
}

static void table(void)
{
    static const char want[] = "|  Tasks   |Version|Filter|n-shot| Metric |   |Value |   |Stderr|\n"
                               "|----------|------:|------|-----:|--------|---|-----:|---|-----:|\n"
                               "|arc_easy  |      1|none  |     0|acc     |↑  |0.6667|±  |0.3333|\n"
                               "|          |       |none  |     0|acc_norm|↑  |0.6667|±  |0.3333|\n"
                               "|anatomy   |      1|none  |     0|acc     |↑  |0.6667|±  |0.3333|\n"
                               "|piqa      |      1|none  |     0|acc     |↑  |0.3333|±  |0.3333|\n"
                               "|          |       |none  |     0|acc_norm|↑  |0.0000|±  |0.0000|\n"
                               "|winogrande|      1|none  |     0|acc     |↑  |0.3333|±  |0.3333|\n";
    static const double score[4][2][3] = {{{1, 0, 1}, {1, 0, 1}}, {{1, 0, 0}, {0, 0, 0}}, {{1, 0, 0}}, {{1, 1, 0}}};
    static struct lme_run_result r;
    struct lme_pick p;
    struct str s = STR_INIT;
    CHECK_OK(lme_pick_tasks("arc_easy,piqa,winogrande,mmlu_anatomy", &p, e));
    for (int i = 0; i < p.n; i++) {
        r.task[i] = (struct lme_result){.task = p.task[i], .n = 3, .metrics = lme_task_metrics(p.task[i])};
        lme_mean(score[i][0], 3, &r.task[i].v[LME_ACC]);
        lme_mean(score[i][1], 3, &r.task[i].v[LME_ACC_NORM]);
    }
    r.n = r.n_tasks = p.n;
    lme_table(&r, &s);
    CHECK_STR(str_c(&s), want); /* as the harness printed it: oracle/lmeval/example_output/table_stdout.txt */
    str_free(&s);
}

/* ---- a model ---- */

struct halt {
    int64_t left;
};
static int stop_after(void *ctx, const int64_t *req, int64_t n, struct err *e)
{
    struct halt *h = ctx;
    UNUSED(req);
    h->left -= n;
    return h->left < 0 ? ERR(e, E_INTERRUPTED, "planned stop") : 0;
}

static struct model *open_model(const char *path, int threads, struct backend **be, struct pool **pool)
{
    struct model *m = NULL;
    struct backend_opts bo = {.name = "cpu"};
    struct model_open_opts mo = {.want_tokenizer = true};
    struct err e = ERR_INIT;
    if (pool_open(pool, threads, &e) != 0)
        return NULL;
    bo.pool = *pool;
    if (backend_open(be, &bo, &e) != 0 || model_open(&m, *be, path, &mo, &e) != 0)
        printf("%s\n", e.msg);
    return m;
}

/* Bundled documents of two tasks, and a set with continuations of 1, 2 and 3 tokens of which one begins another. */
static void make_set(const struct model *m, struct lme_docs docs[3], struct lme_set part[3], struct lme_set *s)
{
    static const int32_t ctx[6] = {5, 6, 7, 8, 9, 10}, a[3] = {20, 21, 22}, b[2] = {20, 23};
    struct lme_prompts p = LME_PROMPTS_INIT;
    struct lme_encode_opts eo = {.prefix = -1};
    struct lme_encoder *x;
    struct lme_pick pick;
    p.limit = 5;
    CHECK_OK(lme_pick_tasks("arc_challenge,winogrande,mmlu_anatomy", &pick, e));
    CHECK_OK(lme_encoder_open(&x, m->tok, &eo, e));
    *s = (struct lme_set){0};
    for (int i = 0; i < 3; i++) {
        CHECK_OK(lme_load(pick.task[i], LME_EVAL, "lmeval/data", &docs[i], e));
        CHECK_OK(lme_set_make(pick.task[i], &docs[i], NULL, &p, x, &part[i], e));
        s->req = realloc(s->req, (size_t)(s->n + part[i].n + 8) * sizeof *s->req);
        memcpy(s->req + s->n, part[i].req, (size_t)part[i].n * sizeof *s->req);
        s->n += part[i].n; /* the ids stay in the parts */
    }
    s->req[s->n++] = (struct lme_req){.ctx = ctx, .n_ctx = 6, .cont = a, .n_cont = 3};
    s->req[s->n++] = (struct lme_req){.ctx = ctx, .n_ctx = 6, .cont = a, .n_cont = 2};
    s->req[s->n++] = (struct lme_req){.ctx = ctx, .n_ctx = 6, .cont = a, .n_cont = 1};
    s->req[s->n++] = (struct lme_req){.ctx = ctx, .n_ctx = 6, .cont = b, .n_cont = 2};
    s->req[s->n++] = (struct lme_req){.ctx = ctx, .n_ctx = 4, .cont = b, .n_cont = 2};
    lme_encoder_close(x);
}

static void forget(struct lme_set *s)
{
    for (int64_t i = 0; i < s->n; i++)
        s->req[i].done = false;
}

static void whole_requests(struct model *m, const struct lme_set *s, double *ll, bool *greedy)
{
    for (int64_t i = 0; i < s->n; i++) {
        const struct lme_req *r = &s->req[i];
        int32_t n = r->n_ctx + r->n_cont, *seq = malloc(((size_t)n + 1) * sizeof *seq), *best = malloc(((size_t)n + 1) * sizeof *best);
        double *lp = malloc(((size_t)n + 1) * sizeof *lp);
        memcpy(seq, r->ctx, (size_t)r->n_ctx * sizeof *seq);
        memcpy(seq + r->n_ctx, r->cont, (size_t)r->n_cont * sizeof *seq);
        CHECK_OK(score_logprobs(m, 1, (const int32_t *const[]){seq}, &n, 0, &lp, &best, e));
        ll[i] = 0;
        greedy[i] = true;
        for (int32_t t = r->n_ctx; t < n; t++) {
            ll[i] += lp[t];
            greedy[i] = greedy[i] && best[t] == seq[t];
        }
        free(seq);
        free(best);
        free(lp);
    }
}

/* A model's scores: equal to whole requests, the same bits for other batches, threads (m2) and a small cache, and after an interruption. */
static void check_model(const char *name, struct model *m, struct model *m2, struct lme_set *s)
{
    size_t n = (size_t)s->n;
    double *want = calloc(n, sizeof *want), *first = calloc(n, sizeof *first), *got = calloc(n, sizeof *got);
    bool *greedy = calloc(n, sizeof *greedy);
    struct halt h = {.left = 11};
    struct lme_cost c;
    int64_t tokens, part;
    forget(s);
    whole_requests(m, s, want, greedy);
    CHECK_OK(lme_score(m, s->req, s->n, &(struct lme_score_opts){.batch = 1}, &tokens, e));
    CHECK_OK(lme_count(s->req, s->n, &c, e));
    CHECK_EQ_I(tokens, c.tokens);
    CHECK(c.tokens < c.one_token_cache && c.one_token_cache < c.no_sharing);
    for (size_t i = 0; i < n; i++) {
        first[i] = s->req[i].ll;
        CHECK(s->req[i].done && s->req[i].greedy == greedy[i]);
    }
    check_close_f64(name, first, want, n, 1e-4, 2e-6, "float32 logits of magnitude 20, 2^-24 each, over up to 60 tokens");
    for (int k = 0; k < 4; k++) {
        static const int batch[4] = {3, 16, 16, 64};
        struct lme_score_opts o = {.batch = batch[k], .cache_bytes = k == 3 ? 1 : 0};
        forget(s);
        CHECK_OK(lme_score(k == 2 ? m2 : m, s->req, s->n, &o, &tokens, e));
        for (size_t i = 0; i < n; i++)
            got[i] = s->req[i].ll;
        CHECK(!memcmp(got, first, n * sizeof *got)); /* batch 3, 16, two threads, a cache that holds one sequence a level */
    }
    forget(s);
    CHECK_ERR(lme_score(m, s->req, s->n, &(struct lme_score_opts){.batch = 4, .ctx = &h, .done = stop_after}, &tokens, e), E_INTERRUPTED,
              "planned stop");
    part = tokens;
    CHECK_OK(lme_score(m, s->req, s->n, &(struct lme_score_opts){.batch = 4}, &tokens, e));
    CHECK(tokens < c.tokens && part < c.tokens);
    for (size_t i = 0; i < n; i++)
        got[i] = s->req[i].ll;
    CHECK(!memcmp(got, first, n * sizeof *got));
    forget(s);
    CHECK_OK(lme_score(m, s->req, s->n, &(struct lme_score_opts){.batch = 16, .bf16 = true}, &tokens, e));
    for (size_t i = 0; i < n; i++) {
        float f = (float)s->req[i].ll;
        uint32_t u;
        memcpy(&u, &f, 4);
        CHECK((u & 0xffff) == 0); /* a bf16 number */
        /* each logit is off by up to 2^-9 of its size (30 at most, so 0.06), each log-probability and the sum by 2^-9 of theirs */
        CHECK(fabs(s->req[i].ll - want[i]) <= 0.13 * s->req[i].n_cont + fabs(want[i]) / 128);
    }
    free(want);
    free(first);
    free(got);
    free(greedy);
}

/* Window, linear and full layers by turns; the linear ones as they are before training. */
static struct model *hybrid_of(struct model *teacher)
{
    unsigned ops[64];
    struct linset_opts lo = LINSET_OPTS;
    struct linset *lin = NULL;
    struct model *m = NULL;
    for (int64_t l = 0; l < teacher->cfg.L && l < 64; l++)
        ops[l] = MIX_BIT(l % 3 == 0 ? MIX_WINDOW : l % 3 == 1 ? MIX_GDN : MIX_FULL);
    CHECK_OK(linset_make(&lin, teacher, &lo, e));
    CHECK_OK(model_assemble(&m, teacher, lin, &(struct assemble_opts){.ops = ops, .window = 12, .copy = false}, e));
    linset_close(lin);
    return m;
}

static void scoring(void)
{
    struct pool *pool, *pool2;
    struct backend *be, *be2;
    struct lme_docs docs[3];
    struct lme_set part[3], s;
    struct model *m = open_model("experiments/tiny/teacher", 1, &be, &pool), *m2 = open_model("experiments/tiny/teacher", 2, &be2, &pool2);
    if (!m || !m2) {
        CHECK(m && m2);
        return;
    }
    make_set(m, docs, part, &s);
    check_model("tree against whole requests", m, m2, &s);
    struct model *h = hybrid_of(m), *h2 = hybrid_of(m2);
    if (h && h2)
        check_model("the same, a hybrid", h, h2, &s);
    for (int i = 0; i < 3; i++) {
        lme_set_free(&part[i]);
        lme_docs_free(&docs[i]);
    }
    free(s.req);
    model_close(h);
    model_close(h2);
    model_close(m);
    model_close(m2);
    backend_close(be);
    backend_close(be2);
    pool_close(pool);
    pool_close(pool2);
}

int main(void)
{
    metrics();
    sampling();
    wikitext();
    table();
    scoring();
    return test_end();
}
