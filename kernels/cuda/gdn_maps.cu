/* The maps around the gated delta rule: SiLU and norm of q and k, gates, and the output norm. One warp a head of a row. */
#include "kernels/cuda/silu.cuh"

#include <initializer_list>

/* V neighbours: 1, or as many as 16 or 8 bytes hold. */
static __device__ __forceinline__ void ldv(float (&x)[4], const bf16 *p)
{
    const uint2 u = *(const uint2 *)p;
    x[0] = bf16_lo(u.x), x[1] = bf16_hi(u.x), x[2] = bf16_lo(u.y), x[3] = bf16_hi(u.y);
}
static __device__ __forceinline__ void stv(bf16 *p, const float (&x)[4])
{
    *(uint2 *)p = make_uint2(bf16_pack(x[0], x[1]), bf16_pack(x[2], x[3]));
}
static __device__ __forceinline__ void ldv(float (&x)[4], const float *p)
{
    ld16(x, p);
}
static __device__ __forceinline__ void stv(float *p, const float (&x)[4])
{
    st16(p, x);
}
template <typename T> static __device__ __forceinline__ void ldv(float (&x)[1], const T *p)
{
    x[0] = ld(p);
}
template <typename T> static __device__ __forceinline__ void stv(T *p, const float (&x)[1])
{
    st(p, x[0]);
}
/* A head's row is walked by a warp in steps of 32 V. With V = 4 rows have at most 128 columns, and stay in registers: one step. */
enum { COLS_4 = 128 };
static bool by_four(int64_t n, std::initializer_list<const void *> p)
{
    for (const void *q : p)
        if (((uintptr_t)q & 15) != 0)
            return false;
    return n % 4 == 0 && n <= COLS_4;
}
#define BY_FOUR(on, V, ...)                                                                                                                \
    do {                                                                                                                                   \
        if (on) {                                                                                                                          \
            constexpr int V = 4;                                                                                                           \
            __VA_ARGS__                                                                                                                    \
        } else {                                                                                                                           \
            constexpr int V = 1;                                                                                                           \
            __VA_ARGS__                                                                                                                    \
        }                                                                                                                                  \
    } while (0)

/* ---- before ---- */

struct prep_in {
    int h, hv, kdim, vdim;
    int64_t rows;
    bool silu, neg;
};

/* y = x / sqrt(sum x^2 + 1e-6), after SiLU; heads 0 .. rows h - 1 are q's, the others k's. */
template <typename T, int V>
static __global__ void __launch_bounds__(256) prep_qk_kernel(prep_in p, T *q, T *k, float *rq, float *rk, const T *q_lin, const T *k_lin)
{
    int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) >> 5, heads = p.rows * p.h;
    const int lane = threadIdx.x & 31;
    if (at >= 2 * heads)
        return;
    const bool second = at >= heads;
    at -= second ? heads : 0;
    const T *x = (second ? k_lin : q_lin) + at * p.kdim;
    T *y = (second ? k : q) + at * p.kdim;
    float *r = second ? rk : rq, sum = 0, v[V] = {0};
    for (int c = V * lane; c < p.kdim; c += 32 * V) {
        ldv(v, x + c);
#pragma unroll
        for (int e = 0; e < V; e++) {
            v[e] = p.silu ? silu_t<T>(v[e]) : v[e];
            sum = fmaf(v[e], v[e], sum);
        }
    }
    sum = 1.0f / sqrtf(warp_sum(sum) + 1e-6f);
    for (int c = V * lane; c < p.kdim; c += 32 * V) {
        if (V == 1) {
            ldv(v, x + c);
            v[0] = p.silu ? silu_t<T>(v[0]) : v[0];
        }
#pragma unroll
        for (int e = 0; e < V; e++)
            v[e] *= sum;
        stv(y + c, v);
    }
    if (r && lane == 0)
        r[at] = sum;
}

template <typename T, int V> static __global__ void __launch_bounds__(256) prep_v_kernel(T *y, const T *x, int64_t n, bool silu)
{
    for (int64_t i = V * ((int64_t)blockIdx.x * 256 + threadIdx.x); i < n; i += V * (int64_t)gridDim.x * 256) {
        float v[V];
        ldv(v, x + i);
#pragma unroll
        for (int e = 0; e < V; e++)
            v[e] = silu ? silu_t<T>(v[e]) : v[e];
        stv(y + i, v);
    }
}

