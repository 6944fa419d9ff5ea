/*
 * Every backward of the reference against finite differences of its forward, in double: the derivative of L = <outputs, upstream gradients>
 * along random directions in each input, in all inputs at once, and along single coordinates. Fourth-order central differences D4 with step
 * h; beside them the second-order D2. Limit of |D4 - <gradient, direction>|: rounding 8 eps sum|L terms| / h, truncation: D2 - D4 is h^2
 * f'''/6, D4's own error h^4 f^(5)/30, so 1e-3 |D2 - D4| covers f^(5) up to 5e3 f''' at h = 1e-3, and 1e-9 of the value for the gradient's
 * own rounding. A wrong formula is off by 1e-3 to 1. Usage: grad_ops [-o OP]
 */
#include <math.h>

#include "core/rng.h"
#include "kernels/op_case.h"
#include "tests/test.h"

struct pair {
    const char *value, *grad; /* forward tensor, its gradient tensor */
};
struct grad_spec {
    const char *bwd, *fwd; /* fwd NULL: the case runs its own forward first */
    struct pair out[5], in[7];
    const char *loss, *loss_w; /* ops that are their own gradient: L = sign sum_r w_r loss_r */
    double sign;
};
static const struct grad_spec specs[] = {
    {.bwd = "embed_bwd", .fwd = "embed", .out = {{"y", "dy"}}, .in = {{"w", "dw"}}},
    {.bwd = "rmsnorm_bwd", .out = {{"y", "dy"}}, .in = {{"x", "dx"}, {"w", "dw"}}},
    {.bwd = "swiglu_bwd", .fwd = "swiglu", .out = {{"h", "dh"}}, .in = {{"g", "dg"}, {"u", "du"}}},
    {.bwd = "attn_bwd", .out = {{"o", "d_o"}, {"o2", "d_o"}}, .in = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}}},
    {.bwd = "conv_bwd", .out = {{"y", "dy"}}, .in = {{"x", "dx"}, {"w", "dw"}}},
    {.bwd = "gdn_prep_bwd",
     .out = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"g", "dg"}, {"beta", "dbeta"}},
     .in = {{"q_lin", "dq_lin"},
            {"k_lin", "dk_lin"},
            {"v_lin", "dv_lin"},
            {"a_lin", "da_lin"},
            {"b_lin", "db_lin"},
            {"a_log", "da_log"},
            {"dt_bias", "ddt_bias"}}},
    {.bwd = "gdn_bwd", .out = {{"o", "d_o"}}, .in = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"g", "dg"}, {"beta", "dbeta"}}},
    {.bwd = "gdn_out_bwd", .out = {{"y", "dy"}}, .in = {{"o", "d_o"}, {"gate", "dgate"}, {"w", "dw"}}},
    {.bwd = "mix_bwd", .fwd = "mix", .out = {{"y", "dy"}}, .in = {{"x[0]", "dx[0]"}, {"x[1]", "dx[1]"}, {"x[2]", "dx[2]"}}},
    {.bwd = "align_loss", .in = {{"s", "ds"}}, .loss = "loss", .loss_w = "w", .sign = 1},
    {.bwd = "head_ce", .in = {{"h", "dh"}, {"w", "dw"}}, .loss = "lp", .loss_w = "wt", .sign = -1},
    {.bwd = "head_kl", .in = {{"hs", "dhs"}, {"ws", "dws"}}, .loss = "kl", .loss_w = "wt", .sign = 1},
};
static const struct {
    const char *op, *shape;
    double scale; /* where the function bends on a smaller scale than its inputs' 1: h = 1e-3 scale */
} runs[] = {
    {"embed_bwd", "rows=13,vocab=7,dim=5", 1}, /* ids repeat */
    {"rmsnorm_bwd", "rows=1,dim=1,eps=0.5", 1},
    {"rmsnorm_bwd", "rows=7,dim=33", 1},
    {"rmsnorm_bwd", "rows=5,dim=16,add=1,eps=0.1", 1},
    {"swiglu_bwd", "n=77", 1},
    {"attn_bwd", "lens=1,h=2,g=1,k=4,v=3", 1},
    {"attn_bwd", "lens=13,h=3,g=3,k=5,v=7", 1},
    {"attn_bwd", "lens=9+1+70,h=4,g=2,k=8,v=8", 1},
    {"attn_bwd", "lens=11+5,h=7,g=1,k=6,v=4,pad=3", 1},
    {"attn_bwd", "lens=10,h=8,g=1,k=4,v=4,packed=1", 1},
    {"attn_bwd", "lens=17+3,h=4,g=2,k=8,v=6,window=5", 1},
    {"attn_bwd", "lens=17,h=2,g=2,k=8,v=6,window=1", 1},
    {"attn_bwd", "lens=9,h=2,g=2,k=8,v=6,window=64", 1}, /* window beyond T */
    {"attn_bwd", "lens=21+6,h=4,g=2,k=8,v=8,two=1,window2=4", 1},
    {"attn_bwd", "lens=12,h=2,g=1,k=8,v=8,two=1,window=9,window2=4,p1=0.3,p2=0.6", 1},
    {"attn_bwd", "lens=33,h=2,g=1,k=8,v=8,qscale=8", 0.2}, /* near one-hot */
    {"conv_bwd", "lens=9+1+3,dim=5,width=4", 1},
    {"conv_bwd", "lens=2+17,dim=3,width=2", 1},
    {"conv_bwd", "lens=6,dim=4,width=1", 1},
    {"gdn_prep_bwd", "rows=5,h=2,hv=4,k=6,v=3", 1},
    {"gdn_prep_bwd", "rows=4,h=1,hv=1,k=5,v=4,silu=0,big=1", 1},
    {"gdn_prep_bwd", "rows=3,h=2,hv=2,k=4,v=4,neg=1", 1},
    {"gdn_bwd", "lens=1,h=1,k=4,v=3", 1},
    {"gdn_bwd", "lens=20,h=2,k=6,v=5", 1},
    {"gdn_bwd", "lens=70+1+64,h=1,hv=2,k=5,v=4", 1},
    {"gdn_bwd", "lens=3+130,h=1,hv=3,k=4,v=6,spike=1", 1},
    {"gdn_bwd", "lens=90,h=1,k=8,v=4,parallel=1", 0.3},
    {"gdn_bwd", "lens=40+25,h=2,hv=2,k=6,v=4,neg=1,save=0", 1},
    {"gdn_out_bwd", "rows=5,hv=3,v=7", 1},
    {"gdn_out_bwd", "rows=4,hv=1,v=6,gate=0,eps=0.05", 1},
    {"mix_bwd", "n=41,count=3", 1},
    {"mix_bwd", "n=5,count=2", 1},
    {"mix_bwd", "n=6,count=1", 1},
    {"align_loss", "rows=6,dim=9", 1},
    {"align_loss", "rows=6,dim=9,squared=1", 1},
    {"align_loss", "rows=3,dim=5,near=0.001", 1e-3},
    {"head_ce", "rows=5,dim=6,vocab=29", 1},
    {"head_ce", "rows=3,dim=8,vocab=17,sharp=20", 0.1},
    {"head_kl", "rows=5,dim=6,vocab=29", 1},
    {"head_kl", "rows=4,dim=6,vocab=23,tau=1.7,near=1", 1},
    {"head_kl", "rows=4,dim=6,vocab=23,tau=0.5,near=0.01,skip=1", 1},
    {"head_kl", "rows=3,dim=8,vocab=17,sharp=12,near=1", 0.1},
};

