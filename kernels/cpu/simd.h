/*
 * Sixteen float lanes, the same operations in the same order on every instruction set: one 512-bit register, two of 256 bits, or an
 * array. Everything is IEEE single arithmetic with explicit FMA, so all three give the same bits. exp and log are own polynomials (about
 * 1.5 ulp): no libm. Reductions have one tree: lane i meets i+8, then i+4, i+2, i+1.
 */
#ifndef KERNELS_CPU_SIMD_H
#define KERNELS_CPU_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define V16_INLINE static inline __attribute__((always_inline, unused))

#if defined(ISA_avx512)
#include <immintrin.h>
typedef __m512 v16;
typedef __m512i i16;
typedef __mmask16 m16;
V16_INLINE v16 v16_zero(void) { return _mm512_setzero_ps(); }
V16_INLINE v16 v16_set1(float x) { return _mm512_set1_ps(x); }
V16_INLINE v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
V16_INLINE void v16_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
V16_INLINE v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
V16_INLINE void v16_store_n(float *p, v16 x, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x); }
V16_INLINE v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
V16_INLINE v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
V16_INLINE v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
V16_INLINE v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
V16_INLINE v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
V16_INLINE v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
V16_INLINE v16 v16_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
V16_INLINE m16 v16_lt(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
V16_INLINE v16 v16_select(m16 m, v16 yes, v16 no) { return _mm512_mask_blend_ps(m, no, yes); }
V16_INLINE v16 v16_iota(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
V16_INLINE i16 v16_bits(v16 a) { return _mm512_castps_si512(a); }
V16_INLINE v16 i16_float(i16 a) { return _mm512_castsi512_ps(a); }
V16_INLINE i16 i16_shl23(i16 a) { return _mm512_slli_epi32(a, 23); }
V16_INLINE i16 i16_shr23(i16 a) { return _mm512_srli_epi32(a, 23); }
V16_INLINE i16 i16_add(i16 a, i16 b) { return _mm512_add_epi32(a, b); }
V16_INLINE i16 i16_sub(i16 a, i16 b) { return _mm512_sub_epi32(a, b); }
V16_INLINE i16 i16_and(i16 a, i16 b) { return _mm512_and_si512(a, b); }
V16_INLINE i16 i16_set1(int32_t x) { return _mm512_set1_epi32(x); }
V16_INLINE v16 i16_to_v16(i16 a) { return _mm512_cvtepi32_ps(a); }
V16_INLINE float v16_first(v16 a) { return _mm512_cvtss_f32(a); }
V16_INLINE __m256 v16_low(v16 a) { return _mm512_castps512_ps256(a); }
V16_INLINE __m256 v16_high(v16 a) { return _mm512_extractf32x8_ps(a, 1); }
#elif defined(ISA_avx2)
#include <immintrin.h>
typedef struct { __m256 a, b; } v16;
typedef struct { __m256i a, b; } i16;
typedef v16 m16;
#define V2(fn, x, y) ((v16){fn((x).a, (y).a), fn((x).b, (y).b)})
V16_INLINE v16 v16_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
V16_INLINE v16 v16_set1(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
V16_INLINE v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
V16_INLINE void v16_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
V16_INLINE __m256i v8_first(int n) /* lanes below n set */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
V16_INLINE v16 v16_load_n(const float *p, int n) { return (v16){_mm256_maskload_ps(p, v8_first(n)),
                                                       _mm256_maskload_ps(p + 8, v8_first(n - 8))}; }
V16_INLINE void v16_store_n(float *p, v16 x, int n) { _mm256_maskstore_ps(p, v8_first(n), x.a);
                                                      _mm256_maskstore_ps(p + 8, v8_first(n - 8), x.b); }
V16_INLINE v16 v16_add(v16 x, v16 y) { return V2(_mm256_add_ps, x, y); }
V16_INLINE v16 v16_sub(v16 x, v16 y) { return V2(_mm256_sub_ps, x, y); }
V16_INLINE v16 v16_mul(v16 x, v16 y) { return V2(_mm256_mul_ps, x, y); }
V16_INLINE v16 v16_div(v16 x, v16 y) { return V2(_mm256_div_ps, x, y); }
V16_INLINE v16 v16_max(v16 x, v16 y) { return V2(_mm256_max_ps, x, y); }
V16_INLINE v16 v16_min(v16 x, v16 y) { return V2(_mm256_min_ps, x, y); }
V16_INLINE v16 v16_sqrt(v16 x) { return (v16){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
V16_INLINE v16 v16_fma(v16 x, v16 y, v16 z) { return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
V16_INLINE m16 v16_lt(v16 x, v16 y) { return (v16){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)}; }
V16_INLINE v16 v16_select(m16 m, v16 yes, v16 no) { return (v16){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)}; }
V16_INLINE v16 v16_iota(void) { return (v16){_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)}; }
V16_INLINE i16 v16_bits(v16 x) { return (i16){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
V16_INLINE v16 i16_float(i16 x) { return (v16){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
V16_INLINE i16 i16_shl23(i16 x) { return (i16){_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)}; }
V16_INLINE i16 i16_shr23(i16 x) { return (i16){_mm256_srli_epi32(x.a, 23), _mm256_srli_epi32(x.b, 23)}; }
V16_INLINE i16 i16_add(i16 x, i16 y) { return (i16){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
V16_INLINE i16 i16_sub(i16 x, i16 y) { return (i16){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
V16_INLINE i16 i16_and(i16 x, i16 y) { return (i16){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
V16_INLINE i16 i16_set1(int32_t x) { return (i16){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
V16_INLINE v16 i16_to_v16(i16 x) { return (v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
V16_INLINE float v16_first(v16 x) { return _mm256_cvtss_f32(x.a); }
V16_INLINE __m256 v16_low(v16 x) { return x.a; }
V16_INLINE __m256 v16_high(v16 x) { return x.b; }
#undef V2
#else /* portable */
typedef struct { float f[16]; } v16;
typedef struct { int32_t i[16]; } i16;
typedef struct { int32_t i[16]; } m16;
#define V16_EACH for (int l = 0; l < 16; l++)
V16_INLINE v16 v16_zero(void) { return (v16){{0}}; }
V16_INLINE v16 v16_set1(float x) { v16 r; V16_EACH r.f[l] = x; return r; }
V16_INLINE v16 v16_load(const float *p) { v16 r; memcpy(r.f, p, sizeof r.f); return r; }
V16_INLINE void v16_store(float *p, v16 x) { memcpy(p, x.f, sizeof x.f); }
V16_INLINE v16 v16_load_n(const float *p, int n) { v16 r = {{0}}; memcpy(r.f, p, (size_t)n * sizeof(float)); return r; }
V16_INLINE void v16_store_n(float *p, v16 x, int n) { memcpy(p, x.f, (size_t)n * sizeof(float)); }
V16_INLINE v16 v16_add(v16 a, v16 b) { V16_EACH a.f[l] += b.f[l]; return a; }
V16_INLINE v16 v16_sub(v16 a, v16 b) { V16_EACH a.f[l] -= b.f[l]; return a; }
V16_INLINE v16 v16_mul(v16 a, v16 b) { V16_EACH a.f[l] *= b.f[l]; return a; }
V16_INLINE v16 v16_div(v16 a, v16 b) { V16_EACH a.f[l] /= b.f[l]; return a; }
V16_INLINE v16 v16_max(v16 a, v16 b) { V16_EACH a.f[l] = a.f[l] > b.f[l] ? a.f[l] : b.f[l]; return a; }
V16_INLINE v16 v16_min(v16 a, v16 b) { V16_EACH a.f[l] = a.f[l] < b.f[l] ? a.f[l] : b.f[l]; return a; }
V16_INLINE v16 v16_sqrt(v16 a) { V16_EACH a.f[l] = sqrtf(a.f[l]); return a; }
V16_INLINE v16 v16_fma(v16 a, v16 b, v16 c) { V16_EACH c.f[l] = fmaf(a.f[l], b.f[l], c.f[l]); return c; }
V16_INLINE m16 v16_lt(v16 a, v16 b) { m16 r; V16_EACH r.i[l] = a.f[l] < b.f[l]; return r; }
V16_INLINE v16 v16_select(m16 m, v16 yes, v16 no) { V16_EACH no.f[l] = m.i[l] ? yes.f[l] : no.f[l]; return no; }
V16_INLINE v16 v16_iota(void) { v16 r; V16_EACH r.f[l] = (float)l; return r; }
V16_INLINE i16 v16_bits(v16 a) { i16 r; memcpy(&r, &a, sizeof r); return r; }
V16_INLINE v16 i16_float(i16 a) { v16 r; memcpy(&r, &a, sizeof r); return r; }
V16_INLINE i16 i16_shl23(i16 a) { V16_EACH a.i[l] = (int32_t)((uint32_t)a.i[l] << 23); return a; }
V16_INLINE i16 i16_shr23(i16 a) { V16_EACH a.i[l] = (int32_t)((uint32_t)a.i[l] >> 23); return a; }
V16_INLINE i16 i16_add(i16 a, i16 b) { V16_EACH a.i[l] = (int32_t)((uint32_t)a.i[l] + (uint32_t)b.i[l]); return a; }
V16_INLINE i16 i16_sub(i16 a, i16 b) { V16_EACH a.i[l] = (int32_t)((uint32_t)a.i[l] - (uint32_t)b.i[l]); return a; }
V16_INLINE i16 i16_and(i16 a, i16 b) { V16_EACH a.i[l] &= b.i[l]; return a; }
V16_INLINE i16 i16_set1(int32_t x) { i16 r; V16_EACH r.i[l] = x; return r; }
V16_INLINE v16 i16_to_v16(i16 a) { v16 r; V16_EACH r.f[l] = (float)a.i[l]; return r; }
V16_INLINE float v16_first(v16 a) { return a.f[0]; }
#undef V16_EACH
#endif

/* Sum and maximum over the lanes, in the tree above. */
#if defined(ISA_avx512) || defined(ISA_avx2)
V16_INLINE float v16_hsum(v16 x)
{
    __m256 h = _mm256_add_ps(v16_low(x), v16_high(x));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
V16_INLINE float v16_hmax(v16 x)
{
    __m256 h = _mm256_max_ps(v16_low(x), v16_high(x));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
#else
V16_INLINE float v16_hsum(v16 x)
{
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            x.f[i] += x.f[i + n];
    return x.f[0];
}
V16_INLINE float v16_hmax(v16 x)
{
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            x.f[i] = x.f[i] > x.f[i + n] ? x.f[i] : x.f[i + n];
    return x.f[0];
}
#endif

/* e^x: 0 below -87, inf above 88.37 (2.4e38). x = n ln 2 + r with |r| <= 0.347, polynomial of degree 7, exponent added to the bits. */
V16_INLINE v16 v16_exp(v16 x)
{
    const v16 magic = v16_set1(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer held in the low bits */
    v16 t = v16_fma(x, v16_set1(1.44269504088896341f), magic), n = v16_sub(t, magic);
    v16 r = v16_fma(n, v16_set1(-0.693359375f), x);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 p = v16_set1(1.9841270e-4f);
    p = v16_fma(p, r, v16_set1(1.3888889e-3f));
    p = v16_fma(p, r, v16_set1(8.3333333e-3f));
    p = v16_fma(p, r, v16_set1(4.1666667e-2f));
    p = v16_fma(p, r, v16_set1(1.6666667e-1f));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(p, r, v16_set1(1.0f));
    p = v16_fma(p, r, v16_set1(1.0f));
    v16 y = i16_float(i16_add(v16_bits(p), i16_shl23(v16_bits(t))));
    y = v16_select(v16_lt(x, v16_set1(-87.0f)), v16_zero(), y);
    return v16_select(v16_lt(v16_set1(88.37f), x), v16_set1(INFINITY), y);
}

/* ln x for normal x > 0; -inf at 0. x = 2^e m, m in [0.7071, 1.4142); m - 1 by a polynomial of degree 9 (Cephes' coefficients). */
V16_INLINE v16 v16_log(v16 x)
{
    i16 b = v16_bits(x);
    i16 e = i16_sub(i16_shr23(b), i16_set1(126));
    v16 m = i16_float(i16_add(i16_and(b, i16_set1(0x007fffff)), i16_set1(0x3f000000))); /* [0.5, 1) */
    m16 low = v16_lt(m, v16_set1(0.70710678f));
    v16 ef = v16_sub(i16_to_v16(e), v16_select(low, v16_set1(1), v16_zero()));
    v16 f = v16_sub(v16_select(low, v16_add(m, m), m), v16_set1(1)), z = v16_mul(f, f);
    v16 p = v16_set1(7.0376836292e-2f);
    p = v16_fma(p, f, v16_set1(-1.1514610310e-1f));
    p = v16_fma(p, f, v16_set1(1.1676998740e-1f));
    p = v16_fma(p, f, v16_set1(-1.2420140846e-1f));
    p = v16_fma(p, f, v16_set1(1.4249322787e-1f));
    p = v16_fma(p, f, v16_set1(-1.6668057665e-1f));
    p = v16_fma(p, f, v16_set1(2.0000714765e-1f));
    p = v16_fma(p, f, v16_set1(-2.4999993993e-1f));
    p = v16_fma(p, f, v16_set1(3.3333331174e-1f));
    v16 y = v16_mul(v16_mul(p, f), z);
    y = v16_fma(ef, v16_set1(-2.12194440e-4f), y);
    y = v16_fma(z, v16_set1(-0.5f), y);
    y = v16_fma(ef, v16_set1(0.693359375f), v16_add(f, y));
    return v16_select(v16_lt(v16_zero(), x), y, v16_set1(-INFINITY));
}

/* 1 / (1 + e^-x) without overflow for either sign. */
V16_INLINE v16 v16_sigmoid(v16 x)
{
    v16 neg = v16_sub(v16_zero(), x), z = v16_exp(v16_select(v16_lt(x, v16_zero()), x, neg));
    v16 d = v16_add(v16_set1(1), z);
    return v16_div(v16_select(v16_lt(x, v16_zero()), z, v16_set1(1)), d);
}
/* One value through a vector function: the same bits as in a lane. */
V16_INLINE float f32_exp(float x) { return v16_first(v16_exp(v16_set1(x))); }
V16_INLINE float f32_log(float x) { return v16_first(v16_log(v16_set1(x))); }
V16_INLINE float f32_sigmoid(float x) { return v16_first(v16_sigmoid(v16_set1(x))); }

/* Sum of a[i] b[i]: 16 partial sums (lane i mod 16), one tree. */
V16_INLINE float v16_dot(const float *a, const float *b, int64_t n)
{
    v16 s = v16_zero();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        s = v16_fma(v16_load(a + i), v16_load(b + i), s);
    if (i < n)
        s = v16_fma(v16_load_n(a + i, (int)(n - i)), v16_load_n(b + i, (int)(n - i)), s);
    return v16_hsum(s);
}

#endif
