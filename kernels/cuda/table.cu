/* The backend frame: opening and closing, memory, the workspace, the table of ops, and what is said when the device fails. */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/memory.h"
}

#include <algorithm>

/* ---- errors ---- */

static void dims_text(const struct op_views *o, char *dst, size_t cap)
{
    size_t used = 0;
    dst[0] = 0;
    for (int i = 0; i < o->n && used + 1 < cap; i++) {
        const struct op_view *v = &o->v[i];
        if (!v->v->p)
            continue;
        int n = snprintf(dst + used, cap - used, "%s%s %" PRId64 "x%" PRId64 " %s", used ? ", " : "", v->name, v->rows, v->width,
                         dtype_name(v->v->dt));
        used += n > 0 ? (size_t)n : 0;
    }
}

void cuda_op_text(const struct backend *be, char *dst, size_t cap)
{
    const struct cuda_backend *c = (const struct cuda_backend *)be->impl;
    struct op_views o;
    char dims[400];
    if (!c->desc) {
        snprintf(dst, cap, c->op ? "op '%s'" : "outside an op", c->op);
        return;
    }
    op_views_any(c->op_id, (const union op_any *)c->desc, &o);
    dims_text(&o, dims, sizeof dims);
    snprintf(dst, cap, "op '%s' (%s)", c->op, dims);
}

void cuda_fail(struct backend *be, cudaError_t rc, const char *what)
{
    char text[480];
    cuda_op_text(be, text, sizeof text);
    be_fail(be, E_ENV, "%s: %s: %s: %s (%s)", be->desc, text, what, cudaGetErrorString(rc), cudaGetErrorName(rc));
    (void)cudaGetLastError();
}

/* A failure that shows up when the host waits: any op since the last wait may have made it. */
static int wait_failed(struct backend *be, cudaError_t rc, struct err *e)
{
    struct cuda_backend *c = cuda_of(be);
    (void)cudaGetLastError();
    if (c->ops_begun == 0)
        return ERR(e, E_ENV, "%s: the device failed outside an op: %s (%s)", be->desc, cudaGetErrorString(rc), cudaGetErrorName(rc));
    return ERR(e, E_ENV,
               "%s: the device failed in one of the %" PRId64
               " ops from '%s' to '%s': %s (%s); set DASHLAB_CUDA_SYNC=1 to have the op and its shape named",
               be->desc, c->ops_begun, c->first_op, c->op, cudaGetErrorString(rc), cudaGetErrorName(rc));
}

/* ---- memory ---- */

static int out_of_memory(size_t bytes, cudaError_t rc, struct err *e)
{
    size_t available = 0, total = 0;
    (void)cudaGetLastError();
    if (cudaMemGetInfo(&available, &total) != cudaSuccess)
        (void)cudaGetLastError();
    return ERR(e, E_ENV, "cannot allocate %.1f MiB: %s; %.1f of %.1f MiB are free on the device; use a smaller batch or sequence length",
               (double)bytes / 1048576.0, rc == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorString(rc),
               (double)available / 1048576.0, (double)total / 1048576.0);
}

static int cuda_alloc(struct backend *be, size_t bytes, void **p, struct err *e)
{
    struct cuda_backend *c = cuda_of(be);
    void *q = NULL;
    size_t n = bytes ? bytes : 1;
    cudaError_t rc = cudaMalloc(&q, n);
    if (rc != cudaSuccess)
        return out_of_memory(n, rc, e);
    rc = cudaMemsetAsync(q, 0, n, c->stream);
    if (rc != cudaSuccess) {
        cudaFree(q);
        return wait_failed(be, rc, e);
    }
    *p = q;
    return 0;
}

static void cuda_free(struct backend *be, void *p)
{
    cuda_of(be)->epoch++;
    if (cudaFree(p) != cudaSuccess) /* of an earlier op: the next wait says so */
        (void)cudaGetLastError();
}

