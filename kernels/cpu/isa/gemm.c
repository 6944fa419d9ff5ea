/*
 * Matrix product. Each element of C is one FMA chain over k ascending, started from C (accumulate) or 0; the bias is added to its end. Tile
 * sizes, blocking, threads and instruction set therefore cannot change a bit.
 *
 * An item of the pool is a tile of C, mb x nb. For every block of KC steps of k it goes over panels of MR rows: A's panel is packed to
 * [k][AS] (first-level cache) and meets all of B's panels, packed to [k][NR] (second-level cache) when the first panel of rows comes by.
 * Between blocks of k the chains rest in C. Each item packs for itself: no memory is shared and no barrier is needed; with 100 rows an
 * element of B is used long enough to hide its packing.
 *
 * A product of up to 2 MR rows with a weight stored [n, k] uses each element of the weight too rarely for packing to pay; 16 x 16 blocks
 * are transposed in registers and used on the spot.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#if defined(ISA_avx512)
enum { MR = 14, NV = 2, AS = 16 };
#define EACH_MR(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif defined(ISA_avx2)
enum { MR = 6, NV = 1, AS = 8 };
#define EACH_MR(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
enum { MR = 4, NV = 1, AS = 4 };
#define EACH_MR(X) X(1) X(2) X(3) X(4)
#endif
enum { NR = 16 * NV, KC = 384, NB = 384, MIN_ROWS = 8 * MR, THIN = 2 * MR };

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

struct product {
    const float *a, *b, *bias;
    float *c;
    int64_t m, n, k, lda, ldb, ldc;
    bool ta, tb, accumulate;
    int64_t mb, nb, tiles_n, kc; /* tile of an item; step of k */
    float *scratch;
    int64_t scratch_floats; /* per worker */
};

/* ---- register tile ---- */

/* C[mr, NR] = (zero ? 0 : C) + A panel B panel + bias (NULL: none). */
V16_INLINE void tile(const int mr, const float *a, const float *b, int64_t kc, float *c, int64_t ldc, bool zero, const float *bias)
{
    v16 acc[MR][NV];
    if (zero)
        UNROLL
    for (int r = 0; r < mr; r++)
        UNROLL
    for (int v = 0; v < NV; v++)
        __builtin_prefetch(c + r * ldc + 16 * v, 1, 3);
    UNROLL
    for (int r = 0; r < mr; r++)
        UNROLL
    for (int v = 0; v < NV; v++)
        acc[r][v] = zero ? v16_zero() : v16_load(c + r * ldc + 16 * v);
    for (int64_t p = 0; p < kc; p++, a += AS, b += NR) {
        v16 bv[NV];
        UNROLL
        for (int v = 0; v < NV; v++)
            bv[v] = v16_load(b + 16 * v);
        UNROLL
        for (int r = 0; r < mr; r++) {
            v16 av = v16_set1(a[r]);
            UNROLL
            for (int v = 0; v < NV; v++)
                acc[r][v] = v16_fma(av, bv[v], acc[r][v]);
        }
    }
    UNROLL
    for (int r = 0; r < mr; r++)
        UNROLL
    for (int v = 0; v < NV; v++)
        v16_store(c + r * ldc + 16 * v, bias ? v16_add(acc[r][v], v16_load(bias + 16 * v)) : acc[r][v]);
}

#define TILE(mr)                                                                                                                           \
    static void tile_##mr(const float *a, const float *b, int64_t kc, float *c, int64_t ldc, bool zero, const float *bias)                 \
    {                                                                                                                                      \
        tile(mr, a, b, kc, c, ldc, zero, bias);                                                                                            \
    }
EACH_MR(TILE)
#define TILE_NAME(mr) tile_##mr,
static void (*const tiles[])(const float *, const float *, int64_t, float *, int64_t, bool, const float *) = {NULL, EACH_MR(TILE_NAME)};

/* Fewer than NR columns: computed in a buffer, the packed B is zero there. */
static void tile_edge(int mr, int64_t nr, const float *a, const float *b, int64_t kc, float *c, int64_t ldc, bool zero, const float *bias)
{
    float t[MR * NR], t_bias[NR] = {0};
    memset(t, 0, sizeof t);
    for (int r = 0; !zero && r < mr; r++)
        memcpy(t + r * NR, c + r * ldc, (size_t)nr * sizeof *c);
    if (bias)
        memcpy(t_bias, bias, (size_t)nr * sizeof *bias);
    tiles[mr](a, b, kc, t, NR, zero, bias ? t_bias : NULL);
    for (int r = 0; r < mr; r++)
        memcpy(c + r * ldc, t + r * NR, (size_t)nr * sizeof *c);
}

