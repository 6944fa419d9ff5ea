/*
 * What one descriptor costs. FLOPs: 2 a multiply-add of the dense algorithm in ops.h, causal halves and windows counted pair by pair; maps
 * and norms with a few operations an element (an exp or a division counts as one), so that their share of the time can be seen, too. Bytes:
 * every view once, in-out views twice, embedding tables only the rows used. Re-reading inside an op is not counted: this is the floor.
 */
#include "kernels/op_views.h"

#include <math.h>
#include <string.h>

double attn_pairs(const struct seqs *s, int32_t window)
{
    double pairs = 0;
    for (int32_t i = 0; i < s->n; i++) {
        double nk = (double)seqs_kvlen(s, i), nq = (double)seqs_qlen(s, i), first = nk - nq + 1; /* keys in sight of the first query */
        if (!window || window >= nk) {
            pairs += nq * (first + nk) / 2;
            continue;
        }
        double w = (double)window, grow = first < w ? (w - first < nq ? w - first : nq) : 0; /* queries that see fewer than w keys */
        pairs += grow * (2 * first + grow - 1) / 2 + (nq - grow) * w;
    }
    return pairs;
}

double views_bytes(const struct op_views *o)
{
    double bytes = 0;
    for (int i = 0; i < o->n; i++) {
        const struct op_view *v = &o->v[i];
        if (!v->v->p)
            continue;
        double n = (double)v->rows * (double)v->width;
        bool table = (!strcmp(o->op, "embed") && !strcmp(v->name, "w")) || (!strcmp(o->op, "embed_bwd") && !strcmp(v->name, "dw"));
        if (table || !strcmp(o->op, "gather"))
            n = v->cls == VIEW_I32 ? n : (double)o->v[o->n - 1].width * (double)v->width; /* rows used: as many as there are indices */
        bytes += n * (double)dtype_size(v->v->dt) * (v->role == VIEW_INOUT ? 2 : 1);
    }
    return bytes;
}

double flops_gemm(const struct op_gemm *d)
{
    return 2.0 * (double)d->m * (double)d->n * (double)d->k + (d->bias.p ? (double)d->m * (double)d->n : 0);
}
double flops_embed(const struct op_embed *d)
{
    UNUSED(d);
    return 0;
}
double flops_embed_bwd(const struct op_embed_bwd *d)
{
    return (double)d->rows * (double)d->dim;
}
double flops_rmsnorm(const struct op_rmsnorm *d)
{
    return 4.0 * (double)d->rows * (double)d->dim;
}
double flops_rmsnorm_bwd(const struct op_rmsnorm_bwd *d)
{
    return (d->dw.p ? 10.0 : 7.0) * (double)d->rows * (double)d->dim;
}
double flops_rope(const struct op_rope *d)
{
    return 3.0 * (double)d->rows * (double)d->heads * (double)d->dim;
}
double flops_swiglu(const struct op_swiglu *d)
{
    return 5.0 * (double)d->n;
}
double flops_swiglu_bwd(const struct op_swiglu_bwd *d)
{
    return 10.0 * (double)d->n;
}

/* Full + Window in one pass: the pairs of the larger mask. */
static double pass_pairs(const struct seqs *s, int32_t window, int32_t window2, bool two)
{
    if (!two || (window && window2 && window2 < window) || !window)
        return attn_pairs(s, window);
    return attn_pairs(s, window2 && window2 < window ? window : window2);
}

double flops_attn(const struct op_attn *d)
{
    return 2.0 * (double)d->h * (double)(d->kdim + d->vdim) * pass_pairs(d->seqs, d->window, d->window2, d->o2.p != NULL);
}
double flops_attn_bwd(const struct op_attn_bwd *d)
{
    double pairs = pass_pairs(d->seqs, d->window, d->window2, d->o2.p != NULL);
    return 2.0 * (double)d->h * (double)(3 * d->kdim + 2 * d->vdim) * pairs; /* S, dQ, dK over K; dP, dV over V */
}
double flops_conv(const struct op_conv *d)
{
    return (double)d->seqs->rows * (double)d->dim * (2.0 * (double)d->width + 4);
}
double flops_conv_bwd(const struct op_conv_bwd *d)
{
    return (double)d->seqs->rows * (double)d->dim * ((d->dw.p ? 4.0 : 2.0) * (double)d->width + 6);
}
double flops_gdn_prep(const struct op_gdn_prep *d)
{
    double qk = 2.0 * (double)d->h * (double)d->kdim, v = (double)d->hv * (double)d->vdim, silu = d->silu ? 4 : 0;
    return (double)d->rows * (qk * (silu + 3) + v * silu + 10.0 * (double)d->hv);
}
double flops_gdn_prep_bwd(const struct op_gdn_prep_bwd *d)
{
    double qk = 2.0 * (double)d->h * (double)d->kdim, v = (double)d->hv * (double)d->vdim, silu = d->silu ? 8 : 0;
    return (double)d->rows * (qk * (silu + 5) + v * silu + 12.0 * (double)d->hv);
}

