/*
 * Attention of few queries to many keys on tensor cores, bf16, head dims up to 128, and kernels/step.h's be_attn_new: the query heads of a
 * kv head are rows of one tile, the keys are split over blocks and warps, each with a ring of its own in shared memory. Partial results are
 * added in order: where keys are few, of up to 8 blocks in the shared memory of a cluster, else by the block that comes last (slower, but
 * its blocks need not stand together). A block asks for its first keys before the step's previous kernel has ended.
 */
#include <cooperative_groups.h>

#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/launch.cuh"

extern "C" {
#include "kernels/step.h"
}

enum { BN = 64, SPLIT_LAST = 2, SPLITS = 64, SPLIT_CLUSTER = 8, SPLIT_LONG = 8192 /* keys from which the merge weighs little */ };
template <int D, int STAGES> struct split_smem {
    bf16 q[16 * tile_ld<bf16>(D)], fresh[2][D], k[STAGES][BN * tile_ld<bf16>(D)], v[STAGES][BN * tile_ld<bf16>(D)];
};

/* A sequence's new token: key (before rotation) and value, by row of the batch; where they go. keys NULL: there is none. */
struct attn_fresh {
    const bf16 *k, *v;
    bf16 *keys, *values;
    const float *cos, *sin; /* [positions][kdim / 2] */
    const int *di, *pos;
};

/*
 * The new token of a sequence. A thread has eight pairs of a query head, (c, c + half) .. (c + 7, c + half + 7), to rotate; in the block
 * that has the last keys the threads of the first head rotate the key, too, and others copy the value, to shared memory and to the cache.
 * What depends on the position alone is read before the step's previous kernel has ended.
 */
struct split_turn {
    float cos[8], sin[8];
    int head, c;
    __device__ __forceinline__ void find(const attn_in<bf16> &x, const attn_fresh &f, int row)
    {
        const int half = x.kdim / 2, each = half / 8;
        head = threadIdx.x / each, c = threadIdx.x % each * 8;
        if (head >= x.rep)
            return;
        const int64_t at = (int64_t)f.pos[row] * half + c;
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            *(float4 *)(cos + e) = *(const float4 *)(f.cos + at + e);
            *(float4 *)(sin + e) = *(const float4 *)(f.sin + at + e);
        }
    }
    __device__ __forceinline__ void turn(bf16 *to, bf16 *to2, uint4 first, uint4 second) const
    {
        float a[8], b[8], p[8], q[8];
        ld16(a, (const bf16 *)&first);
        ld16(b, (const bf16 *)&second);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            p[e] = a[e] * cos[e] - b[e] * sin[e];
            q[e] = b[e] * cos[e] + a[e] * sin[e];
        }
        st16(to, p);
        st16(to2, q);
    }
};
template <int D, int STAGES>
static __device__ __forceinline__ void split_fresh(split_smem<D, STAGES> &sm, const attn_in<bf16> &x, const attn_fresh &f,
                                                   const split_turn &w, int row, int kvh, bool mine)
{
    constexpr int LD = tile_ld<bf16>(D);
    const int half = x.kdim / 2, c = w.c, v_c = 8 * ((int)threadIdx.x - 64);
    uint4 q[2], k[2], v;
    const bool turns = w.head < x.rep, key = mine && w.head == 0, value = mine && v_c >= 0 && v_c < x.vdim;
    if (turns) {
        const bf16 *p = x.q + (int64_t)row * x.ldq + (kvh * x.rep + w.head) * x.kdim + c;
        q[0] = *(const uint4 *)p, q[1] = *(const uint4 *)(p + half);
    }
    const int64_t at = (int64_t)row * x.g + kvh;
    if (key)
        k[0] = *(const uint4 *)(f.k + at * x.kdim + c), k[1] = *(const uint4 *)(f.k + at * x.kdim + half + c);
    if (value)
        v = *(const uint4 *)(f.v + at * x.vdim + v_c);
    if (turns)
        w.turn(sm.q + w.head * LD + c, sm.q + w.head * LD + half + c, q[0], q[1]);
    if (key) {
        bf16 *to = f.keys + ((int64_t)f.di[row] * x.g + kvh) * x.kdim + c;
        w.turn(sm.fresh[0] + c, sm.fresh[0] + half + c, k[0], k[1]);
        *(uint4 *)to = *(const uint4 *)(sm.fresh[0] + c);
        *(uint4 *)(to + half) = *(const uint4 *)(sm.fresh[0] + half + c);
    }
    if (value) {
        *(uint4 *)(sm.fresh[1] + v_c) = v;
        *(uint4 *)(f.values + ((int64_t)f.di[row] * x.g + kvh) * x.vdim + v_c) = v;
    }
}

