/*
 * Attention forward on Hopper: 128 queries of one head in two warpgroups of 64, keys in blocks of 128 from the diagonal backwards (see
 * attn_mma.cu for the two windows). The scores of the next block are computed while the softmax of this one and its product with V are
 * under way: S(j+1) = Q K(j+1)^T and O += P(j) V(j) are issued together.
 */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { BM = 128, BN = 128 };

template <int D> static constexpr size_t wg_fwd_bytes()
{
    return 1024 + (size_t)(BM + 4 * BN) * D * sizeof(bf16);
}

#if WG_CODE
/* s = 2^(s - m) with the new row maxima; l too; f: by what earlier sums and outputs shrink. */
template <int NT>
static __device__ __forceinline__ void wg_soften(float (&s)[NT][4], float (&m)[2], float (&l)[2], float (&f)[2], float sl2)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = m[h];
#pragma unroll
        for (int n = 0; n < NT; n++)
            top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float base = top == -INFINITY ? 0 : top * sl2;
        float sum = 0;
        f[h] = exp2_f(fmaf(m[h], sl2, -base));
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = exp2_f(fmaf(s[n][2 * h + e], sl2, -base));
                s[n][2 * h + e] = p;
                sum += p;
            }
        m[h] = top;
        l[h] = fmaf(l[h], f[h], sum);
    }
}
template <int NT> static __device__ __forceinline__ void wg_pack(unsigned (&a)[NT / 2][4], const float (&s)[NT][4])
{
#pragma unroll
    for (int k = 0; k < NT / 2; k++) {
        a[k][0] = bf16_pack(s[2 * k][0], s[2 * k][1]);
        a[k][1] = bf16_pack(s[2 * k][2], s[2 * k][3]);
        a[k][2] = bf16_pack(s[2 * k + 1][0], s[2 * k + 1][1]);
        a[k][3] = bf16_pack(s[2 * k + 1][2], s[2 * k + 1][3]);
    }
}
/* s = Q K^T: q, k are shared addresses of this warpgroup's rows and of the block. */
template <int D> static __device__ __forceinline__ void wg_scores(float (&s)[BN / 8][4], unsigned q, unsigned k)
{
    wg_mma_first<0, 0>(s, wg_desc(q, 16), wg_desc(k, 16));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        wg_mma<0, 0>(s, wg_desc(q + (i / 4) * (BM * 128) + (i % 4) * 32, 16), wg_desc(k + (i / 4) * (BN * 128) + (i % 4) * 32, 16));
}
template <int D> static __device__ __forceinline__ void wg_values(float (&o)[D / 8][4], const unsigned (&p)[BN / 16][4], unsigned v)
{
#pragma unroll
    for (int i = 0; i < BN / 16; i++)
        wg_mma<1>(o, p[i], wg_desc(v + i * 2048, BN * 128));
}
/* Scores of queries t + {0, 8} (this lane's) against keys j0 ..: those outside t - far < j <= t - near are dropped. */
static __device__ __forceinline__ void wg_mask(float (&s)[BN / 8][4], int t, int j0, int near, int far)
{
#pragma unroll
    for (int n = 0; n < BN / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int back = t + (e >> 1) * 8 - (j0 + 8 * n + 2 * (threadIdx.x & 3) + (e & 1));
            if (back < near || back >= far)
                s[n][e] = -INFINITY;
        }
}
#endif

