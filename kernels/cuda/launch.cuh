/*
 * Kernels of a decoding step start while the one before them ends (programmatic dependent launch, sm_90): each lets the next one come at
 * its start, does what depends on weights alone, and waits with after_previous() before it reads what earlier kernels wrote, or writes.
 * Every kernel that is launched so must wait; what is read before the wait must not be written by any kernel of the same step.
 */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/cuda.h"

static __device__ __forceinline__ void let_next_start()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
static __device__ __forceinline__ void after_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Launches a kernel that calls after_previous(). */
template <typename... P, typename... A>
static inline void launch_after(struct backend *be, void (*kernel)(P...), dim3 grid, unsigned threads, size_t smem, A... args)
{
    struct cuda_backend *c = cuda_of(be);
    cudaLaunchAttribute attr = {};
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid;
    cfg.blockDim = dim3(threads);
    cfg.dynamicSmemBytes = smem;
    cfg.stream = c->stream;
    cfg.attrs = &attr;
    if (c->cc >= 90) {
        attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr.val.programmaticStreamSerializationAllowed = 1;
        cfg.numAttrs = 1;
    }
    cudaError_t rc = cudaLaunchKernelEx(&cfg, kernel, P(args)...);
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "cudaLaunchKernelEx");
}

#endif
