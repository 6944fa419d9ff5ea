/* Stands in for kernels/cuda in builds without it. */
#include "kernels/memory.h"
#include "kernels/ops.h"
#include "kernels/step.h"

#ifndef DASH_HAVE_CUDA
int backend_open_cuda(struct backend *be, enum dtype act, struct err *e)
{
    UNUSED(be);
    UNUSED(act);
    return ERR(e, E_ENV,
               "this build has no CUDA backend; install the CUDA toolkit (12.8 or later), then configure with -DDASH_CUDA=ON "
               "(nvcc is looked for in PATH and in $CUDACXX), or use --device cpu");
}

int64_t cuda_free_bytes(const struct backend *be)
{
    UNUSED(be);
    return 0;
}

bool cuda_linear_many(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, const struct step_linear *l,
                      int count)
{
    UNUSED(be);
    UNUSED(x);
    UNUSED(norm);
    UNUSED(rows);
    UNUSED(k);
    UNUSED(l);
    UNUSED(count);
    return false;
}
bool cuda_linear_swiglu(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                        const struct step_linear *l, struct view h)
{
    UNUSED(be);
    UNUSED(x);
    UNUSED(norm);
    UNUSED(rows);
    UNUSED(k);
    UNUSED(l);
    UNUSED(h);
    return false;
}
bool cuda_attn_new(struct backend *be, const struct step_attn *d)
{
    UNUSED(be);
    UNUSED(d);
    return false;
}
bool cuda_gdn_token(struct backend *be, const struct step_gdn *d)
{
    UNUSED(be);
    UNUSED(d);
    return false;
}
bool cuda_replay_begin(struct backend *be, const struct replay_key *key, struct view *kept)
{
    UNUSED(be);
    UNUSED(key);
    UNUSED(kept);
    return false;
}
void cuda_replay_end(struct backend *be, struct view kept)
{
    UNUSED(be);
    UNUSED(kept);
}
bool cuda_fused(const struct backend *be)
{
    UNUSED(be);
    return false;
}
#endif
