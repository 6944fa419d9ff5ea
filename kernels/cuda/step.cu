/*
 * Decoding: the small kernels of kernels/step.h for bf16, and recorded steps. (linear.cu has the products, gdn_token.cu the recurrence.) A
 * step reads every weight once for a handful of rows: it is bound by memory and, in single ops, by the time between launches.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.h"

extern "C" {
#include "kernels/step.h"
}

/* ---- u = x + y, h = norm(u) w: the sums of rmsnorm_kernel, in its order ---- */

template <int GROUP>
static __global__ void __launch_bounds__(256)
    add_norm_kernel(bf16 *u, bf16 *h, const bf16 *x, const bf16 *y, const bf16 *w, int64_t rows, int dim, float eps)
{
    __shared__ float shared[32];
    const int lane = threadIdx.x % GROUP, V = 8;
    const int64_t r = (int64_t)blockIdx.x * (256 / GROUP) + threadIdx.x / GROUP;
    let_next_start();
    after_previous();
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
    bf16 *u = cuda_p<bf16>(d->u), *h = cuda_p<bf16>(d->h);
    const bf16 *x = cuda_p<bf16>(d->x), *y = cuda_p<bf16>(d->y), *w = cuda_p<bf16>(d->w);
    if (!cuda_fused(be) || be->act != DT_BF16 || d->rows < 1 || d->dim % 8 || d->dim > 1 << 20 || !all_aligned(u, h, x, y, w))
        return false;
    cuda_step_begin(be, "add_norm");
    if (d->dim <= 1024)
        launch_after(be, add_norm_kernel<32>, dim3((unsigned)CEIL_DIV(d->rows, 8)), 256, 0, u, h, x, y, w, d->rows, d->dim, d->eps);
    else
        launch_after(be, add_norm_kernel<256>, dim3((unsigned)d->rows), 256, 0, u, h, x, y, w, d->rows, d->dim, d->eps);
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
static __global__ void __launch_bounds__(128) rope_put_kernel(const rope_put_args a)
{
    let_next_start();
    after_previous();
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
    launch_after(be, rope_put_kernel, dim3((unsigned)CEIL_DIV(n, (int64_t)128)), 128, 0, a);
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

bool cuda_fused(const struct backend *be)
{
    return ((const struct cuda_backend *)be->impl)->fused;
}
