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

void be_linear_many(struct backend *be, struct view x, int64_t rows, int64_t k, const struct step_linear *l, int n)
{
    if (n < 1 || n > STEP_LINEAR_MAX)
        BUG("%d products of one input (1..%d)", n, (int)STEP_LINEAR_MAX);
    bool done = !be->failed && is_cuda(be) && cuda_linear_many(be, x, rows, k, l, n);
    for (int i = 0; i < n; i++) {
        struct op_gemm d = gemm_of(x, rows, k, &l[i]);
        if (done)
            count(be, cost_gemm(&d));
        else
            be_gemm(be, &d);
    }
}

void be_add_norm(struct backend *be, const struct step_add_norm *d)
{
    int64_t n = d->rows * d->dim;
    struct op_mix sum = {.y = view_at(d->u, 0, n), .x = {view_at(d->x, 0, n), view_at(d->y, 0, n)}, .p = {1, 1}, .count = 2, .n = n};
    struct op_rmsnorm norm = {.y = d->h, .x = sum.y, .w = d->w, .rows = d->rows, .dim = d->dim, .eps = d->eps};
    if (!be->failed && is_cuda(be) && cuda_add_norm(be, d)) {
        count(be, cost_mix(&sum));
        count(be, cost_rmsnorm(&norm));
        return;
    }
    be_mix(be, &sum);
    be_rmsnorm(be, &norm);
}

static struct op_rope rope_of(const struct step_rope_put *d, struct view x, int64_t heads)
{
    return (struct op_rope){
        .x = x, .cos = d->cos, .sin = d->sin, .pos = d->pos, .rows = d->rows, .heads = heads, .dim = d->kdim, .max_pos = d->max_pos};
}

void be_rope_put(struct backend *be, const struct step_rope_put *d)
{
    struct op_rope q = rope_of(d, d->q, d->h), k = rope_of(d, d->k, d->g);
    struct op_gather keys = {.dst = d->keys, .src = d->k, .di = d->di, .rows = d->rows, .dim = d->g * d->kdim};
    struct op_gather values = {.dst = d->values, .src = d->v, .di = d->di, .rows = d->rows, .dim = d->g * d->vdim};
    if (!be->failed && is_cuda(be) && cuda_rope_put(be, d)) {
        count(be, cost_rope(&q));
        count(be, cost_rope(&k));
        count(be, cost_gather(&keys));
        count(be, cost_gather(&values));
        return;
    }
    be_rope(be, &q);
    be_rope(be, &k);
    be_gather(be, &keys);
    be_gather(be, &values);
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
