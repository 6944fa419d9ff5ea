/*
 * Norms, column sums, dot products, the embedding's gradient, the alignment loss. Sums run in a fixed order: partial sums go to the
 * workspace, one slot for each block or range of rows, and a second kernel adds the slots in ascending order.
 */
#include "kernels/cuda/vec.h"

/* ---- columns: y[j] += sum over slots of part[slot, j], ascending ---- */

template <typename Y> __global__ void add_slots_kernel(Y *y, const float *part, int64_t slots, int64_t n)
{
    EACH(j, n)
    {
        float sum = 0;
        for (int64_t s = 0; s < slots; s++)
            sum += part[s * n + j];
        st(y + j, ld(y + j) + sum);
    }
}
/* Many slots: first groups of 32 in parallel. */
__global__ void fold_slots_kernel(float *out, const float *part, int64_t slots, int64_t n)
{
    const int64_t first = (int64_t)blockIdx.y * 32, last = MIN(first + 32, slots);
    EACH(j, n)
    {
        float sum = 0;
        for (int64_t s = first; s < last; s++)
            sum += part[s * n + j];
        out[blockIdx.y * n + j] = sum;
    }
}
static void add_slots(struct backend *be, struct view y, const float *part, int64_t slots, int64_t n)
{
    cudaStream_t s = cuda_of(be)->stream;
    while (slots > 64) {
        int64_t next = CEIL_DIV(slots, 32);
        float *fold = cuda_ws_of<float>(be, next * n);
        if (!fold)
            return;
        fold_slots_kernel<<<dim3(blocks_for(n), (unsigned)next), THREADS, 0, s>>>(fold, part, slots, n);
        part = fold;
        slots = next;
    }
    CUDA_BY_TYPE(y.dt, Y, { add_slots_kernel<Y><<<blocks_for(n), THREADS, 0, s>>>((Y *)y.p, part, slots, n); });
}

/* part[range, j] = sum of value(r, j) over the rows of a range; 32 columns and 8 rows at a time. */
template <typename F> __global__ void col_ranges_kernel(F f, float *part, int64_t rows, int64_t n, int64_t per_range)
{
    __shared__ float sum_of[8][33];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x, first = blockIdx.y * per_range, last = MIN(first + per_range, rows);
    float sum = 0;
    if (j < n)
        for (int64_t r = first + threadIdx.y; r < last; r += 8)
            sum += f(r, j);
    sum_of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && j < n) {
#pragma unroll
        for (int k = 1; k < 8; k++)
            sum += sum_of[k][threadIdx.x];
        part[blockIdx.y * n + j] = sum;
    }
}
template <typename F> static void col_sums(struct backend *be, const F &f, struct view y, int64_t rows, int64_t n)
{
    struct cuda_backend *c = cuda_of(be);
    if (rows == 0 || n == 0)
        return;
    int64_t cols = CEIL_DIV(n, 32), want = MAX(8 * (int64_t)c->sms / cols, (int64_t)1);
    int64_t per = MAX(CEIL_DIV(CEIL_DIV(rows, want), 8) * 8, (int64_t)32), ranges = CEIL_DIV(rows, per);
    if (ranges > 65535) {
        per = CEIL_DIV(rows, (int64_t)65535);
        ranges = CEIL_DIV(rows, per);
    }
    float *part = cuda_ws_of<float>(be, ranges * n);
    if (!part)
        return;
    col_ranges_kernel<F><<<dim3((unsigned)cols, (unsigned)ranges), dim3(32, 8), 0, c->stream>>>(f, part, rows, n, per);
    add_slots(be, y, part, ranges, n);
}

template <typename T> struct column_f {
    const T *x;
    int64_t ldx;
    __device__ float operator()(int64_t r, int64_t j) const
    {
        return ld(x + r * ldx + j);
    }
};
void cuda_op_colsum(struct backend *be, const struct op_colsum *d)
{
    CUDA_BY_TYPE(d->x.dt, T, {
        column_f<T> f = {cuda_p<T>(d->x), d->ldx ? d->ldx : d->n};
        col_sums(be, f, d->y, d->rows, d->n);
    });
}

/* ---- RMSNorm: GROUP threads a row, 256 threads a block ---- */

template <int GROUP> static __device__ __forceinline__ float group_sum(float x, float *shared)
{
    if constexpr (GROUP == 32)
        return warp_sum(x);
    else
        return block_sum<GROUP>(x, shared);
}

