/*
 * Inside of the CUDA backend: for .cu files only. One stream per instance; everything an op launches goes there, in order. An op is
 * cuda_op_NAME(be, d); the table (table.cu) calls it with the sticky error clear and the current op noted, and looks for launch errors
 * afterwards, so an op needs no check of its own launches. Calls that return a status go through CUDA_OK.
 * Precision: T is be->act (float or __nv_bfloat16); all arithmetic is float, sums are float, tensor-core operands are T. Float means float:
 * no TF32. Statistics are float.
 * Determinism: no atomics in reductions (counters of arrived blocks aside: the last one adds, in order); partial sums are written to the
 * workspace and added in a fixed order that depends on shapes only.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cublasLt.h>

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The headers are C: `noreturn` is a macro there. */
#define noreturn
extern "C" {
#include "kernels/op_case.h"
}
#undef noreturn

typedef __nv_bfloat16 bf16;

enum { CUDA_EXTRA = 32, CUDA_COUNTERS = 1 << 14 };
struct cuda_lt;
struct cuda_graphs; /* step.cu */
struct cuda_backend {
    int device, sms, cc; /* cc = 10 * major + minor of the code that runs there: 90 means that sm_90a code does */
    size_t smem_optin;   /* dynamic shared memory a block may ask for, after cudaFuncSetAttribute */
    int64_t l2_bytes;
    char name[64];
    cudaStream_t stream;
    /* Workspace of the current op: one block, and blocks added when that was too small, which are made one before the next op. */
    char *ws;
    size_t ws_cap, ws_used, ws_want;
    void *extra[CUDA_EXTRA];
    size_t extra_bytes[CUDA_EXTRA];
    int n_extra;
    struct cuda_lt *lt; /* gemm.cu */
    unsigned *counters; /* step.cu */
    struct cuda_graphs *graphs;
    int64_t epoch;   /* grows when device memory is freed */
    bool use_graphs; /* decoding steps are recorded and replayed */
    bool fused;      /* calls of kernels/step.h are kernels of their own */
    /* What is named when something fails: the op that runs, with its descriptor while it does; the first begun since the last wait. */
    const char *op, *first_op;
    enum op_id op_id;
    const void *desc;
    int64_t ops_begun;
    bool sync_each; /* $DASHLAB_CUDA_SYNC=1: wait after each op, so that an error names the op that made it */
};
static inline struct cuda_backend *cuda_of(struct backend *be)
{
    return (struct cuda_backend *)be->impl;
}

/* Device memory until the current op ends (more exactly, until the next begins): 256-byte aligned, not zeroed. NULL sets the sticky error:
   return then. Pointers stay valid when later calls in the same op add to it. */
