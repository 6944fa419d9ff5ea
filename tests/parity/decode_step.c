/*
 * What only decoding uses (kernels/step.h) on a GPU: the fused kernels against double arithmetic on the same bf16 inputs, over odd shapes;
 * and whole decoding steps of a teacher and of a hybrid, with recorded steps and without: the same bits, while caches grow, prompts come in
 * between and sequences leave. Exit 77 without a device.
 */
#include <math.h>

#include "core/rng.h"
#include "kernels/ops.h"
#include "kernels/step.h"
#include "model/cache.h"
#include "tests/test.h"

static struct backend *open_cuda(enum dtype act, const char *graph, const char *fused)
{
    struct backend *be = NULL;
    struct err why = ERR_INIT;
    setenv("DASHLAB_CUDA_GRAPH", graph, 1);
    setenv("DASHLAB_CUDA_FUSED", fused, 1);
    if (backend_open(&be, &(struct backend_opts){.name = "cuda", .act = act}, &why) != 0)
        printf("%s\n", why.msg);
    return be;
}

/* n normal numbers, as they are after rounding to the backend's type, on the device and here. */
static struct view filled(struct backend *be, enum dtype dt, int64_t n, uint64_t stream, float **host)
{
    struct view v;
    *host = malloc((size_t)n * sizeof **host);
    for (int64_t i = 0; i < n; i++)
        (*host)[i] = (float)ctr_normal(17, stream, (uint64_t)i);
    CHECK_OK(be_view(be, dt, n, &v, e));
    CHECK_OK(put_f32(be, v, *host, e));
    CHECK_OK(get_f32(be, *host, v, e));
    return v;
}

/* y and its old values are numbers of about sqrt(k). bf16 rounds the result to 2^-9 of itself; float sums of k products of normals err by
 * about sqrt(k) 2^-24 of sqrt(k), k 2^-24 with room. */
static void check_linear(struct backend *be, int64_t rows, int64_t k, const int64_t *n, int count, enum dtype dt, bool bias, bool add)
{
    struct step_linear l[STEP_LINEAR_MAX] = {{.add = false}};
    float *hx, *hw[STEP_LINEAR_MAX], *hb[STEP_LINEAR_MAX], *hy[STEP_LINEAR_MAX];
    struct view x = filled(be, DT_BF16, rows * k, 1, &hx);
    char what[96];
    for (int i = 0; i < count; i++) {
        l[i] = (struct step_linear){.n = n[i], .add = add};
        l[i].w = filled(be, DT_BF16, n[i] * k, 10 + (uint64_t)i, &hw[i]);
        hb[i] = NULL;
        if (bias)
            l[i].bias = filled(be, DT_BF16, n[i], 20 + (uint64_t)i, &hb[i]);
        l[i].y = filled(be, dt, rows * n[i], 30 + (uint64_t)i, &hy[i]);
    }
    double flops = be->flops;
    be_linear_many(be, x, rows, k, l, count);
    CHECK(be->flops > flops);
    for (int i = 0; i < count; i++) {
        double *want = malloc((size_t)(rows * n[i]) * sizeof *want), *got = malloc((size_t)(rows * n[i]) * sizeof *got);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < n[i]; c++) {
                double s = add ? (double)hy[i][r * n[i] + c] : 0;
                for (int64_t j = 0; j < k; j++)
                    s += (double)hx[r * k + j] * (double)hw[i][c * k + j];
                want[r * n[i] + c] = s + (bias ? (double)hb[i][c] : 0);
            }
        CHECK_OK(get_f64(be, got, l[i].y, e));
        snprintf(what, sizeof what, "linear_many %lldx%lld -> %lld (%d of %d)%s", (long long)rows, (long long)k, (long long)n[i], i + 1,
                 count, dt == DT_F32 ? " f32" : "");
        check_close_f64(what, got, want, (size_t)(rows * n[i]), (double)k * 6e-8, dt == DT_F32 ? 1e-6 : 4e-3, "k 2^-24 and bf16's 2^-8");
        free(want);
        free(got);
        free(hw[i]);
        free(hb[i]);
        free(hy[i]);
        be_view_free(be, &l[i].w);
        be_view_free(be, &l[i].bias);
        be_view_free(be, &l[i].y);
    }
    free(hx);
    be_view_free(be, &x);
}

