/*
 * Matrix products by cuBLASLt, which is found at run time, so that a binary with this backend starts on machines without it. A row-major
 * c = op(a) op(b) is the column-major c^T = op(b)^T op(a)^T: cuBLAS' A is our b, its m our n.
 *
 * Repeatability: one stream, one workspace of fixed size, no reductions with atomics, and the same algorithm every time. Candidates are
 * timed once and the winner is kept in a text file, $XDG_CACHE_HOME/dashlab/gemm-VERSION.txt (or ~/.cache/...); where no file can be
 * written, or with DASHLAB_CUDA_TUNE=0, the library's first choice is taken, which does not depend on clocks. Shapes share an algorithm
 * when they agree in the leading three bits of m, n, k, in types, transposition and alignment; products below 2^24 multiply-adds are not
 * worth timing.
 */
#include "kernels/cuda/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PLANS = 4096, TUNED_MAX = 16384, CANDIDATES = 8, TIMED_RUNS = 3 };
static const size_t WORKSPACE = (size_t)64 << 20;
static const double TUNE_ABOVE = 16777216.0;

#define LT_FUNCS(X)                                                                                                                        \
    X(cublasLtCreate)                                                                                                                      \
    X(cublasLtDestroy) X(cublasLtGetVersion) X(cublasLtMatmul) X(cublasLtMatmulDescCreate) X(cublasLtMatmulDescDestroy)                    \
        X(cublasLtMatmulDescSetAttribute) X(cublasLtMatrixLayoutCreate) X(cublasLtMatrixLayoutDestroy) X(cublasLtMatmulPreferenceCreate)   \
            X(cublasLtMatmulPreferenceDestroy) X(cublasLtMatmulPreferenceSetAttribute) X(cublasLtMatmulAlgoGetHeuristic)                   \
                X(cublasLtMatmulAlgoCheck) X(cublasLtGetStatusString)

struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t ct, abt, flags, align; /* flags: ta, tb, accumulate, bias; align: log2 of the alignment of a, b, c, 8 bits each */
};
struct plan {
    struct plan_key key;
    bool used;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};
struct tuned {
    char key[96];
    cublasLtMatmulAlgo_t algo;
};
struct cuda_lt {
    void *lib;
#define X(f) decltype(&::f) f;
    LT_FUNCS(X)
#undef X
    cublasLtHandle_t handle;
    void *ws;
    struct plan *plans;
    int n_plans;
    struct tuned *tuned;
    int n_tuned;
    char path[1024]; /* of the cache; empty: none */
    off_t read_to;   /* how much of the file is in tuned[] */
};

/* ---- the cache file: one line a tuned shape, KEY tab eight hexadecimal words; the first line of a key wins ---- */

static const struct tuned *tuned_find(const struct cuda_lt *lt, const char *key)
{
    for (int i = 0; i < lt->n_tuned; i++)
        if (!strcmp(lt->tuned[i].key, key))
            return &lt->tuned[i];
    return NULL;
}

static void tuned_add(struct cuda_lt *lt, const char *key, const cublasLtMatmulAlgo_t *algo)
{
    if (lt->n_tuned == TUNED_MAX || tuned_find(lt, key))
        return;
    if (lt->n_tuned % 64 == 0) {
        struct tuned *p = (struct tuned *)realloc(lt->tuned, (size_t)(lt->n_tuned + 64) * sizeof *p);
        if (!p)
            return;
        lt->tuned = p;
    }
    struct tuned *t = &lt->tuned[lt->n_tuned++];
    snprintf(t->key, sizeof t->key, "%s", key);
    t->algo = *algo;
}

static void tuned_line(struct cuda_lt *lt, const char *line)
{
    char key[96];
    cublasLtMatmulAlgo_t a;
    unsigned long long w[8];
    if (sscanf(line, "%95[^\t]\t%llx %llx %llx %llx %llx %llx %llx %llx", key, &w[0], &w[1], &w[2], &w[3], &w[4], &w[5], &w[6], &w[7]) != 9)
        return;
    memset(&a, 0, sizeof a);
    for (int i = 0; i < 8; i++)
        a.data[i] = w[i];
    tuned_add(lt, key, &a);
}

