/*
 * Decoding: what kernels/step.h names, for bf16 and at most 16 rows, and recorded steps. A step reads every weight once for a handful of
 * rows: it is bound by memory and, in single ops, by the time between launches.
 */
#include "kernels/cuda/tile.cuh"
#include "kernels/cuda/vec.h"

extern "C" {
#include "kernels/step.h"
}

/* ---- several products of one input ---- */

enum { MANY_WARPS = 8, MANY_GROUPS = 2, MANY_COLS = 8 * MANY_GROUPS, MANY_AHEAD = 4, LIBRARY_FROM = 12288 };
struct many_args {
    const bf16 *x, *w[STEP_LINEAR_MAX], *bias[STEP_LINEAR_MAX];
    void *y[STEP_LINEAR_MAX];
    int first[STEP_LINEAR_MAX + 1]; /* block of the first MANY_COLS outputs of each weight */
    int n[STEP_LINEAR_MAX], count, rows, k;
    unsigned f32, add; /* bits: y is float; y += */
};

/*
 * A block makes MANY_COLS outputs for up to 16 rows; its warps share K in stretches. A lane reads 16 bytes of a row of W (8 neighbouring k)
 * and of two rows of x; which k an mma calls which does not matter as long as both operands agree, so lane t's eight are k 2t, 2t+1, 2t+8,
 * 2t+9 of two products. The warps' sums are added in order.
 */
