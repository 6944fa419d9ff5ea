/*
 * Gated delta rule, backward: chunks from last to first with dS, the gradient of the state at the chunk's end. U, W, V', P, Ag are made
 * again; S at the chunk's start and A = (I + L)^-1 come from the forward pass, or are made again, too. tril: zeros above the diagonal; e
 * = exp(cum_L - cum).
 *
 *     dV' = e o (K dS) + P^T dO,  dV = dW = Ag^T dV',  dU = -gamma o dW,  dAg = tril(dV' W^T),  dPg = tril(dO V'^T)
 *     dQ  = s gamma o (dO S^T) + (s Gam o dPg) K
 *     dA  = Gam o dAg o beta_j,  dL = -strict_lower(A^T dA A^T),  M = beta_i dL
 *     dK  = e o (V' dS^T) + (s Gam o dPg)^T Q + dU S^T + (M + M^T) K
 *     dbeta_j = sum_i (Gam o dAg o A)_ij + sum_i dL_ji (K K^T)_ji
 *     dS <- gamma_L dS + s Q^T (gamma o dO) + K^T dU
 *     dcum_i = rowsum(E) - colsum(E) + q.dQ_state + dU.U - k.dK_state, E = dPg o P + dAg o Ag;  dcum_L += sum_i k.dK_state + gamma_L
 *       <dS, S>;  dg = reverse sum of dcum
 */
#include "kernels/cpu/isa/gdn.h"

struct job {
    const struct op_gdn_bwd *d;
    const int64_t *chunk; /* [n] first chunk of each sequence */
    float *scratch;
    size_t scratch_floats;
};
/* Scratch and operands of one chunk's backward. Rows are tokens unless said. */
struct grad {
    struct gdn_chunk c;
    const float *q, *k, *go; /* by whole vectors */
    int64_t ldq, ldk, ldgo;
    const float *s;          /* [kdim][vp] state at the start */
    float *ds;               /* [kdim][vp] */
    float *u, *w, *vn;       /* [64][vp] */
    float *dvn, *dw, *du;    /* [64][vp] */
    float *st, *dst;         /* [vdim][kp] S^T, dS^T */
    float *wt, *vnt;         /* [vdim][64] */
    float *dag, *dpg;        /* [64][64] */
    float *x, *at;           /* [64][64] */
    float *dq, *dk;          /* [64][kp] */
    float *pad_q, *pad_k, *pad_go, *pad_s;
    float row_e[CHUNK], col_e[CHUNK], col_b[CHUNK], dbeta[CHUNK], dcum[CHUNK];
};

/* The products that carry gradients through the state: dvn, dw, du, and the state parts of dq and dk with their dots into dcum. */
static void grad_state(struct grad *g)
{
    struct gdn_chunk *c = &g->c;
    int64_t vp = c->vp, kp = c->kp;
    int n = c->n, vv = c->vp / 16, kv = c->kp / 16;
    float factor[CHUNK], tails = 0;
    tile_run(&(struct tile){.c = g->dvn, .ldc = vp, .a = c->k, .rs = c->ldk, .cs = 1, .b = g->ds, .ldb = vp, .m = n, .nv = vv,
                            .k = c->kdim}, TILE_ZERO);
    gdn_scale_rows(g->dvn, vp, n, c->vp, c->tail);
    gdn_upper(g->dvn, vp, c->p, g->go, g->ldgo, n, vv, TILE_ADD);
    gdn_upper(g->dw, vp, c->ag, g->dvn, vp, n, vv, TILE_ZERO);
    for (int i = 0; i < n; i++) {
        v16 minus = v16_set1(-c->gamma[i]);
        for (int x = 0; x < c->vp; x += 16)
            v16_store(g->du + i * vp + x, v16_mul(minus, v16_load(g->dw + i * vp + x)));
        factor[i] = c->scale * c->gamma[i];
    }
    tile_transpose(g->st, kp, g->s, vp, c->kdim, c->vdim, 1);
    tile_transpose(g->dst, kp, g->ds, vp, c->kdim, c->vdim, 1);
    tile_run(&(struct tile){.c = g->dq, .ldc = kp, .a = g->go, .rs = g->ldgo, .cs = 1, .b = g->st, .ldb = kp, .m = n, .nv = kv,
                            .k = c->vdim}, TILE_ZERO);
    gdn_scale_rows(g->dq, kp, n, c->kp, factor);
    tile_run(&(struct tile){.c = g->dk, .ldc = kp, .a = g->vn, .rs = vp, .cs = 1, .b = g->dst, .ldb = kp, .m = n, .nv = kv, .k = c->vdim},
             TILE_ZERO);
    gdn_scale_rows(g->dk, kp, n, c->kp, c->tail);
    for (int i = 0; i < n; i++) {
        float t = v16_dot(c->k + i * c->ldk, g->dk + i * kp, c->kdim);
        g->dcum[i] = v16_dot(c->q + i * c->ldk, g->dq + i * kp, c->kdim) + v16_dot(g->du + i * vp, g->u + i * vp, c->vdim) - t;
        tails += t;
    }
    g->dcum[n - 1] += tails + c->decay * v16_dot(g->ds, g->s, c->kdim * c->vp);
}