/* Takes in what this or another process has added. Only whole lines count. */
static void tuned_read(struct cuda_lt *lt, int fd)
{
    FILE *f = fdopen(dup(fd), "r");
    char line[512];
    if (!f)
        return;
    if (fseeko(f, lt->read_to, SEEK_SET) == 0)
        while (fgets(line, sizeof line, f) && strchr(line, '\n')) {
            tuned_line(lt, line);
            lt->read_to = ftello(f);
        }
    fclose(f);
}

/* Opens and locks the cache; -1 without one. */
static int tuned_lock(const struct cuda_lt *lt)
{
    int fd = lt->path[0] ? open(lt->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd >= 0 && flock(fd, LOCK_EX) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool tuned_write(int fd, const char *key, const cublasLtMatmulAlgo_t *a)
{
    char line[320];
    int n = snprintf(line, sizeof line, "%s\t", key);
    for (int i = 0; i < 8; i++)
        n += snprintf(line + n, sizeof line - (size_t)n, "%llx%c", (unsigned long long)a->data[i], i == 7 ? '\n' : ' ');
    return write(fd, line, (size_t)n) == (ssize_t)n;
}

static void cache_path(struct cuda_lt *lt)
{
    const char *tune = getenv("DASHLAB_CUDA_TUNE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char dir[900];
    lt->path[0] = 0;
    if (tune && !strcmp(tune, "0"))
        return;
    if (xdg && *xdg)
        snprintf(dir, sizeof dir, "%s", xdg);
    else if (home && *home)
        snprintf(dir, sizeof dir, "%s/.cache", home);
    else
        return;
    mkdir(dir, 0755);
    strncat(dir, "/dashlab", sizeof dir - strlen(dir) - 1);
    if (mkdir(dir, 0755) != 0 && errno != EEXIST)
        return;
    snprintf(lt->path, sizeof lt->path, "%s/gemm-%zu.txt", dir, lt->cublasLtGetVersion());
    int fd = tuned_lock(lt);
    if (fd < 0) {
        lt->path[0] = 0;
        return;
    }
    tuned_read(lt, fd);
    close(fd);
}

/* ---- opening ---- */

static bool find_library(struct cuda_lt *lt, char *why, size_t cap)
{
    static const char *const places[] = {"", "/usr/local/cuda/lib64/", "/usr/lib/x86_64-linux-gnu/", "/opt/cuda/lib64/"};
    const char *home = getenv("CUDA_HOME");
    char path[1024];
    if (home && *home) {
        snprintf(path, sizeof path, "%s/lib64/libcublasLt.so.%d", home, CUBLAS_VER_MAJOR);
        lt->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; i < sizeof places / sizeof *places && !lt->lib; i++) {
        snprintf(path, sizeof path, "%slibcublasLt.so.%d", places[i], CUBLAS_VER_MAJOR);
        lt->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!lt->lib) {
        snprintf(why, cap, "libcublasLt.so.%d is not there (looked along LD_LIBRARY_PATH, in $CUDA_HOME/lib64 and /usr/local/cuda/lib64)",
                 CUBLAS_VER_MAJOR);
        return false;
    }
#define X(f)                                                                                                                               \
    lt->f = (decltype(lt->f))dlsym(lt->lib, #f);                                                                                           \
    if (!lt->f) {                                                                                                                          \
        snprintf(why, cap, "libcublasLt.so.%d lacks " #f, CUBLAS_VER_MAJOR);                                                               \
        return false;                                                                                                                      \
    }
    LT_FUNCS(X)
#undef X
    return true;
}

int cuda_lt_open(struct backend *be, struct err *e)
{
    struct cuda_backend *c = cuda_of(be);
    char why[300];
    struct cuda_lt *lt = (struct cuda_lt *)calloc(1, sizeof *lt);
    if (!lt)
        return err_nomem(e, sizeof *lt, "the cuda backend");
    c->lt = lt;
    lt->plans = (struct plan *)calloc(PLANS, sizeof *lt->plans);
    if (!lt->plans)
        return err_nomem(e, PLANS * sizeof *lt->plans, "the cuda backend");
    if (!find_library(lt, why, sizeof why))
        return ERR(e, E_ENV, "%s: %s; install the CUDA toolkit's cuBLAS or use --device cpu", be->desc, why);
    cublasStatus_t rc = lt->cublasLtCreate(&lt->handle);
    if (rc != CUBLAS_STATUS_SUCCESS)
        return ERR(e, E_ENV, "%s: cublasLtCreate: %s", be->desc, lt->cublasLtGetStatusString(rc));
    cudaError_t mem = cudaMalloc(&lt->ws, WORKSPACE);
    if (mem != cudaSuccess) {
        (void)cudaGetLastError();
        return ERR(e, E_ENV, "%s: cannot allocate %zu MiB for matrix products: %s", be->desc, WORKSPACE >> 20, cudaGetErrorString(mem));
    }
    be->mem_used_bytes += (int64_t)WORKSPACE;
    cache_path(lt);
    return 0;
}

static void drop_plans(struct cuda_lt *lt)
{
    for (int i = 0; lt->plans && i < PLANS; i++) {
        struct plan *p = &lt->plans[i];
        if (!p->used)
            continue;
        lt->cublasLtMatmulDescDestroy(p->op);
        lt->cublasLtMatrixLayoutDestroy(p->a);
        lt->cublasLtMatrixLayoutDestroy(p->b);
        lt->cublasLtMatrixLayoutDestroy(p->c);
        p->used = false;
    }
    lt->n_plans = 0;
}

void cuda_lt_close(struct backend *be)
{
    struct cuda_lt *lt = cuda_of(be)->lt;
    if (!lt)
        return;
    drop_plans(lt);
    free(lt->plans);
    free(lt->tuned);
    if (lt->ws)
        cudaFree(lt->ws);
    if (lt->handle)
        lt->cublasLtDestroy(lt->handle);
    /* The library stays loaded: it registers handlers that run at exit. */
    free(lt);
    cuda_of(be)->lt = NULL;
}

/* ---- plans ---- */

static void lt_failed(struct backend *be, cublasStatus_t rc, const char *what)
{
    char text[480];
    cuda_op_text(be, text, sizeof text);
    be_fail(be, E_ENV, "%s: %s: %s: %s", be->desc, text, what, cuda_of(be)->lt->cublasLtGetStatusString(rc));
}

static int log2_align(const void *p, int64_t ld, size_t size)
{
    uintptr_t x = (uintptr_t)p | (uintptr_t)((size_t)ld * size) | 16;
    return __builtin_ctzll(x);
}

static int64_t three_bits(int64_t x)
{
    int64_t unit = 1;
    while (x / unit >= 8)
        unit *= 2;
    return CEIL_DIV(x, unit) * unit;
}

static void tuned_key(const struct backend *be, const struct plan_key *k, char key[96])
{
    const struct cuda_backend *c = (const struct cuda_backend *)be->impl;
    char dev[24];
    snprintf(dev, sizeof dev, "%.23s", c->name);
    for (char *p = dev; *p; p++)
        if (*p == ' ' || *p == '\t')
            *p = '_';
    snprintf(key, 96, "%s/%d %lld %lld %lld %s %s %x %x", dev, c->sms, (long long)three_bits(k->m), (long long)three_bits(k->n),
             (long long)three_bits(k->k), dtype_name((enum dtype)k->ct), dtype_name((enum dtype)k->abt), (unsigned)k->flags,
             (unsigned)k->align);
}

struct run_args {
    const struct cuda_mm *d;
    void *out;
    float beta;
};

static cublasStatus_t run_plan(const struct cuda_backend *c, const struct plan *p, const cublasLtMatmulAlgo_t *algo,
                               const struct run_args *r)
{
    const float one = 1;
    return c->lt->cublasLtMatmul(c->lt->handle, p->op, &one, r->d->b, p->a, r->d->a, p->b, &r->beta, r->d->c, p->c, r->out, p->c, algo,
                                 c->lt->ws, WORKSPACE, c->stream);
}

static cublasStatus_t set_bias(struct cuda_lt *lt, const struct plan *p, const struct cuda_mm *d)
{
    return d->bias ? lt->cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, sizeof d->bias)
                   : CUBLAS_STATUS_SUCCESS;
}

/* Candidates, best guess first. */
static int heuristics(struct cuda_lt *lt, const struct plan *p, cublasLtMatmulHeuristicResult_t *out)
{
    cublasLtMatmulPreference_t pref;
    uint32_t mask = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align[3]; /* partial sums in float or none */
    int n = 0;
    for (int i = 0; i < 3; i++)
        align[i] = 1u << (p->key.align >> (8 * i) & 255);
    if (lt->cublasLtMatmulPreferenceCreate(&pref) != CUBLAS_STATUS_SUCCESS)
        return 0;
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE, sizeof WORKSPACE);
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask);
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align[1], sizeof align[1]);
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align[0], sizeof align[0]);
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align[2], sizeof align[2]);
    lt->cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align[2], sizeof align[2]);
    if (lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, p->op, p->a, p->b, p->c, p->c, pref, CANDIDATES, out, &n) != CUBLAS_STATUS_SUCCESS)
        n = 0;
    lt->cublasLtMatmulPreferenceDestroy(pref);
    return n;
}