/* Sum over chunks of a n + b n^2 + c n^3, n = rows of the chunk. */
static double chunk_sum(const struct seqs *s, double a, double b, double c)
{
    double sum = 0;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t len = seqs_qlen(s, i), tail = len % GDN_CHUNK;
        double n = GDN_CHUNK, t = (double)tail;
        sum += (double)(len / GDN_CHUNK) * (a * n + b * n * n + c * n * n * n) + a * t + b * t * t + c * t * t * t;
    }
    return sum;
}

/* Every op counts a whole number, so that sums are exact (below 2^53) whatever was counted before: a resumed run adds up to the same. */
static double whole(double flops)
{
    return floor(flops + 0.5);
}

/* Chunk form of n rows: K S, Q S, K^T V' are 2nKV each; K K^T, Q K^T 2nnK and A W, P V' 2nnV each; the inverse 2/3 n^3. */
double flops_gdn(const struct op_gdn *d)
{
    double k = (double)d->kdim, v = (double)d->vdim;
    return whole((double)d->hv * chunk_sum(d->seqs, 6 * k * v, 4 * (k + v), 2.0 / 3));
}
/* Seven products with the state, five over K and five over V inside the chunk, two n^3; replaying the states when they were not kept: K S,
 * K^T V', A W. */
double flops_gdn_bwd(const struct op_gdn_bwd *d)
{
    double k = (double)d->kdim, v = (double)d->vdim, a = 14 * k * v, b = 10 * (k + v), c = 4;
    if (!d->hs.p) {
        a += 4 * k * v;
        b += 2 * v;
    }
    if (!d->ainv.p) {
        b += 2 * k;
        c += 2.0 / 3;
    }
    return whole((double)d->hv * chunk_sum(d->seqs, a, b, c));
}
double flops_gdn_out(const struct op_gdn_out *d)
{
    return (d->gate.p ? 9.0 : 4.0) * (double)d->rows * (double)d->hv * (double)d->vdim;
}
double flops_gdn_out_bwd(const struct op_gdn_out_bwd *d)
{
    return (d->gate.p ? 20.0 : 10.0) * (double)d->rows * (double)d->hv * (double)d->vdim;
}
double flops_mix(const struct op_mix *d)
{
    return (2.0 * d->count - 1) * (double)d->n;
}
double flops_mix_bwd(const struct op_mix_bwd *d)
{
    return (d->dp.p ? 3.0 : 1.0) * d->count * (double)d->n;
}
double flops_axpby(const struct op_axpby *d)
{
    return (d->x.p ? 3.0 : 1.0) * (double)d->n;
}
double flops_colsum(const struct op_colsum *d)
{
    return (double)d->rows * (double)d->n;
}
double flops_align_loss(const struct op_align_loss *d)
{
    return (d->ds.p ? 4.0 : 3.0) * (double)d->rows * (double)d->dim;
}
double flops_head_ce(const struct op_head_ce *d)
{
    double mv = 2.0 * (double)d->rows * (double)d->vocab * (double)d->dim;
    return mv * (1 + !!d->dh.p + !!d->dw.p) + 4.0 * (double)d->rows * (double)d->vocab;
}
double flops_head_kl(const struct op_head_kl *d)
{
    double mv = 2.0 * (double)d->rows * (double)d->vocab * (double)d->dim;
    return mv * (2 + !!d->dhs.p + !!d->dws.p) + 12.0 * (double)d->rows * (double)d->vocab;
}
double flops_topk(const struct op_topk *d)
{
    return (double)d->rows * (double)d->n; /* comparisons */
}
double flops_adamw(const struct op_adamw *d)
{
    return 14.0 * (double)d->n;
}
double flops_sumsq(const struct op_sumsq *d)
{
    return 2.0 * (double)d->n;
}
double flops_gather(const struct op_gather *d)
{
    UNUSED(d);
    return 0;
}
double flops_cast(const struct op_cast *d)
{
    return (double)d->n;
}

#define X(op)                                                                                                                              \
    struct cost cost_##op(const struct op_##op *d)                                                                                         \
    {                                                                                                                                      \
        struct op_views o;                                                                                                                 \
        views_##op(d, &o);                                                                                                                 \
        return (struct cost){flops_##op(d), views_bytes(&o)};                                                                              \
    }
BACKEND_OPS(X)
#undef X
