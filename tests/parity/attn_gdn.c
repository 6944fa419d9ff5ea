/*
 * Attention, gated delta rule and convolution of the cpu backend where they are easily wrong: caches and rings against whole prefill,
 * windows, packing, gate spikes, nearly and exactly parallel keys, ragged lengths, single tokens. "bits": results must be the same
 * bytes. Everything runs on every instruction set with 1 and 4 threads (more than there are heads, so that the attention gradient of one
 * sequence splits its work), and what one configuration gives is compared byte by byte with what the first one gave. Truth is the double
 * reference. Usage: parity_attn_gdn [-i ISA]
 */
#include <math.h>

#include "core/pool.h"
#include "core/rng.h"
#include "kernels/ops.h"
#include "tests/test.h"

#define SEED 20u

struct env {
    struct backend *be, *ref;
    bool first; /* fills `seen` */
};
static uint64_t seen[64];

static float *floats(int64_t n)
{
    float *p = calloc((size_t)(n > 0 ? n : 1), sizeof *p);
    if (!p)
        abort();
    return p;
}
static float *normals(uint64_t stream, int64_t n)
{
    float *p = floats(n);
    for (int64_t i = 0; i < n; i++) { /* sum of 4 uniforms, variance 1 */
        double s = 0;
        for (uint64_t k = 0; k < 4; k++)
            s += ctr_uniform(SEED, stream, (uint64_t)i * 4 + k);
        p[i] = (float)((s - 2) * sqrt(3));
    }
    return p;
}
static struct view f32(float *p, int64_t n)
{
    return p ? (struct view){p, DT_F32, n} : NO_VIEW;
}
/* The same numbers for the reference. */
static struct view f64(const float *p, int64_t n)
{
    double *d = malloc((size_t)(n + 1) * sizeof *d);
    if (!d)
        abort();
    for (int64_t i = 0; i < n; i++)
        d[i] = (double)p[i];
    return (struct view){d, DT_F64, n};
}
static struct view zeros64(int64_t n)
{
    return (struct view){calloc((size_t)(n + 1), sizeof(double)), DT_F64, n};
}

static void bits(const char *what, const float *a, const float *b, int64_t n)
{
    int64_t differ = 0, at = 0;
    for (int64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a) && !differ++)
            at = i;
    test_checks++;
    if (differ) {
        test_failed++;
        printf("FAIL %s: %lld of %lld elements differ, first %lld: %.9g, %.9g\n", what, (long long)differ, (long long)n, (long long)at,
               (double)a[at], (double)b[at]);
    }
}
/* Bytes of a result, remembered from the first configuration. */
static void same_everywhere(const struct env *v, const char *what, int slot, const float *x, int64_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < (size_t)n * sizeof *x; i++)
        h = (h ^ ((const unsigned char *)x)[i]) * 1099511628211u;
    if (v->first)
        seen[slot] = h;
    test_checks++;
    if (seen[slot] != h) {
        test_failed++;
        printf("FAIL %s: %s gives other bits than the first configuration\n", what, v->be->desc);
    }
}
/* sqrt(sum (a-b)^2 / sum b^2) <= limit */
static void rms(const char *what, const float *a, struct view b, double limit, const char *why)
{
    double err = 0, size = 0;
    bool finite = true;
    for (int64_t i = 0; i < b.n; i++) {
        double r = ((const double *)b.p)[i], d = (double)a[i] - r;
        finite = finite && finite_f32(a[i]) && finite_f64(r);
        err += d * d;
        size += r * r;
    }
    double rel = size > 0 ? sqrt(err / size) : sqrt(err);
    bool ok = finite && rel <= limit;
    test_checks++;
    if (!ok)
        test_failed++;
    printf("%s %-44s relative rms %.3g, limit %.3g (%s)%s\n", ok ? "ok  " : "FAIL", what, rel, limit, why,
           size == 0 ? "  MISTRUSTED: reference is zero" : "");
}
static void synced(struct backend *be)
{
    CHECK_OK(be_sync(be, e));
    be->failed = false;
}

/* ---- attention ---- */

enum { H = 4, G = 2, KD = 24, VD = 40, T = 200 };
struct attn_out {
    float *o, *lse, *o2, *lse2;
};
static struct attn_out attn_out(int64_t rows)
{
    return (struct attn_out){floats(rows * H * VD), floats(rows * H), floats(rows * H * VD), floats(rows * H)};
}
static void attn_out_free(struct attn_out *x)
{
    free(x->o);
    free(x->lse);
    free(x->o2);
    free(x->lse2);
}
struct windows {
    int32_t one, two; /* two < 0: one output */
};

