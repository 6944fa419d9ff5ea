#include "core/rng.h"

#include <math.h> /* sqrt alone: IEEE 754 rounds it correctly, unlike the rest */
#include <stdlib.h>
#include <string.h>

/* ---- MT19937 (Matsumoto and Nishimura 1998) ---- */

enum { N = 624, M = 397 };

static uint32_t twist(uint32_t hi, uint32_t lo)
{
    uint32_t y = (hi & 0x80000000u) | (lo & 0x7fffffffu);
    return y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
}

uint32_t mt_u32(struct mt19937 *r)
{
    if (r->idx >= N) {
        uint32_t *mt = r->mt;
        for (int i = 0; i < N; i++)
            mt[i] = mt[(i + M) % N] ^ twist(mt[i], mt[(i + 1) % N]);
        r->idx = 0;
    }
    uint32_t y = r->mt[r->idx++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

void np_seed(struct mt19937 *r, uint32_t s)
{
    r->mt[0] = s;
    for (int i = 1; i < N; i++)
        r->mt[i] = 1812433253u * (r->mt[i - 1] ^ r->mt[i - 1] >> 30) + (uint32_t)i;
    r->idx = N;
}

void py_seed_digits(struct mt19937 *r, const uint32_t *key, size_t n)
{
    if (n == 0)
        BUG("py_seed_digits: no digits");
    np_seed(r, 19650218u);
    uint32_t *mt = r->mt;
    int i = 1;
    size_t j = 0;
    for (size_t k = MAX((size_t)N, n); k > 0; k--) {
        mt[i] = (mt[i] ^ (mt[i - 1] ^ mt[i - 1] >> 30) * 1664525u) + key[j] + (uint32_t)j;
        if (++i >= N) {
            mt[0] = mt[N - 1];
            i = 1;
        }
        if (++j >= n)
            j = 0;
    }
    for (int k = N - 1; k > 0; k--) {
        mt[i] = (mt[i] ^ (mt[i - 1] ^ mt[i - 1] >> 30) * 1566083941u) - (uint32_t)i;
        if (++i >= N) {
            mt[0] = mt[N - 1];
            i = 1;
        }
    }
    mt[0] = 0x80000000u;
}

void py_seed(struct mt19937 *r, uint64_t a)
{
    uint32_t key[2] = {(uint32_t)a, (uint32_t)(a >> 32)};
    py_seed_digits(r, key, key[1] ? 2 : 1);
}

/* ---- CPython's random ---- */

void py_getrandbits(struct mt19937 *r, int b, uint64_t *lo, uint64_t *hi)
{
    uint64_t w[4] = {0};
    if (b < 1 || b > 128)
        BUG("py_getrandbits: %d bits", b);
    for (int i = 0; b > 0; i++, b -= 32)
        w[i] = mt_u32(r) >> (b < 32 ? 32 - b : 0);
    *lo = w[1] << 32 | w[0];
    *hi = w[3] << 32 | w[2];
}

uint64_t py_below(struct mt19937 *r, uint64_t n)
{
    uint64_t v, hi;
    int b = 0;
    if (n == 0)
        BUG("py_below: 0");
    for (uint64_t k = n; k; k >>= 1)
        b++;
    do
        py_getrandbits(r, b, &v, &hi);
    while (v >= n);
    return v;
}

double py_random(struct mt19937 *r)
{
    uint32_t a = mt_u32(r) >> 5, b = mt_u32(r) >> 6;
    return (a * 67108864.0 + b) * (1.0 / 9007199254740992.0);
}

int64_t py_randint(struct mt19937 *r, int64_t a, int64_t b)
{
    uint64_t width = (uint64_t)b - (uint64_t)a + 1;
    if (b < a || width == 0)
        BUG("py_randint: %" PRId64 " to %" PRId64, a, b);
    return (int64_t)((uint64_t)a + py_below(r, width));
}

void py_shuffle(struct mt19937 *r, int64_t *v, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        size_t j = (size_t)py_below(r, (uint64_t)i + 1);
        int64_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

/* sample's short-list way: draw from a shrinking copy of the population. */
static int sample_pool(struct mt19937 *r, int64_t n, int64_t k, int64_t *out)
{
    size_t bytes;
    int64_t *pool = mul_size((size_t)n, sizeof *pool, &bytes) ? malloc(bytes ? bytes : 1) : NULL;
    if (!pool)
        return -1;
    for (int64_t i = 0; i < n; i++)
        pool[i] = i;
    for (int64_t i = 0; i < k; i++) {
        uint64_t j = py_below(r, (uint64_t)(n - i));
        out[i] = pool[j];
        pool[j] = pool[n - i - 1];
    }
    free(pool);
    return 0;
}

/* sample's long-list way: redraw what was drawn already. The set is an open hash table at most half full; 0 marks an empty slot. */
static int sample_set(struct mt19937 *r, int64_t n, int64_t k, int64_t *out)
{
    size_t cap = 16;
    while (cap < 2 * (size_t)k)
        cap *= 2;
    uint64_t *set = calloc(cap, sizeof *set);
    if (!set)
        return -1;
    for (int64_t i = 0; i < k;) {
        uint64_t v = py_below(r, (uint64_t)n);
        size_t at = (size_t)(v * 0x9e3779b97f4a7c15u >> 32) & (cap - 1);
        while (set[at] && set[at] != v + 1)
            at = (at + 1) & (cap - 1);
        if (set[at])
            continue;
        set[at] = v + 1;
        out[i++] = (int64_t)v;
    }
    free(set);
    return 0;
}

int py_sample(struct mt19937 *r, int64_t n, int64_t k, int64_t *out)
{
    if (k < 0 || k > n || k > INT64_MAX / 16)
        BUG("py_sample: %" PRId64 " of %" PRId64, k, n);
    /* CPython's guess at which way takes less memory; it decides which numbers are drawn, so it is part of the semantics. */
    int64_t set_size = 21;
    if (k > 5) {
        int64_t p = 1;
        while (p < 3 * k)
            p *= 4;
        set_size += p;
    }
    return n <= set_size ? sample_pool(r, n, k, out) : sample_set(r, n, k, out);
}

void py_choices(struct mt19937 *r, int64_t n, int64_t k, int64_t *out)
{
    if (n < 1)
        BUG("py_choices: from %" PRId64, n);
    for (int64_t i = 0; i < k; i++)
        out[i] = (int64_t)(py_random(r) * (double)n);
}

int64_t np_randint(struct mt19937 *r, int64_t lo, int64_t hi)
{
    uint64_t range = (uint64_t)hi - (uint64_t)lo - 1;
    if (hi <= lo || range > 0xffffffffu)
        BUG("np_randint: %" PRId64 " to %" PRId64, lo, hi);
    if (range == 0)
        return lo; /* draws nothing */
    uint32_t mask = (uint32_t)range, v;
    for (int s = 1; s < 32; s *= 2)
        mask |= mask >> s;
    do
        v = mt_u32(r) & mask;
    while (v > range);
    return (int64_t)((uint64_t)lo + v);
}

/* ---- Philox4x32-10 (Salmon et al. 2011) ---- */

void philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4])
{
    uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c[0], p1 = (uint64_t)0xcd9e8d57u * c[2];
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = n0;
        c[1] = (uint32_t)p1;
        c[2] = n2;
        c[3] = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof c);
}

