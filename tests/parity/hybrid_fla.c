/*
 * Hybrids in fla's layout without our own key, against PyTorch in float64 (tests/oracle/hybrid_vectors.py): full, window and GDN layers;
 * with and without convolution, gate and grouped value heads; K != V in one of them. 150 tokens: more than two GDN chunks, more than the
 * window of 20.
 */
#include "tests/test.h"

#include "kernels/ops.h"
#include "model/cache.h"
#include "model/st.h"

#define T 150

struct seen {
    struct backend *be;
    double *hidden, *mixed;
    int64_t n;
};
static void on_mixer(void *ctx, int64_t l, struct view h, struct view y)
{
    struct seen *s = ctx;
    struct err e = ERR_INIT;
    UNUSED(h);
    get_f64(s->be, s->mixed + l * s->n, y, &e);
}
static void on_stream(void *ctx, int64_t i, struct view x)
{
    struct seen *s = ctx;
    struct err e = ERR_INIT;
    get_f64(s->be, s->hidden + i * s->n, x, &e);
}

static void against(const struct st_file *f, const char *name, const double *got, int64_t n, double tol, const char *why)
{
    const struct st_tensor *t = st_find(f, name);
    CHECK(t && t->dtype == ST_F32 && t->n == n);
    if (!t || t->n != n)
        return;
    float *v = malloc((size_t)n * sizeof *v);
    double *want = malloc((size_t)n * sizeof *want);
    st_to_f32(ST_F32, t->data, 0, n, v);
    for (int64_t i = 0; i < n; i++)
        want[i] = (double)v[i];
    check_close_f64(name, got, want, (size_t)n, tol, tol / 4, why);
    free(v);
    free(want);
}

static void one(struct backend *be, const char *dir)
{
    const bool f64 = be->act == DT_F64;
    const double tol = f64 ? 1e-6 : 2e-4;
    const char *why = f64 ? "float32 rounding of stored values and of the rotary tables' cos and sin"
                          : "float32 through four layers of 150 steps: 2^-24 times about 1000";
    char path[256];
    struct st_file x;
    struct model *m = NULL;
    int32_t ids[T];
    const int32_t *p = ids;
    printf("---- %s on %s\n", dir, be->ops->name);
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    CHECK_OK(st_open(&x, path, e));
    CHECK_OK(model_open(&m, be, dir, NULL, e));
    const struct st_tensor *t = st_find(&x, "input_ids");
    CHECK(m && t && t->n == T && t->dtype == ST_I32);
    if (!m || !t || t->n != T)
        return;
    memcpy(ids, t->data, sizeof ids);
    struct acts a;
    struct batch b;
    struct view hidden;
    struct seen s = {.be = be, .n = T * m->cfg.d};
    s.hidden = calloc((size_t)((m->cfg.L + 1) * s.n), sizeof(double));
    s.mixed = calloc((size_t)(m->cfg.L * s.n), sizeof(double));
    double *logits = calloc((size_t)(T * m->cfg.N), sizeof *logits), *step = calloc((size_t)m->cfg.N, sizeof *step);
    CHECK_OK(acts_open(&a, m, &(struct acts_opts){.rows = T, .seqs = 1}, e));
    CHECK_OK(batch_open(&b, be, T, 1, e));
    CHECK_OK(batch_set(&b, 1, &p, (int32_t[]){T}, NULL, m->cfg.N, e));
    CHECK_OK(model_fwd(m, &a, &b, &(struct fwd_opts){.ctx = &s, .on_mixer = on_mixer, .on_stream = on_stream}, &hidden, e));
    CHECK_OK(model_logits(m, hidden, T, logits, e));
    against(&x, "attn_out", s.mixed, m->cfg.L * s.n, tol, why);
    against(&x, "hidden", s.hidden, (m->cfg.L + 1) * s.n, tol, why);
    against(&x, "logits", logits, T * m->cfg.N, tol, why);
    /* the last position again, token by token through the states */
    struct cache *c = NULL;
    CHECK_OK(cache_open(&c, m, 1, T, e));
    for (int i = 0; i < T; i++) {
        const int32_t *q = ids + i;
        CHECK_OK(batch_set(&b, 1, &q, (int32_t[]){1}, NULL, m->cfg.N, e));
        CHECK_OK(model_step(m, &a, c, 0, &b, &hidden, e));
    }
    CHECK_OK(model_logits(m, hidden, 1, step, e));
    check_close_f64("last logits, token by token", step, logits + (T - 1) * m->cfg.N, (size_t)m->cfg.N, f64 ? 1e-10 : tol,
                    f64 ? 1e-10 : tol, "the same sums in another order");
    cache_close(c);
    free(s.hidden);
    free(s.mixed);
    free(logits);
    free(step);
    acts_close(&a);
    batch_close(&b);
    model_close(m);
    st_close(&x);
}

int main(void)
{
    static const char *const names[] = {"ref64", "ref32", "cpu"};
    for (size_t k = 0; k < ARRAY_LEN(names); k++) {
        struct backend *be;
        struct err te = ERR_INIT;
        if (backend_open(&be, &(struct backend_opts){.name = names[k]}, &te) != 0) {
            printf("no backend %s: %s\n", names[k], te.msg);
            CHECK(k == 2 && te.code == E_ENV);
            continue;
        }
        one(be, "tests/data/hybrid/plain");
        one(be, "tests/data/hybrid/conv");
        CHECK_EQ_I(be->mem_used_bytes, 0);
        backend_close(be);
    }
    return test_end();
}
