/*
 * Products of small matrices in shared memory, one warp at a time, on tensor cores (bf16: mma.sync m16n8k16) or, with the same distribution
 * of elements, by plain FMAs (float). A warp's c[mt][nt][4] holds 16 mt x 8 nt elements: lane = 4 g + t owns c[.][.][0], [1] at row g,
 * columns 2t and 2t + 1, and [2], [3] at row g + 8.
 */
#ifndef KERNELS_CUDA_TILE_CUH
#define KERNELS_CUDA_TILE_CUH

#include "kernels/cuda/cuda.h"

static __device__ __forceinline__ unsigned smem_addr(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void ldmatrix4(unsigned (&r)[4], unsigned addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
static __device__ __forceinline__ void ldmatrix4t(unsigned (&r)[4], unsigned addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}
static __device__ __forceinline__ void mma16816(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* 16 bytes from global to shared memory; zeros when off. */
static __device__ __forceinline__ void cp_async16(void *to, const void *from, bool on)
{
    int n = on ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_addr(to)), "l"(from), "r"(n) : "memory");
}
static __device__ __forceinline__ void cp_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LEFT> static __device__ __forceinline__ void cp_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
/* Some of a block's warps wait for each other; id 1..15. */
static __device__ __forceinline__ void bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Row stride of a tile of n columns: 16 bytes more, so that 8 rows lie in different banks. */
template <typename T> static inline __host__ __device__ constexpr int tile_ld(int n)
{
    return n + 16 / (int)sizeof(T);
}

template <int MT, int NT> static __device__ __forceinline__ void tile_zero(float (&c)[MT][NT][4])
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[i][j][e] = 0;
}

/*
 * c += A B over k: A(m, k) = a[m lda + k], with TA a[k lda + m]; B(k, n) = b[k ldb + n], with TB b[n ldb + k]. a, b point at the warp's
 * first row and column. k a multiple of 16, NT even. Sums ascend over k.
 */
template <int MT, int NT, bool TA, bool TB>
static __device__ __forceinline__ void tile_mm(float (&c)[MT][NT][4], const bf16 *a, int lda, const bf16 *b, int ldb, int k)
{
    const int lane = threadIdx.x & 31, i = lane >> 3, r = lane & 7;
    const unsigned pa = smem_addr(TA ? a + ((i >> 1) * 8 + r) * lda + (i & 1) * 8 : a + ((i & 1) * 8 + r) * lda + (i >> 1) * 8);
    const unsigned pb = smem_addr(TB ? b + ((i >> 1) * 8 + r) * ldb + (i & 1) * 8 : b + ((i & 1) * 8 + r) * ldb + (i >> 1) * 8);
#pragma unroll 4
    for (int k0 = 0; k0 < k; k0 += 16) {
        unsigned fa[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++)
            if (TA)
                ldmatrix4t(fa[m], pa + 2u * (unsigned)(k0 * lda + 16 * m));
            else
                ldmatrix4(fa[m], pa + 2u * (unsigned)(16 * m * lda + k0));
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            unsigned fb[4];
            if (TB)
                ldmatrix4(fb, pb + 2u * (unsigned)(8 * n * ldb + k0));
            else
                ldmatrix4t(fb, pb + 2u * (unsigned)(k0 * ldb + 8 * n));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma16816(c[m][n], fa[m], fb[0], fb[1]);
                mma16816(c[m][n + 1], fa[m], fb[2], fb[3]);
            }
        }
    }
}
template <int MT, int NT, bool TA, bool TB>
static __device__ __forceinline__ void tile_mm(float (&c)[MT][NT][4], const float *a, int lda, const float *b, int ldb, int k)
{
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll 1
    for (int p = 0; p < k; p++) {
        float fa[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int row = 16 * m + 8 * e + g;
                fa[m][e] = TA ? a[p * lda + row] : a[row * lda + p];
            }
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int col = 8 * n + 2 * t + e;
                float fb = TB ? b[col * ldb + p] : b[p * ldb + col];
#pragma unroll
                for (int m = 0; m < MT; m++) {
                    c[m][n][e] = fmaf(fa[m][0], fb, c[m][n][e]);
                    c[m][n][2 + e] = fmaf(fa[m][1], fb, c[m][n][2 + e]);
                }
            }
    }
}

/* Two neighbours at once. */
static __device__ __forceinline__ void st2(bf16 *p, float x, float y)
{
    *(unsigned *)p = bf16_pack(x, y);
}
static __device__ __forceinline__ void st2(float *p, float x, float y)
{
    *(float2 *)p = make_float2(x, y);
}
static __device__ __forceinline__ float2 ld2(const bf16 *p)
{
    unsigned u = *(const unsigned *)p;
    return make_float2(bf16_lo(u), bf16_hi(u));
}
static __device__ __forceinline__ float2 ld2(const float *p)
{
    return *(const float2 *)p;
}

