/*
 * Causal softmax attention, forward. Lanes are queries: for 64 queries of one head, S^T[key][query] = K Q^T and O^T[dim][query] += V^T
 * P^T, so that maximum, sum and rescaling go along the vector file without horizontal steps, and K and V are read in place by
 * broadcasts. A step with few queries turns it round: lanes are keys. Both do the same arithmetic on each (query, key), and blocks of 64
 * keys lie at fixed positions of the sequence and are taken from the newest to the oldest, so that a query's output has the same bits
 * alone, in a batch, in one prefill or token by token. A block out of a query's sight changes nothing: its factor is exp(0) = 1.
 *
 * Two windows in one pass: the smaller one is a prefix of this order. Its state is emitted when the last of its keys is in, then the
 * older keys go on from there.
 */
#include "kernels/cpu/isa/attn.h"

#include <math.h>

#define BLOCK ATTN_BLOCK
#define STEP_ROWS 16    /* queries x heads of a kv head up to which lanes are keys */
#define NO_MAX (-1e38f) /* below every score, and finite: NO_MAX - NO_MAX is 0 */

/* Up to 64 queries of one head. Matrices are [rows][64]; a column is a query. */
struct group {
    struct attn_kv kv;
    int nq, nv;    /* queries, vectors of queries */
    int64_t first; /* position of query 0 in its sequence */
    float *qt;     /* [kdim] scaled queries */
    float *ot;     /* [vdim] running numerators */
    float *s;      /* [64 keys] scores, then probabilities */
    float *max, *sum, *alpha;
};

/* Scores out of sight become -inf. d is the position of key row 0 relative to the queries' first lane. */
static void group_mask(float *s, int lo, int hi, int64_t d, struct attn_sight sight)
{
    v16 lane = v16_iota(), inf = v16_set1(-INFINITY);
    for (int j = lo; j < hi; j++) {
        v16 back = v16_sub(lane, v16_set1((float)(d + j))); /* how far the key lies behind the query; exact below 2^24 */
        v16 x = v16_load(s + j * BLOCK);
        x = v16_select(v16_lt(back, v16_set1((float)sight.skip)), inf, x);
        if (sight.wide)
            x = v16_select(v16_lt(back, v16_set1((float)sight.wide)), x, inf);
        v16_store(s + j * BLOCK, x);
    }
}

/* Scores of key rows lo..hi-1 of a block to probabilities, for 16 queries. The sum over keys is 16 partial sums (key mod 16) and a tree. */
static void group_softmax(const struct group *x, int v, int lo, int hi)
{
    float *s = x->s + 16 * v;
    v16 old = v16_load(x->max + 16 * v), max = old, part[16];
    for (int j = lo; j < hi; j++)
        max = v16_max(max, v16_load(s + j * BLOCK));
    for (int r = 0; r < 16; r++) {
        v16 sum = v16_zero();
        for (int j = lo + ((r - lo) & 15); j < hi; j += 16) {
            v16 p = tile_exp(v16_sub(v16_load(s + j * BLOCK), max));
            v16_store(s + j * BLOCK, p);
            sum = v16_add(sum, p);
        }
        part[r] = sum;
    }
    for (int n = 8; n; n /= 2)
        for (int r = 0; r < n; r++)
            part[r] = v16_add(part[r], part[r + n]);
    v16 alpha = tile_exp(v16_sub(old, max));
    v16_store(x->max + 16 * v, max);
    v16_store(x->alpha + 16 * v, alpha);
    v16_store(x->sum + 16 * v, v16_fma(v16_load(x->sum + 16 * v), alpha, part[0]));
}

/* Key rows lo..hi-1 of the block at key j0 for vectors v..v+nv-1. */
static void group_block(const struct group *x, int64_t j0, int lo, int hi, int v, int nv, bool masked, struct attn_sight sight)
{
    struct attn_rows kv = attn_rows_at(&x->kv, j0 + lo, hi - lo);
    float *s = x->s + lo * BLOCK + 16 * v;
    struct tile t = {.c = s, .ldc = BLOCK, .a = kv.k, .rs = kv.ldk, .cs = 1, .b = x->qt + 16 * v, .ldb = BLOCK, .m = hi - lo, .nv = nv,
                     .k = x->kv.kdim};
    tile_run(&t, TILE_ZERO);
    for (int i = v; i < v + nv; i++) {
        if (masked)
            group_mask(x->s + 16 * i, lo, hi, j0 - x->first - 16 * i, sight);
        group_softmax(x, i, lo, hi);
    }
    t = (struct tile){.c = x->ot + 16 * v, .ldc = BLOCK, .a = kv.v, .rs = 1, .cs = kv.ldv, .b = s, .ldb = BLOCK, .m = x->kv.vdim, .nv = nv,
                      .k = hi - lo, .lanes = x->alpha + 16 * v};
    tile_run(&t, TILE_LANES);
}

