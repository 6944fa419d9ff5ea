/* Alignment loss; linear head with cross-entropy and with KL. A whole row of logits at a time. */
#include "kernels/ref/ref.h"

void REF(align_loss)(struct backend *be, const struct op_align_loss *d)
{
    UNUSED(be);
    for (int64_t r = 0; r < d->rows; r++) {
        const REAL *s = ref_p(d->s) + r * d->dim, *t = ref_p(d->t) + r * d->dim;
        REAL sum = 0, w = d->w.p ? ref_p(d->w)[r] : 1;
        for (int64_t j = 0; j < d->dim; j++)
            sum += (s[j] - t[j]) * (s[j] - t[j]);
        REAL norm = ref_sqrt(sum), root = ref_sqrt((REAL)d->dim), factor = d->squared ? 2 * w : norm > 0 ? w / (norm * root) : 0;
        ref_p(d->loss)[r] = d->squared ? sum : norm / root;
        if (d->ds.p)
            for (int64_t j = 0; j < d->dim; j++)
                ref_p(d->ds)[r * d->dim + j] = factor * (s[j] - t[j]);
    }
}

struct logits_ctx {
    const REAL *h, *w;
    REAL *z;
    int64_t dim;
};

static void logit(void *ctx, int64_t v, int worker)
{
    UNUSED(worker);
    const struct logits_ctx *c = ctx;
    REAL sum = 0;
    for (int64_t j = 0; j < c->dim; j++)
        sum += c->h[j] * c->w[v * c->dim + j];
    c->z[v] = sum;
}

static void logits(struct backend *be, REAL *z, const REAL *h, const REAL *w, int64_t vocab, int64_t dim)
{
    struct logits_ctx c = {h, w, z, dim};
    pool_run(be->pool, vocab, logit, &c);
}

static REAL log_sum_exp(const REAL *z, int64_t n)
{
    REAL max = z[0], sum = 0;
    for (int64_t v = 1; v < n; v++)
        if (z[v] > max)
            max = z[v];
    for (int64_t v = 0; v < n; v++)
        sum += ref_exp(z[v] - max);
    return max + ref_log(sum);
}

/* dh = dz W, dw += dz^T h for one row; either may be absent. */
static void head_grads(const REAL *dz, const REAL *h, const REAL *w, REAL *dh, REAL *dw, int64_t vocab, int64_t dim)
{
    for (int64_t v = 0; v < vocab; v++)
        for (int64_t j = 0; j < dim; j++) {
            if (dh)
                dh[j] += dz[v] * w[v * dim + j];
            if (dw)
                dw[v * dim + j] += dz[v] * h[j];
        }
}

void REF(head_ce)(struct backend *be, const struct op_head_ce *d)
{
    REAL *z = ref_scratch(be, d->vocab);
    for (int64_t r = 0; z && r < d->rows; r++) {
        const REAL *h = ref_p(d->h) + r * d->dim;
        REAL *dh = d->dh.p ? ref_p(d->dh) + r * d->dim : NULL, weight = d->wt.p ? ref_p(d->wt)[r] : 1;
        int32_t target = ref_i32(d->target)[r];
        logits(be, z, h, ref_p(d->w), d->vocab, d->dim);
        if (d->best.p) {
            int32_t best = 0;
            for (int64_t v = 1; v < d->vocab; v++)
                if (z[v] > z[best])
                    best = (int32_t)v;
            ((int32_t *)d->best.p)[r] = best;
        }
        if (dh)
            memset(dh, 0, (size_t)d->dim * sizeof *dh);
        ref_p(d->lp)[r] = 0;
        if (target < 0)
            continue;
        REAL lse = log_sum_exp(z, d->vocab);
        ref_p(d->lp)[r] = z[target] - lse;
        if (!dh && !d->dw.p)
            continue;
        for (int64_t v = 0; v < d->vocab; v++)
            z[v] = weight * (ref_exp(z[v] - lse) - (v == target ? 1 : 0));
        head_grads(z, h, ref_p(d->w), dh, ref_p(d->dw), d->vocab, d->dim);
    }
    free(z);
}

/* e^r - 1 - r, accurate to the last bits near 0, where it is r^2 (1/2 + r/6 + ...). */
static REAL exp_m1_mr(REAL r)
{
    if (fabs((double)r) > 0.5)
        return (REAL)(expm1((double)r) - (double)r);
    double x = (double)r, term = 0.5, sum = 0;
    for (int k = 3; k < 20; k++) {
        sum += term;
        term *= x / k;
    }
    return (REAL)(x * x * sum);
}

void REF(head_kl)(struct backend *be, const struct op_head_kl *d)
{
    REAL *zs = ref_scratch(be, 2 * d->vocab), *zt = zs + d->vocab, tau = (REAL)d->tau;
    for (int64_t r = 0; zs && r < d->rows; r++) {
        const REAL *hs = ref_p(d->hs) + r * d->dim;
        REAL *dhs = d->dhs.p ? ref_p(d->dhs) + r * d->dim : NULL, weight = d->wt.p ? ref_p(d->wt)[r] : 1;
        if (dhs)
            memset(dhs, 0, (size_t)d->dim * sizeof *dhs);
        ref_p(d->kl)[r] = 0;
        if (weight == 0 && d->skip_masked)
            continue;
        logits(be, zs, hs, ref_p(d->ws), d->vocab, d->dim);
        logits(be, zt, ref_p(d->ht) + r * d->dim, ref_p(d->wt_head), d->vocab, d->dim);
        for (int64_t v = 0; v < 2 * d->vocab; v++)
            zs[v] /= tau;
        REAL ls = log_sum_exp(zs, d->vocab), lt = log_sum_exp(zt, d->vocab), sum = 0;
        for (int64_t v = 0; v < d->vocab; v++) {
            REAL xs = zs[v] - ls, xt = zt[v] - lt, diff = xs - xt, pt = ref_exp(xt);
            /* where pt underflows the term tends to ps: the form counts on both sums being 1 */
            sum += pt > 0 && diff < 80 ? pt * exp_m1_mr(diff) : ref_exp(xs) - pt - pt * diff;
            /* ps - pt without cancellation where they are near */
            zs[v] = weight * tau * (pt > 0 && diff < 1 ? pt * (REAL)expm1((double)diff) : ref_exp(xs) - pt);
        }
        ref_p(d->kl)[r] = tau * tau * sum;
        if (weight != 0 && (dhs || d->dws.p))
            head_grads(zs, hs, ref_p(d->ws), dhs, ref_p(d->dws), d->vocab, d->dim);
    }
    free(zs);
}