/* fn(row, column, x, y) for each pair of neighbours that this lane owns. */
template <int MT, int NT, typename F> static __device__ __forceinline__ void tile_each(float (&c)[MT][NT][4], F fn)
{
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            fn(16 * m + g, 8 * n + 2 * t, c[m][n][0], c[m][n][1]);
            fn(16 * m + g + 8, 8 * n + 2 * t, c[m][n][2], c[m][n][3]);
        }
}

/* The slow ways, element by element; not inlined, they would be copied everywhere. */
template <typename T, typename F>
static __device__ __noinline__ void tile_load_slow(T *to, int ldt, const F *from, int64_t ld_from, int rows, int width, int n, int cols,
                                                   int tid, int threads)
{
#pragma unroll 1
    for (int u = tid; u < rows * width; u += threads) {
        int r = u / width, c = u % width;
        st(to + r * ldt + c, r < n && c < cols ? ld(from + r * ld_from + c) : 0.0f);
    }
}
template <typename T, typename F>
static __device__ __noinline__ void tile_store_slow(F *to, int64_t ld_to, const T *from, int ldt, int n, int cols, int tid, int threads)
{
#pragma unroll 1
    for (int u = tid; u < n * cols; u += threads)
        st(to + u / cols * ld_to + u % cols, ld(from + u / cols * ldt + u % cols));
}

/*
 * Rows 0 .. ROWS-1 of COLS columns into shared memory (row stride ldt), by THREADS threads of which this is number `tid`; rows from n on
 * and columns from `cols` on become 0. vec: addresses, ld and cols allow 16 bytes at once; the copies are then asynchronous (cp_commit,
 * cp_wait).
 */
template <int ROWS, int COLS, int THREADS, typename T, typename F>
static __device__ __forceinline__ void tile_load(T *to, int ldt, const F *from, int64_t ld_from, int n, int cols, bool vec, int tid)
{
    constexpr int V = VEC<T>::n, U = COLS / V, STEP = THREADS / U;
    static_assert(THREADS % U == 0, "a thread keeps its column");
    if (vec && sizeof(F) == sizeof(T)) {
        const int r0 = tid / U, c = tid % U * V;
        const unsigned addr = smem_addr(to + r0 * ldt + c);
        const F *p = from + r0 * ld_from + c;
        const int rows = c < cols ? n - r0 : 0;
#pragma unroll
        for (int i = 0; i < ROWS; i += STEP) {
            if (ROWS % STEP == 0 || r0 + i < ROWS) {
                const int bytes = i < rows ? 16 : 0; /* none: the address is not looked at */
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(addr + i * ldt * (int)sizeof(T)), "l"(p), "r"(bytes)
                             : "memory");
            }
            p += STEP * ld_from;
        }
    } else {
        tile_load_slow(to, ldt, from, ld_from, ROWS, COLS, n, cols, tid, THREADS);
    }
}
/* The way back: n rows, the first `cols` of COLS columns. */
template <int COLS, int THREADS, typename T, typename F>
static __device__ __forceinline__ void tile_store(F *to, int64_t ld_to, const T *from, int ldt, int n, int cols, bool vec, int tid)
{
    constexpr int V = VEC<T>::n;
    if (vec && sizeof(F) == sizeof(T)) {
        constexpr int U = COLS / V, STEP = THREADS / U;
        const int r0 = tid / U, c = tid % U * V;
        F *p = to + r0 * ld_to + c;
        const T *q = from + r0 * ldt + c;
        if (c < cols)
#pragma unroll 2
            for (int r = r0; r < n; r += STEP) {
                *(uint4 *)p = *(const uint4 *)q;
                p += STEP * ld_to;
                q += STEP * ldt;
            }
    } else {
        tile_store_slow(to, ld_to, from, ldt, n, min(cols, COLS), tid, THREADS);
    }
}

/* Allows a kernel its dynamic shared memory; false (sticky error set) when the device has less. */
template <typename K> static bool tile_allow_smem(struct backend *be, K kernel, size_t bytes)
{
    struct cuda_backend *cu = cuda_of(be);
    if (bytes > cu->smem_optin) {
        be_fail(be, E_ENV, "op '%s' needs %zu bytes of shared memory, the device has %zu; use --device cpu", cu->op, bytes, cu->smem_optin);
        return false;
    }
    cudaError_t rc = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "cudaFuncSetAttribute");
    return rc == cudaSuccess;
}

#endif
