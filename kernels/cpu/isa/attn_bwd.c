/*
 * Gradient of causal softmax attention, one window or the mixture p1 O1 + p2 O2 of two over the same q, k, v. With D the gradient at the
 * mixture, X = D V^T, P_b = exp(scale Q K^T - lse_b) in the sight of branch b and delta_b = rowsum(D o O_b):
 *
 *     dV = (sum_b p_b P_b)^T D,   dS = sum_b p_b P_b o (X - delta_b),   dQ = scale dS K,   dK = scale dS^T Q,   dp_b = sum of delta_b.
 *
 * An item is one kv head of one sequence: its query heads and their blocks of 64 queries in order, under each the key blocks in order.
 * So each element of dQ is one chain over keys ascending and each of dK, dV one over (head, query) ascending. With more threads than
 * items, dQ is made by blocks of queries and then dK, dV by blocks of keys: S and X twice (7 products for 5), the same chains, the same
 * bits. Lanes are queries for S, X and dQ, dimensions for dK and dV: no operand but the queries and their gradients (once a block) is
 * transposed.
 */
#include "kernels/cpu/isa/attn.h"

#define BLOCK ATTN_BLOCK

/* Branch 0 has the larger window; branch 1 (two windows) the smaller. */
struct branch {
    double p;
    int64_t window;
    const float *o, *lse; /* [R, H, V], [R, H] */
    float *delta;         /* [R, H] */
};
struct job {
    const struct op_attn_bwd *d;
    int64_t ldq, ldk, ldv;
    int branches;
    struct branch b[2];
    float *scratch;
    size_t scratch_floats;
    const int64_t *first; /* [n + 1] first block of 64 of each sequence */
};

struct lanes {
    float lse[BLOCK], delta[BLOCK];
};
/* 64 queries of one head against the keys of their kv head. */
struct group {
    const struct job *j;
    struct lanes *lane; /* [branches] */
    int nq, nv, kdim, vdim, kp, vp; /* kp, vp: dims rounded up to whole vectors */
    int64_t first, ldk, ldv;
    const float *k, *v;
    const float *qt, *gt;           /* [kdim][64] scaled queries, [vdim][64] output gradients */
    const float *qn, *gn;           /* the same (not scaled) by rows, whole vectors */
    int64_t ldqn, ldgn;
    float *dqt;                     /* [kdim][64]; NULL: only dk, dv are wanted */
    float *s, *x;                   /* [64 keys][64] scores and D V^T; then sum p P and dS */
    float *dk, *dv;                 /* [keys][kp], [keys][vp] of the kv head from key0 on; NULL: only dq is wanted */
    int64_t key0, keys;             /* keys to take in: all of the sequence, or a block */
    float *buf_qt, *buf_gt, *buf_qn, *buf_gn;
};
enum in_sight { SEES_NONE, SEES_ALL, SEES_SOME };

/* s, x of key rows lo..hi-1, 16 queries: probabilities and score gradients. back: how far key row 0 lies behind lane 0. */
static void group_grads(const struct group *g, int v, int lo, int hi, int64_t back, enum in_sight big, enum in_sight small)
{
    float *s = g->s + 16 * v, *x = g->x + 16 * v;
    const struct branch *b = g->j->b;
    v16 lse0 = v16_load(g->lane[0].lse + 16 * v), delta0 = v16_load(g->lane[0].delta + 16 * v), p0 = v16_set1((float)b[0].p);
    v16 lse1 = v16_load(g->lane[1].lse + 16 * v), delta1 = v16_load(g->lane[1].delta + 16 * v), p1 = v16_set1((float)b[1].p);
    v16 w0 = v16_set1((float)(b[0].window ? b[0].window : 1 << 30)), w1 = v16_set1((float)(b[1].window ? b[1].window : 1 << 30));
    v16 lane = v16_add(v16_iota(), v16_set1((float)back)), never = v16_set1(-INFINITY);
    for (int j = lo; j < hi; j++) {
        v16 y = v16_load(s + j * BLOCK), dp = v16_load(x + j * BLOCK), far = v16_sub(lane, v16_set1((float)j));
        v16 y0 = v16_sub(y, lse0);
        if (big == SEES_SOME)
            y0 = v16_select(v16_lt(far, v16_zero()), never, v16_select(v16_lt(far, w0), y0, never));
        v16 e = v16_mul(tile_exp(y0), p0), ds = v16_mul(e, v16_sub(dp, delta0));
        if (small != SEES_NONE) {
            v16 y1 = v16_sub(y, lse1);
            if (small == SEES_SOME)
                y1 = v16_select(v16_lt(far, v16_zero()), never, v16_select(v16_lt(far, w1), y1, never));
            v16 f = v16_mul(tile_exp(y1), p1);
            ds = v16_fma(f, v16_sub(dp, delta1), ds);
            e = v16_add(e, f);
        }
        v16_store(s + j * BLOCK, e);
        v16_store(x + j * BLOCK, ds);
    }
}

