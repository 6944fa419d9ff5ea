/*
 * Attention backward on Hopper, without atomics: one kernel owns 128 queries (dq), one 128 keys (dk, dv); each in two warpgroups of 64
 * rows. Products that end a step run on while the next step's begin. Per query and head a small kernel first makes two sets of coefficients
 * (l, a, b) of
 *
 *     p = 2^(scale log2e q.k - l),  pm = a p,  ds = p (a d_o.v - b)
 *
 * set 0 for keys that only the larger window sees: l = lse_0, a = p_0, b = p_0 delta_0; set 1 for keys in both: with r = exp(lse_1 - lse_0)
 * <= 1, l = lse_1, a = p_1 + p_0 r, b = p_1 delta_1 + p_0 r delta_0; so two windows cost no second exponential.
 */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/wgmma.cuh"

#define LOG2E 1.44269504088896341f
enum { BM = 128 };

/* coef[set][row][head] */
static __global__ void __launch_bounds__(256) attn_coef_kernel(attn_in<bf16> x, attn_grad<bf16> d, float4 *coef)
{
    const int64_t n = x.rows * x.h, i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n)
        return;
    const float l0 = d.lse[0][i], b0 = d.p[0] * d.delta[0][i];
    coef[i] = make_float4(l0 * LOG2E, d.p[0], b0, 0);
    if (x.branches == 2) {
        const float l1 = d.lse[1][i], r = expf(fminf(l1 - l0, 0));
        coef[n + i] = make_float4(l1 * LOG2E, fmaf(d.p[0], r, d.p[1]), fmaf(b0, r, d.p[1] * d.delta[1][i]), 0);
    }
}

#if WG_CODE
static __device__ __forceinline__ void element(float4 c, float s, float gv, float sl2, float *pm, float *ds)
{
    const float p = exp2_f(fmaf(s, sl2, -c.x));
    *pm = c.y * p;
    *ds = p * fmaf(c.y, gv, -c.z);
}
/* Queries t_lo .. t_hi against keys j_lo .. j_hi: which set holds for all pairs (0, 1), or -1: by element, with masks. */
static __device__ __forceinline__ int one_set(const attn_in<bf16> &x, int t_lo, int t_hi, int j_lo, int j_hi)
{
    if (t_lo < j_hi || t_hi - j_lo >= x.window[0])
        return -1;
    if (x.branches == 1 || t_lo - j_hi >= x.window[1])
        return 0;
    return t_hi - j_lo < x.window[1] ? 1 : -1;
}
/* acc (64 x N) = A B^T over D columns; A: 128-row panels, B: ROWS-row panels. */
template <int D, int ROWS> static __device__ __forceinline__ void product(float (&acc)[ROWS / 8][4], unsigned a, unsigned b)
{
    wg_mma_first<0, 0>(acc, wg_desc(a, 16), wg_desc(b, 16));
#pragma unroll
    for (int i = 1; i < D / 16; i++)
        wg_mma<0, 0>(acc, wg_desc(a + (i / 4) * (BM * 128) + (i % 4) * 32, 16), wg_desc(b + (i / 4) * (ROWS * 128) + (i % 4) * 32, 16));
}
/* acc (64 x D) += A B, A packed in registers, B: ROWS rows. */
template <int D, int ROWS>
static __device__ __forceinline__ void gather(float (&acc)[D / 8][4], const unsigned (&a)[ROWS / 16][4], unsigned b)
{
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++)
        wg_mma<1>(acc, a[i], wg_desc(b + i * 2048, ROWS * 128));
}
#endif

/* ---- dq ---- */

template <int D, int BN> static constexpr size_t wg_dq_bytes()
{
    return 1024 + (size_t)(2 * BM + 5 * BN) * D * sizeof(bf16);
}