static __device__ __forceinline__ float softplus_f(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

template <typename A, typename B>
static __global__ void __launch_bounds__(256)
    prep_gates_kernel(prep_in p, float *g, float *beta, const A *a_lin, const B *b_lin, const float *a_log, const float *dt_bias)
{
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.rows * p.hv)
        return;
    const int h = (int)(i % p.hv);
    beta[i] = sigmoid_f(ld(b_lin + i)) * (p.neg ? 2.0f : 1.0f);
    g[i] = -expf(a_log[h]) * softplus_f(ld(a_lin + i) + dt_bias[h]);
}

static unsigned blocks_of(int64_t items, int64_t each)
{
    return (unsigned)MAX(CEIL_DIV(items, each), (int64_t)1);
}

template <typename T> static void gdn_prep_run(struct backend *be, const struct op_gdn_prep *d)
{
    prep_in p = {(int)d->h, (int)d->hv, (int)d->kdim, (int)d->vdim, d->rows, d->silu, d->neg_eigval};
    cudaStream_t s = cuda_of(be)->stream;
    int64_t nv = d->rows * d->hv * d->vdim, ng = d->rows * d->hv;
    BY_FOUR(by_four(d->kdim, {d->q.p, d->k.p, d->q_lin.p, d->k_lin.p}), V,
            prep_qk_kernel<T, V>
            <<<blocks_of(2 * d->rows * d->h, 8), 256, 0, s>>>(p, cuda_p<T>(d->q), cuda_p<T>(d->k), cuda_p<float>(d->rq),
                                                              cuda_p<float>(d->rk), cuda_p<T>(d->q_lin), cuda_p<T>(d->k_lin)););
    BY_FOUR(nv % 4 == 0 && by_four(4, {d->v.p, d->v_lin.p}), V,
            prep_v_kernel<T, V><<<blocks_of(nv, 1024 * V), 256, 0, s>>>(cuda_p<T>(d->v), cuda_p<T>(d->v_lin), nv, d->silu););
    CUDA_BY_TYPE(d->a_lin.dt, A,
                 CUDA_BY_TYPE(d->b_lin.dt, B,
                              prep_gates_kernel<A, B><<<blocks_of(ng, 256), 256, 0, s>>>(
                                  p, cuda_p<float>(d->g), cuda_p<float>(d->beta), cuda_p<A>(d->a_lin), cuda_p<B>(d->b_lin),
                                  cuda_p<float>(d->a_log), cuda_p<float>(d->dt_bias));););
}
void cuda_op_gdn_prep(struct backend *be, const struct op_gdn_prep *d)
{
    if (d->rows)
        CUDA_BY_TYPE(be->act, T, gdn_prep_run<T>(be, d););
}

/* y = r f(x): dx = r (dy - (dy.y) y) f'(x). */
template <typename T, int V>
static __global__ void __launch_bounds__(256) prep_qk_bwd_kernel(prep_in p, T *dq, T *dk, const T *gq, const T *gk, const T *q, const T *k,
                                                                 const float *rq, const float *rk, const T *q_lin, const T *k_lin)
{
    int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) >> 5, heads = p.rows * p.h;
    const int lane = threadIdx.x & 31;
    if (at >= 2 * heads)
        return;
    const bool second = at >= heads;
    at -= second ? heads : 0;
    const float r = (second ? rk : rq)[at];
    const T *dy = (second ? gk : gq) + at * p.kdim, *y = (second ? k : q) + at * p.kdim, *x = (second ? k_lin : q_lin) + at * p.kdim;
    T *dx = (second ? dk : dq) + at * p.kdim;
    float dot = 0, u[V] = {0}, v[V] = {0}, z[V];
    for (int c = V * lane; c < p.kdim; c += 32 * V) {
        ldv(u, dy + c), ldv(v, y + c);
#pragma unroll
        for (int e = 0; e < V; e++)
            dot = fmaf(u[e], v[e], dot);
    }
    dot = warp_sum(dot);
    for (int c = V * lane; c < p.kdim; c += 32 * V) {
        if (V == 1)
            ldv(u, dy + c), ldv(v, y + c);
        ldv(z, x + c);
#pragma unroll
        for (int e = 0; e < V; e++)
            u[e] = r * (u[e] - dot * v[e]) * (p.silu ? silu_dt<T>(z[e]) : 1.0f);
        stv(dx + c, u);
    }
}
template <typename T, int V>
static __global__ void __launch_bounds__(256) prep_v_bwd_kernel(T *dx, const T *dy, const T *x, int64_t n, bool silu)
{
    for (int64_t i = V * ((int64_t)blockIdx.x * 256 + threadIdx.x); i < n; i += V * (int64_t)gridDim.x * 256) {
        float u[V], z[V];
        ldv(u, dy + i), ldv(z, x + i);
#pragma unroll
        for (int e = 0; e < V; e++)
            u[e] *= silu ? silu_dt<T>(z[e]) : 1.0f;
        stv(dx + i, u);
    }
}