/* One gradient being tested: the backward case with its results, the forward case that is evaluated at shifted inputs. */
struct probe {
    const struct grad_spec *s;
    struct op_case bwd, fwd;
    struct case_run run; /* on the case that is evaluated */
    struct op_case *eval;
    double *grad[7], *base[7], *dir[7];
    int n_in;
    double h, worst, worst_err;
    char worst_what[48];
};

static double *values(struct op_case *c, const char *name, int64_t *n)
{
    int i = op_case_find(c, name);
    *n = i < 0 ? 0 : c->t[i].rows * c->t[i].width;
    return i < 0 ? NULL : c->t[i].x;
}

/* L at the current values of p->eval; *size: sum of |terms|. */
static double loss(struct probe *p, double *size)
{
    struct err e_ = ERR_INIT, *e = &e_;
    double sum = 0;
    *size = 0;
    if (case_run_fill(&p->run, e) != 0)
        return NAN;
    if (p->eval->n_ops == 2)
        case_run_prepare(&p->run);
    else
        case_run_last(&p->run);
    for (int k = 0; k < 5 && (p->s->out[k].value || (k == 0 && p->s->loss)); k++) {
        const char *name = p->s->loss ? p->s->loss : p->s->out[k].value;
        int t = op_case_find(p->eval, name);
        if (t < 0)
            continue; /* an optional output that this shape does not have */
        int64_t n = p->eval->t[t].rows * p->eval->t[t].width, m;
        double *y = malloc((size_t)(n + 1) * sizeof *y), *up = values(&p->bwd, p->s->loss ? p->s->loss_w : p->s->out[k].grad, &m);
        if (!y || case_run_get(&p->run, t, y, e) != 0)
            return NAN;
        double factor = p->s->loss ? p->s->sign : 1;
        if (p->bwd.op == OP_attn_bwd)
            factor = k == 0 ? p->bwd.d[1].attn_bwd.p1 : p->bwd.d[1].attn_bwd.p2;
        for (int64_t i = 0; i < n; i++) {
            sum += factor * y[i] * up[i];
            *size += fabs(y[i] * up[i]);
        }
        free(y);
    }
    return sum;
}