template <typename T, int V, int GROUP>
__global__ void rmsnorm_kernel(T *y, float *rstd, const T *x, const T *w, int64_t rows, int dim, float eps)
{
    __shared__ float shared[32];
    const int lane = threadIdx.x % GROUP;
    const int64_t r = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    if (r >= rows) /* whole groups leave */
        return;
    const T *xr = x + r * dim;
    float sum = 0, a[V], b[V];
    for (int j = lane * V; j < dim; j += GROUP * V) {
        ldv(a, xr + j);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum += a[k] * a[k];
    }
    sum = group_sum<GROUP>(sum, shared);
    const float s = rsqrtf(sum / (float)dim + eps);
    for (int j = lane * V; j < dim; j += GROUP * V) {
        ldv(a, xr + j);
        ldv(b, w + j);
#pragma unroll
        for (int k = 0; k < V; k++)
            a[k] = a[k] * s * b[k];
        stv(y + r * dim + j, a);
    }
    if (rstd && lane == 0)
        rstd[r] = s;
}

template <typename T, int V> static void rmsnorm(struct backend *be, const struct op_rmsnorm *d)
{
    cudaStream_t s = cuda_of(be)->stream;
    T *y = cuda_p<T>(d->y);
    const T *x = cuda_p<T>(d->x), *w = cuda_p<T>(d->w);
    if (d->dim <= 1024)
        rmsnorm_kernel<T, V, 32>
            <<<(unsigned)CEIL_DIV(d->rows, 8), THREADS, 0, s>>>(y, cuda_p<float>(d->rstd), x, w, d->rows, (int)d->dim, (float)d->eps);
    else
        rmsnorm_kernel<T, V, 256>
            <<<(unsigned)d->rows, THREADS, 0, s>>>(y, cuda_p<float>(d->rstd), x, w, d->rows, (int)d->dim, (float)d->eps);
}

void cuda_op_rmsnorm(struct backend *be, const struct op_rmsnorm *d)
{
    if (d->rows == 0)
        return;
    CUDA_BY_TYPE(be->act, T, {
        if (d->dim % VEC<T>::n == 0 && all_aligned(d->y.p, d->x.p, d->w.p))
            rmsnorm<T, VEC<T>::n>(be, d);
        else
            rmsnorm<T, 1>(be, d);
    });
}

/* xh = x rstd, g = dy w:  dx = rstd (g - xh mean(g xh));  dw += sum_r dy xh. A group takes rows r, r + groups, ... and keeps the dw of its
   columns in registers (N vectors a thread; N = 0: left to col_sums). */
template <typename T, int V, int GROUP, int N>
__global__ void rmsnorm_bwd_kernel(T *dx, float *part, const T *dy, const T *x, const T *w, const float *rstd, int64_t rows, int dim,
                                   bool add)
{
    __shared__ float shared[32];
    const int lane = threadIdx.x % GROUP;
    const int64_t group = (int64_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP, groups = (int64_t)gridDim.x * (THREADS / GROUP);
    float dw[N > 0 ? N : 1][V];
#pragma unroll
    for (int i = 0; i < (N > 0 ? N : 1); i++)
#pragma unroll
        for (int k = 0; k < V; k++)
            dw[i][k] = 0;
    for (int64_t r = group; r < rows; r += groups) {
        const int64_t at = r * dim;
        const float s = rstd[r];
        float a[V], b[V], g[V], dot = 0;
        for (int j = lane * V; j < dim; j += GROUP * V) {
            ldv(a, x + at + j);
            ldv(b, w + j);
            ldv(g, dy + at + j);
#pragma unroll
            for (int k = 0; k < V; k++)
                dot += g[k] * b[k] * (a[k] * s);
        }
        dot = group_sum<GROUP>(dot, shared) / (float)dim;
        auto piece = [&](int j, float *acc) {
            float old[V];
            ldv(a, x + at + j);
            ldv(b, w + j);
            ldv(g, dy + at + j);
            if (add)
                ldv(old, dx + at + j);
#pragma unroll
            for (int k = 0; k < V; k++) {
                float xh = a[k] * s, v = s * (g[k] * b[k] - xh * dot);
                if (acc)
                    acc[k] += g[k] * xh;
                a[k] = add ? old[k] + v : v;
            }
            stv(dx + at + j, a);
        };
        if constexpr (N > 0) {
#pragma unroll
            for (int i = 0; i < N; i++)
                if ((i * GROUP + lane) * V < dim)
                    piece((i * GROUP + lane) * V, dw[i]);
        } else
            for (int j = lane * V; j < dim; j += GROUP * V)
                piece(j, NULL);
    }
    if constexpr (N > 0)
        if (part)
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int k = 0; k < V; k++)
                    if ((i * GROUP + lane) * V + k < dim)
                        part[group * dim + (i * GROUP + lane) * V + k] = dw[i][k];
}

