/*
 * Attention forward on tensor cores, bf16, head dims up to 128 (as 32, 64 or 128 with zeros). A block has 64 MT queries of one head; keys
 * come in blocks of 64 from the diagonal backwards: first those inside the smaller window, whose state is then the second output, then,
 * from the same running state, the rest of the larger one. Few queries against many keys take attn_split_kernel: the query heads of a kv
 * head as rows of one tile, the keys split over blocks and warps, partial results added in order.
 */
#include "kernels/cuda/attn.cuh"

enum { BN = 64 };

/* Keys j0 .. j0 + ROWS - 1 of one kv head, K and V. */
template <int D, int ROWS>
static __device__ __forceinline__ void load_kv(bf16 *k, bf16 *v, const attn_in<bf16> &x, const attn_seq &s, int kvh, int j0, int tid)
{
    constexpr int LD = tile_ld<bf16>(D), U = D / 8;
    if (!x.ring) {
        tile_load<ROWS, D, 128>(k, LD, x.k + (int64_t)(s.kv + j0) * x.ldk + kvh * x.kdim, x.ldk, s.nk - j0, x.kdim, true, tid);
        tile_load<ROWS, D, 128>(v, LD, x.v + (int64_t)(s.kv + j0) * x.ldv + kvh * x.vdim, x.ldv, s.nk - j0, x.vdim, true, tid);
        return;
    }
#pragma unroll 1
    for (int u = tid; u < ROWS * U; u += 128) {
        const int r = u / U, c = u % U * 8, j = j0 + r;
        const bool on = j < s.nk;
        const int64_t row = on ? attn_kv_row(x, s, j) : s.kv;
        cp_async16(k + r * LD + c, x.k + row * x.ldk + kvh * x.kdim + (c < x.kdim ? c : 0), on && c < x.kdim);
        cp_async16(v + r * LD + c, x.v + row * x.ldv + kvh * x.vdim + (c < x.vdim ? c : 0), on && c < x.vdim);
    }
}

/* Online softmax over one tile of scores: s becomes 2^(s - m) with the new maxima, o and l are rescaled. sl2 = scale log2 e; m, l per row
 * (16-row tile, upper/lower). */
