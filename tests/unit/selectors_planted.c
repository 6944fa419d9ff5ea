/*
 * Planted truth: a small random model in which one layer is indispensable by construction (its mixer writes 40,000 times as much as the
 * others'). Every selector that looks at the model ranks it first. The same scores come out twice, for any batch and any number of
 * threads, and the FLOPs are the backend's.
 */
#include <math.h>
#include <unistd.h>

#include "baselines/halo.h"
#include "core/fs.h"
#include "core/rng.h"
#include "model/cache.h"
#include "tests/test.h"

enum { LAYERS = 6, PLANTED = 3, VOCAB = 94, SEQ = 40, ROWS = 6, PROMPTS = 10, PROMPT_LEN = 24, NEW = 8 };

static int init(void *ctx, const struct param *p, float *w, struct err *e)
{
    TRY(model_init_normal(ctx, p, w, e));
    float scale = p->layer == PLANTED ? 4.0f : 1e-4f;
    for (int64_t i = 0; strstr(p->name, "o_proj.weight") && i < p->n; i++)
        w[i] *= scale;
    return 0;
}

static struct tok *tok_of(const struct tok_str tokens[VOCAB])
{
    struct tok *t = NULL;
    CHECK_OK(tok_from_parts(
        &t, &(struct tok_parts){.name = "planted", .tokens = tokens, .n_tokens = VOCAB, .pre = "gpt-2", .bos = -1, .eos = -1, .unk = -1},
        e));
    return t;
}

/* One printable character a token. */
static struct tok *make_tok(void)
{
    static char text[VOCAB];
    struct tok_str tokens[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        text[i] = (char)('!' + i);
        tokens[i] = (struct tok_str){&text[i], 1};
    }
    return tok_of(tokens);
}

static struct model *make_teacher(struct backend *be, struct tok *tok)
{
    struct mcfg c = {.arch = ARCH_QWEN2,
                     .L = LAYERS,
                     .d = 32,
                     .H = 4,
                     .G = 2,
                     .head_dim = 8,
                     .F = 24,
                     .N = VOCAB,
                     .max_pos = 256,
                     .eps = 1e-6,
                     .tie_embeddings = true,
                     .bos = -1,
                     .pad = -1};
    struct init_normal in = {.seed = 5, .std = 0.3};
    struct model *m = NULL;
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    CHECK_OK(model_new(&m, be, &c, init, &in, e));
    if (m) {
        m->tok = tok;
        m->borrows_tok = true;
    }
    return m;
}

/* n sequences: start random tokens and what the teacher writes after them: on these its own likelihood is as high as greedy decoding
 * makes it. */
static void own_words(struct model *m, int n, int start, int total, int32_t *ids)
{
    const int32_t *prompt[ROWS + PROMPTS];
    int32_t len[ROWS + PROMPTS], *out[ROWS + PROMPTS], out_len[ROWS + PROMPTS];
    for (int i = 0; i < n; i++) {
        for (int t = 0; t < start; t++)
            ids[i * total + t] = (int32_t)ctr_below(9, (uint64_t)(i + total), (uint64_t)t, VOCAB);
        prompt[i] = ids + i * total;
        len[i] = start;
        out[i] = ids + i * total + start;
    }
    CHECK_OK(gen_greedy(m, n, prompt, len, &(struct gen_opts){.batch = 4, .max_new = total - start}, out, out_len, e));
}

static void make_shard(struct model *m, const char *dir)
{
    static int32_t ids[ROWS * SEQ];
    uint8_t mask[SEQ];
    struct shard_out o;
    own_words(m, ROWS, 12, SEQ, ids);
    for (int t = 0; t < SEQ; t++)
        mask[t] = (uint8_t)(TOK_PRESENT | (t >= 12 ? TOK_ANSWER : 0));
    CHECK_OK(shard_create(&o, dir, SEQ, VOCAB, e));
    for (int r = 0; r < ROWS; r++)
        CHECK_OK(shard_add(&o, ids + r * SEQ, mask, SEQ - r, true, e));
    CHECK_OK(shard_commit(&o, "0000000000000000000000000000000000000000000000000000000000000000", e));
}

