/*
 * Attention forward on tensor cores, bf16, head dims up to 128 (as 32, 64 or 128 with zeros). A block has 64 MT queries of one head; keys
 * come in blocks of 64 from the diagonal backwards: first those inside the smaller window, whose state is then the second output, then,
 * from the same running state, the rest of the larger one. Few queries against many keys are attn_split.cu's.
 */
#include "kernels/cuda/attn.cuh"

enum { BN = 64 };

template <int D, int MT> struct mma_smem {
    bf16 q[64 * MT * tile_ld<bf16>(D)], k[2][BN * tile_ld<bf16>(D)], v[2][BN * tile_ld<bf16>(D)];
};

template <int D, int MT> static __global__ void __launch_bounds__(128) attn_mma_kernel(attn_in<bf16> x, attn_out<bf16> out)
{
    constexpr int LD = tile_ld<bf16>(D), BM = 64 * MT;
    extern __shared__ __align__(16) unsigned char raw[];
    mma_smem<D, MT> &sm = *(mma_smem<D, MT> *)raw;
    const int i0 = (gridDim.x - 1 - blockIdx.x) * BM, head = blockIdx.y, kvh = head / x.rep, tid = threadIdx.x, warp = tid >> 5;
    const attn_seq s = attn_find(x, blockIdx.z);
    if (i0 >= s.nq)
        return;
    const int t0 = s.nk - s.nq + i0, t_hi = t0 + min(BM, s.nq - i0) - 1;
    const bool two = x.branches == 2;
    const attn_phase near = attn_phase_of<BN>(0, two ? x.window[1] : x.window[0], t0, t_hi),
                     far = two ? attn_phase_of<BN>(x.window[1], x.window[0], t0, t_hi) : attn_phase{0, 0, 0, 0};
    const int steps = near.count + far.count, last = x.window[1] == x.window[0] && two ? near.count : steps;
    auto block_of = [&](int step) { return step < near.count ? near.first - step : far.first - (step - near.count); };
    for (int u = tid; u < BM * (D / 8); u += 128) {
        const int r = u / (D / 8), c = u % (D / 8) * 8;
        const bool on = i0 + r < s.nq && c < x.kdim;
        cp_async16(sm.q + r * LD + c, on ? x.q + (int64_t)(s.row + i0 + r) * x.ldq + head * x.kdim + c : x.q, on);
    }
    load_kv<D, BN>(sm.k[0], sm.v[0], x, s, kvh, block_of(0) * BN, tid);
    cp_commit();
    float o[MT][D / 8][4], m[MT][2], l[MT][2];
    tile_zero(o);
#pragma unroll
    for (int i = 0; i < MT; i++)
        m[i][0] = m[i][1] = -INFINITY, l[i][0] = l[i][1] = 0;
    const float sl2 = x.scale * 1.44269504088896341f;
    const int row0 = 16 * MT * warp;
#pragma unroll 1
    for (int step = 0; step < last; step++) {
        const int at = step & 1, j0 = block_of(step) * BN;
        cp_wait<0>();
        __syncthreads();
        if (step + 1 < last)
            load_kv<D, BN>(sm.k[at ^ 1], sm.v[at ^ 1], x, s, kvh, block_of(step + 1) * BN, tid);
        cp_commit();
        if (step == near.count && two)
            attn_emit<D, MT>(x, out.o[1], out.lse[1], o, m, l, s.row + i0 + row0, head, s.nq - i0 - row0);
        float c[MT][BN / 8][4];
        tile_zero(c);
        tile_mm<MT, BN / 8, false, true>(c, sm.q + row0 * LD, LD, sm.k[at], LD, D);
        const int nr = step < near.count ? near.near : far.near, fr = step < near.count ? near.far : far.far;
        if (j0 + BN - 1 > t0 - nr || (fr <= t_hi && j0 <= t_hi - fr)) {
            const int g = (tid & 31) >> 2, t4 = tid & 3;
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const int back = t0 + row0 + 16 * i + g + (e >> 1) * 8 - (j0 + 8 * n + 2 * t4 + (e & 1));
                        if (back < nr || back >= fr)
                            c[i][n][e] = -INFINITY;
                    }
        }
        soften<MT, BN / 8, D / 8>(c, o, m, l, sl2);
        add_pv<D, MT, BN / 8>(o, c, sm.v[at]);
    }
    if (two && last == near.count)
        attn_emit<D, MT>(x, out.o[1], out.lse[1], o, m, l, s.row + i0 + row0, head, s.nq - i0 - row0);
    attn_emit<D, MT>(x, out.o[0], out.lse[0], o, m, l, s.row + i0 + row0, head, s.nq - i0 - row0);
}

template <int D, int MT> static void run_mma(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out)
{
    size_t bytes = sizeof(mma_smem<D, MT>);
    if (tile_allow_smem(be, attn_mma_kernel<D, MT>, bytes))
        attn_mma_kernel<D, MT><<<dim3(CEIL_DIV(x.longest, 64 * MT), x.h, x.n), 128, bytes, cuda_of(be)->stream>>>(x, out);
}

bool attn_mma(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s)
{
    const int d = MAX(x.kdim, x.vdim);
    if (d > 128 || !attn_vec(x) || !aligned16(out.o[0]) || !aligned16(out.o[1]))
        return false;
    const bool many = x.longest >= 256;
    if (attn_split(be, x, out, s, NULL) || attn_wg(be, x, out))
        return true;
    if (d > 64)
        many ? run_mma<128, 2>(be, x, out) : run_mma<128, 1>(be, x, out);
    else if (d > 32)
        many ? run_mma<64, 2>(be, x, out) : run_mma<64, 1>(be, x, out);
    else
        run_mma<32, 1>(be, x, out);
    return true;
}
