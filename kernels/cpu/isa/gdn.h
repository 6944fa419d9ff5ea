/*
 * One chunk of up to 64 tokens of one head of the gated delta rule: what forward and backward share. Matrices over tokens are [64][64]
 * with lanes along the later index, rows of keys and values are whole vectors. Gates enter only as exp of differences that are never
 * positive, selected before the exp, so that a decay below e^-88 is a plain 0.
 */
#ifndef KERNELS_CPU_ISA_GDN_H
#define KERNELS_CPU_ISA_GDN_H

#include "kernels/cpu/isa/tile.h"

#define CHUNK GDN_CHUNK

struct gdn_chunk {
    int n, nv, kdim, vdim, kp, vp; /* tokens, their vectors; dims, rounded up to whole vectors */
    float scale;
    const float *q, *k, *v;        /* row 0 */
    int64_t ldk, ldv;              /* q has ldk, too */
    float beta[CHUNK];
    // inclusive sum of g from the chunk's start, in two floats: after a spike differences of sums would lose digits; beyond n as at n-1
    float cum[CHUNK], low[CHUNK];
    float gamma[CHUNK], tail[CHUNK]; /* exp(cum), exp(cum of the last - cum) */
    float decay;                   /* gamma of the last */
    float *kt;                     /* [kdim][64] keys, transposed */
    float *kk;                     /* k_i . k_j, j <= i */
    // exp(cum_i - cum_j) for j <= i, 0 in the rest of the diagonal 16x16 blocks; right of them undefined, here and in ag, p
    float *gam;
    float *a;                      /* (I + L)^-1, L_ij = beta_i k_i . k_j below the diagonal; zeros above */
    float *ag, *p;                 /* gam o a o beta_j; scale gam o q_i . k_j */
};
#define GDN_CHUNK_FLOATS(kdim) (CHUNK * (kdim) + 5 * CHUNK * CHUNK)

/* Points the matrices into *buf and moves it on. */
static inline void gdn_chunk_buffers(struct gdn_chunk *c, float **buf)
{
    float *p = *buf;
    c->kk = p;
    c->gam = p + CHUNK * CHUNK;
    c->a = p + 2 * CHUNK * CHUNK;
    c->ag = p + 3 * CHUNK * CHUNK;
    c->p = p + 4 * CHUNK * CHUNK;
    c->kt = p + 5 * CHUNK * CHUNK;
    *buf = p + GDN_CHUNK_FLOATS(c->kdim);
}

/* cum_i - cum_j for 16 tokens from j on. */
static inline v16 gdn_since(const struct gdn_chunk *c, int i, int j)
{
    return v16_add(v16_sub(v16_set1(c->cum[i]), v16_load(c->cum + j)), v16_sub(v16_set1(c->low[i]), v16_load(c->low + j)));
}

/* g, beta: row 0 of this head, ld apart. */
static inline void gdn_gates(struct gdn_chunk *c, const float *g, const float *beta, int64_t ld)
{
    double sum = 0;
    for (int i = 0; i < CHUNK; i++) {
        sum += i < c->n ? (double)g[i * ld] : 0;
        c->cum[i] = (float)sum;
        c->low[i] = (float)(sum - (double)c->cum[i]);
        c->beta[i] = i < c->n ? beta[i * ld] : 0;
    }
    for (int i = 0; i < CHUNK; i += 16) {
        v16_store(c->gamma + i, tile_exp(v16_load(c->cum + i)));
        v16_store(c->tail + i, tile_exp(gdn_since(c, CHUNK - 1, i)));
    }
    c->decay = c->gamma[c->n - 1];
}

/* Rows of 16 from `from` of a lower triangular product: to[i][.] = (start) sum_{p <= i} m_ip b[p][.]; columns of vectors 0..nv-1. m has
 * zeros above its diagonal. */
static inline void gdn_lower(float *to, int64_t ldt, const float *m, const float *b, int64_t ldb, int n, int nv, enum tile_start start)
{
    for (int r = 0; r < n; r += 16)
        tile_run(&(struct tile){.c = to + r * ldt, .ldc = ldt, .a = m + r * CHUNK, .rs = CHUNK, .cs = 1, .b = b, .ldb = ldb,
                                .m = MIN(16, n - r), .nv = nv, .k = MIN(r + 16, n)}, start);
}
/* to[j][.] = (start) sum_{p >= j} m_pj b[p][.], the transposed one. */
static inline void gdn_upper(float *to, int64_t ldt, const float *m, const float *b, int64_t ldb, int n, int nv, enum tile_start start)
{
    for (int r = 0; r < n; r += 16)
        tile_run(&(struct tile){.c = to + r * ldt, .ldc = ldt, .a = m + r * CHUNK + r, .rs = 1, .cs = CHUNK, .b = b + r * ldb, .ldb = ldb,
                                .m = MIN(16, n - r), .nv = nv, .k = n - r}, start);
}
/* to[i][j] = x_i . y_j for j up to the end of i's diagonal block; y transposed [k][64]. */
static inline void gdn_dots(float *to, const float *x, int64_t ldx, const float *yt, int n, int k)
{
    for (int r = 0; r < n; r += 16)
        tile_run(&(struct tile){.c = to + r * CHUNK, .ldc = CHUNK, .a = x + r * ldx, .rs = ldx, .cs = 1, .b = yt, .ldb = CHUNK,
                                .m = MIN(16, n - r), .nv = r / 16 + 1, .k = k}, TILE_ZERO);
}
static inline void gdn_scale_rows(float *x, int64_t ld, int n, int width, const float *factor)
{
    for (int i = 0; i < n; i++) {
        v16 f = v16_set1(factor[i]);
        for (int c = 0; c < width; c += 16)
            v16_store(x + i * ld + c, v16_mul(v16_load(x + i * ld + c), f));
    }
}

