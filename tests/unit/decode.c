/*
 * Decoding: step by step against the whole forward, results of a sequence independent of its company (bit for bit on the CPU backends),
 * ring caches, growing caches, forks, hybrids written and read again.
 */
#include "tests/test.h"

#include <math.h>
#include <unistd.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/rng.h"
#include "kernels/ops.h"
#include "model/cache.h"
#include "model/ckfile.h"

#define N_SEQ 7
#define MAX_LEN 150
#define NEW 20
static const int32_t lens[N_SEQ] = {1, 9, 64, 65, 130, 7, 33};
static int32_t prompts[N_SEQ][MAX_LEN];
static const int32_t *const prompt[N_SEQ] = {prompts[0], prompts[1], prompts[2], prompts[3], prompts[4], prompts[5], prompts[6]};

static struct model *make(struct backend *be, const unsigned *ops, int64_t layers, bool conv, struct model **teacher)
{
    struct mcfg c = {.arch = ARCH_QWEN2,
                     .L = layers,
                     .d = 32,
                     .H = 4,
                     .G = 2,
                     .head_dim = 8,
                     .F = 24,
                     .N = 96,
                     .max_pos = 256,
                     .eps = 1e-6,
                     .tie_embeddings = true,
                     .qkv_bias = true,
                     .bos = -1,
                     .pad = -1,
                     .n_eos = 1,
                     .eos = {0}};
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    struct init_normal init = {.seed = 11, .std = 0.35};
    struct linset_opts lo = LINSET_OPTS;
    struct linset *lin = NULL;
    struct model *m = NULL;
    lo.conv = conv;
    CHECK_OK(model_new(teacher, be, &c, model_init_normal, &init, e));
    CHECK_OK(linset_make(&lin, *teacher, &lo, e));
    CHECK_OK(model_assemble(&m, *teacher, lin, &(struct assemble_opts){.ops = ops, .window = 12, .copy = false}, e));
    linset_close(lin);
    return m;
}

/* Greedy ids by whole forwards, one token at a time: no cache involved. */
static void slow_greedy(struct model *m, const int32_t *p, int32_t n, int32_t *out)
{
    int32_t seq[MAX_LEN + NEW], *best = calloc(MAX_LEN + NEW + 1, sizeof *best);
    double *lp = calloc(MAX_LEN + NEW, sizeof *lp);
    memcpy(seq, p, (size_t)n * sizeof *seq);
    for (int i = 0; i < NEW; i++) {
        const int32_t *one = seq;
        int32_t len = n + i;
        CHECK_OK(score_logprobs(m, 1, &one, &len, 0, &lp, &best, e));
        out[i] = seq[n + i] = best[len];
    }
    free(best);
    free(lp);
}

static void generate(struct model *m, int32_t batch, int64_t prefill_rows, int32_t (*ids)[NEW], int32_t *len)
{
    int32_t *out[N_SEQ];
    for (int i = 0; i < N_SEQ; i++)
        out[i] = ids[i];
    CHECK_OK(
        gen_greedy(m, N_SEQ, prompt, lens, &(struct gen_opts){.batch = batch, .max_new = NEW, .prefill_rows = prefill_rows}, out, len, e));
}

/* Last hidden row of each sequence after feeding its prompt in pieces of `step`, together or alone. */
static void feed(struct model *m, const int *which, int n, int32_t step, double *hidden)
{
    struct acts a;
    struct batch b;
    struct cache *c = NULL;
    struct view h;
    int64_t d = m->cfg.d;
    CHECK_OK(acts_open(&a, m, &(struct acts_opts){.rows = N_SEQ * MAX_LEN, .seqs = N_SEQ}, e));
    CHECK_OK(batch_open(&b, m->be, N_SEQ * MAX_LEN, N_SEQ, e));
    CHECK_OK(cache_open(&c, m, N_SEQ, 8, e)); /* too small: it has to grow */
    for (int32_t at = 0;; at += step) {       /* sequences that are through leave from the back: which is in order of falling length */
        const int32_t *tok[N_SEQ];
        int32_t len[N_SEQ], k = 0;
        while (k < n && at < lens[which[k]]) {
            tok[k] = prompts[which[k]] + at;
            len[k] = MIN(step, lens[which[k]] - at);
            k++;
        }
        if (!k)
            break;
        CHECK_OK(batch_set(&b, k, tok, len, NULL, m->cfg.N, e));
        CHECK_OK(model_step(m, &a, c, 0, &b, &h, e));
        for (int i = 0; i < k; i++)
            CHECK_OK(get_f64(m->be, hidden + which[i] * d, view_at(h, (b.seqs.q_off[i + 1] - 1) * d, d), e));
    }
    cache_close(c);
    acts_close(&a);
    batch_close(&b);
}