/* Small uploads (indices of a decoding step) travel as a kernel's argument: no wait, no staging. */
enum { SMALL_BYTES = 3840 };
struct small_bytes {
    unsigned char b[SMALL_BYTES];
};
__global__ void put_small_kernel(unsigned char *dst, const __grid_constant__ struct small_bytes src, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        dst[i] = src.b[i];
}

static void cuda_copy(struct backend *be, void *dst, const void *src, size_t bytes, enum copy_kind kind)
{
    struct cuda_backend *c = cuda_of(be);
    if (bytes == 0)
        return;
    const cudaMemcpyKind k = kind == COPY_TO_DEVICE ? cudaMemcpyHostToDevice
                             : kind == COPY_TO_HOST ? cudaMemcpyDeviceToHost
                                                    : cudaMemcpyDeviceToDevice;
    cudaError_t rc;
    if (kind == COPY_TO_DEVICE && bytes <= SMALL_BYTES) {
        struct small_bytes small;
        memcpy(small.b, src, bytes);
        put_small_kernel<<<1, 256, 0, c->stream>>>((unsigned char *)dst, small, (int)bytes);
        rc = cudaPeekAtLastError();
    } else
        rc = cudaMemcpyAsync(dst, src, bytes, k, c->stream);
    if (rc == cudaSuccess && kind == COPY_TO_HOST) /* uploads of ordinary memory have left the caller's when the call returns */
        rc = cudaStreamSynchronize(c->stream);
    if (rc == cudaSuccess)
        return;
    struct err e;
    wait_failed(be, rc, &e);
    be_fail(be, e.code, "%s", e.msg);
    if (kind == COPY_TO_HOST)
        memset(dst, 0, bytes);
}

static void cuda_zero(struct backend *be, void *p, size_t bytes)
{
    cudaError_t rc = bytes ? cudaMemsetAsync(p, 0, bytes, cuda_of(be)->stream) : cudaSuccess;
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "cudaMemsetAsync");
}

static int cuda_sync(struct backend *be, struct err *e)
{
    struct cuda_backend *c = cuda_of(be);
    cudaError_t rc = cudaStreamSynchronize(c->stream);
    if (rc != cudaSuccess)
        return wait_failed(be, rc, e);
    c->ops_begun = 0;
    return 0;
}

static void count_bytes(struct backend *be, int64_t bytes)
{
    be->mem_used_bytes += bytes;
    be->mem_peak_bytes = std::max(be->mem_peak_bytes, be->mem_used_bytes);
}

/* Between ops: blocks that were added during an op become part of one. */
static void ws_gather(struct backend *be)
{
    struct cuda_backend *c = cuda_of(be);
    if (!c->n_extra)
        return;
    for (int i = 0; i < c->n_extra; i++) {
        c->ws_want += c->extra_bytes[i];
        count_bytes(be, -(int64_t)c->extra_bytes[i]);
        cuda_free(be, c->extra[i]); /* waits for the kernels that use it */
    }
    c->ws_want += c->ws_cap;
    count_bytes(be, -(int64_t)c->ws_cap);
    cuda_free(be, c->ws);
    c->ws = NULL;
    c->ws_cap = c->ws_used = 0;
    c->n_extra = 0;
}

static void *ws_block(struct backend *be, size_t bytes)
{
    struct cuda_backend *c = cuda_of(be);
    struct err e;
    void *p;
    if (be->mem_limit_bytes && be->mem_used_bytes + (int64_t)bytes > be->mem_limit_bytes) {
        be_fail(be, E_ENV, "%s: op '%s' needs %.1f MiB of workspace with %.1f MiB in use; the limit is %.1f MiB", be->desc, c->op,
                (double)bytes / 1048576.0, (double)be->mem_used_bytes / 1048576.0, (double)be->mem_limit_bytes / 1048576.0);
        return NULL;
    }
    cudaError_t rc = cudaMalloc(&p, bytes);
    if (rc != cudaSuccess) {
        char text[480];
        cuda_op_text(be, text, sizeof text);
        out_of_memory(bytes, rc, &e);
        be_fail(be, E_ENV, "%s: %s: workspace: %s", be->desc, text, e.msg);
        return NULL;
    }
    count_bytes(be, (int64_t)bytes);
    return p;
}