/* Value `index` of a stream: half of a block. */
static uint64_t ctr_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t w[4];
    philox(seed, stream, index >> 1, w);
    return index & 1 ? (uint64_t)w[3] << 32 | w[2] : (uint64_t)w[1] << 32 | w[0];
}

double ctr_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(ctr_u64(seed, stream, index) >> 11) * (1.0 / 9007199254740992.0);
}

/*
 * Natural logarithm of a normal x > 0 from + - * / alone, so that it has the same bits everywhere. x = m 2^k with m in [sqrt(1/2),
 * sqrt(2)), and log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716: the odd series up to s^23 leaves less than 2^-60 of the value.
 */
static double own_log(double x)
{
    union {
        double f;
        uint64_t u;
    } v = {x};
    int k = (int)(v.u >> 52) - 1023;
    v.u = (v.u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    if (v.f > 1.4142135623730951) {
        v.f *= 0.5;
        k++;
    }
    double s = (v.f - 1) / (v.f + 1), z = s * s, sum = 0;
    for (int i = 23; i >= 3; i -= 2)
        sum = (sum + 1.0 / i) * z;
    return k * 0.6931471805599453 + 2 * (s + s * sum);
}

static double horner(const double c[8], double x)
{
    double v = c[7];
    for (int i = 6; i >= 0; i--)
        v = v * x + c[i];
    return v;
}

/*
 * Inverse of the normal distribution function for 0 < p < 1: rational approximations of M. J. Wichura, Algorithm AS 241 (PPND16), Applied
 * Statistics 37 (1988), 477-484; relative error about 1e-16.
 */
double normal_quantile(double p)
{
    static const double a[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[8] = {1.0000000000000000000e+0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
                                2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3};
    static const double c[8] = {1.42343711074968357734e0, 4.63033784615654529590e0,  5.76949722146069140550e0,  3.64784832476320460504e0,
                                1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0000000000000000000e+0,  2.05319162663775882187e0,  1.67638483018380384940e0,  6.89767334985100004550e-1,
                                1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9};
    static const double g[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,  2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double h[8] = {1.0000000000000000000e+0,  5.99832206555887937690e-1, 1.36929880922735805310e-1,
                                1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
                                1.42151175831644588870e-7, 2.04426310338993978564e-15};
    if (!(p > 0 && p < 1))
        BUG("normal_quantile: %g is not inside (0, 1)", p);
    double q = p - 0.5, v;
    if (q >= -0.425 && q <= 0.425) {
        double r = 0.180625 - q * q;
        return q * (horner(a, r) / horner(b, r));
    }
    double r = sqrt(-own_log(q < 0 ? p : 1 - p));
    if (r <= 5)
        v = horner(c, r - 1.6) / horner(d, r - 1.6);
    else
        v = horner(g, r - 5) / horner(h, r - 5);
    return q < 0 ? -v : v;
}

double ctr_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    /* (k + 1/2) / 2^52 is exact, never 0 or 1, and symmetric about 1/2. */
    double k = (double)(ctr_u64(seed, stream, index) >> 12);
    return normal_quantile((k + 0.5) * (1.0 / 4503599627370496.0));
}

/* High half of the product of two 64-bit numbers. */
static uint64_t mul_high(uint64_t a, uint64_t b)
{
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t mid = ah * bl + (al * bl >> 32), mid2 = al * bh + (uint32_t)mid;
    return ah * bh + (mid >> 32) + (mid2 >> 32);
}

uint64_t ctr_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    if (n == 0)
        BUG("ctr_below: 0");
    /* floor(u n / 2^64): one value for one index, so no redrawing; no number is favoured by more than n / 2^64. */
    return mul_high(ctr_u64(seed, stream, index), n);
}

void ctr_permutation(uint64_t seed, uint64_t stream, int64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = (int64_t)i;
    for (size_t i = n; i-- > 1;) {
        size_t j = (size_t)ctr_below(seed, stream, i, (uint64_t)i + 1);
        int64_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}
