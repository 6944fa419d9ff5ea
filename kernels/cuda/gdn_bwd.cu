/*
 * Gated delta rule, backward, in three kernels: what does not depend on the state (gdn.cuh); a scan from the last chunk to the first that carries dS, the gradient of the state
 * at the chunk's end; and one over all chunks and heads at once for the rest:
 *
 *     scan   dV' = tail o (K dS) + P^T dO,  dV = dW = Ag^T dV',  dU = -gamma o dW,  dS <- decay dS + s Q^T (gamma o dO) + K^T dU
 *     rest   U = K S,  W = V - gamma o U,  V' = Ag W,  dAg = tril(dV' W^T),  dPg = tril(dO V'^T),  N = s Gam o dPg
 *            dA = Gam o dAg o beta_j,  dL = -strict_lower(A^T dA A^T),  M = beta_i dL
 *            dQ = s gamma o (dO S^T) + N K,  dK = tail o (V' dS^T) + dU S^T + N^T Q + (M + M^T) K
 *            dbeta_j = sum_i (Gam o dAg o A)_ij + sum_i dL_ji (K K^T)_ji
 *            dcum_i = rowsum(E) - colsum(E) + q.dQ_state + dU.U - k.dK_state, E = dPg o P + dAg o Ag;  dcum_last += sum k.dK_state + decay <dS, S>;  dg = reverse sums of dcum
 *
 * With several value heads to a key head dq and dk are made per value head and then added, in ascending order.
 */
#include "kernels/cuda/gdn.cuh"

enum { C = GDN_CHUNK };

template <typename T> struct bwd_out {
    T *dq, *dk, *dv; /* dq, dk: with one value head per key head */
    float *dg, *dbeta, *dq_part, *dk_part; /* parts: [rows][hv][kdim] */
    T *dvn, *ds; /* [rows][hv][vdim]; [slots][hv][kdim][vdim] */
};

/* ---- the scan ---- */

template <typename T, int KD, int VB> struct rev_stage {
    T k[C * tile_ld<T>(KD)], q[C * tile_ld<T>(KD)], ag[C * tile_ld<T>(C)], p[C * tile_ld<T>(C)], go[C * tile_ld<T>(VB)];
    float gates[2 * C];
};
template <typename T, int KD, int VB, int STAGES> struct rev_smem {
    rev_stage<T, KD, VB> stage[STAGES];
    T ds[KD * tile_ld<T>(VB)], g[C * tile_ld<T>(VB)], dvn[C * tile_ld<T>(VB)], du[C * tile_ld<T>(VB)];
};

template <typename T, int KD, int VB>
static __device__ __forceinline__ void rev_load(rev_stage<T, KD, VB> &s, const gdn_in<T> &x, const gdn_pre<T> &pre, const T *d_o, gdn_chunk_at at, int head, int v0)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB);
    const int tid = threadIdx.x - 256;
    const int64_t ldk = (int64_t)x.h * x.kdim, from = at.row * ldk + head / (x.hv / x.h) * x.kdim, out = at.slot * x.hv + head;
    tile_load<C, KD, 128>(s.k, LK, x.k + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, KD, 128>(s.q, LK, x.q + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, C, 128>(s.ag, LC, pre.ag + out * C * C, C, C, C, true, tid);
    tile_load<C, C, 128>(s.p, LC, pre.p + out * C * C, C, C, C, true, tid);
    tile_load<C, VB, 128>(s.go, LV, d_o + (at.row * x.hv + head) * x.vdim + v0, (int64_t)x.hv * x.vdim, at.n, x.vdim - v0, x.vecv, tid);
    if (tid < 2 * C / 4)
        cp_async16(s.gates + 4 * tid, pre.gates + out * 2 * C + 4 * tid, true);
    cp_commit();
}

/* Rows of a fragment to global memory: row stride ld, rows below n, columns below cols. */
template <typename T, int NT> static __device__ __forceinline__ void rows_out(float (&c)[1][NT][4], T *to, int64_t ld_to, int row0, int n, int cols, bool vec)
{
    tile_each(c, [&](int r, int col, float u, float v) {
        T *y = to + (int64_t)(row0 + r) * ld_to + col;
        if (row0 + r >= n || col >= cols)
            return;
        if (vec) {
            st2(y, u, v);
        } else {
            st(y, u);
            if (col + 1 < cols)
                st(y + 1, v);
        }
    });
}

/* One block of VB value columns of one head of one sequence. Warps 0 to 3 carry the tokens' chain, 4 to 7 hold dS, 8 to 11 load the next chunk. */
template <typename T, int KD, int VB, int STAGES>
static __global__ void __launch_bounds__(384) gdn_rev_kernel(gdn_in<T> x, gdn_pre<T> pre, const T *d_o, bwd_out<T> out)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB), NT = VB / 8, MS = KD / 64;
    extern __shared__ __align__(16) unsigned char raw[];
    rev_smem<T, KD, VB, STAGES> &m = *(rev_smem<T, KD, VB, STAGES> *)raw;
    const int v0 = blockIdx.x * VB, head = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, row0 = 16 * (warp & 3), srow = 16 * MS * (warp & 3);
    const int chunks = (x.q_off[seq + 1] - x.q_off[seq] + C - 1) / C, cols = min(VB, x.vdim - v0);
    const int64_t ldv = (int64_t)x.hv * x.vdim;
    float sa[MS][NT][4];
    tile_zero(sa);
    for (int i = tid; i < KD * LV; i += 384)
        st(m.ds + i, 0.0f);
    if (chunks && warp >= 8)
        rev_load(m.stage[0], x, pre, d_o, gdn_find(x, seq, chunks - 1), head, v0);
