/*
 * Attention of few queries to many keys on tensor cores, bf16, head dims up to 128, and kernels/step.h's be_attn_new: the query heads of a
 * kv head are rows of one tile, the keys are split over blocks and warps. Partial results are added in order: of up to 8 blocks in the
 * shared memory of a cluster, of more by the block that comes last (slower; for few sequences). A block asks for its first keys before
 * the step's previous kernel has ended.
 */
#include <cooperative_groups.h>

#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/launch.cuh"

extern "C" {
#include "kernels/step.h"
}

enum { BN = 64, SPLIT_STAGES = 3, SPLIT_LAST = 2, SPLITS = 64, SPLIT_CLUSTER = 8 };
template <int D> struct split_smem {
    bf16 q[16 * tile_ld<bf16>(D)], fresh[2][D], k[SPLIT_STAGES][BN * tile_ld<bf16>(D)], v[SPLIT_STAGES][BN * tile_ld<bf16>(D)];
};

/* A sequence's new token: key (before rotation) and value, by row of the batch; where they go. keys NULL: there is none. */
struct attn_fresh {
    const bf16 *k, *v;
    bf16 *keys, *values;
    const float *cos, *sin; /* [positions][kdim / 2] */
    const int *di, *pos;
};

/* Eight pairs of a head rotated: x, y are in the first and the second half. */
static __device__ __forceinline__ void rotate8(bf16 *to, bf16 *to2, const bf16 *x, const bf16 *y, const float *c, const float *s)
{
    float a[8], b[8], p[8], q[8];
    ld16(a, x);
    ld16(b, y);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        p[e] = a[e] * c[e] - b[e] * s[e];
        q[e] = b[e] * c[e] + a[e] * s[e];
    }
    st16(to, p);
    st16(to2, q);
}

/* q rotated where it lies in shared memory; the new key and value to shared memory and, by the block that has the last keys, to the cache.
 */
template <int D>
static __device__ __forceinline__ void split_fresh(split_smem<D> &sm, const attn_in<bf16> &x, const attn_fresh &f, int row, int kvh,
                                                   bool mine)
{
    constexpr int LD = tile_ld<bf16>(D);
    const int half = x.kdim / 2, tid = threadIdx.x;
    const float *cos = f.cos + (int64_t)f.pos[row] * half, *sin = f.sin + (int64_t)f.pos[row] * half;
    for (int u = tid; u < x.rep * (half / 8); u += 128) {
        const int c = u % (half / 8) * 8;
        bf16 *q = sm.q + u / (half / 8) * LD + c;
        rotate8(q, q + half, q, q + half, cos + c, sin + c);
    }
    if (!mine)
        return;
    const bf16 *k = f.k + ((int64_t)row * x.g + kvh) * x.kdim, *v = f.v + ((int64_t)row * x.g + kvh) * x.vdim;
    bf16 *key = f.keys + ((int64_t)f.di[row] * x.g + kvh) * x.kdim, *value = f.values + ((int64_t)f.di[row] * x.g + kvh) * x.vdim;
    if (tid < half / 8) {
        const int c = 8 * tid;
        rotate8(sm.fresh[0] + c, sm.fresh[0] + half + c, k + c, k + half + c, cos + c, sin + c);
        *(uint4 *)(key + c) = *(const uint4 *)(sm.fresh[0] + c);
        *(uint4 *)(key + half + c) = *(const uint4 *)(sm.fresh[0] + half + c);
    }
    if (tid >= 64 && tid < 64 + x.vdim / 8) {
        const int c = 8 * (tid - 64);
        *(uint4 *)(sm.fresh[1] + c) = *(const uint4 *)(v + c);
        *(uint4 *)(value + c) = *(const uint4 *)(v + c);
    }
}

/* What a block has of its rows: sum of 2^(s - m) v, then m (of the raw scores) and l. Row r is query r / rep, head r % rep of the group. */
template <int D> struct split_part {
    float v[16][D], m[16], l[16];
};

