/*
 * The linear head with cross-entropy and with KL [kernels.md 4.3], and the largest k of a row. Rows go in chunks of up to 1024 (more where
 * the vocabulary is small): logits of a chunk in float by a matrix product (16-bit operands, float sums; rounding logits to bf16 would put
 * a floor under the KL), statistics of each row, then value and dz in a second pass, then dh = dz W and dW += dz^T h. So there are never
 * float logits of more than one chunk. dz takes the type of the activations; in float it replaces the student's logits.
 */
#include "kernels/cuda/vec.h"

static const int64_t CHUNK_ROWS = 1024, CHUNK_BYTES = (int64_t)1250 << 20, SMALL_CHUNK_BYTES = (int64_t)256 << 20;
static const int HEAD_THREADS = 512;

struct head {
    int64_t rows, ldz, vocab; /* of this chunk */
    int splits;               /* blocks that share a row */
    int64_t per_split;        /* columns of each, a multiple of 8 */
    float *z[2], *lse[2];
    float2 *part;      /* [z][rows][splits]: maximum, sum of exp(. - maximum) */
    int32_t *part_arg; /* [rows][splits] */
    float *part_kl;    /* [rows][splits] */
    void *dz;
};

/* Maximum and sum of one stretch of a row, and where the first maximum is. */
template <bool ARG>
__global__ void head_stats_kernel(const float *z0, const float *z1, int64_t ldz, int64_t n, float scale, int64_t per_split, float2 *part,
                                  int32_t *part_arg)
{
    __shared__ float shared[32];
    __shared__ int shared_arg[32];
    const int64_t r = blockIdx.y, first = blockIdx.x * per_split, last = MIN(first + per_split, n),
                  slot = (blockIdx.z * (int64_t)gridDim.y + r) * gridDim.x + blockIdx.x;
    const float *z = (blockIdx.z ? z1 : z0) + r * ldz;
    float m = -INFINITY, s = 0, best = -INFINITY;
    int arg = INT32_MAX;
    for (int64_t v = first + 4 * threadIdx.x; v < last; v += 4 * HEAD_THREADS) {
        float x[4];
        ld16(x, z + v);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (ARG && v + k < last && (x[k] > best || arg == INT32_MAX)) {
                best = x[k];
                arg = (int)(v + k);
            }
            x[k] = v + k < last ? x[k] * scale : -INFINITY;
        }
        const float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        if (top > m) {
            s *= expf(m - top);
            m = top;
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
            s += expf(x[k] - m);
    }
    const float top = block_max<HEAD_THREADS>(m, shared);
    s = block_sum<HEAD_THREADS>(m == -INFINITY ? s : s * expf(m - top), shared);
    if (threadIdx.x == 0)
        part[slot] = make_float2(top, s);
    if (!ARG)
        return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    auto merge = [&](float v, int a) {
        if (a != INT32_MAX && (arg == INT32_MAX || v > best || (v == best && a < arg))) {
            best = v;
            arg = a;
        }
    };
    for (int o = 16; o; o >>= 1)
        merge(__shfl_xor_sync(0xffffffffu, best, o), __shfl_xor_sync(0xffffffffu, arg, o));
    __syncthreads();
    if (lane == 0) {
        shared[warp] = best;
        shared_arg[warp] = arg;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < HEAD_THREADS / 32; w++)
            merge(shared[w], shared_arg[w]);
        part_arg[slot] = arg;
    }
}

static __device__ float lse_of(const float2 *part, int splits)
{
    float m = part[0].x, s = 0;
    for (int k = 1; k < splits; k++)
        m = fmaxf(m, part[k].x);
    for (int k = 0; k < splits; k++)
        s += part[k].y * expf(part[k].x - m);
    return m + logf(s);
}

