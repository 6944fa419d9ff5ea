/* Decoding's calls as table ops, and who does better. */
#include "kernels/step.h"

#include <string.h>

#include "kernels/ops.h"

static bool is_cuda(const struct backend *be)
{
    return !strcmp(be->ops->name, "cuda");
}

static struct op_gemm gemm_of(struct view x, int64_t rows, int64_t k, const struct step_linear *l)
{
    return (struct op_gemm){.c = l->y, .a = x, .b = l->w, .bias = l->bias, .m = rows, .n = l->n, .k = k, .tb = true, .accumulate = l->add};
}

static void count(struct backend *be, struct cost c)
{
    be->flops += c.flops;
    be->bytes += c.bytes;
}

/* The norm as an op of its own; its result, or x without one. */
static struct view normed(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, bool done)
{
    if (!norm || !norm->w.p)
        return x;
    struct op_rmsnorm d = {.y = norm->h, .x = x, .w = norm->w, .rows = rows, .dim = k, .eps = norm->eps};
    if (done)
        count(be, cost_rmsnorm(&d));
    else
        be_rmsnorm(be, &d);
    return norm->h;
}

void be_linear_many(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, const struct step_linear *l,
                    int n)
{
    if (n < 1 || n > STEP_LINEAR_MAX)
        BUG("%d products of one input (1..%d)", n, (int)STEP_LINEAR_MAX);
    bool done = !be->failed && is_cuda(be) && cuda_linear_many(be, x, norm, rows, k, l, n);
    x = normed(be, x, norm, rows, k, done);
    for (int i = 0; i < n; i++) {
        struct op_gemm d = gemm_of(x, rows, k, &l[i]);
        if (done)
            count(be, cost_gemm(&d));
        else
            be_gemm(be, &d);
    }
}

void be_linear_swiglu(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                      const struct step_linear l[2], struct view h)
{
    struct op_swiglu f = {.h = h, .g = l[0].y, .u = l[1].y, .n = rows * l[0].n};
    if (l[0].n != l[1].n || l[0].add || l[1].add)
        BUG("a gate of %" PRId64 " outputs with %" PRId64 " of up, or sums", l[0].n, l[1].n);
    if (!be->failed && is_cuda(be) && cuda_linear_swiglu(be, x, norm, rows, k, l, h)) {
        x = normed(be, x, norm, rows, k, true);
        for (int i = 0; i < 2; i++) {
            struct op_gemm d = gemm_of(x, rows, k, &l[i]);
            count(be, cost_gemm(&d));
        }
        count(be, cost_swiglu(&f));
        return;
    }
    be_linear_many(be, x, norm, rows, k, l, 2);
    be_swiglu(be, &f);
}

bool be_adds_in_place(const struct backend *be, int64_t rows)
{
    return rows <= 16 && is_cuda(be) && cuda_fused(be);
}

void be_gdn_token(struct backend *be, const struct step_gdn *d)
{
    if (!be->failed && is_cuda(be) && cuda_gdn_token(be, d)) {
        count(be, cost_gdn_prep(&d->prep));
        count(be, cost_gdn(&d->gdn));
        count(be, cost_gdn_out(&d->out));
        return;
    }
    be_gdn_prep(be, &d->prep);
    be_gdn(be, &d->gdn);
    be_gdn_out(be, &d->out);
}

static struct op_rope rope_of(const struct step_attn *d, struct view x, int64_t heads)
{
    return (struct op_rope){.x = x,
                            .cos = d->cos,
                            .sin = d->sin,
                            .pos = d->pos,
                            .rows = d->attn.seqs->rows,
                            .heads = heads,
                            .dim = d->attn.kdim,
                            .max_pos = d->max_pos};
}

void be_attn_new(struct backend *be, const struct step_attn *d)
{
    const struct op_attn *a = &d->attn;
    int64_t rows = a->seqs->rows;
    struct op_rope q = rope_of(d, a->q, a->h), k = rope_of(d, d->k, a->g);
    struct op_gather keys = {.dst = a->k, .src = d->k, .di = d->di, .rows = rows, .dim = a->g * a->kdim};
    struct op_gather values = {.dst = a->v, .src = d->v, .di = d->di, .rows = rows, .dim = a->g * a->vdim};
    if (!be->failed && is_cuda(be) && cuda_attn_new(be, d)) {
        count(be, cost_rope(&q));
        count(be, cost_rope(&k));
        count(be, cost_gather(&keys));
        count(be, cost_gather(&values));
        count(be, cost_attn(a));
        return;
    }
    be_rope(be, &q);
    be_rope(be, &k);
    be_gather(be, &keys);
    be_gather(be, &values);
    be_attn(be, a);
}

bool be_replay_begin(struct backend *be, const struct replay_key *key, struct view *kept)
{
    if (key->n < 1 || key->n > REPLAY_KEY_MAX)
        BUG("a key of %d words (1..%d)", key->n, (int)REPLAY_KEY_MAX);
    return !be->failed && is_cuda(be) && cuda_replay_begin(be, key, kept);
}

void be_replay_end(struct backend *be, struct view kept)
{
    if (is_cuda(be))
        cuda_replay_end(be, kept);
}