template <int MT, int NT, int NO>
static __device__ __forceinline__ void soften(float (&s)[MT][NT][4], float (&o)[MT][NO][4], float (&m)[MT][2], float (&l)[MT][2], float sl2)
{
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = m[t][h];
#pragma unroll
            for (int n = 0; n < NT; n++)
                top = fmaxf(top, fmaxf(s[t][n][2 * h], s[t][n][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0 : top * sl2, f = exp2_f(fmaf(m[t][h], sl2, -base));
            float sum = 0;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = exp2_f(fmaf(s[t][n][2 * h + e], sl2, -base));
                    s[t][n][2 * h + e] = p;
                    sum += p;
                }
            m[t][h] = top;
            l[t][h] = fmaf(l[t][h], f, sum);
#pragma unroll
            for (int n = 0; n < NO; n++) {
                o[t][n][2 * h] *= f;
                o[t][n][2 * h + 1] *= f;
            }
        }
}

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

/* ---- few queries, many keys ---- */

enum { SPLIT_STAGES = 3 };
template <int D> struct split_smem {
    bf16 q[16 * tile_ld<bf16>(D)], k[SPLIT_STAGES][BN * tile_ld<bf16>(D)], v[SPLIT_STAGES][BN * tile_ld<bf16>(D)];
};

/* part[seq][kvh][split][16 rows][D + 2]: sum of 2^(s - m) v, then m (of the raw scores) and l. Row r is query r / rep, head r % rep of the
 * group. */
template <int D> static __global__ void __launch_bounds__(128) attn_split_kernel(attn_in<bf16> x, attn_out<bf16> out, float *part)
{
    constexpr int LD = tile_ld<bf16>(D), NO = D / 8;
    extern __shared__ __align__(16) unsigned char raw[];
    split_smem<D> &sm = *(split_smem<D> *)raw;
    const int kvh = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, g = (tid & 31) >> 2, t4 = tid & 3;
    const attn_seq s = attn_find(x, seq);
    const int off = s.nk - s.nq, lo = x.window[0] > off ? 0 : off - x.window[0] + 1, blocks = (s.nk + BN - 1) / BN - lo / BN;
    const int each = (blocks + gridDim.x - 1) / gridDim.x, first = lo / BN + blockIdx.x * each, last = min(first + each, lo / BN + blocks);
    if (!s.nq)
        return;
    for (int u = tid; u < 16 * (D / 8); u += 128) {
        const int r = u / (D / 8), c = u % (D / 8) * 8;
        const bool on = r < s.nq * x.rep && c < x.kdim;
        cp_async16(sm.q + r * LD + c, on ? x.q + (int64_t)(s.row + r / x.rep) * x.ldq + (kvh * x.rep + r % x.rep) * x.kdim + c : x.q, on);
    }
#pragma unroll
    for (int i = 0; i < SPLIT_STAGES - 1; i++) {
        if (first + i < last)
            load_kv<D, BN>(sm.k[i], sm.v[i], x, s, kvh, (first + i) * BN, tid);
        cp_commit();
    }
    float o[1][NO][4], m[1][2] = {{-INFINITY, -INFINITY}}, l[1][2] = {{0, 0}};
    tile_zero(o);
    const float sl2 = x.scale * 1.44269504088896341f;
#pragma unroll 1
    for (int b = first; b < last; b++) {
        const int at = (b - first) % SPLIT_STAGES, j0 = b * BN + 16 * warp;
        cp_wait<SPLIT_STAGES - 2>();
        __syncthreads();
        if (b + SPLIT_STAGES - 1 < last)
            load_kv<D, BN>(sm.k[(b - first + SPLIT_STAGES - 1) % SPLIT_STAGES], sm.v[(b - first + SPLIT_STAGES - 1) % SPLIT_STAGES], x, s,
                           kvh, (b + SPLIT_STAGES - 1) * BN, tid);
        cp_commit();
        float c[1][2][4];
        tile_zero(c);
        tile_mm<1, 2, false, true>(c, sm.q, LD, sm.k[at] + 16 * warp * LD, LD, D);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int back = off + (g + (e >> 1) * 8) / x.rep - (j0 + 8 * n + 2 * t4 + (e & 1));
                if (back < 0 || back >= x.window[0])
                    c[0][n][e] = -INFINITY;
            }
        soften<1, 2, NO>(c, o, m, l, sl2);
        add_pv<D, 1, 2>(o, c, sm.v[at] + 16 * warp * LD);
    }
    cp_wait<0>();
    __syncthreads();
    /* The four warps' states, in order. */
    float *ms = (float *)raw, *ls = ms + 64, *os = ls + 64; /* [4][16], [4][16], [4][16][D + 4] */
    constexpr int LO = D + 4;
    static_assert(sizeof(split_smem<D>) >= sizeof(float) * (128 + 64 * LO), "room for the merge");
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = l[0][h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t4 == 0)
            ms[16 * warp + 8 * h + g] = m[0][h], ls[16 * warp + 8 * h + g] = sum;
#pragma unroll
        for (int n = 0; n < NO; n++)
            *(float2 *)(os + (16 * warp + 8 * h + g) * LO + 8 * n + 2 * t4) = make_float2(o[0][n][2 * h], o[0][n][2 * h + 1]);
    }
    __syncthreads();
    const int64_t base = (((int64_t)seq * x.g + kvh) * gridDim.x + blockIdx.x) * 16;
    for (int u = tid; u < s.nq * x.rep * D; u += 128) {
        const int r = u / D, c = u % D;
        float top = fmaxf(fmaxf(ms[r], ms[16 + r]), fmaxf(ms[32 + r], ms[48 + r])), b0 = top == -INFINITY ? 0 : top * sl2, sum = 0, val = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float f = exp2_f(fmaf(ms[16 * w + r], sl2, -b0));
            sum = fmaf(f, ls[16 * w + r], sum);
            val = fmaf(f, os[(16 * w + r) * LO + c], val);
        }
        const int64_t at = (int64_t)(s.row + r / x.rep) * x.h + kvh * x.rep + r % x.rep;
        if (gridDim.x > 1) {
            part[(base + r) * (D + 2) + c] = val;
            if (c == 0)
                part[(base + r) * (D + 2) + D] = top, part[(base + r) * (D + 2) + D + 1] = sum;
        } else if (c < x.vdim) {
            st(out.o[0] + at * x.vdim + c, val / sum);
            if (c == 0 && out.lse[0])
                out.lse[0][at] = top * x.scale + logf(sum);
        }
    }
}

