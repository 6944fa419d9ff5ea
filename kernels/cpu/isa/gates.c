/* Maps around the gated delta rule: SiLU, key norms, gates before it; gated norm after it. Equations at the descriptors in kernels/ops.h.
 */
#include "kernels/cpu/isa/vmath.h"

/* Rows of a block whose partial sums over rows go together. */
enum { GATE_ROWS = 32 };

/* y = f(x) r, r = 1 / sqrt(sum f(x)^2 + 1e-6), f = SiLU or nothing. */
static float prep_head(float *y, const float *x, int64_t n, bool silu)
{
    v16 sum = v16_zero();
    LANES(j, n)
    {
        v16 v = ld(x, j, n);
        if (silu)
            v = v16_mul(v, v16_sigmoid(v));
        st(y, j, n, v);
        sum = v16_fma(v, v, sum);
    }
    float r = 1.0f / sqrtf(v16_hsum(sum) + 1e-6f);
    LANES(j, n) st(y, j, n, v16_mul(ld(y, j, n), v16_set1(r)));
    return r;
}

static v16 softplus(v16 x)
{
    return v16_select(v16_lt(v16_set1(20.0f), x), x, v16_log1p(v16_exp(v16_min(x, v16_set1(20.0f)))));
}

static void prep_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_gdn_prep *d = ctx;
    UNUSED(part);
    for (int64_t i = r0 * d->h; i < r1 * d->h; i++) {
        float rq = prep_head(cpu_f(d->q) + i * d->kdim, cpu_f(d->q_lin) + i * d->kdim, d->kdim, d->silu);
        float rk = prep_head(cpu_f(d->k) + i * d->kdim, cpu_f(d->k_lin) + i * d->kdim, d->kdim, d->silu);
        if (d->rq.p)
            cpu_f(d->rq)[i] = rq;
        if (d->rk.p)
            cpu_f(d->rk)[i] = rk;
    }
    int64_t width = d->hv * d->vdim, n = r1 * width;
    for (int64_t i = r0 * width; i < n; i += 16) {
        v16 v = ld(cpu_f(d->v_lin), i, n);
        st(cpu_f(d->v), i, n, d->silu ? v16_mul(v, v16_sigmoid(v)) : v);
    }
    LANES(h, d->hv)
    {
        v16 a = v16_neg(v16_exp(ld(cpu_f(d->a_log), h, d->hv))), dt = ld(cpu_f(d->dt_bias), h, d->hv);
        for (int64_t r = r0; r < r1; r++) {
            int64_t o = r * d->hv;
            v16 b = v16_sigmoid(ld(cpu_f(d->b_lin) + o, h, d->hv));
            st(cpu_f(d->beta) + o, h, d->hv, d->neg_eigval ? v16_add(b, b) : b);
            st(cpu_f(d->g) + o, h, d->hv, v16_mul(a, softplus(v16_add(ld(cpu_f(d->a_lin) + o, h, d->hv), dt))));
        }
    }
}

void ISA_NAME(gdn_prep)(struct backend *be, const struct op_gdn_prep *d)
{
    int64_t width = 2 * d->h * d->kdim + d->hv * d->vdim;
    run_ranges(be, (struct ranges){.d = d, .fn = prep_rows, .n = d->rows, .step = rows_of(2 * GRAIN_EXP, width)});
}

/* y = r f(x): dx = r (dy - (dy.y) y) f'(x). */
static void prep_head_bwd(float *dx, const float *dy, const float *y, float r, const float *x, int64_t n, bool silu)
{
    v16 dot = v16_set1(-v16_dot(dy, y, n)), rv = v16_set1(r);
    LANES(j, n)
    {
        v16 v = v16_mul(rv, v16_fma(dot, ld(y, j, n), ld(dy, j, n)));
        if (silu) {
            v16 xv = ld(x, j, n);
            v = v16_mul(v, v16_silu_d(xv, v16_sigmoid(xv)));
        }
        st(dx, j, n, v);
    }
}

