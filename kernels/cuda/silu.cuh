/* SiLU and its derivative with the precision that T has use for: bf16 takes the fast exponential and division. */
#ifndef KERNELS_CUDA_SILU_CUH
#define KERNELS_CUDA_SILU_CUH

#include "kernels/cuda/cuda.h"

template <typename T> static __device__ __forceinline__ float sig(float x)
{
    return sizeof(T) == 2 ? __fdividef(1.0f, 1.0f + __expf(-x)) : sigmoid_f(x);
}
template <typename T> static __device__ __forceinline__ float silu_t(float x)
{
    return x * sig<T>(x);
}
template <typename T> static __device__ __forceinline__ float silu_dt(float x)
{
    const float s = sig<T>(x);
    return s + x * s * (1.0f - s);
}

#endif