enum { GATE_ROWS = 128 };
struct gates_bwd {
    void *da, *db;
    const void *a;
    bool da32, db32, a32;
    float *part; /* [blocks][2][hv]: of da_log, ddt_bias; NULL = not wanted */
    const float *dg, *dbeta, *g, *beta, *a_log, *dt_bias;
};
/* A block: 32 heads x 8 strands of GATE_ROWS rows. */
static __global__ void __launch_bounds__(256) prep_gates_bwd_kernel(prep_in p, gates_bwd d)
{
    __shared__ float sums[2][8][32];
    const int lane = threadIdx.x & 31, strand = threadIdx.x >> 5, h = blockIdx.y * 32 + lane;
    const int64_t row0 = (int64_t)blockIdx.x * GATE_ROWS, end = min(row0 + GATE_ROWS, p.rows);
    float s_log = 0, s_bias = 0;
    if (h < p.hv) {
        const float scale = -expf(d.a_log[h]), bias = d.dt_bias[h];
        for (int64_t r = row0 + strand; r < end; r += 8) {
            const int64_t i = r * p.hv + h;
            const float b = d.beta[i], z = (d.a32 ? ((const float *)d.a)[i] : ld((const bf16 *)d.a + i)) + bias, dg = d.dg[i];
            const float db = d.dbeta[i] * b * (p.neg ? 1.0f - b / 2.0f : 1.0f - b), da = scale * (z > 20.0f ? 1.0f : sigmoid_f(z)) * dg;
            if (d.db32)
                ((float *)d.db)[i] = db;
            else
                st((bf16 *)d.db + i, db);
            if (d.da32)
                ((float *)d.da)[i] = da;
            else
                st((bf16 *)d.da + i, da);
            s_log = fmaf(dg, d.g[i], s_log);
            s_bias += da;
        }
    }
    sums[0][strand][lane] = s_log;
    sums[1][strand][lane] = s_bias;
    __syncthreads();
    if (strand < 2 && h < p.hv && d.part) {
        float s = 0;
        for (int i = 0; i < 8; i++)
            s += sums[strand][i][lane];
        d.part[((int64_t)blockIdx.x * 2 + strand) * p.hv + h] = s;
    }
}

/* to[c] += sum over b of part[b * ld + c], in 8 strands. */
template <typename W>
static __global__ void __launch_bounds__(256) part_sum_kernel(W *to, const float *part, int64_t ld_part, int blocks, int n)
{
    __shared__ float sums[8][32];
    const int lane = threadIdx.x & 31, strand = threadIdx.x >> 5, c = blockIdx.x * 32 + lane;
    float s = 0;
    if (c < n)
#pragma unroll 4
        for (int b = strand; b < blocks; b += 8)
            s += part[b * ld_part + c];
    sums[strand][lane] = s;
    __syncthreads();
    if (strand || c >= n)
        return;
    for (int i = 1; i < 8; i++)
        s += sums[i][lane];
    st(to + c, ld(to + c) + s);
}