static void check_add_norm(struct backend *be, int64_t rows, int64_t dim)
{
    float *hx, *hy, *hw, *hu;
    int64_t n = rows * dim;
    struct view x = filled(be, DT_BF16, n, 1, &hx), y = filled(be, DT_BF16, n, 2, &hy), w = filled(be, DT_BF16, dim, 3, &hw),
                u = filled(be, DT_BF16, n, 4, &hu);
    double *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
    char what[64];
    be_add_norm(be, &(struct step_add_norm){.u = u, .h = y, .x = x, .y = y, .w = w, .rows = rows, .dim = dim, .eps = 1e-6}); /* h over y */
    CHECK_OK(get_f32(be, hu, u, e));
    CHECK_OK(get_f64(be, got, y, e));
    for (int64_t i = 0; i < n; i++)
        want[i] = (double)hx[i] + (double)hy[i];
    double *sum = malloc((size_t)n * sizeof *sum);
    for (int64_t i = 0; i < n; i++)
        sum[i] = (double)hu[i];
    snprintf(what, sizeof what, "add_norm %lldx%lld, sum", (long long)rows, (long long)dim);
    check_close_f64(what, sum, want, (size_t)n, 1e-30, 4e-3, "rounding to bf16");
    for (int64_t r = 0; r < rows; r++) {
        double sq = 0;
        for (int64_t j = 0; j < dim; j++)
            sq += sum[r * dim + j] * sum[r * dim + j];
        for (int64_t j = 0; j < dim; j++)
            want[r * dim + j] = sum[r * dim + j] / sqrt(sq / (double)dim + 1e-6) * (double)hw[j];
    }
    snprintf(what, sizeof what, "add_norm %lldx%lld, norm", (long long)rows, (long long)dim);
    check_close_f64(what, got, want, (size_t)n, 1e-30, 4e-3, "rounding to bf16");
    free(hx);
    free(hy);
    free(hw);
    free(hu);
    free(want);
    free(got);
    free(sum);
    be_view_free(be, &x);
    be_view_free(be, &y);
    be_view_free(be, &w);
    be_view_free(be, &u);
}

static void check_rope_put(struct backend *be, int64_t rows, int64_t h, int64_t g, int64_t dim)
{
    float *hq, *hk, *hv, *hc, *hs, *ha, *hb;
    int64_t slots = 40, half = dim / 2;
    struct view q = filled(be, DT_BF16, rows * h * dim, 1, &hq), k = filled(be, DT_BF16, rows * g * dim, 2, &hk),
                v = filled(be, DT_BF16, rows * g * dim, 3, &hv);
    struct view c = filled(be, DT_F32, 50 * half, 4, &hc), s = filled(be, DT_F32, 50 * half, 5, &hs);
    struct view keys = filled(be, DT_BF16, slots * g * dim, 6, &ha), values = filled(be, DT_BF16, slots * g * dim, 7, &hb), di, pos;
    int32_t to[16], at[16];
    char what[64];
    for (int64_t r = 0; r < rows; r++) {
        to[r] = (int32_t)((7 * r + 3) % slots);
        at[r] = (int32_t)((11 * r + 1) % 50);
    }
    CHECK_OK(be_view(be, DT_I32, rows, &di, e));
    CHECK_OK(be_view(be, DT_I32, rows, &pos, e));
    be_put(be, di, to);
    be_put(be, pos, at);
    be_rope_put(be, &(struct step_rope_put){.q = q,
                                            .k = k,
                                            .v = v,
                                            .keys = keys,
                                            .values = values,
                                            .di = di,
                                            .cos = c,
                                            .sin = s,
                                            .pos = pos,
                                            .rows = rows,
                                            .h = h,
                                            .g = g,
                                            .kdim = dim,
                                            .vdim = dim,
                                            .max_pos = 50});
    int64_t nq = rows * h * dim, nk = slots * g * dim;
    double *got = malloc((size_t)MAX(nq, nk) * sizeof *got), *want = malloc((size_t)MAX(nq, nk) * sizeof *want);
    for (int64_t i = 0; i < nq; i++) {
        int64_t r = i / (h * dim), j = i % dim, p = j % half, base = i - j;
        double co = (double)hc[at[r] * half + p], si = (double)hs[at[r] * half + p], a = (double)hq[base + p],
               b = (double)hq[base + half + p];
        want[i] = j < half ? a * co - b * si : b * co + a * si;
    }
    snprintf(what, sizeof what, "rope_put %lld rows, %lld/%lld heads of %lld: q", (long long)rows, (long long)h, (long long)g,
             (long long)dim);
    CHECK_OK(get_f64(be, got, q, e));
    check_close_f64(what, got, want, (size_t)nq, 1e-5, 4e-3, "rounding to bf16; cancellation in float");
    for (int which = 0; which < 2; which++) {
        for (int64_t i = 0; i < nk; i++)
            want[i] = (double)(which ? hb : ha)[i];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < g * dim; i++) {
                int64_t j = i % dim, p = j % half, base = r * g * dim + i - j;
                double co = (double)hc[at[r] * half + p], si = (double)hs[at[r] * half + p], a = (double)hk[base + p],
                       b = (double)hk[base + half + p];
                want[to[r] * g * dim + i] = which ? (double)hv[r * g * dim + i] : j < half ? a * co - b * si : b * co + a * si;
            }
        CHECK_OK(get_f64(be, got, which ? values : keys, e));
        check_close_f64(which ? "... values" : "... keys", got, want, (size_t)nk, 1e-5, 4e-3, "rounding to bf16; other rows as they were");
    }
    float *mem[] = {hq, hk, hv, hc, hs, ha, hb};
    struct view *views[] = {&q, &k, &v, &c, &s, &keys, &values, &di, &pos};
    for (size_t i = 0; i < ARRAY_LEN(mem); i++)
        free(mem[i]);
    for (size_t i = 0; i < ARRAY_LEN(views); i++)
        be_view_free(be, views[i]);
    free(got);
    free(want);
}

