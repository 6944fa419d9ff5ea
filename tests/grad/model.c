/*
 * Gradients of whole tiny hybrids against central finite differences in double: every parameter tensor along a random direction, every
 * mixture weight, with a KL loss at temperature 1.7 through the head and a linear loss at one mixer's output. Two shapes: Qwen2-like
 * without convolution, Qwen3-like with convolution and untied head.
 */
#include "tests/test.h"

#include <math.h>

#include "core/rng.h"
#include "kernels/ops.h"
#include "model/cache.h"

#define N_LAYERS 5
#define R 77 /* 70 tokens (more than a GDN chunk), 6 and 1 */
#define SEED 7
static const int32_t lens[3] = {70, 6, 1};
static const unsigned ops[N_LAYERS] = {MIX_BIT(MIX_FULL) | MIX_BIT(MIX_WINDOW) | MIX_BIT(MIX_GDN), MIX_BIT(MIX_GDN),
                                       MIX_BIT(MIX_WINDOW) | MIX_BIT(MIX_GDN), MIX_BIT(MIX_FULL) | MIX_BIT(MIX_WINDOW),
                                       MIX_BIT(MIX_WINDOW)};
static const double mix[N_LAYERS][3] = {{0.5, 0.2, 0.3}, {0}, {0, 0.35, 0.65}, {0.8, 0.2, 0}, {0}};
#define INJECT_LAYER 2
#define STEP 4e-6
#define WHY "four-point differences, h = 4e-6: rounding 1e-15 f sqrt(terms) / h about 1e-8 with f about 40"

struct rig {
    struct backend *be;
    struct model *t, *m;
    struct acts ta, a;
    struct batch b;
    struct view ht, kl, wt, dh, coef, dp;
    double *h_coef, *h_wt;
    double linear; /* of the last forward */
};

static double uniform(uint64_t stream, uint64_t i)
{
    return 2 * ctr_uniform(SEED, stream, i) - 1;
}

static void on_mixer(void *ctx, int64_t l, struct view h, struct view y)
{
    struct rig *r = ctx;
    UNUSED(h);
    if (l != INJECT_LAYER)
        return;
    double *v = malloc((size_t)y.n * sizeof *v);
    be_get(r->be, v, y);
    r->linear = 0;
    for (int64_t i = 0; i < y.n; i++)
        r->linear += v[i] * r->h_coef[i];
    free(v);
}

static bool inject(void *ctx, int64_t l, struct view dy)
{
    struct rig *r = ctx;
    if (l != INJECT_LAYER)
        return false;
    be_copy(r->be, dy, view_at(r->coef, 0, dy.n));
    return true;
}

static double loss(struct rig *r, bool grad)
{
    struct view hidden;
    double kl[R], sum = 0;
    CHECK_OK(model_fwd(r->m, &r->a, &r->b, &(struct fwd_opts){.save = grad, .ctx = r, .on_mixer = on_mixer}, &hidden, e));
    struct op_head_kl d = {.kl = r->kl,
                           .hs = hidden,
                           .ws = model_head(r->m)->w,
                           .ht = r->ht,
                           .wt_head = model_head(r->t)->w,
                           .wt = r->wt,
                           .rows = R,
                           .dim = r->m->cfg.d,
                           .vocab = r->m->cfg.N,
                           .tau = 1.7};
    if (grad) {
        d.dhs = r->dh;
        d.dws = model_head(r->m)->g;
    }
    be_head_kl(r->be, &d);
    CHECK_OK(get_f64(r->be, kl, r->kl, e));
    for (int i = 0; i < R; i++)
        sum += r->h_wt[i] * kl[i];
    return sum + r->linear;
}

/* Derivative from four points, error h^4 f^(5) / 30. */
static double stencil(const double f[4], double h)
{
    return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
}
static const double steps[4] = {1, -1, 2, -2};

/* d/ds loss(w + s v) at 0, w a tensor and v a fixed direction. */
static double along(struct rig *r, const struct param *p, double h, const double *v)
{
    double *w = malloc((size_t)p->n * sizeof *w), *moved = malloc((size_t)p->n * sizeof *w), f[4];
    be_get(r->be, w, p->w);
    for (int s = 0; s < 4; s++) {
        for (int64_t i = 0; i < p->n; i++)
            moved[i] = w[i] + steps[s] * h * v[i];
        be_put(r->be, p->w, moved);
        f[s] = loss(r, false);
    }
    be_put(r->be, p->w, w);
    free(w);
    free(moved);
    return stencil(f, h);
}