/* dag, dpg to dA and s Gam o dPg; sums of E and of Gam o dAg o A. */
static void grad_gates(struct grad *g)
{
    struct gdn_chunk *c = &g->c;
    v16 col_e[CHUNK / 16], col_b[CHUNK / 16], scale = v16_set1(c->scale);
    for (int v = 0; v < CHUNK / 16; v++)
        col_e[v] = col_b[v] = v16_zero();
    for (int i = 0; i < c->n; i++) {
        v16 row = v16_zero();
        for (int v = 0; v <= i / 16; v++) {
            int at = i * CHUNK + 16 * v;
            v16 gam = v16_load(c->gam + at), dag = v16_load(g->dag + at), dpg = v16_load(g->dpg + at);
            // gam 0 above the diagonal
            v16 e = v16_fma(dpg, v16_load(c->p + at), v16_mul(dag, v16_load(c->ag + at))), ga = v16_mul(gam, dag);
            row = v16_add(row, e);
            col_e[v] = v16_add(col_e[v], e);
            col_b[v] = v16_fma(ga, v16_load(c->a + at), col_b[v]);
            v16_store(g->dag + at, v16_mul(ga, v16_load(c->beta + 16 * v)));
            v16_store(g->dpg + at, v16_mul(v16_mul(scale, gam), dpg));
        }
        g->row_e[i] = v16_hsum(row);
    }
    for (int v = 0; v < CHUNK / 16; v++) {
        v16_store(g->col_e + 16 * v, col_e[v]);
        v16_store(g->col_b + 16 * v, col_b[v]);
    }
}

/* dag (dA on entry) becomes M; dbeta. */
static void grad_inverse(struct grad *g)
{
    struct gdn_chunk *c = &g->c;
    for (int r = 0; r < c->n; r += 16) /* x = A^T dA, as far as dL needs it */
        tile_run(&(struct tile){.c = g->x + r * CHUNK, .ldc = CHUNK, .a = c->a + r * CHUNK + r, .rs = 1, .cs = CHUNK,
                                .b = g->dag + r * CHUNK, .ldb = CHUNK, .m = MIN(16, c->n - r), .nv = r / 16 + 1, .k = c->n - r}, TILE_ZERO);
    tile_transpose(g->at, CHUNK, c->a, CHUNK, c->n, c->n, 1);
    for (int r = 0; r < c->n; r += 16) /* x A^T below the diagonal: A^T_pj is 0 for p > j */
        tile_run(&(struct tile){.c = g->dag + r * CHUNK, .ldc = CHUNK, .a = g->x + r * CHUNK, .rs = CHUNK, .cs = 1, .b = g->at,
                                .ldb = CHUNK, .m = MIN(16, c->n - r), .nv = r / 16 + 1, .k = MIN(r + 16, c->n)}, TILE_ZERO);
    for (int i = 0; i < c->n; i++) {
        v16 row = v16_zero(), beta = v16_set1(-c->beta[i]);
        for (int v = 0; v <= i / 16; v++) {
            int at = i * CHUNK + 16 * v;
            v16 dl = v16_load(g->dag + at);
            if (v == i / 16)
                dl = v16_select(v16_lt(v16_iota(), v16_set1((float)(i % 16))), dl, v16_zero());
            row = v16_fma(dl, v16_load(c->kk + at), row);
            v16_store(g->dag + at, v16_mul(beta, dl));
        }
        g->dbeta[i] = g->col_b[i] - v16_hsum(row);
    }
}