/* n_q queries, the last of n_kv positions whose keys begin at row `at` of a cache of `cap` rows. */
static void attn_call(struct backend *be, const float *q, const float *k, const float *v, struct attn_out out, int32_t n_q, int32_t at,
                      int32_t n_kv, int64_t cap, struct windows w, int32_t ring)
{
    int32_t q_off[2] = {0, n_q};
    struct seqs s = {.n = 1, .rows = n_q, .q_off = q_off, .kv_off = &at, .kv_len = &n_kv};
    bool two = w.two >= 0;
    be_attn(be, &(struct op_attn){.q = f32((float *)(uintptr_t)q, (int64_t)n_q * H * KD), .k = f32((float *)(uintptr_t)k, cap * G * KD),
                                  .v = f32((float *)(uintptr_t)v, cap * G * VD), .o = f32(out.o, (int64_t)n_q * H * VD),
                                  .lse = f32(out.lse, (int64_t)n_q * H), .o2 = two ? f32(out.o2, (int64_t)n_q * H * VD) : NO_VIEW,
                                  .lse2 = two ? f32(out.lse2, (int64_t)n_q * H) : NO_VIEW, .seqs = &s, .h = H, .g = G, .kdim = KD,
                                  .vdim = VD, .window = w.one, .window2 = two ? w.two : 0, .ring = ring, .scale = 1 / sqrt(KD)});
    synced(be);
}
static struct attn_out from_row(struct attn_out x, int64_t row)
{
    return (struct attn_out){x.o + row * H * VD, x.lse + row * H, x.o2 + row * H * VD, x.lse2 + row * H};
}
static void attn_same(const char *what, const struct attn_out *a, const struct attn_out *b, int64_t rows, bool two)
{
    char name[120];
    snprintf(name, sizeof name, "%s: o", what);
    bits(name, a->o, b->o, rows * H * VD);
    snprintf(name, sizeof name, "%s: lse", what);
    bits(name, a->lse, b->lse, rows * H);
    if (!two)
        return;
    snprintf(name, sizeof name, "%s: o2", what);
    bits(name, a->o2, b->o2, rows * H * VD);
    snprintf(name, sizeof name, "%s: lse2", what);
    bits(name, a->lse2, b->lse2, rows * H);
}

static const struct windows all_windows[] = {{0, -1}, {1, -1}, {9, -1}, {64, -1}, {100, -1}, {1000, -1}, {0, 32}, {70, 7}, {5, 0},
                                             {32, 32}};
/* Steps by which the same 200 positions are taken in: prefill of odd pieces, few queries, single tokens. */
static const int32_t pieces[] = {70, 1, 1, 3, 64, 2, 1, 17, 8, 1, 32};

/* Caches of a prefix, in pieces and token by token, must be the whole prefill: bits. Rows that hold no key are NaN and must not be touched. */
static void attn_caches(const struct env *v)
{
    enum { FRONT = 3, CAP = T + 8 };
    float *q = normals(1, T * H * KD), *k = normals(2, T * G * KD), *x = normals(3, T * G * VD), *ck = floats(CAP * G * KD),
        *cv = floats(CAP * G * VD);
    for (size_t i = 0; i < ARRAY_LEN(all_windows); i++) {
        struct windows w = all_windows[i];
        struct attn_out whole = attn_out(T), part = attn_out(T);
        char name[100];
        attn_call(v->be, q, k, x, whole, T, 0, T, T, w, 0);
        same_everywhere(v, "attention", (int)i, whole.o, T * H * VD);
        for (int64_t j = 0; j < CAP * G * KD; j++)
            ck[j] = NAN;
        for (int64_t j = 0; j < CAP * G * VD; j++)
            cv[j] = NAN;
        int32_t t = 0;
        for (size_t p = 0; t < T; p++) {
            int32_t n = MIN(pieces[p % ARRAY_LEN(pieces)], T - t);
            memcpy(ck + (FRONT + t) * G * KD, k + t * G * KD, (size_t)n * G * KD * sizeof(float));
            memcpy(cv + (FRONT + t) * G * VD, x + t * G * VD, (size_t)n * G * VD * sizeof(float));
            attn_call(v->be, q + t * H * KD, ck, cv, from_row(part, t), n, FRONT, t + n, CAP, w, 0);
            t += n;
        }
        snprintf(name, sizeof name, "cache in pieces = whole prefill, window %d, %d", w.one, w.two);
        attn_same(name, &whole, &part, T, w.two >= 0);
        attn_out_free(&whole);
        attn_out_free(&part);
    }
    free(q), free(k), free(x), free(ck), free(cv);
}

