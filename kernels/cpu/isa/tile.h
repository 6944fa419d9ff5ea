/*
 * Small dense products for attention and GDN. C[m, 16 nv] = start + A[m, k] B[k, 16 nv]: element (i, p) of A is the scalar a[i rs + p
 * cs], rows of B and C are whole 16-lane vectors. Every element of C is one FMA chain over p ascending from its start value, so neither
 * the register tile, nor the split of m, of nv, or of k into consecutive TILE_ADD calls, nor the instruction set can change a bit.
 * Nothing is packed: broadcasts read A in place (plain or transposed), operands with lanes live in padded scratch.
 */
#ifndef KERNELS_CPU_ISA_TILE_H
#define KERNELS_CPU_ISA_TILE_H

#include <stddef.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#if !ISA_avx512 && !ISA_avx2 /* a vector is an array: unrolled, the code would be large and sanitizer builds would take minutes */
#define TILE_UNROLL
#define TILE_INLINE static __attribute__((noinline, unused))
#elif defined(__clang__)
#define TILE_UNROLL _Pragma("unroll")
#define TILE_INLINE static inline __attribute__((always_inline, unused))
#else
#define TILE_UNROLL _Pragma("GCC unroll 8")
#define TILE_INLINE static inline __attribute__((always_inline, unused))
#endif

TILE_INLINE v16 tile_exp(v16 x)
{
    return v16_exp(x);
}
TILE_INLINE v16 tile_log(v16 x)
{
    return v16_log(x);
}

struct tile {
    float *c;
    const float *a, *b, *lanes; /* lanes: TILE_LANES only, a factor for each column of the old C */
    ptrdiff_t ldc, rs, cs, ldb;
    int m, nv, k;
};
enum tile_start { TILE_ZERO, TILE_ADD, TILE_LANES };

/* m rows of nv vectors of C. */
void ISA_NAME(tile_run)(const struct tile *t, enum tile_start start);
/* to[c][r] = from[r][c] factor for c < cols; columns beyond `rows` up to a whole vector become 0. */
void ISA_NAME(tile_transpose)(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, int rows, int cols, float factor);
/* to[r][c] = from[c][r] factor[r] for r < rows, c < cols; rows of from and factor are whole vectors. */
void ISA_NAME(tile_transpose_lanes)(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, const float *factor, int rows, int cols);
#define tile_run ISA_NAME(tile_run)
#define tile_transpose ISA_NAME(tile_transpose)
#define tile_transpose_lanes ISA_NAME(tile_transpose_lanes)

/* Rows of `cols` floats to rows of ldt, a multiple of 16, filled with zeros. */
static inline void tile_pad(float *to, ptrdiff_t ldt, const float *from, ptrdiff_t ldf, int rows, int cols)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < ldt; c += 16)
            v16_store(to + r * ldt + c, c + 16 <= cols ? v16_load(from + r * ldf + c) : c < cols ? v16_load_n(from + r * ldf + c, cols - c)
                      : v16_zero());
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
