/*
 * Prompts that begin alike: what they have in common is computed once, log-probabilities of what follows them without computing them again;
 * every id and every bit as without sharing. Full attention and the gated delta rule (with convolutions); windows are left alone.
 */
#include <math.h>

#include "core/rng.h"
#include "kernels/ops.h"
#include "model/cache.h"
#include "model/ckfile.h"
#include "tests/test.h"

enum { N = 9, MAX_LEN = 700, NEW = 12, LAYERS = 3 };

static struct model *make(struct backend *be, const unsigned *ops, struct model **teacher)
{
    struct mcfg c = {.arch = ARCH_QWEN2,
                     .L = LAYERS,
                     .d = 32,
                     .H = 4,
                     .G = 2,
                     .head_dim = 8,
                     .F = 24,
                     .N = 96,
                     .max_pos = 1024,
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
    lo.conv = true;
    CHECK_OK(model_new(teacher, be, &c, model_init_normal, &init, e));
    CHECK_OK(linset_make(&lin, *teacher, &lo, e));
    CHECK_OK(model_assemble(&m, *teacher, lin, &(struct assemble_opts){.ops = ops, .window = 12, .copy = false}, e));
    linset_close(lin);
    return m;
}

/* Prompt i begins as prompt from[i] does, for `common` tokens. */
static const struct {
    int from;
    int32_t common, len;
} shape[N] = {{0, 0, 400},   {0, 300, 420}, {0, 300, 333}, {1, 383, 500}, {0, 64, 140},
              {4, 130, 700}, {0, 0, 200},   {0, 400, 401}, {3, 500, 500}};
static int32_t full[N][MAX_LEN + 32];
static const int32_t *rows[N];
static int32_t len[N], full_len[N];

static void fill(void)
{
    for (int i = 0; i < N; i++) {
        len[i] = shape[i].len;
        full_len[i] = len[i] + 1 + 3 * i;
        rows[i] = full[i];
        for (int32_t t = 0; t < full_len[i]; t++)
            full[i][t] = t < shape[i].common ? full[shape[i].from][t] : 1 + (int32_t)ctr_below(5, (uint64_t)i, (uint64_t)t, 94);
    }
}

static void generate(struct model *m, struct gen_opts o, int32_t (*ids)[NEW], int32_t *n)
{
    int32_t *out[N];
    for (int i = 0; i < N; i++)
        out[i] = ids[i];
    o.batch = N;
    o.max_new = NEW;
    CHECK_OK(gen_greedy(m, N, rows, len, &o, out, n, e));
}

static void check_model(struct backend *be, const unsigned *ops, const char *name)
{
    static int32_t plain[N][NEW], shared[N][NEW], scored[N][NEW];
    static double whole[N][MAX_LEN + 32], tail[N][32];
    double *lp[N], *tails[N];
    int32_t a[N], b[N], c[N];
    int64_t total = 0, all = 0, some = 0, both = 0;
    struct model *teacher = NULL, *m = make(be, ops, &teacher);
    printf("---- %s\n", name);
    for (int i = 0; i < N; i++) {
        lp[i] = whole[i];
        tails[i] = tail[i];
        total += len[i];
    }
    int64_t cut = gen_share_cut(m);
    CHECK_EQ_I(cut, GDN_CHUNK);
    generate(m, (struct gen_opts){.computed = &all}, plain, a);
    CHECK_EQ_I(all, total);
    generate(m, (struct gen_opts){.share = cut, .computed = &some}, shared, b);
    generate(m,
             (struct gen_opts){.share = cut, .full = rows, .full_len = full_len, .full_lp = tails, .computed = &both, .prefill_rows = 256},
             scored, c); /* long prompts in pieces */
    CHECK(!memcmp(a, b, sizeof a) && !memcmp(a, c, sizeof a));
    CHECK(!memcmp(plain, shared, sizeof plain) && !memcmp(plain, scored, sizeof plain));
    /* shared, in whole cuts of 64: 256 of 0 1 2; 320 of 1 3; 64 of 0 4; 128 of 4 5; 384 of 0 and 7; 448 of 3 and 8 */
    printf("%d of %d prompt tokens; %d with scores\n", (int)some, (int)total, (int)both);
    CHECK_EQ_I(some, total - (256 + 256 + 320 + 64 + 128 + 384 + 448));
    CHECK(both < some + N * 4 * 64);
    CHECK_OK(score_logprobs(m, N, rows, full_len, 0, lp, NULL, e));
    for (int i = 0; i < N; i++)
        CHECK(!memcmp(tail[i], whole[i] + len[i], (size_t)(full_len[i] - len[i]) * sizeof(double)));
    int32_t *out[N] = {0};
    CHECK_ERR(gen_greedy(m, N, rows, len, &(struct gen_opts){.batch = N - 1, .max_new = 1, .share = cut}, out, a, e), E_USAGE,
              "cannot share");
    model_close(m);
    model_close(teacher);
}

int main(void)
{
    static const unsigned attn[LAYERS] = {MIX_BIT(MIX_FULL), MIX_BIT(MIX_FULL), MIX_BIT(MIX_FULL)};
    static const unsigned hybrid[LAYERS] = {MIX_BIT(MIX_FULL), MIX_BIT(MIX_GDN), MIX_BIT(MIX_FULL)};
    static const unsigned linear[LAYERS] = {MIX_BIT(MIX_GDN), MIX_BIT(MIX_GDN), MIX_BIT(MIX_GDN)};
    static const unsigned window[LAYERS] = {MIX_BIT(MIX_FULL), MIX_BIT(MIX_WINDOW), MIX_BIT(MIX_GDN)};
    struct pool *pool = NULL;
    struct backend *be = NULL;
    fill();
    CHECK_OK(pool_open(&pool, 2, e));
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "cpu", .pool = pool}, e));
    check_model(be, attn, "full attention");
    check_model(be, hybrid, "hybrid");
    check_model(be, linear, "gated delta rule");
    struct model *teacher = NULL, *m = make(be, window, &teacher);
    CHECK_EQ_I(gen_share_cut(m), 0);
    model_close(m);
    model_close(teacher);
    backend_close(be);
    pool_close(pool);
    return test_end();
}
