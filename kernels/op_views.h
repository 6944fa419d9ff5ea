/*
 * What an op touches, as a list: every view of a descriptor with its name, direction, type class and extent. One list serves the checks of
 * be_OP, the byte counts, the scan of check_finite, and the tests (which fill inputs and put guards around outputs without knowing the op).
 */
#ifndef KERNELS_OP_VIEWS_H
#define KERNELS_OP_VIEWS_H

#include "kernels/ops.h"

enum view_role { VIEW_IN, VIEW_OUT, VIEW_INOUT };
enum view_class {
    VIEW_ACT,    /* be->act */
    VIEW_STAT,   /* be->stat */
    VIEW_EITHER, /* act or stat: parameter gradients, logits, saved states */
    VIEW_I32,
    VIEW_F64,
    VIEW_ANY
};
/* rows x width elements, row stride ld. */
struct op_view {
    const char *name;
    const struct view *v; /* inside the descriptor */
    enum view_role role;
    enum view_class cls;
    bool required;
    int64_t rows, width, ld;
    int64_t index_limit; /* I32 only: values must be below this (0 = not an index); negative values allowed when index_neg */
    bool index_neg;
    int may_alias; /* bit mask of list positions that this output may share memory with */
};
struct op_views {
    const char *op;
    int n;
    struct op_view v[24];
    char bad[200]; /* first broken shape rule, or "" */
};
static inline int64_t op_view_extent(const struct op_view *v)
{
    return v->rows > 0 && v->width > 0 ? (v->rows - 1) * v->ld + v->width : 0;
}

#define X(op)                                                                                                                              \
    void views_##op(const struct op_##op *d, struct op_views *out);                                                                        \
    double flops_##op(const struct op_##op *d);
BACKEND_OPS(X)
#undef X
double views_bytes(const struct op_views *o);

/* Query-key pairs of all sequences under a causal mask with a window (0 = all). */
double attn_pairs(const struct seqs *s, int32_t window);

#endif