static void check_model(struct model *m, const char *name, double tol, const char *why, bool bits)
{
    static const int order[N_SEQ] = {4, 3, 2, 6, 1, 5, 0}; /* by falling length */
    static int32_t a[N_SEQ][NEW], b[N_SEQ][NEW], c[N_SEQ][NEW], slow[NEW];
    int32_t la[N_SEQ], lb[N_SEQ], lc[N_SEQ];
    printf("---- %s on %s\n", name, m->be->ops->name);
    generate(m, 1, 0, a, la);
    generate(m, N_SEQ, 0, b, lb);
    generate(m, 3, 0, c, lc); /* sequences come and go */
    for (int i = 0; i < N_SEQ; i++) {
        CHECK_EQ_I(la[i], NEW);
        CHECK(la[i] == lb[i] && !memcmp(a[i], b[i], sizeof a[i]));
        CHECK(la[i] == lc[i] && !memcmp(a[i], c[i], sizeof a[i]));
    }
    slow_greedy(m, prompts[4], lens[4], slow); /* 130 tokens: beyond the window and two GDN chunks */
    CHECK(!memcmp(slow, a[4], sizeof slow));
    /* hidden states: whole forward, steps of 1, of 7 and of everything, alone and together */
    int64_t d = m->cfg.d, n = N_SEQ * d;
    double *whole = calloc((size_t)n, sizeof *whole), *h1 = calloc((size_t)n, sizeof *h1), *h7 = calloc((size_t)n, sizeof *h7),
           *one = calloc((size_t)n, sizeof *one);
    struct acts acts;
    struct batch batch;
    struct view h;
    CHECK_OK(acts_open(&acts, m, &(struct acts_opts){.rows = N_SEQ * MAX_LEN, .seqs = N_SEQ}, e));
    CHECK_OK(batch_open(&batch, m->be, N_SEQ * MAX_LEN, N_SEQ, e));
    CHECK_OK(batch_set(&batch, N_SEQ, prompt, lens, NULL, m->cfg.N, e));
    CHECK_OK(model_fwd(m, &acts, &batch, NULL, &h, e));
    for (int i = 0; i < N_SEQ; i++)
        CHECK_OK(get_f64(m->be, whole + i * d, view_at(h, (batch.seqs.q_off[i + 1] - 1) * d, d), e));
    acts_close(&acts);
    batch_close(&batch);
    feed(m, order, N_SEQ, 1, h1);
    feed(m, order, N_SEQ, 7, h7);
    check_close_f64("steps of 1 against the whole", h1, whole, (size_t)n, tol, tol, why);
    check_close_f64("steps of 7 against the whole", h7, whole, (size_t)n, tol, tol, why);
    feed(m, order, N_SEQ, MAX_LEN, h7);
    if (bits)
        CHECK(!memcmp(h7, whole, (size_t)n * sizeof *h7)); /* a prompt in one piece through the cache is the plain forward */
    for (int i = 0; i < N_SEQ; i++)
        feed(m, &order[i], 1, 1, one);
    if (bits)
        CHECK(!memcmp(one, h1, (size_t)n * sizeof *one));
    free(whole);
    free(h1);
    free(h7);
    free(one);
}

