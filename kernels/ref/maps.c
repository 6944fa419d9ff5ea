/* Norms, rotations, gates, mixing, the optimiser. */
#include "kernels/ref/ref.h"

void REF(rmsnorm)(struct backend *be, const struct op_rmsnorm *d)
{
    UNUSED(be);
    for (int64_t r = 0; r < d->rows; r++) {
        const REAL *x = ref_p(d->x) + r * d->dim, *w = ref_p(d->w);
        REAL *y = ref_p(d->y) + r * d->dim, sum = 0;
        for (int64_t j = 0; j < d->dim; j++)
            sum += x[j] * x[j];
        REAL rstd = 1 / ref_sqrt(sum / (REAL)d->dim + (REAL)d->eps);
        for (int64_t j = 0; j < d->dim; j++)
            y[j] = x[j] * rstd * w[j];
        if (d->rstd.p)
            ref_p(d->rstd)[r] = rstd;
    }
}

/* xh = x rstd, g = dy w:  dx = rstd (g - xh mean(g xh)),  dw += dy xh. */
void REF(rmsnorm_bwd)(struct backend *be, const struct op_rmsnorm_bwd *d)
{
    UNUSED(be);
    for (int64_t r = 0; r < d->rows; r++) {
        const REAL *x = ref_p(d->x) + r * d->dim, *dy = ref_p(d->dy) + r * d->dim, *w = ref_p(d->w);
        REAL *dx = ref_p(d->dx) + r * d->dim, *dw = ref_p(d->dw), rstd = ref_p(d->rstd)[r], dot = 0;
        for (int64_t j = 0; j < d->dim; j++)
            dot += dy[j] * w[j] * x[j] * rstd;
        dot /= (REAL)d->dim;
        for (int64_t j = 0; j < d->dim; j++) {
            REAL xh = x[j] * rstd, v = rstd * (dy[j] * w[j] - xh * dot);
            dx[j] = d->dx_add ? dx[j] + v : v;
            if (dw)
                dw[j] += dy[j] * xh;
        }
    }
}

void REF(rope)(struct backend *be, const struct op_rope *d)
{
    UNUSED(be);
    int64_t half = d->dim / 2, ld = d->ld ? d->ld : d->heads * d->dim;
    for (int64_t r = 0; r < d->rows; r++) {
        const REAL *c = ref_p(d->cos) + ref_i32(d->pos)[r] * half, *s = ref_p(d->sin) + ref_i32(d->pos)[r] * half;
        for (int64_t h = 0; h < d->heads; h++) {
            REAL *x = ref_p(d->x) + r * ld + h * d->dim;
            for (int64_t i = 0; i < half; i++) {
                REAL a = x[i], b = x[i + half], sn = d->inverse ? -s[i] : s[i];
                x[i] = a * c[i] - b * sn;
                x[i + half] = b * c[i] + a * sn;
            }
        }
    }
}

void REF(swiglu)(struct backend *be, const struct op_swiglu *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->n; i++)
        ref_p(d->h)[i] = ref_silu(ref_p(d->g)[i]) * ref_p(d->u)[i];
}

void REF(swiglu_bwd)(struct backend *be, const struct op_swiglu_bwd *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->n; i++) {
        REAL g = ref_p(d->g)[i], u = ref_p(d->u)[i], dh = ref_p(d->dh)[i];
        ref_p(d->dg)[i] = dh * u * ref_silu_d(g);
        ref_p(d->du)[i] = dh * ref_silu(g);
    }
}

void REF(mix)(struct backend *be, const struct op_mix *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->n; i++) {
        REAL sum = 0;
        for (int k = 0; k < d->count; k++)
            sum += (REAL)d->p[k] * ref_p(d->x[k])[i];
        ref_p(d->y)[i] = sum;
    }
}

void REF(mix_bwd)(struct backend *be, const struct op_mix_bwd *d)
{
    UNUSED(be);
    const REAL *dy = ref_p(d->dy);
    for (int k = 0; k < d->count; k++) {
        if (d->dp.p) {
            REAL sum = 0;
            for (int64_t i = 0; i < d->n; i++)
                sum += dy[i] * ref_p(d->x[k])[i];
            ref_p(d->dp)[k] += sum;
        }
        if (d->dx[k].p)
            for (int64_t i = 0; i < d->n; i++)
                ref_p(d->dx[k])[i] = (REAL)d->p[k] * dy[i];
    }
}

void REF(axpby)(struct backend *be, const struct op_axpby *d)
{
    UNUSED(be);
    REAL *y = ref_p(d->y);
    for (int64_t i = 0; i < d->n; i++)
        y[i] = d->x.p ? (REAL)d->a * ref_p(d->x)[i] + (REAL)d->b * y[i] : (REAL)d->b * y[i];
}

void REF(adamw)(struct backend *be, const struct op_adamw *d)
{
    UNUSED(be);
    REAL b1 = (REAL)d->b1, b2 = (REAL)d->b2, *w = ref_p(d->w), *m = ref_p(d->m), *v = ref_p(d->v);
    for (int64_t i = 0; i < d->n; i++) {
        REAL g = ref_p(d->g)[i] * (REAL)d->gscale;
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        REAL step = m[i] / (REAL)d->bc1 / (ref_sqrt(v[i] / (REAL)d->bc2) + (REAL)d->eps) + (REAL)d->wd * w[i];
        w[i] -= (REAL)d->lr * step;
        if (d->w_act.p)
            ref_p(d->w_act)[i] = w[i];
    }
}

void REF(sumsq)(struct backend *be, const struct op_sumsq *d)
{
    UNUSED(be);
    double sum = 0, *out = d->out.p;
    for (int64_t i = 0; i < d->n; i++)
        sum += (double)ref_p(d->x)[i] * (double)ref_p(d->x)[i];
    *out = d->accumulate ? *out + sum : sum;
}

/* Selection by repeated scans: the largest that comes after the previous pick in (value descending, id ascending) order. */
void REF(topk)(struct backend *be, const struct op_topk *d)
{
    UNUSED(be);
    for (int64_t r = 0; r < d->rows; r++) {
        const REAL *z = ref_p(d->z) + r * d->n;
        int64_t last = -1;
        for (int64_t k = 0; k < d->k; k++) {
            int64_t best = -1;
            for (int64_t j = 0; j < d->n; j++) {
                bool after = last < 0 || z[j] < z[last] || (z[j] == z[last] && j > last);
                if (after && (best < 0 || z[j] > z[best]))
                    best = j;
            }
            last = best < 0 ? 0 : best; /* a row with NaN has no order; any id in range will do */
            ((int32_t *)d->ids.p)[r * d->k + k] = (int32_t)last;
            if (d->vals.p)
                ref_p(d->vals)[r * d->k + k] = z[last];
        }
    }
}
