/*
 * Small dense products for attention and GDN. C[m, 16 nv] = start + A[m, k] B[k, 16 nv]: element (i, p) of A is the scalar a[i rs + p cs], rows of B and C are whole 16-lane
 * vectors. Every element of C is one FMA chain over p ascending from its start value, so neither the register tile, nor the split of m, of nv, or of k into consecutive
 * TILE_ADD calls, nor the instruction set can change a bit. Nothing is packed: broadcasts read A in place (plain or transposed), operands with lanes live in padded scratch.
 */
#ifndef KERNELS_CPU_ISA_TILE_H
#define KERNELS_CPU_ISA_TILE_H

#include <stddef.h>
#include <string.h>

#include "core/base.h"
#include "kernels/cpu/simd.h"

#if defined(__clang__)
#define TILE_UNROLL _Pragma("unroll")
#else
#define TILE_UNROLL _Pragma("GCC unroll 8")
#endif

struct tile {
    float *c;
    const float *a, *b, *lanes; /* lanes: TILE_LANES only, a factor for each column of the old C */
    ptrdiff_t ldc, rs, cs, ldb;
    int m, nv, k;
};
enum tile_start { TILE_ZERO, TILE_ADD, TILE_LANES };

#define TILE_INLINE static inline __attribute__((always_inline))

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
TILE_COLUMN(tile_column1, 4, 1) /* a vector is two registers of 16 */
#endif

static inline void tile_run(const struct tile *t, enum tile_start start)
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

/* to[c][r] = from[r][c] factor for c < cols; rows beyond `rows` up to a whole vector become 0. rows <= 64. */
static inline void tile_transpose(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, int rows, int cols, float factor)
{
    int up = (rows + 15) / 16 * 16;
    for (int c = 0; c < cols; c++) {
        for (int r = 0; r < rows; r++)
            to[c * ldt + r] = from[r * ldf + c] * factor;
        for (int r = rows; r < up; r++)
            to[c * ldt + r] = 0;
    }
}

/* to[r][c] = from[c][r] factor[r] for r < rows, c < cols. */
static inline void tile_transpose_lanes(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, const float *factor, int rows, int cols)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            to[r * ldt + c] = from[c * ldf + r] * factor[r];
}

/* Rows of `cols` floats to rows of ldt, a multiple of 16, filled with zeros. */
static inline void tile_pad(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, int rows, int cols)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < ldt; c += 16)
            v16_store(to + r * ldt + c, c < cols ? v16_load_n(from + r * ldf + c, MIN(cols - c, 16)) : v16_zero());
}

/* Which range first[s] .. first[s + 1] - 1 of n holds item. */
static inline int32_t tile_find(const int64_t *first, int32_t n, int64_t item)
{
    int32_t lo = 0, hi = n - 1;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo + 1) / 2;
        if (first[mid] <= item)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

#endif