void *cuda_ws(struct backend *be, size_t bytes);
template <typename T> static inline T *cuda_ws_of(struct backend *be, int64_t n)
{
    return (T *)cuda_ws(be, (size_t)n * sizeof(T));
}
/* Makes the workspace one block as large as the ops so far asked for, so that the same ops do not change it. */
void cuda_ws_settle(struct backend *be);
/* Around a kernel that is no op of the table, as the table does for those. */
void cuda_step_begin(struct backend *be, const char *name);
void cuda_step_end(struct backend *be);
void cuda_graphs_close(struct backend *be); /* and the counters */
/* CUDA_COUNTERS zeros, by which the last block of several knows that it is; it sets its counter to zero again. NULL: sticky error. */
unsigned *cuda_counters(struct backend *be);
/* Sets the sticky error for a failed call: op, shape, call and CUDA's words. */
void cuda_fail(struct backend *be, cudaError_t rc, const char *what);
/* "op 'gemm' (c 512x64 f32, a ...)" of the op that runs, for messages. */
void cuda_op_text(const struct backend *be, char *dst, size_t cap);
/* Matrix products: opened and closed with the backend. */
int cuda_lt_open(struct backend *be, struct err *e);
void cuda_lt_close(struct backend *be);
#define CUDA_OK(be, call)                                                                                                                  \
    do {                                                                                                                                   \
        cudaError_t rc_ = (call);                                                                                                          \
        if (rc_ != cudaSuccess) {                                                                                                          \
            cuda_fail(be, rc_, #call);                                                                                                     \
            return;                                                                                                                        \
        }                                                                                                                                  \
    } while (0)

/* Runs the body with T = the C++ type of a dtype: float or bf16. */
#define CUDA_BY_TYPE(dtype, T, ...)                                                                                                        \
    do {                                                                                                                                   \
        if ((dtype) == DT_BF16) {                                                                                                          \
            typedef bf16 T;                                                                                                                \
            __VA_ARGS__                                                                                                                    \
        } else {                                                                                                                           \
            typedef float T;                                                                                                               \
            __VA_ARGS__                                                                                                                    \
        }                                                                                                                                  \
    } while (0)
template <typename T> static inline T *cuda_p(struct view v)
{
    return (T *)v.p;
}

/* The product of op_gemm for other ops: same contract, with free types (c float where a and b are bf16 is allowed). */
struct cuda_mm {
    void *c;
    const void *a, *b, *bias;
    enum dtype ct, abt; /* types of c, and of a and b (bias has abt) */
    int64_t m, n, k, lda, ldb, ldc;
    bool ta, tb, accumulate;
};
void cuda_matmul(struct backend *be, const struct cuda_mm *d);

/* The ops. */
#define X(op) void cuda_op_##op(struct backend *be, const struct op_##op *d);
BACKEND_OPS(X)
#undef X

/* ---- device code ---- */
static __device__ __forceinline__ float ld(const float *p)
{
    return *p;
}
static __device__ __forceinline__ float ld(const bf16 *p)
{
    return __bfloat162float(*p);
}
static __device__ __forceinline__ void st(float *p, float x)
{
    *p = x;
}
static __device__ __forceinline__ void st(bf16 *p, float x)
{
    *p = __float2bfloat16_rn(x);
}
/* A value as it will be read back after being stored as T. */
template <typename T> static __device__ __forceinline__ float rounded(float x);
template <> __device__ __forceinline__ float rounded<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ float rounded<bf16>(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* 16 bytes at once: VEC<T>::n elements; the address must be 16-byte aligned. */
template <typename T> struct VEC {
    static const int n = 16 / (int)sizeof(T);
};
static __device__ __forceinline__ void ld16(float (&x)[4], const float *p)
{
    float4 v = *(const float4 *)p;
    x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
static __device__ __forceinline__ void st16(float *p, const float (&x)[4])
{
    *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
}
static __device__ __forceinline__ float bf16_lo(unsigned u)
{
    return __uint_as_float(u << 16);
}
static __device__ __forceinline__ float bf16_hi(unsigned u)
{
    return __uint_as_float(u & 0xffff0000u);
}
static __device__ __forceinline__ unsigned bf16_pack(float lo, float hi)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return *(unsigned *)&v;
}
static __device__ __forceinline__ void ld16(float (&x)[8], const bf16 *p)
{
    uint4 v = *(const uint4 *)p;
    x[0] = bf16_lo(v.x), x[1] = bf16_hi(v.x), x[2] = bf16_lo(v.y), x[3] = bf16_hi(v.y);
    x[4] = bf16_lo(v.z), x[5] = bf16_hi(v.z), x[6] = bf16_lo(v.w), x[7] = bf16_hi(v.w);
}
static __device__ __forceinline__ void st16(bf16 *p, const float (&x)[8])
{
    *(uint4 *)p = make_uint4(bf16_pack(x[0], x[1]), bf16_pack(x[2], x[3]), bf16_pack(x[4], x[5]), bf16_pack(x[6], x[7]));
}
static inline __host__ __device__ bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* Sums over the 32 lanes, in every lane; the order of additions is fixed. */
static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
static __device__ __forceinline__ double warp_sum(double x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}
/* Over a block of THREADS (a multiple of 32, at most 1024), in every thread; shared: 32 values. Two barriers, so that calls may follow one
   another with the same memory. */
template <int THREADS, typename R> static __device__ __forceinline__ R block_sum(R x, R *shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_sum(x);
    if (THREADS == 32)
        return x;
    __syncthreads();
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = lane < THREADS / 32 ? shared[lane] : (R)0;
    return warp_sum(x);
}
template <int THREADS> static __device__ __forceinline__ float block_max(float x, float *shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    x = warp_max(x);
    if (THREADS == 32)
        return x;
    __syncthreads();
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = lane < THREADS / 32 ? shared[lane] : -INFINITY;
    return warp_max(x);
}

static __device__ __forceinline__ float sigmoid_f(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
static __device__ __forceinline__ float silu_f(float x)
{
    return x * sigmoid_f(x);
}
static __device__ __forceinline__ float silu_df(float x) /* derivative */
{
    float s = sigmoid_f(x);
    return s + x * s * (1.0f - s);
}

#endif
