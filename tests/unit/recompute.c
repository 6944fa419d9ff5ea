/*
 * Activations computed again in the backward: gradients of weights and of mixing weights, losses and counted FLOPs have the same bits as
 * with kept ones, and the plan is smaller. On a supernet and on hybrids, frozen and trained, and through Stages 1 (free running), 2 and 3.
 */
#include <math.h>
#include <unistd.h>

#include "core/hash.h"
#include "dash/align.h"
#include "dash/distill.h"
#include "dash/search.h"
#include "tests/small.h"

enum { LAYERS = 5, ROWS = 3 };
static char root[] = "/tmp/dashlab-recompute-XXXXXX";

/* Every gradient of a forward and backward over three rows, and dp, as bytes. */
static void gradients(struct model *m, const struct shard *d, bool recompute, bool wgrad, struct str *out, size_t *keep, double *flops)
{
    struct acts a;
    struct batch b;
    struct view hidden, dh, dp;
    const int32_t *tok[ROWS];
    int32_t len[ROWS];
    size_t tmp;
    int64_t D = m->cfg.d, R = 0;
    struct acts_opts ao = {.rows = ROWS * d->seq, .seqs = ROWS, .train = true, .wgrad = wgrad, .recompute = recompute};
    for (int i = 0; i < ROWS; i++) {
        tok[i] = d->ids + i * d->seq;
        len[i] = d->len[i];
        R += len[i];
    }
    CHECK_OK(acts_plan(m, &ao, keep, &tmp, e));
    CHECK_OK(acts_open(&a, m, &ao, e));
    CHECK_OK(batch_open(&b, m->be, ROWS * d->seq, ROWS, e));
    CHECK_OK(batch_set(&b, ROWS, tok, len, NULL, m->cfg.N, e));
    CHECK_OK(be_view(m->be, m->be->act, R * D, &dh, e));
    CHECK_OK(be_view(m->be, m->be->stat, m->cfg.L * MIX_N_KINDS, &dp, e));
    float *host = malloc((size_t)(R * D) * sizeof *host);
    for (int64_t i = 0; i < R * D; i++)
        host[i] = (float)ctr_normal(3, 1, (uint64_t)i);
    CHECK_OK(put_f32(m->be, dh, host, e));
    CHECK_OK(params_alloc(&m->params, true, false, e));
    params_zero_grads(&m->params);
    double before = m->be->flops;
    CHECK_OK(model_fwd(m, &a, &b, &(struct fwd_opts){.save = true}, &hidden, e));
    CHECK_OK(get_f32(m->be, host, view_at(hidden, 0, R * D), e));
    str_add(out, (const char *)host, (size_t)(R * D) * sizeof *host);
    CHECK_OK(model_bwd(m, &a, &b, dh, &(struct bwd_opts){.wgrad = wgrad, .dp = dp}, e));
    *flops = m->be->flops - before;
    for (size_t i = 0; i <= m->params.n; i++) {
        struct view v = i < m->params.n ? m->params.v[i]->g : dp;
        float *g = v.p ? malloc((size_t)v.n * sizeof *g) : NULL;
        if (!g)
            continue;
        CHECK_OK(get_f32(m->be, g, v, e));
        for (int64_t k = 0; k < v.n; k++)
            CHECK(isfinite(g[k]));
        str_add(out, (const char *)g, (size_t)v.n * sizeof *g);
        free(g);
    }
    free(host);
    be_view_free(m->be, &dh);
    be_view_free(m->be, &dp);
    batch_close(&b);
    acts_close(&a);
}

static void test_model(const char *name, struct model *teacher, struct linset *lin, const unsigned *ops, bool copy, const struct shard *d)
{
    struct model *m;
    struct str kept = STR_INIT, again = STR_INIT;
    size_t k0, k1;
    double f0, f1;
    CHECK_OK(model_assemble(&m, teacher, lin, &(struct assemble_opts){.ops = ops, .window = 6, .copy = copy}, e));
    for (int64_t l = 0; l < LAYERS; l++) {
        double p[MIX_N_KINDS] = {0.5, 0.2, 0.3};
        if (ops[l] & (ops[l] - 1))
            CHECK_OK(model_set_ops(m, l, ops[l], p, 0, e));
    }
    gradients(m, d, false, copy, &kept, &k0, &f0);
    gradients(m, d, true, copy, &again, &k1, &f1);
    printf("%s: %zu bytes of gradients and rows; kept %zu bytes, with recomputation %zu; %.0f FLOPs\n", name, kept.len, k0, k1, f0);
    CHECK_EQ_I(again.len, kept.len);
    CHECK(again.len == kept.len && !memcmp(str_c(&kept), str_c(&again), kept.len));
    CHECK(f0 == f1);
    CHECK(k1 < k0 / 2);
    str_free(&kept);
    str_free(&again);
    model_close(m);
}