#pragma unroll 1
    for (int ch = chunks - 1, turn = 0; ch >= 0; ch--, turn++) {
        const gdn_chunk_at at = gdn_find(x, seq, ch);
        rev_stage<T, KD, VB> &s = m.stage[turn % STAGES];
        cp_wait<0>();
        __syncthreads();
        if (STAGES > 1 && ch && warp >= 8)
            rev_load(m.stage[(turn + 1) % STAGES], x, pre, d_o, gdn_find(x, seq, ch - 1), head, v0);
        float acc[1][NT][4];
        const int64_t rows = (at.row * x.hv + head) * x.vdim + v0;
        if (warp < 4) {
            tile_zero(acc);
            tile_mm<1, NT, false, false>(acc, s.k + row0 * LK, LK, m.ds, LV, KD);
            tile_each(acc, [&](int r, int, float &u, float &v) {
                float t = s.gates[C + row0 + r];
                u *= t, v *= t;
            });
            tile_mm<1, NT, true, false>(acc, s.p + row0 * LC + row0, LC, s.go + row0 * LV, LV, C - row0); /* P^T: rows above the diagonal are zero */
            tile_each(acc, [&](int r, int c, float u, float v) { st2(m.dvn + (row0 + r) * LV + c, u, v); });
            rows_out<T, NT>(acc, out.dvn + rows, ldv, row0, at.n, cols, x.vecv);
        } else if (warp < 8) {
            const int t = tid - 128;
            for (int i = t; i < C * VB / 2; i += 128) {
                int r = i / (VB / 2), c = i % (VB / 2) * 2;
                float f = x.scale * s.gates[r];
                float2 y = ld2(s.go + r * LV + c);
                st2(m.g + r * LV + c, f * y.x, f * y.y);
            }
            tile_store<VB, 128>(out.ds + (at.slot * x.hv + head) * x.kdim * x.vdim + v0, x.vdim, m.ds, LV, x.kdim, cols, x.vecv, t);
        }
        __syncthreads();
        if (warp < 4) {
            tile_zero(acc);
            tile_mm<1, NT, true, false>(acc, s.ag + row0 * LC + row0, LC, m.dvn + row0 * LV, LV, C - row0);
            rows_out<T, NT>(acc, out.dv + rows, ldv, row0, at.n, cols, x.vecv);
            tile_each(acc, [&](int r, int c, float u, float v) {
                float g = -s.gates[row0 + r];
                st2(m.du + (row0 + r) * LV + c, g * u, g * v);
            });
        } else if (warp < 8) {
            const float decay = s.gates[C - 1];
            tile_each(sa, [&](int, int, float &u, float &v) { u *= decay, v *= decay; });
            tile_mm<MS, NT, true, false>(sa, s.q + srow, LK, m.g, LV, C);
        }
        __syncthreads();
        if (warp >= 4 && warp < 8) {
            tile_mm<MS, NT, true, false>(sa, s.k + srow, LK, m.du, LV, C);
            tile_each(sa, [&](int r, int c, float u, float v) { st2(m.ds + (srow + r) * LV + c, u, v); });
        }
        if (STAGES == 1 && ch) {
            __syncthreads();
            if (warp >= 8)
                rev_load(m.stage[0], x, pre, d_o, gdn_find(x, seq, ch - 1), head, v0);
        }
    }
}

