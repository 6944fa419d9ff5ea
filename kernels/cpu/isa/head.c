/*
 * Linear heads fused with a loss, and top-k. A block of rows at a time: its logits by the matrix product (HEAD_BYTES bounds them), one
 * row's softmax on one thread, then dh = dz W and dW += dz^T h by the matrix product, whose chains go on over the blocks: block sizes do
 * not show in the bits. Rows without a part in the result are left out.
 */
#include "kernels/cpu/isa/vmath.h"

static const int64_t HEAD_BYTES = 64 << 20;
enum { SUM_BLOCK = 1024, MAX_BLOCK_ROWS = 1024 };

/* Rows taken together and what they need. Arrays of the block: h, dh, t [rows, dim]; z, zt [rows, vocab]; idx: the active rows of the op.
 */
struct head {
    struct backend *be;
    int64_t rows, dim, vocab, n_active, block;
    int32_t *idx;
    float *h, *ht, *dh, *z, *zt, *diff;
    const struct op_head_ce *ce;
    const struct op_head_kl *kl;
    int64_t first; /* active row number of the block's first row */
    bool grad;
};

static void product(struct backend *be, float *c, const float *a, const float *b, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                    bool accumulate)
{
    ISA_NAME(gemm)
    (be, &(struct op_gemm){.c = {c, DT_F32, m * n},
                           .a = {(void *)(uintptr_t)a, DT_F32, m * k},
                           .b = {(void *)(uintptr_t)b, DT_F32, n * k},
                           .m = m,
                           .n = n,
                           .k = k,
                           .ta = ta,
                           .tb = tb,
                           .accumulate = accumulate});
}

static int64_t padded(int64_t floats)
{
    return CEIL_DIV(floats, 16) * 16;
}

/* One allocation for everything; false without memory. logits: 1 or 2 sets. */
static bool head_open(struct head *x, int logits)
{
    int64_t fit = HEAD_BYTES / (int64_t)sizeof(float) / (x->vocab * logits);
    x->block = MIN(MIN(MAX(fit / 16 * 16, (int64_t)16), (int64_t)MAX_BLOCK_ROWS), MAX(x->rows, (int64_t)1));
    int64_t hidden = padded(x->block * x->dim), z = padded(x->block * x->vocab), diff = padded(x->vocab), idx = padded(x->rows);
    int workers = cpu_workers(x->be);
    float *p = cpu_scratch(x->be, (size_t)(idx + 3 * hidden + logits * z + (logits == 2 ? workers * diff : 0)) * sizeof *p);
    if (!p)
        return false;
    x->idx = (int32_t *)(void *)p;
    x->h = p + idx;
    x->ht = x->h + hidden;
    x->dh = x->ht + hidden;
    x->z = x->dh + hidden;
    x->zt = x->z + z;
    x->diff = x->zt + z;
    return true;
}

/* The block's rows of src: in place when they are consecutive, else copied to buf. */
static const float *take(const struct head *x, const float *src, float *buf, int64_t n)
{
    const int32_t *idx = x->idx + x->first;
    if (idx[n - 1] - idx[0] == n - 1)
        return src + idx[0] * x->dim;
    for (int64_t i = 0; i < n; i++)
        memcpy(buf + i * x->dim, src + idx[i] * x->dim, (size_t)x->dim * sizeof *buf);
    return buf;
}

/* dh (may be NULL) = dz W for the block's rows, dw (may be NULL) += dz^T h. */
static void gradients(const struct head *x, const float *h, const float *w, float *dh, float *dw, int64_t n)
{
    const int32_t *idx = x->idx + x->first;
    if (dh) {
        bool direct = idx[n - 1] - idx[0] == n - 1;
        product(x->be, direct ? dh + idx[0] * x->dim : x->dh, x->z, w, n, x->dim, x->vocab, false, false, false);
        for (int64_t i = 0; !direct && i < n; i++)
            memcpy(dh + idx[i] * x->dim, x->dh + i * x->dim, (size_t)x->dim * sizeof *dh);
    }
    if (dw)
        product(x->be, dw, x->z, h, x->vocab, x->dim, n, true, false, true);
}

static float row_max(const float *z, int64_t n)
{
    v16 m = v16_set1(-INFINITY);
    LANES(v, n)
    m = v16_max(n - v >= 16 ? v16_load(z + v) : v16_select(v16_lt(v16_iota(), v16_set1((float)(n - v))), ld(z, v, n), v16_set1(-INFINITY)),
                m);
    return v16_hmax(m);
}

