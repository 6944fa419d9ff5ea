/* Gated delta rule, forward: see gdn.cuh. A batch of single tokens takes the recurrence itself, on the state in registers. */
#include "kernels/cuda/gdn.cuh"

enum { C = GDN_CHUNK, LF = C + 4 };

/*
 * a = (I + L)^-1 from l = L below the diagonal, both [64][LF] float, 256 threads: the four diagonal blocks of 16 by substitution, one
 * column a thread; then the blocks below, by distance from the diagonal: A_pm = -A_pp sum_{m <= r < p} L_pr A_rm, the sums waiting in the
 * blocks above the diagonal. What remains there is not to be read.
 */
static __device__ __forceinline__ void gdn_invert(float *a, const float *l)
{
    const int tid = threadIdx.x, i = tid >> 4, c = tid & 15;
    if (tid < C) {
        const float *d = l + 16 * i * (LF + 1);
        float y[16];
#pragma unroll
        for (int r = 0; r < 16; r++) {
            y[r] = c == r ? 1.0f : 0.0f;
#pragma unroll
            for (int j = 0; j < r; j++)
                y[r] = fmaf(-d[r * LF + j], y[j], y[r]);
        }
#pragma unroll
        for (int r = 0; r < 16; r++)
            a[(16 * i + r) * LF + 16 * i + c] = y[r];
    }
    __syncthreads();
#pragma unroll
    for (int far = 1; far < 4; far++) {
#pragma unroll
        for (int p = far; p < 4; p++) {
            const int m = p - far;
            float sum = 0;
#pragma unroll
            for (int k = 0; k < 16 * far; k += 4) {
                float y[4];
                ld16(y, l + (16 * p + i) * LF + 16 * m + k);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum = fmaf(y[e], a[(16 * m + k + e) * LF + 16 * m + c], sum);
            }
            a[(16 * m + i) * LF + 16 * p + c] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int p = far; p < 4; p++) {
            const int m = p - far;
            float sum = 0;
#pragma unroll
            for (int k = 0; k < 16; k += 4) {
                float y[4];
                ld16(y, a + (16 * p + i) * LF + 16 * p + k);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum = fmaf(-y[e], a[(16 * m + k + e) * LF + 16 * p + c], sum);
            }
            a[(16 * p + i) * LF + 16 * m + c] = sum;
        }
        __syncthreads();
    }
}

/* A saved row of 64, zeros above the diagonal, from and to a's rows. 256 threads. */
template <typename S> static __device__ __forceinline__ void ainv_load(float *a, const S *from, int64_t ld_from, int n)
{
    constexpr int V = VEC<S>::n;
    if (!aligned16(from)) {
        tile_load_slow(a, LF, from, ld_from, C, C, n, C, threadIdx.x, 256);
        return;
    }
    for (int u = threadIdx.x; u < C * C / V; u += 256) {
        const int i = u / (C / V), c = u % (C / V) * V;
        float x[V] = {0};
        if (i < n)
            ld16(x, from + i * ld_from + c);
#pragma unroll
        for (int e = 0; e < V; e++)
            a[i * LF + c + e] = x[e];
    }
}
template <typename S> static __device__ __forceinline__ void ainv_store(S *to, int64_t ld_to, const float *a, int n)
{
    constexpr int V = VEC<S>::n;
    const bool vec = aligned16(to);
    for (int u = threadIdx.x; u < n * (C / V); u += 256) {
        const int i = u / (C / V), c = u % (C / V) * V;
        float x[V];
#pragma unroll
        for (int e = 0; e < V; e++)
            x[e] = c + e <= i ? a[i * LF + c + e] : 0;
        if (vec)
            st16(to + i * ld_to + c, x);
        else
            for (int e = 0; e < V; e++)
                st(to + i * ld_to + c + e, x[e]);
    }
}

template <typename T, int KD> struct pre_smem {
    T k[C * tile_ld<T>(KD)], q[C * tile_ld<T>(KD)];
    float l[C * LF], a[C * LF];
    float hi[C], lo[C], beta[C];
};

