/* Stands in for kernels/cuda in builds without it. */
#include "kernels/ops.h"

#ifndef DASH_HAVE_CUDA
int backend_open_cuda(struct backend *be, enum dtype act, struct err *e)
{
    UNUSED(be);
    UNUSED(act);
    return ERR(e, E_ENV,
               "this build has no CUDA backend; install the CUDA toolkit (12.8 or later), then configure with -DDASH_CUDA=ON "
               "(nvcc is looked for in PATH and in $CUDACXX), or use --device cpu");
}
#endif
