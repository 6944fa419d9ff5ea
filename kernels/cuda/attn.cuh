/*
 * Attention: what its kernels share. Rows of queries are packed; the keys of sequence s are rows kv_off[s] + j (or + j % ring), j <
 * kv_len[s], and its queries are the last of them. Two branches (windows) share q, k, v; branch 0 has the larger window (0 = all keys),
 * whatever their order in the op.
 */
#ifndef KERNELS_CUDA_ATTN_CUH
#define KERNELS_CUDA_ATTN_CUH

#include "kernels/cuda/tile.cuh"

enum { ATTN_MAX_DIM = 256 };

template <typename T> struct attn_in {
    const T *q, *k, *v;
    const int *q_off, *kv_off, *kv_len; /* kv_off, kv_len NULL: keys are the queries' rows */
    int n, h, g, rep, kdim, vdim, ring;
    int longest;             /* queries of the longest sequence */
    int branches, window[2]; /* INT_MAX = all keys; descending */
    int64_t ldq, ldk, ldv, rows;
    float scale;
};
template <typename T> struct attn_out {
    T *o[2];
    float *lse[2]; /* may be NULL */
};
/* Backward: the gradient d_o belongs to p[0] o[0] + p[1] o[1]; dp[b] += sum d_o . o[b]. */
template <typename T> struct attn_grad {
    T *dq, *dk, *dv;
    const T *d_o, *o[2];
    const float *lse[2];
    float *delta[2]; /* [rows][h], workspace */
    float p[2];
};

struct attn_seq {
    int nq, nk, row, kv; /* queries, keys, first rows of them */
};
template <typename T> static __device__ __forceinline__ attn_seq attn_find(const attn_in<T> &x, int seq)
{
    attn_seq s;
    s.row = x.q_off[seq];
    s.nq = x.q_off[seq + 1] - s.row;
    s.nk = x.kv_len ? x.kv_len[seq] : s.nq;
    s.kv = x.kv_off ? x.kv_off[seq] : s.row;
    return s;
}
template <typename T> static __device__ __forceinline__ int attn_kv_row(const attn_in<T> &x, const attn_seq &s, int j)
{
    return s.kv + (x.ring ? j % x.ring : j);
}

template <typename T, typename D>
static bool attn_in_of(struct backend *be, attn_in<T> *x, const D *d, const struct view *o2, const char *op, bool *swapped)
{
    if (d->kdim > ATTN_MAX_DIM || d->vdim > ATTN_MAX_DIM || d->kdim < 1 || d->vdim < 1) {
        be_fail(be, E_CHECK, "op '%s': head dims %" PRId64 " and %" PRId64 ", possible on cuda are 1 to %d", op, d->kdim, d->vdim,
                (int)ATTN_MAX_DIM);
        return false;
    }
    if (d->seqs->n > 65535 || d->h > 65535) {
        be_fail(be, E_CHECK, "op '%s': %d sequences, %" PRId64 " heads, possible on cuda are 65535", op, (int)d->seqs->n, d->h);
        return false;
    }
    *x = {};
    x->q = cuda_p<T>(d->q), x->k = cuda_p<T>(d->k), x->v = cuda_p<T>(d->v);
    x->q_off = cuda_p<int>(d->seqs->d_q_off);
    x->kv_off = d->seqs->kv_off ? cuda_p<int>(d->seqs->d_kv_off) : NULL;
    x->kv_len = d->seqs->kv_len ? cuda_p<int>(d->seqs->d_kv_len) : NULL;
    x->n = d->seqs->n, x->h = (int)d->h, x->g = (int)d->g, x->rep = (int)(d->h / d->g), x->kdim = (int)d->kdim, x->vdim = (int)d->vdim;
    x->rows = d->seqs->rows;
    x->ldq = d->ldq ? d->ldq : d->h * d->kdim, x->ldk = d->ldk ? d->ldk : d->g * d->kdim, x->ldv = d->ldv ? d->ldv : d->g * d->vdim;
    x->scale = (float)d->scale;
    for (int32_t s = 0; s < d->seqs->n; s++)
        x->longest = MAX(x->longest, seqs_qlen(d->seqs, s));
    x->branches = o2->p ? 2 : 1;
    x->window[0] = d->window ? d->window : INT32_MAX;
    x->window[1] = d->window2 ? d->window2 : INT32_MAX;
    *swapped = o2->p && x->window[1] > x->window[0];
    if (*swapped) {
        int w = x->window[0];
        x->window[0] = x->window[1];
        x->window[1] = w;
    }
    return true;
}