/* Milliseconds of a candidate: the best of a few runs; negative when it fails. */
static float time_candidate(const struct cuda_backend *c, const struct plan *p, const cublasLtMatmulAlgo_t *algo, const struct run_args *r,
                            cudaEvent_t ev[2])
{
    float best = -1, ms;
    for (int i = 0; i <= TIMED_RUNS; i++) {
        cudaEventRecord(ev[0], c->stream);
        if (run_plan(c, p, algo, r) != CUBLAS_STATUS_SUCCESS)
            return -1;
        cudaEventRecord(ev[1], c->stream);
        if (cudaEventSynchronize(ev[1]) != cudaSuccess || cudaEventElapsedTime(&ms, ev[0], ev[1]) != cudaSuccess)
            return -1;
        if (i > 0 && (best < 0 || ms < best))
            best = ms;
    }
    return best;
}

/* Index of the fastest candidate. The product goes to memory of its own, so that c is read as it is; without memory 0, and nothing is kept.
 */
static int tune(struct backend *be, const struct plan *p, const struct cuda_mm *d, const cublasLtMatmulHeuristicResult_t *cand, int n,
                bool *timed)
{
    struct cuda_backend *c = cuda_of(be);
    struct run_args r = {d, NULL, d->accumulate ? 1.0f : 0.0f};
    cudaEvent_t ev[2] = {NULL, NULL};
    int best = 0;
    float best_ms = -1;
    *timed = false;
    if (cudaMalloc(&r.out, (size_t)((d->m - 1) * p->key.ldc + d->n) * dtype_size(d->ct)) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    if (cudaEventCreate(&ev[0]) == cudaSuccess && cudaEventCreate(&ev[1]) == cudaSuccess)
        for (int i = 0; i < n; i++) {
            float ms = time_candidate(c, p, &cand[i].algo, &r, ev);
            if (ms >= 0 && (best_ms < 0 || ms < best_ms)) {
                best = i;
                best_ms = ms;
            }
        }
    for (int i = 0; i < 2; i++)
        if (ev[i])
            cudaEventDestroy(ev[i]);
    cudaFree(r.out);
    *timed = best_ms >= 0;
    return best;
}

/* The algorithm of a plan: from the cache, timed, or the library's first choice. */
static bool choose(struct backend *be, struct plan *p, const struct cuda_mm *d)
{
    struct cuda_lt *lt = cuda_of(be)->lt;
    cublasLtMatmulHeuristicResult_t cand[CANDIDATES], check;
    char key[96];
    const struct tuned *t = NULL;
    bool worth = lt->path[0] && (double)d->m * (double)d->n * (double)d->k >= TUNE_ABOVE;
    int fd = -1, n;
    tuned_key(be, &p->key, key);
    if (worth && !(t = tuned_find(lt, key)) && (fd = tuned_lock(lt)) >= 0) {
        tuned_read(lt, fd);
        t = tuned_find(lt, key);
    }
    if (t && lt->cublasLtMatmulAlgoCheck(lt->handle, p->op, p->a, p->b, p->c, p->c, &t->algo, &check) == CUBLAS_STATUS_SUCCESS &&
        check.workspaceSize <= WORKSPACE) {
        p->algo = t->algo;
        if (fd >= 0)
            close(fd);
        return true;
    }
    n = heuristics(lt, p, cand);
    if (n > 0) {
        bool timed = false;
        int best = fd >= 0 && !t ? tune(be, p, d, cand, n, &timed) : 0;
        p->algo = cand[best].algo;
        if (timed) {
            if (!tuned_write(fd, key, &p->algo)) /* not kept: what a later run would take */
                p->algo = cand[0].algo;
            tuned_add(lt, key, &p->algo);
        }
    }
    if (fd >= 0)
        close(fd);
    return n > 0;
}

static cublasStatus_t describe(struct cuda_lt *lt, struct plan *p)
{
    const struct plan_key *k = &p->key;
    const bool ta = k->flags & 1, tb = k->flags & 2;
    const cublasOperation_t opa = tb ? CUBLAS_OP_T : CUBLAS_OP_N, opb = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t bias = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t ab = k->abt == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F, ct = k->ct == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasStatus_t rc = lt->cublasLtMatmulDescCreate(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lt->cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSA, &opa, sizeof opa);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lt->cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_TRANSB, &opb, sizeof opb);
    if (rc == CUBLAS_STATUS_SUCCESS && (k->flags & 8))
        rc = lt->cublasLtMatmulDescSetAttribute(p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &bias, sizeof bias);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lt->cublasLtMatrixLayoutCreate(&p->a, ab, (uint64_t)(tb ? k->k : k->n), (uint64_t)(tb ? k->n : k->k), k->ldb);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lt->cublasLtMatrixLayoutCreate(&p->b, ab, (uint64_t)(ta ? k->m : k->k), (uint64_t)(ta ? k->k : k->m), k->lda);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = lt->cublasLtMatrixLayoutCreate(&p->c, ct, (uint64_t)k->n, (uint64_t)k->m, k->ldc);
    return rc;
}