static __global__ void __launch_bounds__(32 * MANY_WARPS) linear_many_kernel(const many_args a)
{
    __shared__ float sums[MANY_WARPS][16][MANY_COLS + 1];
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
    int m = 0;
    while (m + 1 < a.count && (int)blockIdx.x >= a.first[m + 1])
        m++;
    const int col0 = ((int)blockIdx.x - a.first[m]) * MANY_COLS, steps = a.k / 32, each = (steps + MANY_WARPS - 1) / MANY_WARPS;
    const int k0 = warp * each, k1 = min(k0 + each, steps);
    const bf16 *x0 = a.x + (int64_t)g * a.k + 8 * t, *x1 = x0 + (int64_t)8 * a.k, *w[MANY_GROUPS];
    bool on[MANY_GROUPS];
    float acc[MANY_GROUPS][4];
#pragma unroll
    for (int i = 0; i < MANY_GROUPS; i++) {
        on[i] = col0 + 8 * i + g < a.n[m];
        w[i] = a.w[m] + (int64_t)(on[i] ? col0 + 8 * i + g : 0) * a.k + 8 * t;
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    }
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int s0 = k0; s0 < k1; s0 += MANY_AHEAD) {
        uint4 xa[MANY_AHEAD][2], wb[MANY_AHEAD][MANY_GROUPS];
#pragma unroll
        for (int u = 0; u < MANY_AHEAD; u++) {
            const bool in = s0 + u < k1;
            const int at = 32 * (s0 + u);
#pragma unroll
            for (int i = 0; i < MANY_GROUPS; i++)
                wb[u][i] = in && on[i] ? __ldcs((const uint4 *)(w[i] + at)) : zero; /* read once: do not keep */
            xa[u][0] = in && g < a.rows ? *(const uint4 *)(x0 + at) : zero;
            xa[u][1] = in && g + 8 < a.rows ? *(const uint4 *)(x1 + at) : zero;
        }
#pragma unroll
        for (int u = 0; u < MANY_AHEAD; u++) {
            const unsigned lo[4] = {xa[u][0].x, xa[u][1].x, xa[u][0].y, xa[u][1].y},
                           hi[4] = {xa[u][0].z, xa[u][1].z, xa[u][0].w, xa[u][1].w};
#pragma unroll
            for (int i = 0; i < MANY_GROUPS; i++) {
                mma16816(acc[i], lo, wb[u][i].x, wb[u][i].y);
                mma16816(acc[i], hi, wb[u][i].z, wb[u][i].w);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MANY_GROUPS; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sums[warp][g + 8 * (e >> 1)][8 * i + 2 * t + (e & 1)] = acc[i][e];
    __syncthreads();
    const int r = tid / MANY_COLS, c = tid % MANY_COLS, col = col0 + c;
    static_assert(32 * MANY_WARPS == 16 * MANY_COLS, "one output a thread");
    if (r >= a.rows || col >= a.n[m])
        return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < MANY_WARPS; i++)
        sum += sums[i][r][c];
    if (a.bias[m])
        sum += ld(a.bias[m] + col);
    const int64_t at = (int64_t)r * a.n[m] + col;
    if (a.f32 >> m & 1) {
        float *y = (float *)a.y[m] + at;
        *y = a.add >> m & 1 ? *y + sum : sum;
    } else {
        bf16 *y = (bf16 *)a.y[m] + at;
        st(y, a.add >> m & 1 ? ld(y) + sum : sum);
    }
}

bool cuda_linear_many(struct backend *be, struct view x, int64_t rows, int64_t k, const struct step_linear *l, int count)
{
    many_args a = {};
    int64_t outputs = 0;
    for (int i = 0; i < count; i++)
        outputs += l[i].n;
    if (cuda_fused(be) < 2 && outputs > LIBRARY_FROM) /* large ones are left to the library */
        return false;
    if (!cuda_fused(be) || be->act != DT_BF16 || rows > 16 || rows < 1 || k % 32 || k > 1 << 20 || !aligned16(x.p))
        return false;
    for (int i = 0; i < count; i++) {
        if (l[i].n < 1 || l[i].n > 1 << 20 || !aligned16(l[i].w.p) || (l[i].y.dt != DT_BF16 && l[i].y.dt != DT_F32))
            return false;
        a.w[i] = cuda_p<bf16>(l[i].w), a.bias[i] = cuda_p<bf16>(l[i].bias), a.y[i] = l[i].y.p;
        a.n[i] = (int)l[i].n;
        a.first[i + 1] = a.first[i] + (int)CEIL_DIV(l[i].n, (int64_t)MANY_COLS);
        a.f32 |= (unsigned)(l[i].y.dt == DT_F32) << i;
        a.add |= (unsigned)l[i].add << i;
    }
    a.x = cuda_p<bf16>(x), a.count = count, a.rows = (int)rows, a.k = (int)k;
    cuda_step_begin(be, "linear_many");
    linear_many_kernel<<<(unsigned)a.first[count], 32 * MANY_WARPS, 0, cuda_of(be)->stream>>>(a);
    cuda_step_end(be);
    return true;
}

/* ---- u = x + y, h = norm(u) w: the sums of rmsnorm_kernel, in its order ---- */

template <int GROUP>
static __global__ void __launch_bounds__(256)
    add_norm_kernel(bf16 *u, bf16 *h, const bf16 *x, const bf16 *y, const bf16 *w, int64_t rows, int dim, float eps)
{
    __shared__ float shared[32];
    const int lane = threadIdx.x % GROUP, V = 8;
    const int64_t r = (int64_t)blockIdx.x * (256 / GROUP) + threadIdx.x / GROUP;
    if (r >= rows) /* whole groups leave */
        return;
    float sum = 0, a[8], b[8];
    for (int j = lane * V; j < dim; j += GROUP * V) {
        ld16(a, x + r * dim + j);
        ld16(b, y + r * dim + j);
#pragma unroll
        for (int k = 0; k < V; k++) {
            a[k] = rounded<bf16>(a[k] + b[k]);
            sum += a[k] * a[k];
        }
        st16(u + r * dim + j, a);
    }
    sum = GROUP == 32 ? warp_sum(sum) : block_sum<GROUP>(sum, shared);
    const float s = rsqrtf(sum / (float)dim + eps);
    for (int j = lane * V; j < dim; j += GROUP * V) { /* each thread reads what it wrote */
        ld16(a, u + r * dim + j);
        ld16(b, w + j);
#pragma unroll
        for (int k = 0; k < V; k++)
            a[k] = a[k] * s * b[k];
        st16(h + r * dim + j, a);
    }
}

bool cuda_add_norm(struct backend *be, const struct step_add_norm *d)
{
    cudaStream_t s = cuda_of(be)->stream;
    bf16 *u = cuda_p<bf16>(d->u), *h = cuda_p<bf16>(d->h);
    const bf16 *x = cuda_p<bf16>(d->x), *y = cuda_p<bf16>(d->y), *w = cuda_p<bf16>(d->w);
    if (!cuda_fused(be) || be->act != DT_BF16 || d->rows < 1 || d->dim % 8 || d->dim > 1 << 20 || !all_aligned(u, h, x, y, w))
        return false;
    cuda_step_begin(be, "add_norm");
    if (d->dim <= 1024)
        add_norm_kernel<32><<<(unsigned)CEIL_DIV(d->rows, 8), 256, 0, s>>>(u, h, x, y, w, d->rows, (int)d->dim, (float)d->eps);
    else
        add_norm_kernel<256><<<(unsigned)d->rows, 256, 0, s>>>(u, h, x, y, w, d->rows, (int)d->dim, (float)d->eps);
    cuda_step_end(be);
    return true;
}

/* ---- rotation of q and k, k and v into the cache ---- */

struct rope_put_args {
    bf16 *q, *keys, *values;
    const bf16 *k, *v;
    const float *cos, *sin;
    const int32_t *di, *pos;
    int64_t rows;
    int h, g, half, vdim;
};

/* A unit: 8 pairs of a head of q or k, or 8 elements of v. */
static __global__ void __launch_bounds__(256) rope_put_kernel(const rope_put_args a)
{
    const int pairs = a.half / 8, nq = a.h * pairs, nk = a.g * pairs, nv = a.g * a.vdim / 8, per_row = nq + nk + nv;
    EACH(i, a.rows * per_row)
    {
        const int64_t r = i / per_row;
        int u = (int)(i % per_row);
        if (u >= nq + nk) {
            const int at = (u - nq - nk) * 8;
            *(uint4 *)(a.values + (int64_t)a.di[r] * a.g * a.vdim + at) = *(const uint4 *)(a.v + r * a.g * a.vdim + at);
            continue;
        }
        const bool key = u >= nq;
        u -= key ? nq : 0;
        const int at = u / pairs * 2 * a.half + u % pairs * 8, heads = key ? a.g : a.h;
        const bf16 *from = (key ? a.k : a.q) + r * heads * 2 * a.half + at;
        bf16 *to = key ? a.keys + (int64_t)a.di[r] * heads * 2 * a.half + at : a.q + r * heads * 2 * a.half + at;
        const float *c = a.cos + (int64_t)a.pos[r] * a.half + u % pairs * 8, *s = a.sin + (int64_t)a.pos[r] * a.half + u % pairs * 8;
        float x[8], y[8], p[8], z[8];
        ld16(x, from);
        ld16(y, from + a.half);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            p[e] = x[e] * c[e] - y[e] * s[e];
            z[e] = y[e] * c[e] + x[e] * s[e];
        }
        st16(to, p);
        st16(to + a.half, z);
    }
}

