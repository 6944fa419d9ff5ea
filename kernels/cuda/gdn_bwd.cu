/*
 * Gated delta rule, backward, in three kernels: what does not depend on the state (gdn.cuh); a scan from the last chunk to the first that
 * carries dS, the gradient of the state at the chunk's end; and one over all chunks and heads at once for the rest:
 *
 *     scan   dV' = tail o (K dS) + P^T dO,  dV = dW = Ag^T dV',  dU = -gamma o dW,  dS <- decay dS + s Q^T (gamma o dO) + K^T dU
 *     rest   U = K S,  W = V - gamma o U,  V' = Ag W,  dAg = tril(dV' W^T),  dPg = tril(dO V'^T),  N = s Gam o dPg
 *            dA = Gam o dAg o beta_j,  dL = -strict_lower(A^T dA A^T),  M = beta_i dL
 *            dQ = s gamma o (dO S^T) + N K,  dK = tail o (V' dS^T) + dU S^T + N^T Q + (M + M^T) K
 *            dbeta_j = sum_i (Gam o dAg o A)_ij + sum_i dL_ji (K K^T)_ji
 *            dcum_i = rowsum(E) - colsum(E) + q.dQ_state + dU.U - k.dK_state, E = dPg o P + dAg o Ag;  dcum_last += sum k.dK_state + decay
 * <dS, S>;  dg = reverse sums of dcum
 *
 * With several value heads to a key head dq and dk are made per value head and then added, in ascending order.
 */
#include "kernels/cuda/gdn.cuh"

enum { C = GDN_CHUNK };

template <typename T> struct bwd_out {
    T *dq, *dk, *dv;                       /* dq, dk: with one value head per key head */
    float *dg, *dbeta, *dq_part, *dk_part; /* parts: [rows][hv][kdim] */
    T *dvn, *ds;                           /* [rows][hv][vdim]; [slots][hv][kdim][vdim] */
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

/* In three parts, as in gdn.cu. */
enum { LOAD_K = 1, LOAD_Q = 2, LOAD_REST = 4, LOAD_ALL = 7 };
template <int PARTS, typename T, int KD, int VB>
static __device__ __forceinline__ void rev_load(rev_stage<T, KD, VB> &s, const gdn_in<T> &x, const gdn_pre<T> &pre, const T *d_o,
                                                gdn_chunk_at at, int head, int v0)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB);
    const int tid = threadIdx.x - 512;
    const int64_t ldk = (int64_t)x.h * x.kdim, from = at.row * ldk + head / (x.hv / x.h) * x.kdim, out = at.slot * x.hv + head;
    if (PARTS & LOAD_K)
        tile_load<C, KD, 128>(s.k, LK, x.k + from, ldk, at.n, x.kdim, x.veck, tid);
    if (PARTS & LOAD_Q)
        tile_load<C, KD, 128>(s.q, LK, x.q + from, ldk, at.n, x.kdim, x.veck, tid);
    if (PARTS & LOAD_REST) {
        tile_load<C, C, 128>(s.ag, LC, pre.ag + out * C * C, C, C, C, true, tid);
        tile_load<C, C, 128>(s.p, LC, pre.p + out * C * C, C, C, C, true, tid);
        tile_load<C, VB, 128>(s.go, LV, d_o + (at.row * x.hv + head) * x.vdim + v0, (int64_t)x.hv * x.vdim, at.n, x.vdim - v0, x.vecv, tid);
        if (tid < 2 * C / 4)
            cp_async16(s.gates + 4 * tid, pre.gates + out * 2 * C + 4 * tid, true);
    }
}

/*
 * One block of VB value columns of one head of one sequence. 20 warps: 0 to 7 carry the tokens' chain (4 blocks of 16 rows x 2 halves of
 * the columns), 8 to 15 hold dS (KD / 16 blocks of rows), 16 to 19 load.
 */
