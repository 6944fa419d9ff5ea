/* Matrix product, embedding, column sums, row copies, conversions. */
#include "kernels/half.h"
#include "kernels/ref/ref.h"

struct gemm_ctx {
    const struct op_gemm *d;
    int64_t a_row, a_k, b_k, b_col, ldc; /* strides of one step along each index */
};

static void gemm_row(void *ctx, int64_t i, int worker)
{
    UNUSED(worker);
    const struct gemm_ctx *g = ctx;
    const struct op_gemm *d = g->d;
    const REAL *a = ref_p(d->a), *b = ref_p(d->b), *bias = ref_p(d->bias);
    REAL *c = ref_p(d->c);
    for (int64_t j = 0; j < d->n; j++) {
        REAL sum = d->accumulate ? c[i * g->ldc + j] : 0;
        for (int64_t p = 0; p < d->k; p++)
            sum += a[i * g->a_row + p * g->a_k] * b[p * g->b_k + j * g->b_col];
        c[i * g->ldc + j] = bias ? sum + bias[j] : sum;
    }
}

void REF(gemm)(struct backend *be, const struct op_gemm *d)
{
    int64_t lda = d->lda ? d->lda : d->ta ? d->m : d->k, ldb = d->ldb ? d->ldb : d->tb ? d->k : d->n;
    struct gemm_ctx g = {.d = d, .ldc = d->ldc ? d->ldc : d->n};
    g.a_row = d->ta ? 1 : lda;
    g.a_k = d->ta ? lda : 1;
    g.b_k = d->tb ? 1 : ldb;
    g.b_col = d->tb ? ldb : 1;
    pool_run(be->pool, d->m, gemm_row, &g);
}

void REF(embed)(struct backend *be, const struct op_embed *d)
{
    UNUSED(be);
    const int32_t *id = ref_i32(d->ids);
    for (int64_t r = 0; r < d->rows; r++)
        memcpy(ref_p(d->y) + r * d->dim, ref_p(d->w) + id[r] * d->dim, (size_t)d->dim * sizeof(REAL));
}

void REF(embed_bwd)(struct backend *be, const struct op_embed_bwd *d)
{
    UNUSED(be);
    const int32_t *id = ref_i32(d->ids);
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t j = 0; j < d->dim; j++)
            ref_p(d->dw)[id[r] * d->dim + j] += ref_p(d->dy)[r * d->dim + j];
}

void REF(colsum)(struct backend *be, const struct op_colsum *d)
{
    UNUSED(be);
    int64_t ld = d->ldx ? d->ldx : d->n;
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t j = 0; j < d->n; j++)
            ref_p(d->y)[j] += ref_p(d->x)[r * ld + j];
}

void REF(gather)(struct backend *be, const struct op_gather *d)
{
    UNUSED(be);
    size_t size = dtype_size(d->dst.dt);
    int64_t ldd = d->ldd ? d->ldd : d->dim, lds = d->lds ? d->lds : d->dim;
    const int32_t *di = ref_i32(d->di), *si = ref_i32(d->si);
    for (int64_t r = 0; r < d->rows; r++)
        memcpy((char *)d->dst.p + (size_t)((di ? di[r] : r) * ldd) * size, (const char *)d->src.p + (size_t)((si ? si[r] : r) * lds) * size,
               (size_t)d->dim * size);
}

static double load_as_f64(struct view v, int64_t i)
{
    switch (v.dt) {
    case DT_F32:
        return (double)((const float *)v.p)[i];
    case DT_F64:
        return ((const double *)v.p)[i];
    case DT_BF16:
        return (double)bf16_to_f32(((const uint16_t *)v.p)[i]);
    case DT_F16:
        return (double)f16_to_f32(((const uint16_t *)v.p)[i]);
    case DT_I32:
        return (double)((const int32_t *)v.p)[i];
    }
    return 0;
}

/* 16-bit targets round to float first, as every backend does: from f64 that may differ from one rounding in the last bit. */
static void store_f64(struct view v, int64_t i, double x)
{
    switch (v.dt) {
    case DT_F32:
        ((float *)v.p)[i] = (float)x;
        break;
    case DT_F64:
        ((double *)v.p)[i] = x;
        break;
    case DT_BF16:
        ((uint16_t *)v.p)[i] = f32_to_bf16((float)x);
        break;
    case DT_F16:
        ((uint16_t *)v.p)[i] = f32_to_f16((float)x);
        break;
    case DT_I32:
        ((int32_t *)v.p)[i] = (int32_t)x;
        break;
    }
}

void REF(cast)(struct backend *be, const struct op_cast *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->n; i++)
        store_f64(d->dst, i, load_as_f64(d->src, i));
}