/* The states of the warps, added in order. */
template <int D>
static __device__ __forceinline__ void split_warps(split_part<D> &to, int rows, float sl2, const float *ms, const float *ls,
                                                   const float *os)
{
    constexpr int LO = D + 4;
    for (int u = threadIdx.x; u < rows * D; u += 128) {
        const int r = u / D, c = u % D;
        float top = fmaxf(fmaxf(ms[r], ms[16 + r]), fmaxf(ms[32 + r], ms[48 + r])), b0 = top == -INFINITY ? 0 : top * sl2, sum = 0, val = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float f = exp2_f(fmaf(ms[16 * w + r], sl2, -b0));
            sum = fmaf(f, ls[16 * w + r], sum);
            val = fmaf(f, os[(16 * w + r) * LO + c], val);
        }
        to.v[r][c] = val;
        if (c == 0)
            to.m[r] = top, to.l[r] = sum;
    }
}

/* Rows first, first + step, ... of all parts, added in order, as outputs. part(i): of block i, wherever it lies; factors: shared memory. */
template <int D, typename F>
static __device__ __forceinline__ void split_add(const attn_in<bf16> &x, const attn_out<bf16> &out, const attn_seq &s, int kvh, int splits,
                                                 int first, int step, float (*factors)[SPLITS + 2], F part)
{
    constexpr int EACH = 128 / D, MINE = 16 / EACH; /* rows at a time, and of a thread */
    const int tid = threadIdx.x, rows = s.nq * x.rep, c = tid % D, r0 = tid / D;
    const float sl2 = x.scale * 1.44269504088896341f;
    for (int u = tid; u < 16 * splits; u += 128)
        if (u % 16 < rows)
            factors[u % 16][u / 16] = part(u / 16)->m[u % 16];
    __syncthreads();
    if (tid < rows) {
        float top = -INFINITY, sum = 0;
        for (int i = 0; i < splits; i++)
            top = fmaxf(top, factors[tid][i]);
#pragma unroll 4
        for (int i = 0; i < splits; i++) {
            factors[tid][i] = exp2_f((factors[tid][i] - top) * sl2);
            sum = fmaf(factors[tid][i], part(i)->l[tid], sum);
        }
        factors[tid][SPLITS] = top, factors[tid][SPLITS + 1] = sum;
    }
    __syncthreads();
    float val[MINE] = {};
#pragma unroll 2
    for (int i = 0; i < splits; i++) {
        const split_part<D> *p = part(i);
#pragma unroll
        for (int q = 0; q < MINE; q++) {
            const int r = first + step * (r0 + q * EACH);
            if (r < rows)
                val[q] = fmaf(factors[r][i], p->v[r][c], val[q]);
        }
    }
#pragma unroll
    for (int q = 0; q < MINE; q++) {
        const int r = first + step * (r0 + q * EACH);
        const int64_t at = (int64_t)(s.row + r / x.rep) * x.h + kvh * x.rep + r % x.rep;
        if (r < rows && c < x.vdim)
            st(out.o[0] + at * x.vdim + c, val[q] / factors[r][SPLITS + 1]);
        if (r < rows && c == 0 && out.lse[0])
            out.lse[0][at] = factors[r][SPLITS] * x.scale + logf(factors[r][SPLITS + 1]);
    }
}

/* True in the last of the blocks of a sequence and kv head to come here; what the others wrote before is then visible. */
static __device__ __forceinline__ bool split_last(unsigned *arrived)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1) == gridDim.x - 1;
        if (last)
            *arrived = 0; /* for the next kernel */
    }
    __syncthreads();
    __threadfence();
    return last;
}