template <typename T, int KD, int VB, int STAGES>
static __global__ void __launch_bounds__(640) gdn_rev_kernel(gdn_in<T> x, gdn_pre<T> pre, const T *d_o, bwd_out<T> out)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB), NT = VB / 16, SN = KD == 128 ? VB / 8 : VB / 16;
    extern __shared__ __align__(16) unsigned char raw[];
    rev_smem<T, KD, VB, STAGES> &m = *(rev_smem<T, KD, VB, STAGES> *)raw;
    const int v0 = blockIdx.x * VB, head = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, role = tid >> 8, wr = (tid >> 5) & 7,
              row0 = 16 * (wr & 3), cv = (wr >> 2) * (VB / 2);
    const int srow = KD == 128 ? 16 * wr : row0, sc = KD == 128 ? 0 : cv;
    const int first = x.q_off[seq], len = x.q_off[seq + 1] - first, chunks = (len + C - 1) / C, cols = min(VB, x.vdim - v0);
    const int64_t ldv = (int64_t)x.hv * x.vdim;
    float sa[1][SN][4]; /* role 1: rows srow .. of dS, columns sc .. */
    tile_zero(sa);
    for (int i = tid; i < KD * LV; i += 640)
        st(m.ds + i, 0.0f);
    if (role == 2)
#pragma unroll
        for (int i = 0; i < STAGES - (STAGES > 1); i++) {
            if (i < chunks)
                rev_load<LOAD_ALL>(m.stage[i], x, pre, d_o, gdn_nth(first, len, seq, chunks - 1 - i), head, v0);
            cp_commit();
        }
#pragma unroll 1
    for (int ch = chunks - 1, turn = 0; ch >= 0; ch--, turn++) {
        const gdn_chunk_at at = gdn_nth(first, len, seq, ch);
        rev_stage<T, KD, VB> &s = m.stage[turn % STAGES];
        const int ahead = ch - (STAGES - 1);
        const bool fetch = role == 2 && STAGES > 1 && ahead >= 0;
        float acc[1][NT][4];
        const int64_t rows = (at.row * x.hv + head) * x.vdim + v0;
        cp_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();
        if (fetch) {
            rev_load<LOAD_K>(m.stage[(turn + STAGES - 1) % STAGES], x, pre, d_o, gdn_nth(first, len, seq, ahead), head, v0);
        } else if (role == 0) {
            tile_zero(acc);
            tile_mm<1, NT, false, false>(acc, s.k + row0 * LK, LK, m.ds + cv, LV, KD);
            tile_each(acc, [&](int r, int, float &u, float &v) {
                const float t = s.gates[C + row0 + r];
                u *= t, v *= t;
            });
            tile_mm<1, NT, true, false>(acc, s.p + row0 * LC + row0, LC, s.go + row0 * LV + cv, LV,
                                        C - row0); /* P^T: rows above the diagonal are zero */
            tile_each(acc, [&](int r, int c, float u, float v) { st2(m.dvn + (row0 + r) * LV + cv + c, u, v); });
        } else if (role == 1) {
            const int t = tid - 256;
#pragma unroll
            for (int i = t; i < C * VB / 2; i += 256) {
                const int r = i / (VB / 2), c = i % (VB / 2) * 2;
                const float f = x.scale * s.gates[r];
                const float2 y = ld2(s.go + r * LV + c);
                st2(m.g + r * LV + c, f * y.x, f * y.y);
            }
            tile_store<VB, 256>(out.ds + (at.slot * x.hv + head) * x.kdim * x.vdim + v0, x.vdim, m.ds, LV, x.kdim, cols, x.vecv, t);
        }
        __syncthreads();
        if (fetch) {
            rev_load<LOAD_Q>(m.stage[(turn + STAGES - 1) % STAGES], x, pre, d_o, gdn_nth(first, len, seq, ahead), head, v0);
        } else if (role == 0) {
            gdn_rows_out<T, NT>(acc, out.dvn + rows + cv, ldv, row0, at.n, cols - cv, x.vecv);
            tile_zero(acc);
            tile_mm<1, NT, true, false>(acc, s.ag + row0 * LC + row0, LC, m.dvn + row0 * LV + cv, LV, C - row0);
            tile_each(acc, [&](int r, int c, float u, float v) {
                const float g = -s.gates[row0 + r];
                st2(m.du + (row0 + r) * LV + cv + c, g * u, g * v);
            });
        } else if (role == 1) {
            const float decay = s.gates[C - 1];
            tile_each(sa, [&](int, int, float &u, float &v) { u *= decay, v *= decay; });
            tile_mm<1, SN, true, false>(sa, s.q + srow, LK, m.g + sc, LV, C);
        }
        __syncthreads();
        if (fetch) {
            rev_load<LOAD_REST>(m.stage[(turn + STAGES - 1) % STAGES], x, pre, d_o, gdn_nth(first, len, seq, ahead), head, v0);
        } else if (role == 0) {
            gdn_rows_out<T, NT>(acc, out.dv + rows + cv, ldv, row0, at.n, cols - cv, x.vecv);
        } else if (role == 1) {
            tile_mm<1, SN, true, false>(sa, s.k + srow, LK, m.du + sc, LV, C);
            tile_each(sa, [&](int r, int c, float u, float v) { st2(m.ds + (srow + r) * LV + sc + c, u, v); });
        }
        if (STAGES == 1 && ch) {
            __syncthreads();
            if (role == 2)
                rev_load<LOAD_ALL>(m.stage[0], x, pre, d_o, gdn_nth(first, len, seq, ch - 1), head, v0);
        }
        cp_commit();
    }
}

