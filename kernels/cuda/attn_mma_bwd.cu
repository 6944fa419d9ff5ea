/*
 * Attention backward on tensor cores, bf16, head dims up to 128, without atomics: one kernel owns blocks of queries (dq = dS K), one blocks
 * of keys (dv += P^T dO, dk += dS^T Q). The query heads of a kv head may be split into groups for the second, whose partial sums are then
 * added in order.
 */
#include "kernels/cuda/attn.cuh"

enum { B = 64 };
#define LOG2E 1.44269504088896341f

static __device__ __forceinline__ void cp_async4(float *to, const float *from, bool on)
{
    int n = on ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_addr(to)), "l"(from), "r"(n) : "memory");
}

/* One element: s raw score, gv = d_o . v; lse in powers of two. */
static __device__ __forceinline__ void weigh(const attn_in<bf16> &x, const float (&p)[2], int back, float s, float gv, float lse0,
                                             float lse1, float delta0, float delta1, float *pm, float *ds)
{
    const float sl2 = x.scale * LOG2E;
    float a = back >= 0 && back < x.window[0] ? p[0] * exp2_f(fmaf(s, sl2, -lse0)) : 0, sum = a, d = a * (gv - delta0);
    if (x.branches == 2) {
        float b = back >= 0 && back < x.window[1] ? p[1] * exp2_f(fmaf(s, sl2, -lse1)) : 0;
        sum += b;
        d = fmaf(b, gv - delta1, d);
    }
    *pm = sum;
    *ds = d;
}

template <int D> struct dq_smem {
    bf16 q[B * tile_ld<bf16>(D)], go[B * tile_ld<bf16>(D)], k[2][B * tile_ld<bf16>(D)], v[2][B * tile_ld<bf16>(D)];
};

template <int D> static __global__ void __launch_bounds__(128) attn_dq_kernel(attn_in<bf16> x, attn_grad<bf16> d)
{
    constexpr int LD = tile_ld<bf16>(D);
    extern __shared__ __align__(16) unsigned char raw[];
    dq_smem<D> &sm = *(dq_smem<D> *)raw;
    const int i0 = (gridDim.x - 1 - blockIdx.x) * B, head = blockIdx.y, kvh = head / x.rep, tid = threadIdx.x, row0 = 16 * (tid >> 5),
              g = (tid & 31) >> 2, t4 = tid & 3;
    const attn_seq s = attn_find(x, blockIdx.z);
    if (i0 >= s.nq)
        return;
    const int left = s.nq - i0, hi = min(i0 + B, s.nq) - 1, lo = x.window[0] > i0 ? 0 : i0 - x.window[0] + 1, first = hi / B,
              steps = first - lo / B + 1;
    const int64_t row = s.row + i0;
    auto load_kv = [&](int at, int block) {
        const int64_t r = s.row + (int64_t)block * B;
        tile_load<B, D, 128>(sm.k[at], LD, x.k + r * x.ldk + kvh * x.kdim, x.ldk, s.nq - block * B, x.kdim, true, tid);
        tile_load<B, D, 128>(sm.v[at], LD, x.v + r * x.ldv + kvh * x.vdim, x.ldv, s.nq - block * B, x.vdim, true, tid);
    };
    tile_load<B, D, 128>(sm.q, LD, x.q + row * x.ldq + head * x.kdim, x.ldq, left, x.kdim, true, tid);
    tile_load<B, D, 128>(sm.go, LD, d.d_o + (row * x.h + head) * x.vdim, (int64_t)x.h * x.vdim, left, x.vdim, true, tid);
    load_kv(0, first);
    cp_commit();
    float lse[2][2] = {{0}}, delta[2][2] = {{0}}, dq[1][D / 8][4];
    tile_zero(dq);
#pragma unroll
    for (int b = 0; b < 2; b++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (b < x.branches && row0 + g + 8 * h < left) {
                int64_t at = (row + row0 + g + 8 * h) * x.h + head;
                lse[b][h] = d.lse[b][at] * LOG2E;
                delta[b][h] = d.delta[b][at];
            }
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int at = step & 1, j0 = (first - step) * B;
        cp_wait<0>();
        __syncthreads();
        if (step + 1 < steps)
            load_kv(at ^ 1, first - step - 1);
        cp_commit();
        float c[1][8][4], y[1][8][4];
        tile_zero(c), tile_zero(y);
        tile_mm<1, 8, false, true>(c, sm.q + row0 * LD, LD, sm.k[at], LD, D);
        tile_mm<1, 8, false, true>(y, sm.go + row0 * LD, LD, sm.v[at], LD, D);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int h = e >> 1, back = i0 + row0 + g + 8 * h - (j0 + 8 * n + 2 * t4 + (e & 1));
                float pm;
                weigh(x, d.p, back, c[0][n][e], y[0][n][e], lse[0][h], lse[1][h], delta[0][h], delta[1][h], &pm, &c[0][n][e]);
            }
        add_pv<D, 1, 8>(dq, c, sm.k[at]);
    }
    tile_each(dq, [&](int r, int c, float u, float v) {
        if (row0 + r < left && c < x.kdim)
            st2(d.dq + (row + row0 + r) * x.ldq + head * x.kdim + c, x.scale * u, x.scale * v);
    });
}