/* Prompts whose right answer is what the whole teacher writes: its accuracy is 1. */
static void make_prompts(struct model *m, struct probe_set *s)
{
    static int32_t ids[PROMPTS * (PROMPT_LEN + NEW)];
    own_words(m, PROMPTS, PROMPT_LEN, PROMPT_LEN + NEW, ids);
    *s = (struct probe_set){.v = calloc(PROMPTS, sizeof *s->v), .n = PROMPTS, .cap = PROMPTS};
    for (int i = 0; i < PROMPTS; i++) {
        struct probe_prompt *p = &s->v[i];
        struct str text = STR_INIT;
        const int32_t *at = ids + i * (PROMPT_LEN + NEW);
        *p = (struct probe_prompt){
            .probe = &probe_needle, .ruler = true, .len = PROMPT_LEN, .max_new = NEW, .ids = calloc(PROMPT_LEN, sizeof *p->ids)};
        memcpy(p->ids, at, PROMPT_LEN * sizeof *p->ids);
        CHECK_OK(tok_decode(m->tok, at + PROMPT_LEN, NEW, true, &text, e));
        CHECK_OK(list_add(&p->refs, str_c(&text), text.len, e));
        str_free(&text);
    }
}

struct world {
    struct model *teacher;
    struct linset *lin;
    struct shard data;
    struct probe_set prompts;
};

static struct select_input input(const struct world *w, int micro, int batch)
{
    return (struct select_input){.be = w->teacher->be,
                                 .teacher = w->teacher,
                                 .lin = w->lin,
                                 .data = &w->data,
                                 .layers = LAYERS,
                                 .budget = 2,
                                 .row_hi = ROWS,
                                 .micro = micro,
                                 .probe = {.ruler = true, .prompts = PROMPTS, .batch = batch}};
}

static void first_is_planted(const char *name, const struct selection *s)
{
    int order[MAX_LAYERS];
    selection_order(s, order);
    printf("%-8s", name);
    for (int l = 0; l < LAYERS; l++)
        printf(" %10.3g", s->score[l]);
    printf("\n");
    CHECK_EQ_I(order[0], PLANTED);
    CHECK(s->score[PLANTED] > s->score[order[1]] && s->kind[PLANTED] == MIX_FULL);
}

enum { N_SWEEPS = 4, N_ALL = 6 };
/* All that look at the model, once. */
static void run_all(const struct world *w, int micro, int batch, struct selection out[N_ALL])
{
    static const struct selector *const sweep[N_SWEEPS] = {&sel_lm_ppl, &sel_act_mse, &sel_smart, &sel_smart};
    struct select_input in = input(w, micro, batch);
    for (int i = 0; i < N_SWEEPS; i++) {
        in.positions = i == 3 ? POS_ANSWERS : POS_ALL;
        double f0 = in.be->flops;
        CHECK_OK(selector_run(sweep[i], &in, &out[i], e));
        CHECK(out[i].flops_forward == in.be->flops - f0 && out[i].flops_forward > 0 && out[i].flops_backward == 0 && out[i].tokens > 0);
    }
    in.positions = POS_ALL;
    for (int i = N_SWEEPS; i < N_ALL; i++) {
        double f0 = in.be->flops;
        out[i] = (struct selection){.layers = LAYERS};
        CHECK_OK(i == N_SWEEPS ? probe_select(&in, &w->prompts, &out[i], e) : halo_select(&in, &w->prompts, &out[i], e));
        CHECK(fabs(out[i].flops_forward - (in.be->flops - f0)) <= 1e-12 * out[i].flops_forward); /* a sum of parts, in another order */
        CHECK(out[i].has_base && out[i].base == 1 && !out[i].uninformative);
    }
}

