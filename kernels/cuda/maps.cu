/* Element by element: rotations, gates, mixing, copies, conversions, AdamW. Bound by memory: 16 bytes a thread where addresses allow. */
#include "kernels/cuda/vec.h"

#include <cuda_fp16.h>

/* ---- copies and conversions ---- */

template <typename W>
__global__ void gather_kernel(W *dst, const W *src, const int32_t *di, const int32_t *si, int64_t rows, int64_t width, int64_t ldd,
                              int64_t lds)
{
    EACH(i, rows * width)
    {
        int64_t r = i / width, j = i % width;
        dst[(di ? (int64_t)di[r] : r) * ldd + j] = src[(si ? (int64_t)si[r] : r) * lds + j];
    }
}

/* Rows of `width` elements of `size` bytes, in the widest words that addresses and strides allow. */
static void copy_rows(struct backend *be, void *dst, const void *src, const int32_t *di, const int32_t *si, int64_t rows, int64_t width,
                      int64_t ldd, int64_t lds, int64_t size)
{
    uintptr_t mix = (uintptr_t)dst | (uintptr_t)src | (uintptr_t)(width * size) | (uintptr_t)(ldd * size) | (uintptr_t)(lds * size);
    if (rows == 0 || width == 0)
        return;
    if (mix % 16 == 0)
        gather_kernel<uint4> LAUNCH(be, rows * width * size / 16)((uint4 *)dst, (const uint4 *)src, di, si, rows, width * size / 16,
                                                                  ldd * size / 16, lds * size / 16);
    else if (mix % 4 == 0)
        gather_kernel<uint32_t> LAUNCH(be, rows * width * size / 4)((uint32_t *)dst, (const uint32_t *)src, di, si, rows, width * size / 4,
                                                                    ldd * size / 4, lds * size / 4);
    else
        gather_kernel<uint16_t> LAUNCH(be, rows * width * size / 2)((uint16_t *)dst, (const uint16_t *)src, di, si, rows, width * size / 2,
                                                                    ldd * size / 2, lds * size / 2);
}

void cuda_op_gather(struct backend *be, const struct op_gather *d)
{
    copy_rows(be, d->dst.p, d->src.p, cuda_p<int32_t>(d->di), cuda_p<int32_t>(d->si), d->rows, d->dim, d->ldd ? d->ldd : d->dim,
              d->lds ? d->lds : d->dim, (int64_t)dtype_size(d->dst.dt));
}

void cuda_op_embed(struct backend *be, const struct op_embed *d)
{
    copy_rows(be, d->y.p, d->w.p, NULL, cuda_p<int32_t>(d->ids), d->rows, d->dim, d->dim, d->dim, (int64_t)dtype_size(d->y.dt));
}

static __device__ __forceinline__ double ldd(const void *p, enum dtype dt, int64_t i)
{
    switch (dt) {
    case DT_F32:
        return ((const float *)p)[i];
    case DT_F64:
        return ((const double *)p)[i];
    case DT_BF16:
        return __bfloat162float(((const bf16 *)p)[i]);
    case DT_F16:
        return __half2float(((const __half *)p)[i]);
    case DT_I32:
        return ((const int32_t *)p)[i];
    }
    return 0;
}
/* 16-bit targets round to float first, as everywhere. */
static __device__ __forceinline__ void std_(void *p, enum dtype dt, int64_t i, double x)
{
    switch (dt) {
    case DT_F32:
        ((float *)p)[i] = (float)x;
        break;
    case DT_F64:
        ((double *)p)[i] = x;
        break;
    case DT_BF16:
        ((bf16 *)p)[i] = __float2bfloat16_rn((float)x);
        break;
    case DT_F16:
        ((__half *)p)[i] = __float2half_rn((float)x);
        break;
    case DT_I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    }
}
__global__ void cast_kernel(void *dst, enum dtype dd, const void *src, enum dtype sd, int64_t n)
{
    EACH(i, n)
    std_(dst, dd, i, ldd(src, sd, i));
}
__global__ void f32_to_bf16_kernel(bf16 *dst, const float *src, int64_t n8)
{
    EACH(i, n8)
    {
        float a[4], b[4], x[8];
        ld16(a, src + 8 * i);
        ld16(b, src + 8 * i + 4);
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = a[k], x[4 + k] = b[k];
        st16(dst + 8 * i, x);
    }
}
__global__ void bf16_to_f32_kernel(float *dst, const bf16 *src, int64_t n8)
{
    EACH(i, n8)
    {
        float x[8], a[4], b[4];
        ld16(x, src + 8 * i);
#pragma unroll
        for (int k = 0; k < 4; k++)
            a[k] = x[k], b[k] = x[4 + k];
        st16(dst + 8 * i, a);
        st16(dst + 8 * i + 4, b);
    }
}