template <int D, int BN>
static __global__ void __launch_bounds__(256, 1) attn_wg_dq_kernel(attn_in<bf16> x, attn_grad<bf16> d, const float4 *coef)
{
#if WG_CODE
    extern __shared__ __align__(16) unsigned char raw[];
    constexpr unsigned TM = BM * D * sizeof(bf16), TN = BN * D * sizeof(bf16);
    const unsigned sq = (smem_addr(raw) + 1023) & ~1023u, sg = sq + TM, sk = sg + TM, sv = sk + 3 * TN;
    const int head = blockIdx.x % x.h, kvh = head / x.rep, i0 = (gridDim.y - 1 - blockIdx.y) * BM, tid = threadIdx.x, group = tid >> 7;
    const attn_seq s = attn_find(x, blockIdx.x / x.h);
    if (i0 >= s.nq)
        return;
    const int left = s.nq - i0, hi = min(i0 + BM, s.nq) - 1, lo = x.window[0] > i0 ? 0 : i0 - x.window[0] + 1, first = hi / BN,
              steps = first - lo / BN + 1;
    const int row0 = 16 * (tid >> 5), g = (tid & 31) >> 2, mine = i0 + row0 + g, sub = i0 + 64 * group;
    const int64_t n = x.rows * x.h;
    const bf16 *kp = x.k + s.row * x.ldk + kvh * x.kdim, *vp = x.v + s.row * x.ldv + kvh * x.vdim;
    auto load = [&](int step) {
        const int j0 = (first - step) * BN;
        wg_load<BN, D, 256>(sk + step % 3 * TN, kp + j0 * x.ldk, x.ldk, s.nq - j0, x.kdim, tid);
        wg_load<BN, D, 256>(sv + (step & 1) * TN, vp + j0 * x.ldv, x.ldv, s.nq - j0, x.vdim, tid);
        cp_commit();
    };
    wg_load<BM, D, 256>(sq, x.q + (s.row + i0) * x.ldq + head * x.kdim, x.ldq, left, x.kdim, tid);
    wg_load<BM, D, 256>(sg, d.d_o + ((int64_t)(s.row + i0) * x.h + head) * x.vdim, (int64_t)x.h * x.vdim, left, x.vdim, tid);
    load(0);
    float4 cf[2][2]; /* [set][row g, g + 8] */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool on = mine + 8 * h < s.nq;
        const int64_t at = ((int64_t)s.row + mine + 8 * h) * x.h + head;
        cf[0][h] = on ? coef[at] : make_float4(0, 0, 0, 0);
        cf[1][h] = on && x.branches == 2 ? coef[n + at] : cf[0][h];
    }
    const float sl2 = x.scale * LOG2E;
    float dq[1][D / 8][4];
    tile_zero(dq);
    float c[BN / 8][4], y[BN / 8][4];
    unsigned a[BN / 16][4];
    auto begin = [&](int step) { /* this step's keys are there; the next ones are asked for */
                                 cp_wait<0>();
                                 fence_async();
                                 __syncthreads();
                                 if (step + 1 < steps)
                                     load(step + 1);
                                 wg_fence();
    };
    auto products = [&](int step) {
        product<D, BN>(c, sq + group * 8192, sk + step % 3 * TN);
        product<D, BN>(y, sg + group * 8192, sv + (step & 1) * TN);
        wg_commit();
        wg_wait<0>();
        wg_hold(c), wg_hold(y);
    };
    auto weigh = [&](int step) { /* a = dS */
                                 const int j0 = (first - step) * BN, set = one_set(x, sub, sub + 63, j0, j0 + BN - 1);
#pragma unroll
                                 for (int k = 0; k < BN / 8; k++) {
                                     float pm, ds[4];
                                     if (set >= 0) {
                                         const float4 c0 = set ? cf[1][0] : cf[0][0], c1 = set ? cf[1][1] : cf[0][1];
#pragma unroll
                                         for (int e = 0; e < 4; e++)
                                             element(e < 2 ? c0 : c1, c[k][e], y[k][e], sl2, &pm, &ds[e]);
                                     } else {
#pragma unroll
                                         for (int e = 0; e < 4; e++) {
                                             const int h = e >> 1, back = mine + 8 * h - (j0 + 8 * k + 2 * (tid & 3) + (e & 1));
                                             const bool in = x.branches == 2 && back < x.window[1];
                                             const float4 w = make_float4(in ? cf[1][h].x : cf[0][h].x, in ? cf[1][h].y : cf[0][h].y,
                                                                          in ? cf[1][h].z : cf[0][h].z, 0);
                                             element(w, back >= 0 && back < x.window[0] ? c[k][e] : -INFINITY, y[k][e], sl2, &pm, &ds[e]);
                                         }
                                     }
                                     a[k / 2][k % 2 * 2] = bf16_pack(ds[0], ds[1]);
                                     a[k / 2][k % 2 * 2 + 1] = bf16_pack(ds[2], ds[3]);
                                 }
    };
    /* The second warpgroup weighs half a step later, so that one uses the tensor cores while the other does not. */
    begin(0);
    products(0);
    if (group == 0)
        weigh(0);
#pragma unroll 1
    for (int step = 1; step < steps; step++) {
        begin(step);
        if (group == 1)
            weigh(step - 1);
        wg_fence();
        gather<D, BN>(dq[0], a, sk + (step - 1) % 3 * TN);
        products(step);
        wg_hold(dq[0]);
        if (group == 0)
            weigh(step);
    }
    if (group == 1)
        weigh(steps - 1);
    wg_fence();
    gather<D, BN>(dq[0], a, sk + (steps - 1) % 3 * TN);
    wg_commit();
    wg_wait<0>();
    wg_hold(dq[0]);
    tile_each(dq, [&](int r, int col, float u, float v) {
        if (row0 + r < left && col < x.kdim)
            st2(d.dq + ((int64_t)s.row + i0 + row0 + r) * x.ldq + head * x.kdim + col, x.scale * u, x.scale * v);
    });