static void test_planted(const struct world *w, struct selection base[N_ALL])
{
    static const char *const name[N_ALL] = {"lm-ppl", "act-mse", "smart", "smart/a", "probe", "halo"};
    struct selection again[N_ALL];
    run_all(w, 4, 4, base);
    for (int i = 0; i < N_ALL; i++) /* smart keeps even gaps whatever comes first: only its score is asked */
        if (i == 2 || i == 3) {
            int order[MAX_LAYERS];
            selection_order(&base[i], order);
            CHECK_EQ_I(order[0], PLANTED);
        } else
            first_is_planted(name[i], &base[i]);
    run_all(w, 1, 1, again); /* twice, and with another batch */
    for (int i = 0; i < N_ALL; i++)
        CHECK(!memcmp(base[i].score, again[i].score, sizeof base[i].score) && base[i].tokens == again[i].tokens);
}

/*
 * Each probe by its own rule. What the teacher writes is made right, and hardly anything else is: AR and AR-MH look for its whole text;
 * for the others tokens have texts that depend on whether the teacher begins with them (KV, CWE: what comes first decides) or writes them
 * at all (VT: one wrong variable is enough).
 */
static const struct own_rule {
    const struct probe *probe;
    const char *good, *bad, *ref;
    bool first;
} own_rules[] = {{&probe_kv, "7", "8", "7", true},
                 {&probe_ar, NULL, NULL, NULL, false},
                 {&probe_ar_mh, NULL, NULL, NULL, false},
                 {&probe_vt, "X1X2X3", "X9", "X1", false},
                 {&probe_cwe, "ka.kb.kc.kd.ke.kf.kg.kh.ki.kj.", "Explanation.", "ka.kb.kc.kd.ke.kf.kg.kh.ki.kj", true}};

static struct tok *tok_for(const struct own_rule *r, const int32_t *ids)
{
    static char text[VOCAB][40];
    struct tok_str tokens[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        bool good = false;
        for (int k = 0; k < PROMPTS; k++)
            for (int j = 0; j < (r->first ? 1 : NEW); j++)
                good = good || ids[k * (PROMPT_LEN + NEW) + PROMPT_LEN + j] == i;
        snprintf(text[i], sizeof text[i], "%s%c%c", good ? r->good : r->bad, 'a' + i / 26, 'a' + i % 26); /* all different */
        tokens[i] = (struct tok_str){text[i], strlen(text[i])};
    }
    return tok_of(tokens);
}

static void test_own_rules(struct world *w)
{
    static int32_t ids[PROMPTS * (PROMPT_LEN + NEW)];
    struct tok *characters = w->teacher->tok;
    own_words(w->teacher, PROMPTS, PROMPT_LEN, PROMPT_LEN + NEW, ids);
    for (size_t i = 0; i < ARRAY_LEN(own_rules); i++) {
        const struct own_rule *r = &own_rules[i];
        struct selection out = {.layers = LAYERS};
        struct probe_set own = {.v = calloc(PROMPTS, sizeof *own.v), .n = PROMPTS, .cap = PROMPTS};
        struct tok *tok = r->good ? tok_for(r, ids) : NULL;
        for (int k = 0; k < PROMPTS; k++) {
            own.v[k] = w->prompts.v[k];
            own.v[k].probe = r->probe;
            own.v[k].ruler = false;
            if (!tok)
                continue;
            own.v[k].refs = own.v[k].listed = (struct list){0};
            for (const char *z = r->ref; *z; z += strcspn(z, "."), z += *z == '.') {
                CHECK_OK(list_add(&own.v[k].refs, z, strcspn(z, "."), e));
                CHECK_OK(list_add(&own.v[k].listed, z, strcspn(z, "."), e));
            }
        }
        w->teacher->tok = tok ? tok : characters;
        struct select_input in = input(w, 4, 4);
        CHECK_OK(probe_select(&in, &own, &out, e));
        CHECK(out.has_base && out.base == 1 && !out.uninformative);
        first_is_planted(r->probe->name, &out);
        for (int k = 0; tok && k < PROMPTS; k++) {
            list_free(&own.v[k].refs);
            list_free(&own.v[k].listed);
        }
        free(own.v);
        tok_free(tok);
    }
    w->teacher->tok = characters;
}

