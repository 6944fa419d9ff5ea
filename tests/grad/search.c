/*
 * The search's gradient on alpha against central finite differences in double: binary and tri-state, temperature not 1, all positions
 * and answers only; and the straight-through variant, whose gradient is the softmax's with the derivatives of the loss at the one-hot
 * choice.
 */
#include <math.h>
#include <unistd.h>

#include "core/fs.h"
#include "dash/search.h"
#include "kernels/ops.h"
#include "tests/small.h"

enum { LAYERS = 4, ROWS = 3 };
#define STEP 2e-4
#define WHY "four-point differences, h = 2e-4: error h^4 f5 / 30 below 1e-10 for f5 up to 2e6, rounding 1e-15 f / h about 1e-11"
#define TEMPERATURE 0.7
#define LAMBDA 0.3

struct rig {
    struct backend *be;
    struct model *teacher, *super;
    struct linset *lin;
    struct shard shard;
    struct acts acts;
    struct stream st;
    struct gates g;
    enum positions pos;
};
static const int64_t rows[ROWS] = {0, 2, 1};

/* KL mean over the counted positions at the model's present mixture, on the batch that is set. */
static double kl_mean(struct rig *r)
{
    struct view hidden, kl, wt;
    int64_t R = r->st.batch.seqs.rows;
    double v[ROWS * SMALL_SEQ], sum = 0, n = 0;
    CHECK_OK(be_view(r->be, DT_F64, R, &kl, e));
    CHECK_OK(be_view(r->be, DT_F64, R, &wt, e));
    CHECK_OK(model_fwd(r->super, &r->acts, &r->st.batch, NULL, &hidden, e));
    be_head_kl(r->be, &(struct op_head_kl){.kl = kl, .hs = hidden, .ws = model_head(r->super)->w,
                                           .ht = view_at(r->st.t_hidden, 0, R * r->super->cfg.d), .wt_head = model_head(r->teacher)->w,
                                           .wt = wt, .rows = R, .dim = r->super->cfg.d, .vocab = r->super->cfg.N, .tau = r->st.tau});
    CHECK_OK(get_f64(r->be, v, kl, e));
    be_view_free(r->be, &kl);
    be_view_free(r->be, &wt);
    for (int i = 0; i < ROWS; i++)
        for (int32_t t = 0; t < r->shard.len[rows[i]]; t++)
            if (stream_counts(&r->shard, rows[i], t, r->pos)) {
                sum += v[r->st.batch.seqs.q_off[i] + t];
                n += 1;
            }
    return sum * (double)(float)(1 / n); /* the op's weights are floats */
}

static void set_mixture(struct rig *r, int layer, const double *p)
{
    double by_kind[MIX_N_KINDS] = {0};
    unsigned ops = 0;
    for (int o = 0; o < r->g.ops; o++) {
        by_kind[r->g.kind[o]] = p[o];
        ops |= MIX_BIT(r->g.kind[o]);
    }
    CHECK_OK(model_set_ops(r->super, layer, ops, by_kind, 0, e));
}

static double soft_loss(struct rig *r)
{
    double p[MAX_OPS];
    for (int l = 0; l < LAYERS; l++) {
        if (!r->g.searched[l])
            continue;
        gates_p(&r->g, l, TEMPERATURE, p);
        set_mixture(r, l, p);
    }
    return kl_mean(r) + LAMBDA * gates_budget(&r->g, TEMPERATURE);
}

static double stencil(const double f[4])
{
    return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * STEP);
}
static const double steps[4] = {1, -1, 2, -2};

static void open_rig(struct rig *r, struct backend *be, const char *dir, bool window, enum layer0 layer0, enum positions pos, double tau)
{
    *r = (struct rig){.be = be, .pos = pos};
    struct search_opts o = {.window_op = window, .window = 5, .alpha_init_std = 0.8, .seed = 3, .layer0 = layer0};
    small_model(be, LAYERS, -1, &r->teacher, &r->lin);
    small_shard(dir, 4, &r->shard);
    search_gates_init(&r->g, &o, LAYERS, SMALL_SEQ);
    CHECK_OK(search_supernet(&r->super, r->teacher, r->lin, &r->g, o.window, e));
    CHECK_OK(acts_open(&r->acts, r->super, &(struct acts_opts){.rows = ROWS * SMALL_SEQ, .seqs = ROWS, .train = true}, e));
    CHECK_OK(stream_open(&r->st, be, &r->shard, r->teacher, NULL, ROWS, tau, e));
}

static void close_rig(struct rig *r)
{
    stream_close(&r->st);
    acts_close(&r->acts);
    model_close(r->super);
    linset_close(r->lin);
    model_close(r->teacher);
    shard_close(&r->shard);
}