/* A ring that just holds the window: token by token and by pieces of 5. */
static void attn_rings(const struct env *v)
{
    static const struct {
        int32_t window, two, piece, ring;
    } cases[] = {{9, -1, 1, 9}, {64, -1, 1, 64}, {70, -1, 5, 74}, {100, 30, 1, 100}, {100, -1, 20, 131}, {3, -1, 1, 7}};
    float *q = normals(1, T * H * KD), *k = normals(2, T * G * KD), *x = normals(3, T * G * VD);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct windows w = {cases[i].window, cases[i].two};
        struct attn_out whole = attn_out(T), part = attn_out(T);
        int64_t cap = cases[i].ring;
        float *ck = floats(cap * G * KD), *cv = floats(cap * G * VD);
        char name[100];
        attn_call(v->be, q, k, x, whole, T, 0, T, T, w, 0);
        for (int32_t t = 0; t < T; t += cases[i].piece) {
            int32_t n = MIN(cases[i].piece, T - t);
            for (int32_t r = t; r < t + n; r++) {
                memcpy(ck + r % cap * G * KD, k + r * G * KD, G * KD * sizeof(float));
                memcpy(cv + r % cap * G * VD, x + r * G * VD, G * VD * sizeof(float));
            }
            attn_call(v->be, q + t * H * KD, ck, cv, from_row(part, t), n, 0, t + n, cap, w, (int32_t)cap);
        }
        snprintf(name, sizeof name, "ring of %d = whole prefill, window %d, pieces of %d", cases[i].ring, w.one, cases[i].piece);
        attn_same(name, &whole, &part, T, w.two >= 0);
        attn_out_free(&whole);
        attn_out_free(&part);
        free(ck), free(cv);
    }
    free(q), free(k), free(x);
}

/* What a window means: longer than the sequence = none; the second output of one pass = a pass of its own; the first output then only
 * differs in rounding. */
static void attn_windows(const struct env *v)
{
    float *q = normals(1, T * H * KD), *k = normals(2, T * G * KD), *x = normals(3, T * G * VD);
    struct attn_out full = attn_out(T), wide = attn_out(T), both = attn_out(T), narrow = attn_out(T), turned = attn_out(T);
    attn_call(v->be, q, k, x, full, T, 0, T, T, (struct windows){0, -1}, 0);
    attn_call(v->be, q, k, x, wide, T, 0, T, T, (struct windows){T, -1}, 0);
    attn_call(v->be, q, k, x, both, T, 0, T, T, (struct windows){0, 40}, 0);
    attn_call(v->be, q, k, x, narrow, T, 0, T, T, (struct windows){40, -1}, 0);
    attn_call(v->be, q, k, x, turned, T, 0, T, T, (struct windows){40, 0}, 0);
    attn_same("window of the whole sequence = no window", &full, &wide, T, false);
    bits("second output = window alone", both.o2, narrow.o, T * H * VD);
    bits("second lse = window alone", both.lse2, narrow.lse, T * H);
    bits("outputs exchanged: first", both.o, turned.o2, T * H * VD);
    bits("outputs exchanged: second", both.o2, turned.o, T * H * VD);
    check_close_f32("first of two outputs ~ full alone", both.o, full.o, T * H * VD, 200 * 0x1p-24 * 3, 0,
                    "sums of 200 products in another order, each within 200 u of the sum of absolute values, |v| < 3.5 on average below 1");
    attn_out_free(&full), attn_out_free(&wide), attn_out_free(&both), attn_out_free(&narrow), attn_out_free(&turned);
    free(q), free(k), free(x);
}

/* ---- 40 packed sequences ---- */

enum { PACK = 40 };
static int64_t pack_offsets(int32_t off[PACK + 1])
{
    off[0] = 0;
    for (int32_t s = 0; s < PACK; s++) /* 0, 1, 2, .. tokens, a multiple of 64, and longer ones */
        off[s + 1] = off[s] + (s == 7 ? 128 : s == 11 ? 0 : s == 13 ? 150 : s % 5 == 0 ? 1 : 3 + s * 2);
    return off[PACK];
}

struct pack {
    float *in[8], *out[8];
    int64_t in_w[8], out_w[8];
    int n_in, n_out;
};
static struct view pack_in(const struct pack *p, int i, int64_t row, int64_t rows)
{
    return f32(p->in[i] + row * p->in_w[i], rows * p->in_w[i]);
}
static struct view pack_out(const struct pack *p, int i, int64_t row, int64_t rows)
{
    return f32(p->out[i] + row * p->out_w[i], rows * p->out_w[i]);
}
typedef void pack_fn(struct backend *be, const struct pack *p, const struct seqs *s, int64_t row);