/* Replaces z by e^((z - max) scale) and returns the sum: blocks of SUM_BLOCK in float, blocks in double. Lanes beyond n count 0. */
static double exp_sum(float *e, const float *z, int64_t n, float max, float scale)
{
    v16 mv = v16_set1(max), sv = v16_set1(scale);
    double total = 0;
    for (int64_t b = 0; b < n; b += SUM_BLOCK) {
        int64_t end = MIN(b + SUM_BLOCK, n);
        v16 sum = v16_zero();
        for (int64_t v = b; v < end; v += 16) {
            v16 x = v16_exp(v16_mul(v16_sub(ld(z, v, end), mv), sv));
            if (end - v < 16)
                x = v16_select(v16_lt(v16_iota(), v16_set1((float)(end - v))), x, v16_zero());
            st(e, v, end, x);
            sum = v16_add(sum, x);
        }
        total += (double)v16_hsum(sum);
    }
    return total;
}

/* ---- cross-entropy ---- */

static void ce_row(void *ctx, int64_t i, int worker)
{
    const struct head *x = ctx;
    const struct op_head_ce *d = x->ce;
    int64_t r = x->idx[x->first + i], n = x->vocab;
    int32_t target = cpu_i(d->target)[r];
    float *z = x->z + i * n, max = row_max(z, n), weight = d->wt.p ? cpu_f(d->wt)[r] : 1.0f;
    UNUSED(worker);
    if (d->best.p) {
        int64_t best = 0;
        while (best < n - 1 && z[best] != max)
            best++;
        ((int32_t *)d->best.p)[r] = z[best] == max ? (int32_t)best : 0;
    }
    if (target < 0) {
        if (x->grad)
            memset(z, 0, (size_t)n * sizeof *z);
        return;
    }
    float zt = z[target];
    double sum = exp_sum(z, z, n, max, 1.0f);
    cpu_f(d->lp)[r] = zt - max - f32_log((float)sum);
    if (!x->grad)
        return;
    float p = (float)((double)z[target] / sum);
    v16 f = v16_set1((float)((double)weight / sum));
    LANES(v, n) st(z, v, n, v16_mul(ld(z, v, n), f));
    z[target] = weight * (p - 1.0f);
}

void ISA_NAME(head_ce)(struct backend *be, const struct op_head_ce *d)
{
    struct head x = {.be = be, .rows = d->rows, .dim = d->dim, .vocab = d->vocab, .ce = d, .grad = d->dh.p || d->dw.p};
    if (!d->rows || !head_open(&x, 1))
        return;
    for (int64_t r = 0; r < d->rows; r++) {
        cpu_f(d->lp)[r] = 0;
        if (d->best.p || cpu_i(d->target)[r] >= 0)
            x.idx[x.n_active++] = (int32_t)r;
        else if (d->dh.p)
            memset(cpu_f(d->dh) + r * d->dim, 0, (size_t)d->dim * sizeof(float));
    }
    for (; x.first < x.n_active && !be->failed; x.first += x.block) {
        int64_t n = MIN(x.block, x.n_active - x.first);
        const float *h = take(&x, cpu_f(d->h), x.h, n);
        product(be, x.z, h, cpu_f(d->w), n, d->vocab, d->dim, false, true, false);
        if (be->failed)
            return;
        pool_run(be->pool, n, ce_row, &x);
        gradients(&x, h, cpu_f(d->w), cpu_f(d->dh), cpu_f(d->dw), n);
    }
}

/* ---- KL(teacher || student) ---- */

/*
 * pt = e^xt, ps = e^xs, r = xs - xt = (zs - zt) / tau - (lse_s - lse_t): the difference of logits is taken first, so that near heads lose
 * nothing and equal ones give 0. Term pt (e^r - 1 - r): by the polynomial for |r| <= ln2/2 (no cancellation), else ps - pt - pt r. Gradient
 * ps - pt in the same two ways. All terms are >= 0.
 */
static void kl_row(void *ctx, int64_t i, int worker)
{
    const struct head *x = ctx;
    const struct op_head_kl *d = x->kl;
    int64_t r = x->idx[x->first + i], n = x->vocab;
    float *zs = x->z + i * n, *zt = x->zt + i * n, *diff = x->diff + worker * padded(n);
    float inv = (float)(1.0 / d->tau), weight = d->wt.p ? cpu_f(d->wt)[r] : 1.0f, ms = row_max(zs, n), mt = row_max(zt, n);
    LANES(v, n) st(diff, v, n, v16_mul(v16_sub(ld(zs, v, n), ld(zt, v, n)), v16_set1(inv)));
    double ss = exp_sum(zs, zs, n, ms, inv), st_ = exp_sum(zt, zt, n, mt, inv), total = 0;
    v16 shift = v16_set1((ms - mt) * inv + f32_log((float)(ss / st_))), fs = v16_set1((float)(1.0 / ss)), ft = v16_set1((float)(1.0 / st_));
    v16 wv = v16_set1(weight * (float)d->tau), limit = v16_set1(EXP_Q_MAX);
    for (int64_t b = 0; b < n; b += SUM_BLOCK) {
        int64_t end = MIN(b + SUM_BLOCK, n);
        v16 sum = v16_zero();
        for (int64_t v = b; v < end; v += 16) {
            v16 pt = v16_mul(ld(zt, v, end), ft), ps = v16_mul(ld(zs, v, end), fs), dr = v16_sub(ld(diff, v, end), shift);
            m16 far = v16_lt(limit, v16_abs(dr));
            v16 q = v16_mul(v16_mul(dr, dr), v16_exp_q(dr)), step = v16_sub(ps, pt);
            v16 term = v16_select(far, v16_sub(step, v16_mul(pt, dr)), v16_mul(pt, q));
            sum = v16_add(sum, v16_max(v16_zero(), term)); /* in this order: a NaN stays one */
            if (x->grad)
                st(zs, v, end, v16_mul(wv, v16_select(far, step, v16_mul(pt, v16_add(dr, q)))));
        }
        total += (double)v16_hsum(sum);
    }
    cpu_f(d->kl)[r] = (float)(d->tau * d->tau * total);
    if (x->grad && weight == 0)
        memset(zs, 0, (size_t)n * sizeof *zs);
}