/* Log-probabilities: packing does not matter; continuations of a prefix agree with whole sequences. */
static void check_scores(struct model *m, double tol)
{
    double mem[3][N_SEQ][MAX_LEN] = {{{0}}}, *lp[N_SEQ], *lp2[N_SEQ], *cl[3];
    int32_t best[N_SEQ][MAX_LEN + 1], *bp[N_SEQ];
    for (int i = 0; i < N_SEQ; i++) {
        lp[i] = mem[0][i];
        lp2[i] = mem[1][i];
        bp[i] = best[i];
    }
    CHECK_OK(score_logprobs(m, N_SEQ, prompt, lens, 0, lp, bp, e));
    CHECK_OK(score_logprobs(m, N_SEQ, prompt, lens, 66, lp2, NULL, e));
    CHECK(!memcmp(mem[0], mem[1], sizeof mem[0]));
    CHECK(lp[4][0] == 0 && lp[4][1] < 0);
    const int32_t *cont[3] = {prompts[4] + 80, prompts[4] + 80, prompts[3]};
    int32_t clen[3] = {50, 1, 5};
    bool greedy[3], want = true;
    for (int i = 0; i < 3; i++)
        cl[i] = mem[2][i];
    CHECK_OK(score_continuations(m, prompts[4], 80, 3, cont, clen, cl, greedy, e));
    check_close_f64("continuation of 50", cl[0], lp[4] + 80, 50, tol, tol, "as steps against the whole");
    CHECK(cl[1][0] == cl[0][0]);
    for (int t = 0; t < 50; t++)
        want = want && best[4][80 + t] == prompts[4][80 + t];
    CHECK(greedy[0] == want);
    /* a continuation that is greedy */
    int32_t g[1] = {best[4][80]};
    cont[0] = g;
    clen[0] = 1;
    CHECK_OK(score_continuations(m, prompts[4], 80, 1, cont, clen, cl, greedy, e));
    CHECK(greedy[0]);
    int32_t bad[2] = {1, 96};
    cont[0] = bad;
    clen[0] = 2;
    CHECK_ERR(score_logprobs(m, 1, cont, clen, 0, lp, NULL, e), E_INPUT, "token id 96");
}

/* Stop ids, limits of single prompts. */
static void check_stops(struct model *m)
{
    static int32_t all[N_SEQ][NEW], some[N_SEQ][NEW];
    int32_t len[N_SEQ], *out[N_SEQ];
    generate(m, 2, 0, all, len);
    int64_t stop[2] = {all[4][3], all[1][5]};
    int32_t each[N_SEQ] = {0, 20, 3, 20, 20, 1, 20};
    for (int i = 0; i < N_SEQ; i++)
        out[i] = some[i];
    CHECK_OK(gen_greedy(m, N_SEQ, prompt, lens,
                        &(struct gen_opts){.batch = 3, .max_new = NEW, .max_new_each = each, .stop = stop, .n_stop = 2}, out, len, e));
    for (int i = 0; i < N_SEQ; i++) {
        int32_t n = 0;
        while (n < each[i]) {
            int32_t id = all[i][n++];
            if (id == stop[0] || id == stop[1])
                break;
        }
        CHECK_EQ_I(len[i], n);
        CHECK(!memcmp(all[i], some[i], (size_t)n * sizeof(int32_t)));
    }
}