/* Tensor-core kernels (bf16); false = not for these shapes, nothing done. attn_mma.cu, attn_mma_bwd.cu. */
bool attn_mma(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s);
bool attn_mma_bwd(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d);
/* Few queries of a sequence against many keys: attn_split.cu. fresh: of each sequence's one new token, which the call puts into the cache.
 */
struct attn_fresh;
bool attn_split(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out, const struct seqs *s, const attn_fresh *fresh);
/* The same on Hopper's asynchronous tensor cores, for queries by the hundred: attn_wg.cu, attn_wg_bwd.cu. */
bool attn_wg(struct backend *be, const attn_in<bf16> &x, const attn_out<bf16> &out);
bool attn_wg_bwd(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d);
/* For kernels that own blocks of `block` keys: into how many groups the query heads of a kv head are split, with room for the groups' sums
   [group][rows][g][dim] (NULL with one group; 0 = no memory, sticky error set); and their sum, ascending, into dk and dv. */
int attn_dkv_groups(struct backend *be, const attn_in<bf16> &x, int block, float **pk, float **pv);
void attn_add_groups(struct backend *be, const attn_in<bf16> &x, const attn_grad<bf16> &d, const float *pk, const float *pv, int groups);

/* Head dims, strides and addresses allow 16-byte copies of rows of heads. */
static inline bool attn_vec(const attn_in<bf16> &x)
{
    return x.kdim % 8 == 0 && x.vdim % 8 == 0 && x.ldq % 8 == 0 && x.ldk % 8 == 0 && x.ldv % 8 == 0 && aligned16(x.q) && aligned16(x.k) &&
           aligned16(x.v);
}

