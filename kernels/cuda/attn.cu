/*
 * Attention for any type and head dims: one warp per query and head (forward, dq) or per key and kv head (dk, dv), 32 keys or queries at a
 * time, one a lane. These are the float kernels and the fallback of the bf16 ones (attn_mma.cu, attn_mma_bwd.cu). The backward recomputes
 * probabilities from lse:
 *
 *     delta_b = d_o . o_b,  P_b = exp(scale q.k - lse_b),  dS = scale sum_b p_b P_b (d_o.v - delta_b),  dv += sum_b p_b P_b d_o,  dq += dS
 * k,  dk += dS q
 */
#include "kernels/cuda/attn.cuh"

enum { WARPS = 4, COLS = ATTN_MAX_DIM / 32 };

template <typename T> static __device__ __forceinline__ float row_dot(const float *a, const T *b, int n)
{
    float sum = 0;
#pragma unroll 4
    for (int i = 0; i < n; i++)
        sum = fmaf(a[i], ld(b + i), sum);
    return sum;
}

template <typename T> static __global__ void __launch_bounds__(32 * WARPS) attn_plain_kernel(attn_in<T> x, attn_out<T> out)
{
    __shared__ float qs[WARPS][ATTN_MAX_DIM];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, i = blockIdx.x * WARPS + warp, head = blockIdx.y, kvh = head / x.rep;
    const attn_seq s = attn_find(x, blockIdx.z);
    if (i >= s.nq)
        return;
    const int64_t row = s.row + i;
    const int t = s.nk - s.nq + i;
    for (int c = lane; c < x.kdim; c += 32)
        qs[warp][c] = ld(x.q + row * x.ldq + head * x.kdim + c);
    __syncwarp();
    for (int b = 0; b < x.branches; b++) {
        float max = -INFINITY, sum = 0, acc[COLS] = {0};
        for (int j0 = x.window[b] > t ? 0 : t - x.window[b] + 1; j0 <= t; j0 += 32) {
            const int j = j0 + lane;
            const float p = j <= t ? x.scale * row_dot(qs[warp], x.k + attn_kv_row(x, s, j) * x.ldk + kvh * x.kdim, x.kdim) : -INFINITY;
            const float m = fmaxf(max, warp_max(p)), f = expf(max - m), e = expf(p - m);
            sum = fmaf(sum, f, warp_sum(e));
            max = m;
#pragma unroll
            for (int c = 0; c < COLS; c++)
                acc[c] *= f;
            for (int l = 0; l < 32 && j0 + l <= t; l++) {
                const float w = __shfl_sync(0xffffffffu, e, l);
                const T *v = x.v + attn_kv_row(x, s, j0 + l) * x.ldv + kvh * x.vdim;
#pragma unroll
                for (int c = 0; c < COLS; c++)
                    if (32 * c + lane < x.vdim)
                        acc[c] = fmaf(w, ld(v + 32 * c + lane), acc[c]);
            }
        }
#pragma unroll
        for (int c = 0; c < COLS; c++)
            if (32 * c + lane < x.vdim)
                st(out.o[b] + (row * x.h + head) * x.vdim + 32 * c + lane, acc[c] / sum);
        if (lane == 0 && out.lse[b])
            out.lse[b][row * x.h + head] = max + logf(sum);
    }
}

/* ---- backward ---- */

template <typename T> static __global__ void __launch_bounds__(256) attn_delta_kernel(attn_in<T> x, attn_grad<T> d)
{
    const int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) >> 5;
    const int lane = threadIdx.x & 31, b = blockIdx.y;
    if (at >= x.rows * x.h)
        return;
    const T *o = (b ? d.o[1] : d.o[0]) + at * x.vdim, *g = d.d_o + at * x.vdim; /* an index would put the arguments into local memory */
    float sum = 0;
    if (sizeof(T) == 2 && x.vdim % 4 == 0 && ((uintptr_t)o & 7) == 0 && ((uintptr_t)g & 7) == 0) {
        for (int c = 4 * lane; c < x.vdim; c += 128) {
            uint2 u = *(const uint2 *)(o + c), v = *(const uint2 *)(g + c);
            sum = fmaf(bf16_lo(u.x), bf16_lo(v.x),
                       fmaf(bf16_hi(u.x), bf16_hi(v.x), fmaf(bf16_lo(u.y), bf16_lo(v.y), fmaf(bf16_hi(u.y), bf16_hi(v.y), sum))));
        }
    } else {
        for (int c = lane; c < x.vdim; c += 32)
            sum = fmaf(ld(o + c), ld(g + c), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0)
        (b ? d.delta[1] : d.delta[0])[at] = sum;
}

