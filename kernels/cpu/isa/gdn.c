/*
 * Gated delta rule, forward: chunks of 64 tokens as products of matrices, one head of one sequence after another. A sequence of one
 * token takes the recurrence itself.
 *
 *     A = (I + L)^-1,  U = K S,  W = V - gamma o U,  V' = (Gam o A o beta_j) W,  O = s gamma o (Q S) + P V',  S <- gamma_L S + K^T
 *       (exp(cum_L - cum) o V')
 */
#include "kernels/cpu/isa/gdn.h"

struct job {
    const struct op_gdn *d;
    const int64_t *chunk; /* [n] first chunk of each sequence */
    float *scratch;
    size_t scratch_floats;
};

/* State [kdim][vdim] in memory from and to rows of whole vectors. */
static void state_load(float *s, int vp, const float *from, int kdim, int vdim)
{
    if (from)
        tile_pad(s, vp, from, vdim, kdim, vdim);
    else
        memset(s, 0, (size_t)(kdim * vp) * sizeof(float));
}
static void state_store(float *to, const float *s, int vp, int kdim, int vdim)
{
    for (int i = 0; i < kdim; i++)
        memcpy(to + (int64_t)i * vdim, s + (int64_t)i * vp, (size_t)vdim * sizeof(float));
}

/* o[n][vdim] = gamma scale (Q S) + P vn; buf [64][vp] */
static void chunk_output(const struct gdn_chunk *c, const float *s, const float *vn, float *buf, float *o)
{
    int64_t vp = c->vp;
    float factor[CHUNK];
    for (int i = 0; i < c->n; i++)
        factor[i] = c->scale * c->gamma[i];
    tile_run(&(struct tile){.c = buf, .ldc = vp, .a = c->q, .rs = c->ldk, .cs = 1, .b = s, .ldb = vp, .m = c->n, .nv = c->vp / 16,
                            .k = c->kdim}, TILE_ZERO);
    gdn_scale_rows(buf, vp, c->n, c->vp, factor);
    gdn_lower(buf, vp, c->p, vn, vp, c->n, c->vp / 16, TILE_ADD);
    for (int i = 0; i < c->n; i++)
        memcpy(o + i * c->ldv, buf + i * vp, (size_t)c->vdim * sizeof(float));
}

static void sequence_item(const struct job *j, int32_t seq, int64_t head, float *scratch)
{
    const struct op_gdn *d = j->d;
    int64_t key = head / (d->hv / d->h), row = d->seqs->q_off[seq], len = seqs_qlen(d->seqs, seq), kv = d->kdim * d->vdim;
    struct gdn_chunk c = {.kdim = (int)d->kdim, .vdim = (int)d->vdim, .scale = (float)d->scale, .ldk = d->h * d->kdim,
                          .ldv = d->hv * d->vdim};
    c.vp = CEIL_DIV(c.vdim, 16) * 16;
    gdn_chunk_buffers(&c, &scratch);
    float *s = scratch, *u = s + c.kdim * c.vp, *vn = u + CHUNK * c.vp;
    state_load(s, c.vp, d->s_in.p ? (const float *)d->s_in.p + (seq * d->hv + head) * kv : NULL, c.kdim, c.vdim);
    for (int64_t t = 0; t < len; t += CHUNK) {
        int64_t at = row + t, vat = (at * d->hv + head) * d->vdim;
        c.n = (int)MIN(len - t, CHUNK);
        c.nv = CEIL_DIV(c.n, 16);
        c.q = (const float *)d->q.p + (at * d->h + key) * d->kdim;
        c.k = (const float *)d->k.p + (at * d->h + key) * d->kdim;
        c.v = (const float *)d->v.p + vat;
        if (d->hs.p)
            state_store((float *)d->hs.p + ((j->chunk[seq] + t / CHUNK) * d->hv + head) * kv, s, c.vp, c.kdim, c.vdim);
        gdn_gates(&c, (const float *)d->g.p + at * d->hv + head, (const float *)d->beta.p + at * d->hv + head, d->hv);
        gdn_keys(&c);
        gdn_inverse(&c);
        for (int i = 0; d->ainv.p && i < c.n; i++)
            memcpy((float *)d->ainv.p + ((at + i) * d->hv + head) * CHUNK, c.a + i * CHUNK, CHUNK * sizeof(float));
        gdn_decay(&c);
        gdn_new_values(&c, s, u, u, vn);
        chunk_output(&c, s, vn, u, (float *)d->o.p + vat);
        gdn_next_state(&c, s, vn);
    }
    if (d->s_out.p)
        state_store((float *)d->s_out.p + (seq * d->hv + head) * kv, s, c.vp, c.kdim, c.vdim);
}

