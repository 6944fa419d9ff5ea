/*
 * The gated delta rule for one new token a sequence: what stands around the recurrence (gdn_maps.cu) and the recurrence itself
 * (gdn_step_kernel) in one kernel, as kernels/step.h's be_gdn_token. A block is a head of a sequence: thread c + 128 p has value column c
 * and part p of the state's rows in registers, asked for before the step's previous kernel has ended.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/silu.cuh"

extern "C" {
#include "kernels/step.h"
}

enum { TOKEN_COLS = 128, TOKEN_PARTS = 2, TOKEN_THREADS = TOKEN_COLS * TOKEN_PARTS };
struct token_args {
    bf16 *y;
    const bf16 *q, *k, *v, *gate, *w; /* before SiLU and norm */
    const float *a, *b, *a_log, *dt_bias, *s_in;
    float *s_out, scale, eps;
    int h, hv, kdim, vdim;
    bool silu, neg;
};

/* Sums over the 128 threads of each part, in all of them; shared: 8 values. */
static __device__ __forceinline__ float part_sum(float x, float *shared)
{
    const int warp = threadIdx.x >> 5, first = warp & ~3;
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        shared[warp] = x;
    __syncthreads();
    return shared[first] + shared[first + 1] + shared[first + 2] + shared[first + 3];
}

/* R: rows of the state a thread holds. */
template <int R> static __global__ void __launch_bounds__(TOKEN_THREADS) gdn_token_kernel(const token_args x)
{
    __shared__ float qk[2][TOKEN_COLS], part[TOKEN_PARTS][TOKEN_COLS], shared[8];
    const int head = blockIdx.x, seq = blockIdx.y, c = threadIdx.x % TOKEN_COLS, p = threadIdx.x / TOKEN_COLS;
    const int64_t at = (int64_t)seq * x.hv + head, key = ((int64_t)seq * x.h + head / (x.hv / x.h)) * x.kdim,
                  state = at * x.kdim * x.vdim + c;
    const bool on = c < x.vdim;
    float s[R];
    let_next_start();
#pragma unroll
    for (int i = 0; i < R; i++) /* written by the step before this one, which the host has waited for */
        s[i] = x.s_in && on && R * p + i < x.kdim ? x.s_in[state + (int64_t)(R * p + i) * x.vdim] : 0;
    const float rate = expf(x.a_log[head]), bias = x.dt_bias[head], weight = on ? ld(x.w + c) : 0;
    after_previous();
    /* all that is read, at once; part 0 makes q, part 1 k */
    float z = c < x.kdim ? ld((p ? x.k : x.q) + key + c) : 0, v = on ? ld(x.v + at * x.vdim + c) : 0;
    const float b = x.b[at], u0 = x.a[at] + bias, gate = on && x.gate ? ld(x.gate + at * x.vdim + c) : 0;
    if (x.silu)
        z = silu_t<bf16>(z), v = silu_t<bf16>(v);
    z *= 1.0f / sqrtf(part_sum(z * z, shared) + 1e-6f);
    qk[p][c] = rounded<bf16>(z);
    v = rounded<bf16>(v);
    const float beta = sigmoid_f(b) * (x.neg ? 2.0f : 1.0f), alpha = expf(-rate * (u0 > 20.0f ? u0 : log1pf(expf(u0))));
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < R; i++) {
        s[i] *= alpha;
        sum = fmaf(s[i], qk[1][R * p + i], sum);
    }
    part[p][c] = sum;
    __syncthreads();
    const float delta = beta * (v - (part[0][c] + part[1][c]));
    sum = 0;
#pragma unroll
    for (int i = 0; i < R; i++) {
        s[i] = fmaf(qk[1][R * p + i], delta, s[i]);
        sum = fmaf(s[i], qk[0][R * p + i], sum);
        if (on && R * p + i < x.kdim)
            x.s_out[state + (int64_t)(R * p + i) * x.vdim] = s[i];
    }
    __syncthreads();
    part[p][c] = sum;
    __syncthreads();
    const float o = on ? rounded<bf16>(x.scale * (part[0][c] + part[1][c])) : 0;
    const float r = 1.0f / sqrtf(part_sum(o * o, shared) / (float)x.vdim + x.eps);
    if (p == 0 && on)
        st(x.y + at * x.vdim + c, o * (r * weight * (x.gate ? silu_t<bf16>(gate) : 1.0f)));
}

bool cuda_gdn_token(struct backend *be, const struct step_gdn *d)
{
    const struct op_gdn_prep *f = &d->prep;
    const struct op_gdn *g = &d->gdn;
    const struct op_gdn_out *o = &d->out;
    if (!cuda_fused(be) || g->kdim > TOKEN_COLS || g->vdim > TOKEN_COLS || g->hv > 65535 || g->seqs->n < 1 || g->seqs->n > 65535 ||
        g->seqs->rows != g->seqs->n || !g->s_out.p || f->a_lin.dt != DT_F32 || f->b_lin.dt != DT_F32)
        return false;
    for (int32_t i = 0; i < g->seqs->n; i++)
        if (seqs_qlen(g->seqs, i) != 1)
            return false;
    const token_args a = {cuda_p<bf16>(o->y),
                          cuda_p<bf16>(f->q_lin),
                          cuda_p<bf16>(f->k_lin),
                          cuda_p<bf16>(f->v_lin),
                          cuda_p<bf16>(o->gate),
                          cuda_p<bf16>(o->w),
                          cuda_p<float>(f->a_lin),
                          cuda_p<float>(f->b_lin),
                          cuda_p<float>(f->a_log),
                          cuda_p<float>(f->dt_bias),
                          cuda_p<float>(g->s_in),
                          cuda_p<float>(g->s_out),
                          (float)g->scale,
                          (float)o->eps,
                          (int)g->h,
                          (int)g->hv,
                          (int)g->kdim,
                          (int)g->vdim,
                          f->silu,
                          f->neg_eigval};
    const dim3 grid((unsigned)g->hv, (unsigned)g->seqs->n);
    cuda_step_begin(be, "gdn_token");
    if (g->kdim <= 32)
        launch_after(be, gdn_token_kernel<16>, grid, TOKEN_THREADS, 0, 1, a);
    else if (g->kdim <= 64)
        launch_after(be, gdn_token_kernel<32>, grid, TOKEN_THREADS, 0, 1, a);
    else
        launch_after(be, gdn_token_kernel<64>, grid, TOKEN_THREADS, 0, 1, a);
    cuda_step_end(be);
    return true;
}
