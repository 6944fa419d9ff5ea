/*
 * Matrix product. Each element of C is one FMA chain over k ascending, started from C (accumulate) or 0, so tile sizes, blocking, threads and instruction set cannot change a bit.
 *
 * B is packed into panels of NR columns, [panel][k][NR], zero-filled at the edge; A into panels of MR rows, [k][MR], by each worker. The register tile is MR x NR; k is cut into blocks of KC between which the chain
 * rests in C. Few rows (M <= SMALL_M): each worker packs its own panels of B and multiplies at once, so that B is read once.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#if defined(ISA_avx512)
enum { MR = 8, NV = 3 };
#elif defined(ISA_avx2)
enum { MR = 6, NV = 1 };
#else
enum { MR = 4, NV = 1 };
#endif
enum { NR = 16 * NV, KC = 256, MC = 12 * MR, SMALL_M = 64, NSUB = 4 };
static const int64_t PACK_BYTES = 12 << 20;

#define UNROLL _Pragma("GCC unroll 8")

/* acc[mr][NV] += A panel [kc][MR] x B panel [kc][NR]; C tile [mr][NR] with stride ldc is the start and the end. */
static inline __attribute__((always_inline)) void tile(const int mr, const float *a, const float *b, int64_t kc, float *c, int64_t ldc, bool zero)
{
    v16 acc[MR][NV];
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int v = 0; v < NV; v++) acc[r][v] = zero ? v16_zero() : v16_load(c + r * ldc + 16 * v);
    }
    for (int64_t p = 0; p < kc; p++) {
        v16 bv[NV];
        UNROLL for (int v = 0; v < NV; v++) bv[v] = v16_load(b + p * NR + 16 * v);
        UNROLL for (int r = 0; r < mr; r++)
        {
            v16 av = v16_set1(a[p * MR + r]);
            UNROLL for (int v = 0; v < NV; v++) acc[r][v] = v16_fma(av, bv[v], acc[r][v]);
        }
    }
    UNROLL for (int r = 0; r < mr; r++)
    {
        UNROLL for (int v = 0; v < NV; v++) v16_store(c + r * ldc + 16 * v, acc[r][v]);
    }
}

static void tile_full(const float *a, const float *b, int64_t kc, float *c, int64_t ldc, bool zero)
{
    tile(MR, a, b, kc, c, ldc, zero);
}

/* Edges: the tile is computed in a buffer. A panel rows beyond mr are zero. */
static void tile_edge(int mr, int64_t nr, const float *a, const float *b, int64_t kc, float *c, int64_t ldc, bool zero)
{
    float t[MR * NR];
    memset(t, 0, sizeof t);
    for (int r = 0; !zero && r < mr; r++)
        memcpy(t + r * NR, c + r * ldc, (size_t)nr * sizeof *c);
    if (mr == 1)
        tile(1, a, b, kc, t, NR, zero);
    else if (mr == 2)
        tile(2, a, b, kc, t, NR, zero);
    else if (mr <= 4)
        tile(4, a, b, kc, t, NR, zero);
    else
        tile(MR, a, b, kc, t, NR, zero);
    for (int r = 0; r < mr; r++)
        memcpy(c + r * ldc, t + r * NR, (size_t)nr * sizeof *c);
}

struct job {
    const struct op_gemm *d;
    const float *a, *b, *bias;
    float *c;
    int64_t lda, ldb, ldc;
    float *pack_b;           /* [panels of this block][k][NR] */
    float *scratch;          /* per worker */
    size_t scratch_floats;
    int64_t n0, n1, panels, m_blocks, m_block, n_groups, group;
};