/* Results of the three stages, as text. */
static void stages(struct model *teacher, const struct shard *d, bool recompute, struct str *out)
{
    struct linset *lin;
    struct linset_opts lo = LINSET_OPTS;
    struct align_result ar;
    struct search_result sr;
    struct distill_result dr;
    struct model *student;
    char dir[1024];
    unsigned ops[LAYERS] = {MIX_BIT(MIX_GDN), MIX_BIT(MIX_FULL), MIX_BIT(MIX_WINDOW), MIX_BIT(MIX_GDN), MIX_BIT(MIX_GDN)};
    struct train_opts o = {.stage = "test",
                           .steps = 4,
                           .batch = 4,
                           .micro = 2,
                           .lr = {1e-3, 1e-2},
                           .b1 = 0.9,
                           .b2 = 0.95,
                           .eps = 1e-8,
                           .clip = 1,
                           .row_hi = d->rows - 4};
    CHECK_OK(linset_make(&lin, teacher, &lo, e));
    CHECK_OK(
        align_run(teacher, lin, d, &(struct align_opts){.free_running = true, .heldout = 4, .recompute = recompute, .train = o}, &ar, e));
    str_printf(out, "align %.17g %.17g %.0f\n", ar.train.loss_last, ar.train.eval_last[0], ar.train.flops);
    struct search_opts so = {.window_op = true,
                             .window = 6,
                             .lambda = 0.1,
                             .steps = 4,
                             .micro = 2,
                             .accumulate = 2,
                             .t_hi = 1,
                             .t_lo = 0.1,
                             .lr = 0.1,
                             .b1 = 0.9,
                             .b2 = 0.95,
                             .eps = 1e-8,
                             .tau = 1,
                             .row_hi = d->rows - 4,
                             .heldout = 4,
                             .recompute = recompute};
    CHECK_OK(search_run(teacher, lin, d, NULL, &so, path_join(dir, root, recompute ? "again" : "kept"), &sr, e));
    str_printf(out, "search %.17g %.17g %.0f %.0f\n", sr.soft.all, sr.argmax.answers, sr.flops, sr.flops_forward);
    CHECK_OK(model_assemble(&student, teacher, lin, &(struct assemble_opts){.ops = ops, .window = 6, .copy = true}, e));
    CHECK_OK(
        distill_run(student, teacher, d, NULL, &(struct distill_opts){.tau = 1, .heldout = 4, .recompute = recompute, .train = o}, &dr, e));
    str_printf(out, "distill %.17g %.17g %.0f %.0f\n", dr.train.loss_last, dr.after.all, dr.flops_forward, dr.flops_backward);
    model_close(student);
    linset_close(lin);
}

int main(void)
{
    struct backend *be;
    struct model *teacher;
    struct linset *lin;
    struct shard d;
    char dir[1024];
    struct str kept = STR_INIT, again = STR_INIT;
    const unsigned full = MIX_BIT(MIX_FULL), window = MIX_BIT(MIX_WINDOW), gdn = MIX_BIT(MIX_GDN);
    if (!mkdtemp(root)) {
        printf("no temporary folder\n");
        return 1;
    }
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "cpu"}, e));
    small_model(be, LAYERS, -1, &teacher, &lin);
    small_shard(path_join(dir, root, "shard"), 24, &d);
    test_model("supernet, frozen", teacher, lin,
               (unsigned[]){full, full | window | gdn, full | gdn, full | window | gdn, full | window | gdn}, false, &d);
    test_model("hybrid, trained", teacher, lin, (unsigned[]){gdn, full, window, gdn, full}, true, &d);
    test_model("mixture, trained", teacher, lin, (unsigned[]){gdn, full | gdn, full | window | gdn, gdn, full | window}, true, &d);
    stages(teacher, &d, false, &kept);
    stages(teacher, &d, true, &again);
    printf("%s", str_c(&kept));
    CHECK_STR(str_c(&again), str_c(&kept));
    str_free(&kept);
    str_free(&again);
    shard_close(&d);
    linset_close(lin);
    model_close(teacher);
    backend_close(be);
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