/* Key rows lo..hi-1 of the block at key j0 against query vectors v..v+nv-1. */
static void group_block(const struct group *g, int64_t j0, int lo, int hi, int v, int nv, enum in_sight big, enum in_sight small)
{
    const float *k = g->k + (j0 + lo) * g->ldk, *val = g->v + (j0 + lo) * g->ldv;
    float *s = g->s + lo * BLOCK + 16 * v, *x = g->x + lo * BLOCK + 16 * v;
    int n = hi - lo, queries = MIN(g->nq - 16 * v, 16 * nv);
    tile_run(&(struct tile){.c = s, .ldc = BLOCK, .a = k, .rs = g->ldk, .cs = 1, .b = g->qt + 16 * v, .ldb = BLOCK, .m = n, .nv = nv,
                            .k = g->kdim}, TILE_ZERO);
    tile_run(&(struct tile){.c = x, .ldc = BLOCK, .a = val, .rs = g->ldv, .cs = 1, .b = g->gt + 16 * v, .ldb = BLOCK, .m = n, .nv = nv,
                            .k = g->vdim}, TILE_ZERO);
    for (int i = v; i < v + nv; i++)
        group_grads(g, i, lo, hi, g->first + 16 * i - j0, big, small);
    if (g->dqt)
        tile_run(&(struct tile){.c = g->dqt + 16 * v, .ldc = BLOCK, .a = k, .rs = 1, .cs = g->ldk, .b = x, .ldb = BLOCK, .m = g->kdim,
                                .nv = nv, .k = n}, TILE_ADD);
    if (!g->dk)
        return;
    int64_t row = j0 - g->key0 + lo;
    tile_run(&(struct tile){.c = g->dk + row * g->kp, .ldc = g->kp, .a = x, .rs = BLOCK, .cs = 1, .b = g->qn + 16 * v * g->ldqn,
                            .ldb = g->ldqn, .m = n, .nv = g->kp / 16, .k = queries}, TILE_ADD);
    tile_run(&(struct tile){.c = g->dv + row * g->vp, .ldc = g->vp, .a = s, .rs = BLOCK, .cs = 1, .b = g->gn + 16 * v * g->ldgn,
                            .ldb = g->ldgn, .m = n, .nv = g->vp / 16, .k = queries}, TILE_ADD);
}

static void group_run(const struct group *g)
{
    const struct job *j = g->j;
    int64_t last = g->first + g->nq - 1;
    struct attn_sight big = {j->b[0].window, 0}, small = {j->b[1].window, 0};
    int64_t end = MIN(last + 1, g->key0 + g->keys);
    for (int64_t j0 = MAX(attn_first_key(big, g->first) / BLOCK * BLOCK, g->key0); j0 < end; j0 += BLOCK) {
        enum in_sight two = SEES_NONE;
        if (j->branches == 2) {
            if (j0 >= attn_first_key(small, last))
                two = SEES_ALL;
            else if (j0 + BLOCK > attn_first_key(small, g->first))
                two = SEES_SOME;
        }
        if (j0 + BLOCK - 1 <= g->first && j0 >= attn_first_key(big, last) && two != SEES_SOME) {
            group_block(g, j0, 0, BLOCK, 0, g->nv, SEES_ALL, two);
            continue;
        }
        for (int v = 0; v < g->nv; v++) { /* an edge: vector by vector, only the rows that one of its queries sees */
            int64_t a = g->first + 16 * v, z = MIN(a + 15, last), lo = MAX(attn_first_key(big, a) - j0, 0), hi = MIN(z + 1 - j0, BLOCK);
            if (lo < hi)
                group_block(g, j0, (int)lo, (int)hi, v, 1, SEES_SOME, two == SEES_NONE ? SEES_NONE : SEES_SOME);
        }
    }
}

/* Rows of a operand with dim lanes as whole vectors: in place, or padded into buf. */
static const float *by_rows(float *buf, const float *p, int64_t *ld, int rows, int dim, int padded)
{
    if (dim == padded)
        return p;
    tile_pad(buf, padded, p, *ld, rows, dim);
    *ld = padded;
    return buf;
}

static void copy_rows(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t rows, int dim, float factor)
{
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < dim; c++)
            to[i * ldt + c] = from[i * ldf + c] * factor;
}

