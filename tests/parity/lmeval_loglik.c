/*
 * Log-likelihoods of SmolLM2-135M-Instruct against lm-evaluation-harness (oracle/lmeval/loglik_*): |d| <= 2e-5 a token + 1e-4 against its
 * float32 values, 1e-4 against float64, every acc, acc_norm and is_greedy equal. Some documents of each file; all with
 * DASHLAB_LONG_TESTS=1, then also the values of the results files to the last digit. The model: as tests/parity/smollm2.c finds it.
 */
#include "tests/test.h"

#include <math.h>

#include "core/fs.h"
#include "core/jread.h"
#include "lmeval/lmeval.h"

static const char *find_gguf(char path[1024])
{
    static const char name[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
    const char *file = getenv("DASHLAB_SMOLLM2_GGUF"), *dir = getenv("DASHLAB_SMOLLM2"), *home = getenv("HOME");
    if (file)
        snprintf(path, 1024, "%s", file);
    else if (dir)
        snprintf(path, 1024, "%s/%s", dir, name);
    else
        snprintf(path, 1024, "%s/.cache/dashlab/%s", home ? home : "/tmp", name);
    return file_exists(path) ? path : NULL;
}

struct lines {
    json_t *v[600];
    size_t n;
};
static void read_lines(const char *name, struct lines *out)
{
    static char text[1 << 20];
    char rel[128], cmd[1200];
    snprintf(rel, sizeof rel, "oracle/lmeval/%s.jsonl.gz", name);
    snprintf(cmd, sizeof cmd, "gzip -dc '%s'", test_data(rel));
    FILE *f = popen(cmd, "r");
    *out = (struct lines){0};
    while (f && fgets(text, sizeof text, f) && out->n < ARRAY_LEN(out->v)) {
        struct jdoc d;
        CHECK_OK(jdoc_parse(&d, name, text, strlen(text), e));
        out->v[out->n++] = d.root;
    }
    if (f)
        pclose(f);
    CHECK(out->n > 0);
}

static const json_t *line_of(const struct lines *l, const char *task, int64_t shots, int64_t doc)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(json_string_value(json_object_get(l->v[i], "task")), task) &&
            json_integer_value(json_object_get(l->v[i], "doc_id")) == doc &&
            json_integer_value(json_object_get(l->v[i], "num_fewshot")) == shots)
            return l->v[i];
    return NULL;
}

/* The float64 value of one request, or NAN. */
static double exact_of(const struct lines *l, const char *task, int64_t shots, int64_t doc, int64_t idx)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(json_string_value(json_object_get(l->v[i], "task")), task) &&
            json_integer_value(json_object_get(l->v[i], "doc_id")) == doc &&
            json_integer_value(json_object_get(l->v[i], "num_fewshot")) == shots &&
            json_integer_value(json_object_get(l->v[i], "idx")) == idx)
            return json_number_value(json_object_get(l->v[i], "loglikelihood_f64"));
    return NAN;
}

struct worst {
    double share, d64;
    int n, n64, docs;
};

static void check_doc(const struct lme_task *t, const struct lme_set *s, int64_t k, int shots, const json_t *line, const struct lines *f64,
                      struct worst *w)
{
    const json_t *reqs = json_object_get(line, "requests");
    int64_t at = s->first[k], n = s->first[k + 1] - at;
    double ll[LME_MAX_CHOICES], v[LME_N_METRICS];
    bool greedy[LME_MAX_CHOICES];
    CHECK_EQ_I(n, json_array_size(reqs));
    for (int64_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(reqs, (size_t)i), *ids = json_object_get(r, "continuation_ids");
        const struct lme_req *q = &s->req[at + i];
        double d = fabs(q->ll - json_number_value(json_object_get(r, "loglikelihood"))), limit = 2e-5 * q->n_cont + 1e-4;
        CHECK_EQ_I(q->n_ctx, json_integer_value(json_object_get(r, "context_tokens")));
        CHECK_EQ_I(q->n_cont, json_array_size(ids));
        for (int32_t j = 0; j < q->n_cont; j++)
            CHECK_EQ_I(q->cont[j], json_integer_value(json_array_get(ids, (size_t)j)));
        CHECK(d <= limit);
        CHECK_EQ_I(q->greedy, json_is_true(json_object_get(r, "is_greedy")));
        w->share = fmax(w->share, d / limit);
        w->n++;
        ll[i] = q->ll;
        greedy[i] = q->greedy;
    }
    for (int64_t i = 0; i < n; i++) {
        double exact = exact_of(f64, t->name, shots, s->id[k], i);
        if (isnan(exact))
            continue;
        CHECK(fabs(ll[i] - exact) <= 1e-4);
        w->d64 = fmax(w->d64, fabs(ll[i] - exact));
        w->n64++;
    }
    CHECK_OK(lme_doc_scores(t, s->doc[k], ll, greedy, 0, v, e));
    CHECK(v[LME_ACC] == json_number_value(json_object_get(line, "acc")));
    if (json_object_get(line, "acc_norm"))
        CHECK(v[LME_ACC_NORM] == json_number_value(json_object_get(line, "acc_norm")));
    w->docs++;
}