template <typename T> static void gdn_prep_bwd_run(struct backend *be, const struct op_gdn_prep_bwd *d)
{
    prep_in p = {(int)d->h, (int)d->hv, (int)d->kdim, (int)d->vdim, d->rows, d->silu, d->neg_eigval};
    cudaStream_t s = cuda_of(be)->stream;
    int64_t nv = d->rows * d->hv * d->vdim;
    int blocks = (int)CEIL_DIV(d->rows, (int64_t)GATE_ROWS);
    gates_bwd g = {d->da_lin.p,
                   d->db_lin.p,
                   d->a_lin.p,
                   d->da_lin.dt == DT_F32,
                   d->db_lin.dt == DT_F32,
                   d->a_lin.dt == DT_F32,
                   NULL,
                   cuda_p<float>(d->dg),
                   cuda_p<float>(d->dbeta),
                   cuda_p<float>(d->g),
                   cuda_p<float>(d->beta),
                   cuda_p<float>(d->a_log),
                   cuda_p<float>(d->dt_bias)};
    if (d->da_log.p || d->ddt_bias.p) {
        g.part = cuda_ws_of<float>(be, (int64_t)blocks * 2 * d->hv);
        if (!g.part)
            return;
    }
    BY_FOUR(by_four(d->kdim, {d->dq_lin.p, d->dk_lin.p, d->dq.p, d->dk.p, d->q.p, d->k.p, d->q_lin.p, d->k_lin.p}), V,
            prep_qk_bwd_kernel<T, V><<<blocks_of(2 * d->rows * d->h, 8), 256, 0, s>>>(
                p, cuda_p<T>(d->dq_lin), cuda_p<T>(d->dk_lin), cuda_p<T>(d->dq), cuda_p<T>(d->dk), cuda_p<T>(d->q), cuda_p<T>(d->k),
                cuda_p<float>(d->rq), cuda_p<float>(d->rk), cuda_p<T>(d->q_lin), cuda_p<T>(d->k_lin)););
    BY_FOUR(nv % 4 == 0 && by_four(4, {d->dv_lin.p, d->dv.p, d->v_lin.p}), V,
            prep_v_bwd_kernel<T, V>
            <<<blocks_of(nv, 1024 * V), 256, 0, s>>>(cuda_p<T>(d->dv_lin), cuda_p<T>(d->dv), cuda_p<T>(d->v_lin), nv, d->silu););
    prep_gates_bwd_kernel<<<dim3(blocks, (unsigned)CEIL_DIV(d->hv, 32)), 256, 0, s>>>(p, g);
    if (d->da_log.p)
        part_sum_kernel<<<(unsigned)CEIL_DIV(d->hv, 32), 256, 0, s>>>(cuda_p<float>(d->da_log), g.part, 2 * d->hv, blocks, p.hv);
    if (d->ddt_bias.p)
        part_sum_kernel<<<(unsigned)CEIL_DIV(d->hv, 32), 256, 0, s>>>(cuda_p<float>(d->ddt_bias), g.part + d->hv, 2 * d->hv, blocks, p.hv);
}
void cuda_op_gdn_prep_bwd(struct backend *be, const struct op_gdn_prep_bwd *d)
{
    if (d->rows)
        CUDA_BY_TYPE(be->act, T, gdn_prep_bwd_run<T>(be, d););
}

/* ---- after ---- */

/* y = o rstd w silu(gate); y may be o: each lane reads its columns before it writes them. */
template <typename T, int V>
static __global__ void __launch_bounds__(256)
    out_kernel(T *y, float *rstd, const T *o, const T *w, const T *gate, int64_t heads, int n, float eps)
{
    const int64_t at = ((int64_t)blockIdx.x * 256 + threadIdx.x) >> 5;
    const int lane = threadIdx.x & 31;
    if (at >= heads)
        return;
    float sum = 0, x[V] = {0}, u[V], z[V];
    for (int c = V * lane; c < n; c += 32 * V) {
        ldv(x, o + at * n + c);
#pragma unroll
        for (int e = 0; e < V; e++)
            sum = fmaf(x[e], x[e], sum);
    }
    const float r = 1.0f / sqrtf(warp_sum(sum) / (float)n + eps);
    for (int c = V * lane; c < n; c += 32 * V) {
        if (V == 1)
            ldv(x, o + at * n + c);
        ldv(u, w + c);
        if (gate)
            ldv(z, gate + at * n + c);
#pragma unroll
        for (int e = 0; e < V; e++)
            x[e] *= r * u[e] * (gate ? silu_t<T>(z[e]) : 1.0f);
        stv(y + at * n + c, x);
    }
    if (rstd && lane == 0)
        rstd[at] = r;
}

template <typename T> static void gdn_out_run(struct backend *be, const struct op_gdn_out *d)
{
    int64_t heads = d->rows * d->hv;
    BY_FOUR(by_four(d->vdim, {d->y.p, d->o.p, d->w.p, d->gate.p}), V,
            out_kernel<T, V><<<blocks_of(heads, 8), 256, 0, cuda_of(be)->stream>>>(cuda_p<T>(d->y), cuda_p<float>(d->rstd), cuda_p<T>(d->o),
                                                                                   cuda_p<T>(d->w), cuda_p<T>(d->gate), heads, (int)d->vdim,
                                                                                   (float)d->eps););
}
void cuda_op_gdn_out(struct backend *be, const struct op_gdn_out *d)
{
    if (d->rows)
        CUDA_BY_TYPE(be->act, T, gdn_out_run<T>(be, d););
}