/* The plan of a key, made on first use. NULL: sticky error set, or (no error) no algorithm for it. */
static struct plan *plan_of(struct backend *be, const struct plan_key *key, const struct cuda_mm *d)
{
    struct cuda_lt *lt = cuda_of(be)->lt;
    uint64_t h = 1469598103934665603ull;
    const unsigned char *bytes = (const unsigned char *)key;
    for (size_t i = 0; i < sizeof *key; i++)
        h = (h ^ bytes[i]) * 1099511628211ull;
    if (lt->n_plans > PLANS / 2)
        drop_plans(lt);
    struct plan *p;
    for (p = &lt->plans[h % PLANS]; p->used; p = p + 1 == lt->plans + PLANS ? lt->plans : p + 1)
        if (!memcmp(&p->key, key, sizeof *key))
            return p;
    memset(p, 0, sizeof *p);
    p->key = *key;
    cublasStatus_t rc = describe(lt, p);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = set_bias(lt, p, d);
    bool found = rc == CUBLAS_STATUS_SUCCESS && choose(be, p, d);
    if (rc != CUBLAS_STATUS_SUCCESS)
        lt_failed(be, rc, "describing the product");
    if (!found) {
        if (p->op)
            lt->cublasLtMatmulDescDestroy(p->op);
        if (p->a)
            lt->cublasLtMatrixLayoutDestroy(p->a);
        if (p->b)
            lt->cublasLtMatrixLayoutDestroy(p->b);
        if (p->c)
            lt->cublasLtMatrixLayoutDestroy(p->c);
        return NULL;
    }
    p->used = true;
    lt->n_plans++;
    return p;
}

