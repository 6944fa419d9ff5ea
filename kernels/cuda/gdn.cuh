/*
 * Gated delta rule in chunks of 64 tokens: what its forward and backward share. First a kernel over all chunks and heads at once makes what
 * does not depend on the state,
 *
 *     A = (I + strict_lower(beta_i k_i.k_j))^-1,  Ag = Gam o A o beta_j,  P = s Gam o (Q K^T),  gamma = exp(cum), tail = exp(cum_last -
 * cum);
 *
 * then a scan over the chunks of each head and block of value columns carries the state. Gates enter only as exp of differences that are
 * never positive, selected before the exp. The inverse and all gates are float, the operands of products are T.
 */
#ifndef KERNELS_CUDA_GDN_CUH
#define KERNELS_CUDA_GDN_CUH

#include "kernels/cuda/tile.cuh"

enum { GDN_MAX_KDIM = 128 };

/* Shapes and inputs of all GDN kernels. */
template <typename T> struct gdn_in {
    const T *q, *k, *v;
    const float *g, *beta;
    const int *q_off;
    int n, h, hv, kdim, vdim, longest; /* longest: chunks of the longest sequence */
    int64_t rows, slots;               /* slots: chunks that the scratch has room for */
    float scale;
    bool veck, vecv; /* rows of keys, of values can be moved by 16 bytes */
};
/* Made per chunk, in the op's workspace. Chunk c of sequence s has slot q_off[s] / 64 + s + c. */
template <typename T> struct gdn_pre {
    T *p, *ag;    /* [slots][hv][64][64] */
    float *gates; /* [slots][hv][2][64]: gamma, tail */
};
/* A saved tensor of either type. */
struct gdn_saved {
    void *p;
    bool f32;
};
static inline struct gdn_saved gdn_saved_of(struct view v)
{
    return {v.p, v.dt == DT_F32};
}

struct gdn_chunk_at {
    int64_t row, slot;
    int n; /* tokens, 0 = beyond the end */
};
template <typename T> static __device__ __forceinline__ gdn_chunk_at gdn_find(const gdn_in<T> &x, int seq, int chunk)
{
    int first = x.q_off[seq], left = x.q_off[seq + 1] - first - chunk * GDN_CHUNK;
    return {(int64_t)first + chunk * GDN_CHUNK, (int64_t)first / GDN_CHUNK + seq + chunk,
            left < 0           ? 0
            : left < GDN_CHUNK ? left
                               : GDN_CHUNK};
}
/* The same from the sequence's first row and length, for loops over its chunks. */
static __device__ __forceinline__ gdn_chunk_at gdn_nth(int first, int len, int seq, int chunk)
{
    return {(int64_t)first + chunk * GDN_CHUNK, (int64_t)(first / GDN_CHUNK) + seq + chunk, min(GDN_CHUNK, len - chunk * GDN_CHUNK)};
}
/* Chunks of all sequences before this one: where its hs begin. */
static __device__ __forceinline__ int64_t gdn_first_chunk(const int *q_off, int seq)
{
    int sum = 0;
    for (int s = threadIdx.x & 31; s < seq; s += 32)
        sum += (q_off[s + 1] - q_off[s] + GDN_CHUNK - 1) / GDN_CHUNK;
#pragma unroll
    for (int o = 16; o; o >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    return sum;
}

/* Inclusive sums of g from the chunk's start as two floats (after a spike differences of sums would lose digits); beyond n as at n - 1. One
 * warp. */
static __device__ __forceinline__ void gdn_cumulate(float *hi, float *lo, const float *g, int64_t ld_g, int n)
{
    const int lane = threadIdx.x & 31;
    double a = 2 * lane < n ? (double)g[2 * lane * ld_g] : 0, b = 2 * lane + 1 < n ? (double)g[(2 * lane + 1) * ld_g] : 0, sum = a + b;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        double up = __shfl_up_sync(0xffffffffu, sum, o);
        if (lane >= o)
            sum += up;
    }
    double first = sum - b;
    hi[2 * lane] = (float)first;
    lo[2 * lane] = (float)(first - (double)(float)first);
    hi[2 * lane + 1] = (float)sum;
    lo[2 * lane + 1] = (float)(sum - (double)(float)sum);
}
static __device__ __forceinline__ float gdn_since(const float *hi, const float *lo, int i, int j)
{
    return (hi[i] - hi[j]) + (lo[i] - lo[j]);
}

