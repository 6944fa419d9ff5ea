/* Shared by the attention kernels: where keys lie, which keys a query sees, transposes into lane order. */
#ifndef KERNELS_CPU_ISA_ATTN_H
#define KERNELS_CPU_ISA_ATTN_H

#include "kernels/cpu/isa/tile.h"

#define ATTN_BLOCK 64

/*
 * What a pass over keys takes in: the query at position t sees keys t - wide + 1 .. t - skip (wide 0: from the beginning). One window is
 * {w, 0}; two windows are {small, 0} and then {large, small}.
 */
struct attn_sight {
    int64_t wide, skip;
};
static inline int64_t attn_first_key(struct attn_sight g, int64_t t)
{
    return g.wide && t - g.wide + 1 > 0 ? t - g.wide + 1 : 0;
}

/* Keys and values of one kv head of one sequence. Rows of a ring are copied when they wrap. */
struct attn_kv {
    const float *k, *v;
    int64_t ldk, ldv, ring;
    int kdim, vdim;
    float *copy_k, *copy_v; /* [64][kdim], [64][vdim] */
};
struct attn_rows {
    const float *k, *v;
    int64_t ldk, ldv;
};

/* Rows j .. j+n-1, n <= 64. */
static inline struct attn_rows attn_rows_at(const struct attn_kv *x, int64_t j, int n)
{
    int64_t at = x->ring ? j % x->ring : j;
    if (!x->ring || at + n <= x->ring)
        return (struct attn_rows){x->k + at * x->ldk, x->v + at * x->ldv, x->ldk, x->ldv};
    for (int i = 0; i < n; i++, at = at + 1 < x->ring ? at + 1 : 0) {
        memcpy(x->copy_k + i * x->kdim, x->k + at * x->ldk, (size_t)x->kdim * sizeof(float));
        memcpy(x->copy_v + i * x->vdim, x->v + at * x->ldv, (size_t)x->vdim * sizeof(float));
    }
    return (struct attn_rows){x->copy_k, x->copy_v, x->kdim, x->vdim};
}

#endif
