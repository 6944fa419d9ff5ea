/* Launching and vector access, shared by the simpler kernels. */
#ifndef KERNELS_CUDA_VEC_H
#define KERNELS_CUDA_VEC_H

#include "kernels/cuda/cuda.h"

static const int THREADS = 256;

/* Blocks for n items of work, one a thread; kernels loop when there are more. */
static inline unsigned blocks_for(int64_t n)
{
    return (unsigned)MAX(MIN(CEIL_DIV(n, (int64_t)THREADS), (int64_t)1 << 20), (int64_t)1);
}
#define EACH(i, n) for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)
#define LAUNCH(be, n) <<<blocks_for(n), THREADS, 0, cuda_of(be)->stream>>>

/* V elements from p + i as floats: one 16-byte access, or one element when V is 1. */
template <int V, typename T> static __device__ __forceinline__ void ldv(float (&x)[V], const T *p)
{
    if constexpr (V == 1)
        x[0] = ld(p);
    else
        ld16(x, p);
}
template <int V, typename T> static __device__ __forceinline__ void stv(T *p, const float (&x)[V])
{
    if constexpr (V == 1)
        st(p, x[0]);
    else
        st16(p, x);
}
static inline bool all_aligned(const void *a, const void *b = NULL, const void *c = NULL, const void *d = NULL, const void *e = NULL,
                               const void *f = NULL, const void *g = NULL)
{
    return aligned16(a) && aligned16(b) && aligned16(c) && aligned16(d) && aligned16(e) && aligned16(f) && aligned16(g);
}

#endif
