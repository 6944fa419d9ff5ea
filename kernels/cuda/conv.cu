/* Depthwise causal convolution, then SiLU: one thread walks down a tile of rows of one channel, its last inputs in registers. */
#include "kernels/cuda/silu.cuh"

enum { TAPS = 4 };

/* Sequence of a row: the last s with q_off[s] <= row and a row in it. */
static __device__ __forceinline__ int seq_of(const int *q_off, int n, int64_t row)
{
    int lo = 0, hi = n; /* q_off[lo] <= row < q_off[hi] */
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (q_off[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

struct conv_in {
    const int *q_off;
    int n, dim, width, tile;
    int64_t rows;
};

static __device__ __forceinline__ float state_ld(const void *p, bool f32, int64_t i)
{
    return f32 ? ((const float *)p)[i] : ld((const bf16 *)p + i);
}
static __device__ __forceinline__ void state_st(void *p, bool f32, int64_t i, float x)
{
    if (f32)
        ((float *)p)[i] = x;
    else
        st((bf16 *)p + i, x);
}

/* keep = width - 1 inputs before row `row`, oldest first, in x[TAPS - width ..]; rows before the sequence come from the state. */
template <typename T>
static __device__ __forceinline__ void history(float (&h)[TAPS], const conv_in &c, const T *x, const void *state, bool f32, int seq,
                                               int64_t first, int64_t row, int j)
{
    const int keep = c.width - 1;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) { /* h[i]: input of row - (TAPS - 1) + i */
        int64_t src = row - (TAPS - 1) + i;
        int back = (int)(first - src); /* > 0: before this call */
        h[i] = i < TAPS - 1 - keep ? 0
               : src >= first      ? ld(x + src * c.dim + j)
               : state             ? state_ld(state, f32, ((int64_t)seq * keep + keep - back) * c.dim + j)
                                   : 0;
    }
}

/* step: all sequences are one token, tile is 1, and the state moves here. */
template <typename T>
static __global__ void __launch_bounds__(128)
    conv_kernel(conv_in c, T *y, T *pre, const T *x, const T *wt, void *state, bool f32, bool step)
{
    const int j = blockIdx.x * 128 + threadIdx.x, keep = c.width - 1;
    int64_t row = (int64_t)blockIdx.y * c.tile, end = min(row + c.tile, c.rows);
    if (j >= c.dim || row >= end)
        return;
    float w[TAPS], h[TAPS];
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        w[i] = i >= TAPS - c.width ? ld(wt + (int64_t)j * c.width + i - (TAPS - c.width)) : 0;
    int seq = seq_of(c.q_off, c.n, row);
    int64_t first = c.q_off[seq], next = c.q_off[seq + 1];
    history(h, c, x, state, f32, seq, first, row, j);
#pragma unroll 4
    for (; row < end; row++) {
        if (row >= next) {
            while (row >= next)
                next = c.q_off[++seq + 1];
            first = row;
            history(h, c, x, state, f32, seq, first, row, j);
        }
        h[TAPS - 1] = ld(x + row * c.dim + j);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            sum = fmaf(w[i], h[i], sum);
        if (pre)
            st(pre + row * c.dim + j, sum);
        st(y + row * c.dim + j, silu_t<T>(sum));
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++)
            h[i] = h[i + 1];
    }
    if (step)
        for (int i = 0; i < keep; i++)
            state_st(state, f32, ((int64_t)seq * keep + i) * c.dim + j, h[TAPS - 1 - keep + i]);
}

/* state <- the last width - 1 of (state, inputs). */
template <typename T> static __global__ void __launch_bounds__(128) conv_state_kernel(conv_in c, const T *x, void *state, bool f32)
{
    const int j = blockIdx.x * 128 + threadIdx.x, seq = blockIdx.y, keep = c.width - 1;
    if (j >= c.dim)
        return;
    const int64_t first = c.q_off[seq], len = c.q_off[seq + 1] - first;
    float h[TAPS - 1];
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++) {
        int64_t src = len - keep + i;
        if (i < keep)
            h[i] = src >= 0 ? ld(x + (first + src) * c.dim + j) : state_ld(state, f32, ((int64_t)seq * keep + src + keep) * c.dim + j);
    }
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
        if (i < keep)
            state_st(state, f32, ((int64_t)seq * keep + i) * c.dim + j, h[i]);
}

static struct conv_in conv_in_of(const struct seqs *s, int64_t dim, int64_t width)
{
    struct conv_in c = {(const int *)s->d_q_off.p, s->n, (int)dim, (int)width, 64, s->rows};
    c.tile = c.rows <= 64 ? 1 : c.rows <= 1024 ? 8 : 64;
    return c;
}

template <typename T> static void conv_run(struct backend *be, const struct op_conv *d)
{
    struct conv_in c = conv_in_of(d->seqs, d->dim, d->width);
    bool single = d->seqs->n == c.rows, f32 = d->state.dt == DT_F32;
    cudaStream_t stream = cuda_of(be)->stream;
    for (int32_t s = 0; s < d->seqs->n && single; s++)
        single = seqs_qlen(d->seqs, s) == 1;
    if (!c.rows || !c.dim || !c.n)
        return;
    if (single)
        c.tile = 1;
    bool keeps = d->state.p && d->width > 1;
    if (CEIL_DIV(c.rows, c.tile) > 65535 || c.n > 65535) {
        be_fail(be, E_CHECK, "op 'conv': %" PRId64 " rows in %d sequences, possible on cuda are 4 million in 65535", c.rows, c.n);
        return;
    }
    conv_kernel<T><<<dim3(CEIL_DIV(c.dim, 128), (unsigned)CEIL_DIV(c.rows, c.tile)), 128, 0, stream>>>(
        c, cuda_p<T>(d->y), cuda_p<T>(d->pre), cuda_p<T>(d->x), cuda_p<T>(d->w), d->state.p, f32, single && keeps);
    if (keeps && !single)
        conv_state_kernel<T><<<dim3(CEIL_DIV(c.dim, 128), c.n), 128, 0, stream>>>(c, cuda_p<T>(d->x), d->state.p, f32);
}
void cuda_op_conv(struct backend *be, const struct op_conv *d)
{
    CUDA_BY_TYPE(be->act, T, conv_run<T>(be, d););
}