/* Shifts every input by a dir and evaluates. */
static double shifted(struct probe *p, double a, double *size)
{
    for (int k = 0; k < p->n_in; k++) {
        int64_t n;
        double *x = values(p->eval, p->s->in[k].value, &n);
        for (int64_t i = 0; i < n; i++)
            x[i] = p->base[k][i] + a * p->dir[k][i];
    }
    return loss(p, size);
}

static void compare(struct probe *p, const char *what)
{
    double size, h = p->h, want = 0;
    double f1 = shifted(p, h, &size), b1 = shifted(p, -h, &size), f2 = shifted(p, 2 * h, &size), b2 = shifted(p, -2 * h, &size);
    double d2 = (f1 - b1) / (2 * h), d4 = (8 * (f1 - b1) - (f2 - b2)) / (12 * h);
    for (int k = 0; k < p->n_in; k++) {
        int64_t n;
        values(p->eval, p->s->in[k].value, &n);
        for (int64_t i = 0; i < n; i++)
            want += p->grad[k][i] * p->dir[k][i];
    }
    double limit = 8 * 2.2e-16 * size / h + 1e-3 * fabs(d2 - d4) + 1e-9 * fabs(want) + 1e-13, err = fabs(d4 - want), share = err / limit;
    test_checks++;
    if (!(share <= 1)) { /* NaN fails */
        test_failed++;
        printf("FAIL %s %s along %s: differences %.12g, gradient %.12g, limit of the error %.3g\n", p->s->bwd, p->bwd.shape, what, d4, want,
               limit);
    }
    if (!(share <= p->worst)) {
        p->worst = share;
        p->worst_err = err;
        snprintf(p->worst_what, sizeof p->worst_what, "%s", what);
    }
}

static void zero_dirs(struct probe *p)
{
    for (int k = 0; k < p->n_in; k++) {
        int64_t n;
        values(p->eval, p->s->in[k].value, &n);
        memset(p->dir[k], 0, (size_t)n * sizeof(double));
    }
}

static void random_dir(struct probe *p, int k, uint64_t stream)
{
    int64_t n;
    values(p->eval, p->s->in[k].value, &n);
    for (int64_t i = 0; i < n; i++)
        p->dir[k][i] = ctr_normal(77, stream * 16 + (uint64_t)k, (uint64_t)i);
}

/* Gradients of the backward case: results, less what an accumulating output held before. */
static int gradients(struct probe *p, struct backend *be, struct err *e)
{
    struct case_run r;
    TRY(case_run_open(&r, &p->bwd, be, e));
    int rc = case_run_all(&r, e);
    if (rc == 0)
        rc = case_run_guards(&r, e);
    for (int k = 0; rc == 0 && k < 7 && p->s->in[k].value; k++) {
        int t = op_case_find(&p->bwd, p->s->in[k].grad);
        if (t < 0)
            break;
        int64_t n = p->bwd.t[t].rows * p->bwd.t[t].width, m;
        size_t bytes = (size_t)(n + 1) * sizeof(double);
        p->grad[k] = malloc(bytes);
        p->base[k] = malloc(bytes);
        p->dir[k] = calloc(1, bytes);
        if (!p->grad[k] || !p->base[k] || !p->dir[k])
            abort();
        rc = case_run_get(&r, t, p->grad[k], e);
        for (int64_t i = 0; p->bwd.t[t].role == VIEW_INOUT && i < n; i++)
            p->grad[k][i] -= p->bwd.t[t].x[i];
        memcpy(p->base[k], values(p->eval, p->s->in[k].value, &m), (size_t)n * sizeof(double));
        p->n_in = k + 1;
    }
    case_run_close(&r);
    return rc;
}