void cuda_op_cast(struct backend *be, const struct op_cast *d)
{
    int64_t done = 0;
    cudaStream_t s = cuda_of(be)->stream;
    if (d->n == 0)
        return;
    if (d->dst.dt == d->src.dt) {
        CUDA_OK(be, cudaMemcpyAsync(d->dst.p, d->src.p, (size_t)d->n * dtype_size(d->dst.dt), cudaMemcpyDeviceToDevice, s));
        return;
    }
    if (all_aligned(d->dst.p, d->src.p) && d->n >= 8) {
        if (d->src.dt == DT_F32 && d->dst.dt == DT_BF16) {
            f32_to_bf16_kernel LAUNCH(be, d->n / 8)((bf16 *)d->dst.p, (const float *)d->src.p, d->n / 8);
            done = d->n & ~(int64_t)7;
        } else if (d->src.dt == DT_BF16 && d->dst.dt == DT_F32) {
            bf16_to_f32_kernel LAUNCH(be, d->n / 8)((float *)d->dst.p, (const bf16 *)d->src.p, d->n / 8);
            done = d->n & ~(int64_t)7;
        }
    }
    if (done < d->n)
        cast_kernel LAUNCH(be, d->n - done)((char *)d->dst.p + done * dtype_size(d->dst.dt), d->dst.dt,
                                            (const char *)d->src.p + done * dtype_size(d->src.dt), d->src.dt, d->n - done);
}

/* ---- rotation: V pairs (i, i + half) a thread ---- */

template <typename T, int V>
__global__ void rope_kernel(T *x, const float *cos, const float *sin, const int32_t *pos, int64_t rows, int heads, int half, int64_t ld_,
                            float sign)
{
    const int64_t per_row = (int64_t)heads * (half / V);
    EACH(i, rows * per_row)
    {
        int64_t r = i / per_row;
        int h = (int)(i % per_row) / (half / V), j = (int)(i % per_row) % (half / V) * V;
        T *p = x + r * ld_ + (int64_t)h * 2 * half + j;
        const float *c = cos + (int64_t)pos[r] * half + j, *s = sin + (int64_t)pos[r] * half + j;
        float a[V], b[V], ya[V], yb[V];
        ldv(a, p);
        ldv(b, p + half);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float sn = sign * s[k];
            ya[k] = a[k] * c[k] - b[k] * sn;
            yb[k] = b[k] * c[k] + a[k] * sn;
        }
        stv(p, ya);
        stv(p + half, yb);
    }
}

void cuda_op_rope(struct backend *be, const struct op_rope *d)
{
    const int64_t half = d->dim / 2, ldx = d->ld ? d->ld : d->heads * d->dim, n = d->rows * d->heads * half;
    const float sign = d->inverse ? -1.0f : 1.0f;
    if (n == 0)
        return;
    CUDA_BY_TYPE(be->act, T, {
        const int V = VEC<T>::n;
        if (half % V == 0 && ldx % V == 0 && aligned16(d->x.p))
            rope_kernel<T, V> LAUNCH(be, n / V)(cuda_p<T>(d->x), cuda_p<float>(d->cos), cuda_p<float>(d->sin), cuda_p<int32_t>(d->pos),
                                                d->rows, (int)d->heads, (int)half, ldx, sign);
        else
            rope_kernel<T, 1> LAUNCH(be, n)(cuda_p<T>(d->x), cuda_p<float>(d->cos), cuda_p<float>(d->sin), cuda_p<int32_t>(d->pos), d->rows,
                                            (int)d->heads, (int)half, ldx, sign);
    });
}

/* ---- vectors of one length ----
 * A functor F has operator()(int64_t i, V) that handles V elements from i; over() splits n into whole vectors and a tail. */
template <int V, typename F> __global__ void over_kernel(F f, int64_t first, int64_t count)
{
    EACH(i, count)
    f.template run<V>(first + i * V);
}
template <typename T, typename F> static void over(struct backend *be, const F &f, int64_t n, bool aligned)
{
    const int V = VEC<T>::n;
    int64_t whole = aligned ? n / V : 0, done = whole * V;
    if (whole)
        over_kernel<V, F> LAUNCH(be, whole)(f, 0, whole);
    if (done < n)
        over_kernel<1, F> LAUNCH(be, n - done)(f, done, n - done);
}