/* ---- packing ---- */

/* By integers: the address may lie outside of the matrix, where a prefetch does nothing. */
V16_INLINE void prefetch(const float *p, int64_t floats)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)floats * sizeof *p), 0, 2);
}

#if defined(ISA_avx512)
/* 16 x 16: lane j of x[i] becomes lane i of x[j]. */
V16_INLINE void transpose16(v16 x[16])
{
    v16 t[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4)
        UNROLL
    for (int h = 0; h < 2; h++) {
        __m512d a = _mm512_castps_pd(t[i + h]), b = _mm512_castps_pd(t[i + 2 + h]);
        x[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        x[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    UNROLL
    for (int i = 0; i < 4; i++) { /* quarters: x[i], x[4+i], x[8+i], x[12+i] */
        t[i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        x[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        x[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
        x[4 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0x88);
        x[12 + i] = _mm512_shuffle_f32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

/* dst[p][0..15] = src[j][p], j < n <= 16 (else 0), p < k; row strides ldd, lds. */
static void pack16(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t n, int64_t k, int64_t ahead)
{
    for (int64_t p = 0; p < k; p += 16) {
        v16 x[16];
        __mmask16 m = k - p >= 16 ? 0xffff : (__mmask16)((1u << (k - p)) - 1);
        if (n == 16) {
            UNROLL
            for (int j = 0; j < 16; j++) {
                prefetch(src + j * lds + p, ahead * lds);
                x[j] = _mm512_maskz_loadu_ps(m, src + j * lds + p);
            }
        } else {
            UNROLL
            for (int j = 0; j < 16; j++) {
                prefetch(src + j * lds + p, ahead * lds);
                x[j] = j < n ? _mm512_maskz_loadu_ps(m, src + j * lds + p) : v16_zero();
            }
        }
        transpose16(x);
        if (k - p >= 16) {
            UNROLL
            for (int j = 0; j < 16; j++)
                v16_store(dst + (p + j) * ldd, x[j]);
        } else {
            for (int j = 0; j < k - p; j++)
                v16_store(dst + (p + j) * ldd, x[j]);
        }
    }
}

/* dst[p][j] = src[j][p] for j < n (else 0, up to width), p < k. */
static void pack_across(float *dst, int64_t width, const float *src, int64_t lds, int64_t n, int64_t k)
{
    for (int64_t j = 0; j < width; j += 16)
        pack16(dst + j, width, src + j * lds, lds, MIN(MAX(n - j, (int64_t)0), (int64_t)16), k, MIN(width, (int64_t)n));
}
#else
#if defined(ISA_avx2)
/* 8 x 8 of the same. */
V16_INLINE void transpose8(float *dst, int64_t ldd, const float *src, int64_t lds)
{
    __m256 x[8], t[8];
    UNROLL
    for (int i = 0; i < 8; i++)
        x[i] = _mm256_loadu_ps(src + i * lds);
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(dst + i * ldd, _mm256_permute2f128_ps(x[i], x[4 + i], 0x20));
        _mm256_storeu_ps(dst + (4 + i) * ldd, _mm256_permute2f128_ps(x[i], x[4 + i], 0x31));
    }
}
#endif
static void pack_across(float *dst, int64_t width, const float *src, int64_t lds, int64_t n, int64_t k)
{
    int64_t j = 0;
#if defined(ISA_avx2)
    for (; j + 8 <= n; j += 8) {
        int64_t p = 0;
        for (; p + 8 <= k; p += 8)
            transpose8(dst + p * width + j, width, src + j * lds + p, lds);
        for (; p < k; p++)
            for (int64_t i = 0; i < 8; i++)
                dst[p * width + j + i] = src[(j + i) * lds + p];
    }
#endif
    for (int64_t p = 0; p < k; p++)
        for (int64_t i = j; i < width; i++)
            dst[p * width + i] = i < n ? src[i * lds + p] : 0.0f;
}
#endif

/* dst[p][j] = src[p][j] for j < n (else 0, up to width), p < k. The next panel lies beside this one in every row: it is called for early.
 */
static void pack_along(float *dst, int64_t width, const float *src, int64_t lds, int64_t n, int64_t k)
{
    int64_t w = MIN(n, width);
    for (int64_t p = 0; p < k; p++, dst += width, src += lds) {
        int64_t j = 0;
        prefetch(src, 2 * width - 1);
        if (width == AS && w == AS) {
            memcpy(dst, src, AS * sizeof *dst);
            continue;
        }
        for (; j + 16 <= w; j += 16)
            v16_store(dst + j, v16_load(src + j));
        for (; j < width; j += 16)
            v16_store_n(dst + j, v16_load_n(src + j, (int)MAX(w - j, (int64_t)0)), (int)MIN(width - j, (int64_t)16));
    }
}

static void pack_a(const struct product *g, float *dst, int64_t r, int64_t p, int64_t kc)
{
    int64_t rows = MIN((int64_t)AS, g->m - r); /* those beyond MR are not used; whole vectors are quicker than masked ones */
    if (g->ta)
        pack_along(dst, AS, g->a + p * g->lda + r, g->lda, rows, kc);
    else
        pack_across(dst, AS, g->a + r * g->lda + p, g->lda, rows, kc);
}

static void pack_b(const struct product *g, float *dst, int64_t n, int64_t p, int64_t kc)
{
    int64_t cols = MIN((int64_t)NR, g->n - n);
    if (g->tb)
        pack_across(dst, NR, g->b + n * g->ldb + p, g->ldb, cols, kc);
    else
        pack_along(dst, NR, g->b + p * g->ldb + n, g->ldb, cols, kc);
}

/* ---- items ---- */

static void tile_item(void *ctx, int64_t item, int worker)
{
    const struct product *g = ctx;
    int64_t m0 = item / g->tiles_n * g->mb, m1 = MIN(m0 + g->mb, g->m), n0 = item % g->tiles_n * g->nb, n1 = MIN(n0 + g->nb, g->n);
    float *pa = g->scratch + worker * g->scratch_floats, *pb = pa + KC * AS;
    for (int64_t p = 0; p < g->k; p += g->kc) {
        int64_t kc = MIN(g->kc, g->k - p);
        bool zero = p == 0 && !g->accumulate, last = p + kc == g->k;
        for (int64_t r = m0; r < m1; r += MR) {
            int mr = (int)MIN((int64_t)MR, m1 - r);
            pack_a(g, pa, r, p, kc);
            for (int64_t n = n0; n < n1; n += NR) {
                float *b = pb + (n - n0) * kc, *c = g->c + r * g->ldc + n;
                const float *bias = last && g->bias ? g->bias + n : NULL;
                if (r == m0)
                    pack_b(g, b, n, p, kc);
                if (n1 - n >= NR)
                    tiles[mr](pa, b, kc, c, g->ldc, zero, bias);
                else
                    tile_edge(mr, n1 - n, pa, b, kc, c, g->ldc, zero, bias);
            }
        }
    }
}

#if defined(ISA_avx512)
/* C[m, 16] from row r0 on, m <= MR: 16 x 16 blocks of the weight are transposed in registers and used at once. */
V16_INLINE void thin(const int m, const struct product *g, int64_t r0, int64_t n0)
{
    const float *a = g->a + r0 * g->lda;
    float *c = g->c + r0 * g->ldc + n0;
    int64_t n = MIN(g->n - n0, (int64_t)16);
    v16 acc[THIN];
    UNROLL
    for (int r = 0; r < m; r++)
        acc[r] = g->accumulate ? v16_load_n(c + r * g->ldc, (int)n) : v16_zero();
    for (int64_t p = 0; p < g->k; p += 16) {
        const float *b = g->b + n0 * g->ldb + p;
        v16 x[16];
        int steps = (int)MIN(g->k - p, (int64_t)16);
        if (n == 16 && steps == 16)
            UNROLL
        for (int j = 0; j < 16; j++)
            x[j] = v16_load(b + j * g->ldb);
        else for (int j = 0; j < 16; j++) x[j] = j < n ? v16_load_n(b + j * g->ldb, steps) : v16_zero();
        transpose16(x);
        if (steps == 16)
            UNROLL
        for (int j = 0; j < 16; j++)
            UNROLL
        for (int r = 0; r < m; r++)
            acc[r] = v16_fma(v16_set1(a[r * g->lda + p + j]), x[j], acc[r]);
        else for (int j = 0; j < steps; j++) for (int r = 0; r < m; r++) acc[r] = v16_fma(v16_set1(a[r * g->lda + p + j]), x[j], acc[r]);
    }
    UNROLL
    for (int r = 0; r < m; r++) {
        v16 y = g->bias ? v16_add(acc[r], v16_load_n(g->bias + n0, (int)n)) : acc[r];
        v16_store_n(c + r * g->ldc, y, (int)n);
    }
}

#define THIN_ROWS(m)                                                                                                                       \
    static void thin_##m(const struct product *g, int64_t r0, int64_t n0)                                                                  \
    {                                                                                                                                      \
        thin(m, g, r0, n0);                                                                                                                \
    }
EACH_MR(THIN_ROWS)
#define THIN_NAME(m) thin_##m,
static void (*const thins[])(const struct product *, int64_t, int64_t) = {NULL, EACH_MR(THIN_NAME)};

static void thin_item(void *ctx, int64_t item, int worker)
{
    const struct product *g = ctx;
    int64_t half = g->m <= MR ? g->m : CEIL_DIV(g->m, 2);
    UNUSED(worker);
    for (int64_t n = item * g->nb; n < MIN((item + 1) * g->nb, g->n); n += 16)
        for (int64_t r = 0; r < g->m; r += half)
            thins[MIN(half, g->m - r)](g, r, n);
}
#endif

/* Tiles: columns by NB, evenly; then rows until there are a few items for each thread, as long as an item keeps MIN_ROWS; then fewer
 * columns. */
static void choose_tiles(struct product *g, int threads)
{
    int64_t want = threads == 1 ? 1 : 2 * threads;
    double work = (double)MAX(g->m, (int64_t)MR) * (double)g->n * (double)g->k; /* an item is not worth handing over below some 10 us */
    want = (int64_t)MAX(1.0, MIN((double)want, work / 5e5));
    int64_t cols = CEIL_DIV(g->n, NB), rows = MAX((int64_t)1, MIN(CEIL_DIV(want, cols), g->m / MIN_ROWS));
    cols = MAX(cols, MIN(CEIL_DIV(want, rows), CEIL_DIV(g->n, 2 * NR)));
    g->nb = CEIL_DIV(CEIL_DIV(g->n, cols), NR) * NR;
    g->mb = CEIL_DIV(CEIL_DIV(g->m, rows), MR) * MR;
    g->tiles_n = CEIL_DIV(g->n, g->nb);
    g->kc = CEIL_DIV(g->k, CEIL_DIV(g->k, KC));
}

/* k = 0: the empty sum, then the bias. */
static void no_steps(const struct product *g)
{
    for (int64_t r = 0; r < g->m; r++)
        for (int64_t j = 0; j < g->n; j++) {
            float *c = g->c + r * g->ldc + j, start = g->accumulate ? *c : 0.0f;
            *c = g->bias ? start + g->bias[j] : start;
        }
}

void ISA_NAME(gemm)(struct backend *be, const struct op_gemm *d)
{
    struct product g = {.a = cpu_f(d->a),
                        .b = cpu_f(d->b),
                        .bias = cpu_f(d->bias),
                        .c = cpu_f(d->c),
                        .m = d->m,
                        .n = d->n,
                        .k = d->k,
                        .ta = d->ta,
                        .tb = d->tb,
                        .accumulate = d->accumulate};
    g.lda = d->lda ? d->lda : d->ta ? d->m : d->k;
    g.ldb = d->ldb ? d->ldb : d->tb ? d->k : d->n;
    g.ldc = d->ldc ? d->ldc : d->n;
    if (g.m == 0 || g.n == 0)
        return;
    if (g.k == 0) {
        no_steps(&g);
        return;
    }
    choose_tiles(&g, cpu_workers(be));
#if defined(ISA_avx512)
    if (g.tb && !g.ta && g.m <= THIN) {
        pool_run(be->pool, g.tiles_n, thin_item, &g);
        return;
    }
#endif
    g.scratch_floats = KC * AS + KC * (NB + NR);
    g.scratch = cpu_scratch_slot(be, 1, (size_t)(cpu_workers(be) * g.scratch_floats) * sizeof *g.scratch);
    if (g.scratch)
        pool_run(be->pool, CEIL_DIV(g.m, g.mb) * g.tiles_n, tile_item, &g);
}
