/* Elementwise ops and row copies: embedding, SwiGLU, mixing, column sums, the optimiser, conversions. Nothing here depends on how the
 * ranges are cut but mix_bwd and sumsq, whose blocks of SUM_BLOCK elements are fixed. */
#include "kernels/half.h"
#include "kernels/cpu/isa/vmath.h"

enum { SUM_BLOCK = 8192 };

/* ---- rows ---- */

static void embed_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_embed *d = ctx;
    UNUSED(part);
    for (int64_t r = r0; r < r1; r++)
        memcpy(cpu_f(d->y) + r * d->dim, cpu_f(d->w) + cpu_i(d->ids)[r] * d->dim, (size_t)d->dim * sizeof(float));
}

void ISA_NAME(embed)(struct backend *be, const struct op_embed *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = embed_rows, .n = d->rows, .step = rows_of(GRAIN, d->dim)});
}

/* A range of columns: every worker goes through all rows in order. */
static void embed_bwd_cols(const void *ctx, float *part, int64_t c0, int64_t c1)
{
    const struct op_embed_bwd *d = ctx;
    UNUSED(part);
    for (int64_t r = 0; r < d->rows; r++) {
        float *dw = cpu_f(d->dw) + cpu_i(d->ids)[r] * d->dim + c0;
        const float *dy = cpu_f(d->dy) + r * d->dim + c0;
        LANES(j, c1 - c0) st(dw, j, c1 - c0, v16_add(ld(dw, j, c1 - c0), ld(dy, j, c1 - c0)));
    }
}

void ISA_NAME(embed_bwd)(struct backend *be, const struct op_embed_bwd *d)
{
    int64_t step = d->rows * d->dim <= GRAIN ? MAX(d->dim, (int64_t)1) : 64;
    run_ranges(be, (struct ranges){.d = d, .fn = embed_bwd_cols, .n = d->dim, .step = step});
}

static void colsum_cols(const void *ctx, float *part, int64_t c0, int64_t c1)
{
    const struct op_colsum *d = ctx;
    int64_t ld_x = d->ldx ? d->ldx : d->n;
    float *y = cpu_f(d->y);
    UNUSED(part);
    int64_t c = c0;
    for (; c + 64 <= c1; c += 64) {
        const float *x = cpu_f(d->x) + c;
        v16 s0 = v16_load(y + c), s1 = v16_load(y + c + 16), s2 = v16_load(y + c + 32), s3 = v16_load(y + c + 48);
        for (int64_t r = 0; r < d->rows; r++, x += ld_x) {
            s0 = v16_add(s0, v16_load(x));
            s1 = v16_add(s1, v16_load(x + 16));
            s2 = v16_add(s2, v16_load(x + 32));
            s3 = v16_add(s3, v16_load(x + 48));
        }
        v16_store(y + c, s0);
        v16_store(y + c + 16, s1);
        v16_store(y + c + 32, s2);
        v16_store(y + c + 48, s3);
    }
    for (; c < c1; c += 16) {
        v16 s = ld(y, c, c1);
        for (int64_t r = 0; r < d->rows; r++)
            s = v16_add(s, ld(cpu_f(d->x) + r * ld_x, c, c1));
        st(y, c, c1, s);
    }
}

void ISA_NAME(colsum)(struct backend *be, const struct op_colsum *d)
{
    int64_t step = d->rows * d->n <= GRAIN ? MAX(d->n, (int64_t)1) : 64;
    run_ranges(be, (struct ranges){.d = d, .fn = colsum_cols, .n = d->n, .step = step});
}

static void gather_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_gather *d = ctx;
    size_t size = dtype_size(d->dst.dt);
    int64_t ldd = d->ldd ? d->ldd : d->dim, lds = d->lds ? d->lds : d->dim;
    const int32_t *di = cpu_i(d->di), *si = cpu_i(d->si);
    UNUSED(part);
    for (int64_t r = r0; r < r1; r++)
        memcpy((char *)d->dst.p + (size_t)((di ? di[r] : r) * ldd) * size, (const char *)d->src.p + (size_t)((si ? si[r] : r) * lds) * size,
               (size_t)d->dim * size);
}