static void group_pass(const struct group *x, struct attn_sight sight)
{
    int64_t last = x->first + x->nq - 1, newest = last - sight.skip;
    if (newest < 0)
        return;
    for (int64_t b = newest / BLOCK; b >= attn_first_key(sight, x->first) / BLOCK; b--) {
        int64_t j0 = b * BLOCK;
        if (j0 + BLOCK - 1 <= x->first - sight.skip && j0 >= attn_first_key(sight, last)) {
            group_block(x, j0, 0, BLOCK, 0, x->nv, false, sight);
            continue;
        }
        for (int v = 0; v < x->nv; v++) { /* an edge of the mask: vector by vector, only the rows that one of its queries sees */
            int64_t a = x->first + 16 * v, z = MIN(a + 15, last);
            int64_t lo = MAX(attn_first_key(sight, a) - j0, 0), hi = MIN(z - sight.skip + 1 - j0, BLOCK);
            if (lo < hi)
                group_block(x, j0, (int)lo, (int)hi, v, 1, true, sight);
        }
    }
}

/* out[query][vdim], row stride ldo; lse [query], row stride heads. */
static void group_emit(const struct group *x, float *out, int64_t ldo, float *lse, int64_t heads)
{
    float inv[BLOCK];
    for (int v = 0; v < x->nv; v++) {
        v16 sum = v16_load(x->sum + 16 * v);
        v16_store(inv + 16 * v, v16_div(v16_set1(1), sum));
        if (lse)
            v16_store(x->alpha + 16 * v, v16_add(v16_load(x->max + 16 * v), tile_log(sum)));
    }
    tile_transpose_lanes(out, ldo, x->ot, BLOCK, inv, x->nq, x->kv.vdim);
    for (int i = 0; lse && i < x->nq; i++)
        lse[i * heads] = x->alpha[i];
}

struct job {
    const struct op_attn *d;
    int64_t ldq, ldk, ldv;
    const int64_t *first; /* [n + 1] first item of each sequence */
    float *scratch;
    size_t scratch_floats; /* for each worker */
    struct attn_sight sight[2];
    bool swapped; /* the smaller window is the second output */
};

static bool is_step(const struct op_attn *d, int32_t seq)
{
    return seqs_qlen(d->seqs, seq) * (d->h / d->g) <= STEP_ROWS;
}

static struct attn_kv job_kv(const struct job *j, int32_t seq, int64_t g, float **scratch)
{
    const struct op_attn *d = j->d;
    int64_t row = seqs_kvoff(d->seqs, seq);
    struct attn_kv x = {.k = (const float *)d->k.p + row * j->ldk + g * d->kdim, .v = (const float *)d->v.p + row * j->ldv + g * d->vdim,
                        .ldk = j->ldk, .ldv = j->ldv, .ring = d->ring, .kdim = (int)d->kdim, .vdim = (int)d->vdim};
    if (d->ring) {
        x.copy_k = *scratch;
        x.copy_v = *scratch + BLOCK * d->kdim;
        *scratch += BLOCK * (d->kdim + d->vdim);
    }
    return x;
}

/* Queries 64 b .. of head `head`. */
static void prefill_item(const struct job *j, int32_t seq, int64_t b, int64_t head, float *scratch)
{
    const struct op_attn *d = j->d;
    int64_t nq = seqs_qlen(d->seqs, seq), row = d->seqs->q_off[seq] + b * BLOCK, at = row * d->h + head;
    struct group x = {.nq = (int)MIN(nq - b * BLOCK, BLOCK), .first = seqs_kvlen(d->seqs, seq) - nq + b * BLOCK};
    x.kv = job_kv(j, seq, head / (d->h / d->g), &scratch);
    x.nv = CEIL_DIV(x.nq, 16);
    x.s = scratch;
    x.qt = x.s + BLOCK * BLOCK;
    x.ot = x.qt + BLOCK * d->kdim;
    x.max = x.ot + BLOCK * d->vdim;
    x.sum = x.max + BLOCK;
    x.alpha = x.sum + BLOCK;
    tile_transpose(x.qt, BLOCK, (const float *)d->q.p + row * j->ldq + head * d->kdim, j->ldq, x.nq, (int)d->kdim, (float)d->scale);
    memset(x.ot, 0, (size_t)(BLOCK * d->vdim) * sizeof(float));
    for (int i = 0; i < BLOCK; i++) {
        x.max[i] = NO_MAX;
        x.sum[i] = 0;
    }
    float *o[2] = {d->o.p, d->o2.p}, *lse[2] = {d->lse.p, d->lse2.p};
    for (int pass = 0; pass < (d->o2.p ? 2 : 1); pass++) {
        int out = pass ^ (int)j->swapped;
        if (!pass || j->sight[1].skip)
            group_pass(&x, j->sight[pass]);
        group_emit(&x, o[out] + at * d->vdim, d->h * d->vdim, lse[out] ? lse[out] + at : NULL, d->h);
    }
}