/* One chunk of one value head. 8 warps: 4 blocks of 16 rows x 2 halves of the columns. */
template <typename T, int KD>
static __global__ void __launch_bounds__(256) gdn_pre_kernel(gdn_in<T> x, gdn_pre<T> pre, gdn_saved ainv, bool have)
{
    constexpr int LK = tile_ld<T>(KD);
    extern __shared__ __align__(16) unsigned char raw[];
    pre_smem<T, KD> &s = *(pre_smem<T, KD> *)raw;
    const int head = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, warp = tid >> 5, row0 = 16 * (warp & 3), col0 = 32 * (warp >> 2);
    const gdn_chunk_at at = gdn_find(x, seq, blockIdx.x);
    if (!at.n)
        return;
    const int64_t ldk = (int64_t)x.h * x.kdim, from = at.row * ldk + head / (x.hv / x.h) * x.kdim, a0 = (at.row * x.hv + head) * C,
                  lda = (int64_t)x.hv * C;
    tile_load<C, KD, 256>(s.k, LK, x.k + from, ldk, at.n, x.kdim, x.veck, tid);
    tile_load<C, KD, 256>(s.q, LK, x.q + from, ldk, at.n, x.kdim, x.veck, tid);
    cp_commit();
    if (tid < C)
        s.beta[tid] = tid < at.n ? x.beta[(at.row + tid) * x.hv + head] : 0;
    if (warp == 7)
        gdn_cumulate(s.hi, s.lo, x.g + at.row * x.hv + head, x.hv, at.n);
    if (have && ainv.f32)
        ainv_load(s.a, (const float *)ainv.p + a0, lda, at.n);
    else if (have)
        ainv_load(s.a, (const bf16 *)ainv.p + a0, lda, at.n);
    cp_wait<0>();
    __syncthreads();
    float acc[1][4][4];
    if (!have) {
        tile_zero(acc);
        tile_mm<1, 4, false, true>(acc, s.k + row0 * LK, LK, s.k + col0 * LK, LK, KD);
        tile_each(acc, [&](int r, int c, float u, float v) {
            const int i = row0 + r, j = col0 + c;
            const float b = s.beta[i];
            st2(s.l + i * LF + j, j < i ? b * u : 0.0f, j + 1 < i ? b * v : 0.0f);
        });
        __syncthreads();
        gdn_invert(s.a, s.l);
        if (ainv.p && ainv.f32)
            ainv_store((float *)ainv.p + a0, lda, s.a, at.n);
        else if (ainv.p)
            ainv_store((bf16 *)ainv.p + a0, lda, s.a, at.n);
    }
    tile_zero(acc);
    tile_mm<1, 4, false, true>(acc, s.q + row0 * LK, LK, s.k + col0 * LK, LK, KD);
    const int64_t out = at.slot * x.hv + head;
    T *p = pre.p + out * C * C, *ag = pre.ag + out * C * C;
    tile_each(acc, [&](int r, int c, float u, float v) {
        const int i = row0 + r, j = col0 + c;
        const float g0 = j <= i ? gdn_exp<T>(gdn_since(s.hi, s.lo, i, j)) : 0,
                    g1 = j + 1 <= i ? gdn_exp<T>(gdn_since(s.hi, s.lo, i, j + 1)) : 0;
        st2(p + i * C + j, x.scale * g0 * u, x.scale * g1 * v);
        const float2 a = ld2(s.a + i * LF + j);
        st2(ag + i * C + j, j <= i ? g0 * a.x * s.beta[j] : 0, j + 1 <= i ? g1 * a.y * s.beta[j + 1] : 0);
    });
    float *gates = pre.gates + out * 2 * C;
    if (tid < C) {
        gates[tid] = expf(s.hi[tid]);
        gates[C + tid] = expf(gdn_since(s.hi, s.lo, C - 1, tid));
    }
}

template <typename T, int KD>
static void launch_pre(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, gdn_saved ainv, bool have)
{
    size_t bytes = sizeof(pre_smem<T, KD>);
    if (tile_allow_smem(be, gdn_pre_kernel<T, KD>, bytes))
        gdn_pre_kernel<T, KD><<<dim3(x.longest, x.hv, x.n), 256, bytes, cuda_of(be)->stream>>>(x, pre, ainv, have);
}
template <typename T> void gdn_run_pre(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, gdn_saved ainv, bool have)
{
    if (sizeof(T) == 2 && x.kdim <= 64)
        launch_pre<T, sizeof(T) == 2 ? 64 : 128>(be, x, pre, ainv, have);
    else
        launch_pre<T, 128>(be, x, pre, ainv, have);
}
template void gdn_run_pre<bf16>(struct backend *, const gdn_in<bf16> &, const gdn_pre<bf16> &, gdn_saved, bool);
template void gdn_run_pre<float>(struct backend *, const gdn_in<float> &, const gdn_pre<float> &, gdn_saved, bool);

