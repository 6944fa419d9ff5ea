#include "kernels/ref/ref.h"

#include <stdio.h>

#include "kernels/host.h"

#ifdef REAL_IS_double
#define REF_NAME "ref64"
#define REF_DT DT_F64
#else
#define REF_NAME "ref32"
#define REF_DT DT_F32
#endif

static const struct backend_ops ref_ops = {.name = REF_NAME,
                                           .alloc = host_alloc,
                                           .free = host_free,
                                           .copy = host_copy,
                                           .zero = host_zero,
                                           .sync = host_sync,
#define X(op) .op = REF(op),
                                           BACKEND_OPS(X)
#undef X
};

int REF_PASTE(backend_open_ref_, REAL)(struct backend *be, struct err *e)
{
    UNUSED(e);
    be->ops = &ref_ops;
    be->act = be->stat = REF_DT;
    be->determinism = "strict";
    snprintf(be->desc, sizeof be->desc, "%s naive reference, %d threads", REF_NAME, be->pool ? pool_threads(be->pool) : 1);
    return 0;
}
