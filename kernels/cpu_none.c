/* Placeholder until kernels/cpu defines backend_open_cpu; then this file goes. */
#include "kernels/ops.h"

int backend_open_cpu(struct backend *be, const char *isa, struct err *e)
{
    UNUSED(be);
    UNUSED(isa);
    return ERR(e, E_ENV, "this build has no CPU backend yet (kernels/cpu_none.c stands in for it); use ref64");
}