static void pack_attn(struct backend *be, const struct pack *p, const struct seqs *s, int64_t row)
{
    int64_t n = s->rows;
    be_attn(be, &(struct op_attn){.q = pack_in(p, 0, row, n), .k = pack_in(p, 1, row, n), .v = pack_in(p, 2, row, n),
                                  .o = pack_out(p, 0, row, n), .lse = pack_out(p, 1, row, n), .o2 = pack_out(p, 2, row, n),
                                  .lse2 = pack_out(p, 3, row, n), .seqs = s, .h = H, .g = G, .kdim = KD, .vdim = VD, .window2 = 20,
                                  .scale = 0.2});
    be_attn_bwd(be, &(struct op_attn_bwd){.dq = pack_out(p, 4, row, n), .dk = pack_out(p, 5, row, n), .dv = pack_out(p, 6, row, n),
                                          .d_o = pack_in(p, 3, row, n), .q = pack_in(p, 0, row, n), .k = pack_in(p, 1, row, n),
                                          .v = pack_in(p, 2, row, n), .o = pack_out(p, 0, row, n), .lse = pack_out(p, 1, row, n),
                                          .o2 = pack_out(p, 2, row, n), .lse2 = pack_out(p, 3, row, n), .seqs = s, .h = H, .g = G,
                                          .kdim = KD, .vdim = VD, .window2 = 20, .scale = 0.2, .p1 = 0.7, .p2 = 0.3});
}
static void pack_gdn(struct backend *be, const struct pack *p, const struct seqs *s, int64_t row)
{
    int64_t n = s->rows;
    be_gdn(be, &(struct op_gdn){.o = pack_out(p, 0, row, n), .q = pack_in(p, 0, row, n), .k = pack_in(p, 1, row, n),
                                .v = pack_in(p, 2, row, n), .g = pack_in(p, 3, row, n), .beta = pack_in(p, 4, row, n), .seqs = s, .h = G,
                                .hv = H, .kdim = KD, .vdim = VD, .scale = 0.2});
    be_gdn_bwd(be, &(struct op_gdn_bwd){.dq = pack_out(p, 1, row, n), .dk = pack_out(p, 2, row, n), .dv = pack_out(p, 3, row, n),
                                        .dg = pack_out(p, 4, row, n), .dbeta = pack_out(p, 5, row, n), .d_o = pack_in(p, 5, row, n),
                                        .q = pack_in(p, 0, row, n), .k = pack_in(p, 1, row, n), .v = pack_in(p, 2, row, n),
                                        .g = pack_in(p, 3, row, n), .beta = pack_in(p, 4, row, n), .seqs = s, .h = G, .hv = H, .kdim = KD,
                                        .vdim = VD, .scale = 0.2});
}
static void pack_conv(struct backend *be, const struct pack *p, const struct seqs *s, int64_t row)
{
    int64_t n = s->rows, dim = p->in_w[0];
    struct view w = f32(p->in[2], 4 * dim);
    be_conv(be, &(struct op_conv){.y = pack_out(p, 0, row, n), .pre = pack_out(p, 1, row, n), .x = pack_in(p, 0, row, n), .w = w, .seqs = s,
                                  .dim = dim, .width = 4});
    be_conv_bwd(be, &(struct op_conv_bwd){.dx = pack_out(p, 2, row, n), .dy = pack_in(p, 1, row, n), .pre = pack_out(p, 1, row, n),
                                          .x = pack_in(p, 0, row, n), .w = w, .seqs = s, .dim = dim, .width = 4});
}

/* Packed, then each sequence alone: bits. */
static void packed(const struct env *v, const char *what, int slot, pack_fn *fn, struct pack *p)
{
    int32_t off[PACK + 1];
    int64_t rows = pack_offsets(off);
    struct pack alone = *p;
    fn(v->be, p, &(struct seqs){.n = PACK, .rows = rows, .q_off = off}, 0);
    for (int i = 0; i < p->n_out; i++)
        alone.out[i] = floats(rows * p->out_w[i]);
    for (int32_t s = 0; s < PACK; s++) {
        int32_t one[2] = {0, off[s + 1] - off[s]};
        fn(v->be, &alone, &(struct seqs){.n = 1, .rows = one[1], .q_off = one}, off[s]);
    }
    synced(v->be);
    for (int i = 0; i < p->n_out; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s, 40 packed = each alone, output %d", what, i);
        bits(name, p->out[i], alone.out[i], rows * p->out_w[i]);
        same_everywhere(v, name, slot + i, p->out[i], rows * p->out_w[i]);
        free(alone.out[i]);
        free(p->out[i]);
    }
    for (int i = 0; i < p->n_in; i++)
        free(p->in[i]);
}
static struct pack pack_make(int64_t rows, int n_in, const int64_t *in_w, int n_out, const int64_t *out_w)
{
    struct pack p = {.n_in = n_in, .n_out = n_out};
    for (int i = 0; i < n_in; i++) {
        p.in_w[i] = in_w[i];
        p.in[i] = normals(100 + (uint64_t)i, rows * in_w[i]);
    }
    for (int i = 0; i < n_out; i++) {
        p.out_w[i] = out_w[i];
        p.out[i] = floats(rows * out_w[i]);
    }
    return p;
}

