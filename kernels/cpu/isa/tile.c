/* The products and transposes of tile.h. */
#include "kernels/cpu/isa/tile.h"

/* One register tile of mr x nv vectors; mr and nv are constants at every call. */
TILE_INLINE void tile_micro(const int mr, const int nv, const struct tile *t, int i, int v, enum tile_start start)
{
    v16 acc[8][4];
    float *c = t->c + i * t->ldc + 16 * v;
    const float *a = t->a + i * t->rs, *b = t->b + 16 * v;
    ptrdiff_t rs = t->rs, cs = t->cs, ldb = t->ldb, ldc = t->ldc;
    if (start == TILE_ZERO) {
        TILE_UNROLL
        for (int r = 0; r < mr; r++) {
            TILE_UNROLL
            for (int w = 0; w < nv; w++)
                acc[r][w] = v16_zero();
        }
    } else {
        TILE_UNROLL
        for (int r = 0; r < mr; r++) {
            TILE_UNROLL
            for (int w = 0; w < nv; w++)
                acc[r][w] = v16_load(c + r * ldc + 16 * w);
        }
        if (start == TILE_LANES) {
            TILE_UNROLL
            for (int r = 0; r < mr; r++) {
                TILE_UNROLL
                for (int w = 0; w < nv; w++)
                    acc[r][w] = v16_mul(acc[r][w], v16_load(t->lanes + 16 * (v + w)));
            }
        }
    }
    for (int p = t->k; p > 0; p--) {
        v16 bv[4];
        TILE_UNROLL
        for (int w = 0; w < nv; w++)
            bv[w] = v16_load(b + 16 * w);
        TILE_UNROLL
        for (int r = 0; r < mr; r++) {
            v16 av = v16_set1(a[r * rs]);
            TILE_UNROLL
            for (int w = 0; w < nv; w++)
                acc[r][w] = v16_fma(av, bv[w], acc[r][w]);
        }
        a += cs;
        b += ldb;
    }
    TILE_UNROLL
    for (int r = 0; r < mr; r++) {
        TILE_UNROLL
        for (int w = 0; w < nv; w++)
            v16_store(c + r * ldc + 16 * w, acc[r][w]);
    }
}

/* All rows of nv columns of vectors that begin at vector v. mr: the register tile's height, full tiles first, then halves. */
#define TILE_COLUMN(NAME, MR, NV)                                                           \
    static void NAME(const struct tile *t, int v, enum tile_start start)                    \
    {                                                                                       \
        int i = 0;                                                                          \
        for (; i + MR <= t->m; i += MR)                                                     \
            tile_micro(MR, NV, t, i, v, start);                                             \
        if (MR > 4 && i + 4 <= t->m) {                                                      \
            tile_micro(4, NV, t, i, v, start);                                              \
            i += 4;                                                                         \
        }                                                                                   \
        if (i + 2 <= t->m) {                                                                \
            tile_micro(2, NV, t, i, v, start);                                              \
            i += 2;                                                                         \
        }                                                                                   \
        if (i < t->m)                                                                       \
            tile_micro(1, NV, t, i, v, start);                                              \
    }
#if ISA_avx512
TILE_COLUMN(tile_column4, 4, 4)
TILE_COLUMN(tile_column2, 8, 2)
TILE_COLUMN(tile_column1, 8, 1)
#else
TILE_COLUMN(tile_column1, 6, 1) /* a vector is two registers of 16 */
#endif

void tile_run(const struct tile *t, enum tile_start start)
{
    int v = 0;
#if ISA_avx512
    for (; v + 4 <= t->nv; v += 4)
        tile_column4(t, v, start);
    for (; v + 2 <= t->nv; v += 2)
        tile_column2(t, v, start);
#endif
    for (; v < t->nv; v++)
        tile_column1(t, v, start);
}