#endif
}

/* ---- dk, dv ---- */

enum { BQ = 64, STAGES = 3 };
template <int D> static constexpr size_t wg_dkv_bytes()
{
    return 1024 + (size_t)(2 * BM + 2 * STAGES * BQ) * D * sizeof(bf16) + STAGES * 2 * BQ * sizeof(float4);
}

/* blockIdx.x: (sequence, kv head, group of query heads), pk, pv as in attn_dkv_groups. */
template <int D>
static __global__ void __launch_bounds__(256, 1)
    attn_wg_dkv_kernel(attn_in<bf16> x, attn_grad<bf16> d, const float4 *coef, float *pk, float *pv, int groups)
{
#if WG_CODE
    extern __shared__ __align__(16) unsigned char raw[];
    constexpr unsigned TM = BM * D * sizeof(bf16), TQ = BQ * D * sizeof(bf16);
    const unsigned sk = (smem_addr(raw) + 1023) & ~1023u, sv = sk + TM, sq = sv + TM, sg = sq + STAGES * TQ;
    float4 *sc = (float4 *)(raw + (sg + STAGES * TQ - smem_addr(raw))); /* [stage][set][BQ] */
    const int part = blockIdx.x % groups, kvh = blockIdx.x / groups % x.g, j0 = blockIdx.y * BM, tid = threadIdx.x, group = tid >> 7;
    const int head0 = kvh * x.rep + x.rep * part / groups, heads = kvh * x.rep + x.rep * (part + 1) / groups - head0;
    const attn_seq s = attn_find(x, blockIdx.x / (groups * x.g));
    if (j0 >= s.nq)
        return;
    const int left = s.nq - j0, end = x.window[0] < s.nq - j0 - BM ? j0 + BM + x.window[0] : s.nq, blocks = (end + BQ - 1) / BQ - j0 / BQ,
              steps = heads * blocks;
    const int row0 = 16 * (tid >> 5), g = (tid & 31) >> 2, t4 = tid & 3, mine = j0 + row0 + g, sub = j0 + 64 * group;
    const int64_t n = x.rows * x.h, row = s.row + j0;
    auto load = [&](int step) {
        const int head = head0 + step / blocks, i0 = j0 + step % blocks * BQ, at = step % STAGES;
        const int64_t r = s.row + i0;
        wg_load<BQ, D, 256>(sq + at * TQ, x.q + r * x.ldq + head * x.kdim, x.ldq, s.nq - i0, x.kdim, tid);
        wg_load<BQ, D, 256>(sg + at * TQ, d.d_o + (r * x.h + head) * x.vdim, (int64_t)x.h * x.vdim, s.nq - i0, x.vdim, tid);
        const int i = tid & 63, set = tid >> 6;
        if (set < x.branches)
            cp_async16(sc + (at * 2 + set) * BQ + i, coef + set * n + (r + (i0 + i < s.nq ? i : 0)) * x.h + head, i0 + i < s.nq);
        cp_commit();
    };
    wg_load<BM, D, 256>(sk, x.k + row * x.ldk + kvh * x.kdim, x.ldk, left, x.kdim, tid);
    wg_load<BM, D, 256>(sv, x.v + row * x.ldv + kvh * x.vdim, x.ldv, left, x.vdim, tid);
    load(0);
    const float sl2 = x.scale * LOG2E;
    float dk[1][D / 8][4], dv[1][D / 8][4];
    tile_zero(dk), tile_zero(dv);
    float c[BQ / 8][4], y[BQ / 8][4];
    unsigned p[BQ / 16][4], a[BQ / 16][4];
    auto begin = [&](int step) { /* this step's queries are there; the next ones are asked for */
                                 cp_wait<0>();
                                 fence_async();
                                 __syncthreads();
                                 if (step + 1 < steps)
                                     load(step + 1);
                                 wg_fence();
    };
    auto products = [&](int step) {
        product<D, BQ>(c, sk + group * 8192, sq + step % STAGES * TQ);
        product<D, BQ>(y, sv + group * 8192, sg + step % STAGES * TQ);
        wg_commit();
        wg_wait<0>();
        wg_hold(c), wg_hold(y);
    };
    auto gathers = [&](int step) {
        wg_fence();
        gather<D, BQ>(dv[0], p, sg + step % STAGES * TQ);
        gather<D, BQ>(dk[0], a, sq + step % STAGES * TQ);
    };
    auto weigh = [&](int step) { /* p = mixed probabilities, a = dS */
                                 const int i0 = j0 + step % blocks * BQ, set = one_set(x, i0, i0 + BQ - 1, sub, sub + 63);
                                 const float4 *w0 = sc + step % STAGES * 2 * BQ, *w1 = x.branches == 2 ? w0 + BQ : w0;
#pragma unroll
                                 for (int k = 0; k < BQ / 8; k++) {
                                     const int q = 8 * k + 2 * t4;
                                     float pm[4], ds[4];
                                     if (set >= 0) {
                                         const float4 *w = set ? w1 : w0;
                                         const float4 u = w[q], v = w[q + 1];
#pragma unroll
                                         for (int e = 0; e < 4; e++)
                                             element(e & 1 ? v : u, c[k][e], y[k][e], sl2, &pm[e], &ds[e]);
                                     } else {
#pragma unroll
                                         for (int e = 0; e < 4; e++) {
                                             const int back = i0 + q + (e & 1) - (mine + 8 * (e >> 1));
                                             const float4 w = (x.branches == 2 && back < x.window[1] ? w1 : w0)[q + (e & 1)];
                                             element(w, back >= 0 && back < x.window[0] ? c[k][e] : -INFINITY, y[k][e], sl2, &pm[e],
                                                     &ds[e]);
                                         }
                                     }
                                     p[k / 2][k % 2 * 2] = bf16_pack(pm[0], pm[1]);
                                     p[k / 2][k % 2 * 2 + 1] = bf16_pack(pm[2], pm[3]);
                                     a[k / 2][k % 2 * 2] = bf16_pack(ds[0], ds[1]);
                                     a[k / 2][k % 2 * 2 + 1] = bf16_pack(ds[2], ds[3]);
                                 }
    };
    begin(0); /* staggered as in the dq kernel */
    products(0);
    if (group == 0)
        weigh(0);
#pragma unroll 1
    for (int step = 1; step < steps; step++) {
        begin(step);
        if (group == 1)
            weigh(step - 1);
        gathers(step - 1);
        products(step);
        wg_hold(dk[0]), wg_hold(dv[0]);
        if (group == 0)
            weigh(step);
    }
    if (group == 1)
        weigh(steps - 1);
    gathers(steps - 1);
    wg_commit();
    wg_wait<0>();
    wg_hold(dk[0]), wg_hold(dv[0]);
    tile_each(dk, [&](int r, int col, float u, float v) {
        if (row0 + r >= left || col >= x.kdim)
            return;
        if (pk)
            st2(pk + (((int64_t)part * x.rows + row + row0 + r) * x.g + kvh) * x.kdim + col, x.scale * u, x.scale * v);
        else
            st2(d.dk + (row + row0 + r) * x.ldk + kvh * x.kdim + col, x.scale * u, x.scale * v);
    });
    tile_each(dv, [&](int r, int col, float u, float v) {
        if (row0 + r >= left || col >= x.vdim)
            return;
        if (pv)
            st2(pv + (((int64_t)part * x.rows + row + row0 + r) * x.g + kvh) * x.vdim + col, u, v);
        else
            st2(d.dv + (row + row0 + r) * x.ldv + kvh * x.vdim + col, u, v);
    });
#endif
}