/* dp[b] += sum of delta, in an order that depends on n only. */
static __global__ void __launch_bounds__(1024) attn_dp_kernel(float *dp, const float *first, const float *second, int64_t n)
{
    __shared__ double part[32];
    const float *delta = blockIdx.x ? second : first;
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += 1024)
        sum += (double)delta[i];
    sum = block_sum<1024>(sum, part);
    if (threadIdx.x == 0)
        dp[blockIdx.x] += (float)sum;
}

/* Coefficients of one query and key that is `back` keys before it: pm = sum_b p_b P_b, ds without the factor scale. */
template <typename T>
static __device__ __forceinline__ void attn_weights(const attn_in<T> &x, const attn_grad<T> &d, int64_t at, int back, float s, float gv,
                                                    float *pm, float *ds)
{
    *pm = *ds = 0;
#pragma unroll
    for (int b = 0; b < 2; b++)
        if (b < x.branches && back < x.window[b]) {
            float p = d.p[b] * expf(s - d.lse[b][at]);
            *pm += p;
            *ds = fmaf(p, gv - d.delta[b][at], *ds);
        }
}

template <typename T> static __global__ void __launch_bounds__(32 * WARPS) attn_plain_dq_kernel(attn_in<T> x, attn_grad<T> d)
{
    __shared__ float qs[WARPS][ATTN_MAX_DIM], gs[WARPS][ATTN_MAX_DIM];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, t = blockIdx.x * WARPS + warp, head = blockIdx.y, kvh = head / x.rep;
    const attn_seq s = attn_find(x, blockIdx.z);
    if (t >= s.nq)
        return;
    const int64_t row = s.row + t, at = row * x.h + head;
    for (int c = lane; c < x.kdim; c += 32)
        qs[warp][c] = ld(x.q + row * x.ldq + head * x.kdim + c);
    for (int c = lane; c < x.vdim; c += 32)
        gs[warp][c] = ld(d.d_o + at * x.vdim + c);
    __syncwarp();
    float acc[COLS] = {0};
    for (int j0 = x.window[0] > t ? 0 : t - x.window[0] + 1; j0 <= t; j0 += 32) {
        float pm = 0, ds = 0;
        const int j = j0 + lane;
        if (j <= t) {
            float y = x.scale * row_dot(qs[warp], x.k + (s.row + j) * x.ldk + kvh * x.kdim, x.kdim);
            attn_weights(x, d, at, t - j, y, row_dot(gs[warp], x.v + (s.row + j) * x.ldv + kvh * x.vdim, x.vdim), &pm, &ds);
        }
        for (int l = 0; l < 32 && j0 + l <= t; l++) {
            const float w = __shfl_sync(0xffffffffu, ds, l);
            const T *k = x.k + (s.row + j0 + l) * x.ldk + kvh * x.kdim;
#pragma unroll
            for (int c = 0; c < COLS; c++)
                if (32 * c + lane < x.kdim)
                    acc[c] = fmaf(w, ld(k + 32 * c + lane), acc[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < COLS; c++)
        if (32 * c + lane < x.kdim)
            st(d.dq + row * x.ldq + head * x.kdim + 32 * c + lane, x.scale * acc[c]);
}

template <typename T> static __global__ void __launch_bounds__(32 * WARPS) attn_plain_dkv_kernel(attn_in<T> x, attn_grad<T> d)
{
    __shared__ float ks[WARPS][ATTN_MAX_DIM], vs[WARPS][ATTN_MAX_DIM];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, j = blockIdx.x * WARPS + warp, kvh = blockIdx.y;
    const attn_seq s = attn_find(x, blockIdx.z);
    if (j >= s.nq)
        return;
    const int64_t row = s.row + j;
    for (int c = lane; c < x.kdim; c += 32)
        ks[warp][c] = ld(x.k + row * x.ldk + kvh * x.kdim + c);
    for (int c = lane; c < x.vdim; c += 32)
        vs[warp][c] = ld(x.v + row * x.ldv + kvh * x.vdim + c);
    __syncwarp();
    const int end = x.window[0] < s.nq - j ? j + x.window[0] : s.nq; /* queries that see this key */
    float dk[COLS] = {0}, dv[COLS] = {0};
    for (int head = kvh * x.rep; head < (kvh + 1) * x.rep; head++)
        for (int i0 = j; i0 < end; i0 += 32) {
            float pm = 0, ds = 0;
            const int64_t at = (int64_t)(s.row + i0 + lane) * x.h + head;
            if (i0 + lane < end) {
                float y = x.scale * row_dot(ks[warp], x.q + (int64_t)(s.row + i0 + lane) * x.ldq + head * x.kdim, x.kdim);
                attn_weights(x, d, at, i0 + lane - j, y, row_dot(vs[warp], d.d_o + at * x.vdim, x.vdim), &pm, &ds);
            }
            for (int l = 0; l < 32 && i0 + l < end; l++) {
                const float wp = __shfl_sync(0xffffffffu, pm, l), ws = __shfl_sync(0xffffffffu, ds, l);
                const T *q = x.q + (int64_t)(s.row + i0 + l) * x.ldq + head * x.kdim,
                        *g = d.d_o + ((int64_t)(s.row + i0 + l) * x.h + head) * x.vdim;
#pragma unroll
                for (int c = 0; c < COLS; c++) {
                    if (32 * c + lane < x.kdim)
                        dk[c] = fmaf(ws, ld(q + 32 * c + lane), dk[c]);
                    if (32 * c + lane < x.vdim)
                        dv[c] = fmaf(wp, ld(g + 32 * c + lane), dv[c]);
                }
            }
        }
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        if (32 * c + lane < x.kdim)
            st(d.dk + row * x.ldk + kvh * x.kdim + 32 * c + lane, x.scale * dk[c]);
        if (32 * c + lane < x.vdim)
            st(d.dv + row * x.ldv + kvh * x.vdim + 32 * c + lane, dv[c]);
    }
}

/* ---- the ops ---- */

static bool tensor_cores(struct backend *be, const attn_in<float> &, const attn_out<float> &, const struct seqs *)
{
    UNUSED(be);
    return false;
}
static bool tensor_cores(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s)
{
    return attn_mma(be, x, out, s);
}
static bool tensor_cores_bwd(struct backend *be, const attn_in<float> &, const attn_grad<float> &)
{
    UNUSED(be);
    return false;
}
static bool tensor_cores_bwd(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d)
{
    return attn_mma_bwd(be, x, d);
}

template <typename T> static void attn_run(struct backend *be, const struct op_attn *d)
{
    attn_in<T> x;
    bool swap;
    if (!attn_in_of(be, &x, d, &d->o2, "attn", &swap) || !x.longest)
        return;
    x.ring = d->ring;
    attn_out<T> out = {};
    out.o[swap] = cuda_p<T>(d->o), out.lse[swap] = cuda_p<float>(d->lse);
    out.o[!swap] = cuda_p<T>(d->o2), out.lse[!swap] = cuda_p<float>(d->lse2);
    if (tensor_cores(be, x, out, d->seqs))
        return;
    attn_plain_kernel<T><<<dim3(CEIL_DIV(x.longest, WARPS), x.h, x.n), 32 * WARPS, 0, cuda_of(be)->stream>>>(x, out);
}
void cuda_op_attn(struct backend *be, const struct op_attn *d)
{
    CUDA_BY_TYPE(be->act, T, attn_run<T>(be, d););
}

template <typename T> static void attn_bwd_run(struct backend *be, const struct op_attn_bwd *d)
{
    attn_in<T> x;
    bool swap;
    cudaStream_t stream = cuda_of(be)->stream;
    if (!attn_in_of(be, &x, d, &d->o2, "attn_bwd", &swap) || !x.longest)
        return;
    attn_grad<T> g = {};
    g.dq = cuda_p<T>(d->dq), g.dk = cuda_p<T>(d->dk), g.dv = cuda_p<T>(d->dv), g.d_o = cuda_p<T>(d->d_o);
    g.o[swap] = cuda_p<T>(d->o), g.lse[swap] = cuda_p<float>(d->lse), g.p[swap] = (float)d->p1;
    g.o[!swap] = cuda_p<T>(d->o2), g.lse[!swap] = cuda_p<float>(d->lse2), g.p[!swap] = (float)d->p2;
    int64_t n = x.rows * x.h;
    for (int b = 0; b < x.branches; b++) {
        g.delta[b] = cuda_ws_of<float>(be, n);
        if (!g.delta[b])
            return;
    }
    attn_delta_kernel<T><<<dim3((unsigned)CEIL_DIV(n, 8), x.branches), 256, 0, stream>>>(x, g);
    if (d->dp.p)
        attn_dp_kernel<<<x.branches, 1024, 0, stream>>>(cuda_p<float>(d->dp), g.delta[swap], g.delta[!swap], n);
    if (tensor_cores_bwd(be, x, g))
        return;
    attn_plain_dq_kernel<T><<<dim3(CEIL_DIV(x.longest, WARPS), x.h, x.n), 32 * WARPS, 0, stream>>>(x, g);
    attn_plain_dkv_kernel<T><<<dim3(CEIL_DIV(x.longest, WARPS), x.g, x.n), 32 * WARPS, 0, stream>>>(x, g);
}
void cuda_op_attn_bwd(struct backend *be, const struct op_attn_bwd *d)
{
    CUDA_BY_TYPE(be->act, T, attn_bwd_run<T>(be, d););
}