/* ---- the rest ---- */

enum { REST_THREADS = 512, QUARTERS = 4 };
template <typename T, int KD, int VB> struct rest_stage {
    T s[KD * tile_ld<T>(VB)], ds[KD * tile_ld<T>(VB)];
    T w[C * tile_ld<T>(VB)], go[C * tile_ld<T>(VB)], dvn[C * tile_ld<T>(VB)], du[C * tile_ld<T>(VB)]; /* w comes as V, du as dW */
};
template <typename T, int KD, int VB, int STAGES> struct rest_smem {
    T k[C * tile_ld<T>(KD)], q[C * tile_ld<T>(KD)];
    T ag[C * tile_ld<T>(C)], p[C * tile_ld<T>(C)], a[C * tile_ld<T>(C)]; /* ag becomes dA, then M; p becomes N */
    rest_stage<T, KD, VB> stage[STAGES];                                 /* the first one's states then make room for A^T dA */
    T vn[C * tile_ld<T>(VB)];
    float hi[C], lo[C], beta[C], gamma[C], tail[C];
    float row[5][QUARTERS][C], col[2][4][C], shared[32];
};
enum { ROW_E, ROW_Q, ROW_U, ROW_K, ROW_L }; /* per token sums over columns; col: sums over rows of E and of Gam dAg A */
enum { COL_E, COL_A };

/* Per-row values of this lane's rows (g and g + 8), summed over the quad, into to[quarter of the columns][row]. */
static __device__ __forceinline__ void put_rows(float (&to)[QUARTERS][C], float x, float y, int quarter, int row0)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1), y += __shfl_xor_sync(0xffffffffu, y, 1);
    x += __shfl_xor_sync(0xffffffffu, x, 2), y += __shfl_xor_sync(0xffffffffu, y, 2);
    if ((threadIdx.x & 3) == 0) {
        int g = (threadIdx.x & 31) >> 2;
        to[quarter][row0 + g] = x;
        to[quarter][row0 + g + 8] = y;
    }
}
static __device__ __forceinline__ float get_row(const float (&from)[QUARTERS][C], int i)
{
    return (from[0][i] + from[1][i]) + (from[2][i] + from[3][i]);
}
/* Rows of c dotted with rows of a tile in shared memory. */
template <typename T, int NT>
static __device__ __forceinline__ void dot_rows(float (&to)[QUARTERS][C], float (&c)[1][NT][4], const T *x, int ldx, int quarter, int row0)
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
    put_rows(to, lo, hi, quarter, row0);
}