static void check_params(struct rig *r)
{
    size_t n = r->m->params.n;
    double *got = calloc(n, sizeof *got), *want = calloc(n, sizeof *want);
    for (size_t i = 0; i < n; i++) {
        const struct param *p = r->m->params.v[i];
        double *g = malloc((size_t)p->n * sizeof *g), *v = malloc((size_t)p->n * sizeof *v), size = 0;
        be_get(r->be, g, p->g);
        for (int64_t j = 0; j < p->n; j++) {
            v[j] = uniform(param_stream(p->name), (uint64_t)j);
            got[i] += g[j] * v[j];
            size += fabs(g[j]);
        }
        want[i] = along(r, p, STEP, v);
        if (!(size > 0) || !(fabs(got[i] - want[i]) <= 1e-7 + 1e-7 * fabs(want[i])))
            printf("FAIL %s: gradient along v %.12g, differences %.12g\n", p->name, got[i], want[i]);
        CHECK(size > 0);
        free(g);
        free(v);
    }
    check_close_f64("all parameters", got, want, n, 1e-7, 1e-7, WHY);
    free(got);
    free(want);
}

static void check_mixture(struct rig *r, const double *dp)
{
    double got[N_LAYERS * 3], want[N_LAYERS * 3];
    int n = 0;
    for (int64_t l = 0; l < N_LAYERS; l++)
        for (int k = 0; k < 3; k++) {
            if (!(ops[l] >> k & 1) || !(ops[l] & (ops[l] - 1))) {
                CHECK(dp[l * 3 + k] == 0);
                continue;
            }
            double *p = &r->m->layer[l].p[k], keep = *p, f[4];
            for (int s = 0; s < 4; s++) {
                *p = keep + steps[s] * STEP;
                f[s] = loss(r, false);
            }
            *p = keep;
            got[n] = dp[l * 3 + k];
            want[n++] = stencil(f, STEP);
            CHECK(want[n - 1] != 0);
        }
    check_close_f64("mixture weights", got, want, (size_t)n, 1e-7, 1e-7, WHY);
}

static void open_rig(struct rig *r, struct backend *be, struct mcfg *c, const struct linset_opts *lo)
{
    struct linset *lin = NULL;
    struct init_normal init = {.seed = SEED, .std = 0.25};
    struct view hidden;
    *r = (struct rig){.be = be};
    CHECK_OK(model_new(&r->t, be, c, model_init_normal, &init, e));
    params_set_trainable(&r->t->params, -1, false);
    CHECK_OK(linset_make(&lin, r->t, lo, e));
    CHECK_OK(model_assemble(&r->m, r->t, lin, &(struct assemble_opts){.ops = ops, .window = 5, .copy = true}, e));
    linset_close(lin);
    for (int64_t l = 0; l < N_LAYERS; l++)
        CHECK_OK(model_set_ops(r->m, l, ops[l], mix[l], 0, e));
    /* values of 1 and 0 hide mistakes */
    for (size_t i = 0; i < r->m->params.n; i++) {
        struct param *p = r->m->params.v[i];
        double *w = malloc((size_t)p->n * sizeof *w);
        be_get(be, w, p->w);
        for (int64_t j = 0; j < p->n; j++)
            w[j] += 0.1 * uniform(param_stream(p->name) + 1, (uint64_t)j) - (strstr(p->name, "A_log") ? 2 : 0);
        be_put(be, p->w, w);
        free(w);
    }
    int32_t ids[R];
    for (int i = 0; i < R; i++)
        ids[i] = (int32_t)ctr_below(SEED, 3, (uint64_t)i, (uint64_t)c->N);
    CHECK_OK(acts_open(&r->ta, r->t, &(struct acts_opts){.rows = R, .seqs = 3}, e));
    CHECK_OK(acts_open(&r->a, r->m, &(struct acts_opts){.rows = R, .seqs = 3, .train = true, .wgrad = true}, e));
    CHECK_OK(batch_open(&r->b, be, R, 3, e));
    CHECK_OK(batch_set(&r->b, 3, (const int32_t *[]){ids, ids + 70, ids + 76}, lens, NULL, c->N, e));
    CHECK_OK(be_view(be, DT_F64, R * c->d, &r->ht, e));
    CHECK_OK(be_view(be, DT_F64, R * c->d, &r->dh, e));
    CHECK_OK(be_view(be, DT_F64, R * c->d, &r->coef, e));
    CHECK_OK(be_view(be, DT_F64, R, &r->kl, e));
    CHECK_OK(be_view(be, DT_F64, R, &r->wt, e));
    CHECK_OK(be_view(be, DT_F64, N_LAYERS * 3, &r->dp, e));
    CHECK_OK(model_fwd(r->t, &r->ta, &r->b, NULL, &hidden, e));
    be_copy(be, r->ht, hidden);
    r->h_coef = malloc((size_t)(R * c->d) * sizeof(double));
    r->h_wt = malloc(R * sizeof(double));
    for (int64_t i = 0; i < R * c->d; i++)
        r->h_coef[i] = 0.05 * uniform(4, (uint64_t)i);
    for (int i = 0; i < R; i++)
        r->h_wt[i] = i % 5 == 0 ? 0 : 0.5 + ctr_uniform(SEED, 5, (uint64_t)i);
    be_put(be, r->coef, r->h_coef);
    be_put(be, r->wt, r->h_wt);
}

