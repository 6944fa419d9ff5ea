/*
 * A backend: one device, one table of coarse operations (kernels/ops.h has a descriptor struct for each). An instance holds everything;
 * there are no globals. CPU, reference (float, double) and CUDA instances can live in one process, which is how every op is tested.
 *
 * Errors: ops return void and set the backend's sticky error (first one wins); be_sync reports and keeps it. After an error ops do
 * nothing. Memory: be_alloc gives device memory, zeroed, 64-byte aligned. On the CPU device memory is host memory and views may point
 * anywhere. Data types: `act` is the type of activations and weights as ops see them (F32 cpu and ref32, F64 ref64, BF16 or F32 cuda).
 * Statistics (lse, rstd, gates, states, losses) are `stat`: F32, on ref64 F64. Determinism: "strict" (same bits for any thread count,
 * batch composition and instruction set) on cpu and ref, "run" on cuda. No atomics in reductions.
 */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "core/err.h"
#include "core/pool.h"

enum dtype { DT_F32, DT_F64, DT_BF16, DT_F16, DT_I32 };
static inline size_t dtype_size(enum dtype dt)
{
    return dt == DT_F64 ? 8 : dt == DT_F32 || dt == DT_I32 ? 4 : 2;
}
const char *dtype_name(enum dtype dt);

/* A borrowed region of n elements, on the device of the backend it is used with. p NULL = absent. */
struct view {
    void *p;
    enum dtype dt;
    int64_t n;
};
static inline struct view view_at(struct view v, int64_t off, int64_t n)
{
    return (struct view){v.p ? (char *)v.p + (size_t)off * dtype_size(v.dt) : NULL, v.dt, n};
}
#define NO_VIEW ((struct view){0})

/*
 * Sequences packed one after another, without padding: rows = q_off[n]. Sequence s has queries q_off[s]..q_off[s+1]-1. Its keys are
 * kv_len[s] rows that begin at kv row kv_off[s]; the queries are the LAST of them (bottom-right causal), so that a prefix may sit in a
 * cache. kv_off NULL: keys are the same rows as the queries. The arrays are host memory; d_* are the same on the device (equal pointers
 * on the CPU).
 */
struct seqs {
    int32_t n;
    int64_t rows;
    const int32_t *q_off;  /* [n+1] */
    const int32_t *kv_off; /* [n] or NULL */
    const int32_t *kv_len; /* [n] or NULL */
    struct view d_q_off, d_kv_off, d_kv_len;
};
static inline int32_t seqs_qlen(const struct seqs *s, int32_t i)
{
    return s->q_off[i + 1] - s->q_off[i];
}
static inline int32_t seqs_kvoff(const struct seqs *s, int32_t i)
{
    return s->kv_off ? s->kv_off[i] : s->q_off[i];
}
static inline int32_t seqs_kvlen(const struct seqs *s, int32_t i)
{
    return s->kv_len ? s->kv_len[i] : s->q_off[i + 1] - s->q_off[i];
}

enum copy_kind { COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE };

/* Slot for several devices; NULL ops = one device, sums are no-ops. NCCL fills it later. */
struct comm {
    int rank, size;
    void (*sum_f32)(struct comm *, struct view x);
    void *impl;
};

struct backend;
#define BACKEND_OPS(X)                                                                                                                       \
    X(gemm) X(embed) X(embed_bwd) X(rmsnorm) X(rmsnorm_bwd) X(rope) X(swiglu) X(swiglu_bwd) X(attn) X(attn_bwd)                              \
    X(conv) X(conv_bwd) X(gdn_prep) X(gdn_prep_bwd) X(gdn) X(gdn_bwd) X(gdn_out) X(gdn_out_bwd) X(mix) X(mix_bwd) X(axpby) X(colsum)         \
    X(align_loss) X(head_ce) X(head_kl) X(topk) X(adamw) X(sumsq) X(gather) X(cast)

#define X(op) struct op_##op;
BACKEND_OPS(X) /* the descriptors: ops.h */
#undef X

struct backend_ops {
    const char *name; /* "cpu", "ref32", "ref64", "cuda" */
    void (*close)(struct backend *);
    int (*alloc)(struct backend *, size_t bytes, void **p, struct err *e);
    void (*free)(struct backend *, void *p);
    void (*copy)(struct backend *, void *dst, const void *src, size_t bytes, enum copy_kind kind);
    void (*zero)(struct backend *, void *p, size_t bytes);
    int (*sync)(struct backend *, struct err *e);
#define X(op) void (*op)(struct backend *, const struct op_##op *);
    BACKEND_OPS(X)
#undef X
};

struct backend {
    const struct backend_ops *ops;
    void *impl;
    struct pool *pool;   /* host threads; borrowed */
    struct comm comm;
    enum dtype act, stat;
    const char *determinism; /* "strict" or "run" */
    char desc[160];          /* device in words: "cpu avx512, 2 threads" */
    int64_t mem_limit_bytes, mem_used_bytes, mem_peak_bytes;
    double flops, bytes;     /* counted by the be_* wrappers since the last reset */
    bool failed;             /* sticky */
    struct err sticky;
    bool check_finite;       /* debugging: every op's outputs are scanned */
};

struct backend_opts {
    const char *name;   /* "cpu", "ref32", "ref64", "cuda" */
    const char *isa;    /* cpu: NULL = best of the machine (also $DASHLAB_ISA), "avx512", "avx2", "portable" */
    enum dtype act;     /* cuda: DT_BF16 or DT_F32 */
    struct pool *pool;
    int64_t mem_limit_bytes; /* 0 = none */
};
int backend_open(struct backend **out, const struct backend_opts *o, struct err *e);
void backend_close(struct backend *be);

int be_alloc(struct backend *be, size_t bytes, void **p, struct err *e); /* E_ENV with sizes when it does not fit */
void be_free(struct backend *be, void *p, size_t bytes);
int be_view(struct backend *be, enum dtype dt, int64_t n, struct view *out, struct err *e); /* alloc + view */
void be_view_free(struct backend *be, struct view *v);
void be_put(struct backend *be, struct view dst, const void *host);  /* n elements of dst.dt */
void be_get(struct backend *be, void *host, struct view src);        /* synchronises */
void be_copy(struct backend *be, struct view dst, struct view src);  /* same dt and n */
void be_zero(struct backend *be, struct view v);
int be_sync(struct backend *be, struct err *e);
void be_fail(struct backend *be, enum err_code code, const char *fmt, ...) PRINTF_LIKE(3, 4);

#endif