/* An interrupted selection goes on: what is kept is not computed again, and costs and scores are the same. */
static void test_resume(const struct world *w, const char *dir)
{
    struct select_input in = input(w, 4, 4);
    struct selection whole = {.layers = LAYERS}, half = whole;
    char path[1024];
    struct str s = STR_INIT;
    in.work_dir = dir;
    CHECK_OK(probe_select(&in, &w->prompts, &whole, e));
    CHECK_OK(file_read(path_join(path, dir, "layers.tsv"), 0, &s, e));
    char *cut = s.p; /* the teacher, two layers and a torn line stay */
    for (int i = 0; i < 3; i++)
        cut = strchr(cut, '\n') + 1;
    CHECK_OK(file_write(path, s.p, (size_t)(cut + 5 - s.p), e));
    double f0 = in.be->flops;
    CHECK_OK(probe_select(&in, &w->prompts, &half, e));
    CHECK(in.be->flops - f0 < 0.7 * whole.flops_forward);
    CHECK(!memcmp(whole.score, half.score, sizeof whole.score) && whole.tokens == half.tokens &&
          fabs(whole.flops_forward - half.flops_forward) <= 1e-12 * whole.flops_forward);
    str_free(&s);
    CHECK(remove(path) == 0);
}

/* A probe that the teacher fails says nothing: no layer is computed, nothing is kept. */
static void test_uninformative(const struct world *w)
{
    struct select_input in = input(w, 4, 4);
    struct selection out = {.layers = LAYERS};
    struct probe_set bad = {.v = calloc(PROMPTS, sizeof *bad.v), .n = PROMPTS};
    for (int i = 0; i < PROMPTS; i++) {
        bad.v[i] = w->prompts.v[i];
        bad.v[i].refs = (struct list){0};
        const char *ref = i == 0 ? w->prompts.v[i].refs.v[0] : "\x01";
        CHECK_OK(list_add(&bad.v[i].refs, ref, strlen(ref), e));
    }
    CHECK_OK(probe_select(&in, &bad, &out, e));
    CHECK(out.uninformative && !out.has_score && out.has_base && out.base == 0.1 && out.tokens <= PROMPTS * (PROMPT_LEN + NEW));
    for (int i = 0; i < PROMPTS; i++)
        list_free(&bad.v[i].refs);
    free(bad.v);
}

static void world_open(struct world *w, struct backend *be, struct tok *tok, const char *dir, bool fresh)
{
    struct linset_opts lo = LINSET_OPTS;
    *w = (struct world){.teacher = make_teacher(be, tok)};
    CHECK_OK(linset_make(&w->lin, w->teacher, &lo, e));
    if (fresh)
        make_shard(w->teacher, dir);
    CHECK_OK(shard_open(&w->data, dir, true, e));
    make_prompts(w->teacher, &w->prompts);
}

static void world_close(struct world *w)
{
    probe_set_free(&w->prompts);
    shard_close(&w->data);
    linset_close(w->lin);
    model_close(w->teacher);
}

int main(void)
{
    char dir[] = "/tmp/dashlab-planted-XXXXXX";
    struct selection base[2][N_ALL];
    struct tok *tok = make_tok();
    CHECK(mkdtemp(dir) != NULL);
    for (int threads = 1; tok && threads <= 2; threads++) {
        struct pool *pool = NULL;
        struct backend *be;
        struct err te = ERR_INIT;
        struct world w;
        CHECK_OK(pool_open(&pool, threads, e));
        if (backend_open(&be, &(struct backend_opts){.name = "cpu", .pool = pool}, &te) != 0)
            CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "ref32", .pool = pool}, e));
        world_open(&w, be, tok, dir, threads == 1);
        test_planted(&w, base[threads - 1]);
        if (threads == 1) {
            test_own_rules(&w);
            test_resume(&w, dir);
            test_uninformative(&w);
        }
        world_close(&w);
        CHECK_EQ_I(be->mem_used_bytes, 0);
        backend_close(be);
        pool_close(pool);
    }
    for (int i = 0; i < N_ALL; i++)
        CHECK(!memcmp(base[0][i].score, base[1][i].score, sizeof base[0][i].score)); /* any number of threads */
    tok_free(tok);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