/* Written and read again: the same bits; so are the mixers alone. */
static void check_save(struct backend *be, struct model *m, const char *dtype)
{
    char dir[] = "/tmp/dashlab-test-XXXXXX";
    struct model *back = NULL, *again = NULL;
    static int32_t a[N_SEQ][NEW], b[N_SEQ][NEW];
    int32_t la[N_SEQ], lb[N_SEQ];
    char path[1024], h1[65], h2[65];
    CHECK(mkdtemp(dir) != NULL);
    CHECK_OK(model_save(m, dir, dtype, "0123abcd", e));
    CHECK_OK(model_open(&back, be, dir, NULL, e));
    if (!back)
        return;
    CHECK(mcfg_count(&back->cfg, MIX_GDN) == mcfg_count(&m->cfg, MIX_GDN) &&
          mcfg_count(&back->cfg, MIX_WINDOW) == mcfg_count(&m->cfg, MIX_WINDOW));
    CHECK_STR(back->cfg.dashlab.run, mcfg_has(&m->cfg, MIX_GDN) ? "0123abcd" : "");
    const char *hex;
    CHECK_OK(model_hash(back, &hex, e));
    CHECK(strlen(hex) == 64);
    if (!strcmp(dtype, "float32")) {
        generate(m, 3, 0, a, la);
        generate(back, 3, 0, b, lb);
        CHECK(!memcmp(a, b, sizeof a));
    }
    /* a second save of what was read gives the same file */
    CHECK_OK(sha256_file(path_join(path, dir, "model.safetensors"), h1, e));
    CHECK_OK(model_save(back, dir, dtype, "0123abcd", e));
    CHECK_OK(model_open(&again, be, dir, NULL, e));
    CHECK_OK(sha256_file(path, h2, e));
    CHECK_STR(h2, h1);
    if (again)
        CHECK(mcfg_equal(&again->cfg, &back->cfg));
    model_close(again);
    model_close(back);
    struct err te = ERR_INIT;
    remove_tree(dir, &te);
}

static void check_linset(struct backend *be, struct model *teacher)
{
    char dir[] = "/tmp/dashlab-test-XXXXXX";
    struct linset *s = NULL, *t = NULL;
    struct linset_opts o = LINSET_OPTS;
    CHECK(mkdtemp(dir) != NULL);
    CHECK_OK(linset_make(&s, teacher, &o, e));
    CHECK_OK(linset_save(s, dir, "float32", e));
    CHECK_OK(linset_load(&t, be, dir, e));
    if (!s || !t)
        return;
    CHECK_EQ_I(s->params.n, t->params.n);
    for (size_t i = 0; i < s->params.n; i++) {
        int64_t n = s->params.v[i]->n;
        float *a = malloc((size_t)n * 4), *b = malloc((size_t)n * 4);
        CHECK_OK(get_f32(be, a, s->params.v[i]->w, e));
        CHECK_OK(get_f32(be, b, t->params.v[i]->w, e));
        CHECK(!memcmp(a, b, (size_t)n * 4));
        free(a);
        free(b);
    }
    /* head-block clone: rows of the 4 heads are those of KV heads 0 0 1 1; row repeat: row r is row r/2 of the teacher */
    const struct param *k = params_find(&s->params, "model.layers.1.self_attn.k_proj.weight"), *tk = teacher->layer[1].attn->p[1];
    float *w = malloc((size_t)k->n * 4), *tw = malloc((size_t)tk->n * 4);
    CHECK_OK(get_f32(be, w, k->w, e));
    CHECK_OK(get_f32(be, tw, tk->w, e));
    for (int r = 0; r < 32; r++)
        CHECK(!memcmp(w + r * 32, tw + (r / 8 / 2 * 8 + r % 8) * 32, 32 * 4));
    linset_close(t);
    o.init.kv_expand = KV_EXPAND_ROW;
    CHECK_OK(linset_make(&t, teacher, &o, e));
    CHECK_OK(get_f32(be, w, params_find(&t->params, k->name)->w, e));
    for (int r = 0; r < 32; r++)
        CHECK(!memcmp(w + r * 32, tw + r / 2 * 32, 32 * 4));
    free(w);
    free(tw);
    linset_close(s);
    linset_close(t);
    struct err te = ERR_INIT;
    remove_tree(dir, &te);
}