/* ---- whole steps ---- */

enum { LAYERS = 4, WIDTH = 128, VOCAB = 96, SEQS = 3, STEPS = 90, ROUNDS = STEPS + 2 };

static struct model *make(struct backend *be, bool hybrid, bool conv, struct model **teacher)
{
    struct mcfg c = {.arch = ARCH_QWEN2,
                     .L = LAYERS,
                     .d = WIDTH,
                     .H = 4,
                     .G = 2,
                     .head_dim = 32,
                     .F = 192,
                     .N = VOCAB,
                     .max_pos = 512,
                     .eps = 1e-6,
                     .tie_embeddings = true,
                     .qkv_bias = true,
                     .bos = -1,
                     .pad = -1};
    struct init_normal init = {.seed = 11, .std = 0.1};
    struct linset_opts lo = LINSET_OPTS;
    struct linset *lin;
    struct model *m;
    unsigned full[LAYERS], mixed[LAYERS] = {MIX_BIT(MIX_GDN), MIX_BIT(MIX_FULL), MIX_BIT(MIX_WINDOW), MIX_BIT(MIX_GDN)};
    for (int l = 0; l < LAYERS; l++)
        full[l] = MIX_BIT(MIX_FULL);
    c.rope = (struct mcfg_rope){.theta = 1e4, .factor = 1, .attention_factor = 1, .truncate = true};
    lo.conv = conv;
    CHECK_OK(model_new(teacher, be, &c, model_init_normal, &init, e));
    CHECK_OK(linset_make(&lin, *teacher, &lo, e));
    CHECK_OK(model_assemble(&m, *teacher, lin, &(struct assemble_opts){.ops = hybrid ? mixed : full, .window = 24}, e));
    linset_close(lin);
    return m;
}

/* Hidden rows of every step: three prompts, then one token each; at a third of the way a sequence leaves, at two thirds the prompt of
 * another comes. The cache starts too small. */
static int64_t run_steps(struct model *m, float *out)
{
    struct acts a;
    struct batch b;
    struct cache *c;
    struct view h;
    int64_t n = 0;
    CHECK_OK(acts_open(&a, m, &(struct acts_opts){.rows = 64, .seqs = SEQS}, e));
    CHECK_OK(batch_open(&b, m->be, 64, SEQS, e));
    CHECK_OK(cache_open(&c, m, SEQS, 16, e));
    for (int step = -1; step < STEPS; step++) {
        int32_t ids[SEQS][16], len[SEQS], active = step >= STEPS / 3 && step < 2 * STEPS / 3 ? SEQS - 1 : SEQS, first = 0;
        const int32_t *tok[SEQS];
        bool prompt = step < 0 || step == 2 * STEPS / 3;
        if (step == 2 * STEPS / 3) { /* the place of the one that left is taken */
            cache_reset(c, SEQS - 1);
            first = SEQS - 1;
        }
        for (int32_t s = first; s < active; s++) {
            len[s - first] = prompt ? 5 + 3 * s : 1;
            tok[s - first] = ids[s];
            for (int i = 0; i < 16; i++)
                ids[s][i] = (int32_t)ctr_below(9, (uint64_t)s, (uint64_t)(16 * (step + 1) + i), VOCAB);
        }
        CHECK_OK(batch_set(&b, active - first, tok, len, NULL, VOCAB, e));
        CHECK_OK(model_step(m, &a, c, first, &b, &h, e));
        CHECK_OK(get_f32(m->be, out + n, view_at(h, 0, b.seqs.rows * WIDTH), e));
        n += b.seqs.rows * WIDTH;
    }
    cache_close(c);
    batch_close(&b);
    acts_close(&a);
    return n;
}