/* Gates of one block of rows; part: sums for A_log, then for dt_bias, [2][hv]. */
static void gates_bwd(const struct op_gdn_prep_bwd *d, float *part, int64_t r0, int64_t r1)
{
    const v16 one = v16_set1(1.0f);
    int64_t n = d->hv;
    LANES(h, n)
    {
        v16 a = v16_neg(v16_exp(ld(cpu_f(d->a_log), h, n))), dt = ld(cpu_f(d->dt_bias), h, n), sum_a = v16_zero(), sum_dt = v16_zero();
        for (int64_t r = r0; r < r1; r++) {
            int64_t o = r * n;
            v16 b = ld(cpu_f(d->beta) + o, h, n), z = v16_add(ld(cpu_f(d->a_lin) + o, h, n), dt), dg = ld(cpu_f(d->dg) + o, h, n);
            /* beta = 2 sig: 2 sig (1 - sig) = beta (1 - beta / 2) */
            v16 rest = v16_fma(b, v16_set1(d->neg_eigval ? -0.5f : -1.0f), one);
            st(cpu_f(d->db_lin) + o, h, n, v16_mul(ld(cpu_f(d->dbeta) + o, h, n), v16_mul(b, rest)));
            v16 slope = v16_select(v16_lt(v16_set1(20.0f), z), one, v16_sigmoid(z)), da = v16_mul(v16_mul(a, slope), dg);
            st(cpu_f(d->da_lin) + o, h, n, da);
            sum_a = v16_fma(dg, ld(cpu_f(d->g) + o, h, n), sum_a);
            sum_dt = v16_add(sum_dt, da);
        }
        if (part) {
            st(part, h, n, sum_a);
            st(part + n, h, n, sum_dt);
        }
    }
}

static void prep_bwd_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_gdn_prep_bwd *d = ctx;
    for (int64_t i = r0 * d->h; i < r1 * d->h; i++) {
        int64_t o = i * d->kdim;
        prep_head_bwd(cpu_f(d->dq_lin) + o, cpu_f(d->dq) + o, cpu_f(d->q) + o, cpu_f(d->rq)[i], cpu_f(d->q_lin) + o, d->kdim, d->silu);
        prep_head_bwd(cpu_f(d->dk_lin) + o, cpu_f(d->dk) + o, cpu_f(d->k) + o, cpu_f(d->rk)[i], cpu_f(d->k_lin) + o, d->kdim, d->silu);
    }
    int64_t width = d->hv * d->vdim, n = r1 * width;
    for (int64_t i = r0 * width; i < n; i += 16) {
        v16 v = ld(cpu_f(d->dv), i, n);
        if (d->silu) {
            v16 x = ld(cpu_f(d->v_lin), i, n);
            v = v16_mul(v, v16_silu_d(x, v16_sigmoid(x)));
        }
        st(cpu_f(d->dv_lin), i, n, v);
    }
    gates_bwd(d, part, r0, r1);
}

void ISA_NAME(gdn_prep_bwd)(struct backend *be, const struct op_gdn_prep_bwd *d)
{
    int64_t blocks = CEIL_DIV(d->rows, GATE_ROWS);
    float *part = NULL;
    if ((d->da_log.p || d->ddt_bias.p) && blocks && d->hv) {
        part = cpu_scratch(be, (size_t)(blocks * 2 * d->hv) * sizeof *part);
        if (!part)
            return;
    }
    run_ranges(be, (struct ranges){.d = d, .fn = prep_bwd_rows, .n = d->rows, .step = GATE_ROWS, .part = part, .width = 2 * d->hv});
    if (part && d->da_log.p)
        add_parts(cpu_f(d->da_log), part, blocks, 2 * d->hv, d->hv);
    if (part && d->ddt_bias.p)
        add_parts(cpu_f(d->ddt_bias), part + d->hv, blocks, 2 * d->hv, d->hv);
}