/* ---- the rest ---- */

template <typename T, int KD, int VB> struct rest_smem {
    T k[C * tile_ld<T>(KD)], q[C * tile_ld<T>(KD)];
    T ag[C * tile_ld<T>(C)], p[C * tile_ld<T>(C)], a[C * tile_ld<T>(C)]; /* ag becomes dA, then M; p becomes N */
    T s[KD * tile_ld<T>(VB)], ds[KD * tile_ld<T>(VB)];                   /* both together then hold A^T dA */
    T w[C * tile_ld<T>(VB)], vn[C * tile_ld<T>(VB)], go[C * tile_ld<T>(VB)], dvn[C * tile_ld<T>(VB)], du[C * tile_ld<T>(VB)];
    float hi[C], lo[C], beta[C], gamma[C], tail[C];
    float row[6][2][C], col[2][4][C], shared[32];
};
enum { ROW_E, ROW_Q, ROW_U, ROW_K, ROW_L }; /* per token sums over columns; col: sums over rows of E and of Gam dAg A */
enum { COL_E, COL_A };

/* Per-row values of this lane's rows (g and g + 8), summed over the quad, into to[column half][row]. */
static __device__ __forceinline__ void put_rows(float (&to)[2][C], float x, float y, int half, int row0)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1), y += __shfl_xor_sync(0xffffffffu, y, 1);
    x += __shfl_xor_sync(0xffffffffu, x, 2), y += __shfl_xor_sync(0xffffffffu, y, 2);
    if ((threadIdx.x & 3) == 0) {
        int g = (threadIdx.x & 31) >> 2;
        to[half][row0 + g] = x;
        to[half][row0 + g + 8] = y;
    }
}
/* Rows of c dotted with rows of a tile in shared memory. */
template <typename T, int NT> static __device__ __forceinline__ void dot_rows(float (&to)[2][C], float (&c)[1][NT][4], const T *x, int ldx, int half, int row0)
{
    float lo = 0, hi = 0;
    const int g = (threadIdx.x & 31) >> 2;
    tile_each(c, [&](int r, int col, float u, float v) {
        float2 y = ld2(x + r * ldx + col);
        float d = fmaf(u, y.x, v * y.y);
        if (r == g)
            lo += d;
        else
            hi += d;
    });
    put_rows(to, lo, hi, half, row0);
}

