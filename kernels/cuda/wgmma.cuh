/*
 * Hopper's asynchronous matrix products (wgmma, sm_90a only) on tiles of bf16 in shared memory. A tile of R rows and D columns is D / 64
 * panels of R rows of 128 bytes; in each panel the 16-byte chunk c of row r lies at chunk c ^ (r & 7) (the 128-byte swizzle); panels begin
 * at multiples of 1024 bytes. A warpgroup's accumulator d[N / 8][4] is laid out as in tile.cuh, warp w of the group having rows 16 w .. 16
 * w + 15; so its values, packed to bf16, are the next product's A in registers.
 */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/tile.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WG_CODE 1 /* elsewhere the kernels are empty, and the host does not launch them */
#else
#define WG_CODE 0
#endif

#if WG_CODE
#define WG4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define WG4_OUT(d, i) "=f"(d[i][0]), "=f"(d[i][1]), "=f"(d[i][2]), "=f"(d[i][3])

/* d += A B, 64 x N x 16; wg_mma_first: d = A B, so that no instruction need set d before. Operands: descriptors or A in registers; T = 1:
 * the operand's contiguous index is not k. */
template <int TA, int TB> static __device__ __forceinline__ void wg_mma(float (&d)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31"
                 "}, %32, %33, p, 1, 1, %34, %35;\n}\n"
                 : WG4(d, 0), WG4(d, 1), WG4(d, 2), WG4(d, 3), WG4(d, 4), WG4(d, 5), WG4(d, 6), WG4(d, 7)
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TB> static __device__ __forceinline__ void wg_mma(float (&d)[8][4], const unsigned (&a)[4], uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %37;\n}\n"
                 : WG4(d, 0), WG4(d, 1), WG4(d, 2), WG4(d, 3), WG4(d, 4), WG4(d, 5), WG4(d, 6), WG4(d, 7)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}
template <int TA, int TB> static __device__ __forceinline__ void wg_mma(float (&d)[16][4], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p, 1, 1, %66, %67;\n}\n"
                 : WG4(d, 0), WG4(d, 1), WG4(d, 2), WG4(d, 3), WG4(d, 4), WG4(d, 5), WG4(d, 6), WG4(d, 7), WG4(d, 8), WG4(d, 9), WG4(d, 10),
                   WG4(d, 11), WG4(d, 12), WG4(d, 13), WG4(d, 14), WG4(d, 15)
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TB> static __device__ __forceinline__ void wg_mma(float (&d)[16][4], const unsigned (&a)[4], uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.eq.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %69;\n}\n"
                 : WG4(d, 0), WG4(d, 1), WG4(d, 2), WG4(d, 3), WG4(d, 4), WG4(d, 5), WG4(d, 6), WG4(d, 7), WG4(d, 8), WG4(d, 9), WG4(d, 10),
                   WG4(d, 11), WG4(d, 12), WG4(d, 13), WG4(d, 14), WG4(d, 15)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}
template <int TA, int TB> static __device__ __forceinline__ void wg_mma_first(float (&d)[8][4], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31"
                 "}, %32, %33, p, 1, 1, %34, %35;\n}\n"
                 : WG4_OUT(d, 0), WG4_OUT(d, 1), WG4_OUT(d, 2), WG4_OUT(d, 3), WG4_OUT(d, 4), WG4_OUT(d, 5), WG4_OUT(d, 6), WG4_OUT(d, 7)
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}
template <int TA, int TB> static __device__ __forceinline__ void wg_mma_first(float (&d)[16][4], uint64_t a, uint64_t b)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "
                 "%26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
                 "%56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p, 1, 1, %66, %67;\n}\n"
                 : WG4_OUT(d, 0), WG4_OUT(d, 1), WG4_OUT(d, 2), WG4_OUT(d, 3), WG4_OUT(d, 4), WG4_OUT(d, 5), WG4_OUT(d, 6), WG4_OUT(d, 7),
                   WG4_OUT(d, 8), WG4_OUT(d, 9), WG4_OUT(d, 10), WG4_OUT(d, 11), WG4_OUT(d, 12), WG4_OUT(d, 13), WG4_OUT(d, 14),
                   WG4_OUT(d, 15)
                 : "l"(a), "l"(b), "n"(TA), "n"(TB));
}

static __device__ __forceinline__ void wg_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void wg_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void wg_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
/* Keeps the compiler from moving uses of an accumulator over a wait. */
template <int N> static __device__ __forceinline__ void wg_hold(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : WG4(d, i)::"memory");
}

/* Descriptor of a swizzled tile at shared address `addr`. k contiguous: groups of 8 rows are 1024 bytes apart. Rows are k (T = 1): besides,
 * panels are `panel` bytes apart. */
static __device__ __forceinline__ uint64_t wg_desc(unsigned addr, unsigned panel)
{
    return (uint64_t)((addr & 0x3ffffu) >> 4) | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}
#endif

/* Shared-memory writes of this thread (cp.async's too, once waited for) become visible to wgmma; a barrier must follow. */
static __device__ __forceinline__ void fence_async()
{
#if WG_CODE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* Rows 0 .. ROWS - 1 of D columns into a swizzled tile: rows from n on and columns from `cols` on are zeros. from: row 0. */
template <int ROWS, int D, int THREADS>
static __device__ __forceinline__ void wg_load(unsigned to, const bf16 *from, int64_t ld_from, int n, int cols, int tid)
{
    constexpr int U = D / 8, STEP = THREADS / U;
    const int r0 = tid / U, c = tid % U;
    const unsigned addr = to + (c / 8) * (ROWS * 128) + r0 * 128 + ((c % 8) ^ (r0 & 7)) * 16;
    const bool in = 8 * c < cols;
    const bf16 *p = from + r0 * ld_from + (in ? 8 * c : 0);
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "the swizzle is the same in each step");
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++) {
        const bool on = in && r0 + i * STEP < n;
        const int bytes = on ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(addr + i * STEP * 128), "l"(on ? p : from), "r"(bytes)
                     : "memory");
        p += STEP * ld_from;
    }
}

/* Whether a kernel of this kind was compiled for this device: it is empty for all but sm_90a, and then small. */
template <typename K> static bool wg_compiled(struct backend *be, K kernel)
{
    cudaFuncAttributes a;
    if (cuda_of(be)->cc != 90 || cudaFuncGetAttributes(&a, kernel) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return a.numRegs > 64;
}

#endif