/* ds at the chunk's end to ds at its start. dvn is scratch from here. */
static void grad_step(struct grad *g)
{
    struct gdn_chunk *c = &g->c;
    int64_t vp = c->vp;
    v16 decay = v16_set1(c->decay);
    for (int i = 0; i < c->n; i++) {
        v16 f = v16_set1(c->scale * c->gamma[i]);
        for (int x = 0; x < c->vp; x += 16)
            v16_store(g->dvn + i * vp + x, v16_mul(f, v16_load(g->go + i * g->ldgo + x)));
    }
    for (int64_t i = 0; i < c->kdim * vp; i += 16)
        v16_store(g->ds + i, v16_mul(decay, v16_load(g->ds + i)));
    struct tile t = {.c = g->ds, .ldc = vp, .a = c->q, .rs = 1, .cs = c->ldk, .b = g->dvn, .ldb = vp, .m = c->kdim, .nv = c->vp / 16,
                     .k = c->n};
    tile_run(&t, TILE_ADD);
    t.a = c->k;
    t.b = g->du;
    tile_run(&t, TILE_ADD);
}

/* All gradients of the chunk into dq, dk, dw (= dv), dbeta, dcum; ds moves to the start. */
static void grad_chunk(struct grad *g)
{
    struct gdn_chunk *c = &g->c;
    int64_t kp = c->kp;
    int n = c->n, kv = c->kp / 16;
    gdn_decay(c);
    gdn_new_values(c, g->s, g->u, g->w, g->vn);
    grad_state(g);
    tile_transpose(g->wt, CHUNK, g->w, c->vp, n, c->vdim, 1);
    tile_transpose(g->vnt, CHUNK, g->vn, c->vp, n, c->vdim, 1);
    gdn_dots(g->dag, g->dvn, c->vp, g->wt, n, c->vdim);
    gdn_dots(g->dpg, g->go, g->ldgo, g->vnt, n, c->vdim);
    grad_gates(g);
    grad_inverse(g);
    gdn_lower(g->dq, kp, g->dpg, g->k, g->ldk, n, kv, TILE_ADD);
    gdn_upper(g->dk, kp, g->dpg, g->q, g->ldq, n, kv, TILE_ADD);
    tile_run(&(struct tile){.c = g->dk, .ldc = kp, .a = g->du, .rs = c->vp, .cs = 1, .b = g->st, .ldb = kp, .m = n, .nv = kv, .k = c->vdim},
             TILE_ADD);
    gdn_lower(g->dk, kp, g->dag, g->k, g->ldk, n, kv, TILE_ADD);
    gdn_upper(g->dk, kp, g->dag, g->k, g->ldk, n, kv, TILE_ADD);
    grad_step(g);
    for (int i = 0; i < n; i++)
        g->dcum[i] += g->row_e[i] - g->col_e[i];
}

/* Rows with `dim` lanes as whole vectors: in place, or padded into buf. */
static const float *whole(float *buf, const float *p, int64_t ld, int rows, int dim, int padded, int64_t *ld_out)
{
    *ld_out = dim == padded ? ld : padded;
    if (dim == padded)
        return p;
    tile_pad(buf, padded, p, ld, rows, dim);
    return buf;
}