bool cuda_rope_put(struct backend *be, const struct step_rope_put *d)
{
    rope_put_args a = {cuda_p<bf16>(d->q),
                       cuda_p<bf16>(d->keys),
                       cuda_p<bf16>(d->values),
                       cuda_p<bf16>(d->k),
                       cuda_p<bf16>(d->v),
                       cuda_p<float>(d->cos),
                       cuda_p<float>(d->sin),
                       cuda_p<int32_t>(d->di),
                       cuda_p<int32_t>(d->pos),
                       d->rows,
                       (int)d->h,
                       (int)d->g,
                       (int)(d->kdim / 2),
                       (int)d->vdim};
    if (!cuda_fused(be) || be->act != DT_BF16 || d->rows < 1 || d->kdim % 16 || d->vdim % 8 || !d->di.p ||
        !all_aligned(a.q, a.k, a.v, a.keys, a.values))
        return false;
    cuda_step_begin(be, "rope_put");
    const int64_t n = d->rows * ((d->h + d->g) * (d->kdim / 16) + d->g * d->vdim / 8);
    rope_put_kernel LAUNCH(be, n)(a);
    cuda_step_end(be);
    return true;
}

/* ---- recorded steps ---- */

enum { GRAPHS = 32 };
enum graph_state { G_NONE, G_SEEN, G_READY };
struct cuda_graph {
    enum graph_state state;
    struct replay_key key;
    cudaGraphExec_t exec;
    struct view kept;
    double flops, bytes; /* of one replay; while recording: what was counted before */
    int64_t used;        /* for dropping the one that was not used for the longest time */
};
struct cuda_graphs {
    struct cuda_graph g[GRAPHS];
    struct cuda_graph *open; /* being recorded */
    int64_t epoch, uses;
};