static void soft(struct backend *be, const char *dir, bool window, enum layer0 layer0, enum positions pos, double tau)
{
    struct rig r;
    double got[LAYERS * MAX_OPS], want[LAYERS * MAX_OPS], kl, f[4];
    int n = 0;
    open_rig(&r, be, dir, window, layer0, pos, tau);
    CHECK_EQ_I(r.g.ops, window ? 3 : 2);
    CHECK_OK(search_gradient(r.super, &r.acts, &r.st, &r.g, rows, ROWS, LAMBDA, TEMPERATURE, RELAX_SOFT, pos, &kl, e));
    double here = soft_loss(&r) - LAMBDA * gates_budget(&r.g, TEMPERATURE);
    check_close_f64("KL that the search reports", &kl, &here, 1, 0, 1e-6, "float32 values and weight: 1.2e-7 each");
    for (int l = 0; l < LAYERS; l++)
        for (int o = 0; o < r.g.ops; o++) {
            if (!r.g.searched[l]) {
                CHECK(r.g.grad[l][o] == 0);
                continue;
            }
            double *a = &r.g.alpha[l][o], keep = *a;
            for (int s = 0; s < 4; s++) {
                *a = keep + steps[s] * STEP;
                f[s] = soft_loss(&r);
            }
            *a = keep;
            got[n] = r.g.grad[l][o];
            want[n++] = stencil(f);
            CHECK(fabs(want[n - 1]) > 1e-6); /* a gradient worth comparing */
        }
    CHECK_EQ_I(n, (layer0 == LAYER0_SEARCH ? LAYERS : LAYERS - 1) * r.g.ops);
    check_close_f64(window ? "alpha, tri-state" : "alpha, binary", got, want, (size_t)n, 1e-9, 1e-7, WHY);
    close_rig(&r);
}

static void straight_through(struct backend *be, const char *dir)
{
    struct rig r;
    double got[LAYERS * MAX_OPS], want[LAYERS * MAX_OPS], kl, G[LAYERS][MAX_OPS], hot[LAYERS][MAX_OPS] = {{0}}, f[4];
    int n = 0;
    open_rig(&r, be, dir, true, LAYER0_PAPER, POS_ALL, 1);
    CHECK_OK(search_gradient(r.super, &r.acts, &r.st, &r.g, rows, ROWS, LAMBDA, TEMPERATURE, RELAX_STE, POS_ALL, &kl, e));
    for (int l = 1; l < LAYERS; l++) {
        hot[l][gates_argmax(&r.g, l)] = 1;
        set_mixture(&r, l, hot[l]);
    }
    double here = kl_mean(&r);
    check_close_f64("KL at the one-hot choice", &kl, &here, 1, 0, 1e-6, "float32 values and weight: 1.2e-7 each");
    for (int l = 1; l < LAYERS; l++) {
        for (int o = 0; o < r.g.ops; o++) {
            for (int s = 0; s < 4; s++) {
                double p[MAX_OPS];
                memcpy(p, hot[l], sizeof p);
                p[o] += steps[s] * STEP;
                set_mixture(&r, l, p);
                f[s] = kl_mean(&r);
            }
            G[l][o] = stencil(f) + LAMBDA * r.g.cost[o];
        }
        set_mixture(&r, l, hot[l]);
    }
    for (int l = 1; l < LAYERS; l++) {
        double p[MAX_OPS], mean = 0;
        gates_p(&r.g, l, TEMPERATURE, p);
        for (int o = 0; o < r.g.ops; o++)
            mean += p[o] * G[l][o];
        for (int o = 0; o < r.g.ops; o++) {
            got[n] = r.g.grad[l][o];
            want[n++] = p[o] / TEMPERATURE * (G[l][o] - mean);
        }
    }
    check_close_f64("alpha, straight-through", got, want, (size_t)n, 1e-9, 1e-7, WHY);
    close_rig(&r);
}

int main(void)
{
    struct backend *be;
    char dir[] = "/tmp/dashlab-grad-search-XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "ref64"}, e));
    soft(be, dir, false, LAYER0_PAPER, POS_ALL, 1);
    soft(be, dir, true, LAYER0_PAPER, POS_ALL, 1.7);
    soft(be, dir, true, LAYER0_SEARCH, POS_ANSWERS, 1);
    soft(be, dir, false, LAYER0_LINEAR, POS_ANSWERS, 1);
    straight_through(be, dir);
    CHECK_EQ_I(be->mem_used_bytes, 0);
    backend_close(be);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