static void one_file(struct model *m, const char *name, const char *tasks, int shots, double limit, const struct lines *f64)
{
    struct lines l;
    struct lme_pick pick;
    struct lme_prompts p = LME_PROMPTS_INIT;
    struct lme_encode_opts eo = {.max_length = m->cfg.max_pos, .prefix = -1};
    struct lme_encoder *x;
    struct worst w = {0};
    const char *data = getenv("DASHLAB_TEST_DATA");
    read_lines(name, &l);
    p.shots = shots;
    p.limit = limit;
    CHECK_OK(lme_pick_tasks(tasks, &pick, e));
    CHECK_OK(lme_encoder_open(&x, m->tok, &eo, e));
    for (int i = 0; i < pick.n; i++) {
        struct lme_docs docs, pool = {0};
        struct lme_set s;
        int64_t tokens;
        CHECK_OK(lme_load(pick.task[i], LME_EVAL, data ? data : "../shared/data", &docs, e));
        if (shots)
            CHECK_OK(lme_load(pick.task[i], LME_POOL, data ? data : "../shared/data", &pool, e));
        CHECK_OK(lme_set_make(pick.task[i], &docs, shots ? &pool : NULL, &p, x, &s, e));
        CHECK_OK(lme_score(m, s.req, s.n, &(struct lme_score_opts){.batch = 16}, &tokens, e));
        for (int64_t k = 0; k < s.n_docs; k++) {
            const json_t *line = line_of(&l, pick.task[i]->name, shots, s.id[k]);
            CHECK(line != NULL);
            if (line)
                check_doc(pick.task[i], &s, k, shots, line, f64, &w);
        }
        lme_set_free(&s);
        lme_docs_free(&docs);
        lme_docs_free(&pool);
    }
    printf("%s: %d documents, %d requests, largest share of the bound %.2f; %d against float64, largest difference %.2g\n", name, w.docs,
           w.n, w.share, w.n64, w.d64);
    lme_encoder_close(x);
    for (size_t i = 0; i < l.n; i++)
        json_decref(l.v[i]);
}

int main(void)
{
    struct pool *pool;
    struct backend *be;
    struct model *m = NULL;
    struct backend_opts bo = {.name = "cpu"};
    struct model_open_opts mo = {.want_tokenizer = true};
    static struct lines f64;
    char path[1024];
    const char *gguf = find_gguf(path), *lg = getenv("DASHLAB_LONG_TESTS");
    bool all = lg && !strcmp(lg, "1");
    if (!test_data("oracle/lmeval/loglik_float64_part.jsonl.gz") || !test_data("arc/ARC-Easy/ARC-Easy-Test.jsonl"))
        return test_skip("oracle/lmeval or the benchmarks are not there");
    if (!gguf)
        return test_skip("SmolLM2 is not there: tests/fetch_smollm2.sh gets it");
    read_lines("loglik_float64_part", &f64);
    if (!f64.n)
        return test_skip("gzip is missing");
    CHECK_OK(pool_open(&pool, 0, e));
    bo.pool = pool;
    CHECK_OK(backend_open(&be, &bo, e));
    CHECK_OK(model_open(&m, be, gguf, &mo, e));
    if (!m)
        return test_end();
    one_file(m, "loglik_0shot_limit40", "arc_easy,arc_challenge,piqa,winogrande", 0, all ? 40 : 3, &f64);
    one_file(m, "loglik_5shot_limit6", "arc_easy,piqa,winogrande", 5, all ? 6 : 1, &f64);
    one_file(
        m, "loglik_mmlu6_0shot_limit16",
        all ? "mmlu_abstract_algebra,mmlu_anatomy,mmlu_high_school_world_history,mmlu_moral_scenarios,mmlu_marketing,mmlu_professional_law"
            : "mmlu_abstract_algebra,mmlu_anatomy,mmlu_marketing",
        0, all ? 16 : 3, &f64);
    for (size_t i = 0; i < f64.n; i++)
        json_decref(f64.v[i]);
    model_close(m);
    backend_close(be);
    pool_close(pool);
    return test_end();
}