/* One thread a row: lse, and for cross-entropy the value and the arg max. */
__global__ void head_rows_kernel(float *lse0, float *lse1, const float2 *part, int splits, int64_t rows)
{
    EACH(r, rows)
    {
        lse0[r] = lse_of(part + r * splits, splits);
        if (lse1)
            lse1[r] = lse_of(part + (rows + r) * splits, splits);
    }
}
__global__ void ce_rows_kernel(float *lp, int32_t *best, const float *lse, const float *z, int64_t ldz, const int32_t *part_arg, int splits,
                               const int32_t *target, int64_t rows)
{
    EACH(r, rows)
    {
        const int32_t t = target[r];
        lp[r] = t < 0 ? 0.0f : z[r * ldz + t] - lse[r];
        if (!best)
            continue;
        int32_t b = part_arg[r * splits];
        for (int k = 1; k < splits; k++)
            if (part_arg[r * splits + k] != INT32_MAX && z[r * ldz + part_arg[r * splits + k]] > z[r * ldz + b])
                b = part_arg[r * splits + k];
        best[r] = b;
    }
}

static __device__ __forceinline__ void st4(float *p, const float (&x)[4])
{
    st16(p, x);
}
static __device__ __forceinline__ void st4(bf16 *p, const float (&x)[4])
{
    *(uint2 *)p = make_uint2(bf16_pack(x[0], x[1]), bf16_pack(x[2], x[3]));
}

/* dz = w (p - [v = target]); T float: over z. */
template <typename T>
__global__ void ce_grad_kernel(T *dz, const float *z, const float *lse, const int32_t *target, const float *wt, int64_t ldz, int64_t n,
                               int64_t per_split)
{
    const int64_t r = blockIdx.y, first = blockIdx.x * per_split, last = MIN(first + per_split, n);
    const int32_t t = target[r];
    const float w = t < 0 ? 0.0f : wt ? wt[r] : 1.0f, l = lse[r];
    for (int64_t v = first + 4 * threadIdx.x; v < last; v += 4 * HEAD_THREADS) {
        float x[4];
        ld16(x, z + r * ldz + v);
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = w == 0 ? 0.0f : w * (expf(x[k] - l) - (v + k == t ? 1.0f : 0.0f));
        st4(dz + r * ldz + v, x);
    }
}

/* g = e^r - 1 - r and m = e^r - 1. Near 0 g by its series, r^2 (1/2 + r/6 + ...): the terms left out are below 2e-9 of it up to |r| = 1/2.
 */
static __device__ __forceinline__ void exp_terms(float r, float &g, float &m)
{
    if (fabsf(r) < 0.5f) {
        float s = 2.7557319e-6f; /* 1/9! */
        s = fmaf(s, r, 2.4801587e-5f);
        s = fmaf(s, r, 1.9841270e-4f);
        s = fmaf(s, r, 1.3888889e-3f);
        s = fmaf(s, r, 8.3333333e-3f);
        s = fmaf(s, r, 4.1666667e-2f);
        s = fmaf(s, r, 1.6666667e-1f);
        s = fmaf(s, r, 0.5f);
        g = r * r * s;
        m = r + g;
    } else {
        m = expm1f(r);
        g = m - r;
    }
}

/* Four places: the student's logits a become w tau (ps - pt); returned is the sum of pt (e^r - 1 - r) over the first `valid`. */
static __device__ __forceinline__ float kl_four(float (&a)[4], const float (&b)[4], float ls, float lt, float inv, float wtau, int valid)
{
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float xs = a[k] * inv - ls, xt = b[k] * inv - lt, d = xs - xt, pt = expf(xt);
        float g, m, term, diff;
        if (pt > 0 && d < 80) {
            exp_terms(d, g, m);
            term = pt * g;
            diff = d < 1 ? pt * m : expf(xs) - pt;
        } else { /* where pt underflows the term tends to ps: the form counts on both sums being 1 */
            diff = expf(xs) - pt;
            term = diff - pt * d;
        }
        sum += k < valid ? term : 0.0f;
        a[k] = wtau * diff;
    }
    return sum;
}

