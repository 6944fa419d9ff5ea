/*
 * Inside of the CPU backend. Files in isa/ are compiled once for each instruction set (-DISA=avx512, avx2, portable); ISA_NAME(op) is
 * the symbol of that build. table.c holds one table a set and picks at run time. Float32 only; results have the same bits for any thread
 * count, batch composition and instruction set.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/ops.h"

#define ISA_PASTE2(a, b) cpu_##a##_##b
#define ISA_PASTE(a, b) ISA_PASTE2(a, b)
#ifdef ISA
#define ISA_NAME(op) ISA_PASTE(op, ISA)
#define X(op) void ISA_NAME(op)(struct backend *be, const struct op_##op *d);
BACKEND_OPS(X)
#undef X
#endif

enum { CPU_SCRATCH_SLOTS = 2 };
struct cpu_impl {
    void *scratch[CPU_SCRATCH_SLOTS];
    size_t cap[CPU_SCRATCH_SLOTS];
};
/* 64-byte aligned memory of the instance, not zeroed, valid until the next call for the same slot. NULL sets the sticky error. Slot 0:
 * ops; slot 1: the matrix product, which other ops call. */
float *cpu_scratch_slot(struct backend *be, int slot, size_t bytes);
static inline float *cpu_scratch(struct backend *be, size_t bytes)
{
    return cpu_scratch_slot(be, 0, bytes);
}
static inline int cpu_workers(const struct backend *be)
{
    return be->pool ? pool_threads(be->pool) : 1;
}
static inline float *cpu_f(struct view v)
{
    return v.p;
}
static inline const int32_t *cpu_i(struct view v)
{
    return v.p;
}

#endif
