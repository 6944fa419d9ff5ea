/* What the elementwise kernels share: lane functions beyond simd.h, loads with tails, and runs over ranges on the pool. */
#ifndef KERNELS_CPU_ISA_VMATH_H
#define KERNELS_CPU_ISA_VMATH_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd.h"

#define LANES(i, n) for (int64_t i = 0; i < (n); i += 16)
/* Elements i..i+15 of p[n]; lanes beyond n are 0 and not touched. */
V16_INLINE v16 ld(const float *p, int64_t i, int64_t n)
{
    return n - i >= 16 ? v16_load(p + i) : v16_load_n(p + i, (int)(n - i));
}
V16_INLINE void st(float *p, int64_t i, int64_t n, v16 x)
{
    if (n - i >= 16)
        v16_store(p + i, x);
    else
        v16_store_n(p + i, x, (int)(n - i));
}

V16_INLINE v16 v16_neg(v16 x)
{
    return v16_mul(x, v16_set1(-1.0f));
}
V16_INLINE v16 v16_abs(v16 x)
{
    return i16_float(i16_and(v16_bits(x), i16_set1(0x7fffffff)));
}

/* q with e^r = 1 + r + r^2 q(r) for |r| <= ln2/2: minimax in relative error, 2.7e-9 before rounding. */
V16_INLINE v16 v16_exp_q(v16 r)
{
    v16 q = v16_set1(0x1.a072eep-13f);
    q = v16_fma(q, r, v16_set1(0x1.6d4364p-10f));
    q = v16_fma(q, r, v16_set1(0x1.11114cp-7f));
    q = v16_fma(q, r, v16_set1(0x1.5554e8p-5f));
    q = v16_fma(q, r, v16_set1(0x1.555556p-3f));
    return v16_fma(q, r, v16_set1(0.5f));
}
static const float EXP_Q_MAX = 0.34657f;

/* ln(1 + x) for x >= 0, accurate near 0: what 1 + x rounds away is put back to first order. */
V16_INLINE v16 v16_log1p(v16 x)
{
    v16 w = v16_add(v16_set1(1.0f), x), lost = v16_sub(x, v16_sub(w, v16_set1(1.0f)));
    return v16_add(v16_log(w), v16_div(lost, w));
}
/* d/dx (x s) with s = sigmoid(x) */
V16_INLINE v16 v16_silu_d(v16 x, v16 s)
{
    return v16_fma(v16_mul(x, s), v16_sub(v16_set1(1.0f), s), s);
}

/*
 * fn(d, part, i0, i1) for consecutive ranges of `step`, on the pool when there are several. part: `width` floats of the range's own for
 * partial sums (base NULL: none). Where a range leaves partial sums, step must depend on shapes only.
 */
struct ranges {
    const void *d;
    void (*fn)(const void *d, float *part, int64_t i0, int64_t i1);
    int64_t n, step, width;
    float *part;
};
static inline void range_item(void *ctx, int64_t item, int worker)
{
    const struct ranges *r = ctx;
    UNUSED(worker);
    r->fn(r->d, r->part ? r->part + item * r->width : NULL, item * r->step, MIN((item + 1) * r->step, r->n));
}
static inline void run_ranges(struct backend *be, struct ranges r)
{
    pool_run(be->pool, CEIL_DIV(r.n, r.step), range_item, &r);
}
/* Rows of `width` elements in an item of about `elements`; a few thousand elements of plain arithmetic pay for handing the item to another
 * thread. */
static inline int64_t rows_of(int64_t elements, int64_t width)
{
    return MAX((int64_t)1, elements / MAX(width, (int64_t)1));
}
/* y[j] += the sum over blocks of part[b][j], blocks ascending. */
static inline void add_parts(float *y, const float *part, int64_t blocks, int64_t stride, int64_t n)
{
    LANES(j, n)
    {
        v16 s = v16_zero();
        for (int64_t b = 0; b < blocks; b++)
            s = v16_add(s, ld(part + b * stride, j, n));
        st(y, j, n, v16_add(ld(y, j, n), s));
    }
}

enum { GRAIN = 16384, GRAIN_EXP = 4096 };

#endif
