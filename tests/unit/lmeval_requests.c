/*
 * Every request of lm-evaluation-harness 0.4.13 for the five benchmarks: texts, ids after truncation to 8192 and 512, and how many tokens
 * they cost, against the hashes of oracle/lmeval/requests.jsonl.gz (plain and chat, 0 and 5 shots, 57 subjects and their sum).
 */
#include "tests/test.h"

#include "core/hash.h"
#include "core/jread.h"
#include "core/jwrite.h"
#include "lmeval/lmeval.h"

static const int lengths[2] = {8192, 512};
struct sums {
    struct sha256 text, json, ids[2];
    int64_t requests, docs, ctx[2], cont[2], cut[2], truncated[2], longest[2], one;
    struct lme_cost cost;
};

static void sums_open(struct sums *s)
{
    *s = (struct sums){0};
    CHECK_OK(sha256_init(&s->text, e));
    CHECK_OK(sha256_init(&s->json, e));
    for (int k = 0; k < 2; k++)
        CHECK_OK(sha256_init(&s->ids[k], e));
    sha256_add(&s->json, "[", 1);
}

/* All sums that the task's requests belong to. */
struct both {
    struct sums *v[2];
    int n;
};
static int add_text(void *ctx, const struct lme_case *c, struct err *e)
{
    struct both *b = ctx;
    struct str line = STR_INIT;
    for (int r = 0; r < c->n_req; r++) {
        const struct str *x = lme_ctx(c, r);
        struct jw w;
        str_clear(&line);
        jw_init(&w, &line, false);
        w.ascii = true;
        jw_arr(&w);
        jw_strn(&w, str_c(x), x->len);
        jw_strn(&w, str_c(&c->cont[r]), c->cont[r].len);
        jw_end_arr(&w);
        for (int i = 0; i < b->n; i++) {
            struct sums *s = b->v[i];
            sha256_add(&s->text, str_c(x), x->len);
            sha256_add(&s->text, "\x1f", 1);
            sha256_add(&s->text, str_c(&c->cont[r]), c->cont[r].len);
            sha256_add(&s->text, "\x1e", 1);
            if (s->requests++)
                sha256_add(&s->json, ", ", 2);
            sha256_add(&s->json, str_c(&line), line.len);
        }
    }
    for (int i = 0; i < b->n; i++)
        b->v[i]->docs++;
    int rc = str_ok(&line, "a request", e);
    str_free(&line);
    return rc;
}

static void add_ids(struct both *b, const struct lme_set *set, int k)
{
    static const uint8_t end[4] = {255, 255, 255, 255};
    for (int i = 0; i < b->n; i++) {
        struct sums *s = b->v[i];
        for (int64_t r = 0; r < set->n; r++) {
            const struct lme_req *q = &set->req[r];
            sha256_add(&s->ids[k], q->ctx, (size_t)q->n_ctx * 4); /* little-endian machines; all that this runs on */
            sha256_add(&s->ids[k], end, 4);
            sha256_add(&s->ids[k], q->cont, (size_t)q->n_cont * 4);
            sha256_add(&s->ids[k], end, 4);
            s->ctx[k] += q->n_ctx;
            s->cont[k] += q->n_cont;
            s->longest[k] = MAX(s->longest[k], (int64_t)q->n_ctx + q->n_cont);
        }
        s->cut[k] += set->cut;
        s->truncated[k] += set->truncated;
        if (k == 0)
            s->one += set->one_token;
    }
}

static int64_t num(const json_t *o, const char *a, const char *b, const char *c)
{
    for (const char *const *k = (const char *const[]){a, b, c, NULL}; *k; k++)
        o = json_object_get(o, *k);
    return json_is_integer(o) ? (int64_t)json_integer_value(o) : -1;
}

static void check_line(struct sums *s, const json_t *line)
{
    char hex[65], name[80];
    snprintf(name, sizeof name, "%s %d %s", json_string_value(json_object_get(line, "task")), (int)num(line, "num_fewshot", NULL, NULL),
             json_string_value(json_object_get(line, "mode")));
    int before = test_failed;
    sha256_end(&s->text, hex);
    CHECK_STR(hex, json_string_value(json_object_get(line, "sha256_text")));
    sha256_add(&s->json, "]", 1);
    sha256_end(&s->json, hex);
    CHECK_STR(hex, json_string_value(json_object_get(line, "sha256_json")));
    CHECK_EQ_I(s->requests, num(line, "requests", NULL, NULL));
    CHECK_EQ_I(s->docs, num(line, "docs", NULL, NULL));
    for (int k = 0; k < 2; k++) {
        char len[8];
        snprintf(len, sizeof len, "%d", lengths[k]);
        sha256_end(&s->ids[k], hex);
        CHECK_STR(hex, json_string_value(json_object_get(json_object_get(json_object_get(line, "tokens"), len), "sha256_ids")));
        CHECK_EQ_I(s->ctx[k], num(line, "tokens", len, "context_tokens"));
        CHECK_EQ_I(s->cont[k], num(line, "tokens", len, "continuation_tokens"));
        CHECK_EQ_I(s->cut[k], num(line, "tokens", len, "tokens_cut"));
        CHECK_EQ_I(s->truncated[k], num(line, "tokens", len, "truncated_requests"));
        CHECK_EQ_I(s->longest[k], num(line, "tokens", len, "longest_ctx_plus_cont"));
    }
    CHECK_EQ_I(s->one, num(line, "tokens", "one_token_continuations", NULL));
    CHECK_EQ_I(s->cost.no_sharing, num(line, "forward_tokens", "no_sharing", NULL));
    CHECK_EQ_I(s->cost.one_token_cache, num(line, "forward_tokens", "hflm_one_token_cache", NULL));
    int64_t least = MAX(num(line, "forward_tokens", "trie", NULL), num(line, "forward_tokens", "trie_per_subject", NULL));
    CHECK(s->cost.tokens >= least && s->cost.tokens <= least + least / 10); /* forks that save under 4 tokens are not taken */
    if (test_failed != before)
        printf("     in %s\n", name);
}

