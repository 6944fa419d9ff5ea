/* Row norms, rotary positions, the alignment loss. Sums within a row: lane i mod 16, one tree. Sums over rows: blocks of rows fixed by the
 * width, blocks ascending. */
#include "kernels/cpu/isa/vmath.h"

/* Rows of a block whose partial sums go together: a function of the width alone. */
static int64_t block_rows(int64_t width)
{
    return MAX((int64_t)32, 8192 / MAX(width, (int64_t)1));
}

static float rstd_of(const float *x, int64_t n, float eps)
{
    return 1.0f / sqrtf(v16_dot(x, x, n) / (float)n + eps);
}

static void rmsnorm_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_rmsnorm *d = ctx;
    int64_t n = d->dim;
    UNUSED(part);
    for (int64_t r = r0; r < r1; r++) {
        const float *x = cpu_f(d->x) + r * n;
        float *y = cpu_f(d->y) + r * n, rstd = rstd_of(x, n, (float)d->eps);
        v16 s = v16_set1(rstd);
        LANES(j, n) st(y, j, n, v16_mul(v16_mul(ld(x, j, n), s), ld(cpu_f(d->w), j, n)));
        if (d->rstd.p)
            cpu_f(d->rstd)[r] = rstd;
    }
}

void ISA_NAME(rmsnorm)(struct backend *be, const struct op_rmsnorm *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = rmsnorm_rows, .n = d->rows, .step = rows_of(GRAIN, d->dim)});
}

/* xh = x rstd, g = dy w:  dx = rstd (g - xh mean(g xh)),  dw += dy xh. */
static void rmsnorm_bwd_rows(const void *ctx, float *dw, int64_t r0, int64_t r1)
{
    const struct op_rmsnorm_bwd *d = ctx;
    int64_t n = d->dim;
    const float *w = cpu_f(d->w);
    if (dw)
        memset(dw, 0, (size_t)n * sizeof *dw);
    for (int64_t r = r0; r < r1; r++) {
        const float *x = cpu_f(d->x) + r * n, *dy = cpu_f(d->dy) + r * n;
        float *dx = cpu_f(d->dx) + r * n;
        v16 rstd = v16_set1(cpu_f(d->rstd)[r]), dot = v16_zero();
        LANES(j, n) dot = v16_fma(v16_mul(ld(dy, j, n), ld(w, j, n)), v16_mul(ld(x, j, n), rstd), dot);
        v16 mean = v16_set1(v16_hsum(dot) / -(float)n);
        LANES(j, n)
        {
            v16 xh = v16_mul(ld(x, j, n), rstd), g = ld(dy, j, n);
            v16 v = v16_mul(rstd, v16_fma(xh, mean, v16_mul(g, ld(w, j, n))));
            st(dx, j, n, d->dx_add ? v16_add(ld(dx, j, n), v) : v);
            if (dw)
                st(dw, j, n, v16_fma(g, xh, ld(dw, j, n)));
        }
    }
}

void ISA_NAME(rmsnorm_bwd)(struct backend *be, const struct op_rmsnorm_bwd *d)
{
    int64_t step = block_rows(d->dim), blocks = CEIL_DIV(d->rows, step);
    float *part = NULL;
    if (d->dw.p && blocks && d->dim) {
        part = cpu_scratch(be, (size_t)(blocks * d->dim) * sizeof *part);
        if (!part)
            return;
    }
    run_ranges(be, (struct ranges){.d = d, .fn = rmsnorm_bwd_rows, .n = d->rows, .step = step, .part = part, .width = d->dim});
    if (part)
        add_parts(cpu_f(d->dw), part, blocks, d->dim, d->dim);
}

static void rope_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_rope *d = ctx;
    int64_t half = d->dim / 2, ld_x = d->ld ? d->ld : d->heads * d->dim;
    v16 sign = v16_set1(d->inverse ? -1.0f : 1.0f);
    UNUSED(part);
    for (int64_t r = r0; r < r1; r++) {
        const float *c = cpu_f(d->cos) + cpu_i(d->pos)[r] * half, *s = cpu_f(d->sin) + cpu_i(d->pos)[r] * half;
        for (int64_t h = 0; h < d->heads; h++) {
            float *x = cpu_f(d->x) + r * ld_x + h * d->dim, *y = x + half;
            LANES(i, half)
            {
                v16 a = ld(x, i, half), b = ld(y, i, half), cv = ld(c, i, half), sv = v16_mul(sign, ld(s, i, half));
                st(x, i, half, v16_fma(a, cv, v16_neg(v16_mul(b, sv))));
                st(y, i, half, v16_fma(b, cv, v16_mul(a, sv)));
            }
        }
    }
}

void ISA_NAME(rope)(struct backend *be, const struct op_rope *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = rope_rows, .n = d->rows, .step = rows_of(GRAIN, d->heads * d->dim)});
}

static void align_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_align_loss *d = ctx;
    int64_t n = d->dim;
    float root = sqrtf((float)n);
    UNUSED(part);
    for (int64_t r = r0; r < r1; r++) {
        const float *s = cpu_f(d->s) + r * n, *t = cpu_f(d->t) + r * n;
        float w = d->w.p ? cpu_f(d->w)[r] : 1.0f;
        v16 acc = v16_zero();
        LANES(j, n)
        {
            v16 e = v16_sub(ld(s, j, n), ld(t, j, n));
            acc = v16_fma(e, e, acc);
        }
        float sum = v16_hsum(acc), norm = sqrtf(sum), factor = d->squared ? 2 * w : norm > 0 ? w / (norm * root) : 0.0f;
        cpu_f(d->loss)[r] = d->squared ? sum : norm / root;
        if (!d->ds.p)
            continue;
        LANES(j, n) st(cpu_f(d->ds) + r * n, j, n, v16_mul(v16_set1(factor), v16_sub(ld(s, j, n), ld(t, j, n))));
    }
}

void ISA_NAME(align_loss)(struct backend *be, const struct op_align_loss *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = align_rows, .n = d->rows, .step = rows_of(GRAIN, d->dim)});
}
