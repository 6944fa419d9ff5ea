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

/* Launches a kernel that calls after_previous(), in clusters of so many blocks along x. */
template <typename... P, typename... A>
static inline void launch_after(struct backend *be, void (*kernel)(P...), dim3 grid, unsigned threads, size_t smem, unsigned cluster,
                                A... args)
{
    struct cuda_backend *c = cuda_of(be);
    cudaLaunchAttribute attr[2] = {};
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = grid;
    cfg.blockDim = dim3(threads);
    cfg.dynamicSmemBytes = smem;
    cfg.stream = c->stream;
    cfg.attrs = attr;
    if (c->cc >= 90) {
        attr[cfg.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[cfg.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attr[cfg.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[cfg.numAttrs].val.clusterDim.x = cluster;
        attr[cfg.numAttrs].val.clusterDim.y = attr[cfg.numAttrs].val.clusterDim.z = 1;
        cfg.numAttrs++;
    }
    cudaError_t rc = cudaLaunchKernelEx(&cfg, kernel, P(args)...);
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "cudaLaunchKernelEx");
}

#endif
