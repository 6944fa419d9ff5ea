/*
 * Test helpers. A test program returns test_end(). Floats are compared finite-by-bits first, then |got - ref| <= atol + rtol * |ref|;
 * the largest error is printed with its share of the limit, and MISTRUSTED when the reference is nearly all zeros. A tolerance is given
 * with the sentence it comes from.
 */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"

static int test_failed, test_checks;

#define CHECK(cond)                                                                 \
    do {                                                                            \
        test_checks++;                                                              \
        if (!(cond)) {                                                              \
            test_failed++;                                                          \
            printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #cond);               \
        }                                                                           \
    } while (0)
#define CHECK_EQ_I(a, b)                                                                                     \
    do {                                                                                                     \
        long long ta_ = (long long)(a), tb_ = (long long)(b);                                                \
        test_checks++;                                                                                       \
        if (ta_ != tb_) {                                                                                    \
            test_failed++;                                                                                   \
            printf("%s:%d: failed: %s = %lld, %s = %lld\n", __FILE__, __LINE__, #a, ta_, #b, tb_);           \
        }                                                                                                    \
    } while (0)
#define CHECK_STR(a, b)                                                                                      \
    do {                                                                                                     \
        const char *sa_ = (a), *sb_ = (b);                                                                   \
        test_checks++;                                                                                       \
        if (strcmp(sa_, sb_) != 0) {                                                                         \
            test_failed++;                                                                                   \
            printf("%s:%d: failed: %s = '%s', expected '%s'\n", __FILE__, __LINE__, #a, sa_, sb_);           \
        }                                                                                                    \
    } while (0)
/* A call that must succeed; prints the error otherwise. */
#define CHECK_OK(call)                                                                                       \
    do {                                                                                                     \
        struct err te_ = ERR_INIT, *e = &te_;                                                                \
        test_checks++;                                                                                       \
        if ((call) != 0) {                                                                                   \
            test_failed++;                                                                                   \
            printf("%s:%d: failed: %s: %s\n", __FILE__, __LINE__, #call, te_.msg);                           \
        }                                                                                                    \
    } while (0)
/* A call that must fail with a code and a message that holds a text. */
#define CHECK_ERR(call, want_code, text)                                                                     \
    do {                                                                                                     \
        struct err te_ = ERR_INIT, *e = &te_;                                                                \
        test_checks++;                                                                                       \
        if ((call) == 0 || te_.code != (want_code) || !strstr(te_.msg, (text))) {                            \
            test_failed++;                                                                                   \
            printf("%s:%d: failed: %s gave code %d, '%s'; wanted %d, '%s'\n", __FILE__, __LINE__, #call, te_.code, te_.msg, (want_code), (text)); \
        }                                                                                                    \
    } while (0)

static inline double test_abs(double x)
{
    return x < 0 ? -x : x;
}
/* why: the derivation of the tolerance. */
static inline bool check_close_f64(const char *what, const double *got, const double *ref, size_t n, double atol, double rtol,
                                   const char *why)
{
    double worst = 0, worst_err = 0;
    size_t at = 0, zeros = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        if (ref[i] == 0)
            zeros++;
        if (!finite_f64(got[i]) || !finite_f64(ref[i])) {
            if (!bad++)
                printf("FAIL %s: element %zu is not finite: got %g, ref %g\n", what, i, got[i], ref[i]);
            continue;
        }
        double lim = atol + rtol * test_abs(ref[i]), d = test_abs(got[i] - ref[i]);
        double share = lim > 0 ? d / lim : (d > 0 ? 1e300 : 0);
        if (share > worst) {
            worst = share;
            worst_err = d;
            at = i;
        }
    }
    bool ok = !bad && worst <= 1;
    test_checks++;
    if (!ok)
        test_failed++;
    printf("%s %-44s n %zu  max err %.3g at %zu (got %.9g, ref %.9g) = %.2f of limit (%s)%s\n", ok ? "ok  " : "FAIL", what, n, worst_err,
           at, n ? got[at] : 0, n ? ref[at] : 0, worst, why, n > 8 && zeros * 10 > n * 9 ? "  MISTRUSTED: reference nearly all zeros" : "");
    return ok;
}
static inline bool check_close_f32(const char *what, const float *got, const float *ref, size_t n, double atol, double rtol,
                                   const char *why)
{
    double *a = calloc(n + 1, sizeof *a), *b = calloc(n + 1, sizeof *b);
    if (!a || !b)
        abort();
    for (size_t i = 0; i < n; i++) {
        a[i] = (double)got[i];
        b[i] = (double)ref[i];
    }
    bool ok = check_close_f64(what, a, b, n, atol, rtol, why);
    free(a);
    free(b);
    return ok;
}
/* PATH under the optional data folder, or NULL (then: return test_skip("...")). */
static inline const char *test_data(const char *rel)
{
    static char buf[8][1024];
    static int k;
    char *p = buf[k++ & 7];
    const char *root = getenv("DASHLAB_TEST_DATA");
    snprintf(p, 1024, "%s/%s", root ? root : "../shared/data", rel);
    FILE *f = fopen(p, "rb");
    if (!f)
        return NULL;
    fclose(f);
    return p;
}
static inline int test_skip(const char *why)
{
    printf("SKIPPED: %s\n", why);
    return 77;
}
static inline int test_end(void)
{
    printf("%d checks, %d failed\n", test_checks, test_failed);
    return test_failed || !test_checks ? 1 : 0;
}

#endif