template <int D> struct dkv_smem {
    bf16 k[B * tile_ld<bf16>(D)], v[B * tile_ld<bf16>(D)], q[2][B * tile_ld<bf16>(D)], go[2][B * tile_ld<bf16>(D)];
    float lse[2][2][B], delta[2][2][B]; /* [stage][branch] */
};

/* blockIdx.y = kv head * groups + group. pk, pv: [group][rows][g][kdim | vdim], NULL with one group. */
template <int D>
static __global__ void __launch_bounds__(128) attn_dkv_kernel(attn_in<bf16> x, attn_grad<bf16> d, float *pk, float *pv, int groups)
{
    constexpr int LD = tile_ld<bf16>(D);
    extern __shared__ __align__(16) unsigned char raw[];
    dkv_smem<D> &sm = *(dkv_smem<D> *)raw;
    const int j0 = blockIdx.x * B, kvh = blockIdx.y / groups, group = blockIdx.y % groups, tid = threadIdx.x, row0 = 16 * (tid >> 5),
              g = (tid & 31) >> 2, t4 = tid & 3;
    const int head0 = kvh * x.rep + x.rep * group / groups, heads = kvh * x.rep + x.rep * (group + 1) / groups - head0;
    const attn_seq s = attn_find(x, blockIdx.z);
    if (j0 >= s.nq)
        return;
    const int left = s.nq - j0, end = x.window[0] < s.nq - j0 - B ? j0 + B + x.window[0] : s.nq, blocks = (end + B - 1) / B - j0 / B,
              steps = heads * blocks;
    const int64_t row = s.row + j0;
    auto load_q = [&](int at, int step) {
        const int head = head0 + step / blocks, i0 = j0 + step % blocks * B, n = s.nq - i0;
        const int64_t r = s.row + i0;
        tile_load<B, D, 128>(sm.q[at], LD, x.q + r * x.ldq + head * x.kdim, x.ldq, n, x.kdim, true, tid);
        tile_load<B, D, 128>(sm.go[at], LD, d.d_o + (r * x.h + head) * x.vdim, (int64_t)x.h * x.vdim, n, x.vdim, true, tid);
        const int i = tid & 63, b = tid >> 6;
        if (b < x.branches) {
            const int64_t o = (r + (i < n ? i : 0)) * x.h + head;
            cp_async4(&sm.lse[at][b][i], (b ? d.lse[1] : d.lse[0]) + o, i < n);
            cp_async4(&sm.delta[at][b][i], (b ? d.delta[1] : d.delta[0]) + o, i < n);
        }
    };
    tile_load<B, D, 128>(sm.k, LD, x.k + row * x.ldk + kvh * x.kdim, x.ldk, left, x.kdim, true, tid);
    tile_load<B, D, 128>(sm.v, LD, x.v + row * x.ldv + kvh * x.vdim, x.ldv, left, x.vdim, true, tid);
    load_q(0, 0);
    cp_commit();
    float dk[1][D / 8][4], dv[1][D / 8][4];
    tile_zero(dk), tile_zero(dv);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        const int at = step & 1, i0 = j0 + step % blocks * B;
        cp_wait<0>();
        __syncthreads();
        if (step + 1 < steps)
            load_q(at ^ 1, step + 1);
        cp_commit();
        float c[1][8][4], y[1][8][4];
        tile_zero(c), tile_zero(y);
        tile_mm<1, 8, false, true>(c, sm.k + row0 * LD, LD, sm.q[at], LD, D);
        tile_mm<1, 8, false, true>(y, sm.v + row0 * LD, LD, sm.go[at], LD, D);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int i = 8 * n + 2 * t4 + (e & 1), back = i0 + i - (j0 + row0 + g + 8 * (e >> 1));
                const bool two = x.branches == 2;
                float pm, ds;
                weigh(x, d.p, i0 + i < s.nq ? back : -1, c[0][n][e], y[0][n][e], sm.lse[at][0][i] * LOG2E,
                      two ? sm.lse[at][1][i] * LOG2E : 0, sm.delta[at][0][i], two ? sm.delta[at][1][i] : 0, &pm, &ds);
                c[0][n][e] = pm;
                y[0][n][e] = ds;
            }
        add_pv<D, 1, 8>(dv, c, sm.go[at]);
        add_pv<D, 1, 8>(dk, y, sm.q[at]);
    }
    tile_each(dk, [&](int r, int c, float u, float v) {
        if (row0 + r >= left || c >= x.kdim)
            return;
        if (pk)
            st2(pk + (((int64_t)group * x.rows + row + row0 + r) * x.g + kvh) * x.kdim + c, x.scale * u, x.scale * v);
        else
            st2(d.dk + (row + row0 + r) * x.ldk + kvh * x.kdim + c, x.scale * u, x.scale * v);
    });
    tile_each(dv, [&](int r, int c, float u, float v) {
        if (row0 + r >= left || c >= x.vdim)
            return;
        if (pv)
            st2(pv + (((int64_t)group * x.rows + row + row0 + r) * x.g + kvh) * x.vdim + c, u, v);
        else
            st2(d.dv + (row + row0 + r) * x.ldv + kvh * x.vdim + c, u, v);
    });
}

