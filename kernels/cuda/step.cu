/*
 * Decoding: recorded steps, and what the kernels of kernels/step.h share (linear.cu has the products, attn_split.cu the attention,
 * gdn_token.cu the recurrence). A step reads every weight once for a handful of rows: it is bound by memory and, in single ops, by the time
 * between launches.
 */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/step.h"
}

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
    cudaFree(c->counters);
    c->counters = NULL;
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
    return be->act == DT_BF16 && ((const struct cuda_backend *)be->impl)->fused;
}

unsigned *cuda_counters(struct backend *be)
{
    struct cuda_backend *c = cuda_of(be);
    const size_t bytes = CUDA_COUNTERS * sizeof *c->counters;
    if (c->counters || be->failed)
        return c->counters;
    cudaError_t rc = cudaMalloc((void **)&c->counters, bytes);
    if (rc == cudaSuccess)
        rc = cudaMemsetAsync(c->counters, 0, bytes, c->stream);
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "counters");
    return be->failed ? NULL : c->counters;
}