void *cuda_ws(struct backend *be, size_t bytes)
{
    struct cuda_backend *c = cuda_of(be);
    const size_t need = (bytes + 255) & ~(size_t)255;
    if (be->failed)
        return NULL;
    if (!c->ws) {
        const size_t cap = std::max(std::max(need, c->ws_want), (size_t)1 << 22);
        if (!(c->ws = (char *)ws_block(be, cap)))
            return NULL;
        c->ws_cap = cap;
        c->ws_want = 0;
    }
    if (need <= c->ws_cap - c->ws_used) {
        void *out = c->ws + c->ws_used;
        c->ws_used += need;
        return out;
    }
    if (c->n_extra == CUDA_EXTRA) {
        be_fail(be, E_ENV, "op '%s' asks for workspace beyond its block more often than %d times", c->op, CUDA_EXTRA);
        return NULL;
    }
    void *p = ws_block(be, need);
    if (p) {
        c->extra[c->n_extra] = p;
        c->extra_bytes[c->n_extra++] = need;
    }
    return p;
}

void cuda_ws_settle(struct backend *be)
{
    struct cuda_backend *c = cuda_of(be);
    ws_gather(be);
    c->ws_used = 0;
    if (c->ws || !c->ws_want || be->failed)
        return;
    const size_t cap = std::max(c->ws_want, (size_t)1 << 22);
    if ((c->ws = (char *)ws_block(be, cap))) {
        c->ws_cap = cap;
        c->ws_want = 0;
    }
}

/* ---- the table ---- */

static void op_begin(struct backend *be, enum op_id id, const void *desc)
{
    struct cuda_backend *c = cuda_of(be);
    ws_gather(be);
    c->ws_used = 0;
    c->op = op_names[id];
    c->op_id = id;
    c->desc = desc;
    if (c->ops_begun++ == 0)
        c->first_op = c->op;
}

static void op_end(struct backend *be)
{
    struct cuda_backend *c = cuda_of(be);
    cudaError_t rc = cudaPeekAtLastError();
    if (rc == cudaSuccess && c->sync_each)
        rc = cudaStreamSynchronize(c->stream);
    if (rc != cudaSuccess)
        cuda_fail(be, rc, "kernel");
    c->desc = NULL;
}

void cuda_step_begin(struct backend *be, const char *name)
{
    struct cuda_backend *c = cuda_of(be);
    ws_gather(be);
    c->ws_used = 0;
    c->op = name;
    if (c->ops_begun++ == 0)
        c->first_op = name;
}

void cuda_step_end(struct backend *be)
{
    op_end(be);
}

#define X(op)                                                                                                                              \
    static void run_##op(struct backend *be, const struct op_##op *d)                                                                      \
    {                                                                                                                                      \
        op_begin(be, OP_##op, d);                                                                                                          \
        cuda_op_##op(be, d);                                                                                                               \
        op_end(be);                                                                                                                        \
    }
BACKEND_OPS(X)
#undef X

static void cuda_close(struct backend *be)
{
    struct cuda_backend *c = cuda_of(be);
    if (!c)
        return;
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    cuda_graphs_close(be);
    cuda_lt_close(be);
    ws_gather(be);
    if (c->ws)
        cudaFree(c->ws);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    (void)cudaGetLastError();
    free(c);
    be->impl = NULL;
}

static struct backend_ops make_table(void)
{
    struct backend_ops t;
    t.name = "cuda";
    t.close = cuda_close;
    t.alloc = cuda_alloc;
    t.free = cuda_free;
    t.copy = cuda_copy;
    t.zero = cuda_zero;
    t.sync = cuda_sync;
#define X(op) t.op = run_##op;
    BACKEND_OPS(X)
#undef X
    return t;
}
static const struct backend_ops table = make_table();

int64_t cuda_free_bytes(const struct backend *)
{
    size_t free_bytes = 0, total = 0;
    if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess)
        return (int64_t)free_bytes;
    (void)cudaGetLastError();
    return 0;
}

