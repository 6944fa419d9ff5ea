/*
 * The lane functions of the cpu kernels in their portable form (other instruction sets give the same bits: parity/isa_bits) against libm in
 * double: exp, log, log1p, sigmoid, SiLU's derivative, the polynomial of e^r - 1 - r, sums and tails. Errors are counted in units in the
 * last place of the float result.
 */
#include <math.h>

#include "kernels/cpu/isa/vmath.h"
#include "kernels/half.h"
#include "tests/test.h"

static double ulp(float x) /* spacing at |x|, normal range */
{
    int e;
    frexp(fabs((double)x) < 0x1p-126 ? 0x1p-126 : fabs((double)x), &e);
    return ldexp(1.0, e - 24);
}

typedef v16 (*vector_fn)(v16);
static v16 fn_exp(v16 x)
{
    return v16_exp(x);
}
static v16 fn_log(v16 x)
{
    return v16_log(x);
}
static v16 fn_log1p(v16 x)
{
    return v16_log1p(x);
}
static v16 fn_sigmoid(v16 x)
{
    return v16_sigmoid(x);
}
static v16 fn_silu_d(v16 x)
{
    return v16_silu_d(x, v16_sigmoid(x));
}
static v16 fn_exp_q(v16 x)
{
    return v16_exp_q(x);
}
static double ref_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double ref_silu_d(double x)
{
    double s = 1 / (1 + exp(-x));
    return s + x * s * (1 - s);
}
static double ref_exp_q(double x)
{
    double term = 0.5, sum = 0;
    for (int k = 3; k < 20; k++) {
        sum += term;
        term *= x / k;
    }
    return sum;
}

/* 2^20 floats from lo to hi, evenly by value or (geometric) by bits. The error limit: `limit` ulp of the result, or of `floor` where it is
 * smaller. */
static void sweep(const char *name, vector_fn f, double (*ref)(double), float lo, float hi, bool geometric, double limit, float floor_)
{
    double worst = 0;
    float worst_x = 0, x[16], y[16];
    uint32_t b0 = f32_bits(lo), b1 = f32_bits(hi);
    enum { POINTS = 1 << 20 };
    for (int i = 0; i < POINTS; i += 16) {
        for (int l = 0; l < 16; l++) {
            double t = (double)(i + l) / (POINTS - 1);
            x[l] = geometric ? f32_from_bits(b0 + (uint32_t)((double)(b1 - b0) * t)) : (float)((double)lo + ((double)hi - (double)lo) * t);
        }
        v16_store(y, f(v16_load(x)));
        for (int l = 0; l < 16; l++) {
            double r = ref((double)x[l]), err = fabs((double)y[l] - r) / ulp(fmaxf((float)fabs(r), floor_));
            if (!(err <= worst)) {
                worst = err;
                worst_x = x[l];
            }
        }
    }
    test_checks++;
    printf("%-10s [%g, %g]: %.3f ulp at %.9g\n", name, (double)lo, (double)hi, worst, (double)worst_x);
    if (!(worst <= limit)) {
        test_failed++;
        printf("FAIL %s: the limit is %.2f ulp\n", name, limit);
    }
}

/*
 * Limits. A polynomial in Horner form ends in 1 + r p: half an ulp for that sum, and up to half an ulp for what r p and the reduced
 * argument bring: 1 for exp, log and the polynomial. A relative error of an ulp at a mantissa near 1 is two ulps at one near 2, so what a
 * chain of operations adds up to is doubled: sigmoid, exp (0.9) + sum (0.5) + division (0.5), 3.8; log1p, whose summands do not cancel,
 * half of that. silu' = s + x s (1 - s): 1 - s carries the half ulp of s near 1 (2^-25), times x until s = 1 at x = 17, in ulps of
 * 2^-24: 8.5, and 1.5 for the rest; it passes through zero at x = -1.28, where ulps of 1/16 are counted.
 */
static void test_accuracy(void)
{
    sweep("exp", fn_exp, exp, -87.0f, 88.3f, false, 1.0, 0);
    sweep("exp", fn_exp, exp, -0.35f, 0.35f, false, 1.0, 0);
    sweep("log", fn_log, log, 0x1p-126f, 0x1p127f, true, 1.0, 0);
    sweep("log", fn_log, log, 0.7f, 1.5f, false, 1.0, 0);
    sweep("log1p", fn_log1p, log1p, 0x1p-60f, 0x1p30f, true, 1.9, 0);
    sweep("sigmoid", fn_sigmoid, ref_sigmoid, -80.0f, 30.0f, false, 3.8, 0);
    sweep("silu'", fn_silu_d, ref_silu_d, -80.0f, 30.0f, false, 10.0, 0x1p-4f);
    sweep("exp_q", fn_exp_q, ref_exp_q, -EXP_Q_MAX, EXP_Q_MAX, false, 1.0, 0);
}

static void test_special(void)
{
    CHECK(f32_exp(-INFINITY) == 0 && f32_exp(-1e30f) == 0 && f32_exp(0) == 1 && f32_exp(-0.0f) == 1);
    CHECK(f32_exp(INFINITY) == INFINITY && f32_exp(100) == INFINITY && isnan(f32_exp(NAN)));
    CHECK(f32_log(1) == 0 && f32_log(0) == -INFINITY);
    CHECK(f32_sigmoid(-INFINITY) == 0 && f32_sigmoid(INFINITY) == 1 && f32_sigmoid(0) == 0.5f);
}

static void test_sums(void)
{
    float x[40], y[40];
    for (int i = 0; i < 40; i++)
        x[i] = 1.0f / (float)(3 * i + 1);
    for (int n = 0; n <= 37; n++) { /* the definition: 16 partial sums, then the tree */
        float s[16] = {0};
        for (int i = 0; i < n; i++)
            s[i % 16] = fmaf(x[i], x[i], s[i % 16]);
        for (int w = 8; w; w /= 2)
            for (int i = 0; i < w; i++)
                s[i] += s[i + w];
        CHECK(v16_dot(x, x, n) == s[0]);
        for (int i = 0; i < 40; i++)
            y[i] = -1;
        LANES(i, n) st(y, i, n, ld(x, i, n));
        for (int i = 0; i < 40; i++)
            CHECK(y[i] == (i < n ? x[i] : -1));
    }
    CHECK(v16_hmax(v16_load(x)) == 1 && v16_hmax(v16_load(x + 8)) == x[8]);
    v16_store(y, v16_load_n(x, 5));
    CHECK(y[4] == x[4] && y[5] == 0 && y[15] == 0);
}

int main(void)
{
    test_accuracy();
    test_special();
    test_sums();
    return test_end();
}