template <typename T> struct swiglu_f {
    T *h; /* may be g: a thread reads its elements before it writes them */
    const T *g, *u;
    template <int V> __device__ void run(int64_t i) const
    {
        float a[V], b[V];
        ldv(a, g + i);
        ldv(b, u + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            a[k] = silu_f(a[k]) * b[k];
        stv(h + i, a);
    }
};
void cuda_op_swiglu(struct backend *be, const struct op_swiglu *d)
{
    CUDA_BY_TYPE(be->act, T, {
        swiglu_f<T> f = {cuda_p<T>(d->h), cuda_p<T>(d->g), cuda_p<T>(d->u)};
        over<T>(be, f, d->n, all_aligned(f.h, f.g, f.u));
    });
}

template <typename T> struct swiglu_bwd_f {
    T *dg, *du; /* may be dh, g, u: a thread reads its elements before it writes them */
    const T *dh, *g, *u;
    template <int V> __device__ void run(int64_t i) const
    {
        float a[V], b[V], c[V], x[V], y[V];
        ldv(a, g + i);
        ldv(b, u + i);
        ldv(c, dh + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float s = sigmoid_f(a[k]);
            x[k] = c[k] * b[k] * (s + a[k] * s * (1.0f - s));
            y[k] = c[k] * (a[k] * s);
        }
        stv(dg + i, x);
        stv(du + i, y);
    }
};
void cuda_op_swiglu_bwd(struct backend *be, const struct op_swiglu_bwd *d)
{
    CUDA_BY_TYPE(be->act, T, {
        swiglu_bwd_f<T> f = {cuda_p<T>(d->dg), cuda_p<T>(d->du), cuda_p<T>(d->dh), cuda_p<T>(d->g), cuda_p<T>(d->u)};
        over<T>(be, f, d->n, all_aligned(f.dg, f.du, f.dh, f.g, f.u));
    });
}

template <typename T> struct mix_f {
    T *y;
    const T *x[3];
    float p[3];
    int count;
    template <int V> __device__ void run(int64_t i) const
    {
        float sum[V], a[V];
        ldv(a, x[0] + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            sum[k] = p[0] * a[k];
#pragma unroll
        for (int j = 1; j < 3; j++)
            if (j < count) {
                ldv(a, x[j] + i);
#pragma unroll
                for (int k = 0; k < V; k++)
                    sum[k] += p[j] * a[k];
            }
        stv(y + i, sum);
    }
};
void cuda_op_mix(struct backend *be, const struct op_mix *d)
{
    CUDA_BY_TYPE(be->act, T, {
        mix_f<T> f;
        f.y = cuda_p<T>(d->y);
        f.count = d->count;
        for (int j = 0; j < 3; j++) {
            f.x[j] = j < d->count ? cuda_p<T>(d->x[j]) : NULL;
            f.p[j] = (float)d->p[j];
        }
        over<T>(be, f, d->n, all_aligned(f.y, f.x[0], f.x[1], f.x[2]));
    });
}

/* Y and X differ in type when a gradient in float takes in an activation. */
template <typename Y, typename X> struct axpby_f {
    Y *y;
    const X *x;
    float a, b;
    template <int V> __device__ void run(int64_t i) const
    {
        float s[V], t[V];
        ldv(s, y + i);
        if (x)
            ldv(t, x + i);
#pragma unroll
        for (int k = 0; k < V; k++)
            s[k] = x ? a * t[k] + b * s[k] : b * s[k];
        stv(y + i, s);
    }
};
template <typename Y, typename X> struct axpby_mixed_f {
    Y *y;
    const X *x;
    float a, b;
    template <int V> __device__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < V; k++)
            st(y + i + k, a * ld(x + i + k) + b * ld(y + i + k));
    }
};
void cuda_op_axpby(struct backend *be, const struct op_axpby *d)
{
    CUDA_BY_TYPE(d->y.dt, Y, {
        if (!d->x.p || d->x.dt == d->y.dt) {
            axpby_f<Y, Y> f = {cuda_p<Y>(d->y), cuda_p<Y>(d->x), (float)d->a, (float)d->b};
            over<Y>(be, f, d->n, all_aligned(f.y, f.x));
        } else {
            CUDA_BY_TYPE(d->x.dt, X, {
                axpby_mixed_f<Y, X> f = {cuda_p<Y>(d->y), cuda_p<X>(d->x), (float)d->a, (float)d->b};
                over<Y>(be, f, d->n, false);
            });
        }
    });
}

/* Constants are made in double, so that 1 - b keeps its digits. */
template <typename T> struct adamw_f {
    float *w, *m, *v;
    T *w_act;
    const float *g;
    float b1, b2, c1, c2, r1, r2, lr, eps, wd, gscale;
    template <int V> __device__ void run(int64_t i) const
    {
#pragma unroll
        for (int k = 0; k < V; k++) {
            float gs = g[i + k] * gscale, mm = b1 * m[i + k] + c1 * gs, vv = b2 * v[i + k] + c2 * gs * gs;
            float ww = w[i + k], step = mm * r1 / (sqrtf(vv * r2) + eps) + wd * ww;
            ww -= lr * step;
            m[i + k] = mm;
            v[i + k] = vv;
            w[i + k] = ww;
            if (w_act)
                st(w_act + i + k, ww);
        }
    }
};
void cuda_op_adamw(struct backend *be, const struct op_adamw *d)
{
    CUDA_BY_TYPE(be->act, T, {
        adamw_f<T> f;
        f.w = cuda_p<float>(d->w), f.m = cuda_p<float>(d->m), f.v = cuda_p<float>(d->v);
        f.w_act = cuda_p<T>(d->w_act);
        f.g = cuda_p<float>(d->g);
        f.b1 = (float)d->b1, f.b2 = (float)d->b2, f.c1 = (float)(1 - d->b1), f.c2 = (float)(1 - d->b2);
        f.r1 = (float)(1 / d->bc1), f.r2 = (float)(1 / d->bc2);
        f.lr = (float)d->lr, f.eps = (float)d->eps, f.wd = (float)d->wd, f.gscale = (float)d->gscale;
        over<T>(be, f, d->n, false);
    });
}