static int probe_open(struct probe *p, struct backend *be, const char *shape, struct err *e)
{
    TRY(op_case_make(&p->bwd, p->s->bwd, shape, 42, e));
    p->eval = &p->bwd;
    if (p->s->fwd) {
        TRY(op_case_make(&p->fwd, p->s->fwd, shape, 42, e));
        p->eval = &p->fwd;
        for (int i = 0; i < p->fwd.n_t; i++) { /* the same inputs, by name */
            int64_t n;
            double *x = values(&p->bwd, p->fwd.t[i].name, &n);
            if (x)
                memcpy(p->fwd.t[i].x, x, (size_t)n * sizeof *x);
        }
    }
    TRY(gradients(p, be, e));
    return case_run_open(&p->run, p->eval, be, e);
}

static void test_one(struct backend *be, const struct grad_spec *s, const char *shape, double scale)
{
    struct err er = ERR_INIT;
    static struct probe probe; /* large */
    struct probe *p = &probe;
    memset(p, 0, sizeof *p);
    int failed = test_failed;
    p->s = s;
    p->h = 1e-3 * scale;
    if (probe_open(p, be, shape, &er) != 0) {
        printf("FAIL %s %s: %s\n", s->bwd, shape, er.msg);
        test_failed++;
        return;
    }
    size_t nonzero = 0;
    for (int k = 0; k < p->n_in; k++) {
        int64_t n;
        values(p->eval, s->in[k].value, &n);
        for (int64_t i = 0; i < n; i++)
            nonzero += p->grad[k][i] != 0;
        zero_dirs(p);
        random_dir(p, k, 1);
        compare(p, s->in[k].value);
        for (uint64_t c = 0; c < 4 && n; c++) {
            char what[48];
            int64_t at = c == 0 ? 0 : c == 1 ? n - 1 : (int64_t)ctr_below(5, c, (uint64_t)k, (uint64_t)n);
            zero_dirs(p);
            p->dir[k][at] = 1;
            snprintf(what, sizeof what, "%s element %lld", s->in[k].value, (long long)at);
            compare(p, what);
        }
    }
    for (uint64_t d = 2; d < 5; d++) {
        for (int k = 0; k < p->n_in; k++)
            random_dir(p, k, d);
        compare(p, "all inputs");
    }
    CHECK(nonzero > 0);
    printf("%s %-13s %-62s worst %.3g = %.2f of limit, along %s\n", test_failed == failed ? "ok  " : "FAIL", s->bwd, shape, p->worst_err,
           p->worst, p->worst_what);
    case_run_close(&p->run);
    for (int k = 0; k < 7; k++) {
        free(p->grad[k]);
        free(p->base[k]);
        free(p->dir[k]);
    }
    op_case_free(&p->bwd);
    op_case_free(&p->fwd);
}

/* <A x, y> = <x, B y> for pairs of ops that are each other's transpose; both sides are sums of the same products. */
static void test_adjoint(struct backend *be, const char *a, const char *a_shape, const char *a_out, const char *b, const char *b_shape,
                         const char *b_in, const char *b_out)
{
    static struct op_case ca, cb;
    struct case_run r;
    CHECK_OK(op_case_make(&ca, a, a_shape, 1, e));
    CHECK_OK(op_case_make(&cb, b, b_shape, 1, e));
    int64_t n, m;
    const char *a_in = !strcmp(a, "rope") ? "x" : "a";
    double *x = values(&ca, a_in, &n), *y = values(&cb, b_in, &m), left = 0, right = 0, size = 0;
    for (int64_t i = 0; i < m; i++)
        y[i] = ctr_normal(9, 9, (uint64_t)i);
    for (int i = 0; i < ca.n_t; i++) { /* the operator's own numbers: weights, angles */
        int j = op_case_find(&cb, ca.t[i].name);
        if (j >= 0 && strcmp(ca.t[i].name, a_in) && ca.t[i].role == VIEW_IN)
            memcpy(cb.t[j].x, ca.t[i].x, (size_t)(ca.t[i].rows * ca.t[i].width) * sizeof(double));
    }
    double *out = malloc((size_t)(n + m + 1) * sizeof *out);
    CHECK_OK(case_run_open(&r, &ca, be, e));
    CHECK_OK(case_run_all(&r, e));
    CHECK_OK(case_run_get(&r, op_case_find(&ca, a_out), out, e));
    for (int64_t i = 0; i < m; i++) {
        left += out[i] * y[i];
        size += fabs(out[i] * y[i]);
    }
    case_run_close(&r);
    CHECK_OK(case_run_open(&r, &cb, be, e));
    CHECK_OK(case_run_all(&r, e));
    CHECK_OK(case_run_get(&r, op_case_find(&cb, b_out), out, e));
    for (int64_t i = 0; i < n; i++)
        right += out[i] * x[i];
    case_run_close(&r);
    printf("%-60s <Ax,y> %.12g, <x,By> %.12g\n", a, left, right);
    CHECK(fabs(left) > 1e-3 && fabs(left - right) <= 100 * 2.2e-16 * size);
    free(out);
    op_case_free(&ca);
    op_case_free(&cb);
}