/* 16 n columns (the last maybe partial) of a one-token step: u = (alpha S)^T k, then S' = alpha S + k delta^T and o = S'^T q. in NULL:
 * zeros. */
static void step_columns(const struct op_gdn *d, const float *q, const float *k, const float *v, float alpha, float beta, const float *in,
                         float *out, float *o, int n)
{
    int64_t ld = d->vdim;
    v16 a = v16_set1(alpha), u = v16_zero(), sum = v16_zero();
    for (int64_t i = 0; in && i < d->kdim; i++)
        u = v16_fma(v16_set1(k[i]), v16_mul(a, v16_load_n(in + i * ld, n)), u);
    v16 delta = v16_mul(v16_set1(beta), v16_sub(v16_load_n(v, n), u));
    for (int64_t i = 0; i < d->kdim; i++) {
        v16 s = in ? v16_mul(a, v16_load_n(in + i * ld, n)) : v16_zero();
        s = v16_fma(v16_set1(k[i]), delta, s);
        if (out)
            v16_store_n(out + i * ld, s, n);
        sum = v16_fma(v16_set1(q[i]), s, sum);
    }
    v16_store_n(o, v16_mul(v16_set1((float)d->scale), sum), n);
}

static void step_item(const struct job *j, int32_t seq, int64_t head)
{
    const struct op_gdn *d = j->d;
    int64_t row = d->seqs->q_off[seq], at = row * d->hv + head, kv = d->kdim * d->vdim, state = (seq * d->hv + head) * kv,
        key = (row * d->h + head / (d->hv / d->h)) * d->kdim;
    const float *in = d->s_in.p ? (const float *)d->s_in.p + state : NULL, *k = (const float *)d->k.p + key,
        *q = (const float *)d->q.p + key;
    float *out = d->s_out.p ? (float *)d->s_out.p + state : NULL, alpha = v16_first(tile_exp(v16_set1(((const float *)d->g.p)[at])));
    if (d->hs.p) {
        float *hs = (float *)d->hs.p + (j->chunk[seq] * d->hv + head) * kv;
        if (in)
            memcpy(hs, in, (size_t)kv * sizeof(float));
        else
            memset(hs, 0, (size_t)kv * sizeof(float));
    }
    if (d->ainv.p) {
        memset((float *)d->ainv.p + at * CHUNK, 0, CHUNK * sizeof(float));
        ((float *)d->ainv.p)[at * CHUNK] = 1;
    }
    for (int64_t c = 0; c < d->vdim; c += 16)
        step_columns(d, q, k, (const float *)d->v.p + at * d->vdim + c, alpha, ((const float *)d->beta.p)[at], in ? in + c : NULL,
                     out ? out + c : NULL, (float *)d->o.p + at * d->vdim + c, (int)MIN(d->vdim - c, 16));
}

static void gdn_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    int32_t seq = (int32_t)(item / j->d->hv), len = seqs_qlen(j->d->seqs, seq);
    if (len == 1)
        step_item(j, seq, item % j->d->hv);
    else
        sequence_item(j, seq, item % j->d->hv, j->scratch + (size_t)worker * j->scratch_floats);
}

void ISA_NAME(gdn)(struct backend *be, const struct op_gdn *d)
{
    struct job j = {.d = d};
    int workers = cpu_workers(be);
    int32_t n = d->seqs->n;
    int64_t vp = CEIL_DIV(d->vdim, 16) * 16, chunks = 0, table = CEIL_DIV(n, 8) * 16; /* floats that the table takes */
    j.scratch_floats = (size_t)(GDN_CHUNK_FLOATS(CEIL_DIV(d->kdim, 16) * 16) + (d->kdim + 2 * CHUNK) * vp);
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
    pool_run(be->pool, n * d->hv, gdn_item, &j);
}