static int one_task(const struct lme_task *t, const struct lme_prompts *p, const struct lme_docs *docs, const struct lme_docs *pool,
                    const struct tok *tok, struct both *b, struct err *e)
{
    TRY(lme_each(t, docs, pool, p, add_text, b, e));
    for (int k = 0; k < 2; k++) {
        struct lme_encode_opts o = {.max_length = lengths[k], .truncate = true, .prefix = -1};
        struct lme_encoder *x;
        struct lme_set set;
        struct lme_cost c;
        TRY(lme_encoder_open(&x, tok, &o, e));
        TRY(lme_set_make(t, docs, pool, p, x, &set, e));
        add_ids(b, &set, k);
        if (k == 0) {
            TRY(lme_count(set.req, set.n, &c, e));
            for (int i = 0; i < b->n; i++) {
                b->v[i]->cost.tokens += c.tokens;
                b->v[i]->cost.no_sharing += c.no_sharing;
                b->v[i]->cost.one_token_cache += c.one_token_cache;
            }
        }
        lme_set_free(&set);
        lme_encoder_close(x);
    }
    return 0;
}

struct oracle {
    json_t *line[400];
    size_t n;
};
static const json_t *oracle_line(const struct oracle *o, const char *task, int shots, const char *mode)
{
    for (size_t i = 0; i < o->n; i++)
        if (!strcmp(json_string_value(json_object_get(o->line[i], "task")), task) && num(o->line[i], "num_fewshot", NULL, NULL) == shots &&
            !strcmp(json_string_value(json_object_get(o->line[i], "mode")), mode))
            return o->line[i];
    return NULL;
}

static int one_mode(const struct oracle *o, int shots, const char *mode, const struct tok *tok, struct err *e)
{
    const char *data = getenv("DASHLAB_TEST_DATA");
    struct lme_prompts p = LME_PROMPTS_INIT;
    struct sums mmlu;
    p.shots = shots;
    p.chat = strcmp(mode, "plain") != 0;
    p.multiturn = !strcmp(mode, "chat_multiturn");
    p.template = CHAT_SMOLLM2;
    sums_open(&mmlu);
    for (int i = 0; i < LME_N_TASKS; i++) {
        const struct lme_task *t = lme_task_at(i);
        const json_t *line = oracle_line(o, t->name, shots, mode);
        struct lme_docs docs, pool = {0};
        struct sums s;
        struct both b = {{&s, &mmlu}, t->kind == LME_MMLU ? 2 : 1};
        CHECK(line != NULL);
        if (!line)
            continue;
        sums_open(&s);
        TRY(lme_load(t, LME_EVAL, data ? data : "../shared/data", &docs, e));
        if (shots)
            TRY(lme_load(t, LME_POOL, data ? data : "../shared/data", &pool, e));
        TRY(one_task(t, &p, &docs, shots ? &pool : NULL, tok, &b, e));
        check_line(&s, line);
        lme_docs_free(&docs);
        lme_docs_free(&pool);
    }
    const json_t *line = oracle_line(o, "mmlu", shots, mode);
    CHECK(line != NULL);
    if (line)
        check_line(&mmlu, line);
    printf("%d shots, %s: %" PRId64 " MMLU tokens to compute, the least possible %" PRId64 "\n", shots, mode, mmlu.cost.tokens,
           num(line, "forward_tokens", "trie_per_subject", NULL));
    return 0;
}

int main(void)
{
    static const struct {
        int shots;
        const char *mode;
    } modes[] = {{0, "plain"}, {5, "plain"}, {0, "chat_multiturn"}, {0, "chat_singleturn"}, {5, "chat_singleturn"}};
    static struct oracle o;
    static char text[1 << 20];
    char cmd[1200];
    struct tok *tok = NULL;
    const char *gz = test_data("oracle/lmeval/requests.jsonl.gz"), *vocab = test_data("tokenizers/smollm2/vocab.json");
    if (!gz || !vocab || !test_data("winogrande/train_xl.jsonl"))
        return test_skip("oracle/lmeval, tokenizers or the benchmarks are not there");
    snprintf(cmd, sizeof cmd, "gzip -dc '%s'", gz);
    FILE *f = popen(cmd, "r");
    while (f && fgets(text, sizeof text, f) && o.n < ARRAY_LEN(o.line)) {
        struct jdoc d;
        CHECK_OK(jdoc_parse(&d, "requests.jsonl", text, strlen(text), e));
        o.line[o.n++] = d.root;
    }
    if (f)
        pclose(f);
    if (!o.n)
        return test_skip("gzip is missing");
    CHECK_EQ_I(o.n, 310);
    snprintf(cmd, sizeof cmd, "%.*s", (int)(strlen(vocab) - strlen("/vocab.json")), vocab);
    CHECK_OK(tok_load(&tok, cmd, NULL, e));
    for (size_t i = 0; tok && i < ARRAY_LEN(modes); i++)
        CHECK_OK(one_mode(&o, modes[i].shots, modes[i].mode, tok, e));
    for (size_t i = 0; i < o.n; i++)
        json_decref(o.line[i]);
    tok_free(tok);
    return test_end();
}
