/*
 * Speed of single ops, for `dashlab bench op`: median time of the op on a shape (kernels/op_case.h has the keys), FLOPs and bytes from
 * kernels/flops.c, the share of what this machine can do (peaks are measured, not looked up), the error against the double reference, and
 * OpenBLAS beside our matrix product. Nothing is printed here.
 */
#ifndef KERNELS_BENCH_H
#define KERNELS_BENCH_H

#include "kernels/ops.h"

struct bench_opts {
    const char *op;        /* NULL = all */
    const char *shape;     /* NULL = the built-in shapes of the op */
    double seconds;        /* time for each row, 0 = 0.3 */
    bool compare_openblas; /* gemm in float on host backends */
    bool no_check;         /* leave the error out */
    uint64_t seed;
};
#define BENCH_CHECK_FLOPS 4e9 /* the naive reference is asked up to this cost */

/* What the machine reaches: multiply-adds from registers and a copy through memory, on all threads of the pool. 0 = not known. */
struct bench_peak {
    double gflops, gbs;
};
/* OpenBLAS, found by dlopen; absent: lib NULL and `why` says so. On machines with AVX-512 OPENBLAS_CORETYPE=SkylakeX is set before loading
   unless the variable is set already: its AMD detection picks a core with 256-bit kernels otherwise. Threads are set to the pool's. */
struct bench_blas {
    void *lib;
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b, int ldb, float beta,
                  float *c, int ldc);
    char core[64], why[256];
    int threads;
};
struct bench_row {
    char op[16], shape[256];
    int64_t reps;
    double time_s, best_s; /* median, minimum */
    double flops, bytes;   /* of one call */
    double gflops, gbs;    /* by the median */
    double share;  /* roofline time / median: max(flops / peak, bytes / bandwidth) / time; above 1 when the data stay in a cache; NAN = peak
                      not known */
    double err;    /* worst ||got - ref|| / ||ref|| over the outputs; NAN = not asked for or too large for the reference */
    double blas_s, blas_best_s; /* OpenBLAS' median, minimum; NAN = not compared */
};

int bench_peak_measure(struct backend *be, struct bench_peak *out, struct err *e);
void bench_blas_open(struct bench_blas *b, int threads);
void bench_blas_close(struct bench_blas *b);
/* Calls row(ctx, ...) after each measured shape. peak and blas may be NULL. E_USAGE for an unknown op or key; a wrong result is for the
 * caller to judge by err. */
int bench_op(struct backend *be, const struct bench_opts *o, const struct bench_peak *peak, const struct bench_blas *blas,
             void (*row)(void *ctx, const struct bench_row *r), void *ctx, struct err *e);

#endif