/* One warp adds the splits of one query and head. */
template <int D>
static __global__ void __launch_bounds__(128) attn_merge_kernel(attn_in<bf16> x, attn_out<bf16> out, const float *part, int splits)
{
    const int seq = blockIdx.z, r = blockIdx.x * 4 + (threadIdx.x >> 5), kvh = blockIdx.y, lane = threadIdx.x & 31;
    const attn_seq s = attn_find(x, seq);
    if (r >= s.nq * x.rep)
        return;
    const float *p = part + ((((int64_t)seq * x.g + kvh) * splits) * 16 + r) * (D + 2), sl2 = x.scale * 1.44269504088896341f;
    const int64_t stride = 16 * (D + 2);
    float top = -INFINITY, sum = 0, val[D / 32] = {0};
    for (int i = lane; i < splits; i += 32)
        top = fmaxf(top, p[i * stride + D]);
    top = warp_max(top);
#pragma unroll 4
    for (int i = 0; i < splits; i++) {
        const float f = exp2_f((p[i * stride + D] - top) * sl2);
        sum = fmaf(f, p[i * stride + D + 1], sum);
#pragma unroll
        for (int c = 0; c < D / 32; c++)
            val[c] = fmaf(f, p[i * stride + 32 * c + lane], val[c]);
    }
    const int64_t at = (int64_t)(s.row + r / x.rep) * x.h + kvh * x.rep + r % x.rep;
#pragma unroll
    for (int c = 0; c < D / 32; c++)
        if (32 * c + lane < x.vdim)
            st(out.o[0] + at * x.vdim + 32 * c + lane, val[c] / sum);
    if (lane == 0 && out.lse[0])
        out.lse[0][at] = top * x.scale + logf(sum);
}

template <int D> static void run_split(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s)
{
    struct cuda_backend *cu = cuda_of(be);
    int64_t most = 0;
    for (int32_t i = 0; i < s->n; i++)
        most = MAX(most, MIN((int64_t)seqs_kvlen(s, i), (int64_t)x.window[0] + x.longest));
    int64_t bucket = 2 * BN; /* powers of two: a recorded step is good for as long as its bucket is */
    while (bucket < most)
        bucket *= 2;
    int64_t splits =
        MIN(2 * cu->sms / ((int64_t)x.g * x.n), CEIL_DIV(bucket, (int64_t)2 * BN)); /* two blocks fit on a multiprocessor: one wave */
    splits = MAX(splits, (int64_t)1);
    float *part = NULL;
    if (splits > 1) {
        part = cuda_ws_of<float>(be, (int64_t)x.n * x.g * splits * 16 * (D + 2));
        if (!part)
            return;
    }
    size_t bytes = sizeof(split_smem<D>);
    if (!tile_allow_smem(be, attn_split_kernel<D>, bytes))
        return;
    attn_split_kernel<D><<<dim3((unsigned)splits, x.g, x.n), 128, bytes, cu->stream>>>(x, out, part);
    if (splits > 1)
        attn_merge_kernel<D><<<dim3(CEIL_DIV(x.longest * x.rep, 4), x.g, x.n), 128, 0, cu->stream>>>(x, out, part, (int)splits);
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
    const bool few = x.branches == 1 && x.longest * x.rep <= 16, many = x.longest >= 256;
    if (!few && attn_wg(be, x, out))
        return true;
    if (d > 64)
        few ? run_split<128>(be, x, out, s) : many ? run_mma<128, 2>(be, x, out) : run_mma<128, 1>(be, x, out);
    else if (d > 32)
        few ? run_split<64>(be, x, out, s) : many ? run_mma<64, 2>(be, x, out) : run_mma<64, 1>(be, x, out);
    else
        few ? run_split<32>(be, x, out, s) : run_mma<32, 1>(be, x, out);
    return true;
}