/* ---- gated delta rule ---- */

/* Keys: unit vectors around one direction (cosine about `cosine` between any two). Gates: g[i] = -slow |normal|, spikes every 7 tokens
 * when spike > 0. */
struct gdn_data {
    int64_t t, h, hv, kd, vd;
    float *q, *k, *v, *g, *beta;
};
static struct gdn_data gdn_data(int64_t t, int64_t h, int64_t hv, int64_t kd, int64_t vd, double cosine, double beta_lo, double beta_hi,
                                double slow, double spike)
{
    struct gdn_data x = {t, h, hv, kd, vd, normals(10, t * h * kd), normals(11, t * h * kd), normals(12, t * hv * vd), normals(13, t * hv),
                         floats(t * hv)};
    float *axis = normals(14, kd);
    for (int64_t i = 0; i < t * h; i++) {
        double nq = 0, nk = 0, na = 0;
        float *q = x.q + i * kd, *k = x.k + i * kd;
        for (int64_t c = 0; c < kd; c++)
            na += (double)axis[c] * (double)axis[c];
        for (int64_t c = 0; c < kd; c++) {
            k[c] = (float)(sqrt(cosine) * (double)axis[c] * sqrt((double)kd / na) + sqrt(1 - cosine) * (double)k[c]);
            nq += (double)q[c] * (double)q[c];
            nk += (double)k[c] * (double)k[c];
        }
        for (int64_t c = 0; c < kd; c++) {
            q[c] = (float)((double)q[c] / sqrt(nq));
            k[c] = (float)((double)k[c] / sqrt(nk));
        }
    }
    for (int64_t i = 0; i < t * hv; i++) {
        x.g[i] = (float)(spike > 0 && i / hv % 7 == 3 ? -spike : -slow * fabs((double)x.g[i]));
        x.beta[i] = (float)(beta_lo + (beta_hi - beta_lo) * ctr_uniform(SEED, 15, (uint64_t)i));
    }
    free(axis);
    return x;
}
static void gdn_data_free(struct gdn_data *x)
{
    free(x->q), free(x->k), free(x->v), free(x->g), free(x->beta);
}