/* Sixteen vectors as rows of a square, transposed in place. */
#if ISA_avx512
TILE_INLINE void tile_square(v16 x[16])
{
    v16 y[16];
    TILE_UNROLL
    for (int i = 0; i < 16; i += 4) { /* 4x4 squares inside the four 128-bit parts: y[i + c] part l: column 4 l + c of rows i .. i + 3 */
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1])), b = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3])), d = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));
        y[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        y[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        y[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        y[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    TILE_UNROLL
    for (int c = 0; c < 4; c++) { /* then the parts */
        v16 even01 = _mm512_shuffle_f32x4(y[c], y[4 + c], 0x88), odd01 = _mm512_shuffle_f32x4(y[c], y[4 + c], 0xdd);
        v16 even23 = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0x88), odd23 = _mm512_shuffle_f32x4(y[8 + c], y[12 + c], 0xdd);
        x[c] = _mm512_shuffle_f32x4(even01, even23, 0x88);
        x[8 + c] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
        x[4 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
        x[12 + c] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
    }
}
#elif ISA_avx2
/* Eight rows of eight. */
TILE_INLINE void tile_eight(__m256 x[8])
{
    __m256 y[8];
    TILE_UNROLL
    for (int i = 0; i < 8; i += 4) {
        __m256 a = _mm256_unpacklo_ps(x[i], x[i + 1]), b = _mm256_unpackhi_ps(x[i], x[i + 1]), c = _mm256_unpacklo_ps(x[i + 2], x[i + 3]);
        __m256 d = _mm256_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm256_shuffle_ps(a, c, 0x44);
        y[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        y[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        y[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    TILE_UNROLL
    for (int c = 0; c < 4; c++) {
        x[c] = _mm256_permute2f128_ps(y[c], y[4 + c], 0x20);
        x[4 + c] = _mm256_permute2f128_ps(y[c], y[4 + c], 0x31);
    }
}
static inline void tile_square(v16 x[16])
{
    __m256 q[4][8]; /* quarters: upper left, upper right, lower left, lower right */
    for (int i = 0; i < 8; i++) {
        q[0][i] = x[i].a;
        q[1][i] = x[i].b;
        q[2][i] = x[8 + i].a;
        q[3][i] = x[8 + i].b;
    }
    for (int i = 0; i < 4; i++)
        tile_eight(q[i]);
    for (int i = 0; i < 8; i++) {
        x[i] = (v16){q[0][i], q[2][i]};
        x[8 + i] = (v16){q[1][i], q[3][i]};
    }
}
#else
TILE_INLINE void tile_square(v16 x[16])
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < i; j++) {
            float t = x[i].f[j];
            x[i].f[j] = x[j].f[i];
            x[j].f[i] = t;
        }
}
#endif

void tile_transpose(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, int rows, int cols, float factor)
{
    v16 f = v16_set1(factor), x[16];
    for (int r = 0; r < rows; r += 16)
        for (int c = 0; c < cols; c += 16) {
            int n = MIN(cols - c, 16), m = MIN(rows - r, 16);
            for (int i = 0; i < 16; i++)
                x[i] = i >= m ? v16_zero() : n == 16 ? v16_load(from + (r + i) * ldf + c) : v16_load_n(from + (r + i) * ldf + c, n);
            tile_square(x);
            for (int i = 0; i < n; i++)
                v16_store(to + (c + i) * ldt + r, v16_mul(x[i], f));
        }
}

void tile_transpose_lanes(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, const float *factor, int rows, int cols)
{
    v16 x[16];
    for (int r = 0; r < rows; r += 16) {
        v16 f = v16_load(factor + r);
        for (int c = 0; c < cols; c += 16) {
            int n = MIN(cols - c, 16), m = MIN(rows - r, 16);
            for (int i = 0; i < 16; i++)
                x[i] = i < n ? v16_mul(v16_load(from + (c + i) * ldf + r), f) : v16_zero();
            tile_square(x);
            for (int i = 0; i < m; i++) {
                if (n == 16)
                    v16_store(to + (r + i) * ldt + c, x[i]);
                else
                    v16_store_n(to + (r + i) * ldt + c, x[i], n);
            }
        }
    }
}