/* The rows of q, in registers. */
template <int D> struct split_query {
    static constexpr int LD = tile_ld<bf16>(D);
    unsigned a[D / 16][4];
    __device__ __forceinline__ split_query(const bf16 *q)
    {
        const int lane = threadIdx.x & 31, i = lane >> 3, r = lane & 7;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            ldmatrix4(a[k], smem_addr(q + ((i & 1) * 8 + r) * LD + (i >> 1) * 8 + 16 * k));
    }
    /* Times 16 keys, in two halves, so that fewer products wait for one another. */
    __device__ __forceinline__ void scores(float (&c)[2][4], const bf16 *keys) const
    {
        const int lane = threadIdx.x & 31, i = lane >> 3, r = lane & 7;
        const unsigned from = smem_addr(keys + ((i >> 1) * 8 + r) * LD + (i & 1) * 8);
        float half[2][2][4] = {};
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            unsigned b[4];
            ldmatrix4(b, from + 32u * k);
            mma16816(half[k & 1][0], a[k], b[0], b[1]);
            mma16816(half[k & 1][1], a[k], b[2], b[3]);
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[n][e] = half[0][n][e] + half[1][n][e];
    }
};

/* What a block has of its rows: sum of 2^(s - m) v, then m (of the raw scores) and l. Row r is query r / rep, head r % rep of the group. */
template <int D> struct split_part {
    float v[16][D], m[16], l[16];
};

/* The states of the warps, added in order. f: [4][16], what they weigh. */
template <int D>
static __device__ __forceinline__ void split_warps(split_part<D> &to, int rows, float sl2, const float *ms, const float *ls,
                                                   const float *os, float *f)
{
    constexpr int LO = D + 4;
    const int tid = threadIdx.x;
    if (tid < 16) {
        const float top = fmaxf(fmaxf(ms[tid], ms[16 + tid]), fmaxf(ms[32 + tid], ms[48 + tid])), b0 = top == -INFINITY ? 0 : top * sl2;
        float sum = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) {
            f[16 * w + tid] = exp2_f(fmaf(ms[16 * w + tid], sl2, -b0));
            sum = fmaf(f[16 * w + tid], ls[16 * w + tid], sum);
        }
        to.m[tid] = top, to.l[tid] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int r = tid / (D / 4); r < rows; r += 128 / (D / 4)) {
        const int c = tid % (D / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float4 o = *(const float4 *)(os + (16 * w + r) * LO + c);
            const float g = f[16 * w + r];
            v.x = fmaf(g, o.x, v.x), v.y = fmaf(g, o.y, v.y), v.z = fmaf(g, o.z, v.z), v.w = fmaf(g, o.w, v.w);
        }
        *(float4 *)(to.v[r] + c) = v;
    }
}

/* What blocks' states weigh: of a row, then its maximum and sum. */
struct split_weights {
    float f[16][SPLITS], l[16][SPLITS], top[16], sum[16];
};

/*
 * Rows first, first + step, ... of all parts, added in order, as outputs. part(i): of block i, wherever it lies, which is far: what is
 * read there is asked for in eights.
 */