/* With destination indices in one range: should an index come twice, the later row stays. */
void ISA_NAME(gather)(struct backend *be, const struct op_gather *d)
{
    int64_t step = d->di.p ? MAX(d->rows, (int64_t)1) : rows_of(GRAIN, d->dim);
    run_ranges(be, (struct ranges){.d = d, .fn = gather_rows, .n = d->rows, .step = step});
}

/* ---- elements ---- */

static void swiglu_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_swiglu *d = ctx;
    UNUSED(part);
    for (int64_t i = i0; i < i1; i += 16) {
        v16 g = ld(cpu_f(d->g), i, i1), u = ld(cpu_f(d->u), i, i1);
        st(cpu_f(d->h), i, i1, v16_mul(v16_mul(g, v16_sigmoid(g)), u));
    }
}

void ISA_NAME(swiglu)(struct backend *be, const struct op_swiglu *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = swiglu_range, .n = d->n, .step = GRAIN_EXP});
}

static void swiglu_bwd_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_swiglu_bwd *d = ctx;
    UNUSED(part);
    for (int64_t i = i0; i < i1; i += 16) {
        v16 g = ld(cpu_f(d->g), i, i1), u = ld(cpu_f(d->u), i, i1), dh = ld(cpu_f(d->dh), i, i1), s = v16_sigmoid(g);
        st(cpu_f(d->dg), i, i1, v16_mul(v16_mul(dh, u), v16_silu_d(g, s)));
        st(cpu_f(d->du), i, i1, v16_mul(dh, v16_mul(g, s)));
    }
}

void ISA_NAME(swiglu_bwd)(struct backend *be, const struct op_swiglu_bwd *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = swiglu_bwd_range, .n = d->n, .step = GRAIN_EXP});
}

static void mix_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_mix *d = ctx;
    UNUSED(part);
    for (int64_t i = i0; i < i1; i += 16) {
        v16 s = v16_zero();
        for (int k = 0; k < d->count; k++)
            s = v16_fma(v16_set1((float)d->p[k]), ld(cpu_f(d->x[k]), i, i1), s);
        st(cpu_f(d->y), i, i1, s);
    }
}

void ISA_NAME(mix)(struct backend *be, const struct op_mix *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = mix_range, .n = d->n, .step = GRAIN});
}

/* One fixed block; the dot products come first because dx_i may be x_i. */
static void mix_bwd_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_mix_bwd *d = ctx;
    const float *dy = cpu_f(d->dy);
    for (int k = 0; k < d->count; k++) {
        if (part)
            part[k] = v16_dot(dy + i0, cpu_f(d->x[k]) + i0, i1 - i0);
        float *dx = cpu_f(d->dx[k]), p = (float)d->p[k];
        for (int64_t i = i0; dx && i < i1; i += 16)
            st(dx, i, i1, v16_mul(v16_set1(p), ld(dy, i, i1)));
    }
}

void ISA_NAME(mix_bwd)(struct backend *be, const struct op_mix_bwd *d)
{
    int64_t blocks = CEIL_DIV(d->n, SUM_BLOCK);
    float *part = NULL;
    if (d->dp.p && blocks) {
        part = cpu_scratch(be, (size_t)(blocks * 3) * sizeof *part);
        if (!part)
            return;
    }
    run_ranges(be, (struct ranges){.d = d, .fn = mix_bwd_range, .n = d->n, .step = SUM_BLOCK, .part = part, .width = 3});
    for (int k = 0; part && k < d->count; k++) {
        double s = 0;
        for (int64_t b = 0; b < blocks; b++)
            s += (double)part[b * 3 + k];
        cpu_f(d->dp)[k] += (float)s;
    }
}