/* dz = w tau (ps - pt); part_kl: sum of pt (e^r - 1 - r) over the stretch. */
template <typename T>
__global__ void kl_grad_kernel(T *dz, float *part_kl, const float *zs, const float *zt, const float *lse_s, const float *lse_t,
                               const float *wt, int64_t ldz, int64_t n, int64_t per_split, float tau, bool skip)
{
    __shared__ float shared[32];
    const int64_t r = blockIdx.y, first = blockIdx.x * per_split, last = MIN(first + per_split, n);
    const float w = wt ? wt[r] : 1.0f, ls = lse_s[r], lt = lse_t[r], inv = 1.0f / tau;
    float sum = 0;
    for (int64_t v = first + 4 * threadIdx.x; v < last; v += 4 * HEAD_THREADS) {
        float a[4], b[4];
        if (!(skip && w == 0)) {
            ld16(a, zs + r * ldz + v);
            ld16(b, zt + r * ldz + v);
            sum += kl_four(a, b, ls, lt, inv, w * tau, (int)MIN(last - v, (int64_t)4));
        }
        if (w == 0)
            a[0] = a[1] = a[2] = a[3] = 0;
        if (dz)
            st4(dz + r * ldz + v, a);
    }
    sum = block_sum<HEAD_THREADS>(sum, shared);
    if (threadIdx.x == 0)
        part_kl[r * gridDim.x + blockIdx.x] = sum;
}
__global__ void kl_rows_kernel(float *kl, const float *part, int splits, int64_t rows, float scale)
{
    EACH(r, rows)
    {
        float sum = 0;
        for (int k = 0; k < splits; k++)
            sum += part[r * splits + k];
        kl[r] = scale * sum;
    }
}

/* Memory and layout for chunks of n_z heads; false: sticky error. */
static bool head_open(struct backend *be, struct head *h, int n_z, int64_t rows, int64_t vocab, bool grad)
{
    struct cuda_backend *c = cuda_of(be);
    memset(h, 0, sizeof *h);
    h->vocab = vocab;
    h->ldz = CEIL_DIV(vocab, 8) * 8;
    int64_t fit = CHUNK_BYTES / (h->ldz * 4 * n_z);
    fit = fit >= 128 ? fit / 128 * 128 : MAX(fit, (int64_t)1);
    /* a small vocabulary: more rows at once, so that launches do not count */
    const int64_t most = MIN(MAX(CHUNK_ROWS, SMALL_CHUNK_BYTES / (h->ldz * 4 * n_z) / 128 * 128), (int64_t)32768);
    h->rows = MIN(MIN(rows, most), fit);
    h->splits = (int)MAX(MIN(CEIL_DIV((int64_t)8 * c->sms, h->rows * n_z), CEIL_DIV(vocab, (int64_t)(8 * HEAD_THREADS))), (int64_t)1);
    h->per_split = CEIL_DIV(CEIL_DIV(vocab, h->splits), 8) * 8;
    h->splits = (int)CEIL_DIV(vocab, h->per_split);
    for (int i = 0; i < n_z; i++) {
        h->z[i] = cuda_ws_of<float>(be, h->rows * h->ldz);
        h->lse[i] = cuda_ws_of<float>(be, h->rows);
    }
    h->part = cuda_ws_of<float2>(be, n_z * h->rows * h->splits);
    h->part_arg = cuda_ws_of<int32_t>(be, h->rows * h->splits);
    h->part_kl = cuda_ws_of<float>(be, h->rows * h->splits);
    if (grad)
        h->dz = be->act == DT_F32 ? h->z[0] : cuda_ws(be, (size_t)(h->rows * h->ldz) * dtype_size(be->act));
    return !be->failed;
}

static const void *row_at(struct view v, int64_t r, int64_t width)
{
    return (const char *)v.p + (size_t)(r * width) * dtype_size(v.dt);
}