template <int D> static __global__ void __launch_bounds__(256, 1) attn_wg_kernel(attn_in<bf16> x, attn_out<bf16> out)
{
#if WG_CODE
    extern __shared__ __align__(16) unsigned char raw[];
    constexpr unsigned TILE = BN * D * sizeof(bf16);
    const unsigned sq = (smem_addr(raw) + 1023) & ~1023u, sk = sq + TILE, sv = sk + 2 * TILE;
    const int head = blockIdx.x % x.h, kvh = head / x.rep, i0 = (gridDim.y - 1 - blockIdx.y) * BM, tid = threadIdx.x, group = tid >> 7;
    const attn_seq s = attn_find(x, blockIdx.x / x.h);
    if (i0 >= s.nq)
        return;
    const int t0 = s.nk - s.nq + i0, t_hi = t0 + min(BM, s.nq - i0) - 1, row0 = 16 * (tid >> 5), mine = t0 + row0 + ((tid & 31) >> 2),
              sub = t0 + 64 * group;
    const bool two = x.branches == 2;
    const attn_phase near = attn_phase_of<BN>(0, two ? x.window[1] : x.window[0], t0, t_hi);
    const attn_phase far =
        two && x.window[1] < x.window[0] ? attn_phase_of<BN>(x.window[1], x.window[0], t0, t_hi) : attn_phase{0, 0, 0, 0};
    const int steps = near.count + far.count;
    auto block_of = [&](int step) { return step < near.count ? near.first - step : far.first - (step - near.count); };
    const bf16 *kp = x.k + s.kv * x.ldk + kvh * x.kdim, *vp = x.v + s.kv * x.ldv + kvh * x.vdim;
    auto load_k = [&](int step) {
        const int j0 = block_of(step) * BN;
        wg_load<BN, D, 256>(sk + (step & 1) * TILE, kp + j0 * x.ldk, x.ldk, s.nk - j0, x.kdim, tid);
    };
    auto load_v = [&](int step) {
        const int j0 = block_of(step) * BN;
        wg_load<BN, D, 256>(sv + (step & 1) * TILE, vp + j0 * x.ldv, x.ldv, s.nk - j0, x.vdim, tid);
    };
    auto mask = [&](float(&c)[BN / 8][4], int step) {
        const int j0 = block_of(step) * BN, nr = step < near.count ? near.near : far.near, fr = step < near.count ? near.far : far.far;
        if (j0 + BN - 1 > sub - nr || (fr <= t_hi && j0 <= t_hi - fr))
            wg_mask(c, mine, j0, nr, fr);
    };
    const float sl2 = x.scale * 1.44269504088896341f;
    float c[BN / 8][4], o[1][D / 8][4], m[1][2] = {{-INFINITY, -INFINITY}}, l[1][2] = {{0, 0}}, f[2];
    unsigned p[BN / 16][4];
    tile_zero(o);
    wg_load<BM, D, 256>(sq, x.q + (s.row + i0) * x.ldq + head * x.kdim, x.ldq, s.nq - i0, x.kdim, tid);
    load_k(0);
    cp_commit();
    load_v(0);
    if (steps > 1)
        load_k(1);
    cp_commit();
    cp_wait<1>();
    fence_async();
    __syncthreads();
    wg_fence();
    wg_scores<D>(c, sq + group * 8192, sk);
    wg_commit();
    wg_wait<0>();
    wg_hold(c);
    mask(c, 0);
    wg_soften(c, m[0], l[0], f, sl2);
    wg_pack(p, c);
#pragma unroll 1
    for (int step = 0; step + 1 < steps; step++) {
        cp_wait<0>();
        fence_async();
        __syncthreads();
        if (step + 2 < steps)
            load_k(step + 2);
        load_v(step + 1);
        cp_commit();
        wg_fence();
        wg_scores<D>(c, sq + group * 8192, sk + ((step + 1) & 1) * TILE);
        wg_commit();
        wg_values<D>(o[0], p, sv + (step & 1) * TILE);
        wg_commit();
        wg_wait<1>();
        wg_hold(c);
        const float m_old[1][2] = {{m[0][0], m[0][1]}}, l_old[1][2] = {{l[0][0], l[0][1]}};
        mask(c, step + 1);
        wg_soften(c, m[0], l[0], f, sl2);
        wg_wait<0>();
        wg_hold(o[0]);
        if (two && step + 1 == near.count)
            attn_emit<D, 1>(x, out.o[1], out.lse[1], o, m_old, l_old, s.row + i0 + row0, head, s.nq - i0 - row0);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            o[0][n][0] *= f[0], o[0][n][1] *= f[0];
            o[0][n][2] *= f[1], o[0][n][3] *= f[1];
        }
        wg_pack(p, c);
    }
    cp_wait<0>();
    fence_async();
    __syncthreads();
    wg_fence();
    wg_values<D>(o[0], p, sv + ((steps - 1) & 1) * TILE);
    wg_commit();
    wg_wait<0>();
    wg_hold(o[0]);
    if (two && steps == near.count)
        attn_emit<D, 1>(x, out.o[1], out.lse[1], o, m, l, s.row + i0 + row0, head, s.nq - i0 - row0);
    attn_emit<D, 1>(x, out.o[0], out.lse[0], o, m, l, s.row + i0 + row0, head, s.nq - i0 - row0);
#endif
}

template <int D> static bool run_wg(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out)
{
    if (!wg_compiled(be, attn_wg_kernel<D>))
        return false;
    if (tile_allow_smem(be, attn_wg_kernel<D>, wg_fwd_bytes<D>()))
        attn_wg_kernel<D><<<dim3((unsigned)(x.h * x.n), CEIL_DIV(x.longest, BM)), 256, wg_fwd_bytes<D>(), cuda_of(be)->stream>>>(x, out);
    return true;
}

bool attn_wg(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out)
{
    const int d = MAX(x.kdim, x.vdim);
    if (x.ring || x.longest <= 64 || d <= 32 || d > 128)
        return false;
    return d > 64 ? run_wg<128>(be, x, out) : run_wg<64>(be, x, out);
}