/* to[row, :] (stride ld) = sum over groups of part[group][row][width], ascending; two columns a thread. blockIdx.y: dk, dv. */
static __global__ void __launch_bounds__(256)
    attn_groups_kernel(attn_in<bf16> x, bf16 *dk, bf16 *dv, const float *pk, const float *pv, int groups)
{
    const int width = x.g * (blockIdx.y ? x.vdim : x.kdim);
    const int64_t n = x.rows * width, i = 2 * ((int64_t)blockIdx.x * 256 + threadIdx.x);
    if (i >= n)
        return;
    const float *p = (blockIdx.y ? pv : pk) + i;
    float2 sum = ld2(p);
    for (int k = 1; k < groups; k++) {
        float2 y = ld2(p + k * n);
        sum.x += y.x, sum.y += y.y;
    }
    st2((blockIdx.y ? dv : dk) + i / width * (blockIdx.y ? x.ldv : x.ldk) + i % width, sum.x, sum.y);
}

int attn_dkv_groups(struct backend *be, const attn_in<bf16> &x, int block, float **pk, float **pv)
{
    int64_t items = CEIL_DIV(x.rows, (int64_t)block) * x.g,
            want = (int64_t)3 * cuda_of(be)->sms; /* items differ in length, the longest come first */
    int groups = 1;
    while (groups < x.rep && (x.rep % groups || items * groups < want))
        groups++;
    *pk = *pv = NULL;
    if (groups == 1)
        return 1;
    *pk = cuda_ws_of<float>(be, x.rows * x.g * x.kdim * groups);
    *pv = cuda_ws_of<float>(be, x.rows * x.g * x.vdim * groups);
    return *pk && *pv ? groups : 0;
}
void attn_add_groups(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d, const float *pk, const float *pv, int groups)
{
    if (groups > 1)
        attn_groups_kernel<<<dim3((unsigned)CEIL_DIV(x.rows * x.g * MAX(x.kdim, x.vdim), 512), 2), 256, 0, cuda_of(be)->stream>>>(
            x, d.dk, d.dv, pk, pv, groups);
}

template <int D> static void run_bwd(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d)
{
    cudaStream_t stream = cuda_of(be)->stream;
    float *pk, *pv;
    int groups = attn_dkv_groups(be, x, B, &pk, &pv);
    if (!groups || !tile_allow_smem(be, attn_dq_kernel<D>, sizeof(dq_smem<D>)) ||
        !tile_allow_smem(be, attn_dkv_kernel<D>, sizeof(dkv_smem<D>)))
        return;
    attn_dq_kernel<D><<<dim3(CEIL_DIV(x.longest, B), x.h, x.n), 128, sizeof(dq_smem<D>), stream>>>(x, d);
    attn_dkv_kernel<D><<<dim3(CEIL_DIV(x.longest, B), x.g * groups, x.n), 128, sizeof(dkv_smem<D>), stream>>>(x, d, pk, pv, groups);
    attn_add_groups(be, x, d, pk, pv, groups);
}

bool attn_mma_bwd(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d)
{
    const int dim = MAX(x.kdim, x.vdim);
    if (dim > 128 || !attn_vec(x) || !aligned16(d.d_o) || !aligned16(d.dq) || !aligned16(d.dk) || !aligned16(d.dv))
        return false;
    if (attn_wg_bwd(be, x, d))
        return true;
    if (dim > 64)
        run_bwd<128>(be, x, d);
    else if (dim > 32)
        run_bwd<64>(be, x, d);
    else
        run_bwd<32>(be, x, d);
    return true;
}