/* ---- the scan ---- */

template <typename T, int KD, int VB> struct scan_stage {
    T k[C * tile_ld<T>(KD)], q[C * tile_ld<T>(KD)], ag[C * tile_ld<T>(C)], p[C * tile_ld<T>(C)], v[C * tile_ld<T>(VB)];
    float gates[2 * C];
};
template <typename T, int KD, int VB, int STAGES> struct scan_smem {
    scan_stage<T, KD, VB> stage[STAGES];
    T s[KD * tile_ld<T>(VB)], w[C * tile_ld<T>(VB)], vn[C * tile_ld<T>(VB)], vt[C * tile_ld<T>(VB)];
};

/* What 128 loading threads fetch of a chunk, in three parts of about the same size: one for each phase of a step, since all warps meet
 * between phases. */
enum { LOAD_K = 1, LOAD_Q = 2, LOAD_REST = 4, LOAD_ALL = 7 };
template <int PARTS, typename T, int KD, int VB>
static __device__ __forceinline__ void scan_load(scan_stage<T, KD, VB> &s, const gdn_in<T> &x, const gdn_pre<T> &pre, gdn_chunk_at at,
                                                 int head, int v0, bool want_q)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB);
    const int tid = threadIdx.x - 512;
    const int64_t ldk = (int64_t)x.h * x.kdim, from = at.row * ldk + head / (x.hv / x.h) * x.kdim, out = at.slot * x.hv + head;
    if (PARTS & LOAD_K)
        tile_load<C, KD, 128>(s.k, LK, x.k + from, ldk, at.n, x.kdim, x.veck, tid);
    if ((PARTS & LOAD_Q) && want_q)
        tile_load<C, KD, 128>(s.q, LK, x.q + from, ldk, at.n, x.kdim, x.veck, tid);
    if (PARTS & LOAD_REST) {
        tile_load<C, C, 128>(s.ag, LC, pre.ag + out * C * C, C, C, C, true, tid);
        tile_load<C, VB, 128>(s.v, LV, x.v + (at.row * x.hv + head) * x.vdim + v0, (int64_t)x.hv * x.vdim, at.n, x.vdim - v0, x.vecv, tid);
        if (want_q)
            tile_load<C, C, 128>(s.p, LC, pre.p + out * C * C, C, C, C, true, tid);
        if (tid < 2 * C / 4)
            cp_async16(s.gates + 4 * tid, pre.gates + out * 2 * C + 4 * tid, true);
    }
}

/* A share of 16 rows of a state's fragments: element i of [NT][4] at (row, column). */
static __device__ __forceinline__ int frag_row(int i)
{
    return (i & 2) * 4 + ((threadIdx.x & 31) >> 2);
}
static __device__ __forceinline__ int frag_col(int i)
{
    return 8 * (i / 4) + 2 * (threadIdx.x & 3) + (i & 1);
}

/*
 * One block of VB value columns of one head of one sequence. 20 warps: 0 to 7 carry the chain U = K S, V' = Ag (V - gamma U), S = decay S +
 * K^T (tail V'); 8 to 15 follow with the output O = s gamma (Q S) + P V' and save S; 16 to 19 load. Tokens: 4 blocks of 16 rows x 2 halves
 * of the columns; the state: KD / 16 blocks of rows.
 */