template <int D, typename F>
static __device__ __forceinline__ void split_add(const attn_in<bf16> &x, const attn_out<bf16> &out, const attn_seq &s, int kvh, int splits,
                                                 int first, int step, split_weights &w, F part)
{
    constexpr int EACH = 128 / D, MINE = 16 / EACH; /* rows at a time, and of a thread */
    const int tid = threadIdx.x, rows = s.nq * x.rep, c = tid % D, r0 = tid / D;
    const float sl2 = x.scale * 1.44269504088896341f;
#pragma unroll 1
    for (int u = tid; u < 16 * splits; u += 128)
        if (u % 16 < rows) {
            w.f[u % 16][u / 16] = part(u / 16)->m[u % 16];
            w.l[u % 16][u / 16] = part(u / 16)->l[u % 16];
        }
    __syncthreads();
    if (tid < rows) {
        float top = -INFINITY, sum = 0;
#pragma unroll 1
        for (int i = 0; i < splits; i++)
            top = fmaxf(top, w.f[tid][i]);
#pragma unroll 1
        for (int i = 0; i < splits; i++) {
            w.f[tid][i] = exp2_f((w.f[tid][i] - top) * sl2);
            sum = fmaf(w.f[tid][i], w.l[tid][i], sum);
        }
        w.top[tid] = top, w.sum[tid] = sum;
    }
    __syncthreads();
#pragma unroll 1
    for (int q = 0; q < MINE; q++) {
        const int r = first + step * (r0 + q * EACH);
        if (r >= rows)
            break;
        float sum = 0;
#pragma unroll 1
        for (int i = 0; i < splits; i += 8) {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = i + j < splits ? part(i + j)->v[r][c] : 0;
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j < splits)
                    sum = fmaf(w.f[r][i + j], v[j], sum);
        }
        const int64_t at = (int64_t)(s.row + r / x.rep) * x.h + kvh * x.rep + r % x.rep;
        if (c < x.vdim)
            st(out.o[0] + at * x.vdim + c, sum / w.sum[r]);
        if (c == 0 && out.lse[0])
            out.lse[0][at] = w.top[r] * x.scale + logf(w.sum[r]);
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
template <int D, bool CLUSTERED, int STAGES>
static __global__ void __launch_bounds__(128)
    attn_split_kernel(const __grid_constant__ attn_in<bf16> x, const __grid_constant__ attn_out<bf16> out,
                      const __grid_constant__ attn_fresh fresh, split_part<D> *parts, unsigned *arrived)
{
    constexpr int LD = tile_ld<bf16>(D), NO = D / 8;
    extern __shared__ __align__(16) unsigned char raw[];
    split_smem<D, STAGES> &sm = *(split_smem<D, STAGES> *)raw;
    const int kvh = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t4 = tid & 3;
    const attn_seq s = attn_find(x, seq);
    /* keys first .. end - 1, shares in sixteens, of a warp at a time; BN of them a turn */
    const int off = s.nk - s.nq, lo = x.window[0] > off ? 0 : off - x.window[0] + 1, units = (s.nk + 15) / 16 - lo / 16;
    const int first = 16 * (lo / 16 + (int)((unsigned)units * blockIdx.x / gridDim.x)),
              end = 16 * (lo / 16 + (int)((unsigned)units * (blockIdx.x + 1) / gridDim.x)), turns = (end - first + BN - 1) / BN;
    const bool mine = fresh.keys && first < end && end >= s.nk; /* the new token's key is among its keys */
    auto load = [&](int b) { /* a warp's own keys, in its own part of the ring: no warp waits for another */
                             const int at = b % STAGES, j0 = first + b * BN + 16 * warp;
                             if (j0 < end)
                                 load_kv<D, 16, 32>(sm.k[at] + 16 * warp * LD, sm.v[at] + 16 * warp * LD, x, s, kvh, j0, lane);
                             cp_commit();
    };
    auto load_first = [&] {
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            load(i);
    };
    const bool early =
        fresh.keys || first + (STAGES - 1) * BN <= off; /* keys and values of earlier steps; the new one's place is read in vain */
    if (early)
        load_first();
    split_turn turn;
    if (fresh.keys && s.nq)
        turn.find(x, fresh, s.row);
#pragma unroll 1
    for (int u = tid; u < 16 * LD / 8; u += 128)
        *(uint4 *)(sm.q + 8 * u) = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (turns <= SPLIT_LAST)
        let_next_start();
    after_previous();
    if (!s.nq)
        return;
    if (!early)
        load_first();
    if (fresh.keys)
        split_fresh<D, STAGES>(sm, x, fresh, turn, s.row, kvh, mine);
    else
#pragma unroll 1
        for (int u = tid; u < s.nq * x.rep * (D / 8); u += 128) {
            const int r = u / (D / 8), c = u % (D / 8) * 8;
            if (c < x.kdim)
                *(uint4 *)(sm.q + r * LD + c) =
                    *(const uint4 *)(x.q + (int64_t)(s.row + r / x.rep) * x.ldq + (kvh * x.rep + r % x.rep) * x.kdim + c);
        }
    __syncthreads();
    split_query<D> q(sm.q);
    float o[1][NO][4], m[1][2] = {{-INFINITY, -INFINITY}}, l[1][2] = {{0, 0}};
    tile_zero(o);
    const float sl2 = x.scale * 1.44269504088896341f;
#pragma unroll 1
    for (int b = 0; b < turns; b++) {
        const int at = b % STAGES, j0 = first + b * BN + 16 * warp;
        if (b && b == turns - SPLIT_LAST)
            let_next_start();
        cp_wait<STAGES - 2>();
        __syncwarp();
        if (mine && j0 <= s.nk - 1 && s.nk - 1 < j0 + 16) {
            const int row = (16 * warp + s.nk - 1 - j0) * LD;
            if (lane < x.kdim / 8)
                *(uint4 *)(sm.k[at] + row + 8 * lane) = *(const uint4 *)(sm.fresh[0] + 8 * lane);
            if (lane >= 16 && lane - 16 < x.vdim / 8)
                *(uint4 *)(sm.v[at] + row + 8 * (lane - 16)) = *(const uint4 *)(sm.fresh[1] + 8 * (lane - 16));
            __syncwarp();
        }
        load(b + STAGES - 1);
        if (j0 >= end) /* the last turn may be short of keys */
            continue;
        float c[1][2][4];
        q.scores(c[0], sm.k[at] + 16 * warp * LD);
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
        float m[4][16], l[4][16], f[4][16], o[64][LO];
        split_part<D> part;
        split_weights w;
    };
    static_assert(sizeof(split_smem<D, STAGES>) >= sizeof(merge), "room for the merge");
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
        split_warps<D>(mg.part, rows, sl2, mg.m[0], mg.l[0], mg.o[0], mg.f[0]);
        cluster.sync();
        split_add<D>(x, out, s, kvh, splits, blockIdx.x, splits, mg.w, [&](int i) { return cluster.map_shared_rank(&mg.part, i); });
        cluster.sync(); /* its memory is read by the others until here */
#endif
    } else {
        split_part<D> *all = parts + ((int64_t)seq * x.g + kvh) * splits;
        split_warps<D>(splits > 1 ? all[blockIdx.x] : mg.part, rows, sl2, mg.m[0], mg.l[0], mg.o[0], mg.f[0]);
        if (splits == 1)
            __syncthreads();
        else if (!split_last(arrived + seq * x.g + kvh))
            return;
        split_add<D>(x, out, s, kvh, splits, 0, 1, mg.w, [&](int i) { return splits > 1 ? all + i : &mg.part; });
    }
}