static void close_rig(struct rig *r)
{
    struct view *v[] = {&r->ht, &r->kl, &r->wt, &r->dh, &r->coef, &r->dp};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        be_view_free(r->be, v[i]);
    free(r->h_coef);
    free(r->h_wt);
    acts_close(&r->ta);
    acts_close(&r->a);
    batch_close(&r->b);
    model_close(r->t);
    model_close(r->m);
}

static void one(struct backend *be, const char *name, struct mcfg *c, const struct linset_opts *lo)
{
    struct rig r;
    double dp[N_LAYERS * 3], dp2[N_LAYERS * 3], dp3[N_LAYERS * 3];
    printf("---- %s\n", name);
    open_rig(&r, be, c, lo);
    CHECK_OK(params_alloc(&r.m->params, true, false, e));
    double f = loss(&r, true);
    CHECK_OK(model_bwd(r.m, &r.a, &r.b, r.dh, &(struct bwd_opts){.wgrad = true, .dp = r.dp, .ctx = &r, .inject = inject}, e));
    be_get(be, dp, r.dp);
    printf("     loss %.6f, linear part %.6f\n", f, r.linear);
    check_params(&r);
    check_mixture(&r, dp);
    /* gradients are accumulated: a second pass doubles them exactly */
    const struct param *p = r.m->layer[0].attn->p[0];
    double *g1 = malloc((size_t)p->n * sizeof *g1), *g2 = malloc((size_t)p->n * sizeof *g2);
    be_get(be, g1, p->g);
    loss(&r, true);
    CHECK_OK(model_bwd(r.m, &r.a, &r.b, r.dh, &(struct bwd_opts){.wgrad = true, .dp = r.dp, .ctx = &r, .inject = inject}, e));
    be_get(be, g2, p->g);
    be_get(be, dp2, r.dp);
    for (int64_t i = 0; i < p->n; i++)
        g1[i] *= 2;
    for (int i = 0; i < N_LAYERS * 3; i++)
        dp[i] *= 2;
    check_close_f64("gradient of two passes", g2, g1, (size_t)p->n, 1e-12, 1e-12, "sums of the same numbers in another order: a few ulp");
    check_close_f64("dp of two passes", dp2, dp, N_LAYERS * 3, 1e-12, 1e-12, "the same");
    free(g1);
    free(g2);
    /* search: nothing trainable, only dp; the backward stops at the lowest mixture and gives the same numbers */
    params_set_trainable(&r.m->params, -1, false);
    be_zero(be, r.dp);
    loss(&r, true);
    CHECK_OK(model_bwd(r.m, &r.a, &r.b, r.dh, &(struct bwd_opts){.dp = r.dp, .ctx = &r, .inject = inject}, e));
    be_get(be, dp3, r.dp);
    for (int i = 0; i < N_LAYERS * 3; i++)
        dp3[i] *= 2;
    check_close_f64("dp of a frozen model", dp3, dp2, N_LAYERS * 3, 1e-12, 1e-12, "the same sums");
    /* FLOPs: frozen backward costs less than a training one, both more than the forward */
    double fwd, frozen, train;
    CHECK_OK(model_flops(r.m, 2, 32, false, false, &fwd, e));
    CHECK_OK(model_flops(r.m, 2, 32, true, false, &frozen, e));
    params_set_trainable(&r.m->params, -1, true);
    CHECK_OK(model_flops(r.m, 2, 32, true, true, &train, e));
    CHECK(fwd > 0 && frozen > fwd && train > frozen);
    close_rig(&r);
}

int main(void)
{
    struct backend *be;
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "ref64"}, e)); /* no pool: the shapes are too small for threads */
    struct mcfg c = {.arch = ARCH_QWEN2,
                     .L = N_LAYERS,
                     .d = 16,
                     .H = 4,
                     .G = 2,
                     .head_dim = 4,
                     .F = 12,
                     .N = 40,
                     .max_pos = 128,
                     .eps = 1e-6,
                     .tie_embeddings = true,
                     .qkv_bias = true,
                     .bos = -1,
                     .pad = -1};
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    struct linset_opts lo = LINSET_OPTS;
    lo.init.seed = SEED;
    one(be, "qwen2-like, no convolution, gate", &c, &lo);
    c.arch = ARCH_QWEN3;
    c.qkv_bias = false;
    c.qk_norm = true;
    c.tie_embeddings = false;
    c.mlp_bias = true;
    c.d = 12; /* heads * head_dim != d */
    lo.conv = true;
    lo.gate = false;
    lo.init.kv_expand = KV_EXPAND_ROW;
    one(be, "qwen3-like, convolution, no gate, untied", &c, &lo);
    CHECK_EQ_I(be->mem_used_bytes, 0);
    backend_close(be);
    return test_end();
}