template <typename T, int KD, int VB>
static __device__ __forceinline__ void rest_load(rest_smem<T, KD, VB> &s, const gdn_in<T> &x, const T *d_o, const bwd_out<T> &out, gdn_saved hs, gdn_chunk_at at, int64_t chunk,
                                                 int head, int v0)
{
    constexpr int LV = tile_ld<T>(VB);
    const int tid = threadIdx.x;
    const int64_t ldv = (int64_t)x.hv * x.vdim, rows = (at.row * x.hv + head) * x.vdim + v0, kv = (int64_t)x.kdim * x.vdim, from = (chunk * x.hv + head) * kv + v0;
    if (hs.f32)
        tile_load<KD, VB, 256>(s.s, LV, (const float *)hs.p + from, x.vdim, x.kdim, x.vdim - v0, x.vecv && sizeof(T) == 4, tid);
    else
        tile_load<KD, VB, 256>(s.s, LV, (const bf16 *)hs.p + from, x.vdim, x.kdim, x.vdim - v0, x.vecv, tid);
    tile_load<KD, VB, 256>(s.ds, LV, out.ds + (at.slot * x.hv + head) * kv + v0, x.vdim, x.kdim, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, 256>(s.w, LV, x.v + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, 256>(s.go, LV, d_o + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, 256>(s.dvn, LV, out.dvn + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, 256>(s.du, LV, out.dv + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    cp_commit();
}

/* dA into ag, N into p, with the sums of E and Gam dAg A: this warp's 16 rows x 32 columns. */
template <typename T, int KD, int VB>
static __device__ __forceinline__ void rest_gates(rest_smem<T, KD, VB> &s, float scale, float (&dag)[1][4][4], float (&dpg)[1][4][4], int row0, int col0)
{
    constexpr int LC = tile_ld<T>(C);
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float row_lo = 0, row_hi = 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        float ce[2] = {0, 0}, ca[2] = {0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row0 + g + 8 * h, j = col0 + 8 * n + 2 * t;
            float2 ag = ld2(s.ag + i * LC + j), p = ld2(s.p + i * LC + j), a = ld2(s.a + i * LC + j);
            float gam[2], e[2], da[2], dp[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float agv = k ? ag.y : ag.x, pv = k ? p.y : p.x, av = k ? a.y : a.x, x = dag[0][n][2 * h + k], y = dpg[0][n][2 * h + k];
                gam[k] = j + k <= i ? expf(gdn_since(s.hi, s.lo, i, j + k)) : 0;
                e[k] = j + k <= i ? fmaf(y, pv, x * agv) : 0;
                da[k] = gam[k] * x;
                dp[k] = scale * gam[k] * y;
                ce[k] += e[k];
                ca[k] += da[k] * av;
            }
            if (h)
                row_hi += e[0] + e[1];
            else
                row_lo += e[0] + e[1];
            st2(s.ag + i * LC + j, da[0] * s.beta[j], da[1] * s.beta[j + 1]);
            st2(s.p + i * LC + j, dp[0], dp[1]);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                ce[k] += __shfl_xor_sync(0xffffffffu, ce[k], o);
                ca[k] += __shfl_xor_sync(0xffffffffu, ca[k], o);
            }
            if (g == 0) {
                s.col[COL_E][row0 / 16][col0 + 8 * n + 2 * t + k] = ce[k];
                s.col[COL_A][row0 / 16][col0 + 8 * n + 2 * t + k] = ca[k];
            }
        }
    }
    put_rows(s.row[ROW_E], row_lo, row_hi, col0 / 32, row0);
}

/* dg and dbeta from the sums; one warp, lane has tokens 2 lane and 2 lane + 1. dsum: decay <dS, S>. */
template <typename T, int KD, int VB>
static __device__ __forceinline__ void rest_tokens(const rest_smem<T, KD, VB> &s, const gdn_in<T> &x, const bwd_out<T> &out, gdn_chunk_at at, int head, float dsum)
{
    const int lane = threadIdx.x & 31;
    double v[2], kd = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = 2 * lane + e;
        float k = s.row[ROW_K][0][i] + s.row[ROW_K][1][i], col_e = 0, col_a = 0;
        for (int w = 0; w < 4; w++) {
            col_e += s.col[COL_E][w][i];
            col_a += s.col[COL_A][w][i];
        }
        float row_e = s.row[ROW_E][0][i] + s.row[ROW_E][1][i], q = s.row[ROW_Q][0][i] + s.row[ROW_Q][1][i], u = s.row[ROW_U][0][i] + s.row[ROW_U][1][i];
        v[e] = i < at.n ? (double)(row_e - col_e) + (double)q + (double)u - (double)k : 0;
        kd += i < at.n ? (double)k : 0;
        if (i < at.n)
            out.dbeta[(at.row + i) * x.hv + head] = col_a + (s.row[ROW_L][0][i] + s.row[ROW_L][1][i]);
    }
    kd = warp_sum(kd);
    double after = v[0] + v[1]; /* sums from this lane to the last */
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        double down = __shfl_down_sync(0xffffffffu, after, o);
        if (lane + o < 32)
            after += down;
    }
    double all = kd + (double)dsum;
    if (2 * lane < at.n)
        out.dg[(at.row + 2 * lane) * x.hv + head] = (float)(after + all);
    if (2 * lane + 1 < at.n)
        out.dg[(at.row + 2 * lane + 1) * x.hv + head] = (float)(after - v[0] + all);
}

/* One chunk of one value head. 8 warps: 4 blocks of 16 tokens x 2 halves of the columns. */
template <typename T, int KD, int VB>
static __global__ void __launch_bounds__(256) gdn_rest_kernel(gdn_in<T> x, gdn_pre<T> pre, const T *d_o, gdn_saved ainv, gdn_saved hs, bwd_out<T> out)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB), NK = KD / 16, NV = VB / 16;
    extern __shared__ __align__(16) unsigned char raw[];
    rest_smem<T, KD, VB> &s = *(rest_smem<T, KD, VB> *)raw;
    const int head = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, row0 = 16 * (warp & 3), half = warp >> 2, ck = half * KD / 2, cc = half * C / 2,
              cv = half * VB / 2, g = (tid & 31) >> 2;
    const gdn_chunk_at at = gdn_find(x, seq, blockIdx.x);
    if (!at.n)
        return;
    const int64_t ldk = (int64_t)x.h * x.kdim, from = at.row * ldk + head / (x.hv / x.h) * x.kdim, slot = at.slot * x.hv + head;
    const int64_t chunk = gdn_first_chunk(x.q_off, seq) + blockIdx.x;
    tile_load<C, KD, 256>(s.k, LK, x.k + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, KD, 256>(s.q, LK, x.q + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, C, 256>(s.ag, LC, pre.ag + slot * C * C, C, C, C, true, tid);
    tile_load<C, C, 256>(s.p, LC, pre.p + slot * C * C, C, C, C, true, tid);
    const int64_t a0 = (at.row * x.hv + head) * C, lda = (int64_t)x.hv * C;
    if (ainv.f32)
        tile_load<C, C, 256>(s.a, LC, (const float *)ainv.p + a0, lda, at.n, C, aligned16(ainv.p) && sizeof(T) == 4, tid);
    else
        tile_load<C, C, 256>(s.a, LC, (const bf16 *)ainv.p + a0, lda, at.n, C, aligned16(ainv.p) && sizeof(T) == 2, tid);
    rest_load(s, x, d_o, out, hs, at, chunk, head, 0);
    if (tid < C) {
        s.beta[tid] = tid < at.n ? x.beta[(at.row + tid) * x.hv + head] : 0;
        s.gamma[tid] = pre.gates[slot * 2 * C + tid];
        s.tail[tid] = pre.gates[slot * 2 * C + C + tid];
    }
    if (warp == 7)
        gdn_cumulate(s.hi, s.lo, x.g + at.row * x.hv + head, x.hv, at.n);
    float dag[1][4][4], dpg[1][4][4], dq[1][NK][4], dk[1][NK][4], du_s[1][NK][4], dsum = 0, uu_lo = 0, uu_hi = 0;
    tile_zero(dag), tile_zero(dpg), tile_zero(dq), tile_zero(dk), tile_zero(du_s);
#pragma unroll 1
    for (int v0 = 0; v0 < x.vdim; v0 += VB) {
        if (v0) {
            __syncthreads();
            rest_load(s, x, d_o, out, hs, at, chunk, head, v0);
        }
        cp_wait<0>();
        __syncthreads();
        float acc[1][NV][4];
        tile_zero(acc);
        tile_mm<1, NV, false, false>(acc, s.k + row0 * LK, LK, s.s + cv, LV, KD);
        tile_each(acc, [&](int r, int c, float u, float v) {
            const int o = (row0 + r) * LV + cv + c;
            float2 y = ld2(s.w + o), z = ld2(s.du + o);
            float f = s.gamma[row0 + r], e = -f * fmaf(z.x, u, z.y * v);
            if (r == g)
                uu_lo += e;
            else
                uu_hi += e;
            st2(s.w + o, y.x - f * u, y.y - f * v);
            st2(s.du + o, -f * z.x, -f * z.y);
        });
        for (int i = tid; i < KD * VB / 2; i += 256) {
            float2 y = ld2(s.s + i / (VB / 2) * LV + i % (VB / 2) * 2), z = ld2(s.ds + i / (VB / 2) * LV + i % (VB / 2) * 2);
            dsum = fmaf(y.x, z.x, fmaf(y.y, z.y, dsum));
        }
        __syncthreads();
        tile_zero(acc);
        tile_mm<1, NV, false, false>(acc, s.ag + row0 * LC, LC, s.w + cv, LV, row0 + 16);
        tile_each(acc, [&](int r, int c, float u, float v) { st2(s.vn + (row0 + r) * LV + cv + c, u, v); });
        tile_mm<1, NK, false, true>(dq, s.go + row0 * LV, LV, s.s + ck * LV, LV, VB);
        tile_mm<1, NK, false, true>(du_s, s.du + row0 * LV, LV, s.s + ck * LV, LV, VB);
        if (cc < row0 + 16)
            tile_mm<1, 4, false, true>(dag, s.dvn + row0 * LV, LV, s.w + cc * LV, LV, VB);
        __syncthreads();
        if (cc < row0 + 16)
            tile_mm<1, 4, false, true>(dpg, s.go + row0 * LV, LV, s.vn + cc * LV, LV, VB);
        tile_mm<1, NK, false, true>(dk, s.vn + row0 * LV, LV, s.ds + ck * LV, LV, VB);
    }
    dsum = s.gamma[C - 1] * block_sum<256>(dsum, s.shared); /* a barrier: s.s, s.ds are free from here */
    put_rows(s.row[ROW_U], uu_lo, uu_hi, half, row0);
    tile_each(dq, [&](int r, int, float &u, float &v) {
        float f = x.scale * s.gamma[row0 + r];
        u *= f, v *= f;
    });
    tile_each(dk, [&](int r, int, float &u, float &v) {
        float f = s.tail[row0 + r];
        u *= f, v *= f;
    });
    dot_rows(s.row[ROW_Q], dq, s.q + row0 * LK + ck, LK, half, row0);
    dot_rows(s.row[ROW_K], dk, s.k + row0 * LK + ck, LK, half, row0);
#pragma unroll
    for (int n = 0; n < NK; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            dk[0][n][e] += du_s[0][n][e];
    rest_gates(s, x.scale, dag, dpg, row0, cc);
    __syncthreads();
    float acc[1][4][4];
    T *xa = s.s; /* A^T dA, [64][LC] */
    static_assert(C * tile_ld<T>(C) <= 2 * KD * tile_ld<T>(VB), "A^T dA fits where the states were");
    tile_zero(acc);
    tile_mm<1, 4, true, false>(acc, s.a + row0 * LC + row0, LC, s.ag + row0 * LC + cc, LC, C - row0);
    tile_each(acc, [&](int r, int c, float u, float v) { st2(xa + (row0 + r) * LC + cc + c, u, v); });
    __syncthreads();
    float kk[1][4][4];
    tile_zero(acc), tile_zero(kk);
    tile_mm<1, 4, false, true>(acc, xa + row0 * LC, LC, s.a + cc * LC, LC, C);
    tile_mm<1, 4, false, true>(kk, s.k + row0 * LK, LK, s.k + cc * LK, LK, KD);
    float l_lo = 0, l_hi = 0;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row0 + g + 8 * h, j = cc + 8 * n + 2 * (tid & 3);
            float d0 = j < i ? -acc[0][n][2 * h] : 0, d1 = j + 1 < i ? -acc[0][n][2 * h + 1] : 0, e = fmaf(d0, kk[0][n][2 * h], d1 * kk[0][n][2 * h + 1]);
            if (h)
                l_hi += e;
            else
                l_lo += e;
            st2(s.ag + i * LC + j, s.beta[i] * d0, s.beta[i] * d1);
        }
    put_rows(s.row[ROW_L], l_lo, l_hi, half, row0);
    __syncthreads();
    tile_mm<1, NK, false, false>(dq, s.p + row0 * LC, LC, s.k + ck, LK, C);
    tile_mm<1, NK, true, false>(dk, s.p + row0, LC, s.q + ck, LK, C);
    tile_mm<1, NK, false, false>(dk, s.ag + row0 * LC, LC, s.k + ck, LK, C);
    tile_mm<1, NK, true, false>(dk, s.ag + row0, LC, s.k + ck, LK, C);
    if (out.dq_part) {
        const int64_t to = (at.row * x.hv + head) * x.kdim + ck, ld_to = (int64_t)x.hv * x.kdim;
        rows_out<float, NK>(dq, out.dq_part + to, ld_to, row0, at.n, x.kdim - ck, x.veck);
        rows_out<float, NK>(dk, out.dk_part + to, ld_to, row0, at.n, x.kdim - ck, x.veck);
    } else {
        rows_out<T, NK>(dq, out.dq + from + ck, ldk, row0, at.n, x.kdim - ck, x.veck);
        rows_out<T, NK>(dk, out.dk + from + ck, ldk, row0, at.n, x.kdim - ck, x.veck);
    }
    if (warp == 0)
        rest_tokens(s, x, out, at, head, dsum);
}

/* dst[row, h, :] = sum over the value heads of key head h, ascending. */
template <typename T> static __global__ void gdn_heads_kernel(T *dq, T *dk, const float *pq, const float *pk, int64_t n, int rep, int kdim)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    const float *p = (blockIdx.y ? pk : pq) + i / kdim * rep * kdim + i % kdim;
    float sum = 0;
    for (int r = 0; r < rep; r++)
        sum += p[(int64_t)r * kdim];
    st((blockIdx.y ? dk : dq) + i, sum);
}