template <int D, int BN> static bool run_wg(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d)
{
    cudaStream_t stream = cuda_of(be)->stream;
    if (!wg_compiled(be, attn_wg_dq_kernel<D, BN>) || !wg_compiled(be, attn_wg_dkv_kernel<D>))
        return false;
    float *pk, *pv;
    const int64_t n = x.rows * x.h;
    float4 *coef = cuda_ws_of<float4>(be, 2 * n);
    const int groups = attn_dkv_groups(be, x, BM, &pk, &pv), blocks = CEIL_DIV(x.longest, BM);
    const size_t dq = wg_dq_bytes<D, BN>(), dkv = wg_dkv_bytes<D>();
    if (!coef || !groups || !tile_allow_smem(be, attn_wg_dq_kernel<D, BN>, dq) || !tile_allow_smem(be, attn_wg_dkv_kernel<D>, dkv))
        return true;
    attn_coef_kernel<<<(unsigned)CEIL_DIV(n, 256), 256, 0, stream>>>(x, d, coef);
    attn_wg_dq_kernel<D, BN><<<dim3((unsigned)(x.h * x.n), blocks), 256, dq, stream>>>(x, d, coef);
    attn_wg_dkv_kernel<D><<<dim3((unsigned)(x.g * groups * x.n), blocks), 256, dkv, stream>>>(x, d, coef, pk, pv, groups);
    attn_add_groups(be, x, d, pk, pv, groups);
    return true;
}

bool attn_wg_bwd(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d)
{
    const int dim = MAX(x.kdim, x.vdim);
    if (x.longest <= 64 || dim <= 32 || dim > 128)
        return false;
    return dim > 64 ? run_wg<128, 64>(be, x, d) : run_wg<64, 64>(be, x, d);
}