/* A few queries of all heads of one kv head: lanes are keys. Row r is query r / rep of head r % rep. */
struct step {
    struct attn_kv kv;
    int rows, rep, vp; /* vp: vdim rounded up to whole vectors */
    int64_t first;
    float *q;  /* [rows][kdim] scaled */
    float *kt; /* [kdim][64] */
    float *vb; /* [64][vp], used when vdim is no multiple of 16 */
    float *s;  /* [rows][64] */
    float *o;  /* [rows][vp] */
    float max[STEP_ROWS], sum[STEP_ROWS];
};

/* The same arithmetic as group_softmax for one query, 64 keys at once: keys lo..hi-1 are in sight, vectors v0..v1-1 hold scores. */
static void step_softmax(struct step *x, int r, int lo, int hi, int v0, int v1)
{
    float *s = x->s + r * BLOCK;
    v16 top = v16_set1(NO_MAX), part = v16_zero(), low = v16_set1((float)lo), high = v16_set1((float)hi);
    for (int v = v0; v < v1; v++) {
        v16 j = v16_add(v16_iota(), v16_set1((float)(16 * v))), y = v16_load(s + 16 * v);
        y = v16_select(v16_lt(j, high), y, v16_set1(-INFINITY));
        y = v16_select(v16_lt(j, low), v16_set1(-INFINITY), y);
        v16_store(s + 16 * v, y);
        top = v16_max(top, y);
    }
    float old = x->max[r], max = v16_hmax(top);
    max = max > old ? max : old;
    v16 m = v16_set1(max);
    for (int v = v0; v < v1; v++) {
        v16 p = tile_exp(v16_sub(v16_load(s + 16 * v), m));
        v16_store(s + 16 * v, p);
        part = v16_add(part, p);
    }
    v16 alpha = tile_exp(v16_sub(v16_set1(old), m)), sum = v16_fma(v16_set1(x->sum[r]), alpha, v16_set1(v16_hsum(part)));
    x->max[r] = max;
    x->sum[r] = v16_first(sum);
    for (int c = 0; c < x->vp; c += 16)
        v16_store(x->o + r * x->vp + c, v16_mul(v16_load(x->o + r * x->vp + c), alpha));
}

static void step_block(struct step *x, int64_t j0, int lo, int hi, struct attn_sight sight)
{
    int v0 = lo / 16, v1 = CEIL_DIV(hi, 16), from = 16 * v0, kdim = x->kv.kdim, vdim = x->kv.vdim;
    struct attn_rows kv = attn_rows_at(&x->kv, j0 + from, hi - from);
    tile_transpose(x->kt + from, BLOCK, kv.k, kv.ldk, hi - from, kdim, 1);
    struct tile t = {.c = x->s + from, .ldc = BLOCK, .a = x->q, .rs = kdim, .cs = 1, .b = x->kt + from, .ldb = BLOCK, .m = x->rows,
                     .nv = v1 - v0, .k = kdim};
    tile_run(&t, TILE_ZERO);
    for (int r = 0; r < x->rows; r++) {
        int64_t at = x->first + r / x->rep;
        int64_t a = MAX(attn_first_key(sight, at) - j0, lo), z = MIN(at - sight.skip + 1 - j0, hi);
        step_softmax(x, r, (int)a, (int)MAX(z, a), v0, v1);
    }
    t = (struct tile){.c = x->o, .ldc = x->vp, .a = x->s + lo, .rs = BLOCK, .cs = 1, .b = kv.v + (lo - from) * kv.ldv, .ldb = kv.ldv,
                      .m = x->rows, .nv = x->vp / 16, .k = hi - lo};
    if (x->vp != vdim) {
        tile_pad(x->vb, x->vp, t.b, kv.ldv, hi - lo, vdim);
        t.b = x->vb;
        t.ldb = x->vp;
    }
    tile_run(&t, TILE_ADD);
}

static void step_pass(struct step *x, struct attn_sight sight)
{
    int64_t newest = x->first + (x->rows - 1) / x->rep - sight.skip, oldest = attn_first_key(sight, x->first);
    for (int64_t b = newest >= 0 ? newest / BLOCK : -1; b >= oldest / BLOCK; b--)
        step_block(x, b * BLOCK, (int)MAX(oldest - b * BLOCK, 0), (int)MIN(newest + 1 - b * BLOCK, BLOCK), sight);
}

