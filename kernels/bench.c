#include "kernels/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/host.h"
#include "kernels/op_case.h"

/* host: sizes of models of 135 M to 500 M parameters, one or two sequences; device: Qwen2.5-3B, 8192 tokens. */
static const struct {
    const char *op, *host, *device;
} shapes[] = {
    {"gemm", "m=512,n=1536,k=576", "m=8192,n=11008,k=2048"},
    {"gemm", "m=512,n=896,k=4864", "m=8192,n=2048,k=11008"},
    {"gemm", "m=1024,n=1024,k=1024", "m=8192,n=8192,k=8192"},
    {"gemm", "m=512,n=576,k=1536,tb=0", "m=8192,n=2048,k=11008,tb=0"},
    {"gemm", "m=1536,n=576,k=512,ta=1,tb=0,acc=1", "m=11008,n=2048,k=8192,ta=1,tb=0,acc=1"},
    {"gemm", "m=1,n=1536,k=576", "m=1,n=11008,k=2048"},
    {"gemm", "m=8,n=4864,k=896", "m=8,n=11008,k=2048"},
    {"embed", "rows=512,vocab=8192,dim=576", "rows=8192,vocab=151936,dim=2048"},
    {"embed_bwd", "rows=512,vocab=8192,dim=576", "rows=8192,vocab=151936,dim=2048"},
    {"rmsnorm", "rows=512,dim=576", "rows=8192,dim=2048"},
    {"rmsnorm_bwd", "rows=512,dim=576", "rows=8192,dim=2048"},
    {"rope", "rows=512,heads=9,dim=64,max=512", "rows=8192,heads=16,dim=128,max=4096"},
    {"swiglu", "n=786432", "n=90177536"},
    {"swiglu_bwd", "n=786432", "n=90177536"},
    {"attn", "lens=512,h=9,g=3,k=64,v=64", "lens=4096+4096,h=16,g=2,k=128,v=128"},
    {"attn", "lens=512,h=9,g=3,k=64,v=64,window=128", "lens=4096+4096,h=16,g=2,k=128,v=128,window=512"},
    {"attn", "lens=512,h=9,g=3,k=64,v=64,two=1,window2=128", "lens=4096+4096,h=16,g=2,k=128,v=128,two=1,window2=512"},
    {"attn", "lens=1,past=1023,h=9,g=3,k=64,v=64", "lens=1,past=32767,h=16,g=2,k=128,v=128"},
    {"attn_bwd", "lens=512,h=9,g=3,k=64,v=64", "lens=4096+4096,h=16,g=2,k=128,v=128"},
    {"attn_bwd", "lens=512,h=9,g=3,k=64,v=64,two=1,window2=128", "lens=4096+4096,h=16,g=2,k=128,v=128,two=1,window2=512"},
    {"conv", "lens=512,dim=1728", "lens=4096+4096,dim=6144"},
    {"conv_bwd", "lens=512,dim=1728", "lens=4096+4096,dim=6144"},
    {"gdn_prep", "rows=512,h=9,k=64,v=64", "rows=8192,h=16,k=128,v=128"},
    {"gdn_prep_bwd", "rows=512,h=9,k=64,v=64", "rows=8192,h=16,k=128,v=128"},
    {"gdn", "lens=512,h=9,k=64,v=64", "lens=4096+4096,h=16,k=128,v=128"},
    {"gdn", "lens=1,h=9,k=64,v=64,save=0", "lens=1,h=16,k=128,v=128,save=0"},
    {"gdn_bwd", "lens=512,h=9,k=64,v=64", "lens=4096+4096,h=16,k=128,v=128"},
    {"gdn_out", "rows=512,hv=9,v=64", "rows=8192,hv=16,v=128"},
    {"gdn_out_bwd", "rows=512,hv=9,v=64", "rows=8192,hv=16,v=128"},
    {"mix", "n=294912", "n=16777216"},
    {"mix_bwd", "n=294912", "n=16777216"},
    {"axpby", "n=294912,b=-1", "n=16777216,b=-1"},
    {"colsum", "rows=512,n=960", "rows=8192,n=2560"},
    {"align_loss", "rows=512,dim=576", "rows=8192,dim=2048"},
    {"head_ce", "rows=64,dim=576,vocab=8192", "rows=8192,dim=2048,vocab=151936"},
    {"head_kl", "rows=64,dim=576,vocab=8192", "rows=8192,dim=2048,vocab=151936,wgrad=0"},
    {"topk", "rows=64,n=8192,k=8", "rows=64,n=151936,k=8"},
    {"adamw", "n=1000000", "n=100000000"},
    {"sumsq", "n=1000000", "n=100000000"},
    {"gather", "rows=512,dim=576", "rows=8192,dim=2048"},
    {"cast", "n=1000000,from=f32,to=bf16", "n=100000000,from=f32,to=bf16"},
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { MAX_REPS = 1000, HOST_REPS = 5, DEVICE_REPS = 20 };
struct timing {
    double median, best;
    int64_t reps;
};

/* Repeats call(ctx) for about `seconds`, at least min_reps times; calls shorter than 50 us are timed in groups. A failed call ends it. */
static int time_it(int (*call)(void *ctx, int64_t times, struct err *e), void *ctx, double seconds, int min_reps, struct timing *out,
                   struct err *e)
{
    double t[MAX_REPS], start = now_s();
    TRY(call(ctx, 1, e)); /* pages, caches, clocks */
    double first = now_s() - start;
    int64_t group = 1;
    if (first < 50e-6) {
        start = now_s();
        TRY(call(ctx, 20, e));
        double each = (now_s() - start) / 20;
        group = MAX((int64_t)(100e-6 / MAX(each, 1e-8)), 1);
    }
    int n = 0;
    for (double begin = now_s(); n < MAX_REPS && (n < min_reps || now_s() - begin < seconds); n++) {
        start = now_s();
        TRY(call(ctx, group, e));
        t[n] = (now_s() - start) / (double)group;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    *out = (struct timing){n % 2 ? t[n / 2] : (t[n / 2 - 1] + t[n / 2]) / 2, t[0], n * group};
    return 0;
}

static int call_op(void *ctx, int64_t times, struct err *e)
{
    struct case_run *r = ctx;
    for (int64_t i = 0; i < times; i++)
        case_run_last(r);
    return be_sync(r->be, e);
}

/* Worst relative distance of an output from the double reference, run on the same rounded inputs. */
static int distance(struct op_case *c, struct case_run *r, double *worst, struct err *e)
{
    static const struct backend_opts ref = {.name = "ref64"};
    struct backend_opts o = ref;
    struct backend *be;
    o.pool = r->be->pool;
    TRY(backend_open(&be, &o, e));
    struct case_run *truth = calloc(1, sizeof *truth); /* large */
    int rc = truth ? case_run_open(truth, c, be, e) : err_nomem(e, sizeof *truth, "the reference run");
    bool open = rc == 0;
    if (rc == 0)
        rc = case_run_all(truth, e);
    for (int t = 0; rc == 0 && t < c->n_t; t++) {
        int64_t n = c->t[t].rows * c->t[t].width;
        if (c->t[t].role == VIEW_IN || c->t[t].opaque || !n)
            continue;
        double *y = malloc(2 * (size_t)n * sizeof *y), num = 0, den = 0;
        rc = y ? 0 : err_nomem(e, 2 * (size_t)n * sizeof *y, "the reference run");
        if (rc == 0)
            rc = case_run_get(r, t, y, e);
        if (rc == 0)
            rc = case_run_get(truth, t, y + n, e);
        for (int64_t i = 0; rc == 0 && i < n; i++) {
            if (c->op == OP_gather && !finite_f64(y[n + i])) /* rows that nothing is copied to */
                continue;
            num += (y[i] - y[n + i]) * (y[i] - y[n + i]);
            den += y[n + i] * y[n + i];
        }
        free(y);
        double rel = den > 0 ? sqrt(num / den) : num > 0 ? INFINITY : 0;
        if (!(rel <= *worst)) /* NaN counts as worst */
            *worst = rel;
    }
    if (open)
        case_run_close(truth);
    free(truth);
    backend_close(be);
    return rc;
}

struct blas_call {
    const struct bench_blas *b;
    const struct case_run *r;
    float *c;
};

static int call_blas(void *ctx, int64_t times, struct err *e)
{
    UNUSED(e);
    struct blas_call *x = ctx;
    const struct op_gemm *g = &x->r->d[0].gemm;
    int lda = (int)(g->lda ? g->lda : g->ta ? g->m : g->k), ldb = (int)(g->ldb ? g->ldb : g->tb ? g->k : g->n);
    for (int64_t i = 0; i < times; i++)
        x->b->sgemm(101, g->ta ? 112 : 111, g->tb ? 112 : 111, (int)g->m, (int)g->n, (int)g->k, 1, g->a.p, lda, g->b.p, ldb,
                    g->accumulate ? 1 : 0, x->c, (int)g->n);
    return 0;
}

static int compare_blas(const struct bench_blas *b, const struct case_run *r, double seconds, struct timing *out, struct err *e)
{
    const struct op_gemm *g = &r->d[0].gemm;
    size_t bytes = (size_t)(g->m * g->n) * sizeof(float);
    struct blas_call x = {b, r, calloc(1, bytes + 1)};
    if (!x.c)
        return err_nomem(e, bytes, "the product by OpenBLAS");
    int rc = time_it(call_blas, &x, seconds, HOST_REPS, out, e);
    free(x.c);
    return rc;
}

static int measure(struct backend *be, struct op_case *c, struct case_run *r, const struct bench_opts *o, const struct bench_peak *peak,
                   const struct bench_blas *blas, struct bench_row *row, struct err *e)
{
    double seconds = o->seconds > 0 ? o->seconds : 0.3;
    struct cost cost = op_case_cost(c), all = cost;
    struct timing t, bt = {NAN, NAN, 0};
    if (c->n_ops == 2)
        all.flops += op_cost_any(c->ops[0], &c->d[0]).flops;
    op_case_round(c, be);
    TRY(case_run_open(r, c, be, e));
    int rc = case_run_all(r, e);
    row->err = row->share = NAN;
    if (rc == 0 && !o->no_check && all.flops <= BENCH_CHECK_FLOPS) {
        row->err = 0;
        rc = distance(c, r, &row->err, e);
    }
    if (rc == 0)
        rc = time_it(call_op, r, seconds, be_is_host(be) ? HOST_REPS : DEVICE_REPS, &t, e);
    if (rc == 0 && blas && blas->lib && c->op == OP_gemm && be->act == DT_F32 && be_is_host(be) && !c->d[0].gemm.bias.p)
        rc = compare_blas(blas, r, seconds, &bt, e);
    case_run_close(r);
    TRY(rc);
    row->reps = t.reps;
    row->time_s = t.median;
    row->best_s = t.best;
    row->blas_s = bt.median;
    row->blas_best_s = bt.best;
    row->flops = cost.flops;
    row->bytes = cost.bytes;
    row->gflops = 1e-9 * cost.flops / t.median;
    row->gbs = 1e-9 * cost.bytes / t.median;
    if (peak && peak->gflops > 0 && peak->gbs > 0)
        row->share = MAX(1e-9 * cost.flops / peak->gflops, 1e-9 * cost.bytes / peak->gbs) / t.median;
    return 0;
}

static int bench_one(struct backend *be, const char *op, const char *shape, const struct bench_opts *o, const struct bench_peak *peak,
                     const struct bench_blas *blas, struct bench_row *row, struct err *e)
{
    struct op_case *c = calloc(1, sizeof *c);
    struct case_run *r = calloc(1, sizeof *r);
    int rc = c && r ? 0 : err_nomem(e, sizeof *c + sizeof *r, "a case");
    memset(row, 0, sizeof *row);
    snprintf(row->op, sizeof row->op, "%s", op);
    snprintf(row->shape, sizeof row->shape, "%s", shape);
    if (rc == 0)
        rc = op_case_make(c, op, shape, o->seed, e);
    if (rc == 0) {
        rc = measure(be, c, r, o, peak, blas, row, e);
        op_case_free(c);
    }
    free(c);
    free(r);
    return rc;
}

int bench_op(struct backend *be, const struct bench_opts *o, const struct bench_peak *peak, const struct bench_blas *blas,
             void (*row)(void *ctx, const struct bench_row *r), void *ctx, struct err *e)
{
    struct bench_row out;
    enum op_id id;
    if (o->shape && !o->op)
        return ERR(e, E_USAGE, "a shape needs an op: --op NAME --shape %s", o->shape);
    if (o->op)
        TRY(op_case_by_name(o->op, &id, e));
    if (o->shape) {
        TRY(bench_one(be, o->op, o->shape, o, peak, blas, &out, e));
        row(ctx, &out);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        if (o->op && strcmp(o->op, shapes[i].op))
            continue;
        TRY(bench_one(be, shapes[i].op, be_is_host(be) ? shapes[i].host : shapes[i].device, o, peak, blas, &out, e));
        row(ctx, &out);
    }
    return 0;
}