static void drop(struct cuda_graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    memset(g, 0, sizeof *g);
}

void cuda_graphs_close(struct backend *be)
{
    struct cuda_backend *c = cuda_of(be);
    for (int i = 0; c->graphs && i < GRAPHS; i++)
        drop(&c->graphs->g[i]);
    free(c->graphs);
    c->graphs = NULL;
}

static bool same_key(const struct replay_key *a, const struct replay_key *b)
{
    return a->n == b->n && !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

/* The entry of a key; a new one takes the place of the one that waited longest. */
static struct cuda_graph *graph_of(struct cuda_graphs *s, const struct replay_key *key)
{
    struct cuda_graph *oldest = &s->g[0];
    for (int i = 0; i < GRAPHS; i++) {
        if (s->g[i].state != G_NONE && same_key(&s->g[i].key, key))
            return &s->g[i];
        if (s->g[i].state == G_NONE ? oldest->state != G_NONE : oldest->state != G_NONE && s->g[i].used < oldest->used)
            oldest = &s->g[i];
    }
    drop(oldest);
    oldest->key = *key;
    return oldest;
}

/*
 * A key is run as it is the first time (algorithms are chosen, memory is found), recorded the second time, replayed from then on. Freed
 * memory makes every recording worthless: its kernels hold addresses.
 */
bool cuda_replay_begin(struct backend *be, const struct replay_key *key, struct view *kept)
{
    struct cuda_backend *c = cuda_of(be);
    if (!c->use_graphs)
        return false;
    if (!c->graphs && !(c->graphs = (struct cuda_graphs *)calloc(1, sizeof *c->graphs))) {
        be_fail(be, E_ENV, "out of memory for recorded steps");
        return false;
    }
    cuda_ws_settle(be);
    struct cuda_graphs *s = c->graphs;
    if (s->open)
        be_fail(be, E_CHECK, "a step begins while another is recorded");
    if (be->failed)
        return false;
    if (s->epoch != c->epoch) {
        for (int i = 0; i < GRAPHS; i++)
            drop(&s->g[i]);
        s->epoch = c->epoch;
    }
    struct cuda_graph *g = graph_of(s, key);
    g->used = ++s->uses;
    if (g->state == G_READY) {
        cudaError_t rc = cudaGraphLaunch(g->exec, c->stream);
        if (rc != cudaSuccess)
            cuda_fail(be, rc, "cudaGraphLaunch");
        be->flops += g->flops;
        be->bytes += g->bytes;
        if (c->ops_begun++ == 0)
            c->first_op = "a recorded step";
        c->op = "a recorded step";
        *kept = g->kept;
        return true;
    }
    if (g->state == G_SEEN) {
        cudaError_t rc = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed);
        if (rc != cudaSuccess) {
            cuda_fail(be, rc, "cudaStreamBeginCapture");
            return false;
        }
        s->open = g;
        g->flops = be->flops;
        g->bytes = be->bytes;
    }
    g->state = G_SEEN;
    return false;
}

void cuda_replay_end(struct backend *be, struct view kept)
{
    struct cuda_backend *c = cuda_of(be);
    struct cuda_graph *g = c->graphs ? c->graphs->open : NULL;
    cudaGraph_t graph = NULL;
    if (!g)
        return;
    c->graphs->open = NULL;
    cudaError_t rc = cudaStreamEndCapture(c->stream, &graph);
    if (rc == cudaSuccess && !be->failed && c->epoch == c->graphs->epoch) {
        rc = cudaGraphInstantiate(&g->exec, graph, 0);
        if (rc == cudaSuccess)
            rc = cudaGraphLaunch(g->exec, c->stream); /* recording ran nothing */
        g->state = G_READY;
        g->kept = kept;
        g->flops = be->flops - g->flops;
        g->bytes = be->bytes - g->bytes;
    } else if (rc == cudaSuccess && !be->failed)
        be_fail(be, E_CHECK, "memory was freed while a step was recorded");
    if (graph)
        cudaGraphDestroy(graph);
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "recording a step");
    if (be->failed)
        drop(g);
}

int cuda_fused(const struct backend *be)
{
    return ((const struct cuda_backend *)be->impl)->fused;
}
