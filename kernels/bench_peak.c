/* Ceilings of this machine, and the optional OpenBLAS. */
#include "kernels/bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

int bench_peak_measure(struct backend *be, struct bench_peak *out, struct err *e)
{
    *out = (struct bench_peak){0, 0};
    if (strcmp(be->ops->name, "cpu")) {
        if (strstr(be->desc, "H200")) /* measured on one H200: dense bf16 product of random numbers, copy through memory */
            *out = (struct bench_peak){790e3, 4300};
        return 0;
    }
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