template <typename T, int KD, int VB, int STAGES>
static __global__ void __launch_bounds__(640)
    gdn_scan_kernel(gdn_in<T> x, gdn_pre<T> pre, T *o, const float *s_in, float *s_out, gdn_saved hs)
{
    constexpr int LK = tile_ld<T>(KD), LC = tile_ld<T>(C), LV = tile_ld<T>(VB), NT = VB / 16, SN = KD == 128 ? VB / 8 : VB / 16;
    extern __shared__ __align__(16) unsigned char raw[];
    scan_smem<T, KD, VB, STAGES> &m = *(scan_smem<T, KD, VB, STAGES> *)raw;
    const int v0 = blockIdx.x * VB, head = blockIdx.y, seq = blockIdx.z, tid = threadIdx.x, role = tid >> 8, wr = (tid >> 5) & 7,
              row0 = 16 * (wr & 3), cv = (wr >> 2) * (VB / 2);
    const int srow = KD == 128 ? 16 * wr : row0, sc = KD == 128 ? 0 : cv;
    const int first = x.q_off[seq], len = x.q_off[seq + 1] - first, chunks = (len + C - 1) / C, cols = min(VB, x.vdim - v0);
    const int64_t state = ((int64_t)seq * x.hv + head) * x.kdim * x.vdim + v0,
                  hs0 = (hs.p ? gdn_first_chunk(x.q_off, seq) : 0) * x.hv + head, ldv = (int64_t)x.hv * x.vdim;
    const bool vech = x.vecv && aligned16(hs.p);
    float sa[1][SN][4]; /* role 0: rows srow .. of the state, columns sc .. */
    tile_zero(sa);
    if (role == 0) {
#pragma unroll
        for (int i = 0; i < SN * 4; i++) {
            const int r = srow + frag_row(i), c = sc + frag_col(i);
            if (s_in && r < x.kdim && c < cols)
                sa[0][i / 4][i & 3] = s_in[state + (int64_t)r * x.vdim + c];
        }
        tile_each(sa, [&](int r, int c, float u, float v) { st2(m.s + (srow + r) * LV + sc + c, u, v); });
    }
    if (role == 2)
#pragma unroll
        for (int ch = 0; ch < STAGES - (STAGES > 1); ch++) {
            if (ch < chunks)
                scan_load<LOAD_ALL>(m.stage[ch], x, pre, gdn_nth(first, len, seq, ch), head, v0, o != NULL);
            cp_commit();
        }
#pragma unroll 1
    for (int ch = 0; ch < chunks; ch++) {
        const gdn_chunk_at at = gdn_nth(first, len, seq, ch);
        scan_stage<T, KD, VB> &s = m.stage[ch % STAGES];
        const int ahead = ch + STAGES - 1;
        const bool fetch = role == 2 && STAGES > 1 && ahead < chunks;
        float acc[1][NT][4];
        cp_wait<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();
        if (fetch) {
            scan_load<LOAD_K>(m.stage[ahead % STAGES], x, pre, gdn_nth(first, len, seq, ahead), head, v0, o != NULL);
        } else if (role == 0) {
            tile_zero(acc);
            tile_mm<1, NT, false, false>(acc, s.k + row0 * LK, LK, m.s + cv, LV, KD);
            tile_each(acc, [&](int r, int c, float u, float v) {
                const float2 y = ld2(s.v + (row0 + r) * LV + cv + c);
                const float g = s.gates[row0 + r];
                st2(m.w + (row0 + r) * LV + cv + c, y.x - g * u, y.y - g * v);
            });
        } else if (role == 1 && o) {
            tile_zero(acc);
            tile_mm<1, NT, false, false>(acc, s.q + row0 * LK, LK, m.s + cv, LV, KD);
            tile_each(acc, [&](int r, int, float &u, float &v) {
                const float g = x.scale * s.gates[row0 + r];
                u *= g, v *= g;
            });
        }
        __syncthreads();
        if (fetch) {
            scan_load<LOAD_Q>(m.stage[ahead % STAGES], x, pre, gdn_nth(first, len, seq, ahead), head, v0, o != NULL);
        } else if (role == 0) {
            tile_zero(acc);
            tile_mm<1, NT, false, false>(acc, s.ag + row0 * LC, LC, m.w + cv, LV, row0 + 16);
            tile_each(acc, [&](int r, int c, float u, float v) {
                const float t = s.gates[C + row0 + r];
                st2(m.vn + (row0 + r) * LV + cv + c, u, v);
                st2(m.vt + (row0 + r) * LV + cv + c, t * u, t * v);
            });
        } else if (role == 1 && hs.p) {
            const int64_t to = (hs0 + (int64_t)ch * x.hv) * x.kdim * x.vdim + v0;
            if (hs.f32)
                tile_store<VB, 256>((float *)hs.p + to, x.vdim, m.s, LV, x.kdim, cols, vech, tid - 256);
            else
                tile_store<VB, 256>((bf16 *)hs.p + to, x.vdim, m.s, LV, x.kdim, cols, vech, tid - 256);
        }
        __syncthreads();
        if (fetch) {
            scan_load<LOAD_REST>(m.stage[ahead % STAGES], x, pre, gdn_nth(first, len, seq, ahead), head, v0, o != NULL);
        } else if (role == 0) {
            const float decay = s.gates[C - 1]; /* beyond the last token the sums stay */
            tile_each(sa, [&](int, int, float &u, float &v) { u *= decay, v *= decay; });
            tile_mm<1, SN, true, false>(sa, s.k + srow, LK, m.vt + sc, LV, C);
            tile_each(sa, [&](int r, int c, float u, float v) { st2(m.s + (srow + r) * LV + sc + c, u, v); });
        } else if (role == 1 && o) {
            tile_mm<1, NT, false, false>(acc, s.p + row0 * LC, LC, m.vn + cv, LV, row0 + 16);
            gdn_rows_out<T, NT>(acc, o + (at.row * x.hv + head) * x.vdim + v0 + cv, ldv, row0, at.n, cols - cv, x.vecv);
        }
        if (STAGES == 1 && ch + 1 < chunks) {
            __syncthreads();
            if (role == 2)
                scan_load<LOAD_ALL>(m.stage[0], x, pre, gdn_nth(first, len, seq, ch + 1), head, v0, o != NULL);
        }
        cp_commit();
    }
    if (s_out && role == 0)
#pragma unroll
        for (int i = 0; i < SN * 4; i++) {
            const int r = srow + frag_row(i), c = sc + frag_col(i);
            if (r < x.kdim && c < cols)
                s_out[state + (int64_t)r * x.vdim + c] = sa[0][i / 4][i & 3];
        }
}