static void axpby_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_axpby *d = ctx;
    v16 a = v16_set1((float)d->a), b = v16_set1((float)d->b);
    float *y = cpu_f(d->y);
    UNUSED(part);
    if (d->x.p)
        for (int64_t i = i0; i < i1; i += 16)
            st(y, i, i1, v16_fma(a, ld(cpu_f(d->x), i, i1), v16_mul(b, ld(y, i, i1))));
    else
        for (int64_t i = i0; i < i1; i += 16)
            st(y, i, i1, v16_mul(b, ld(y, i, i1)));
}

void ISA_NAME(axpby)(struct backend *be, const struct op_axpby *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = axpby_range, .n = d->n, .step = GRAIN});
}

static void adamw_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_adamw *d = ctx;
    const v16 b1 = v16_set1((float)d->b1), c1 = v16_set1((float)(1 - d->b1)), b2 = v16_set1((float)d->b2),
              c2 = v16_set1((float)(1 - d->b2));
    const v16 bc1 = v16_set1((float)d->bc1), bc2 = v16_set1((float)d->bc2), eps = v16_set1((float)d->eps), wd = v16_set1((float)d->wd);
    const v16 lr = v16_set1((float)-d->lr), gscale = v16_set1((float)d->gscale);
    float *wp = cpu_f(d->w), *mp = cpu_f(d->m), *vp = cpu_f(d->v), *act = cpu_f(d->w_act);
    UNUSED(part);
    for (int64_t i = i0; i < i1; i += 16) {
        v16 g = v16_mul(ld(cpu_f(d->g), i, i1), gscale), w = ld(wp, i, i1);
        v16 m = v16_fma(b1, ld(mp, i, i1), v16_mul(c1, g)), v = v16_fma(b2, ld(vp, i, i1), v16_mul(c2, v16_mul(g, g)));
        st(mp, i, i1, m);
        st(vp, i, i1, v);
        v16 step = v16_div(v16_div(m, bc1), v16_add(v16_sqrt(v16_div(v, bc2)), eps));
        w = v16_fma(lr, v16_fma(wd, w, step), w);
        st(wp, i, i1, w);
        if (act)
            st(act, i, i1, w);
    }
}

void ISA_NAME(adamw)(struct backend *be, const struct op_adamw *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = adamw_range, .n = d->n, .step = GRAIN_EXP});
}

/* A block's sum, as the double in two floats of the part. Squares are exact in double. */
static void sumsq_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_sumsq *d = ctx;
    const float *x = cpu_f(d->x);
    double s[16] = {0};
    int64_t i = i0;
    for (; i + 16 <= i1; i += 16)
        for (int l = 0; l < 16; l++)
            s[l] += (double)x[i + l] * (double)x[i + l];
    for (int l = 0; i < i1; i++, l++)
        s[l] += (double)x[i] * (double)x[i];
    for (int w = 8; w; w /= 2)
        for (int l = 0; l < w; l++)
            s[l] += s[l + w];
    memcpy(part, s, sizeof *s);
}

void ISA_NAME(sumsq)(struct backend *be, const struct op_sumsq *d)
{
    int64_t blocks = CEIL_DIV(d->n, SUM_BLOCK);
    float *part = cpu_scratch(be, (size_t)MAX(blocks, (int64_t)1) * sizeof(double));
    double sum = 0, *out = d->out.p, s;
    if (!part)
        return;
    run_ranges(be, (struct ranges){.d = d, .fn = sumsq_range, .n = d->n, .step = SUM_BLOCK, .part = part, .width = 2});
    for (int64_t b = 0; b < blocks; b++) {
        memcpy(&s, part + 2 * b, sizeof s);
        sum += s;
    }
    *out = d->accumulate ? *out + sum : sum;
}

/* ---- conversions ---- */

/* A chunk on its way, in double: exact for every type. Whole chunks have a constant count, which compilers turn into vectors. */
enum { CHUNK = 64 };
#define CONVERT(to, expr)                                                                                                                  \
    if (n == CHUNK)                                                                                                                        \
        for (int i = 0; i < CHUNK; i++)                                                                                                    \
            (to)[i] = (expr);                                                                                                              \
    else                                                                                                                                   \
        for (int i = 0; i < n; i++)                                                                                                        \
            (to)[i] = (expr);                                                                                                              \
    break