static void step_emit(const struct step *x, float *out, int64_t ldo, float *lse, int64_t heads)
{
    for (int r = 0; r < x->rows; r++) {
        v16 sum = v16_set1(x->sum[r]), inv = v16_div(v16_set1(1), sum);
        float *to = out + r / x->rep * ldo + r % x->rep * x->kv.vdim;
        for (int c = 0; c < x->vp; c += 16)
            v16_store_n(to + c, v16_mul(v16_load(x->o + r * x->vp + c), inv), MIN(x->kv.vdim - c, 16));
        if (lse)
            lse[r / x->rep * heads + r % x->rep] = x->max[r] + v16_first(tile_log(sum));
    }
}

static void step_item(const struct job *j, int32_t seq, int64_t g, float *scratch)
{
    const struct op_attn *d = j->d;
    int nq = seqs_qlen(d->seqs, seq), rep = (int)(d->h / d->g), kdim = (int)d->kdim;
    int64_t row = d->seqs->q_off[seq], at = row * d->h + g * rep;
    struct step x = {.rows = nq * rep, .rep = rep, .vp = CEIL_DIV((int)d->vdim, 16) * 16, .first = seqs_kvlen(d->seqs, seq) - nq};
    x.kv = job_kv(j, seq, g, &scratch);
    x.s = scratch;
    x.kt = x.s + STEP_ROWS * BLOCK;
    x.vb = x.kt + BLOCK * kdim;
    x.o = x.vb + BLOCK * x.vp;
    x.q = x.o + STEP_ROWS * x.vp;
    memset(x.o, 0, (size_t)(x.rows * x.vp) * sizeof(float));
    for (int r = 0; r < x.rows; r++) {
        const float *q = (const float *)d->q.p + (row + r / rep) * j->ldq + (g * rep + r % rep) * kdim;
        for (int c = 0; c < kdim; c++)
            x.q[r * kdim + c] = q[c] * (float)d->scale;
        x.max[r] = NO_MAX;
        x.sum[r] = 0;
    }
    float *o[2] = {d->o.p, d->o2.p}, *lse[2] = {d->lse.p, d->lse2.p};
    for (int pass = 0; pass < (d->o2.p ? 2 : 1); pass++) {
        int out = pass ^ (int)j->swapped;
        if (!pass || j->sight[1].skip)
            step_pass(&x, j->sight[pass]);
        step_emit(&x, o[out] + at * d->vdim, d->h * d->vdim, lse[out] ? lse[out] + at : NULL, d->h);
    }
}

static void attn_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    const struct op_attn *d = j->d;
    int32_t seq = tile_find(j->first, d->seqs->n, item);
    int64_t i = item - j->first[seq];
    float *scratch = j->scratch + (size_t)worker * j->scratch_floats;
    if (is_step(d, seq))
        step_item(j, seq, i, scratch);
    else /* late blocks see the most keys: longest first */
        prefill_item(j, seq, CEIL_DIV(seqs_qlen(d->seqs, seq), BLOCK) - 1 - i / d->h, i % d->h, scratch);
}

void ISA_NAME(attn)(struct backend *be, const struct op_attn *d)
{
    int32_t n = d->seqs->n;
    struct job j = {.d = d, .ldq = d->ldq ? d->ldq : d->h * d->kdim, .ldk = d->ldk ? d->ldk : d->g * d->kdim,
                    .ldv = d->ldv ? d->ldv : d->g * d->vdim};
    int64_t a = d->window, b = d->window2;
    j.sight[0] = (struct attn_sight){a, 0};
    if (d->o2.p) {
        j.swapped = b && (!a || b < a);
        int64_t small = j.swapped ? b : a, large = j.swapped ? a : b;
        j.sight[0] = (struct attn_sight){small, 0};
        j.sight[1] = (struct attn_sight){large, small == large ? 0 : small};
    }
    int workers = cpu_workers(be);
    int64_t vp = CEIL_DIV(d->vdim, 16) * 16;
    // the larger of both paths, with the copies of a ring
    j.scratch_floats = (size_t)((BLOCK + STEP_ROWS) * (BLOCK + 2 * d->kdim + 2 * vp) + 4 * BLOCK);
    float *buf = cpu_scratch(be, (size_t)workers * j.scratch_floats * sizeof(float) + (size_t)(n + 1) * sizeof(int64_t));
    if (!buf)
        return;
    int64_t *first = (int64_t *)(void *)buf, items = 0;
    j.scratch = buf + 2 * CEIL_DIV(n + 1, 8) * 8;
    j.first = first;
    for (int32_t s = 0; s < n; s++) {
        first[s] = items;
        int64_t nq = seqs_qlen(d->seqs, s);
        items += !nq ? 0 : is_step(d, s) ? d->g : CEIL_DIV(nq, BLOCK) * d->h;
    }
    first[n] = items;
    pool_run(be->pool, items, attn_item, &j);
}