/* parts: [seq][kvh][split], without clusters. */
template <int D, bool CLUSTERED>
static __global__ void __launch_bounds__(128)
    attn_split_kernel(const __grid_constant__ attn_in<bf16> x, const __grid_constant__ attn_out<bf16> out,
                      const __grid_constant__ attn_fresh fresh, split_part<D> *parts, unsigned *arrived)
{
    constexpr int LD = tile_ld<bf16>(D), NO = D / 8;
    extern __shared__ __align__(16) unsigned char raw[];
    split_smem<D> &sm = *(split_smem<D> *)raw;
    const int kvh = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, g = (tid & 31) >> 2, t4 = tid & 3;
    const attn_seq s = attn_find(x, seq);
    const int off = s.nk - s.nq, lo = x.window[0] > off ? 0 : off - x.window[0] + 1, blocks = (s.nk + BN - 1) / BN - lo / BN;
    const int each = (blocks + gridDim.x - 1) / gridDim.x, first = lo / BN + blockIdx.x * each, last = min(first + each, lo / BN + blocks);
    const bool mine = fresh.keys && first < last && last == lo / BN + blocks; /* the new token's key is among its keys */
    auto load_first = [&] {
#pragma unroll
        for (int i = 0; i < SPLIT_STAGES - 1; i++) {
            if (first + i < last)
                load_kv<D, BN>(sm.k[i], sm.v[i], x, s, kvh, (first + i) * BN, tid);
            cp_commit();
        }
    };
    const bool early =
        fresh.keys || (first + SPLIT_STAGES - 1) * BN <= off; /* keys and values of earlier steps; the new one's place is read in vain */
    if (early)
        load_first();
    if (last - first <= SPLIT_LAST)
        let_next_start();
    after_previous();
    if (!s.nq)
        return;
    if (!early)
        load_first();
    for (int u = tid; u < 16 * (D / 8); u += 128) { /* a barrier comes before they are read */
        const int r = u / (D / 8), c = u % (D / 8) * 8;
        *(uint4 *)(sm.q + r * LD + c) =
            r < s.nq * x.rep && c < x.kdim
                ? *(const uint4 *)(x.q + (int64_t)(s.row + r / x.rep) * x.ldq + (kvh * x.rep + r % x.rep) * x.kdim + c)
                : make_uint4(0, 0, 0, 0);
    }
    if (fresh.keys) {
        __syncthreads();
        split_fresh<D>(sm, x, fresh, s.row, kvh, mine);
    }
    float o[1][NO][4], m[1][2] = {{-INFINITY, -INFINITY}}, l[1][2] = {{0, 0}};
    tile_zero(o);
    const float sl2 = x.scale * 1.44269504088896341f;
#pragma unroll 1
    for (int b = first; b < last; b++) {
        const int at = (b - first) % SPLIT_STAGES, j0 = b * BN + 16 * warp;
        if (b != first && b == last - SPLIT_LAST)
            let_next_start();
        cp_wait<SPLIT_STAGES - 2>();
        __syncthreads();
        if (mine && b == last - 1) {
            const int row = (s.nk - 1) % BN * LD;
            if (tid < x.kdim / 8)
                *(uint4 *)(sm.k[at] + row + 8 * tid) = *(const uint4 *)(sm.fresh[0] + 8 * tid);
            if (tid >= 64 && tid < 64 + x.vdim / 8)
                *(uint4 *)(sm.v[at] + row + 8 * (tid - 64)) = *(const uint4 *)(sm.fresh[1] + 8 * (tid - 64));
            __syncthreads();
        }
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
    constexpr int LO = D + 4;
    struct merge { /* over what has been used */
        float m[4][16], l[4][16], o[64][LO];
        split_part<D> part;
        float factors[16][SPLITS + 2];
    };
    static_assert(sizeof(split_smem<D>) >= sizeof(merge), "room for the merge");
    merge &mg = *(merge *)raw;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = l[0][h];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (t4 == 0)
            mg.m[warp][8 * h + g] = m[0][h], mg.l[warp][8 * h + g] = sum;
#pragma unroll
        for (int n = 0; n < NO; n++)
            *(float2 *)(mg.o[16 * warp + 8 * h + g] + 8 * n + 2 * t4) = make_float2(o[0][n][2 * h], o[0][n][2 * h + 1]);
    }
    __syncthreads();
    const int splits = gridDim.x, rows = s.nq * x.rep;
    if constexpr (CLUSTERED) {
#if __CUDA_ARCH__ >= 900
        cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
        split_warps<D>(mg.part, rows, sl2, mg.m[0], mg.l[0], mg.o[0]);
        cluster.sync();
        split_add<D>(x, out, s, kvh, splits, blockIdx.x, splits, mg.factors, [&](int i) { return cluster.map_shared_rank(&mg.part, i); });
        cluster.sync(); /* its memory is read by the others until here */
#endif
    } else {
        split_part<D> *all = parts + ((int64_t)seq * x.g + kvh) * splits;
        split_warps<D>(splits > 1 ? all[blockIdx.x] : mg.part, rows, sl2, mg.m[0], mg.l[0], mg.o[0]);
        if (splits == 1)
            __syncthreads();
        else if (!split_last(arrived + seq * x.g + kvh))
            return;
        split_add<D>(x, out, s, kvh, splits, 0, 1, mg.factors, [&](int i) { return splits > 1 ? all + i : &mg.part; });
    }
}

