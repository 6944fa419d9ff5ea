/* The CPU backend: one table for each instruction set, chosen at run time, and the instance's scratch memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/host.h"

float *cpu_scratch_slot(struct backend *be, int slot, size_t bytes)
{
    struct cpu_impl *c = be->impl;
    if (c->cap[slot] < bytes) {
        size_t cap = (bytes + bytes / 4 + 63) / 64 * 64;
        free(c->scratch[slot]);
        c->scratch[slot] = aligned_alloc(64, cap);
        c->cap[slot] = c->scratch[slot] ? cap : 0;
        if (!c->scratch[slot])
            be_fail(be, E_ENV, "out of memory: %zu bytes of scratch", cap);
    }
    return c->scratch[slot];
}

static void cpu_close(struct backend *be)
{
    struct cpu_impl *c = be->impl;
    for (int i = 0; c && i < CPU_SCRATCH_SLOTS; i++)
        free(c->scratch[i]);
    free(c);
    be->impl = NULL;
}

#define CPU_TABLE(isa)                                                                                                                     \
    static const struct backend_ops ops_##isa = {.name = "cpu",                                                                            \
                                                 .close = cpu_close,                                                                       \
                                                 .alloc = host_alloc,                                                                      \
                                                 .free = host_free,                                                                        \
                                                 .copy = host_copy,                                                                        \
                                                 .zero = host_zero,                                                                        \
                                                 .sync = host_sync,                                                                        \
                                                 BACKEND_OPS(X)};
#define DECLARE(op, isa) void cpu_##op##_##isa(struct backend *be, const struct op_##op *d);

#define X(op) DECLARE(op, portable)
BACKEND_OPS(X)
#undef X
#define X(op) .op = cpu_##op##_portable,
CPU_TABLE(portable)
#undef X

#ifdef HAVE_X86_ISAS
#define X(op) DECLARE(op, avx2) DECLARE(op, avx512)
BACKEND_OPS(X)
#undef X
#define X(op) .op = cpu_##op##_avx2,
CPU_TABLE(avx2)
#undef X
#define X(op) .op = cpu_##op##_avx512,
CPU_TABLE(avx512)
#undef X
#endif

static const struct {
    const char *name;
    const struct backend_ops *ops;
} tables[] = {
/* best first */
#ifdef HAVE_X86_ISAS
    {"avx512", &ops_avx512},
    {"avx2", &ops_avx2},
#endif
    {"portable", &ops_portable},
};

/* F16C is not asked for: clang 14 has no name for it, and every CPU with AVX2 has it. */
static bool machine_has(const char *isa)
{
#ifdef HAVE_X86_ISAS
    if (!strcmp(isa, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(isa, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return !strcmp(isa, "portable");
}

int backend_open_cpu(struct backend *be, const char *isa, struct err *e)
{
    const char *want = isa && *isa ? isa : NULL;
    size_t at = ARRAY_LEN(tables);
    for (size_t i = 0; i < ARRAY_LEN(tables) && at == ARRAY_LEN(tables); i++)
        if (want ? !strcmp(want, tables[i].name) : machine_has(tables[i].name))
            at = i;
    if (at == ARRAY_LEN(tables)) {
        const char *words[ARRAY_LEN(tables)];
        for (size_t i = 0; i < ARRAY_LEN(tables); i++)
            words[i] = tables[i].name;
        const char *near = nearest_word(want, words, ARRAY_LEN(words));
        return ERR(e, E_USAGE, "unknown instruction set '%s'%s%s%s; this build has%s portable", want, near ? ", did you mean '" : "",
                   near ? near : "", near ? "'?" : "", ARRAY_LEN(tables) > 1 ? " avx512, avx2 and" : "");
    }
    if (!machine_has(tables[at].name))
        return ERR(e, E_ENV, "this machine lacks instruction set '%s'", tables[at].name);
    be->impl = calloc(1, sizeof(struct cpu_impl));
    if (!be->impl)
        return err_nomem(e, sizeof(struct cpu_impl), "the cpu backend");
    be->ops = tables[at].ops;
    be->act = be->stat = DT_F32;
    be->determinism = "strict";
    snprintf(be->desc, sizeof be->desc, "cpu %s, %d thread%s", tables[at].name, cpu_workers(be), cpu_workers(be) == 1 ? "" : "s");
    return 0;
}