/* Points g at chunk t of value head `head` and makes keys, gates and the inverse. */
static void chunk_begin(const struct job *j, struct grad *g, int32_t seq, int64_t head, int64_t t, bool saved_a)
{
    const struct op_gdn_bwd *d = j->d;
    struct gdn_chunk *c = &g->c;
    int64_t len = seqs_qlen(d->seqs, seq), at = d->seqs->q_off[seq] + t, key = head / (d->hv / d->h);
    c->n = (int)MIN(len - t, CHUNK);
    c->nv = CEIL_DIV(c->n, 16);
    c->q = (const float *)d->q.p + (at * d->h + key) * d->kdim;
    c->k = (const float *)d->k.p + (at * d->h + key) * d->kdim;
    c->v = (const float *)d->v.p + (at * d->hv + head) * d->vdim;
    gdn_gates(c, (const float *)d->g.p + at * d->hv + head, (const float *)d->beta.p + at * d->hv + head, d->hv);
    gdn_keys(c);
    if (!saved_a) {
        gdn_inverse(c);
        return;
    }
    for (int i = 0; i < c->n; i++)
        memcpy(c->a + i * CHUNK, (const float *)d->ainv.p + ((at + i) * d->hv + head) * CHUNK, CHUNK * sizeof(float));
}

/* States at chunk starts, when the forward pass did not keep them. */
static void replay(const struct job *j, struct grad *g, int32_t seq, int64_t head, float *states)
{
    int64_t len = seqs_qlen(j->d->seqs, seq), size = (int64_t)g->c.kdim * g->c.vp;
    memset(states, 0, (size_t)size * sizeof(float));
    for (int64_t t = 0; t + CHUNK < len; t += CHUNK) {
        float *s = states + t / CHUNK * size;
        chunk_begin(j, g, seq, head, t, j->d->ainv.p != NULL);
        gdn_decay(&g->c);
        gdn_new_values(&g->c, s, g->u, g->u, g->vn);
        memcpy(s + size, s, (size_t)size * sizeof(float));
        gdn_next_state(&g->c, s + size, g->vn);
    }
}

static void chunk_end(const struct job *j, const struct grad *g, int32_t seq, int64_t head, int64_t t)
{
    const struct op_gdn_bwd *d = j->d;
    const struct gdn_chunk *c = &g->c;
    int64_t at = d->seqs->q_off[seq] + t, rep = d->hv / d->h, qk = (at * d->h + head / rep) * d->kdim;
    float *dq = (float *)d->dq.p + qk, *dk = (float *)d->dk.p + qk, *dv = (float *)d->dv.p + (at * d->hv + head) * d->vdim;
    double sum = 0;
    for (int i = 0; i < c->n; i++) { /* value heads of one key head add up in order */
        for (int x = 0; x < c->kdim; x++) {
            float *to_q = dq + i * c->ldk + x, *to_k = dk + i * c->ldk + x;
            *to_q = head % rep ? *to_q + g->dq[i * c->kp + x] : g->dq[i * c->kp + x];
            *to_k = head % rep ? *to_k + g->dk[i * c->kp + x] : g->dk[i * c->kp + x];
        }
        memcpy(dv + i * c->ldv, g->dw + i * c->vp, (size_t)c->vdim * sizeof(float));
        ((float *)d->dbeta.p)[(at + i) * d->hv + head] = g->dbeta[i];
    }
    for (int i = c->n - 1; i >= 0; i--) {
        sum += (double)g->dcum[i];
        ((float *)d->dg.p)[(at + i) * d->hv + head] = (float)sum;
    }
}

static size_t grad_buffers(struct grad *g, float *p)
{
    float *start = p;
    int64_t kp = g->c.kp, vp = g->c.vp;
    float **whole_v[] = {&g->u, &g->w, &g->vn, &g->dvn, &g->dw, &g->du, &g->wt, &g->vnt, &g->pad_go},
        **whole_k[] = {&g->dq, &g->dk, &g->pad_q, &g->pad_k};
    float **states[] = {&g->ds, &g->st, &g->dst, &g->pad_s}, **square[] = {&g->dag, &g->dpg, &g->x, &g->at};
    for (size_t i = 0; i < ARRAY_LEN(whole_v); i++, p += CHUNK * vp)
        *whole_v[i] = p;
    for (size_t i = 0; i < ARRAY_LEN(whole_k); i++, p += CHUNK * kp)
        *whole_k[i] = p;
    for (size_t i = 0; i < ARRAY_LEN(states); i++, p += kp * vp)
        *states[i] = p;
    for (size_t i = 0; i < ARRAY_LEN(square); i++, p += CHUNK * CHUNK)
        *square[i] = p;
    gdn_chunk_buffers(&g->c, &p);
    return (size_t)(p - start);
}

