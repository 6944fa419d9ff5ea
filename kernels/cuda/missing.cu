/* Ops of the table that this backend does not have yet: using one sets the sticky error. Take an op off the list when it is written. */
#include "kernels/cuda/cuda.h"

#define CUDA_MISSING(X)                                                                                                                    \
    X(attn) X(attn_bwd) X(conv) X(conv_bwd) X(gdn_prep) X(gdn_prep_bwd) X(gdn) X(gdn_bwd) X(gdn_out) X(gdn_out_bwd)

#define X(op)                                                                                                                              \
    void cuda_op_##op(struct backend *be, const struct op_##op *)                                                                          \
    {                                                                                                                                      \
        be_fail(be, E_ENV, "op '" #op "' is not implemented on cuda; use --device cpu");                                                   \
    }
CUDA_MISSING(X)
#undef X