static void logits(struct backend *be, const struct head *h, int which, struct view x, struct view w, int64_t first, int64_t rows,
                   int64_t dim)
{
    struct cuda_mm mm;
    memset(&mm, 0, sizeof mm);
    mm.c = h->z[which], mm.a = row_at(x, first, dim), mm.b = w.p;
    mm.ct = DT_F32, mm.abt = be->act;
    mm.m = rows, mm.n = h->vocab, mm.k = dim, mm.ldc = h->ldz;
    mm.tb = true;
    cuda_matmul(be, &mm);
}

static void gradients(struct backend *be, const struct head *h, struct view dh, struct view dw, struct view x, struct view w, int64_t first,
                      int64_t rows, int64_t dim)
{
    struct cuda_mm mm;
    memset(&mm, 0, sizeof mm);
    mm.a = h->dz, mm.abt = be->act, mm.lda = h->ldz, mm.n = dim;
    if (dh.p) {
        mm.c = (void *)row_at(dh, first, dim), mm.ct = dh.dt, mm.b = w.p;
        mm.m = rows, mm.k = h->vocab;
        cuda_matmul(be, &mm);
    }
    if (dw.p) {
        mm.c = dw.p, mm.ct = dw.dt, mm.b = row_at(x, first, dim);
        mm.m = h->vocab, mm.k = rows, mm.ta = true, mm.accumulate = true;
        cuda_matmul(be, &mm);
    }
}

void cuda_op_head_ce(struct backend *be, const struct op_head_ce *d)
{
    cudaStream_t s = cuda_of(be)->stream;
    const bool grad = d->dh.p || d->dw.p;
    struct head h;
    if (d->rows == 0 || !head_open(be, &h, 1, d->rows, d->vocab, grad))
        return;
    for (int64_t first = 0; first < d->rows && !be->failed; first += h.rows) {
        const int64_t rows = MIN(h.rows, d->rows - first);
        const dim3 grid((unsigned)h.splits, (unsigned)rows);
        const int32_t *target = cuda_p<int32_t>(d->target) + first;
        int32_t *best = d->best.p ? cuda_p<int32_t>(d->best) + first : NULL;
        logits(be, &h, 0, d->h, d->w, first, rows, d->dim);
        if (best)
            head_stats_kernel<true><<<grid, HEAD_THREADS, 0, s>>>(h.z[0], NULL, h.ldz, h.vocab, 1.0f, h.per_split, h.part, h.part_arg);
        else
            head_stats_kernel<false><<<grid, HEAD_THREADS, 0, s>>>(h.z[0], NULL, h.ldz, h.vocab, 1.0f, h.per_split, h.part, NULL);
        head_rows_kernel<<<blocks_for(rows), THREADS, 0, s>>>(h.lse[0], NULL, h.part, h.splits, rows);
        ce_rows_kernel<<<blocks_for(rows), THREADS, 0, s>>>(cuda_p<float>(d->lp) + first, best, h.lse[0], h.z[0], h.ldz, h.part_arg,
                                                            h.splits, target, rows);
        if (!grad)
            continue;
        CUDA_BY_TYPE(be->act, T, {
            ce_grad_kernel<T><<<grid, HEAD_THREADS, 0, s>>>((T *)h.dz, h.z[0], h.lse[0], target,
                                                            d->wt.p ? cuda_p<float>(d->wt) + first : NULL, h.ldz, h.vocab, h.per_split);
        });
        gradients(be, &h, d->dh, d->dw, d->h, d->w, first, rows, d->dim);
    }
}