template <typename T, int KD>
static void launch_scan(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, T *o, const float *s_in, float *s_out, gdn_saved hs)
{
    constexpr int VB = 32, STAGES = sizeof(T) == 2 ? 3 : 1;
    size_t bytes = sizeof(scan_smem<T, KD, VB, STAGES>);
    if (tile_allow_smem(be, gdn_scan_kernel<T, KD, VB, STAGES>, bytes))
        gdn_scan_kernel<T, KD, VB, STAGES>
            <<<dim3(CEIL_DIV(x.vdim, VB), x.hv, x.n), 640, bytes, cuda_of(be)->stream>>>(x, pre, o, s_in, s_out, hs);
}
template <typename T>
void gdn_run_scan(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, T *o, const float *s_in, float *s_out, gdn_saved hs)
{
    if (sizeof(T) == 2 && x.kdim <= 64)
        launch_scan<T, sizeof(T) == 2 ? 64 : 128>(be, x, pre, o, s_in, s_out, hs);
    else
        launch_scan<T, 128>(be, x, pre, o, s_in, s_out, hs);
}
template void gdn_run_scan<bf16>(struct backend *, const gdn_in<bf16> &, const gdn_pre<bf16> &, bf16 *, const float *, float *, gdn_saved);
template void gdn_run_scan<float>(struct backend *, const gdn_in<float> &, const gdn_pre<float> &, float *, const float *, float *,
                                  gdn_saved);

/* ---- one token each ---- */

/*
 * 32 value columns (lanes) of one head of one sequence; warp w holds R rows of the state. u = (alpha S)^T k, S' = alpha S + k delta^T, o =
 * s S'^T q. All loads of a column of the state are in flight at once: the step moves 2 K V floats and little else.
 */