struct gdn_out {
    float *o, *s, *ainv, *hs, *dq, *dk, *dv, *dg, *dbeta;
};
static struct gdn_out gdn_out(const struct gdn_data *x)
{
    int64_t kv = x->hv * x->kd * x->vd;
    return (struct gdn_out){floats(x->t * x->hv * x->vd), floats(kv), floats(x->t * x->hv * GDN_CHUNK),
                            floats(CEIL_DIV(x->t, GDN_CHUNK) * kv), floats(x->t * x->h * x->kd), floats(x->t * x->h * x->kd),
                            floats(x->t * x->hv * x->vd), floats(x->t * x->hv), floats(x->t * x->hv)};
}
static void gdn_out_free(struct gdn_out *y)
{
    free(y->o), free(y->s), free(y->ainv), free(y->hs), free(y->dq), free(y->dk), free(y->dv), free(y->dg), free(y->dbeta);
}
/* Forward on tokens t0..t0+n-1 from state s_in (NULL zeros). */
static void gdn_forward(struct backend *be, const struct gdn_data *x, struct gdn_out *y, int64_t t0, int32_t n, float *s_in, bool save)
{
    int32_t off[2] = {0, n};
    struct seqs s = {.n = 1, .rows = n, .q_off = off};
    int64_t kv = x->hv * x->kd * x->vd;
    be_gdn(be, &(struct op_gdn){.o = f32(y->o + t0 * x->hv * x->vd, n * x->hv * x->vd), .s_out = f32(y->s, kv),
                                .ainv = save ? f32(y->ainv, n * x->hv * GDN_CHUNK) : NO_VIEW, .hs = save
                                ? f32(y->hs, CEIL_DIV(n, GDN_CHUNK) * kv) : NO_VIEW, .q = f32(x->q + t0 * x->h * x->kd, n * x->h * x->kd),
                                .k = f32(x->k + t0 * x->h * x->kd, n * x->h * x->kd), .v = f32(x->v + t0 * x->hv * x->vd,
                                    n * x->hv * x->vd), .g = f32(x->g + t0 * x->hv, n * x->hv),
                                .beta = f32(x->beta + t0 * x->hv, n * x->hv), .s_in = f32(s_in, kv), .seqs = &s, .h = x->h, .hv = x->hv,
                                .kdim = x->kd, .vdim = x->vd, .scale = 1 / sqrt((double)x->kd)});
    synced(be);
}
static void gdn_backward(struct backend *be, const struct gdn_data *x, struct gdn_out *y, float *d_o, bool saved)
{
    int32_t off[2] = {0, (int32_t)x->t};
    struct seqs s = {.n = 1, .rows = x->t, .q_off = off};
    int64_t qk = x->t * x->h * x->kd, v = x->t * x->hv * x->vd, g = x->t * x->hv;
    be_gdn_bwd(be, &(struct op_gdn_bwd){.dq = f32(y->dq, qk), .dk = f32(y->dk, qk), .dv = f32(y->dv, v), .dg = f32(y->dg, g),
                                        .dbeta = f32(y->dbeta, g), .d_o = f32(d_o, v), .q = f32(x->q, qk), .k = f32(x->k, qk),
                                        .v = f32(x->v, v), .g = f32(x->g, g), .beta = f32(x->beta, g),
                                        .ainv = saved ? f32(y->ainv, g * GDN_CHUNK) : NO_VIEW, .hs = saved
                                        ? f32(y->hs, CEIL_DIV(x->t, GDN_CHUNK) * x->hv * x->kd * x->vd) : NO_VIEW, .seqs = &s, .h = x->h,
                                        .hv = x->hv, .kdim = x->kd, .vdim = x->vd, .scale = 1 / sqrt((double)x->kd)});
    synced(be);
}
struct gdn_truth {
    struct view o, s, dq, dk, dv, dg, dbeta;
};
static struct gdn_truth gdn_truth(struct backend *ref, const struct gdn_data *x, const float *d_o)
{
    int32_t off[2] = {0, (int32_t)x->t};
    struct seqs s = {.n = 1, .rows = x->t, .q_off = off};
    int64_t nqk = x->t * x->h * x->kd, nv = x->t * x->hv * x->vd, ng = x->t * x->hv;
    struct view q = f64(x->q, nqk), k = f64(x->k, nqk), v = f64(x->v, nv), g = f64(x->g, ng), beta = f64(x->beta, ng), go = f64(d_o, nv);
    struct gdn_truth r = {zeros64(nv), zeros64(x->hv * x->kd * x->vd), zeros64(nqk), zeros64(nqk), zeros64(nv), zeros64(ng), zeros64(ng)};
    double scale = 1 / sqrt((double)x->kd);
    be_gdn(ref, &(struct op_gdn){.o = r.o, .s_out = r.s, .q = q, .k = k, .v = v, .g = g, .beta = beta, .seqs = &s, .h = x->h, .hv = x->hv,
                                 .kdim = x->kd, .vdim = x->vd, .scale = scale});
    be_gdn_bwd(ref, &(struct op_gdn_bwd){.dq = r.dq, .dk = r.dk, .dv = r.dv, .dg = r.dg, .dbeta = r.dbeta, .d_o = go, .q = q, .k = k,
                                         .v = v, .g = g, .beta = beta, .seqs = &s, .h = x->h, .hv = x->hv, .kdim = x->kd, .vdim = x->vd,
                                         .scale = scale});
    synced(ref);
    free(q.p), free(k.p), free(v.p), free(g.p), free(beta.p), free(go.p);
    return r;
}
static void gdn_truth_free(struct gdn_truth *r)
{
    free(r->o.p), free(r->s.p), free(r->dq.p), free(r->dk.p), free(r->dv.p), free(r->dg.p), free(r->dbeta.p);
}

/*
 * Relative rms limits. The operator notes measured bf16 operands (unit roundoff 2^-9) with float sums at d = 128, T = 1024 for three
 * kinds of keys; float operands have 2^-24, so those values times 2^-15, times 8 because float sums, free there, now round as coarsely
 * as the operands: a chain of n <= 128 adds about sqrt(n) / 2 < 6 roundings to each.
 */
struct limits {
    double o, s, dq, dk, dv, dg, dbeta;
};
static const struct limits limits_a = {3.8e-3, 3.0e-3, 3.4e-3, 3.7e-3, 3.2e-3, 3.7e-3, 3.3e-3},
    limits_b = {8.1e-3, 3.5e-3, 4.1e-3, 4.7e-3, 7.7e-3, 1.1e-2, 6.8e-3},
                           limits_c = {1.9e-2, 5.2e-3, 5.3e-3, 1.3e-2, 2.1e-2, 1.3e-2, 2.3e-2},
                           /* all but equal keys: the double reference's dg moves by 4.1e-6 = 2^-15 x 0.135 when q, k, v change by a
                            * relative 2^-24 at random */
                           limits_d = {1.9e-2, 5.2e-3, 5.3e-3, 1.3e-2, 2.1e-2, 0.135, 2.3e-2};

