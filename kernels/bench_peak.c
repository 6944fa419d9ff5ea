/* Ceilings of this machine, and the optional OpenBLAS. */
#include "kernels/bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/rng.h"
#include "kernels/half.h"
#include "kernels/host.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define PEAK_X86 1
#endif

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { CHAINS = 12, STEPS = 4000000 }; /* independent chains hide the latency of two 4-cycle units; a step is one FMA on each chain */

struct peak_ctx {
    int lanes;
    float sink[64];
    const char *src;
    char *dst;
    size_t bytes;
};

#ifdef PEAK_X86
/* x = x a + b with a < 1 stays finite; the sum is returned so that nothing is optimised away. Written out: an array of registers would live
 * in memory at -O2. */
#define CHAIN12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
__attribute__((target("avx512f"))) static float fma_512(void)
{
    __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f), s = _mm512_setzero_ps();
#define X(i) __m512 x##i = _mm512_set1_ps(i);
    CHAIN12(X)
#undef X
    for (int k = 0; k < STEPS; k++) {
#define X(i) x##i = _mm512_fmadd_ps(x##i, a, b);
        CHAIN12(X)
#undef X
    }
#define X(i) s = _mm512_add_ps(s, x##i);
    CHAIN12(X)
#undef X
    return _mm512_reduce_add_ps(s);
}
__attribute__((target("avx2,fma"))) static float fma_256(void)
{
    __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f), s = _mm256_setzero_ps();
    float out[8];
#define X(i) __m256 x##i = _mm256_set1_ps(i);
    CHAIN12(X)
#undef X
    for (int k = 0; k < STEPS; k++) {
#define X(i) x##i = _mm256_fmadd_ps(x##i, a, b);
        CHAIN12(X)
#undef X
    }
#define X(i) s = _mm256_add_ps(s, x##i);
    CHAIN12(X)
#undef X
    _mm256_storeu_ps(out, s);
    return out[0] + out[7];
}
#endif

/* Floats in a register of the instruction set that the backend uses; 0 = no loop for it. */
static int peak_lanes(const struct backend *be)
{
#ifdef PEAK_X86
    __builtin_cpu_init();
    if (strstr(be->desc, "avx512") && __builtin_cpu_supports("avx512f"))
        return 16;
    if (strstr(be->desc, "avx2") && __builtin_cpu_supports("fma"))
        return 8;
#endif
    UNUSED(be);
    return 0;
}

static void fma_item(void *ctx, int64_t item, int worker)
{
    struct peak_ctx *p = ctx;
    UNUSED(worker);
#ifdef PEAK_X86
    p->sink[item % 64] += p->lanes == 16 ? fma_512() : fma_256();
#else
    UNUSED(p);
    UNUSED(item);
#endif
}

static void copy_item(void *ctx, int64_t item, int worker)
{
    struct peak_ctx *p = ctx;
    UNUSED(worker);
    memcpy(p->dst + (size_t)item * p->bytes, p->src + (size_t)item * p->bytes, p->bytes);
}

/* A device: its own square product of random numbers (on zeros it would be faster than any real one) and a copy through its memory. */
enum { DEVICE_SIDE = 8192, DEVICE_SIDE_F32 = 4096, DEVICE_REPS = 10 };

static int fill_random(struct backend *be, struct view v, struct err *e)
{
    enum { PIECE = 1 << 18, PERIOD = 65521 };
    float *x = malloc((PIECE + PERIOD) * sizeof *x), *normal = x + PIECE;
    int rc = x ? 0 : err_nomem(e, (PIECE + PERIOD) * sizeof *x, "the product benchmark");
    for (int i = 0; rc == 0 && i < PERIOD; i++)
        normal[i] = (float)ctr_normal(7, 0, (uint64_t)i);
    for (int64_t at = 0; rc == 0 && at < v.n; at += PIECE) {
        struct view dst = view_at(v, at, MIN((int64_t)PIECE, v.n - at));
        for (int64_t i = 0; i < dst.n; i++)
            if (v.dt == DT_BF16)
                ((uint16_t *)x)[i] = f32_to_bf16(normal[(at + i) % PERIOD]);
            else
                x[i] = normal[(at + i) % PERIOD];
        be_put(be, dst, x);
        rc = be_sync(be, e);
    }
    free(x);
    return rc;
}