/* Everything but the block of queries; returns scratch behind its own. */
static float *group_open(struct group *g, const struct job *j, int32_t seq, int64_t kvh, int worker)
{
    const struct op_attn_bwd *d = j->d;
    int64_t row = d->seqs->q_off[seq];
    *g = (struct group){.j = j, .kdim = (int)d->kdim, .vdim = (int)d->vdim, .ldk = j->ldk, .ldv = j->ldv, .keys = seqs_qlen(d->seqs, seq)};
    g->kp = CEIL_DIV(g->kdim, 16) * 16;
    g->vp = CEIL_DIV(g->vdim, 16) * 16;
    g->k = cpu_f(d->k) + row * j->ldk + kvh * d->kdim;
    g->v = cpu_f(d->v) + row * j->ldv + kvh * d->vdim;
    g->s = j->scratch + (size_t)worker * j->scratch_floats;
    g->x = g->s + BLOCK * BLOCK;
    g->buf_qt = g->x + BLOCK * BLOCK;
    g->buf_qn = g->buf_qt + BLOCK * g->kp;
    g->dqt = g->buf_qn + BLOCK * g->kp;
    g->buf_gt = g->dqt + BLOCK * g->kp;
    g->buf_gn = g->buf_gt + BLOCK * g->vp;
    return g->buf_gn + BLOCK * g->vp;
}

/* Queries i .. of one head against g's keys. */
static void group_queries(struct group *g, int32_t seq, int64_t head, int64_t i)
{
    const struct job *j = g->j;
    const struct op_attn_bwd *d = j->d;
    struct lanes lane[2] = {0};
    int64_t len = seqs_qlen(d->seqs, seq), row = d->seqs->q_off[seq] + i;
    const float *q = cpu_f(d->q) + row * j->ldq + head * d->kdim, *go = cpu_f(d->d_o) + (row * d->h + head) * d->vdim;
    g->lane = lane;
    g->first = i;
    g->nq = (int)MIN(len - i, BLOCK);
    g->nv = CEIL_DIV(g->nq, 16);
    g->ldqn = j->ldq;
    g->ldgn = d->h * d->vdim;
    tile_transpose(g->buf_qt, BLOCK, q, j->ldq, g->nq, g->kdim, (float)d->scale);
    tile_transpose(g->buf_gt, BLOCK, go, d->h * d->vdim, g->nq, g->vdim, 1);
    g->qt = g->buf_qt;
    g->gt = g->buf_gt;
    g->qn = by_rows(g->buf_qn, q, &g->ldqn, g->nq, g->kdim, g->kp);
    g->gn = by_rows(g->buf_gn, go, &g->ldgn, g->nq, g->vdim, g->vp);
    for (int b = 0; b < j->branches; b++)
        for (int r = 0; r < g->nq; r++) {
            lane[b].lse[r] = j->b[b].lse[(row + r) * d->h + head];
            lane[b].delta[r] = j->b[b].delta[(row + r) * d->h + head];
        }
    if (g->dqt)
        memset(g->dqt, 0, (size_t)(BLOCK * g->kdim) * sizeof(float));
    group_run(g);
    if (!g->dqt)
        return;
    float factor[BLOCK];
    for (int r = 0; r < BLOCK; r++)
        factor[r] = (float)d->scale;
    tile_transpose_lanes(cpu_f(d->dq) + row * j->ldq + head * d->kdim, j->ldq, g->dqt, BLOCK, factor, g->nq, g->kdim);
}

/* All query heads of a kv head against keys key0 .. key0 + keys - 1: dk, dv of those, and dq when they are all keys. */
static void group_keys(struct group *g, int32_t seq, int64_t kvh, float *buf)
{
    const struct job *j = g->j;
    const struct op_attn_bwd *d = j->d;
    struct attn_sight big = {j->b[0].window, 0};
    int64_t rep = d->h / d->g, row = d->seqs->q_off[seq] + g->key0, len = seqs_qlen(d->seqs, seq);
    g->dk = buf;
    g->dv = g->dk + g->keys * g->kp;
    memset(buf, 0, (size_t)(g->keys * (g->kp + g->vp)) * sizeof(float));
    for (int64_t head = kvh * rep; head < (kvh + 1) * rep; head++)
        for (int64_t i = g->key0 / BLOCK * BLOCK; i < len && attn_first_key(big, i) < g->key0 + g->keys; i += BLOCK)
            group_queries(g, seq, head, i);
    copy_rows(cpu_f(d->dk) + row * j->ldk + kvh * d->kdim, j->ldk, g->dk, g->kp, g->keys, g->kdim, (float)d->scale);
    copy_rows(cpu_f(d->dv) + row * j->ldv + kvh * d->vdim, j->ldv, g->dv, g->vp, g->keys, g->vdim, 1);
}