static void out_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_gdn_out *d = ctx;
    int64_t n = d->vdim;
    UNUSED(part);
    for (int64_t i = r0 * d->hv; i < r1 * d->hv; i++) {
        const float *o = cpu_f(d->o) + i * n, *gate = d->gate.p ? cpu_f(d->gate) + i * n : NULL;
        float *y = cpu_f(d->y) + i * n, rstd = 1.0f / sqrtf(v16_dot(o, o, n) / (float)n + (float)d->eps);
        v16 s = v16_set1(rstd);
        LANES(j, n)
        {
            v16 v = v16_mul(v16_mul(ld(o, j, n), s), ld(cpu_f(d->w), j, n));
            if (gate) {
                v16 x = ld(gate, j, n);
                v = v16_mul(v, v16_mul(x, v16_sigmoid(x)));
            }
            st(y, j, n, v);
        }
        if (d->rstd.p)
            cpu_f(d->rstd)[i] = rstd;
    }
}

void ISA_NAME(gdn_out)(struct backend *be, const struct op_gdn_out *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = out_rows, .n = d->rows, .step = rows_of(2 * GRAIN_EXP, d->hv * d->vdim)});
}

/* xh = o r, f = silu(gate), g = w dy f:  do = r (g - xh mean(g xh)),  dgate = dy xh w silu'(gate),  dw += dy xh f. The first pass leaves g
 * in d_o. */
static void out_bwd_rows(const void *ctx, float *dw, int64_t r0, int64_t r1)
{
    const struct op_gdn_out_bwd *d = ctx;
    int64_t n = d->vdim;
    if (dw)
        memset(dw, 0, (size_t)n * sizeof *dw);
    for (int64_t i = r0 * d->hv; i < r1 * d->hv; i++) {
        const float *o = cpu_f(d->o) + i * n, *dy = cpu_f(d->dy) + i * n, *w = cpu_f(d->w),
                    *gate = d->gate.p ? cpu_f(d->gate) + i * n : NULL;
        float *d_o = cpu_f(d->d_o) + i * n;
        v16 rstd = v16_set1(cpu_f(d->rstd)[i]), dot = v16_zero();
        LANES(j, n)
        {
            v16 xh = v16_mul(ld(o, j, n), rstd), g = ld(dy, j, n), wv = ld(w, j, n), f = v16_set1(1.0f);
            if (gate) {
                v16 x = ld(gate, j, n), s = v16_sigmoid(x);
                f = v16_mul(x, s);
                st(cpu_f(d->dgate) + i * n, j, n, v16_mul(v16_mul(v16_mul(g, xh), wv), v16_silu_d(x, s)));
            }
            g = v16_mul(g, f);
            if (dw)
                st(dw, j, n, v16_fma(g, xh, ld(dw, j, n)));
            g = v16_mul(g, wv);
            st(d_o, j, n, g);
            dot = v16_fma(g, xh, dot);
        }
        v16 mean = v16_set1(v16_hsum(dot) / -(float)n);
        LANES(j, n) st(d_o, j, n, v16_mul(rstd, v16_fma(v16_mul(ld(o, j, n), rstd), mean, ld(d_o, j, n))));
    }
}

void ISA_NAME(gdn_out_bwd)(struct backend *be, const struct op_gdn_out_bwd *d)
{
    int64_t blocks = CEIL_DIV(d->rows, GATE_ROWS);
    float *part = NULL;
    if (d->dw.p && blocks && d->vdim) {
        part = cpu_scratch(be, (size_t)(blocks * d->vdim) * sizeof *part);
        if (!part)
            return;
    }
    run_ranges(be, (struct ranges){.d = d, .fn = out_bwd_rows, .n = d->rows, .step = GATE_ROWS, .part = part, .width = d->vdim});
    if (part)
        add_parts(cpu_f(d->dw), part, blocks, d->vdim, d->vdim);
}