static int device_rates(struct backend *be, const struct view m[3], struct bench_peak *out, struct err *e)
{
    const int64_t n = be->act == DT_BF16 ? DEVICE_SIDE : DEVICE_SIDE_F32;
    TRY(fill_random(be, m[0], e));
    TRY(fill_random(be, m[1], e));
    for (int rep = 0; rep <= DEVICE_REPS; rep++) { /* the first warms up */
        double start = now_s();
        be_gemm(be, &(struct op_gemm){.c = m[2], .a = m[0], .b = m[1], .m = n, .n = n, .k = n, .tb = true});
        TRY(be_sync(be, e));
        double rate = 2e-9 * (double)n * (double)n * (double)n / (now_s() - start);
        out->gflops = rep ? MAX(out->gflops, rate) : 0;
    }
    for (int rep = 0; rep <= DEVICE_REPS; rep++) {
        double start = now_s();
        for (int k = 0; k < 8; k++)
            be_copy(be, m[2], m[k % 2]);
        TRY(be_sync(be, e));
        double rate = 1e-9 * 16.0 * (double)m[2].n * (double)dtype_size(m[2].dt) / (now_s() - start);
        out->gbs = rep ? MAX(out->gbs, rate) : 0;
    }
    return 0;
}

static int device_peak(struct backend *be, struct bench_peak *out, struct err *e)
{
    const int64_t n = be->act == DT_BF16 ? DEVICE_SIDE : DEVICE_SIDE_F32;
    struct view m[3] = {{0}};
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++)
        rc = be_view(be, be->act, n * n, &m[i], e);
    if (rc == 0)
        rc = device_rates(be, m, out, e);
    for (int i = 0; i < 3; i++)
        if (m[i].p)
            be_view_free(be, &m[i]);
    return rc;
}

int bench_peak_measure(struct backend *be, struct bench_peak *out, struct err *e)
{
    *out = (struct bench_peak){0, 0};
    if (!be_is_host(be))
        return device_peak(be, out, e);
    if (strcmp(be->ops->name, "cpu"))
        return 0;
    int threads = be->pool ? pool_threads(be->pool) : 1;
    struct peak_ctx p = {.lanes = peak_lanes(be), .bytes = (size_t)64 << 20};
    for (int rep = 0; p.lanes && rep < 3; rep++) {
        double start = now_s();
        pool_run(be->pool, threads, fma_item, &p);
        double rate = 1e-9 * 2.0 * CHAINS * STEPS * p.lanes * threads / (now_s() - start);
        out->gflops = MAX(out->gflops, rate);
    }
    char *buf = malloc(2 * p.bytes * (size_t)threads);
    if (!buf)
        return err_nomem(e, 2 * p.bytes * (size_t)threads, "the memory benchmark");
    memset(buf, 1, 2 * p.bytes * (size_t)threads);
    p.src = buf;
    p.dst = buf + p.bytes * (size_t)threads;
    for (int rep = 0; rep < 5; rep++) {
        double start = now_s();
        pool_run(be->pool, threads, copy_item, &p);
        double rate = 1e-9 * 2.0 * (double)p.bytes * threads / (now_s() - start);
        out->gbs = MAX(out->gbs, rate);
    }
    free(buf);
    return 0;
}

/* A function pointer out of dlsym without the cast that ISO C does not have. */
static bool load(void *lib, const char *name, void *fn)
{
    void *p = dlsym(lib, name);
    memcpy(fn, &p, sizeof p);
    return p != NULL;
}

void bench_blas_open(struct bench_blas *b, int threads)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    void (*set_threads)(int);
    int (*get_threads)(void);
    char *(*core_name)(void);
    memset(b, 0, sizeof *b);
#ifdef PEAK_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
#endif
    for (size_t i = 0; i < ARRAY_LEN(names) && !b->lib; i++)
        b->lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->lib) {
        snprintf(b->why, sizeof b->why, "OpenBLAS is not there: %s (Debian package libopenblas0-pthread)", dlerror());
        return;
    }
    if (!load(b->lib, "cblas_sgemm", &b->sgemm) || !load(b->lib, "openblas_set_num_threads", &set_threads) ||
        !load(b->lib, "openblas_get_num_threads", &get_threads) || !load(b->lib, "openblas_get_corename", &core_name)) {
        snprintf(b->why, sizeof b->why, "libopenblas lacks cblas_sgemm or its thread functions");
        bench_blas_close(b);
        return;
    }
    set_threads(threads);
    b->threads = get_threads();
    snprintf(b->core, sizeof b->core, "%s", core_name());
}

void bench_blas_close(struct bench_blas *b)
{
    if (b->lib)
        dlclose(b->lib);
    b->lib = NULL;
}