template <typename T, int KD>
static void launch_bwd(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, const T *d_o, gdn_saved ainv, gdn_saved hs, const bwd_out<T> &out)
{
    constexpr int VB = 32, VR = sizeof(T) == 2 ? 32 : 16, STAGES = sizeof(T) == 2 ? 2 : 1;
    cudaStream_t stream = cuda_of(be)->stream;
    size_t rev = sizeof(rev_smem<T, KD, VB, STAGES>), rest = sizeof(rest_smem<T, KD, VR>);
    if (!tile_allow_smem(be, gdn_rev_kernel<T, KD, VB, STAGES>, rev) || !tile_allow_smem(be, gdn_rest_kernel<T, KD, VR>, rest))
        return;
    gdn_rev_kernel<T, KD, VB, STAGES><<<dim3(CEIL_DIV(x.vdim, VB), x.hv, x.n), 384, rev, stream>>>(x, pre, d_o, out);
    gdn_rest_kernel<T, KD, VR><<<dim3(x.longest, x.hv, x.n), 256, rest, stream>>>(x, pre, d_o, ainv, hs, out);
}

template <typename T> static void gdn_bwd_run(struct backend *be, const struct op_gdn_bwd *d)
{
    gdn_in<T> x;
    gdn_pre<T> pre;
    if (!gdn_in_of(be, &x, d, "gdn_bwd") || !x.longest || !x.hv || !x.vdim)
        return;
    x.veck = x.veck && aligned16(d->dq.p) && aligned16(d->dk.p);
    x.vecv = x.vecv && aligned16(d->d_o.p) && aligned16(d->dv.p) && aligned16(d->hs.p);
    const int64_t kv = (int64_t)x.kdim * x.vdim;
    const enum dtype act = be->act;
    gdn_saved ainv = gdn_saved_of(d->ainv), hs = gdn_saved_of(d->hs);
    bwd_out<T> out = {cuda_p<T>(d->dq), cuda_p<T>(d->dk), cuda_p<T>(d->dv), cuda_p<float>(d->dg), cuda_p<float>(d->dbeta), NULL, NULL, NULL, NULL};
    out.dvn = cuda_ws_of<T>(be, x.rows * x.hv * x.vdim);
    out.ds = cuda_ws_of<T>(be, x.slots * x.hv * kv);
    if (x.hv != x.h) {
        out.dq_part = cuda_ws_of<float>(be, x.rows * x.hv * x.kdim);
        out.dk_part = cuda_ws_of<float>(be, x.rows * x.hv * x.kdim);
    }
    if (!ainv.p)
        ainv = {cuda_ws_of<T>(be, x.rows * x.hv * C), act == DT_F32};
    if (!hs.p)
        hs = {cuda_ws_of<T>(be, gdn_chunks(d->seqs) * x.hv * kv), act == DT_F32};
    if (be->failed || !gdn_pre_of(be, &pre, x))
        return;
    gdn_run_pre(be, x, pre, ainv, d->ainv.p != NULL);
    if (!d->hs.p)
        gdn_run_scan(be, x, pre, (T *)NULL, NULL, NULL, hs);
    if (sizeof(T) == 2 && x.kdim <= 64)
        launch_bwd<T, sizeof(T) == 2 ? 64 : 128>(be, x, pre, cuda_p<T>(d->d_o), ainv, hs, out);
    else
        launch_bwd<T, 128>(be, x, pre, cuda_p<T>(d->d_o), ainv, hs, out);
    if (x.hv != x.h) {
        int64_t n = x.rows * x.h * x.kdim;
        gdn_heads_kernel<T><<<dim3((unsigned)CEIL_DIV(n, 256), 2), 256, 0, cuda_of(be)->stream>>>(out.dq, out.dk, out.dq_part, out.dk_part, n, x.hv / x.h, x.kdim);
    }
}
void cuda_op_gdn_bwd(struct backend *be, const struct op_gdn_bwd *d)
{
    CUDA_BY_TYPE(be->act, T, gdn_bwd_run<T>(be, d););
}