template <typename T> struct norm_dw_f {
    const T *dy, *x;
    const float *rstd;
    int64_t dim;
    __device__ float operator()(int64_t r, int64_t j) const
    {
        return ld(dy + r * dim + j) * (ld(x + r * dim + j) * rstd[r]);
    }
};

template <typename T, int V, int GROUP, int N> static void rmsnorm_bwd(struct backend *be, const struct op_rmsnorm_bwd *d)
{
    struct cuda_backend *c = cuda_of(be);
    const int per_block = THREADS / GROUP;
    const int64_t blocks = MIN(CEIL_DIV(d->rows, per_block), (int64_t)4 * c->sms), slots = blocks * per_block;
    float *part = N > 0 && d->dw.p ? cuda_ws_of<float>(be, slots * d->dim) : NULL;
    if (be->failed)
        return;
    rmsnorm_bwd_kernel<T, V, GROUP, N>
        <<<(unsigned)blocks, THREADS, 0, c->stream>>>(cuda_p<T>(d->dx), part, cuda_p<T>(d->dy), cuda_p<T>(d->x), cuda_p<T>(d->w),
                                                      cuda_p<float>(d->rstd), d->rows, (int)d->dim, d->dx_add);
    if (part)
        add_slots(be, d->dw, part, slots, d->dim);
}

void cuda_op_rmsnorm_bwd(struct backend *be, const struct op_rmsnorm_bwd *d)
{
    if (d->rows == 0)
        return;
    CUDA_BY_TYPE(be->act, T, {
        const int V = VEC<T>::n;
        bool vec = d->dim % V == 0 && all_aligned(d->dx.p, d->x.p, d->dy.p, d->w.p);
        if (vec && d->dim <= 32 * V)
            rmsnorm_bwd<T, V, 32, 1>(be, d);
        else if (vec && d->dim <= 256 * V)
            rmsnorm_bwd<T, V, 256, 1>(be, d);
        else if (vec && d->dim <= 1024 * V)
            rmsnorm_bwd<T, V, 256, 4>(be, d);
        else {
            if (d->dw.p) {
                norm_dw_f<T> f = {cuda_p<T>(d->dy), cuda_p<T>(d->x), cuda_p<float>(d->rstd), d->dim};
                col_sums(be, f, d->dw, d->rows, d->dim);
            }
            rmsnorm_bwd<T, 1, 256, 0>(be, d);
        }
    });
}

/* ---- dot products and sums of squares ---- */

enum { DOT_BLOCKS = 512 };

template <typename T, int V>
__global__ void mix_bwd_kernel(T *dx0, T *dx1, T *dx2, const T *dy, const T *x0, const T *x1, const T *x2, float p0, float p1, float p2,
                               float *part, int count, int64_t n)
{
    __shared__ float shared[32];
    T *dx[3] = {dx0, dx1, dx2};
    const T *x[3] = {x0, x1, x2};
    const float p[3] = {p0, p1, p2};
    float sum[3] = {0, 0, 0}, g[V], a[V];
    const int64_t whole = n / V;
    auto piece = [&](int64_t i) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (j >= count)
                break;
            if (part) {
                ldv(a, x[j] + i);
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum[j] += g[k] * a[k];
            }
            if (dx[j]) {
#pragma unroll
                for (int k = 0; k < V; k++)
                    a[k] = p[j] * g[k];
                stv(dx[j] + i, a);
            }
        }
    };
    EACH(i, whole)
    {
        ldv(g, dy + i * V);
        piece(i * V);
    }
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < n - whole * V) { /* the tail, one element a thread */
        const int64_t i = whole * V + threadIdx.x;
        const float gi = ld(dy + i);
        for (int j = 0; j < count; j++) {
            if (part)
                sum[j] += gi * ld(x[j] + i);
            if (dx[j])
                st(dx[j] + i, p[j] * gi);
        }
    }
    if (part)