void ISA_NAME(head_kl)(struct backend *be, const struct op_head_kl *d)
{
    struct head x = {.be = be, .rows = d->rows, .dim = d->dim, .vocab = d->vocab, .kl = d, .grad = d->dhs.p || d->dws.p};
    if (!d->rows || !head_open(&x, 2))
        return;
    for (int64_t r = 0; r < d->rows; r++) {
        cpu_f(d->kl)[r] = 0;
        if (!d->skip_masked || !d->wt.p || cpu_f(d->wt)[r] != 0)
            x.idx[x.n_active++] = (int32_t)r;
        else if (d->dhs.p)
            memset(cpu_f(d->dhs) + r * d->dim, 0, (size_t)d->dim * sizeof(float));
    }
    for (; x.first < x.n_active && !be->failed; x.first += x.block) {
        int64_t n = MIN(x.block, x.n_active - x.first);
        const float *hs = take(&x, cpu_f(d->hs), x.h, n), *ht = take(&x, cpu_f(d->ht), x.ht, n);
        product(be, x.z, hs, cpu_f(d->ws), n, d->vocab, d->dim, false, true, false);
        product(be, x.zt, ht, cpu_f(d->wt_head), n, d->vocab, d->dim, false, true, false);
        if (be->failed)
            return;
        pool_run(be->pool, n, kl_row, &x);
        gradients(&x, hs, cpu_f(d->ws), cpu_f(d->dhs), cpu_f(d->dws), n);
    }
}

/* ---- top-k ---- */

struct top {
    int64_t k, count;
    float val[64];
    int32_t id[64];
};

/* Ids come in ascending order, so an equal value goes behind. */
static void top_offer(struct top *t, float z, int32_t id)
{
    if (t->count == t->k) {
        if (!(z > t->val[t->k - 1]))
            return;
    } else
        t->count++;
    int64_t i = t->count - 1;
    for (; i > 0 && z > t->val[i - 1]; i--) {
        t->val[i] = t->val[i - 1];
        t->id[i] = t->id[i - 1];
    }
    t->val[i] = z;
    t->id[i] = id;
}

static void topk_rows(const void *ctx, float *part, int64_t r0, int64_t r1)
{
    const struct op_topk *d = ctx;
    UNUSED(part);
    for (int64_t r = r0; r < r1; r++) {
        const float *z = cpu_f(d->z) + r * d->n;
        struct top t = {.k = d->k};
        int64_t j = 0;
        for (; j < d->n && (t.count < d->k || j % 64); j++)
            top_offer(&t, z[j], (int32_t)j);
        for (; j + 64 <= d->n; j += 64) { /* most blocks hold nothing above the last pick */
            v16 m = v16_max(v16_max(v16_load(z + j), v16_load(z + j + 16)), v16_max(v16_load(z + j + 32), v16_load(z + j + 48)));
            if (v16_hmax(m) > t.val[t.k - 1])
                for (int64_t i = j; i < j + 64; i++)
                    top_offer(&t, z[i], (int32_t)i);
        }
        for (; j < d->n; j++)
            top_offer(&t, z[j], (int32_t)j);
        memcpy((int32_t *)d->ids.p + r * d->k, t.id, (size_t)d->k * sizeof *t.id);
        if (d->vals.p)
            memcpy(cpu_f(d->vals) + r * d->k, t.val, (size_t)d->k * sizeof *t.val);
    }
}

void ISA_NAME(topk)(struct backend *be, const struct op_topk *d)
{
    if (d->k)
        run_ranges(be, (struct ranges){.d = d, .fn = topk_rows, .n = d->rows, .step = rows_of(GRAIN, d->n)});
}