static void load_f32(float *restrict y, const void *p, enum dtype dt, int64_t at, int n)
{
    const uint16_t *h = (const uint16_t *)p + at;
    switch (dt) {
    case DT_F32:
        memcpy(y, (const float *)p + at, (size_t)n * sizeof *y);
        break;
    case DT_BF16:
        CONVERT(y, bf16_to_f32(h[i]));
    case DT_F16:
        CONVERT(y, f16_to_f32(h[i]));
    case DT_F64:
    case DT_I32:
        BUG("no float load of %s", dtype_name(dt));
    }
}

static void load_f64(double *restrict y, const void *p, enum dtype dt, int64_t at, int n)
{
    const double *f64 = (const double *)p + at;
    const int32_t *i32 = (const int32_t *)p + at;
    float t[CHUNK];
    switch (dt) {
    case DT_F64:
        memcpy(y, f64, (size_t)n * sizeof *y);
        break;
    case DT_I32:
        CONVERT(y, (double)i32[i]);
    case DT_F32:
    case DT_BF16:
    case DT_F16:
        load_f32(t, p, dt, at, n);
        CONVERT(y, (double)t[i]);
    }
}

static void store_f32(void *p, enum dtype dt, const float *restrict x, int64_t at, int n)
{
    uint16_t *h = (uint16_t *)p + at;
    double *f64 = (double *)p + at;
    int32_t *i32 = (int32_t *)p + at;
    switch (dt) {
    case DT_F32:
        memcpy((float *)p + at, x, (size_t)n * sizeof *x);
        break;
    case DT_BF16:
        CONVERT(h, f32_to_bf16(x[i]));
    case DT_F16:
        CONVERT(h, f32_to_f16(x[i]));
    case DT_F64:
        CONVERT(f64, (double)x[i]);
    case DT_I32:
        CONVERT(i32, (int32_t)x[i]);
    }
}

/* From f64 or i32. 16-bit targets round to float first, as on every backend. */
static void store_f64(void *p, enum dtype dt, const double *restrict x, int64_t at, int n)
{
    double *f64 = (double *)p + at;
    int32_t *i32 = (int32_t *)p + at;
    float t[CHUNK];
    switch (dt) {
    case DT_F64:
        memcpy(f64, x, (size_t)n * sizeof *x);
        break;
    case DT_I32:
        CONVERT(i32, (int32_t)x[i]);
    case DT_F32:
    case DT_BF16:
    case DT_F16:
        for (int i = 0; i < n; i++)
            t[i] = (float)x[i];
        store_f32(p, dt, t, at, n);
        break;
    }
}

static void cast_range(const void *ctx, float *part, int64_t i0, int64_t i1)
{
    const struct op_cast *d = ctx;
    UNUSED(part);
    if (d->src.dt == d->dst.dt) {
        size_t size = dtype_size(d->src.dt);
        memcpy((char *)d->dst.p + (size_t)i0 * size, (const char *)d->src.p + (size_t)i0 * size, (size_t)(i1 - i0) * size);
        return;
    }
    bool wide = d->src.dt == DT_F64 || d->src.dt == DT_I32;
    for (int64_t i = i0; i < i1; i += CHUNK) {
        int n = (int)MIN(i1 - i, (int64_t)CHUNK);
        if (wide) {
            double t[CHUNK];
            load_f64(t, d->src.p, d->src.dt, i, n);
            store_f64(d->dst.p, d->dst.dt, t, i, n);
        } else {
            float t[CHUNK];
            load_f32(t, d->src.p, d->src.dt, i, n);
            store_f32(d->dst.p, d->dst.dt, t, i, n);
        }
    }
}

void ISA_NAME(cast)(struct backend *be, const struct op_cast *d)
{
    run_ranges(be, (struct ranges){.d = d, .fn = cast_range, .n = d->n, .step = GRAIN});
}