/* ---- the product ---- */

/* c = (c or 0) + bias: products of nothing, and biases that the library does not add. */
template <typename C, typename B> __global__ void bias_kernel(C *c, const B *bias, int64_t m, int64_t n, int64_t ldc, bool keep)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < m * n; i += (int64_t)gridDim.x * blockDim.x) {
        C *p = c + i / n * ldc + i % n;
        st(p, (keep ? ld(p) : 0.0f) + (bias ? ld(bias + i % n) : 0.0f));
    }
}

static void add_bias(struct backend *be, const struct cuda_mm *d, int64_t ldc, bool keep)
{
    int64_t blocks = MIN(CEIL_DIV(d->m * d->n, 256), (int64_t)4096);
    CUDA_BY_TYPE(d->ct, C, {
        CUDA_BY_TYPE(d->abt, B, {
            bias_kernel<C, B><<<(unsigned)blocks, 256, 0, cuda_of(be)->stream>>>((C *)d->c, (const B *)d->bias, d->m, d->n, ldc, keep);
        });
    });
}

void cuda_matmul(struct backend *be, const struct cuda_mm *d)
{
    struct cuda_backend *c = cuda_of(be);
    struct plan_key k;
    if (be->failed || d->m == 0 || d->n == 0)
        return;
    memset(&k, 0, sizeof k);
    k.m = d->m, k.n = d->n, k.k = d->k;
    k.lda = d->lda ? d->lda : d->ta ? d->m : d->k;
    k.ldb = d->ldb ? d->ldb : d->tb ? d->k : d->n;
    k.ldc = d->ldc ? d->ldc : d->n;
    if (d->k == 0) {
        add_bias(be, d, k.ldc, d->accumulate);
        return;
    }
    struct cuda_mm run = *d;
    if (d->bias && d->ct != d->abt)
        run.bias = NULL;
    const size_t in = dtype_size(d->abt);
    k.ct = d->ct, k.abt = d->abt;
    k.align = log2_align(d->a, k.lda, in) | log2_align(d->b, k.ldb, in) << 8 | log2_align(d->c, k.ldc, dtype_size(d->ct)) << 16;
    k.flags = d->ta | d->tb << 1 | d->accumulate << 2 | (run.bias ? 8 : 0);
    struct plan *p = plan_of(be, &k, &run);
    if (!p && !be->failed && run.bias) { /* the epilogue is not there for every shape */
        run.bias = NULL;
        k.flags &= ~8;
        p = plan_of(be, &k, &run);
    }
    if (!p) {
        if (!be->failed)
            lt_failed(be, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm");
        return;
    }
    struct run_args r = {&run, d->c, d->accumulate ? 1.0f : 0.0f};
    cublasStatus_t rc = set_bias(c->lt, p, &run);
    if (rc == CUBLAS_STATUS_SUCCESS)
        rc = run_plan(c, p, &p->algo, &r);
    if (rc != CUBLAS_STATUS_SUCCESS)
        lt_failed(be, rc, "cublasLtMatmul");
    if (d->bias && !run.bias)
        add_bias(be, d, k.ldc, true);
}

void cuda_op_gemm(struct backend *be, const struct op_gemm *d)
{
    struct cuda_mm mm;
    memset(&mm, 0, sizeof mm);
    mm.c = d->c.p, mm.a = d->a.p, mm.b = d->b.p, mm.bias = d->bias.p;
    mm.ct = d->c.dt, mm.abt = d->a.dt;
    mm.m = d->m, mm.n = d->n, mm.k = d->k, mm.lda = d->lda, mm.ldb = d->ldb, mm.ldc = d->ldc;
    mm.ta = d->ta, mm.tb = d->tb, mm.accumulate = d->accumulate;
    cuda_matmul(be, &mm);
}
