/* Causal softmax attention, full or windowed, one query and head at a time. */
#include "kernels/ref/ref.h"

struct attn_row {
    int64_t lo, hi; /* keys lo..hi of the sequence */
};

/* Keys in sight of query i of sequence s. */
static struct attn_row attn_sight(const struct seqs *s, int32_t seq, int64_t i, int32_t window)
{
    int64_t t = seqs_kvlen(s, seq) - seqs_qlen(s, seq) + i;
    return (struct attn_row){window > 0 && t - window + 1 > 0 ? t - window + 1 : 0, t};
}

static REAL dot(const REAL *a, const REAL *b, int64_t n)
{
    REAL sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static int64_t kv_row(const struct op_attn *d, int32_t seq, int64_t j)
{
    return seqs_kvoff(d->seqs, seq) + (d->ring > 0 ? j % d->ring : j);
}

static void attend(const struct op_attn *d, int32_t seq, int64_t i, int64_t head, int32_t window, REAL *o, REAL *lse, REAL *p)
{
    int64_t row = d->seqs->q_off[seq] + i, kvh = head / (d->h / d->g);
    int64_t ldq = d->ldq ? d->ldq : d->h * d->kdim, ldk = d->ldk ? d->ldk : d->g * d->kdim, ldv = d->ldv ? d->ldv : d->g * d->vdim;
    const REAL *q = ref_p(d->q) + row * ldq + head * d->kdim;
    struct attn_row s = attn_sight(d->seqs, seq, i, window);
    REAL max = -(REAL)INFINITY, sum = 0;
    for (int64_t j = s.lo; j <= s.hi; j++) {
        p[j] = (REAL)d->scale * dot(q, ref_p(d->k) + kv_row(d, seq, j) * ldk + kvh * d->kdim, d->kdim);
        if (p[j] > max)
            max = p[j];
    }
    for (int64_t j = s.lo; j <= s.hi; j++) {
        p[j] = ref_exp(p[j] - max);
        sum += p[j];
    }
    REAL *out = o + (row * d->h + head) * d->vdim;
    for (int64_t c = 0; c < d->vdim; c++) {
        REAL acc = 0;
        for (int64_t j = s.lo; j <= s.hi; j++)
            acc += p[j] * ref_p(d->v)[kv_row(d, seq, j) * ldv + kvh * d->vdim + c];
        out[c] = acc / sum;
    }
    if (lse)
        lse[row * d->h + head] = max + ref_log(sum);
}

struct attn_ctx {
    const struct op_attn *d;
    int32_t seq;
    REAL *scratch; /* one row of probabilities for each worker */
    int64_t keys;
};

static void attn_query(void *ctx, int64_t i, int worker)
{
    const struct attn_ctx *a = ctx;
    const struct op_attn *d = a->d;
    REAL *p = a->scratch + worker * a->keys;
    for (int64_t head = 0; head < d->h; head++) {
        attend(d, a->seq, i, head, d->window, ref_p(d->o), ref_p(d->lse), p);
        if (d->o2.p)
            attend(d, a->seq, i, head, d->window2, ref_p(d->o2), ref_p(d->lse2), p);
    }
}

void REF(attn)(struct backend *be, const struct op_attn *d)
{
    int workers = be->pool ? pool_threads(be->pool) : 1;
    for (int32_t seq = 0; seq < d->seqs->n && !be->failed; seq++) {
        struct attn_ctx a = {.d = d, .seq = seq, .keys = seqs_kvlen(d->seqs, seq)};
        a.scratch = ref_scratch(be, a.keys * workers);
        if (a.scratch)
            pool_run(be->pool, seqs_qlen(d->seqs, seq), attn_query, &a);
        free(a.scratch);
    }
}

/* One branch of the mixed output: weight p, its own window, lse and delta = d_o . o. dS = scale p P (d_o.v - delta); dV += p P d_o. */
static void attn_bwd_row(const struct op_attn_bwd *d, int32_t seq, int64_t i, int64_t head, int32_t window, REAL p, REAL lse, REAL delta)
{
    int64_t first = d->seqs->q_off[seq], row = first + i, kvh = head / (d->h / d->g);
    int64_t ldq = d->ldq ? d->ldq : d->h * d->kdim, ldk = d->ldk ? d->ldk : d->g * d->kdim, ldv = d->ldv ? d->ldv : d->g * d->vdim;
    const REAL *q = ref_p(d->q) + row * ldq + head * d->kdim, *g = ref_p(d->d_o) + (row * d->h + head) * d->vdim;
    REAL *dq = ref_p(d->dq) + row * ldq + head * d->kdim;
    struct attn_row s = attn_sight(d->seqs, seq, i, window);
    for (int64_t j = s.lo; j <= s.hi; j++) {
        const REAL *k = ref_p(d->k) + (first + j) * ldk + kvh * d->kdim, *v = ref_p(d->v) + (first + j) * ldv + kvh * d->vdim;
        REAL *dk = ref_p(d->dk) + (first + j) * ldk + kvh * d->kdim, *dv = ref_p(d->dv) + (first + j) * ldv + kvh * d->vdim;
        REAL prob = ref_exp((REAL)d->scale * dot(q, k, d->kdim) - lse), ds = (REAL)d->scale * p * prob * (dot(g, v, d->vdim) - delta);
        for (int64_t c = 0; c < d->kdim; c++) {
            dq[c] += ds * k[c];
            dk[c] += ds * q[c];
        }
        for (int64_t c = 0; c < d->vdim; c++)
            dv[c] += p * prob * g[c];
    }
}

static void zero_rows(REAL *p, int64_t rows, int64_t width, int64_t ld)
{
    for (int64_t r = 0; r < rows; r++)
        memset(p + r * (ld ? ld : width), 0, (size_t)width * sizeof *p);
}

void REF(attn_bwd)(struct backend *be, const struct op_attn_bwd *d)
{
    UNUSED(be);
    zero_rows(ref_p(d->dq), d->seqs->rows, d->h * d->kdim, d->ldq);
    zero_rows(ref_p(d->dk), d->seqs->rows, d->g * d->kdim, d->ldk);
    zero_rows(ref_p(d->dv), d->seqs->rows, d->g * d->vdim, d->ldv);
    REAL dp[2] = {0, 0};
    for (int32_t seq = 0; seq < d->seqs->n; seq++)
        for (int64_t i = 0; i < seqs_qlen(d->seqs, seq); i++)
            for (int64_t head = 0; head < d->h; head++) {
                int64_t at = (d->seqs->q_off[seq] + i) * d->h + head;
                REAL delta = dot(ref_p(d->d_o) + at * d->vdim, ref_p(d->o) + at * d->vdim, d->vdim);
                dp[0] += delta;
                attn_bwd_row(d, seq, i, head, d->window, (REAL)d->p1, ref_p(d->lse)[at], delta);
                if (!d->o2.p)
                    continue;
                delta = dot(ref_p(d->d_o) + at * d->vdim, ref_p(d->o2) + at * d->vdim, d->vdim);
                dp[1] += delta;
                attn_bwd_row(d, seq, i, head, d->window2, (REAL)d->p2, ref_p(d->lse2)[at], delta);
            }
    if (d->dp.p)
        for (int b = 0; b < (d->o2.p ? 2 : 1); b++)
            ref_p(d->dp)[b] += dp[b];
}
