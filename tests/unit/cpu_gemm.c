/*
 * The cpu matrix product against its definition: every element is one chain of fmaf over k ascending, started from c or 0, plus the bias.
 * Compared as bits, on every instruction set of the machine, with 1 and 3 threads: all small row counts (each has its own code), tile
 * edges, several blocks of k, all storage forms, row strides. tests.cmake: tsan
 */
#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "kernels/ops.h"
#include "tests/test.h"

struct shape {
    int64_t m, n, k, pad;
    bool ta, tb, accumulate, bias;
};

static float *values(int64_t n, uint64_t stream)
{
    float *p = malloc((size_t)(n + 1) * sizeof *p);
    if (!p)
        abort();
    for (int64_t i = 0; i < n; i++)
        p[i] = (float)(2 * ctr_uniform(7, stream, (uint64_t)i) - 1);
    return p;
}

static void by_definition(const struct op_gemm *d, float *c)
{
    const float *a = d->a.p, *b = d->b.p, *bias = d->bias.p;
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j++) {
            float s = d->accumulate ? c[i * d->ldc + j] : 0.0f;
            for (int64_t p = 0; p < d->k; p++)
                s = fmaf(d->ta ? a[p * d->lda + i] : a[i * d->lda + p], d->tb ? b[j * d->ldb + p] : b[p * d->ldb + j], s);
            c[i * d->ldc + j] = bias ? s + bias[j] : s;
        }
}

enum { CONFIGS = 6 };
static const struct {
    const char *isa;
    int threads;
} configs[CONFIGS] = {{"avx512", 1}, {"avx512", 3}, {"avx2", 1}, {"avx2", 3}, {"portable", 1}, {"portable", 3}};

static void compare(const struct backend *be, const struct shape *s, const float *c, const float *want, int64_t nc, int64_t ldc)
{
    test_checks++;
    if (memcmp(c, want, (size_t)nc * sizeof *c) == 0) /* padding between rows included */
        return;
    int64_t i = 0;
    while (!memcmp(c + i, want + i, sizeof *c))
        i++;
    test_failed++;
    printf("FAIL %s: m=%lld n=%lld k=%lld pad=%lld ta=%d tb=%d acc=%d bias=%d: element (%lld, %lld) is %.9g, must be %.9g\n", be->desc,
           (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->pad, s->ta, s->tb, s->accumulate, s->bias, (long long)(i / ldc),
           (long long)(i % ldc), (double)c[i], (double)want[i]);
}

static void check(struct backend *const be[CONFIGS], const struct shape *s)
{
    int64_t lda = (s->ta ? s->m : s->k) + s->pad, ldb = (s->tb ? s->k : s->n) + s->pad, ldc = s->n + s->pad;
    int64_t na = lda * (s->ta ? s->k : s->m), nb = ldb * (s->tb ? s->n : s->k), nc = ldc * s->m;
    float *a = values(na, 1), *b = values(nb, 2), *want = values(nc, 3), *bias = values(s->n, 4);
    struct op_gemm d = {.c = {want, DT_F32, nc},
                        .a = {a, DT_F32, na},
                        .b = {b, DT_F32, nb},
                        .m = s->m,
                        .n = s->n,
                        .k = s->k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = ldc,
                        .ta = s->ta,
                        .tb = s->tb,
                        .accumulate = s->accumulate};
    if (s->bias)
        d.bias = (struct view){bias, DT_F32, s->n};
    by_definition(&d, want);
    for (int t = 0; t < CONFIGS; t++) {
        if (!be[t])
            continue;
        float *c = values(nc, 3);
        d.c.p = c;
        be_gemm(be[t], &d);
        CHECK_OK(be_sync(be[t], e));
        compare(be[t], s, c, want, nc, ldc);
        free(c);
    }
    free(a);
    free(b);
    free(want);
    free(bias);
}

static void check_all(struct backend *const be[CONFIGS])
{
    for (int64_t m = 1; m <= 30; m++) {
        check(be, &(struct shape){m, 50, 37, 0, false, true, m % 2 == 0, m % 3 == 0});
        check(be, &(struct shape){m, 64, 32, 0, false, true, false, false});
        check(be, &(struct shape){m, 35, 20, 2, false, false, m % 2 == 1, false});
        check(be, &(struct shape){m, 33, 19, 1, true, false, true, m % 2 == 0});
    }
    static const int64_t sizes[][3] = {{129, 800, 40}, {60, 97, 800}, {57, 66, 1200}, {20, 400, 390}, {400, 32, 385}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (unsigned f = 0; f < 16; f++) /* all forms, accumulate, bias */
            check(be, &(struct shape){sizes[i][0], sizes[i][1], sizes[i][2], (int64_t)(f % 3), f & 1, f >> 1 & 1, f >> 2 & 1, f >> 3 & 1});
}

int main(void)
{
    struct pool *pools[4] = {NULL};
    struct backend *be[CONFIGS] = {NULL};
    CHECK_OK(pool_open(&pools[1], 1, e));
    CHECK_OK(pool_open(&pools[3], 3, e));
    for (int t = 0; t < CONFIGS; t++) {
        struct err er = ERR_INIT;
        if (backend_open(&be[t], &(struct backend_opts){.name = "cpu", .isa = configs[t].isa, .pool = pools[configs[t].threads]}, &er) == 0)
            continue;
        be[t] = NULL;
        printf("SKIPPED: %s\n", er.msg);
        test_failed += er.code != E_ENV && !strstr(er.msg, "this build has portable"); /* DASH_PORTABLE */
    }
    check_all(be);
    for (int t = 0; t < CONFIGS; t++)
        backend_close(be[t]);
    pool_close(pools[1]);
    pool_close(pools[3]);
    return test_end();
}