template <typename T, int KD, int VB>
static __device__ __forceinline__ void rest_load(rest_stage<T, KD, VB> &s, const gdn_in<T> &x, const T *d_o, const bwd_out<T> &out,
                                                 gdn_saved hs, gdn_chunk_at at, int64_t chunk, int head, int v0)
{
    constexpr int LV = tile_ld<T>(VB);
    const int tid = threadIdx.x;
    const int64_t ldv = (int64_t)x.hv * x.vdim, rows = (at.row * x.hv + head) * x.vdim + v0, kv = (int64_t)x.kdim * x.vdim,
                  from = (chunk * x.hv + head) * kv + v0;
    if (hs.f32)
        tile_load<KD, VB, REST_THREADS>(s.s, LV, (const float *)hs.p + from, x.vdim, x.kdim, x.vdim - v0, x.vecv && sizeof(T) == 4, tid);
    else
        tile_load<KD, VB, REST_THREADS>(s.s, LV, (const bf16 *)hs.p + from, x.vdim, x.kdim, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, REST_THREADS>(s.w, LV, x.v + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, REST_THREADS>(s.du, LV, out.dv + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    tile_load<KD, VB, REST_THREADS>(s.ds, LV, out.ds + (at.slot * x.hv + head) * kv + v0, x.vdim, x.kdim, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, REST_THREADS>(s.go, LV, d_o + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    tile_load<C, VB, REST_THREADS>(s.dvn, LV, out.dvn + rows, ldv, at.n, x.vdim - v0, x.vecv, tid);
    cp_commit();
}

/* dA into ag, N into p, with the sums of E and Gam dAg A: this warp's 16 rows x 16 columns. */
template <typename T, int KD, int VB, int STAGES>
static __device__ __forceinline__ void rest_gates(rest_smem<T, KD, VB, STAGES> &s, float scale, float (&dag)[1][2][4],
                                                  float (&dpg)[1][2][4], int row0, int col0)
{
    constexpr int LC = tile_ld<T>(C);
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float row_lo = 0, row_hi = 0;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float ce[2] = {0, 0}, ca[2] = {0, 0};
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row0 + g + 8 * h, j = col0 + 8 * n + 2 * t;
            float2 ag = ld2(s.ag + i * LC + j), p = ld2(s.p + i * LC + j), a = ld2(s.a + i * LC + j);
            float gam[2], e[2], da[2], dp[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float agv = k ? ag.y : ag.x, pv = k ? p.y : p.x, av = k ? a.y : a.x, x = dag[0][n][2 * h + k], y = dpg[0][n][2 * h + k];
                gam[k] = j + k <= i ? gdn_exp<T>(gdn_since(s.hi, s.lo, i, j + k)) : 0;
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
    put_rows(s.row[ROW_E], row_lo, row_hi, col0 / 16, row0);
}

/* dg and dbeta from the sums; one warp, lane has tokens 2 lane and 2 lane + 1. dsum: decay <dS, S>. */
template <typename T, typename S>
static __device__ __forceinline__ void rest_tokens(const S &s, const gdn_in<T> &x, const bwd_out<T> &out, gdn_chunk_at at, int head,
                                                   float dsum)
{
    const int lane = threadIdx.x & 31;
    double v[2], kd = 0;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = 2 * lane + e;
        float k = get_row(s.row[ROW_K], i), col_e = get_row(s.col[COL_E], i), col_a = get_row(s.col[COL_A], i);
        v[e] = i < at.n ? (double)(get_row(s.row[ROW_E], i) - col_e) + (double)get_row(s.row[ROW_Q], i) + (double)get_row(s.row[ROW_U], i) -
                              (double)k
                        : 0;
        kd += i < at.n ? (double)k : 0;
        if (i < at.n)
            out.dbeta[(at.row + i) * x.hv + head] = col_a + get_row(s.row[ROW_L], i);
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

/* One warp's share of the chunk's accumulators: 16 rows, a quarter of the columns. */
template <int KD> struct rest_sums {
    float dag[1][2][4], dpg[1][2][4], dq[1][KD / 32][4], dk[1][KD / 32][4], dus[1][KD / 32][4], dsum, uu[2];
};

/* One block of value columns into the sums. */
template <typename T, int KD, int VB, int STAGES>
static __device__ __forceinline__ void rest_values(rest_smem<T, KD, VB, STAGES> &m, rest_stage<T, KD, VB> &s, rest_sums<KD> &r, int row0,
                                                   int quarter)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB), NK = KD / 32, NV = VB / 32;
    const int tid = threadIdx.x, g = (tid & 31) >> 2, ck = quarter * KD / 4, cc = quarter * C / 4, cv = quarter * VB / 4;
    float acc[1][NV][4];
    tile_zero(acc);
    tile_mm<1, NV, false, false>(acc, m.k + row0 * LK, LK, s.s + cv, LV, KD);
    tile_each(acc, [&](int i, int c, float u, float v) {
        const int o = (row0 + i) * LV + cv + c;
        const float2 y = ld2(s.w + o), z = ld2(s.du + o);
        const float f = m.gamma[row0 + i];
        r.uu[i == g ? 0 : 1] += -f * fmaf(z.x, u, z.y * v);
        st2(s.w + o, y.x - f * u, y.y - f * v);
        st2(s.du + o, -f * z.x, -f * z.y);
    });
    for (int i = tid; i < KD * VB / 2; i += REST_THREADS) {
        const int o = i / (VB / 2) * LV + i % (VB / 2) * 2;
        const float2 y = ld2(s.s + o), z = ld2(s.ds + o);
        r.dsum = fmaf(y.x, z.x, fmaf(y.y, z.y, r.dsum));
    }
    __syncthreads();
    tile_zero(acc);
    tile_mm<1, NV, false, false>(acc, m.ag + row0 * LC, LC, s.w + cv, LV, row0 + 16);
    tile_each(acc, [&](int i, int c, float u, float v) { st2(m.vn + (row0 + i) * LV + cv + c, u, v); });
    tile_mm<1, NK, false, true>(r.dq, s.go + row0 * LV, LV, s.s + ck * LV, LV, VB);
    tile_mm<1, NK, false, true>(r.dus, s.du + row0 * LV, LV, s.s + ck * LV, LV, VB);
    if (cc < row0 + 16)
        tile_mm<1, 2, false, true>(r.dag, s.dvn + row0 * LV, LV, s.w + cc * LV, LV, VB);
    __syncthreads();
    if (cc < row0 + 16)
        tile_mm<1, 2, false, true>(r.dpg, s.go + row0 * LV, LV, m.vn + cc * LV, LV, VB);
    tile_mm<1, NK, false, true>(r.dk, m.vn + row0 * LV, LV, s.ds + ck * LV, LV, VB);
}

/* From dA in ag: M into ag, with its part of dbeta. */
template <typename T, int KD, int VB, int STAGES>
static __device__ __forceinline__ void rest_inverse(rest_smem<T, KD, VB, STAGES> &m, int row0, int quarter)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C);
    const int tid = threadIdx.x, g = (tid & 31) >> 2, cc = quarter * C / 4;
    float acc[1][2][4], kk[1][2][4], l[2] = {0, 0};
    T *xa = m.stage[0].s; /* A^T dA, [64][LC] */
    static_assert(C * tile_ld<T>(C) <= 2 * KD * tile_ld<T>(VB), "A^T dA fits where the states were");
    tile_zero(acc), tile_zero(kk);
    tile_mm<1, 2, true, false>(acc, m.a + row0 * LC + row0, LC, m.ag + row0 * LC + cc, LC, C - row0);
    tile_each(acc, [&](int i, int c, float u, float v) { st2(xa + (row0 + i) * LC + cc + c, u, v); });
    tile_mm<1, 2, false, true>(kk, m.k + row0 * LK, LK, m.k + cc * LK, LK, KD);
    __syncthreads();
    tile_zero(acc);
    tile_mm<1, 2, false, true>(acc, xa + row0 * LC, LC, m.a + cc * LC, LC, cc + 16); /* A_jp is 0 for p > j */
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int i = row0 + g + 8 * h, j = cc + 8 * n + 2 * (tid & 3);
            const float d0 = j < i ? -acc[0][n][2 * h] : 0, d1 = j + 1 < i ? -acc[0][n][2 * h + 1] : 0;
            l[h] += fmaf(d0, kk[0][n][2 * h], d1 * kk[0][n][2 * h + 1]);
            st2(m.ag + i * LC + j, m.beta[i] * d0, m.beta[i] * d1);
        }
    put_rows(m.row[ROW_L], l[0], l[1], quarter, row0);
}

/* One chunk of one value head. 16 warps: 4 blocks of 16 tokens x 4 quarters of the columns. */
template <typename T, int KD, int VB, int STAGES>
static __global__ void __launch_bounds__(REST_THREADS, 1)
    gdn_rest_kernel(gdn_in<T> x, gdn_pre<T> pre, const T *d_o, gdn_saved ainv, gdn_saved hs, bwd_out<T> out)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), NK = KD / 32;
    extern __shared__ __align__(16) unsigned char raw[];
    rest_smem<T, KD, VB, STAGES> &m = *(rest_smem<T, KD, VB, STAGES> *)raw;
    const int head = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, row0 = 16 * (warp & 3), quarter = warp >> 2,
              ck = quarter * KD / 4;
    const gdn_chunk_at at = gdn_find(x, seq, blockIdx.x);
    if (!at.n)
        return;
    const int64_t ldk = (int64_t)x.h * x.kdim, from = at.row * ldk + head / (x.hv / x.h) * x.kdim, slot = at.slot * x.hv + head;
    const int64_t chunk = gdn_first_chunk(x.q_off, seq) + blockIdx.x, a0 = (at.row * x.hv + head) * C, lda = (int64_t)x.hv * C;
    tile_load<C, KD, REST_THREADS>(m.k, LK, x.k + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, C, REST_THREADS>(m.ag, LC, pre.ag + slot * C * C, C, C, C, true, tid);
    rest_load(m.stage[0], x, d_o, out, hs, at, chunk, head, 0);
    tile_load<C, KD, REST_THREADS>(m.q, LK, x.q + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, C, REST_THREADS>(m.p, LC, pre.p + slot * C * C, C, C, C, true, tid);
    if (ainv.f32)
        tile_load<C, C, REST_THREADS>(m.a, LC, (const float *)ainv.p + a0, lda, at.n, C, aligned16(ainv.p) && sizeof(T) == 4, tid);
    else
        tile_load<C, C, REST_THREADS>(m.a, LC, (const bf16 *)ainv.p + a0, lda, at.n, C, aligned16(ainv.p) && sizeof(T) == 2, tid);
    cp_commit();
    if (tid < C) {
        m.beta[tid] = tid < at.n ? x.beta[(at.row + tid) * x.hv + head] : 0;
        m.gamma[tid] = pre.gates[slot * 2 * C + tid];
        m.tail[tid] = pre.gates[slot * 2 * C + C + tid];
    }
    if (warp == 15)
        gdn_cumulate(m.hi, m.lo, x.g + at.row * x.hv + head, x.hv, at.n);
    rest_sums<KD> r = {};
#pragma unroll 1
    for (int v0 = 0, turn = 0; v0 < x.vdim; v0 += VB, turn++) {
        if (v0 && STAGES == 1) {
            __syncthreads();
            rest_load(m.stage[0], x, d_o, out, hs, at, chunk, head, v0);
        }
        if (STAGES == 2 && v0 == 0 && VB < x.vdim)
            rest_load(m.stage[STAGES - 1], x, d_o, out, hs, at, chunk, head, VB);
        if (STAGES == 2 && v0 == 0 && VB < x.vdim)
            cp_wait<1>();
        else
            cp_wait<0>();
        __syncthreads();
        if (STAGES == 2 && v0 && v0 + VB < x.vdim)
            rest_load(m.stage[(turn + 1) % STAGES], x, d_o, out, hs, at, chunk, head, v0 + VB);
        rest_values(m, m.stage[turn % STAGES], r, row0, quarter);
    }
    const float dsum = m.gamma[C - 1] * block_sum<REST_THREADS>(r.dsum, m.shared); /* with barriers: the stages are free from here */
    put_rows(m.row[ROW_U], r.uu[0], r.uu[1], quarter, row0);
    tile_each(r.dq, [&](int i, int, float &u, float &v) {
        const float f = x.scale * m.gamma[row0 + i];
        u *= f, v *= f;
    });
    tile_each(r.dk, [&](int i, int, float &u, float &v) {
        const float f = m.tail[row0 + i];
        u *= f, v *= f;
    });
    dot_rows(m.row[ROW_Q], r.dq, m.q + row0 * LK + ck, LK, quarter, row0);
    dot_rows(m.row[ROW_K], r.dk, m.k + row0 * LK + ck, LK, quarter, row0);
#pragma unroll
    for (int n = 0; n < NK; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            r.dk[0][n][e] += r.dus[0][n][e];
    rest_gates(m, x.scale, r.dag, r.dpg, row0, quarter * C / 4);
    __syncthreads();
    rest_inverse(m, row0, quarter);
    tile_mm<1, NK, false, false>(r.dq, m.p + row0 * LC, LC, m.k + ck, LK, row0 + 16);
    tile_mm<1, NK, true, false>(r.dk, m.p + row0 * LC + row0, LC, m.q + row0 * LK + ck, LK, C - row0);
    __syncthreads();
    tile_mm<1, NK, false, false>(r.dk, m.ag + row0 * LC, LC, m.k + ck, LK, row0 + 16);
    tile_mm<1, NK, true, false>(r.dk, m.ag + row0 * LC + row0, LC, m.k + row0 * LK + ck, LK, C - row0);
    if (out.dq_part) {
        const int64_t to = (at.row * x.hv + head) * x.kdim + ck, ld_to = (int64_t)x.hv * x.kdim;
        gdn_rows_out<float, NK>(r.dq, out.dq_part + to, ld_to, row0, at.n, x.kdim - ck, x.veck);
        gdn_rows_out<float, NK>(r.dk, out.dk_part + to, ld_to, row0, at.n, x.kdim - ck, x.veck);
    } else {
        gdn_rows_out<T, NK>(r.dq, out.dq + from + ck, ldk, row0, at.n, x.kdim - ck, x.veck);
        gdn_rows_out<T, NK>(r.dk, out.dk + from + ck, ldk, row0, at.n, x.kdim - ck, x.veck);
    }
    if (warp == 0)
        rest_tokens(m, x, out, at, head, dsum);
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
static void launch_bwd(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, const T *d_o, gdn_saved ainv, gdn_saved hs,
                       const bwd_out<T> &out)
{
    constexpr int VB = 32, VR = sizeof(T) == 2 ? 64 : 32, STAGES = sizeof(T) == 2 ? 3 : 1, HALVES = sizeof(T) == 2 ? 2 : 1;
    cudaStream_t stream = cuda_of(be)->stream;
    size_t rev = sizeof(rev_smem<T, KD, VB, STAGES>), rest = sizeof(rest_smem<T, KD, VR, HALVES>);
    if (!tile_allow_smem(be, gdn_rev_kernel<T, KD, VB, STAGES>, rev) || !tile_allow_smem(be, gdn_rest_kernel<T, KD, VR, HALVES>, rest))
        return;
    gdn_rev_kernel<T, KD, VB, STAGES><<<dim3(CEIL_DIV(x.vdim, VB), x.hv, x.n), 640, rev, stream>>>(x, pre, d_o, out);
    gdn_rest_kernel<T, KD, VR, HALVES><<<dim3(x.longest, x.hv, x.n), REST_THREADS, rest, stream>>>(x, pre, d_o, ainv, hs, out);
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
    bwd_out<T> out = {
        cuda_p<T>(d->dq), cuda_p<T>(d->dk), cuda_p<T>(d->dv), cuda_p<float>(d->dg), cuda_p<float>(d->dbeta), NULL, NULL, NULL, NULL};
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
        gdn_heads_kernel<T><<<dim3((unsigned)CEIL_DIV(n, 256), 2), 256, 0, cuda_of(be)->stream>>>(out.dq, out.dk, out.dq_part, out.dk_part,
                                                                                                  n, x.hv / x.h, x.kdim);
    }
}
void cuda_op_gdn_bwd(struct backend *be, const struct op_gdn_bwd *d)
{
    CUDA_BY_TYPE(be->act, T, gdn_bwd_run<T>(be, d););
}