/* One kv head of one sequence. */
static void bwd_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    struct group g;
    int32_t seq = (int32_t)(item / j->d->g);
    float *buf = group_open(&g, j, seq, item % j->d->g, worker);
    group_keys(&g, seq, item % j->d->g, buf);
}
/* dq of 64 queries of one head; late queries see the most keys: first. */
static void dq_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    const struct op_attn_bwd *d = j->d;
    struct group g;
    int64_t block = item / d->h, head = item % d->h;
    int32_t seq = tile_find(j->first, d->seqs->n, block);
    group_open(&g, j, seq, head / (d->h / d->g), worker);
    group_queries(&g, seq, head, (j->first[seq + 1] - 1 - block) * BLOCK);
}
/* dk, dv of 64 keys of one kv head. */
static void dkv_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    const struct op_attn_bwd *d = j->d;
    struct group g;
    int64_t block = item / d->g;
    int32_t seq = tile_find(j->first, d->seqs->n, block);
    float *buf = group_open(&g, j, seq, item % d->g, worker);
    g.key0 = (block - j->first[seq]) * BLOCK;
    g.keys = MIN(g.keys - g.key0, BLOCK);
    g.dqt = NULL;
    group_keys(&g, seq, item % d->g, buf);
}

/* delta of 64 rows, all heads and branches. */
static void delta_item(void *ctx, int64_t item, int worker)
{
    UNUSED(worker);
    const struct job *j = ctx;
    const struct op_attn_bwd *d = j->d;
    int64_t end = MIN((item + 1) * BLOCK, d->seqs->rows) * d->h;
    for (int b = 0; b < j->branches; b++)
        for (int64_t i = item * BLOCK * d->h; i < end; i++)
            j->b[b].delta[i] = v16_dot(cpu_f(d->d_o) + i * d->vdim, j->b[b].o + i * d->vdim, d->vdim);
}

void ISA_NAME(attn_bwd)(struct backend *be, const struct op_attn_bwd *d)
{
    struct job j = {.d = d, .ldq = d->ldq ? d->ldq : d->h * d->kdim, .ldk = d->ldk ? d->ldk : d->g * d->kdim,
                    .ldv = d->ldv ? d->ldv : d->g * d->vdim};
    int64_t kp = CEIL_DIV(d->kdim, 16) * 16, vp = CEIL_DIV(d->vdim, 16) * 16, heads = d->seqs->rows * d->h, longest = 0, blocks = 0;
    for (int32_t s = 0; s < d->seqs->n; s++)
        longest = MAX(longest, seqs_qlen(d->seqs, s));
    j.branches = d->o2.p ? 2 : 1;
    j.b[0] = (struct branch){.p = d->p1, .window = d->window, .o = d->o.p, .lse = d->lse.p};
    int second = 1;
    if (d->o2.p) {
        struct branch two = {.p = d->p2, .window = d->window2, .o = d->o2.p, .lse = d->lse2.p};
        if (d->window && (!d->window2 || d->window2 > d->window)) {
            j.b[1] = j.b[0];
            j.b[0] = two;
            second = 0;
        } else {
            j.b[1] = two;
        }
    }
    int workers = cpu_workers(be);
    bool split = 7 * d->seqs->n * d->g < (int64_t)5 * workers;
    int64_t keys = split ? BLOCK : longest, table = CEIL_DIV(d->seqs->n + 1, 8) * 16;
    j.scratch_floats = (size_t)(2 * BLOCK * BLOCK + 3 * BLOCK * kp + 2 * BLOCK * vp + keys * (kp + vp));
    float *buf = cpu_scratch(be, ((size_t)(table + heads * j.branches + 16) + (size_t)workers * j.scratch_floats) * sizeof(float));
    if (!buf)
        return;
    int64_t *first = (int64_t *)(void *)buf;
    for (int32_t s = 0; s < d->seqs->n; s++) {
        first[s] = blocks;
        blocks += CEIL_DIV(seqs_qlen(d->seqs, s), BLOCK);
    }
    first[d->seqs->n] = blocks;
    j.first = first;
    buf += table;
    j.b[0].delta = buf;
    j.b[1].delta = buf + heads;
    j.scratch = buf + CEIL_DIV(heads * j.branches, 16) * 16;
    pool_run(be->pool, CEIL_DIV(d->seqs->rows, BLOCK), delta_item, &j);
    for (int b = 0; d->dp.p && b < j.branches; b++) {
        const struct branch *x = &j.b[j.branches == 2 && !second ? 1 - b : b];
        double sum = 0;
        for (int64_t i = 0; i < heads; i++)
            sum += (double)x->delta[i];
        cpu_f(d->dp)[b] += (float)sum;
    }
    if (split) {
        pool_run(be->pool, blocks * d->h, dq_item, &j);
        pool_run(be->pool, blocks * d->g, dkv_item, &j);
    } else {
        pool_run(be->pool, d->seqs->n * d->g, bwd_item, &j);
    }
}