/* exp with the precision that T has use for: an error of some 1e-6 in a decay of e^-30. */
template <typename T> static __device__ __forceinline__ float gdn_exp(float x)
{
    return sizeof(T) == 2 ? __expf(x) : expf(x);
}

/* Rows of a fragment to global memory: row stride ld, rows below n, columns below cols. */
template <typename T, int NT>
static __device__ __forceinline__ void gdn_rows_out(float (&c)[1][NT][4], T *to, int64_t ld_to, int row0, int n, int cols, bool vec)
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

/* Fills x from a descriptor; false (sticky error set) when the op cannot be done. */
template <typename T, typename D> static bool gdn_in_of(struct backend *be, gdn_in<T> *x, const D *d, const char *op)
{
    constexpr int V = VEC<T>::n;
    if (d->kdim > GDN_MAX_KDIM || d->kdim < 1) {
        be_fail(be, E_CHECK, "op '%s': key head dim %" PRId64 ", possible on cuda are 1 to %d", op, d->kdim, (int)GDN_MAX_KDIM);
        return false;
    }
    if (d->seqs->n > 65535 || d->hv > 65535) {
        be_fail(be, E_CHECK, "op '%s': %d sequences, %" PRId64 " value heads, possible on cuda are 65535", op, (int)d->seqs->n, d->hv);
        return false;
    }
    *x = {};
    x->q = cuda_p<T>(d->q), x->k = cuda_p<T>(d->k), x->v = cuda_p<T>(d->v);
    x->g = cuda_p<float>(d->g), x->beta = cuda_p<float>(d->beta);
    x->q_off = cuda_p<int>(d->seqs->d_q_off);
    x->n = d->seqs->n, x->h = (int)d->h, x->hv = (int)d->hv, x->kdim = (int)d->kdim, x->vdim = (int)d->vdim;
    x->rows = d->seqs->rows;
    x->slots = x->rows / GDN_CHUNK + x->n;
    x->scale = (float)d->scale;
    x->veck = d->kdim % V == 0 && aligned16(d->q.p) && aligned16(d->k.p);
    x->vecv = d->vdim % V == 0 && aligned16(d->v.p);
    for (int32_t s = 0; s < d->seqs->n; s++)
        x->longest = MAX(x->longest, (int)CEIL_DIV(seqs_qlen(d->seqs, s), GDN_CHUNK));
    return true;
}
template <typename T> static bool gdn_pre_of(struct backend *be, gdn_pre<T> *pre, const gdn_in<T> &x)
{
    int64_t n = x.slots * x.hv;
    pre->p = cuda_ws_of<T>(be, n * GDN_CHUNK * GDN_CHUNK);
    pre->ag = cuda_ws_of<T>(be, n * GDN_CHUNK * GDN_CHUNK);
    pre->gates = cuda_ws_of<float>(be, n * 2 * GDN_CHUNK);
    return pre->p && pre->ag && pre->gates;
}

/* gdn.cu: the kernel over all chunks; ainv is read when `have` is set, else written when present. */
template <typename T> void gdn_run_pre(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, gdn_saved ainv, bool have);
/* gdn.cu: the forward scan; each of o, s_in, s_out, hs may be absent. */
template <typename T>
void gdn_run_scan(struct backend *be, const gdn_in<T> &x, const gdn_pre<T> &pre, T *o, const float *s_in, float *s_out, gdn_saved hs);

#endif