/* ---- opening ---- */

__global__ void probe_kernel(int *out)
{
    *out = 1;
}

static int no_device(cudaError_t rc, int count, struct err *e)
{
    int driver = 0, runtime = 0;
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = CUDART_VERSION;
    (void)cudaGetLastError();
    if (driver == 0)
        return ERR(e, E_ENV, "no NVIDIA driver is loaded on this machine; use --device cpu");
    if (driver < runtime && (rc == cudaErrorInsufficientDriver || rc == cudaErrorSystemDriverMismatch))
        return ERR(e, E_ENV, "the NVIDIA driver supports CUDA %d.%d, this build needs %d.%d; update the driver or use --device cpu",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (rc == cudaSuccess && count == 0)
        rc = cudaErrorNoDevice;
    return ERR(e, E_ENV, "no CUDA device can be used: %s (%s); use --device cpu", cudaGetErrorString(rc), cudaGetErrorName(rc));
}

static int device_props(struct cuda_backend *c, struct err *e)
{
    cudaDeviceProp p;
    cudaFuncAttributes attr;
    cudaError_t rc = cudaGetDeviceProperties(&p, c->device);
    if (rc != cudaSuccess)
        return no_device(rc, 1, e);
    snprintf(c->name, sizeof c->name, "%.63s", p.name);
    c->cc = 10 * p.major + p.minor;
    c->sms = p.multiProcessorCount;
    c->smem_optin = p.sharedMemPerBlockOptin;
    c->l2_bytes = p.l2CacheSize;
    if (c->cc < 80)
        return ERR(e, E_ENV, "'%s' has compute capability %d.%d; 8.0 or later is needed; use --device cpu", c->name, p.major, p.minor);
    rc = cudaFuncGetAttributes(&attr, probe_kernel);
    if (rc != cudaSuccess) {
        (void)cudaGetLastError();
        return ERR(e, E_ENV, "this build has no code for '%s' (compute capability %d.%d): %s; configure with -DCMAKE_CUDA_ARCHITECTURES=%d",
                   c->name, p.major, p.minor, cudaGetErrorString(rc), c->cc);
    }
    c->cc = std::min(c->cc, attr.ptxVersion); /* newer devices run the portable code, which lacks what is written for one architecture */
    return 0;
}

int backend_open_cuda(struct backend *be, enum dtype act, struct err *e)
{
    int count = 0;
    cudaError_t rc = cudaGetDeviceCount(&count);
    if (rc != cudaSuccess || count == 0)
        return no_device(rc, count, e);
    if (act != DT_BF16 && act != DT_F32)
        return ERR(e, E_USAGE, "activations of type %s are not possible on cuda; take bf16 or f32", dtype_name(act));
    struct cuda_backend *c = (struct cuda_backend *)calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "the cuda backend");
    const char *sync = getenv("DASHLAB_CUDA_SYNC");
    c->sync_each = sync && *sync && strcmp(sync, "0");
    const char *step = getenv("DASHLAB_CUDA_STEP");
    c->fused = !step || strcmp(step, "ops");
    c->use_graphs = c->fused && (!step || strcmp(step, "fused")) && !c->sync_each;
    be->impl = c;
    be->ops = &table;
    be->act = act;
    be->stat = DT_F32;
    be->determinism = "run";
    int bad = device_props(c, e);
    if (bad == 0)
        snprintf(be->desc, sizeof be->desc, "cuda %s (compute capability %d.%d, %d multiprocessors), %s", c->name, c->cc / 10, c->cc % 10,
                 c->sms, dtype_name(act));
    if (bad == 0 && ((rc = cudaSetDevice(c->device)) != cudaSuccess ||
                     (rc = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)) != cudaSuccess))
        bad = no_device(rc, count, e);
    if (bad == 0)
        bad = cuda_lt_open(be, e);
    if (bad != 0)
        cuda_close(be);
    return bad;
}