template <typename T, int R>
static __global__ void __launch_bounds__(256)
    gdn_step_kernel(gdn_in<T> x, T *o, const float *s_in, float *s_out, gdn_saved hs, gdn_saved ainv)
{
    __shared__ float part[8][32], qs[8 * R], ks[8 * R];
    const int head = blockIdx.y, seq = blockIdx.z, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, c = blockIdx.x * 32 + lane;
    const int64_t row = x.q_off[seq], at = row * x.hv + head, state = ((int64_t)seq * x.hv + head) * x.kdim * x.vdim + c;
    const int64_t key = (row * x.h + head / (x.hv / x.h)) * x.kdim;
    const bool on = c < x.vdim;
    float s[R], sum = 0;
#pragma unroll
    for (int i = 0; i < R; i++)
        s[i] = s_in && on && R * warp + i < x.kdim ? s_in[state + (int64_t)(R * warp + i) * x.vdim] : 0;
    for (int i = threadIdx.x; i < 8 * R; i += 256) {
        qs[i] = i < x.kdim ? ld(x.q + key + i) : 0;
        ks[i] = i < x.kdim ? ld(x.k + key + i) : 0;
    }
    const float alpha = expf(x.g[at]), beta = x.beta[at], v = on ? ld(x.v + at * x.vdim + c) : 0;
    __syncthreads();
    if (hs.p && on)
#pragma unroll
        for (int i = 0; i < R; i++)
            if (R * warp + i < x.kdim) {
                int64_t to = state + (int64_t)(R * warp + i) * x.vdim; /* one chunk each */
                if (hs.f32)
                    ((float *)hs.p)[to] = s[i];
                else
                    st((bf16 *)hs.p + to, s[i]);
            }
    if (ainv.p && blockIdx.x == 0 && threadIdx.x < C) {
        float y = threadIdx.x == 0 ? 1.0f : 0.0f;
        if (ainv.f32)
            ((float *)ainv.p)[at * C + threadIdx.x] = y;
        else
            st((bf16 *)ainv.p + at * C + threadIdx.x, y);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        s[i] *= alpha;
        sum = fmaf(s[i], ks[R * warp + i], sum);
    }
    part[warp][lane] = sum;
    __syncthreads();
    float u = 0;
#pragma unroll
    for (int w = 0; w < 8; w++)
        u += part[w][lane];
    const float delta = beta * (v - u);
    sum = 0;
#pragma unroll
    for (int i = 0; i < R; i++) {
        s[i] = fmaf(ks[R * warp + i], delta, s[i]);
        sum = fmaf(s[i], qs[R * warp + i], sum);
        if (s_out && on && R * warp + i < x.kdim)
            s_out[state + (int64_t)(R * warp + i) * x.vdim] = s[i];
    }
    __syncthreads();
    part[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && on) {
        sum = 0;
#pragma unroll
        for (int w = 0; w < 8; w++)
            sum += part[w][lane];
        st(o + at * x.vdim + c, x.scale * sum);
    }
}

template <typename T> static void gdn_run(struct backend *be, const struct op_gdn *d)
{
    gdn_in<T> x;
    gdn_pre<T> pre;
    bool single = true;
    if (!gdn_in_of(be, &x, d, "gdn"))
        return;
    for (int32_t i = 0; i < d->seqs->n; i++)
        single = single && seqs_qlen(d->seqs, i) == 1;
    const float *s_in = cuda_p<float>(d->s_in);
    float *s_out = cuda_p<float>(d->s_out);
    T *o = cuda_p<T>(d->o);
    gdn_saved hs = gdn_saved_of(d->hs), ainv = gdn_saved_of(d->ainv);
    cudaStream_t stream = cuda_of(be)->stream;
    if (!x.n || !x.hv || !x.vdim)
        return;
    if (single) {
        dim3 grid(CEIL_DIV(x.vdim, 32), x.hv, x.n);
        if (x.kdim <= 64)
            gdn_step_kernel<T, 8><<<grid, 256, 0, stream>>>(x, o, s_in, s_out, hs, ainv);
        else
            gdn_step_kernel<T, 16><<<grid, 256, 0, stream>>>(x, o, s_in, s_out, hs, ainv);
        return;
    }
    x.vecv = x.vecv && aligned16(d->o.p);
    if (!gdn_pre_of(be, &pre, x))
        return;
    if (x.longest)
        gdn_run_pre(be, x, pre, ainv, false);
    gdn_run_scan(be, x, pre, o, s_in, s_out, hs); /* also with empty sequences: their states pass through */
}
void cuda_op_gdn(struct backend *be, const struct op_gdn *d)
{
    CUDA_BY_TYPE(be->act, T, gdn_run<T>(be, d););
}