static void bwd_head(const struct job *j, struct grad *g, int32_t seq, int64_t head, float *states)
{
    const struct op_gdn_bwd *d = j->d;
    struct gdn_chunk *c = &g->c;
    int64_t len = seqs_qlen(d->seqs, seq), size = (int64_t)c->kdim * c->vp, ld;
    if (!d->hs.p)
        replay(j, g, seq, head, states);
    memset(g->ds, 0, (size_t)size * sizeof(float));
    for (int64_t t = len > 0 ? (len - 1) / CHUNK * CHUNK : -1; t >= 0; t -= CHUNK) {
        chunk_begin(j, g, seq, head, t, d->ainv.p != NULL);
        g->q = whole(g->pad_q, c->q, c->ldk, c->n, c->kdim, c->kp, &g->ldq);
        g->k = whole(g->pad_k, c->k, c->ldk, c->n, c->kdim, c->kp, &g->ldk);
        g->go = whole(g->pad_go, (const float *)d->d_o.p + ((d->seqs->q_off[seq] + t) * d->hv + head) * d->vdim, c->ldv, c->n, c->vdim,
                      c->vp, &g->ldgo);
        g->s = states + t / CHUNK * size;
        if (d->hs.p)
            g->s = whole(g->pad_s, (const float *)d->hs.p + ((j->chunk[seq] + t / CHUNK) * d->hv + head) * d->kdim * d->vdim, c->vdim,
                         c->kdim, c->vdim, c->vp, &ld);
        grad_chunk(g);
        chunk_end(j, g, seq, head, t);
    }
}

/* One key head of one sequence. */
static void bwd_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    const struct op_gdn_bwd *d = j->d;
    int32_t seq = (int32_t)(item / d->h);
    int64_t key = item % d->h, rep = d->hv / d->h;
    struct grad g = {.c = {.kdim = (int)d->kdim, .vdim = (int)d->vdim, .scale = (float)d->scale, .ldk = d->h * d->kdim,
                           .ldv = d->hv * d->vdim}};
    g.c.kp = CEIL_DIV(g.c.kdim, 16) * 16;
    g.c.vp = CEIL_DIV(g.c.vdim, 16) * 16;
    float *p = j->scratch + (size_t)worker * j->scratch_floats;
    size_t used = grad_buffers(&g, p);
    for (int64_t head = key * rep; head < (key + 1) * rep; head++)
        bwd_head(j, &g, seq, head, p + used);
}

void ISA_NAME(gdn_bwd)(struct backend *be, const struct op_gdn_bwd *d)
{
    struct job j = {.d = d};
    int workers = cpu_workers(be);
    int32_t n = d->seqs->n;
    int64_t kp = CEIL_DIV(d->kdim, 16) * 16, vp = CEIL_DIV(d->vdim, 16) * 16, longest = 0, chunks = 0, table = CEIL_DIV(n, 8) * 16;
    for (int32_t s = 0; s < n; s++)
        longest = MAX(longest, seqs_qlen(d->seqs, s));
    j.scratch_floats = (size_t)(CHUNK * (9 * vp + 4 * kp) + 4 * kp * vp + 4 * CHUNK * CHUNK + GDN_CHUNK_FLOATS(kp) +
                                (d->hs.p ? 0 : CEIL_DIV(longest, CHUNK) * kp * vp));
    float *buf = cpu_scratch(be, ((size_t)table + (size_t)workers * j.scratch_floats) * sizeof(float));
    if (!buf)
        return;
    int64_t *chunk = (int64_t *)(void *)buf;
    for (int32_t s = 0; s < n; s++) {
        chunk[s] = chunks;
        chunks += CEIL_DIV(seqs_qlen(d->seqs, s), CHUNK);
    }
    j.chunk = chunk;
    j.scratch = buf + table;
    pool_run(be->pool, n * d->h, bwd_item, &j);
}