/*
 * xh = o r, f = silu(gate):  do = r (w dy f - xh mean(w dy f xh)),  dgate = dy xh w silu'(gate),  dw += dy xh f. Warps walk over heads with
 * a fixed stride; part[block][vdim] are their sums of dw (dynamic shared memory: 8 vdim floats, when wanted).
 */
template <typename T, int V>
static __global__ void __launch_bounds__(256) out_bwd_kernel(T *d_o, T *dgate, float *part, const T *dy, const T *o, const T *w,
                                                             const T *gate, const float *rstd, int64_t heads, int n)
{
    extern __shared__ float sums[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *mine = sums + warp * n, u[V] = {0}, xh[V] = {0}, z[V] = {0}, wt[V] = {0}, f[V];
    if (part)
        for (int c = V * lane; c < n; c += 32 * V)
#pragma unroll
            for (int e = 0; e < V; e++)
                mine[c + e] = 0;
    for (int64_t at = (int64_t)blockIdx.x * 8 + warp; at < heads; at += (int64_t)gridDim.x * 8) {
        const float r = rstd[at];
        float mean = 0;
        for (int c = V * lane; c < n; c += 32 * V) {
            ldv(u, dy + at * n + c), ldv(xh, o + at * n + c), ldv(wt, w + c);
            if (gate)
                ldv(z, gate + at * n + c);
#pragma unroll
            for (int e = 0; e < V; e++) {
                f[e] = gate ? silu_t<T>(z[e]) : 1.0f;
                xh[e] *= r;
                float y = u[e] * f[e] * xh[e];
                mean = fmaf(wt[e], y, mean);
                if (part)
                    mine[c + e] += y;
            }
        }
        mean = warp_sum(mean) / (float)n;
        for (int c = V * lane; c < n; c += 32 * V) {
            if (V == 1) {
                ldv(u, dy + at * n + c), ldv(xh, o + at * n + c), ldv(wt, w + c);
                xh[0] *= r;
                if (gate)
                    ldv(z, gate + at * n + c);
                f[0] = gate ? silu_t<T>(z[0]) : 1.0f;
            }
#pragma unroll
            for (int e = 0; e < V; e++) {
                const float wd = wt[e] * u[e];
                u[e] = r * (wd * f[e] - xh[e] * mean);
                z[e] = wd * xh[e] * silu_dt<T>(z[e]);
            }
            stv(d_o + at * n + c, u);
            if (gate)
                stv(dgate + at * n + c, z);
        }
    }
    __syncthreads();
    for (int c = threadIdx.x; part && c < n; c += 256) {
        float s = 0;
        for (int i = 0; i < 8; i++)
            s += sums[i * n + c];
        part[(int64_t)blockIdx.x * n + c] = s;
    }
}

template <typename T> static void gdn_out_bwd_run(struct backend *be, const struct op_gdn_out_bwd *d)
{
    int64_t heads = d->rows * d->hv;
    int blocks = (int)MIN(CEIL_DIV(heads, (int64_t)8), (int64_t)1024), n = (int)d->vdim;
    cudaStream_t s = cuda_of(be)->stream;
    float *part = NULL;
    if (d->dw.p) {
        if (n > 1024) {
            be_fail(be, E_CHECK, "op 'gdn_out_bwd': value head dim %d, possible on cuda are 1 to 1024", n);
            return;
        }
        part = cuda_ws_of<float>(be, (int64_t)blocks * n);
        if (!part)
            return;
    }
    BY_FOUR(by_four(n, {d->d_o.p, d->dgate.p, d->dy.p, d->o.p, d->w.p, d->gate.p}), V,
            out_bwd_kernel<T, V><<<blocks, 256, part ? 8 * sizeof(float) * (size_t)n : 0, s>>>(
                cuda_p<T>(d->d_o), cuda_p<T>(d->dgate), part, cuda_p<T>(d->dy), cuda_p<T>(d->o), cuda_p<T>(d->w), cuda_p<T>(d->gate),
                cuda_p<float>(d->rstd), heads, n););
    if (part)
        CUDA_BY_TYPE(d->dw.dt, W, part_sum_kernel<W><<<(unsigned)CEIL_DIV(n, 32), 256, 0, s>>>(cuda_p<W>(d->dw), part, n, blocks, n););
}
void cuda_op_gdn_out_bwd(struct backend *be, const struct op_gdn_out_bwd *d)
{
    if (d->rows)
        CUDA_BY_TYPE(be->act, T, gdn_out_bwd_run<T>(be, d););
}