#if defined(ISA_avx512)
/* 16x16 transpose: rows r[i] become columns. */
static inline void transpose16(__m512 r[16])
{
    __m512 t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
#endif

/* dst[p * ld + j] = src[j * lds + p] for j < n (<= width), p < k; columns n..width-1 zero. */
static void pack_transposed(float *dst, int64_t ld, const float *src, int64_t lds, int64_t n, int64_t width, int64_t k)
{
    int64_t j = 0;
#if defined(ISA_avx512)
    for (; j + 16 <= n; j += 16) {
        int64_t p = 0;
        for (; p + 16 <= k; p += 16) {
            __m512 r[16];
            for (int i = 0; i < 16; i++)
                r[i] = _mm512_loadu_ps(src + (j + i) * lds + p);
            transpose16(r);
            for (int i = 0; i < 16; i++)
                _mm512_storeu_ps(dst + (p + i) * ld + j, r[i]);
        }
        for (; p < k; p++)
            for (int i = 0; i < 16; i++)
                dst[p * ld + j + i] = src[(j + i) * lds + p];
    }
#endif
    for (; j < n; j++)
        for (int64_t p = 0; p < k; p++)
            dst[p * ld + j] = src[j * lds + p];
    for (; j < width; j++)
        for (int64_t p = 0; p < k; p++)
            dst[p * ld + j] = 0;
}

static void pack_straight(float *dst, int64_t ld, const float *src, int64_t lds, int64_t n, int64_t width, int64_t k)
{
    for (int64_t p = 0; p < k; p++) {
        memcpy(dst + p * ld, src + p * lds, (size_t)n * sizeof *dst);
        for (int64_t j = n; j < width; j++)
            dst[p * ld + j] = 0;
    }
}

/* Columns n0.. of op(B), rows p0..p0+kc-1, into one panel. */
static void pack_b_panel(const struct job *j, float *dst, int64_t n0, int64_t p0, int64_t kc)
{
    int64_t n = MIN((int64_t)NR, j->d->n - n0);
    if (j->d->tb)
        pack_transposed(dst, NR, j->b + n0 * j->ldb + p0, j->ldb, n, NR, kc);
    else
        pack_straight(dst, NR, j->b + p0 * j->ldb + n0, j->ldb, n, NR, kc);
}

/* Rows m0.. of op(A) into one panel [kc][MR]. */
static void pack_a_panel(const struct job *j, float *dst, int64_t m0, int64_t p0, int64_t kc)
{
    int64_t m = MIN((int64_t)MR, j->d->m - m0);
    if (j->d->ta)
        pack_straight(dst, MR, j->a + p0 * j->lda + m0, j->lda, m, MR, kc);
    else
        pack_transposed(dst, MR, j->a + m0 * j->lda + p0, j->lda, m, MR, kc);
}

static void add_bias(const struct job *j, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    for (int64_t r = m0; j->bias && r < m1; r++)
        for (int64_t n = n0; n < n1; n++)
            j->c[r * j->ldc + n] += j->bias[n];
}

static void run_tile(const struct job *j, const float *a, const float *b, int64_t m0, int64_t n0, int64_t kc, bool zero)
{
    int64_t mr = MIN((int64_t)MR, j->d->m - m0), nr = MIN((int64_t)NR, j->d->n - n0);
    float *c = j->c + m0 * j->ldc + n0;
    if (mr == MR && nr == NR)
        tile_full(a, b, kc, c, j->ldc, zero);
    else
        tile_edge((int)mr, nr, a, b, kc, c, j->ldc, zero);
}

/* ---- many rows: B packed once, items are blocks of rows x groups of panels ---- */

static void pack_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    UNUSED(worker);
    int64_t k = j->d->k, panel = item % j->panels, p0 = item / j->panels * KC;
    pack_b_panel(j, j->pack_b + (panel * k + p0) * NR, j->n0 + panel * NR, p0, MIN((int64_t)KC, k - p0));
}

static void block_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    float *a = j->scratch + (size_t)worker * j->scratch_floats;
    int64_t m0 = item / j->n_groups * j->m_block, m1 = MIN(m0 + j->m_block, j->d->m), g = item % j->n_groups;
    int64_t q0 = g * j->group, q1 = MIN(q0 + j->group, j->panels), k = j->d->k;
    for (int64_t p0 = 0; p0 < k; p0 += KC) {
        int64_t kc = MIN((int64_t)KC, k - p0);
        bool zero = p0 == 0 && !j->d->accumulate;
        for (int64_t m = m0; m < m1; m += MR)
            pack_a_panel(j, a + (m - m0) * kc, m, p0, kc);
        for (int64_t q = q0; q < q1; q++)
            for (int64_t m = m0; m < m1; m += MR)
                run_tile(j, a + (m - m0) * kc, j->pack_b + (q * k + p0) * NR, m, j->n0 + q * NR, kc, zero);
    }
    add_bias(j, m0, m1, j->n0 + q0 * NR, MIN(j->n0 + q1 * NR, j->n1));
}

