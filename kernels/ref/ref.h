/*
 * The naive reference: every op as its definition reads, one element after another. Compiled twice, REAL = float and REAL = double; the
 * double build is the truth that the other backends are tested against. Views are REAL (activations and statistics alike). Sums run
 * plainly, in ascending order, in REAL. Speed does not matter here beyond tests of a few seconds; only the matrix product and attention use
 * the pool, by independent rows.
 */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

#define REF_PASTE2(a, b) a##b
#define REF_PASTE(a, b) REF_PASTE2(a, b)
#define REF(op) REF_PASTE(ref_##op##_, REAL) /* ref_gemm_float, ref_gemm_double */

#define X(op) void REF(op)(struct backend * be, const struct op_##op *d);
BACKEND_OPS(X)
#undef X

static inline REAL *ref_p(struct view v)
{
    return v.p;
}
static inline const int32_t *ref_i32(struct view v)
{
    return v.p;
}
/* libm in double, rounded once; the float build has no second source of error. */
static inline REAL ref_exp(REAL x)
{
    return (REAL)exp((double)x);
}
static inline REAL ref_log(REAL x)
{
    return (REAL)log((double)x);
}
static inline REAL ref_sqrt(REAL x)
{
    return (REAL)sqrt((double)x);
}
static inline REAL ref_sigmoid(REAL x)
{
    if (x >= 0)
        return 1 / (1 + ref_exp(-x));
    REAL z = ref_exp(x);
    return z / (1 + z);
}
static inline REAL ref_silu(REAL x)
{
    return x * ref_sigmoid(x);
}
static inline REAL ref_silu_d(REAL x) /* derivative */
{
    REAL s = ref_sigmoid(x);
    return s + x * s * (1 - s);
}
/* Scratch of n REALs, zeroed; without memory the sticky error is set and NULL returned. */
static inline REAL *ref_scratch(struct backend *be, int64_t n)
{
    REAL *p = calloc(n > 0 ? (size_t)n : 1, sizeof *p);
    if (!p)
        be_fail(be, E_ENV, "%s: out of memory: %" PRId64 " elements of scratch", be->desc, n);
    return p;
}

#endif