/* Device memory that runs out at any point: E_ENV, nothing lost, and the same call goes through once there is enough. */
static void check_memory(struct model *t, struct model *m)
{
    struct backend *be = m->be;
    static int32_t ids[N_SEQ][NEW];
    int32_t *out[N_SEQ], len[N_SEQ];
    double mem[N_SEQ][MAX_LEN], *lp[N_SEQ];
    const int64_t base = be->mem_used_bytes;
    const unsigned ops[3] = {MIX_BIT(MIX_FULL), MIX_BIT(MIX_WINDOW), MIX_BIT(MIX_GDN)};
    for (int i = 0; i < N_SEQ; i++) {
        out[i] = ids[i];
        lp[i] = mem[i];
    }
    for (int what = 0; what < 4; what++) {
        int failures = 0, rc = -1;
        for (int64_t room = 256; rc != 0 && room < ((int64_t)1 << 30); room += room / 4) {
            struct err te = ERR_INIT;
            struct linset *lin = NULL;
            struct model *h = NULL;
            struct linset_opts lo = LINSET_OPTS;
            be->mem_limit_bytes = base + room;
            if (what == 0)
                rc = gen_greedy(m, N_SEQ, prompt, lens, &(struct gen_opts){.batch = 3, .max_new = 2}, out, len, &te);
            else if (what == 1)
                rc = score_logprobs(m, N_SEQ, prompt, lens, 0, lp, NULL, &te);
            else if (what == 2)
                rc = score_continuations(m, prompts[4], 30, 2, prompt + 1, lens + 1, lp, NULL, &te);
            else if ((rc = linset_make(&lin, t, &lo, &te)) == 0)
                rc = model_assemble(&h, t, lin, &(struct assemble_opts){.ops = ops, .window = 4, .copy = true}, &te);
            failures += rc != 0;
            if (rc != 0 && te.code != E_ENV)
                printf("failure %d of %d: code %d, '%s'\n", failures, what, te.code, te.msg);
            CHECK(rc == 0 || te.code == E_ENV);
            model_close(h);
            linset_close(lin);
            CHECK_EQ_I(be->mem_used_bytes, base);
        }
        CHECK(rc == 0 && failures > 3);
    }
    be->mem_limit_bytes = 0;
}

int main(void)
{
    static const char *const names[] = {"ref64", "cpu"};
    const unsigned F = MIX_BIT(MIX_FULL), W = MIX_BIT(MIX_WINDOW), G = MIX_BIT(MIX_GDN);
    const unsigned full[] = {F, F, F}, window[] = {W, W, W}, gdn[] = {G, G, G}, hybrid[] = {G, F, W}, super[] = {F | W | G, W | G, F | W};
    for (int i = 0; i < N_SEQ; i++)
        for (int t = 0; t < MAX_LEN; t++)
            prompts[i][t] = (int32_t)ctr_below(5, (uint64_t)i, (uint64_t)t, 96);
    struct pool *pool = NULL;
    CHECK_OK(pool_open(&pool, 2, e));
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        struct backend *be;
        struct err te = ERR_INIT;
        if (backend_open(&be, &(struct backend_opts){.name = names[k], .pool = k ? pool : NULL}, &te) != 0) {
            printf("no backend %s: %s\n", names[k], te.msg);
            CHECK(!strcmp(names[k], "cpu") && te.code == E_ENV);
            continue;
        }
        double tol = k ? 2e-4 : 1e-11;
        const char *why = k ? "float32: 2^-24 times about 1000 sums of a 3-layer model" : "double: the same sums in another order";
        const struct {
            const char *name;
            const unsigned *ops;
            bool conv;
        } kinds[] = {{"full", full, false},     {"window", window, false}, {"gdn", gdn, false}, {"gdn with convolution", gdn, true},
                     {"hybrid", hybrid, false}, {"mixture", super, true}};
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
            struct model *t = NULL, *m = make(be, kinds[i].ops, 3, kinds[i].conv, &t);
            if (m) {
                check_model(m, kinds[i].name, tol, why, true);
                check_scores(m, tol);
            }
            if (i == 4) {
                check_stops(m);
                if (k == 1 || be->act == DT_F64)
                    check_save(be, m, "float32");
                check_save(be, m, "bfloat16");
                check_linset(be, t);
                check_memory(t, m);
            }
            if (i == 0)
                check_save(be, t, "float32");
            if (i == 5)
                CHECK_ERR(model_save(m, "/tmp/never", "float32", NULL, e), E_USAGE, "mixture");
            model_close(t); /* the teacher may go first */
            model_close(m);
        }
        CHECK_EQ_I(be->mem_used_bytes, 0);
        backend_close(be);
    }
    pool_close(pool);
    return test_end();
}