static void gdn_against_truth(const struct env *v, const char *what, int slot, struct gdn_data x, struct limits m)
{
    static const char why[] = "bf16 table x 2^-15 x 8";
    float *go = normals(16, x.t * x.hv * x.vd);
    struct gdn_out y = gdn_out(&x), replayed = gdn_out(&x);
    struct gdn_truth r = gdn_truth(v->ref, &x, go);
    char name[100];
    double f = 0x1p-15 * 8;
    gdn_forward(v->be, &x, &y, 0, (int32_t)x.t, NULL, true);
    gdn_backward(v->be, &x, &y, go, true);
    gdn_backward(v->be, &x, &replayed, go, false);
#define RMS(field)                                                     \
    snprintf(name, sizeof name, "gdn %s: " #field, what);              \
    rms(name, y.field, r.field, m.field *f, why)
    RMS(o);
    RMS(s);
    RMS(dq);
    RMS(dk);
    RMS(dv);
    RMS(dg);
    RMS(dbeta);
#undef RMS
    bits("gdn: backward without saved states", y.dk, replayed.dk, x.t * x.h * x.kd);
    bits("gdn: backward without saved states, dg", y.dg, replayed.dg, x.t * x.hv);
    same_everywhere(v, what, slot, y.o, x.t * x.hv * x.vd);
    same_everywhere(v, what, slot + 1, y.dk, x.t * x.h * x.kd);
    same_everywhere(v, what, slot + 2, y.dg, x.t * x.hv);
    gdn_out_free(&y), gdn_out_free(&replayed), gdn_truth_free(&r), gdn_data_free(&x);
    free(go);
}

/* All keys equal and beta = 1: L is all ones below the diagonal, its inverse 1 on the diagonal, -1 below it and exactly 0 elsewhere. */
static void gdn_parallel(const struct env *v)
{
    struct gdn_data x = gdn_data(150, 1, 2, 16, 24, 0, 1, 1, 0.1, 0);
    struct gdn_out y = gdn_out(&x);
    for (int64_t i = 0; i < x.t * x.kd; i++)
        x.k[i] = i % x.kd == 5;
    gdn_forward(v->be, &x, &y, 0, (int32_t)x.t, NULL, true);
    int wrong = 0;
    for (int64_t i = 0; i < x.t; i++)
        for (int64_t h = 0; h < x.hv; h++)
            for (int64_t j = 0; j < MIN(GDN_CHUNK, x.t - i / GDN_CHUNK * GDN_CHUNK); j++) {
                int64_t r = i % GDN_CHUNK;
                wrong += y.ainv[(i * x.hv + h) * GDN_CHUNK + j] != (float)(j == r ? 1 : j == r - 1 ? -1 : 0);
            }
    CHECK_EQ_I(wrong, 0);
    gdn_out_free(&y), gdn_data_free(&x);
}

/* State handed on: at multiples of the chunk the same bits, token by token the same numbers up to rounding. */
static void gdn_states(const struct env *v)
{
    struct gdn_data x = gdn_data(200, 2, 4, KD, VD, 0.5, 0.1, 0.99, 0.2, 30);
    struct gdn_out whole = gdn_out(&x), part = gdn_out(&x), steps = gdn_out(&x);
    static const int32_t at[] = {0, 64, 192, 200};
    gdn_forward(v->be, &x, &whole, 0, 200, NULL, false);
    for (size_t i = 0; i + 1 < ARRAY_LEN(at); i++)
        gdn_forward(v->be, &x, &part, at[i], at[i + 1] - at[i], i ? part.s : NULL, false);
    for (int64_t t = 0; t < 200; t++)
        gdn_forward(v->be, &x, &steps, t, 1, t ? steps.s : NULL, false);
    bits("gdn in pieces of whole chunks: o", whole.o, part.o, 200 * x.hv * x.vd);
    bits("gdn in pieces of whole chunks: state", whole.s, part.s, x.hv * x.kd * x.vd);
    struct view o = f64(whole.o, 200 * x.hv * x.vd), s = f64(whole.s, x.hv * x.kd * x.vd);
    rms("gdn token by token: o", steps.o, o, limits_b.o * 0x1p-15 * 8, "as against the truth");
    rms("gdn token by token: state", steps.s, s, limits_b.s * 0x1p-15 * 8, "as against the truth");
    same_everywhere(v, "gdn steps", 40, steps.o, 200 * x.hv * x.vd);
    free(o.p), free(s.p);
    gdn_out_free(&whole), gdn_out_free(&part), gdn_out_free(&steps), gdn_data_free(&x);
}

static void conv_pieces(const struct env *v)
{
    enum { N = 50, DIM = 35 };
    float *x = normals(30, N * DIM), *w = normals(31, DIM * 4), *whole = floats(N * DIM), *part = floats(N * DIM), *state = floats(3 * DIM);
    static const int32_t at[] = {0, 1, 2, 20, 21, 50};
    for (size_t i = 0; i < ARRAY_LEN(at); i++) {
        int32_t from = i ? at[i - 1] : 0, n = i ? at[i] - from : N, off[2] = {0, n};
        struct seqs s = {.n = 1, .rows = n, .q_off = off};
        be_conv(v->be, &(struct op_conv){.y = f32((i ? part : whole) + from * DIM, n * DIM), .x = f32(x + from * DIM, n * DIM),
                                         .w = f32(w, DIM * 4), .state = i ? f32(state, 3 * DIM) : NO_VIEW, .seqs = &s, .dim = DIM,
                                         .width = 4});
    }
    synced(v->be);
    bits("convolution in pieces", whole, part, N * DIM);
    bits("convolution state = the last inputs", state, x + (N - 3) * DIM, 3 * DIM);
    free(x), free(w), free(whole), free(part), free(state);
}

static void run_all(const struct env *v)
{
    int32_t off[PACK + 1];
    int64_t rows = pack_offsets(off);
    printf("---- %s\n", v->be->desc);
    attn_caches(v);
    attn_rings(v);
    attn_windows(v);
    struct pack p = pack_make(rows, 4, (int64_t[]){H * KD, G * KD, G * VD, H * VD}, 7, (int64_t[]){H * VD, H, H * VD, H, H * KD, G * KD,
                                  G * VD});
    packed(v, "attention", 10, pack_attn, &p);
    p = pack_make(rows, 6, (int64_t[]){G * KD, G * KD, H * VD, H, H, H * VD}, 6, (int64_t[]){H * VD, G * KD, G * KD, H * VD, H, H});
    for (int64_t i = 0; i < rows * H; i++) {
        p.in[3][i] = -fabsf(p.in[3][i]);
        p.in[4][i] = 1 / (1 + fabsf(p.in[4][i]));
    }
    for (int64_t i = 0; i < rows * G * KD; i++) /* shorter than unit keys: contractions */
        p.in[1][i] *= 0.2f;
    packed(v, "gdn", 18, pack_gdn, &p);
    p = pack_make(MAX(rows, 4), 3, (int64_t[]){35, 35, 35}, 3, (int64_t[]){35, 35, 35});
    packed(v, "convolution", 25, pack_conv, &p);
    gdn_against_truth(v, "spikes of -30", 28, gdn_data(130, 2, 4, 24, 40, 0, 0.1, 0.9, 0.3, 30), limits_a);
    gdn_against_truth(v, "spikes of -300", 31, gdn_data(70, 1, 1, 16, 16, 0.5, 0.1, 0.99, 0.05, 300), limits_b);
    gdn_against_truth(v, "nearly parallel keys", 34, gdn_data(256, 1, 1, 64, 64, 0.9, 0.93, 0.97, 0.01, 0), limits_c);
    if (v->first) /* the size that the limits come from */
        gdn_against_truth(v, "nearly parallel keys, 1024 tokens", 41, gdn_data(1024, 1, 1, 128, 128, 0.9, 0.93, 0.97, 0.01, 0), limits_c);
    gdn_against_truth(v, "cosine 1 - 1e-4, beta 1 - 1e-3", 37, gdn_data(100, 1, 1, 32, 32, 0.9999, 0.999, 1, 0.001, 0), limits_d);
    gdn_parallel(v);
    gdn_states(v);
    conv_pieces(v);
}

int main(int argc, char **argv)
{
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    struct err e_ = ERR_INIT, *e = &e_;
    struct pool *pool[2];
    struct env v = {.first = true};
    const char *only = argc == 3 && !strcmp(argv[1], "-i") ? argv[2] : NULL;
    if (pool_open(&pool[0], 1, e) != 0 || pool_open(&pool[1], 4, e) != 0 || backend_open(&v.ref,
            &(struct backend_opts){.name = "ref64", .pool = pool[1]}, e) != 0) {
        printf("FAIL: %s\n", e->msg);
        return 1;
    }
    int ran = 0;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++)
        for (int t = 0; t < 2; t++) {
            if (only && strcmp(only, isas[i]))
                continue;
            if (backend_open(&v.be, &(struct backend_opts){.name = "cpu", .isa = isas[i], .pool = pool[t]}, e) != 0) {
                printf("SKIPPED: %s: %s\n", isas[i], e->msg);
                if (e->code != E_ENV)
                    test_failed++;
                continue;
            }
            run_all(&v);
            v.first = false;
            ran++;
            backend_close(v.be);
        }
    backend_close(v.ref);
    pool_close(pool[0]);
    pool_close(pool[1]);
    return ran ? test_end() : test_skip("no cpu backend on this machine");
}