/* Equal rows of the norm loss have no direction: gradient 0 by definition. */
static void test_align_equal(struct backend *be)
{
    static struct op_case c;
    struct case_run r;
    double ds[18], loss_[2];
    CHECK_OK(op_case_make(&c, "align_loss", "rows=2,dim=9,equal=1", 3, e));
    CHECK_OK(case_run_open(&r, &c, be, e));
    CHECK_OK(case_run_all(&r, e));
    CHECK_OK(case_run_get(&r, op_case_find(&c, "ds"), ds, e));
    CHECK_OK(case_run_get(&r, op_case_find(&c, "loss"), loss_, e));
    CHECK(loss_[0] == 0 && loss_[1] > 0);
    for (int i = 0; i < 9; i++)
        CHECK(ds[i] == 0 && ds[9 + i] != 0);
    case_run_close(&r);
    op_case_free(&c);
}

/* dp of attention and of mix: the outputs are linear in p, so dp_i = <upstream, output_i> exactly as the products sum. */
static void test_dp(struct backend *be, const char *op, const char *shape, const char *up, const char *const *outs, int n_out)
{
    static struct op_case c;
    struct case_run r;
    CHECK_OK(op_case_make(&c, op, shape, 8, e));
    CHECK_OK(case_run_open(&r, &c, be, e));
    CHECK_OK(case_run_all(&r, e));
    int dp = op_case_find(&c, "dp");
    double got[3];
    CHECK_OK(case_run_get(&r, dp, got, e));
    for (int k = 0; k < n_out; k++) {
        int64_t n;
        double *y = malloc((size_t)(c.t[op_case_find(&c, up)].rows * c.t[op_case_find(&c, up)].width + 1) * sizeof *y),
               *u = values(&c, up, &n), sum = c.t[dp].x[k], size = 0;
        CHECK_OK(case_run_get(&r, op_case_find(&c, outs[k]), y, e));
        for (int64_t i = 0; i < n; i++) {
            sum += y[i] * u[i];
            size += fabs(y[i] * u[i]);
        }
        CHECK(fabs(got[k] - sum) <= 2.2e-16 * (double)n * size && fabs(sum - c.t[dp].x[k]) > 1e-6);
        free(y);
    }
    case_run_close(&r);
    op_case_free(&c);
}

int main(int argc, char **argv)
{
    struct err e_ = ERR_INIT, *e = &e_;
    struct backend *be;
    const char *only = argc == 3 && !strcmp(argv[1], "-o") ? argv[2] : NULL;
    if (backend_open(&be, &(struct backend_opts){.name = "ref64"}, e) != 0) {
        printf("FAIL: %s\n", e->msg);
        return 1;
    }
    for (size_t i = 0; i < ARRAY_LEN(runs); i++)
        for (size_t k = 0; k < ARRAY_LEN(specs); k++)
            if (!strcmp(specs[k].bwd, runs[i].op) && (!only || !strcmp(only, runs[i].op)))
                test_one(be, &specs[k], runs[i].shape, runs[i].scale);
    if (!only) {
        static const char *const o12[] = {"o", "o2"}, *const x123[] = {"x[0]", "x[1]", "x[2]"};
        test_dp(be, "attn_bwd", "lens=9+4,h=4,g=2,k=8,v=8,two=1,window2=3", "d_o", o12, 2);
        test_dp(be, "mix_bwd", "n=50,count=3", "dy", x123, 3);
        test_align_equal(be);
        /* y = x W^T and dx = dy W;  y = x W (tb = 0) and its transpose by tb = 1; a rotation and its inverse */
        test_adjoint(be, "gemm", "m=5,n=7,k=9,tb=1", "c", "gemm", "m=5,n=9,k=7,tb=0", "a", "c");
        test_adjoint(be, "gemm", "m=4,n=6,k=3,tb=0,pad=2", "c", "gemm", "m=4,n=3,k=6,tb=1", "a", "c");
        test_adjoint(be, "rope", "rows=5,heads=2,dim=8", "x", "rope", "rows=5,heads=2,dim=8,inverse=1", "x", "x");
    }
    backend_close(be);
    return test_end();
}