void cuda_op_head_kl(struct backend *be, const struct op_head_kl *d)
{
    cudaStream_t s = cuda_of(be)->stream;
    const bool grad = d->dhs.p || d->dws.p;
    const float tau = (float)d->tau;
    struct head h;
    if (d->rows == 0 || !head_open(be, &h, 2, d->rows, d->vocab, grad))
        return;
    for (int64_t first = 0; first < d->rows && !be->failed; first += h.rows) {
        const int64_t rows = MIN(h.rows, d->rows - first);
        const dim3 grid((unsigned)h.splits, (unsigned)rows);
        logits(be, &h, 0, d->hs, d->ws, first, rows, d->dim);
        logits(be, &h, 1, d->ht, d->wt_head, first, rows, d->dim);
        head_stats_kernel<false>
            <<<dim3(grid.x, grid.y, 2), HEAD_THREADS, 0, s>>>(h.z[0], h.z[1], h.ldz, h.vocab, 1.0f / tau, h.per_split, h.part, NULL);
        head_rows_kernel<<<blocks_for(rows), THREADS, 0, s>>>(h.lse[0], h.lse[1], h.part, h.splits, rows);
        CUDA_BY_TYPE(be->act, T, {
            kl_grad_kernel<T><<<grid, HEAD_THREADS, 0, s>>>((T *)h.dz, h.part_kl, h.z[0], h.z[1], h.lse[0], h.lse[1],
                                                            d->wt.p ? cuda_p<float>(d->wt) + first : NULL, h.ldz, h.vocab, h.per_split, tau,
                                                            d->skip_masked);
        });
        kl_rows_kernel<<<blocks_for(rows), THREADS, 0, s>>>(cuda_p<float>(d->kl) + first, h.part_kl, h.splits, rows,
                                                            (float)(d->tau * d->tau));
        if (grad)
            gradients(be, &h, d->dhs, d->dws, d->hs, d->ws, first, rows, d->dim);
    }
}

/* ---- the k largest, one block a row: each pass finds the first after the last one found, in (value descending, id ascending) order ----
 */

template <typename T> __global__ void topk_kernel(int32_t *ids, float *vals, const T *z, int64_t n, int k)
{
    __shared__ float shared_v[32];
    __shared__ int shared_i[32];
    const T *row = z + (int64_t)blockIdx.x * n;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float last_v = 0;
    int last_i = -1;
    for (int pick = 0; pick < k; pick++) {
        float best = 0;
        int at = -1;
        auto merge = [&](float v, int i) {
            if (i >= 0 && (at < 0 || v > best || (v == best && i < at))) {
                best = v;
                at = i;
            }
        };
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x) {
            const float x = ld(row + j);
            if ((last_i < 0 || x < last_v || (x == last_v && j > last_i)) && (at < 0 || x > best)) {
                best = x;
                at = (int)j;
            }
        }
        for (int o = 16; o; o >>= 1)
            merge(__shfl_xor_sync(0xffffffffu, best, o), __shfl_xor_sync(0xffffffffu, at, o));
        __syncthreads();
        if (lane == 0) {
            shared_v[warp] = best;
            shared_i[warp] = at;
        }
        __syncthreads();
        best = shared_v[0];
        at = shared_i[0];
        for (int w = 1; w < (int)blockDim.x / 32; w++)
            merge(shared_v[w], shared_i[w]);
        last_i = at < 0 ? 0 : at; /* a row with NaN has no order; any id in range will do */
        last_v = at < 0 ? ld(row) : best;
        if (threadIdx.x == 0) {
            ids[blockIdx.x * (int64_t)k + pick] = last_i;
            if (vals)
                vals[blockIdx.x * (int64_t)k + pick] = last_v;
        }
    }
}

void cuda_op_topk(struct backend *be, const struct op_topk *d)
{
    const int threads = d->n > 4096 ? 1024 : 256;
    if (d->rows == 0)
        return;
    CUDA_BY_TYPE(d->z.dt, T, {
        topk_kernel<T><<<(unsigned)d->rows, threads, 0, cuda_of(be)->stream>>>(cuda_p<int32_t>(d->ids), cuda_p<float>(d->vals),
                                                                               cuda_p<T>(d->z), d->n, (int)d->k);
    });
}