template <int D>
static void split_run(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s, const attn_fresh &fresh)
{
    int64_t most = 0;
    for (int32_t i = 0; i < s->n; i++)
        most = MAX(most, MIN((int64_t)seqs_kvlen(s, i), (int64_t)x.window[0] + x.longest));
    int64_t bucket = 2 * BN; /* powers of two: a recorded step is good for as long as its bucket is */
    while (bucket < most)
        bucket *= 2;
    /* A block on each multiprocessor when they are few enough for clusters, else two; units beyond the counters are not split. */
    const int64_t units = (int64_t)x.g * x.n, sms = cuda_of(be)->sms;
    const bool clustered = sms / units <= SPLIT_CLUSTER && cuda_of(be)->cc >= 90;
    int64_t splits = MIN((clustered ? 1 : 2) * sms / units, CEIL_DIV(bucket, (int64_t)2 * BN));
    splits = !clustered && units > CUDA_COUNTERS ? 1 : MIN(MAX(splits, (int64_t)1), (int64_t)SPLITS);
    const size_t bytes = sizeof(split_smem<D>);
    const dim3 grid((unsigned)splits, x.g, x.n);
    split_part<D> *parts = NULL;
    unsigned *arrived = NULL;
    if (splits > 1 && clustered) {
        if (tile_allow_smem(be, attn_split_kernel<D, true>, bytes))
            launch_after(be, attn_split_kernel<D, true>, grid, 128, bytes, (unsigned)splits, x, out, fresh, parts, arrived);
        return;
    }
    if (splits > 1) {
        parts = cuda_ws_of<split_part<D>>(be, units * splits);
        arrived = cuda_counters(be);
        if (!parts || !arrived)
            return;
    }
    if (tile_allow_smem(be, attn_split_kernel<D, false>, bytes))
        launch_after(be, attn_split_kernel<D, false>, grid, 128, bytes, 1, x, out, fresh, parts, arrived);
}

bool attn_split(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s, const attn_fresh *fresh)
{
    static const attn_fresh none = {};
    const int d = MAX(x.kdim, x.vdim);
    if (d > 128 || x.branches != 1 || x.longest * x.rep > 16)
        return false;
    fresh = fresh ? fresh : &none;
    if (d > 64)
        split_run<128>(be, x, out, s, *fresh);
    else if (d > 32)
        split_run<64>(be, x, out, s, *fresh);
    else
        split_run<32>(be, x, out, s, *fresh);
    return true;
}

bool cuda_attn_new(struct backend *be, const struct step_attn *d)
{
    const struct op_attn *a = &d->attn;
    attn_in<bf16> x;
    bool swap;
    if (!cuda_fused(be) || !d->di.p || a->o2.p || a->seqs->rows != a->seqs->n || a->kdim % 16 || a->vdim % 8 || a->kdim > 128 ||
        a->vdim > 128 || a->seqs->n > 65535 || a->g > 65535)
        return false;
    for (int32_t i = 0; i < a->seqs->n; i++)
        if (seqs_qlen(a->seqs, i) != 1)
            return false;
    if (!attn_in_of(be, &x, a, &a->o2, "attn_new", &swap))
        return true; /* said why */
    x.ring = a->ring;
    const attn_fresh f = {cuda_p<bf16>(d->k),    cuda_p<bf16>(d->v),    cuda_p<bf16>(a->k), cuda_p<bf16>(a->v),
                          cuda_p<float>(d->cos), cuda_p<float>(d->sin), cuda_p<int>(d->di), cuda_p<int>(d->pos)};
    const attn_out<bf16> out = {{cuda_p<bf16>(a->o), NULL}, {cuda_p<float>(a->lse), NULL}};
    if (!attn_vec(x) || !aligned16(f.k) || !aligned16(f.v) || !aligned16(f.cos) || !aligned16(f.sin) || x.rep > 16 ||
        x.ldk != x.g * x.kdim || x.ldv != x.g * x.vdim)
        return false;
    cuda_step_begin(be, "attn_new");
    attn_split(be, x, out, a->seqs, &f);
    cuda_step_end(be);
    return true;
}