#pragma unroll
        for (int j = 0; j < 3; j++) {
            float s = block_sum<THREADS>(sum[j], shared);
            if (threadIdx.x == 0 && j < count)
                part[j * gridDim.x + blockIdx.x] = s;
        }
}

/* out[blockIdx] += the sum of its part, in a fixed order. */
__global__ void add_parts_kernel(float *out, const float *part, int parts)
{
    __shared__ float shared[32];
    float sum = 0;
    for (int i = threadIdx.x; i < parts; i += THREADS)
        sum += part[blockIdx.x * parts + i];
    sum = block_sum<THREADS>(sum, shared);
    if (threadIdx.x == 0)
        out[blockIdx.x] += sum;
}

void cuda_op_mix_bwd(struct backend *be, const struct op_mix_bwd *d)
{
    cudaStream_t s = cuda_of(be)->stream;
    const unsigned blocks = (unsigned)MIN(CEIL_DIV(MAX(d->n, (int64_t)1), (int64_t)(8 * THREADS)), (int64_t)DOT_BLOCKS);
    float *part = NULL;
    if (d->n == 0)
        return;
    if (d->dp.p && !(part = cuda_ws_of<float>(be, 3 * blocks)))
        return;
    CUDA_BY_TYPE(be->act, T, {
        T *dx[3];
        const T *x[3];
        for (int j = 0; j < 3; j++) {
            dx[j] = j < d->count ? cuda_p<T>(d->dx[j]) : NULL;
            x[j] = j < d->count ? cuda_p<T>(d->x[j]) : NULL;
        }
        if (all_aligned(dx[0], dx[1], dx[2], d->dy.p, x[0], x[1], x[2]))
            mix_bwd_kernel<T, VEC<T>::n><<<blocks, THREADS, 0, s>>>(dx[0], dx[1], dx[2], cuda_p<T>(d->dy), x[0], x[1], x[2], (float)d->p[0],
                                                                    (float)d->p[1], (float)d->p[2], part, d->count, d->n);
        else
            mix_bwd_kernel<T, 1><<<blocks, THREADS, 0, s>>>(dx[0], dx[1], dx[2], cuda_p<T>(d->dy), x[0], x[1], x[2], (float)d->p[0],
                                                            (float)d->p[1], (float)d->p[2], part, d->count, d->n);
    });
    if (part)
        add_parts_kernel<<<(unsigned)d->count, THREADS, 0, s>>>(cuda_p<float>(d->dp), part, (int)blocks);
}

template <typename T, int V> __global__ void sumsq_kernel(double *part, const T *x, int64_t n)
{
    __shared__ double shared[32];
    double sum = 0;
    float a[V];
    const int64_t whole = n / V;
    EACH(i, whole)
    {
        ldv(a, x + i * V);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum += (double)a[k] * (double)a[k];
    }
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < n - whole * V) {
        double v = ld(x + whole * V + threadIdx.x);
        sum += v * v;
    }
    sum = block_sum<THREADS>(sum, shared);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}
__global__ void sumsq_end_kernel(double *out, const double *part, int parts, bool accumulate)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int i = threadIdx.x; i < parts; i += THREADS)
        sum += part[i];
    sum = block_sum<THREADS>(sum, shared);
    if (threadIdx.x == 0)
        *out = accumulate ? *out + sum : sum;
}

void cuda_op_sumsq(struct backend *be, const struct op_sumsq *d)
{
    cudaStream_t s = cuda_of(be)->stream;
    const unsigned blocks = (unsigned)MAX(MIN(CEIL_DIV(d->n, (int64_t)(8 * THREADS)), (int64_t)4 * DOT_BLOCKS), (int64_t)1);
    double *part = cuda_ws_of<double>(be, blocks);
    if (!part)
        return;
    CUDA_BY_TYPE(d->x.dt, T, {
        if (aligned16(d->x.p))
            sumsq_kernel<T, VEC<T>::n><<<blocks, THREADS, 0, s>>>(part, cuda_p<T>(d->x), d->n);
        else
            sumsq_kernel<T, 1><<<blocks, THREADS, 0, s>>>(part, cuda_p<T>(d->x), d->n);
    });
    sumsq_end_kernel<<<1, THREADS, 0, s>>>(cuda_p<double>(d->out), part, (int)blocks, d->accumulate);
}