/*
 * dc = dy silu'(pre);  dx[s] = sum_w wt[w] dc[s + width - 1 - w] inside the sequence;  part[tile][dim][TAPS]: sum over the tile's rows t of
 * dc[t] x[t - (TAPS - 1) + w].
 */
template <typename T>
static __global__ void __launch_bounds__(128)
    conv_bwd_kernel(conv_in c, T *dx, float *part, const T *dy, const T *pre, const T *x, const T *wt)
{
    const int j = blockIdx.x * 128 + threadIdx.x;
    int64_t row = (int64_t)blockIdx.y * c.tile, end = min(row + c.tile, c.rows);
    if (j >= c.dim || row >= end)
        return;
    float w[TAPS], h[TAPS], f[TAPS], dw[TAPS] = {0}; /* f[i]: dc of row + i */
#pragma unroll
    for (int i = 0; i < TAPS; i++)
        w[i] = i >= TAPS - c.width ? ld(wt + (int64_t)j * c.width + i - (TAPS - c.width)) : 0;
    int seq = seq_of(c.q_off, c.n, row);
    int64_t next = c.q_off[seq + 1];
    bool fresh = true;
    history(h, c, x, NULL, false, seq, c.q_off[seq], row, j);
#pragma unroll 4
    for (; row < end; row++) {
        if (row >= next) {
            while (row >= next)
                next = c.q_off[++seq + 1];
            fresh = true;
#pragma unroll
            for (int i = 0; i < TAPS; i++)
                h[i] = 0;
        }
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            if (fresh || i == TAPS - 1) {
                int64_t at = (row + i) * c.dim + j;
                f[i] = row + i < next ? ld(dy + at) * silu_dt<T>(ld(pre + at)) : 0;
            }
        fresh = false;
        h[TAPS - 1] = ld(x + row * c.dim + j);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            sum = fmaf(w[TAPS - 1 - i], f[i], sum);
            dw[i] = fmaf(f[0], h[i], dw[i]);
        }
        st(dx + row * c.dim + j, sum);
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) {
            h[i] = h[i + 1];
            f[i] = f[i + 1];
        }
    }
    if (part)
#pragma unroll
        for (int i = 0; i < TAPS; i++)
            part[((int64_t)blockIdx.y * TAPS + i) * c.dim + j] = dw[i];
}

/* dw[j, w] += sum over tiles, ascending in 8 strands. */
template <typename W> static __global__ void __launch_bounds__(256) conv_dw_kernel(conv_in c, W *dw, const float *part, int tiles)
{
    __shared__ float sums[8][32];
    const int j = blockIdx.x * 32 + (threadIdx.x & 31), strand = threadIdx.x >> 5, tap = blockIdx.y;
    float sum = 0;
    if (j < c.dim)
        for (int t = strand; t < tiles; t += 8)
            sum += part[((int64_t)t * TAPS + tap + TAPS - c.width) * c.dim + j];
    sums[strand][threadIdx.x & 31] = sum;
    __syncthreads();
    if (strand || j >= c.dim)
        return;
    for (int i = 1; i < 8; i++)
        sum += sums[i][threadIdx.x];
    W *to = dw + (int64_t)j * c.width + tap;
    st(to, ld(to) + sum);
}

template <typename T> static void conv_bwd_run(struct backend *be, const struct op_conv_bwd *d)
{
    struct conv_in c = conv_in_of(d->seqs, d->dim, d->width);
    cudaStream_t stream = cuda_of(be)->stream;
    float *part = NULL;
    int tiles = (int)CEIL_DIV(c.rows, c.tile);
    if (!c.rows || !c.dim)
        return;
    if (tiles > 65535) {
        be_fail(be, E_CHECK, "op 'conv_bwd': %" PRId64 " rows, possible on cuda are 4 million", c.rows);
        return;
    }
    if (d->dw.p) {
        part = cuda_ws_of<float>(be, (int64_t)tiles * TAPS * c.dim);
        if (!part)
            return;
    }
    conv_bwd_kernel<T><<<dim3(CEIL_DIV(c.dim, 128), tiles), 128, 0, stream>>>(c, cuda_p<T>(d->dx), part, cuda_p<T>(d->dy),
                                                                              cuda_p<T>(d->pre), cuda_p<T>(d->x), cuda_p<T>(d->w));
    if (part)
        CUDA_BY_TYPE(d->dw.dt, W,
                     conv_dw_kernel<W><<<dim3(CEIL_DIV(c.dim, 32), c.width), 256, 0, stream>>>(c, cuda_p<W>(d->dw), part, tiles););
}
void cuda_op_conv_bwd(struct backend *be, const struct op_conv_bwd *d)
{
    CUDA_BY_TYPE(be->act, T, conv_bwd_run<T>(be, d););
}