/* kt, kk. */
static inline void gdn_keys(struct gdn_chunk *c)
{
    tile_transpose(c->kt, CHUNK, c->k, c->ldk, c->n, c->kdim, 1);
    gdn_dots(c->kk, c->k, c->ldk, c->kt, c->n, c->kdim);
}

/*
 * a from kk by forward substitution, row_i = e_i - sum_{j<i} L_ij row_j, each element one chain over j; whole blocks of 16 earlier rows
 * first, as a product. |a_ij| <= beta_i for unit keys, so nothing grows here, even with parallel keys.
 */
static inline void gdn_inverse(struct gdn_chunk *c)
{
    float *minus = c->ag; /* -L; ag is made later */
    for (int i = 0; i < c->n; i++) {
        v16 b = v16_set1(-c->beta[i]);
        for (int v = 0; v <= i / 16; v++)
            v16_store(minus + i * CHUNK + 16 * v, v16_mul(b, v16_load(c->kk + i * CHUNK + 16 * v)));
    }
    memset(c->a, 0, (size_t)(c->n * CHUNK) * sizeof(float));
    for (int r = 0; r < c->n; r += 16) {
        int end = MIN(r + 16, c->n), nv = r / 16 + 1;
        tile_run(&(struct tile){.c = c->a + r * CHUNK, .ldc = CHUNK, .a = minus + r * CHUNK, .rs = CHUNK, .cs = 1, .b = c->a, .ldb = CHUNK,
                                .m = end - r, .nv = nv - 1, .k = r}, TILE_ZERO);
        for (int i = r; i < end; i++) {
            c->a[i * CHUNK + i] = 1;
            for (int v = 0; v < nv; v++) {
                v16 x = v16_load(c->a + i * CHUNK + 16 * v);
                for (int j = r; j < i; j++)
                    x = v16_fma(v16_set1(minus[i * CHUNK + j]), v16_load(c->a + j * CHUNK + 16 * v), x);
                v16_store(c->a + i * CHUNK + 16 * v, x);
            }
        }
    }
}

/* gam, ag, p from a and the gates; p holds q_i . k_j on entry. */
static inline void gdn_decay(struct gdn_chunk *c)
{
    gdn_dots(c->p, c->q, c->ldk, c->kt, c->n, c->kdim);
    for (int i = 0; i < c->n; i++) {
        v16 scale = v16_set1(c->scale);
        for (int v = 0; v <= i / 16; v++) {
            int at = i * CHUNK + 16 * v;
            v16 x = gdn_since(c, i, 16 * v);
            if (v == i / 16)
                x = v16_select(v16_lt(v16_set1((float)(i % 16)), v16_iota()), v16_set1(-INFINITY), x);
            x = tile_exp(x);
            v16_store(c->gam + at, x);
            v16_store(c->ag + at, v16_mul(v16_mul(x, v16_load(c->a + at)), v16_load(c->beta + 16 * v)));
            v16_store(c->p + at, v16_mul(v16_mul(x, scale), v16_load(c->p + at)));
        }
    }
}

/* u = K S, w = V - gamma o u, vn = Ag w. s [kdim][vp]; u, w, vn [64][vp]; w may be u. */
static inline void gdn_new_values(const struct gdn_chunk *c, const float *s, float *u, float *w, float *vn)
{
    int64_t vp = c->vp;
    tile_run(&(struct tile){.c = u, .ldc = vp, .a = c->k, .rs = c->ldk, .cs = 1, .b = s, .ldb = vp, .m = c->n, .nv = c->vp / 16,
                            .k = c->kdim}, TILE_ZERO);
    for (int i = 0; i < c->n; i++) {
        v16 minus = v16_set1(-c->gamma[i]);
        for (int x = 0; x < c->vp; x += 16)
            v16_store(w + i * vp + x, v16_fma(minus, v16_load(u + i * vp + x), v16_load_n(c->v + i * c->ldv + x, MIN(c->vdim - x, 16))));
    }
    gdn_lower(vn, vp, c->ag, w, vp, c->n, c->vp / 16, TILE_ZERO);
}

/* s <- decay s + K^T (tail o vn); vn is overwritten. */
static inline void gdn_next_state(const struct gdn_chunk *c, float *s, float *vn)
{
    int64_t vp = c->vp;
    v16 decay = v16_set1(c->decay);
    gdn_scale_rows(vn, vp, c->n, c->vp, c->tail);
    for (int64_t i = 0; i < c->kdim * vp; i += 16)
        v16_store(s + i, v16_mul(v16_load(s + i), decay));
    tile_run(&(struct tile){.c = s, .ldc = vp, .a = c->k, .rs = 1, .cs = c->ldk, .b = vn, .ldb = vp, .m = c->kdim, .nv = c->vp / 16,
                            .k = c->n}, TILE_ADD);
}

#endif