static void check_steps(enum dtype act, bool hybrid, bool conv)
{
    static float rows[2][3][ROUNDS * 64 * WIDTH]; /* [graph][fused] */
    int64_t n = 0;
    char what[96];
    for (int graph = 0; graph < 2; graph++)
        for (int fused = 0; fused < 3; fused++) {
            char g[2] = {(char)('0' + graph), 0}, f[2] = {(char)('0' + fused), 0};
            struct backend *be = open_cuda(act, g, f);
            struct model *teacher, *m = make(be, hybrid, conv, &teacher);
            n = run_steps(m, rows[graph][fused]);
            run_steps(m, rows[graph][fused]); /* again in the same process: other addresses, or the same ones used anew */
            model_close(m);
            model_close(teacher);
            backend_close(be);
        }
    const char *name = hybrid ? conv ? "hybrid with convolutions" : "hybrid" : "teacher";
    for (int fused = 0; fused < 3; fused++) {
        printf("%s, %s, fused %d: recorded steps %s\n", name, dtype_name(act), fused,
               memcmp(rows[0][fused], rows[1][fused], (size_t)n * sizeof(float)) ? "DIFFER" : "have the same bits");
        CHECK(!memcmp(rows[0][fused], rows[1][fused], (size_t)n * sizeof(float)));
    }
    /* bf16: hidden rows are normed, so about 1; each of 4 layers rounds about 12 times by 2^-9, of which a fused layer leaves out or moves
       a few: sqrt(48) 2^-9 = 0.014 of a row, and as much for what the recurrence carries from step to step. A single element may be four
       deviations off. f32 has no fused kernels: no difference. */
    for (int fused = 1; fused < 3; fused++) {
        snprintf(what, sizeof what, "%s, %s: fused %d against single ops", name, dtype_name(act), fused);
        check_close_f32(what, rows[0][fused], rows[0][0], (size_t)n, act == DT_F32 ? 0 : 4 * 0.028, act == DT_F32 ? 0 : 4 * 0.028,
                        "see above");
    }
}

int main(void)
{
    struct backend *be = open_cuda(DT_BF16, "0", "2");
    if (!be)
        return test_skip("no CUDA device");
    const int64_t qkv[3] = {2560, 256, 256}, odd[4] = {16, 40, 8, 3}, one[1] = {1000};
    for (int64_t rows = 1; rows <= 16; rows += rows == 1 ? 2 : 13) {
        check_linear(be, rows, 2048, qkv, 3, DT_BF16, true, false);
        check_linear(be, rows, 96, odd, 4, DT_F32, false, false);
        check_linear(be, rows, 32, odd, 4, DT_BF16, true, true);
        check_linear(be, rows, 11008, one, 1, DT_BF16, false, true);
        check_add_norm(be, rows, 2048);
        check_add_norm(be, rows, 128);
        check_add_norm(be, rows, 1032);
        check_rope_put(be, rows, 16, 2, 128);
        check_rope_put(be, rows, 4, 2, 32);
    }
    check_linear(be, 17, 64, odd, 2, DT_BF16, true, false); /* too many rows: single ops */
    check_linear(be, 2, 40, odd, 2, DT_BF16, true, false);  /* 40 is no multiple of 32: single ops */
    backend_close(be);
    check_steps(DT_BF16, false, false);
    check_steps(DT_BF16, true, false);
    check_steps(DT_BF16, true, true);
    check_steps(DT_F32, false, false);
    check_steps(DT_F32, true, true);
    return test_end();
}