template <int D, bool CLUSTERED, int STAGES>
static void split_launch(struct backend *be, dim3 grid, const attn_in<bf16> &x, const attn_out<bf16> &out, const attn_fresh &fresh)
{
    const size_t bytes = sizeof(split_smem<D, STAGES>);
    split_part<D> *parts = NULL;
    unsigned *arrived = NULL;
    if (!CLUSTERED && grid.x > 1) {
        parts = cuda_ws_of<split_part<D>>(be, (int64_t)grid.x * grid.y * grid.z);
        arrived = cuda_counters(be);
        if (!parts || !arrived)
            return;
    }
    if (tile_allow_smem(be, attn_split_kernel<D, CLUSTERED, STAGES>, bytes))
        launch_after(be, attn_split_kernel<D, CLUSTERED, STAGES>, grid, 128, bytes, CLUSTERED ? grid.x : 1, x, out, fresh, parts, arrived);
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
    /*
     * Clusters, two blocks on each multiprocessor, while keys are few: their merge is the quickest. Else one large block on each. Units
     * beyond the counters are not split.
     */
    const int64_t units = (int64_t)x.g * x.n, sms = cuda_of(be)->sms;
    const bool clustered = cuda_of(be)->cc >= 90 && sms / units <= SPLIT_CLUSTER && (bucket <= SPLIT_LONG || units > sms);
    const int64_t most_splits = clustered ? SPLIT_CLUSTER : units > CUDA_COUNTERS ? 1 : SPLITS;
    int64_t splits = MIN((clustered ? 2 : 1) * sms / units, CEIL_DIV(bucket, (int64_t)2 * BN));
    splits = MAX(MIN(splits, most_splits), (int64_t)1);
    const dim3 grid((unsigned)splits, x.g, x.n);
    if (clustered)
        split_launch<D, true, 2>(be, grid, x, out, fresh);
    else if (sizeof(split_smem<D, 4>) <= cuda_of(be)->smem_optin)
        split_launch<D, false, 4>(be, grid, x, out, fresh);
    else
        split_launch<D, false, 2>(be, grid, x, out, fresh);
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