/* ---- dw[id[r]] += dy[r], rows ascending ----
 * The block of the first row with an id collects all rows with it, so that one thread adds the elements of one place in order. */
template <typename W, typename T> __global__ void embed_bwd_kernel(W *dw, const T *dy, const int32_t *ids, int64_t rows, int64_t dim)
{
    __shared__ int list[THREADS], counts[THREADS / 32];
    const int64_t r = blockIdx.x, j0 = (int64_t)blockIdx.y * 4 * THREADS;
    const int32_t id = ids[r];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int64_t first = 0; first < r; first += 4 * THREADS) {
        bool hit = false;
        for (int64_t i = first + threadIdx.x; i < MIN(first + 4 * THREADS, r); i += THREADS)
            hit |= ids[i] == id;
        if (__syncthreads_or(hit)) /* not the first row with this id */
            return;
    }
    float acc[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int64_t j = j0 + k * THREADS + threadIdx.x;
        acc[k] = j < dim ? ld(dw + id * dim + j) : 0;
    }
    for (int64_t first = r; first < rows; first += THREADS) {
        const int64_t i = first + threadIdx.x;
        const bool hit = i < rows && ids[i] == id;
        const unsigned mask = __ballot_sync(0xffffffffu, hit);
        if (lane == 0)
            counts[warp] = __popc(mask);
        __syncthreads();
        int before = 0, total = 0;
        for (int k = 0; k < THREADS / 32; k++) {
            before += k < warp ? counts[k] : 0;
            total += counts[k];
        }
        if (hit)
            list[before + __popc(mask & ((1u << lane) - 1))] = (int)threadIdx.x;
        __syncthreads();
        for (int m = 0; m < total; m++) {
            const T *row = dy + (first + list[m]) * dim;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int64_t j = j0 + k * THREADS + threadIdx.x;
                if (j < dim)
                    acc[k] += ld(row + j);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        int64_t j = j0 + k * THREADS + threadIdx.x;
        if (j < dim)
            st(dw + id * dim + j, acc[k]);
    }
}

void cuda_op_embed_bwd(struct backend *be, const struct op_embed_bwd *d)
{
    if (d->rows == 0 || d->dim == 0)
        return;
    CUDA_BY_TYPE(d->dw.dt, W, {
        CUDA_BY_TYPE(d->dy.dt, T, {
            embed_bwd_kernel<W, T><<<dim3((unsigned)d->rows, (unsigned)CEIL_DIV(d->dim, 4 * THREADS)), THREADS, 0, cuda_of(be)->stream>>>(
                cuda_p<W>(d->dw), cuda_p<T>(d->dy), cuda_p<int32_t>(d->ids), d->rows, d->dim);
        });
    });
}

/* ---- alignment loss, one block a row ---- */

template <typename T>
__global__ void align_loss_kernel(float *loss, T *ds, const T *s, const T *t, const float *w, int64_t dim, bool squared)
{
    __shared__ float shared[32];
    const int64_t r = blockIdx.x, at = r * dim;
    float sum = 0;
    for (int64_t j = threadIdx.x; j < dim; j += THREADS) {
        float x = ld(s + at + j) - ld(t + at + j);
        sum += x * x;
    }
    sum = block_sum<THREADS>(sum, shared);
    const float norm = sqrtf(sum), root = sqrtf((float)dim), wr = w ? w[r] : 1.0f;
    const float factor = squared ? 2 * wr : norm > 0 ? wr / (norm * root) : 0.0f;
    if (threadIdx.x == 0)
        loss[r] = squared ? sum : norm / root;
    if (ds)
        for (int64_t j = threadIdx.x; j < dim; j += THREADS)
            st(ds + at + j, factor * (ld(s + at + j) - ld(t + at + j)));
}

void cuda_op_align_loss(struct backend *be, const struct op_align_loss *d)
{
    if (d->rows == 0)
        return;
    CUDA_BY_TYPE(be->act, T, {
        align_loss_kernel<T><<<(unsigned)d->rows, THREADS, 0, cuda_of(be)->stream>>>(
            cuda_p<float>(d->loss), cuda_p<T>(d->ds), cuda_p<T>(d->s), cuda_p<T>(d->t), cuda_p<float>(d->w), d->dim, d->squared);
    });
}