static void many_rows(struct backend *be, struct job *j)
{
    int workers = cpu_workers(be);
    int64_t m = j->d->m, k = j->d->k, n = j->d->n;
    int64_t cols = MAX((int64_t)NR, PACK_BYTES / (int64_t)sizeof(float) / MAX(k, 1) / NR * NR);
    int64_t max_panels = CEIL_DIV(MIN(cols, n), NR);
    j->m_block = MIN((int64_t)MC, CEIL_DIV(CEIL_DIV(m, 2 * workers), MR) * MR);
    j->scratch_floats = (size_t)(CEIL_DIV(j->m_block, MR) * MR * KC);
    size_t b_floats = (size_t)(max_panels * k * NR);
    float *buf = cpu_scratch_slot(be, 1, (b_floats + (size_t)workers * j->scratch_floats) * sizeof *buf);
    if (!buf)
        return;
    j->pack_b = buf;
    j->scratch = buf + b_floats;
    j->m_blocks = CEIL_DIV(m, j->m_block);
    for (j->n0 = 0; j->n0 < n; j->n0 += max_panels * NR) {
        j->n1 = MIN(j->n0 + max_panels * NR, n);
        j->panels = CEIL_DIV(j->n1 - j->n0, NR);
        j->group = j->m_blocks >= 4 * workers ? j->panels : MAX((int64_t)1, CEIL_DIV(j->panels, CEIL_DIV(4 * workers, j->m_blocks)));
        j->n_groups = CEIL_DIV(j->panels, j->group);
        pool_run(be->pool, j->panels * CEIL_DIV(k, KC), pack_item, j);
        pool_run(be->pool, j->m_blocks * j->n_groups, block_item, j);
    }
}

/* ---- few rows: items are groups of panels, each packed and used by one worker ---- */

static void panel_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    float *b = j->scratch + (size_t)worker * j->scratch_floats, *a = j->pack_b;
    int64_t k = j->d->k, m = j->d->m;
    for (int64_t q = item * NSUB; q < MIN((item + 1) * NSUB, j->panels); q++) {
        for (int64_t p0 = 0; p0 < k; p0 += KC) {
            int64_t kc = MIN((int64_t)KC, k - p0);
            pack_b_panel(j, b, q * NR, p0, kc);
            for (int64_t r = 0; r < m; r += MR)
                run_tile(j, a + (r * k + p0 * MR), b, r, q * NR, kc, p0 == 0 && !j->d->accumulate);
        }
        add_bias(j, 0, m, q * NR, MIN((q + 1) * NR, j->d->n));
    }
}

static void few_rows(struct backend *be, struct job *j)
{
    int64_t m = j->d->m, k = j->d->k, mp = CEIL_DIV(m, MR) * MR;
    j->panels = CEIL_DIV(j->d->n, NR);
    j->scratch_floats = (size_t)KC * NR;
    float *buf = cpu_scratch_slot(be, 1, ((size_t)(mp * k) + (size_t)cpu_workers(be) * j->scratch_floats) * sizeof *buf);
    if (!buf)
        return;
    j->pack_b = buf; /* here: A, [m / MR][k][MR] */
    j->scratch = buf + mp * k;
    for (int64_t r = 0; r < m; r += MR)
        pack_a_panel(j, buf + r * k, r, 0, k);
    pool_run(be->pool, CEIL_DIV(j->panels, NSUB), panel_item, j);
}

void ISA_NAME(gemm)(struct backend *be, const struct op_gemm *d)
{
    struct job j = {.d = d, .a = cpu_f(d->a), .b = cpu_f(d->b), .bias = cpu_f(d->bias), .c = cpu_f(d->c)};
    j.lda = d->lda ? d->lda : d->ta ? d->m : d->k;
    j.ldb = d->ldb ? d->ldb : d->tb ? d->k : d->n;
    j.ldc = d->ldc ? d->ldc : d->n;
    if (d->m == 0 || d->n == 0)
        return;
    if (d->k == 0) {
        for (int64_t r = 0; !d->accumulate && r < d->m; r++)
            memset(j.c + r * j.ldc, 0, (size_t)d->n * sizeof(float));
        add_bias(&j, 0, d->m, 0, d->n);
    } else if (d->m <= SMALL_M)
        few_rows(be, &j);
    else
        many_rows(be, &j);
}