static __device__ __forceinline__ float exp2_f(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* o[MT][D / 8] += P V with P = s as bf16; v: the first row of its tile in shared memory, rows of tile_ld(D). */
template <int D, int MT, int NT>
static __device__ __forceinline__ void add_pv(float (&o)[MT][D / 8][4], const float (&s)[MT][NT][4], const bf16 *v)
{
    constexpr int LD = tile_ld<bf16>(D);
    const int lane = threadIdx.x & 31, i = lane >> 3, r = lane & 7;
    const unsigned pb = smem_addr(v + ((i & 1) * 8 + r) * LD + (i >> 1) * 8);
#pragma unroll
    for (int kk = 0; kk < NT / 2; kk++) {
        unsigned a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = bf16_pack(s[m][2 * kk][0], s[m][2 * kk][1]);
            a[m][1] = bf16_pack(s[m][2 * kk][2], s[m][2 * kk][3]);
            a[m][2] = bf16_pack(s[m][2 * kk + 1][0], s[m][2 * kk + 1][1]);
            a[m][3] = bf16_pack(s[m][2 * kk + 1][2], s[m][2 * kk + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            unsigned b[4];
            ldmatrix4t(b, pb + 2u * (unsigned)(16 * kk * LD + 8 * n));
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma16816(o[m][n], a[m], b[0], b[1]);
                mma16816(o[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Keys j with t - far < j <= t - near of queries t_lo .. t_hi: as blocks of BN keys, `first` the last one. */
struct attn_phase {
    int near, far, first, count;
};
template <int BN> static __device__ __forceinline__ attn_phase attn_phase_of(int near, int far, int t_lo, int t_hi)
{
    int hi = t_hi - near, lo = far > t_lo ? 0 : t_lo - far + 1;
    attn_phase p = {near, far, hi / BN, hi < lo || hi < 0 ? 0 : hi / BN - lo / BN + 1};
    return p;
}

/* The state so far as an output: o / l, lse. */
template <int D, int MT>
static __device__ __forceinline__ void attn_emit(const attn_in<bf16> &x, bf16 *to, float *lse, const float (&o)[MT][D / 8][4],
                                                 const float (&m)[MT][2], const float (&l)[MT][2], int64_t row, int head, int left)
{
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = 16 * i + 8 * h + g;
            float sum = l[i][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (r >= left)
                continue;
            const float inv = 1.0f / sum;
            const int64_t at = (row + r) * x.h + head;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                if (8 * n < x.vdim)
                    st2(to + at * x.vdim + 8 * n + 2 * t, o[i][n][2 * h] * inv, o[i][n][2 * h + 1] * inv);
            if (lse && t == 0)
                lse[at] = m[i][h] * x.scale + logf(sum);
        }
}

/* Keys j0 .. j0 + ROWS - 1 of one kv head, K and V, by THREADS threads of which this is number `tid`. */
template <int D, int ROWS, int THREADS = 128>
static __device__ __forceinline__ void load_kv(bf16 *k, bf16 *v, const attn_in<bf16> &x, const attn_seq &s, int kvh, int j0, int tid)
{
    constexpr int LD = tile_ld<bf16>(D), U = D / 8;
    if (!x.ring) {
        tile_load<ROWS, D, THREADS>(k, LD, x.k + (int64_t)(s.kv + j0) * x.ldk + kvh * x.kdim, x.ldk, s.nk - j0, x.kdim, true, tid);
        tile_load<ROWS, D, THREADS>(v, LD, x.v + (int64_t)(s.kv + j0) * x.ldv + kvh * x.vdim, x.ldv, s.nk - j0, x.vdim, true, tid);
        return;
    }
#pragma unroll 1
    for (int u = tid; u < ROWS * U; u += THREADS) {
        const int r = u / U, c = u % U * 8, j = j0 + r;
        const bool on = j < s.nk;
        const int64_t row = on ? attn_kv_row(x, s, j) : s.kv;
        cp_async16(k + r * LD + c, x.k + row * x.ldk + kvh * x.kdim + (c < x.kdim ? c : 0), on && c < x.kdim);
        cp_async16(v + r * LD + c, x.v + row * x.ldv + kvh * x.vdim + (c < x.vdim ? c : 0), on && c < x.vdim);
    }
}

/* Online softmax over one tile of scores: s becomes 2^(s - m) with the new maxima, o and l are rescaled. sl2 = scale log2 e; m, l per row
 * (16-row tile, upper/lower). */
template <int MT, int NT, int NO>
static __device__ __forceinline__ void soften(float (&s)[MT][NT][4], float (&o)[MT][NO][4], float (&m)[MT][2], float (&l)[MT][2], float sl2)
{
#pragma unroll
    for (int t = 0; t < MT; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = m[t][h];
#pragma unroll
            for (int n = 0; n < NT; n++)
                top = fmaxf(top, fmaxf(s[t][n][2 * h], s[t][n][2 * h + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0 : top * sl2, f = exp2_f(fmaf(m[t][h], sl2, -base));
            float sum = 0;
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = exp2_f(fmaf(s[t][n][2 * h + e], sl2, -base));
                    s[t][n][2 * h + e] = p;
                    sum += p;
                }
            m[t][h] = top;
            l[t][h] = fmaf(l[t][h], f, sum);
#pragma unroll
            for (int n = 0; n < NO; n++) {
                o[t][n][2 * h] *= f;
                o[t][n][2 * h + 1] *= f;
            }
        }
}

#endif
